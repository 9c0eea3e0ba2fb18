//! Files whose reads never block a processor.
//!
//! On a ring a read is an operation like any other (ext4 and xfs complete buffered reads asynchronously, and
//! `O_DIRECT` ones always); with epoll, which cannot wait for files, a read that is not
//! answered from the page cache goes to the offload threads.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;

use io_uring::{opcode, types::Fd};
use rustix::io::ReadWriteFlags;

use crate::backend::operate;
use crate::net::{Carrier, carrier};
use crate::offload::offload;

/// An open file.
#[derive(Debug)]
pub struct File {
    fd: OwnedFd,
}

impl File {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// What `open(2)` reports.
    pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
        let path = path.as_ref();
        offload(|| std::fs::File::open(path)).map(File::from)
    }

    /// Its length in bytes.
    ///
    /// # Errors
    /// What `fstat(2)` reports.
    pub fn len(&self) -> io::Result<u64> {
        let stat = rustix::fs::fstat(&self.fd)?;
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    }

    /// Whether it has no bytes.
    ///
    /// # Errors
    /// What `fstat(2)` reports.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads from `offset` into `buffer`; returns how many bytes, 0 at the end.
    ///
    /// # Errors
    /// What `pread(2)` reports.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        read_at(self.as_fd(), buffer, offset)
    }
}

impl From<std::fs::File> for File {
    fn from(file: std::fs::File) -> File {
        File { fd: file.into() }
    }
}

impl From<OwnedFd> for File {
    fn from(fd: OwnedFd) -> File {
        File { fd }
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Reads from a file at `offset` without blocking the processor; returns how many bytes, 0 at the end.
///
/// # Errors
/// What `pread(2)` reports. `EINVAL` for `O_DIRECT` descriptors unless buffer, length and offset are aligned.
pub fn read_at(file: BorrowedFd<'_>, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    if carrier() == Carrier::Uring {
        let len = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
        let read = opcode::Read::new(Fd(file.as_raw_fd()), buffer.as_mut_ptr(), len);
        return operate(read.offset(offset).build(), None)?.into_result();
    }
    let mut slices = [io::IoSliceMut::new(buffer)];
    match rustix::io::preadv2(file, &mut slices, offset, ReadWriteFlags::NOWAIT) {
        Ok(len) => Ok(len),
        Err(_) => Ok(offload(|| rustix::io::pread(file, buffer, offset))?),
    }
}

/// Whether all of `range` is in the page cache, so that reading or sending it does not touch the disk.
/// Something may push it out right after; that costs time and nothing else.
///
/// Asks `cachestat(2)` (Linux 6.5) and tries to read the first and the last byte without waiting.
pub fn is_cached(file: BorrowedFd<'_>, range: Range<u64>) -> bool {
    if range.is_empty() {
        return true;
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
        libc::syscall(
            SYS_CACHESTAT,
            file.as_raw_fd(),
            whole.as_ptr(),
            counts.as_mut_ptr(),
            0,
        )
    };
    (result == 0).then(|| counts[0] >= page_count)
}

/// What `O_DIRECT` wants of addresses, offsets and lengths on the disks of today.
pub const DIRECT_ALIGNMENT: usize = 4096;

/// A buffer aligned for `O_DIRECT`.
#[derive(Debug)]
pub struct AlignedBuffer {
    memory: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its memory.
unsafe impl Send for AlignedBuffer {}
// SAFETY: shared references only read.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// A zeroed buffer of `len` bytes, rounded up to the alignment.
    ///
    /// # Panics
    /// If `len` is 0 or beyond `isize::MAX`.
    pub fn new(len: usize) -> AlignedBuffer {
        assert!(len > 0, "a buffer of 0 bytes");
        let layout = Layout::from_size_align(len, DIRECT_ALIGNMENT).expect("a sane length");
        let layout = layout.pad_to_align();
        // SAFETY: the layout is not empty.
        let memory =
            NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        // SAFETY: just allocated, of this length. Zeroed, because it is lent as initialised bytes.
        unsafe { memory.as_ptr().write_bytes(0, layout.size()) };
        AlignedBuffer { memory, layout }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: allocated and initialised with this length.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.layout.size()) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.layout.size()) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}
