//! Certificate and key files: parsing, and an error sentence for each unusable one.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use ring::digest;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::CertifiedKey;
use rustls::{Error, RootCertStore};
use session::HostName;

use super::validity::Validity;
use super::{Certificate, Clients, TlsOptions, held, kind};

/// Longest certificate file: all public authorities together take 0.3 MB.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// A certificate chain with its key.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) pair: Arc<CertifiedKey>,
    /// Names in the certificate.
    pub(super) names: Vec<HostName>,
    pub(super) validity: Validity,
    /// A fault that some clients tolerate.
    pub(super) fault: Option<String>,
}

impl Loaded {
    /// Reads the files of a certificate.
    ///
    /// # Errors
    /// A sentence that names the file and its fault.
    pub(super) fn open(
        certificate: &Certificate,
        options: &TlsOptions,
        provider: &CryptoProvider,
    ) -> Result<Arc<Loaded>, String> {
        let chain = chain(&certificate.chain)?;
        let key = key(certificate, options)?;
        let pair = CertifiedKey::from_der(chain.clone(), key.clone_key(), provider)
            .map_err(|error| refusal(certificate, &chain, &key, provider, &error))?;
        Ok(Arc::new(Loaded {
            pair: Arc::new(pair),
            names: kind::names(&chain[0]),
            validity: Validity::of(certificate.chain.clone(), &chain),
            fault: kind::first_unlinked(&chain).map(|at| {
                let file = certificate.chain.display();
                format!(
                    "the chain in {file} is out of order: certificate {} did not sign certificate \
                     {}, and clients may not find the way to one that they know",
                    at + 2,
                    at + 1
                )
            }),
        }))
    }

    /// True if the certificate covers a host; a wildcard must match exactly.
    pub(super) fn is_for(&self, host: &HostName) -> bool {
        let wildcard = host.as_str().split_once('.').map(|(_, rest)| format!("*.{rest}"));
        let is_it = |name: &HostName| name == host || Some(name.as_str()) == wildcard.as_deref();
        self.names.iter().any(is_it)
    }
}

/// The reason why a certificate cannot be used with its key.
fn refusal(
    certificate: &Certificate,
    chain: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
    provider: &CryptoProvider,
    error: &Error,
) -> String {
    let file = certificate.chain.display();
    let key_file = certificate.key_file().display();
    if provider.key_provider.load_private_key(key.clone_key()).is_err() {
        let kind = kind::unusable(&chain[0]);
        let kind = kind.as_deref().unwrap_or("of an unknown kind");
        return format!(
            "the private key in {key_file} is {kind}, which is not supported; use {}",
            kind::USABLE
        );
    }
    if kind::is_old(&chain[0]) {
        return format!(
            "the certificate {file} is of X.509 version 1, which clients of TLS refuse; make one \
             of version 3"
        );
    }
    if !matches!(error, Error::InconsistentKeys(_)) {
        return format!("cannot use the certificate {file} with the key {key_file}: {error}");
    }
    let fits = |der: &CertificateDer<'static>| {
        CertifiedKey::from_der(vec![der.clone()], key.clone_key(), provider).is_ok()
    };
    match chain.iter().position(fits) {
        Some(at) => format!(
            "the chain in {file} is out of order: the certificate of the key {key_file} is number \
             {}, and must be the first",
            at + 1
        ),
        None => format!("the certificate {file} and the key {key_file} do not belong together"),
    }
}

fn chain(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let what = "the certificate chain";
    let bytes = read(what, file)?;
    match CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>() {
        Ok(chain) if chain.is_empty() => Err(format!(
            "{what} {} has no certificate in PEM{}",
            file.display(),
            held::instead(&bytes)
        )),
        Ok(chain) => Ok(chain),
        Err(error) => Err(unreadable(what, file, &fault(&error))),
    }
}

