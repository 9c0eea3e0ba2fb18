//! A connection that speaks HTTP/2: many concurrent requests, each on a stream (RFC 9113).
//!
//! ```text
//!  input ─▶ Endpoint ─▶ request ─▶ answer ─▶ StreamReply ─┬─▶ HEADERS ─▶ Outbox
//!           frames      as text    as for    fields,      │
//!                                  HTTP/1.1  segments     └─▶ Stream ─▶ DATA, piece by piece
//! ```
//!
//! A piece of a file is read before its frame headers are written, and compared with the file's
//! stamp: a changed file ends its stream, not the connection.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Buf;
use http2::{
    Abuse, BodyPiece, Endpoint, EndpointLimits, ErrorCode, ReplyHead, RequestHead, StreamEvent,
    StreamKey,
};
use rustix::io::{Errno, ReadWriteFlags};
use session::{FileRange, GiveUp, HeldLine, Log, Next, Outbox, Phase, Received, SharedFile};

use super::{Call, Covers, KeptRequest, Task, first_line};
use crate::answer::{Answer, Attempt, answer};
use crate::date;
use crate::handle::Handle;
use crate::reply::RequestFacts;
use crate::reply::stream::{Segment, Segments, StreamReply};
use crate::request::body::Expectation;
use crate::request::{Framing, Head, Method, Refusal, parse_stream, stream};
use crate::status::Status;

/// State of a connection of HTTP/2.
#[derive(Debug)]
pub(super) struct Multiplexed {
    endpoint: Endpoint,
    limits: Arc<EndpointLimits>,
    /// Hosts of the certificate, and the host checked last.
    covers: Covers,
    covered: Vec<u8>,
    /// Indexed by the slots of the endpoint's streams.
    streams: Vec<Stream>,
    /// Work to hand out.
    works: VecDeque<Task>,
    /// Number of works handed out and not returned yet.
    out_count: u8,
    /// Reads in both groups, their bytes, and streams that wait for a read to end.
    reads: u8,
    reads_len: usize,
    unread: VecDeque<StreamKey>,
    /// Bytes of the requests in both groups.
    worked_len: usize,
    /// Bytes of requests whose bodies are still arriving.
    pending_len: usize,
    /// Bytes held by unsent replies.
    replies_len: usize,
    pace: Pace,
    /// Frames remain in the input because too much output is queued.
    has_frames_left: bool,
    /// The last frame is incomplete.
    has_part: bool,
    has_failed: bool,
}

/// Part of a file, to be read where blocking is allowed.
#[derive(Debug)]
pub(crate) struct PieceRead {
    piece: BodyPiece,
    file: Arc<SharedFile>,
    /// Position in the file.
    start: u64,
    /// `None`: the read failed, or the file has changed.
    bytes: Option<Vec<u8>>,
}

/// One stream, apart from the endpoint's state of it.
#[derive(Debug, Default)]
struct Stream {
    /// `None`: the stream has ended.
    key: Option<StreamKey>,
    /// A request whose body is still arriving.
    pending: Option<Box<KeptRequest>>,
    /// Rest of the reply's body.
    body: Segments,
    /// Arrival of the request and its log line, kept until the last byte of the body.
    arrived_at: Option<Instant>,
    line: Option<HeldLine>,
    /// Bytes that the reply holds.
    reply_len: usize,
    /// The rest of the request's body is unwanted once the reply has been sent.
    is_refused: bool,
}

/// Progress of a peer that limits its windows.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Start of the current interval; `None` if no stream waits for a window.
    since: Option<Instant>,
    /// Bytes of bodies sent in it.
    sent_len: u64,
}

