//! Taking samples: in turns, each with a fresh process, again after a disturbance.
//!
//! A round is every configuration on every system. The systems of a configuration take turns, and
//! each round begins with another one, so that a slow minute of the machine affects all alike. A
//! report gives medians with minimum and maximum, and beside each ratio of medians that of the best
//! samples: medians of identical programs differ by up to 16 % on virtual machines, the best of
//! nine by 1.5 %.

use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::bench::{Bench, Fault};
use crate::busy::Usage;
use crate::card::{Card, cores};
use crate::experiment::{Breadth, Experiment, Work};
use crate::measure::{Configuration, Measure};
use crate::numbers::{SAMPLES_MIN, median};
use crate::sample::{Noise, Output, Sample};
use crate::store::{
    Header, Record, Recorded, RunEnd, Store, SystemLine, TurnResult, is_chosen, unix_s,
};
use crate::system::{CUSTOM_PROGRAM, CUSTOM_SERVER, PROGRAMS, Start, System};
use crate::testbed::{Testbed, processes, start, sys, usable_cores};

/// Time beyond the requested one after which a program is killed.
const PATIENCE: Duration = Duration::from_secs(60);
/// Exit code of a system whose runtime has no such program.
pub const EXIT_ABSENT: u8 = 3;
/// Disturbance above which a sample is taken again.
const NOISE_PERCENT_MAX: f64 = 8.0;
/// Samples of the peak, by which configurations are scaled.
const PEAK_SAMPLES: usize = 3;
/// Greatest number of attempts at a sample.
const ATTEMPTS_MAX: u32 = 3;
/// Maximum share of repeated samples in a run, so that a busy machine cannot make it endless.
const REPEATS_SHARE_MAX: f64 = 0.25;

/// Thoroughness, as a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thoroughness {
    /// Fewer configurations, and short samples.
    Quick,
    /// All configurations.
    Full,
    /// Number and length of samples as in the papers.
    Paper,
}

/// Thoroughness in numbers.
#[derive(Clone, Debug)]
pub struct Effort {
    /// Fewer configurations, shorter samples.
    pub quick: bool,
    /// Samples of each configuration on each system.
    pub repetitions: u32,
    /// Length of a sample's measurement.
    pub seconds: f64,
    /// Restriction to configurations with one of these in their label; empty: all.
    pub only: Vec<String>,
    /// Time limit: no round after the first begins that would probably end later.
    pub budget: Option<Duration>,
    /// True to skip turns that the file already has.
    pub resume: bool,
}

impl Effort {
    /// Default effort for an experiment.
    pub fn default_of(experiment: &Experiment, thoroughness: Thoroughness) -> Effort {
        let (repetitions, seconds) = match (thoroughness, experiment.work) {
            // The thesis's figure of cache throughput has 15 runs.
            (Thoroughness::Paper, Work::Server(work)) => (15, work.paper_seconds),
            (Thoroughness::Paper, Work::Program) => (15, 10.0),
            (_, Work::Server(work)) => {
                let (repetitions, seconds) = match thoroughness {
                    Thoroughness::Quick => (work.quick_repetitions, 0.3),
                    _ => (SAMPLES_MIN as u32, work.full_seconds),
                };
                (repetitions, work.seconds_min.max(seconds))
            }
            // A loop of nanoseconds does not need a second.
            (Thoroughness::Quick, Work::Program) => (5, 0.3),
            (Thoroughness::Full, Work::Program) => (5, 0.5),
        };
        Effort {
            quick: thoroughness == Thoroughness::Quick,
            repetitions,
            seconds,
            only: Vec::new(),
            budget: None,
            resume: false,
        }
    }
}

/// Next step of a run, for a progress display.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Turns taken.
    pub done: usize,
    /// Number of turns in all.
    pub total: usize,
    /// Estimate of the time for the rest.
    pub left: Option<Duration>,
    /// System of the next turn.
    pub system: &'a str,
    /// Configuration of the next turn.
    pub configuration: &'a str,
}

