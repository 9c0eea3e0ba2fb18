//! Overload: twice a server's capacity for a while, and back. The same for web servers and caches.
//!
//! ```text
//!   asked    ┌── 2 × the knee ──┐
//!            │                  │
//!   ─ 0.5 × ─┘                  └─ 0.5 × the knee ─
//!     calm        overload          after
//! ```

use crate::bench::{Driven, Interval};
use crate::catalog::prelude::*;
use crate::expect::{Expectation, Judgement, SAME};
use crate::numbers::Spread;
use crate::sample::Course;
use crate::testbed::CPU_PERIOD_US;

pub(super) const MEASURES: &[Measure] =
    &[GOODPUT, Measure::ERRORS, Measure::P99, RECOVERY, KNEE, GOOD];

pub(super) const FIGURES: &[Figure] = &[
    Figure::Course {
        measure: 0,
        panels: "idle",
        marks: &[(CALM, "twice the knee"), (CALM + OVERLOAD, "half the knee")],
    },
    bars(0),
    bars(1),
    bars(2),
    bars(3),
];

const GOODPUT: Measure = more("goodput_percent", "good replies under overload", "% of the knee");
/// Recovery time; none if the server did not recover while it was watched.
const RECOVERY: Measure =
    Measure { can_be_never: true, ..less("recovery_s", "recovery after the overload", "s") };
const KNEE: Measure = Measure { is_told: true, ..more("knee_per_s", "the knee", "per second") };
/// Goodput as a rate, for comparison of servers, since each has its own knee.
const GOOD: Measure = Measure {
    name: "good_per_s",
    title: GOODPUT.title,
    of: Some(|_, values| Some(values.get(GOODPUT.name)? * values.get(KNEE.name)? / 100.0)),
    ..KNEE
};

/// Limit to a part of a core, so that the generator, with a whole one, can offer twice as much.
pub(super) const LIMITS: ServerLimits = ServerLimits {
    has_both_cores: false,
    memory_bytes: None,
    cpu_percent: Some(25),
    disk_reads_per_s: None,
    signals: None,
};

/// Requests in flight at most. Further requests find no connection, and are not sent.
const CONNECTIONS: u32 = 2000;

/// Lengths of the phases, in samples' times. The closed loop's warm-up is as long as the loop.
const CLOSED: f64 = 0.5;
const RISE: f64 = 6.0;
/// Seen: with 6,000 idle connections the p99 of lighttpd's calm was half a second, so that any p99
/// after the overload counted as recovered. Cause: idle connections are open once the kernel has
/// them; the server had still to accept them, and to close those of the load before. Cure: the
/// calm begins after that.
const SETTLE: f64 = 1.0;
const CALM: f64 = 2.0;
const OVERLOAD: f64 = 10.0;
const AFTER: f64 = 6.0;
/// Length of all phases together.
const LASTS: f64 = 2.0 * CLOSED + RISE + SETTLE + CALM + OVERLOAD + AFTER;
/// Shortest time of a sample: the calm then has four steps, and the end twelve.
const SECONDS_MIN: f64 = 0.4;
/// Shares of a closed loop's rate between which the knee is searched. A closed loop at a slow
/// moment reaches two thirds of the capacity; even then, half of the rise is above the capacity.
const RISE_SHARES: [f64; 2] = [0.5, 3.0];
/// Share of the knee in the calm.
///
/// Seen: with 0.7, recoveries of 1.6 and 2.4 s and "never" in samples of the same server. Cause:
/// when the load falls, all [`CONNECTIONS`] have a request in flight. A server with 0.9 of its
/// knee at that moment has 0.2 of it left to work them off, one with 0.75 has 0.05: the recovery
/// measured the goodput again, with its noise multiplied. Cure: half the knee, which leaves 0.4 and
/// 0.25.
const CALM_SHARE: f64 = 0.5;
const OVERLOAD_SHARE: f64 = 2.0;

