use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use proptest::prelude::*;
use tempfile::TempDir;

use super::read::{Reading, read_whole};
use super::*;
use crate::lookup::{Encoding, Encodings, ListingFormat, ListingSort};

/// A site over a directory of its own, and a clock that the test moves.
struct World {
    dir: TempDir,
    site: Site,
    start: Now,
    /// Seconds since the files were written; ten, so that they have settled.
    at_s: f64,
}

impl World {
    fn new(files: &[(&str, &str)]) -> World {
        World::with(files, |_| ())
    }

    fn with(files: &[(&str, &str)], configure: impl FnOnce(&mut SiteConfig)) -> World {
        let dir = TempDir::new().unwrap();
        files
            .iter()
            .for_each(|(path, text)| write(&dir, path, text));
        let mut config = SiteConfig {
            root: dir.path().to_owned(),
            ..SiteConfig::default()
        };
        configure(&mut config);
        let start = Now::read();
        World {
            site: Site::open(config).unwrap(),
            dir,
            start,
            at_s: 10.0,
        }
    }

    fn write(&self, path: &str, text: &str) {
        write(&self.dir, path, text);
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn now(&self) -> Now {
        let since = Duration::from_secs_f64(self.at_s);
        Now {
            monotonic: self.start.monotonic + since,
            since_epoch: self.start.since_epoch + since,
        }
    }

    fn find(&self, path: &str, accepts: &[Encoding]) -> Found {
        self.site.find(&lookup(path, accepts), self.now())
    }

    /// As a session does: without blocking if that goes, else with.
    fn ask(&self, path: &str, accepts: &[Encoding]) -> Found {
        match self.find(path, accepts) {
            Found::WouldBlock => self.site.load(&lookup(path, accepts), self.now()),
            found => found,
        }
    }

    fn entry(&self, path: &str) -> Arc<Entry> {
        entry_of(self.ask(path, &[]))
    }

    fn text(&self, path: &str) -> String {
        text_of(&self.entry(path))
    }

    fn count(&self, name: &str) -> u64 {
        self.site.counters().find(|(of, ..)| *of == name).unwrap().2
    }
}

fn write(dir: &TempDir, path: &str, text: &str) {
    let path = dir.path().join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn lookup<'a>(path: &'a str, accepts: &[Encoding]) -> Lookup<'a> {
    let mut encodings = Encodings::NONE;
    accepts
        .iter()
        .for_each(|&encoding| encodings.push(encoding));
    Lookup {
        path,
        accepts: encodings,
        listing: ListingFormat::Html,
        sort: ListingSort::default(),
    }
}

fn entry_of(found: Found) -> Arc<Entry> {
    match found {
        Found::Entry(entry) => entry,
        other => panic!("no entry: {other:?}"),
    }
}

/// The bytes of an entry as a driver sends them, checked against its own header.
fn bytes_of(entry: &Entry) -> Bytes {
    let bytes = match &entry.body {
        Body::Memory(bytes) => bytes.clone(),
        Body::File { file, .. } => match read_whole(file, Blocking::Allowed).unwrap() {
            Reading::Whole(bytes) => bytes,
            other => panic!("{other:?}"),
        },
    };
    assert_eq!(bytes.len() as u64, entry.len);
    bytes
}

fn text_of(entry: &Entry) -> String {
    String::from_utf8(bytes_of(entry).to_vec()).unwrap()
}

fn head_of(entry: &Entry) -> String {
    String::from_utf8(entry.head_200.to_vec()).unwrap()
}

fn is_in_memory(entry: &Entry) -> bool {
    matches!(entry.body, Body::Memory(_))
}

fn set_mtime(path: &Path, seconds: u64) {
    let time = std::time::UNIX_EPOCH + Duration::from_secs(seconds);
    File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_modified(time)
        .unwrap();
}

// ---- what is found