/// Environment of a run.
pub struct Setting<'a> {
    /// Testbed of servers; experiments with programs need none.
    pub testbed: Option<&'a mut Testbed>,
    /// The weft that generates the load.
    pub generator: &'a Path,
    /// Set when the user wants to stop.
    pub stop: &'a AtomicBool,
    /// Observer, called before every turn.
    pub progress: &'a mut dyn FnMut(&Progress<'_>),
}

/// Reason why nothing was measured.
#[derive(Debug)]
pub enum RunError {
    /// The experiment cannot run here, for this reason.
    Unfit(String),
    /// The samples could not be kept.
    Io(io::Error),
}

impl From<io::Error> for RunError {
    fn from(error: io::Error) -> RunError {
        RunError::Io(error)
    }
}

/// Takes all samples of an experiment and writes each to `file` at once. If the user stops it, the
/// file has the samples until then, and no `ending`.
///
/// # Errors
/// If this machine has no suitable testbed, or the file cannot be written. Failures of samples are
/// recorded.
pub fn run(
    experiment: &Experiment,
    systems: &[System],
    effort: Effort,
    setting: &mut Setting<'_>,
    file: &Path,
) -> Result<Recorded, RunError> {
    let systems = taking_part(experiment, systems);
    if systems.is_empty() {
        let wanted = experiment.systems.join(", ");
        let why = format!("none of its systems is installed: {wanted}");
        return Err(RunError::Unfit(why));
    }
    let mut run = Run {
        experiment,
        systems,
        effort,
        noise: Patience::default(),
        began: Instant::now(),
        total: 1,
        done: 0,
        skipped: 0,
        rounds: 0,
    };
    run.all(setting, file)?;
    let recorded = Recorded::read(file)?;
    recorded.ok_or_else(|| RunError::Unfit("nothing was recorded".to_owned()))
}

/// Systems of an experiment, in its order; ratios are to the first one.
pub fn taking_part<'a>(experiment: &Experiment, systems: &'a [System]) -> Vec<&'a System> {
    let kinds = experiment.systems.iter().copied();
    let custom = match experiment.work {
        Work::Server(_) => CUSTOM_SERVER,
        Work::Program => CUSTOM_PROGRAM,
    };
    let of_kind = |kind| systems.iter().filter(move |system| system.kind == kind);
    kinds.chain([custom]).flat_map(of_kind).collect()
}

/// Estimated length of an experiment with systems of these kinds, without repeated samples.
pub fn estimate(experiment: &Experiment, kinds: &[&str], effort: &Effort) -> Duration {
    let turn_s = |configuration: &Configuration| match experiment.work {
        // Start and end of a process. A configuration's own time counts.
        Work::Program => {
            let ms = configuration.parameter("ms");
            0.2 + ms.map_or(effort.seconds, |ms| ms as f64 / 1e3)
        }
        // No process: the figures are computed.
        Work::Server(work) if work.lasts == 0.0 => 0.0,
        // A server, a generator with warm-up, and a comparison of replies. A configuration's
        // minimum time counts.
        Work::Server(work) => {
            let lasts = work.lasts * effort.seconds;
            1.1 + lasts.max(configuration.get("least_s", 0) as f64)
        }
    };
    let configurations = (experiment.configurations)(&Breadth {
        quick: effort.quick,
        peak_per_s: None,
        cores: cores(),
    });
    let configurations = configurations.iter();
    let chosen =
        configurations.filter(|configuration| is_chosen(&effort.only, &configuration.label));
    let takes_part = |configuration: &Configuration, kind: &str| match experiment.work {
        Work::Server(work) => !(work.skips)(configuration, kind),
        Work::Program => true,
    };
    let configuration_s = |configuration: &Configuration| {
        let kinds = kinds.iter().filter(|kind| takes_part(configuration, kind));
        turn_s(configuration) * kinds.count() as f64
    };
    let round_s: f64 = chosen.map(configuration_s).sum();
    Duration::from_secs_f64(round_s * f64::from(effort.repetitions))
}

struct Run<'a> {
    experiment: &'a Experiment,
    systems: Vec<&'a System>,
    effort: Effort,
    noise: Patience,
    began: Instant,
    /// Planned number of turns.
    total: usize,
    done: usize,
    skipped: usize,
    /// Rounds with at least one turn taken in this run.
    rounds: u32,
}

