//! Sending of files, common to all engines.
//!
//! Cached data is sent from the page cache. Uncached data is read by the engine's means: with
//! `O_DIRECT` if the file is not worth a place in the page cache, so that many rare files do not
//! displace the popular ones, without the cost of inserting and evicting pages. The rules are the
//! same whether the bytes then go to the socket or into TLS.

use std::io::{self, ErrorKind::TimedOut};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fiber::fs::DIRECT_ALIGNMENT;
use fiber::sync::Semaphore;
use rustix::io::Errno;
use session::FileRange;

use crate::buffers::{Buffer, Buffers, PIECE_LEN_MAX};
use crate::connection::FilePiece;

/// True if a piece must be checked and its file has changed.
pub(crate) fn has_changed(piece: &FilePiece<'_>) -> bool {
    piece.checks_file && !piece.range.file.is_unchanged().unwrap_or(false)
}

/// The read that must precede the sending of a piece; `None` if its beginning is in the page cache,
/// so that no wait for the disk is needed.
///
/// The rule is the same for all engines, whether the bytes go to a socket, into TLS or into a
/// netstack: a disk that limits reads per second does not allow more of them if they are short.
pub(crate) fn on_disk(piece: &FilePiece<'_>) -> Option<DiskRead> {
    let range = piece.range;
    let len = piece.len.min(PIECE_LEN_MAX);
    let next = range.range.start..range.range.start + len;
    if is_cached_whole(range) || fiber::fs::is_cached(range.file.as_fd(), next) {
        return None;
    }
    Some(DiskRead {
        range: range.clone(),
        len: len.min(piece.share),
        buffers: Arc::clone(piece.buffers),
        is_slow: piece.is_slow(),
    })
}

/// Longest file whose caching is checked as a whole.
const LOOKED_AT_LEN_MAX: u64 = 4 * 1024 * 1024;

/// True if all of a file of up to that length is in the page cache.
fn is_cached_whole(range: &FileRange) -> bool {
    let file = &range.file;
    let len = range.file.stamp().len;
    if len > LOOKED_AT_LEN_MAX {
        return false;
    }
    let now = Instant::now();
    if file.was_cached(now) {
        return true;
    }
    let is_cached = fiber::fs::is_cached(file.as_fd(), 0..len);
    file.note_cached(is_cached, now);
    is_cached
}

/// A read that may wait for the disk.
pub(crate) struct DiskRead {
    range: FileRange,
    len: u64,
    buffers: Arc<Buffers>,
    /// For a slow peer.
    is_slow: bool,
}

impl DiskRead {
    /// The file opened with `O_DIRECT`, if it is to be read that way.
    fn direct(&self) -> Option<BorrowedFd<'_>> {
        if self.range.keep { None } else { self.range.file.direct() }
    }

    /// True if it bypasses the page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct().is_some()
    }

    /// Runs the read. Empty if the file ends there. The last bytes of the range are read only if
    /// the file's stamp is still the same afterwards.
    ///
    /// # Errors
    /// `InvalidData` if the file has changed; `TimedOut` if other direct reads have delayed it, so
    /// that the caller can check its deadline and the server's state; else the error of `pread(2)`.
    pub(crate) fn run(self) -> io::Result<Bytes> {
        let direct = self.direct();
        let _turn = match direct {
            Some(_) => Some(DIRECT_READS.acquire_timeout(TURN_PATIENCE).ok_or(TimedOut)?),
            None => None,
        };
        let read_by = |direct| {
            let buffer = self.buffers.take(self.len, self.is_slow)?;
            read(&self.range, direct, self.len, buffer)
        };
        match read_by(direct) {
            // The alignment needed for direct I/O depends on the file system. open(2)
            Err(refused)
                if direct.is_some() && Errno::from_io_error(&refused) == Some(Errno::INVAL) =>
            {
                read_by(None)
            }
            result => result,
        }
    }
}

