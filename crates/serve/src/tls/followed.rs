//! Files that are reloaded when they change.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// The contents of files, and the states of the files.
#[derive(Clone, Debug)]
pub(super) struct Followed<T> {
    pub(super) value: T,
    pub(super) files: Vec<PathBuf>,
    /// States before the last attempt to read the files.
    tried: Vec<FileState>,
    /// States at the last check.
    seen: Vec<FileState>,
    /// True if the last attempt failed and the value is an older one.
    pub(super) is_refused: bool,
}

/// Files to read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    All,
    Changed,
}

/// Result of a check of files.
pub(super) enum FileCheck {
    Same,
    /// The files have changed, and may change again: keys and certificates are written one after
    /// the other.
    Unsettled,
    /// The files were read; after an error the old value stays.
    Read(Result<(), String>),
}

/// State of a file, through symbolic links, in which changes are detected.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FileState {
    /// Device, inode, length, and times of the last changes of contents and inode.
    Regular([i128; 7]),
    /// A pipe or a device: read on request only, and never checked.
    Special,
    Unreadable(io::ErrorKind),
}

impl<T> Followed<T> {
    /// Reads files.
    ///
    /// # Errors
    /// Same as `read`.
    pub(super) fn open(
        files: Vec<PathBuf>,
        read: impl FnOnce() -> Result<T, String>,
    ) -> Result<Followed<T>, String> {
        // States are taken first: a change during the read is found at the next check.
        let tried = states(&files);
        Ok(Followed { value: read()?, files, seen: tried.clone(), tried, is_refused: false })
    }

    /// Reads the files again: all of them, or those that have changed since the last attempt and
    /// were the same at the last check, so that a mistake is reported once.
    pub(super) fn update(
        &mut self,
        which: Which,
        read: impl FnOnce() -> Result<T, String>,
    ) -> FileCheck {
        let states = states(&self.files);
        if which == Which::Changed {
            if states == self.tried {
                return FileCheck::Same;
            }
            if states != self.seen {
                self.seen = states;
                return FileCheck::Unsettled;
            }
        }
        self.tried = states;
        let value = read();
        self.is_refused = value.is_err();
        FileCheck::Read(value.map(|value| self.value = value))
    }
}

fn states(files: &[PathBuf]) -> Vec<FileState> {
    let state = |file| match fs::metadata(file) {
        Ok(meta) if meta.is_file() => FileState::Regular([
            meta.dev().into(),
            meta.ino().into(),
            meta.len().into(),
            meta.mtime().into(),
            meta.mtime_nsec().into(),
            meta.ctime().into(),
            meta.ctime_nsec().into(),
        ]),
        Ok(_) => FileState::Special,
        Err(error) => FileState::Unreadable(error.kind()),
    };
    files.iter().map(state).collect()
}
