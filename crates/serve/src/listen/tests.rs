use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;

use super::bound::URLS_MAX;
use super::tcp::ORPHAN_LOOK;
use super::{Address, Backlog, Bound, bind, bind_beside, tcp};

/// Seen: the shipped `weft.socket` and `serve.toml` both name port 80, and the server did not start
/// with both. Cause: the address of the inherited socket was bound again.
#[test]
fn inherited_address_is_not_bound_again() {
    let all = |text: &str| bind(&text.parse().unwrap(), None).unwrap();
    let beside = |others: &[Bound], text: &str| {
        let bound = bind_beside(others, &text.parse().unwrap(), None);
        bound.map(|bound| bound.len()).map_err(|error| error.to_string())
    };
    let port = |bound: &Bound| match bound.address {
        Address::Tcp(address) => address.port(),
        ref other => panic!("{other}"),
    };
    let wild = all(":0");
    let port_of_wild = port(&wild[0]);
    for asked in ["", ":", "*:", "0.0.0.0:", "[::]:", "127.0.0.1:", "localhost:"] {
        assert_eq!(beside(&wild, &format!("{asked}{port_of_wild}")), Ok(0), "{asked}");
    }
    let other_port = beside(&wild, "127.0.0.1:0");
    assert_eq!(other_port, Ok(1));

    let local = all("127.0.0.1:0");
    let port_of_local = port(&local[0]);
    assert_eq!(beside(&local, &format!("127.0.0.1:{port_of_local}")), Ok(0));
    assert_eq!(beside(&local, &format!("127.0.0.2:{port_of_local}")), Ok(1));

    let folder = tempfile::tempdir().unwrap();
    let path = format!("unix:{}/socket", folder.path().display());
    let unix = all(&path);
    assert_eq!(beside(&unix, &format!("{path}?mode=0600")), Ok(0));
    assert_eq!(beside(&unix, &format!("{path}2")), Ok(1));
}

fn bind_one(text: &str) -> Bound {
    let mut bound = bind(&text.parse().unwrap(), None).unwrap();
    assert_eq!(bound.len(), 1, "{text}");
    bound.remove(0)
}

fn tcp(bound: &Bound) -> SocketAddr {
    match bound.address {
        Address::Tcp(address) => address,
        ref other => panic!("{other} is not TCP"),
    }
}

fn refusal(text: &str) -> String {
    bind(&text.parse().unwrap(), None).unwrap_err().to_string()
}

#[test]
fn port_zero_becomes_the_real_port() {
    let bound = bind_one("127.0.0.1:0");
    assert_ne!(tcp(&bound).port(), 0);
    TcpStream::connect(tcp(&bound)).unwrap();
    assert_eq!(bound.urls(), [format!("http://127.0.0.1:{}/", tcp(&bound).port())]);
}

#[test]
fn every_interface_means_both_families() {
    let bound = bind_one(":0");
    let port = tcp(&bound).port();
    TcpStream::connect(("127.0.0.1", port)).unwrap();
    if tcp(&bound).is_ipv6() {
        TcpStream::connect(("::1", port)).unwrap();
    }
    assert_eq!(bound.urls()[0], format!("http://localhost:{port}/"));
    assert!(bound.urls().len() <= URLS_MAX);
}

#[test]
fn all_addresses_of_a_name_share_one_port() {
    let bound = bind(&"localhost:0".parse().unwrap(), None).unwrap();
    assert!(!bound.is_empty());
    for one in &bound {
        assert_eq!(tcp(one).port(), tcp(&bound[0]).port());
        TcpStream::connect(tcp(one)).unwrap();
    }
}

#[test]
fn accepted_connections_have_nodelay() {
    let bound = bind_one("127.0.0.1:0");
    let _client = TcpStream::connect(tcp(&bound)).unwrap();
    let accepted = rustix::net::accept(&bound).unwrap();
    assert!(sockopt::tcp_nodelay(&accepted).unwrap());
}

