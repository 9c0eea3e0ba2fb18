//! Compressed files beside the plain ones.

use super::*;

#[test]
fn the_variant_that_the_client_likes_best_is_sent() {
    let world = World::new(&[("a.js", "plain"), ("a.js.br", "br"), ("a.js.gz", "gz")]);
    let body = |accepts: &[Encoding]| text_of(&entry_of(world.ask("/a.js", accepts)));
    assert_eq!(body(&[]), "plain");
    assert_eq!(body(&ALL), "br");
    assert_eq!(body(&[Encoding::Gzip, Encoding::Br]), "gz");
    assert_eq!(body(&[Encoding::Zstd]), "plain");
    let entry = entry_of(world.ask("/a.js", &ALL));
    assert!(head_of(&entry).starts_with(
        "Content-Type: text/javascript; charset=utf-8\r\nContent-Length: 2\r\nContent-Encoding: br\r\n"
    ));
}

#[test]
fn each_variant_has_its_own_etag_and_all_vary() {
    let world = World::new(&[("a.png", "same"), ("a.png.br", "same"), ("b.png", "alone")]);
    for name in ["a.png", "a.png.br"] {
        set_mtime(&world.path(name), 1_000_000_000);
    }
    let plain = world.entry("/a.png");
    let br = entry_of(world.ask("/a.png", &ALL));
    assert_ne!(plain.etag, br.etag);
    for entry in [&plain, &br] {
        assert!(head_of(entry).contains("Vary: Accept-Encoding\r\n"));
    }
    assert!(
        !head_of(&world.entry("/b.png")).contains("Vary"),
        "pictures seldom get variants"
    );
}

#[test]
fn a_variant_that_is_older_than_its_original_is_ignored() {
    let mut world = World::new(&[("a.js", "new"), ("a.js.br", "old")]);
    set_mtime(&world.path("a.js"), 2_000_000_000);
    set_mtime(&world.path("a.js.br"), 1_999_999_999);
    assert_eq!(text_of(&entry_of(world.ask("/a.js", &ALL))), "new");
    set_mtime(&world.path("a.js.br"), 2_000_000_000);
    world.at_s += 1.0;
    assert_eq!(text_of(&entry_of(world.ask("/a.js", &ALL))), "old");
}

#[test]
fn variants_that_come_and_go_are_noticed() {
    let mut world = World::new(&[("a.js", "plain")]);
    assert_eq!(text_of(&entry_of(world.ask("/a.js", &ALL))), "plain");
    world.write("a.js.gz", "gz");
    world.at_s += 1.0;
    assert_eq!(text_of(&entry_of(world.ask("/a.js", &ALL))), "gz");
    fs::remove_file(world.path("a.js.gz")).unwrap();
    world.at_s += 1.0;
    assert_eq!(text_of(&entry_of(world.ask("/a.js", &ALL))), "plain");
}

#[test]
fn variants_can_be_turned_off() {
    let world = World::with(&[("a.js", "plain"), ("a.js.br", "br")], |config| {
        config.precompressed = false;
    });
    let entry = entry_of(world.ask("/a.js", &ALL));
    assert_eq!(text_of(&entry), "plain");
    assert!(!head_of(&entry).contains("Vary"));
}
