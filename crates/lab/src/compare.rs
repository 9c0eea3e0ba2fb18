//! Did a change make something worse? Two builds, measured by turns, or the results of two runs.
//!
//! The best samples decide: those of identical binaries agree within 1.5 % where their medians
//! differ by 16 %. Beside them stands the ratio of medians with its 95 % interval, from resampling
//! the rounds (bootstrap), so that a reader sees how sure it is. Runs of different hours differ
//! because the machine did: there a difference counts only if the interval confirms it, and the
//! subjects that did not change tell how much the machine did.

use std::fmt;

use crate::experiment::{Better, Measure};
use crate::numbers::{counted, with_unit};
use crate::report::Report;
use crate::rows::{Row, Rows};

/// What is before the names of the two builds' forms.
pub const OLD: &str = "old ";
/// See [`OLD`].
pub const NEW: &str = "new ";

/// What is weft's begins so; other subjects are there for comparison.
const OURS: &str = "weft";

/// One subject in one cell.
#[derive(Clone, Debug)]
pub struct Compared {
    /// `web-rows, weft: 400 B, 64 connections`.
    pub what: String,
    /// Whether it is one of weft's.
    pub is_ours: bool,
    /// The best figures before and now, with their unit; `None` if one of them failed.
    pub figures: Option<(String, String)>,
    /// How much dearer the new one is: of the best samples.
    pub best: f64,
    /// Of the medians, and the interval that holds it with 95 %.
    pub medians: (f64, f64, f64),
}

/// What was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compares {
    /// Builds, by turns. Every line is shown.
    Builds,
    /// Runs. Only differences are shown.
    Runs,
}

/// A comparison.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Of what.
    pub compares: Compares,
    /// In the order of the cells.
    pub lines: Vec<Compared>,
    /// The greatest ratio that is no loss.
    pub limit: f64,
    /// What makes the figures less than they seem.
    pub notes: Vec<String>,
}

impl Comparison {
    /// Without a line yet.
    pub fn new(compares: Compares, limit: f64) -> Comparison {
        Comparison {
            compares,
            lines: Vec::new(),
            limit,
            notes: Vec::new(),
        }
    }

    /// Adds an experiment with subjects whose names begin with [`OLD`] and [`NEW`].
    pub fn add_builds(&mut self, report: &Report<'_>) {
        let experiment = report.experiment;
        let of_new = |new: &str| Some(format!("{OLD}{}", new.strip_prefix(NEW)?));
        self.add_rows(
            (experiment.name, &experiment.measures[0]),
            (&report.rows, &report.rows),
            of_new,
        );
        let notes = report.warnings().into_iter();
        let name = experiment.name;
        self.notes
            .extend(notes.map(|note| format!("{name}: {note}")));
    }

