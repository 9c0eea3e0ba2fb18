//! The server's end of one connection.

mod headers;
mod output;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Instant;

use crate::abuse::{ABUSES, Abuse, AbuseLimit, AbuseMeter, LIMITS};
use crate::error::{ErrorCode, Fault, protocol};
use crate::frame::{self, FrameHead, U31_MAX, flag, kind, setting};
use crate::hpack::{Decoder, Encoder};
use crate::priority::Priority;
use crate::request::RequestHead;
use crate::streams::{StreamKey, Streams};

pub use output::{BodyPiece, ReplyHead};

/// The server's end of an HTTP/2 connection. See the [crate's page](crate).
#[derive(Debug)]
pub struct Endpoint {
    limits: Arc<EndpointLimits>,
    reading: Reading,
    /// A header block that continues in CONTINUATION.
    open_block: Option<OpenBlock>,
    /// Bytes of that block.
    block: Vec<u8>,
    decoder: Decoder,
    encoder: Encoder,
    streams: Streams,
    history: History,
    /// Bytes that may be sent on all streams together.
    send_window: i32,
    /// Bytes that the peer may still send, and consumed bytes not yet in a WINDOW_UPDATE.
    receive_window: u32,
    receive_credit: u32,
    /// The peer's settings.
    initial_window: i32,
    /// Priorities of streams that are not open yet. RFC 9218 7.1
    early_priorities: Vec<(u32, Priority)>,
    abuse: AbuseMeter,
    drain: Draining,
    is_peer_leaving: bool,
    settings_are_known: bool,
    counters: EndpointCounters,
}

/// Limits of a connection. Each has a counter or an error of its own, but `early_priorities_max`.
#[derive(Clone, Debug)]
pub struct EndpointLimits {
    /// Streams open at a time; further ones are refused.
    pub streams_max: u16,
    /// Size of a head as RFC 9113 6.5.2 counts it; a longer one is reported as too long.
    pub head_len_max: u32,
    /// Fields of a head.
    pub fields_max: usize,
    /// Compressed bytes of a header block, and CONTINUATION frames of it. A peer that sends more
    /// gets `ENHANCE_YOUR_CALM`.
    pub block_len_max: usize,
    /// See `block_len_max`.
    pub continuations_max: u32,
    /// Bytes of a request's body that are read and discarded.
    pub body_len_max: u64,
    /// Bytes of the table in either direction.
    pub table_len_max: u32,
    /// Priorities kept for streams that are not open yet; the oldest are forgotten.
    pub early_priorities_max: usize,
    /// Budgets, in the order of [`Abuse`].
    pub abuse: [AbuseLimit; ABUSES],
}

impl Default for EndpointLimits {
    fn default() -> EndpointLimits {
        EndpointLimits {
            streams_max: 128,
            head_len_max: 32 * 1024,
            fields_max: 100,
            block_len_max: 32 * 1024,
            continuations_max: 8,
            body_len_max: 1024 * 1024,
            table_len_max: 4096,
            early_priorities_max: 16,
            abuse: LIMITS,
        }
    }
}

impl EndpointLimits {
    /// The budget of one kind of abuse.
    pub fn abuse(&mut self, kind: Abuse) -> &mut AbuseLimit {
        &mut self.abuse[kind as usize]
    }
}

/// Counts of a connection since they were last taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointCounters {
    /// Requests whose head was whole and well-formed.
    pub requests: u32,
    /// Streams refused because too many were open.
    pub refused: u32,
    /// Streams that the peer has reset.
    pub remote_resets: u32,
    /// Streams that were reset because of the peer's faults.
    pub local_resets: u32,
    /// Bytes of requests' bodies that were discarded.
    pub discarded: u64,
    /// Frames of ended streams that were ignored.
    pub late_frames: u32,
    /// Times that a window was exhausted with bytes left to send.
    pub windows_exhausted: u32,
    /// Connections ended for one of the kinds of [`Abuse`], or for a header block without end.
    pub calmed: u32,
    /// Connections ended for another fault.
    pub failed: u32,
}

/// Result of [`Endpoint::receive`].
#[derive(Debug)]
pub struct Taken {
    /// Number of input bytes used; the rest is shown again.
    pub used: usize,
    /// The first event in the bytes used.
    pub event: Option<StreamEvent>,
}

