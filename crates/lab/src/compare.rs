//! Two builds by turns: did a change cost something?
//!
//! The best samples decide: those of identical binaries agree within 1.5 % where their medians
//! differ by 16 %. Beside them stands the ratio of medians with its 95 % interval, from resampling
//! the rounds (bootstrap), so that a reader sees how sure it is.

use std::fmt;

use crate::experiment::{Better, Experiment, Measure};
use crate::report::Report;
use crate::rows::{Row, Rows, Spread, show};

/// What is before the names of the two builds' forms.
pub const OLD: &str = "old ";
/// See [`OLD`].
pub const NEW: &str = "new ";

/// One form of a server in one cell.
#[derive(Clone, Debug)]
pub struct Compared {
    /// `web-rows: 400 B, 64 connections`.
    pub what: String,
    /// Figures of the old build, and of the new one.
    pub spreads: Option<(Spread, Spread)>,
    /// How much dearer the new one is: of the best samples.
    pub best: f64,
    /// Of the medians, and the interval that holds it with 95 %.
    pub medians: (f64, f64, f64),
}

/// A comparison of two builds.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// In the order of the cells.
    pub lines: Vec<Compared>,
    /// The greatest ratio that is no loss.
    pub limit: f64,
    /// What makes the figures less than they seem.
    pub notes: Vec<String>,
}

impl Comparison {
    /// Adds an experiment with subjects whose names begin with [`OLD`] and [`NEW`].
    pub fn add(&mut self, report: &Report<'_>) {
        self.add_rows(report.experiment, &report.rows);
        let (name, notes) = (report.experiment.name, report.warnings());
        self.notes
            .extend(notes.into_iter().map(|note| format!("{name}: {note}")));
    }

    fn add_rows(&mut self, experiment: &Experiment, rows: &Rows) {
        let measure = &experiment.measures[0];
        for new in rows.all() {
            let Some(form) = new.subject.strip_prefix(NEW) else {
                continue;
            };
            let label = &new.cell.label;
            if let Some(old) = rows.find(label, &format!("{OLD}{form}")) {
                let what = format!("{}, {form}: {label}", experiment.name);
                self.lines.push(compare(what, measure, old, new));
            }
        }
    }

    /// Whether no row is dearer than the limit, and none is missing.
    pub fn is_no_loss(&self) -> bool {
        let is_fine = |line: &Compared| line.spreads.is_some() && line.best <= self.limit;
        !self.lines.is_empty() && self.lines.iter().all(is_fine)
    }
}

fn compare(what: String, measure: &Measure, old: &Row, new: &Row) -> Compared {
    let spreads = old.spread(measure).zip(new.spread(measure));
    // Dearer is above 1, also of rates.
    let dearer = |old: f64, new: f64| match measure.better {
        Better::More => old / new,
        _ => new / old,
    };
    let figures = |row: &Row| -> Vec<f64> {
        let samples = row.samples.iter();
        samples
            .filter_map(|sample| measure.figure(&row.cell, &sample.values))
            .collect()
    };
    Compared {
        what,
        best: spreads.map_or(f64::NAN, |(old, new)| {
            dearer(old.best(measure.better), new.best(measure.better))
        }),
        medians: bootstrap(&figures(old), &figures(new), dearer),
        spreads,
    }
}

/// The ratio of the medians, and the 2.5th and 97.5th percentile of what it is when samples are
/// drawn again with replacement.
fn bootstrap(old: &[f64], new: &[f64], dearer: impl Fn(f64, f64) -> f64) -> (f64, f64, f64) {
    const DRAWS: usize = 2000;
    if old.is_empty() || new.is_empty() {
        return (f64::NAN, f64::NAN, f64::NAN);
    }
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = |from: &[f64]| {
        let drawn = (0..from.len()).map(|_| {
            // xorshift64 (Marsaglia 2003)
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            from[(state >> 33) as usize % from.len()]
        });
        median(drawn.collect())
    };
    let mut ratios: Vec<f64> = (0..DRAWS).map(|_| dearer(draw(old), draw(new))).collect();
    ratios.sort_by(f64::total_cmp);
    let ratio = dearer(median(old.to_vec()), median(new.to_vec()));
    (ratio, ratios[DRAWS / 40], ratios[DRAWS - 1 - DRAWS / 40])
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self
            .lines
            .iter()
            .map(|line| line.what.chars().count())
            .max()
            .unwrap_or(0);
        let (best, limit) = ("best", self.limit);
        writeln!(
            f,
            "{:<width$}  {:>9}  {:>9}  {best:>6}  medians (95 % interval)",
            "new by old", "old, best", "new, best"
        )?;
        for line in &self.lines {
            let what = &line.what;
            let Some((old, new)) = line.spreads else {
                writeln!(f, "{what:<width$}  failed")?;
                continue;
            };
            let (ratio, from, to) = line.medians;
            let mark = if line.best > limit { "  DEARER" } else { "" };
            writeln!(
                f,
                "{what:<width$}  {:>9}  {:>9}  {:>6.3}  {ratio:.3} ({from:.3}–{to:.3}){mark}",
                show(old.least),
                show(new.least),
                line.best
            )?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        match self.is_no_loss() {
            true => writeln!(f, "nothing is dearer than {limit} times"),
            false => writeln!(f, "something is dearer than {limit} times, or failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::tests::rows;

    fn compared(old: &[Option<f64>], new: &[Option<f64>]) -> Comparison {
        let mut comparison = Comparison {
            limit: 1.02,
            ..Comparison::default()
        };
        let experiment = crate::catalog::find("web-rows").unwrap();
        comparison.add_rows(experiment, &rows(&[("old weft", old), ("new weft", new)]));
        comparison
    }

    #[test]
    fn the_best_samples_decide() {
        let old = [Some(5.0), Some(5.1), Some(9.0)];
        let same = compared(&old, &[Some(8.0), Some(5.05), Some(8.5)]);
        assert!(same.is_no_loss(), "{same}");
        let dearer = compared(&old, &[Some(5.2), Some(5.2), Some(5.2)]);
        assert!(!dearer.is_no_loss());
        let text = dearer.to_string();
        assert!(text.contains("web-rows, weft: c"), "{text}");
        assert!(text.contains("1.040") && text.contains("DEARER"), "{text}");
    }

    #[test]
    fn a_row_that_failed_is_a_loss() {
        assert!(!compared(&[Some(5.0)], &[]).is_no_loss());
        assert!(!Comparison::default().is_no_loss());
    }

    #[test]
    fn the_interval_holds_the_ratio_and_narrows_when_samples_agree() {
        let dearer = |old: f64, new: f64| new / old;
        let (ratio, from, to) = bootstrap(&[1.0, 1.1, 0.9, 1.0, 1.05], &[2.0; 5], dearer);
        assert_eq!(ratio, 2.0);
        assert!(from <= ratio && ratio <= to && from < to, "{from} {to}");
        assert_eq!(bootstrap(&[1.0; 5], &[2.0; 5], dearer), (2.0, 2.0, 2.0));
    }
}
