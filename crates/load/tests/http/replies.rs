//! Replies of every kind, right and wrong.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use load::plan::{Arrivals, Expected};
use load::verdict::VerdictRow;
use load::{Plan, Tally};

use crate::world::{
    self, Then, expect_no_error, http_of, http_plan, http_server, over_both, over_both_until,
    reply, send,
};

#[test]
fn replies_of_every_framing() {
    let server = http_server(|first, _, stream| {
        match first.split(' ').nth(1).unwrap() {
        "/chunked" => send(
            stream,
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nA: b\r\n\r\n",
        ),
        "/interim" => send(
            stream,
            b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno",
        ),
        "/empty" => send(stream, b"HTTP/1.1 204 No Content\r\n\r\n"),
        "/old" => {
            send(stream, b"HTTP/1.0 200 OK\r\n\r\nuntil the end");
            Then::Close
        }
        _ => {
            let body = vec![b'x'; 3_000_000];
            reply(stream, &body)
        }
    }
    });
    let paths = ["/chunked", "/interim", "/empty", "/old", "/big"];
    for verify in [false, true] {
        let plan = Plan {
            verify,
            expect: "2xx,404".parse().unwrap(),
            connections: 1,
            requests_max: Some(10),
            duration: Duration::from_secs(60),
            ..http_plan(server.address, &paths)
        };
        over_both(&plan, |outcome| {
            let [_, _, good, _, missing, _] = outcome.total.classes[0].replies_by_status;
            assert_eq!((good, missing), (8, 2));
            expect_no_error(outcome);
            assert!(outcome.total.received_bytes > 3_000_000);
        });
    }
}

