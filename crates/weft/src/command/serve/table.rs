//! What `weft serve` can be told.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use ::serve::access_log::Target;
use ::serve::listen::Address;
use clap::ValueHint;
use web::{CacheRule, EtagKind, HeaderRule, LogFormat};

use crate::common::{Common, FIBERS_MAX, WORKERS_MAX, address, as_typed};
use crate::engine;
use crate::paint::Color;
use crate::settings::layers::Layer;
use crate::settings::{Config, Group, Setting, put};
use crate::value;

/// What `weft serve` shall do. What is `None` is derived from the machine at start, unless it says
/// something else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServeConfig {
    pub(crate) common: Common,
    pub(crate) root: PathBuf,
    pub(crate) listen: Vec<Address>,
    /// Whether `listen` is only the default, which sockets from systemd replace.
    pub(crate) listen_is_default: bool,
    pub(crate) tls_cert: Vec<PathBuf>,
    /// As many, in the same order; or none, if keys and certificates share their files.
    pub(crate) tls_key: Vec<PathBuf>,
    pub(crate) fibers: Option<NonZeroUsize>,
    pub(crate) listing: bool,
    pub(crate) hidden: bool,
    pub(crate) follow_links: bool,
    pub(crate) index: Vec<String>,
    pub(crate) spa: Option<String>,
    pub(crate) error_pages: Vec<(u16, PathBuf)>,
    pub(crate) precompressed: bool,
    pub(crate) headers: Vec<HeaderRule>,
    pub(crate) cache: Vec<CacheRule>,
    pub(crate) mime_types: Vec<(String, String)>,
    pub(crate) etag: EtagKind,
    /// `None` sends no `Server` field.
    pub(crate) server_name: Option<String>,
    pub(crate) max_connections: Option<NonZeroUsize>,
    pub(crate) memory_budget_bytes: Option<u64>,
    pub(crate) memory_file_max_bytes: Option<u64>,
    pub(crate) page_cache_budget_bytes: Option<u64>,
    pub(crate) request_limits: web::RequestLimits,
    pub(crate) recheck: Duration,
    pub(crate) head_timeout: Duration,
    pub(crate) body_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    pub(crate) send_timeout: Duration,
    pub(crate) send_rate_min_bytes_per_s: u64,
    /// `None` is off.
    pub(crate) access_log: Option<Target>,
    pub(crate) access_log_is_default: bool,
    pub(crate) log_format: LogFormat,
    pub(crate) config: Option<PathBuf>,
    pub(crate) quiet: bool,
    pub(crate) color: Color,
}

impl AsMut<Common> for ServeConfig {
    fn as_mut(&mut self) -> &mut Common {
        &mut self.common
    }
}

impl Config for ServeConfig {
    const GROUPS: &'static [Group<ServeConfig>] = &[
        group("Listening", LISTENING),
        group("Engine", Setting::ENGINE),
        group("Engine", ENGINE),
        group("Netstack", Setting::NETSTACK),
        group("Site", SITE),
        group("Replies", REPLIES),
        group("Limits and time-outs", LIMITS),
        group("Logs and metrics", LOGS),
        group("Process", PROCESS),
    ];
    const HAS_FILE: bool = true;

    fn conclude(&mut self, said: &Layer) {
        self.listen_is_default = !said.contains_key("listen");
        self.access_log_is_default = !said.contains_key("access-log");
    }
}

type Rows = &'static [Setting<ServeConfig>];

const fn group(heading: &'static str, rows: Rows) -> Group<ServeConfig> {
    Group { heading, rows }
}

const fn set(name: &'static str) -> Setting<ServeConfig> {
    Setting::new(name)
}

