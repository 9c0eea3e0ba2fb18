//! Reports for people and programs show what an outcome has counted.

use std::time::{Duration, SystemTime};

use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

use super::screen::spark;
use super::*;
use crate::outcome::{Demand, Generator, IntervalRecord, Kind, Outcome, Tally, ThreadUse, record};

/// An open loop of two seconds that kept up. Each class has `count` replies, of 1, 2, … times
/// `step_us` from their intended times and half of that from their sending.
pub(crate) fn sample(classes: &[&'static str], step_us: u64, count: u64) -> Outcome {
    let mut halves = [Tally::new(classes), Tally::new(classes)];
    for at in 0..count {
        let tally = &mut halves[(at % 2) as usize];
        for class in &mut tally.classes {
            let ns = (at + 1) * step_us * 1000;
            record(&mut class.response_ns, ns);
            record(&mut class.service_ns, ns / 2);
            class.replies_by_status[2] += 1;
        }
        tally.intended += classes.len() as u64;
        tally.sent += classes.len() as u64;
    }
    let mut total = Tally::new(classes);
    halves.iter().for_each(|half| total.add_later(half));
    let second = Duration::from_secs(1);
    let record =
        |(at, tally): (u32, Tally)| IntervalRecord { begins: at * second, lasts: second, tally };
    Outcome {
        began: SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000),
        elapsed: 2 * second,
        asked: Demand { kind: Kind::Open, connections: 64, ..Demand::default() },
        offered_rate_per_s: Some((count * classes.len() as u64) as f64 / 2.0),
        total,
        intervals: (0..).zip(halves).map(record).collect(),
        generator: Generator {
            io: "epoll".to_owned(),
            threads: vec![ThreadUse { cpu: second, elapsed: 2 * second, ..ThreadUse::default() }],
            table_drops: 0,
        },
        stopped_early: false,
    }
}

const PLAIN: Look = Look { colored: false, width: 100 };

fn heading() -> Heading {
    Heading { target: "GET http://127.0.0.1:8080/".to_owned(), how: "10 s".to_owned() }
}

fn close(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < 2e-3
}

#[test]
fn json_names() {
    let mut outcome = sample(&["request"], 1, 10_000);
    outcome.total.errors.refused = 3;
    let document = json(&outcome);
    assert_eq!(document["offered_rate_per_s"], 5_000.0);
    assert_eq!(document["achieved_rate_per_s"], 5_000.0);
    for (name, expected_us) in [
        ("p50", 5e3),
        ("p90", 9e3),
        ("p99", 9.9e3),
        ("p99.9", 9.99e3),
        ("p99.99", 9.999e3),
        ("max", 1e4),
    ] {
        let intended = document["latency_us"]["intended"][name].as_f64().unwrap();
        let raw = document["latency_us"]["raw"][name].as_f64().unwrap();
        assert!(close(intended, expected_us), "{name}: {intended}");
        assert!(close(raw, expected_us / 2.0), "{name}: {raw}");
    }
    assert_eq!(document["errors"]["refused"], 3);
    assert_eq!(document["errors"]["total"], 3);
    assert_eq!(document["replies_by_status"]["2xx"], 10_000);
    assert_eq!(document["generator_limited"], false);
    assert_eq!(document["intervals"].as_array().unwrap().len(), 2);
    assert_eq!(document["intervals"][1]["begins_s"], 1.0);
    let again = Outcome::from_json(document).unwrap();
    assert_eq!(again.total.response_ns(), outcome.total.response_ns());
}

