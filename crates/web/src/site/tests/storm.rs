//! Concurrent readers and writers.

use super::*;

/// A body that contains its own version and length, and is filled with the version's letter:
/// `27:100:bbbb...`, 100 bytes in all.
fn speaking(version: u64, len: usize) -> String {
    let text = format!("{version}:{len}:");
    let letter = char::from(b'a' + (version % 26) as u8);
    let fill = len - text.len();
    text + &letter.to_string().repeat(fill)
}

/// The version that these bytes belong to, and whether they are complete.
fn version_of(bytes: &[u8]) -> Option<(u64, bool)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut parts = text.split(':');
    let version: u64 = parts.next()?.parse().ok()?;
    let len: usize = parts.next()?.parse().ok()?;
    speaking(version, len).starts_with(text).then_some((version, bytes.len() == len))
}

/// Replies with the old `Content-Length` and the new bytes are a classic fault of servers that
/// cache descriptors. Here writers rename new files over old ones and write into the same inode
/// while readers find and load; the bytes of every entry must be of one version and of the length
/// in its header.
#[test]
fn bytes_match_their_header() {
    let world = World::with(&[], |config| {
        config.recheck_every = Duration::from_micros(200);
        config.memory_file_len_max = 3000;
        config.memory_budget = 8 * (2000 + holdings::MEMORY_OVERHEAD);
    });
    let len_of = |version: u64| 100 + (version * 769 % 5000) as usize;
    let names: Vec<String> = (0..12).map(|n| format!("f{n}")).collect();
    names.iter().for_each(|name| world.write(name, &speaking(0, len_of(0))));
    let done = AtomicBool::new(false);
    let served = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (world, names, done, served) = (&world, &names, &done, &served);
        for seed in 0..2u64 {
            scope.spawn(move || {
                let mut random = seed + 1;
                while !done.load(Relaxed) {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
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
        // A minimum of events, without a time limit: machines differ in speed.
        let is_enough = || served.load(Relaxed) > 20 && world.count("site_changed_total") > 10;
        let waits = |is_enough: bool| match started.elapsed() {
            elapsed if is_enough => elapsed < Duration::from_millis(700),
            elapsed => elapsed < Duration::from_secs(20),
        };
        while waits(is_enough()) {
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
    assert!(served.load(Relaxed) > 20, "{served:?} whole versions served");
    assert!(world.count("site_changed_total") > 10);
    let budget = 8 * (2000 + holdings::MEMORY_OVERHEAD);
    assert!(world.count("site_memory_bytes") <= budget);
}

/// Rewrites the same inode: truncates it, then writes two pieces.
fn rewrite(path: &Path, bytes: &[u8]) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(0).unwrap();
    let half = bytes.len() / 2;
    file.write_all_at(&bytes[..half], 0).unwrap();
    file.write_all_at(&bytes[half..], half as u64).unwrap();
}

/// Tells whether the entry was a whole version. A prefix of one is allowed, since the file was in
/// that state and the length is right; a mixture of two is not.
fn check_entry(entry: &Entry) -> bool {
    let head = head_of(entry);
    assert!(head.contains(&format!("Content-Length: {}\r\n", entry.len)), "{head}");
    let bytes = match &entry.body {
        Body::Memory(bytes) => bytes.clone(),
        // As drivers do: bytes that changed during the read do not count.
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
    assert!(bytes.is_empty() || version.is_some(), "{} bytes mixed: {}", bytes.len(), text());
    version.is_some_and(|(_, is_whole)| is_whole)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// For any path: no panic, nothing from outside the root, nothing hidden, and redirects stay on
    /// this host.
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
            Found::Moved(to) => assert!(to.starts_with('/') && !to.starts_with("//")),
            Found::NotFound | Found::NoIndex | Found::Forbidden => {}
            other => panic!("{path:?}: {other:?}"),
        });
    }
}
