//! The command line: what can be typed (built from [rows](crate::settings)) and what was.

#[cfg(test)]
mod manuals;

use std::path::{Path, PathBuf};

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint, value_parser};
use clap_complete::Shell;

use crate::cache::{self, CacheConfig};
use crate::lab;
use crate::load;
use crate::serve::ServeConfig;
use crate::settings::{self, flags, layers::Layer};

/// The command that was typed.
pub(crate) enum Invocation {
    /// Serve; the settings that were typed.
    Serve(Layer),
    /// Run a cache; the options that were typed.
    Cache(Layer),
    /// Measure a server; what was typed behind it.
    Load(Box<ArgMatches>),
    /// Report what the machine allows.
    Doctor { json: bool, color: Option<String> },
    /// Run experiments.
    Lab(lab::LabCommand),
    /// Check a configuration file.
    CheckConfig { file: PathBuf },
    /// Print a shell's completions.
    Completions { shell: Shell },
    /// Print man pages: one, or all of them into a directory.
    Man {
        command: Vec<String>,
        dir: Option<PathBuf>,
    },
}

/// Reads the command line.
///
/// # Errors
/// clap's error; for `--help` and `--version` it is the text to print.
pub(crate) fn read(
    words: impl IntoIterator<Item = std::ffi::OsString>,
) -> Result<Invocation, clap::Error> {
    let mut words: Vec<_> = words.into_iter().collect();
    let is = |command: &str| words.get(1).is_some_and(|word| word == command);
    let (is_serve, is_cache) = (is("serve"), is("cache"));
    if is_cache {
        words.iter_mut().skip(2).for_each(cache::spell_out);
    }
    let read = command().try_get_matches_from(words);
    let mut matches = read.map_err(|mut error| {
        drop_tip_about_values(&mut error);
        match (is_serve, is_cache) {
            (true, _) => with_our_name_for_it(error),
            (_, true) => with_the_way_to_the_options(error),
            _ => with_a_tip(error),
        }
    })?;
    let (name, mut matches) = matches.remove_subcommand().expect("clap demands a command");
    let matches = &mut matches;
    let path = |id: &str| matches.get_one::<PathBuf>(id).cloned();
    Ok(match name.as_str() {
        "serve" => Invocation::Serve(flags::typed::<ServeConfig>(matches)),
        "cache" => Invocation::Cache(flags::typed::<CacheConfig>(matches)),
        "load" => Invocation::Load(Box::new(matches.clone())),
        "doctor" => Invocation::Doctor {
            json: matches.get_flag("json"),
            color: matches.get_one::<String>("color").cloned(),
        },
        "lab" => Invocation::Lab(lab::asked(matches)),
        "check-config" => Invocation::CheckConfig {
            file: path("file").expect("clap demands it"),
        },
        "completions" => Invocation::Completions {
            shell: *matches.get_one::<Shell>("shell").expect("clap demands it"),
        },
        "man" => Invocation::Man {
            command: matches
                .get_many("command")
                .map_or_else(Vec::new, |words| words.cloned().collect()),
            dir: path("dir"),
        },
        other => unreachable!("clap accepted the command '{other}'"),
    })
}