#[test]
fn report_names_everything() {
    let mut outcome = sample(&["get", "set"], 1, 10_000);
    outcome.total.errors.client_timeout = 7;
    outcome.total.opened = 64;
    let text = screen(&outcome, &heading(), PLAIN);
    for part in [
        "offered 10,000/s",
        "achieved 10,000/s",
        "p99.99",
        "intended",
        "raw",
        "good 20,000",
        "client timeout 7",
        "kept up",
        "get",
        "replies/s",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(text.lines().count() <= 24, "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!(!text.contains('\x1b'));
    assert!(screen(&outcome, &heading(), Look { colored: true, ..PLAIN }).contains('\x1b'));
}

/// Seen: the manual page did not explain seven lines of the screen.
#[test]
fn report_lines_are_in_the_manual() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/load.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, told) = page.split_once("\n## What the screen says\n").unwrap();
    let (told, _) = told.split_once("\n## ").unwrap();
    let cells = told.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    let names: Vec<&str> = cells.flat_map(|cell| cell.split(", ")).collect();
    let mut outcome = sample(&["get", "set"], 100, 10_000);
    outcome.asked.idle_connections = 6_000;
    for line in screen(&outcome, &heading(), PLAIN).lines() {
        let name: String = line.chars().skip(2).take(10).collect();
        let name = name.trim();
        let is_told = name.is_empty() || names.contains(&name);
        assert!(is_told, "{name} is not in {names:?}");
    }
}

/// Issue 10 B. Seen: lines of 130 columns on a terminal of 80, broken by it in the middle of words;
/// a closed loop showed the same latency twice; idle connections had a table of zeros and a verdict
/// about replies.
#[test]
fn report_fits_its_terminal() {
    let mut outcome = sample(&["get", "set"], 100, 10_000);
    outcome.total.errors = crate::Errors {
        client_timeout: 1_000_000,
        address_unavailable: 1_000_000,
        unexpected_status: 1_000_000,
        ..crate::Errors::default()
    };
    outcome.generator.threads[0].run_delay = Duration::from_secs(1);
    outcome.asked.idle_connections = 6_000;
    for kind in [Kind::Open, Kind::Closed, Kind::Sessions, Kind::Idle] {
        outcome.asked.kind = kind;
        for width in [40, 60, 80, 100, 200] {
            for colored in [false, true] {
                let text = screen(&outcome, &heading(), Look { colored, width });
                let plain = without_colors(&text);
                let longest = plain.lines().max_by_key(|line| line.chars().count()).unwrap();
                assert!(longest.chars().count() <= width, "{width}: {longest}\n{plain}");
            }
        }
        let text = screen(&outcome, &heading(), PLAIN);
        let has = |word: &str| text.lines().any(|line| line.contains(word));
        assert_eq!(has("intended"), matches!(kind, Kind::Open | Kind::Sessions), "{text}");
        assert_eq!(has("  lag"), matches!(kind, Kind::Open | Kind::Sessions), "{text}");
        assert_eq!(has("p99.9"), kind != Kind::Idle, "{text}");
        assert_eq!(has("  replies"), kind != Kind::Idle, "{text}");
        assert!(has("0 of 6,000 connections open at the end"), "{text}");
    }
}

fn without_colors(text: &str) -> String {
    let mut parts = text.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').unwrap().1)
}

#[test]
fn long_lines_are_wrapped() {
    let outcome = sample(&["request"], 1, 10_000);
    let target = "GET http://127.0.0.1:8080/ and so on, as long as it takes";
    let heading = Heading { target: target.to_owned(), ..heading() };
    let text = screen(&outcome, &heading, Look { width: 50, ..PLAIN });
    let lines: Vec<&str> = text.lines().take(2).collect();
    assert_eq!(lines[0], "  target     GET http://127.0.0.1:8080/ and so on,");
    assert_eq!(lines[1], "             as long as it takes");
    assert!(!text.lines().any(|line| line.trim_start().starts_with('·')), "{text}");
}

#[test]
fn report_without_replies() {
    let outcome = sample(&["request"], 1, 0);
    let text = screen(&outcome, &heading(), PLAIN);
    assert!(text.contains("achieved 0.00/s"));
    for part in ["p99.9", "per reply"] {
        assert!(!text.contains(part), "{part}: {text}");
    }
    assert!(json(&outcome)["latency_us"]["intended"]["p50"] == 0.0);
    let mut files = Vec::new();
    hgrm(&outcome, &mut files).unwrap();
    interval_log(&outcome, &mut files).unwrap();
    csv(&outcome, &mut files).unwrap();
}

