//! LAP, locality-aware polling: FDM with a bound on the delay.
//!
//! FDM ([`Fdm`](crate::Fdm)) has three defects. Its counters go down with every call, even if that
//! finds nothing, so calls in quick succession make everything idle. A descriptor must be ready
//! twice in a row to become active again. It polls a whole cold set at once. LAP has two sets:
//!
//! ```text
//! hot    │ a │ b │ c │                          all of it, with every wait
//! cold   │ d │ e │ f │ g │ h │ i │ j │ k │      a slice of it, with every wait
//!                     └─ slice ─┘
//!                     cursor: goes round once in the delay
//! ```
//!
//! 1. A wait polls the hot set and a slice of the cold one, without sleeping. If nothing is ready
//!    it sleeps on the hot set for a step, a quarter of the delay, and then polls the next slice.
//! 2. The slice is as long as the time demands: the cursor goes round the cold set once in a delay
//!    of counted time. Time asleep counts in full, time at work by a quarter, and at most a step
//!    between two looks. So an event of a cold descriptor is seen within a delay and a step by a
//!    loop that mostly sleeps, within four delays and a step by one that only works, and by its
//!    17th wait if more than a step passes between two; within twice that while the set changes.
//!    The cold set costs a fixed share of the time: 6,000 idle connections at 0.1 to 0.5 µs (the
//!    less often, the colder the caches), once in 10 ms, are 6 to 30 % of one core, however often
//!    the server waits, and a quarter of that where the loop has no time to sleep.
//! 3. A cold descriptor that is ready becomes hot at once, with full credit.
//! 4. A hot descriptor that is ready gets full credit. Otherwise it loses one credit, but only if
//!    others were ready: time passes in events, not in calls. Without credit it becomes cold.
//! 5. If nothing was ready for a whole delay, by the same count, a call polls everything and sleeps
//!    for as long as it may. A server that has nothing to do costs nothing, and one that has little
//!    to do looks at everything at most twice in a delay.
//!
//! Descriptors that are added or modified are hot, so the next wait sees readiness from before.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use libc::pollfd;

use crate::dispatcher::{Dispatcher, Ready, Token, Trigger};
use crate::interest::{Interest, Readiness};
use crate::set::Set;
use crate::sys;
use crate::table::Table;

/// Productive waits without an event after which a descriptor becomes cold.
const CREDIT: u8 = 255;
/// Credit of a descriptor that had no event yet. A thousand that connect and stay silent would
/// otherwise be polled 255 times each.
const FIRST_CREDIT: u8 = 16;

/// Number of steps in a delay.
const STEPS: u32 = 4;
/// Divisor of time in which the loop works: only that part counts.
const WORK_PART: u32 = 4;

/// Locality-aware polling.
pub struct Lap {
    hot: Set<Entry>,
    cold: Set<Entry>,
    slots: Table<Slot>,
    /// The first cold descriptor of the next slice. Those before it have been looked at in this
    /// round, those from it on have not.
    cursor: usize,
    delay: Duration,
    /// Time at which the cursor was at the start. The round ends a delay later, even if the set has
    /// grown.
    round_began: Instant,
    /// End of the time that has been counted. Time left out of the count has moved `round_began`
    /// and `quiet_since`.
    settled: Instant,
    /// Time at which something was ready last, or everything was slept on.
    quiet_since: Instant,
    /// Descriptors that a wait polls, contiguous as the kernel needs them.
    polled: Vec<pollfd>,
}

#[derive(Clone, Copy)]
struct Slot {
    is_hot: bool,
    at: usize,
}

struct Entry {
    token: Token,
    credit: u8,
    is_pinned: bool,
}

impl Lap {
    /// Default time in which each cold descriptor is looked at once.
    pub const DELAY: Duration = Duration::from_millis(10);

    /// A dispatcher that sees an event of a cold descriptor within `delay` and a quarter of it
    /// while the loop mostly sleeps, within four times `delay` and a quarter while it only works.
    ///
    /// # Panics
    ///
    /// If `delay` is zero.
    #[must_use]
    pub fn new(delay: Duration) -> Lap {
        assert!(!delay.is_zero(), "a delay of zero is poll(2): use Poll");
        Lap {
            hot: Set::default(),
            cold: Set::default(),
            slots: Table::default(),
            cursor: 0,
            delay,
            round_began: Instant::now(),
            settled: Instant::now(),
            quiet_since: Instant::now(),
            polled: Vec::new(),
        }
    }

