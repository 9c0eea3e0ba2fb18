//! Numbers as memcached reads and writes them in text.
//!
//! Most consist of digits only, signed ones with an optional minus sign. Flags and expiry times of
//! a store, and the value to count, are parsed as by C's `strtol`, which accepts ` +12` and
//! `12\tx`.

/// Parses a number in `0..=u64::MAX`, digits only.
pub(crate) fn parse_u64(text: &[u8]) -> Option<u64> {
    let are_digits = text.iter().all(u8::is_ascii_digit);
    parse_digits(text).filter(|_| are_digits)
}

/// Parses a number of 32 bits, digits only.
pub(crate) fn parse_u32(text: &[u8]) -> Option<u32> {
    parse_u64(text).and_then(|value| u32::try_from(value).ok())
}

/// Parses a signed number of 32 bits, digits only after its sign.
pub(crate) fn parse_i32(text: &[u8]) -> Option<i32> {
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let value = i64::try_from(parse_u64(digits)?).ok()?;
    i32::try_from(if is_negative { -value } else { value }).ok()
}

/// Parses the number in a value, as `strtoull` does.
pub(crate) fn parse_value(text: &[u8]) -> Option<u64> {
    match split_sign(text) {
        (false, digits) => parse_digits(digits),
        (true, digits) => parse_digits(digits).filter(|&value| value == 0),
    }
}

/// Parses the flags of a store: the low 32 bits of a number.
pub(crate) fn parse_flags(text: &[u8]) -> Option<u32> {
    parse_value(text).map(|value| value as u32)
}

/// Parses an expiry time. memcached truncates it to 32 bits, so times beyond 2038 have expired;
/// here they have not.
pub(crate) fn parse_exptime(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = split_sign(text);
    let value = i64::try_from(parse_digits(digits)?).ok()?;
    Some(if is_negative { -value } else { value })
}

/// Parses a signed decimal fraction, as `lru tune` takes it.
pub(crate) fn parse_f64(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

fn split_sign(text: &[u8]) -> (bool, &[u8]) {
    let start = text.iter().position(|&byte| !is_space(byte)).unwrap_or(text.len());
    match &text[start..] {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    }
}

#[inline]
fn parse_digits(text: &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    let mut count = 0;
    for &byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            // strtoul reads a C string, which ends at a NUL.
            return (count > 0 && (is_space(byte) || byte == 0)).then_some(value);
        }
        value = value.checked_mul(10)?.checked_add(digit.into())?;
        count += 1;
    }
    (count > 0).then_some(value)
}

/// C's `isspace` in the C locale.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Longest decimal that [`decimal`] writes.
pub(crate) const DECIMAL_LEN_MAX: usize = 20;

/// Writes `value` at the end of `buffer`, and returns the digits.
#[inline]
pub(crate) fn decimal(mut value: u64, buffer: &mut [u8; DECIMAL_LEN_MAX]) -> &[u8] {
    let mut at = buffer.len();
    loop {
        at -= 1;
        buffer[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            return &buffer[at..];
        }
    }
}

/// Appends `value` in decimal.
#[inline]
pub(crate) fn push_decimal(value: u64, to: &mut Vec<u8>) {
    if value < 10 {
        to.push(b'0' + value as u8);
    } else {
        to.extend_from_slice(decimal(value, &mut [0; DECIMAL_LEN_MAX]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_parse_as_by_strtoul() {
        assert_eq!(parse_value(b" +12"), Some(12));
        assert_eq!(parse_value(b"12\tx"), Some(12));
        assert_eq!(parse_value(b"12x"), None);
        assert_eq!(parse_value(b"12\0x"), Some(12));
        assert_eq!(parse_value(b"\x0012"), None);
        assert_eq!(parse_value(b""), None);
        assert_eq!(parse_value(b"-"), None);
        assert_eq!(parse_value(b"-0"), Some(0));
        assert_eq!(parse_value(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_value(b"18446744073709551616"), None);
        assert_eq!(parse_flags(b"4294967296"), Some(0));
    }

    #[test]
    fn negative_numbers_do_not_wrap() {
        for text in [&b"-1"[..], b"-9223372036854775809", b"-18446744073709551615"] {
            assert_eq!((parse_u64(text), parse_value(text)), (None, None));
        }
    }

    #[test]
    fn command_numbers_are_digits() {
        for text in [&b""[..], b"+1", b" 1", b"1 ", b"1\t", b"1.5", b"0x1", b"-", b"--1"] {
            assert_eq!((parse_u64(text), parse_i32(text)), (None, None), "{text:?}");
        }
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u64(b"18446744073709551616"), None);
        assert_eq!(parse_u32(b"4294967296"), None);
        assert_eq!(parse_u64(b"007"), Some(7));
    }

    #[test]
    fn signed_numbers_have_32_bits() {
        assert_eq!(parse_i32(b"-5"), Some(-5));
        assert_eq!(parse_i32(b"2147483647"), Some(i32::MAX));
        assert_eq!(parse_i32(b"2147483648"), None);
        assert_eq!(parse_i32(b"-2147483648"), Some(i32::MIN));
        assert_eq!(parse_exptime(b"4000000000"), Some(4_000_000_000));
        assert_eq!(parse_exptime(b"-1"), Some(-1));
    }

    #[test]
    fn decimals_are_written_in_full() {
        for value in [0, 9, 10, 99, 12_345, u64::MAX] {
            let mut text = Vec::new();
            push_decimal(value, &mut text);
            assert_eq!(text, value.to_string().as_bytes());
        }
    }
}
