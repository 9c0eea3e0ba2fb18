//! Settings of `weft serve`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use ::serve::access_log::Target;
use ::serve::listen::Address;
use clap::ValueHint;
use session::{HostName, Networks, PrefixLen};
use web::{EtagKind, LogFormat, SiteConfig};

use crate::common::{Common, address, as_typed};
use crate::engine::{EngineChoice, FIBERS_MAX, WORKERS_MAX};
use crate::paint::Color;
use crate::settings::layer::{HOST, Layer};
use crate::settings::{Config, Group, Setting, put};
use crate::value::{self, Rate, RedirectSource};

/// Configuration of `weft serve`. `None` means derived from the machine at start, unless stated
/// otherwise.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServeConfig {
    pub(crate) common: Common,
    /// Its files, and how they are served; the rest is added at start.
    pub(crate) site: SiteConfig,
    /// Names of a host; none at the top level.
    pub(crate) names: Vec<HostName>,
    /// Names that are redirected to the first of `names`.
    pub(crate) aliases: Vec<HostName>,
    /// Hosts with names, each with all of its settings.
    pub(crate) hosts: Vec<ServeConfig>,
    /// True if requests for unknown names are refused: there are hosts, and no root is set.
    pub(crate) only_named_hosts: bool,
    pub(crate) listen: Vec<Address>,
    /// True if `listen` is only the default, which sockets from systemd replace.
    pub(crate) listen_is_default: bool,
    /// Peers that name their clients, and the protocol for it.
    pub(crate) proxies: Networks,
    pub(crate) proxy_header: ProxyHeader,
    /// Addresses whose requests are redirected to HTTPS.
    pub(crate) https_redirect: Vec<Address>,
    /// HTTPS port for clients, if it is not that of `listen`.
    pub(crate) https_port: Option<u16>,
    /// Value of `Strict-Transport-Security`.
    pub(crate) hsts: Option<String>,
    pub(crate) http2: bool,
    pub(crate) redirects: Vec<RedirectSource>,
    /// Mail address of the ACME account; `None`: off.
    pub(crate) acme: Option<String>,
    /// Names of the server's certificate by ACME.
    pub(crate) acme_names: Vec<HostName>,
    /// Address of the authority.
    pub(crate) acme_directory: String,
    pub(crate) acme_state: Option<PathBuf>,
    /// File of an account that the authority issued outside of ACME.
    pub(crate) acme_external: Option<PathBuf>,
    pub(crate) tls_cert: Vec<PathBuf>,
    /// Keys of the certificates, in the same order; none if they share their files.
    pub(crate) tls_key: Vec<PathBuf>,
    pub(crate) tls_ticket_keys: Vec<PathBuf>,
    /// Authorities of the clients' certificates.
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// True if clients without a certificate are also served.
    pub(crate) tls_client_is_optional: bool,
    /// True if that was set explicitly.
    pub(crate) names_client_auth: bool,
    pub(crate) index: Vec<String>,
    /// `None` sends no `Server` field.
    pub(crate) server_name: Option<String>,
    pub(crate) max_connections: Option<NonZeroUsize>,
    pub(crate) memory_budget_bytes: Option<u64>,
    pub(crate) memory_file_max_bytes: Option<u64>,
    pub(crate) request_limits: web::RequestLimits,
    pub(crate) limit_requests: Option<Rate>,
    pub(crate) limit_connections: Option<NonZeroUsize>,
    pub(crate) limit_prefix: PrefixLen,
    pub(crate) limit_exempt: Networks,
    /// Time-outs and minimum rate of connections; the rest is derived at start.
    pub(crate) connection_limits: ::serve::limits::Limits,
    /// `None`: off.
    pub(crate) access_log: Option<Target>,
    pub(crate) access_log_is_default: bool,
    pub(crate) log_format: LogFormat,
    pub(crate) config: Option<PathBuf>,
    pub(crate) quiet: bool,
    pub(crate) color: Color,
}

