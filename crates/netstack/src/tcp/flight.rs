//! What was sent and is not acknowledged: the scoreboard, and which of it is lost.
//!
//! ```text
//!   start = snd_una                                                   end = snd_nxt
//!     │  piece        │ piece   │ piece             │ piece   │ piece     │
//!     │  sent_at 10ms │ 10ms    │ 12ms              │ 30ms    │ 31ms      │
//!     │  lost         │ SACKed  │ SACKed            │ again   │           │
//!
//!   pipe = (end − start) − SACKed − lost                 bytes that are thought to be under way
//! ```
//!
//! Pieces tile the flight without gaps. A piece is what left at one instant and has had one fate
//! since, so it may be many segments; a SACK block that ends inside of a piece splits it. Their
//! count has a limit, [`PIECES_MAX`]: beyond it a SACK block that would split is left out and a
//! retransmission joins the one before it, and near it new data joins the last piece. A peer that
//! reports each second byte, or acknowledges segment by segment what was sent again, gains nothing.
//!
//! Lost is what was sent a while before something that has arrived: RFC 8985 (RACK), by time; the
//! reordering window is a part of the round trip, and none once three segments have overtaken. For
//! a peer without SACK the caller counts duplicate acknowledgements and says what is lost.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Instant;

/// The limit of pieces in a flight.
pub const PIECES_MAX: usize = 512;

/// From here on, new data joins the last piece if it can, with the later time of the two.
const PIECES_MANY: usize = PIECES_MAX / 2;

/// What a flight that has landed keeps, so that a connection at rest is small.
const PIECES_KEPT: usize = 16;

/// RFC 5681 and 6675: so many segments that have overtaken one mean that it is lost.
pub const DUP_THRESH: u64 = 3;

/// RFC 8985 6.2.4: a duplicate report widens the reordering window for so many recoveries.
const REO_WND_PERSIST: u8 = 16;

/// A run of bytes that left at one instant and has had one fate since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The place after its last byte; it begins where the one before ends.
    pub end: u64,
    /// When it left last.
    pub sent_at: Instant,
    /// What happened to it.
    pub fate: Fate,
    /// It left more than once: no round-trip sample (Karn).
    pub is_retransmitted: bool,
}

/// What is known of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Thought to be under way.
    Out,
    /// The peer has it. RFC 2018
    Sacked,
    /// Thought to be lost, and not yet sent again.
    Lost,
}

/// What an acknowledgement has told of pieces: taken together, since only sums and the latest
/// matter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrival {
    /// Bytes that are known to have arrived, and were not before.
    pub delivered: u64,
    /// The oldest time at which a piece left that came through at its first try, and is now
    /// acknowledged in order.
    pub first_sent_at: Option<Instant>,
    /// A retransmitted piece is among what was acknowledged in order.
    pub has_retransmitted: bool,
}

/// The scoreboard.
#[derive(Clone, Debug)]
pub struct Flight {
    start: u64,
    pieces: VecDeque<Piece>,
    sacked_len: u64,
    lost_len: u64,
    rack: Rack,
}

/// RFC 8985 5.2 and 5.3, per connection.
#[derive(Clone, Copy, Debug)]
struct Rack {
    /// Of the latest sent among the pieces that have arrived.
    xmit_at: Instant,
    end: u64,
    rtt: Duration,
    /// The highest place that has arrived.
    fack: u64,
    is_reordering_seen: bool,
    /// snd_nxt when a report of duplicates was counted last.
    dsack_round: u64,
    reo_wnd_mult: u8,
    reo_wnd_persist: u8,
}

/// What the loss detection wants to know of the connection. RFC 8985 6.2.4
#[derive(Clone, Copy, Debug)]
pub struct Detection {
    /// The time.
    pub now: Instant,
    /// Smoothed round trip.
    pub srtt: Duration,
    /// The smallest of late.
    pub min_rtt: Duration,
    /// In recovery: no reordering window until reordering was seen.
    pub is_recovering: bool,
    /// For the count of segments that have overtaken.
    pub mss: u64,
}