/// Events that the owner of an endpoint has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEvent {
    /// A request; its head is in the buffer that was passed. `has_body`: its end is reported, and a
    /// reply may wait for that.
    Request {
        /// The new stream.
        stream: StreamKey,
        /// True if a body follows the head.
        has_body: bool,
    },
    /// A request whose head is too long to keep: reply 431. Parts of the head are in the buffer.
    HeadTooLong {
        /// The new stream.
        stream: StreamKey,
    },
    /// The body of a request has ended; it was discarded.
    BodyEnded {
        /// The request's stream.
        stream: StreamKey,
    },
    /// The body of a request is longer than the limit: reply 413, then reset the stream.
    BodyTooLong {
        /// The request's stream.
        stream: StreamKey,
    },
    /// A stream has ended early. Nothing more is sent on it.
    Reset {
        /// The stream; the handle is stale.
        stream: StreamKey,
        /// Reason that the peer gave, or that was sent to it.
        code: ErrorCode,
    },
    /// The connection is over: send the output, then close it.
    Failed {
        /// Reason that was sent to the peer.
        code: ErrorCode,
        /// Explanation for a log.
        why: &'static str,
        /// Budget that was exhausted, if that is the reason.
        abuse: Option<Abuse>,
    },
}

/// Expected input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    Preface,
    Frame,
    /// Payload of DATA that is left.
    Data {
        left: u32,
        id: u32,
        ends: bool,
    },
    /// The connection has failed: all input is ignored.
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct OpenBlock {
    id: u32,
    ends: bool,
    is_own_parent: bool,
    continuations: u32,
}

/// Identifiers of the last streams: those opened, and those reset by this side. RFC 9113 5.1
/// requires different answers to late frames of the two.
#[derive(Debug, Default)]
struct History {
    /// Identifier of the last stream that was opened.
    last_id: u32,
    /// Bit n is about stream `last_id - 2n`.
    opened: u128,
    local_resets: u128,
}

/// Past of a stream that is not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Past {
    /// Not opened yet.
    Idle,
    /// Implicitly closed by a higher identifier. RFC 9113 5.1.1
    Skipped,
    Ended,
    /// Reset by this side; the peer may not know yet.
    LocalReset,
    /// Too old for the history.
    Forgotten,
}

/// Progress of a shut-down. RFC 9113 6.8
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Draining {
    No,
    /// GOAWAY was sent; the PING's acknowledgement shows that the peer has seen it.
    Announced,
    /// No stream above this one is served.
    Final(u32),
}

/// First bytes of each connection. RFC 9113 3.4
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Initial windows. RFC 9113 6.9.2
const WINDOW: u32 = 65_535;

/// Content of the PING that follows the first GOAWAY.
const DRAIN_PING: [u8; 8] = *b"draining";

/// Window below which an update counts as tiny.
const TINY_WINDOW: i32 = 256;

/// Result of one step.
struct Step {
    used: usize,
    event: Option<StreamEvent>,
}

impl Step {
    fn of(used: usize) -> Step {
        Step { used, event: None }
    }
}

/// Buffers of one call.
struct Call<'a> {
    now: Instant,
    head: &'a mut RequestHead,
    out: &'a mut Vec<u8>,
}

type Outcome = Result<Option<StreamEvent>, Fault>;

impl History {
    fn open(&mut self, id: u32) {
        let distance = (id - self.last_id) / 2;
        // The first stream is 1, not 0.
        let shift = if self.last_id == 0 { id.div_ceil(2) } else { distance };
        self.opened = self.opened.checked_shl(shift).unwrap_or(0) | 1;
        self.local_resets = self.local_resets.checked_shl(shift).unwrap_or(0);
        self.last_id = id;
    }

    fn bit(&self, id: u32) -> Option<u128> {
        let distance = self.last_id.checked_sub(id)? / 2;
        1_u128.checked_shl(distance)
    }

    fn note_reset(&mut self, id: u32) {
        self.local_resets |= self.bit(id).unwrap_or(0);
    }

