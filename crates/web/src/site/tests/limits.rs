//! Memory and open files stay within their limits.

use std::sync::Barrier;

use super::*;

/// Files of 100 bytes, and space for some of them in memory and in the page cache.
fn world_of_many(count: usize, files_in_memory: u64, files_in_pages: u64) -> World {
    let mut world = World::with(&[], |config| {
        config.memory_budget = files_in_memory * (100 + holdings::MEMORY_OVERHEAD);
        config.page_cache_budget = Some(files_in_pages * 4096);
        config.precompressed = false;
        config.open_files_max = 16;
    });
    (0..count).for_each(|n| world.write(&format!("f{n}"), &format!("{n:0100}")));
    world.settle();
    world
}

fn path_of(n: usize) -> String {
    format!("/f{n}")
}

#[test]
fn memory_and_files_stay_in_limits() {
    let world = world_of_many(200, 20, 30);
    for n in (0..3).flat_map(|_| 0..200) {
        assert_eq!(world.text(&path_of(n)), format!("{n:0100}"));
        assert!(world.count("site_memory_bytes") <= 20 * (100 + holdings::MEMORY_OVERHEAD));
        assert!(world.count("site_page_cache_bytes") <= 30 * 4096);
        assert!(world.count("site_files_open") <= 16);
    }
    assert!(world.count("site_files_closed_total") > 0);
}

#[test]
fn memory_budget_includes_tables_of_the_driver() {
    const LEN: u64 = 64_000;
    let weight = LEN + holdings::MEMORY_OVERHEAD;
    for (driver_tables, held) in [(false, 4), (true, 3)] {
        let mut world = World::with(&[], |config| {
            config.memory_budget = 4 * weight;
            config.driver_tables = driver_tables;
            config.precompressed = false;
        });
        (0..4).for_each(|n| world.write(&format!("f{n}"), &"x".repeat(LEN as usize)));
        world.settle();
        let entries: Vec<_> = (0..4).map(|n| world.entry(&path_of(n))).collect();
        let in_memory = entries.iter().filter(|entry| is_in_memory(entry));
        assert_eq!(in_memory.count(), held);
        let pages = entries.iter().filter_map(|entry| entry.page.as_ref());
        assert!(pages.clone().all(|page| page.bytes().len() as u64 == LEN));
        assert_eq!(pages.count(), if driver_tables { held } else { 0 });
        assert!(world.count("site_memory_bytes") <= 4 * weight);
    }
}

/// In a memory group that others fill, and leave again.
///
/// Seen (at load 20): fewer bytes at the end. Cause: writing the files took 16 s, so some were
/// still young in the last walk.
#[test]
fn page_cache_follows_memory() {
    let group = "sys/fs/cgroup/memory/g/memory";
    let limit = format!("{group}.limit_in_bytes");
    let used = format!("{group}.usage_in_bytes");
    let root = available_memory::tests::root(&[
        ("proc/self/cgroup", "4:memory:/g\n"),
        (&limit, "3200000\n"),
        (&used, "0\n"),
    ]);
    let mut world = World::with(&[], |config| {
        config.memory_budget = 0;
        config.precompressed = false;
    });
    (0..600).for_each(|n| world.write(&format!("f{n}"), &format!("{n:0100}")));
    world.settle();
    Arc::get_mut(&mut world.site.cache).unwrap().available = Some(AvailableMemory::at(root.path()));
    let walk = |world: &mut World, others: u64| {
        fs::write(root.path().join(&used), format!("{others}\n")).unwrap();
        world.at_s += 1.5;
        (0..600).for_each(|n| assert_eq!(world.text(&path_of(n)), format!("{n:0100}")));
        world.count("site_page_cache_bytes")
    };
    let all = 600 * 4096;
    assert_eq!(walk(&mut world, 0), all);
    let max = world.count("site_page_cache_max_bytes");
    assert_eq!(max, 3_175_000);
    let left = walk(&mut world, 2_000_000);
    assert!((1_100_000..=1_175_000).contains(&left), "{left}");
    assert_eq!(walk(&mut world, 4_000_000), 0);
    assert_eq!(walk(&mut world, 0), all);
}

