//! `weft load fileset` and `weft load traces`: file sets, and session logs for them.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint, value_parser};

use super::progress;
use crate::failure::Failure;
use crate::os::files;
use ::load::workload::fileset::{FileSet, MANIFEST, Model, Recipe, page_figures, show_table};
use ::load::workload::session_log::{self, UserSession};
use ::load::workload::traces::{self, UserModel};

/// The command that makes files.
pub(super) fn command() -> Command {
    Command::new("fileset")
        .about("Make a set of files for measuring a web server")
        .long_about(
            "Make 21,600 files in 650 directories, 2.3 GB, whose requests by Zipf's law have the cumulative \
             table of T. Delisle's thesis (Waterloo 2022); or, with --model pages, 500 front pages. The same \
             seed makes the same set. fileset.tsv beside the files lists sizes and checksums, for --fileset and \
             --verify.",
        )
        .args([
            directory("dir", "DIR", "Directory for the files: empty or new").required(true),
            number("scale", "PART", "Fraction of the files to make, such as 0.1; sizes stay the same").default_value("1"),
            seed(),
            number("zipf", "EXPONENT", "Exponent of Zipf's law; 0 is uniform").default_value("1"),
            Arg::new("model")
                .long("model")
                .value_parser(["thesis", "pages"])
                .default_value("thesis")
                .help("21,600 files of 2.3 GB, or 500 front pages of 63 MB"),
            Arg::new("table")
                .long("table")
                .action(ArgAction::SetTrue)
                .help("Only print the table; write nothing"),
        ])
}

/// The command that makes session logs.
pub(super) fn traces_command() -> Command {
    Command::new("traces")
        .about("Make session logs for a file set, in httperf's format")
        .long_about(
            "Make session logs (httperf's --wsesslog) for a set that weft load fileset made: most sessions \
             are one request, some open pages with embedded files, with active and idle periods between.",
        )
        .args([
            directory("set", "SET", "Directory of the file set").required(true),
            directory("dir", "DIR", "Directory for session-00.log and so on").required(true),
            count("logs", "Number of logs: one per generator").default_value("16"),
            count("requests", "Minimum number of requests per log").default_value("100000"),
            seed(),
            number("single", "SHARE", "Share of sessions with a single request").default_value("0.7"),
            number("think", "FACTOR", "Factor on all think times; 0 leaves them out").default_value("1"),
        ])
}

fn directory(id: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(id)
        .value_name(value)
        .value_parser(value_parser!(PathBuf))
        .value_hint(ValueHint::DirPath)
        .help(help)
}

fn number(id: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(id)
        .long(id)
        .value_name(value)
        .value_parser(value_parser!(f64))
        .help(help)
}

fn count(id: &'static str, help: &'static str) -> Arg {
    let parser = value_parser!(u32).range(1..=100_000_000);
    Arg::new(id)
        .long(id)
        .value_name("N")
        .value_parser(parser)
        .help(help)
}

fn seed() -> Arg {
    let arg = Arg::new("seed")
        .long("seed")
        .value_name("N")
        .value_parser(value_parser!(u64));
    arg.default_value("1").help("Seed of all random choices")
}

/// Makes the files and prints the table.
///
/// # Errors
/// When the files cannot be made.
pub(super) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let number = |id: &str| *matches.get_one::<f64>(id).expect("it has a default");
    let recipe = Recipe {
        model: match matches.get_one::<String>("model").map(|name| &**name) {
            Some("pages") => Model::Pages,
            _ => Model::Thesis,
        },
        scale: number("scale"),
        seed: *matches.get_one("seed").expect("it has a default"),
        exponent: number("zipf"),
    };
    let mut set = FileSet::plan(recipe).map_err(Failure::Usage)?;
    if !matches.get_flag("table") {
        let directory: &PathBuf = matches.get_one("dir").expect("clap demands it");
        let bar = progress::bytes_bar(set.total_bytes());
        set.write(directory, |bytes| bar.set_position(bytes))
            .map_err(|error| {
                let directory = directory.display();
                Failure::Running(format!("cannot make the files in {directory}: {error}"))
            })?;
        bar.finish_and_clear();
    }
    let mut out = io::stdout().lock();
    let files = set.entries.len();
    let directories = set.directories();
    let megabytes = set.total_bytes() as f64 / 1e6;
    writeln!(
        out,
        "{files} files in {directories} directories, {megabytes:.1} MB; seed {}\n",
        recipe.seed
    )?;
    match recipe.model {
        Model::Thesis => out.write_all(show_table(&set.table(), recipe.scale).as_bytes())?,
        Model::Pages => {
            for (name, published, ours) in page_figures(&set) {
                writeln!(out, "  {name:<20} {ours:>9.1}   published {published:>7.1}")?;
            }
        }
    }
    Ok(())
}

/// Makes the logs and prints what is in them.
///
/// # Errors
/// When the set cannot be read or the logs cannot be written.
pub(super) fn run_traces(matches: &ArgMatches) -> Result<(), Failure> {
    let number = |id: &str| *matches.get_one::<f64>(id).expect("it has a default");
    let count = |id: &str| *matches.get_one::<u32>(id).expect("it has a default");
    let path = |id: &str| matches.get_one::<PathBuf>(id).expect("clap demands it");
    let users = UserModel {
        single_share: number("single"),
        think_scale: number("think"),
    };
    if !(0.0..=1.0).contains(&users.single_share) || !(0.0..=1e3).contains(&users.think_scale) {
        return Err(Failure::Usage(
            "--single must be from 0 to 1, and --think from 0 to 1000".to_owned(),
        ));
    }
    let set = FileSet::read(path("set"))?;
    let directory = path("dir");
    fs::create_dir_all(directory).map_err(|error| {
        Failure::Running(format!("cannot make {}: {error}", directory.display()))
    })?;
    let seed = *matches.get_one("seed").expect("it has a default");
    let mut counts = vec![0; set.entries.len()];
    let mut sessions_made = 0;
    let mut requests_made = 0;
    for log in 0..count("logs") {
        let made = traces::session_log(
            &set,
            &users,
            count("requests") as usize,
            seed,
            u64::from(log),
        );
        let file = directory.join(format!("session-{log:02}.log"));
        write_log(&file, &made).map_err(|error| {
            Failure::Running(format!("cannot write {}: {error}", file.display()))
        })?;
        sessions_made += made.len();
        requests_made += made.iter().map(UserSession::calls).sum::<usize>();
        for (sum, count) in counts
            .iter_mut()
            .zip(traces::requests_per_file(&set, &made))
        {
            *sum += count;
        }
    }
    let mut out = io::stdout().lock();
    let mean = requests_made as f64 / sessions_made as f64;
    writeln!(
        out,
        "{} logs for {}",
        count("logs"),
        path("set").join(MANIFEST).display()
    )?;
    writeln!(
        out,
        "{sessions_made} sessions, {requests_made} requests, {mean:.2} requests per session\n"
    )?;
    out.write_all(show_table(&set.table_of_requests(&counts), set.recipe.scale).as_bytes())?;
    Ok(())
}

fn write_log(file: &Path, made: &[UserSession]) -> io::Result<()> {
    files::write(file, |mut out| session_log::write(made, &mut out))
}
