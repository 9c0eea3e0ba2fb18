//! The command line: its grammar (built from [rows](crate::settings)) and its parsed values.

#[cfg(test)]
mod tests;
mod tips;

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, ValueHint, value_parser};
use clap_complete::Shell;

use crate::command::cache::{self, CacheConfig};
use crate::command::lab;
use crate::command::load;
use crate::command::serve::ServeConfig;
use crate::command::top;
use crate::hints;
use crate::settings::{self, arguments, layer::Layer};

/// The parsed command.
pub(crate) enum Invocation {
    /// Serve, with these settings.
    Serve(Layer),
    /// Run a cache, with these options.
    Cache(Layer),
    /// Print the engines and their keys.
    Engines,
    /// Measure a server.
    Load(load::LoadCommand),
    /// Watch a server, with these arguments.
    Top(Box<ArgMatches>),
    /// Report what the machine allows.
    Doctor { json: bool, color: Option<String> },
    /// Run experiments.
    Lab(lab::LabCommand),
    /// Check a configuration file.
    CheckConfig { file: PathBuf, explain: Option<String> },
    /// Print a shell's completions.
    Completions { shell: Shell },
    /// Print man pages: one, or all of them into a directory.
    Man { command: Vec<String>, dir: Option<PathBuf> },
}

/// Reads the command line of a server: see [`ReadServerFlags`](top::ReadServerFlags).
pub(crate) fn server_flags(words: Vec<std::ffi::OsString>) -> Option<top::ServerFlags> {
    match read(words).ok()? {
        Invocation::Serve(flags) => Some(top::ServerFlags::Serve(flags)),
        Invocation::Cache(flags) => Some(top::ServerFlags::Cache(flags)),
        _ => None,
    }
}

/// Reads the command line.
///
/// # Errors
/// clap's error; for `--help` and `--version` it is the text to print.
pub(crate) fn read(
    words: impl IntoIterator<Item = std::ffi::OsString>,
) -> Result<Invocation, clap::Error> {
    let mut words: Vec<_> = words.into_iter().collect();
    let command_typed = words.get(1).map(|word| word.to_string_lossy().into_owned());
    if command_typed.as_deref() == Some("cache") {
        words.iter_mut().skip(2).for_each(cache::spell_out);
    }
    let read = command().try_get_matches_from(&words);
    let mut matches = read.map_err(|error| tips::with_tip(error, &words))?;
    let (name, mut matches) = matches.remove_subcommand().expect("clap requires a command");
    let matches = &mut matches;
    let path = |id: &str| matches.get_one::<PathBuf>(id).cloned();
    let asks_for_engines = |matches: &ArgMatches| {
        let engine = matches.get_one::<String>("engine");
        engine.is_some_and(|engine| engine == "help")
    };
    Ok(match name.as_str() {
        "serve" | "cache" if asks_for_engines(matches) => Invocation::Engines,
        "serve" => Invocation::Serve(arguments::typed::<ServeConfig>(matches)),
        "cache" => Invocation::Cache(arguments::typed::<CacheConfig>(matches)),
        "load" => Invocation::Load(load::LoadCommand::from_arg_matches(matches)?),
        "top" => Invocation::Top(Box::new(matches.clone())),
        "doctor" => Invocation::Doctor {
            json: matches.get_flag("json"),
            color: matches.get_one::<String>("color").cloned(),
        },
        "lab" => Invocation::Lab(lab::typed(matches)?),
        "check-config" => Invocation::CheckConfig {
            file: path("file").expect("clap requires this value"),
            explain: matches.get_one::<String>("explain").cloned(),
        },
        "completions" => Invocation::Completions {
            shell: *matches.get_one::<Shell>("shell").expect("clap requires this value"),
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

/// The whole command, for clap.
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
        .subcommands([serve(), cache(), top::command(after_help("top"))])
        .subcommands(lab::command().map(|lab| lab.after_long_help(after_help("lab"))))
        .subcommands([
            load::args::command(after_help("load")),
            doctor(),
            check_config(),
            completions(),
            man(),
        ])
}

fn after_help(command: &str) -> String {
    let sections = hints::sections(command).into_iter().map(|(title, text)| {
        let lines: String = text.lines().map(|line| format!("\n  {line}")).collect();
        format!("{title}:{lines}")
    });
    sections.collect::<Vec<_>>().join("\n\n")
}

fn serve() -> Command {
    let command = Command::new("serve")
        .about("Serve a directory over HTTP")
        .long_about(
            "Serve a directory over HTTP/1.1 and HTTP/2.\n\nEverything that can be set may be typed as a \
             flag, written in a TOML file (--config) as a key with underscores (access_log), or \
             put in the environment (WEFT_ACCESS_LOG). Flags override the environment, and the environment overrides the file. A list at a higher level replaces the whole list of a lower one.",
        )
        // The last value of an option applies.
        .args_override_self(true)
        .after_help("`weft serve --help` tells more, with examples.")
        .after_long_help(after_help("serve"));
    arguments::add::<ServeConfig>(command)
}

fn cache() -> Command {
    let command = Command::new("cache")
        .about("A cache that memcached's clients cannot tell from memcached")
        .long_about(
            "A cache that speaks memcached's protocols (text, meta, binary) and takes memcached's \
             flags.\n\nAn option that is not supported is refused with the reason. An option that has no \
             effect here is accepted; -v lists it.",
        )
        // memcached parses its command line with getopt_long(3): `-vv`, `-p11211`, `-dp 11211`,
        // `--port=11211`, and any unambiguous prefix of a long name. The last value of an option
        // applies.
        .infer_long_args(true)
        .args_override_self(true)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .after_long_help(after_help("cache"));
    arguments::add::<CacheConfig>(command)
}

fn doctor() -> Command {
    let color = settings::find::<ServeConfig>("color").expect("a row of the table");
    Command::new("doctor")
        .about("Report what this kernel and its limits allow, and what to change")
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON"))
        .args(arguments::arguments("", color))
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
        .arg(path_argument("file", "FILE").required(true).help("The TOML file"))
        .arg(
            Arg::new("explain")
                .long("explain")
                .value_name("URL")
                .help("Print host, file, header and rules, with file and line, of a GET of URL"),
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
    let hint = if id == "dir" { ValueHint::DirPath } else { ValueHint::FilePath };
    Arg::new(id).value_name(value).value_parser(value_parser!(PathBuf)).value_hint(hint)
}
