//! `weft lab`: the laboratory's experiments, with this program as one of the systems.

mod args;

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ::lab::catalog::{self, CATALOG, OTHER_NAMES};
use ::lab::compare::{Compares, Comparison, NEW, OLD};
use ::lab::{
    Effort, Experiment, GeneratorHost, KNOWN, ON_REQUEST, PeerRuntime, Progress, Recorded, Report,
    RunError, Setting, Start, System, Testbed, Thoroughness, Work, samples_file,
};

use crate::failure::Failure;
use crate::os::files;
use crate::os::stop::Stop;
use crate::settings;
use crate::value::write_row;
use args::{Compare, Measuring, Run};
pub(crate) use args::{LabCommand, command, experiments, typed, with_names};

pub(crate) fn run(asked: LabCommand, out: &mut impl Write) -> Result<(), Failure> {
    match asked {
        LabCommand::List { names } if names.is_empty() => list(out),
        LabCommand::List { names } => describe(&names, out),
        LabCommand::Servers => servers(out),
        LabCommand::Guard { journal } => Ok(::lab::guard(&journal)?),
        LabCommand::Run(run) => run_experiments(&run, out),
        LabCommand::Report { folder, out: results, write, figures } => {
            let folder = results.or(folder).unwrap_or_else(|| RESULTS.into());
            report(&folder, &write, figures.as_deref(), out)
        }
        LabCommand::Compare(compare) => match (compare.old.is_dir(), compare.new.is_dir()) {
            (true, true) => compare_runs(&compare, out),
            (false, false) => compare_builds(&compare, out),
            _ => Err(Failure::Usage(
                "compare two builds of weft, or two folders of results".to_owned(),
            )),
        },
    }
}

fn list(out: &mut impl Write) -> Result<(), Failure> {
    let is_root = rustix::process::geteuid().is_root();
    let names = CATALOG.iter().map(|experiment| experiment.name.len());
    let others = OTHER_NAMES.iter().map(|(name, ..)| name.len());
    let column = names.chain(others).max().unwrap_or_default() + 1;
    for experiment in CATALOG {
        let note = if experiment.work.needs_root() && !is_root { " (needs root)" } else { "" };
        let text = format!("{}{note}", experiment.about);
        write_row(out, experiment.name, column, COLUMNS, &text)?;
    }
    for (name, experiment, what) in OTHER_NAMES {
        write_row(out, name, column, COLUMNS, &format!("alias: {what} of {experiment}"))?;
    }
    Ok(())
}

/// Columns of the smallest terminal.
const COLUMNS: usize = 80;

/// Prints the page of each experiment, for readers who do not know the papers.
fn describe(names: &[String], out: &mut impl Write) -> Result<(), Failure> {
    for experiment in chosen(names)? {
        writeln!(out, "{}", experiment.markdown())?;
    }
    Ok(())
}

/// Other load generators, their version flags, and their packages.
const GENERATORS: [(&str, &str, &str); 2] =
    [("wrk", "--version", "wrk"), ("httperf", "--version", "httperf")];

fn servers(out: &mut impl Write) -> Result<(), Failure> {
    for known in KNOWN {
        let found = match known.find() {
            Some(system) => system.version,
            None => format!("not installed: {}", known.how_to_install()),
        };
        writeln!(out, "{:<18} {found}", known.name)?;
    }
    for (name, flag, package) in GENERATORS {
        let found = match ::lab::in_path(name) {
            Some(program) => format!("{} (a generator)", ::lab::version_of(&program, flag)),
            None => format!("not installed: apt-get install {package}"),
        };
        writeln!(out, "{name:<18} {found}")?;
    }
    for (name, tool, flag) in [("go", "go", "version"), ("tokio, may", "cargo", "--version")] {
        let found = match ::lab::in_path(tool) {
            Some(program) => {
                let version = ::lab::version_of(&program, flag);
                format!("built at the first run, with {tool} {version}")
            }
            None => format!("not built: {tool} is not installed"),
        };
        writeln!(out, "{name:<18} {found}")?;
    }
    Ok(())
}

