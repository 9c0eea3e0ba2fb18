//! `weft serve`: from the configuration to a running server, and its reaction to signals.

mod certificates;
mod engine;
mod explain;
mod files;
mod prepare;
mod published;
mod redirects;
mod table;
mod terminal;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ::serve::access_log::Target;
use ::serve::engine::netstack::NetstackInterface;
use ::serve::listen::{self, Address, Bound};
use web::{RATE_LIMITS_MAX, Site};

use crate::engine::EngineKind;
use crate::failure::Failure;
use crate::operate::{self, ManagedServer, Part, SignalQueue};
use crate::os::machine::Machine;
use crate::os::sandbox::Sandbox;
use crate::settings::layer::Layer;
use crate::settings::layers::{self, Fixed, Resolved};
use crate::value::{Rate, RedirectSource, show_size};
use engine::{Origins, Running};
pub(crate) use explain::explain;
use prepare::{Limits, Prepared, few_connections, prepare};
use published::{Published, Secret};
use table::ProxyHeader;
pub(crate) use table::ServeConfig;
use terminal::Terminal;

/// Serves until told to stop.
///
/// # Errors
/// If it cannot start. See the exit codes.
pub(crate) fn run(flags: Layer) -> Result<(), Failure> {
    let (env, warnings) =
        layers::environment::<ServeConfig>(std::env::vars_os()).map_err(Failure::Usage)?;
    let fixed = Fixed { flags, env };
    let resolved: Resolved<ServeConfig> = fixed.resolve().map_err(Failure::Usage)?;
    let config = &resolved.config;
    resolved.check(check(config)).map_err(Failure::Usage)?;
    let terminal = Arc::new(Terminal::new(config.color, config.quiet));
    for warning in warnings.iter().chain(&config.common.note_workers("--workers")) {
        terminal.warn(warning);
    }
    // This must come before anything else takes their descriptors. sd_listen_fds(3)
    let inherited = listen::inherited().map_err(operate::running)?;
    let mut signals = SignalQueue::install()?;
    let prepared = prepare(config, inherited)?;
    let Prepared { listeners, netstack, admin, tls, acme, limits, pid_file: _pid_file } = prepared;
    for warning in Published::by(config).warnings(config) {
        terminal.warn(&warning);
    }
    let unreadable = files::unreadable(config);
    for warning in unreadable.into_iter().chain(directory_glob(config)) {
        terminal.warn(&warning);
    }
    if let Some(warning) = few_connections(config, &limits, &Machine::this()) {
        terminal.warn(&warning);
    }
    if let Some(warning) = config.common.engine.warning() {
        terminal.warn(&warning);
    }
    let mut urls = urls(&listeners, netstack.as_ref(), &admin);
    if let Some((settings, _)) = &acme {
        urls.push(("acme", settings.describe()));
    }
    let sandbox = signals.confine(&config.common, files::needs(config))?;
    let running = Running::start(
        config,
        &limits,
        Origins { listeners, netstack },
        admin,
        (tls, acme),
        Arc::clone(&terminal),
    )?;
    let hosted = &running.hosted;
    hosted.warn_of_certificates(|text| terminal.warn(text));
    terminal
        .banner(config, &banner(config, &limits, &sandbox, urls, running.hosted.server.describe()));
    if shows_nothing(config) {
        terminal
            .say("note: no index file: / is answered with 403; --listing lists the files instead");
    }
    if is_root(config) {
        terminal
            .say("note: serving as root; --user NAME drops privileges once the sockets are open");
    }
    signals.run_until_stop(&mut Serving {
        started: resolved.fixed(),
        started_with_tls: config.has_tls(),
        fixed,
        resolved,
        tls_secrets: BTreeSet::new(),
        acme_secrets: BTreeSet::new(),
        limits,
        sandbox,
        running,
        terminal,
    });
    Ok(())
}

/// A running server and its configuration, which signals change.
struct Serving {
    fixed: Fixed,
    /// Settings from the start that only a restart changes.
    started: Layer,
    started_with_tls: bool,
    resolved: Resolved<ServeConfig>,
    /// Secrets of TLS, which continues although its settings are gone.
    tls_secrets: BTreeSet<Secret>,
    /// Secrets that the running ACME has had so far.
    acme_secrets: BTreeSet<Secret>,
    limits: Limits,
    sandbox: Sandbox,
    running: Running,
    terminal: Arc<Terminal>,
}

