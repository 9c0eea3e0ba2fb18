//! Reason of a missing sample, and the last words of the program that is to blame.

use std::fmt::Display;
use std::fs;
use std::path::Path;

use crate::sample::Sample;

/// Outcome of taking a sample, or of a step of it.
pub(crate) type Taken<T = Sample> = Result<T, Fault>;

/// Reason why there is no sample.
#[derive(Debug)]
pub(crate) enum Fault {
    /// This sample failed; the sentence says how.
    Failed(String),
    /// The system has nothing of the kind.
    Absent,
    /// The user wants to stop.
    Stopped,
}

impl<E: Display> From<E> for Fault {
    fn from(why: E) -> Fault {
        Fault::Failed(why.to_string())
    }
}

/// The last lines of a log, as one.
pub(super) fn tail(log: &Path) -> String {
    let text = String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().rev().take(4).collect();
    if lines.is_empty() {
        "it said nothing".to_owned()
    } else {
        lines.into_iter().rev().collect::<Vec<_>>().join(" / ")
    }
}
