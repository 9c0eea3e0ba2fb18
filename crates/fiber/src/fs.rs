//! Files, without a processor that waits for a disk.
//!
//! Names are [`std::fs`]'s. On a ring, opening, looking, reading, writing, syncing, renaming and
//! removing are operations like any other (ext4 and xfs complete buffered reads asynchronously, and
//! `O_DIRECT` ones always; the rest runs in the kernel's own worker threads, which
//! IORING_REGISTER_IOWQ_MAX_WORKERS bounds). With epoll, which cannot wait for files, they go to
//! the [`offload`] threads, except reads that the page cache answers. What the ring has no
//! operation for (listing, copying, truncating) goes there in any case, and so does what it has no
//! worker thread for, because no more may be started. On a plain thread it all just blocks.
//!
//! Buffers and names are lent to the kernel for the time of the call and no longer: an operation
//! whose fiber is cancelled, or whose deadline has passed, is cancelled *and awaited*. A disk
//! operation that has begun can often not be cancelled; then its result counts.
//!
//! ```
//! # let directory = tempfile::tempdir().unwrap();
//! # let path = directory.path().join("notes");
//! weftwork_fiber::run(move || {
//!     use weftwork_fiber::fs;
//!
//!     fs::write(&path, "warp and weft").unwrap();
//!     let file = fs::File::open(&path).unwrap();
//!     let mut word = [0; 4];
//!     file.read_exact_at(&mut word, 9).unwrap();
//!     assert_eq!(&word, b"weft");
//!     assert_eq!(file.metadata().unwrap().len(), 13);
//!     fs::remove_file(&path).unwrap();
//! });
//! ```

mod aligned;
mod directory;
mod file;
mod metadata;
mod page_cache;
mod ring_call;

pub use aligned::{AlignedBuffer, DIRECT_ALIGNMENT};
pub use directory::{
    DirEntry, ReadDir, create_dir, create_dir_all, read_dir, remove_dir, remove_dir_all,
};
pub(crate) use file::check_offset;
pub use file::{File, OpenOptions, read_at, write_at};
pub use metadata::{Metadata, metadata, symlink_metadata};
pub use page_cache::is_cached;

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use io_uring::opcode;

use crate::fs::ring_call::{HERE, by_ring, c_path};
use crate::io::offload::offload;

/// The whole content of a file.
///
/// # Errors
/// What opening or reading reports; `OutOfMemory` if it is longer than the memory.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let len = usize::try_from(file.len()?).unwrap_or(0);
    let mut content = Vec::new();
    // A file may say that it has more than there is memory. One more, to see the end.
    content.try_reserve_exact(len.saturating_add(1))?;
    (&file).read_to_end(&mut content)?;
    Ok(content)
}

/// The whole content of a file of UTF-8 text.
///
/// # Errors
/// Errors of opening or reading; `InvalidData` if it is not UTF-8.
pub fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    String::from_utf8(read(path)?)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Makes a file with this content, or replaces the content that there was.
///
/// # Errors
/// Errors of opening or writing.
pub fn write(path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> io::Result<()> {
    (&File::create(path)?).write_all(content.as_ref())
}

/// Copies a file's content and permissions; returns how many bytes. One [`offload`] thread is busy
/// with it from beginning to end.
///
/// # Errors
/// Like [`std::fs::copy`].
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<u64> {
    let (from, to) = (from.as_ref(), to.as_ref());
    offload(|| std::fs::copy(from, to))
}

/// Renames a file or directory, and replaces an entry that has the new name.
///
/// # Errors
/// Errors of `rename(2)`.
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    let (from, to) = (from.as_ref(), to.as_ref());
    let (old, new) = (c_path(from)?, c_path(to)?);
    let entry = opcode::RenameAt::new(HERE, old.as_ptr(), HERE, new.as_ptr()).build();
    match by_ring(&entry) {
        Some(renamed) => renamed.map(drop),
        None => offload(|| std::fs::rename(from, to)),
    }
}

/// Removes a file.
///
/// # Errors
/// Errors of `unlink(2)`.
pub fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref();
    let name = c_path(path)?;
    match by_ring(&opcode::UnlinkAt::new(HERE, name.as_ptr()).build()) {
        Some(removed) => removed.map(drop),
        None => offload(|| std::fs::remove_file(path)),
    }
}

/// Target of a symbolic link, one step.
///
/// # Errors
/// Errors of `readlink(2)`.
pub fn read_link(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    let path = path.as_ref();
    offload(|| std::fs::read_link(path))
}

/// The path without symbolic links, `.` and `..`.
///
/// # Errors
/// Errors of `realpath(3)`.
pub fn canonicalize(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    let path = path.as_ref();
    offload(|| std::fs::canonicalize(path))
}
