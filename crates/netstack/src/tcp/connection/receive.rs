//! Arriving segments: RFC 9293 3.10.7.3 and 3.10.7.4, in the order of the RFC.
//!
//! ```text
//!   timestamps (PAWS) → RST → is it in the window? → SYN → ACK → text → FIN
//! ```
//!
//! RST comes before the window check, as in RFC 5961 3.2: only a RST at rcv_nxt is believed.
//! Segments that a blind attacker could send are answered with challenge acknowledgements, whose
//! rate is limited.

use std::num::NonZeroU64;
use std::time::Duration;

use super::super::config::{CHALLENGE_PERIOD, TcpConfig};
use super::super::congestion::Congestion;
use super::super::position::{DATA_AT, Numbering, SYN_AT};
use super::super::reassembly::Inserted;
use super::super::state::{End, TcpState};
use super::{Clock, Connection, Placed, Probe, Receipt, SND_MSS_MIN, TcpEvents};
use crate::time::Instant;
use crate::wire::Ecn;
use crate::wire::tcp::{Flags, Segment};

/// Silence after which a timestamp proves nothing: the peer's clock may have wrapped. RFC 7323 5.5
const TS_RECENT_AGE_MAX: Duration = Duration::from_secs(24 * 24 * 3600);

/// A segment during its checks. Numbers are positions.
pub(super) struct Arriving<'a> {
    pub(super) segment: &'a Segment<'a>,
    /// Position of its first remaining byte.
    pub(super) start: u64,
    /// Offset of the remaining payload.
    payload_from: usize,
    payload_to: usize,
    has_fin: bool,
    /// Sequence number before trimming, for the rule of the window update.
    pub(super) seq: u64,
}

impl Connection {
    /// Processes a segment of this connection, with the ECN codepoint of its packet.
    pub fn receive(
        &mut self,
        config: &TcpConfig,
        now: Instant,
        segment: &Segment<'_>,
        ecn: Ecn,
    ) -> Receipt {
        let mut receipt = Receipt::default();
        if matches!(self.state, TcpState::Closed | TcpState::TimeWait) {
            return receipt;
        }
        self.counters.segments_received += 1;
        let state_before = self.state;
        if self.state == TcpState::SynSent {
            self.receive_in_syn_sent(config, now, segment, &mut receipt);
        } else {
            self.receive_synchronized(config, now, segment, ecn, &mut receipt);
        }
        if self.state != state_before {
            receipt.events |= match self.state {
                TcpState::Closed => TcpEvents::ENDED,
                TcpState::TimeWait => TcpEvents::TIME_WAIT,
                _ => TcpEvents::NOTHING,
            };
        }
        receipt
    }

    /// RFC 9293 3.10.7.3
    fn receive_in_syn_sent(
        &mut self,
        config: &TcpConfig,
        now: Instant,
        segment: &Segment<'_>,
        receipt: &mut Receipt,
    ) {
        // First the ACK.
        let ack = segment.ack.map(|ack| self.snd.position(ack, SYN_AT));
        if let Some(position) = ack
            && (position <= SYN_AT || position > self.scoreboard.end())
        {
            if !segment.flags.contains(Flags::RST) {
                self.reset_due = segment.ack;
                self.send_syn_behind_reset();
            }
            return;
        }
        // Second the RST: believed if it acknowledges the SYN.
        if segment.flags.contains(Flags::RST) {
            if ack.is_some() {
                self.finish_with(End::Refused);
            }
            return;
        }
        // Fourth the SYN: a segment without one is dropped.
        if !segment.flags.contains(Flags::SYN) {
            return;
        }
        self.take_syn(config, now, segment);
        if let Some(ack) = ack {
            self.complete_handshake(config, now, ack);
            (self.snd_wl1, self.snd_wl2) = (SYN_AT, ack);
            receipt.events |= TcpEvents::CONNECTED;
            self.is_ack_due = true;
            // Text and FIN of a SYN are taken as those of a segment behind it.
            let mut arriving = Arriving {
                segment,
                start: DATA_AT,
                payload_from: 0,
                payload_to: segment.payload.len(),
                has_fin: segment.flags.contains(Flags::FIN),
                seq: SYN_AT,
            };
            self.trim(&mut arriving);
            self.take_text(config, now, &arriving, receipt);
            self.take_fin(&arriving, receipt);
        } else {
            // Simultaneous open: the SYN leaves again, now with an ACK. Its text comes again.
            self.state = TcpState::SynReceived;
            self.scoreboard.first_is_lost(1);
            self.is_retransmit_forced = true;
        }
    }

