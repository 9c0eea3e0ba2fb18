//! `weft lab`: the laboratory's experiments, with this program as one of the subjects.

mod programs;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use ::lab::catalog::{self, CATALOG};
use ::lab::{Effort, Experiment, PeerRuntime, Subject};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use crate::Failure;

/// What was typed.
pub(crate) enum LabCommand {
    /// Say what there is.
    List,
    /// Run experiments.
    Run(Run),
    /// Be a subject.
    Program {
        name: String,
        parameters: Vec<String>,
    },
}

/// How to run which experiments.
pub(crate) struct Run {
    names: Vec<String>,
    quick: bool,
    json: bool,
    strict: bool,
    repetitions: Option<u32>,
    peers: Option<Vec<String>>,
    folder: Option<PathBuf>,
}

/// The subcommand, as clap sees it.
pub(crate) fn command() -> Command {
    let flag = |name: &'static str, help| {
        Arg::new(name)
            .long(name)
            .action(ArgAction::SetTrue)
            .help(help)
    };
    let run = Command::new("run")
        .about("Run experiments and print their tables")
        .arg(
            Arg::new("name")
                .value_name("EXPERIMENT")
                .num_args(1..)
                .required(true)
                .help("As `weft lab list` names them, or `rt` for all that begin with rt-"),
        )
        .arg(flag("quick", "Fewer cells and shorter samples: a quick look"))
        .arg(flag("json", "Print JSON, one report a line, with every sample"))
        .arg(flag("strict", "Exit with 1 when something does not come out as expected"))
        .arg(
            Arg::new("repeat")
                .long("repeat")
                .value_name("N")
                .value_parser(value_parser!(u32).range(1..=1000))
                .help("Samples of each cell on each subject [default: 5; 1 with --quick]"),
        )
        .arg(
            Arg::new("peers")
                .long("peers")
                .value_name("NAMES")
                .value_delimiter(',')
                .help("Which of go, tokio, may, threads to measure beside weft, or none [default: those that build]"),
        )
        .arg(
            Arg::new("folder")
                .long("folder")
                .value_name("DIR")
                .value_parser(value_parser!(PathBuf))
                .help("Where peers are built and kept [default: weft/peers in the user's cache folder]"),
        );
    let program = Command::new("program")
        .hide(true)
        .arg(Arg::new("name").required(true))
        .arg(Arg::new("parameter").num_args(0..));
    Command::new("lab")
        .about("Experiments: what threading runtimes cost, and which threads they leave behind")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommands([
            Command::new("list").about("List the experiments"),
            run,
            program,
        ])
}

/// What clap has found.
pub(crate) fn asked(matches: &ArgMatches) -> LabCommand {
    let (name, matches) = matches.subcommand().expect("clap demands a command");
    let many = |id: &str| {
        let values = matches.get_many::<String>(id);
        values.map(|values| values.cloned().collect::<Vec<_>>())
    };
    match name {
        "list" => LabCommand::List,
        "program" => LabCommand::Program {
            name: many("name").expect("clap demands it").remove(0),
            parameters: many("parameter").unwrap_or_default(),
        },
        _ => LabCommand::Run(Run {
            names: many("name").expect("clap demands it"),
            quick: matches.get_flag("quick"),
            json: matches.get_flag("json"),
            strict: matches.get_flag("strict"),
            repetitions: matches.get_one("repeat").copied(),
            peers: many("peers"),
            folder: matches.get_one("folder").cloned(),
        }),
    }
}

/// What the long help says behind the options.
pub(crate) const SECTIONS: crate::args::Sections = &[
    (
        "Examples",
        "weft lab list\n\
         weft lab run rt-yield --quick\n\
         weft lab run rt --json > rt.json\n\
         weft lab run rt-transfer --peers go,tokio",
    ),
    (
        "What is printed",
        "A table of medians with (least–greatest) of all repetitions, and each expectation with\n\
         the figures that decided it. Subjects take turns, so that a slow minute hits all alike.\n\
         Peers are other people's runtimes; their programs are built where a tool chain is found.",
    ),
];

pub(crate) fn run(asked: LabCommand, out: &mut impl Write) -> Result<(), Failure> {
    match asked {
        LabCommand::List => {
            for experiment in CATALOG {
                writeln!(out, "{:<14} {}", experiment.name, experiment.about)?;
            }
            Ok(())
        }
        LabCommand::Program { name, parameters } => {
            let sample = programs::run(&name, &parameters).map_err(Failure::Usage)?;
            serde_json::to_writer(&mut *out, &sample).map_err(io::Error::from)?;
            writeln!(out)?;
            out.flush()?;
            // Fibers that are still running belong to no run any more.
            std::process::exit(0);
        }
        LabCommand::Run(run) => run_experiments(&run, out),
    }
}

