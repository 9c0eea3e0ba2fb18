//! The store under many threads: each key is an atomic register, and no value is ever torn.

extern crate weftwork_cache as cache;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

use bytes::Bytes;
use cache::store::{
    Arithmetic, Config, Counted, Cursor, DeleteRule, Deleted, Direction, Item, Mode,
};
use cache::store::{Rule, Store, StoreOutcome};
use session::replay::Random;

const KEYS: u64 = 6;

/// One operation on one key, between two readings of a shared counter.
#[derive(Clone, Copy, Debug)]
struct Event {
    key: u64,
    value: u64,
    is_write: bool,
    began: u64,
    ended: u64,
}

/// A value repeats its number, so that a torn one shows.
fn value_of(number: u64, len: usize) -> Vec<u8> {
    let mut value = number.to_le_bytes().repeat(len / 8 + 1);
    value.truncate(len.max(8));
    value
}

fn number_in<'a>(slices: impl Iterator<Item = &'a [u8]>) -> u64 {
    let bytes = slices.collect::<Vec<_>>().concat();
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(bytes == value_of(number, bytes.len()), "a torn value of {} bytes", bytes.len());
    number
}

fn key_of(key: u64) -> Vec<u8> {
    format!("register-{key}").into_bytes()
}

fn len_of(random: &mut Random) -> usize {
    match random.below(150) {
        0 => 600_000 + random.below(300_000) as usize,
        1..=15 => 2_000 + random.below(30_000) as usize,
        _ => 8 + random.below(400) as usize,
    }
}

/// Operations of one thread on the registers, and their results.
fn play(store: &Store, ticks: &AtomicU64, thread: u64, operations: u64) -> Vec<Event> {
    let mut random = Random(0x1234_5678_9abc ^ (thread << 40) ^ thread);
    let mut events = Vec::new();
    let mut kept: Vec<(u64, Vec<Bytes>)> = Vec::new();
    for sequence in 0..operations {
        let key = random.below(KEYS);
        let is_write = random.below(4) == 0;
        let number = thread << 32 | sequence;
        let value = value_of(number, len_of(&mut random));
        let began = ticks.fetch_add(1, SeqCst);
        let mut guard = store.access(2);
        let value = if is_write {
            match guard.store(&key_of(key), &value, 0, 0, Mode::Set.into()) {
                Ok(StoreOutcome::Stored { .. }) => Some(number),
                Ok(other) => panic!("a set was {other:?}"),
                Err(_) => None,
            }
        } else {
            guard.get(&key_of(key)).ok().map(|item| {
                let number = number_in(item.slices());
                if random.below(50) == 0 {
                    kept.push((number, item.shared().unwrap().collect()));
                }
                number
            })
        };
        drop(guard);
        let ended = ticks.fetch_add(1, SeqCst);
        if kept.len() > 4 {
            // Read at the end: the memory was not reused meanwhile.
            let (number, pieces) = kept.swap_remove(0);
            assert_eq!(number_in(pieces.iter().map(|piece| &piece[..])), number);
        }
        events.extend(value.map(|value| Event { key, value, is_write, began, ended }));
    }
    events
}

/// Gibbons and Korach, "Testing shared memories", 1997: with every value written once, a history of
/// a register is atomic if and only if no two forward zones overlap and none holds a backward zone.
fn check_atomic(events: &[Event]) {
    let mut zones: HashMap<(u64, u64), (u64, u64)> = HashMap::new();
    let mut writes: HashMap<(u64, u64), u64> = HashMap::new();
    for event in events {
        let zone = zones.entry((event.key, event.value)).or_insert((u64::MAX, 0));
        *zone = (zone.0.min(event.ended), zone.1.max(event.began));
        if event.is_write {
            writes.insert((event.key, event.value), event.began);
        }
    }
    for event in events {
        let written = writes.get(&(event.key, event.value));
        assert!(
            written.is_some_and(|began| *began <= event.ended),
            "read from the future: {event:?}"
        );
    }
    for key in 0..KEYS {
        let of_key = zones.iter().filter(|((of, _), _)| *of == key).map(|(_, zone)| *zone);
        let (mut forward, backward): (Vec<_>, Vec<_>) = of_key.partition(|(m, big_m)| m < big_m);
        forward.sort_unstable();
        for pair in forward.windows(2) {
            assert!(pair[0].1 < pair[1].0, "key {key}: {:?} and {:?} overlap", pair[0], pair[1]);
        }
        for (end, start) in backward {
            let before = forward.partition_point(|zone| zone.0 < start);
            let held = before.checked_sub(1).map(|at| forward[at]);
            assert!(held.is_none_or(|zone| end > zone.1), "key {key}: an old value came back");
        }
    }
}

