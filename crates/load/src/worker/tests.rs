//! Promises of a worker that cannot be tested with a real server.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;

use super::*;
use crate::io::Kernel;
use crate::plan::{Burst, Choice, Http, Io, Page, SessionPlan, Sessions};

fn http_plan(target: SocketAddr) -> Plan {
    Plan {
        targets: vec![target.into()],
        workload: Workload::Http(Http {
            authority: target.to_string(),
            method: "GET".to_owned(),
            pages: [Page::new("/")].into(),
            choice: Choice::InTurn,
            headers: Vec::new(),
            body: Arc::new([]),
            requests_per_connection: None,
        }),
        connections: 1,
        ..Plan::default()
    }
}

fn worker(plan: &Plan) -> Worker<'_> {
    worker_over(Io::Epoll, plan)
}

fn worker_over(io: Io, plan: &Plan) -> Worker<'_> {
    let share = Share { thread: 0, threads: 1 };
    let times = RunTimes { warm_up_ns: 0, end_ns: 1_000_000_000, interval_ns: 1_000_000_000 };
    let kernel = Kernel::choose(io, 1024).unwrap();
    let backend = kernel.open(plan.connections).unwrap();
    Worker::new(plan, &share, times, &RenderedRequests::of(plan), backend)
}

/// Seen: no web server recovered from an overload; each dipped every 1.2 s, the time in which 2,000
/// connections had their five requests each. Cause: only first lifetimes differed, and the overload
/// had synchronised the opening of connections. Cure: each lifetime is drawn, and may end after any
/// request.
#[test]
fn lifetimes_differ_between_connections() {
    const COUNT: u32 = 100;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let lifetimes = |seed| {
        let mut plan = Plan {
            connections: COUNT,
            arrivals: Arrivals::Fixed { rate_per_s: 1.0 },
            seed,
            ..http_plan(listener.local_addr().unwrap())
        };
        let Workload::Http(http) = &mut plan.workload else {
            panic!("not an HTTP plan");
        };
        http.requests_per_connection = Some(5);
        let mut worker = worker(&plan);
        let mut open_all = || {
            let open = |slot| {
                worker.connect(slot);
                worker.connected(slot, 0);
                worker.connections[slot as usize].requests_max
            };
            let lifetimes: Vec<u32> = (0..COUNT).map(open).collect();
            (0..COUNT).for_each(|slot| worker.fail(slot, |_| {}));
            worker.finish_closes();
            lifetimes
        };
        [open_all(), open_all()]
    };
    let [first, second] = lifetimes(1);
    for of in [&first, &second] {
        for turn in 1..=5 {
            let ended = of.iter().filter(|&&requests_max| requests_max == turn).count();
            assert!((1..=40).contains(&ended), "{ended} after {turn}: {of:?}");
        }
    }
    assert_ne!(first, second, "each connection has a lifetime of its own");
    assert_eq!(lifetimes(1), [first, second], "the seed replays them");
    assert_ne!(lifetimes(1), lifetimes(2));
}

/// Seen: at its end a run that waited for its last replies used a whole core, for minutes with a
/// long time-out. Cause: each iteration waited until the end of the last interval, which had
/// passed. Cure: it waits for replies and the time-out alone.
#[test]
fn drain_sleeps() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let plan = http_plan(listener.local_addr().unwrap());
    let mut worker = worker(&plan);
    worker.opening = 0..0;
    worker.now_ns = worker.times.end_ns + 1;
    worker.is_ending = true;
    assert!(worker.wait_ns() > WAIT_MAX_NS / 2);
}