#[test]
fn a_small_file_is_served_from_memory_the_second_time_without_allocating_an_entry() {
    let world = World::new(&[("a.txt", "hello")]);
    let first = world.entry("/a.txt");
    let second = entry_of(world.find("/a.txt", &[]));
    assert!(Arc::ptr_eq(&first, &second) && is_in_memory(&second));
    assert_eq!(text_of(&second), "hello");
    assert_eq!(world.count("site_hits_total"), 1);
}

#[test]
fn the_head_says_what_the_file_is() {
    let world = World::new(&[("a.html", "hello")]);
    set_mtime(&world.path("a.html"), 1_000_000_000);
    let entry = world.entry("/a.html");
    assert_eq!(
        head_of(&entry),
        "Content-Type: text/html; charset=utf-8\r\n\
         Content-Length: 5\r\n\
         Accept-Ranges: bytes\r\n\
         X-Content-Type-Options: nosniff\r\n\
         Last-Modified: Sun, 09 Sep 2001 01:46:40 GMT\r\n\
         ETag: \"5-de0b6b3a7640000\"\r\n\
         Vary: Accept-Encoding\r\n"
    );
    assert_eq!(&*entry.etag, "\"5-de0b6b3a7640000\"");
    let head_304 = std::str::from_utf8(&entry.head_304).unwrap();
    assert!(head_304.starts_with("Last-Modified: ") && head_304.contains("\r\nETag: "));
    assert!(!entry.head_206.starts_with(b"Content-Type"));
    assert!(entry.modified_is_strong);
}

#[test]
fn an_empty_file_has_a_head_and_no_bytes() {
    let world = World::new(&[("empty.txt", "")]);
    let entry = world.entry("/empty.txt");
    assert_eq!(text_of(&entry), "");
    assert!(head_of(&entry).contains("Content-Length: 0\r\n"));
}

#[test]
fn a_large_file_stays_on_disk() {
    let world = World::with(&[("limit", "1234")], |config| {
        config.memory_file_len_max = 4
    });
    File::create(world.path("huge.bin"))
        .unwrap()
        .set_len(5 << 40)
        .unwrap();
    let entry = world.entry("/huge.bin");
    assert!(matches!(entry.body, Body::File { .. }));
    assert_eq!(entry.len, 5 << 40);
    assert!(Arc::ptr_eq(&entry, &world.entry("/huge.bin")));
    let counts = ["site_files_open", "site_memory_files"].map(|name| world.count(name));
    assert_eq!(counts, [1, 0]);
    assert!(is_in_memory(&world.entry("/limit")));
}

#[test]
fn a_directory_is_answered_by_its_index_file() {
    let world = World::with(&[("index.html", "home"), ("a/index.htm", "a")], |config| {
        config.index = vec!["index.html".into(), "index.htm".into()];
    });
    assert_eq!(world.text("/"), "home");
    assert_eq!(world.text("/a/"), "a");
    assert!(head_of(&world.entry("/a/")).contains("text/html"));
    // One that comes first in the list takes over when it appears.
    world.write("a/index.html", "better");
    let mut world = world;
    world.at_s += 1.0;
    assert_eq!(world.text("/a/"), "better");
}

#[test]
fn a_directory_without_its_slash_is_redirected_within_the_host() {
    let world = World::new(&[("a b/ü/x", ""), ("evil.com/x", "")]);
    let slash = |path| match world.ask(path, &[]) {
        Found::SlashMissing(path) => path,
        other => panic!("{other:?}"),
    };
    assert_eq!(&*slash("/a b"), "/a%20b/");
    assert_eq!(&*slash("/a b/ü"), "/a%20b/%C3%BC/");
    assert_eq!(&*slash("/evil.com"), "/evil.com/");
    assert!(matches!(world.ask("//evil.com", &[]), Found::NotFound));
    assert!(matches!(world.ask("/evil.com/x/", &[]), Found::NotFound));
}

