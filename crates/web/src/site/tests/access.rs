//! Denied paths, and areas that require a password.

use super::*;
use crate::site::access::{MATCHED_LEN, PathGlobs};

const USERS: &str =
    "a:$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4\n";

fn denying(globs: &[&str], files: &[(&str, &str)], configure: impl Fn(&mut SiteConfig)) -> World {
    World::with(files, |config| {
        config.deny = globs.iter().map(|glob| glob.to_string()).collect();
        configure(config);
    })
}

#[test]
fn denied_path_is_absent() {
    let files = [
        ("a.sql", ""),
        ("a.sql.gz", ""),
        ("d/b.sql", ""),
        ("drafts/x/y.txt", ""),
        ("drafts/index.html", ""),
        ("node_modules/x.js", ""),
        ("a.txt", "shown"),
        ("d/index.html", "shown"),
        ("drafts2/x", "shown"),
    ];
    let world = denying(&["*.sql", "/drafts/**", "node_modules"], &files, |_| ());
    for path in [
        "/a.sql",
        "/a.sql.gz",
        "/d/b.sql",
        "/drafts",
        "/drafts/",
        "/drafts/x",
        "/drafts/x/",
        "/drafts/x/y.txt",
        "/node_modules",
        "/node_modules/",
        "/node_modules/x.js",
    ] {
        assert!(matches!(world.ask(path, &[]), Found::NotFound), "{path}");
    }
    for path in ["/a.txt", "/d/", "/drafts2/x"] {
        assert_eq!(world.text(path), "shown");
    }
}

#[test]
fn denied_file_answers_no_other_path() {
    let files = [("page.html", ""), ("d/index.html", ""), ("index.html", "home"), ("x.css", "css")];
    let world = denying(&["page.html", "/d/index.html"], &files, |config| {
        config.clean_urls = true;
        config.spa_fallback = Some("index.html".into());
    });
    for path in ["/page", "/page.html", "/page/", "/d/", "/d/index.html", "/nope"] {
        assert_eq!(world.text(path), "home", "the fallback: {path}");
    }
    assert_eq!(world.text("/x.css"), "css");
    let all = denying(&["*.html"], &files, |config| config.clean_urls = true);
    assert!(matches!(all.ask("/", &[]), Found::NotFound));
    assert_eq!(all.text("/x.css"), "css");
}

/// Seen in review: above some 6,000 globs, the automaton's fallback took memory for each of them at
/// each of its states.
#[test]
fn thousands_of_globs_are_matched() {
    let globs: Vec<String> = (0..8_000).map(|nth| format!("/customers/{nth:05}/**")).collect();
    let globs = PathGlobs::new(globs.iter()).unwrap();
    assert_eq!(globs.last("customers/07999/a"), Some(7_999));
    assert_eq!(globs.last("customers/08000/a"), None);
}

#[test]
fn listing_leaves_out_what_is_denied() {
    let files = [("d/a.sql", ""), ("d/b.txt", ""), ("d/drafts/x", ""), ("d/.dot", "")];
    let world = denying(&["*.sql", "/d/drafts/**"], &files, |config| config.listing = true);
    let listing = world.text("/d/");
    assert!(listing.contains("b.txt"));
    for name in ["a.sql", "drafts", ".dot"] {
        assert!(!listing.contains(name), "{name}");
    }
}

/// The number of the area of each path; `-` if it is open.
fn areas(globs: &[&str], configure: impl Fn(&mut SiteConfig), paths: &[&str]) -> String {
    let passwords = TempDir::new().unwrap();
    let basic_auth = globs.iter().enumerate().map(|(nth, glob)| {
        let file = format!("{nth}");
        write(&passwords, &file, USERS);
        (glob.to_string(), passwords.path().join(file))
    });
    let basic_auth = basic_auth.collect();
    let world = World::with(&[("index.html", ""), ("members.html", "")], |config| {
        config.basic_auth = basic_auth;
        configure(config);
    });
    let number = |path: &&str| match world.site.area(path) {
        Some(area) => {
            area.challenge["WWW-Authenticate: Basic realm=\"Restricted ".len()..][..1].to_owned()
        }
        None => "-".to_owned(),
    };
    paths.iter().map(number).collect()
}

#[test]
fn area_covers_whatever_may_answer() {
    let none = |_: &mut SiteConfig| ();
    for glob in ["*", "**", "/**", "/*", "**/*"] {
        assert_eq!(areas(&[glob], none, &["/", "/a", "/a/b/", "?"])[..3], *"111", "{glob}");
    }
    assert_eq!(areas(&["**"], none, &["?"]), "1");
    let private = ["/private", "/private/", "/private/a/b", "/privat", "/x/private/", "/"];
    assert_eq!(areas(&["/private/**"], none, &private), "111---");
    assert_eq!(areas(&["private"], none, &private), "111-1-");
    let pdf = ["/a.pdf", "/x/a.pdf.gz", "/a.pdf.br", "/a.pdf.zst", "/a.txt", "/a.pdf/"];
    assert_eq!(areas(&["*.pdf"], none, &pdf), "1111-1");
    assert_eq!(areas(&["/**", "/admin/**"], none, &["/a", "/admin/x", "/admin"]), "122");
    assert_eq!(areas(&["/d/index.html"], none, &["/d/", "/d/index.html", "/"]), "11-");

    let members = ["/members", "/members.html", "/members/", "/other"];
    let clean = |config: &mut SiteConfig| config.clean_urls = true;
    assert_eq!(areas(&["/members.html"], clean, &members), "111-");
    assert_eq!(areas(&["/members.html"], none, &members), "-1--");
    let page = ["/a", "/a/", "/d.x/a", "/a.css", "/d/a.css/", "/a.html"];
    assert_eq!(areas(&["*.html"], clean, &page), "111-11");

    let spa = |config: &mut SiteConfig| {
        config.clean_urls = true;
        config.spa_fallback = Some("index.html".into());
    };
    assert_eq!(areas(&["/index.html"], spa, &["/", "/route", "?"]), "1--");
}

