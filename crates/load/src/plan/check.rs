//! Validation of a plan, before anything is sent.

use std::net::IpAddr;
use std::time::Duration;

use crate::LoadError;
use crate::plan::{
    Arrivals, Cache, KEY_BYTES_MAX, KEY_DIGITS, LoadTarget, Network, Plan, VALUE_BYTES_MAX,
    VALUE_BYTES_UDP_MAX, Workload,
};
use crate::workload::distribution::Distribution;
use crate::workload::template::Template;

const THREADS_MAX: u32 = 1_024;
const LONGEST: Duration = Duration::from_secs(366 * 86_400);
/// Each thread counts every arrival, even if it cannot send it. At a higher rate it could do
/// nothing else.
const RATE_PER_THREAD_MAX: f64 = 10e6;
/// Limit because all requests on one connection share a buffer.
const DEPTH_MAX: u32 = 65_536;
/// Limit because each interval keeps its histograms.
const INTERVALS_MAX: u128 = 100_000;
/// memcached reads lines of at most 64 KiB (proto_text.c).
const KEYS_PER_GET_MAX: u32 = 10_000;
/// Longest path of a Unix socket, without the zero at its end. unix(7)
const UNIX_PATH_BYTES_MAX: usize = 107;
/// Header fields that HTTP/2 forbids (RFC 9113 8.2.2).
const NOT_IN_HTTP2: [&str; 5] =
    ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];

impl Plan {
    /// Checks the plan for contradictions.
    ///
    /// # Errors
    /// The plan contradicts itself.
    pub fn check(&self) -> Result<(), LoadError> {
        let wrong = |sentence: &str| Err(LoadError(sentence.to_owned()));
        let asks = !matches!(self.workload, Workload::Idle);
        if self.targets.is_empty() {
            return wrong("there is no target to connect to");
        }
        let above_0 = [
            ("threads", self.threads == 0),
            ("duration", self.duration.is_zero()),
            ("interval", self.interval.is_zero()),
            ("requests", self.requests_max == Some(0)),
            ("depth", asks && self.depth == 0),
            ("connections", asks && self.connections == 0),
        ];
        if let Some((name, _)) = above_0.iter().find(|(_, is_zero)| *is_zero) {
            return wrong(&format!("--{name} must be above 0"));
        }
        if self.threads > THREADS_MAX {
            return wrong("--threads must be at most 1,024; one per core is enough");
        }
        if self.duration.saturating_add(self.warm_up) > LONGEST {
            return wrong("a run lasts at most a year");
        }
        if self.duration.as_nanos() / self.interval.as_nanos() > INTERVALS_MAX {
            return wrong("a run has at most 100,000 intervals; use a longer --interval");
        }
        let timeouts = [self.request_timeout, self.connect_timeout];
        if timeouts.iter().any(|timeout| timeout.is_zero() || *timeout > LONGEST) {
            return wrong("--timeout and --connect-timeout must be above 0 and at most a year");
        }
        if asks && self.connections < self.threads {
            return wrong(&format!("--connections must be at least --threads ({})", self.threads));
        }
        if self.depth > DEPTH_MAX {
            return wrong("--depth must be at most 65,536");
        }
        if !asks && self.idle.connections == 0 {
            return wrong("--connections must be above 0");
        }
        if !asks && self.arrivals != Arrivals::Closed {
            return wrong("idle connections send no requests, so they have no rate");
        }
        if self.connect_rate_per_s.is_some_and(|rate| rate.is_nan() || rate <= 0.0) {
            return wrong("--connect-rate must be above 0");
        }
        let connections = f64::from(self.connections) + f64::from(self.idle.connections);
        let opening_s = self.connect_rate_per_s.map_or(0.0, |rate| connections / rate);
        if opening_s > LONGEST.as_secs_f64() {
            return wrong("at this --connect-rate, opening the connections takes more than a year");
        }
        let is_period = |every: Duration| !every.is_zero() && every <= LONGEST;
        if self.idle.byte_every.is_some_and(|every| !is_period(every)) {
            return wrong("--idle-byte-every must be above 0 and at most a year");
        }
        if self.requests_max.is_some() && (!asks || !self.warm_up.is_zero()) {
            return wrong("--requests cannot be combined with --warm-up or with idle connections");
        }
        if self.requests_max.is_some() && matches!(self.workload, Workload::Sessions(_)) {
            return wrong("--requests cannot be combined with --sessions; use --duration");
        }
        self.check_sources()?;
        self.check_network()?;
        self.check_arrivals()?;
        self.check_workload()
    }

    fn check_sources(&self) -> Result<(), LoadError> {
        let of_another_family = |source: &IpAddr| {
            let mut addresses = self.targets.iter().filter_map(LoadTarget::address);
            addresses.any(|target| target.is_ipv4() != source.is_ipv4())
        };
        match self.sources.iter().find(|source| of_another_family(source)) {
            Some(source) => Err(LoadError(format!(
                "source address {source} and a target are not of the same family (IPv4, IPv6)"
            ))),
            None => Ok(()),
        }
    }