#[test]
fn listeners_are_close_on_exec() {
    let flags = rustix::io::fcntl_getfd(bind_one("127.0.0.1:0")).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
}

#[test]
fn advice_on_an_address_given_twice() {
    let bound = bind_one("127.0.0.1:0");
    let own = bound.address.to_string();
    let check = |asked: &str, reason: &str| {
        let refused = refusal(asked);
        assert!(refused.contains(reason), "{refused}");
    };
    check(&own, "this process already listens there; name each");
    let part = format!("this process already listens at {own}, which is a part of that");
    check(&format!("0.0.0.0:{}", tcp(&bound).port()), &part);
    // Seen: "weft (process 1234) listens there; stop it", about the process itself.
    let folder = tempfile::tempdir().unwrap();
    let path = format!("unix:{}/socket", folder.path().display());
    let _bound = bind_one(&path);
    check(&path, "this process already listens there; name each");
}

/// Sends a descriptor through a Unix socket: in transit, it belongs to no process.
pub(super) fn send_away(descriptor: impl AsFd) -> [UnixStream; 2] {
    let (one, other) = UnixStream::pair().unwrap();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = rustix::net::SendAncillaryBuffer::new(&mut space);
    let fds = [descriptor.as_fd()];
    assert!(message.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
    let bytes = [io::IoSlice::new(b"x")];
    let flags = rustix::net::SendFlags::empty();
    rustix::net::sendmsg(&one, &bytes, &mut message, flags).unwrap();
    [one, other]
}

/// Seen: a start right after `kill -9` found the port in use under io_uring, 8 of 8 times. Cause:
/// the dead process's ring held the listener a little longer. Cure: wait for a port without a
/// living holder.
#[test]
fn port_held_by_a_dead_process() {
    let orphan = bind_one("127.0.0.1:0");
    let address = tcp(&orphan);
    let under_way = send_away(&orphan);
    drop(orphan);
    assert_eq!(tcp::try_bind(address, Backlog::from(None)).unwrap_err(), Errno::ADDRINUSE);
    let end = thread::spawn(move || {
        thread::sleep(ORPHAN_LOOK);
        drop(under_way);
    });
    let patience = Duration::from_secs(20);
    tcp::bind_within(patience, address, Backlog::from(None)).unwrap();
    end.join().unwrap();
}

#[test]
fn advice_on_a_foreign_address() {
    // 192.0.2.0/24 is documentation, never an interface's. RFC 5737
    let refused = refusal("192.0.2.1:0");
    assert!(refused.contains("no interface has the address 192.0.2.1"), "{refused}");
}

/// Seen: a connection in TIME-WAIT held the port of a cache, and `ss -ltnp` shows only listeners.
#[test]
fn advice_on_the_local_port_of_a_connection() {
    let listener = bind_one("127.0.0.1:0");
    let client = TcpStream::connect(tcp(&listener)).unwrap();
    let said = refusal(&client.local_addr().unwrap().to_string());
    for part in ["of a connection", "ss -tanp"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn unknown_host_name() {
    // RFC 2606: .invalid never resolves.
    let refused = refusal("nowhere.invalid:80");
    assert!(refused.contains("the name nowhere.invalid"), "{refused}");
}

#[test]
fn clone_shares_the_queue() {
    let bound = bind_one("127.0.0.1:0");
    let clone = bound.try_clone().unwrap();
    let address = tcp(&bound);
    drop(bound);
    let _client = TcpStream::connect(address).unwrap();
    rustix::net::accept(&clone).unwrap();
}

#[test]
fn urls_leave_out_the_default_port() {
    let bound = bind(&"127.0.0.1:0".parse().unwrap(), None).unwrap().remove(0);
    let url = |text: &str| bound.url(text.parse().unwrap());
    assert_eq!(url("127.0.0.1:80"), "http://127.0.0.1/");
    assert_eq!(url("[::1]:8080"), "http://[::1]:8080/");
}
