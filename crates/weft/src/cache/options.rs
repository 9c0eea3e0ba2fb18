//! The table of options: memcached's flags letter by letter, and ours behind them. The parser,
//! `-h`, the manual page, the completions and the table of `docs/cache.md` are all made of it.
//!
//! memcached reads its command line with getopt_long(3): `-vv`, `-p11211`, `-dp 11211`,
//! `--port=11211`, and any beginning of a long name that is no other's. clap reads all of these,
//! too.

use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint};

/// What becomes of an option here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It does what it does in memcached.
    Works,
    /// It is taken and changes nothing, because of this.
    Idle(&'static str),
    /// The server does not start with it, because of this.
    Refused(&'static str),
}

/// An option with a letter, a long name, or both.
pub(crate) struct Opt {
    pub(crate) short: Option<char>,
    pub(crate) long: &'static str,
    /// What its value is called; `None` is a switch.
    pub(crate) value: Option<&'static str>,
    pub(crate) default: &'static str,
    pub(crate) help: &'static str,
    pub(crate) fate: Fate,
}

const fn opt(short: char, long: &'static str, help: &'static str) -> Opt {
    Opt {
        short: Some(short),
        long,
        value: None,
        default: "",
        help,
        fate: Fate::Works,
    }
}

const fn own(long: &'static str, help: &'static str) -> Opt {
    Opt {
        short: None,
        ..opt('?', long, help)
    }
}

impl Opt {
    const fn takes(self, value: &'static str, default: &'static str) -> Opt {
        Opt {
            value: Some(value),
            default,
            ..self
        }
    }

    const fn idle(self, why: &'static str) -> Opt {
        Opt {
            fate: Fate::Idle(why),
            ..self
        }
    }

    const fn refused(self, why: &'static str) -> Opt {
        Opt {
            fate: Fate::Refused(why),
            ..self
        }
    }

    /// `-p, --port=<num>`, as memcached's help writes it.
    pub(crate) fn usage(&self) -> String {
        let value = self
            .value
            .map_or(String::new(), |value| format!("=<{value}>"));
        match self.short {
            Some(short) => format!("-{short}, --{}{value}", self.long),
            None => format!("--{}{value}", self.long),
        }
    }

    /// `-p` where there is a letter, else `--name`.
    pub(crate) fn name(&self) -> String {
        match self.short {
            Some(short) => format!("-{short}"),
            None => format!("--{}", self.long),
        }
    }
}

/// Every option, in the order of `memcached -h`; those that only weft has come last.
pub(crate) const OPTIONS: &[Opt] = &[
    opt('p', "port", "TCP port to listen on; 0 is none, -1 any that is free").takes("num", "11211"),
    opt('U', "udp-port", "UDP port to listen on; 0 is none").takes("num", "0"),
    opt('s', "unix-socket", "Unix socket to listen on, and no network").takes("file", ""),
    opt('a', "unix-mask", "mode of the Unix socket's file, in octal").takes("mask", "700"),
    opt('A', "enable-shutdown", "obey the command \"shutdown\""),
    opt(
        'l',
        "listen",
        "address to listen on: address, address:port or name, several with commas or by repeating; \
         notls: before one makes it an exception from -Z",
    )
    .takes("addr", "every interface"),
    opt('d', "daemon", "run in the background, once the server is up"),
    opt('r', "enable-coredumps", "raise the limit on the size of core files"),
    opt('u', "user", "become this user; needed when started as root").takes("user", ""),
    opt('m', "memory-limit", "memory for items, in megabytes; a hard limit").takes("num", "64"),
    opt(
        'M',
        "disable-evictions",
        "answer with an error when the memory is full, instead of evicting",
    ),
    opt('c', "conn-limit", "connections at once").takes("num", "1024"),
    opt('k', "lock-memory", "keep all memory of the process in RAM (mlockall(2))"),
    opt('v', "verbose", "say more: -v what the server does, -vv commands and replies too"),
    opt('h', "help", "print this and exit"),
    opt('i', "license", "print the license and exit"),
    opt('V', "version", "print the version and exit"),
    opt('P', "pidfile", "write the number of the process to this file").takes("file", ""),
    opt('f', "slab-growth-factor", "growth factor from one chunk size to the next").takes("num", "1.25"),
    opt('n', "slab-min-size", "smallest space for key, value and flags").takes("bytes", "48"),
    opt('L', "enable-largepages", "ask the kernel for huge pages under the items"),
    opt(
        'D',
        "stats-prefix",
        "character that ends a key's prefix in \"stats detail\", which this turns on",
    )
    .takes("char", ":"),
    opt('t', "threads", "processors: kernel threads that run the connections' fibers")
        .takes("num", "the CPUs there are"),
    opt('R', "max-reqs-per-event", "requests of one connection before others get their turn")
        .takes("num", "20")
        .idle("a connection gives way when its replies fill a buffer, which bounds its turn by bytes"),
    opt('C', "disable-cas", "no unique number for each item"),
    opt('b', "listen-backlog", "connections that may wait to be accepted").takes("num", "1024"),
    opt('B', "protocol", "protocol: ascii, binary or auto").takes("name", "auto"),
    opt('I', "max-item-size", "largest item, from 1k to 1024m").takes("bytes", "1m"),
    opt('S', "enable-sasl", "require SASL authentication; the users are those of -Y"),
    opt('F', "disable-flush-all", "refuse the command \"flush_all\""),
    opt('X', "disable-dumping", "refuse \"stats cachedump\" and \"lru_crawler metadump\""),
    opt('W', "disable-watch", "refuse the command \"watch\""),
    opt('Y', "auth-file", "require authentication; the file has lines of user:password").takes("file", ""),
    opt(
        'e',
        "memory-file",
        "keep the items over a restart: written to this file at the end (SIGUSR1, SIGTERM, SIGINT), \
         read at the start",
    )
    .takes("file", ""),
    opt('Z', "enable-ssl", "TLS; -o ssl_chain_cert says with which certificate"),
    opt('o', "extended", "more options, with commas between; see below").takes("list", ""),
    opt('N', "napi_ids", "number of NAPI ids")
        .takes("num", "")
        .refused("connections are given to the processors in turn, not by the queue of the network card"),
    own("engine", "what carries the connections: fiber, thread or event").takes("name", "fiber"),
    own("io", "how fibers do their input and output: auto, uring or epoll").takes("name", "auto"),
    own(
        "dispatcher",
        "how event loops wait: select, poll, fdm, lap, rtsig, epoll, epoll-edge or uring",
    )
    .takes("name", "epoll-edge"),
    own("rtsig-overflow", "what follows when the signals of rtsig overflow: poll, select or signalfd")
        .takes("name", "poll"),
    own("accept", "whether each event loop accepts for itself (own) or one thread for all (dealt)")
        .takes("name", "own"),
    own("multi-accept", "whether an event loop accepts all that wait (on) or one (off) at a time")
        .takes("name", "on"),
    own("workers", "the same as -t").takes("num", ""),
    own("admin", "address for /metrics, /healthz and /fibers over HTTP").takes("addr", ""),
    own("drain-timeout", "how long connections may take to end when the server stops")
        .takes("time", "2s"),
];

/// The option of this long name.
///
/// # Panics
/// If there is none: names are written in the code, not typed.
pub(crate) fn find(long: &str) -> &'static Opt {
    let found = OPTIONS.iter().find(|opt| opt.long == long);
    found.unwrap_or_else(|| panic!("no option --{long}"))
}

