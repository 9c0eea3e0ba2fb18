//! Comparison of two builds, measured in turns, or of the results of two runs: does a change make
//! anything worse?
//!
//! The best samples decide: those of identical binaries agree within 1.5 %, their medians only
//! within 16 %. The ratio of medians is shown with its 95 % interval, from resampling each side
//! (bootstrap). Runs of different hours differ because the machine does: there, a difference counts
//! only if the interval confirms it, and unchanged systems show the machine's part. A larger share
//! of samples without a figure always counts as worse.

use std::fmt;

use crate::card::Card;
use crate::measure::{Better, Measure};
use crate::numbers::{SAMPLES_MIN, bootstrap, counted, median, with_unit};
use crate::report::Report;
use crate::rows::{Row, Rows};
pub use crate::system::{NEW, OLD};

/// Prefix of weft's systems; the others serve as comparison.
const OURS: &str = "weft";

/// One system in one configuration.
#[derive(Clone, Debug)]
pub struct Compared {
    /// `web-rows, weft: 400 B, 64 connections`.
    pub what: String,
    /// True if it is one of weft's.
    pub is_ours: bool,
    /// Best figures before and now, with their unit; or the reason for their absence.
    pub figures: Result<(String, String), &'static str>,
    /// Samples without a figure, and all samples, before and now.
    pub missing: [(usize, usize); 2],
    /// Ratio of the best samples, new to old; above 1 the new one is worse.
    pub best: f64,
    /// Ratio of the medians, and its 95 % interval.
    pub medians: (f64, f64, f64),
}

/// One of the two failed.
const FAILED: &str = "failed";
/// Missing in the new run.
const NOT_MEASURED: &str = "not measured";

/// Kind of comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compares {
    /// Builds, measured in turns. Every line is shown.
    Builds,
    /// Runs. Only differences are shown.
    Runs,
}

/// A comparison.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Kind of comparison.
    pub compares: Compares,
    /// Lines in the order of the configurations.
    pub lines: Vec<Compared>,
    /// Largest ratio that is no loss.
    pub limit: f64,
    /// Reservations about the figures.
    pub notes: Vec<String>,
    /// The machine at the beginning of each experiment of two runs, before and now.
    cards: Vec<[Card; 2]>,
}

impl Comparison {
    /// Creates a comparison without lines.
    pub fn new(compares: Compares, limit: f64) -> Comparison {
        Comparison { compares, lines: Vec::new(), limit, notes: Vec::new(), cards: Vec::new() }
    }

    /// Adds an experiment with systems whose names begin with [`OLD`] and [`NEW`].
    pub fn add_builds(&mut self, report: &Report<'_>) {
        let experiment = report.experiment;
        self.add_rows(
            (experiment.name, &experiment.measures[0]),
            (&report.rows, &report.rows),
            of_old,
        );
        let notes = report.warnings().into_iter();
        let notes = notes.map(|note| format!("{}: {note}", experiment.name));
        self.notes.extend(notes);
    }

    /// Adds an experiment of two runs.
    pub fn add_runs(&mut self, old: &Report<'_>, new: &Report<'_>) {
        let experiment = new.experiment;
        let [peak, new_peak] = [old, new].map(|report| report.recorded.header.peak_per_s);
        if let Some((before, now)) = peak.zip(new_peak).filter(|(before, now)| before != now) {
            // Configurations are shares of the peak, so the loads differ.
            let [before, now] = [before, now].map(|peak| with_unit(peak, "per second"));
            let name = experiment.name;
            self.notes.push(format!(
                "{name} is left out: its peak, of which it asks parts, was {before}, now {now}"
            ));
            return;
        }
        self.add_rows((experiment.name, &experiment.measures[0]), (&old.rows, &new.rows), |old| {
            Some(old.to_owned())
        });
        let headers = [old, new].map(|report| &report.recorded.header);
        self.note_difference("machines", headers.map(|header| &*header.card.machine));
        self.note_difference("testbeds", headers.map(|header| &*header.testbed));
        self.cards.push(headers.map(|header| header.card.clone()));
    }

