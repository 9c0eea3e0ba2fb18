//! From what was typed to what it means: every value read and checked by itself and with the
//! others, before anything is opened.

use std::path::PathBuf;
use std::time::Duration;

use ::serve::listen::Address;
use ::serve::tls::{Clients, TlsOptions};

use super::extended::{self, Given};
use super::options::{Fate, Typed, find};
use crate::engine::EngineChoice;
use crate::value::{self, Account};

/// What `weft cache` shall do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CacheConfig {
    /// Where connections come from; empty if there is only UDP.
    pub(crate) listen: Vec<Listen>,
    /// Whether `listen` is only the default, which sockets from systemd replace.
    pub(crate) listen_is_default: bool,
    /// What `-l` says, for `stats settings`.
    pub(crate) interface: Option<String>,
    /// Where datagrams come from.
    pub(crate) listen_udp: Vec<Address>,
    pub(crate) backlog: u32,
    pub(crate) engine: EngineChoice,
    /// `None`: as many as there are CPUs.
    pub(crate) processors: Option<usize>,
    pub(crate) admin: Vec<Address>,
    pub(crate) connections_max: usize,
    /// Whether connections above the limit are refused with a line; else they wait.
    pub(crate) refuses_fast: bool,
    /// `None` is never.
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) drain_timeout: Duration,

    pub(crate) memory_bytes: u64,
    pub(crate) item_len_max: u64,
    pub(crate) evicts: bool,
    pub(crate) growth_factor: f64,
    pub(crate) item_len_min: u32,
    pub(crate) hash_power: u8,
    pub(crate) has_huge_pages: bool,
    pub(crate) memory_file: Option<PathBuf>,

    pub(crate) protocol: Protocol,
    pub(crate) has_cas: bool,
    pub(crate) allows_shutdown: bool,
    pub(crate) allows_flush_all: bool,
    pub(crate) allows_dump: bool,
    pub(crate) allows_watch: bool,
    pub(crate) has_sasl: bool,
    pub(crate) auth_file: Option<PathBuf>,
    pub(crate) prefix_end: char,
    pub(crate) counts_prefixes: bool,
    pub(crate) crawls: bool,
    pub(crate) tracks_sizes: bool,

    pub(crate) tls: Option<TlsOptions>,

    pub(crate) is_daemon: bool,
    pub(crate) user: Option<Account>,
    pub(crate) pid_file: Option<PathBuf>,
    pub(crate) locks_memory: bool,
    pub(crate) dumps_core: bool,
    pub(crate) verbosity: u8,
    /// What was typed and changes nothing, with the reason: -v says it.
    pub(crate) idle: Vec<String>,
}

/// A place to listen on, and whether TLS is spoken there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listen {
    pub(crate) address: Address,
    pub(crate) has_tls: bool,
}

/// What may be spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Whatever the first byte of a connection says.
    #[default]
    Auto,
    /// Text and meta.
    Ascii,
    /// Binary.
    Binary,
}

/// Ports below this are asked for as they are; -1 is any that is free, which the kernel knows as 0.
const PORT_MAX: i64 = 65_535;

const MIB: u64 = 1 << 20;
const ITEM_LEN_MAX_BYTES: u64 = 1 << 30;
const PROCESSORS_MAX: usize = 1024;

