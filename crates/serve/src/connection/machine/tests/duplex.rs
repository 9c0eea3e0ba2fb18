//! Input while output waits.

use super::*;

/// A session with much to say, and a peer that takes nothing.
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
