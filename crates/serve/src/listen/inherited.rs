//! Sockets opened by systemd, or by a program with the same protocol, and passed to this process.
//! sd_listen_fds(3), systemd.socket(5)

use std::net::SocketAddr;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::OFlags;
use rustix::io::FdFlags;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, sockopt};

use super::{Address, Backlog, BindError, Bound};

/// A socket passed to this process.
#[derive(Debug)]
pub struct Inherited {
    /// Name in the socket unit (`FileDescriptorName=`, or else the unit's name), or `unknown`.
    pub name: String,
    /// The socket.
    pub bound: Bound,
}

/// First descriptor passed. sd_listen_fds(3)
const FIRST_FD: RawFd = 3;

/// Most sockets; more indicate a mistake in the environment.
const INHERITED_MAX: u32 = 1024;

/// Takes the sockets that `LISTEN_FDS` announces, if `LISTEN_PID` is this process; none otherwise.
/// A second call returns none. Call it before this process opens descriptors or starts threads.
///
/// # Errors
/// If a descriptor is not a listening stream socket, or the variables make no sense.
pub fn inherited() -> Result<Vec<Inherited>, BindError> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let variable = |name: &str| std::env::var(name).ok();
    let announced = announced(variable, std::process::id())?;
    if announced.is_empty() || TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    announced.into_iter().map(|(fd, name)| adopt(take(fd, &name)?, name)).collect()
}

/// Descriptors and names announced in the environment.
fn announced(
    variable: impl Fn(&str) -> Option<String>,
    process: u32,
) -> Result<Vec<(RawFd, String)>, BindError> {
    let Some(count) = variable("LISTEN_FDS") else {
        return Ok(Vec::new());
    };
    // Child processes of the intended process inherit the variables.
    if variable("LISTEN_PID").and_then(|pid| pid.parse().ok()) != Some(process) {
        return Ok(Vec::new());
    }
    let count: u32 =
        count.parse().ok().filter(|count| *count <= INHERITED_MAX).ok_or_else(|| {
            BindError::new(
                "an inherited socket",
                format!("LISTEN_FDS={count} should be a number from 0 to {INHERITED_MAX}"),
            )
        })?;
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    let names = names.split(':').filter(|name| !name.is_empty()).map(str::to_owned);
    let names = names.chain(std::iter::repeat("unknown".to_owned()));
    Ok((FIRST_FD..).zip(names).take(count as usize).collect())
}

fn take(fd: RawFd, name: &str) -> Result<OwnedFd, BindError> {
    // SAFETY: borrowed for one fcntl(2), which only asks whether the descriptor is open.
    let probe = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    rustix::io::fcntl_getfd(probe).map_err(|errno| {
        BindError::new(place(fd, name), "no such descriptor is open").because(errno)
    })?;
    // SAFETY: it is open, and `LISTEN_PID` says that the parent process passed it to this one;
    // `TAKEN` ensures that it is taken once.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn place(fd: RawFd, name: &str) -> String {
    format!("the inherited descriptor {fd} ({name})")
}

/// Checks and prepares an inherited socket, and reads its address.
fn adopt(socket: OwnedFd, name: String) -> Result<Inherited, BindError> {
    let number = std::os::fd::AsRawFd::as_raw_fd(&socket);
    let refuse = |advice: &str| BindError::new(place(number, &name), advice);
    let kind = sockopt::socket_type(&socket)
        .map_err(|errno| refuse("it is not a socket").because(errno))?;
    if kind != SocketType::STREAM {
        return Err(refuse("it is not a stream socket; use ListenStream= in the socket unit"));
    }
    if !sockopt::socket_acceptconn(&socket).unwrap_or(false) {
        return Err(refuse("it does not listen; use Accept=no in the socket unit"));
    }
    let address = prepare(&socket)
        .map_err(|errno| refuse("it cannot be set up as a TCP or Unix listener").because(errno))?;
    let bound = Bound::new(address, socket, Backlog::from(None));
    Ok(Inherited { name, bound: Bound { is_inherited: true, ..bound } })
}

fn prepare(socket: &OwnedFd) -> rustix::io::Result<Address> {
    rustix::io::fcntl_setfd(socket, FdFlags::CLOEXEC)?;
    let flags = rustix::fs::fcntl_getfl(socket)?;
    rustix::fs::fcntl_setfl(socket, flags - OFlags::NONBLOCK)?;
    let name = rustix::net::getsockname(socket)?;
    match sockopt::socket_domain(socket)? {
        AddressFamily::UNIX => unix_address(SocketAddrUnix::try_from(name)?),
        _ => {
            sockopt::set_tcp_nodelay(socket.as_fd(), true)?;
            Ok(Address::Tcp(SocketAddr::try_from(name)?))
        }
    }
}

