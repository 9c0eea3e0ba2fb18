//! Writes through a guard.
//!
//! A write prepares its new version without a lock, then decides and publishes under the bucket's
//! lock. A version made from the previous one (append, counting) holds a reference to that, and
//! starts again if another was published meanwhile.

use std::sync::atomic::Ordering::Relaxed;

use crate::number::{DECIMAL_LEN_MAX, parse_value, push_decimal};
use crate::store::access::guard::Guard;
use crate::store::access::item::Held;
use crate::store::access::reservation::Reservation;
use crate::store::memory::arena::Chunk;
use crate::store::memory::layout::Layout;
use crate::store::memory::mark;
use crate::store::memory::mark::WRITERS_MAX;
use crate::store::pool::Pool;
use crate::store::pool::counters::add;
use crate::store::pool::publish::{NewVersion, Version};
use crate::store::pool::reservation::RawReservation;
use crate::store::rule::{
    Arithmetic, Counted, DeleteRule, Deleted, Direction, Mode, NEVER, Rule, Seconds, StoreError,
    StoreOutcome,
};

impl<'s> Guard<'s> {
    /// Stores a complete value.
    pub fn store(
        &mut self,
        key: &[u8],
        value: &[u8],
        flags: u32,
        exptime: Seconds,
        rule: Rule,
    ) -> Result<StoreOutcome, StoreError> {
        let pool = self.pool();
        let clock = self.clock();
        self.unpin();
        let mut raw = pool.begin(key, value.len(), flags, exptime, clock)?;
        match raw.fill(pool, value, clock) {
            Ok(_) => self.commit_raw(raw, rule),
            Err(error) => {
                raw.discard(pool);
                Err(error)
            }
        }
    }

    /// True if an item of these lengths is within the limit of `-I`.
    pub(crate) fn fits(&self, key: &[u8], value_len: usize) -> bool {
        self.pool().check_len(key, value_len).is_ok()
    }

    /// Reserves memory for an item. The value is written to [`Reservation::space`].
    pub fn reserve(
        &mut self,
        key: &[u8],
        value_len: usize,
        flags: u32,
        exptime: Seconds,
    ) -> Result<Reservation, StoreError> {
        let clock = self.clock();
        self.unpin();
        let pool = self.pool();
        let raw = pool.begin_upload(key, value_len, flags, exptime, clock)?;
        Ok(Reservation { store: self.store.clone(), raw: Some(raw), now: self.now })
    }

    /// Publishes a full reservation as the item, if the rule allows.
    ///
    /// # Panics
    /// If the reservation is not full, or of another store.
    pub fn commit(
        &mut self,
        mut reservation: Reservation,
        rule: Rule,
    ) -> Result<StoreOutcome, StoreError> {
        assert!(
            reservation.is_full(),
            "committed a reservation that misses {} bytes",
            reservation.missing()
        );
        assert!(std::ptr::eq(reservation.store.pool(), self.pool()), "committed to another store");
        self.unpin();
        let mut raw = reservation.raw.take().expect("a reservation is whole until it is committed");
        raw.end_upload(self.pool());
        self.commit_raw(raw, rule)
    }

    fn commit_raw(&mut self, raw: RawReservation, rule: Rule) -> Result<StoreOutcome, StoreError> {
        match rule.mode {
            Mode::Append | Mode::Prepend => self.join(raw, rule),
            _ => Ok(self.commit_whole(raw, rule)),
        }
    }

    fn commit_whole(&mut self, raw: RawReservation, rule: Rule) -> StoreOutcome {
        match self.try_commit(&raw, rule) {
            Ok(stored) => stored,
            Err(refused) => {
                let pool = self.pool();
                pool.class_of(raw.chunk).counts.cmd_set += 1;
                raw.discard(pool);
                refused
            }
        }
    }

