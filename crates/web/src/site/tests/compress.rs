//! Variants that are made of files without a compressed neighbour.

use std::io::Read;

use super::*;
use crate::site::compress::{SOURCE_LEN_MAX, SOURCE_LEN_MIN, WAITING_MAX};

const PAGE: &str = "a line that is the same again and again\n";

fn page() -> String {
    PAGE.repeat(100)
}

/// A site that compresses.
fn world(files: &[(&str, &str)]) -> World {
    world_with(files, compressing)
}

fn world_with(files: &[(&str, &str)], configure: impl FnOnce(&mut SiteConfig)) -> World {
    let world = World::with(files, configure);
    world.site.compressor.set(Default::default()).unwrap();
    world
}

fn compressing(config: &mut SiteConfig) {
    config.compress = ALL.to_vec();
}

/// Serves all queued jobs; returns their number.
fn compress(world: &World) -> usize {
    let (compressor, _) = world.site.compressor.get().unwrap();
    let jobs = std::iter::from_fn(|| compressor.pop());
    jobs.map(|job| world.site.make_variant(&job)).count()
}

/// The entry that a client gets, and its coding.
fn sent(world: &World, path: &str, accepts: &[Encoding]) -> (Arc<Entry>, Option<Encoding>) {
    let entry = entry_of(world.ask(path, accepts));
    let head = head_of(&entry);
    let is_in = |of: &Encoding| head.contains(&format!("Content-Encoding: {}\r\n", of.token()));
    let encoding = ALL.into_iter().find(is_in);
    (entry, encoding)
}

fn coding(world: &World, path: &str, accepts: &[Encoding]) -> Option<Encoding> {
    sent(world, path, accepts).1
}

fn decoded(entry: &Entry, encoding: Encoding) -> String {
    let bytes = bytes_of(entry);
    let mut text = Vec::new();
    match encoding {
        Encoding::Br => brotli::BrotliDecompress(&mut &bytes[..], &mut text).unwrap(),
        Encoding::Zstd => text = zstd::bulk::decompress(&bytes, 9 << 20).unwrap(),
        Encoding::Gzip => {
            let mut decoder = flate2::read::GzDecoder::new(&bytes[..]);
            _ = decoder.read_to_end(&mut text).unwrap();
        }
    }
    String::from_utf8(text).unwrap()
}

#[test]
fn second_request_gets_each_coding() {
    for encoding in ALL {
        let world = world(&[("a.js", &page())]);
        let (plain, none) = sent(&world, "/a.js", &[encoding]);
        assert_eq!((text_of(&plain), none), (page(), None), "the first does not wait");
        assert!(head_of(&plain).contains("Vary: Accept-Encoding\r\n"));
        assert_eq!(compress(&world), 1);
        let (made, some) = sent(&world, "/a.js", &[encoding]);
        assert_eq!(some, Some(encoding));
        assert_eq!(decoded(&made, encoding), page());
        assert!(head_of(&made).contains("Vary: Accept-Encoding\r\n"));
        assert!(plain.etag != made.etag && made.etag.starts_with('"'), "{}", made.etag);
        assert!(!plain.modified_is_strong && !made.modified_is_strong, "one date for two");
        let found = world.site.find(&lookup("/a.js", &[encoding]), world.now());
        assert!(Arc::ptr_eq(&entry_of(found), &made));
        assert_eq!(compress(&world), 0, "made once");
        assert_eq!(world.count("site_compressed_total"), 1);
        assert_eq!(world.count("site_compressed_source_bytes_total"), page().len() as u64);
        assert_eq!(world.count("site_compressed_bytes_total"), made.len);
    }
}

/// Several requests queue a variant only once.
#[test]
fn crowd_asks_once() {
    let world = world(&[("a.js", &page())]);
    (0..100).for_each(|_| assert_eq!(coding(&world, "/a.js", &ALL), None));
    assert_eq!(world.count("site_compressions_waiting"), 1);
    assert!(world.count("site_hits_total") >= 98, "the others are ordinary hits");
    assert_eq!(compress(&world), 1);
}

#[test]
fn best_that_is_made_is_sent() {
    let world = world(&[("a.js", &page())]);
    coding(&world, "/a.js", &[Encoding::Gzip]);
    compress(&world);
    assert_eq!(coding(&world, "/a.js", &ALL), Some(Encoding::Gzip), "gzip is sent, br requested");
    assert_eq!(compress(&world), 1);
    assert_eq!(coding(&world, "/a.js", &ALL), Some(Encoding::Br));
    assert_eq!(coding(&world, "/a.js", &[Encoding::Gzip]), Some(Encoding::Gzip));
    assert_eq!(coding(&world, "/a.js", &[]), None);
    assert_eq!(compress(&world), 0);
}

