//! Tips for flags of other programs: the name of the same thing here.
//!
//! A tip of these tables replaces clap's guess from the spelling.

use std::ffi::OsString;
use std::path::Path;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::command::serve;
use crate::engine;

/// Words, separated by spaces, and what they are here.
type Tips = &'static [(&'static str, &'static str)];

/// Flags of nginx, caddy, miniserve, http-server, static-web-server, darkhttpd.
const OF_SERVERS: Tips = &[
    (
        "-p --port -b --bind --host --addr --interface --interfaces --domain",
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
        "-t --threads --worker-processes",
        "the number of kernel threads is --workers N",
    ),
    (
        "--worker-connections --maxconn",
        "the maximum number of connections is --max-connections N",
    ),
    (
        "-v --verbose --log --log-file --access-logs --log-level",
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
        "-g --gzip --brotli --compression",
        "FILE.gz, FILE.br or FILE.zst beside FILE is sent to clients that take it; --compress \
         makes them in memory",
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
        "--memory-budget SIZE is the memory for file contents",
    ),
    (
        "--max-age --cache-control --expires",
        "Cache-Control is set by --cache GLOB=VALUE: --cache '**=max-age=3600'",
    ),
    (
        "--404 --page-404",
        "a page of your own is --error-page 404=FILE",
    ),
    (
        "--no-cache",
        "Cache-Control is set by --cache GLOB=VALUE: --cache '**=no-cache'",
    ),
    ("--silent", "--quiet prints nothing at start"),
    (
        "--auth --password --htpasswd",
        "--basic-auth '**=FILE' asks for the passwords in FILE",
    ),
    (
        "--upload --upload-files --proxy --reverse-proxy --http2 --http3",
        "there are no uploads, proxying or HTTP/2 here: put a proxy that has them in front",
    ),
    (
        "-T --test",
        "a configuration file is checked by: weft check-config FILE",
    ),
];

/// Flags of wrk, hey, ab, oha, bombardier, k6, curl, memtier, mutilate.
const OF_GENERATORS: Tips = &[
    (
        "--concurrency --concurrent --clients --conns --users --vus -C",
        "connections open at the same time are --connections N, or -c N",
    ),
    (
        "--qps --rps --rate-limit",
        "requests per second are --rate N, or -R N",
    ),
    (
        "--num --number --count --total -N",
        "the number of requests is --requests N, or -n N",
    ),
    (
        "-z --time --timelimit --length --runtime --test-time",
        "how long to measure is --duration TIME, or -d TIME, as in 30s",
    ),
    (
        "--latency --latencies --histogram --percentiles -l",
        "percentiles of the latency are always shown; --hgrm FILE writes all of them",
    ),
    (
        "-k --keepalive --keep-alive",
        "connections stay open; --close makes a new one for every request",
    ),
    (
        "--disable-keepalive --no-keepalive --reconnect",
        "--close makes a new connection for every request",
    ),
    (
        "--pipeline --pipelining -P",
        "--depth N is the number of requests under way on one connection",
    ),
    ("-X --request", "the request method is --method NAME, or -m"),
    (
        "-D --data --data-binary --data-raw --form",
        "the body of every request is --body TEXT or --body-file FILE",
    ),
    (
        "-s --script --lua",
        "there are no scripts: --paths FILE has what to ask for, --sessions FILE what follows what",
    ),
    (
        "--workers --cpus -w",
        "--threads N, or -t N, is the number of kernel threads",
    ),
    (
        "--insecure --tls --ssl --https --http2 -2",
        "HTTP/1.1 in clear text is spoken, no TLS and no HTTP/2",
    ),
    (
        "--host --server --port --url -p -S -u",
        "the server has no flag: weft load http URL, or weft load cache HOST:PORT",
    ),
    (
        "--stages --ramp --ramp-up",
        "a rate that changes is --course, as in '0..10k:30s,10k:1m'",
    ),
    ("--data-size", "how long values are is --value-size SIZES"),
    ("--ratio --update", "the share of sets is --sets PERCENT"),
    ("--output -o --format", "--json FILE writes the result"),
    (
        "-v --verbose --debug",
        "a progress line is shown while a run lasts, and --csv writes a line per interval",
    ),
];

/// Names of other caches for memcached's `--memory-limit`.
const OF_CACHES: Tips = &[(
    "--memory --max-memory --maxmemory --mem",
    "-m MEGABYTES, or --memory-limit, is the memory for items",
)];

