//! The laboratory: experiments that can fail, on subjects that are other people's programs as well
//! as ours.
//!
//! ```text
//!   experiment = cells × subjects × repetitions      sample = one process, one JSON line
//!
//!   catalog/yield.rs ──┐                    ┌── weft (this very program)
//!   catalog/cycle.rs ──┼──▶ run ──▶ report  ├── go, tokio, may (built from peers/)
//!   ...              ──┘      A B C, B C A  └── ...
//! ```
//!
//! An [`Experiment`] says what is measured in which cells, and what is expected. [`run()`] takes
//! the samples, one process after the other in an order that changes from repetition to repetition,
//! so that a slow minute of the machine hits all subjects alike. A [`Report`] has medians with
//! least and greatest, and says of each expectation whether it was met. Nothing here is part of
//! what it measures: the laboratory starts processes and reads what they print.
//!
//! The experiments are about threading runtimes. Those that ask what a switch costs, and which
//! fibers are left behind, come from the doctoral thesis on C∀'s runtime (T. Delisle, University of
//! Waterloo, 2022); the others take single things apart: to start a fiber, to lock, to wake a
//! processor, to do nothing.

#![forbid(unsafe_code)]

mod busy;
pub mod catalog;
mod report;
mod run;
mod subject;

pub use report::{Expectation, Report, Row};
pub use run::{Cell, Effort, Experiment, Measure, Progress, Sample, run};
pub use subject::{PeerRuntime, Subject};
