//! The access log: lines go in from the processors, which never wait; a thread writes them out.
//!
//! ```text
//!  processor 1 ── write ─▶ ┌ buffer ┐
//!  processor 2 ── write ─▶ ┌ buffer ┐ ── swapped ─▶ ┌ batch ┐ ── write(2) ─▶ file, pipe, socket
//!  processor 3 ── write ─▶ ┌ buffer ┐               └ writer ┘
//! ```
//!
//! Each thread has a home buffer, and only the writer ever competes for it, for the length of a
//! swap. The writer wakes when the first line comes after a silence, sleeps the flush interval,
//! and writes out everything; in between, a line wakes it only when it fills a buffer's half.
//!
//! When lines come faster than they can be written (a full disk, a blocked pipe), buffers fill up
//! to their cap, and lines are then dropped, counted, and reported at most once a minute. Memory
//! is at most twice [`Options::queued_len_max`].
//!
//! Lines stay whole. Lines of different threads are in order to within the flush interval, as with
//! every buffered log; the time in the line tells.

mod sink;

use std::cell::Cell;
use std::collections::TryReserveError;
use std::fmt;
use std::io;
use std::mem;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::metrics::MetricsWriter;
use sink::Sink;

/// Where the log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Standard output, written `-`.
    Stdout,
    /// A file, appended to and created if need be (mode 0640: it tells who read what).
    File(PathBuf),
}

impl FromStr for Target {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Target, Self::Err> {
        Ok(if text == "-" {
            Target::Stdout
        } else {
            Target::File(text.into())
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Stdout => f.write_str("-"),
            Target::File(path) => path.display().fmt(f),
        }
    }
}

/// How the log is buffered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How late a line may be written: 200 ms.
    pub flush_interval: Duration,
    /// How many bytes may wait to be written, over all threads: 8 MiB, about 60,000 lines. A line
    /// that finds no room is dropped.
    pub queued_len_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            flush_interval: Duration::from_millis(200),
            queued_len_max: 8 * 1024 * 1024,
        }
    }
}

/// The log. Dropping it closes it, waiting up to a second.
#[derive(Debug)]
pub struct AccessLog {
    target: Target,
    shared: Arc<Shared>,
    writer: Thread,
    joined: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    /// A power of two of them.
    buffers: Box<[Slot]>,
    buffer_len_max: usize,
    /// The writer sleeps until a line comes.
    asleep: AtomicBool,
    /// A buffer is half full, or the log was reopened or closed: do not wait for the interval's
    /// end.
    urgent: AtomicBool,
    lines_dropped: AtomicU64,
    write_errors: AtomicU64,
    reopened: Mutex<Option<Sink>>,
    /// Until when the writer may go on writing, once the log is closing.
    closing: Mutex<Option<Instant>>,
    finished: Mutex<bool>,
    finish: Condvar,
}

/// In cache lines of its own (two, which x86 prefetches together).
#[derive(Debug)]
#[repr(align(128))]
struct Slot(Mutex<Buffer>);

#[derive(Debug)]
struct Buffer {
    lines: Vec<u8>,
    closed: bool,
}

impl AccessLog {
    /// Opens the log and starts its writer. `report` gets a sentence when lines are lost or can be
    /// written again, at most once a minute, on the writer's thread.
    ///
    /// Standard output is taken as it is now; open the log before privileges are dropped.
    ///
    /// # Errors
    /// If the target cannot be opened, or there is no memory or thread to be had.
    pub fn open(
        target: Target,
        options: &Options,
        report: impl FnMut(&str) + Send + 'static,
    ) -> io::Result<AccessLog> {
        let sink = Sink::open(&target)?;
        let shared = Arc::new(Shared::new(options)?);
        let writer = Writer {
            shared: Arc::clone(&shared),
            sink,
            flush_interval: options.flush_interval,
            batch: Batch::with_capacity(shared.buffer_len_max)?,
            news: News::new(target.to_string(), report),
        };
        let builder = thread::Builder::new().name("weft-access-log".to_owned());
        let joined = builder.spawn(move || writer.run())?;
        let writer = joined.thread().clone();
        Ok(AccessLog {
            target,
            shared,
            writer,
            joined: Mutex::new(Some(joined)),
        })
    }

