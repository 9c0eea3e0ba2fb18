//! The sets have the figures of the papers, the bytes of their seed, and a list that reads back.

use std::collections::BTreeSet;

use super::*;

fn thesis(scale: f64) -> FileSet {
    let recipe = Recipe { model: Model::Thesis, scale, seed: 1, exponent: 1.0 };
    FileSet::plan(recipe).unwrap()
}

fn pages() -> FileSet {
    let recipe = Recipe { model: Model::Pages, scale: 1.0, seed: 1, exponent: 1.0 };
    FileSet::plan(recipe).unwrap()
}

fn assert_within(percent: f64, what: &str, ours: f64, published: f64) {
    let differs = 100.0 * (ours / published - 1.0).abs();
    assert!(differs <= percent, "{what}: {ours} against the published {published}");
}

#[test]
fn the_full_set_has_the_thesis_numbers() {
    let set = thesis(1.0);
    assert_eq!(set.entries.len(), 21_600);
    assert_eq!(set.directories(), 650);
    assert_within(0.5, "total", set.total_bytes() as f64 / 1e6, 2_291.6);
    let paths: BTreeSet<_> = set.entries.iter().map(|entry| &entry.path).collect();
    assert_eq!(paths.len(), 21_600, "each path once");
}

#[test]
fn table_holds_at_every_scale() {
    for scale in [5.0, 1.0, 0.3, 0.1, 0.03, 0.01] {
        for (published, ours) in thesis(scale).table() {
            let cell = format!("scale {scale}, {} %", published.requests_percent);
            assert_within(10.0, &cell, ours.memory_mb, published.memory_mb * scale);
            let size_bytes = published.size_bytes as f64;
            assert_within(10.0, &cell, ours.size_bytes as f64, size_bytes);
        }
    }
}

/// Seen: the thesis's column was headed "seed", next to a line that names the set's seed.
#[test]
fn printed_table_is_aligned() {
    let text = show_table(&thesis(0.1).table(), 0.1);
    let mut lines = text.lines();
    let head = lines.next().unwrap();
    assert_eq!(head.matches("thesis").count(), 3, "{text}");
    let borders = |line: &str| -> Vec<usize> {
        let places = line.chars().enumerate().filter(|(_, c)| *c == '│');
        places.map(|(at, _)| at).collect()
    };
    assert!(lines.all(|line| borders(line) == borders(head)), "{text}");
}

#[test]
fn table_holds_for_other_exponents() {
    for exponent in [0.0, 0.7, 1.2] {
        let recipe = Recipe { exponent, ..thesis(1.0).recipe };
        for (seed, ours) in FileSet::plan(recipe).unwrap().table() {
            assert_within(10.0, "size", ours.size_bytes as f64, seed.size_bytes as f64);
        }
    }
}

#[test]
fn full_set_is_zipf_by_rank() {
    let set = thesis(1.0);
    let sum: f64 = (1..=21_600).map(|rank| 1.0 / f64::from(rank)).sum();
    for (at, entry) in set.entries.iter().enumerate() {
        assert_within(0.1, "share", entry.share, 1.0 / (at + 1) as f64 / sum);
    }
    let total: f64 = set.entries.iter().map(|entry| entry.share).sum();
    assert!((total - 1.0).abs() < 1e-9, "{total}");
}

#[test]
fn drawn_requests_have_the_same_table() {
    let set = thesis(1.0);
    let chooser = set.chooser();
    let mut random = Random::new(77);
    let mut counts = vec![0; set.entries.len()];
    for _ in 0..1_000_000 {
        counts[chooser.draw(&mut random)] += 1;
    }
    for (seed, ours) in set.table_of_requests(&counts) {
        assert_eq!(ours.size_bytes, seed.size_bytes, "{seed:?} {ours:?}");
        assert_within(10.0, "memory", ours.memory_mb, seed.memory_mb);
        // Three standard errors of a million draws are 0.15 %.
        assert!((ours.requests_percent - seed.requests_percent).abs() < 0.3, "{seed:?} {ours:?}");
    }
}

#[test]
fn pages_have_published_figures() {
    for (name, seed, ours) in page_figures(&pages()) {
        assert_within(3.0, name, ours, seed);
    }
    assert_eq!(pages().entries.len(), 500);
}

#[test]
fn written_set_reads_back() {
    let place = tempfile::tempdir().unwrap();
    let mut set = thesis(0.002);
    let mut last = 0;
    set.write(place.path(), |bytes| last = bytes).unwrap();
    assert_eq!(last, set.total_bytes());
    for entry in &set.entries {
        let content = fs::read(place.path().join(&entry.path[1..])).unwrap();
        assert_eq!(content.len() as u64, entry.size_bytes, "{}", entry.path);
        assert_eq!(crc32fast::hash(&content), entry.crc32, "{}", entry.path);
    }
    assert_eq!(FileSet::read(place.path()).unwrap(), set);
    assert_eq!(FileSet::read(&place.path().join(MANIFEST)).unwrap(), set);
}

#[test]
fn seed_replays_every_byte() {
    let written = |seed| {
        let place = tempfile::tempdir().unwrap();
        let mut set = FileSet::plan(Recipe { seed, ..thesis(0.002).recipe }).unwrap();
        set.write(place.path(), |_| ()).unwrap();
        set.entries
    };
    assert_eq!(written(5), written(5));
    assert_ne!(written(5), written(6));
}

#[test]
fn a_strangers_directory_is_left_alone() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("thesis.tex"), "years of work").unwrap();
    let error = thesis(0.002).write(place.path(), |_| ()).unwrap_err();
    assert!(error.to_string().contains("choose an empty directory"), "{error}");
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
}

#[test]
fn bad_manifest_names_the_line() {
    let refused = |text: &str, hint: &str| {
        let error = FileSet::parse(text.as_bytes()).unwrap_err();
        assert!(error.contains(hint), "{error}");
    };
    let head = thesis(1.0).recipe.to_string();
    refused("", "empty");
    refused("<html>", "the first line does not begin");
    refused(&head, "empty");
    refused(&format!("{head}\n# a comment\n/a\t1\tzz\t0.5\n"), "line 3");
    refused(&format!("{head}\na\t1\t00\t0.5\n"), "line 2");
    refused(&format!("{head}\n/a\t1\t00\t0.5\tmore\n"), "line 2");
    let missing = FileSet::read(Path::new("nowhere")).unwrap_err().to_string();
    assert!(missing.contains("weft load fileset DIR"), "{missing}");
}

#[test]
fn impossible_recipes_are_refused() {
    let refused = |recipe| FileSet::plan(recipe).unwrap_err();
    let recipe = thesis(1.0).recipe;
    assert!(refused(Recipe { scale: 0.0, ..recipe }).contains("0.001 to 100"));
    assert!(refused(Recipe { scale: f64::NAN, ..recipe }).contains("0.001 to 100"));
    assert!(refused(Recipe { exponent: -1.0, ..recipe }).contains("0 to 2"));
}