impl Serving {
    /// Refuses a file that publishes the working directory or a secret in use. A file truncated
    /// during a write may do so; truncation at a later point looks like a change.
    ///
    /// # Errors
    /// A sentence about the reason.
    fn check_reach(&self, newer: &Resolved<ServeConfig>) -> Result<(), String> {
        if self.resolved.has_lines && !newer.has_lines {
            return Err("the settings file says nothing any more: restart to do without it".into());
        }
        if self.resolved.is_set("root") && !newer.is_set("root") {
            let why = "no `root` is named for a site, which would serve the working directory: \
                       name one, or restart";
            return Err(why.to_owned());
        }
        let named: BTreeSet<_> = self.resolved.config.all().flat_map(published::secrets).collect();
        let until_restart = self.tls_secrets.iter().chain(&self.acme_secrets);
        Published::by(&newer.config).check_each(named.iter().chain(until_restart))
    }

    /// Keeps the secrets that stay in use until a restart, whatever the `newer` configuration says.
    fn keep_secrets(&mut self, newer: &ServeConfig) {
        let old = &self.resolved.config;
        if newer.has_tls() {
            self.tls_secrets.clear();
        } else if self.running.hosted.tls.is_some() {
            self.tls_secrets.extend(old.all().flat_map(published::tls_secrets));
        }
        if self.running.has_acme() {
            self.acme_secrets.extend(old.all().flat_map(published::acme_secrets));
        }
    }

    fn reload_configuration(&mut self) -> Result<(), String> {
        let newer = self.fixed.resolve()?;
        self.check_reach(&newer)?;
        // The certificate is reloaded separately, and the user cannot change.
        let published = Published::by(&newer.config);
        let rates = rates(&newer.config);
        newer.check(|config| {
            check_rate(config, &rates)?;
            check_root(config)?;
            check_pairs(config)?;
            check_aliases(config)?;
            published.check(config)?;
            certificates::settings(config).map(drop)
        })?;
        // A missing file is another kind of mistake, reported with its place in the file.
        let mut files = files::needs(&newer.config).files;
        files.retain(|(_, path)| path.exists());
        if let Some(path) = self.sandbox.first_outside(&files) {
            let path = path.display();
            return Err(format!(
                "{path} is outside of the sandbox, which cannot grow: restart to use it"
            ));
        }
        if let Err(why) = self.running.reload(&newer.config, &self.limits) {
            // Find the mistake again with its place in the file, which opens the site once more.
            let inherited = Inherited::of(&newer.config);
            newer.check(|config| {
                prepare::open_tls(config, None)?;
                check_rules(config, &inherited)
            })?;
            return Err(why);
        }
        if let Some(warning) = self.running.reload_acme(certificates::settings(&newer.config)?) {
            self.terminal.warn(warning);
        }
        let tls_begins_or_ends = self.started_with_tls != newer.config.has_tls();
        let changed = newer.needs_restart(&self.started).into_iter();
        for name in changed.chain(tls_begins_or_ends.then_some("tls-cert")) {
            let warning = format!("`{name}` has changed: restart to apply it");
            self.terminal.warn(&warning);
        }
        for warning in published.warnings(&newer.config) {
            self.terminal.warn(&warning);
        }
        self.keep_secrets(&newer.config);
        self.resolved = newer;
        Ok(())
    }
}

impl ManagedServer for Serving {
    fn reload(&mut self) -> Vec<Part> {
        let log = self.running.reopen_log();
        // The configuration names the certificates, so it comes first.
        let configuration = ("the configuration", self.reload_configuration());
        let hosted = &self.running.hosted;
        let certificate = hosted.reload_certificate(|text| self.terminal.warn(text));
        let others = log.into_iter().chain(certificate);
        others.chain([configuration]).collect()
    }

    fn dump(&self) -> bool {
        self.terminal.answer(&self.running.dump());
        true
    }

    fn open(&self) -> (usize, Duration) {
        let patience = self.limits.connections.drain_deadline;
        (self.running.hosted.server.connection_count(), patience)
    }

    fn drain(&self) -> usize {
        self.running.drain()
    }

    fn say(&self, text: &str) {
        self.terminal.say(text);
    }

    fn warn(&self, text: &str) {
        self.terminal.warn(text);
    }

    fn say_cut(&self, text: &str) {
        self.terminal.warn(text);
    }
}

/// Makes a check of the top level, or of a host, of the configuration `whole`. It finds the first
/// mistake that can be found without starting: in the root, the user, the rules, the named files.
/// Its errors are sentences with the mistake and the remedy.
pub(crate) fn check(whole: &ServeConfig) -> impl Fn(&ServeConfig) -> Result<(), String> + use<> {
    let published = Published::by(whole);
    let has_names = certificates::check_names(whole);
    let inherited = Inherited::of(whole);
    let rates = rates(whole);
    let has_tls = whole.has_tls();
    move |config| {
        check_rate(config, &rates)?;
        check_root(config)?;
        check_pairs(config)?;
        if !has_tls {
            check_without_tls(config)?;
        }
        if config.names.is_empty() {
            prepare::account(config)?;
            check_addresses(config)?;
            config.common.engine.check()?;
        }
        check_aliases(config)?;
        published.check(config)?;
        if config.acme.is_some() {
            has_names.clone()?;
        }
        certificates::settings(config)?;
        prepare::open_tls(config, None)?;
        check_rules(config, &inherited)
    }
}

