//! State and interface of the connection machine. Its four files do the work:
//!
//! | file | content |
//! |---|---|
//! | `receive` | an arriving segment: RFC 9293 3.10.7, in its order |
//! | `acknowledge` | acknowledgement of own data: losses, windows, round trips |
//! | `transmit` | the next departing segment |
//! | `timers` | deadlines, and the action at each |
//!
//! ```text
//!   one deadline = the earliest of
//!     rto_at      retransmission, RFC 6298; persist_at instead while the peer's window is closed
//!     probe_at    tail loss probe, RFC 8985 7          reorder_at   RACK's reordering window
//!     ack_at      delayed acknowledgement              idle_at      keep-alive
//!     close_at    FIN-WAIT-2 without an owner
//!     spread_until  pacing, while is_paced
//! ```
//!
//! Each is [`Instant::NEVER`] when it is not armed.

mod acknowledge;
mod receive;
mod timers;
mod transmit;

use std::num::NonZeroU64;
use std::ops::{BitOr, BitOrAssign, Range};
use std::time::Duration;

use super::config::TcpConfig;
use super::congestion::{BeforeLoss, Congestion, RateReduction};
use super::pacing::Rate;
use super::position::{DATA_AT, Numbering, SYN_AT};
use super::reassembly::Reassembly;
use super::rtt::RoundTrip;
use super::scoreboard::Scoreboard;
use super::state::{End, TcpState};
use crate::time::Instant;
use crate::wire::Ecn;
use crate::wire::tcp::{Segment, SeqNumber};

/// Least MSS that a peer can impose; a lower MSS option counts as this. A header is 40 bytes, and
/// smaller segments only waste resources of this end.
const SND_MSS_MIN: u16 = 64;

/// Least MSS that a router can impose. The path's true MTU may be less: then packets are fragmented
/// on the way, which [`crate::ip::MTU_MIN_V4`] allows.
const PATH_MSS_MIN: u16 = 512;

/// One connection.
#[derive(Clone, Debug)]
pub struct Connection {
    state: TcpState,
    end: Option<End>,
    local_port: u16,
    remote_port: u16,
    is_passive: bool,

    // ---- sending
    snd: Numbering,
    /// snd_una, snd_nxt, and the pieces in between.
    scoreboard: Scoreboard,
    /// End of the bytes that the application has offered: position of the FIN.
    queue_end: u64,
    is_fin_queued: bool,
    snd_wnd: u64,
    /// Bytes by which the window once reached further, if the shift rounds them off.
    snd_rounded: u16,
    snd_wnd_max: u64,
    snd_wl1: u64,
    snd_wl2: u64,
    snd_shift: u8,
    /// The smaller of the MSS that the peer offers and that of the path; options are not deducted.
    snd_mss: u16,
    is_nodelay: bool,
    marks: Marks,
    congestion: Congestion,
    phase: Phase,
    reduction: RateReduction,
    /// Acknowledgements below this position are for a window that was full: only those grow it.
    limited_until: u64,
    /// Duplicate acknowledgements, of a peer without SACK. RFC 5681 2
    dup_acks: u16,
    /// Holes that one recovery without SACK has found. RFC 6582 3.2 (4)
    partial_acks: u16,
    round_trip: RoundTrip,
    /// True if a segment must leave although cwnd has no space for it: the first of a recovery.
    is_retransmit_forced: bool,
    /// True while segments are repaired that were not lost to congestion.
    is_repairing: bool,
    /// `snd_nxt` when the last recovery began. RFC 6582 3.2
    recover: u64,
    undo: Option<Undo>,
    probe: Probe,
    /// The round trip was measured since the last probe. RFC 8985 7.3
    is_trip_measured: bool,

