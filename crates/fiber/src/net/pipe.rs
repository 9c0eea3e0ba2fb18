//! Pipes: bytes from one end to the other, within a process or to a child.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use io_uring::opcode;
use rustix::pipe::PipeFlags;

use super::descriptor;
use super::socket::Socket;
use crate::backend::{Interest, ring_len};
use crate::base::by_reference;
use crate::io::path::{IoPath, io_path};
use crate::io::ring::{has_no_thread, operate};

/// Bytes are taken from where the stream is: `(off_t) -1` (io_uring_enter(2)).
const AT_POSITION: u64 = u64::MAX;

impl Socket {
    /// Reads from a descriptor that is no socket; 0 at the end.
    fn read(&self, buffer: &mut [u8], deadline: Option<Instant>) -> io::Result<usize> {
        if io_path() == IoPath::Uring {
            loop {
                let len = ring_len(buffer.len());
                let read = opcode::Read::new(self.ring_fd()?, buffer.as_mut_ptr(), len);
                match operate(read.offset(AT_POSITION).build(), deadline) {
                    Ok(completion) => return completion.into_result(),
                    Err(error) if has_no_thread(&error) => break,
                    Err(error) => self.retry(error, Interest::Read, deadline)?,
                }
            }
        }
        self.attempt(Interest::Read, buffer.len(), deadline, || {
            let _nonblocking = self.nonblocking()?;
            rustix::io::read(self.as_fd(), &mut *buffer)
        })
    }

    /// Writes as much as possible to a descriptor that is not a socket.
    fn write(&self, bytes: &[u8], deadline: Option<Instant>) -> io::Result<usize> {
        if io_path() == IoPath::Uring {
            loop {
                let len = ring_len(bytes.len());
                let write = opcode::Write::new(self.ring_fd()?, bytes.as_ptr(), len);
                match operate(write.offset(AT_POSITION).build(), deadline) {
                    Ok(completion) => return completion.into_result(),
                    Err(error) if has_no_thread(&error) => break,
                    Err(error) => self.retry(error, Interest::Write, deadline)?,
                }
            }
        }
        self.attempt(Interest::Write, bytes.len(), deadline, || {
            let _nonblocking = self.nonblocking()?;
            rustix::io::write(self.as_fd(), bytes)
        })
    }
}

/// The end of a pipe that is read, as [`std::io::PipeReader`].
///
/// With epoll the open file is made not to block, with a ring to block, and it stays so: also for
/// other programs that have it, and when this is dropped. For a terminal or an inherited standard
/// stream, open `/dev/stdin` and make one of that: an open file of its own.
#[derive(Debug)]
pub struct PipeReader {
    socket: Socket,
}

/// The end of a pipe that is written, as [`std::io::PipeWriter`]. For a standard stream, open
/// `/dev/stdout` anew: see [`PipeReader`].
#[derive(Debug)]
pub struct PipeWriter {
    socket: Socket,
}

/// A new pipe. Neither end is inherited by programs that are executed.
///
/// # Errors
/// Errors of `pipe2(2)`.
pub fn pipe() -> io::Result<(PipeReader, PipeWriter)> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    Ok((reader.into(), writer.into()))
}

impl PipeReader {
    /// Limit on the wait of a read; `None` (the default) for none.
    ///
    /// # Errors
    /// `InvalidInput` for a zero time-out.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.socket.set_timeout(Interest::Read, timeout)
    }
}

impl PipeWriter {
    /// Limit on the wait of a write; `None` (the default) for none.
    ///
    /// # Errors
    /// `InvalidInput` for a zero time-out.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.socket.set_timeout(Interest::Write, timeout)
    }
}

impl Read for &PipeReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.read(buffer, self.socket.read_deadline())
    }
}

by_reference!(Read for PipeReader);

impl Write for &PipeWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write(bytes, self.socket.write_deadline())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

by_reference!(Write for PipeWriter);

descriptor!(PipeReader, Other);
descriptor!(PipeWriter, Other);
