//! Assembly of the libraries: a site behind a handle, a server for connections, an access log, and
//! an admin endpoint for all of them.

use std::fs::{File, Metadata};
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};
use std::thread;
use std::time::Duration;

use ::serve::access_log::{AccessLog, Options, Target};
use ::serve::engine::netstack::NetstackInterface;
use ::serve::listen::{Address, Bound};
use ::serve::metrics::MetricsWriter;
use ::serve::tls::{Tls, subject};
use ::serve::{Server, Settings};
use session::{Now, Opening};
use web::{
    Covers, ForwardedField, Handle, HostRate, Hosts, LogFormat, Peer, PopularPath, Proxies,
    RateLimit, ServiceConfig, Session, Site, SiteConfig, VirtualHost,
};

use super::ServeConfig;
use super::prepare::{HTTP2, Limits, tls_options};
use super::redirects;
use super::table::ProxyHeader;
use super::terminal::Terminal;
use crate::acme::{self, Acme};
use crate::engine::EngineKind;
use crate::failure::Failure;
use crate::operate::{Hosted, Part, Route};
use crate::os::machine::why_no_threads;
use crate::value::{Rate, show_count, show_counted};

/// Sources of connections: the kernel's sockets, or a netstack.
pub(crate) struct Origins {
    pub(crate) listeners: Vec<Bound>,
    pub(crate) netstack: Option<NetstackInterface>,
}

/// A running server.
pub(crate) struct Running {
    handle: Arc<Handle>,
    acme: Option<Arc<Acme>>,
    log: Option<Arc<AccessLog>>,
    terminal: Arc<Terminal>,
    proxies: Option<Proxies>,
    pub(crate) hosted: Hosted,
}

/// The site of the first host. Those of other hosts are checked beside it.
pub(crate) fn first_site(whole: &ServeConfig) -> Option<Site> {
    Site::open(checked_config(whole.sites().next()?)).ok()
}

/// Finds mistakes in a configuration that the site can detect.
///
/// # Errors
/// A sentence about the mistake.
pub(crate) fn check(config: &ServeConfig, first: Option<&Site>) -> Result<(), String> {
    service_config(config).check().map_err(|error| error.to_string())?;
    if config.only_named_hosts {
        return Ok(());
    }
    let site = match first {
        Some(first) => Site::open_beside(first, checked_config(config)),
        None => Site::open(checked_config(config)),
    };
    site.map(drop).map_err(|error| error.to_string())
}

/// Configuration for a check only, for which budgets do not matter.
fn checked_config(config: &ServeConfig) -> SiteConfig {
    SiteConfig { page_cache_budget: Some(0), memory_budget: 0, ..site_config(config) }
}

impl Running {
    /// Opens the site and the log, and starts to serve.
    ///
    /// # Errors
    /// The file, listener or thread that could not be opened or started.
    pub(crate) fn start(
        config: &ServeConfig,
        limits: &Limits,
        origins: Origins,
        admin: Vec<Bound>,
        (tls, acme): (Option<Arc<Tls>>, Option<acme::Kept>),
        terminal: Arc<Terminal>,
    ) -> Result<Running, Failure> {
        let warnings = print_warnings(config, &terminal).map_err(Failure::Running)?;
        let hosts = open_hosts(config, limits, None, warnings).map_err(Failure::Usage)?;
        let handle = Handle::new(hosts, service_config(config));
        let mut handle = handle.map_err(|error| Failure::Usage(error.to_string()))?;
        if !admin.is_empty() {
            handle = handle.counting_paths();
        }
        let handle = Arc::new(handle);
        let log = open_log(config, Arc::clone(&terminal))?.map(Arc::new);
        let server = start_server(config, limits, origins, &handle, log.clone())?;
        let server = Arc::new(server);
        let acme = acme.map(|(settings, managed)| {
            let (say, warn) = (Arc::clone(&terminal), Arc::clone(&terminal));
            let say = move |text: &str| say.say(text);
            let warn = move |text: &str| warn.warn(text);
            Acme::start(settings, managed, Arc::clone(&handle), say, warn).map(Arc::new)
        });
        let acme = acme.transpose();
        let acme = acme.map_err(|error| Failure::Running(why_no_threads("ACME", &error)))?;
        let its_acme = acme.clone();
        let (site, its_log) = (Arc::clone(&handle), log.clone());
        let write_more = move |server: &Server, out: &mut MetricsWriter| {
            let help = "From the first byte of a request to the last of its reply.";
            let name = "weft_http_request_duration_seconds";
            server.counters().write_durations_to(name, help, out);
            write_http_metrics(&site, out);
            if let Some(log) = &its_log {
                log.write_metrics(out);
            }
            if let Some(acme) = &its_acme {
                acme.write_metrics(out);
            }
        };
        let told = Arc::clone(&terminal);
        let tell = move |news: Result<&str, &str>| match news {
            Ok(text) => told.say(text),
            Err(text) => told.warn(text),
        };
        let counting = Arc::clone(&handle);
        let paths = Route::paths(move || paths(&counting));
        Ok(Running {
            hosted: Hosted::new(server, tls, admin, vec![paths], write_more, tell)?,
            handle,
            acme,
            log,
            terminal,
            proxies: proxies(config),
        })
    }

