//! Random scripts against a model: a peer gets the replies that it would get if all its input had
//! arrived at once and every send had been complete; or, if the connection broke, a prefix of them.

use session::replay::{self, Cutting, Random};

use super::world::{Blocked, Toy, World};
use super::*;

const SCRIPTS: u64 = 500;

#[test]
fn replies_are_the_same_at_any_cut() {
    for seed in 0..SCRIPTS {
        let random = &mut Random(seed);
        let script = script(random);
        let expected = replay::run(Toy::new(), script.as_bytes(), Cutting::Whole);
        let mut world = World::new();
        let mut rest = script.as_bytes();
        while !rest.is_empty() {
            let len = 1 + random.below(rest.len().min(200) as u64) as usize;
            let (piece, after) = rest.split_at(len);
            rest = after;
            world.window = window(random);
            deliver(&mut world, piece);
            let is_closed = matches!(travel(&mut world, random), Blocked::Closed(_));
            assert!(!is_closed || expected.closed, "seed {seed}");
        }
        world.window = usize::MAX;
        world.machine.handle_end_of_input(world.now);
        let closed = if expected.closed { Closed::Session } else { Closed::Peer };
        assert_eq!(world.run(), Blocked::Closed(closed), "seed {seed}");
        assert!(world.got == expected.replied, "replies differ, seed {seed}");
        assert_eq!(world.life.closed.load(Ordering::Relaxed), 1, "seed {seed}");
        assert!(world.machine.outgoing.is_none(), "seed {seed}");
    }
}

#[test]
fn a_break_at_any_byte_ends_once() {
    for seed in 0..SCRIPTS {
        let random = &mut Random(seed);
        let script = script(random);
        let expected = replay::run(Toy::new(), script.as_bytes(), Cutting::Whole);
        let mut world = World::new();
        let (front, _) = script.as_bytes().split_at(random.below(script.len() as u64) as usize);
        for piece in front.chunks(1 + random.below(300) as usize) {
            world.window = window(random) * random.below(2) as usize;
            deliver(&mut world, piece);
            for _ in 0..random.below(6) {
                world.pass(Duration::from_millis(random.below(1000)));
                let _ = world.step();
            }
        }
        let got_before = world.got.len();
        let before = world.run();
        world.window = usize::MAX;
        let now = world.now;
        let allowed: &[Closed] = match random.below(5) {
            0 => {
                world.machine.handle_error(&io::ErrorKind::ConnectionReset.into(), now);
                &[Closed::Peer]
            }
            1 => {
                world.machine.handle_error(&io::ErrorKind::Other.into(), now);
                &[Closed::Error]
            }
            2 => {
                world.machine.handle_cut(now);
                &[Closed::Drained]
            }
            3 => {
                world.machine.handle_end_of_input(now);
                &[Closed::Peer]
            }
            _ => {
                world.pass(Duration::from_secs(3600));
                world.machine.handle_timeout(world.now);
                &[
                    Closed::TooSlow,
                    Closed::TimedOut(Phase::Idle),
                    Closed::TimedOut(Phase::Head),
                    Closed::TimedOut(Phase::Body),
                ]
            }
        };
        let Blocked::Closed(closed) = world.run() else { panic!("it goes on, seed {seed}") };
        let is_session = expected.closed && closed == Closed::Session;
        assert!(
            is_session || allowed.contains(&closed),
            "{closed:?} after {before:?}, seed {seed}"
        );
        assert_eq!(world.life.closed.load(Ordering::Relaxed), 1, "seed {seed}");
        assert!(got_before <= world.got.len());
        let words = b"gave up: ";
        let end = world.got.windows(words.len()).position(|part| part == words);
        let got = &world.got[..end.unwrap_or(world.got.len())];
        assert!(expected.replied.starts_with(got), "an unexpected reply, seed {seed}");
    }
}

