//! The neighbour cache: its questions, its trust and its limits.

extern crate weftwork_netstack as netstack;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use netstack::neighbor::{
    DELAY, INCOMPLETE_MAX, INCOMPLETE_ROUTERS_MAX, LOCK, NEIGHBORS_MAX, NeighborCache,
    QUESTION_EVERY, QUESTIONS_MAX, Question, REACHABLE_FOR, Resolution, STRANGER_EVERY,
};
use netstack::time::Instant;
use netstack::wire::ethernet::EthernetAddress;
use proptest::collection::vec;
use proptest::prelude::*;

const A: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 0xa]);
const B: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 0xb]);
const START: Instant = Instant::START;

fn host(number: u32) -> IpAddr {
    Ipv4Addr::from(0x0a00_0000 + number).into()
}

fn questions(cache: &mut NeighborCache) -> Vec<Question> {
    std::iter::from_fn(|| cache.question()).collect()
}

fn to_all(target: IpAddr) -> Question {
    Question { target, unicast_to: None }
}

/// A cache that knows host 1 at A, because it has asked.
fn knows_one(at: Instant) -> NeighborCache {
    let mut cache = NeighborCache::default();
    assert_eq!(cache.resolve(at, host(1)), Resolution::Asked);
    cache.advertised(at, host(1), Some(A), true, true);
    assert_eq!(questions(&mut cache), [to_all(host(1))]);
    assert_eq!(cache.resolve(at, host(1)), Resolution::Known(A));
    cache
}

#[test]
fn unknown_neighbours_are_asked_each_second() {
    let mut cache = NeighborCache::default();
    assert_eq!(cache.resolve(START, host(1)), Resolution::Asked);
    assert_eq!(cache.resolve(START, host(1)), Resolution::Asked);
    cache.hold(host(1), b"to____from__", &[b"frame"]);
    let mut now = START;
    for _ in 0..QUESTIONS_MAX {
        assert_eq!(questions(&mut cache), [to_all(host(1))]);
        now += QUESTION_EVERY;
        assert_eq!(cache.wakes_at(), Some(now));
        cache.on_timer(now);
    }
    assert!(cache.is_empty() && cache.wakes_at().is_none());
    assert_eq!(questions(&mut cache), []);
    let counters = cache.counters();
    assert_eq!((counters.absent, counters.frames_dropped), (1, 1));
    // The next use begins anew.
    assert_eq!(cache.resolve(now, host(1)), Resolution::Asked);
}

#[test]
fn the_newest_held_frame_leaves() {
    let mut cache = NeighborCache::default();
    cache.resolve(START, host(1));
    cache.hold(host(1), b"to____from__older", &[]);
    cache.hold(host(1), b"to____from__", &[b"new", b"est"]);
    assert_eq!(cache.released(), None);
    cache.advertised(START, host(1), Some(A), true, true);
    let frame = cache.released().unwrap();
    assert_eq!(frame, [&A.0[..], b"from__newest"].concat());
    cache.reuse(frame);
    assert_eq!(cache.released(), None);
    assert_eq!(cache.counters().frames_dropped, 1);
}

#[test]
fn only_unresolved_neighbours_hold_frames() {
    let mut cache = knows_one(START);
    cache.hold(host(1), b"to____from__", &[]);
    cache.hold(host(2), b"to____from__", &[]);
    assert_eq!((cache.released(), cache.counters().refused), (None, 2));
}

#[test]
fn stale_neighbours_are_probed_while_used() {
    let mut cache = knows_one(START);
    let later = START + REACHABLE_FOR;
    cache.on_timer(later);
    assert_eq!(cache.wakes_at(), None);
    assert_eq!(cache.resolve(later, host(1)), Resolution::Known(A));
    // TCP is given time to confirm it.
    let mut now = later + DELAY;
    assert_eq!(cache.wakes_at(), Some(now));
    for _ in 0..QUESTIONS_MAX {
        cache.on_timer(now);
        let to_one = Question { target: host(1), unicast_to: Some(A) };
        assert_eq!(questions(&mut cache), [to_one]);
        assert_eq!(cache.resolve(now, host(1)), Resolution::Known(A));
        now += QUESTION_EVERY;
    }
    cache.on_timer(now);
    assert_eq!(cache.resolve(now, host(1)), Resolution::Asked);
}

