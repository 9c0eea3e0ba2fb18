//! Common part of the three cache targets: any bytes as a whole connection over an empty store.
//! The replies must not depend on how the bytes are cut.

use std::sync::Arc;

use cache::store::{Config, Store};
use cache::{NoHost, Peer, Service, Session, Settings};
use session::replay::{Cutting, Replayed, run, test_now};

/// Input buffer of a driver; longer inputs teach nothing new and cost time.
const INPUT_LEN_MAX: usize = 4096;

/// Commands whose replies depend on more than the conversation (memory, the process, a table with
/// a random seed), or never end.
const UNEQUAL: [&[u8]; 4] = [b"stat", b"dump", b"watch", b"cache_memlimit"];

pub fn check(input: &[u8]) {
    let is_unequal = |word: &[u8]| input.windows(word.len()).any(|part| part == word);
    if input.len() > INPUT_LEN_MAX || UNEQUAL.into_iter().any(is_unequal) {
        return;
    }
    let whole = play(input, Cutting::Whole);
    if has_binary_stat(&whole.replied) {
        return;
    }
    let seed =
        input.iter().fold(7_u64, |seed, &byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    for cutting in [Cutting::EveryByte, Cutting::Seeded(seed)] {
        let other = play(input, cutting);
        assert_eq!(other, whole, "{cutting:?}");
    }
}

fn has_binary_stat(replied: &[u8]) -> bool {
    replied.windows(2).any(|part| part == [0x81, 0x10])
}

fn play(input: &[u8], cutting: Cutting) -> Replayed {
    let config = Config { memory_max: 8 << 20, hash_power: 4, ..Config::default() };
    let store = Store::new(config).expect("a store");
    let service = Service::new(store, Settings::default(), NoHost, test_now());
    run(Session::new(Arc::new(service), Peer::Unix, test_now()), input, cutting)
}