fn key(certificate: &Certificate, options: &TlsOptions) -> Result<PrivateKeyDer<'static>, String> {
    let file = certificate.key_file();
    let bytes = read("the private key", file)?;
    let unreadable_pem = |error| match (error, &certificate.key) {
        _ if held::is_encrypted_key(&bytes) => format!(
            "the private key in {0} is encrypted; write it without a passphrase: openssl pkey -in \
             {0} -out KEY.pem",
            file.display()
        ),
        (pem::Error::NoItemsFound, None) => {
            let option = options.key_option;
            format!("{} holds no private key: add {option}", file.display())
        }
        (pem::Error::NoItemsFound, Some(_)) => {
            let instead = held::instead(&bytes);
            format!("{} holds no private key in PEM{instead}", file.display())
        }
        (error, _) => unreadable("the private key", file, &fault(&error)),
    };
    // Detected by content rather than by label, as in OpenSSL: keys are sometimes mislabelled.
    let der = if options.key_is_der {
        bytes
    } else {
        let key = PrivateKeyDer::from_pem_slice(&bytes).map_err(unreadable_pem)?;
        key.secret_der().to_vec()
    };
    PrivateKeyDer::try_from(der).map_err(|error| unreadable("the private key", file, &error))
}

/// Authorities of the clients' certificates.
#[derive(Clone, Debug)]
pub(super) struct Authorities {
    pub(super) verifier: Arc<dyn ClientCertVerifier>,
    /// Hash of the certificates, and of whether clients must have one.
    pub(super) digest: [u8; 32],
}

impl Authorities {
    /// Reads the file of authorities.
    ///
    /// # Errors
    /// A sentence that names the file and its fault.
    pub(super) fn open(
        clients: &Clients,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Authorities, String> {
        let file = clients.file().expect("clients are asked for certificates");
        let wrong = |error: &dyn Display| {
            unreadable("the certificates of the clients' authorities,", file, error)
        };
        let is_required = matches!(clients, Clients::MustShow(_));
        let mut roots = RootCertStore::empty();
        let mut hash = digest::Context::new(&digest::SHA256);
        hash.update(&[is_required.into()]);
        for certificate in chain(file)? {
            hash.update(&certificate);
            roots.add(certificate).map_err(|error| wrong(&error))?;
        }
        let provider = Arc::clone(provider);
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let builder = if is_required { builder } else { builder.allow_unauthenticated() };
        let hash = hash.finish();
        Ok(Authorities {
            verifier: builder.build().map_err(|error| wrong(&error))?,
            digest: hash.as_ref().try_into().expect("SHA-256 has 32 bytes"),
        })
    }
}

/// The fault of a PEM file, without quoting the line: in a key that would reveal a secret.
fn fault(error: &pem::Error) -> String {
    match error {
        pem::Error::IllegalSectionStart { .. } => JOINED.to_owned(),
        // If all lines of a file are joined, the label is the whole file.
        pem::Error::MissingSectionEnd { end_marker } if end_marker.len() > LABEL_LINE_LEN_MAX => {
            JOINED.to_owned()
        }
        pem::Error::MissingSectionEnd { .. } => {
            "a section has no -----END line; was the file cut short?".to_owned()
        }
        error => error.to_string(),
    }
}

const JOINED: &str = "a line goes on behind '-----BEGIN …-----'; line breaks must be real ones, \
                      not spaces or '\\n'";

/// Longest plausible line that ends a section: the longest label has 21 letters.
const LABEL_LINE_LEN_MAX: usize = 64;

/// Reads a file.
///
/// # Errors
/// A sentence that names the file and the reason why it cannot be read.
pub(super) fn read_file(what: &str, file: &Path) -> Result<Vec<u8>, String> {
    read_whole(file).map_err(|error| unreadable(what, file, &error))
}

fn read(what: &str, file: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = read_file(what, file)?;
    // Windows editors write it, and OpenSSL 3 skips it.
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    Ok(bytes)
}

/// Reads a file or a pipe to its end; an endless device is refused.
fn read_whole(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let what = format!("it is longer than {FILE_BYTES_MAX} bytes, the most that is read");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    Ok(bytes)
}

/// U+FEFF in UTF-8. No DER begins with it.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

fn unreadable(what: &str, file: &Path, error: &dyn Display) -> String {
    format!("cannot read {what} {}: {error}", file.display())
}
