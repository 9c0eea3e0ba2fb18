//! The ghost queue of S3-FIFO: keys that recently left the small queue, without their values.
//!
//! The paper keeps it as a hash table of 4-byte fingerprints with times. Here a bucket is one word
//! of four 16-bit fingerprints, newest lowest; a fifth pushes the oldest out. With as many slots as
//! the class has items this is a FIFO queue of about that length, for two bytes per item and one
//! cache line per lookup. A false positive occurs once in 2^14 lookups; it only puts a new item
//! into the main queue too early.

#[derive(Debug, Default)]
pub(crate) struct Ghosts {
    buckets: Vec<u64>,
}

impl Ghosts {
    /// Makes space for about `items` keys. Only grows; known keys stay known.
    pub(crate) fn fit(&mut self, items: usize) {
        let wanted = (items / 4).next_power_of_two();
        if self.buckets.is_empty() {
            self.buckets = vec![0; wanted];
        }
        while self.buckets.len() < wanted {
            // A key's bucket is the low bits of its hash, so with one more bit it may be in the
            // copy.
            self.buckets.extend_from_within(..);
        }
    }

    pub(crate) fn insert(&mut self, hash: u64) {
        if let Some((bucket, fingerprint)) = self.find(hash) {
            *bucket = *bucket << 16 | fingerprint;
        }
    }

    /// Removes the key; returns whether it was known.
    pub(crate) fn remove(&mut self, hash: u64) -> bool {
        let Some((bucket, fingerprint)) = self.find(hash) else {
            return false;
        };
        let known = (0..4).find(|at| *bucket >> (16 * at) & 0xffff == fingerprint);
        if let Some(at) = known {
            *bucket &= !(0xffff << (16 * at));
        }
        known.is_some()
    }

    pub(crate) fn memory_len(&self) -> usize {
        self.buckets.len() * 8
    }

    fn find(&mut self, hash: u64) -> Option<(&mut u64, u64)> {
        let mask = self.buckets.len().checked_sub(1)?;
        // 0 means an empty slot.
        let fingerprint = (hash >> 40 & 0xffff).max(1);
        Some((&mut self.buckets[hash as usize & mask], fingerprint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(key: u64) -> u64 {
        key.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    #[test]
    fn remembers_the_latest_keys() {
        let mut ghosts = Ghosts::default();
        ghosts.fit(1024);
        (0..10_000).for_each(|key| ghosts.insert(hash(key)));
        let known = |ghosts: &mut Ghosts, keys: std::ops::Range<u64>| {
            keys.filter(|key| ghosts.remove(hash(*key))).count()
        };
        assert!(known(&mut ghosts, 9_900..10_000) > 95);
        assert!(known(&mut ghosts, 0..6_000) < 60);
    }

    #[test]
    fn growing_forgets_nothing() {
        let mut ghosts = Ghosts::default();
        ghosts.fit(64);
        (0..16).for_each(|key| ghosts.insert(hash(key)));
        let before = (0..16).filter(|key| ghosts.buckets[hash(*key) as usize & 15] != 0).count();
        ghosts.fit(4096);
        let after = (0..16).filter(|key| ghosts.remove(hash(*key))).count();
        assert_eq!((before, ghosts.buckets.len()), (16, 1024));
        assert!(after >= 14, "a bucket of more than four may have lost some: {after}");
    }

    #[test]
    fn knows_nothing_without_space() {
        let mut ghosts = Ghosts::default();
        ghosts.insert(hash(1));
        assert!(!ghosts.remove(hash(1)));
    }
}
