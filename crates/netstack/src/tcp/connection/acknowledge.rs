//! Acknowledgement of sent data: RFC 9293 3.10.7.4, fifth, and its later extensions.
//!
//! ```text
//!   ACK, SACK blocks ─▶ scoreboard: arrived, newly lost ─▶ phase ─▶ cwnd
//!
//!            losses                      all before `end` acknowledged
//!   Open ───────────▶ Recovery{end} ───────────────────────────────────▶ Open     RFC 6675, 6582
//!     │                   │  rate reduction brings cwnd to ssthresh                RFC 6937
//!     └── rto ─▶ Loss{end} ◀─┘  slow start from one segment           ──▶ Open     RFC 5681, 6298
//! ```

use std::time::Duration;

use super::super::config::TcpConfig;
use super::super::congestion::RateReduction;
use super::super::scoreboard::{Arrival, DUP_THRESH, Detection, Echoed};
use super::super::state::{End, TcpState};
use super::receive::Arriving;
use super::{Connection, Phase, Probe, Receipt, TcpEvents, Trial, Undo, WindowProbe};
use crate::time::Instant;
use crate::wire::tcp::{Flags, SackBlocks, SeqNumber};

impl Connection {
    /// Processes the ACK; returns false if the segment is to be dropped.
    pub(super) fn take_ack(
        &mut self,
        config: &TcpConfig,
        now: Instant,
        ack: u64,
        arriving: &Arriving<'_>,
        receipt: &mut Receipt,
    ) -> bool {
        let una = self.scoreboard.start();
        if ack > self.scoreboard.end() || ack + self.snd_wnd_max < una {
            // RFC 5961 5.2
            self.challenge(config, now);
            return false;
        }
        let is_window_changed = self.take_window(now, ack, arriving);
        self.take_delivery(config, now, ack, is_window_changed, arriving);
        if ack > una {
            receipt.events |= TcpEvents::RELEASED;
            self.after_progress(config, now);
        }
        true
    }

    /// Updates the window from the latest segment; true if it changed. RFC 9293 3.10.7.4
    fn take_window(&mut self, now: Instant, ack: u64, arriving: &Arriving<'_>) -> bool {
        // Beyond the RFC: a retransmission has old text but a current ACK and window. The previous
        // window, counted from the new ACK, would reach too far.
        let is_news = ack > self.scoreboard.start();
        let is_latest = is_news
            || self.snd_wl1 < arriving.seq
            || (self.snd_wl1 == arriving.seq && self.snd_wl2 <= ack);
        if ack < self.scoreboard.start() || !is_latest {
            return false;
        }
        if self.window_probe == WindowProbe::Out {
            self.window_probe = WindowProbe::Idle;
        }
        let window = u64::from(arriving.segment.window) << self.snd_shift;
        let is_changed = window != self.snd_wnd;
        let is_opened = self.snd_wnd == 0 && window > 0;
        let reached = self.scoreboard.start() + self.snd_wnd + u64::from(self.snd_rounded);
        let taken_back = reached.saturating_sub(ack + window);
        self.snd_rounded = match taken_back >> self.snd_shift {
            0 => taken_back as u16, // The shift is 14 at most.
            _ => 0,
        };
        self.snd_wnd = window;
        self.snd_wnd_max = self.snd_wnd_max.max(window);
        (self.snd_wl1, self.snd_wl2) = (arriving.seq, ack);
        if is_opened && self.persist_at != Instant::NEVER {
            // The byte of a probe was not accepted: it leaves again with the rest.
            self.persist_at = Instant::NEVER;
            self.scoreboard.first_is_lost(u64::MAX - self.scoreboard.start());
            self.is_retransmit_forced = true;
            self.is_repairing = true;
        }
        if self.persist_at != Instant::NEVER && !self.is_read_shut {
            // A peer that answers its probes is alive, however long its window stays closed. RFC
            // 9293 3.8.6.1, MUST-37. But a connection that was closed must end at some time.
            self.progress_at = now;
        }
        is_changed
    }

    /// Acknowledges data in the scoreboard alone.
    pub(super) fn acknowledge_flight(&mut self, now: Instant, ack: u64) -> Arrival {
        let min_rtt = self.round_trip.min_rtt();
        self.scoreboard.acknowledge(now, ack, min_rtt, Echoed::default())
    }