fn run_experiments(run: &Run, out: &mut impl Write) -> Result<(), Failure> {
    let experiments = chosen(&run.names)?;
    let subjects = subjects(run)?;
    let options = Effort {
        quick: run.quick,
        repetitions: run.repetitions.unwrap_or(if run.quick { 1 } else { 5 }),
    };
    let is_terminal = io::stderr().is_terminal();
    let mut as_expected = true;
    for (at, experiment) in experiments.into_iter().enumerate() {
        let report = ::lab::run(experiment, &subjects, options, &mut |progress| {
            if is_terminal {
                let (done, total) = (progress.done + 1, progress.total);
                let (name, cell, subject) = (experiment.name, progress.cell, progress.subject);
                // Progress that cannot be shown is no failure.
                let _ = write!(
                    io::stderr(),
                    "\r\x1b[K[{done}/{total}] {name} · {cell} · {subject}"
                );
            }
        });
        if is_terminal {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
        let report = report.map_err(|error| Failure::Running(error.to_string()))?;
        as_expected &= report.is_as_expected();
        if run.json {
            serde_json::to_writer(&mut *out, &report).map_err(io::Error::from)?;
            writeln!(out)?;
        } else {
            write!(out, "{}{report}", if at > 0 { "\n" } else { "" })?;
        }
        out.flush()?;
    }
    match run.strict && !as_expected {
        true => Err(Failure::Shown(1)),
        false => Ok(()),
    }
}

fn chosen(names: &[String]) -> Result<Vec<&'static Experiment>, Failure> {
    let mut chosen = Vec::new();
    for name in names {
        match catalog::find(name) {
            Some(experiment) => chosen.push(experiment),
            None if name == "rt" => chosen.extend(CATALOG),
            None => {
                let names = CATALOG.map(|experiment| experiment.name).join(", ");
                return Err(Failure::Usage(format!(
                    "no experiment is called '{name}'; there are {names}, and rt for all of them"
                )));
            }
        }
    }
    Ok(chosen)
}

fn subjects(run: &Run) -> Result<Vec<Subject>, Failure> {
    let program = std::env::current_exe()?;
    let variants = [
        ("weft", "pinned"),
        ("weft steps", "steps"),
        ("weft migratable", "migratable"),
    ];
    let mut subjects: Vec<_> = variants
        .map(|(name, variant)| Subject {
            name: name.to_owned(),
            kind: variant.to_owned(),
            program: program.clone(),
            arguments: ["lab", "program"].map(OsString::from).into(),
            parameters: vec![format!("mode={variant}").into()],
        })
        .into();
    let folder = match &run.folder {
        Some(folder) => folder.clone(),
        None => peers_folder()?,
    };
    let is_wanted = |peer: &PeerRuntime| match &run.peers {
        Some(names) => names.iter().any(|name| name == peer.name()),
        None => true,
    };
    if let Some(unknown) = unknown_peer(run) {
        return Err(Failure::Usage(format!(
            "no peer is called '{unknown}'; there are go, tokio, may, threads, and none"
        )));
    }
    for peer in PeerRuntime::ALL.into_iter().filter(is_wanted) {
        match peer.build(&folder) {
            Ok(peers) => subjects.extend(peers),
            Err(error) if run.peers.is_none() => {
                writeln!(io::stderr(), "without {}: {error}", peer.name())?;
            }
            Err(error) => {
                return Err(Failure::Running(format!(
                    "cannot measure {}: {error}",
                    peer.name()
                )));
            }
        }
    }
    Ok(subjects)
}

fn unknown_peer(run: &Run) -> Option<&String> {
    let known =
        |name: &str| name == "none" || PeerRuntime::ALL.iter().any(|peer| peer.name() == name);
    run.peers.iter().flatten().find(|name| !known(name))
}

/// Where the XDG base directory specification wants it.
fn peers_folder() -> Result<PathBuf, Failure> {
    let absolute = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let cache =
        absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    cache.map(|cache| cache.join("weft/peers")).ok_or_else(|| {
        Failure::Usage("there is no HOME to build peers in: say where with --folder DIR".to_owned())
    })
}