/// Seen: an open loop with idle connections failed if the server closed these (idle time-out).
/// Cause: nothing was received between two requests, so the next one went into a closed connection.
/// Cure: a receive is always in progress.
#[test]
fn close_between_requests_is_noticed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let plan = Plan {
        arrivals: Arrivals::Fixed { rate_per_s: 1.0 },
        ..http_plan(listener.local_addr().unwrap())
    };
    // Answers one request per connection, and closes it on command.
    let (close, is_told) = mpsc::channel::<()>();
    let server = thread::spawn(move || {
        for connection in listener.incoming().take(4) {
            let mut connection = connection.unwrap();
            let mut head = BufReader::new(connection.try_clone().unwrap()).lines();
            while !head.next().unwrap().unwrap().is_empty() {}
            let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
            connection.write_all(reply).unwrap();
            is_told.recv().unwrap();
        }
    });
    for io in [Io::Auto, Io::Epoll] {
        let mut worker = worker_over(io, &plan);
        worker.opening = 0..0;
        worker.next_arrival_ns = u64::MAX;
        worker.is_ending = true;
        let turn_until = |worker: &mut Worker<'_>, what, is_so: &dyn Fn(&Worker<'_>) -> bool| {
            let deadline = Instant::now() + Duration::from_secs(20);
            while !is_so(worker) {
                assert!(Instant::now() < deadline, "{io:?}: {what}");
                worker.update_clock();
                worker.run_once().unwrap();
            }
        };
        for asked in 1..=2 {
            worker.assign(0, worker.now_ns);
            turn_until(&mut worker, "no reply", &|it| it.tally.replies() == asked);
            close.send(()).unwrap();
            // No request meanwhile.
            let is_closed = |it: &Worker<'_>| it.connections[0].state == ConnectionState::Closed;
            turn_until(&mut worker, "the close is not noticed", &is_closed);
            let errors = worker.tally.errors;
            assert_eq!(errors.total(), 0, "{io:?}: {errors:?}");
        }
    }
    server.join().unwrap();
}

/// Seen: no figure counted a time-out of the network between two requests. Cause: every error there
/// counted as a close. Cure: only a reset does.
#[test]
fn reset_between_requests_is_a_close() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let plan = http_plan(listener.local_addr().unwrap());
    for (error, counted) in
        [(libc::ECONNRESET, 0), (libc::ETIMEDOUT, 1), (libc::EHOSTUNREACH, 1), (libc::ENOMEM, 1)]
    {
        let mut worker = worker(&plan);
        worker.connections[0].state = ConnectionState::Open;
        worker.connections[0].reading = Reading::Read;
        worker.received(0, -error);
        assert_eq!(worker.connections[0].state, ConnectionState::Closing);
        assert_eq!(worker.tally.errors.total(), counted, "{error}");
    }
}

/// Seen: a server that closed connections in the pauses of sessions had shorter response times.
/// Cause: after a reconnection, requests counted from its completion. Cure: they count from their
/// due time.
#[test]
fn reconnect_counts_in_response_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut plan = http_plan(listener.local_addr().unwrap());
    let Workload::Http(http) = &plan.workload else {
        panic!("not an HTTP plan");
    };
    let burst = Burst { pages: vec![0], think: Duration::from_millis(1) };
    plan.workload = Workload::Sessions(Sessions {
        http: http.clone(),
        scripts: Arc::new([SessionPlan { bursts: vec![burst; 2] }]),
    });
    plan.arrivals = Arrivals::Fixed { rate_per_s: 1.0 };
    for is_ending in [false, true] {
        let mut worker = worker(&plan);
        worker.assign(0, 1_000);
        worker.now_ns = 2_000;
        worker.connected(0, 0);
        let first = worker.connections[0].in_flight.pop_front().unwrap();
        assert_eq!((first.intended_ns, first.sent_ns), (1_000, 2_000));
        worker.in_flight_total -= 1;
        worker.after_replies(0);
        let due_ns = 2_000 + 1_000_000;
        assert_eq!(worker.connections[0].wake_ns, due_ns);
        // The server closes.
        worker.received(0, 0);
        worker.finish_closes();
        assert_eq!(worker.connections[0].state, ConnectionState::Closed);
        // A session that has begun goes on after the measured time.
        worker.is_ending = is_ending;
        worker.now_ns = due_ns + 5;
        worker.wake_due();
        assert_eq!(worker.connections[0].state, ConnectionState::Connecting);
        worker.now_ns = due_ns + 700;
        worker.connected(0, 0);
        let second = worker.connections[0].in_flight[0];
        assert_eq!((second.intended_ns, second.sent_ns), (due_ns, due_ns + 700));
    }
}
