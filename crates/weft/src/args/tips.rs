//! Tips for flags of other programs: the corresponding name in weft.
//!
//! A tip of these tables replaces clap's guess from the spelling.

use std::ffi::OsString;
use std::path::Path;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::command::serve::{self, ServeConfig};
use crate::hints;
use crate::settings::Config;

/// Adds a tip to an error, if there is one for the words typed after this command.
pub(super) fn with_tip(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    let command = words.get(1).and_then(|word| word.to_str());
    let command = command.unwrap_or_default();
    drop_tip_about_values(&mut error);
    if let Some("-V" | "--version") = unknown(&error).as_deref() {
        return suggesting_only(error, "weft --version prints it");
    }
    if let "serve" | "cache" = command
        && let Some(flag) = unknown(&error)
        && let Some(new) = flag.strip_prefix("--").and_then(|name| hints::MOVED.find(name))
    {
        let tip = format!("{flag} is now part of --engine, as in: --engine {new}");
        return suggesting_only(error, tip);
    }
    match command {
        "help" => error,
        "serve" => for_serve(error),
        "cache" => for_cache(error),
        "load" => for_load(error),
        _ => for_others(error),
    }
}

/// The unknown word, if that is the mistake.
fn unknown(error: &clap::Error) -> Option<String> {
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(word)) if error.kind() == ErrorKind::UnknownArgument => {
            Some(word.clone())
        }
        _ => None,
    }
}

/// The unknown word in the place of a command.
fn unknown_command(error: &clap::Error) -> Option<String> {
    match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) => Some(word.clone()),
        _ => None,
    }
}

/// Removes clap's tip to pass an unknown flag "as a value", which never applies here.
fn drop_tip_about_values(error: &mut clap::Error) {
    let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested) else {
        return;
    };
    tips.retain(|tip| !tip.to_string().contains("as a value"));
    if !tips.is_empty() {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
}

fn for_serve(error: clap::Error) -> clap::Error {
    let Some(typed) = unknown(&error) else {
        return error;
    };
    if let Some(tip) = hints::flags("serve").find(&typed) {
        return suggesting_only(error, tip);
    }
    if let Some(tip) = serve::tip_for_port(&typed).or_else(|| tip_for_key(&typed)) {
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

/// Tip for a setting that has no flag.
fn tip_for_key(typed: &str) -> Option<String> {
    let name = typed.strip_prefix("--")?;
    let mut keys = ServeConfig::LISTED.iter();
    let found = keys.find(|setting| setting.name == name);
    let key = found.filter(|setting| setting.is_for_file())?.key();
    Some(format!(
        "it is a key of the settings file: --config FILE with `{key} = …`, or WEFT_{}",
        key.to_uppercase()
    ))
}

/// Adds a tip for the cache. clap only refers to its own help, but the cache has memcached's.
fn for_cache(error: clap::Error) -> clap::Error {
    let Some(typed) = unknown(&error) else {
        return error;
    };
    if let Some(tip) = hints::flags("cache").find(&typed) {
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
        let lower = word.to_ascii_lowercase();
        if lower.starts_with("http://") || lower.starts_with("https://") {
            let tip = format!("HTTP requests are sent by: weft load http {word}");
            return suggesting_only(error, tip);
        }
        let has_guess = error.get(ContextKind::SuggestedSubcommand).is_some();
        return if has_guess && !word.contains(':') { error } else { suggesting_only(error, WHAT) };
    }
    let Some(typed) = unknown(&error) else {
        return error;
    };
    if let Some(tip) = hints::flags("load").find(&typed) {
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

/// Adds the most likely tip: the flag that prints the version, the command that lists experiments,
/// or the command for a server.
fn for_others(error: clap::Error) -> clap::Error {
    if let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg)
        && missing.iter().any(|name| name == "<EXPERIMENT>...")
    {
        return suggesting(error, "weft lab list names the experiments");
    }
    let usage = usage(&error);
    // After a command, its own usage says more.
    if !usage.contains("weft [OPTIONS]") && !usage.contains("weft <COMMAND>") {
        return error;
    }
    if let Some(word) = unknown_command(&error) {
        return for_unknown_command(error, &word);
    }
    if let Some(tip) = unknown(&error).and_then(|typed| hints::flags("serve").find(&typed)) {
        return suggesting_only(error, format!("a server is `weft serve DIR`; {tip}"));
    }
    error
}

fn for_unknown_command(error: clap::Error, word: &str) -> clap::Error {
    let has_guess = error.get(ContextKind::SuggestedSubcommand).is_some();
    if Path::new(word).is_dir() {
        return suggesting_only(error, format!("a directory is served by: weft serve {word}"));
    }
    if let Some(tip) = hints::flags("weft").find(word) {
        return suggesting_only(error, tip);
    }
    if has_guess {
        return error;
    }
    suggesting_only(error, format!("a directory is served by: weft serve {word}"))
}

fn suggesting(mut error: clap::Error, tip: impl Into<StyledStr>) -> clap::Error {
    let tip = ContextValue::StyledStrs(vec![tip.into()]);
    error.insert(ContextKind::Suggested, tip);
    error
}

/// Replaces clap's guess, and the usage based on it, by a tip.
fn suggesting_only(mut error: clap::Error, tip: impl Into<StyledStr>) -> clap::Error {
    for guess in [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::Usage] {
        error.remove(guess);
    }
    suggesting(error, tip)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::command;

    /// The flags of a command and its subcommands.
    fn flags(command: &clap::Command) -> Vec<String> {
        let own = command.get_arguments().flat_map(|arg| {
            let short = arg.get_short().map(|letter| format!("-{letter}"));
            short.into_iter().chain(arg.get_long().map(|name| format!("--{name}")))
        });
        own.chain(command.get_subcommands().flat_map(flags)).collect()
    }

    /// Seen: `--address` still got the tip for unknown flags after it had become a flag of weft.
    #[test]
    fn what_others_call_it_is_no_flag_of_ours() {
        let command = command();
        for name in ["serve", "load", "cache"] {
            let ours = flags(command.find_subcommand(name).unwrap());
            assert!(ours.len() > 9, "{ours:?}");
            for flag in hints::flags(name).names() {
                assert!(!ours.iter().any(|own| own == flag), "{name}: {flag} is a flag of weft");
            }
        }
    }

    #[test]
    fn no_word_is_told_two_things() {
        for name in ["serve", "load", "cache", "weft"] {
            let mut words: Vec<_> = hints::flags(name).names().collect();
            let count = words.len();
            assert!(count > 0, "{name}");
            words.sort_unstable();
            words.dedup();
            assert_eq!(words.len(), count, "{words:?}");
        }
    }
}
