//! Any bytes as a request's head and as a chunked body. See `web::oracle` for what must hold.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    web::oracle::check_head(input);
    web::oracle::check_chunks(input);
});
