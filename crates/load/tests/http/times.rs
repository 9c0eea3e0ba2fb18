//! Due times of requests, and their latency.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use load::plan::Arrivals;
use load::{Plan, Tally};

use crate::world::{Then, http_plan, http_server, over_both, over_both_until, reply, run};

#[test]
fn full_backlog_counts_as_missed() {
    let server = http_server(|_, _, _| Then::Keep);
    let plan = Plan {
        connections: 2,
        backlog_max: 5,
        request_timeout: Duration::from_millis(400),
        arrivals: Arrivals::Fixed { rate_per_s: 1000.0 },
        ..http_plan(server.address, &["/"])
    };
    over_both(&plan, |outcome| {
        let total = &outcome.total;
        assert!(total.missed > 200, "{}", total.missed);
        assert_eq!(total.backlog_max, 5);
        assert_eq!(total.intended, total.missed + total.errors.client_timeout + total.replies());
        assert_eq!(outcome.offered_rate_per_s, Some(1000.0));
    });
}

#[test]
fn warm_up_is_not_measured() {
    let server = http_server(|_, _, stream| reply(stream, b"hello"));
    let plan = Plan {
        warm_up: Duration::from_millis(200),
        arrivals: Arrivals::Fixed { rate_per_s: 1000.0 },
        ..http_plan(server.address, &["/"])
    };
    over_both(&plan, |outcome| {
        assert_eq!(outcome.total.intended, 300);
        assert_eq!(server.requests.swap(0, Ordering::SeqCst), 500);
        assert!(outcome.total.replies() <= 300);
    });
}

/// Seen: a server beyond its knee answered 40,000 requests per second, and the report of a short
/// run said 0: all replies were to requests of the warm-up, whose delay is not measured. They are
/// the server's work in the measured time, and count in its rate.
#[test]
fn achieved_rate_counts_measured_time() {
    let server = http_server(|_, _, stream| {
        thread::sleep(Duration::from_millis(5));
        reply(stream, b"hello")
    });
    // At least 320 requests wait at the end of the warm-up: more than are answered afterwards.
    let plan = Plan {
        connections: 1,
        warm_up: Duration::from_millis(400),
        arrivals: Arrivals::Fixed { rate_per_s: 1000.0 },
        ..http_plan(server.address, &["/"])
    };
    let some_are_answered = |total: &Tally| total.carried > 0;
    over_both_until(&plan, some_are_answered, |outcome| {
        let total = &outcome.total;
        let all = outcome.achieved_rate_per_s() * outcome.elapsed.as_secs_f64();
        let answered = total.replies() + total.carried;
        assert!((all - answered as f64).abs() < 0.5, "{all} of {answered}");
        let intervals = load::report::figures(outcome).intervals;
        let is_shown = intervals.iter().any(|one| one.achieved_per_s > 0.0);
        assert!(is_shown, "{intervals:?}");
    });
}

/// The reason for the open loop: a server that stops for a while stops a closed loop as well, which
/// then finds hardly any slow request. Counted from the intended times, all requests that should
/// have been sent meanwhile are slow.
#[test]
fn server_pause_shows_in_intended_latency() {
    const PAUSE: Duration = Duration::from_millis(200);
    let begun = Instant::now();
    let server = http_server(move |_, _, stream| {
        let into = begun.elapsed().as_millis() % 1000;
        if into < PAUSE.as_millis() {
            thread::sleep(PAUSE - Duration::from_millis(into as u64));
        }
        reply(stream, b"hello")
    });
    let plan = Plan {
        connections: 1,
        duration: Duration::from_secs(3),
        arrivals: Arrivals::Fixed { rate_per_s: 400.0 },
        ..http_plan(server.address, &["/"])
    };
    let began = Instant::now();
    let class = &run(&plan).total.classes[0];
    let lasted_ns = began.elapsed().as_nanos() as f64;
    let responses = &class.response_ns;
    let services = &class.service_ns;
    assert_eq!((responses.len(), services.len()), (1200, 1200));
    // Bounds that hold on any machine, however busy. A fifth of all requests fall into pauses: the
    // slowest hundredth waits for nearly a whole pause.
    let response_p99 = responses.value_at_quantile(0.99);
    assert!(response_p99 > 150_000_000, "{response_p99}");
    // One request at a time is in flight, so none waits for another.
    let service_ns = services.mean() * services.len() as f64;
    assert!(service_ns <= lasted_ns * 1.001, "{service_ns} {lasted_ns}");
}

/// Bounds that hold on any machine, however busy. The server delays each request, so each quantile
/// is at least that of its own delays. A connection of a closed loop waits for one reply at a time,
/// so the times of a connection add up to at most the length of the run; an overestimate would
/// exceed that.
#[test]
fn percentiles_match_server_delays() {
    const CONNECTIONS: u32 = 8;
    const REQUESTS: u64 = 800;
    // The server measures its actual delay of each request.
    let delays: Arc<std::sync::Mutex<Vec<u64>>> = Arc::default();
    let seen = delays.clone();
    let server = http_server(move |_, number, stream| {
        let begun = Instant::now();
        thread::sleep(Duration::from_millis(if number % 3 == 2 { 20 } else { 5 }));
        let took_ns = begun.elapsed().as_nanos() as u64;
        seen.lock().unwrap().push(took_ns);
        reply(stream, b"hello")
    });
    let plan = Plan {
        connections: CONNECTIONS,
        requests_max: Some(REQUESTS),
        duration: Duration::from_secs(60),
        ..http_plan(server.address, &["/"])
    };
    let begun = Instant::now();
    let outcome = run(&plan);
    let waited_ns_max = begun.elapsed().as_nanos() as f64 * f64::from(CONNECTIONS);
    let mut delays = std::mem::take(&mut *delays.lock().unwrap());
    delays.sort_unstable();
    let service = &outcome.total.classes[0].service_ns;
    assert_eq!((service.len(), delays.len() as u64), (REQUESTS, REQUESTS));
    let at = |quantile: f64| {
        let rank = (quantile * delays.len() as f64).ceil() as usize;
        delays[rank.clamp(1, delays.len()) - 1]
    };
    // The histogram is precise to one part in a thousand.
    for quantile in [0.1, 0.3, 0.5, 0.75, 0.85, 0.99, 1.0] {
        let client_ns = service.value_at_quantile(quantile);
        let least = at(quantile);
        assert!(client_ns >= least - least / 1000, "{quantile}: {client_ns} below {least}");
    }
    let waited_ns = service.mean() * service.len() as f64;
    assert!(waited_ns <= waited_ns_max * 1.001, "{waited_ns} ns of waiting in {waited_ns_max}");
}
