//! Connections of HTTP/2: many streams, whose replies come in any order.

use super::{ConnectionState, InFlight, Worker};
use crate::outcome::Errors;
use crate::protocol::http2::{Event, Http2Connection};
use crate::protocol::{Protocol, Reader, RenderedRequests};

impl Worker<'_> {
    /// Sends the preface of a new connection.
    pub(super) fn open_streams(&mut self, slot: u32) {
        if let Reader::Http2(streams) = &self.connections[slot as usize].reader {
            let out = self.backend.output(slot);
            streams.open(out);
            self.tally.sent_bytes += out.len() as u64;
            self.did_send = true;
        }
    }

    /// True if the peer lets another request be in flight.
    pub(super) fn has_stream(&self, slot: u32) -> bool {
        let connection = &self.connections[slot as usize];
        (connection.in_flight.len() as u32) < connection.reader.in_flight_max()
    }

    /// Handles input of a connection.
    pub(super) fn received_frames(&mut self, slot: u32, length: usize) {
        let connection = &mut self.connections[slot as usize];
        connection.heard_ns = self.now_ns;
        // Taken out, so that the rest of the worker can be used meanwhile.
        let mut reader = std::mem::replace(&mut connection.reader, Reader::Silent);
        if let Reader::Http2(streams) = &mut reader {
            self.read_frames(slot, length, streams);
            let limits = streams.take_limits();
            self.tally.window_waits += limits.window_waits;
            self.tally.stream_limits += limits.stream_limits;
        }
        self.connections[slot as usize].reader = reader;
        if self.is_open(slot) {
            self.answer(slot);
        }
    }

    fn read_frames(&mut self, slot: u32, length: usize, streams: &mut Http2Connection) {
        let mut used = 0;
        while self.is_open(slot) {
            let Protocol::Http { rendered: RenderedRequests::Http2(blocks), .. } = &self.protocol
            else {
                return;
            };
            let input = self.backend.input(slot, length);
            let mut rest = &input[used..];
            let event = streams.read(&mut rest, blocks);
            used = input.len() - rest.len();
            match event {
                Event::More => return,
                Event::Broken => self.fail(slot, |tally| tally.errors.bad_reply += 1),
                Event::Reply { stream, reply } => {
                    if let Some(request) = self.take_request(slot, stream) {
                        self.replied(slot, &request, &reply);
                    }
                }
                Event::Reset { stream, is_refused } => {
                    if self.take_request(slot, stream).is_some() {
                        self.in_flight_total -= 1;
                        let errors = &mut self.tally.errors;
                        errors.refused_stream += u64::from(is_refused);
                        errors.stream_reset += u64::from(!is_refused);
                    }
                }
                Event::Goaway { last, is_error } => self.goaway(slot, last, is_error),
            }
        }
    }

    fn take_request(&mut self, slot: u32, stream: u32) -> Option<InFlight> {
        let connection = &mut self.connections[slot as usize];
        connection.asked_ns = self.now_ns;
        let in_flight = &mut connection.in_flight;
        if in_flight.front()?.tag.stream == stream {
            return in_flight.pop_front();
        }
        let found = in_flight.binary_search_by_key(&stream, |request| request.tag.stream);
        in_flight.remove(found.ok()?)
    }

    /// Handles the announced end of a connection: unprocessed requests are sent again on another
    /// one, unless the end is an error, or nothing was served before.
    fn goaway(&mut self, slot: u32, last: u32, is_error: bool) {
        let connection = &self.connections[slot as usize];
        let in_flight = &connection.in_flight;
        let first = in_flight.partition_point(|request| request.tag.stream <= last);
        let is_fruitless = connection.served == 0 && first == 0 && !in_flight.is_empty();
        if is_error || is_fruitless {
            self.fail(slot, |tally| tally.errors.goaway += 1);
        } else {
            self.requeue_unanswered(slot, first);
        }
    }

    /// Gives up the streams that exceed their time-out. The connection is given up as well if
    /// nothing arrived on it since the oldest was sent.
    pub(super) fn time_out_streams(&mut self, slot: u32) {
        let timeout_ns = self.plan.request_timeout.as_nanos() as u64;
        let heard_ns = self.connections[slot as usize].heard_ns;
        while let Some(&oldest) = self.connections[slot as usize].in_flight.front()
            && self.now_ns >= oldest.sent_ns.saturating_add(timeout_ns)
        {
            let connection = &mut self.connections[slot as usize];
            let Reader::Http2(streams) = &mut connection.reader else {
                return;
            };
            let is_waiting = streams.is_waiting(oldest.tag.stream);
            if heard_ns <= oldest.sent_ns {
                return self.fail(slot, |tally| count_timeout(&mut tally.errors, is_waiting));
            }
            streams.cancel(oldest.tag.stream);
            connection.asked_ns = self.now_ns;
            connection.in_flight.pop_front();
            self.in_flight_total -= 1;
            count_timeout(&mut self.tally.errors, is_waiting);
        }
        self.answer(slot);
    }

    /// True if nothing was in flight on an open connection for this time although there is more to
    /// ask, because the server allows no stream.
    pub(super) fn has_waited_for_streams(&self, slot: u32, timeout_ns: u64) -> bool {
        let connection = &self.connections[slot as usize];
        let has_request = match connection.session {
            Some(_) => connection.wake_ns == 0,
            None => !self.is_open_loop() && self.has_more_to_ask(),
        };
        self.plan.http2
            && slot < self.active
            && has_request
            && !self.has_stream(slot)
            && self.now_ns >= connection.asked_ns.saturating_add(timeout_ns)
    }

    /// Sends the frames that answer what was read, and the requests that are due.
    fn answer(&mut self, slot: u32) {
        if let Reader::Http2(streams) = &mut self.connections[slot as usize].reader
            && streams.has_output()
        {
            let unsent = self.backend.unsent(slot);
            let out = self.backend.output(slot);
            let before = out.len();
            let is_read = streams.take_output(unsent, out);
            self.tally.sent_bytes += (out.len() - before) as u64;
            self.did_send = true;
            if !is_read {
                return self.fail(slot, |tally| tally.errors.bad_reply += 1);
            }
        }
        self.after_replies(slot);
    }

    fn is_open(&self, slot: u32) -> bool {
        self.connections[slot as usize].state == ConnectionState::Open
    }
}

fn count_timeout(errors: &mut Errors, is_waiting: bool) {
    errors.window_timeout += u64::from(is_waiting);
    errors.client_timeout += u64::from(!is_waiting);
}
