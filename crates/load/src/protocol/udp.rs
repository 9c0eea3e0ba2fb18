//! Client's end of memcached's UDP framing (doc/protocol.txt, "UDP protocol").
//!
//! ```text
//!  0            2                 4                       6          8
//!  ┌────────────┬─────────────────┬───────────────────────┬──────────┬──────────────
//!  │ request id │ sequence number │ datagrams in message  │ reserved │ as over TCP …
//!  └────────────┴─────────────────┴───────────────────────┴──────────┴──────────────
//! ```
//!
//! A request is one datagram. A reply is one or several, in any order, and any of them may be lost
//! or come twice.

use std::collections::{BTreeMap, VecDeque};

use super::memcached::{self, Request};
use super::{Read, Reply};

/// Length of the header.
const HEADER_BYTES: usize = 8;
/// Most bytes of datagrams that wait for an earlier one; more is a bad reply.
const KEPT_BYTES_MAX: usize = 4 << 20;
/// Most requests that are remembered as given up.
const GIVEN_UP_MAX: usize = 64;

/// Reader of the replies of one socket.
#[derive(Default)]
pub(crate) struct UdpReader {
    reader: memcached::Reader,
    /// Identifier of the next request.
    id: u16,
    /// Number of datagrams of the current reply; 0 before its first.
    total: u16,
    /// Number of its datagrams that were read.
    next: u16,
    /// Later datagrams of it, by their numbers.
    kept: BTreeMap<u16, Vec<u8>>,
    kept_bytes: usize,
    /// Requests that were given up, without a datagram since.
    given_up: VecDeque<u16>,
}

/// Result of reading a datagram.
#[derive(Debug, PartialEq)]
pub(crate) enum UdpRead {
    /// The reply is incomplete.
    More,
    /// First datagram of a request since it was given up.
    Late,
    /// No datagram of this protocol.
    Broken,
    Reply(Reply),
}

impl UdpReader {
    pub(crate) fn new(reader: memcached::Reader) -> UdpReader {
        UdpReader { reader, ..UdpReader::default() }
    }

    /// Appends the header of a request, and returns its identifier.
    pub(crate) fn begin(&mut self, out: &mut Vec<u8>) -> u16 {
        self.id = self.id.wrapping_add(1);
        let [high, low] = self.id.to_be_bytes();
        out.extend_from_slice(&[high, low, 0, 0, 0, 1, 0, 0]);
        self.id
    }

    /// Reads a datagram. `asked` is the identifier of the request in flight.
    pub(crate) fn read(
        &mut self,
        datagram: &[u8],
        asked: Option<u16>,
        request: Request<'_>,
    ) -> UdpRead {
        let Some((header, payload)) = datagram.split_first_chunk::<HEADER_BYTES>() else {
            return UdpRead::Broken;
        };
        let number = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let (id, sequence, total) = (number(0), number(2), number(4));
        if asked != Some(id) {
            // A datagram of a request that was answered is a duplicate.
            let late = self.given_up.iter().position(|given_up| *given_up == id);
            let late = late.and_then(|at| self.given_up.remove(at));
            return if late.is_some() { UdpRead::Late } else { UdpRead::More };
        }
        if sequence >= total || (self.total != 0 && self.total != total) {
            return UdpRead::Broken;
        }
        self.total = total;
        if sequence > self.next {
            return self.keep(sequence, payload);
        }
        if sequence < self.next {
            return UdpRead::More; // It came twice.
        }
        let mut read = self.read_next(payload, request);
        while read == UdpRead::More
            && let Some(payload) = self.kept.remove(&self.next)
        {
            self.kept_bytes -= payload.len();
            read = self.read_next(&payload, request);
        }
        read
    }

    fn keep(&mut self, sequence: u16, payload: &[u8]) -> UdpRead {
        self.kept_bytes += payload.len();
        if self.kept_bytes > KEPT_BYTES_MAX {
            return UdpRead::Broken;
        }
        if let Some(twice) = self.kept.insert(sequence, payload.to_vec()) {
            self.kept_bytes -= twice.len();
        }
        UdpRead::More
    }

    /// Reads the next datagram of the reply, which must end with its last one.
    fn read_next(&mut self, mut payload: &[u8], request: Request<'_>) -> UdpRead {
        self.next += 1;
        let is_last = self.next == self.total;
        match self.reader.read(&mut payload, request) {
            Read::More if !is_last => UdpRead::More,
            Read::Reply(reply) if is_last && payload.is_empty() => {
                self.forget();
                UdpRead::Reply(reply)
            }
            _ => UdpRead::Broken,
        }
    }

    /// Gives up the request in flight.
    pub(crate) fn give_up(&mut self, id: u16) {
        self.reader.reset();
        self.forget();
        if self.given_up.len() == GIVEN_UP_MAX {
            self.given_up.pop_front();
        }
        self.given_up.push_back(id);
    }

    /// Resets the reader for a new socket.
    pub(crate) fn reset(&mut self) {
        self.reader.reset();
        self.forget();
        self.given_up.clear();
    }

    fn forget(&mut self) {
        (self.total, self.next, self.kept_bytes) = (0, 0, 0);
        self.kept.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Cache, CacheProtocol};
    use crate::protocol::memcached::Commands;
    use crate::workload::distribution::Popularity;

