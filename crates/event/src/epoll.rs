//! `epoll(7)`: the kernel keeps the list, and descriptors put themselves into a queue when they
//! become ready.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::dispatcher::{Dispatcher, Ready, Token, Trigger};
use crate::interest::{Interest, Readiness};
use crate::sys;

/// Events that one wait takes from the kernel; the next wait takes the rest.
const EVENTS_PER_WAIT: usize = 512;

/// `epoll(7)`, reporting by [`Trigger`].
pub struct Epoll {
    epoll: OwnedFd,
    events: Vec<Event>,
    trigger: Trigger,
}

impl Epoll {
    /// A dispatcher that watches nothing yet.
    ///
    /// # Errors
    ///
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new(trigger: Trigger) -> io::Result<Epoll> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Epoll { epoll, events: Vec::with_capacity(EVENTS_PER_WAIT), trigger })
    }

    fn flags(&self, interest: Interest) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN | EventFlags::RDHUP, interest.reads());
        flags.set(EventFlags::OUT, interest.writes());
        flags.set(EventFlags::ET, self.trigger == Trigger::Edge);
        flags.set(EventFlags::ONESHOT, self.trigger == Trigger::OneShot);
        flags
    }
}

impl Dispatcher for Epoll {
    fn add(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        let data = EventData::new_u64(token.0);
        Ok(epoll::add(&self.epoll, fd, data, self.flags(interest))?)
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        let data = EventData::new_u64(token.0);
        Ok(epoll::modify(&self.epoll, fd, data, self.flags(interest))?)
    }

    fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    /// The kernel takes a file that is closed out of the set. epoll(7)
    fn forget(&mut self, _fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> io::Result<()> {
        ready.clear();
        self.events.clear();
        let timeout = timeout.map(sys::epoll_timespec);
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        ready.extend(self.events.iter().map(|&Event { flags, data }| Ready {
            token: Token(data.u64()),
            readiness: Readiness::from_poll(flags.bits()),
        }));
        Ok(())
    }

    fn trigger(&self) -> Trigger {
        self.trigger
    }
}