    // ---- receiving
    rcv: Numbering,
    rcv_nxt: u64,
    /// The application has read up to here.
    rcv_read: u64,
    /// Right edge of the window: the highest that was ever offered.
    rcv_adv: u64,
    /// The ACK of the last segment that left (Last.ACK.sent).
    rcv_acked: u64,
    rcv_shift: u8,
    receive_capacity: u32,
    /// Growth of the window: time and position at which the current round of reads began.
    round_at: Instant,
    round_read: u64,
    /// The position of the peer's FIN, once it was seen.
    rcv_fin: Option<NonZeroU64>,
    /// The largest payload seen: two of these are acknowledged at once.
    rcv_mss: u16,
    reassembly: Reassembly,
    /// Bytes that came twice, to be reported once. RFC 2883
    dsack: Option<(u64, u64)>,
    is_read_shut: bool,
    has_sack: bool,
    /// Both ends scale their windows. RFC 7323 2.2
    is_scaling: bool,
    timestamps: Option<Clock>,

    // ---- work that is due
    is_ack_due: bool,
    quick_acks: u8,
    /// Short segments that came since the last acknowledgement left.
    short_segments: u8,
    /// True if data has left in place of an acknowledgement: the application replies to its input.
    is_replying: bool,
    /// Sequence number of a RST that is due in answer to an invalid segment.
    reset_due: Option<SeqNumber>,
    is_abort_due: bool,

    // ---- deadlines
    rto_at: Instant,
    probe_at: Instant,
    reorder_at: Instant,
    persist_at: Instant,
    ack_at: Instant,
    idle_at: Instant,
    close_at: Instant,
    persist_backoff: u8,
    keep_alive_probes: u8,
    is_keep_alive_due: bool,
    /// Setting of this connection; `None` for that of its shard.
    has_keep_alive: Option<bool>,
    /// Setting of this connection, in seconds; 0 for that of its shard.
    user_timeout_s: u16,
    /// Present trouble; progress ends it.
    trouble: Option<Trouble>,
    window_probe: WindowProbe,
    /// Time of the last progress: snd_una moved, the flight began, or the window stopped all data.
    progress_at: Instant,
    /// Time at which everything sent would have left at the rate of [`super::pacing`]; without a
    /// rate, time of the last transmission.
    spread_until: Instant,
    /// New data waits for that rate.
    is_paced: bool,

    // ---- limits on answers
    challenges: u8,
    challenges_since: Instant,
    /// Time before which no segment outside of the window is answered.
    out_of_window_ack_at: Instant,

    counters: TcpCounters,
}

/// Congestion marks, which routers set instead of dropping packets. RFC 3168 6.1
#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    /// True if both ends support them.
    is_on: bool,
    /// True after a mark: each segment carries ECE until the peer has reduced its window.
    is_echo_due: bool,
    /// True after a reduction of the window: the next new data carries CWR.
    is_reduction_due: bool,
    /// Position below which the peer's echoes concern the window before its reduction.
    reduced_until: u64,
}

/// State to restore if a reduction of the window proves to be needless. RFC 3522, RFC 4015, RFC
/// 5682, RFC 3708
#[derive(Clone, Copy, Debug)]
struct Undo {
    window: BeforeLoss,
    /// Time of the first retransmission, then of the end of recovery, in milliseconds to keep
    /// connections small.
    at_ms: u32,
    /// Retransmitted bytes that the peer has not reported as duplicates.
    unreported: u32,
    /// First and last sequence numbers of the retransmissions.
    again: (SeqNumber, SeqNumber),
}

/// Timestamp clock. RFC 7323 4.3
#[derive(Clone, Copy, Debug)]
struct Clock {
    /// Offset of the own clock from the time in milliseconds.
    offset: u32,
    /// TS.Recent, and when it came.
    recent: u32,
    recent_at: Instant,
}

/// State of the path, as the sender sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No loss is known.
    Open,
    /// Fast recovery, until all before `end` is acknowledged. RFC 6675 5
    Recovery { end: u64 },
    /// The retransmission timer expired, with data up to `end` in flight. RFC 6298 5
    Loss { end: u64, trial: Trial },
}

/// F-RTO: detects a spurious time-out without timestamps. RFC 5682 2.1
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    /// The time-out was genuine, or nothing can tell.
    Over,
    /// The first segment is sent again, and nothing behind it.
    First,
    /// New data leaves, nothing again: if old data is acknowledged now, it was late, not lost.
    Second,
}

