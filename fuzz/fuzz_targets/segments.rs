//! Any bytes as what a hostile peer, a clock and an application do to a shard of the netstack: it
//! does not panic, sends what was written, keeps its limits, and never waits for ever.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/netstack/tests/hostile/world.rs"]
mod world;

/// Longer inputs teach nothing new and cost time.
const INPUT_LEN_MAX: usize = 4096;

fuzz_target!(|input: &[u8]| {
    if input.len() <= INPUT_LEN_MAX {
        world::play(input);
    }
});
