//! Unix listeners, and their files.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::error::HELD_HERE;
use super::tcp::{ORPHAN_LOOK, ORPHAN_PATIENCE};
use super::{Address, Backlog, BindError, Bound, holder};

pub(super) fn bind(path: &Path, mode: u32, backlog: Backlog) -> Result<Bound, BindError> {
    let refuse = |errno| BindError::unix(path, errno);
    let name = SocketAddrUnix::new(path).map_err(refuse)?;
    let _turn = lock_directory(path);
    clear_the_way(path, &name, ORPHAN_PATIENCE)?;
    let socket = stream_socket(SocketFlags::CLOEXEC).map_err(refuse)?;
    rustix::net::bind(&socket, &name).map_err(refuse)?;
    // Until listen(2) every connect(2) fails, so no client connects before the mode is set.
    let file = SocketFile::adopt(path, mode).map_err(|error| {
        BindError::new(format_args!("unix:{}", path.display()), error.to_string())
    })?;
    rustix::net::listen(&socket, backlog.0).map_err(refuse)?;
    let address = Address::Unix { path: path.to_owned(), mode };
    Ok(Bound { file: Some(file), ..Bound::new(address, socket, backlog) })
}

fn stream_socket(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Locks the directory. Otherwise, of two servers that start at once, one could take the other's
/// socket, bound but not yet listening, for a stale one. Returns `None` if it cannot be locked.
fn lock_directory(path: &Path) -> Option<OwnedFd> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder.unwrap_or(Path::new(".")), flags, Mode::empty()).ok()?;
    // A start takes milliseconds. A longer lock belongs to something else.
    for _ in 0..50 {
        if rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Some(folder);
        }
        thread::sleep(Duration::from_millis(10));
    }
    None
}

/// Removes a socket without a listener. Waits for one held by a dead process: at most for
/// `patience`, and only while no living process is found to hold it. Anything else is an error.
fn clear_the_way(path: &Path, name: &SocketAddrUnix, patience: Duration) -> Result<(), BindError> {
    let refuse =
        |advice: String| Err(BindError::new(format_args!("unix:{}", path.display()), advice));
    match fs::symlink_metadata(path) {
        // The same cause makes bind(2) fail, with a better message.
        Err(_) => return Ok(()),
        Ok(found) if !found.file_type().is_socket() => {
            return refuse("a file that is not a socket has this name; choose another path".into());
        }
        Ok(_) => {}
    }
    let mut probed = probe(name);
    let deadline = Instant::now() + patience;
    while matches!(probed, Ok(()) | Err(Errno::AGAIN))
        && Instant::now() < deadline
        && holder::of_unix(path).is_none()
    {
        thread::sleep(ORPHAN_LOOK);
        probed = probe(name);
    }
    match probed {
        Err(Errno::CONNREFUSED) => remove_stale(path),
        Err(Errno::NOENT) => Ok(()),
        // AGAIN: its listen queue is full. PROTOTYPE: a live datagram socket.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => refuse(match holder::of_unix(path) {
            Some(holder) if holder.is_this_process() => HELD_HERE.to_owned(),
            Some(holder) => format!("{holder} listens there; stop it or choose another path"),
            None => "another process listens there; stop it or choose another path".to_owned(),
        }),
        Err(errno) => refuse(format!(
            "a socket exists, and whether a server uses it cannot be checked ({}); remove it if none does",
            io::Error::from(errno)
        )),
    }
}

fn probe(name: &SocketAddrUnix) -> rustix::io::Result<()> {
    // A blocking socket would wait for space in a full listen queue.
    let socket = stream_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    rustix::net::connect(&socket, name)
}

fn remove_stale(path: &Path) -> Result<(), BindError> {
    match rustix::fs::unlink(path) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(BindError::new(
            format_args!("unix:{}", path.display()),
            "a stale socket is in the way and this user may not remove it",
        )
        .because(errno)),
    }
}

