//! What a driver needs of a connection, and the two kinds that the blocking driver has: a fiber's and a
//! kernel thread's.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fiber::fs::{AlignedBuffer, DIRECT_ALIGNMENT};
use fiber::net::{TcpStream, UnixStream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use session::FileRange;

/// How much of a file goes out in one call: between two calls others get their turn, and a change of the
/// file is noticed.
pub(crate) const FILE_PIECE_LEN_MAX: u64 = fiber::net::FILE_PIECE_LEN_MAX;

/// A connected byte stream. Every wait has a deadline.
pub(crate) trait Stream: Send + Sync + 'static {
    /// Waits for input and shows it to `f`, in a buffer of whoever carries the stream; an empty slice is
    /// the end.
    ///
    /// # Errors
    /// `TimedOut` past the deadline; else what `recv(2)` reports.
    fn receive<R>(&self, deadline: Instant, f: impl FnOnce(&[u8]) -> R) -> io::Result<R>;

    /// Waits for input and puts it into `room`; 0 is the end.
    ///
    /// # Errors
    /// As [`receive`](Stream::receive).
    fn receive_into(&self, room: &mut [u8], deadline: Instant) -> io::Result<usize>;

    /// Sends what it can of `slices`; `more` says that a file follows at once.
    ///
    /// # Errors
    /// `TimedOut` past the deadline if nothing was sent; else what `sendmsg(2)` reports.
    fn send(&self, slices: &[IoSlice<'_>], more: bool, deadline: Instant) -> io::Result<usize>;

    /// Sends what it can of a range of a file, at most [`FILE_PIECE_LEN_MAX`] at a time. 0 if the file ends
    /// there.
    ///
    /// # Errors
    /// As [`send`](Stream::send).
    fn send_file(&self, range: &FileRange, deadline: Instant) -> io::Result<u64>;

    /// As [`send_file`](Stream::send_file), but sends a copy, whose last bytes leave only if the file's stamp is
    /// still the same after they were read.
    ///
    /// # Errors
    /// As [`send`](Stream::send); `InvalidData` if the file has changed.
    fn send_file_copy(&self, range: &FileRange, deadline: Instant) -> io::Result<u64>;

    /// How many of the bytes that were sent the peer's side has not taken: over TCP not acknowledged, on a Unix socket
    /// not read.
    ///
    /// # Errors
    /// `BrokenPipe` if it will never take more.
    fn untaken_len(&self) -> io::Result<u64>;

    /// Ends reading, writing or both, and wakes who waits in them. From any thread.
    ///
    /// # Errors
    /// What `shutdown(2)` reports: the peer may be gone already.
    fn shutdown(&self, how: Shutdown) -> io::Result<()>;

    /// Tells the peer that nothing more comes, where that takes more than closing. By the carrier, before a close or a
    /// shutdown.
    fn say_goodbye(&self) {}

    /// The peer's address, if it has one.
    fn peer(&self) -> Option<SocketAddr>;
}

/// A connection that a fiber carries.
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
    /// As where steps receive from.
    pub(crate) fn source(&self) -> fiber::Source<'_> {
        either!(self, stream => stream.source())
    }
}

impl Stream for FiberStream {
    fn receive<R>(&self, deadline: Instant, f: impl FnOnce(&[u8]) -> R) -> io::Result<R> {
        either!(self, stream => stream.receive(Some(deadline), f))
    }

    fn receive_into(&self, room: &mut [u8], deadline: Instant) -> io::Result<usize> {
        either!(self, stream => stream.receive_into(room, Some(deadline)))
    }

