//! The scoreboard: unacknowledged data, and the detection of its losses.
//!
//! ```text
//!   start = snd_una                                                   end = snd_nxt
//!     │  piece        │ piece   │ piece             │ piece   │ piece     │
//!     │  sent_at 10ms │ 10ms    │ 12ms              │ 30ms    │ 31ms      │
//!     │  lost         │ SACKed  │ SACKed            │ again   │           │
//!
//!   pipe = (end − start) − SACKed − lost                 bytes believed to be in flight
//! ```
//!
//! Pieces tile the unacknowledged range without gaps. A piece left at one instant and has had one
//! fate since, so it may be many segments; a SACK block that ends inside a piece splits it. There
//! are at most [`PIECES_MAX`]: at the limit a SACK block that would split is ignored and a
//! retransmission joins the one before it, and near it new data joins the last piece. A peer that
//! reports each second byte, or acknowledges retransmissions segment by segment, gains nothing.
//!
//! Data is lost if other data that was sent later has arrived: RFC 8985 (RACK), by time. The
//! reordering window is a part of the round trip, and zero once three segments have overtaken. For
//! a peer without SACK the caller counts duplicate acknowledgements and marks the losses.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Instant;

/// Limit of pieces in a scoreboard.
pub const PIECES_MAX: usize = 512;

/// From here on, new data joins the last piece if it can, with the later time of the two.
const PIECES_MANY: usize = PIECES_MAX / 2;

/// Capacity that an empty scoreboard keeps, so that a connection at rest is small.
const PIECES_KEPT: usize = 16;

/// RFC 5681 and 6675: so many segments that have overtaken one mean that it is lost.
pub const DUP_THRESH: u64 = 3;

/// RFC 8985 6.2.4: a duplicate report widens the reordering window for so many recoveries.
const REO_WND_PERSIST: u8 = 16;

/// A run of bytes that left at one instant and has had one fate since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The position after its last byte; it begins where the one before ends.
    pub end: u64,
    /// Time of the last transmission.
    pub sent_at: Instant,
    /// Fate as far as known.
    pub fate: Fate,
    /// True after a retransmission: no round-trip sample (Karn).
    pub is_retransmitted: bool,
}

/// Fate of a piece, as far as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Thought to be under way.
    Out,
    /// The peer has it. RFC 2018
    Sacked,
    /// Thought to be lost, and not yet sent again.
    Lost,
}

/// Pieces that an acknowledgement has reported, summed up: only sums and the latest matter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrival {
    /// Bytes that are known to have arrived, and were not before.
    pub delivered: u64,
    /// The oldest time at which a piece left that came through at its first try, and is now
    /// acknowledged in order.
    pub first_sent_at: Option<Instant>,
    /// A retransmitted piece is among those acknowledged in order.
    pub has_retransmitted: bool,
}

/// Unacknowledged data of a connection.
#[derive(Clone, Debug)]
pub struct Scoreboard {
    start: u64,
    pieces: VecDeque<Piece>,
    sacked_len: u64,
    lost_len: u64,
    rack: Rack,
}

/// RFC 8985 5.2 and 5.3, per connection.
#[derive(Clone, Copy, Debug)]
struct Rack {
    /// Latest transmission time among the pieces that have arrived.
    xmit_at: Instant,
    end: u64,
    rtt: Duration,
    /// The highest position that has arrived.
    fack: u64,
    is_reordering_seen: bool,
    /// snd_nxt when a report of duplicates was counted last.
    dsack_round: u64,
    reo_wnd_mult: u8,
    reo_wnd_persist: u8,
}

/// Inputs of the loss detection from the connection. RFC 8985 6.2.4
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

