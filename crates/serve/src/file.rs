//! How a file travels, once for all engines.
//!
//! A hit in the page cache goes from there. A miss is read by the engine's means: past the page
//! cache if the file is not worth a place in it, so that a crowd of rare files does not push out
//! the popular ones, and without the price of inserting and evicting pages. It makes no difference
//! whether the bytes then go to the socket or into TLS.

use std::cell::RefCell;
use std::io;
use std::ops::{Deref, Range};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fiber::fs::{AlignedBuffer, DIRECT_ALIGNMENT};
use session::FileRange;

use crate::carriage::FilePiece;

/// Whether a piece is to be looked at, and is not what it was.
pub(crate) fn has_changed(piece: &FilePiece<'_>) -> bool {
    piece.look && !piece.range.file.is_unchanged().unwrap_or(false)
}

/// The way that the next bytes of a range take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way<'a> {
    /// All of the file is in the page cache: sending from there does not wait for the disk.
    Cached,
    /// Through the page cache, without blocking a processor.
    Read,
    /// Past the page cache.
    Direct(BorrowedFd<'a>),
}

/// Finds the way.
pub(crate) fn way(range: &FileRange) -> Way<'_> {
    if is_cached_whole(range) {
        return Way::Cached;
    }
    let piece_end = range.range.start + range.len().min(DIRECT_PIECE_LEN);
    if range.keep || fiber::fs::is_cached(range.file.as_fd(), range.range.start..piece_end) {
        return Way::Read;
    }
    range.file.direct().map_or(Way::Read, Way::Direct)
}

/// Files up to this length are looked at whole.
const LOOKED_AT_LEN_MAX: u64 = 4 * 1024 * 1024;

/// What was in the page cache this long ago, and is being asked for, still is: the kernel evicts
/// what has not been used for seconds. (If it ever is not, one request waits for the disk with the
/// processor.)
const CACHED_AGE_MAX: Duration = Duration::from_millis(50);

/// Whether all of a file of moderate length is in the page cache.
fn is_cached_whole(range: &FileRange) -> bool {
    let (file, len) = (&range.file, range.file.stamp().len);
    if len > LOOKED_AT_LEN_MAX {
        return false;
    }
    let now = Instant::now();
    if file.was_cached(now, CACHED_AGE_MAX) {
        return true;
    }
    let is_cached = fiber::fs::is_cached(file.as_fd(), 0..len);
    if is_cached {
        file.note_cached(now);
    }
    is_cached
}

/// Reads the beginning of a range, at most `len_max`; nothing if the file ends there. The last
/// bytes of the range are read only if the file's stamp is still the same afterwards.
///
/// # Errors
/// `InvalidData` if the file has changed; else what `pread(2)` reports.
pub(crate) fn read(range: &FileRange, way: Way<'_>, len_max: u64) -> io::Result<ReadPiece> {
    read_into(Buffer::take(), range, way, len_max)
}

/// As [`read`], into a buffer of another thread's.
pub(crate) fn read_into(
    mut buffer: Buffer,
    range: &FileRange,
    way: Way<'_>,
    len_max: u64,
) -> io::Result<ReadPiece> {
    const ALIGNMENT: u64 = DIRECT_ALIGNMENT as u64;
    let len = range.len().min(len_max).min(buffer.piece_len());
    let (start, file) = (range.range.start, range.file.as_fd());
    let (file, start, skipped, wanted) = match way {
        Way::Cached | Way::Read => (file, start, 0, len),
        Way::Direct(direct) => {
            let aligned = start / ALIGNMENT * ALIGNMENT;
            let skipped = start - aligned;
            (
                direct,
                aligned,
                skipped,
                (skipped + len).next_multiple_of(ALIGNMENT),
            )
        }
    };
    let read = fiber::fs::read_at(file, &mut buffer.bytes()[..wanted as usize], start)?;
    let end = read.min((skipped + len) as usize);
    let has_last = start + end as u64 >= range.range.end;
    if has_last && !range.file.is_unchanged()? {
        let message = "the file has changed while it was sent";
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(ReadPiece {
        buffer,
        filled: (skipped as usize).min(end)..end,
    })
}

/// Bytes of a file, in a buffer that is lent.
pub(crate) struct ReadPiece {
    buffer: Buffer,
    filled: Range<usize>,
}

impl Deref for ReadPiece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer.as_slice()[self.filled.clone()]
    }
}

impl AsRef<[u8]> for ReadPiece {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// How much of a file that may still change is read and sent at a time.
pub(crate) const COPIED_PIECE_LEN: u64 = 64 * 1024;

/// How much of a rare file is read and sent at a time.
const DIRECT_PIECE_LEN: u64 = 256 * 1024;

/// A piece of the largest size at any offset.
const BUFFER_LEN: usize = DIRECT_PIECE_LEN as usize + DIRECT_ALIGNMENT;

/// How many large buffers a thread has out at once. Peers that do not read pin theirs until they
/// time out; beyond these, pieces and buffers are small.
const BUFFERS_OUT_MAX: usize = 64;
const SMALL_PIECE_LEN: usize = 16 * 1024;

/// As many as misses are usually under way; more are allocated and freed.
const BUFFERS_KEPT_MAX: usize = 16;

thread_local! {
    static KEPT: RefCell<Vec<AlignedBuffer>> = const { RefCell::new(Vec::new()) };
    static OUT: Arc<AtomicUsize> = Arc::default();
}

/// An aligned buffer, taken while a piece is read and sent. A large one counts for the thread that
/// took it until it is dropped, wherever that is.
pub(crate) struct Buffer {
    /// Taken only by drop.
    bytes: Option<AlignedBuffer>,
    counted: Option<Arc<AtomicUsize>>,
}

impl Buffer {
    pub(crate) fn take() -> Buffer {
        OUT.with(|out| {
            if out.load(Ordering::Relaxed) >= BUFFERS_OUT_MAX {
                let small = SMALL_PIECE_LEN + DIRECT_ALIGNMENT;
                return Buffer {
                    bytes: Some(AlignedBuffer::new(small)),
                    counted: None,
                };
            }
            out.fetch_add(1, Ordering::Relaxed);
            let kept = KEPT.with_borrow_mut(Vec::pop);
            Buffer {
                bytes: Some(kept.unwrap_or_else(|| AlignedBuffer::new(BUFFER_LEN))),
                counted: Some(Arc::clone(out)),
            }
        })
    }

    fn bytes(&mut self) -> &mut [u8] {
        self.bytes.as_mut().expect("taken only by drop")
    }

    fn as_slice(&self) -> &[u8] {
        self.bytes.as_ref().expect("taken only by drop")
    }

    /// The longest piece that fits at any offset.
    fn piece_len(&mut self) -> u64 {
        (self.bytes().len() - DIRECT_ALIGNMENT) as u64
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let (Some(counted), Some(buffer)) = (&self.counted, self.bytes.take()) else {
            return;
        };
        counted.fetch_sub(1, Ordering::Relaxed);
        KEPT.with_borrow_mut(|kept| {
            if kept.len() < BUFFERS_KEPT_MAX {
                kept.push(buffer);
            }
        });
    }
}
