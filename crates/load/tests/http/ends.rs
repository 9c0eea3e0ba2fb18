//! Servers that close, fall silent or answer by half.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use load::plan::{Arrivals, Burst, SessionPlan, Sessions, Workload};
use load::verdict::VerdictRow;
use load::{Outcome, Plan};

use crate::world::{
    Then, expect_no_error, http_of, http_plan, http_server, over_both, reply, send,
};

/// Every connection ends after its first reply, unannounced. The next request is lost with it.
#[test]
fn a_server_that_closes_after_every_reply_is_not_praised() {
    let server = http_server(|_, _, stream| {
        reply(stream, b"hello");
        Then::Close
    });
    over_both(&http_plan(server.address, &["/"]), |outcome| {
        assert!(outcome.total.replies() > 0);
        let rows: Vec<VerdictRow> = outcome.faults().into_iter().map(|(row, _)| row).collect();
        assert_eq!(rows, [VerdictRow::Failing], "{:?}", outcome.total.errors);
    });
}

/// Seen: in an open loop over more connections than are busy, a server that closed idle ones (an
/// idle time-out) failed the run. Cause: between two requests nothing was received, so the next one
/// went into a closed connection. Cure: a receive is always under way.
#[test]
fn a_server_that_closes_between_two_requests_is_not_blamed() {
    for idle_ms in [0, 50] {
        let server = http_server(move |_, _, stream| {
            reply(stream, b"hello");
            thread::sleep(Duration::from_millis(idle_ms));
            Then::Close
        });
        // Each connection is asked again after 400 ms.
        let plan = Plan {
            arrivals: Arrivals::Fixed { rate_per_s: 100.0 },
            connections: 40,
            duration: Duration::from_secs(1),
            ..http_plan(server.address, &["/"])
        };
        over_both(&plan, is_not_blamed);
    }
}

fn is_not_blamed(outcome: &Outcome) {
    let total = &outcome.total;
    expect_no_error(outcome);
    assert_eq!(total.replies(), total.intended);
}

/// RFC 9110 15.5.9.
#[test]
fn a_server_that_says_408_before_it_closes_is_not_blamed() {
    for farewells in FAREWELLS {
        let server = http_server(move |_, _, stream| {
            reply(stream, b"hello");
            for part in farewells {
                thread::sleep(Duration::from_millis(10));
                send(stream, part);
            }
            Then::Close
        });
        over_both(&asked_once(server.address), is_not_blamed);
    }
}

/// Seen: a machine that was busy received the first part of a farewell with the reply before it,
/// and blamed the server for the rest. Cure: the first line is looked for there as well.
#[test]
fn nor_is_one_whose_farewell_begins_right_behind_the_reply() {
    let server = http_server(|_, _, stream| {
        send(
            stream,
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello\
              HTTP/1.1 408 Request Timeout\r\nConnec",
        );
        thread::sleep(Duration::from_millis(10));
        send(stream, &LONG_END);
        Then::Close
    });
    over_both(&asked_once(server.address), is_not_blamed);
}

/// No connection is asked twice: its farewell has all the time it takes.
fn asked_once(server: SocketAddr) -> Plan {
    Plan {
        arrivals: Arrivals::Fixed { rate_per_s: 100.0 },
        connections: 50,
        duration: Duration::from_millis(400),
        ..http_plan(server, &["/"])
    }
}

/// Each in the parts in which it is sent.
static FAREWELLS: [&[&[u8]]; 3] = [
    &[b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"],
    // As old HAProxy says it: it ends with the connection.
    &[b"HTTP/1.0 408 Request Time-out\r\nConnection: close\r\n\r\n<html></html>\n"],
    // Longer than a receive.
    &[b"HTTP/1.1 408 Request Timeout\r\nConnec", &LONG_END],
];

/// The end of a head, and a body of unknown length.
static LONG_END: [u8; 20_000] = {
    let mut bytes = [b'x'; 20_000];
    let head = *b"tion: close\r\n\r\n";
    let mut at = 0;
    while at < head.len() {
        bytes[at] = head[at];
        at += 1;
    }
    bytes
};

/// The same in the pause of a session: the pause stays as long as it is.
#[test]
fn a_session_goes_on_after_its_pause_if_the_server_closed_meanwhile() {
    let server = http_server(|_, _, stream| {
        reply(stream, b"hello");
        Then::Close
    });
    let burst = Burst {
        pages: vec![0],
        think: Duration::from_millis(100),
    };
    let mut plan = Plan {
        arrivals: Arrivals::Fixed { rate_per_s: 20.0 },
        connections: 20,
        duration: Duration::from_secs(1),
        ..http_plan(server.address, &["/"])
    };
    plan.workload = Workload::Sessions(Sessions {
        http: http_of(&mut plan).clone(),
        scripts: [SessionPlan {
            bursts: vec![burst; 3],
        }]
        .into(),
    });
    over_both(&plan, |outcome| {
        let total = &outcome.total;
        expect_no_error(outcome);
        assert!(total.sessions > 0);
        // With two pauses of its own, no session of the last 200 ms is over at the end.
        assert!(total.sessions < total.begun, "{}", total.sessions);
        assert_eq!(total.opened, total.replies());
    });
}

/// Seen: of a server that answered on one connection and never on three others, a closed loop that
/// was shorter than its time-out said that the server was the limit. Cause: what was under way at
/// its end was in no figure. Cure: it waits for its last replies, as the open loop does.
#[test]
fn a_closed_loop_does_not_forget_what_was_never_answered() {
    let server = http_server(|_, number, stream| match number {
        0..3 => reply(stream, b"hello"),
        _ => Then::Keep,
    });
    // A time-out that is longer than the run.
    let plan = Plan {
        request_timeout: Duration::from_millis(700),
        ..http_plan(server.address, &["/"])
    };
    over_both(&plan, |outcome| {
        let total = &outcome.total;
        let (timeouts, all) = (total.errors.client_timeout, total.errors.total());
        assert_eq!((total.replies(), timeouts, all), (12, 4, 4));
        let rows: Vec<VerdictRow> = outcome.faults().into_iter().map(|(row, _)| row).collect();
        assert_eq!(rows, [VerdictRow::Failing]);
        assert!(!outcome.stopped_early && outcome.elapsed < plan.request_timeout);
    });
}

#[test]
fn half_replies_and_resets_are_counted_and_do_not_stop_the_run() {
    let server = http_server(|_, number, stream| {
        if number == 3 {
            send(
                stream,
                b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
            );
            return Then::Close;
        }
        reply(stream, b"hello")
    });
    over_both(&http_plan(server.address, &["/"]), |outcome| {
        assert!(
            outcome.total.errors.short_reply > 0,
            "{:?}",
            outcome.total.errors
        );
        assert!(outcome.total.replies() > 0);
        assert!(!outcome.stopped_early);
    });
}

#[test]
fn a_silent_server_is_a_time_out_and_never_a_hang() {
    let server = http_server(|_, _, _| Then::Keep);
    let plan = Plan {
        request_timeout: Duration::from_millis(50),
        ..http_plan(server.address, &["/"])
    };
    over_both(&plan, |outcome| {
        assert!(
            outcome.total.errors.client_timeout >= 4,
            "{:?}",
            outcome.total.errors
        );
        assert_eq!(outcome.total.replies(), 0);
    });
    let open_loop = Plan {
        arrivals: Arrivals::Fixed { rate_per_s: 100.0 },
        ..plan
    };
    over_both(&open_loop, |outcome| {
        let errors = outcome.total.errors;
        assert_eq!(errors.client_timeout, outcome.total.intended, "{errors:?}");
    });
}