/// The whole command, as clap sees it.
pub(crate) fn command() -> Command {
    Command::new("weft")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Fast network servers on Linux")
        .long_about(
            "Fast network servers on Linux: plain blocking code on user-level threads, over \
             io_uring where the kernel allows it.",
        )
        .after_help("`weft COMMAND --help` tells more. To begin with: weft serve DIR")
        .after_long_help(after_help("weft"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .max_term_width(100)
        .subcommands([
            serve(),
            cache(),
            lab(),
            load::args::command(after_help("load")),
            doctor(),
            check_config(),
            completions(),
            man(),
        ])
}

/// What a command's long help and its manual page say behind the options: title and text.
type Sections = &'static [(&'static str, &'static str)];

/// The sections of a command; of weft itself if the name is "weft".
pub(crate) fn sections(command: &str) -> Sections {
    match command {
        "serve" => SERVE_SECTIONS,
        "cache" => CACHE_SECTIONS,
        "lab" => lab::SECTIONS,
        "load" => load::args::SECTIONS,
        "doctor" => DOCTOR_SECTIONS,
        "check-config" => CHECK_CONFIG_SECTIONS,
        "completions" => COMPLETIONS_SECTIONS,
        "man" => MAN_SECTIONS,
        _ => WEFT_SECTIONS,
    }
}

fn after_help(command: &str) -> String {
    let sections = sections(command).iter().map(|(title, text)| {
        let lines: String = text.lines().map(|line| format!("\n  {line}")).collect();
        format!("{title}:{lines}")
    });
    sections.collect::<Vec<_>>().join("\n\n")
}

const WEFT_SECTIONS: Sections = &[
    (
        "Examples",
        "weft serve              serve this directory at http://127.0.0.1:8080/\n\
         weft cache -m 1024      a cache of 1 GiB for memcached's clients\n\
         weft doctor             what this kernel and these limits allow\n\
         weft man serve | man -l -",
    ),
    EXIT_STATUS,
];

const EXIT_STATUS: (&str, &str) = (
    "Exit status",
    "0  success; also a server that stopped because it was told to\n\
     1  a failure while running: an address in use, no permission, a limit\n\
     2  the command line or the configuration is wrong; nothing was started",
);

const SERVE_SECTIONS: Sections = &[
    (
        "Examples",
        "weft serve                      this directory, for this machine only\n\
         weft serve site --listen :80 --user www-data\n\
         weft serve site --access-log - --log-format json\n\
         weft serve dist --spa index.html --cache '/assets/**=max-age=31536000, immutable'\n\
         weft serve site --error-page 404=404.html --header 'X-Frame-Options: DENY'\n\
         weft serve site --admin 127.0.0.1:9090      with /metrics and /healthz there\n\
         weft serve --config serve.toml  and to check it: weft check-config serve.toml\n\
         weft serve site --engine thread             a kernel thread per connection",
    ),
    (
        "Signals",
        "SIGTERM, SIGINT  take no more connections, let open requests finish within\n\
         \x20                --drain-timeout, stop; the second one stops at once\n\
         SIGHUP           read the configuration again, check the site again, reopen the\n\
         \x20                log file; no connection is dropped. When the terminal that\n\
         \x20                the server was started from is closed: stop, as for SIGTERM\n\
         SIGUSR1          print on standard error what the server is doing",
    ),
    EXIT_STATUS,
];

const CACHE_SECTIONS: Sections = &[
    ("Examples", cache::EXAMPLES),
    (
        "Signals",
        "SIGTERM, SIGINT  take no more connections, let those that are open end within\n\
         \x20                --drain-timeout, save the items if -e says where, stop; the second\n\
         \x20                one stops at once, without saving\n\
         SIGUSR1          the same, as in memcached\n\
         SIGHUP           read the users of -Y and the certificates of -Z again",
    ),
    EXIT_STATUS,
];

const DOCTOR_SECTIONS: Sections = &[
    (
        "Examples",
        "weft doctor\n\
         weft doctor --json | jq '.findings[] | select(.verdict != \"ok\")'",
    ),
    (
        "Exit status",
        "0  nothing keeps a server from working; there may be warnings\n\
         1  something keeps a server from working\n\
         2  the command line is wrong",
    ),
];

const CHECK_CONFIG_SECTIONS: Sections = &[
    (
        "Examples",
        "weft check-config serve.toml && systemctl reload weft",
    ),
    (
        "Exit status",
        "0  the file is ok\n2  the file has errors; each line says where and why",
    ),
];

const COMPLETIONS_SECTIONS: Sections = &[(
    "Examples",
    "weft completions bash > ~/.local/share/bash-completion/completions/weft\n\
     weft completions zsh > ~/.zfunc/_weft\n\
     weft completions fish > ~/.config/fish/completions/weft.fish",
)];

const MAN_SECTIONS: Sections = &[(
    "Examples",
    "weft man serve | man -l -\nweft man load http | man -l -\nweft man --dir /usr/local/share/man/man1",
)];

fn serve() -> Command {
    let command = Command::new("serve")
        .about("Serve a directory over HTTP")
        .long_about(
            "Serve a directory over HTTP/1.1.\n\nEverything that can be set may be typed as a \
             flag, written in a TOML file (--config) as a key with underscores (access_log), or \
             put in the environment (WEFT_ACCESS_LOG). Flags override the environment, and the environment overrides the file. A list at a higher level replaces the whole list of a lower one.",
        )
        .after_help("`weft serve --help` tells more, with examples.")
        .after_long_help(after_help("serve"));
    flags::add::<ServeConfig>(command)
}

fn cache() -> Command {
    let command = Command::new("cache")
        .about("A cache that memcached's clients cannot tell from memcached")
        .long_about(
            "A cache that speaks memcached's protocols (text, meta, binary) and takes memcached's \
             flags.\n\nAn option that is not supported is refused with the reason. An option that has no \
             effect here is accepted; -v lists it.",
        )
        // memcached reads its command line with getopt_long(3): `-vv`, `-p11211`, `-dp 11211`,
        // `--port=11211`, and any beginning of a long name that is no other's. The last value of
        // an option holds.
        .infer_long_args(true)
        .args_override_self(true)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .after_long_help(after_help("cache"));
    flags::add::<CacheConfig>(command)
}

fn lab() -> Command {
    lab::command().after_long_help(after_help("lab"))
}

fn doctor() -> Command {
    let color = settings::find::<ServeConfig>("color").expect("a row of the table");
    Command::new("doctor")
        .about("Report what this kernel and its limits allow, and what to change")
        .arg(
            Arg::new("json")
                .long("json")
                .action(ArgAction::SetTrue)
                .help("Print JSON"),
        )
        .args(flags::arguments("", color))
        .after_long_help(after_help("doctor"))
}

fn check_config() -> Command {
    Command::new("check-config")
        .about("Check a configuration file without starting anything")
        .long_about(
            "Check a configuration file without starting anything.\n\nThe file is \
             checked alone, without flags and environment: that every key is known, every value \
             can be read, and the directory is there.",
        )
        .arg(
            path_argument("file", "FILE")
                .required(true)
                .help("The TOML file"),
        )
        .after_long_help(after_help("check-config"))
}

fn completions() -> Command {
    Command::new("completions")
        .about("Print a shell's completions")
        .arg(
            Arg::new("shell")
                .value_name("SHELL")
                .value_parser(value_parser!(Shell))
                .required(true)
                .help("The shell"),
        )
        .after_long_help(after_help("completions"))
}

fn man() -> Command {
    Command::new("man")
        .about("Print a manual page")
        .arg(
            Arg::new("command")
                .value_name("COMMAND")
                .num_args(0..)
                .help("The command whose page to print: serve, load http; weft's own if not given"),
        )
        .arg(
            path_argument("dir", "DIR")
                .long("dir")
                .conflicts_with("command")
                .help("Write all pages into this directory instead"),
        )
        .after_long_help(after_help("man"))
}

fn path_argument(id: &'static str, value: &'static str) -> Arg {
    let hint = if id == "dir" {
        ValueHint::DirPath
    } else {
        ValueHint::FilePath
    };
    Arg::new(id)
        .value_name(value)
        .value_parser(value_parser!(PathBuf))
        .value_hint(hint)
}

/// What users of other servers type, and what it is here.
const THEIR_FLAGS: &[(&str, &str)] = &[
    (
        "-p --port -b --bind --host --addr --interface",
        "address and port are one: --listen 127.0.0.1:8080, or --listen :8080 for every interface",
    ),
    (
        "-r --root -d --dir --directory --folder --path",
        "the directory has no flag: weft serve DIR",
    ),
    (
        "--cert --certificate --key --private-key --tls --ssl --https",
        "HTTPS is --tls-cert FILE --tls-key FILE",
    ),
    (
        "-t --threads",
        "--workers N says how many kernel threads there are",
    ),
    (
        "-v --verbose --log --log-file --access-logs",
        "requests are logged by --access-log FILE, or - for standard output",
    ),
    (
        "-D --daemon --daemonize",
        "weft serve stays in the foreground; packaging/systemd has a unit that runs it",
    ),
    (
        "--browse --directory-listing --dir-listing --autoindex --list --indexes",
        "directories without an index file are listed by --listing",
    ),
    (
        "-g --gzip --brotli --compress --compression",
        "nothing is compressed while serving: FILE.gz, FILE.br or FILE.zst beside FILE is sent to \
         clients that take it",
    ),
    (
        "--cors",
        "pages of other sites may read the files with --header 'Access-Control-Allow-Origin: *'",
    ),
    (
        "--single --fallback --page-fallback --spa-fallback --history",
        "unknown paths are answered with a file by --spa FILE",
    ),
    (
        "--memory --cache-size",
        "--memory-budget SIZE is the memory for the bytes of files",
    ),
    (
        "--max-age --cache-control",
        "caching is said by --cache GLOB=VALUE: --cache '**=max-age=3600'",
    ),
    (
        "--404 --page-404",
        "a page of your own is --error-page 404=FILE",
    ),
    (
        "--no-cache",
        "caching is said by --cache GLOB=VALUE: --cache '**=no-cache'",
    ),
    ("--silent", "--quiet prints nothing at start"),
];

/// What they type for memory, where memcached's name is `--memory-limit`.
const FLAGS_FOR_MEMORY: [&str; 4] = ["--memory", "--max-memory", "--maxmemory", "--mem"];

fn theirs(typed: &str) -> Option<&'static str> {
    let mut rows = THEIR_FLAGS.iter();
    let row = rows.find(|(flags, _)| flags.split(' ').any(|flag| flag == typed));
    row.map(|(_, tip)| *tip)
}

/// The word that is not known, if that is the mistake.
fn unknown(error: &clap::Error) -> Option<String> {
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(word)) if error.kind() == ErrorKind::UnknownArgument => {
            Some(word.clone())
        }
        _ => None,
    }
}

