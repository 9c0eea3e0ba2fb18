//! Departing segments.
//!
//! ```text
//!   a RST that is owed → SYN → lost data → tail loss probe → new data, FIN → window probe
//!     → keep-alive → ACK
//! ```
//!
//! The owner calls [`Connection::transmit`] until it returns nothing. Any segment carries the
//! acknowledgement, so a bare one comes last.

use super::super::config::TcpConfig;
use super::super::position::{DATA_AT, SYN_AT};
use super::super::state::TcpState;
use super::{Connection, Outgoing, Phase, Probe, Trial, WindowProbe};
use crate::time::Instant;
use crate::wire::Ecn;
use crate::wire::tcp::{Flags, SackBlock, SackBlocks, Segment, SeqNumber, TcpOptions};

impl Connection {
    /// The next segment, if one is due. `len_max` is the longest payload that the device cuts into
    /// segments; 0 if it does not.
    pub fn transmit(&mut self, config: &TcpConfig, now: Instant, len_max: u32) -> Option<Outgoing> {
        if let Some(seq) = self.reset_due.take() {
            // RFC 9293 3.10.7.3: answers an invalid segment with an ACK.
            return Some(self.reset(seq, None));
        }
        if self.is_abort_due {
            self.is_abort_due = false;
            let seq = self.snd.seq(self.scoreboard.end());
            return Some(self.reset(seq, Some(self.rcv.seq(self.rcv_nxt))));
        }
        match self.state {
            TcpState::Closed | TcpState::TimeWait => return None,
            TcpState::SynSent | TcpState::SynReceived => return self.transmit_syn(config, now),
            _ => {}
        }
        let outgoing = self.next_due(config, now, len_max)?;
        self.after_transmit(config, now, &outgoing);
        Some(outgoing)
    }

    /// Checks cheaply if a kind may be due before it is built: mostly one segment is due, then
    /// none.
    fn next_due(&mut self, config: &TcpConfig, now: Instant, len_max: u32) -> Option<Outgoing> {
        if self.scoreboard.lost_len() > 0
            && let Some(again) = self.transmit_lost(now)
        {
            return Some(again);
        }
        if self.probe == Probe::Due
            && let Some(probe) = self.transmit_probe(now)
        {
            return Some(probe);
        }
        if let Some(new) = self.transmit_new(config, now, len_max) {
            return Some(new);
        }
        if self.window_probe == WindowProbe::Due
            && let Some(probe) = self.transmit_window_probe(now)
        {
            return Some(probe);
        }
        if self.is_keep_alive_due {
            return Some(self.keep_alive_segment(now));
        }
        self.is_ack_due.then(|| self.bare_ack(now))
    }

    fn after_transmit(&mut self, config: &TcpConfig, now: Instant, outgoing: &Outgoing) {
        let has_seq = outgoing.len > 0 || outgoing.segment.flags.contains(Flags::FIN);
        if !has_seq {
            return;
        }
        self.spread_until = match self.rate() {
            Some(rate) => rate.after(now, self.spread_until, outgoing.len.into()),
            None => now,
        };
        if self.persist_at != Instant::NEVER {
            return; // The window is closed: that timer runs.
        }
        // RFC 6298 5, RFC 6675 6: a retransmission must not be repeated within less than a
        // time-out. Without SACK, the holes behind it do not put the time-out off: RFC 6582 3.2.
        let is_first = outgoing.segment.seq == self.snd.seq(self.scoreboard.start());
        let is_first_again = outgoing.is_retransmission && is_first;
        let is_patient = self.has_sack || self.partial_acks == 0;
        if self.rto_at == Instant::NEVER || (is_first_again && is_patient) {
            if !outgoing.is_retransmission {
                self.progress_at = now;
            }
            self.arm_retransmission(config, now); // RFC 6298 5.1
        }
        if !outgoing.is_retransmission {
            self.arm_probe(now);
        }
    }

    // ---- the handshake

