//! Bytes that a connection has passed to TCP and the peer has not acknowledged: TCP asks for them
//! at each transmission, so they stay in place until then.
//!
//! ```text
//!   stream   0 ··· released ─────────────────────────────── end
//!   outbox         | head, small body | shared page | head …       small bytes: a copy
//!                  ▲ acknowledged: dropped                         shared bytes: a reference
//! ```

use std::sync::Arc;

use bytes::Bytes;
use netstack::device::BigTcp;
use netstack::stack::Pieces;
use netstack::wire::checksum::{self, Sum};
use session::{Chunk, Outbox, SharedPage};

/// Limit on a connection's unacknowledged bytes, as for a socket's send buffer: twice what TCP may
/// have in flight, between these two. The upper one is that of Linux' `net.ipv4.tcp_wmem`.
const UNACKED_LEN_USUAL: u64 = 1 << 20;
const UNACKED_LEN_MAX: u64 = 4 << 20;

/// Least space for further bytes, so that large pages are not split into small pieces.
const SPACE_LEN_MIN: u64 = 64 * 1024;

/// Unacknowledged bytes of all connections of a loop above which each gets less: peers that do not
/// read occupy memory until they time out.
const UNACKED_TOTAL_MAX: u64 = 256 << 20;
const CROWDED_LEN_MAX: u64 = 2 * SPACE_LEN_MIN;

/// Total above which no buffer exceeds the usual length: the rest is for others.
const UNACKED_TOTAL_HALF: u64 = UNACKED_TOTAL_MAX / 2;

/// Total that counts as a crowd: its bytes leave holes in the allocator's memory.
const CROWD_LEN_MIN: u64 = 64 << 20;

/// Shorter pieces are copied. The longest segment consists of shared pieces and copies in between:
/// fewer than the [`Pieces::COUNT_MAX`] that a frame may have.
const SHARED_LEN_MIN: usize = 16 * 1024;
const _: () = assert!(2 * (BigTcp::LEN_MAX / SHARED_LEN_MIN + 2) <= Pieces::COUNT_MAX);

/// Number of outboxes that a loop keeps.
const KEPT_MAX: usize = 64;

/// See the [module page](self).
#[derive(Default)]
pub(super) struct RetransmitBuffer {
    /// `None` while nothing is in flight.
    out: Option<Box<Outbox>>,
    /// Acknowledged bytes of the stream.
    released: u64,
}

/// Totals and free outboxes of a loop's retransmit buffers.
#[derive(Default)]
pub(super) struct BufferPool {
    /// Outboxes of acknowledged retransmit buffers.
    #[expect(clippy::vec_box, reason = "a connection holds the box, and moves it as one word")]
    free: Vec<Box<Outbox>>,
    /// Bytes of all retransmit buffers.
    len: u64,
    /// Maximum of `len` since the last crowd.
    len_max: u64,
    crowded: u64,
}

impl BufferPool {
    /// Bytes of all retransmit buffers.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Number of times that the total reached the limit and each got less.
    pub(super) fn crowded(&self) -> u64 {
        self.crowded
    }

    /// Limit for one connection that may have `cwnd` bytes in flight.
    fn unacked_len_max(&self, cwnd: u64) -> u64 {
        match self.len {
            ..UNACKED_TOTAL_HALF => (2 * cwnd).clamp(UNACKED_LEN_USUAL, UNACKED_LEN_MAX),
            UNACKED_TOTAL_HALF..UNACKED_TOTAL_MAX => UNACKED_LEN_USUAL,
            UNACKED_TOTAL_MAX.. => CROWDED_LEN_MAX,
        }
    }

    /// Returns true once after the end of a crowd.
    pub(super) fn take_crowd_end(&mut self) -> bool {
        let is_gone = self.len_max >= CROWD_LEN_MIN && self.len <= self.len_max / 8;
        if is_gone {
            self.len_max = self.len;
        }
        is_gone
    }

    fn add(&mut self, len: u64) {
        let before = self.len;
        self.len += len;
        self.len_max = self.len_max.max(self.len);
        self.crowded += u64::from(before < UNACKED_TOTAL_MAX && UNACKED_TOTAL_MAX <= self.len);
    }
}

impl RetransmitBuffer {
    pub(super) fn is_empty(&self) -> bool {
        self.out.is_none()
    }

    pub(super) fn len(&self) -> u64 {
        self.out.as_ref().map_or(0, |out| out.queued_len())
    }

    /// True if there is space for more.
    pub(super) fn has_space(&self, buffer_pool: &BufferPool, cwnd: u64) -> bool {
        self.len() + SPACE_LEN_MIN <= buffer_pool.unacked_len_max(cwnd)
    }

