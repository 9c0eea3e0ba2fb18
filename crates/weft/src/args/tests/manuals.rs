//! Every command line in manuals, packaging and help: its flags must exist and its values must
//! parse.
//!
//! Nothing is started. The system suite checks that the named files and servers exist.

use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;

use crate::args::{Invocation, read};
use crate::command::cache::CacheConfig;
use crate::command::serve::ServeConfig;
use crate::hints::sections;
use crate::settings::layers::resolve;

/// A command line, and its place.
struct Line {
    place: String,
    words: Vec<String>,
    /// True if it is part of a sentence.
    is_prose: bool,
}

#[test]
fn every_command_line_of_the_docs_is_right() {
    let lines: Vec<Line> = texts().iter().flat_map(lines_of).collect();
    let wrong: Vec<_> = lines.iter().filter_map(mistake).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for command in ["serve", "cache", "load", "doctor", "check-config", "completions", "man"] {
        let has = lines.iter().any(|line| line.words[1] == command);
        assert!(has, "no line of {command} was found");
    }
}

/// Checks the test above, which would also pass if it found no mistakes at all.
#[test]
fn an_unknown_flag_is_found_anywhere() {
    for text in [
        "```\nweft serve --nosuch          with a word about it\n```\n",
        "```sh\nsudo unshare --net sh -c '\n  weft serve site --nosuch & server=$!\n```\n",
        "```\nA=b weft doctor && mpirun -np 4 weft load http \\\n    http://server/ --nosuch\n```\n",
        "```console\n$ sudo target/release/weft load cache host:1 --nosuch\n```\n",
        "```\ncargo run --release -- serve --nosuch     # to try it\n```\n",
        "In prose `weft cache --nosuch` is one as well.\n",
        "```\nweft cache -m 64 & weft cache --nosuch &\n```\n",
        "```\nweft serve --idle-timeout 10\n```\n",
        "ExecStart=/usr/bin/weft cache --nosuch $OPTIONS\n",
    ] {
        let lines = lines_of(&("a text".to_owned(), text.to_owned()));
        assert!(lines.iter().any(|line| mistake(line).is_some()), "{text}");
    }
}

/// Seen: `cargo run --release -- serve examples/site`, the first command of README.md, ended with
/// "could not determine which binary to run". Cause: a second program had been added beside weft.
/// Cure: the manifest names the first as default.
#[test]
fn cargo_run_starts_weft() {
    let manifest: toml::Table = include_str!("../../../Cargo.toml").parse().unwrap();
    let package = manifest["package"].as_table().unwrap();
    let started = package.get("default-run").and_then(toml::Value::as_str);
    assert_eq!(started, Some("weft"));
}

/// Texts for readers, with their names.
fn texts() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = vec![root.join("README.md"), root.join("ARCHITECTURE.md")];
    for folder in ["docs", "docs/fiber", "docs/experiments", "packaging/systemd", "results"] {
        let inside = fs::read_dir(root.join(folder)).unwrap();
        files.extend(inside.map(|entry| entry.unwrap().path()));
    }
    let is_text = |path: &PathBuf| {
        let ending = path.extension().and_then(|ending| ending.to_str());
        ["md", "service", "socket"].contains(&ending.unwrap_or_default())
    };
    let of_files = files.into_iter().filter(is_text).map(|path| {
        let text = fs::read_to_string(&path).unwrap();
        (path.display().to_string(), text)
    });
    let commands =
        ["weft", "serve", "cache", "lab", "load", "doctor", "check-config", "completions", "man"];
    let of_help = commands.into_iter().flat_map(|command| {
        let examples = sections(command).into_iter().filter(|(title, _)| *title == "Examples");
        examples.map(move |(_, text)| (format!("{command} --help"), format!("```\n{text}\n```\n")))
    });
    of_files.chain(of_help).collect()
}

