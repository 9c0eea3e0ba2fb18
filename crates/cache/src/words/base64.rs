//! Base64 for keys of the meta protocol, as in memcached: with padding; bits after the last byte
//! are ignored.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// Decodes all of `text` into `buffer`; returns the length. `None` if it is not Base64, or is empty
/// or too long.
pub(crate) fn decode(text: &[u8], buffer: &mut [u8]) -> Option<usize> {
    BASE64.decode_slice(text, buffer).ok().filter(|&len| len > 0)
}

/// Appends `bytes` in Base64.
pub(crate) fn push(bytes: &[u8], to: &mut Vec<u8>) {
    to.extend_from_slice(BASE64.encode(bytes).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_round_trip() {
        for (plain, encoded) in [("f", "Zg=="), ("fo", "Zm8="), ("foobar", "Zm9vYmFy")] {
            let mut text = Vec::new();
            push(plain.as_bytes(), &mut text);
            assert_eq!(text, encoded.as_bytes());
            let mut buffer = [0; 16];
            let len = decode(&text, &mut buffer).unwrap();
            assert_eq!(&buffer[..len], plain.as_bytes());
        }
        assert_eq!(decode(b"Zh==", &mut [0; 16]), Some(1), "bits behind it");
        for text in ["", "Zm9", "Zg=v", "Z===", "Zm9v=", "!!!!", "Zg==Zg=="] {
            assert_eq!(decode(text.as_bytes(), &mut [0; 16]), None, "{text}");
        }
        assert_eq!(decode(b"Zm9vYmFy", &mut [0; 5]), None);
    }
}