    /// Sends the SYN again behind a RST, which ends the peer's old connection of this name: waiting
    /// is pointless. Only once, since that peer may be a forger. So does Linux.
    fn send_syn_behind_reset(&mut self) {
        if self.counters.retransmissions == 0 {
            self.scoreboard.first_is_lost(1);
        }
    }

    /// Remembers what the peer's SYN says.
    pub(super) fn take_syn(&mut self, config: &TcpConfig, now: Instant, syn: &Segment<'_>) {
        self.rcv = Numbering { initial: syn.seq };
        self.rcv_nxt = DATA_AT;
        self.rcv_acked = SYN_AT;
        self.rcv_adv = DATA_AT + u64::from(self.receive_capacity.min(u32::from(u16::MAX)));
        let options = &syn.options;
        self.snd_wnd = u64::from(syn.window); // Not scaled in a SYN: RFC 7323 2.2.
        self.snd_wnd_max = self.snd_wnd;
        let peer_mss = options.mss.unwrap_or(config.mss_default);
        self.snd_mss = peer_mss.min(config.mss).max(SND_MSS_MIN);
        self.has_sack = config.has_sack && options.sack_permitted;
        // RFC 7323 2.2: both scale, or neither does.
        if let (Some(shift), true) = (options.window_scale, config.has_window_scale) {
            self.is_scaling = true;
            self.snd_shift = shift;
            self.rcv_shift = config.receive_shift();
        }
        self.timestamps = match (self.timestamps, options.timestamps) {
            (Some(clock), Some((value, _))) => {
                Some(Clock { recent: value, recent_at: now, ..clock })
            }
            _ => None,
        };
        // RFC 3168 6.1.1: the answer has one of the two flags that ask. A SYN that was lost has
        // left again without: something on the way may not like it.
        self.marks.is_on = config.has_ecn
            && syn.flags.contains(Flags::ECE)
            && syn.flags.contains(Flags::CWR) == syn.ack.is_none()
            && self.counters.retransmissions == 0;
        let segments = config.initial_window_segments;
        self.congestion = Congestion::new(config.congestion, self.mss() as u16, segments);
    }

    /// Enters ESTABLISHED: the SYN is acknowledged.
    fn complete_handshake(&mut self, config: &TcpConfig, now: Instant, ack: u64) {
        let was_lost = self.counters.retransmissions > 0;
        let arrival = self.acknowledge_flight(now, ack);
        match arrival.first_sent_at {
            Some(sent_at) if !was_lost => {
                self.round_trip.sample(now, now.since(sent_at), &config.rto);
                self.is_trip_measured = true;
            }
            _ if was_lost && self.counters.timeouts > 0 => {
                self.round_trip.restart_after_lost_syn();
                self.congestion.syn_was_lost();
            }
            _ => {}
        }
        self.state = TcpState::Established;
        self.phase = super::Phase::Open;
        self.is_retransmit_forced = false;
        self.probe = Probe::Idle;
        self.rto_at = Instant::NEVER;
        self.progress_at = now;
        self.arm_idle(config, now);
    }

