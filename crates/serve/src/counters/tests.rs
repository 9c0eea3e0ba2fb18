use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::io::Errno;

use super::cells::NAMED_CELLS;
use super::{AcceptError, Closed, Counters};
use crate::metrics::MetricsWriter;

#[test]
fn every_event_is_counted() {
    let counters = Counters::default();
    for reason in Closed::ALL {
        counters.accepted();
        counters.closed(reason);
    }
    counters.accepted();
    counters.received(100);
    counters.sent(1000);
    counters.sent(24);
    counters.worked();
    counters.accept_paused();

    let seen = counters.snapshot();
    assert!(Closed::ALL.iter().all(|reason| seen.closed(*reason) == 1), "{seen:?}");
    assert_eq!((seen.accepted(), seen.active(), seen.closed_total()), (14, 1, 13));
    assert_eq!((seen.receives(), seen.bytes_received()), (1, 100));
    assert_eq!((seen.sends(), seen.bytes_sent()), (2, 1024));
    assert_eq!((seen.work_calls(), seen.accept_pauses()), (1, 1));
}

#[test]
fn classes_of_accept_errors() {
    let counters = Counters::default();
    let check = |errno: Errno, class: AcceptError| {
        let before = counters.snapshot().accept_errors(class);
        assert_eq!(counters.accept_failed(&errno.into()), class);
        assert_eq!(counters.snapshot().accept_errors(class), before + 1);
    };
    check(Errno::MFILE, AcceptError::Descriptors);
    check(Errno::NFILE, AcceptError::Descriptors);
    check(Errno::CONNABORTED, AcceptError::Aborted);
    check(Errno::HOSTUNREACH, AcceptError::Aborted);
    check(Errno::NOBUFS, AcceptError::Memory);
    check(Errno::NOMEM, AcceptError::Memory);
    check(Errno::BADF, AcceptError::Other);
}

#[test]
fn counts_of_ended_threads_are_kept() {
    let counters = Counters::default();
    for _ in 0..3 {
        std::thread::scope(|scope| {
            scope.spawn(|| counters.received(5)).join().unwrap();
        });
    }
    assert_eq!(counters.snapshot().bytes_received(), 15);
    assert_eq!(counters.registry.live_count(), 0, "cells of ended threads are given back");
}

#[test]
fn servers_in_one_process_count_separately() {
    let one = Counters::default();
    let other = Counters::default();
    one.accepted();
    other.sent(7);
    assert_eq!((one.snapshot().accepted(), one.snapshot().bytes_sent()), (1, 0));
    assert_eq!((other.snapshot().accepted(), other.snapshot().bytes_sent()), (0, 7));
}

#[test]
fn accepted_is_active_plus_closed() {
    // Connections are accepted by one thread and closed by another, as fibers and workers do.
    const CONNECTIONS: u64 = 20_000;
    let counters = Counters::default();
    let done = AtomicBool::new(false);
    let (hand_over, take_over) = std::sync::mpsc::sync_channel(16);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let hand_over = hand_over;
            for number in 0..CONNECTIONS {
                counters.accepted();
                hand_over.send(number as usize).unwrap();
            }
        });
        scope.spawn(|| {
            for number in take_over {
                counters.closed(Closed::ALL[number % Closed::ALL.len()]);
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            let seen = counters.snapshot();
            // Connections in the channel, in a thread's hands, and events between two loads of a
            // snapshot only make `accepted` larger.
            assert_eq!(seen.accepted(), seen.active() + seen.closed_total());
            std::thread::yield_now();
        }
    });
    let seen = counters.snapshot();
    assert_eq!((seen.accepted(), seen.active()), (CONNECTIONS, 0));
}

#[test]
fn every_count_is_in_the_metrics() {
    let counters = Counters::default();
    counters.accepted();
    let mut out = MetricsWriter::default();
    counters.snapshot().write_to(&mut out);
    let text = String::from_utf8(out.finish()).unwrap();
    assert!(text.contains("\nweft_connections_accepted_total 1\n"), "{text}");
    assert!(text.contains("\nweft_connections_active 1\n"), "{text}");
    assert!(text.contains("{reason=\"timeout_head\"} 0\n"), "{text}");
    assert!(text.contains("{class=\"emfile\"} 0\n"), "{text}");
    let samples = text.lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(
        samples, NAMED_CELLS,
        "one sample for each named cell but the sum of durations, and one for active"
    );
}

#[test]
fn buckets_of_reply_durations() {
    // A value on the bound is within it, as Prometheus' `le` says.
    let counters = Counters::default();
    for (count, us) in [(1, 0), (1, 100), (1, 101), (1, 60_000_000), (2, 60_000_001)] {
        counters.replied(count, Duration::from_micros(us), 0);
    }
    let mut out = MetricsWriter::default();
    counters.snapshot().write_durations_to("t", "Time.", &mut out);
    let text = String::from_utf8(out.finish()).unwrap();
    for line in [
        "# TYPE t histogram",
        "t_bucket{le=\"0.0001\"} 2",
        "t_bucket{le=\"0.00025\"} 3",
        "t_bucket{le=\"10\"} 3",
        "t_bucket{le=\"60\"} 4",
        "t_bucket{le=\"+Inf\"} 6",
        "t_sum 180.000203",
        "t_count 6",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} in {text}");
    }
}
