//! Rings of bytes: sent ones, for applications that cannot produce them again, and received ones
//! until they are read.
//!
//! ```text
//!   stream offset   ···  start ──────────── end          start + length
//!   ring            [ ···│ held             │ free             │ ··· ]       length: 2^n
//!   index                start modulo length
//! ```
//!
//! A ring has memory, borrowed from a [`RingPool`], only while it holds bytes. An idle connection
//! has none, and short-lived ones allocate none. A connection takes a short ring first and a longer
//! one when that is full, so a byte does not take the memory of a window.

/// Memory of rings: those in use, and free ones for the next.
#[derive(Debug)]
pub struct RingPool {
    /// By length: [`RING_LEN_MIN`], and each next twice as long.
    free: Vec<Vec<Box<[u8]>>>,
    free_len: usize,
    used_len: usize,
    used_len_max: usize,
    capacity: usize,
}

/// The shortest ring.
pub const RING_LEN_MIN: usize = 4096;

/// Limit of a [`SendBuffer`] once all together use half of their memory: a long segment.
pub const SHARE_LEN_USUAL: usize = 64 << 10;

/// Limit once they use all of it: a few segments, so that the peer acknowledges at once.
pub const SHARE_LEN_MIN: usize = 16 << 10;

/// Bytes of free rings that are kept for reuse; further rings are freed.
pub const FREE_LEN_MAX: usize = 64 << 20;

impl RingPool {
    /// Rings that each hold up to `capacity` bytes; [`RingPool::is_full`] when all of them together
    /// take `used_len_max`.
    pub fn new(capacity: usize, used_len_max: usize) -> RingPool {
        let lengths = class_of(capacity) + 1;
        // A ring that is given back is pushed without an allocation.
        let free = |class: usize| Vec::with_capacity(1024 >> class);
        let free = (0..lengths).map(free).collect();
        RingPool { free, free_len: 0, used_len: 0, used_len_max, capacity }
    }

    /// True if rings take as much memory as they may. Another ring still gets some: the caller asks
    /// this first and holds back data that can wait.
    pub fn is_full(&self) -> bool {
        self.used_len >= self.used_len_max
    }

    /// Limit of one ring at the present use of memory. Each buffer gets some, however many peers
    /// take nothing.
    fn share(&self) -> usize {
        match self.used_len {
            used if used < self.used_len_max / 2 => self.capacity,
            used if used < self.used_len_max => self.capacity.min(SHARE_LEN_USUAL),
            _ => self.capacity.min(SHARE_LEN_MIN),
        }
    }

    fn take(&mut self, len: usize) -> Box<[u8]> {
        let class = class_of(len);
        let ring_len = RING_LEN_MIN << class;
        self.used_len += ring_len;
        match self.free[class].pop() {
            Some(ring) => {
                self.free_len -= ring_len;
                ring
            }
            None => vec![0; ring_len].into(),
        }
    }

    fn give(&mut self, ring: Box<[u8]>) {
        if ring.is_empty() {
            return;
        }
        self.used_len -= ring.len();
        if self.free_len + ring.len() <= FREE_LEN_MAX {
            self.free_len += ring.len();
            self.free[class_of(ring.len())].push(ring);
        }
    }
}

/// Index of the smallest length that holds `len` bytes.
fn class_of(len: usize) -> usize {
    let shortest = RING_LEN_MIN.trailing_zeros();
    let len = len.max(RING_LEN_MIN).next_power_of_two();
    (len.trailing_zeros() - shortest) as usize
}

/// Bytes that were written and are not acknowledged. They are copied in once, and read for each
/// transmission.
#[derive(Clone, Debug, Default)]
pub struct SendBuffer {
    ring: ByteRing,
    len: usize,
}

impl SendBuffer {
    /// Copies as many of `bytes` as fit; returns the number. Always used with the same pool.
    pub fn write(&mut self, pool: &mut RingPool, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.writable_len(pool));
        let end = self.ring.start + self.len as u64;
        self.ring.put(pool, end, &bytes[..taken]);
        self.len += taken;
        taken
    }

    /// Number of bytes that fit: fewer while others hold much. A ring that is already long stays
    /// usable.
    pub fn writable_len(&self, pool: &RingPool) -> usize {
        let len_max = pool.share().max(self.ring.bytes.len());
        len_max.min(pool.capacity).saturating_sub(self.len)
    }

    /// True if the use of memory by others makes its limit smaller.
    pub fn is_cut_short(&self, pool: &RingPool) -> bool {
        self.writable_len(pool) < pool.capacity.saturating_sub(self.len)
    }

    /// `len` bytes from stream offset `offset` on, in two pieces if they lie around the end of the
    /// ring.
    ///
    /// # Panics
    ///
    /// If the buffer does not hold them: they were released, or never written.
    pub fn slices(&self, offset: u64, len: usize) -> (&[u8], &[u8]) {
        let start = self.ring.start;
        let end = self.end();
        let wanted_end = offset + len as u64;
        assert!(start <= offset && wanted_end <= end, "{offset}..{wanted_end} of {start}..{end}");
        self.ring.slices(offset, len)
    }

    /// Releases all bytes before stream offset `to`, which are acknowledged.
    pub fn release(&mut self, pool: &mut RingPool, to: u64) {
        let released = (to.saturating_sub(self.ring.start) as usize).min(self.len);
        self.ring.start += released as u64;
        self.len -= released;
        if self.len == 0 {
            self.ring.release_ring(pool);
        }
    }

    /// The stream offset behind the last byte that was written.
    pub fn end(&self) -> u64 {
        self.ring.start + self.len as u64
    }
}

