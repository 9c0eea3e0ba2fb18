//! Certificates obtained at run time, and proofs for their authority.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::Error;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ClientHello;
use rustls::sign::CertifiedKey;

/// Certificates by name. They take precedence over those of files.
///
/// A connection for a name without a certificate yet is refused: the client would refuse one of
/// another name, and a self-signed one would teach people to click warnings away.
#[derive(Debug, Default)]
pub struct Managed {
    names: RwLock<HashMap<String, Option<Arc<CertifiedKey>>>>,
    /// Proofs for names that are being validated. RFC 8737
    proofs: RwLock<HashMap<String, Arc<CertifiedKey>>>,
}

impl PartialEq for Managed {
    fn eq(&self, other: &Managed) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Managed {}

/// The only protocol that a validating authority offers. RFC 8737 4
pub(super) const PROOF_PROTOCOL: &[u8] = b"acme-tls/1";

impl Managed {
    /// Sets the names; certificates of remaining names are kept.
    pub fn set_names(&self, names: impl IntoIterator<Item = String>) {
        let mut held = self.names.write().unwrap_or_else(PoisonError::into_inner);
        let names = names.into_iter().map(|name| {
            let pair = held.get(&name).cloned().flatten();
            (name, pair)
        });
        *held = names.collect();
    }

    /// Uses a certificate for new connections to these names.
    ///
    /// # Errors
    /// A sentence about a key that does not match.
    pub fn install(
        &self,
        names: &[String],
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<(), String> {
        let pair = CertifiedKey::from_der(chain, key, &ring::default_provider());
        let pair = pair.map(Arc::new).map_err(|error| unusable(&error))?;
        let mut held = self.names.write().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            // A reload may have removed the name.
            if let Some(old) = held.get_mut(name) {
                *old = Some(Arc::clone(&pair));
            }
        }
        Ok(())
    }

    /// Shows a proof to an authority that connects for this name by tls-alpn-01.
    ///
    /// # Errors
    /// A sentence about a key that does not match.
    pub fn show_proof(
        &self,
        name: &str,
        proof: CertificateDer<'static>,
        key: PrivateKeyDer<'static>,
    ) -> Result<(), String> {
        let key = ring::default_provider().key_provider.load_private_key(key);
        let key = key.map_err(|error| unusable(&error))?;
        // rustls does not know its critical extension, and would refuse to parse it.
        let pair = Arc::new(CertifiedKey::new(vec![proof], key));
        let mut proofs = self.proofs.write().unwrap_or_else(PoisonError::into_inner);
        proofs.insert(name.to_owned(), pair);
        Ok(())
    }

    /// Stops showing the proof.
    pub fn hide_proof(&self, name: &str) {
        let mut proofs = self.proofs.write().unwrap_or_else(PoisonError::into_inner);
        proofs.remove(name);
    }

    /// True if two names have the same certificate.
    pub(super) fn is_shared(&self, one: &str, other: &str) -> bool {
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        let pair = |name: &str| names.get(&name.to_ascii_lowercase()).cloned().flatten();
        (pair(one).zip(pair(other))).is_some_and(|(one, other)| Arc::ptr_eq(&one, &other))
    }

    /// The certificate for a client, or its refusal; `None` if the name is not managed.
    pub(super) fn find(&self, hello: &ClientHello<'_>) -> Option<Option<Arc<CertifiedKey>>> {
        let name = hello.server_name().map(str::to_ascii_lowercase);
        let only = |protocols: &mut dyn Iterator<Item = &[u8]>| {
            protocols.next() == Some(PROOF_PROTOCOL) && protocols.next().is_none()
        };
        if hello.alpn().is_some_and(|mut protocols| only(&mut protocols)) {
            let proofs = self.proofs.read().unwrap_or_else(PoisonError::into_inner);
            return Some(name.and_then(|name| proofs.get(&name).cloned()));
        }
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        names.get(&name?).cloned()
    }
}

fn unusable(error: &Error) -> String {
    format!("the certificate cannot be used with its key: {error}")
}