fn run_experiments(run: &Run, out: &mut impl Write) -> Result<(), Failure> {
    let mut experiments = chosen(&run.names)?;
    let host = run.generator_host();
    if host.is_some() {
        experiments.retain(|one| {
            let why = one.work.stays_here();
            let told = why.map(|why| format!("{} is left out with --generator: {why}", one.name));
            told.inspect(|told| say(told)).is_none()
        });
    }
    // Before programs are built, which takes a while.
    let folder = run.measuring.folder(RESULTS);
    let samples = folder.join("samples");
    writable(&samples)?;
    let has = |kind: fn(&Work) -> bool| experiments.iter().any(|one| kind(&one.work));
    let has_servers = has(|work| matches!(work, Work::Server(_)));
    let mut systems = Vec::new();
    if has(|work| matches!(work, Work::Program)) {
        systems.extend(runtimes(run)?);
    }
    let weft = match &run.weft {
        Some(weft) => build_at(weft)?,
        None => std::env::current_exe()?,
    };
    if has_servers {
        systems.extend(::lab::weft_forms(&weft, ""));
        systems.extend(::lab::generators(&weft));
        if let Ok(programs) = programs_of(&std::env::current_exe()?) {
            systems.extend(::lab::ceilings(&programs));
        }
        systems.extend(KNOWN.iter().filter_map(::lab::Known::find));
    }
    let custom = run.custom.iter().map(|text| ::lab::custom(text));
    let custom: Vec<System> = custom.collect::<Result<_, _>>().map_err(Failure::Usage)?;
    only(&mut systems, custom, run.systems.as_deref())?;
    for name in without_part(&experiments, &systems, &run.custom) {
        say(&format!("{name} takes no part: none of these experiments measures what it is"));
    }
    let host = host.as_ref();
    let mut lab = Laboratory::new(&run.measuring, folder.clone(), weft, has_servers, host)?;
    let each = experiments.iter().map(|experiment| {
        let part = ::lab::taking_part(experiment, &systems);
        let kinds: Vec<&str> = part.iter().map(|system| &*system.kind).collect();
        ::lab::estimate(experiment, &kinds, &run.effort(experiment))
    });
    let each: Vec<Duration> = each.collect();
    let minutes = each.iter().sum::<Duration>().as_secs().div_ceil(60);
    say(&format!(
        "this will take about {minutes} min, and up to a quarter more if the machine is noisy"
    ));
    let (mut is_recorded, mut is_measured, mut as_expected) = (false, false, true);
    let began = Instant::now();
    for (at, experiment) in experiments.iter().enumerate() {
        let budget = run.budget.map(|all| all.saturating_sub(began.elapsed()));
        let effort = Effort {
            budget: budget.map(|left| share_of(left, &each[at..])),
            ..run.effort(experiment)
        };
        let Some(recorded) = lab.measure(experiment, &systems, effort)? else {
            continue;
        };
        let report = Report::new(experiment, &recorded);
        is_recorded = true;
        is_measured |= report.has_samples();
        as_expected &= report.is_as_expected();
        write!(out, "{}{report}", if at > 0 { "\n" } else { "" })?;
        out.flush()?;
        if lab.is_stopped() {
            break;
        }
    }
    // The rest is removed now, not at the end of the process.
    lab.testbed = None;
    if !is_recorded {
        lab.check_stop()?;
        let why = "nothing was measured: every experiment was left out";
        return Err(Failure::Usage(why.to_owned()));
    }
    report(&folder, &[], None, out)?;
    lab.check_stop()?;
    if !is_measured {
        let why = "nothing was measured: every sample failed";
        return Err(Failure::Running(why.to_owned()));
    }
    if run.strict && !as_expected { Err(Failure::Shown(1)) } else { Ok(()) }
}

/// Creates a directory and checks that it is writable, before a long run.
fn writable(folder: &Path) -> Result<(), Failure> {
    let made = fs::create_dir_all(folder).and_then(|()| {
        let trial = folder.join(".trial");
        fs::write(&trial, "")?;
        fs::remove_file(&trial)
    });
    made.map_err(|error| {
        let folder = folder.display();
        Failure::Running(format!(
            "results cannot be written to {folder}: {error}; --out DIR puts them elsewhere"
        ))
    })
}

/// The first experiment's share of the remaining time, in proportion to the lengths.
fn share_of(left: Duration, each: &[Duration]) -> Duration {
    let all: Duration = each.iter().sum();
    if all.is_zero() { left } else { left.mul_f64(each[0].div_duration_f64(all)) }
}

/// The environment in which experiments run.
struct Laboratory {
    folder: PathBuf,
    generator: PathBuf,
    testbed: Option<Testbed>,
    stop: Stop,
}