/// Buffers of one thread. No call suspends while it uses them.
#[derive(Debug, Default)]
struct Scratch {
    head: Option<RequestHead>,
    /// Limits that `head` was allocated for.
    limits: (u32, usize),
    /// Head of a request as text.
    text: Vec<u8>,
    reply: Option<Box<StreamReply>>,
    /// Part of a file.
    piece: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Longest piece of a body that is read at a time, in bytes.
const PIECE_LEN_MAX: u64 = 64 * 1024;
/// The same while memory is short.
const PIECE_LEN_MAX_LEAN: u64 = 16 * 1024;

/// Longest segment that is copied behind its frame headers.
const COPIED_LEN_MAX: usize = 16 * 1024;

/// Concurrent reads of one connection: their bytes go into its outbox.
const READS_MAX: u8 = 1;

/// Bytes of heads of requests that wait for work, and of requests that wait for their bodies. Above
/// that, streams are refused.
const WORKED_LEN_MAX: usize = 128 * 1024;
const PENDING_LEN_MAX: usize = 32 * 1024;

/// Stream memory in bytes above which a connection gets no further streams while memory is short.
const STREAMS_LEN_LEAN: usize = 12 * 1024;

/// Step by which memory charges change: the memory of a few streams is negligible.
const HELD_LEN_STEP: usize = 4 * 1024;

/// Slots kept by a connection without streams.
const STREAMS_KEPT: usize = 8;

/// Longest host name that is remembered as covered, in bytes.
const COVERED_LEN_MAX: usize = 256;

/// Slowest acceptable peer: one that limits its windows must take this many bytes in this time.
const PACE_LEN_MIN: u64 = 16 * 1024;
const PACE_TIME: Duration = Duration::from_secs(60);

impl Multiplexed {
    pub(super) fn new(call: &mut Call<'_>, covers: Covers) -> Multiplexed {
        let limits = Arc::clone(&call.replier.service.endpoint_limits);
        let now = call.replier.now.monotonic;
        let mut endpoint = None;
        let its_limits = Arc::clone(&limits);
        call.replier.out.put_with(|bytes| {
            let new = endpoint.insert(Endpoint::new(its_limits, now, bytes));
            if call.is_draining {
                new.drain(bytes);
            }
        });
        call.replier.handle.counts().multiplexed();
        Multiplexed {
            endpoint: endpoint.expect("made above"),
            limits,
            covers,
            covered: Vec::new(),
            streams: Vec::new(),
            works: VecDeque::new(),
            out_count: 0,
            reads: 0,
            reads_len: 0,
            unread: VecDeque::new(),
            worked_len: 0,
            pending_len: 0,
            replies_len: 0,
            pace: Pace { since: None, sent_len: 0 },
            has_frames_left: false,
            has_part: false,
            has_failed: false,
        }
    }

    /// Takes frames, answers requests, and sends bodies until the outbox is full.
    pub(super) fn receive(&mut self, call: &mut Call<'_>, input: &[u8]) -> Received {
        with_scratch(call, |call, scratch| {
            let used = self.take_frames(call, input, scratch);
            let next = self.go_on(call, scratch);
            Received { used, next }
        })
    }

    /// Hands out one work.
    pub(super) fn take_work(&mut self) -> Option<Task> {
        let work = self.works.pop_front()?;
        self.out_count += 1;
        Some(work)
    }

    /// Takes the result of one work.
    pub(super) fn handle_worked(&mut self, call: &mut Call<'_>, work: Task) -> Next {
        self.out_count -= 1;
        with_scratch(call, |call, scratch| {
            match work {
                Task::Answer(kept) => {
                    self.worked_len -= kept.head.len();
                    self.handle_found(call, kept);
                }
                Task::Read(read) => {
                    self.reads -= 1;
                    self.reads_len -= read.piece.len as usize;
                    self.handle_read(call, *read);
                }
            }
            self.go_on(call, scratch)
        })
    }

    /// Announces the end of the connection.
    pub(super) fn drain(&mut self, out: &mut Outbox) {
        out.put_with(|bytes| self.endpoint.drain(bytes));
    }

    /// Tells the peer why the connection ends.
    pub(super) fn give_up(&mut self, reason: GiveUp, out: &mut Outbox) {
        let (code, why) = match reason {
            GiveUp::TimedOut(Phase::Idle) => (ErrorCode::NO_ERROR, "idle"),
            GiveUp::Drained => (ErrorCode::NO_ERROR, "drained"),
            GiveUp::TimedOut(_) => (ErrorCode::ENHANCE_YOUR_CALM, "too slow"),
            GiveUp::TooLong => (ErrorCode::ENHANCE_YOUR_CALM, "too much"),
        };
        self.close(code, why, out);
    }