impl Flight {
    /// Nothing is under way; the next byte is at `start`.
    pub fn new(start: u64) -> Flight {
        Flight {
            start,
            // One that is idle has had its SYN there, and no other.
            pieces: VecDeque::with_capacity(2),
            sacked_len: 0,
            lost_len: 0,
            rack: Rack {
                xmit_at: Instant::START,
                end: 0,
                rtt: Duration::ZERO,
                fack: start,
                is_reordering_seen: false,
                dsack_round: 0,
                reo_wnd_mult: 1,
                reo_wnd_persist: 0,
            },
        }
    }

    /// snd_una
    pub fn start(&self) -> u64 {
        self.start
    }

    /// snd_nxt
    pub fn end(&self) -> u64 {
        self.pieces.back().map_or(self.start, |piece| piece.end)
    }

    /// Bytes that are not acknowledged in order.
    pub fn len(&self) -> u64 {
        self.end() - self.start
    }

    /// Whether all is acknowledged.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes that are thought to be under way. RFC 6675 4
    pub fn pipe(&self) -> u64 {
        self.len() - self.sacked_len - self.lost_len
    }

    /// Bytes that the peer has out of order.
    pub fn sacked_len(&self) -> u64 {
        self.sacked_len
    }

    /// Bytes that are to be sent again.
    pub fn lost_len(&self) -> u64 {
        self.lost_len
    }

    /// No more may be sent until something is acknowledged: [`PIECES_MAX`].
    pub fn is_full(&self) -> bool {
        let joins = self.pieces.back().is_none_or(Piece::is_fresh);
        self.pieces.len() >= PIECES_MAX && !joins
    }

    /// Sends `len` new bytes.
    pub fn send(&mut self, now: Instant, len: u64) {
        let end = self.end() + len;
        let is_many = self.pieces.len() >= PIECES_MANY;
        if let Some(last) = self.pieces.back_mut()
            && last.is_fresh()
            && (last.sent_at == now || is_many)
        {
            last.end = end;
            last.sent_at = now;
            return;
        }
        self.pieces.push_back(Piece {
            end,
            sent_at: now,
            fate: Fate::Out,
            is_retransmitted: false,
        });
    }

    /// The next bytes to send again, at most `len_max` of them: place and length.
    pub fn next_lost(&self, len_max: u64) -> Option<(u64, u64)> {
        if self.lost_len == 0 {
            return None;
        }
        let mut start = self.start;
        for (at, piece) in self.pieces.iter().enumerate() {
            if piece.fate == Fate::Lost {
                // Those behind it that are lost as well leave with it.
                let behind = self.pieces.range(at + 1..);
                let lost = behind.take_while(|piece| piece.fate == Fate::Lost);
                let end = lost.last().map_or(piece.end, |piece| piece.end);
                return Some((start, (end - start).min(len_max)));
            }
            start = piece.end;
        }
        None
    }

    /// The last bytes that the peer does not have, at most `len_max`: for a tail loss probe.
    /// RFC 8985 7.3
    pub fn last_out(&self, len_max: u64) -> Option<(u64, u64)> {
        let at = self.pieces.iter().rposition(|p| p.fate != Fate::Sacked)?;
        let (start, end) = (self.start_of(at), self.pieces[at].end);
        let start = start.max(end.saturating_sub(len_max));
        Some((start, end - start))
    }

    /// Sends `len` bytes at `place` again.
    pub fn send_again(&mut self, now: Instant, place: u64, len: u64) {
        let again = |piece: &mut Piece| {
            piece.sent_at = now;
            piece.is_retransmitted = true;
        };
        self.change(place, place + len, |piece, len, sums| {
            if piece.fate == Fate::Lost {
                sums.lost_len -= len;
                piece.fate = Fate::Out;
            }
            again(piece);
        });
        if self.pieces.len() > PIECES_MAX {
            self.join_retransmission(place);
        }
    }

    /// The retransmission at `place` and one just before it become one piece, with the later time.
    fn join_retransmission(&mut self, place: u64) {
        let is_again = |piece: &Piece| piece.fate == Fate::Out && piece.is_retransmitted;
        let at = self.pieces.partition_point(|piece| piece.end <= place);
        if at > 0 && is_again(&self.pieces[at - 1]) && is_again(&self.pieces[at]) {
            self.pieces.remove(at - 1);
        }
    }

