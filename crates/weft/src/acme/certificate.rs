//! Certificates: requests for them, and facts about existing ones.

use std::time::Duration;

use rcgen::{
    CertificateParams, CustomExtension, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256,
};
use ring::digest::{self, SHA256};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

use super::jose::base64url;

/// Facts about an issued certificate with its key, as stored in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Issued {
    /// Its names, in lower case.
    names: Vec<String>,
    not_before_s: u64,
    pub(super) not_after_s: u64,
    /// Its identifier for renewal information, if it has one. RFC 9773 4.1
    pub(super) id: Option<String>,
}

impl Issued {
    /// Reads a chain and its key in PEM.
    ///
    /// # Errors
    /// A sentence about an unusable text.
    pub(super) fn read(pem: &str) -> Result<Issued, String> {
        let (chain, key) = parse(pem)?;
        let first = chain.first().ok_or("there is no certificate in PEM")?;
        let key = KeyPair::try_from(key.secret_der()).map_err(|error| error.to_string())?;
        let (_, certificate) =
            X509Certificate::from_der(first).map_err(|error| error.to_string())?;
        if certificate.public_key().subject_public_key.data != key.public_key_raw() {
            return Err("the certificate is not of this key".to_owned());
        }
        let names = certificate.subject_alternative_name().ok().flatten();
        let names = names.map_or(&[][..], |names| &names.value.general_names);
        let names = names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
            _ => None,
        });
        let validity = certificate.validity();
        let unix_s = |timestamp: i64| timestamp.max(0) as u64;
        Ok(Issued {
            names: names.collect(),
            not_before_s: unix_s(validity.not_before.timestamp()),
            not_after_s: unix_s(validity.not_after.timestamp()),
            id: id(&certificate),
        })
    }

    /// True if it covers all of these names.
    pub(super) fn has(&self, names: &[String]) -> bool {
        names.iter().all(|name| self.names.contains(name))
    }

    /// Time of its renewal if the authority suggests none: when a third of its lifetime is left.
    pub(super) fn renewal_s(&self) -> u64 {
        self.not_after_s - self.life_s() / 3
    }

    /// Least age at a renewal. Any fault that makes a new certificate seem due, such as a wrong
    /// clock or a wrong suggestion of the authority, would affect the next one as well.
    pub(super) fn least_age_s(&self) -> u64 {
        self.life_s() / 30
    }

    pub(super) fn earliest_renewal_s(&self) -> u64 {
        self.not_before_s + self.least_age_s()
    }

    /// Latest time of a renewal, even if a later one is suggested: it leaves time for a retry.
    pub(super) fn latest_renewal_s(&self) -> u64 {
        self.not_after_s - self.life_s() / 10
    }

    fn life_s(&self) -> u64 {
        self.not_after_s.saturating_sub(self.not_before_s)
    }
}

fn id(certificate: &X509Certificate<'_>) -> Option<String> {
    let key = certificate.extensions().iter().find_map(|extension| {
        match extension.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(of) => of.key_identifier.as_ref(),
            _ => None,
        }
    })?;
    let serial = base64url(certificate.raw_serial());
    Some(format!("{}.{serial}", base64url(key.0)))
}

/// Reads a chain and its key in PEM.
pub(super) fn parse(
    pem: &str,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), String> {
    let chain = CertificateDer::pem_slice_iter(pem.as_bytes());
    let chain = chain.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    let key = PrivateKeyDer::from_pem_slice(pem.as_bytes());
    Ok((chain, key.map_err(|error| format!("the key cannot be read: {error}"))?))
}

/// A new key in PEM, and a request in DER for a certificate with these names.
pub(super) fn request(names: &[String]) -> Result<(String, Vec<u8>), String> {
    let failed = |error: rcgen::Error| format!("cannot make a request for a certificate: {error}");
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
    let mut params = CertificateParams::new(names).map_err(failed)?;
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(&key).map_err(failed)?;
    Ok((key.serialize_pem(), request.der().to_vec()))
}

/// The certificate and the key that answer a tls-alpn-01 challenge. RFC 8737 3
pub(super) fn proof(
    name: &str,
    authorization: &str,
) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), String> {
    let failed = |error: rcgen::Error| format!("cannot make a certificate for {name}: {error}");
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
    let mut params = CertificateParams::new([name.to_owned()]).map_err(failed)?;
    params.distinguished_name = DistinguishedName::new();
    let digest = digest::digest(&SHA256, authorization.as_bytes());
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest.as_ref())];
    let certificate = params.self_signed(&key).map_err(failed)?;
    let key = PrivateKeyDer::try_from(key.serialize_der())?;
    Ok((certificate.der().clone(), key))
}

/// Parses an RFC 3339 time to seconds since the epoch.
pub(super) fn unix_s(text: &str) -> Option<u64> {
    let format = &time::format_description::well_known::Rfc3339;
    let time = time::OffsetDateTime::parse(text, format).ok()?;
    u64::try_from(time.unix_timestamp()).ok()
}

/// A duration for people.
pub(super) fn show(time: Duration) -> String {
    match time.as_secs() {
        s @ ..120 => format!("{s} s"),
        s @ ..7_200 => format!("{} min", s / 60),
        s @ ..172_800 => format!("{} h", s / 3_600),
        s => format!("{} days", s / 86_400),
    }
}
