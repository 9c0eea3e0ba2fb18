//! The store against a map: each result is the value stored last, complete, with its flags, cas and
//! time.
//!
//! A full store evicts items, so a miss is always allowed there; where memory is ample, a miss is a
//! failure too.

extern crate weftwork_cache as cache;

use std::collections::HashMap;

use cache::store::{
    Arithmetic, Config, Counted, DeleteRule, Deleted, Direction, Guard, Item, Mode, NEVER, Rule,
    Seconds, Store, StoreError, StoreOutcome,
};
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Entry {
    value: Vec<u8>,
    flags: u32,
    cas: u64,
    exptime: Seconds,
}

#[derive(Clone, Debug)]
enum Op {
    Store { key: u8, len: usize, exptime: u32, mode: Mode, cas: Cas },
    Reserve { key: u8, len: usize, cut: usize, commit: bool },
    Number { key: u8, number: u64 },
    Count { key: u8, up: bool, delta: u64 },
    Get { key: u8 },
    Touch { key: u8, exptime: u32 },
    Delete { key: u8 },
    Mark { key: u8, clear_value: bool },
    Pass { seconds: u32 },
    Flush { delay: u32 },
    Maintain,
}

#[derive(Clone, Copy, Debug)]
enum Cas {
    None,
    Right,
    Wrong,
}

fn lens() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 0..300_usize, 2 => 300..20_000_usize, 1 => 400_000..1_040_000_usize]
}

fn exptimes() -> impl Strategy<Value = u32> {
    prop_oneof![3 => Just(0), 1 => 1..20_u32]
}

fn ops() -> impl Strategy<Value = Op> {
    let key = || 0..40_u8;
    let modes = prop::sample::select(vec![
        Mode::Set,
        Mode::Set,
        Mode::Set,
        Mode::Add,
        Mode::Replace,
        Mode::Append,
        Mode::Prepend,
    ]);
    let cas = prop::sample::select(vec![Cas::None, Cas::None, Cas::Right, Cas::Wrong]);
    prop_oneof![
        8 => (key(), lens(), exptimes(), modes, cas)
            .prop_map(|(key, len, exptime, mode, cas)| Op::Store { key, len, exptime, mode, cas }),
        3 => (key(), lens(), 1..70_000_usize, any::<bool>())
            .prop_map(|(key, len, cut, commit)| Op::Reserve { key, len, cut, commit }),
        1 => (key(), any::<u64>()).prop_map(|(key, number)| Op::Number { key, number }),
        2 => (key(), any::<bool>(), any::<u64>())
            .prop_map(|(key, up, delta)| Op::Count { key, up, delta }),
        8 => key().prop_map(|key| Op::Get { key }),
        1 => (key(), exptimes()).prop_map(|(key, exptime)| Op::Touch { key, exptime }),
        2 => key().prop_map(|key| Op::Delete { key }),
        1 => (key(), any::<bool>()).prop_map(|(key, clear_value)| Op::Mark { key, clear_value }),
        2 => (0..4_u32).prop_map(|seconds| Op::Pass { seconds }),
        1 => (0..6_u32).prop_map(|delay| Op::Flush { delay }),
        1 => Just(Op::Maintain),
    ]
}

struct World {
    store: Store,
    model: HashMap<u8, Entry>,
    now: Seconds,
    flush_at: Option<Seconds>,
    /// True if a miss may be an eviction.
    is_tight: bool,
    salt: u8,
}

fn key_bytes(key: u8) -> Vec<u8> {
    format!("key-{key}-{}", "x".repeat(usize::from(key) % 5)).into_bytes()
}

fn value_of(item: &Item<'_>) -> Vec<u8> {
    item.slices().collect::<Vec<_>>().concat()
}

/// The number that strtoull(3) parses: spaces and a sign may precede it, and everything after the
/// first space or NUL is ignored.
fn number_of(value: &[u8]) -> Option<u64> {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let begin = value.iter().position(|byte| !is_space(byte))?;
    let word = value[begin..].split(|byte| is_space(byte) || *byte == 0).next()?;
    std::str::from_utf8(word).ok()?.parse().ok()
}

impl World {
    fn new(memory_max: u64, is_tight: bool) -> World {
        let config = Config { memory_max, hash_power: 4, ..Config::default() };
        let store = Store::new(config).unwrap();
        World { store, model: HashMap::new(), now: 10, flush_at: None, is_tight, salt: 0 }
    }