    /// The peer has all before `to`.
    pub fn acknowledge(
        &mut self,
        now: Instant,
        to: u64,
        min_rtt: Duration,
        echo: Echoed,
    ) -> Arrival {
        let mut arrival = Arrival::default();
        while let Some(&piece) = self.pieces.front()
            && self.start < to
        {
            let end = piece.end.min(to);
            let len = end - self.start;
            match piece.fate {
                Fate::Sacked => self.sacked_len -= len,
                Fate::Lost => self.lost_len -= len,
                Fate::Out => {}
            }
            if piece.fate != Fate::Sacked {
                arrival.delivered += len;
                self.rack.update(now, &piece, end, min_rtt, echo);
                self.rack.see(end, piece.is_retransmitted);
                if !piece.is_retransmitted && arrival.first_sent_at.is_none() {
                    arrival.first_sent_at = Some(piece.sent_at);
                }
            }
            arrival.has_retransmitted |= piece.is_retransmitted;
            self.start = end;
            if end == piece.end {
                self.pieces.pop_front();
            }
        }
        self.start = self.start.max(to);
        if self.pieces.is_empty() && self.pieces.capacity() > 4 * PIECES_KEPT {
            self.pieces.shrink_to(PIECES_KEPT);
        }
        arrival
    }

    /// The peer has `left..right`, out of order. Returns the bytes that it was not known to have;
    /// none if the block lies outside of the flight or the limit of pieces is met.
    pub fn sack(
        &mut self,
        now: Instant,
        left: u64,
        right: u64,
        min_rtt: Duration,
        echo: Echoed,
    ) -> u64 {
        let left = left.max(self.start);
        if left >= right || right > self.end() || self.pieces.len() + 2 > PIECES_MAX {
            return 0;
        }
        let mut rack = self.rack;
        let sacked_len_before = self.sacked_len;
        self.change(left, right, |piece, len, sums| {
            if piece.fate == Fate::Sacked {
                return;
            }
            if piece.fate == Fate::Lost {
                sums.lost_len -= len;
            }
            rack.update(now, piece, piece.end, min_rtt, echo);
            rack.see(piece.end, piece.is_retransmitted);
            piece.fate = Fate::Sacked;
            sums.sacked_len += len;
        });
        self.rack = rack;
        self.sacked_len - sacked_len_before
    }

    /// A report of bytes that came twice, with an acknowledgement of all before `snd_una`. One in
    /// a round trip counts. RFC 2883; RFC 8985 6.2 step 4
    pub fn duplicate_reported(&mut self, snd_una: u64) {
        if snd_una >= self.rack.dsack_round {
            self.rack.dsack_round = self.end();
            self.rack.reo_wnd_mult = self.rack.reo_wnd_mult.saturating_add(1);
            self.rack.reo_wnd_persist = REO_WND_PERSIST;
        }
    }

    /// Recovery is over. RFC 8985 6.2.4
    pub fn end_recovery(&mut self) {
        self.rack.reo_wnd_persist = self.rack.reo_wnd_persist.saturating_sub(1);
        if self.rack.reo_wnd_persist == 0 {
            self.rack.reo_wnd_mult = 1;
        }
    }

    /// Marks what has been overtaken for too long as lost. Returns the time after which something
    /// more will be, if nothing comes. RFC 8985 6.2 step 5
    pub fn detect_losses(&mut self, about: &Detection) -> Option<Duration> {
        if self.rack.end == 0 {
            return None; // Nothing has arrived yet.
        }
        let deadline = self.rack.rtt + self.reo_wnd(about);
        let mut wait = None;
        for piece in &mut self.pieces {
            if piece.fate != Fate::Out || !self.rack.was_sent_after(piece) {
                continue;
            }
            let age = about.now.since(piece.sent_at);
            if age >= deadline {
                piece.fate = Fate::Lost;
            } else {
                wait = wait.max(Some(deadline - age));
            }
        }
        self.count_lost();
        wait
    }

    /// RFC 8985 6.2 step 4
    fn reo_wnd(&self, about: &Detection) -> Duration {
        let overtaken_by = self.sacked_len;
        if !self.rack.is_reordering_seen
            && (about.is_recovering || overtaken_by >= DUP_THRESH * about.mss)
        {
            return Duration::ZERO;
        }
        let part = about.min_rtt / 4 * u32::from(self.rack.reo_wnd_mult);
        part.min(about.srtt)
    }