    /// Takes whole lines, each with its newline. Never waits for the disk, the reader of a pipe, or
    /// the writer thread. A line costs 13 to 16 ns (120 bytes, AMD EPYC, 2 cores;
    /// `cargo test --release -p weftwork-serve what_a_line_costs -- --ignored --nocapture`).
    pub fn write(&self, lines: &[u8]) {
        let wake = self.shared.append(lines);
        if wake {
            self.writer.unpark();
        }
    }

    /// Opens the file anew, after it was renamed (logrotate). What is still queued goes to the new
    /// file. Standard output stays.
    ///
    /// # Errors
    /// If the file cannot be opened; the log then goes on with the old one.
    pub fn reopen(&self) -> io::Result<()> {
        if let Target::File(_) = self.target {
            let sink = Sink::open(&self.target)?;
            *lock(&self.shared.reopened) = Some(sink);
            self.hurry();
        }
        Ok(())
    }

    /// Writes out what is queued, for as long as `limit` allows, and ends the writer. Returns
    /// whether everything was written; what was not is counted as dropped, like every line from
    /// now on.
    pub fn close(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        lock(&self.shared.closing).get_or_insert(deadline);
        self.hurry();
        let dropped_before = self.lines_dropped();
        if !self.shared.wait_finished(deadline + WRITE_GRACE) {
            return false; // stuck in the kernel; the thread is left behind
        }
        if let Some(joined) = lock(&self.joined).take() {
            // A panic there was printed already.
            let _ = joined.join();
        }
        self.lines_dropped() == dropped_before
    }

    /// Where the log goes.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Lines that found no room.
    pub fn lines_dropped(&self) -> u64 {
        self.shared.lines_dropped.load(Ordering::Relaxed)
    }

    /// Times the system refused to write.
    pub fn write_errors(&self) -> u64 {
        self.shared.write_errors.load(Ordering::Relaxed)
    }

    /// Writes its counters for `/metrics`.
    pub fn write_metrics(&self, out: &mut MetricsWriter) {
        let dropped = "Access log lines that were dropped.";
        out.counter(
            "weft_log_lines_dropped_total",
            dropped,
            &[],
            self.lines_dropped(),
        );
        let errors = "Times the access log could not be written.";
        out.counter(
            "weft_log_write_errors_total",
            errors,
            &[],
            self.write_errors(),
        );
    }

    fn hurry(&self) {
        self.shared.urgent.store(true, Ordering::Release);
        self.writer.unpark();
    }
}

/// What `close` waits beyond its limit for a write(2) that is under way.
const WRITE_GRACE: Duration = Duration::from_millis(100);

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.close(Duration::from_secs(1));
    }
}

/// More buffers than this help nobody.
const BUFFERS_MAX: usize = 64;

/// How many buffers a line is offered to, so that dropping one stays cheap on a big machine.
const NEIGHBOURS_MAX: usize = 8;

impl Shared {
    fn new(options: &Options) -> io::Result<Shared> {
        let threads = thread::available_parallelism().map_or(1, |threads| threads.get());
        // One more than there are processors, at least, so that a thread always finds one free.
        let count = (threads + 1).next_power_of_two().min(BUFFERS_MAX);
        let buffer_len_max = options.queued_len_max / count;
        let buffer = || -> Result<Slot, TryReserveError> {
            let lines = allocate(buffer_len_max)?;
            Ok(Slot(Mutex::new(Buffer {
                lines,
                closed: false,
            })))
        };
        Ok(Shared {
            buffers: (0..count).map(|_| buffer()).collect::<Result<_, _>>()?,
            buffer_len_max,
            asleep: AtomicBool::new(false),
            urgent: AtomicBool::new(false),
            lines_dropped: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
            reopened: Mutex::new(None),
            closing: Mutex::new(None),
            finished: Mutex::new(false),
            finish: Condvar::new(),
        })
    }

    /// Returns whether the writer must be woken.
    fn append(&self, lines: &[u8]) -> bool {
        let Some(mut buffer) = self.buffer_with_room(lines.len()) else {
            self.count_dropped(lines);
            return false;
        };
        let len_before = buffer.lines.len();
        buffer.lines.extend_from_slice(lines);
        drop(buffer);
        let half = self.buffer_len_max / 2;
        if len_before < half && len_before + lines.len() >= half {
            self.urgent.store(true, Ordering::Release);
            return true;
        }
        // The writer looks into every buffer after it has said that it sleeps, and the buffer's
        // lock orders the two: either it saw this line, or `asleep` is seen here.
        len_before == 0
            && self.asleep.load(Ordering::Relaxed)
            && self.asleep.swap(false, Ordering::Relaxed)
    }

