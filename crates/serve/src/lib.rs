//! Drivers: the I/O of a [`Session`](session::Session).
//!
//! A session takes input and writes output, and knows nothing of sockets. A driver receives, passes
//! input on, and sends. Everything of a connection that is not I/O is a *machine* (`connection.rs`,
//! the page to read): time-outs, drain, TLS, the reason of the close. It is the same under each
//! engine. With a fiber or a kernel thread per connection the driver is a short loop
//! (`blocking.rs`); event loops, the stages of a pipeline and the loops of a netstack do the same
//! for many connections each (`engine.rs`).
//!
//! ```
//! use weftwork_serve::{Server, Settings, listen};
//! use session::Echo;
//! # use std::io::{BufRead, BufReader, Write};
//! # fn main() -> std::io::Result<()> {
//!
//! let listeners = listen::bind(&"127.0.0.1:0".parse()?, None)?;
//! # let listen::Address::Tcp(address) = listeners[0].address else { unreachable!() };
//! let server = Server::start(Settings { listeners, ..Settings::default() }, |_opening| Echo)?;
//! # let mut client = std::net::TcpStream::connect(address)?;
//! # client.write_all(b"hello\nbye\n")?;
//! # let lines: Vec<_> = BufReader::new(client).lines().collect::<Result<_, _>>()?;
//! # assert_eq!(lines, ["hello", "bye"]);
//! server.drain(); // lets open requests finish
//! # Ok(())
//! # }
//! ```
//!
//! `examples/line.rs` is a whole program with a session of its own.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | (none) | fibers, kernel threads |
//! | `event` | event loops, on any dispatcher of crate `event` |
//! | `pipeline` | stages with threads of their own, and `event` |
//! | `netstack` | TCP/IP in user space, and `event` |
//! | `tls` | TLS, by rustls |
//!
//! `connection` (a connection as a machine) · `blocking` (the driver) · `stream` (its interface to
//! a connection) · `file` (sending files) · `buffers` (for reads of files) · `memory` (held by
//! connections) · `jobs` (blocking work) · `lingering` (limit on connections that wait at their
//! end) · `registry` (the open connections) · [`engine`] (one file each) · [`server`] (start and
//! drain) · `proxy` (PROXY headers) · `addresses` (connections of one address) · [`listen`],
//! [`limits`], [`counters`], [`tls`], [`datagrams`], [`access_log`], [`messages`], [`metrics`].

pub mod access_log;
mod addresses;
mod blocking;
mod buffers;
mod clock;
mod connection;
pub mod counters;
pub mod datagrams;
pub mod engine;
mod file;
mod jobs;
pub mod limits;
mod lingering;
pub mod listen;
mod memory;
pub mod messages;
pub mod metrics;
mod proxy;
mod registry;
pub mod server;
mod shared;
mod stream;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(not(feature = "tls"))]
mod without_tls;
#[cfg(not(feature = "tls"))]
use without_tls as tls;

pub use engine::Engine;
pub use memory::give_free_memory_back;
pub use server::{Server, Settings};
