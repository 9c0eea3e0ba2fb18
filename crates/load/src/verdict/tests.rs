//! Each row of the table has a run to which it applies, and its neighbour to which it does not.
//!
//! Seen (issue 10 B): a run of nothing but 404 was "the server was the limit", exit 0; so was one
//! in which half of the connections had no descriptor. A stopped server, with a lag of 2 µs, was
//! "the generator was the limit", because a thread had waited for a processor. Sessions in think
//! time were blamed on the generator, and sessions per second compared with replies per second.
//! Cause: one function, which looked at threads first and only at them. Cure: this table.

use super::*;
use crate::Errors;
use crate::outcome::{histogram, record};
use crate::report::tests::sample;

/// An open loop with ten thousand requests and good replies in two seconds.
fn good() -> Outcome {
    sample(&["request"], 1, 10_000)
}

fn of_kind(kind: Kind) -> Outcome {
    let mut outcome = good();
    outcome.asked.kind = kind;
    outcome
}

fn failed(errors: Errors) -> Outcome {
    let mut outcome = good();
    outcome.total.errors = errors;
    outcome
}

/// The same run without replies.
fn empty(errors: Errors) -> Outcome {
    let mut outcome = sample(&["request"], 1, 0);
    outcome.total.errors = errors;
    outcome
}

fn idle(asked: u64, open: u64, closed: u64) -> Outcome {
    let mut outcome = sample(&[], 1, 0);
    outcome.asked.kind = Kind::Idle;
    outcome.asked.idle_connections = asked;
    (outcome.total.idle_open, outcome.total.idle_closed) = (open, closed);
    outcome.total.opened = open + closed;
    outcome
}

/// A class of errors, as its count.
type ErrorClass = fn(&mut Errors) -> &mut u64;

/// Errors of this class alone.
fn only(class: ErrorClass, count: u64) -> Errors {
    let mut errors = Errors::default();
    *class(&mut errors) = count;
    errors
}

#[track_caller]
fn says(outcome: &Outcome, row: VerdictRow, words: &str) {
    let verdict = outcome.verdict();
    assert_eq!(verdict.row, row, "{}", verdict.sentence);
    assert!(verdict.sentence.contains(words), "{}", verdict.sentence);
    assert_eq!(verdict.warnings, Vec::<String>::new());
}

#[track_caller]
fn fails(outcome: &Outcome, rows: &[VerdictRow]) {
    let faults: Vec<VerdictRow> = outcome.faults().into_iter().map(|(row, _)| row).collect();
    assert_eq!(faults, rows);
}

#[test]
fn a_run_in_which_nothing_came_says_why() {
    let cases: [(ErrorClass, &str); 11] = [
        (|errors| &mut errors.tls, "during a handshake"),
        (|errors| &mut errors.refused, "no good reply arrived: 9 × refused; is the server still"),
        (|errors| &mut errors.client_timeout, "the server does not answer"),
        (|errors| &mut errors.fd_unavailable, "ulimit -n"),
        (|errors| &mut errors.address_unavailable, "--source"),
        (|errors| &mut errors.short_reply, "--close"),
        (|errors| &mut errors.bad_reply, "does not speak this protocol"),
        (|errors| &mut errors.wrong_bytes, "not the expected one"),
        (|errors| &mut errors.missing_value, "give it more memory or use fewer --keys"),
        (|errors| &mut errors.socket_timeout, "the network or the system failed"),
        (|errors| &mut errors.other, "the network or the system failed"),
    ];
    for (class, words) in cases {
        let outcome = empty(only(class, 9));
        says(&outcome, VerdictRow::NoReplies, words);
        fails(&outcome, &[VerdictRow::NoReplies]);
    }
    says(&empty(Errors::default()), VerdictRow::NoReplies, "no request was due");
    let mut silent = empty(Errors::default());
    silent.total.sent = 1;
    says(&silent, VerdictRow::NoReplies, "no reply arrived within 2.0 s; sent: 1 request");
    let mut waiting = empty(Errors::default());
    waiting.total.intended = 3;
    says(&waiting, VerdictRow::NoReplies, "no reply arrived within 2.0 s; sent: 0 requests");
    says(&idle(10, 0, 0), VerdictRow::NoReplies, "no connection was opened in this time");
    let mut refused = idle(10, 0, 0);
    refused.total.errors.refused = 10;
    says(&refused, VerdictRow::NoReplies, "no connection was opened: 10 × refused");
    assert_eq!(good().without_replies(), None);
    let why = empty(Errors::default()).without_replies();
    assert!(why.unwrap().contains("no request was due"));
}

