//! Progress on standard error: one line, only on a terminal.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use ::load::Progress;
use ::load::report::{ns_of, rate_of};

/// A bar for bytes written; hidden if standard error is not a terminal.
pub(super) fn bytes_bar(bytes: u64) -> ProgressBar {
    bar(bytes, "  {bar:30} {bytes}/{total_bytes}, {eta} left")
}

fn bar(length: u64, template: &str) -> ProgressBar {
    let target = if io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let style = ProgressStyle::with_template(template).expect("the template is right");
    ProgressBar::with_draw_target(Some(length), target).with_style(style)
}

/// Progress of one run or of several: a bar, and the figures of the last interval.
pub(super) struct ProgressLine {
    bar: ProgressBar,
    /// Planned time of finished runs.
    before: Duration,
}

impl ProgressLine {
    /// A line for runs that take `planned` in total; hidden if `quiet`.
    pub(super) fn new(planned: Duration, quiet: bool) -> ProgressLine {
        let bar = bar(planned.as_millis() as u64, "  {bar:30} {msg}");
        if quiet {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        ProgressLine { bar, before: Duration::ZERO }
    }

    /// Shows an ended interval.
    pub(super) fn tick(&mut self, progress: &Progress<'_>) {
        let at = self.before + progress.elapsed;
        self.bar.set_position(at.as_millis() as u64);
        let left = self.bar.length().unwrap_or(0);
        let left = left.saturating_sub(self.bar.position()) / 1000;
        let tally = &progress.interval.tally;
        let per_s = tally.replies() as f64 / progress.interval.lasts.as_secs_f64().max(1e-9);
        let p99 = ns_of(tally.response_ns().value_at_quantile(0.99) as f64);
        let phase = if progress.is_warm_up { "warm-up, " } else { "" };
        let errors = tally.errors.total();
        self.bar.set_message(format!(
            "{phase}{}, p99 {p99}, {errors} errors, {left} s left",
            rate_of(per_s)
        ));
    }

    /// Ends a run that was planned to take `planned`.
    pub(super) fn end_run(&mut self, planned: Duration) {
        self.before += planned;
        self.bar.set_position(self.before.as_millis() as u64);
    }

    /// Prints a line to standard output, above the bar.
    ///
    /// # Errors
    /// Errors of standard output.
    pub(super) fn print(&self, line: &str) -> io::Result<()> {
        let print = || writeln!(io::stdout(), "{line}");
        if self.bar.is_hidden() { print() } else { self.bar.suspend(print) }
    }

    /// Removes the line.
    pub(super) fn close(self) {
        self.bar.finish_and_clear();
    }
}
