//! Bitmaps of descriptors for `select(2)`: one bit for each, from 0 to the highest.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use crate::interest::Readiness;
use crate::sys;

/// A bitmap of the descriptors to read from, and one of those to write to.
#[derive(Clone, Default)]
pub(crate) struct Bitmaps {
    reads: Vec<u64>,
    writes: Vec<u64>,
}

impl Bitmaps {
    pub(crate) fn set(&mut self, fd: RawFd, reads: bool, writes: bool) {
        let (word, bit) = word_and_bit(fd);
        if word >= self.reads.len() {
            self.reads.resize(word + 1, 0);
            self.writes.resize(word + 1, 0);
        }
        self.clear(fd);
        self.reads[word] |= if reads { bit } else { 0 };
        self.writes[word] |= if writes { bit } else { 0 };
    }

    pub(crate) fn clear(&mut self, fd: RawFd) {
        let (word, bit) = word_and_bit(fd);
        self.reads[word] &= !bit;
        self.writes[word] &= !bit;
    }

    pub(crate) fn copy_from(&mut self, other: &Bitmaps) {
        self.reads.clone_from(&other.reads);
        self.writes.clone_from(&other.writes);
    }

    /// Leaves only the bits of ready descriptors and returns their number. After an error the bits
    /// are undefined.
    pub(crate) fn select(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        let words = self.words();
        self.reads.truncate(words);
        self.writes.truncate(words);
        sys::select(&mut self.reads, &mut self.writes, timeout)
    }

    /// The words up to the last with a bit in it.
    fn words(&self) -> usize {
        let mut either = self.reads.iter().zip(&self.writes);
        either.rposition(|(reads, writes)| reads | writes != 0).map_or(0, |last| last + 1)
    }

    /// Descriptors whose bit is set, in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (RawFd, Readiness)> {
        let words = self.reads.iter().zip(&self.writes).enumerate();
        words.flat_map(|(word, (&reads, &writes))| {
            let mut either = reads | writes;
            std::iter::from_fn(move || {
                let bit = either & either.wrapping_neg();
                if bit == 0 {
                    return None;
                }
                either ^= bit;
                let mut readiness = Readiness::default();
                if reads & bit != 0 {
                    readiness |= Readiness::READABLE;
                }
                if writes & bit != 0 {
                    readiness |= Readiness::WRITABLE;
                }
                Some(((word * 64) as RawFd + bit.trailing_zeros() as RawFd, readiness))
            })
        })
    }
}

fn word_and_bit(fd: RawFd) -> (usize, u64) {
    (fd as usize / 64, 1 << (fd % 64))
}