    fn check_network(&self) -> Result<(), LoadError> {
        let wrong = |sentence: String| Err(LoadError(sentence));
        let is_unix = |target: &LoadTarget| matches!(target, LoadTarget::Unix(_));
        if !self.sources.is_empty() && self.targets.iter().any(is_unix) {
            return wrong("a Unix socket has no source address: remove --source".to_owned());
        }
        let is_long = |target: &&LoadTarget| match target {
            LoadTarget::Unix(path) => path.as_os_str().len() > UNIX_PATH_BYTES_MAX,
            LoadTarget::Tcp(_) | LoadTarget::Udp(_) => false,
        };
        if let Some(path) = self.targets.iter().find(is_long) {
            return wrong(format!(
                "'{path}' is too long for a Unix socket: at most {UNIX_PATH_BYTES_MAX} bytes"
            ));
        }
        self.check_udp()?;
        let Network::Netstack(interface) = &self.network else {
            return Ok(());
        };
        if !self.targets.iter().all(|target| matches!(target, LoadTarget::Tcp(_))) {
            return wrong("--network netstack has TCP alone".to_owned());
        }
        interface.check().map_err(|error| LoadError(error.to_string()))?;
        if self.threads > 1 {
            // The device steers frames to its queues as it likes: a reply would come to another
            // thread than the one that asked.
            return wrong(
                "--network netstack supports one thread; start one generator per device, and merge their \
                 --json files with weft load merge"
                    .to_owned(),
            );
        }
        let is_own = |address: IpAddr| interface.addresses.iter().any(|own| own.address == address);
        if let Some(source) = self.sources.iter().find(|source| !is_own(**source)) {
            return wrong(format!("source address {source} is not an --address of the netstack"));
        }
        for target in self.targets.iter().filter_map(LoadTarget::address) {
            let target = target.ip();
            let is_on_link = interface.addresses.iter().any(|own| own.contains(target));
            let is_behind = |gateway: &IpAddr| gateway.is_ipv4() == target.is_ipv4();
            if is_own(target) {
                return wrong(format!("{target} is the netstack's own address, not a server's"));
            }
            if !is_on_link && !interface.gateways.iter().any(is_behind) {
                return wrong(format!(
                    "{target} is not in the prefix of any --address, and no --gateway leads to it"
                ));
            }
        }
        Ok(())
    }

    fn check_udp(&self) -> Result<(), LoadError> {
        if !self.is_udp() {
            return Ok(());
        }
        let wrong = |sentence: &str| Err(LoadError(format!("--udp: {sentence}")));
        let Workload::Cache(cache) = &self.workload else {
            return wrong("only memcached's protocols have datagrams");
        };
        if !self.targets.iter().all(LoadTarget::is_udp) {
            return wrong("all servers must be asked over UDP");
        }
        if self.idle.connections > 0 {
            return wrong("there are no idle connections: remove --idle");
        }
        if self.tls.is_some() {
            return wrong("there is no TLS over UDP");
        }
        if self.depth > 1 {
            return wrong(
                "a socket has one request in flight; use more --connections, not --depth",
            );
        }
        if cache.keys_per_get > 1 {
            return wrong(
                "one key per get: memcached numbers the datagrams of each value from 0 again, so \
                 those of several cannot be told apart: remove --multi-get",
            );
        }
        let is_bounded = match cache.value_bytes {
            Distribution::Fixed(bytes) | Distribution::Uniform { high: bytes, .. } => {
                bytes <= VALUE_BYTES_UDP_MAX as f64
            }
            _ => false,
        };
        if cache.set_percent > 0.0 && !is_bounded {
            return wrong(&format!(
                "a set must fit into one datagram: --value-size must be at most {VALUE_BYTES_UDP_MAX} bytes, such \
                 as uniform:1-1000; or use --sets 0"
            ));
        }
        Ok(())
    }

    fn check_arrivals(&self) -> Result<(), LoadError> {
        let most = RATE_PER_THREAD_MAX * f64::from(self.threads);
        let is_rate = |rate: f64| (0.0..=most).contains(&rate);
        let is_right = match &self.arrivals {
            Arrivals::Closed => true,
            Arrivals::Fixed { rate_per_s } | Arrivals::Poisson { rate_per_s } => {
                is_rate(*rate_per_s) && *rate_per_s > 0.0
            }
            Arrivals::Course { stages, .. } => {
                let is_stage = |stage: &crate::plan::Stage| {
                    is_rate(stage.from_per_s)
                        && is_rate(stage.to_per_s)
                        && !stage.lasts.is_zero()
                        && stage.lasts <= LONGEST
                };
                !stages.is_empty() && stages.iter().all(is_stage)
            }
        };
        match (is_right, &self.workload) {
            (false, _) => Err(LoadError(
                "a rate must be above 0 (in --course: at least 0) and at most 10M per thread; every stage of \
                 --course needs a time above 0"
                    .to_owned(),
            )),
            (true, Workload::Sessions(_)) if self.arrivals == Arrivals::Closed => Err(
                LoadError("--sessions needs a --rate".to_owned()),
            ),
            _ => Ok(()),
        }
    }

