//! Settings of `weft cache`: memcached's flags letter by letter, the options of its `-o`, and
//! weft's own. The parser, `-h`, the manual page, the completions and the tables of `docs/cache.md`
//! are generated from these rows.

use std::ffi::OsString;
use std::time::Duration;

use cache::Binding;

use super::config::{CacheConfig, Verify};
use crate::common::as_typed;
use crate::engine::WORKERS_MAX;
use crate::settings::layer::Layer;
use crate::settings::{Config, Group, Setting, flags, put};
use crate::value;

impl Config for CacheConfig {
    /// In the order of `memcached -h`; weft's own come last.
    const GROUPS: &'static [Group<CacheConfig>] = &[group(OPTIONS), group(OURS)];
    const LISTED: Rows = EXTENDED;
    const HAS_FILE: bool = false;

    /// `-p` if there is a letter, else `--name`.
    fn flag(setting: &Setting<CacheConfig>) -> String {
        match setting.short {
            Some(short) => format!("-{short}"),
            None => setting.flag(),
        }
    }

    fn conclude(&mut self, said: &Layer) {
        let named = ["port", "listen", "unix-socket"];
        self.listen_is_default = !named.iter().any(|name| said.contains_key(name));
        self.connections_are_default = !said.contains_key("conn-limit");
        self.about_tls = said.keys().find(|name| name.starts_with("ssl_")).copied();
        self.idle.extend(self.common.note_workers("-t"));
    }
}

/// Completes a word that is a prefix of exactly one long name of memcached's, although some of
/// weft's own names begin with it too.
pub(crate) fn spell_out(word: &mut OsString) {
    let Some(typed) = word.to_str().and_then(|word| word.strip_prefix("--")) else {
        return;
    };
    let name = typed.split('=').next().unwrap_or_default();
    let mut begun = OPTIONS.iter().filter(|row| row.name.starts_with(name));
    let is_whole = flags::<CacheConfig>().any(|row| row.name == name);
    if let (Some(row), None, false) = (begun.next(), begun.next(), is_whole) {
        *word = format!("--{}{}", row.name, &typed[name.len()..]).into();
    }
}

type Rows = &'static [Setting<CacheConfig>];

const fn group(rows: Rows) -> Group<CacheConfig> {
    let heading = "";
    Group { heading, rows }
}

const fn opt(short: char, name: &'static str) -> Setting<CacheConfig> {
    own(name).short(short)
}

const fn own(name: &'static str) -> Setting<CacheConfig> {
    Setting::new(name)
}

/// Largest 32-bit number, as in memcached.
const U32_MAX: usize = u32::MAX as usize;
const I32_MAX: usize = i32::MAX as usize;
const MIB: usize = 1 << 20;

