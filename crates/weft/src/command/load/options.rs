//! Conversion of the command line to a plan.

use std::fmt::Display;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::num::NonZeroU16;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use ::load::Plan;
use ::load::plan::{
    Arrivals, Burst, Cache, CacheProtocol, Choice, Expected, Http, Idle, Io, Network, Page,
    SessionPlan, Sessions, Stage, Statuses, Tls, TlsVersion, Workload,
};
use ::load::report::count_of;
use ::load::sweep;
use ::load::workload::fileset::FileSet;
use ::load::workload::request_list;
use clap::ArgMatches;
use clap::parser::ValueSource;
use netstack::interface_config::InterfaceConfig;
use netstack::ip::Prefix;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::value;

/// Largest value of IPv4's length field.
const MTU_MAX: usize = 0xffff;
/// Default maximum length of a run with a number of requests.
pub(super) const REQUESTS_LAST_MAX: Duration = Duration::from_secs(3600);

/// Makes the plan of `weft load http|cache|idle`, and a name for its target. `rank` is that of this
/// agent.
pub(crate) fn plan(
    command: &str,
    matches: &ArgMatches,
    rank: u32,
) -> Result<(Plan, String), String> {
    let (targets, workload, name, tls) = match command {
        "http" => http(matches, rank)?,
        "cache" => cache(matches)?,
        _ => {
            let (targets, name) = addresses(matches)?;
            let name = format!("idle connections to {name}");
            (targets, Workload::Idle, name, None)
        }
    };
    let connections = one(matches, "connections", count)?;
    let is_idle = matches!(workload, Workload::Idle);
    let requests_max = optional(matches, "requests", |text| count_up_to(text, REQUESTS_MAX))?;
    let network = network(matches)?;
    let plan = Plan {
        sources: match &network {
            Network::Kernel => all(matches, "source", ip)?,
            Network::Netstack(interface) => sources_of(interface, &targets),
        },
        targets,
        network,
        workload,
        arrivals: arrivals(matches)?,
        connections: if is_idle { 0 } else { connections },
        depth: one(matches, "depth", count)?,
        connect_rate_per_s: optional(matches, "connect-rate", sweep::rate)?,
        idle: Idle {
            connections: if is_idle {
                connections
            } else {
                one(matches, "idle", count)?
            },
            byte_every: optional(matches, "idle-byte-every", value::duration)?,
        },
        threads: one(matches, "threads", count)?,
        warm_up: one(matches, "warm-up", time)?,
        duration: optional(matches, "duration", time)?.unwrap_or(match requests_max {
            Some(_) => REQUESTS_LAST_MAX,
            None => Duration::from_secs(10),
        }),
        requests_max,
        interval: one(matches, "interval", time)?,
        connect_timeout: one(matches, "connect-timeout", time)?,
        request_timeout: one(matches, "timeout", time)?,
        backlog_max: one(matches, "backlog", count)?,
        io: match said(matches, "io") {
            "uring" => Io::Uring,
            "epoll" => Io::Epoll,
            _ => Io::Auto,
        },
        tls,
        expect: expect(matches)?,
        verify: matches.get_flag("verify"),
        seed: one(matches, "seed", number)?,
    };
    Ok((plan, name))
}

/// Servers, work, a name for the target, and TLS.
type Target = (Vec<SocketAddr>, Workload, String, Option<Tls>);