#[test]
fn only_configured_codings_are_made() {
    let world = world_with(&[("a.js", &page())], |config| {
        config.compress = vec![Encoding::Gzip];
    });
    assert_eq!(coding(&world, "/a.js", &[Encoding::Br]), None);
    assert_eq!(compress(&world), 0);
    coding(&world, "/a.js", &ALL);
    compress(&world);
    assert_eq!(coding(&world, "/a.js", &ALL), Some(Encoding::Gzip));
}

#[test]
fn neighbour_is_good_enough() {
    let world = world(&[("a.js", &page()), ("a.js.gz", "gz")]);
    assert_eq!(text_of(&sent(&world, "/a.js", &ALL).0), "gz");
    assert_eq!(compress(&world), 0);
    coding(&world, "/a.js", &[Encoding::Br]);
    assert_eq!(compress(&world), 1, "for a client that does not take it");
    assert_eq!(coding(&world, "/a.js", &[Encoding::Br]), Some(Encoding::Br));
}

#[test]
fn text_is_compressed_and_media_are_not() {
    let names = [
        ("a.html", true),
        ("a.svg", true),
        ("a.wasm", true),
        ("a.json", true),
        ("a.svgz", false),
        ("a.png", false),
        ("a.pdf", false),
        ("a.css.gz", false),
        ("a.tar.gz", false),
        ("a.woff2", false),
    ];
    for (name, is_text) in names {
        let world = world(&[(name, &page())]);
        sent(&world, &format!("/{name}"), &ALL);
        assert_eq!(compress(&world), usize::from(is_text), "{name}");
    }
}

#[test]
fn length_limits_hold_at_both_ends() {
    let least = SOURCE_LEN_MIN as usize;
    let most = SOURCE_LEN_MAX as usize;
    let lengths = [(least - 1, 0), (least, 1), (most, 1), (most + 1, 0), (3 * most, 0)];
    for (len, count) in lengths {
        let world = world_with(&[("a.js", &"x".repeat(len))], |config| {
            config.compress = vec![Encoding::Zstd];
        });
        coding(&world, "/a.js", &ALL);
        assert_eq!(compress(&world), count, "{len}");
        if count == 1 {
            let (made, encoding) = sent(&world, "/a.js", &ALL);
            assert_eq!(decoded(&made, encoding.unwrap()).len(), len);
        }
    }
}

#[test]
fn no_transform_is_respected() {
    let world = world_with(&[("a.js", &page()), ("b.js", &page())], |config| {
        compressing(config);
        config.cache_rules = vec![CacheRule {
            glob: "a.js".to_owned(),
            value: "max-age=60, No-Transform".to_owned(),
        }];
    });
    coding(&world, "/a.js", &ALL);
    assert_eq!(compress(&world), 0);
    coding(&world, "/b.js", &ALL);
    assert_eq!(compress(&world), 1);
}

#[test]
fn useless_result_is_remembered() {
    let mut world = world(&[]);
    fs::write(world.path("a.js"), random(4000)).unwrap();
    assert_eq!(coding(&world, "/a.js", &[Encoding::Gzip]), None);
    assert_eq!(compress(&world), 1);
    for _ in 0..10 {
        world.at_s += 0.7;
        assert_eq!(coding(&world, "/a.js", &[Encoding::Gzip]), None);
    }
    assert_eq!(compress(&world), 0);
    assert_eq!(world.count("site_compressions_useless_total"), 1);
    world.write("a.js", &page());
    world.at_s += 1.1;
    coding(&world, "/a.js", &[Encoding::Gzip]);
    compress(&world);
    assert_eq!(coding(&world, "/a.js", &[Encoding::Gzip]), Some(Encoding::Gzip));
}

