//! A driver's interface to a connection, and its two implementations for the blocking driver: of a
//! fiber and of a kernel thread.

mod gathered;
mod packets;
mod queues;
pub(crate) mod unacked;

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fiber::net::{TcpStream, UnixStream};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use session::Outbox;

use crate::buffers::PIECE_LEN_MAX;
use crate::connection::{FilePiece, FileProgress, Queues, Unacked, UnackedCheck};
use crate::file::{self, COPIED_PIECE_LEN};
pub(crate) use gathered::Gathered;
pub(crate) use packets::send_pages;
use queues::has_unsent;
pub(crate) use queues::queues;
use unacked::poll_for;
pub(crate) use unacked::unacked;

/// A connected byte stream. Every wait has a deadline.
pub(crate) trait Stream: Send + Sync + 'static {
    /// A call that sends from the page cache may block on the disk.
    const MAY_WAIT: bool = false;

    /// Waits for input and passes it to `f`, in a buffer of the thread; an empty slice is the end.
    /// Receives at most `len_max`, unless the kernel provides the buffer.
    ///
    /// # Errors
    /// `TimedOut` past the deadline; else errors of `recv(2)`.
    fn receive<R>(
        &self,
        len_max: usize,
        deadline: Instant,
        f: impl FnOnce(&[u8]) -> R,
    ) -> io::Result<R>;

    /// Waits for input and puts it into `space`; 0 is the end.
    ///
    /// # Errors
    /// As [`receive`](Stream::receive).
    fn receive_into(&self, space: &mut [u8], deadline: Instant) -> io::Result<usize>;

    /// Sends as much as possible of `slices`; `more`: a file or the end of the stream follows at
    /// once.
    ///
    /// # Errors
    /// `TimedOut` past the deadline if nothing was sent; else errors of `sendmsg(2)`.
    fn send(&self, slices: &[IoSlice<'_>], more: bool, deadline: Instant) -> io::Result<usize>;

    /// Same as [`receive`](Stream::receive), without waiting.
    ///
    /// # Errors
    /// `WouldBlock`; else errors of `recv(2)`.
    fn try_receive<R>(&self, len_max: usize, f: impl FnOnce(&[u8]) -> R) -> io::Result<R>;

    /// Same as [`send`](Stream::send), without waiting.
    ///
    /// # Errors
    /// `WouldBlock`; else errors of `sendmsg(2)`.
    fn try_send(&self, slices: &[IoSlice<'_>], more: bool) -> io::Result<usize>;

    /// Waits until a send or a receive may succeed; may return spuriously.
    ///
    /// # Errors
    /// `TimedOut` past the deadline; else errors of the wait itself.
    fn wait_either(&self, deadline: Instant) -> io::Result<()>;

    /// Waits until there is input, or its end; may return spuriously.
    ///
    /// # Errors
    /// As [`wait_either`](Stream::wait_either).
    fn wait_readable(&self, deadline: Instant) -> io::Result<()>;

    /// Waits until a send may take something.
    ///
    /// # Errors
    /// `TimedOut` past the deadline; else errors of the wait itself.
    fn wait_writable(&self, deadline: Instant) -> io::Result<()>;

    /// Sends as much as possible of a piece of a file, or reads it if it is uncached.
    ///
    /// # Errors
    /// As [`send`](Stream::send), and as [`DiskRead::run`](file::DiskRead::run).
    fn send_or_read_file(&self, piece: &FilePiece<'_>) -> io::Result<FileProgress> {
        self.wait_if_slow(piece)?;
        if file::has_changed(piece) {
            return Ok(FileProgress::Sent(0));
        }
        match file::on_disk(piece) {
            Some(read) if read.is_direct() || !Self::MAY_WAIT => read.run().map(FileProgress::Read),
            _ => self
                .send_file_cached(piece)
                .or_else(|refused| file::read_instead(piece, refused).map(FileProgress::Read)),
        }
    }

    /// Sends as much as possible of a piece of a file from the page cache.
    ///
    /// # Errors
    /// As [`send`](Stream::send).
    fn send_file_cached(&self, piece: &FilePiece<'_>) -> io::Result<FileProgress>;

    /// Reads the beginning of a piece of a file. Empty if the file ends there.
    ///
    /// # Errors
    /// As [`DiskRead::run`](file::DiskRead::run), and as [`wait_writable`](Stream::wait_writable).
    fn read_file(&self, piece: &FilePiece<'_>) -> io::Result<Bytes> {
        self.wait_if_slow(piece)?;
        match file::on_disk(piece) {
            Some(read) => read.run(),
            None => file::read_cached(piece, COPIED_PIECE_LEN),
        }
    }

    /// Waits until there is space for the bytes to be read, if the peer is slow.
    ///
    /// # Errors
    /// As [`wait_writable`](Stream::wait_writable).
    fn wait_if_slow(&self, piece: &FilePiece<'_>) -> io::Result<()> {
        if piece.is_slow() { self.wait_writable(piece.until) } else { Ok(()) }
    }

    /// Counts the bytes that the peer has not acknowledged, when the check is due; on a Unix
    /// socket, those that it has not read.
    ///
    /// # Errors
    /// `BrokenPipe` if the peer will never take more.
    fn unacked(&self, check: &UnackedCheck) -> io::Result<Unacked>;

    /// Counts the bytes in the socket's queues; unsent ones only if `asks_unsent`, and then this
    /// side of the stream ends first.
    ///
    /// # Errors
    /// Errors of `ioctl(2)`.
    fn queues(&self, asks_unsent: bool) -> io::Result<Queues>;

    /// True if bytes wait in the socket for space at the peer. From any thread.
    fn has_unsent(&self) -> bool;

    /// Ends reading, writing or both, and wakes fibers or threads that wait. From any thread.
    ///
    /// # Errors
    /// Errors of `shutdown(2)`: the peer may be gone already.
    fn shutdown(&self, how: Shutdown) -> io::Result<()>;

    /// The peer's address, if it has one.
    fn peer(&self) -> Option<SocketAddr>;
}

/// Sends the chunks in memory up to the next file. Returns the number of bytes taken, and whether
/// that is all. If nothing follows, the last packet waits for the end of the stream. Without
/// `until` the call does not wait for space.
#[inline]
pub(crate) fn send_out<T: Stream>(
    stream: &T,
    out: &Outbox,
    until: Option<Instant>,
    is_last: bool,
) -> (io::Result<u64>, bool) {
    let mut gathered = Gathered::new();
    gathered.gather(out, is_last);
    let sent = match until {
        Some(until) => stream.send(gathered.slices(), gathered.more_follows, until),
        None => stream.try_send(gathered.slices(), gathered.more_follows),
    };
    let is_all = matches!(sent, Ok(len) if len == gathered.len);
    (sent.map(|len| len as u64), is_all)
}

/// True if a piece of a file was sent as a whole.
fn is_all(sent: &io::Result<u64>, piece: &FilePiece<'_>) -> bool {
    matches!(sent, Ok(len) if *len == piece.len)
}

/// A connection of a fiber.
#[derive(Debug)]
pub(crate) enum FiberStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

macro_rules! either {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self {
            FiberStream::Tcp($stream) => $call,
            FiberStream::Unix($stream) => $call,
        }
    };
}

impl FiberStream {
    /// Receives available input without a wait, and passes it to `f`.
    ///
    /// # Errors
    /// Errors of `recv(2)`.
    pub(crate) fn receive_now<R>(&self, f: impl FnOnce(&[u8]) -> R) -> io::Result<Option<R>> {
        either!(self, stream => stream.receive_now(f))
    }

    /// Returns the stream as a source of input for stackless fibers.
    pub(crate) fn source(&self) -> fiber::Source<'_> {
        either!(self, stream => stream.source())
    }
}

impl Stream for FiberStream {
    fn receive<R>(
        &self,
        _len_max: usize,
        deadline: Instant,
        f: impl FnOnce(&[u8]) -> R,
    ) -> io::Result<R> {
        either!(self, stream => stream.receive(Some(deadline), f))
    }

    fn receive_into(&self, space: &mut [u8], deadline: Instant) -> io::Result<usize> {
        either!(self, stream => stream.receive_into(space, Some(deadline)))
    }

    fn send(&self, slices: &[IoSlice<'_>], more: bool, deadline: Instant) -> io::Result<usize> {
        either!(self, stream => stream.send(slices, more, Some(deadline)))
    }

    fn try_receive<R>(&self, _len_max: usize, f: impl FnOnce(&[u8]) -> R) -> io::Result<R> {
        either!(self, stream => stream.try_receive(f))
    }

    fn try_send(&self, slices: &[IoSlice<'_>], more: bool) -> io::Result<usize> {
        either!(self, stream => stream.try_send(slices, more))
    }

    fn wait_readable(&self, deadline: Instant) -> io::Result<()> {
        either!(self, stream => stream.wait_readable(Some(deadline)))
    }

    fn wait_either(&self, deadline: Instant) -> io::Result<()> {
        either!(self, stream => stream.wait_either(Some(deadline)))
    }

    fn send_file_cached(&self, piece: &FilePiece<'_>) -> io::Result<FileProgress> {
        let range = piece.range;
        let len = piece.len.min(PIECE_LEN_MAX);
        let (file, start, until) = (range.file.as_fd(), range.range.start, Some(piece.until));
        either!(self, stream => {
            let send = || stream.send_cached_file(file, start, len, until);
            send_pages(stream.as_fd(), piece, send, |sent| is_all(sent, piece)).map(FileProgress::Sent)
        })
    }

    fn wait_writable(&self, deadline: Instant) -> io::Result<()> {
        either!(self, stream => stream.wait_writable(Some(deadline)))
    }

    fn unacked(&self, check: &UnackedCheck) -> io::Result<Unacked> {
        if check.all_was_sent {
            fiber::sleep(check.after);
        } else if let Err(error) = self.wait_writable(Instant::now() + check.after)
            && error.kind() != io::ErrorKind::TimedOut
        {
            return Err(error);
        }
        either!(self, stream => unacked(stream.as_fd(), check))
    }

    fn queues(&self, asks_unsent: bool) -> io::Result<Queues> {
        either!(self, stream => queues(stream.as_fd(), asks_unsent))
    }

    fn has_unsent(&self) -> bool {
        either!(self, stream => has_unsent(stream.as_fd()))
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        either!(self, stream => stream.shutdown(how))
    }

    fn peer(&self) -> Option<SocketAddr> {
        match self {
            FiberStream::Tcp(stream) => stream.peer_addr().ok(),
            FiberStream::Unix(_) => None,
        }
    }
}

/// A connection of a kernel thread, with plain blocking system calls.
#[derive(Debug)]
pub(crate) struct ThreadStream {
    fd: OwnedFd,
    /// Current time-outs of the socket, in nanoseconds: setting the same value again would waste a
    /// system call.
    receive_timeout: AtomicU64,
    send_timeout: AtomicU64,
}

/// Granularity of deadlines, so that successive ones give equal time-outs.
const TIMEOUT_STEP: Duration = Duration::from_millis(100);

pub(crate) const RECEIVE_LEN: usize = 16 * 1024;

thread_local! {
    pub(crate) static RECEIVE_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; RECEIVE_LEN]);
}

impl ThreadStream {
    /// Takes a connected blocking socket.
    pub(crate) fn new(fd: OwnedFd) -> ThreadStream {
        let (receive_timeout, send_timeout) = (AtomicU64::new(0), AtomicU64::new(0));
        ThreadStream { fd, receive_timeout, send_timeout }
    }

    fn prepare(&self, which: Timeout, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        // A peer that trickles always has a byte ready, and would otherwise never time out.
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // Rounded up, so that it is never early.
        let steps = left.as_nanos() / TIMEOUT_STEP.as_nanos() + 1;
        let timeout = TIMEOUT_STEP * u32::try_from(steps).unwrap_or(u32::MAX);
        let set = match which {
            Timeout::Recv => &self.receive_timeout,
            Timeout::Send => &self.send_timeout,
        };
        let nanos = timeout.as_nanos() as u64;
        if set.load(Ordering::Relaxed) != nanos {
            set_socket_timeout(&self.fd, which, Some(timeout))?;
            set.store(nanos, Ordering::Relaxed);
        }
        Ok(())
    }

    fn wait_for(&self, flags: PollFlags, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if poll_for(self.fd.as_fd(), flags, left)?.is_empty() {
            Err(io::ErrorKind::TimedOut.into())
        } else {
            Ok(())
        }
    }

    /// Repeats an interrupted call; after a time-out the kernel returns `EAGAIN`. socket(7)
    fn call<T>(mut call: impl FnMut() -> Result<T, Errno>) -> io::Result<T> {
        loop {
            match call() {
                Ok(value) => return Ok(value),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Stream for ThreadStream {
    const MAY_WAIT: bool = true;

    fn receive<R>(
        &self,
        len_max: usize,
        deadline: Instant,
        f: impl FnOnce(&[u8]) -> R,
    ) -> io::Result<R> {
        RECEIVE_BUFFER.with_borrow_mut(|buffer| {
            let len_max = buffer.len().min(len_max);
            let len = self.receive_into(&mut buffer[..len_max], deadline)?;
            Ok(f(&buffer[..len]))
        })
    }

    fn receive_into(&self, space: &mut [u8], deadline: Instant) -> io::Result<usize> {
        self.prepare(Timeout::Recv, deadline)?;
        let (len, _) =
            ThreadStream::call(|| rustix::net::recv(&self.fd, &mut *space, RecvFlags::empty()))?;
        Ok(len)
    }

    fn send(&self, slices: &[IoSlice<'_>], more: bool, deadline: Instant) -> io::Result<usize> {
        self.prepare(Timeout::Send, deadline)?;
        let mut flags = SendFlags::NOSIGNAL;
        flags.set(SendFlags::MORE, more);
        ThreadStream::call(|| match slices {
            [slice] => rustix::net::send(&self.fd, slice, flags),
            _ => rustix::net::sendmsg(&self.fd, slices, &mut SendAncillaryBuffer::default(), flags),
        })
    }

    fn try_receive<R>(&self, len_max: usize, f: impl FnOnce(&[u8]) -> R) -> io::Result<R> {
        RECEIVE_BUFFER.with_borrow_mut(|buffer| {
            let len_max = buffer.len().min(len_max);
            let (len, _) =
                rustix::net::recv(&self.fd, &mut buffer[..len_max], RecvFlags::DONTWAIT)?;
            Ok(f(&buffer[..len]))
        })
    }

    fn try_send(&self, slices: &[IoSlice<'_>], more: bool) -> io::Result<usize> {
        let mut flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        flags.set(SendFlags::MORE, more);
        let ancillary = &mut SendAncillaryBuffer::default();
        Ok(rustix::net::sendmsg(&self.fd, slices, ancillary, flags)?)
    }

    fn wait_readable(&self, deadline: Instant) -> io::Result<()> {
        self.wait_for(PollFlags::IN, deadline)
    }

    fn wait_either(&self, deadline: Instant) -> io::Result<()> {
        self.wait_for(PollFlags::IN | PollFlags::OUT, deadline)
    }

    fn send_file_cached(&self, piece: &FilePiece<'_>) -> io::Result<FileProgress> {
        self.prepare(Timeout::Send, piece.until)?;
        let range = piece.range;
        let len = piece.len.min(PIECE_LEN_MAX) as usize;
        let mut at = range.range.start;
        let send = || {
            let call = || rustix::fs::sendfile(&self.fd, range.file.as_fd(), Some(&mut at), len);
            ThreadStream::call(call).map(|len| len as u64)
        };
        send_pages(self.fd.as_fd(), piece, send, |sent| is_all(sent, piece)).map(FileProgress::Sent)
    }

    fn wait_writable(&self, deadline: Instant) -> io::Result<()> {
        self.wait_for(PollFlags::OUT, deadline)
    }

    fn unacked(&self, check: &UnackedCheck) -> io::Result<Unacked> {
        if check.all_was_sent {
            std::thread::sleep(check.after)
        } else {
            let _ = poll_for(self.fd.as_fd(), PollFlags::OUT, check.after);
        }
        unacked(self.fd.as_fd(), check)
    }

    fn queues(&self, asks_unsent: bool) -> io::Result<Queues> {
        queues(self.fd.as_fd(), asks_unsent)
    }

    fn has_unsent(&self) -> bool {
        has_unsent(self.fd.as_fd())
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let how = match how {
            Shutdown::Read => rustix::net::Shutdown::Read,
            Shutdown::Write => rustix::net::Shutdown::Write,
            Shutdown::Both => rustix::net::Shutdown::Both,
        };
        Ok(rustix::net::shutdown(&self.fd, how)?)
    }

    fn peer(&self) -> Option<SocketAddr> {
        rustix::net::getpeername(&self.fd).ok()??.try_into().ok()
    }
}