impl Laboratory {
    /// Takes the testbed, if servers are measured. From then on the first Ctrl-C or SIGTERM ends a
    /// run in good order, and the second one at once.
    fn new(
        measuring: &Measuring,
        folder: PathBuf,
        generator: PathBuf,
        has_servers: bool,
        host: Option<&GeneratorHost>,
    ) -> Result<Laboratory, Failure> {
        let stop = Stop::default();
        stop.listen()?;
        let mut guard = Command::new(std::env::current_exe()?);
        guard.args(["lab", "guard"]);
        let own_network = host.is_none();
        let take = || Testbed::take(&measuring.scratch, Some(guard), own_network);
        let testbed = has_servers.then(take).transpose()?;
        let swept = testbed.as_ref().map_or(0, Testbed::swept);
        if swept > 0 {
            say(&format!("removed what {swept} laboratories that were killed had left"));
        }
        let mut lab = Laboratory { folder, generator, testbed, stop };
        if let (Some(host), Some(testbed)) = (host, &mut lab.testbed) {
            let reached = testbed.reach(host, &lab.generator, &lab.stop.requested);
            lab.check_stop()?;
            reached?;
        }
        Ok(lab)
    }

    fn is_stopped(&self) -> bool {
        self.stop.requested.load(Ordering::Relaxed)
    }

    /// Checks whether the run was stopped.
    ///
    /// # Errors
    /// The exit code.
    fn check_stop(&self) -> Result<(), Failure> {
        match self.stop.code() {
            Some(code) => Err(Failure::Shown(code)),
            None => Ok(()),
        }
    }

    /// Runs an experiment; prints a sentence and returns `None` if it cannot be measured here.
    fn measure(
        &mut self,
        experiment: &'static Experiment,
        systems: &[System],
        effort: Effort,
    ) -> Result<Option<Recorded>, Failure> {
        let name = experiment.name;
        let testbed = self.testbed.as_ref();
        if let Some(why) = testbed.and_then(|testbed| experiment.work.lacks(testbed)) {
            say(&format!("{name} is left out: {why}"));
            return Ok(None);
        }
        let is_terminal = io::stderr().is_terminal();
        let mut progress = |progress: &Progress<'_>| show_progress(name, progress, is_terminal);
        let mut setting = Setting {
            testbed: self.testbed.as_mut(),
            generator: &self.generator,
            stop: &self.stop.requested,
            progress: &mut progress,
        };
        let file = samples_file(&self.folder, name);
        let recorded = ::lab::run(experiment, systems, effort, &mut setting, &file);
        if is_terminal {
            // Progress that cannot be shown is not a failure.
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
        match recorded {
            Ok(recorded) => Ok(Some(recorded)),
            Err(RunError::Unfit(why)) => {
                say(&format!("{name} is left out: {why}"));
                Ok(None)
            }
            Err(RunError::Io(error)) => Err(Failure::Running(format!("{name}: {error}"))),
        }
    }
}

fn show_progress(name: &str, progress: &Progress<'_>, is_terminal: bool) {
    let done = progress.done + 1;
    let total = progress.total;
    let configuration = progress.configuration;
    let system = progress.system;
    let left = progress.left.map_or(String::new(), |left| {
        let seconds = left.as_secs();
        format!(" · {} min {:02} s to go", seconds / 60, seconds % 60)
    });
    let line = format!("[{done}/{total}] {name} · {configuration} · {system}{left}");
    // Progress that cannot be shown is not a failure.
    if is_terminal {
        let _ = write!(io::stderr(), "\r\x1b[K{line}");
    } else if progress.done.is_multiple_of((total / 10).max(1)) {
        let _ = writeln!(io::stderr(), "{line}");
    }
}

fn say(sentence: &str) {
    let _ = writeln!(io::stderr(), "weft lab: {sentence}");
}

/// Makes the page of all experiments with samples in the folder, fills documents, and writes the
/// figures.
fn report(
    folder: &Path,
    documents: &[PathBuf],
    figures: Option<&Path>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let found = recorded(folder)?;
    let reports: Vec<Report<'_>> =
        found.recorded.iter().map(|(experiment, one)| Report::new(experiment, one)).collect();
    let page = folder.join("report.html");
    files::write_bytes(&page, ::lab::html(&reports)).map_err(about(&page))?;
    writeln!(out, "\nreport: {}", page.display())?;
    for document in documents {
        write_documents(document, &reports)?;
    }
    if let Some(figures) = figures {
        fs::create_dir_all(figures).map_err(about(figures))?;
        for (name, svg) in reports.iter().flat_map(Report::figures) {
            let file = figures.join(name);
            files::write_bytes(&file, svg).map_err(about(&file))?;
        }
    }
    out.flush()?;
    if found.is_whole { Ok(()) } else { Err(Failure::Shown(1)) }
}

/// Samples below a folder of results.
struct Found {
    recorded: Vec<(&'static Experiment, Recorded)>,
    /// False if a file could not be read, which was printed.
    is_whole: bool,
}

/// Reads the sample files below a folder of results.
fn recorded(folder: &Path) -> Result<Found, Failure> {
    let mut recorded = Vec::new();
    let mut is_whole = true;
    for experiment in CATALOG {
        let file = samples_file(folder, experiment.name);
        let one = match Recorded::read(&file) {
            Ok(Some(one)) => one,
            Ok(None) => continue,
            Err(error) => {
                say(&format!("{} is left out: {error}", experiment.name));
                is_whole = false;
                continue;
            }
        };
        let of = &one.header.experiment;
        if of != experiment.name {
            let file = file.display();
            return Err(Failure::Usage(format!("{file} has samples of {of}")));
        }
        recorded.push((*experiment, one));
    }
    for file in unknown_files(folder) {
        say(&format!("{file} is left out: this weft has no such experiment"));
    }
    if !recorded.is_empty() {
        return Ok(Found { recorded, is_whole });
    }
    if !is_whole {
        return Err(Failure::Shown(1));
    }
    let folder = folder.display();
    Err(Failure::Usage(format!("there are no samples in {folder}: weft lab run makes them")))
}

/// Reads the sample files below a folder of results; one that cannot be read is a failure.
fn all_recorded(folder: &Path) -> Result<Vec<(&'static Experiment, Recorded)>, Failure> {
    let found = recorded(folder)?;
    if found.is_whole { Ok(found.recorded) } else { Err(Failure::Shown(1)) }
}

/// Files of samples of experiments that this weft does not have: those of another version.
fn unknown_files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder.join("samples")).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let is_unknown = |name: &String| {
        let experiment = name.strip_suffix(".gz").unwrap_or(name).strip_suffix(".jsonl");
        experiment.is_some_and(|experiment| catalog::find(experiment).is_none())
    };
    let mut unknown: Vec<String> = names.filter(is_unknown).collect();
    unknown.sort();
    unknown
}