/// The tail loss probe. RFC 8985 7
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    Idle,
    /// The next transmission sends it.
    Due,
    /// In flight; an acknowledgement of `end` tells its fate.
    Out {
        end: u64,
        is_retransmission: bool,
    },
}

/// The probe of a closed window. RFC 9293 3.8.6.1
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WindowProbe {
    /// No probe was sent, or the peer has answered since the last one.
    Idle,
    /// The next transmission sends it.
    Due,
    /// In flight, and nothing has arrived since.
    Out,
}

/// Set of events of a connection: see the constants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpEvents(u8);

impl TcpEvents {
    /// No event that concerns the owner.
    pub const NOTHING: TcpEvents = TcpEvents(0);
    /// The handshake is complete.
    pub const CONNECTED: TcpEvents = TcpEvents(0x01);
    /// There is more to read: [`Connection::readable_len`].
    pub const READABLE: TcpEvents = TcpEvents(0x02);
    /// The peer has closed, and all that it sent has come.
    pub const PEER_CLOSED: TcpEvents = TcpEvents(0x04);
    /// More was acknowledged: [`Connection::released`].
    pub const RELEASED: TcpEvents = TcpEvents(0x08);
    /// Both have closed, this end first: the connection's name lives on in TIME-WAIT.
    pub const TIME_WAIT: TcpEvents = TcpEvents(0x10);
    /// The connection is over: [`Connection::end`].
    pub const ENDED: TcpEvents = TcpEvents(0x20);
    /// The connection is in trouble and continues: [`Connection::trouble`].
    pub const TROUBLED: TcpEvents = TcpEvents(0x40);

    /// True if all of `other` happened.
    pub const fn contains(self, other: TcpEvents) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for TcpEvents {
    type Output = TcpEvents;

    fn bitor(self, other: TcpEvents) -> TcpEvents {
        TcpEvents(self.0 | other.0)
    }
}

impl BitOrAssign for TcpEvents {
    fn bitor_assign(&mut self, other: TcpEvents) {
        *self = *self | other;
    }
}

/// Trouble of a connection that may pass. RFC 9293 3.9.1.8
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trouble {
    /// The same segment has left four times and was not acknowledged (R1). RFC 9293 3.8.3
    Silence,
    /// A router, or the peer's host, reports an undeliverable segment. RFC 9293 3.9.2.2
    Unreachable,
}

/// Outcome of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// Events for the owner.
    pub events: TcpEvents,
    /// The part of the payload to keep.
    pub placed: Option<Placed>,
}

/// Bytes of a segment, and where they belong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// In the peer's stream.
    pub offset: u64,
    /// In the segment's payload.
    pub range: Range<usize>,
}

/// A segment to send: its header, and which bytes of the stream follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The payload is empty here, and its bytes are the caller's to add.
    pub segment: Segment<'static>,
    /// Stream offset of the first byte of the payload.
    pub offset: u64,
    /// Payload length.
    pub len: u32,
    /// Payload length of each segment, if the device cuts a longer payload.
    pub mss: u16,
    /// True if it was sent before.
    pub is_retransmission: bool,
    /// ECN codepoint of the packet.
    pub ecn: Ecn,
}

/// Counters of a connection. The name of each says what was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct TcpCounters {
    pub segments_received: u64,
    pub segments_sent: u64,
    pub retransmissions: u64,
    pub timeouts: u32,
    pub fast_recoveries: u32,
    /// Reductions of the window that were undone: nothing was lost.
    pub needless_reductions: u32,
    /// Reductions of the window because the peer has echoed a mark. RFC 3168 6.1.2
    pub marks_echoed: u32,
    pub tail_loss_probes: u32,
    /// Segments with an old timestamp. RFC 7323 5
    pub paws_drops: u32,
    /// Segments without a timestamp, although timestamps were agreed on.
    pub missing_timestamps: u32,
    /// Segments outside of the window.
    pub unacceptable: u32,
    pub challenge_acks: u32,
    /// Challenges beyond [`TcpConfig::challenge_acks_max`].
    pub challenge_acks_omitted: u32,
}

