//! Decisions about certificates: the time of each renewal, and of the next attempt after a failure.

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;

use super::Settings;
use super::certificate::{self, Issued};
use super::client::{Client, NewOrder, Problem, Validation, World};
use super::jose::AccountKey;
use super::state::Attempts;

/// A world that includes the server.
pub(super) trait Server: World {
    /// Uses a certificate for new connections.
    fn install(&mut self, names: &[String], pem: &str) -> Result<(), String>;

    /// Reports a success.
    fn say(&mut self, text: &str);

    /// Reports a problem that the operator should fix.
    fn warn(&mut self, text: &str);
}

/// States of the certificates, for `/metrics`.
pub(super) type Shared = Arc<Mutex<Vec<Status>>>;

/// State of the certificate of one host.
#[derive(Clone, Debug, Default)]
pub(super) struct Status {
    pub(super) name: String,
    /// Its expiry; `None` without a certificate.
    pub(super) not_after_s: Option<u64>,
    pub(super) issued_s: Option<u64>,
    pub(super) failures: u64,
}

/// Manages certificates.
pub(super) struct Renewer<S> {
    pub(super) server: S,
    settings: Settings,
    hosts: Vec<HostCertificate>,
    shared: Shared,
}

/// A host and its certificate.
struct HostCertificate {
    /// All names; its files are named after the first.
    names: Vec<String>,
    kind: Validation,
    /// The certificate that the server has loaded.
    installed: Option<Issued>,
    /// Time of the next check.
    next_s: u64,
    /// Failed attempts since the last success.
    failures: u32,
    /// The authority's suggestion, if any.
    window: Option<Window>,
    /// Time of the next request for it.
    ask_s: u64,
}

/// The renewal window that the authority suggests. RFC 9773 4.2
#[derive(Clone, Debug, PartialEq, Eq)]
struct Window {
    id: String,
    start_s: u64,
    end_s: u64,
    /// A random time in it.
    chosen_s: u64,
}

/// Most failed attempts at a certificate per hour, across restarts: Let's Encrypt allows five
/// failed validations of a name.
pub(super) const FAILURES_PER_HOUR_MAX: usize = 4;
const HOUR_S: u64 = 3_600;

/// Delay of the first retry; each further one takes twice as long.
const PAUSE_MIN_S: u64 = 300;
const PAUSE_MAX_S: u64 = 6 * HOUR_S;

/// Interval between two checks of a valid certificate.
const CHECK_S: u64 = 24 * HOUR_S;

/// Interval between two requests for the window, if the authority names none, and its limits.
const ASK_S: u64 = 6 * HOUR_S;
const ASK_MIN_S: u64 = 60;

impl<S: Server> Renewer<S> {
    pub(super) fn new(server: S, settings: Settings, shared: Shared) -> Renewer<S> {
        let mut renewer = Renewer { server, settings: settings.clone(), hosts: Vec::new(), shared };
        renewer.reload(Some(settings));
        renewer
    }

    /// Drops pauses, since the operator may have changed something, and takes new settings.
    pub(super) fn reload(&mut self, settings: Option<Settings>) {
        self.settings = settings.unwrap_or_else(|| self.settings.clone());
        let hosts = self.settings.hosts.iter().map(|names| HostCertificate {
            names: names.clone(),
            kind: self.settings.kinds[0],
            installed: None,
            next_s: 0,
            failures: 0,
            window: None,
            ask_s: 0,
        });
        self.hosts = hosts.collect();
        let mut statuses = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let names = self.hosts.iter().map(|host| &host.names[0]);
        let newer = names.map(|name| {
            let old = statuses.iter().find(|status| status.name == *name);
            old.cloned().unwrap_or_else(|| Status { name: name.clone(), ..Status::default() })
        });
        *statuses = newer.collect();
    }

    /// Processes each certificate that is due. Returns the time until the next one is.
    pub(super) fn turn(&mut self) -> Duration {
        for at in 0..self.hosts.len() {
            if self.hosts[at].next_s <= self.server.now_s() {
                self.hosts[at].next_s = match self.check_certificate(at) {
                    Ok(next_s) => next_s,
                    Err(why) => self.schedule_retry(at, &why.into(), None),
                };
            }
        }
        let next_s = self.hosts.iter().map(|host| host.next_s).min();
        let wait_s = next_s.unwrap_or(u64::MAX).saturating_sub(self.server.now_s());
        // A clock that is set must not delay it for years.
        Duration::from_secs(wait_s.min(HOUR_S))
    }

