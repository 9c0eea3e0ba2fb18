//! The operator's error pages.

use std::sync::atomic::AtomicUsize;

use super::*;

fn with_page(files: &[(&str, &str)], configure: impl FnOnce(&mut SiteConfig)) -> World {
    World::with(files, |config| {
        config.error_pages = vec![(404, "404.html".into())];
        configure(config);
    })
}

/// Body of the reply to a missing path; `None` is the built-in page.
fn lost(world: &World) -> Option<String> {
    assert!(matches!(world.ask("/nosuch", &[]), Found::NotFound));
    let page = world.site.error_page(404, world.now())?;
    let head = String::from_utf8(page.head.clone()).unwrap();
    let length = format!("\r\nContent-Length: {}\r\n", page.body.len());
    assert!(head.contains(&length), "{head}");
    assert!(head.starts_with("Content-Type: text/html; charset=utf-8\r\n"), "{head}");
    Some(String::from_utf8(page.body.to_vec()).unwrap())
}

fn is(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[test]
fn error_pages_are_held_in_memory() {
    let world = with_page(&[("404.html", "lost?")], |_| ());
    assert_eq!(lost(&world), is("lost?"));
    fs::remove_file(world.path("404.html")).unwrap();
    // It is not due yet.
    assert_eq!(lost(&world), is("lost?"));
    assert!(world.site.error_page(500, world.now()).is_none());
}

/// Seen: after a switch to a new release, its 404 page remained the old one forever. Cause:
/// error pages were read once. Cure: they are checked again, like every file.
#[test]
fn error_pages_follow_the_release() {
    let files = ["one", "two"].map(|release| {
        ["404.html", "app.html"]
            .map(|file| (format!("{release}/{file}"), format!("{release} {file}")))
    });
    let files: Vec<_> = files.as_flattened().iter().map(|(a, b)| (&**a, &**b)).collect();
    for without_openat2 in [false, true] {
        let dir = TempDir::new().unwrap();
        files.iter().for_each(|(path, text)| write(&dir, path, text));
        let current = dir.path().join("current");
        symlink("one", &current).unwrap();
        let switch = |release| {
            symlink(release, dir.path().join("next")).unwrap();
            fs::rename(dir.path().join("next"), &current).unwrap();
        };
        let mut world = with_page(&[], |config| config.root = dir.path().join("one"));
        let config = SiteConfig {
            root: current.clone(),
            error_pages: vec![(404, "404.html".into()), (500, "404.html".into())],
            ..SiteConfig::default()
        };
        world.site = Site::open(config.clone()).unwrap();
        if without_openat2 {
            let root = Root::open(&current, false, 0).unwrap();
            *world.site.root.write().unwrap() = Arc::new(root.without_openat2());
        }
        assert_eq!(lost(&world), is("one 404.html"));
        switch("two");
        world.at_s += 0.6;
        assert_eq!(lost(&world), is("two 404.html"));
        // Checked together with it, where blocking is allowed; else now.
        let other = world.site.error_page(500, world.now()).unwrap();
        assert_eq!(other.body, "two 404.html");
        switch("one");
        let config = SiteConfig { spa_fallback: Some("app.html".to_owned()), ..config };
        world.site = Site::open(config).unwrap();
        assert_eq!(world.text("/a/b"), "one app.html");
        switch("two");
        world.at_s += 0.6;
        assert_eq!(world.text("/a/b"), "two app.html");
    }
}

#[test]
fn replaced_page_is_seen() {
    let mut world = with_page(&[("404.html", "old")], |_| ());
    assert_eq!(lost(&world), is("old"));
    world.write("next", "edited");
    fs::rename(world.path("next"), world.path("404.html")).unwrap();
    world.at_s += 0.6;
    assert_eq!(lost(&world), is("edited"));
    // The same length and the old time.
    world.write("404.html", "EDITED");
    set_mtime(&world.path("404.html"), 1);
    world.at_s += 0.6;
    assert_eq!(lost(&world), is("EDITED"));
    let rule = (405, world.path("outside.html"));
    world.write("outside.html", "outside");
    let config = SiteConfig { error_pages: vec![rule], ..world.site.config.clone() };
    world.site = Site::open(config).unwrap();
    world.write("outside.html", "outside, edited");
    world.at_s += 0.6;
    let page = world.site.error_page(405, world.now()).unwrap();
    assert_eq!(page.body, "outside, edited");
}

#[test]
fn lost_page_becomes_built_in() {
    let mut world = with_page(&[("404.html", "lost?")], |_| ());
    let warnings = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&warnings);
    world.site.on_warning(move |text| {
        assert!(text.contains("for 404, 404.html, cannot be read any more"), "{text}");
        counted.fetch_add(1, Relaxed);
    });
    fs::remove_file(world.path("404.html")).unwrap();
    for _ in 0..3 {
        world.at_s += 0.6;
        assert_eq!(lost(&world), None);
    }
    assert_eq!(world.count("site_error_pages_lost_total"), 1);
    assert_eq!(warnings.load(Relaxed), 1);
    fs::create_dir(world.path("404.html")).unwrap();
    world.at_s += 0.6;
    assert_eq!(lost(&world), None);
    fs::remove_dir(world.path("404.html")).unwrap();
    world.write("404.html", "found");
    world.at_s += 0.6;
    assert_eq!(lost(&world), is("found"));
    world.write("404.html", &"x".repeat((1 << 20) + 1));
    world.at_s += 0.6;
    assert_eq!(lost(&world), None, "too long");
    assert_eq!(warnings.load(Relaxed), 2);
}

#[test]
fn old_page_stands_during_a_write() {
    let mut world = with_page(&[("404.html", "old")], |_| ());
    assert_eq!(lost(&world), is("old"));
    world.write("404.html", "");
    world.at_s += 0.6;
    assert_eq!(lost(&world), is("old"));
    world.write("404.html", "half");
    world.at_s += 0.01;
    world.set_age("404.html", Duration::from_millis(1));
    assert_eq!(lost(&world), is("old"));
    world.write("404.html", "half and half");
    world.at_s += 0.06;
    world.set_age("404.html", Duration::from_millis(60));
    assert_eq!(lost(&world), is("half and half"));
    // Emptied for good.
    world.write("404.html", "");
    world.at_s += 3.0;
    lost(&world);
    world.at_s += 0.6;
    assert_eq!(lost(&world), is(""));
}

/// A request that may not block sends the known page; one that may block checks it.
#[test]
fn pages_are_never_read_in_receive() {
    let mut world = with_page(&[("404.html", "old")], |_| ()).without_openat2();
    world.write("404.html", "edited");
    world.at_s += 0.6;
    assert!(matches!(world.find("/nosuch", &[]), Found::WouldBlock));
    let page = world.site.error_page(404, world.now()).unwrap();
    assert_eq!(page.body, "old");
    assert_eq!(lost(&world), is("edited"));
}

#[test]
fn page_is_at_most_1_mib() {
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
