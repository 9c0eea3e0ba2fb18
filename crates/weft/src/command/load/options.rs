//! Conversion of the command line to a plan.

use std::fmt::Display;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::num::NonZeroU16;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ::load::plan::{
    Arrivals, Burst, Cache, CacheProtocol, Choice, Expected, Http, Idle, Io, LoadTarget, Network,
    Page, Plan, SessionPlan, Sessions, Statuses, Tls, TlsVersion, Workload,
};
use ::load::workload::distribution::Distribution;
use ::load::workload::fileset::FileSet;
use ::load::workload::{input_file, request_list, template::Template};
use netstack::interface_config::InterfaceConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::args::{CacheArgs, CommonArgs, HttpArgs, IdleArgs, NetworkArgs, TlsArgs, WhenArgs};
use super::values::Keys;

/// Default maximum length of a run with a limited number of requests.
pub(super) const REQUESTS_LAST_MAX: Duration = Duration::from_secs(3600);

/// A load: requests, targets, descriptions, and their timing.
pub(super) struct Load<'a> {
    pub(super) targets: Vec<LoadTarget>,
    pub(super) workload: Workload,
    pub(super) name: String,
    pub(super) tls: Option<Tls>,
    pub(super) http2: bool,
    pub(super) expect: Statuses,
    pub(super) common: &'a CommonArgs,
}

/// Makes the plan of a load.
pub(super) fn plan(load: Load<'_>) -> Result<Plan, String> {
    let Load { targets, workload, tls, http2, expect, common, .. } = load;
    let how = &common.how;
    let when = &common.when;
    let is_idle = matches!(workload, Workload::Idle);
    let network = network(common)?;
    Ok(Plan {
        sources: match &network {
            Network::Kernel => how.source.clone(),
            Network::Netstack(interface) => sources_of(interface, &targets),
        },
        targets,
        network,
        workload,
        arrivals: arrivals(common),
        connections: if is_idle { 0 } else { how.connections },
        http2,
        depth: how.depth,
        connect_rate_per_s: how.connect_rate,
        idle: Idle {
            connections: if is_idle { how.connections } else { how.idle },
            byte_every: how.idle_byte_every,
        },
        threads: how.threads,
        warm_up: when.warm_up,
        duration: when.duration.unwrap_or_else(|| usual_duration(when)),
        requests_max: when.requests,
        interval: common.interval,
        connect_timeout: how.connect_timeout,
        request_timeout: how.timeout,
        backlog_max: how.backlog,
        io: match how.io.as_deref() {
            Some("uring") => Io::Uring,
            Some("epoll") => Io::Epoll,
            _ => Io::Auto,
        },
        tls,
        expect,
        verify: how.verify,
        seed: how.seed,
    })
}

/// Default length of a run: that of its course, or 10 s.
fn usual_duration(when: &WhenArgs) -> Duration {
    if when.requests.is_some() {
        return REQUESTS_LAST_MAX;
    }
    let stages = when.course.as_deref().unwrap_or_default().iter();
    let course = stages.fold(Duration::ZERO, |sum, stage| sum.saturating_add(stage.lasts));
    // The course begins with the warm-up.
    let measured = course.saturating_sub(when.warm_up);
    if measured.is_zero() { Duration::from_secs(10) } else { measured }
}