    /// Takes in-memory bytes of `from`, up to the first file or the limit. Returns their number.
    pub(super) fn take(&mut self, buffer_pool: &mut BufferPool, cwnd: u64, from: &Outbox) -> u64 {
        let (before, len_max) = (self.len(), buffer_pool.unacked_len_max(cwnd));
        for chunk in from.chunks() {
            let space = len_max.saturating_sub(self.len()) as usize;
            match chunk {
                _ if space == 0 => break,
                Chunk::Bytes(bytes) => {
                    self.outbox(buffer_pool).put(&bytes[..bytes.len().min(space)]);
                }
                Chunk::Shared(bytes, page) => {
                    self.hold(buffer_pool, bytes.slice(..bytes.len().min(space)), page);
                }
                Chunk::File(_) => break,
            }
        }
        let taken = self.len() - before;
        buffer_pool.add(taken);
        taken
    }

    /// Adds bytes, regardless of the limit.
    pub(super) fn put(&mut self, buffer_pool: &mut BufferPool, bytes: Bytes) {
        buffer_pool.add(bytes.len() as u64);
        self.hold(buffer_pool, bytes, None);
    }

    fn hold(&mut self, buffer_pool: &mut BufferPool, bytes: Bytes, page: Option<&Arc<SharedPage>>) {
        let out = self.outbox(buffer_pool);
        match page {
            _ if bytes.len() < SHARED_LEN_MIN => out.put(&bytes),
            Some(page) => out.put_page(page, page.place_of(&bytes)),
            None => out.put_shared(bytes),
        }
    }

    fn outbox(&mut self, buffer_pool: &mut BufferPool) -> &mut Outbox {
        self.out.get_or_insert_with(|| buffer_pool.free.pop().unwrap_or_default())
    }

    /// Releases bytes: the peer has acknowledged everything before `to`.
    pub(super) fn release(&mut self, buffer_pool: &mut BufferPool, to: u64) {
        let Some(out) = &mut self.out else { return };
        let len = to - self.released;
        out.consume(len);
        buffer_pool.len -= len;
        self.released = to;
        if out.is_empty()
            && let Some(out) = self.out.take()
            && buffer_pool.free.len() < KEPT_MAX
        {
            buffer_pool.free.push(out);
        }
    }

    /// Drops everything: the connection is over.
    pub(super) fn abandon(self, buffer_pool: &mut BufferPool) {
        buffer_pool.len -= self.len();
    }

    /// Collects the bytes `offset..offset + len` of the stream.
    pub(super) fn gather<'a>(&'a self, offset: u64, len: usize, pieces: &mut Pieces<'a>) {
        let mut skipped = (offset - self.released) as usize;
        let mut left = len;
        for chunk in self.out.iter().flat_map(|out| out.chunks()) {
            let (bytes, page) = match chunk {
                Chunk::Bytes(bytes) => (bytes, None),
                Chunk::Shared(bytes, page) => (&bytes[..], page),
                Chunk::File(_) => unreachable!("files are read before"),
            };
            if let Some(bytes) = bytes.get(skipped..) {
                let bytes = &bytes[..bytes.len().min(left)];
                match page {
                    Some(page) if !bytes.is_empty() => pieces.push_summed(bytes, sum(page, bytes)),
                    _ => pieces.push(bytes),
                }
                left -= bytes.len();
                skipped = 0;
            } else {
                skipped -= bytes.len();
            }
            if left == 0 {
                return;
            }
        }
    }
}

