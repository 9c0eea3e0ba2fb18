//! Automatic certificates: ACME (RFC 8555) with http-01 and tls-alpn-01 (RFC 8737), and renewal at
//! the time that the authority suggests (RFC 9773).
//!
//! ```text
//!   acme (thread) ─ renewal ──────── client ─────── transport ─▶ authority
//!                   when to try     requests         HTTPS
//!                      │                │
//!                    state           challenges ──▶ the server answers them
//! ```
//!
//! The server never waits for it: it starts with the certificates in the state directory, and loads
//! new ones when they arrive. `client` and `renewal` do no I/O except in the state directory, and
//! read no clock.

mod certificate;
mod client;
mod jose;
mod renewal;
mod state;
#[cfg(test)]
mod tests;
mod transport;

use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use ::serve::metrics::MetricsWriter;
use ::serve::tls::Managed;
use session::HostName;
use ureq::Agent;
use web::Handle;

pub(crate) use self::client::Validation;
use self::client::{CaReply, Challenge, Request, World};
pub(crate) use self::jose::ExternalAccount;
use self::renewal::{Renewer, Server, Shared};
pub(crate) use self::state::State;
use crate::os::files;

/// Settings of managed certificates.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) mail: String,
    /// Address of the authority's directory.
    pub(crate) directory: String,
    pub(crate) state: State,
    pub(crate) external: Option<ExternalAccount>,
    /// Names of each certificate; its files are named after the first.
    pub(crate) hosts: Vec<Vec<String>>,
    /// Kinds of validation that the server can answer, the preferred one first; at least one.
    pub(crate) kinds: Vec<Validation>,
}

/// ACME settings, and the store of its certificates.
pub(crate) type Kept = (Settings, Arc<Managed>);

/// Most names of a certificate, as Let's Encrypt allows.
const NAMES_MAX: usize = 100;

/// Checks names of a certificate.
///
/// # Errors
/// A sentence about a name that no authority can validate.
pub(crate) fn check_names(names: Vec<&HostName>) -> Result<Vec<String>, String> {
    let names: Vec<_> = names.into_iter().map(HostName::to_string).collect();
    for name in &names {
        let why = if name.starts_with('*') {
            "is a wildcard, which needs a record in the DNS"
        } else if !name.contains('.') || name.contains('_') || is_private(name) {
            "is not a public name of the DNS"
        } else {
            continue;
        };
        return Err(format!(
            "ACME gets no certificate for {name}, which {why}: name its certificate in `tls_cert` \
             of the host, or write `acme = \"off\"` there"
        ));
    }
    if names.len() > NAMES_MAX {
        return Err(format!(
            "ACME gets no certificate for {} names: {NAMES_MAX} are allowed",
            names.len()
        ));
    }
    Ok(names)
}

/// True for addresses, and for names that no public host can have. RFC 6761, 6762
fn is_private(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit());
    name.starts_with('[') || is_number || matches!(last, "local" | "localhost" | "internal")
}

/// Reads the file of an external account, issued by the authority outside of ACME.
///
/// # Errors
/// A sentence that names the file.
pub(crate) fn read_external(path: &Path) -> Result<ExternalAccount, String> {
    let name = path.display();
    let bytes = files::read(path, 1 << 16);
    let bytes = bytes.map_err(|error| format!("cannot read {name}: {error}"))?;
    let account = ExternalAccount::read(&String::from_utf8_lossy(&bytes));
    account.ok_or_else(|| format!("{name} does not hold two words, a key id and an HMAC key"))
}

impl Settings {
    /// Sets the server's names and loads the existing certificates. Returns sentences about
    /// unusable ones.
    pub(crate) fn load(&self, managed: &Managed) -> Vec<String> {
        managed.set_names(self.hosts.iter().flatten().cloned());
        let install = |names: &Vec<String>| {
            let Some(pem) = self.state.read(&names[0])? else {
                return Ok(());
            };
            let (chain, key) = certificate::parse(&pem)?;
            managed.install(names, chain, key)
        };
        let results = self.hosts.iter().map(|names| {
            install(names).map_err(|why| format!("acme: the certificate of {}: {why}", names[0]))
        });
        results.filter_map(Result::err).collect()
    }