/// `weft cache`, as clap sees it.
pub(crate) fn command() -> Command {
    let command = Command::new("cache")
        .about("A cache that memcached's clients cannot tell from memcached")
        .long_about(
            "A cache that speaks memcached's protocols (text, meta, binary) and takes memcached's \
             flags.\n\nAn option that is not supported is refused with the reason. One that has nothing to \
             change here is taken; -v says so.",
        )
        .disable_help_flag(true)
        .disable_version_flag(true)
        .infer_long_args(true)
        .args_override_self(true);
    OPTIONS
        .iter()
        .fold(command, |command, opt| command.arg(argument(opt)))
}

fn argument(opt: &'static Opt) -> Arg {
    let mut help = opt.help.to_owned();
    if !opt.default.is_empty() {
        help += &format!(" (default: {})", opt.default);
    }
    match opt.fate {
        Fate::Works => {}
        Fate::Idle(why) => help += &format!(". Changes nothing: {why}"),
        Fate::Refused(why) => help += &format!(". Refused: {why}"),
    }
    let arg = Arg::new(opt.long)
        .long(opt.long)
        .short(opt.short)
        .help(help);
    match opt.value {
        None => arg.action(ArgAction::Count),
        Some(value) => arg
            .value_name(value)
            .action(ArgAction::Append)
            .allow_hyphen_values(value == "num")
            .value_hint(if value == "file" {
                ValueHint::FilePath
            } else {
                ValueHint::Other
            }),
    }
}

/// What was typed.
#[derive(Debug)]
pub(crate) struct Typed(pub(crate) ArgMatches);

impl Typed {
    /// How many times a switch was given.
    pub(crate) fn count(&self, long: &str) -> u8 {
        self.0.get_count(long)
    }

    pub(crate) fn is_on(&self, long: &str) -> bool {
        self.count(long) > 0
    }

