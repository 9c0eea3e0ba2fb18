//! Configuration of `weft cache`: the parsed flags, checked against one another before anything is
//! opened.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ::serve::listen::Address;
use ::serve::tls::{Certificate, Clients, TlsOptions};
use cache::Binding;

use crate::common::{Common, address};
use crate::engine::{EngineChoice, EngineKind};
use crate::settings::{Config, flags};

/// Configuration of `weft cache`.
#[derive(Clone, Debug, Default)]
pub(crate) struct CacheConfig {
    pub(crate) common: Common,
    pub(crate) store: cache::store::Config,
    /// Settings with a flag of their own; the rest follows from addresses and files at start.
    pub(crate) service: cache::Settings,
    /// `None`: no TCP.
    pub(super) port: Option<u16>,
    /// `None`: no UDP.
    pub(super) udp_port: Option<u16>,
    /// Addresses of `-l`; empty means every interface.
    hosts: Vec<Host>,
    pub(super) unix_socket: Option<PathBuf>,
    pub(super) unix_mask: u32,
    /// True if no flag named an address; sockets from systemd then replace the default.
    pub(crate) listen_is_default: bool,
    pub(crate) connections_max: usize,
    pub(crate) connections_are_default: bool,
    /// Most bytes held by all connections together, if the machine's memory is known.
    pub(crate) connection_memory_max: Option<usize>,
    /// `None`: never.
    pub(crate) idle_timeout: Option<Duration>,

    pub(crate) memory_file: Option<PathBuf>,
    pub(crate) has_sasl: bool,
    pub(crate) auth_file: Option<PathBuf>,
    /// `None`: prefixes are not counted; the default delimiter is a colon.
    pub(crate) prefix_end: Option<char>,

    /// Certificate and authorities of clients are separate fields below; see [`CacheConfig::tls`].
    pub(super) tls: TlsOptions,
    pub(super) certificate: Certificate,
    pub(super) verify: Verify,
    pub(super) ca_cert: Option<PathBuf>,
    /// Some TLS option that was given, for an error message if there is no TLS.
    pub(super) about_tls: Option<&'static str>,

    pub(crate) is_daemon: bool,
    pub(crate) locks_memory: bool,
    pub(crate) dumps_core: bool,
    /// Options that were given but have no effect, with the reason; -v prints them.
    pub(crate) idle: Vec<String>,
}

/// A listening address, and whether it uses TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listen {
    pub(crate) address: Address,
    pub(crate) has_tls: bool,
}

/// An address of `-l`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Host {
    address: Address,
    /// True if it was given with a port. Otherwise its port is 0 here, and `-p` supplies it.
    has_port: bool,
    /// True if it is exempt from TLS.
    is_plain: bool,
}

/// Certificates of clients: not requested, optional or required.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Verify {
    #[default]
    No,
    May,
    Must,
}

impl AsMut<Common> for CacheConfig {
    fn as_mut(&mut self) -> &mut Common {
        &mut self.common
    }
}

impl AsMut<EngineChoice> for CacheConfig {
    fn as_mut(&mut self) -> &mut EngineChoice {
        &mut self.common.engine
    }
}

impl CacheConfig {
    /// Finds conflicting values.
    pub(super) fn check(&self) -> Result<(), String> {
        self.common.engine.check()?;
        if self.common.engine.kind == EngineKind::Netstack && self.udp_port.is_some() {
            return Err("-U: --engine netstack has no UDP; leave it out".into());
        }
        let item_len_max = u64::from(self.store.item_len_max);
        if item_len_max > self.store.memory_max / 2 {
            let megabytes = (2 * item_len_max).div_ceil(1 << 20);
            return Err(format!(
                "-I: the largest item cannot take more than half of the memory: give -m {megabytes} or more"
            ));
        }
        if self.has_sasl && self.service.binding == Binding::Ascii {
            return Err("-S: SASL is part of the binary protocol, which -B ascii excludes".into());
        }
        if self.has_sasl && self.auth_file.is_none() {
            return Err(
                "-S: say where the users are: -Y <file>, with lines of user:password".into()
            );
        }
        self.tls().map(drop)
    }

