//! HTTP loads against servers whose behaviour is known.

extern crate weftwork_load as load;

mod ends;
mod plans;
mod replies;
mod times;
#[path = "../world/mod.rs"]
mod world;