    fn check_workload(&self) -> Result<(), LoadError> {
        let wrong = |sentence: String| Err(LoadError(sentence));
        let http = match &self.workload {
            Workload::Http(http) => http,
            Workload::Sessions(sessions) => {
                let count = sessions.http.pages.len() as u32;
                let bursts = || sessions.scripts.iter().flat_map(|script| &script.bursts);
                let is_empty = |script: &crate::plan::SessionPlan| script.bursts.is_empty();
                if sessions.scripts.is_empty() || sessions.scripts.iter().any(is_empty) {
                    return wrong("a session has at least one burst of requests".to_owned());
                }
                if bursts().any(|burst| burst.pages.is_empty()) {
                    return wrong("a burst has at least one request".to_owned());
                }
                if bursts().flat_map(|burst| &burst.pages).any(|&page| page >= count) {
                    return wrong("a session requests a page that is not in the plan".to_owned());
                }
                &sessions.http
            }
            Workload::Cache(cache) => return cache.check(),
            Workload::Idle => return Ok(()),
        };
        if http.pages.is_empty() {
            return wrong("there is no page to request".to_owned());
        }
        if http.requests_per_connection == Some(0) {
            return wrong("a connection serves at least one request".to_owned());
        }
        let has_no_body = |page: &crate::plan::Page| {
            page.expected.is_some() && page.method.as_ref().unwrap_or(&http.method) == "HEAD"
        };
        if self.verify && http.pages.iter().any(has_no_body) {
            return wrong("the reply to HEAD has no body that --verify could compare".to_owned());
        }
        let methods = http.pages.iter().filter_map(|page| page.method.as_ref());
        if let Some(method) = methods.chain([&http.method]).find(|name| !is_token(name)) {
            return wrong(format!("'{method}' is not a request method; write one such as GET"));
        }
        if let Some((name, _)) = http.headers.iter().find(|(name, _)| !is_token(name)) {
            return wrong(format!("'{name}' is not the name of a header field"));
        }
        let is_forbidden = |name: &str| {
            let mut forbidden = NOT_IN_HTTP2.iter();
            forbidden.any(|other| name.eq_ignore_ascii_case(other))
        };
        let mut names = http.headers.iter().map(|(name, _)| name);
        if self.http2
            && let Some(name) = names.find(|name| is_forbidden(name))
        {
            return wrong(format!("HTTP/2 has no header field '{name}'"));
        }
        let has_control = |text: &str| text.bytes().any(|byte| byte <= b' ' || byte == 0x7f);
        match http.pages.iter().find(|page| page.path.is_empty() || has_control(&page.path)) {
            Some(page) => wrong(format!(
                "'{}' cannot be requested: write spaces as %20",
                page.path.escape_debug()
            )),
            None => Ok(()),
        }
    }
}

impl Cache {
    fn check_names(&self, template: &Template) -> Result<(), LoadError> {
        let longest = template.text(template.count() - 1);
        if template.count() != self.keys || !is_key(&longest) || longest.len() > KEY_BYTES_MAX {
            return Err(LoadError(format!(
                "'{}' is not a key: it has at most {KEY_BYTES_MAX} bytes, and no spaces or control characters",
                longest.escape_debug()
            )));
        }
        self.check_value()
    }

    fn check_value(&self) -> Result<(), LoadError> {
        match self.value_bytes {
            Distribution::Fixed(bytes) if bytes > VALUE_BYTES_MAX as f64 => {
                Err(LoadError(format!("--value-size must be at most {VALUE_BYTES_MAX} bytes")))
            }
            _ => Ok(()),
        }
    }

    fn check(&self) -> Result<(), LoadError> {
        let wrong = |sentence: String| Err(LoadError(sentence));
        if !(0.0..=100.0).contains(&self.set_percent) || self.keys == 0 || self.keys_per_get == 0 {
            return wrong(
                "--keys and --multi-get must be above 0, and --sets from 0 to 100".to_owned(),
            );
        }
        if self.keys_per_get > KEYS_PER_GET_MAX {
            return wrong("--multi-get must be at most 10,000".to_owned());
        }
        if let Some(template) = &self.template {
            return self.check_names(template);
        }
        if !is_key(&self.key_prefix) {
            return wrong("--key-prefix must not contain spaces or control characters".to_owned());
        }
        let shortest = self.key_prefix.len() + KEY_DIGITS;
        let fits = |bytes: f64| (shortest as f64..=KEY_BYTES_MAX as f64).contains(&bytes);
        if !matches!(self.key_bytes, Distribution::Fixed(bytes) if !fits(bytes))
            && shortest <= KEY_BYTES_MAX
        {
            return self.check_value();
        }
        wrong(format!(
            "--key-size must be from {shortest} (the prefix and {KEY_DIGITS} digits) to {KEY_BYTES_MAX} bytes"
        ))
    }
}

/// doc/protocol.txt: keys have no control characters and no whitespace.
fn is_key(text: &str) -> bool {
    text.bytes().all(|byte| byte > b' ' && byte != 0x7f)
}

/// RFC 9110 5.6.2.
fn is_token(name: &str) -> bool {
    let is_char = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !name.is_empty() && name.bytes().all(is_char)
}
