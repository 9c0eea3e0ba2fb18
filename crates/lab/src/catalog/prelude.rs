//! Imports and helpers of experiments.

pub(super) use crate::bench::{Bench, Fault, Running, Taken};
pub(super) use crate::expect::{Expectations, Judge, paper};
pub(super) use crate::experiment::{Breadth, Experiment, Figure, ServerWork, Work};
pub(super) use crate::measure::{Configuration, Measure, less, more, neither, operation};
pub(super) use crate::rows::Rows;
pub(super) use crate::sample::Sample;
pub(super) use crate::system::{System, words};
pub(super) use crate::testbed::{Controller, LinkPlan, ServerLimits, Wire};

/// The page of an experiment: `docs/experiments/NAME.md`.
macro_rules! page {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/experiments/", $name, ".md"))
    };
}
pub(super) use page;

/// Bare responders.
pub(super) const CEILINGS: &[&str] =
    &["ceiling ring", "ceiling event", "ceiling cache ring", "ceiling cache event"];

/// Bars of a measure.
pub(super) const fn bars(measure: usize) -> Figure {
    Figure::Bars { measure }
}