    /// Reopens the log after a rename, if there is one; on failure the old file stays in use.
    pub(crate) fn reopen_log(&self) -> Option<Part> {
        let log = self.log.as_ref()?;
        let target = log.target();
        let opened = log.reopen();
        let opened = opened.map_err(|error| format!("cannot open the log {target}: {error}"));
        Some(("the log", opened))
    }

    /// Applies a new configuration from the next request and the next connection on.
    ///
    /// # Errors
    /// The mistake; the old configuration then stays.
    pub(crate) fn reload(&self, config: &ServeConfig, limits: &Limits) -> Result<(), String> {
        let tls = match (&self.hosted.tls, tls_options(config, None)?) {
            (Some(tls), Some(options)) => Some((tls, tls.plan(options)?)),
            _ => None,
        };
        let warnings = print_warnings(config, &self.terminal)?;
        let hosts = open_hosts(config, limits, Some(&self.handle.site()), warnings)?;
        // The driver's proxies are fixed at start.
        let service = ServiceConfig { proxies: self.proxies.clone(), ..service_config(config) };
        let reloaded = self.handle.reload(hosts, service);
        reloaded.map_err(|error| error.to_string())?;
        if let Some((tls, plan)) = tls {
            tls.adopt(plan);
        }
        Ok(())
    }

    /// True if ACME runs; once started, it runs until a restart.
    pub(crate) fn has_acme(&self) -> bool {
        self.acme.is_some()
    }

    /// Applies new settings of ACME. Returns a warning if that needs a restart.
    pub(crate) fn reload_acme(&self, settings: Option<acme::Settings>) -> Option<&'static str> {
        match (&self.acme, settings) {
            (Some(acme), Some(settings)) => acme.reload(settings),
            (None, None) => {}
            _ => return Some("`acme` has changed: restart to apply it"),
        }
        None
    }

    /// Stops accepting, lets open connections finish within the drain time-out, and writes the rest
    /// of the log. Returns the number of connections cut.
    pub(crate) fn drain(&self) -> usize {
        let cut = self.hosted.drain();
        if let Some(log) = &self.log {
            log.close(LOG_PATIENCE);
        }
        cut
    }

    /// State of the server, for people.
    pub(crate) fn dump(&self) -> String {
        let server = &self.hosted.server;
        let accepted = show_count(server.counters().accepted());
        let open = show_counted(server.connection_count() as u64, "connection");
        let engine = server.dump();
        format!("{open} open, {accepted} accepted\n{engine}")
    }
}

fn start_server(
    config: &ServeConfig,
    limits: &Limits,
    origins: Origins,
    handle: &Arc<Handle>,
    log: Option<Arc<AccessLog>>,
) -> Result<Server, Failure> {
    let https_port = https_port(config, &origins.listeners);
    let is_netstack = origins.netstack.is_some();
    let is_tcp = |bound: &Bound| matches!(bound.address, Address::Tcp(_));
    let is_tcp: Vec<_> = origins.listeners.iter().map(is_tcp).collect();
    let tls = origins.listeners.iter().map(|bound| bound.tls.clone());
    let tls: Vec<_> = tls.collect();
    let settings = Settings {
        engine: config.common.engine(),
        listeners: origins.listeners,
        netstack: origins.netstack,
        limits: limits.connections.clone(),
        fibers: config.common.engine.fibers.map(usize::from),
        log,
        // A reload may add a limit.
        names_peers: config.limit_requests.is_some()
            || proxies(config).is_some()
            || config.config.is_some(),
    };
    let handle = Arc::clone(handle);
    let open = move |opening: Opening<'_>| {
        let peer = opening.peer.map_or(Peer::Unix, Peer::Tcp);
        let session = Session::new(Arc::clone(&handle), peer);
        match (opening.tls, https_port) {
            (Some(facts), _) => {
                let session = session.over_tls(facts.client.and_then(subject));
                if facts.alpn != Some(HTTP2) {
                    return session;
                }
                let tls = tls.get(opening.listener).and_then(Option::as_ref);
                let covers = tls.zip(facts.server_name).map(|(tls, name)| {
                    let (tls, name) = (Arc::clone(tls), name.to_owned());
                    Covers::new(move |host| tls.covers(&name, host))
                });
                session.speaking_http2(covers.unwrap_or_default())
            }
            (None, Some(port)) if is_netstack || is_tcp[opening.listener] => {
                session.redirecting_to_https(port)
            }
            (None, _) => session,
        }
    };
    Server::start(settings, open)
        .map_err(|error| Failure::Running(config.common.engine.why_not_started(&error)))
}

