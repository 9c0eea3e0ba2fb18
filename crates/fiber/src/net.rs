//! Sockets whose blocking calls suspend the fiber, not the processor.
//!
//! The types and most of their methods are those of [`std::net`] and [`std::os::unix::net`],
//! reading and writing included (also on shared references). On a plain thread they block that
//! thread. Unlike in `std`, [`TcpListener::accept`] returns the stream alone, because the peer's
//! address costs a system call that few servers want ([`TcpStream::peer_addr`]); the iterator
//! [`TcpListener::incoming`] ends; [`TcpStream::read_timeout`] cannot fail; and there is no
//! `set_nonblocking`: the runtime sets the blocking mode (`O_NONBLOCK`) of the open file, so other
//! programs with a duplicate, as a child process, must leave it as it is, or a call may block a
//! processor. Beyond `std` there are [`TcpStream::receive`], which holds no buffer while it waits,
//! [`TcpStream::send_cached_file`], and [`Readable`] for a descriptor that other code reads.

mod datagram;
mod pipe;
mod readable;
mod resolve;
pub(crate) mod socket;
mod tcp;
mod udp;
mod unix;

pub use pipe::{PipeReader, PipeWriter, pipe};
pub use readable::Readable;
pub use resolve::{resolve, resolve_name};
pub use socket::Input;
pub(crate) use socket::Socket;
pub use tcp::{TcpListener, TcpStream};
pub use udp::UdpSocket;
pub use unix::{UnixDatagram, UnixListener, UnixStream};