    /// TLS options, if TLS is on.
    ///
    /// # Errors
    /// A sentence that names the missing option.
    pub(crate) fn tls(&self) -> Result<Option<TlsOptions>, String> {
        if !self.service.tls {
            return match self.about_tls {
                Some(name) => Err(format!("-o {name} is about TLS: give -Z as well")),
                None => Ok(None),
            };
        }
        if self.certificate.chain.as_os_str().is_empty() {
            return Err("-Z needs a certificate: -o ssl_chain_cert=<file>,ssl_key=<file>".into());
        }
        let clients = match (self.verify, self.ca_cert.clone()) {
            // As in memcached: without an authority to verify it, no client certificate is
            // requested.
            (Verify::No, _) | (Verify::May, None) => Clients::Unknown,
            (Verify::May, Some(file)) => Clients::MayShow(file),
            (Verify::Must, Some(file)) => Clients::MustShow(file),
            (Verify::Must, None) => {
                return Err("-o ssl_verify_mode needs the certificates of the authorities: \
                            -o ssl_ca_cert=<file>"
                    .into());
            }
        };
        Ok(Some(TlsOptions {
            certificates: vec![self.certificate.clone()],
            key_option: "-o ssl_key=<file>",
            clients,
            ..self.tls.clone()
        }))
    }

    /// Listening addresses for connections; empty if there is only UDP.
    pub(crate) fn listen(&self) -> Vec<Listen> {
        if let Some(path) = self.unix_socket.clone() {
            let mode = self.unix_mask;
            // As in memcached, a Unix socket is without TLS.
            return vec![Listen { address: Address::Unix { path, mode }, has_tls: false }];
        }
        let listen = |host: Host| {
            let address = match (host.has_port, self.port) {
                (true, _) => host.address,
                (false, port) => with_port(host.address, port?),
            };
            let has_tls = self.service.tls && !host.is_plain;
            Some(Listen { address, has_tls })
        };
        self.hosts().into_iter().filter_map(listen).collect()
    }

    /// Addresses for datagrams. A port in an address of -l is for TCP; UDP has the same addresses
    /// with a port of its own.
    pub(crate) fn listen_udp(&self) -> Vec<Address> {
        let mut unique = Vec::new();
        if let (Some(port), None) = (self.udp_port, &self.unix_socket) {
            for host in self.hosts() {
                let address = with_port(host.address, port);
                if !unique.contains(&address) {
                    unique.push(address);
                }
            }
        }
        unique
    }

    fn hosts(&self) -> Vec<Host> {
        if !self.hosts.is_empty() {
            return self.hosts.clone();
        }
        vec![Host {
            address: Address::Name { host: String::new(), port: 0 },
            has_port: false,
            is_plain: false,
        }]
    }

    /// Adds a list of `-l`.
    pub(super) fn add_hosts(&mut self, list: &str) -> Result<(), String> {
        let mut words = list.split(',').filter(|word| !word.is_empty()).peekable();
        // An empty list would mean every interface.
        if words.peek().is_none() {
            return Err(names_no_address(list));
        }
        for word in words {
            self.hosts.push(host(word)?);
        }
        // Unchanged, for `stats settings`.
        self.service.interface = Some(list.to_owned());
        Ok(())
    }

    /// Adds a list of `--admin`.
    pub(super) fn add_admin(&mut self, list: &str) -> Result<(), String> {
        for word in list.split(',') {
            self.common.admin.push(address(word)?);
        }
        Ok(())
    }
}

