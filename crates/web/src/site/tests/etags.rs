//! Validators, and changes that times do not show.

use super::*;

/// Two releases of equal length in which all files have the same time, as Nix makes them.
fn releases(files: &[&str], mtime_s: u64, configure: impl FnOnce(&mut SiteConfig)) -> World {
    let world = World::with(&[("one/x", ""), ("two/x", "")], |config| {
        config.root.push("current");
        symlink("one", &config.root).unwrap();
        configure(config);
    });
    for release in ["one", "two"] {
        for file in files {
            world.write(&format!("{release}/{file}"), &format!("{release} {file}"));
            set_mtime(&world.path(&format!("{release}/{file}")), mtime_s);
        }
    }
    world
}

fn switch(world: &mut World, release: &str) {
    symlink(release, world.path("next")).unwrap();
    fs::rename(world.path("next"), world.path("current")).unwrap();
    world.at_s += 1.0;
}

/// Seen: in the Nix store every file is of 1 January 1970, so two releases of equal length had one
/// ETag: 304 forever, and `If-Range` joined two versions. Cause: it was made of length and
/// modification time. Cure: it includes inode and change time.
#[test]
fn releases_of_one_time_differ() {
    for mtime_s in [0, 1, 315_532_800, 499_162_500, 1_700_000_000] {
        let files = ["a.js", "a.js.br", "large.bin"];
        let mut world = releases(&files, mtime_s, |config| config.memory_file_len_max = 8);
        let tags = |world: &World| {
            let entries = [
                world.entry("/a.js"),
                world.entry("/large.bin"),
                entry_of(world.ask("/a.js", &ALL)),
            ];
            assert_eq!(entries[0].modified_is_told, mtime_s == 1_700_000_000);
            entries.map(|entry| entry.etag.to_string())
        };
        let one = tags(&world);
        switch(&mut world, "two");
        let two = tags(&world);
        switch(&mut world, "one");
        assert_eq!(tags(&world), one, "back to the first");
        let all: std::collections::HashSet<_> = one.iter().chain(&two).collect();
        assert_eq!(all.len(), 6, "{one:?} {two:?}");
    }
}

#[test]
fn etag_survives_a_restart() {
    let world = World::new(&[("a.txt", "hello")]);
    let again = SiteConfig { root: world.dir.path().to_owned(), ..SiteConfig::default() };
    let etag = world.entry("/a.txt").etag.clone();
    let site = Site::open(again).unwrap();
    let restarted = World { site, ..world };
    assert_eq!(restarted.entry("/a.txt").etag, etag);
}

/// Copies as `cp -p` does: same inode, same length, same time.
#[test]
fn copy_over_changes_the_etag() {
    for len_max in [4, 1000] {
        let mut world = World::with(&[("a.bin", "release 1")], |config| {
            config.memory_file_len_max = len_max;
        });
        set_mtime(&world.path("a.bin"), 1);
        let one = world.entry("/a.bin");
        world.write("a.bin", "release 2");
        set_mtime(&world.path("a.bin"), 1);
        world.at_s += 1.0;
        let two = world.entry("/a.bin");
        assert_eq!(text_of(&two), "release 2");
        assert_ne!(one.etag, two.etag);
    }
}

#[test]
fn mtime_etags_agree_or_are_omitted() {
    let files = ["a.js", "a.js.br"];
    let by_mtime = |config: &mut SiteConfig| config.etag = EtagKind::Mtime;
    let etag = |world: &World| world.entry("/a.js").etag.to_string();
    let mut world = releases(&files, 1_700_000_000, by_mtime);
    let one = etag(&world);
    assert!(one.starts_with("\"8-"), "{one}");
    assert_ne!(*one, *entry_of(world.ask("/a.js", &ALL)).etag);
    switch(&mut world, "two");
    assert_eq!(etag(&world), one, "the same time and length");
    let world = releases(&files, 1, by_mtime);
    let entry = world.entry("/a.js");
    let head = head_of(&entry);
    assert!(entry.etag.is_empty() && !entry.modified_is_told);
    assert!(!head.contains("ETag") && !head.contains("Last-Modified"), "{head}");
}

#[test]
fn etags_can_be_turned_off() {
    let world = World::with(&[("a.txt", "hello")], |config| config.etag = EtagKind::Off);
    let head = head_of(&world.entry("/a.txt"));
    assert!(!head.contains("ETag") && head.contains("Last-Modified"), "{head}");
}

#[test]
fn shared_date_is_not_sent() {
    let mut world = World::new(&[("a.txt", "one")]);
    let set_mtime = |world: &World, s| set_mtime(&world.path("a.txt"), s);
    let is_told = |world: &World| head_of(&world.entry("/a.txt")).contains("Last-Modified");
    set_mtime(&world, 1_700_000_000);
    assert!(is_told(&world));
    world.write("a.txt", "two");
    set_mtime(&world, 1_700_000_000);
    world.at_s += 5.0;
    assert!(!is_told(&world), "a client would mistake it for the first version");
    world.at_s += 5.0;
    assert!(!is_told(&world), "and later as well");
    set_mtime(&world, 1_700_000_001);
    world.at_s += 5.0;
    assert!(is_told(&world));
}
