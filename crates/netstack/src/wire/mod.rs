//! Bytes as headers, and headers as bytes: nothing is copied, nothing is allocated, nothing is
//! remembered.
//!
//! A parser takes a slice and gives a small value with what its header says, and a slice of that
//! slice for what follows. It checks what must hold for the value to make sense, such as lengths;
//! what a receiver does with it is decided above. An emitter writes such a value into the room that
//! it is given and says how much it took. `parse(emit(x)) == x` for each of them.

pub mod checksum;
pub mod tcp;

use std::fmt;

/// Why bytes are not what they should be. The frame is dropped and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// It ends before its header does, or before the length that the header says.
    Truncated,
    /// A version, type or length field that cannot be.
    Header,
    /// The checksum does not fit the bytes.
    Checksum,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Malformed::Truncated => "truncated",
            Malformed::Header => "a header that cannot be",
            Malformed::Checksum => "a wrong checksum",
        })
    }
}

impl std::error::Error for Malformed {}

/// The two bytes at `at`, in network order. The caller has checked the length.
fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The four bytes at `at`, in network order. The caller has checked the length.
fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn put16(room: &mut [u8], at: usize, value: u16) {
    room[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn put32(room: &mut [u8], at: usize, value: u32) {
    room[at..at + 4].copy_from_slice(&value.to_be_bytes());
}
