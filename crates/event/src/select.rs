//! `select(2)`: three bitmaps, from descriptor 0 to the highest, with every call.
//!
//! The 1,024 of `FD_SETSIZE` are a limit of the C library's type. The kernel takes bitmaps of any
//! length.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use crate::bitmaps::Bitmaps;
use crate::dispatcher::{Dispatcher, Ready, Token, Trigger};
use crate::interest::{Interest, Readiness};
use crate::sys;
use crate::table::Table;

/// `select(2)`, also beyond 1,024 descriptors.
///
/// It has no bit for a hang-up. With [`Interest::READ`] that shows as readable; with
/// [`Interest::WRITE`] alone and a full send buffer it does not show at all (Unix sockets; a TCP
/// connection without a peer is writable).
#[derive(Default)]
pub struct Select {
    tokens: Table<Token>,
    wanted: Bitmaps,
    found: Bitmaps,
}

impl Select {
    /// A dispatcher that watches nothing yet.
    #[must_use]
    pub fn new() -> Select {
        Select::default()
    }

    /// Forgets descriptors that were closed while watched: `select` fails without naming them.
    fn forget_closed(&mut self, ready: &mut Vec<Ready>) {
        let closed: Vec<_> = self.tokens.iter().filter(|(fd, _)| !sys::is_open(*fd)).collect();
        let closed: Vec<_> = closed.into_iter().map(|(fd, token)| (fd, *token)).collect();
        for (fd, token) in closed {
            ready.push(Ready { token, readiness: Readiness::ERROR });
            self.wanted.clear(fd);
            self.tokens.remove(fd).expect("the descriptor was just found in the table");
        }
    }
}

impl Dispatcher for Select {
    fn add(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        self.tokens.insert(fd.as_raw_fd(), token)?;
        let reads = interest.reads();
        let writes = interest.writes();
        self.wanted.set(fd.as_raw_fd(), reads, writes);
        Ok(())
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        *self.tokens.get_mut(fd.as_raw_fd())? = token;
        let reads = interest.reads();
        let writes = interest.writes();
        self.wanted.set(fd.as_raw_fd(), reads, writes);
        Ok(())
    }

    fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.tokens.remove(fd.as_raw_fd())?;
        self.wanted.clear(fd.as_raw_fd());
        Ok(())
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> io::Result<()> {
        ready.clear();
        // The kernel overwrites its arguments with the answer, so it gets copies.
        self.found.copy_from(&self.wanted);
        match self.found.select(timeout) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => {
                self.forget_closed(ready);
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        for (fd, readiness) in self.found.iter() {
            ready.push(Ready { token: *self.tokens.get_mut(fd)?, readiness });
        }
        Ok(())
    }

    fn trigger(&self) -> Trigger {
        Trigger::Level
    }

    fn tells_end(&self) -> bool {
        false
    }
}
