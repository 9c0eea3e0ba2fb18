//! Waits for conditions, with a limit.

use std::time::{Duration, Instant};

/// More than anything in these tests takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Waits on a plain thread until a condition holds, which must happen.
#[allow(dead_code, reason = "not every suite does")]
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
