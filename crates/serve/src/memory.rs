//! Limit on the memory that all connections of a server hold while they wait for their peers:
//! replies not taken, input not used, TLS handshakes in progress.
//!
//! ```text
//!   0 ─────────── a quarter ─────────── half ──────────────────── all ─────────
//!   buffers are      ... are freed        replies one by one,       handshakes wait;
//!   kept for reuse                        input in small pieces     large holders are closed
//! ```
//!
//! From half on each connection costs little more than one reply head, so peers that do not read
//! leave enough for those that do: back-pressure, not refusal. A request costs only the load of one
//! number, which changes only when a buffer grows or is freed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::metrics::MetricsWriter;

/// The limit of a server, and the total held by its connections.
#[derive(Debug)]
pub(crate) struct Memory {
    len_max: usize,
    held_len: AtomicUsize,
    /// Maximum held since memory was last returned to the system.
    peak_len: AtomicUsize,
    shortages: AtomicU64,
    waits: AtomicU64,
    is_trimming: AtomicBool,
}

/// Bytes to receive at a time while memory is short. Requests are usually shorter, and unused input
/// is held.
const RECEIVE_LEN_SHORT: usize = 2 * 1024;

/// The same once the limit is reached.
const RECEIVE_LEN_FULL: usize = 1024;

/// Most bytes that a connection may hold once the limit is reached. One that needs more is closed.
pub(crate) const HELD_LEN_FULL: usize = 8 * 1024;

/// The least time of a handshake while memory is short: a few round trips.
const HANDSHAKE_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// Peak above which holes remain in the allocator's memory, which it would keep.
const PEAK_LEN_MIN: usize = 4 << 20;

impl Memory {
    /// An empty account with a limit of `len_max` bytes.
    pub(crate) fn new(len_max: usize) -> Memory {
        Memory {
            len_max,
            held_len: AtomicUsize::new(0),
            peak_len: AtomicUsize::new(0),
            shortages: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            is_trimming: AtomicBool::new(false),
        }
    }

    /// Number of bytes held.
    #[inline]
    pub(crate) fn held_len(&self) -> usize {
        self.held_len.load(Ordering::Relaxed)
    }

    /// True if buffers should be kept for the next replies.
    #[inline]
    pub(crate) fn is_ample(&self) -> bool {
        self.held_len() <= self.len_max / 4
    }

    /// True if connections must use little memory.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.held_len() > self.len_max / 2
    }

    /// True if the limit is reached.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.held_len() >= self.len_max
    }

    /// Most bytes to receive at a time.
    #[inline]
    pub(crate) fn receive_len_max(&self) -> usize {
        match self.held_len() {
            held if held <= self.len_max / 2 => usize::MAX,
            held if held < self.len_max => RECEIVE_LEN_SHORT,
            _ => RECEIVE_LEN_FULL,
        }
    }

    /// The part of `space` to receive into.
    #[cfg(feature = "event")]
    #[inline]
    pub(crate) fn part_of<'a>(&self, space: &'a mut [u8]) -> &'a mut [u8] {
        let len = space.len().min(self.receive_len_max());
        &mut space[..len]
    }

    /// Time-out of a handshake that begins now: `usual` while memory is not short, and less the
    /// fuller it is, so that handshakes that never complete make space for others.
    pub(crate) fn handshake_timeout(&self, usual: Duration) -> Duration {
        let half = self.len_max / 2;
        let left = self.len_max.saturating_sub(self.held_len()).min(half);
        let share = left as f64 / half.max(1) as f64;
        usual.mul_f64(share).max(HANDSHAKE_TIMEOUT_MIN).min(usual)
    }

    /// Counts a handshake that waits for memory.
    pub(crate) fn count_wait(&self) {
        self.waits.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes the used part of the limit.
    pub(crate) fn write_metrics(&self, out: &mut MetricsWriter) {
        let help = "Memory that connections hold while they wait for peers: replies, input, \
                    handshakes; with what is kept for the next.";
        out.gauge("weft_connection_memory_bytes", help, &[], self.held_len() as f64);
        let help = "Limit on the memory of all connections together.";
        out.gauge("weft_connection_memory_max_bytes", help, &[], self.len_max as f64);
        let help = "Times that half of the limit was reached; replies are then made one by one.";
        let shortages = self.shortages.load(Ordering::Relaxed);
        out.counter("weft_connection_memory_shortages_total", help, &[], shortages);
        let help = "Retries of TLS handshakes because the limit was reached.";
        let waits = self.waits.load(Ordering::Relaxed);
        out.counter("weft_connection_memory_waits_total", help, &[], waits);
    }

    fn add(&self, len: usize) {
        let before = self.held_len.fetch_add(len, Ordering::Relaxed);
        self.peak_len.fetch_max(before + len, Ordering::Relaxed);
        let half = self.len_max / 2;
        if before <= half && before + len > half {
            self.shortages.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Subtracts `len`. Returns true once, when use has fallen to a quarter of its peak.
    fn remove(&self, len: usize) -> bool {
        let left = self.held_len.fetch_sub(len, Ordering::Relaxed) - len;
        let peak = self.peak_len.load(Ordering::Relaxed);
        let is_gone = peak >= PEAK_LEN_MIN && left <= peak / 4;
        is_gone
            && self
                .peak_len
                .compare_exchange(peak, left, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

/// Bytes charged for one connection or one buffer. Dropping it gives them back.
#[derive(Debug, Default)]
pub(crate) struct Charge {
    /// `None` while it holds nothing.
    memory: Option<Arc<Memory>>,
    len: usize,
}

impl Charge {
    /// Number of bytes charged.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Changes the charge to `len` bytes. Returns whether it has grown.
    #[inline]
    pub(crate) fn set(&mut self, memory: &Arc<Memory>, len: usize) -> bool {
        len != self.len && self.change(memory, len)
    }

    /// True if it is charged to this limit.
    #[inline]
    pub(crate) fn is_of(&self, memory: &Arc<Memory>) -> bool {
        (self.memory.as_ref()).is_none_or(|own| Arc::ptr_eq(own, memory))
    }

    #[cold]
    fn change(&mut self, memory: &Arc<Memory>, len: usize) -> bool {
        if !self.is_of(memory) {
            drop(std::mem::take(self));
        }
        let before = std::mem::replace(&mut self.len, len);
        if len > before {
            self.memory.get_or_insert_with(|| Arc::clone(memory));
            memory.add(len - before);
        } else if memory.remove(before - len) {
            trim(memory);
        }
        len > before
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take()
            && self.len > 0
            && memory.remove(std::mem::take(&mut self.len))
        {
            trim(&memory);
        }
    }
}

/// Makes the allocator return free memory after a crowd, on a thread of its own, because it takes
/// milliseconds. Without a thread, memory is returned after the next crowd.
fn trim(memory: &Arc<Memory>) {
    if memory.is_trimming.swap(true, Ordering::Relaxed) {
        return;
    }
    let own = Arc::clone(memory);
    let work = move || {
        // Its last buffers are still being freed.
        thread::sleep(Duration::from_millis(100));
        give_free_memory_back();
        own.is_trimming.store(false, Ordering::Relaxed);
    };
    if thread::Builder::new().name("malloc trim".to_owned()).spawn(work).is_err() {
        memory.is_trimming.store(false, Ordering::Relaxed);
    }
}

/// Returns the allocator's free pages to the system. Allocators other than glibc's do so by
/// themselves. malloc_trim(3)
pub fn give_free_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) touches only free memory, and may be called on any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