/// Incompressible bytes (SplitMix64).
fn random(len: usize) -> Vec<u8> {
    let byte = |n: usize| {
        let z = (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as u8
    };
    (0..len).map(byte).collect()
}

#[test]
fn changed_file_loses_its_variants() {
    let mut world = world(&[("a.js", &page())]);
    coding(&world, "/a.js", &ALL);
    compress(&world);
    let (old, _) = sent(&world, "/a.js", &ALL);
    world.write("a.js", &page().replace("same", "other"));
    world.at_s += 1.1;
    let (plain, none) = sent(&world, "/a.js", &ALL);
    assert!(none.is_none() && text_of(&plain).contains("other"));
    compress(&world);
    let (new, some) = sent(&world, "/a.js", &ALL);
    assert!(decoded(&new, some.unwrap()).contains("other"));
    assert_ne!(old.etag, new.etag);
}

/// A file changes while it is queued, and while it is compressed: neither result is served.
#[test]
fn variant_of_an_older_state_is_dropped() {
    let mut world = world(&[("a.js", &page())]);
    coding(&world, "/a.js", &ALL);
    world.write("a.js", &page().replace("same", "other"));
    assert_eq!(compress(&world), 1);
    world.at_s += 1.1;
    let (entry, encoding) = sent(&world, "/a.js", &ALL);
    assert!(encoding.is_none() && text_of(&entry).contains("other"));
}

/// The plain file is too long for memory, and is being rewritten.
#[test]
fn made_bytes_stand_until_quiet() {
    let mut world = world_with(&[("a.js", &page())], |config| {
        compressing(config);
        config.memory_file_len_max = 100;
    });
    coding(&world, "/a.js", &ALL);
    compress(&world);
    assert_eq!(coding(&world, "/a.js", &ALL), Some(Encoding::Br));
    world.write("a.js", "new");
    world.at_s += 0.6;
    world.set_age("a.js", Duration::from_millis(10));
    assert_eq!(coding(&world, "/a.js", &ALL), Some(Encoding::Br), "the old state");
    world.at_s += 0.5;
    assert_eq!(text_of(&sent(&world, "/a.js", &ALL).0), "new");
}

/// A file that changed just now may change again under the same stamp.
#[test]
fn file_is_compressed_once_it_has_settled() {
    let mut world = world(&[("a.js", &page())]);
    world.set_age("a.js", Duration::from_secs(1));
    let (plain, _) = sent(&world, "/a.js", &ALL);
    assert!(head_of(&plain).contains("Vary"));
    assert_eq!(compress(&world), 0);
    world.at_s += 2.0;
    coding(&world, "/a.js", &ALL);
    assert_eq!(compress(&world), 1);
}

#[test]
fn line_has_an_end_and_goes_on() {
    let names: Vec<_> = (0..3 * WAITING_MAX).map(|n| format!("{n}.js")).collect();
    let text = "x".repeat(1024);
    let files: Vec<_> = names.iter().map(|name| (&name[..], &text[..])).collect();
    let mut world = world_with(&files, |config| config.compress = vec![Encoding::Gzip]);
    let ask = |world: &World| {
        names.iter().for_each(|name| _ = sent(world, &format!("/{name}"), &ALL));
    };
    for round in 1..=3 {
        ask(&world);
        assert_eq!(world.count("site_compressions_waiting"), WAITING_MAX as u64);
        assert_eq!(compress(&world), WAITING_MAX);
        assert_eq!(world.count("site_compressed_total"), (round * WAITING_MAX) as u64);
        world.at_s += 1.1;
    }
    ask(&world);
    assert_eq!(compress(&world), 0);
    assert_eq!(world.count("site_compressions_refused_total"), 3 * WAITING_MAX as u64);
}

#[test]
fn evicted_variant_is_made_again() {
    let mut world = world_with(&[("a.js", &page()), ("b.js", &page().repeat(2))], |config| {
        compressing(config);
        // Space for the second file, or for the first and its variant.
        config.memory_budget = 9_500;
    });
    coding(&world, "/a.js", &ALL);
    compress(&world);
    assert_eq!(coding(&world, "/a.js", &ALL), Some(Encoding::Br));
    (0..14).for_each(|_| _ = world.entry("/b.js"));
    assert!(is_in_memory(&world.entry("/b.js")), "the most popular file is in memory");
    assert_eq!(coding(&world, "/a.js", &ALL), None, "evicted");
    let refused = world.count("site_compressions_refused_total");
    assert!(refused > 0 && compress(&world) == 0, "others are more popular");
    // Until the other file is evicted.
    (0..120).for_each(|_| {
        world.at_s += 0.6;
        coding(&world, "/a.js", &ALL);
        compress(&world);
    });
    assert_eq!(coding(&world, "/a.js", &ALL), Some(Encoding::Br));
}

#[test]
fn nothing_is_made_without_memory() {
    let mut world = world_with(&[("a.js", &page())], |config| {
        compressing(config);
        config.memory_budget = 0;
    });
    for _ in 0..10 {
        world.at_s += 0.6;
        assert_eq!(coding(&world, "/a.js", &ALL), None);
    }
    assert_eq!(compress(&world), 0);
}

#[test]
fn threads_compress_and_end_with_the_sites() {
    let worlds = [(); 2].map(|()| World::with(&[("a.js", &page())], compressing));
    let now = worlds[0].now();
    let sites = worlds.map(|world| (Arc::new(world.site), world.dir));
    Site::start_compressing(sites.iter().map(|(site, _)| site)).unwrap();
    let wait_until = |is_so: &dyn Fn() -> bool| {
        let tries = (0..4000).find(|_| {
            std::thread::sleep(Duration::from_millis(5));
            is_so()
        });
        assert!(tries.is_some());
    };
    for (site, _) in &sites {
        let ask = || entry_of(site.load(&lookup("/a.js", &ALL), now));
        wait_until(&|| head_of(&ask()).contains("Content-Encoding: br"));
    }
    let compressor = Arc::downgrade(&sites[0].0.compressor.get().unwrap().0);
    drop(sites);
    wait_until(&|| compressor.strong_count() == 0);
}