/// The load of `weft load http`. `rank` is the rank of this agent.
pub(super) fn http(args: &HttpArgs, rank: u32) -> Result<Load<'_>, String> {
    let parsed = args.urls.iter().map(|url| split(url)).collect::<Result<Vec<_>, _>>()?;
    // -q is the rate in hey and oha, but --quiet here.
    let is_number = |url: &&Url| url.authority.bytes().all(|byte| byte.is_ascii_digit());
    if let Some(Url { authority: number, .. }) = parsed.iter().find(is_number) {
        return Err(format!(
            "'{number}' is not a URL; requests per second are --rate {number}, or -R {number}"
        ));
    }
    let Url { is_tls, authority, server, .. } = &parsed[0];
    let is_other =
        |url: &&Url| (url.is_tls, &url.authority, &url.server) != (*is_tls, authority, server);
    if let Some(other) = parsed.iter().find(is_other) {
        return Err(format!(
            "'{}' and '{authority}' are different hosts: all URLs must have the same scheme, host and port; run \
             one load per host",
            other.authority
        ));
    }
    let paths_of = parsed.iter().map(|url| expand(&url.path));
    let expanded = paths_of.collect::<Result<Vec<_>, _>>()?.concat();
    let mut pages: Vec<Page> = expanded.into_iter().map(Page::new).collect();
    let mut choice = Choice::InTurn;
    let folder = folder(args, &parsed)?;
    if let Some(path) = &args.paths {
        pages = below(folder, paths(path, &args.method)?);
    }
    if let Some(path) = &args.fileset {
        pages = below(folder, fileset(path)?);
        choice = Choice::Weighted;
    }
    if let Some(path) = &args.body_lines {
        pages = with_bodies(&pages, path)?;
    }
    if let Some(law) = args.popularity {
        choice = Choice::ByRank(law);
    }
    let mut http = Http {
        authority: authority.clone(),
        method: args.method.clone(),
        pages: pages.into(),
        choice,
        requests_per_connection: closes_after(args)?,
        headers: args.headers.clone(),
        body: body(args)?.into(),
    };
    let tries = tries_addresses(&args.common.network);
    let port = if *is_tls { 443 } else { 80 };
    let tls = tls(&args.tls, *is_tls, authority, "https://")?;
    let servers = args.connect_to.iter();
    let named = servers.map(|server| resolve(server, port, tries).map_err(of("connect-to")));
    let found = named.collect::<Result<Vec<_>, _>>()?;
    let targets = match &args.common.network.unix_socket {
        Some(path) => vec![LoadTarget::Unix(path.clone())],
        None if found.is_empty() => vec![resolve(server, port, tries)?.into()],
        None => found.into_iter().map(LoadTarget::Tcp).collect(),
    };
    let name = format!("{} {}", http.method, args.urls[0]);
    let workload = match &args.sessions {
        None => Workload::Http(http),
        Some(path) => {
            // Each of several agents has its own log.
            let path = path.replace("{rank}", &format!("{rank:02}"));
            let (pages, scripts) = sessions(Path::new(&path), args.think)?;
            http.pages = below(folder, pages).into();
            let scripts = scripts.into();
            Workload::Sessions(Sessions { http, scripts })
        }
    };
    // With --verify, a redirect is not the expected body.
    let expect = match &args.expect {
        Some(statuses) => statuses.clone(),
        None if args.common.how.verify => Statuses::content(),
        None => Statuses::default(),
    };
    Ok(Load { targets, workload, name, tls, http2: args.http2, expect, common: &args.common })
}

/// TLS to the host of `authority`; `asked_by` is the flag or scheme that requires it.
fn tls(
    args: &TlsArgs,
    is_asked: bool,
    authority: &str,
    asked_by: &str,
) -> Result<Option<Tls>, String> {
    if !is_asked {
        let given = [
            ("cacert", args.cacert.is_some()),
            ("insecure", args.insecure),
            ("tls-version", args.tls_version.is_some()),
            ("no-resumption", args.no_resumption),
        ];
        return match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) => Err(format!("--{flag} is for TLS: it needs {asked_by}")),
            None => Ok(None),
        };
    }
    let authorities = match &args.cacert {
        _ if args.insecure => None,
        Some(path) => Some(certificates(path).map_err(of("cacert"))?),
        None => {
            let found = rustls_native_certs::load_native_certs().certs;
            Some(found.iter().map(|found| found.to_vec()).collect())
        }
    };
    let host = split_port(authority).map_or(authority, |(host, _)| host);
    // The zone is not part of a name.
    let host = host.trim_matches(['[', ']']).split('%').next().unwrap_or_default();
    Ok(Some(Tls {
        server_name: host.to_owned(),
        authorities,
        version: match args.tls_version.as_deref() {
            Some("1.2") => Some(TlsVersion::V12),
            Some("1.3") => Some(TlsVersion::V13),
            _ => None,
        },
        resumes: !args.no_resumption,
    }))
}

