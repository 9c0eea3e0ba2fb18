//! A hostile peer, from seeds: the fuzz target's world, some seconds of it in every test run.
//!
//! `NETSTACK_SEED=17` plays one again, `NETSTACK_SEEDS=100000` plays more of them, from
//! `NETSTACK_FIRST_SEED` on.

extern crate weftwork_netstack as netstack;

mod world;

const SEEDS: u64 = 3000;

#[test]
fn no_peer_breaks_a_shard() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    if let Some(seed) = number("NETSTACK_SEED") {
        world::play(&input(seed));
        return;
    }
    let first = number("NETSTACK_FIRST_SEED").unwrap_or(0);
    for seed in first..first + number("NETSTACK_SEEDS").unwrap_or(SEEDS) {
        let run = std::panic::catch_unwind(|| world::play(&input(seed)));
        assert!(run.is_ok(), "repeat with NETSTACK_SEED={seed}");
    }
}

/// Some hundred bytes.
fn input(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
    };
    let len = next() % 800;
    (0..len).map(|_| (next() >> 24) as u8).collect()
}