/// Seen (in CI): files that fit in a memory cgroup were read from the disk again and again. Cause:
/// each was read twice, because it was young; glibc kept the memory freed after the first reads, up
/// to half of the memory budget, in the arenas of the threads that had read them. Cure: the
/// allocator returns its free memory before the available memory is checked.
#[test]
fn holes_in_memory_are_returned_once() {
    static RETURNED: AtomicU64 = AtomicU64::new(0);
    let root = available_memory::tests::root(&[]);
    let mut world = World::with(&[], |config| {
        config.memory_budget = 16 << 20;
        config.return_free_memory = Some(|| _ = RETURNED.fetch_add(1, Relaxed));
    });
    let write_all = |world: &World, letter: &str| {
        (0..70).for_each(|n| world.write(&format!("f{n}"), &letter.repeat(60_000)));
    };
    write_all(&world, "a");
    world.settle();
    Arc::get_mut(&mut world.site.cache).unwrap().available = Some(AvailableMemory::at(root.path()));
    let walk = |world: &mut World, letter: &str| {
        world.at_s += 1.5;
        (0..70).for_each(|n| assert_eq!(world.text(&path_of(n)), letter.repeat(60_000)));
        RETURNED.load(Relaxed)
    };
    assert_eq!(walk(&mut world, "a"), 0);
    assert_eq!(walk(&mut world, "a"), 0);
    write_all(&world, "b");
    walk(&mut world, "b");
    let held = world.count("site_memory_bytes");
    assert!(held > 70 * 60_000, "70 files are held in {held} bytes");
    assert_eq!(walk(&mut world, "b"), 1);
    assert_eq!(walk(&mut world, "b"), 1);
}

/// Seen: with a full page cache, a file requested for the first time was read from the disk twice.
/// Cause: memory had space, so a non-blocking read was tried, which makes the kernel read ahead;
/// but a first request did not justify a worker, so the reply bypassed the page cache. Cure: a file
/// is read into memory if there is space.
#[test]
fn first_request_reads_into_memory() {
    let world = World::with(&[], |config| config.page_cache_budget = Some(0));
    world.write("f", &"x".repeat(60_000));
    let file = File::open(world.path("f")).unwrap();
    file.sync_all().unwrap();
    // Only clean pages leave the page cache.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    assert!(is_in_memory(&world.entry("/f")));
    assert_eq!(world.count("site_memory_admitted_total"), 1);
}

/// Seen: with `--memory-file-max 128M`, the first request for 100 MB blocked all connections of its
/// loop for 0.2 s. Cause: cached data was read at once, whatever its length. Cure: a long file is
/// read where a request may block.
#[test]
fn long_file_is_read_in_load() {
    const LEN_MAX: u64 = 4 << 20;
    let world = World::with(&[], |config| {
        config.memory_file_len_max = LEN_MAX;
        // No other file is looked up on the disk.
        config.precompressed = false;
    });
    world.write("long", &"x".repeat(LEN_MAX as usize));
    assert!(matches!(world.find("/long", &[]), Found::WouldBlock));
    assert!(is_in_memory(&world.entry("/long")));
    assert!(is_in_memory(&entry_of(world.find("/long", &[]))));
}

/// Seen: 32 concurrent requests for the same 100 MB made 32 threads read them, 3.2 GB in total.
/// Cause: each request that went to a worker read the file itself. Cure: one reads, and the others
/// are answered from the open file meanwhile.
#[test]
fn one_long_read_at_a_time() {
    const LEN: u64 = 4 << 20;
    let world = World::with(&[], |config| {
        config.memory_file_len_max = LEN;
        config.precompressed = false;
    });
    world.write("long", &"x".repeat(LEN as usize));
    let another = world.site.cache.long_read.lock().unwrap();
    for found in [world.find("/long", &[]), world.load("/long", &[])] {
        assert!(!is_in_memory(&entry_of(found)), "another one reads");
    }
    drop(another);
    assert!(is_in_memory(&world.entry("/long")));
}

/// Seen and cause: as above. Cure: if two requests have read the same file, both answer with the
/// bytes in the table.
#[test]
fn concurrent_requests_share_one_copy() {
    for len in [100_000, 4 << 20] {
        let world = World::with(&[], |config| {
            config.memory_file_len_max = len;
            config.precompressed = false;
        });
        world.write("f", &"x".repeat(len as usize));
        let start = Barrier::new(8);
        let load = || {
            start.wait();
            entry_of(world.load("/f", &[]))
        };
        let entries: Vec<_> = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..8).map(|_| scope.spawn(load)).collect();
            let entries = clients.into_iter().map(|client| client.join().unwrap());
            entries.collect()
        });
        let held = world.entry("/f");
        assert!(is_in_memory(&held));
        let copies = entries.iter().filter(|entry| is_in_memory(entry));
        assert!(copies.into_iter().all(|copy| Arc::ptr_eq(copy, &held)));
        assert_eq!(world.count("site_memory_admitted_total"), 1);
    }
}