    /// Publishes a full reservation, which then belongs to the store. `Err` if the rule forbids it:
    /// the reservation stays the caller's.
    fn try_commit(
        &mut self,
        raw: &RawReservation,
        rule: Rule,
    ) -> Result<StoreOutcome, StoreOutcome> {
        let pool = self.pool();
        let hash = pool.hash_of(raw.chunk);
        let (mut locked, clock) = self.lock(hash);
        let found = locked.find(|chunk| pool.key(chunk) == pool.key(raw.chunk));
        let live =
            found.map(|(_, chunk)| chunk).filter(|chunk| !clock.is_dead(&pool.arena, *chunk));
        let stale = self.permit(live, rule)?;
        // A get that creates the item also fetches it.
        let mut marks = if rule.win_taken { mark::WIN | mark::FETCHED } else { 0 };
        if let (true, Some(live)) = (stale, live) {
            // A stale value keeps the expiry time and the taken win token of the old item.
            let old = pool.arena.header(live);
            marks |= mark::STALE | (old.state.load(Relaxed) & mark::WIN);
            let exptime = old.exptime.load(Relaxed);
            pool.arena.header(raw.chunk).exptime.store(exptime, Relaxed);
        }
        let cas = pool.cas_of(rule.new_cas);
        pool.publish(&mut locked, found, raw, NewVersion { hash, marks, cas, clock, in_set: true });
        drop(locked);
        pool.index.grow(|chunk| pool.hash_of(chunk));
        Ok(StoreOutcome::Stored { cas })
    }

    /// Checks whether a rule allows a store over the current item. True if the new version is to be
    /// stale at once.
    fn permit(&self, live: Option<Chunk>, rule: Rule) -> Result<bool, StoreOutcome> {
        let pool = self.pool();
        let mut stale = false;
        // As in memcached: an add ignores the cas, and a join checks that the item exists before it
        // compares the cas.
        let is_join = matches!(rule.mode, Mode::Append | Mode::Prepend);
        if let Some(cas) = rule.cas.filter(|_| rule.mode != Mode::Add) {
            let Some(live) = live else {
                if is_join {
                    return Err(StoreOutcome::NotStored);
                }
                add(&self.stripe().cas_misses);
                return Err(StoreOutcome::NotFound);
            };
            let current = pool.arena.header(live).cas.load(Relaxed);
            stale = rule.invalidate && cas < current && !is_join;
            let mut class = pool.class_of(live);
            // A cas of 0 never matches: with -C all items have it.
            let is_same = cas == current && cas != 0;
            if is_same {
                class.counts.cas_hits += 1
            } else {
                class.counts.cas_badval += 1
            }
            if !is_same && !stale {
                return Err(StoreOutcome::Exists);
            }
        }
        match (rule.mode, live) {
            (Mode::Add, Some(_)) => {
                // memcached counts a refused add as a use of the item, but not as a fetch.
                let state = &pool.arena.header(live.expect("matched")).state;
                mark::set_use(state, mark::used(state.load(Relaxed)) + 1);
                Err(StoreOutcome::NotStored)
            }
            (Mode::Replace, None) => Err(StoreOutcome::NotStored),
            (Mode::Append | Mode::Prepend, None) if !rule.vivify => Err(StoreOutcome::NotStored),
            _ => Ok(stale),
        }
    }

    /// Appends or prepends: makes a new version from the current item and the reservation.
    fn join(&mut self, raw: RawReservation, rule: Rule) -> Result<StoreOutcome, StoreError> {
        let pool = self.pool();
        let clock = self.clock();
        let outcome = loop {
            let key = pool.key(raw.chunk);
            let old = match self.hold(key, pool.hash(key)) {
                Ok(old) => old,
                Err(error) => break Err(error),
            };
            let Some(old) = old else {
                if rule.vivify && rule.cas.is_none() {
                    let add = Rule { mode: Mode::Add, vivify: false, ..rule };
                    match self.try_commit(&raw, add) {
                        Ok(stored) => return Ok(stored),
                        // An item was stored there meanwhile: join it.
                        Err(_) => continue,
                    }
                }
                let refused = self.permit(None, rule).err();
                break Ok(refused.unwrap_or(StoreOutcome::NotStored));
            };
            let seen = pool.version(old.chunk);
            if let Err(refused) = self.permit(Some(old.chunk), rule) {
                break Ok(refused);
            }
            let value = match rule.mode {
                Mode::Append => [old.chunk, raw.chunk],
                _ => [raw.chunk, old.chunk],
            };
            let joined = match pool.concatenate(old.chunk, &value, clock) {
                Ok(joined) => joined,
                Err(error) => break Err(error),
            };
            let change =
                Change { seen, marks: 0, new_cas: rule.new_cas, exptime: None, in_set: true };
            if let Some(cas) = self.publish_over(&old, joined, change) {
                break Ok(StoreOutcome::Stored { cas });
            }
        };
        if !matches!(outcome, Ok(StoreOutcome::Stored { .. })) {
            pool.class_of(raw.chunk).counts.cmd_set += 1;
        }
        raw.discard(pool);
        outcome
    }

