//! Any bytes as requests of the binary protocol; most header lengths are corrected to fit.

#![no_main]

mod cache;

use libfuzzer_sys::fuzz_target;

/// opcode, key length, extras length, value length, cas; then the body.
const CHOICES: usize = 5;

fuzz_target!(|input: &[u8]| {
    let mut conversation = Vec::new();
    let mut rest = input;
    while let Some((&[opcode, key_len, extras, value_len, cas], after)) =
        rest.split_first_chunk::<CHOICES>()
    {
        let extras_len = [0, 4, 8, 20][usize::from(extras % 4)];
        let is_honest = extras < 0xf0;
        let body_len = usize::from(key_len) + extras_len + usize::from(value_len);
        let announced = if is_honest { body_len } else { body_len / 2 } as u32;
        let (body, next) = after.split_at(body_len.min(after.len()));
        conversation.extend([0x80, opcode % 0x30, 0, key_len, extras_len as u8, 0, 0, 0]);
        conversation.extend(announced.to_be_bytes());
        conversation.extend([0, 0, 0, opcode, 0, 0, 0, 0, 0, 0, 0, cas % 4]);
        conversation.extend_from_slice(body);
        rest = next;
    }
    cache::check(&conversation);
});
