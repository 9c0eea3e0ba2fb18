//! Event loops: parts shared by the engines whose threads wait for many connections at once.
//!
//! `context` (shared by all threads of an engine) · `acceptor`, `listeners`, `connection_limit`,
//! `accept_thread` (accepting) · `poller` (event sources of one loop: readiness, timers and the run
//! queue) · `budget` (a connection's share of one turn) · `socket`, `output` (non-blocking calls) ·
//! `waker`, `inbox` (the part of a loop that other threads share) · `loops` (all loops, from the
//! server's view) · `threads` · `counters`.

mod accept_thread;
mod acceptor;
mod budget;
mod connection_limit;
mod context;
mod counters;
mod inbox;
mod listeners;
mod loops;
mod output;
mod poller;
mod socket;
#[cfg(test)]
pub(crate) mod tests;
mod threads;
mod waker;

pub(crate) use accept_thread::Distribute;
pub(crate) use acceptor::Acceptor;
pub(crate) use budget::{LONG_LEN, LongUntil, SHARE_OF_TURN, STEPS_MAX, is_postponed, take_steps};
pub(crate) use connection_limit::ConnectionLimit;
pub(crate) use context::{EngineContext, LoopContext, OpenDispatcher, drop_session};
pub(crate) use inbox::{Inbox, Message};
pub(crate) use listeners::{Accepted, Listeners, Sockets, all_sockets, sockets};
pub(crate) use loops::Loops;
pub(crate) use output::output;
pub(crate) use poller::{FIRST_LISTENER, HasWatch, Poller, Watch, slot_of};
pub(crate) use socket::{FileReader, Socket, Wait};
pub(crate) use threads::LoopThreads;
pub(crate) use waker::LoopHandle;

/// Bytes to receive at a time: usually all input that has arrived, and little enough for a
/// processor's cache.
pub(crate) const RECEIVE_LEN: usize = 64 * 1024;