    fn transmit_syn(&mut self, config: &TcpConfig, now: Instant) -> Option<Outgoing> {
        let is_first = self.scoreboard.is_empty();
        if !is_first && self.scoreboard.lost_len() == 0 {
            return self.is_ack_due.then(|| self.bare_ack(now));
        }
        if is_first {
            self.scoreboard.send(now, 1);
            self.progress_at = now;
        } else {
            self.scoreboard.send_again(now, SYN_AT, 1);
            self.counters.retransmissions += 1;
        }
        self.is_retransmit_forced = false;
        if self.rto_at == Instant::NEVER {
            self.arm_retransmission(config, now);
        }
        let is_answer = self.state == TcpState::SynReceived;
        let options = TcpOptions {
            mss: Some(config.mss),
            window_scale: self.offered_scale(config, is_answer),
            sack_permitted: if is_answer { self.has_sack } else { config.has_sack },
            timestamps: self.stamp(now),
            ..TcpOptions::NONE
        };
        let window = self.receive_capacity.min(u32::from(u16::MAX)) as u16;
        self.is_ack_due = false;
        if is_answer {
            self.rcv_acked = self.rcv_nxt;
        }
        self.counters.segments_sent += 1;
        // RFC 3168 6.1.1: both flags ask, one answers.
        let marks = match is_answer {
            true if self.marks.is_on => Flags::ECE,
            false if config.has_ecn && is_first => Flags::ECE | Flags::CWR,
            _ => Flags::NONE,
        };
        let segment = Segment {
            ack: is_answer.then(|| self.rcv.seq(self.rcv_nxt)),
            flags: Flags::SYN | marks,
            window, // Never scaled: RFC 7323 2.2.
            options,
            ..self.empty(self.snd.seq(SYN_AT))
        };
        Some(Outgoing {
            segment,
            offset: 0,
            len: 0,
            mss: self.mss() as u16,
            is_retransmission: !is_first,
            ecn: Ecn::NotCapable,
        })
    }

    /// RFC 7323 2.2: the answer has the option if the SYN had it.
    fn offered_scale(&self, config: &TcpConfig, is_answer: bool) -> Option<u8> {
        if is_answer {
            self.is_scaling.then_some(self.rcv_shift)
        } else {
            config.has_window_scale.then(|| config.receive_shift())
        }
    }

    // ---- data

    /// Returns the next lost segment; lost data leaves before new data. RFC 6675 4, NextSeg (1)
    fn transmit_lost(&mut self, now: Instant) -> Option<Outgoing> {
        let (position, len) = self.scoreboard.next_lost(self.payload_max())?;
        let has_room = self.pipe() + len <= self.congestion.cwnd() && !self.is_on_trial();
        if !has_room && !self.is_retransmit_forced {
            self.limited_until = self.scoreboard.end();
            return None;
        }
        self.is_retransmit_forced = false;
        // The byte of a probe is followed by the data that waited behind it.
        let more = if self.is_repairing && position + len == self.scoreboard.end() {
            self.usable_len().min(self.payload_max() - len)
        } else {
            0
        };
        let outgoing = self.retransmit(now, position, len);
        if more == 0 {
            return Some(outgoing);
        }
        self.scoreboard.send(now, more);
        self.counters.segments_sent -= 1;
        Some(self.segment_of(now, position, len + more, true))
    }

    /// RFC 5682 2.1: no further retransmission until it is known if the time-out was needed.
    pub(super) fn is_on_trial(&self) -> bool {
        matches!(self.phase, Phase::Loss { trial, .. } if trial != Trial::Over)
    }

    fn retransmit(&mut self, now: Instant, position: u64, len: u64) -> Outgoing {
        self.scoreboard.send_again(now, position, len);
        self.counters.retransmissions += 1;
        if let Some(undo) = &mut self.undo {
            undo.unreported = undo.unreported.saturating_add(len as u32);
            let left = self.snd.seq(position);
            let right = self.snd.seq(position + len);
            if left.before(undo.again.0) {
                undo.again.0 = left;
            }
            if right.after(undo.again.1) {
                undo.again.1 = right;
            }
        }
        if let Phase::Recovery { .. } = self.phase {
            self.reduction.on_sent(len);
        }
        if self.scoreboard.lost_len() == 0 {
            self.is_repairing = false;
        }
        self.segment_of(now, position, len, true)
    }

