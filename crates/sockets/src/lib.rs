//! TCP sockets for fibers over the TCP/IP of [`netstack`]: blocking code, with a system call for
//! each frame, not for each read.
//!
//! A [`SocketStack`] has a device, addresses and two fibers that drive it. [`TcpListener`] and
//! [`TcpStream`] behave as those of [`fiber::net`]: a fiber that reads waits until its connection
//! has bytes, and others run meanwhile.
//!
//! ```no_run
//! use std::io::{Read, Write};
//! use netstack::stack::ShardLimits;
//! use netstack::interface_config::InterfaceConfig;
//! use netstack::tcp::TcpConfig;
//! use weftwork_sockets::{SocketStack, TcpListener};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let interface = InterfaceConfig {
//!     device: "tap:weft0".parse()?,
//!     addresses: vec!["10.9.0.2/24".parse()?],
//!     gateways: Vec::new(),
//!     mtu: None,
//! };
//! let mut shards = interface.open(1, TcpConfig::default(), ShardLimits::default())?;
//! fiber::run(move || {
//!     let stack = SocketStack::start(shards.remove(0), fiber::Builder::new())?;
//!     let listener = TcpListener::bind(&stack, "10.9.0.2:7".parse().unwrap())?;
//!     loop {
//!         let mut stream = listener.accept()?;
//!         fiber::spawn(move || {
//!             let mut buffer = [0; 4096];
//!             while let Ok(len @ 1..) = stream.read(&mut buffer) {
//!                 stream.write_all(&buffer[..len]).unwrap();
//!             }
//!         });
//!     }
//! # ;
//! # #[allow(unreachable_code)]
//! # std::io::Result::Ok(())
//! })?;
//! # Ok(())
//! # }
//! ```
//!
//! # What to know
//!
//! * **Errors are those of the kernel's sockets**, by [`std::io::ErrorKind`]: `ConnectionReset`,
//!   `ConnectionRefused`, `BrokenPipe`, `TimedOut`, `HostUnreachable`. `NotConnected` also says
//!   that the [`SocketStack`] has ended.
//! * **Dropping a stream closes it**: written bytes are still sent. If received bytes were not
//!   read, the connection is reset, as the kernel does.
//! * **Bytes leave at the end of a round**, when the fiber that has written them waits or ends. A
//!   fiber that computes for long delays its processor's transmissions.
//! * **A write copies** into a buffer of the connection
//!   ([`ShardLimits::send_capacity`](netstack::stack::ShardLimits)) and waits while that is full.
//!   A [`Writer`](netstack::stack::Writer) on a loop of its own sends without a copy.
//! * **All fibers of a stack are best on one processor**, which is what the [`fiber::Builder`] of
//!   [`SocketStack::start`] is for. Elsewhere, and on plain threads, sockets work the same, and
//!   more slowly.
//!
//! # Files
//!
//! `stack` (the netstack under its lock, its rounds, who waits) · `stream` · `listener`.

#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod listener;
mod stack;
mod stream;

pub use listener::TcpListener;
pub use stack::{SocketStack, StackCounters};
pub use stream::TcpStream;
