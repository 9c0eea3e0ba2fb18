//! Limits and error lines of the text protocol, parsing and display of words and keys. The binary
//! protocol shares the limits.

pub(crate) mod base64;
mod shown;
mod tokens;

use crate::number::parse_i32;
pub(crate) use shown::{push_encoded, push_plain};
pub(crate) use tokens::{Tokens, without_cr};

/// Longest key, in bytes; protocol.txt, "Keys".
pub(crate) const KEY_LEN_MAX: usize = 250;

/// Longest command line; only retrievals of many keys may be longer. memcached's limit is 2 KiB to
/// 16 KiB, depending on how the line arrives; this one must not depend on that.
pub(crate) const LINE_LEN_MAX: usize = 8192;

/// Longest value that a line can announce: 31 bits, less the line end.
const VALUE_LEN_MAX: i32 = i32::MAX - 2;

/// The length of a value, as announced by its line. Without it the value cannot be skipped.
#[inline]
pub(crate) fn parse_value_len(text: &[u8]) -> Option<usize> {
    let len = parse_i32(text)?;
    (0..=VALUE_LEN_MAX).contains(&len).then_some(len as usize)
}

/// Length from which a value is sent in place; below, copying it behind its header costs less CPU.
pub(crate) const SHARED_LEN_MIN: usize = 16 * 1024;

pub(crate) const ERROR: &[u8] = b"ERROR\r\n";
pub(crate) const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
pub(crate) const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
pub(crate) const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
pub(crate) const NOT_A_NUMBER: &[u8] =
    b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
pub(crate) const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
pub(crate) const NO_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";
/// Refusal while tens of thousands of replies send the same item, in memcached's words.
pub(crate) const TOO_MANY_READERS: &[u8] = b"SERVER_ERROR refcount overflow during fetch\r\n";