/// Header with which proxies name their clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ProxyHeader {
    #[default]
    XForwardedFor,
    Forwarded,
    Protocol,
    ProtocolIfPresent,
}

impl AsMut<Common> for ServeConfig {
    fn as_mut(&mut self) -> &mut Common {
        &mut self.common
    }
}

impl AsMut<EngineChoice> for ServeConfig {
    fn as_mut(&mut self) -> &mut EngineChoice {
        &mut self.common.engine
    }
}

impl Config for ServeConfig {
    const GROUPS: &'static [Group<ServeConfig>] = &[
        group("Site", SITE),
        group("Listen", LISTEN),
        group("Replies", REPLIES),
        group("TLS", TLS),
        group("Limits", LIMITS),
        group("Log", LOG),
        group("Process", PROCESS),
        group("Engine", ENGINE),
    ];
    const LISTED: Rows = FILE;
    const HAS_FILE: bool = true;

    fn conclude(&mut self, said: &Layer) {
        self.listen_is_default = !said.contains_key("listen");
        self.access_log_is_default = !said.contains_key("access-log");
        let auth = said.get("tls-client-auth");
        self.names_client_auth = auth.is_some_and(|said| !said.is_empty());
        self.only_named_hosts = said.contains_key(HOST) && !said.contains_key("root");
    }

    fn add_host(&mut self, host: ServeConfig) {
        self.hosts.push(host);
    }
}

impl ServeConfig {
    /// True if there is a certificate, of the server or of a host.
    pub(crate) fn has_tls(&self) -> bool {
        self.all().any(|host| !host.tls_cert.is_empty() || !host.names_for_acme().is_empty())
    }

    /// Names for which this host, or the top level, gets an ACME certificate.
    pub(crate) fn names_for_acme(&self) -> Vec<&HostName> {
        let is_host = !self.names.is_empty();
        if self.acme.is_none() || is_host && !self.tls_cert.is_empty() {
            Vec::new()
        } else if is_host {
            self.names.iter().chain(&self.aliases).collect()
        } else {
            self.acme_names.iter().collect()
        }
    }

    /// The top level, followed by the hosts.
    pub(crate) fn all(&self) -> impl Iterator<Item = &ServeConfig> {
        [self].into_iter().chain(&self.hosts)
    }

    /// The file of the access log, if its target is a file.
    pub(crate) fn log_file(&self) -> Option<&PathBuf> {
        match &self.access_log {
            Some(Target::File(path)) => Some(path),
            _ => None,
        }
    }

    /// With clean URLs, the names of index files.
    pub(crate) fn pages(&self) -> Option<&[String]> {
        self.site.clean_urls.then_some(&self.index[..])
    }

    /// Files of redirects of this host, or of the top level.
    pub(crate) fn redirect_files(&self) -> impl Iterator<Item = &PathBuf> {
        self.redirects.iter().filter_map(|source| match source {
            RedirectSource::File(path) => Some(path),
            RedirectSource::Rule(_) => None,
        })
    }

    /// The configurations with a site: the default host's, if there is one, and those of named
    /// hosts.
    pub(crate) fn sites(&self) -> impl Iterator<Item = &ServeConfig> {
        let default = (!self.only_named_hosts).then_some(self);
        default.into_iter().chain(&self.hosts)
    }

    /// Networks without limits: the configured ones, and the proxies, each of which carries the
    /// connections of many clients.
    pub(crate) fn without_limits(&self) -> Networks {
        let lists = [&self.limit_exempt.list[..], &self.proxies.list];
        Networks { list: lists.concat(), has_unix: true }
    }
}

type Rows = &'static [Setting<ServeConfig>];

const fn group(heading: &'static str, rows: Rows) -> Group<ServeConfig> {
    Group { heading, rows }
}

const fn set(name: &'static str) -> Setting<ServeConfig> {
    Setting::new(name)
}

