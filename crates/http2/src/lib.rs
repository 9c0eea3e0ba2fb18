//! HTTP/2 (RFC 9113) for a server, as a state machine: bytes in, requests out, replies in, bytes
//! out. No sockets, no clock, no threads, no dependencies.
//!
//! ```text
//!            input                                 Request, Reset, BodyEnded …
//!   peer ─────────────▶ Endpoint::receive ──────────────────────────────────▶ owner
//!                                                                               │
//!                                                  reply(stream, head, len)     │
//!   peer ◀───────────── heads of frames ◀───────── next_piece, write_frame ◀────┘
//!                       and, behind each, bytes of a body, which the owner puts there
//! ```
//!
//! An [`Endpoint`] is one connection. [`receive`](Endpoint::receive) takes what has arrived, writes
//! the protocol's own answers, and returns at each event; the head of a request is in a buffer that
//! the caller lends ([`RequestHead`]), so that a connection without requests has none. The owner
//! [replies](Endpoint::reply) with a head and the length of a body. The endpoint never sees bodies:
//! it names the stream to send from and the number of bytes ([`next_piece`](Endpoint::next_piece)),
//! by priorities (RFC 9218) and windows. The owner reads the bytes, then writes the heads of their
//! frames ([`write_frame`](Endpoint::write_frame)) with the bytes behind each. If the read fails,
//! it [resets](Endpoint::reset) the stream instead.
//!
//! Bodies of requests are counted and discarded. Streams are never opened from this side: there is
//! no push.
//!
//! A peer can cost no more than [`EndpointLimits`] allow: in memory (streams, heads, tables, header
//! blocks) and in useless work ([`Abuse`]). Beyond a limit a stream is refused or the connection
//! ended, and [`EndpointCounters`] count it. The output queue belongs to the owner, which stops
//! showing input while it holds too much output.
//!
//! `field` (bytes of fields, lists) · `hpack` (RFC 7541) · `frame` (RFC 9113 4, 6) · `priority`
//! (RFC 9218) · `request` (RFC 9113 8) · `streams` (open streams, turns) · `abuse` (budgets) ·
//! `endpoint` (RFC 9113 5).

#![forbid(unsafe_code)]

mod abuse;
mod endpoint;
mod error;
mod field;
mod frame;
mod hpack;
mod priority;
mod request;
mod streams;

pub use abuse::{ABUSES, Abuse, AbuseLimit};
pub use endpoint::{
    BodyPiece, Endpoint, EndpointCounters, EndpointLimits, PREFACE, ReplyHead, StreamEvent, Taken,
};
pub use error::ErrorCode;
pub use field::FieldList;
pub use hpack::{CompressionError, Decoder, Encoder, Indexing, RepeatedField, encode_literals};
pub use priority::Priority;
pub use request::RequestHead;
pub use streams::StreamKey;
