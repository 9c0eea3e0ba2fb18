use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use session::{FileStamp, SharedFile};

use super::Moment;

/// The site's root directory: every path is looked up from here, and (unless links may lead out)
/// nothing outside it can be reached, whatever the path or its links contain.
#[derive(Debug)]
pub(super) struct Root {
    directory: Arc<OpenDirectory>,
    resolver: Resolver,
    links_out: bool,
    /// Number of directories that the root path has led to.
    pub(super) generation: u64,
}

#[derive(Debug)]
struct OpenDirectory {
    fd: OwnedFd,
    /// Device and inode, to notice that the path now leads to another directory.
    inode: (u64, u64),
    resolver: Resolver,
}

/// Open directories by path. Hosts with the same root share one descriptor, and so do sites before
/// and after a reload.
#[derive(Debug, Default)]
pub(super) struct Roots(Mutex<HashMap<PathBuf, Weak<OpenDirectory>>>);

/// Method of resolving a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resolver {
    /// `openat2(2)`, since Linux 5.6. `cached`: knows `RESOLVE_CACHED`, since 5.12.
    Kernel { cached: bool },
    /// This program walks segment by segment, because the kernel is older or a seccomp filter
    /// refuses the call. Each step may block, so it walks only where blocking is allowed.
    OurOwn,
}

/// Permission of a lookup to block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocking {
    /// Returns [`Miss::WouldBlock`] for anything outside the kernel's caches.
    Never,
    /// The thread may wait.
    Allowed,
}

/// Root, time and permissions of a lookup on disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiskLookup<'a> {
    pub(super) root: &'a Root,
    pub(super) moment: Moment,
    pub(super) blocking: Blocking,
}

impl DiskLookup<'_> {
    pub(super) fn stat(&self, path: &str) -> Result<(Kind, FileStamp), Miss> {
        self.root.stat(path, self.blocking)
    }
}

/// Reason why there is nothing to serve.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Miss {
    /// Absent, or not to be shown: both look the same.
    NotFound,
    /// Present, but not readable for the server's user.
    Forbidden,
    /// At another path, to which the client is redirected: a directory without its slash, or with
    /// clean URLs a page with its extension.
    Moved(String),
    /// A directory without an index file.
    Directory,
    /// A file that exists only in codings that the client does not accept.
    OnlyCompressed,
    /// The answer needs the disk.
    WouldBlock,
    /// The file is being written, or was just now: it must stay unmodified for this long.
    BeingWritten(Duration),
    /// No descriptor is free.
    OutOfDescriptors,
    /// The reply's status, and a sentence for the log.
    Failed(u16, String),
}

/// Type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
}

/// Most repetitions of a lookup disturbed by a rename somewhere in the tree. openat2(2), EAGAIN
const DISTURBED_MAX: u32 = 16;

/// Maximum number of symbolic links in a path, as in the kernel. path_resolution(7)
const LINKS_MAX: u32 = 40;

/// Flags of a directory used for lookups only: no read permission is needed.
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Roots {
    /// Opens the directory at `path`, unless it is open already.
    pub(super) fn open(&self, path: &Path, links_out: bool, generation: u64) -> io::Result<Root> {
        let fd = rustix::fs::open(path, DIRECTORY, Mode::empty())?;
        let inode = FileStamp::of(&rustix::fs::fstat(&fd)?).inode;
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = known.get(path).and_then(Weak::upgrade);
        let directory = match directory.filter(|directory| directory.inode == inode) {
            Some(directory) => directory,
            None => {
                let resolver = Resolver::probe(&fd)?;
                let directory = OpenDirectory { fd, inode, resolver };
                let directory = Arc::new(directory);
                if known.len().is_power_of_two() {
                    known.retain(|_, directory| directory.strong_count() > 0);
                }
                known.insert(path.to_owned(), Arc::downgrade(&directory));
                directory
            }
        };
        Ok(Root { resolver: directory.resolver, directory, links_out, generation })
    }
}

impl Root {
    /// True if `path` still leads to this directory.
    pub(super) fn is_at(&self, path: &Path, blocking: Blocking) -> Result<bool, Miss> {
        let opened = match (self.resolver, blocking) {
            (_, Blocking::Allowed) => rustix::fs::open(path, DIRECTORY, Mode::empty()),
            (Resolver::Kernel { cached: true }, Blocking::Never) => {
                rustix::fs::openat2(CWD, path, DIRECTORY, Mode::empty(), ResolveFlags::CACHED)
            }
            _ => return Err(Miss::WouldBlock),
        };
        let stat = opened.and_then(rustix::fs::fstat).map_err(|errno| match errno {
            Errno::AGAIN => Miss::WouldBlock,
            errno => miss_of(errno),
        })?;
        Ok(FileStamp::of(&stat).inode == self.directory.inode)
    }

