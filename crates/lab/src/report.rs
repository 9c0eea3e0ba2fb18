//! What came out: rows of medians, and whether it was what was expected.

use std::fmt;
use std::fs;

use serde::Serialize;

use crate::run::{Cell, Experiment, Measure, Sample};

/// One cell on one subject.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The cell's label.
    pub cell: String,
    /// The subject's name.
    pub subject: String,
    /// The figure of each sample that has one, sorted.
    pub figures: Vec<f64>,
    /// What each sample printed.
    pub samples: Vec<Sample>,
    /// Samples without a figure: nothing was done in time.
    pub never: u32,
    /// Samples that failed, and why.
    pub failures: Vec<String>,
    /// The subject has no such program.
    pub is_absent: bool,
}

impl Row {
    pub(crate) fn new(cell: &Cell, subject: &str) -> Row {
        Row {
            cell: cell.label.clone(),
            subject: subject.to_owned(),
            figures: Vec::new(),
            samples: Vec::new(),
            never: 0,
            failures: Vec::new(),
            is_absent: false,
        }
    }

    pub(crate) fn add(&mut self, measure: Measure, cell: &Cell, sample: Sample) {
        match measure.of(cell, &sample) {
            Some(figure) => {
                self.figures.push(figure);
                self.figures.sort_by(f64::total_cmp);
            }
            None => self.never += 1,
        }
        self.samples.push(sample);
    }

    /// The median figure, unless more than half of the samples have none.
    pub fn median(&self) -> Option<f64> {
        let without = self.never as usize + self.failures.len();
        let middle = (self.figures.len() + without) / 2;
        self.figures.get(middle).copied()
    }
}

/// Something that should have come out.
#[derive(Clone, Debug, Serialize)]
pub struct Expectation {
    /// `yield at 1 processor takes at most 30 ns`.
    pub says: String,
    /// Whether it did; `None` if the rows for it are missing.
    pub is_met: Option<bool>,
    /// The figures that decided.
    pub because: String,
    /// It is about peers that were not asked for, and left out of the report.
    #[serde(skip)]
    pub(crate) is_moot: bool,
}

impl Expectation {
    /// That the row's median is at most `limit`.
    pub fn at_most(rows: &[Row], cell: &str, subject: &str, limit: f64, unit: &str) -> Expectation {
        let median = median(rows, cell, subject);
        Expectation {
            says: format!("{subject}, {cell}: at most {limit} {unit}"),
            is_met: is_there(rows, cell, subject)
                .then(|| median.is_some_and(|median| median <= limit)),
            because: show_at(rows, cell, subject),
            is_moot: false,
        }
    }

    /// That the row's median is not above that of any of `others`.
    pub fn ahead_of(rows: &[Row], cell: &str, subject: &str, others: &[&str]) -> Expectation {
        let ours = median(rows, cell, subject);
        let asked: Vec<_> = others
            .iter()
            .copied()
            .filter(|other| is_asked(rows, other))
            .collect();
        let there = || asked.iter().filter(|other| is_there(rows, cell, other));
        let is_ahead = there().all(|other| match (ours, median(rows, cell, other)) {
            (Some(ours), Some(theirs)) => ours <= theirs,
            (Some(_), None) => true,
            _ => false,
        });
        let figures = asked
            .iter()
            .map(|other| format!("{other} {}", show_at(rows, cell, other)));
        let figures = figures.collect::<Vec<_>>().join(", ");
        Expectation {
            says: format!("{subject}, {cell}: ahead of {}", asked.join(", ")),
            is_met: (is_there(rows, cell, subject) && there().count() > 0).then_some(is_ahead),
            because: format!("{}; {figures}", show_at(rows, cell, subject)),
            is_moot: asked.is_empty(),
        }
    }

    /// That the row's median is at most `factor` times that of another subject.
    pub fn near(rows: &[Row], cell: &str, subject: &str, factor: f64, other: &str) -> Expectation {
        let (ours, theirs) = (median(rows, cell, subject), median(rows, cell, other));
        let is_there = is_there(rows, cell, subject) && is_there(rows, cell, other);
        Expectation {
            says: format!("{subject}, {cell}: at most {factor} times {other}"),
            is_met: is_there.then(|| {
                ours.zip(theirs)
                    .is_some_and(|(ours, theirs)| ours <= factor * theirs)
            }),
            because: format!(
                "{}; {other} {}",
                show_at(rows, cell, subject),
                show_at(rows, cell, other)
            ),
            is_moot: !is_asked(rows, other),
        }
    }

