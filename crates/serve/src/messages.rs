//! Messages on standard error.
//!
//! A server must not depend on the reader of its messages. A stopped pager, or a hanging log
//! collector, leaves a pipe full, and `write(2)` then blocks forever. A message therefore waits
//! only briefly, and is then dropped and counted. While the pipe stays full, further messages do
//! not wait at all.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::{self, PanicHookInfo};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::metrics::MetricsWriter;

/// Time that a message waits for space in a full pipe.
const PATIENCE: Duration = Duration::from_millis(100);

/// Number of bytes that a writable pipe accepts at once. pipe(7)
const PIPE_BUF: usize = 4096;

static ERROR: Messages = Messages::new();

/// Writes a message: one or more lines, each with its newline.
pub fn write(text: &str) {
    ERROR.write(io::stderr().as_fd(), text);
}

/// Prints panics like the standard library, but never waits for a reader. Call it before other code
/// sets a panic hook.
pub fn report_panics() {
    panic::set_hook(Box::new(|info| write(&describe(info))));
}

/// Writes the number of dropped messages.
pub fn write_metrics(out: &mut MetricsWriter) {
    let dropped = ERROR.dropped.load(Ordering::Relaxed);
    let help = "Messages dropped because standard error was blocked.";
    out.counter("weft_messages_dropped_total", help, &[], dropped);
}

fn describe(info: &PanicHookInfo<'_>) -> String {
    let thread = thread::current();
    let name = thread.name().unwrap_or("<unnamed>");
    let at = info.location().map(ToString::to_string);
    let at = at.as_deref().unwrap_or("an unknown place");
    let what = info.payload();
    let owned = || what.downcast_ref::<String>().map(String::as_str);
    let what = what.downcast_ref::<&str>().copied().or_else(owned);
    let what = what.unwrap_or("Box<dyn Any>");
    let backtrace = Backtrace::capture();
    let backtrace = match backtrace.status() {
        BacktraceStatus::Captured => format!("stack backtrace:\n{backtrace}"),
        _ => "note: RUST_BACKTRACE=1 shows how it came to this\n".to_owned(),
    };
    format!("\nthread '{name}' panicked at {at}:\n{what}\n{backtrace}")
}

struct Messages {
    /// No byte of the last message could be written.
    is_stuck: AtomicBool,
    dropped: AtomicU64,
    /// Dropped messages not yet reported to the reader.
    untold: AtomicU64,
}

impl Messages {
    const fn new() -> Messages {
        Messages {
            is_stuck: AtomicBool::new(false),
            dropped: AtomicU64::new(0),
            untold: AtomicU64::new(0),
        }
    }

