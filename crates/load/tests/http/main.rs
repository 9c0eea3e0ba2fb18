//! HTTP loads against servers whose behaviour is known.

mod ends;
mod plans;
mod replies;
mod times;
#[path = "../world/mod.rs"]
mod world;