/// Seen: a file requested once was as popular as one requested twice. Cause: a request that had to
/// wait for the disk was counted again when it was repeated. Cure: a request counts when it is
/// answered.
#[test]
fn blocked_request_counts_once() {
    const LEN: u64 = 2 << 20;
    let world = World::with(&[], |config| {
        config.memory_file_len_max = LEN;
        config.precompressed = false;
    });
    world.write("long", &"x".repeat(LEN as usize));
    let hash = world.site.key("/long").hash;
    assert!(matches!(world.find("/long", &[]), Found::WouldBlock));
    assert_eq!(world.site.cache.sketch.estimate(hash), 0);
    for asked in 1..=3 {
        world.entry("/long");
        assert_eq!(world.site.cache.sketch.estimate(hash), asked);
    }
}

#[test]
fn walk_leaves_hot_files_in_memory() {
    let world = world_of_many(400, 40, 40);
    let hot = || 0..10;
    (0..5).flat_map(|_| hot()).for_each(|n| _ = world.entry(&path_of(n)));
    assert!(hot().all(|n| is_in_memory(&world.entry(&path_of(n)))));
    let evicted = world.count("site_memory_evicted_total");
    for n in (0..4).flat_map(|_| 10..400) {
        world.entry(&path_of(n));
        assert!(is_in_memory(&world.entry(&path_of(n % 10))), "hot file {} at {n}", n % 10);
    }
    let evicted = world.count("site_memory_evicted_total") - evicted;
    assert!(evicted < 30, "{evicted} evicted by 1560 cold requests");
}

#[test]
fn new_hot_file_enters_memory_soon() {
    let world = world_of_many(101, 100, 0);
    (0..100).for_each(|n| _ = world.entry(&path_of(n)));
    let asked = (1..).find(|_| is_in_memory(&world.entry(&path_of(100)))).unwrap();
    assert!(asked <= 5, "in memory at request {asked}");
}

#[test]
fn cold_file_enters_memory_on_repeat() {
    // Without variants, whose absence is also known to the disk only.
    let world = World::with(&[("cold.txt", "cold")], |config| config.precompressed = false);
    let file = File::open(world.path("cold.txt")).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let once = match world.find("/cold.txt", &[]) {
        // A kernel that cannot tell whether it would block.
        Found::WouldBlock => return,
        found => entry_of(found),
    };
    // The first request does not find it in memory (except on tmpfs, which has no cold data). The
    // second one does if the kernel has read ahead, or else loads it.
    assert!(is_in_memory(&once) || is_in_memory(&world.entry("/cold.txt")));
    assert_eq!(text_of(&entry_of(world.find("/cold.txt", &[]))), "cold");
}

#[test]
fn unadmitted_file_is_not_kept() {
    let world = world_of_many(100, 10, 20);
    let keeps = |n| match world.entry(&path_of(n)).body {
        Body::Memory(_) => None,
        Body::File { keep, .. } => Some(keep),
    };
    let kept: Vec<_> = (0..100).map(keeps).collect();
    assert_eq!(kept.iter().filter(|keep| keep.is_none()).count(), 10);
    assert_eq!(kept.iter().filter(|keep| **keep == Some(true)).count(), 20);
    assert_eq!(kept.iter().filter(|keep| **keep == Some(false)).count(), 70);
    let refused = ["site_memory_refused_total", "site_page_cache_refused_total"];
    assert_eq!(refused.map(|name| world.count(name)), [90, 70]);
    // A popular file displaces one that is not.
    assert!((0..8).any(|_| keeps(99) != Some(false)));
}

#[test]
fn missing_names_take_no_memory() {
    let world = World::new(&[("a.txt", "a")]);
    let entry = world.entry("/a.txt");
    for n in 0..1000 {
        assert!(matches!(world.ask(&format!("/random{n}"), &[]), Found::NotFound));
    }
    assert!(Arc::ptr_eq(&entry, &entry_of(world.find("/a.txt", &[]))));
    assert_eq!(world.count("site_paths"), 1);
}

#[test]
fn unused_paths_go_first() {
    let mut world = World::with(&[], |config| config.paths_max = 10);
    (0..50).for_each(|n| world.write(&format!("f{n}"), "x"));
    world.settle();
    let hot = world.entry("/f0");
    for n in 1..50 {
        world.entry(&path_of(n));
        assert!(Arc::ptr_eq(&hot, &world.entry("/f0")), "at {n}");
        assert!(world.count("site_paths") <= 10);
    }
    assert!(world.count("site_memory_files") <= 10);
}

