//! An authority in memory, and a clock that the test sets.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rcgen::{
    BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256,
    PublicKeyData, SignatureAlgorithm,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

use super::client::Method;
use super::*;

const CA: &str = "https://ca.test/dir";
const DAY_S: u64 = 86_400;
const LIFE_S: u64 = 90 * DAY_S;
const BEGIN_S: u64 = 1_800_000_000;

/// A fault of the authority instead of the next order, except `BadNonce`.
#[derive(Clone, Debug)]
enum Fault {
    Down,
    Status(u16, Option<u64>),
    Problem(&'static str),
    /// Instead of the next signed request.
    BadNonce,
    /// The next check of an order gets no reply.
    Cut,
    /// The next validation fails.
    Invalid(&'static str),
    /// The next certificate has only this name.
    Name(&'static str),
    /// The next certificate has another key.
    Key,
}

#[derive(Default)]
struct Order {
    names: Vec<String>,
    replaces: Option<String>,
    is_valid: bool,
    why_invalid: Option<&'static str>,
    chain: Option<String>,
}

/// The authority, and the server that it validates.
struct Fake {
    now_s: u64,
    random: f64,
    faults: VecDeque<Fault>,
    nonce: u64,
    orders: Vec<Order>,
    /// Kind of each requested validation.
    tried: Vec<&'static str>,
    window: Option<(u64, u64)>,
    window_asked: usize,
    requests: usize,
    life_s: u64,
    /// Seconds by which the server's clock is ahead of the authority's.
    ahead_s: u64,
    needs_binding: bool,
    shown: Vec<Challenge>,
    installed: Vec<Vec<String>>,
    told: Vec<String>,
    issuer: Issuer<'static, KeyPair>,
}

struct OtherKey(Vec<u8>);

impl PublicKeyData for OtherKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl Fake {
    fn new() -> Fake {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Fake {
            now_s: BEGIN_S,
            random: 0.5,
            faults: VecDeque::new(),
            nonce: 0,
            orders: Vec::new(),
            tried: Vec::new(),
            window: None,
            window_asked: 0,
            requests: 0,
            life_s: LIFE_S,
            ahead_s: 0,
            needs_binding: false,
            shown: Vec::new(),
            installed: Vec::new(),
            told: Vec::new(),
            issuer: Issuer::new(params, KeyPair::generate().unwrap()),
        }
    }

    fn fault(&mut self, is_it: impl Fn(&Fault) -> bool) -> Option<Fault> {
        let at = self.faults.iter().position(is_it)?;
        self.faults.remove(at)
    }

    fn reply(&mut self, url: &str, body: &str) -> Result<CaReply, String> {
        if url == CA {
            let mut directory = json!({
                "newNonce": "https://ca.test/nonce",
                "newAccount": "https://ca.test/account",
                "newOrder": "https://ca.test/order",
                "meta": {
                    "termsOfService": "https://ca.test/terms",
                    "externalAccountRequired": self.needs_binding,
                },
            });
            if self.window.is_some() {
                directory["renewalInfo"] = json!("https://ca.test/renewal");
            }
            return Ok(ok(&directory));
        }
        if url.starts_with("https://ca.test/renewal/") {
            self.window_asked += 1;
            let date = |unix_s: u64| {
                let time = OffsetDateTime::from_unix_timestamp(unix_s as i64).unwrap();
                time.format(&Rfc3339).unwrap()
            };
            let (start_s, end_s) = self.window.unwrap();
            let window = json!({"start": date(start_s), "end": date(end_s)});
            return Ok(CaReply {
                retry_after: Some(Duration::from_secs(21_600)),
                ..ok(&json!({ "suggestedWindow": window }))
            });
        }
        if url == "https://ca.test/nonce" {
            return Ok(ok(&json!({})));
        }
        let signed: Value = serde_json::from_str(body).unwrap();
        let part = |name: &str| {
            let part = signed[name].as_str().unwrap();
            BASE64_URL_SAFE_NO_PAD.decode(part).unwrap()
        };
        let header: Value = serde_json::from_slice(&part("protected")).unwrap();
        assert_eq!(header["url"], url);
        assert_eq!(header["nonce"], self.nonce.to_string());
        let payload: Value = serde_json::from_slice(&part("payload")).unwrap_or_default();
        if self.fault(|fault| matches!(fault, Fault::BadNonce)).is_some() {
            return Ok(problem("badNonce"));
        }
        let path = url.strip_prefix("https://ca.test/").unwrap();
        let mut words = path.split('/');
        let what = words.next().unwrap();
        assert_eq!(header["kid"].is_string(), what != "account", "{header}");
        let mut number = || words.next().unwrap().parse::<usize>().unwrap();
        if what == "orders" && self.fault(|fault| matches!(fault, Fault::Cut)).is_some() {
            return Err("the authority cannot be reached".to_owned());
        }
        Ok(match what {
            "account" => {
                assert_eq!(payload["termsOfServiceAgreed"], true);
                assert_eq!(payload["contact"], json!(["mailto:me@example.org"]));
                assert_eq!(payload["externalAccountBinding"].is_object(), self.needs_binding);
                located("https://ca.test/accounts/1", &json!({"status": "valid"}))
            }
            "order" => return self.order(&payload),
            "orders" => {
                let at = number();
                ok(&self.status(at))
            }
            "names" => {
                let (order, at) = (number(), number());
                ok(&self.authorization(order, at))
            }
            "challenges" => {
                let (at, nth) = (number(), number());
                self.validate(at, nth, path.ends_with("tls"));
                ok(&json!({"status": "processing"}))
            }
            "finalize" => {
                let at = number();
                let request = payload["csr"].as_str().unwrap();
                self.sign(at, &BASE64_URL_SAFE_NO_PAD.decode(request).unwrap());
                ok(&json!({"status": "processing"}))
            }
            "chains" => CaReply {
                body: self.orders[number()].chain.clone().unwrap().into_bytes(),
                ..ok(&json!({}))
            },
            other => panic!("{other}"),
        })
    }

    fn order(&mut self, payload: &Value) -> Result<CaReply, String> {
        let is_early =
            |fault: &Fault| matches!(fault, Fault::Down | Fault::Status(..) | Fault::Problem(_));
        match self.fault(is_early) {
            Some(Fault::Down) => return Err("the authority cannot be reached".to_owned()),
            Some(Fault::Status(status, wait_s)) => {
                return Ok(CaReply {
                    status,
                    retry_after: wait_s.map(Duration::from_secs),
                    ..CaReply::default()
                });
            }
            Some(Fault::Problem(kind)) => return Ok(problem(kind)),
            _ => {}
        }
        let names = payload["identifiers"].as_array().unwrap().iter();
        let names = names.map(|name| name["value"].as_str().unwrap().to_owned());
        self.orders.push(Order {
            names: names.collect(),
            replaces: payload["replaces"].as_str().map(str::to_owned),
            ..Order::default()
        });
        let at = self.orders.len() - 1;
        Ok(located(&format!("https://ca.test/orders/{at}"), &self.status(at)))
    }

    fn status(&self, at: usize) -> Value {
        let order = &self.orders[at];
        let status = match (order.is_valid, &order.chain) {
            (false, _) => "pending",
            (true, None) => "ready",
            (true, Some(_)) => "valid",
        };
        let names = 0..order.names.len();
        let names = names.map(|nth| format!("https://ca.test/names/{at}/{nth}"));
        json!({
            "status": status,
            "authorizations": names.collect::<Vec<_>>(),
            "finalize": format!("https://ca.test/finalize/{at}"),
            "certificate": format!("https://ca.test/chains/{at}"),
        })
    }

    fn authorization(&self, at: usize, nth: usize) -> Value {
        let order = &self.orders[at];
        let challenge = |kind: &str, end: &str| {
            let mut challenge = json!({
                "type": kind,
                "url": format!("https://ca.test/challenges/{at}/{nth}/{end}"),
                "token": format!("token-{at}-{nth}"),
            });
            if let Some(kind) = order.why_invalid {
                let kind = format!("urn:ietf:params:acme:error:{kind}");
                challenge["error"] = json!({"type": kind, "detail": "seen\nfrom afar"});
            }
            challenge
        };
        let status = match (order.is_valid, order.why_invalid) {
            (true, _) => "valid",
            (false, Some(_)) => "invalid",
            (false, None) => "pending",
        };
        json!({
            "identifier": {"type": "dns", "value": order.names[nth]},
            "status": status,
            "challenges": [
                challenge("dns-01", "dns"),
                challenge("http-01", "http"),
                challenge("tls-alpn-01", "tls"),
            ],
        })
    }

    fn validate(&mut self, at: usize, nth: usize, by_tls: bool) {
        self.tried.push(if by_tls { "tls" } else { "http" });
        let token = format!("token-{at}-{nth}");
        let mut shown = self.shown.iter();
        let name = &self.orders[at].names[nth];
        assert!(shown.any(|one| one.token == token && one.name == *name));
        match self.fault(|fault| matches!(fault, Fault::Invalid(_))) {
            Some(Fault::Invalid(kind)) => self.orders[at].why_invalid = Some(kind),
            _ => self.orders[at].is_valid = nth + 1 == self.orders[at].names.len(),
        }
    }

    fn sign(&mut self, at: usize, request: &[u8]) {
        let (_, request) = X509CertificationRequest::from_der(request).unwrap();
        let key = &request.certification_request_info.subject_pki.subject_public_key.data;
        let mut key = OtherKey(key.to_vec());
        let mut names = self.orders[at].names.clone();
        match self.fault(|fault| matches!(fault, Fault::Name(_) | Fault::Key)) {
            Some(Fault::Name(name)) => names = vec![name.to_owned()],
            Some(_) => key = OtherKey(KeyPair::generate().unwrap().public_key_raw().to_vec()),
            None => {}
        }
        let mut params = CertificateParams::new(names).unwrap();
        let time = |unix_s: u64| OffsetDateTime::from_unix_timestamp(unix_s as i64).unwrap();
        params.not_before = time(self.now_s - self.ahead_s);
        params.not_after = time(self.now_s - self.ahead_s + self.life_s);
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        self.orders[at].chain = Some(certificate.pem());
    }

    fn told(&mut self) -> Vec<String> {
        std::mem::take(&mut self.told)
    }
}

fn ok(body: &Value) -> CaReply {
    CaReply { status: 200, body: body.to_string().into_bytes(), ..CaReply::default() }
}

fn located(address: &str, body: &Value) -> CaReply {
    CaReply { status: 201, location: Some(address.to_owned()), ..ok(body) }
}

fn problem(kind: &str) -> CaReply {
    let kind = format!("urn:ietf:params:acme:error:{kind}");
    CaReply { status: 400, ..ok(&json!({"type": kind, "detail": "no"})) }
}

impl World for Fake {
    fn now_s(&self) -> u64 {
        self.now_s
    }

    fn sleep(&mut self, time: Duration) {
        self.now_s += time.as_secs();
    }

    fn random(&mut self) -> f64 {
        self.random
    }

    fn exchange(&mut self, request: &Request<'_>) -> Result<CaReply, String> {
        self.requests += 1;
        let mut reply = self.reply(request.url, request.body)?;
        if request.method != Method::Get {
            self.nonce += 1;
            reply.nonce = Some(self.nonce.to_string());
        }
        Ok(reply)
    }

    fn show(&mut self, challenge: &Challenge) -> Result<(), String> {
        self.shown.push(challenge.clone());
        Ok(())
    }

    fn hide(&mut self, challenge: &Challenge) {
        self.shown.retain(|shown| shown != challenge);
    }
}

impl Server for Fake {
    fn install(&mut self, names: &[String], _pem: &str) -> Result<(), String> {
        self.installed.push(names.to_vec());
        Ok(())
    }

    fn say(&mut self, text: &str) {
        self.told.push(text.to_owned());
    }

    fn warn(&mut self, text: &str) {
        self.told.push(format!("warning: {text}"));
    }
}

fn settings(dir: &TempDir, hosts: &[&[&str]]) -> Settings {
    let hosts = hosts.iter().map(|names| names.iter().map(|name| (*name).to_owned()).collect());
    let state = State::new(dir.path(), CA);
    state.make(None).unwrap();
    Settings {
        mail: "me@example.org".to_owned(),
        directory: CA.to_owned(),
        state,
        external: None,
        hosts: hosts.collect(),
        kinds: vec![Validation::Http, Validation::TlsAlpn],
    }
}

fn renewer(dir: &TempDir, hosts: &[&[&str]]) -> Renewer<Fake> {
    Renewer::new(Fake::new(), settings(dir, hosts), Shared::default())
}

/// The same authority and state, after a restart of the server.
fn restarted(renewer: Renewer<Fake>, dir: &TempDir, hosts: &[&[&str]]) -> Renewer<Fake> {
    Renewer::new(renewer.server, settings(dir, hosts), Shared::default())
}

/// Runs turns until `until_s`. Returns the times of new orders, since the start.
fn run(renewer: &mut Renewer<Fake>, until_s: u64) -> Vec<u64> {
    let mut times = Vec::new();
    while renewer.server.now_s < until_s {
        let (orders, begin_s) = (renewer.server.orders.len(), renewer.server.now_s);
        let wait = renewer.turn().as_secs().max(1);
        if renewer.server.orders.len() > orders {
            times.push(begin_s - BEGIN_S);
        }
        renewer.server.now_s += wait;
    }
    times
}

#[test]
fn each_host_gets_a_certificate_once() {
    let dir = tempfile::tempdir().unwrap();
    let hosts: &[&[&str]] = &[&["a.org", "www.a.org"], &["b.org"]];
    let mut renewer = renewer(&dir, hosts);
    renewer.turn();
    assert_eq!(renewer.server.installed, hosts);
    assert!(renewer.server.shown.is_empty(), "challenges are over");
    let told = renewer.server.told();
    let account = "acme: new account of me@example.org at https://ca.test/dir; terms of service \
                   that were agreed to: https://ca.test/terms";
    assert_eq!(told[0], account);
    assert!(told[1].starts_with("acme: new certificate for a.org, www.a.org, valid for 90 days"));
    assert_eq!(told.len(), 3, "{told:?}");
    for entry in fs::read_dir(dir.path().join("acme/ca.test_dir")).unwrap() {
        let mode = entry.unwrap().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    assert_eq!(run(&mut renewer, BEGIN_S + 10 * DAY_S), [] as [u64; 0]);
    let mut renewer = restarted(renewer, &dir, hosts);
    renewer.server.installed.clear();
    renewer.turn();
    assert_eq!(renewer.server.installed, hosts, "from the state directory");
    assert_eq!(renewer.server.orders.len(), 2);
    assert!(renewer.server.told().is_empty());
}

/// Seen: an authority did not reply for 30 s just when it issued the certificate, and the order was
/// abandoned: its certificate was never fetched, and a new order counted towards the authority's
/// limits.
#[test]
fn a_look_without_a_reply_costs_no_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut renewer = renewer(&dir, &[&["a.org"]]);
    renewer.server.faults.extend([Fault::Cut, Fault::Cut]);
    renewer.turn();
    assert_eq!(renewer.server.installed, [["a.org"]]);
    assert_eq!(renewer.server.orders.len(), 1);
    // An authority that stays silent is reported, after three minutes.
    renewer.server.now_s += 61 * DAY_S;
    renewer.server.faults.extend(vec![Fault::Cut; 100]);
    renewer.server.told();
    run(&mut renewer, BEGIN_S + 61 * DAY_S + 7_200);
    let told = renewer.server.told();
    assert!(told.iter().any(|line| line.contains("cannot be reached")), "{told:?}");
}

#[test]
fn certificates_are_renewed_in_their_last_third() {
    let dir = tempfile::tempdir().unwrap();
    let mut renewer = renewer(&dir, &[&["a.org"]]);
    let times = run(&mut renewer, BEGIN_S + 130 * DAY_S);
    assert_eq!(times[0], 0);
    let day = 60 * DAY_S;
    assert!((day..day + 3_600).contains(&times[1]), "{times:?}");
    assert!((2 * day..2 * day + 7_200).contains(&times[2]), "{times:?}");
    assert_eq!(times.len(), 3);
    assert_eq!(renewer.server.orders[1].replaces, None);
    // A certificate of six days is renewed after four.
    renewer.server.life_s = 6 * DAY_S;
    renewer.server.now_s = BEGIN_S + 200 * DAY_S;
    let orders = renewer.server.orders.len();
    run(&mut renewer, BEGIN_S + 200 * DAY_S + 5 * DAY_S);
    assert_eq!(renewer.server.orders.len(), orders + 2);
}

/// Seen: with a clock 62 days ahead each new certificate was in its last third, and the next one
/// was ordered within a second, without end. Cure: the last order counts, across restarts.
#[test]
fn a_wrong_clock_orders_few_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let mut renewer = renewer(&dir, &[&["a.org"]]);
    renewer.server.ahead_s = 62 * DAY_S;
    let times = run(&mut renewer, BEGIN_S + 7 * DAY_S);
    assert_eq!(times.len(), 3, "every third day: {times:?}");
    let told = renewer.server.told();
    let why = "warning: acme: the new certificate for a.org is old already: is the clock right?";
    assert!(told.iter().any(|line| line == why), "{told:?}");
    for _ in 0..50 {
        renewer = restarted(renewer, &dir, &[&["a.org"]]);
        renewer.turn();
    }
    assert_eq!(renewer.server.orders.len(), 3);
    renewer.reload(Some(settings(&dir, &[&["a.org", "b.org"]])));
    renewer.turn();
    assert_eq!(renewer.server.orders.len(), 4, "other names are another matter");
}

#[test]
fn the_authority_names_the_time_of_a_renewal() {
    let dir = tempfile::tempdir().unwrap();
    let mut renewer = renewer(&dir, &[&["a.org"]]);
    let window = |from, to| Some((BEGIN_S + from * DAY_S, BEGIN_S + to * DAY_S));
    renewer.server.window = window(20, 30);
    assert_eq!(run(&mut renewer, BEGIN_S + 10 * DAY_S), [0]);
    let asked = renewer.server.window_asked;
    assert!((38..=42).contains(&asked), "four times a day: {asked}");
    // Revoked urgently: the window has passed.
    renewer.server.window = window(5, 6);
    let times = run(&mut renewer, BEGIN_S + 11 * DAY_S);
    assert_eq!(times.len(), 1, "{times:?}");
    let replaced = renewer.server.orders[1].replaces.as_deref();
    assert!(replaced.is_some_and(|id| id.contains('.')), "{replaced:?}");
    renewer.server.window = window(30, 40);
    let times = run(&mut renewer, BEGIN_S + 36 * DAY_S);
    assert!((35 * DAY_S..35 * DAY_S + 3_600).contains(&times[0]), "{times:?}");
    // Without a suggestion for the next one the default rule applies.
    renewer.server.window = None;
    renewer = restarted(renewer, &dir, &[&["a.org"]]);
    assert_eq!(run(&mut renewer, BEGIN_S + 80 * DAY_S), [] as [u64; 0]);
    // An authority that wants each new certificate renewed at once does not get hourly orders.
    renewer.server.window = window(0, 1);
    let times = run(&mut renewer, BEGIN_S + 92 * DAY_S);
    assert!((3..=5).contains(&times.len()), "{times:?}");
}

#[test]
fn a_refused_nonce_or_replacement_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let mut renewer = renewer(&dir, &[&["a.org"]]);
    renewer.server.faults = vec![Fault::BadNonce; 19].into();
    renewer.turn();
    assert_eq!(renewer.server.installed.len(), 1);
    renewer.server.window = Some((BEGIN_S - 2, BEGIN_S - 1));
    renewer.server.faults = [Fault::Problem("alreadyReplaced")].into();
    renewer.server.now_s += 4 * DAY_S;
    renewer.turn();
    assert_eq!(renewer.server.installed.len(), 2);
    assert_eq!(renewer.server.orders[1].replaces, None);
    renewer.server.faults = vec![Fault::BadNonce; 50].into();
    renewer.reload(Some(settings(&dir, &[&["b.org"]])));
    renewer.turn();
    let told = renewer.server.told().pop().unwrap();
    assert!(told.contains("refused 20 nonces of its own"), "{told}");
}

#[test]
fn failed_attempts_come_ever_later() {
    let dir = tempfile::tempdir().unwrap();
    let mut renewer = renewer(&dir, &[&["a.org"]]);
    renewer.server.faults = vec![Fault::Invalid("connection"); 100].into();
    let times = run(&mut renewer, BEGIN_S + 2 * DAY_S);
    let pauses: Vec<_> = times.windows(2).map(|pair| (pair[1] - pair[0]) / 60).collect();
    assert_eq!(pauses[..7], [5, 10, 20, 40, 80, 160, 320], "minutes");
    assert!(pauses[7..].iter().all(|pause| *pause == 360), "{pauses:?}");
    assert_eq!(renewer.server.tried[..3], ["http", "tls", "http"]);
    let told = renewer.server.told();
    let first = "warning: acme: no new certificate for a.org: a.org could not be validated by \
                 http-01: the authority says: seen from afar; port 80 of a.org must lead to this \
                 server from the whole internet; there is none yet; next attempt in 5 min";
    assert_eq!(told[1], first);
    assert!(renewer.server.shown.is_empty());
    // Restarts do not reset the count: in any case at most four an hour.
    renewer.server.now_s += DAY_S;
    let begin_s = renewer.server.now_s;
    let orders = renewer.server.orders.len();
    for _ in 0..50 {
        renewer = restarted(renewer, &dir, &[&["a.org"]]);
        renewer.turn();
        renewer.server.now_s += 60;
    }
    assert!(renewer.server.now_s < begin_s + 3_600, "{}", renewer.server.now_s - begin_s);
    assert_eq!(renewer.server.orders.len(), orders + renewal::FAILURES_PER_HOUR_MAX);
    renewer.server.faults.clear();
    run(&mut renewer, begin_s + 3_700);
    assert_eq!(renewer.server.installed.len(), 1);
}

#[test]
fn jitter_spreads_attempts() {
    for (random, pause_s) in [(0.0, 225), (1.0, 375)] {
        let dir = tempfile::tempdir().unwrap();
        let mut renewer = renewer(&dir, &[&["a.org"]]);
        renewer.server.random = random;
        renewer.server.faults = [Fault::Down].into();
        assert_eq!(renewer.turn().as_secs(), pause_s);
    }
}

#[test]
fn the_authority_can_ask_for_a_pause() {
    for (fault, wait_s) in [
        (Fault::Status(503, Some(7_200)), 7_200),
        (Fault::Status(429, Some(86_400)), 86_400),
        (Fault::Status(503, None), 300),
        (Fault::Problem("rateLimited"), 3_600),
        (Fault::Problem("serverInternal"), 300),
        (Fault::Down, 300),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut renewer = renewer(&dir, &[&["a.org"]]);
        renewer.server.faults = [fault.clone()].into();
        renewer.turn();
        assert!(renewer.server.orders.is_empty());
        // A restart does not shorten the pause if the authority has named the time.
        let mut renewer = restarted(renewer, &dir, &[&["a.org"]]);
        let times = run(&mut renewer, BEGIN_S + 2 * DAY_S);
        let least_s = if wait_s == 300 { 0 } else { wait_s };
        assert!((least_s..least_s + 60).contains(&times[0]), "{fault:?} {times:?}");
    }
}

#[test]
fn refusals_say_what_to_do() {
    for (fault, expected) in [
        (Fault::Invalid("dns"), "seen from afar; its DNS records must name this server;"),
        (Fault::Invalid("unauthorized"), "; another server seems to answer on port 80 of a.org;"),
        (Fault::Invalid("caa"), "; the CAA record of the name's zone must allow this authority;"),
        (Fault::Problem("rejectedIdentifier"), "says: no; only public names of the DNS can"),
        (Fault::Status(418, None), "the authority answered with status 418;"),
        (Fault::Name("b.org"), "the authority's certificate has not all names;"),
        (Fault::Key, "certificate is wrong: the certificate is not of this key;"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut renewer = renewer(&dir, &[&["a.org"]]);
        renewer.server.faults = [fault].into();
        renewer.turn();
        let told = renewer.server.told().pop().unwrap();
        assert!(told.contains(expected), "{told}");
        assert!(renewer.server.installed.is_empty());
        assert!(!dir.path().join("acme/ca.test_dir/a.org.pem").exists());
    }
}

#[test]
fn other_names_need_another_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let mut renewer = renewer(&dir, &[&["a.org"]]);
    renewer.turn();
    renewer.server.faults = [Fault::Down].into();
    renewer.reload(Some(settings(&dir, &[&["a.org", "www.a.org"], &["c.org"]])));
    renewer.server.installed.clear();
    renewer.turn();
    let (first, second): (&[&str], &[&str]) = (&["a.org", "www.a.org"], &["c.org"]);
    assert_eq!(renewer.server.installed, [first, second], "the old one until then");
    run(&mut renewer, BEGIN_S + 600);
    assert_eq!(renewer.server.orders.last().unwrap().names, first);
}

#[test]
fn nothing_is_ordered_that_cannot_be_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut renewer = renewer(&dir, &[&["a.org"]]);
    let place = dir.path().join("acme/ca.test_dir");
    fs::remove_dir_all(&place).unwrap();
    renewer.turn();
    let told = renewer.server.told().pop().unwrap();
    assert!(told.contains("no certificate is ordered that could not be kept"), "{told}");
    assert_eq!(renewer.server.requests, 0);
    // A crash during a write, and files lost by the disk.
    fs::create_dir(&place).unwrap();
    for (nth, lost) in [&b""[..], b"\xff\0"].into_iter().enumerate() {
        fs::write(place.join("new"), "half").unwrap();
        fs::write(place.join("a.org.pem"), lost).unwrap();
        fs::write(place.join("a.org.attempts"), "{").unwrap();
        renewer.reload(None);
        renewer.turn();
        assert_eq!(renewer.server.installed.len(), nth + 1, "{:?}", renewer.server.told);
    }
}

