//! Guarantees of the store on memory, time and growth, without a protocol.

extern crate weftwork_cache as cache;

use std::ops::ControlFlow;

use cache::store::{
    ClassStats, Config, DeleteRule, Deleted, EXPIRED, Miss, Mode, NEVER, Rule, Seconds, Store,
    StoreError, StoreOutcome,
};

const MIB: u64 = 1 << 20;
const NOW: Seconds = 100;

fn store_of(memory_max: u64) -> Store {
    Store::new(Config { memory_max, hash_power: 4, ..Config::default() }).unwrap()
}

fn set(store: &Store, key: &str, value: &[u8]) -> Result<StoreOutcome, StoreError> {
    store.access(NOW).store(key.as_bytes(), value, 0, NEVER, Rule::default())
}

fn value(store: &Store, key: &str) -> Option<Vec<u8>> {
    let guard = store.access(NOW);
    let item = guard.get(key.as_bytes()).ok()?;
    Some(item.slices().flatten().copied().collect())
}

fn has(store: &Store, key: &str) -> bool {
    store.access(NOW).peek(key.as_bytes()).is_some()
}

fn class_of(store: &Store, len: u32) -> ClassStats {
    let classes = store.class_stats(NOW);
    classes.into_iter().find(|class| class.chunk_size >= len).expect("a class of this length")
}

#[test]
fn memory_stays_in_the_limit() {
    let store = store_of(32 * MIB);
    for at in 0..150_000 {
        set(&store, &format!("key-{at}"), &vec![1; 50 + at % 1000]).unwrap();
        assert!(at % 1000 != 0 || store.stats().total_malloced <= 32 * MIB);
    }
    let stats = store.stats();
    assert_eq!(stats.curr_items + stats.evictions, 150_000);
    assert!(stats.bytes <= 32 * MIB && stats.bytes > 22 * MIB, "{stats:?}");
}

#[test]
fn full_memory_takes_large_items() {
    let store = store_of(64 * MIB);
    for at in 0..40_000 {
        set(&store, &format!("small-{at}"), &[2; 1000]).unwrap();
    }
    let big = vec![7; 1_000_000];
    for at in 0..200 {
        let key = format!("big-{at}");
        set(&store, &key, &big).unwrap();
        assert!(value(&store, &key).unwrap() == big, "{key}");
    }
    assert!(store.stats().total_malloced <= 64 * MIB);
    let kept = (0..200).filter(|at| has(&store, &format!("big-{at}"))).count();
    assert!(kept >= 5, "only {kept} big ones are there");
}

#[test]
fn no_eviction_refuses_stores() {
    let config = Config { memory_max: 4 * MIB, evicts: false, ..Config::default() };
    let store = Store::new(config).unwrap();
    let stored = (0..10_000).take_while(|at| set(&store, &format!("k{at}"), &[1; 1000]).is_ok());
    let stored = stored.count();
    assert!(stored > 3_000, "{stored}");
    assert_eq!(set(&store, "one more", &[1; 1000]), Err(StoreError::OutOfMemory));
    assert!((0..stored).all(|at| has(&store, &format!("k{at}"))));
    let stats = store.stats();
    assert!(stats.out_of_memory >= 2 && stats.evictions == 0, "{stats:?}");
    store.access(NOW).delete(b"k0", DeleteRule::default());
    set(&store, "one more", &[1; 1000]).unwrap();
}

#[test]
fn no_eviction_reuses_expired() {
    let config = Config { memory_max: 4 * MIB, evicts: false, ..Config::default() };
    let store = Store::new(config).unwrap();
    let fill = |now: Seconds| {
        let stored = (0..10_000).take_while(|at| {
            let key = format!("{now}-{at}");
            let value = [1; 1000];
            let mut guard = store.access(now);
            let stored = guard.store(key.as_bytes(), &value, 0, now + 10, Rule::default());
            stored.is_ok()
        });
        stored.count()
    };
    let fits = fill(NOW);
    assert!(fits > 3_000, "{fits}");
    assert_eq!(fill(NOW + 9), 0);
    let again = fill(NOW + 10);
    assert!(again >= fits * 9 / 10, "{again} of {fits}");
}