#[test]
fn no_descriptors_closes_files_first() {
    let world = world_of_many(8, 0, 100);
    (0..8).for_each(|n| _ = world.entry(&path_of(n)));
    let missing = std::cell::Cell::new(0);
    let open = || {
        let is_missing = missing.get() > 0;
        missing.set(missing.get().max(1) - 1);
        if is_missing { Err(Miss::OutOfDescriptors) } else { Ok(()) }
    };
    // Closing files suffices, or other requests must end first, or neither helps.
    for (count, of_loop, of_worker) in [(1, true, true), (5, false, true), (50, false, false)] {
        for (blocking, is_open) in [(Blocking::Never, of_loop), (Blocking::Allowed, of_worker)] {
            missing.set(count);
            let opened = world.site.with_descriptors(blocking, open);
            assert_eq!(opened.is_ok(), is_open, "{count} {blocking:?}");
            assert_eq!(
                matches!(opened, Err(Miss::WouldBlock)),
                !of_loop && blocking == Blocking::Never
            );
        }
    }
    // A second request in need does not wait as long.
    missing.set(50);
    assert!(world.site.with_descriptors(Blocking::Allowed, open).is_err());
    assert_eq!((missing.get(), world.count("site_out_of_descriptors_total")), (48, 2));
    // It waits again once a file was opened.
    for count in [0, 5] {
        missing.set(count);
        assert!(world.site.with_descriptors(Blocking::Allowed, open).is_ok());
    }
    let found = world.site.found_of(Miss::OutOfDescriptors, "x");
    assert!(matches!(found, Found::Failed { status: 503, why } if why.contains("LimitNOFILE")));
}

/// Cost of the ways to a file, best of five: `cargo test --release -p weftwork-web cost_of --
/// --ignored --nocapture`
#[test]
#[ignore = "a measurement, not a promise"]
fn cost_of_the_ways_to_a_file() {
    let mut world = World::new(&[("assets/app/main.4f1c2b.js", "x")]);
    world.write("assets/app/main.4f1c2b.js.br", "br");
    File::create(world.path("big")).unwrap().set_len(1 << 20).unwrap();
    world.at_s += 20.0;
    let now = world.now();
    let cost = |what: &str, path: &str, accepts: &[Encoding]| {
        let lookup = lookup(path, accepts);
        (0..20).for_each(|_| _ = world.site.load(&lookup, now));
        let rounds = 200_000;
        let ns = (0..5).map(|_| {
            let start = Instant::now();
            (0..rounds).for_each(|_| _ = std::hint::black_box(world.site.find(&lookup, now)));
            start.elapsed().as_nanos() as f64 / f64::from(rounds)
        });
        println!("{what}: {:.0} ns", ns.fold(f64::INFINITY, f64::min));
    };
    cost("hit in memory", "/assets/app/main.4f1c2b.js", &[]);
    cost("hit in memory, a variant", "/assets/app/main.4f1c2b.js", &ALL);
    cost("open file", "/big", &[]);
    cost("nothing there", "/nope", &[]);
    cost("a directory without its slash", "/assets/app", &[]);
}

fn with_listings() -> World {
    World::with(&[("folder/a", "a")], |config| config.listing = true)
}

/// Seen (in review): clients that requested a listing of 10,000 files and did not read it held 3 MB
/// each. Cause: a listing above 256 KiB was made anew for each. Cure: it is kept, and replaced only
/// when something has changed.
#[test]
fn listing_bytes_are_shared() {
    let mut world = with_listings();
    let name = |n: usize| format!("folder/{n:0200}");
    (0..1000).for_each(|n| world.write(&name(n), ""));
    world.settle();
    let first = bytes_of(&world.entry("/folder/"));
    assert!(first.len() > 256 << 10, "{} bytes", first.len());
    for _ in 0..3 {
        assert_eq!(bytes_of(&world.entry("/folder/")).as_ptr(), first.as_ptr());
        world.at_s += 10.0;
    }
    assert_eq!(world.count("site_listing_bytes"), first.len() as u64);
    world.write(&name(1000), "");
    let second = bytes_of(&world.entry("/folder/"));
    assert!(second.len() > first.len());
    let both = (first.len() + second.len()) as u64;
    assert_eq!(world.count("site_listing_bytes"), both);
    drop(first);
    assert_eq!(world.count("site_listing_bytes"), second.len() as u64);
}

#[test]
fn unread_listings_are_bounded() {
    let world = with_listings();
    let len = listing::HELD_LEN_MAX as usize;
    let page = String::from_utf8(vec![0; len]).unwrap();
    let on_its_way = world.site.cache.listings.hold(page);
    let Found::Failed { status, why } = world.ask("/folder/", &[]) else {
        panic!("the listing was made");
    };
    assert_eq!(status, 503, "{why}");
    assert_eq!(world.text("/folder/a"), "a", "files are served");
    assert_eq!(world.count("site_listings_refused_total"), 1);
    drop(on_its_way);
    assert!(world.text("/folder/").contains(">a<"));
}
