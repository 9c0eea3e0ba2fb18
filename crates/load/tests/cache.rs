//! Cache loads against a small memcached whose mistakes are known.

mod world;

use std::sync::atomic::{AtomicU64, Ordering};

use load::Plan;
use load::plan::{Arrivals, CacheProtocol};
use world::{cache_of, cache_plan, cache_server, over_both};

#[test]
fn populated_keys_are_found_and_their_values_right_over_both_protocols() {
    for protocol in [CacheProtocol::Text, CacheProtocol::Meta] {
        for (keys_per_get, depth) in [(1, 1), (1, 8), (5, 2)] {
            let server = cache_server(|_| {});
            let mut plan = Plan {
                depth,
                threads: 2,
                ..cache_plan(server.address)
            };
            cache_of(&mut plan).protocol = protocol;
            cache_of(&mut plan).keys_per_get = keys_per_get;
            over_both(&plan, |outcome| {
                let total = &outcome.total;
                assert_eq!(total.errors.total(), 0, "{:?}", total.errors);
                let gets = total.classes[0].service_ns.len();
                let sets = total.classes[1].service_ns.len();
                assert!(gets > 0 && sets > 0 && gets > sets, "{gets} {sets}");
                assert_eq!(
                    (total.hits, total.misses),
                    (gets * u64::from(keys_per_get), 0)
                );
            });
        }
    }
}

#[test]
fn keys_that_nobody_stored_are_misses() {
    let server = cache_server(|_| {});
    let mut plan = cache_plan(server.address);
    cache_of(&mut plan).populate = false;
    cache_of(&mut plan).set_percent = 0.0;
    for protocol in [CacheProtocol::Text, CacheProtocol::Meta] {
        cache_of(&mut plan).protocol = protocol;
        over_both(&plan, |outcome| {
            let total = &outcome.total;
            assert_eq!((total.hits, total.misses), (0, total.replies()));
            assert!(total.replies() > 0);
        });
    }
}

#[test]
fn a_changed_value_is_wrong_bytes() {
    let stored = AtomicU64::new(0);
    let server = cache_server(move |value| {
        if stored.fetch_add(1, Ordering::SeqCst).is_multiple_of(3) {
            value.push(b'!');
        }
    });
    let mut plan = cache_plan(server.address);
    for protocol in [CacheProtocol::Text, CacheProtocol::Meta] {
        cache_of(&mut plan).protocol = protocol;
        over_both(&plan, |outcome| {
            assert!(outcome.total.errors.wrong_bytes > 0);
            assert!(outcome.total.replies() > 0);
        });
    }
}

#[test]
fn values_that_nobody_looks_at_are_dropped_unread() {
    let server = cache_server(|_| {});
    let mut plan = Plan {
        verify: false,
        ..cache_plan(server.address)
    };
    cache_of(&mut plan).value_bytes = "200000".parse().unwrap();
    cache_of(&mut plan).keys = 10;
    for protocol in [CacheProtocol::Text, CacheProtocol::Meta] {
        cache_of(&mut plan).protocol = protocol;
        over_both(&plan, |outcome| {
            assert!(outcome.total.hits > 0 && outcome.total.misses == 0);
            assert_eq!(
                outcome.total.errors.total(),
                0,
                "{:?}",
                outcome.total.errors
            );
        });
    }
}

#[test]
fn an_open_loop_of_gets_and_sets_answers_every_arrival() {
    let server = cache_server(|_| {});
    let plan = Plan {
        arrivals: Arrivals::Poisson { rate_per_s: 1000.0 },
        ..cache_plan(server.address)
    };
    over_both(&plan, |outcome| {
        assert_eq!(outcome.total.replies(), outcome.total.intended);
        assert!(outcome.total.intended > 100);
    });
}

#[test]
fn an_error_of_the_server_is_a_reply_of_its_class() {
    let server = world::server(|mut stream, _| {
        use std::io::{BufRead, BufReader, Write};
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        for _ in lines.map_while(Result::ok) {
            if stream.write_all(b"SERVER_ERROR out of memory\r\n").is_err() {
                return;
            }
        }
    });
    let mut plan = cache_plan(server.address);
    cache_of(&mut plan).populate = false;
    cache_of(&mut plan).set_percent = 0.0;
    over_both(&plan, |outcome| {
        let replies = outcome.total.replies();
        assert_eq!(
            outcome.total.classes[0].replies_by_status,
            [0, 0, 0, 0, 0, replies]
        );
        assert_eq!((outcome.total.hits, outcome.total.misses), (0, 0));
    });
}
