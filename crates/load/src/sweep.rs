//! Sweeps: runs at several rates, and the search for the knee.
//!
//! The knee is the largest rate at which the server keeps up: at least 99 % of the demand is
//! achieved, and the latency is within a bound. `Sweep::knee` doubles the rate until the server
//! does not keep up, and then halves the gap. `Sweep::overload` runs at twice the knee, to show how
//! the server degrades.
//!
//! A run is made by a [`Runner`], so that a sweep is the same for one generator and for many
//! [`agents`](crate::agents).

use std::fmt::Write as _;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

use crate::outcome::Outcome;
use crate::report::{Figures, figures};
use crate::units::{count_of, ns_of, rate_of};

/// Rates of a sweep: `10k..70k:5k`, or a list, `1k,2k,5k`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// Rates in order.
    pub per_s: Vec<f64>,
}

/// Maximum number of steps; more is a typing error.
const STEPS_MAX: usize = 10_000;

impl FromStr for Rates {
    type Err = String;

    fn from_str(text: &str) -> Result<Rates, String> {
        let per_s = match text.split_once("..") {
            Some((from, rest)) => range(text, from, rest)?,
            None => text.split(',').map(rate).collect::<Result<_, _>>()?,
        };
        Ok(Rates { per_s })
    }
}

fn range(text: &str, from: &str, rest: &str) -> Result<Vec<f64>, String> {
    let (to, step) = rest.split_once(':').ok_or_else(|| {
        format!("'{text}' has no step; write it after a colon, such as 10k..70k:5k")
    })?;
    let (from, to, step) = (rate(from)?, rate(to)?, rate(step)?);
    if from > to {
        return Err(format!("'{text}': the first rate is above the last"));
    }
    // Half a step of grace: 0.1 + 0.1 + 0.1 is not 0.3.
    let steps = ((to - from) / step + 1e-6).floor() + 1.0;
    if steps > STEPS_MAX as f64 {
        return Err(format!("'{text}' are more than {STEPS_MAX} steps"));
    }
    Ok((0..steps as usize).map(|at| from + step * at as f64).collect())
}

/// Reads a rate per second: `500`, `10k`, `1.5M`.
///
/// # Errors
/// When it is none, or not above 0.
pub fn rate(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let (number, unit) = match text.as_bytes().last() {
        Some(b'k') => (&text[..text.len() - 1], 1e3),
        Some(b'M') => (&text[..text.len() - 1], 1e6),
        _ => (text, 1.0),
    };
    let value: Option<f64> = number.parse().ok().filter(|n: &f64| n.is_finite() && *n > 0.0);
    value.map(|value| value * unit).ok_or_else(|| {
        format!("'{text}' is not a rate; write requests per second, such as 500, 10k or 1.5M")
    })
}

/// Run of a sweep.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// Offered rate.
    pub rate_per_s: f64,
    /// Repetition of this rate, from 1.
    pub repetition: u32,
    /// True if the server kept up.
    pub kept_up: bool,
    /// Purpose: `sweep`, `knee` or `overload`.
    pub purpose: &'static str,
    /// Figures of the outcome.
    pub figures: Figures,
}

/// Runs of a sweep, and the knee if it was searched for.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Sweep {
    /// Runs in order.
    pub steps: Vec<Step>,
    /// Largest rate at which the server kept up.
    pub knee_per_s: Option<f64>,
    /// True if a search for the knee was completed.
    pub is_searched: bool,
}

/// Options of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct SweepOptions {
    /// Number of runs at each rate.
    pub repetitions: u32,
    /// Pause before each run but the first, in which connections leave TIME-WAIT and queues empty.
    pub pause: Duration,
    /// Largest 99th percentile, from the intended time, at which a server keeps up.
    pub p99_max: Duration,
}

/// Share of the offered rate that a server achieves if it keeps up.
const ACHIEVED_SHARE_MIN: f64 = 0.99;

impl SweepOptions {
    fn keeps_up(&self, seen: &Figures) -> bool {
        let errors = seen.errors.get("total").copied().unwrap_or(0) as f64;
        let failed_share = errors / (seen.replies as f64 + errors).max(1.0);
        let achieved = seen.achieved_share.unwrap_or(0.0) >= ACHIEVED_SHARE_MIN;
        let quick = seen.latency_us.intended.p99 <= self.p99_max.as_secs_f64() * 1e6;
        seen.replies > 0 && achieved && quick && failed_share <= 1.0 - ACHIEVED_SHARE_MIN
    }
}

