//! What a driver needs of a connection, and the two kinds that the blocking driver has: a fiber's
//! and a kernel thread's.

mod gathered;

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fiber::net::{FILE_PIECE_LEN_MAX, TcpStream, UnixStream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use session::{FileRange, Outbox};

use crate::carriage::{FilePiece, Look, SEALED_LEN_MAX, Untaken};
use crate::file::{self, COPIED_PIECE_LEN, ReadPiece, Way};
pub(crate) use gathered::Gathered;

/// A connected byte stream. Every wait has a deadline.
pub(crate) trait Stream: Send + Sync + 'static {
    /// Waits for input and shows it to `f`, in a buffer of the thread that carries the stream; an
    /// empty slice is the end.
    ///
    /// # Errors
    /// `TimedOut` past the deadline; else what `recv(2)` reports.
    fn receive<R>(&self, deadline: Instant, f: impl FnOnce(&[u8]) -> R) -> io::Result<R>;

    /// Waits for input and puts it into `room`; 0 is the end.
    ///
    /// # Errors
    /// As [`receive`](Stream::receive).
    fn receive_into(&self, room: &mut [u8], deadline: Instant) -> io::Result<usize>;

    /// Sends what it can of `slices`; `more` says that a file or the end of the
    /// stream follows at once.
    ///
    /// # Errors
    /// `TimedOut` past the deadline if nothing was sent; else what `sendmsg(2)` reports.
    fn send(&self, slices: &[IoSlice<'_>], more: bool, deadline: Instant) -> io::Result<usize>;

    /// Sends what it can of a piece of a file. 0 if the file ends there, or has changed.
    ///
    /// # Errors
    /// As [`send`](Stream::send).
    fn send_file(&self, piece: &FilePiece<'_>) -> io::Result<u64>;

    /// As [`send_file`](Stream::send_file), but sends a copy of the first `len_max` bytes. The last
    /// bytes of the range leave only if the file's stamp is still the same after they were read.
    ///
    /// # Errors
    /// As [`send`](Stream::send); `InvalidData` if the file has changed.
    fn send_file_copy(
        &self,
        range: &FileRange,
        len_max: u64,
        deadline: Instant,
    ) -> io::Result<u64> {
        let piece = file::read(range, Way::Read, len_max.min(COPIED_PIECE_LEN))?;
        match piece.is_empty() {
            true => Ok(0),
            false => Ok(self.send(&[IoSlice::new(&piece)], false, deadline)? as u64),
        }
    }

    /// How many of the bytes that were sent the peer's side has not taken, when the look is due:
    /// over TCP not acknowledged, on a Unix socket not read.
    ///
    /// # Errors
    /// `BrokenPipe` if it will never take more.
    fn untaken(&self, look: &Look) -> io::Result<Untaken>;

    /// Reads the beginning of a range of a file, as far as TLS makes records of it at a time.
    /// Nothing if the file ends there.
    ///
    /// # Errors
    /// What `pread(2)` reports.
    fn read_file(&self, range: &FileRange) -> io::Result<ReadPiece>;

    /// Ends reading, writing or both, and wakes what waits in them. From any thread.
    ///
    /// # Errors
    /// What `shutdown(2)` reports: the peer may be gone already.
    fn shutdown(&self, how: Shutdown) -> io::Result<()>;

    /// The peer's address, if it has one.
    fn peer(&self) -> Option<SocketAddr>;
}

/// Sends the chunks in memory up to the next file. Says how many bytes the peer took, and whether
/// that is all. The end of the stream leaves with the last byte, if that is the last of all.
#[inline]
pub(crate) fn send_out<T: Stream>(
    stream: &T,
    out: &Outbox,
    until: Instant,
    is_last: bool,
) -> (io::Result<u64>, bool) {
    let mut gathered = Gathered::new();
    gathered.gather(out, is_last);
    let sent = stream.send(gathered.slices(), gathered.more_follows, until);
    let is_all = matches!(sent, Ok(len) if len == gathered.len);
    if gathered.ends && is_all {
        // The peer may be gone already; that is nothing new to what comes next.
        let _ = stream.shutdown(Shutdown::Write);
    }
    (sent.map(|len| len as u64), is_all)
}

/// Sends `bytes` in as many sends as it takes. Says how many were taken, if an error comes after
/// some: it will come again.
///
/// # Errors
/// As `send`, if nothing was sent.
fn send_whole(bytes: &[u8], mut send: impl FnMut(&[u8]) -> io::Result<usize>) -> io::Result<u64> {
    let mut at = 0;
    while at < bytes.len() {
        match send(&bytes[at..]) {
            Ok(len) => at += len,
            Err(_) if at > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(at as u64)
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

    fn send_file(&self, piece: &FilePiece<'_>) -> io::Result<u64> {
        if file::has_changed(piece) {
            return Ok(0);
        }
        let FilePiece {
            range,
            len,
            until: deadline,
            ..
        } = *piece;
        let (file, start) = (range.file.as_fd(), range.range.start);
        match file::way(range) {
            Way::Cached => {
                either!(self, stream => stream.send_cached_file(file, start, len, Some(deadline)))
            }
            Way::Read => {
                either!(self, stream => stream.send_file(file, start, len, Some(deadline)))
            }
            way @ Way::Direct(_) => {
                let piece = file::read(range, way, len)?;
                send_whole(&piece, |rest| {
                    self.send(&[IoSlice::new(rest)], false, deadline)
                })
            }
        }
    }

    fn untaken(&self, look: &Look) -> io::Result<Untaken> {
        match look.all_was_sent {
            true => fiber::sleep(look.after),
            false => {
                let until = Instant::now() + look.after;
                match either!(self, stream => stream.wait_writable(Some(until))) {
                    Err(error) if error.kind() != io::ErrorKind::TimedOut => return Err(error),
                    _ => {}
                }
            }
        }
        either!(self, stream => untaken(stream.as_fd(), look))
    }

    fn read_file(&self, range: &FileRange) -> io::Result<ReadPiece> {
        file::read(range, file::way(range), SEALED_LEN_MAX as u64)
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

/// Looks at the bytes in a socket's send queue, as long as a peer may take them. Unless all of them
/// have left the socket, it is not writable until they have.
pub(crate) fn untaken(socket: BorrowedFd<'_>, look: &Look) -> io::Result<Untaken> {
    // A Unix socket has no such option. It is writable when its peer has read most of what was
    // sent.
    let report_when_sent = |is_on| {
        let _ = set_tcp_notsent_lowat(socket, is_on);
    };
    let mut len: libc::c_int = 0;
    // SAFETY: SIOCOUTQ writes an int. tcp(7), unix(7)
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut len) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let len = len as u64;
    report_when_sent(len > look.enough);
    let reported = poll_for(socket, PollFlags::OUT, Duration::ZERO)?;
    // Reset, or shut down both ways: reported whether it is asked for or not. poll(2)
    if reported.intersects(PollFlags::ERR | PollFlags::HUP) {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    let all_is_sent = len <= look.enough || reported.contains(PollFlags::OUT);
    if all_is_sent && len > look.enough {
        report_when_sent(false);
    }
    Ok(Untaken { len, all_is_sent })
}

/// Whether the socket counts as writable only when all that was sent has left it: less than one
/// byte may wait then. Otherwise the system's setting decides. tcp(7), `TCP_NOTSENT_LOWAT`
fn set_tcp_notsent_lowat(socket: BorrowedFd<'_>, is_on: bool) -> io::Result<()> {
    let bytes = libc::c_int::from(is_on);
    // SAFETY: the option is an int, which is what is passed.
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

fn poll_for(socket: BorrowedFd<'_>, flags: PollFlags, wait: Duration) -> io::Result<PollFlags> {
    let mut fds = [PollFd::new(&socket, flags)];
    let wait = Timespec {
        tv_sec: wait.as_secs() as i64,
        tv_nsec: wait.subsec_nanos().into(),
    };
    poll(&mut fds, Some(&wait))?;
    Ok(fds[0].revents())
}

/// A connection that a kernel thread carries: plain blocking system calls.
#[derive(Debug)]
pub(crate) struct ThreadStream {
    fd: OwnedFd,
    /// The time-outs that the socket has now, in nanoseconds: setting the same again would be a
    /// system call for nothing.
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

    fn send_file(&self, piece: &FilePiece<'_>) -> io::Result<u64> {
        if file::has_changed(piece) {
            return Ok(0);
        }
        self.prepare(Timeout::Send, piece.until)?;
        let range = piece.range;
        let len = piece.len.min(FILE_PIECE_LEN_MAX) as usize;
        let mut at = range.range.start;
        let sent = ThreadStream::call(|| {
            rustix::fs::sendfile(&self.fd, range.file.as_fd(), Some(&mut at), len)
        })?;
        Ok(sent as u64)
    }

    fn untaken(&self, look: &Look) -> io::Result<Untaken> {
        match look.all_was_sent {
            true => std::thread::sleep(look.after),
            false => {
                let _ = poll_for(self.fd.as_fd(), PollFlags::OUT, look.after);
            }
        }
        untaken(self.fd.as_fd(), look)
    }

    fn read_file(&self, range: &FileRange) -> io::Result<ReadPiece> {
        file::read(range, Way::Read, SEALED_LEN_MAX as u64)
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

#[cfg(test)]
pub(crate) mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// Sockets full of what their peers have not read.
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

    /// Reads all that comes.
    pub(crate) fn drain(peer: OwnedFd) {
        let mut peer = std::fs::File::from(peer);
        thread::spawn(move || while let Ok(1..) = peer.read(&mut [0; 65536]) {});
    }

    pub(crate) const AT_ONCE: Look = Look {
        after: Duration::ZERO,
        all_was_sent: true,
        enough: 0,
    };
    pub(crate) const WHEN_SENT: Look = Look {
        after: Duration::from_secs(3600),
        all_was_sent: false,
        ..AT_ONCE
    };

    /// Seen: a client that paused while it took a large file got its last 16 KiB up to 250 ms later
    /// than it could have. Cause: looks at what it had taken, the rarer the longer it paused. Cure:
    /// the socket reports that it has sent all.
    #[test]
    fn a_look_is_due_when_the_socket_has_sent_all() {
        fn look<T: Stream>(stream: T, peer: OwnedFd) {
            let found = stream.untaken(&AT_ONCE).unwrap();
            assert!(found.len > 0 && !found.all_is_sent, "{found:?}");
            drain(peer);
            let (tell, told) = mpsc::channel();
            thread::spawn(move || tell.send(stream.untaken(&WHEN_SENT)));
            let found = told.recv_timeout(Duration::from_secs(30)).unwrap();
            assert!(found.unwrap().all_is_sent);
        }
        for (near, peer) in full() {
            look(ThreadStream::new(near), peer);
        }
        let [(tcp, tcp_peer), (unix, unix_peer)] = full();
        look(FiberStream::Tcp(tcp.into()), tcp_peer);
        look(FiberStream::Unix(unix.into()), unix_peer);
    }

    /// Otherwise every later reply would have to leave the socket before the next bytes may enter.
    #[test]
    fn a_socket_whose_end_is_near_is_as_it_was() {
        let lowat = |socket: &OwnedFd| {
            let (mut bytes, mut len) = (-1, size_of::<libc::c_int>() as libc::socklen_t);
            let (level, name) = (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT);
            let (bytes_at, fd) = ((&raw mut bytes).cast(), socket.as_raw_fd());
            // SAFETY: the option is an int, for which there is room.
            let got = unsafe { libc::getsockopt(fd, level, name, bytes_at, &raw mut len) };
            assert_eq!(got, 0);
            bytes
        };
        let [(tcp, _peer), _] = full();
        untaken(tcp.as_fd(), &AT_ONCE).unwrap();
        assert_eq!(lowat(&tcp), 1);
        let enough = u64::MAX;
        let found = untaken(tcp.as_fd(), &Look { enough, ..AT_ONCE });
        assert!(found.unwrap().all_is_sent);
        assert_eq!(lowat(&tcp), 0);
    }

    /// Seen: a client that took a rare file of some MB at 3 KB/s was closed as too slow, although
    /// 500 bytes a second are enough. Cause: all of a piece of 256 KiB had to go within one send
    /// time-out; what had been taken before it was over was not told. Cure: it is told, and the
    /// rate is judged by it.
    #[test]
    fn what_was_taken_before_an_error_is_told() {
        let script = |answers: &[io::Result<usize>]| {
            let mut answers = answers.iter();
            send_whole(&[0; 100], |rest| match answers.next().unwrap() {
                Ok(len) => Ok((*len).min(rest.len())),
                Err(error) => Err(error.kind().into()),
            })
        };
        let late = || Err(io::ErrorKind::TimedOut.into());
        assert_eq!(script(&[Ok(60), Ok(100)]).unwrap(), 100);
        assert_eq!(script(&[Ok(60), Ok(1), late()]).unwrap(), 61);
        let kind = script(&[late()]).unwrap_err().kind();
        assert_eq!(kind, io::ErrorKind::TimedOut);
    }
}
