//! Metadata of files: `statx(2)`.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, SystemTime};

use io_uring::{opcode, types::Fd};

use super::ring_call::{HERE, by_ring, c_path};
use crate::io::offload::offload;

/// Metadata of a file, as [`std::fs::Metadata`].
#[derive(Clone)]
pub struct Metadata(libc::statx);

/// Looks at a file; a symbolic link is followed.
///
/// # Errors
/// Errors of `statx(2)`.
pub fn metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    look(HERE, &c_path(path.as_ref())?, 0)
}

/// Metadata of a file; a symbolic link is not followed.
///
/// # Errors
/// Errors of `statx(2)`.
pub fn symlink_metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    look(HERE, &c_path(path.as_ref())?, libc::AT_SYMLINK_NOFOLLOW)
}

/// Reads the metadata of an open file. For a local file the kernel has it in memory: the call does
/// not wait, so it needs neither ring nor thread.
pub(super) fn of_file(file: BorrowedFd<'_>) -> io::Result<Metadata> {
    look_now(Fd(file.as_raw_fd()), c"", libc::AT_EMPTY_PATH)
}

fn look(directory: Fd, path: &CStr, flags: i32) -> io::Result<Metadata> {
    let mut found = MaybeUninit::<libc::statx>::uninit();
    let entry = opcode::Statx::new(directory, path.as_ptr(), found.as_mut_ptr().cast())
        .flags(flags)
        .mask(libc::STATX_BASIC_STATS | libc::STATX_BTIME)
        .build();
    match by_ring(&entry) {
        Some(looked) => {
            looked?;
            // SAFETY: the kernel has filled it: the operation succeeded.
            Ok(Metadata(unsafe { found.assume_init() }))
        }
        None => offload(|| look_now(directory, path, flags)),
    }
}

fn look_now(directory: Fd, path: &CStr, flags: i32) -> io::Result<Metadata> {
    let mut found = MaybeUninit::<libc::statx>::uninit();
    let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    // SAFETY: the name ends with a nul, and the kernel writes one statx.
    let result =
        unsafe { libc::statx(directory.0, path.as_ptr(), flags, mask, found.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it is filled.
    Ok(Metadata(unsafe { found.assume_init() }))
}

impl Metadata {
    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "as std has it")]
    pub fn len(&self) -> u64 {
        self.0.stx_size
    }

    /// True for a regular file.
    pub fn is_file(&self) -> bool {
        self.kind() == libc::S_IFREG
    }

    /// True for a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == libc::S_IFDIR
    }

    /// True for a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind() == libc::S_IFLNK
    }

    /// Kind and permissions, as `st_mode`.
    pub fn mode(&self) -> u32 {
        u32::from(self.0.stx_mode)
    }

    /// The number of the file in its file system.
    pub fn ino(&self) -> u64 {
        self.0.stx_ino
    }

    /// Its file system, as `st_dev`.
    pub fn dev(&self) -> u64 {
        libc::makedev(self.0.stx_dev_major, self.0.stx_dev_minor)
    }

    /// Number of hard links.
    pub fn nlink(&self) -> u64 {
        u64::from(self.0.stx_nlink)
    }

    /// Its owner.
    pub fn uid(&self) -> u32 {
        self.0.stx_uid
    }

    /// Its owner's group.
    pub fn gid(&self) -> u32 {
        self.0.stx_gid
    }

    /// Time of the last change of the content.
    ///
    /// # Errors
    /// Never on Linux; `std` has the same signature.
    pub fn modified(&self) -> io::Result<SystemTime> {
        time(&self.0.stx_mtime)
    }

    /// Time of the last read, as far as the file system keeps it.
    ///
    /// # Errors
    /// Never on Linux; `std` has the same signature.
    pub fn accessed(&self) -> io::Result<SystemTime> {
        time(&self.0.stx_atime)
    }

    /// Time of creation.
    ///
    /// # Errors
    /// `Unsupported` where the file system does not keep it.
    pub fn created(&self) -> io::Result<SystemTime> {
        if self.0.stx_mask & libc::STATX_BTIME == 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        time(&self.0.stx_btime)
    }

    fn kind(&self) -> u32 {
        self.mode() & libc::S_IFMT
    }
}

fn time(stamp: &libc::statx_timestamp) -> io::Result<SystemTime> {
    let whole = Duration::from_secs(stamp.tv_sec.unsigned_abs());
    let epoch = if stamp.tv_sec < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(whole)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(whole)
    };
    epoch
        .and_then(|epoch| epoch.checked_add(Duration::from_nanos(u64::from(stamp.tv_nsec))))
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metadata")
            .field("len", &self.len())
            .field("mode", &format_args!("{:o}", self.mode()))
            .field("ino", &self.ino())
            .finish_non_exhaustive()
    }
}