/// Opens the current file at the path, without following links.
fn pin(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

fn replaced() -> io::Error {
    io::Error::other("the socket was replaced while it was set up")
}

/// File of a socket that this process bound; dropping it removes the file unless it was replaced.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode number.
    id: (u64, u64),
    /// Set once; a later file with the same name and inode is a different one.
    is_removed: AtomicBool,
}

impl SocketFile {
    /// Takes the file that bind(2) has just created, and sets its mode (bind(2) applied the umask).
    fn adopt(path: &Path, mode: u32) -> io::Result<SocketFile> {
        let pinned = pin(path)?;
        let stat = rustix::fs::fstat(&pinned)?;
        // In another user's directory the name may be a link to /etc/shadow by now. Therefore the
        // mode is set on the checked inode, not by name.
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
            return Err(replaced());
        }
        let file = SocketFile {
            path: path.to_owned(),
            id: (stat.st_dev, stat.st_ino),
            is_removed: AtomicBool::new(false),
        };
        let inode = format!("/proc/self/fd/{}", pinned.as_raw_fd());
        fs::set_permissions(inode, fs::Permissions::from_mode(mode))?;
        Ok(file)
    }
}

impl SocketFile {
    /// Changes owner and group of the file.
    pub(super) fn give_to(&self, user: u32, group: u32) -> io::Result<()> {
        let pinned = pin(&self.path)?;
        let stat = rustix::fs::fstat(&pinned)?;
        if (stat.st_dev, stat.st_ino) != self.id {
            return Err(replaced());
        }
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        let flags = AtFlags::EMPTY_PATH;
        Ok(rustix::fs::chownat(&pinned, "", Some(user), Some(group), flags)?)
    }

    /// Removes the file, once, unless it was replaced.
    pub(super) fn remove(&self) {
        if self.is_removed.swap(true, Ordering::Relaxed) {
            return;
        }
        let ours =
            rustix::fs::lstat(&self.path).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.id);
        if ours {
            // May fail after a change of user; the next start removes the stale file.
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::bind as listen_at;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> Place {
            Place(tempfile::tempdir().unwrap())
        }

        fn path(&self) -> PathBuf {
            self.0.path().join("weft.sock")
        }

        fn bind(&self, mode: u32) -> Result<Bound, BindError> {
            let address = Address::Unix { path: self.path(), mode };
            listen_at(&address, None).map(|mut bound| bound.remove(0))
        }

        fn refusal(&self) -> String {
            self.bind(0o600).unwrap_err().to_string()
        }
    }

    #[test]
    fn mode_ignores_the_umask() {
        for mode in [0o600, 0o660, 0o666, 0o777] {
            let place = Place::new();
            let bound = place.bind(mode).unwrap();
            let got = fs::metadata(place.path()).unwrap().permissions().mode() & 0o7777;
            assert_eq!(got, mode, "{got:o} for {mode:o}");
            UnixStream::connect(place.path()).unwrap();
            assert_eq!(bound.urls(), [bound.address.to_string()]);
        }
    }

    /// A change to another owner needs root; tests/system has that.
    #[test]
    fn replaced_file_is_not_given_away() {
        let place = Place::new();
        let bound = place.bind(0o600).unwrap();
        let user = rustix::process::geteuid().as_raw();
        let group = rustix::process::getegid().as_raw();
        bound.give_to(user, group).unwrap();
        fs::rename(place.path(), place.path().with_extension("moved")).unwrap();
        fs::write(place.path(), "another's").unwrap();
        let why = bound.give_to(user, group).unwrap_err();
        assert!(why.to_string().contains("was replaced"), "{why}");
    }

    #[test]
    fn stale_socket_is_replaced() {
        let place = Place::new();
        drop(UnixListener::bind(place.path()).unwrap());
        assert!(place.path().exists());
        let _bound = place.bind(0o600).unwrap();
        UnixStream::connect(place.path()).unwrap();
    }

