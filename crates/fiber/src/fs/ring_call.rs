//! Calls on files by way of the ring.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use io_uring::{squeue, types::Fd};

use crate::io::ring::operate;

/// Names are looked up from the working directory.
pub(super) const HERE: Fd = Fd(libc::AT_FDCWD);

pub(super) fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Makes an operation of the ring and waits for it, as often as a signal interrupts it. What the
/// entry points to must stay for the time of the call.
pub(super) fn by_ring(entry: &squeue::Entry) -> io::Result<usize> {
    loop {
        match operate(entry.clone(), None).and_then(|completion| completion.into_result()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