/// Seen: of a cache that answered SERVER_ERROR `weft load cache` said "check the path, or set the
/// expected statuses with --expect", and of one that closed its connections "use --close". It has
/// no path and no such flags. Cause: the advice was that of HTTP.
#[test]
fn advice_on_a_cache_is_about_caches() {
    let of_cache: [(ErrorClass, &str); 3] = [
        (|errors| &mut errors.unexpected_status, "refuses commands"),
        (|errors| &mut errors.short_reply, "during a reply or in place of one"),
        (|errors| &mut errors.wrong_bytes, "value"),
    ];
    for (class, words) in of_cache {
        let mut outcome = sample(&["get", "set"], 1, 0);
        outcome.total.errors = only(class, 9);
        says(&outcome, VerdictRow::NoReplies, words);
        let said = outcome.verdict().sentence;
        for of_http in ["path", "body", "--expect", "--close"] {
            assert!(!said.contains(of_http), "{said}");
        }
    }
}

/// Seen: of a server that sent two replies to each request, and whose first ones were right, a run
/// said that it did not speak the protocol; of one that demanded a client's certificate, that it
/// closed during a handshake; of a wrong --source, that no ports were left.
#[test]
fn advice_names_each_usual_cause() {
    let cases: [(ErrorClass, &str); 4] = [
        (|errors| &mut errors.reset, "TLS"),
        (|errors| &mut errors.bad_reply, "nothing asked for"),
        (|errors| &mut errors.tls, "client certificate"),
        (|errors| &mut errors.address_unavailable, "no address of this machine"),
    ];
    for (class, words) in cases {
        says(&empty(only(class, 9)), VerdictRow::NoReplies, words);
    }
    let some = failed(only(|errors| &mut errors.address_unavailable, 1));
    says(&some, VerdictRow::Exhausted, "no address of this machine");
}

#[test]
fn wrong_replies_fail_the_run() {
    let mut missing = empty(only(|errors| &mut errors.unexpected_status, 70));
    missing.total.classes[0].replies_by_status[4] = 70;
    says(&missing, VerdictRow::NoReplies, "check the path, or set the expected statuses");
    says(&missing, VerdictRow::NoReplies, "(statuses: 4xx 70)");
    let wrong: [ErrorClass; 4] = [
        |errors| &mut errors.unexpected_status,
        |errors| &mut errors.wrong_bytes,
        |errors| &mut errors.missing_value,
        |errors| &mut errors.bad_reply,
    ];
    for class in wrong {
        let errors = only(class, 1);
        // A single one among ten thousand.
        says(&failed(errors), VerdictRow::WrongReplies, "1 of 10,001 replies was wrong: 1 ×");
        fails(&failed(errors), &[VerdictRow::WrongReplies]);
        assert_eq!(errors.wrong_replies(), 1);
    }
    // Neither the generator's lateness nor time-outs hide wrong replies.
    let mut both = failed(Errors { wrong_bytes: 1, client_timeout: 5_000, ..Errors::default() });
    record(&mut both.total.lag_ns, 60_000_000_000);
    says(&both, VerdictRow::WrongReplies, "1 × wrong bytes");
    fails(&both, &[VerdictRow::WrongReplies, VerdictRow::Failing]);
    assert!(both.generator_limited().is_some());
}

#[test]
fn empty_comparison_fails_the_run() {
    let mut outcome = good();
    outcome.asked.verify = true;
    says(&outcome, VerdictRow::NothingCompared, "no reply had a body to compare");
    fails(&outcome, &[VerdictRow::NothingCompared]);
    outcome.total.misses = 7;
    says(
        &outcome,
        VerdictRow::NothingCompared,
        "no key was found; store the keys first with --populate",
    );
    (outcome.total.misses, outcome.total.hits) = (0, 7);
    says(
        &outcome,
        VerdictRow::NothingCompared,
        "no key was found; store the keys first with --populate",
    );
    outcome.total.compared = 1;
    says(&outcome, VerdictRow::KeptUp, "kept up");
    outcome.asked.verify = false;
    outcome.total.compared = 0;
    fails(&outcome, &[]);
}

