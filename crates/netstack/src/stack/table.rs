//! Connections by four-tuple: a hash table with open addressing.
//!
//! ```text
//!   bucket  | hash, what | hash, what |  empty  | hash, what | hash, what | ···    8 bytes each
//!              home of the key ─▶ next ─▶ next ─▶ until empty
//! ```
//!
//! A bucket holds a part of the hash and a number. The key itself lies with the connection of that
//! number, and is compared only if the hashes agree. A removal closes the gap behind it, so there
//! are no tombstones, and look-ups do not grow with age. At most half of the buckets are in use.

/// Numbers by hash. The caller compares keys.
#[derive(Clone, Debug)]
pub(super) struct FlowTable {
    slots: Vec<Bucket>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    hash: u32,
    what: u32,
}

const EMPTY: u32 = u32::MAX;
const SLOTS_MIN: usize = 64;

impl FlowTable {
    /// An empty table, which takes little memory.
    pub(super) fn new() -> FlowTable {
        FlowTable { slots: vec![Bucket { hash: 0, what: EMPTY }; SLOTS_MIN], len: 0 }
    }

    /// The number with this hash for which `is_it` is true.
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let at = self.position(hash, is_it)?;
        Some(self.slots[at].what)
    }

    /// Adds a number that is not in it.
    ///
    /// # Panics
    ///
    /// If the number is `u32::MAX`.
    pub(super) fn insert(&mut self, hash: u64, what: u32) {
        assert!(what != EMPTY, "all ones mark an empty slot");
        if (self.len + 1) * 2 > self.slots.len() {
            self.grow();
        }
        self.len += 1;
        self.put(Bucket { hash: hash as u32, what });
    }

    /// Replaces the number `old` by another one of the same key.
    pub(super) fn replace(&mut self, hash: u64, old: u32, new: u32) {
        let at = self.position(hash, |what| what == old);
        let at = at.unwrap_or_else(|| panic!("{old} is not in the table"));
        self.slots[at].what = new;
    }

    /// Removes a number.
    pub(super) fn remove(&mut self, hash: u64, what: u32) {
        let at = self.position(hash, |other| other == what);
        let Some(mut gap) = at else {
            panic!("{what} is not in the table");
        };
        self.len -= 1;
        let mask = self.slots.len() - 1;
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let slot = self.slots[at];
            if slot.what == EMPTY {
                break;
            }
            // It may move into the gap unless its home lies behind the gap.
            let home = slot.hash as usize & mask;
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(gap) & mask) {
                self.slots[gap] = slot;
                gap = at;
            }
        }
        self.slots[gap].what = EMPTY;
    }

    fn position(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<usize> {
        let mask = self.slots.len() - 1;
        let hash = hash as u32;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot.what == EMPTY {
                return None;
            }
            if slot.hash == hash && is_it(slot.what) {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
    }

    fn put(&mut self, slot: Bucket) {
        let mask = self.slots.len() - 1;
        let mut at = slot.hash as usize & mask;
        while self.slots[at].what != EMPTY {
            at = (at + 1) & mask;
        }
        self.slots[at] = slot;
    }

    fn grow(&mut self) {
        let larger = vec![Bucket { hash: 0, what: EMPTY }; self.slots.len() * 2];
        for slot in std::mem::replace(&mut self.slots, larger) {
            if slot.what != EMPTY {
                self.put(slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Few hashes, many of them at the end of the table: long runs that wrap.
    fn hash_of(what: u32) -> u64 {
        let end = if what.is_multiple_of(2) { 0xfff0 } else { 0 };
        u64::from(what % 37) | end
    }

    #[test]
    fn agrees_with_a_hash_map() {
        let mut state = 7_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 33
        };
        let mut table = FlowTable::new();
        let mut model: HashMap<u32, u64> = HashMap::new();
        for step in 0..20_000 {
            let what = (random() % 500) as u32;
            let hash = hash_of(what);
            if model.remove(&what).is_some() {
                table.remove(hash, what);
            } else if step % 3 > 0 {
                table.insert(hash, what);
                model.insert(what, hash);
            }
            assert_eq!(table.len, model.len());
            if step % 50 == 0 {
                for what in 0..500_u32 {
                    let found = table.find(hash_of(what), |other| other == what);
                    assert_eq!(found, model.contains_key(&what).then_some(what));
                }
            }
        }
    }
}
