//! Timers of many connections: a hierarchical wheel. Varghese and Lauck, 1987
//!
//! ```text
//!   level 0   64 slots of 1 tick          ┐ a slot is the head of a list of connections,
//!   level 1   64 slots of 64 ticks        │ linked through `links`, one link for each
//!   level 2   64 slots of 4096 ticks      │ connection: nothing is allocated for a timer
//!   level 3   64 slots of 262 144 ticks   │
//!   level 4   64 slots of 16 777 216      ┘ a tick is a millisecond: 12 days in all
//! ```
//!
//! When level 0 has gone round, the next slot of level 1 is dealt out over it, and so on. A
//! deadline that is put off is not moved: the connection is looked at when the old one comes, and
//! says then when the next one is. Each acknowledgement puts one off, so this is the common case.

use crate::time::Instant;

const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const LEVELS: usize = 5;
const NONE: u32 = u32::MAX;
const NANOS_PER_TICK: u64 = 1_000_000;

/// The longest wait; a deadline beyond it is looked at early.
const TICKS_MAX: u64 = (1 << (SLOT_BITS * LEVELS as u32)) - SLOTS as u64;

/// Which connections are due.
#[derive(Clone, Debug)]
pub struct TimerWheel {
    heads: [[u32; SLOTS]; LEVELS],
    /// A bit for each slot that is not empty.
    occupied: [u64; LEVELS],
    links: Vec<Link>,
    /// All ticks up to this one have been seen to.
    now: u64,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
    tick: u64,
    level: u8,
    slot: u8,
    is_armed: bool,
}

const UNARMED: Link = Link {
    previous: NONE,
    next: NONE,
    tick: 0,
    level: 0,
    slot: 0,
    is_armed: false,
};

impl TimerWheel {
    /// Nothing is armed.
    pub fn new() -> TimerWheel {
        TimerWheel {
            heads: [[NONE; SLOTS]; LEVELS],
            occupied: [0; LEVELS],
            links: Vec::new(),
            now: 0,
        }
    }

    /// `index` is to be looked at when `at` has come, or before.
    pub fn arm(&mut self, index: u32, at: Instant) {
        if at == Instant::NEVER {
            return;
        }
        let tick = at.as_nanos().div_ceil(NANOS_PER_TICK);
        // The tick that is now has been seen to.
        let tick = tick.clamp(self.now + 1, self.now + TICKS_MAX);
        if self.links.len() <= index as usize {
            self.links.resize(index as usize + 1, UNARMED);
        }
        let link = self.links[index as usize];
        if link.is_armed {
            if link.tick <= tick {
                return;
            }
            self.unlink(index);
        }
        self.link(index, tick);
    }

    /// `index` is not looked at any more.
    pub fn disarm(&mut self, index: u32) {
        if self
            .links
            .get(index as usize)
            .is_some_and(|link| link.is_armed)
        {
            self.unlink(index);
        }
    }

    /// Gives the next connection whose time has come. Called until there is none.
    pub fn expired(&mut self, now: Instant) -> Option<u32> {
        let to = now.as_nanos() / NANOS_PER_TICK;
        loop {
            let slot = self.now as usize % SLOTS;
            let head = self.heads[0][slot];
            if head != NONE {
                self.unlink(head);
                return Some(head);
            }
            if self.now >= to {
                return None;
            }
            self.advance(to);
        }
    }

    /// When something may be due; never if nothing is armed.
    pub fn wakes_at(&self) -> Instant {
        let mut earliest = u64::MAX;
        for level in 0..LEVELS {
            if let Some(ticks) = self.next_of_level(level) {
                earliest = earliest.min(ticks);
            }
        }
        match earliest {
            u64::MAX => Instant::NEVER,
            tick => Instant::from_nanos(tick * NANOS_PER_TICK),
        }
    }

    /// The tick at which the next slot of a level that is in use begins.
    fn next_of_level(&self, level: usize) -> Option<u64> {
        let occupied = self.occupied[level];
        if occupied == 0 {
            return None;
        }
        let shift = SLOT_BITS * level as u32;
        let turns = self.now >> shift;
        // A slot of level 0 that is now holds what is due; one above was dealt out already, so it
        // holds what comes a whole turn later.
        let from = turns + u64::from(level > 0);
        let ahead = occupied
            .rotate_right((from % SLOTS as u64) as u32)
            .trailing_zeros();
        Some((from + u64::from(ahead)) << shift)
    }

