//! The last reply reaches a peer that sends more than it should.

use super::*;
use crate::connection::Queues;
use crate::connection::linger::{
    LINGER_DRAIN_TIMEOUT, LINGER_IDLE, LINGER_LEN_MAX, LINGER_TIMEOUT,
};
use crate::lingering::Lingering;

const SESSION: Blocked = Blocked::Closed(Closed::Session);

/// Seen: Python's clients got a broken pipe instead of `413`. Cause: a refused upload was read for
/// 2 s, or 1 MiB. Cure: it is read as long as the peer sends, up to 30 s; the connection is reset
/// after 5 s of silence.
#[test]
fn a_refused_peer_may_go_on_sending() {
    let refused = || {
        let mut world = World::new();
        assert_eq!(world.say("refuse\nand much more"), Blocked::Receive);
        assert_eq!(world.take_got(), "refused\n");
        assert_eq!(world.life.closed.load(Ordering::Relaxed), 1, "no session is kept");
        world
    };

    let mut by_silence = refused();
    by_silence.pass(LINGER_IDLE / 2);
    assert_eq!(by_silence.say("still here"), Blocked::Receive);
    let now = by_silence.now.monotonic;
    assert_eq!(by_silence.until(), now + LINGER_IDLE);
    assert_eq!(by_silence.expire(), SESSION);

    let mut by_time = refused();
    let until = by_time.now.monotonic + LINGER_TIMEOUT;
    while by_time.until() < until {
        by_time.pass(LINGER_IDLE / 2);
        assert_eq!(by_time.say("and more"), Blocked::Receive);
    }
    by_time.queues.unread = 1;
    assert_eq!(by_time.expire(), SESSION);
    assert_eq!(by_time.now.monotonic, until);

    let mut by_len = refused();
    let much = "x".repeat(1 << 20);
    for _ in 1..LINGER_LEN_MAX >> 20 {
        assert_eq!(by_len.say(&much), Blocked::Receive);
    }
    assert_eq!(by_len.say(&much), SESSION);

    let mut by_peer = refused();
    by_peer.machine.handle_end_of_input(by_peer.now);
    assert_eq!(by_peer.run(), SESSION);

    let mut by_reset = refused();
    let reset = io::ErrorKind::ConnectionReset.into();
    by_reset.machine.handle_error(&reset, by_reset.now);
    assert_eq!(by_reset.run(), SESSION);
}

/// Seen: a client that sent an empty line or another request after its last one lost up to a socket
/// buffer of the reply. Cause: a socket that is closed with unread input is reset, and its send
/// queue is dropped. RFC 9112 9.6. Cure: the queues are checked before the close.
#[test]
fn input_behind_the_last_reply_resets_nothing() {
    let mut world = World::new();
    assert_eq!(world.say("say x\nbye\n"), SESSION, "no wait without a reason");
    // A few bytes have left the socket, so unsent bytes are not queried.
    let mut world = World::new();
    world.queues.unsent = 1;
    assert_eq!(world.say("say x\nbye\n"), SESSION);
    for (unread, unsent) in [(1, 0), (0, 1)] {
        let mut world = World::new();
        world.say("big 2000\n");
        world.got.clear();
        world.queues = Queues { unread, unsent };
        let blocked = world.say("say x\nbye\n");
        assert_eq!(world.take_got(), "x\n");
        assert_eq!(blocked, Blocked::Receive, "{unread} unread, {unsent} unsent");
        let lingering = world.machine.shared.lingering.count();
        assert_eq!(lingering, 1);
        assert_eq!(world.say("say late\n"), Blocked::Receive);
        world.machine.handle_end_of_input(world.now);
        assert_eq!(world.run(), SESSION);
        assert_eq!(world.take_got(), "", "a lingering connection does not answer");
    }
    // The extra input was read with the last request.
    let mut world = World::new();
    assert_eq!(world.say("say x\nbye\nsay late\n"), Blocked::Receive);
    assert_eq!(world.expire(), SESSION);
    assert_eq!(world.take_got(), "x\n");
    // No more input can arrive.
    let mut world = World::new();
    world.queues.unsent = 1;
    world.window = 0;
    world.say("say x\nbye\n");
    world.machine.handle_end_of_input(world.now);
    world.window = usize::MAX;
    assert_eq!(world.run(), SESSION);
}

