//! Files that are overwritten in place. The clock of these worlds is ten seconds ahead of the
//! files, so a file truncated here has old times, as on ext4 for some milliseconds.

use super::*;

fn truncate(world: &World, path: &str) {
    let file = File::options().write(true).open(world.path(path)).unwrap();
    file.set_len(0).unwrap();
}

fn waits(world: &World) -> u64 {
    world.count("site_waits_total")
}

/// Seen: a file of 30 MB that was overwritten by `cat > file` was served with `Content-Length: 0`
/// and a strong ETag for half a second. Cause: ext4 shows the new length some milliseconds before
/// the new times, so the file looked empty and long unmodified. Cure: an empty file is accepted
/// only after a while.
#[test]
fn empty_old_file_is_checked_twice() {
    let mut world = World::with(&[("a.bin", "whole and long")], |config| {
        config.memory_file_len_max = 4;
    });
    world.entry("/a.bin");
    truncate(&world, "a.bin");
    assert!(matches!(world.find("/a.bin", &[]), Found::WouldBlock));
    world.write("a.bin", "written");
    assert_eq!(world.text("/a.bin"), "written");
    truncate(&world, "a.bin");
    assert!(matches!(world.find("/a.bin", &[]), Found::WouldBlock));
    let before = waits(&world);
    assert_eq!(world.text("/a.bin"), "", "the file is meant to be empty");
    assert_eq!(waits(&world), before + 1);
    assert_eq!(world.text("/a.bin"), "");
    world.at_s += 5.0;
    assert_eq!(world.text("/a.bin"), "");
    assert_eq!(waits(&world), before + 1, "only the first has to wait");
}

#[test]
fn old_bytes_stand_during_a_write() {
    let mut world = World::new(&[("a.txt", "old")]);
    world.entry("/a.txt");
    truncate(&world, "a.txt");
    world.at_s += 0.6;
    assert_eq!(text_of(&entry_of(world.find("/a.txt", &[]))), "old");
    world.at_s += 0.03;
    assert_eq!(text_of(&entry_of(world.find("/a.txt", &[]))), "old");
    world.write("a.txt", "new");
    world.at_s += 0.03;
    assert_eq!(world.text("/a.txt"), "new");
    assert_eq!(waits(&world), 0);
}

#[test]
fn truncation_shows_in_time() {
    let mut world = World::new(&[("a.txt", "old")]);
    world.entry("/a.txt");
    truncate(&world, "a.txt");
    world.at_s += 0.6;
    assert_eq!(world.text("/a.txt"), "old");
    world.at_s += 0.06;
    let empty = world.entry("/a.txt");
    assert!(text_of(&empty).is_empty() && empty.etag.starts_with('"'));
    assert_eq!(waits(&world), 0, "the file was seen empty before");
}

/// The known state is served for the promised time at most.
#[test]
fn old_bytes_stand_recheck_time_at_most() {
    let mut world = World::new(&[("a.txt", "old")]);
    world.entry("/a.txt");
    truncate(&world, "a.txt");
    world.at_s += 0.99;
    assert_eq!(world.text("/a.txt"), "old");
    world.at_s += 0.02;
    assert_eq!(world.text("/a.txt"), "");
    let mut world = World::with(&[("a.txt", "old")], |config| {
        config.recheck_every = Duration::ZERO;
    });
    world.entry("/a.txt");
    truncate(&world, "a.txt");
    world.at_s += 0.01;
    assert_eq!(world.text("/a.txt"), "");
    assert_eq!(waits(&world), 1);
}

#[test]
fn half_written_file_is_not_served() {
    let mut world = World::new(&[("a.txt", "half")]);
    world.set_age("a.txt", Duration::from_millis(1));
    assert!(matches!(world.find("/a.txt", &[]), Found::WouldBlock));
    world.write("a.txt", "half and half");
    world.set_age("a.txt", Duration::from_millis(49));
    assert_eq!(world.text("/a.txt"), "half and half");
    assert_eq!(waits(&world), 1);
}