    /// The calling thread's buffer; or, if that is taken this very moment or full, a neighbour.
    fn buffer_with_room(&self, len: usize) -> Option<MutexGuard<'_, Buffer>> {
        let home = thread_number();
        let slot = |step: usize| &self.buffers[(home + step) & (self.buffers.len() - 1)].0;
        let mut all_taken = true;
        for step in 0..self.buffers.len().min(NEIGHBOURS_MAX) {
            let buffer = match slot(step).try_lock() {
                Ok(buffer) => buffer,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            all_taken = false;
            if self.has_room(&buffer, len) {
                return Some(buffer);
            }
        }
        // All are taken only when more threads than processors were each stopped while copying a
        // line (`--engine thread`). Waiting loses no line, and it is for a copy, not for a disk.
        all_taken
            .then(|| lock(slot(0)))
            .filter(|buffer| self.has_room(buffer, len))
    }

    fn has_room(&self, buffer: &Buffer, len: usize) -> bool {
        !buffer.closed && buffer.lines.len() + len <= self.buffer_len_max
    }

    fn count_dropped(&self, lines: &[u8]) {
        self.lines_dropped
            .fetch_add(count_lines(lines), Ordering::Relaxed);
    }

    fn lines_waiting(&self) -> u64 {
        let lines = |slot: &Slot| count_lines(&lock(&slot.0).lines);
        self.buffers.iter().map(lines).sum()
    }

    fn is_empty(&self) -> bool {
        self.buffers
            .iter()
            .all(|slot| lock(&slot.0).lines.is_empty())
    }

    fn closing(&self) -> Option<Instant> {
        *lock(&self.closing)
    }

    fn wait_finished(&self, deadline: Instant) -> bool {
        let mut finished = lock(&self.finished);
        while !*finished {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.finish.wait_timeout(finished, left);
            finished = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

fn count_lines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|&&byte| byte == b'\n').count() as u64
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing here is left half done by a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The whole buffer at once: it never grows, and pages that were never written take no memory.
fn allocate(len: usize) -> Result<Vec<u8>, TryReserveError> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len)?;
    Ok(bytes)
}

/// Threads are numbered as they first write, so that as many threads as buffers share none.
fn thread_number() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    const UNKNOWN: usize = usize::MAX;
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(UNKNOWN) };
    }
    NUMBER.with(|number| {
        if number.get() == UNKNOWN {
            number.set(THREADS.fetch_add(1, Ordering::Relaxed) & (usize::MAX >> 1));
        }
        number.get()
    })
}

/// The thread that writes.
struct Writer<R> {
    shared: Arc<Shared>,
    sink: Sink,
    flush_interval: Duration,
    batch: Batch,
    news: News<R>,
}

impl<R: FnMut(&str)> Writer<R> {
    fn run(mut self) {
        while self.shared.closing().is_none() {
            if self.batch.is_empty() {
                self.sleep_until_lines();
            }
            self.gather();
            self.flush();
            let batch = &self.batch;
            self.news.tell(&self.shared, batch, Instant::now());
        }
        self.finish();
    }

    fn sleep_until_lines(&self) {
        let shared = &self.shared;
        shared.asleep.store(true, Ordering::Relaxed);
        while shared.is_empty() && !shared.urgent.load(Ordering::Acquire) {
            match self.news.due() {
                None => thread::park(),
                Some(due) if due <= Instant::now() => break,
                Some(due) => thread::park_timeout(due.saturating_duration_since(Instant::now())),
            }
            shared.asleep.store(true, Ordering::Relaxed);
        }
        shared.asleep.store(false, Ordering::Relaxed);
    }

    /// Lets lines come together for the flush interval, or until it is urgent.
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

    /// Writes out the batch and every buffer, as far as the sink takes them.
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

