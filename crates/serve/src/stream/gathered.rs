//! Chunks in memory, gathered for one send.

use std::io::IoSlice;

use arrayvec::ArrayVec;
use session::{Chunk, Outbox};

/// Chunks in memory that one send carries.
const GATHERED_MAX: usize = 16;

/// Chunks in memory, for one send.
pub(crate) struct Gathered<'a> {
    slices: ArrayVec<IoSlice<'a>, GATHERED_MAX>,
    /// The bytes in all of them.
    pub(crate) len: usize,
    /// Whether something comes next at once: a file, or the end of the stream. What is sent before
    /// it can leave with it in one packet.
    pub(crate) more_follows: bool,
    /// Whether what comes next is the end of the stream.
    pub(crate) ends: bool,
}

impl<'a> Gathered<'a> {
    /// Those at the front, up to the next file. `is_last` says that nothing follows `out`.
    #[inline]
    pub(crate) fn of(out: &'a Outbox, is_last: bool) -> Gathered<'a> {
        let mut gathered = Gathered {
            slices: ArrayVec::new(),
            len: 0,
            more_follows: is_last,
            ends: is_last,
        };
        for chunk in out.chunks() {
            let bytes = match chunk {
                Chunk::Bytes(bytes) => bytes,
                Chunk::Shared(bytes) => &bytes[..],
                Chunk::File(_) => {
                    (gathered.more_follows, gathered.ends) = (true, false);
                    break;
                }
            };
            if gathered.slices.try_push(IoSlice::new(bytes)).is_err() {
                (gathered.more_follows, gathered.ends) = (false, false);
                break;
            }
            gathered.len += bytes.len();
        }
        gathered
    }

    #[inline]
    pub(crate) fn slices(&self) -> &[IoSlice<'a>] {
        &self.slices
    }
}