    fn close(&mut self, code: ErrorCode, why: &'static str, out: &mut Outbox) {
        self.has_failed = true;
        out.put_with(|bytes| self.endpoint.close(code, why, bytes));
        self.end_replies(out);
    }

    /// Ends all replies in progress: the connection is over.
    pub(super) fn end_replies(&mut self, out: &mut Outbox) {
        (0..self.streams.len()).for_each(|slot| self.free(slot, out));
    }

    /// Bytes of memory held by the connection.
    pub(super) fn held_len(&self) -> usize {
        (self.streams_len() + self.endpoint.tables_len()) / HELD_LEN_STEP * HELD_LEN_STEP
    }

    /// Bytes of memory held by its streams.
    fn streams_len(&self) -> usize {
        let slots_len = self.streams.capacity() * size_of::<Stream>();
        let heads_len = self.worked_len + self.pending_len;
        let bodies_len = self.reads_len + self.replies_len;
        self.endpoint.allocated_len() + slots_len + heads_len + bodies_len
    }

    /// Takes frames, unless too much output is queued. Returns the number of bytes.
    fn take_frames(&mut self, call: &mut Call<'_>, input: &[u8], scratch: &mut Scratch) -> usize {
        let now = call.replier.now.monotonic;
        let mut used = 0;
        while !call.replier.out.is_overfull() {
            let head = scratch.head(&self.limits);
            let mut event = None;
            call.replier.out.put_with(|bytes| {
                let taken = self.endpoint.receive(&input[used..], now, head, bytes);
                used += taken.used;
                event = taken.event;
            });
            match event {
                Some(event) => self.handle(call, event, scratch),
                None => {
                    self.has_frames_left = false;
                    self.has_part = used < input.len();
                    return used;
                }
            }
        }
        self.has_frames_left = true;
        used
    }

    /// Sends bodies; returns the next step.
    fn go_on(&mut self, call: &mut Call<'_>, scratch: &mut Scratch) -> Next {
        let out = &mut *call.replier.out;
        let has_bodies = self.send_bodies(out, &mut scratch.piece, call.replier.handle);
        let has_more = has_bodies || self.has_frames_left;
        if !self.keep_pace(call.replier.now.monotonic) {
            let why = "the windows are opened too slowly";
            self.close(ErrorCode::ENHANCE_YOUR_CALM, why, out);
            call.replier.handle.counts().ended(Some(Abuse::TinyWindows), true);
        }
        let counters = self.endpoint.take_counters();
        call.replier.handle.counts().count_streams(&counters);
        // A peer that leaves may still send PING, SETTINGS or WINDOW_UPDATE. RFC 9113 6.8
        if self.has_failed || self.endpoint.is_finished() {
            return Next::Linger;
        }
        let is_idle = self.endpoint.open_streams() == 0;
        let phase = if self.endpoint.is_inside_head() || (is_idle && self.has_part) {
            Phase::Head
        } else if is_idle {
            Phase::Idle
        } else {
            Phase::Body
        };
        if is_idle && !has_more && self.works.is_empty() && self.out_count == 0 {
            self.streams.clear();
            self.streams.shrink_to(STREAMS_KEPT);
            return Next::Receive(phase);
        }
        Next::Duplex { phase, has_more }
    }

    fn handle(&mut self, call: &mut Call<'_>, event: StreamEvent, scratch: &mut Scratch) {
        match event {
            StreamEvent::Request { stream, has_body } => {
                self.open(stream, call.replier.out);
                if call.replier.out.is_lean() && self.streams_len() >= STREAMS_LEN_LEAN {
                    return self.refuse_stream(call, stream);
                }
                self.begin(call, stream, has_body, scratch);
            }
            StreamEvent::HeadTooLong { stream } => {
                self.open(stream, call.replier.out);
                call.forget();
                let facts = RequestFacts::unparsed(b"");
                self.refuse(call, stream, Refusal::HeadTooLong, facts);
            }
            StreamEvent::BodyEnded { stream } => {
                if let Some(kept) = self.take_pending(stream) {
                    self.handle_found(call, kept);
                }
            }
            StreamEvent::BodyTooLong { stream } => {
                if let Some(kept) = self.take_pending(stream) {
                    let head = kept.head();
                    call.forget();
                    call.identify(&head);
                    self.refuse_body(call, stream, &head);
                }
            }
            StreamEvent::Reset { stream, .. } => self.end(stream, call.replier.out),
            StreamEvent::Failed { code, abuse, .. } => {
                self.has_failed = true;
                let is_calmed = code == ErrorCode::ENHANCE_YOUR_CALM;
                call.replier.handle.counts().ended(abuse, is_calmed);
            }
        }
    }