#[test]
fn one_file_is_one_realm() {
    let passwords = TempDir::new().unwrap();
    write(&passwords, "users", USERS);
    let file = passwords.path().join("users");
    let world = World::with(&[], |config| {
        config.basic_auth = ["/a/**", "/b/**"].map(|glob| (glob.into(), file.clone())).into();
    });
    let [a, b] = ["/a/", "/b/"].map(|path| world.site.area(path).unwrap());
    assert!(std::ptr::eq(a, b));
}

#[test]
fn private_replies_are_not_shared() {
    let passwords = TempDir::new().unwrap();
    write(&passwords, "users", USERS);
    let world = World::with(&[], |config| {
        config.basic_auth = vec![("/p/**".into(), passwords.path().join("users"))];
    });
    let private = |lines: &str| world.site.private("p/x", lines.to_owned());
    for (value, expected) in [
        ("public, max-age=9", "private, max-age=9"),
        ("max-age=9, S-MaxAge=99 , immutable", "private, max-age=9, immutable"),
        ("no-store", "private, no-store"),
        ("Private", "private"),
    ] {
        let lines = format!("X: y\r\nCache-Control: {value}\r\n");
        assert_eq!(private(&lines), format!("X: y\r\nCache-Control: {expected}\r\n"));
    }
    assert_eq!(private("X: y\r\n"), "X: y\r\nCache-Control: private\r\n");
    assert_eq!(world.site.private("x", "X: y\r\n".to_owned()), "X: y\r\n");
}

#[test]
fn hidden_and_denied_names_are_not_shown() {
    let mut config =
        SiteConfig { deny: vec!["*.pem".to_owned(), "keys".to_owned()], ..SiteConfig::default() };
    for (name, hidden, is_shown) in [
        ("users", false, true),
        (".users", false, false),
        (".users", true, true),
        ("a/.git/users", false, false),
        ("a/key.pem", true, false),
        ("keys/a", true, false),
        ("a.pem2", false, true),
    ] {
        config.hidden = hidden;
        assert_eq!(config.shows(name), is_shown, "{name}");
    }
}

/// Seen: globs were matched with each parent directory of a path, so a path of 4,000 segments took
/// 0.7 s. Cure: one pass over the path finds where a glob ends.
#[test]
fn globs_cost_the_length_of_the_path() {
    let passwords = TempDir::new().unwrap();
    write(&passwords, "users", USERS);
    let world = World::with(&[("index.html", "")], |config| {
        config.deny = vec!["**/.git/**".into(), "**/*.{php,asp}".into()];
        let users = passwords.path().join("users");
        config.basic_auth = vec![("**/private/**".into(), users.clone()), ("/p*".into(), users)];
        config.clean_urls = true;
    });
    for path in ["/", &"/a/".repeat(3), &"/a".repeat(4000), &"/a".repeat(40_000)] {
        MATCHED_LEN.set(0);
        assert!(world.site.area(path).is_none());
        _ = world.ask(path, &[]);
        _ = world.site.lines_without_file(path);
        let matched = MATCHED_LEN.get();
        assert!(matched <= 10 * (path.len() + 20), "{matched} for {}", path.len());
    }
}

proptest! {
    /// Compares with a reference that matches globs with each name on the way. For a set of globs,
    /// a name that ends with a dot has no last part.
    #[test]
    fn globs_match_each_name_on_the_way(
        globs in prop::collection::vec("/?([*]{2}/)?[ab.*?]{1,3}(/([ab*]|[*]{2}|[{]a,b/[}]|[!a])){0,2}/?", 1..4),
        path in "([.]?[ab]([.]?[ab])?/){0,3}([.]?[ab]([.]?[ab])?)?([.]gz|[.]br)?",
    ) {
        let globs: Vec<_> = globs.iter().map(|glob| glob.to_string()).collect();
        let mut set = ::globset::GlobSetBuilder::new();
        let is_for_all = |glob: &str| matches!(glob.trim_start_matches('/'), "*" | "**" | "**/*");
        let meant = |glob: &str| if is_for_all(glob) { "**".to_owned() } else { glob.to_owned() };
        let is_one = |glob: &&String| rules::add_glob(&mut set, &meant(glob)).is_ok();
        let globs: Vec<_> = globs.iter().filter(is_one).collect();
        let set = set.build().unwrap();
        let bare = path.trim_matches('/');
        let ends = bare.match_indices('/').map(|(at, _)| at).chain([bare.len()]);
        let names = ends.flat_map(|end| [bare[..end].to_owned(), format!("{}/", &bare[..end])]);
        let suffixes = [".br", ".zst", ".gz"];
        let originals = suffixes.iter().filter_map(|suffix| bare.strip_suffix(suffix));
        let names = names.chain(originals.map(str::to_owned));
        let expected = names.filter_map(|name| set.matches(name).last().copied()).max();
        let found = PathGlobs::new(globs.into_iter()).unwrap().last(&path);
        prop_assert_eq!(found, expected);
    }
}