/// Seen: `weft cache -M -m 2` held two items of 900,000 bytes, both were deleted, and from then on
/// items of 10 bytes were refused. Cause: only a class that may evict took pages of others. Cure:
/// without evictions a class takes empty pages.
#[test]
fn no_eviction_reuses_pages_of_other_sizes() {
    let config = Config { memory_max: 4 * MIB, evicts: false, ..Config::default() };
    let store = Store::new(config).unwrap();
    for (len, least) in [(1000, 3000), (20, 30_000), (100_000, 30), (900_000, 3), (5000, 600)] {
        let value = vec![1; len];
        let key = |at: usize| format!("{len}-{at}");
        let stored = (0..60_000).take_while(|at| set(&store, &key(*at), &value).is_ok()).count();
        assert!(stored >= least, "{stored} of {len}");
        assert_eq!(set(&store, "one more", &value), Err(StoreError::OutOfMemory));
        for at in 0..stored {
            assert!(has(&store, &key(at)), "{at} of {len}");
            store.access(NOW).delete(key(at).as_bytes(), DeleteRule::default());
        }
    }
    assert_eq!(store.stats().evictions, 0);
    assert!(store.stats().total_malloced <= 4 * MIB);
}

#[test]
fn uploads_have_half_the_memory() {
    let store = store_of(4 * MIB);
    let mut guard = store.access(NOW);
    let mut reservations = Vec::new();
    let refused = loop {
        match guard.reserve(b"k", 400_000, 0, NEVER) {
            Ok(reservation) => reservations.push(reservation),
            Err(error) => break error,
        }
    };
    assert_eq!((refused, reservations.len()), (StoreError::OutOfMemory, 4));
    drop(reservations);
    assert!(guard.reserve(b"k", 400_000, 0, NEVER).is_ok());
}

#[test]
fn slow_reader_keeps_its_value() {
    let store = store_of(4 * MIB);
    let sent = vec![9; 700_000];
    set(&store, "sent", &sent).unwrap();
    let guard = store.access(NOW);
    let pieces: Vec<_> = guard.get(b"sent").unwrap().shared().unwrap().collect();
    drop(guard);
    store.access(NOW).delete(b"sent", DeleteRule::default());
    for at in 0..2_000 {
        let _ = set(&store, &format!("k{at}"), &vec![3; 3_000]);
        let _ = set(&store, &format!("big{}", at % 7), &vec![4; 600_000]);
    }
    assert!(pieces.concat() == sent);
    drop(pieces);
    store.flush(NOW, NOW);
    while store.maintain(1000, NOW) {}
    let used: u64 = store.class_stats(NOW).iter().map(|class| class.used_chunks).sum();
    assert_eq!((used, store.stats().curr_items), (0, 0));
}

#[test]
fn dropped_reservation_frees_all() {
    let store = store_of(16 * MIB);
    let config_max = store.config().item_len_max as usize;
    for len in [0, 1, 500_000, 600_000, 1_000_000] {
        let mut guard = store.access(NOW);
        let mut reservation = guard.reserve(b"reservation", len, 0, NEVER).unwrap();
        reservation.fill(&vec![1; len * 2 / 3]).unwrap();
        drop(reservation);
        let used: u64 = store.class_stats(NOW).iter().map(|class| class.used_chunks).sum();
        assert_eq!(used, 0, "{len}");
    }
    let mut guard = store.access(NOW);
    assert_eq!(guard.reserve(b"k", config_max, 0, NEVER).unwrap_err(), StoreError::TooLarge);
}

/// Seen (in review): a get of a long item read wherever stale bytes pointed. Cause: a reservation
/// accepted more bytes than it had space for, and the names of the chunks after its first were
/// never written. Cure: it panics.
#[test]
#[should_panic(expected = "filled 900000 of a space of")]
fn overfilled_reservation_panics() {
    let store = store_of(8 * MIB);
    let mut guard = store.access(NOW);
    let mut reservation = guard.reserve(b"long", 900_000, 0, NEVER).unwrap();
    reservation.filled(900_000);
}