const OPTIONS: Rows = &[
    opt('p', "port")
        .takes("num", put!(port = port))
        .starts_as("11211")
        .help("TCP port to listen on; 0 is none, -1 any that is free"),
    opt('U', "udp-port")
        .takes("num", put!(udp_port = port))
        .starts_as("0")
        .help("UDP port to listen on; 0 is none"),
    opt('s', "unix-socket")
        .file("file", put!(unix_socket = Some as_typed))
        .help("Unix socket to listen on instead of the network"),
    opt('a', "unix-mask")
        .takes("mask", put!(unix_mask = mask))
        .starts_as("700")
        .help("Mode of the Unix socket's file, in octal"),
    opt('A', "enable-shutdown")
        .does(|config| config.service.allows_shutdown = true)
        .help("Obey the command \"shutdown\""),
    opt('l', "listen")
        .adds("addr", CacheConfig::add_hosts)
        .derived("every interface")
        .help("Address to listen on; several separated by commas, or repeated")
        .more("An address, address:port or name; notls:ADDRESS listens without TLS."),
    opt('d', "daemon")
        .does(|config| config.is_daemon = true)
        .help("Run in the background, once the server is up"),
    opt('r', "enable-coredumps")
        .does(|config| config.dumps_core = true)
        .help("Raise the limit on the size of core files"),
    opt('u', "user")
        .takes("user", put!(common.user = Some value::account))
        .help("Become this user; required when started as root"),
    opt('m', "memory-limit")
        .takes("num", put!(store.memory_max = megabytes))
        .starts_as("64")
        .help("Memory for items, in megabytes; a hard limit"),
    opt('M', "disable-evictions")
        .does(|config| config.store.evicts = false)
        .help("Return an error when the memory is full, instead of evicting"),
    opt('c', "conn-limit")
        .takes("num", put!(connections_max = value::up_to::<U32_MAX, _>))
        .starts_as("1024")
        .help("Maximum number of open connections")
        .more("The default is lower if the memory, or the memory cgroup, is too small."),
    opt('k', "lock-memory")
        .does(|config| config.locks_memory = true)
        .help("Keep all memory of the process in RAM (mlockall(2))"),
    opt('v', "verbose")
        .does(|config| config.service.verbosity = config.service.verbosity.saturating_add(1))
        .help("Print more: what the server does"),
    opt('h', "help").help("Print this and exit"),
    opt('i', "license").help("Print the license and exit"),
    opt('V', "version").help("Print the version and exit"),
    opt('P', "pidfile")
        .file("file", put!(common.pid_file = Some as_typed))
        .help("Write the process id to this file")
        .more("Removed on exit, if the account of -u is allowed to."),
    opt('f', "slab-growth-factor")
        .takes("num", put!(store.chunk_growth = growth_factor))
        .starts_as("1.25")
        .help("Growth factor from one chunk size to the next"),
    opt('n', "slab-min-size")
        .takes("bytes", put!(store.chunk_space_min = value::up_to::<MIB, _>))
        .starts_as("48")
        .help("Smallest space for key, value and flags"),
    opt('L', "enable-largepages")
        .does(|config| config.store.huge_pages = true)
        .help("Ask the kernel for huge pages under the items"),
    opt('D', "stats-prefix")
        .takes("char", put!(prefix_end = Some prefix_end))
        .derived(":")
        .help("Turn on \"stats detail\"; this character ends a key's prefix"),
    opt('t', "threads")
        .takes("num", put!(common.workers = Some value::up_to::<WORKERS_MAX, _>))
        .derived("the CPUs that affinity and cgroup quota allow")
        .help("Number of worker threads"),
    opt('R', "max-reqs-per-event")
        .takes("num", |config, _| {
            config.idle.push(format!("-R changes nothing: {YIELDS}"));
            Ok(())
        })
        .help("Accepted without effect: a connection yields by bytes, not by requests"),
    opt('C', "disable-cas")
        .does(|config| config.store.counts_cas = false)
        .help("Items have no unique number (CAS)"),
    opt('b', "listen-backlog")
        .takes("num", put!(service.backlog = value::up_to::<I32_MAX, _>))
        .starts_as("1024")
        .help("Length of the listen queue"),
    opt('B', "protocol")
        .takes("name", put!(service.binding = protocol))
        .starts_as("auto")
        .help("Protocol: ascii, binary or auto"),
    opt('I', "max-item-size")
        .takes("bytes", put!(store.item_len_max = item_len_max))
        .starts_as("1m")
        .help("Largest item, from 1k to 1024m"),
    opt('S', "enable-sasl")
        .does(|config| config.has_sasl = true)
        .help("Require SASL authentication; the users are those of -Y"),
    opt('F', "disable-flush-all")
        .does(|config| config.service.allows_flush = false)
        .help("Refuse the command \"flush_all\""),
    opt('X', "disable-dumping")
        .does(|config| config.service.allows_dump = false)
        .help("Refuse \"stats cachedump\" and \"lru_crawler metadump\""),
    opt('W', "disable-watch")
        .does(|config| config.service.allows_watch = false)
        .help("Refuse the command \"watch\""),
    opt('Y', "auth-file")
        .file("file", put!(auth_file = Some as_typed))
        .help("Require authentication; the file has lines of user:password"),
    opt('e', "memory-file")
        .file("file", put!(memory_file = Some as_typed))
        .help("Keep the items in this file over a restart")
        .more("Written on exit (SIGUSR1, SIGTERM, SIGINT), read at start."),
    opt('Z', "enable-ssl")
        .does(|config| config.service.tls = true)
        .help("Speak TLS, with the certificate of -o ssl_chain_cert"),
    // The options in the list have rows of their own.
    opt('o', "extended").adds("list", ignore).help("More options, separated by commas; see below"),
    opt('N', "napi_ids")
        .takes("num", |_, _| {
            let why = "connections are not assigned by the queue of the network card";
            Err(format!("not supported: {why}"))
        })
        .help("Refused: connections are not assigned by the queue of the network card"),
];

