//! Buffers for `O_DIRECT`.

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Alignment that `O_DIRECT` needs of addresses, offsets and lengths on the disks of today.
pub const DIRECT_ALIGNMENT: usize = 4096;

/// A buffer aligned for `O_DIRECT`.
///
/// A mapping of its own: `malloc` keeps what is freed to it, in an arena for each thread, so that
/// buffers that come and go on many threads cost far more memory than there ever are of them.
#[derive(Debug)]
pub struct AlignedBuffer {
    memory: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its memory.
unsafe impl Send for AlignedBuffer {}
// SAFETY: shared references only read.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// A zeroed buffer of `len` bytes, rounded up to the alignment. It costs no memory until it is
    /// written to.
    ///
    /// # Errors
    /// Errors of `mmap(2)`: `InvalidInput` if `len` is 0, `OutOfMemory`.
    pub fn new(len: usize) -> io::Result<AlignedBuffer> {
        let len = len.checked_next_multiple_of(DIRECT_ALIGNMENT);
        let len = len.ok_or(io::ErrorKind::OutOfMemory)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory in
        // use.
        let memory = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE)? };
        let memory = NonNull::new(memory.cast()).expect("mmap(2) returns no null mapping");
        Ok(AlignedBuffer { memory, len })
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped with this length; the kernel hands out zeroed pages.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and borrowed by nothing any more.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), self.len) };
    }
}
