//! Arriving segments: finds the connection of each, and treats those that have none.

use std::net::IpAddr;

use super::listener::{Backlog, Listening};
use super::time_wait::{self, Answer};
use super::{FlowId, IN_TIME_WAIT, Shard};
use crate::tcp::secret::{CookieOptions, FourTuple};
use crate::tcp::{Connection, Outgoing, TcpEvents, TcpState};
use crate::time::Instant;
use crate::wire::Ecn;
use crate::wire::tcp::{Flags, Segment, SeqNumber, TcpOptions};

/// Number of flows that are checked for memory to reclaim at the limit.
const RECLAIMS_MAX: usize = 64;

impl Shard {
    /// Takes in a segment from `remote` to `local`. The caller has checked its checksum, that
    /// `local` is an own address and that `remote` is one host's: RFC 9293 3.9.2.3, MUST-63. `ecn`
    /// is from its IP header. Returns what happened to its connection; the owner learns it from
    /// [`Shard::next_event`].
    pub fn receive(
        &mut self,
        now: Instant,
        local: IpAddr,
        remote: IpAddr,
        segment: &Segment<'_>,
        ecn: Ecn,
    ) -> TcpEvents {
        let local_port = segment.dst_port;
        let remote_port = segment.src_port;
        let tuple = FourTuple { local, local_port, remote, remote_port };
        let hash = self.secret.0.table_hash(&tuple);
        match self.find(hash, &tuple) {
            Some(what) if what & IN_TIME_WAIT != 0 => {
                self.receive_in_time_wait(now, what & !IN_TIME_WAIT, hash, segment);
                TcpEvents::NOTHING
            }
            Some(index) if self.may_follow(index, segment) => {
                self.unhash(index);
                self.receive_for_none(now, tuple, hash, segment, ecn, None)
            }
            Some(index) => self.receive_for(now, index, segment, ecn),
            None => self.receive_for_none(now, tuple, hash, segment, ecn, None),
        }
    }

    /// True if the segment opens a connection under the name of one that has ended in this very
    /// burst and has nothing more to send.
    fn may_follow(&self, index: u32, segment: &Segment<'_>) -> bool {
        segment.flags.contains(Flags::SYN)
            && segment.ack.is_none()
            && self.flows[index as usize].connection.is_done()
    }

    fn receive_for(
        &mut self,
        now: Instant,
        index: u32,
        segment: &Segment<'_>,
        ecn: Ecn,
    ) -> TcpEvents {
        let at = index as usize;
        let is_half_open = self.flows[at].connection.state() == TcpState::SynReceived;
        let completes = segment.ack.is_some() && !segment.flags.contains(Flags::RST);
        if is_half_open && completes && self.is_accept_queue_full(index) {
            // The peer assumes an open connection; its data and this end's SYN are sent again.
            self.counters.accept_overflows += 1;
            return TcpEvents::NOTHING;
        }
        if !segment.payload.is_empty()
            && self.receive_rings.is_full()
            && !self.find_memory(index, segment)
        {
            self.counters.receive_memory_refused += 1;
            return TcpEvents::NOTHING; // The peer sends it again, as if it had been lost.
        }
        let flow = &mut self.flows[at];
        let receipt = flow.connection.receive(self.configs.of(&flow.tuple), now, segment, ecn);
        if let Some(placed) = receipt.placed {
            let bytes = &segment.payload[placed.range];
            flow.receive.put(&mut self.receive_rings, placed.offset, bytes);
        }
        let has_new_hole = !flow.is_in_hole_queue && flow.connection.has_hole();
        let events = receipt.events;
        if events.contains(TcpEvents::RELEASED) {
            flow.send.release(&mut self.send_rings, flow.connection.released());
        }
        if events.contains(TcpEvents::CONNECTED) {
            self.opened(index);
        }
        if events.contains(TcpEvents::TIME_WAIT) {
            self.linger(now, index);
        }
        if has_new_hole {
            self.queue_hole(index);
        }
        self.announce(index, events);
        self.wake(index);
        events
    }

    /// Returns true if a segment finds memory although the limit is reached.
    #[cold]
    fn find_memory(&mut self, index: u32, segment: &Segment<'_>) -> bool {
        let flow = &self.flows[index as usize];
        let text_end = flow.connection.text_end(segment);
        flow.receive.has_space_to(text_end)
            || (flow.connection.is_in_order(segment) && self.reclaim(index))
    }

