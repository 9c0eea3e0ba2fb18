//! Files that were written just now, or are written constantly.

use super::*;

/// Seen: of 3,054 complete replies with a file that was rewritten in place, 105 had bytes of two
/// versions. Cause: it was opened during a write, which leaves no trace in the stamp. Cure: it must
/// stay unmodified first.
#[test]
fn large_file_waits_to_be_quiet() {
    let mut world = World::with(&[("a.bin", "large")], |config| {
        config.memory_file_len_max = 4;
        config.precompressed = false;
    });
    world.set_age("a.bin", Duration::ZERO);
    assert!(matches!(world.find("/a.bin", &[]), Found::WouldBlock));
    assert_eq!(world.count("site_changed_total"), 0, "the file only has to be left alone");
    let is_settled = |entry: &Entry| match entry.body {
        Body::File { settled, .. } => settled,
        Body::Memory(_) => panic!("in memory"),
    };
    let quiet_entry = world.entry("/a.bin");
    assert!(!is_settled(&quiet_entry));
    assert!(quiet_entry.etag.starts_with('"'), "{}", quiet_entry.etag);
    world.at_s = 20.0;
    assert!(is_settled(&world.entry("/a.bin")));
}

/// Seen: a log that grew constantly and was too large for memory got 503. Cause: it was never
/// quiet. Cure: it is served in its current state, with a weak validator.
#[test]
fn never_quiet_large_file_is_served() {
    let mut world = World::with(&[("a.log", "large")], |config| {
        config.memory_file_len_max = 4;
    });
    // As if the file were written constantly: at every check the last write lies in the future.
    world.set_age("a.log", Duration::ZERO);
    world.start.since_epoch -= Duration::from_secs(1);
    let Found::Entry(entry) = world.ask("/a.log", &[]) else {
        panic!("refused");
    };
    assert!(entry.etag.starts_with("W/\""), "{}", entry.etag);
    assert!(!entry.modified_is_strong);
    world.write("a.log", "larger by now");
    let Body::File { file, settled, .. } = &entry.body else {
        panic!("in memory");
    };
    assert!(!settled, "the page cache's own pages would change");
    assert!(file.is_unchanged().unwrap(), "no reason to cut the reply");
    assert_eq!(entry.len, 5, "the length at its opening");
    assert_eq!(world.site.cache.waiting.load(Relaxed), 0);
}

/// Seen: of more than 16 clients that requested a large file in its first 50 ms, the others got
/// 503. Cause: they may not all hold a thread while they wait. Cure: a request that may not wait
/// gets the file in its current state.
#[test]
fn crowd_gets_a_young_large_file() {
    let mut world = World::with(&[("a.bin", "large")], |config| {
        config.memory_file_len_max = 4;
    });
    world.at_s = 0.0;
    world.set_age("a.bin", Duration::ZERO);
    world.site.cache.waiting.store(quiet::WAITING_MAX, Relaxed);
    let Found::Entry(entry) = world.ask("/a.bin", &[]) else {
        panic!("refused");
    };
    assert!(entry.etag.starts_with("W/\""), "{}", entry.etag);
    assert!(
        matches!(world.find("/a.bin", &[]), Found::Entry(same) if Arc::ptr_eq(&same, &entry)),
        "one open file is enough for a crowd"
    );
    world.site.cache.waiting.store(0, Relaxed);
    world.at_s = 0.2;
    let quiet_entry = world.entry("/a.bin");
    assert!(quiet_entry.etag.starts_with('"'), "{}", quiet_entry.etag);
    world.at_s = 10.0;
    assert_eq!(world.entry("/a.bin").etag.matches('-').count(), 1);
}

/// Seen: a file checked between its truncation and its write was served empty for half a second.
#[test]
fn truncated_file_is_doubted() {
    let mut world = World::new(&[("a.txt", "")]);
    world.set_age("a.txt", Duration::ZERO);
    assert!(matches!(world.find("/a.txt", &[]), Found::WouldBlock));
    assert_eq!(world.text("/a.txt"), "", "the file may be meant to be empty");
}

#[test]
fn young_file_is_rechecked_sooner() {
    let mut world = World::with(&[("a.txt", "half")], |config| {
        config.recheck_every = Duration::from_secs(3600);
    });
    world.at_s = 0.05;
    world.set_age("a.txt", Duration::from_millis(50));
    assert_eq!(world.text("/a.txt"), "half");
    world.write("a.txt", "whole");
    world.at_s = 10.0;
    assert_eq!(world.text("/a.txt"), "whole");
    world.write("a.txt", "other");
    world.at_s = 100.0;
    assert_eq!(world.text("/a.txt"), "whole", "the file has settled");
}
