//! Clean URLs: the file that answers for a path, and the redirects of a client.

use super::*;

fn clean(files: &[(&str, &str)]) -> World {
    World::with(files, |config| config.clean_urls = true)
}

/// The text of the file that answers, the address of the redirect, or the failure.
fn answer(world: &World, path: &str) -> String {
    match world.ask(path, &[]) {
        Found::Entry(entry) | Found::Fallback(entry) => text_of(&entry),
        Found::Moved(to) => format!("to {to}"),
        Found::NotFound => "404".to_owned(),
        Found::NoIndex => "403".to_owned(),
        Found::OnlyCompressed => "406".to_owned(),
        other => format!("{other:?}"),
    }
}

#[track_caller]
fn check(world: &World, answers: &[(&str, &str)]) {
    for (path, expected) in answers {
        assert_eq!(answer(world, path), *expected, "{path}");
    }
}

const FILES: &[(&str, &str)] = &[
    ("index.html", "home"),
    ("about.html", "about"),
    ("docs/index.html", "docs"),
    ("docs/v1.2.html", "v1.2"),
    // As Next exports it: a page next to the directory of its subpages.
    ("blog.html", "blog"),
    ("blog/first.html", "first"),
    ("both.html", "page"),
    ("both/index.html", "directory"),
    ("file", "bare"),
    ("file.html", "page of file"),
    ("empty/x.txt", "x"),
    ("ü b.html", "umlaut"),
    ("dir.html/index.html", "odd"),
];

#[test]
fn page_answers_without_its_ending() {
    check(
        &clean(FILES),
        &[
            ("/", "home"),
            ("/about", "about"),
            ("/docs/", "docs"),
            ("/docs/v1.2", "v1.2"),
            ("/blog", "blog"),
            ("/blog/first", "first"),
            ("/both", "page"),
            ("/both/", "directory"),
            ("/file", "bare"),
            ("/file.html", "page of file"),
            ("/empty/x.txt", "x"),
            ("/empty/", "403"),
            ("/dir.html/", "odd"),
        ],
    );
}

#[test]
fn other_spellings_are_redirected() {
    check(
        &clean(FILES),
        &[
            ("/index.html", "to /"),
            ("/index", "to /"),
            ("/about.html", "to /about"),
            ("/about/", "to /about"),
            ("/docs", "to /docs/"),
            ("/docs/index.html", "to /docs/"),
            ("/docs/index", "to /docs/"),
            ("/blog.html", "to /blog"),
            ("/blog/", "to /blog"),
            ("/both.html", "to /both"),
            ("/both/index.html", "to /both/"),
            ("/empty", "to /empty/"),
            ("/ü b.html", "to /%C3%BC%20b"),
            ("/dir", "404"),
            ("/dir.html", "to /dir.html/"),
            ("/file/", "404"),
            ("/nope", "404"),
            ("/nope/", "404"),
            ("/nope.html", "404"),
            ("/about/x", "404"),
            ("/about.htm", "404"),
        ],
    );
}

#[test]
fn each_redirect_ends_at_a_file() {
    for listing in [false, true] {
        let world = World::with(FILES, |config| {
            config.clean_urls = true;
            config.listing = listing;
        });
        for (path, _) in FILES {
            let stem = path.strip_suffix(".html").unwrap_or(path);
            for asked in [format!("/{path}"), format!("/{stem}"), format!("/{stem}/")] {
                let mut answered = answer(&world, &asked);
                for _ in 0..2 {
                    if let Some(to) = answered.strip_prefix("to ") {
                        let to = to.replace("%C3%BC%20", "ü ");
                        answered = answer(&world, &to);
                    }
                }
                assert!(!answered.starts_with("to "), "{asked}: {answered}");
            }
        }
    }
}

#[test]
fn without_the_setting_nothing_changes() {
    let world = World::new(FILES);
    for path in ["/about", "/about/", "/index", "/docs/v1.2"] {
        assert_eq!(answer(&world, path), "404", "{path}");
    }
    for (path, text) in [("/about.html", "about"), ("/docs/index.html", "docs")] {
        assert_eq!(answer(&world, path), text);
    }
}

#[test]
fn other_index_names_have_one_address() {
    let files = [("home.html", "home"), ("index.html", "index"), ("d/home.htm", "d")];
    let world = World::with(&files, |config| {
        config.clean_urls = true;
        config.index = vec!["home.html".into(), "home.htm".into()];
    });
    check(
        &world,
        &[
            ("/", "home"),
            ("/home", "to /"),
            ("/home.html", "to /"),
            ("/index", "index"),
            ("/index.html", "to /index"),
            ("/d/home.htm", "d"),
        ],
    );
}

