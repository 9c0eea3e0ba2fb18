//! FDM, "FD migration": Hao-Zhe Liu and Wu-Jyun Chen's locality-aware dispatching, as published
//! ("Improving the performance of event dispatching with temporal locality", IEE Proc. Software
//! 151(3), 2004).
//!
//! `poll(2)` costs time for each descriptor, and a server with many idle connections polls most of
//! them in vain. FDM keeps three sets and polls the colder ones less often:
//!
//! ```text
//! call            1   2   3   4   5   6   7   8   9        N = 3
//! active (N⁰)     ×   ×   ×   ×   ×   ×   ×   ×   ×
//! doze   (N¹)             ×           ×           ×
//! idle   (N²)                                     ×
//! ```
//!
//! Each descriptor has a *live counter*, from 0 to N, which starts at N − 1. After each poll of it:
//!
//! - ready: the counter becomes N − 1, or N if it was N − 1 already;
//! - not ready, or an error: the counter goes down by one.
//!
//! At 0 the descriptor moves to the next colder set, at N to the active one; both with N − 2. So a
//! descriptor outside the active set returns if it is ready in two polls in a row.
//!
//! Sleeping is the server's task in the paper, because one call may not have polled all sets. Here
//! [`Fdm`] does it: after N² calls in a row that found nothing it sleeps for [`Fdm::NAP`] at a
//! time, as the published server does, or for [another time](Fdm::with_nap).
//!
//! FDM has a flaw. Descriptors that are ready now and then, but seldom twice in a row, all end in
//! the idle set, and then it costs as much as `poll`. [`Lap`](crate::Lap) repairs that.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use libc::pollfd;

use crate::dispatcher::{Dispatcher, Ready, Token, Trigger};
use crate::interest::{Interest, Readiness};
use crate::set::Set;
use crate::sys;
use crate::table::Table;

const SETS: usize = 3;
const ACTIVE: usize = 0;

/// Liu and Chen's dispatcher.
pub struct Fdm {
    /// N of the paper.
    live: u32,
    nap: Duration,
    calls: u64,
    /// Number of consecutive calls that found nothing.
    empty_calls: u64,
    sets: [Set<Entry>; SETS],
    slots: Table<Slot>,
    /// The sets that a call looks at, one behind the other, as the kernel wants them.
    polled: Vec<pollfd>,
}

#[derive(Clone, Copy)]
struct Slot {
    set: usize,
    at: usize,
}

struct Entry {
    token: Token,
    live_counter: u32,
    /// Never leaves the active set; "locked" in the paper.
    is_pinned: bool,
    deadline: Option<Instant>,
}

impl Fdm {
    /// N of the published library.
    pub const LIVE: u32 = 3;

    /// Length of a sleep while nothing is ready; `usleep(500)` in the published server.
    pub const NAP: Duration = Duration::from_micros(500);

    /// A dispatcher with the given N, which the paper takes from 3 to 10.
    ///
    /// # Panics
    ///
    /// If `live` is outside 3 to 10.
    #[must_use]
    pub fn new(live: u32) -> Fdm {
        assert!((3..=10).contains(&live), "N is {live}; the paper has 3 to 10");
        Fdm {
            live,
            nap: Fdm::NAP,
            calls: 0,
            empty_calls: 0,
            sets: Default::default(),
            slots: Table::default(),
            polled: Vec::new(),
        }
    }

    /// Sets the length of its sleeps, which the paper tunes for each load.
    #[must_use]
    pub fn with_nap(self, nap: Duration) -> Fdm {
        Fdm { nap, ..self }
    }

    /// Sets the time from which an idle `fd` is reported as [timed out](Readiness::is_timed_out),
    /// once; `None` for never. The paper has this in the library because the library polls each
    /// descriptor anyway. The report may be as late as the next poll of the descriptor's set.
    ///
    /// # Errors
    ///
    /// `ENOENT` if `fd` is not watched.
    pub fn set_deadline(
        &mut self,
        fd: BorrowedFd<'_>,
        deadline: Option<Instant>,
    ) -> io::Result<()> {
        let Slot { set, at } = *self.slots.get_mut(fd.as_raw_fd())?;
        self.sets[set].entries[at].deadline = deadline;
        Ok(())
    }