fn http(matches: &ArgMatches, rank: u32) -> Result<Target, String> {
    let urls: Vec<&String> = matches.get_many("url").expect("clap demands it").collect();
    let parsed = urls
        .iter()
        .map(|url| split(url))
        .collect::<Result<Vec<_>, _>>()?;
    let Url {
        is_tls, authority, ..
    } = &parsed[0];
    let is_other = |url: &&Url| (url.is_tls, &url.authority) != (*is_tls, authority);
    if let Some(other) = parsed.iter().find(is_other) {
        return Err(format!(
            "'{}' and '{authority}' are different hosts: all URLs must have the same scheme, host and port; run \
             one load per host",
            other.authority
        ));
    }
    let method = said(matches, "method").to_owned();
    let paths_of = parsed.iter().map(|url| expand(&url.path));
    let expanded = paths_of.collect::<Result<Vec<_>, _>>()?.concat();
    let mut pages: Vec<Page> = expanded.into_iter().map(Page::new).collect();
    let mut choice = Choice::InTurn;
    let folder = folder(matches, &parsed)?;
    if let Some(path) = matches.get_one::<String>("paths") {
        pages = below(folder, paths(Path::new(path), &method)?);
    }
    if let Some(path) = matches.get_one::<String>("fileset") {
        pages = below(folder, fileset(Path::new(path))?);
        choice = Choice::Weighted;
    }
    if let Some(law) = optional(matches, "popularity", parse)? {
        choice = Choice::ByRank(law);
    }
    let headers = headers(matches)?;
    let mut http = Http {
        authority: authority.clone(),
        method,
        pages: pages.into(),
        choice,
        requests_per_connection: requests_per_connection(matches, &headers)?,
        headers,
        body: body(matches)?.into(),
    };
    let think = one(matches, "think", time)?;
    let tries = tries_addresses(matches);
    let port = if *is_tls { 443 } else { 80 };
    let tls = tls(matches, *is_tls, authority, "https://")?;
    let named = all(matches, "connect-to", |server| resolve(server, port, tries))?;
    let targets = if named.is_empty() {
        vec![resolve(authority, port, tries)?]
    } else {
        named
    };
    let name = format!("{} {}", http.method, urls[0]);
    let workload = match matches.get_one::<String>("sessions") {
        None => Workload::Http(http),
        Some(path) => {
            // Each of many agents has a log of its own.
            let path = path.replace("{rank}", &format!("{rank:02}"));
            let (pages, scripts) = sessions(Path::new(&path), think)?;
            http.pages = below(folder, pages).into();
            let scripts = scripts.into();
            Workload::Sessions(Sessions { http, scripts })
        }
    };
    Ok((targets, workload, name, tls))
}

/// TLS to the host of `authority`; `asked_by` is the word that asks for it.
fn tls(
    matches: &ArgMatches,
    is_asked: bool,
    authority: &str,
    asked_by: &str,
) -> Result<Option<Tls>, String> {
    if !is_asked {
        let is_given = |name: &&str| matches.value_source(name) == Some(ValueSource::CommandLine);
        let given = TLS_FLAGS.into_iter().find(is_given);
        return match given {
            Some(flag) => Err(format!("--{flag} is for TLS: it needs {asked_by}")),
            None => Ok(None),
        };
    }
    let authorities = match matches.get_one::<String>("cacert") {
        _ if matches.get_flag("insecure") => None,
        Some(path) => Some(certificates(Path::new(path)).map_err(of("cacert"))?),
        None => {
            let found = rustls_native_certs::load_native_certs().certs;
            Some(found.iter().map(|found| found.to_vec()).collect())
        }
    };
    let host = authority.rsplit_once(':').filter(|(host, _)| {
        // An IPv6 address without a port has colons of its own.
        !host.contains(':') || host.ends_with(']')
    });
    let host = host.map_or(authority, |(host, _)| host);
    Ok(Some(Tls {
        server_name: host.trim_matches(['[', ']']).to_owned(),
        authorities,
        version: match said(matches, "tls-version") {
            "1.2" => Some(TlsVersion::V12),
            "1.3" => Some(TlsVersion::V13),
            _ => None,
        },
        resumes: !matches.get_flag("no-resumption"),
    }))
}

/// The flags that TLS alone has.
const TLS_FLAGS: [&str; 4] = ["cacert", "insecure", "tls-version", "no-resumption"];

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

/// The flags that name the paths to request; without any of them, the URLs do.
const LISTS: [&str; 3] = ["paths", "fileset", "sessions"];

/// The folder in which a list's paths lie, without the slash at its end: the URL's path.
fn folder<'a>(matches: &ArgMatches, urls: &'a [Url]) -> Result<&'a str, String> {
    let is_given = |name: &&str| matches.get_one::<String>(name).is_some();
    let Some(list) = LISTS.into_iter().find(is_given) else {
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
        _ => Err(format!(
            "--{list} needs one URL: give the URL of the folder that holds the files"
        )),
    }
}

fn below(folder: &str, mut pages: Vec<Page>) -> Vec<Page> {
    for page in &mut pages {
        page.path.insert_str(0, folder);
    }
    pages
}