    /// Reclaims memory of connections that hold only data out of order, the oldest first: a peer
    /// may never fill its hole. Returns true if there is memory then.
    fn reclaim(&mut self, for_index: u32) -> bool {
        for _ in 0..self.hole_queue.len().min(RECLAIMS_MAX) {
            let Some(id) = self.hole_queue.pop_front() else {
                break;
            };
            let Some(flow) = self.flows.get_mut(id.index as usize) else {
                continue; // The flow has ended.
            };
            if flow.serial != id.serial {
                continue; // The flow has ended, and another has its index.
            }
            if !flow.connection.has_hole() {
                flow.is_in_hole_queue = false;
                continue;
            }
            if id.index == for_index || flow.connection.readable_len() > 0 {
                self.hole_queue.push_back(id);
                continue;
            }
            flow.is_in_hole_queue = false;
            flow.connection.give_up_out_of_order();
            flow.receive.release_ring(&mut self.receive_rings);
            self.counters.out_of_order_given_up += 1;
            if !self.receive_rings.is_full() {
                return true;
            }
        }
        false
    }

    fn queue_hole(&mut self, index: u32) {
        self.flows[index as usize].is_in_hole_queue = true;
        // Ended flows stay in the queue until they are found.
        if self.hole_queue.len() > 2 * self.flows.len() + RECLAIMS_MAX {
            let flows = &self.flows;
            let is_there = |id: &FlowId| {
                let flow = flows.get(id.index as usize);
                flow.is_some_and(|flow| flow.serial == id.serial)
            };
            self.hole_queue.retain(is_there);
        }
        self.hole_queue.push_back(self.id_of(index));
    }

    /// Takes a report that the network could not deliver a segment. RFC 9293 3.9.2.2; the
    /// connection checks the quoted sequence number.
    pub fn unreachable(&mut self, tuple: &FourTuple, quoted: SeqNumber, is_hard: bool) {
        let Some(index) = self.find_flow(tuple) else {
            return;
        };
        let flow = &mut self.flows[index as usize];
        let events = flow.connection.unreachable(quoted, is_hard);
        self.announce(index, events);
        if events.contains(TcpEvents::ENDED) {
            self.wake(index);
        }
    }

    /// Lowers the MSS of a connection to `mss`, if it believes the report. RFC 1191, RFC 8201
    pub fn path_takes(&mut self, tuple: &FourTuple, quoted: SeqNumber, mss: u16) -> bool {
        let Some(index) = self.find_flow(tuple) else {
            return false;
        };
        let is_believed = self.flows[index as usize].connection.path_takes(quoted, mss);
        self.wake(index);
        is_believed
    }

    /// Limits the MSS of a connection that has just opened to `mss`, which is known of its path.
    /// RFC 1191 6.4, RFC 8201 5.4
    pub fn limit_mss(&mut self, tuple: &FourTuple, mss: u16) {
        if let Some(index) = self.find_flow(tuple) {
            let flow = &mut self.flows[index as usize];
            flow.connection.limit_mss(self.configs.of(tuple), mss);
        }
    }

    /// Sets the longest payload that the device cuts for connections with [`Shard::set_long`].
    pub fn set_long_len_max(&mut self, len_max: u32) {
        self.long_len_max = len_max;
    }

    /// Sets whether this connection sends as much at once as [`Shard::set_long_len_max`] says.
    pub fn set_long(&mut self, tuple: &FourTuple, is_long: bool) {
        if let Some(index) = self.find_flow(tuple) {
            self.flows[index as usize].is_long = is_long;
        }
    }

    /// Sets the MSS of new connections over IPv6, offered and sent. RFC 9293 3.7.1
    pub fn set_mss_v6(&mut self, mss: u16) {
        self.configs.v6.mss = mss;
    }

    fn find_flow(&self, tuple: &FourTuple) -> Option<u32> {
        let hash = self.secret.0.table_hash(tuple);
        self.find(hash, tuple).filter(|what| what & IN_TIME_WAIT == 0)
    }

    // ---- listeners

    fn is_accept_queue_full(&self, index: u32) -> bool {
        let port = self.flows[index as usize].waits_at;
        let listening = port.and_then(|port| self.listeners.get(port));
        listening.is_some_and(Listening::is_accept_queue_full)
    }