#[test]
fn a_directory_without_an_index_is_forbidden_unless_it_is_listed() {
    let world = World::new(&[("d/x", "")]);
    assert!(matches!(world.ask("/d/", &[]), Found::Forbidden));
    assert!(matches!(world.ask("/nope/", &[]), Found::NotFound));
    let mut world = World::with(&[("d/x.txt", "")], |config| config.listing = true);
    let listing = world.entry("/d/");
    assert!(text_of(&listing).contains("x.txt"));
    assert!(head_of(&listing).contains("Vary: Accept\r\n"));
    assert!(
        Arc::ptr_eq(&listing, &world.entry("/d/")),
        "kept for a moment"
    );
    world.write("d/y.txt", "");
    world.at_s += 1.0;
    assert!(
        world.text("/d/").contains("y.txt"),
        "but not for longer than promised"
    );
}

#[test]
fn a_visible_link_to_a_hidden_name_shows_it() {
    // A decision that the manual states: the name in the request decides, and the link was made on
    // purpose.
    let world = World::new(&[(".hidden/page", "shown")]);
    symlink(".hidden", world.path("link")).unwrap();
    symlink(".hidden/page", world.path("page")).unwrap();
    assert_eq!(
        (world.text("link/page"), world.text("page")),
        ("shown".into(), "shown".into())
    );
    assert!(matches!(world.ask(".hidden/page", &[]), Found::NotFound));
}

#[test]
fn hidden_files_are_not_found_except_the_well_known_ones() {
    let files = [
        (".env", "x"),
        (".git/config", "x"),
        ("a/.b", "x"),
        (".well-known/x", "x"),
    ];
    let world = World::new(&files);
    for path in ["/.env", "/.git/config", "/.git", "/.git/", "/a/.b"] {
        assert!(matches!(world.ask(path, &[]), Found::NotFound), "{path}");
    }
    assert_eq!(world.text("/.well-known/x"), "x");
    let world = World::with(&files, |config| config.hidden = true);
    assert_eq!(world.text("/.git/config"), "x");
}

#[test]
fn links_out_of_the_root_are_not_found_unless_allowed() {
    let outside = TempDir::new().unwrap();
    fs::write(outside.path().join("secret"), "secret").unwrap();
    let links = |world: &World| {
        symlink(outside.path().join("secret"), world.path("out")).unwrap();
        symlink("file", world.path("in")).unwrap();
    };
    let world = World::new(&[("file", "file")]);
    links(&world);
    assert!(matches!(world.ask("/out", &[]), Found::NotFound));
    assert_eq!(world.text("/in"), "file");
    let world = World::with(&[("file", "file")], |config| config.follow_links_out = true);
    links(&world);
    assert_eq!(world.text("/out"), "secret");
}

#[test]
fn a_file_that_may_not_be_read_is_forbidden() {
    let world = World::new(&[("private", "x")]);
    fs::set_permissions(world.path("private"), fs::Permissions::from_mode(0o000)).unwrap();
    let found = world.ask("/private", &[]);
    // Root may read everything.
    let expected = rustix::process::geteuid().is_root();
    assert_eq!(matches!(found, Found::Forbidden), !expected, "{found:?}");
}

#[test]
fn the_fallback_answers_for_what_does_not_exist() {
    let world = World::with(
        &[("app.html", "app"), ("real.txt", "real"), (".env", "x")],
        |config| {
            config.spa_fallback = Some("/app.html".into());
        },
    );
    assert_eq!(world.text("/users/7"), "app");
    assert_eq!(
        world.text("/.env"),
        "app",
        "what is hidden looks like what does not exist"
    );
    assert_eq!(world.text("/real.txt"), "real");
    let paths = world.count("site_paths");
    (0..100).for_each(|n| assert_eq!(world.text(&format!("/users/{n}")), "app"));
    assert_eq!(
        world.count("site_paths"),
        paths,
        "invented paths are not remembered"
    );
}

