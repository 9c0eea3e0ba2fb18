//! Any bytes as a request's head and as a chunked body. See `web::oracle_test` for what must hold.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    web::oracle_test::check_head(input);
    web::oracle_test::check_chunks(input);
});