/// Warnings that a start with this file would print: about files that are published by mistake, and
/// certificates that clients refuse.
pub(crate) fn warnings(config: &ServeConfig, file: &Path) -> Vec<String> {
    let config = &ServeConfig { config: Some(file.to_owned()), ..config.clone() };
    let mut warnings = Published::by(config).warnings(config);
    if let Ok(Some(tls)) = prepare::open_tls(config, None) {
        warnings.extend(tls.warnings(SystemTime::now()));
    }
    warnings.extend(directory_glob(config));
    warnings
}

/// A warning about the first rule for files whose glob is the path of a directory.
fn directory_glob(config: &ServeConfig) -> Option<String> {
    config.sites().map(|host| &host.site).find_map(|site| {
        let headers = site.headers.iter().map(|rule| &rule.glob);
        let mut globs = headers.chain(site.cache_rules.iter().map(|rule| &rule.glob));
        let glob = globs.find(|glob| {
            let path = glob.trim_start_matches('/');
            !path.contains(['*', '?', '[', '{', '\\']) && site.root.join(path).is_dir()
        })?;
        Some(format!("the glob '{glob}' is a directory's; write '{glob}/**' for the files in it"))
    })
}

/// The distinct limits on requests, up to the maximum number.
fn rates(whole: &ServeConfig) -> Vec<Rate> {
    let mut rates = Vec::new();
    for rate in whole.all().filter_map(|host| host.limit_requests) {
        if rates.len() < RATE_LIMITS_MAX && !rates.contains(&rate) {
            rates.push(rate);
        }
    }
    rates
}

fn check_rate(config: &ServeConfig, rates: &[Rate]) -> Result<(), String> {
    match config.limit_requests {
        Some(rate) if !rates.contains(&rate) => Err(format!(
            "more than {RATE_LIMITS_MAX} limits differ, each of which takes 512 KiB: give hosts \
             the same one, which counts for each of them apart"
        )),
        _ => Ok(()),
    }
}

/// Finds two addresses that one server cannot have at once. Other mistakes are found by the kernel.
fn check_addresses(config: &ServeConfig) -> Result<(), String> {
    if config.common.engine.kind == EngineKind::Netstack {
        // The netstack's addresses are separate from the kernel's.
        return Ok(());
    }
    let is_everywhere = |address: &Address| match address {
        Address::Name { host, .. } => host.is_empty(),
        _ => false,
    };
    // Sockets from systemd replace the default.
    let listen = config.listen.iter().filter(|_| !config.listen_is_default);
    let mut others: Vec<&Address> = Vec::new();
    for address in listen.chain(&config.common.admin) {
        if address.port() == Some(0) {
            continue;
        }
        for other in &others {
            if address == *other {
                return Err(format!("{address} is named twice: a server listens there once"));
            }
            let is_one_port = address.port().is_some() && address.port() == other.port();
            if is_one_port && (is_everywhere(address) || is_everywhere(other)) {
                return Err(format!("{other} and {address} overlap: name one of them"));
            }
        }
        others.push(address);
    }
    Ok(())
}

fn check_aliases(config: &ServeConfig) -> Result<(), String> {
    match config.names.first() {
        Some(name) if name.is_wildcard() && !config.aliases.is_empty() => Err(format!(
            "aliases are redirected to the first name, and {name} is not the name of one host"
        )),
        _ => Ok(()),
    }
}

/// Values inherited by hosts, to be checked once.
struct Inherited {
    redirects: Vec<RedirectSource>,
    pages: Option<Vec<String>>,
    /// The site of the first host. `None`: it cannot be opened, which its own check reports.
    first: Option<Site>,
}

impl Inherited {
    fn of(whole: &ServeConfig) -> Inherited {
        let pages = whole.pages().map(<[String]>::to_vec);
        Inherited { redirects: whole.redirects.clone(), pages, first: engine::first_site(whole) }
    }
}

/// Finds mistakes in redirects and in the site.
fn check_rules(config: &ServeConfig, inherited: &Inherited) -> Result<(), String> {
    let is_inherited =
        config.redirects == inherited.redirects && config.pages() == inherited.pages.as_deref();
    if config.names.is_empty() || !is_inherited {
        redirects::read(&config.redirects, config.pages())?;
    }
    engine::check(config, inherited.first.as_ref())
}