/// The generator's interval: long enough for a p99 of a thousand requests, and for ten periods of
/// the quota.
const STEP_S: f64 = 0.2;
const STEP: &str = "200ms";
/// The knee is the rate that is sustained for this part of the rise. The best of many short parts
/// is above it: of thirds, by 4 % on average and up to 14 % in the overloads of 2026-11-23; of
/// halves, by 1.6 and up to 7.
const KNEE_SHARE: f64 = 0.5;
/// Number of good steps in a row that begin a recovery.
const GOOD_IN_A_ROW: usize = 3;
/// Fraction of all later steps that may be bad: a virtual machine stalls now and then.
const STALLS_ONE_IN: usize = 8;
/// Factor above which a p99 counts as not recovered.
const BACK_TO_NORMAL: f64 = 3.0;
/// Minimum of a calm's p99. The quota stops a server for most of each period, so that a request
/// that just misses one waits for the next; a lower p99 is luck.
const CALM_P99_MIN_US: f64 = CPU_PERIOD_US as f64;

const NO_HERD: &str = "no idle connections";
const HERD: &str = "6,000 idle connections";

pub(super) fn configurations(breadth: &Breadth) -> Vec<Configuration> {
    let configurations = [(NO_HERD, 0), (HERD, 6000)];
    let configurations = breadth.pick(&configurations[..1], &configurations).iter();
    configurations
        .map(|&(label, idle)| Configuration::new(label, "overload", [("idle", idle)]))
        .collect()
}

/// The work of an overload, for web servers and caches alike; `take` starts the server.
pub(super) const fn work(take: crate::experiment::Take) -> Work {
    Work::Server(ServerWork {
        lasts: LASTS,
        seconds_min: SECONDS_MIN,
        quick_repetitions: 2,
        full_seconds: SECONDS_MIN,
        paper_seconds: 3.0,
        skips,
        needs_group: Some(Controller::Cpu),
        queues_by_itself: true,
        ..ServerWork::new(take)
    })
}

/// Skips forms on epoll and ceilings with idle connections, for which there are no expectations.
fn skips(configuration: &Configuration, kind: &str) -> bool {
    configuration.get("idle", 0) > 0 && (kind.contains("epoll") || kind.starts_with("ceiling"))
}

/// Finds the server's knee, and then overloads it. `common` has the arguments of all loads.
pub(super) fn take(
    bench: &mut Bench<'_>,
    configuration: &Configuration,
    server: &mut Running,
    common: &[String],
) -> Taken {
    let unit_s = bench.seconds;
    let closed = words(&format!("-c 256 --warm-up {:.0}ms", CLOSED * unit_s * 1e3));
    let closed = [common, &closed].concat();
    bench.seconds = CLOSED * unit_s;
    let closed = bench.drive(server, &[closed])?.sound()?;
    let [from, to] = RISE_SHARES.map(|share| share * closed.outcomes[0].achieved_rate_per_s());
    let rise = [(format!("{from:.0}..{to:.0}"), RISE * unit_s)];
    let rising = ask(bench, configuration, server, common, 0.0, &rise)?;
    let knee_per_s = knee_per_s(&rising.intervals[0]);
    // The generator's warm-up has whole intervals.
    let settle_s = (SETTLE * unit_s / STEP_S).round().max(1.0) * STEP_S;
    let phases = [
        (CALM_SHARE, settle_s + CALM * unit_s),
        (OVERLOAD_SHARE, OVERLOAD * unit_s),
        (CALM_SHARE, AFTER * unit_s),
    ];
    let phases =
        phases.map(|(share, lasts_s)| (format!("{:.0}", (knee_per_s * share).max(1.0)), lasts_s));
    let driven = ask(bench, configuration, server, common, settle_s, &phases)?;
    let seen = Seen::of(&driven.intervals[0], unit_s, knee_per_s);
    let mut sample = driven.sample();
    sample.add([
        ("goodput_percent", seen.goodput_percent),
        ("error_percent", seen.error_percent),
        ("knee_per_s", knee_per_s),
    ]);
    sample.add(seen.recovery_s.map(|recovery_s| ("recovery_s", recovery_s)));
    let courses = [(GOODPUT.name, seen.course), (Measure::P99.name, seen.p99_us)];
    let courses = courses.map(|(name, course)| (name.to_owned(), course));
    sample.courses.extend(courses);
    Ok(sample)
}

