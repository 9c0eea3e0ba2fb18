//! `rt-memory`: parked fibers: the memory of each, and the time to start and end them all.

use super::BARS;
use crate::catalog::prelude::*;

pub(in crate::catalog) const MEMORY: Experiment = Experiment {
    name: "rt-memory",
    about: "resident memory of a parked fiber",
    page: page!("rt-memory"),
    measures: &[Measure::BYTES_PER_THREAD, START, END, VIRTUAL],
    configurations,
    systems: &["pinned", "stackless", "go", "tokio", "may"],
    work: Work::Program,
    figures: BARS,
    expectations,
};

fn configurations(breadth: &Breadth) -> Vec<Configuration> {
    let configurations = breadth.pick(&COUNTS[..1], &COUNTS).iter();
    configurations
        .map(|&(label, count)| {
            Configuration::new(label, "memory", [("processors", 1), ("threads", count)])
        })
        .collect()
}

const COUNTS: [(&str, u64); 3] =
    [("10,000 fibers", 10_000), ("100,000 fibers", 100_000), (MILLION, 1_000_000)];
const MILLION: &str = "1,000,000 fibers";

/// Time to start all fibers.
const START: Measure = Measure {
    of: Some(|_, values| values.get("seconds").copied()),
    ..operation("start_s", "time to start all", "s")
};
/// Time to end all fibers.
const END: Measure = Measure { is_told: true, ..less("end_seconds", "time to end all", "s") };
/// Address space of each fiber: free until touched, but limited per process.
const VIRTUAL: Measure = Measure {
    of: Some(|_, values| Some(values.get("virtual_bytes")? / values.get("ops")?)),
    is_told: true,
    ..neither("virtual_bytes_per_thread", "address space of each", "bytes")
};

fn expectations(rows: &Rows) -> Expectations {
    const KIB: f64 = 1024.0;
    let memory = rows.by(&Measure::BYTES_PER_THREAD);
    let start = rows.by(&START);
    let each = COUNTS.map(|(configuration, _)| memory.at_most(configuration, "weft", 4.3 * KIB));
    let start = start.at_most(MILLION, "weft", 10.0);
    each.into_iter().chain([start]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Output;

    /// Seen: "time to start all of at most 10 s" decided, but no table had that time, nor the
    /// address space per fiber, although every program prints it.
    #[test]
    fn output_values() {
        let sample: Sample = Output {
            ops: 10,
            seconds: 2.0,
            end_seconds: Some(1.0),
            resident_bytes: Some(41_000),
            virtual_bytes: Some(1_000_000),
            cpu_seconds: None,
        }
        .into();
        let configurations = configurations(&Breadth::default());
        let measures = MEMORY.measures.iter();
        let figures =
            measures.filter_map(|measure| measure.figure(&configurations[0], &sample.values));
        let figures: Vec<f64> = figures.collect();
        assert_eq!(figures, [4100.0, 2.0, 1.0, 100_000.0]);
    }
}
