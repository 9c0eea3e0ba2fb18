//! Data out of order: ranges of positions behind rcv_nxt, and the ones to report.
//!
//! ```text
//!   rcv_nxt      ┌─ range ─┐       ┌─ range ─┐          ┌ range ┐
//!     │ ··hole·· │ stamp 3 │ hole  │ stamp 7 │ ··hole·· │   5   │        newest first: 7, 5, 3
//! ```
//!
//! Ranges are in order and do not touch. Each has a stamp of its last change, since the SACK option
//! reports the most recent first (RFC 2018 4). There are at most [`RANGES_MAX`]: a segment that
//! would need another is dropped, as if it had been lost.

use crate::wire::tcp::{SackBlock, SackBlocks};

use super::position::Numbering;

/// The limit of ranges. Segments that belong to a known range, or to the first hole, always fit.
pub const RANGES_MAX: usize = 32;

/// Ranges out of order; no memory until there are some.
#[derive(Clone, Debug, Default)]
pub struct Reassembly {
    ranges: Vec<Stamped>,
    last_stamp: u32,
}

#[derive(Clone, Copy, Debug)]
struct Stamped {
    start: u64,
    end: u64,
    stamp: u32,
}

/// Outcome of [`Reassembly::insert`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// The range is remembered.
    New,
    /// All of it was there.
    Duplicate,
    /// There are too many ranges.
    Refused,
}

impl Reassembly {
    /// True if nothing waits behind a hole.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Remembers `start..end`, which lies behind rcv_nxt.
    pub fn insert(&mut self, start: u64, end: u64) -> Inserted {
        debug_assert!(start < end, "{start} to {end}");
        // Ranges that overlap or touch are merged.
        let first = self.ranges.partition_point(|range| range.end < start);
        let after = self.ranges.partition_point(|range| range.start <= end);
        let touched = &self.ranges[first..after];
        if touched.iter().any(|range| range.start <= start && end <= range.end) {
            return Inserted::Duplicate;
        }
        self.last_stamp = self.last_stamp.wrapping_add(1);
        let mut merged = Stamped { start, end, stamp: self.last_stamp };
        let (Some(lowest), Some(highest)) = (touched.first(), touched.last()) else {
            if self.ranges.len() >= RANGES_MAX {
                return Inserted::Refused;
            }
            self.ranges.insert(first, merged);
            return Inserted::New;
        };
        merged.start = merged.start.min(lowest.start);
        merged.end = merged.end.max(highest.end);
        self.ranges[first] = merged;
        self.ranges.drain(first + 1..after);
        Inserted::New
    }

    /// Advances to `rcv_nxt`. Returns the end of the data in order, stored ranges included.
    pub fn advance(&mut self, rcv_nxt: u64) -> u64 {
        let mut to = rcv_nxt;
        let mut count = 0;
        for range in &self.ranges {
            if range.start > to {
                break;
            }
            to = to.max(range.end);
            count += 1;
        }
        self.ranges.drain(..count);
        to
    }

    /// The range that holds `start..end`, if one does. For the second block of a report of
    /// duplicates: RFC 2883 4.
    pub fn containing(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let at = self.ranges.partition_point(|range| range.end < end);
        let range = self.ranges.get(at)?;
        (range.start <= start && end <= range.end).then_some((range.start, range.end))
    }

    /// Adds the blocks to report to `blocks`, the most recent first, until it holds `count_max`.
    /// `first` is in it already, if given.
    pub fn report(
        &self,
        numbering: Numbering,
        blocks: &mut SackBlocks,
        count_max: usize,
        first: Option<(u64, u64)>,
    ) {
        let mut before: Option<u32> = None; // Ages grow from one to the next.
        while blocks.as_slice().len() < count_max {
            let age = |range: &Stamped| self.last_stamp.wrapping_sub(range.stamp);
            let older = self.ranges.iter().filter(|range| {
                before.is_none_or(|before| age(range) > before)
                    && first != Some((range.start, range.end))
            });
            let Some(newest) = older.min_by_key(|range| age(range)) else {
                break;
            };
            before = Some(age(newest));
            blocks.push(SackBlock {
                left: numbering.seq(newest.start),
                right: numbering.seq(newest.end),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::tcp::SeqNumber;

    const NUMBERING: Numbering = Numbering { initial: SeqNumber(0) };

    fn reported(reassembly: &Reassembly, count_max: usize) -> Vec<(u32, u32)> {
        let mut blocks = SackBlocks::NONE;
        reassembly.report(NUMBERING, &mut blocks, count_max, None);
        let pairs = blocks.as_slice().iter();
        pairs.map(|block| (block.left.0, block.right.0)).collect()
    }

    #[test]
    fn adjacent_ranges_merge() {
        let mut ranges = Reassembly::default();
        assert_eq!(ranges.insert(10, 20), Inserted::New);
        assert_eq!(ranges.insert(30, 40), Inserted::New);
        assert_eq!(ranges.insert(20, 30), Inserted::New);
        assert_eq!(ranges.insert(12, 38), Inserted::Duplicate);
        assert_eq!(reported(&ranges, 4), [(10, 40)]);
        assert_eq!(ranges.advance(5), 5);
        assert_eq!(ranges.advance(10), 40);
        assert!(ranges.is_empty());
    }

    #[test]
    fn the_latest_range_is_reported_first() {
        let mut ranges = Reassembly::default();
        for start in [50, 10, 90, 30, 70] {
            ranges.insert(start, start + 5);
        }
        assert_eq!(reported(&ranges, 3), [(70, 75), (30, 35), (90, 95)]);
        ranges.insert(15, 16);
        assert_eq!(reported(&ranges, 2), [(10, 16), (70, 75)]);
    }

    #[test]
    fn ranges_beyond_the_limit_are_refused() {
        let mut ranges = Reassembly::default();
        for at in 0..RANGES_MAX as u64 {
            assert_eq!(ranges.insert(10 * at, 10 * at + 5), Inserted::New);
        }
        assert_eq!(ranges.insert(5000, 5001), Inserted::Refused);
        assert_eq!(ranges.insert(5, 8), Inserted::New);
        assert_eq!(ranges.insert(0, 300), Inserted::New);
        assert_eq!(ranges.advance(0), 305);
    }

    #[test]
    fn agrees_with_a_set_of_bytes() {
        // Seeds are fixed: a failure repeats itself.
        let mut state = 1_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..200 {
            let (mut ranges, mut have, mut rcv_nxt) = (Reassembly::default(), [false; 400], 0);
            for _ in 0..100 {
                let start = rcv_nxt + random(60) + 1;
                let end = (start + random(30) + 1).min(400);
                if start >= end {
                    continue;
                }
                let was_there = have[start as usize..end as usize].iter().all(|&b| b);
                match ranges.insert(start, end) {
                    Inserted::Refused => continue,
                    inserted => assert_eq!(inserted == Inserted::Duplicate, was_there),
                }
                have[start as usize..end as usize].fill(true);
                if random(4) == 0 {
                    have[rcv_nxt as usize] = true;
                    let whole = have.iter().skip(rcv_nxt as usize).take_while(|&&b| b);
                    let expected = rcv_nxt + whole.count() as u64;
                    rcv_nxt = ranges.advance(rcv_nxt + 1);
                    assert_eq!(rcv_nxt, expected);
                }
            }
        }
    }
}