/// Fills a document, or all of a folder.
fn write_documents(path: &Path, reports: &[Report<'_>]) -> Result<(), Failure> {
    let mut documents = vec![path.to_owned()];
    if path.is_dir() {
        let entries = fs::read_dir(path).map_err(about(path))?;
        let paths = entries.map(|entry| Ok(entry?.path()));
        documents = paths.collect::<io::Result<_>>().map_err(about(path))?;
        documents.retain(|document| document.extension().is_some_and(|end| end == "md"));
    }
    let summary = ::lab::summary(reports, "../docs/experiments");
    let texts = reports.iter();
    let texts = texts.map(|report| (report.experiment.name, report.markdown()));
    let texts: Vec<_> = texts.chain([("summary", summary)]).collect();
    let mut has_markers = false;
    for document in documents {
        let before = fs::read_to_string(&document).map_err(about(&document))?;
        let mut text = before.clone();
        for (name, new) in &texts {
            if let Some(filled) = fill(&text, name, new) {
                (text, has_markers) = (filled, true);
            }
        }
        if text != before {
            files::write_bytes(&document, text).map_err(about(&document))?;
        }
    }
    if has_markers {
        Ok(())
    } else {
        Err(Failure::Usage(format!(
            "{} has no <!-- begin: lab NAME --> and <!-- end: lab NAME --> of these experiments",
            path.display()
        )))
    }
}

/// Makes a failure that names the file.
fn about(file: &Path) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::Running(format!("{}: {error}", file.display()))
}

/// Puts a text between `<!-- begin: lab NAME -->` and `<!-- end: lab NAME -->`, if they are there.
fn fill(document: &str, name: &str, text: &str) -> Option<String> {
    let begin = format!("<!-- begin: lab {name} -->");
    let from = document.find(&begin)? + begin.len();
    let to = from + document[from..].find(&format!("<!-- end: lab {name} -->"))?;
    let before = &document[..from];
    let behind = &document[to..];
    Some(format!("{before}\n{text}\n{behind}"))
}