impl CacheConfig {
    /// Reads what was typed.
    ///
    /// # Errors
    /// A sentence that names the option, what is wrong with it and what to write.
    pub(crate) fn read(typed: &Typed) -> Result<CacheConfig, String> {
        let mut idle = Vec::new();
        for opt in typed.options() {
            match opt.fate {
                Fate::Works => {}
                Fate::Idle(why) => idle.push(format!("{} changes nothing: {why}", opt.name())),
                Fate::Refused(why) => {
                    return Err(format!("{} is not supported: {why}", opt.name()));
                }
            }
        }
        let mut more = More::read(typed, &mut idle)?;
        let memory_bytes = memory(typed)?;
        Ok(CacheConfig {
            listen: listen(typed)?,
            listen_is_default: ["port", "listen", "unix-socket"]
                .iter()
                .all(|name| typed.value(name).is_none()),
            interface: typed.value("listen").map(str::to_owned),
            listen_udp: listen_udp(typed)?,
            backlog: number(typed, "listen-backlog", 1024, 1..=u64::from(u32::MAX >> 1))? as u32,
            engine: engine(typed)?,
            processors: processors(typed)?,
            admin: admin(typed)?,
            connections_max: number(typed, "conn-limit", 1024, 1..=u64::from(u32::MAX))? as usize,
            refuses_fast: more.refuses_fast,
            idle_timeout: more.idle_timeout,
            drain_timeout: parsed(typed, "drain-timeout", value::duration)?
                .unwrap_or(DRAIN_TIMEOUT),
            memory_bytes,
            item_len_max: item_len_max(typed, memory_bytes)?,
            evicts: !typed.is_on("disable-evictions"),
            growth_factor: growth_factor(typed)?,
            item_len_min: number(typed, "slab-min-size", 48, 1..=1 << 20)? as u32,
            hash_power: more.hash_power,
            has_huge_pages: typed.is_on("enable-largepages"),
            memory_file: typed.value("memory-file").map(PathBuf::from),
            protocol: protocol(typed)?,
            has_cas: !typed.is_on("disable-cas"),
            allows_shutdown: typed.is_on("enable-shutdown"),
            allows_flush_all: !typed.is_on("disable-flush-all"),
            allows_dump: !typed.is_on("disable-dumping"),
            allows_watch: !typed.is_on("disable-watch"),
            has_sasl: typed.is_on("enable-sasl"),
            auth_file: auth_file(typed)?,
            prefix_end: prefix_end(typed)?.unwrap_or(':'),
            counts_prefixes: typed.value("stats-prefix").is_some(),
            crawls: more.crawls,
            tracks_sizes: more.tracks_sizes,
            tls: more.tls(typed)?,
            is_daemon: typed.is_on("daemon"),
            user: parsed(typed, "user", value::account)?,
            pid_file: typed.value("pidfile").map(PathBuf::from),
            locks_memory: typed.is_on("lock-memory"),
            dumps_core: typed.is_on("enable-coredumps"),
            verbosity: typed.count("verbose"),
            idle,
        })
    }
}

/// Long enough for what is under way on fast networks; a cache that is told to stop should be gone
/// soon, because its clients then go on without it.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether clients show a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verify {
    No,
    May,
    Must,
}

/// What `-o` says.
struct More {
    refuses_fast: bool,
    idle_timeout: Option<Duration>,
    crawls: bool,
    tracks_sizes: bool,
    hash_power: u8,
    tls: TlsOptions,
    verify: Verify,
    ca_cert: Option<PathBuf>,
    /// The first option about TLS, to be named if there is none.
    about_tls: Option<&'static str>,
}

impl More {
    fn read(typed: &Typed, idle: &mut Vec<String>) -> Result<More, String> {
        let mut more = More {
            refuses_fast: true,
            idle_timeout: None,
            crawls: true,
            tracks_sizes: false,
            hash_power: 16,
            tls: TlsOptions::default(),
            verify: Verify::No,
            ca_cert: None,
            about_tls: None,
        };
        for list in typed.values("extended") {
            for given in extended::read(list)? {
                if let Fate::Idle(why) = given.fate {
                    idle.push(format!("-o {} changes nothing: {why}", given.name));
                }
                more.take(&given)
                    .map_err(|why| format!("-o {}: {why}", given.name))?;
            }
        }
        Ok(more)
    }

