//! Deadlines of connections, by their index, on a [timer wheel](timer::Wheel) of milliseconds.
//!
//! A deadline that is put off does not move its timer: the caller looks at the connection when the
//! old deadline comes, and arms the next one then. Each acknowledgement puts one off, so this is
//! the common case.

use timer::{Tick, TimerKey, Wheel};

use crate::time::Instant;

const NANOS_PER_TICK: u64 = 1_000_000;

/// Deadline of an index that is not armed.
const UNARMED: Tick = Tick::MAX;
/// Deadline of an index that waits in `due`.
const DUE: Tick = 0;

/// One deadline for each index.
#[derive(Debug, Default)]
pub struct TimerWheel {
    wheel: Wheel<u32>,
    /// The timer of each index, and when it expires.
    armed: Vec<(TimerKey, Tick)>,
    /// Expired, and not yet handed out.
    due: Vec<u32>,
}

impl TimerWheel {
    /// Makes `index` expire at `at` or before. Never later than it was armed for.
    pub fn arm(&mut self, index: u32, at: Instant) {
        if at == Instant::NEVER {
            return;
        }
        // The present tick has been processed.
        let tick = at.as_nanos().div_ceil(NANOS_PER_TICK);
        let tick = tick.max(self.wheel.now() + 1);
        if self.armed.len() <= index as usize {
            let unarmed = (TimerKey::default(), UNARMED);
            self.armed.resize(index as usize + 1, unarmed);
        }
        let armed = &mut self.armed[index as usize];
        if armed.1 > tick {
            self.wheel.cancel(armed.0);
            *armed = (self.wheel.insert(tick, index), tick);
        }
    }

    /// Cancels the deadline of `index`, if it has one.
    pub fn disarm(&mut self, index: u32) {
        if let Some(armed) = self.armed.get_mut(index as usize) {
            self.wheel.cancel(armed.0);
            armed.1 = UNARMED;
        }
    }

    /// Returns the next index whose deadline has passed. Call it until there is none.
    pub fn expired(&mut self, now: Instant) -> Option<u32> {
        if self.due.is_empty() {
            self.wheel.advance(now.as_nanos() / NANOS_PER_TICK, |index| {
                self.armed[index as usize].1 = DUE;
                self.due.push(index);
            });
        }
        while let Some(index) = self.due.pop() {
            let armed = &mut self.armed[index as usize];
            // It may have been disarmed, and armed anew, since it expired.
            if armed.1 == DUE {
                armed.1 = UNARMED;
                return Some(index);
            }
        }
        None
    }

    /// Earliest time at which [`expired`](TimerWheel::expired) may return something; never if
    /// nothing is armed.
    pub fn wakes_at(&self) -> Instant {
        match self.wheel.next_expiry() {
            Some(tick) => Instant::from_nanos(tick.saturating_mul(NANOS_PER_TICK)),
            None => Instant::NEVER,
        }
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
    fn part_of_a_tick_rounds_up() {
        let mut wheel = TimerWheel::default();
        wheel.arm(0, Instant::from_nanos(1_500_000));
        assert_eq!(wheel.expired(Instant::from_nanos(1_999_999)), None);
        assert_eq!(wheel.expired(Instant::from_nanos(2_000_000)), Some(0));
    }

    #[test]
    fn agrees_with_an_ordered_map() {
        let mut state = 3_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let mut wheel = TimerWheel::default();
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
