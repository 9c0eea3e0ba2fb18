//! `weft load`: glue between the command line and crate `load`.

pub(crate) mod args;
mod wanted;

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ::load::plan::{Arrivals, Workload};
use ::load::report::{self, Heading, Threshold, rate_of};
use ::load::sweep::{Manner, Rates, Runner, Step, Sweep};
use ::load::{LoadError, Outcome, Plan, Progress};
use clap::ArgMatches;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::Failure;
use crate::config::Color;
use crate::paint::Paint;

/// Does what was asked for.
pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let (command, matches) = matches.subcommand().expect("clap demands a command");
    if command == "fileset" {
        return fileset(matches);
    }
    let (plan, target) = wanted::plan(command, matches).map_err(Failure::Usage)?;
    let thresholds = thresholds(matches)?;
    plan.check()
        .map_err(|error| Failure::Usage(error.to_string()))?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The second one ends the process: its handler finds the flag set.
        signal_hook::flag::register_conditional_shutdown(signal, 1, stop.clone())?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let mut live = Live::new(matches);
    if let Some(rates) = matches.get_one::<String>("sweep") {
        return sweep(rates, plan, matches, &stop, &mut live);
    }
    let outcome =
        ::load::run(&plan, &stop, &mut |progress| live.show(progress)).map_err(failure)?;
    live.clear();
    let heading = Heading {
        target,
        how: how(&plan),
    };
    show(&outcome, &heading, matches)?;
    match report::failed(&thresholds, &outcome) {
        failed if failed.is_empty() => Ok(()),
        failed => Err(Failure::Running(failed.join("; "))),
    }
}

fn failure(error: LoadError) -> Failure {
    match error {
        LoadError::Plan(sentence) => Failure::Usage(sentence),
        error => Failure::Running(error.to_string()),
    }
}

fn thresholds(matches: &ArgMatches) -> Result<Vec<Threshold>, Failure> {
    let given = matches.get_many::<String>("fail-if").into_iter().flatten();
    given
        .map(|text| {
            text.parse()
                .map_err(|error| Failure::Usage(format!("--fail-if: {error}")))
        })
        .collect()
}

/// How the load was made, in words.
fn how(plan: &Plan) -> String {
    let arrivals = match &plan.arrivals {
        Arrivals::Closed if matches!(plan.workload, Workload::Idle) => "idle".to_owned(),
        Arrivals::Closed => "closed loop".to_owned(),
        Arrivals::Fixed { rate_per_s } => format!("open loop, {}", rate_of(*rate_per_s)),
        Arrivals::Poisson { rate_per_s } => format!("open loop, Poisson, {}", rate_of(*rate_per_s)),
        Arrivals::Course { stages, .. } => format!("open loop, {} stages", stages.len()),
    };
    let depth = if plan.depth > 1 {
        format!(", depth {}", plan.depth)
    } else {
        String::new()
    };
    let idle = match plan.idle.connections {
        0 => String::new(),
        idle => format!(" and {idle} idle ones"),
    };
    let threads = if plan.threads == 1 {
        "thread"
    } else {
        "threads"
    };
    format!(
        "{arrivals}, {} connections{idle}{depth}, {} {threads}, {:?}",
        plan.connections, plan.threads, plan.duration
    )
}

/// Prints the outcome where it is wanted.
fn show(outcome: &Outcome, heading: &Heading, matches: &ArgMatches) -> Result<(), Failure> {
    let json = matches.get_one::<String>("json");
    if json.is_none_or(|file| file != "-") {
        let paint = Color::from_name(
            matches
                .get_one::<String>("color")
                .map_or("auto", |name| name),
        );
        let colored = Paint::decide(paint, &io::stdout()).is_on();
        write!(
            io::stdout(),
            "{}",
            report::screen(outcome, heading, colored)
        )?;
    }
    write_to(json, |out| {
        serde_json::to_writer_pretty(&mut *out, &report::json(outcome))?;
        writeln!(out)
    })?;
    write_to(matches.get_one("csv"), |mut out| {
        report::csv(outcome, &mut out)
    })?;
    write_to(matches.get_one("hgrm"), |mut out| {
        report::hgrm(outcome, &mut out)
    })?;
    write_to(matches.get_one("interval-log"), |mut out| {
        report::interval_log(outcome, &mut out)
    })
}

/// Writes a file, or standard output for "-".
fn write_to(
    file: Option<&String>,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    let Some(file) = file else { return Ok(()) };
    if file == "-" {
        return Ok(write(&mut io::stdout().lock())?);
    }
    let written = File::create(file).and_then(|opened| {
        let mut out = BufWriter::new(opened);
        write(&mut out)?;
        out.flush()
    });
    written.map_err(|error| Failure::Running(format!("cannot write {file}: {error}")))
}

/// One line on standard error that tells how it goes, if somebody is looking.
struct Live {
    is_wanted: bool,
}

impl Live {
    fn new(matches: &ArgMatches) -> Live {
        Live {
            is_wanted: !matches.get_flag("quiet") && io::stderr().is_terminal(),
        }
    }