    /// Queues a connection for accept: its handshake is complete.
    fn opened(&mut self, index: u32) {
        let Some(port) = self.flows[index as usize].waits_at else {
            return;
        };
        self.flows[index as usize].is_owned = true;
        if let Some(listening) = self.listeners.get_mut(port) {
            listening.half_open -= 1;
            listening.waiting.push_back(index);
        }
    }

    /// Returns true if one more connection may come to this port, else counts the refusal. The peer
    /// tries again.
    fn admit_or_count(&mut self, port: u16) -> bool {
        let listening = self.listeners.get(port);
        if listening.is_some_and(Listening::is_accept_queue_full) {
            self.counters.accept_overflows += 1;
            return false;
        }
        let is_admitted = self.flows.len() < self.limits.flows_max;
        self.counters.flows_refused += u64::from(!is_admitted);
        is_admitted
    }

    /// Removes a half-open connection that has ended from its listener.
    pub(super) fn leave_listener(&mut self, index: u32) {
        let flow = &mut self.flows[index as usize];
        if flow.is_owned {
            return; // It waits for accept, and is accepted although it has ended.
        }
        if let Some(port) = flow.waits_at.take()
            && let Some(listening) = self.listeners.get_mut(port)
        {
            listening.half_open -= 1;
        }
    }

    /// RFC 9293 3.10.7.1 and 3.10.7.2: CLOSED and LISTEN.
    fn receive_for_none(
        &mut self,
        now: Instant,
        tuple: FourTuple,
        hash: u64,
        segment: &Segment<'_>,
        ecn: Ecn,
        iss_min: Option<SeqNumber>,
    ) -> TcpEvents {
        if segment.flags.contains(Flags::RST) {
            return TcpEvents::NOTHING;
        }
        let is_syn = segment.flags.contains(Flags::SYN);
        let listening = self.listeners.get_mut(tuple.local_port);
        let is_listening = listening.is_some_and(|it| !(is_syn && it.refuses_handshakes));
        match (segment.ack, is_syn) {
            _ if !is_listening => self.reset(tuple, segment),
            (Some(ack), false) => match self.take_cookie(now, tuple, hash, segment, ecn, ack) {
                Some(events) => return events,
                None => self.reset(tuple, segment),
            },
            (Some(_), true) => self.reset(tuple, segment),
            (None, true) => self.receive_syn(now, tuple, hash, segment, iss_min),
            (None, false) => {}
        }
        TcpEvents::NOTHING
    }

    fn receive_syn(
        &mut self,
        now: Instant,
        tuple: FourTuple,
        hash: u64,
        syn: &Segment<'_>,
        iss_min: Option<SeqNumber>,
    ) {
        let Some(listening) = self.listeners.get_mut(tuple.local_port) else {
            return;
        };
        // A cookie's number may lie within those that the old connection of this name has used. At
        // most as many SYNs bypass the queue as there were names in TIME-WAIT.
        if listening.is_syn_queue_full() && iss_min.is_none() && !listening.is_accept_queue_full() {
            listening.cookie_sent(now);
            self.send_cookie(now, tuple, syn);
            return;
        }
        if !self.admit_or_count(tuple.local_port) {
            return;
        }
        if let Some(listening) = self.listeners.get_mut(tuple.local_port) {
            listening.half_open += 1;
        }
        let mut iss = self.secret.0.isn(now, &tuple);
        if let Some(min) = iss_min
            && iss.before(min)
        {
            iss = min;
        }
        let offset = self.secret.0.timestamp_offset(&tuple);
        let connection = Connection::accept(self.configs.of(&tuple), now, syn, iss, offset);
        self.counters.opened_passively += 1;
        let index = self.add(connection, tuple, hash);
        self.flows[index as usize].waits_at = Some(tuple.local_port);
    }

