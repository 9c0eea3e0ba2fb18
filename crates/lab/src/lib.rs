//! The laboratory: experiments that can fail, on systems by this project and by others.
//!
//! ```text
//!   experiment = configurations × systems × rounds     sample = one fresh process, one JSON line
//!
//!   catalog/rt/yield_.rs ──┐              ┌── programs: weft's, Go's, tokio's, may's
//!   catalog/web/rows.rs  ──┼──▶ method ──▶│            each prints what came out
//!   ...                  ──┘   A B C      ├── servers: weft in its forms, nginx, lighttpd, memcached,
//!                              B C A      │            any command line
//!                                │        └── the generator is `weft load`, on the other core
//!                                ▼
//!                  samples/NAME.jsonl ──▶ report: tables, figures, verdicts; text and HTML
//! ```
//!
//! An [`Experiment`] defines what is measured in which configurations, and what is expected.
//! [`run()`] takes the samples in turns and writes each to a file at once. A [`Report`] is made of
//! that file alone. The laboratory is no part of what it measures: it starts processes and reads
//! their output and the kernel's statistics.
//!
//! From the top: [`catalog`] and [`Report`]; `method`, which takes turns, and `bench`, which
//! measures a server; `store`, `rows` and [`Expectation`]; the definitions of [`Experiment`],
//! [`System`] and [`Sample`]; [`Testbed`], where samples are taken, and which leaves nothing
//! behind.

#![deny(unsafe_code)]

mod bench;
mod busy;
mod card;
pub mod catalog;
pub mod compare;
mod expect;
mod experiment;
mod measure;
mod method;
mod numbers;
mod page;
mod peers;
mod report;
mod rows;
mod sample;
mod store;
mod system;
mod testbed;

pub use card::{Card, date_of};
pub use expect::{Expectation, ExpectationSource, Expectations, Judge, Judgement};
pub use experiment::{Breadth, Experiment, Figure, ServerWork, Work};
pub use measure::{Better, Configuration, Measure, Values};
pub use method::{
    EXIT_ABSENT, Effort, Progress, RunError, Setting, Thoroughness, estimate, run, taking_part,
};
pub use numbers::{Spread, show};
pub use peers::PeerRuntime;
pub use report::{Report, html, summary};
pub use rows::{Ratio, Row, Rows};
pub use sample::{Course, Noise, Output, Sample};
pub use store::{Header, Record, Recorded, RunEnd, SystemLine, TurnResult, samples_file};
pub use system::{DISPATCHERS, KNOWN, Known, ServerForm, ServerProtocol, Start};
pub use system::{ON_REQUEST, System, WEFT_FORMS, programs_beside};
pub use system::{ceilings, custom, generators, in_path, version_of, weft_fibers, weft_forms};
pub use testbed::{Controller, GeneratorHost, Testbed, guard};