    fn send(&self, slices: &[IoSlice<'_>], more: bool, deadline: Instant) -> io::Result<usize> {
        either!(self, stream => stream.send(slices, more, Some(deadline)))
    }

    /// A hit in the page cache goes by `sendfile(2)`. A miss is read by the back end: past the page
    /// cache if the file is not worth a place in it, so that a crowd of rare files does not push out the
    /// popular ones, and without the price of inserting and evicting pages.
    fn send_file(&self, range: &FileRange, deadline: Instant) -> io::Result<u64> {
        let (file, start, len) = (range.file.as_fd(), range.range.start, range.len());
        let deadline = Some(deadline);
        if is_cached_whole(range) {
            return either!(self, stream => stream.send_cached_file(file, start, len, deadline));
        }
        let piece_end = start + len.min(DIRECT_PIECE_LEN);
        if !range.keep
            && !fiber::fs::is_cached(file, start..piece_end)
            && let Some(direct) = range.file.direct()
        {
            return self.send_by_reading(direct, range, DIRECT_PIECE_LEN, deadline);
        }
        either!(self, stream => stream.send_file(file, start, len, deadline))
    }

    fn send_file_copy(&self, range: &FileRange, deadline: Instant) -> io::Result<u64> {
        self.send_by_reading(range.file.as_fd(), range, COPIED_PIECE_LEN, Some(deadline))
    }

    fn untaken_len(&self) -> io::Result<u64> {
        either!(self, stream => untaken_len(stream.as_fd()))
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

/// The bytes in a socket's send queue, as long as somebody may take them.
pub(crate) fn untaken_len(socket: BorrowedFd<'_>) -> io::Result<u64> {
    // Reset, or shut down both ways: reported whether it is asked for or not. poll(2)
    let mut fds = [PollFd::new(&socket, PollFlags::empty())];
    if poll(&mut fds, Some(&Timespec::default()))? > 0 {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    let mut len: libc::c_int = 0;
    // SAFETY: SIOCOUTQ writes an int. tcp(7), unix(7)
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut len) } {
        0 => Ok(len as u64),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether what was read of `range` up to `end` may leave: its last bytes only if the file is still the same.
pub(crate) fn check_last(range: &FileRange, end: u64) -> io::Result<()> {
    if end < range.range.end || range.file.is_unchanged()? {
        return Ok(());
    }
    let message = "the file has changed while it was sent";
    Err(io::Error::new(io::ErrorKind::InvalidData, message))
}

/// Files up to this length are looked at whole.
const LOOKED_AT_LEN_MAX: u64 = 4 * 1024 * 1024;

/// What was in the page cache this long ago, and is being asked for, still is: the kernel evicts what has not been
/// used for seconds. (If it ever is not, one request waits for the disk with the processor.)
const CACHED_AGE_MAX: Duration = Duration::from_millis(50);

/// Whether all of a file of moderate length is in the page cache.
fn is_cached_whole(range: &FileRange) -> bool {
    let (file, len) = (&range.file, range.file.stamp().len);
    if len > LOOKED_AT_LEN_MAX {
        return false;
    }
    let now = Instant::now();
    if file.was_cached(now, CACHED_AGE_MAX) {
        return true;
    }
    let is_cached = fiber::fs::is_cached(file.as_fd(), 0..len);
    if is_cached {
        file.note_cached(now);
    }
    is_cached
}

/// How much of a file that may still change is read and sent at a time.
const COPIED_PIECE_LEN: u64 = 64 * 1024;

/// How much of a rare file is read and sent at a time.
const DIRECT_PIECE_LEN: u64 = 256 * 1024;

impl FiberStream {
    /// Reads a piece through `file`, which may be open for direct I/O, and sends it.
    fn send_by_reading(
        &self,
        file: BorrowedFd<'_>,
        range: &FileRange,
        piece_len_max: u64,
        deadline: Option<Instant>,
    ) -> io::Result<u64> {
        const ALIGNMENT: u64 = DIRECT_ALIGNMENT as u64;
        let mut buffer = DirectBuffer::take();
        let start = range.range.start;
        let len = range.len().min(piece_len_max).min(buffer.piece_len());
        let aligned_start = start / ALIGNMENT * ALIGNMENT;
        let skipped = (start - aligned_start) as usize;
        let wanted = (skipped as u64 + len).next_multiple_of(ALIGNMENT) as usize;
        let read = fiber::fs::read_at(file, &mut buffer.bytes()[..wanted], aligned_start)?;
        let piece_end = read.min(skipped + len as usize);
        check_last(range, aligned_start + piece_end as u64)?;
        let mut at = skipped;
        while at < piece_end {
            let piece = [IoSlice::new(&buffer.bytes()[at..piece_end])];
            at += either!(self, stream => stream.send(&piece, false, deadline))?;
        }
        Ok(piece_end.saturating_sub(skipped) as u64)
    }
}

/// An aligned buffer of this thread, taken while a piece is read and sent.
struct DirectBuffer(Option<AlignedBuffer>);

/// A piece of the largest size at any offset.
const DIRECT_BUFFER_LEN: usize = DIRECT_PIECE_LEN as usize + DIRECT_ALIGNMENT;

/// How many large buffers a thread has out at once. Peers that do not read pin theirs until they time out; beyond
/// these, pieces and buffers are small.
const DIRECT_BUFFERS_OUT_MAX: usize = 64;
const SMALL_DIRECT_PIECE_LEN: usize = 16 * 1024;

/// As many as misses are usually under way; more are allocated and freed.
const DIRECT_BUFFERS_KEPT_MAX: usize = 16;

thread_local! {
    static DIRECT_BUFFERS: RefCell<Vec<AlignedBuffer>> = const { RefCell::new(Vec::new()) };
    static DIRECT_BUFFERS_OUT: Cell<usize> = const { Cell::new(0) };
}

impl DirectBuffer {
    fn take() -> DirectBuffer {
        let out = DIRECT_BUFFERS_OUT.get();
        if out >= DIRECT_BUFFERS_OUT_MAX {
            let small = SMALL_DIRECT_PIECE_LEN + DIRECT_ALIGNMENT;
            return DirectBuffer(Some(AlignedBuffer::new(small)));
        }
        DIRECT_BUFFERS_OUT.set(out + 1);
        let kept = DIRECT_BUFFERS.with_borrow_mut(Vec::pop);
        DirectBuffer(Some(
            kept.unwrap_or_else(|| AlignedBuffer::new(DIRECT_BUFFER_LEN)),
        ))
    }

    fn bytes(&mut self) -> &mut [u8] {
        self.0.as_mut().expect("taken only by drop")
    }

    /// The longest piece that fits at any offset.
    fn piece_len(&mut self) -> u64 {
        (self.bytes().len() - DIRECT_ALIGNMENT) as u64
    }
}

impl Drop for DirectBuffer {
    fn drop(&mut self) {
        let buffer = self
            .0
            .take()
            .filter(|buffer| buffer.len() == DIRECT_BUFFER_LEN);
        let Some(buffer) = buffer else { return };
        DIRECT_BUFFERS_OUT.set(DIRECT_BUFFERS_OUT.get() - 1);
        DIRECT_BUFFERS.with_borrow_mut(|kept| {
            if kept.len() < DIRECT_BUFFERS_KEPT_MAX {
                kept.push(buffer);
            }
        });
    }
}

/// A connection that a kernel thread carries: plain blocking system calls.
#[derive(Debug)]
pub(crate) struct ThreadStream {
    fd: OwnedFd,
    /// The time-outs that the socket has now, in nanoseconds: setting the same again would be a system
    /// call for nothing.
    receive_timeout: AtomicU64,
    send_timeout: AtomicU64,
}

/// Deadlines are kept to this, so that successive ones give equal time-outs.
const TIMEOUT_STEP: Duration = Duration::from_millis(100);

const RECEIVE_LEN: usize = 16 * 1024;

thread_local! {
    static RECEIVE_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; RECEIVE_LEN]);
}

impl ThreadStream {
    /// Takes a connected blocking socket.
    pub(crate) fn new(fd: OwnedFd) -> ThreadStream {
        let (receive_timeout, send_timeout) = (AtomicU64::new(0), AtomicU64::new(0));
        ThreadStream {
            fd,
            receive_timeout,
            send_timeout,
        }
    }

    fn prepare(&self, which: Timeout, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        // A peer that trickles always has a byte ready: without this it would never be late.
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // Rounded up: never early.
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

    /// Repeats an interrupted call; what the kernel says after a time-out is `EAGAIN`. socket(7)
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
    fn receive<R>(&self, deadline: Instant, f: impl FnOnce(&[u8]) -> R) -> io::Result<R> {
        RECEIVE_BUFFER.with_borrow_mut(|buffer| {
            let len = self.receive_into(buffer, deadline)?;
            Ok(f(&buffer[..len]))
        })
    }

    fn receive_into(&self, room: &mut [u8], deadline: Instant) -> io::Result<usize> {
        self.prepare(Timeout::Recv, deadline)?;
        let (len, _) =
            ThreadStream::call(|| rustix::net::recv(&self.fd, &mut *room, RecvFlags::empty()))?;
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

    fn send_file(&self, range: &FileRange, deadline: Instant) -> io::Result<u64> {
        self.prepare(Timeout::Send, deadline)?;
        let len = range.len().min(FILE_PIECE_LEN_MAX) as usize;
        let mut at = range.range.start;
        let sent = ThreadStream::call(|| {
            rustix::fs::sendfile(&self.fd, range.file.as_fd(), Some(&mut at), len)
        })?;
        Ok(sent as u64)
    }

    fn send_file_copy(&self, range: &FileRange, deadline: Instant) -> io::Result<u64> {
        let mut piece = vec![0; range.len().min(COPIED_PIECE_LEN) as usize];
        let len = ThreadStream::call(|| {
            rustix::io::pread(range.file.as_fd(), &mut piece[..], range.range.start)
        })?;
        check_last(range, range.range.start + len as u64)?;
        let piece = [IoSlice::new(&piece[..len])];
        Ok(self.send(&piece, false, deadline)? as u64)
    }

    fn untaken_len(&self) -> io::Result<u64> {
        untaken_len(self.fd.as_fd())
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