#[test]
fn exhaustion_is_the_generators() {
    for kind in [Kind::Open, Kind::Closed, Kind::Sessions] {
        let mut outcome = of_kind(kind);
        outcome.total.sessions_begun = outcome.total.intended;
        outcome.total.errors.fd_unavailable = 5_000;
        says(&outcome, VerdictRow::Exhausted, "descriptors ran out 5,000 times");
        assert!(outcome.generator_limited().unwrap().contains("ulimit -n"));
        fails(&outcome, &[VerdictRow::Failing]);
    }
    let ports = failed(only(|errors| &mut errors.address_unavailable, 1));
    says(&ports, VerdictRow::Exhausted, "ports ran out 1 time; add addresses");
    fails(&ports, &[]);
}

/// An open loop in which two requests in a hundred are late by `lag_ns`.
fn lagging(lag_ns: u64, p99_ns: u64) -> Outcome {
    let mut outcome = good();
    let class = &mut outcome.total.classes[0];
    class.response_ns = histogram();
    (0..10_000).for_each(|_| record(&mut class.response_ns, p99_ns));
    (0..9_800).for_each(|_| record(&mut outcome.total.lag_ns, 100));
    (0..200).for_each(|_| record(&mut outcome.total.lag_ns, lag_ns));
    outcome
}

#[test]
fn lag_decides_in_an_open_loop() {
    says(
        &lagging(5_000_000, 9_000_000),
        VerdictRow::Late,
        "1 % of the requests were sent 5.00 ms late or more",
    );
    let said = lagging(5_000_000, 9_000_000).generator_limited().unwrap();
    assert!(said.contains("5.00 ms late"), "{said}");
    // The histogram knows three digits: a little above and below a millisecond.
    says(&lagging(1_005_000, 2_000_000), VerdictRow::Late, "late");
    says(&lagging(995_000, 2_000_000), VerdictRow::KeptUp, "kept up");
    // A server that stops for 200 ms in a second is not the generator's 5 ms.
    says(&lagging(5_000_000, 200_000_000), VerdictRow::KeptUp, "kept up");
    says(&lagging(21_000_000, 200_000_000), VerdictRow::Late, "late");
    says(&lagging(19_000_000, 200_000_000), VerdictRow::KeptUp, "kept up");
    assert_eq!(lagging(2_000, 200_000_000).generator_limited(), None);
}

fn worked(kind: Kind, cpu_ms: u64, spun_ms: u64, run_delay_ms: u64) -> Outcome {
    let mut outcome = of_kind(kind);
    outcome.total.sessions_begun = outcome.total.intended;
    let rested = outcome.generator.threads[0];
    let second = Duration::from_secs(1);
    let used = ThreadUse {
        cpu: Duration::from_millis(cpu_ms),
        spun: Duration::from_millis(spun_ms),
        run_delay: Duration::from_millis(run_delay_ms),
        elapsed: second,
    };
    outcome.generator.threads = vec![rested, used];
    outcome
}

#[test]
fn busy_thread_limits_closed_loop() {
    says(
        &worked(Kind::Closed, 950, 0, 0),
        VerdictRow::Busy,
        "its thread 1 was busy 95 % of the time",
    );
    says(
        &worked(Kind::Closed, 949, 0, 0),
        VerdictRow::ServerLimited,
        "the server was the bottleneck at 64 connections",
    );
    // Time spent spinning counts as idle.
    says(&worked(Kind::Closed, 990, 100, 0), VerdictRow::ServerLimited, "not the generator");
    let shared = worked(Kind::Closed, 600, 0, 350);
    let verdict = shared.verdict();
    assert_eq!(verdict.row, VerdictRow::Busy);
    assert!(verdict.sentence.contains("was never idle: it worked 60 % of the time"), "{verdict:?}");
    assert_eq!(worked(Kind::Closed, 600, 0, 349).verdict().row, VerdictRow::Undecided);
    // In other loops the lag shows the effect.
    for kind in [Kind::Open, Kind::Sessions] {
        says(
            &worked(kind, 1_000, 0, 0),
            VerdictRow::KeptUp,
            "kept up, and the generator sent on time",
        );
        assert_eq!(worked(kind, 1_000, 0, 0).generator_limited(), None);
    }
}

