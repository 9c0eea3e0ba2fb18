//! Web servers beside each other.

pub(super) mod cold;
pub(super) mod idle;
pub(super) mod rows;
pub(super) mod throughput;

use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// Bytes that look like nothing, so that a body that is shifted or mixed up is noticed.
pub(super) fn body(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        // xorshift64 (Marsaglia 2003)
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// A folder with a file of each size, `SIZE.html`.
pub(super) fn make_site(folder: &Path, sizes: &[u64]) -> io::Result<()> {
    for &size in sizes {
        fs::write(
            folder.join(format!("{size}.html")),
            body(size, size as usize),
        )?;
    }
    // The ETag of a file that changed in the last two seconds is longer than it is later, and a
    // generator would see replies of two lengths.
    thread::sleep(Duration::from_millis(2500));
    Ok(())
}
