//! Deadlines, and the action at each.

use std::time::Duration;

use super::super::config::{KeepAlive, TcpConfig};
use super::super::state::{End, TcpState};
use super::{Connection, Phase, Probe, TcpEvents, Trial, Trouble, WindowProbe};
use crate::time::Instant;

/// Two ticks of a shard's clock: a probe must not leave in the very tick in which the
/// acknowledgement would have come.
const PROBE_WAIT_MIN: Duration = Duration::from_millis(2);

/// Longest time for which the peer delays its acknowledgements. RFC 8985 7.2 (TLP.max_ack_delay)
const PEER_ACK_DELAY_MAX: Duration = Duration::from_millis(200);

/// A closed window is probed with pauses that double up to this, and up to half of the user
/// time-out. RFC 9293 3.8.6.1
const PERSIST_MAX: Duration = Duration::from_secs(60);

/// R1: number of unanswered retransmissions that are reported as trouble. RFC 9293 3.8.3, SHLD-10
const TROUBLE_BACK_OFFS: u8 = 3;

impl Connection {
    /// Time of the next call of [`Connection::expire`].
    pub fn deadline(&self) -> Instant {
        let early = self.rto_at.min(self.probe_at).min(self.reorder_at);
        let late = self.persist_at.min(self.idle_at).min(self.close_at);
        early.min(late).min(self.ack_at).min(self.paced_until())
    }

    /// Time at which paced data may leave, with the next [`Connection::transmit`].
    fn paced_until(&self) -> Instant {
        if !self.is_paced {
            return Instant::NEVER;
        }
        (self.rate()).map_or(Instant::NEVER, |rate| rate.waits_until(self.spread_until))
    }

    /// Handles due deadlines. Due segments leave with the next [`Connection::transmit`].
    pub fn expire(&mut self, config: &TcpConfig, now: Instant) -> TcpEvents {
        let state_before = self.state;
        let mut events = TcpEvents::NOTHING;
        if self.ack_at <= now {
            self.ack_at = Instant::NEVER;
            self.is_ack_due = true;
        }
        if self.reorder_at <= now {
            self.on_reordering_timeout(now);
        }
        if self.probe_at <= now {
            self.on_probe_timeout(config, now);
        }
        if self.rto_at <= now {
            events |= self.on_retransmission_timeout(config, now);
        }
        if self.persist_at <= now {
            self.on_persist_timeout(config, now);
        }
        if self.idle_at <= now {
            self.on_idle(config, now);
        }
        if self.close_at <= now {
            self.finish_with(End::Closed);
        }
        if self.state == TcpState::Closed && state_before != TcpState::Closed {
            events |= TcpEvents::ENDED;
        }
        events
    }

    pub(super) fn disarm(&mut self) {
        self.rto_at = Instant::NEVER;
        self.probe_at = Instant::NEVER;
        self.reorder_at = Instant::NEVER;
        self.persist_at = Instant::NEVER;
        self.ack_at = Instant::NEVER;
        self.idle_at = Instant::NEVER;
        self.close_at = Instant::NEVER;
        self.is_paced = false;
    }

    // ---- retransmission: RFC 6298 5

    fn on_retransmission_timeout(&mut self, config: &TcpConfig, now: Instant) -> TcpEvents {
        self.rto_at = Instant::NEVER;
        if self.scoreboard.is_empty() {
            return TcpEvents::NOTHING;
        }
        if self.snd_wnd == 0 && self.state.is_synchronized() {
            // The peer has closed its window below the data in flight, which is an answer. The
            // window is probed as if nothing were in flight: RFC 9293 3.8.6, MUST-35.
            self.wait_for_window(config, now);
            return TcpEvents::NOTHING;
        }
        if self.give_up_if_due(config, now) {
            return TcpEvents::NOTHING;
        }
        self.counters.timeouts += 1;
        let is_first = !matches!(self.phase, Phase::Loss { .. });
        // RFC 5681 3.1 (4): the threshold falls once for each segment. It is the same segment until
        // snd_una moves, which ends the backing off; reports of later data do not.
        let is_another = is_first || self.round_trip.back_offs() == 0;
        if is_another && self.state.is_synchronized() {
            self.remember_for_undo(now);
            self.congestion.on_loss(self.scoreboard.len());
            self.window_was_reduced();
        }
        let about = self.detection(now);
        if self.state.is_synchronized() {
            self.congestion.on_timeout();
            self.phase = Phase::Loss {
                end: self.scoreboard.end(),
                trial: match self.undo {
                    Some(_) if is_first && self.timestamps.is_none() => Trial::First,
                    _ => Trial::Over,
                },
            };
        }
        // The peer may have dropped data that it has reported. RFC 2018 5, 8
        let is_reneged = !is_first || self.scoreboard.is_reneged();
        if is_reneged {
            self.scoreboard.forget_sacks();
        }
        let is_all = !self.has_sack || is_reneged;
        self.scoreboard.timed_out(&about, is_all);
        self.recover = self.scoreboard.end();
        self.is_repairing = false;
        self.dup_acks = 0;
        self.is_retransmit_forced = true;
        self.round_trip.back_off();
        self.probe = Probe::Idle;
        self.probe_at = Instant::NEVER;
        self.reorder_at = Instant::NEVER;
        self.arm_retransmission(config, now);
        if self.round_trip.back_offs() == TROUBLE_BACK_OFFS {
            self.meet(Trouble::Silence)
        } else {
            TcpEvents::NOTHING
        }
    }

    /// Ends the connection if its peer has been silent for too long; true if so. RFC 9293 3.8.3, R2
    fn give_up_if_due(&mut self, config: &TcpConfig, now: Instant) -> bool {
        let is_over = now >= self.progress_at + self.patience(config);
        if is_over {
            self.finish_with(End::TimedOut);
        }
        is_over
    }