    /// The retransmission timer has expired. With `is_all`, all that the peer is not known to have
    /// is lost; else what RACK says and the first piece. RFC 6298 5.4, RFC 8985 6.3
    pub fn timed_out(&mut self, about: &Detection, is_all: bool) {
        let deadline = self.rack.rtt + self.reo_wnd(about);
        let mut is_first = true;
        for piece in &mut self.pieces {
            let is_old = about.now.since(piece.sent_at) >= deadline;
            if piece.fate == Fate::Out && (is_all || is_first || is_old) {
                piece.fate = Fate::Lost;
            }
            is_first = false;
        }
        self.count_lost();
    }

    /// The first `len` bytes are lost: what three duplicate acknowledgements say of a peer without
    /// SACK, or an acknowledgement in recovery that is partial. RFC 6582 3.2
    pub fn first_is_lost(&mut self, len: u64) {
        let end = (self.start + len).min(self.end());
        self.change(self.start, end, |piece, len, sums| {
            if piece.fate == Fate::Out {
                piece.fate = Fate::Lost;
                sums.lost_len += len;
            }
        });
    }

    /// The peer has said that it has the first bytes, and does not acknowledge them: it has thrown
    /// them away. RFC 2018 8
    pub fn is_reneged(&self) -> bool {
        let first = self.pieces.front();
        first.is_some_and(|piece| piece.fate == Fate::Sacked)
    }

    /// Whether something that left again is under way.
    pub fn has_retransmitted(&self) -> bool {
        let mut pieces = self.pieces.iter();
        pieces.any(|piece| piece.is_retransmitted && piece.fate != Fate::Sacked)
    }

    /// What was thought to be lost is under way, after all.
    pub fn nothing_is_lost(&mut self) {
        for piece in &mut self.pieces {
            if piece.fate == Fate::Lost {
                piece.fate = Fate::Out;
            }
        }
        self.lost_len = 0;
    }

    /// What the peer was said to have is not believed any more: it has a right to drop it, and has
    /// acknowledged nothing since. RFC 2018 8
    pub fn forget_sacks(&mut self) {
        for piece in &mut self.pieces {
            if piece.fate == Fate::Sacked {
                piece.fate = Fate::Out;
            }
        }
        self.sacked_len = 0;
    }

    /// The sums are those of the pieces, and these are in order.
    pub(crate) fn assert_consistent(&self) {
        let (mut start, mut sacked_len, mut lost_len) = (self.start, 0, 0);
        for piece in &self.pieces {
            assert!(start < piece.end, "{start} to {}", piece.end);
            let len = piece.end - start;
            match piece.fate {
                Fate::Sacked => sacked_len += len,
                Fate::Lost => lost_len += len,
                Fate::Out => {}
            }
            start = piece.end;
        }
        assert_eq!((sacked_len, lost_len), (self.sacked_len, self.lost_len));
    }

    fn count_lost(&mut self) {
        let mut start = self.start;
        self.lost_len = 0;
        for piece in &self.pieces {
            if piece.fate == Fate::Lost {
                self.lost_len += piece.end - start;
            }
            start = piece.end;
        }
    }

    fn start_of(&self, at: usize) -> u64 {
        match at {
            0 => self.start,
            _ => self.pieces[at - 1].end,
        }
    }

    /// Applies `change` to the pieces of `left..right`, split at both ends. It is given the length
    /// of each, and the sums to keep right.
    fn change(
        &mut self,
        left: u64,
        right: u64,
        mut change: impl FnMut(&mut Piece, u64, &mut Sums),
    ) {
        let first = self.split(left);
        let last = self.split(right);
        let mut start = self.start_of(first);
        let mut sums = Sums {
            sacked_len: self.sacked_len,
            lost_len: self.lost_len,
        };
        for piece in self.pieces.range_mut(first..last) {
            change(piece, piece.end - start, &mut sums);
            start = piece.end;
        }
        (self.sacked_len, self.lost_len) = (sums.sacked_len, sums.lost_len);
        self.join(first.saturating_sub(1), last + 1);
    }

    /// The index of the piece that begins at `place`: one is split if none does.
    fn split(&mut self, place: u64) -> usize {
        let at = self.pieces.partition_point(|piece| piece.end <= place);
        if at == self.pieces.len() || self.start_of(at) >= place {
            return at;
        }
        let mut front = self.pieces[at];
        front.end = place;
        self.pieces.insert(at, front);
        at + 1
    }

