//! Unread bytes in a socket.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Number of bytes that a socket has received and that were not read.
pub(crate) fn unread(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut len: libc::c_int = 0;
    // SAFETY: this request writes an int. tcp(7), unix(7)
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::FIONREAD, &raw mut len) };
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
    fn a_socket_says_what_is_unread() {
        for (near, peer) in full() {
            assert_eq!(unread(near.as_fd()).unwrap(), 0);
            let (mut near, mut peer) = (std::fs::File::from(near), std::fs::File::from(peer));
            peer.write_all(b"behind").unwrap();
            assert_eq!(unread(near.as_fd()).unwrap(), 6);
            near.read_exact(&mut [0; 6]).unwrap();
            assert_eq!(unread(near.as_fd()).unwrap(), 0);
        }
    }
}
