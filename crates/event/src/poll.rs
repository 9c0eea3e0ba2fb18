//! `poll(2)`: every call passes the whole list of descriptors to the kernel, which checks each.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use crate::dispatcher::{Dispatcher, Ready, Token, Trigger};
use crate::interest::{Interest, Readiness};
use crate::set::Set;
use crate::sys;
use crate::table::Table;

/// `poll(2)`. A wait costs some 90 ns for each descriptor watched, ready or not.
#[derive(Default)]
pub struct Poll {
    set: Set<Token>,
    /// Index in the set, by descriptor.
    slots: Table<usize>,
}

impl Poll {
    /// A dispatcher that watches nothing yet.
    #[must_use]
    pub fn new() -> Poll {
        Poll::default()
    }

    fn take_out(&mut self, at: usize) {
        self.set.swap_remove(at);
        if let Some(moved) = self.set.fd_at(at) {
            *self.slots.get_mut(moved).expect("each descriptor of the set has a slot") = at;
        }
    }
}

impl Dispatcher for Poll {
    fn add(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        let fd = fd.as_raw_fd();
        self.slots.insert(fd, self.set.len())?;
        self.set.push(fd, interest.poll_events(), token);
        Ok(())
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        let at = *self.slots.get_mut(fd.as_raw_fd())?;
        self.set.fds[at].events = interest.poll_events();
        self.set.entries[at] = token;
        Ok(())
    }

    fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let at = self.slots.remove(fd.as_raw_fd())?;
        self.take_out(at);
        Ok(())
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> io::Result<()> {
        ready.clear();
        let mut left = sys::poll(&mut self.set.fds, timeout)?;
        // Backwards, so that a removed entry is replaced by one already polled.
        for at in (0..self.set.len()).rev() {
            if left == 0 {
                break;
            }
            let polled = self.set.fds[at];
            if polled.revents == 0 {
                continue;
            }
            left -= 1;
            let readiness = Readiness::from_poll(polled.revents as u32);
            ready.push(Ready { token: self.set.entries[at], readiness });
            if polled.revents & libc::POLLNVAL != 0 {
                // It was closed while watched. Kept, it would make each wait return at once.
                self.slots.remove(polled.fd)?;
                self.take_out(at);
            }
        }
        Ok(())
    }

    fn trigger(&self) -> Trigger {
        Trigger::Level
    }
}
