//! How TLS is spoken: certificates and rules, by rustls, that can be read again while the server
//! runs. The records are made and opened by each connection machine (`connection/tls.rs`).

mod files;
mod held;
mod kind;
mod managed;
mod provider;
mod validity;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant, SystemTime};

use rustls::ServerConfig;
use rustls::client::verify_server_name;
use rustls::pki_types::ServerName;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ParsedCertificate, ResolvesServerCert,
    ServerSessionMemoryCache, StoresServerSessions, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;

use crate::metrics::MetricsWriter;
use files::Loaded;
pub use managed::Managed;
use provider::provider;
use validity::Validity;

/// TLS options of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// Certificates of the server. A client gets that of the host whose name it asks for (SNI, RFC
    /// 6066 3), or else the first one that names it, or else the first.
    pub certificates: Vec<Certificate>,
    /// Certificates that come while the server runs.
    pub managed: Option<Arc<Managed>>,
    /// Name of the option for the file of a key, for error messages.
    pub key_option: &'static str,
    /// The keys are in DER, not in PEM.
    pub key_is_der: bool,
    /// Certificates of clients.
    pub clients: Clients,
    /// Cipher suites by OpenSSL's names, such as `ECDHE-RSA-AES128-GCM-SHA256`; empty for all.
    pub ciphers: Vec<String>,
    /// True for TLS 1.3 only.
    pub only_1_3: bool,
    /// True if sessions can be resumed.
    pub resumes: bool,
    /// The protocols that may be spoken inside, the preferred one first (ALPN), such as `http/1.1`.
    /// A client that names only others is refused; one that names none is served. Empty: clients
    /// are not asked.
    pub protocols: Vec<Vec<u8>>,
    /// Plain-text reply to a peer that does not speak TLS. Empty: it gets an alert of TLS.
    pub in_the_clear: &'static [u8],
}

/// The files of a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Certificate {
    /// The certificate and its intermediate certificates, in PEM.
    pub chain: PathBuf,
    /// The private key; `None` if it is in the file of the chain.
    pub key: Option<PathBuf>,
    /// Names of a host (SNI) that this certificate is for, such as `*.example.org`. Empty: those
    /// that it names itself.
    pub names: Vec<String>,
}

impl Certificate {
    fn key_file(&self) -> &Path {
        self.key.as_deref().unwrap_or(&self.chain)
    }
}

/// Authentication of clients by certificates. The file has those of the accepted authorities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Clients {
    /// Clients are not asked for a certificate.
    #[default]
    Unknown,
    /// A certificate is optional, but must be valid.
    MayShow(PathBuf),
    /// A valid certificate is required.
    MustShow(PathBuf),
}

/// The certificate and the rules by which a server speaks TLS, from files that can be read again.
#[derive(Debug)]
pub struct Tls {
    options: TlsOptions,
    current: RwLock<Current>,
    /// Sessions that clients may resume, also after a reload.
    sessions: Arc<dyn StoresServerSessions>,
    handshake_count: AtomicU64,
    failed_handshake_count: AtomicU64,
}

#[derive(Debug)]
struct Current {
    config: Arc<ServerConfig>,
    /// Validity of each certificate, in the order of the options.
    validities: Vec<Validity>,
    /// Faults of the files that do not prevent their use.
    faults: Vec<String>,
    since: Instant,
}

/// Number of sessions kept for resumption.
const SESSIONS_KEPT_MAX: usize = 16 * 1024;

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// A sentence that names the file and says what is wrong with it.
    pub fn open(options: TlsOptions) -> Result<Tls, String> {
        let sessions = sessions(&options);
        let current = RwLock::new(Current::open(&options, Arc::clone(&sessions))?);
        Ok(Tls {
            options,
            current,
            sessions,
            handshake_count: AtomicU64::new(0),
            failed_handshake_count: AtomicU64::new(0),
        })
    }

    /// Reads the files again. Open connections keep the old ones, and sessions can be resumed. If
    /// clients are asked for certificates, sessions cannot be resumed: an authority that was
    /// removed must not stay trusted through an old session.
    ///
    /// # Errors
    /// Those of [`Tls::open`]; the old files stay in use then.
    pub fn reload(&self) -> Result<(), String> {
        let sessions = if self.options.clients == Clients::Unknown {
            Arc::clone(&self.sessions)
        } else {
            sessions(&self.options)
        };
        let newer = Current::open(&self.options, sessions)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = newer;
        Ok(())
    }

    /// A sentence for each certificate that clients will refuse, as far as the server can know:
    /// one that has expired or is not valid yet, a chain that is out of order.
    pub fn warnings(&self, now: SystemTime) -> Vec<String> {
        let current = self.current();
        let validities = current.validities.iter();
        let expired = validities.flat_map(|validity| validity.warnings(now));
        current.faults.iter().cloned().chain(expired).collect()
    }

    /// Time since the files were read.
    pub fn age(&self) -> Duration {
        self.current().since.elapsed()
    }

    /// Number of completed handshakes.
    pub fn handshake_count(&self) -> u64 {
        self.handshake_count.load(Ordering::Relaxed)
    }

    /// Number of connections that ended with a TLS error.
    pub fn failed_handshake_count(&self) -> u64 {
        self.failed_handshake_count.load(Ordering::Relaxed)
    }

    /// Writes counters, and the age and expiry of certificates.
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
        let help = "Unix time at which the server's certificate expires.";
        for validity in &self.current().validities {
            let file = validity.file.display().to_string();
            out.gauge(
                "weft_tls_certificate_not_after_seconds",
                help,
                &[("certificate", &file)],
                validity.not_after_unix_s() as f64,
            );
        }
    }

    pub(crate) fn in_the_clear(&self) -> &'static [u8] {
        self.options.in_the_clear
    }

    /// Configuration of new connections.
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

