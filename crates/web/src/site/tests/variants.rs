//! Compressed files next to the plain ones.

use super::*;

#[test]
fn preferred_variant_is_sent() {
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
fn variants_have_etags_and_vary() {
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
    assert!(!head_of(&world.entry("/b.png")).contains("Vary"), "pictures seldom get variants");
}

#[test]
fn older_variant_is_ignored() {
    let mut world = World::new(&[("a.js", "new"), ("a.js.br", "old")]);
    set_mtime(&world.path("a.js"), 2_000_000_000);
    set_mtime(&world.path("a.js.br"), 1_999_999_999);
    assert_eq!(text_of(&entry_of(world.ask("/a.js", &ALL))), "new");
    set_mtime(&world.path("a.js.br"), 2_000_000_000);
    world.at_s += 1.0;
    assert_eq!(text_of(&entry_of(world.ask("/a.js", &ALL))), "old");
}

#[test]
fn variants_come_and_go() {
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

/// Seen: builds that contain only `game.js.br` and `game.js.gz`, as game engines write them, got
/// a 404.
#[test]
fn compressed_form_only() {
    let files = [
        ("a.js.br", "br"),
        ("a.js.gz", "gz"),
        ("b.csv.gz", "gz"),
        ("noext.gz", "gz"),
        ("d/index.html.gz", "index"),
    ];
    let mut world = World::new(&files);
    let body = |accepts: &[Encoding]| text_of(&entry_of(world.ask("/a.js", accepts)));
    assert_eq!(body(&ALL), "br");
    assert_eq!(body(&[Encoding::Gzip]), "gz");
    let head = head_of(&entry_of(world.ask("/a.js", &[Encoding::Gzip]))).to_owned();
    assert!(head.starts_with("Content-Type: text/javascript; charset=utf-8\r\n"));
    assert!(head.contains("Content-Encoding: gzip\r\n"));
    assert!(head.contains("Vary: Accept-Encoding\r\n"));
    for accepts in [&[][..], &[Encoding::Zstd]] {
        let found = world.ask("/a.js", accepts);
        assert!(matches!(found, Found::OnlyCompressed), "{found:?}");
    }
    assert_eq!(text_of(&entry_of(world.ask("/b.csv", &ALL))), "gz");
    for nothing in ["/a", "/a.js/", "/", "/c.js", "/a.js.zst", "/noext"] {
        let found = world.ask(nothing, &ALL);
        assert!(!matches!(found, Found::Entry(_)), "{nothing}: {found:?}");
    }
    assert_eq!(text_of(&entry_of(world.ask("/d/", &ALL))), "index");
    assert!(matches!(world.ask("/d/", &[]), Found::OnlyCompressed));
    // Its original may appear and disappear.
    world.write("a.js", "plain");
    world.at_s += 1.0;
    assert_eq!(text_of(&entry_of(world.ask("/a.js", &[]))), "plain");
    fs::remove_file(world.path("a.js")).unwrap();
    world.at_s += 1.0;
    assert!(matches!(world.ask("/a.js", &[]), Found::OnlyCompressed));
    fs::remove_file(world.path("a.js.gz")).unwrap();
    fs::remove_file(world.path("a.js.br")).unwrap();
    world.at_s += 1.0;
    assert!(matches!(world.ask("/a.js", &ALL), Found::NotFound));
}

#[test]
fn variants_off_hides_compressed_only() {
    let world = World::with(&[("a.js.gz", "gz")], |config| config.precompressed = false);
    assert!(matches!(world.ask("/a.js", &ALL), Found::NotFound));
}

#[test]
fn compressed_name_has_its_coding() {
    let files = [
        ("logo.svgz", "svgz"),
        ("logo.svgz.br", "not a variant"),
        ("a.js.gz", "gz"),
        ("a.tar.gz", "tar"),
    ];
    let world = World::new(&files);
    for (path, content_type, coding) in [
        ("/logo.svgz", "image/svg+xml", "Content-Encoding: gzip\r\n"),
        ("/a.js.gz", "text/javascript; charset=utf-8", "Content-Encoding: gzip\r\n"),
        ("/a.tar.gz", "application/gzip", ""),
    ] {
        for accepts in [&ALL[..], &[]] {
            let entry = entry_of(world.ask(path, accepts));
            let head = head_of(&entry);
            assert!(head.starts_with(&format!("Content-Type: {content_type}\r\n")), "{head}");
            assert_eq!(head.contains("Content-Encoding"), !coding.is_empty(), "{head}");
            assert!(head.contains(coding) && !head.contains("Vary"), "{head}");
        }
    }
    assert_eq!(text_of(&entry_of(world.ask("/logo.svgz", &ALL))), "svgz");
}

/// Sets the directory's time back, so that a new name changes it, however fast the test is.
fn age(world: &World, directory: &str) {
    let directory = File::open(world.path(directory)).unwrap();
    let time = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    directory.set_modified(time).unwrap();
}

/// Forty files in `d`, surveyed so often that their directory is known.
fn world_of_known(names: impl Fn(usize) -> String) -> World {
    let mut world = World::new(&[]);
    (0..40).for_each(|n| world.write(&names(n), "plain"));
    age(&world, "d");
    for _ in 0..2 {
        (0..40).for_each(|n| assert_eq!(world.text(&format!("/{}", names(n))), "plain"));
        world.at_s += 1.0;
    }
    world
}

#[test]
fn absent_variants_are_not_looked_for() {
    let world = world_of_known(|n| format!("d/{n}.js"));
    let spared = world.count("site_variants_spared_total");
    assert!(spared >= 40, "{spared}");
    assert_eq!(world.count("site_directories"), 1);
    world.write("d/7.js.br", "br");
    assert_eq!(text_of(&entry_of(world.ask("/d/7.js", &ALL))), "br");
    world.write("d/gone.js.gz", "gz");
    assert_eq!(text_of(&entry_of(world.ask("/d/gone.js", &ALL))), "gz");
    assert_eq!(world.count("site_variants_spared_total"), spared);
}

#[test]
fn a_replaced_directory_is_looked_at() {
    let mut world = world_of_known(|n| format!("d/{n}.js"));
    fs::rename(world.path("d"), world.path("old")).unwrap();
    world.write("d/8.js", "plain");
    world.write("d/8.js.br", "br");
    assert_eq!(text_of(&entry_of(world.ask("/d/8.js", &ALL))), "br");
    let spared = world.count("site_variants_spared_total");
    world.at_s += 1.0;
    assert_eq!(text_of(&entry_of(world.ask("/d/8.js", &ALL))), "br");
    assert_eq!(world.count("site_variants_spared_total"), spared);
}

#[test]
fn names_without_a_file_cost_one_look() {
    let world = world_of_known(|n| format!("d/{n}.js"));
    let spared = world.count("site_variants_spared_total");
    assert!(matches!(world.ask("/d/none.js", &ALL), Found::NotFound));
    assert_eq!(world.count("site_variants_spared_total"), spared + 1);
}

#[test]
fn directories_with_variants_are_not_learnt() {
    for (name, has_been_spared) in [("d/0.css.br", false), ("d/0.CSS.Gz", false), ("d/br", true)] {
        let mut world = World::new(&[(name, "other")]);
        (0..40).for_each(|n| world.write(&format!("d/{n}.js"), "plain"));
        for _ in 0..3 {
            (0..40).for_each(|n| assert_eq!(world.text(&format!("/d/{n}.js")), "plain"));
            world.at_s += 1.0;
        }
        let spared = world.count("site_variants_spared_total") > 0;
        assert_eq!(spared, has_been_spared, "{name}");
    }
}

#[test]
fn known_directories_have_a_limit() {
    let world = World::new(&[]);
    (0..5000).for_each(|n| _ = world.ask(&format!("/{n}/a.js"), &ALL));
    assert_eq!(world.count("site_directories"), 4096);
    assert_eq!(world.count("site_directories_dropped_total"), 904);
}