    /// Returns whether all of it went.
    fn write_batch(&mut self) -> bool {
        let is_time_up = || {
            self.shared
                .closing()
                .is_some_and(|limit| Instant::now() >= limit)
        };
        let result = self.batch.write_to(&self.sink, is_time_up);
        if result.is_err() {
            self.shared.write_errors.fetch_add(1, Ordering::Relaxed);
        }
        self.news.trouble = result.err();
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
        self.news.tell_last(&self.shared, &self.batch);
        *lock(&self.shared.finished) = true;
        self.shared.finish.notify_all();
    }
}

/// How long a pipe or socket may take nothing before the writer looks at what else there is to do.
const SINK_PATIENCE: Duration = Duration::from_millis(50);

/// Lines on their way out.
#[derive(Default)]
struct Batch {
    lines: Vec<u8>,
    /// INVARIANT: `written <= lines.len()`, and both are 0 when all is written.
    written: usize,
}

impl Batch {
    fn with_capacity(len: usize) -> Result<Batch, TryReserveError> {
        Ok(Batch {
            lines: allocate(len)?,
            written: 0,
        })
    }

    fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    fn unwritten(&self) -> &[u8] {
        &self.lines[self.written..]
    }

    fn swap(&mut self, buffer: &mut Vec<u8>) {
        assert!(
            self.is_empty(),
            "{} bytes of a batch would be lost",
            self.lines.len()
        );
        mem::swap(&mut self.lines, buffer);
    }

    /// Writes until all is written, the sink fails or takes nothing for a while, or time is up.
    fn write_to(&mut self, sink: &Sink, is_time_up: impl Fn() -> bool) -> io::Result<()> {
        while self.written < self.lines.len() {
            match sink.write(self.unwritten(), SINK_PATIENCE)? {
                Some(len) => self.written += len,
                // The reader of a pipe does not keep up. That is no error until lines are lost.
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

    /// A line that was cut when the old file refused its end begins anew in the new file.
    fn rewind_to_line(&mut self) {
        let line = self.lines[..self.written]
            .iter()
            .rposition(|&byte| byte == b'\n');
        self.written = line.map_or(0, |newline| newline + 1);
    }
}

/// What there is to say about the log, at most once a minute.
struct News<R> {
    target: String,
    report: R,
    trouble: Option<io::Error>,
    told: Told,
}

/// What was said last, and when.
#[derive(Default)]
struct Told {
    at: Option<Instant>,
    lines_dropped: u64,
    trouble: bool,
}

const REPORT_INTERVAL: Duration = Duration::from_secs(60);

impl<R: FnMut(&str)> News<R> {
    fn new(target: String, report: R) -> News<R> {
        News {
            target,
            report,
            trouble: None,
            told: Told::default(),
        }
    }

    /// When a recovery may be told that came too soon after the trouble.
    fn due(&self) -> Option<Instant> {
        let pending = self.told.trouble && self.trouble.is_none();
        self.told
            .at
            .filter(|_| pending)
            .map(|at| at + REPORT_INTERVAL)
    }

    fn tell(&mut self, shared: &Shared, batch: &Batch, now: Instant) {
        let quiet = self.told.at.is_some_and(|at| now < at + REPORT_INTERVAL);
        if !quiet {
            self.tell_now(shared, batch, now);
        }
    }

    /// At the end: losses must not go unsaid.
    fn tell_last(&mut self, shared: &Shared, batch: &Batch) {
        if shared.lines_dropped.load(Ordering::Relaxed) > self.told.lines_dropped {
            self.tell_now(shared, batch, Instant::now());
        }
    }

    fn tell_now(&mut self, shared: &Shared, batch: &Batch, now: Instant) {
        let dropped = shared.lines_dropped.load(Ordering::Relaxed);
        let lost = dropped - self.told.lines_dropped;
        // They are lost as well if the trouble does not end.
        let fate = || match count_lines(batch.unwritten()) + shared.lines_waiting() {
            0 => format!("{lost} lines are lost"),
            waiting => format!("{lost} lines are lost, {waiting} wait"),
        };
        let sentence = match &self.trouble {
            Some(error) => format!("cannot be written ({error}): {}", fate()),
            None if lost > 0 => format!("cannot be written fast enough: {}", fate()),
            None if self.told.trouble => "is being written again".to_owned(),
            None => return,
        };
        (self.report)(&format!("the access log {} {sentence}", self.target));
        self.told = Told {
            at: Some(now),
            lines_dropped: dropped,
            trouble: self.trouble.is_some() || lost > 0,
        };
    }
}

#[cfg(test)]
mod tests;