/// The expected statuses: with --verify, a redirection is not the expected body.
fn expect(matches: &ArgMatches) -> Result<Statuses, String> {
    // The other protocols have no such flag.
    let typed = matches.try_get_one::<String>("expect").unwrap_or_default();
    match typed {
        Some(text) => text.parse().map_err(of("expect")),
        None if matches.get_flag("verify") => Ok(Statuses::content()),
        None => Ok(Statuses::default()),
    }
}

/// A URL (RFC 3986). Authority and path are as they are sent: an IPv6 address is in brackets, and a
/// fragment is not sent.
struct Url {
    is_tls: bool,
    authority: String,
    path: String,
}

fn split(url: &str) -> Result<Url, String> {
    let wrong = |why: &str| Err(format!("'{url}' {why}; write http://HOST:PORT/PATH"));
    // What comes behind the authority may have a URL in it.
    let scheme = url
        .split_once("://")
        .filter(|(scheme, _)| !scheme.contains(['/', '?', '#']));
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
    let authority = if authority.starts_with('[') || authority.matches(':').count() < 2 {
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
    Ok(Url {
        is_tls,
        authority,
        path: format!("{slash}{path}"),
    })
}

/// Most paths that one `{FIRST..LAST}` stands for.
const EXPANDED_MAX: u64 = 1_000_000;

/// A path for each number of its `{FIRST..LAST}`, as in `/item/{1..100000}`; the path itself if it
/// has none. Numbers are as wide as `FIRST` is: `{001..100}`.
fn expand(path: &str) -> Result<Vec<String>, String> {
    let range = path.split_once('{').and_then(|(before, rest)| {
        let (range, behind) = rest.split_once('}')?;
        let (first, last) = range.split_once("..")?;
        Some((before, first, last, behind))
    });
    let Some((before, first, last, behind)) = range else {
        return Ok(vec![path.to_owned()]);
    };
    let wrong = |why: &str| {
        format!("'{{{first}..{last}}}' {why}; write {{FIRST..LAST}}, such as {{1..1000}}")
    };
    let number = |text: &str| {
        text.parse::<u64>()
            .map_err(|_| wrong("is no range of numbers"))
    };
    let from = number(first)?;
    let to = number(last)?;
    if from > to {
        return Err(wrong("ends before it begins"));
    }
    if to - from >= EXPANDED_MAX {
        return Err(wrong("is more than a million paths"));
    }
    if behind.contains('{') {
        return Err(format!(
            "'{path}' has a second '{{': one range is supported"
        ));
    }
    let width = first.len();
    Ok((from..=to)
        .map(|number| format!("{before}{number:0width$}{behind}"))
        .collect())
}

/// Mean number of requests per connection. A request with `Connection: close` is the last (RFC 9112
/// 9.6).
fn requests_per_connection(
    matches: &ArgMatches,
    headers: &[(String, String)],
) -> Result<Option<u32>, String> {
    let said = optional(matches, "requests-per-connection", |text| {
        value::count(text, 1..=u32::MAX as usize).map(|count| count as u32)
    })?;
    let is_close = |(name, value): &(String, String)| {
        let mut options = value.split(',').map(str::trim);
        name.eq_ignore_ascii_case("connection")
            && options.any(|option| option.eq_ignore_ascii_case("close"))
    };
    if !headers.iter().any(is_close) {
        return Ok(if matches.get_flag("close") {
            Some(1)
        } else {
            said
        });
    }
    let is_sessions = matches.get_one::<String>("sessions").is_some();
    if is_sessions || said.is_some_and(|count| count > 1) {
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
fn tries_addresses(matches: &ArgMatches) -> bool {
    said(matches, "network") == "kernel"
}

fn resolve(authority: &str, port: u16, tries: bool) -> Result<SocketAddr, String> {
    // A host with colons and without brackets is an IPv6 address, which has no port.
    let typed = authority
        .rsplit_once(':')
        .filter(|(host, _)| !host.contains(':') || host.ends_with(']'));
    if let Some((_, port)) = typed
        && port.parse::<NonZeroU16>().is_err()
    {
        return Err(format!(
            "'{authority}': '{port}' is not a port; write HOST:PORT, with a port from 1 to 65535"
        ));
    }
    let full = match typed {
        Some(_) => authority.to_owned(),
        None => format!("{authority}:{port}"),
    };
    let found = full
        .to_socket_addrs()
        .map_err(|error| format!("cannot find '{authority}': {error}"))?;
    one_that_answers(&found.collect::<Vec<_>>(), tries)
        .ok_or_else(|| format!("'{authority}' has no address"))
}

/// One address of a host, so that the choice among several is not measured: the first that takes a
/// connection, or the first if none does. `localhost` often has two, and many servers listen on
/// one.
fn one_that_answers(found: &[SocketAddr], tries: bool) -> Option<SocketAddr> {
    let answers =
        |address: &&SocketAddr| TcpStream::connect_timeout(address, ADDRESS_PATIENCE).is_ok();
    let is_choice = tries && found.len() > 1;
    let answering = is_choice.then(|| found.iter().find(answers)).flatten();
    answering.or(found.first()).copied()
}

fn addresses(matches: &ArgMatches) -> Result<(Vec<SocketAddr>, String), String> {
    let names: Vec<&String> = matches
        .get_many("server")
        .expect("clap demands it")
        .collect();
    let mut targets = Vec::new();
    for name in &names {
        // A URL, as `weft load http` takes one.
        if name.contains('/') {
            return Err(format!(
                "'{name}': write HOST:PORT, without http:// and path"
            ));
        }
        targets.push(resolve(name, 11211, tries_addresses(matches))?);
    }
    let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    Ok((targets, names.join(", ")))
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
        expected: Some(Expected {
            bytes: entry.size_bytes,
            crc32: entry.crc32,
        }),
        method: None,
        body: None,
    });
    Ok(pages.collect())
}

/// Pages that the sessions of a log request, each once, and the sessions in order.
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
            bursts.push(Burst {
                pages: asked,
                think: burst.think.unwrap_or(think),
            });
        }
        scripts.push(SessionPlan { bursts });
    }
    Ok((pages, scripts))
}