/// Checks that each setting comes with those that it requires.
fn check_pairs(config: &ServeConfig) -> Result<(), String> {
    if config.proxies.is_empty() && config.proxy_header != ProxyHeader::default() {
        return Err(
            "proxy_header needs proxy_from, the networks of proxies: proxy_from = \"10.0.0.5\""
                .to_owned(),
        );
    }
    if config.names_client_auth && config.tls_client_ca.is_none() {
        return Err(
            "tls_client_auth needs tls_client_ca, the authorities of clients' certificates: \
                    without it none is asked for"
                .to_owned(),
        );
    }
    if config.https_port.is_some() && config.https_redirect.is_empty() {
        return Err("https_port needs https_redirect, the address of plain HTTP".to_owned());
    }
    Ok(())
}

fn check_without_tls(config: &ServeConfig) -> Result<(), String> {
    if !config.https_redirect.is_empty() {
        return Err(
            "`https_redirect` needs a certificate (`tls_cert`): there is no HTTPS to redirect to"
                .to_owned(),
        );
    }
    if config.tls_client_ca.is_some() {
        return Err(
            "`tls_client_ca` needs a certificate (`tls_cert`): clients show theirs in TLS alone"
                .to_owned(),
        );
    }
    Ok(())
}

fn check_root(config: &ServeConfig) -> Result<(), String> {
    if config.only_named_hosts {
        return Ok(());
    }
    let root = config.site.root.display();
    let meta = fs::metadata(&config.site.root).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            let root = config.site.root.to_str().unwrap_or_default();
            let tip = match root {
                "true" | "false" | "on" | "off" | "yes" | "no" => {
                    "a switch takes no value: --listing, or --no-listing".to_owned()
                }
                "help" => "weft serve --help lists the options".to_owned(),
                _ => tip_for_port(root)
                    .unwrap_or_else(|| "name the one to serve: weft serve DIR".to_owned()),
            };
            format!("there is no directory '{root}'; {tip}")
        }
        _ => format!("cannot read '{root}': {error}"),
    })?;
    if meta.is_dir() {
        return Ok(());
    }
    Err(format!("'{root}' is a file; name the directory to serve: weft serve DIR"))
}

/// Tip for a port or address without its flag, as in `python -m http.server 8080`.
pub(crate) fn tip_for_port(typed: &str) -> Option<String> {
    let (host, port) = typed.rsplit_once(':').unwrap_or(("", typed));
    let is_address = port.parse::<u16>().is_ok() && !host.contains('/');
    is_address.then(|| {
        let here = if host.is_empty() { "127.0.0.1" } else { host };
        let everywhere = if host.is_empty() {
            format!(", or --listen :{port} for every interface")
        } else {
            String::new()
        };
        format!("an address has a flag: weft serve DIR --listen {here}:{port}{everywhere}")
    })
}

/// True if the first page is a 403: the directory has no index file, and neither listing nor
/// fallback is on.
fn shows_nothing(config: &ServeConfig) -> bool {
    let site = &config.site;
    let has_index = || config.index.iter().any(|name| site.root.join(name).exists());
    !config.only_named_hosts && !site.listing && site.spa_fallback.is_none() && !has_index()
}

/// True if requests are answered with root's rights.
fn is_root(config: &ServeConfig) -> bool {
    config.common.user.is_none() && rustix::process::geteuid().is_root()
}

/// The lines of the start-up message, as name and text.
type Lines = Vec<(&'static str, String)>;

fn banner(
    config: &ServeConfig,
    limits: &Limits,
    sandbox: &Sandbox,
    mut lines: Lines,
    engine: String,
) -> Lines {
    lines.push(("engine", engine));
    let engine = &config.common.engine;
    let connections = engine.show_connections(limits.connections.connections_max);
    let memory = show_size(limits.memory_budget_bytes);
    let of = limits
        .connections_fit
        .map_or(String::new(), |memory| format!(" in {} of memory", show_size(memory)));
    lines.push(("limits", format!("{connections}{of}, {memory} for file contents")));
    lines.push(("sandbox", sandbox.describe().to_owned()));
    match &config.access_log {
        None => {}
        Some(Target::Stdout) => lines.push(("log", "standard output".to_owned())),
        Some(target @ Target::Stderr) => lines.push(("log", target.to_string())),
        Some(Target::File(path)) => lines.push(("log", path.display().to_string())),
    }
    lines
}

fn urls(listeners: &[Bound], netstack: Option<&NetstackInterface>, admin: &[Bound]) -> Lines {
    let of_netstack = netstack.into_iter().flat_map(NetstackInterface::urls);
    let of_kernel = listeners.iter().flat_map(Bound::urls);
    let site = of_kernel.chain(of_netstack).map(|url| ("url", url));
    site.chain(admin.iter().flat_map(Bound::urls).map(|url| ("admin", url))).collect()
}