    /// Checks one certificate, and renews it if due. Returns the time of the next check.
    fn check_certificate(&mut self, at: usize) -> Result<u64, String> {
        let _lock: File = self.settings.state.lock()?;
        let now_s = self.server.now_s();
        let name = self.hosts[at].names[0].clone();
        let pem = self.settings.state.read(&name)?;
        // An unusable one is ordered again.
        let there = pem.as_ref().and_then(|pem| Issued::read(pem).ok());
        if let (Some(pem), Some(facts)) = (&pem, &there)
            && there != self.hosts[at].installed
        {
            self.install(at, facts, pem)?;
        }
        let good = there.as_ref().filter(|facts| facts.has(&self.hosts[at].names));
        if let Some(facts) = good {
            let due_s = self.due_s(at, facts);
            if due_s > now_s {
                return Ok(due_s.min(now_s + CHECK_S).min(self.hosts[at].ask_s.max(now_s + 1)));
            }
        }
        let mut attempts = self.settings.state.read_attempts(&name);
        attempts.failed_s.retain(|failed_s| (*failed_s..*failed_s + HOUR_S).contains(&now_s));
        if let Some(facts) = good {
            let least_s = attempts.issued_s + facts.least_age_s();
            if (attempts.issued_s..least_s).contains(&now_s) {
                return Ok(least_s);
            }
        }
        // A distant time comes from a clock that was wrong.
        let limit_s = attempts.not_before_s.min(now_s + 2 * CHECK_S);
        if limit_s > now_s {
            return Ok(limit_s);
        }
        if attempts.failed_s.len() >= FAILURES_PER_HOUR_MAX {
            return Ok(attempts.failed_s[0] + HOUR_S);
        }
        attempts.not_before_s = 0;
        self.settings.state.store_attempts(&name, &attempts)?;
        match self.issue(at, there.as_ref()) {
            Ok((facts, pem)) => {
                let attempts = Attempts { issued_s: now_s, ..Attempts::default() };
                self.settings.state.store_attempts(&name, &attempts)?;
                if facts.renewal_s() <= now_s {
                    let text = format!(
                        "acme: the new certificate for {name} is old already: is the clock right?"
                    );
                    self.server.warn(&text);
                }
                let end = Duration::from_secs(facts.not_after_s.saturating_sub(now_s));
                self.install(at, &facts, &pem)?;
                self.hosts[at].failures = 0;
                self.status(at, |status| status.issued_s = Some(now_s));
                let names = self.hosts[at].names.join(", ");
                let end = certificate::show(end);
                self.server.say(&format!("acme: new certificate for {names}, valid for {end}"));
                Ok(self.server.now_s() + 1)
            }
            Err(refusal) => {
                let now_s = self.server.now_s();
                attempts.failed_s.push(now_s);
                attempts.not_before_s = refusal.wait.map_or(0, |wait| now_s + wait.as_secs());
                self.settings.state.store_attempts(&name, &attempts)?;
                Ok(self.schedule_retry(at, &refusal, there.as_ref()))
            }
        }
    }

    fn install(&mut self, at: usize, facts: &Issued, pem: &str) -> Result<(), String> {
        self.server.install(&self.hosts[at].names, pem)?;
        self.status(at, |status| status.not_after_s = Some(facts.not_after_s));
        self.hosts[at].installed = Some(facts.clone());
        Ok(())
    }

    /// Reports a failure. Returns the time of the next attempt.
    fn schedule_retry(&mut self, at: usize, refusal: &Problem, there: Option<&Issued>) -> u64 {
        let now_s = self.server.now_s();
        let jitter = 0.75 + self.server.random() / 2.0;
        let host = &mut self.hosts[at];
        let doublings = host.failures.min(16);
        host.failures += 1;
        let tried = host.kind;
        let kinds = self.settings.kinds.iter().cycle();
        host.kind = *kinds.skip_while(|kind| **kind != tried).nth(1).unwrap_or(&tried);
        let pause_s = (PAUSE_MIN_S << doublings).min(PAUSE_MAX_S);
        let pause_s =
            ((pause_s as f64 * jitter) as u64).max(refusal.wait.map_or(0, |wait| wait.as_secs()));
        let state = match there.map(|facts| facts.not_after_s) {
            None => "; there is none yet".to_owned(),
            Some(end_s) if end_s <= now_s => "; the old one has expired".to_owned(),
            Some(end_s) => {
                let left = certificate::show(Duration::from_secs(end_s - now_s));
                format!("; the old one is valid for {left}")
            }
        };
        let name = &host.names[0];
        let next = certificate::show(Duration::from_secs(pause_s));
        let why = &refusal.why;
        let text =
            format!("acme: no new certificate for {name}: {why}{state}; next attempt in {next}");
        self.server.warn(&text);
        self.status(at, |status| status.failures += 1);
        now_s + pause_s
    }

