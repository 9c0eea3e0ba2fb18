//! How a file travels, once for all engines.
//!
//! A hit in the page cache goes from there. A miss is read by the engine's means: past the page
//! cache if the file is not worth a place in it, so that a crowd of rare files does not push out
//! the popular ones, and without the price of inserting and evicting pages. It makes no difference
//! whether the bytes then go to the socket or into TLS.

mod buffers;

use std::io::{self, ErrorKind::TimedOut};
use std::ops::{Deref, Range};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use fiber::fs::DIRECT_ALIGNMENT;
use fiber::sync::Semaphore;
use session::FileRange;

use crate::carriage::FilePiece;
pub use buffers::set_file_buffers_max;
pub(crate) use buffers::write_metrics;
use buffers::{BUFFERS, Buffer};

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
    let piece_end = range.range.start + range.len().min(PIECE_LEN_MAX);
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
/// `InvalidData` if the file has changed; `TimedOut` if other reads past the page cache have kept
/// it waiting, so that the caller looks at its time and at the server's stage; else what `pread(2)`
/// reports.
pub(crate) fn read(range: &FileRange, way: Way<'_>, len_max: u64) -> io::Result<ReadPiece> {
    const ALIGNMENT: u64 = DIRECT_ALIGNMENT as u64;
    let _turn = match way {
        Way::Direct(_) => Some(
            DIRECT_READS
                .acquire_timeout(TURN_PATIENCE)
                .ok_or(TimedOut)?,
        ),
        Way::Cached | Way::Read => None,
    };
    let mut buffer = BUFFERS.take(range.len().min(len_max))?;
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

/// How much of a file is read and sent at a time, at most. A disk that allows so many reads a
/// second allows no more of them if they are short.
const PIECE_LEN_MAX: u64 = 1024 * 1024;

/// How many reads past the page cache are under way at once: as many as there are threads for them
/// where a ring does not read. A fiber gives its turn back when it runs again, on a busy processor
/// some milliseconds after the disk was done. Reads that wait for their turn hold no buffer.
static DIRECT_READS: Semaphore = Semaphore::new(32);

/// How long one waits for its turn at a time. A disk may hang.
const TURN_PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use session::SharedFile;

    use super::*;

    /// Seen: on a disk that allows 1,000 reads a second, files that are not in memory took 2.9
    /// reads each. Cause: pieces of 256 KiB. Cure: a file of up to 1 MiB is one read.
    #[test]
    fn a_rare_file_of_up_to_a_mebibyte_is_one_read() {
        let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let content: Vec<u8> = (0..921_600_u32).map(|at| (at / 7) as u8).collect();
        file.write_all(&content).unwrap();
        file.as_file().sync_all().unwrap();
        let shared = SharedFile::try_from(file.reopen().unwrap()).unwrap();
        let mut range = FileRange {
            file: Arc::new(shared),
            range: 0..content.len() as u64,
            keep: false,
            settled: true,
        };
        let rare = |range: &FileRange| {
            let direct = range.file.direct().map_or(Way::Read, Way::Direct);
            read(range, direct, u64::MAX).unwrap().to_vec()
        };
        assert!(rare(&range) == content);
        range.range.start = 4095;
        assert!(rare(&range) == content[4095..]);
    }
}