fn certificates(path: &Path) -> Result<Vec<Vec<u8>>, String> {
    let wrong = |error: &dyn Display| format!("{}: {error}", path.display());
    let found = CertificateDer::pem_file_iter(path).map_err(|error| wrong(&error))?;
    let found = found
        .map(|found| found.map(|certificate| certificate.to_vec()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| wrong(&error))?;
    if found.is_empty() {
        return Err(wrong(&"it has no certificate (PEM)"));
    }
    Ok(found)
}

/// The folder of a list's paths, without its trailing slash: the URL's path.
fn folder<'a>(args: &HttpArgs, urls: &'a [Url]) -> Result<&'a str, String> {
    let lists = [
        ("paths", args.paths.is_some()),
        ("fileset", args.fileset.is_some()),
        ("sessions", args.sessions.is_some()),
    ];
    let Some((list, _)) = lists.into_iter().find(|(_, is_given)| *is_given) else {
        return Ok("");
    };
    match urls {
        [Url { path, .. }] if path.ends_with('/') && !path.contains('?') => {
            Ok(path.strip_suffix('/').unwrap_or_default())
        }
        [Url { path, .. }] => Err(format!(
            "--{list} replaces the path '{path}': give the URL of the folder that holds the files; it ends with \
             '/'"
        )),
        _ => {
            Err(format!("--{list} needs one URL: give the URL of the folder that holds the files"))
        }
    }
}

fn below(folder: &str, mut pages: Vec<Page>) -> Vec<Page> {
    for page in &mut pages {
        page.path.insert_str(0, folder);
    }
    pages
}

/// A URL (RFC 3986). Authority and path are in the form sent: an IPv6 address in brackets and
/// without zone, and no fragment.
struct Url {
    is_tls: bool,
    authority: String,
    /// The authority with the zone of its address, `[fe80::1%eth0]:80`.
    server: String,
    path: String,
}

fn split(url: &str) -> Result<Url, String> {
    let wrong = |why: &str| Err(format!("'{url}' {why}; write http://HOST:PORT/PATH"));
    // The part after the authority may contain another URL.
    let scheme = url.split_once("://").filter(|(scheme, _)| !scheme.contains(['/', '?', '#']));
    let (is_tls, rest) = match scheme {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
        Some((scheme, _)) => {
            return wrong(&format!("has the scheme {scheme}, which is not supported"));
        }
        None => (false, url),
    };
    let at = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(at);
    if authority.is_empty() {
        return wrong("has no host");
    }
    if authority.contains('@') {
        return wrong("has a user name, which is not supported; use -H 'Authorization: …'");
    }
    let mut server = authority.to_owned();
    let authority = if let Some((address, rest)) = zone_of(authority) {
        // As in RFC 6874; a lone "%25" is the zone with that number.
        if !authority.contains("%25]") {
            server = authority.replacen("%25", "%", 1);
        }
        format!("{address}{rest}")
    } else if authority.starts_with('[') || authority.matches(':').count() < 2 {
        authority.to_owned()
    } else if authority.parse::<Ipv6Addr>().is_ok() {
        format!("[{authority}]")
    } else {
        return wrong(
            "has a host with colons: put an IPv6 address into brackets, as in [::1]:8080",
        );
    };
    let path = path.split('#').next().unwrap_or_default();
    let slash = if path.starts_with('/') { "" } else { "/" };
    if !server.starts_with('[') {
        server.clone_from(&authority);
    }
    Ok(Url { is_tls, authority, server, path: format!("{slash}{path}") })
}

/// Splits an authority with a zone, `[fe80::1%eth0]:80`, around the zone.
fn zone_of(authority: &str) -> Option<(&str, &str)> {
    let (address, rest) = authority.split_once('%')?;
    let bracket = rest.find(']')?;
    address.starts_with('[').then(|| (address, &rest[bracket..]))
}

/// Most paths from one `{FIRST..LAST}`, and most lines of bodies.
const PAGES_MAX: u64 = 1_000_000;

/// One path per number of its `{FIRST..LAST}`, as in `/item/{1..100000}`; the path itself without
/// one.
fn expand(path: &str) -> Result<Vec<String>, String> {
    Ok(match Template::parse(path, PAGES_MAX)? {
        Some(template) => (0..template.count()).map(|index| template.text(index)).collect(),
        None => vec![path.to_owned()],
    })
}