/// The methods that all stream types share.
macro_rules! stream {
    ($name:ident, $std:ty, $kind:ident) => {
        impl $name {
            /// This stream as the source of input of a [stackless fiber](crate::Stackless).
            pub fn source(&self) -> crate::Source<'_> {
                crate::net::socket::Source(&self.socket)
            }

            /// Receives available bytes (at most 16 KiB) into a processor's buffer and shows
            /// them to `f`; an empty slice is the end of the stream. While it waits, the connection
            /// holds no buffer: ten thousand idle connections cost none.
            ///
            /// # Errors
            /// `TimedOut` past the deadline; else what `recv(2)` reports.
            pub fn receive<R>(
                &self,
                deadline: Option<std::time::Instant>,
                f: impl FnOnce(&[u8]) -> R,
            ) -> std::io::Result<R> {
                self.socket.receive(deadline, f)
            }

            /// Receives available bytes, without a wait, and shows them to `f`; an empty slice is
            /// the end of the stream. `None` if nothing is there, or if a wait would cost no more.
            ///
            /// # Errors
            /// Errors of `recv(2)`.
            pub fn receive_now<R>(
                &self,
                f: impl FnOnce(&[u8]) -> R,
            ) -> std::io::Result<Option<R>> {
                self.socket.receive_now(f)
            }

            /// Receives into `buffer`; 0 is the end of the stream.
            ///
            /// # Errors
            /// Like [`receive`](Self::receive).
            pub fn receive_into(
                &self,
                buffer: &mut [u8],
                deadline: Option<std::time::Instant>,
            ) -> std::io::Result<usize> {
                self.socket.receive_into(buffer, deadline)
            }

            /// Sends what it can of `slices` in one go. `more` says that the rest of the message
            /// follows at once (MSG_MORE).
            ///
            /// # Errors
            /// `TimedOut` past the deadline if nothing was sent; else what `sendmsg(2)` reports.
            pub fn send(
                &self,
                slices: &[std::io::IoSlice<'_>],
                more: bool,
                deadline: Option<std::time::Instant>,
            ) -> std::io::Result<usize> {
                self.socket.send(slices, more, deadline)
            }

            /// Sends bytes of a file that the caller knows to be in the page cache: up to `len`
            /// from `offset` on, at most 1 MiB in one call. Returns how many; 0 if the file ends
            /// there. Bytes outside of the page cache block the processor on the disk:
            /// [`is_cached`](crate::fs::is_cached) tells, and [`read_at`](crate::fs::read_at)
            /// brings them.
            ///
            /// # Errors
            /// `TimedOut` past the deadline; else what `sendfile(2)` reports.
            pub fn send_cached_file(
                &self,
                file: std::os::fd::BorrowedFd<'_>,
                offset: u64,
                len: u64,
                deadline: Option<std::time::Instant>,
            ) -> std::io::Result<u64> {
                self.socket.send_cached_file(file, offset, len, deadline)
            }

            /// Same as [`send`](Self::send), without waiting.
            ///
            /// # Errors
            /// `WouldBlock`, or `Interrupted`; else what `sendmsg(2)` reports.
            pub fn try_send(
                &self,
                slices: &[std::io::IoSlice<'_>],
                more: bool,
            ) -> std::io::Result<usize> {
                self.socket.try_send(slices, more)
            }

            /// Same as [`receive`](Self::receive), without waiting.
            ///
            /// # Errors
            /// `WouldBlock`, or `Interrupted`; else what `recv(2)` reports.
            pub fn try_receive<R>(&self, f: impl FnOnce(&[u8]) -> R) -> std::io::Result<R> {
                self.socket.try_receive(f)
            }

            /// Waits until a send or a receive may succeed, after an attempt at both that could
            /// not; may return for no reason.
            ///
            /// # Errors
            /// `TimedOut` past the deadline; else what the wait itself reports.
            pub fn wait_either(
                &self,
                deadline: Option<std::time::Instant>,
            ) -> std::io::Result<()> {
                self.socket.wait_either(deadline)
            }

            /// Waits until there is something to read, or an end; may return for no reason.
            ///
            /// # Errors
            /// `TimedOut` past the deadline; else what the wait itself reports.
            pub fn wait_readable(
                &self,
                deadline: Option<std::time::Instant>,
            ) -> std::io::Result<()> {
                self.socket.wait_unless_ready(Interest::Read, deadline)
            }

            /// Waits until a send may succeed; may return for no reason.
            ///
            /// # Errors
            /// `TimedOut` past the deadline; else what the wait itself reports.
            pub fn wait_writable(
                &self,
                deadline: Option<std::time::Instant>,
            ) -> std::io::Result<()> {
                self.socket.wait_unless_ready(Interest::Write, deadline)
            }

            /// Ends reading, writing or both; waiting fibers are woken.
            ///
            /// # Errors
            /// Errors of `shutdown(2)`.
            pub fn shutdown(&self, how: std::net::Shutdown) -> std::io::Result<()> {
                self.socket.shutdown(how)
            }
        }

        impl std::io::Read for &$name {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                self.socket
                    .receive_into(buffer, self.socket.read_deadline())
            }
        }

        impl std::io::Write for &$name {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.write_vectored(&[std::io::IoSlice::new(bytes)])
            }

            fn write_vectored(
                &mut self,
                slices: &[std::io::IoSlice<'_>],
            ) -> std::io::Result<usize> {
                self.socket
                    .send(slices, false, self.socket.write_deadline())
            }

            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }

        crate::base::by_reference!(Read, Write for $name);
        crate::net::handle!($name, $std, $kind);
    };
}

