//! Arrival times, computed ahead from the rate alone.

use std::time::Duration;

use crate::plan::{Arrivals, Stage};
use crate::random::Random;

/// Endless sequence of times in nanoseconds from the start of the run, in rising order.
///
/// The times are the inverse of the integrated rate: arrival n is when the integral reaches mark n.
/// Marks are one apart, or exponential gaps apart; the latter makes a Poisson process even if the
/// rate changes. No clock is read, so a late request does not delay the next ones.
pub(crate) struct Schedule {
    stages: Vec<Stage>,
    random: Option<Random>,
    /// This thread's share of all arrivals.
    share: f64,
    /// Next mark, in arrivals of this thread, counted from the start of the run.
    mark: f64,
    stage: usize,
    stage_begins_s: f64,
    stage_begins_mark: f64,
}

impl Schedule {
    /// Creates the schedule of one of several threads; `None` for a closed loop.
    pub(crate) fn new(
        arrivals: &Arrivals,
        thread: u32,
        threads: u32,
        seed: u64,
    ) -> Option<Schedule> {
        let (stages, is_poisson) = match arrivals {
            Arrivals::Closed => return None,
            Arrivals::Fixed { rate_per_s } => (vec![constant(*rate_per_s)], false),
            Arrivals::Poisson { rate_per_s } => (vec![constant(*rate_per_s)], true),
            Arrivals::Course { stages, poisson } => (stages.clone(), *poisson),
        };
        let mut random = is_poisson.then(|| Random::stream(seed, u64::from(thread)));
        let mark = match &mut random {
            // The threads' regular arrivals interleave: together they are regular again.
            None => f64::from(thread) / f64::from(threads),
            Some(random) => exponential(random),
        };
        Some(Schedule {
            stages,
            random,
            share: 1.0 / f64::from(threads),
            mark,
            stage: 0,
            stage_begins_s: 0.0,
            stage_begins_mark: 0.0,
        })
    }

    /// Returns the next time; `None` if the rate has reached 0 for good.
    pub(crate) fn next_ns(&mut self) -> Option<u64> {
        loop {
            let stage = self.stages.get(self.stage)?;
            let lasts_s = stage.lasts.as_secs_f64();
            let ahead = (self.mark - self.stage_begins_mark) / self.share;
            let is_last = self.stage + 1 == self.stages.len();
            if let Some(after_s) = time_of(stage, ahead).filter(|&s| is_last || s < lasts_s) {
                self.mark += self.random.as_mut().map_or(1.0, exponential);
                return Some(((self.stage_begins_s + after_s) * 1e9).round() as u64);
            }
            if is_last {
                return None;
            }
            self.stage_begins_s += lasts_s;
            self.stage_begins_mark += integral(stage) * self.share;
            self.stage += 1;
        }
    }
}

/// Mean number of arrivals between two times, over all threads.
pub(crate) fn expected(arrivals: &Arrivals, from: Duration, to: Duration) -> Option<f64> {
    let stages = match arrivals {
        Arrivals::Closed => return None,
        Arrivals::Fixed { rate_per_s } | Arrivals::Poisson { rate_per_s } => {
            vec![constant(*rate_per_s)]
        }
        Arrivals::Course { stages, .. } => stages.clone(),
    };
    Some(until(&stages, to.as_secs_f64()) - until(&stages, from.as_secs_f64()))
}

fn until(stages: &[Stage], mut at_s: f64) -> f64 {
    let mut sum = 0.0;
    for (index, stage) in stages.iter().enumerate() {
        let lasts_s = stage.lasts.as_secs_f64();
        let is_last = index + 1 == stages.len();
        let inside_s = at_s.min(lasts_s);
        let slope = (stage.to_per_s - stage.from_per_s) / lasts_s.max(1e-9);
        sum += stage.from_per_s * inside_s + slope * inside_s * inside_s / 2.0;
        at_s -= inside_s;
        if is_last {
            sum += stage.to_per_s * at_s;
        }
    }
    sum
}

fn constant(rate_per_s: f64) -> Stage {
    Stage { lasts: Duration::from_secs(1), from_per_s: rate_per_s, to_per_s: rate_per_s }
}

fn integral(stage: &Stage) -> f64 {
    (stage.from_per_s + stage.to_per_s) / 2.0 * stage.lasts.as_secs_f64()
}

/// Time after the start of a stage at which the integral of the rate reaches `ahead`. The stage is
/// extended at its last rate.
fn time_of(stage: &Stage, ahead: f64) -> Option<f64> {
    let (from, to, lasts_s) = (stage.from_per_s, stage.to_per_s, stage.lasts.as_secs_f64());
    let whole = integral(stage);
    if ahead > whole || from == to {
        return (to > 0.0).then(|| lasts_s + (ahead - whole) / to);
    }
    // from·t + slope/2·t² = ahead, written so that it is exact for small slopes.
    let slope = (to - from) / lasts_s;
    let root = (from * from + 2.0 * slope * ahead).max(0.0).sqrt();
    if from + root > 0.0 { Some(2.0 * ahead / (from + root)) } else { Some(0.0) }
}

