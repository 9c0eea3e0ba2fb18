//! The interface between a protocol and the engine that moves its bytes.
//!
//! A server is a [`Session`]: bytes in, output out, no sockets, no clock, never blocking. A
//! *driver* (crate `serve`: the connection machine, and the engine that moves its bytes) does
//! the rest. The same protocol code runs under every engine.
//!
//! ```text
//!             bytes                              chunks
//!  socket ───────────▶  Session::receive(input, &mut Outbox)  ───────────▶ socket
//!                                                                Bytes | Shared | File
//! ```
//!
//! The interface is small. The session is opened with the facts that it may need ([`Opening`]). The
//! driver shows what has arrived; the session says how much it used, writes its replies into the
//! [`Outbox`], and says what comes next:
//!
//! | [`Next`] | the driver |
//! |---|---|
//! | `Receive(phase)` | sends what is in the outbox, waits for more input within the phase's time-out |
//! | `Flush` | sends what is in the outbox and shows the unused input again: this is back-pressure |
//! | `Duplex(phase, has_more)` | sends what is in the outbox, shows input as it comes meanwhile, and the session again once it is half empty |
//! | `Work` | sends what is in the outbox, then runs the session's [`Work`] where blocking is allowed, and hands it back |
//! | `Close` | sends what is in the outbox and closes |
//! | `Linger` | the same, but keeps reading for a while, so that the peer gets to see the reply |
//!
//! The input is borrowed, so it may lie anywhere: in a buffer of the thread, or in one that
//! io_uring picked. Unused input is shown again, with more behind it. A long request body need not
//! fit in one buffer: a session may take it piece by piece as ordinary input, or lend the driver
//! its own buffer ([`Session::body_buffer`]), into which the bytes are received without a copy.
//!
//! A session never blocks. What may block is a value of its own, [`Session::Work`], which owns what
//! it needs: the driver runs it elsewhere, while the session may continue, and hands it back.
//!
//! [`Echo`] is the smallest real session; the smallest full-duplex one is in `tests/mux`.
//! [`replay`] is the test harness for all sessions: it delivers a conversation whole, byte by
//! byte, and cut at seeded random places, and requires the same replies each time.

#![forbid(unsafe_code)]

mod echo;
mod file;
mod host;
mod log;
mod network;
mod outbox;
mod page;
pub mod replay;
mod session;
mod shards;

pub use echo::Echo;
pub use file::{FileRange, FileStamp, SharedFile};
pub use host::{HostIndex, HostName, name_and_port};
pub use log::{HeldLine, Log};
pub use network::{IpNetwork, Networks, PrefixLen};
pub use outbox::{Chunk, Outbox};
pub use page::SharedPage;
pub use session::{
    GiveUp, Next, NoWork, Now, Opening, Phase, Received, Session, TlsFacts, WORKS_MAX, Work,
    work_here,
};
pub use shards::Shards;