const SITE: Rows = &[
    set("root")
        .argument("DIR", put!(site.root = as_typed))
        .hinted(ValueHint::DirPath)
        .starts_as(".")
        .per_host()
        .help("The directory to serve"),
    set("index")
        .adds("NAME", put!(index += value::file_name))
        .starts_as("index.html")
        .per_host()
        .help("Index file of a directory; may be repeated")
        .more("The first that exists is used."),
    set("listing")
        .switches(|config, on| config.site.listing = on)
        .per_host()
        .help("List directories that have no index file")
        .more("An HTML page, or JSON for programs that ask for it (Accept: application/json)."),
    set("clean-urls")
        .switches(|config, on| config.site.clean_urls = on)
        .per_host()
        .help("Serve about.html at /about")
        .more(
            "As the exports of Hugo, Astro, Next and Docusaurus expect. /about.html and \
             /about/index.html are redirected to the one address of the page.",
        ),
    set("spa")
        .file("FILE", put!(site.spa_fallback = Some as_typed))
        .per_host()
        .help("Answer unknown paths with this file and status 200")
        .more("For single-page applications. The path is relative to DIR."),
    set("error-page")
        .adds("STATUS=FILE", put!(site.error_pages += value::error_page))
        .or_table("error_pages")
        .per_host()
        .help("Page for a status, such as 404=404.html; may be repeated")
        .more(
            "The path is relative to DIR, unless it begins with a slash. Without one for 404, \
             DIR/404.html is used if it exists.",
        ),
    set("hidden")
        .switches(|config, on| config.site.hidden = on)
        .per_host()
        .help("Serve files whose name begins with a dot")
        .more("Without it, clients get 404 for .git or .env. /.well-known/ is always served."),
    set("deny")
        .adds("GLOB", put!(site.deny += value::deny))
        .by_line()
        .per_host()
        .rare()
        .help("Answer paths that match a glob with 404; may be repeated")
        .more("Such as '*.sql' or '/drafts/**'; of a directory, also what is in it."),
    set("basic-auth")
        .adds("GLOB=FILE", put!(site.basic_auth += value::basic_auth))
        .by_line()
        .or_table("basic_auth")
        .per_host()
        .rare()
        .help("Ask for a password from FILE where a glob matches; may be repeated")
        .more(
            "Such as '/private/**=/etc/weft/passwords'. FILE has lines of NAME:HASH with bcrypt \
             (htpasswd -B), SHA-crypt or argon2. It is read again when it changes; after a mistake \
             the old users stay.",
        ),
    set("follow-links")
        .switches(|config, on| config.site.follow_links_out = on)
        .per_host()
        .help("Follow symbolic links that lead out of DIR")
        .more("Links that stay inside are always followed if they are relative."),
];

const LISTEN: Rows = &[
    set("listen")
        .adds("ADDR", put!(listen += address))
        .short('l')
        .starts_as("127.0.0.1:8080")
        .help("Address to listen on; may be repeated")
        .more(
            "127.0.0.1:8080 is this machine only, 8080 or :8080 is every interface (IPv4 and \
             IPv6), unix:/run/weft.sock is a Unix socket (?mode=0660 sets its mode). Sockets \
             passed by systemd replace the default.",
        ),
    set("admin")
        .adds("ADDR", put!(common.admin += address))
        .help("Address of /metrics, /healthz and /fibers; may be repeated")
        .more(
            "Written as for --listen. /metrics is in the format of Prometheus; /fibers needs \
             --engine fiber. The site is not served there, nor these pages on --listen.",
        ),
    set("proxy-from")
        .adds("NETWORK|unix", |config, text| add_network(&mut config.proxies, text))
        .help("Trusted proxies, which name the client's address; may be repeated")
        .more(
            "10.0.0.0/8, 2001:db8::/32, one address, or unix for Unix sockets. Their \
             X-Forwarded-For is believed, read from its end up to the first address that is no \
             proxy's, and so is X-Forwarded-Proto: https; with proxy_header in the file Forwarded \
             or the PROXY protocol. Log, limits and redirects use that address.",
        ),
];