impl TcpCounters {
    /// Adds those of another connection.
    pub fn add(&mut self, other: &TcpCounters) {
        macro_rules! sums {
            ($($count:ident)*) => { $(self.$count = self.$count.saturating_add(other.$count);)* };
        }
        sums! {
            segments_received segments_sent retransmissions timeouts fast_recoveries
            needless_reductions marks_echoed tail_loss_probes paws_drops missing_timestamps
            unacceptable challenge_acks challenge_acks_omitted
        }
    }
}

impl Connection {
    /// An active open: RFC 9293 3.10.1. The SYN leaves with the next [`Connection::transmit`].
    pub fn connect(
        config: &TcpConfig,
        now: Instant,
        (local_port, remote_port): (u16, u16),
        iss: SeqNumber,
        timestamp_offset: u32,
    ) -> Connection {
        let mut connection = Connection::new(config, now, iss);
        (connection.local_port, connection.remote_port) = (local_port, remote_port);
        connection.state = TcpState::SynSent;
        connection.timestamps = config.has_timestamps.then_some(Clock {
            offset: timestamp_offset,
            recent: 0,
            recent_at: now,
        });
        connection
    }

    /// A passive open, by the first segment that a listener gets: RFC 9293 3.10.7.2. The caller
    /// has checked that it is a SYN and neither ACK nor RST. The answer leaves with the next
    /// [`Connection::transmit`].
    pub fn accept(
        config: &TcpConfig,
        now: Instant,
        syn: &Segment<'_>,
        iss: SeqNumber,
        timestamp_offset: u32,
    ) -> Connection {
        let mut connection = Connection::new(config, now, iss);
        (connection.local_port, connection.remote_port) = (syn.dst_port, syn.src_port);
        connection.state = TcpState::SynReceived;
        connection.is_passive = true;
        connection.timestamps = config.has_timestamps.then_some(Clock {
            offset: timestamp_offset,
            recent: 0,
            recent_at: now,
        });
        connection.take_syn(config, now, syn);
        connection
    }

    /// A connection whose SYN was remembered in a cookie: `syn` is what is known of it, and the
    /// segment that completes the handshake is to be received next. RFC 4987 3.6
    pub fn from_cookie(
        config: &TcpConfig,
        now: Instant,
        syn: &Segment<'_>,
        cookie: SeqNumber,
        timestamp_offset: u32,
    ) -> Connection {
        let mut connection = Connection::accept(config, now, syn, cookie, timestamp_offset);
        // The answer to the SYN left at an unknown time, so it gives no sample.
        connection.scoreboard.send(now, 1);
        connection.scoreboard.send_again(now, SYN_AT, 1);
        connection.rcv_acked = connection.rcv_nxt;
        connection.rcv_adv =
            connection.rcv_nxt + u64::from(connection.receive_capacity.min(0xffff));
        connection.is_ack_due = false;
        connection.rto_at = now + connection.round_trip.rto(&config.rto);
        connection
    }

