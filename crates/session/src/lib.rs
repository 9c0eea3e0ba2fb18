//! The seam between a protocol and what carries its bytes.
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
//! The conversation between the two is short. The session is opened with what it may need to know
//! ([`Opening`]). The driver shows what has arrived; the session says
//! how much of it it used, writes its replies into the [`Outbox`], and says what comes next:
//!
//! | [`Next`] | the driver |
//! |---|---|
//! | `Receive(phase)` | sends what is in the outbox, waits for more input within the phase's time-out |
//! | `Flush` | sends what is in the outbox and shows the unused input again: this is back-pressure |
//! | `Work` | calls [`Session::work`] where blocking is allowed, then shows the unused input again |
//! | `Wait` | the same, on a thread of its own: the work is to wait for something to happen |
//! | `Close` | sends what is in the outbox and closes |
//! | `Linger` | the same, but goes on reading for a while, so that the peer gets to see the reply |
//!
//! The input is borrowed, so it may lie anywhere: in a buffer of the thread, or in one that
//! io_uring picked. What a session leaves unused is shown again, with more behind it. A long
//! request body need not lie in one buffer: a session may take it piece by piece as ordinary input,
//! or lend the driver room of its own ([`Session::body_buffer`]) into which the bytes are received
//! without a copy.
//!
//! [`Echo`] is the smallest real session, and [`replay`] is the harness that every session's tests
//! stand on: it cuts a conversation whole, at every byte, and at seeded random places, and demands
//! the same replies each time.

#![forbid(unsafe_code)]

mod echo;
mod file;
mod log;
mod outbox;
pub mod replay;
mod session;
mod shards;

pub use echo::Echo;
pub use file::{FileRange, FileStamp, SharedFile};
pub use log::Log;
pub use outbox::{Chunk, Outbox};
pub use session::{GiveUp, Next, Now, Opening, Phase, Received, Session, TlsFacts};
pub use shards::Shards;
