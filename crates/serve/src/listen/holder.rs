//! The process that holds a port, a socket file or a TAP interface, as far as it can be determined.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// A process that holds a resource.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pid: u32,
    name: String,
}

impl Holder {
    pub(super) fn is_this_process(&self) -> bool {
        self.pid == std::process::id()
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {})", self.name, self.pid)
    }
}

/// The process whose listening TCP socket conflicts with `wanted`, and that socket's address.
/// `None` if there is none, or it belongs to another user.
pub(super) fn of_tcp(wanted: SocketAddr) -> Option<(SocketAddr, Holder)> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let rows: Vec<String> =
        tables.iter().filter_map(|table| fs::read_to_string(table).ok()).collect();
    let mut listening = rows.iter().flat_map(|table| table.lines()).filter_map(parse_listening);
    let (held, inode) = listening.find(|(held, _)| conflicts(*held, wanted))?;
    Some((held, of_inode(inode)?))
}

/// The process that listens at the socket file `path`.
pub(super) fn of_unix(path: &Path) -> Option<Holder> {
    let table = fs::read_to_string("/proc/net/unix").ok()?;
    let path = path.to_str()?;
    // Num RefCount Protocol Flags Type St Inode Path. proc(5)
    let rows = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
    // Connections not accepted yet have the same path; their inode is 0.
    let mut inodes =
        rows.filter(|row| row.get(7) == Some(&path) && row[6] != "0").map(|row| row[6]);
    of_inode(inodes.next()?)
}

/// The process that holds the TAP interface `name` of this network namespace.
pub(super) fn of_tap(name: &str) -> Option<Holder> {
    let network = |of: &str| fs::read_link(format!("/proc/{of}/ns/net")).ok();
    let ours = network("thread-self")?;
    // Another namespace may have an interface of the same name.
    let is_here = |pid: u32| network(&pid.to_string()).is_some_and(|theirs| theirs == ours);
    oldest(|pid| {
        let mut open = descriptors(pid).filter(|(_, link)| link == Path::new("/dev/net/tun"));
        open.any(|(descriptor, _)| {
            let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}"));
            info.is_ok_and(|info| parse_interface(&info) == Some(name)) && is_here(pid)
        })
    })
}

/// The interface that a descriptor of `/dev/net/tun` is attached to. `tun_chr_show_fdinfo` in
/// `drivers/net/tun.c`
fn parse_interface(info: &str) -> Option<&str> {
    let interface = info.lines().find_map(|line| line.strip_prefix("iff:"))?;
    Some(interface.trim()).filter(|name| !name.is_empty())
}

/// Address and inode of a row in `/proc/net/tcp{,6}`, if it is a listener's.
fn parse_listening(row: &str) -> Option<(SocketAddr, &str)> {
    // sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode
    let mut fields = row.split_whitespace();
    let local = fields.nth(1)?;
    let state = fields.nth(1)?;
    const TCP_LISTEN: &str = "0A";
    if state != TCP_LISTEN {
        return None;
    }
    let (ip, port) = local.split_once(':')?;
    let address = SocketAddr::new(parse_hex_ip(ip)?, u16::from_str_radix(port, 16).ok()?);
    Some((address, fields.nth(5)?))
}

/// The kernel prints an address as 32-bit words, each as a number of this machine's byte order.
fn parse_hex_ip(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(hex.get(at * 8..at * 8 + 8)?, 16).ok();
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?.to_ne_bytes()).into()),
        32 => {
            let mut bytes = [0; 16];
            for (at, four) in bytes.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&word(at)?.to_ne_bytes());
            }
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

/// True if two listeners exclude each other. The table does not say whether `[::]` includes IPv4;
/// usually it does.
fn conflicts(held: SocketAddr, wanted: SocketAddr) -> bool {
    let (held_ip, wanted_ip) = (held.ip().to_canonical(), wanted.ip().to_canonical());
    let wildcard = |ip: IpAddr, other: IpAddr| {
        ip.is_unspecified() && (ip.is_ipv6() || other.is_ipv4() || other.is_unspecified())
    };
    held.port() == wanted.port()
        && (held_ip == wanted_ip || wildcard(held_ip, wanted_ip) || wildcard(wanted_ip, held_ip))
}

/// The oldest process that has the socket open: the master of a server with workers.
fn of_inode(inode: &str) -> Option<Holder> {
    let wanted = format!("socket:[{inode}]");
    oldest(|pid| descriptors(pid).any(|(_, link)| link == Path::new(&wanted)))
}

fn oldest(holds: impl Fn(u32) -> bool) -> Option<Holder> {
    let pids = fs::read_dir("/proc").ok()?.flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let pid = pids.filter(|pid| holds(*pid)).min()?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(Holder { pid, name: name.trim_end().to_owned() })
}

/// Open descriptors of a process, and their files.
fn descriptors(pid: u32) -> impl Iterator<Item = (String, PathBuf)> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter();
    entries.flatten().flatten().filter_map(|entry| {
        let link = fs::read_link(entry.path()).ok()?;
        Some((entry.file_name().into_string().ok()?, link))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    #[test]
    fn interface_of_a_descriptor() {
        let info = |iff: &str| format!("pos:\t0\nflags:\t0104002\nmnt_id:\t27\nino:\t123\n{iff}");
        assert_eq!(parse_interface(&info("iff:\tweft0\n")), Some("weft0"));
        assert_eq!(parse_interface(&info("iff:\t\n")), None);
        assert_eq!(parse_interface(&info("")), None);
    }

    #[test]
    fn listener_by_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap();
        let (held, holder) = of_tcp(own).unwrap();
        assert_eq!(held, own);
        assert!(holder.is_this_process(), "{holder}");
        assert!(holder.to_string().contains(&std::process::id().to_string()));
    }

    #[test]
    fn listener_on_ipv6() {
        let Ok(listener) = TcpListener::bind("[::1]:0") else {
            return; // a kernel without IPv6
        };
        assert!(of_tcp(listener.local_addr().unwrap()).unwrap().1.is_this_process());
    }

    #[test]
    fn socket_file_by_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _listener = UnixListener::bind(&path).unwrap();
        assert!(of_unix(&path).unwrap().is_this_process());
        assert_eq!(of_unix(&folder.path().join("other")), None);
    }

    #[test]
    fn overlapping_addresses_conflict() {
        let check = |held: &str, wanted: &str, expected: bool| {
            let got = conflicts(held.parse().unwrap(), wanted.parse().unwrap());
            assert_eq!(got, expected, "{held} against {wanted}");
        };
        check("127.0.0.1:80", "127.0.0.1:80", true);
        check("127.0.0.1:80", "127.0.0.1:81", false);
        check("127.0.0.1:80", "127.0.0.2:80", false);
        check("0.0.0.0:80", "127.0.0.1:80", true);
        check("127.0.0.1:80", "0.0.0.0:80", true);
        check("127.0.0.1:80", "[::]:80", true);
        check("[::]:80", "127.0.0.1:80", true);
        check("0.0.0.0:80", "[::1]:80", false);
        check("[::1]:80", "0.0.0.0:80", false);
    }

    #[test]
    fn malformed_rows_are_skipped() {
        for row in
            ["", "  sl  local_address rem_address   st", "0: 0100007F:1F90 x 0A", "0: a:b c 0A"]
        {
            assert_eq!(parse_listening(row), None, "{row}");
        }
    }
}