#[test]
fn head_reply_has_no_body() {
    let server = http_server(|first, _, stream| {
        assert!(first.starts_with("HEAD "));
        send(stream, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
    });
    let mut plan = http_plan(server.address, &["/"]);
    http_of(&mut plan).method = "HEAD".to_owned();
    over_both(&plan, |outcome| {
        assert!(outcome.total.replies() > 4);
        expect_no_error(outcome);
    });
}

#[test]
fn head_reply_is_not_compared() {
    let mut plan = Plan { verify: true, ..http_plan("127.0.0.1:9".parse().unwrap(), &["/"]) };
    let mut page = http_of(&mut plan).pages[0].clone();
    page.expected = Some(Expected { bytes: 5, crc32: 0 });
    http_of(&mut plan).pages = Arc::new([page]);
    assert!(plan.check().is_ok());
    http_of(&mut plan).method = "HEAD".to_owned();
    let error = plan.check().unwrap_err().to_string();
    assert!(error.contains("no body that --verify could compare"), "{error}");
}

#[test]
fn pipelining_across_announced_close() {
    let server = http_server(|_, number, stream| {
        if number < 9 {
            return reply(stream, b"hello");
        }
        send(stream, b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi");
        Then::Close
    });
    let plan = Plan {
        depth: 4,
        arrivals: Arrivals::Fixed { rate_per_s: 1000.0 },
        ..http_plan(server.address, &["/"])
    };
    over_both(&plan, |outcome| {
        // A reset may overtake the last reply: the server closes with requests unread.
        let lost = outcome.total.errors.reset + outcome.total.errors.short_reply;
        assert_eq!(outcome.total.errors.total(), lost, "{:?}", outcome.total.errors);
        assert_eq!(outcome.total.replies() + lost, outcome.total.intended);
        assert!(outcome.total.replies() > 100);
    });
}

#[test]
fn a_changed_body_is_wrong_bytes() {
    let server = http_server(|_, number, stream| match number % 2 {
        0 => reply(stream, b"hello"),
        _ => reply(stream, b"hallo"),
    });
    let plan = Plan { verify: true, connections: 1, ..http_plan(server.address, &["/"]) };
    over_both(&plan, |outcome| {
        let right = outcome.total.replies();
        let wrong = outcome.total.errors.wrong_bytes;
        assert!(wrong > 0 && right.abs_diff(wrong) <= 1, "{right} {wrong}");
    });
    let mut known = plan.clone();
    let mut page = http_of(&mut known).pages[0].clone();
    page.expected = Some(Expected { bytes: 5, crc32: crc32fast::hash(b"other") });
    http_of(&mut known).pages = Arc::new([page]);
    over_both(&known, |outcome| assert_eq!(outcome.total.replies(), 0));
}

/// Issue 10 B. Seen: a run of nothing but 404 had no errors. Cause: every complete reply was a good
/// one, whatever its status. Cure: unexpected statuses are an error class of their own, beside the
/// replies by status.
#[test]
fn unexpected_status_is_an_error() {
    const STATUSES: [&str; 4] = ["200 OK", "302 Found", "404 Not Found", "503 Busy"];
    let server = http_server(|_, number, stream| {
        let status = STATUSES[number as usize % 4];
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nno");
        send(stream, head.as_bytes())
    });
    let cases: [(&str, &[usize]); 4] =
        [("2xx,3xx", &[4, 5]), ("200,404", &[3, 5]), ("100-599", &[]), ("404", &[2, 3, 5])];
    for (expect, wrong) in cases {
        let plan = Plan {
            expect: expect.parse().unwrap(),
            connections: 1,
            ..http_plan(server.address, &["/"])
        };
        over_both(&plan, |outcome| {
            let total = &outcome.total;
            let by_status = total.classes[0].replies_by_status;
            let errors: u64 = wrong.iter().map(|&digit| by_status[digit]).sum();
            assert_eq!(total.errors.unexpected_status, errors, "{expect}: {by_status:?}");
            assert_eq!(total.errors.total(), errors, "{expect}: {:?}", total.errors);
            assert_eq!(total.replies() + errors, by_status.iter().sum::<u64>());
            let is_failed =
                outcome.faults().iter().any(|(row, _)| *row == VerdictRow::WrongReplies);
            assert_eq!(is_failed, errors > 0);
        });
    }
}

/// wrk does not follow redirects (hey and k6 do), so a server of redirects alone looks fast.
#[test]
fn redirects_are_counted_and_told() {
    const STATUSES: [&str; 4] = ["200 OK", "302 Found", "304 Not Modified", "308 There"];
    let server = http_server(|_, number, stream| {
        let status = STATUSES[number as usize % 4];
        let head = format!("HTTP/1.1 {status}\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n");
        send(stream, head.as_bytes())
    });
    let plan = Plan {
        connections: 1,
        requests_max: Some(200),
        duration: Duration::from_secs(60),
        ..http_plan(server.address, &["/"])
    };
    over_both(&plan, |outcome| {
        expect_no_error(outcome);
        assert_eq!(outcome.total.redirects, 100);
        let warnings = outcome.verdict().warnings;
        let is_told = |warning: &String| warning.contains("100 replies redirected");
        assert!(warnings.iter().any(is_told), "{warnings:?}");
    });
}

/// Seen: a server that replied twice to each request passed, although half of its replies had come
/// before their request was sent.
#[test]
fn unasked_replies_are_bad_replies() {
    let twice = http_server(|_, _, stream| {
        reply(stream, b"hello");
        thread::sleep(Duration::from_millis(10));
        reply(stream, b"hello")
    });
    let early = world::server(|mut stream, _| {
        let _ = reply(&mut stream, b"hello");
        thread::sleep(Duration::from_secs(5));
    });
    let half = world::server(|mut stream, _| {
        let _ = send(&mut stream, b"HTTP/1.1 200 O");
        thread::sleep(Duration::from_secs(5));
    });
    for server in [twice, early, half] {
        // A connection pauses between two requests.
        let plan = Plan {
            arrivals: Arrivals::Fixed { rate_per_s: 40.0 },
            connections: 8,
            request_timeout: Duration::from_millis(200),
            ..http_plan(server.address, &["/"])
        };
        let one_is_seen = |total: &Tally| total.errors.bad_reply > 0;
        over_both_until(&plan, one_is_seen, |outcome| {
            let row = outcome.verdict().row;
            let is_seen = [VerdictRow::WrongReplies, VerdictRow::NoReplies].contains(&row);
            assert!(is_seen, "{row:?}");
        });
    }
}

#[test]
fn what_is_not_http_is_a_bad_reply() {
    let server = http_server(|_, _, stream| send(stream, b"SSH-2.0-OpenSSH_9.2\r\n\r\n"));
    over_both(&http_plan(server.address, &["/"]), |outcome| {
        assert!(outcome.total.errors.bad_reply > 0, "{:?}", outcome.total.errors);
        assert_eq!(outcome.total.replies(), 0);
    });
}
