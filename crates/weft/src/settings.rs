//! The one table of what can be set for `weft serve`.
//!
//! Each row is a flag (`--access-log`), a key of the configuration file (`access_log`) and an
//! environment variable (`WEFT_ACCESS_LOG`), with one parser and one help text. Help, man page,
//! completions, the manual's table and the check of the file's keys all come from here, so they
//! cannot disagree.

use std::num::NonZeroUsize;

use ::serve::listen::{Address, AddressError};
use clap::ValueHint;
use web::LogFormat;

use crate::config::{Color, ServeConfig};
use crate::engine::{self, Choices};
use crate::value;

/// One thing that can be set.
pub(crate) struct Setting {
    /// Name with hyphens, as in the flag.
    pub(crate) name: &'static str,
    /// The one-letter flag.
    pub(crate) short: Option<char>,
    /// Under which heading the help shows it.
    pub(crate) heading: &'static str,
    /// What it takes and how that gets into the configuration.
    pub(crate) kind: Kind,
    /// What holds when nothing is said.
    pub(crate) default: Default,
    /// Whether `SIGHUP` applies a new value.
    pub(crate) reload: Reload,
    /// One line, no full stop.
    pub(crate) help: &'static str,
    /// The rest of what is worth knowing, or "".
    pub(crate) more: &'static str,
}

/// What a setting takes.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// The directory, which is no flag but the command's argument.
    Argument { value: &'static str, set: Set },
    /// `--name` and `--no-name`.
    Switch { set: fn(&mut ServeConfig, bool) },
    /// One of some words.
    Choice {
        choices: &'static [(&'static str, &'static str)],
        set: Set,
    },
    /// One value.
    One {
        value: &'static str,
        hint: ValueHint,
        set: Set,
    },
    /// A list; `set` adds to it. `table` is the name of a table in the file which says the same as
    /// `KEY=VALUE`; `separator` is how an environment variable holds several.
    Many {
        value: &'static str,
        table: Option<&'static str>,
        separator: Separator,
        set: Set,
    },
}

/// Puts one text into the configuration.
pub(crate) type Set = fn(&mut ServeConfig, &str) -> Result<(), String>;

/// How an environment variable holds a list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Separator {
    /// White space between them.
    Space,
    /// One per line, because the values have spaces.
    Line,
}

/// What holds when nothing is said.
#[derive(Clone, Copy)]
pub(crate) enum Default {
    /// This text, as if it had been typed.
    Text(&'static str),
    /// Worked out from the machine; the words say how.
    Derived(&'static str),
    /// Nothing.
    Nothing,
}

/// Whether a running server takes a new value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reload {
    /// At the next `SIGHUP`.
    Applies,
    /// Only a restart.
    Restart,
}

impl Setting {
    /// Its key in the configuration file: `access_log`.
    pub(crate) fn key(&self) -> String {
        self.name.replace('-', "_")
    }

    /// The table of the configuration file that says the same, if there is one: `error_pages`.
    pub(crate) fn table(&self) -> Option<&'static str> {
        match self.kind {
            Kind::Many { table, .. } => table,
            _ => None,
        }
    }

    /// Its environment variable: `WEFT_ACCESS_LOG`.
    pub(crate) fn env(&self) -> String {
        format!("WEFT_{}", self.key().to_ascii_uppercase())
    }

    /// How it is typed: `--access-log`; the argument is not a flag and shows as `[DIR]`.
    pub(crate) fn flag(&self) -> String {
        match self.kind {
            Kind::Argument { value, .. } => format!("[{value}]"),
            Kind::Switch { .. } if self.is_on_by_default() => format!("--no-{}", self.name),
            _ => format!("--{}", self.name),
        }
    }

    /// Whether it is a switch that is on unless turned off.
    pub(crate) fn is_on_by_default(&self) -> bool {
        matches!(
            (self.kind, self.default),
            (Kind::Switch { .. }, Default::Text("true"))
        )
    }

    /// Whether the configuration file may say it.
    pub(crate) fn is_for_file(&self) -> bool {
        // A file that names a file would need an order of reading.
        self.name != "config"
    }