/// Combines pages with the bodies in a file's lines: each body is used with the next path, until
/// every body and every path has been used.
fn with_bodies(pages: &[Page], path: &Path) -> Result<Vec<Page>, String> {
    let text = input_file::read(path).map_err(|error| cannot_read(path, &error))?;
    let lines =
        text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let bodies: Vec<Arc<[u8]>> = lines.filter(|line| !line.is_empty()).map(Arc::from).collect();
    let count = bodies.len().max(pages.len());
    if bodies.is_empty() || count as u64 > PAGES_MAX {
        let named = path.display();
        return Err(format!("--body-lines: {named} must have 1 to {PAGES_MAX} lines"));
    }
    let mut both = pages.iter().cycle().zip(bodies.iter().cycle());
    let page = |_| {
        let (page, body) = both.next().expect("neither is empty");
        Page { body: Some(body.clone()), ..page.clone() }
    };
    Ok((0..count).map(page).collect())
}

fn cannot_read(path: &Path, error: &dyn Display) -> String {
    format!("cannot read {}: {error}", path.display())
}

/// Mean number of requests per connection. A request with `Connection: close` is the last one
/// (RFC 9112 9.6).
fn closes_after(args: &HttpArgs) -> Result<Option<u32>, String> {
    let is_close = |(name, value): &(String, String)| {
        let mut options = value.split(',').map(str::trim);
        name.eq_ignore_ascii_case("connection")
            && options.any(|option| option.eq_ignore_ascii_case("close"))
    };
    let said = args.requests_per_connection;
    if !args.headers.iter().any(is_close) {
        return Ok(if args.close { Some(1) } else { said });
    }
    if args.sessions.is_some() || said.is_some_and(|count| count > 1) {
        return Err(
            "-H 'Connection: close' ends each connection after its first request; remove it"
                .to_owned(),
        );
    }
    Ok(Some(1))
}

/// Time limit for one of a name's addresses, after which the next is tried.
const ADDRESS_PATIENCE: Duration = Duration::from_secs(1);

/// True if a name with several addresses is resolved to one that answers. Connections of a netstack
/// do not start from this host.
fn tries_addresses(network: &NetworkArgs) -> bool {
    network.network == "kernel"
}

/// Host and port of an authority, if it has a port. An unbracketed host with colons is an IPv6
/// address, without port.
fn split_port(authority: &str) -> Option<(&str, &str)> {
    let typed = authority.rsplit_once(':');
    typed.filter(|(host, _)| !host.contains(':') || host.ends_with(']'))
}

