//! `rt-memory`: fibers that are parked. What each costs, and how long it takes to start and end
//! them all.

use crate::report::{Expectation, Row};
use crate::run::{Cell, Experiment, Measure};

pub(super) const MEMORY: Experiment = Experiment {
    name: "rt-memory",
    about: "resident memory of a parked fiber",
    measure: Measure::BytesPerThread,
    cells,
    subjects: &["pinned", "steps", "go", "tokio", "may"],
    expectations,
};

fn cells(quick: bool) -> Vec<Cell> {
    let counts: &[(&str, u64)] = if quick {
        &[("10,000", 10_000)]
    } else {
        &[
            ("10,000", 10_000),
            ("100,000", 100_000),
            ("1,000,000", 1_000_000),
        ]
    };
    let cells = counts.iter().map(|&(label, count)| Cell {
        label: label.to_owned(),
        program: "memory",
        parameters: vec![("processors", 1), ("threads", count)],
    });
    cells.collect()
}

fn expectations(rows: &[Row]) -> Vec<Expectation> {
    const KIB: f64 = 1024.0;
    let mut expected = vec![Expectation::at_most(
        rows,
        "1,000,000",
        "weft",
        4.3 * KIB,
        "bytes",
    )];
    let row = rows
        .iter()
        .find(|row| row.cell == "1,000,000" && row.subject == "weft");
    if let Some(row) = row {
        let slowest = row
            .samples
            .iter()
            .map(|sample| sample.seconds)
            .fold(0.0, f64::max);
        expected.push(Expectation {
            says: "weft, 1,000,000: started in 10 s".to_owned(),
            is_met: (!row.samples.is_empty()).then_some(slowest <= 10.0),
            because: match row.samples.is_empty() {
                true => "not measured".to_owned(),
                false => format!("{slowest:.1} s"),
            },
            is_moot: false,
        });
    }
    expected
}