    fn plan() -> Cache {
        Cache {
            protocol: CacheProtocol::Text,
            set_percent: 0.0,
            keys: 10,
            template: None,
            key_prefix: "k-".to_owned(),
            key_bytes: "12".parse().unwrap(),
            value_bytes: "3".parse().unwrap(),
            popularity: Popularity::Sequential,
            keys_per_get: 1,
            exptime_s: 0,
            populate: false,
        }
    }

    /// Reads datagrams of the reply to request 7, and returns the last result.
    fn read(datagrams: &[(u16, u16, u16, &str)]) -> UdpRead {
        let plan = plan();
        let commands = &Commands::new(&plan, 1, 0);
        let request = Request { commands, key: 1, is_get: true, verify: false };
        let mut reader = UdpReader::new(memcached::Reader::new(&plan));
        let mut last = UdpRead::More;
        for (id, sequence, total, payload) in datagrams {
            let header = [id, sequence, total, &0].map(|number| number.to_be_bytes());
            let datagram = [header.as_flattened(), payload.as_bytes()].concat();
            last = reader.read(&datagram, Some(7), request);
            if matches!(last, UdpRead::Broken) {
                break;
            }
        }
        last
    }

    fn is_found(read: &UdpRead) -> bool {
        matches!(read, UdpRead::Reply(Reply { status: 200, found: 1, wrong: 0, .. }))
    }

    #[test]
    fn datagrams_of_a_reply_in_any_order() {
        let pieces = ["VALUE k-00000", "00001 0 3\r\na", "bc\r\nEN", "D\r\n"];
        let orders = [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [2, 3, 0, 1]];
        for order in orders {
            let datagrams = order.map(|at: usize| (7, at as u16, 4, pieces[at]));
            assert!(is_found(&read(&datagrams)), "{order:?}");
            let twice: Vec<_> = datagrams[..3].iter().flat_map(|one| [*one; 2]).collect();
            assert!(is_found(&read(&[&twice[..], &datagrams[3..]].concat())), "{order:?} twice");
            assert_eq!(read(&datagrams[1..]), UdpRead::More, "{order:?}: the first is lost");
        }
    }

    #[test]
    fn datagrams_of_other_requests_are_ignored() {
        assert_eq!(read(&[(6, 0, 1, "END\r\n")]), UdpRead::More);
        let behind = [(6, 0, 1, "VALUE"), (7, 0, 1, "VALUE k-0000000001 0 1\r\nx\r\nEND\r\n")];
        assert!(is_found(&read(&behind)));
    }

    /// Seen in a review: a server that answered each request twice was reported with late
    /// datagrams. Cause: every datagram of another request counted as late.
    #[test]
    fn a_reply_to_a_given_up_request_is_late_once() {
        let mut out = Vec::new();
        let plan = plan();
        let commands = &Commands::new(&plan, 1, 0);
        let request = Request { commands, key: 1, is_get: true, verify: false };
        let mut reader = UdpReader::new(memcached::Reader::new(&plan));
        let read = |reader: &mut UdpReader, id: u16, asked: u16| {
            let [high, low] = id.to_be_bytes();
            let datagram = [&[high, low, 0, 0, 0, 1, 0, 0], &b"END\r\n"[..]].concat();
            reader.read(&datagram, Some(asked), request)
        };
        let first = reader.begin(&mut out);
        reader.give_up(first);
        let second = reader.begin(&mut out);
        assert_eq!(read(&mut reader, first, second), UdpRead::Late);
        assert_eq!(read(&mut reader, first, second), UdpRead::More, "it comes twice");
        assert!(matches!(read(&mut reader, second, second), UdpRead::Reply(_)));
        let third = reader.begin(&mut out);
        assert_eq!(read(&mut reader, second, third), UdpRead::More, "it was answered");
    }

    #[test]
    fn nonsense_in_datagrams_is_broken() {
        let cases: [&[(u16, u16, u16, &str)]; 7] = [
            &[(7, 0, 0, "END\r\n")],
            &[(7, 1, 1, "END\r\n")],
            &[(7, 0, 2, "VALUE"), (7, 1, 3, " k-0000000001 0 1\r\n")],
            // Longer or shorter than the number of its datagrams.
            &[(7, 0, 2, "END\r\n")],
            &[(7, 0, 1, "END\r\nEND\r\n")],
            &[(7, 0, 1, "VALUE k-0000000001 0 1\r\n")],
            &[(7, 0, 1, "HTTP/1.1 200 OK\r\n")],
        ];
        for datagrams in cases {
            assert_eq!(read(datagrams), UdpRead::Broken, "{datagrams:?}");
        }
        assert_eq!(read(&[]), UdpRead::More);
    }

    #[test]
    fn kept_datagrams_are_bounded() {
        let long = "x".repeat(60_000);
        let datagrams: Vec<_> = (1..=70).map(|at| (7, at, 100, &*long)).collect();
        assert_eq!(read(&datagrams[..69]), UdpRead::More);
        assert_eq!(read(&datagrams), UdpRead::Broken);
    }
}