const OURS: Rows = &[
    Setting::ENGINE,
    own("workers")
        .takes("num", put!(common.workers = Some value::up_to::<WORKERS_MAX, _>))
        .help("Same as -t"),
    own("admin")
        .adds("addr", CacheConfig::add_admin)
        .help("Address of /metrics, /healthz and, with fibers, /fibers"),
    Setting::SANDBOX,
    Setting::HANDSHAKE_TIMEOUT,
    own("drain-timeout")
        // Long enough for requests in flight on fast networks. A cache should stop quickly, because
        // its clients then continue without it.
        .takes("time", put!(common.drain_timeout = value::duration))
        .starts_as("2s")
        .help("Grace period for open connections after SIGTERM"),
];

const YIELDS: &str = "a connection yields when its replies fill a buffer";

/// Options of memcached 1.6.18's `-o` that have an effect.
pub(super) const EXTENDED: Rows = &[
    own("maxconns_fast")
        .switches(|config, on| config.service.refuses_at_connections_max = on)
        .starts_as("on")
        .help("Refuse connections over the limit with an error; if off, they wait"),
    own("idle_timeout")
        .takes("seconds", put!(idle_timeout = seconds))
        .starts_as("0")
        .help("Close connections that are idle for this long; 0 is never"),
    own("hashpower")
        .takes("num", put!(store.hash_power = hash_power))
        .starts_as("16")
        .help("Initial size of the hash table, 2^num; it grows by itself"),
    own("lru_crawler")
        .switches(|config, on| config.service.crawls = on)
        .starts_as("on")
        .help("Reclaim expired items in the background; if off, less often"),
    own("track_sizes")
        .switches(|config, on| config.service.tracks_sizes = on)
        .starts_as("off")
        .help("Keep the sizes that \"stats sizes\" shows"),
    own("ssl_chain_cert")
        .takes("file", put!(certificate.chain = as_typed))
        .help("Certificate chain, PEM"),
    own("ssl_key")
        .takes("file", put!(certificate.key = Some as_typed))
        .help("Private key, if it is not in ssl_chain_cert"),
    own("ssl_keyformat")
        .takes("name", put!(tls.key_is_der = key_is_der))
        .starts_as("PEM")
        .help("PEM or DER"),
    own("ssl_verify_mode")
        .takes("num", put!(verify = verify))
        .starts_as("0")
        .help("Certificates of clients: 0 not asked for, 1 optional, 2 or 3 required"),
    own("ssl_ca_cert")
        .takes("file", put!(ca_cert = Some as_typed))
        .help("Certificate authorities of clients, PEM"),
    own("ssl_ciphers")
        .takes("list", |config, text| {
            config.tls.ciphers = text.split(':').map(str::to_owned).collect();
            Ok(())
        })
        .help("Cipher suites by OpenSSL's names, separated by colons"),
    own("ssl_min_version")
        .takes("num", put!(tls.only_1_3 = only_1_3))
        .starts_as("2")
        .help("Oldest protocol: 2 is TLS 1.2, 3 is TLS 1.3"),
    own("ssl_session_cache")
        .switches(|config, on| config.tls.resumes = on)
        .starts_as("off")
        .help("Resume sessions"),
];