fn unix_address(name: SocketAddrUnix) -> rustix::io::Result<Address> {
    use std::os::unix::ffi::OsStrExt;
    let path = match (name.path_bytes(), name.abstract_name()) {
        (Some(path), _) => PathBuf::from(std::ffi::OsStr::from_bytes(path)),
        (None, Some(name)) => PathBuf::from(format!("@{}", String::from_utf8_lossy(name))),
        (None, None) => PathBuf::from("@"),
    };
    let mode = rustix::fs::stat(&path).map_or(0o666, |stat| stat.st_mode & 0o777);
    Ok(Address::Unix { path, mode })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::UnixListener;

    fn announce(
        variables: &[(&str, &str)],
        process: u32,
    ) -> Result<Vec<(RawFd, String)>, BindError> {
        let find = |name: &str| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        announced(find, process)
    }

    #[test]
    fn descriptors_and_names_from_the_environment() {
        let variables = [("LISTEN_FDS", "3"), ("LISTEN_PID", "7"), ("LISTEN_FDNAMES", "web:admin")];
        let expected = [(3, "web"), (4, "admin"), (5, "unknown")];
        let expected: Vec<_> = expected.map(|(fd, name)| (fd, name.to_owned())).into();
        assert_eq!(announce(&variables, 7).unwrap(), expected);
    }

    #[test]
    fn sockets_of_another_process_are_not_taken() {
        assert!(announce(&[("LISTEN_FDS", "1"), ("LISTEN_PID", "8")], 7).unwrap().is_empty());
        assert!(announce(&[("LISTEN_FDS", "1")], 7).unwrap().is_empty());
        assert!(announce(&[], 7).unwrap().is_empty());
    }

    #[test]
    fn wrong_count_is_refused() {
        for count in ["x", "-1", "99999999"] {
            let error = announce(&[("LISTEN_FDS", count), ("LISTEN_PID", "7")], 7).unwrap_err();
            assert!(error.to_string().contains(&format!("LISTEN_FDS={count}")), "{error}");
        }
    }

    #[test]
    fn inherited_socket_is_prepared() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        rustix::io::fcntl_setfd(&listener, FdFlags::empty()).unwrap();
        let address = listener.local_addr().unwrap();

        let inherited = adopt(listener.into(), "web".into()).unwrap();
        assert_eq!(inherited.bound.address, Address::Tcp(address));
        let flags = rustix::io::fcntl_getfd(&inherited.bound).unwrap();
        assert!(flags.contains(FdFlags::CLOEXEC));
        let _client = TcpStream::connect(address).unwrap();
        let accepted = rustix::net::accept(&inherited.bound).unwrap();
        assert!(sockopt::tcp_nodelay(&accepted).unwrap());
    }

    #[test]
    fn file_of_an_inherited_socket_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let inherited = adopt(UnixListener::bind(&path).unwrap().into(), "web".into()).unwrap();
        assert!(matches!(&inherited.bound.address, Address::Unix { path: p, .. } if *p == path));
        drop(inherited);
        assert!(path.exists());
    }

    const CHILD: &str = "WEFT_TEST_INHERITED_CHILD";

    /// The child process of [`sockets_are_taken_once`]; not a test by itself.
    #[test]
    fn the_child() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        let taken = inherited().unwrap();
        let told: Vec<_> =
            taken.iter().map(|i| format!("{} {}", i.name, i.bound.address)).collect();
        println!("taken: {}; then {}", told.join(","), inherited().unwrap().len());
    }

    #[test]
    fn sockets_are_taken_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // The shell acts as systemd: it sets descriptor 3 and LISTEN_PID, which exec keeps.
        let script = "LISTEN_PID=$$ exec \"$0\" --exact listen::inherited::tests::the_child \
                      --nocapture 3<&0";
        let output = std::process::Command::new("sh")
            .args(["-c", script])
            .arg(std::env::current_exe().unwrap())
            .envs([(CHILD, "1"), ("LISTEN_FDS", "1"), ("LISTEN_FDNAMES", "web")])
            .stdin(OwnedFd::from(listener))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains(&format!("taken: web {address}; then 0")), "{output:?}");
    }

    #[test]
    fn other_descriptors_are_refused() {
        let check = |socket: OwnedFd, advice: &str| {
            let error = adopt(socket, "web".into()).unwrap_err().to_string();
            assert!(error.contains(advice) && error.contains("(web)"), "{error}");
        };
        check(tempfile::tempfile().unwrap().into(), "not a socket");
        check(UdpSocket::bind("127.0.0.1:0").unwrap().into(), "ListenStream=");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        check(TcpStream::connect(listener.local_addr().unwrap()).unwrap().into(), "Accept=no");
    }
}
