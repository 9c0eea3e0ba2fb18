//! Requests on an open connection, and their replies.

use super::{ConnectionState, InFlight, Reading, UNSENT_BESIDE_BYTES, Worker};
use crate::outcome::record;
use crate::protocol::{Protocol, Read, Reader, Reply, RequestTag};

impl Worker<'_> {
    /// Sends the requests that are due on an open connection.
    pub(super) fn send_due(&mut self, slot: u32) {
        if let Some(intended_ns) = self.connections[slot as usize].queued_ns.take() {
            self.send_request(slot, intended_ns);
        } else if let Some(session) = self.connections[slot as usize].session {
            return self.continue_session(slot, session.due_ns);
        }
        if self.is_open_loop() {
            while self.can_take(slot) {
                let Some(intended_ns) = self.next_waiting() else {
                    break;
                };
                self.assign(slot, intended_ns);
            }
            self.mark_free(slot);
        } else if self.plan.http2
            || self.connections[slot as usize].in_flight.len() as u32 <= self.plan.depth / 2
        {
            // Refill by halves: a server that answers one by one would otherwise get requests one
            // by one. Streams do not wait for each other.
            while !self.is_ending && self.left > 0 && self.has_capacity(slot) {
                self.left -= 1;
                self.send_request(slot, self.now_ns);
            }
        }
    }

    pub(super) fn send_request(&mut self, slot: u32, intended_ns: u64) {
        let page =
            self.connections[slot as usize].session.and_then(|session| self.page_of(session));
        let out = self.backend.output(slot);
        let before = out.len();
        let connection = &mut self.connections[slot as usize];
        let reader = &mut connection.reader;
        let tag = self.protocol.write_request(page, &mut self.random, reader, out);
        let written = out.len() - before;
        self.longest_bytes = self.longest_bytes.max(written + reader.waiting_bytes(tag));
        self.tally.sent_bytes += written as u64;
        self.tally.sent += 1;
        self.in_flight_total += 1;
        self.did_send = true;
        if let Some(session) = &mut connection.session {
            session.sent += 1;
        }
        connection.in_flight.push_back(InFlight { intended_ns, sent_ns: self.now_ns, tag });
        connection.reader.note(tag.class, &self.protocol);
        self.ensure_receive(slot);
    }

    /// Begins a receive if none is in progress. An open connection always has one, so that a close
    /// between two requests is noticed.
    pub(super) fn ensure_receive(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        if connection.reading != Reading::None {
            return;
        }
        match connection.reader.skippable() {
            0 => {
                connection.reading = Reading::Read;
                self.backend.receive(slot);
            }
            bytes => {
                connection.reading = Reading::Discard;
                self.backend.discard(slot, bytes);
            }
        }
    }

    pub(super) fn received(&mut self, slot: u32, result: i32) {
        let reading =
            std::mem::replace(&mut self.connections[slot as usize].reading, Reading::None);
        if result < 0 {
            let is_between =
                slot < self.active && self.connections[slot as usize].in_flight.is_empty();
            return if is_between && result == -libc::ECONNRESET {
                self.closed_between(slot)
            } else if self.connections[slot as usize].reader.is_leaving() {
                self.fail(slot, |tally| tally.errors.goaway += 1)
            } else {
                self.fail_with(slot, result)
            };
        }
        self.tally.received_bytes += result as u64;
        if self.is_udp {
            return self.received_datagram(slot, result as usize);
        }
        if slot >= self.active {
            return self.received_idle(slot, result);
        }
        if result == 0 {
            return self.peer_closed(slot);
        }
        if self.plan.http2 {
            return self.received_frames(slot, result as usize);
        }
        if self.connections[slot as usize].in_flight.is_empty() {
            return self.received_unasked(slot, result as usize);
        }
        // Taken out, so that the rest of the worker can be used meanwhile.
        let connection = &mut self.connections[slot as usize];
        let mut reader = std::mem::replace(&mut connection.reader, Reader::Silent);
        if reading == Reading::Discard {
            let parsed = reader.skipped(result as u64, self.oldest(slot), &mut self.protocol);
            self.parsed(slot, parsed);
        } else {
            let mut used = 0;
            while self.connections[slot as usize].state == ConnectionState::Open {
                let oldest = self.oldest(slot);
                let input = self.backend.input(slot, result as usize);
                let mut rest = &input[used..];
                let is_unasked = self.connections[slot as usize].in_flight.is_empty();
                if is_unasked && is_408(&self.protocol, rest) {
                    self.closed_between(slot);
                    break;
                }
                let parsed = reader.read(&mut rest, oldest, &mut self.protocol);
                used = input.len() - rest.len();
                if !self.parsed(slot, parsed) {
                    break;
                }
            }
        }
        self.connections[slot as usize].reader = reader;
        if self.connections[slot as usize].state == ConnectionState::Open {
            self.after_replies(slot);
        }
    }

    /// Oldest unanswered request.
    fn oldest(&self, slot: u32) -> RequestTag {
        let oldest = self.connections[slot as usize].in_flight.front();
        oldest.map_or_else(RequestTag::default, |request| request.tag)
    }

    /// Handles bytes that arrive without a request. They cannot be the reply to the next one, which
    /// was not sent yet.
    fn received_unasked(&mut self, slot: u32, length: usize) {
        let mut input = self.backend.input(slot, length);
        if is_408(&self.protocol, input) {
            return self.closed_between(slot);
        }
        let reader = &mut self.connections[slot as usize].reader;
        match reader.read(&mut input, RequestTag::default(), &mut self.protocol) {
            Read::Reply(reply) => self.unasked_reply(slot, &reply),
            _ => self.fail(slot, |tally| tally.errors.bad_reply += 1),
        }
    }

    /// Handles a reply without a request, behind an expected one.
    fn unasked_reply(&mut self, slot: u32, reply: &Reply) {
        if reply.status == 408 && reply.closes {
            self.closed_between(slot)
        } else {
            self.fail(slot, |tally| tally.errors.bad_reply += 1)
        }
    }

    /// Handles a parsed reply; returns true if more may be read.
    pub(super) fn parsed(&mut self, slot: u32, parsed: Read) -> bool {
        match parsed {
            Read::More => return false,
            Read::Broken => self.fail(slot, |tally| tally.errors.bad_reply += 1),
            Read::Reply(reply) => {
                let Some(request) = self.connections[slot as usize].in_flight.pop_front() else {
                    self.unasked_reply(slot, &reply);
                    return false;
                };
                self.replied(slot, &request, &reply);
                if reply.closes {
                    self.requeue_unanswered(slot, 0);
                    self.end_burst_on_close(slot);
                    self.begin_close(slot);
                }
            }
        }
        true
    }

    /// Counts a reply to a request that is no longer in flight.
    pub(super) fn replied(&mut self, slot: u32, request: &InFlight, reply: &Reply) {
        self.in_flight_total -= 1;
        self.gather.replies += 1;
        self.connections[slot as usize].served += 1;
        self.count(request, reply);
    }

    pub(super) fn count(&mut self, request: &InFlight, reply: &Reply) {
        let RequestTag { what, class, .. } = request.tag;
        let found = self.protocol.check_reply(what, class, reply);
        let is_in_time = self.now_ns < self.times.end_ns;
        if self.is_open_loop() && !self.is_measured(request.intended_ns) {
            self.tally.carried += u64::from(found.fault.is_none() && is_in_time);
            return;
        }
        let class = &mut self.tally.classes[usize::from(class)];
        class.replies_by_status[usize::from(reply.status / 100).min(5)] += 1;
        let counts = &mut self.tally.counts;
        counts.hits += u64::from(reply.found);
        counts.misses += u64::from(found.missing);
        counts.compared += u64::from(found.compared);
        if let Some(fault) = found.fault {
            *fault.counter(&mut self.tally.errors) += 1;
            return;
        }
        if matches!(reply.status, 301..=303 | 307 | 308) {
            counts.redirects += 1;
        }
        counts.drained += u64::from(!is_in_time);
        record(&mut class.service_ns, self.now_ns - request.sent_ns);
        record(&mut class.response_ns, self.now_ns - request.intended_ns);
    }

    pub(super) fn after_replies(&mut self, slot: u32) {
        if self.is_unread(slot) {
            return self.fail(slot, |tally| tally.errors.bad_reply += 1);
        }
        let connection = &self.connections[slot as usize];
        if connection.in_flight.is_empty() && connection.reader.is_leaving() {
            return self.closed_between(slot);
        }
        if connection.session.is_some() {
            // In a pause the input was no reply, but a frame of HTTP/2.
            if connection.wake_ns == 0 {
                self.after_session_reply(slot);
            }
        } else if connection.in_flight.is_empty() && connection.served >= connection.requests_max {
            return self.begin_close(slot); // Its last request was answered.
        } else {
            self.send_due(slot);
        }
        if self.connections[slot as usize].state == ConnectionState::Open {
            self.ensure_receive(slot);
        }
    }

    /// True if more waits to be sent than requests can be in flight: the server replies to what it
    /// does not read, and the output would grow with every reply.
    fn is_unread(&self, slot: u32) -> bool {
        // A send ends when all of its requests are sent: answered ones may still be in it, and as
        // many new ones behind them. One more may have been answered early. Sessions are finite.
        let requests = (self.plan.depth as usize).saturating_add(1).saturating_mul(2);
        let bytes = requests.saturating_mul(self.longest_bytes);
        // TLS and frames add to them.
        let most = bytes.saturating_add(bytes / 8).saturating_add(UNSENT_BESIDE_BYTES);
        let has_session = self.connections[slot as usize].session.is_some();
        !has_session && self.backend.unsent(slot) > most
    }

    /// Returns the unanswered requests, from the `first` on, of a connection whose end was
    /// announced; they are sent again on another one.
    pub(super) fn requeue_unanswered(&mut self, slot: u32, first: usize) {
        let connection = &mut self.connections[slot as usize];
        let requeued = connection.in_flight.split_off(first);
        let unanswered = requeued.len();
        self.in_flight_total -= unanswered as u64;
        self.tally.sent -= (unanswered as u64).min(self.tally.sent);
        if let Some(session) = &mut connection.session {
            session.sent -= unanswered;
            if unanswered == 0 {
                session.due_ns = self.now_ns; // The next request was waiting for this reply.
            }
        } else if self.schedule.is_some() {
            for request in requeued.iter().rev() {
                self.backlog.push_front(request.intended_ns);
            }
        } else {
            self.left = self.left.saturating_add(unanswered as u64);
        }
    }

    pub(super) fn peer_closed(&mut self, slot: u32) {
        let is_torn = self.backend.is_torn(slot);
        let connection = &mut self.connections[slot as usize];
        if !is_torn && let Some(reply) = connection.reader.closed() {
            self.parsed(slot, Read::Reply(reply));
            return;
        }
        if connection.in_flight.is_empty() {
            self.closed_between(slot)
        } else if connection.reader.is_leaving() {
            self.fail(slot, |tally| tally.errors.goaway += 1)
        } else {
            self.fail(slot, |tally| tally.errors.short_reply += 1)
        }
    }

    /// Handles a close, or a reset, between two requests, which is no error (RFC 9112 9.5).
    fn closed_between(&mut self, slot: u32) {
        if self.connections[slot as usize].session.is_some() {
            self.end_burst_on_close(slot);
        }
        self.begin_close(slot);
    }
}

/// True if the input is the 408 that some servers send before they close an idle connection (RFC
/// 9110 15.5.9). The first line suffices: the rest may come later, or end with the connection.
fn is_408(protocol: &Protocol, input: &[u8]) -> bool {
    let is_http = matches!(protocol, Protocol::Http { .. });
    is_http && input.starts_with(b"HTTP/1.") && input.get(9..12) == Some(b"408")
}