fn histories(store: &Store, threads: u64, operations: u64) -> Vec<Event> {
    let ticks = AtomicU64::new(1);
    thread::scope(|scope| {
        let play = |thread| {
            let ticks = &ticks;
            scope.spawn(move || play(store, ticks, thread + 1, operations))
        };
        let players: Vec<_> = (0..threads).map(play).collect();
        players.into_iter().flat_map(|player| player.join().unwrap()).collect()
    })
}

#[test]
fn keys_are_atomic_registers() {
    let store = Store::new(Config { memory_max: 256 << 20, ..Config::default() }).unwrap();
    let events = histories(&store, 4, 6_000);
    assert!(events.len() > 20_000, "{} events", events.len());
    check_atomic(&events);
}

#[test]
fn registers_with_little_memory() {
    let store = Store::new(Config { memory_max: 12 << 20, ..Config::default() }).unwrap();
    let done = AtomicBool::new(false);
    let events = thread::scope(|scope| {
        scope.spawn(|| crowd(&store, &done));
        scope.spawn(|| {
            while !done.load(SeqCst) {
                store.maintain(200, 2);
                thread::yield_now();
            }
        });
        let events = histories(&store, 3, 4_000);
        done.store(true, SeqCst);
        events
    });
    check_atomic(&events);
    let stats = store.stats();
    assert!(stats.evictions > 0 && stats.slabs_moved > 0, "{stats:?}");
    assert!(stats.total_malloced <= 12 << 20, "{stats:?}");
}

/// Stores items of changing sizes, so that the registers' pages are wanted by other classes.
fn crowd(store: &Store, done: &AtomicBool) {
    let mut random = Random(77);
    for round in 0.. {
        for _ in 0..400 {
            if done.load(SeqCst) {
                return;
            }
            let number = random.below(20_000);
            let value = value_of(number, 40 << (round % 9));
            // Refusals for lack of memory are part of the test.
            let _ = store.access(2).store(
                format!("crowd-{number}").as_bytes(),
                &value,
                0,
                0,
                Mode::Set.into(),
            );
        }
    }
}

#[test]
fn concurrent_counts_add_up() {
    let store = Store::new(Config::default()).unwrap();
    store.access(2).store(b"count", b"0", 0, 0, Rule::default()).unwrap();
    let by =
        Arithmetic { direction: Direction::Up, delta: 1, cas: None, new_cas: None, exptime: None };
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    let counted = store.access(2).count(b"count", by).unwrap();
                    assert!(matches!(counted, Counted::Stored { .. }));
                }
            });
        }
    });
    let guard = store.access(2);
    let item = guard.get(b"count").unwrap();
    assert_eq!(item.slices().next().unwrap(), b"8000");
}

#[test]
fn one_cas_has_one_winner() {
    let store = Store::new(Config::default()).unwrap();
    for round in 0..200 {
        let StoreOutcome::Stored { cas } =
            store.access(2).store(b"k", b"v", 0, 0, Rule::default()).unwrap()
        else {
            panic!("a set is stored");
        };
        let rule = Rule { cas: Some(cas), ..Rule::default() };
        let wins: usize = thread::scope(|scope| {
            let contend =
                |_| scope.spawn(|| store.access(2).store(b"k", b"w", 0, 0, rule).unwrap());
            let contenders: Vec<_> = (0..3).map(contend).collect();
            let outcomes = contenders.into_iter().map(|one| one.join().unwrap());
            outcomes.filter(|outcome| matches!(outcome, StoreOutcome::Stored { .. })).count()
        });
        assert_eq!(wins, 1, "round {round}");
    }
}