    /// Looks up a path from the root (no slash first). Sockets, pipes and devices are not found.
    /// Needs no read permission.
    pub(super) fn stat(&self, path: &str, blocking: Blocking) -> Result<(Kind, FileStamp), Miss> {
        let fd = self.resolve(path, OFlags::PATH, blocking)?;
        let stat = rustix::fs::fstat(&fd).map_err(miss_of)?;
        let kind = match type_of(&stat) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Directory,
            _ => return Err(Miss::NotFound),
        };
        Ok((kind, FileStamp::of(&stat)))
    }

    /// Opens the file at a path for reading. The file may have changed since the last lookup: the
    /// caller compares the stamp, which proves that it is the same regular file.
    pub(super) fn open_file(&self, path: &str, blocking: Blocking) -> Result<SharedFile, Miss> {
        // A pipe without a writer would block the open. open(2), O_NONBLOCK
        let fd =
            self.resolve(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY, blocking)?;
        // After the open, the flag would only make io_uring fail reads that could wait.
        rustix::fs::fcntl_setfl(&fd, OFlags::empty()).map_err(miss_of)?;
        SharedFile::new(fd).map_err(|error| miss_of_io(&error))
    }

    /// Opens an error page. It is chosen by the operator, so it may be hidden or outside the root.
    pub(super) fn open_page(&self, path: &Path, blocking: Blocking) -> Result<SharedFile, Miss> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = match (self.resolver, blocking) {
            (_, Blocking::Allowed) => {
                rustix::fs::openat(&self.directory.fd, path, flags, Mode::empty())
            }
            (Resolver::Kernel { cached: true }, Blocking::Never) => {
                let resolve = ResolveFlags::CACHED;
                rustix::fs::openat2(&self.directory.fd, path, flags, Mode::empty(), resolve)
            }
            (_, Blocking::Never) => return Err(Miss::WouldBlock),
        };
        let fd = opened.map_err(|errno| match errno {
            Errno::AGAIN if blocking == Blocking::Never => Miss::WouldBlock,
            errno => miss_of(errno),
        })?;
        if type_of(&rustix::fs::fstat(&fd).map_err(miss_of)?) != FileType::RegularFile {
            return Err(Miss::Failed(500, "it is not a regular file".to_owned()));
        }
        SharedFile::new(fd).map_err(|error| miss_of_io(&error))
    }

    /// Opens a directory for reading. Blocks.
    pub(super) fn open_directory(&self, path: &str) -> Result<OwnedFd, Miss> {
        self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY, Blocking::Allowed)
    }

    fn resolve(&self, path: &str, flags: OFlags, blocking: Blocking) -> Result<OwnedFd, Miss> {
        let path = if path.is_empty() { "." } else { path };
        let flags = flags | OFlags::CLOEXEC;
        match (self.resolver, blocking) {
            (Resolver::Kernel { cached: true }, Blocking::Never) => {
                self.openat2(path, flags, ResolveFlags::CACHED).map_err(|errno| match errno {
                    Errno::AGAIN => Miss::WouldBlock,
                    errno => miss_of(errno),
                })
            }
            (_, Blocking::Never) => Err(Miss::WouldBlock),
            (Resolver::Kernel { .. }, Blocking::Allowed) => {
                self.openat2_patiently(path, flags).map_err(miss_of)
            }
            (Resolver::OurOwn, Blocking::Allowed) => {
                self.walk(path.as_bytes(), flags).map_err(miss_of)
            }
        }
    }

    fn openat2(&self, path: &str, flags: OFlags, also: ResolveFlags) -> Result<OwnedFd, Errno> {
        let mut resolve = ResolveFlags::NO_MAGICLINKS | also;
        resolve.set(ResolveFlags::BENEATH, !self.links_out);
        rustix::fs::openat2(&self.directory.fd, path, flags, Mode::empty(), resolve)
    }

    fn openat2_patiently(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        for _ in 0..DISTURBED_MAX {
            match self.openat2(path, flags, ResolveFlags::empty()) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                done => return done,
            }
        }
        Err(Errno::AGAIN)
    }

    /// Emulates `openat2`: follows links itself, and lets neither `..` nor an absolute link lead
    /// out of the root (unless allowed). Each segment is opened without following (`O_PATH |
    /// O_NOFOLLOW`) from the descriptor of its parent, so no process can swap a directory for a
    /// link meanwhile. A magic link is followed by its text, so it opens nothing more than that
    /// path.
    fn walk(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let step = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Remaining segments, the next one last, and the stack of open directories.
        let mut to_go = Vec::new();
        push_segments(&mut to_go, path);
        let mut stood_in: Vec<OwnedFd> = Vec::new();
        let mut links = 0;
        while let Some(segment) = to_go.pop() {
            if segment.to_bytes() == b"." {
                continue;
            }
            let is_up = segment.to_bytes() == b"..";
            if is_up && stood_in.pop().is_some() {
                continue;
            }
            if is_up && !self.links_out {
                return Err(Errno::XDEV);
            }
            let at = stood_in.last().unwrap_or(&self.directory.fd);
            let fd = rustix::fs::openat(at, &segment, step, Mode::empty())?;
            match type_of(&rustix::fs::fstat(&fd)?) {
                FileType::Symlink => {
                    links += 1;
                    let target = rustix::fs::readlinkat(&fd, c"", Vec::new())?;
                    if target.to_bytes().starts_with(b"/") {
                        if !self.links_out {
                            return Err(Errno::XDEV);
                        }
                        stood_in.push(rustix::fs::open(c"/", step, Mode::empty())?);
                    }
                    if links > LINKS_MAX {
                        return Err(Errno::LOOP);
                    }
                    push_segments(&mut to_go, target.to_bytes());
                }
                FileType::Directory => stood_in.push(fd),
                _ if !to_go.is_empty() => return Err(Errno::NOTDIR),
                _ => {
                    return rustix::fs::openat(
                        at,
                        &segment,
                        flags | OFlags::NOFOLLOW,
                        Mode::empty(),
                    );
                }
            }
        }
        rustix::fs::openat(
            stood_in.last().unwrap_or(&self.directory.fd),
            c".",
            flags,
            Mode::empty(),
        )
    }
}