fn headers(matches: &ArgMatches) -> Result<Vec<(String, String)>, String> {
    let given = matches.get_many::<String>("header").into_iter().flatten();
    given
        .map(|field| match field.split_once(':') {
            Some((name, text)) if !name.is_empty() && !field.contains(['\r', '\n']) => {
                Ok((name.trim().to_owned(), text.trim().to_owned()))
            }
            _ => Err(format!(
                "'{field}' is not a header field; write 'Name: value'"
            )),
        })
        .collect()
}

fn body(matches: &ArgMatches) -> Result<Vec<u8>, String> {
    match (
        matches.get_one::<String>("body"),
        matches.get_one::<String>("body-file"),
    ) {
        (Some(text), _) => Ok(text.clone().into_bytes()),
        (_, Some(path)) => {
            let bytes = ::load::workload::input_file::read(Path::new(path));
            bytes.map_err(|error| format!("cannot read {path}: {error}"))
        }
        (None, None) => Ok(Vec::new()),
    }
}

fn cache(matches: &ArgMatches) -> Result<Target, String> {
    let (targets, name) = addresses(matches)?;
    // Several servers share the first one's name.
    let first = name.split(", ").next().unwrap_or_default();
    let tls = tls(matches, matches.get_flag("tls"), first, "--tls")?;
    let workload = Workload::Cache(Cache {
        protocol: match said(matches, "protocol") {
            "meta" => CacheProtocol::Meta,
            _ => CacheProtocol::Text,
        },
        set_percent: one(matches, "sets", percent)?,
        keys: u64::from(one(matches, "keys", count)?),
        key_prefix: said(matches, "key-prefix").to_owned(),
        key_bytes: one(matches, "key-size", parse)?,
        value_bytes: one(matches, "value-size", parse)?,
        popularity: one(matches, "popularity", parse)?,
        keys_per_get: one(matches, "multi-get", count)?,
        exptime_s: one(matches, "exptime", count)?,
        populate: matches.get_flag("populate"),
    });
    Ok((targets, workload, format!("memcached at {name}"), tls))
}

fn arrivals(matches: &ArgMatches) -> Result<Arrivals, String> {
    let poisson = said(matches, "arrivals") == "poisson";
    if let Some(stages) = optional(matches, "course", course)? {
        return Ok(Arrivals::Course { stages, poisson });
    }
    let rate = optional(matches, "rate", sweep::rate)?;
    // A sweep sets the rate of each run itself; the kind of arrivals it takes from here.
    let many = matches.contains_id("sweep") || matches.get_flag("knee");
    let rate = rate.or(many.then_some(1e3));
    Ok(rate.map_or(Arrivals::Closed, |rate_per_s| at_rate(rate_per_s, poisson)))
}