    /// A short text for the start-up message.
    pub(crate) fn describe(&self) -> String {
        let names: Vec<_> = self.hosts.iter().map(|names| &*names[0]).collect();
        let shown = names[..names.len().min(NAMES_SHOWN_MAX)].join(", ");
        let more = match names.len().saturating_sub(NAMES_SHOWN_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("certificates for {shown}{more} by {}", self.directory)
    }
}

/// Most names in the start-up message.
const NAMES_SHOWN_MAX: usize = 5;

/// The thread that manages certificates.
pub(crate) struct Acme {
    wake: SyncSender<()>,
    newer: Arc<Mutex<Option<Settings>>>,
    managed: Arc<Managed>,
    shared: Shared,
}

impl Acme {
    /// Starts to manage certificates. `say` gets news, `warn` problems for the operator.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn start(
        settings: Settings,
        managed: Arc<Managed>,
        handle: Arc<Handle>,
        say: impl Fn(&str) + Send + 'static,
        warn: impl Fn(&str) + Send + 'static,
    ) -> io::Result<Acme> {
        let (wake, woken) = mpsc::sync_channel(1);
        let shared = Shared::default();
        let newer = Arc::new(Mutex::new(None::<Settings>));
        let settings_of_reload = Arc::clone(&newer);
        let server = LiveServer {
            agent: None,
            managed: Arc::clone(&managed),
            handle,
            say: Box::new(say),
            warn: Box::new(warn),
        };
        let mut renewer = Renewer::new(server, settings, Arc::clone(&shared));
        let run = move || {
            loop {
                let turn = panic::catch_unwind(AssertUnwindSafe(|| renewer.turn()));
                let wait = turn.unwrap_or_else(|_| {
                    let text = "acme: an attempt has failed by a mistake of this program; next \
                                attempt in 1 h";
                    (renewer.server.warn)(text);
                    AFTER_PANIC
                });
                // A connection to the authority would be closed before the next turn.
                renewer.server.agent = None;
                match woken.recv_timeout(wait.max(TURN_MIN)) {
                    Ok(()) => {
                        let newer = settings_of_reload.lock();
                        let newer = newer.unwrap_or_else(PoisonError::into_inner).take();
                        if let Some(settings) = &newer {
                            // An error will recur when a file is written.
                            let _ = settings.state.make(None);
                        }
                        renewer.reload(newer);
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
        };
        thread::Builder::new().name("acme".to_owned()).spawn(run)?;
        Ok(Acme { wake, newer, managed, shared })
    }

    /// Continues with the settings of a reload, and retries at once: the operator may have fixed
    /// something.
    pub(crate) fn reload(&self, settings: Settings) {
        let names = settings.hosts.iter().flatten().cloned();
        self.managed.set_names(names);
        let mut newer = self.newer.lock().unwrap_or_else(PoisonError::into_inner);
        *newer = Some(settings);
        // One pending wake is enough.
        let _ = self.wake.try_send(());
    }

    /// Writes the state of each certificate, labelled with its first name.
    pub(crate) fn write_metrics(&self, out: &mut MetricsWriter) {
        let statuses = self.shared.lock();
        let statuses = statuses.unwrap_or_else(PoisonError::into_inner).clone();
        for status in &statuses {
            let labels = [("name", &*status.name)];
            let help = "Unix time at which the certificate of ACME expires; 0 if there is none.";
            let end_s = status.not_after_s.unwrap_or(0) as f64;
            out.gauge("weft_acme_not_after_seconds", help, &labels, end_s);
            let help =
                "Unix time of the last certificate that ACME got; 0 if none since the start.";
            let issued_s = status.issued_s.unwrap_or(0) as f64;
            out.gauge("weft_acme_last_success_seconds", help, &labels, issued_s);
            let help = "Attempts of ACME that failed.";
            out.counter("weft_acme_failures_total", help, &labels, status.failures);
        }
    }
}

const AFTER_PANIC: Duration = Duration::from_secs(3600);

/// Shortest pause between two turns.
const TURN_MIN: Duration = Duration::from_secs(1);

/// The running server, and the authority.
struct LiveServer {
    /// Kept for the duration of a turn.
    agent: Option<Agent>,
    managed: Arc<Managed>,
    handle: Arc<Handle>,
    say: Box<dyn Fn(&str) + Send>,
    warn: Box<dyn Fn(&str) + Send>,
}

impl World for LiveServer {
    fn now_s(&self) -> u64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since.map_or(0, |since| since.as_secs())
    }

    fn sleep(&mut self, time: Duration) {
        thread::sleep(time);
    }

    fn random(&mut self) -> f64 {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(0) as f64 / u64::MAX as f64
    }

    fn exchange(&mut self, request: &Request<'_>) -> Result<CaReply, String> {
        let agent = match self.agent.take() {
            Some(agent) => agent,
            None => transport::agent()?,
        };
        transport::exchange(self.agent.insert(agent), request)
    }

    fn show(&mut self, challenge: &Challenge) -> Result<(), String> {
        match challenge.kind {
            Validation::Http => {
                let challenges = self.handle.challenges();
                challenges.insert(&challenge.token, &challenge.authorization);
            }
            Validation::TlsAlpn => {
                let (certificate, key) =
                    certificate::proof(&challenge.name, &challenge.authorization)?;
                self.managed.show_proof(&challenge.name, certificate, key)?;
            }
        }
        Ok(())
    }

    fn hide(&mut self, challenge: &Challenge) {
        match challenge.kind {
            Validation::Http => self.handle.challenges().remove(&challenge.token),
            Validation::TlsAlpn => self.managed.hide_proof(&challenge.name),
        }
    }
}

impl Server for LiveServer {
    fn install(&mut self, names: &[String], pem: &str) -> Result<(), String> {
        let (chain, key) = certificate::parse(pem)?;
        self.managed.install(names, chain, key)
    }

    fn say(&mut self, text: &str) {
        (self.say)(text);
    }

    fn warn(&mut self, text: &str) {
        (self.warn)(text);
    }
}