#[test]
fn item_of_100_mb() {
    let config = Config { memory_max: 160 * MIB, item_len_max: 1 << 30, ..Config::default() };
    let store = Store::new(config).unwrap();
    let len = 100_000_000;
    let mut guard = store.access(NOW);
    let mut reservation = guard.reserve(b"huge", len, 5, NEVER).unwrap();
    let mut at = 0;
    while !reservation.is_full() {
        let room = reservation.space().unwrap();
        let filled = room.len().min(65_521);
        room[..filled].iter_mut().enumerate().for_each(|(i, byte)| *byte = ((at + i) % 251) as u8);
        reservation.filled(filled);
        at += filled;
    }
    assert!(matches!(guard.commit(reservation, Mode::Set.into()), Ok(StoreOutcome::Stored { .. })));
    let item = guard.get(b"huge").unwrap();
    let mut at = 0;
    for slice in item.slices() {
        assert!(slice.iter().enumerate().all(|(i, byte)| *byte == ((at + i) % 251) as u8));
        at += slice.len();
    }
    assert_eq!((at, item.len(), item.flags()), (len, len, 5));
    assert!(store.stats().total_malloced < 103 * MIB, "{:?}", store.stats());
}

#[test]
fn pages_follow_item_sizes() {
    let store = store_of(32 * MIB);
    for at in 0..200_000 {
        set(&store, &format!("small-{at}"), &[1; 100]).unwrap();
    }
    for at in 0..100_000 {
        set(&store, &format!("large-{at}"), &[2; 3_000]).unwrap();
    }
    let large = class_of(&store, 3_000 + 40);
    assert!(large.total_pages >= 20, "{large:?}");
    assert!(store.stats().slabs_moved >= 19, "{:?}", store.stats());
}

#[test]
fn used_items_survive_a_page_move() {
    let store = store_of(24 * MIB);
    for at in 0..160_000 {
        set(&store, &format!("small-{at}"), &[1; 80]).unwrap();
    }
    let hot: Vec<_> = (159_000..160_000).map(|at| format!("small-{at}")).collect();
    for large in 0..6_000 {
        for key in hot.iter().skip(large % 10).step_by(10).take(20) {
            value(&store, key);
        }
        set(&store, &format!("large-{large}"), &[2; 5_000]).unwrap();
        if large % 100 == 0 {
            hot.iter().for_each(|key| drop(value(&store, key)));
        }
    }
    assert!(store.stats().slabs_moved > 0);
    let kept = hot.iter().filter(|key| has(&store, key)).count();
    assert!(kept > 900, "{kept} of 1000 hot items are left: {:?}", store.stats());
}

#[test]
fn memory_limit_changes() {
    let store = store_of(32 * MIB);
    let fill =
        || (0..60_000).for_each(|at| assert!(set(&store, &format!("k{at}"), &[1; 1000]).is_ok()));
    fill();
    assert_eq!(store.stats().total_malloced, 32 * MIB);
    store.set_memory_max(8 * MIB).unwrap();
    while store.maintain(1000, NOW) {}
    assert_eq!((store.stats().total_malloced, store.stats().limit_maxbytes), (8 * MIB, 8 * MIB));
    assert!(store.stats().curr_items > 6_000, "{:?}", store.stats());
    fill();
    assert_eq!(store.stats().total_malloced, 8 * MIB);
    store.set_memory_max(48 * MIB).unwrap();
    fill();
    assert_eq!(store.stats().total_malloced, 48 * MIB);
    assert_eq!(store.set_memory_max(0), Err(StoreError::OutOfMemory));
}