/// Rows of the file and the environment without flags, and those for `[[host]]` only.
const FILE: Rows = &[
    set("names")
        .adds("NAME", put!(names += value::host_name))
        .host_only()
        .help("Names of the host, such as example.org or *.example.org; may be repeated"),
    set("aliases")
        .adds("NAME", put!(aliases += value::host_name))
        .host_only()
        .help("Names that are redirected to the first of `names`; may be repeated"),
    set("https-redirect")
        .adds("ADDR", put!(https_redirect += address_of_network))
        .help("Address of plain HTTP that is redirected to HTTPS; may be repeated"),
    set("https-port")
        .takes("PORT", put!(https_port = Some value::up_to::<65_535, _>))
        .derived("that of the first address with TLS")
        .help("Port of HTTPS for clients, if a container or a router maps it"),
    set("hsts")
        .takes("VALUE", put!(hsts = Some value::hsts))
        .per_host()
        .help("Strict-Transport-Security of replies over TLS"),
    set("http2")
        .chooses(HTTP2, put!(http2 = value::switch))
        .starts_as("on")
        .reloads()
        .help("HTTP/2, by ALPN over TLS and by prior knowledge without it"),
    set("acme-directory")
        .takes("letsencrypt|staging|URL", put!(acme_directory = value::acme_directory))
        .starts_as("letsencrypt")
        .reloads()
        .help("Authority of --acme; staging is for trials, browsers do not trust it"),
    set("acme-state")
        .takes("DIR", put!(acme_state = Some as_typed))
        .hinted(ValueHint::DirPath)
        .derived("$STATE_DIRECTORY, or /var/lib/weft")
        .help("Directory of accounts and certificates, to be kept and to be backed up"),
    set("acme-external")
        .file("FILE", put!(acme_external = Some as_typed))
        .reloads()
        .help("Key id and HMAC key of an account at the authority, if it asks for one"),
    set("cors")
        .adds("[GLOB=]ORIGIN", put!(site.cors += value::cors))
        .per_host()
        .help("Origins whose pages may use the files; may be repeated")
        .more(
            "'https://app.example.org' or 'https://*.example.org', '*' for all, '*.woff2=*' for \
             fonts. Preflight requests are answered, and replies for named origins have Vary: \
             Origin. Cookies are not allowed.",
         ),
    set("tls-ticket-keys")
        .adds("FILE", put!(tls_ticket_keys += as_typed))
        .by_line()
        .reloads()
        .help("Keys of TLS session tickets that several servers share; may be repeated")
        .more(
            "80 or 48 random bytes each, as nginx has them: openssl rand -out FILE 80. The first \
             encrypts tickets, all decrypt them. Files that change are read again. Without any, \
             keys in memory change every 12 hours.",
        ),
    set("tls-client-ca")
        .file("FILE", put!(tls_client_ca = Some as_typed))
        .reloads()
        .help("Authorities (PEM) of the certificates that clients must show, for every host")
        .more(
            "Plain addresses and Unix sockets ask for none. A file that changes is read again, and \
             no session is resumed then. Lists of revoked certificates are not read.",
        ),
    set("tls-client-auth")
        .chooses(CLIENT_AUTH, |config, text| {
            config.tls_client_is_optional = text == "optional";
            Ok(())
        })
        .starts_as("required")
        .reloads()
        .help("Clients without a certificate are refused, or served; a shown one must be valid"),
    set("proxy-header")
        .chooses(PROXY_HEADERS, |config, text| {
            config.proxy_header = match text {
                "forwarded" => ProxyHeader::Forwarded,
                "proxy-protocol" => ProxyHeader::Protocol,
                "proxy-protocol-if-present" => ProxyHeader::ProtocolIfPresent,
                _ => ProxyHeader::XForwardedFor,
            };
            Ok(())
        })
        .starts_as("x-forwarded-for")
        .help("Header with which the proxies of proxy_from name their clients")
        .more(
            "forwarded is RFC 7239. proxy-protocol is version 1 or 2, before TLS, of 4,096 bytes at \
             most: its checksum is verified, other TLVs are skipped, and LOCAL or UNKNOWN mean the \
             proxy itself. A connection without one, or with a malformed one, is closed. With \
             proxy-protocol-if-present it may be missing, as in some checks of health: only for \
             proxies that send one on every connection of a client.",
        ),
    set("limit-requests")
        .takes("off|N/s [burst N]", |config, text| {
            let rate = (text != "off").then(|| value::rate(text));
            config.limit_requests = rate.transpose()?;
            Ok(())
        })
        .per_host()
        .help("Maximum rate of requests of one client address, else 429")
        .more(
            "Such as 10/s, 600/m burst 50. After a pause a whole burst may come at once; by \
             default that is the requests of one unit of time. The limit of a host counts \
             requests to that host alone. 65,536 addresses are remembered, in 512 KiB; beyond \
             that, those furthest from their limit are forgotten, so no client is refused wrongly \
             (weft_http_rate_evictions_total).",
        ),
    set("limit-connections")
        .takes(
            "N",
            put!(limit_connections = Some value::up_to::<FIBERS_MAX, _>),
        )
        .for_all_because(BEFORE_HOST)
        .help("Maximum number of open connections of one client address")
        .more("Further ones are closed. Proxies themselves have no limit."),
    set("limit-prefix")
        .takes("BITS,BITS", put!(limit_prefix = value::prefix_len))
        .starts_as("32,64")
        .for_all_because("all limits tell clients apart alike")
        .help("Prefixes of IPv4 and IPv6 that count as one address"),
    set("limit-exempt")
        .adds("NETWORK", |config, text| {
            add_network(&mut config.limit_exempt, text)
        })
        .for_all_because("all limits tell clients apart alike")
        .help("Networks without these limits; may be repeated"),
];