    /// Neighbours in `first..last` that have become alike are one piece.
    fn join(&mut self, first: usize, last: usize) {
        let mut at = last.min(self.pieces.len());
        while at > first + 1 {
            at -= 1;
            let (before, piece) = (self.pieces[at - 1], self.pieces[at]);
            if before.is_like(&piece) {
                self.pieces[at - 1].end = piece.end;
                self.pieces.remove(at);
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Sums {
    sacked_len: u64,
    lost_len: u64,
}

/// What the peer has echoed of our clock, for telling the arrival of a retransmission from that of
/// the first try. RFC 8985 6.2 step 2
#[derive(Clone, Copy, Debug, Default)]
pub struct Echoed {
    /// TSecr, as the time of ours that it stands for; rounded down to milliseconds.
    pub sent_at: Option<Instant>,
}

impl Rack {
    /// RFC 8985 6.2 step 2
    fn update(&mut self, now: Instant, piece: &Piece, end: u64, min_rtt: Duration, echo: Echoed) {
        let rtt = now.since(piece.sent_at);
        if piece.is_retransmitted {
            // It may be the first try that has arrived, after all.
            let sent_at = Instant::from_nanos(piece.sent_at.as_millis() * 1_000_000);
            if echo.sent_at.is_some_and(|echoed| echoed < sent_at) || rtt < min_rtt {
                return;
            }
        }
        self.rtt = rtt;
        if (piece.sent_at, end) > (self.xmit_at, self.end) {
            (self.xmit_at, self.end) = (piece.sent_at, end);
        }
    }

    /// RFC 8985 6.2 step 3
    fn see(&mut self, end: u64, is_retransmitted: bool) {
        if end > self.fack {
            self.fack = end;
        } else if end < self.fack && !is_retransmitted {
            self.is_reordering_seen = true;
        }
    }

    fn was_sent_after(&self, piece: &Piece) -> bool {
        (self.xmit_at, self.end) > (piece.sent_at, piece.end)
    }
}

impl Piece {
    fn is_fresh(&self) -> bool {
        self.fate == Fate::Out && !self.is_retransmitted
    }

    /// Whether one piece may stand for both. What has arrived needs no time any more.
    fn is_like(&self, other: &Piece) -> bool {
        let is_done = self.fate == Fate::Sacked && other.fate == Fate::Sacked;
        let is_same = self.fate == other.fate
            && self.is_retransmitted == other.is_retransmitted
            && self.sent_at == other.sent_at;
        is_same || (is_done && self.is_retransmitted == other.is_retransmitted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1 << 32;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn about(now: Instant) -> Detection {
        Detection {
            now,
            srtt: Duration::from_millis(40),
            min_rtt: Duration::from_millis(40),
            is_recovering: false,
            mss: 1000,
        }
    }

    fn sack(flight: &mut Flight, now: Instant, left: u64, right: u64) -> u64 {
        let (left, right) = (START + left, START + right);
        flight.sack(now, left, right, Duration::ZERO, Echoed::default())
    }

    fn acknowledge(flight: &mut Flight, now: Instant, to: u64) -> Arrival {
        flight.acknowledge(now, START + to, Duration::ZERO, Echoed::default())
    }

    /// Seen: a peer acknowledged what had not come, until much was under way; let the time-out
    /// come; and then acknowledged segment by segment. Cause: each retransmission was a piece of
    /// its own, without a limit, and all of them were looked at for every acknowledgement. Cure:
    /// at the limit a retransmission joins the one before it.
    #[test]
    fn retransmissions_one_by_one_keep_the_limit_of_pieces() {
        let mut flight = Flight::new(START);
        flight.send(at(0), 10_000_000);
        flight.timed_out(&about(at(1000)), true);
        for ms in 1000..6000 {
            let (place, len) = flight.next_lost(1000).expect("more is lost");
            flight.send_again(at(ms), place, len);
        }
        assert_eq!(flight.lost_len(), 5_000_000);
        assert!(flight.pieces.len() <= PIECES_MAX, "{}", flight.pieces.len());
        flight.assert_consistent();
    }

    #[test]
    fn what_leaves_at_one_instant_is_one_piece() {
        let mut flight = Flight::new(START);
        for _ in 0..10 {
            flight.send(at(0), 1000);
        }
        flight.send(at(1), 1000);
        assert_eq!((flight.pieces.len(), flight.len()), (2, 11_000));
        assert_eq!(sack(&mut flight, at(40), 2000, 3000), 1000);
        assert_eq!((flight.pieces.len(), flight.pipe()), (4, 10_000));
        let arrival = acknowledge(&mut flight, at(41), 10_000);
        assert_eq!(
            arrival.delivered, 9000,
            "what was SACKed is not delivered twice"
        );
        assert_eq!(arrival.first_sent_at, Some(at(0)));
        assert_eq!((flight.pieces.len(), flight.pipe()), (1, 1000));
    }

    #[test]
    fn three_segments_that_have_overtaken_leave_no_reordering_window() {
        let mut flight = Flight::new(START);
        flight.send(at(0), 5000);
        sack(&mut flight, at(40), 1000, 3000);
        assert_eq!(
            flight.detect_losses(&about(at(40))),
            Some(Duration::from_millis(10))
        );
        assert_eq!(flight.lost_len(), 0);
        sack(&mut flight, at(40), 3000, 4000);
        assert_eq!(flight.detect_losses(&about(at(40))), None);
        assert_eq!(
            flight.next_lost(9000),
            Some((START, 1000)),
            "what is behind waits"
        );
    }

    #[test]
    fn a_peer_that_reports_each_second_byte_does_not_make_more_pieces_than_allowed() {
        let mut flight = Flight::new(START);
        flight.send(at(0), 100_000);
        for left in (1..100_000).step_by(2) {
            sack(&mut flight, at(1), left, left + 1);
        }
        assert!(flight.pieces.len() <= PIECES_MAX, "{}", flight.pieces.len());
        acknowledge(&mut flight, at(2), 100_000);
        assert!(flight.is_empty() && flight.pieces.capacity() <= 4 * PIECES_KEPT);
    }

    #[test]
    fn new_data_joins_the_last_piece_when_there_are_many() {
        let mut flight = Flight::new(START);
        for ms in 0..5000 {
            assert!(!flight.is_full());
            flight.send(at(ms), 10);
        }
        assert_eq!((flight.len(), flight.pieces.len()), (50_000, PIECES_MANY));
    }

    /// The fate of each byte, beside the pieces.
    #[test]
    fn its_sums_agree_with_a_fate_for_each_byte() {
        let mut state = 11_u64;
        let mut random = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..300 {
            let mut flight = Flight::new(START);
            let (mut fates, mut una): (Vec<Fate>, u64) = (Vec::new(), 0);
            for step in 0..60 {
                let (now, end) = (at(step), fates.len() as u64);
                match random(6) {
                    0 | 1 => {
                        let len = random(50) + 1;
                        flight.send(now, len);
                        fates.resize((end + len) as usize, Fate::Out);
                    }
                    2 if end > una => {
                        una += random(end - una) + 1;
                        acknowledge(&mut flight, now, una);
                    }
                    3 if end > una => {
                        let left = una + random(end - una);
                        let right = left + random(end - left) + 1;
                        sack(&mut flight, now, left, right);
                        fates[left as usize..right as usize].fill(Fate::Sacked);
                    }
                    4 => {
                        flight.timed_out(&about(now), true);
                        for fate in fates[una as usize..].iter_mut() {
                            if *fate == Fate::Out {
                                *fate = Fate::Lost;
                            }
                        }
                    }
                    _ => {
                        let next = flight.next_lost(20);
                        let lost = (una..end).find(|&at| fates[at as usize] == Fate::Lost);
                        assert_eq!(next.map(|(place, _)| place), lost.map(|at| START + at));
                        if let Some((place, len)) = next {
                            flight.send_again(now, place, len);
                            let from = (place - START) as usize;
                            fates[from..from + len as usize].fill(Fate::Out);
                        }
                    }
                }
                let count =
                    |fate| fates[una as usize..].iter().filter(|&&f| f == fate).count() as u64;
                assert_eq!(flight.sacked_len(), count(Fate::Sacked));
                assert_eq!(flight.lost_len(), count(Fate::Lost));
                assert_eq!(flight.pipe(), count(Fate::Out));
                assert_eq!(flight.end(), START + fates.len() as u64);
            }
        }
    }
}