/// The command lines of a text: in blocks of shell commands, between backticks, and in units.
fn lines_of((name, text): &(String, String)) -> Vec<Line> {
    let (mut found, mut told) = (Vec::new(), Vec::new());
    let mut block: Option<bool> = None;
    let joined = text.replace("\\\n", "\u{1}");
    for line in joined.lines() {
        let line = line.replace('\u{1}', " ");
        match (line.trim().strip_prefix("```"), block) {
            (Some(_), Some(_)) => block = None,
            (Some(language), None) => block = Some(["", "sh", "console"].contains(&language)),
            (None, Some(true)) => found.extend(commands_of(&line)),
            (None, Some(false)) => {}
            (None, None) if line.starts_with("Exec") => {
                let (_, command) = line.split_once('=').unwrap_or_default();
                // systemd expands this to any number of words, here to none.
                found.extend(commands_of(&command.replace("$OPTIONS", "")));
            }
            (None, None) => {
                let spans = line.split('`').skip(1).step_by(2);
                told.extend(spans.filter(|span| span.starts_with("weft ")).flat_map(commands_of));
            }
        }
    }
    let line = |words, is_prose| Line { place: name.clone(), words, is_prose };
    let found = found.into_iter().map(|words| line(words, false));
    let told = told.into_iter().map(|words| line(words, true));
    let is_built = |line: &Line| cfg!(feature = "lab") || line.words[1] != "lab";
    found.chain(told).filter(is_built).collect()
}

/// The commands of weft in a shell line, each beginning with `weft`. A line with an ellipsis has
/// none.
fn commands_of(line: &str) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    if line.contains('…') || line.contains("...") {
        return commands;
    }
    for words in simple_commands(line) {
        let Some(begins) = beginning(&words) else {
            continue;
        };
        // A shell expands variables; a number is a valid value wherever one occurs.
        let typed = words[begins + 1..]
            .iter()
            .map(|word| if word.starts_with('$') { "1".to_owned() } else { word.clone() });
        let typed: Vec<String> = typed.collect();
        if !typed.is_empty() {
            commands.push([vec!["weft".to_owned()], typed].concat());
        }
    }
    commands
}

/// Position of `weft`, or of `--` in a line of `cargo run`, if the line runs it and does not only
/// name it.
fn beginning(words: &[String]) -> Option<usize> {
    let at = |wanted: &str| words.iter().position(|word| word == wanted);
    let before = |word: &&String| word.contains('=') || ["do", "sudo"].contains(&word.as_str());
    let first = words.iter().take_while(before).count();
    match words.get(first)?.as_str() {
        "cargo" if words.get(first + 1)? == "run" && at("--example").is_none() => at("--"),
        "mpirun" => at("weft"),
        word if word == "weft" || word.ends_with("/weft") => Some(first),
        _ => None,
    }
}

/// The words of a line, split as by a shell, up to two spaces: these precede an explanation.
fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let line = line.trim().trim_start_matches("$ ");
    let (mut commands, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut quote = None;
    let mut chars = line.chars().peekable();
    while let Some(char) = chars.next() {
        match (quote, char) {
            (Some(open), close) if open == close => quote = None,
            (Some(_), other) => word.get_or_insert_default().push(other),
            (None, '\'' | '"') => {
                quote = Some(char);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, ' ') => {
                words.extend(word.take());
                let is_column = chars.peek() == Some(&' ');
                while chars.next_if_eq(&' ').is_some() {}
                let goes_on = chars.peek().is_some_and(|next| "-&|;".contains(*next));
                if is_column && !goes_on {
                    break;
                }
            }
            (None, '&' | '|' | ';' | '>' | '<') => {
                words.extend(word.take());
                commands.push(std::mem::take(&mut words));
            }
            (None, other) => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    commands.push(words);
    commands
}

fn mistake(line: &Line) -> Option<String> {
    let why = match read(line.words.iter().map(Into::into)) {
        Ok(Invocation::Serve(layer)) => resolve::<ServeConfig>(&[&layer], &[], Vec::new()).err()?,
        Ok(Invocation::Cache(layer)) => CacheConfig::read(layer).err()?,
        Ok(_) => return None,
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => return None,
            // In prose a command is often named without its required arguments.
            ErrorKind::MissingRequiredArgument
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                if line.is_prose =>
            {
                return None;
            }
            _ => error.to_string(),
        },
    };
    Some(format!("{}: {}: {why}", line.place, line.words.join(" ")))
}
