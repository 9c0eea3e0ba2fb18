//! Guards for code that must not unwind.

use super::report::report;

/// Ends the process, with this message, when a panic would unwind beyond the guard.
pub(crate) struct AbortOnUnwind(pub(crate) &'static str);

/// Message for a destructor that panics where nothing is left to catch it: `std` ends the process
/// for threads as well.
pub(crate) const DROPPED: &str = "the result of a fiber panicked when it was dropped";

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        report(format_args!("{}\n", self.0));
        std::process::abort();
    }
}

/// Runs `f` in a frame that others use meanwhile, so that it must not unwind.
#[inline]
pub(crate) fn while_lent<R>(f: impl FnOnce() -> R) -> R {
    let abort = AbortOnUnwind("the runtime panicked while a fiber had lent data on its stack");
    let outcome = f();
    std::mem::forget(abort);
    outcome
}