    // ---- requests

    /// Takes a request, which is from here on treated like one of HTTP/1.1.
    fn begin(
        &mut self,
        call: &mut Call<'_>,
        key: StreamKey,
        has_body: bool,
        scratch: &mut Scratch,
    ) {
        call.forget();
        let text = &mut scratch.text;
        if let Some(head) = &scratch.head {
            stream::write(head, text);
        }
        match parse_stream(text, &call.replier.service.config.limits) {
            Ok(Some(head)) if has_body => self.begin_with_body(call, key, &head, text),
            Ok(Some(head)) => {
                if !self.refuse_by_head(call, key, &head) {
                    self.answer(call, key, &head, text);
                }
            }
            Ok(None) => unreachable!("{} ends", text.escape_ascii()),
            Err(refusal) => {
                let facts = RequestFacts::unparsed(first_line(text));
                self.refuse(call, key, refusal, facts);
            }
        }
    }

    /// Refuses a request by its head, if there is a reason. True if it did.
    fn refuse_by_head(&mut self, call: &mut Call<'_>, key: StreamKey, head: &Head<'_>) -> bool {
        if call.replier.service.asks_for_clients() && call.refuse_by_rate(head, true) {
            self.commit(call, key);
            return true;
        }
        let (status, why) = if !self.covers(head.host().unwrap_or_default()) {
            let why = "the certificate is for other hosts";
            (Status::Misdirected, Some(why))
        } else if Expectation::of(&head.fields, head.version) == Expectation::Unknown {
            (Status::ExpectationFailed, None)
        } else {
            return false;
        };
        call.replier.refuse(status, head, true, &[], why);
        self.commit(call, key);
        true
    }

    /// True if the certificate covers a host. RFC 9113 9.1.1
    fn covers(&mut self, host: &[u8]) -> bool {
        if host == self.covered {
            return true;
        }
        let covers = self.covers.has(host);
        if covers && host.len() <= COVERED_LEN_MAX {
            self.covered.clear();
            self.covered.extend_from_slice(host);
        }
        covers
    }

    #[cold]
    fn begin_with_body(
        &mut self,
        call: &mut Call<'_>,
        key: StreamKey,
        head: &Head<'_>,
        text: &[u8],
    ) {
        let limit = call.replier.service.body_len_max(head.host());
        if self.refuse_by_head(call, key, head) {
            return;
        }
        if matches!(head.framing, Framing::Length(len) if len > limit) {
            return self.refuse_body(call, key, head);
        }
        if Expectation::of(&head.fields, head.version) == Expectation::Continue {
            match head.method {
                Method::Get | Method::Head | Method::Options => {
                    let out = &mut call.replier.out;
                    out.put_with(|bytes| self.endpoint.inform(key, 100, bytes));
                }
                // RFC 9110 10.1.1: the final reply is sent at once.
                Method::Forbidden | Method::Unknown => {
                    return self.answer(call, key, head, text);
                }
            }
        }
        if self.pending_len + text.len() > PENDING_LEN_MAX {
            return self.refuse_stream(call, key);
        }
        self.endpoint.limit_body(key, limit);
        let kept = keep(call, key, head, text);
        self.pending_len += kept.head.len();
        if let Some(stream) = self.stream(key) {
            stream.pending = Some(kept);
        }
    }

    fn answer(&mut self, call: &mut Call<'_>, key: StreamKey, head: &Head<'_>, text: &[u8]) {
        let buffer = &mut *call.path_buffer;
        match answer(&mut call.replier, head, true, None, Attempt::First, buffer) {
            Answer::Sent => self.commit(call, key),
            other => self.work_on(call, key, keep(call, key, head, text), other),
        }
    }

