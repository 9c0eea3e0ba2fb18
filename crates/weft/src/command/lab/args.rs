//! The command line of `weft lab`.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand, value_parser};

use ::lab::catalog::CATALOG;

use crate::value;

/// The subcommand, for clap; `None` in a build without it.
pub(crate) fn command() -> Option<Command> {
    let command = Command::new("lab")
        .about("Experiments: servers and threading runtimes beside each other, with figures")
        .subcommand_required(true)
        .arg_required_else_help(true);
    Some(LabCommand::augment_subcommands(command))
}

/// Parses its arguments.
///
/// # Errors
/// Errors of clap.
pub(crate) fn typed(matches: &ArgMatches) -> Result<LabCommand, clap::Error> {
    LabCommand::from_arg_matches(matches)
}

/// Names that `weft lab run` takes.
pub(crate) fn experiments() -> Vec<&'static str> {
    let experiments = CATALOG.iter().map(|experiment| experiment.name);
    experiments.chain(["all"]).collect()
}

/// The whole command, with the names of experiments, for shells.
pub(crate) fn with_names(weft: Command) -> Command {
    weft.mut_subcommand("lab", |lab| {
        ["run", "list"].into_iter().fold(lab, |lab, name| {
            lab.mut_subcommand(name, |command| {
                command.mut_arg("name", |arg| arg.value_parser(experiments()))
            })
        })
    })
}

// A doc comment would be the help of `weft lab`.
#[derive(Subcommand)]
pub(crate) enum LabCommand {
    /// List the experiments, or describe some.
    List {
        /// Experiments to describe: a name; rt, web or cache for all whose names begin so; or all.
        #[arg(id = "name", value_name = "EXPERIMENT")]
        names: Vec<String>,
    },
    /// List other people's servers, and how to install them.
    Servers,
    /// Run experiments, print their tables, and make a page with figures.
    Run(Box<Run>),
    /// Make the page of figures again from the samples in a folder.
    Report {
        /// The same as --out DIR.
        #[arg(value_name = "DIR", conflicts_with = "out")]
        folder: Option<PathBuf>,
        #[arg(long, value_name = "DIR", help = OUT)]
        out: Option<PathBuf>,
        /// Put each figure into this folder, as NAME.svg, NAME-2.svg and so on.
        #[arg(long, value_name = "DIR")]
        figures: Option<PathBuf>,
        #[arg(
            long,
            value_name = "FILE",
            help = "Fill this document, or those of this folder, between the markers \
                    <!-- begin: lab NAME --> and <!-- end: lab NAME -->. May be repeated"
        )]
        write: Vec<PathBuf>,
    },
    /// Compare two builds by turns, or the results of two runs: exit code 1 if weft became worse.
    Compare(Box<Compare>),
    /// Clean up after a laboratory that has ended.
    #[command(hide = true)]
    Guard { journal: PathBuf },
}

const OUT: &str =
    "Where samples and report.html are [default: weft-lab, of compare weft-lab/compare]";

// Structs of arguments have plain comments: clap would take a doc comment for the command's.