/// Compares the results of two runs, experiment by experiment.
fn compare_runs(compare: &Compare, out: &mut impl Write) -> Result<(), Failure> {
    const LIMIT: f64 = 1.2;
    if compare.asks_for_samples() {
        return Err(Failure::Usage(
            "two results are compared as they are: --quick, --repeat, --sample, \
             --configurations and --out are for builds"
                .to_owned(),
        ));
    }
    let old = all_recorded(&compare.old)?;
    let new = all_recorded(&compare.new)?;
    let wanted = compare.experiments.as_deref().map(chosen).transpose()?;
    let is_wanted = |name: &str| match &wanted {
        Some(wanted) => wanted.iter().any(|experiment| experiment.name == name),
        None => true,
    };
    let mut comparison = Comparison::new(Compares::Runs, compare.limit.unwrap_or(LIMIT));
    for (experiment, old) in old.iter().filter(|(old, _)| is_wanted(old.name)) {
        let old = Report::new(experiment, old);
        match new.iter().find(|(new, _)| new.name == experiment.name) {
            Some((_, new)) => comparison.add_runs(&old, &Report::new(experiment, new)),
            None => comparison.add_not_measured(&old),
        }
    }
    verdict(&comparison, out)
}

fn verdict(comparison: &Comparison, out: &mut impl Write) -> Result<(), Failure> {
    write!(out, "{comparison}")?;
    out.flush()?;
    if !comparison.is_no_loss() {
        return Err(Failure::Shown(1));
    }
    Ok(())
}

fn compare_builds(compare: &Compare, out: &mut impl Write) -> Result<(), Failure> {
    const LIMIT: f64 = 1.02;
    const EXPERIMENTS: [&str; 2] = ["web-rows", "cache-rows"];
    check_forms(&compare.forms)?;
    let experiments = match &compare.experiments {
        Some(names) => chosen(names)?,
        None => chosen(&EXPERIMENTS.map(str::to_owned))?,
    };
    let has = |kind: fn(&Work) -> bool| experiments.iter().any(|one| kind(&one.work));
    let has_servers = has(|work| matches!(work, Work::Server(_)));
    let has_programs = has(|work| matches!(work, Work::Program));
    let mut systems = Vec::new();
    for (build, prefix) in [(&compare.old, OLD), (&compare.new, NEW)] {
        let build = build_at(build)?;
        let mut forms: Vec<System> = Vec::new();
        if has_servers {
            forms.extend(::lab::weft_forms(&build, prefix));
        }
        if has_programs {
            let version = ::lab::version_of(&build, "--version");
            let programs = programs_of(&build)?;
            forms.extend(::lab::weft_fibers(&programs, prefix, &version));
        }
        forms.retain(|form| {
            let name = form.name.strip_prefix(prefix).unwrap_or(&form.name);
            compare.forms.iter().any(|asked| asked == name)
        });
        systems.extend(forms);
    }
    let generator = fs::canonicalize(&compare.new)?;
    let folder = compare.measuring.folder(COMPARISONS);
    let mut lab = Laboratory::new(&compare.measuring, folder, generator, has_servers, None)?;
    let mut comparison = Comparison::new(Compares::Builds, compare.limit.unwrap_or(LIMIT));
    for experiment in experiments {
        if let Some(recorded) = lab.measure(experiment, &systems, compare.effort())? {
            comparison.add_builds(&Report::new(experiment, &recorded));
        }
        if lab.is_stopped() {
            break;
        }
    }
    let verdict = verdict(&comparison, out);
    lab.check_stop()?;
    verdict
}

/// Checks that weft has these forms, as a server or as fibers.
fn check_forms(asked: &[String]) -> Result<(), Failure> {
    let nowhere = Path::new("/nowhere/weft");
    let forms = ::lab::weft_forms(nowhere, "").into_iter();
    let forms = forms.chain(::lab::weft_fibers(nowhere, "", ""));
    let mut names: Vec<String> = Vec::new();
    forms.for_each(|form| {
        if !names.contains(&form.name) {
            names.push(form.name);
        }
    });
    match asked.iter().find(|name| !names.contains(name)) {
        None => Ok(()),
        Some(unknown) => {
            let there = names.join("; ");
            let why = format!("no form of weft is called '{unknown}'; there are {there}");
            Err(Failure::Usage(why))
        }
    }
}

