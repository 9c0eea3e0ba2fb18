//! Sites that share table and budgets: those of a server's hosts.

use super::*;

/// Sites of one directory each, with a file of 100 bytes that contains the site's number.
fn sites(count: usize, configure: impl Fn(usize, &mut SiteConfig)) -> (TempDir, Vec<Site>) {
    let dir = TempDir::new().unwrap();
    let mut sites: Vec<Site> = Vec::new();
    for nth in 0..count {
        write(&dir, &format!("{nth}/index.html"), &format!("{nth:0100}"));
        let mut config = SiteConfig {
            root: dir.path().join(nth.to_string()),
            memory_budget: 4 * (100 + holdings::MEMORY_OVERHEAD),
            page_cache_budget: Some(8 * 4096),
            open_files_max: 16,
            paths_max: 20,
            listing: true,
            index: vec!["index.html".to_owned()],
            ..SiteConfig::default()
        };
        configure(nth, &mut config);
        let site = match sites.first() {
            None => Site::open(config),
            Some(first) => Site::open_beside(first, config),
        };
        sites.push(site.unwrap());
    }
    (dir, sites)
}

/// The reply of one site, ten seconds after its files were written.
fn text_at(site: &Site, path: &str) -> Result<String, Found> {
    text_after(site, path, 10)
}

fn text_after(site: &Site, path: &str, seconds: u64) -> Result<String, Found> {
    let now = Now::read();
    let later = Duration::from_secs(seconds);
    let now = Now { monotonic: now.monotonic + later, since_epoch: now.since_epoch + later };
    match site.load(&lookup(path, &[]), now) {
        Found::Entry(entry) | Found::Fallback(entry) => Ok(text_of(&entry)),
        other => Err(other),
    }
}

fn count(site: &Site, name: &str) -> u64 {
    site.counters().find(|(of, ..)| *of == name).unwrap().2
}

#[test]
fn sites_share_their_limits_and_no_file() {
    let (_dir, sites) = sites(40, |_, _| ());
    for _ in 0..3 {
        for (nth, site) in sites.iter().enumerate() {
            assert_eq!(text_at(site, "/").unwrap(), format!("{nth:0100}"));
        }
        assert!(count(&sites[0], "site_paths") <= 20);
        assert!(count(&sites[0], "site_files_open") <= 16);
        assert!(count(&sites[0], "site_memory_bytes") <= 4 * (100 + holdings::MEMORY_OVERHEAD));
        assert!(count(&sites[0], "site_page_cache_bytes") <= 8 * 4096);
    }
    assert_eq!(count(&sites[7], "site_misses_total"), 120);
}

/// The same for listings, whose paths are equal in every site.
#[test]
fn a_switched_root_is_of_one_site() {
    let (dir, sites) = sites(2, |_, config| config.index.clear());
    let both = || {
        let later = sites.iter().map(|site| text_after(site, "/", 20).unwrap());
        let files = sites.iter().map(|site| text_after(site, "/index.html", 20));
        (later.collect::<Vec<_>>(), files.collect::<Vec<_>>())
    };
    let (listings, _) = both();
    assert!(listings.iter().all(|page| page.contains("index.html")));
    assert_eq!(count(&sites[0], "site_paths"), 2);
    fs::rename(dir.path().join("1"), dir.path().join("old")).unwrap();
    write(&dir, "1/new.txt", "new");
    let listings: Vec<_> = sites.iter().map(|site| text_after(site, "/", 30).unwrap()).collect();
    assert!(listings[0].contains("index.html") && listings[1].contains("new.txt"));
    assert_eq!(count(&sites[0], "site_paths"), 1, "the other site's path stays");
    assert_eq!(text_after(&sites[0], "/index.html", 30).unwrap(), format!("{:0100}", 0));
    assert!(matches!(text_after(&sites[1], "/index.html", 30), Err(Found::NotFound)));
    assert_eq!(text_after(&sites[1], "/new.txt", 30).unwrap(), "new");
}

/// Rules that hosts inherit are held once; rules of one host are its own.
#[test]
fn equal_rules_are_shared() {
    let pages = TempDir::new().unwrap();
    write(&pages, "404.html", "gone");
    let page = pages.path().join("404.html");
    let (_dir, sites) = sites(3, |nth, config| {
        let value = if nth == 0 { "own" } else { "shared" };
        config.headers = vec![HeaderRule {
            glob: "**".to_owned(),
            name: "X-A".to_owned(),
            value: value.to_owned(),
        }];
        if nth == 0 {
            config.mime_types = vec![("html".to_owned(), "text/plain".to_owned())];
        }
        config.deny = vec![format!("/{value}")];
        config.error_pages = vec![(404, page.clone())];
    });
    let [third, first, second] = &sites[..] else { unreachable!() };
    assert!(Arc::ptr_eq(&first.rules, &second.rules));
    assert!(Arc::ptr_eq(first.access.as_ref().unwrap(), second.access.as_ref().unwrap()));
    assert!(Arc::ptr_eq(&first.error_pages[0], &second.error_pages[0]));
    assert!(third.denies("own") && !third.denies("shared") && second.denies("shared"));
    assert!(third.rules.lines("a").contains("own"));
    assert!(!Arc::ptr_eq(&first.error_pages[0], &third.error_pages[0]), "the content type differs");
}

/// Seen: a reload of 10,000 hosts needed 10,000 descriptors more.
#[test]
fn one_directory_is_open_once() {
    let (_dir, sites) = sites(2, |_, _| ());
    let root = |site: &Site| Arc::clone(&*site.root.read().unwrap());
    let after = Site::open_after(&sites[0], sites[1].config.clone()).unwrap();
    assert!(root(&after).is_open_as(&root(&sites[1])));
    assert!(!root(&after).is_open_as(&root(&sites[0])));
    assert!(!Arc::ptr_eq(&after.cache, &sites[0].cache), "the budgets are separate");
    fs::rename(&after.config.root, after.config.root.with_extension("old")).unwrap();
    fs::create_dir(&after.config.root).unwrap();
    let later = Site::open_after(&after, after.config.clone()).unwrap();
    assert!(!root(&later).is_open_as(&root(&after)), "another directory");
}
