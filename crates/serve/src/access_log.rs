//! Access log: threads append lines to buffers without waiting; one thread writes the lines out.
//!
//! ```text
//!  processor 1 ── write ─▶ ┌ buffer ┐
//!  processor 2 ── write ─▶ ┌ buffer ┐ ── swapped ─▶ ┌ batch ┐ ── write(2) ─▶ file, pipe, socket
//!  processor 3 ── write ─▶ ┌ buffer ┐               └ writer ┘
//! ```
//!
//! Each thread has its own buffer, contended only by the writer for the time of a swap. The first
//! line after a pause wakes the writer, which sleeps for the flush interval and then writes all
//! buffers. A line that fills half a buffer wakes the writer earlier.
//!
//! If lines arrive faster than they can be written (a full disk, a blocked pipe), buffers fill up
//! to their limit. Further lines are dropped, counted, and reported at most once a minute. Memory
//! is at most twice [`Options::queued_len_max`].
//!
//! Lines are never interleaved. The order of lines of different threads is exact only to within the
//! flush interval, as in every buffered log.

mod buffers;
mod reporter;
mod sink;
#[cfg(test)]
mod tests;
mod writer;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::metrics::MetricsWriter;
use buffers::{SharedBuffers, lock};
use reporter::LogReporter;
use sink::Sink;
use writer::{Batch, LogWriter};

/// Destination of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Standard output, written `-`.
    Stdout,
    /// Standard error.
    Stderr,
    /// A file, appended to, created with mode 0640 if missing.
    File(PathBuf),
}

impl FromStr for Target {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Target, Self::Err> {
        Ok(if text == "-" { Target::Stdout } else { Target::File(text.into()) })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Stdout => f.write_str("-"),
            Target::Stderr => f.write_str("standard error"),
            Target::File(path) => path.display().fmt(f),
        }
    }
}

/// Buffering of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Longest delay of a line before it is written: 200 ms.
    pub flush_interval: Duration,
    /// Limit on the bytes queued by all threads: 8 MiB, about 60,000 lines. A line beyond it is
    /// dropped.
    pub queued_len_max: usize,
    /// True to write at most that many bytes per flush interval, for people who read along.
    pub is_paced: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            flush_interval: Duration::from_millis(200),
            queued_len_max: 8 * 1024 * 1024,
            is_paced: false,
        }
    }
}

/// The access log. Dropping it closes it, waiting up to a second.
#[derive(Debug)]
pub struct AccessLog {
    target: Target,
    shared: Arc<SharedBuffers>,
    writer: Thread,
    joined: Mutex<Option<JoinHandle<()>>>,
}

impl AccessLog {
    /// Opens the log and starts its writer thread. `report` is called on that thread, at most once
    /// a minute, with a sentence when lines are lost or writing works again.
    ///
    /// Open the log before privileges are dropped.
    ///
    /// # Errors
    /// If the target cannot be opened, or no memory or thread is available.
    pub fn open(
        target: Target,
        options: &Options,
        report: impl FnMut(&str) + Send + 'static,
    ) -> io::Result<AccessLog> {
        let sink = Sink::open(&target)?;
        let shared = Arc::new(SharedBuffers::new(options)?);
        let writer = LogWriter {
            shared: Arc::clone(&shared),
            sink,
            flush_interval: options.flush_interval,
            batch: Batch::with_capacity(shared.buffer_len_max)?,
            reporter: LogReporter::new(target.to_string(), report),
        };
        let builder = thread::Builder::new().name("weft-access-log".to_owned());
        let joined = builder.spawn(move || writer.run())?;
        let writer = joined.thread().clone();
        Ok(AccessLog { target, shared, writer, joined: Mutex::new(Some(joined)) })
    }

    /// Appends whole lines, each with its newline. Never waits for the disk, the reader of a pipe,
    /// or the writer thread. A line costs 13 to 16 ns (120 bytes, AMD EPYC, 2 cores;
    /// `cargo test --release -p weftwork-serve what_a_line_costs -- --ignored --nocapture`).
    pub fn write(&self, lines: &[u8]) {
        let wake = self.shared.append(lines);
        if wake {
            self.writer.unpark();
        }
    }

    /// Reopens the file, after logrotate has renamed it. Queued lines go to the new file. Does
    /// nothing for standard output.
    ///
    /// # Errors
    /// If the file cannot be opened; the old one is then kept.
    pub fn reopen(&self) -> io::Result<()> {
        if let Target::File(_) = self.target {
            let sink = Sink::open(&self.target)?;
            *lock(&self.shared.reopened) = Some(sink);
            self.flush_soon();
        }
        Ok(())
    }

    /// Writes the queued lines, for at most `limit`, and ends the writer. Returns true if all were
    /// written. Other lines, and all later ones, count as dropped.
    pub fn close(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        lock(&self.shared.closing).get_or_insert(deadline);
        self.flush_soon();
        let dropped_before = self.lines_dropped();
        if !self.shared.wait_finished(deadline + WRITE_GRACE) {
            return false; // a system call blocks the thread; leave it behind
        }
        if let Some(joined) = lock(&self.joined).take() {
            // A panic there has been printed already.
            let _ = joined.join();
        }
        self.lines_dropped() == dropped_before
    }

    /// Destination of the log.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Number of lines dropped.
    pub fn lines_dropped(&self) -> u64 {
        self.shared.lines_dropped.load(Ordering::Relaxed)
    }

    /// Number of failed writes.
    pub fn write_errors(&self) -> u64 {
        self.shared.write_errors.load(Ordering::Relaxed)
    }

    /// Writes the counters of the log.
    pub fn write_metrics(&self, out: &mut MetricsWriter) {
        let dropped = "Access log lines that were dropped.";
        out.counter("weft_log_lines_dropped_total", dropped, &[], self.lines_dropped());
        let errors = "Times the access log could not be written.";
        out.counter("weft_log_write_errors_total", errors, &[], self.write_errors());
    }

    fn flush_soon(&self) {
        self.shared.urgent.store(true, Ordering::Release);
        self.writer.unpark();
    }
}

/// Time that `close` waits beyond its limit for a write(2) in progress.
const WRITE_GRACE: Duration = Duration::from_millis(100);

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.close(Duration::from_secs(1));
    }
}
