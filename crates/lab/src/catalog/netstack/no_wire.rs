//! `netstack-no-wire`: what our TCP/IP costs by itself, with two hosts in memory.

use crate::catalog::prelude::*;

pub(in crate::catalog) const NO_WIRE: Experiment = Experiment {
    name: "netstack-no-wire",
    about: "small requests, and connections, between two netstacks in memory, beside idle ones",
    page: "\
What does a TCP/IP in user space cost by itself, and does a packet cost more when more connections
are open?

On a link most of the time goes into the device and into the other end, which is the kernel's. Here
both ends are ours, in one thread on one core, and frames go from one to the other through memory:
no system call is made for them. Each end is a whole netstack, with neighbours, IP, checksums, TCP
and timers, on an MTU of 1,500 bytes and without offloads. 64 bytes go one way on each of 100
connections and come back, again and again; beside them 100, 10,000 or 100,000 connections are open
and say nothing. Or 100 connections at a time are opened, carry one such pair, and are closed by the
end that opened them.

The figures are pairs, or connections, in a second of the core, and both ends' work is in them. Of
the rate more is better, and of the time per operation less. Bars of equal height for any number of
idle connections say that a packet does not cost more beside them. An idle connection has two ends,
and its memory is that of one of them.",
    found: "\
Not asked. The author of Rusty measures with cards alone; per core Rusty and Linux carry about the
same there.",
    threats: "\
Both ends share the processor's caches and never wait, and 100 frames come at a time, so that a turn
of the loop is shared by many. A link brings them by fewer. 100,000 connections that say nothing are
the easy case: a real crowd wakes up now and then. The kernel has no such form: beside it stand the
links of netstack-mtu and netstack-offload.",
    reasons: "",
    measures: &[RATE, Measure::NANOS, BYTES],
    cells,
    subjects: &[NETSTACK],
    work: Work::Program,
    figures: &[bars(0), bars(1)],
    expectations,
};

/// Two of them.
const NETSTACK: &str = "weft netstack";

/// Pairs, or connections.
const RATE: Measure = Measure {
    title: "rate",
    of: Some(|_, values| Some(values.get("ops")? / values.get("seconds")?)),
    ..Measure::RATE
};

/// Of few connections it would be the noise of pages.
const BYTES: Measure = Measure {
    name: "bytes_per_end",
    title: "resident memory of an idle connection's end",
    unit: "bytes",
    of: Some(|cell, values| {
        let ends = 2 * cell.get("idle", 0);
        let grown = values.get("resident_bytes")?;
        (ends >= 20_000).then(|| grown / ends as f64)
    }),
    ..Measure::CPU_US
};

const ALONE: &str = "pairs, no idle connections";
const CROWD: &str = "pairs, 100,000 idle";
const PAIRS: [(&str, u64); 4] = [
    (ALONE, 0),
    ("pairs, 100 idle", 100),
    ("pairs, 10,000 idle", 10_000),
    (CROWD, 100_000),
];
const CONNECTIONS: &str = "connections";

fn cells(_: &Breadth) -> Vec<Cell> {
    let cell = |label, what| Cell::new(label, "no-wire", [("processors", 1), what]);
    let pairs = PAIRS.map(|(label, idle)| cell(label, ("idle", idle)));
    let connections = cell(CONNECTIONS, ("close", 1));
    pairs.into_iter().chain([connections]).collect()
}

fn expectations(rows: &Rows) -> Expectations {
    let (rate, cost) = (rows.by(&RATE), rows.by(&Measure::NANOS));
    let pairs = rate.at_least(ALONE, NETSTACK, 1_000_000.0);
    let connections = rate.at_least(CONNECTIONS, NETSTACK, 200_000.0);
    let crowds = PAIRS[1..].iter();
    let does_not_grow = crowds.map(|(label, _)| cost.within(label, ALONE, NETSTACK, 1.1));
    let memory = rows.by(&BYTES).at_most(CROWD, NETSTACK, 1024.0);
    [pairs, connections, memory]
        .into_iter()
        .chain(does_not_grow)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Output;

    #[test]
    fn a_sample_says_how_many_a_second_how_long_each_and_how_much_memory() {
        let sample: Sample = Output {
            ops: 1_000_000,
            seconds: 0.5,
            resident_bytes: Some(200_000_000),
            ..Output::default()
        }
        .into();
        let cells = cells(&Breadth::default());
        let figures = |at: usize| {
            let measures = NO_WIRE.measures.iter();
            let figures = measures.map(|measure| measure.figure(&cells[at], &sample.values));
            figures.collect::<Vec<_>>()
        };
        assert_eq!(figures(0), [Some(2e6), Some(500.0), None]);
        assert_eq!(figures(3), [Some(2e6), Some(500.0), Some(1000.0)]);
    }
}
