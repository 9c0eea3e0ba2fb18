//! A hierarchical timing wheel (Varghese and Lauck, 1987): insert and cancel in constant time,
//! because a server sets a time-out for every request and almost none expires.
//!
//! ```text
//!  level 0: 64 slots of 1 tick        the next 64 ticks
//!  level 1: 64 slots of 64 ticks      the next 4,096
//!  ...
//!  level 6: 64 slots of 2^36 ticks    the rest; beyond the last slot it is sorted in again
//! ```
//!
//! No clock: the time is an argument, in ticks, and the owner says how long a tick is. Entries are
//! doubly linked inside one vector, so a timer costs no allocation once the vector has grown.
//!
//! Fibers, event loops and the netstack use the same wheel. A deadline that moves with every
//! request need not be moved here: leave the timer where it is, and set it anew when it expires too
//! early.
//!
//! ```
//! let mut wheel = weftwork_timer::Wheel::new();
//! wheel.insert(5, "request");
//! let idle = wheel.insert(60_000, "idle");
//! wheel.cancel(idle);
//! let mut expired = Vec::new();
//! wheel.advance(10, |what| expired.push(what));
//! assert_eq!(expired, ["request"]);
//! ```

#![forbid(unsafe_code)]

/// Time since the start of a wheel, in a unit of the owner's choice, such as milliseconds.
pub type Tick = u64;

const LEVELS: usize = 7;
const SLOT_BITS: usize = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const NONE: u32 = u32::MAX;
/// First generation of a slot. The default key has generation 0, so it names no timer.
const FIRST_GENERATION: u32 = 1;

/// Names a timer of one wheel. Slots of the table are used again, so a key carries the generation
/// of its slot. The default key names none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimerKey {
    index: u32,
    generation: u32,
}

