//! Drivers: what carries the bytes of a [`Session`](session::Session).
//!
//! A session takes input and writes output, and knows nothing of sockets. A driver receives, hands in, and
//! sends: here from a fiber per connection or a kernel thread per connection, by the same straight-line code
//! (`blocking.rs`, which is the page to read). Graceful drain, limits, counters and the access log are
//! the same under each engine.
//!
//! `blocking` (the driver) · `conversation` (a session and its unused input) · `stream` (what a driver needs
//! of a connection) · [`server`] (listeners, carriers, connections) · [`listen`], [`limits`], [`counters`],
//! [`tls`], [`datagrams`], [`clock`], [`access_log`], [`admin`], [`signals`].

pub mod access_log;
pub mod admin;
mod blocking;
pub mod clock;
mod conversation;
pub mod counters;
pub mod datagrams;
pub mod limits;
pub mod listen;
pub mod server;
pub mod signals;
mod stream;
pub mod tls;

pub use server::{Engine, Server, Settings};