#[test]
fn an_authority_may_want_its_own_customers() {
    let dir = tempfile::tempdir().unwrap();
    let mut renewer = renewer(&dir, &[&["a.org"]]);
    renewer.server.needs_binding = true;
    renewer.turn();
    let told = renewer.server.told().pop().unwrap();
    assert!(told.contains("name that in `acme_external`"), "{told}");
    let external = ExternalAccount::read("kid AQID");
    renewer.reload(Some(Settings { external, ..settings(&dir, &[&["a.org"]]) }));
    renewer.turn();
    assert_eq!(renewer.server.installed.len(), 1);
}

#[test]
fn private_names_have_no_certificate() {
    let check = |names: &[&str]| {
        let names: Vec<HostName> = names.iter().map(|name| name.parse().unwrap()).collect();
        check_names(names.iter().collect())
    };
    assert!(check(&["a.org", "xn--bcher-kva.example"]).is_ok());
    for wrong in ["localhost", "*.a.org", "a.local", "127.0.0.1", "[::1]", "a_b.org", "intranet"] {
        let why = check(&["a.org", wrong]).unwrap_err();
        assert!(why.contains(wrong) && why.contains("acme = \"off\""), "{why}");
    }
    let many: Vec<_> = (0..101).map(|nth| format!("n{nth}.org")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    assert!(check(&many[..100]).is_ok());
    assert!(check(&many).is_err());
}