fn ignore(_: &mut CacheConfig, _: &str) -> Result<(), String> {
    Ok(())
}

/// A port to bind; `None`: none. -1 means any free port, which is 0 for the kernel.
fn port(text: &str) -> Result<Option<u16>, String> {
    match text.parse::<i32>() {
        Ok(-1) => Ok(Some(0)),
        Ok(0) => Ok(None),
        Ok(port @ 1..=65_535) => Ok(Some(port as u16)),
        _ => Err(format!(
            "'{text}' is not a port: write a number up to 65535, or -1 for any that is free"
        )),
    }
}

fn mask(text: &str) -> Result<u32, String> {
    let octal = u32::from_str_radix(text, 8).ok();
    octal
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| format!("'{text}' is not a mode in octal, such as 700 or 0660"))
}

/// A number of megabytes, as in memcached, or a size with a unit.
fn megabytes(text: &str) -> Result<u64, String> {
    let bytes = match text.parse::<u64>() {
        Ok(megabytes) => megabytes.checked_mul(MIB as u64),
        Err(_) => value::size(text).ok(),
    };
    let bytes = bytes.filter(|bytes| (MIB as u64..=1 << 50).contains(bytes));
    bytes.ok_or_else(|| {
        format!("'{text}' is not a number of megabytes; 64 and 64m are 64 MiB, 1g is 1 GiB")
    })
}

fn item_len_max(text: &str) -> Result<u32, String> {
    match value::size(text)? {
        0..1024 => Err("the largest item cannot be smaller than 1k".to_owned()),
        bytes if bytes > 1 << 30 => Err("the largest item cannot be larger than 1024m".to_owned()),
        bytes => Ok(bytes as u32),
    }
}

fn growth_factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok();
    factor
        .filter(|factor| *factor > 1.0 && *factor <= 16.0)
        .ok_or_else(|| format!("'{text}' is not a factor above 1, such as 1.25"))
}

fn prefix_end(text: &str) -> Result<char, String> {
    match text.as_bytes() {
        [end] if end.is_ascii_graphic() => Ok(char::from(*end)),
        _ => Err(format!("'{text}' is not one character")),
    }
}

fn protocol(text: &str) -> Result<Binding, String> {
    match text {
        "auto" => Ok(Binding::Auto),
        "ascii" => Ok(Binding::Ascii),
        "binary" => Ok(Binding::Binary),
        _ => Err(format!("'{text}' is neither ascii, binary nor auto")),
    }
}

fn seconds(text: &str) -> Result<Option<Duration>, String> {
    match text.parse::<u32>() {
        Ok(0) => Ok(None),
        Ok(seconds) => Ok(Some(Duration::from_secs(seconds.into()))),
        Err(_) => Err(format!("'{text}' is not a number of seconds")),
    }
}

fn hash_power(text: &str) -> Result<u8, String> {
    value::count(text, 12..=32).map(|power| power as u8)
}

fn key_is_der(text: &str) -> Result<bool, String> {
    match text.to_ascii_uppercase().as_str() {
        "PEM" => Ok(false),
        "DER" => Ok(true),
        _ => Err(format!("'{text}' is neither PEM nor DER")),
    }
}

fn verify(text: &str) -> Result<Verify, String> {
    match text {
        "0" => Ok(Verify::No),
        "1" => Ok(Verify::May),
        "2" | "3" => Ok(Verify::Must),
        _ => Err(format!("'{text}' is not a number from 0 to 3")),
    }
}

fn only_1_3(text: &str) -> Result<bool, String> {
    match text {
        "2" => Ok(false),
        "3" => Ok(true),
        "0" | "1" => Err("TLS 1.0 and 1.1 are not safe and not supported; write 2 or 3".to_owned()),
        _ => Err(format!("'{text}' is neither 2 nor 3")),
    }
}