    /// Number of hot and of cold descriptors.
    #[must_use]
    pub fn population(&self) -> [usize; 2] {
        [self.hot.len(), self.cold.len()]
    }

    fn step(&self) -> Duration {
        (self.delay / STEPS).max(Duration::from_nanos(1))
    }

    /// Rules 1 to 4: looks at the hot set and the slice that is due at `now`.
    fn poll_due(&mut self, now: Instant, ready: &mut Vec<Ready>) -> io::Result<()> {
        let length = self.slice(now);
        self.poll(self.cursor, length, Some(Duration::ZERO), ready)
    }

    /// Counts the time until `now`: in full if the loop slept, by a quarter if it worked, a step at
    /// most.
    fn settle(&mut self, now: Instant, has_worked: bool) {
        let passed = now.saturating_duration_since(mem::replace(&mut self.settled, now));
        let step = passed.min(self.step());
        let counts = if has_worked { step / WORK_PART } else { step };
        self.round_began += passed - counts;
        self.quiet_since += passed - counts;
    }

    /// Rule 2: how many cold descriptors are due, from the cursor on. A slice does not wrap: what
    /// is due beyond the end is looked at from the start by the next wait.
    fn slice(&mut self, now: Instant) -> usize {
        let elapsed = now.saturating_duration_since(self.round_began);
        if self.cursor == self.cold.len() && elapsed >= self.delay {
            // The next round began when this one should have ended.
            self.cursor = 0;
            self.round_began = now - (elapsed - self.delay).min(self.delay);
        }
        let elapsed = now.saturating_duration_since(self.round_began);
        let elapsed = elapsed.min(self.delay).as_nanos();
        // Round up: an event must not wait for a fraction of a descriptor to add up.
        let due = (self.cold.len() as u128 * elapsed).div_ceil(self.delay.as_nanos());
        (due as usize).saturating_sub(self.cursor)
    }

    /// Looks at the hot set and at `length` cold descriptors from `start` on.
    fn poll(
        &mut self,
        start: usize,
        length: usize,
        timeout: Option<Duration>,
        ready: &mut Vec<Ready>,
    ) -> io::Result<()> {
        let hot = self.hot.len();
        self.polled.clear();
        self.polled.extend_from_slice(&self.hot.fds);
        self.polled.extend_from_slice(&self.cold.fds[start..start + length]);
        let found = sys::poll(&mut self.polled, timeout)?;
        self.cursor = start + length;
        if found == 0 {
            return Ok(());
        }
        // Backwards, cold before hot: a descriptor that changes sets is appended, and its gap is
        // filled with one already polled.
        for at in (0..length).rev() {
            let revents = self.polled[hot + at].revents;
            if revents != 0 {
                self.report(Slot { is_hot: false, at: start + at }, revents, ready);
            }
        }
        for at in (0..hot).rev() {
            let revents = self.polled[at].revents;
            let slot = Slot { is_hot: true, at };
            if revents != 0 {
                self.report(slot, revents, ready);
            } else {
                self.charge(slot);
            }
        }
        Ok(())
    }

    fn report(&mut self, slot: Slot, revents: i16, ready: &mut Vec<Ready>) {
        let set = if slot.is_hot { &mut self.hot } else { &mut self.cold };
        let fd = set.fds[slot.at].fd;
        let entry = &mut set.entries[slot.at];
        entry.credit = CREDIT;
        ready.push(Ready { token: entry.token, readiness: Readiness::from_poll(revents as u32) });
        if revents & libc::POLLNVAL != 0 {
            // It was closed while watched. Kept, it would make each wait return at once.
            self.take_out(fd).expect("a descriptor of a set has a slot");
        } else if !slot.is_hot {
            self.warm(slot.at);
        }
    }

    /// Rule 4, for a hot descriptor that was not ready where others were.
    fn charge(&mut self, slot: Slot) {
        let entry = &mut self.hot.entries[slot.at];
        entry.credit -= 1;
        if entry.credit > 0 {
            return;
        }
        entry.credit = CREDIT;
        if entry.is_pinned {
            return;
        }
        let (polled, entry) = self.take_hot(slot.at);
        let at = self.cold.push(polled.fd, polled.events, entry);
        self.set_slot(polled.fd, Slot { is_hot: false, at });
        // It has just been polled. Else a set that grows with every wait would never end a round.
        if at == self.cursor {
            self.cursor += 1;
        }
    }