    /// RFC 8985 7.3: new data if there is some and the peer takes it, else the last segment.
    fn transmit_probe(&mut self, now: Instant) -> Option<Outgoing> {
        let end = self.scoreboard.end();
        let new_len = self.usable_len().min(self.payload_max());
        let is_new = new_len > 0 && end < self.queue_end;
        let outgoing = if is_new {
            self.send_new(now, new_len)
        } else {
            let Some((position, len)) = self.scoreboard.last_out(self.payload_max()) else {
                self.probe = Probe::Idle;
                return None;
            };
            self.retransmit(now, position, len)
        };
        self.probe = Probe::Out { end: self.scoreboard.end(), is_retransmission: !is_new };
        self.is_trip_measured = false;
        Some(outgoing)
    }

    /// Bytes of the queue that fit into the peer's window.
    pub(super) fn usable_len(&self) -> u64 {
        let end = self.scoreboard.end();
        let edge = self.scoreboard.start() + self.snd_wnd;
        self.queue_end.min(edge).saturating_sub(end)
    }

    fn transmit_new(&mut self, config: &TcpConfig, now: Instant, len_max: u32) -> Option<Outgoing> {
        self.is_paced = false;
        let end = self.scoreboard.end();
        let waits = self.queue_end.saturating_sub(end);
        let has_fin_left = self.is_fin_queued && end <= self.queue_end;
        if (waits == 0 && !has_fin_left) || self.scoreboard.is_full() {
            return None;
        }
        self.restart_if_idle(config, now);
        let usable = self.usable_len();
        let mut len = usable.min(self.burst_len(len_max));
        if len > 0 {
            len = self.fit_into_cwnd(len)?;
            len = self.fit_into_rate(now, len)?;
        }
        if waits > 0 && !self.may_send(len, waits) {
            // The window is probed if nothing in flight would report that it opens.
            if self.scoreboard.is_empty() {
                self.wait_for_window(config, now);
            }
            return None;
        }
        if waits == 0 && self.snd_wnd <= self.scoreboard.len() {
            // Only the FIN is left, and the window is full.
            if self.scoreboard.is_empty() {
                self.wait_for_window(config, now);
            }
            return None;
        }
        self.persist_at = Instant::NEVER;
        Some(self.send_new(now, len))
    }

    /// The longest payload at once: whole segments, if the device cuts.
    fn burst_len(&self, len_max: u32) -> u64 {
        let mss = self.payload_max();
        (u64::from(len_max) / mss).max(1) * mss
    }

    /// Whole segments that fit into cwnd; one if nothing is in flight.
    fn fit_into_cwnd(&mut self, len: u64) -> Option<u64> {
        let pipe = self.pipe();
        let cwnd = self.congestion.cwnd();
        let usable_cwnd = cwnd.saturating_sub(pipe);
        if len <= usable_cwnd {
            return Some(len);
        }
        self.limited_until = self.scoreboard.end();
        let mss = self.payload_max();
        let whole = usable_cwnd / mss * mss;
        match (whole, pipe) {
            (0, 0) => Some(len.min(mss)),
            (0, _) => None,
            _ => Some(whole),
        }
    }

    /// Returns the part of `len` that may leave now, with a window that is spread over its round
    /// trip. With nothing in flight, everything may.
    fn fit_into_rate(&mut self, now: Instant, len: u64) -> Option<u64> {
        let Some(rate) = self.rate() else {
            return Some(len);
        };
        if !self.scoreboard.is_empty() && rate.waits_until(self.spread_until) > now {
            self.is_paced = true;
            // RFC 9002 7.8: the window may grow if it would be full without pacing.
            let usable_cwnd = self.congestion.cwnd().saturating_sub(self.pipe());
            if self.usable_len() > usable_cwnd {
                self.limited_until = self.scoreboard.end();
            }
            return None;
        }
        Some(len.min(rate.quantum(self.payload_max())))
    }

    /// Sender's silly window avoidance, RFC 9293 3.8.6.2.1, and Nagle's rule, 3.7.4.
    fn may_send(&self, len: u64, waits: u64) -> bool {
        if len == 0 {
            return false;
        }
        let is_full = len >= self.payload_max();
        let is_all = len == waits;
        let is_half_window = len >= self.snd_wnd_max / 2;
        let is_quiet = self.is_nodelay || self.scoreboard.is_empty() || self.is_fin_queued;
        is_full || ((is_all || is_half_window) && is_quiet)
    }

