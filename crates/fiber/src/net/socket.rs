//! One connected stream socket: each operation with its encodings, ring entry and system call, side
//! by side.

use std::cell::RefCell;
use std::fmt;
use std::io::{self, IoSlice};
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use io_uring::opcode;
use io_uring::squeue::{self, Flags};
use io_uring::types::Fd;
use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketAddrAny,
};

use crate::backend::{Backend, Epoll, Interest, LENT_GROUP, RECEIVE_LEN_MAX, ring_len};
use crate::base::clock::{after, earlier};
use crate::base::lock::lock;
use crate::fs;
use crate::io::cancel::checkpoint;
use crate::io::lent::LentBuffer;
use crate::io::op::{Op, sleep};
use crate::io::path::{IoPath, io_path};
use crate::io::ready::{wait_ready, wait_ready_plain, waited};
use crate::io::ring::{has_no_thread, operate, outcome};
use crate::io::{op, ready, ring};
use crate::sched::block::consume_budget;
use crate::sched::processor::{self, Processor};

/// Bytes of a file that one call sends: one fast peer must not keep the processor.
const FILE_PIECE_LEN_MAX: u64 = 1024 * 1024;

/// Pause before another attempt at a Unix listener whose queue is full, and the longest: each
/// further wait is twice as long.
const CONNECT_PAUSE: Duration = Duration::from_millis(1);
const CONNECT_PAUSE_MAX: Duration = Duration::from_millis(32);

/// Longest wait to write to a Unix socket before another attempt. Only an attempt shows that the
/// writing side was shut down, by this process or another one that has the socket.
const SHUT_LOOK: Duration = Duration::from_millis(100);

/// Slices that one system call takes; the rest is for the next. IOV_MAX, readv(2)
const SLICES_MAX: usize = 1024;

/// Expected length for [`Socket::attempt`] with which no attempt counts as short. A short datagram
/// or the end of a file does not mean that readiness has ended. If it were taken for that, the next
/// wait would be for an edge that has come already.
pub(super) const ANY_LEN: usize = 0;

/// Kind of a descriptor, as far as it matters for waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketKind {
    /// A read that is shorter than its buffer was the last one, unless urgent data has come.
    Tcp,
    Udp,
    /// A short read has no meaning: it may have ended at passed descriptors. The kernel does not
    /// notify waiting writers that the writing side was shut down. unix(7)
    Unix,
    /// A short read has no meaning: it may have ended at a line of a terminal, or at a packet of a
    /// pipe.
    Other,
}

#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    kind: SocketKind,
    /// Number of this socket for the epoll back end, since descriptors are reused.
    id: u64,
    /// True if the open file did not block in the beginning.
    began_nonblocking: bool,
    /// Made when it is first needed: most of a server's connections need none.
    shared: OnceLock<Arc<OpenFile>>,
    /// No buffer was to be had for the last receive between two steps: the next one waits without.
    waits_without: AtomicBool,
}

/// State of the open file, which clones share.
///
/// A ring's recv and send wait for sockets in either blocking mode, its recvmsg and read only for
/// files that block (io_uring_enter(2)); calls without a flag of their own (`sendfile(2)`,
/// `read(2)`) must not find a file that blocks.
#[derive(Debug, Default)]
struct OpenFile {
    is_nonblocking: AtomicBool,
    /// Calls under way that must not block. The lock is held while the mode is changed.
    calls: Mutex<usize>,
    /// Nanoseconds; 0 is none.
    read_timeout: AtomicU64,
    write_timeout: AtomicU64,
}

/// While it is there, the file does not block.
pub(super) struct Nonblocking<'a>(&'a OpenFile);

impl Drop for Nonblocking<'_> {
    fn drop(&mut self) {
        // It stays so until a ring needs it otherwise.
        *lock(&self.0.calls) -= 1;
    }
}