/// Seen: an `incr` with a cas and an `md I` with the same cas both succeeded, and the item was not
/// stale. Cause: a write made from the previous version checked its cas before it had the bucket's
/// lock, and under the lock only the identity of its memory. Cure: such a write starts again if the
/// marks or the cas have changed meanwhile.
#[test]
fn count_or_invalidation_wins() {
    const ROUNDS: u64 = 60_000;
    let store = Store::new(Config::default()).unwrap();
    // Both begin a round only when the other has ended the previous one.
    let ended = [AtomicU64::new(0), AtomicU64::new(0)];
    let wins = AtomicU64::new(0);
    let meet = |own: usize, round: u64| {
        ended[own].store(round, SeqCst);
        while ended[1 - own].load(SeqCst) < round {
            thread::yield_now();
        }
    };
    let is_even = |round: u64| round.is_multiple_of(2);
    // Outside the range that the store assigns itself.
    let cas_of = |round: u64| (1 << 40) + round;
    let mut not_one = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                let cas = Some(cas_of(round));
                let new = Rule { new_cas: cas, ..Rule::default() };
                store.access(2).store(b"k", b"5", 0, 0, new).unwrap();
                meet(0, 2 * round);
                let won = if is_even(round) {
                    let by = Arithmetic {
                        direction: Direction::Up,
                        delta: 1,
                        cas,
                        new_cas: None,
                        exptime: None,
                    };
                    matches!(store.access(2).count(b"k", by), Ok(Counted::Stored { .. }))
                } else {
                    let rule = Rule { cas, ..Mode::Append.into() };
                    let outcome = store.access(2).store(b"k", b"6", 0, 0, rule).unwrap();
                    matches!(outcome, StoreOutcome::Stored { .. })
                };
                wins.fetch_add(u64::from(won), SeqCst);
                meet(0, 2 * round + 1);
                not_one += u64::from(wins.swap(0, SeqCst) != 1);
            }
        });
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                meet(1, 2 * round);
                let rule = DeleteRule {
                    cas: Some(cas_of(round)),
                    invalidate: true,
                    ..DeleteRule::default()
                };
                let won = store.access(2).delete(b"k", rule) == Deleted::Deleted;
                wins.fetch_add(u64::from(won), SeqCst);
                meet(1, 2 * round + 1);
            }
        });
    });
    assert_eq!(not_one, 0, "rounds of {ROUNDS}");
}

/// Seen: the first command after a delayed flush was a `touch`, and the thread span forever. Cause:
/// it found the flush due while it held the lock of its key's bucket, and a flush may have to
/// remove dead items from that very bucket (or wait for the crawler, which does). Cure: the time is
/// read before the lock.
#[test]
fn touch_during_a_flush() {
    const GENERATIONS: u32 = 1 << 15;
    let (done, is_done) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let config = Config { hash_power: 6, ..Config::default() };
        let store = Store::new(config).unwrap();
        let mut guard = store.access(2);
        let fill = |guard: &mut cache::store::Guard<'_>, keys: u64| {
            for key in 0..keys {
                guard.store(&key_of(key), b"v", 0, 0, Mode::Set.into()).unwrap();
            }
        };
        // No crawler, and so many flushes that each must do its share.
        for _ in 0..GENERATIONS / 2 {
            fill(&mut guard, 1);
            store.flush(2, 2);
        }
        drop(guard);
        for now in 2..102 {
            let mut guard = store.access(now);
            fill(&mut guard, 64);
            store.flush(now + 1, now);
            let _flushed = store.access(now + 1).touch(&key_of(u64::from(now) % 64), 0);
        }
        done.send(()).unwrap();
    });
    let bound = std::time::Duration::from_secs(60);
    assert!(is_done.recv_timeout(bound).is_ok(), "the store waits for itself");
}

