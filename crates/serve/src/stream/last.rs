//! The last bytes of a connection, and the end of the stream in one packet with them.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::net::sockopt::set_tcp_cork;
use rustix::net::{Shutdown, shutdown};

use crate::carriage::{Carried, FilePiece};

/// Sends the last bytes of all by `send`, which leaves with the end of the stream if `is_all` says
/// of its result that it has sent them: that saves a packet, and the peer the work with it.
pub(crate) fn send_last<R>(
    socket: BorrowedFd<'_>,
    send: impl FnOnce() -> R,
    is_all: impl FnOnce(&R) -> bool,
) -> R {
    // A packet that is not full waits for more, or for the end. tcp(7). Sockets of other kinds have
    // no packets, and refuse this.
    let _ = set_tcp_cork(socket, true);
    let sent = send();
    // The peer may be gone already; that is nothing new to what comes next.
    let _ = match is_all(&sent) {
        true => shutdown(socket, Shutdown::Write),
        false => set_tcp_cork(socket, false),
    };
    sent
}

/// As [`send_last`], of a piece of a file if it is the last one.
pub(super) fn send_piece(
    socket: BorrowedFd<'_>,
    piece: &FilePiece<'_>,
    send: impl FnOnce() -> io::Result<u64>,
) -> io::Result<Carried> {
    let is_all = |sent: &io::Result<u64>| matches!(sent, Ok(len) if *len == piece.len);
    let sent = match piece.is_last {
        true => send_last(socket, send, is_all),
        false => send(),
    };
    sent.map(Carried::Sent)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use rustix::net::sockopt::tcp_cork;

    use super::*;

    #[test]
    fn the_last_bytes_leave_with_the_end_and_none_are_held_back_without_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        for all in [true, false] {
            let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (near, _) = listener.accept().unwrap();
            let send = || (&near).write(b"last").unwrap();
            let sent = send_last(near.as_fd(), send, |_| all);
            assert_eq!(sent, 4);
            assert_eq!(tcp_cork(&near).unwrap(), all, "it holds back while it ends");
            let mut got = Vec::new();
            match all {
                true => assert_eq!(peer.read_to_end(&mut got).unwrap(), 4),
                false => {
                    (&near).write_all(b" and more").unwrap();
                    drop(near);
                    assert_eq!(peer.read_to_end(&mut got).unwrap(), 13);
                }
            }
        }
    }
}
