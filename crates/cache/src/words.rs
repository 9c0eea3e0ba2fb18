//! Limits and error lines of the text protocol, and the reading and showing of words and keys. The
//! binary protocol shares the limits.

pub(crate) mod base64;
mod shown;
mod tokens;

use crate::number::parse_i32;
pub(crate) use shown::{push_encoded, push_plain};
pub(crate) use tokens::{Tokens, without_cr};

/// The longest key, in bytes; protocol.txt, "Keys".
pub(crate) const KEY_LEN_MAX: usize = 250;

/// The longest command line; only retrievals of many keys may be longer. memcached holds 2 KiB to
/// 16 KiB, depending on how the line arrives; ours must not depend on that.
pub(crate) const LINE_LEN_MAX: usize = 8192;

/// The longest value that a line can announce: what is left of 31 bits for the line's end.
const VALUE_LEN_MAX: i32 = i32::MAX - 2;

/// The length that a line announces for its value. Without it the value cannot be skipped.
#[inline]
pub(crate) fn parse_value_len(text: &[u8]) -> Option<usize> {
    let len = parse_i32(text)?;
    (0..=VALUE_LEN_MAX).contains(&len).then_some(len as usize)
}

/// From here on a value is sent where it lies; below, copying it behind its header is cheaper.
pub(crate) const SHARED_LEN_MIN: usize = 16 * 1024;

pub(crate) const ERROR: &[u8] = b"ERROR\r\n";
pub(crate) const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
pub(crate) const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
pub(crate) const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
pub(crate) const NOT_A_NUMBER: &[u8] =
    b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
pub(crate) const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
pub(crate) const NO_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";
/// Tens of thousands of replies send this very item: one more is refused. memcached's words.
pub(crate) const TOO_MANY_READERS: &[u8] = b"SERVER_ERROR refcount overflow during fetch\r\n";
