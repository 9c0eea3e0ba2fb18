//! Raw samples as JSON lines: one for the run, one per sample, written at once, and one for the
//! end. An interrupted run can continue, and a report needs nothing else.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use flate2::read::GzDecoder;
use serde::{Deserialize, Serialize};

use crate::card::Card;
use crate::experiment::{Breadth, Experiment, Work};
use crate::rows::Rows;
use crate::sample::Sample;
use crate::system::{Start, System, file_name};
use crate::testbed::with_path;

/// Start of a run.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Header {
    /// Name of the experiment.
    pub experiment: String,
    /// Seconds since 1970.
    pub began_unix_s: u64,
    /// True for fewer configurations and shorter samples.
    pub quick: bool,
    /// Samples of each configuration on each system.
    pub repetitions: u32,
    /// Length of a sample's measurement.
    pub seconds: f64,
    /// Peak rate of the machine, if it scales the configurations.
    pub peak_per_s: Option<f64>,
    /// Number of cores that the laboratory may use.
    #[serde(default = "two")]
    pub cores: usize,
    /// Testbed in words.
    pub testbed: String,
    /// Restriction to configurations with one of these in their label; empty: all.
    #[serde(default)]
    pub only: Vec<String>,
    /// Deficiencies of the testbed, with their effect.
    pub lacks: Vec<String>,
    /// Systems under test.
    pub systems: Vec<SystemLine>,
    /// Kinds of systems that the experiment knows and that were missing.
    pub missing: Vec<String>,
    /// The machine at the beginning.
    pub card: Card,
}

/// Number of cores in records that lack it.
fn two() -> usize {
    2
}

/// A system in the file.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct SystemLine {
    /// Its name in tables.
    pub name: String,
    /// Version that it prints.
    pub version: String,
    /// Command that started it.
    pub command: String,
}

impl From<&System> for SystemLine {
    fn from(system: &System) -> SystemLine {
        SystemLine {
            name: system.name.clone(),
            version: system.version.clone(),
            command: match &system.start {
                Start::Server(server) => server.words(),
                Start::Program { program, .. } | Start::Generator { program, .. } => {
                    file_name(program)
                }
            },
        }
    }
}

/// A sample in the file.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Record {
    /// The configuration's label.
    pub configuration: String,
    /// The system's name.
    pub system: String,
    /// Number of the round, from 0.
    pub round: u32,
    /// Result.
    #[serde(rename = "came")]
    pub result: TurnResult,
}

/// Result of a turn.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnResult {
    /// A sample.
    Sample(Sample),
    /// A sample that was too noisy and was taken again.
    Discarded(Sample),
    /// No sample, for this reason.
    Failed(String),
    /// No sample: the system has no such program.
    Absent,
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct RunEnd {
    /// The machine at the end.
    pub card: Card,
    /// Length of the run.
    pub took_s: f64,
    /// Share of the machine that others used meanwhile, in percent, if known.
    pub others_percent: Option<f64>,
    /// Noisy samples that were taken again.
    pub repeated: u32,
    /// Noisy samples that were kept, because repeating did not help or was used up.
    pub noisy: u32,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Run(Header),
    Turn(Record),
    End(RunEnd),
}

/// The file of one experiment, written as samples come.
pub(crate) struct Store {
    file: File,
    path: PathBuf,
}

impl Store {
    /// Begins the file anew, or continues it.
    pub(crate) fn open(path: &Path, header: &Header, goes_on: bool) -> io::Result<Store> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(with_path(folder))?;
        }
        let file = Store::open_file(path, goes_on).map_err(with_path(path))?;
        let path = path.to_owned();
        let mut store = Store { file, path };
        store.write(&Line::Run(header.clone()))?;
        Ok(store)
    }

    fn open_file(path: &Path, goes_on: bool) -> io::Result<File> {
        let mut options = OpenOptions::new();
        if !goes_on {
            return options.create(true).write(true).truncate(true).open(path);
        }
        let file = options.append(true).read(true).open(path)?;
        let text = fs::read(path)?;
        // Without a truncated last line.
        let whole = text.iter().rposition(|&byte| byte == b'\n');
        file.set_len(whole.map_or(0, |at| at as u64 + 1))?;
        Ok(file)
    }

    pub(crate) fn turn(&mut self, record: Record) -> io::Result<()> {
        self.write(&Line::Turn(record))
    }

    pub(crate) fn end(&mut self, ending: RunEnd) -> io::Result<()> {
        self.write(&Line::End(ending))
    }

    /// Writes a line with one write, so that a death truncates at most the last line.
    fn write(&mut self, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        let written = self.file.write_all(&text);
        written.map_err(with_path(&self.path))
    }
}

