//! Where an outcome goes: the screen, files, and the exit code.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::ArgMatches;

use crate::Failure;
use crate::config::Color;
use crate::paint::Paint;
use ::load::Outcome;
use ::load::report::{self, Heading, Threshold};
use ::load::sweep::Sweep;

/// Where this run's outcome goes.
pub(super) struct Output {
    json: Option<PathBuf>,
    csv: Option<PathBuf>,
    hgrm: Option<PathBuf>,
    hlog: Option<PathBuf>,
    thresholds: Vec<Threshold>,
    color: Color,
}

impl Output {
    /// What was typed.
    ///
    /// # Errors
    /// When two outputs go to standard output.
    pub(super) fn of(matches: &ArgMatches) -> Result<Output, Failure> {
        let path = |name: &str| matches.get_one::<String>(name).map(PathBuf::from);
        let conditions = matches.get_many::<String>("fail-if").into_iter().flatten();
        let thresholds = conditions.map(|text| text.parse());
        let thresholds: Result<_, String> = thresholds.collect();
        let output = Output {
            json: path("json"),
            csv: path("csv"),
            hgrm: path("hgrm"),
            hlog: path("interval-log"),
            thresholds: thresholds
                .map_err(|error| Failure::Usage(format!("--fail-if: {error}")))?,
            color: Color::from_name(
                matches
                    .get_one::<String>("color")
                    .map_or("auto", |name| name),
            ),
        };
        match output.files().filter(|path| is_standard(path)).count() {
            0 | 1 => Ok(output),
            _ => Err(Failure::Usage(
                "only one of --json, --csv, --hgrm and --interval-log can go to standard output"
                    .to_owned(),
            )),
        }
    }

    fn files(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.json, &self.csv, &self.hgrm, &self.hlog]
            .into_iter()
            .flatten()
    }

    /// Whether standard output is for people.
    pub(super) fn has_screen(&self) -> bool {
        !self.files().any(|path| is_standard(path))
    }

    /// Writes everything, and fails if a condition holds.
    ///
    /// # Errors
    /// When a file cannot be written, or a condition holds.
    pub(super) fn finish(&self, outcome: &Outcome, heading: &Heading) -> Result<(), Failure> {
        if self.has_screen() {
            let colored = Paint::decide(self.color, &io::stdout()).is_on();
            io::stdout()
                .lock()
                .write_all(report::screen(outcome, heading, colored).as_bytes())?;
        }
        write_to(self.json.as_deref(), |out| {
            serde_json::to_writer_pretty(&mut *out, &report::json(outcome))?;
            writeln!(out)
        })?;
        write_to(self.csv.as_deref(), |mut out| {
            report::csv(outcome, &mut out)
        })?;
        write_to(self.hgrm.as_deref(), |mut out| {
            report::hgrm(outcome, &mut out)
        })?;
        write_to(self.hlog.as_deref(), |mut out| {
            report::interval_log(outcome, &mut out)
        })?;
        self.judge(&report::failed(&self.thresholds, outcome))
    }

    /// The same for a sweep, whose table has been shown line by line; the conditions hold for its last
    /// outcome.
    ///
    /// # Errors
    /// When a file cannot be written, or a condition holds.
    pub(super) fn finish_sweep(
        &self,
        sweep: &Sweep,
        last: Option<&Outcome>,
    ) -> Result<(), Failure> {
        write_to(self.json.as_deref(), |out| {
            serde_json::to_writer_pretty(&mut *out, sweep)?;
            writeln!(out)
        })?;
        write_to(self.csv.as_deref(), |out| {
            out.write_all(sweep.csv().as_bytes())
        })?;
        let Some(last) = last else { return Ok(()) };
        write_to(self.hgrm.as_deref(), |mut out| report::hgrm(last, &mut out))?;
        write_to(self.hlog.as_deref(), |mut out| {
            report::interval_log(last, &mut out)
        })?;
        self.judge(&report::failed(&self.thresholds, last))
    }

    fn judge(&self, failed: &[String]) -> Result<(), Failure> {
        let paint = Paint::decide(self.color, &io::stderr());
        for sentence in failed {
            writeln!(io::stderr(), "{} {sentence}", paint.red("failed:"))?;
        }
        match failed.is_empty() {
            true => Ok(()),
            false => Err(Failure::Said(1)),
        }
    }
}

fn is_standard(path: &Path) -> bool {
    path == Path::new("-")
}

fn write_to(
    path: Option<&Path>,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    let written = match is_standard(path) {
        true => write(&mut io::stdout().lock()),
        false => File::create(path).and_then(|file| {
            let mut out = BufWriter::new(file);
            write(&mut out)?;
            out.flush()
        }),
    };
    written.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::from(error),
        _ => Failure::Running(format!("cannot write {}: {error}", path.display())),
    })
}
