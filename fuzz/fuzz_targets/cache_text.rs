//! Any bytes as a conversation in the classic text protocol.

#![no_main]

mod cache;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if input.first() != Some(&0x80) {
        cache::check(input);
    }
});
