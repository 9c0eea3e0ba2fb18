//! Chunks in memory, gathered for one send.

use std::io::IoSlice;

use arrayvec::ArrayVec;
use session::{Chunk, Outbox};

/// Chunks in memory that one send carries.
const GATHERED_MAX: usize = 16;

/// Chunks in memory, for one send.
pub(crate) struct Gathered<'a> {
    slices: ArrayVec<IoSlice<'a>, GATHERED_MAX>,
    /// Total length.
    pub(crate) len: usize,
    /// Something follows at once: a file, or the end of the stream. The last bytes may leave in
    /// one packet with it.
    pub(crate) more_follows: bool,
}

impl<'a> Gathered<'a> {
    #[inline]
    pub(crate) fn new() -> Gathered<'a> {
        Gathered { slices: ArrayVec::new_const(), len: 0, more_follows: false }
    }

    /// Takes the chunks at the front of `out`, up to the next file. `is_last`: nothing follows
    /// `out`. Works in place, because a result of this size would be copied.
    #[inline]
    pub(crate) fn gather(&mut self, out: &'a Outbox, is_last: bool) {
        self.more_follows = is_last;
        for chunk in out.chunks() {
            let bytes = match chunk {
                Chunk::Bytes(bytes) => bytes,
                Chunk::Shared(bytes, _) => &bytes[..],
                Chunk::File(_) => {
                    self.more_follows = true;
                    break;
                }
            };
            if self.slices.try_push(IoSlice::new(bytes)).is_err() {
                self.more_follows = false;
                break;
            }
            self.len += bytes.len();
        }
    }

    #[inline]
    pub(crate) fn slices(&self) -> &[IoSlice<'a>] {
        &self.slices
    }
}
