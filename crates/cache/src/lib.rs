//! The memcached protocols as a [`Session`], over an item store of its own.
//!
//! A [`Service`] is what a server's conversations share: the store, the settings, who is connected,
//! who watches. A [`Session`] is one conversation. Its first byte decides which protocol it is in:
//! 0x80 is binary, any other is text.
//!
//! The modules, from the ground up. Each knows only those above it in this list:
//!
//! | module | what it is |
//! |---|---|
//! | `number` | numbers, as memcached reads and writes them |
//! | [`store`] | the items, under a hard memory limit. It knows no protocol |
//! | `words` | the limits and error lines of the protocols; words and keys of a line |
//! | `service` | what conversations share: settings, counters, `watch`, the numbers of `stats`, who may ask ([`auth`]) |
//! | `conversation` | what a command needs (`Context`), where a conversation stands (`State`), listings |
//! | `binary`, `meta` | the binary protocol; the meta commands `mg`, `ms` … |
//! | `text` | classic text: `get`, `set` …; the meta commands are commands of it |
//! | `session` | the [`Session`], which hands each command to its protocol |
//!
//! [`udp`] is the framing of all of them over datagrams; [`transcript`] is for tests.
//!
//! What is said, and when, is memcached's, byte by byte: its doc/protocol.txt, and where that is
//! silent what memcached 1.6 does, which `tests/system/cache_oracle.py` compares with the real one.
//!
//! The protocols and the store do not know each other's insides. Between them stands a
//! [`store::Guard`]: what one call of the session does to the store.

#![deny(unsafe_code)]

// In the order of the list above.
mod number;

pub mod store;

mod words;

mod service;

mod conversation;

mod binary;
mod meta;

mod text;

mod session;
pub mod transcript;
pub mod udp;

pub use service::auth;
pub use service::{
    Auth, Binding, Evicted, Host, NoHost, Peer, Process, Service, Settings, StopMode,
};
pub use session::Session;
