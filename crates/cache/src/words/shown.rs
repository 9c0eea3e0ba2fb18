//! Display of keys in lines of text: logs, listings and `stats`.

use std::fmt::Write as _;

/// Writes a key as in log lines and dumps: every special byte becomes `%NN`.
pub(crate) fn push_encoded(key: &[u8], to: &mut String) {
    for &byte in key {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            to.push(byte.into());
        } else {
            let _ = write!(to, "%{byte:02X}");
        }
    }
}

/// Writes a key on a line of text: unchanged, or encoded if it contains a byte that would end the
/// line or the word. A key of the binary protocol may contain any byte.
pub(crate) fn push_plain(key: &[u8], to: &mut Vec<u8>) {
    if key.iter().all(|&byte| byte > b' ' && byte != 0x7f) {
        return to.extend_from_slice(key);
    }
    let mut encoded = String::new();
    push_encoded(key, &mut encoded);
    to.extend_from_slice(encoded.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_escaped() {
        let mut shown = String::new();
        push_encoded(b"w%\x01n,a-b", &mut shown);
        assert_eq!(shown, "w%25%01n%2Ca-b");
        for (key, expected) in [(&b"a%\xff"[..], &b"a%\xff"[..]), (b"a\r\nb", b"a%0D%0Ab")] {
            let mut plain = Vec::new();
            push_plain(key, &mut plain);
            assert_eq!(plain, expected);
        }
    }
}