#[test]
fn error_pages_are_held_in_memory() {
    let world = World::with(&[("404.html", "lost?")], |config| {
        config.error_pages = vec![(404, "404.html".into())];
    });
    fs::remove_file(world.path("404.html")).unwrap();
    let page = world.site.error_page(404).unwrap();
    assert_eq!(
        (text_of(&page).as_str(), &*page.content_type),
        ("lost?", "text/html; charset=utf-8")
    );
    assert!(world.site.error_page(500).is_none());
}

#[test]
fn an_error_page_has_at_most_a_mebibyte() {
    for (len, is_taken) in [(1 << 20, true), ((1 << 20) + 1, false)] {
        let page = "x".repeat(len);
        let dir = TempDir::new().unwrap();
        write(&dir, "404.html", &page);
        let site = Site::open(SiteConfig {
            root: dir.path().to_owned(),
            error_pages: vec![(404, "404.html".into())],
            ..SiteConfig::default()
        });
        assert_eq!(site.is_ok(), is_taken, "{len} bytes");
    }
}

#[test]
fn a_change_is_seen_within_the_recheck_time() {
    let mut world = World::with(&[("a.txt", "old")], |config| {
        config.recheck_every = Duration::from_secs(1);
    });
    assert_eq!(world.text("a.txt"), "old");
    world.write("a.txt", "new");
    world.at_s += 1.0;
    assert_eq!(world.text("a.txt"), "new");
}

#[test]
fn rules_add_header_lines_by_the_file_that_answers() {
    let world = World::with(&[("index.html", "x"), ("a/b.js", "x")], |config| {
        let rule = |glob: &str, name: &str, value: &str| HeaderRule {
            glob: glob.into(),
            name: name.into(),
            value: value.into(),
        };
        config.headers = vec![rule("*.html", "X-Frame-Options", "DENY")];
        config.cache_rules = vec![CacheRule {
            glob: "a/**".into(),
            value: "max-age=9".into(),
        }];
        config.mime_types = vec![("js".into(), "application/x-mine".into())];
    });
    let home = world.entry("/");
    assert!(
        head_of(&home).ends_with("X-Frame-Options: DENY\r\n"),
        "{}",
        head_of(&home)
    );
    let script = world.entry("/a/b.js");
    assert!(head_of(&script).contains("Content-Type: application/x-mine\r\n"));
    for lines in [&script.head_200, &script.head_206, &script.head_304] {
        assert!(lines.ends_with(b"Cache-Control: max-age=9\r\n"));
    }
}

// ---- mistakes in the configuration

fn error_of(configure: impl FnOnce(&mut SiteConfig, &Path)) -> String {
    let dir = TempDir::new().unwrap();
    let mut config = SiteConfig {
        root: dir.path().to_owned(),
        ..SiteConfig::default()
    };
    configure(&mut config, dir.path());
    Site::open(config).unwrap_err().to_string()
}

#[test]
fn what_is_wrong_with_the_configuration_is_said() {
    let error = error_of(|config, dir| config.root = dir.join("nope"));
    assert!(error.ends_with("nope does not exist"), "{error}");
    let error = error_of(|config, dir| {
        fs::write(dir.join("file"), "").unwrap();
        config.root = dir.join("file");
    });
    assert!(error.ends_with("file is not a directory"), "{error}");
    let error = error_of(|config, _| config.error_pages = vec![(404, "lost.html".into())]);
    assert!(
        error.contains("404") && error.contains("lost.html"),
        "{error}"
    );
    let error = error_of(|config, _| config.error_pages = vec![(200, "lost.html".into())]);
    assert!(error.contains("400 to 599"), "{error}");
    let error = error_of(|config, _| config.spa_fallback = Some("nope.html".into()));
    assert!(error.contains("nope.html"), "{error}");
    let error = error_of(|config, _| config.index = vec!["a/b".into()]);
    assert!(error.contains("a/b"), "{error}");
    let error = error_of(|config, _| config.default_type = "x\r\nSet-Cookie: y".into());
    assert!(error.contains("Content-Type"), "{error}");
}

