//! Content of the page cache.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::ReadWriteFlags;

/// True if all of `range` is in the page cache, so that reading or sending it does not touch the
/// disk. The kernel may evict it right after; that costs time and nothing else.
///
/// Asks `cachestat(2)` (Linux 6.5) and tries to read the first and the last byte without waiting.
pub fn is_cached(file: BorrowedFd<'_>, range: Range<u64>) -> bool {
    if range.is_empty() {
        return true;
    }
    // No file has bytes there, and the kernel takes such an offset for a negative one.
    if i64::try_from(range.end).is_err() {
        return false;
    }
    let has_byte = |offset| {
        let mut byte = [0];
        let mut slices = [io::IoSliceMut::new(&mut byte)];
        rustix::io::preadv2(file, &mut slices, offset, ReadWriteFlags::NOWAIT) == Ok(1)
    };
    // Pages that are still being read count as cached, but are not: the last byte comes last. Where
    // pages are known to be missing it is not asked for, because asking starts a read-ahead.
    cached_pages(file, &range) != Some(false) && has_byte(range.start) && has_byte(range.end - 1)
}

/// `cachestat(2)`: whether all pages of the range are there; `None` where there is no such call.
fn cached_pages(file: BorrowedFd<'_>, range: &Range<u64>) -> Option<bool> {
    const SYS_CACHESTAT: libc::c_long = 451;
    const PAGE_LEN: u64 = 4096;
    let first_page = range.start / PAGE_LEN;
    let page_count = range.end.div_ceil(PAGE_LEN) - first_page;
    let whole = [first_page * PAGE_LEN, page_count * PAGE_LEN];
    // nr_cache, nr_dirty, nr_writeback, nr_evicted, nr_recently_evicted
    let mut counts = [0u64; 5];
    // SAFETY: the kernel reads two and writes five 64-bit numbers, which is what is passed.
    let result = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), whole.as_ptr(), counts.as_mut_ptr(), 0)
    };
    (result == 0).then(|| counts[0] >= page_count)
}
