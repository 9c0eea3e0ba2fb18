//! The word of a header that readers may change.
//!
//! ```text
//!  31      22 21       20   19    18      17 16 15        0
//! ┌──────────┬─────────┬───┬─────┬───────┬─────┬────────────┐
//! │generation│ retired │win│stale│fetched│ use │ references │
//! └──────────┴─────────┴───┴─────┴───────┴─────┴────────────┘
//! ```
//!
//! *References* belong to the replies that send the value in place, one each, and to the writes
//! that make a new version from it; *use* counts hits up to 3, for eviction. Both marks of a hit
//! change rarely (the third hit of an item writes nothing), so the cache lines of hot items stay
//! shared between processors. The *generation* has 15 bits: the low 10 are here, the others beside
//! the chunk's use (`slab::Use`).

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

const REFERENCES: u32 = 0xffff;
/// Most replies that send one item at a time; further ones are refused.
pub(crate) const READERS_MAX: u32 = 0xf000;
/// A higher limit for writes: clients that read slowly must not prevent writes. A write holds its
/// reference for one call, so there are never more than threads.
pub(crate) const WRITERS_MAX: u32 = REFERENCES;
const USE_SHIFT: u32 = 16;
const USE: u32 = 3 << USE_SHIFT;
pub(crate) const FETCHED: u32 = 1 << 18;
pub(crate) const STALE: u32 = 1 << 19;
pub(crate) const WIN: u32 = 1 << 20;
const RETIRED: u32 = 1 << 21;
const GENERATION_SHIFT: u32 = 22;
/// Number of generation bits in this word.
pub(crate) const GENERATION_BITS: u32 = 32 - GENERATION_SHIFT;

/// A new item's state: no references, no marks.
pub(crate) fn fresh(generation: u16) -> u32 {
    u32::from(generation) << GENERATION_SHIFT
}

/// The generation's low bits.
pub(crate) fn generation(state: u32) -> u16 {
    (state >> GENERATION_SHIFT) as u16
}

pub(crate) fn used(state: u32) -> u32 {
    (state & USE) >> USE_SHIFT
}

pub(crate) fn is_referenced(state: u32) -> bool {
    state & REFERENCES != 0
}

pub(crate) fn with_use(state: u32, used: u32) -> u32 {
    state & !USE | used.min(3) << USE_SHIFT
}

/// Marks that a copy of an item inherits: all but the references.
pub(crate) fn inherited(state: u32) -> u32 {
    state & !(REFERENCES | RETIRED)
}

/// Marks a hit; returns the state before.
#[inline]
pub(crate) fn hit(state: &AtomicU32) -> u32 {
    let before = state.load(Relaxed);
    let after = with_use(before, used(before) + 1) | FETCHED;
    if after != before {
        // A lost race was won by another hit: one of two simultaneous hits may go uncounted.
        let _ = state.compare_exchange(before, after, Relaxed, Relaxed);
    }
    before
}

/// Sets the use count, whatever else changes meanwhile.
pub(crate) fn set_use(state: &AtomicU32, used: u32) {
    state
        .fetch_update(Relaxed, Relaxed, |state| Some(with_use(state, used)))
        .expect("the closure returns Some");
}

/// Takes a reference. Refused if there are `count_max`.
pub(crate) fn reference(state: &AtomicU32, count_max: u32) -> bool {
    // Nothing is added before the check: giving a refused reference back could free an item that
    // is retired meanwhile.
    state
        .fetch_update(Relaxed, Relaxed, |state| {
            (state & REFERENCES < count_max).then_some(state + 1)
        })
        .is_ok()
}

/// Gives a reference back. True if the caller must now free the memory.
pub(crate) fn unreference(state: &AtomicU32) -> bool {
    let before = state.fetch_sub(1, AcqRel);
    before & RETIRED != 0 && before & REFERENCES == 1
}

/// Prevents new references. True if there are none, and the caller must free the memory.
pub(crate) fn retire(state: &AtomicU32) -> bool {
    let before = state.fetch_or(RETIRED, AcqRel);
    before & REFERENCES == 0
}

/// Takes the win token; true for the caller that got it.
pub(crate) fn take_win(state: &AtomicU32) -> bool {
    state.fetch_or(WIN, Acquire) & WIN == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_reference_frees_retired() {
        let state = AtomicU32::new(fresh(9));
        assert!(reference(&state, READERS_MAX) && reference(&state, READERS_MAX));
        assert!(!unreference(&state));
        assert!(!retire(&state));
        assert!(unreference(&state));
    }

    #[test]
    fn retire_without_references_frees() {
        assert!(retire(&AtomicU32::new(fresh(0))));
    }

    #[test]
    fn references_never_reach_the_marks() {
        let state = AtomicU32::new(fresh(0));
        let readers = (0..70_000).filter(|_| reference(&state, READERS_MAX));
        assert_eq!(readers.count() as u32, READERS_MAX);
        let writers = (0..70_000).filter(|_| reference(&state, WRITERS_MAX));
        assert_eq!(writers.count() as u32, WRITERS_MAX - READERS_MAX);
        assert_eq!(state.load(Relaxed), WRITERS_MAX);
        assert!((1..WRITERS_MAX).all(|_| !unreference(&state)) && !retire(&state));
        assert!(unreference(&state));
    }

    #[test]
    fn copy_drops_references() {
        let marks = FETCHED | STALE | WIN;
        let state = AtomicU32::new(with_use(fresh(777) | marks, 2));
        let before = state.load(Relaxed);
        assert!((0..9).all(|_| reference(&state, READERS_MAX)) && !retire(&state));
        assert!(is_referenced(state.load(Relaxed)) && !is_referenced(before));
        let copy = inherited(state.load(Relaxed));
        assert_eq!(copy, before);
        assert_eq!((used(copy), generation(copy), copy & marks), (2, 777, marks));
        assert_eq!(used(with_use(copy, 0)), 0);
        assert_eq!(with_use(with_use(copy, 9), 2), copy);
    }

    #[test]
    fn one_of_many_takes_the_win() {
        let state = AtomicU32::new(fresh(9) | STALE);
        assert!(take_win(&state) && !take_win(&state));
        assert_eq!(state.load(Relaxed), fresh(9) | STALE | WIN);
    }

    #[test]
    fn set_use_leaves_other_bits() {
        let state = AtomicU32::new(fresh(9) | FETCHED | WIN | 5);
        set_use(&state, 3);
        set_use(&state, 1);
        assert_eq!(state.load(Relaxed), fresh(9) | FETCHED | WIN | 5 | 1 << USE_SHIFT);
        hit(&state);
        assert_eq!(used(state.load(Relaxed)), 2);
    }

    #[test]
    fn fourth_hit_writes_nothing() {
        let state = AtomicU32::new(fresh(3));
        (0..3).for_each(|_| assert!(hit(&state) != state.load(Relaxed)));
        let before = state.load(Relaxed);
        assert_eq!((used(before), generation(before)), (3, 3));
        hit(&state);
        assert_eq!(state.load(Relaxed), before);
    }
}
