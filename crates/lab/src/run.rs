//! Experiments, their cells, and how samples are taken.

use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::busy::Usage;
use crate::report::{Expectation, Report, Row};
use crate::subject::Subject;

/// What is measured, on which subjects, and what comes out if all is well.
pub struct Experiment {
    /// `rt-yield`.
    pub name: &'static str,
    /// One line: what it does.
    pub about: &'static str,
    /// What is reported of each sample.
    pub measure: Measure,
    /// The places where it is measured; fewer of them when `quick`.
    pub cells: fn(quick: bool) -> Vec<Cell>,
    /// Which kinds of subjects take part: see [`Subject::kind`].
    pub subjects: &'static [&'static str],
    /// Judges the rows.
    pub expectations: fn(&[Row]) -> Vec<Expectation>,
}

/// One combination of parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// For tables: `2 processors, many fibers`.
    pub label: String,
    /// Which program the subject runs.
    pub program: &'static str,
    /// Its parameters.
    pub parameters: Vec<(&'static str, u64)>,
}

/// What is made of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Nanoseconds per operation and processor: flat over processors is perfect.
    NanosPerOperation,
    /// Milliseconds per operation; "never" if there was none in time.
    MillisPerTransfer,
    /// Resident bytes per thread.
    BytesPerThread,
    /// Nanoseconds from one operation to the next, however many processors take part.
    Nanos,
    /// Microseconds from one operation to the next, as `Nanos`.
    Micros,
    /// CPU time in percent of one processor's.
    CpuPercent,
}

/// What a subject prints.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Sample {
    /// Operations done.
    pub ops: u64,
    /// How long that took.
    pub seconds: f64,
    /// How long ending took, where that is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_seconds: Option<f64>,
    /// Growth of resident memory, where that is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident_bytes: Option<u64>,
    /// Growth of address space, where that is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_bytes: Option<u64>,
    /// CPU time of the whole process, where that is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<f64>,
}

/// How thorough to be.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Fewer cells, shorter samples.
    pub quick: bool,
    /// Samples of each cell on each subject.
    pub repetitions: u32,
}

/// What is about to be done.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Samples taken.
    pub done: usize,
    /// Samples in all.
    pub total: usize,
    /// The subject of the next one.
    pub subject: &'a str,
    /// And where.
    pub cell: &'a str,
}

/// A sample that takes longer than this is given up; programs end by themselves well before.
const SAMPLE_TIMEOUT: Duration = Duration::from_secs(60);

/// How a subject says that it has no such program, because its runtime has nothing of the kind.
const EXIT_ABSENT: i32 = 3;

/// What came of a sample.
enum Taken {
    Sample(Sample),
    Failed(String),
    Absent,
}

