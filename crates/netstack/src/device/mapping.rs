//! Memory that is shared with the kernel.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// Mapped memory.
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping owns its memory, and nothing depends on the thread that made it.
unsafe impl Send for Mapping {}

// SAFETY: a shared mapping only hands out pointers. Each access through one is unsafe code, which
// argues why no other access conflicts with it.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(super) fn anonymous(len: usize) -> io::Result<Mapping> {
        Mapping::new(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    }

    /// A ring of a socket, which is named by its offset.
    pub(super) fn of(socket: BorrowedFd<'_>, len: usize, offset: u64) -> io::Result<Mapping> {
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        Mapping::new(len, flags, socket.as_raw_fd(), offset)
    }

    fn new(len: usize, flags: c_int, fd: c_int, offset: u64) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let offset = offset as libc::off_t;
        // SAFETY: without MAP_FIXED the kernel maps where nothing else is (mmap(2)).
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).expect("mmap returned a null pointer");
        Ok(Mapping { start, len })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Pointer to the `len` bytes from `at` on.
    ///
    /// # Panics
    ///
    /// If they are not within the mapping.
    pub(super) fn at(&self, at: usize, len: usize) -> NonNull<u8> {
        let is_within = at.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(is_within, "{len} bytes from {at} in {}", self.len);
        // SAFETY: the place is within the mapping, or just behind it if `len` is zero.
        unsafe { self.start.add(at) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's own, and nothing borrows from it any more. The kernel
        // keeps umem's pages for as long as its socket needs them.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