    // Inlined with its callees: otherwise the result is moved in other pieces than it was written
    // in, and the processor waits until those stores have reached the cache.
    #[inline(always)]
    fn send_new(&mut self, now: Instant, len: u64) -> Outgoing {
        let position = self.scoreboard.end();
        let is_last = position + len == self.queue_end;
        let has_fin = self.is_fin_queued && is_last && self.scoreboard.len() + len < self.snd_wnd;
        let seq_len = len + u64::from(has_fin);
        self.scoreboard.send(now, seq_len);
        if let Phase::Recovery { .. } = self.phase {
            self.reduction.on_sent(seq_len);
        }
        if has_fin {
            self.state = match self.state {
                TcpState::Established => TcpState::FinWait1,
                TcpState::CloseWait => TcpState::LastAck,
                state => state,
            };
        }
        if self.is_ack_due || self.ack_at != Instant::NEVER {
            // Data goes both ways: the peer's next acknowledgement can wait for data.
            self.quick_acks = 0;
            self.is_replying = true;
        }
        let mut outgoing = self.segment_of(now, position, seq_len, false);
        // RFC 3168 6.1.5: routers may mark new data only.
        if self.marks.is_on && len > 0 {
            outgoing.ecn = Ecn::Capable0;
            if std::mem::take(&mut self.marks.is_reduction_due) {
                outgoing.segment.flags |= Flags::CWR;
            }
        }
        outgoing
    }

    /// RFC 5681 4.1
    fn restart_if_idle(&mut self, config: &TcpConfig, now: Instant) {
        let is_idle = now.since(self.spread_until) > self.round_trip.rto(&config.rto);
        if self.scoreboard.is_empty() && is_idle {
            let segments = config.initial_window_segments;
            self.congestion.restart_after_idle(segments);
            self.spread_until = now;
        }
    }

    /// RFC 9293 3.8.6.1: one byte, new or again; or all that fits, if silly window avoidance has
    /// held it back for long enough (3.8.6.2.1, 4).
    fn transmit_window_probe(&mut self, now: Instant) -> Option<Outgoing> {
        self.window_probe = WindowProbe::Out;
        if !self.scoreboard.is_empty() {
            self.scoreboard.first_is_lost(1);
            let position = self.scoreboard.start();
            return Some(self.retransmit(now, position, 1));
        }
        let usable = self.usable_len().min(self.payload_max());
        if usable > 0 {
            self.persist_at = Instant::NEVER;
            return Some(self.send_new(now, usable));
        }
        let position = self.scoreboard.end();
        if position < self.queue_end {
            self.scoreboard.send(now, 1);
            return Some(self.segment_of(now, position, 1, false));
        }
        if !self.is_fin_queued || position > self.queue_end {
            self.persist_at = Instant::NEVER;
            return None;
        }
        // Only the FIN is left; it serves as the probe's byte.
        self.scoreboard.send(now, 1);
        self.state = match self.state {
            TcpState::Established => TcpState::FinWait1,
            TcpState::CloseWait => TcpState::LastAck,
            state => state,
        };
        Some(self.segment_of(now, position, 1, false))
    }

    /// A segment that the peer finds wrong, and therefore answers. RFC 9293 3.8.4
    fn keep_alive_segment(&mut self, now: Instant) -> Outgoing {
        self.is_keep_alive_due = false;
        let mut outgoing = self.bare_ack(now);
        outgoing.segment.seq = self.snd.seq(self.scoreboard.end() - 1);
        outgoing
    }

    fn bare_ack(&mut self, now: Instant) -> Outgoing {
        self.quick_acks = self.quick_acks.saturating_sub(1);
        // The number must lie in the peer's window, or the peer ignores the ACK: a probe, or data
        // sent before the window shrank, may lie behind it. A window that was only rounded has not
        // shrunk. RFC 7323 2.4
        let edge = self.scoreboard.start() + self.snd_wnd + u64::from(self.snd_rounded);
        let position = self.scoreboard.end().min(edge);
        self.segment_of(now, position, 0, false)
    }

    // ---- headers

