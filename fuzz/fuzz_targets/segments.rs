//! Any bytes as actions of a hostile peer, a clock and an application on a shard of the netstack:
//! no panic, no lost byte, no exceeded limit, no endless wait.

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
