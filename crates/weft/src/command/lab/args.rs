//! The command line of `weft lab`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use crate::value;

/// The command that was typed.
pub(crate) enum LabCommand {
    /// Say what there is, or what some of it is about.
    List { names: Vec<String> },
    /// Say which servers of others there are.
    Servers,
    /// Run experiments.
    Run(Box<Run>),
    /// Make the report again.
    Report {
        folder: PathBuf,
        write: Vec<PathBuf>,
        figures: Option<PathBuf>,
    },
    /// Compare two builds, or two runs.
    Compare(Box<Compare>),
    /// Remove what a laboratory leaves, as soon as it is gone.
    Guard { journal: PathBuf },
}

/// Settings of all commands that take samples.
pub(crate) struct Measuring {
    pub(super) folder: PathBuf,
    pub(super) scratch: PathBuf,
    pub(super) repetitions: Option<u32>,
    pub(super) sample: Option<Duration>,
    pub(super) only: Vec<String>,
    pub(super) weft: Option<PathBuf>,
}

/// Settings of `weft lab run`.
pub(crate) struct Run {
    pub(super) names: Vec<String>,
    pub(super) quick: bool,
    pub(super) paper: bool,
    pub(super) strict: bool,
    pub(super) resume: bool,
    pub(super) budget: Option<Duration>,
    pub(super) systems: Option<Vec<String>>,
    pub(super) custom: Vec<String>,
    pub(super) peers: Option<Vec<String>>,
    pub(super) folder: Option<PathBuf>,
    pub(super) measuring: Measuring,
}

/// Settings of `weft lab compare`.
pub(crate) struct Compare {
    pub(super) old: PathBuf,
    pub(super) new: PathBuf,
    pub(super) experiments: Option<Vec<String>>,
    pub(super) forms: Vec<String>,
    pub(super) limit: Option<f64>,
    pub(super) quick: bool,
    pub(super) measuring: Measuring,
}

/// The subcommand, as clap sees it.
pub(crate) fn command() -> Command {
    let journal = path("journal", "journal").required(true);
    let guard = Command::new("guard").hide(true).arg(journal);
    Command::new("lab")
        .about("Experiments: servers and threading runtimes beside each other, with figures")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([
            Command::new("list")
                .about("List the experiments, or say what some are about")
                .arg(
                    Arg::new("name")
                        .value_name("EXPERIMENT")
                        .num_args(0..)
                        .help("What to tell about: a name, rt, web or cache for all that begin so, or all"),
                ),
            Command::new("servers").about("List other people's servers, and how to install them"),
            run(),
            report(),
            compare(),
            guard,
        ])
}

fn run() -> Command {
    let names = Arg::new("name").value_name("EXPERIMENT").num_args(1..);
    let command = Command::new("run")
        .about("Run experiments, print their tables, and make a page with figures")
        .args([
            names.required(true).help(
                "As `weft lab list` names them; rt, web or cache for all that begin so; or all",
            ),
            flag("quick").help("Fewer configurations and shorter samples: a quick look"),
            flag("paper").conflicts_with("quick").help(
                "As many and as long samples as the papers have: 15 of 10 s, or longer. Days for \
                 all",
            ),
            flag("strict").help("Exit with 1 when something does not come out as expected"),
            flag("resume").help("Go on with what was interrupted: samples that are there stay"),
            option("budget", "TIME")
                .help(
                    "Begin no round that would end later than this. Experiments share it by how \
                     long they take; each has one round at least",
                )
                .value_parser(value::duration),
            names_of("systems").help(
                "Measure only these systems under test [default: all that are installed, but not \
                 weft pipeline]",
            ),
            option("system", "NAME=COMMAND").action(ArgAction::Append).help(
                "Measure this server as well; {port} and {root} stand for its port and folder. Or \
                 this threading runtime; {program} stands for the program to run. May be repeated",
            ),
            names_of("peers").help(
                "Which of go, tokio, may, threads to build and measure, or none [default: those \
                 that build]",
            ),
            path("folder", "DIR").long("folder").help(
                "Where peers are built and kept [default: weft/peers in the user's cache folder]",
            ),
            path("weft", "FILE")
                .long("weft")
                .help("The weft that serves and generates the load [default: this one]"),
        ]);
    measuring(
        command,
        "Samples of each configuration on each system [default: 5; with --quick 3; some experiments \
         take more]",
    )
}

fn report() -> Command {
    Command::new("report")
        .about("Make the page of figures again from the samples in a folder")
        .args([
            path("folder", "DIR")
                .conflicts_with("out")
                .help("The same as --out DIR"),
            results(),
            path("figures", "DIR")
                .long("figures")
                .help("Put each figure into this folder, as NAME.svg, NAME-2.svg and so on"),
            path("write", "FILE")
                .long("write")
                .action(ArgAction::Append)
                .help(
                    "Fill this document, or those of this folder, between the markers \
                     <!-- begin: lab NAME --> and <!-- end: lab NAME -->. May be repeated",
                ),
        ])
}

fn compare() -> Command {
    let command = Command::new("compare")
        .about("Compare two builds by turns, or the results of two runs: exit code 1 if weft became worse")
        .args([
            path("old", "OLD")
                .required(true)
                .help("The build before, or its folder of results"),
            path("new", "NEW")
                .required(true)
                .help("The build after, which makes the load; or its folder of results"),
            names_of("experiments")
                .help("Which experiments' configurations [default: web-rows,cache-rows; of results all]"),
            names_of("forms").help(
                "Which forms of weft, and which of its fibers [default: weft,weft epoll,weft \
                 cache,weft stackless,weft migratable]",
            ),
            option("limit", "RATIO")
                .help("The greatest ratio of the best samples [default: 1.02; of results 1.2]")
                .value_parser(value_parser!(f64)),
            flag("quick").help("Fewer configurations"),
        ]);
    measuring(
        command,
        "Samples of each configuration on each build [default: 9]",
    )
}

