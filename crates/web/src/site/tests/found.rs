//! Lookups by path.

use super::*;

#[test]
fn second_hit_reuses_the_entry() {
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
    let etag = &*entry.etag;
    assert!(etag.starts_with("\"5-") && etag.ends_with('"'), "{etag}");
    assert_eq!(
        head_of(&entry),
        format!(
            "Content-Type: text/html; charset=utf-8\r\n\
         Content-Length: 5\r\n\
         Accept-Ranges: bytes\r\n\
         X-Content-Type-Options: nosniff\r\n\
         Last-Modified: Sun, 09 Sep 2001 01:46:40 GMT\r\n\
         ETag: {etag}\r\n\
         Vary: Accept-Encoding\r\n"
        )
    );
    let head_304 = std::str::from_utf8(&entry.head_304).unwrap();
    assert!(head_304.starts_with("Last-Modified: ") && head_304.contains("\r\nETag: "));
    assert!(!entry.head_206.starts_with(b"Content-Type"));
    assert!(entry.modified_is_strong);
}

#[test]
fn empty_file_has_a_head() {
    let world = World::new(&[("empty.txt", "")]);
    let entry = world.entry("/empty.txt");
    assert_eq!(text_of(&entry), "");
    assert!(head_of(&entry).contains("Content-Length: 0\r\n"));
}

#[test]
fn a_large_file_stays_on_disk() {
    let world = World::with(&[("limit", "1234")], |config| config.memory_file_len_max = 4);
    File::create(world.path("huge.bin")).unwrap().set_len(5 << 40).unwrap();
    let entry = world.entry("/huge.bin");
    assert!(matches!(entry.body, Body::File { .. }));
    assert_eq!(entry.len, 5 << 40);
    assert!(Arc::ptr_eq(&entry, &world.entry("/huge.bin")));
    let counts = ["site_files_open", "site_memory_files"].map(|name| world.count(name));
    assert_eq!(counts, [1, 0]);
    assert!(is_in_memory(&world.entry("/limit")));
}

#[test]
fn directory_serves_its_index() {
    let world = World::with(&[("index.html", "home"), ("a/index.htm", "a")], |config| {
        config.index = vec!["index.html".into(), "index.htm".into()];
    });
    assert_eq!(world.text("/"), "home");
    assert_eq!(world.text("/a/"), "a");
    assert!(head_of(&world.entry("/a/")).contains("text/html"));
    // An index file earlier in the list takes precedence once it exists.
    world.write("a/index.html", "better");
    let mut world = world;
    world.at_s += 1.0;
    assert_eq!(world.text("/a/"), "better");
}

#[test]
fn slash_redirect_stays_on_the_host() {
    let world = World::new(&[("a b/ü/x", ""), ("evil.com/x", ""), ("\\evil.com/x", "")]);
    let slash = |path| match world.ask(path, &[]) {
        Found::Moved(path) => path,
        other => panic!("{other:?}"),
    };
    assert_eq!(&*slash("/a b"), "/a%20b/");
    assert_eq!(&*slash("/a b/ü"), "/a%20b/%C3%BC/");
    assert_eq!(&*slash("/evil.com"), "/evil.com/");
    assert_eq!(&*slash("/\\evil.com"), "/%5Cevil.com/");
    assert!(matches!(world.ask("//evil.com", &[]), Found::NotFound));
    assert!(matches!(world.ask("/evil.com/x/", &[]), Found::NotFound));
}

#[test]
fn no_index_is_403_or_listed() {
    let world = World::new(&[("d/x", "")]);
    assert!(matches!(world.ask("/d/", &[]), Found::NoIndex));
    assert!(matches!(world.ask("/nope/", &[]), Found::NotFound));
    let mut world = World::with(&[("d/x.txt", "")], |config| config.listing = true);
    let listing = world.entry("/d/");
    assert!(text_of(&listing).contains("x.txt"));
    assert!(head_of(&listing).contains("Vary: Accept\r\n"));
    assert!(Arc::ptr_eq(&listing, &world.entry("/d/")), "kept for a moment");
    world.write("d/y.txt", "");
    world.at_s += 1.0;
    assert!(world.text("/d/").contains("y.txt"), "but not for longer than promised");
}

#[test]
fn link_to_a_hidden_file_is_served() {
    // Stated in the manual: the requested name decides, since the link was made on purpose.
    let world = World::new(&[(".hidden/page", "shown")]);
    symlink(".hidden", world.path("link")).unwrap();
    symlink(".hidden/page", world.path("page")).unwrap();
    assert_eq!((world.text("link/page"), world.text("page")), ("shown".into(), "shown".into()));
    assert!(matches!(world.ask(".hidden/page", &[]), Found::NotFound));
}