/// Methods that streams and datagram sockets share.
macro_rules! handle {
    ($name:ident, $std:ty, $kind:ident) => {
        impl $name {
            /// A second handle to the same socket, which shares its time-outs.
            ///
            /// # Errors
            /// Errors of `dup(2)`.
            pub fn try_clone(&self) -> std::io::Result<$name> {
                Ok($name { socket: self.socket.try_clone()? })
            }

            /// Takes the error that the socket has kept, if any (SO_ERROR).
            ///
            /// # Errors
            /// Errors of `getsockopt(2)`.
            pub fn take_error(&self) -> std::io::Result<Option<std::io::Error>> {
                let error = rustix::net::sockopt::socket_error(&self.socket)?;
                Ok(error.err().map(std::io::Error::from))
            }

            /// Limit on the wait of a read; `None` (the default) for none.
            ///
            /// # Errors
            /// `InvalidInput` for a zero time-out.
            pub fn set_read_timeout(
                &self,
                timeout: Option<std::time::Duration>,
            ) -> std::io::Result<()> {
                self.socket.set_timeout(Interest::Read, timeout)
            }

            /// Limit on the wait of a write; `None` (the default) for none.
            ///
            /// # Errors
            /// `InvalidInput` for a zero time-out.
            pub fn set_write_timeout(
                &self,
                timeout: Option<std::time::Duration>,
            ) -> std::io::Result<()> {
                self.socket.set_timeout(Interest::Write, timeout)
            }

            /// The read time-out.
            pub fn read_timeout(&self) -> Option<std::time::Duration> {
                self.socket.timeout(Interest::Read)
            }

            /// The write time-out.
            pub fn write_timeout(&self) -> Option<std::time::Duration> {
                self.socket.timeout(Interest::Write)
            }
        }

        crate::net::descriptor!($name, $kind);

        impl From<$std> for $name {
            /// Takes its time-outs over as well.
            fn from(socket: $std) -> $name {
                let taken = $name::from(std::os::fd::OwnedFd::from(socket));
                taken.socket.take_timeouts_over();
                taken
            }
        }
    };
}

/// Descriptor of a socket, a pipe or whatever it is: lent and taken over.
macro_rules! descriptor {
    ($name:ident, $kind:ident) => {
        impl std::os::fd::AsFd for $name {
            fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
                self.socket.as_fd()
            }
        }

        impl From<std::os::fd::OwnedFd> for $name {
            fn from(fd: std::os::fd::OwnedFd) -> $name {
                $name { socket: Socket::new(fd, crate::net::socket::SocketKind::$kind) }
            }
        }
    };
}

/// Methods that listeners share.
macro_rules! listener {
    ($name:ident, $stream:ident, $std:ty, $kind:ident) => {
        impl $name {
            /// Waits for a connection. Any number of fibers and plain threads may wait on one
            /// listener.
            ///
            /// # Errors
            /// `NotConnected` after [`close`](Self::close); else what `accept4(2)` reports. A
            /// server continues after any other error; out of descriptors, after a pause.
            pub fn accept(&self) -> std::io::Result<$stream> {
                let connection = crate::io::accept::accept(&self.state)?;
                let kind = crate::net::socket::SocketKind::$kind;
                Ok($stream { socket: Socket::with_mode(connection, true, kind) })
            }

            /// The connections, one after the other, as that of `std`; but it ends when the
            /// listener is [closed](Self::close) or the fiber is cancelled, and at the deadline of
            /// [`timeout`](crate::timeout).
            pub fn incoming(&self) -> impl Iterator<Item = std::io::Result<$stream>> + '_ {
                std::iter::from_fn(|| crate::io::accept::unless_over(self.accept()))
            }

            /// Stops listening: fibers that wait in [`accept`](Self::accept) get an error, later
            /// connections are refused.
            pub fn close(&self) {
                self.state.close();
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                self.state.close();
            }
        }

        impl std::os::fd::AsFd for $name {
            fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
                self.state.as_fd()
            }
        }

        impl From<std::os::fd::OwnedFd> for $name {
            fn from(fd: std::os::fd::OwnedFd) -> $name {
                // Plain threads need no runtime, which would do this.
                crate::io::fork::notice_forks();
                $name { state: ListenerState::new(fd, crate::net::socket::next_id()) }
            }
        }

        impl From<$std> for $name {
            fn from(listener: $std) -> $name {
                std::os::fd::OwnedFd::from(listener).into()
            }
        }
    };
}

use {descriptor, handle, listener, stream};
