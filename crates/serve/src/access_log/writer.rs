//! The thread that writes lines to the sink.

use std::collections::TryReserveError;
use std::io;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::buffers::{SharedBuffers, allocate, lock};
use super::reporter::LogReporter;
use super::sink::Sink;

/// The writer thread.
pub(super) struct LogWriter<R> {
    pub(super) shared: Arc<SharedBuffers>,
    pub(super) sink: Sink,
    pub(super) flush_interval: Duration,
    pub(super) batch: Batch,
    pub(super) reporter: LogReporter<R>,
}

impl<R: FnMut(&str)> LogWriter<R> {
    pub(super) fn run(mut self) {
        while self.shared.closing().is_none() {
            if self.batch.is_empty() {
                self.sleep_until_lines();
            }
            self.gather();
            self.flush();
            let unwritten = self.batch.unwritten();
            self.reporter.report_if_due(&self.shared, unwritten, Instant::now());
        }
        self.finish();
    }

    fn sleep_until_lines(&self) {
        let shared = &self.shared;
        shared.asleep.store(true, Ordering::Relaxed);
        while shared.is_empty() && !shared.urgent.load(Ordering::Acquire) {
            match self.reporter.due() {
                None => thread::park(),
                Some(due) if due <= Instant::now() => break,
                Some(due) => thread::park_timeout(due.saturating_duration_since(Instant::now())),
            }
            shared.asleep.store(true, Ordering::Relaxed);
        }
        shared.asleep.store(false, Ordering::Relaxed);
    }

    /// Waits for the flush interval, or until a write is urgent.
    fn gather(&self) {
        let deadline = Instant::now() + self.flush_interval;
        while !self.shared.urgent.swap(false, Ordering::Acquire) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            thread::park_timeout(left);
        }
    }

    /// Writes the batch and all buffers, as far as the sink accepts them.
    fn flush(&mut self) {
        if let Some(sink) = lock(&self.shared.reopened).take() {
            self.sink = sink;
            self.batch.rewind_to_line();
        }
        let shared = Arc::clone(&self.shared);
        let mut taken = self.write_batch();
        for slot in &shared.buffers {
            if !taken {
                return;
            }
            self.batch.swap(&mut lock(&slot.0).lines);
            taken = self.write_batch();
        }
    }

    /// Writes the batch; returns true if it is empty afterwards.
    fn write_batch(&mut self) -> bool {
        let is_time_up = || self.shared.closing().is_some_and(|limit| Instant::now() >= limit);
        let result = self.batch.write_to(&self.sink, is_time_up);
        if result.is_err() {
            self.shared.write_errors.fetch_add(1, Ordering::Relaxed);
        }
        self.reporter.trouble = result.err();
        self.batch.is_empty()
    }

    fn finish(&mut self) {
        let deadline = self.shared.closing().unwrap_or_else(Instant::now);
        loop {
            self.flush();
            let done = self.batch.is_empty() && self.shared.is_empty();
            if done || Instant::now() >= deadline {
                break;
            }
            thread::park_timeout(Duration::from_millis(10));
        }
        self.shared.count_dropped(self.batch.unwritten());
        self.batch = Batch::default();
        for slot in &self.shared.buffers {
            let mut buffer = lock(&slot.0);
            buffer.closed = true;
            self.shared.count_dropped(&buffer.lines);
            buffer.lines = Vec::new();
        }
        self.reporter.report_last(&self.shared, self.batch.unwritten());
        *lock(&self.shared.finished) = true;
        self.shared.finish.notify_all();
    }
}

/// Time that the writer waits for a full pipe or socket before it checks for other tasks.
const SINK_PATIENCE: Duration = Duration::from_millis(50);

/// Lines to be written.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) lines: Vec<u8>,
    /// INVARIANT: `written <= lines.len()`, and both are 0 when all is written.
    pub(super) written: usize,
}

impl Batch {
    pub(super) fn with_capacity(len: usize) -> Result<Batch, TryReserveError> {
        Ok(Batch { lines: allocate(len)?, written: 0 })
    }

    fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(super) fn unwritten(&self) -> &[u8] {
        &self.lines[self.written..]
    }

    fn swap(&mut self, buffer: &mut Vec<u8>) {
        assert!(self.is_empty(), "{} bytes of a batch would be lost", self.lines.len());
        mem::swap(&mut self.lines, buffer);
    }

    /// Writes until the batch is empty, the sink fails or stays full, or time is up.
    fn write_to(&mut self, sink: &Sink, is_time_up: impl Fn() -> bool) -> io::Result<()> {
        while self.written < self.lines.len() {
            match sink.write(self.unwritten(), SINK_PATIENCE)? {
                Some(len) => self.written += len,
                // The reader of a pipe is slow; that is no error until lines are lost.
                None => return Ok(()),
            }
            if self.written < self.lines.len() && is_time_up() {
                return Ok(());
            }
        }
        self.lines.clear();
        self.written = 0;
        Ok(())
    }

    /// Moves back to the start of a partly written line, to write all of it to the new file.
    pub(super) fn rewind_to_line(&mut self) {
        let line = self.lines[..self.written].iter().rposition(|&byte| byte == b'\n');
        self.written = line.map_or(0, |newline| newline + 1);
    }
}