/// The store of sessions that clients may resume.
fn sessions(options: &TlsOptions) -> Arc<dyn StoresServerSessions> {
    if options.resumes {
        ServerSessionMemoryCache::new(SESSIONS_KEPT_MAX)
    } else {
        Arc::new(NoServerSessionStorage {})
    }
}

impl Current {
    fn open(
        options: &TlsOptions,
        sessions: Arc<dyn StoresServerSessions>,
    ) -> Result<Current, String> {
        let provider = Arc::new(provider(&options.ciphers)?);
        let versions: &[_] = if options.only_1_3 {
            &[&rustls::version::TLS13]
        } else {
            &[&rustls::version::TLS13, &rustls::version::TLS12]
        };
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(|error| format!("the cipher suites fit no version of TLS: {error}"))?;
        let verifier = |file: &Path| {
            let roots = Arc::new(files::roots(file)?);
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
        let mut shown = Shown {
            managed: options.managed.clone(),
            ..Shown::default()
        };
        let mut validities = Vec::new();
        let mut faults = Vec::new();
        for certificate in &options.certificates {
            let loaded = Loaded::open(certificate, options, &provider)?;
            shown.add(&certificate.names, loaded.pair);
            validities.push(loaded.validity);
            faults.extend(loaded.fault);
        }
        let mut config = builder.with_cert_resolver(Arc::new(shown));
        config.alpn_protocols.clone_from(&options.protocols);
        if options.managed.is_some() {
            let proof = managed::PROOF_PROTOCOL.to_vec();
            config.alpn_protocols.push(proof);
        }
        config.session_storage = sessions;
        if !options.resumes {
            config.send_tls13_tickets = 0;
        }
        Ok(Current {
            config: Arc::new(config),
            validities,
            faults,
            since: Instant::now(),
        })
    }
}

/// The certificates that clients are shown.
#[derive(Debug, Default)]
struct Shown {
    managed: Option<Arc<Managed>>,
    first: Option<Arc<CertifiedKey>>,
    /// Certificates of hosts, by name.
    hosts: HashMap<String, Arc<CertifiedKey>>,
    /// The others, which are for the names in them.
    others: Vec<Arc<CertifiedKey>>,
}

impl Shown {
    fn add(&mut self, names: &[String], pair: Arc<CertifiedKey>) {
        self.first.get_or_insert_with(|| Arc::clone(&pair));
        for name in names {
            let host = self.hosts.entry(name.clone());
            host.or_insert_with(|| Arc::clone(&pair));
        }
        if names.is_empty() {
            self.others.push(pair);
        }
    }

    /// The certificate of the host with this name; of wildcards, the longest.
    fn of_host(&self, name: &str) -> Option<&Arc<CertifiedKey>> {
        let name = name.to_ascii_lowercase();
        let dots = name
            .match_indices('.')
            .map(|(at, _)| format!("*{}", &name[at..]));
        let mut names = [name.clone()].into_iter().chain(dots);
        names.find_map(|name| self.hosts.get(&name))
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let managed = self.managed.as_ref();
        if let Some(decided) = managed.and_then(|managed| managed.find(&hello)) {
            return decided;
        }
        if self.hosts.is_empty() && self.others.len() == 1 {
            return self.first.clone();
        }
        let asked = hello.server_name();
        if let Some(host) = asked.and_then(|name| self.of_host(name)) {
            return Some(Arc::clone(host));
        }
        let asked = asked.and_then(|name| ServerName::try_from(name).ok());
        let fits = |shown: &&Arc<CertifiedKey>| {
            let certificate = ParsedCertificate::try_from(&shown.cert[0]);
            let name = asked.as_ref().zip(certificate.ok());
            name.is_some_and(|(name, certificate)| verify_server_name(&certificate, name).is_ok())
        };
        self.others
            .iter()
            .find(fits)
            .or(self.first.as_ref())
            .cloned()
    }
}
