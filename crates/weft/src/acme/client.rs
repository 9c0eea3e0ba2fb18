//! One conversation with an authority: account, order, challenges, certificate. RFC 8555 7
//!
//! Written sequentially, over a [`World`] that sends requests, waits and tells the time: in tests
//! the authority and the time are values.

use std::time::Duration;

use serde_json::{Value, json};

use super::certificate;
use super::jose::{AccountKey, ExternalAccount, Signer, base64url};

/// The environment of a conversation.
pub(super) trait World {
    /// Seconds since the epoch.
    fn now_s(&self) -> u64;

    /// Waits.
    fn sleep(&mut self, time: Duration);

    /// An unforeseeable number from 0 to 1.
    fn random(&mut self) -> f64;

    /// Sends a request and receives the reply, whatever its status.
    ///
    /// # Errors
    /// A sentence if there is no reply.
    fn exchange(&mut self, request: &Request<'_>) -> Result<CaReply, String>;

    /// Begins to answer a challenge.
    ///
    /// # Errors
    /// A sentence if that is not possible.
    fn show(&mut self, challenge: &Challenge) -> Result<(), String>;

    /// Stops answering it.
    fn hide(&mut self, challenge: &Challenge);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Get,
    Head,
    /// With a signed body.
    Post,
}

#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) method: Method,
    pub(super) url: &'a str,
    pub(super) body: &'a str,
}

#[derive(Clone, Debug, Default)]
pub(super) struct CaReply {
    pub(super) status: u16,
    pub(super) nonce: Option<String>,
    pub(super) location: Option<String>,
    pub(super) retry_after: Option<Duration>,
    pub(super) body: Vec<u8>,
}

/// Type of a challenge: the method by which the authority validates a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Validation {
    /// A path over plain HTTP on port 80. RFC 8555 8.3
    Http,
    /// A TLS handshake on port 443. RFC 8737
    TlsAlpn,
}

impl Validation {
    /// Its name in the registry of RFC 8555 9.7.8.
    pub(super) fn name(self) -> &'static str {
        match self {
            Validation::Http => "http-01",
            Validation::TlsAlpn => "tls-alpn-01",
        }
    }

    pub(super) fn other(self) -> Validation {
        match self {
            Validation::Http => Validation::TlsAlpn,
            Validation::TlsAlpn => Validation::Http,
        }
    }

    fn port(self) -> u16 {
        match self {
            Validation::Http => 80,
            Validation::TlsAlpn => 443,
        }
    }
}

/// A validation of a name in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Challenge {
    pub(super) kind: Validation,
    pub(super) name: String,
    pub(super) token: String,
    /// Proof of the account. RFC 8555 8.1
    pub(super) authorization: String,
    url: String,
}

/// Reason for a missing certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Problem {
    /// A sentence, with the remedy.
    pub(super) why: String,
    /// Type of the problem, without `urn:ietf:params:acme:error:`. RFC 8555 6.7
    kind: String,
    /// Least time to wait, if the authority names one.
    pub(super) wait: Option<Duration>,
}

impl From<String> for Problem {
    fn from(why: String) -> Problem {
        Problem { why, ..Problem::default() }
    }
}

/// The certificate to order.
pub(super) struct NewOrder<'a> {
    pub(super) names: &'a [String],
    pub(super) kind: Validation,
    /// Identifier of the certificate that it replaces. RFC 9773 5
    pub(super) replaces: Option<&'a str>,
}

/// Attempts at one request if its nonce is refused: enough for a test authority that randomly
/// refuses a third of them. RFC 8555 6.5
const NONCES_MAX: usize = 20;

/// Time for validations, and for the issuing of a certificate.
const PATIENCE: Duration = Duration::from_secs(180);

/// Longest pause between two checks of an order.
const PAUSE_MAX: Duration = Duration::from_secs(20);

/// A conversation with an authority.
pub(super) struct Client<'a, W> {
    pub(super) world: &'a mut W,
    key: &'a AccountKey,
    directory: Value,
    /// The account's URL, once known.
    account: Option<String>,
    nonce: Option<String>,
}