/// Seen (in review): of two clients that appended to a missing item, which the append may create
/// (`ms` with `MA` and `N`), one was answered `NS`, and its bytes were lost. Cause: the item was
/// missing for both, and the later one's add was refused. Cure: it joins the other's item.
#[test]
fn appends_that_create_are_all_there() {
    const ROUNDS: u64 = 20_000;
    let store = Store::new(Config::default()).unwrap();
    let append = Rule { mode: Mode::Append, vivify: true, ..Rule::default() };
    let arrived = [AtomicU64::new(0), AtomicU64::new(0)];
    let refused = AtomicU64::new(0);
    thread::scope(|scope| {
        for own in 0..2 {
            let store = &store;
            let arrived = &arrived;
            let refused = &refused;
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    // Both begin the round at once, with a key that is new.
                    arrived[own].store(round, SeqCst);
                    while arrived[1 - own].load(SeqCst) < round {
                        thread::yield_now();
                    }
                    let outcome = store.access(2).store(&key_of(round), b"x", 0, 0, append);
                    let is_stored = matches!(outcome, Ok(StoreOutcome::Stored { .. }));
                    refused.fetch_add(u64::from(!is_stored), SeqCst);
                }
            });
        }
    });
    assert_eq!(refused.load(SeqCst), 0, "refused in {ROUNDS} rounds");
    let guard = store.access(2);
    assert!((1..=ROUNDS).all(|round| guard.get(&key_of(round)).unwrap().len() == 2));
}

#[test]
fn concurrent_appends_are_all_there() {
    let store = Store::new(Config::default()).unwrap();
    store.access(2).store(b"log", b"", 0, 0, Rule::default()).unwrap();
    thread::scope(|scope| {
        for thread in 0..3_u8 {
            let store = &store;
            scope.spawn(move || {
                for _ in 0..500 {
                    store
                        .access(2)
                        .store(b"log", &[b'a' + thread], 0, 0, Mode::Append.into())
                        .unwrap();
                }
            });
        }
    });
    let guard = store.access(2);
    let log: Vec<u8> = guard.get(b"log").unwrap().slices().flatten().copied().collect();
    for thread in 0..3_u8 {
        assert_eq!(log.iter().filter(|byte| **byte == b'a' + thread).count(), 500);
    }
}

#[test]
fn a_win_token_is_given_to_one() {
    let store = Store::new(Config::default()).unwrap();
    for round in 0..200 {
        store.access(2).store(b"k", b"v", 0, 0, Rule::default()).unwrap();
        store.access(2).delete(b"k", DeleteRule { invalidate: true, ..DeleteRule::default() });
        let wins: usize = thread::scope(|scope| {
            let take = |_| scope.spawn(|| store.access(2).get(b"k").unwrap().take_win());
            let takers: Vec<_> = (0..3).map(take).collect();
            takers.into_iter().filter_map(|taker| taker.join().unwrap().then_some(())).count()
        });
        assert_eq!(wins, 1, "round {round}");
    }
}

#[test]
fn crawl_during_changes() {
    let store = Store::new(Config { hash_power: 4, ..Config::default() }).unwrap();
    for key in 0..2_000 {
        store
            .access(2)
            .store(format!("stays-{key}").as_bytes(), b"v", 0, 0, Rule::default())
            .unwrap();
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            for key in 0..20_000 {
                store
                    .access(2)
                    .store(format!("new-{key}").as_bytes(), b"v", 0, 0, Rule::default())
                    .unwrap();
            }
        });
        for _ in 0..5 {
            let mut seen = std::collections::HashSet::new();
            let mut visit = |item: &Item<'_>| {
                seen.extend(item.key().starts_with(b"stays").then(|| item.key().to_vec()));
                ControlFlow::Continue(())
            };
            let mut cursor = Some(Cursor::START);
            while let Some(at) = cursor {
                cursor = store.crawl(at, 100, 2, &mut visit);
            }
            assert_eq!(seen.len(), 2_000);
        }
    });
}
