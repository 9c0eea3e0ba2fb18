use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use rustix::fs::{Mode, OFlags, Stat};

/// A range of an open file, as a chunk of output. The driver decides how it travels.
#[derive(Clone, Debug)]
pub struct FileRange {
    /// The file; it stays open as long as any range of it is queued.
    pub file: Arc<SharedFile>,
    /// Byte range, from the start of the file.
    pub range: Range<u64>,
    /// True if the bytes deserve a place in the page cache. If not, a driver that misses there
    /// reads with `O_DIRECT`, so that rare files do not evict popular ones.
    pub keep: bool,
    /// True if the file was unmodified for so long that any later write shows in its stamp. If not,
    /// a driver does not hand page-cache pages to the kernel: a write would change them on their
    /// way to the peer.
    pub settled: bool,
}

impl FileRange {
    /// Number of bytes left to send.
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// True if nothing is left to send.
    pub fn is_empty(&self) -> bool {
        self.range.start >= self.range.end
    }
}

/// An open regular file shared by many replies, with its stamp at the time of opening.
#[derive(Debug)]
pub struct SharedFile {
    fd: OwnedFd,
    stamp: FileStamp,
    attributes: FileAttributes,
    /// True if the file is sent as read, whatever is written to it meanwhile.
    is_moving: bool,
    direct: OnceLock<Option<OwnedFd>>,
    /// Times in milliseconds since the first check, 0 for never: the last check that found the
    /// whole file in the page cache, and the first of an unbroken series of such checks.
    seen_cached_ms: AtomicU64,
    cached_since_ms: AtomicU64,
    first_check: OnceLock<Instant>,
}

/// Divisor and bounds: a file found in the page cache over some time is assumed to stay there for
/// half of that time. The kernel evicts pages that have not been used for seconds; under pressure,
/// newer ones earlier. (After a wrong guess, one request blocks its processor on the disk.)
const CACHED_PART: u64 = 2;
const CACHED_AGE_MIN_MS: u64 = 50;
const CACHED_AGE_MAX_MS: u64 = 1_000;

/// Identity of one state of a file: if any part differs, the bytes may differ. `ctime` is included
/// because a process that may write the file can set `mtime` back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp {
    /// Length in bytes.
    pub len: u64,
    /// Modification time, nanoseconds since 1970.
    pub mtime_ns: i128,
    /// Change time of the inode, nanoseconds since 1970.
    pub ctime_ns: i128,
    /// Device and inode number.
    pub inode: (u64, u64),
}

impl FileStamp {
    /// Takes the stamp from a result of `fstat(2)`.
    pub fn of(stat: &Stat) -> FileStamp {
        let ns = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        #[allow(clippy::unnecessary_cast, reason = "the field types differ between architectures")]
        FileStamp {
            len: stat.st_size as u64,
            mtime_ns: ns(stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            ctime_ns: ns(stat.st_ctime as i64, stat.st_ctime_nsec as i64),
            inode: (stat.st_dev as u64, stat.st_ino as u64),
        }
    }
}

/// Metadata whose change sets `ctime` without a write: number of links, mode, owner, group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileAttributes(u64, u32, u32, u32);

impl FileAttributes {
    fn of(stat: &Stat) -> FileAttributes {
        #[allow(clippy::unnecessary_cast, reason = "the field types differ between architectures")]
        let links = stat.st_nlink as u64;
        FileAttributes(links, stat.st_mode, stat.st_uid, stat.st_gid)
    }
}

impl SharedFile {
    /// Takes an open file and notes its stamp (one `fstat(2)`).
    ///
    /// # Errors
    /// Errors of `fstat(2)`.
    pub fn new(fd: OwnedFd) -> io::Result<SharedFile> {
        let stat = rustix::fs::fstat(&fd)?;
        Ok(SharedFile {
            fd,
            stamp: FileStamp::of(&stat),
            attributes: FileAttributes::of(&stat),
            is_moving: false,
            direct: OnceLock::new(),
            seen_cached_ms: AtomicU64::new(0),
            cached_since_ms: AtomicU64::new(0),
            first_check: OnceLock::new(),
        })
    }

    /// Marks a file that is written to all the time, such as a log. Its bytes are sent as read, up
    /// to the length that it has now. The reply must not claim that they are of one state.
    #[must_use]
    pub fn moving(self) -> SharedFile {
        SharedFile { is_moving: true, ..self }
    }

    /// True if the file is sent as read.
    pub fn is_moving(&self) -> bool {
        self.is_moving
    }

