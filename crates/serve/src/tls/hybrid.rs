//! The hybrid key exchange of browsers, X25519MLKEM768: traffic recorded today stays secret from
//! future quantum computers, and X25519 protects it should ML-KEM be broken.
//! draft-ietf-tls-ecdhe-mlkem

use ml_kem::{Encapsulate, EncapsulationKey768, TryKeyInit};
use rustls::crypto::ring::kx_group::X25519;
use rustls::crypto::{ActiveKeyExchange, CompletedKeyExchange, SharedSecret, SupportedKxGroup};
use rustls::ffdhe_groups::FfdheGroup;
use rustls::{Error, NamedGroup, PeerMisbehaved, ProtocolVersion};

/// Length of an encapsulation key, before the client's key of X25519. FIPS 203, table 3
const ENCAPSULATION_KEY_LENGTH: usize = 1184;

const INVALID: Error = Error::PeerMisbehaved(PeerMisbehaved::InvalidKeyShare);

pub(super) static X25519_ML_KEM_768: Hybrid = Hybrid;

/// The server's half: encapsulates a secret for the client's key.
#[derive(Debug)]
pub(super) struct Hybrid;

impl SupportedKxGroup for Hybrid {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        Err(Error::General("a server never begins a key exchange".into()))
    }

    fn start_and_complete(&self, client_share: &[u8]) -> Result<CompletedKeyExchange, Error> {
        let (key, x25519) =
            client_share.split_at_checked(ENCAPSULATION_KEY_LENGTH).ok_or(INVALID)?;
        let x25519 = X25519.start_and_complete(x25519)?;
        // A key with an unreduced coefficient is refused. FIPS 203, 7.2
        let key = EncapsulationKey768::new_from_slice(key).map_err(|_| INVALID)?;
        let (ciphertext, secret) = key.encapsulate();
        let secret = [&secret[..], x25519.secret.secret_bytes()].concat();
        Ok(CompletedKeyExchange {
            group: self.name(),
            pub_key: [&ciphertext[..], &x25519.pub_key].concat(),
            secret: SharedSecret::from(secret),
        })
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519MLKEM768
    }

    fn usable_for_version(&self, version: ProtocolVersion) -> bool {
        version == ProtocolVersion::TLSv1_3
    }
}

#[cfg(test)]
mod tests {
    use ml_kem::kem::{Decapsulate, Generate, KeyExport};
    use ml_kem::{DecapsulationKey768, SharedKey};

    use super::*;

    /// A client's ML-KEM key, its X25519 exchange, and its key share.
    fn client() -> (DecapsulationKey768, Box<dyn ActiveKeyExchange>, Vec<u8>) {
        let key = DecapsulationKey768::generate();
        let x25519 = X25519.start().unwrap();
        let share = [&key.encapsulation_key().to_bytes()[..], x25519.pub_key()].concat();
        (key, x25519, share)
    }

    #[test]
    fn both_sides_have_one_secret() {
        let (key, x25519, share) = client();
        let server = Hybrid.start_and_complete(&share).unwrap();
        let (ciphertext, public) = server.pub_key.split_at(1088);
        let secret: SharedKey = key.decapsulate_slice(ciphertext).unwrap();
        let expected = [&secret[..], x25519.complete(public).unwrap().secret_bytes()].concat();
        assert_eq!(server.secret.secret_bytes(), expected);
        assert_eq!(expected.len(), 64);
    }

    #[test]
    fn a_share_that_is_none_is_refused() {
        let (_, _, share) = client();
        let refused = |share: &[u8]| {
            let error = Hybrid.start_and_complete(share).err().expect("a refusal");
            assert_eq!(error, INVALID, "{} bytes", share.len());
        };
        for length in [0, 32, 1183, 1184, 1215] {
            refused(&share[..length]);
        }
        refused(&[&share[..], b"x"].concat());
        // Coefficients of twelve bits: 4095 is not below q = 3329.
        refused(&[&[0xff; 3], &share[3..]].concat());
        // A point of low order.
        refused(&[&share[..1184], &[0; 32]].concat());
    }
}