#[test]
fn a_peer_that_reads_slowly_is_lingered_for() {
    let slow = || {
        let mut world = World::new();
        world.queues.unsent = 100_000;
        assert_eq!(world.say("big 200000\nbye\n"), Blocked::Receive);
        world
    };
    let mut world = slow();
    let begun = world.now.monotonic;
    for _ in 1..LINGER_TIMEOUT.as_secs() / LINGER_IDLE.as_secs() {
        assert_eq!(world.expire(), Blocked::Receive);
    }
    assert_eq!(world.expire(), SESSION);
    assert_eq!(world.now.monotonic, begun + LINGER_TIMEOUT);
    let mut world = slow();
    world.queues.unsent = 0;
    assert_eq!(world.expire(), SESSION);
}

#[test]
fn a_408_reaches_the_peer() {
    let mut world = World::new();
    world.say("half of a lin");
    world.queues.unread = 1;
    assert_eq!(world.expire(), Blocked::Receive);
    // A peer that trickles bytes gains little.
    world.pass(LINGER_IDLE - NANOSECOND);
    assert_eq!(world.say("x"), Blocked::Receive);
    assert_eq!(world.until(), world.now.monotonic + NANOSECOND);
    let closed = Closed::TimedOut(Phase::Head);
    assert_eq!(world.expire(), Blocked::Closed(closed));
}

/// Seen: clients that pipeline were reset at a drain, and lost the reply that announces the end.
/// Cause: their next requests had arrived meanwhile.
#[test]
fn a_drain_lingers_for_a_moment() {
    let mut world = World::new();
    world.say("sa");
    world.machine.handle_drain(world.now);
    assert_eq!(world.say("y x\n"), Blocked::Receive);
    assert_eq!(world.take_got(), "draining\nx\n");
    assert!(world.machine.is_lingering());
    assert_eq!(world.until(), world.now.monotonic + DRAIN_GRACE);
    assert_eq!(world.say("say y\n"), Blocked::Receive);
    assert_eq!(world.expire(), SESSION);
    assert_eq!(world.take_got(), "");

    // The connection does not delay a drain that begins later.
    let mut world = World::new();
    world.say("big 2000\nrefuse\n");
    world.pass(DRAIN_GRACE / 2);
    world.machine.handle_drain(world.now);
    assert_eq!(world.until(), world.now.monotonic + DRAIN_GRACE / 2);
    world.queues.unsent = 1;
    assert_eq!(world.expire(), Blocked::Receive, "unless the client reads");
    assert_eq!(world.until(), world.now.monotonic + DRAIN_GRACE);
}

/// Seen: a client of HTTP/2 that read slowly lost the rest of its reply to a drain, on every
/// engine: 16 KB of 1.5 MB arrived. Cause: all of the reply was in the socket, so the connection
/// was idle, and was closed as such; the client's next WINDOW_UPDATE was answered with a reset.
/// Cure: a check of the queues, as before other ends.
#[test]
fn a_drain_leaves_slow_readers_their_reply() {
    for (unread, unsent) in [(1, 0), (0, 1)] {
        let mut world = World::new();
        world.say("words\nbig 2000\n");
        world.queues = Queues { unread, unsent };
        world.machine.handle_drain(world.now);
        assert_eq!(world.run(), Blocked::Receive);
        assert_eq!(world.expire(), Blocked::Receive, "{unread} unread, {unsent} unsent");
        assert!(world.machine.is_lingering());
        assert!(world.take_got().ends_with("draining\ngave up: Drained\n"));
        assert_eq!(world.say("late\n"), Blocked::Receive);
        world.machine.handle_end_of_input(world.now);
        assert_eq!(world.run(), Blocked::Closed(Closed::Drained));
    }
}