    /// That one row's median is at most `factor` times another's.
    pub fn within(rows: &[Row], cell: &str, of: &str, subject: &str, factor: f64) -> Expectation {
        let (here, there) = (median(rows, cell, subject), median(rows, of, subject));
        Expectation {
            says: format!("{subject}, {cell}: at most {factor} times {of}"),
            is_met: here.zip(there).map(|(here, there)| here <= factor * there),
            because: format!(
                "{} against {}",
                show_at(rows, cell, subject),
                show_at(rows, of, subject)
            ),
            is_moot: false,
        }
    }
}

/// Whether the subject takes part at all.
fn is_asked(rows: &[Row], subject: &str) -> bool {
    rows.iter().any(|row| row.subject == subject)
}

fn is_there(rows: &[Row], cell: &str, subject: &str) -> bool {
    rows.iter()
        .any(|row| row.cell == cell && row.subject == subject && !row.is_absent)
}

fn median(rows: &[Row], cell: &str, subject: &str) -> Option<f64> {
    let mut rows = rows.iter();
    rows.find(|row| row.cell == cell && row.subject == subject)?
        .median()
}

fn show_at(rows: &[Row], cell: &str, subject: &str) -> String {
    match is_there(rows, cell, subject) {
        true => show(median(rows, cell, subject)),
        false => "not measured".to_owned(),
    }
}

fn show(figure: Option<f64>) -> String {
    match figure {
        None => "never".to_owned(),
        Some(figure) if figure >= 100.0 => format!("{figure:.0}"),
        Some(figure) if figure >= 1.0 => format!("{figure:.1}"),
        Some(figure) => format!("{figure:.3}"),
    }
}

/// All of an experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `rt-yield`.
    pub experiment: &'static str,
    /// What it does.
    pub about: &'static str,
    /// Of the figures.
    pub unit: &'static str,
    /// The machine: processor, cores, kernel.
    pub machine: String,
    /// Cell by cell, subject by subject.
    pub rows: Vec<Row>,
    /// What should have come out, and whether it did.
    pub expectations: Vec<Expectation>,
    /// Which part of the machine's processors others used meanwhile, from 0 to 1; `None` if that is
    /// not known.
    pub others_share: Option<f64>,
}

/// Above this, the machine was not ours.
const OTHERS_SHARE_MAX: f64 = 0.05;

impl Report {
    pub(crate) fn new(
        experiment: &Experiment,
        rows: Vec<Row>,
        mut expectations: Vec<Expectation>,
        others_share: Option<f64>,
    ) -> Report {
        expectations.retain(|expectation| !expectation.is_moot);
        Report {
            experiment: experiment.name,
            about: experiment.about,
            unit: experiment.measure.unit(),
            machine: machine(),
            rows,
            expectations,
            others_share,
        }
    }

    /// Whether all that could be judged came out as expected.
    pub fn is_as_expected(&self) -> bool {
        self.expectations
            .iter()
            .all(|expectation| expectation.is_met != Some(false))
    }

    fn subjects(&self) -> Vec<&str> {
        let mut subjects: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !subjects.contains(&row.subject.as_str()) {
                subjects.push(&row.subject);
            }
        }
        subjects
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {} ({})", self.experiment, self.about, self.unit)?;
        writeln!(f, "{}\n", self.machine)?;
        let subjects = self.subjects();
        let mut header = vec!["".to_owned()];
        header.extend(subjects.iter().map(|&subject| subject.to_owned()));
        let mut table = vec![header];
        for rows in self.rows.chunks(subjects.len().max(1)) {
            let mut line = vec![rows[0].cell.clone()];
            line.extend(rows.iter().map(show_row));
            table.push(line);
        }
        write_table(f, &table)?;
        for row in &self.rows {
            for failure in &row.failures {
                writeln!(f, "{}, {}: {failure}", row.subject, row.cell)?;
            }
        }
        writeln!(f)?;
        for Expectation {
            says,
            is_met,
            because,
            ..
        } in &self.expectations
        {
            let verdict = match is_met {
                Some(true) => "as expected",
                Some(false) => "NOT AS EXPECTED",
                None => "not measured",
            };
            writeln!(f, "{verdict}: {says} ({because})")?;
        }
        match self.others_share {
            Some(share) if share > OTHERS_SHARE_MAX => writeln!(
                f,
                "warning: the machine was busy: others used {:.0} % of its processors meanwhile; do not trust the figures",
                share * 100.0
            ),
            _ => Ok(()),
        }
    }
}

fn show_row(row: &Row) -> String {
    if row.is_absent {
        return "–".to_owned();
    }
    let Some(median) = row.median() else {
        return if row.failures.is_empty() {
            "never"
        } else {
            "failed"
        }
        .to_owned();
    };
    match (row.figures.first(), row.figures.last()) {
        (Some(&least), Some(&greatest)) if row.figures.len() > 1 => {
            format!(
                "{} ({}–{})",
                show(Some(median)),
                show(Some(least)),
                show(Some(greatest))
            )
        }
        _ => show(Some(median)),
    }
}