    fn take_delivery(
        &mut self,
        config: &TcpConfig,
        now: Instant,
        ack: u64,
        is_window_changed: bool,
        arriving: &Arriving<'_>,
    ) {
        let una = self.scoreboard.start();
        let was_limited = una < self.limited_until;
        let flight_len = self.scoreboard.len();
        let (echo, echo_rtt) = self.echo_of(now, arriving);
        let min_rtt = self.round_trip.min_rtt();
        let has_duplicate = self.take_duplicate_report(now, ack, arriving);

        let arrival = self.scoreboard.acknowledge(now, ack.max(una), min_rtt, echo);
        let sacked = self.take_sacks(now, ack, has_duplicate, min_rtt, echo, arriving);
        if ack > una {
            let rtt = self.sample_round_trip(config, now, &arrival, echo_rtt);
            let end = self.scoreboard.end();
            self.congestion.on_round_trip(ack, end, rtt, was_limited);
        }
        let mut delivered = arrival.delivered + sacked;
        let is_duplicate = self.is_duplicate(ack, una, is_window_changed, arriving);
        if !self.has_sack {
            delivered = self.count_duplicate_acks(ack, una, is_duplicate);
        }
        self.resolve_probe(ack, una, has_duplicate, arriving);
        self.judge_reduction(ack, una, is_duplicate || sacked > 0, echo);
        self.find_losses(now);
        let has_echo = self.marks.is_on && arriving.segment.flags.contains(Flags::ECE);
        if has_echo {
            self.take_echo_of_mark(ack, flight_len);
        }
        let may_grow = was_limited && !has_echo;
        self.change_phase(now, ack, una, delivered, may_grow, flight_len);
    }

    /// RFC 3168 6.1.2: reduces the window for a mark as for a loss, once in a round trip.
    fn take_echo_of_mark(&mut self, ack: u64, flight_len: u64) {
        if self.phase != Phase::Open || ack <= self.marks.reduced_until {
            return;
        }
        self.counters.marks_echoed += 1;
        self.undo = None;
        self.congestion.on_loss(flight_len);
        self.congestion.end_recovery();
        self.window_was_reduced();
    }

    /// Makes the next new data carry CWR.
    pub(super) fn window_was_reduced(&mut self) {
        self.marks.is_reduction_due = self.marks.is_on;
        self.marks.reduced_until = self.scoreboard.end();
    }

    /// Checks once whether the last reduction of the window was needed, by the peer's timestamps or
    /// by its next acknowledgement.
    fn judge_reduction(&mut self, ack: u64, una: u64, is_duplicate: bool, echo: Echoed) {
        let is_progress = ack > una;
        if self.undo.is_none() || !(is_progress || is_duplicate) {
            return;
        }
        let is_needless = match self.timestamps {
            Some(_) => is_progress && self.is_echo_of_first_try(echo),
            None => self.detect_spurious_time_out(ack, is_progress),
        };
        if !is_progress || self.is_on_trial() {
            return;
        }
        if is_needless {
            self.undo_reduction();
        } else if !self.relies_on_dsacks() {
            self.undo = None;
        }
    }

    fn undo_reduction(&mut self) {
        if let Some(undo) = self.undo.take() {
            self.counters.needless_reductions += 1;
            self.congestion.undo(&undo.window);
            self.phase = Phase::Open;
            self.scoreboard.nothing_is_lost();
        }
    }

    /// True if only duplicates can judge a reduction: timestamps would have done so sooner.
    fn relies_on_dsacks(&self) -> bool {
        self.has_sack && self.timestamps.is_none()
    }

    /// If all retransmitted bytes are reported as duplicates, the first tries were late, not lost.
    /// If others are, or the same again, the network duplicates packets: no proof. RFC 3708 3
    fn judge_duplicate(&mut self, now: Instant, left: SeqNumber, right: SeqNumber) {
        let uses_dsacks = self.relies_on_dsacks();
        let is_on_trial = self.is_on_trial();
        let Some(undo) = self.undo.as_mut().filter(|_| uses_dsacks) else {
            return;
        };
        // The last retransmission has arrived by then.
        let patience = 2 * self.round_trip.srtt().unwrap_or_default();
        let age_ms = (now.as_millis() as u32).wrapping_sub(undo.at_ms);
        let is_late = self.phase == Phase::Open && u128::from(age_ms) > patience.as_millis();
        if is_late || left.before(undo.again.0) || right.after(undo.again.1) {
            if !is_on_trial {
                self.undo = None;
            }
            return;
        }
        undo.again.0 = right;
        undo.unreported = undo.unreported.saturating_sub(right.since(left) as u32);
        if undo.unreported == 0 {
            self.undo_reduction();
        }
    }

