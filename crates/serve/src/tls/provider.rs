//! The cryptography of TLS: cipher suites and key exchanges, in the order of preference.

use rustls::SupportedCipherSuite;
use rustls::crypto::{CryptoProvider, ring};

use super::hybrid::X25519_ML_KEM_768;

/// All of `ring`, and the hybrid key exchange until `ring` has it. Key exchanges are chosen by the
/// client's order, suites by the server's: those with AES-128 come first, as in browsers, since
/// they are faster and no weaker in practice.
fn all() -> CryptoProvider {
    let mut ring = ring::default_provider();
    ring.cipher_suites.sort_by_key(|suite| !format!("{:?}", suite.suite()).contains("AES_128"));
    ring.kx_groups.insert(0, &X25519_ML_KEM_768);
    ring
}

/// rustls's provider with all suites, or those of the list in its order.
///
/// # Errors
/// A sentence that lists the available suites.
pub(super) fn provider(names: &[String]) -> Result<CryptoProvider, String> {
    let all = all();
    if names.is_empty() {
        return Ok(all);
    }
    let known = || all.cipher_suites.iter().map(openssl_name).collect::<Vec<_>>();
    let suite = |name: &String| {
        let found = all.cipher_suites.iter().find(|suite| openssl_name(suite) == *name);
        found.copied().ok_or_else(|| {
            format!("there is no cipher suite '{name}'; there are {}", known().join(", "))
        })
    };
    let cipher_suites = names.iter().map(suite).collect::<Result<Vec<_>, _>>()?;
    Ok(CryptoProvider { cipher_suites, ..all })
}

/// OpenSSL's name of a suite: `ECDHE-RSA-AES128-GCM-SHA256` for
/// `TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256`. TLS 1.3 suites have one name. openssl-ciphers(1)
fn openssl_name(suite: &SupportedCipherSuite) -> String {
    let name = format!("{:?}", suite.suite());
    match name.strip_prefix("TLS13_") {
        Some(rest) => format!("TLS_{rest}"),
        None => name
            .trim_start_matches("TLS_")
            .replace("_WITH", "")
            .replace("AES_", "AES")
            .replace("_POLY1305_SHA256", "_POLY1305")
            .replace('_', "-"),
    }
}