// ---- variants

const ALL: [Encoding; 3] = Encoding::ALL;

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

// ---- freshness

#[test]
fn a_change_is_served_at_the_latest_when_promised() {
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
fn what_has_not_changed_is_only_looked_at() {
    // Twice, and at least one look: a file system in memory (tmpfs) reads no file at the first
    // request, and looks again with leave to wait, since it remembers no absence of variants.
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
fn a_change_with_the_old_length_and_a_time_set_back_is_noticed() {
    let mut world = World::new(&[("a.txt", "one")]);
    set_mtime(&world.path("a.txt"), 1_000_000_000);
    assert_eq!(world.text("/a.txt"), "one");
    world.write("a.txt", "two");
    set_mtime(&world.path("a.txt"), 1_000_000_000);
    world.at_s += 1.0;
    assert_eq!(world.text("/a.txt"), "two");
}

#[test]
fn a_file_that_changed_just_now_is_read_again_at_the_next_check() {
    let mut world = World::new(&[("a.txt", "one")]);
    world.at_s = 0.5;
    let racy = world.entry("/a.txt");
    assert!(
        racy.etag.matches('-').count() == 2 && !racy.modified_is_strong,
        "{}",
        racy.etag
    );
    world.at_s += 1.0;
    let again = world.entry("/a.txt");
    assert!(
        !Arc::ptr_eq(&racy, &again),
        "another change may hide behind the same time stamp"
    );
    assert_ne!(racy.etag, again.etag);
    world.at_s = 10.0;
    let settled = world.entry("/a.txt");
    assert_eq!(settled.etag.matches('-').count(), 1);
    world.at_s += 5.0;
    assert!(Arc::ptr_eq(&settled, &world.entry("/a.txt")));
}

#[test]
fn an_open_file_is_compared_at_each_use() {
    let world = World::with(&[("big", "0123456789")], |config| {
        config.memory_file_len_max = 4
    });
    let before = world.entry("/big");
    assert!(matches!(before.body, Body::File { .. }));
    world.write("big", "abc");
    // No time has passed.
    let after = world.entry("/big");
    assert_eq!((text_of(&after).as_str(), after.len), ("abc", 3));
}

#[test]
fn a_root_that_is_switched_to_another_release_is_followed() {
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
    assert_eq!(
        world.text("/a.txt"),
        "two",
        "the old site is better than none"
    );
}

#[test]
fn without_openat2_everything_is_found_by_loading() {
    let mut world = World::new(&[("a/x.txt", "hello"), ("a/x.txt.br", "br")]);
    symlink("a/x.txt", world.path("link")).unwrap();
    symlink("/etc/passwd", world.path("out")).unwrap();
    let root = Root::open(world.dir.path(), false, 0)
        .unwrap()
        .without_openat2();
    *world.site.root.write().unwrap() = Arc::new(root);
    assert!(matches!(world.find("/link", &[]), Found::WouldBlock));
    assert_eq!(world.text("/link"), "hello");
    assert_eq!(
        text_of(&entry_of(world.find("/link", &[]))),
        "hello",
        "a hit needs no look-up"
    );
    assert_eq!(text_of(&entry_of(world.ask("/a/x.txt", &ALL))), "br");
    assert!(matches!(world.ask("/out", &[]), Found::NotFound));
    world.write("a/x.txt", "changed");
    world.at_s += 1.0;
    assert_eq!(world.text("/link"), "changed");
}

// ---- limits

/// Files of 100 bytes, and room for `files` of them in memory and in the page cache together.
fn world_of_many(count: usize, files_in_memory: u64, files_in_pages: u64) -> World {
    let world = World::with(&[], |config| {
        config.memory_budget = files_in_memory * (100 + ledger::MEMORY_OVERHEAD);
        config.page_cache_budget = Some(files_in_pages * 4096);
        config.precompressed = false;
        config.open_files_max = 16;
    });
    (0..count).for_each(|n| world.write(&format!("f{n}"), &format!("{n:0100}")));
    world
}

fn path_of(n: usize) -> String {
    format!("/f{n}")
}

#[test]
fn memory_and_open_files_stay_within_their_limits() {
    let world = world_of_many(200, 20, 30);
    for n in (0..3).flat_map(|_| 0..200) {
        assert_eq!(world.text(&path_of(n)), format!("{n:0100}"));
        assert!(world.count("site_memory_bytes") <= 20 * (100 + ledger::MEMORY_OVERHEAD));
        assert!(world.count("site_page_cache_bytes") <= 30 * 4096);
        assert!(world.count("site_files_open") <= 16);
    }
    assert!(world.count("site_files_closed_total") > 0);
}

#[test]
fn a_walk_over_a_large_file_set_leaves_the_hot_files_in_memory() {
    let world = world_of_many(400, 40, 40);
    let hot = || 0..10;
    (0..5)
        .flat_map(|_| hot())
        .for_each(|n| _ = world.entry(&path_of(n)));
    assert!(hot().all(|n| is_in_memory(&world.entry(&path_of(n)))));
    let evicted = world.count("site_memory_evicted_total");
    for n in (0..4).flat_map(|_| 10..400) {
        world.entry(&path_of(n));
        assert!(
            is_in_memory(&world.entry(&path_of(n % 10))),
            "hot file {} at {n}",
            n % 10
        );
    }
    let evicted = world.count("site_memory_evicted_total") - evicted;
    assert!(evicted < 30, "{evicted} evicted by 1560 cold requests");
}

#[test]
fn a_new_hot_file_gets_into_memory_after_few_requests() {
    let world = world_of_many(101, 100, 0);
    (0..100).for_each(|n| _ = world.entry(&path_of(n)));
    let asked = (1..)
        .find(|_| is_in_memory(&world.entry(&path_of(100))))
        .unwrap();
    assert!(asked <= 5, "in memory at request {asked}");
}

#[test]
fn a_file_that_only_the_disk_knows_is_read_into_memory_when_it_is_asked_for_again() {
    // Without variants, whose absence only the disk knows as well.
    let world = World::with(&[("cold.txt", "cold")], |config| {
        config.precompressed = false
    });
    let file = File::open(world.path("cold.txt")).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let once = match world.find("/cold.txt", &[]) {
        // A kernel that cannot say what it would have to wait for.
        Found::WouldBlock => return,
        found => entry_of(found),
    };
    // Not the first time (but a file system in memory has nothing cold), yet at the second: found
    // if the kernel has read ahead since, else loaded.
    assert!(is_in_memory(&once) || is_in_memory(&world.entry("/cold.txt")));
    assert_eq!(text_of(&entry_of(world.find("/cold.txt", &[]))), "cold");
}

#[test]
fn a_file_that_finds_no_place_is_not_to_be_kept_in_the_page_cache() {
    let world = world_of_many(100, 10, 20);
    let keeps = |n| match world.entry(&path_of(n)).body {
        Body::Memory(_) => None,
        Body::File { keep, .. } => Some(keep),
    };
    let kept: Vec<_> = (0..100).map(keeps).collect();
    assert_eq!(kept.iter().filter(|keep| keep.is_none()).count(), 10);
    assert_eq!(kept.iter().filter(|keep| **keep == Some(true)).count(), 20);
    assert_eq!(kept.iter().filter(|keep| **keep == Some(false)).count(), 70);
    // One that is asked for often takes the place of one that is not.
    assert!((0..8).any(|_| keeps(99) != Some(false)));
}

#[test]
fn names_that_do_not_exist_take_no_room() {
    let world = World::new(&[("a.txt", "a")]);
    let entry = world.entry("/a.txt");
    for n in 0..1000 {
        assert!(matches!(
            world.ask(&format!("/random{n}"), &[]),
            Found::NotFound
        ));
    }
    assert!(Arc::ptr_eq(&entry, &entry_of(world.find("/a.txt", &[]))));
    assert_eq!(world.count("site_paths"), 1);
}

#[test]
fn paths_that_nobody_asks_for_are_dropped_first() {
    let world = World::with(&[], |config| config.paths_max = 10);
    (0..50).for_each(|n| world.write(&format!("f{n}"), "x"));
    let hot = world.entry("/f0");
    for n in 1..50 {
        world.entry(&path_of(n));
        assert!(Arc::ptr_eq(&hot, &world.entry("/f0")), "at {n}");
        assert!(world.count("site_paths") <= 10);
    }
    assert!(world.count("site_memory_files") <= 10);
}

#[test]
fn running_out_of_descriptors_closes_files_and_then_says_so() {
    let world = world_of_many(8, 0, 100);
    (0..8).for_each(|n| _ = world.entry(&path_of(n)));
    let calls = std::cell::Cell::new(0);
    let open = || {
        calls.set(calls.get() + 1);
        if calls.get() == 1 {
            Err(Miss::OutOfDescriptors)
        } else {
            Ok(())
        }
    };
    assert_eq!(world.site.with_descriptors(open), Ok(()));
    assert_eq!(world.count("site_files_open"), 7);
    let failed = world
        .site
        .with_descriptors(|| Err::<(), _>(Miss::OutOfDescriptors));
    let found = world.site.found_of(failed.unwrap_err(), "x");
    assert!(matches!(found, Found::Failed { status: 503, why } if why.contains("LimitNOFILE")));
}

/// What the ways to a file cost, best of five:
/// `cargo test --release -p weftwork-web cost_of -- --ignored --nocapture`
#[test]
#[ignore = "a measurement, not a promise"]
fn cost_of_the_ways_to_a_file() {
    let mut world = World::new(&[("assets/app/main.4f1c2b.js", "x")]);
    world.write("assets/app/main.4f1c2b.js.br", "br");
    File::create(world.path("big"))
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
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
    cost(
        "hit in memory, a variant",
        "/assets/app/main.4f1c2b.js",
        &ALL,
    );
    cost("open file", "/big", &[]);
    cost("nothing there", "/nope", &[]);
    cost("a directory without its slash", "/assets/app", &[]);
}

// ---- everything at once

/// A body that says its own version and length, and is filled with the version's letter:
/// `27:100:bbbb...`, 100 bytes in all.
fn speaking(version: u64, len: usize) -> String {
    let text = format!("{version}:{len}:");
    let letter = char::from(b'a' + (version % 26) as u8);
    let fill = len - text.len();
    text + &letter.to_string().repeat(fill)
}

/// The version whose beginning (or whole) this is, and whether it is whole.
fn version_of(bytes: &[u8]) -> Option<(u64, bool)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut parts = text.split(':');
    let version: u64 = parts.next()?.parse().ok()?;
    let len: usize = parts.next()?.parse().ok()?;
    speaking(version, len)
        .starts_with(text)
        .then_some((version, bytes.len() == len))
}

/// Seen: a reply with the old `Content-Length` and the new bytes is the classic fault of a server
/// that caches descriptors. Here writers rename new files over old ones and write into the same
/// inode while readers find and load; every entry's bytes must be of one version and of the length
/// that its header says.
#[test]
fn bytes_and_header_always_belong_together() {
    let world = World::with(&[], |config| {
        config.recheck_every = Duration::from_micros(200);
        config.memory_file_len_max = 3000;
        config.memory_budget = 8 * (2000 + ledger::MEMORY_OVERHEAD);
    });
    let len_of = |version: u64| 100 + (version * 769 % 5000) as usize;
    let names: Vec<String> = (0..12).map(|n| format!("f{n}")).collect();
    names
        .iter()
        .for_each(|name| world.write(name, &speaking(0, len_of(0))));
    let done = AtomicBool::new(false);
    let served = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (world, names, done, served) = (&world, &names, &done, &served);
        for seed in 0..2u64 {
            scope.spawn(move || {
                let mut random = seed + 1;
                while !done.load(Relaxed) {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    let path = format!("/{}", names[(random >> 33) as usize % names.len()]);
                    let now = Now::read();
                    let found = match world.site.find(&lookup(&path, &[]), now) {
                        Found::WouldBlock => world.site.load(&lookup(&path, &[]), now),
                        found => found,
                    };
                    match found {
                        Found::Entry(entry) => {
                            _ = served.fetch_add(check_entry(&entry).into(), Relaxed)
                        }
                        other => panic!("{other:?}"),
                    }
                }
            });
        }
        let started = Instant::now();
        let mut version = 0;
        while started.elapsed() < Duration::from_millis(700) {
            version += 1;
            let text = speaking(version, len_of(version));
            let name = &names[version as usize % names.len()];
            if version.is_multiple_of(3) {
                rewrite(&world.path(name), text.as_bytes());
            } else {
                world.write("next", &text);
                fs::rename(world.path("next"), world.path(name)).unwrap();
            }
        }
        done.store(true, Relaxed);
    });
    assert!(
        served.load(Relaxed) > 20,
        "{served:?} whole versions served"
    );
    assert!(world.count("site_changed_total") > 10);
    let budget = 8 * (2000 + ledger::MEMORY_OVERHEAD);
    assert!(world.count("site_memory_bytes") <= budget);
}