    fn recovery_is_over(&mut self, now: Instant) {
        self.scoreboard.end_recovery();
        if let Some(undo) = &mut self.undo {
            undo.at_ms = now.as_millis() as u32;
        }
    }

    /// Eifel: the first progress since a retransmission echoes an earlier time. So the first
    /// transmission has arrived, late. RFC 3522 3.2, RFC 4015 3
    fn is_echo_of_first_try(&self, echo: Echoed) -> bool {
        let echoed = echo.sent_at.zip(self.undo);
        echoed
            .is_some_and(|(at, undo)| ((at.as_millis() as u32).wrapping_sub(undo.at_ms) as i32) < 0)
    }

    /// F-RTO: if the first progress acknowledges all that was retransmitted, new data leaves in
    /// place of old. Further progress then acknowledges data sent before the time-out. RFC 5682 2.1
    fn detect_spurious_time_out(&mut self, ack: u64, is_progress: bool) -> bool {
        let mss = self.mss();
        let may_send_new = self.usable_len() >= mss && self.pipe() + mss <= self.congestion.cwnd();
        let Phase::Loss { end, trial } = &mut self.phase else {
            return false;
        };
        let before = std::mem::replace(trial, Trial::Over);
        let has_all_again = || !self.scoreboard.has_retransmitted();
        match before {
            Trial::First if is_progress && ack < *end && may_send_new && has_all_again() => {
                *trial = Trial::Second;
            }
            Trial::Second if !is_progress => self.congestion.set_cwnd(3 * mss), // Step 3a.
            _ => {}
        }
        before == Trial::Second && is_progress
    }

    /// Remembers the window before it is reduced. Earlier retransmissions may still arrive, so the
    /// echo of their time proves nothing.
    pub(super) fn remember_for_undo(&mut self, now: Instant) {
        let is_first = self.phase == Phase::Open && !self.scoreboard.has_retransmitted();
        self.undo = is_first.then_some(Undo {
            window: self.congestion.before_loss(),
            at_ms: now.as_millis() as u32,
            unreported: 0,
            // An empty range: nothing was retransmitted yet.
            again: (self.snd.seq(self.scoreboard.end()), self.snd.seq(self.scoreboard.start())),
        });
    }

    /// The peer's timestamp echo: the time it stands for, and its age.
    fn echo_of(&self, now: Instant, arriving: &Arriving<'_>) -> (Echoed, Option<Duration>) {
        let (Some(clock), Some((_, echo))) = (self.timestamps, arriving.segment.options.timestamps)
        else {
            return (Echoed::default(), None);
        };
        let now_ms = now.as_millis();
        let age_ms = (now_ms as u32).wrapping_add(clock.offset).wrapping_sub(echo);
        if u64::from(age_ms) > now_ms {
            return (Echoed::default(), None); // Not an echo of a sent timestamp.
        }
        let sent_at = Instant::from_nanos((now_ms - u64::from(age_ms)) * 1_000_000);
        let rtt = Duration::from_millis(u64::from(age_ms));
        (Echoed { sent_at: Some(sent_at) }, Some(rtt))
    }

    /// RFC 6298 3: no sample from retransmitted data, unless timestamps tell which try arrived.
    fn sample_round_trip(
        &mut self,
        config: &TcpConfig,
        now: Instant,
        arrival: &Arrival,
        echo_rtt: Option<Duration>,
    ) -> Option<Duration> {
        let by_time = arrival.first_sent_at.filter(|_| !arrival.has_retransmitted);
        let rtt = by_time.map(|sent_at| now.since(sent_at)).or(echo_rtt);
        match rtt {
            Some(rtt) => {
                self.round_trip.sample(now, rtt, &config.rto);
                self.is_trip_measured = true;
            }
            // RFC 6298 5.7 lets the time-out stay doubled until a sample comes. It must not grow
            // from one loss to the next while data gets through.
            None if arrival.delivered > 0 => self.round_trip.end_back_off(),
            None => {}
        }
        rtt
    }

    /// RFC 2883 4: the first block lies before the ACK, or inside of the second.
    fn take_duplicate_report(&mut self, now: Instant, ack: u64, arriving: &Arriving<'_>) -> bool {
        let blocks = arriving.segment.options.sacks;
        let mut places = blocks.as_slice().iter().map(|block| {
            let left = self.snd.position(block.left, ack);
            (left, self.snd.position(block.right, ack))
        });
        let Some((left, right)) = places.next() else {
            return false;
        };
        let is_inside = |(outer_left, outer_right)| outer_left <= left && right <= outer_right;
        if !self.has_sack
            || left >= right
            || !(right <= ack || places.next().is_some_and(is_inside))
        {
            return false;
        }
        self.scoreboard.duplicate_reported(ack.max(self.scoreboard.start()));
        self.judge_duplicate(now, self.snd.seq(left), self.snd.seq(right));
        true
    }

