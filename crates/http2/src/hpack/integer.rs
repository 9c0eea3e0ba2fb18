//! Integers with a prefix of some bits, RFC 7541 5.1.

use super::decoder::CompressionError;

/// Octets behind the prefix. Five carry 35 bits; RFC 7541 7.4 asks for a limit.
const MORE_MAX: usize = 5;

/// Appends `value`; `first` has the bits of the first octet above the prefix.
pub(super) fn put(value: usize, prefix_bits: u32, first: u8, out: &mut Vec<u8>) {
    let limit = (1 << prefix_bits) - 1;
    if value < limit {
        out.push(first | value as u8);
        return;
    }
    out.push(first | limit as u8);
    let mut rest = value - limit;
    while rest >= 128 {
        out.push(rest as u8 | 128);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Takes an integer off the front of `input`.
#[inline]
pub(super) fn take(input: &mut &[u8], prefix_bits: u32) -> Result<usize, CompressionError> {
    let (&first, rest) = input.split_first().ok_or(CompressionError::Truncated)?;
    *input = rest;
    let limit = (1 << prefix_bits) - 1;
    let value = usize::from(first) & limit;
    if value < limit {
        return Ok(value);
    }
    take_more(input, limit as u64)
}

#[cold]
fn take_more(input: &mut &[u8], limit: u64) -> Result<usize, CompressionError> {
    let mut value = limit;
    for (at, &byte) in input.iter().take(MORE_MAX).enumerate() {
        value += u64::from(byte & 127) << (7 * at);
        if byte < 128 {
            *input = &input[at + 1..];
            let value = u32::try_from(value).map_err(|_| CompressionError::IntegerTooLong)?;
            return Ok(value as usize);
        }
    }
    Err(if input.len() < MORE_MAX {
        CompressionError::Truncated
    } else {
        CompressionError::IntegerTooLong
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(value: usize, prefix_bits: u32, bytes: &[u8]) {
        let mut out = Vec::new();
        put(value, prefix_bits, 0, &mut out);
        assert_eq!(out, bytes);
        let mut input = bytes;
        assert_eq!(take(&mut input, prefix_bits), Ok(value));
        assert_eq!(input, b"");
        for end in 0..bytes.len() {
            let cut = take(&mut &bytes[..end], prefix_bits);
            assert_eq!(cut, Err(CompressionError::Truncated));
        }
    }

    #[test]
    fn rfc_7541_c_1() {
        both(10, 5, &[10]);
        both(1337, 5, &[31, 154, 10]);
        both(42, 8, &[42]);
    }

    #[test]
    fn edges_of_a_prefix() {
        both(0, 4, &[0]);
        both(14, 4, &[14]);
        both(15, 4, &[15, 0]);
        both(15 + 127, 4, &[15, 127]);
        both(15 + 128, 4, &[15, 128, 1]);
        both(u32::MAX as usize, 7, &[127, 128, 255, 255, 255, 15]);
    }

    #[test]
    fn beyond_32_bits_is_an_error() {
        let too_long = Err(CompressionError::IntegerTooLong);
        assert_eq!(take(&mut &[127, 129, 255, 255, 255, 15][..], 7), too_long);
        assert_eq!(take(&mut &[127, 128, 128, 128, 128, 128, 0][..], 7), too_long);
        assert_eq!(take(&mut &[127, 255, 255, 255, 255, 255][..], 7), too_long);
    }
}