/// Runner of a sweep.
pub trait Runner {
    /// Runs at this rate for the plan's duration.
    ///
    /// # Errors
    /// If the run could not be made; the sweep ends there.
    fn run(&mut self, rate_per_s: f64) -> Result<Outcome, String>;

    /// Pauses between two runs.
    fn pause(&mut self, pause: Duration);

    /// Takes each finished step, for a growing table and an estimate of the time left.
    fn done(&mut self, step: &Step);
}

impl Sweep {
    /// Runs all rates in rounds, so that a slow drift of the machine does not affect one rate only.
    ///
    /// # Errors
    /// Those of the runner.
    pub fn over(
        &mut self,
        rates: &Rates,
        options: &SweepOptions,
        runner: &mut impl Runner,
    ) -> Result<(), String> {
        for repetition in 1..=options.repetitions {
            for &rate_per_s in &rates.per_s {
                self.step(rate_per_s, repetition, "sweep", options, runner)?;
            }
        }
        Ok(())
    }

    /// Searches for the largest rate at which the server keeps up, from `first_per_s` on, until the
    /// gap is below `precision` of the rate; `None` if it does not keep up even at a thousandth of
    /// the first rate. A run limited by the generator ends the search: higher rates were not
    /// measured.
    ///
    /// # Errors
    /// Those of the runner.
    pub fn knee(
        &mut self,
        first_per_s: f64,
        precision: f64,
        options: &SweepOptions,
        runner: &mut impl Runner,
    ) -> Result<Option<f64>, String> {
        const DOUBLINGS_MAX: u32 = 24;
        let mut good = None;
        let mut bad = None;
        let mut rate_per_s = first_per_s;
        for _ in 0..DOUBLINGS_MAX {
            let kept_up = self.keeps_up(rate_per_s, options, runner)?;
            if kept_up {
                good = Some(rate_per_s);
                self.knee_per_s = good;
            } else {
                bad = Some(rate_per_s)
            }
            rate_per_s = match (good, bad) {
                (Some(good), Some(bad)) if bad - good <= precision * bad => break,
                (Some(good), Some(bad)) => f64::midpoint(good, bad),
                (Some(_), None) if self.generator_was_the_limit() => break,
                (Some(good), None) => good * 2.0,
                (None, _) => rate_per_s / 2.0,
            };
            if rate_per_s < first_per_s / 1e3 {
                break;
            }
        }
        self.is_searched = true;
        Ok(good)
    }

    /// True if a completed search found no knee.
    pub fn has_no_knee(&self) -> bool {
        self.is_searched && self.knee_per_s.is_none()
    }

    /// True if the knee is only a lower bound: the generator was the bottleneck in a run of the
    /// search.
    fn knee_is_a_bound(&self) -> bool {
        let mut searched = self.steps.iter().filter(|step| step.purpose == "knee");
        searched.any(|step| step.figures.generator_limited)
    }

    fn generator_was_the_limit(&self) -> bool {
        self.steps.last().is_some_and(|step| step.figures.generator_limited)
    }

    /// Runs at twice the knee, if there is one.
    ///
    /// # Errors
    /// Those of the runner; and if the knee is the generator's: twice that would tell nothing about
    /// the server.
    pub fn overload(
        &mut self,
        options: &SweepOptions,
        runner: &mut impl Runner,
    ) -> Result<(), String> {
        let Some(knee_per_s) = self.knee_per_s else {
            return Ok(());
        };
        if self.knee_is_a_bound() {
            return Err(format!(
                "--overload was skipped: the generator was the bottleneck in the search, so the server's knee \
                 is above {}; use more --threads or machines",
                rate_of(knee_per_s)
            ));
        }
        self.step(2.0 * knee_per_s, 1, "overload", options, runner).map(drop)
    }

    /// Runs all repetitions; returns true if most of them kept up.
    fn keeps_up(
        &mut self,
        rate_per_s: f64,
        options: &SweepOptions,
        runner: &mut impl Runner,
    ) -> Result<bool, String> {
        let mut kept_up = 0;
        for repetition in 1..=options.repetitions {
            kept_up += u32::from(self.step(rate_per_s, repetition, "knee", options, runner)?);
        }
        Ok(2 * kept_up > options.repetitions)
    }