/// Port to which plain requests are redirected: from the setting, else of the first TLS address.
pub(super) fn https_port(config: &ServeConfig, listeners: &[Bound]) -> Option<u16> {
    if config.https_redirect.is_empty() {
        return None;
    }
    if config.https_port.is_some() {
        return config.https_port;
    }
    let of_kernel = listeners.iter().filter(|bound| bound.tls.is_some());
    let mut addresses = of_kernel.map(|bound| &bound.address).chain(&config.listen);
    addresses.find_map(Address::port)
}

/// Time to write the rest of the log at the end.
const LOG_PATIENCE: Duration = Duration::from_secs(2);

fn open_log(config: &ServeConfig, terminal: Arc<Terminal>) -> Result<Option<AccessLog>, Failure> {
    let (target, options) = match config.access_log.clone() {
        Some(target) => (target, Options::default()),
        None if shows_requests(config) => (Target::Stderr, shown()),
        None => return Ok(None),
    };
    let name = target.to_string();
    let is_shown = options.is_paced;
    let log = AccessLog::open(target, &options, move |news| {
        if is_shown {
            terminal.say("note: requests not shown: too many; --access-log FILE logs them all");
        } else {
            terminal.warn(news);
        }
    });
    log.map(Some).map_err(|error| {
        Failure::Running(match error.kind() {
            io::ErrorKind::WouldBlock => why_no_threads("the access log's thread", &error),
            kind => {
                let remedy = remedy_for_log(config, kind);
                format!("cannot open the access log {name}: {error}{remedy}")
            }
        })
    })
}

/// True if requests are shown on standard error: it is a terminal, and there is no log.
fn shows_requests(config: &ServeConfig) -> bool {
    config.access_log_is_default && !config.quiet && io::stderr().is_terminal()
}

/// Options of the log on a terminal: some hundred lines a second, few enough to read, and to keep a
/// benchmark from measuring the terminal. Further lines are dropped and counted.
fn shown() -> Options {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    Options {
        flush_interval: Duration::from_millis(200),
        // Each serving thread has a part of it.
        queued_len_max: 4096 * (threads + 1).next_power_of_two(),
        is_paced: true,
    }
}

fn remedy_for_log(config: &ServeConfig, kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::NotFound => "; create its directory first",
        io::ErrorKind::PermissionDenied if config.common.user.is_some() => {
            "; the user of --user opens it, and needs to be able to write there"
        }
        _ => "",
    }
}