    /// The setting with this name.
    pub(crate) fn find(name: &str) -> Option<&'static Setting> {
        SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// Puts one value into `config`.
    ///
    /// # Errors
    /// What is wrong with the text and how to write it.
    pub(crate) fn set(&self, config: &mut ServeConfig, text: &str) -> Result<(), String> {
        match self.kind {
            Kind::Switch { set } => value::switch(text).map(|on| set(config, on)),
            Kind::Choice { choices, set } => {
                if choices.iter().any(|(name, _)| *name == text) {
                    return set(config, text);
                }
                let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
                Err(format!("'{text}' is not one of {}", names.join(", ")))
            }
            Kind::Argument { set, .. } | Kind::One { set, .. } | Kind::Many { set, .. } => {
                set(config, text)
            }
        }
    }
}

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

/// A file that a running server does not exchange for another, without its help.
const fn file(name: &'static str, heading: &'static str, set: Set) -> Setting {
    Setting {
        name,
        short: None,
        heading,
        kind: Kind::One {
            value: "FILE",
            hint: ValueHint::FilePath,
            set,
        },
        default: Default::Nothing,
        reload: Reload::Restart,
        help: "",
        more: "",
    }
}

/// One of some words about the engine, which a running server does not exchange.
const fn choice(name: &'static str, choices: Choices, default: Default, set: Set) -> Setting {
    Setting {
        name,
        short: None,
        heading: ENGINE,
        kind: Kind::Choice { choices, set },
        default,
        reload: Reload::Restart,
        help: "",
        more: "",
    }
}

