//! Socket of a connection. No call on it blocks: it returns the necessary wait instead.

use std::io::{self, IoSlice};
use std::mem;
use std::ops::ControlFlow::{self, Break, Continue};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use bytes::Bytes;
use event::Readiness;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};
use session::{Now, Outbox};

use crate::buffers::PIECE_LEN_MAX;
use crate::connection::{FilePiece, FileProgress, Unacked, UnackedCheck};
use crate::counters::Closed;
use crate::file::{self, COPIED_PIECE_LEN, DiskRead};
use crate::stream::{self, Gathered};

/// Event or time that a connection waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// Input.
    Input { until: Instant },
    /// Space in the socket's buffer.
    Writable { until: Instant },
    /// Input, or space in the socket's buffer.
    Either { until: Instant },
    /// A point in time.
    Time { until: Instant },
    /// A thread that works or reads for the connection.
    Thread,
    /// Its next turn.
    Turn,
    /// Nothing: the connection ends.
    End(Closed),
}

impl Wait {
    /// Deadline of the wait, if it has one.
    pub(crate) fn until(&self) -> Option<Instant> {
        match *self {
            Wait::Input { until }
            | Wait::Writable { until }
            | Wait::Either { until }
            | Wait::Time { until } => Some(until),
            Wait::Thread | Wait::Turn | Wait::End(_) => None,
        }
    }

    /// True if the deadline has come.
    #[inline]
    pub(crate) fn is_over(&self, now: Now) -> bool {
        self.until().is_some_and(|until| until <= now.monotonic)
    }
}

/// A connected non-blocking socket, with its known state.
pub(crate) struct Socket {
    fd: OwnedFd,
    /// Cached readiness; cleared by EAGAIN.
    may_receive: bool,
    may_send: bool,
    /// The end of the stream may follow the last received bytes.
    is_ending: bool,
    /// After a short read nothing is left until the next report.
    trusts_short_reads: bool,
    pub(crate) reader: FileReader,
    /// Time of the next check of unacknowledged bytes, unless a report comes first.
    check_at: Option<Instant>,
}

/// Result of a call, or the wait that it needs.
pub(crate) type Attempt<T> = ControlFlow<Wait, io::Result<T>>;

impl Socket {
    /// The socket of a newly accepted connection. `trusts_short_reads`: a report of readability is
    /// repeated while there is input, or announces the end of the stream.
    pub(crate) fn new(fd: OwnedFd, trusts_short_reads: bool) -> Socket {
        Socket {
            fd,
            // Often the first request has arrived already: trying costs less than a report.
            may_receive: true,
            may_send: true,
            is_ending: false,
            trusts_short_reads,
            reader: FileReader::default(),
            check_at: None,
        }
    }

    /// Notes readiness that the dispatcher has reported.
    #[inline]
    pub(crate) fn set_ready(&mut self, readiness: Readiness) {
        self.may_receive |= readiness.is_readable();
        self.may_send |= readiness.is_writable();
        self.is_ending |= readiness.is_read_closed();
    }

    /// True if there may be something to receive.
    pub(crate) fn may_receive(&self) -> bool {
        self.may_receive
    }

    /// Assumes that there is something to receive, so that the call is tried without a report.
    pub(crate) fn expect_input(&mut self) {
        self.may_receive = true;
    }

    /// Assumes readiness, so that the calls are tried once more without a report.
    pub(crate) fn try_again(&mut self) {
        (self.may_receive, self.may_send) = (true, true);
    }

    /// Receives into `space`; 0 is the end.
    #[inline]
    pub(crate) fn receive(&mut self, space: &mut [u8], until: Instant) -> Attempt<usize> {
        let space_len = space.len();
        let Socket { fd, .. } = self;
        let call = || rustix::net::recv(&*fd, &mut *space, RecvFlags::empty());
        let waits = Wait::Input { until };
        let received = attempt(&mut self.may_receive, waits, call)?.map(|(len, _)| len);
        // A short read has emptied the socket's buffer, and further bytes will be reported. Only an
        // end that arrived together with these bytes will not.
        if let Ok(len) = received {
            self.may_receive =
                len > 0 && (len == space_len || self.is_ending || !self.trusts_short_reads);
        }
        Continue(received)
    }