/// Seen: "the server was the limit, not the generator" beside "the generator waited 64 % of the
/// time for a processor". Cause: only a thread that was never idle counted. Cure: a row of its
/// own.
#[test]
fn long_cpu_wait_is_undecided() {
    let waited = |kind, ms| worked(kind, 200, 0, ms);
    says(
        &waited(Kind::Closed, 640),
        VerdictRow::Undecided,
        "the bottleneck was the server or the generator: thread 1 of the generator waited for a CPU 64 %",
    );
    assert_eq!(waited(Kind::Closed, 640).generator_limited(), None);
    fails(&waited(Kind::Closed, 640), &[]);
    for (ms, row) in [(334, VerdictRow::Undecided), (333, VerdictRow::ServerLimited)] {
        assert_eq!(waited(Kind::Closed, ms).verdict().row, row, "{ms} ms");
    }
    // In other loops the lag shows the effect.
    for kind in [Kind::Open, Kind::Sessions] {
        assert_eq!(waited(kind, 640).verdict().row, VerdictRow::KeptUp);
    }
}

/// Seen: with `--rate 200` the generator was late at 3 % of a CPU; the verdict said "use more
/// --threads", the warning "give it a processor of its own". Cause: one advice for all causes.
#[test]
fn advice_follows_the_cause_of_lag() {
    let late = |cpu_ms, run_delay_ms| {
        let mut outcome = lagging(5_000_000, 9_000_000);
        let threads = worked(Kind::Open, cpu_ms, 0, run_delay_ms).generator.threads;
        outcome.generator.threads = vec![threads[1]];
        outcome
    };
    let processor = "; it waited for a CPU 15 % of the time; give it a CPU of its own";
    says(&late(30, 150), VerdictRow::Late, processor);
    says(&late(800, 150), VerdictRow::Late, processor);
    says(&late(30, 40), VerdictRow::Late, "waited for a CPU 4 %");
    for (cpu_ms, run_delay_ms) in [(30, 20), (900, 99)] {
        let threads = "late or more; use more --threads or machines";
        says(&late(cpu_ms, run_delay_ms), VerdictRow::Late, threads);
    }
}

/// Seen: `weft load cache` without --populate found 0.1 % of the keys, and no message said that
/// the figures were those of misses.
#[test]
fn low_hit_rate_warns() {
    let found = |hits, misses| {
        let mut outcome = of_kind(Kind::Closed);
        (outcome.total.hits, outcome.total.misses) = (hits, misses);
        outcome.verdict()
    };
    let seen = found(1, 999);
    assert_eq!(seen.row, VerdictRow::ServerLimited);
    let [warning] = seen.warnings.as_slice() else {
        panic!("{seen:?}");
    };
    assert!(warning.starts_with("only 0.1 % of the keys were found"), "{warning}");
    assert!(warning.contains("--populate"), "{warning}");
    assert_eq!(found(0, 1).warnings.len(), 1);
    for (hits, misses) in [(100, 900), (1, 0), (0, 0)] {
        assert_eq!(found(hits, misses).warnings, Vec::<String>::new());
    }
}

#[test]
fn waiting_for_a_cpu_warns() {
    for kind in [Kind::Open, Kind::Closed, Kind::Sessions] {
        let verdict = worked(kind, 500, 0, 100).verdict();
        assert_eq!(verdict.row.tone(), Tone::Good, "{verdict:?}");
        assert_eq!(verdict.warnings.len(), 1);
        assert!(verdict.warnings[0].contains("waited for a CPU 10 % of the time"), "{verdict:?}");
        assert_eq!(worked(kind, 500, 0, 99).verdict().warnings, Vec::<String>::new());
        assert_eq!(worked(kind, 500, 0, 100).generator_limited(), None);
    }
    let mut held = worked(Kind::Idle, 500, 0, 100);
    held.total.opened = 1;
    assert_eq!(held.verdict().warnings, Vec::<String>::new(), "nothing was timed");
}

#[test]
fn failing_above_one_percent() {
    let refused = |count| failed(only(|errors| &mut errors.refused, count));
    says(&refused(102), VerdictRow::Failing, "1.0 % of the requests failed: 102 × refused");
    fails(&refused(102), &[VerdictRow::Failing]);
    // 101 of 10,101 are less than 1 %.
    says(&refused(101), VerdictRow::KeptUp, "kept up");
    fails(&refused(101), &[]);
    let mut closed = refused(3_000);
    closed.asked.kind = Kind::Closed;
    says(&closed, VerdictRow::Failing, "23.1 % of the requests failed");
    // One of exactly a hundred is not more than one.
    let mut hundred = sample(&["request"], 1, 99);
    hundred.total.errors.refused = 1;
    fails(&hundred, &[]);
    // Unexpected replies have their own row, and are not counted here again.
    let mut both = refused(60);
    both.total.errors.unexpected_status = 50;
    fails(&both, &[VerdictRow::WrongReplies]);
    // Idle connections that could not be opened.
    let mut idle = idle(100, 98, 0);
    idle.total.errors.reset = 2;
    says(&idle, VerdictRow::Failing, "2.0 % of the requests failed: 2 × reset");
    idle.total.errors.reset = 0;
    fails(&idle, &[]);
}

