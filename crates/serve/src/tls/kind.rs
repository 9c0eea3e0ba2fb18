//! Supported kinds of keys, and names of unsupported ones.

use std::net::IpAddr;

use rustls::pki_types::CertificateDer;
use session::HostName;
use x509_parser::asn1_rs::Tag;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::{SubjectPublicKeyInfo, X509Version};

/// Key kinds that `ring` supports for signing.
pub(super) const USABLE: &str = "RSA of 2048 to 4096 bits, ECDSA on P-256 or P-384, or Ed25519";

/// Name of a certificate's key kind if it is unsupported; `None` if it is supported, or the
/// certificate cannot be parsed.
pub(super) fn unusable(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let key = certificate.public_key();
    match key.algorithm.algorithm.to_id_string().as_str() {
        "1.2.840.113549.1.1.1" => unusable_rsa(key),
        "1.2.840.10045.2.1" => unusable_curve(key),
        "1.3.101.112" => None,
        "1.2.840.113549.1.1.10" => Some("RSA for PSS alone".to_owned()),
        "1.2.840.10040.4.1" => Some("DSA".to_owned()),
        "1.3.101.113" => Some("Ed448".to_owned()),
        other => Some(format!("the algorithm {other}")),
    }
}

fn unusable_rsa(key: &SubjectPublicKeyInfo<'_>) -> Option<String> {
    let Ok(PublicKey::RSA(key)) = key.parsed() else {
        return None;
    };
    let bits = key.key_size();
    let is_usable = (2048..=4096).contains(&bits);
    (!is_usable).then(|| format!("RSA of {bits} bits"))
}

/// The names are those of RFC 8422 5.1.1 and SEC 2.
fn unusable_curve(key: &SubjectPublicKeyInfo<'_>) -> Option<String> {
    let parameters = key.algorithm.parameters.as_ref()?;
    if parameters.tag() != Tag::Oid {
        // RFC 5480 2.1.1 allows named curves only.
        return Some("ECDSA on a curve that is given by its parameters, not by name".to_owned());
    }
    let curve = parameters.as_oid().ok()?;
    match curve.to_id_string().as_str() {
        "1.2.840.10045.3.1.7" | "1.3.132.0.34" => None,
        "1.3.132.0.35" => Some("ECDSA on the curve P-521".to_owned()),
        "1.3.132.0.10" => Some("ECDSA on the curve secp256k1".to_owned()),
        other => Some(format!("ECDSA on the curve {other}")),
    }
}

/// Names of hosts in a certificate. RFC 5280 4.2.1.6
pub(super) fn names(certificate: &CertificateDer<'_>) -> Vec<HostName> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
        return Vec::new();
    };
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.iter().flat_map(|names| &names.value.general_names);
    names.filter_map(host_name).collect()
}

/// Longest subject that is shown, in characters.
const SUBJECT_LEN_MAX: usize = 256;

/// Subject of a certificate in DER, such as `O=Example, CN=alice`; `None` if it cannot be read. RFC
/// 5280 4.1.2.6
pub fn subject(certificate: &[u8]) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let subject = certificate.subject().to_string();
    Some(subject.chars().take(SUBJECT_LEN_MAX).collect())
}

fn host_name(name: &GeneralName<'_>) -> Option<HostName> {
    let address: IpAddr = match name {
        GeneralName::DNSName(name) => return name.parse().ok(),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok()?.into(),
            _ => <[u8; 16]>::try_from(*bytes).ok()?.into(),
        },
        _ => return None,
    };
    let text = match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    };
    text.parse().ok()
}

/// True if a certificate is not of version 3, which TLS demands. RFC 8446 4.4.2.2
pub(super) fn is_old(certificate: &CertificateDer<'_>) -> bool {
    X509Certificate::from_der(certificate)
        .is_ok_and(|(_, certificate)| certificate.version() != X509Version::V3)
}

/// The first certificate of a chain that the next one did not sign, by the names in them.
pub(super) fn first_unlinked(chain: &[CertificateDer<'_>]) -> Option<usize> {
    let names = |der| {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let issuer = certificate.issuer().as_raw().to_vec();
        Some((certificate.subject().as_raw().to_vec(), issuer))
    };
    let names: Option<Vec<_>> = chain.iter().map(|der| names(der)).collect();
    names?.windows(2).position(|pair| pair[0].1 != pair[1].0)
}
