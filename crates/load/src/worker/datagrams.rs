//! Requests over UDP: one in flight per socket; a lost datagram does not end the connection.

use super::Worker;
use crate::protocol::{Reader, UdpRead};

impl Worker<'_> {
    pub(super) fn received_datagram(&mut self, slot: u32, length: usize) {
        let connection = &mut self.connections[slot as usize];
        let asked = connection.in_flight.front().map(|request| request.tag);
        let datagram = self.backend.input(slot, length);
        match connection.reader.read_datagram(datagram, asked, &self.protocol) {
            UdpRead::More => {}
            UdpRead::Late => self.tally.late_datagrams += 1,
            UdpRead::Broken => {
                return self.fail(slot, |tally| tally.errors.bad_reply += 1);
            }
            UdpRead::Reply(reply) => {
                if let Some(request) = connection.in_flight.pop_front() {
                    self.replied(slot, &request, &reply);
                }
                return self.after_replies(slot);
            }
        }
        self.ensure_receive(slot);
    }

    /// Gives up a request if a datagram of it or of its reply was lost or is late.
    pub(super) fn time_out_datagram(&mut self, slot: u32) {
        if self.backend.unsent(slot) > 0 {
            // The request was not sent; the next one would be appended to it.
            return self.fail(slot, |tally| tally.errors.client_timeout += 1);
        }
        let connection = &mut self.connections[slot as usize];
        let Some(request) = connection.in_flight.pop_front() else {
            return;
        };
        if let Reader::Udp(reader) = &mut connection.reader {
            reader.give_up(request.tag.stream as u16);
        }
        self.in_flight_total -= 1;
        self.tally.errors.client_timeout += 1;
        self.send_due(slot);
    }
}