/// The table.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting {
        name: "root",
        short: None,
        heading: SITE,
        kind: Kind::Argument {
            value: "DIR",
            set: |config, text| {
                config.root = text.into();
                Ok(())
            },
        },
        default: Default::Text("."),
        reload: Reload::Applies,
        help: "The directory to serve",
        more: "",
    },
    Setting {
        name: "listen",
        short: Some('l'),
        heading: LISTENING,
        kind: Kind::Many {
            value: "ADDR",
            table: None,
            separator: Separator::Space,
            set: |config, text| {
                config.listen.push(address(text)?);
                Ok(())
            },
        },
        default: Default::Text("127.0.0.1:8080"),
        reload: Reload::Restart,
        help: "Where to listen; may be repeated",
        more: "127.0.0.1:8080 is this machine only, 8080 or :8080 is every interface (IPv4 and \
               IPv6), unix:/run/weft.sock is a Unix socket (?mode=0660 sets its mode). \
               Sockets that systemd passes take the place of the default.",
    },
    Setting {
        name: "admin",
        short: None,
        heading: LISTENING,
        kind: Kind::Many {
            value: "ADDR",
            table: None,
            separator: Separator::Space,
            set: |config, text| {
                config.admin.push(address(text)?);
                Ok(())
            },
        },
        default: Default::Nothing,
        reload: Reload::Restart,
        help: "Serve /metrics (Prometheus), /healthz and /fibers here",
        more: "Written as for --listen. It is a listener of its own, so that what the site shows to \
               the world and what it tells its operator never mix.",
    },
    Setting {
        help: "Serve HTTPS with the certificate chain in this PEM file",
        more: "It holds at every TCP address of --listen; Unix sockets stay plain. SIGHUP reads the file \
               anew; connections that are open keep the certificate that they began with.",
        ..file("tls-cert", LISTENING, |config, text| {
            config.tls_cert = Some(text.into());
            Ok(())
        })
    },
    Setting {
        help: "The certificate's private key, in PEM",
        more: "Without it the key is looked for in the file of --tls-cert. Both are read before --user takes \
               effect, and by that user at SIGHUP.",
        ..file("tls-key", LISTENING, |config, text| {
            config.tls_key = Some(text.into());
            Ok(())
        })
    },
    Setting {
        help: "What carries the connections",
        more: "All serve the same bytes; they differ in speed and in what a connection costs.",
        ..choice(
            "engine",
            engine::ENGINES,
            Default::Text("fiber"),
            |config, text| config.engine.set("engine", text),
        )
    },
    Setting {
        help: "How fibers do their input and output",
        more: "With auto, the start-up message says which one was taken and why. \
               `weft doctor` tells what the kernel allows.",
        ..choice(
            "io",
            engine::BACKENDS,
            Default::Text("auto"),
            |config, text| config.engine.set("io", text),
        )
    },
    Setting {
        help: "How event loops find out which connections are ready",
        more: "With --engine event; epoll-edge unless said. The others are there to be compared with it.",
        ..choice(
            "dispatcher",
            engine::DISPATCHERS,
            Default::Nothing,
            |config, text| config.engine.set("dispatcher", text),
        )
    },
    Setting {
        help: "What an event loop does when the kernel's queue of signals has overflowed",
        more: "With --dispatcher rtsig; poll unless said.",
        ..choice(
            "rtsig-overflow",
            engine::OVERFLOWS,
            Default::Nothing,
            |config, text| config.engine.set("rtsig-overflow", text),
        )
    },
    Setting {
        help: "How connections come to event loops",
        more: "With --engine event; own unless said. Loops share a socket that was inherited, and a Unix \
               socket, even with own.",
        ..choice(
            "accept",
            engine::ACCEPTS,
            Default::Nothing,
            |config, text| config.engine.set("accept", text),
        )
    },
    Setting {
        help: "Accept all connections that wait before looking around again",
        more: "With --engine event; on unless said. With off it is one at a time.",
        ..choice(
            "multi-accept",
            engine::ON_OFF,
            Default::Nothing,
            |config, text| config.engine.set("multi-accept", text),
        )
    },
    Setting {
        help: "Read files that are not in memory on threads beside the event loops",
        more: "With --engine event; on unless said. With off a loop waits for the disk, and its connections \
               with it.",
        ..choice(
            "file-threads",
            engine::ON_OFF,
            Default::Nothing,
            |config, text| config.engine.set("file-threads", text),
        )
    },
    Setting {
        name: "workers",
        short: Some('w'),
        heading: ENGINE,
        kind: Kind::One {
            value: "N",
            hint: ValueHint::Other,
            set: |config, text| {
                config.workers = NonZeroUsize::new(value::count(text, 1..=WORKERS_MAX)?);
                Ok(())
            },
        },
        default: Default::Derived("the CPUs that affinity and cgroup quota allow"),
        reload: Reload::Restart,
        help: "Processors: kernel threads that run fibers",
        more: "Without effect with --engine thread, where every connection has a thread of its own.",
    },
    Setting {
        name: "fibers",
        short: None,
        heading: ENGINE,
        kind: Kind::One {
            value: "N",
            hint: ValueHint::Other,
            set: |config, text| {
                config.fibers = NonZeroUsize::new(value::count(text, 1..=FIBERS_MAX)?);
                Ok(())
            },
        },
        default: Default::Derived("as many as there are connections"),
        reload: Reload::Restart,
        help: "A fixed number of connection fibers (or threads), made at start",
        more: "Each accepts a connection, serves it to its end, and accepts the next; further \
               connections wait in the kernel's queue. By default they are made as they are needed.",
    },
    Setting {
        name: "listing",
        short: None,
        heading: SITE,
        kind: Kind::Switch {
            set: |config, on| config.listing = on,
        },
        default: Default::Text("false"),
        reload: Reload::Applies,
        help: "List directories that have no index file",
        more: "A page for people, JSON for programs that ask for it (Accept: application/json).",
    },
    Setting {
        name: "hidden",
        short: None,
        heading: SITE,
        kind: Kind::Switch {
            set: |config, on| config.hidden = on,
        },
        default: Default::Text("false"),
        reload: Reload::Applies,
        help: "Serve files whose name begins with a dot",
        more: "Off, .git and .env do not exist for a client. /.well-known/ is always served.",
    },
    Setting {
        name: "follow-links",
        short: None,
        heading: SITE,
        kind: Kind::Switch {
            set: |config, on| config.follow_links = on,
        },
        default: Default::Text("false"),
        reload: Reload::Applies,
        help: "Follow symbolic links that leave the directory",
        more: "Links that stay inside are always followed.",
    },
    Setting {
        name: "index",
        short: None,
        heading: SITE,
        kind: Kind::Many {
            value: "NAME",
            table: None,
            separator: Separator::Space,
            set: |config, text| {
                config.index.push(value::file_name(text)?);
                Ok(())
            },
        },
        default: Default::Text("index.html"),
        reload: Reload::Applies,
        help: "A directory's index file; the first that exists is taken",
        more: "",
    },
    Setting {
        name: "spa",
        short: None,
        heading: SITE,
        kind: Kind::One {
            value: "FILE",
            hint: ValueHint::FilePath,
            set: |config, text| {
                config.spa = Some(text.to_owned());
                Ok(())
            },
        },
        default: Default::Nothing,
        reload: Reload::Applies,
        help: "Answer unknown paths with this file and status 200",
        more: "For single-page applications. The path is relative to the directory served.",
    },
    Setting {
        name: "error-page",
        short: None,
        heading: SITE,
        kind: Kind::Many {
            value: "STATUS=FILE",
            table: Some("error_pages"),
            separator: Separator::Space,
            set: |config, text| {
                config.error_pages.push(value::error_page(text)?);
                Ok(())
            },
        },
        default: Default::Nothing,
        reload: Reload::Applies,
        help: "A page of your own for a status, such as 404=404.html",
        more: "The path is relative to the directory served.",
    },
    Setting {
        name: "precompressed",
        short: None,
        heading: REPLIES,
        kind: Kind::Switch {
            set: |config, on| config.precompressed = on,
        },
        default: Default::Text("true"),
        reload: Reload::Applies,
        help: "Do not look for FILE.br, FILE.zst and FILE.gz beside FILE",
        more: "In the file and the environment it is `precompressed = false`.",
    },
    Setting {
        name: "header",
        short: None,
        heading: REPLIES,
        kind: Kind::Many {
            value: "[GLOB=]NAME: VALUE",
            table: Some("headers"),
            separator: Separator::Line,
            set: |config, text| {
                config.headers.push(value::header(text)?);
                Ok(())
            },
        },
        default: Default::Nothing,
        reload: Reload::Applies,
        help: "Add a header, to all replies or to those whose path the glob matches",
        more: "'X-Frame-Options: DENY' is for every path, '*.woff2=Access-Control-Allow-Origin: *' \
               for some. A glob without a slash is matched with the file's name, one with a slash \
               with the whole path: '/assets/**'. Of rules for one name that match, the last holds.",
    },
    Setting {
        name: "cache",
        short: None,
        heading: REPLIES,
        kind: Kind::Many {
            value: "GLOB=VALUE",
            table: Some("cache"),
            separator: Separator::Line,
            set: |config, text| {
                config.cache.push(value::cache(text)?);
                Ok(())
            },
        },
        default: Default::Nothing,
        reload: Reload::Applies,
        help: "The Cache-Control of the files that the glob matches",
        more: "Such as '/assets/**=max-age=31536000, immutable'. Of the rules that match, the last holds.",
    },
    Setting {
        name: "mime-type",
        short: None,
        heading: REPLIES,
        kind: Kind::Many {
            value: "EXT=TYPE",
            table: Some("mime_types"),
            separator: Separator::Line,
            set: |config, text| {
                config.mime_types.push(value::mime_type(text)?);
                Ok(())
            },
        },
        default: Default::Nothing,
        reload: Reload::Applies,
        help: "The Content-Type of an extension, such as webc=text/html",
        more: "",
    },
    Setting {
        name: "server-name",
        short: None,
        heading: REPLIES,
        kind: Kind::One {
            value: "NAME|off",
            hint: ValueHint::Other,
            set: |config, text| {
                config.server_name = (text != "off").then(|| text.to_owned());
                Ok(())
            },
        },
        default: Default::Text("weft"),
        reload: Reload::Applies,
        help: "Value of the Server header",
        more: "",
    },
    Setting {
        name: "max-connections",
        short: None,
        heading: LIMITS,
        kind: Kind::One {
            value: "N",
            hint: ValueHint::Other,
            set: |config, text| {
                config.max_connections = NonZeroUsize::new(value::count(text, 1..=FIBERS_MAX)?);
                Ok(())
            },
        },
        default: Default::Derived("what the limit on open files leaves"),
        reload: Reload::Restart,
        help: "Connections served at once",
        more: "Further connections wait in the listen queue until another ends. With more than the limit on open files \
               leaves the server does not start.",
    },
    Setting {
        name: "memory-budget",
        short: None,
        heading: LIMITS,
        kind: Kind::One {
            value: "SIZE",
            hint: ValueHint::Other,
            set: |config, text| {
                config.memory_budget_bytes = Some(value::size(text)?);
                Ok(())
            },
        },
        default: Default::Derived("256 MiB, or a quarter of the memory if that is less"),
        reload: Reload::Applies,
        help: "Memory for the bytes of files",
        more: "Sizes are written 64M, 1GiB. The memory is the memory cgroup's limit or the machine's.",
    },
    Setting {
        name: "memory-file-max",
        short: None,
        heading: LIMITS,
        kind: Kind::One {
            value: "SIZE",
            hint: ValueHint::Other,
            set: |config, text| {
                config.memory_file_max_bytes = value::size(text)?;
                Ok(())
            },
        },
        default: Default::Text("256K"),
        reload: Reload::Applies,
        help: "Longest file that is held in memory",
        more: "Longer ones are sent from their open file.",
    },
    Setting {
        name: "page-cache-budget",
        short: None,
        heading: LIMITS,
        kind: Kind::One {
            value: "SIZE",
            hint: ValueHint::Other,
            set: |config, text| {
                config.page_cache_budget_bytes = Some(value::size(text)?);
                Ok(())
            },
        },
        default: Default::Derived("half of the memory that is free at start"),
        reload: Reload::Applies,
        help: "How much of the files the kernel's page cache may hold",
        more: "Files that find no room in it are read past it, so that a walk over a huge site does \
               not push out what is popular.",
    },
    Setting {
        name: "recheck",
        short: None,
        heading: LIMITS,
        kind: Kind::One {
            value: "DURATION",
            hint: ValueHint::Other,
            set: |config, text| {
                config.recheck = value::duration(text)?;
                Ok(())
            },
        },
        default: Default::Text("1s"),
        reload: Reload::Applies,
        help: "How long the server may rely on what it knows of a file before it looks again",
        more: "A changed file is seen after this time at the latest. Durations are written 500ms, 10s, 2m.",
    },
    Setting {
        name: "max-request-line",
        short: None,
        heading: LIMITS,
        kind: Kind::One {
            value: "SIZE",
            hint: ValueHint::Other,
            set: |config, text| {
                config.request_limits.request_line_len_max = length(text)?;
                Ok(())
            },
        },
        default: Default::Text("8K"),
        reload: Reload::Applies,
        help: "Longest request line; a longer one is answered with 414",
        more: "",
    },
    Setting {
        name: "max-head",
        short: None,
        heading: LIMITS,
        kind: Kind::One {
            value: "SIZE",
            hint: ValueHint::Other,
            set: |config, text| {
                config.request_limits.head_len_max = length(text)?;
                Ok(())
            },
        },
        default: Default::Text("16K"),
        reload: Reload::Restart,
        help: "Longest request head; a longer one is answered with 431",
        more: "",
    },
    Setting {
        name: "max-fields",
        short: None,
        heading: LIMITS,
        kind: Kind::One {
            value: "N",
            hint: ValueHint::Other,
            set: |config, text| {
                config.request_limits.field_count_max = value::count(text, 1..=10_000)?;
                Ok(())
            },
        },
        default: Default::Text("100"),
        reload: Reload::Applies,
        help: "Largest number of header fields in a request; more are answered with 431",
        more: "",
    },
    Setting {
        name: "max-body",
        short: None,
        heading: LIMITS,
        kind: Kind::One {
            value: "SIZE",
            hint: ValueHint::Other,
            set: |config, text| {
                config.request_limits.body_len_max = value::size(text)?;
                Ok(())
            },
        },
        default: Default::Text("1M"),
        reload: Reload::Applies,
        help: "Longest request body; it is discarded, and a longer one is answered with 413",
        more: "",
    },
    Setting {
        name: "head-timeout",
        short: None,
        heading: LIMITS,
        kind: Kind::One {
            value: "DURATION",
            hint: ValueHint::Other,
            set: |config, text| {
                config.head_timeout = value::timeout(text)?;
                Ok(())
            },
        },
        default: Default::Text("20s"),
        reload: Reload::Restart,
        help: "Time for a request's head to arrive, from its first byte",
        more: "",
    },
    Setting {
        name: "body-timeout",
        short: None,
        heading: LIMITS,
        kind: Kind::One {
            value: "DURATION",
            hint: ValueHint::Other,
            set: |config, text| {
                config.body_timeout = value::timeout(text)?;
                Ok(())
            },
        },
        default: Default::Text("60s"),
        reload: Reload::Restart,
        help: "Time between two pieces of a request's body",
        more: "",
    },
    Setting {
        name: "idle-timeout",
        short: None,
        heading: LIMITS,
        kind: Kind::One {
            value: "DURATION",
            hint: ValueHint::Other,
            set: |config, text| {
                config.idle_timeout = value::timeout(text)?;
                Ok(())
            },
        },
        default: Default::Text("75s"),
        reload: Reload::Restart,
        help: "Time a kept-alive connection may be silent between requests",
        more: "",
    },
    Setting {
        name: "send-timeout",
        short: None,
        heading: LIMITS,
        kind: Kind::One {
            value: "DURATION",
            hint: ValueHint::Other,
            set: |config, text| {
                config.send_timeout = value::timeout(text)?;
                Ok(())
            },
        },
        default: Default::Text("60s"),
        reload: Reload::Restart,
        help: "Time in which a client must take something of a reply",
        more: "",
    },
    Setting {
        name: "send-rate-min",
        short: None,
        heading: LIMITS,
        kind: Kind::One {
            value: "SIZE",
            hint: ValueHint::Other,
            set: |config, text| {
                config.send_rate_min_bytes_per_s = value::size(text)?;
                Ok(())
            },
        },
        default: Default::Text("500"),
        reload: Reload::Restart,
        help: "Bytes per second that a client must take of a long reply; 0 turns it off",
        more: "Averaged over a minute.",
    },
    Setting {
        name: "drain-timeout",
        short: None,
        heading: LIMITS,
        kind: Kind::One {
            value: "DURATION",
            hint: ValueHint::Other,
            set: |config, text| {
                config.drain_timeout = value::duration(text)?;
                Ok(())
            },
        },
        default: Default::Text("25s"),
        reload: Reload::Restart,
        help: "Time for open requests to end after SIGTERM or SIGINT",
        more: "A second signal ends the server at once.",
    },
    Setting {
        name: "access-log",
        short: None,
        heading: LOGS,
        kind: Kind::One {
            value: "off|FILE|-",
            hint: ValueHint::FilePath,
            set: |config, text| {
                config.access_log = match text {
                    "off" => None,
                    "" => return Err("the name is empty; write off, - or a file".to_owned()),
                    target => target.parse().ok(),
                };
                Ok(())
            },
        },
        default: Default::Text("off"),
        reload: Reload::Restart,
        help: "Where requests are logged: off, a file, or - for standard output",
        more: "SIGHUP opens the same file anew, as logrotate needs it.",
    },
    Setting {
        name: "log-format",
        short: None,
        heading: LOGS,
        kind: Kind::Choice {
            choices: &[
                ("combined", "the format of Apache and nginx"),
                ("json", "one JSON object per line"),
            ],
            set: |config, text| {
                config.log_format = if text == "json" {
                    LogFormat::Json
                } else {
                    LogFormat::Combined
                };
                Ok(())
            },
        },
        default: Default::Text("combined"),
        reload: Reload::Applies,
        help: "How a request is logged",
        more: "",
    },
    Setting {
        short: Some('c'),
        help: "Read settings from this TOML file",
        more: "Flags override the environment, and the environment overrides the file. \
               `weft check-config FILE` checks one.",
        ..file("config", PROCESS, |config, text| {
            config.config = Some(text.into());
            Ok(())
        })
    },
    Setting {
        name: "user",
        short: None,
        heading: PROCESS,
        kind: Kind::One {
            value: "NAME[:GROUP]",
            hint: ValueHint::Username,
            set: |config, text| {
                config.user = Some(value::account(text)?);
                Ok(())
            },
        },
        default: Default::Nothing,
        reload: Reload::Restart,
        help: "Become this user once the sockets and the pid file are open",
        more: "For a start as root. The group is the user's own if not given; numbers work as well. \
               Site and logs are opened as that user, so that what works at start also works at \
               SIGHUP.",
    },
    Setting {
        help: "Write the process id here",
        more: "",
        ..file("pid-file", PROCESS, |config, text| {
            config.pid_file = Some(text.into());
            Ok(())
        })
    },
    Setting {
        name: "quiet",
        short: Some('q'),
        heading: PROCESS,
        kind: Kind::Switch {
            set: |config, on| config.quiet = on,
        },
        default: Default::Text("false"),
        reload: Reload::Restart,
        help: "Print nothing at start; errors are still printed",
        more: "",
    },
    Setting {
        name: "color",
        short: None,
        heading: PROCESS,
        kind: Kind::Choice {
            choices: &[
                ("auto", "on a terminal, unless NO_COLOR is set"),
                ("always", "always"),
                ("never", "never"),
            ],
            set: |config, text| {
                config.color = Color::from_name(text);
                Ok(())
            },
        },
        default: Default::Text("auto"),
        reload: Reload::Restart,
        help: "Colour of what is printed",
        more: "",
    },
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

#[cfg(test)]
mod tests;