    /// Number of active, dozing and idle descriptors.
    #[must_use]
    pub fn population(&self) -> [usize; SETS] {
        [0, 1, 2].map(|set| self.sets[set].len())
    }

    /// `fdm_wait_event` of the paper with a time-out of zero: one look at the sets that are due.
    fn call(&mut self, ready: &mut Vec<Ready>) -> io::Result<()> {
        self.calls += 1;
        let n = u64::from(self.live);
        let due = (0..SETS).take_while(|set| self.calls.is_multiple_of(n.pow(*set as u32))).count();
        self.polled.clear();
        let mut starts = [0; SETS];
        for (start, set) in starts.iter_mut().zip(&self.sets[..due]) {
            *start = self.polled.len();
            self.polled.extend_from_slice(&set.fds);
        }
        sys::poll(&mut self.polled, Some(Duration::ZERO))?;
        let now = Instant::now();
        for set in (0..due).rev() {
            let end = starts.get(set + 1).filter(|_| set + 1 < due).copied();
            let looked_at = end.unwrap_or(self.polled.len()) - starts[set];
            // Backwards: a descriptor that moves in is appended, and one that moves out is replaced
            // by one already classified.
            for at in (0..looked_at).rev() {
                let revents = self.polled[starts[set] + at].revents;
                self.classify(Slot { set, at }, revents, now, ready);
            }
        }
        Ok(())
    }

    /// Section 3.2 of the paper, for one polled descriptor.
    fn classify(&mut self, slot: Slot, revents: i16, now: Instant, ready: &mut Vec<Ready>) {
        const ERRORS: i16 = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;
        let top = self.live;
        let entry = &mut self.sets[slot.set].entries[slot.at];
        let mut readiness = Readiness::from_poll(revents as u32);
        if revents != 0 && revents & ERRORS == 0 {
            entry.live_counter = if entry.live_counter < top - 1 { top - 1 } else { top };
        } else {
            entry.live_counter = entry.live_counter.saturating_sub(1);
        }
        if revents == 0 && entry.deadline.take_if(|deadline| *deadline <= now).is_some() {
            readiness |= Readiness::TIMED_OUT;
        }
        if !readiness.is_nothing() {
            ready.push(Ready { token: entry.token, readiness });
        }
        if revents & libc::POLLNVAL != 0 {
            let fd = self.sets[slot.set].fds[slot.at].fd;
            self.take_out(fd).expect("a descriptor of a set has a slot");
        } else if entry.live_counter == 0 && slot.set + 1 < SETS && !entry.is_pinned {
            self.move_to(slot.set + 1, slot);
        } else if entry.live_counter >= top && slot.set != ACTIVE {
            self.move_to(ACTIVE, slot);
        }
    }

    fn move_to(&mut self, set: usize, from: Slot) {
        let (polled, mut entry) = self.sets[from.set].swap_remove(from.at);
        self.follow_last(from);
        entry.live_counter = self.live - 2;
        let at = self.sets[set].push(polled.fd, polled.events, entry);
        self.set_slot(polled.fd, Slot { set, at });
    }

    fn take_out(&mut self, fd: RawFd) -> io::Result<()> {
        let slot = self.slots.remove(fd)?;
        self.sets[slot.set].swap_remove(slot.at);
        self.follow_last(slot);
        Ok(())
    }

    /// Updates the slot of the descriptor that `swap_remove` moved to `hole`, if there is one.
    fn follow_last(&mut self, hole: Slot) {
        if let Some(fd) = self.sets[hole.set].fd_at(hole.at) {
            self.set_slot(fd, hole);
        }
    }

    fn set_slot(&mut self, fd: RawFd, slot: Slot) {
        *self.slots.get_mut(fd).expect("a descriptor of a set has a slot") = slot;
    }
}

