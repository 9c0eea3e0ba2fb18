//! Counts in cells of each thread, and their sum.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

macro_rules! cells {
    ($($name:ident),* $(,)?) => {
        /// Index of a cell in a thread's block.
        #[derive(Clone, Copy)]
        pub(super) enum Cell { $($name),* }
        pub(super) const NAMED_CELLS: usize = [$(Cell::$name),*].len();
    };
}

cells! {
    Accepted, AcceptPauses, ProxyV1, ProxyV2, ProxyAbsent,
    Receives, BytesReceived, Sends, BytesSent, WorkCalls,
    AcceptDescriptors, AcceptAborted, AcceptMemory, AcceptOther,
    ClosedPeer, ClosedSession, ClosedIdle, ClosedHead, ClosedBody, ClosedTooSlow, ClosedTooLong,
    ClosedNoMemory, ClosedRefused, ClosedAddressLimit, ClosedProxyHeader, ClosedDrained,
    ClosedError,
    DurationNs,
}

/// After the named cells: replies per interval of [`DURATION_BOUNDS_US`]; the last cell is for
/// replies longer than all bounds.
pub(super) const CELLS: usize = NAMED_CELLS + DURATION_BOUNDS_US.len() + 1;

/// Microseconds: from a small file in memory to a client on a slow line.
pub(super) const DURATION_BOUNDS_US: [u64; 17] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000, 60_000_000,
];

/// One thread's counts. Aligned to two cache lines, because x86 prefetches lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Cells {
    values: [AtomicU64; CELLS],
}

impl Default for Cells {
    fn default() -> Cells {
        Cells { values: [const { AtomicU64::new(0) }; CELLS] }
    }
}

impl Cells {
    /// Only the owner calls this, so no count is lost between load and store.
    pub(super) fn add(&self, cell: Cell, count: u64) {
        self.add_at(cell as usize, count);
    }

    pub(super) fn add_at(&self, cell: usize, count: u64) {
        let value = &self.values[cell];
        // Release pairs with the snapshot's Acquire: see there.
        value.store(value.load(Ordering::Relaxed).wrapping_add(count), Ordering::Release);
    }
}

/// The cells of all threads that have counted in one `Counters`.
#[derive(Debug, Default)]
pub(super) struct Registry {
    all: Mutex<All>,
}

#[derive(Debug)]
struct All {
    live: Vec<Arc<Cells>>,
    /// Sum of the counts of ended threads.
    retired: [u64; CELLS],
}

impl Default for All {
    fn default() -> All {
        All { live: Vec::new(), retired: [0; CELLS] }
    }
}

impl Registry {
    /// Adds to the calling thread's cells.
    #[inline]
    pub(super) fn count(self: &Arc<Registry>, add: impl Fn(&Cells)) {
        let counted = MINE.try_with(|mine| {
            let mut mine = mine.borrow_mut();
            let own = mine.iter().find(|own| own.is_of(self));
            match own {
                Some(own) => add(&own.cells),
                None => add(&register(&mut mine, self).cells),
            }
        });
        if counted.is_err() {
            // The thread is ending and has returned its cells already.
            let cells = Cells::default();
            add(&cells);
            self.lock().retire(&cells);
        }
    }

    /// All threads' counts, added up.
    pub(super) fn sum(&self) -> [u64; CELLS] {
        let all = self.lock();
        let mut values = all.retired;
        // Closed before accepted: any accept that preceded a seen close is then seen as well.
        for cell in (0..CELLS).rev() {
            let live = all.live.iter().map(|cells| cells.values[cell].load(Ordering::Acquire));
            values[cell] += live.sum::<u64>();
        }
        values
    }

    /// Number of counting threads.
    #[cfg(test)]
    pub(super) fn live_count(&self) -> usize {
        self.lock().live.len()
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl All {
    fn retire(&mut self, cells: &Cells) {
        for (sum, value) in self.retired.iter_mut().zip(&cells.values) {
            *sum += value.load(Ordering::Relaxed);
        }
    }
}

thread_local! {
    /// This thread's cells, one block per `Counters`; a server has one.
    static MINE: RefCell<Vec<Mine>> = const { RefCell::new(Vec::new()) };
}

struct Mine {
    registry: Weak<Registry>,
    cells: Arc<Cells>,
}

impl Mine {
    fn is_of(&self, registry: &Arc<Registry>) -> bool {
        // A `Weak` keeps the address from being reused.
        std::ptr::eq(self.registry.as_ptr(), Arc::as_ptr(registry))
    }
}

fn register<'a>(mine: &'a mut Vec<Mine>, registry: &Arc<Registry>) -> &'a Mine {
    mine.retain(|own| own.registry.strong_count() > 0);
    let cells = Arc::new(Cells::default());
    registry.lock().live.push(Arc::clone(&cells));
    mine.push(Mine { registry: Arc::downgrade(registry), cells });
    mine.last().expect("just pushed")
}

/// At the end of the thread.
impl Drop for Mine {
    fn drop(&mut self) {
        if let Some(registry) = self.registry.upgrade() {
            let mut all = registry.lock();
            all.retire(&self.cells);
            all.live.retain(|cells| !Arc::ptr_eq(cells, &self.cells));
        }
    }
}