fn exponential(random: &mut Random) -> f64 {
    -random.unit_above_zero().ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::distribution::tests::goodness_of_fit::{chi_squared, kolmogorov_smirnov};

    fn times_s(arrivals: &Arrivals, thread: u32, threads: u32, count: usize) -> Vec<f64> {
        let mut schedule = Schedule::new(arrivals, thread, threads, 7).unwrap();
        let next = std::iter::from_fn(|| schedule.next_ns());
        next.take(count).map(|ns| ns as f64 / 1e9).collect()
    }

    #[test]
    fn fixed_arrivals_do_not_drift() {
        let arrivals = Arrivals::Fixed { rate_per_s: 30_000.0 };
        let times = times_s(&arrivals, 0, 1, 3_000_001);
        assert!((times[3_000_000] - 100.0).abs() < 1e-6, "{}", times[3_000_000]);
        assert!((times[1] - 1.0 / 30_000.0).abs() < 1e-8);
    }

    #[test]
    fn arrivals_of_threads_interleave() {
        let arrivals = Arrivals::Fixed { rate_per_s: 100.0 };
        let mut all: Vec<f64> =
            (0..4).flat_map(|thread| times_s(&arrivals, thread, 4, 25)).collect();
        all.sort_by(f64::total_cmp);
        assert_eq!(all.len(), 100);
        for (index, time) in all.iter().enumerate() {
            assert!((time - index as f64 / 100.0).abs() < 1e-6, "{index}: {time}");
        }
    }

    #[test]
    fn poisson_gaps_are_exponential() {
        let times = times_s(&Arrivals::Poisson { rate_per_s: 1000.0 }, 0, 1, 100_001);
        let mut gaps: Vec<f64> =
            times.windows(2).map(|pair| (pair[1] - pair[0]) * 1000.0).collect();
        gaps.sort_by(f64::total_cmp);
        // Kolmogorov and Smirnov: the largest distance to 1 - e^-x. It exceeds 1.63/√n for 1 % of
        // all seeds, and not for this one.
        let n = gaps.len() as f64;
        let distance = gaps.iter().enumerate().map(|(index, gap)| {
            let law = 1.0 - (-gap).exp();
            (law - index as f64 / n).abs().max((law - (index + 1) as f64 / n).abs())
        });
        let largest = distance.fold(0.0, f64::max);
        assert!(largest < 1.63 / n.sqrt(), "{largest}");
    }

    #[test]
    fn poisson_threads_sum_to_poisson() {
        let arrivals = Arrivals::Poisson { rate_per_s: 1000.0 };
        let threads = (0..4).flat_map(|thread| times_s(&arrivals, thread, 4, 26_000));
        let mut all: Vec<f64> = threads.filter(|time| *time < 100.0).collect();
        all.sort_by(f64::total_cmp);
        let gaps = all.windows(2).map(|pair| (pair[1] - pair[0]) * 1000.0).collect();
        let fit = kolmogorov_smirnov(gaps, |gap| 1.0 - (-gap).exp());
        assert!(fit < 1.0, "gaps: {fit:.2} times the distance that is allowed");
        // Independent of each other: no tenth of the time has too many or too few.
        let mut counts = [0_u64; 10];
        all.iter().for_each(|time| counts[(time / 10.0) as usize] += 1);
        let fit = chi_squared(&counts, &[0.1; 10]);
        assert!(fit < 1.0, "counts: {fit:.2} times what is allowed");
    }

    #[test]
    fn course_ramps_steps_and_continues() {
        let stage = |lasts_s, from_per_s, to_per_s| Stage {
            lasts: Duration::from_secs(lasts_s),
            from_per_s,
            to_per_s,
        };
        let stages = vec![stage(10, 0.0, 100.0), stage(10, 50.0, 50.0), stage(1, 10.0, 10.0)];
        let arrivals = Arrivals::Course { stages, poisson: false };
        let times = times_s(&arrivals, 0, 1, 1100);
        let between = |from: f64, to: f64| times.iter().filter(|&&t| t >= from && t < to).count();
        // Rounded to nanoseconds, an arrival at a border may lie on either side.
        assert!(between(0.0, 5.0).abs_diff(125) <= 1, "{}", between(0.0, 5.0));
        assert!(between(0.0, 10.0).abs_diff(500) <= 1);
        assert!(between(10.0, 20.0).abs_diff(500) <= 1);
        assert!(between(20.0, 25.0).abs_diff(50) <= 1);
        let mean = |from, to| {
            expected(&arrivals, Duration::from_secs(from), Duration::from_secs(to)).unwrap()
        };
        assert_eq!([mean(0, 5), mean(5, 15), mean(20, 25)], [125.0, 625.0, 50.0]);
    }

    #[test]
    fn a_rate_that_ends_at_nothing_ends() {
        let stages = vec![Stage { lasts: Duration::from_secs(2), from_per_s: 10.0, to_per_s: 0.0 }];
        let times = times_s(&Arrivals::Course { stages, poisson: false }, 0, 1, 100);
        assert!(times.len() == 10 || times.len() == 11, "{}", times.len());
    }
}