    /// Answers a request whose body has ended, or whose work is done.
    fn handle_found(&mut self, call: &mut Call<'_>, mut kept: Box<KeptRequest>) {
        let Some(key) = kept.stream.filter(|key| self.stream(*key).is_some()) else {
            return; // The stream has been reset.
        };
        call.forget();
        if let Some(reply) = &mut call.replier.stream {
            reply.arrived_at = Some(kept.now);
        }
        match call.answer_kept(&mut kept).0 {
            Answer::Sent => self.commit(call, key),
            other => self.work_on(call, key, kept, other),
        }
    }

    fn work_on(
        &mut self,
        call: &mut Call<'_>,
        key: StreamKey,
        mut kept: Box<KeptRequest>,
        answer: Answer,
    ) {
        if self.worked_len + kept.head.len() > WORKED_LEN_MAX {
            return self.refuse_stream(call, key);
        }
        kept.want(answer, call.replier.service);
        self.worked_len += kept.head.len();
        self.works.push_back(Task::Answer(kept));
    }

    /// Refuses a stream because kept requests hold too much memory.
    #[cold]
    fn refuse_stream(&mut self, call: &mut Call<'_>, key: StreamKey) {
        call.replier.handle.counts().stream_refused();
        self.reset(call.replier.out, key, ErrorCode::REFUSED_STREAM);
    }

    /// Refuses a request whose head could not be parsed.
    #[cold]
    fn refuse(
        &mut self,
        call: &mut Call<'_>,
        key: StreamKey,
        refusal: Refusal,
        facts: RequestFacts<'_>,
    ) {
        call.replier.handle.counts().refused(refusal);
        let why = Some(refusal.name());
        call.replier.page_anywhere(refusal.status(), facts, &[], why);
        self.commit(call, key);
    }

    /// Refuses a request with too long a body: sends a page, then refuses the rest of the body.
    #[cold]
    fn refuse_body(&mut self, call: &mut Call<'_>, key: StreamKey, head: &Head<'_>) {
        let refusal = Refusal::BodyTooLong;
        call.replier.handle.counts().refused(refusal);
        call.replier.refuse(refusal.status(), head, true, &[], Some(refusal.name()));
        self.commit(call, key);
        match self.stream(key) {
            Some(stream) => stream.is_refused = true,
            None => self.reset(call.replier.out, key, ErrorCode::NO_ERROR),
        }
    }

    /// Writes the head of the finished reply, and keeps its body.
    fn commit(&mut self, call: &mut Call<'_>, key: StreamKey) {
        let Some(reply) = &mut call.replier.stream else {
            return;
        };
        let Some(status) = reply.status else {
            return;
        };
        let server = call.replier.service.server_field.as_ref();
        let mut is_open = false;
        date::with_field(call.replier.now.since_epoch, |date| {
            let fields = [date, server.unwrap_or(date)];
            let head = ReplyHead {
                status: status.code(),
                repeated: &fields[..1 + usize::from(server.is_some())],
                encoded: &reply.fields,
                fields: &[],
            };
            call.replier.out.put_with(|bytes| {
                is_open = self.endpoint.reply(key, &head, reply.body_len, bytes);
            });
        });
        let arrived_at = reply.arrived_at.unwrap_or(call.replier.now).monotonic;
        let out = &mut *call.replier.out;
        let stream = &mut self.streams[key.slot()];
        if is_open && reply.body_len > 0 {
            stream.body = std::mem::take(&mut reply.body);
            stream.arrived_at = Some(arrived_at);
            stream.line = out.log().and_then(Log::hold_last);
            stream.reply_len = stream.reply_len();
            self.replies_len += stream.reply_len;
        } else {
            // A stream that was reset meanwhile takes no body.
            if reply.body_len > 0
                && let Some(log) = out.log()
                && let Some(line) = log.hold_last()
            {
                log.put_held(&line, reply.body_len);
            }
            out.end_reply_since(arrived_at);
            self.free(key.slot(), out);
        }
        reply.clear();
    }

    // ---- streams

