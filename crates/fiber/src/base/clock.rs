//! Times and deadlines.

use std::time::{Duration, Instant};

/// The time after `duration`; a time beyond the clock's range counts as a century.
pub(crate) fn after(duration: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    let now = Instant::now();
    now.checked_add(duration).unwrap_or_else(|| now + CENTURY)
}

/// The earlier of two deadlines, where `None` is never.
pub(crate) fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
