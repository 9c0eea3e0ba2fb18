//! Overload: twice what a server can do for a while, and back. The same for web servers and caches.
//!
//! ```text
//!   asked    ┌── 2 × the knee ──┐
//!            │                  │
//!   ─ 0.7 × ─┘                  └─ 0.7 × the knee ─
//!     calm        overload          after
//! ```

use crate::bench::{Bench, Fault, Interval, Running};
use crate::expect::Expectation;
use crate::experiment::{Breadth, Cell, Figure, Measure};
use crate::place::ServerLimits;
use crate::rows::Rows;
use crate::sample::{Course, Sample};

pub(super) const MEASURES: &[Measure] = &[GOODPUT, Measure::ERRORS, Measure::P99, RECOVERY, KNEE];

pub(super) const FIGURES: &[Figure] = &[
    Figure::Course {
        measure: 0,
        panels: "idle",
    },
    Figure::Bars { measure: 0 },
    Figure::Bars { measure: 1 },
    Figure::Bars { measure: 2 },
    Figure::Bars { measure: 3 },
];

const GOODPUT: Measure = Measure {
    name: "goodput_percent",
    title: "good replies under overload",
    unit: "% of the knee",
    ..Measure::RATE
};
/// None if the server did not recover as long as it was watched.
const RECOVERY: Measure = Measure {
    name: "recovery_s",
    title: "recovery after the overload",
    unit: "s",
    can_be_never: true,
    ..Measure::P99
};
const KNEE: Measure = Measure {
    name: "knee_per_s",
    title: "the knee",
    ..Measure::RATE
};

/// A part of its core: so the generator, on a whole one, can ask for twice as much.
pub(super) const LIMITS: ServerLimits = ServerLimits {
    memory_bytes: None,
    cpu_percent: Some(25),
    disk_reads_per_s: None,
    signals: None,
};

/// Requests under way at once. What comes beyond them finds no connection, and is not sent.
const CONNECTIONS: &str = "2000";

/// How long the phases are, in samples' times.
const CALM: f64 = 2.0;
const OVERLOAD: f64 = 10.0;
const AFTER: f64 = 5.0;
/// And all of it, with the search for the knee.
pub(super) const LASTS: f64 = 1.0 + CALM + OVERLOAD + AFTER;
/// Parts of the knee.
const CALM_SHARE: f64 = 0.7;
const OVERLOAD_SHARE: f64 = 2.0;

/// The generator's intervals.
const STEP_S: f64 = 0.1;
/// So many good intervals one after the other are a recovery.
const GOOD_IN_A_ROW: usize = 3;
/// A p99 that is greater by more than this is not what it was before.
const BACK_TO_NORMAL: f64 = 3.0;

const NO_HERD: &str = "no idle connections";
const HERD: &str = "6,000 idle connections";

pub(super) fn cells(breadth: &Breadth) -> Vec<Cell> {
    let cells = [(NO_HERD, 0), (HERD, 6000)];
    let cells = cells.map(|(label, idle)| Cell::new(label, "overload", [("idle", idle)]));
    let count = if breadth.quick { 1 } else { cells.len() };
    cells.into_iter().take(count).collect()
}

/// Finds the server's knee in a closed loop, and then asks for more. `words` are what both loads
/// have in common.
pub(super) fn take(
    bench: &mut Bench<'_>,
    cell: &Cell,
    server: &mut Running,
    words: &[String],
) -> Result<Sample, Fault> {
    let with = |more: &[&str]| {
        let more = more.iter().map(|&word| word.to_owned());
        words.iter().cloned().chain(more).collect::<Vec<_>>()
    };
    let closed = with(&["-c", "256", "--warm-up", "500ms"]);
    let knee_per_s = bench.drive(server, &[closed])?.sound()?.outcomes[0].achieved_rate_per_s();
    let unit_s = bench.seconds;
    let phases = [
        (CALM_SHARE, CALM),
        (OVERLOAD_SHARE, OVERLOAD),
        (CALM_SHARE, AFTER),
    ];
    let course = phases.map(|(share, units)| {
        let (rate, ms) = ((knee_per_s * share).max(1.0), units * unit_s * 1e3);
        format!("{rate:.0}:{ms:.0}ms")
    });
    let (course, idle) = (course.join(","), cell.get("idle", 0).to_string());
    let open = [
        "-c",
        CONNECTIONS,
        "--course",
        &course,
        "--arrivals",
        "poisson",
    ];
    let how = [
        "--timeout",
        "1s",
        "--backlog",
        "1",
        "--interval",
        "100ms",
        "--idle",
        &idle,
    ];
    // The sample lasts as long as its course.
    bench.seconds = unit_s * (CALM + OVERLOAD + AFTER);
    let driven = bench.drive(server, &[with(&[&open[..], &how].concat())])?;
    let seen = Seen::of(&driven.intervals[0], unit_s, knee_per_s);
    let mut sample = driven.sample();
    let values = [
        ("goodput_percent", Some(seen.goodput_percent)),
        ("error_percent", Some(seen.error_percent)),
        ("recovery_s", seen.recovery_s),
        ("knee_per_s", Some(knee_per_s)),
    ];
    let there = values
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)));
    sample.values.extend(there);
    sample.courses.insert(GOODPUT.name.to_owned(), seen.course);
    Ok(sample)
}

/// What the intervals tell.
#[derive(Debug, PartialEq)]
struct Seen {
    /// Good replies in the overload, by the knee.
    goodput_percent: f64,
    /// Of the requests that were sent in the overload.
    error_percent: f64,
    /// From the end of the overload until all is as it was before.
    recovery_s: Option<f64>,
    course: Course,
}

