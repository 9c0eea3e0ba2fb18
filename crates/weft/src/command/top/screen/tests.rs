use std::path::Path;
use std::{fs, io};

use super::super::overview::Reading;
use super::super::scrape::Scrape;
use super::*;
use crate::paint::{Color, decide};

const METRICS: &str = r#"
weft_build_info{version="0.1.0"} 1
process_start_time_seconds 1000
process_cpu_seconds_total 100
process_resident_memory_bytes 13000000
process_open_fds 49
process_max_fds 20000
weft_config_last_reload_successful 0
weft_tls_certificate_not_after_seconds{certificate="new.pem"} 99999999
weft_tls_certificate_not_after_seconds{certificate="old.pem"} 5999
weft_tls_certificate_not_after_seconds{certificate="site.pem"} 871000
weft_received_bytes_total 10000000
weft_sent_bytes_total 200000000
weft_connections_active 1032
weft_connections_lingering 3
weft_connections_accepted_total 4000
weft_connections_closed_total{reason="peer"} 2900
weft_connections_closed_total{reason="no_memory"} 20
weft_accept_pauses_total 0
weft_stage_queue_full_total{stage="read"} 7
weft_stage_queue_length{stage="read",queue="0"} 2
weft_stage_queue_length{stage="read",queue="1"} 3
weft_connection_memory_bytes 37696
weft_connection_memory_max_bytes 3159564288
weft_file_buffers_bytes 0
weft_file_buffers_max_bytes 67108864
weft_jobs_waiting 0
weft_http_replies_total{status="200"} 90000
weft_http_replies_total{status="206"} 10000
weft_http_replies_total{status="404"} 5
weft_http_request_duration_seconds_bucket{le="0.0001"} 60000
weft_http_request_duration_seconds_bucket{le="0.0025"} 99900
weft_http_request_duration_seconds_bucket{le="+Inf"} 100005
weft_http_request_duration_seconds_sum 20.5
weft_http_request_duration_seconds_count 100005
weft_site_hits_total 99
weft_site_misses_total 1
weft_fibers_by_state{state="accept"} 49
weft_fibers_by_state{state="between steps"} 1000
weft_fibers_by_state{state="send"} 32
weft_thread_cpu_seconds_total{thread="processor-0"} 70
weft_thread_cpu_seconds_total{thread="processor-1"} 30
weft_thread_cpu_seconds_total{thread="monitor"} 0
"#;

const PATHS: &str = r#"{"paths":[
    {"path":"/index.html","replies":1000,"body_bytes":612000},
    {"path":"/evil\u001b[2J\u202e/an-exceedingly-long-path-that-no-window-can-show-whole/anyway/and-on","replies":5,"body_bytes":0},
    {"path":"example.org/video.mp4","replies":50000,"body_bytes":52428800000}]}"#;

/// A server 5,000 s after its start.
fn overview(metrics: &str) -> Overview {
    let now = Reading {
        scrape: Scrape::parse(metrics, 7.0).unwrap(),
        paths: serde_json::from_str(PATHS).unwrap(),
        unix_s: 6000.0,
    };
    Overview::new("127.0.0.1:9090", None, &now)
}

fn shown(overview: &Overview, view: &View, size: (usize, usize)) -> String {
    let painted = |color| frame(overview, view, size, decide(color, &io::stdout()));
    let plain = painted(Color::Never);
    assert_eq!(plain.len(), size.1);
    // Colours do not change columns.
    for (plain, painted) in plain.iter().zip(painted(Color::Always)) {
        assert!(plain.chars().count() <= size.0, "{plain}");
        assert_eq!(columns_of(&painted), plain.chars().count(), "{painted:?}");
    }
    let lines = plain.iter().map(|line| line.trim_end());
    lines.collect::<Vec<_>>().join("\n")
}

/// Compares with a file of this folder; `UPDATE_SCREENS=1 cargo test` writes it.
#[track_caller]
fn check(shown: &str, name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/command/top/screen");
    if std::env::var_os("UPDATE_SCREENS").is_some() {
        fs::write(folder.join(name), shown.to_owned() + "\n").unwrap();
    }
    let expected = fs::read_to_string(folder.join(name)).unwrap();
    assert!(shown == expected.trim_end(), "it is\n{shown}");
}

#[test]
fn screen_of_80_by_24() {
    let shown = shown(&overview(METRICS), &View::default(), (80, 24));
    check(&shown, "80x24.txt");
}

#[test]
fn screen_of_120_by_40() {
    let view = View { section: 1, is_paused: true, ..View::default() };
    let shown = shown(&overview(METRICS), &view, (120, 40));
    check(&shown, "120x40.txt");
}

#[test]
fn server_that_does_not_answer() {
    let view = View {
        error: Some("Connection refused (os error 111); trying again".to_owned()),
        ..View::default()
    };
    let text = shown(&overview(METRICS), &view, (80, 24));
    assert!(text.lines().next().unwrap().ends_with(" no answer"), "{text}");
    assert!(text.contains("\nerror        Connection refused (os error 111); trying again\n"));
}

#[test]
fn any_size_and_any_metrics_can_be_shown() {
    let help = View { has_help: true, ..View::default() };
    let least = "weft_build_info{version=\"0.1.0\"} 1\n";
    for overview in [overview(METRICS), overview(least), overview("memcached_up 1\n")] {
        for size in [(1, 1), (13, 2), (40, 10), (79, 24), (109, 50), (110, 9), (400, 100)] {
            for section in 0..TABLES {
                let view = View { section, ..View::default() };
                shown(&overview, &view, size);
            }
            shown(&overview, &help, size);
        }
    }
}

#[test]
fn help_fits_on_80_by_24() {
    let view = View { has_help: true, ..View::default() };
    let text = shown(&overview("weft_build_info{version=\"0.1.0\"} 1\n"), &view, (80, 24));
    HELP.iter().for_each(|line| assert!(text.contains(line), "{line}"));
}

#[test]
fn keys_choose_tables_and_pause() {
    let mut view = View::default();
    let mut press = |key| {
        view.press(key);
        (view.section, view.is_paused)
    };
    assert_eq!(press(KeyPress::Letter(b'3')), (2, false));
    assert_eq!(press(KeyPress::Right), (3, false));
    assert_eq!(press(KeyPress::Right), (0, false));
    assert_eq!(press(KeyPress::Left), (3, false));
    assert_eq!(press(KeyPress::Letter(b'9')), (3, false));
    assert_eq!(press(KeyPress::Letter(b'p')), (3, true));
    assert_eq!(press(KeyPress::Letter(b' ')), (3, false));
}