    fn warm(&mut self, at: usize) {
        let (polled, mut entry) = self.take_cold(at);
        entry.credit = CREDIT;
        let at = self.hot.push(polled.fd, polled.events, entry);
        self.set_slot(polled.fd, Slot { is_hot: true, at });
    }

    fn take_out(&mut self, fd: RawFd) -> io::Result<()> {
        let Slot { is_hot, at } = self.slots.remove(fd)?;
        if is_hot {
            self.take_hot(at);
        } else {
            self.take_cold(at);
        }
        Ok(())
    }

    fn take_hot(&mut self, at: usize) -> (pollfd, Entry) {
        let taken = self.hot.swap_remove(at);
        if let Some(fd) = self.hot.fd_at(at) {
            self.set_slot(fd, Slot { is_hot: true, at });
        }
        taken
    }

    /// Takes a cold descriptor out, and keeps to the left of the cursor only what was polled in
    /// this round: otherwise the last one, moved to the left, would wait for up to two delays.
    fn take_cold(&mut self, at: usize) -> (pollfd, Entry) {
        let mut hole = at;
        if hole < self.cursor {
            self.cursor -= 1;
            self.cold.swap(hole, self.cursor);
            if hole != self.cursor {
                let fd = self.cold.fds[hole].fd;
                self.set_slot(fd, Slot { is_hot: false, at: hole });
            }
            hole = self.cursor;
        }
        let taken = self.cold.swap_remove(hole);
        if let Some(fd) = self.cold.fd_at(hole) {
            self.set_slot(fd, Slot { is_hot: false, at: hole });
        }
        taken
    }

    fn set_slot(&mut self, fd: RawFd, slot: Slot) {
        *self.slots.get_mut(fd).expect("a descriptor of a set has a slot") = slot;
    }
}

impl Dispatcher for Lap {
    fn add(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        let fd = fd.as_raw_fd();
        self.slots.insert(fd, Slot { is_hot: true, at: self.hot.len() })?;
        let entry = Entry { token, credit: FIRST_CREDIT, is_pinned: interest.is_pinned() };
        self.hot.push(fd, interest.poll_events(), entry);
        Ok(())
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        let fd = fd.as_raw_fd();
        let Slot { is_hot, at } = *self.slots.get_mut(fd)?;
        if !is_hot {
            self.warm(at);
        }
        let at = self.slots.get_mut(fd)?.at;
        self.hot.fds[at].events = interest.poll_events();
        let entry = &mut self.hot.entries[at];
        *entry = Entry { token, credit: CREDIT, is_pinned: interest.is_pinned() };
        Ok(())
    }

    fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.take_out(fd.as_raw_fd())
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> io::Result<()> {
        ready.clear();
        let step = self.step();
        let mut now = Instant::now();
        let deadline = timeout.and_then(|timeout| now.checked_add(timeout));
        self.settle(now, true);
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
            let nap = left.map_or(step, |left| left.min(step));
            let has_slept;
            if now.saturating_duration_since(self.quiet_since) < self.delay {
                self.poll_due(now, ready)?;
                has_slept = ready.is_empty() && !nap.is_zero();
                if has_slept {
                    self.poll(self.cursor, 0, Some(nap), ready)?;
                }
            } else {
                // Rule 5.
                self.poll(0, self.cold.len(), left, ready)?;
                self.cursor = 0;
                self.round_began = Instant::now();
                self.settled = self.round_began;
                self.quiet_since = self.round_began;
                return Ok(());
            }
            let began = mem::replace(&mut now, Instant::now());
            self.settle(now, !has_slept);
            if !ready.is_empty() {
                self.quiet_since = now;
            }
            // A call that returned early was interrupted.
            let is_over = left.is_some_and(|left| left <= now.saturating_duration_since(began));
            if !ready.is_empty() || is_over || now.saturating_duration_since(began) < step {
                return Ok(());
            }
        }
    }

    fn trigger(&self) -> Trigger {
        Trigger::Level
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    use super::*;

    const HOT: Token = Token(u64::MAX);

    /// A dispatcher with one descriptor that is ready with every look, and `cold` that were not
    /// ready for so long that they are cold.
    struct World {
        lap: Lap,
        now: Instant,
        _busy: (UnixStream, UnixStream),
        cold: Vec<(UnixStream, UnixStream)>,
        /// Time of the last poll of each descriptor.
        seen_at: HashMap<RawFd, Instant>,
        ready: Vec<Ready>,
    }

    impl World {
        fn new(cold: usize) -> World {
            let busy = UnixStream::pair().unwrap();
            (&busy.0).write_all(b"x").unwrap();
            let cold: Vec<_> = (0..cold).map(|_| UnixStream::pair().unwrap()).collect();
            let mut lap = Lap::new(Lap::DELAY);
            lap.add(busy.1.as_fd(), HOT, Interest::READ).unwrap();
            for (token, (_, far)) in cold.iter().enumerate() {
                lap.add(far.as_fd(), Token(token as u64), Interest::READ).unwrap();
            }
            let mut world = World {
                lap,
                now: Instant::now(),
                _busy: busy,
                cold,
                seen_at: HashMap::new(),
                ready: Vec::new(),
            };
            for _ in 0..CREDIT {
                world.poll_after(Duration::ZERO);
            }
            assert_eq!(world.lap.population(), [1, world.cold.len()], "hot, cold");
            // A round begins.
            world.lap.cursor = 0;
            world.lap.round_began = world.now;
            world
        }

        fn check_slots(&mut self) {
            let Lap { hot, cold, slots, .. } = &mut self.lap;
            assert_eq!(slots.iter().count(), hot.len() + cold.len());
            for (set, is_hot) in [(hot, true), (cold, false)] {
                assert_eq!(set.fds.len(), set.entries.len());
                for (at, polled) in set.fds.iter().enumerate() {
                    let slot = slots.get_mut(polled.fd).unwrap();
                    assert_eq!((slot.is_hot, slot.at), (is_hot, at));
                }
            }
        }

        /// Looks once after `pause`; returns the reported tokens without the busy one.
        fn poll_after(&mut self, pause: Duration) -> Vec<u64> {
            self.now += pause;
            // Counts the pause as sleep, though one descriptor is always ready.
            self.lap.settle(self.now, false);
            self.ready.clear();
            self.lap.poll_due(self.now, &mut self.ready).unwrap();
            let looked_at = self.lap.polled.iter();
            self.seen_at.extend(looked_at.map(|polled| (polled.fd, self.now)));
            let others = self.ready.iter().filter(|ready| ready.token != HOT);
            others.map(|ready| ready.token.0).collect()
        }
    }

    #[test]
    fn cold_events_are_seen_within_the_delay() {
        for looks_per_delay in [1, 3, 7, 50, 400] {
            let mut world = World::new(100);
            let pause = Lap::DELAY / looks_per_delay;
            for silent in [0, 1, 50, 98, 99] {
                (&world.cold[silent].0).write_all(b"x").unwrap();
                // One look more than a delay has, because the event came just after a look; one
                // more because a slice ends at the end of the set. A pause is a step at most.
                let looks = looks_per_delay.max(STEPS) + 2;
                let seen = (0..looks).any(|_| world.poll_after(pause).contains(&(silent as u64)));
                assert!(seen, "{looks_per_delay} looks per delay, descriptor {silent}");
                (&world.cold[silent].1).read_exact(&mut [0]).unwrap();
                for _ in 0..CREDIT {
                    world.poll_after(Duration::ZERO);
                }
            }
        }
    }

    /// Seen: under a quota of a quarter of a core, FDM answered 8,067 requests a second, poll 2,970
    /// and LAP 2,040. Cause: all of the cold set was due after each pause, which was taken for a
    /// quiet one as well. Cure: a pause counts as a step, and of work a quarter.
    #[test]
    fn a_pause_counts_as_a_step() {
        for (has_worked, waits) in [(false, STEPS), (true, STEPS * WORK_PART)] {
            let mut world = World::new(1600);
            for pause in [2, 10, 1000] {
                world.now += Lap::DELAY * pause;
                world.lap.settle(world.now, has_worked);
                world.ready.clear();
                world.lap.poll_due(world.now, &mut world.ready).unwrap();
                let [hot, cold] = world.lap.population();
                let due = cold / waits as usize;
                let looked_at = world.lap.polled.len() - hot;
                assert!(looked_at.abs_diff(due) <= 1, "{looked_at} of {due} after {pause} delays");
            }
        }
        // Such a pause does not count as quiet time, after which all is polled.
        let mut world = World::new(1600);
        let long_ago = Instant::now() - 10 * Lap::DELAY;
        let lap = &mut world.lap;
        (lap.cursor, lap.round_began) = (0, long_ago);
        (lap.settled, lap.quiet_since) = (long_ago, long_ago);
        lap.wait(&mut world.ready, Some(Duration::ZERO)).unwrap();
        assert!(lap.polled.len() < 800, "{} of 1,601", lap.polled.len());
    }

    #[test]
    fn moves_left_of_the_cursor_are_polled() {
        // The last cold descriptor takes the place of one that leaves. If that lies to the left of
        // the cursor, the round under way would pass it over, and it would wait for two delays.
        let mut world = World::new(100);
        for _ in 0..9 {
            world.poll_after(Lap::DELAY / 10);
        }
        (&world.cold[99].0).write_all(b"x").unwrap();
        for leaving in 0..50 {
            let (_, far) = &world.cold[leaving];
            world.lap.remove(far.as_fd()).unwrap();
        }
        let seen = (0..3).any(|_| world.poll_after(Lap::DELAY / 10).contains(&99));
        assert!(seen, "the end of the round did not poll the descriptor");
    }

    /// Seen: as long as the set grew as fast as the cursor went, the cursor did not come to the
    /// end, and what lay behind it was not looked at for many delays.
    #[test]
    fn a_growing_set_does_not_outrun_the_cursor() {
        const LOOKS_PER_DELAY: u32 = 10;
        let mut world = World::new(10);
        world.poll_after(Lap::DELAY);
        while world.lap.cursor != 1 {
            world.poll_after(Lap::DELAY / LOOKS_PER_DELAY);
        }
        // This descriptor has just been polled; all others come before it again.
        let first = world.lap.cold.entries[0].token.0;
        (&world.cold[first as usize].0).write_all(b"x").unwrap();
        let mut looks = 0;
        while !world.poll_after(Lap::DELAY / LOOKS_PER_DELAY).contains(&first) {
            looks += 1;
            assert!(looks <= 2 * LOOKS_PER_DELAY + 2, "not seen in {looks} looks");
            // The set grows by a fifth.
            for _ in 0..world.cold.len() / 5 {
                let silent = UnixStream::pair().unwrap();
                let token = Token(world.cold.len() as u64);
                world.lap.add(silent.1.as_fd(), token, Interest::READ).unwrap();
                world.cold.push(silent);
            }
            for _ in 0..FIRST_CREDIT {
                world.poll_after(Duration::ZERO);
            }
        }
    }

    /// Seen while reading: while each wait made one descriptor cold, the round did not end, and
    /// nothing else was polled; then each wait polled all. Cause: a descriptor that had been polled
    /// as a hot one was due once more.
    #[test]
    fn one_more_cold_with_each_wait_hides_none() {
        const LOOKS_PER_DELAY: u32 = 50;
        let mut world = World::new(100);
        let pause = Lap::DELAY / LOOKS_PER_DELAY;
        for _ in 0..2 * LOOKS_PER_DELAY {
            world.poll_after(pause);
        }
        for _ in 0..8 * LOOKS_PER_DELAY {
            let silent = UnixStream::pair().unwrap();
            let token = Token(world.cold.len() as u64);
            world.lap.add(silent.1.as_fd(), token, Interest::READ).unwrap();
            world.cold.push(silent);
            world.poll_after(pause);
            let [_, cold] = world.lap.population();
            assert!(world.lap.polled.len() < cold / 2, "a wait looked at most of {cold}");
            for polled in &world.lap.cold.fds {
                let unseen = world.now - world.seen_at[&polled.fd];
                assert!(unseen <= 2 * (Lap::DELAY + pause), "unseen for {unseen:?}");
            }
        }
    }

    /// Random adds, removes, modifies, bytes and pauses. After each: every descriptor is where its
    /// slot says, and each cold one was looked at within two delays and the two waits that were
    /// due.
    #[test]
    fn all_are_polled_within_two_delays() {
        for seed in 0..4 {
            let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
            let mut pick = move |below: usize| (random.next_u64() % below as u64) as usize;
            let mut world = World::new(5);
            let longest_pause = Lap::DELAY / [40, 4][seed as usize % 2];
            for step in 0..1500 {
                // The set grows for a while, then shrinks.
                let grows = step / 300 % 2 == 0;
                match pick(10) {
                    0..3 if grows => {
                        let silent = UnixStream::pair().unwrap();
                        let token = Token(world.cold.len() as u64);
                        let lap = &mut world.lap;
                        lap.add(silent.1.as_fd(), token, Interest::READ).unwrap();
                        world.cold.push(silent);
                    }
                    0..3 if !world.cold.is_empty() => {
                        let silent = world.cold.swap_remove(pick(world.cold.len()));
                        world.lap.remove(silent.1.as_fd()).unwrap();
                        world.seen_at.remove(&silent.1.as_raw_fd());
                    }
                    3 if !world.cold.is_empty() => {
                        let (_, far) = &world.cold[pick(world.cold.len())];
                        world.lap.modify(far.as_fd(), Token(1), Interest::READ).unwrap();
                    }
                    4 if !world.cold.is_empty() => {
                        let at = pick(world.cold.len());
                        (&world.cold[at].0).write_all(b"x").unwrap();
                        world.poll_after(Duration::ZERO);
                        (&world.cold[at].1).read_exact(&mut [0]).unwrap();
                    }
                    5 => (0..FIRST_CREDIT).for_each(|_| drop(world.poll_after(Duration::ZERO))),
                    _ => drop(world.poll_after(longest_pause * pick(100) as u32 / 100)),
                }
                let now = world.now;
                world.check_slots();
                for polled in &world.lap.cold.fds {
                    let unseen = now - world.seen_at[&polled.fd];
                    assert!(
                        unseen <= 2 * (Lap::DELAY + longest_pause),
                        "seed {seed}, step {step}: unseen for {unseen:?}"
                    );
                }
            }
        }
    }

    /// Seen: below saturation LAP cost what poll costs. Cause: each wait that found nothing at once
    /// polled everything before it slept. Cure: it sleeps on the hot set first.
    #[test]
    fn a_wait_sleeps_on_the_hot_set() {
        let mut world = World::new(1000);
        let mut byte = [0];
        (&world._busy.1).read_exact(&mut byte).unwrap();
        world.lap.delay = Duration::from_secs(3600);
        world.lap.quiet_since = Instant::now();
        // Nothing is ready: the last poll is the one that slept.
        world.lap.wait(&mut world.ready, Some(Duration::from_millis(1))).unwrap();
        assert!(world.ready.is_empty());
        assert_eq!(world.lap.polled.len(), 1, "the hot set alone");
        // After a quiet delay it sleeps on everything, so that idle ones cost nothing.
        world.lap.delay = Duration::from_nanos(4);
        let cold = world.cold[7].0.try_clone().unwrap();
        let writer = std::thread::spawn(move || (&cold).write_all(b"x").unwrap());
        while world.ready.first().is_none_or(|ready| ready.token != Token(7)) {
            world.lap.wait(&mut world.ready, None).unwrap();
        }
        writer.join().unwrap();
    }

    #[test]
    fn one_hit_makes_hot() {
        let mut world = World::new(10);
        (&world.cold[3].0).write_all(b"x").unwrap();
        let seen: Vec<_> = (0..=STEPS).flat_map(|_| world.poll_after(Lap::DELAY / STEPS)).collect();
        assert_eq!((seen[0], world.lap.population()), (3, [2, 9]));
    }

    #[test]
    fn empty_polls_make_nothing_cold() {
        let (_near, far) = UnixStream::pair().unwrap();
        let mut lap = Lap::new(Lap::DELAY);
        lap.add(far.as_fd(), HOT, Interest::READ).unwrap();
        let mut ready = Vec::new();
        for _ in 0..3 * usize::from(CREDIT) {
            lap.wait(&mut ready, Some(Duration::ZERO)).unwrap();
        }
        assert_eq!(lap.population(), [1, 0]);
    }

    #[test]
    fn the_pinned_stay_hot() {
        let mut world = World::new(1);
        let (_near, far) = UnixStream::pair().unwrap();
        world.lap.add(far.as_fd(), Token(7), Interest::READ.pinned()).unwrap();
        for _ in 0..3 * usize::from(CREDIT) {
            world.poll_after(Duration::ZERO);
        }
        assert_eq!(world.lap.population(), [2, 1]);
    }
}