    fn value(&mut self, len: usize) -> Vec<u8> {
        self.salt = self.salt.wrapping_add(1);
        let mut value: Vec<u8> = (0..=250_u8).map(|at| at.wrapping_mul(31) ^ self.salt).collect();
        value = value.repeat(len / value.len() + 1);
        value.truncate(len);
        value
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Store { key, len, exptime, mode, cas } => {
                self.store_one(key, len, exptime, mode, cas)
            }
            Op::Reserve { key, len, cut, commit } => self.reservation(key, len, cut, commit),
            Op::Number { key, number } => {
                self.put(key, number.to_string().into_bytes(), NEVER, Rule::default());
            }
            Op::Count { key, up, delta } => self.count(key, up, delta),
            Op::Get { key } => self.check(key),
            Op::Touch { key, exptime } => self.touch(key, exptime),
            Op::Delete { key } => self.delete(key),
            Op::Mark { key, clear_value } => self.mark(key, clear_value),
            Op::Pass { seconds } => self.now += seconds,
            Op::Flush { delay } => {
                self.store.flush(self.now + delay, self.now);
                self.flush_at = Some(self.now + delay);
            }
            Op::Maintain => while self.store.maintain(64, self.now) {},
        }
        self.settle();
    }

    fn settle(&mut self) {
        if self.flush_at.is_some_and(|at| at <= self.now) {
            self.model.clear();
            self.flush_at = None;
            // The store begins its generation at the next access.
            let _ = self.store.access(self.now).peek(b"nothing");
        }
        let now = self.now;
        self.model.retain(|_, entry| entry.exptime == NEVER || entry.exptime > now);
    }

    /// The model's entry; removed if the store has evicted it.
    fn expected(&mut self, key: u8) -> Option<Entry> {
        let guard = self.store.access(self.now);
        if self.is_tight && guard.peek(&key_bytes(key)).is_none() {
            self.model.remove(&key);
        }
        self.model.get(&key).cloned()
    }

    fn check(&mut self, key: u8) {
        let expected = self.expected(key);
        let guard = self.store.access(self.now);
        let found = guard.get(&key_bytes(key)).ok();
        assert_eq!(found.is_some(), expected.is_some(), "key {key}");
        if let (Some(item), Some(expected)) = (found, expected) {
            let shared: Vec<_> = item.shared().unwrap().collect();
            assert!(value_of(&item) == expected.value, "key {key}: another value");
            assert!(shared.concat() == expected.value, "key {key}: another shared value");
            assert_eq!((item.flags(), item.cas()), (expected.flags, expected.cas), "key {key}");
            assert_eq!((item.exptime(), item.key()), (expected.exptime, &key_bytes(key)[..]));
        }
    }

    fn put(&mut self, key: u8, value: Vec<u8>, exptime: Seconds, rule: Rule) {
        let old = self.expected(key);
        let flags = u32::from(self.salt);
        let mut guard = self.store.access(self.now);
        let outcome = guard.store(&key_bytes(key), &value, flags, exptime, rule);
        drop(guard);
        let (mut wanted, mut entry) = model_store(old, value.clone(), flags, exptime, rule);
        let says = match outcome {
            Ok(StoreOutcome::Stored { .. }) => "stored",
            Ok(StoreOutcome::NotStored) => "not stored",
            Ok(StoreOutcome::Exists) => "exists",
            Ok(StoreOutcome::NotFound) => "not found",
            Err(_) => wanted,
        };
        if self.is_tight && says != wanted {
            // The memory of the new version may have been that of the old one.
            (wanted, entry) = model_store(None, value, flags, exptime, rule);
            self.model.remove(&key);
        }
        assert_eq!(says, wanted, "key {key} {rule:?}");
        match outcome {
            Ok(StoreOutcome::Stored { cas }) => {
                assert_eq!(wanted, "stored", "key {key} {rule:?}");
                self.model.insert(key, Entry { cas, ..entry.unwrap() });
            }
            Ok(_) => {}
            Err(StoreError::TooLarge) => {
                let len = entry.map_or(0, |entry| entry.value.len());
                assert!(len > 1_000_000, "{len} bytes are not too large");
            }
            Err(StoreError::OutOfMemory) => assert!(self.is_tight, "there was memory"),
        }
    }

    fn store_one(&mut self, key: u8, len: usize, exptime: u32, mode: Mode, cas: Cas) {
        let value = self.value(len);
        let current = self.expected(key).map(|entry| entry.cas);
        let cas = match cas {
            Cas::None => None,
            Cas::Right => Some(current.unwrap_or(1)),
            Cas::Wrong => Some(current.unwrap_or(1) + 1),
        };
        let exptime = if exptime == 0 { NEVER } else { self.now + exptime };
        self.put(key, value, exptime, Rule { mode, cas, ..Rule::default() });
    }

    fn reservation(&mut self, key: u8, len: usize, cut: usize, commit: bool) {
        let value = self.value(len);
        let mut guard = self.store.access(self.now);
        let Ok(mut reservation) = guard.reserve(&key_bytes(key), len, 9, NEVER) else {
            return assert!(self.is_tight, "there was memory");
        };
        for piece in value.chunks(cut) {
            match reservation.fill(piece) {
                Ok(used) => assert_eq!(used, piece.len()),
                Err(_) => return assert!(self.is_tight, "there was memory"),
            }
        }
        if commit {
            let Ok(StoreOutcome::Stored { cas }) = guard.commit(reservation, Rule::default())
            else {
                panic!("a set is always stored");
            };
            self.model.insert(key, Entry { value, flags: 9, cas, exptime: NEVER });
        }
    }

    fn count(&mut self, key: u8, up: bool, delta: u64) {
        let old = self.expected(key);
        let direction = if up { Direction::Up } else { Direction::Down };
        let by = Arithmetic { direction, delta, cas: None, new_cas: None, exptime: None };
        let counted = self.store.access(self.now).count(&key_bytes(key), by);
        let number = old.as_ref().and_then(|entry| number_of(&entry.value));
        match (counted, old) {
            (Ok(Counted::NotFound), None) => {}
            (Ok(Counted::NotFound), Some(_)) if self.is_tight => {}
            // An item of several parts is no number either.
            (Ok(Counted::NotANumber), Some(entry)) => {
                assert!(number.is_none() || entry.value.len() > 500_000);
            }
            (Ok(Counted::Stored { number: counted, cas }), Some(mut entry)) => {
                let number = number.expect("a number");
                let wanted =
                    if up { number.wrapping_add(delta) } else { number.saturating_sub(delta) };
                assert_eq!(counted, wanted);
                // Not format!: it panics at a width above 65,535.
                let mut value = wanted.to_string().into_bytes();
                value.resize(value.len().max(entry.value.len()), b' ');
                entry.value = value;
                self.model.insert(key, Entry { cas, ..entry });
            }
            (Err(StoreError::OutOfMemory), _) => assert!(self.is_tight),
            (counted, old) => panic!("{counted:?} of {old:?}"),
        }
    }

    fn touch(&mut self, key: u8, exptime: u32) {
        let exptime = if exptime == 0 { NEVER } else { self.now + exptime };
        let expected = self.expected(key);
        let mut guard = self.store.access(self.now);
        assert_eq!(guard.touch(&key_bytes(key), exptime).is_ok(), expected.is_some());
        if let Some(entry) = self.model.get_mut(&key) {
            entry.exptime = exptime;
        }
    }

    fn delete(&mut self, key: u8) {
        let wanted = match self.expected(key) {
            Some(_) => Deleted::Deleted,
            None => Deleted::NotFound,
        };
        let mut guard = self.store.access(self.now);
        assert_eq!(guard.delete(&key_bytes(key), DeleteRule::default()), wanted);
        assert!(guard.get(&key_bytes(key)).is_err());
        self.model.remove(&key);
    }

    fn mark(&mut self, key: u8, clear_value: bool) {
        let expected = self.expected(key);
        let rule = DeleteRule { invalidate: true, clear_value, ..DeleteRule::default() };
        let mut guard: Guard<'_> = self.store.access(self.now);
        let deleted = guard.delete(&key_bytes(key), rule);
        let Some(mut entry) = expected else {
            return assert_eq!(deleted, Deleted::NotFound);
        };
        assert_eq!(deleted, Deleted::Deleted);
        let Some(item) = guard.peek(&key_bytes(key)) else {
            return assert!(self.is_tight);
        };
        assert!(item.is_stale());
        if clear_value {
            (entry.value, entry.flags) = (Vec::new(), 0);
            entry.exptime = NEVER;
        }
        entry.cas = item.cas();
        self.model.insert(key, entry);
    }
}

