//! Bytes that a peer has not acknowledged.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::connection::{Unacked, UnackedCheck};

/// Counts the bytes in a socket's send queue, while the peer may take them. Until all of them have
/// left the socket, it is not writable.
pub(crate) fn unacked(socket: BorrowedFd<'_>, check: &UnackedCheck) -> io::Result<Unacked> {
    // A Unix socket lacks this option. It is writable when its peer has read most of the bytes.
    let report_when_sent = |is_on| {
        let _ = set_tcp_notsent_lowat(socket, is_on);
    };
    let mut len: libc::c_int = 0;
    // SAFETY: SIOCOUTQ writes an int. tcp(7), unix(7)
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut len) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let len = len as u64;
    report_when_sent(len > check.enough);
    let reported = poll_for(socket, PollFlags::OUT, Duration::ZERO)?;
    // Reset, or shut down both ways: always reported. poll(2)
    if reported.intersects(PollFlags::ERR | PollFlags::HUP) {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    let all_is_sent = len <= check.enough || reported.contains(PollFlags::OUT);
    if all_is_sent && len > check.enough {
        report_when_sent(false);
    }
    Ok(Unacked { len, all_is_sent })
}

/// Sets whether the socket counts as writable only when all sent bytes have left it: less than one
/// byte may then wait. Otherwise the system's setting applies. tcp(7), `TCP_NOTSENT_LOWAT`
fn set_tcp_notsent_lowat(socket: BorrowedFd<'_>, is_on: bool) -> io::Result<()> {
    let bytes = libc::c_int::from(is_on);
    // SAFETY: the option is an int, and an int is passed.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            (&raw const bytes).cast(),
            size_of_val(&bytes) as libc::socklen_t,
        )
    };
    match set {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub(super) fn poll_for(
    socket: BorrowedFd<'_>,
    flags: PollFlags,
    wait: Duration,
) -> io::Result<PollFlags> {
    let mut fds = [PollFd::new(&socket, flags)];
    let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
    poll(&mut fds, Some(&wait))?;
    Ok(fds[0].revents())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::stream::{FiberStream, Stream, ThreadStream};

    /// Sockets full of bytes that their peers have not read.
    pub(crate) fn full() -> [(OwnedFd, OwnedFd); 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (unix, unix_peer) = UnixStream::pair().unwrap();
        let peer = listener.accept().unwrap().0;
        let pairs = [(tcp.into(), peer.into()), (unix.into(), unix_peer.into())];
        pairs.map(|(near, peer): (OwnedFd, OwnedFd)| {
            rustix::io::ioctl_fionbio(&near, true).unwrap();
            let mut near = std::fs::File::from(near);
            while near.write(&[0; 65536]).is_ok() {}
            rustix::io::ioctl_fionbio(&near, false).unwrap();
            (near.into(), peer)
        })
    }

    /// Reads everything that arrives.
    pub(crate) fn drain(peer: OwnedFd) {
        let mut peer = std::fs::File::from(peer);
        thread::spawn(move || while let Ok(1..) = peer.read(&mut [0; 65536]) {});
    }

    pub(crate) const AT_ONCE: UnackedCheck =
        UnackedCheck { after: Duration::ZERO, all_was_sent: true, enough: 0 };
    pub(crate) const WHEN_SENT: UnackedCheck =
        UnackedCheck { after: Duration::from_secs(3600), all_was_sent: false, ..AT_ONCE };

    /// Seen: a client that paused while it took a large file got its last 16 KiB up to 250 ms late.
    /// Cause: checks that became rarer the longer it paused. Cure: the socket reports when it has
    /// sent all.
    #[test]
    fn unacked_check_is_due_when_all_is_sent() {
        fn check<T: Stream>(stream: T, peer: OwnedFd) {
            let found = stream.unacked(&AT_ONCE).unwrap();
            assert!(found.len > 0 && !found.all_is_sent, "{found:?}");
            drain(peer);
            let (tell, told) = mpsc::channel();
            thread::spawn(move || tell.send(stream.unacked(&WHEN_SENT)));
            let found = told.recv_timeout(Duration::from_secs(30)).unwrap();
            assert!(found.unwrap().all_is_sent);
        }
        for (near, peer) in full() {
            check(ThreadStream::new(near), peer);
        }
        let [(tcp, tcp_peer), (unix, unix_peer)] = full();
        check(FiberStream::Tcp(tcp.into()), tcp_peer);
        check(FiberStream::Unix(unix.into()), unix_peer);
    }

    /// Otherwise every later reply would have to leave the socket before the next bytes may enter.
    #[test]
    fn a_socket_whose_end_is_near_is_as_it_was() {
        let lowat = |socket: &OwnedFd| {
            let mut bytes = -1;
            let mut len = size_of::<libc::c_int>() as libc::socklen_t;
            let level = libc::IPPROTO_TCP;
            let name = libc::TCP_NOTSENT_LOWAT;
            let (bytes_at, fd) = ((&raw mut bytes).cast(), socket.as_raw_fd());
            // SAFETY: the option is an int, and there is space for one.
            let got = unsafe { libc::getsockopt(fd, level, name, bytes_at, &raw mut len) };
            assert_eq!(got, 0);
            bytes
        };
        let [(tcp, _peer), _] = full();
        unacked(tcp.as_fd(), &AT_ONCE).unwrap();
        assert_eq!(lowat(&tcp), 1);
        let enough = u64::MAX;
        let found = unacked(tcp.as_fd(), &UnackedCheck { enough, ..AT_ONCE });
        assert!(found.unwrap().all_is_sent);
        assert_eq!(lowat(&tcp), 0);
    }
}