#[test]
fn flush_then_crawler_frees() {
    let store = store_of(32 * MIB);
    (0..20_000).for_each(|at| assert!(set(&store, &format!("k{at}"), &[1; 1000]).is_ok()));
    store.flush(NOW, NOW);
    assert_eq!(store.access(NOW).get(b"k1").unwrap_err(), Miss::Flushed);
    set(&store, "after", b"v").unwrap();
    while store.maintain(500, NOW) {}
    assert_eq!((store.stats().curr_items, store.stats().get_flushed), (1, 1));
    assert!(store.stats().total_malloced <= 6 * MIB, "{:?}", store.stats());
    assert!(has(&store, "after"));
}

#[test]
fn delayed_flush_at_its_time() {
    let store = store_of(8 * MIB);
    set(&store, "before", b"v").unwrap();
    store.flush(NOW + 5, NOW);
    set(&store, "between", b"v").unwrap();
    let seen_at = |now, key: &[u8]| store.access(now).peek(key).is_some();
    assert!(seen_at(NOW + 4, b"before") && seen_at(NOW + 4, b"between"));
    assert!(!seen_at(NOW + 5, b"before") && !seen_at(NOW + 5, b"between"));
    store.access(NOW + 5).store(b"later", b"v", 0, NEVER, Rule::default()).unwrap();
    assert!(seen_at(NOW + 9, b"later"));
}

#[test]
fn thousand_flushes_revive_nothing() {
    let store = store_of(8 * MIB);
    for round in 0..1_000 {
        set(&store, &format!("k{round}"), b"v").unwrap();
        store.flush(NOW, NOW);
        let alive = (0..=round).filter(|at| has(&store, &format!("k{at}"))).count();
        assert_eq!(alive, 0, "after {round} flushes");
    }
}

#[test]
fn expired_items_miss_and_count() {
    let store = store_of(8 * MIB);
    let mut guard = store.access(NOW);
    guard.store(b"soon", b"v", 0, NOW + 10, Rule::default()).unwrap();
    guard.store(b"gone", b"v", 0, EXPIRED, Rule::default()).unwrap();
    assert_eq!(guard.get(b"gone").unwrap_err(), Miss::Expired);
    assert_eq!(guard.get(b"gone").unwrap_err(), Miss::NotFound);
    assert!(store.access(NOW + 9).get(b"soon").is_ok());
    assert_eq!(store.access(NOW + 10).delete(b"soon", DeleteRule::default()), Deleted::NotFound);
    while store.maintain(100, NOW + 10) {}
    let stats = store.stats();
    assert_eq!((stats.curr_items, stats.get_expired, stats.crawler_reclaimed), (0, 1, 1));
}

#[test]
fn statistics_add_up() {
    let store = store_of(16 * MIB);
    for at in 0..1_000 {
        set(&store, &format!("key-{at:04}"), &vec![0; at]).unwrap();
    }
    (0..1_500).for_each(|at| drop(value(&store, &format!("key-{at:04}"))));
    (0..100).for_each(|at| {
        store.access(NOW).delete(format!("key-{at:04}").as_bytes(), DeleteRule::default());
    });
    let stats = store.stats();
    let classes = store.class_stats(NOW);
    let bytes: u64 = (100..1_000).map(|len| 40 + 8 + len).sum();
    assert_eq!((stats.curr_items, stats.total_items, stats.bytes), (900, 1_000, bytes));
    assert_eq!((stats.get_hits, stats.get_misses, stats.delete_hits), (1_000, 500, 100));
    let sum = |count: fn(&ClassStats) -> u64| classes.iter().map(count).sum::<u64>();
    assert_eq!(sum(|class| class.number), 900);
    assert_eq!(sum(|class| class.get_hits), 1_000);
    assert_eq!(sum(|class| class.cmd_set), 1_000);
    assert_eq!(sum(|class| class.mem_requested), bytes);
    let all = |class: &ClassStats| class.used_chunks + class.free_chunks + class.free_chunks_end;
    assert!(classes.iter().all(|class| all(class) == class.total_chunks));
    assert_eq!(store.sizes().iter().map(|(_, count)| count).sum::<u64>(), 900);
    store.reset_stats();
    assert_eq!((store.stats().get_hits, store.stats().curr_items), (0, 900));
}

