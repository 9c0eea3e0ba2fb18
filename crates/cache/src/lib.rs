//! The memcached protocols as a [`Session`], over an item store of its own.
//!
//! A [`Service`] is what a server's conversations share: the store, the settings, who is connected, who watches.
//! A [`Session`] is one conversation. Its first byte decides which protocol it is in:
//!
//! | protocol | module | first byte |
//! |---|---|---|
//! | classic text: `get`, `set` … | `text` | any other |
//! | meta: `mg`, `ms` … | `meta` | any other: these are commands of the text protocol |
//! | binary | `binary` | 0x80 |
//!
//! [`udp`] is the framing of all of them over datagrams. `watch` is the lines for who watches; `stats` the numbers
//! by memcached's names; `dump` the listings of all items; [`auth`] who may ask.
//!
//! What is said, and when, is memcached's, byte by byte: its doc/protocol.txt, and where that is silent what
//! memcached 1.6 does, which `tests/system/cache_oracle.py` compares with the real one.
//!
//! The protocols and the store do not know each other's insides. Between them stands a [`store::Turn`]:
//! what one call of the session does to the store.

#![deny(unsafe_code)]

pub mod auth;
mod base64;
mod binary;
mod connections;
mod counters;
mod detail;
mod dump;
mod meta;
mod number;
mod observe;
mod service;
mod session;
mod stats;
pub mod store;
mod text;
pub mod transcript;
pub mod udp;
mod watch;

pub use connections::Peer;
pub use service::{Access, Binding, Evicted, Host, NoHost, Process, Service, Settings, Shutdown};
pub use session::Session;