impl TimerKey {
    /// Returns the key as one word.
    pub fn bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// Returns the key that [`bits`](TimerKey::bits) made this word of.
    pub fn from_bits(bits: u64) -> TimerKey {
        TimerKey { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// Timers with a payload each.
#[derive(Debug)]
pub struct Wheel<T> {
    now: Tick,
    entries: Vec<Entry<T>>,
    free: u32,
    /// Heads of the slots' lists; level by level.
    slots: [[u32; SLOTS]; LEVELS],
    /// One bit for each slot that is not empty.
    occupied: [u64; LEVELS],
    len: usize,
}

#[derive(Debug)]
struct Entry<T> {
    deadline: Tick,
    payload: Option<T>,
    generation: u32,
    next: u32,
    previous: u32,
    level: u8,
    slot: u8,
}

impl<T> Default for Wheel<T> {
    fn default() -> Wheel<T> {
        Wheel::new()
    }
}

impl<T> Wheel<T> {
    /// A wheel at tick 0, without timers.
    pub fn new() -> Wheel<T> {
        Wheel {
            now: 0,
            entries: Vec::new(),
            free: NONE,
            slots: [[NONE; SLOTS]; LEVELS],
            occupied: [0; LEVELS],
            len: 0,
        }
    }

    /// The time of the latest [`advance`](Wheel::advance).
    pub fn now(&self) -> Tick {
        self.now
    }

    /// True if no timer is set.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.len
    }

    /// Sets a timer. A deadline that has passed expires at the next [`advance`](Wheel::advance).
    pub fn insert(&mut self, deadline: Tick, payload: T) -> TimerKey {
        let index = self.allocate(deadline, payload);
        self.link(index);
        self.len += 1;
        TimerKey { index, generation: self.entries[index as usize].generation }
    }

    /// Cancels a timer and returns its payload; `None` if it has expired, or the key names none.
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        let entry = self.entries.get(key.index as usize)?;
        if entry.generation != key.generation || entry.payload.is_none() {
            return None;
        }
        self.unlink(key.index);
        self.len -= 1;
        Some(self.release(key.index))
    }

    /// Next tick at which [`advance`](Wheel::advance) has work: the earliest deadline or, for far
    /// timers, the time at which they are sorted into a finer level. `None` without timers.
    pub fn next_expiry(&self) -> Option<Tick> {
        (0..LEVELS).filter_map(|level| self.next_slot_start(level)).min()
    }

    /// The start of the first slot of this level that is not empty.
    fn next_slot_start(&self, level: usize) -> Option<Tick> {
        let shift = level * SLOT_BITS;
        let position = (self.now >> shift) as usize % SLOTS;
        let ahead = self.occupied[level].rotate_right(position as u32);
        (ahead != 0).then(|| {
            let slot_start = (self.now >> shift) + u64::from(ahead.trailing_zeros());
            (slot_start << shift).max(self.now)
        })
    }

    /// Moves the time to `now` and hands every expired timer to `expire`.
    pub fn advance(&mut self, now: Tick, mut expire: impl FnMut(T)) {
        while let Some(due) = self.next_expiry().filter(|&due| due <= now) {
            self.now = self.now.max(due);
            self.expire_due(&mut expire);
        }
        self.now = self.now.max(now);
    }

    /// Empties the current slot of every level: due timers expire, the others move down.
    fn expire_due(&mut self, expire: &mut impl FnMut(T)) {
        for level in 0..LEVELS {
            let slot = (self.now >> (level * SLOT_BITS)) as usize % SLOTS;
            while self.slots[level][slot] != NONE {
                let index = self.slots[level][slot];
                self.unlink(index);
                if self.entries[index as usize].deadline <= self.now {
                    self.len -= 1;
                    expire(self.release(index));
                } else {
                    self.link(index);
                }
            }
        }
    }

    /// Cancels all timers and returns the deadline and the payload of each.
    pub fn drain(&mut self) -> Vec<(Tick, T)> {
        let linked = (0..self.entries.len()).filter(|&index| self.entries[index].payload.is_some());
        let linked: Vec<_> = linked.collect();
        let taken = linked.into_iter().map(|index| {
            let deadline = self.entries[index].deadline;
            self.unlink(index as u32);
            self.len -= 1;
            (deadline, self.release(index as u32))
        });
        taken.collect()
    }

    fn allocate(&mut self, deadline: Tick, payload: T) -> u32 {
        if self.free == NONE {
            self.free = u32::try_from(self.entries.len()).expect("fewer than 2^32 timers");
            self.entries.push(Entry {
                deadline,
                payload: None,
                generation: FIRST_GENERATION,
                next: NONE,
                previous: NONE,
                level: 0,
                slot: 0,
            });
        }
        let index = self.free;
        let entry = &mut self.entries[index as usize];
        self.free = entry.next;
        entry.deadline = deadline;
        entry.payload = Some(payload);
        index
    }

    fn release(&mut self, index: u32) -> T {
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.checked_add(1).unwrap_or(FIRST_GENERATION);
        entry.next = self.free;
        self.free = index;
        entry.payload.take().expect("a linked timer has its payload")
    }

    /// Puts the entry at the front of the slot that its deadline belongs to.
    fn link(&mut self, index: u32) {
        let deadline = self.entries[index as usize].deadline.max(self.now);
        let (level, slot) = self.place(deadline);
        let head = std::mem::replace(&mut self.slots[level][slot], index);
        if head != NONE {
            self.entries[head as usize].previous = index;
        }
        let entry = &mut self.entries[index as usize];
        entry.next = head;
        entry.previous = NONE;
        entry.level = level as u8;
        entry.slot = slot as u8;
        self.occupied[level] |= 1 << slot;
    }

    fn unlink(&mut self, index: u32) {
        let Entry { next, previous, level, slot, .. } = self.entries[index as usize];
        let level = usize::from(level);
        let slot = usize::from(slot);
        match previous {
            NONE => self.slots[level][slot] = next,
            _ => self.entries[previous as usize].next = next,
        }
        if next != NONE {
            self.entries[next as usize].previous = previous;
        }
        if self.slots[level][slot] == NONE {
            self.occupied[level] &= !(1 << slot);
        }
    }

    /// The finest level whose 64 slots reach from now to the deadline.
    fn place(&self, deadline: Tick) -> (usize, usize) {
        for level in 0..LEVELS {
            let shift = level * SLOT_BITS;
            if (deadline >> shift) - (self.now >> shift) < SLOTS as u64 {
                return (level, (deadline >> shift) as usize % SLOTS);
            }
        }
        let last = LEVELS - 1;
        let farthest = (self.now >> (last * SLOT_BITS)) + SLOTS as u64 - 1;
        (last, farthest as usize % SLOTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn expired(wheel: &mut Wheel<u32>, now: Tick) -> Vec<u32> {
        let mut all = Vec::new();
        wheel.advance(now, |payload| all.push(payload));
        all
    }

    #[test]
    fn expires_at_its_tick() {
        let mut wheel = Wheel::new();
        wheel.insert(5_000, 1);
        assert!(expired(&mut wheel, 4_999).is_empty());
        assert_eq!(expired(&mut wheel, 5_000), [1]);
        assert!(wheel.is_empty());
    }

    #[test]
    fn past_deadline_expires_at_once() {
        let mut wheel = Wheel::new();
        wheel.advance(100, |_: u32| ());
        wheel.insert(3, 7);
        assert_eq!(wheel.next_expiry(), Some(100));
        assert_eq!(expired(&mut wheel, 100), [7]);
    }

    #[test]
    fn cancelled_timer_does_not_expire() {
        let mut wheel = Wheel::new();
        let key = wheel.insert(10, 1);
        wheel.insert(10, 2);
        assert_eq!(wheel.cancel(key), Some(1));
        assert_eq!(wheel.cancel(key), None);
        assert_eq!(expired(&mut wheel, 10), [2]);
    }

    #[test]
    fn stale_key_cancels_nothing() {
        let mut other = Wheel::new();
        let keys: Vec<_> = (0..10).map(|n| other.insert(1000 + n, 1)).collect();
        let mut wheel = Wheel::new();
        assert_eq!(wheel.cancel(keys[9]), None, "beyond the table");
        wheel.insert(10, 1);
        assert_eq!(wheel.cancel(TimerKey::default()), None);
        assert_eq!(expired(&mut wheel, 10), [1]);
        let expired_here = wheel.insert(20, 2);
        wheel.cancel(expired_here);
        let mut twin = Wheel::new();
        let mut key = TimerKey::default();
        for _ in 0..3 {
            twin.cancel(key);
            key = twin.insert(20, 3);
        }
        assert_eq!(wheel.cancel(key), None, "the entry is free");
    }

    #[test]
    fn drain_empties_the_wheel() {
        let mut wheel = Wheel::new();
        let deadlines = [5, 70, 5_000, 1 << 40];
        let keys = deadlines.map(|deadline| wheel.insert(deadline, deadline as u32));
        wheel.cancel(keys[1]);
        let mut drained = wheel.drain();
        drained.sort_unstable();
        assert_eq!(drained, [(5, 5), (5_000, 5_000), (1 << 40, 0)]);
        assert!(wheel.is_empty() && wheel.next_expiry().is_none());
        assert_eq!(wheel.cancel(keys[0]), None);
        assert!(expired(&mut wheel, u64::MAX / 2).is_empty());
    }

    #[test]
    fn timer_beyond_all_levels_expires() {
        let far = u64::MAX / 2;
        let mut wheel = Wheel::new();
        wheel.insert(far, 1);
        assert!(expired(&mut wheel, far - 1).is_empty());
        assert_eq!(expired(&mut wheel, far), [1]);
    }

    proptest! {
        /// Compares the wheel with the obvious model, a sorted set of (deadline, timer).
        #[test]
        fn agrees_with_a_sorted_set(
            steps in prop::collection::vec((0u8..3, 0u64..300_000, any::<prop::sample::Index>()), 1..300)
        ) {
            let mut wheel = Wheel::new();
            let mut model = BTreeSet::new();
            let mut keys = Vec::new();
            let mut now = 0;
            for (number, (step, ticks, which)) in (0u32..).zip(steps) {
                match step {
                    0 => {
                        keys.push((wheel.insert(now + ticks, number), now + ticks, number));
                        model.insert((now + ticks, number));
                    }
                    1 if !keys.is_empty() => {
                        let (key, deadline, payload) = keys.swap_remove(which.index(keys.len()));
                        prop_assert_eq!(wheel.cancel(key), Some(payload));
                        model.remove(&(deadline, payload));
                    }
                    _ => {
                        now += ticks / 8;
                        let mut got = expired(&mut wheel, now);
                        let late = model.split_off(&(now + 1, 0));
                        let mut due: Vec<u32> = model.iter().map(|&(_, payload)| payload).collect();
                        model = late;
                        got.sort_unstable();
                        due.sort_unstable();
                        prop_assert_eq!(&got, &due);
                        keys.retain(|&(_, _, payload)| !got.contains(&payload));
                    }
                }
                prop_assert_eq!(wheel.len(), model.len());
                if let Some(&(first, _)) = model.first() {
                    prop_assert!(wheel.next_expiry().unwrap() <= first);
                }
            }
        }
    }
}
