//! The rows of the table, and how a row is written.

use std::num::NonZeroUsize;

use ::serve::listen::{Address, AddressError};
use clap::ValueHint;
use web::LogFormat;

use super::{Default, Kind, Reload, Separator, Set, Setting};
use crate::config::{Color, ServeConfig};
use crate::engine::{self, Choices};
use crate::value;

const LISTENING: &str = "Listening";
const ENGINE: &str = "Engine";
const SITE: &str = "Site";
const REPLIES: &str = "Replies";
const LIMITS: &str = "Limits and time-outs";
const LOGS: &str = "Logs and metrics";
const PROCESS: &str = "Process";

/// The headings, in the order in which the help shows them.
#[cfg(test)]
pub(crate) const HEADINGS: [&str; 7] = [LISTENING, ENGINE, SITE, REPLIES, LIMITS, LOGS, PROCESS];

// More kernel threads or connections than this is a typing error, not a wish.
const WORKERS_MAX: usize = 1024;
const FIBERS_MAX: usize = 4_000_000;

const fn row(name: &'static str, heading: &'static str, kind: Kind) -> Setting {
    Setting {
        name,
        short: None,
        heading,
        kind,
        default: Default::Nothing,
        reload: Reload::Restart,
        help: "",
        more: "",
    }
}

const fn argument(
    name: &'static str,
    heading: &'static str,
    value: &'static str,
    set: Set,
) -> Setting {
    row(name, heading, Kind::Argument { value, set })
}

const fn switch(
    name: &'static str,
    heading: &'static str,
    set: fn(&mut ServeConfig, bool),
) -> Setting {
    row(name, heading, Kind::Switch { set }).starts_as("false")
}

const fn choice(name: &'static str, heading: &'static str, choices: Choices, set: Set) -> Setting {
    row(name, heading, Kind::Choice { choices, set })
}

const fn one(name: &'static str, heading: &'static str, value: &'static str, set: Set) -> Setting {
    let hint = ValueHint::Other;
    row(name, heading, Kind::One { value, hint, set })
}

const fn file(name: &'static str, heading: &'static str, set: Set) -> Setting {
    one(name, heading, "FILE", set).hinted(ValueHint::FilePath)
}

const fn many(name: &'static str, heading: &'static str, value: &'static str, set: Set) -> Setting {
    let (table, separator) = (None, Separator::Space);
    row(
        name,
        heading,
        Kind::Many {
            value,
            table,
            separator,
            set,
        },
    )
}

/// How a row goes on. A row begins with nothing as its default, and with a restart to apply a new
/// value.
impl Setting {
    const fn short(self, short: char) -> Setting {
        Setting {
            short: Some(short),
            ..self
        }
    }

    const fn starts_as(self, text: &'static str) -> Setting {
        Setting {
            default: Default::Text(text),
            ..self
        }
    }

    const fn derived(self, how: &'static str) -> Setting {
        Setting {
            default: Default::Derived(how),
            ..self
        }
    }

    const fn reloads(self) -> Setting {
        Setting {
            reload: Reload::Applies,
            ..self
        }
    }

    const fn help(self, help: &'static str) -> Setting {
        Setting { help, ..self }
    }

    const fn more(self, more: &'static str) -> Setting {
        Setting { more, ..self }
    }

    const fn hinted(mut self, to: ValueHint) -> Setting {
        if let Kind::One { hint, .. } = &mut self.kind {
            *hint = to;
        }
        self
    }

    const fn by_line(mut self) -> Setting {
        if let Kind::Many { separator, .. } = &mut self.kind {
            *separator = Separator::Line;
        }
        self
    }

    const fn or_table(mut self, name: &'static str) -> Setting {
        if let Kind::Many { table, .. } = &mut self.kind {
            *table = Some(name);
        }
        self
    }
}

/// Puts the value of a text, as a function reads it, into a field of the configuration.
macro_rules! put {
    ($($field:ident).+ = Some $read:expr) => {
        |config, text| {
            config.$($field).+ = Some($read(text)?);
            Ok(())
        }
    };
    ($($field:ident).+ = $read:expr) => {
        |config, text| {
            config.$($field).+ = $read(text)?;
            Ok(())
        }
    };
    ($($field:ident).+ += $read:expr) => {
        |config, text| {
            config.$($field).+.push($read(text)?);
            Ok(())
        }
    };
}