    /// The value of an option; the last one holds, as with getopt(3).
    pub(crate) fn value(&self, long: &str) -> Option<&str> {
        self.values(long).last()
    }

    /// All values of an option that adds up (`-l`, `-o`).
    pub(crate) fn values(&self, long: &str) -> impl Iterator<Item = &str> {
        let values = self.0.get_many::<String>(long).into_iter().flatten();
        values.map(String::as_str)
    }

    /// The options that were typed.
    pub(crate) fn options(&self) -> impl Iterator<Item = &'static Opt> {
        OPTIONS.iter().filter(|opt| match opt.value {
            None => self.is_on(opt.long),
            Some(_) => self.value(opt.long).is_some(),
        })
    }
}

#[cfg(test)]
pub(crate) fn typed(line: &str) -> Typed {
    let words = std::iter::once("cache").chain(line.split_whitespace());
    Typed(
        command()
            .try_get_matches_from(words)
            .unwrap_or_else(|error| panic!("{error}")),
    )
}

#[cfg(test)]
mod tests {
    use super::super::extended::EXTENDED;
    use super::*;

    #[test]
    fn the_table_makes_a_consistent_command() {
        command().debug_assert();
    }

    #[test]
    fn what_getopt_reads_is_read() {
        for line in [
            "-p 11300 -vv",
            "-p11300 -v -v",
            "--port=11300 -vv",
            "--po 11300 -vv",
            "-vvp 11300",
        ] {
            let typed = typed(line);
            assert_eq!(typed.value("port"), Some("11300"), "{line}");
            assert_eq!(typed.count("verbose"), 2, "{line}");
        }
    }

    #[test]
    fn the_last_value_holds_and_lists_add_up() {
        let typed = typed("-p 1 -p 2 -l ::1 -l 127.0.0.1,127.0.0.2 -U -1");
        assert_eq!(typed.value("port"), Some("2"));
        assert_eq!(
            typed.values("listen").collect::<Vec<_>>(),
            ["::1", "127.0.0.1,127.0.0.2"]
        );
        assert_eq!(typed.value("udp-port"), Some("-1"));
    }

    /// The tables of `docs/cache.md`.
    fn manual_tables() -> String {
        let fate = |fate: Fate| match fate {
            Fate::Works => String::new(),
            Fate::Idle(why) => format!(" **Changes nothing**: {why}."),
            Fate::Refused(why) => format!(" **Refused**: {why}."),
        };
        let mut text = "\n| option | default | |\n|---|---|---|\n".to_owned();
        for opt in OPTIONS {
            let usage = opt.usage();
            let help = opt.help;
            text += &format!(
                "| `{usage}` | {} | {help}.{} |\n",
                opt.default,
                fate(opt.fate)
            );
        }
        text += "\n| `-o` | |\n|---|---|\n";
        for row in EXTENDED {
            let value = row
                .value
                .map_or(String::new(), |value| format!("=<{value}>"));
            let help = if row.help.is_empty() {
                String::new()
            } else {
                format!("{}.", row.help)
            };
            text += &format!("| `{}{value}` | {help}{} |\n", row.name, fate(row.fate));
        }
        text + "\n"
    }

    #[test]
    fn the_manual_has_the_tables_of_options() {
        const BEGIN: &str = "<!-- options: begin -->\n";
        const END: &str = "<!-- options: end -->";
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cache.md");
        let text = std::fs::read_to_string(&path).unwrap();
        let (before, rest) = text.split_once(BEGIN).unwrap();
        let (tables, after) = rest.split_once(END).unwrap();
        if std::env::var_os("UPDATE_MANUAL").is_some() {
            let text = format!("{before}{BEGIN}{}{END}{after}", manual_tables());
            std::fs::write(&path, text).unwrap();
            return;
        }
        assert!(
            tables == manual_tables(),
            "docs/cache.md is behind options.rs: UPDATE_MANUAL=1 cargo test -p weftwork manual"
        );
    }

    #[test]
    fn the_manual_page_names_every_option() {
        let mut text = Vec::new();
        assert!(crate::pages::man(Some("cache"), &mut text).unwrap());
        let text = String::from_utf8(text).unwrap().replace("\\-", "-");
        for opt in OPTIONS {
            assert!(text.contains(&format!("--{}", opt.long)), "{}", opt.long);
        }
        assert!(text.contains("SIGUSR1"), "the signals are not there");
    }

    #[test]
    fn every_letter_of_memcached_is_there() {
        for letter in "pUsalduimMctRbBIvhVPfnLkrSYWCFAXZDeoN".chars() {
            assert!(
                OPTIONS.iter().any(|opt| opt.short == Some(letter)),
                "-{letter}"
            );
        }
    }
}
