//! Contents of a file that contains no certificate or no key.

/// True if the key in a file is encrypted: the server cannot ask for a passphrase.
pub(super) fn is_encrypted_key(bytes: &[u8]) -> bool {
    has(bytes, "ENCRYPTED")
}

/// Labels of PEM (RFC 7468) and the remedy for such a file. The first match applies.
const LABELS: &[(&str, &str)] = &[
    (
        "BEGIN OPENSSH PRIVATE KEY",
        ": it holds a key of OpenSSH; ssh-keygen -p -m PKCS8 -f COPY writes it as PEM",
    ),
    ("PRIVATE KEY-----", ": it holds a private key"),
    ("BEGIN CERTIFICATE-----", ": it holds a certificate"),
    (
        "CERTIFICATE REQUEST-----",
        ": it holds a request for a certificate; an authority's answer to it is needed",
    ),
    (
        "BEGIN TRUSTED CERTIFICATE",
        ": it holds a certificate in OpenSSL's own form; openssl x509 -in FILE writes PEM",
    ),
    ("BEGIN PKCS7", ": it is PKCS #7; openssl pkcs7 -print_certs -in FILE writes PEM"),
    ("PUBLIC KEY-----", ": it holds a public key"),
];

/// A remedy for a file without usable contents; empty if none is known.
pub(super) fn instead(bytes: &[u8]) -> &'static str {
    if has(bytes, "-----BEGIN ") && !bytes.split(is_newline).any(begins_section) {
        return ": its -----BEGIN does not begin a line";
    }
    if let Some((_, remedy)) = LABELS.iter().find(|(label, _)| has(bytes, label)) {
        return remedy;
    }
    // PKCS #12 is a sequence that begins with its version, which is 3. RFC 7292 4
    let is_pkcs12 = bytes.windows(3).take(8).any(|place| place == [2, 1, 3]);
    match bytes.first() {
        None => ": it is empty",
        // The first byte of a sequence in DER. X.690 8.9
        Some(0x30) if is_pkcs12 => {
            ": it is PKCS #12; openssl pkcs12 -nodes -in FILE writes certificate and key as PEM"
        }
        Some(0x30) => ": it is DER; openssl x509 or openssl pkey with -inform DER writes PEM",
        // The byte order mark of a file written by PowerShell.
        Some(0xfe | 0xff) => ": it is UTF-16; write it as UTF-8",
        _ => "",
    }
}

fn is_newline(byte: &u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

fn begins_section(line: &[u8]) -> bool {
    line.starts_with(b"-----BEGIN ")
}

fn has(bytes: &[u8], words: &str) -> bool {
    let mut places = bytes.windows(words.len());
    places.any(|place| place == words.as_bytes())
}
