//! Freshness: when changes are served.

use super::*;

#[test]
fn change_is_served_in_time() {
    let mut world = World::new(&[("a.txt", "old")]);
    assert_eq!(world.text("/a.txt"), "old");
    world.write("a.txt", "new and longer");
    world.at_s += 0.9;
    let entry = world.entry("/a.txt");
    assert_eq!(text_of(&entry), "new and longer");
    assert!(head_of(&entry).contains("Content-Length: 14\r\n"));
    fs::remove_file(world.path("a.txt")).unwrap();
    world.at_s += 0.9;
    assert!(matches!(world.ask("/a.txt", &[]), Found::NotFound));
    assert_eq!(world.count("site_memory_bytes"), 0);
}

#[test]
fn unchanged_file_is_only_checked() {
    // Twice, and at least one check: on tmpfs the first request reads no file, and the second one
    // checks again with permission to block, since no absence of variants is remembered.
    let mut world = World::new(&[("a.txt", "same")]);
    world.entry("/a.txt");
    let first = world.entry("/a.txt");
    world.at_s += 5.0;
    assert!(Arc::ptr_eq(&first, &world.entry("/a.txt")));
    assert!(world.count("site_rechecks_total") >= 1);
    assert_eq!(world.count("site_changed_total"), 0);
    let misses = world.count("site_misses_total");
    world.entry("/a.txt");
    assert_eq!(world.count("site_misses_total"), misses);
}

#[test]
fn change_with_mtime_set_back_shows() {
    let mut world = World::new(&[("a.txt", "one")]);
    set_mtime(&world.path("a.txt"), 1_000_000_000);
    assert_eq!(world.text("/a.txt"), "one");
    world.write("a.txt", "two");
    set_mtime(&world.path("a.txt"), 1_000_000_000);
    world.at_s += 1.0;
    assert_eq!(world.text("/a.txt"), "two");
}

#[test]
fn unsettled_file_is_read_again() {
    let mut world = World::new(&[("a.txt", "one")]);
    world.at_s = 0.5;
    let racy = world.entry("/a.txt");
    assert!(racy.etag.matches('-').count() == 2 && !racy.modified_is_strong, "{}", racy.etag);
    world.at_s += 1.0;
    let again = world.entry("/a.txt");
    assert!(!Arc::ptr_eq(&racy, &again), "another change may hide behind the same time stamp");
    assert_ne!(racy.etag, again.etag);
    world.at_s = 10.0;
    let settled = world.entry("/a.txt");
    assert_eq!(settled.etag.matches('-').count(), 1);
    world.at_s += 5.0;
    assert!(Arc::ptr_eq(&settled, &world.entry("/a.txt")));
}

#[test]
fn open_file_is_checked_at_each_use() {
    let world = World::with(&[("big", "0123456789")], |config| config.memory_file_len_max = 4);
    let before = world.entry("/big");
    assert!(matches!(before.body, Body::File { .. }));
    world.write("big", "abc");
    // No time has passed.
    let after = world.entry("/big");
    assert_eq!((text_of(&after).as_str(), after.len), ("abc", 3));
}

#[test]
fn switched_root_is_followed() {
    let dir = TempDir::new().unwrap();
    for release in ["one", "two"] {
        write(&dir, &format!("{release}/a.txt"), release);
    }
    let current = dir.path().join("current");
    symlink("one", &current).unwrap();
    let mut world = World::with(&[], |config| config.root = current.clone());
    assert_eq!(world.text("/a.txt"), "one");
    symlink("two", dir.path().join("next")).unwrap();
    fs::rename(dir.path().join("next"), &current).unwrap();
    world.at_s += 1.0;
    assert_eq!(world.text("/a.txt"), "two");
    fs::remove_file(&current).unwrap();
    world.at_s += 1.0;
    assert_eq!(world.text("/a.txt"), "two", "the old site is better than none");
}