const CLIENT_AUTH: crate::settings::Choices = &[
    ("required", "refuse clients without one"),
    ("optional", "serve clients without one as well"),
];

const BEFORE_HOST: &str = "connections are counted before their host is known";

const HTTP2: crate::settings::Choices =
    &[("on", "clients choose the version"), ("off", "HTTP/1.1 and 1.0 only")];

const PROXY_HEADERS: crate::settings::Choices = &[
    ("x-forwarded-for", "what most proxies set"),
    ("forwarded", "RFC 7239"),
    ("proxy-protocol", "PROXY protocol, required"),
    ("proxy-protocol-if-present", "PROXY protocol, or the proxy itself"),
];

/// Parses an address whose clients can be sent to HTTPS: those of a Unix socket are proxies.
fn address_of_network(text: &str) -> Result<Address, String> {
    match address(text)? {
        Address::Unix { .. } => Err(format!(
            "'{text}' is a Unix socket, and its clients are proxies, which speak HTTPS for it: \
             write it in listen"
        )),
        other => Ok(other),
    }
}

fn add_network(networks: &mut Networks, text: &str) -> Result<(), String> {
    match text {
        "unix" => networks.has_unix = true,
        _ => networks.list.push(text.parse()?),
    }
    Ok(())
}

const REPLIES: Rows = &[
    set("header")
        .adds("RULE", put!(site.headers += value::header))
        .by_line()
        .or_table("headers")
        .per_host()
        .help("Header of replies, [GLOB=]NAME: VALUE; may be repeated")
        .more(
            "'X-Frame-Options: DENY' is for every reply, '*.woff2=Access-Control-Allow-Origin: *' \
             for files that match the glob. A glob without a slash is matched with the file's \
             name, one with a slash with the whole path: '/assets/**'. The last rule that matches \
             wins.",
        ),
    set("cache")
        .adds("GLOB=VALUE", put!(site.cache_rules += value::cache))
        .by_line()
        .or_table("cache")
        .per_host()
        .help("Cache-Control of files that match a glob; may be repeated")
        .more("Such as '/assets/**=max-age=31536000, immutable'. The last rule that matches wins."),
    set("redirect")
        .adds("FROM=TO", put!(redirects += value::redirect))
        .by_line()
        .or_table("redirects")
        .per_host()
        .help("Redirect of a path, such as '/old/*=/new/:splat'; may be repeated")
        .more(
            "'FROM=TO STATUS' sets the status: 301 (the default), 302, 303, 307, 308, or 200 for \
             the file at another path. A value without '=' is a file of lines '/from /to \
             [STATUS]', as _redirects of Netlify and Cloudflare Pages. The first rule that \
             matches holds, before the files. The query is kept.",
        ),
    set("mime-type")
        .adds("GLOB=TYPE", put!(site.mime_types += value::mime_type))
        .by_line()
        .or_table("mime_types")
        .per_host()
        .help("Content-Type, such as webc=text/html; may be repeated")
        .more(
            "By extension, by file name (apple-app-site-association=application/json) or by glob \
             ('/api/**=application/json'). The last rule that matches wins.",
        ),
    set("etag")
        .chooses(ETAG_KINDS, |config, text| {
            config.site.etag = match text {
                "mtime" => EtagKind::Mtime,
                "off" => EtagKind::Off,
                _ => EtagKind::Inode,
            };
            Ok(())
        })
        .starts_as("inode")
        .per_host()
        .help("Source of ETags, beside the file's length")
        .more(
            "inode is a hash of inode number, change time and modification time: it differs \
             between any two states of a file. mtime is the modification time alone, for several \
             servers with the same files behind a load balancer.",
        ),
    set("precompressed")
        .switches(|config, on| config.site.precompressed = on)
        .starts_as("true")
        .per_host()
        .help("Do not send FILE.br, FILE.zst or FILE.gz in place of FILE")
        .more("In the file and the environment: `precompressed = false`."),
    set("compress")
        .takes("off|zstd,br,gzip", put!(site.compress = value::codings))
        .starts_as("off")
        .per_host()
        .help("Compress text files that have no compressed file beside them")
        .more(
            "Once, on a thread of its own: the first client gets what there is. Text, SVG, JSON, \
             WebAssembly and fonts of 1 KiB to 8 MiB, unless a rule says no-transform.",
        ),
    set("server-header")
        .takes("VALUE|off", |config, text| {
            config.server_name = (text != "off").then(|| text.to_owned());
            Ok(())
        })
        .starts_as("weft")
        .reloads()
        .rare()
        .help("Value of the Server header"),
];