    fn step(
        &mut self,
        rate_per_s: f64,
        repetition: u32,
        purpose: &'static str,
        options: &SweepOptions,
        runner: &mut impl Runner,
    ) -> Result<bool, String> {
        if !self.steps.is_empty() && !options.pause.is_zero() {
            runner.pause(options.pause);
        }
        let figures = figures(&runner.run(rate_per_s)?);
        let kept_up = options.keeps_up(&figures);
        let step = Step { rate_per_s, repetition, kept_up, purpose, figures };
        runner.done(&step);
        self.steps.push(step);
        Ok(kept_up)
    }

    /// Formats a line per step, with a head line.
    pub fn csv(&self) -> String {
        let mut text = String::from(
            "purpose,repetition,offered_per_s,achieved_per_s,p50_us,p99_us,p999_us,max_us,raw_p99_us,errors,missed,kept_up,generator_limited\n",
        );
        for step in &self.steps {
            let seen = &step.figures;
            let intended = &seen.latency_us.intended;
            let raw = &seen.latency_us.raw;
            let _ = writeln!(
                text,
                "{},{},{:.1},{:.1},{:.1},{:.1},{:.1},{:.1},{:.1},{},{},{},{}",
                step.purpose,
                step.repetition,
                step.rate_per_s,
                seen.achieved_rate_per_s,
                intended.p50,
                intended.p99,
                intended.p99_9,
                intended.max,
                raw.p99,
                seen.errors["total"],
                seen.counts.missed,
                step.kept_up,
                seen.generator_limited,
            );
        }
        text
    }

    /// Result of the search for the knee; empty if there was none.
    pub fn knee_line(&self) -> String {
        let at_least = match (self.knee_is_a_bound(), self.is_searched) {
            (true, _) => {
                " or more: the generator was the bottleneck in some runs; give it more --threads or CPUs"
            }
            (false, true) => "",
            (false, false) => " or more: the search was stopped",
        };
        match self.knee_per_s {
            Some(knee_per_s) => {
                format!("\n  the server keeps up to {}{at_least}\n", rate_of(knee_per_s))
            }
            None if self.has_no_knee() => {
                "\n  the server did not keep up at any tested rate\n".to_owned()
            }
            None => String::new(),
        }
    }
}

impl Step {
    /// Head of the table, for a terminal of `width` columns.
    pub fn head(width: usize) -> String {
        let names =
            ["offered/s", "achieved", "p50", "p99", "p99.9", "raw p99", "errors", "kept up"];
        cells(names.map(str::to_owned), width)
    }

    /// Line of this step in the table.
    pub fn row(&self, width: usize) -> String {
        let seen = &self.figures;
        let us = |us: f64| ns_of(us * 1e3);
        let rate = |per_s: f64| rate_of(per_s).trim_end_matches("/s").to_owned();
        let intended = &seen.latency_us.intended;
        let raw = &seen.latency_us.raw;
        let mark = match (seen.generator_limited, self.kept_up) {
            (true, _) => "generator",
            (false, true) => "yes",
            (false, false) => "no",
        };
        let row = [
            rate(self.rate_per_s),
            rate(seen.achieved_rate_per_s),
            us(intended.p50),
            us(intended.p99),
            us(intended.p99_9),
            us(raw.p99),
            count_of(seen.errors["total"]),
            mark.to_owned(),
        ];
        cells(row, width)
    }
}

const CELL_COLUMNS: [usize; 8] = [11, 11, 8, 8, 8, 8, 8, 10];
/// Columns that a narrow terminal omits, first to last: p99.9, raw p99, p50, errors.
const DISPENSABLE: [usize; 4] = [4, 5, 2, 6];

fn cells(row: [String; 8], width: usize) -> String {
    let mut shown = [true; 8];
    for cell in DISPENSABLE {
        let columns = (0..8).filter(|&at| shown[at]).map(|at| CELL_COLUMNS[at] + 1);
        if columns.sum::<usize>() > width + 1 {
            shown[cell] = false;
        }
    }
    let cells = row.iter().enumerate().filter(|(at, _)| shown[*at]);
    let cells = cells.map(|(at, cell)| format!("{cell:>columns$}", columns = CELL_COLUMNS[at]));
    cells.collect::<Vec<_>>().join(" ")
}