#[test]
fn tcp_progress_stops_probes() {
    let mut cache = knows_one(START);
    let mut now = START;
    for _ in 0..100 {
        now += Duration::from_secs(20);
        cache.on_timer(now);
        assert_eq!(cache.resolve(now, host(1)), Resolution::Known(A));
        cache.confirm(now, host(1));
    }
    assert_eq!(questions(&mut cache), []);
}

#[test]
fn doubted_neighbours_are_probed_at_once() {
    let mut cache = knows_one(START);
    let now = START + Duration::from_secs(1);
    cache.probe(now, host(1));
    cache.probe(now, host(2)); // Nothing is known of it.
    cache.on_timer(now);
    let to_one = Question { target: host(1), unicast_to: Some(A) };
    assert_eq!(questions(&mut cache), [to_one]);
    assert_eq!(cache.resolve(now, host(1)), Resolution::Known(A));
    // Asked already: no second question before its time.
    cache.probe(now, host(1));
    cache.on_timer(now);
    assert_eq!(questions(&mut cache), []);
}

#[test]
fn answers_end_probing() {
    let mut cache = knows_one(START);
    let later = START + REACHABLE_FOR;
    cache.resolve(later, host(1));
    let now = later + DELAY;
    cache.on_timer(now);
    questions(&mut cache);
    cache.advertised(now, host(1), Some(A), true, true);
    cache.on_timer(now + QUESTION_EVERY);
    assert_eq!(questions(&mut cache), []);
}

#[test]
fn unasked_answers_make_no_entry() {
    let mut cache = NeighborCache::default();
    cache.advertised(START, host(1), Some(A), false, true);
    cache.advertised(START, host(1), Some(A), true, true);
    cache.solicited(START, host(1), A, false);
    cache.confirm(START, host(1));
    assert!(cache.is_empty());
}

#[test]
fn questions_to_this_host_make_an_entry() {
    let mut cache = NeighborCache::default();
    cache.solicited(START, host(1), A, true);
    assert_eq!(cache.resolve(START, host(1)), Resolution::Known(A));
    assert_eq!(questions(&mut cache), []);
    // The entry is stale: its use causes a question.
    cache.on_timer(START + DELAY);
    assert_eq!(questions(&mut cache).len(), 1);
}

#[test]
fn a_neighbours_question_answers_ours() {
    let mut cache = NeighborCache::default();
    cache.resolve(START, host(1));
    cache.hold(host(1), b"to____from__", &[]);
    cache.solicited(START, host(1), A, false);
    assert_eq!(cache.resolve(START, host(1)), Resolution::Known(A));
    assert!(cache.released().is_some());
}

#[test]
fn gratuitous_changes_have_a_rate() {
    let mut cache = knows_one(START);
    cache.advertised(START, host(1), Some(B), false, true);
    assert_eq!(cache.resolve(START, host(1)), Resolution::Known(A));
    assert_eq!(cache.counters().not_believed, 1);
    let later = START + LOCK;
    cache.advertised(later, host(1), Some(B), false, true);
    assert_eq!(cache.resolve(later, host(1)), Resolution::Known(B));
    cache.solicited(later, host(1), A, true);
    assert_eq!(cache.resolve(later, host(1)), Resolution::Known(B));
    assert_eq!(cache.counters().not_believed, 2);
}