#[test]
fn crawl_visits_everything_once() {
    let store = store_of(16 * MIB);
    (0..5_000).for_each(|at| assert!(set(&store, &format!("k{at}"), b"v").is_ok()));
    let mut seen = Vec::new();
    let mut cursor = Some(cache::store::Cursor::START);
    while let Some(at) = cursor {
        cursor = store.crawl(at, 100, NOW, |item| {
            seen.push(item.key().to_vec());
            ControlFlow::Continue(())
        });
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 5_000);
}

#[test]
fn scan_leaves_hot_items() {
    let store = store_of(16 * MIB);
    let hot: Vec<_> = (0..4_000).map(|at| format!("hot-{at}")).collect();
    hot.iter().for_each(|key| assert!(set(&store, key, &[1; 1000]).is_ok()));
    (0..3).for_each(|_| hot.iter().for_each(|key| drop(value(&store, key))));
    for at in 0..100_000 {
        set(&store, &format!("scan-{at}"), &[2; 1000]).unwrap();
        if at % 10 == 0 {
            value(&store, &hot[at / 10 % hot.len()]);
        }
    }
    let kept = hot.iter().filter(|key| has(&store, key)).count();
    assert!(kept > 3_900, "{kept} of 4000 survived the scan");
}

#[test]
fn meta_marks_until_the_next_store() {
    let store = store_of(8 * MIB);
    set(&store, "k", b"old").unwrap();
    let mut guard = store.access(NOW);
    let rule = DeleteRule { invalidate: true, exptime: Some(NOW + 30), ..DeleteRule::default() };
    assert_eq!(guard.delete(b"k", rule), Deleted::Deleted);
    let item = guard.get(b"k").unwrap();
    assert!(item.is_stale() && !item.is_win_taken() && item.exptime() == NOW + 30);
    assert!(item.take_win() && !item.take_win());
    let cas = item.cas();
    let newer = Rule { cas: Some(cas - 1), invalidate: true, ..Rule::default() };
    assert!(matches!(guard.store(b"k", b"older", 0, 0, newer), Ok(StoreOutcome::Stored { .. })));
    assert!(guard.get(b"k").unwrap().is_stale());
    let explicit = Rule { new_cas: Some(99), ..Rule::default() };
    assert_eq!(guard.store(b"k", b"new", 0, 0, explicit), Ok(StoreOutcome::Stored { cas: 99 }));
    let item = guard.get(b"k").unwrap();
    assert!(!item.is_stale() && !item.is_win_taken() && item.cas() == 99);
}

#[test]
fn vivified_item_has_its_token_taken() {
    let store = store_of(8 * MIB);
    let mut guard = store.access(NOW);
    let add = Rule { mode: Mode::Add, win_taken: true, ..Rule::default() };
    guard.store(b"k", b"", 0, NOW + 30, add).unwrap();
    assert!(guard.get(b"k").unwrap().is_win_taken());
    let append = Rule { mode: Mode::Append, vivify: true, ..Rule::default() };
    assert!(matches!(guard.store(b"new", b"v", 3, 0, append), Ok(StoreOutcome::Stored { .. })));
    let plain = Mode::Append.into();
    assert_eq!(guard.store(b"missing", b"v", 3, 0, plain), Ok(StoreOutcome::NotStored));
}

#[test]
fn observer_sees_evictions() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    let store = store_of(4 * MIB);
    let seen = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&seen);
    assert!(store.observe_evictions(move |evicted| {
        assert!(evicted.key.starts_with(b"k") && !evicted.was_fetched && evicted.now == NOW);
        assert_eq!(evicted.size, 40 + evicted.key.len() as u64 + 1000);
        told.fetch_add(1, Relaxed);
    }));
    (0..10_000).for_each(|at| assert!(set(&store, &format!("k{at}"), &[1; 1000]).is_ok()));
    assert!(seen.load(Relaxed) > 5_000);
    let stats = store.stats();
    assert_eq!(seen.load(Relaxed), stats.evictions);
    assert_eq!(stats.evicted_unfetched, stats.evictions);
    assert!(!store.observe_evictions(|_| {}));
}