/// Reads the beginning of a piece through the page cache, at most `len_max` or the peer's share,
/// like [`DiskRead::run`].
///
/// # Errors
/// As [`DiskRead::run`].
pub(crate) fn read_cached(piece: &FilePiece<'_>, len_max: u64) -> io::Result<Bytes> {
    let len = piece.len.min(len_max).min(piece.share);
    let buffer = piece.buffers.take(len, piece.is_slow())?;
    read(piece.range, None, len, buffer)
}

/// Reads the beginning of a piece that `sendfile(2)` has refused: some file systems do not support
/// it, and some containers forbid the call.
///
/// # Errors
/// `refused`, if it has another reason; else as [`DiskRead::run`].
pub(crate) fn read_instead(piece: &FilePiece<'_>, refused: io::Error) -> io::Result<Bytes> {
    const UNABLE: [Errno; 3] = [Errno::INVAL, Errno::NOSYS, Errno::OPNOTSUPP];
    match Errno::from_io_error(&refused) {
        Some(errno) if UNABLE.contains(&errno) => read_cached(piece, COPIED_PIECE_LEN),
        _ => Err(refused),
    }
}

fn read(
    range: &FileRange,
    direct: Option<BorrowedFd<'_>>,
    len_max: u64,
    mut buffer: Buffer,
) -> io::Result<Bytes> {
    const ALIGNMENT: u64 = DIRECT_ALIGNMENT as u64;
    let start = range.range.start;
    let len = len_max.min(buffer.piece_len());
    let (file, skipped, wanted) = match direct {
        None => (range.file.as_fd(), 0, len),
        Some(direct) => {
            let skipped = start % ALIGNMENT;
            (direct, skipped, (skipped + len).next_multiple_of(ALIGNMENT))
        }
    };
    let space = &mut buffer.bytes()[..wanted as usize];
    let read = loop {
        match fiber::fs::read_at(file, space, start - skipped) {
            // A network or user-space file system, interrupted by a signal. signal(7)
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => break read?,
        }
    };
    let end = read.min((skipped + len) as usize);
    let has_last = start - skipped + end as u64 >= range.range.end;
    if has_last && !range.file.is_unchanged()? {
        let message = "the file has changed while it was sent";
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(Bytes::from_owner(ReadPiece { buffer, filled: (skipped as usize).min(end)..end }))
}

/// Bytes of a file, in a buffer from the pool.
struct ReadPiece {
    buffer: Buffer,
    filled: Range<usize>,
}

impl AsRef<[u8]> for ReadPiece {
    fn as_ref(&self) -> &[u8] {
        &self.buffer.as_slice()[self.filled.clone()]
    }
}

/// Bytes to read from the page cache at a time, to be copied into a socket, or encrypted.
pub(crate) const COPIED_PIECE_LEN: u64 = 64 * 1024;

/// Most concurrent direct reads: the number of threads for them where no ring is used. A fiber
/// releases its turn only when it runs again, which on a busy processor is some milliseconds after
/// the disk was done. Reads that wait for a turn hold no buffer.
static DIRECT_READS: Semaphore = Semaphore::new(32);

/// Longest wait for a turn. A disk may hang.
const TURN_PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
#[path = "../../fiber/tests/refused/mod.rs"]
mod refused;

#[cfg(test)]
pub(crate) mod tests {
    use std::env;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use session::SharedFile;
    use tempfile::NamedTempFile;

    use super::*;
    use crate::connection::FileProgress;
    use crate::stream::{Stream, ThreadStream};

    /// A file on a disk, which the directory of temporary files may not be. It is created beside
    /// the test program, since the sources may be read-only.
    pub(crate) fn file_on_disk(content: &[u8]) -> NamedTempFile {
        let program = env::current_exe().unwrap();
        let folder = program.parent().expect("a program's path has a folder");
        let mut file = NamedTempFile::new_in(folder).unwrap();
        file.write_all(content).unwrap();
        file.as_file().sync_all().unwrap();
        file
    }

    /// Makes this system call fail with this error in the calling thread from now on.
    pub(crate) fn refuse(call: libc::c_long, errno: Errno) {
        refused::answer(call, errno.raw_os_error());
    }

    /// Calls `f` with a piece of a file that has this content.
    pub(crate) fn with_piece<R>(content: &[u8], f: impl FnOnce(&FilePiece<'_>) -> R) -> R {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        let file = Arc::new(SharedFile::try_from(file).unwrap());
        let len = content.len() as u64;
        f(&FilePiece {
            range: &FileRange { file, range: 0..len, keep: true, settled: true },
            len,
            checks_file: false,
            share: PIECE_LEN_MAX,
            buffers: &Arc::new(Buffers::new(16 << 20)),
            until: Instant::now() + Duration::from_secs(30),
            is_last: true,
        })
    }

    /// Seen: replies with a head and no body, for files above --memory-file-max. Cause: some file
    /// systems do not support `sendfile(2)`, for example OpenZFS on Linux 5.10 and 5.16; it fails
    /// with EINVAL, which ended the connection. Cure: such a file is read.
    #[test]
    fn file_system_without_sendfile() {
        let content: Vec<u8> = (0..100_000_u32).map(|at| (at / 7) as u8).collect();
        let send = move |errno| {
            let (near, _peer) = UnixStream::pair().unwrap();
            let stream = ThreadStream::new(near.into());
            refuse(libc::SYS_sendfile, errno);
            match with_piece(&content, |piece| stream.send_or_read_file(piece)) {
                Ok(FileProgress::Read(bytes)) => {
                    assert!(!bytes.is_empty() && content.starts_with(&bytes), "other bytes");
                    Ok(())
                }
                Ok(FileProgress::Sent(len)) => panic!("{len} bytes sent by a call that fails"),
                Err(error) => Err(error.raw_os_error()),
            }
        };
        for (errno, result) in [
            (Errno::INVAL, Ok(())),
            (Errno::NOSYS, Ok(())),
            (Errno::PIPE, Err(Some(Errno::PIPE.raw_os_error()))),
        ] {
            let send = send.clone();
            let sent = std::thread::spawn(move || send(errno)).join().unwrap();
            assert_eq!(sent, result, "after {errno}");
        }
    }

    /// Seen: truncated replies of files that are read with `O_DIRECT`. Cause: `pread` failed with
    /// EINVAL, as it does where direct I/O needs a larger alignment than the buffer's. Cure: such a
    /// piece is read through the page cache.
    #[test]
    fn direct_read_that_is_refused() {
        let content: Vec<u8> = (0..300_000_u32).map(|at| (at / 7) as u8).collect();
        let file = file_on_disk(&content);
        let shared = Arc::new(SharedFile::try_from(file.reopen().unwrap()).unwrap());
        let len = content.len() as u64;
        let read = DiskRead {
            range: FileRange { file: shared, range: 0..len, keep: false, settled: true },
            len,
            buffers: Arc::new(Buffers::new(16 << 20)),
            is_slow: false,
        };
        let run = move || {
            // Cached data is read by another call.
            refuse(libc::SYS_pread64, Errno::INVAL);
            read.run().unwrap()
        };
        let bytes = std::thread::spawn(run).join().unwrap();
        assert!(!bytes.is_empty() && content.starts_with(&bytes), "other bytes");
    }

    /// Seen: on a disk that allows 1,000 reads a second, uncached files took 2.9 reads each. Cause:
    /// pieces of 256 KiB. Cure: a file of up to 1 MiB is one read.
    #[test]
    fn a_rare_file_is_one_read() {
        let content: Vec<u8> = (0..921_600_u32).map(|at| (at / 7) as u8).collect();
        let file = file_on_disk(&content);
        let shared = SharedFile::try_from(file.reopen().unwrap()).unwrap();
        let mut range = FileRange {
            file: Arc::new(shared),
            range: 0..content.len() as u64,
            keep: false,
            settled: true,
        };
        let rare = |range: &FileRange| {
            let read = DiskRead {
                range: range.clone(),
                len: range.len().min(PIECE_LEN_MAX),
                buffers: Arc::new(Buffers::new(16 << 20)),
                is_slow: false,
            };
            read.run().unwrap()
        };
        assert!(rare(&range) == content);
        range.range.start = 4095;
        assert!(rare(&range) == content[4095..]);
    }
}