fn write_table(f: &mut fmt::Formatter<'_>, table: &[Vec<String>]) -> fmt::Result {
    let columns = table[0].len();
    let width = |column: usize| {
        let widths = table.iter().map(|line| line[column].chars().count());
        widths.max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..columns).map(width).collect();
    for (at, line) in table.iter().enumerate() {
        for (column, text) in line.iter().enumerate() {
            let width = widths[column];
            match column {
                0 => write!(f, "| {text:<width$} |")?,
                _ => write!(f, " {text:>width$} |")?,
            }
        }
        writeln!(f)?;
        if at == 0 {
            for (column, width) in widths.iter().enumerate() {
                let dashes = "-".repeat(*width);
                match column {
                    0 => write!(f, "| {dashes} |")?,
                    _ => write!(f, " {dashes} |")?,
                }
            }
            writeln!(f)?;
        }
    }
    Ok(())
}

/// `AMD EPYC, 2 cores, Linux 6.18.44`.
fn machine() -> String {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("unknown processor", |rest| {
        rest.trim_start_matches([' ', '\t', ':'])
    });
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let system = rustix::system::uname();
    let release = system.release().to_string_lossy().into_owned();
    format!("{model}, {cores} cores, Linux {release}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cell: &str, subject: &str, figures: &[f64], never: u32) -> Row {
        Row {
            cell: cell.to_owned(),
            subject: subject.to_owned(),
            figures: figures.to_vec(),
            samples: Vec::new(),
            never,
            failures: Vec::new(),
            is_absent: false,
        }
    }

    #[test]
    fn a_median_needs_half_of_the_samples() {
        assert_eq!(row("c", "s", &[1.0, 2.0, 9.0], 0).median(), Some(2.0));
        assert_eq!(row("c", "s", &[1.0, 2.0], 1).median(), Some(2.0));
        assert_eq!(row("c", "s", &[1.0], 2).median(), None);
        assert_eq!(row("c", "s", &[], 0).median(), None);
    }

    #[test]
    fn expectations_know_never_and_missing() {
        let rows = [
            row("c", "a", &[1.0], 0),
            row("c", "b", &[2.0], 0),
            row("c", "n", &[], 3),
        ];
        let met = |expectation: Expectation| expectation.is_met;
        assert_eq!(
            met(Expectation::at_most(&rows, "c", "b", 1.5, "ns")),
            Some(false)
        );
        assert_eq!(
            met(Expectation::at_most(&rows, "c", "n", 1.5, "ns")),
            Some(false)
        );
        assert_eq!(
            met(Expectation::at_most(&rows, "c", "gone", 1.5, "ns")),
            None
        );
        assert_eq!(
            met(Expectation::ahead_of(&rows, "c", "a", &["b", "n"])),
            Some(true)
        );
        assert_eq!(
            met(Expectation::ahead_of(&rows, "c", "b", &["a", "gone"])),
            Some(false)
        );
        assert_eq!(met(Expectation::ahead_of(&rows, "c", "a", &["gone"])), None);
    }

    /// Seen: what was not measured was said to be `never`, expectations named peers that were not
    /// asked for, and a report from a machine full of other work looked like any other.
    #[test]
    fn a_report_says_what_was_not_measured_and_on_what_machine() {
        let absent = Row {
            is_absent: true,
            ..row("c", "may", &[], 0)
        };
        let rows = [row("c", "weft", &[1.0], 0), row("c", "go", &[], 3), absent];
        let expectations = vec![
            Expectation::within(&rows, "other", "c", "weft", 2.0),
            Expectation::ahead_of(&rows, "c", "weft", &["go", "tokio", "may"]),
            Expectation::ahead_of(&rows, "c", "weft", &["tokio"]),
            Expectation::near(&rows, "c", "weft", 2.0, "tokio"),
        ];
        let report = |others_share| {
            let (experiment, rows) = (&crate::catalog::CATALOG[0], rows.to_vec());
            Report::new(experiment, rows, expectations.clone(), others_share).to_string()
        };
        let quiet = report(Some(0.01));
        let (_, lines) = quiet
            .split_once("\n\n")
            .unwrap()
            .1
            .split_once("\n\n")
            .unwrap();
        assert_eq!(
            lines,
            "not measured: weft, other: at most 2 times c (not measured against 1.0)\n\
             as expected: weft, c: ahead of go, may (1.0; go never, may not measured)\n"
        );
        assert!(report(Some(0.5)).ends_with(
            "warning: the machine was busy: others used 50 % of its processors meanwhile; do not trust the figures\n"
        ));
    }
}