/// Runs an open loop with these phases: rates, and their lengths in seconds. The first `settle_s`
/// count in no figure.
fn ask(
    bench: &mut Bench<'_>,
    configuration: &Configuration,
    server: &mut Running,
    common: &[String],
    settle_s: f64,
    phases: &[(String, f64)],
) -> Result<Driven, Fault> {
    let course = phases.iter().map(|(rate, lasts_s)| format!("{rate}:{:.0}ms", lasts_s * 1e3));
    let course = course.collect::<Vec<_>>().join(",");
    let open = words(&format!(
        "-c {CONNECTIONS} --course {course} --warm-up {:.0}ms --interval {STEP} \
         --arrivals poisson --timeout 1s --backlog 1 --idle {}",
        settle_s * 1e3,
        configuration.get("idle", 0)
    ));
    // The load lasts as long as its phases.
    bench.seconds = phases.iter().map(|(_, lasts_s)| lasts_s).sum::<f64>() - settle_s;
    bench.drive(server, &[[common, &open].concat()])
}

/// Removes the last interval, which is short and has all replies that were awaited at the end.
fn whole(intervals: &[Interval]) -> Vec<Interval> {
    let is_whole = |one: &&Interval| one.lasts_s > STEP_S / 2.0;
    intervals.iter().filter(is_whole).copied().collect()
}

/// Highest rate of good replies that is sustained for a while as the offered rate rises, over the
/// connections of the overload. A closed loop over fewer would not do: the fewer connections, the
/// less a reply costs. A short moment would not do either: the best half second is above the
/// sustainable rate, and half of that would be no calm.
fn knee_per_s(rising: &[Interval]) -> f64 {
    let rising = whole(rising);
    let steps = (rising.len() as f64 * KNEE_SHARE).ceil().max(1.0);
    let mean = |steps: &[Interval]| {
        steps.iter().map(|one| one.achieved_per_s).sum::<f64>() / steps.len() as f64
    };
    rising.windows(steps as usize).map(mean).fold(0.0, f64::max)
}

/// Figures read from the intervals.
#[derive(Debug, PartialEq)]
struct Seen {
    /// Good replies in the overload, in percent of the knee.
    goodput_percent: f64,
    /// Failed requests, in percent of those sent in the overload.
    error_percent: f64,
    /// Time from the end of the overload to recovery.
    recovery_s: Option<f64>,
    /// Good replies over time, in percent of the knee.
    course: Course,
    p99_us: Course,
}

impl Seen {
    fn of(intervals: &[Interval], unit_s: f64, knee_per_s: f64) -> Seen {
        let intervals = whole(intervals);
        let begin_s = CALM * unit_s;
        let end_s = (CALM + OVERLOAD) * unit_s;
        let between = |from_s: f64, to_s: f64| -> Vec<Interval> {
            let is_inside = |one: &&Interval| {
                one.begins_s > from_s - 0.01 && one.begins_s + one.lasts_s < to_s + 0.01
            };
            intervals.iter().filter(is_inside).copied().collect()
        };
        let overload = between(begin_s, end_s);
        let sum = |of: fn(&Interval) -> f64| overload.iter().map(of).sum::<f64>();
        let good = sum(|one| one.achieved_per_s * one.lasts_s);
        let sent = sum(|one| one.intended_per_s * one.lasts_s - one.missed as f64);
        let recovered = recovered(&between(0.0, begin_s), &between(end_s, f64::MAX));
        let by_knee = |rate_per_s: f64| 100.0 * rate_per_s / knee_per_s.max(1e-9);
        let course = |of: &dyn Fn(&Interval) -> f64| Course {
            step_s: STEP_S,
            // The last interval has all replies that are still awaited.
            figures: intervals
                .iter()
                .filter(|one| one.begins_s < (CALM + OVERLOAD + AFTER) * unit_s - 1.5 * STEP_S)
                .map(of)
                .collect(),
        };
        Seen {
            goodput_percent: by_knee(good / sum(|one| one.lasts_s).max(1e-9)),
            error_percent: 100.0 * sum(|one| one.errors as f64) / sent.max(1.0),
            recovery_s: recovered.map(|begins_s| (begins_s - end_s).max(0.0)),
            course: course(&|one| by_knee(one.achieved_per_s)),
            p99_us: course(&|one| one.p99_us),
        }
    }
}

