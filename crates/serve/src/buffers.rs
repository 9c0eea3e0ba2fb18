//! Buffers for files between disk and reader, under one limit per server.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fiber::fs::{AlignedBuffer, DIRECT_ALIGNMENT};

use crate::metrics::MetricsWriter;

/// Most bytes to read from the disk at a time.
pub(crate) const PIECE_LEN_MAX: u64 = 1024 * 1024;

/// A buffer gets at most this part of the remaining bytes, so that some always remain.
const PART: usize = 4;

/// Part of the limit available to all slow peers together, so that some remains for others.
const SLOW_PART: usize = 2;

/// Length of an uncounted buffer, used when too little of the limit remains. Peers that do not read
/// pin their buffers until they time out: one each, and under the netstack all that are in flight.
const SMALL_LEN: usize = (16 << 10) + DIRECT_ALIGNMENT;

/// Part of the limit, and number of buffers, that stay mapped for the next reads.
const KEPT_PART: usize = 4;
const KEPT_MAX: usize = 64;

/// The buffers of a server.
pub(crate) struct Buffers {
    state: Mutex<BuffersState>,
}

/// INVARIANT: `out_len + kept_len <= len_max`.
struct BuffersState {
    len_max: usize,
    /// Bytes of counted buffers in use.
    out_len: usize,
    /// Bytes of `kept`, oldest buffer first.
    kept_len: usize,
    kept: Vec<AlignedBuffer>,
    small: u64,
}

/// An aligned buffer, held while a piece is read and sent.
pub(crate) struct Buffer {
    of: Arc<Buffers>,
    /// `None` only during drop.
    bytes: Option<AlignedBuffer>,
    counted_len: usize,
}

impl Buffers {
    /// An empty pool of at most `len_max` bytes.
    pub(crate) fn new(len_max: usize) -> Buffers {
        let state = BuffersState { len_max, out_len: 0, kept_len: 0, kept: Vec::new(), small: 0 };
        Buffers { state: Mutex::new(state) }
    }

    /// Writes the used part of the limit.
    pub(crate) fn write_metrics(&self, out: &mut MetricsWriter) {
        let (len, len_max, small) = {
            let state = self.lock();
            (state.out_len + state.kept_len, state.len_max, state.small)
        };
        let help = "Buffers in which files are read: in use, or kept for the next read.";
        out.gauge("weft_file_buffers_bytes", help, &[], len as f64);
        let help = "Limit on the total bytes of these buffers.";
        out.gauge("weft_file_buffers_max_bytes", help, &[], len_max as f64);
        let help = "Reads into a small, uncounted buffer because the limit was reached.";
        out.counter("weft_file_buffers_small_total", help, &[], small);
    }

    /// A buffer for this many bytes at any offset, or for fewer; `is_slow` for a peer that may hold
    /// it long.
    ///
    /// # Errors
    /// Errors of `mmap(2)`.
    pub(crate) fn take(self: &Arc<Self>, len: u64, is_slow: bool) -> io::Result<Buffer> {
        let wanted_len = len.min(PIECE_LEN_MAX) as usize + DIRECT_ALIGNMENT;
        let wanted_len = wanted_len.next_multiple_of(DIRECT_ALIGNMENT);
        let mut state = self.lock();
        let granted_len = state.grant(wanted_len, is_slow);
        let len = granted_len.unwrap_or(wanted_len.min(SMALL_LEN));
        let kept = granted_len.and_then(|len| state.take_kept(len));
        let counted_len = kept.as_ref().map(|kept| kept.len());
        let counted_len = counted_len.or(granted_len).unwrap_or(0);
        state.out_len += counted_len;
        state.small += u64::from(granted_len.is_none());
        let surplus = state.take_surplus();
        drop(state);
        // Unmapped outside the lock.
        drop(surplus);
        let mut buffer = Buffer { of: Arc::clone(self), bytes: kept, counted_len };
        if buffer.bytes.is_none() {
            buffer.bytes = Some(AlignedBuffer::new(len)?);
        }
        Ok(buffer)
    }

    fn put_back(&self, buffer: Option<AlignedBuffer>, counted_len: usize) {
        // An uncounted buffer is unmapped here.
        let buffer = buffer.filter(|_| counted_len > 0);
        let mut state = self.lock();
        state.out_len -= counted_len;
        if let Some(buffer) = buffer {
            state.kept_len += buffer.len();
            state.kept.push(buffer);
        }
        let surplus = state.take_surplus();
        drop(state);
        drop(surplus);
    }

    fn lock(&self) -> MutexGuard<'_, BuffersState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BuffersState {
    /// Returns the part of the wanted length that remains, if it is worthwhile.
    fn grant(&self, wanted_len: usize, is_slow: bool) -> Option<usize> {
        let len_max = self.len_max / if is_slow { SLOW_PART } else { 1 };
        let part = len_max.saturating_sub(self.out_len) / PART;
        let len = wanted_len.min(part / DIRECT_ALIGNMENT * DIRECT_ALIGNMENT);
        Some(len).filter(|&len| len >= wanted_len.min(SMALL_LEN))
    }

    /// A kept buffer that is long enough, and not much longer.
    fn take_kept(&mut self, len: usize) -> Option<AlignedBuffer> {
        let fits = |buffer: &AlignedBuffer| (len..=len + len / 4).contains(&buffer.len());
        let at = self.kept.iter().rposition(fits)?;
        let buffer = self.kept.remove(at);
        self.kept_len -= buffer.len();
        Some(buffer)
    }