    /// The past of a stream that is not open.
    fn of(&self, id: u32) -> Past {
        if id > self.last_id || id.is_multiple_of(2) {
            return Past::Idle;
        }
        match self.bit(id) {
            None => Past::Forgotten,
            Some(bit) if self.local_resets & bit != 0 => Past::LocalReset,
            Some(bit) if self.opened & bit != 0 => Past::Ended,
            Some(_) => Past::Skipped,
        }
    }
}

impl Endpoint {
    /// A new connection. Its first bytes are written into `out`.
    pub fn new(limits: Arc<EndpointLimits>, now: Instant, out: &mut Vec<u8>) -> Endpoint {
        let mut settings = vec![
            (setting::MAX_CONCURRENT_STREAMS, limits.streams_max.into()),
            (setting::MAX_HEADER_LIST_SIZE, limits.head_len_max),
            (setting::NO_RFC7540_PRIORITIES, 1),
        ];
        if limits.table_len_max != 4096 {
            settings.push((setting::HEADER_TABLE_SIZE, limits.table_len_max));
        }
        frame::put_settings(&settings, out);
        Endpoint {
            reading: Reading::Preface,
            open_block: None,
            block: Vec::new(),
            decoder: Decoder::new(4096),
            encoder: Encoder::new(limits.table_len_max as usize),
            streams: Streams::new(),
            history: History::default(),
            send_window: WINDOW as i32,
            receive_window: WINDOW,
            receive_credit: 0,
            initial_window: WINDOW as i32,
            early_priorities: Vec::new(),
            abuse: AbuseMeter::new(now),
            drain: Draining::No,
            is_peer_leaving: false,
            settings_are_known: false,
            counters: EndpointCounters::default(),
            limits,
        }
    }

    /// Takes input up to the first event. Answers of the protocol itself go into `out`.
    ///
    /// Bytes that are not used are shown again, with more behind them: a frame other than DATA is
    /// taken when it is whole.
    pub fn receive(
        &mut self,
        input: &[u8],
        now: Instant,
        head: &mut RequestHead,
        out: &mut Vec<u8>,
    ) -> Taken {
        let mut used = 0;
        let mut call = Call { now, head, out };
        loop {
            let step = match self.step(&input[used..], &mut call) {
                Ok(Some(step)) => step,
                Ok(None) => return Taken { used, event: None },
                Err(fault) => {
                    let event = Some(self.fail(fault, call.out));
                    let used = input.len();
                    return Taken { used, event };
                }
            };
            used += step.used;
            if let Some(event) = step.event {
                let event = Some(event);
                return Taken { used, event };
            }
        }
    }

    /// Number of open streams.
    pub fn open_streams(&self) -> usize {
        self.streams.len()
    }

    /// True if a body is left to send and the peer's windows are exhausted.
    pub fn is_blocked_by_peer(&self) -> bool {
        let mut streams = self.streams.iter();
        streams.any(|stream| {
            stream.has_body_left() && (stream.send_window <= 0 || self.send_window <= 0)
        })
    }

    /// Bytes of memory that the endpoint has allocated for streams and half a header block.
    pub fn allocated_len(&self) -> usize {
        self.streams.allocated_len() + self.block.capacity()
    }

    /// Bytes of memory that the tables of header compression have allocated.
    pub fn tables_len(&self) -> usize {
        self.decoder.allocated_len() + self.encoder.allocated_len()
    }

    /// True if a header block is incomplete, or the peer's SETTINGS have not arrived.
    pub fn is_inside_head(&self) -> bool {
        self.open_block.is_some() || !self.settings_are_known
    }

    /// True once the connection has failed, or has been drained and its last stream has ended.
    pub fn is_finished(&self) -> bool {
        let is_leaving = matches!(self.drain, Draining::Final(_)) || self.is_peer_leaving;
        self.reading == Reading::Failed || (is_leaving && self.streams.len() == 0)
    }

    /// Sets another limit for the body of one request, such as its host's.
    pub fn limit_body(&mut self, stream: StreamKey, len_max: u64) {
        if let Some(stream) = self.streams.get(stream) {
            stream.received_max = len_max;
        }
    }

    /// Takes the counts since the last call.
    pub fn take_counters(&mut self) -> EndpointCounters {
        std::mem::take(&mut self.counters)
    }