pub(crate) fn at_rate(rate_per_s: f64, poisson: bool) -> Arrivals {
    if poisson {
        Arrivals::Poisson { rate_per_s }
    } else {
        Arrivals::Fixed { rate_per_s }
    }
}

/// `0..10k:30s,10k:1m`.
fn course(text: &str) -> Result<Vec<Stage>, String> {
    let stage = |text: &str| {
        let (rates, lasts) = text.split_once(':').ok_or_else(|| {
            format!("'{text}': write RATE:TIME or FROM..TO:TIME, such as 0..10k:30s")
        })?;
        let (from, to) = rates.split_once("..").unwrap_or((rates, rates));
        Ok(Stage {
            lasts: value::duration(lasts)?,
            from_per_s: rate_or_0(from)?,
            to_per_s: rate_or_0(to)?,
        })
    };
    text.split(',').map(|text| stage(text.trim())).collect()
}

fn rate_or_0(text: &str) -> Result<f64, String> {
    match text {
        "0" => Ok(0.0),
        text => sweep::rate(text),
    }
}

fn ip(text: &str) -> Result<IpAddr, String> {
    let read = text.parse();
    read.map_err(|_| format!("'{text}' is not an IP address"))
}

const NETSTACK_FLAGS: [&str; 4] = ["device", "address", "gateway", "mtu"];
/// Flags that a netstack does not support, and the reasons.
const KERNEL_FLAGS: [(&str, &str); 2] = [
    ("source", "each --address is a source"),
    ("io", "the device has its own I/O"),
];
/// More are a typing error: each has tens of thousands of ports.
const ADDRESSES_MAX: u128 = 4096;

fn network(matches: &ArgMatches) -> Result<Network, String> {
    let is_typed = |name: &str| matches.value_source(name) == Some(ValueSource::CommandLine);
    if said(matches, "network") == "kernel" {
        return match NETSTACK_FLAGS.into_iter().find(|name| is_typed(name)) {
            Some(name) => Err(format!("--{name} needs --network netstack")),
            None => Ok(Network::Kernel),
        };
    }
    if let Some((name, why)) = KERNEL_FLAGS.into_iter().find(|(name, _)| is_typed(name)) {
        return Err(format!(
            "--{name} cannot be combined with --network netstack: {why}"
        ));
    }
    let device = optional(matches, "device", parse)?;
    let interface = InterfaceConfig {
        device: device.ok_or("--network netstack needs a --device, such as tap:weft0")?,
        addresses: all(matches, "address", address_range)?.concat(),
        gateways: all(matches, "gateway", ip)?,
        mtu: optional(matches, "mtu", |text| value::count(text, 1..=MTU_MAX))?,
    };
    Ok(Network::Netstack(interface))
}

/// `10.9.0.2/24`, or `10.9.0.2-10.9.0.99/24`.
fn address_range(text: &str) -> Result<Vec<Prefix>, String> {
    let Some((first, last)) = text.split_once('-') else {
        return text.parse().map(|one| vec![one]).map_err(say);
    };
    let last: Prefix = last.parse().map_err(say)?;
    let first = ip(first)?;
    let prefix = |address| Prefix { address, ..last };
    let range = match (first, last.address) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            u128::from(u32::from(first))..=u32::from(last).into()
        }
        (IpAddr::V6(first), IpAddr::V6(last)) => first.into()..=last.into(),
        _ => {
            return Err(format!("'{text}' mixes IPv4 and IPv6"));
        }
    };
    let at = |number: u128| match first {
        IpAddr::V4(_) => IpAddr::V4((number as u32).into()),
        IpAddr::V6(_) => IpAddr::V6(number.into()),
    };
    match range.end().checked_sub(*range.start()) {
        None => Err(format!("'{text}' ends before it begins")),
        Some(ADDRESSES_MAX..) => Err(format!("'{text}' is more than {ADDRESSES_MAX} addresses")),
        Some(_) => Ok(range.map(at).map(prefix).collect()),
    }
}