    fn new(config: &TcpConfig, now: Instant, iss: SeqNumber) -> Connection {
        let congestion =
            Congestion::new(config.congestion, config.mss_default, config.initial_window_segments);
        Connection {
            state: TcpState::Closed,
            end: None,
            local_port: 0,
            remote_port: 0,
            is_passive: false,
            snd: Numbering { initial: iss },
            scoreboard: Scoreboard::new(SYN_AT),
            queue_end: DATA_AT,
            is_fin_queued: false,
            snd_wnd: 0,
            snd_rounded: 0,
            snd_wnd_max: 0,
            snd_wl1: 0,
            snd_wl2: 0,
            snd_shift: 0,
            snd_mss: config.mss_default.min(config.mss),
            is_nodelay: !config.has_nagle,
            marks: Marks::default(),
            congestion,
            phase: Phase::Open,
            reduction: RateReduction::default(),
            limited_until: 0,
            dup_acks: 0,
            partial_acks: 0,
            round_trip: RoundTrip::new(&config.rto),
            is_retransmit_forced: false,
            is_repairing: false,
            recover: SYN_AT,
            undo: None,
            probe: Probe::Idle,
            is_trip_measured: false,
            rcv: Numbering { initial: SeqNumber(0) },
            rcv_nxt: SYN_AT,
            rcv_read: DATA_AT,
            rcv_adv: SYN_AT,
            rcv_acked: SYN_AT,
            rcv_shift: 0,
            receive_capacity: config.receive_capacity,
            round_at: now,
            round_read: DATA_AT,
            rcv_fin: None,
            rcv_mss: config.mss_default.min(config.mss),
            reassembly: Reassembly::default(),
            dsack: None,
            is_read_shut: false,
            has_sack: false,
            is_scaling: false,
            timestamps: None,
            is_ack_due: false,
            quick_acks: config.quick_acks,
            short_segments: 0,
            is_replying: false,
            reset_due: None,
            is_abort_due: false,
            rto_at: Instant::NEVER,
            probe_at: Instant::NEVER,
            reorder_at: Instant::NEVER,
            persist_at: Instant::NEVER,
            ack_at: Instant::NEVER,
            idle_at: Instant::NEVER,
            close_at: Instant::NEVER,
            persist_backoff: 0,
            keep_alive_probes: 0,
            is_keep_alive_due: false,
            has_keep_alive: None,
            user_timeout_s: 0,
            trouble: None,
            window_probe: WindowProbe::Idle,
            progress_at: now,
            spread_until: now,
            is_paced: false,
            challenges: 0,
            challenges_since: now,
            out_of_window_ack_at: now,
            counters: TcpCounters::default(),
        }
    }

    // ---- what the application does: RFC 9293 3.10.2 to 3.10.5

    /// Queues `len` more bytes; they are asked for, by offset, when they leave.
    ///
    /// # Panics
    ///
    /// After [`Connection::finish`].
    pub fn queue(&mut self, len: u64) {
        assert!(!self.is_fin_queued, "bytes after the end of the stream");
        self.queue_end += len;
    }

    /// Ends the outgoing stream: a FIN follows the queued bytes. RFC 9293 3.10.4
    pub fn finish(&mut self) {
        if self.is_fin_queued || self.state == TcpState::Closed {
            return;
        }
        if self.state == TcpState::SynSent {
            // RFC 9293 3.10.4: the peer does not know of the connection.
            self.finish_with(End::Closed);
            return;
        }
        self.is_fin_queued = true;
    }

    /// Ends reading: later data is answered with a RST, since it would be lost. RFC 9293 3.6.1,
    /// SHLD-3. FIN-WAIT-2, if reached already, ends at `until`. If all sent data is acknowledged,
    /// the user time-out of the remaining data counts from `now`.
    pub fn shut_read(&mut self, now: Instant, until: Instant) {
        self.is_read_shut = true;
        if self.scoreboard.is_empty() && self.persist_at == Instant::NEVER {
            // All sent data is acknowledged: the time-out of the rest counts from now.
            self.progress_at = now;
        }
        if self.readable_len() > 0 {
            // Received bytes that were not read are lost already. RFC 2525 2.17
            self.abort();
        } else if self.state == TcpState::FinWait2 {
            self.close_at = until;
        }
    }

    /// Consumes `len` readable bytes, which have been read. A window update may become due.
    ///
    /// # Panics
    ///
    /// If fewer were readable.
    pub fn read(&mut self, len: usize) {
        let readable = self.readable_len();
        assert!(len <= readable, "{len} of {readable} bytes read");
        self.rcv_read += len as u64;
        // A short segment is the last for now. One more ACK costs less than the probe that the peer
        // sends if two segments are not acknowledged after two round trips. RFC 8985 7.2
        let is_last = self.short_segments > usize::from(self.is_replying) as u8;
        if is_last && len == readable {
            self.is_ack_due = true;
        }
        // Receiver's silly window avoidance: RFC 9293 3.8.6.2.2.
        let edge = self.rcv_read + u64::from(self.receive_capacity);
        let growth = edge.saturating_sub(self.rcv_adv);
        let step = u64::from(self.rcv_mss).min(u64::from(self.receive_capacity) / 2);
        let offered = self.rcv_adv.saturating_sub(self.rcv_nxt);
        if self.state.is_receiving() && growth >= step && offered < growth {
            self.is_ack_due = true;
        }
    }