    /// Takes a reference to a live item, so that it can be read while memory is allocated.
    fn hold(&mut self, key: &[u8], hash: u64) -> Result<Option<Held<&'s Pool>>, StoreError> {
        let found = self.find(key, hash);
        let pool = self.pool();
        let held = found
            .ok()
            .map(|chunk| Held::take(pool, chunk, WRITERS_MAX).ok_or(StoreError::OutOfMemory));
        self.unpin();
        held.transpose()
    }

    /// Publishes a version made from `old`. None if `old` is no longer the item, or was changed in
    /// place meanwhile; the new version is then discarded.
    fn publish_over(
        &mut self,
        old: &Held<&Pool>,
        new: RawReservation,
        change: Change,
    ) -> Option<u64> {
        let pool = self.pool();
        let hash = pool.hash_of(new.chunk);
        let (mut locked, clock) = self.lock(hash);
        let found = locked.find(|chunk| chunk == old.chunk);
        let is_old =
            |chunk| clock.is_dead(&pool.arena, chunk) || pool.version(chunk) != change.seen;
        if found.is_none_or(|(_, chunk)| is_old(chunk)) {
            drop(locked);
            new.discard(pool);
            return None;
        }
        let header = pool.arena.header(new.chunk);
        let exptime = pool.arena.header(old.chunk).exptime.load(Relaxed);
        header.exptime.store(change.exptime.unwrap_or(exptime), Relaxed);
        let cas = pool.cas_of(change.new_cas);
        let marks = change.marks;
        let in_set = change.in_set;
        pool.publish(&mut locked, found, &new, NewVersion { hash, marks, cas, clock, in_set });
        Some(cas)
    }

    /// Deletes an item, or marks it, according to the rule.
    pub fn delete(&mut self, key: &[u8], rule: DeleteRule) -> Deleted {
        self.unpin();
        let pool = self.pool();
        loop {
            let (locked, clock) = self.lock(pool.hash(key));
            let found = locked.find(|chunk| pool.key(chunk) == key);
            let live = found.filter(|(_, chunk)| !clock.is_dead(&pool.arena, *chunk));
            let Some((at, chunk)) = live else {
                add(&self.stripe().delete_misses);
                return Deleted::NotFound;
            };
            let header = pool.arena.header(chunk);
            if rule.cas.is_some_and(|cas| cas != header.cas.load(Relaxed)) {
                return Deleted::Exists;
            }
            if rule.clear_value && header.value_len.load(Relaxed) > 0 {
                drop(locked);
                if self.clear(key, rule) {
                    return Deleted::Deleted;
                }
                continue;
            }
            pool.class_of(chunk).counts.delete_hits += 1;
            if rule.invalidate || rule.clear_value {
                pool.keep_changed(chunk, rule)
            } else {
                pool.remove(&locked, at, chunk)
            }
            return Deleted::Deleted;
        }
    }

    /// Deletes an item without counting a delete: after a failed `set`, so that the old value does
    /// not outlive the attempt to replace it.
    pub fn forget(&mut self, key: &[u8]) {
        self.unpin();
        let pool = self.pool();
        let locked = pool.index.lock(pool.hash(key));
        if let Some((at, chunk)) = locked.find(|chunk| pool.key(chunk) == key) {
            pool.remove(&locked, at, chunk);
        }
    }

    /// Replaces an item by one without value and flags, for meta `x`. False: look it up again.
    fn clear(&mut self, key: &[u8], rule: DeleteRule) -> bool {
        let pool = self.pool();
        let clock = self.clock();
        let old = match self.hold(key, pool.hash(key)) {
            Ok(Some(old)) => old,
            Ok(None) => return false,
            // A second attempt would not help: the holder of the references may wait for this very
            // thread.
            Err(_) => {
                self.forget(key);
                return true;
            }
        };
        let seen = pool.version(old.chunk);
        if rule.cas.is_some_and(|cas| cas != seen.cas) {
            return false;
        }
        let Ok(empty) = pool.begin(key, 0, 0, 0, clock) else {
            // No memory even for an empty item: delete it, since its value must not be seen.
            self.forget(key);
            return true;
        };
        // Mark it stale: its value is gone, so clients must not use it as the old one.
        let marks = if rule.invalidate { mark::STALE } else { 0 };
        let exptime = Some(rule.exptime.unwrap_or(NEVER));
        let change = Change { seen, marks, new_cas: rule.new_cas, exptime, in_set: false };
        let done = self.publish_over(&old, empty, change).is_some();
        if done {
            pool.class_of(old.chunk).counts.delete_hits += 1;
        }
        done
    }

    /// Counts a decimal number up or down. The value keeps its length, padded with spaces, if the
    /// new number is shorter; protocol.txt, "incr/decr".
    pub fn count(&mut self, key: &[u8], by: Arithmetic) -> Result<Counted, StoreError> {
        let pool = self.pool();
        let clock = self.clock();
        let hash = pool.hash(key);
        loop {
            let Some(old) = self.hold(key, hash)? else {
                let stripe = self.stripe();
                add(match by.direction {
                    Direction::Up => &stripe.incr_misses,
                    Direction::Down => &stripe.decr_misses,
                });
                return Ok(Counted::NotFound);
            };
            let header = pool.arena.header(old.chunk);
            let seen = pool.version(old.chunk);
            let layout = Layout::of(&pool.arena, old.chunk);
            let text = pool.piece(old.chunk, &layout, 0);
            // A value of impossible length is reported before the cas is compared, any other
            // non-number after.
            if text.is_empty() || layout.parts > 0 {
                return Ok(Counted::NotANumber);
            }
            if by.cas.is_some_and(|cas| cas != seen.cas) {
                return Ok(Counted::Exists);
            }
            let Some(number) = parse_value(text) else {
                return Ok(Counted::NotANumber);
            };
            let number = match by.direction {
                Direction::Up => number.wrapping_add(by.delta),
                Direction::Down => number.saturating_sub(by.delta),
            };
            // Not format!: it panics at a width above 65,535, and a client chooses this one.
            let mut value = Vec::with_capacity(text.len().max(DECIMAL_LEN_MAX));
            push_decimal(number, &mut value);
            value.resize(value.len().max(text.len()), b' ');
            let flags = header.flags.load(Relaxed);
            let mut new = pool.begin(key, value.len(), flags, 0, clock)?;
            if let Err(error) = new.fill(pool, &value, clock) {
                new.discard(pool);
                return Err(error);
            }
            let fetched = header.state.load(Relaxed) & mark::FETCHED;
            // In memcached a longer number is a new item, which begins without marks.
            let marks = if value.len() > text.len() { 0 } else { seen.marks | fetched };
            let new_cas = by.new_cas;
            let exptime = by.exptime;
            let change = Change { seen, marks, new_cas, exptime, in_set: false };
            if let Some(cas) = self.publish_over(&old, new, change) {
                let mut class = pool.class_of(old.chunk);
                match by.direction {
                    Direction::Up => class.counts.incr_hits += 1,
                    Direction::Down => class.counts.decr_hits += 1,
                }
                return Ok(Counted::Stored { number, cas });
            }
        }
    }
}

/// Difference between a version and its predecessor.
struct Change {
    /// The old version, as read without the lock.
    seen: Version,
    marks: u32,
    new_cas: Option<u64>,
    exptime: Option<Seconds>,
    in_set: bool,
}