/// The addresses from which the targets can be reached: those of their family.
fn sources_of(interface: &InterfaceConfig, targets: &[SocketAddr]) -> Vec<IpAddr> {
    let addresses = interface.addresses.iter().map(|prefix| prefix.address);
    let reaches = |own: &IpAddr| targets.iter().any(|one| one.is_ipv4() == own.is_ipv4());
    addresses.filter(reaches).collect()
}

// ---- values, with the flag's name in what is wrong with them

/// Parser of a value.
type Reader<T> = fn(&str) -> Result<T, String>;

/// The value of a flag that has a default.
pub(crate) fn one<T>(matches: &ArgMatches, name: &str, read: Reader<T>) -> Result<T, String> {
    read(said(matches, name)).map_err(of(name))
}

/// The value of a flag that may be left out.
pub(crate) fn optional<T>(
    matches: &ArgMatches,
    name: &str,
    read: Reader<T>,
) -> Result<Option<T>, String> {
    let text = matches.get_one::<String>(name);
    text.map(|text| read(text).map_err(of(name))).transpose()
}

/// The values of a flag that may be repeated.
fn all<T>(
    matches: &ArgMatches,
    name: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let texts = matches.get_many::<String>(name).into_iter().flatten();
    texts.map(|text| read(text).map_err(of(name))).collect()
}

fn said<'a>(matches: &'a ArgMatches, name: &str) -> &'a str {
    matches.get_one::<String>(name).expect("it has a default")
}

fn of(name: &str) -> impl Fn(String) -> String {
    move |sentence| format!("--{name}: {sentence}")
}

fn parse<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(say)
}

fn say(error: impl Display) -> String {
    error.to_string()
}

pub(crate) fn time(text: &str) -> Result<Duration, String> {
    match text {
        "0" | "0s" => Ok(Duration::ZERO),
        text => value::duration(text),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err(format!(
            "'{text}' is not a percentage; write a number from 0 to 100"
        )),
    }
}

/// A count: `64`, `10k`, `1M`.
pub(crate) fn count(text: &str) -> Result<u32, String> {
    count_up_to(text, u64::from(u32::MAX)).map(|count| count as u32)
}

/// More is not told apart in 64 bits of a floating-point number.
const REQUESTS_MAX: u64 = 1_000_000_000_000_000;

pub(crate) fn count_up_to(text: &str, most: u64) -> Result<u64, String> {
    let whole = rate_or_0(text).ok().filter(|count| count.fract() == 0.0);
    match whole {
        Some(count) if count <= most as f64 => Ok(count as u64),
        Some(_) => Err(format!("'{text}' is too many; at most {}", count_of(most))),
        None => Err(format!(
            "'{text}' is not a number; write one such as 64, 10k or 1M"
        )),
    }
}

