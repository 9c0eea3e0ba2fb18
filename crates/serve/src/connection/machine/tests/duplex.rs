//! Input while output is queued.

use std::time::Duration;

use session::WORKS_MAX;

use super::*;
use crate::jobs::tests::Call;

/// A session with much output, and a peer that takes nothing.
fn blocked() -> World {
    let mut world = World::new();
    world.window = 0;
    assert_eq!(world.say("duplex 5000\n"), Blocked::Send);
    world
}

fn queued_len(world: &World) -> u64 {
    let outgoing = world.machine.outgoing.as_ref();
    outgoing.map_or(0, |outgoing| outgoing.out.queued_len())
}

#[test]
fn input_is_answered_behind_one_outbox() {
    let mut world = blocked();
    assert!(world.machine.is_duplex());
    world.say("ping\n");
    world.window = 10_000;
    assert_eq!(world.run(), Blocked::Receive);
    let got = world.take_got();
    assert_eq!(got.len(), 5000 * 100 + 5);
    let at = got.find("ping").unwrap();
    assert!(at <= 64 * 1024 + 100, "behind {at} bytes");
}

#[test]
fn session_goes_on_before_its_outbox_is_empty() {
    let mut world = blocked();
    world.window = 1000;
    let mut least = u64::MAX;
    while world.got.len() < 400_000 {
        least = least.min(queued_len(&world));
        assert_eq!(world.step(), None);
    }
    assert!(least >= 31 * 1024, "{least} bytes");
    assert!(queued_len(&world) < 64 * 1024 + 100);
}

#[test]
fn answers_that_pile_up_stop_the_input() {
    let mut world = blocked();
    let line = "x".repeat(999) + "\n";
    for _ in 0..200 {
        if world.machine.is_duplex() {
            assert_eq!(world.say(&line), Blocked::Send);
        }
    }
    assert!(!world.machine.is_duplex());
    let len = queued_len(&world);
    assert!((128 * 1024..130 * 1024).contains(&len), "{len} bytes");
    world.window = 100_000;
    assert_eq!(world.step(), None);
    assert!(world.machine.is_duplex());
}

#[test]
fn unused_input_stops_the_input() {
    let mut world = blocked();
    assert_eq!(world.say(&"x".repeat(32 * 1024)), Blocked::Send);
    assert!(!world.machine.is_duplex());
}

#[test]
fn peer_that_takes_nothing_is_too_slow() {
    let mut world = blocked();
    world.say("ping\n");
    assert_eq!(world.expire(), Blocked::Closed(Closed::TooSlow));
}

#[test]
fn end_of_input_does_not_cut_the_output() {
    let mut world = blocked();
    world.machine.handle_end_of_input(world.now);
    assert!(!world.machine.is_duplex());
    world.window = 10_000;
    assert_eq!(world.run(), Blocked::Closed(Closed::Peer));
    assert_eq!(world.take_got().len(), 5000 * 100);
}

#[test]
fn drain_is_told_while_output_waits() {
    let mut world = blocked();
    world.machine.handle_server_state(DRAINING, world.now);
    assert_eq!(world.life.drained.load(Ordering::Relaxed), 1);
}

#[test]
fn others_are_shown_nothing_meanwhile() {
    let mut world = World::new();
    world.window = 0;
    for request in ["big 100000\n", "flood 5000\n"] {
        assert_eq!(world.say(request), Blocked::Send);
        assert!(!world.machine.is_duplex());
    }
}

/// Takes the work that the machine hands out now.
fn take_works(world: &mut World) -> Vec<Call> {
    let mut works = Vec::new();
    while let Action::Work = world.machine.next_action() {
        works.extend(world.machine.take_work(world.now));
    }
    works
}

#[test]
fn eight_works_are_out_at_a_time() {
    let mut world = blocked();
    let many = b"work\n".repeat(20);
    world.machine.handle_input(&many, world.now);
    let mut works = take_works(&mut world);
    assert_eq!(works.len(), WORKS_MAX);
    for nth in [7, 0, 3] {
        world.machine.handle_worked(works.remove(nth), world.now);
        works.extend(take_works(&mut world));
        assert_eq!(works.len(), WORKS_MAX);
    }
    world.machine.handle_refused(works.remove(0), world.now);
    for work in works {
        world.machine.handle_worked(work, world.now);
    }
    world.window = 10_000;
    assert_eq!(world.run(), Blocked::Receive);
    let got = world.take_got();
    let count = |words: &str| got.matches(words).count();
    assert_eq!((count("worked"), count("refused")), (19, 1));
}