    /// RFC 4987 3.6: encodes the SYN in the initial sequence number and the timestamp, and keeps no
    /// state. Without timestamps its options but the MSS are lost.
    fn send_cookie(&mut self, now: Instant, tuple: FourTuple, syn: &Segment<'_>) {
        let config = self.configs.of(&tuple);
        let asked = &syn.options;
        let mss = asked.mss.unwrap_or(config.mss_default);
        let cookie = self.secret.0.cookie(now, &tuple, syn.seq, mss);
        let mut segment = Segment {
            ack: Some(syn.seq + 1),
            flags: Flags::SYN,
            window: config.receive_capacity.min(u32::from(u16::MAX)) as u16,
            options: TcpOptions { mss: Some(config.mss), ..TcpOptions::NONE },
            ..bare(&tuple, cookie)
        };
        if let (Some((value, _)), true) = (asked.timestamps, config.has_timestamps) {
            let marks = Flags::ECE | Flags::CWR;
            let kept = CookieOptions {
                window_scale: asked.window_scale.filter(|_| config.has_window_scale),
                has_sack: asked.sack_permitted && config.has_sack,
                has_ecn: syn.flags.contains(marks) && config.has_ecn,
            };
            let offset = self.secret.0.timestamp_offset(&tuple);
            let stamp = kept.stamp(now.as_millis() as u32).wrapping_add(offset);
            segment.options.timestamps = Some((stamp, value));
            segment.options.window_scale = kept.window_scale.map(|_| config.receive_shift());
            segment.options.sack_permitted = kept.has_sack;
            segment.flags |= if kept.has_ecn { Flags::ECE } else { Flags::NONE };
        }
        self.counters.cookies_sent += 1;
        self.reply(tuple, segment);
    }

    /// Completes a handshake that only a cookie remembers; returns the events.
    fn take_cookie(
        &mut self,
        now: Instant,
        tuple: FourTuple,
        hash: u64,
        segment: &Segment<'_>,
        ecn: Ecn,
        ack: SeqNumber,
    ) -> Option<TcpEvents> {
        let listening = self.listeners.get_mut(tuple.local_port)?;
        if !listening.believes_cookies(now) {
            return None;
        }
        let cookie = ack - 1;
        let irs = segment.seq - 1;
        let mss = self.secret.0.cookie_mss(now, &tuple, irs, cookie)?;
        if !self.admit_or_count(tuple.local_port) {
            return Some(TcpEvents::NOTHING);
        }
        if let Some(listening) = self.listeners.get_mut(tuple.local_port) {
            listening.half_open += 1;
        }
        self.counters.cookies_accepted += 1;
        self.counters.opened_passively += 1;
        let config = self.configs.of(&tuple);
        let offset = self.secret.0.timestamp_offset(&tuple);
        let clock = config.has_timestamps.then(|| now.as_millis() as u32);
        let syn = remembered_syn(segment, mss, clock, offset);
        let connection = Connection::from_cookie(config, now, &syn, cookie, offset);
        let index = self.add(connection, tuple, hash);
        self.flows[index as usize].waits_at = Some(tuple.local_port);
        Some(self.receive_for(now, index, segment, ecn))
    }

    // ---- TIME-WAIT

    fn linger(&mut self, now: Instant, index: u32) {
        if self.time_wait.len() >= self.limits.time_wait_max
            && let Some((oldest, _)) = self.time_wait.oldest()
        {
            self.counters.time_wait_evicted += 1;
            self.forget(oldest);
        }
        let flow = &self.flows[index as usize];
        let tuple = flow.tuple;
        let hash = self.secret.0.table_hash(&tuple);
        let numbers = flow.connection.last_numbers();
        let timestamps = flow.connection.last_timestamps();
        let expires_at = now + self.configs.v4.time_wait;
        let entry = self.time_wait.add(tuple, numbers, timestamps, expires_at);
        self.table.replace(hash, index, entry | IN_TIME_WAIT);
        self.flows[index as usize].is_unhashed = true;
        // Acknowledges the FIN that led to TIME-WAIT.
        self.acknowledge_in_time_wait(now, entry);
    }

    fn receive_in_time_wait(&mut self, now: Instant, entry: u32, hash: u64, segment: &Segment<'_>) {
        let lingering = *self.time_wait.get(entry);
        let has_timestamps = self.configs.of(&lingering.tuple).has_timestamps;
        match time_wait::answer(&lingering, segment, has_timestamps) {
            Answer::Nothing => {}
            Answer::Acknowledge => self.acknowledge_in_time_wait(now, entry),
            Answer::AcknowledgeAndWait => {
                self.time_wait.restart(now, self.configs.v4.time_wait, entry);
                self.acknowledge_in_time_wait(now, entry);
            }
            Answer::Ask => {
                self.time_wait.ask(entry);
                self.acknowledge_in_time_wait(now, entry);
            }
            Answer::GiveUp => self.time_wait.give_up(entry),
            Answer::Reopen if self.listeners.get_mut(lingering.tuple.local_port).is_none() => {
                self.acknowledge_in_time_wait(now, entry);
            }
            // The peer tries again, and the name is still known then.
            Answer::Reopen if !self.admit_or_count(lingering.tuple.local_port) => {}
            Answer::Reopen => {
                self.counters.time_wait_reused += 1;
                self.forget(entry);
                // RFC 9293 3.4.2, MAY-2: beyond all that the old connection has used.
                let iss_min = lingering.snd_nxt + (1 << 16);
                let ecn = Ecn::NotCapable; // A SYN is not marked: RFC 3168 6.1.1.
                self.receive_for_none(now, lingering.tuple, hash, segment, ecn, Some(iss_min));
            }
        }
    }

