//! How TLS is spoken: certificates and rules, by rustls, that can be read again while the server
//! runs. The records are made and opened in the carriage of each connection (`carriage/secure.rs`).

mod held;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{
    ClientHello, NoServerSessionStorage, ParsedCertificate, ResolvesServerCert,
    ServerSessionMemoryCache, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig, SupportedCipherSuite};

use crate::metrics::MetricsWriter;
use crate::whole_file;

/// No file of certificates is longer: those of all public authorities together have 0.3 MB.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// How TLS is spoken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// What the server shows: the first one that is for the name that a client asks for (SNI, RFC
    /// 6066 3), else the first one.
    pub certificates: Vec<Certificate>,
    /// What an operator types to name the file of a key, for error messages.
    pub key_option: &'static str,
    /// The keys are in DER, not in PEM.
    pub key_is_der: bool,
    /// Whether clients show certificates, and signed by whom.
    pub clients: Clients,
    /// Cipher suites by OpenSSL's names, such as `ECDHE-RSA-AES128-GCM-SHA256`; empty for all.
    pub ciphers: Vec<String>,
    /// TLS 1.3 and nothing older.
    pub only_1_3: bool,
    /// Whether sessions can be resumed.
    pub resumes: bool,
    /// The protocols that may be spoken inside, the preferred one first (ALPN), such as `http/1.1`.
    /// A client that names only others is refused; one that names none is served. Empty: clients
    /// are not asked.
    pub protocols: Vec<Vec<u8>>,
    /// What a peer is told, in the clear, that begins with something else than TLS. Empty: it gets
    /// the alert that TLS has for it.
    pub in_the_clear: &'static [u8],
}

/// The files of a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Certificate {
    /// The certificate, and those that lead from it to one that clients know, in PEM.
    pub chain: PathBuf,
    /// The private key; in the file of the chain if not given.
    pub key: Option<PathBuf>,
}

impl Certificate {
    fn key_file(&self) -> &Path {
        self.key.as_deref().unwrap_or(&self.chain)
    }
}

/// Whether clients show certificates. The file has the certificates of those that may have signed
/// them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Clients {
    /// They are not asked.
    #[default]
    Unknown,
    /// They may; one that is shown must be right.
    MayShow(PathBuf),
    /// They must.
    MustShow(PathBuf),
}

/// The certificate and the rules by which a server speaks TLS, from files that can be read again.
#[derive(Debug)]
pub struct Tls {
    options: TlsOptions,
    current: RwLock<Current>,
    handshake_count: AtomicU64,
    failed_handshake_count: AtomicU64,
}

#[derive(Debug)]
struct Current {
    config: Arc<ServerConfig>,
    since: Instant,
}

/// How many sessions are kept for those who come back.
const SESSIONS_KEPT_MAX: usize = 16 * 1024;

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// A sentence that names the file and says what is wrong with it.
    pub fn open(options: TlsOptions) -> Result<Tls, String> {
        let current = RwLock::new(Current::open(&options)?);
        Ok(Tls {
            options,
            current,
            handshake_count: AtomicU64::new(0),
            failed_handshake_count: AtomicU64::new(0),
        })
    }

    /// Reads the files again. Connections that are open go on with what they began with.
    ///
    /// # Errors
    /// As [`Tls::open`]; what was read before stays in force then.
    pub fn reload(&self) -> Result<(), String> {
        let newer = Current::open(&self.options)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = newer;
        Ok(())
    }

    /// How long ago the files were read.
    pub fn age(&self) -> Duration {
        self.current().since.elapsed()
    }

    /// How many handshakes came to their end.
    pub fn handshake_count(&self) -> u64 {
        self.handshake_count.load(Ordering::Relaxed)
    }

    /// How many connections failed before or after that, for what TLS has to say.
    pub fn failed_handshake_count(&self) -> u64 {
        self.failed_handshake_count.load(Ordering::Relaxed)
    }

    /// Writes its counters for `/metrics`.
    pub fn write_metrics(&self, out: &mut MetricsWriter) {
        let help = "TLS handshakes.";
        out.counter(
            "weft_tls_handshakes_total",
            help,
            &[],
            self.handshake_count(),
        );
        let help = "Connections that ended because of a TLS error.";
        out.counter(
            "weft_tls_failures_total",
            help,
            &[],
            self.failed_handshake_count(),
        );
        let help = "Seconds since the certificate was read.";
        let age = self.age().as_secs_f64();
        out.gauge("weft_tls_certificate_age_seconds", help, &[], age);
    }

    pub(crate) fn in_the_clear(&self) -> &'static [u8] {
        self.options.in_the_clear
    }

    /// What a new connection goes by.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current().config)
    }

    pub(crate) fn count_handshake(&self) {
        self.handshake_count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_failure(&self) {
        self.failed_handshake_count.fetch_add(1, Ordering::Relaxed);
    }

    fn current(&self) -> RwLockReadGuard<'_, Current> {
        self.current.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Current {
    fn open(options: &TlsOptions) -> Result<Current, String> {
        let provider = Arc::new(provider(&options.ciphers)?);
        let versions: &[_] = match options.only_1_3 {
            true => &[&rustls::version::TLS13],
            false => &[&rustls::version::TLS13, &rustls::version::TLS12],
        };
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(|error| format!("the cipher suites fit no version of TLS: {error}"))?;
        let verifier = |file: &Path| {
            let roots = Arc::new(roots(file)?);
            let provider = Arc::clone(&provider);
            Ok::<_, String>(WebPkiClientVerifier::builder_with_provider(roots, provider))
        };
        let wrong = |error| format!("the certificates of the clients' authorities: {error}");
        let builder = match &options.clients {
            Clients::Unknown => builder.with_no_client_auth(),
            Clients::MayShow(file) => builder.with_client_cert_verifier(
                verifier(file)?
                    .allow_unauthenticated()
                    .build()
                    .map_err(wrong)?,
            ),
            Clients::MustShow(file) => {
                builder.with_client_cert_verifier(verifier(file)?.build().map_err(wrong)?)
            }
        };
        let open = |certificate| open_certificate(certificate, options, &provider);
        let certificates = options.certificates.iter().map(open);
        let shown = Shown(certificates.collect::<Result<_, _>>()?);
        let mut config = builder.with_cert_resolver(Arc::new(shown));
        config.alpn_protocols.clone_from(&options.protocols);
        if options.resumes {
            config.session_storage = ServerSessionMemoryCache::new(SESSIONS_KEPT_MAX);
        } else {
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Current {
            config: Arc::new(config),
            since: Instant::now(),
        })
    }
}

/// The certificates that clients are shown.
#[derive(Debug)]
struct Shown(Vec<Arc<CertifiedKey>>);

impl ResolvesServerCert for Shown {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let asked = hello.server_name().filter(|_| self.0.len() > 1);
        let asked = asked.and_then(|name| ServerName::try_from(name).ok());
        let fits = |shown: &&Arc<CertifiedKey>| {
            let certificate = ParsedCertificate::try_from(&shown.cert[0]);
            let name = asked.as_ref().zip(certificate.ok());
            name.is_some_and(|(name, certificate)| verify_server_name(&certificate, name).is_ok())
        };
        self.0.iter().find(fits).or(self.0.first()).cloned()
    }
}

