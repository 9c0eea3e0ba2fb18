//! Signed requests: JWS in its flattened JSON form (RFC 7515), signed with a P-256 key (ES256, RFC
//! 7518 3.4), as RFC 8555 6.2 requires.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::digest::{self, SHA256};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};

/// The key of an account.
#[derive(Debug)]
pub(super) struct AccountKey {
    pair: EcdsaKeyPair,
}

/// A key and its name, issued by an authority outside of ACME, for external account binding.
/// RFC 8555 7.3.4
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExternalAccount {
    pub(super) id: String,
    pub(super) key: Vec<u8>,
}

/// Identity in the header of a signed request.
pub(super) enum Signer<'a> {
    /// The public key, for a new account.
    Key,
    /// The account's address.
    Account(&'a str),
}

impl AccountKey {
    /// A new key, in PKCS #8.
    pub(super) fn generate() -> Result<Vec<u8>, String> {
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random);
        key.map(|key| key.as_ref().to_vec())
            .map_err(|_| "the kernel has no random bytes for a key".to_owned())
    }

    /// Reads a key in PKCS #8.
    pub(super) fn from_pkcs8(der: &[u8]) -> Result<AccountKey, String> {
        let random = SystemRandom::new();
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der, &random)
            .map(|pair| AccountKey { pair })
            .map_err(|error| error.to_string())
    }

    /// The public key. RFC 7517; the order of its members is that of RFC 7638 3.
    fn jwk(&self) -> Value {
        // An uncompressed point: 4, x, y. SEC 1 2.3.3
        let (x, y) = self.pair.public_key().as_ref()[1..].split_at(32);
        json!({"crv": "P-256", "kty": "EC", "x": base64url(x), "y": base64url(y)})
    }

    /// The reply to a challenge with this token. RFC 8555 8.1
    pub(super) fn authorization(&self, token: &str) -> String {
        // serde_json writes members in alphabetical order. RFC 7638 3.3
        let thumbprint = digest::digest(&SHA256, self.jwk().to_string().as_bytes());
        format!("{token}.{}", base64url(thumbprint.as_ref()))
    }

    /// Signs a request; without a payload it is a "POST-as-GET". RFC 8555 6.3
    pub(super) fn sign(
        &self,
        signer: &Signer<'_>,
        url: &str,
        nonce: &str,
        payload: Option<&Value>,
    ) -> Result<String, String> {
        let mut header = json!({"alg": "ES256", "nonce": nonce, "url": url});
        match signer {
            Signer::Key => header["jwk"] = self.jwk(),
            Signer::Account(address) => header["kid"] = json!(address),
        }
        let payload = payload.map_or(String::new(), Value::to_string);
        let random = SystemRandom::new();
        let sign = |input: &[u8]| self.pair.sign(&random, input);
        let signature = |input: &[u8]| match sign(input) {
            Ok(signature) => Ok(signature.as_ref().to_vec()),
            Err(_) => Err("the kernel has no random bytes for a signature".to_owned()),
        };
        Ok(flattened(&header, &payload, signature)?.to_string())
    }

    /// Binds a new account to one known to the authority. RFC 8555 7.3.4
    pub(super) fn bind(&self, external: &ExternalAccount, url: &str) -> Value {
        let header = json!({"alg": "HS256", "kid": external.id, "url": url});
        let key = hmac::Key::new(hmac::HMAC_SHA256, &external.key);
        let signature = |input: &[u8]| Ok(hmac::sign(&key, input).as_ref().to_vec());
        let bound: Result<_, String> = flattened(&header, &self.jwk().to_string(), signature);
        bound.unwrap_or_default()
    }
}

impl ExternalAccount {
    /// Parses `KEY-ID HMAC-KEY`, the key in URL-safe Base64, as authorities show it.
    pub(super) fn read(text: &str) -> Option<ExternalAccount> {
        let mut words = text.split_whitespace();
        let (id, key) = (words.next()?, words.next()?);
        let key = BASE64_URL_SAFE_NO_PAD.decode(key.trim_end_matches('=')).ok();
        let key = key.filter(|_| words.next().is_none())?;
        let id = id.to_owned();
        Some(ExternalAccount { id, key })
    }
}

fn flattened(
    header: &Value,
    payload: &str,
    sign: impl Fn(&[u8]) -> Result<Vec<u8>, String>,
) -> Result<Value, String> {
    let protected = base64url(header.to_string().as_bytes());
    let payload = base64url(payload.as_bytes());
    let signature = sign(format!("{protected}.{payload}").as_bytes())?;
    let signature = base64url(&signature);
    Ok(json!({"protected": protected, "payload": payload, "signature": signature}))
}

pub(super) fn base64url(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};

    use super::*;

    #[test]
    fn a_signed_request_is_verified_by_its_own_key() {
        let key = AccountKey::from_pkcs8(&AccountKey::generate().unwrap()).unwrap();
        let payload = json!({"a": 1});
        for (payload, text) in [(Some(&payload), "{\"a\":1}"), (None, "")] {
            let signed = key.sign(&Signer::Key, "https://ca/x", "n", payload);
            let signed: Value = serde_json::from_str(&signed.unwrap()).unwrap();
            let [header, body, signature] =
                ["protected", "payload", "signature"].map(|part| signed[part].as_str().unwrap());
            let decode = |text| BASE64_URL_SAFE_NO_PAD.decode(text).unwrap();
            assert_eq!(decode(body), text.as_bytes());
            let public = key.pair.public_key().as_ref();
            UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, public)
                .verify(format!("{header}.{body}").as_bytes(), &decode(signature))
                .unwrap();
            let header: Value = serde_json::from_slice(&decode(header)).unwrap();
            assert_eq!(header["jwk"], key.jwk());
            assert_eq!(header["url"], "https://ca/x");
        }
    }

    /// Form by RFC 7638 3.1; the digest of the fixed key was computed with openssl.
    #[test]
    fn members_of_a_thumbprint_are_in_order() {
        let key = AccountKey::from_pkcs8(&AccountKey::generate().unwrap()).unwrap();
        let text = key.jwk().to_string();
        assert!(text.starts_with("{\"crv\":\"P-256\",\"kty\":\"EC\",\"x\":\""), "{text}");
        let reply = key.authorization("token");
        assert_eq!(reply.len(), "token.".len() + 43);
    }

    #[test]
    fn external_accounts_are_two_words() {
        let account = ExternalAccount::read("kid-1 AQID\n").unwrap();
        assert_eq!(account.id, "kid-1");
        assert_eq!(account.key, [1, 2, 3]);
        for wrong in ["", "kid-1", "kid-1 A", "kid-1 AQID more"] {
            assert_eq!(ExternalAccount::read(wrong), None, "{wrong}");
        }
    }
}
