//! One datagram socket: what it does beyond [`Socket`], and the methods that UDP and Unix datagrams
//! share.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::time::Instant;

use io_uring::opcode;
use rustix::net::addr::SocketAddrStorage;
use rustix::net::{RecvFlags, SendFlags, SocketAddrAny};

use super::socket::{ANY_LEN, Socket};
use crate::backend::{Interest, ring_len};
use crate::io::path::{IoPath, io_path};
use crate::io::ring::operate;

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
            let (len, _) = rustix::net::recv(self.as_fd(), &mut *buffer, flags)?;
            Ok(len)
        })
    }

    /// As [`receive_datagram`](Socket::receive_datagram), with the sender's address if it has one.
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
            let (len, _, address) = rustix::net::recvfrom(self.as_fd(), &mut *buffer, flags)?;
            sender = address;
            Ok(len)
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
        let mut slice = libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        // SAFETY: an all-zero msghdr is valid: no name, no slices, no control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut slice;
        message.msg_iovlen = 1;
        message.msg_name = storage.as_mut_ptr().cast();
        loop {
            message.msg_namelen = size_of::<SocketAddrStorage>() as u32;
            let receive = opcode::RecvMsg::new(self.ring_fd()?, &raw mut message);
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

    /// Sends a datagram to `address`.
    pub(super) fn send_datagram_to(
        &self,
        bytes: &[u8],
        address: &SocketAddrAny,
        deadline: Option<Instant>,
    ) -> io::Result<usize> {
        if io_path() != IoPath::Uring {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            return self.attempt(Interest::Write, ANY_LEN, deadline, || {
                rustix::net::sendto(self.as_fd(), bytes, flags, address)
            });
        }
        let slice = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: an all-zero msghdr is valid: no name, no slices, no control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = (&raw const slice).cast_mut();
        message.msg_iovlen = 1;
        message.msg_name = address.as_ptr().cast_mut().cast();
        message.msg_namelen = address.addr_len();
        loop {
            let send = opcode::SendMsg::new(self.ring_fd()?, &raw const message);
            let flags = SendFlags::NOSIGNAL.bits();
            match operate(send.flags(flags).build(), deadline) {
                Ok(completion) => return completion.into_result(),
                Err(error) => self.retry(error, Interest::Write, deadline)?,
            }
        }
    }
}

/// The methods that all datagram types share.
macro_rules! datagram {
    ($name:ident, $std:ty) => {
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

            /// As [`recv`](Self::recv), but the datagram stays, and the next call gets it again.
            ///
            /// # Errors
            /// As [`recv`](Self::recv).
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
                let slices = [std::io::IoSlice::new(bytes)];
                self.socket.send(&slices, false, deadline)
            }

            /// Takes the error that the socket has kept, if any (SO_ERROR).
            ///
            /// # Errors
            /// What `getsockopt(2)` reports.
            pub fn take_error(&self) -> std::io::Result<Option<std::io::Error>> {
                let error = rustix::net::sockopt::socket_error(&self.socket)?;
                Ok(error.err().map(std::io::Error::from))
            }
        }

        crate::net::handle!($name, $std);
    };
}

pub(super) use datagram;
