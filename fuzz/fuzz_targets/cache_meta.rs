//! Any lines as meta commands: the first byte of each chooses the command.

#![no_main]

mod cache;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut conversation = Vec::new();
    for line in input.split_inclusive(|&byte| byte == b'\n') {
        let (choice, rest) = line.split_first().expect("a line is not empty");
        let command: &[u8] = match choice % 8 {
            0 | 1 => b"mg ",
            2 | 3 => b"ms ",
            4 => b"md ",
            5 => b"ma ",
            6 => b"me ",
            // No command: the line is a value, or anything else.
            _ => b"",
        };
        conversation.extend_from_slice(command);
        conversation.extend_from_slice(rest);
    }
    cache::check(&conversation);
});
