//! Messages on standard error that never wait: nothing may be reading them.

use std::fmt;
use std::io;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Bytes that a pipe takes at once if it takes any. pipe(7)
const PIPE_BUF: usize = 4096;

/// Writes a message, as far as it fits at once.
pub(crate) fn report(message: fmt::Arguments<'_>) {
    let text = message.to_string();
    let stderr = io::stderr();
    for piece in text.as_bytes().chunks(PIPE_BUF) {
        let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
        let has_room = poll(&mut fds, Some(&Timespec::default())) == Ok(1);
        // Not `eprintln`, which panics where nothing can be written.
        if !has_room || rustix::io::write(stderr.as_fd(), piece).is_err() {
            return;
        }
    }
}
