//! Rings of bytes, for applications that cannot produce their bytes again, and for bytes that came
//! and were not read yet.
//!
//! ```text
//!   stream offset   ···  start ──────────── end                start + capacity
//!   ring            [ ···│ held             │ room                     │ ··· ]
//!   index                start % capacity
//! ```
//!
//! A ring has memory only while it holds something: it takes it from a [`RingPool`] and gives it
//! back. A connection at rest has none, and one that comes and goes allocates none.

/// Memory of rings that hold nothing, all of one size.
#[derive(Debug)]
pub struct RingPool {
    free: Vec<Box<[u8]>>,
    ring_len: usize,
}

/// So many rings are kept for the next that need one; more are given back to the system.
pub const FREE_RINGS_MAX: usize = 1024;

impl RingPool {
    /// Rings of `ring_len` bytes.
    pub fn new(ring_len: usize) -> RingPool {
        RingPool {
            free: Vec::with_capacity(FREE_RINGS_MAX),
            ring_len,
        }
    }

    fn take(&mut self) -> Box<[u8]> {
        let free = self.free.pop();
        free.unwrap_or_else(|| vec![0; self.ring_len].into())
    }

    fn give(&mut self, ring: Box<[u8]>) {
        if self.free.len() < FREE_RINGS_MAX && !ring.is_empty() {
            self.free.push(ring);
        }
    }
}

/// What was written and is not acknowledged: bytes are copied in once, and read for each
/// transmission.
#[derive(Clone, Debug)]
pub struct SendBuffer {
    ring: Ring,
    len: usize,
}

impl SendBuffer {
    /// Holds at most as many bytes as a ring of `pool`, which is the one that it is always used
    /// with.
    pub fn new(pool: &RingPool) -> SendBuffer {
        SendBuffer {
            ring: Ring::new(pool),
            len: 0,
        }
    }

    /// Takes as many of `bytes` as fit, and says how many.
    pub fn write(&mut self, pool: &mut RingPool, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.room());
        let end = self.ring.start + self.len as u64;
        self.ring.put(pool, end, &bytes[..taken]);
        self.len += taken;
        taken
    }

    /// How many bytes fit.
    pub fn room(&self) -> usize {
        self.ring.capacity - self.len
    }

    /// `len` bytes from stream offset `offset` on, in two pieces if they lie around the end of the
    /// ring.
    ///
    /// # Panics
    ///
    /// If the buffer does not hold them: they were released, or never written.
    pub fn slices(&self, offset: u64, len: usize) -> (&[u8], &[u8]) {
        let (start, end) = (self.ring.start, self.end());
        let wanted_end = offset + len as u64;
        assert!(
            start <= offset && wanted_end <= end,
            "{offset}..{wanted_end} of {start}..{end}"
        );
        self.ring.slices(offset, len)
    }

    /// All before stream offset `to` is acknowledged.
    pub fn release(&mut self, pool: &mut RingPool, to: u64) {
        let released = (to.saturating_sub(self.ring.start) as usize).min(self.len);
        self.ring.start += released as u64;
        self.len -= released;
        if self.len == 0 {
            self.ring.rest(pool);
        }
    }

    /// The stream offset behind the last byte that was written.
    pub fn end(&self) -> u64 {
        self.ring.start + self.len as u64
    }
}

/// What came and was not read: segments are put where they belong, in any order.
#[derive(Clone, Debug)]
pub struct ReceiveBuffer {
    ring: Ring,
}

impl ReceiveBuffer {
    /// Holds at most as many bytes as a ring of `pool`, which is the one that it is always used
    /// with: as many as the connection's window.
    pub fn new(pool: &RingPool) -> ReceiveBuffer {
        ReceiveBuffer {
            ring: Ring::new(pool),
        }
    }