    fn write(&self, to: BorrowedFd<'_>, text: &str) {
        let untold = self.untold.swap(0, Ordering::Relaxed);
        let told = match untold {
            0 => self.write_all(to, text),
            _ => self.write_all(to, &format!("weft: {untold} messages were dropped\n{text}")),
        };
        if told.is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            self.untold.fetch_add(untold + 1, Ordering::Relaxed);
        }
    }

    fn write_all(&self, to: BorrowedFd<'_>, text: &str) -> io::Result<()> {
        let writer = Nonblocking::to(to)?;
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            match writer.write(rest) {
                Ok(len) => {
                    self.is_stuck.store(false, Ordering::Relaxed);
                    rest = &rest[len..];
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let was_stuck = self.is_stuck.swap(true, Ordering::Relaxed);
                    if was_stuck || !writer.is_writable_within(PATIENCE) {
                        return Err(io::ErrorKind::WouldBlock.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// A descriptor, written to without blocking.
#[derive(Debug)]
pub(crate) enum Nonblocking<F> {
    /// A file, or a descriptor opened with `O_NONBLOCK`; writing to it never blocks for a reader.
    Plain(F),
    /// A pipe or a terminal, opened again with `O_NONBLOCK`: that flag belongs to the open file
    /// description, which other processes share. So does a file's offset. open(2), proc(5)
    Own(OwnedFd),
    /// A pipe or a terminal that cannot be opened again: another user's, or without `/proc`.
    Polled(F),
    /// A socket, such as journald provides for the output of a service.
    Socket(F),
}

impl<F: AsFd> Nonblocking<F> {
    pub(crate) fn to(fd: F) -> io::Result<Nonblocking<F>> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
        Ok(match kind {
            FileType::Socket => Nonblocking::Socket(fd),
            FileType::Fifo | FileType::CharacterDevice => {
                let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
                let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                match rustix::fs::open(link, flags, Mode::empty()) {
                    Ok(own) => Nonblocking::Own(own),
                    Err(_) => Nonblocking::Polled(fd),
                }
            }
            _ => Nonblocking::Plain(fd),
        })
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> rustix::io::Result<usize> {
        match self {
            Nonblocking::Plain(fd) => rustix::io::write(fd, bytes),
            Nonblocking::Own(fd) => rustix::io::write(fd, bytes),
            Nonblocking::Polled(_) if !self.is_writable_within(Duration::ZERO) => Err(Errno::AGAIN),
            Nonblocking::Polled(fd) => rustix::io::write(fd, &bytes[..bytes.len().min(PIPE_BUF)]),
            Nonblocking::Socket(fd) => {
                rustix::net::send(fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
            }
        }
    }

    /// True if it becomes writable, or fails, within `patience`.
    pub(crate) fn is_writable_within(&self, patience: Duration) -> bool {
        let fd = match self {
            Nonblocking::Own(fd) => fd.as_fd(),
            Nonblocking::Plain(fd) | Nonblocking::Polled(fd) | Nonblocking::Socket(fd) => {
                fd.as_fd()
            }
        };
        let patience = Timespec::try_from(patience).unwrap_or_default();
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
        poll(&mut fds, Some(&patience)) == Ok(1)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn stuck_in(near: impl AsFd, mut far: impl Read) {
        let messages = Messages::new();
        let line = "x".repeat(1000) + "\n";
        let dropped = || messages.dropped.load(Ordering::Relaxed);
        while dropped() < 3 {
            messages.write(near.as_fd(), &line);
        }
        let flags = rustix::fs::fcntl_getfl(&near).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK), "others share the open file");
        let mut buffer = vec![0; 1 << 20];
        let _ = far.read(&mut buffer).unwrap();
        messages.write(near.as_fd(), "it goes on\n");
        assert_eq!(dropped(), 3);
        drop(near);
        let mut rest = Vec::new();
        far.read_to_end(&mut rest).unwrap();
        let end = "weft: 3 messages were dropped\nit goes on\n";
        assert!(rest.ends_with(end.as_bytes()));
    }

    /// Seen: SIGTERM did not end a server whose standard error was a full pipe. Cause: its last
    /// message blocked. Cure: no message waits for longer than `PATIENCE`.
    #[test]
    fn stopped_reader_blocks_no_message() {
        let (far, near) = io::pipe().unwrap();
        stuck_in(near, far);
        let (near, far) = UnixStream::pair().unwrap();
        stuck_in(near, far);
    }

    #[test]
    fn pipe_that_cannot_be_opened_is_polled() {
        let (far, near) = io::pipe().unwrap();
        let writer = Nonblocking::Polled(near.as_fd());
        let bytes = [b'x'; 10_000];
        let mut taken = 0;
        while let Ok(len) = writer.write(&bytes) {
            assert!(len <= PIPE_BUF);
            taken += len;
        }
        assert!(taken >= PIPE_BUF);
        assert_eq!(writer.write(b"x"), Err(Errno::AGAIN));
        drop(far);
        assert_eq!(writer.write(b"x"), Err(Errno::PIPE));
    }

    #[test]
    fn file_and_closed_pipe() {
        let messages = Messages::new();
        let mut file = tempfile::tempfile().unwrap();
        messages.write(file.as_fd(), "one\n");
        io::Seek::rewind(&mut file).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "one\n");
        let (far, near) = io::pipe().unwrap();
        drop(far);
        messages.write(near.as_fd(), "two\n");
        assert_eq!(messages.dropped.load(Ordering::Relaxed), 1);
    }
}
