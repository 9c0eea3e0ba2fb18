//! Directories.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::FileType;
use std::io;
use std::path::{Path, PathBuf};

use io_uring::opcode;

use super::metadata::{Metadata, metadata, symlink_metadata};
use super::ring_call::{HERE, by_ring, c_path};
use crate::io::offload::offload;

/// Entries per trip to an offload thread.
const ENTRIES_PER_TRIP: usize = 256;

/// The entries of a directory, in the order of the file system; `.` and `..` are not among them.
#[derive(Debug)]
pub struct ReadDir {
    /// `None` once it has been read to its end.
    entries: Option<std::fs::ReadDir>,
    fetched: VecDeque<io::Result<DirEntry>>,
}

/// One entry of a directory, as [`std::fs::DirEntry`].
#[derive(Clone, Debug)]
pub struct DirEntry {
    path: PathBuf,
    file_name: OsString,
    file_type: FileType,
}

/// Lists a directory. The ring has no operation for it, so some hundred entries at a time come from
/// an offload thread.
///
/// # Errors
/// Errors of `open(2)`; each entry may be an error as well.
pub fn read_dir(path: impl AsRef<Path>) -> io::Result<ReadDir> {
    let path = path.as_ref();
    offload(|| {
        let mut listing =
            ReadDir { entries: Some(std::fs::read_dir(path)?), fetched: VecDeque::new() };
        listing.fetch();
        Ok(listing)
    })
}

/// Makes a directory.
///
/// # Errors
/// Errors of `mkdir(2)`.
pub fn create_dir(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref();
    let name = c_path(path)?;
    let make = opcode::MkDirAt::new(HERE, name.as_ptr());
    match by_ring(&make.mode(0o777).build()) {
        Some(made) => made.map(drop),
        None => offload(|| std::fs::create_dir(path)),
    }
}

/// Makes a directory and missing ones above it. An existing directory is no error.
///
/// # Errors
/// Errors of `mkdir(2)`.
pub fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref();
    let mut missing = Vec::new();
    for directory in path.ancestors().filter(|path| !path.as_os_str().is_empty()) {
        match metadata(directory) {
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(directory),
            Err(error) => return Err(error),
        }
    }
    for directory in missing.into_iter().rev() {
        match create_dir(directory) {
            // Another caller was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => result?,
        }
    }
    if path.as_os_str().is_empty() || metadata(path)?.is_dir() {
        Ok(())
    } else {
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

/// Removes an empty directory.
///
/// # Errors
/// Errors of `rmdir(2)`.
pub fn remove_dir(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref();
    let name = c_path(path)?;
    let remove = opcode::UnlinkAt::new(HERE, name.as_ptr());
    match by_ring(&remove.flags(libc::AT_REMOVEDIR).build()) {
        Some(removed) => removed.map(drop),
        None => offload(|| std::fs::remove_dir(path)),
    }
}

/// Removes a directory and all that is in it; symbolic links are removed, not followed. One
/// [`offload`] thread is busy with it from beginning to end.
///
/// # Errors
/// Like [`std::fs::remove_dir_all`].
pub fn remove_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref();
    offload(|| std::fs::remove_dir_all(path))
}

impl ReadDir {
    /// Reads the next entries, on a thread that may block.
    fn fetch(&mut self) {
        let Some(entries) = &mut self.entries else {
            return;
        };
        let fetched = entries.take(ENTRIES_PER_TRIP).map(|entry| {
            let entry = entry?;
            let file_type = entry.file_type()?;
            Ok(DirEntry { path: entry.path(), file_name: entry.file_name(), file_type })
        });
        self.fetched.extend(fetched);
        if self.fetched.len() < ENTRIES_PER_TRIP {
            self.entries = None;
        }
    }
}

impl Iterator for ReadDir {
    type Item = io::Result<DirEntry>;

    fn next(&mut self) -> Option<io::Result<DirEntry>> {
        if self.fetched.is_empty() && self.entries.is_some() {
            offload(|| self.fetch());
        }
        self.fetched.pop_front()
    }
}

impl DirEntry {
    /// The directory's path with the name at its end.
    pub fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// The name.
    pub fn file_name(&self) -> &OsStr {
        &self.file_name
    }

    /// Type of the entry; a symbolic link is not followed.
    pub fn file_type(&self) -> FileType {
        self.file_type
    }

    /// Metadata of the entry; a symbolic link is not followed.
    ///
    /// # Errors
    /// Errors of `statx(2)`.
    pub fn metadata(&self) -> io::Result<Metadata> {
        symlink_metadata(&self.path)
    }
}