    /// The stamp at the time of opening.
    pub fn stamp(&self) -> FileStamp {
        self.stamp
    }

    /// True if the bytes are still those at the time of opening (one `fstat(2)`, never blocking on
    /// a local file system). A driver checks before and after sending: bytes written into the same
    /// inode meanwhile must not go out under the old length and ETag.
    ///
    /// Compares length and modification time, but not the change time: renaming another file over
    /// this name changes that, and a download of the old file may continue. If the modification
    /// time is in whole seconds, a program may have written and set it back (`cp -p`); then the
    /// change time counts, unless links, mode or owner explain it. A [moving](SharedFile::moving)
    /// file is always unchanged.
    ///
    /// # Errors
    /// Errors of `fstat(2)`.
    pub fn is_unchanged(&self) -> io::Result<bool> {
        if self.is_moving {
            return Ok(true);
        }
        let stat = rustix::fs::fstat(&self.fd)?;
        let now = FileStamp::of(&stat);
        let is_explained = now.ctime_ns == self.stamp.ctime_ns
            || now.mtime_ns % 1_000_000_000 != 0
            || FileAttributes::of(&stat) != self.attributes;
        let is_same = (now.len, now.mtime_ns) == (self.stamp.len, self.stamp.mtime_ns);
        Ok(is_same && is_explained)
    }

    /// The same file, opened with `O_DIRECT` at the first call. `None` if the file system has no
    /// direct I/O or no descriptor is left; then read through the page cache.
    pub fn direct(&self) -> Option<BorrowedFd<'_>> {
        self.direct.get_or_init(|| self.open_direct()).as_ref().map(AsFd::as_fd)
    }

    /// Records whether the whole file was in the page cache at `now`.
    pub fn note_cached(&self, is_cached: bool, now: Instant) {
        let now_ms = if is_cached { self.age_ms(now) } else { 0 };
        let seen = self.seen_cached_ms.swap(now_ms, Ordering::Relaxed);
        if seen == 0 || now_ms.saturating_sub(seen) > 2 * CACHED_AGE_MAX_MS {
            self.cached_since_ms.store(now_ms, Ordering::Relaxed);
        }
    }

    /// True if the whole file was seen in the page cache lately: asking the kernel for each request
    /// would cost more than it saves. The longer it has been there, the longer that is believed.
    pub fn was_cached(&self, now: Instant) -> bool {
        let seen = self.seen_cached_ms.load(Ordering::Relaxed);
        let cached_for = seen.saturating_sub(self.cached_since_ms.load(Ordering::Relaxed));
        let age_max = (cached_for / CACHED_PART).clamp(CACHED_AGE_MIN_MS, CACHED_AGE_MAX_MS);
        seen != 0 && self.age_ms(now).saturating_sub(seen) < age_max
    }

    fn age_ms(&self, now: Instant) -> u64 {
        let first = *self.first_check.get_or_init(|| now);
        now.saturating_duration_since(first).as_millis() as u64 + 1
    }

    fn open_direct(&self) -> Option<OwnedFd> {
        // Opening the magic link reaches the same inode even if its name is gone. proc(5)
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty()).ok()
    }
}

impl AsFd for SharedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl TryFrom<File> for SharedFile {
    type Error = io::Error;