const LISTENING: Rows = &[
    set("listen")
        .adds("ADDR", put!(listen += address))
        .short('l')
        .starts_as("127.0.0.1:8080")
        .help("Where to listen; may be repeated")
        .more(
            "127.0.0.1:8080 is this machine only, 8080 or :8080 is every interface (IPv4 and \
             IPv6), unix:/run/weft.sock is a Unix socket (?mode=0660 sets its mode). Sockets that \
             systemd passes take the place of the default.",
        ),
    set("admin")
        .adds("ADDR", put!(common.admin += address))
        .help("Serve /metrics (Prometheus), /healthz and, with fibers, /fibers here")
        .more(
            "Written as for --listen; may be repeated. It is a listener of its own, so that what the \
             site shows to the world and what it tells its operator never mix.",
        ),
    set("tls-cert")
        .adds("FILE", put!(tls_cert += as_typed))
        .hinted(ValueHint::FilePath)
        .by_line()
        .help("Serve HTTPS with the certificate chain in this PEM file; may be repeated")
        .more(
            "It applies to every TCP address of --listen; Unix sockets stay plain. Of several, a \
             client gets the first that is for the name that it asks for (SNI), or else the first. \
             SIGHUP reads the files again; open connections keep the certificate that they began \
             with.",
        ),
    set("tls-key")
        .adds("FILE", put!(tls_key += as_typed))
        .hinted(ValueHint::FilePath)
        .by_line()
        .help("The certificate's private key, in PEM; may be repeated")
        .more(
            "One for each --tls-cert, in the same order. Without any, each key is looked for in the \
             file of its certificate. All are read before --user takes effect, and by that user at \
             SIGHUP.",
        ),
];

const ENGINE: Rows = &[
    set("file-threads")
        .chooses(engine::ON_OFF, |config, text| {
            config.common.engine.file_threads = Some(text == "on");
            Ok(())
        })
        .derived("on")
        .on_engines(&["event"])
        .help("Read files that are not in memory on threads beside the event loops")
        .more("With off a loop waits for the disk, and its connections with it."),
    set("workers")
        .takes(
            "N",
            put!(common.workers = Some value::up_to::<WORKERS_MAX, _>),
        )
        .short('w')
        .derived("the CPUs that affinity and cgroup quota allow")
        .on_engines(engine::WITH_WORKERS)
        .or_noted()
        .help("Kernel threads: processors that run fibers, or event loops"),
    set("fibers")
        .takes("N", put!(fibers = Some value::up_to::<FIBERS_MAX, _>))
        .derived("as many as there are connections")
        .on_engines(&["fiber", "thread"])
        .help("A fixed number of connection fibers (or threads), made at start")
        .more(
            "Each accepts a connection, serves it to its end, and accepts the next; further \
             connections wait in the kernel's queue. By default they are made as they are needed.",
        ),
];

const SITE: Rows = &[
    set("root")
        .argument("DIR", put!(root = as_typed))
        .hinted(ValueHint::DirPath)
        .starts_as(".")
        .reloads()
        .help("The directory to serve"),
    set("listing")
        .switches(|config, on| config.listing = on)
        .starts_as("false")
        .reloads()
        .help("List directories that have no index file")
        .more("A page for people, JSON for programs that ask for it (Accept: application/json)."),
    set("hidden")
        .switches(|config, on| config.hidden = on)
        .starts_as("false")
        .reloads()
        .help("Serve files whose name begins with a dot")
        .more("Off, .git and .env do not exist for a client. /.well-known/ is always served."),
    set("follow-links")
        .switches(|config, on| config.follow_links = on)
        .starts_as("false")
        .reloads()
        .help("Follow symbolic links that leave the directory")
        .more("Links that stay inside are always followed."),
    set("index")
        .adds("NAME", put!(index += value::file_name))
        .starts_as("index.html")
        .reloads()
        .help("A directory's index file; may be repeated")
        .more("The first that exists is taken."),
    set("spa")
        .file("FILE", put!(spa = Some as_typed))
        .reloads()
        .help("Answer unknown paths with this file and status 200")
        .more("For single-page applications. The path is relative to the directory served."),
    set("error-page")
        .adds("STATUS=FILE", put!(error_pages += value::error_page))
        .or_table("error_pages")
        .reloads()
        .help("A page of your own for a status, such as 404=404.html; may be repeated")
        .more(
            "The path is relative to the directory served, unless it begins with a slash. If there \
             is none for 404, and the directory has a 404.html, that is taken.",
        ),
];