/// Contents of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// Header of the last run into this file.
    pub header: Header,
    /// All turns.
    pub turns: Vec<Record>,
    /// End of the last run; `None` if it was interrupted.
    pub ending: Option<RunEnd>,
}

impl Recorded {
    /// Reads a file, or its gzip variant; `None` if neither exists.
    ///
    /// # Errors
    /// A file that holds something else.
    pub fn read(path: &Path) -> io::Result<Option<Recorded>> {
        let Some(text) = text_of(path)? else {
            return Ok(None);
        };
        let (mut header, mut turns, mut ending) = (None, Vec::new(), None);
        // A last line without its end was truncated by the writer's death.
        for (at, line) in text.split_inclusive('\n').enumerate() {
            let Some(line) = line.strip_suffix('\n') else {
                break;
            };
            let line = serde_json::from_str(line).map_err(|error| {
                let file = path.display();
                let at = at + 1;
                io::Error::other(format!("{file}:{at}: no line of weft lab: {error}"))
            })?;
            match line {
                Line::Run(run) => (header, ending) = (Some(run), None),
                Line::Turn(record) => turns.push(record),
                Line::End(end) => ending = Some(end),
            }
        }
        Ok(header.map(|header| Recorded { header, turns, ending }))
    }

    /// True if the file has this turn.
    pub(crate) fn has(&self, configuration: &str, system: &str, round: u32) -> bool {
        self.turns.iter().any(|turn| {
            turn.configuration == configuration
                && turn.system == system
                && turn.round == round
                && !matches!(turn.result, TurnResult::Discarded(_))
        })
    }

    /// Rows of the experiment, filled with these turns.
    pub fn rows(&self, experiment: &Experiment) -> Rows {
        let Header { quick, peak_per_s, cores, .. } = self.header;
        let breadth = Breadth { quick, peak_per_s, cores };
        let systems: Vec<String> =
            self.header.systems.iter().map(|system| system.name.clone()).collect();
        let mut configurations = (experiment.configurations)(&breadth);
        configurations.retain(|configuration| is_chosen(&self.header.only, &configuration.label));
        let mut rows = Rows::new(&configurations, &systems);
        for turn in &self.turns {
            let Some(row) = rows.find_mut(&turn.configuration, &turn.system) else {
                continue;
            };
            match &turn.result {
                TurnResult::Sample(sample) => {
                    row.samples.push(sample.clone());
                    row.rounds.push(turn.round);
                }
                TurnResult::Failed(why) => row.failures.push(why.clone()),
                TurnResult::Absent => row.is_absent = true,
                TurnResult::Discarded(_) => {}
            }
        }
        if let Work::Server(work) = experiment.work {
            (work.derive)(&mut rows);
        }
        rows
    }
}

/// True if a configuration was requested.
pub(crate) fn is_chosen(only: &[String], label: &str) -> bool {
    only.is_empty() || only.iter().any(|part| label.contains(part))
}

/// Text of a file, or of its compressed variant.
fn text_of(path: &Path) -> io::Result<Option<String>> {
    let read = |path: &Path| match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(with_path(path)(error)),
    };
    let mut text = String::new();
    if let Some(plain) = read(path)? {
        (&plain[..]).read_to_string(&mut text).map_err(with_path(path))?;
        return Ok(Some(text));
    }
    let packed = path.with_extension("jsonl.gz");
    let Some(bytes) = read(&packed)? else {
        return Ok(None);
    };
    GzDecoder::new(&bytes[..]).read_to_string(&mut text).map_err(with_path(&packed))?;
    Ok(Some(text))
}