/// Seen in review: an ARP reply to this host, or an advertisement that calls itself solicited, was
/// believed at any time. Cause: the sender's flag was trusted. Cure: a message without an open
/// question counts as unsolicited, whatever its flag.
#[test]
fn unsolicited_answers_do_not_confirm() {
    let mut cache = knows_one(START);
    cache.advertised(START, host(1), Some(B), true, true);
    assert_eq!(cache.resolve(START, host(1)), Resolution::Known(A));
    assert_eq!(cache.counters().not_believed, 1);
    // During a probe, an answer counts as one.
    let later = START + REACHABLE_FOR;
    cache.resolve(later, host(1));
    cache.on_timer(later + DELAY);
    cache.advertised(later + DELAY, host(1), Some(B), true, true);
    cache.advertised(later + DELAY, host(1), Some(A), true, true);
    assert_eq!(cache.resolve(later + DELAY, host(1)), Resolution::Known(B));
}

#[test]
fn no_override_makes_stale_only() {
    // RFC 4861 7.2.5, I
    let mut cache = knows_one(START);
    let later = START + LOCK;
    cache.advertised(later, host(1), Some(B), true, false);
    assert_eq!(cache.resolve(later, host(1)), Resolution::Known(A));
    cache.on_timer(later + DELAY);
    assert_eq!(questions(&mut cache).len(), 1);
}

#[test]
fn no_address_does_not_complete() {
    let mut cache = NeighborCache::default();
    cache.resolve(START, host(1));
    cache.advertised(START, host(1), None, true, true);
    assert_eq!(cache.resolve(START, host(1)), Resolution::Asked);
}

#[test]
fn a_fixed_neighbour_stays() {
    let mut cache = NeighborCache::default();
    cache.fix(START, host(1), A);
    let later = START + REACHABLE_FOR + DELAY;
    cache.advertised(later, host(1), Some(B), true, true);
    cache.solicited(later, host(1), B, true);
    assert_eq!(cache.resolve(later, host(1)), Resolution::Known(A));
    assert_eq!(cache.wakes_at(), None);
}

#[test]
fn prefix_scans_have_a_limit() {
    let mut cache = knows_one(START);
    let asked =
        (2..10_000).filter(|&number| cache.resolve(START, host(number)) == Resolution::Asked);
    assert_eq!(asked.count(), INCOMPLETE_MAX);
    assert_eq!(cache.resolve(START, host(1)), Resolution::Known(A));
    // Routers have reserved entries, which are limited as well.
    let asked = (10_000..10_100)
        .filter(|&number| cache.resolve_router(START, host(number)) == Resolution::Asked);
    assert_eq!(asked.count(), INCOMPLETE_ROUTERS_MAX);
    assert_eq!(cache.resolve(START, host(10_100)), Resolution::Refused);
    // Neighbours that did not answer are removed.
    for second in 1..=3 {
        cache.on_timer(START + Duration::from_secs(second));
    }
    assert_eq!(cache.len(), 1);
    let later = START + Duration::from_secs(3);
    assert_eq!(cache.resolve(later, host(20_000)), Resolution::Asked);
}

#[test]
fn least_recently_used_is_evicted() {
    let mut cache = NeighborCache::default();
    for number in 0..NEIGHBORS_MAX as u32 {
        let at = START + Duration::from_millis(number.into());
        cache.solicited(at, host(number), A, true);
    }
    let now = START + Duration::from_secs(10);
    cache.resolve(now, host(0));
    cache.solicited(now, host(5000), A, true);
    assert_eq!((cache.len(), cache.counters().evicted), (NEIGHBORS_MAX, 1));
    assert_eq!(cache.resolve(now, host(0)), Resolution::Known(A));
    assert_eq!(cache.resolve(now, host(1)), Resolution::Asked);
}

/// Seen: ARP requests or solicitations from 1,024 new addresses, some milliseconds of a flood,
/// drove out a neighbour in use. Cause: each of them counted as used, later than that neighbour.
/// Cure: those that nothing was sent to make room first.
#[test]
fn hints_evict_no_neighbour_in_use() {
    let mut cache = knows_one(START);
    for number in 2..3 * NEIGHBORS_MAX as u32 {
        cache.solicited(START + QUESTION_EVERY, host(number), B, true);
    }
    assert_eq!(cache.len(), NEIGHBORS_MAX);
    let later = START + REACHABLE_FOR + QUESTION_EVERY;
    assert_eq!(cache.resolve(later, host(1)), Resolution::Known(A));
    // Host 1 is being probed now, and its entry is still in use.
    for number in 0..NEIGHBORS_MAX as u32 {
        cache.solicited(later + QUESTION_EVERY, host(10_000 + number), B, true);
    }
    assert_eq!(cache.resolve(later, host(1)), Resolution::Known(A));
}