/// The sum of a part of a page, by the page's table.
fn sum(page: &SharedPage, part: &[u8]) -> Sum {
    let table = page.table(checksum::table_of);
    Sum::of_slice(page.bytes(), table, page.place_of(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The congestion window of a short path.
    const CWND: u64 = 100_000;

    /// Seen: after 5,000 clients that read nothing were reset, 934 MB stayed resident. Cause: glibc
    /// keeps free memory between used blocks. Cure: it is told to return it.
    #[test]
    fn a_gone_crowd_is_noticed_once() {
        let mut buffer_pool = BufferPool::default();
        let mut out = Outbox::new();
        out.put_shared(vec![0; UNACKED_LEN_USUAL as usize].into());
        for count in [CROWD_LEN_MIN / UNACKED_LEN_USUAL, 4] {
            let mut retransmit_buffers: Vec<RetransmitBuffer> =
                (0..count).map(|_| RetransmitBuffer::default()).collect();
            for retransmit in &mut retransmit_buffers {
                retransmit.take(&mut buffer_pool, CWND, &out);
            }
            assert!(!buffer_pool.take_crowd_end());
            retransmit_buffers.into_iter().for_each(|it| it.abandon(&mut buffer_pool));
            assert_eq!(buffer_pool.take_crowd_end(), count > 4);
            assert!(!buffer_pool.take_crowd_end());
        }
    }

    fn gathered(retransmit: &RetransmitBuffer, offset: u64, len: usize) -> (Vec<u8>, usize) {
        let mut pieces = Pieces::default();
        retransmit.gather(offset, len, &mut pieces);
        (pieces.as_slice().concat(), pieces.as_slice().len())
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at / 7) as u8).collect()
    }

    #[test]
    fn unreleased_bytes_are_gathered_again() {
        let (mut buffer_pool, mut retransmit, mut out) =
            (BufferPool::default(), RetransmitBuffer::default(), Outbox::new());
        let all = pattern(60_000);
        out.put(&all[..300]);
        out.put_shared(all[300..40_000].to_vec().into());
        out.put_shared(all[40_000..41_000].to_vec().into());
        out.put(&all[41_000..]);
        assert_eq!(retransmit.take(&mut buffer_pool, CWND, &out), 60_000);
        for released in [0, 299, 300, 301, 39_999, 40_000, 59_999] {
            retransmit.release(&mut buffer_pool, released);
            for offset in [released, released + 1, 300, 40_500, 59_990] {
                if offset < released {
                    continue;
                }
                let len = (60_000 - offset as usize).min(25_000);
                let (bytes, _) = gathered(&retransmit, offset, len);
                assert!(bytes == all[offset as usize..][..len], "{offset} of {released}");
            }
        }
        assert!(!retransmit.is_empty());
        retransmit.release(&mut buffer_pool, 60_000);
        assert!(retransmit.is_empty() && buffer_pool.free.len() == 1);
    }

    #[test]
    fn a_page_that_is_shared_is_not_copied() {
        let (mut buffer_pool, mut retransmit, mut out) =
            (BufferPool::default(), RetransmitBuffer::default(), Outbox::new());
        let page = Bytes::from(pattern(50_000));
        out.put_shared(page.clone());
        retransmit.take(&mut buffer_pool, CWND, &out);
        let mut pieces = Pieces::default();
        retransmit.gather(1, 40_000, &mut pieces);
        assert_eq!(pieces.as_slice()[0].as_ptr(), page[1..].as_ptr());
    }

    /// Segments begin in the head, within the page, and in the head behind it; what is acknowledged
    /// ends within the page, at an odd place.
    #[test]
    fn segments_of_a_page_have_its_sums() {
        let (mut buffer_pool, mut retransmit, mut out) =
            (BufferPool::default(), RetransmitBuffer::default(), Outbox::new());
        let page = Arc::new(SharedPage::new(pattern(90_000).into()));
        out.put(b"an odd head");
        out.put_page(&page, 1001..80_000);
        out.put(b"and the next one");
        let len = retransmit.take(&mut buffer_pool, CWND, &out);
        let more = Sum::of_word(1);
        for released in [0, 5, 11, 12, 30_003] {
            retransmit.release(&mut buffer_pool, released);
            for offset in (released..len).step_by(1447) {
                let len = ((len - offset) as usize).min(1448);
                let mut pieces = Pieces::default();
                retransmit.gather(offset, len, &mut pieces);
                let bytes = pieces.as_slice().concat();
                let right = (Sum::of(&bytes) + more).checksum();
                assert_eq!((pieces.sum() + more).checksum(), right, "{offset}, {released}");
            }
        }
        page.table(|_| panic!("no table was made"));
    }

    #[test]
    fn a_page_that_is_cut_or_short_is_whole() {
        let (mut buffer_pool, mut retransmit, mut out) =
            (BufferPool::default(), RetransmitBuffer::default(), Outbox::new());
        let all = pattern(2 << 20);
        let page = Arc::new(SharedPage::new(all.clone().into()));
        out.put_page(&page, 7..SHARED_LEN_MIN);
        out.put_page(&page, 1000..all.len());
        let sent = [&all[7..SHARED_LEN_MIN], &all[1000..]].concat();
        let len = retransmit.take(&mut buffer_pool, CWND, &out);
        assert_eq!(len, UNACKED_LEN_USUAL);
        for offset in [0, 5000, SHARED_LEN_MIN as u64 - 8, len - 9000] {
            let (bytes, _) = gathered(&retransmit, offset, 9000);
            assert!(bytes == sent[offset as usize..][..9000], "{offset}");
        }
    }

    #[test]
    fn a_long_segment_fits_a_frame() {
        let (mut buffer_pool, mut retransmit, mut out) =
            (BufferPool::default(), RetransmitBuffer::default(), Outbox::new());
        for _ in 0..20 {
            out.put(b"head of a value\r\n");
            out.put_shared(vec![1; SHARED_LEN_MIN].into());
            out.put_shared(vec![2; SHARED_LEN_MIN - 1].into());
        }
        let len = retransmit.take(&mut buffer_pool, CWND, &out);
        let longest = BigTcp::LEN_MAX;
        for offset in (0..len - longest as u64).step_by(999) {
            let (bytes, count) = gathered(&retransmit, offset, longest);
            assert_eq!(bytes.len(), longest);
            assert!(count <= Pieces::COUNT_MAX, "{count} at {offset}");
        }
    }

    #[test]
    fn takes_up_to_the_limit_then_a_page() {
        let (mut buffer_pool, mut retransmit, mut out) =
            (BufferPool::default(), RetransmitBuffer::default(), Outbox::new());
        out.put_shared(vec![0; 3 << 20].into());
        assert_eq!(retransmit.take(&mut buffer_pool, CWND, &out), UNACKED_LEN_USUAL);
        assert!(!retransmit.has_space(&buffer_pool, CWND));
        retransmit.release(&mut buffer_pool, SPACE_LEN_MIN - 1);
        assert!(!retransmit.has_space(&buffer_pool, CWND));
        retransmit.release(&mut buffer_pool, SPACE_LEN_MIN);
        assert!(retransmit.has_space(&buffer_pool, CWND));
    }

    /// Seen: a stream of 50 Gbit/s waited for acknowledgements an eighth of its time. Cause: 1 MiB
    /// was the limit of each connection, however much TCP might send. Cure: twice the window.
    #[test]
    fn limit_grows_with_cwnd() {
        let mut out = Outbox::new();
        out.put_shared(vec![0; 6 << 20].into());
        for (cwnd, len) in [
            (UNACKED_LEN_USUAL / 2, UNACKED_LEN_USUAL),
            (UNACKED_LEN_USUAL, 2 * UNACKED_LEN_USUAL),
            (UNACKED_LEN_MAX, UNACKED_LEN_MAX),
        ] {
            let (mut buffer_pool, mut retransmit) =
                (BufferPool::default(), RetransmitBuffer::default());
            assert_eq!(retransmit.take(&mut buffer_pool, cwnd, &out), len);
            assert!(!retransmit.has_space(&buffer_pool, cwnd));
        }
    }

    /// Seen: 64 peers with wide windows that read nothing held all that a loop may have, and each
    /// other connection of it got an eighth. Cause: retransmit buffers grew to 4 MiB until nothing
    /// was left. Cure: once half is used, no buffer exceeds the usual length.
    #[test]
    fn long_buffers_leave_half_to_the_others() {
        let (mut buffer_pool, mut out) = (BufferPool::default(), Outbox::new());
        out.put_shared(vec![0; UNACKED_LEN_MAX as usize].into());
        for _ in 0..UNACKED_TOTAL_MAX / UNACKED_LEN_MAX {
            RetransmitBuffer::default().take(&mut buffer_pool, UNACKED_LEN_MAX, &out);
        }
        assert_eq!(buffer_pool.crowded(), 0);
        let taken = RetransmitBuffer::default().take(&mut buffer_pool, CWND, &out);
        assert_eq!(taken, UNACKED_LEN_USUAL);
    }

    /// Seen: 600 clients that requested a large file and read nothing held 860 MB of it, and a
    /// server's default is 17,500 connections. Cause: each connection had a limit, but their total
    /// had none. Cure: above a total limit, each gets less.
    #[test]
    fn all_buffers_share_a_limit() {
        let (mut buffer_pool, mut out) = (BufferPool::default(), Outbox::new());
        out.put_shared(vec![0; 2 << 20].into());
        let full = (UNACKED_TOTAL_MAX / UNACKED_LEN_USUAL) as usize;
        let mut retransmit_buffers: Vec<RetransmitBuffer> =
            (0..2 * full).map(|_| RetransmitBuffer::default()).collect();
        for retransmit in &mut retransmit_buffers {
            assert!(retransmit.has_space(&buffer_pool, CWND));
            retransmit.take(&mut buffer_pool, CWND, &out);
        }
        assert_eq!(buffer_pool.len(), UNACKED_TOTAL_MAX + full as u64 * CROWDED_LEN_MAX);
        assert_eq!(buffer_pool.crowded(), 1);
        let mut last = retransmit_buffers.pop().unwrap();
        assert!(!last.has_space(&buffer_pool, CWND));
        last.release(&mut buffer_pool, CROWDED_LEN_MAX);
        assert!(last.has_space(&buffer_pool, CWND));
        // The connections that hold much end, and the others have their space again.
        for retransmit in retransmit_buffers.drain(..full) {
            retransmit.abandon(&mut buffer_pool);
        }
        assert_eq!(last.take(&mut buffer_pool, CWND, &out), UNACKED_LEN_USUAL);
        for retransmit in retransmit_buffers.into_iter().chain([last]) {
            retransmit.abandon(&mut buffer_pool);
        }
        assert_eq!(buffer_pool.len(), 0);
    }
}