    /// Announces the end of the connection. Requests in flight are served; requests that arrive
    /// more than a round trip later are refused. RFC 9113 6.8
    pub fn drain(&mut self, out: &mut Vec<u8>) {
        if self.drain == Draining::No && self.reading != Reading::Failed {
            self.drain = Draining::Announced;
            frame::put_goaway(U31_MAX, ErrorCode::NO_ERROR, "", out);
            frame::put_ping(0, DRAIN_PING, out);
        }
    }

    /// Ends the connection because its owner gives up on the peer.
    pub fn close(&mut self, code: ErrorCode, why: &'static str, out: &mut Vec<u8>) {
        if self.reading != Reading::Failed {
            self.reading = Reading::Failed;
            // The identifier never rises: a client may have retried higher streams elsewhere.
            let last_id = match self.drain {
                Draining::Final(last_id) => last_id,
                _ => self.history.last_id,
            };
            frame::put_goaway(last_id, code, why, out);
        }
    }

    fn fail(&mut self, fault: Fault, out: &mut Vec<u8>) -> StreamEvent {
        let (Fault::Connection(code, why) | Fault::Stream(code, why)) = fault;
        if code == ErrorCode::ENHANCE_YOUR_CALM {
            self.counters.calmed += 1;
        } else {
            self.counters.failed += 1;
        }
        self.close(code, why, out);
        let abuse = Abuse::of(why);
        StreamEvent::Failed { code, why, abuse }
    }

    fn charge(&mut self, kind: Abuse, now: Instant) -> Result<(), Fault> {
        self.abuse.charge(kind, &self.limits.abuse, now)
    }

    // ---- input

    /// Takes the next frame, or a part of DATA; `None` if it is incomplete.
    fn step(&mut self, input: &[u8], call: &mut Call<'_>) -> Result<Option<Step>, Fault> {
        match self.reading {
            Reading::Preface => {
                let len = input.len().min(PREFACE.len());
                if input[..len] != PREFACE[..len] {
                    return Err(protocol("no connection preface"));
                }
                if len < PREFACE.len() {
                    return Ok(None);
                }
                self.reading = Reading::Frame;
                Ok(Some(Step::of(len)))
            }
            Reading::Frame => self.step_frame(input, call),
            Reading::Data { left, id, ends } => {
                let used = input.len().min(left as usize);
                self.counters.discarded += used as u64;
                if used < left as usize {
                    let left = left - used as u32;
                    self.reading = Reading::Data { left, id, ends };
                    return Ok((used > 0).then(|| Step::of(used)));
                }
                self.reading = Reading::Frame;
                let event = if ends { self.end_body(id) } else { None };
                Ok(Some(Step { used, event }))
            }
            Reading::Failed => Ok((!input.is_empty()).then(|| Step::of(input.len()))),
        }
    }

    fn step_frame(&mut self, input: &[u8], call: &mut Call<'_>) -> Result<Option<Step>, Fault> {
        let Some(head) = FrameHead::read(input) else {
            return Ok(None);
        };
        self.check_order(head)?;
        let checked = head.check();
        // An idle stream cannot be reset.
        if let Err(Fault::Stream(code, why)) = checked
            && self.history.of(head.stream) == Past::Idle
        {
            return Err(Fault::Connection(code, why));
        }
        if let Err(fault @ Fault::Connection(..)) = checked {
            return Err(fault);
        }
        let payload = &input[frame::HEAD_LEN..];
        if head.kind == kind::DATA {
            return self.take_data_head(head, payload, call);
        }
        let Some(payload) = payload.get(..head.len as usize) else {
            return Ok(None);
        };
        let used = frame::HEAD_LEN + payload.len();
        let taken = match checked {
            Ok(()) => self.take_frame(head, payload, call),
            Err(fault) => Err(fault),
        };
        let event = match taken {
            Err(Fault::Stream(code, _)) => self.reset_for_fault(head.stream, code, call)?,
            other => other?,
        };
        Ok(Some(Step { used, event }))
    }