#[test]
fn lost_idle_connections() {
    says(
        &idle(10, 10, 0),
        VerdictRow::IdleHeld,
        "the server kept 10 idle connections open to the end",
    );
    says(
        &idle(10, 9, 1),
        VerdictRow::IdleLost,
        "9 of 10 idle connections were open at the end; the server closed 1",
    );
    fails(&idle(10, 9, 1), &[]);
    // Some were opened during the warm-up, which is not counted, and none is left.
    for (opened, closed) in [(0, 10), (10, 10), (10, 0)] {
        let mut gone = idle(10, 0, closed);
        gone.total.opened = opened;
        fails(&gone, &[]);
        let row = gone.verdict().row;
        assert_eq!(row, VerdictRow::IdleLost, "{opened} opened, {closed} closed");
    }
    // With active connections beside them, lost idle ones are a warning.
    let mut beside = good();
    (beside.asked.idle_connections, beside.total.idle_open) = (10, 10);
    says(&beside, VerdictRow::KeptUp, "kept up");
    beside.total.idle_open = 9;
    let verdict = beside.verdict();
    assert_eq!(verdict.row, VerdictRow::KeptUp);
    assert!(verdict.warnings[0].contains("9 of 10 idle connections"), "{verdict:?}");
}

#[test]
fn sessions_are_compared_with_sessions() {
    // Two requests for each of 5,000 sessions: more replies than sessions, whatever the server
    // does.
    let sessions = |begun| {
        let mut outcome = of_kind(Kind::Sessions);
        (outcome.total.intended, outcome.total.sessions_begun) = (5_000, begun);
        outcome
    };
    says(&sessions(4_950), VerdictRow::KeptUp, "kept up");
    says(&sessions(4_949), VerdictRow::SessionsWaited, "4,949 of 5,000 sessions began in time");
    says(
        &sessions(4_949),
        VerdictRow::SessionsWaited,
        "all 64 connections were in use; use more --connections",
    );
    assert_eq!(sessions(2_500).achieved_share(), Some(0.5));
    assert_eq!(sessions(2_500).generator_limited(), None);
    fails(&sessions(2_500), &[]);
}

/// An open loop that demanded `intended` requests, of which `waited` found no connection.
fn asked(intended: u64, waited: u64) -> Outcome {
    let mut outcome = good();
    (outcome.total.intended, outcome.total.waited) = (intended, waited);
    outcome
}

#[test]
fn below_the_offered_rate_is_behind() {
    says(&asked(10_100, 0), VerdictRow::KeptUp, "kept up");
    says(
        &asked(10_102, 0),
        VerdictRow::Behind,
        "the server did not keep up: it achieved 99.0 % of the offered rate",
    );
    assert!(!asked(20_000, 200).verdict().sentence.contains("connections"));
    says(&asked(20_000, 201), VerdictRow::Behind, "all 64 connections were busy, so try more");
    // Replies after the end were not achieved.
    let mut drained = good();
    drained.total.drained = 200;
    says(&drained, VerdictRow::Behind, "98.0 % of the offered rate");
    fails(&drained, &[]);
    assert_eq!(of_kind(Kind::Closed).achieved_share(), None);
    assert_eq!(of_kind(Kind::Idle).achieved_share(), None);
    assert_eq!(asked(0, 0).achieved_share(), None);
    let share = asked(20_000, 0).achieved_share().unwrap();
    assert!((share - 0.5).abs() < 1e-3, "{share}");
}