/// Earlier names of flags of `weft lab`.
const OF_THE_LAB: Tips = &[
    ("--subjects", "which systems to measure is --systems NAMES"),
    ("--subject", "a system of your own is --system NAME=COMMAND"),
    (
        "--cells --cell",
        "which configurations to measure is --configurations TEXT",
    ),
];

/// Words in a command's place.
const COMMANDS: Tips = &[
    ("version", "weft --version prints it"),
    (
        "stop quit kill restart reload",
        "signals do that: SIGTERM stops a server, SIGHUP reloads it (`systemctl reload weft`)",
    ),
    (
        "start run server http http-server web file-server static",
        "a directory is served by: weft serve DIR",
    ),
    (
        "check test validate configtest",
        "a configuration file is checked by: weft check-config FILE",
    ),
    ("memcached", "that is: weft cache"),
    (
        "bench benchmark wrk hey ab oha",
        "a server is measured by: weft load http URL",
    ),
];

fn find(tips: Tips, typed: &str) -> Option<&'static str> {
    let mut rows = tips.iter();
    let row = rows.find(|(words, _)| words.split(' ').any(|word| word == typed));
    row.map(|(_, tip)| *tip)
}

/// The error with a tip, if there is one for what was typed behind this command.
pub(super) fn with_tip(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    let command = words.get(1).and_then(|word| word.to_str());
    let command = command.unwrap_or_default();
    drop_tip_about_values(&mut error);
    if let Some("-V" | "--version") = unknown(&error).as_deref() {
        return suggesting_only(error, "weft --version prints it");
    }
    if let "serve" | "cache" = command
        && let Some(flag) = unknown(&error)
        && let Some(tip) = for_moved(&flag, words)
    {
        return suggesting_only(error, tip);
    }
    match command {
        "help" => error,
        "serve" => for_serve(error),
        "cache" => for_cache(error),
        "load" => for_load(error),
        "lab" => for_lab(error),
        _ => for_others(error),
    }
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

/// The word in a command's place that is none.
fn unknown_command(error: &clap::Error) -> Option<String> {
    match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) => Some(word.clone()),
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

/// Tip for a flag that became a key of `--engine`, with the value that was typed for it.
fn for_moved(flag: &str, words: &[OsString]) -> Option<String> {
    let new = engine::moved(flag.strip_prefix("--")?, value_of(flag, words))?;
    Some(format!("{flag} is now part of --engine: --engine {new}"))
}

/// The value of a flag, as `--flag value` or `--flag=value`; "" if it has none.
fn value_of<'a>(flag: &str, words: &'a [OsString]) -> &'a str {
    let mut words = words.iter().map(|word| word.to_str().unwrap_or_default());
    let value = words.find_map(|word| word.strip_prefix(flag).filter(|rest| is_end(rest)));
    match value {
        Some("") => words.next().unwrap_or_default(),
        Some(value) => &value[1..],
        None => "",
    }
}

/// True if this is what can stand behind a whole flag in its word.
fn is_end(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('=')
}