fn resolve(authority: &str, port: u16, tries: bool) -> Result<SocketAddr, String> {
    let typed = split_port(authority);
    if let Some((_, port)) = typed
        && port.parse::<NonZeroU16>().is_err()
    {
        return Err(format!(
            "'{authority}': '{port}' is not a port; write HOST:PORT, with a port from 1 to 65535"
        ));
    }
    let (host, port) = match typed {
        Some((host, port)) => (host, port.parse().unwrap_or_default()),
        None => (authority, port),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let found = (host, port).to_socket_addrs();
    let found = found.map_err(|error| format!("cannot find '{authority}': {error}"))?;
    one_that_answers(&found.collect::<Vec<_>>(), tries)
        .ok_or_else(|| format!("'{authority}' has no address"))
}

/// Selects one address of a host, so that the choice is not measured: the first that accepts a
/// connection, or the first if none does. `localhost` often has two addresses, and many servers
/// listen on one of them.
fn one_that_answers(found: &[SocketAddr], tries: bool) -> Option<SocketAddr> {
    let answers =
        |address: &&SocketAddr| TcpStream::connect_timeout(address, ADDRESS_PATIENCE).is_ok();
    let is_choice = tries && found.len() > 1;
    let answering = is_choice.then(|| found.iter().find(answers)).flatten();
    answering.or(found.first()).copied()
}

fn addresses(
    names: &[String],
    network: &NetworkArgs,
    of_address: fn(SocketAddr) -> LoadTarget,
) -> Result<Vec<LoadTarget>, String> {
    if let Some(path) = &network.unix_socket {
        return Ok(vec![LoadTarget::Unix(path.clone())]);
    }
    let tries = tries_addresses(network);
    let address = |name: &String| {
        // A URL, as for `weft load http`.
        if name.contains('/') {
            return Err(format!("'{name}': write HOST:PORT, without http:// and path"));
        }
        resolve(name, 11211, tries).map(of_address)
    };
    names.iter().map(address).collect()
}

fn paths(path: &Path, method: &str) -> Result<Vec<Page>, String> {
    let calls = request_list::read(path).map_err(say)?.into_iter();
    let of_method = calls.filter(|call| call.method == method);
    let pages: Vec<Page> = of_method.map(|call| Page::new(call.uri)).collect();
    if pages.is_empty() {
        Err(format!("{} has no {method} request", path.display()))
    } else {
        Ok(pages)
    }
}

fn fileset(path: &Path) -> Result<Vec<Page>, String> {
    let set = FileSet::read(path).map_err(say)?;
    let pages = set.entries.into_iter().map(|entry| Page {
        path: entry.path,
        weight: entry.share,
        expected: Some(Expected { bytes: entry.size_bytes, crc32: entry.crc32 }),
        method: None,
        body: None,
    });
    Ok(pages.collect())
}

/// Distinct pages requested by the sessions of a log, and the sessions in order.
fn sessions(path: &Path, think: Duration) -> Result<(Vec<Page>, Vec<SessionPlan>), String> {
    let sessions = ::load::workload::session_log::read(path).map_err(say)?;
    let mut numbers = std::collections::HashMap::new();
    let mut pages = Vec::new();
    let mut scripts = Vec::new();
    for session in sessions {
        let mut bursts = Vec::new();
        for burst in session.bursts {
            let mut asked = Vec::new();
            for call in burst.calls {
                let page = Page {
                    method: Some(call.method.clone()),
                    body: Some(call.contents.clone().into()),
                    ..Page::new(&call.uri)
                };
                asked.push(*numbers.entry(call).or_insert_with(|| {
                    pages.push(page);
                    pages.len() as u32 - 1
                }));
            }
            bursts.push(Burst { pages: asked, think: burst.think.unwrap_or(think) });
        }
        scripts.push(SessionPlan { bursts });
    }
    Ok((pages, scripts))
}

fn body(args: &HttpArgs) -> Result<Vec<u8>, String> {
    match (&args.body, &args.body_file) {
        (Some(text), _) => Ok(text.clone().into_bytes()),
        (_, Some(path)) => input_file::read(path).map_err(|error| cannot_read(path, &error)),
        (None, None) => Ok(Vec::new()),
    }
}

/// The load of `weft load cache`.
pub(super) fn cache(args: &CacheArgs) -> Result<Load<'_>, String> {
    // Several servers share the first one's name; the name of a server on a Unix socket is unknown.
    let name = args.servers.first().map_or("localhost", String::as_str);
    let tls = tls(&args.tls, args.speaks_tls, name, "--tls")?;
    let (keys, template) = match &args.keys {
        Keys::Count(keys) => (u64::from(*keys), None),
        Keys::Named(template) => (template.count(), Some(template.clone())),
    };
    if template.is_some() && (args.key_prefix.is_some() || args.key_size.is_some()) {
        return Err("--keys has whole names: remove --key-prefix and --key-size".to_owned());
    }
    let workload = Workload::Cache(Cache {
        protocol: match &*args.protocol {
            "meta" => CacheProtocol::Meta,
            _ => CacheProtocol::Text,
        },
        set_percent: args.sets,
        keys,
        template,
        key_prefix: args.key_prefix.clone().unwrap_or_else(|| "weft-".to_owned()),
        key_bytes: args.key_size.clone().unwrap_or(Distribution::Fixed(30.0)),
        value_bytes: args.value_size.clone(),
        popularity: args.popularity,
        keys_per_get: args.multi_get,
        exptime_s: args.exptime,
        populate: args.populate,
    });
    let network = &args.common.network;
    let of_address = if args.udp { LoadTarget::Udp } else { LoadTarget::Tcp };
    let udp = if args.udp { " over UDP" } else { "" };
    Ok(Load {
        targets: addresses(&args.servers, network, of_address)?,
        workload,
        name: format!("memcached at {}{udp}", shown(&args.servers, network)),
        tls,
        http2: false,
        expect: Statuses::default(),
        common: &args.common,
    })
}

/// Servers as typed, for people.
fn shown(servers: &[String], network: &NetworkArgs) -> String {
    match &network.unix_socket {
        Some(path) => path.display().to_string(),
        None => servers.join(", "),
    }
}