#[test]
fn old_bytes_stand_until_quiet() {
    let mut world = World::new(&[("a.txt", "old")]);
    world.entry("/a.txt");
    world.write("a.txt", "new");
    world.at_s += 0.6;
    world.set_age("a.txt", Duration::from_millis(10));
    assert_eq!(text_of(&entry_of(world.find("/a.txt", &[]))), "old");
    world.at_s += 0.05;
    assert_eq!(world.text("/a.txt"), "new");
    assert_eq!(waits(&world), 0);
}

/// For example a finished file that is renamed over the old one: no process writes to it any more.
#[test]
fn old_write_needs_no_quiet_period() {
    let mut world = World::new(&[("a.txt", "old")]);
    world.write("next", "new");
    set_mtime(&world.path("next"), 1_700_000_000);
    fs::rename(world.path("next"), world.path("a.txt")).unwrap();
    world.set_age("a.txt", Duration::ZERO);
    assert_eq!(world.text("/a.txt"), "new");
    assert_eq!(waits(&world), 0);
}

/// A playlist of live video: rewritten in place again and again.
#[test]
fn never_quiet_is_no_store() {
    let mut world = World::with(&[("live.m3u8", "#EXTM3U 1")], |config| {
        config.cache_rules =
            vec![CacheRule { glob: "*.m3u8".to_owned(), value: "max-age=9".to_owned() }];
    });
    assert!(head_of(&world.entry("/live.m3u8")).contains("\r\nCache-Control: max-age=9\r\n"));
    world.write("live.m3u8", "#EXTM3U 2");
    world.at_s += 0.9;
    // At every check the last write lies in the future.
    world.set_age("live.m3u8", Duration::ZERO);
    world.start.since_epoch -= Duration::from_secs(1);
    assert_eq!(world.text("/live.m3u8"), "#EXTM3U 1");
    world.at_s += 0.2;
    let moving = world.entry("/live.m3u8");
    assert_eq!(text_of(&moving), "#EXTM3U 2");
    let head = head_of(&moving);
    assert!(moving.etag.starts_with("W/\""), "{head}");
    assert!(head.contains("\r\nCache-Control: no-store\r\n"), "{head}");
    assert!(!head.contains("max-age") && !head.contains("Last-Modified"), "{head}");
    assert_eq!(world.count("site_moving_total"), 1);
    // After two seconds it counts as a log, for which no request waits.
    let waited = waits(&world);
    for version in 3..8 {
        world.write("live.m3u8", &format!("#EXTM3U {version}"));
        world.at_s += 3.0;
        world.set_age("live.m3u8", Duration::ZERO);
        world.start.since_epoch -= Duration::from_secs(1);
        assert_eq!(world.text("/live.m3u8"), format!("#EXTM3U {version}"));
    }
    assert_eq!(waits(&world), waited);
}

#[test]
fn written_variant_falls_back() {
    let mut world = World::new(&[("a.js", "plain"), ("a.js.br", "old br")]);
    let ask = |world: &World| text_of(&entry_of(world.ask("/a.js", &ALL)));
    assert_eq!(ask(&world), "old br");
    truncate(&world, "a.js.br");
    world.at_s += 0.6;
    assert_eq!(ask(&world), "old br");
    assert_eq!(world.text("/a.js"), "plain");
    // No known state: the original answers.
    let world = World::new(&[("a.js", "plain"), ("a.js.br", "")]);
    assert_eq!(ask(&world), "plain");
    assert_eq!(waits(&world), 0);
}

/// The kernel frees the blocks of a long file between setting its new length and its new times.
#[test]
fn empty_with_blocks_waits_longer() {
    let world = World::new(&[("a.log", "")]);
    let file = File::options().write(true).open(world.path("a.log")).unwrap();
    let flags = rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, flags, 0, 1 << 20).unwrap();
    let mut world = world;
    let doubted = world.entry("/a.log");
    assert!(doubted.len == 0 && doubted.etag.starts_with("W/"), "{}", doubted.etag);
    assert!(head_of(&doubted).contains("no-store"));
    world.at_s += 1.1;
    assert!(world.entry("/a.log").etag.starts_with('"'));
}
