//! Calls on files by way of the ring.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use io_uring::{squeue, types::Fd};

use crate::io::path::{IoPath, io_path};
use crate::io::ring::{has_no_thread, operate};

/// Names are looked up from the working directory.
pub(super) const HERE: Fd = Fd(libc::AT_FDCWD);

pub(super) fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Makes an operation of the ring and waits for it, as often as a signal interrupts it. `None` if
/// there is no ring, or it has no thread for what blocks: the caller makes the call another way.
/// What the entry points to must stay for the time of the call.
pub(super) fn by_ring(entry: &squeue::Entry) -> Option<io::Result<usize>> {
    if io_path() != IoPath::Uring {
        return None;
    }
    loop {
        match operate(entry.clone(), None).and_then(|completion| completion.into_result()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if has_no_thread(&error) => return None,
            result => return Some(result),
        }
    }
}