#[test]
fn hidden_files_are_not_found() {
    let files = [(".env", "x"), (".git/config", "x"), ("a/.b", "x"), (".well-known/x", "x")];
    let world = World::new(&files);
    for path in ["/.env", "/.git/config", "/.git", "/.git/", "/a/.b"] {
        assert!(matches!(world.ask(path, &[]), Found::NotFound), "{path}");
    }
    assert_eq!(world.text("/.well-known/x"), "x");
    let world = World::with(&files, |config| config.hidden = true);
    assert_eq!(world.text("/.git/config"), "x");
}

#[test]
fn links_out_unless_allowed() {
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
fn unreadable_file_is_forbidden() {
    let world = World::new(&[("private", "x")]);
    fs::set_permissions(world.path("private"), fs::Permissions::from_mode(0o000)).unwrap();
    let found = world.ask("/private", &[]);
    // Root may read everything.
    let expected = rustix::process::geteuid().is_root();
    assert_eq!(matches!(found, Found::Forbidden), !expected, "{found:?}");
}

#[test]
fn fallback_answers_for_missing_paths() {
    let world =
        World::with(&[("app.html", "app"), ("real.txt", "real"), (".env", "x")], |config| {
            config.spa_fallback = Some("/app.html".into());
        });
    assert_eq!(world.text("/users/7"), "app");
    assert_eq!(world.text("/.env"), "app", "hidden and absent paths look alike");
    assert_eq!(world.text("/real.txt"), "real");
    let paths = world.count("site_paths");
    (0..100).for_each(|n| assert_eq!(world.text(&format!("/users/{n}")), "app"));
    assert_eq!(world.count("site_paths"), paths, "invented paths are not remembered");
}

#[test]
fn change_shows_within_the_recheck_time() {
    let mut world = World::with(&[("a.txt", "old")], |config| {
        config.recheck_every = Duration::from_secs(1);
    });
    assert_eq!(world.text("a.txt"), "old");
    world.write("a.txt", "new");
    world.at_s += 1.0;
    assert_eq!(world.text("a.txt"), "new");
}

#[test]
fn rules_apply_to_the_answering_file() {
    let world = World::with(&[("index.html", "x"), ("a/b.js", "x")], |config| {
        let rule = |glob: &str, name: &str, value: &str| HeaderRule {
            glob: glob.into(),
            name: name.into(),
            value: value.into(),
        };
        config.headers = vec![rule("*.html", "X-Frame-Options", "DENY")];
        config.cache_rules = vec![CacheRule { glob: "a/**".into(), value: "max-age=9".into() }];
        config.mime_types = vec![("js".into(), "application/x-mine".into())];
    });
    let home = world.entry("/");
    assert!(head_of(&home).ends_with("X-Frame-Options: DENY\r\n"), "{}", head_of(&home));
    let script = world.entry("/a/b.js");
    assert!(head_of(&script).contains("Content-Type: application/x-mine\r\n"));
    for lines in [&script.head_200, &script.head_206, &script.head_304] {
        assert!(lines.ends_with(b"Cache-Control: max-age=9\r\n"));
    }
}

fn error_of(configure: impl FnOnce(&mut SiteConfig, &Path)) -> String {
    let dir = TempDir::new().unwrap();
    let mut config = SiteConfig { root: dir.path().to_owned(), ..SiteConfig::default() };
    configure(&mut config, dir.path());
    Site::open(config).unwrap_err().to_string()
}

#[test]
fn configuration_errors_are_described() {
    let error = error_of(|config, dir| config.root = dir.join("nope"));
    assert!(error.ends_with("nope does not exist"), "{error}");
    let error = error_of(|config, dir| {
        fs::write(dir.join("file"), "").unwrap();
        config.root = dir.join("file");
    });
    assert!(error.ends_with("file is not a directory"), "{error}");
    // Root may enter every directory, so this error cannot be provoked.
    let denied = io::Error::from(io::ErrorKind::PermissionDenied);
    let error = root_error(Path::new("/srv"), denied).to_string();
    assert!(error.contains("/srv may not be entered"), "{error}");
    let error = error_of(|config, _| config.error_pages = vec![(404, "lost.html".into())]);
    assert!(error.contains("404") && error.contains("lost.html"), "{error}");
    let other = io::Error::from(io::ErrorKind::Other);
    let error = root_error(Path::new("/srv"), other).to_string();
    assert!(error.contains("/srv cannot be opened"), "{error}");
    let error = error_of(|config, _| config.error_pages = vec![(200, "lost.html".into())]);
    assert!(error.contains("400 to 599"), "{error}");
    let error = error_of(|config, _| config.spa_fallback = Some("nope.html".into()));
    assert!(error.contains("nope.html"), "{error}");
    let error = error_of(|config, _| config.index = vec!["a/b".into()]);
    assert!(error.contains("a/b"), "{error}");
    let error = error_of(|config, _| {
        config.mime_types = vec![("js".into(), "x\r\nSet-Cookie: y".into())];
    });
    assert!(error.contains("Content-Type"), "{error}");
}