const REPLIES: Rows = &[
    set("precompressed")
        .switches(|config, on| config.precompressed = on)
        .starts_as("true")
        .reloads()
        .help("Do not send FILE.br, FILE.zst or FILE.gz when FILE is asked for")
        .more("In the file and the environment it is `precompressed = false`."),
    set("header")
        .adds("[GLOB=]NAME: VALUE", put!(headers += value::header))
        .by_line()
        .or_table("headers")
        .reloads()
        .help("Add a header to all replies, or to files that a glob matches; may be repeated")
        .more(
            "'X-Frame-Options: DENY' is for every reply, '*.woff2=Access-Control-Allow-Origin: *' \
             for those about some files. A glob without a slash is matched with the file's name, one with a slash \
             with the whole path: '/assets/**'. Of rules for one name that match, the last holds.",
        ),
    set("cache")
        .adds("GLOB=VALUE", put!(cache += value::cache))
        .by_line()
        .or_table("cache")
        .reloads()
        .help("The Cache-Control of the files that the glob matches; may be repeated")
        .more(
            "Such as '/assets/**=max-age=31536000, immutable'. Of the rules that match, the last \
             holds.",
        ),
    set("mime-type")
        .adds("GLOB=TYPE", put!(mime_types += value::mime_type))
        .by_line()
        .or_table("mime_types")
        .reloads()
        .help("The Content-Type of an extension, such as webc=text/html; may be repeated")
        .more(
            "Or of a file's whole name, as apple-app-site-association=application/json, or of what a \
             glob matches: '/api/**=application/json'. Of the rules that match, the last holds.",
        ),
    set("etag")
        .chooses(ETAG_KINDS, |config, text| {
            config.etag = match text {
                "mtime" => EtagKind::Mtime,
                "off" => EtagKind::Off,
                _ => EtagKind::Inode,
            };
            Ok(())
        })
        .starts_as("inode")
        .reloads()
        .help("What the ETag of a file is made of, beside its length")
        .more(
            "inode is a hash of inode number, change time and modification time, and is never the \
             same for two states of a file. mtime is the modification time alone, for several \
             servers with the same files behind one load balancer.",
        ),
    set("server-name")
        .takes("NAME|off", |config, text| {
            config.server_name = (text != "off").then(|| text.to_owned());
            Ok(())
        })
        .starts_as("weft")
        .reloads()
        .help("Value of the Server header"),
];

const LIMITS: Rows = &[
    set("max-connections")
        .takes("N", put!(max_connections = Some value::up_to::<FIBERS_MAX, _>))
        .derived("what open files and memory leave")
        .help("Connections served at once")
        .more(
            "Further connections wait in the listen queue until another ends. With more than the \
             limit on open files leaves the server does not start; more than may fit into the \
             memory, or into the memory cgroup, is warned of.",
        ),
    set("memory-budget")
        .takes("SIZE", put!(memory_budget_bytes = Some value::size))
        .derived("256 MiB, or a quarter of the memory if that is less")
        .reloads()
        .help("Memory for the bytes of files")
        .more(
            "Sizes are written 64M, 1GiB. The memory is the memory cgroup's limit or the machine's.",
        ),
    set("memory-file-max")
        .takes("SIZE", put!(memory_file_max_bytes = Some value::size))
        .derived("64K, or 256K with --tls-cert or --engine netstack")
        .reloads()
        .help("Longest file that is held in memory")
        .more(
            "Longer ones are sent from their open file, by the kernel where it can: under TLS and \
             on the netstack it cannot.",
        ),
    set("page-cache-budget")
        .takes("SIZE", put!(page_cache_budget_bytes = Some value::size))
        .derived("what the memory leaves, looked at while running")
        .reloads()
        .help("How much of the files the kernel's page cache may hold")
        .more(
            "Files that find no room in it are read past it, so that a walk over a huge site does \
             not push out what is popular.",
        ),
    set("recheck")
        .takes("DURATION", put!(recheck = value::duration))
        .starts_as("1s")
        .reloads()
        .help("How long the server may rely on what it knows of a file before it looks again")
        .more(
            "A changed file is seen after this time at the latest. Durations are written 500ms, \
             10s, 2m.",
        ),
    set("max-request-line")
        .takes("SIZE", put!(request_limits.request_line_len_max = length))
        .starts_as("8K")
        .reloads()
        .help("Longest request line; a longer one is answered with 414"),
    set("max-head")
        .takes("SIZE", put!(request_limits.head_len_max = length))
        .starts_as("16K")
        .help("Longest request head; a longer one is answered with 431"),
    set("max-fields")
        .takes("N", put!(request_limits.field_count_max = value::up_to::<10_000, _>))
        .starts_as("100")
        .reloads()
        .help("Largest number of header fields in a request; more are answered with 431"),
    set("max-body")
        .takes("SIZE", put!(request_limits.body_len_max = value::size))
        .starts_as("1M")
        .reloads()
        .help("Longest request body; it is discarded, and a longer one is answered with 413"),
    Setting::HANDSHAKE_TIMEOUT,
    set("head-timeout")
        .takes("DURATION", put!(head_timeout = value::timeout))
        .starts_as("20s")
        .help("Time for a request's head to arrive, from its first byte"),
    set("body-timeout")
        .takes("DURATION", put!(body_timeout = value::timeout))
        .starts_as("60s")
        .help("Time between two pieces of a request's body"),
    set("idle-timeout")
        .takes("DURATION", put!(idle_timeout = value::timeout))
        .starts_as("75s")
        .help("Time a kept-alive connection may be silent between requests"),
    set("send-timeout")
        .takes("DURATION", put!(send_timeout = value::timeout))
        .starts_as("60s")
        .help("Time in which a client must take something of a reply"),
    set("send-rate-min")
        .takes("SIZE", put!(send_rate_min_bytes_per_s = value::size))
        .starts_as("500")
        .help("Bytes per second that a client must take of a long reply; 0 turns it off")
        .more("Averaged over a minute."),
    set("drain-timeout")
        .takes("DURATION", put!(common.drain_timeout = value::duration))
        .starts_as("25s")
        .help("Time for open requests to end after SIGTERM or SIGINT")
        .more("A second signal ends the server at once."),
];