/// The table.
pub(crate) const SETTINGS: &[Setting] = &[
    argument("root", SITE, "DIR", |config, text| {
        config.root = text.into();
        Ok(())
    })
    .starts_as(".")
    .reloads()
    .help("The directory to serve"),
    many("listen", LISTENING, "ADDR", put!(listen += address))
        .short('l')
        .starts_as("127.0.0.1:8080")
        .help("Where to listen; may be repeated")
        .more(
            "127.0.0.1:8080 is this machine only, 8080 or :8080 is every interface (IPv4 and \
             IPv6), unix:/run/weft.sock is a Unix socket (?mode=0660 sets its mode). Sockets that \
             systemd passes take the place of the default.",
        ),
    many("admin", LISTENING, "ADDR", put!(admin += address))
        .help("Serve /metrics (Prometheus), /healthz and /fibers here")
        .more(
            "Written as for --listen. It is a listener of its own, so that what the site shows to \
             the world and what it tells its operator never mix.",
        ),
    file("tls-cert", LISTENING, put!(tls_cert = Some as_typed))
        .help("Serve HTTPS with the certificate chain in this PEM file")
        .more(
            "It holds at every TCP address of --listen; Unix sockets stay plain. SIGHUP reads the \
             file anew; connections that are open keep the certificate that they began with.",
        ),
    file("tls-key", LISTENING, put!(tls_key = Some as_typed))
        .help("The certificate's private key, in PEM")
        .more(
            "Without it the key is looked for in the file of --tls-cert. Both are read before \
             --user takes effect, and by that user at SIGHUP.",
        ),
    choice("engine", ENGINE, engine::ENGINES, |config, text| {
        config.engine.set("engine", text)
    })
    .starts_as("fiber")
    .help("What carries the connections")
    .more("All serve the same bytes; they differ in speed and in what a connection costs."),
    choice("io", ENGINE, engine::BACKENDS, |config, text| {
        config.engine.set("io", text)
    })
    .starts_as("auto")
    .help("How fibers do their input and output")
    .more(
        "With auto, the start-up message says which one was taken and why. `weft doctor` \
             tells what the kernel allows.",
    ),
    choice("dispatcher", ENGINE, engine::DISPATCHERS, |config, text| {
        config.engine.set("dispatcher", text)
    })
    .help("How event loops find out which connections are ready")
    .more(
        "With --engine event; epoll-edge unless said. The others are there to be compared \
             with it.",
    ),
    choice(
        "rtsig-overflow",
        ENGINE,
        engine::OVERFLOWS,
        |config, text| config.engine.set("rtsig-overflow", text),
    )
    .help("What an event loop does when the kernel's queue of signals has overflowed")
    .more("With --dispatcher rtsig; poll unless said."),
    choice("accept", ENGINE, engine::ACCEPTS, |config, text| {
        config.engine.set("accept", text)
    })
    .help("How connections come to event loops")
    .more(
        "With --engine event; own unless said. Loops share a socket that was inherited, and a \
             Unix socket, even with own.",
    ),
    choice("multi-accept", ENGINE, engine::ON_OFF, |config, text| {
        config.engine.set("multi-accept", text)
    })
    .help("Accept all connections that wait before looking around again")
    .more("With --engine event; on unless said. With off it is one at a time."),
    choice("file-threads", ENGINE, engine::ON_OFF, |config, text| {
        config.engine.set("file-threads", text)
    })
    .help("Read files that are not in memory on threads beside the event loops")
    .more(
        "With --engine event; on unless said. With off a loop waits for the disk, and its \
             connections with it.",
    ),
    one("workers", ENGINE, "N", |config, text| {
        config.workers = NonZeroUsize::new(value::count(text, 1..=WORKERS_MAX)?);
        Ok(())
    })
    .short('w')
    .derived("the CPUs that affinity and cgroup quota allow")
    .help("Processors: kernel threads that run fibers")
    .more(
        "Without effect with --engine thread, where every connection has a thread of its \
             own.",
    ),
    one("fibers", ENGINE, "N", |config, text| {
        config.fibers = NonZeroUsize::new(value::count(text, 1..=FIBERS_MAX)?);
        Ok(())
    })
    .derived("as many as there are connections")
    .help("A fixed number of connection fibers (or threads), made at start")
    .more(
        "Each accepts a connection, serves it to its end, and accepts the next; further \
             connections wait in the kernel's queue. By default they are made as they are \
             needed.",
    ),
    switch("listing", SITE, |config, on| config.listing = on)
        .reloads()
        .help("List directories that have no index file")
        .more("A page for people, JSON for programs that ask for it (Accept: application/json)."),
    switch("hidden", SITE, |config, on| config.hidden = on)
        .reloads()
        .help("Serve files whose name begins with a dot")
        .more("Off, .git and .env do not exist for a client. /.well-known/ is always served."),
    switch("follow-links", SITE, |config, on| config.follow_links = on)
        .reloads()
        .help("Follow symbolic links that leave the directory")
        .more("Links that stay inside are always followed."),
    many("index", SITE, "NAME", put!(index += value::file_name))
        .starts_as("index.html")
        .reloads()
        .help("A directory's index file; the first that exists is taken"),
    file("spa", SITE, put!(spa = Some as_typed))
        .reloads()
        .help("Answer unknown paths with this file and status 200")
        .more("For single-page applications. The path is relative to the directory served."),
    many(
        "error-page",
        SITE,
        "STATUS=FILE",
        put!(error_pages += value::error_page),
    )
    .or_table("error_pages")
    .reloads()
    .help("A page of your own for a status, such as 404=404.html")
    .more("The path is relative to the directory served."),
    switch("precompressed", REPLIES, |config, on| {
        config.precompressed = on
    })
    .starts_as("true")
    .reloads()
    .help("Do not look for FILE.br, FILE.zst and FILE.gz beside FILE")
    .more("In the file and the environment it is `precompressed = false`."),
    many(
        "header",
        REPLIES,
        "[GLOB=]NAME: VALUE",
        put!(headers += value::header),
    )
    .by_line()
    .or_table("headers")
    .reloads()
    .help("Add a header, to all replies or to those whose path the glob matches")
    .more(
        "'X-Frame-Options: DENY' is for every path, '*.woff2=Access-Control-Allow-Origin: *' \
             for some. A glob without a slash is matched with the file's name, one with a slash \
             with the whole path: '/assets/**'. Of rules for one name that match, the last \
             holds.",
    ),
    many("cache", REPLIES, "GLOB=VALUE", put!(cache += value::cache))
        .by_line()
        .or_table("cache")
        .reloads()
        .help("The Cache-Control of the files that the glob matches")
        .more(
            "Such as '/assets/**=max-age=31536000, immutable'. Of the rules that match, the last \
             holds.",
        ),
    many(
        "mime-type",
        REPLIES,
        "EXT=TYPE",
        put!(mime_types += value::mime_type),
    )
    .by_line()
    .or_table("mime_types")
    .reloads()
    .help("The Content-Type of an extension, such as webc=text/html"),
    one("server-name", REPLIES, "NAME|off", |config, text| {
        config.server_name = (text != "off").then(|| text.to_owned());
        Ok(())
    })
    .starts_as("weft")
    .reloads()
    .help("Value of the Server header"),
    one("max-connections", LIMITS, "N", |config, text| {
        config.max_connections = NonZeroUsize::new(value::count(text, 1..=FIBERS_MAX)?);
        Ok(())
    })
    .derived("what the limit on open files leaves")
    .help("Connections served at once")
    .more(
        "Further connections wait in the listen queue until another ends. With more than the \
             limit on open files leaves the server does not start.",
    ),
    one(
        "memory-budget",
        LIMITS,
        "SIZE",
        put!(memory_budget_bytes = Some value::size),
    )
    .derived("256 MiB, or a quarter of the memory if that is less")
    .reloads()
    .help("Memory for the bytes of files")
    .more(
        "Sizes are written 64M, 1GiB. The memory is the memory cgroup's limit or the \
             machine's.",
    ),
    one(
        "memory-file-max",
        LIMITS,
        "SIZE",
        put!(memory_file_max_bytes = value::size),
    )
    .starts_as("256K")
    .reloads()
    .help("Longest file that is held in memory")
    .more("Longer ones are sent from their open file."),
    one(
        "page-cache-budget",
        LIMITS,
        "SIZE",
        put!(page_cache_budget_bytes = Some value::size),
    )
    .derived("half of the memory that is free at start")
    .reloads()
    .help("How much of the files the kernel's page cache may hold")
    .more(
        "Files that find no room in it are read past it, so that a walk over a huge site does \
             not push out what is popular.",
    ),
    one(
        "recheck",
        LIMITS,
        "DURATION",
        put!(recheck = value::duration),
    )
    .starts_as("1s")
    .reloads()
    .help("How long the server may rely on what it knows of a file before it looks again")
    .more(
        "A changed file is seen after this time at the latest. Durations are written 500ms, \
             10s, 2m.",
    ),
    one(
        "max-request-line",
        LIMITS,
        "SIZE",
        put!(request_limits.request_line_len_max = length),
    )
    .starts_as("8K")
    .reloads()
    .help("Longest request line; a longer one is answered with 414"),
    one(
        "max-head",
        LIMITS,
        "SIZE",
        put!(request_limits.head_len_max = length),
    )
    .starts_as("16K")
    .help("Longest request head; a longer one is answered with 431"),
    one("max-fields", LIMITS, "N", |config, text| {
        config.request_limits.field_count_max = value::count(text, 1..=10_000)?;
        Ok(())
    })
    .starts_as("100")
    .reloads()
    .help("Largest number of header fields in a request; more are answered with 431"),
    one(
        "max-body",
        LIMITS,
        "SIZE",
        put!(request_limits.body_len_max = value::size),
    )
    .starts_as("1M")
    .reloads()
    .help("Longest request body; it is discarded, and a longer one is answered with 413"),
    one(
        "head-timeout",
        LIMITS,
        "DURATION",
        put!(head_timeout = value::timeout),
    )
    .starts_as("20s")
    .help("Time for a request's head to arrive, from its first byte"),
    one(
        "body-timeout",
        LIMITS,
        "DURATION",
        put!(body_timeout = value::timeout),
    )
    .starts_as("60s")
    .help("Time between two pieces of a request's body"),
    one(
        "idle-timeout",
        LIMITS,
        "DURATION",
        put!(idle_timeout = value::timeout),
    )
    .starts_as("75s")
    .help("Time a kept-alive connection may be silent between requests"),
    one(
        "send-timeout",
        LIMITS,
        "DURATION",
        put!(send_timeout = value::timeout),
    )
    .starts_as("60s")
    .help("Time in which a client must take something of a reply"),
    one(
        "send-rate-min",
        LIMITS,
        "SIZE",
        put!(send_rate_min_bytes_per_s = value::size),
    )
    .starts_as("500")
    .help("Bytes per second that a client must take of a long reply; 0 turns it off")
    .more("Averaged over a minute."),
    one(
        "drain-timeout",
        LIMITS,
        "DURATION",
        put!(drain_timeout = value::duration),
    )
    .starts_as("25s")
    .help("Time for open requests to end after SIGTERM or SIGINT")
    .more("A second signal ends the server at once."),
    one("access-log", LOGS, "off|FILE|-", |config, text| {
        config.access_log = match text {
            "off" => None,
            "" => return Err("the name is empty; write off, - or a file".to_owned()),
            target => target.parse().ok(),
        };
        Ok(())
    })
    .hinted(ValueHint::FilePath)
    .starts_as("off")
    .help("Where requests are logged: off, a file, or - for standard output")
    .more("SIGHUP opens the same file anew, as logrotate needs it."),
    choice(
        "log-format",
        LOGS,
        &[
            ("combined", "the format of Apache and nginx"),
            ("json", "one JSON object per line"),
        ],
        |config, text| {
            config.log_format = if text == "json" {
                LogFormat::Json
            } else {
                LogFormat::Combined
            };
            Ok(())
        },
    )
    .starts_as("combined")
    .reloads()
    .help("How a request is logged"),
    file("config", PROCESS, put!(config = Some as_typed))
        .short('c')
        .help("Read settings from this TOML file")
        .more(
            "Flags override the environment, and the environment overrides the file. `weft \
             check-config FILE` checks one.",
        ),
    one(
        "user",
        PROCESS,
        "NAME[:GROUP]",
        put!(user = Some value::account),
    )
    .hinted(ValueHint::Username)
    .help("Become this user once the sockets and the pid file are open")
    .more(
        "For a start as root. The group is the user's own if not given; numbers work as well. \
             Site and logs are opened as that user, so that what works at start also works at \
             SIGHUP.",
    ),
    file("pid-file", PROCESS, put!(pid_file = Some as_typed)).help("Write the process id here"),
    switch("quiet", PROCESS, |config, on| config.quiet = on)
        .short('q')
        .help("Print nothing at start; errors are still printed"),
    choice(
        "color",
        PROCESS,
        &[
            ("auto", "on a terminal, unless NO_COLOR is set"),
            ("always", "always"),
            ("never", "never"),
        ],
        |config, text| {
            config.color = Color::from_name(text);
            Ok(())
        },
    )
    .starts_as("auto")
    .help("Colour of what is printed"),
];

fn address(text: &str) -> Result<Address, String> {
    text.parse()
        .map_err(|error: AddressError| error.to_string())
}

// A head lies in one buffer per connection, so it has to have a sane end.
const HEAD_LEN_MAX: u64 = 1 << 20;

fn length(text: &str) -> Result<usize, String> {
    match value::size(text)? {
        bytes @ 1..=HEAD_LEN_MAX => Ok(bytes as usize),
        _ => Err(format!("'{text}' is not a length from 1 byte to 1 MiB")),
    }
}

fn as_typed<T: for<'a> From<&'a str>>(text: &str) -> Result<T, String> {
    Ok(text.into())
}