/// Shortest time of a sweep over these rates: the runs and the pauses between them.
pub fn planned(rates: &Rates, options: &SweepOptions, run: Duration) -> Duration {
    let runs = (rates.per_s.len() as u32).saturating_mul(options.repetitions);
    let pauses = options.pause.saturating_mul(runs.saturating_sub(1));
    run.saturating_mul(runs).saturating_add(pauses)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::outcome::record;
    use crate::report::tests::sample;

    const OPTIONS: SweepOptions = SweepOptions {
        repetitions: 1,
        pause: Duration::from_secs(1),
        p99_max: Duration::from_millis(10),
    };

    /// A server that keeps up to a capacity; beyond it, it answers at that rate, late.
    struct Server {
        capacity_per_s: f64,
        generator_capacity_per_s: f64,
        asked: Vec<f64>,
        pauses: usize,
        told: usize,
    }

    impl Server {
        fn new(capacity_per_s: f64) -> Server {
            Server {
                capacity_per_s,
                generator_capacity_per_s: f64::MAX,
                asked: Vec::new(),
                pauses: 0,
                told: 0,
            }
        }
    }

    impl Runner for Server {
        fn run(&mut self, rate_per_s: f64) -> Result<Outcome, String> {
            self.asked.push(rate_per_s);
            let mut outcome = sample(&["request"], 1, 0);
            outcome.offered_rate_per_s = Some(rate_per_s);
            outcome.total.intended = (rate_per_s * 2.0) as u64;
            let replies = (rate_per_s.min(self.capacity_per_s) * 2.0) as u64;
            let latency_ns = if rate_per_s > self.capacity_per_s { 1_000_000_000 } else { 50_000 };
            let class = &mut outcome.total.classes[0];
            for histogram in [&mut class.response_ns, &mut class.service_ns] {
                record(histogram, latency_ns);
                histogram.saturating_record_n(latency_ns, replies.saturating_sub(1));
            }
            if rate_per_s > self.generator_capacity_per_s {
                record(&mut outcome.total.lag_ns, 10_000_000);
            }
            Ok(outcome)
        }

        fn pause(&mut self, _: Duration) {
            self.pauses += 1;
        }

        fn done(&mut self, _: &Step) {
            self.told += 1;
        }
    }

    fn rates(text: &str) -> Vec<f64> {
        text.parse::<Rates>().unwrap_or_else(|error| panic!("{error}")).per_s
    }

    #[test]
    fn ranges_and_lists_of_rates_are_read() {
        assert_eq!(rates("10k..25k:5k"), [10e3, 15e3, 20e3, 25e3]);
        assert_eq!(rates("1..2:0.25"), [1.0, 1.25, 1.5, 1.75, 2.0]);
        assert_eq!(rates("0.1..0.3:0.1").len(), 3);
        assert_eq!(rates("5..7:5"), [5.0]);
        assert_eq!(rates("1k, 2k,1.5M"), [1e3, 2e3, 1.5e6]);
        assert_eq!(rates("10k..70k:2500").len(), 25);
    }

    #[test]
    fn mistakes_are_named() {
        let refused = |text: &str, hint: &str| {
            let error = text.parse::<Rates>().expect_err(text);
            assert!(error.contains(hint), "{text}: {error}");
        };
        refused("", "is not a rate");
        refused("10k..70k", "has no step");
        refused("70k..10k:5k", "the first rate is above the last");
        refused("1..1M:1", "more than 10000");
        refused("1..2:0", "'0' is not a rate");
        refused("-5", "is not a rate");
        refused("nan", "is not a rate");
    }

    #[test]
    fn sweep_runs_in_rounds_with_pauses() {
        let mut server = Server::new(50e3);
        let mut sweep = Sweep::default();
        let options = SweepOptions { repetitions: 2, ..OPTIONS };
        sweep.over(&"20k..60k:20k".parse().unwrap(), &options, &mut server).unwrap();
        assert_eq!(server.asked, [20e3, 40e3, 60e3, 20e3, 40e3, 60e3]);
        assert_eq!((server.pauses, server.told), (5, 6));
        let kept_up: Vec<_> = sweep.steps.iter().map(|step| step.kept_up).collect();
        assert_eq!(kept_up, [true, true, false, true, true, false]);
        assert_eq!(sweep.csv().lines().count(), 7);
        let row = sweep.steps[2].row(100);
        assert!(row.contains("60,000      50,000"), "{row}");
    }

    #[test]
    fn knee_from_below_and_above() {
        for first in [1e3, 57e3, 400e3] {
            let mut server = Server::new(57_500.0);
            let mut sweep = Sweep::default();
            let knee = sweep.knee(first, 0.02, &OPTIONS, &mut server).unwrap().unwrap();
            // Where 99 % of the offered rate is achieved but late, the bound of the latency
            // decides.
            assert!((57_500.0 * 0.98..=57_500.0).contains(&knee), "{first}: {knee}");
            assert!(sweep.knee_line().contains("the server keeps up to"));
            sweep.overload(&OPTIONS, &mut server).unwrap();
            assert_eq!(server.asked.last(), Some(&(2.0 * knee)));
            assert_eq!(sweep.steps.last().unwrap().purpose, "overload");
        }
    }

    #[test]
    fn no_knee_if_never_kept_up() {
        let mut server = Server::new(0.0);
        let knee = Sweep::default().knee(10e3, 0.02, &OPTIONS, &mut server);
        assert_eq!(knee, Ok(None));
        assert!(server.asked.len() < 20, "{:?}", server.asked);
    }

    #[test]
    fn search_ends_at_the_generators_limit() {
        let mut server = Server { generator_capacity_per_s: 100e3, ..Server::new(1e12) };
        let mut sweep = Sweep::default();
        let knee = sweep.knee(10e3, 0.02, &OPTIONS, &mut server).unwrap();
        assert_eq!(knee, Some(160e3));
        let runs = sweep.steps.len();
        let refused =
            sweep.overload(&OPTIONS, &mut server).expect_err("twice the generator's own limit");
        assert!(refused.contains("above 160,000/s"), "{refused}");
        assert_eq!(sweep.steps.len(), runs, "and nothing was run");
        assert!(sweep.knee_line().contains("or more: the generator was the bottleneck"));
    }

    #[test]
    fn narrow_terminal_drops_columns() {
        let mut server = Server::new(50e6);
        let mut sweep = Sweep::default();
        let rates = "1M,100M".parse().unwrap();
        sweep.over(&rates, &OPTIONS, &mut server).unwrap();
        let longest = |text: &str| text.lines().map(|line| line.chars().count()).max();
        for width in [43, 50, 60, 69, 70, 78, 79, 200] {
            let rows = sweep.steps.iter().map(|step| step.row(width));
            let table: Vec<_> = [Step::head(width)].into_iter().chain(rows).collect();
            let table = table.join("\n");
            assert!(longest(&table) <= Some(width), "{width}:\n{table}");
            let has = |name: &str| table.contains(name);
            assert_eq!((has("p99.9"), has("raw p99")), (width >= 79, width >= 70));
            assert!(has("kept up") && has("100,000,000"), "{table}");
        }
    }

    #[test]
    fn session_sweep_compares_sessions() {
        // Seen: two replies for each session, so that half of the sessions were enough to keep up.
        let mut outcome = Server::new(1e6).run(10e3).unwrap();
        outcome.asked.kind = crate::outcome::Kind::Sessions;
        (outcome.total.intended, outcome.total.sessions_begun) = (10_000, 5_000);
        assert!(!OPTIONS.keeps_up(&figures(&outcome)));
        outcome.total.sessions_begun = 9_900;
        assert!(OPTIONS.keeps_up(&figures(&outcome)));
    }

    #[test]
    fn errors_are_not_keeping_up() {
        let mut outcome = Server::new(1e6).run(10e3).unwrap();
        assert!(OPTIONS.keeps_up(&figures(&outcome)));
        outcome.total.errors.reset = outcome.total.replies() / 10;
        assert!(!OPTIONS.keeps_up(&figures(&outcome)));
    }

    #[test]
    fn planned_time_of_a_sweep() {
        let options = SweepOptions { repetitions: 2, pause: Duration::from_secs(20), ..OPTIONS };
        let rates = "10k..70k:10k".parse().unwrap();
        assert_eq!(
            planned(&rates, &options, Duration::from_secs(300)),
            Duration::from_secs(14 * 300 + 13 * 20)
        );
        let endless = SweepOptions { repetitions: u32::MAX, pause: Duration::MAX, ..options };
        assert_eq!(planned(&rates, &endless, Duration::MAX), Duration::MAX);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[0-9kM.:,e -]{0,20}") {
            if let Ok(rates) = text.parse::<Rates>() {
                prop_assert!(rates.per_s.iter().all(|rate| *rate > 0.0));
            }
        }
    }
}
