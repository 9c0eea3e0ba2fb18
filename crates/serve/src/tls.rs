//! TLS of a server: certificates and rules, by rustls, reloadable at run time. Records are made and
//! opened by each connection machine (`connection/tls.rs`).

mod files;
mod followed;
mod held;
mod hybrid;
mod kind;
mod managed;
mod provider;
mod tickets;
mod validity;

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ResolvesServerCert, ServerSessionMemoryCache,
    StoresServerSessions,
};
use rustls::sign::CertifiedKey;
use session::{HostIndex, HostName, name_and_port};

use crate::metrics::MetricsWriter;
use files::{Authorities, Loaded};
use followed::{FileCheck, Followed, Which};
pub use kind::subject;
pub use managed::Managed;
use provider::provider;
use tickets::{TicketKey, TicketKeys, Tickets, read_keys};

/// TLS options of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// Certificates of the server. A client gets the certificate of the host that it names (SNI,
    /// RFC 6066 3), else the first one that contains the name, else the first one.
    pub certificates: Vec<Certificate>,
    /// Certificates obtained at run time.
    pub managed: Option<Arc<Managed>>,
    /// Name of the option for the file of a key, for error messages.
    pub key_option: &'static str,
    /// The keys are in DER, not in PEM.
    pub key_is_der: bool,
    /// Host names; a warning lists those without a certificate.
    pub hosts: Vec<HostName>,
    /// Certificates of clients.
    pub clients: Clients,
    /// Cipher suites by OpenSSL's names, such as `ECDHE-RSA-AES128-GCM-SHA256`; empty for all.
    pub ciphers: Vec<String>,
    /// True for TLS 1.3 only.
    pub only_1_3: bool,
    /// True if sessions can be resumed.
    pub resumes: bool,
    /// Files with keys of session tickets, shared by several servers: 80 or 48 random bytes each.
    /// The first one encrypts, all decrypt. Empty: keys in memory, rotated automatically.
    pub ticket_keys: Vec<PathBuf>,
    /// Protocols spoken inside TLS, the preferred one first (ALPN), such as `http/1.1`. A client
    /// that offers only others is refused; one that offers none is served. Empty: ALPN is not used.
    pub protocols: Vec<Vec<u8>>,
    /// Plain-text reply to a peer that does not speak TLS. Empty: a TLS alert is sent.
    pub in_the_clear: &'static [u8],
}

/// The files of a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Certificate {
    /// The certificate and its intermediate certificates, in PEM.
    pub chain: PathBuf,
    /// The private key; `None` if it is in the same file as the chain.
    pub key: Option<PathBuf>,
    /// Host names (SNI) for which this certificate is used, such as `*.example.org`. Empty: the
    /// names that it contains.
    pub names: Vec<HostName>,
}

impl Certificate {
    fn key_file(&self) -> &Path {
        self.key.as_deref().unwrap_or(&self.chain)
    }

    fn files(&self) -> Vec<PathBuf> {
        [&self.chain].into_iter().chain(&self.key).cloned().collect()
    }
}

/// Authentication of clients by certificates. The file contains the accepted authorities.
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

impl Clients {
    fn file(&self) -> Option<&Path> {
        match self {
            Clients::Unknown => None,
            Clients::MayShow(file) | Clients::MustShow(file) => Some(file),
        }
    }
}

/// The certificates and rules of a server's TLS, from files that can be reloaded.
#[derive(Debug)]
pub struct Tls {
    /// Held while files are read.
    files: Mutex<Files>,
    current: RwLock<Current>,
    in_the_clear: &'static [u8],
    handshake_count: AtomicU64,
    /// Indexed as [`FAILURES`].
    failure_counts: [AtomicU64; FAILURES.len()],
}

/// Options and the contents of their files.
#[derive(Clone, Debug)]
struct Files {
    options: TlsOptions,
    provider: Arc<CryptoProvider>,
    /// In the order of the options.
    certificates: Vec<Followed<Arc<Loaded>>>,
    authorities: Option<Followed<Authorities>>,
    ticket_keys: Option<Followed<Vec<Arc<TicketKey>>>>,
    /// Keys of tickets, kept across reloads.
    tickets: Arc<TicketKeys>,
    /// Sessions of clients without tickets, kept across reloads.
    sessions: Arc<dyn StoresServerSessions>,
}

