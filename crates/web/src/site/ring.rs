use std::collections::HashMap;

use super::table::Id;

/// A set of table entries in a ring, with the sum of their weights and a hand that goes round. It
/// underlies the budgets for memory and page cache, and the limits on open files and paths.
///
/// ```text
///   items  ┌────┬────┬────┬────┬────┐      places: id -> index
///          │ a  │ b  │ c  │ d  │ e  │      the last item takes the place of a removed one
///          └────┴────┴────┴────┴────┘
///                      ▲ hand
/// ```
#[derive(Debug, Default)]
pub(super) struct Ring {
    items: Vec<(Id, u64)>,
    places: HashMap<Id, usize>,
    hand: usize,
    /// INVARIANT: the sum of all weights.
    weight: u64,
    /// Sum of the weights of all items ever removed.
    removed: u64,
}

impl Ring {
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn weight(&self) -> u64 {
        self.weight
    }

    pub(super) fn removed(&self) -> u64 {
        self.removed
    }

    pub(super) fn contains(&self, id: Id) -> bool {
        self.places.contains_key(&id)
    }

    pub(super) fn weight_of(&self, id: Id) -> Option<u64> {
        self.places.get(&id).map(|&at| self.items[at].1)
    }

    /// Inserts an item, or updates its weight.
    pub(super) fn insert(&mut self, id: Id, weight: u64) {
        self.remove(id);
        self.places.insert(id, self.items.len());
        self.items.push((id, weight));
        self.weight += weight;
    }

    /// Removes an item; returns whether it was present.
    pub(super) fn remove(&mut self, id: Id) -> bool {
        let Some(at) = self.places.remove(&id) else {
            return false;
        };
        let (_, weight) = self.items.swap_remove(at);
        self.weight -= weight;
        self.removed += weight;
        if let Some((moved, _)) = self.items.get(at) {
            self.places.insert(*moved, at);
        }
        true
    }

    /// The item at the hand; advances the hand.
    pub(super) fn next(&mut self) -> Option<(Id, u64)> {
        if self.hand >= self.items.len() {
            self.hand = 0;
        }
        let item = self.items.get(self.hand).copied();
        self.hand += 1;
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u64) -> Id {
        Id { path: n, encoding: None }
    }

    #[test]
    fn a_ring_weighs_what_is_in_it() {
        let mut ring = Ring::default();
        (0..10).for_each(|n| ring.insert(id(n), n));
        ring.insert(id(9), 100);
        assert!(ring.remove(id(3)) && !ring.remove(id(3)));
        assert_eq!((ring.len(), ring.weight()), (9, 45 - 9 + 100 - 3));
        assert!(ring.contains(id(9)) && !ring.contains(id(3)));
    }

    #[test]
    fn the_hand_comes_to_every_item() {
        let mut ring = Ring::default();
        assert_eq!(ring.next(), None);
        (0..5).for_each(|n| ring.insert(id(n), 1));
        ring.next();
        ring.remove(id(4));
        let mut seen: Vec<u64> = (0..4).map(|_| ring.next().unwrap().0.path).collect();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3]);
    }
}