#[test]
fn a_drain_at_any_byte_is_announced_once() {
    const WORDS: &[u8] = b"draining\n";
    for seed in 0..SCRIPTS {
        let random = &mut Random(seed);
        let script = script(random);
        let expected = replay::run(Toy::new(), script.as_bytes(), Cutting::Whole);
        let mut world = World::new();
        let send = |world: &mut World, part: &[u8], random: &mut Random| {
            for piece in part.chunks(1 + random.below(300) as usize) {
                world.window = window(random);
                deliver(world, piece);
                let _ = travel(world, random);
            }
        };
        let (front, back) = script.as_bytes().split_at(random.below(script.len() as u64) as usize);
        send(&mut world, front, random);
        let is_over = world.machine.state.is_end();
        world.machine.handle_drain(world.now);
        world.machine.handle_drain(world.now);
        send(&mut world, back, random);
        world.window = usize::MAX;
        if world.run() == Blocked::Receive {
            world.pass(Duration::from_secs(3600));
            world.machine.handle_timeout(world.now);
        }
        let Blocked::Closed(closed) = world.run() else { panic!("it goes on, seed {seed}") };
        let told = world.life.drained.load(Ordering::Relaxed);
        assert_eq!(told, usize::from(!is_over), "seed {seed}");
        let said = world.got.windows(WORDS.len());
        let said = said.enumerate().find(|(_, part)| *part == WORDS);
        assert_eq!(said.is_some(), !is_over, "seed {seed}");
        let at = said.map_or(0, |(at, _)| at);
        world.got.drain(at..at + told * WORDS.len());
        match closed {
            // A request that was answered after the drain had begun is the last one.
            Closed::Session => assert!(expected.replied.starts_with(&world.got), "seed {seed}"),
            Closed::Drained => assert!(expected.replied == world.got, "seed {seed}"),
            _ => panic!("{closed:?}, seed {seed}"),
        }
        assert_eq!(world.life.closed.load(Ordering::Relaxed), 1, "seed {seed}");
    }
}

fn window(random: &mut Random) -> usize {
    let scale = [50, 1000, 100_000][random.below(3) as usize];
    1 + random.below(scale) as usize
}

/// Delivers input, into the lent space if there is any.
fn deliver(world: &mut World, mut piece: &[u8]) {
    let now = world.now;
    if let Action::Fill { space, .. } = world.machine.next_action() {
        let len = space.len().min(piece.len());
        space[..len].copy_from_slice(&piece[..len]);
        piece = &piece[len..];
        world.machine.handle_filled(Ok(len), now);
    }
    if !piece.is_empty() {
        world.machine.handle_input(piece, now);
    }
}

/// Does some steps, sometimes all of them, so that input may arrive while a reply waits. Files
/// enter and leave memory, and bytes read of them may be dropped.
fn travel(world: &mut World, random: &mut Random) -> Blocked {
    let (steps, runs) = (random.below(5), random.below(2) == 0);
    let mut step = |world: &mut World| {
        world.is_on_disk = random.below(2) == 0;
        if let Some(outgoing) = &mut world.machine.outgoing
            && random.below(4) == 0
        {
            outgoing.give_back(world.now.monotonic + FETCHED_PATIENCE);
        }
        world.step()
    };
    let blocked = (0..steps).find_map(|_| step(world));
    match blocked {
        None if runs => world.run(),
        blocked => blocked.unwrap_or(Blocked::Nothing),
    }
}

/// Commands of every kind.
fn script(random: &mut Random) -> String {
    let mut script = String::new();
    for _ in 0..1 + random.below(12) {
        let line = match random.below(20) {
            0..6 => format!("say {}\n", "weft ".repeat(random.below(20) as usize)),
            6..8 => format!("big {}\n", random.below(20_000)),
            8..10 => format!("file {}\n", random.below(20_000)),
            10..12 => format!("flood {}\n", random.below(900)),
            12..15 => {
                let len = random.below(400) as usize;
                format!("body {len}\n{}", "a".repeat(len))
            }
            15..18 => "work\n".to_owned(),
            18 => "say x".to_owned() + "\n",
            _ => ["bye\n", "refuse\n"][random.below(2) as usize].to_owned(),
        };
        script += &line;
    }
    script
}