/// A number for each socket and listener of this process; never 0.
pub(super) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Socket {
    pub(crate) fn new(fd: OwnedFd, kind: SocketKind) -> Socket {
        let nonblocking = rustix::fs::fcntl_getfl(&fd)
            .is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK));
        Socket::with_mode(fd, nonblocking, kind)
    }

    /// A socket whose mode is known: one system call less.
    pub(super) fn with_mode(fd: OwnedFd, nonblocking: bool, kind: SocketKind) -> Socket {
        Socket {
            fd,
            kind,
            id: next_id(),
            began_nonblocking: nonblocking,
            shared: OnceLock::new(),
            waits_without: AtomicBool::new(false),
        }
    }

    fn shared(&self) -> &Arc<OpenFile> {
        self.shared.get_or_init(|| {
            Arc::new(OpenFile {
                is_nonblocking: AtomicBool::new(self.began_nonblocking),
                ..OpenFile::default()
            })
        })
    }

    /// Connects a new socket.
    pub(super) fn connect(
        fd: OwnedFd,
        address: &SocketAddrAny,
        kind: SocketKind,
    ) -> io::Result<Socket> {
        let socket = Socket::with_mode(fd, false, kind);
        if io_path() == IoPath::Uring {
            let (pointer, len) = (address.as_ptr().cast(), address.addr_len());
            let connect = opcode::Connect::new(socket.ring_fd()?, pointer, len).build();
            match operate(connect, None) {
                // To wait beside the full queue of a Unix listener.
                Err(error) if has_no_thread(&error) => {}
                connected => return connected.map(|_| socket),
            }
        }
        if address.address_family() == AddressFamily::UNIX {
            socket.connect_to_unix(address)?;
            return Ok(socket);
        }
        let begun = {
            let _nonblocking = socket.nonblocking()?;
            rustix::net::connect(&socket.fd, address)
        };
        match begun {
            Ok(()) => return Ok(socket),
            Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        loop {
            socket.wait(Interest::Write, None)?;
            rustix::net::sockopt::socket_error(&socket.fd)??;
            // connect(2): success shows as writable; but a wait may end for no reason.
            if rustix::net::getpeername(&socket.fd) != Err(Errno::NOTCONN) {
                return Ok(socket);
            }
        }
    }

    /// Connects a Unix socket without the ring. The kernel does not report space in the queue of a
    /// listener: only a call that blocks waits for it, as on a plain thread; a fiber retries.
    fn connect_to_unix(&self, address: &SocketAddrAny) -> io::Result<()> {
        let is_plain = io_path() == IoPath::Plain;
        let mut pause = CONNECT_PAUSE;
        loop {
            let connected = if is_plain {
                rustix::net::connect(&self.fd, address)
            } else {
                let _nonblocking = self.nonblocking()?;
                rustix::net::connect(&self.fd, address)
            };
            match connected {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if !is_plain => {
                    sleep(pause);
                    checkpoint()?;
                    pause = (2 * pause).min(CONNECT_PAUSE_MAX);
                }
                connected => return Ok(connected?),
            }
        }
    }

    /// Receives into `buffer`; 0 at the end of the stream.
    pub(super) fn receive_into(
        &self,
        buffer: &mut [u8],
        deadline: Option<Instant>,
    ) -> io::Result<usize> {
        if io_path() == IoPath::Uring {
            loop {
                let len = ring_len(buffer.len());
                let entry = opcode::Recv::new(self.ring_fd()?, buffer.as_mut_ptr(), len).build();
                match operate(entry, deadline) {
                    Ok(completion) => return completion.into_result(),
                    Err(error) => self.retry(error, Interest::Read, deadline)?,
                }
            }
        }
        self.attempt(Interest::Read, buffer.len(), deadline, || {
            let (len, _) = rustix::net::recv(&self.fd, &mut *buffer, RecvFlags::DONTWAIT)?;
            Ok(len)
        })
    }

    /// Receives into a buffer of the processor and shows it to `f`: while it waits, the fiber holds
    /// none.
    pub(super) fn receive<R>(
        &self,
        deadline: Option<Instant>,
        f: impl FnOnce(&[u8]) -> R,
    ) -> io::Result<R> {
        if io_path() == IoPath::Uring {
            let received = self.receive_lent(deadline)?;
            return Ok(f(received.bytes()));
        }
        check_cancelled()?;
        let mut buffer = ScratchBuffer::take();
        let len = loop {
            if self.may_try(Interest::Read) {
                match rustix::net::recv(&self.fd, buffer.bytes(), RecvFlags::DONTWAIT) {
                    Ok((len, _)) => break len,
                    Err(Errno::INTR) => continue,
                    Err(Errno::AGAIN) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            drop(buffer);
            self.wait(Interest::Read, deadline)?;
            buffer = ScratchBuffer::take();
        };
        if len < RECEIVE_LEN_MAX {
            self.note_short_transfer(Interest::Read);
        }
        consume_budget(len);
        Ok(f(&buffer.bytes()[..len]))
    }

    fn receive_lent(&self, deadline: Option<Instant>) -> io::Result<Received> {
        loop {
            let entry = receive_into_lent(self.ring_fd()?);
            // Taken before the wait: the fiber may be on another processor afterwards.
            let owner = processor::here(|p| NonNull::from(p.shared()));
            match operate(entry, deadline) {
                Ok(completion) => return Ok(Received::lent(LentBuffer::of(completion, owner))),
                Err(error) if is_exhausted(&error) => {
                    if let Some(received) = self.receive_unlent()? {
                        return Ok(received);
                    }
                    self.wait(Interest::Read, deadline)?;
                    if let Some(received) = self.receive_unlent()? {
                        return Ok(received);
                    }
                }
                Err(error) => self.retry(error, Interest::Read, deadline)?,
            }
        }
    }

    /// Receives available bytes into a buffer of this thread; `None` if there are none. Used on a
    /// ring when all its lent buffers are in use: others may hold them for long, and no receive is
    /// to wait for that.
    fn receive_unlent(&self) -> io::Result<Option<Received>> {
        let mut buffer = ScratchBuffer::take();
        match rustix::net::recv(&self.fd, buffer.bytes(), RecvFlags::DONTWAIT) {
            Ok((len, _)) => Ok(Some(Received::Scratch(buffer, len))),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Receives available bytes, if that saves an operation of the ring. Epoll's first receive is a
    /// call like this anyway.
    pub(super) fn receive_now<R>(&self, f: impl FnOnce(&[u8]) -> R) -> io::Result<Option<R>> {
        if io_path() != IoPath::Uring {
            return Ok(None);
        }
        check_cancelled()?;
        let Some(received) = self.receive_unlent()? else {
            return Ok(None);
        };
        let len = received.bytes().len();
        let shown = f(received.bytes());
        drop(received);
        consume_budget(len);
        Ok(Some(shown))
    }

    /// Begins a receive whose operation waits between two steps of a fiber. `false` if an attempt
    /// may succeed at once.
    pub(crate) fn begin_receive(&self, op: &Op, deadline: Option<Instant>) -> io::Result<bool> {
        processor::here(|processor| self.begin_receive_on(processor, op, deadline))
    }

    fn begin_receive_on(
        &self,
        processor: &Processor,
        op: &Op,
        deadline: Option<Instant>,
    ) -> io::Result<bool> {
        match &processor.backend {
            Backend::Uring(uring) => {
                let entry = if self.waits_without.swap(false, Ordering::Relaxed) {
                    self.poll_entry(Interest::Read)
                } else {
                    receive_into_lent(self.ring_fd()?)
                };
                ring::begin(processor, uring, op, entry, deadline);
            }
            Backend::Epoll(epoll) => {
                let (fd, interest) = (self.fd.as_fd(), Interest::Read);
                if epoll.may_try(fd, self.id, interest) {
                    return Ok(false);
                }
                ready::begin(processor, epoll, fd, self.id, interest, op, deadline)?;
            }
        }
        Ok(true)
    }

    /// Takes the result of the receive, in the step after it; `None` if it has to be begun again.
    /// `lent` is the buffer that the operation took, if any.
    pub(crate) fn end_receive(
        &self,
        op: &Op,
        lent: Option<LentBuffer>,
        deadline: Option<Instant>,
    ) -> io::Result<Option<Received>> {
        if io_path() == IoPath::Uring {
            let completion = op.completion().expect("a step begins when its operation is over");
            return match outcome(op, completion) {
                // Without a buffer, the ring has reported readiness and no data.
                Ok(completion) if completion.result > 0 && lent.is_none() => self.receive_unlent(),
                Ok(_) => Ok(Some(Received::lent(lent))),
                Err(error) if is_exhausted(&error) => {
                    let received = self.receive_unlent()?;
                    let is_none = received.is_none();
                    self.waits_without.store(is_none, Ordering::Relaxed);
                    Ok(received)
                }
                Err(error) => self.retry(error, Interest::Read, deadline).map(|()| None),
            };
        }
        if op.is_relocated() {
            return Ok(None);
        }
        if let Some(completion) = op.completion() {
            waited(completion)?;
        }
        check_cancelled()?;
        let mut buffer = ScratchBuffer::take();
        match rustix::net::recv(&self.fd, buffer.bytes(), RecvFlags::DONTWAIT) {
            Ok((len, _)) => {
                if len < RECEIVE_LEN_MAX {
                    self.note_short_transfer(Interest::Read);
                }
                Ok(Some(Received::Scratch(buffer, len)))
            }
            Err(Errno::AGAIN) => {
                // Registers the socket, or the next attempt would follow at once.
                self.register()?;
                self.used_up(Interest::Read);
                Ok(None)
            }
            Err(Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends what it can of `slices`; `more` says that the rest of the message follows at once, so
    /// that the kernel does not send a small segment (MSG_MORE, send(2)).
    pub(super) fn send(
        &self,
        slices: &[IoSlice<'_>],
        more: bool,
        deadline: Option<Instant>,
    ) -> io::Result<usize> {
        let slices = &slices[..slices.len().min(SLICES_MAX)];
        let mut flags = SendFlags::NOSIGNAL;
        flags.set(SendFlags::MORE, more);
        // Bytes before a file go out now: the ring would cost a turn between the two.
        if io_path() == IoPath::Uring && !more {
            // WAITALL: the kernel itself continues a short send.
            let flags = flags.bits() as i32 | libc::MSG_WAITALL;
            return loop {
                match self.send_by_ring(slices, flags, deadline) {
                    Err(error) => self.retry(error, Interest::Write, deadline)?,
                    sent => break sent,
                }
            };
        }
        let len = slices.iter().map(|slice| slice.len()).sum();
        self.attempt(Interest::Write, len, deadline, || {
            let flags = flags | SendFlags::DONTWAIT;
            if let [slice] = slices {
                return rustix::net::send(&self.fd, slice, flags);
            }
            rustix::net::sendmsg(&self.fd, slices, &mut SendAncillaryBuffer::default(), flags)
        })
    }

    fn send_by_ring(
        &self,
        slices: &[IoSlice<'_>],
        flags: i32,
        deadline: Option<Instant>,
    ) -> io::Result<usize> {
        // SAFETY: an all-zero msghdr is valid: no name, no slices, no control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        let fd = self.ring_fd()?;
        let entry = if let [slice] = slices {
            let len = ring_len(slice.len());
            opcode::Send::new(fd, slice.as_ptr(), len).flags(flags).build()
        } else {
            // IoSlice has the layout of iovec (its documentation says so).
            message.msg_iov = slices.as_ptr().cast_mut().cast();
            message.msg_iovlen = slices.len() as _;
            opcode::SendMsg::new(fd, &raw const message).flags(flags as u32).build()
        };
        operate(entry, deadline)?.into_result()
    }

    /// Same as [`send`](Socket::send), but fails with `WouldBlock` instead of waiting.
    pub(super) fn try_send(&self, slices: &[IoSlice<'_>], more: bool) -> io::Result<usize> {
        check_cancelled()?;
        let slices = &slices[..slices.len().min(SLICES_MAX)];
        let mut flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        flags.set(SendFlags::MORE, more);
        let len = if io_path() == IoPath::Uring && !more {
            self.send_by_ring(slices, flags.bits() as i32, None)?
        } else {
            let wanted_len = slices.iter().map(|slice| slice.len()).sum();
            let ancillary = &mut SendAncillaryBuffer::default();
            let sent = rustix::net::sendmsg(&self.fd, slices, ancillary, flags);
            self.attempted(Interest::Write, wanted_len, sent)?
        };
        consume_budget(len);
        Ok(len)
    }

    /// Same as [`receive`](Socket::receive), but fails with `WouldBlock` instead of waiting.
    pub(super) fn try_receive<R>(&self, f: impl FnOnce(&[u8]) -> R) -> io::Result<R> {
        check_cancelled()?;
        let mut buffer = ScratchBuffer::take();
        let received = rustix::net::recv(&self.fd, buffer.bytes(), RecvFlags::DONTWAIT);
        let received = received.map(|(len, _)| len);
        let len = self.attempted(Interest::Read, RECEIVE_LEN_MAX, received)?;
        let shown = f(&buffer.bytes()[..len]);
        drop(buffer);
        consume_budget(len);
        Ok(shown)
    }

    /// Result of an attempt that does not wait. A short or failed one forgets the edge, so that a
    /// later wait for both directions sees only newer edges.
    fn attempted(
        &self,
        interest: Interest,
        wanted_len: usize,
        result: Result<usize, Errno>,
    ) -> io::Result<usize> {
        match result {
            Err(Errno::AGAIN) => self.used_up(interest),
            Ok(len) if len < wanted_len => self.note_short_transfer(interest),
            _ => {}
        }
        Ok(result?)
    }

    /// Waits until a send or a receive may succeed, after both could not; may return for no reason.
    pub(super) fn wait_either(&self, deadline: Option<Instant>) -> io::Result<()> {
        self.wait(Interest::Either, deadline)
    }

    /// Sends up to `len` bytes from `offset` of a file that the caller knows to be in the page
    /// cache. Returns how many; 0 if the file ends there.
    pub(super) fn send_cached_file(
        &self,
        file: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        deadline: Option<Instant>,
    ) -> io::Result<u64> {
        fs::check_offset(offset)?;
        let len = len.min(FILE_PIECE_LEN_MAX);
        // Before, not after: the caller may hold the last packet back until this returns.
        consume_budget(len as usize);
        // A short count may mean the end of the file, with space left in the socket: only EAGAIN
        // means that it is full.
        let sent = self.try_until_ready(Interest::Write, ANY_LEN, deadline, || {
            let _nonblocking = self.nonblocking()?;
            let mut at = offset;
            rustix::fs::sendfile(&self.fd, file, Some(&mut at), len as usize)
        })?;
        Ok(sent as u64)
    }

    /// Tries a system call that does not wait, and waits for readiness as often as it must.
    pub(super) fn attempt(
        &self,
        interest: Interest,
        wanted_len: usize,
        deadline: Option<Instant>,
        call: impl FnMut() -> Result<usize, Errno>,
    ) -> io::Result<usize> {
        let len = self.try_until_ready(interest, wanted_len, deadline, call)?;
        consume_budget(len);
        Ok(len)
    }

    /// Same as [`attempt`](Socket::attempt), without yielding to other fibers afterwards.
    fn try_until_ready(
        &self,
        interest: Interest,
        wanted_len: usize,
        deadline: Option<Instant>,
        mut call: impl FnMut() -> Result<usize, Errno>,
    ) -> io::Result<usize> {
        check_cancelled()?;
        loop {
            if self.may_try(interest) {
                match call() {
                    Ok(len) => {
                        if len < wanted_len {
                            self.note_short_transfer(interest);
                        }
                        return Ok(len);
                    }
                    Err(Errno::INTR) => continue,
                    Err(Errno::AGAIN) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            self.wait(interest, deadline)?;
        }
    }

    /// Handles a failed operation of the ring: waits if the socket was only non-blocking (another
    /// fiber sends a file on it), or the call interrupted. Else returns the error.
    pub(super) fn retry(
        &self,
        error: io::Error,
        interest: Interest,
        deadline: Option<Instant>,
    ) -> io::Result<()> {
        match error.raw_os_error() {
            Some(libc::EAGAIN) => self.wait(interest, deadline),
            Some(libc::EINTR) => Ok(()),
            _ => Err(error),
        }
    }

    /// Waits until there is something to read, or an end; may return for no reason.
    pub(crate) fn wait_readable(&self) -> io::Result<()> {
        self.wait(Interest::Read, None)
    }

    /// Waits until an attempt may succeed, after one that could not; may return for no reason.
    pub(super) fn wait(&self, interest: Interest, deadline: Option<Instant>) -> io::Result<()> {
        if self.kind != SocketKind::Unix || interest == Interest::Read {
            return self.wait_until(interest, deadline);
        }
        let of_fiber = processor::with_current(|_, fiber| fiber.deadline()).flatten();
        let deadline = earlier(deadline, of_fiber);
        let check_at = Some(after(SHUT_LOOK));
        match self.wait_until(interest, earlier(deadline, check_at)) {
            Err(error)
                if error.kind() == io::ErrorKind::TimedOut
                    && deadline.is_none_or(|deadline| Instant::now() < deadline) =>
            {
                self.try_again(interest);
                Ok(())
            }
            result => result,
        }
    }

    fn wait_until(&self, interest: Interest, deadline: Option<Instant>) -> io::Result<()> {
        match io_path() {
            IoPath::Uring => match operate(self.poll_entry(interest), deadline) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                result => result.map(drop),
            },
            // The attempt at the other direction may have been before a suspension.
            IoPath::Epoll if interest == Interest::Either && self.has_edge() => {
                consume_budget(ANY_LEN);
                Ok(())
            }
            IoPath::Epoll => {
                self.used_up(interest);
                wait_ready(self.fd.as_fd(), self.id, interest, deadline)
            }
            IoPath::Plain => wait_ready_plain(self.fd.as_fd(), interest, deadline),
        }
    }

    /// Waits until an attempt may succeed, and returns at once if it may already: epoll reports an
    /// edge once, and the caller may have left something to read, or space to write.
    pub(super) fn wait_unless_ready(
        &self,
        interest: Interest,
        deadline: Option<Instant>,
    ) -> io::Result<()> {
        check_cancelled()?;
        let is_ready = || {
            let now = Some(Instant::now());
            wait_ready_plain(self.fd.as_fd(), interest, now).is_ok()
        };
        if io_path() == IoPath::Epoll && is_ready() {
            Ok(())
        } else {
            self.wait(interest, deadline)
        }
    }

    fn poll_entry(&self, interest: Interest) -> squeue::Entry {
        let events = match interest {
            Interest::Read => libc::POLLIN,
            Interest::Write => libc::POLLOUT,
            Interest::Either => libc::POLLIN | libc::POLLOUT,
        };
        opcode::PollAdd::new(Fd(self.fd.as_raw_fd()), events as u32).build()
    }

    fn may_try(&self, interest: Interest) -> bool {
        self.with_epoll(|epoll, fd, id| epoll.may_try(fd, id, interest)).unwrap_or(true)
    }

    /// True if an edge has come since the last attempt in its direction.
    fn has_edge(&self) -> bool {
        self.with_epoll(Epoll::has_edge).unwrap_or(false)
    }

    fn register(&self) -> io::Result<()> {
        processor::here(|processor| match &processor.backend {
            Backend::Epoll(epoll) => epoll.register(self.fd.as_fd(), self.id, false),
            Backend::Uring(_) => Ok(()),
        })
    }

    /// Notes that a call moved less than it might have.
    fn note_short_transfer(&self, interest: Interest) {
        let is_urgent = || self.with_epoll(Epoll::has_urgent).unwrap_or(false);
        let is_all = self.kind == SocketKind::Tcp;
        if interest != Interest::Read || (is_all && !is_urgent()) {
            self.used_up(interest);
        }
    }

    /// Makes the next attempt happen although no edge has come.
    fn try_again(&self, interest: Interest) {
        self.with_epoll(|epoll, fd, id| epoll.try_again(fd, id, interest));
    }

    fn used_up(&self, interest: Interest) {
        self.with_epoll(|epoll, fd, id| epoll.used_up(fd, id, interest));
    }

    /// Calls `f` with this processor's epoll and the names of this socket there; `None` on a ring
    /// and on a plain thread.
    #[inline]
    fn with_epoll<R>(&self, f: impl FnOnce(&Epoll, BorrowedFd<'_>, u64) -> R) -> Option<R> {
        let found = processor::with_current(|processor, _| match &processor.backend {
            Backend::Epoll(epoll) => Some(f(epoll, self.fd.as_fd(), self.id)),
            Backend::Uring(_) => None,
        });
        found.flatten()
    }

    /// Descriptor for a ring entry that receives, sends or reads; a non-socket must block.
    pub(super) fn ring_fd(&self) -> io::Result<Fd> {
        match self.kind {
            SocketKind::Other => self.blocking_fd(),
            _ => Ok(Fd(self.fd.as_raw_fd())),
        }
    }

    /// The descriptor for a ring entry that waits only if the file blocks. It does, unless another
    /// fiber or thread is in a call that must not: the entry then fails with EAGAIN, and
    /// [`retry`](Socket::retry) waits.
    pub(super) fn blocking_fd(&self) -> io::Result<Fd> {
        let shared = self.shared();
        if shared.is_nonblocking.load(Ordering::Relaxed) {
            let calls = lock(&shared.calls);
            if *calls == 0 {
                rustix::io::ioctl_fionbio(&self.fd, false)?;
                shared.is_nonblocking.store(false, Ordering::Relaxed);
            }
        }
        Ok(Fd(self.fd.as_raw_fd()))
    }

    /// Makes calls non-blocking until the guard is dropped.
    pub(super) fn nonblocking(&self) -> Result<Nonblocking<'_>, Errno> {
        let shared = self.shared();
        let mut calls = lock(&shared.calls);
        if !shared.is_nonblocking.load(Ordering::Relaxed) {
            rustix::io::ioctl_fionbio(&self.fd, true)?;
            shared.is_nonblocking.store(true, Ordering::Relaxed);
        }
        *calls += 1;
        Ok(Nonblocking(shared))
    }

    pub(super) fn shutdown(&self, how: std::net::Shutdown) -> io::Result<()> {
        let how = match how {
            std::net::Shutdown::Read => Shutdown::Read,
            std::net::Shutdown::Write => Shutdown::Write,
            std::net::Shutdown::Both => Shutdown::Both,
        };
        Ok(rustix::net::shutdown(&self.fd, how)?)
    }

    pub(super) fn set_timeout(
        &self,
        interest: Interest,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        if timeout == Some(Duration::ZERO) {
            let message = "the time-out is zero; pass None for no time-out";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let nanos =
            timeout.map_or(0, |timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        self.shared().timeout(interest).store(nanos, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn timeout(&self, interest: Interest) -> Option<Duration> {
        let nanos = self.shared.get()?.timeout(interest).load(Ordering::Relaxed);
        (nanos != 0).then(|| Duration::from_nanos(nanos))
    }

    /// Takes the time-outs over that the kernel has of a socket of std's. It heeds them only in
    /// calls that block.
    pub(super) fn take_timeouts_over(&self) {
        let both = [(Interest::Read, Timeout::Recv), (Interest::Write, Timeout::Send)];
        for (interest, option) in both {
            if let Ok(Some(timeout)) = rustix::net::sockopt::socket_timeout(&self.fd, option) {
                // It is above zero, so it is taken.
                let _ = self.set_timeout(interest, Some(timeout));
            }
        }
    }

    pub(super) fn read_deadline(&self) -> Option<Instant> {
        self.timeout(Interest::Read).map(after)
    }

    pub(super) fn write_deadline(&self) -> Option<Instant> {
        self.timeout(Interest::Write).map(after)
    }

    pub(super) fn try_clone(&self) -> io::Result<Socket> {
        let clone = Socket::with_mode(self.fd.try_clone()?, false, self.kind);
        let shared = Arc::clone(self.shared());
        clone.shared.set(shared).expect("it has none yet");
        Ok(clone)
    }
}

impl OpenFile {
    fn timeout(&self, interest: Interest) -> &AtomicU64 {
        match interest {
            Interest::Read => &self.read_timeout,
            Interest::Write | Interest::Either => &self.write_timeout,
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Source of input: see [`TcpStream::source`](crate::net::TcpStream::source).
#[derive(Clone, Copy, Debug)]
pub struct Source<'a>(pub(crate) &'a Socket);

impl Drop for Socket {
    fn drop(&mut self) {
        let is_shared = (self.shared.get()).is_some_and(|shared| Arc::strong_count(shared) > 1);
        let leave = if is_shared { Epoll::remove } else { Epoll::forget };
        self.with_epoll(leave);
    }
}

/// A receive into whichever buffer the kernel picks.
fn receive_into_lent(fd: Fd) -> squeue::Entry {
    opcode::Recv::new(fd, std::ptr::null_mut(), 0)
        .buf_group(LENT_GROUP)
        .build()
        .flags(Flags::BUFFER_SELECT)
}

/// True if a receive found no lent buffer free; counts it.
fn is_exhausted(error: &io::Error) -> bool {
    let is_exhausted = error.raw_os_error() == Some(libc::ENOBUFS);
    if is_exhausted {
        processor::here(|p| p.shared().counters.buffers_exhausted.add(1));
    }
    is_exhausted
}

/// Received bytes, in a buffer that the runtime takes back when this is dropped. Drop it soon:
/// there are few, and when all are in use a receive costs two system calls more. Empty is the end
/// of the stream.
///
/// The buffer is borrowed for the step. What is to stay must be copied, because the buffer is the
/// runtime's and goes with it:
///
/// ```compile_fail,E0521
/// use weftwork_fiber::net::Input;
///
/// thread_local! {
///     static KEPT: std::cell::RefCell<Vec<Input<'static>>> = Default::default();
/// }
///
/// struct Keeps;
/// impl weftwork_fiber::Stackless for Keeps {
///     fn received(&mut self, input: std::io::Result<Input<'_>>) -> weftwork_fiber::Flow {
///         KEPT.with_borrow_mut(|kept| kept.extend(input.ok()));
///         weftwork_fiber::Flow::Receive
///     }
/// }
/// ```
///
/// A leak cannot keep it for longer either:
///
/// ```compile_fail,E0521
/// use weftwork_fiber::net::Input;
///
/// struct Leaks(Option<&'static [u8]>);
/// impl weftwork_fiber::Stackless for Leaks {
///     fn received(&mut self, input: std::io::Result<Input<'_>>) -> weftwork_fiber::Flow {
///         self.0 = input.ok().map(|input| &**Box::leak(Box::new(input)));
///         weftwork_fiber::Flow::Receive
///     }
/// }
/// ```
pub struct Input<'a>(&'a mut Received);

impl<'a> Input<'a> {
    pub(crate) fn of(received: &'a mut Received) -> Input<'a> {
        Input(received)
    }
}

impl Drop for Input<'_> {
    fn drop(&mut self) {
        *self.0 = Received::Nothing;
    }
}

impl Deref for Input<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// Owner of received bytes, in a frame of the runtime: the buffer is given back whatever the user
/// does with the [`Input`].
pub(crate) enum Received {
    Nothing,
    Lent(LentBuffer),
    Scratch(ScratchBuffer, usize),
}

impl Received {
    fn lent(buffer: Option<LentBuffer>) -> Received {
        buffer.map_or(Received::Nothing, Received::Lent)
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Received::Nothing => &[],
            Received::Lent(buffer) => buffer.bytes(),
            Received::Scratch(buffer, len) => buffer.filled(*len),
        }
    }
}

impl fmt::Debug for Input<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Input({} bytes)", self.len())
    }
}

/// Attempts that succeed at once are suspension points as well, or a fiber whose peer is always
/// ready could not be cancelled.
pub(super) fn check_cancelled() -> io::Result<()> {
    let fiber = processor::with_current(|_, fiber| fiber);
    fiber.map_or(Ok(()), op::check_cancelled)
}

/// A receive buffer of this thread, for back ends that do not lend the kernel's.
pub(crate) struct ScratchBuffer(Option<Scratch>);

type Scratch = Box<[u8; RECEIVE_LEN_MAX]>;

thread_local! {
    static SCRATCH: RefCell<Vec<Scratch>> = const { RefCell::new(Vec::new()) };
}

/// Limit on cached scratch buffers. Few are in use: only callbacks that suspend keep one.
const SCRATCH_KEPT_MAX: usize = 4;

impl ScratchBuffer {
    #[inline(never)]
    fn take() -> ScratchBuffer {
        let kept = SCRATCH.with_borrow_mut(Vec::pop);
        ScratchBuffer(Some(kept.unwrap_or_else(|| Box::new([0; RECEIVE_LEN_MAX]))))
    }
}

impl ScratchBuffer {
    fn bytes(&mut self) -> &mut [u8] {
        &mut self.0.as_mut().expect("taken only by drop")[..]
    }

    fn filled(&self, len: usize) -> &[u8] {
        &self.0.as_ref().expect("taken only by drop")[..len]
    }
}

impl Drop for ScratchBuffer {
    #[inline(never)]
    fn drop(&mut self) {
        SCRATCH.with_borrow_mut(|kept| {
            if kept.len() < SCRATCH_KEPT_MAX {
                kept.extend(self.0.take());
            }
        });
    }
}