/// clap's tip to pass an unknown flag "as a value" is right nowhere here.
fn drop_tip_about_values(error: &mut clap::Error) {
    let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested) else {
        return;
    };
    tips.retain(|tip| !tip.to_string().contains("as a value"));
    if !tips.is_empty() {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
}

/// Users of other servers type those servers' flags.
fn with_our_name_for_it(error: clap::Error) -> clap::Error {
    let Some(typed) = unknown(&error) else {
        return error;
    };
    if let Some(tip) = theirs(&typed) {
        return suggesting_only(error, tip);
    }
    match typed.as_str() {
        "true" | "false" | "on" | "off" | "yes" | "no" => {
            suggesting_only(error, "a switch takes no value: --listing, or --no-listing")
        }
        word if !word.starts_with('-') => {
            suggesting(error, "one directory is served: weft serve DIR")
        }
        _ => error,
    }
}

/// clap leads to a help of its own only, and the cache has memcached's.
fn with_the_way_to_the_options(error: clap::Error) -> clap::Error {
    match unknown(&error) {
        Some(typed) if FLAGS_FOR_MEMORY.contains(&typed.as_str()) => suggesting_only(
            error,
            "-m MEGABYTES, or --memory-limit, is the memory for items",
        ),
        Some(_) if error.get(ContextKind::SuggestedArg).is_none() => {
            suggesting(error, "weft cache -h lists the options")
        }
        _ => error,
    }
}