    fn acknowledge_in_time_wait(&mut self, now: Instant, entry: u32) {
        let lingering = *self.time_wait.get(entry);
        let stamp =
            |(recent, offset): (u32, u32)| ((now.as_millis() as u32).wrapping_add(offset), recent);
        let segment = Segment {
            ack: Some(lingering.rcv_nxt),
            window: self.configs.v4.receive_capacity.min(u32::from(u16::MAX)) as u16,
            options: TcpOptions { timestamps: lingering.timestamps.map(stamp), ..TcpOptions::NONE },
            ..bare(&lingering.tuple, lingering.snd_nxt)
        };
        self.reply(lingering.tuple, segment);
    }

    // ---- answers without a connection

    /// RFC 9293 3.10.7.1
    fn reset(&mut self, tuple: FourTuple, segment: &Segment<'_>) {
        let (seq, ack) = match segment.ack {
            Some(ack) => (ack, None),
            None => (SeqNumber(0), Some(segment.seq + segment.seq_len())),
        };
        self.counters.resets_sent += 1;
        let reset = Segment { ack, flags: Flags::RST, ..bare(&tuple, seq) };
        self.reply(tuple, reset);
    }

    fn reply(&mut self, tuple: FourTuple, segment: Segment<'static>) {
        if self.replies.len() >= self.limits.replies_max {
            self.counters.replies_dropped += 1;
            return;
        }
        let outgoing = Outgoing {
            segment,
            offset: 0,
            len: 0,
            mss: u16::MAX,
            is_retransmission: false,
            ecn: Ecn::NotCapable,
        };
        self.replies.push_back((tuple, outgoing));
    }

    /// The backlog of a listener, and its use: half open, waiting.
    pub fn backlog(&mut self, port: u16) -> Option<(Backlog, usize, usize)> {
        let listening = self.listeners.get_mut(port)?;
        Some((listening.backlog, listening.half_open, listening.waiting.len()))
    }

    /// The connection of this name, whether it was accepted or not.
    pub fn named(&self, tuple: &FourTuple) -> Option<FlowId> {
        self.find_flow(tuple).map(|index| self.id_of(index))
    }
}

/// Reconstructs the SYN of a cookie and its timestamp from the segment that echoes both. `clock` is
/// the own timestamp clock, if timestamps are sent.
fn remembered_syn<'a>(
    segment: &Segment<'a>,
    mss: u16,
    clock: Option<u32>,
    timestamp_offset: u32,
) -> Segment<'a> {
    let stamp = |(_, echo): (u32, u32)| echo.wrapping_sub(timestamp_offset);
    let timestamps = (segment.options.timestamps)
        .filter(|&echo| clock.is_some_and(|clock| CookieOptions::may_be_in(stamp(echo), clock)));
    let kept =
        timestamps.map_or(CookieOptions::default(), |echo| CookieOptions::of_stamp(stamp(echo)));
    let marks = if kept.has_ecn { Flags::ECE | Flags::CWR } else { Flags::NONE };
    Segment {
        seq: segment.seq - 1,
        ack: None,
        flags: Flags::SYN | marks,
        options: TcpOptions {
            mss: Some(mss),
            window_scale: kept.window_scale,
            sack_permitted: kept.has_sack,
            timestamps,
            ..TcpOptions::NONE
        },
        payload: &[],
        ..*segment
    }
}

fn bare(tuple: &FourTuple, seq: SeqNumber) -> Segment<'static> {
    Segment {
        src_port: tuple.local_port,
        dst_port: tuple.remote_port,
        seq,
        ack: None,
        flags: Flags::NONE,
        window: 0,
        urgent: 0,
        options: TcpOptions::NONE,
        payload: &[],
    }
}
