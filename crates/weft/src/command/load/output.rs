//! Outputs of a result: screen, files and exit status.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use super::args::OutputArgs;
use crate::failure::Failure;
use crate::os::files;
use crate::paint::{self, Color};
use ::load::Outcome;
use ::load::report::{self, Heading, Look, Threshold};
use ::load::sweep::{Step, Sweep};
use ::load::verdict::VerdictRow;

/// Outputs of a result.
pub(super) struct Output {
    args: OutputArgs,
    /// Number of runs of a sweep so far, and their failures.
    runs: usize,
    failed: Vec<String>,
    unwritten: Option<Failure>,
}

impl Output {
    /// Opens the outputs of the command line.
    ///
    /// # Errors
    /// If a file cannot be written, or two outputs go to standard output.
    pub(super) fn of(args: &OutputArgs, is_sweep: bool) -> Result<Output, Failure> {
        let args = args.clone();
        let output = Output { args, runs: 0, failed: Vec::new(), unwritten: None };
        let mut seen = BTreeSet::new();
        let is_kept = |path: &&PathBuf| !is_standard(path) && (path.is_file() || !path.exists());
        if let Some(path) = output.files().filter(is_kept).find(|path| !seen.insert(*path)) {
            let path = path.display();
            return Err(Failure::Usage(format!("two outputs cannot go to one file, {path}")));
        }
        // Files are opened before the run, so that a missing folder does not waste a measurement.
        output.files().try_for_each(|path| can_be_written(path))?;
        let OutputArgs { hgrm, interval_log, .. } = &output.args;
        if is_sweep && [hgrm, interval_log].into_iter().flatten().any(|p| is_standard(p)) {
            return Err(Failure::Usage(
                "--hgrm and --interval-log write a file for each run of a sweep; give them a name \
                 instead of '-'"
                    .to_owned(),
            ));
        }
        match output.files().filter(|path| is_standard(path)).count() {
            0 | 1 => Ok(output),
            _ => Err(Failure::Usage(
                "only one of --json, --csv, --hgrm and --interval-log can go to standard output"
                    .to_owned(),
            )),
        }
    }

    fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let OutputArgs { json, csv, hgrm, interval_log, .. } = &self.args;
        [json, csv, hgrm, interval_log].into_iter().flatten()
    }

    /// True if standard output shows the report.
    pub(super) fn has_screen(&self) -> bool {
        !self.files().any(|path| is_standard(path))
    }

    /// Writes all outputs, and fails if no reply was received or a condition holds. One failed
    /// output does not prevent the others.
    ///
    /// # Errors
    /// If a file cannot be written, no reply was received, or a condition holds.
    pub(super) fn finish(mut self, outcome: &Outcome, heading: &Heading) -> Result<(), Failure> {
        if self.has_screen() {
            let colored = paint::decide(Color::from_name(&self.args.color), &io::stdout()).is_on();
            let width = width();
            let text = report::screen(outcome, heading, Look { colored, width });
            self.note(show(&text));
        }
        self.note(write_to(self.args.json.as_deref(), |out| {
            serde_json::to_writer_pretty(&mut *out, &report::json(outcome))?;
            writeln!(out)
        }));
        self.note(write_to(self.args.csv.as_deref(), |mut out| report::csv(outcome, &mut out)));
        self.write_histograms(outcome, |path| path.to_owned());
        let faults = self.faults(outcome, |_| true);
        self.failed.extend(faults);
        self.failed.extend(report::failed(&self.args.fail_if, outcome));
        self.judge()
    }

    /// Adds a finished run of a sweep: writes its histograms to files of its own, and checks the
    /// conditions.
    pub(super) fn add_run(&mut self, step: &Step, outcome: &Outcome) {
        self.runs += 1;
        let run = self.runs;
        let rate_per_s = step.rate_per_s.round();
        self.write_histograms(outcome, |path| numbered(path, run, rate_per_s));
        // The search for the knee exceeds it on purpose, and --overload doubles it.
        let is_judged = step.purpose == "sweep" || (step.purpose == "knee" && step.kept_up);
        if is_judged && !outcome.stopped_early {
            // A sweep measures requests that fail beyond the server's capacity.
            let mut failed = self.faults(outcome, |row| row != VerdictRow::Failing);
            failed.extend(report::failed(&self.args.fail_if, outcome));
            let rate = report::rate_of(step.rate_per_s);
            self.failed.extend(failed.iter().map(|sentence| format!("at {rate}: {sentence}")));
        }
    }

    /// Writes the outputs about the whole sweep, whose table has been shown line by line.
    ///
    /// # Errors
    /// If a file cannot be written, or in some run no reply was received or a condition held.
    pub(super) fn finish_sweep(mut self, sweep: &Sweep) -> Result<(), Failure> {
        self.note(write_to(self.args.json.as_deref(), |out| {
            serde_json::to_writer_pretty(&mut *out, sweep)?;
            writeln!(out)
        }));
        self.note(write_to(self.args.csv.as_deref(), |out| out.write_all(sweep.csv().as_bytes())));
        if sweep.has_no_knee() {
            let why = "the server did not keep up at any tested rate";
            self.failed.push(why.to_owned());
        }
        self.judge()
    }

    /// Failures other than conditions. A user's condition on errors replaces the built-in one.
    fn faults(&self, outcome: &Outcome, counts: impl Fn(VerdictRow) -> bool) -> Vec<String> {
        let has_own = self.args.fail_if.iter().any(Threshold::is_about_errors);
        let is_about_errors = |row| matches!(row, VerdictRow::WrongReplies | VerdictRow::Failing);
        let faults = outcome.faults().into_iter();
        faults
            .filter(|(row, _)| counts(*row) && !(has_own && is_about_errors(*row)))
            .map(|(_, sentence)| sentence)
            .collect()
    }

    fn write_histograms(&mut self, outcome: &Outcome, name: impl Fn(&Path) -> PathBuf) {
        let hgrm = self.args.hgrm.as_deref().map(&name);
        self.note(write_to(hgrm.as_deref(), |mut out| report::hgrm(outcome, &mut out)));
        let hlog = self.args.interval_log.as_deref().map(&name);
        self.note(write_to(hlog.as_deref(), |mut out| report::interval_log(outcome, &mut out)));
    }

    /// Keeps the first write failure.
    pub(super) fn note(&mut self, written: Result<(), Failure>) {
        if let Err(failure) = written {
            self.unwritten.get_or_insert(failure);
        }
    }

    fn judge(self) -> Result<(), Failure> {
        let paint = paint::decide(Color::from_name(&self.args.color), &io::stderr());
        for sentence in &self.failed {
            writeln!(io::stderr(), "{} {sentence}", paint.red("failed:"))?;
        }
        match (self.unwritten, self.failed.is_empty()) {
            (Some(failure), _) => Err(failure),
            (None, true) => Ok(()),
            (None, false) => Err(Failure::Shown(1)),
        }
    }
}

/// Columns of the terminal; otherwise a readable default.
pub(super) fn width() -> usize {
    const USUAL: usize = 100;
    if io::stdout().is_terminal() {
        rustix::termios::tcgetwinsize(io::stdout()).map_or(USUAL, |size| size.ws_col.into())
    } else {
        USUAL
    }
}

fn show(text: &str) -> Result<(), Failure> {
    Ok(io::stdout().lock().write_all(text.as_bytes())?)
}

/// `out.hgrm` of the third run, at 20,000/s: `out-03-20000.hgrm`.
fn numbered(path: &Path, run: usize, rate_per_s: f64) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name = format!("{stem}-{run:02}-{rate_per_s}");
    match path.extension() {
        Some(extension) => path.with_file_name(format!("{name}.{}", extension.to_string_lossy())),
        None => path.with_file_name(name),
    }
}

fn can_be_written(path: &Path) -> Result<(), Failure> {
    if is_standard(path) {
        return Ok(());
    }
    // A dangling link exists too: deleting the file would delete the link.
    let was_there = path.symlink_metadata().is_ok();
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(|error| Failure::Usage(format!("cannot write {}: {error}", path.display())))?;
    if !was_there {
        // A failed run leaves no empty file.
        let _ = fs::remove_file(path);
    }
    Ok(())
}

fn is_standard(path: &Path) -> bool {
    path == Path::new("-")
}

fn write_to(
    path: Option<&Path>,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    let written =
        if is_standard(path) { write(&mut io::stdout().lock()) } else { files::write(path, write) };
    written.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::from(error),
        _ => Failure::Running(format!("cannot write {}: {error}", path.display())),
    })
}
