use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::buffers::{SharedBuffers, count_lines};

/// Reports on the state of the log, at most once a minute.
pub(super) struct LogReporter<R> {
    target: String,
    report: R,
    pub(super) trouble: Option<io::Error>,
    last: LastReport,
}

/// The last report and its time.
#[derive(Default)]
struct LastReport {
    at: Option<Instant>,
    lines_dropped: u64,
    trouble: bool,
}

const REPORT_INTERVAL: Duration = Duration::from_secs(60);

impl<R: FnMut(&str)> LogReporter<R> {
    pub(super) fn new(target: String, report: R) -> LogReporter<R> {
        LogReporter { target, report, trouble: None, last: LastReport::default() }
    }

    /// Time at which to report a recovery that came less than a minute after the failure.
    pub(super) fn due(&self) -> Option<Instant> {
        let pending = self.last.trouble && self.trouble.is_none();
        self.last.at.filter(|_| pending).map(|at| at + REPORT_INTERVAL)
    }

    pub(super) fn report_if_due(&mut self, shared: &SharedBuffers, unwritten: &[u8], now: Instant) {
        let quiet = self.last.at.is_some_and(|at| now < at + REPORT_INTERVAL);
        if !quiet {
            self.report_now(shared, unwritten, now);
        }
    }

    /// Reports losses since the last report, at the end of the log.
    pub(super) fn report_last(&mut self, shared: &SharedBuffers, unwritten: &[u8]) {
        if shared.lines_dropped.load(Ordering::Relaxed) > self.last.lines_dropped {
            self.report_now(shared, unwritten, Instant::now());
        }
    }

    fn report_now(&mut self, shared: &SharedBuffers, unwritten: &[u8], now: Instant) {
        let dropped = shared.lines_dropped.load(Ordering::Relaxed);
        let lost = dropped - self.last.lines_dropped;
        // Waiting lines are lost too if the failure persists.
        let fate = || match count_lines(unwritten) + shared.lines_waiting() {
            0 => format!("{lost} lines are lost"),
            waiting => format!("{lost} lines are lost, {waiting} wait"),
        };
        let sentence = match &self.trouble {
            Some(error) => format!("cannot be written ({error}): {}", fate()),
            None if lost > 0 => format!("cannot be written fast enough: {}", fate()),
            None if self.last.trouble => "is being written again".to_owned(),
            None => return,
        };
        (self.report)(&format!("the access log {} {sentence}", self.target));
        self.last = LastReport {
            at: Some(now),
            lines_dropped: dropped,
            trouble: self.trouble.is_some() || lost > 0,
        };
    }
}
