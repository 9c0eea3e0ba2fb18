//! Refusals before anything is sent, each with a remedy.

use super::{load_says, load_to, said};

/// Each limit is checked at once, with a message. Seen: a rate of 10^12 that never ended, a depth
/// that used all memory, 100 million intervals, and a sum of durations that panicked.
#[test]
fn out_of_range_numbers_are_refused() {
    for more in [
        "--rate 1000000M",
        "--rate 30M",
        "--course 0..1000000M:1s",
        "--sweep 1k,1000000M",
        "--sweep 1..10:1e-300",
        "--depth 3M",
        "--depth 12884901885",
        "-c 12884901885",
        "--idle 12884901885",
        "-t 3072",
        "--interval 1ms -d 3h",
        "--timeout 3000d",
        "--connect-timeout 3000d",
        "-d 1000d",
        "--warm-up 1000d",
        "--connect-rate 0.0000001",
        "--idle-byte-every 3000d",
        "--sweep 1k --repeat 30k",
        "-n 3000000000M",
        "--expect 1800",
        "--backlog 12884901885",
        "--course 5:3000d",
    ] {
        let output = load_to(2, &format!("http http://127.0.0.1:9/ {more}"));
        assert!(!said(&output).contains("panicked"), "{more}: {output:?}");
    }
    for more in [
        "--multi-get 30k",
        "--keys 12884901885",
        "--key-size 750",
        "--value-size 402653184",
        "--exptime 12884901885",
        "--sets 300",
    ] {
        load_to(2, &format!("cache 127.0.0.1:9 {more}"));
    }
}

#[test]
fn wrong_arguments_are_usage_errors() {
    for (words, hint) in [
        ("http ftp://127.0.0.1/", "http://HOST"),
        ("http http://127.0.0.1:1/ --rate fast", "--rate"),
        ("http http://127.0.0.1:1/ --duration 10", "--duration"),
        ("http http://127.0.0.1:1/ --fail-if p99", "--fail-if"),
        ("http http://127.0.0.1:1/ --connections 0", "connection"),
        ("http http://127.0.0.1:1/ --course 10k", "RATE:TIME"),
        ("http http://127.0.0.1:1/ --sessions /nowhere", "/nowhere"),
        ("cache 127.0.0.1:1 --value-size big", "--value-size"),
        ("http", "URL"),
    ] {
        load_says(2, words, hint);
    }
}

/// Seen: `--json out --csv out` left only one of the two files.
#[test]
fn each_output_has_its_own_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out").display().to_string();
    let words = format!("http http://127.0.0.1:1/ --json {file} --csv {file}");
    load_says(2, &words, "one file");
}

#[test]
fn netstack_usage_errors() {
    let own = "--network netstack --device tap:weft0 --address 10.9.0.2/24";
    for (words, hint) in [
        ("--device tap:weft0", "needs --network netstack"),
        ("--network netstack", "needs a --device"),
        (&format!("{own} --gateway there"), "invalid IP address"),
        (&format!("{own} --io epoll"), "--io cannot be combined with"),
        (&format!("{own} --source 10.9.0.2"), "--source cannot be combined"),
        (&format!("{own} --agents 2 --rank 0 --rendezvous x:1"), "agents"),
        (&format!("{own} --threads 2"), "one thread"),
    ] {
        load_says(2, &format!("http http://10.9.0.1/ {words}"), hint);
    }
}

/// Seen: `load idle http://…` and `load http http://127.0.0.1:99999/` failed with "failed to lookup
/// address information"; `-d 0s` with "a run needs a thread, a duration and an interval". Cause:
/// an invalid address went to the resolver as a name; three flags shared one message.
#[test]
fn bad_address_or_time() {
    let url = "http://127.0.0.1:9/";
    let page = "http://127.0.0.1:99999/";
    let no_scheme = "write HOST:PORT, without http://";
    for (words, hint) in [
        (format!("idle {url}"), no_scheme),
        ("cache http://127.0.0.1:9".to_owned(), no_scheme),
        ("cache 127.0.0.1:9/".to_owned(), no_scheme),
        (format!("http {page}"), "'99999' is not a port; write HOST:PORT"),
        ("cache [::1]:0".to_owned(), "'0' is not a port"),
        ("idle 127.0.0.1:http".to_owned(), "'http' is not a port"),
        (format!("http {url} -d 0s"), "--duration must be above 0"),
        (format!("http {url} --interval 0"), "--interval must be above 0"),
        (format!("http {url} --threads 0"), "--threads must be above 0"),
        (format!("http {url} -n 0"), "--requests must be above 0"),
        (format!("http {url} --timeout 0"), "--timeout and --connect-timeout must"),
    ] {
        load_says(2, &words, hint);
    }
}
