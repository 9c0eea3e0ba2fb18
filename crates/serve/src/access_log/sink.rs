use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;

use super::Target;
use crate::messages::Nonblocking;

/// Open destination of the log. Only a write to a disk can exceed its patience.
#[derive(Debug)]
pub(super) struct Sink(Nonblocking<OwnedFd>);

impl Sink {
    pub(super) fn open(target: &Target) -> io::Result<Sink> {
        let path = match target {
            Target::Stdout => return Sink::of(io::stdout().as_fd()),
            Target::Stderr => return Sink::of(io::stderr().as_fd()),
            Target::File(path) => path,
        };
        let opened = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o640)
            .custom_flags(libc::O_NONBLOCK)
            .open(path);
        match opened {
            Ok(file) => Ok(Sink(Nonblocking::Plain(file.into()))),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => {
                Sink::of_socket(path, error)
            }
            Err(error) => Err(error),
        }
    }

    /// A socket, which cannot be opened by name, but may be open already: `/dev/stdout` and links
    /// to it, if standard output is a socket, as under systemd. open(2), `ENXIO`
    fn of_socket(path: &Path, error: io::Error) -> io::Result<Sink> {
        let refuse = |why| Err(io::Error::new(error.kind(), why));
        let named = fs::metadata(path)?;
        if named.file_type().is_fifo() {
            return refuse("no process has the FIFO open for reading"); // fifo(7)
        }
        let (out, err) = (io::stdout(), io::stderr());
        for fd in [out.as_fd(), err.as_fd()] {
            let open = File::from(fd.try_clone_to_owned()?).metadata()?;
            if (open.dev(), open.ino()) == (named.dev(), named.ino()) {
                return Sink::of(fd);
            }
        }
        refuse("it is a socket; give a file, or - for standard output")
    }

    /// A sink that writes to the same file as `fd`.
    fn of(fd: BorrowedFd<'_>) -> io::Result<Sink> {
        Ok(Sink(Nonblocking::to(fd.try_clone_to_owned()?)?))
    }

    /// Writes some of `bytes`; returns `None` if nothing could be written for `patience`.
    pub(super) fn write(&self, bytes: &[u8], patience: Duration) -> io::Result<Option<usize>> {
        loop {
            match self.0.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => return Ok(Some(len)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    if !self.0.is_writable_within(patience) {
                        return Ok(None);
                    }
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};
    use std::os::unix::net::UnixStream;

    const SOON: Duration = Duration::from_millis(10);

    /// Fills the sink; returns the number of bytes.
    fn fill(sink: &Sink) -> usize {
        let mut filled = 0;
        while let Some(len) = sink.write(&[b'x'; 4096], SOON).unwrap() {
            filled += len;
            assert!(filled < 64 << 20, "it never fills");
        }
        filled
    }

    #[test]
    fn unread_pipe_does_not_block() {
        let (reader, writer) = io::pipe().unwrap();
        let sink = Sink::of(writer.as_fd()).unwrap();
        assert!(fill(&sink) >= 4096);
        let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
        assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK), "others share this pipe");
        drop(reader);
        let error = sink.write(b"x", SOON).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn unread_socket_does_not_block() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let sink = Sink::of(ours.as_fd()).unwrap();
        assert!(matches!(sink.0, Nonblocking::Socket(_)));
        assert!(fill(&sink) >= 4096);
    }

    #[test]
    fn redirected_file_keeps_its_offset() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"before ").unwrap();
        Sink::of(file.as_fd()).unwrap().write(b"after", SOON).unwrap();
        file.rewind().unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "before after");
    }

    #[test]
    fn socket_by_name_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let error = Sink::open(&Target::File(path)).unwrap_err().to_string();
        assert!(error.contains("- for standard output"), "{error}");
    }

    #[test]
    fn fifo_without_a_reader_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let error = Sink::open(&Target::File(path)).unwrap_err().to_string();
        assert!(error.contains("open for reading"), "{error}");
    }
}
