//! One TCP connection as a machine: segments and the time go in, segments come out.
//!
//! ```text
//!    receive(now, segment) ─┐                        ┌─▶ transmit(now) : the next segment, or none
//!    expire(now) ───────────┼─▶   Connection   ──────┼─▶ deadline()    : when to call expire
//!    queue, finish, read ───┘                        └─▶ Receipt       : what happened, what to keep
//! ```
//!
//! [`Connection`] holds no bytes. It says which bytes of the stream a segment carries, as an offset
//! and a length, and the caller writes them into its frame: for the first transmission and for each
//! later one. So an application that can produce its bytes again, such as a server of files held in
//! memory, needs no send buffer; [`SendBuffer`] is for the others. In the other direction
//! [`Receipt::placed`] says where in the stream the payload of a segment belongs, and
//! [`ReceiveBuffer`] is a ring that keeps it until it is read.
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
//! Sequence numbers on the wire are 32 bits and wrap. Inside of a connection they are 64 bits and
//! do not: see [`place`]. Their names are those of RFC 9293.
//!
//! # Files
//!
//! | file | what | source |
//! |---|---|---|
//! | [`config`] | what a connection is started with; all limits | |
//! | [`state`] | the states, and the ways in which a connection ends | RFC 9293 3.3.2 |
//! | [`place`] | sequence numbers of 64 bits | |
//! | [`rtt`] | round-trip time and retransmission time-out | RFC 6298 |
//! | [`congestion`] | congestion window: NewReno, CUBIC; rate reduction | RFC 5681, 9438, 6937 |
//! | [`slow_start`] | when the first slow start is over | RFC 9406 |
//! | [`pacing`] | a window that is spread over its round trip | RFC 9002 |
//! | [`flight`] | what was sent and is not acknowledged: scoreboard, RACK | RFC 2018, 6675, 8985 |
//! | [`reassembly`] | what came out of order, and the blocks to report | RFC 2018, 2883 |
//! | [`buffer`] | rings of bytes for those that need them | |
//! | [`secret`] | initial sequence numbers and SYN cookies | RFC 6528, 4987 |
//! | [`connection`] | the machine | RFC 9293, 7323, 5961 |

pub mod buffer;
pub mod config;
pub mod congestion;
pub mod connection;
pub mod flight;
pub mod pacing;
pub mod place;
pub mod reassembly;
pub mod rtt;
pub mod secret;
pub mod slow_start;
pub mod state;

pub use buffer::{ReceiveBuffer, RingPool, SendBuffer};
pub use config::{CongestionControl, KeepAlive, TcpConfig};
pub use connection::{Connection, Happened, Outgoing, Placed, Receipt, TcpCounters, Trouble};
pub use secret::Secret;
pub use state::{End, TcpState};