/// Seen (in review): in a drain a client that sends while it reads, as in HTTP/2, was reset after
/// 2 s, with the end of its reply unsent or unread. Cause: after that time its input no longer
/// counted, and if some was unread the unsent bytes were not checked. Cure: input counts while the
/// socket has unsent data, and for a while after.
#[test]
fn input_of_a_slow_reader_counts_in_a_drain() {
    let mut world = World::new();
    world.say("big 2000\n");
    world.queues.unsent = 1;
    world.machine.handle_drain(world.now);
    assert_eq!(world.run(), Blocked::Receive);
    assert_eq!(world.expire(), Blocked::Receive);
    let goes_on = |world: &mut World, duration: Duration| {
        let until = world.now.monotonic + duration;
        while world.now.monotonic < until && world.say("x") == Blocked::Receive {
            world.pass(DRAIN_GRACE / 2);
            world.machine.handle_timeout(world.now);
            world.run();
        }
        world.run() == Blocked::Receive
    };
    assert!(goes_on(&mut world, 3 * LINGER_DRAIN_TIMEOUT), "the client reads its reply");
    world.queues = Queues { unread: 1, unsent: 0 };
    assert!(goes_on(&mut world, LINGER_DRAIN_TIMEOUT), "the client reads the rest");
    assert!(!goes_on(&mut world, 3 * LINGER_DRAIN_TIMEOUT), "the client only sends");
    assert_eq!(world.run(), Blocked::Closed(Closed::Drained));
}

/// Seen: `curl --http2-prior-knowledge --limit-rate 2500k` got 7.7 MB of 9.5 MB when the server
/// stopped meanwhile. Cause: as above; moreover, data that has left the socket may be in the
/// client's, which is silent for seconds and then opens its windows. Cure: a wait for that as well.
#[test]
fn a_slow_reader_has_time_for_what_it_has_got() {
    let mut world = World::new();
    world.say("big 2000\n");
    world.queues.unsent = 1;
    world.machine.handle_drain(world.now);
    assert_eq!(world.run(), Blocked::Receive);
    for _ in 0..5 {
        assert_eq!(world.expire(), Blocked::Receive);
        assert_eq!(world.until(), world.now.monotonic + DRAIN_GRACE);
        assert_eq!(world.machine.idle_since(world.now), Some(world.now.monotonic));
    }
    world.queues.unsent = 0;
    assert_eq!(world.expire(), Blocked::Receive);
    let until = world.now.monotonic + LINGER_DRAIN_TIMEOUT;
    assert_eq!(world.until(), until);
    assert_eq!(world.machine.idle_since(world.now), Some(until - DRAIN_GRACE));
    world.pass(DRAIN_GRACE);
    assert_eq!(world.say("x"), Blocked::Receive);
    assert_eq!(world.until(), until);
    assert_eq!(world.expire(), Blocked::Closed(Closed::Drained));
}

/// Seen: 40 clients that sent a byte now and then after their last request delayed a drain for its
/// maximum time (25 s). Cause: each byte gave them as long as an idle connection has.
#[test]
fn trickling_does_not_hold_a_drain() {
    for drains_first in [true, false] {
        let mut world = World::new();
        if drains_first {
            world.say("sa");
            world.machine.handle_drain(world.now);
            world.say("y x\n");
        } else {
            world.say("refuse\n");
            world.pass(LINGER_IDLE / 2);
            world.machine.handle_drain(world.now);
        }
        let until = world.now.monotonic + LINGER_DRAIN_TIMEOUT;
        let step = DRAIN_GRACE / 5;
        while world.now.monotonic < until {
            assert_eq!(world.say("x"), Blocked::Receive);
            world.pass(step);
        }
        world.queues.unread = 1;
        while world.until() > world.now.monotonic {
            assert_eq!(world.say("x"), Blocked::Receive);
            world.pass(step);
        }
        world.machine.handle_timeout(world.now);
        assert_eq!(world.run(), SESSION, "drains first: {drains_first}");
        assert!(world.now.monotonic <= until + 2 * DRAIN_GRACE);
    }
}

#[test]
fn no_more_connections_linger_than_may() {
    let full = World::new();
    let shared = &full.machine.shared;
    while shared.lingering.enter(false) {}
    let mut world = World::accepted(None);
    world.machine = super::super::Machine::new(shared.clone(), None, || None, world.now);
    world.run();
    assert_eq!(world.say("refuse\nand more"), SESSION);
    assert_eq!(world.take_got(), "refused\n");
    // In a drain no slots need to be saved for others.
    assert!(shared.lingering.enter(true));
    let lingering = Lingering::new(0);
    let count = (0..100).take_while(|_| lingering.enter(false)).count();
    assert_eq!(count, 16, "the least number, for any limit");
    let lingering = Lingering::new(400);
    let count = (0..1000).take_while(|_| lingering.enter(false)).count();
    assert_eq!(count, 100);
}
