//! One datagram socket: what it does beyond [`Socket`], and the methods that UDP and Unix datagrams
//! share.
//!
//! **A send never waits in the ring.** The kernel copies a Unix datagram before it checks if
//! the receiver has room, and if not, it tries again with what is left of the copy: an empty
//! datagram goes out, and the send reports 0 bytes (seen on Linux 6.18). So a send must not block,
//! and the wait is for readiness. A socket without a peer is ready to send whatever the
//! receiver's queue: a [probe](Socket::wait_for_space_at) that is connected to the receiver tells
//! instead.
//!
//! **A receive on a socket whose reading side was shut down is over.** The kernel says so to calls
//! that block only; others get EAGAIN forever.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Instant;

use io_uring::opcode;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::addr::SocketAddrStorage;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType, socket_with,
};

use super::socket::{ANY_LEN, Socket, SocketKind, check_cancelled};
use crate::backend::{Interest, ring_len};
use crate::io::path::{IoPath, io_path};
use crate::io::ring::operate;
use crate::sched::block::consume_budget;

impl Socket {
    /// Receives a datagram (what does not fit is cut off), or looks at it if `flags` say PEEK.
    pub(super) fn receive_datagram(
        &self,
        buffer: &mut [u8],
        flags: RecvFlags,
        deadline: Option<Instant>,
    ) -> io::Result<usize> {
        if io_path() == IoPath::Uring {
            loop {
                let len = ring_len(buffer.len());
                let receive = opcode::Recv::new(self.ring_fd()?, buffer.as_mut_ptr(), len);
                match operate(receive.flags(flags.bits() as i32).build(), deadline) {
                    Ok(completion) => return completion.into_result(),
                    Err(error) => self.retry(error, Interest::Read, deadline)?,
                }
            }
        }
        self.attempt(Interest::Read, ANY_LEN, deadline, || {
            let flags = flags | RecvFlags::DONTWAIT;
            self.unless_read_shut(|| {
                let (len, _) = rustix::net::recv(self.as_fd(), &mut *buffer, flags)?;
                Ok(len)
            })
        })
    }

    /// Receives without waiting, by `call`; 0 if nothing is there and nothing will come, because
    /// the reading side was shut down.
    fn unless_read_shut(
        &self,
        mut call: impl FnMut() -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let received = call();
        if received != Err(Errno::AGAIN) || !self.is_read_shut() {
            return received;
        }
        // Datagrams from before the end are received first.
        match call() {
            Err(Errno::AGAIN) => Ok(0),
            received => received,
        }
    }

    fn is_read_shut(&self) -> bool {
        let mut sockets = [PollFd::new(self, PollFlags::RDHUP)];
        poll(&mut sockets, Some(&Timespec::default())).is_ok()
            && sockets[0].revents().contains(PollFlags::RDHUP)
    }

    /// Same as [`receive_datagram`](Socket::receive_datagram), with the sender's address if it has
    /// one.
    pub(super) fn receive_datagram_from(
        &self,
        buffer: &mut [u8],
        flags: RecvFlags,
        deadline: Option<Instant>,
    ) -> io::Result<(usize, Option<SocketAddrAny>)> {
        if io_path() == IoPath::Uring {
            return self.receive_message(buffer, flags, deadline);
        }
        let mut sender = None;
        let len = self.attempt(Interest::Read, ANY_LEN, deadline, || {
            let flags = flags | RecvFlags::DONTWAIT;
            self.unless_read_shut(|| {
                let (len, _, address) = rustix::net::recvfrom(self.as_fd(), &mut *buffer, flags)?;
                sender = address;
                Ok(len)
            })
        })?;
        Ok((len, sender))
    }

    fn receive_message(
        &self,
        buffer: &mut [u8],
        flags: RecvFlags,
        deadline: Option<Instant>,
    ) -> io::Result<(usize, Option<SocketAddrAny>)> {
        let mut storage = MaybeUninit::<SocketAddrStorage>::uninit();
        let mut slice = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: an all-zero msghdr is valid: no name, no slices, no control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut slice;
        message.msg_iovlen = 1;
        message.msg_name = storage.as_mut_ptr().cast();
        loop {
            message.msg_namelen = size_of::<SocketAddrStorage>() as u32;
            let receive = opcode::RecvMsg::new(self.blocking_fd()?, &raw mut message);
            match operate(receive.flags(flags.bits()).build(), deadline) {
                Ok(completion) => {
                    // SAFETY: the kernel wrote `msg_namelen` bytes of an address (recvmsg(2)).
                    let sender = (message.msg_namelen > 0)
                        .then(|| unsafe { SocketAddrAny::new(storage, message.msg_namelen) });
                    return Ok((completion.into_result()?, sender));
                }
                Err(error) => self.retry(error, Interest::Read, deadline)?,
            }
        }
    }

