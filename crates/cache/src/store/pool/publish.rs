//! Publishing a new version of an item, and changing one in place, under its bucket's lock.

use std::sync::atomic::Ordering::Relaxed;

use crate::store::index::{At, Locked};
use crate::store::memory::arena::Chunk;
use crate::store::memory::layout::Layout;
use crate::store::memory::mark;
use crate::store::pool::Pool;
use crate::store::pool::reservation::RawReservation;
use crate::store::rule::{DeleteRule, NEVER, Seconds, StoreError};
use crate::store::slab::{Clock, Use, Victim, set_generation};

/// Header fields of a version to publish.
pub(crate) struct NewVersion {
    pub(crate) hash: u64,
    pub(crate) marks: u32,
    pub(crate) cas: u64,
    pub(crate) clock: Clock,
    /// Counted as a store (`cmd_set`).
    pub(crate) in_set: bool,
}

/// State of an item that may change in place, under its bucket's lock. A version made from the item
/// is discarded if this has changed by the time it is published.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) cas: u64,
    /// Stale and win.
    pub(crate) marks: u32,
}

impl Pool {
    pub(crate) fn version(&self, chunk: Chunk) -> Version {
        let header = self.arena.header(chunk);
        Version {
            cas: header.cas.load(Relaxed),
            marks: header.state.load(Relaxed) & (mark::STALE | mark::WIN),
        }
    }

    /// Publishes a full reservation as the item of its key, replacing `found` if there is one.
    pub(crate) fn publish<'i>(
        &self,
        locked: &mut Locked<'i>,
        found: Option<(At<'i>, Chunk)>,
        raw: &RawReservation,
        new: NewVersion,
    ) {
        let header = self.arena.header(raw.chunk);
        let chunk = raw.chunk;
        let old_state = found.map(|(_, old)| self.arena.header(old).state.load(Relaxed));
        // Read under the lock: a flush during the upload does not remove the item.
        let generation = self.generation_to_store_in();
        set_generation(header, generation);
        // A store over an item is a use of it: the old version's hits and this store count.
        let used = match (found, old_state) {
            (Some((_, old)), Some(state)) if !new.clock.is_dead(&self.arena, old) => {
                mark::used(state) + 1
            }
            _ => 0,
        };
        header.state.store(mark::with_use(mark::fresh(generation) | new.marks, used), Relaxed);
        header.cas.store(new.cas, Relaxed);
        header.last_access.store(new.clock.now, Relaxed);
        match found {
            None => locked.insert(chunk),
            Some((at, _)) => locked.replace(at, chunk),
        }
        let class_id = self.owners.class_of(chunk);
        let dead = found.filter(|(_, old)| new.clock.is_dead(&self.arena, *old));
        match found {
            Some((_, old)) if dead.is_none() && self.owners.class_of(old) == class_id => {
                let mut class = self.class(class_id);
                class.replace(&self.arena, old, chunk);
                class.retire(&self.arena, old, &self.epochs);
                class.counts.cmd_set += u64::from(new.in_set);
            }
            Some((_, old)) => {
                let place = self.retire_old(old, dead.is_some(), new.clock.now);
                let mut class = self.class(class_id);
                match place {
                    Use::Main if dead.is_none() => class.enqueue_in(&self.arena, chunk, Use::Main),
                    _ => class.enqueue(&self.arena, chunk, new.hash),
                }
                class.counts.cmd_set += u64::from(new.in_set);
            }
            None => {
                let mut class = self.class(class_id);
                class.enqueue(&self.arena, chunk, new.hash);
                class.counts.cmd_set += u64::from(new.in_set);
            }
        }
    }

    fn retire_old(&self, old: Chunk, is_dead: bool, now: Seconds) -> Use {
        let mut class = self.class_of(old);
        if is_dead {
            class.count_victim(&self.arena, Victim { chunk: old, is_dead }, now);
        }
        class.retire(&self.arena, old, &self.epochs)
    }

    /// Changes an item's marks in place, under its bucket's lock.
    pub(crate) fn keep_changed(&self, chunk: Chunk, rule: DeleteRule) {
        let header = self.arena.header(chunk);
        if rule.clear_value {
            header.flags.store(0, Relaxed);
            header.state.fetch_and(!(mark::STALE | mark::WIN), Relaxed);
            let exptime = rule.exptime.unwrap_or(NEVER);
            header.exptime.store(exptime, Relaxed);
        }
        if rule.invalidate {
            header.state.fetch_or(mark::STALE, Relaxed);
            header.state.fetch_and(!mark::WIN, Relaxed);
        }
        if let Some(exptime) = rule.exptime.filter(|_| rule.invalidate) {
            header.exptime.store(exptime, Relaxed);
        }
        header.cas.store(self.cas_of(rule.new_cas), Relaxed);
    }

    /// Builds an item with the key and flags of `like` from the values of `parts`. The caller must
    /// hold references to them.
    pub(crate) fn concatenate(
        &self,
        like: Chunk,
        parts: &[Chunk; 2],
        clock: Clock,
    ) -> Result<RawReservation, StoreError> {
        let len_of = |chunk: &Chunk| self.arena.header(*chunk).value_len.load(Relaxed) as usize;
        let value_len = parts.iter().map(len_of).sum();
        let flags = self.arena.header(like).flags.load(Relaxed);
        let mut joined = self.begin(self.key(like), value_len, flags, 0, clock)?;
        for chunk in parts {
            let layout = Layout::of(&self.arena, *chunk);
            for at in 0..layout.pieces() {
                if let Err(error) = joined.fill(self, self.piece(*chunk, &layout, at), clock) {
                    joined.discard(self);
                    return Err(error);
                }
            }
        }
        Ok(joined)
    }
}