impl<'a, W: World> Client<'a, W> {
    /// Requests the authority's directory.
    pub(super) fn new(
        world: &'a mut W,
        key: &'a AccountKey,
        directory: &str,
    ) -> Result<Client<'a, W>, Problem> {
        let mut client = Client { world, key, directory: Value::Null, account: None, nonce: None };
        client.directory = client.get(directory)?;
        Ok(client)
    }

    fn get(&mut self, url: &str) -> Result<Value, Problem> {
        let reply = self.exchange(Method::Get, url, "")?;
        accepted(reply).and_then(|reply| json_of(&reply))
    }

    /// The terms of service that a new account agrees to.
    pub(super) fn terms(&self) -> Option<&str> {
        self.directory["meta"]["termsOfService"].as_str()
    }

    /// The window in which a certificate should be renewed, and the time until the next check;
    /// `None` if the authority suggests none. RFC 9773 4
    pub(super) fn window(
        &mut self,
        id: &str,
    ) -> Result<Option<(Value, Option<Duration>)>, Problem> {
        let Some(url) = self.directory["renewalInfo"].as_str() else {
            return Ok(None);
        };
        let url = format!("{}/{id}", url.trim_end_matches('/'));
        let reply = accepted(self.exchange(Method::Get, &url, "")?)?;
        Ok(Some((json_of(&reply)?, reply.retry_after)))
    }

    /// Creates the account, or finds it by its key. RFC 8555 7.3
    pub(super) fn log_in(
        &mut self,
        mail: &str,
        external: Option<&ExternalAccount>,
    ) -> Result<(), Problem> {
        let url = self.address("newAccount")?;
        let mut payload = json!({
            "termsOfServiceAgreed": true,
            "contact": [format!("mailto:{mail}")],
        });
        match external {
            Some(external) => {
                payload["externalAccountBinding"] = self.key.bind(external, &url);
            }
            None if self.directory["meta"]["externalAccountRequired"] == true => {
                let why = "this authority has customers of its own: write the key that it gave \
                           you to a file, and name that in `acme_external`";
                return Err(why.to_owned().into());
            }
            None => {}
        }
        let reply = self.post(&url, Some(&payload))?;
        let account = reply.location.ok_or_else(|| told_wrong("no address of the account"))?;
        self.account = Some(account);
        Ok(())
    }

    /// Orders a certificate, and proves control of the names. Returns the chain and the key, both
    /// in PEM.
    pub(super) fn issue(&mut self, new_order: &NewOrder<'_>) -> Result<String, Problem> {
        let (order_url, order) = self.order(new_order)?;
        let mut challenges = Vec::new();
        let validated = self.validate(&order, new_order.kind, &mut challenges);
        for challenge in &challenges {
            self.world.hide(challenge);
        }
        validated?;
        let order = self.poll(&order_url, &["pending"])?;
        let (key, request) = certificate::request(new_order.names)?;
        if order["status"] == "ready" {
            let payload = json!({"csr": base64url(&request)});
            self.post(text(&order, "finalize")?, Some(&payload))?;
        }
        let order = self.poll(&order_url, &["pending", "ready", "processing"])?;
        let chain = self.post(text(&order, "certificate")?, None)?.body;
        let chain = String::from_utf8(chain).map_err(|_| told_wrong("a chain in no UTF-8"))?;
        Ok(format!("{key}{chain}"))
    }

    fn order(&mut self, new_order: &NewOrder<'_>) -> Result<(String, Value), Problem> {
        let url = self.address("newOrder")?;
        let name = |name: &String| json!({"type": "dns", "value": name});
        let names: Vec<_> = new_order.names.iter().map(name).collect();
        let mut payload = json!({"identifiers": names});
        if let Some(id) = new_order.replaces.filter(|_| self.directory["renewalInfo"].is_string()) {
            payload["replaces"] = json!(id);
        }
        let reply = match self.post(&url, Some(&payload)) {
            // The old certificate belongs to another account, or was replaced already. RFC 9773 5
            Err(refusal) if payload["replaces"].is_string() && refusal.wait.is_none() => {
                payload = json!({"identifiers": names});
                self.post(&url, Some(&payload))
            }
            reply => reply,
        }?;
        let order = json_of(&reply)?;
        let url = reply.location.ok_or_else(|| told_wrong("no address of the order"))?;
        Ok((url, order))
    }

    /// Answers a challenge for each name that needs one, and waits for the results.
    fn validate(
        &mut self,
        order: &Value,
        kind: Validation,
        challenges: &mut Vec<Challenge>,
    ) -> Result<(), Problem> {
        let mut pending = Vec::new();
        for url in list(order, "authorizations") {
            let url = url.as_str().ok_or_else(|| told_wrong("no addresses of names"))?;
            let authorization = json_of(&self.post(url, None)?)?;
            if authorization["status"] == "valid" {
                continue;
            }
            let challenge = self.challenge(&authorization, kind)?;
            self.world.show(&challenge)?;
            let answer_url = challenge.url.clone();
            pending.push((url.to_owned(), challenge.name.clone(), challenge.kind));
            challenges.push(challenge);
            self.post(&answer_url, Some(&json!({})))?;
        }
        for (url, name, kind) in pending {
            let authorization = self.poll(&url, &["pending", "processing"])?;
            if authorization["status"] != "valid" {
                return Err(failed(&authorization, &name, kind));
            }
        }
        Ok(())
    }

    /// The challenge of this kind, or of the other kind if the authority offers only that.
    fn challenge(&self, authorization: &Value, kind: Validation) -> Result<Challenge, Problem> {
        let name = text(&authorization["identifier"], "value")?;
        let challenges = list(authorization, "challenges");
        let of = |kind: Validation| challenges.iter().find(|one| one["type"] == kind.name());
        let found = [kind, kind.other()].into_iter();
        let found = found.filter_map(|kind| Some((kind, of(kind)?))).next();
        let (kind, challenge) = found.ok_or_else(|| {
            format!("the authority validates {name} neither by http-01 nor by tls-alpn-01")
        })?;
        let token = text(challenge, "token")?;
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if token.is_empty() || !token.bytes().all(is_token) {
            return Err(told_wrong("a token that is none"));
        }
        Ok(Challenge {
            kind,
            name: name.to_owned(),
            token: token.to_owned(),
            authorization: self.key.authorization(token),
            url: text(challenge, "url")?.to_owned(),
        })
    }

    /// Polls an order or an authorization until its status is none of `passing`.
    fn poll(&mut self, url: &str, passing: &[&str]) -> Result<Value, Problem> {
        let end = self.world.now_s() + PATIENCE.as_secs();
        let mut pause = Duration::from_secs(1);
        loop {
            let (problem, asked) = match self.post(url, None) {
                Ok(reply) => {
                    let seen = json_of(&reply)?;
                    let status = text(&seen, "status")?;
                    if !passing.contains(&status) {
                        let problem = &seen["error"];
                        return match status {
                            "invalid" if problem.is_object() => Err(refusal(problem, None)),
                            _ => Ok(seen),
                        };
                    }
                    let why = format!("the authority says '{status}' for 3 minutes");
                    (Problem::from(why), reply.retry_after)
                }
                // No reply, or a proxy's: keep the order, since another would count towards limits.
                Err(problem) if problem.kind.is_empty() => {
                    let asked = problem.wait;
                    (problem, asked)
                }
                Err(refusal) => return Err(refusal),
            };
            if self.world.now_s() >= end {
                return Err(problem);
            }
            let asked = asked.unwrap_or(pause);
            self.world.sleep(asked.clamp(pause.min(PAUSE_MAX), PAUSE_MAX));
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Sends a signed request.
    fn post(&mut self, url: &str, payload: Option<&Value>) -> Result<CaReply, Problem> {
        for _ in 0..NONCES_MAX {
            let nonce = match self.nonce.take() {
                Some(nonce) => nonce,
                None => self.new_nonce()?,
            };
            let signer = self.account.as_deref().map_or(Signer::Key, Signer::Account);
            let body = self.key.sign(&signer, url, &nonce, payload)?;
            match accepted(self.exchange(Method::Post, url, &body)?) {
                // The reply contains a new nonce. RFC 8555 6.5
                Err(refusal) if refusal.kind == "badNonce" => {}
                result => return result,
            }
        }
        Err(format!("the authority refused {NONCES_MAX} nonces of its own").into())
    }

    fn new_nonce(&mut self) -> Result<String, Problem> {
        let url = self.address("newNonce")?;
        let reply = self.exchange(Method::Head, &url, "")?;
        accepted(reply)?;
        self.nonce.take().ok_or_else(|| told_wrong("no nonce"))
    }

    fn exchange(&mut self, method: Method, url: &str, body: &str) -> Result<CaReply, Problem> {
        let reply = self.world.exchange(&Request { method, url, body })?;
        if reply.nonce.is_some() {
            self.nonce.clone_from(&reply.nonce);
        }
        Ok(reply)
    }

    fn address(&self, name: &str) -> Result<String, Problem> {
        text(&self.directory, name).map(str::to_owned)
    }
}

fn accepted(reply: CaReply) -> Result<CaReply, Problem> {
    if (200..300).contains(&reply.status) {
        return Ok(reply);
    }
    let problem: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    let wait = reply.retry_after;
    if problem["detail"].is_string() || problem["type"].is_string() {
        return Err(refusal(&problem, wait));
    }
    Err(Problem {
        why: format!("the authority answered with status {}", reply.status),
        kind: String::new(),
        wait,
    })
}

/// Converts a problem document (RFC 9457).
fn refusal(problem: &Value, wait: Option<Duration>) -> Problem {
    let kind = problem["type"].as_str().unwrap_or_default();
    let kind = kind.rsplit(':').next().unwrap_or_default();
    let mut why = format!("the authority says: {}", detail(problem));
    for part in list(problem, "subproblems") {
        why += &format!("; {}: {}", shown(&part["identifier"]["value"]), detail(part));
    }
    why += match kind {
        "rateLimited" => "; nothing to do but to wait",
        "caa" => "; the CAA record of the name's zone must allow this authority",
        "rejectedIdentifier" => "; only public names of the DNS can have a certificate",
        _ => "",
    };
    // Rate limits last for hours: the authority names a time, or should not be asked meanwhile.
    let limited = (kind == "rateLimited").then_some(Duration::from_secs(3600));
    Problem { why, kind: kind.to_owned(), wait: wait.or(limited) }
}

/// The failed validation of a name.
fn failed(authorization: &Value, name: &str, kind: Validation) -> Problem {
    let mut errors = list(authorization, "challenges").iter();
    let error = errors.find_map(|one| one.get("error"));
    let error = error.unwrap_or(&Value::Null);
    let port = kind.port();
    let told = refusal(error, None);
    let todo = match &*told.kind {
        "dns" => "; its DNS records must name this server".to_owned(),
        "connection" | "tls" | "serverFailure" => {
            format!("; port {port} of {name} must lead to this server from the whole internet")
        }
        "unauthorized" | "incorrectResponse" => {
            format!("; another server seems to answer on port {port} of {name}")
        }
        _ => String::new(),
    };
    let what = format!("{name} could not be validated by {}", kind.name());
    Problem { why: format!("{what}: {}{todo}", told.why), ..told }
}

/// Longest part of an authority's text that is shown.
const SHOWN_LEN_MAX: usize = 300;

fn detail(problem: &Value) -> String {
    let kind = problem["type"].as_str().unwrap_or("an unknown error");
    shown(problem.get("detail").unwrap_or(&json!(kind)))
}

fn shown(value: &Value) -> String {
    let text = value.as_str().unwrap_or("?").chars();
    let plain = text.map(|char| if char.is_control() { ' ' } else { char });
    plain.take(SHOWN_LEN_MAX).collect()
}

fn json_of(reply: &CaReply) -> Result<Value, Problem> {
    serde_json::from_slice(&reply.body).map_err(|_| told_wrong("no JSON"))
}

fn text<'a>(value: &'a Value, name: &str) -> Result<&'a str, Problem> {
    let text = value[name].as_str();
    text.ok_or_else(|| told_wrong(&format!("no `{name}`")))
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

fn told_wrong(what: &str) -> Problem {
    format!("the authority does not speak ACME as RFC 8555 says: {what}").into()
}