const TLS: Rows = &[
    set("tls-cert")
        .adds("FILE", put!(tls_cert += as_typed))
        .hinted(ValueHint::FilePath)
        .by_line()
        .own_per_host()
        .help("Serve HTTPS with this certificate chain (PEM); may be repeated")
        .more(
            "For every TCP address of --listen; Unix sockets stay plain. With several, the \
             one that matches the name sent by the client (SNI) is used, else the first. Files \
             that change are read again; open connections keep their certificate.",
        ),
    set("tls-key")
        .adds("FILE", put!(tls_key += as_typed))
        .hinted(ValueHint::FilePath)
        .by_line()
        .own_per_host()
        .help("Private key of the certificate (PEM); may be repeated")
        .more(
            "One for each --tls-cert, in the same order. Without any, each key is expected in the \
             file of its certificate. All are read before --user takes effect; later they are \
             read as that user.",
        ),
    set("acme")
        .takes("MAIL|off", put!(acme = value::acme))
        .starts_as("off")
        .per_host()
        .rare()
        .help("Get certificates by ACME for hosts without --tls-cert")
        .more(
            "MAIL names the account. This agrees to the terms of service of the authority, Let's \
             Encrypt. It must reach port 80 (with https_redirect) or port 443 of each name. Until a \
             name has its certificate, TLS connections to it are refused.",
        ),
    set("acme-name")
        .adds("NAME", put!(acme_names += value::host_name))
        .reloads()
        .rare()
        .help("Name of the certificate of --acme if there is no host; may be repeated"),
    Setting::HANDSHAKE_TIMEOUT,
];