    /// Prepares a slot for a new stream.
    fn open(&mut self, key: StreamKey, out: &mut Outbox) {
        if self.streams.len() <= key.slot() {
            self.streams.resize_with(key.slot() + 1, Stream::default);
        }
        self.free(key.slot(), out);
        self.streams[key.slot()].key = Some(key);
    }

    /// Frees a slot. A reply in progress counts as ended, for whatever reason: its log line and
    /// time are written.
    fn free(&mut self, slot: usize, out: &mut Outbox) {
        let stream = &mut self.streams[slot];
        self.replies_len -= std::mem::take(&mut stream.reply_len);
        if let Some(arrived_at) = stream.arrived_at.take() {
            if let (Some(line), Some(log)) = (stream.line.take(), out.log()) {
                log.put_held(&line, stream.body.len());
            }
            out.end_reply_since(arrived_at);
        }
        stream.clear();
    }

    fn stream(&mut self, key: StreamKey) -> Option<&mut Stream> {
        let stream = self.streams.get_mut(key.slot());
        stream.filter(|stream| stream.key == Some(key))
    }

    /// Takes the request of a stream that was waiting for its body.
    fn take_pending(&mut self, key: StreamKey) -> Option<Box<KeptRequest>> {
        let kept = self.stream(key)?.pending.take()?;
        self.pending_len -= kept.head.len();
        Some(kept)
    }

    fn end(&mut self, key: StreamKey, out: &mut Outbox) {
        drop(self.take_pending(key));
        self.unread.retain(|waiting| *waiting != key);
        self.works.retain(|work| match work {
            Task::Answer(kept) if kept.stream == Some(key) => {
                self.worked_len -= kept.head.len();
                false
            }
            _ => true,
        });
        if self.stream(key).is_some() {
            self.free(key.slot(), out);
        }
    }

    fn reset(&mut self, out: &mut Outbox, key: StreamKey, code: ErrorCode) {
        out.put_with(|bytes| self.endpoint.reset(key, code, bytes));
        self.end(key, out);
    }

    // ---- bodies

    /// Puts pieces of bodies into the outbox until it is full. True if more remain.
    fn send_bodies(&mut self, out: &mut Outbox, buffer: &mut Vec<u8>, handle: &Handle) -> bool {
        let len_max = if out.is_lean() { PIECE_LEN_MAX_LEAN } else { PIECE_LEN_MAX };
        loop {
            let Some(piece) = self.endpoint.next_piece(len_max) else {
                if self.endpoint.has_window() && self.resume_waiting() {
                    continue;
                }
                return false;
            };
            if out.is_full() {
                return true;
            }
            self.send_piece(piece, out, buffer, handle);
            self.resume_waiting();
        }
    }

    /// Sends a piece, or pauses or resets its stream.
    fn send_piece(
        &mut self,
        mut piece: BodyPiece,
        out: &mut Outbox,
        buffer: &mut Vec<u8>,
        handle: &Handle,
    ) {
        let key = piece.stream;
        match self.streams[key.slot()].body.first_mut() {
            None => unreachable!("a piece of stream {} that has none left", key.id()),
            Some(Segment::Memory(bytes)) => {
                cut(&mut piece, bytes.len() as u64);
                if bytes.len() <= COPIED_LEN_MAX {
                    let sent = put_frames(&mut self.endpoint, &mut piece, bytes, out);
                    return self.sent(key, sent, out);
                }
                let bytes = bytes.clone();
                let mut sent = 0;
                let mut is_open = true;
                while is_open {
                    let mut len = None;
                    out.put_with(|to| len = self.endpoint.write_frame(&mut piece, to));
                    is_open = len.is_some();
                    let len = len.unwrap_or(0) as usize;
                    out.put_shared(bytes.slice(sent..sent + len));
                    sent += len;
                }
                self.sent(key, sent, out);
            }
            Some(Segment::File(range)) => {
                cut(&mut piece, range.len());
                buffer.resize(PIECE_LEN_MAX as usize, 0);
                match read_now(range, &mut buffer[..piece.len as usize]) {
                    Ok(0) => self.read_later(piece),
                    Ok(len) => {
                        cut(&mut piece, len as u64);
                        let sent = put_frames(&mut self.endpoint, &mut piece, buffer, out);
                        self.sent(key, sent, out);
                    }
                    Err(_) => self.fail(key, out, handle),
                }
            }
        }
    }

