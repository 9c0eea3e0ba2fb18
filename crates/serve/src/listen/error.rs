use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use rustix::io::Errno;

use super::Address;
use super::holder;

/// Failure to listen at an address: one sentence with the cause and the remedy.
#[derive(Debug)]
pub struct BindError {
    place: String,
    advice: String,
    cause: Option<io::Error>,
}

impl BindError {
    /// The kernel's error, if there was one.
    pub fn cause(&self) -> Option<&io::Error> {
        self.cause.as_ref()
    }

    pub(super) fn new(place: impl fmt::Display, advice: impl Into<String>) -> BindError {
        BindError { place: place.to_string(), advice: advice.into(), cause: None }
    }

    pub(super) fn because(mut self, cause: impl Into<io::Error>) -> BindError {
        self.cause = Some(cause.into());
        self
    }

    pub(super) fn tcp(asked: &Address, tried: SocketAddr, errno: Errno) -> BindError {
        let ip = tried.ip();
        let advice = match errno {
            Errno::ADDRINUSE => in_use(tried),
            Errno::ACCESS | Errno::PERM => needs_privilege(tried.port()),
            Errno::ADDRNOTAVAIL => format!(
                "no interface has the address {ip}; `ip address` lists those there are, and \
                 :{} means all of them",
                tried.port()
            ),
            Errno::AFNOSUPPORT => {
                format!("this kernel has no IPv6, so use an IPv4 address instead of {ip}")
            }
            Errno::MFILE | Errno::NFILE => "no file descriptors are left; raise the limit with \
                                            `ulimit -n` or LimitNOFILE="
                .to_owned(),
            errno => io::Error::from(errno).to_string(),
        };
        BindError::new(asked, advice).because(errno)
    }

    pub(super) fn unresolved(asked: &Address, host: &str, error: io::Error) -> BindError {
        let advice = format!(
            "the name {host} has no address ({error}); write an IP address, or check /etc/hosts \
             and the DNS"
        );
        BindError::new(asked, advice).because(error)
    }

    pub(super) fn unix(path: &Path, errno: Errno) -> BindError {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.display(),
            _ => Path::new(".").display(),
        };
        let advice = match errno {
            Errno::NOENT => format!("the directory {folder} does not exist; create it first"),
            Errno::NOTDIR => format!("{folder} is not a directory"),
            Errno::ACCESS | Errno::PERM => {
                format!("this user may not create a file in {folder}")
            }
            Errno::ROFS => format!("{folder} is on a read-only file system"),
            Errno::ADDRINUSE => "another process has just created it; try again".to_owned(),
            // sockaddr_un holds 108 bytes, the last one zero. unix(7)
            Errno::NAMETOOLONG | Errno::INVAL => format!(
                "the path has {} bytes and a socket's path at most 107; choose a shorter one",
                path.as_os_str().len()
            ),
            errno => io::Error::from(errno).to_string(),
        };
        BindError::new(format_args!("unix:{}", path.display()), advice).because(errno)
    }
}

/// Advice for a repeated address.
pub(super) const HELD_HERE: &str = "this process already listens there; name each address once";

fn in_use(tried: SocketAddr) -> String {
    let port = tried.port();
    match holder::of_tcp(tried) {
        Some((held, holder)) if holder.is_this_process() => in_use_here(held, tried),
        Some((_, holder)) => {
            format!("the port is in use by {holder}; stop it or choose another port")
        }
        // A connection may use it: the kernel gives them ports of net.ipv4.ip_local_port_range.
        None => format!(
            "the port is in use, by another user's process or as the local port of a connection; \
             `sudo ss -tanp 'sport = :{port}'` shows which: stop it or choose another port"
        ),
    }
}

fn in_use_here(held: SocketAddr, tried: SocketAddr) -> String {
    if held == tried {
        return HELD_HERE.to_owned();
    }
    let overlap = match (held.ip().is_unspecified(), held.is_ipv6(), tried.is_ipv6()) {
        (true, true, false) => "takes IPv4 as well",
        (true, true, true) | (true, false, false) => "takes every address",
        (true, false, true) | (false, ..) => "is a part of that",
    };
    format!("this process already listens at {held}, which {overlap}")
}

fn needs_privilege(port: u16) -> String {
    format!(
        "port {port} needs a privilege; choose one from {} on, or run `sudo setcap \
         cap_net_bind_service=+ep` on the program, or let systemd open the socket, or lower the \
         sysctl net.ipv4.ip_unprivileged_port_start",
        unprivileged_port_start()
    )
}

fn unprivileged_port_start() -> u16 {
    let sysctl = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    sysctl.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(1024)
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot listen at {}: {}", self.place, self.advice)
    }
}

impl From<BindError> for io::Error {
    /// Keeps the kind of the system's error, and the sentence.
    fn from(error: BindError) -> io::Error {
        let kind = error.cause().map_or(io::ErrorKind::Other, io::Error::kind);
        io::Error::new(kind, error)
    }
}

impl Error for BindError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_ref().map(|cause| cause as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(errno: Errno) -> String {
        let tried = "[::]:80".parse().unwrap();
        BindError::tcp(&Address::Tcp(tried), tried, errno).to_string()
    }

    #[test]
    fn advice_on_a_privileged_port() {
        let text = advice(Errno::ACCESS);
        for way in ["cap_net_bind_service", "systemd", "ip_unprivileged_port_start"] {
            assert!(text.contains(way), "{text}");
        }
        assert!(text.starts_with("cannot listen at [::]:80: "), "{text}");
    }

    /// Seen: 127.0.0.1 given twice was blamed on `[::]`, at which no socket listened.
    #[test]
    fn overlap_with_an_own_listener() {
        let check = |held: &str, tried: &str, end: &str| {
            let said = in_use_here(held.parse().unwrap(), tried.parse().unwrap());
            assert!(said.ends_with(end), "{said}");
        };
        check("[::]:1", "127.0.0.1:1", "[::]:1, which takes IPv4 as well");
        check("[::]:1", "[::1]:1", "[::]:1, which takes every address");
        check("0.0.0.0:1", "127.0.0.1:1", "which takes every address");
        check("0.0.0.0:1", "[::]:1", "0.0.0.0:1, which is a part of that");
        check("[::]:1", "0.0.0.0:1", "which takes IPv4 as well");
        check("[::1]:1", "[::]:1", "[::1]:1, which is a part of that");
        check("[::1]:1", "[::1]:1", "there; name each address once");
    }

    #[test]
    fn advice_without_ipv6() {
        assert!(advice(Errno::AFNOSUPPORT).contains("no IPv6"));
    }

    #[test]
    fn cause_has_the_kind() {
        let tried = "[::]:80".parse().unwrap();
        let error = BindError::tcp(&Address::Tcp(tried), tried, Errno::ACCESS);
        assert_eq!(error.cause().unwrap().kind(), io::ErrorKind::PermissionDenied);
    }
}
