//! The memcached protocols as a [`Session`], over an item store of its own.
//!
//! A [`Service`] is shared by all conversations of a server: the store, the settings, the
//! connections, the watchers. A [`Session`] is one conversation. Its first byte decides the
//! protocol: 0x80 is binary, any other is text.
//!
//! The modules, bottom up. Each knows only those above it in this list:
//!
//! | module | what it is |
//! |---|---|
//! | `number` | numbers, as memcached reads and writes them |
//! | [`store`] | the items, under a hard memory limit, without any protocol |
//! | `words` | the limits and error lines of the protocols; words and keys of a line |
//! | `service` | state shared by conversations: settings, counters, `watch`, figures of `stats`, [`auth`] |
//! | `conversation` | context of a command (`Context`), state of a conversation (`State`), listings |
//! | `binary`, `meta` | the binary protocol; the meta commands `mg`, `ms` … |
//! | `text` | classic text: `get`, `set` …; the meta commands are commands of it |
//! | `session` | the [`Session`], which hands each command to its protocol |
//!
//! [`udp`] frames all of them in datagrams.
//!
//! Replies equal memcached's, byte by byte, as in its doc/protocol.txt. Where that is silent,
//! memcached 1.6 is the model; `tests/system/cache_oracle.py` compares with the real one.
//!
//! The protocols and the store do not know each other's internals. Their interface is the
//! [`store::Guard`]: access to the store for one call of a session.

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
pub mod udp;

pub use service::auth;
pub use service::{
    Auth, Binding, Evicted, Host, NoHost, Peer, Process, Service, Settings, StopMode,
};
pub use session::{Session, Work};