/// Seen: a server that answers every request, each after one second, "did not keep up" in a run of
/// two seconds: replies to the last second's requests come after the end. No reply can come before
/// the fastest one, so that time is not counted against the server.
#[test]
fn slow_server_that_keeps_up() {
    let slow = |fastest_ns| {
        let mut outcome = good();
        let class = &mut outcome.total.classes[0];
        class.service_ns = histogram();
        (0..10_000).for_each(|_| record(&mut class.service_ns, fastest_ns));
        outcome.total.drained = 5_000;
        outcome
    };
    says(&slow(1_000_000_000), VerdictRow::KeptUp, "kept up");
    says(&slow(900_000_000), VerdictRow::Behind, "90.9 % of the offered rate");
    // Slower than the run is long: nothing could have been achieved.
    assert_eq!(slow(3_000_000_000).achieved_share(), None);
}

#[test]
fn unreached_request_count_warns() {
    let mut outcome = good();
    outcome.asked.requests_max = Some(10_000);
    assert_eq!(outcome.verdict().warnings, Vec::<String>::new());
    outcome.asked.requests_max = Some(10_001);
    let warnings = outcome.verdict().warnings;
    assert_eq!(warnings, ["only 10,000 of 10,001 requests were sent before the time was over"]);
    outcome.total.sent += 1;
    assert_eq!(outcome.verdict().warnings, Vec::<String>::new());
}

#[test]
fn too_few_replies_warn() {
    assert_eq!(sample(&["request"], 1, 100).verdict().warnings, Vec::<String>::new());
    let warnings = sample(&["request"], 1, 99).verdict().warnings;
    assert_eq!(warnings, ["99 replies are too few for a p99; measure longer"]);
    let warnings = sample(&["request"], 1, 1).verdict().warnings;
    assert_eq!(warnings, ["1 reply is too few for a p99; measure longer"]);
    assert_eq!(sample(&["request"], 1, 0).verdict().warnings, Vec::<String>::new());
    assert_eq!(idle(10, 10, 0).verdict().warnings, Vec::<String>::new());
}

/// Seen: `only 0 of 1 request were sent`, `1 of 96 replies were wrong`, `all 1 connection were
/// busy`.
#[test]
fn single_things_have_a_singular_verb() {
    let mut unsent = sample(&["request"], 1, 0);
    unsent.asked.requests_max = Some(1);
    let warnings = unsent.verdict().warnings;
    assert_eq!(warnings, ["only 0 of 1 request was sent before the time was over"]);
    let lost = "0 of 1 idle connection was open at the end; the server closed 1";
    says(&idle(1, 0, 1), VerdictRow::IdleLost, lost);
    let one_left = "1 of 10 idle connections was open at the end";
    says(&idle(10, 1, 9), VerdictRow::IdleLost, one_left);
    let mut behind = asked(20_000, 201);
    behind.asked.connections = 1;
    says(&behind, VerdictRow::Behind, "; the only connection was busy, so try more --connections");
    let mut waited = of_kind(Kind::Sessions);
    waited.asked.connections = 1;
    (waited.total.intended, waited.total.sessions_begun) = (5_000, 1);
    says(&waited, VerdictRow::SessionsWaited, "since the only connection was in use; use more");
}

#[test]
fn rows_have_a_tone() {
    for row in [VerdictRow::IdleHeld, VerdictRow::KeptUp, VerdictRow::ServerLimited] {
        assert_eq!(row.tone(), Tone::Good);
    }
    for row in [
        VerdictRow::IdleLost,
        VerdictRow::SessionsWaited,
        VerdictRow::Behind,
        VerdictRow::Undecided,
    ] {
        assert_eq!(row.tone(), Tone::Warning);
    }
    for row in [
        VerdictRow::NoReplies,
        VerdictRow::WrongReplies,
        VerdictRow::NothingCompared,
        VerdictRow::Exhausted,
        VerdictRow::Late,
        VerdictRow::Busy,
        VerdictRow::Failing,
    ] {
        assert_eq!(row.tone(), Tone::Bad);
    }
}

#[test]
fn module_page_lists_every_row() {
    let page = include_str!("../verdict.rs");
    let rows = page.lines().filter(|line| line.starts_with("//! | ")).count();
    // The head, and the three rows of what is well share a line.
    assert_eq!(rows, 1 + TABLE.len() + 1);
}

#[test]
fn drops_of_the_connection_table_are_told() {
    let mut outcome = worked(Kind::Closed, 500, 0, 0);
    outcome.generator.table_drops = 1;
    let warnings = outcome.verdict().warnings;
    assert!(warnings[0].contains("dropped 1 packet whose connections"), "{warnings:?}");
}