const LIMITS: Rows = &[
    set("max-connections")
        .takes("N", put!(max_connections = Some value::up_to::<FIBERS_MAX, _>))
        .derived("derived from open files and memory")
        .for_all_because(BEFORE_HOST)
        .help("Maximum number of open connections")
        .more(
            "Further connections wait in the listen queue. The server refuses to start if the \
             limit on open files is too low for this, and warns if memory is.",
        ),
    set("memory-budget")
        .takes("SIZE", put!(memory_budget_bytes = Some value::size))
        .derived("256 MiB, or a quarter of the memory if that is less")
        .reloads()
        .for_all_because("hosts share the memory")
        .help("Memory for file contents")
        .more(
            "Sizes are written 64M, 1GiB. \"Memory\" means the cgroup limit if set, otherwise \
             total RAM.",
        ),
    set("memory-file-max")
        .takes("SIZE", put!(memory_file_max_bytes = Some value::size))
        .derived("64K, or 256K with --tls-cert or --engine netstack")
        .reloads()
        .for_all_because("hosts share the memory")
        .help("Largest file that is cached in memory")
        .more(
            "Larger files are sent with sendfile(2) where that is possible: not under TLS, nor on \
             the netstack.",
        ),
    set("page-cache-budget")
        .takes("SIZE", put!(site.page_cache_budget = Some value::size))
        .derived("free memory, measured while running")
        .reloads()
        .for_all_because("hosts share the memory")
        .help("Maximum page cache for files")
        .more(
            "Files over the budget are read with O_DIRECT, so that a crawl of a huge site does not \
             evict popular files.",
        ),
    set("recheck")
        .takes("TIME", put!(site.recheck_every = value::duration))
        .starts_as("1s")
        .per_host()
        .help("Maximum age of cached file metadata")
        .more("A changed file is noticed within this time. Times are written 500ms, 10s, 2m."),
    set("max-request-line")
        .takes("SIZE", put!(request_limits.request_line_len_max = length))
        .starts_as("8K")
        .reloads()
        .for_all_because("it holds before the host is known")
        .help("Maximum length of a request line, else 414"),
    set("max-head")
        .takes("SIZE", put!(request_limits.head_len_max = length))
        .starts_as("16K")
        .for_all_because("it holds before the host is known")
        .help("Maximum length of a request head, else 431"),
    set("max-fields")
        .takes("N", put!(request_limits.field_count_max = value::up_to::<10_000, _>))
        .starts_as("100")
        .reloads()
        .for_all_because("it holds before the host is known")
        .help("Maximum number of header fields in a request, else 431"),
    set("max-body")
        .takes("SIZE", put!(request_limits.body_len_max = value::size))
        .starts_as("1M")
        .per_host()
        .help("Maximum length of a request body, else 413")
        .more("Bodies are read and discarded."),
    set("head-timeout")
        .takes("TIME", put!(connection_limits.head_timeout = value::timeout))
        .starts_as("20s")
        .for_all_because("a connection may be for several hosts")
        .help("Time to receive a request head, from its first byte")
        .more("A new connection has as much until its first byte."),
    set("body-timeout")
        .takes("TIME", put!(connection_limits.body_timeout = value::timeout))
        .starts_as("60s")
        .for_all_because("a connection may be for several hosts")
        .help("Time between two reads of a request body"),
    set("idle-timeout")
        .takes("TIME", put!(connection_limits.idle_timeout = value::timeout))
        .starts_as("75s")
        .for_all_because("a connection may be for several hosts")
        .help("Time a keep-alive connection may be idle"),
    set("send-timeout")
        .takes("TIME", put!(connection_limits.send_timeout = value::timeout))
        .starts_as("60s")
        .for_all_because("a connection may be for several hosts")
        .help("Time without progress after which a sending connection is closed"),
    set("send-rate-min")
        .takes("SIZE", put!(connection_limits.send_rate_min = value::size))
        .starts_as("500")
        .for_all_because("a connection may be for several hosts")
        .help("Minimum download rate in bytes/s; 0 is none")
        .more("Averaged over a minute; connections of slower clients are closed."),
];

