//! Reason of a missing sample, and the last output of the program at fault.

use std::fmt::Display;
use std::fs;
use std::path::Path;

use crate::sample::Sample;

/// Outcome of taking a sample, or of a step of it.
pub(crate) type Taken<T = Sample> = Result<T, Fault>;

/// Reason why a sample is missing.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Failed, with this sentence.
    Failed(String),
    /// Not offered by the system.
    Absent,
    /// Stopped by the user.
    Stopped,
}

impl<E: Display> From<E> for Fault {
    fn from(why: E) -> Fault {
        Fault::Failed(why.to_string())
    }
}

/// The last lines of a log, joined.
pub(super) fn tail(log: &Path) -> String {
    let text = String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().rev().take(4).collect();
    if lines.is_empty() {
        "it said nothing".to_owned()
    } else {
        lines.into_iter().rev().collect::<Vec<_>>().join(" / ")
    }
}