fn for_serve(error: clap::Error) -> clap::Error {
    let Some(typed) = unknown(&error) else {
        return error;
    };
    if let Some(tip) = find(OF_SERVERS, &typed) {
        return suggesting_only(error, tip);
    }
    if let Some(tip) = serve::tip_for_port(&typed) {
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

fn for_lab(error: clap::Error) -> clap::Error {
    match unknown(&error).and_then(|typed| find(OF_THE_LAB, &typed)) {
        Some(tip) => suggesting_only(error, tip),
        None => for_others(error),
    }
}

/// clap leads to a help of its own only, and the cache has memcached's.
fn for_cache(error: clap::Error) -> clap::Error {
    let Some(typed) = unknown(&error) else {
        return error;
    };
    if let Some(tip) = find(OF_CACHES, &typed) {
        return suggesting_only(error, tip);
    }
    if error.get(ContextKind::SuggestedArg).is_none() {
        return suggesting(error, "weft cache -h lists the options");
    }
    error
}

fn for_load(error: clap::Error) -> clap::Error {
    const WHAT: &str = "say what to send: weft load http URL, or weft load cache HOST:PORT";
    if let Some(word) = unknown_command(&error) {
        if word.to_ascii_lowercase().starts_with("http://") {
            let tip = format!("HTTP requests are sent by: weft load http {word}");
            return suggesting_only(error, tip);
        }
        if word.to_ascii_lowercase().starts_with("https://") {
            return suggesting_only(
                error,
                "HTTP is spoken in clear text only: weft load http URL",
            );
        }
        let has_guess = error.get(ContextKind::SuggestedSubcommand).is_some();
        return if has_guess && !word.contains(':') {
            error
        } else {
            suggesting_only(error, WHAT)
        };
    }
    let Some(typed) = unknown(&error) else {
        return error;
    };
    if let Some(tip) = find(OF_GENERATORS, &typed) {
        return suggesting_only(error, tip);
    }
    if usage(&error).contains("load [OPTIONS] <COMMAND>")
        || usage(&error).contains("load <COMMAND>")
    {
        return suggesting_only(error, WHAT);
    }
    error
}

fn usage(error: &clap::Error) -> String {
    let usage = error.get(ContextKind::Usage).map(ToString::to_string);
    usage.unwrap_or_default()
}

/// Says what probably helps: which flag prints the version, which command names experiments, and
/// that a server is a command here.
fn for_others(error: clap::Error) -> clap::Error {
    if let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg)
        && missing.iter().any(|name| name == "<EXPERIMENT>...")
    {
        return suggesting(error, "weft lab list names the experiments");
    }
    let usage = usage(&error);
    // Behind a command, its own usage says more.
    if !usage.contains("weft [OPTIONS]") && !usage.contains("weft <COMMAND>") {
        return error;
    }
    if let Some(word) = unknown_command(&error) {
        return for_unknown_command(error, &word);
    }
    if let Some(tip) = unknown(&error).and_then(|typed| find(OF_SERVERS, &typed)) {
        return suggesting_only(error, format!("a server is `weft serve DIR`; {tip}"));
    }
    error
}

fn for_unknown_command(error: clap::Error, word: &str) -> clap::Error {
    let has_guess = error.get(ContextKind::SuggestedSubcommand).is_some();
    if Path::new(word).is_dir() {
        return suggesting_only(
            error,
            format!("a directory is served by: weft serve {word}"),
        );
    }
    if let Some(tip) = find(COMMANDS, word) {
        return suggesting_only(error, tip);
    }
    if has_guess {
        return error;
    }
    suggesting_only(
        error,
        format!("a directory is served by: weft serve {word}"),
    )
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
    use crate::args::command;

    /// The flags of a command, and of those below it.
    fn flags(command: &clap::Command) -> Vec<String> {
        let own = command.get_arguments().flat_map(|arg| {
            let short = arg.get_short().map(|letter| format!("-{letter}"));
            short
                .into_iter()
                .chain(arg.get_long().map(|name| format!("--{name}")))
        });
        own.chain(command.get_subcommands().flat_map(flags))
            .collect()
    }

    /// Seen: `--address` was given a tip for strangers after it had become a flag here.
    #[test]
    fn what_others_call_it_is_no_flag_of_ours() {
        let command = command();
        for (name, tips) in [
            ("serve", OF_SERVERS),
            ("load", OF_GENERATORS),
            ("cache", OF_CACHES),
            ("lab", OF_THE_LAB),
        ] {
            let ours = flags(command.find_subcommand(name).unwrap());
            assert!(ours.len() > 9, "{ours:?}");
            for flag in tips.iter().flat_map(|(flags, _)| flags.split(' ')) {
                assert!(
                    !ours.iter().any(|own| own == flag),
                    "{name}: {flag} is ours"
                );
            }
        }
    }

    #[test]
    fn tips_for_moved_flags_keep_the_value() {
        for (line, tip) in [
            ("serve --io uring", "--engine fiber:io=uring"),
            ("serve site --io=uring -q", "--engine fiber:io=uring"),
            ("cache --fibers 9", "--engine fiber:fibers=9"),
            ("cache --io", "--engine fiber:io=auto|uring|epoll"),
            ("serve --io --quiet", "--engine fiber:io=auto|uring|epoll"),
        ] {
            let words = ["weft"].into_iter().chain(line.split(' '));
            let error = crate::args::read(words.map(Into::into)).err().unwrap();
            let said = error.to_string();
            let mut lines = said.lines();
            assert!(lines.any(|line| line.ends_with(tip)), "{line}: {said}");
        }
    }

    #[test]
    fn no_word_is_told_two_things() {
        for tips in [OF_SERVERS, OF_GENERATORS, OF_CACHES, OF_THE_LAB, COMMANDS] {
            let mut words: Vec<_> = tips
                .iter()
                .flat_map(|(words, _)| words.split(' '))
                .collect();
            let count = words.len();
            words.sort_unstable();
            words.dedup();
            assert_eq!(words.len(), count, "{words:?}");
        }
    }
}