/// The load of `weft load idle`.
pub(super) fn idle(args: &IdleArgs) -> Result<Load<'_>, String> {
    let network = &args.common.network;
    Ok(Load {
        targets: addresses(&args.servers, network, LoadTarget::Tcp)?,
        workload: Workload::Idle,
        name: format!("idle connections to {}", shown(&args.servers, network)),
        tls: None,
        http2: false,
        expect: Statuses::default(),
        common: &args.common,
    })
}

fn arrivals(common: &CommonArgs) -> Arrivals {
    let when = &common.when;
    let poisson = when.arrivals == "poisson";
    if let Some(stages) = &when.course {
        let stages = stages.to_vec();
        return Arrivals::Course { stages, poisson };
    }
    // A sweep sets the rate of each run itself; this gives only the kind of arrivals.
    let many = common.many.sweep.is_some() || common.many.knee;
    let rate = when.rate.or(many.then_some(1e3));
    rate.map_or(Arrivals::Closed, |rate_per_s| at_rate(rate_per_s, poisson))
}

pub(crate) fn at_rate(rate_per_s: f64, poisson: bool) -> Arrivals {
    if poisson { Arrivals::Poisson { rate_per_s } } else { Arrivals::Fixed { rate_per_s } }
}

fn network(common: &CommonArgs) -> Result<Network, String> {
    let args = &common.network;
    if args.network == "kernel" {
        let of_netstack = [
            ("device", args.device.is_some()),
            ("address", !args.address.is_empty()),
            ("gateway", !args.gateway.is_empty()),
            ("mtu", args.mtu.is_some()),
        ];
        return match of_netstack.into_iter().find(|(_, is_typed)| *is_typed) {
            Some((name, _)) => Err(format!("--{name} needs --network netstack")),
            None => Ok(Network::Kernel),
        };
    }
    let how = &common.how;
    let refused = match (how.source.is_empty(), &how.io) {
        (false, _) => Some(("source", "each --address is a source")),
        (_, Some(_)) => Some(("io", "the device has its own I/O")),
        (true, None) => None,
    };
    if let Some((name, why)) = refused {
        return Err(format!("--{name} cannot be combined with --network netstack: {why}"));
    }
    let device = args.device.clone();
    Ok(Network::Netstack(InterfaceConfig {
        device: device.ok_or("--network netstack needs a --device, such as tap:weft0")?,
        addresses: args.address.concat(),
        gateways: args.gateway.clone(),
        mtu: args.mtu,
    }))
}

/// Source addresses for the targets: those of the same family.
fn sources_of(interface: &InterfaceConfig, targets: &[LoadTarget]) -> Vec<IpAddr> {
    let addresses = interface.addresses.iter().map(|prefix| prefix.address);
    let reaches = |own: &IpAddr| {
        let mut targets = targets.iter().filter_map(LoadTarget::address);
        targets.any(|one| one.is_ipv4() == own.is_ipv4())
    };
    addresses.filter(reaches).collect()
}

fn of(name: &str) -> impl Fn(String) -> String {
    move |sentence| format!("--{name}: {sentence}")
}