    /// Puts `bytes` at stream offset `offset`.
    ///
    /// # Panics
    ///
    /// If they lie outside of the window: the connection never says so.
    pub fn put(&mut self, pool: &mut RingPool, offset: u64, bytes: &[u8]) {
        let (start, end) = (self.ring.start, offset + bytes.len() as u64);
        assert!(
            start <= offset && end <= start + self.ring.capacity as u64,
            "{offset}..{end} in a window of {} at {start}",
            self.ring.capacity
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

    /// The connection holds nothing, in order or out of it.
    pub fn rest(&mut self, pool: &mut RingPool) {
        self.ring.rest(pool);
    }
}

#[derive(Clone, Debug)]
struct Ring {
    bytes: Box<[u8]>,
    capacity: usize,
    /// The stream offset of the first byte that is held.
    start: u64,
}

impl Ring {
    fn new(pool: &RingPool) -> Ring {
        Ring {
            bytes: Box::default(),
            capacity: pool.ring_len,
            start: 0,
        }
    }

    fn rest(&mut self, pool: &mut RingPool) {
        pool.give(std::mem::take(&mut self.bytes));
    }

    fn put(&mut self, pool: &mut RingPool, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if self.bytes.is_empty() {
            self.bytes = pool.take();
        }
        let at = (offset % self.capacity as u64) as usize;
        let front_len = bytes.len().min(self.capacity - at);
        let (front, back) = bytes.split_at(front_len);
        self.bytes[at..at + front_len].copy_from_slice(front);
        self.bytes[..back.len()].copy_from_slice(back);
    }

    fn slices(&self, offset: u64, len: usize) -> (&[u8], &[u8]) {
        if len == 0 {
            return (&[], &[]);
        }
        let at = (offset % self.capacity as u64) as usize;
        let front_len = len.min(self.capacity - at);
        (
            &self.bytes[at..at + front_len],
            &self.bytes[..len - front_len],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_round_the_ring_and_come_out_in_order() {
        let mut pool = RingPool::new(7);
        let mut buffer = SendBuffer::new(&pool);
        let mut written = 0_u8;
        for _ in 0..20 {
            let bytes: Vec<u8> = (written..written + 5).collect();
            assert_eq!(buffer.write(&mut pool, &bytes), 5);
            let offset = buffer.end() - 5;
            let (front, back) = buffer.slices(offset, 5);
            assert_eq!([front, back].concat(), bytes);
            buffer.release(&mut pool, offset + 5);
            written += 5;
        }
    }

    #[test]
    fn what_does_not_fit_is_not_taken() {
        let mut pool = RingPool::new(4);
        let mut buffer = SendBuffer::new(&pool);
        assert_eq!(buffer.write(&mut pool, b"abcdef"), 4);
        assert_eq!(buffer.write(&mut pool, b"ef"), 0);
        buffer.release(&mut pool, 1);
        assert_eq!(buffer.write(&mut pool, b"ef"), 1);
    }

    #[test]
    fn segments_are_put_where_they_belong() {
        let mut pool = RingPool::new(8);
        let mut buffer = ReceiveBuffer::new(&pool);
        buffer.put(&mut pool, 4, b"efgh");
        buffer.put(&mut pool, 0, b"abcd");
        assert_eq!(buffer.peek(8), (&b"abcdefgh"[..], &b""[..]));
        buffer.consume(6);
        buffer.put(&mut pool, 8, b"ijklmn");
        assert_eq!(buffer.peek(8), (&b"gh"[..], &b"ijklmn"[..]));
    }

    #[test]
    fn a_ring_that_holds_nothing_is_there_for_another() {
        let mut pool = RingPool::new(16);
        let mut first = SendBuffer::new(&pool);
        first.write(&mut pool, b"abc");
        assert_eq!(pool.free.len(), 0);
        first.release(&mut pool, 3);
        assert_eq!(pool.free.len(), 1);
        let mut second = SendBuffer::new(&pool);
        second.write(&mut pool, b"d");
        assert_eq!(pool.free.len(), 0);
        assert_eq!(second.slices(0, 1).0, b"d");
    }
}