/// Takes all samples of an experiment.
///
/// # Errors
/// A subject that could not be started. What goes wrong in a sample is noted in its row.
pub fn run(
    experiment: &Experiment,
    subjects: &[Subject],
    options: Effort,
    progress: &mut dyn FnMut(&Progress<'_>),
) -> io::Result<Report> {
    let cells = (experiment.cells)(options.quick);
    let subjects: Vec<_> = subjects
        .iter()
        .filter(|subject| experiment.subjects.contains(&&*subject.kind))
        .collect();
    let mut rows: Vec<Row> = cells
        .iter()
        .flat_map(|cell| subjects.iter().map(|subject| Row::new(cell, &subject.name)))
        .collect();
    let usage_before = Usage::now();
    let (mut done, total) = (0, rows.len() * options.repetitions as usize);
    for repetition in 0..options.repetitions as usize {
        for (at, cell) in cells.iter().enumerate() {
            for turn in 0..subjects.len() {
                // The first one changes.
                let which = (turn + repetition) % subjects.len();
                let (subject, row) = (subjects[which], &mut rows[at * subjects.len() + which]);
                let (subject_name, cell_label) = (&subject.name, &cell.label);
                progress(&Progress {
                    done,
                    total,
                    subject: subject_name,
                    cell: cell_label,
                });
                done += 1;
                if row.is_absent {
                    continue;
                }
                match take(subject, cell, options.quick)? {
                    Taken::Sample(sample) => row.add(experiment.measure, cell, sample),
                    Taken::Failed(why) => row.failures.push(why),
                    Taken::Absent => row.is_absent = true,
                }
            }
        }
    }
    let expectations = (experiment.expectations)(&rows);
    let others_share = usage_before
        .zip(Usage::now())
        .map(|(before, after)| before.others_since(&after));
    Ok(Report::new(experiment, rows, expectations, others_share))
}

/// Runs one sample.
fn take(subject: &Subject, cell: &Cell, quick: bool) -> io::Result<Taken> {
    let mut command = Command::new(&subject.program);
    command.args(&subject.arguments).arg(cell.program);
    let milliseconds = if quick { 200 } else { 1000 };
    let parameters = [("ms", milliseconds)].into_iter();
    for (name, value) in parameters.chain(cell.parameters.iter().copied()) {
        command.arg(format!("{name}={value}"));
    }
    command.args(&subject.parameters);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| {
        let program = subject.program.display();
        io::Error::new(error.kind(), format!("cannot start {program}: {error}"))
    })?;
    let deadline = Instant::now() + SAMPLE_TIMEOUT;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            None => {
                child.kill()?;
                child.wait()?;
                let limit = SAMPLE_TIMEOUT.as_secs();
                return Ok(Taken::Failed(format!("did not end in {limit} s")));
            }
        }
    };
    // What they print fits into the pipes.
    let (mut out, mut errors) = (String::new(), String::new());
    child
        .stdout
        .take()
        .expect("piped")
        .read_to_string(&mut out)?;
    child
        .stderr
        .take()
        .expect("piped")
        .read_to_string(&mut errors)?;
    if status.code() == Some(EXIT_ABSENT) {
        return Ok(Taken::Absent);
    }
    if !status.success() {
        let first = errors.lines().next().unwrap_or_default();
        return Ok(Taken::Failed(format!("{status}: {first}")));
    }
    Ok(match serde_json::from_str(out.trim()) {
        Ok(sample) => Taken::Sample(sample),
        Err(error) => Taken::Failed(format!("printed {:?}: {error}", out.trim())),
    })
}

impl Measure {
    /// The figure of a sample; `None` if it has none.
    pub(crate) fn of(self, cell: &Cell, sample: &Sample) -> Option<f64> {
        if self == Measure::CpuPercent {
            return Some(100.0 * sample.cpu_seconds? / sample.seconds);
        }
        let ops = sample.ops as f64;
        if sample.ops == 0 {
            return None;
        }
        match self {
            Measure::NanosPerOperation => {
                let processors = cell.parameter("processors").unwrap_or(1) as f64;
                Some(sample.seconds * 1e9 * processors / ops)
            }
            Measure::MillisPerTransfer => {
                let wanted = cell.parameter("transfers").unwrap_or(0);
                (sample.ops >= wanted).then_some(sample.seconds * 1e3 / ops)
            }
            Measure::BytesPerThread => Some(sample.resident_bytes? as f64 / ops),
            Measure::Nanos => Some(sample.seconds * 1e9 / ops),
            Measure::Micros => Some(sample.seconds * 1e6 / ops),
            Measure::CpuPercent => unreachable!("see above"),
        }
    }

    /// Its unit, for tables.
    pub fn unit(self) -> &'static str {
        match self {
            Measure::NanosPerOperation => "ns/op/processor",
            Measure::MillisPerTransfer => "ms/transfer",
            Measure::BytesPerThread => "bytes/thread",
            Measure::Nanos => "ns/op",
            Measure::Micros => "µs/op",
            Measure::CpuPercent => "% of a CPU",
        }
    }
}

impl Cell {
    /// A parameter's value.
    pub fn parameter(&self, name: &str) -> Option<u64> {
        let found = self.parameters.iter().find(|(key, _)| *key == name);
        found.map(|&(_, value)| value)
    }
}
