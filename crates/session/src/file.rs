use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, Stat};

/// A range of an open file, as a chunk of output. The driver decides how it travels.
#[derive(Clone, Debug)]
pub struct FileRange {
    /// The file; it stays open as long as any range of it is queued.
    pub file: Arc<SharedFile>,
    /// Which bytes, from the file's start.
    pub range: Range<u64>,
    /// Whether the bytes are worth a place in the page cache. If not, a driver that misses there
    /// reads past it (`O_DIRECT`), so that rare files do not push out popular ones.
    pub keep: bool,
    /// Whether the file had been left alone for so long that any later write shows in its stamp. If
    /// not, a driver does not hand the page cache's own pages to the kernel: a write would change
    /// them on their way to the peer.
    pub settled: bool,
}

impl FileRange {
    /// How many bytes are left to send.
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Whether nothing is left to send.
    pub fn is_empty(&self) -> bool {
        self.range.start >= self.range.end
    }
}

/// An open regular file that many replies share, and what it was like when it was opened.
#[derive(Debug)]
pub struct SharedFile {
    fd: OwnedFd,
    stamp: FileStamp,
    standing: Standing,
    /// Whether it is sent as it comes, whatever is written to it meanwhile.
    is_moving: bool,
    direct: OnceLock<Option<OwnedFd>>,
    /// When a driver last saw all of it in the page cache, in milliseconds since the first such
    /// look; 0 is never.
    seen_cached_ms: AtomicU64,
    first_look: OnceLock<Instant>,
}

/// What tells one state of a file from another: a change of any part means that the bytes may have
/// changed. `ctime` is in it because a process that may write the file can set `mtime` back.
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
    /// The stamp in what `fstat(2)` returned.
    pub fn of(stat: &Stat) -> FileStamp {
        let ns = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        #[allow(
            clippy::unnecessary_cast,
            reason = "the field types differ between architectures"
        )]
        FileStamp {
            len: stat.st_size as u64,
            mtime_ns: ns(stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            ctime_ns: ns(stat.st_ctime as i64, stat.st_ctime_nsec as i64),
            inode: (stat.st_dev as u64, stat.st_ino as u64),
        }
    }
}

/// What changes the change time of a file without a write: how many names it has, its mode, its
/// owner and its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing(u64, u32, u32, u32);

impl Standing {
    fn of(stat: &Stat) -> Standing {
        #[allow(
            clippy::unnecessary_cast,
            reason = "the field types differ between architectures"
        )]
        let names = stat.st_nlink as u64;
        Standing(names, stat.st_mode, stat.st_uid, stat.st_gid)
    }
}

impl SharedFile {
    /// Takes an open file and notes its stamp (one `fstat(2)`).
    ///
    /// # Errors
    /// What `fstat(2)` reports.
    pub fn new(fd: OwnedFd) -> io::Result<SharedFile> {
        let stat = rustix::fs::fstat(&fd)?;
        Ok(SharedFile {
            fd,
            stamp: FileStamp::of(&stat),
            standing: Standing::of(&stat),
            is_moving: false,
            direct: OnceLock::new(),
            seen_cached_ms: AtomicU64::new(0),
            first_look: OnceLock::new(),
        })
    }

    /// Of a file that is written to all the time, as a log is, no state can be told from the next:
    /// its bytes are sent as they are when they are read, up to the length that it has now. What is
    /// announced with them must not say that they are of one state.
    #[must_use]
    pub fn moving(self) -> SharedFile {
        SharedFile {
            is_moving: true,
            ..self
        }
    }

    /// Whether it is sent as it comes.
    pub fn is_moving(&self) -> bool {
        self.is_moving
    }

    /// What the file was like when it was opened.
    pub fn stamp(&self) -> FileStamp {
        self.stamp
    }