    /// Adds an experiment of two runs.
    pub fn add_runs(&mut self, old: &Report<'_>, new: &Report<'_>) {
        let experiment = new.experiment;
        let [peak, new_peak] = [old, new].map(|report| report.recorded.header.peak_per_s);
        if let Some((before, now)) = peak.zip(new_peak).filter(|(before, now)| before != now) {
            // Cells are parts of it: neither rates nor latencies are of the same load.
            self.notes.push(format!(
                "{} is left out: its peak, of which it asks parts, was {}, now {}",
                experiment.name,
                with_unit(before, "per second"),
                with_unit(now, "per second")
            ));
            return;
        }
        self.add_rows(
            (experiment.name, &experiment.measures[0]),
            (&old.rows, &new.rows),
            |new| Some(new.to_owned()),
        );
        let [old, new] = [old, new].map(|report| &report.recorded.header.card.machine);
        let note = format!("the machines differ: {old}; {new}");
        if old != new && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Adds each subject whose old form `of_new` names, by an experiment's first measure.
    fn add_rows(
        &mut self,
        (name, measure): (&str, &Measure),
        (old, new): (&Rows, &Rows),
        of_new: impl Fn(&str) -> Option<String>,
    ) {
        for new in new.all().iter().filter(|row| !row.is_absent) {
            let label = &new.cell.label;
            let Some(old) = of_new(&new.subject).and_then(|subject| old.find(label, &subject))
            else {
                continue;
            };
            let form = new.subject.strip_prefix(NEW).unwrap_or(&new.subject);
            let line = Compared {
                what: format!("{name}, {form}: {label}"),
                is_ours: form.starts_with(OURS),
                ..compare(measure, old, new)
            };
            // What never had a figure has lost none.
            if self.compares == Compares::Builds || old.spread(measure).is_some() {
                self.lines.push(line);
            }
        }
    }

    /// Whether nothing of weft's is dearer than the limit, and none is missing.
    pub fn is_no_loss(&self) -> bool {
        let mut ours = self.lines.iter().filter(|line| line.is_ours).peekable();
        ours.peek().is_some() && !ours.any(|line| self.is_dearer(line))
    }

    fn is_dearer(&self, line: &Compared) -> bool {
        let is_sure = self.compares == Compares::Builds || line.medians.1 > 1.0;
        line.figures.is_none() || line.best > self.limit && is_sure
    }

    fn is_cheaper(&self, line: &Compared) -> bool {
        line.best < 1.0 / self.limit && line.medians.2 < 1.0
    }
}

fn compare(measure: &Measure, old: &Row, new: &Row) -> Compared {
    let spreads = old.spread(measure).zip(new.spread(measure));
    let best = spreads.map(|(old, new)| (old.best(measure.better), new.best(measure.better)));
    // Dearer is above 1, also of rates. Nothing is as dear as nothing.
    let dearer = |old: f64, new: f64| match measure.better {
        _ if old == new => 1.0,
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
        what: String::new(),
        is_ours: true,
        figures: best.map(|(old, new)| {
            let [old, new] = [old, new].map(|figure| with_unit(figure, measure.unit));
            (old, new)
        }),
        best: best.map_or(f64::NAN, |(old, new)| dearer(old, new)),
        medians: bootstrap(&figures(old), &figures(new), dearer),
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
        let is_shown = |line: &&Compared| {
            self.compares == Compares::Builds || self.is_dearer(line) || self.is_cheaper(line)
        };
        let shown: Vec<&Compared> = self.lines.iter().filter(is_shown).collect();
        let head = ("old, best".to_owned(), "new, best".to_owned());
        let figures = || shown.iter().filter_map(|line| line.figures.as_ref());
        let figures = || figures().chain([&head]);
        let width = widest(shown.iter().map(|line| &line.what));
        let before = widest(figures().map(|one| &one.0));
        let now = widest(figures().map(|one| &one.1));
        if !shown.is_empty() {
            let (what, (old, new)) = ("new by old", &head);
            writeln!(
                f,
                "{what:<width$}  {old:>before$}  {new:>now$}    best  medians (95 % interval)"
            )?;
        }
        for line in shown {
            let what = &line.what;
            let Some((old, new)) = &line.figures else {
                writeln!(f, "{what:<width$}  failed")?;
                continue;
            };
            let (ratio, from, to) = line.medians;
            let mark = match (self.is_dearer(line), line.is_ours) {
                (true, true) => "  WORSE",
                (true, false) => "  worse",
                _ => "",
            };
            writeln!(
                f,
                "{what:<width$}  {old:>before$}  {new:>now$}  {:>6.3}  {ratio:.3} ({from:.3}–{to:.3}){mark}",
                line.best
            )?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        let limit = self.limit;
        if self.compares == Compares::Runs {
            for (whose, is_ours) in [("of weft", true), ("of others", false)] {
                let lines = || self.lines.iter().filter(|line| line.is_ours == is_ours);
                let dearer = lines().filter(|line| self.is_dearer(line)).count();
                let cheaper = lines().filter(|line| self.is_cheaper(line)).count();
                let all = counted(lines().count(), "figure");
                writeln!(
                    f,
                    "{all} {whose}: {dearer} worse by more than {limit} times, {cheaper} better"
                )?;
            }
        }
        match (self.is_no_loss(), self.lines.is_empty()) {
            (_, true) => writeln!(f, "there was nothing to compare"),
            (true, _) => writeln!(f, "nothing of weft is worse by more than {limit} times"),
            (false, _) => writeln!(
                f,
                "something of weft is worse by more than {limit} times, or failed"
            ),
        }
    }
}

fn widest<'a>(texts: impl Iterator<Item = &'a String>) -> usize {
    texts.map(|text| text.chars().count()).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::tests::rows;

    fn compared(old: &[Option<f64>], new: &[Option<f64>]) -> Comparison {
        let mut comparison = Comparison::new(Compares::Builds, 1.02);
        let rows = rows(&[("old weft", old), ("new weft", new)]);
        let of_new = |new: &str| Some(format!("{OLD}{}", new.strip_prefix(NEW)?));
        comparison.add_rows(("web-rows", &Measure::CPU_US), (&rows, &rows), of_new);
        comparison
    }

    fn runs(
        measure: &Measure,
        old: &[(&str, &[Option<f64>])],
        new: &[(&str, &[Option<f64>])],
    ) -> Comparison {
        let mut comparison = Comparison::new(Compares::Runs, 1.2);
        let (old, new) = (rows(old), rows(new));
        comparison.add_rows(("web-rows", measure), (&old, &new), |new| {
            Some(new.to_owned())
        });
        comparison
    }

    /// Seen: `compare` of two folders of results ended with "Permission denied": only builds were
    /// compared, though a run of a whole lab is what a user has from last week.
    #[test]
    fn of_two_runs_only_sure_differences_count_and_only_ours() {
        let (fast, slow) = ([Some(5.0), Some(5.1)], [Some(9.0), Some(9.2)]);
        let unsure = [Some(7.0), Some(4.0)];
        let others = runs(
            &Measure::CPU_US,
            &[("nginx", &fast), ("weft", &fast)],
            &[("nginx", &slow), ("weft", &fast)],
        );
        assert!(others.is_no_loss(), "{others}");
        let text = others.to_string();
        assert!(
            text.contains("web-rows, nginx: c") && text.contains("worse\n"),
            "{text}"
        );
        assert!(!text.contains("web-rows, weft: c"), "{text}");
        assert!(text.contains("1 figure of weft: 0 worse"), "{text}");
        let ours = |old, new| runs(&Measure::CPU_US, &[("weft", old)], &[("weft", new)]);
        assert!(!ours(&fast, &slow).is_no_loss());
        assert!(ours(&unsure, &[Some(5.0), Some(6.9)]).is_no_loss());
        assert!(!ours(&fast, &[]).is_no_loss(), "it failed");
        assert!(ours(&fast, &[]).to_string().contains("failed"));
        // It failed before, too.
        assert!(ours(&[], &fast).lines.is_empty());
    }

    /// Seen: of rates the least sample stood under "best".
    #[test]
    fn the_best_of_rates_is_the_greatest() {
        let measure = Measure {
            better: Better::More,
            ..Measure::CPU_US
        };
        let slower = runs(
            &measure,
            &[("weft", &[Some(100.0), Some(200.0)])],
            &[("weft", &[Some(50.0), Some(60.0)])],
        );
        assert_eq!(
            slower.lines[0].figures,
            Some(("200 µs".to_owned(), "60.0 µs".to_owned()))
        );
        assert!(!slower.is_no_loss());
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
        assert!(text.contains("1.040") && text.contains("WORSE"), "{text}");
    }

    #[test]
    fn a_row_that_failed_is_a_loss() {
        assert!(!compared(&[Some(5.0)], &[]).is_no_loss());
        assert!(!Comparison::new(Compares::Builds, 1.02).is_no_loss());
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