/// Says what probably helps: which flag prints the version, which command names experiments, and
/// that a server is a command here.
fn with_a_tip(error: clap::Error) -> clap::Error {
    let is = |kind, text: &str| match error.get(kind) {
        Some(ContextValue::String(found)) => found == text,
        Some(ContextValue::Strings(found)) => found.iter().any(|found| found == text),
        _ => false,
    };
    if is(ContextKind::InvalidSubcommand, "version") {
        return suggesting(error, "weft --version prints it");
    }
    if is(ContextKind::InvalidArg, "<EXPERIMENT>...") {
        return suggesting(error, "weft lab list names the experiments");
    }
    let has_guess = error.get(ContextKind::SuggestedSubcommand).is_some();
    if let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) {
        let is_directory = Path::new(word).is_dir();
        let tip = format!("a directory is served by: weft serve {word}");
        return match is_directory || !has_guess {
            true => suggesting_only(error, tip),
            false => error,
        };
    }
    // Behind a command, its own usage says more.
    let is_of_weft =
        |usage: &str| usage.contains("weft [OPTIONS]") || usage.contains("weft <COMMAND>");
    let usage = error.get(ContextKind::Usage).map(ToString::to_string);
    if let Some(tip) = unknown(&error).as_deref().and_then(theirs)
        && usage.is_some_and(|usage| is_of_weft(&usage))
    {
        return suggesting_only(error, format!("a server is `weft serve DIR`; {tip}"));
    }
    error
}

fn suggesting(mut error: clap::Error, tip: impl Into<StyledStr>) -> clap::Error {
    let tip = ContextValue::StyledStrs(vec![tip.into()]);
    error.insert(ContextKind::Suggested, tip);
    error
}

