//! A restarted store is warm, and a damaged snapshot is refused as a whole.

extern crate weftwork_cache as cache;

use std::fs;
use std::path::PathBuf;

use cache::store::{
    Config, DeleteRule, Mode, NEVER, RestoreError, Rule, Seconds, SnapshotTime, Store, StoreOutcome,
};
use tempfile::TempDir;

const SAVED: SnapshotTime = SnapshotTime { now: 1_000, unix: 1_800_000_000 };
const LATER: SnapshotTime = SnapshotTime { now: 2, unix: 1_800_000_060 };

fn store() -> Store {
    Store::new(Config { memory_max: 32 << 20, ..Config::default() }).unwrap()
}

fn value_of(at: usize) -> Vec<u8> {
    let len = if at.is_multiple_of(500) { 700_000 } else { at % 3_000 };
    (0..len).map(|byte| (byte * 7 + at) as u8).collect()
}

fn full_store() -> Store {
    let store = store();
    let mut guard = store.access(SAVED.now);
    for at in 0..2_000 {
        let key = format!("key-{at}");
        let exptime = if at % 3 == 0 { SAVED.now + 100 + at as Seconds } else { NEVER };
        let stored =
            guard.store(key.as_bytes(), &value_of(at), at as u32, exptime, Mode::Set.into());
        assert!(matches!(stored, Ok(StoreOutcome::Stored { .. })));
    }
    drop(guard);
    store
}

fn saved() -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("snapshot");
    let written = full_store().save(&path, SAVED).unwrap();
    assert_eq!((written.items, written.file_len), (2_000, fs::metadata(&path).unwrap().len()));
    (folder, path)
}

#[test]
fn restore_keeps_flags_cas_and_time() {
    let (_folder, path) = saved();
    let warm = store();
    let file_len = fs::metadata(&path).unwrap().len();
    let restored = warm.restore(&path, LATER).unwrap();
    assert_eq!((restored.items, restored.file_len), (2_000, file_len));
    let mut guard = warm.access(LATER.now);
    for at in 0..2_000 {
        let item = guard.get(format!("key-{at}").as_bytes()).expect("it was saved");
        assert!(item.slices().flatten().copied().eq(value_of(at)), "key-{at}");
        assert_eq!((item.flags(), item.cas()), (at as u32, at as u64 + 1));
        // A minute has passed.
        let exptime = if at % 3 == 0 { LATER.now + 40 + at as Seconds } else { NEVER };
        assert_eq!(item.exptime(), exptime);
    }
    let Ok(StoreOutcome::Stored { cas }) = guard.store(b"new", b"", 0, 0, Rule::default()) else {
        panic!("a set is stored");
    };
    assert_eq!(cas, 2_001, "a cas was given out twice");
}

#[test]
fn a_snapshot_is_used_once() {
    let (_folder, path) = saved();
    store().restore(&path, LATER).unwrap();
    assert!(!path.exists());
    assert!(matches!(store().restore(&path, LATER), Err(RestoreError::Io(_))));
}

#[test]
fn expired_items_are_not_restored() {
    let (_folder, path) = saved();
    let warm = store();
    let much_later = SnapshotTime { now: 2, unix: SAVED.unix + 1_000 };
    let restored = warm.restore(&path, much_later).unwrap();
    let expired = (0..2_000).filter(|at| at % 3 == 0 && at + 100 <= 1_000).count() as u64;
    assert_eq!((restored.expired, restored.items), (expired, 2_000 - expired));
}

#[test]
fn marks_come_back() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("snapshot");
    let before = store();
    let mut guard = before.access(SAVED.now);
    for key in [b"k", b"p"] {
        guard.store(key, b"v", 0, 0, Rule::default()).unwrap();
    }
    guard.delete(b"k", DeleteRule { invalidate: true, ..DeleteRule::default() });
    assert!(guard.get(b"k").unwrap().take_win());
    drop(guard);
    before.save(&path, SAVED).unwrap();
    let warm = store();
    warm.restore(&path, LATER).unwrap();
    let guard = warm.access(LATER.now);
    let item = guard.get(b"k").unwrap();
    assert!(item.is_stale() && item.is_win_taken() && item.was_fetched());
    let plain = guard.peek(b"p").unwrap();
    assert!(!plain.is_stale() && !plain.is_win_taken() && !plain.was_fetched());
}

#[test]
fn dead_items_are_not_saved() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("snapshot");
    let before = full_store();
    before.flush(SAVED.now, SAVED.now);
    before.access(SAVED.now).store(b"after", b"v", 0, 0, Rule::default()).unwrap();
    assert_eq!(before.save(&path, SAVED).unwrap().items, 1);
}

#[test]
fn smaller_store_keeps_what_fits() {
    let (_folder, path) = saved();
    let config = Config { memory_max: 2 << 20, item_len_max: 10_000, ..Config::default() };
    let small = Store::new(config).unwrap();
    let restored = small.restore(&path, LATER).unwrap();
    assert_eq!(restored.refused, 4);
    let stats = small.stats();
    assert!(stats.total_malloced <= 2 << 20 && stats.curr_items > 100, "{stats:?}");
}

#[test]
fn truncated_file_is_refused() {
    let (folder, path) = saved();
    let whole = fs::read(&path).unwrap();
    let mut random = 0x5eed_u64;
    for round in 0..60 {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let len = match round {
            0..20 => round * 4,
            20..30 => whole.len() - (round - 19),
            _ => (random >> 33) as usize % whole.len(),
        };
        let cut = folder.path().join("cut");
        fs::write(&cut, &whole[..len]).unwrap();
        let store = store();
        let refused = store.restore(&cut, LATER).unwrap_err();
        assert!(
            matches!(refused, RestoreError::Torn(_) | RestoreError::Foreign),
            "{len}: {refused}"
        );
        assert!(cut.exists() && store.stats().curr_items == 0, "{len}");
    }
}

#[test]
fn flipped_bit_is_refused() {
    let (folder, path) = saved();
    let whole = fs::read(&path).unwrap();
    let mut random = 0xb17_u64;
    for round in 0..60 {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bit = match round {
            0..30 => round * 17,
            30..40 => whole.len() * 8 - 1 - (round - 30) * 6,
            _ => (random >> 20) as usize % (whole.len() * 8),
        };
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let file = folder.path().join("flipped");
        fs::write(&file, flipped).unwrap();
        let store = store();
        assert!(store.restore(&file, LATER).is_err(), "bit {bit}");
        assert_eq!(store.stats().curr_items, 0, "bit {bit}");
    }
}

#[test]
fn foreign_files_are_refused() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("stranger");
    fs::write(&path, b"#!/bin/sh\necho no snapshot at all, but longer than a head of one is\n")
        .unwrap();
    let refused = store().restore(&path, LATER).unwrap_err().to_string();
    assert!(refused.contains("not a snapshot") && refused.contains("remove it"), "{refused}");
}

/// Seen: after a snapshot whose last cas was the maximum, a new item had the cas 0, which means
/// none. Cause: the counter wrapped. Cure: it skips 0.
#[test]
fn cas_skips_zero() {
    let (_folder, path) = saved();
    let mut file = fs::read(&path).unwrap();
    file[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
    let crc = crc32fast::hash(&file[..48]).to_le_bytes();
    file[48..52].copy_from_slice(&crc);
    fs::write(&path, file).unwrap();
    let store = store();
    store.restore(&path, LATER).unwrap();
    let stored = store.access(LATER.now).store(b"k", b"v", 0, NEVER, Mode::Set.into());
    assert_eq!(stored, Ok(StoreOutcome::Stored { cas: 1 }));
}