fn measuring(command: Command, repeat: &'static str) -> Command {
    command.args([
        option("repeat", "N")
            .help(repeat)
            .value_parser(value_parser!(u32).range(1..=1000)),
        option("sample", "TIME")
            .help("How long a sample is measured")
            .value_parser(value::timeout),
        option("configurations", "TEXT")
            .help("Only configurations with TEXT in their label. May be repeated")
            .action(ArgAction::Append),
        path("scratch", "DIR")
            .long("scratch")
            .help("Where files are that servers serve; on a disk [default: /var/tmp]"),
        results(),
    ])
}

fn results() -> Arg {
    path("out", "DIR")
        .long("out")
        .help("Where samples and report.html are [default: weft-lab, of compare weft-lab/compare]")
}

fn flag(name: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue)
}

fn option(name: &'static str, value: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value)
}

/// Names between commas.
fn names_of(name: &'static str) -> Arg {
    option(name, "NAMES").value_delimiter(',')
}

fn path(name: &'static str, value: &'static str) -> Arg {
    Arg::new(name)
        .value_name(value)
        .value_parser(value_parser!(PathBuf))
}

/// The command that clap has read.
pub(crate) fn asked(matches: &ArgMatches) -> LabCommand {
    let (name, matches) = matches.subcommand().expect("clap demands a command");
    let file = |id: &str| matches.get_one::<PathBuf>(id).cloned();
    match name {
        "list" => LabCommand::List {
            names: many(matches, "name").unwrap_or_default(),
        },
        "servers" => LabCommand::Servers,
        "guard" => LabCommand::Guard {
            journal: file("journal").expect("clap demands it"),
        },
        "report" => LabCommand::Report {
            folder: file("out")
                .or_else(|| file("folder"))
                .unwrap_or_else(|| RESULTS.into()),
            figures: file("figures"),
            write: matches
                .get_many::<PathBuf>("write")
                .map_or(Vec::new(), |files| files.cloned().collect()),
        },
        "compare" => LabCommand::Compare(Box::new(Compare {
            old: file("old").expect("clap demands it"),
            new: file("new").expect("clap demands it"),
            experiments: many(matches, "experiments"),
            forms: many(matches, "forms").unwrap_or_else(|| FORMS.map(str::to_owned).into()),
            limit: matches.get_one("limit").copied(),
            quick: matches.get_flag("quick"),
            measuring: Measuring::asked(matches, None, COMPARISONS),
        })),
        _ => LabCommand::Run(Box::new(Run {
            names: many(matches, "name").expect("clap demands it"),
            quick: matches.get_flag("quick"),
            paper: matches.get_flag("paper"),
            strict: matches.get_flag("strict"),
            resume: matches.get_flag("resume"),
            budget: matches.get_one("budget").copied(),
            systems: many(matches, "systems"),
            custom: many(matches, "system").unwrap_or_default(),
            peers: many(matches, "peers"),
            folder: file("folder"),
            measuring: Measuring::asked(matches, file("weft"), RESULTS),
        })),
    }
}

const RESULTS: &str = "weft-lab";
/// Not among the results of runs.
const COMPARISONS: &str = "weft-lab/compare";
/// Forms of weft as a server and as fibers; one name is of both.
const FORMS: [&str; 5] = [
    "weft",
    "weft epoll",
    "weft cache",
    "weft stackless",
    "weft migratable",
];

fn many(matches: &ArgMatches, id: &str) -> Option<Vec<String>> {
    let values = matches.get_many::<String>(id);
    values.map(|values| values.cloned().collect())
}

impl Measuring {
    fn asked(matches: &ArgMatches, weft: Option<PathBuf>, folder: &str) -> Measuring {
        let file = |id: &str| matches.get_one::<PathBuf>(id).cloned();
        Measuring {
            folder: file("out").unwrap_or_else(|| folder.into()),
            scratch: file("scratch").unwrap_or_else(|| "/var/tmp".into()),
            repetitions: matches.get_one("repeat").copied(),
            sample: matches.get_one("sample").copied(),
            only: many(matches, "configurations").unwrap_or_default(),
            weft,
        }
    }
}

/// Sections of the long help behind the options.
pub(crate) const SECTIONS: &[(&str, &str)] = &[
    (
        "Examples",
        "weft lab list\n\
         weft lab run rt-yield --quick\n\
         sudo weft lab run web-rows\n\
         sudo weft lab run cache --budget 20m\n\
         sudo weft lab run web-rows --system 'mine=/opt/my-server --port {port} {root}'\n\
         sudo weft lab compare /tmp/weft-before target/release/weft\n\
         weft lab compare weft-lab-of-last-week weft-lab",
    ),
    (
        "What comes out",
        "A table of medians with (least–greatest), each expectation with the figures that decided\n\
         it, and weft-lab/report.html with figures, method and machine. Every sample is a line of\n\
         weft-lab/samples/EXPERIMENT.jsonl. Systems take turns, so that a slow minute hits all\n\
         alike; a sample that others disturbed is taken again.",
    ),
    (
        "Root",
        "As root, servers run in a network of their own, ahead of everything else, and their memory\n\
         can be limited. Without root there are the cores, and the report says what that does.\n\
         Whatever ends it, the laboratory leaves no process, network, group or folder behind.",
    ),
];