/// Writes into the same inode: cut to nothing, then written in two pieces.
fn rewrite(path: &Path, bytes: &[u8]) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(0).unwrap();
    let half = bytes.len() / 2;
    file.write_all_at(&bytes[..half], 0).unwrap();
    file.write_all_at(&bytes[half..], half as u64).unwrap();
}

/// Says whether the entry was a whole version. The beginning of one is what the file was at that
/// moment, and goes out under that length; a mixture of two never may.
fn check_entry(entry: &Entry) -> bool {
    let head = head_of(entry);
    assert!(
        head.contains(&format!("Content-Length: {}\r\n", entry.len)),
        "{head}"
    );
    let bytes = match &entry.body {
        Body::Memory(bytes) => bytes.clone(),
        // As drivers do: bytes that changed while they were read do not count.
        Body::File { file, .. } if file.is_moving() => {
            assert!(entry.etag.starts_with("W/"), "{}", entry.etag);
            return false;
        }
        Body::File { file, .. } => match read_whole(file, Blocking::Allowed).unwrap() {
            Reading::Whole(bytes) => bytes,
            _ => return false,
        },
    };
    assert_eq!(bytes.len() as u64, entry.len);
    let version = version_of(&bytes);
    let text = || String::from_utf8_lossy(&bytes);
    assert!(
        bytes.is_empty() || version.is_some(),
        "{} bytes mixed: {}",
        bytes.len(),
        text()
    );
    version.is_some_and(|(_, is_whole)| is_whole)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Whatever is asked for: no panic, nothing from outside the root, nothing hidden, and
    /// redirects stay on this host.
    #[test]
    fn no_path_leaves_the_site(path in "/([a-c./]|\\.\\.|%2e|out|secret|\\PC){0,12}") {
        thread_local!(static WORLD: World = {
            let world = World::new(&[("root/a", "in"), ("root/b/c", "in"), ("root/.a", "out"), ("secret", "out")]);
            symlink("../secret", world.path("root/out")).unwrap();
            let config = SiteConfig { root: world.path("root"), ..SiteConfig::default() };
            World { site: Site::open(config).unwrap(), ..world }
        });
        WORLD.with(|world| match world.ask(&path, &[]) {
            Found::Entry(entry) => assert_eq!(text_of(&entry), "in"),
            Found::SlashMissing(to) => assert!(to.starts_with('/') && !to.starts_with("//")),
            Found::NotFound | Found::Forbidden => {}
            other => panic!("{path:?}: {other:?}"),
        });
    }
}

mod young;