impl Resolver {
    fn probe(fd: &OwnedFd) -> Result<Resolver, Errno> {
        let try_with = |resolve| rustix::fs::openat2(fd, c".", DIRECTORY, Mode::empty(), resolve);
        match try_with(ResolveFlags::BENEATH) {
            Ok(_) => {
                let cached = try_with(ResolveFlags::CACHED);
                Ok(Resolver::Kernel { cached: !matches!(cached, Err(Errno::INVAL)) })
            }
            // Docker's seccomp filters before 20.10 return EPERM for unknown calls.
            Err(Errno::NOSYS | Errno::PERM) => {
                rustix::fs::openat(fd, c".", DIRECTORY, Mode::empty())?;
                Ok(Resolver::OurOwn)
            }
            Err(errno) => Err(errno),
        }
    }
}

fn type_of(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Splits `a//b/` as `a . b .`: a dot at the end demands a directory, as a slash does.
fn push_segments(to_go: &mut Vec<CString>, path: &[u8]) {
    let segment = |segment: &[u8]| {
        if segment.is_empty() { c".".to_owned() } else { c_string(segment) }
    };
    to_go.extend(path.rsplit(|&byte| byte == b'/').map(segment));
}

/// Segments contain no NUL: paths with one count as hidden, and the kernel's links have none.
fn c_string(segment: &[u8]) -> CString {
    CString::new(segment).unwrap_or_default()
}

/// True if a path from the root (without leading slash) is never shown: a segment begins with a
/// dot, unless hidden files are served or it is `.well-known` at the top (RFC 8615); or it has
/// `..`, an empty segment or a NUL. The protocol has removed those already; this is a second check.
pub(super) fn is_hidden(path: &str, show_hidden: bool) -> bool {
    let segments = path.strip_suffix('/').unwrap_or(path).split('/').enumerate();
    let hides = |(nth, segment): (usize, &str)| match segment {
        "" => !path.is_empty(),
        "." | ".." => true,
        ".well-known" if nth == 0 => false,
        segment => (segment.starts_with('.') && !show_hidden) || segment.contains('\0'),
    };
    segments.into_iter().any(hides)
}

/// Maps an error of a lookup to a reply.
pub(super) fn miss_of(errno: Errno) -> Miss {
    match errno {
        // ELOOP: too many links, or a magic link. EXDEV: the path leads out of the root. EINVAL:
        // a NUL in it. ENXIO, ENODEV: a socket, a pipe, a device without driver. openat2(2)
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::NAMETOOLONG => {
            Miss::NotFound
        }
        Errno::INVAL | Errno::NXIO | Errno::NODEV => Miss::NotFound,
        Errno::ACCESS | Errno::PERM => Miss::Forbidden,
        Errno::MFILE | Errno::NFILE => Miss::OutOfDescriptors,
        // EAGAIN: a process holds a lease on the file (fcntl(2)) or keeps renaming directories.
        Errno::NOMEM | Errno::AGAIN => Miss::Failed(503, errno.to_string()),
        _ => Miss::Failed(500, errno.to_string()),
    }
}

pub(super) fn miss_of_io(error: &io::Error) -> Miss {
    Errno::from_io_error(error).map_or_else(|| Miss::Failed(500, error.to_string()), miss_of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use tempfile::TempDir;

    #[test]
    fn errno_to_status() {
        let status = |errno| match miss_of(errno) {
            Miss::Failed(status, _) => status,
            other => panic!("{other:?}"),
        };
        assert_eq!([Errno::NOMEM, Errno::AGAIN].map(status), [503; 2]);
        assert_eq!(status(Errno::IO), 500);
        // Root may read everything, so requests for a file cannot produce this error.
        assert_eq!(miss_of(Errno::ACCESS), Miss::Forbidden);
    }

    impl Root {
        pub(in crate::site) fn is_open_as(&self, other: &Root) -> bool {
            Arc::ptr_eq(&self.directory, &other.directory)
        }

        pub(in crate::site) fn open(
            path: &Path,
            links_out: bool,
            generation: u64,
        ) -> io::Result<Root> {
            Roots::default().open(path, links_out, generation)
        }

        /// Acts as on a kernel without `openat2`.
        pub(in crate::site) fn without_openat2(mut self) -> Root {
            self.resolver = Resolver::OurOwn;
            self
        }
    }

    /// A root with links of every kind, next to a file that must never be reached.
    fn tree() -> (TempDir, Vec<Root>) {
        let dir = TempDir::new().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(dir.path().join("secret"), "secret").unwrap();
        fs::write(root.join("file"), "file").unwrap();
        fs::write(root.join("a/b/deep"), "deep").unwrap();
        symlink("../../file", root.join("a/b/inside")).unwrap();
        symlink("a/b", root.join("to_b")).unwrap();
        symlink("to_b/inside", root.join("chain")).unwrap();
        symlink("../secret", root.join("outside")).unwrap();
        symlink("..", root.join("up")).unwrap();
        symlink(dir.path().join("secret"), root.join("absolute")).unwrap();
        symlink(root.join("file"), root.join("absolute_inside")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let kernel = Root::open(&root, false, 0).unwrap();
        let own = Root::open(&root, false, 0).unwrap().without_openat2();
        (dir, vec![kernel, own])
    }

    fn look(root: &Root, path: &str) -> Result<Kind, Miss> {
        root.stat(path, Blocking::Allowed).map(|(kind, _)| kind)
    }

    #[test]
    fn links_that_stay_inside_are_followed() {
        let (_dir, roots) = tree();
        for root in &roots {
            for path in ["file", "a/b/inside", "to_b/deep", "to_b/inside", "chain"] {
                assert_eq!(look(root, path), Ok(Kind::File), "{path} by {:?}", root.resolver);
            }
            for path in ["", "a", "a/", "to_b", "to_b/"] {
                assert_eq!(look(root, path), Ok(Kind::Directory), "{path} by {:?}", root.resolver);
            }
        }
    }

    #[test]
    fn links_out_are_not_found() {
        let (_dir, roots) = tree();
        for root in &roots {
            for path in ["outside", "up", "up/secret", "up/root/file", "absolute", "loop"] {
                assert_eq!(look(root, path), Err(Miss::NotFound), "{path} by {:?}", root.resolver);
            }
            for path in ["../secret", "a/../../secret", "file/", "nope", "file/x"] {
                assert_eq!(look(root, path), Err(Miss::NotFound), "{path} by {:?}", root.resolver);
            }
            assert_eq!(look(root, "absolute_inside"), Err(Miss::NotFound));
        }
    }

    /// path_resolution(7): 40 links, and the 41st is ELOOP.
    #[test]
    fn link_limit_as_in_the_kernel() {
        let (dir, roots) = tree();
        let link = |n| dir.path().join(format!("root/link{n}"));
        symlink("file", link(1)).unwrap();
        (2..=41).for_each(|n| symlink(format!("link{}", n - 1), link(n)).unwrap());
        for root in &roots {
            assert_eq!(look(root, "link40"), Ok(Kind::File), "{:?}", root.resolver);
            let too_long = look(root, "link41");
            assert_eq!(too_long, Err(Miss::NotFound), "{:?}", root.resolver);
        }
    }

    #[test]
    fn links_out_when_configured() {
        let (dir, _) = tree();
        let kernel = Root::open(&dir.path().join("root"), true, 0).unwrap();
        let own = Root::open(&dir.path().join("root"), true, 0).unwrap().without_openat2();
        for root in [kernel, own] {
            for path in ["outside", "absolute", "up/secret"] {
                assert_eq!(look(&root, path), Ok(Kind::File), "{path} by {:?}", root.resolver);
            }
        }
    }

    #[test]
    fn magic_links_are_never_followed() {
        let root = Root::open(Path::new("/proc/self"), true, 0).unwrap();
        assert_eq!(look(&root, "fd/0"), Err(Miss::NotFound));
        assert_eq!(look(&root, "exe"), Err(Miss::NotFound));
    }

    #[test]
    fn special_files_are_not_found() {
        let (dir, roots) = tree();
        let root_path = dir.path().join("root");
        let _socket = UnixListener::bind(root_path.join("socket")).unwrap();
        rustix::fs::mknodat(CWD, root_path.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        for root in &roots {
            for path in ["socket", "pipe"] {
                assert_eq!(look(root, path), Err(Miss::NotFound));
            }
            // Even if the pipe appears between the lookup and the open.
            let opened = root.open_file("pipe", Blocking::Allowed);
            assert!(opened.is_ok_and(|file| file.stamp().len == 0));
        }
    }

    #[test]
    fn nonblocking_lookup_is_right_or_says_so() {
        let (dir, roots) = tree();
        for n in 0..20 {
            let name = format!("never_seen_{n}");
            let found = roots[0].stat(&name, Blocking::Never).map(|(kind, _)| kind);
            assert!(matches!(found, Err(Miss::WouldBlock | Miss::NotFound)), "{found:?}");
        }
        assert_eq!(look(&roots[0], "file"), Ok(Kind::File));
        assert!(roots[0].stat("file", Blocking::Never).is_ok());
        // A mount elsewhere may disturb one attempt.
        let is_at = || roots[0].is_at(&dir.path().join("root"), Blocking::Never);
        assert!((0..100).any(|_| is_at() == Ok(true)));
        let elsewhere = || roots[0].is_at(dir.path(), Blocking::Never);
        assert!((0..100).any(|_| elsewhere() == Ok(false)));
        assert!(matches!(roots[1].stat("file", Blocking::Never), Err(Miss::WouldBlock)));
        drop(dir);
    }

    #[test]
    fn dots_hide_except_well_known() {
        for path in [".git/config", "a/.b", ".env", "a/.well-known/x", "a/..", ".", "a//b", "a/\0"]
        {
            assert!(is_hidden(path, false), "{path:?}");
        }
        for path in ["", "a", "a/", "a/b.c", ".well-known/acme-challenge/x", ".well-known/", "a.b/"]
        {
            assert!(!is_hidden(path, false), "{path:?}");
        }
        assert!(
            !is_hidden(".git/config", true) && is_hidden("../x", true) && is_hidden("//", true)
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        /// No path reaches the file beside the root.
        #[test]
        fn no_path_escapes_the_root(
            segments in prop::collection::vec(
                prop_oneof![
                    Just(".."), Just("."), Just(""), Just("a"), Just("b"), Just("to_b"),
                    Just("up"), Just("outside"), Just("absolute"), Just("secret"), Just("inside"),
                    Just("root"), Just("chain"), Just("file"),
                ],
                0..9,
            ),
        ) {
            thread_local!(static TREE: (TempDir, Vec<Root>) = tree());
            let path = segments.join("/");
            TREE.with(|(_dir, roots)| {
                let path = path.trim_start_matches('/');
                let found: Vec<_> = roots.iter().map(|root| look(root, path)).collect();
                assert_eq!(found[0], found[1], "the kernel resolves {path:?} differently");
                if let Ok(Kind::File) = found[0] {
                    for root in roots {
                        let stamp = root.open_file(path, Blocking::Allowed).unwrap().stamp();
                        assert_eq!(stamp.len, 4, "{path:?} leads to the secret");
                    }
                }
            });
        }
    }
}