/// Start of the first interval from which on all is as in the calm: replies arrive, none fails,
/// every request finds a connection, and the p99 is not far above the calm's median. The first
/// intervals must all be so; of later ones, some may be stalls.
fn recovered(calm: &[Interval], after: &[Interval]) -> Option<f64> {
    let calm = Spread::of(calm.iter().map(|one| one.p99_us).collect())?;
    let p99_max_us = BACK_TO_NORMAL * calm.median.max(CALM_P99_MIN_US);
    let is_good = |one: &Interval| {
        one.achieved_per_s > 0.0 && one.errors + one.missed == 0 && one.p99_us <= p99_max_us
    };
    let lasts = |rest: &&[Interval]| {
        let stalls = rest.iter().filter(|one| !is_good(one)).count();
        let begins = rest.get(..GOOD_IN_A_ROW);
        begins.is_some_and(|begins| begins.iter().all(is_good))
            && stalls * STALLS_ONE_IN <= rest.len()
    };
    let mut from = (0..after.len()).map(|at| &after[at..]);
    from.find(lasts).map(|rest| rest[0].begins_s)
}

/// Goals, the same for both kinds of servers.
pub(super) fn expectations(rows: &Rows, ours: &str, others: &[&str]) -> Expectations {
    let errors = rows.by(&Measure::ERRORS);
    let p99 = rows.by(&Measure::P99);
    let recovery = rows.by(&RECOVERY);
    let goodput = rows.by(&GOODPUT);
    let all = [&[ours], others].concat();
    let each = [NO_HERD, HERD].map(|label| {
        [
            if_overloaded(rows, label, &[ours], goodput.at_least(label, ours, 95.0)),
            if_overloaded(rows, label, &[ours], recovery.at_most(label, ours, 1.0)),
            if_overloaded(rows, label, &all, errors.beats(label, ours, others, 10.0)),
            if_overloaded(rows, label, &all, p99.beats(label, ours, others, 1.0)),
        ]
    });
    each.into_iter().flatten().collect()
}

