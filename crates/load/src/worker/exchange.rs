//! Requests on an open connection, and what comes back.

use super::{Flight, Reading, State, Worker};
use crate::outcome::record;
use crate::protocol::{ParseStep, Reader, Reply, RequestTag, Speaker};

impl Worker<'_> {
    /// Asks what there is to ask on an open connection.
    pub(super) fn pump(&mut self, slot: u32) {
        if let Some(intended_ns) = self.slots[slot as usize].wanted.take() {
            self.ask(slot, intended_ns);
        } else if let Some(session) = self.slots[slot as usize].session {
            return self.go_on(slot, session.due_ns);
        }
        if self.is_open_loop() {
            while self.can_take(slot) {
                let Some(intended_ns) = self.next_waiting() else {
                    break;
                };
                self.assign(slot, intended_ns);
            }
            self.list(slot);
        } else if self.slots[slot as usize].flights.len() as u32 <= self.plan.depth / 2 {
            // Refilled by halves: a server that answers one by one would else be asked one by one.
            while !self.is_ending && self.left > 0 && self.has_room(slot) {
                self.left -= 1;
                self.ask(slot, self.now_ns);
            }
        }
    }

    pub(super) fn ask(&mut self, slot: u32, intended_ns: u64) {
        let page = self.slots[slot as usize]
            .session
            .and_then(|session| self.page_of(session));
        let out = self.backend.output(slot);
        let before = out.len();
        let tag = self.speaker.say(page, &mut self.random, out);
        self.tally.sent_bytes += (out.len() - before) as u64;
        self.tally.sent += 1;
        self.in_flight += 1;
        self.did_send = true;
        let place = &mut self.slots[slot as usize];
        if let Some(session) = &mut place.session {
            session.sent += 1;
        }
        place.flights.push_back(Flight {
            intended_ns,
            sent_ns: self.now_ns,
            tag,
        });
        place.reader.note(tag.class, &self.speaker);
        self.listen(slot);
    }

    /// Sees to it that a receive is under way: of an open connection at any time, so that it is
    /// known when the server closes it between two requests.
    pub(super) fn listen(&mut self, slot: u32) {
        let place = &mut self.slots[slot as usize];
        if place.reading != Reading::Nothing {
            return;
        }
        match place.reader.skippable() {
            0 => {
                place.reading = Reading::Look;
                self.backend.receive(slot);
            }
            bytes => {
                place.reading = Reading::Discard;
                self.backend.discard(slot, bytes);
            }
        }
    }

    pub(super) fn received(&mut self, slot: u32, result: i32) {
        let reading = std::mem::replace(&mut self.slots[slot as usize].reading, Reading::Nothing);
        if result < 0 {
            let is_between = slot < self.asking && self.slots[slot as usize].flights.is_empty();
            return match is_between && result == -libc::ECONNRESET {
                true => self.closed_between(slot),
                false => self.broke(slot, result),
            };
        }
        self.tally.received_bytes += result as u64;
        if slot >= self.asking {
            return self.heard_idle(slot, result);
        }
        if result == 0 {
            return self.peer_closed(slot);
        }
        if self.slots[slot as usize].flights.is_empty() {
            return self.heard_unasked(slot, result as usize);
        }
        // Out of its slot, so that the rest of the worker can be used meanwhile.
        let place = &mut self.slots[slot as usize];
        let mut reader = std::mem::replace(&mut place.reader, Reader::Silent);
        if reading == Reading::Discard {
            let parsed = reader.skipped(result as u64, self.oldest(slot), &mut self.speaker);
            self.parsed(slot, parsed);
        } else {
            let mut used = 0;
            while self.slots[slot as usize].state == State::Open {
                let oldest = self.oldest(slot);
                let input = self.backend.input(slot, result as usize);
                let mut rest = &input[used..];
                let is_unasked = self.slots[slot as usize].flights.is_empty();
                if is_unasked && is_farewell(&self.speaker, rest) {
                    self.closed_between(slot);
                    break;
                }
                let parsed = reader.read(&mut rest, oldest, &mut self.speaker);
                used = input.len() - rest.len();
                if !self.parsed(slot, parsed) {
                    break;
                }
            }
        }
        self.slots[slot as usize].reader = reader;
        if self.slots[slot as usize].state == State::Open {
            self.after_replies(slot);
        }
    }

    /// The oldest request without a reply.
    fn oldest(&self, slot: u32) -> RequestTag {
        let oldest = self.slots[slot as usize].flights.front();
        oldest.map_or_else(RequestTag::default, |flight| flight.tag)
    }

    /// Bytes came without a request. As the reply to the next request they would have come
    /// before it was sent.
    fn heard_unasked(&mut self, slot: u32, length: usize) {
        let mut input = self.backend.input(slot, length);
        if is_farewell(&self.speaker, input) {
            return self.closed_between(slot);
        }
        let reader = &mut self.slots[slot as usize].reader;
        match reader.read(&mut input, RequestTag::default(), &mut self.speaker) {
            ParseStep::Reply(reply) => self.unasked(slot, &reply),
            _ => self.fail(slot, |tally| tally.errors.bad_reply += 1),
        }
    }

    /// A reply came without a request, behind the one that was asked for.
    fn unasked(&mut self, slot: u32, reply: &Reply) {
        match reply.status == 408 && reply.closes {
            true => self.closed_between(slot),
            false => self.fail(slot, |tally| tally.errors.bad_reply += 1),
        }
    }

    /// Counts what was parsed. Says whether more may be read.
    pub(super) fn parsed(&mut self, slot: u32, parsed: ParseStep) -> bool {
        match parsed {
            ParseStep::Nothing => return false,
            ParseStep::Broken => self.fail(slot, |tally| tally.errors.bad_reply += 1),
            ParseStep::Reply(reply) => {
                let Some(flight) = self.slots[slot as usize].flights.pop_front() else {
                    self.unasked(slot, &reply);
                    return false;
                };
                self.in_flight -= 1;
                self.slots[slot as usize].served += 1;
                self.count(&flight, &reply);
                if reply.closes {
                    self.ask_again_later(slot);
                    self.end_or_go_on(slot);
                    self.part(slot);
                }
            }
        }
        true
    }

    pub(super) fn count(&mut self, flight: &Flight, reply: &Reply) {
        let RequestTag { what, class } = flight.tag;
        let found = self.speaker.judge(what, class, reply);
        let is_in_time = self.now_ns < self.times.end_ns;
        if self.is_open_loop() && !self.is_measured(flight.intended_ns) {
            self.tally.carried += u64::from(found.fault.is_none() && is_in_time);
            return;
        }
        let class = &mut self.tally.classes[usize::from(class)];
        class.replies_by_status[usize::from(reply.status / 100).min(5)] += 1;
        self.tally.hits += u64::from(reply.found);
        self.tally.misses += u64::from(found.missing);
        self.tally.compared += u64::from(found.compared);
        if let Some(fault) = found.fault {
            *fault.counter(&mut self.tally.errors) += 1;
            return;
        }
        self.tally.drained += u64::from(!is_in_time);
        record(&mut class.service_ns, self.now_ns - flight.sent_ns);
        record(&mut class.response_ns, self.now_ns - flight.intended_ns);
    }

    pub(super) fn after_replies(&mut self, slot: u32) {
        let place = &self.slots[slot as usize];
        if place.session.is_some() {
            self.after_session_reply(slot);
        } else if place.flights.is_empty() && !self.has_room(slot) {
            return self.part(slot); // It has served as many as it should.
        } else {
            self.pump(slot);
        }
        if self.slots[slot as usize].state == State::Open {
            self.listen(slot);
        }
    }

    /// The peer announced the end of the connection: what it has not answered is asked again
    /// elsewhere.
    pub(super) fn ask_again_later(&mut self, slot: u32) {
        let place = &mut self.slots[slot as usize];
        let unanswered = place.flights.len();
        self.in_flight -= unanswered as u64;
        self.tally.sent -= (unanswered as u64).min(self.tally.sent);
        if let Some(session) = &mut place.session {
            session.sent -= unanswered;
            if unanswered == 0 {
                session.due_ns = self.now_ns; // The reply was what the next request waited for.
            }
        } else if self.schedule.is_some() {
            for flight in place.flights.iter().rev() {
                self.backlog.push_front(flight.intended_ns);
            }
        } else {
            self.left = self.left.saturating_add(unanswered as u64);
        }
        place.flights.clear();
    }

    pub(super) fn peer_closed(&mut self, slot: u32) {
        let place = &mut self.slots[slot as usize];
        if let Some(reply) = place.reader.closed() {
            self.parsed(slot, ParseStep::Reply(reply));
            return;
        }
        match place.flights.is_empty() {
            true => self.closed_between(slot),
            false => self.fail(slot, |tally| tally.errors.short_reply += 1),
        }
    }

    /// Between two requests a server may close as it likes (RFC 9112 9.5), and be it by a reset.
    fn closed_between(&mut self, slot: u32) {
        if self.slots[slot as usize].session.is_some() {
            self.end_or_go_on(slot);
        }
        self.part(slot);
    }
}

/// Some servers say 408 before they close a connection that was idle (RFC 9110 15.5.9). Its first
/// line is enough: the rest may come later, or end with the connection.
fn is_farewell(speaker: &Speaker, input: &[u8]) -> bool {
    let is_http = matches!(speaker, Speaker::Http { .. });
    is_http && input.starts_with(b"HTTP/1.") && input.get(9..12) == Some(b"408")
}
