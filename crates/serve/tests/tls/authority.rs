//! An authority for tests.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use serve::tls::{Certificate, TlsOptions};

/// A folder with an authority and certificates that it signed.
pub(crate) struct Authority {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Authority { folder, issuer }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes `NAME.pem` and `NAME.key`.
    pub(crate) fn sign(&self, name: &str) {
        self.sign_for(name, &["localhost"]);
    }

    pub(crate) fn sign_for(&self, name: &str, hosts: &[&str]) {
        let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
        self.sign_as(name, CertificateParams::new(hosts).unwrap());
    }

    pub(crate) fn sign_as(&self, name: &str, params: CertificateParams) {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(self.file(&format!("{name}.pem")), certificate.pem()).unwrap();
        fs::write(self.file(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    pub(crate) fn certificate(&self, chain: &str, key: &str) -> Certificate {
        Certificate {
            chain: self.file(&format!("{chain}.pem")),
            key: Some(self.file(&format!("{key}.key"))),
            names: Vec::new(),
        }
    }

    pub(crate) fn options(&self) -> TlsOptions {
        TlsOptions {
            certificates: vec![self.certificate("server", "server")],
            ..TlsOptions::default()
        }
    }

    /// A client that supports only these versions.
    pub(crate) fn client_with(
        &self,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(versions).unwrap();
        Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
    }

    pub(crate) fn client(&self, shows: Option<&str>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match shows {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let chain = CertificateDer::from_pem_file(self.file(&format!("{name}.pem")));
                let key = PrivateKeyDer::from_pem_file(self.file(&format!("{name}.key")));
                builder.with_client_auth_cert(vec![chain.unwrap()], key.unwrap()).unwrap()
            }
        })
    }
}
