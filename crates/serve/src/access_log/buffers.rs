//! Buffers between the threads that append lines and the writer thread.

use std::cell::Cell;
use std::collections::TryReserveError;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::Instant;

use super::Options;
use super::sink::Sink;

#[derive(Debug)]
pub(super) struct SharedBuffers {
    /// Their number is a power of two.
    pub(super) buffers: Box<[PaddedBuffer]>,
    pub(super) buffer_len_max: usize,
    is_paced: bool,
    /// The writer sleeps until a line is appended.
    pub(super) asleep: AtomicBool,
    /// A buffer is half full, or the log was reopened or closed: write before the interval ends.
    pub(super) urgent: AtomicBool,
    pub(super) lines_dropped: AtomicU64,
    pub(super) write_errors: AtomicU64,
    pub(super) reopened: Mutex<Option<Sink>>,
    /// Deadline of the writer once the log is closing.
    pub(super) closing: Mutex<Option<Instant>>,
    pub(super) finished: Mutex<bool>,
    pub(super) finish: Condvar,
}

/// A buffer in cache lines of its own (two, which x86 prefetches together).
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct PaddedBuffer(pub(super) Mutex<LogBuffer>);

#[derive(Debug)]
pub(super) struct LogBuffer {
    pub(super) lines: Vec<u8>,
    pub(super) closed: bool,
}

/// Limit on buffers; more bring no benefit.
const BUFFERS_MAX: usize = 64;

/// Buffers tried for a line; a limit keeps dropping lines cheap on a large machine.
const NEIGHBOURS_MAX: usize = 8;

impl SharedBuffers {
    pub(super) fn new(options: &Options) -> io::Result<SharedBuffers> {
        let threads = thread::available_parallelism().map_or(1, |threads| threads.get());
        // More than one per processor, so that a thread always finds one unlocked.
        let count = (threads + 1).next_power_of_two().min(BUFFERS_MAX);
        let buffer_len_max = options.queued_len_max / count;
        let buffer = || -> Result<PaddedBuffer, TryReserveError> {
            let lines = allocate(buffer_len_max)?;
            Ok(PaddedBuffer(Mutex::new(LogBuffer { lines, closed: false })))
        };
        Ok(SharedBuffers {
            buffers: (0..count).map(|_| buffer()).collect::<Result<_, _>>()?,
            buffer_len_max,
            is_paced: options.is_paced,
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

    /// Appends lines; returns true if the writer must be woken.
    pub(super) fn append(&self, lines: &[u8]) -> bool {
        let Some(mut buffer) = self.buffer_with_space(lines.len()) else {
            self.count_dropped(lines);
            return false;
        };
        let len_before = buffer.lines.len();
        buffer.lines.extend_from_slice(lines);
        drop(buffer);
        let half = self.buffer_len_max / 2;
        if !self.is_paced && len_before < half && len_before + lines.len() >= half {
            self.urgent.store(true, Ordering::Release);
            return true;
        }
        // The writer checks every buffer after it has set `asleep`, and the buffer's lock orders
        // the two: either the writer saw this line, or this thread sees `asleep`.
        len_before == 0
            && self.asleep.load(Ordering::Relaxed)
            && self.asleep.swap(false, Ordering::Relaxed)
    }

    /// Locks the calling thread's buffer or, if it is locked or full, one of the next.
    fn buffer_with_space(&self, len: usize) -> Option<MutexGuard<'_, LogBuffer>> {
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
            if self.has_space(&buffer, len) {
                return Some(buffer);
            }
        }
        // All are locked only if more threads than processors were each preempted while copying a
        // line (`--engine thread`). Waiting for a copy loses no line and is short.
        all_taken.then(|| lock(slot(0))).filter(|buffer| self.has_space(buffer, len))
    }

    fn has_space(&self, buffer: &LogBuffer, len: usize) -> bool {
        !buffer.closed && buffer.lines.len() + len <= self.buffer_len_max
    }

    pub(super) fn count_dropped(&self, lines: &[u8]) {
        self.lines_dropped.fetch_add(count_lines(lines), Ordering::Relaxed);
    }

    pub(super) fn lines_waiting(&self) -> u64 {
        let lines = |slot: &PaddedBuffer| count_lines(&lock(&slot.0).lines);
        self.buffers.iter().map(lines).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.buffers.iter().all(|slot| lock(&slot.0).lines.is_empty())
    }

    pub(super) fn closing(&self) -> Option<Instant> {
        *lock(&self.closing)
    }

    pub(super) fn wait_finished(&self, deadline: Instant) -> bool {
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

pub(super) fn count_lines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|&&byte| byte == b'\n').count() as u64
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No operation under a lock here can panic halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Allocates a whole buffer at once: it never grows, and untouched pages take no memory.
pub(super) fn allocate(len: usize) -> Result<Vec<u8>, TryReserveError> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len)?;
    Ok(bytes)
}

/// Number of this thread, by the order of first writes, so that few threads share a buffer.
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