    /// RFC 9293 3.10.7.4
    fn receive_synchronized(
        &mut self,
        config: &TcpConfig,
        now: Instant,
        segment: &Segment<'_>,
        ecn: Ecn,
        receipt: &mut Receipt,
    ) {
        let is_reset = segment.flags.contains(Flags::RST);
        let seq = self.rcv.position(segment.seq, self.rcv_nxt);
        if !is_reset && !self.is_timestamp_right(config, now, segment) {
            return;
        }
        if is_reset {
            self.receive_reset(config, now, seq);
            return;
        }
        let mut arriving = Arriving {
            segment,
            start: seq,
            payload_from: 0,
            payload_to: segment.payload.len(),
            has_fin: segment.flags.contains(Flags::FIN),
            seq,
        };
        let is_syn = segment.flags.contains(Flags::SYN);
        if self.state == TcpState::SynReceived && is_syn && seq == SYN_AT {
            self.receive_syn_again(config, now, segment, receipt);
            return;
        }
        // First: is it in the window?
        if !self.is_acceptable(&arriving) {
            self.answer_unacceptable(config, now, &arriving);
            return;
        }
        // Fourth: a SYN in the window. RFC 5961 4.2; but a listener's connection that is not open
        // yet returns to LISTEN.
        if is_syn {
            if self.state == TcpState::SynReceived && self.is_passive {
                self.finish_with(End::Reset);
            } else {
                self.challenge(config, now);
            }
            return;
        }
        self.arm_idle(config, now);
        if self.marks.is_on {
            self.take_mark(segment, ecn);
        }
        self.trim(&mut arriving);
        // Fifth: a segment without an ACK is dropped.
        let Some(ack) = segment.ack else {
            return;
        };
        let ack = self.snd.position(ack, self.scoreboard.start());
        if self.state == TcpState::SynReceived {
            if ack <= self.scoreboard.start() || ack > self.scoreboard.end() {
                self.reset_due = segment.ack;
                return;
            }
            self.complete_handshake(config, now, ack);
            self.snd_wnd = u64::from(segment.window) << self.snd_shift;
            self.snd_wnd_max = self.snd_wnd;
            (self.snd_wl1, self.snd_wl2) = (seq, ack);
            receipt.events |= TcpEvents::CONNECTED;
        } else if !self.take_ack(config, now, ack, &arriving, receipt) {
            return;
        }
        // Behind the check of the ACK, so that a forger has to guess that as well.
        self.remember_timestamp(now, segment, seq);
        if self.state == TcpState::Closed {
            return;
        }
        // Sixth: there is no urgent mode, urgent data is like any other.
        self.take_text(config, now, &arriving, receipt);
        self.take_fin(&arriving, receipt);
    }

    /// Handles a repeated SYN: the peer did not see the answer, or this is the second half of a
    /// simultaneous open. RFC 9293 3.5, figure 8
    fn receive_syn_again(
        &mut self,
        config: &TcpConfig,
        now: Instant,
        segment: &Segment<'_>,
        receipt: &mut Receipt,
    ) {
        let Some(ack) = segment.ack else {
            self.scoreboard.first_is_lost(1);
            self.is_retransmit_forced = true;
            return;
        };
        let ack = self.snd.position(ack, self.scoreboard.start());
        if ack <= self.scoreboard.start() || ack > self.scoreboard.end() {
            self.reset_due = segment.ack;
            return;
        }
        self.complete_handshake(config, now, ack);
        self.snd_wnd = u64::from(segment.window);
        self.snd_wnd_max = self.snd_wnd;
        (self.snd_wl1, self.snd_wl2) = (SYN_AT, ack);
        receipt.events |= TcpEvents::CONNECTED;
        self.is_ack_due = true;
    }

    // ---- checks

    /// RFC 7323 5.3 R1, and 3.2 for segments without one. Returns false if the segment is dropped.
    fn is_timestamp_right(
        &mut self,
        config: &TcpConfig,
        now: Instant,
        segment: &Segment<'_>,
    ) -> bool {
        let Some(clock) = self.timestamps else {
            return true;
        };
        let Some((value, _)) = segment.options.timestamps else {
            self.counters.missing_timestamps += 1;
            return false;
        };
        let is_old = (value.wrapping_sub(clock.recent) as i32) < 0;
        if is_old && now.since(clock.recent_at) <= TS_RECENT_AGE_MAX {
            self.counters.paws_drops += 1;
            self.answer(config, now, segment);
            return false;
        }
        true
    }

    /// RFC 7323 4.3 (2)
    fn remember_timestamp(&mut self, now: Instant, segment: &Segment<'_>, seq: u64) {
        if let Some(clock) = &mut self.timestamps
            && let Some((value, _)) = segment.options.timestamps
            && seq <= self.rcv_acked
        {
            clock.recent = value;
            clock.recent_at = now;
        }
    }

    /// Handles a RST. RFC 5961 3.2
    fn receive_reset(&mut self, config: &TcpConfig, now: Instant, seq: u64) {
        if seq == self.rcv_nxt {
            let is_refused = self.state == TcpState::SynReceived && !self.is_passive;
            self.finish_with(if is_refused { End::Refused } else { End::Reset });
        } else if seq > self.rcv_nxt && seq < self.rcv_adv {
            self.challenge(config, now);
        } else {
            self.counters.unacceptable += 1;
        }
    }

