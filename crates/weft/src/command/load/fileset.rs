//! `weft load fileset` and `weft load traces`: file sets, and session logs for them.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint, value_parser};

use super::progress;
use crate::failure::Failure;
use crate::os::files;
use ::load::workload::fileset::{FileSet, MANIFEST, Model, Recipe, page_figures, show_table};
use ::load::workload::session_log::{self, UserSession};
use ::load::workload::traces::{self, UserModel};

/// The command that makes files.
#[derive(Args)]
pub(crate) struct FileSetArgs {
    /// Directory for the files: empty or new.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: PathBuf,
    /// Fraction of the files to make, such as 0.1; sizes stay the same.
    #[arg(long, value_name = "PART", default_value = "1")]
    scale: f64,
    /// Seed of all random choices.
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Exponent of Zipf's law; 0 is uniform.
    #[arg(long, value_name = "EXPONENT", default_value = "1")]
    zipf: f64,
    /// 21,600 files of 2.3 GB, or 500 front pages of 63 MB.
    #[arg(long, default_value = "thesis", value_parser = ["thesis", "pages"])]
    model: String,
    /// Only print the table; write nothing.
    #[arg(long)]
    table: bool,
}

#[derive(Args)]
pub(crate) struct TracesArgs {
    /// Directory of the file set.
    #[arg(value_name = "SET", value_hint = ValueHint::DirPath)]
    set: PathBuf,
    /// Directory for session-00.log and so on.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: PathBuf,
    /// Number of logs: one per generator.
    #[arg(long, value_name = "N", default_value = "16", value_parser = value_parser!(u32).range(1..=COUNT_MAX))]
    logs: u32,
    /// Minimum number of requests per log.
    #[arg(long, value_name = "N", default_value = "100000", value_parser = value_parser!(u32).range(1..=COUNT_MAX))]
    requests: u32,
    /// Seed of all random choices.
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Share of sessions with a single request.
    #[arg(long, value_name = "SHARE", default_value = "0.7")]
    single: f64,
    /// Factor on all think times; 0 leaves them out.
    #[arg(long, value_name = "FACTOR", default_value = "1")]
    think: f64,
}

/// Limit on numbers; a larger one is a typing error.
const COUNT_MAX: i64 = 100_000_000;

pub(super) fn run(args: &FileSetArgs) -> Result<(), Failure> {
    let recipe = Recipe {
        model: match &*args.model {
            "pages" => Model::Pages,
            _ => Model::Thesis,
        },
        scale: args.scale,
        seed: args.seed,
        exponent: args.zipf,
    };
    let mut set = FileSet::plan(recipe).map_err(Failure::Usage)?;
    if !args.table {
        let bar = progress::bytes_bar(set.total_bytes());
        set.write(&args.dir, |bytes| bar.set_position(bytes)).map_err(|error| {
            let directory = args.dir.display();
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

/// Makes the logs and prints a summary.
///
/// # Errors
/// If the set cannot be read or the logs cannot be written.
pub(super) fn run_traces(args: &TracesArgs) -> Result<(), Failure> {
    let users = UserModel { single_share: args.single, think_scale: args.think };
    if !(0.0..=1.0).contains(&users.single_share) || !(0.0..=1e3).contains(&users.think_scale) {
        return Err(Failure::Usage(
            "--single must be from 0 to 1, and --think from 0 to 1000".to_owned(),
        ));
    }
    let set = FileSet::read(&args.set)?;
    let directory = &args.dir;
    fs::create_dir_all(directory).map_err(|error| {
        Failure::Running(format!("cannot make {}: {error}", directory.display()))
    })?;
    let mut counts = vec![0; set.entries.len()];
    let mut sessions_made = 0;
    let mut requests_made = 0;
    for log in 0..args.logs {
        let made =
            traces::session_log(&set, &users, args.requests as usize, args.seed, u64::from(log));
        let file = directory.join(format!("session-{log:02}.log"));
        write_log(&file, &made).map_err(|error| {
            Failure::Running(format!("cannot write {}: {error}", file.display()))
        })?;
        sessions_made += made.len();
        requests_made += made.iter().map(UserSession::calls).sum::<usize>();
        for (sum, count) in counts.iter_mut().zip(traces::requests_per_file(&set, &made)) {
            *sum += count;
        }
    }
    let mut out = io::stdout().lock();
    let mean = requests_made as f64 / sessions_made as f64;
    writeln!(out, "{} logs for {}", args.logs, args.set.join(MANIFEST).display())?;
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