impl Dispatcher for Fdm {
    fn add(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        let fd = fd.as_raw_fd();
        let at = self.sets[ACTIVE].len();
        self.slots.insert(fd, Slot { set: ACTIVE, at })?;
        let entry = Entry {
            token,
            live_counter: self.live - 1,
            is_pinned: interest.is_pinned(),
            deadline: None,
        };
        self.sets[ACTIVE].push(fd, interest.poll_events(), entry);
        Ok(())
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        let Slot { set, at } = *self.slots.get_mut(fd.as_raw_fd())?;
        self.sets[set].fds[at].events = interest.poll_events();
        let entry = &mut self.sets[set].entries[at];
        entry.token = token;
        entry.is_pinned = interest.is_pinned();
        if entry.is_pinned && set != ACTIVE {
            self.move_to(ACTIVE, Slot { set, at });
        }
        Ok(())
    }

    fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.take_out(fd.as_raw_fd())
    }

    /// With a time-out of zero this is one call as published, which sees an event of an idle
    /// descriptor at the N²th call at the latest.
    fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> io::Result<()> {
        ready.clear();
        let all_seen_after = u64::from(self.live).pow(SETS as u32 - 1);
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            self.call(ready)?;
            if !ready.is_empty() {
                self.empty_calls = 0;
                return Ok(());
            }
            self.empty_calls += 1;
            let left = match deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                None => Duration::MAX,
            };
            if timeout == Some(Duration::ZERO) || left.is_zero() {
                return Ok(());
            }
            if self.empty_calls >= all_seen_after {
                std::thread::sleep(left.min(self.nap));
            }
        }
    }

    fn trigger(&self) -> Trigger {
        Trigger::Level
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    struct World {
        fdm: Fdm,
        near: UnixStream,
        far: UnixStream,
        ready: Vec<Ready>,
    }

    impl World {
        fn new(live: u32) -> World {
            let (near, far) = UnixStream::pair().unwrap();
            let mut fdm = Fdm::new(live);
            fdm.add(far.as_fd(), Token(1), Interest::READ).unwrap();
            World { fdm, near, far, ready: Vec::new() }
        }

        /// Makes one call of the paper; returns true if it reported the descriptor.
        fn call(&mut self) -> bool {
            self.fdm.wait(&mut self.ready, Some(Duration::ZERO)).unwrap();
            !self.ready.is_empty()
        }

        fn calls(&mut self, count: u32) {
            for _ in 0..count {
                self.call();
            }
        }

        fn write(&mut self) {
            self.near.write_all(b"x").unwrap();
        }
    }

    #[test]
    fn silent_descriptors_doze_then_idle() {
        // Section 3.3 of the paper.
        for n in 3..=10 {
            let mut world = World::new(n);
            world.calls(n - 2);
            assert_eq!(world.fdm.population(), [1, 0, 0], "N = {n}");
            world.calls(1);
            assert_eq!(world.fdm.population(), [0, 1, 0], "N = {n}");
            world.calls(n * n - n - (n - 1));
            assert_eq!(world.fdm.population(), [0, 0, 1], "N = {n}");
        }
    }

    #[test]
    fn idle_events_are_seen_within_n_squared_calls() {
        for n in 3..=10 {
            for offset in 0..n * n {
                let mut world = World::new(n);
                world.calls(n * n + offset);
                assert_eq!(world.fdm.population(), [0, 0, 1], "N = {n}");
                world.write();
                let calls = (1..=n * n).find(|_| world.call());
                assert!(calls.is_some(), "N = {n}, {offset} calls after the last look");
            }
        }
    }

    #[test]
    fn two_hits_in_a_row_make_active() {
        let mut world = World::new(3);
        world.calls(9);
        world.write();
        world.calls(9);
        assert_eq!(world.fdm.population(), [0, 0, 1], "after one hit");
        world.calls(9);
        assert_eq!(world.fdm.population(), [1, 0, 0], "after two");
    }

    #[test]
    fn the_pinned_stay_active() {
        let mut world = World::new(3);
        world.fdm.modify(world.far.as_fd(), Token(1), Interest::READ.pinned()).unwrap();
        world.calls(50);
        assert_eq!(world.fdm.population(), [1, 0, 0]);
    }

    #[test]
    fn a_deadline_is_reported_once() {
        let mut world = World::new(3);
        world.fdm.set_deadline(world.far.as_fd(), Some(Instant::now())).unwrap();
        assert!(world.call() && world.ready[0].readiness.is_timed_out());
        assert!((0..9).all(|_| !world.call()));
    }
}