/// Seen: of a flood of ARP requests a loop took 55,000 a second; its queue ran over, and clients
/// found no route. Cause: for each stranger a full cache looked through all neighbours for one to
/// go. Cure: it does so once in a while, and strangers are answered without an entry: 300,000 a
/// second.
#[test]
fn a_full_cache_takes_few_strangers() {
    let mut cache = NeighborCache::default();
    for number in 0..10 * NEIGHBORS_MAX as u32 {
        cache.solicited(START, host(number), A, true);
    }
    assert_eq!((cache.len(), cache.counters().evicted), (NEIGHBORS_MAX, 1));
    cache.solicited(START + STRANGER_EVERY, host(50_000), A, true);
    assert_eq!(cache.counters().evicted, 2);
    assert_eq!(cache.resolve(START + STRANGER_EVERY, host(50_000)), Resolution::Known(A));
    // A neighbour to send to need not wait.
    assert_eq!(cache.resolve(START + STRANGER_EVERY, host(60_000)), Resolution::Asked);
}

#[derive(Clone, Debug)]
enum Operation {
    Resolve(u32),
    Advertise(u32, bool, bool, bool, bool),
    Hint(u32, bool, bool),
    Confirm(u32),
    Wait(u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    let number = 0u32..200;
    prop_oneof![
        4 => number.clone().prop_map(Operation::Resolve),
        2 => (number.clone(), any::<(bool, bool, bool, bool)>())
            .prop_map(|(number, it)| Operation::Advertise(number, it.0, it.1, it.2, it.3)),
        1 => (number.clone(), any::<(bool, bool)>())
            .prop_map(|(number, it)| Operation::Hint(number, it.0, it.1)),
        1 => number.prop_map(Operation::Confirm),
        2 => (0u64..3000).prop_map(Operation::Wait),
    ]
}

proptest! {
    /// Whatever happens: every frame that was held leaves or is counted, no limit is passed, and
    /// time comes to rest.
    #[test]
    fn frames_and_limits_are_kept(operations in vec(operation(), 0..150)) {
        let mut cache = NeighborCache::default();
        let mut now = START;
        let mut held = 0;
        let mut left = 0;
        for operation in operations {
            match operation {
                Operation::Resolve(number) => {
                    if cache.resolve(now, host(number)) == Resolution::Asked {
                        cache.hold(host(number), b"to____from__", &[b"payload"]);
                        held += 1;
                    }
                }
                Operation::Advertise(number, is_a, has_mac, was_asked, is_override) => {
                    let mac = has_mac.then_some(if is_a { A } else { B });
                    cache.advertised(now, host(number), mac, was_asked, is_override);
                }
                Operation::Hint(number, is_a, may_add) => {
                    cache.solicited(now, host(number), if is_a { A } else { B }, may_add);
                }
                Operation::Confirm(number) => cache.confirm(now, host(number)),
                Operation::Wait(millis) => {
                    now += Duration::from_millis(millis);
                    cache.on_timer(now);
                }
            }
            while let Some(frame) = cache.released() {
                prop_assert!(frame[..6] == A.0 || frame[..6] == B.0);
                left += 1;
                cache.reuse(frame);
            }
            questions(&mut cache);
            prop_assert!(cache.len() <= NEIGHBORS_MAX);
        }
        // Without messages and use, every question ends.
        for _ in 0..10 {
            now += DELAY;
            cache.on_timer(now);
        }
        prop_assert_eq!(cache.wakes_at(), None);
        prop_assert_eq!(held, left + cache.counters().frames_dropped);
    }
}