    fn try_from(file: File) -> io::Result<SharedFile> {
        SharedFile::new(file.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::time::Duration;

    #[test]
    fn rename_over_keeps_it_unchanged() {
        let directory = tempfile::tempdir().unwrap();
        let old = directory.path().join("old");
        let new = directory.path().join("new");
        std::fs::write(&old, "old").unwrap();
        std::fs::write(&new, "new").unwrap();
        let shared = SharedFile::try_from(File::open(&old).unwrap()).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        std::fs::rename(&new, &old).unwrap();
        assert!(shared.is_unchanged().unwrap());
        let shared = SharedFile::try_from(File::open(&old).unwrap()).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        std::fs::rename(&old, &new).unwrap();
        assert!(shared.is_unchanged().unwrap(), "itself renamed");
    }

    /// Writes as `cp -p` does where every file has one time, as in the Nix store.
    #[test]
    fn write_with_mtime_set_back_shows() {
        use std::os::unix::fs::PermissionsExt;
        let time = std::time::UNIX_EPOCH + Duration::from_secs(1);
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"release 1").unwrap();
        file.as_file().set_modified(time).unwrap();
        let shared = SharedFile::try_from(file.reopen().unwrap()).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let mode = std::fs::Permissions::from_mode(0o640);
        std::fs::set_permissions(file.path(), mode).unwrap();
        assert!(shared.is_unchanged().unwrap(), "only the mode changed");
        let shared = SharedFile::try_from(file.reopen().unwrap()).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let link = file.path().with_extension("link");
        std::fs::hard_link(file.path(), &link).unwrap();
        assert!(shared.is_unchanged().unwrap(), "only a name was added");
        std::fs::remove_file(link).unwrap();
        let shared = SharedFile::try_from(file.reopen().unwrap()).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        std::fs::write(file.path(), "release 2").unwrap();
        file.as_file().set_modified(time).unwrap();
        assert!(!shared.is_unchanged().unwrap());
    }

    #[test]
    fn write_into_the_inode_shows() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"old").unwrap();
        let shared = SharedFile::try_from(file.reopen().unwrap()).unwrap();
        assert!(shared.is_unchanged().unwrap());
        file.write_all(b"and new").unwrap();
        assert!(!shared.is_unchanged().unwrap());
        assert!(!shared.is_moving());
        let moving = shared.moving();
        assert!(moving.is_moving() && moving.is_unchanged().unwrap());
    }

    #[test]
    fn range_len_is_end_minus_start() {
        let file = Arc::new(SharedFile::try_from(tempfile::tempfile().unwrap()).unwrap());
        let range = |range| FileRange { file: Arc::clone(&file), range, keep: true, settled: true };
        assert_eq!(range(3..10).len(), 7);
        assert!(!range(3..4).is_empty() && range(4..4).is_empty());
    }

    #[test]
    fn stamp_is_nanoseconds_since_1970() {
        use std::os::unix::fs::MetadataExt;
        let file = tempfile::tempfile().unwrap();
        let when = std::time::UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
        file.set_modified(when).unwrap();
        let metadata = file.metadata().unwrap();
        let stamp = SharedFile::try_from(file).unwrap().stamp();
        assert_eq!(stamp.mtime_ns, 1_700_000_000_123_456_789);
        let ctime_ns = i128::from(metadata.ctime()) * 1_000_000_000;
        assert_eq!(stamp.ctime_ns, ctime_ns + i128::from(metadata.ctime_nsec()));
        assert_eq!(stamp.inode, (metadata.dev(), metadata.ino()));
    }

    #[test]
    fn cached_note_expires() {
        let shared = SharedFile::try_from(tempfile::tempfile().unwrap()).unwrap();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert!(!shared.was_cached(start), "no check yet");
        shared.note_cached(true, start);
        assert!(shared.was_cached(at(49)));
        assert!(!shared.was_cached(at(50)));
        // The longer the file stays cached, the longer a check is believed, up to a second.
        for ms in (0..).step_by(50).take(400) {
            shared.note_cached(true, at(ms));
        }
        assert!(shared.was_cached(at(19_950 + 999)));
        assert!(!shared.was_cached(at(19_950 + 1_000)));
        // After a pause the trust begins anew.
        shared.note_cached(true, at(30_000));
        assert!(!shared.was_cached(at(30_050)));
        shared.note_cached(true, at(31_000));
        assert!(shared.was_cached(at(31_100)));
        shared.note_cached(false, at(31_200));
        assert!(!shared.was_cached(at(31_200)));
        shared.note_cached(true, at(31_300));
        assert!(!shared.was_cached(at(31_350)));
    }

    /// Opening by descriptor and by name agree on whether the file system has direct I/O.
    #[test]
    fn direct_fd_is_the_same_inode() {
        // On a disk: the temporary directory may lie on a tmpfs.
        let program = std::env::current_exe().unwrap();
        let file = tempfile::NamedTempFile::new_in(program.parent().unwrap()).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECT;
        let has_direct = rustix::fs::open(file.path(), flags, Mode::empty()).is_ok();
        let shared = SharedFile::try_from(file.reopen().unwrap()).unwrap();
        assert_eq!(shared.direct().is_some(), has_direct);
        if let Some(direct) = shared.direct() {
            let opened = rustix::fs::fcntl_getfl(direct).unwrap();
            assert!(opened.contains(OFlags::DIRECT), "{opened:?}");
            let flags = rustix::io::fcntl_getfd(direct).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "{flags:?}");
            let stat = rustix::fs::fstat(direct).unwrap();
            assert_eq!(FileStamp::of(&stat).inode, shared.stamp().inode);
        }
    }
}