    /// Checks that the frame is allowed at this point. RFC 9113 3.4, 4.3
    fn check_order(&self, head: FrameHead) -> Result<(), Fault> {
        if !self.settings_are_known && (head.kind != kind::SETTINGS || head.has(flag::ACK)) {
            return Err(protocol("the first frame is not SETTINGS"));
        }
        match self.open_block {
            Some(block) if head.kind != kind::CONTINUATION || head.stream != block.id => {
                Err(protocol("a frame inside of a header block"))
            }
            None if head.kind == kind::CONTINUATION => {
                Err(protocol("CONTINUATION without HEADERS"))
            }
            _ => Ok(()),
        }
    }

    fn take_frame(&mut self, head: FrameHead, payload: &[u8], call: &mut Call<'_>) -> Outcome {
        match head.kind {
            kind::HEADERS => self.take_headers(head, payload, call),
            kind::CONTINUATION => self.take_continuation(head, payload, call),
            kind::SETTINGS => self.take_settings(head, payload, call),
            kind::WINDOW_UPDATE => self.take_window(head.stream, frame::u31(payload), call),
            kind::RST_STREAM => self.take_reset(head.stream, frame::u32_at(payload), call),
            kind::PING => self.take_ping(head, payload, call),
            kind::PRIORITY => {
                self.charge(Abuse::Priorities, call.now)?;
                // RFC 7540 5.3.1; all other content is ignored. RFC 9113 5.3.2
                if frame::u31(payload) == head.stream {
                    return Err(self.fault_of(head.stream, "a stream that depends on itself"));
                }
                Ok(None)
            }
            kind::PRIORITY_UPDATE => self.take_priority(payload, call.now),
            _ => {
                self.charge(Abuse::OtherFrames, call.now)?;
                self.is_peer_leaving |= head.kind == kind::GOAWAY;
                Ok(None)
            }
        }
    }

    /// A `PROTOCOL_ERROR` of a stream, or of the connection if the stream is idle.
    fn fault_of(&self, id: u32, why: &'static str) -> Fault {
        match self.history.of(id) {
            Past::Idle => protocol(why),
            _ => Fault::Stream(ErrorCode::PROTOCOL_ERROR, why),
        }
    }

    /// RFC 9113 6.5.
    fn take_settings(&mut self, head: FrameHead, payload: &[u8], call: &mut Call<'_>) -> Outcome {
        self.charge(Abuse::Settings, call.now)?;
        if head.has(flag::ACK) {
            self.decoder.set_limit(self.limits.table_len_max as usize);
            return Ok(None);
        }
        self.settings_are_known = true;
        // One frame may set it thousands of times: streams get only the largest and the last.
        let mut window = self.initial_window;
        let mut window_max = window;
        for (id, value) in frame::settings(payload) {
            match id {
                setting::HEADER_TABLE_SIZE => self.encoder.set_limit(value as usize),
                setting::ENABLE_PUSH | setting::NO_RFC7540_PRIORITIES if value > 1 => {
                    return Err(protocol("a setting that is neither 0 nor 1"));
                }
                setting::INITIAL_WINDOW_SIZE => {
                    window = i32::try_from(value).map_err(|_| TOO_LARGE)?;
                    window_max = window_max.max(window);
                }
                setting::MAX_FRAME_SIZE if !(frame::PAYLOAD_LEN_MAX..1 << 24).contains(&value) => {
                    return Err(protocol("SETTINGS_MAX_FRAME_SIZE out of range"));
                }
                // Settings without effect: this side opens no streams, and its heads and frames are
                // within the limits that every peer accepts.
                _ => {}
            }
        }
        for window in [window_max, window] {
            // RFC 9113 6.9.2: windows may become negative.
            let change = window - std::mem::replace(&mut self.initial_window, window);
            if change != 0 && !self.streams.change_windows(change) {
                return Err(TOO_LARGE);
            }
        }
        frame::put_settings_ack(call.out);
        Ok(None)
    }

    /// RFC 9113 6.7.
    fn take_ping(&mut self, head: FrameHead, payload: &[u8], call: &mut Call<'_>) -> Outcome {
        self.charge(Abuse::Pings, call.now)?;
        let data: [u8; 8] = payload.try_into().unwrap_or_default();
        if !head.has(flag::ACK) {
            frame::put_ping(flag::ACK, data, call.out);
        } else if data == DRAIN_PING && self.drain == Draining::Announced {
            let last_id = self.history.last_id;
            self.drain = Draining::Final(last_id);
            frame::put_goaway(last_id, ErrorCode::NO_ERROR, "", call.out);
        }
        Ok(None)
    }