fn number(text: &str) -> Result<u64, String> {
    let read = text.parse();
    read.map_err(|_| format!("'{text}' is not a whole number"))
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};

    use super::*;

    #[test]
    fn address_range_includes_both_ends() {
        let read = |text: &str| {
            let prefixes = address_range(text).unwrap();
            let shown: Vec<String> = prefixes.iter().map(Prefix::to_string).collect();
            shown.join(" ")
        };
        assert_eq!(read("10.9.0.2/24"), "10.9.0.2/24");
        assert_eq!(
            read("10.9.0.254-10.9.1.1/16"),
            "10.9.0.254/16 10.9.0.255/16 10.9.1.0/16 10.9.1.1/16"
        );
        assert_eq!(read("fd00::1-fd00::2/64"), "fd00::1/64 fd00::2/64");
        assert_eq!(read("10.9.0.2-10.9.0.2/24"), "10.9.0.2/24");
        assert_eq!(address_range("10.0.0.0-10.0.15.255/8").unwrap().len(), 4096);
        for (text, why) in [
            ("10.9.0.2", "10.9.0.2/24"),
            ("10.9.0.2-10.9.0.9", "10.9.0.2/24"),
            ("here-10.9.0.9/24", "not an IP address"),
            ("10.9.0.9-10.9.0.2/24", "ends before it begins"),
            ("10.9.0.9-fd00::1/64", "mixes IPv4 and IPv6"),
            ("10.0.0.0-10.0.16.0/8", "more than 4096"),
            ("::-ffff:ffff::/1", "more than 4096"),
        ] {
            let said = address_range(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
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
        ] {
            let found = split(url).unwrap();
            assert_eq!(
                (&*found.authority, &*found.path),
                (authority, path),
                "{url}"
            );
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

    #[test]
    fn ranges_in_paths_are_expanded() {
        let expanded = |path: &str| expand(path).unwrap().join(" ");
        assert_eq!(expanded("/a"), "/a");
        assert_eq!(expanded("/{9..11}/x?y"), "/9/x?y /10/x?y /11/x?y");
        assert_eq!(expanded("/i{08..10}"), "/i08 /i09 /i10");
        assert_eq!(expanded("/%7B{id}"), "/%7B{id}");
        assert_eq!(expand("/{1..1000000}").unwrap().len(), 1_000_000);
        for (path, why) in [
            ("/{0..1000000}", "a million"),
            ("/{2..1}", "ends before"),
            ("/{a..b}", "no range"),
            ("/{1..2}/{1..2}", "a second"),
        ] {
            let said = expand(path).unwrap_err();
            assert!(said.contains(why), "{path}: {said}");
        }
    }

    /// Seen: `http://localhost` was refused where a server listened on 127.0.0.1 alone. Cause: the
    /// first address of a name was taken, which is ::1. Cure: they are tried in order.
    #[test]
    fn first_answering_address_is_used() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let open = server.local_addr().unwrap();
        // Bound, and not listening: nothing else gets this port meanwhile.
        let holds = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&holds, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let closed = SocketAddr::try_from(getsockname(&holds).unwrap()).unwrap();
        assert_eq!(one_that_answers(&[closed, open], true), Some(open));
        assert_eq!(one_that_answers(&[closed, open], false), Some(closed));
        assert_eq!(one_that_answers(&[closed, closed], true), Some(closed));
        assert_eq!(one_that_answers(&[], true), None);
    }

    #[test]
    fn close_header_ends_the_connection() {
        let planned = |flags: &[&str]| {
            let words = ["load", "http", "http://127.0.0.1:1/a"];
            let command = crate::command::load::args::command(String::new());
            let words = words.iter().chain(flags);
            let matches = command.try_get_matches_from(words).unwrap();
            let (name, matches) = matches.subcommand().unwrap();
            match plan(name, matches, 0)?.0.workload {
                Workload::Http(http) => Ok::<_, String>(http.requests_per_connection),
                _ => unreachable!("asked for http"),
            }
        };
        let close = "connection: Upgrade, Close";
        assert_eq!(planned(&["-H", close]), Ok(Some(1)));
        assert_eq!(planned(&["-H", "Connection: keep-alive"]), Ok(None));
        assert!(planned(&["-H", close, "--requests-per-connection", "2"]).is_err());
    }

    #[test]
    fn https_asks_for_tls_and_its_port() {
        let planned = |line: &str| {
            let command = crate::command::load::args::command(String::new());
            let words = format!("load {line}");
            let matches = command.try_get_matches_from(words.split_whitespace());
            let matches = matches.map_err(say)?;
            let (name, matches) = matches.subcommand().unwrap();
            let (plan, _) = plan(name, matches, 0)?;
            Ok::<_, String>((plan.targets[0].port(), plan.tls))
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
        ] {
            let said = planned(line).unwrap_err();
            assert!(said.contains(why), "{line}: {said}");
        }
    }

    #[test]
    fn url_with_several_servers() {
        let targets = |flags: &str| {
            let line = format!("load http http://127.0.0.1:1/a {flags}");
            let command = crate::command::load::args::command(String::new());
            let matches = command
                .try_get_matches_from(line.split_whitespace())
                .unwrap();
            let (name, matches) = matches.subcommand().unwrap();
            let (plan, _) = plan(name, matches, 0)?;
            let targets = plan.targets.iter().map(SocketAddr::to_string);
            Ok::<_, String>(targets.collect::<Vec<_>>())
        };
        assert_eq!(targets("").unwrap(), ["127.0.0.1:1"]);
        let two = targets("--connect-to 127.0.0.2:3 --connect-to 127.0.0.3").unwrap();
        assert_eq!(two, ["127.0.0.2:3", "127.0.0.3:80"]);
        let why = targets("--connect-to 127.0.0.2:0").unwrap_err();
        assert!(why.starts_with("--connect-to: "), "{why}");
    }
}