/// Bytes that arrived and were not read. Segments are put at their offset, in any order.
#[derive(Clone, Debug, Default)]
pub struct ReceiveBuffer {
    ring: ByteRing,
}

impl ReceiveBuffer {
    /// True if bytes up to stream offset `end` fit into the memory that each buffer may always
    /// have: its present ring, or the shortest one. A peer cannot take that from others.
    pub fn has_space_to(&self, end: u64) -> bool {
        end <= self.ring.start + self.ring.bytes.len().max(RING_LEN_MIN) as u64
    }

    /// Puts `bytes` at stream offset `offset`.
    ///
    /// # Panics
    ///
    /// If they lie outside of the window, which the connection prevents.
    pub fn put(&mut self, pool: &mut RingPool, offset: u64, bytes: &[u8]) {
        let start = self.ring.start;
        let end = offset + bytes.len() as u64;
        assert!(
            start <= offset && end <= start + pool.capacity as u64,
            "{offset}..{end} in a window of {} at {start}",
            pool.capacity
        );
        self.ring.put(pool, offset, bytes);
    }

    /// The first `len` bytes, in two pieces if they lie around the end of the ring. `len` is
    /// [`super::Connection::readable_len`].
    pub fn peek(&self, len: usize) -> (&[u8], &[u8]) {
        self.ring.slices(self.ring.start, len)
    }

    /// Drops the first `len` bytes.
    pub fn consume(&mut self, len: usize) {
        self.ring.start += len as u64;
    }

    /// Gives the ring back, because the connection holds no bytes, in order or out of it.
    pub fn release_ring(&mut self, pool: &mut RingPool) {
        self.ring.release_ring(pool);
    }
}

#[derive(Clone, Debug, Default)]
struct ByteRing {
    /// Storage, a power of two long, or empty.
    bytes: Box<[u8]>,
    /// The stream offset of the first byte that is held.
    start: u64,
}

impl ByteRing {
    fn release_ring(&mut self, pool: &mut RingPool) {
        pool.give(std::mem::take(&mut self.bytes));
    }

    fn put(&mut self, pool: &mut RingPool, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let reach = (offset - self.start) as usize + bytes.len();
        if reach > self.bytes.len() {
            self.grow(pool, reach);
        }
        self.fill(offset, bytes);
    }

    fn fill(&mut self, offset: u64, bytes: &[u8]) {
        let at = self.index(offset);
        let front_len = bytes.len().min(self.bytes.len() - at);
        let (front, back) = bytes.split_at(front_len);
        self.bytes[at..at + front_len].copy_from_slice(front);
        self.bytes[..back.len()].copy_from_slice(back);
    }

    /// Takes a longer ring, and moves the held bytes, in order or not.
    fn grow(&mut self, pool: &mut RingPool, len: usize) {
        let shorter = std::mem::replace(&mut self.bytes, pool.take(len));
        if !shorter.is_empty() {
            let at = self.start as usize & (shorter.len() - 1);
            let (back, front) = shorter.split_at(at);
            self.fill(self.start, front);
            self.fill(self.start + front.len() as u64, back);
        }
        pool.give(shorter);
    }

    fn slices(&self, offset: u64, len: usize) -> (&[u8], &[u8]) {
        if len == 0 {
            return (&[], &[]);
        }
        let at = self.index(offset);
        let front_len = len.min(self.bytes.len() - at);
        (&self.bytes[at..at + front_len], &self.bytes[..len - front_len])
    }