/// Count of repeated samples.
#[derive(Debug, Default)]
struct Patience {
    left: u32,
    repeated: u32,
    kept: u32,
}

impl Patience {
    /// Allows repetitions for this number of turns.
    fn of(turns: usize) -> Patience {
        Patience { left: (turns as f64 * REPEATS_SHARE_MAX) as u32, ..Patience::default() }
    }
}

impl Run<'_> {
    fn all(&mut self, setting: &mut Setting<'_>, file: &Path) -> Result<(), RunError> {
        let earlier = self.earlier(setting, file)?;
        let peak_per_s = match &earlier {
            Some(earlier) => earlier.header.peak_per_s,
            None => self.peak(setting)?,
        };
        let breadth = Breadth { quick: self.effort.quick, peak_per_s, cores: cores() };
        let mut configurations = (self.experiment.configurations)(&breadth);
        configurations.retain(|configuration| is_chosen(&self.effort.only, &configuration.label));
        if configurations.is_empty() {
            let only = self.effort.only.join(", ");
            return Err(RunError::Unfit(format!("no configuration has {only} in its label")));
        }
        let header = self.header(setting, peak_per_s);
        let mut store = Store::open(file, &header, earlier.is_some())?;
        self.begin(configurations.len());
        let usage = Usage::now();
        for round in 0..self.effort.repetitions {
            if self.is_budget_spent() {
                break;
            }
            let before = self.done - self.skipped;
            for configuration in &configurations {
                for turn in 0..self.systems.len() {
                    // Each round begins with another system.
                    let system = self.systems[(turn + round as usize) % self.systems.len()];
                    self.tell(setting, configuration, system);
                    let is_there =
                        |earlier: &Recorded| earlier.has(&configuration.label, &system.name, round);
                    if earlier.as_ref().is_some_and(is_there) {
                        self.skipped += 1;
                        continue;
                    }
                    let Some(result) =
                        self.turn(setting, &mut store, configuration, system, round)?
                    else {
                        return Ok(());
                    };
                    // If the generator's machine is lost, every later sample would fail as well.
                    if let (TurnResult::Failed(_), Some(testbed)) = (&result, &mut setting.testbed)
                    {
                        testbed.clocks()?;
                    }
                    store.turn(record(configuration, system, round, result))?;
                }
            }
            self.rounds += u32::from(self.done - self.skipped > before);
        }
        let shares = usage.zip(Usage::now());
        let (repeated, noisy) = earlier.map_or((0, 0), |earlier| self.disturbed(&earlier));
        store.end(RunEnd {
            card: Card::take(),
            took_s: self.began.elapsed().as_secs_f64(),
            others_percent: shares.map(|(before, now)| 100.0 * before.others_since(&now)),
            repeated: self.noise.repeated + repeated,
            noisy: self.noise.kept + noisy,
        })?;
        Ok(())
    }

    /// Earlier samples to continue, if any; an error if they cannot be continued.
    fn earlier(&self, setting: &Setting<'_>, file: &Path) -> Result<Option<Recorded>, RunError> {
        if !self.effort.resume {
            return Ok(None);
        }
        let packed = file.with_extension("jsonl.gz");
        if !file.exists() && packed.exists() {
            let packed = packed.display();
            return Err(RunError::Unfit(format!(
                "--resume does not go on with packed samples: gunzip {packed}"
            )));
        }
        let Some(earlier) = Recorded::read(file)? else {
            return Ok(None);
        };
        match self.differs(&earlier, &self.testbed(setting)) {
            None => Ok(Some(earlier)),
            Some(_) if earlier.turns.is_empty() => Ok(None),
            Some(what) => Err(RunError::Unfit(format!(
                "{} has samples of another run, which --resume cannot continue ({what} is not the \
                 same): use --out DIR for another folder, or omit --resume to replace them",
                file.display()
            ))),
        }
    }

    /// True if waiting for a core is no sign of other programs.
    fn queues_by_itself(&self) -> bool {
        match self.experiment.work {
            Work::Server(work) => work.queues_by_itself,
            Work::Program => true,
        }
    }

    /// Numbers of repeated and of noisy samples in an earlier run.
    fn disturbed(&self, earlier: &Recorded) -> (u32, u32) {
        let queues = self.queues_by_itself();
        let mut repeated = 0;
        let mut noisy = 0;
        for turn in &earlier.turns {
            match &turn.result {
                TurnResult::Discarded(_) => repeated += 1,
                TurnResult::Sample(sample) => {
                    let percent = sample.noise.percent(queues, earlier.header.cores);
                    noisy += u32::from(percent > NOISE_PERCENT_MAX);
                }
                _ => {}
            }
        }
        (repeated, noisy)
    }

    /// Takes a sample, again while it is noisy. `None` if the user stopped it.
    fn turn(
        &mut self,
        setting: &mut Setting<'_>,
        store: &mut Store,
        configuration: &Configuration,
        system: &System,
        round: u32,
    ) -> io::Result<Option<TurnResult>> {
        let queues = self.queues_by_itself();
        let noise = |sample: &Sample| sample.noise.percent(queues, cores());
        let mut best: Option<Sample> = None;
        for attempt in 1..=ATTEMPTS_MAX {
            let result = self.take(setting, configuration, system);
            if setting.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let sample = match result {
                TurnResult::Sample(sample) => sample,
                other => {
                    // An existing sample counts more than a later failure.
                    self.noise.kept += u32::from(best.is_some());
                    return Ok(Some(best.map_or(other, TurnResult::Sample)));
                }
            };
            let (better, worse) = match best.take() {
                Some(before) if noise(&before) <= noise(&sample) => (before, Some(sample)),
                Some(before) => (sample, Some(before)),
                None => (sample, None),
            };
            if let Some(worse) = worse {
                store.turn(record(configuration, system, round, TurnResult::Discarded(worse)))?;
            }
            let is_noisy = noise(&better) > NOISE_PERCENT_MAX;
            let gives_up = attempt == ATTEMPTS_MAX || self.noise.left == 0;
            if !is_noisy || gives_up {
                self.noise.kept += u32::from(is_noisy);
                return Ok(Some(TurnResult::Sample(better)));
            }
            self.noise.left -= 1;
            self.noise.repeated += 1;
            best = Some(better);
        }
        unreachable!("the last attempt returns")
    }

    fn take(
        &self,
        setting: &mut Setting<'_>,
        configuration: &Configuration,
        system: &System,
    ) -> TurnResult {
        let result = match (&self.experiment.work, &mut setting.testbed) {
            (Work::Program, _) => return self.program(setting.stop, configuration, system),
            (Work::Server(work), _) if (work.skips)(configuration, &system.kind) => {
                Err(Fault::Absent)
            }
            (Work::Server(work), Some(testbed)) => {
                let mut bench = Bench {
                    testbed,
                    generator: setting.generator,
                    seconds: self.effort.seconds,
                    stop: setting.stop,
                };
                (work.take)(&mut bench, configuration, system)
            }
            (Work::Server(_), None) => Err("there is no testbed".into()),
        };
        match result {
            Ok(sample) => of_numbers(sample),
            Err(Fault::Failed(why)) => TurnResult::Failed(why),
            Err(Fault::Absent) => TurnResult::Absent,
            Err(Fault::Stopped) => TurnResult::Failed("stopped".to_owned()),
        }
    }

    fn program(
        &self,
        stop: &AtomicBool,
        configuration: &Configuration,
        system: &System,
    ) -> TurnResult {
        let usage = Usage::now();
        let mut delay_ns = 0;
        let began = Instant::now();
        let result = program(stop, configuration, system, self.effort.seconds, &mut delay_ns);
        let mut noise = Noise::since(usage, Duration::ZERO);
        noise.run_delay_percent = delay_ns as f64 / 1e7 / began.elapsed().as_secs_f64();
        match result.unwrap_or_else(|error| TurnResult::Failed(error.to_string())) {
            TurnResult::Sample(sample) => TurnResult::Sample(Sample { noise, ..sample }),
            other => other,
        }
    }

    /// Finds the highest rate of a system, if it scales the configurations.
    fn peak(&mut self, setting: &mut Setting<'_>) -> Result<Option<f64>, RunError> {
        let Work::Server(work) = self.experiment.work else {
            return Ok(None);
        };
        let Some(kind) = work.scaled_by else {
            return Ok(None);
        };
        let system = self.systems.iter().find(|system| system.kind == kind);
        let system = *system.unwrap_or(&self.systems[0]);
        let configuration = Configuration::new("as fast as it goes", "peak", []);
        self.tell(setting, &configuration, system);
        middle_peak(|| match self.take(setting, &configuration, system) {
            TurnResult::Sample(sample) => Ok(Measure::RATE.figure(&configuration, &sample.values)),
            TurnResult::Failed(why) => Err(RunError::Unfit(format!("{}: {why}", system.name))),
            _ => Ok(None),
        })
    }

    fn header(&self, setting: &Setting<'_>, peak_per_s: Option<f64>) -> Header {
        let is_there = |kind: &&&str| !self.systems.iter().any(|system| system.kind == **kind);
        let missing = self.experiment.systems.iter().filter(is_there);
        let testbed = setting.testbed.as_ref();
        let mut lacks = testbed.map_or(Vec::new(), |testbed| testbed.lacks());
        let is_own = |system: &&System| match &system.start {
            Start::Server(server) => server.program.ends_with(PROGRAMS),
            _ => false,
        };
        let measures_itself = matches!(self.experiment.work, Work::Program)
            || self.systems.iter().any(is_own)
            || std::env::current_exe().is_ok_and(|weft| weft == setting.generator);
        if cfg!(debug_assertions) && measures_itself {
            lacks.push("this weft is a debug build: its figures are no figures".to_owned());
        }
        Header {
            experiment: self.experiment.name.to_owned(),
            began_unix_s: unix_s(),
            quick: self.effort.quick,
            repetitions: self.effort.repetitions,
            seconds: self.effort.seconds,
            peak_per_s,
            cores: cores(),
            only: self.effort.only.clone(),
            testbed: self.testbed(setting),
            lacks,
            systems: self.lines(),
            missing: missing.map(|&kind| kind.to_owned()).collect(),
            card: Card::take(),
        }
    }

    /// Description of the testbed.
    fn testbed(&self, setting: &Setting<'_>) -> String {
        let (testbed, shares_cores) =
            (setting.testbed.as_ref(), self.experiment.work.shares_cores());
        testbed.map_or("any core".to_owned(), |testbed| testbed.words(shares_cores))
    }

    /// First difference that makes this run incompatible with an earlier one.
    fn differs(&self, earlier: &Recorded, testbed: &str) -> Option<&'static str> {
        let header = &earlier.header;
        let things = [
            ("--quick", header.quick == self.effort.quick),
            ("--sample", header.seconds == self.effort.seconds),
            ("--configurations", header.only == self.effort.only),
            ("its systems or their versions", header.systems == self.lines()),
            ("its testbed", header.testbed == testbed),
            ("its number of cores", header.cores == cores()),
        ];
        things.into_iter().find_map(|(what, is_same)| (!is_same).then_some(what))
    }

    fn lines(&self) -> Vec<SystemLine> {
        let systems = self.systems.iter();
        systems.map(|&system| system.into()).collect()
    }

    /// True if another round would probably end too late. The first round always runs.
    fn is_budget_spent(&self) -> bool {
        let spent = self.began.elapsed();
        let each = spent.checked_div(self.rounds);
        let ends = each.map(|each| spent + each);
        ends.zip(self.effort.budget).is_some_and(|(ends, budget)| ends > budget)
    }

    /// Restarts the count of turns, which so far was about the peak.
    fn begin(&mut self, configurations: usize) {
        self.total = configurations * self.systems.len() * self.effort.repetitions as usize;
        self.done = 0;
        self.noise = Patience::of(self.total);
    }

    fn tell(&mut self, setting: &mut Setting<'_>, configuration: &Configuration, system: &System) {
        let taken = self.done - self.skipped;
        let left = (taken > 0).then(|| {
            let each = self.began.elapsed() / taken as u32;
            each * (self.total.saturating_sub(self.done)) as u32
        });
        (setting.progress)(&Progress {
            done: self.done,
            total: self.total,
            left,
            system: &system.name,
            configuration: &configuration.label,
        });
        self.done += 1;
    }
}