/// State for new connections and for reports.
#[derive(Debug)]
struct Current {
    config: Arc<ServerConfig>,
    shown: Arc<Shown>,
    certificates: Vec<Arc<Loaded>>,
    /// Hosts without a certificate.
    unnamed: Vec<HostName>,
    /// Number of certificates, authority lists and key lists that could not be reloaded.
    refused_count: usize,
    since: Instant,
}

/// Options with their files read, for [`Tls::adopt`].
#[derive(Debug)]
pub struct TlsPlan {
    files: Files,
    current: Current,
}

/// Result of a check of the files.
#[derive(Debug, Default)]
pub struct ChangedFiles {
    /// Messages about reloaded files, and about those that could not be: the old state then stays.
    pub messages: Vec<Result<String, String>>,
    /// True if changed files were not read yet: they may change again.
    pub is_unsettled: bool,
}

/// Number of sessions kept for resumption.
const SESSIONS_KEPT_MAX: usize = 16 * 1024;

/// Interval between two checks of files.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// The same while files change.
const CHECK_SOON: Duration = Duration::from_secs(1);

/// Most names in a warning.
const NAMES_SHOWN_MAX: usize = 5;

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// A sentence that names the file and its fault.
    pub fn open(options: TlsOptions) -> Result<Tls, String> {
        let in_the_clear = options.in_the_clear;
        let files = Files::open(options, None)?;
        files.use_ticket_keys();
        Tls::of(files, in_the_clear)
    }

    /// TLS with a provider other than that of the options.
    #[cfg(test)]
    pub(crate) fn with_provider(options: TlsOptions, provider: CryptoProvider) -> Tls {
        let in_the_clear = options.in_the_clear;
        let mut files = Files::open(options, None).unwrap();
        files.provider = Arc::new(provider);
        Tls::of(files, in_the_clear).unwrap()
    }

    fn of(files: Files, in_the_clear: &'static [u8]) -> Result<Tls, String> {
        Ok(Tls {
            current: RwLock::new(Current::of(&files)?),
            files: Mutex::new(files),
            in_the_clear,
            handshake_count: AtomicU64::new(0),
            failure_counts: Default::default(),
        })
    }

    /// Reads all files again. Each certificate is handled separately: the old one stays if the new
    /// one cannot be read. Open connections keep theirs, and sessions can be resumed.
    ///
    /// # Errors
    /// One line for each certificate that cannot be read.
    pub fn reload(&self) -> Result<(), String> {
        let mut files = self.files();
        let checks = files.update(Which::All);
        self.show(&files)?;
        let wrong = checks.into_iter().filter_map(|(_, check)| match check {
            FileCheck::Read(Err(why)) => Some(why),
            _ => None,
        });
        let wrong: Vec<_> = wrong.collect();
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
    }

    /// Reads changed files again, if they were the same at two checks.
    pub fn check_files(&self) -> ChangedFiles {
        let mut files = self.files();
        let mut changed = ChangedFiles::default();
        for (file, check) in files.update(Which::Changed) {
            changed.messages.push(match check {
                FileCheck::Same => continue,
                FileCheck::Unsettled => {
                    changed.is_unsettled = true;
                    continue;
                }
                FileCheck::Read(Ok(())) => Ok(format!("reloaded: {}", file.display())),
                FileCheck::Read(Err(why)) => Err(format!("not reloaded: {why}; the old one stays")),
            });
        }
        if !changed.messages.is_empty() {
            changed.messages.extend(self.show(&files).err().map(Err));
        }
        changed
    }

    /// Checks the files every few seconds on a thread of its own, as long as `self` exists, and
    /// passes messages to `tell`.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn follow(
        self: &Arc<Tls>,
        tell: impl Fn(Result<&str, &str>) + Send + 'static,
    ) -> io::Result<()> {
        let tls = Arc::downgrade(self);
        let mut every = CHECK_EVERY;
        let check = move || {
            loop {
                thread::sleep(every);
                let Some(tls) = tls.upgrade() else { return };
                let changed = tls.check_files();
                every = if changed.is_unsettled { CHECK_SOON } else { CHECK_EVERY };
                for message in &changed.messages {
                    tell(message.as_deref().map_err(String::as_str));
                }
                if changed.messages.iter().any(Result::is_ok) {
                    let warnings = tls.warnings(SystemTime::now());
                    warnings.iter().for_each(|text| tell(Err(text)));
                }
            }
        };
        let thread = thread::Builder::new().name("tls-files".to_owned());
        thread.spawn(check).map(drop)
    }

    /// Reads the files of new options. Files that were already read are not read again, and managed
    /// certificates stay.
    ///
    /// # Errors
    /// Same as [`Tls::open`].
    pub fn plan(&self, mut options: TlsOptions) -> Result<TlsPlan, String> {
        let old = self.files();
        options.managed.clone_from(&old.options.managed);
        let files = Files::open(options, Some(&old))?;
        let current = Current::of(&files)?;
        Ok(TlsPlan { files, current })
    }

    /// Uses other options for new connections.
    pub fn adopt(&self, plan: TlsPlan) {
        plan.files.use_ticket_keys();
        *self.files() = plan.files;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = plan.current;
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses the files' contents for new connections.
    fn show(&self, files: &Files) -> Result<(), String> {
        let newer = Current::of(files)?;
        files.use_ticket_keys();
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = newer;
        Ok(())
    }

    /// A sentence for each certificate that clients will refuse, as far as the server can tell:
    /// expired or not valid yet, a chain in wrong order, hosts without a certificate.
    pub fn warnings(&self, now: SystemTime) -> Vec<String> {
        let current = self.current();
        let certificates = &current.certificates;
        let faults = certificates.iter().filter_map(|it| it.fault.clone());
        let expired = certificates.iter().flat_map(|it| it.validity.warnings(now));
        let unnamed = unnamed(&current.unnamed);
        faults.chain(expired).chain(unnamed).collect()
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
        let counts = self.failure_counts.iter();
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Writes counters, and the age and expiry of certificates.
    pub fn write_metrics(&self, out: &mut MetricsWriter) {
        let help = "TLS handshakes.";
        out.counter("weft_tls_handshakes_total", help, &[], self.handshake_count());
        let help = "Connections that ended because of a TLS error.";
        for (reason, count) in FAILURES.iter().zip(&self.failure_counts) {
            let labels = [("reason", *reason)];
            let count = count.load(Ordering::Relaxed);
            out.counter("weft_tls_failures_total", help, &labels, count);
        }
        let help = "Seconds since the certificate was read.";
        let age = self.age().as_secs_f64();
        out.gauge("weft_tls_certificate_age_seconds", help, &[], age);
        let help = "Certificates whose files could not be read again; the older ones stay in use.";
        let refused = self.current().refused_count as f64;
        out.gauge("weft_tls_certificates_refused", help, &[], refused);
        let help = "Unix time at which the server's certificate expires.";
        for certificate in &self.current().certificates {
            let validity = &certificate.validity;
            let file = validity.file.display().to_string();
            out.gauge(
                "weft_tls_certificate_not_after_seconds",
                help,
                &[("certificate", &file)],
                validity.not_after_unix_s() as f64,
            );
        }
    }

    /// True if the certificate for clients that ask for `server_name` also covers `host`, the value
    /// of a `Host` field. RFC 9110 7.4
    pub fn covers(&self, server_name: &str, host: &[u8]) -> bool {
        let Some((name, _)) = name_and_port(host) else {
            return false;
        };
        let current = self.current();
        let managed = current.shown.managed.as_ref();
        if name.eq_ignore_ascii_case(server_name)
            || managed.is_some_and(|managed| managed.is_shared(server_name, &name))
        {
            return true;
        }
        let at = current.shown.find(server_name).unwrap_or(0);
        let shown = current.certificates.get(at);
        let host = name.parse::<HostName>();
        shown.is_some_and(|shown| host.is_ok_and(|host| shown.is_for(&host)))
    }

    pub(crate) fn in_the_clear(&self) -> &'static [u8] {
        self.in_the_clear
    }

    /// Configuration of new connections.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current().config)
    }

    pub(crate) fn count_handshake(&self) {
        self.handshake_count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_failure(&self, error: &rustls::Error) {
        self.failure_counts[reason_of(error)].fetch_add(1, Ordering::Relaxed);
    }

    fn current(&self) -> RwLockReadGuard<'_, Current> {
        self.current.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reasons of TLS errors, as in the metrics.
const FAILURES: [&str; 5] =
    ["client_certificate", "client_alert", "nothing_in_common", "malformed", "other"];

/// The reason of an error among [`FAILURES`].
fn reason_of(error: &rustls::Error) -> usize {
    match error {
        rustls::Error::NoCertificatesPresented | rustls::Error::InvalidCertificate(_) => 0,
        rustls::Error::AlertReceived(_) => 1,
        rustls::Error::PeerIncompatible(_) | rustls::Error::NoApplicationProtocol => 2,
        rustls::Error::InvalidMessage(_)
        | rustls::Error::InappropriateMessage { .. }
        | rustls::Error::InappropriateHandshakeMessage { .. }
        | rustls::Error::PeerMisbehaved(_) => 3,
        _ => 4,
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

/// A sentence about hosts that no certificate covers.
fn unnamed(hosts: &[HostName]) -> Option<String> {
    let shown: Vec<_> = hosts.iter().take(NAMES_SHOWN_MAX).map(HostName::as_str).collect();
    let rest = match hosts.len() - shown.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let names = shown.join(", ");
    (!hosts.is_empty())
        .then(|| format!("no certificate is for {names}{rest}: clients refuse the connection"))
}

impl Files {
    /// Reads the files of `options`; takes the contents of files that `old` has already from there.
    fn open(options: TlsOptions, old: Option<&Files>) -> Result<Files, String> {
        let provider = Arc::new(provider(&options.ciphers)?);
        let mut certificates = Vec::new();
        for certificate in &options.certificates {
            let files = certificate.files();
            let known = old.and_then(|old| old.certificates.iter().find(|it| it.files == files));
            let read = || Loaded::open(certificate, &options, &provider);
            certificates.push(match known {
                Some(known) => known.clone(),
                None => Followed::open(files, read)?,
            });
        }
        let authorities = match options.clients.file() {
            None => None,
            Some(file) => {
                let read = || Authorities::open(&options.clients, &provider);
                Some(Followed::open(vec![file.to_owned()], read)?)
            }
        };
        let ticket_keys = match &options.ticket_keys[..] {
            [] => None,
            files => Some(Followed::open(files.to_vec(), || read_keys(files))?),
        };
        let mut files = Files {
            tickets: old.map_or_else(Arc::default, |old| Arc::clone(&old.tickets)),
            ticket_keys,
            sessions: old.map_or_else(|| sessions(&options), |old| Arc::clone(&old.sessions)),
            authorities,
            options,
            provider,
            certificates,
        };
        files.forget_sessions_after(old.map_or(files.trusted(), Files::trusted));
        Ok(files)
    }

    /// Reads files again; returns the results for certificates, authorities and keys.
    fn update(&mut self, which: Which) -> Vec<(PathBuf, FileCheck)> {
        let trusted = self.trusted();
        let options = &self.options;
        let provider = &self.provider;
        let mut checks = Vec::new();
        for (certificate, followed) in options.certificates.iter().zip(&mut self.certificates) {
            let read = || Loaded::open(certificate, options, provider);
            let check = followed.update(which, read);
            checks.push((certificate.chain.clone(), check));
        }
        if let Some(followed) = &mut self.authorities {
            let read = || Authorities::open(&options.clients, provider);
            let check = followed.update(which, read);
            checks.push((followed.files[0].clone(), check));
        }
        if let Some(followed) = &mut self.ticket_keys {
            let check = followed.update(which, || read_keys(&options.ticket_keys));
            checks.push((followed.files[0].clone(), check));
        }
        self.forget_sessions_after(trusted);
        checks
    }

    fn use_ticket_keys(&self) {
        let keys = self.ticket_keys.as_ref().map(|keys| &keys.value[..]);
        self.tickets.use_files(keys.unwrap_or_default());
    }

    /// Digest of the authorities that clients' certificates are checked with.
    fn trusted(&self) -> Option<[u8; 32]> {
        let authorities = self.authorities.as_ref()?;
        Some(authorities.value.digest)
    }

    /// Drops stored sessions if authorities have changed: a removed one must not stay trusted.
    fn forget_sessions_after(&mut self, trusted: Option<[u8; 32]>) {
        if self.trusted() != trusted {
            self.sessions = sessions(&self.options);
        }
    }
}

impl Current {
    fn of(files: &Files) -> Result<Current, String> {
        let options = &files.options;
        let versions: &[_] = if options.only_1_3 {
            &[&rustls::version::TLS13]
        } else {
            &[&rustls::version::TLS13, &rustls::version::TLS12]
        };
        let builder = ServerConfig::builder_with_provider(Arc::clone(&files.provider))
            .with_protocol_versions(versions)
            .map_err(|error| format!("the cipher suites fit no version of TLS: {error}"))?;
        let builder = match &files.authorities {
            None => builder.with_no_client_auth(),
            Some(authorities) => {
                builder.with_client_cert_verifier(Arc::clone(&authorities.value.verifier))
            }
        };
        let certificates = files.certificates.iter();
        let certificates: Vec<_> = certificates.map(|it| Arc::clone(&it.value)).collect();
        let shown = Shown::new(options, &certificates);
        let is_unnamed = |host: &&HostName| {
            let shown = certificates.get(shown.find(host.as_str()).unwrap_or(0));
            shown.is_none_or(|shown| !shown.is_for(host))
        };
        let unnamed = options.hosts.iter().filter(is_unnamed).cloned().collect();
        let shown = Arc::new(shown);
        let mut config = builder.with_cert_resolver(Arc::clone(&shown) as _);
        config.alpn_protocols.clone_from(&options.protocols);
        if options.managed.is_some() {
            let proof = managed::PROOF_PROTOCOL.to_vec();
            config.alpn_protocols.push(proof);
        }
        config.session_storage = Arc::clone(&files.sessions);
        config.ignore_client_order = true;
        if options.resumes {
            config.ticketer =
                Arc::new(Tickets { keys: Arc::clone(&files.tickets), trusted: files.trusted() });
        } else {
            config.send_tls13_tickets = 0;
        }
        let refused = files.certificates.iter().filter(|it| it.is_refused).count();
        let refused_authorities = files.authorities.iter().filter(|it| it.is_refused).count();
        let refused_keys = files.ticket_keys.iter().filter(|it| it.is_refused).count();
        Ok(Current {
            config: Arc::new(config),
            shown,
            certificates,
            unnamed,
            refused_count: refused + refused_authorities + refused_keys,
            since: Instant::now(),
        })
    }
}

/// Certificates that clients are shown.
#[derive(Debug, Default)]
struct Shown {
    managed: Option<Arc<Managed>>,
    pairs: Vec<Arc<CertifiedKey>>,
    /// Certificates of hosts, by name.
    hosts: HostIndex<usize>,
    /// Other certificates, by the names in them.
    others: HostIndex<usize>,
}

impl Shown {
    fn new(options: &TlsOptions, loaded: &[Arc<Loaded>]) -> Shown {
        let mut shown = Shown { managed: options.managed.clone(), ..Shown::default() };
        for (at, (certificate, loaded)) in options.certificates.iter().zip(loaded).enumerate() {
            let (index, names) = if certificate.names.is_empty() {
                (&mut shown.others, &loaded.names)
            } else {
                (&mut shown.hosts, &certificate.names)
            };
            for name in names {
                // The first certificate stays.
                index.add(name, at);
            }
            shown.pairs.push(Arc::clone(&loaded.pair));
        }
        shown
    }

    fn find(&self, name: &str) -> Option<usize> {
        let host = self.hosts.find(name.as_bytes());
        host.or_else(|| self.others.find(name.as_bytes())).copied()
    }
}

thread_local! {
    /// Name requested in the last client hello on this thread.
    static ASKED_NAME: Cell<Option<Box<str>>> = const { Cell::new(None) };
}

/// Takes the name that a client requested in the records just opened.
pub(crate) fn take_asked_name() -> Option<Box<str>> {
    ASKED_NAME.take()
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        ASKED_NAME.set(hello.server_name().map(Box::from));
        let managed = self.managed.as_ref();
        if let Some(decided) = managed.and_then(|managed| managed.find(&hello)) {
            return decided;
        }
        let asked = hello.server_name().and_then(|name| self.find(name));
        self.pairs.get(asked.unwrap_or(0)).cloned()
    }
}
