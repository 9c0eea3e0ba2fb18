//! `netstack-no-wire`: cost of our TCP/IP alone, between two hosts in memory.

use crate::catalog::prelude::*;

pub(in crate::catalog) const NO_WIRE: Experiment = Experiment {
    name: "netstack-no-wire",
    about: "requests, connections and pages between two netstacks in memory, beside idle ones",
    page: page!("netstack-no-wire"),
    measures: &[RATE, Measure::NANOS, BYTES],
    configurations,
    systems: &[NETSTACK],
    work: Work::Program,
    figures: &[bars(0), bars(1)],
    expectations,
};

/// Two netstacks.
const NETSTACK: &str = "weft netstack";

/// Pairs, connections, or segments.
const RATE: Measure = Measure {
    title: "rate",
    of: Some(|_, values| Some(values.get("ops")? / values.get("seconds")?)),
    ..Measure::RATE
};

/// Memory of an idle connection; with few connections it would be noise of whole pages.
const BYTES: Measure = Measure {
    name: "bytes_per_end",
    title: "resident memory of an idle connection's end",
    unit: "bytes",
    of: Some(|configuration, values| {
        let ends = 2 * configuration.get("idle", 0);
        let grown = values.get("resident_bytes")?;
        (ends >= 20_000).then(|| grown / ends as f64)
    }),
    ..Measure::CPU_US
};

const ALONE: &str = "pairs, no idle connections";
const CROWD: &str = "pairs, 100,000 idle";
const PAIRS: [(&str, u64); 4] =
    [(ALONE, 0), ("pairs, 100 idle", 100), ("pairs, 10,000 idle", 10_000), (CROWD, 100_000)];
const CONNECTIONS: &str = "connections";
const SUMMED: &str = "segments of pages";
const PRECOMPUTED: &str = "segments of pages, sums precomputed";

fn configurations(_: &Breadth) -> Vec<Configuration> {
    let configuration =
        |label, what| Configuration::new(label, "no-wire", [("processors", 1), what]);
    let pairs = PAIRS.map(|(label, idle)| configuration(label, ("idle", idle)));
    let connections = configuration(CONNECTIONS, ("close", 1));
    let pages = [(SUMMED, 1), (PRECOMPUTED, 2)];
    let pages = pages.map(|(label, pages)| configuration(label, ("pages", pages)));
    pairs.into_iter().chain([connections]).chain(pages).collect()
}

fn expectations(rows: &Rows) -> Expectations {
    let rate = rows.by(&RATE);
    let cost = rows.by(&Measure::NANOS);
    let pairs = rate.at_least(ALONE, NETSTACK, 1_000_000.0);
    let connections = rate.at_least(CONNECTIONS, NETSTACK, 200_000.0);
    let crowds = PAIRS[1..].iter();
    let does_not_grow = crowds.map(|(label, _)| cost.within(label, ALONE, NETSTACK, 1.1));
    let memory = rows.by(&BYTES).at_most(CROWD, NETSTACK, 1024.0);
    let pages = cost.within(PRECOMPUTED, SUMMED, NETSTACK, 1.0);
    [pairs, connections, memory, pages].into_iter().chain(does_not_grow).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Output;

    #[test]
    fn figures_of_a_sample() {
        let sample: Sample = Output {
            ops: 1_000_000,
            seconds: 0.5,
            resident_bytes: Some(200_000_000),
            ..Output::default()
        }
        .into();
        let configurations = configurations(&Breadth::default());
        let figures = |at: usize| {
            let measures = NO_WIRE.measures.iter();
            let figures =
                measures.map(|measure| measure.figure(&configurations[at], &sample.values));
            figures.collect::<Vec<_>>()
        };
        assert_eq!(figures(0), [Some(2e6), Some(500.0), None]);
        assert_eq!(figures(3), [Some(2e6), Some(500.0), Some(1000.0)]);
    }
}