/// A build of weft, by an absolute path.
fn build_at(path: &Path) -> Result<PathBuf, Failure> {
    let found = fs::canonicalize(path);
    found.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::Usage(format!(
            "there is neither a build of weft nor a folder of results at '{}'",
            path.display()
        )),
        _ => Failure::Usage(format!("{}: {error}", path.display())),
    })
}

fn chosen(names: &[String]) -> Result<Vec<&'static Experiment>, Failure> {
    let mut chosen = Vec::new();
    for name in names {
        let found = catalog::chosen(name);
        if found.is_empty() {
            let names = CATALOG.iter().map(|experiment| experiment.name.to_owned());
            let advice = match settings::layer::nearest(name, names) {
                Some(near) => format!("did you mean {near}?"),
                None => "weft lab list names them; rt, web and so on stand for those that begin \
                     so, and all for all of them"
                    .to_owned(),
            };
            return Err(Failure::Usage(format!("no experiment is called '{name}'; {advice}")));
        }
        chosen.extend(found);
    }
    Ok(chosen)
}

/// Keeps the systems with these names, in the order of the catalogue. Without names, keeps all but
/// those measured on request. The user's own systems always take part.
fn only(
    systems: &mut Vec<System>,
    custom: Vec<System>,
    names: Option<&[String]>,
) -> Result<(), Failure> {
    let Some(names) = names else {
        systems.retain(|system| !ON_REQUEST.contains(&&*system.name));
        systems.extend(custom);
        return Ok(());
    };
    let there: Vec<_> = systems.iter().map(|system| &*system.name).collect();
    let is_known = |name: &str| there.contains(&name) || custom.iter().any(|own| own.name == *name);
    let names = whole_names(names, is_known);
    if let Some(unknown) = names.iter().find(|name| !is_known(name)) {
        let there = there.join("; ");
        return Err(Failure::Usage(format!("no system is called '{unknown}'; there are {there}")));
    }
    systems.retain(|system| names.contains(&system.name));
    systems.extend(custom);
    Ok(())
}

/// The names in a list that was split at commas. Names of systems may contain commas, too.
fn whole_names(pieces: &[String], is_known: impl Fn(&str) -> bool) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for piece in pieces.iter().map(|piece| piece.trim()) {
        let longer = names.last().map(|last| format!("{last}, {piece}"));
        if let Some(longer) = longer.filter(|longer| is_known(longer)) {
            names.pop();
            names.push(longer);
        } else {
            names.push(piece.to_owned());
        }
    }
    names
}

/// The user's systems that take part in no experiment: a server beside experiments of runtimes.
fn without_part<'a>(
    experiments: &[&Experiment],
    systems: &'a [System],
    custom: &[String],
) -> Vec<&'a str> {
    let own = &systems[systems.len() - custom.len()..];
    let takes_part = |system: &System| {
        let mut each = experiments.iter();
        each.any(|one| {
            let part = ::lab::taking_part(one, systems);
            part.iter().any(|it| it.name == system.name)
        })
    };
    let without = own.iter().filter(|system| !takes_part(system));
    without.map(|system| &*system.name).collect()
}

/// weft's fibers, dispatchers and netstacks, and other runtimes that can be built here.
fn runtimes(run: &Run) -> Result<Vec<System>, Failure> {
    let program = programs_of(&std::env::current_exe()?)?;
    let version = env!("CARGO_PKG_VERSION");
    let own = |name: &str, parameters| {
        let start = Start::Program { program: program.clone(), arguments: Vec::new(), parameters };
        System::new(name, version.to_owned(), start)
    };
    let names_of = |experiment| {
        let experiment = catalog::find(experiment).expect("the experiment is in the catalogue");
        experiment.systems.iter()
    };
    let dispatchers = names_of("dispatch-cost");
    let dispatchers = dispatchers.map(|name| own(name, vec![format!("dispatcher={name}").into()]));
    let netstacks = names_of("netstack-no-wire").map(|name| own(name, Vec::new()));
    let mut systems = ::lab::weft_fibers(&program, "", version);
    systems.extend(dispatchers.chain(netstacks));
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
            Ok(peers) => systems.extend(peers),
            Err(error) if run.peers.is_none() => say(&format!("without {}: {error}", peer.name())),
            Err(error) => {
                let name = peer.name();
                return Err(Failure::Running(format!("cannot measure {name}: {error}")));
            }
        }
    }
    Ok(systems)
}