    /// Queues a piece to be read where blocking is allowed. Its stream is paused meanwhile, as are
    /// the streams that want a read while another one runs.
    fn read_later(&mut self, piece: BodyPiece) {
        self.endpoint.pause(piece.stream);
        if self.reads == READS_MAX {
            return self.unread.push_back(piece.stream);
        }
        if let Some(Segment::File(range)) = self.streams[piece.stream.slot()].body.iter().next() {
            self.reads += 1;
            self.reads_len += piece.len as usize;
            self.works.push_back(Task::Read(Box::new(PieceRead {
                piece,
                file: Arc::clone(&range.file),
                start: range.range.start,
                bytes: None,
            })));
        }
    }

    /// Resumes the next stream that waits for a read, unless a read is running: after each read,
    /// with each piece that needs none, and when nothing else can be sent. True if there was one.
    fn resume_waiting(&mut self) -> bool {
        let waiting = if self.reads < READS_MAX { self.unread.pop_front() } else { None };
        waiting.inspect(|key| self.endpoint.resume(*key)).is_some()
    }

    /// Sends a piece that was read.
    fn handle_read(&mut self, call: &mut Call<'_>, read: PieceRead) {
        let PieceRead { mut piece, bytes, .. } = read;
        let key = piece.stream;
        self.resume_waiting();
        self.endpoint.resume(key);
        if self.stream(key).is_none() {
            return; // It has been reset.
        }
        let out = &mut *call.replier.out;
        match bytes {
            Some(bytes) => {
                let sent = put_frames(&mut self.endpoint, &mut piece, &bytes, out);
                self.sent(key, sent, out);
            }
            None => self.fail(key, out, call.replier.handle),
        }
    }

    /// Resets a stream whose file has changed since its length was announced.
    #[cold]
    fn fail(&mut self, key: StreamKey, out: &mut Outbox, handle: &Handle) {
        handle.counts().stream_cut();
        self.reset(out, key, ErrorCode::INTERNAL_ERROR);
    }

    /// Removes sent bytes from the body of a stream.
    fn sent(&mut self, key: StreamKey, len: usize, out: &mut Outbox) {
        self.pace.sent_len += len as u64;
        let stream = &mut self.streams[key.slot()];
        let rest = match stream.body.first_mut() {
            Some(Segment::Memory(bytes)) => {
                bytes.advance(len);
                bytes.len() as u64
            }
            Some(Segment::File(range)) => {
                range.range.start += len as u64;
                range.len()
            }
            None => return,
        };
        if rest == 0 {
            stream.body.drop_first();
        }
        if stream.body.is_empty() {
            let is_refused = stream.is_refused;
            self.free(key.slot(), out);
            if is_refused {
                self.reset(out, key, ErrorCode::NO_ERROR);
            }
        }
    }

    /// Judges how fast the peer opens its windows. False: it is too slow to justify its memory.
    fn keep_pace(&mut self, now: Instant) -> bool {
        if self.endpoint.open_streams() == 0 || !self.endpoint.is_blocked_by_peer() {
            self.pace.since = None;
            return true;
        }
        let since = *self.pace.since.get_or_insert_with(|| {
            self.pace.sent_len = 0;
            now
        });
        if now.saturating_duration_since(since) < PACE_TIME {
            return true;
        }
        self.pace.since = None;
        self.pace.sent_len >= PACE_LEN_MIN
    }
}

impl Stream {
    fn clear(&mut self) {
        self.key = None;
        self.pending = None;
        self.body = Segments::default();
        self.is_refused = false;
    }