    pub(super) fn patience(&self, config: &TcpConfig) -> Duration {
        match self.state {
            TcpState::SynSent => config.connect_timeout,
            TcpState::SynReceived => config.accept_timeout,
            _ if self.user_timeout_s > 0 => Duration::from_secs(self.user_timeout_s.into()),
            _ => config.user_timeout,
        }
    }

    /// Arms the timer while data is in flight, but not beyond the user time-out.
    pub(super) fn arm_retransmission(&mut self, config: &TcpConfig, now: Instant) {
        let by_rto = now + self.round_trip.rto(&config.rto);
        let by_patience = self.progress_at + self.patience(config);
        self.rto_at = by_rto.min(by_patience.max(now));
    }

    // ---- RACK and the tail loss probe: RFC 8985

    fn on_reordering_timeout(&mut self, now: Instant) {
        let flight_len = self.scoreboard.len();
        self.find_losses(now);
        if self.scoreboard.lost_len() > 0 && self.phase == Phase::Open && !self.is_repairing {
            self.enter_recovery(now, flight_len);
        }
    }

    /// RFC 8985 7.2: a probe when an acknowledgement is overdue, long before the time-out.
    pub(super) fn arm_probe(&mut self, now: Instant) {
        self.probe_at = Instant::NEVER;
        let may_probe = self.has_sack
            && self.phase == Phase::Open
            && self.probe == Probe::Idle
            && self.state.is_synchronized()
            && self.scoreboard.sacked_len() == 0
            && !self.scoreboard.is_empty();
        if !may_probe {
            return;
        }
        // Without a sample there is no probe.
        let Some(srtt) = self.round_trip.srtt() else {
            return;
        };
        let mut wait = (srtt * 2).max(PROBE_WAIT_MIN);
        if self.scoreboard.len() <= self.mss() {
            wait += PEER_ACK_DELAY_MAX;
        }
        self.probe_at = (now + wait).min(self.rto_at);
    }

    fn on_probe_timeout(&mut self, config: &TcpConfig, now: Instant) {
        self.probe_at = Instant::NEVER;
        if self.scoreboard.is_empty() {
            return;
        }
        // RFC 8985 7.3: if each segment left twice before its acknowledgement, none would show how
        // long the round trip has become.
        if self.is_trip_measured {
            self.probe = Probe::Due;
            self.counters.tail_loss_probes += 1;
        }
        // The time-out counts from now, even if no probe leaves.
        self.arm_retransmission(config, now);
    }

    // ---- closed windows: RFC 9293 3.8.6.1

    /// Begins to wait for the window, which holds back the next data. The user time-out counts from
    /// now: all was acknowledged, or the peer has reported a full buffer. It must not restart again
    /// and again once the application has closed: the close has started it.
    pub(super) fn wait_for_window(&mut self, config: &TcpConfig, now: Instant) {
        if self.persist_at == Instant::NEVER && !self.is_read_shut {
            self.progress_at = now;
        }
        self.arm_persist(config, now);
    }

    /// Arms the persist timer while the window holds back data and nothing is in flight whose
    /// acknowledgement would report a larger window.
    pub(super) fn arm_persist(&mut self, config: &TcpConfig, now: Instant) {
        if self.persist_at != Instant::NEVER {
            return;
        }
        let factor = 1_u32 << self.persist_backoff.min(16);
        let wait = self.round_trip.rto(&config.rto).saturating_mul(factor);
        // A peer that answers is asked again before its silence could seem too long.
        let patience = self.patience(config);
        let by_probe = now + wait.min(PERSIST_MAX).min(patience / 2);
        // A silent peer is given up when its time is over, not at the next probe.
        let by_patience = self.progress_at + patience;
        self.persist_at = by_probe.min(by_patience.max(now));
    }

    fn on_persist_timeout(&mut self, config: &TcpConfig, now: Instant) {
        self.persist_at = Instant::NEVER;
        if self.give_up_if_due(config, now) {
            return;
        }
        self.window_probe = WindowProbe::Due;
        self.persist_backoff = self.persist_backoff.saturating_add(1);
        self.arm_persist(config, now);
    }

    // ---- silence: RFC 9293 3.8.4

    /// Restarts the keep-alive timer: the peer has been heard.
    pub(super) fn arm_idle(&mut self, config: &TcpConfig, now: Instant) {
        self.keep_alive_probes = 0;
        let keep_alive = self.keep_alive(config);
        let keep_alive = keep_alive.filter(|_| self.state.is_synchronized());
        self.idle_at = keep_alive.map_or(Instant::NEVER, |keep| now + keep.idle);
    }

    fn keep_alive(&self, config: &TcpConfig) -> Option<KeepAlive> {
        match self.has_keep_alive {
            None => config.keep_alive,
            Some(is_on) => is_on.then(|| config.keep_alive.unwrap_or_default()),
        }
    }

    fn on_idle(&mut self, config: &TcpConfig, now: Instant) {
        self.idle_at = Instant::NEVER;
        let Some(keep_alive) = self.keep_alive(config) else {
            return;
        };
        // Keep-alives are sent only while no other timer would notice a dead peer. MUST-26
        if !self.scoreboard.is_empty() || self.persist_at != Instant::NEVER {
            self.idle_at = now + keep_alive.interval;
            return;
        }
        if self.keep_alive_probes >= keep_alive.probes_max {
            self.is_abort_due = true;
            self.finish_with(End::TimedOut);
            return;
        }
        self.keep_alive_probes += 1;
        self.is_keep_alive_due = true;
        self.idle_at = now + keep_alive.interval;
    }
}