/// Opens the sites of all hosts, replacing those of `old`.
pub(super) fn open_hosts(
    config: &ServeConfig,
    limits: &Limits,
    old: Option<&Site>,
    warnings: Option<SyncSender<String>>,
) -> Result<Hosts, String> {
    let read = |host: &ServeConfig| redirects::read(&host.redirects, host.pages());
    let redirects = Arc::new(read(config)?);
    let mut hosts: Vec<VirtualHost> = Vec::with_capacity(1 + config.hosts.len());
    for host in config.sites() {
        let budget = config.memory_budget_bytes;
        let site_config = SiteConfig {
            memory_file_len_max: memory_file_max_bytes(config),
            driver_tables: config.common.engine.netstack.keeps_sums(),
            memory_budget: budget.unwrap_or(limits.memory_budget_bytes),
            open_files_max: limits.open_files_max,
            return_free_memory: Some(serve::give_free_memory_back),
            ..site_config(host)
        };
        let opened = match hosts.first() {
            Some(first) => Site::open_beside(&first.site, site_config),
            None => match old {
                Some(old) => Site::open_after(old, site_config),
                None => Site::open(site_config),
            },
        };
        let mut site = opened.map_err(|error| error.to_string())?;
        if let Some(warnings) = warnings.clone() {
            // The queue is full, or the thread has ended with the process.
            site.on_warning(move |text| _ = warnings.try_send(text.to_owned()));
        }
        // Inherited values are held once.
        let is_inherited = host.redirects == config.redirects && host.pages() == config.pages();
        let redirects = if is_inherited { Arc::clone(&redirects) } else { Arc::new(read(host)?) };
        hosts.push(VirtualHost {
            names: host.names.clone(),
            aliases: host.aliases.clone(),
            site: Arc::new(site),
            redirects,
            hsts: host.hsts.clone(),
            body_len_max: Some(host.request_limits.body_len_max),
            rate_limit: match host.limit_requests {
                of_host if of_host == config.limit_requests => HostRate::Shared,
                Some(rate) => HostRate::Own(rate_limit(config, rate)),
                None => HostRate::Unlimited,
            },
        });
    }
    let threads = Site::start_compressing(hosts.iter().map(|host| &host.site));
    threads.map_err(|error| why_no_threads("the threads that compress", &error))?;
    let named = hosts.split_off((!config.only_named_hosts).into());
    Ok(Hosts { default: hosts.pop(), named })
}

/// Most warnings of a site that wait to be printed. Further ones are dropped; the metrics count
/// them.
const WARNINGS_MAX: usize = 16;

/// Prints warnings of sites about lost error pages and wrong password files, while the sites exist.
/// On a thread of its own, since standard error may block.
fn print_warnings(
    config: &ServeConfig,
    terminal: &Arc<Terminal>,
) -> Result<Option<SyncSender<String>>, String> {
    let says_nothing =
        |host: &ServeConfig| host.site.error_pages.is_empty() && host.site.basic_auth.is_empty();
    if config.sites().all(says_nothing) {
        return Ok(None);
    }
    let (sender, warnings) = mpsc::sync_channel::<String>(WARNINGS_MAX);
    let terminal = Arc::clone(terminal);
    let print = move || warnings.iter().for_each(|text| terminal.warn(&text));
    let thread = thread::Builder::new().name("site-warnings".to_owned());
    thread
        .spawn(print)
        .map_err(|error| why_no_threads("the thread of the site's warnings", &error))?;
    Ok(Some(sender))
}

pub(super) fn site_config(config: &ServeConfig) -> SiteConfig {
    SiteConfig {
        index: config.index.clone(),
        error_pages: error_pages(config),
        memory_file_len_max: memory_file_max_bytes(config),
        ..config.site.clone()
    }
}

/// The error pages. Without a setting for 404 they include the site's own 404.html: static hosting
/// services use it by default, so many sites have one.
fn error_pages(config: &ServeConfig) -> Vec<(u16, PathBuf)> {
    let mut pages = config.site.error_pages.clone();
    // It is not configured, so an unusable one is no mistake.
    let has_own = || {
        let path = config.site.root.join(OWN_404);
        let is_page = |meta: Metadata| meta.is_file() && meta.len() <= OWN_404_LEN_MAX;
        path.symlink_metadata().is_ok_and(is_page) && File::open(path).is_ok()
    };
    if pages.iter().all(|(status, _)| *status != 404) && has_own() {
        pages.push((404, OWN_404.into()));
    }
    pages
}

const OWN_404: &str = "404.html";

/// Longest error page.
const OWN_404_LEN_MAX: u64 = 1 << 20;

/// Default longest file held in memory. Above 64 KiB the kernel sends a file from its page cache
/// with less CPU than a copy takes. Under TLS and the netstack it cannot.
fn memory_file_max_bytes(config: &ServeConfig) -> u64 {
    let is_copied = config.has_tls() || config.common.engine.kind == EngineKind::Netstack;
    let default = if is_copied { 256 << 10 } else { 64 << 10 };
    config.memory_file_max_bytes.unwrap_or(default)
}

pub(super) fn service_config(config: &ServeConfig) -> ServiceConfig {
    let log_format = if shows_requests(config) { LogFormat::Short } else { config.log_format };
    ServiceConfig {
        limits: config.request_limits,
        server_name: config.server_name.clone(),
        log_format,
        proxies: proxies(config),
        http2: config.http2,
        rate_limit: config.limit_requests.map(|rate| rate_limit(config, rate)),
    }
}

