//! Base64 with the standard alphabet and padding, for the keys of the meta protocol. RFC 4648
//! section 4.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Not a digit of the alphabet.
const NONE: u8 = 0xff;

static VALUES: [u8; 256] = values();

const fn values() -> [u8; 256] {
    let mut values = [NONE; 256];
    let mut at = 0;
    while at < 64 {
        values[ALPHABET[at] as usize] = at as u8;
        at += 1;
    }
    values
}

/// Decodes all of `text` into `room`; returns how many bytes that made. `None` if it is not Base64,
/// is empty, or does not fit.
pub(crate) fn decode(text: &[u8], room: &mut [u8]) -> Option<usize> {
    if text.is_empty() || !text.len().is_multiple_of(4) {
        return None;
    }
    let mut len = 0;
    let quads = text.len() / 4;
    for (at, quad) in text.chunks_exact(4).enumerate() {
        let is_last = at + 1 == quads;
        let digits = match quad {
            [_, _, b'=', b'='] if is_last => 2,
            [_, _, _, b'='] if is_last => 3,
            _ => 4,
        };
        let mut bits = 0_u32;
        for &byte in &quad[..digits] {
            let value = VALUES[usize::from(byte)];
            if value == NONE {
                return None;
            }
            bits = bits << 6 | u32::from(value);
        }
        bits <<= 6 * (4 - digits);
        let bytes = &bits.to_be_bytes()[1..digits];
        room.get_mut(len..len + bytes.len())?.copy_from_slice(bytes);
        len += bytes.len();
    }
    Some(len)
}

/// Appends `bytes` in Base64.
pub(crate) fn push(bytes: &[u8], to: &mut Vec<u8>) {
    for group in bytes.chunks(3) {
        let mut three = [0; 3];
        three[..group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
        for digit in 0..4 {
            to.push(match digit <= group.len() {
                true => ALPHABET[(bits >> (18 - 6 * digit) & 63) as usize],
                false => b'=',
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_rfc_4648_go_both_ways() {
        let vectors = [
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, encoded) in vectors {
            let mut text = Vec::new();
            push(plain.as_bytes(), &mut text);
            assert_eq!(text, encoded.as_bytes());
            let mut room = [0; 16];
            let len = decode(encoded.as_bytes(), &mut room).unwrap();
            assert_eq!(&room[..len], plain.as_bytes());
        }
    }

    #[test]
    fn what_is_not_base64_is_refused() {
        for text in ["", "Zm9", "Zg=v", "Z===", "Zm9v=", "!!!!", "Zg==Zg=="] {
            assert_eq!(decode(text.as_bytes(), &mut [0; 16]), None, "{text}");
        }
        assert_eq!(decode(b"Zm9vYmFy", &mut [0; 5]), None);
    }
}
