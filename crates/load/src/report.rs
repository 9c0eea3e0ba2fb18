//! Reports of an outcome for people, programs and other tools.
//!
//! | what | for |
//! |---|---|
//! | [`screen`] | people: one screen |
//! | [`json`] | programs; what it holds under `mergeable` reads back, exactly |
//! | [`csv`] | spreadsheets: a line per interval |
//! | [`hgrm`] | HdrHistogram's plotter: the percentile distribution |
//! | [`interval_log`] | HdrHistogram's log tools: a histogram per interval and class |
//! | [`Threshold`] | scripts: `p99>5ms` decides the exit code |
//!
//! Two latencies are shown side by side. *Intended* counts from the time at which a request should
//! have been sent; *raw* from the time at which it was. A server that pauses shows in the first:
//! requests that could not be sent meanwhile waited as well.

mod figures;
mod files;
mod screen;
mod threshold;

pub use crate::units::{columns_of, count_of, counted, fold, ns_of, rate_of};
pub use figures::{Figures, IntervalFigures, Latency, figures, json};
pub use files::{csv, hgrm, interval_log};
pub use screen::{Heading, Look, Paint, screen};
pub use threshold::{Threshold, failed};

#[cfg(test)]
pub(crate) mod tests;
