//! The view while a load is running: nothing, a line with an estimate of the time left, or a whole
//! screen. Only on a terminal.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use ::load::Progress;
use ::load::report::{ns_of, rate_of};

/// A bar for bytes that are written; hidden where standard error is no terminal.
pub(super) fn bytes_bar(bytes: u64) -> ProgressBar {
    bar(bytes, "  {bar:30} {bytes}/{total_bytes}, {eta} left")
}

fn bar(length: u64, template: &str) -> ProgressBar {
    let target = match io::stderr().is_terminal() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let style = ProgressStyle::with_template(template).expect("the template is right");
    ProgressBar::with_draw_target(Some(length), target).with_style(style)
}

/// The view of a load that is running.
pub(super) enum View {
    /// A line: it has no figures of its own but those of the last interval.
    Line { bar: ProgressBar, before: Duration },
    /// A whole screen.
    Screen(Box<super::tui::Screen>),
}

impl View {
    /// A line for runs that take so long together; hidden if it should be `quiet`.
    pub(super) fn line(planned: Duration, quiet: bool) -> View {
        let bar = bar(planned.as_millis() as u64, "  {bar:30} {msg}");
        if quiet {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        View::Line {
            bar,
            before: Duration::ZERO,
        }
    }

    /// An interval is over.
    pub(super) fn tick(&mut self, progress: &Progress<'_>) {
        match self {
            View::Screen(screen) => screen.tick(progress),
            View::Line { bar, before } => {
                let at = *before + progress.elapsed;
                bar.set_position(at.as_millis() as u64);
                let left = bar.length().unwrap_or(0).saturating_sub(bar.position()) / 1000;
                let tally = &progress.interval.tally;
                let per_s =
                    tally.replies() as f64 / progress.interval.lasts.as_secs_f64().max(1e-9);
                let p99 = ns_of(tally.response_ns().value_at_quantile(0.99) as f64);
                let warm = if progress.is_warm_up {
                    "warming up, "
                } else {
                    ""
                };
                let errors = tally.errors.total();
                bar.set_message(format!(
                    "{warm}{}, p99 {p99}, {errors} errors, {left} s left",
                    rate_of(per_s)
                ));
            }
        }
    }

    /// Notes that a run is over, and how much of the planned time has passed.
    pub(super) fn run_is_over(&mut self, gone: Duration) {
        if let View::Line { bar, before } = self {
            *before += gone;
            bar.set_position(before.as_millis() as u64);
        }
    }

    /// Prints a line above the bar.
    ///
    /// # Errors
    /// Those of standard output.
    pub(super) fn print(&self, line: &str) -> io::Result<()> {
        let print = || writeln!(io::stdout(), "{line}");
        match self {
            View::Line { bar, .. } if !bar.is_hidden() => bar.suspend(print),
            View::Line { .. } => print(),
            View::Screen(_) => Ok(()),
        }
    }

    /// Takes the view away.
    pub(super) fn close(self) {
        if let View::Line { bar, .. } = self {
            bar.finish_and_clear();
        }
    }
}