fn open_certificate(
    certificate: &Certificate,
    options: &TlsOptions,
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, String> {
    let (chain, key) = (chain(&certificate.chain)?, key(certificate, options)?);
    let pair = CertifiedKey::from_der(chain, key, provider).map_err(|error| {
        let file = certificate.chain.display();
        let key = certificate.key_file().display();
        match error {
            rustls::Error::InconsistentKeys(_) => {
                format!("the certificate {file} and the key {key} do not belong together")
            }
            error => format!("cannot use the certificate {file} with the key {key}: {error}"),
        }
    });
    pair.map(Arc::new)
}

fn chain(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let what = "the certificate chain";
    let bytes = read(what, file)?;
    match CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>() {
        Ok(chain) if chain.is_empty() => Err(format!(
            "{what} {} has no certificate in PEM{}",
            file.display(),
            held::instead(file)
        )),
        Ok(chain) => Ok(chain),
        Err(error) => Err(unreadable(what, file, &error)),
    }
}

fn key(certificate: &Certificate, options: &TlsOptions) -> Result<PrivateKeyDer<'static>, String> {
    let file = certificate.key_file();
    let unreadable_pem = |error| match (error, &certificate.key) {
        _ if held::is_encrypted_key(file) => format!(
            "the private key in {0} is encrypted; write it without a passphrase: openssl pkey -in \
             {0} -out KEY.pem",
            file.display()
        ),
        (pem::Error::NoItemsFound, None) => {
            let option = options.key_option;
            format!("{} holds no private key: add {option}", file.display())
        }
        (pem::Error::NoItemsFound, Some(_)) => {
            let instead = held::instead(file);
            format!("{} holds no private key in PEM{instead}", file.display())
        }
        (error, _) => unreadable("the private key", file, &error),
    };
    let bytes = read("the private key", file)?;
    let bytes = match options.key_is_der {
        true => bytes,
        // By what it is and not by what stands above it, as OpenSSL does: keys are mislabelled now
        // and then.
        false => PrivateKeyDer::from_pem_slice(&bytes)
            .map_err(unreadable_pem)?
            .secret_der()
            .to_vec(),
    };
    PrivateKeyDer::try_from(bytes).map_err(|error| unreadable("the private key", file, &error))
}

fn roots(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in chain(file)? {
        roots.add(certificate).map_err(|error| {
            unreadable(
                "the certificates of the clients' authorities,",
                file,
                &error,
            )
        })?;
    }
    Ok(roots)
}

fn read(what: &str, file: &Path) -> Result<Vec<u8>, String> {
    let bytes = whole_file::read(file, FILE_BYTES_MAX);
    bytes.map_err(|error| unreadable(what, file, &error))
}

fn unreadable(what: &str, file: &Path, error: &dyn std::fmt::Display) -> String {
    format!("cannot read {what} {}: {error}", file.display())
}

/// rustls's provider with all suites, or those of the list in its order.
fn provider(names: &[String]) -> Result<CryptoProvider, String> {
    let all = ring::default_provider();
    if names.is_empty() {
        return Ok(all);
    }
    let known = || {
        all.cipher_suites
            .iter()
            .map(openssl_name)
            .collect::<Vec<_>>()
    };
    let suite = |name: &String| {
        let found = all
            .cipher_suites
            .iter()
            .find(|suite| openssl_name(suite) == *name);
        found.copied().ok_or_else(|| {
            format!(
                "there is no cipher suite '{name}'; there are {}",
                known().join(", ")
            )
        })
    };
    let cipher_suites = names.iter().map(suite).collect::<Result<Vec<_>, _>>()?;
    Ok(CryptoProvider {
        cipher_suites,
        ..all
    })
}

/// `TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256` as OpenSSL calls it, `ECDHE-RSA-AES128-GCM-SHA256`. The
/// suites of TLS 1.3 have one name. openssl-ciphers(1)
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