    /// Ends the connection with a RST. RFC 9293 3.10.5
    pub fn abort(&mut self) {
        match self.state {
            TcpState::Closed => return,
            TcpState::SynSent | TcpState::TimeWait => {}
            _ => self.is_abort_due = true,
        }
        self.finish_with(End::Aborted);
    }

    /// Sets whether short segments leave at once. RFC 9293 3.7.4, MUST-17
    pub fn set_nodelay(&mut self, is_nodelay: bool) {
        self.is_nodelay = is_nodelay;
    }

    /// Switches keep-alive probes on or off, at the pace of the shard's settings, or else of
    /// [`KeepAlive::default`](super::config::KeepAlive). RFC 9293 3.8.4, MUST-24
    pub fn set_keep_alive(&mut self, config: &TcpConfig, now: Instant, is_on: bool) {
        self.has_keep_alive = Some(is_on);
        if !matches!(self.state, TcpState::Closed | TcpState::TimeWait) {
            self.arm_idle(config, now);
        }
    }

    /// Sets the time without an acknowledgement after which an open connection ends (R2): whole
    /// seconds, up to 18 hours. Handshakes keep the time-outs of the settings. It counts from the
    /// last progress; between two probes of a closed window, from now. RFC 9293 3.8.3, MUST-21
    pub fn set_user_timeout(&mut self, config: &TcpConfig, now: Instant, timeout: Duration) {
        self.user_timeout_s = timeout.as_secs().clamp(1, u16::MAX.into()) as u16;
        let is_waiting = self.persist_at != Instant::NEVER;
        if is_waiting && !self.is_read_shut && self.window_probe != WindowProbe::Out {
            // The peer has answered every probe: the time-out counts from now. MUST-37
            self.progress_at = now;
        }
        let patience = self.patience(config);
        let given_up_at = (self.progress_at + patience).max(now);
        if self.rto_at != Instant::NEVER {
            self.rto_at = self.rto_at.min(given_up_at);
        }
        if is_waiting {
            // The next probe leaves time for its answer, as those after it do.
            let probe_at = now + patience / 2;
            self.persist_at = self.persist_at.min(probe_at).min(given_up_at);
        }
    }

    // ---- reports of the network

    /// Lowers the MSS to `mss`, as the path demands: RFC 1191, RFC 8201. `quoted` is the sequence
    /// number in the packet that was too long; a forger does not know one in flight: RFC 5927 7.
    /// Returns true if the report was believed.
    pub fn path_takes(&mut self, quoted: SeqNumber, mss: u16) -> bool {
        if !self.is_under_way(quoted) || mss >= self.snd_mss {
            return false;
        }
        let mss = mss.max(PATH_MSS_MIN);
        if mss >= self.snd_mss {
            return true; // Segments were as short before.
        }
        self.snd_mss = mss;
        self.congestion.set_mss(self.mss() as u16);
        // Not congestion: segments that were too long leave again at once, and cwnd stays.
        self.scoreboard.first_is_lost(u64::MAX - self.scoreboard.start());
        self.is_retransmit_forced = true;
        self.is_repairing = true;
        true
    }

    /// Limits the MSS to the known one of the path. The connection has just opened: nothing is in
    /// flight.
    pub fn limit_mss(&mut self, config: &TcpConfig, mss: u16) {
        let mss = mss.max(PATH_MSS_MIN);
        if mss < self.snd_mss {
            self.snd_mss = mss;
            let segments = config.initial_window_segments;
            self.congestion.start_with_mss(self.mss() as u16, segments);
        }
    }