    /// Time at which a certificate is to be renewed.
    fn due_s(&mut self, at: usize, facts: &Issued) -> u64 {
        let now_s = self.server.now_s();
        if let Some(id) = facts.id.as_ref().filter(|_| self.hosts[at].ask_s <= now_s) {
            let pause_s = match self.ask(id) {
                Ok(Some((window, wait))) => {
                    self.choose(at, id, &window);
                    wait.map_or(ASK_S, |wait| wait.as_secs().clamp(ASK_MIN_S, CHECK_S))
                }
                Ok(None) => CHECK_S,
                // The old suggestion stays, or else the default rule.
                Err(_) => ASK_S,
            };
            self.hosts[at].ask_s = now_s + pause_s;
        }
        let window = self.hosts[at].window.as_ref();
        let wished = window.filter(|window| Some(&window.id) == facts.id.as_ref());
        wished.map_or(facts.renewal_s(), |window| {
            let chosen_s = window.chosen_s.max(facts.earliest_renewal_s());
            chosen_s.min(facts.latest_renewal_s())
        })
    }

    fn ask(&mut self, id: &str) -> Result<Option<(Value, Option<Duration>)>, Problem> {
        let (key, _) = self.settings.state.account()?;
        Client::new(&mut self.server, &key, &self.settings.directory)?.window(id)
    }

    /// Chooses a time in a window, if it is a new one. RFC 9773 4.2
    fn choose(&mut self, at: usize, id: &str, answer: &Value) {
        let time = |name| answer["suggestedWindow"][name].as_str().and_then(certificate::unix_s);
        let (Some(start_s), Some(end_s)) = (time("start"), time("end")) else {
            return;
        };
        let is_same =
            |window: &Window| window.id == id && (window.start_s, window.end_s) == (start_s, end_s);
        if end_s <= start_s || self.hosts[at].window.as_ref().is_some_and(is_same) {
            return;
        }
        let part = self.server.random() * (end_s - start_s) as f64;
        if let Some(why) = answer["explanationURL"].as_str() {
            let name = &self.hosts[at].names[0];
            let text = format!("acme: the authority wants {name} renewed early; see {why}");
            self.server.say(&text);
        }
        self.hosts[at].window =
            Some(Window { id: id.to_owned(), start_s, end_s, chosen_s: start_s + part as u64 });
    }

    /// Orders a certificate, and stores it.
    fn issue(&mut self, at: usize, there: Option<&Issued>) -> Result<(Issued, String), Problem> {
        let Settings { state, directory, mail, external, .. } = &self.settings;
        let host = &self.hosts[at];
        let (key, is_new): (AccountKey, bool) = state.account()?;
        let mut client = Client::new(&mut self.server, &key, directory)?;
        client.log_in(mail, external.as_ref())?;
        if is_new {
            let terms = client.terms().unwrap_or("it names none").to_owned();
            client.world.say(&format!(
                "acme: new account of {mail} at {directory}; terms of service that were agreed \
                 to: {terms}"
            ));
        }
        let pem = client.issue(&NewOrder {
            names: &host.names,
            kind: host.kind,
            replaces: there.and_then(|facts| facts.id.as_deref()),
        })?;
        let facts = Issued::read(&pem);
        let facts = facts.map_err(|why| format!("the authority's certificate is wrong: {why}"))?;
        if !facts.has(&host.names) {
            return Err("the authority's certificate has not all names".to_owned().into());
        }
        state.store(&host.names[0], &pem)?;
        Ok((facts, pem))
    }

    fn status(&self, at: usize, change: impl FnOnce(&mut Status)) {
        let mut statuses = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut statuses[at]);
    }
}