/// A warning for each `WEFT_` variable named like a flag: only `weft serve` reads them.
pub(super) fn unread(variables: impl Iterator<Item = OsString>) -> Vec<String> {
    let warning = |variable: OsString| {
        let row = flags::<CacheConfig>().find(|row| row.env().as_str() == variable)?;
        let (variable, flag) = (row.env(), CacheConfig::flag(row));
        Some(format!(
            "{variable} has no effect: weft cache reads no settings from the environment; use {flag}"
        ))
    };
    variables.filter_map(warning).collect()
}

fn with_port(mut address: Address, new: u16) -> Address {
    match &mut address {
        Address::Tcp(address) => address.set_port(new),
        Address::Name { port, .. } => *port = new,
        Address::Unix { .. } => unreachable!("-l takes no Unix socket"),
    }
    address
}

fn host(word: &str) -> Result<Host, String> {
    let (is_plain, word) = match word.strip_prefix("notls:") {
        Some(rest) => (true, rest),
        None => (false, word),
    };
    if word.is_empty() {
        return Err(names_no_address("notls:"));
    }
    let bare = word.trim_start_matches('[').trim_end_matches(']');
    let is_in_zone = bare.contains('%') && !bare.contains(']');
    let (address, has_port) = match bare.parse::<IpAddr>() {
        Ok(ip) => (Address::Tcp((ip, 0).into()), false),
        Err(_) if is_in_zone => (address(&format!("[{bare}]:0"))?, false),
        Err(_) if word.contains(':') => (address(word)?, true),
        Err(_) => (address(&format!("{word}:0"))?, false),
    };
    match address {
        Address::Unix { .. } => Err("use -s for a Unix socket".to_owned()),
        _ => Ok(Host { address, has_port, is_plain }),
    }
}