    fn index(&self, offset: u64) -> usize {
        offset as usize & (self.bytes.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_wrap_round_the_ring_in_order() {
        let mut pool = RingPool::new(7000, usize::MAX);
        let mut buffer = SendBuffer::default();
        let mut written = 0_usize;
        for _ in 0..20 {
            let bytes: Vec<u8> = (written..written + 5000).map(|at| (at / 7) as u8).collect();
            assert_eq!(buffer.write(&mut pool, &bytes), 5000);
            let offset = buffer.end() - 5000;
            let (front, back) = buffer.slices(offset, 5000);
            assert_eq!([front, back].concat(), bytes);
            buffer.release(&mut pool, offset + 5000);
            written += 5000;
        }
    }

    #[test]
    fn what_does_not_fit_is_not_taken() {
        let mut pool = RingPool::new(4, usize::MAX);
        let mut buffer = SendBuffer::default();
        assert_eq!(buffer.write(&mut pool, b"abcdef"), 4);
        assert_eq!(buffer.write(&mut pool, b"ef"), 0);
        buffer.release(&mut pool, 1);
        assert_eq!(buffer.write(&mut pool, b"ef"), 1);
    }

    /// Seen in a review: 17,500 peers that read nothing, which is a server's default number of
    /// connections, could hold 4.4 GB of replies. Cause: each send buffer had a limit, and all of
    /// them together had none. Cure: beyond half of a limit for all, each holds less.
    #[test]
    fn send_buffers_share_a_limit_and_each_goes_on() {
        const CAPACITY: usize = 256 << 10;
        const USED_MAX: usize = 8 << 20;
        let mut pool = RingPool::new(CAPACITY, USED_MAX);
        let all = vec![1; CAPACITY];
        let write = |pool: &mut RingPool| {
            let mut buffer = SendBuffer::default();
            let taken = buffer.write(pool, &all);
            assert_eq!(buffer.is_cut_short(pool), taken < CAPACITY);
            (buffer, taken)
        };
        let mut stalled = Vec::new();
        for (count, len) in [
            (USED_MAX / 2 / CAPACITY, CAPACITY),
            (USED_MAX / 2 / SHARE_LEN_USUAL, SHARE_LEN_USUAL),
            (1000, SHARE_LEN_MIN),
        ] {
            for _ in 0..count {
                let (buffer, taken) = write(&mut pool);
                assert_eq!(taken, len, "with {} in use", pool.used_len);
                stalled.push(buffer);
            }
        }
        assert_eq!(pool.used_len, USED_MAX + 1000 * SHARE_LEN_MIN);
        // A buffer continues in its ring as its peer takes bytes.
        let mut last = stalled.pop().unwrap();
        assert_eq!(last.write(&mut pool, &all), 0);
        last.release(&mut pool, 1000);
        assert_eq!(last.write(&mut pool, &all), 1000);
        // A ring that was long before stays usable while it holds bytes.
        let first = &mut stalled[0];
        first.release(&mut pool, 100_000);
        assert_eq!(first.write(&mut pool, &all), 100_000);
        // Once they are released, there is space as before.
        stalled.into_iter().for_each(|mut it| it.release(&mut pool, u64::MAX));
        last.release(&mut pool, u64::MAX);
        assert_eq!(write(&mut pool).1, CAPACITY);
    }

    #[test]
    fn segments_land_at_their_offset() {
        let mut pool = RingPool::new(8, usize::MAX);
        let mut buffer = ReceiveBuffer::default();
        buffer.put(&mut pool, 4, b"efgh");
        buffer.put(&mut pool, 0, b"abcd");
        assert_eq!(buffer.peek(8), (&b"abcdefgh"[..], &b""[..]));
        buffer.consume(6);
        buffer.put(&mut pool, 8, b"ijklmn");
        assert_eq!(buffer.peek(8), (&b"ghijklmn"[..], &b""[..]));
    }

    #[test]
    fn a_ring_grows_with_its_bytes() {
        let mut pool = RingPool::new(64 << 10, usize::MAX);
        let mut buffer = ReceiveBuffer::default();
        let stream: Vec<u8> = (0..40_000).map(|at: u32| (at / 3) as u8).collect();
        // The ring wraps before it grows.
        buffer.put(&mut pool, 0, &stream[..3000]);
        buffer.consume(3000);
        for at in (3000..40_000).step_by(1000).rev() {
            buffer.put(&mut pool, at as u64, &stream[at..at + 1000]);
        }
        let (front, back) = buffer.peek(37_000);
        assert!([front, back].concat() == stream[3000..]);
        assert_eq!(pool.used_len, 64 << 10);
        buffer.release_ring(&mut pool);
        assert_eq!((pool.used_len, pool.free_len), (0, (64 + 4) << 10));
    }

    #[test]
    fn empty_rings_go_back_to_the_pool() {
        let mut pool = RingPool::new(16, usize::MAX);
        let mut first = SendBuffer::default();
        first.write(&mut pool, b"abc");
        assert_eq!(pool.free_len, 0);
        first.release(&mut pool, 3);
        assert_eq!(pool.free_len, RING_LEN_MIN);
        let mut second = SendBuffer::default();
        second.write(&mut pool, b"d");
        assert_eq!(pool.free_len, 0);
        assert_eq!(second.slices(0, 1).0, b"d");
    }
}
