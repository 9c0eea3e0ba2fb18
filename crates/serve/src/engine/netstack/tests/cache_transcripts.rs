//! The cache's transcripts, as they are played on the engines over kernel sockets.

#[path = "../../../../../cache/tests/transcript/mod.rs"]
mod transcript;

use session::replay::{Random, Script};

use super::*;

/// Number of ways in which each transcript is cut, and of pieces.
const CUTTINGS: u64 = 2;
const PIECES: usize = 6;

#[test]
fn every_cache_transcript_plays_as_written() {
    let mut world = World::new(Limits::default(), || transcript::conversation().unwrap());
    let mut failures = Vec::new();
    for (name, script) in
        transcript::FILES.iter().flat_map(|(file, text)| transcript::parse(file, text))
    {
        for seed in 0..=CUTTINGS {
            let mut random = Random(seed);
            let mut cut = |()| random.below(script.sent().len() as u64) as usize;
            let mut cuts = match seed {
                0 => Vec::new(), // Whole.
                _ => [(); PIECES - 1].map(&mut cut).to_vec(),
            };
            cuts.sort_unstable();
            let replied = play(&mut world, &script, &cuts);
            if Some(&*replied) != script.expected() {
                let replied = replied.escape_ascii();
                failures.push(format!("{name} (cut {cuts:?}): {replied}"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Plays one transcript, in pieces that arrive one by one. Returns the replies.
fn play<S: Session + 'static>(world: &mut World<S>, script: &Script, cuts: &[usize]) -> Vec<u8> {
    let id = world.connect();
    let received = |world: &World<S>| world.shared.counters.snapshot().bytes_received();
    let before = received(world);
    let mut from = 0;
    let mut replied = Vec::new();
    for end in cuts.iter().copied().chain([script.sent().len()]) {
        world.until("a piece is received", |world| {
            let piece = &script.sent()[from..end];
            from += world.client.shard().write(id, piece);
            take(world, id, &mut replied) || from == end && received(world) >= before + end as u64
        });
    }
    if !script.closes() {
        world.client.shard().finish(id);
    }
    world.until("the last reply", |world| take(world, id, &mut replied));
    world.close(id);
    world.until_count(0);
    replied
}

/// Takes the replies received so far; returns whether the stream has ended.
fn take<S: Session + 'static>(world: &mut World<S>, id: FlowId, replied: &mut Vec<u8>) -> bool {
    let mut space = [0; 4096];
    let shard = world.client.shard();
    loop {
        match shard.read(id, &mut space) {
            0 => break,
            len => replied.extend_from_slice(&space[..len]),
        }
    }
    let connection = shard.connection(id);
    connection.is_none_or(|it| it.is_peer_closed() || it.end().is_some())
}