/// Seen: `1 connections opened`, and `over 0.0 s` of a run of twenty requests.
#[test]
fn short_runs_are_told_in_their_own_units() {
    let mut outcome = sample(&["request"], 1, 4);
    outcome.elapsed = Duration::from_micros(1_170);
    outcome.total.opened = 1;
    let text = screen(&outcome, &heading(), PLAIN);
    for part in ["over 1.17 ms", " · 1 connection opened, "] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

/// Seen: `set 0 replies · p50 0 · p99 0 · max 0` of a load without sets.
#[test]
fn a_command_without_replies_has_no_latency() {
    let mut outcome = sample(&["get", "set"], 1, 10);
    outcome.total.classes[1] = Tally::new(&["set"]).classes.remove(0);
    let text = screen(&outcome, &heading(), PLAIN);
    assert!(text.lines().any(|line| line.trim_end() == "  set        none"), "{text}");
}

#[test]
fn csv_has_a_line_per_interval() {
    let mut file = Vec::new();
    csv(&sample(&["request"], 1, 10_000), &mut file).unwrap();
    let text = String::from_utf8(file).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(
        lines[0].starts_with("begins_s,lasts_s,intended_per_s,achieved_per_s,errors,missed,p50_us")
    );
    assert!(lines[2].starts_with("1.000,1.000,5000.0,5000.0,0,0,"), "{}", lines[2]);
    assert!(lines.iter().all(|line| line.split(',').count() == 10));
}

#[test]
fn hgrm_is_what_the_plotter_reads() {
    let mut file = Vec::new();
    hgrm(&sample(&["request"], 1, 10_000), &mut file).unwrap();
    let text = String::from_utf8(file).unwrap();
    let mut lines = text.lines();
    assert_eq!(
        lines.next().unwrap().split_whitespace().collect::<Vec<_>>(),
        ["Value", "Percentile", "TotalCount", "1/(1-Percentile)"]
    );
    let rows: Vec<Vec<f64>> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.split_whitespace().map(|cell| cell.parse().unwrap()).collect())
        .collect();
    assert!(rows.iter().map(|row| row[1]).is_sorted());
    let median = rows.iter().find(|row| row[1] >= 0.5).unwrap();
    assert!(close(median[0], 5.0), "{median:?}");
    let last = rows.last().unwrap();
    assert_eq!((last[1], last[2]), (1.0, 10_000.0));
    assert!(text.contains("#[Max     =       10.0"), "{text}");
}

#[test]
fn interval_log_reads_back() {
    let outcome = sample(&["get", "set"], 3, 1_000);
    let mut file = Vec::new();
    interval_log(&outcome, &mut file).unwrap();
    assert!(file.starts_with(b"#[Histogram log format version 1.3]\n"));
    let mut seen = Vec::new();
    for entry in IntervalLogIterator::new(&file) {
        if let LogEntry::Interval(interval) = entry.unwrap() {
            let bytes = base64::Engine::decode(
                &base64::engine::general_purpose::STANDARD,
                interval.encoded_histogram(),
            );
            let read: Histogram<u64> =
                Deserializer::new().deserialize(&mut &bytes.unwrap()[..]).unwrap();
            seen.push((
                interval.tag().unwrap().as_str().to_owned(),
                interval.start_timestamp(),
                read,
            ));
        }
    }
    assert_eq!(seen.len(), 8, "two intervals, two classes, intended and raw");
    let (tag, begins, read) = &seen[4];
    assert_eq!((&**tag, *begins), ("get", Duration::from_secs(1)));
    assert_eq!(*read, outcome.intervals[1].tally.classes[0].response_ns);
}

#[test]
fn numbers_are_written_for_people() {
    assert_eq!(
        [ns_of(0.0), ns_of(950.0), ns_of(12_345.0), ns_of(5e6), ns_of(2.5e9)],
        ["0", "950 ns", "12.3 µs", "5.00 ms", "2.50 s"]
    );
    assert_eq!([count_of(7), count_of(1_000), count_of(1_234_567)], ["7", "1,000", "1,234,567"]);
    assert_eq!(spark(&[0.0, 4.0, 8.0], 3), "▁▄█");
    assert_eq!(spark(&[8.0; 100], 10).chars().count(), 10);
}