fn names_no_address(text: &str) -> String {
    format!("'{text}' names no address; write one, or leave -l out to listen on every interface")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::cache::typed;

    fn read(line: &str) -> CacheConfig {
        CacheConfig::read(typed(line)).unwrap_or_else(|why| panic!("{line}: {why}"))
    }

    fn refusal(line: &str) -> String {
        CacheConfig::read(typed(line)).unwrap_err()
    }

    fn addresses(line: &str) -> Vec<String> {
        let listen = read(line).listen();
        let shown =
            |one: &Listen| format!("{}{}", if one.has_tls { "tls " } else { "" }, one.address);
        listen.iter().map(shown).collect()
    }

    #[test]
    fn the_defaults_are_memcacheds() {
        let config = read("");
        assert_eq!(addresses(""), [":11211"]);
        assert!(config.listen_udp().is_empty() && config.idle_timeout.is_none());
        let store = &config.store;
        let service = &config.service;
        assert_eq!(store.memory_max, 64 << 20);
        assert_eq!((store.item_len_max, config.connections_max), (1 << 20, 1024));
        assert!(service.refuses_at_connections_max && service.crawls);
        assert!(store.evicts && store.counts_cas && service.allows_flush);
        assert!(service.allows_watch && service.allows_dump);
        assert!(!service.allows_shutdown && !config.is_daemon);
    }

    #[test]
    fn addresses_are_taken_as_memcached_takes_them() {
        assert_eq!(addresses("-l 127.0.0.1 -p 11300"), ["127.0.0.1:11300"]);
        assert_eq!(
            addresses("-l 127.0.0.1,localhost:11301 -l ::1 -p 11300"),
            ["127.0.0.1:11300", "localhost:11301", "[::1]:11300"]
        );
        assert_eq!(addresses("-l [::1]:11301"), ["[::1]:11301"]);
        assert_eq!(addresses("-l fe80::1%lo -p 11300"), ["[fe80::1%1]:11300"]);
        assert_eq!(addresses("-l [fe80::1%lo] -p 11300"), ["[fe80::1%1]:11300"]);
        assert_eq!(addresses("-l [fe80::1%lo]:11301"), ["[fe80::1%1]:11301"]);
        assert_eq!(addresses("-p -1 -l 127.0.0.1"), ["127.0.0.1:0"]);
        assert!(addresses("-p 0").is_empty());
        assert_eq!(addresses("-p 0 -l 127.0.0.1:11301,::1"), ["127.0.0.1:11301"]);
        assert_eq!(
            addresses("-Z -o ssl_chain_cert=x -l notls:127.0.0.1:1,127.0.0.1:2"),
            ["127.0.0.1:1", "tls 127.0.0.1:2"]
        );
    }

    /// Seen: `-l ''` (for example `-l "$ADDRESS"` with an empty ADDRESS), `-l ,` and `-l notls:`
    /// listened on every interface (memcached listens nowhere). Cause: an empty list means no -l.
    /// Cure: it is refused.
    #[test]
    fn an_empty_address_is_not_every_interface() {
        for list in ["", ",", "notls:", "127.0.0.1,notls:"] {
            let why = CacheConfig::default().add_hosts(list).unwrap_err();
            assert!(why.contains("names no address"), "{list}: {why}");
        }
        assert_eq!(addresses("-l 127.0.0.1,"), ["127.0.0.1:11211"]);
        assert_eq!(addresses("-l *"), [":11211"]);
    }

    #[test]
    fn a_unix_socket_is_instead_of_the_network() {
        assert_eq!(addresses("-s /tmp/x -p 1 -U 2"), ["unix:/tmp/x?mode=0700"]);
        assert_eq!(addresses("-s /tmp/x -a 0666"), ["unix:/tmp/x"]);
        assert!(read("-s /tmp/x -U 2").listen_udp().is_empty());
    }

    #[test]
    fn udp_listens_where_tcp_does() {
        let udp = |line| read(line).listen_udp().iter().map(Address::to_string).collect::<Vec<_>>();
        assert_eq!(udp("-U 11211"), [":11211"]);
        assert_eq!(udp("-U 5 -l 127.0.0.1:1,127.0.0.1:2"), ["127.0.0.1:5"]);
    }

    #[test]
    fn sizes_have_memcacheds_units_and_bounds() {
        assert_eq!(read("-m 1024").store.memory_max, 1 << 30);
        assert_eq!(read("-m 1g").store.memory_max, 1 << 30);
        assert_eq!(read("-m 100 -I 2m").store.item_len_max, 2 << 20);
        assert_eq!(read("-I 2048").store.item_len_max, 2048);
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
            ("-l unix:/x", "-l: use -s for a Unix socket"),
            ("-S", "-S: say where the users are"),
            ("-N 4", "-N: not supported"),
            ("-Z", "-Z needs a certificate"),
            ("-o ssl_chain_cert=x", "-o ssl_chain_cert is about TLS: give -Z"),
            ("-Z -o ssl_chain_cert=x,ssl_verify_mode=2", "ssl_ca_cert"),
            ("-Z -o ssl_chain_cert=x,ssl_min_version=0", "TLS 1.0"),
            ("-o idle_timeout=soon", "-o idle_timeout: 'soon'"),
        ] {
            let said = refusal(line);
            assert!(said.contains(expected), "{line}: {said}");
        }
    }

    /// Seen: `WEFT_ENGINE=event weft cache` ran on fibers without a warning.
    #[test]
    fn variables_without_effect_are_warned_of() {
        let variables = ["WEFT_ENGINE", "WEFT_THREADS", "WEFT_ROOT", "HOME"];
        let said = unread(variables.into_iter().map(OsString::from));
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].starts_with("WEFT_ENGINE has no effect"));
        assert!(said[0].ends_with("use --engine") && said[1].ends_with("use -t"));
    }

    #[test]
    fn what_changes_nothing_is_noted() {
        let idle = read("-R 5 -o modern,hot_lru_pct=10,slab_automove=1").idle;
        assert_eq!(idle.len(), 4, "{idle:?}");
        assert!(idle[0].starts_with("-R changes nothing: "), "{idle:?}");
    }
}