    /// The segment with `len` sequence numbers from `position` on, with acknowledgement and window.
    #[inline(always)]
    fn segment_of(&mut self, now: Instant, position: u64, len: u64, is_again: bool) -> Outgoing {
        let mss = self.payload_max();
        let end = position + len;
        let has_fin = self.is_fin_queued && len > 0 && end > self.queue_end;
        let data_len = len - u64::from(has_fin);
        let mut flags = Flags::NONE;
        if data_len > 0 && position + data_len == self.queue_end {
            flags |= Flags::PSH;
        }
        if has_fin {
            flags |= Flags::FIN;
        }
        if self.marks.is_echo_due {
            flags |= Flags::ECE;
        }
        let options =
            TcpOptions { timestamps: self.stamp(now), sacks: self.blocks(), ..TcpOptions::NONE };
        self.dsack = None;
        self.is_ack_due = false;
        self.short_segments = 0;
        self.ack_at = Instant::NEVER;
        self.rcv_acked = self.rcv_nxt;
        self.counters.segments_sent += 1;
        let segment = Segment {
            ack: Some(self.rcv.seq(self.rcv_nxt)),
            flags,
            window: self.offer_window(),
            options,
            ..self.empty(self.snd.seq(position))
        };
        Outgoing {
            segment,
            offset: position.saturating_sub(DATA_AT),
            len: data_len as u32,
            mss: mss as u16,
            is_retransmission: is_again,
            ecn: Ecn::NotCapable,
        }
    }

    fn reset(&mut self, seq: SeqNumber, ack: Option<SeqNumber>) -> Outgoing {
        self.counters.segments_sent += 1;
        Outgoing {
            segment: Segment { ack, flags: Flags::RST, ..self.empty(seq) },
            offset: 0,
            len: 0,
            mss: self.snd_mss,
            is_retransmission: false,
            ecn: Ecn::NotCapable,
        }
    }

    fn empty(&self, seq: SeqNumber) -> Segment<'static> {
        Segment {
            src_port: self.local_port,
            dst_port: self.remote_port,
            seq,
            ack: None,
            flags: Flags::NONE,
            window: 0,
            urgent: 0,
            options: TcpOptions::NONE,
            payload: &[],
        }
    }

    /// The window as it stands in the header. Its right edge moves by a segment or half of the
    /// buffer at least (RFC 9293 3.8.6.2.2), and never back, but for what the shift rounds off
    /// (RFC 7323 2.4).
    fn offer_window(&mut self) -> u16 {
        let capacity = u64::from(self.receive_capacity);
        let step = u64::from(self.rcv_mss).min(capacity / 2);
        let edge = self.rcv_read + capacity;
        let edge = if edge >= self.rcv_adv + step { edge } else { self.rcv_adv };
        let window = edge.saturating_sub(self.rcv_nxt) >> self.rcv_shift;
        let field = window.min(u64::from(u16::MAX));
        self.rcv_adv = self.rcv_adv.max(self.rcv_nxt + (field << self.rcv_shift));
        field as u16
    }

    /// TSval and TSecr. RFC 7323 3.2
    fn stamp(&self, now: Instant) -> Option<(u32, u32)> {
        let clock = self.timestamps.as_ref()?;
        let value = (now.as_millis() as u32).wrapping_add(clock.offset);
        Some((value, clock.recent))
    }

    fn has_blocks(&self) -> bool {
        self.has_sack && (self.dsack.is_some() || !self.reassembly.is_empty())
    }

    /// RFC 2018 4, RFC 2883 4: duplicates first, then the most recent blocks.
    fn blocks(&self) -> SackBlocks {
        let mut blocks = SackBlocks::NONE;
        if !self.has_blocks() {
            return blocks;
        }
        let count_max = match self.timestamps {
            Some(_) => SackBlocks::COUNT_MAX_WITH_TIMESTAMPS,
            None => SackBlocks::COUNT_MAX,
        };
        let mut around = None;
        if let Some((left, right)) = self.dsack {
            let block =
                |(left, right)| SackBlock { left: self.rcv.seq(left), right: self.rcv.seq(right) };
            blocks.push(block((left, right)));
            around = self.reassembly.containing(left, right);
            if let Some(around) = around {
                blocks.push(block(around));
            }
        }
        self.reassembly.report(self.rcv, &mut blocks, count_max, around);
        blocks
    }

    /// Payload of the next segment: what the path takes, less the options that it will have.
    /// RFC 9293 3.7.1, MUST-16
    fn payload_max(&self) -> u64 {
        if !self.has_blocks() {
            return self.mss();
        }
        let blocks = self.blocks();
        self.mss() - (4 + 8 * blocks.as_slice().len() as u64)
    }
}