    /// The four cases of RFC 9293 3.4, table 6.
    fn is_acceptable(&self, arriving: &Arriving<'_>) -> bool {
        let len = u64::from(arriving.segment.seq_len());
        let start = arriving.start;
        let nxt = self.rcv_nxt;
        let window = nxt..self.rcv_adv.max(nxt);
        match (len, window.is_empty()) {
            // A peer that probes a closed window: its ACK counts, its text is cut off. So does the
            // ACK of one that takes the byte of its probe for sent.
            (_, true) => start == nxt || (len == 0 && start == nxt + 1),
            // The right edge is valid too, as in Linux: a peer that has filled the window has no
            // lower number for its ACKs, and two such ends would drop all of them.
            (0, false) => window.contains(&start) || start == window.end,
            (_, false) => window.contains(&start) || window.contains(&(start + len - 1)),
        }
    }

    /// Answers and drops a segment. RFC 9293 3.10.7.4, first
    fn answer_unacceptable(&mut self, config: &TcpConfig, now: Instant, arriving: &Arriving<'_>) {
        self.counters.unacceptable += 1;
        let segment = arriving.segment;
        let end = arriving.start + segment.payload.len() as u64;
        if !segment.payload.is_empty() && end <= self.rcv_nxt {
            self.dsack = Some((arriving.start, end));
        }
        if segment.flags.contains(Flags::SYN) {
            self.challenge(config, now);
            return;
        }
        self.arm_idle(config, now);
        self.answer(config, now, segment);
    }

    /// Acknowledges with the current numbers, unless an empty segment was answered a moment ago:
    /// two ends that reject each other's empty segments would never stop answering.
    fn answer(&mut self, config: &TcpConfig, now: Instant, segment: &Segment<'_>) {
        if segment.seq_len() == 0 {
            if now < self.out_of_window_ack_at {
                return;
            }
            self.out_of_window_ack_at = now + config.out_of_window_ack_interval;
        }
        self.is_ack_due = true;
    }

    /// RFC 5961 3 to 5: answers a segment that may be forged with the current numbers; a genuine
    /// peer can then reply with the right ones.
    pub(super) fn challenge(&mut self, config: &TcpConfig, now: Instant) {
        if now.since(self.challenges_since) >= CHALLENGE_PERIOD {
            self.challenges_since = now;
            self.challenges = 0;
        }
        if self.challenges >= config.challenge_acks_max {
            self.counters.challenge_acks_omitted += 1;
            return;
        }
        self.challenges += 1;
        self.counters.challenge_acks += 1;
        self.is_ack_due = true;
    }

    /// Trims bytes received before, and bytes beyond the window.
    fn trim(&mut self, arriving: &mut Arriving<'_>) {
        let text_len = (arriving.payload_to - arriving.payload_from) as u64;
        let window_end = self.rcv_adv.max(self.rcv_nxt);
        let text_end = arriving.start + text_len;
        let seq_len = text_len + u64::from(arriving.has_fin);
        if seq_len > 0 && arriving.start + seq_len > window_end {
            let over = text_end.saturating_sub(window_end).min(text_len) as usize;
            arriving.payload_to -= over;
            arriving.has_fin = false;
            self.is_ack_due = true;
        }
        if arriving.start < self.rcv_nxt {
            let known = (self.rcv_nxt - arriving.start) as usize;
            let known = known.min(arriving.payload_to - arriving.payload_from);
            if known > 0 {
                self.dsack = Some((arriving.start, arriving.start + known as u64));
                self.is_ack_due = true;
            }
            arriving.payload_from += known;
            arriving.start += known as u64;
        }
    }

    /// RFC 3168 6.1.3: echoes a mark on data until the peer confirms the echo (CWR).
    fn take_mark(&mut self, segment: &Segment<'_>, ecn: Ecn) {
        if segment.flags.contains(Flags::CWR) {
            self.marks.is_echo_due = false;
        }
        if ecn == Ecn::Congested && !segment.payload.is_empty() {
            self.is_ack_due |= !self.marks.is_echo_due;
            self.marks.is_echo_due = true;
        }
    }

    // ---- text and FIN