fn programs_of(weft: &Path) -> Result<PathBuf, Failure> {
    let program = ::lab::programs_beside(weft);
    if program.is_file() {
        Ok(program)
    } else {
        Err(Failure::Running(format!(
            "no program {}, which these experiments measure: build it with \
             `cargo build --release --package weftwork-programs`",
            program.display()
        )))
    }
}

fn unknown_peer(run: &Run) -> Option<&String> {
    let known =
        |name: &str| name == "none" || PeerRuntime::ALL.iter().any(|peer| peer.name() == name);
    run.peers.iter().flatten().find(|name| !known(name))
}

/// Default folder of the peers, by the XDG base directory specification.
fn peers_folder() -> Result<PathBuf, Failure> {
    let absolute =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache =
        absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    cache.map(|cache| cache.join("weft/peers")).ok_or_else(|| {
        Failure::Usage("there is no HOME to build peers in: say where with --folder DIR".to_owned())
    })
}

impl Run {
    fn generator_host(&self) -> Option<GeneratorHost> {
        Some(GeneratorHost {
            name: self.generator.clone()?,
            ssh: self.ssh.split_whitespace().map(str::to_owned).collect(),
            address: self.address,
        })
    }

    fn effort(&self, experiment: &Experiment) -> Effort {
        let measuring = &self.measuring;
        let look = match (self.quick, self.paper) {
            (true, _) => Thoroughness::Quick,
            (_, true) => Thoroughness::Paper,
            _ => Thoroughness::Full,
        };
        let default = Effort::default_of(experiment, look);
        Effort {
            repetitions: measuring.repetitions.unwrap_or(default.repetitions),
            seconds: measuring.seconds(default.seconds),
            only: measuring.only.clone(),
            budget: None,
            resume: self.resume,
            ..default
        }
    }
}

impl Compare {
    /// True if something was typed that says how samples are to be taken, and where they go.
    fn asks_for_samples(&self) -> bool {
        let Measuring { repetitions, sample, only, out, .. } = &self.measuring;
        self.quick || repetitions.is_some() || sample.is_some() || !only.is_empty() || out.is_some()
    }

    fn effort(&self) -> Effort {
        Effort {
            quick: self.quick,
            repetitions: self.measuring.repetitions.unwrap_or(9),
            seconds: self.measuring.seconds(0.8),
            only: self.measuring.only.clone(),
            budget: None,
            resume: false,
        }
    }
}

const RESULTS: &str = "weft-lab";
/// Folder of comparisons, apart from the results of runs.
const COMPARISONS: &str = "weft-lab/compare";

impl Measuring {
    /// Folder of the samples.
    fn folder(&self, default: &str) -> PathBuf {
        self.out.clone().unwrap_or_else(|| default.into())
    }

