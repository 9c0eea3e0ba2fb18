//! Any bytes as a whole connection, over the site of the transcripts. However they are cut, the
//! replies must be the same, and each must be a reply. Behind the preface of HTTP/2 the order of
//! frames may follow the cuts: such a connection must begin with SETTINGS (RFC 9113 section 3.4).

#![no_main]

#[path = "../../crates/web/tests/transcript/mod.rs"]
mod transcript;

use std::sync::{Arc, LazyLock};

use http2::PREFACE;
use libfuzzer_sys::fuzz_target;
use session::replay::{Cutting, Replayed, run};
use web::{Handle, Peer, ServiceConfig, Session};

/// Input buffer of a driver; longer inputs teach nothing new and cost time.
const INPUT_LEN_MAX: usize = 4096;

/// Type of a SETTINGS frame (RFC 9113 section 6.5), the fourth byte of its header.
const SETTINGS: u8 = 4;

static HANDLE: LazyLock<Arc<Handle>> = LazyLock::new(|| {
    // The folder stays until the process ends: the site opens its files on request.
    let dir = tempfile::tempdir().expect("a directory for the site").keep();
    transcript::make_site(&dir).expect("the site's files");
    transcript::open(&dir, ServiceConfig::default()).expect("the site")
});

fuzz_target!(|input: &[u8]| {
    if input.len() > INPUT_LEN_MAX {
        return;
    }
    let is_http2 = input.starts_with(PREFACE);
    let whole = play(input, Cutting::Whole);
    if !is_http2 {
        assert!(whole.replied.is_empty() || whole.replied.starts_with(b"HTTP/1.1 "), "{whole:?}");
    }
    let seed =
        input.iter().fold(7_u64, |seed, &byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    for cutting in
        [Cutting::Whole, Cutting::EveryByte, Cutting::Seeded(seed), Cutting::Seeded(!seed)]
    {
        let other = play(input, cutting);
        if is_http2 {
            assert_eq!(other.replied.get(3), Some(&SETTINGS), "{cutting:?}: {other:?}");
        } else {
            assert_eq!(other, whole, "{cutting:?}");
        }
    }
});

fn play(input: &[u8], cutting: Cutting) -> Replayed {
    run(Session::new(HANDLE.clone(), Peer::Unix), input, cutting)
}
