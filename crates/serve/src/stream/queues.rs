//! The bytes in a socket's queues.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::net::Shutdown;

use crate::connection::Queues;

/// Missing in `libc`: the unsent bytes in the send queue. `linux/sockios.h`, tcp(7)
const SIOCOUTQNSD: libc::Ioctl = 0x894B;

/// Counts the bytes in a socket's queues; unsent ones only on request, because each count is a
/// system call: some 0.4 us on a virtual machine, where a connection with one small request costs
/// 20.
///
/// The last packet waits for the end of the stream, and would count as unsent. This side is
/// therefore ended before that count. Without the count, `close(2)` sends both in one call.
pub(crate) fn queues(socket: BorrowedFd<'_>, asks_unsent: bool) -> io::Result<Queues> {
    let unread = queue(socket, libc::FIONREAD)?;
    let unsent = if asks_unsent {
        // The peer may be gone already; the close that follows is the same then.
        let _ = rustix::net::shutdown(socket, Shutdown::Write);
        // A Unix socket delivers sent bytes at once.
        queue(socket, SIOCOUTQNSD).unwrap_or(0)
    } else {
        0
    };
    Ok(Queues { unread, unsent })
}

/// True if an open socket has unsent bytes. A Unix socket delivers sent bytes at once.
pub(super) fn has_unsent(socket: BorrowedFd<'_>) -> bool {
    matches!(queue(socket, SIOCOUTQNSD), Ok(1..))
}

fn queue(socket: BorrowedFd<'_>, request: libc::Ioctl) -> io::Result<u64> {
    let mut len: libc::c_int = 0;
    // SAFETY: these requests write an int. tcp(7), unix(7)
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut len) };
    match result {
        0 => Ok(u64::try_from(len).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    use super::*;
    use crate::stream::unacked::tests::full;

    #[test]
    fn a_socket_says_what_is_unread_and_unsent() {
        let [(near, peer), (unix, unix_peer)] = full();
        let unsent = queues(near.as_fd(), true).unwrap();
        assert!(unsent.unread == 0 && unsent.unsent > 0, "{unsent:?}");
        let unasked = Queues::default();
        assert_eq!(queues(near.as_fd(), false).unwrap(), unasked);
        let (mut near, mut peer) = (std::fs::File::from(near), std::fs::File::from(peer));
        peer.write_all(b"behind").unwrap();
        let both = queues(near.as_fd(), true).unwrap();
        assert!(both.unread == 6 && both.unsent > 0, "{both:?}");
        near.read_exact(&mut [0; 6]).unwrap();
        assert_eq!(queues(near.as_fd(), false).unwrap(), unasked);

        assert_eq!(queues(unix.as_fd(), true).unwrap(), unasked);
        std::fs::File::from(unix_peer).write_all(b"behind").unwrap();
        assert_eq!(queues(unix.as_fd(), true).unwrap().unread, 6);
    }
}