    fn take(&mut self, given: &Given<'_>) -> Result<(), String> {
        match given.name {
            "maxconns_fast" => self.refuses_fast = given.is_on,
            "idle_timeout" => self.idle_timeout = seconds(given)?,
            "lru_crawler" => self.crawls = given.is_on,
            "track_sizes" => self.tracks_sizes = given.is_on,
            "hashpower" => self.hash_power = value::count(given.value, 12..=32)? as u8,
            name if name.starts_with("ssl_") => {
                self.about_tls.get_or_insert(given.name);
                self.take_tls(given)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn take_tls(&mut self, given: &Given<'_>) -> Result<(), String> {
        let (tls, value) = (&mut self.tls, given.value);
        match given.name {
            "ssl_chain_cert" => tls.chain = value.into(),
            "ssl_key" => tls.key = Some(value.into()),
            "ssl_ca_cert" => self.ca_cert = Some(value.into()),
            "ssl_session_cache" => tls.resumes = given.is_on,
            "ssl_ciphers" => tls.ciphers = value.split(':').map(str::to_owned).collect(),
            "ssl_keyformat" => {
                tls.key_is_der = match value.to_ascii_uppercase().as_str() {
                    "PEM" => false,
                    "DER" => true,
                    _ => return Err(format!("'{value}' is neither PEM nor DER")),
                }
            }
            "ssl_verify_mode" => {
                self.verify = match value {
                    "0" => Verify::No,
                    "1" => Verify::May,
                    "2" | "3" => Verify::Must,
                    _ => return Err(format!("'{value}' is not a number from 0 to 3")),
                }
            }
            "ssl_min_version" => {
                tls.only_1_3 = match value {
                    "2" => false,
                    "3" => true,
                    "0" | "1" => {
                        return Err(
                            "TLS 1.0 and 1.1 are not safe and not supported; write 2 or 3".into(),
                        );
                    }
                    _ => return Err(format!("'{value}' is neither 2 nor 3")),
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn tls(&mut self, typed: &Typed) -> Result<Option<TlsOptions>, String> {
        let mut tls = std::mem::take(&mut self.tls);
        if !typed.is_on("enable-ssl") {
            return match self.about_tls {
                Some(name) => Err(format!("-o {name} is about TLS: give -Z as well")),
                None => Ok(None),
            };
        }
        if tls.chain.as_os_str().is_empty() {
            return Err("-Z needs a certificate: -o ssl_chain_cert=<file>,ssl_key=<file>".into());
        }
        tls.clients = match (self.verify, self.ca_cert.take()) {
            // In memcached, a client that may show a certificate, with no authority to vouch for
            // it, need not.
            (Verify::No, _) | (Verify::May, None) => Clients::Unknown,
            (Verify::May, Some(file)) => Clients::MayShow(file),
            (Verify::Must, Some(file)) => Clients::MustShow(file),
            (Verify::Must, None) => {
                return Err("-o ssl_verify_mode needs the certificates of the authorities: -o ssl_ca_cert=<file>"
                    .into());
            }
        };
        Ok(Some(tls))
    }
}

fn seconds(given: &Given<'_>) -> Result<Option<Duration>, String> {
    match given.value.parse::<u32>() {
        Ok(0) => Ok(None),
        Ok(seconds) => Ok(Some(Duration::from_secs(seconds.into()))),
        Err(_) => Err(format!("'{}' is not a number of seconds", given.value)),
    }
}

/// An error of an option, with its name in front.
fn about(long: &str) -> impl Fn(String) -> String {
    let name = find(long).name();
    move |why| format!("{name}: {why}")
}

fn parsed<T>(
    typed: &Typed,
    long: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, String> {
    typed
        .value(long)
        .map(parse)
        .transpose()
        .map_err(about(long))
}

fn number(
    typed: &Typed,
    long: &str,
    default: u64,
    range: std::ops::RangeInclusive<u64>,
) -> Result<u64, String> {
    let range = *range.start() as usize..=*range.end() as usize;
    let read = parsed(typed, long, |text| value::count(text, range.clone()))?;
    Ok(read.map_or(default, |number| number as u64))
}

/// A port as it is bound; `None` is none.
fn port(typed: &Typed, long: &str, default: i64) -> Result<Option<u16>, String> {
    let read = |text: &str| match text.parse::<i64>() {
        Ok(port) if (-1..=PORT_MAX).contains(&port) => Ok(port),
        _ => Err(format!(
            "'{text}' is not a port: write a number up to 65535, or -1 for any that is free"
        )),
    };
    Ok(match parsed(typed, long, read)?.unwrap_or(default) {
        0 => None,
        port => Some(port.max(0) as u16),
    })
}

fn listen(typed: &Typed) -> Result<Vec<Listen>, String> {
    let has_tls = typed.is_on("enable-ssl");
    let mode = parsed(typed, "unix-mask", mask)?.unwrap_or(0o700);
    if let Some(path) = typed.value("unix-socket") {
        let path = PathBuf::from(path);
        // As in memcached: TLS is for the network.
        return Ok(vec![Listen {
            address: Address::Unix { path, mode },
            has_tls: false,
        }]);
    }
    let port = port(typed, "port", 11_211)?;
    let listens = hosts(typed, port)?;
    Ok(listens
        .into_iter()
        .map(|(address, is_plain)| Listen {
            address,
            has_tls: has_tls && !is_plain,
        })
        .collect())
}

fn listen_udp(typed: &Typed) -> Result<Vec<Address>, String> {
    if typed.value("unix-socket").is_some() {
        return Ok(Vec::new());
    }
    match port(typed, "udp-port", 0)? {
        None => Ok(Vec::new()),
        // A port behind an address of -l is for TCP; UDP has the same addresses and one port.
        Some(port) => {
            let hosts = hosts(typed, Some(port))?
                .into_iter()
                .map(|(address, _)| match address {
                    Address::Tcp(mut address) => {
                        address.set_port(port);
                        Address::Tcp(address)
                    }
                    Address::Name { host, .. } => Address::Name { host, port },
                    other => other,
                });
            let mut unique: Vec<Address> = Vec::new();
            hosts.for_each(|host| {
                if !unique.contains(&host) {
                    unique.push(host);
                }
            });
            Ok(unique)
        }
    }
}

/// What `-l` says, each with whether it is an exception from TLS. Without a port of its own an
/// address gets `port`.
fn hosts(typed: &Typed, port: Option<u16>) -> Result<Vec<(Address, bool)>, String> {
    let words = typed.values("listen").flat_map(|list| list.split(','));
    let hosts = words
        .filter(|word| !word.is_empty())
        .map(|word| match word.strip_prefix("notls:") {
            Some(rest) => host(rest, port).map(|found| found.map(|address| (address, true))),
            None => host(word, port).map(|found| found.map(|address| (address, false))),
        })
        .collect::<Result<Vec<_>, _>>()
        .map_err(about("listen"))?;
    if hosts.is_empty() {
        let everywhere = port.map(|port| Address::Name {
            host: String::new(),
            port,
        });
        return Ok(everywhere
            .into_iter()
            .map(|address| (address, false))
            .collect());
    }
    Ok(hosts.into_iter().flatten().collect())
}

/// One address of `-l`; `None` if it has no port and there is none for it.
fn host(word: &str, port: Option<u16>) -> Result<Option<Address>, String> {
    let bare = word.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = bare.parse::<std::net::IpAddr>() {
        return Ok(port.map(|port| Address::Tcp((ip, port).into())));
    }
    let has_port = word.rsplit_once(':').is_some();
    if has_port {
        return match word.parse() {
            Ok(Address::Unix { .. }) => Err("a Unix socket is what -s is for".into()),
            Ok(address) => Ok(Some(address)),
            Err(error) => Err(error.to_string()),
        };
    }
    let Some(port) = port else { return Ok(None) };
    let address = format!("{word}:{port}").parse::<Address>();
    address.map(Some).map_err(|error| error.to_string())
}

fn mask(text: &str) -> Result<u32, String> {
    let octal = u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777);
    octal.ok_or_else(|| format!("'{text}' is not a mode in octal, such as 700 or 0660"))
}

fn admin(typed: &Typed) -> Result<Vec<Address>, String> {
    let addresses = typed.values("admin").flat_map(|list| list.split(','));
    let parsed = addresses.map(|text| {
        text.parse()
            .map_err(|error: ::serve::listen::AddressError| error.to_string())
    });
    parsed.collect::<Result<_, _>>().map_err(about("admin"))
}

fn engine(typed: &Typed) -> Result<EngineChoice, String> {
    let mut choice = EngineChoice::default();
    let flags = [
        "engine",
        "io",
        "dispatcher",
        "rtsig-overflow",
        "accept",
        "multi-accept",
    ];
    for flag in flags {
        if let Some(text) = typed.value(flag) {
            choice.set(flag, text).map_err(about(flag))?;
        }
    }
    choice.check().map(|()| choice)
}

fn processors(typed: &Typed) -> Result<Option<usize>, String> {
    let read = |long| parsed(typed, long, |text| value::count(text, 1..=PROCESSORS_MAX));
    Ok(read("threads")?.or(read("workers")?))
}

/// A number of megabytes, as memcached has it, or a size with its unit.
fn memory(typed: &Typed) -> Result<u64, String> {
    let read = |text: &str| {
        let bytes = match text.parse::<u64>() {
            Ok(megabytes) => megabytes.checked_mul(MIB),
            Err(_) => value::size(text).ok(),
        };
        bytes
            .filter(|bytes| (MIB..=1 << 50).contains(bytes))
            .ok_or_else(|| {
                format!("'{text}' is not a number of megabytes; 64 and 64m are 64 MiB, 1g is 1 GiB")
            })
    };
    Ok(parsed(typed, "memory-limit", read)?.unwrap_or(64 * MIB))
}

fn item_len_max(typed: &Typed, memory_bytes: u64) -> Result<u64, String> {
    let read = |text: &str| {
        let bytes = value::size(text)?;
        match bytes {
            0..1024 => Err("the largest item cannot be smaller than 1k".to_owned()),
            bytes if bytes > ITEM_LEN_MAX_BYTES => {
                Err("the largest item cannot be larger than 1024m".into())
            }
            bytes => Ok(bytes),
        }
    };
    let bytes = parsed(typed, "max-item-size", read)?.unwrap_or(MIB);
    if bytes > memory_bytes / 2 {
        let megabytes = (2 * bytes).div_ceil(MIB);
        return Err(format!(
            "-I: the largest item cannot take more than half of the memory: give -m {megabytes} or more"
        ));
    }
    Ok(bytes)
}

fn growth_factor(typed: &Typed) -> Result<f64, String> {
    let read = |text: &str| match text.parse::<f64>() {
        Ok(factor) if factor > 1.0 && factor <= 16.0 => Ok(factor),
        _ => Err(format!("'{text}' is not a factor above 1, such as 1.25")),
    };
    Ok(parsed(typed, "slab-growth-factor", read)?.unwrap_or(1.25))
}

fn protocol(typed: &Typed) -> Result<Protocol, String> {
    let protocol = match typed.value("protocol") {
        None | Some("auto") => Protocol::Auto,
        Some("ascii") => Protocol::Ascii,
        Some("binary") => Protocol::Binary,
        Some(other) => return Err(format!("-B: '{other}' is neither ascii, binary nor auto")),
    };
    if typed.is_on("enable-sasl") && protocol == Protocol::Ascii {
        return Err("-S: SASL is part of the binary protocol, which -B ascii excludes".into());
    }
    Ok(protocol)
}

fn auth_file(typed: &Typed) -> Result<Option<PathBuf>, String> {
    let file = typed.value("auth-file").map(PathBuf::from);
    if typed.is_on("enable-sasl") && file.is_none() {
        return Err("-S: say where the users are: -Y <file>, with lines of user:password".into());
    }
    Ok(file)
}

fn prefix_end(typed: &Typed) -> Result<Option<char>, String> {
    parsed(typed, "stats-prefix", |text| {
        let mut chars = text.chars();
        match (chars.next(), chars.next()) {
            (Some(end), None) if end.is_ascii_graphic() => Ok(end),
            _ => Err(format!("'{text}' is not one character")),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::options::typed;

    fn read(line: &str) -> CacheConfig {
        CacheConfig::read(&typed(line)).unwrap_or_else(|why| panic!("{line}: {why}"))
    }

    fn refusal(line: &str) -> String {
        CacheConfig::read(&typed(line)).unwrap_err()
    }

    fn addresses(line: &str) -> Vec<String> {
        let listen = read(line).listen;
        let shown =
            |one: &Listen| format!("{}{}", if one.has_tls { "tls " } else { "" }, one.address);
        listen.iter().map(shown).collect()
    }

    #[test]
    fn the_defaults_are_memcacheds() {
        let config = read("");
        assert_eq!(addresses(""), [":11211"]);
        assert!(config.listen_udp.is_empty() && config.idle_timeout.is_none());
        assert_eq!(config.memory_bytes, 64 << 20);
        assert_eq!(
            (config.item_len_max, config.connections_max),
            (1 << 20, 1024)
        );
        assert!(config.evicts && config.has_cas && config.refuses_fast && config.crawls);
        assert!(config.allows_flush_all && config.allows_watch && config.allows_dump);
        assert!(!config.allows_shutdown && !config.is_daemon);
    }

    #[test]
    fn addresses_are_taken_as_memcached_takes_them() {
        assert_eq!(addresses("-l 127.0.0.1 -p 11300"), ["127.0.0.1:11300"]);
        assert_eq!(
            addresses("-l 127.0.0.1,localhost:11301 -l ::1 -p 11300"),
            ["127.0.0.1:11300", "localhost:11301", "[::1]:11300"]
        );
        assert_eq!(addresses("-l [::1]:11301"), ["[::1]:11301"]);
        assert_eq!(addresses("-p -1 -l 127.0.0.1"), ["127.0.0.1:0"]);
        assert!(addresses("-p 0").is_empty());
        assert_eq!(
            addresses("-p 0 -l 127.0.0.1:11301,::1"),
            ["127.0.0.1:11301"]
        );
        assert_eq!(
            addresses("-Z -o ssl_chain_cert=x -l notls:127.0.0.1:1,127.0.0.1:2"),
            ["127.0.0.1:1", "tls 127.0.0.1:2"]
        );
    }

    #[test]
    fn a_unix_socket_is_instead_of_the_network() {
        assert_eq!(addresses("-s /tmp/x -p 1 -U 2"), ["unix:/tmp/x?mode=0700"]);
        assert_eq!(addresses("-s /tmp/x -a 0666"), ["unix:/tmp/x"]);
        assert!(read("-s /tmp/x -U 2").listen_udp.is_empty());
    }

    #[test]
    fn udp_listens_where_tcp_does() {
        let udp = |line| {
            read(line)
                .listen_udp
                .iter()
                .map(Address::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(udp("-U 11211"), [":11211"]);
        assert_eq!(udp("-U 5 -l 127.0.0.1:1,127.0.0.1:2"), ["127.0.0.1:5"]);
    }

    #[test]
    fn sizes_have_memcacheds_units_and_bounds() {
        assert_eq!(read("-m 1024").memory_bytes, 1 << 30);
        assert_eq!(read("-m 1g").memory_bytes, 1 << 30);
        assert_eq!(read("-m 100 -I 2m").item_len_max, 2 << 20);
        assert_eq!(read("-I 2048").item_len_max, 2048);
        assert!(refusal("-I 10").contains("smaller than 1k"));
        assert!(refusal("-m 9999 -I 2g").contains("larger than 1024m"));
        assert!(refusal("-m 1").contains("give -m 2 or more"));
        assert!(refusal("-m much").contains("-m: 'much'"));
        assert!(refusal("-m 0").contains("-m: '0'"));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_option() {
        for (line, expected) in [
            ("-p 99999", "-p: '99999' is not a port"),
            ("-c 0", "-c: '0'"),
            ("-t 0", "-t: '0'"),
            ("-a 9", "-a: '9'"),
            ("-B morse", "-B: 'morse'"),
            ("-f 1", "-f: '1'"),
            ("-l unix:/x", "-l: a Unix socket is what -s is for"),
            ("-S", "-S: say where the users are"),
            ("-N 4", "-N is not supported"),
            ("-Z", "-Z needs a certificate"),
            (
                "-o ssl_chain_cert=x",
                "-o ssl_chain_cert is about TLS: give -Z",
            ),
            ("-Z -o ssl_chain_cert=x,ssl_verify_mode=2", "ssl_ca_cert"),
            ("-Z -o ssl_chain_cert=x,ssl_min_version=0", "TLS 1.0"),
            ("-o idle_timeout=soon", "-o idle_timeout: 'soon'"),
            ("--engine steam", "--engine: 'steam'"),
        ] {
            let said = refusal(line);
            assert!(said.contains(expected), "{line}: {said}");
        }
    }

    #[test]
    fn what_changes_nothing_is_noted() {
        let idle = read("-R 5 -o modern,hot_lru_pct=10,slab_automove=1").idle;
        assert_eq!(idle.len(), 4, "{idle:?}");
        assert!(idle[0].starts_with("-R changes nothing: "), "{idle:?}");
    }
}