impl Scoreboard {
    /// Nothing is under way; the next byte is at `start`.
    pub fn new(start: u64) -> Scoreboard {
        Scoreboard {
            start,
            // An idle connection has only had its SYN in it.
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

    /// True if all is acknowledged.
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
        let piece = Piece { end, sent_at: now, fate: Fate::Out, is_retransmitted: false };
        self.pieces.push_back(piece);
    }

    /// The next bytes to send again, at most `len_max` of them: position and length.
    pub fn next_lost(&self, len_max: u64) -> Option<(u64, u64)> {
        if self.lost_len == 0 {
            return None;
        }
        let mut start = self.start;
        for (at, piece) in self.pieces.iter().enumerate() {
            if piece.fate == Fate::Lost {
                // Lost pieces directly behind it leave with it.
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
        let start = self.start_of(at);
        let end = self.pieces[at].end;
        let start = start.max(end.saturating_sub(len_max));
        Some((start, end - start))
    }

    /// Sends `len` bytes at `position` again.
    pub fn send_again(&mut self, now: Instant, position: u64, len: u64) {
        let again = |piece: &mut Piece| {
            piece.sent_at = now;
            piece.is_retransmitted = true;
        };
        self.change(position, position + len, |piece, len, sums| {
            if piece.fate == Fate::Lost {
                sums.lost_len -= len;
                piece.fate = Fate::Out;
            }
            again(piece);
        });
        if self.pieces.len() > PIECES_MAX {
            self.join_retransmission(position);
        }
    }

    /// Joins the retransmission at `position` with one just before it, with the later time.
    fn join_retransmission(&mut self, position: u64) {
        let is_again = |piece: &Piece| piece.fate == Fate::Out && piece.is_retransmitted;
        let at = self.pieces.partition_point(|piece| piece.end <= position);
        if at > 0 && is_again(&self.pieces[at - 1]) && is_again(&self.pieces[at]) {
            self.pieces.remove(at - 1);
        }
    }

    /// Removes all before `to`, which the peer has acknowledged.
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

    /// Marks `left..right` as arrived out of order. Returns the number of bytes not reported
    /// before; none if the block lies outside of the flight or the limit of pieces is met.
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

    /// Ends recovery. RFC 8985 6.2.4
    pub fn end_recovery(&mut self) {
        self.rack.reo_wnd_persist = self.rack.reo_wnd_persist.saturating_sub(1);
        if self.rack.reo_wnd_persist == 0 {
            self.rack.reo_wnd_mult = 1;
        }
    }

    /// Marks pieces overtaken for too long as lost. Returns the time after which more will be, if
    /// nothing arrives. RFC 8985 6.2 step 5
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

    /// Reordering window. RFC 8985 6.2 step 4
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

    /// Marks the first `len` bytes as lost, after three duplicate acknowledgements of a peer
    /// without SACK, or after a partial acknowledgement in recovery. RFC 6582 3.2
    pub fn first_is_lost(&mut self, len: u64) {
        let end = (self.start + len).min(self.end());
        self.change(self.start, end, |piece, len, sums| {
            if piece.fate == Fate::Out {
                piece.fate = Fate::Lost;
                sums.lost_len += len;
            }
        });
    }

    /// True if the peer has reported the first bytes but does not acknowledge them: it has dropped
    /// them. RFC 2018 8
    pub fn is_reneged(&self) -> bool {
        let first = self.pieces.front();
        first.is_some_and(|piece| piece.fate == Fate::Sacked)
    }

    /// True if a retransmission is in flight.
    pub fn has_retransmitted(&self) -> bool {
        let mut pieces = self.pieces.iter();
        pieces.any(|piece| piece.is_retransmitted && piece.fate != Fate::Sacked)
    }

    /// Marks everything that was thought to be lost as in flight again.
    pub fn nothing_is_lost(&mut self) {
        for piece in &mut self.pieces {
            if piece.fate == Fate::Lost {
                piece.fate = Fate::Out;
            }
        }
        self.lost_len = 0;
    }

    /// Forgets which ranges the peer has reported. It may drop them, and has acknowledged nothing
    /// since. RFC 2018 8
    pub fn forget_sacks(&mut self) {
        for piece in &mut self.pieces {
            if piece.fate == Fate::Sacked {
                piece.fate = Fate::Out;
            }
        }
        self.sacked_len = 0;
    }

    /// Asserts that the sums are those of the pieces, and that these are in order.
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

    /// Applies `edit` to the pieces of `left..right`, split at both ends. It is given the length
    /// of each, and the sums to keep right.
    fn change(&mut self, left: u64, right: u64, mut edit: impl FnMut(&mut Piece, u64, &mut Sums)) {
        let first = self.split(left);
        let last = self.split(right);
        let mut start = self.start_of(first);
        let mut sums = Sums { sacked_len: self.sacked_len, lost_len: self.lost_len };
        for piece in self.pieces.range_mut(first..last) {
            edit(piece, piece.end - start, &mut sums);
            start = piece.end;
        }
        (self.sacked_len, self.lost_len) = (sums.sacked_len, sums.lost_len);
        self.join(first.saturating_sub(1), last + 1);
    }

    /// Index of the piece that begins at `position`, which is split off if needed.
    fn split(&mut self, position: u64) -> usize {
        let at = self.pieces.partition_point(|piece| piece.end <= position);
        if at == self.pieces.len() || self.start_of(at) >= position {
            return at;
        }
        let mut front = self.pieces[at];
        front.end = position;
        self.pieces.insert(at, front);
        at + 1
    }

    /// Joins neighbours in `first..last` that have become alike.
    fn join(&mut self, first: usize, last: usize) {
        let mut at = last.min(self.pieces.len());
        while at > first + 1 {
            at -= 1;
            let before = self.pieces[at - 1];
            let piece = self.pieces[at];
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

/// The peer's timestamp echo, which tells the arrival of a retransmission from that of the first
/// transmission. RFC 8985 6.2 step 2
#[derive(Clone, Copy, Debug, Default)]
pub struct Echoed {
    /// TSecr as a time, rounded down to milliseconds.
    pub sent_at: Option<Instant>,
}

impl Rack {
    /// Takes the piece of an arrival. RFC 8985 6.2 step 2
    fn update(&mut self, now: Instant, piece: &Piece, end: u64, min_rtt: Duration, echo: Echoed) {
        let rtt = now.since(piece.sent_at);
        if piece.is_retransmitted {
            // The first transmission may have arrived after all.
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

    /// Detects reordering. RFC 8985 6.2 step 3
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

    /// True if one piece can stand for both. Times of pieces that have arrived do not matter.
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

    fn sack(board: &mut Scoreboard, now: Instant, left: u64, right: u64) -> u64 {
        let left = START + left;
        let right = START + right;
        board.sack(now, left, right, Duration::ZERO, Echoed::default())
    }

    fn acknowledge(board: &mut Scoreboard, now: Instant, to: u64) -> Arrival {
        board.acknowledge(now, START + to, Duration::ZERO, Echoed::default())
    }

    /// Seen: a peer acknowledged data that it had not received, until much was in flight; waited
    /// for the time-out; and then acknowledged segment by segment. Cause: each retransmission was a
    /// piece of its own, without a limit, and every acknowledgement scanned all of them. Cure: at
    /// the limit a retransmission joins the one before it.
    #[test]
    fn single_retransmissions_keep_the_piece_limit() {
        let mut board = Scoreboard::new(START);
        board.send(at(0), 10_000_000);
        board.timed_out(&about(at(1000)), true);
        for ms in 1000..6000 {
            let (position, len) = board.next_lost(1000).expect("more is lost");
            board.send_again(at(ms), position, len);
        }
        assert_eq!(board.lost_len(), 5_000_000);
        assert!(board.pieces.len() <= PIECES_MAX, "{}", board.pieces.len());
        board.assert_consistent();
    }

    #[test]
    fn one_instant_is_one_piece() {
        let mut board = Scoreboard::new(START);
        for _ in 0..10 {
            board.send(at(0), 1000);
        }
        board.send(at(1), 1000);
        assert_eq!((board.pieces.len(), board.len()), (2, 11_000));
        assert_eq!(sack(&mut board, at(40), 2000, 3000), 1000);
        assert_eq!((board.pieces.len(), board.pipe()), (4, 10_000));
        let arrival = acknowledge(&mut board, at(41), 10_000);
        assert_eq!(arrival.delivered, 9000, "SACKed bytes are delivered once");
        assert_eq!(arrival.first_sent_at, Some(at(0)));
        assert_eq!((board.pieces.len(), board.pipe()), (1, 1000));
    }

    #[test]
    fn three_dupacks_end_the_reordering_window() {
        let mut board = Scoreboard::new(START);
        board.send(at(0), 5000);
        sack(&mut board, at(40), 1000, 3000);
        assert_eq!(board.detect_losses(&about(at(40))), Some(Duration::from_millis(10)));
        assert_eq!(board.lost_len(), 0);
        sack(&mut board, at(40), 3000, 4000);
        assert_eq!(board.detect_losses(&about(at(40))), None);
        assert_eq!(board.next_lost(9000), Some((START, 1000)), "the bytes behind are not lost yet");
    }

    #[test]
    fn hostile_sack_keeps_the_piece_limit() {
        let mut board = Scoreboard::new(START);
        board.send(at(0), 100_000);
        for left in (1..100_000).step_by(2) {
            sack(&mut board, at(1), left, left + 1);
        }
        assert!(board.pieces.len() <= PIECES_MAX, "{}", board.pieces.len());
        acknowledge(&mut board, at(2), 100_000);
        assert!(board.is_empty() && board.pieces.capacity() <= 4 * PIECES_KEPT);
    }

    #[test]
    fn new_data_joins_the_last_piece_at_the_limit() {
        let mut board = Scoreboard::new(START);
        for ms in 0..5000 {
            assert!(!board.is_full());
            board.send(at(ms), 10);
        }
        assert_eq!((board.len(), board.pieces.len()), (50_000, PIECES_MANY));
    }

    /// The fate of each byte, beside the pieces.
    #[test]
    fn sums_agree_with_a_fate_per_byte() {
        let mut state = 11_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..300 {
            let mut board = Scoreboard::new(START);
            let (mut fates, mut una): (Vec<Fate>, u64) = (Vec::new(), 0);
            for step in 0..60 {
                let now = at(step);
                let end = fates.len() as u64;
                match random(6) {
                    0 | 1 => {
                        let len = random(50) + 1;
                        board.send(now, len);
                        fates.resize((end + len) as usize, Fate::Out);
                    }
                    2 if end > una => {
                        una += random(end - una) + 1;
                        acknowledge(&mut board, now, una);
                    }
                    3 if end > una => {
                        let left = una + random(end - una);
                        let right = left + random(end - left) + 1;
                        sack(&mut board, now, left, right);
                        fates[left as usize..right as usize].fill(Fate::Sacked);
                    }
                    4 => {
                        board.timed_out(&about(now), true);
                        for fate in fates[una as usize..].iter_mut() {
                            if *fate == Fate::Out {
                                *fate = Fate::Lost;
                            }
                        }
                    }
                    _ => {
                        let next = board.next_lost(20);
                        let lost = (una..end).find(|&at| fates[at as usize] == Fate::Lost);
                        assert_eq!(next.map(|(position, _)| position), lost.map(|at| START + at));
                        if let Some((position, len)) = next {
                            board.send_again(now, position, len);
                            let from = (position - START) as usize;
                            fates[from..from + len as usize].fill(Fate::Out);
                        }
                    }
                }
                let count =
                    |fate| fates[una as usize..].iter().filter(|&&f| f == fate).count() as u64;
                assert_eq!(board.sacked_len(), count(Fate::Sacked));
                assert_eq!(board.lost_len(), count(Fate::Lost));
                assert_eq!(board.pipe(), count(Fate::Out));
                assert_eq!(board.end(), START + fates.len() as u64);
            }
        }
    }
}