/// An old root would use up the budgets, and answer beside the new one until its own check.
#[test]
fn old_root_is_released() {
    let files = [
        ("current/small", "one"),
        ("current/large", "large"),
        ("next/small", "two"),
        ("next/other", "other"),
    ];
    let mut world = World::with(&files, |config| {
        config.root.push("current");
        config.precompressed = false;
        config.memory_file_len_max = 3;
        config.page_cache_budget = Some(1 << 20);
        config.listing = true;
    });
    let held = |world: &World| {
        ["paths", "memory_files", "files_open", "page_cache_files"]
            .map(|what| world.count(&format!("site_{what}")))
    };
    world.entry("/large");
    world.at_s += 0.4;
    assert_eq!(world.text("/small"), "one");
    assert!(world.text("/").contains("large"));
    assert_eq!(held(&world), [2, 1, 1, 1]);
    fs::rename(world.path("current"), world.path("old")).unwrap();
    fs::rename(world.path("next"), world.path("current")).unwrap();
    // The root is due; a record that was checked later is not.
    world.at_s += 0.2;
    let found = world.find("/other", &[]);
    assert!(matches!(found, Found::WouldBlock), "opening may: {found:?}");
    assert!(matches!(world.ask("/large", &[]), Found::NotFound));
    assert_eq!(world.text("/small"), "two");
    assert!(!world.text("/").contains("large"));
    assert_eq!(held(&world), [1, 1, 0, 0]);
}

/// On a slow disk one check suffices for all requests meanwhile, and no file is served for longer
/// than promised.
#[test]
fn one_request_checks_the_disk() {
    let mut world = World::new(&[("a.txt", "old")]).without_openat2();
    world.entry("/a.txt");
    // A record is due after half of `recheck_every`; the root is not tested here.
    let pass = |world: &mut World, seconds| {
        world.at_s += seconds;
        let moment = world.site.moment(world.now());
        world.site.root_checked_ns.store(moment.ns, Relaxed);
    };
    for round in 0..3 {
        pass(&mut world, 0.9);
        let first = world.find("/a.txt", &[]);
        assert!(matches!(first, Found::WouldBlock), "round {round}");
        assert_eq!(text_of(&entry_of(world.find("/a.txt", &[]))), "old");
        if round < 2 {
            world.load("/a.txt", &[]);
        }
    }
    world.write("a.txt", "new");
    pass(&mut world, 0.2);
    assert!(matches!(world.find("/a.txt", &[]), Found::WouldBlock));
    assert_eq!(world.text("/a.txt"), "new");
}

#[test]
fn without_openat2_load_finds_all() {
    let mut world = World::new(&[("a/x.txt", "hello"), ("a/x.txt.br", "br")]).without_openat2();
    symlink("a/x.txt", world.path("link")).unwrap();
    symlink("/etc/passwd", world.path("out")).unwrap();
    assert!(matches!(world.find("/link", &[]), Found::WouldBlock));
    assert_eq!(world.text("/link"), "hello");
    assert_eq!(text_of(&entry_of(world.find("/link", &[]))), "hello", "a hit needs no look-up");
    assert_eq!(text_of(&entry_of(world.ask("/a/x.txt", &ALL))), "br");
    assert!(matches!(world.ask("/out", &[]), Found::NotFound));
    world.write("a/x.txt", "changed");
    world.at_s += 1.0;
    assert_eq!(world.text("/link"), "changed");
}

#[test]
fn a_long_file_is_a_hit_until_written() {
    let world = World::with(&[("f", "release 1")], |config| config.memory_file_len_max = 4);
    assert_eq!(world.text("/f"), "release 1");
    assert_eq!(world.text("/f"), "release 1");
    assert_eq!(world.count("site_hits_total"), 1);
    let etag = world.entry("/f").etag.clone();
    fs::write(world.path("f"), "release 2").unwrap();
    set_mtime(&world.path("f"), 1_000_000_000);
    let entry = world.entry("/f");
    assert_eq!(text_of(&entry), "release 2");
    assert_ne!(entry.etag, etag);
}