    /// RFC 9113 6.9.
    fn take_window(&mut self, id: u32, increment: u32, call: &mut Call<'_>) -> Outcome {
        const ZERO: &str = "WINDOW_UPDATE by 0";
        self.charge(Abuse::Windows, call.now)?;
        // Both are below 2^31.
        let add = |window: i32| i32::try_from(i64::from(window) + i64::from(increment)).ok();
        if id == 0 {
            if increment == 0 {
                return Err(protocol(ZERO));
            }
            let was_open = self.send_window > 0;
            self.send_window = add(self.send_window).ok_or(TOO_LARGE)?;
            if !was_open && self.send_window < TINY_WINDOW {
                self.charge(Abuse::TinyWindows, call.now)?;
            }
            return Ok(None);
        }
        let Some(key) = self.streams.find(id) else {
            return match self.history.of(id) {
                Past::Idle => Err(protocol("WINDOW_UPDATE on an idle stream")),
                _ => Ok(None),
            };
        };
        if increment == 0 {
            return Err(Fault::Stream(ErrorCode::PROTOCOL_ERROR, ZERO));
        }
        let Some(stream) = self.streams.get(key) else {
            return Ok(None);
        };
        let was_open = stream.send_window > 0;
        stream.send_window = add(stream.send_window)
            .ok_or(Fault::Stream(ErrorCode::FLOW_CONTROL_ERROR, TOO_LARGE_TEXT))?;
        let is_tiny = !was_open && stream.send_window < TINY_WINDOW && stream.has_body_left();
        self.streams.refresh(key);
        if is_tiny {
            self.charge(Abuse::TinyWindows, call.now)?;
        }
        Ok(None)
    }

    /// RFC 9113 6.4.
    fn take_reset(&mut self, id: u32, code: u32, call: &mut Call<'_>) -> Outcome {
        let Some(stream) = self.streams.find(id) else {
            return match self.history.of(id) {
                Past::Idle => Err(protocol("RST_STREAM on an idle stream")),
                _ => {
                    self.counters.late_frames += 1;
                    self.charge(Abuse::LateFrames, call.now)?;
                    Ok(None)
                }
            };
        };
        self.counters.remote_resets += 1;
        self.charge(Abuse::Resets, call.now)?;
        self.streams.remove(stream);
        let code = ErrorCode(code);
        Ok(Some(StreamEvent::Reset { stream, code }))
    }

    /// RFC 9218 7.1.
    fn take_priority(&mut self, payload: &[u8], now: Instant) -> Outcome {
        self.charge(Abuse::Priorities, now)?;
        let id = frame::u31(payload);
        let priority = Priority::parse(&payload[4..]);
        if id.is_multiple_of(2) {
            return Err(protocol("PRIORITY_UPDATE of a stream that no client opens"));
        }
        if let Some(key) = self.streams.find(id) {
            self.streams.set_priority(key, priority);
        } else if self.history.of(id) == Past::Idle {
            self.early_priorities.retain(|(other, _)| *other != id);
            if self.early_priorities.len() >= self.limits.early_priorities_max {
                self.early_priorities.remove(0);
            }
            self.early_priorities.push((id, priority));
        }
        Ok(None)
    }