// Settings of all commands that take samples.
#[derive(Args)]
pub(crate) struct Measuring {
    #[arg(
        long = "repeat", value_name = "N", value_parser = value_parser!(u32).range(1..=1000),
        help = "Samples of each configuration on each system [default: 5; with --quick 3; some \
                experiments take more or fewer; of compare 9]"
    )]
    pub(super) repetitions: Option<u32>,
    /// Time for which a sample is measured.
    #[arg(long, value_name = "TIME", value_parser = value::timeout)]
    pub(super) sample: Option<Duration>,
    /// Only configurations with TEXT in their label. May be repeated.
    #[arg(long = "configurations", value_name = "TEXT")]
    pub(super) only: Vec<String>,
    /// Folder for the files that servers serve; on a disk.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub(super) scratch: PathBuf,
    #[arg(long, value_name = "DIR", help = OUT)]
    pub(super) out: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Run {
    /// Experiments to run, as `weft lab list` names them; rt, web or cache for all whose names
    /// begin so; or all.
    #[arg(id = "name", required = true, value_name = "EXPERIMENT")]
    pub(super) names: Vec<String>,
    /// Fewer configurations and shorter samples: a quick look.
    #[arg(long)]
    pub(super) quick: bool,
    /// As many and as long samples as the papers have: 15 of 10 s, or longer. Days for all.
    #[arg(long, conflicts_with = "quick")]
    pub(super) paper: bool,
    /// Exit with 1 if a result differs from the expectation.
    #[arg(long)]
    pub(super) strict: bool,
    /// Continue an interrupted run; existing samples are kept.
    #[arg(long)]
    pub(super) resume: bool,
    /// Time limit: no round begins that would end later. Experiments share it by their length; each
    /// has at least one round.
    #[arg(long, value_name = "TIME", value_parser = value::duration)]
    pub(super) budget: Option<Duration>,
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        value_parser = name,
        help = "Measure only these systems under test [default: all that are installed, but not \
                weft pipeline and servers in Rust]"
    )]
    pub(super) systems: Option<Vec<String>>,
    /// Measure this server as well; {host}, {port} and {root} stand for its address, port and
    /// folder. Or this threading runtime; {program} stands for the program to run. May be repeated.
    #[arg(long = "system", value_name = "NAME=COMMAND")]
    pub(super) custom: Vec<String>,
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        value_parser = name,
        help = "Peers of go, tokio, may, threads to build and measure, or none [default: those \
                that build]"
    )]
    pub(super) peers: Option<Vec<String>>,
    #[arg(
        long,
        value_name = "DIR",
        help = "Where peers are built and kept [default: weft/peers in the user's cache folder]"
    )]
    pub(super) folder: Option<PathBuf>,
    #[arg(
        long,
        value_name = "FILE",
        help = "The weft that serves and generates the load [default: this one]"
    )]
    pub(super) weft: Option<PathBuf>,
    /// Run the load generator on another machine, by ssh; weft is copied there for the time.
    #[arg(long, value_name = "[USER@]HOST")]
    pub(super) generator: Option<String>,
    /// SSH command, with options: 'ssh -F FILE'.
    #[arg(long, value_name = "COMMAND", default_value = "ssh", requires = "generator")]
    pub(super) ssh: String,
    #[arg(
        long,
        value_name = "IPV4",
        requires = "generator",
        help = "Address of this machine at which servers listen for that generator [default: the \
                one that ssh uses]"
    )]
    pub(super) address: Option<Ipv4Addr>,
    #[command(flatten)]
    pub(super) measuring: Measuring,
}

#[derive(Args)]
pub(crate) struct Compare {
    /// The older build, or its folder of results.
    pub(super) old: PathBuf,
    /// The newer build, which also generates the load; or its folder of results.
    pub(super) new: PathBuf,
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        value_parser = name,
        help = "Which experiments' configurations [default: web-rows,cache-rows; of results all]"
    )]
    pub(super) experiments: Option<Vec<String>>,
    /// Forms of weft to compare, as servers and as runtimes.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        value_parser = name,
        default_value = "weft,weft epoll,weft cache,weft stackless,weft migratable"
    )]
    pub(super) forms: Vec<String>,
    #[arg(
        long,
        value_name = "RATIO",
        value_parser = ratio,
        help = "The greatest ratio of the best samples [default: 1.02; of results 1.2]"
    )]
    pub(super) limit: Option<f64>,
    /// Fewer configurations.
    #[arg(long)]
    pub(super) quick: bool,
    #[command(flatten)]
    pub(super) measuring: Measuring,
}

/// Reads a ratio that a loss may have.
fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse().ok().filter(|ratio: &f64| ratio.is_finite() && *ratio >= 1.0);
    ratio.ok_or_else(|| "want a ratio of at least 1, such as 1.05".to_owned())
}

/// Reads a name of a list, without the blanks around it.
fn name(text: &str) -> Result<String, Infallible> {
    Ok(text.trim().to_owned())
}
