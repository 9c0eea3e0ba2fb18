//! Generators and their results: `weft load`, and other people's.

use std::fs;
use std::path::PathBuf;

use load::Outcome;
pub(crate) use load::report::IntervalFigures as Interval;
use serde::Deserialize;

use super::fault::{Fault, tail};
use crate::sample::Noise;
use crate::testbed::Launched;

/// A `weft load` that was started.
pub(super) struct Generator {
    pub(super) launched: Launched,
    pub(super) log: PathBuf,
    pub(super) json: PathBuf,
}

impl Generator {
    pub(super) fn outcome(&self) -> Result<(Outcome, Vec<Interval>), Fault> {
        let text = fs::read(&self.json).unwrap_or_default();
        let read = |text| {
            let document: serde_json::Value = serde_json::from_slice(text)?;
            let intervals = Vec::<Interval>::deserialize(&document["intervals"])?;
            Ok::<_, serde_json::Error>((document, intervals))
        };
        let read = read(&text).map_err(|_| format!("the generator: {}", tail(&self.log)));
        let (document, intervals) = read?;
        Ok((Outcome::from_json(document)?, intervals))
    }
}

/// Time that the generator's most delayed thread waited for its core, in percent.
pub(super) fn generator_delay_percent(outcome: &Outcome) -> f64 {
    let threads = &outcome.generator.threads;
    let share = |thread: &load::outcome::ThreadUse| {
        100.0 * thread.run_delay.as_secs_f64() / thread.elapsed.as_secs_f64().max(1e-9)
    };
    threads.iter().map(share).fold(0.0, f64::max)
}

/// Measurement of another project's generator.
pub(crate) struct Watched {
    /// All its output.
    pub(crate) said: String,
    /// Share of its core that it used once under way, from 0 to 1.
    pub(crate) busy: f64,
    /// The server's CPU time from the generator's start to its end, including connects.
    pub(crate) server_s: f64,
    pub(crate) noise: Noise,
}

/// Share of CPU time, without the first fifth, in which connections are opened, and the last tenth.
pub(super) fn busy_in_the_middle(readings: &[(f64, f64)]) -> f64 {
    let count = readings.len();
    let (Some(from), Some(to)) = (readings.get(count / 5), readings.get(count * 9 / 10)) else {
        return 0.0;
    };
    (to.1 - from.1) / (to.0 - from.0).max(1e-9)
}