/// Checks that all figures are finite: JSON has no others, and a file with one could not be read
/// back.
fn of_numbers(sample: Sample) -> TurnResult {
    let mut figures = sample.values.iter();
    let strange = figures.find(|(_, figure)| !figure.is_finite());
    let why = strange.map(|(name, figure)| format!("{name} is {figure}"));
    why.map_or(TurnResult::Sample(sample), TurnResult::Failed)
}

fn record(configuration: &Configuration, system: &System, round: u32, turn: TurnResult) -> Record {
    let configuration = configuration.label.clone();
    Record { configuration, system: system.name.clone(), round, result: turn }
}

/// Runs a program to its end, and reads its output and its threads' waits for a core.
fn program(
    stop: &AtomicBool,
    configuration: &Configuration,
    system: &System,
    seconds: f64,
    delay_ns: &mut u64,
) -> io::Result<TurnResult> {
    let Start::Program { program, arguments, parameters } = &system.start else {
        return Err(io::Error::other(format!("{} is a server", system.name)));
    };
    let mut command = Command::new(program);
    command.args(arguments).arg(configuration.program);
    let milliseconds = (seconds * 1000.0) as u64;
    // A configuration's own time counts.
    let fixed = [("ms", milliseconds)].into_iter();
    for (name, value) in fixed.chain(configuration.parameters.iter().copied()) {
        command.arg(format!("{name}={value}"));
    }
    command.args(parameters).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    // As many cores as it has processors, the same ones for all systems.
    let mut cores = usable_cores()?;
    cores.truncate(configuration.get("processors", u64::MAX) as usize);
    let settling = sys::Settling { cores, ..sys::Settling::default() };
    sys::settle(&mut command, settling);
    let mut child = start(&mut command)?;
    let patience = patience_of(configuration, milliseconds);
    let deadline = Instant::now() + patience;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline || stop.load(Ordering::Relaxed) {
            child.kill()?;
            child.wait()?;
            let limit = patience.as_secs();
            return Ok(TurnResult::Failed(format!("did not end in {limit} s")));
        }
        // Waits of threads that have ended are no longer included.
        *delay_ns = processes::run_delay_ns(child.id()).max(*delay_ns);
        thread::sleep(Duration::from_millis(20));
    };
    // The output fits into the pipes.
    let mut out = String::new();
    let mut errors = String::new();
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    stdout.expect("piped").read_to_string(&mut out)?;
    stderr.expect("piped").read_to_string(&mut errors)?;
    if status.code() == Some(EXIT_ABSENT.into()) {
        return Ok(TurnResult::Absent);
    }
    if !status.success() {
        return Ok(TurnResult::Failed(format!("{status}{}", reason_in(&errors))));
    }
    Ok(match serde_json::from_str::<Output>(out.trim()) {
        Ok(output) => TurnResult::Sample(output.into()),
        Err(error) => TurnResult::Failed(format!("printed {:?}: {error}", out.trim())),
    })
}

