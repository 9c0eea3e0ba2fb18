//! One TCP connection as a state machine: segments and the time go in, segments come out.
//!
//! ```text
//!    receive(now, segment) ─┐                        ┌─▶ transmit(now) : the next segment, or none
//!    expire(now) ───────────┼─▶   Connection   ──────┼─▶ deadline()    : when to call expire
//!    queue, finish, read ───┘                        └─▶ Receipt       : what happened, what to keep
//! ```
//!
//! [`Connection`] holds no bytes. It gives the bytes of a segment as an offset in the stream and a
//! length, and the caller writes them into its frame, at each transmission. So an application that
//! can produce its bytes again, such as a server of files held in memory, needs no send buffer;
//! [`SendBuffer`] is for the others. In the other direction [`Receipt::placed`] gives the offset of
//! a segment's payload, and [`ReceiveBuffer`] is a ring that keeps it until it is read.
//!
//! ```text
//!                 released      sent            queued
//!   send          0 ··· snd_una ······ snd_nxt ······ queue_end        stream offsets, FIN behind
//!                       └─ flight ────┘ └─ waits ───┘
//!
//!                 read          in order         out of order
//!   receive       0 ··· rcv_read ····· rcv_nxt ··[reassembly]·· rcv_adv
//!                       └─ ring: receive_capacity bytes from rcv_read ──┘
//! ```
//!
//! Sequence numbers on the wire are 32 bits and wrap. Inside a connection they are 64 bits and do
//! not: see [`position`]. Their names are those of RFC 9293.
//!
//! # Files
//!
//! | file | content | source |
//! |---|---|---|
//! | [`config`] | settings and limits of a connection | |
//! | [`state`] | the states, and the ways in which a connection ends | RFC 9293 3.3.2 |
//! | [`position`] | sequence numbers of 64 bits | |
//! | [`rtt`] | round-trip time and retransmission time-out | RFC 6298 |
//! | [`congestion`] | congestion window: NewReno, CUBIC; rate reduction | RFC 5681, 9438, 6937 |
//! | [`slow_start`] | end of the first slow start | RFC 9406 |
//! | [`pacing`] | a window that is spread over its round trip | RFC 9002 |
//! | [`scoreboard`] | unacknowledged data and its losses: scoreboard, RACK | RFC 2018, 6675, 8985 |
//! | [`reassembly`] | data out of order, and the SACK blocks to report | RFC 2018, 2883 |
//! | [`buffer`] | rings of bytes for those that need them | |
//! | [`secret`] | initial sequence numbers and SYN cookies | RFC 6528, 4987 |
//! | [`connection`] | the machine | RFC 9293, 7323, 5961 |

pub mod buffer;
pub mod config;
pub mod congestion;
pub mod connection;
pub mod pacing;
pub mod position;
pub mod reassembly;
pub mod rtt;
pub mod scoreboard;
pub mod secret;
pub mod slow_start;
pub mod state;

pub use buffer::{ReceiveBuffer, RingPool, SendBuffer};
pub use config::{CongestionControl, KeepAlive, TcpConfig};
pub use connection::{Connection, Outgoing, Placed, Receipt, TcpCounters, TcpEvents, Trouble};
pub use secret::Secret;
pub use state::{End, TcpState};