/// Restricts an expectation to servers that were overloaded. A server whose goodput exceeds its
/// knee was offered too little, so the figures say nothing.
fn if_overloaded(
    rows: &Rows,
    configuration: &str,
    systems: &[&str],
    made: Option<Expectation>,
) -> Option<Expectation> {
    let made = made?;
    let most = 100.0 * (1.0 + SAME);
    let mut spreads =
        systems.iter().filter_map(|system| rows.spread(&GOODPUT, configuration, system));
    if spreads.any(|spread| spread.median > most) {
        Some(Expectation {
            verdict: Judgement::NotMeasured,
            because: made.because + ": the knee was found too low",
            ..made
        })
    } else {
        Some(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` intervals: offered, good, failed, never sent, p99.
    type Of = (usize, f64, f64, u64, u64, f64);

    fn intervals(of: &[Of]) -> Vec<Interval> {
        let each = of.iter().flat_map(|one| std::iter::repeat_n(one, one.0)).enumerate();
        let intervals = each.map(|(at, &(_, asked, good, errors, missed, p99_us))| Interval {
            begins_s: at as f64 * STEP_S,
            lasts_s: STEP_S,
            intended_per_s: asked,
            achieved_per_s: good,
            errors,
            missed,
            p99_us,
            ..Interval::default()
        });
        intervals.collect()
    }

    const CALMS: Of = (4, 500.0, 500.0, 0, 0, 30_000.0);
    const OVERLOADS: Of = (20, 2000.0, 900.0, 10, 200, 900_000.0);
    const GOOD: Of = (1, 500.0, 500.0, 0, 0, 89_000.0);
    const SLOW: Of = (1, 500.0, 500.0, 0, 0, 91_000.0);
    /// A sample's time of two steps, as in a quick look: 4 steps of calm, 20 of overload.
    const UNIT_S: f64 = 2.0 * STEP_S;

    /// A calm, an overload, then these intervals.
    fn seen(after: &[Of]) -> Seen {
        let all = intervals(&[&[CALMS, OVERLOADS], after].concat());
        Seen::of(&all, UNIT_S, 1000.0)
    }

    /// Number of steps until recovery.
    fn steps(seen: &Seen) -> Option<u32> {
        seen.recovery_s.map(|s| (s / STEP_S).round() as u32)
    }

    fn recovery(after: &[Of]) -> Option<u32> {
        steps(&seen(after))
    }

    fn times(count: usize, one: Of) -> Of {
        (count, one.1, one.2, one.3, one.4, one.5)
    }

    #[test]
    fn the_phases_are_told_apart() {
        let seen = seen(&[times(6, GOOD)]);
        assert_eq!(seen.goodput_percent.round(), 90.0);
        // An interval offered 400 requests, 200 of which were sent.
        assert_eq!(seen.error_percent.round(), 5.0);
        assert_eq!(seen.course.figures.len(), 30);
        assert_eq!(seen.course.figures[4].round(), 90.0);
        assert_eq!(seen.p99_us.figures[4], 900_000.0);
    }

    #[test]
    fn kinds_of_recovery() {
        assert_eq!(recovery(&[times(6, GOOD)]), Some(0));
        let late = [times(2, SLOW), times(4, GOOD)];
        assert_eq!(recovery(&late), Some(2));
        assert_eq!(recovery(&[times(6, SLOW)]), None);
        let silent = (6, 500.0, 0.0, 0, 0, 0.0);
        assert_eq!(recovery(&[silent]), None);
        let failing = (6, 500.0, 500.0, 1, 0, 1000.0);
        assert_eq!(recovery(&[failing]), None);
        let crowded = (6, 500.0, 500.0, 0, 1, 1000.0);
        assert_eq!(recovery(&[crowded]), None);
        assert_eq!(recovery(&[times(2, GOOD)]), None, "too short to tell");
        assert_eq!(Seen::of(&[], UNIT_S, 1000.0).recovery_s, None);
    }

    /// Seen: of two servers the one with the shorter p99 after the overload did not recover. Cause:
    /// its p99 before was even shorter, less than half a period of the quota. Cure: a p99 counts as
    /// at least one period.
    #[test]
    fn a_lucky_calm_does_not_decide() {
        let period_us = CPU_PERIOD_US as f64;
        let after = |p99_us: f64| {
            let mut all = intervals(&[CALMS, OVERLOADS, (6, 500.0, 500.0, 0, 0, p99_us)]);
            all[..4].iter_mut().for_each(|calm| calm.p99_us = 1000.0);
            steps(&Seen::of(&all, UNIT_S, 1000.0))
        };
        assert_eq!(after(2.9 * period_us), Some(0));
        assert_eq!(after(3.1 * period_us), None);
    }

    /// With a calm of 0.7 it would take 2.2 s, and with a goodput of 70 % for ever.
    #[test]
    fn recovery_within_a_second() {
        let knee_per_s = 9000.0;
        let kept = 0.8;
        let backlog_s = f64::from(CONNECTIONS) / (knee_per_s * (kept - CALM_SHARE));
        assert!(backlog_s < 1.0, "{backlog_s} s");
    }

    #[test]
    fn a_lull_is_no_recovery() {
        let lull = [times(3, GOOD), times(3, SLOW), times(3, GOOD)];
        assert_eq!(recovery(&lull), Some(6));
        let swings = [times(3, GOOD), times(2, SLOW)];
        assert_eq!(recovery(&[swings, swings, swings].concat()), None);
    }

    /// Seen: "recovery never" of servers that had recovered, nginx and ours. Cause: the p99 of a
    /// calm of a third of a second, in intervals of 100 ms. Cure: longer ones, and no single
    /// interval of the calm or after it decides.
    #[test]
    fn machine_stall_is_ignored() {
        let stall = times(1, (1, 500.0, 500.0, 0, 0, 900_000.0));
        let stalled = [times(1, SLOW), times(4, GOOD), stall, times(3, GOOD)];
        assert_eq!(recovery(&stalled), Some(1));
        for calm_us in [1.0, 900_000.0] {
            let mut all = intervals(&[CALMS, OVERLOADS, times(1, SLOW), times(5, GOOD)]);
            all[1].p99_us = calm_us;
            assert_eq!(steps(&Seen::of(&all, UNIT_S, 1000.0)), Some(1));
        }
    }

    /// Seen: "as expected: good replies of at least 95 % of the knee (113 %)", of the server with
    /// the lowest knee. Cause: the rise was too short for it. Cure: goodput above the knee is not
    /// judged, and knees and replies are shown beside it.
    #[test]
    fn more_than_the_knee_is_no_praise() {
        let configurations = configurations(&Breadth { quick: true, peak_per_s: None, cores: 2 });
        let judged = |goodput_percent: f64| {
            let mut rows = Rows::new(&configurations, &["weft".to_owned()]);
            let figures = [(GOODPUT.name, goodput_percent), (KNEE.name, 9000.0)];
            let row = rows.find_mut(NO_HERD, "weft").unwrap();
            row.samples.push(Sample::of(figures));
            let good = rows.spread(&super::GOOD, NO_HERD, "weft").unwrap().median;
            let made = expectations(&rows, "weft", &[]);
            let made: Vec<_> = made.into_iter().flatten().collect();
            let voided = made.iter().filter(|one| one.because.ends_with("too low"));
            let voided = voided.count();
            let first = &made[0];
            (first.verdict, voided > 1, first.because.clone(), good.round())
        };
        let met = (Judgement::Met, false, "107 % of the knee".to_owned(), 9630.0);
        assert_eq!(judged(107.0), met);
        assert_eq!(judged(80.0).0, Judgement::Failed);
        let why = "113 % of the knee: the knee was found too low".to_owned();
        assert_eq!(judged(113.0), (Judgement::NotMeasured, true, why, 10_170.0));
    }

    /// Seen: a cache on a ring kept 63 % of its knee under overload. Cause: the knee was found over
    /// 256 connections, in a third of a second, and the overload used 2,000. Cure: the knee is the
    /// highest rate over those 2,000 while the offered rate rises.  Seen: no server recovered,
    /// neither bare ones nor nginx nor ours. Cause: the knee was the best 0.6 s of the rise, a
    /// third above the sustainable rate. Cure: longer parts of the rise, first a third, then a
    /// half.
    #[test]
    fn knee_of_a_rising_rate() {
        let rising = |good: &[f64]| {
            let each = good.iter().map(|&good| (1, 2.0 * good, good, 0, 0, 1.0));
            knee_per_s(&intervals(&each.collect::<Vec<_>>()))
        };
        let stall_and_burst = [500.0, 700.0, 900.0, 1000.0, 400.0, 1600.0, 900.0, 1100.0, 900.0];
        assert_eq!(rising(&stall_and_burst), 1000.0);
        assert_eq!(rising(&[500.0, 800.0, 1000.0, 900.0, 700.0, 600.0]), 900.0);
        assert_eq!(rising(&[700.0]), 700.0);
        assert_eq!(rising(&[]), 0.0);
    }
}