/// Time limit of a program. A configuration's own time counts.
fn patience_of(configuration: &Configuration, milliseconds: u64) -> Duration {
    PATIENCE + Duration::from_millis(configuration.get("ms", milliseconds))
}

/// The middle one of some peaks, since all rates of a run are parts of it.
fn middle_peak(
    mut take: impl FnMut() -> Result<Option<f64>, RunError>,
) -> Result<Option<f64>, RunError> {
    let mut peaks = Vec::new();
    for _ in 0..PEAK_SAMPLES {
        let Some(peak) = take()? else {
            return Ok(None);
        };
        peaks.push(peak);
    }
    Ok(Some(median(peaks)))
}

/// The first line that says why. A panic begins with an empty line, and one that names the thread,
/// by a number that is another one each time, and a path of this machine.
fn reason_in(errors: &str) -> String {
    let mut lines = errors.lines().map(str::trim);
    let first = lines.find(|line| !line.is_empty() && !line.starts_with("thread '"));
    first.map(|line| format!(": {line}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::header;

    /// Seen: a note for each sample of a panicking program, with the path of a source file.
    #[test]
    fn words_of_a_panic() {
        let panic = "\nthread 'main' (21) panicked at src/mod.rs:588:45:\nno memory\nnote: x";
        assert_eq!(reason_in(panic), ": no memory");
        assert_eq!(reason_in("out of memory\n"), ": out of memory");
        assert_eq!(reason_in("\n"), "");
    }

    #[test]
    fn infinite_figure_fails_its_sample() {
        let sample = Sample::of([("rate_per_s", 0.0), ("generator_cpu_us", f64::INFINITY)]);
        let why = "generator_cpu_us is inf".to_owned();
        assert_eq!(of_numbers(sample), TurnResult::Failed(why));
        let sample = Sample::of([("rate_per_s", 0.0)]);
        assert_eq!(of_numbers(sample.clone()), TurnResult::Sample(sample));
    }

    fn run_of<'a>(experiment: &'static str, systems: &'a [System]) -> Run<'a> {
        let experiment = crate::catalog::find(experiment).unwrap();
        Run {
            experiment,
            systems: systems.iter().collect(),
            effort: Effort::default_of(experiment, Thoroughness::Full),
            noise: Patience::default(),
            began: Instant::now(),
            total: 1,
            done: 0,
            skipped: 0,
            rounds: 0,
        }
    }

    fn system() -> System {
        let form = crate::system::ceilings(Path::new("weft-programs"));
        form.into_iter().next().unwrap()
    }

    /// Seen: "80 % of the peak" at which nginx came to its limit. Cause: the peak, of which all
    /// rates are parts, was one sample of a machine on which samples differ by a third.
    #[test]
    fn peak_is_the_middle_of_three() {
        let mut rates = [5000.0, 9000.0, 6000.0, 1.0].into_iter();
        let peak = middle_peak(|| Ok(rates.next()));
        assert!(matches!(peak, Ok(Some(6000.0))), "{peak:?}");
        assert!(matches!(middle_peak(|| Ok(None)), Ok(None)));
    }

    /// Seen: a run of `cache-latency` took 8 samples again and kept 20 noisy ones, where a quarter
    /// of 70 may be taken again. Cause: the search for the peak was the first turn of a run of one
    /// configuration, and what may be repeated was counted then. Cure: configurations are counted
    /// once all are known.
    #[test]
    fn peak_search_is_no_repetition() {
        let systems = [system(), system()];
        let mut run = run_of("web-throughput", &systems);
        run.effort.repetitions = 5;
        let stop = AtomicBool::new(false);
        let mut told = Vec::new();
        let mut progress = |now: &Progress<'_>| told.push((now.done, now.total));
        let mut setting = Setting {
            testbed: None,
            generator: Path::new("weft"),
            stop: &stop,
            progress: &mut progress,
        };
        let configuration = Configuration::new("c", "http", []);
        run.tell(&mut setting, &configuration, &systems[0]);
        run.begin(8);
        run.tell(&mut setting, &configuration, &systems[0]);
        assert_eq!(run.noise.left, 20, "a quarter of 8 × 2 × 5");
        assert_eq!(told, [(0, 1), (0, 80)]);
    }

    /// Seen: a run as root was continued without root, with another testbed's figures in one file.
    #[test]
    fn a_run_goes_on_where_it_began() {
        let systems = [system()];
        let run = run_of("web-rows", &systems);
        let mut header = header();
        (header.quick, header.seconds) = (false, run.effort.seconds);
        header.systems = run.lines();
        header.cores = cores();
        let mut earlier = Recorded { header, turns: Vec::new(), ending: None };
        assert_eq!(run.differs(&earlier, "here"), None);
        assert_eq!(run.differs(&earlier, "elsewhere"), Some("its testbed"));
        earlier.header.seconds += 1.0;
        assert_eq!(run.differs(&earlier, "here"), Some("--sample"));
    }

    /// Seen: `--resume` without sudo, with another `--sample` or after an upgrade of nginx emptied
    /// the file of a whole night, against "samples that are there stay". Cause: a run that cannot
    /// continue began anew. Cure: it is refused.
    #[test]
    fn resuming_never_empties_a_file() {
        let systems = [system()];
        let mut run = run_of("web-rows", &systems);
        run.effort.resume = true;
        let home = tempfile::tempdir().unwrap();
        let file = crate::store::samples_file(home.path(), "web-rows");
        let mut header = header();
        header.testbed = "elsewhere".to_owned();
        let mut store = Store::open(&file, &header, false).unwrap();
        let configuration = Configuration::new("c", "http", []);
        let turn = TurnResult::Sample(Sample::default());
        store.turn(record(&configuration, &systems[0], 0, turn)).unwrap();
        let before = std::fs::read(&file).unwrap();
        let stop = AtomicBool::new(false);
        let mut progress = |_: &Progress<'_>| ();
        let mut setting = Setting {
            testbed: None,
            generator: Path::new("weft"),
            stop: &stop,
            progress: &mut progress,
        };
        let refused = run.all(&mut setting, &file);
        assert!(matches!(refused, Err(RunError::Unfit(why)) if why.contains("--resume")));
        assert_eq!(std::fs::read(&file).unwrap(), before);
    }

    /// Seen: `--resume` in a folder of packed samples began anew beside them, and the report had
    /// the new ones alone. Cure: it is refused.
    #[test]
    fn packed_samples_are_not_resumed() {
        let systems = [system()];
        let mut run = run_of("web-rows", &systems);
        run.effort.resume = true;
        let home = tempfile::tempdir().unwrap();
        let file = crate::store::samples_file(home.path(), "web-rows");
        std::fs::create_dir(file.parent().unwrap()).unwrap();
        std::fs::write(file.with_extension("jsonl.gz"), "").unwrap();
        let stop = AtomicBool::new(false);
        let mut progress = |_: &Progress<'_>| ();
        let mut setting = Setting {
            testbed: None,
            generator: Path::new("weft"),
            stop: &stop,
            progress: &mut progress,
        };
        let refused = run.all(&mut setting, &file);
        assert!(matches!(refused, Err(RunError::Unfit(why)) if why.contains("gunzip")));
        assert!(!file.exists());
    }

    /// Seen: `--resume --budget 20m` went on for an hour. Cause: rounds that were there counted as
    /// rounds of this run, so that each seemed to take next to nothing.
    #[test]
    fn budget_is_of_rounds_taken_now() {
        let systems = [system()];
        let mut run = run_of("web-rows", &systems);
        run.effort.budget = Some(Duration::from_secs(30));
        run.began = Instant::now().checked_sub(Duration::from_secs(20)).unwrap();
        assert!(!run.is_budget_spent(), "one round at least");
        run.rounds = 1;
        assert!(run.is_budget_spent(), "the second one would end after 40 s");
        run.rounds = 4;
        assert!(!run.is_budget_spent());
    }

    /// Seen: a night of noisy samples had no note once its last round had been resumed.
    #[test]
    fn noise_of_the_resumed_part_counts() {
        let systems = [system()];
        let run = run_of("web-rows", &systems);
        let configuration = Configuration::new("c", "http", []);
        let sample = |others_percent| {
            let noise = Noise { others_percent, ..Noise::default() };
            Sample { noise, ..Sample::default() }
        };
        let results = [
            TurnResult::Discarded(sample(50.0)),
            TurnResult::Sample(sample(40.0)),
            TurnResult::Sample(sample(1.0)),
            TurnResult::Failed("it died".to_owned()),
        ];
        let turns = results.map(|result| record(&configuration, &systems[0], 0, result));
        let earlier = Recorded { header: header(), turns: turns.to_vec(), ending: None };
        assert_eq!(run.disturbed(&earlier), (1, 1));
    }

    #[test]
    fn program_has_its_time_and_a_minute() {
        let own = Configuration::new("c", "yield", [("ms", 10_000)]);
        let any = Configuration::new("c", "yield", []);
        assert_eq!(patience_of(&own, 300), Duration::from_secs(70));
        // Seen: "did not end in 60 s" for each program, with --sample 60s.
        assert_eq!(patience_of(&any, 90_000), Duration::from_secs(150));
    }
}
