//! Open files.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use io_uring::{opcode, squeue, types::Fd};
use rustix::fs::OFlags;
use rustix::io::{ReadWriteFlags, retry_on_intr};

use super::metadata::{self, Metadata};
use super::ring_call::{HERE, by_ring, c_path};
use crate::backend::ring_len;
use crate::base::by_reference;
use crate::io::offload::offload;

/// An open file, as [`std::fs::File`]. Reading and writing at an offset needs no seek, and many
/// fibers may do it at once; [`Read`] and [`Write`] continue where they ended, as ever.
#[derive(Debug)]
pub struct File {
    fd: OwnedFd,
}

/// Options for opening a file, as [`std::fs::OpenOptions`].
#[derive(Clone, Debug)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    mode: u32,
    custom_flags: i32,
}

/// The position of the file itself, for the ring: `(off_t) -1` (io_uring_enter(2)).
const AT_POSITION: u64 = u64::MAX;

impl File {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// Errors of `open(2)`.
    pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new().read(true).open(path)
    }

    /// Opens a file for writing, empty; makes it if there is none.
    ///
    /// # Errors
    /// Errors of `open(2)`.
    pub fn create(path: impl AsRef<Path>) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).open(path)
    }

    /// Makes a file for reading and writing; there must be none yet.
    ///
    /// # Errors
    /// `AlreadyExists`, or what `open(2)` reports.
    pub fn create_new(path: impl AsRef<Path>) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).open(path)
    }

    /// Options for opening a file: the same as [`OpenOptions::new`].
    pub fn options() -> OpenOptions {
        OpenOptions::new()
    }

    /// Metadata of the file.
    ///
    /// # Errors
    /// Errors of `statx(2)`.
    pub fn metadata(&self) -> io::Result<Metadata> {
        metadata::of_file(self.as_fd())
    }

    /// Its length in bytes.
    ///
    /// # Errors
    /// Errors of `statx(2)`.
    pub fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    /// True if it has no bytes.
    ///
    /// # Errors
    /// Errors of `statx(2)`.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads from `offset` into `buffer`; returns how many bytes, 0 at the end.
    ///
    /// # Errors
    /// Errors of `pread(2)`.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        read_at(self.as_fd(), buffer, offset)
    }

    /// Reads from `offset` until `buffer` is full.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends first; else what `pread(2)` reports.
    pub fn read_exact_at(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.read_at(buffer, offset)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => (buffer, offset) = (&mut buffer[len..], offset + len as u64),
            }
        }
        Ok(())
    }

    /// Writes as many of `bytes` as possible at `offset`; returns their number.
    ///
    /// # Errors
    /// Errors of `pwrite(2)`.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        write_at(self.as_fd(), bytes, offset)
    }

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// Errors of `pwrite(2)`; `WriteZero` if it takes no more.
    pub fn write_all_at(&self, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write_at(bytes, offset)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                len => (bytes, offset) = (&bytes[len..], offset + len as u64),
            }
        }
        Ok(())
    }

    /// Waits until content and metadata are on the disk.
    ///
    /// # Errors
    /// Errors of `fsync(2)`. After an error it is unknown what is on the disk.
    pub fn sync_all(&self) -> io::Result<()> {
        match by_ring(&opcode::Fsync::new(self.ring_fd()).build()) {
            Some(synced) => synced.map(drop),
            None => by_thread(|| rustix::fs::fsync(&self.fd)),
        }
    }

    /// Waits until the content is on the disk, and of the metadata what reading it needs.
    ///
    /// # Errors
    /// Like [`sync_all`](File::sync_all).
    pub fn sync_data(&self) -> io::Result<()> {
        let flags = io_uring::types::FsyncFlags::DATASYNC;
        match by_ring(&opcode::Fsync::new(self.ring_fd()).flags(flags).build()) {
            Some(synced) => synced.map(drop),
            None => by_thread(|| rustix::fs::fdatasync(&self.fd)),
        }
    }

    /// Cuts the file, or extends it with zeros, to `len` bytes.
    ///
    /// # Errors
    /// Errors of `ftruncate(2)`.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        by_thread(|| rustix::fs::ftruncate(&self.fd, len))
    }

    /// A second handle to the same open file.
    ///
    /// # Errors
    /// Errors of `dup(2)`.
    pub fn try_clone(&self) -> io::Result<File> {
        let fd = self.fd.try_clone()?;
        Ok(File { fd })
    }

    fn ring_fd(&self) -> Fd {
        Fd(self.fd.as_raw_fd())
    }
}