    /// Takes the head of DATA, with the length of its padding. RFC 9113 6.1
    fn take_data_head(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        call: &mut Call<'_>,
    ) -> Result<Option<Step>, Fault> {
        let mut data_len = head.len;
        if head.has(flag::PADDED) {
            if head.len == 0 {
                return Err(frame::no_padding());
            }
            let Some(&padding) = payload.first() else {
                return Ok(None);
            };
            let len = data_len.checked_sub(1 + u32::from(padding));
            data_len = len.ok_or(protocol("padding longer than its frame"))?;
        }
        self.receive_window = self
            .receive_window
            .checked_sub(head.len)
            .ok_or(Fault::Connection(ErrorCode::FLOW_CONTROL_ERROR, "DATA beyond the window"))?;
        let ends = head.has(flag::END_STREAM);
        if data_len > 0 {
            self.abuse.give_back(Abuse::OtherFrames, 1);
        } else if !ends {
            self.charge(Abuse::EmptyData, call.now)?;
        }
        let event = match self.take_data(head, data_len, call) {
            Err(Fault::Stream(code, _)) => self.reset_for_fault(head.stream, code, call)?,
            other => other?,
        };
        // The bytes are discarded in every case, so the connection's window opens again.
        self.receive_credit += head.len;
        if self.receive_credit >= WINDOW / 2 {
            frame::put_window(0, self.receive_credit, call.out);
            self.receive_window += self.receive_credit;
            self.receive_credit = 0;
        }
        self.reading = Reading::Data { left: head.len, id: head.stream, ends };
        let used = frame::HEAD_LEN;
        Ok(Some(Step { used, event }))
    }

    fn take_data(&mut self, head: FrameHead, data_len: u32, call: &mut Call<'_>) -> Outcome {
        let Some(key) = self.streams.find(head.stream) else {
            return match self.history.of(head.stream) {
                Past::Idle => Err(protocol("DATA on an idle stream")),
                Past::LocalReset | Past::Forgotten => {
                    self.counters.late_frames += 1;
                    self.charge(Abuse::LateFrames, call.now)?;
                    Ok(None)
                }
                Past::Ended | Past::Skipped => Err(CLOSED),
            };
        };
        let Some(stream) = self.streams.get(key) else {
            return Ok(None);
        };
        if stream.is_remote_ended {
            return Err(Fault::Stream(ErrorCode::STREAM_CLOSED, CLOSED_TEXT));
        }
        let window = stream.receive_window.checked_sub(head.len);
        stream.receive_window =
            window.ok_or(Fault::Stream(ErrorCode::FLOW_CONTROL_ERROR, "DATA beyond the window"))?;
        stream.received += u64::from(data_len);
        let ends = head.has(flag::END_STREAM);
        stream.check_length(ends)?;
        if stream.received > stream.received_max {
            // The stream's window is not opened again.
            if stream.is_local_ended {
                self.reset(key, ErrorCode::NO_ERROR, call.out);
            } else if !std::mem::replace(&mut stream.is_too_long, true) {
                return Ok(Some(StreamEvent::BodyTooLong { stream: key }));
            }
        } else if !ends && stream.receive_window <= WINDOW / 2 {
            let increment = WINDOW - stream.receive_window;
            stream.receive_window = WINDOW;
            frame::put_window(key.id(), increment, call.out);
        }
        Ok(None)
    }

    /// The peer's side of a stream has ended.
    fn end_body(&mut self, id: u32) -> Option<StreamEvent> {
        let key = self.streams.find(id)?;
        let stream = self.streams.get(key)?;
        stream.is_remote_ended = true;
        if stream.is_local_ended {
            self.streams.remove(key);
            return None;
        }
        let was_reported = stream.is_too_long;
        (!was_reported).then_some(StreamEvent::BodyEnded { stream: key })
    }

    /// Resets a stream because of the peer's fault.
    fn reset_for_fault(
        &mut self,
        id: u32,
        code: ErrorCode,
        call: &mut Call<'_>,
    ) -> Result<Option<StreamEvent>, Fault> {
        self.counters.local_resets += 1;
        self.charge(Abuse::Resets, call.now)?;
        frame::put_reset(id, code, call.out);
        self.history.note_reset(id);
        let Some(stream) = self.streams.find(id) else {
            return Ok(None);
        };
        self.streams.remove(stream);
        Ok(Some(StreamEvent::Reset { stream, code }))
    }
}

const TOO_LARGE_TEXT: &str = "a window above 2^31-1";
const TOO_LARGE: Fault = Fault::Connection(ErrorCode::FLOW_CONTROL_ERROR, TOO_LARGE_TEXT);
const CLOSED_TEXT: &str = "a frame on a closed stream";
const CLOSED: Fault = Fault::Connection(ErrorCode::STREAM_CLOSED, CLOSED_TEXT);