    /// Handles a report that the network cannot deliver to the peer. RFC 9293 3.9.2.2: a soft error
    /// is reported to the owner; a hard one ends only a connection that is not yet open, since
    /// anyone can forge it (RFC 5927 5.2).
    pub fn unreachable(&mut self, quoted: SeqNumber, is_hard: bool) -> TcpEvents {
        if !self.is_under_way(quoted) {
            return TcpEvents::NOTHING;
        }
        let is_opening = matches!(self.state, TcpState::SynSent | TcpState::SynReceived);
        if is_hard && is_opening {
            self.finish_with(End::Unreachable);
            return TcpEvents::ENDED;
        }
        self.meet(Trouble::Unreachable)
    }

    /// Reports a trouble once until there is progress.
    fn meet(&mut self, trouble: Trouble) -> TcpEvents {
        if self.trouble.replace(trouble) == Some(trouble) {
            TcpEvents::NOTHING
        } else {
            TcpEvents::TROUBLED
        }
    }

    fn is_under_way(&self, quoted: SeqNumber) -> bool {
        let position = self.snd.position(quoted, self.scoreboard.start());
        (self.scoreboard.start()..self.scoreboard.end()).contains(&position)
    }

    // ---- queries

    /// The state.
    pub fn state(&self) -> TcpState {
        self.state
    }

    /// Reason of the end, if the connection has ended.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// Trouble since the last acknowledgement of new data. RFC 9293 3.9.1.8, MUST-47
    pub fn trouble(&self) -> Option<Trouble> {
        self.trouble
    }

    /// True if the connection is over and has nothing left to send.
    pub fn is_done(&self) -> bool {
        self.state == TcpState::Closed && !self.is_abort_due && self.reset_due.is_none()
    }

    /// End of `segment`'s payload in the peer's stream, if its sequence number is right.
    pub(crate) fn text_end(&self, segment: &Segment<'_>) -> u64 {
        let start = self.rcv.position(segment.seq, self.rcv_nxt);
        (start + segment.payload.len() as u64).saturating_sub(DATA_AT)
    }

    /// True if `segment`'s payload begins at the next byte in order or before.
    pub(crate) fn is_in_order(&self, segment: &Segment<'_>) -> bool {
        self.rcv.position(segment.seq, self.rcv_nxt) <= self.rcv_nxt
    }

    /// True if bytes wait behind a hole.
    pub(crate) fn has_hole(&self) -> bool {
        !self.reassembly.is_empty()
    }

    /// Drops the bytes behind holes. The peer sends them again, as if they had been lost. RFC 2018
    /// 8
    pub(crate) fn give_up_out_of_order(&mut self) {
        self.reassembly = Reassembly::default();
    }

    /// Bytes that came in order and were not read.
    pub fn readable_len(&self) -> usize {
        let data_end = self.fin_position().map_or(self.rcv_nxt, |fin| fin.min(self.rcv_nxt));
        data_end.saturating_sub(self.rcv_read) as usize
    }

    /// Bytes of the stream that the peer has acknowledged: they are not asked for again.
    pub fn released(&self) -> u64 {
        self.scoreboard.start().clamp(DATA_AT, self.queue_end) - DATA_AT
    }

    /// Bytes that are queued and were never sent.
    pub fn unsent_len(&self) -> u64 {
        self.queue_end.saturating_sub(self.scoreboard.end().max(DATA_AT))
    }

    /// True if no bytes are held, in order or out of it.
    pub fn holds_nothing(&self) -> bool {
        self.reassembly.is_empty() && self.readable_len() == 0
    }

    /// True if [`Connection::finish`] was called or it has ended: nothing can be queued.
    pub fn is_finished(&self) -> bool {
        self.is_fin_queued || self.state == TcpState::Closed
    }

    /// True if the peer has closed, and all before its FIN has come.
    pub fn is_peer_closed(&self) -> bool {
        self.fin_position().is_some_and(|fin| self.rcv_nxt > fin)
    }