    /// Sends a datagram to `address`, or to the peer.
    pub(super) fn send_datagram(
        &self,
        bytes: &[u8],
        address: Option<&SocketAddrAny>,
        deadline: Option<Instant>,
    ) -> io::Result<usize> {
        let by_ring = io_path() == IoPath::Uring;
        check_cancelled()?;
        loop {
            let sent = if by_ring {
                self.send_datagram_by_ring(bytes, address, deadline)
            } else {
                self.send_datagram_now(bytes, address)
            };
            match sent {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                    self.wait_for_space_at(address, deadline)?;
                }
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                sent => {
                    if !by_ring {
                        consume_budget(bytes.len());
                    }
                    return sent;
                }
            }
        }
    }

    fn send_datagram_now(
        &self,
        bytes: &[u8],
        address: Option<&SocketAddrAny>,
    ) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        Ok(match address {
            Some(address) => rustix::net::sendto(self, bytes, flags, address)?,
            None => rustix::net::send(self, bytes, flags)?,
        })
    }

    /// Makes one attempt, which does not wait: see the module page.
    fn send_datagram_by_ring(
        &self,
        bytes: &[u8],
        address: Option<&SocketAddrAny>,
        deadline: Option<Instant>,
    ) -> io::Result<usize> {
        let slice =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: an all-zero msghdr is valid: no name, no slices, no control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = (&raw const slice).cast_mut();
        message.msg_iovlen = 1;
        if let Some(address) = address {
            message.msg_name = address.as_ptr().cast_mut().cast();
            message.msg_namelen = address.addr_len();
        }
        let send = opcode::SendMsg::new(self.ring_fd()?, &raw const message);
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        operate(send.flags(flags.bits()).build(), deadline)?.into_result()
    }

    /// Waits, after a send that did not fit, until there may be space for another datagram: in this
    /// socket's own buffer, or at the receiver.
    fn wait_for_space_at(
        &self,
        address: Option<&SocketAddrAny>,
        deadline: Option<Instant>,
    ) -> io::Result<()> {
        let of_unix = |address: &&SocketAddrAny| address.address_family() == AddressFamily::UNIX;
        let Some(address) = address.filter(of_unix) else {
            return self.wait(Interest::Write, deadline);
        };
        if self.is_send_buffer_full() {
            return self.wait(Interest::Write, deadline);
        }
        let family = AddressFamily::UNIX;
        let flags = SocketFlags::CLOEXEC;
        let probe = socket_with(family, SocketType::DGRAM, flags, None)?;
        if rustix::net::connect(&probe, address).is_err() {
            // The receiver is gone: the next send reports how.
            return Ok(());
        }
        let probe = Socket::with_mode(probe, false, SocketKind::Unix);
        probe.wait(Interest::Write, deadline)
    }

    /// True if the sent bytes that are not received yet fill the send buffer.
    fn is_send_buffer_full(&self) -> bool {
        let mut unreceived_len: libc::c_int = 0;
        // SAFETY: writes one int, which is what this call is given. SIOCOUTQ, unix(7)
        let result =
            unsafe { libc::ioctl(self.as_fd().as_raw_fd(), libc::TIOCOUTQ, &mut unreceived_len) };
        let buffer_len = rustix::net::sockopt::socket_send_buffer_size(self).unwrap_or(0);
        result == 0 && usize::try_from(unreceived_len).is_ok_and(|len| len >= buffer_len)
    }
}

/// The methods that all datagram types share.
macro_rules! datagram {
    ($name:ident, $std:ty, $kind:ident) => {
        impl $name {
            /// Receives one datagram; what does not fit into `buffer` is lost. An empty datagram is
            /// 0 and not an end.
            ///
            /// # Errors
            /// `TimedOut` past the read time-out; else what `recv(2)` reports.
            pub fn recv(&self, buffer: &mut [u8]) -> std::io::Result<usize> {
                let flags = rustix::net::RecvFlags::empty();
                let deadline = self.socket.read_deadline();
                self.socket.receive_datagram(buffer, flags, deadline)
            }

            /// Same as [`recv`](Self::recv), but the datagram stays, and the next call gets it
            /// again.
            ///
            /// # Errors
            /// Like [`recv`](Self::recv).
            pub fn peek(&self, buffer: &mut [u8]) -> std::io::Result<usize> {
                let flags = rustix::net::RecvFlags::PEEK;
                let deadline = self.socket.read_deadline();
                self.socket.receive_datagram(buffer, flags, deadline)
            }

            /// Sends one datagram to the address that the socket is connected to.
            ///
            /// # Errors
            /// `TimedOut` past the write time-out; else what `send(2)` reports.
            pub fn send(&self, bytes: &[u8]) -> std::io::Result<usize> {
                let deadline = self.socket.write_deadline();
                self.socket.send_datagram(bytes, None, deadline)
            }
        }

        crate::net::handle!($name, $std, $kind);
    };
}

pub(super) use datagram;