/// Fills a store of `memory_max` with values of one length, until it has evicted a tenth of its
/// capacity.
fn full_store(memory_max: u64, len: usize) -> Store {
    let store = store_of(memory_max);
    let value = vec![1; len];
    let fit = memory_max as usize / (len + 60);
    for at in 0..fit * 11 / 10 {
        set(&store, &format!("idle-{at}"), &value).unwrap();
    }
    assert!(store.stats().evictions > 0, "{len}: not full");
    store
}

#[test]
fn append_in_full_memory() {
    // Seen: 123 of 5,000 appends answered NOT_STORED, and the value was gone. Cause: the memory of
    // the new version was the old one's, evicted meanwhile. Cure: an item held by a write is not
    // evicted.
    for len in [100, 3_000] {
        let store = full_store(16 * MIB, len);
        set(&store, "log", b"").unwrap();
        for at in 0..5_000 {
            let mut guard = store.access(NOW);
            let outcome = guard.store(b"log", &[b'x'; 100], 0, NEVER, Mode::Append.into());
            drop(guard);
            assert!(matches!(outcome, Ok(StoreOutcome::Stored { .. })), "{at}: {outcome:?}");
            // Other items are stored and evicted meanwhile.
            set(&store, &format!("new-{at}"), &vec![2; len]).unwrap();
        }
        assert_eq!(value(&store, "log").unwrap().len(), 500_000);
    }
}

#[test]
fn overwrite_in_full_memory() {
    // Seen: one key stored over and over displaced 39 of 49 idle ones of its class. Cause: the old
    // version's memory waited for readers, though there were none, and meanwhile another item was
    // evicted. Cure: check the readers first.
    for len in [100, 1_000, 20_000, 300_000, 700_000, 1_000_000] {
        let store = full_store(32 * MIB, len);
        set(&store, "one", &vec![2; len]).unwrap();
        let before = store.stats().evictions;
        for _ in 0..500 {
            set(&store, "one", &vec![2; len]).unwrap();
        }
        // The new version is allocated before the old one is freed.
        let evicted = store.stats().evictions - before;
        assert!(evicted <= 16 && (len < 4096 || evicted <= 2), "{len}: {evicted}");
    }
}

#[test]
fn evictable_memory_refuses_nothing() {
    // Seen: 44 of 10,716 stores of mixed lengths were refused for lack of memory.
    let store = store_of(24 * MIB);
    let lens = [30, 200, 900, 4_000, 20_000, 60_000, 200_000, 400_000, 800_000, 1_000_000];
    std::thread::scope(|scope| {
        for thread in 0..3_usize {
            let store = &store;
            scope.spawn(move || {
                let mut random = 0x9e37_79b9_7f4a_7c15 ^ (thread as u64 + 1);
                for _ in 0..1_000 {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let len = lens[random as usize % lens.len()];
                    let key = format!("{thread}-{}", random >> 20 & 1023);
                    let _ = set(store, &key, &vec![3; len]);
                    has(store, &key);
                }
            });
        }
    });
    // A reader that was preempted may hold memory for longer than stores wait.
    let stats = store.stats();
    assert_eq!(stats.out_of_memory, stats.refused_behind_readers, "{stats:?}");
}

#[test]
fn staying_reader_refuses_stores() {
    // Seen: each store that found all memory held by a preempted reader slept up to 0.1 s, and so
    // did all connections of its processor. Cure: a wait of at most 2 ms, then a refusal.
    let store = full_store(8 * MIB, 1_000);
    let guard = store.access(NOW);
    set(&store, "read", b"v").unwrap();
    let item = guard.get(b"read").unwrap();
    let refused = (0..100_000).filter(|at| set(&store, &format!("new-{at}"), &[1; 1_000]).is_err());
    let refused = refused.take(1_000).count() as u64;
    assert_eq!(refused, 1_000);
    assert_eq!(item.slices().next().unwrap(), b"v");
    drop(guard);
    set(&store, "after", &[1; 1_000]).unwrap();
}