    /// Removes the oldest kept buffers above the limits.
    fn take_surplus(&mut self) -> Vec<AlignedBuffer> {
        let mut surplus = Vec::new();
        let left = self.len_max.saturating_sub(self.out_len);
        let kept_len_max = left.min(self.len_max / KEPT_PART);
        while self.kept_len > kept_len_max || self.kept.len() > KEPT_MAX {
            let oldest = self.kept.remove(0);
            self.kept_len -= oldest.len();
            surplus.push(oldest);
        }
        surplus
    }
}

impl Buffer {
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        self.bytes.as_mut().expect("taken only by drop")
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        self.bytes.as_ref().expect("taken only by drop")
    }

    /// The longest piece that fits at any offset.
    pub(crate) fn piece_len(&self) -> u64 {
        (self.as_slice().len() - DIRECT_ALIGNMENT) as u64
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.of.put_back(self.bytes.take(), self.counted_len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN_MAX: usize = 16 << 20;

    fn buffers() -> Arc<Buffers> {
        Arc::new(Buffers::new(LEN_MAX))
    }

    /// Seen: 64 concurrent misses held 17 MB, a quarter of a memory cgroup of 70 MB, most of it for
    /// files a tenth as long; and in such a cgroup the event and the thread engine were killed,
    /// because malloc keeps freed memory on each of the threads that read. Cause: all buffers had
    /// one length, one per thread, from malloc. Cure: they are as long as the read, their sum has a
    /// limit, and each is a mapping of its own that is unmapped when dropped.
    #[test]
    fn buffers_fit_the_read_and_have_a_limit() {
        let buffers = buffers();
        let out_len = || buffers.lock().out_len;
        drop(buffers.take(1000, false).unwrap());
        assert_eq!(out_len(), 0);
        let few = [1000, 60_000, u64::MAX].map(|len| buffers.take(len, false).unwrap());
        let lens = few.each_ref().map(|buffer| buffer.as_slice().len());
        assert_eq!(lens, [8192, 65_536, PIECE_LEN_MAX as usize + 4096]);
        assert_eq!(out_len(), lens.iter().sum::<usize>());
        let many: Vec<_> = (0..1000).map(|_| buffers.take(PIECE_LEN_MAX, false).unwrap()).collect();
        assert!(out_len() <= LEN_MAX, "{} of {LEN_MAX} out", out_len());
        assert_eq!(many[999].piece_len(), (SMALL_LEN - DIRECT_ALIGNMENT) as u64);
        assert!(buffers.lock().small > 900);
        drop((few, many));
        assert_eq!(out_len(), 0);
    }

    /// For any limit and any number of slow peers.
    #[test]
    fn slow_peers_leave_half_of_the_limit() {
        for len_max in [1 << 20, 70_000_000 / 12, LEN_MAX, 64 << 20] {
            for count in [0, 1, 2, 31, 59, 60, 75, 76, 500] {
                for len in [1, 16 << 10, 64 << 10, 200_000, PIECE_LEN_MAX / 2] {
                    let buffers = Arc::new(Buffers::new(len_max));
                    let slow: Vec<_> =
                        (0..count).map(|_| buffers.take(len, true).unwrap()).collect();
                    let out_len = buffers.lock().out_len;
                    let says = format!("{count} x {len} of {len_max}: {out_len}");
                    assert!(out_len <= len_max / SLOW_PART, "{says}");
                    let small = buffers.lock().small;
                    let other = buffers.take(PIECE_LEN_MAX, false).unwrap();
                    let part = (len_max / SLOW_PART / PART) as u64;
                    let promised = (part - part % 4096 - 4096).min(PIECE_LEN_MAX);
                    assert!(other.piece_len() >= promised, "{} with {says}", other.piece_len());
                    assert_eq!(buffers.lock().small, small, "{says}");
                    drop((slow, other));
                    assert_eq!(buffers.lock().out_len, 0);
                }
            }
        }
    }

    /// Seen: slow peers had all of the limit. Cause: small buffers, which do not count, were kept
    /// when returned, and counted when reused. Cure: they are not kept, and a refused request takes
    /// no kept buffer.
    #[test]
    fn slow_peers_that_give_back_leave_half() {
        let buffers = buffers();
        for round in 0..20 {
            let slow: Vec<_> =
                (0..600).map(|_| buffers.take(PIECE_LEN_MAX, true).unwrap()).collect();
            let out_len = buffers.lock().out_len;
            assert!(out_len <= LEN_MAX / SLOW_PART, "{out_len} in round {round}");
            drop(slow);
        }
    }

    #[test]
    fn kept_buffers_yield_to_those_in_use() {
        let buffers = buffers();
        let kept_len = || buffers.lock().kept_len;
        let many: Vec<_> =
            (0..40).map(|_| buffers.take(PIECE_LEN_MAX / 8, false).unwrap()).collect();
        drop(many);
        assert!((LEN_MAX / KEPT_PART / 2..=LEN_MAX / KEPT_PART).contains(&kept_len()));
        let before = kept_len();
        let again = buffers.take(PIECE_LEN_MAX / 8 - 1000, false).unwrap();
        assert_eq!(before - kept_len(), again.as_slice().len(), "the buffer is a kept one");
        let held: Vec<_> = (0..100).map(|_| buffers.take(PIECE_LEN_MAX, false).unwrap()).collect();
        let state = buffers.lock();
        assert!(state.out_len + state.kept_len <= LEN_MAX);
        assert!(state.kept_len < before, "the oldest have gone");
        drop(state);
        drop((again, held));
    }
}