    fn seconds(&self, default: f64) -> f64 {
        self.sample.as_ref().map_or(default, Duration::as_secs_f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_filled_between_markers() {
        let text = "a\n<!-- begin: lab x -->\nold\n<!-- end: lab x -->\nb\n";
        let filled = "a\n<!-- begin: lab x -->\nnew\n<!-- end: lab x -->\nb\n";
        assert_eq!(fill(text, "x", "new").as_deref(), Some(filled));
        assert_eq!(fill(text, "y", "new"), None);
    }

    #[test]
    fn systems_on_request() {
        let left = |names: Option<&[String]>| {
            let mut systems = ::lab::weft_forms(Path::new("/nowhere/weft"), "");
            assert!(only(&mut systems, Vec::new(), names).is_ok());
            let names = systems.into_iter().map(|system| system.name);
            names.collect::<Vec<_>>()
        };
        let all = left(None);
        assert!(all.len() > 1 && !all.iter().any(|name| ON_REQUEST.contains(&&**name)));
        let named = [ON_REQUEST[0].to_owned()];
        assert_eq!(left(Some(&named)), named);
    }

    /// Seen: `--systems nginx --system 'mine=…'` measured only nginx, without a message.
    #[test]
    fn custom_server_always_takes_part() {
        let cat = ::lab::custom("mine=/bin/cat {port} {root}").unwrap();
        let mut systems = ::lab::weft_forms(Path::new("/nowhere/weft"), "");
        let named = ["weft".to_owned(), "mine".to_owned()];
        let own = vec![cat.clone()];
        assert!(only(&mut systems, own, Some(&named[..1])).is_ok());
        let names: Vec<&str> = systems.iter().map(|it| &*it.name).collect();
        assert_eq!(names, ["weft", "mine"]);
        assert!(only(&mut systems, vec![cat], Some(&named)).is_ok());
        let unknown = ["other".to_owned()];
        assert!(only(&mut systems, Vec::new(), Some(&unknown)).is_err());

        let own = ["mine".to_owned()];
        let of = |name| [catalog::find(name).unwrap()];
        let systems = &systems[1..2];
        assert!(without_part(&of("web-rows"), systems, &own).is_empty());
        assert_eq!(without_part(&of("rt-yield"), systems, &own), ["mine"]);
    }

    /// Seen: no system is called ' second ring': the names of two senders of `web-sendfile` contain
    /// commas, so `--systems` could not name them, and a blank after a comma was part of a name.
    #[test]
    fn names_of_systems_may_have_commas() {
        let mut systems = ::lab::weft_forms(Path::new("/nowhere/weft"), "");
        for name in ["splice", "splice, second ring"] {
            let text = format!("{name}=/bin/cat {{port}} {{root}}");
            systems.push(::lab::custom(&text).unwrap());
        }
        for (typed, kept) in [
            ("splice, second ring, weft", &["weft", "splice, second ring"][..]),
            ("splice,second ring", &["splice, second ring"]),
            ("weft event,splice", &["weft event", "splice"]),
        ] {
            let mut systems = systems.clone();
            let pieces: Vec<String> = typed.split(',').map(str::to_owned).collect();
            assert!(only(&mut systems, Vec::new(), Some(&pieces)).is_ok(), "{typed}");
            let names: Vec<&str> = systems.iter().map(|it| &*it.name).collect();
            assert_eq!(names, kept);
        }
    }

    #[test]
    fn unwritable_folder_before_a_run() {
        let Err(Failure::Running(why)) = writable(Path::new("/dev/null/results")) else {
            panic!("the folder was created");
        };
        assert!(why.contains("/dev/null/results: "), "{why}");
        assert!(why.ends_with("--out DIR puts them elsewhere"), "{why}");
    }

    /// Seen: of a folder of an older version the experiment that has another name now was missing
    /// from the report without a word, and samples of rt-churn were shown as those of rt-yield.
    #[test]
    fn samples_of_other_experiments() {
        let home = tempfile::tempdir().unwrap();
        let samples = home.path().join("samples");
        fs::create_dir(&samples).unwrap();
        for name in ["rt-yield.jsonl", "rt-older.jsonl.gz", "notes.txt"] {
            fs::write(samples.join(name), "").unwrap();
        }
        assert_eq!(unknown_files(home.path()), ["rt-older.jsonl.gz"]);
        let header = r#"{"run":{"experiment":"rt-churn","began_unix_s":1,"quick":true,
            "repetitions":1,"seconds":1.0,"peak_per_s":null,"testbed":"","lacks":[],"systems":[],
            "missing":[],"card":{"machine":"m","compute_ns":1.0,"memory_ns":1.0,
            "system_call_ns":1.0,"switch_ns":1.0,"loopback_ns":1.0,"load_average":1.0}}}"#;
        let line = header.replace('\n', "") + "\n";
        fs::write(samples.join("rt-yield.jsonl"), line).unwrap();
        let Err(Failure::Usage(why)) = recorded(home.path()) else {
            panic!("they were read");
        };
        assert!(why.ends_with("rt-yield.jsonl has samples of rt-churn"), "{why}");
    }

    #[test]
    fn list_fits_a_terminal() {
        let mut out = Vec::new();
        list(&mut out).unwrap_or_else(|_| panic!("the list cannot be written"));
        let text = String::from_utf8(out).unwrap();
        let too_long = text.lines().find(|line| line.chars().count() > COLUMNS);
        assert_eq!(too_long, None);
    }

    /// Seen: `weft lab run all --budget 20m` could take twelve hours: 20 minutes per experiment.
    #[test]
    fn shared_budget() {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        let each = [minutes(30), minutes(10), minutes(20)];
        assert_eq!(share_of(minutes(20), &each), minutes(10));
        assert_eq!(share_of(minutes(9), &each[1..]), minutes(3));
        assert_eq!(share_of(minutes(6), &each[2..]), minutes(6));
        assert_eq!(share_of(minutes(5), &[Duration::ZERO]), minutes(5));
    }
}