#[test]
fn variants_of_a_page_are_sent() {
    let world = clean(&[
        ("a.html", "plain"),
        ("a.html.br", "br"),
        ("only.html.gz", "gz"),
        ("i/index.html.gz", "gz of i"),
    ]);
    assert_eq!(text_of(&entry_of(world.ask("/a", &ALL))), "br");
    assert_eq!(text_of(&entry_of(world.ask("/only", &ALL))), "gz");
    assert_eq!(answer(&world, "/a"), "plain");
    check(
        &world,
        &[
            ("/only", "406"),
            ("/only.html", "to /only"),
            ("/only/", "to /only"),
            ("/i/index.html", "to /i/"),
            ("/i", "to /i/"),
        ],
    );
}

#[test]
fn page_keeps_rules_and_validators() {
    let mut world = World::with(FILES, |config| {
        config.clean_urls = true;
        config.cache_rules = vec![CacheRule { glob: "*.html".into(), value: "no-cache".into() }];
    });
    let entry = world.entry("/about");
    assert!(head_of(&entry).contains("Content-Type: text/html; charset=utf-8\r\n"));
    assert!(head_of(&entry).contains("Cache-Control: no-cache\r\n") && !entry.etag.is_empty());
    assert!(Arc::ptr_eq(&entry, &entry_of(world.find("/about", &[]))));
    assert_eq!(world.site.lines_without_file("/about.html").0, "Cache-Control: no-cache\r\n");

    // A file without extension takes precedence once it exists; a deleted page is gone.
    world.write("about", "bare");
    fs::remove_file(world.path("docs/v1.2.html")).unwrap();
    world.at_s += 2.0;
    check(
        &world,
        &[("/about", "bare"), ("/about.html", "about"), ("/about/", "404"), ("/docs/v1.2", "404")],
    );
}

#[test]
fn hidden_files_and_links_out_stay_absent() {
    let world = clean(&[(".secret.html", "no"), (".d/a.html", "no"), ("a/.html", "no")]);
    symlink("/etc/hostname", world.path("out.html")).unwrap();
    symlink("a", world.path("link.html")).unwrap();
    for path in ["/.secret", "/.secret.html", "/.d/a", "/out", "/out.html", "/out/", "/link"] {
        assert_eq!(answer(&world, path), "404", "{path}");
    }
    assert_eq!(answer(&world, "/a/"), "403");
}

#[test]
fn listing_comes_before_a_page() {
    let files = [("blog.html", "blog"), ("blog/first.html", "first")];
    let world = World::with(&files, |config| {
        config.clean_urls = true;
        config.listing = true;
    });
    assert_eq!(answer(&world, "/blog"), "blog");
    assert!(answer(&world, "/blog/").contains("first.html"));
}

#[test]
fn route_of_an_application_is_not_redirected() {
    for fallback in ["index.html", "/200.html", "200"] {
        let files = [("index.html", "home"), ("200.html", "home"), ("about.html", "about")];
        let world = World::with(&files, |config| {
            config.clean_urls = true;
            config.spa_fallback = Some(fallback.into());
        });
        check(&world, &[("/x", "home"), ("/x/y/", "home"), ("/about", "about"), ("/", "home")]);
        assert_eq!(answer(&world, world.site.fallback().unwrap()), "home");
    }
    let world = clean(FILES);
    let missing = SiteConfig {
        root: world.dir.path().to_owned(),
        clean_urls: true,
        spa_fallback: Some("empty".into()),
        ..SiteConfig::default()
    };
    assert!(Site::open(missing).is_err());
}

/// Names that no file can have, and those at the kernel's limit of 255 bytes.
#[test]
fn long_names_are_not_found() {
    let world = clean(FILES);
    for len in [250, 251, 255, 256, 5000] {
        let name = "a".repeat(len);
        assert_eq!(answer(&world, &format!("/{name}")), "404", "{len}");
        assert_eq!(answer(&world, &format!("/{name}/")), "404", "{len}");
    }
    world.write(&format!("{}.html", "b".repeat(250)), "long");
    assert_eq!(answer(&world, &format!("/{}", "b".repeat(250))), "long");
}

#[test]
fn older_kernels_answer_the_same() {
    let world = clean(FILES).without_openat2();
    check(&world, &[("/about", "about"), ("/about.html", "to /about"), ("/about/", "to /about")]);
}