impl OpenOptions {
    /// Options that open nothing yet.
    #[expect(clippy::new_without_default, reason = "as std has it")]
    pub fn new() -> OpenOptions {
        OpenOptions {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: 0o666,
            custom_flags: 0,
        }
    }

    /// Sets whether the file is opened for reading.
    pub fn read(&mut self, read: bool) -> &mut OpenOptions {
        self.read = read;
        self
    }

    /// Sets whether the file is opened for writing.
    pub fn write(&mut self, write: bool) -> &mut OpenOptions {
        self.write = write;
        self
    }

    /// Sets whether the file is opened for writing at the end.
    pub fn append(&mut self, append: bool) -> &mut OpenOptions {
        self.append = append;
        self
    }

    /// Sets whether the file is emptied.
    pub fn truncate(&mut self, truncate: bool) -> &mut OpenOptions {
        self.truncate = truncate;
        self
    }

    /// Sets whether the file is made if there is none.
    pub fn create(&mut self, create: bool) -> &mut OpenOptions {
        self.create = create;
        self
    }

    /// Sets whether the file is made; an existing one is then an error.
    pub fn create_new(&mut self, create_new: bool) -> &mut OpenOptions {
        self.create_new = create_new;
        self
    }

    /// Permissions of a file that is made, less the umask; 0o666 unless set.
    pub fn mode(&mut self, mode: u32) -> &mut OpenOptions {
        self.mode = mode;
        self
    }

    /// Further flags of `open(2)`, for example `O_DIRECT`.
    pub fn custom_flags(&mut self, flags: i32) -> &mut OpenOptions {
        self.custom_flags = flags;
        self
    }

    /// Opens the file.
    ///
    /// # Errors
    /// Errors of `open(2)`; `InvalidInput` if the options do not go together, as `std` has it.
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let path = path.as_ref();
        match self.open_by_ring(path)? {
            Some(fd) => Ok(File { fd }),
            None => {
                let options = self.as_std();
                offload(|| options.open(path)).map(File::from)
            }
        }
    }

    /// `None` if it is to be opened another way.
    fn open_by_ring(&self, path: &Path) -> io::Result<Option<OwnedFd>> {
        let (name, flags) = (c_path(path)?, self.flags()?);
        let open = opcode::OpenAt::new(HERE, name.as_ptr());
        let open = open.flags(flags).mode(self.mode).build();
        let opened = match by_ring(&open) {
            // The ring tries first with O_NONBLOCK: a FIFO that has no reader. fifo(7)
            Some(Err(error)) if error.raw_os_error() == Some(libc::ENXIO) => {
                by_ring(&open.flags(squeue::Flags::ASYNC))
            }
            opened => opened,
        };
        let Some(opened) = opened else {
            return Ok(None);
        };
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(Some(unsafe { OwnedFd::from_raw_fd(opened? as i32) }))
    }

    fn as_std(&self) -> std::fs::OpenOptions {
        let mut options = std::fs::OpenOptions::new();
        options
            .read(self.read)
            .write(self.write)
            .append(self.append)
            .truncate(self.truncate)
            .create(self.create)
            .create_new(self.create_new)
            .mode(self.mode)
            .custom_flags(self.custom_flags);
        options
    }

    /// The flags of `open(2)`, by the rules of [`std::fs::OpenOptions`].
    fn flags(&self) -> io::Result<i32> {
        let invalid = || Err(io::ErrorKind::InvalidInput.into());
        let access = match (self.read, self.write, self.append) {
            (true, false, false) => libc::O_RDONLY,
            (false, true, false) => libc::O_WRONLY,
            (true, true, false) => libc::O_RDWR,
            (false, _, true) => libc::O_WRONLY | libc::O_APPEND,
            (true, _, true) => libc::O_RDWR | libc::O_APPEND,
            (false, false, false) => return invalid(),
        };
        let makes = self.truncate || self.create || self.create_new;
        let writes = self.write || self.append;
        let cuts_what_it_appends_to = self.append && self.truncate && !self.create_new;
        if (makes && !writes) || cuts_what_it_appends_to {
            return invalid();
        }
        let creation = match (self.create, self.truncate, self.create_new) {
            (false, false, false) => 0,
            (true, false, false) => libc::O_CREAT,
            (false, true, false) => libc::O_TRUNC,
            (true, true, false) => libc::O_CREAT | libc::O_TRUNC,
            (_, _, true) => libc::O_CREAT | libc::O_EXCL,
        };
        let custom = self.custom_flags & !libc::O_ACCMODE;
        Ok(libc::O_CLOEXEC | access | creation | custom)
    }
}

