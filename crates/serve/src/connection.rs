//! One connection without its socket: a state machine without I/O and without a clock.
//!
//! A [`Machine`] owns everything of a connection except the socket: the session, unused input,
//! queued replies, TLS, deadlines, and the reason of the close. The engine owns the socket. It asks
//! for the [`next_action`](Machine::next_action), does it, and reports the result and the time to
//! the `handle_…` method that the action names:
//!
//! ```text
//!           handle_input · handle_filled · handle_sent · handle_read · handle_timeout · …
//!  engine ──────────────────────────────────────────────────────────────────────▶ Machine ── Session
//!         ◀──────────────────────────────────────────────────────────────────────
//!           next_action: Open · Receive · Fill · Send · SendFile · ReadFile · CheckUnacked ·
//!                        Turn · Work · Nothing · CheckQueues · Finish · Close
//! ```
//!
//! The engine decides how bytes move and on which thread. The machine decides everything else:
//! time-outs, the minimum rate of a slow reader, back-pressure, draining, logging and counting, and
//! how a connection is closed so that the peer receives its last reply. All engines therefore
//! behave alike, and all of it is tested with a scripted peer in virtual time (`machine/tests.rs`).
//!
//! Two fields decide the next action. Queued output is sent first. Without any, the state decides:
//!
//! ```text
//!  Handshake ──▶ Open ──▶ Receive, Fill ◀──────┐
//!  (with TLS)               │ input             │ the session waits for more
//!                           ▼                   │
//!                        session.receive ───────┤
//!                           │                   │
//!                           ├─▶ Turn ───────────┤ it filled the outbox
//!                           ├─▶ Work ▶ Working ─┘ it waits for blocking work
//!                           │
//!                           │ it refused the peer, which may still be sending
//!                           ├─▶ Finish ▶ Discard ─▶ Close
//!                           │     ▲         │  ▲      ▲
//!                           │     │         ▼  │      │
//!                           └─▶ CheckQueues ────┴─────┘
//!                             the last reply was sent: is input left, or may more arrive?
//! ```
//!
//! Asking twice gives the same answer, so an engine may ask at any time. Unrequested events are
//! safe: early input is buffered, an early timeout is ignored. Between two requests a machine holds
//! no buffer: a pool of the thread lends one for the duration of a reply.
//!
//! A session that receives while it sends is in the state `Duplex`: input is taken and work handed
//! out even while output is queued.
//!
//! Before the handshake, a connection of a known proxy is in the state `Proxy`, until its header
//! has named the client.
//!
//! `action` (actions and their results) · `machine` (states and transitions) · `send` (queued
//! output, slow readers) · `linger` (the last wait for a peer) · `origin` (the client's address) ·
//! `tls` (records in and out).

mod action;
mod linger;
mod machine;
mod origin;
mod send;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
mod without_tls;

pub(crate) use action::{Action, Facts, FilePiece, FileProgress, Queues, Unacked, UnackedCheck};
pub(crate) use machine::{DRAIN_GRACE, LINGER_DRAIN_TIMEOUT, Machine};
#[cfg(feature = "tls")]
pub(crate) use tls::{TlsConnection, is_record_whole};
#[cfg(not(feature = "tls"))]
pub(crate) use without_tls::{TlsConnection, is_record_whole};