    /// Costs of the machine cards that differ by more than the limit: medians of the experiments.
    fn card_notes(&self) -> Vec<String> {
        let cost = |side: usize, at: usize| {
            let cards = self.cards.iter();
            median(cards.map(|pair| pair[side].figures()[at].2).collect())
        };
        let figures = Card::default().figures().into_iter().enumerate();
        let costs = figures.filter(|(_, (_, unit, _))| *unit == "ns");
        let notes = costs.filter_map(|(at, (name, unit, _))| {
            let old = cost(0, at);
            let new = cost(1, at);
            let differs = old.min(new) > 0.0 && old.max(new) > self.limit * old.min(new);
            let [before, now] = [old, new].map(|cost| with_unit(cost, unit));
            differs.then(|| format!("the machine cards differ: {name} {before}, now {now}"))
        });
        notes.collect()
    }

    fn note_difference(&mut self, what: &str, [old, new]: [&str; 2]) {
        let note = format!("the {what} differ: {old}; {new}");
        if old != new && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Adds an experiment that the new run does not have.
    pub fn add_not_measured(&mut self, old: &Report<'_>) {
        let experiment = old.experiment;
        let rows = old.rows.all().iter();
        let mut figures = rows.filter(|row| row.spread(&experiment.measures[0]).is_some());
        if figures.any(|row| row.system.starts_with(OURS)) {
            let what = experiment.name.to_owned();
            self.lines.push(Compared { what, ..not_measured() });
        }
    }

    /// Adds each system whose new name `of_old` returns, by an experiment's first measure.
    fn add_rows(
        &mut self,
        (name, measure): (&str, &Measure),
        (old, new): (&Rows, &Rows),
        of_old: impl Fn(&str) -> Option<String>,
    ) {
        let mut not_asked = 0;
        for old in old.all().iter().filter(|row| !row.is_absent) {
            let label = &old.configuration.label;
            let Some(system) = of_old(&old.system) else {
                continue;
            };
            let form = system.strip_prefix(NEW).unwrap_or(&system);
            let is_ours = form.starts_with(OURS);
            // A row that never had a figure cannot lose one.
            if self.compares == Compares::Runs && old.spread(measure).is_none() {
                continue;
            }
            let found = new.find(label, &system).filter(|row| !row.is_absent);
            let compared = match found {
                Some(new) => compare(measure, old, new),
                // Configurations are selected by the user, and other people's programs come and go.
                None if !new.has_configuration(label) => {
                    not_asked += usize::from(is_ours);
                    continue;
                }
                None if !is_ours => continue,
                None => not_measured(),
            };
            self.lines.push(Compared {
                what: format!("{name}, {form}: {label}"),
                is_ours,
                ..compared
            });
        }
        if not_asked > 0 {
            let figures = counted(not_asked, "figure");
            self.notes.push(format!("{name}: the new run did not ask for {figures} of weft"));
        }
    }

    /// True if no figure of weft's is worse than the limit or missing.
    pub fn is_no_loss(&self) -> bool {
        let mut ours = self.lines.iter().filter(|line| line.is_ours).peekable();
        ours.peek().is_some() && !ours.any(|line| self.is_worse(line))
    }

    fn is_worse(&self, line: &Compared) -> bool {
        let is_sure = self.compares == Compares::Builds || line.medians.1 > 1.0;
        line.figures.is_err() || line.is_missing_more() || line.best > self.limit && is_sure
    }

    fn is_better(&self, line: &Compared) -> bool {
        line.best < 1.0 / self.limit && line.medians.2 < 1.0 && !line.is_missing_more()
    }
}

impl Compared {
    /// True if a larger share of the samples has no figure than before.
    fn is_missing_more(&self) -> bool {
        let [(before, of_before), (now, of_now)] = self.missing;
        now * of_before > before * of_now
    }
}

/// Name of the new build's system for an old build's.
fn of_old(old: &str) -> Option<String> {
    Some(format!("{NEW}{}", old.strip_prefix(OLD)?))
}

/// A line for a figure of ours that the new run lacks.
fn not_measured() -> Compared {
    Compared {
        what: String::new(),
        is_ours: true,
        figures: Err(NOT_MEASURED),
        missing: [(0, 0); 2],
        best: f64::NAN,
        medians: (f64::NAN, f64::NAN, f64::NAN),
    }
}

fn compare(measure: &Measure, old: &Row, new: &Row) -> Compared {
    let spreads = old.spread(measure).zip(new.spread(measure));
    let best = spreads.map(|(old, new)| (old.best(measure.better), new.best(measure.better)));
    // Above 1 the new one is worse, for rates as well.
    let worse_by = |old: f64, new: f64| match measure.better {
        _ if old == new => 1.0,
        Better::More => old / new,
        _ => new / old,
    };
    let figures = |row: &Row| -> Vec<f64> {
        let samples = row.samples.iter();
        samples.filter_map(|sample| measure.figure(&row.configuration, &sample.values)).collect()
    };
    Compared {
        what: String::new(),
        is_ours: true,
        figures: best.ok_or(FAILED).map(|(old, new)| {
            let [old, new] = [old, new].map(|figure| with_unit(figure, measure.unit));
            (old, new)
        }),
        missing: [old, new].map(|row| row.missing(measure)),
        best: best.map_or(f64::NAN, |(old, new)| worse_by(old, new)),
        medians: ratio(&figures(old), &figures(new), worse_by),
    }
}

/// Ratio of the medians, and its interval, which is unbounded for too few samples.
fn ratio(old: &[f64], new: &[f64], worse_by: impl Fn(f64, f64) -> f64) -> (f64, f64, f64) {
    if old.is_empty() || new.is_empty() {
        return (f64::NAN, f64::NAN, f64::NAN);
    }
    let ratio = worse_by(median(old.to_vec()), median(new.to_vec()));
    if old.len().min(new.len()) < SAMPLES_MIN {
        return (ratio, 0.0, f64::INFINITY);
    }
    let (from, to) = bootstrap([old, new], |[old, new]| worse_by(old, new));
    (ratio, from, to)
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_shown = |line: &&Compared| {
            self.compares == Compares::Builds || self.is_worse(line) || self.is_better(line)
        };
        let shown: Vec<&Compared> = self.lines.iter().filter(is_shown).collect();
        let head = ("old, best".to_owned(), "new, best".to_owned());
        let figures = || shown.iter().filter_map(|line| line.figures.as_ref().ok());
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
            let (old, new) = match &line.figures {
                Ok(figures) => figures,
                Err(why) => {
                    writeln!(f, "{what:<width$}  {why}")?;
                    continue;
                }
            };
            let (ratio, from, to) = line.medians;
            let mark = match (self.is_worse(line), line.is_ours) {
                (true, true) => "  WORSE",
                (true, false) => "  worse",
                _ => "",
            };
            write!(
                f,
                "{what:<width$}  {old:>before$}  {new:>now$}  {:>6.3}  {ratio:.3} ({from:.3}–{to:.3}){mark}",
                line.best
            )?;
            if line.is_missing_more() {
                let [(before, of_before), (now, of_now)] = line.missing;
                let now = format!("{now} of {of_now} samples without a figure");
                write!(f, ": {now}, before {before} of {of_before}")?;
            }
            writeln!(f)?;
        }
        for note in self.notes.iter().chain(&self.card_notes()) {
            writeln!(f, "note: {note}")?;
        }
        let limit = self.limit;
        if self.compares == Compares::Runs {
            for (whose, is_ours) in [("of weft", true), ("of others", false)] {
                let lines = || self.lines.iter().filter(|line| line.is_ours == is_ours);
                let worse = lines().filter(|line| self.is_worse(line)).count();
                let better = lines().filter(|line| self.is_better(line)).count();
                let all = counted(lines().count(), "figure");
                writeln!(
                    f,
                    "{all} {whose}: {worse} worse by more than {limit} times, {better} better"
                )?;
            }
        }
        match (self.is_no_loss(), self.lines.is_empty()) {
            (_, true) => writeln!(f, "there was nothing to compare"),
            (true, _) => writeln!(f, "nothing of weft is worse by more than {limit} times"),
            (false, _) => writeln!(
                f,
                "something of weft is worse by more than {limit} times, failed, or was not measured"
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
        comparison.add_rows(("web-rows", &Measure::CPU_US), (&rows, &rows), of_old);
        comparison
    }

    fn runs(
        measure: &Measure,
        old: &[(&str, &[Option<f64>])],
        new: &[(&str, &[Option<f64>])],
    ) -> Comparison {
        let mut comparison = Comparison::new(Compares::Runs, 1.2);
        let old = rows(old);
        let new = rows(new);
        comparison.add_rows(("web-rows", measure), (&old, &new), |old| Some(old.to_owned()));
        comparison
    }

    /// Seen: `compare` of two folders of results ended with "Permission denied": it accepted only
    /// builds, although users have runs of a whole laboratory from last week.
    #[test]
    fn differing_testbeds_are_noted_once() {
        let mut comparison = Comparison::new(Compares::Runs, 1.05);
        let beds = ["both here", "generator at b by ssh"];
        comparison.note_difference("testbeds", beds);
        comparison.note_difference("testbeds", beds);
        comparison.note_difference("testbeds", [beds[0]; 2]);
        assert_eq!(comparison.notes, ["the testbeds differ: both here; generator at b by ssh"]);
    }

    /// Seen: two runs, one on a kernel whose system calls take four times as long, and no word of
    /// it: the machine card, which is there for this, was in the reports alone.
    #[test]
    fn differing_cards_are_noted() {
        let card = |system_call_ns| Card { system_call_ns, compute_ns: 1.0, ..Card::default() };
        let mut comparison = Comparison::new(Compares::Runs, 1.2);
        for (old, new) in [(119.0, 130.0), (119.0, 500.0), (120.0, 480.0)] {
            comparison.cards.push([card(old), card(new)]);
        }
        let text = comparison.to_string();
        let note = "note: the machine cards differ: system call 119 ns, now 480 ns\n";
        assert!(text.contains(note), "{text}");
        assert_eq!(text.matches("cards differ").count(), 1, "{text}");
        comparison.limit = 5.0;
        assert!(!comparison.to_string().contains("cards differ"));
    }

    #[test]
    fn only_sure_differences_count() {
        let fast = [5.0, 5.1, 5.1, 5.1, 5.2].map(Some);
        let slow = [9.0, 9.2, 9.2, 9.2, 9.3].map(Some);
        let unsure = [7.0, 4.0, 6.0, 5.0, 8.0].map(Some);
        let still_unsure = [5.0, 6.9, 6.0, 7.0, 8.0].map(Some);
        let others = runs(
            &Measure::CPU_US,
            &[("nginx", &fast), ("weft", &fast)],
            &[("nginx", &slow), ("weft", &fast)],
        );
        assert!(others.is_no_loss(), "{others}");
        let text = others.to_string();
        assert!(text.contains("web-rows, nginx: c") && text.contains("worse\n"), "{text}");
        assert!(!text.contains("web-rows, weft: c"), "{text}");
        assert!(text.contains("1 figure of weft: 0 worse"), "{text}");
        let ours = |old, new| runs(&Measure::CPU_US, &[("weft", old)], &[("weft", new)]);
        assert!(!ours(&fast, &slow).is_no_loss());
        assert!(ours(&unsure, &still_unsure).is_no_loss());
        assert!(!ours(&fast, &[]).is_no_loss(), "it failed");
        assert!(ours(&fast, &[]).to_string().contains("failed"));
        // It failed before, too.
        assert!(ours(&[], &fast).lines.is_empty());
    }

    /// Seen: for rates, the smallest sample was shown as "best".
    #[test]
    fn the_best_of_rates_is_the_greatest() {
        let measure = Measure { better: Better::More, ..Measure::CPU_US };
        let slower = runs(
            &measure,
            &[("weft", &[100.0, 150.0, 150.0, 150.0, 200.0].map(Some))],
            &[("weft", &[50.0, 55.0, 55.0, 55.0, 60.0].map(Some))],
        );
        assert_eq!(slower.lines[0].figures, Ok(("200 µs".to_owned(), "60.0 µs".to_owned())));
        assert!(!slower.is_no_loss());
    }

    #[test]
    fn the_best_samples_decide() {
        let old = [Some(5.0), Some(5.1), Some(9.0)];
        let same = compared(&old, &[Some(8.0), Some(5.05), Some(8.5)]);
        assert!(same.is_no_loss(), "{same}");
        let worse = compared(&old, &[Some(5.2), Some(5.2), Some(5.2)]);
        assert!(!worse.is_no_loss());
        let text = worse.to_string();
        assert!(text.contains("web-rows, weft: c"), "{text}");
        assert!(text.contains("1.040") && text.contains("WORSE"), "{text}");
    }

    #[test]
    fn a_row_that_failed_is_a_loss() {
        assert!(!compared(&[Some(5.0)], &[]).is_no_loss());
        assert!(!Comparison::new(Compares::Builds, 1.02).is_no_loss());
    }

    /// Seen: a new build that crashed in two of five samples was "no loss". Cause: only the other
    /// three were compared. Cure: a larger share of samples without a figure is a loss.
    #[test]
    fn more_failures_are_a_loss() {
        let build = |failures: [usize; 2]| {
            let five = [Some(5.0); 5];
            let kept = failures.map(|failed| &five[failed..]);
            let mut rows = rows(&[("old weft", kept[0]), ("new weft", kept[1])]);
            for (system, failed) in ["old weft", "new weft"].into_iter().zip(failures) {
                let row = rows.find_mut("c", system).unwrap();
                row.failures = vec!["it crashed".to_owned(); failed];
            }
            let mut comparison = Comparison::new(Compares::Builds, 1.02);
            let measured = ("web-rows", &Measure::CPU_US);
            comparison.add_rows(measured, (&rows, &rows), of_old);
            comparison
        };
        let worse = build([0, 2]);
        assert!(!worse.is_no_loss());
        let text = worse.to_string();
        let said = "WORSE: 2 of 5 samples without a figure, before 0 of 5";
        assert!(text.contains(said), "{text}");
        assert!(build([2, 2]).is_no_loss() && build([2, 1]).is_no_loss());
    }

    /// Seen: an interrupted run compared as clean. Cause: only figures of the new run were
    /// compared. Cure: all figures of weft in the old run are.
    #[test]
    fn missing_figures_of_weft_are_a_loss() {
        let figures: &[Option<f64>] = &[Some(5.0); 3];
        let of = |old: &[&str], new: &[&str]| {
            let [old, new] = [old, new]
                .map(|names| names.iter().map(|&name| (name, figures)).collect::<Vec<_>>());
            runs(&Measure::CPU_US, &old, &new)
        };
        let gone = of(&["weft", "weft event"], &["weft"]);
        assert!(!gone.is_no_loss());
        let text = gone.to_string();
        assert!(text.contains("web-rows, weft event: c  not measured\n"), "{text}");
        assert!(of(&["weft", "nginx"], &["weft"]).is_no_loss());
        assert!(of(&["weft"], &["weft", "weft event"]).is_no_loss());
        // A run of fewer configurations, as requested.
        let mut fewer = of(&["weft"], &["weft"]);
        let old = rows(&[("weft", figures)]);
        let new = Rows::default();
        let measured = ("cache-rows", &Measure::CPU_US);
        fewer.add_rows(measured, (&old, &new), |old| Some(old.to_owned()));
        assert!(fewer.is_no_loss());
        let note = "cache-rows: the new run did not ask for 1 figure of weft";
        assert_eq!(fewer.notes, [note]);
    }

    /// Seen: one sample was as certain as a hundred. Cause: resampling one gives always the same.
    #[test]
    fn four_samples_are_sure_of_nothing() {
        let of = |old: &[Option<f64>], new: &[Option<f64>]| {
            runs(&Measure::CPU_US, &[("weft", old)], &[("weft", new)])
        };
        let old = [Some(1.0); SAMPLES_MIN];
        let new = [Some(2.0); SAMPLES_MIN];
        assert!(of(&old[..1], &new[..1]).is_no_loss());
        assert!(of(&old, &new[..4]).is_no_loss() && of(&old[..4], &new).is_no_loss());
        assert!(!of(&old, &new).is_no_loss());
    }
}