/// Reads from a file at `offset` without blocking the processor; returns how many bytes, 0 at the
/// end.
///
/// # Errors
/// Errors of `pread(2)`, `EINVAL` for an offset above `i64::MAX`. `EINVAL` for `O_DIRECT`
/// descriptors unless buffer, length and offset are aligned.
pub fn read_at(file: BorrowedFd<'_>, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    check_offset(offset)?;
    if let Some(read) = read_by_ring(file, buffer, offset) {
        return read;
    }
    // RWF_NOWAIT waits for no lock, but with O_DIRECT for the disk (seen on Linux 6.18).
    let is_direct = rustix::fs::fcntl_getfl(file)?.contains(OFlags::DIRECT);
    if !is_direct {
        let is_empty = buffer.is_empty();
        let mut slices = [io::IoSliceMut::new(buffer)];
        let read = rustix::io::preadv2(file, &mut slices, offset, ReadWriteFlags::NOWAIT);
        // Linux 5.9 and 5.10 say 0 where nothing is in the page cache, too. preadv2(2)
        if let Ok(len) = read
            && (len > 0 || is_empty)
        {
            return Ok(len);
        }
    }
    by_thread(|| rustix::io::pread(file, &mut *buffer, offset))
}

/// Writes to a file at `offset` without blocking the processor; returns how many bytes.
///
/// # Errors
/// Errors of `pwrite(2)`, `EINVAL` for an offset above `i64::MAX`. `EINVAL` for `O_DIRECT`
/// descriptors unless buffer, length and offset are aligned.
pub fn write_at(file: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> io::Result<usize> {
    check_offset(offset)?;
    if let Some(written) = write_by_ring(file, bytes, offset) {
        return written;
    }
    // Even with room in the page cache it may have to wait for the journal, or for dirty pages to
    // be written.
    by_thread(|| rustix::io::pwrite(file, bytes, offset))
}

/// Makes a call in a thread that may block, as often as a signal interrupts it, as
/// [`by_ring`] does.
fn by_thread<T: Send>(call: impl FnMut() -> rustix::io::Result<T> + Send) -> io::Result<T> {
    Ok(offload(|| retry_on_intr(call))?)
}

fn read_by_ring(file: BorrowedFd<'_>, buffer: &mut [u8], offset: u64) -> Option<io::Result<usize>> {
    let len = ring_len(buffer.len());
    let read = opcode::Read::new(Fd(file.as_raw_fd()), buffer.as_mut_ptr(), len);
    by_ring(&read.offset(offset).build())
}

fn write_by_ring(file: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> Option<io::Result<usize>> {
    let len = ring_len(bytes.len());
    let write = opcode::Write::new(Fd(file.as_raw_fd()), bytes.as_ptr(), len);
    by_ring(&write.offset(offset).build())
}

/// The kernel takes offsets for signed numbers, and -1 for the position of the file itself.
/// preadv2(2)
pub(crate) fn check_offset(offset: u64) -> io::Result<()> {
    match i64::try_from(offset) {
        Ok(_) => Ok(()),
        Err(_) => Err(rustix::io::Errno::INVAL.into()),
    }
}

impl Read for &File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match read_by_ring(self.as_fd(), buffer, AT_POSITION) {
            Some(read) => read,
            None => by_thread(|| rustix::io::read(&self.fd, &mut *buffer)),
        }
    }
}

impl Write for &File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match write_by_ring(self.as_fd(), bytes, AT_POSITION) {
            Some(written) => written,
            None => by_thread(|| rustix::io::write(&self.fd, bytes)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

by_reference!(Read, Write for File);

impl From<std::fs::File> for File {
    fn from(file: std::fs::File) -> File {
        File { fd: file.into() }
    }
}

impl From<OwnedFd> for File {
    fn from(fd: OwnedFd) -> File {
        File { fd }
    }
}

impl From<File> for OwnedFd {
    fn from(file: File) -> OwnedFd {
        file.fd
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