    fn take_sacks(
        &mut self,
        now: Instant,
        ack: u64,
        has_duplicate: bool,
        min_rtt: Duration,
        echo: Echoed,
        arriving: &Arriving<'_>,
    ) -> u64 {
        if !self.has_sack {
            return 0;
        }
        let blocks = arriving.segment.options.sacks;
        let fresh = blocks.as_slice().iter().skip(usize::from(has_duplicate));
        // In ascending order: the latest stands first, and the others did not come after it.
        // RFC 8985 6.2 step 3
        let mut ascending = [(0, 0); SackBlocks::COUNT_MAX];
        let ascending = &mut ascending[..fresh.len()];
        for (position, block) in ascending.iter_mut().zip(fresh) {
            *position = (self.snd.position(block.left, ack), self.snd.position(block.right, ack));
        }
        ascending.sort_unstable();
        let mut delivered = 0;
        for &mut (left, right) in ascending {
            delivered += self.scoreboard.sack(now, left, right, min_rtt, echo);
        }
        delivered
    }

    /// True for a duplicate acknowledgement. RFC 5681 2
    fn is_duplicate(
        &self,
        ack: u64,
        una: u64,
        is_window_changed: bool,
        arriving: &Arriving<'_>,
    ) -> bool {
        ack == una
            && !self.scoreboard.is_empty()
            && self.snd_wnd > 0 // or it answers a probe of its window
            && !is_window_changed
            && arriving.segment.seq_len() == 0
    }

    /// A peer without SACK: each duplicate acknowledgement is a segment that has left the network.
    /// RFC 5681 3.2, RFC 6582 3.2
    fn count_duplicate_acks(&mut self, ack: u64, una: u64, is_duplicate: bool) -> u64 {
        let mss = self.mss();
        if is_duplicate && !matches!(self.phase, Phase::Loss { .. }) {
            self.dup_acks = self.dup_acks.saturating_add(1);
            let is_third = u64::from(self.dup_acks) == DUP_THRESH;
            // RFC 6582 3.2 (1): not for data that was in flight when the last recovery began.
            if is_third && self.phase == Phase::Open && una > self.recover {
                self.scoreboard.first_is_lost(mss);
            }
            return mss;
        }
        if ack <= una {
            return 0;
        }
        let acked = ack - una;
        let by_duplicates = u64::from(self.dup_acks) * mss;
        self.dup_acks = match self.phase {
            Phase::Recovery { end } if ack < end => {
                // RFC 6582 3.2: a partial acknowledgement. The next hole begins here.
                self.partial_acks = self.partial_acks.saturating_add(1);
                self.scoreboard.first_is_lost(mss);
                self.is_retransmit_forced = true;
                // The lost segment caused no duplicate ACK; the other acknowledged ones did.
                let counted = (acked / mss).saturating_sub(1);
                self.dup_acks.saturating_sub(counted as u16)
            }
            _ => {
                self.partial_acks = 0;
                0
            }
        };
        // `acked` includes the bytes that duplicates have reported.
        acked.saturating_sub(by_duplicates).max(mss.min(acked))
    }

    /// Judges the tail loss probe by an acknowledgement. RFC 8985 7.4.2
    fn resolve_probe(&mut self, ack: u64, una: u64, has_duplicate: bool, arriving: &Arriving<'_>) {
        let Probe::Out { end, is_retransmission } = self.probe else {
            return;
        };
        if ack < end {
            return;
        }
        let is_bare_duplicate = ack == una
            && arriving.segment.seq_len() == 0
            && arriving.segment.options.sacks.is_empty();
        if !is_retransmission || has_duplicate || is_bare_duplicate {
            self.probe = Probe::Idle;
        } else if ack > end {
            // The probe has repaired a loss that nothing else reported.
            self.probe = Probe::Idle;
            // Recovery and a time-out end a probe, and none begins before they are over.
            debug_assert_eq!(self.phase, Phase::Open, "a probe is out");
            self.congestion.on_loss(self.congestion.cwnd());
            self.congestion.end_recovery();
            self.window_was_reduced();
        }
    }