    /// The numbers of a connection that goes to TIME-WAIT: snd_nxt and rcv_nxt.
    pub fn last_numbers(&self) -> (SeqNumber, SeqNumber) {
        (self.snd.seq(self.scoreboard.end()), self.rcv.seq(self.rcv_nxt))
    }

    /// The peer's last timestamp and the own offset, if the connection uses timestamps.
    pub fn last_timestamps(&self) -> Option<(u32, u32)> {
        let clock = self.timestamps.as_ref()?;
        Some((clock.recent, clock.offset))
    }

    /// Its ports: local, then the peer's.
    pub fn ports(&self) -> (u16, u16) {
        (self.local_port, self.remote_port)
    }

    /// Bytes that may be in flight.
    pub fn cwnd(&self) -> u64 {
        self.congestion.cwnd()
    }

    /// The slow start threshold.
    pub fn ssthresh(&self) -> u64 {
        self.congestion.ssthresh()
    }

    /// The smoothed round-trip time.
    pub fn srtt(&self) -> Option<Duration> {
        self.round_trip.srtt()
    }

    /// The retransmission time-out.
    pub fn rto(&self, config: &TcpConfig) -> Duration {
        self.round_trip.rto(&config.rto)
    }

    /// Bytes that were sent and not acknowledged.
    pub fn flight_len(&self) -> u64 {
        self.scoreboard.len()
    }

    /// Counters of the connection.
    pub fn counters(&self) -> &TcpCounters {
        &self.counters
    }

    /// Asserts the invariants that hold after [`Connection::transmit`] has returned nothing; for
    /// tests and fuzzers.
    ///
    /// # Panics
    ///
    /// If one of them does not hold.
    #[doc(hidden)]
    pub fn assert_consistent(&self) {
        self.scoreboard.assert_consistent();
        let una = self.scoreboard.start();
        let nxt = self.scoreboard.end();
        assert!(nxt <= self.queue_end + 1, "sent {nxt} of {}", self.queue_end);
        assert!(self.snd_mss >= SND_MSS_MIN && self.cwnd() >= self.mss());
        let read = self.rcv_read;
        let got = self.rcv_nxt;
        assert!(read <= got.max(DATA_AT), "read {read} of {got}");
        assert!(self.readable_len() <= self.receive_capacity as usize);
        assert!(self.round_read <= read, "read {read}");
        if matches!(self.state, TcpState::Closed | TcpState::TimeWait) {
            assert_eq!(self.deadline(), Instant::NEVER, "a deadline after the end");
            return;
        }
        // Unacknowledged data, and data that waits for the window, has a deadline.
        let owes = una < nxt || una < self.queue_end || self.is_fin_queued;
        let is_done = self.is_fin_acknowledged();
        let has_timer = self.rto_at.min(self.persist_at) != Instant::NEVER;
        assert!(!owes || is_done || has_timer, "the connection waits forever: {self:?}");
    }

    // ---- shared by the modules

    /// Payload of a full segment: the path's MSS less the options that every segment has.
    fn mss(&self) -> u64 {
        let options = if self.timestamps.is_some() { 12 } else { 0 };
        u64::from(self.snd_mss - options)
    }

    /// Position of the peer's FIN once it was seen. A FIN is behind a SYN, so never at 0.
    fn fin_position(&self) -> Option<u64> {
        self.rcv_fin.map(NonZeroU64::get)
    }

    /// Pacing rate of new data; `None` if only the windows limit it.
    fn rate(&self) -> Option<Rate> {
        let cwnd = self.congestion.cwnd();
        let srtt = self.round_trip.srtt();
        Rate::of(cwnd, srtt, self.congestion.is_slow_start())
    }

    /// True if all data ever to be sent is acknowledged, the FIN included.
    fn is_fin_acknowledged(&self) -> bool {
        self.is_fin_queued && self.scoreboard.start() > self.queue_end
    }

    fn finish_with(&mut self, end: End) {
        self.state = TcpState::Closed;
        self.end = Some(end);
        self.disarm();
    }
}