    #[test]
    fn live_socket_is_kept() {
        let place = Place::new();
        let listener = UnixListener::bind(place.path()).unwrap();
        let refused = place.refusal();
        assert!(refused.contains("this process already"), "{refused}");
        let _client = UnixStream::connect(place.path()).unwrap();
        listener.accept().unwrap();
    }

    #[test]
    fn live_socket_with_a_full_queue_is_kept() {
        let place = Place::new();
        let address = Address::Unix { path: place.path(), mode: 0o600 };
        let _bound = listen_at(&address, Some(0)).unwrap();
        let name = SocketAddrUnix::new(place.path()).unwrap();
        let waiting = stream_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).unwrap();
        rustix::net::connect(&waiting, &name).unwrap();
        assert_eq!(probe(&name), Err(Errno::AGAIN));
        assert!(place.refusal().contains("listens there"));
    }

    /// Seen: a start right after `kill -9` failed, because another process listened there. Cause:
    /// the dead process's ring held the listener a little longer. Cure: wait for a socket without a
    /// living holder.
    #[test]
    fn socket_held_by_a_dead_process() {
        let place = Place::new();
        let orphan = UnixListener::bind(place.path()).unwrap();
        let under_way = super::super::tests::send_away(&orphan);
        drop(orphan);
        let name = SocketAddrUnix::new(place.path()).unwrap();
        assert_eq!(probe(&name), Ok(()));
        assert!(clear_the_way(&place.path(), &name, Duration::ZERO).is_err());
        let end = thread::spawn(|| {
            thread::sleep(ORPHAN_LOOK);
            drop(under_way);
        });
        clear_the_way(&place.path(), &name, Duration::from_secs(20)).unwrap();
        assert!(!place.path().exists());
        end.join().unwrap();
    }

    #[test]
    fn live_datagram_socket_is_kept() {
        let place = Place::new();
        let _socket = UnixDatagram::bind(place.path()).unwrap();
        assert!(place.refusal().contains("listens there"));
    }

    #[test]
    fn regular_file_is_kept() {
        let place = Place::new();
        fs::write(place.path(), "precious").unwrap();
        assert!(place.refusal().contains("not a socket"));
        assert_eq!(fs::read(place.path()).unwrap(), b"precious");
    }

    #[test]
    fn link_is_not_followed() {
        let place = Place::new();
        symlink("elsewhere", place.path()).unwrap();
        assert!(place.refusal().contains("not a socket"));
    }

    #[test]
    fn missing_directory_is_named() {
        let place = Place::new();
        let path = place.0.path().join("missing/weft.sock");
        let refused =
            listen_at(&Address::Unix { path, mode: 0o600 }, None).unwrap_err().to_string();
        assert!(refused.contains("missing does not exist"), "{refused}");
    }

    #[test]
    fn advice_on_a_long_path() {
        let place = Place::new();
        let path = place.0.path().join("x".repeat(120));
        let refused =
            listen_at(&Address::Unix { path, mode: 0o600 }, None).unwrap_err().to_string();
        assert!(refused.contains("at most 107"), "{refused}");
    }

    #[test]
    fn drop_removes_only_the_own_file() {
        let place = Place::new();
        drop(place.bind(0o600).unwrap());
        assert!(!place.path().exists());

        let bound = place.bind(0o600).unwrap();
        fs::remove_file(place.path()).unwrap();
        let _other = UnixListener::bind(place.path()).unwrap();
        drop(bound);
        assert!(place.path().exists(), "another server's socket was removed");
    }

    #[test]
    fn one_of_many_starts_wins() {
        let place = Place::new();
        drop(UnixListener::bind(place.path()).unwrap());
        let won: Vec<_> = thread::scope(|scope| {
            let starts: Vec<_> = (0..8).map(|_| scope.spawn(|| place.bind(0o600).ok())).collect();
            starts.into_iter().filter_map(|start| start.join().unwrap()).collect()
        });
        assert_eq!(won.len(), 1);
        UnixStream::connect(place.path()).unwrap();
    }
}