    /// RACK: RFC 8985 6.2
    pub(super) fn find_losses(&mut self, now: Instant) {
        self.reorder_at = Instant::NEVER;
        if !self.has_sack || self.scoreboard.is_empty() {
            return;
        }
        let about = self.detection(now);
        if let Some(wait) = self.scoreboard.detect_losses(&about) {
            self.reorder_at = now + wait;
        }
    }

    pub(super) fn detection(&self, now: Instant) -> Detection {
        Detection {
            now,
            srtt: self.round_trip.srtt().unwrap_or_default(),
            min_rtt: self.round_trip.min_rtt(),
            is_recovering: self.phase != Phase::Open,
            mss: self.mss(),
        }
    }

    fn change_phase(
        &mut self,
        now: Instant,
        ack: u64,
        una: u64,
        delivered: u64,
        was_limited: bool,
        flight_len: u64,
    ) {
        let acked = match self.phase {
            // RFC 3465 2.3: one acknowledgement may stand for all that was held up by the loss.
            Phase::Loss { .. } => ack.saturating_sub(una).min(self.mss()),
            _ => ack.saturating_sub(una),
        };
        match self.phase {
            Phase::Recovery { end } if ack >= end => {
                self.phase = Phase::Open;
                self.congestion.end_recovery();
                self.recovery_is_over(now);
                return; // Rate reduction has counted the acknowledged bytes.
            }
            Phase::Loss { end, .. } if ack >= end => {
                self.phase = Phase::Open;
                self.recovery_is_over(now);
            }
            _ => {}
        }
        if self.phase == Phase::Open && self.scoreboard.lost_len() > 0 && !self.is_repairing {
            self.enter_recovery(now, flight_len);
        }
        match self.phase {
            Phase::Recovery { .. } => self.reduce_rate(delivered),
            _ if acked == 0 => {}
            _ if was_limited => {
                self.congestion.on_ack(now, acked, self.round_trip.srtt());
            }
            _ => self.congestion.on_ack_while_limited_elsewhere(),
        }
    }

    /// RFC 6675 5 (4), RFC 6582 3.2 (2)
    pub(super) fn enter_recovery(&mut self, now: Instant, flight_len: u64) {
        self.counters.fast_recoveries += 1;
        self.remember_for_undo(now);
        self.phase = Phase::Recovery { end: self.scoreboard.end() };
        self.recover = self.scoreboard.end();
        self.partial_acks = 0;
        self.congestion.on_loss(flight_len);
        self.window_was_reduced();
        self.reduction = RateReduction::new(flight_len);
        self.is_retransmit_forced = true;
        // RFC 8985 7.3: no probe in recovery.
        self.probe_at = Instant::NEVER;
        self.probe = Probe::Idle;
    }

    fn reduce_rate(&mut self, delivered: u64) {
        let pipe = self.pipe();
        let ssthresh = self.congestion.ssthresh();
        let mss = self.mss();
        let cwnd = self.reduction.on_delivered(delivered, pipe, ssthresh, mss);
        self.congestion.set_cwnd(cwnd);
    }

    /// Bytes in flight. Without SACK, each duplicate acknowledgement stands for a segment that has
    /// left the network.
    pub(super) fn pipe(&self) -> u64 {
        let left = u64::from(self.dup_acks) * self.mss();
        self.scoreboard.pipe().saturating_sub(left)
    }

    /// Updates timers after snd_una has moved.
    fn after_progress(&mut self, config: &TcpConfig, now: Instant) {
        self.progress_at = now;
        self.trouble = None;
        self.persist_backoff = 0;
        // RFC 6582 3.2 (4), "impatient": without SACK recovery fills one hole in a round trip. If
        // there are many, the time-out is to end it, so only the first of them puts that off.
        let is_patient = self.has_sack || self.partial_acks <= 1;
        if self.scoreboard.is_empty() {
            self.rto_at = Instant::NEVER; // RFC 6298 5.2
        } else if is_patient || self.rto_at == Instant::NEVER {
            self.rto_at = now + self.round_trip.rto(&config.rto); // 5.3
        }
        self.arm_probe(now);
        if !self.is_fin_acknowledged() {
            return;
        }
        match self.state {
            TcpState::FinWait1 => {
                self.state = TcpState::FinWait2;
                if self.is_read_shut {
                    self.close_at = now + config.fin_wait_2_timeout;
                }
            }
            TcpState::Closing => self.enter_time_wait(),
            TcpState::LastAck => self.finish_with(End::Closed),
            _ => {}
        }
    }
}