const LOGS: Rows = &[
    set("access-log")
        .file("off|FILE|-", |config, text| {
            config.access_log = match text {
                "off" => None,
                "" => return Err("the name is empty; write off, - or a file".to_owned()),
                "on" | "yes" | "no" | "true" | "false" | "none" | "stdout" | "stderr" | "json"
                | "combined" => {
                    return Err(format!(
                        "'{text}' is no place for a log; write off, - for standard output, or a \
                         file (./{text} for one of this name)"
                    ));
                }
                target => target.parse().ok(),
            };
            Ok(())
        })
        .derived("off, or shown on a terminal")
        .help("Where requests are logged: off, a file, or - for standard output")
        .more(
            "SIGHUP reopens the file, for logrotate. What a terminal shows is a line for each \
             request, as many as it can take.",
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
        .help("How a request is logged"),
];

const ETAG_KINDS: crate::settings::Choices = &[
    ("inode", "inode, change time, modification time"),
    ("mtime", "modification time, the same on all servers"),
    ("off", "no ETag"),
];

const LOG_FORMATS: crate::settings::Choices = &[
    ("combined", "the format of Apache and nginx"),
    ("json", "one JSON object per line"),
];

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
        .help("Become this user once the sockets and the pid file are open")
        .more(
            "For a start as root. The group is the user's own if not given; numbers work as well. \
             Site and logs are opened as that user, so that what works at start also works at \
             SIGHUP.",
        ),
    set("pid-file")
        .file("FILE", put!(common.pid_file = Some as_typed))
        .help("Write the process id here")
        .more("It goes at the end if the user of --user may remove it, and stays otherwise."),
    set("quiet")
        .switches(|config, on| config.quiet = on)
        .starts_as("false")
        .short('q')
        .help("Print nothing at start; errors are still printed"),
    set("color")
        .chooses(Color::NAMES, |config, text| {
            config.color = Color::from_name(text);
            Ok(())
        })
        .starts_as("auto")
        .help("Colour of what is printed"),
];

// A head lies in one buffer per connection, so it has to have a sane end.
const HEAD_LEN_MAX: u64 = 1 << 20;

fn length(text: &str) -> Result<usize, String> {
    match value::size(text)? {
        bytes @ 1..=HEAD_LEN_MAX => Ok(bytes as usize),
        _ => Err(format!("'{text}' is not a length from 1 byte to 1 MiB")),
    }
}