fn say(error: impl Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};

    use super::super::args::{self, LoadCommand};
    use super::*;

    #[test]
    fn urls_are_read_as_rfc_3986_has_them() {
        for (url, authority, path) in [
            ("http://h:1?x=1", "h:1", "/?x=1"),
            ("http://h:1#top", "h:1", "/"),
            ("http://h/a?b#c?d", "h", "/a?b"),
            ("HTTP://h/a", "h", "/a"),
            ("h:1/?to=http://x/", "h:1", "/?to=http://x/"),
            ("http://::1/", "[::1]", "/"),
            ("http://[::1]:8080", "[::1]:8080", "/"),
            ("http://[fe80::1%lo]:8080", "[fe80::1]:8080", "/"),
            ("http://[fe80::1%25lo]/a", "[fe80::1]", "/a"),
        ] {
            let found = split(url).unwrap();
            assert_eq!((&*found.authority, &*found.path), (authority, path), "{url}");
        }
        for (url, why) in [
            ("ftp://h/", "ftp"),
            ("http:///a", "no host"),
            ("http://user:word@h/", "a user"),
            ("http://fe80::1%eth0:80/", "brackets"),
            ("?x=http://h/", "no host"),
        ] {
            let said = split(url).err().unwrap();
            assert!(said.contains(why), "{said}");
        }
    }

    /// Reported of oha (#166, #181): zones failed, and IPv6 in --connect-to worked only by chance.
    #[test]
    fn zones_of_addresses_are_kept() {
        for (server, found) in [
            ("[fe80::1%lo]:8080", "[fe80::1%1]:8080"),
            ("fe80::1%lo", "[fe80::1%1]:80"),
            ("[::1]:8080", "[::1]:8080"),
            ("[::1]", "[::1]:80"),
            ("::1", "[::1]:80"),
        ] {
            assert_eq!(resolve(server, 80, false).unwrap().to_string(), found, "{server}");
        }
        assert_eq!(split("http://[fe80::1%25]/").unwrap().server, "[fe80::1%25]");
        for url in ["http://[fe80::1%lo]:80/", "http://[fe80::1%25lo]:80/"] {
            assert_eq!(split(url).unwrap().server, "[fe80::1%lo]:80");
        }
    }

    #[test]
    fn ranges_in_paths_are_expanded() {
        let expanded = |path: &str| expand(path).unwrap().join(" ");
        assert_eq!(expanded("/a"), "/a");
        assert_eq!(expanded("/{9..11}/x?y"), "/9/x?y /10/x?y /11/x?y");
        assert!(expand("/{0..1000000}").unwrap_err().contains("more than 1,000,000"));
    }

    #[test]
    fn lines_are_bodies_in_turn() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let both = |lines: &str, paths: &[&str]| {
            std::fs::write(file.path(), lines).unwrap();
            let pages: Vec<Page> = paths.iter().map(|path| Page::new(*path)).collect();
            let pages = with_bodies(&pages, file.path())?;
            let shown = pages.iter().map(|page| {
                let body = String::from_utf8(page.body.as_ref().unwrap().to_vec()).unwrap();
                page.path.clone() + &body
            });
            Ok::<_, String>(shown.collect::<Vec<_>>().join(" "))
        };
        assert_eq!(both("1\r\n\n2\n3", &["/a"]).unwrap(), "/a1 /a2 /a3");
        assert_eq!(both("1\n2\n3\n", &["/a", "/b"]).unwrap(), "/a1 /b2 /a3");
        assert_eq!(both("1\n2\n", &["/a", "/b", "/c"]).unwrap(), "/a1 /b2 /c1");
        assert!(both("\n\n", &["/a"]).unwrap_err().contains("1 to 1000000 lines"));
    }

    /// Seen: `http://localhost` was refused if a server listened only on 127.0.0.1. Cause: the
    /// first address of a name was taken, which is ::1. Cure: they are tried in order.
    #[test]
    fn first_answering_address_is_used() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let open = server.local_addr().unwrap();
        // Bound but not listening: no other socket gets this port meanwhile.
        let holds = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&holds, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let closed = SocketAddr::try_from(getsockname(&holds).unwrap()).unwrap();
        assert_eq!(one_that_answers(&[closed, open], true), Some(open));
        assert_eq!(one_that_answers(&[closed, open], false), Some(closed));
        assert_eq!(one_that_answers(&[closed, closed], true), Some(closed));
        assert_eq!(one_that_answers(&[], true), None);
    }

    fn load_of<T>(flags: &[&str], then: impl Fn(Load<'_>) -> T) -> Result<T, String> {
        let words = ["load", "http", "http://127.0.0.1:1/a"].iter().chain(flags);
        let command = args::command(String::new());
        let matches = command.try_get_matches_from(words).unwrap();
        let Ok(LoadCommand::Http(args)) = LoadCommand::from_arg_matches(&matches) else {
            unreachable!("the command is `http`");
        };
        http(&args, 0).map(then)
    }

    /// Seen: `--course '0..10k:30s,10k:1m,20k:10s'`, an example in --help, ended after ten seconds,
    /// in the middle of its first stage, with "the server kept up".
    #[test]
    fn a_course_is_run_to_its_end() {
        let lasts_s = |flags: &str| {
            let flags: Vec<&str> = flags.split_whitespace().collect();
            load_of(&flags, |load| plan(load).unwrap().duration.as_secs()).unwrap()
        };
        assert_eq!(lasts_s("--course 0..10k:30s,10k:1m,20k:10s"), 100);
        assert_eq!(lasts_s("--course 5:30s --warm-up 10s"), 20, "it begins with the warm-up");
        assert_eq!(lasts_s("--course 5:30s --duration 5s"), 5);
        assert_eq!(lasts_s("--course 5:30s --requests 5"), 3600);
        assert_eq!([lasts_s(""), lasts_s("--rate 5")], [10, 10]);
    }

    #[test]
    fn close_header_ends_the_connection() {
        let planned = |flags: &[&str]| {
            load_of(flags, |load| match load.workload {
                Workload::Http(http) => http.requests_per_connection,
                _ => unreachable!("the command is `http`"),
            })
        };
        let close = "connection: Upgrade, Close";
        assert_eq!(planned(&["-H", close]), Ok(Some(1)));
        assert_eq!(planned(&["-H", "Connection: keep-alive"]), Ok(None));
        assert!(planned(&["-H", close, "--requests-per-connection", "2"]).is_err());
    }

    #[test]
    fn https_asks_for_tls_and_its_port() {
        let planned = |line: &str| {
            let command = args::command(String::new());
            let words = format!("load {line}");
            let matches = command.try_get_matches_from(words.split_whitespace());
            let matches = matches.map_err(say)?;
            let load = match LoadCommand::from_arg_matches(&matches) {
                Ok(LoadCommand::Http(args)) => http(&args, 0).and_then(plan)?,
                Ok(LoadCommand::Cache(args)) => cache(&args).and_then(plan)?,
                _ => unreachable!("the command is `http` or `cache`"),
            };
            Ok::<_, String>((load.targets[0].address().unwrap().port(), load.tls))
        };
        let name = |line: &str| {
            let (port, tls) = planned(line).unwrap();
            (port, tls.map(|tls| tls.server_name))
        };
        let some = |port: u16, name: &str| (port, Some(name.to_owned()));
        assert_eq!(name("http https://127.0.0.1/ -k"), some(443, "127.0.0.1"));
        assert_eq!(name("http https://[::1]:84/ -k"), some(84, "::1"));
        let elsewhere = "http https://example.org/ -k --connect-to 127.0.0.1";
        assert_eq!(name(elsewhere), some(443, "example.org"));
        assert_eq!(name("cache [fe80::1%lo]:84 --tls -k"), some(84, "fe80::1"));
        assert_eq!(name("http http://127.0.0.1/"), (80, None));
        let cache = "cache 127.0.0.1 --tls -k --tls-version 1.2 --no-resumption";
        let (port, tls) = planned(cache).unwrap();
        let tls = tls.unwrap();
        assert_eq!((port, tls.version), (11211, Some(TlsVersion::V12)));
        assert!(!tls.resumes && tls.authorities.is_none());
        for (line, why) in [
            ("http http://127.0.0.1/ -k", "needs https://"),
            ("cache 127.0.0.1 --cacert x.pem", "needs --tls"),
            ("http https://127.0.0.1/ --cacert /none", "--cacert: /none"),
            ("http http://127.0.0.1/ https://127.0.0.1/", "same scheme"),
            ("http http://[fe80::1%lo]/ http://[fe80::1%eth9]/", "same scheme"),
        ] {
            let said = planned(line).unwrap_err();
            assert!(said.contains(why), "{line}: {said}");
        }
    }

    #[test]
    fn url_with_several_servers() {
        let targets = |flags: &str| {
            let flags: Vec<&str> = flags.split_whitespace().collect();
            load_of(&flags, |load| {
                let targets = load.targets.iter().map(LoadTarget::to_string);
                targets.collect::<Vec<_>>()
            })
        };
        assert_eq!(targets("").unwrap(), ["127.0.0.1:1"]);
        let two = targets("--connect-to 127.0.0.2:3 --connect-to 127.0.0.3").unwrap();
        assert_eq!(two, ["127.0.0.2:3", "127.0.0.3:80"]);
        let why = targets("--connect-to 127.0.0.2:0").unwrap_err();
        assert!(why.starts_with("--connect-to: "), "{why}");
    }
}