    /// Sends chunks in memory. Returns the number of bytes taken, and whether that is all that one
    /// call can send.
    #[inline]
    pub(crate) fn send_out(
        &mut self,
        out: &Outbox,
        until: Instant,
        is_last: bool,
    ) -> ControlFlow<Wait, Sent> {
        let mut gathered = Gathered::new();
        gathered.gather(out, is_last);
        let taken = self.send(gathered.slices(), gathered.more_follows, until)?;
        let is_all = matches!(taken, Ok(len) if len == gathered.len);
        let taken = taken.map(|len| len as u64);
        Continue(Sent { taken, is_all })
    }

    fn send(&mut self, slices: &[IoSlice<'_>], more: bool, until: Instant) -> Attempt<usize> {
        let mut flags = SendFlags::NOSIGNAL;
        flags.set(SendFlags::MORE, more);
        let Socket { fd, .. } = self;
        let call = || match slices {
            [slice] => rustix::net::send(&*fd, slice, flags),
            _ => rustix::net::sendmsg(&*fd, slices, &mut SendAncillaryBuffer::default(), flags),
        };
        attempt(&mut self.may_send, Wait::Writable { until }, call)
    }

    /// Sends as much as possible of a piece of a file. Uncached bytes are first read by `slow`,
    /// unless that is `None`.
    pub(crate) fn send_or_read_file(
        &mut self,
        piece: &FilePiece<'_>,
        slow: Option<impl FnOnce(DiskRead)>,
    ) -> Attempt<FileProgress> {
        if let Some(bytes) = self.reader.take()? {
            return Continue(Ok(FileProgress::Read(bytes)));
        }
        let waits = Wait::Writable { until: piece.until };
        if !self.may_send {
            return Break(waits);
        }
        if file::has_changed(piece) {
            return Continue(Ok(FileProgress::Sent(0)));
        }
        self.reader.fetch(piece, slow)?;
        let range = piece.range;
        let fd = &self.fd;
        let mut at = range.range.start;
        let len = piece.len.min(PIECE_LEN_MAX) as usize;
        let call = || rustix::fs::sendfile(fd, range.file.as_fd(), Some(&mut at), len);
        let may_send = &mut self.may_send;
        let send = || attempt(may_send, waits, call);
        let is_all = |sent: &Attempt<usize>| matches!(sent, Continue(Ok(sent)) if *sent == len);
        let sent = stream::send_pages(fd.as_fd(), piece, send, is_all)?;
        Continue(match sent {
            Ok(len) => Ok(FileProgress::Sent(len as u64)),
            Err(refused) => file::read_instead(piece, refused).map(FileProgress::Read),
        })
    }

    /// Reads the beginning of a piece of a file, as
    /// [`send_or_read_file`](Socket::send_or_read_file). Empty if the file ends there.
    pub(crate) fn read_file(
        &mut self,
        piece: &FilePiece<'_>,
        slow: Option<impl FnOnce(DiskRead)>,
    ) -> Attempt<Bytes> {
        if let Some(bytes) = self.reader.take()? {
            return Continue(Ok(bytes));
        }
        if !self.may_send {
            return Break(Wait::Writable { until: piece.until });
        }
        self.reader.fetch(piece, slow)?;
        Continue(file::read_cached(piece, COPIED_PIECE_LEN))
    }

    /// Counts the bytes that the peer has not acknowledged, when the check is due.
    pub(crate) fn unacked(&mut self, check: &UnackedCheck, now: Now) -> Attempt<Unacked> {
        let until = *self.check_at.get_or_insert(now.monotonic + check.after);
        if now.monotonic < until {
            if check.all_was_sent {
                return Break(Wait::Time { until });
            }
            if !self.may_send {
                return Break(Wait::Writable { until });
            }
        }
        self.check_at = None;
        let unacked = stream::unacked(self.fd.as_fd(), check);
        self.may_send = !matches!(&unacked, Ok(unacked) if !unacked.all_is_sent);
        Continue(unacked)
    }

    /// Ends the server's side of the stream.
    pub(crate) fn finish(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(&self.fd, Shutdown::Write)?)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// State of the read of the current file.
#[derive(Default)]
pub(crate) enum FileReader {
    #[default]
    AtRest,
    /// A thread is reading.
    Away,
    /// The thread has read these bytes.
    Back(Bytes),
}

impl FileReader {
    /// Takes the result from the thread.
    pub(crate) fn handle_read(&mut self, bytes: io::Result<Bytes>) -> io::Result<()> {
        *self = FileReader::AtRest;
        *self = FileReader::Back(bytes?);
        Ok(())
    }

    /// Hands out the bytes read by a thread, if any. Waits for a thread that is reading.
    pub(crate) fn take(&mut self) -> ControlFlow<Wait, Option<Bytes>> {
        match mem::take(self) {
            FileReader::AtRest => Continue(None),
            FileReader::Back(bytes) => Continue(Some(bytes)),
            FileReader::Away => {
                *self = FileReader::Away;
                Break(Wait::Thread)
            }
        }
    }

    /// Waits until the beginning of a piece is in memory. Uncached bytes are read by `slow`; if
    /// that is `None`, the caller may block for them.
    pub(crate) fn fetch(
        &mut self,
        piece: &FilePiece<'_>,
        slow: Option<impl FnOnce(DiskRead)>,
    ) -> ControlFlow<Wait> {
        let Some((slow, read)) = slow.and_then(|slow| Some((slow, file::on_disk(piece)?))) else {
            return Continue(());
        };
        *self = FileReader::Away;
        slow(read);
        Break(Wait::Thread)
    }
}

/// Result of a send of chunks in memory.
pub(crate) struct Sent {
    pub(crate) taken: io::Result<u64>,
    /// True if this is all that one call can send.
    pub(crate) is_all: bool,
}

/// Makes a call if the socket may be ready. If it would block, it is not tried again before a
/// report.
#[inline]
fn attempt<T>(
    may_call: &mut bool,
    waits: Wait,
    mut call: impl FnMut() -> Result<T, Errno>,
) -> Attempt<T> {
    if !*may_call {
        return Break(waits);
    }
    loop {
        match call() {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                *may_call = false;
                return Break(waits);
            }
            result => return Continue(result.map_err(io::Error::from)),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::clock;
    use crate::file::tests::{refuse, with_piece};
    use crate::stream::unacked::tests::{AT_ONCE, WHEN_SENT, drain, full};

    /// The equivalent of `unacked_check_is_due_when_all_is_sent` for streams.
    #[test]
    fn unacked_check_waits_until_all_is_sent() {
        for (near, peer) in full() {
            let mut socket = Socket::new(near, true);
            let now = clock::now();
            let Continue(Ok(found)) = socket.unacked(&AT_ONCE, now) else {
                panic!("a check that waits");
            };
            assert!(found.len > 0 && !found.all_is_sent, "{found:?}");
            let waits = socket.unacked(&WHEN_SENT, now);
            assert!(matches!(waits, Break(Wait::Writable { .. })), "{waits:?}");
            drain(peer);
            let mut space = [PollFd::new(&socket, PollFlags::OUT)];
            let patience = Timespec { tv_sec: 30, tv_nsec: 0 };
            assert_eq!(poll(&mut space, Some(&patience)), Ok(1));
            socket.try_again();
            let found = socket.unacked(&WHEN_SENT, now);
            assert!(matches!(found, Continue(Ok(found)) if found.all_is_sent), "{found:?}");
        }
    }

    /// The equivalent of `file_system_without_sendfile` for files.
    #[test]
    fn file_is_read_where_sendfile_cannot() {
        let content = vec![b'f'; 100_000];
        let send = move || {
            let (near, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
            let mut socket = Socket::new(near.into(), true);
            refuse(libc::SYS_sendfile, Errno::INVAL);
            let no_thread = None::<fn(DiskRead)>;
            let progress = with_piece(&content, |piece| socket.send_or_read_file(piece, no_thread));
            let Continue(Ok(FileProgress::Read(bytes))) = progress else {
                panic!("a file that was not read");
            };
            assert!(!bytes.is_empty() && content.starts_with(&bytes), "other bytes");
        };
        std::thread::spawn(send).join().unwrap();
    }
}