fn rate_limit(config: &ServeConfig, rate: Rate) -> RateLimit {
    RateLimit {
        requests: rate.count,
        per: rate.per,
        burst: rate.burst,
        prefix: config.limit_prefix,
        exempt: config.without_limits(),
    }
}

/// Proxies whose header fields name their clients.
fn proxies(config: &ServeConfig) -> Option<Proxies> {
    let field = match config.proxy_header {
        ProxyHeader::XForwardedFor => ForwardedField::XForwardedFor,
        ProxyHeader::Forwarded => ForwardedField::Forwarded,
        ProxyHeader::Protocol | ProxyHeader::ProtocolIfPresent => return None,
    };
    let from = config.proxies.clone();
    (!from.is_empty()).then_some(Proxies { from, field })
}

fn write_http_metrics(handle: &Handle, out: &mut MetricsWriter) {
    for sample in handle.counters() {
        let labels: Vec<_> = label(sample.labels).into_iter().collect();
        out.counter(sample.name, sample.help, &labels, sample.value);
    }
    for (name, help, value) in handle.site().counters() {
        let full = format!("weft_{name}");
        if name.ends_with("_total") {
            out.counter(&full, help, &[], value);
        } else {
            out.gauge(&full, help, &[], value as f64);
        }
    }
}

/// Reply to `/paths`.
fn paths(handle: &Handle) -> serde_json::Value {
    let path = |popular: PopularPath| {
        let PopularPath { path, replies, body_bytes } = popular;
        serde_json::json!({ "path": path, "replies": replies, "body_bytes": body_bytes })
    };
    let paths: Vec<_> = handle.popular_paths(Now::read()).into_iter().map(path).collect();
    serde_json::json!({ "paths": paths })
}

/// Splits `status="200"` into name and value.
fn label(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once('=')?;
    Some((name, value.trim_matches('"')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_a_name_and_a_value() {
        assert_eq!(label("status=\"200\""), Some(("status", "200")));
        assert_eq!(label(""), None);
    }

    /// Seen: the example site's 404 page was not shown with the README's command.
    #[test]
    fn own_404_html_is_the_default_page_for_404() {
        let root = tempfile::tempdir().unwrap();
        let mut config = ServeConfig::default();
        config.site.root = root.path().to_owned();
        assert_eq!(error_pages(&config), []);
        std::os::unix::fs::symlink("/etc/hostname", root.path().join("404.html")).unwrap();
        assert_eq!(error_pages(&config), [], "it would lead out of the directory");
        std::fs::remove_file(root.path().join("404.html")).unwrap();
        std::fs::write(root.path().join("404.html"), "").unwrap();
        assert_eq!(error_pages(&config), [(404, "404.html".into())]);
        config.site.error_pages = vec![(404, "gone.html".into()), (403, "no.html".into())];
        assert_eq!(error_pages(&config), config.site.error_pages);
    }

    /// Seen: a log in root's directory failed with just "Permission denied", although root had
    /// typed the command. Cause: the user of `--user` opens it. Cure: the message says so.
    #[test]
    fn an_unwritable_log_names_the_user() {
        let mut config = ServeConfig::default();
        let denied = |config: &ServeConfig| remedy_for_log(config, io::ErrorKind::PermissionDenied);
        assert_eq!(denied(&config), "");
        config.common.user = crate::value::account("www-data").ok();
        assert!(denied(&config).contains("the user of --user opens it"));
    }

    /// Seen: 500 front pages, half of them above 64 KiB, took 1.22 times the CPU time of nginx.
    /// Cause: files up to 256 KiB were copied from memory. Cure: the kernel sends the longer ones
    /// from its page cache, where it can.
    #[test]
    fn long_files_are_cached_only_if_copied() {
        let plain = ServeConfig::default();
        assert_eq!(memory_file_max_bytes(&plain), 64 << 10);
        let https =
            ServeConfig { tls_cert: vec!["certificate.pem".into()], ..ServeConfig::default() };
        assert_eq!(memory_file_max_bytes(&https), 256 << 10);
        let mut netstack = ServeConfig::default();
        netstack.common.engine = crate::engine::choice("netstack");
        assert_eq!(memory_file_max_bytes(&netstack), 256 << 10);
        netstack.memory_file_max_bytes = Some(7);
        assert_eq!(memory_file_max_bytes(&netstack), 7);
    }
}