impl Seen {
    fn of(intervals: &[Interval], unit_s: f64, knee_per_s: f64) -> Seen {
        // The last one is a moment, with all the replies that were awaited then.
        let whole = intervals.iter().filter(|one| one.lasts_s > STEP_S / 2.0);
        let intervals: Vec<Interval> = whole.copied().collect();
        let (begin_s, end_s) = (CALM * unit_s, (CALM + OVERLOAD) * unit_s);
        let between = |from_s: f64, to_s: f64| {
            let is_inside =
                move |one: &&Interval| one.begins_s > from_s - 0.01 && one.begins_s < to_s - 0.01;
            intervals.iter().filter(is_inside)
        };
        let overload = || between(begin_s, end_s);
        let sum = |of: fn(&Interval) -> f64| overload().map(of).sum::<f64>();
        let good = sum(|one| one.achieved_per_s * one.lasts_s);
        let sent = sum(|one| one.intended_per_s * one.lasts_s - one.missed as f64);
        let mut calm: Vec<f64> = between(0.0, begin_s).map(|one| one.p99_us).collect();
        calm.sort_by(f64::total_cmp);
        let normal_us = BACK_TO_NORMAL * calm.get(calm.len() / 2).copied().unwrap_or_default();
        let after: Vec<&Interval> = between(end_s, f64::MAX).collect();
        let is_good = |one: &&Interval| one.errors + one.missed == 0 && one.p99_us <= normal_us;
        let back = after
            .windows(GOOD_IN_A_ROW)
            .find(|row| row.iter().all(is_good));
        let by_knee = |rate_per_s: f64| 100.0 * rate_per_s / knee_per_s.max(1e-9);
        Seen {
            goodput_percent: by_knee(good / sum(|one| one.lasts_s).max(1e-9)),
            error_percent: 100.0 * sum(|one| one.errors as f64) / sent.max(1.0),
            recovery_s: back.map(|row| (row[0].begins_s - end_s).max(0.0)),
            course: Course {
                step_s: STEP_S,
                // In the last one come all replies that are still awaited.
                figures: intervals
                    .iter()
                    .filter(|one| one.begins_s < (LASTS - 1.0) * unit_s - 1.5 * STEP_S)
                    .map(|one| by_knee(one.achieved_per_s))
                    .collect(),
            },
        }
    }
}

/// The goals are the same for both kinds of servers.
pub(super) fn expectations(rows: &Rows, ours: &str, others: &[&str]) -> Vec<Expectation> {
    let (goodput, errors) = (rows.by(&GOODPUT), rows.by(&Measure::ERRORS));
    let (p99, recovery) = (rows.by(&Measure::P99), rows.by(&RECOVERY));
    let each = [NO_HERD, HERD].into_iter().flat_map(|cell| {
        let own = [
            goodput.at_least(cell, ours, 95.0),
            recovery.at_most(cell, ours, 1.0),
        ];
        let beside = [
            errors.beats(cell, ours, others, 10.0),
            p99.beats(cell, ours, others, 1.0),
        ];
        own.into_iter().chain(beside.into_iter().flatten())
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tenth of a second, `count` times: asked, good, failed, never sent, p99.
    fn intervals(of: &[(usize, f64, f64, u64, u64, f64)]) -> Vec<Interval> {
        let each = of
            .iter()
            .flat_map(|one| std::iter::repeat_n(one, one.0))
            .enumerate();
        let intervals = each.map(|(at, &(_, asked, good, errors, missed, p99_us))| Interval {
            begins_s: at as f64 * STEP_S,
            lasts_s: STEP_S,
            intended_per_s: asked,
            achieved_per_s: good,
            errors,
            missed,
            p99_us,
        });
        intervals.collect()
    }

    #[test]
    fn the_phases_are_told_apart_and_a_recovery_is_three_good_intervals() {
        // With a sample's time of 0.1 s: 2 intervals of calm, 10 of overload, 5 after it.
        let seen = intervals(&[
            (2, 700.0, 700.0, 0, 0, 1000.0),
            (10, 2000.0, 900.0, 5, 100, 900_000.0),
            (1, 700.0, 1000.0, 0, 0, 900_000.0),
            (1, 700.0, 700.0, 0, 0, 2000.0),
            (1, 700.0, 700.0, 1, 0, 2000.0),
            (3, 700.0, 700.0, 0, 0, 2900.0),
        ]);
        let seen = Seen::of(&seen, 0.1, 1000.0);
        assert_eq!(seen.goodput_percent.round(), 90.0);
        // 200 were asked for in an interval, 100 of them sent.
        assert_eq!(seen.error_percent.round(), 5.0);
        let recovery_s = seen.recovery_s.unwrap();
        assert!((recovery_s - 0.3).abs() < 0.001, "{recovery_s}");
        assert_eq!(seen.course.figures.len(), 16);
        assert_eq!(seen.course.figures[2].round(), 90.0);
    }

    #[test]
    fn a_server_that_stays_slow_has_not_recovered() {
        let seen = intervals(&[
            (2, 700.0, 700.0, 0, 0, 1000.0),
            (10, 2000.0, 900.0, 0, 100, 900_000.0),
            (5, 700.0, 700.0, 0, 0, 3100.0),
        ]);
        assert_eq!(Seen::of(&seen, 0.1, 1000.0).recovery_s, None);
        assert_eq!(Seen::of(&[], 0.1, 1000.0).recovery_s, None);
    }
}