#[test]
fn stores_behind_readers_wait_2_ms() {
    // Seen: each preempted reader caused another wait of 2 ms, and the stores of all connections of
    // a processor wait one after another. Cause: a failed wait was remembered for that reader only.
    // Cure: all waits together have 2 ms of each tenth of a second.
    const PERIOD_MS: u128 = 100;
    let store = full_store(8 * MIB, 1_000);
    set(&store, "read", b"v").unwrap();
    let began = std::time::Instant::now();
    for round in 0..100 {
        let reader = store.access(NOW);
        // The reader holds back everything evicted from now on.
        reader.get(b"read").unwrap();
        let store_one = |at| set(&store, &format!("{round}-{at}"), &[1; 1_000]);
        assert!((0..100_000).any(|at| store_one(at).is_err()), "{round}");
        drop(reader);
        set(&store, "read", b"v").unwrap();
    }
    // A failed wait takes all time of its period. A successful one is shorter, so a period may
    // have several. Before the cure, each of the 100 readers cost one.
    let periods = began.elapsed().as_millis() / PERIOD_MS + 1;
    let stats = store.stats();
    assert!(stats.refused_behind_readers >= 100, "{stats:?}");
    assert!(u128::from(stats.reader_waits) < 50 + periods, "{periods} periods: {stats:?}");
}

#[test]
fn memory_returns_to_small_items() {
    // Seen: after the sizes went from small to large and back, 38 of 64 pages stayed with the large
    // classes. Cause: of all classes that no longer evicted, only the first was asked for a page
    // and none for its last one, and a page of small items was emptied 16 chunks at a time.
    let store = store_of(32 * MIB);
    let small_pages = |now| {
        let classes = store.class_stats(now).into_iter();
        let small = classes.filter(|class| class.chunk_size < 1_500);
        small.map(|class| class.total_pages).sum::<u32>()
    };
    let mut now = NOW;
    for phase in ["small", "large", "small again"] {
        let lens = match phase {
            "large" => [5_000, 9_000, 20_000, 40_000, 60_000, 90_000, 120_000, 200_000],
            _ => [200, 300, 400, 500, 600, 700, 800, 1_000],
        };
        // Four times the memory, over a minute.
        let mut stored = 0;
        let end = now + 60;
        for at in 0.. {
            let len = lens[at % lens.len()];
            stored += len + 60;
            let time = end - 60 + (stored * 60 / ((4 * 32) << 20)) as u32;
            if time >= end {
                break;
            }
            let mut guard = store.access(time);
            let key = format!("{phase}-{at}");
            guard.store(key.as_bytes(), &vec![1; len], 0, NEVER, Rule::default()).unwrap();
        }
        now = end;
        let pages = small_pages(now);
        match phase {
            // Failures in 0 to 5 of 150 runs with other hash seeds; 19 before the cure.
            "large" => assert!(pages <= 8, "{pages} pages of 32 stayed small"),
            _ => {
                assert!(pages >= 29, "{pages} of 32 pages are small: {:?}", store.class_stats(now))
            }
        }
    }
}

#[test]
fn dead_items_before_fresh_memory() {
    // Seen: with all items expired, new items took new pages until the memory was full.
    for len in [100, 5_000, 900_000] {
        let store = store_of(64 * MIB);
        let fill = |now, name: &str| {
            for at in 0..20_000_000 / (len + 60) {
                let key = format!("{name}{at}");
                let mut guard = store.access(now);
                guard.store(key.as_bytes(), &vec![1; len], 0, now + 10, Rule::default()).unwrap();
            }
            store.stats()
        };
        let first = fill(NOW, "a");
        let second = fill(NOW + 10, "b");
        assert!(second.total_malloced <= first.total_malloced + MIB, "{len}: {second:?}");
        assert!(second.reclaimed > 0);
    }
}