/// Samples file of an experiment in a folder of results.
pub fn samples_file(folder: &Path, experiment: &str) -> PathBuf {
    folder.join("samples").join(format!("{experiment}.jsonl"))
}

pub(crate) fn unix_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn header() -> Header {
        Header {
            experiment: "rt-yield".to_owned(),
            began_unix_s: 1_795_338_000,
            quick: true,
            repetitions: 2,
            seconds: 0.5,
            peak_per_s: None,
            cores: 2,
            only: Vec::new(),
            testbed: "here".to_owned(),
            lacks: Vec::new(),
            systems: vec![SystemLine {
                name: "weft".to_owned(),
                version: "1.0".to_owned(),
                command: "weft".to_owned(),
            }],
            missing: vec!["go".to_owned()],
            card: Card::default(),
        }
    }

    fn turn(round: u32, result: TurnResult) -> Record {
        Record {
            configuration: "1 processor, many".to_owned(),
            system: "weft".to_owned(),
            round,
            result,
        }
    }

    #[test]
    fn file_with_a_truncated_line() {
        let home = tempfile::tempdir().unwrap();
        let path = samples_file(home.path(), "rt-yield");
        assert_eq!(Recorded::read(&path).unwrap(), None);
        let mut store = Store::open(&path, &header(), false).unwrap();
        let turns = [
            turn(0, TurnResult::Sample(Sample::default())),
            turn(1, TurnResult::Discarded(Sample::default())),
            turn(1, TurnResult::Failed("it died".to_owned())),
        ];
        for record in &turns {
            store.turn(record.clone()).unwrap();
        }
        store.file.write_all(b"{\"turn\":{\"configuration").unwrap();
        let recorded = Recorded::read(&path).unwrap().unwrap();
        assert_eq!((&recorded.header, &recorded.turns[..]), (&header(), &turns[..]));
        assert_eq!(recorded.ending, None);
        let has = |round| recorded.has("1 processor, many", "weft", round);
        assert_eq!([has(0), has(1), has(2)], [true, true, false]);
        drop(store);
        let mut again = Store::open(&path, &header(), true).unwrap();
        again.turn(turn(2, TurnResult::Absent)).unwrap();
        assert_eq!(Recorded::read(&path).unwrap().unwrap().turns.len(), 4);
        let rows = recorded.rows(crate::catalog::find("rt-yield").unwrap());
        let row = rows.find("1 processor, many", "weft").unwrap();
        assert_eq!((row.samples.len(), row.failures.len()), (1, 1));
        drop(again);
        let whole = Recorded::read(&path).unwrap();
        let file = File::create(path.with_extension("jsonl.gz")).unwrap();
        let mut packed = flate2::write::GzEncoder::new(file, flate2::Compression::best());
        packed.write_all(&fs::read(&path).unwrap()).unwrap();
        packed.finish().unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(Recorded::read(&path).unwrap(), whole);
    }

    /// Seen: `weft lab run --out FILE` ended with "Not a directory (os error 20)".
    #[test]
    fn unwritable_file_is_named() {
        let home = tempfile::tempdir().unwrap();
        let in_the_way = home.path().join("file");
        fs::write(&in_the_way, "").unwrap();
        let path = samples_file(&in_the_way, "rt-yield");
        let error = Store::open(&path, &header(), false).err().unwrap();
        let folder = path.parent().unwrap().display().to_string();
        assert!(error.to_string().starts_with(&folder), "{error}");
        let mut full = Store {
            file: OpenOptions::new().write(true).open("/dev/full").unwrap(),
            path: PathBuf::from("/dev/full"),
        };
        let error = full.turn(turn(0, TurnResult::Absent)).unwrap_err();
        assert!(error.to_string().starts_with("/dev/full: "), "{error}");
    }

    #[test]
    fn foreign_line_is_named() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("file");
        fs::write(&path, "{}\n").unwrap();
        let error = Recorded::read(&path).unwrap_err().to_string();
        assert!(error.contains("file:1: no line of weft lab"), "{error}");
    }
}