    /// RFC 9293 3.10.7.4, seventh.
    fn take_text(
        &mut self,
        config: &TcpConfig,
        now: Instant,
        arriving: &Arriving<'_>,
        receipt: &mut Receipt,
    ) {
        // Data behind the peer's FIN is ignored.
        let fin = self.fin_position().unwrap_or(u64::MAX);
        let len_max = fin.saturating_sub(arriving.start);
        let len = ((arriving.payload_to - arriving.payload_from) as u64).min(len_max) as usize;
        let range = arriving.payload_from..arriving.payload_from + len;
        if range.is_empty() || !self.state.is_receiving() {
            return;
        }
        if self.is_read_shut {
            // RFC 9293 3.6.1, SHLD-3: the data is lost, and a RST tells the peer.
            self.abort();
            return;
        }
        let end = arriving.start + len as u64;
        let start = arriving.start;
        // A merged segment is longer than the segments on the wire.
        let options = if self.timestamps.is_some() { 12 } else { 0 };
        let longest = usize::from(config.mss) - options;
        self.rcv_mss = self.rcv_mss.max(len.min(longest) as u16);
        let is_short = len < usize::from(self.rcv_mss);
        self.short_segments = self.short_segments.saturating_add(is_short.into());
        self.widen_window(config, now);
        if start <= self.rcv_nxt {
            // A filled hole is acknowledged at once: RFC 5681 4.2.
            self.is_ack_due |= !self.reassembly.is_empty();
            self.rcv_nxt = self.reassembly.advance(end).min(fin);
            receipt.events |= TcpEvents::READABLE;
        } else {
            // A new hole is acknowledged at once, too.
            self.is_ack_due = true;
            match self.reassembly.insert(start, end) {
                Inserted::New => {}
                Inserted::Duplicate => {
                    self.dsack = Some((start, end));
                    return;
                }
                Inserted::Refused => return,
            }
        }
        receipt.placed = Some(Placed { offset: start - DATA_AT, range });
        self.delay_ack(config, now);
    }

    /// Dynamic right-sizing: what was read in a round trip is what the peer could send in one, so
    /// twice as much does not hold it back. <https://public.lanl.gov/radiant/pubs/drs/sc2001.pdf>
    fn widen_window(&mut self, config: &TcpConfig, now: Instant) {
        let Some(srtt) = self.round_trip.srtt() else {
            return;
        };
        if now < self.round_at + srtt {
            return;
        }
        let read = self.rcv_read - self.round_read;
        (self.round_at, self.round_read) = (now, self.rcv_read);
        let wanted = (2 * read).min(u64::from(config.receive_limit())) as u32;
        if self.is_scaling {
            self.receive_capacity = self.receive_capacity.max(wanted);
        }
    }

    /// RFC 9293 3.8.6.3: more than a full segment is acknowledged at once, and each byte within
    /// less than half a second.
    fn delay_ack(&mut self, config: &TcpConfig, now: Instant) {
        let unacknowledged = self.rcv_nxt.saturating_sub(self.rcv_acked);
        if unacknowledged > u64::from(self.rcv_mss) || self.quick_acks > 0 {
            self.is_ack_due = true;
        } else if self.ack_at == Instant::NEVER {
            self.ack_at = now + config.ack_delay;
        }
    }

    /// RFC 9293 3.10.7.4, eighth: once all before it has come.
    fn take_fin(&mut self, arriving: &Arriving<'_>, receipt: &mut Receipt) {
        if self.state == TcpState::Closed {
            return;
        }
        let text_len = (arriving.payload_to - arriving.payload_from) as u64;
        let position = arriving.start + text_len;
        if arriving.has_fin && self.rcv_fin.is_none() && position >= self.rcv_nxt {
            self.rcv_fin = NonZeroU64::new(position);
        }
        if self.fin_position() != Some(self.rcv_nxt) {
            // A repeated FIN is answered again: RFC 9293 3.10.7.4 for CLOSE-WAIT and later.
            self.is_ack_due |= arriving.has_fin;
            if arriving.has_fin && self.fin_position() == Some(position) && position > self.rcv_nxt
            {
                // A FIN has a sequence number, so it is reported like data: the peer sees which
                // data was lost.
                self.reassembly.insert(position, position + 1);
            }
            return;
        }
        self.rcv_nxt += 1;
        self.rcv_adv = self.rcv_adv.max(self.rcv_nxt);
        self.is_ack_due = true;
        receipt.events |= TcpEvents::PEER_CLOSED;
        match self.state {
            TcpState::Established => self.state = TcpState::CloseWait,
            TcpState::FinWait1 if self.is_fin_acknowledged() => self.enter_time_wait(),
            TcpState::FinWait1 => self.state = TcpState::Closing,
            TcpState::FinWait2 => self.enter_time_wait(),
            _ => {}
        }
    }

    /// The owner keeps the name for a while: [`TcpEvents::TIME_WAIT`].
    pub(super) fn enter_time_wait(&mut self) {
        self.state = TcpState::TimeWait;
        self.end = Some(End::Closed);
        self.disarm();
    }
}