const LOG: Rows = &[
    set("access-log")
        .file("off|FILE|-", |config, text| {
            config.access_log = match text {
                "off" => None,
                "" => return Err("the name is empty; write off, - or a file".to_owned()),
                "on" | "yes" | "no" | "true" | "false" | "none" | "stdout" | "stderr" | "json"
                | "combined" => {
                    return Err(format!(
                        "'{text}' is not a target of a log; write off, - for standard output, or \
                         a file (./{text} for a file of this name)"
                    ));
                }
                _ if text.ends_with(" combined") || text.ends_with(" json") => {
                    return Err(format!(
                        "'{text}' is one file; log_format = \"combined\" or \"json\" sets the \
                         format"
                    ));
                }
                target => target.parse().ok(),
            };
            Ok(())
        })
        .derived("off, or shown on a terminal")
        .help("Log of requests: off, a file, or - for standard output")
        .more(
            "SIGHUP reopens the file, for logrotate. On a terminal requests are shown, fewer than \
             all if there are too many.",
        ),
    set("log-format")
        .chooses(LOG_FORMATS, |config, text| {
            config.log_format = match text {
                "json" => LogFormat::Json,
                _ => LogFormat::Combined,
            };
            Ok(())
        })
        .starts_as("combined")
        .reloads()
        .help("Format of the log"),
];

const ETAG_KINDS: crate::settings::Choices = &[
    ("inode", "inode, change time, modification time"),
    ("mtime", "modification time, the same on all servers"),
    ("off", "no ETag"),
];

const LOG_FORMATS: crate::settings::Choices =
    &[("combined", "the format of Apache and nginx"), ("json", "one JSON object per line")];

const PROCESS: Rows = &[
    set("config")
        .file("FILE", put!(config = Some as_typed))
        .short('c')
        .help("Read settings from this TOML file")
        .more(
            "Flags override the environment, and the environment overrides the file. `weft \
             check-config FILE` checks one.",
        ),
    set("user")
        .takes("NAME[:GROUP]", put!(common.user = Some value::account))
        .hinted(ValueHint::Username)
        .short('u')
        .help("Become this user once sockets and pid file are open")
        .more(
            "For a start as root. The default group is the user's own; numbers work as well. \
             Site and logs are opened as that user, so that what works at start also works after \
             SIGHUP.",
        ),
    set("pid-file")
        .file("FILE", put!(common.pid_file = Some as_typed))
        .help("Write the process id to this file")
        .more("Removed on exit, if the account of --user is allowed to."),
    Setting::SANDBOX,
    set("drain-timeout")
        .takes("TIME", put!(common.drain_timeout = value::duration))
        .starts_as("25s")
        .help("Grace period for open requests after SIGTERM")
        .more("Also after SIGINT. A second signal stops the server at once."),
    set("quiet")
        .switches(|config, on| config.quiet = on)
        .short('q')
        .help("Print nothing at start; errors are still printed"),
    set("color")
        .chooses(Color::NAMES, |config, text| {
            config.color = Color::from_name(text);
            Ok(())
        })
        .starts_as("auto")
        .help("Colour of the output"),
];

const ENGINE: Rows = &[
    set("workers")
        .takes("N", put!(common.workers = Some value::up_to::<WORKERS_MAX, _>))
        .short('w')
        .derived("CPUs allowed by affinity and cgroup quota")
        .help("Number of worker threads")
        .more("Each is a kernel thread. No effect with --engine thread."),
    Setting::ENGINE,
];

// A head must fit into one buffer per connection, so the limit must be reasonable.
const HEAD_LEN_MAX: u64 = 1 << 20;

fn length(text: &str) -> Result<usize, String> {
    match value::size(text)? {
        bytes @ 1..=HEAD_LEN_MAX => Ok(bytes as usize),
        _ => Err(format!("'{text}' is not a length from 1 byte to 1 MiB")),
    }
}
