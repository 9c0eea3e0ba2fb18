//! What a file holds in place of the certificate or the key that it was named for.

use std::fs;
use std::path::Path;

/// Whether the key in a file needs a passphrase, for which a start cannot ask.
pub(super) fn is_encrypted_key(file: &Path) -> bool {
    has(&bytes_of(file), "ENCRYPTED")
}

/// A remedy for a file in which nothing was found, or nothing if none is known.
pub(super) fn instead(file: &Path) -> &'static str {
    let bytes = bytes_of(file);
    // The first byte of a sequence in DER. X.690 8.9
    let is_der = bytes.first() == Some(&0x30);
    if has(&bytes, "PRIVATE KEY-----") {
        ": it holds a private key"
    } else if has(&bytes, "BEGIN CERTIFICATE-----") {
        ": it holds a certificate"
    } else if is_der {
        ": it is DER; openssl x509 or openssl pkey with -inform DER writes PEM"
    } else {
        ""
    }
}

/// The bytes of a regular file. Another one may be gone by now, or keep its reader waiting.
fn bytes_of(file: &Path) -> Vec<u8> {
    match fs::metadata(file).is_ok_and(|there| there.is_file()) {
        true => fs::read(file).unwrap_or_default(),
        false => Vec::new(),
    }
}

fn has(bytes: &[u8], words: &str) -> bool {
    let mut places = bytes.windows(words.len());
    places.any(|place| place == words.as_bytes())
}