    /// Goes to the next tick at which there is something to do, at most to `to`.
    fn advance(&mut self, to: u64) {
        // Nothing can happen before the next slot of any level begins.
        let next = (0..LEVELS).filter_map(|level| {
            let at = self.next_of_level(level)?;
            (at > self.now).then_some(at)
        });
        self.now = next.min().unwrap_or(to).min(to);
        for level in 1..LEVELS {
            let shift = SLOT_BITS * level as u32;
            if self.now & ((1 << shift) - 1) != 0 {
                break;
            }
            self.deal_out(level, (self.now >> shift) as usize % SLOTS);
        }
    }

    fn deal_out(&mut self, level: usize, slot: usize) {
        while self.heads[level][slot] != NONE {
            let index = self.heads[level][slot];
            let tick = self.links[index as usize].tick;
            self.unlink(index);
            self.link(index, tick.max(self.now));
        }
    }

    fn link(&mut self, index: u32, tick: u64) {
        let wait = tick - self.now;
        let level = (0..LEVELS)
            .find(|level| wait < 1 << (SLOT_BITS * (*level as u32 + 1)))
            .unwrap_or(LEVELS - 1);
        let slot = (tick >> (SLOT_BITS * level as u32)) as usize % SLOTS;
        let next = self.heads[level][slot];
        self.links[index as usize] = Link {
            previous: NONE,
            next,
            tick,
            level: level as u8,
            slot: slot as u8,
            is_armed: true,
        };
        if next != NONE {
            self.links[next as usize].previous = index;
        }
        self.heads[level][slot] = index;
        self.occupied[level] |= 1 << slot;
    }

    fn unlink(&mut self, index: u32) {
        let link = self.links[index as usize];
        let (level, slot) = (usize::from(link.level), usize::from(link.slot));
        match link.previous {
            NONE => self.heads[level][slot] = link.next,
            previous => self.links[previous as usize].next = link.next,
        }
        if link.next != NONE {
            self.links[link.next as usize].previous = link.previous;
        }
        if self.heads[level][slot] == NONE {
            self.occupied[level] &= !(1 << slot);
        }
        self.links[index as usize] = UNARMED;
    }
}

impl Default for TimerWheel {
    fn default() -> TimerWheel {
        TimerWheel::new()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * NANOS_PER_TICK)
    }

    #[test]
    fn timers_expire_on_time_not_before() {
        for ms in [
            1,
            2,
            63,
            64,
            65,
            4095,
            4096,
            5000,
            300_000,
            20_000_000,
            900_000_000,
        ] {
            let mut wheel = TimerWheel::new();
            wheel.arm(3, at(ms));
            assert_eq!(wheel.expired(at(ms - 1)), None, "{ms}");
            assert_eq!(wheel.expired(at(ms)), Some(3), "{ms}");
            assert_eq!(wheel.expired(at(ms)), None, "{ms}");
            assert_eq!(wheel.wakes_at(), Instant::NEVER);
        }
    }

    #[test]
    fn part_of_a_tick_is_rounded_up() {
        let mut wheel = TimerWheel::new();
        wheel.arm(0, Instant::from_nanos(1_500_000));
        assert_eq!(wheel.expired(Instant::from_nanos(1_999_999)), None);
        assert_eq!(wheel.expired(Instant::from_nanos(2_000_000)), Some(0));
    }

    #[test]
    fn it_agrees_with_an_ordered_map() {
        let mut state = 3_u64;
        let mut random = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        let mut wheel = TimerWheel::new();
        let mut model: BTreeMap<u32, u64> = BTreeMap::new();
        let mut now = 0;
        for _ in 0..3000 {
            for _ in 0..random(4) {
                let index = random(50) as u32;
                let reach = 1 << random(26);
                let tick = now + 1 + random(reach);
                wheel.arm(index, at(tick));
                let earliest = model.get(&index).map_or(tick, |&old| old.min(tick));
                model.insert(index, earliest);
            }
            if random(10) == 0 {
                let index = random(50) as u32;
                wheel.disarm(index);
                model.remove(&index);
            }
            let first = model.values().min().copied();
            let wakes_at = wheel.wakes_at();
            assert!(first.is_none_or(|first| wakes_at <= at(first)), "too late");
            assert_eq!(first.is_none(), wakes_at == Instant::NEVER);
            let reach = 1 << random(20);
            now += random(reach);
            let mut due = Vec::new();
            while let Some(index) = wheel.expired(at(now)) {
                due.push(index);
            }
            due.sort();
            let expected = model.iter().filter(|(_, tick)| **tick <= now);
            let expected: Vec<u32> = expected.map(|(index, _)| *index).collect();
            assert_eq!(due, expected, "at {now}");
            model.retain(|_, tick| *tick > now);
        }
    }
}