/// A hanging disk is not the peer's fault.
#[test]
fn connection_lives_while_work_is_out() {
    let mut world = World::new();
    world.machine.handle_input(b"duplex 1\nwork\n", world.now);
    let mut works = take_works(&mut world);
    assert_eq!((works.len(), world.run()), (1, Blocked::Receive));
    assert_eq!(world.expire(), Blocked::Receive);
    world.machine.handle_end_of_input(world.now);
    assert_eq!(world.run(), Blocked::Nothing);
    world.pass(Duration::from_secs(3600));
    world.machine.handle_timeout(world.now);
    assert_eq!(world.run(), Blocked::Nothing);
    let work = works.pop().unwrap();
    world.machine.handle_worked(work, world.now);
    assert_eq!(world.run(), Blocked::Closed(Closed::Peer));
    assert!(world.take_got().ends_with("worked\n"));
}

/// Seen: a client of HTTP/2 that sent its request and shut down its side got nothing of a file that
/// was not in the site's table (on a kernel thread), and 256 KiB of a large uncached file (on
/// fibers and event loops). Cause: the peer's end was taken for the end of the conversation while
/// the session had work to hand out. Cure: the work is taken first.
#[test]
fn work_to_come_outlives_the_end_of_input() {
    let mut world = World::new();
    world.machine.work_in_place();
    world.machine.handle_input(b"duplex 1\nwork\nwork\n", world.now);
    world.machine.handle_end_of_input(world.now);
    assert_eq!(world.run(), Blocked::Closed(Closed::Peer));
    assert!(world.take_got().ends_with("worked\nworked\n"));
    // The end follows when all output has been sent.
    let mut world = World::new();
    world.machine.work_in_place();
    world.machine.handle_input(b"duplex 1\nwork\n", world.now);
    assert_eq!(world.step(), None);
    world.machine.handle_end_of_input(world.now);
    assert_eq!(world.run(), Blocked::Closed(Closed::Peer));
    assert!(world.take_got().ends_with("worked\n"));
}

/// A peer that sends nothing more opens no windows: output that needs them is not waited for.
#[test]
fn a_session_without_work_ends_with_its_peer() {
    let mut world = World::new();
    world.machine.work_in_place();
    world.machine.handle_input(b"duplex 1\nwork\nstuck\n", world.now);
    assert_eq!(world.step(), None);
    world.machine.handle_end_of_input(world.now);
    assert_eq!(world.run(), Blocked::Closed(Closed::Peer));
    assert!(world.take_got().ends_with("worked\n"));
    assert_eq!(world.life.closed.load(Ordering::Relaxed), 1);
}

/// Seen (in review): on a kernel thread each line of a `watch` waited for the next one, because the
/// thread waited for that before it had sent the first.
#[test]
fn work_in_place_follows_the_output() {
    let mut world = World::new();
    world.machine.handle_input(b"duplex 1\nwork\n", world.now);
    assert!(matches!(world.machine.next_action(), Action::Work));
    world.machine.work_in_place();
    assert!(matches!(world.machine.next_action(), Action::Send { .. }));
    assert_eq!((take_works(&mut world).len(), world.run()), (0, Blocked::Receive));
    assert!(world.take_got().ends_with("worked\n"));
}

/// Seen: a client of the cache that had left kept its slot among the watchers until the next line.
#[test]
fn a_wait_without_requests_ends_with_the_peer() {
    let mut world = World::new();
    world.machine.handle_input(b"duplex 1\nwork\n", world.now);
    let work = take_works(&mut world).pop().unwrap();
    // From here on no request is in progress.
    world.machine.handle_input(b"duplex 1\nline\n", world.now);
    assert_eq!(world.run(), Blocked::Receive);
    world.machine.handle_end_of_input(world.now);
    assert_eq!(world.run(), Blocked::Closed(Closed::Peer));
    world.machine.handle_worked(work, world.now);
    assert_eq!(world.run(), Blocked::Closed(Closed::Peer));
}

#[test]
fn each_reply_is_timed_by_itself() {
    let mut world = blocked();
    world.say("ping\n");
    assert_eq!(replied(&world).0, 0);
    world.pass(Duration::from_secs(2));
    world.window = 1000;
    while !world.got.ends_with(b"ping\n") && world.got.len() < 200_000 {
        assert_eq!(world.step(), None);
        world.window = 1;
    }
    assert!(queued_len(&world) > 0, "there is more to send");
    assert_eq!(replied(&world), (1, 2.0));
}

/// A session that holds a log line until its reply ends may write it at the end.
#[test]
fn a_reply_may_end_with_the_connection() {
    let mut world = World::new();
    assert_eq!(world.say("late\n"), Blocked::Receive);
    world.pass(Duration::from_secs(2));
    assert_eq!(replied(&world).0, 0);
    world.machine.handle_end_of_input(world.now);
    assert_eq!(world.run(), Blocked::Closed(Closed::Peer));
    assert_eq!(replied(&world), (1, 2.0));
}