    fn show(&mut self, progress: &Progress<'_>) {
        if !self.is_wanted {
            return;
        }
        let tally = &progress.interval.tally;
        let seconds = progress.interval.lasts.as_secs_f64().max(1e-9);
        let p99 = tally.response_ns().value_at_quantile(0.99) as f64;
        let left = progress.planned.saturating_sub(progress.elapsed);
        let _ = write!(
            io::stderr(),
            "\r\x1b[K  {} {}, p99 {}, {} errors, {:.0} s left",
            if progress.is_warm_up {
                "warm-up:"
            } else {
                "now:"
            },
            rate_of(tally.replies() as f64 / seconds),
            report::ns_of(p99),
            tally.errors.total(),
            left.as_secs_f64(),
        );
    }

    fn clear(&mut self) {
        if self.is_wanted {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

// ---- sweeps

fn sweep(
    rates: &str,
    plan: Plan,
    matches: &ArgMatches,
    stop: &AtomicBool,
    live: &mut Live,
) -> Result<(), Failure> {
    let wrong = |sentence: String| Failure::Usage(sentence);
    let rates: Rates = rates
        .parse()
        .map_err(|error| wrong(format!("--sweep: {error}")))?;
    let manner = Manner {
        repetitions: wanted::count(matches, "repeat").map_err(wrong)?.max(1),
        pause: wanted::time(matches, "pause").map_err(wrong)?,
        ..Manner::default()
    };
    let poisson = matches
        .get_one::<String>("arrivals")
        .is_some_and(|name| name == "poisson");
    let mut runner = SweepRunner {
        plan,
        poisson,
        stop,
        live,
    };
    let mut sweep = Sweep::default();
    let result = sweep.over(&rates, &manner, &mut runner);
    let json = matches.get_one::<String>("json");
    if json.is_none_or(|file| file != "-") {
        write!(io::stdout(), "{}", sweep.table())?;
    }
    write_to(json, |out| {
        serde_json::to_writer_pretty(&mut *out, &sweep)?;
        writeln!(out)
    })?;
    write_to(matches.get_one("csv"), |out| {
        out.write_all(sweep.csv().as_bytes())
    })?;
    result.map_err(Failure::Running)
}

struct SweepRunner<'a> {
    plan: Plan,
    poisson: bool,
    stop: &'a AtomicBool,
    live: &'a mut Live,
}

impl Runner for SweepRunner<'_> {
    fn run(&mut self, rate_per_s: f64) -> Result<Outcome, String> {
        if self.stop.load(Ordering::Relaxed) {
            return Err("the sweep was stopped".to_owned());
        }
        self.plan.arrivals = wanted::at_rate(rate_per_s, self.poisson);
        let live = &mut *self.live;
        let outcome = ::load::run(&self.plan, self.stop, &mut |progress| live.show(progress));
        self.live.clear();
        outcome.map_err(|error| error.to_string())
    }

    fn pause(&mut self, pause: Duration) {
        const STEP: Duration = Duration::from_millis(50);
        let until = Instant::now() + pause;
        while Instant::now() < until && !self.stop.load(Ordering::Relaxed) {
            std::thread::sleep(STEP.min(until.saturating_duration_since(Instant::now())));
        }
    }

    fn done(&mut self, step: &Step) {
        if self.live.is_wanted {
            let _ = writeln!(io::stderr(), "{}", step.row());
        }
    }
}

// ---- file sets

fn fileset(matches: &ArgMatches) -> Result<(), Failure> {
    use ::load::fileset::{FileSet, Model, Recipe, page_figures, show_table};
    let text = |name: &str| matches.get_one::<String>(name).expect("it has a default");
    let recipe = Recipe {
        model: if text("model") == "pages" {
            Model::Pages
        } else {
            Model::Thesis
        },
        scale: text("scale")
            .parse()
            .map_err(|_| Failure::Usage("--scale: write a number such as 0.1".to_owned()))?,
        seed: wanted::number(matches, "seed").map_err(Failure::Usage)?,
        exponent: 1.0,
    };
    let folder: &std::path::PathBuf = matches.get_one("dir").expect("clap demands it");
    let mut set = FileSet::plan(recipe).map_err(Failure::Usage)?;
    set.write(folder, |_| {}).map_err(|error| {
        Failure::Running(format!(
            "cannot make the files in {}: {error}",
            folder.display()
        ))
    })?;
    let mut out = io::stdout();
    match recipe.model {
        Model::Thesis => write!(out, "{}", show_table(&set.table(), recipe.scale))?,
        Model::Pages => {
            for (name, made, seed) in page_figures(&set) {
                writeln!(out, "{name:<24} {made:>12.1} {seed:>12.1}")?;
            }
        }
    }
    let (files, megabytes) = (set.entries.len(), set.total_bytes() as f64 / 1e6);
    Ok(writeln!(
        out,
        "{files} files, {megabytes:.1} MB in {}",
        folder.display()
    )?)
}