    /// Whether the file's bytes are still those that were there when it was opened (one `fstat(2)`,
    /// never blocking on a local file system). A driver asks around sending: bytes that were
    /// written into the same inode in the meantime must not go out under the old length and ETag.
    ///
    /// Looks at length and modification time. Not at the change time: another file renamed over
    /// this one's name changes that, and a download of the old one may well go on. But if the
    /// modification time is of whole seconds, a program has set it, and may have written and set
    /// it back (`cp -p`): then the change time counts, unless names, mode or owner explain it. A
    /// [moving](SharedFile::moving) file has no state that it could leave.
    ///
    /// # Errors
    /// What `fstat(2)` reports.
    pub fn is_unchanged(&self) -> io::Result<bool> {
        if self.is_moving {
            return Ok(true);
        }
        let stat = rustix::fs::fstat(&self.fd)?;
        let now = FileStamp::of(&stat);
        let is_explained = now.ctime_ns == self.stamp.ctime_ns
            || now.mtime_ns % 1_000_000_000 != 0
            || Standing::of(&stat) != self.standing;
        let is_same = (now.len, now.mtime_ns) == (self.stamp.len, self.stamp.mtime_ns);
        Ok(is_same && is_explained)
    }

    /// The same file, opened with `O_DIRECT` at the first call. `None` where the file system has no
    /// direct I/O, or no descriptor is to be had: read through the page cache then.
    pub fn direct(&self) -> Option<BorrowedFd<'_>> {
        self.direct
            .get_or_init(|| self.open_direct())
            .as_ref()
            .map(AsFd::as_fd)
    }

    /// Notes that at `now` all of the file was in the page cache.
    pub fn note_cached(&self, now: Instant) {
        self.seen_cached_ms
            .store(self.age_ms(now), Ordering::Relaxed);
    }

    /// Whether all of the file was seen in the page cache less than `age_max` ago: asking the
    /// kernel for each of a thousand requests a second would cost more than it tells.
    pub fn was_cached(&self, now: Instant, age_max: Duration) -> bool {
        let seen = self.seen_cached_ms.load(Ordering::Relaxed);
        seen != 0 && self.age_ms(now).saturating_sub(seen) < age_max.as_millis() as u64
    }

    fn age_ms(&self, now: Instant) -> u64 {
        let first = *self.first_look.get_or_init(|| now);
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

    #[test]
    fn a_file_renamed_over_this_one_leaves_it_as_it_was() {
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

    /// As `cp -p` does where every file has one time, as in the Nix store.
    #[test]
    fn a_write_whose_time_is_set_back_is_noticed() {
        use std::os::unix::fs::PermissionsExt;
        let time = std::time::UNIX_EPOCH + Duration::from_secs(1);
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"release 1").unwrap();
        file.as_file().set_modified(time).unwrap();
        let shared = SharedFile::try_from(file.reopen().unwrap()).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let mode = std::fs::Permissions::from_mode(0o640);
        std::fs::set_permissions(file.path(), mode).unwrap();
        assert!(shared.is_unchanged().unwrap(), "another mode alone");
        let shared = SharedFile::try_from(file.reopen().unwrap()).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let link = file.path().with_extension("link");
        std::fs::hard_link(file.path(), &link).unwrap();
        assert!(shared.is_unchanged().unwrap(), "another name alone");
        std::fs::remove_file(link).unwrap();
        let shared = SharedFile::try_from(file.reopen().unwrap()).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        std::fs::write(file.path(), "release 2").unwrap();
        file.as_file().set_modified(time).unwrap();
        assert!(!shared.is_unchanged().unwrap());
    }

    #[test]
    fn a_write_into_the_same_inode_is_noticed() {
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
    fn a_range_is_as_long_as_what_lies_between_its_ends() {
        let file = Arc::new(SharedFile::try_from(tempfile::tempfile().unwrap()).unwrap());
        let range = |range| FileRange {
            file: Arc::clone(&file),
            range,
            keep: true,
            settled: true,
        };
        assert_eq!(range(3..10).len(), 7);
        assert!(!range(3..4).is_empty() && range(4..4).is_empty());
    }

    #[test]
    fn a_stamp_has_nanoseconds_since_1970() {
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
    fn a_look_into_the_page_cache_is_believed_for_a_while() {
        let shared = SharedFile::try_from(tempfile::tempfile().unwrap()).unwrap();
        let start = Instant::now();
        let second = Duration::from_secs(1);
        assert!(!shared.was_cached(start, second), "no look yet");
        shared.note_cached(start);
        assert!(shared.was_cached(start, second));
        assert!(shared.was_cached(start + Duration::from_millis(999), second));
        assert!(!shared.was_cached(start + second, second));
        shared.note_cached(start + second);
        assert!(shared.was_cached(start + second, second));
    }

    /// What a file system says to an open with O_DIRECT by name, it says here.
    #[test]
    fn the_file_past_the_page_cache_is_the_same_one() {
        // On a disk, which the folder of temporary files need not be.
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