/// Expected result of a store, and the entry after it.
fn model_store(
    old: Option<Entry>,
    value: Vec<u8>,
    flags: u32,
    exptime: Seconds,
    rule: Rule,
) -> (&'static str, Option<Entry>) {
    // As in memcached: an add compares no cas, and a join needs an item first.
    let is_join = matches!(rule.mode, Mode::Append | Mode::Prepend);
    match (&old, rule.cas.filter(|_| rule.mode != Mode::Add)) {
        (None, Some(_)) if !is_join => return ("not found", None),
        (Some(old), Some(cas)) if old.cas != cas => return ("exists", None),
        _ => {}
    }
    let new = |value| Some(Entry { value, flags, cas: 0, exptime });
    match (rule.mode, old) {
        (Mode::Set, _) | (Mode::Add, None) | (Mode::Replace, Some(_)) => ("stored", new(value)),
        (Mode::Append, Some(old)) => {
            let value = [&old.value[..], &value].concat();
            ("stored", Some(Entry { value, ..old }))
        }
        (Mode::Prepend, Some(old)) => {
            let value = [&value, &old.value[..]].concat();
            ("stored", Some(Entry { value, ..old }))
        }
        _ => ("not stored", None),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn ample_memory_loses_nothing(ops in prop::collection::vec(ops(), 1..400)) {
        let mut world = World::new(128 << 20, false);
        ops.into_iter().for_each(|op| world.apply(op));
        (0..40).for_each(|key| world.check(key));
        prop_assert_eq!(world.store.stats().evictions, 0);
    }

    #[test]
    fn full_store_never_confuses(ops in prop::collection::vec(ops(), 1..400)) {
        let mut world = World::new(6 << 20, true);
        ops.into_iter().for_each(|op| world.apply(op));
        (0..40).for_each(|key| world.check(key));
        prop_assert!(world.store.stats().total_malloced <= 6 << 20);
    }
}