    /// Bytes of memory that its reply holds: data made for it alone, and the log line.
    fn reply_len(&self) -> usize {
        let bytes_len = |segment: &Segment| match segment {
            Segment::Memory(bytes) if bytes.is_unique() => bytes.len(),
            _ => 0,
        };
        let line_len = self.line.as_ref().map_or(0, HeldLine::allocated_len);
        let bytes_len = self.body.iter().map(bytes_len).sum::<usize>();
        line_len + self.body.allocated_len() + bytes_len
    }
}

impl Scratch {
    /// The buffer for heads within `limits`.
    fn head(&mut self, limits: &EndpointLimits) -> &mut RequestHead {
        let its = (limits.head_len_max, limits.fields_max);
        if self.limits != its {
            self.limits = its;
            self.head = None;
        }
        let new = || RequestHead::new(its.0 as usize, its.1);
        self.head.get_or_insert_with(new)
    }
}

impl PieceRead {
    /// Reads the piece.
    pub(super) fn run(&mut self) {
        let mut bytes = vec![0; self.piece.len as usize];
        let flags = ReadWriteFlags::empty();
        let is_whole = read(&self.file, self.start, &mut bytes, flags) == Ok(bytes.len());
        let is_same = is_whole && self.file.is_unchanged().unwrap_or(false);
        self.bytes = is_same.then_some(bytes);
    }
}

/// Lends the buffers of this thread to a call.
fn with_scratch<R>(call: &mut Call<'_>, run: impl FnOnce(&mut Call<'_>, &mut Scratch) -> R) -> R {
    SCRATCH.with_borrow_mut(|scratch| {
        call.replier.stream = Some(scratch.reply.take().unwrap_or_default());
        let result = run(call, scratch);
        scratch.reply = call.replier.stream.take();
        result
    })
}

fn keep(call: &Call<'_>, key: StreamKey, head: &Head<'_>, text: &[u8]) -> Box<KeptRequest> {
    let mut kept = call.keep(head, text);
    kept.stream = Some(key);
    kept
}

/// Shortens a piece to the bytes available.
fn cut(piece: &mut BodyPiece, len: u64) {
    if len < piece.len {
        piece.len = len;
        piece.is_last = false;
    }
}

/// Writes a piece as frames with copies of its bytes. Returns the number of bytes: fewer if a
/// window has shrunk.
fn put_frames(
    endpoint: &mut Endpoint,
    piece: &mut BodyPiece,
    bytes: &[u8],
    out: &mut Outbox,
) -> usize {
    let mut at = 0;
    out.put_with(|to| {
        while let Some(len) = endpoint.write_frame(piece, to) {
            let end = at + len as usize;
            to.extend_from_slice(&bytes[at..end]);
            at = end;
        }
    });
    at
}

/// Reads the cached bytes at the start of a range. 0: none are in the page cache.
///
/// # Errors
/// The file cannot be read, or it has changed.
fn read_now(range: &FileRange, buffer: &mut [u8]) -> Result<usize, Errno> {
    let len = match read(&range.file, range.range.start, buffer, ReadWriteFlags::NOWAIT) {
        // EOPNOTSUPP: the file system cannot read without waiting.
        Err(Errno::AGAIN | Errno::OPNOTSUPP) => return Ok(0),
        read => read?,
    };
    match range.file.is_unchanged() {
        // 0: Linux 5.9 and 5.10 also return this for uncached data. preadv2(2)
        Ok(true) => Ok(len),
        _ => Err(Errno::STALE),
    }
}

/// Fills the buffer; stops early only at the end of the file, or of the bytes that these flags let
/// it read.
fn read(
    file: &SharedFile,
    start: u64,
    buffer: &mut [u8],
    flags: ReadWriteFlags,
) -> Result<usize, Errno> {
    let mut at = 0;
    while at < buffer.len() {
        let mut rest = [IoSliceMut::new(&mut buffer[at..])];
        match rustix::io::preadv2(file.as_fd(), &mut rest, start + at as u64, flags) {
            Ok(0) => break,
            Ok(len) => at += len,
            Err(Errno::INTR) => {}
            Err(_) if at > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen: on Linux 5.10, a stream of an uncached file ended with INTERNAL_ERROR. Cause: a
    /// non-blocking read returns 0 there, as at the end of a file. Cure: a blocking read decides.
    #[test]
    fn nothing_read_at_once_is_no_change() {
        let file = SharedFile::new(tempfile::tempfile().unwrap().into()).unwrap();
        let range = FileRange { file: Arc::new(file), range: 0..16, keep: true, settled: true };
        assert_eq!(read_now(&range, &mut [0; 16]), Ok(0));
    }
}