/// Without what clap guesses, and the usage that it makes of the guess.
fn suggesting_only(mut error: clap::Error, tip: impl Into<StyledStr>) -> clap::Error {
    for guess in [
        ContextKind::SuggestedArg,
        ContextKind::SuggestedSubcommand,
        ContextKind::Usage,
    ] {
        error.remove(guess);
    }
    suggesting(error, tip)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serve(words: &[&str]) -> Layer {
        let words = ["weft", "serve"].iter().chain(words).map(Into::into);
        match read(words) {
            Ok(Invocation::Serve(layer)) => layer,
            Ok(_) => unreachable!("asked to serve"),
            Err(error) => panic!("{error}"),
        }
    }

    fn texts(layer: &Layer, name: &str) -> Vec<String> {
        layer
            .get(name)
            .into_iter()
            .flatten()
            .map(|said| said.text.clone())
            .collect()
    }

    #[test]
    fn the_command_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn every_row_of_the_table_is_a_flag_with_help() {
        let command = command();
        let serve = command.find_subcommand("serve").unwrap();
        for setting in settings::rows::<ServeConfig>() {
            let arg = serve
                .get_arguments()
                .find(|arg| arg.get_id() == setting.name)
                .unwrap();
            let long = arg.get_long_help().unwrap().to_string();
            assert!(long.contains(&setting.env()), "{}", setting.name);
            assert!(long.contains(setting.help), "{}", setting.name);
        }
        for arg in serve.get_arguments() {
            let name = arg.get_id().as_str();
            let find = settings::find::<ServeConfig>;
            let row = find(name).or_else(|| find(name.strip_prefix("no-")?));
            assert!(row.is_some(), "--{name} is not in the table");
        }
    }

    /// Seen: `--address` was given a tip for strangers after it had become a flag here.
    #[test]
    fn what_others_call_it_is_no_flag_of_ours() {
        let command = command();
        let serve = command.find_subcommand("serve").unwrap();
        let of_one = |arg: &Arg| {
            let (short, long) = (arg.get_short(), arg.get_long());
            let short = short.map(|letter| format!("-{letter}"));
            let long = long.map(|name| format!("--{name}"));
            short.into_iter().chain(long)
        };
        let ours: Vec<String> = serve.get_arguments().flat_map(of_one).collect();
        assert!(ours.contains(&"-l".to_owned()), "{ours:?}");
        for flag in THEIR_FLAGS.iter().flat_map(|(flags, _)| flags.split(' ')) {
            assert!(!ours.iter().any(|name| name == flag), "{flag} is ours");
        }
    }

    #[test]
    fn what_was_not_typed_is_not_said() {
        assert!(serve(&[]).is_empty());
        let layer = serve(&["site", "-l", ":80", "--listen", "8080", "--listing"]);
        assert_eq!(texts(&layer, "root"), ["site"]);
        assert_eq!(texts(&layer, "listen"), [":80", "8080"]);
        assert_eq!(texts(&layer, "listing"), ["true"]);
        assert_eq!(layer.len(), 3);
    }

    #[test]
    fn the_last_of_a_switch_and_its_opposite_holds() {
        assert_eq!(
            texts(&serve(&["--listing", "--no-listing"]), "listing"),
            ["false"]
        );
        assert_eq!(
            texts(&serve(&["--no-listing", "--listing"]), "listing"),
            ["true"]
        );
        assert_eq!(
            texts(&serve(&["--no-precompressed"]), "precompressed"),
            ["false"]
        );
    }

    fn check_cache(words: &str, expected: &[(&str, &[&str])]) {
        let typed = cache::typed(words);
        for (name, values) in expected {
            assert_eq!(texts(&typed, name), *values, "{words}");
        }
    }

    #[test]
    fn the_cache_reads_what_getopt_reads() {
        for line in [
            "-p 11300 -vv",
            "-p11300 -v -v",
            "--port=11300 -vv",
            "--po 11300 -vv",
            "-vvp 11300",
        ] {
            check_cache(line, &[("port", &["11300"]), ("verbose", &["on", "on"])]);
        }
    }

    /// Seen: `--t 4`, which memcached takes, was refused. Cause: one of our options begins with the
    /// same letter. Cure: memcached's names are spelled out first.
    #[test]
    fn our_options_make_no_beginning_of_memcacheds_ambiguous() {
        check_cache("--t 4", &[("threads", &["4"])]);
        check_cache("--t=4 --adm :0", &[("threads", &["4"]), ("admin", &[":0"])]);
        check_cache("--au users", &[("auth-file", &["users"])]);
    }

    #[test]
    fn the_last_value_of_the_cache_holds_and_lists_add_up() {
        check_cache(
            "-p 1 -p 2 -l ::1 -l 127.0.0.1,127.0.0.2 -U -1",
            &[
                ("port", &["2"]),
                ("listen", &["::1", "127.0.0.1,127.0.0.2"]),
                ("udp-port", &["-1"]),
            ],
        );
    }

    #[test]
    fn the_cache_has_every_letter_of_memcached() {
        for letter in "pUsalduimMctRbBIvhVPfnLkrSYWCFAXZDeoN".chars() {
            let mut rows = settings::rows::<CacheConfig>();
            assert!(rows.any(|row| row.short == Some(letter)), "-{letter}");
        }
    }
}
