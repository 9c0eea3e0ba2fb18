//! Buffers for `O_DIRECT`.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

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
