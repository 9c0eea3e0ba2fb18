//! Results of load on a server: the generators' outcomes, the server's resource use, and the sample
//! made of both.

use load::Outcome;

use super::fault::Fault;
use super::generator::Interval;
use super::window::Window;
use crate::sample::{COSTS, LASTED_S, LATENCIES, Noise, Sample};

/// Outcomes of the generators and readings of the meters.
pub(crate) struct Driven {
    pub(crate) outcomes: Vec<Outcome>,
    /// Intervals of each generator.
    pub(crate) intervals: Vec<Vec<Interval>>,
    pub(super) window: Window,
    pub(super) noise: Noise,
}

impl Driven {
    /// Bytes that the server read from the disk during the measurement.
    pub(crate) fn disk_read_bytes(&self) -> f64 {
        self.window.disk_read_bytes
    }

    /// Number of those reads; 0 if no control group counts them.
    pub(crate) fn disk_reads(&self) -> f64 {
        self.window.disk_reads
    }

    /// Merges the outcomes of all generators into one.
    pub(super) fn merged(mut self) -> Result<Driven, Fault> {
        let mut outcomes = self.outcomes.drain(..);
        let mut whole = outcomes.next().ok_or("there was no generator")?;
        for outcome in outcomes {
            whole.merge(&outcome)?;
        }
        Ok(Driven { outcomes: vec![whole], ..self })
    }

    /// Returns a fault after any error: then the figures are not of the requested work.
    pub(crate) fn sound(self) -> Result<Driven, Fault> {
        let all_answered = self.outcomes.iter().all(|one| one.total.replies() > 0);
        let driven = self.without_errors()?;
        if all_answered { Ok(driven) } else { Err("no request was answered".into()) }
    }

    /// Returns a fault after any error, but allows that no reply is complete yet.
    pub(crate) fn without_errors(self) -> Result<Driven, Fault> {
        for outcome in &self.outcomes {
            let errors = outcome.total.errors;
            if errors.total() > 0 {
                let named = errors.named().into_iter().filter(|(_, count)| *count > 0);
                let named = named.map(|(name, count)| format!("{count} {name}"));
                return Err(named.collect::<Vec<_>>().join(", ").into());
            }
        }
        Ok(self)
    }

    /// Figures that every experiment with a server has.
    pub(crate) fn sample(&self) -> Sample {
        let outcome = &self.outcomes[0];
        let seconds = outcome.elapsed.as_secs_f64().max(1e-9);
        let rates = self.outcomes.iter().map(Outcome::achieved_rate_per_s);
        let rate: f64 = rates.sum();
        let figures = load::report::figures(outcome);
        let latency = figures.latency_us.intended;
        let asked = figures.counts.intended.max(figures.counts.sent).max(1);
        let failed = (figures.errors["total"] + figures.counts.missed).min(asked);
        let replies = (rate * seconds).max(1.0);
        let bytes = self.outcomes.iter().map(|one| one.total.received_bytes);
        let bytes: u64 = bytes.sum();
        let is_limited = u8::from(figures.generator_limited);
        let figures = [
            (LASTED_S, seconds),
            ("cpu_us", self.window.cpu_s * 1e6 / replies),
            ("machine_us", self.window.machine_s * 1e6 / replies),
            ("gbit_per_s", bytes as f64 * 8e-9 / seconds),
            ("rate_per_s", rate),
            ("busy_percent", 100.0 * self.window.cpu_s / seconds),
            ("p50_us", latency.p50),
            ("p99_us", latency.p99),
            ("p99.9_us", latency.p99_9),
            ("mean_us", latency.mean),
            ("error_percent", 100.0 * failed as f64 / asked as f64),
            ("generator_cpu_us", figures.generator.cpu_us_per_reply),
            ("generator_limited", f64::from(is_limited)),
            ("lag_p99_us", figures.lag_us.p99),
        ];
        let mut sample = Sample { noise: self.noise, ..Sample::of(figures) };
        // A latency of 0 would be the best. Latencies are the first generator's.
        let mut without: Vec<&str> = Vec::new();
        if outcome.total.replies() == 0 {
            without.extend(LATENCIES);
        }
        if self.outcomes.iter().all(|one| one.total.replies() == 0) {
            without.extend(COSTS);
        }
        for name in without {
            sample.values.remove(name);
        }
        let [user, kernel] = self.window.ticks;
        if user + kernel > 0.0 {
            sample.add([("user_percent", 100.0 * user / (user + kernel))]);
        }
        sample
    }
}
