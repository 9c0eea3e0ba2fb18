//! What the driver counts.
//!
//! ```text
//!   thread 1          thread 2          thread 3 (ended)
//!  ┌──────────┐      ┌──────────┐
//!  │ cells    │      │ cells    │       added to `retired`
//!  └──────────┘      └──────────┘
//!        ▲                 ▲                 ▲
//!        └──── snapshot() adds them up ──────┘
//! ```
//!
//! A thread writes only its own cells, so counting is a load and a store without a lock prefix, in
//! cache lines that no other thread writes.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::io::Errno;
use session::Phase;

use crate::metrics::MetricsWriter;

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The peer closed it, between two requests or within one.
    Peer,
    /// The session said so: the reply was the last one (`Connection: close`, HTTP/1.0, a bad
    /// request).
    Session,
    /// The peer was silent for too long in this phase.
    TimedOut(Phase),
    /// The peer took our bytes too slowly, or none at all.
    TooSlow,
    /// The peer sent more than the driver holds without the session using any of it.
    TooLong,
    /// There was no room for the connection.
    Refused,
    /// The server drains: it was idle, or cut at the deadline.
    Drained,
    /// The connection failed: reset, or a local error.
    Error,
}

/// What went wrong in accept(2), as far as a driver cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptError {
    /// No descriptors are left (`EMFILE`, `ENFILE`). The connection stays in the backlog and accept
    /// fails again at once: pause.
    Descriptors,
    /// The connection was gone before it was accepted (`ECONNABORTED` and the network errors that
    /// accept(2) passes on). Go on.
    Aborted,
    /// The kernel has no memory for it (`ENOBUFS`, `ENOMEM`): pause.
    Memory,
    /// Anything else.
    Other,
}

macro_rules! cells {
    ($($name:ident),* $(,)?) => {
        /// Which cell of a thread's block.
        #[derive(Clone, Copy)]
        enum Cell { $($name),* }
        const NAMED_CELLS: usize = [$(Cell::$name),*].len();
    };
}

cells! {
    Accepted, AcceptPauses,
    Receives, BytesReceived, Sends, BytesSent, WorkCalls,
    AcceptDescriptors, AcceptAborted, AcceptMemory, AcceptOther,
    ClosedPeer, ClosedSession, ClosedIdle, ClosedHead, ClosedBody, ClosedTooSlow, ClosedTooLong,
    ClosedRefused, ClosedDrained, ClosedError,
    DurationNs,
}

/// Behind the named cells: how many replies took up to each of [`DURATION_BOUNDS_US`], but longer than the one before; the
/// last is for those beyond all.
const CELLS: usize = NAMED_CELLS + DURATION_BOUNDS_US.len() + 1;

/// Microseconds: from a small file out of memory to a client on a slow line.
const DURATION_BOUNDS_US: [u64; 17] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000, 60_000_000,
];

impl Closed {
    /// Every reason.
    pub const ALL: [Closed; 10] = [
        Closed::Peer,
        Closed::Session,
        Closed::TimedOut(Phase::Idle),
        Closed::TimedOut(Phase::Head),
        Closed::TimedOut(Phase::Body),
        Closed::TooSlow,
        Closed::TooLong,
        Closed::Refused,
        Closed::Drained,
        Closed::Error,
    ];

    /// The reason as a metric's label.
    pub fn label(self) -> &'static str {
        match self {
            Closed::Peer => "peer",
            Closed::Session => "session",
            Closed::TimedOut(Phase::Idle) => "timeout_idle",
            Closed::TimedOut(Phase::Head) => "timeout_head",
            Closed::TimedOut(Phase::Body) => "timeout_body",
            Closed::TooSlow => "too_slow",
            Closed::TooLong => "too_long",
            Closed::Refused => "refused",
            Closed::Drained => "drained",
            Closed::Error => "error",
        }
    }

    fn cell(self) -> Cell {
        match self {
            Closed::Peer => Cell::ClosedPeer,
            Closed::Session => Cell::ClosedSession,
            Closed::TimedOut(Phase::Idle) => Cell::ClosedIdle,
            Closed::TimedOut(Phase::Head) => Cell::ClosedHead,
            Closed::TimedOut(Phase::Body) => Cell::ClosedBody,
            Closed::TooSlow => Cell::ClosedTooSlow,
            Closed::TooLong => Cell::ClosedTooLong,
            Closed::Refused => Cell::ClosedRefused,
            Closed::Drained => Cell::ClosedDrained,
            Closed::Error => Cell::ClosedError,
        }
    }
}

impl AcceptError {
    /// Every class.
    pub const ALL: [AcceptError; 4] = [
        AcceptError::Descriptors,
        AcceptError::Aborted,
        AcceptError::Memory,
        AcceptError::Other,
    ];

    /// The class of an error of accept(2).
    pub fn of(error: &io::Error) -> AcceptError {
        match Errno::from_io_error(error) {
            Some(Errno::MFILE | Errno::NFILE) => AcceptError::Descriptors,
            Some(Errno::NOBUFS | Errno::NOMEM) => AcceptError::Memory,
            // "Linux accept() passes already-pending network errors on the new socket": treat them
            // like a connection that went away. accept(2)
            Some(
                Errno::CONNABORTED
                | Errno::CONNRESET
                | Errno::PROTO
                | Errno::NOPROTOOPT
                | Errno::NETDOWN
                | Errno::NETUNREACH
                | Errno::NONET
                | Errno::HOSTDOWN
                | Errno::HOSTUNREACH
                | Errno::OPNOTSUPP
                | Errno::TIMEDOUT,
            ) => AcceptError::Aborted,
            _ => AcceptError::Other,
        }
    }

    /// The class as a metric's label.
    pub fn label(self) -> &'static str {
        match self {
            AcceptError::Descriptors => "emfile",
            AcceptError::Aborted => "aborted",
            AcceptError::Memory => "nobufs",
            AcceptError::Other => "other",
        }
    }

    fn cell(self) -> Cell {
        match self {
            AcceptError::Descriptors => Cell::AcceptDescriptors,
            AcceptError::Aborted => Cell::AcceptAborted,
            AcceptError::Memory => Cell::AcceptMemory,
            AcceptError::Other => Cell::AcceptOther,
        }
    }
}

/// The counters of one server. Cheap to count from any thread; share it by reference or `Arc`.
#[derive(Debug, Default)]
pub struct Counters {
    registry: Arc<Registry>,
}

impl Counters {
    /// Counters at zero.
    pub fn new() -> Counters {
        Counters::default()
    }

    /// A connection was accepted. It must be [`closed`](Counters::closed) exactly once.
    pub fn accepted(&self) {
        self.count(|cells| cells.add(Cell::Accepted, 1));
    }

    /// A connection ended.
    pub fn closed(&self, reason: Closed) {
        self.count(|cells| cells.add(reason.cell(), 1));
    }

    /// accept(2) failed. Returns the class, which says whether to pause.
    pub fn accept_failed(&self, error: &io::Error) -> AcceptError {
        let class = AcceptError::of(error);
        self.count(|cells| cells.add(class.cell(), 1));
        class
    }

    /// Accepting paused: the server is full, or accept(2) cannot go on.
    pub fn accept_paused(&self) {
        self.count(|cells| cells.add(Cell::AcceptPauses, 1));
    }

    /// A receive brought `len` bytes.
    pub fn received(&self, len: usize) {
        self.count(|cells| {
            cells.add(Cell::Receives, 1);
            cells.add(Cell::BytesReceived, len as u64);
        });
    }

    /// A send took `len` bytes.
    pub fn sent(&self, len: usize) {
        self.count(|cells| {
            cells.add(Cell::Sends, 1);
            cells.add(Cell::BytesSent, len as u64);
        });
    }

    /// So many replies were sent, and each took so long from the first byte of the request to the last of the reply.
    pub fn replied(&self, count: u64, took: Duration) {
        let us = took.as_micros() as u64;
        // Most take the first or second bucket, so a search from the front is the shortest.
        let bound = DURATION_BOUNDS_US.iter().position(|bound| us <= *bound);
        let bucket = NAMED_CELLS + bound.unwrap_or(DURATION_BOUNDS_US.len());
        self.count(|cells| {
            cells.add(Cell::DurationNs, took.as_nanos() as u64 * count);
            cells.add_at(bucket, count);
        });
    }

    /// A session did work that may block.
    pub fn worked(&self) {
        self.count(|cells| cells.add(Cell::WorkCalls, 1));
    }

    /// All threads' counts, added up.
    ///
    /// However many threads count meanwhile, a snapshot never shows more connections closed than
    /// accepted.
    pub fn snapshot(&self) -> Snapshot {
        let all = self.registry.lock();
        let mut snapshot = Snapshot {
            values: all.retired,
        };
        // Closed before accepted: what was accepted before it was closed is then seen as well.
        for cell in (0..CELLS).rev() {
            let live = all
                .live
                .iter()
                .map(|cells| cells.values[cell].load(Ordering::Acquire));
            snapshot.values[cell] += live.sum::<u64>();
        }
        snapshot
    }

    fn count(&self, add: impl Fn(&Cells)) {
        let counted = MINE.try_with(|mine| {
            let mut mine = mine.borrow_mut();
            let own = mine.iter().find(|own| own.is_of(&self.registry));
            match own {
                Some(own) => add(&own.cells),
                None => add(&register(&mut mine, &self.registry).cells),
            }
        });
        if counted.is_err() {
            // The thread is ending and has given its cells back already.
            let cells = Cells::default();
            add(&cells);
            self.registry.lock().retire(&cells);
        }
    }
}

/// One thread's counts. Two cache lines at a time, because x86 prefetches lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Cells {
    values: [AtomicU64; CELLS],
}

impl Default for Cells {
    fn default() -> Cells {
        Cells {
            values: [const { AtomicU64::new(0) }; CELLS],
        }
    }
}

impl Cells {
    /// Only the owner calls this, so nothing is lost between load and store.
    fn add(&self, cell: Cell, count: u64) {
        self.add_at(cell as usize, count);
    }

    fn add_at(&self, cell: usize, count: u64) {
        let value = &self.values[cell];
        // Release pairs with the snapshot's Acquire: see there.
        value.store(
            value.load(Ordering::Relaxed).wrapping_add(count),
            Ordering::Release,
        );
    }
}

#[derive(Debug, Default)]
struct Registry {
    all: Mutex<All>,
}

#[derive(Debug)]
struct All {
    live: Vec<Arc<Cells>>,
    /// The sum of what ended threads counted.
    retired: [u64; CELLS],
}

impl Default for All {
    fn default() -> All {
        All {
            live: Vec::new(),
            retired: [0; CELLS],
        }
    }
}

impl Registry {
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
    /// This thread's cells, one for each `Counters` that it counted on; in a server that is one.
    static MINE: RefCell<Vec<Mine>> = const { RefCell::new(Vec::new()) };
}

struct Mine {
    registry: Weak<Registry>,
    cells: Arc<Cells>,
}

impl Mine {
    fn is_of(&self, registry: &Arc<Registry>) -> bool {
        // A `Weak` keeps the address from being used again.
        std::ptr::eq(self.registry.as_ptr(), Arc::as_ptr(registry))
    }
}

fn register<'a>(mine: &'a mut Vec<Mine>, registry: &Arc<Registry>) -> &'a Mine {
    mine.retain(|own| own.registry.strong_count() > 0);
    let cells = Arc::new(Cells::default());
    registry.lock().live.push(Arc::clone(&cells));
    mine.push(Mine {
        registry: Arc::downgrade(registry),
        cells,
    });
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

/// The counts at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    values: [u64; CELLS],
}

impl Snapshot {
    /// Connections accepted so far: the sum of [`active`](Snapshot::active) and
    /// [`closed_total`](Snapshot::closed_total).
    pub fn accepted(&self) -> u64 {
        self.value(Cell::Accepted)
    }

    /// Connections that are open.
    pub fn active(&self) -> u64 {
        let (accepted, closed) = (self.accepted(), self.closed_total());
        accepted.checked_sub(closed).unwrap_or_else(|| {
            panic!("{closed} connections closed of {accepted} accepted: one was closed twice")
        })
    }

    /// Connections that ended for this reason.
    pub fn closed(&self, reason: Closed) -> u64 {
        self.value(reason.cell())
    }

    /// Connections that ended.
    pub fn closed_total(&self) -> u64 {
        Closed::ALL.iter().map(|reason| self.closed(*reason)).sum()
    }

    /// Failures of accept(2) of this class.
    pub fn accept_errors(&self, class: AcceptError) -> u64 {
        self.value(class.cell())
    }

    /// How often accepting paused.
    pub fn accept_pauses(&self) -> u64 {
        self.value(Cell::AcceptPauses)
    }

    /// Receives that brought something.
    pub fn receives(&self) -> u64 {
        self.value(Cell::Receives)
    }

    /// Bytes received.
    pub fn bytes_received(&self) -> u64 {
        self.value(Cell::BytesReceived)
    }

    /// Sends that took something.
    pub fn sends(&self) -> u64 {
        self.value(Cell::Sends)
    }

    /// Bytes sent.
    pub fn bytes_sent(&self) -> u64 {
        self.value(Cell::BytesSent)
    }

    /// Calls of `Session::work`.
    pub fn work_calls(&self) -> u64 {
        self.value(Cell::WorkCalls)
    }

    /// Writes all of it for `/metrics`.
    pub fn write_to(&self, out: &mut MetricsWriter) {
        out.counter(
            "weft_connections_accepted_total",
            "Connections accepted.",
            &[],
            self.accepted(),
        );
        out.gauge(
            "weft_connections_active",
            "Connections open.",
            &[],
            self.active() as f64,
        );
        for reason in Closed::ALL {
            let labels = [("reason", reason.label())];
            let help = "Connections ended, by reason.";
            out.counter(
                "weft_connections_closed_total",
                help,
                &labels,
                self.closed(reason),
            );
        }
        for class in AcceptError::ALL {
            let labels = [("class", class.label())];
            let help = "Failures of accept(2), by class.";
            out.counter(
                "weft_accept_errors_total",
                help,
                &labels,
                self.accept_errors(class),
            );
        }
        let plain = [
            (
                "weft_accept_pauses_total",
                "Times accepting paused.",
                self.accept_pauses(),
            ),
            (
                "weft_receives_total",
                "Receives that brought bytes.",
                self.receives(),
            ),
            (
                "weft_received_bytes_total",
                "Bytes received.",
                self.bytes_received(),
            ),
            ("weft_sends_total", "Sends that took bytes.", self.sends()),
            ("weft_sent_bytes_total", "Bytes sent.", self.bytes_sent()),
            (
                "weft_work_calls_total",
                "Session work that may block.",
                self.work_calls(),
            ),
        ];
        for (name, help, value) in plain {
            out.counter(name, help, &[], value);
        }
    }

    /// Writes how long replies took, as a histogram of this name.
    pub fn write_durations_to(&self, name: &str, help: &str, out: &mut MetricsWriter) {
        let bounds = DURATION_BOUNDS_US.map(|us| us as f64 / 1e6);
        let sum = self.value(Cell::DurationNs) as f64 / 1e9;
        out.histogram(name, help, &bounds, &self.values[NAMED_CELLS..], sum);
    }

    fn value(&self, cell: Cell) -> u64 {
        self.values[cell as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn every_event_is_counted_in_its_place() {
        let counters = Counters::new();
        for reason in Closed::ALL {
            counters.accepted();
            counters.closed(reason);
        }
        counters.accepted();
        counters.received(100);
        counters.sent(1000);
        counters.sent(24);
        counters.worked();
        counters.accept_paused();

        let seen = counters.snapshot();
        assert!(
            Closed::ALL.iter().all(|reason| seen.closed(*reason) == 1),
            "{seen:?}"
        );
        assert_eq!(
            (seen.accepted(), seen.active(), seen.closed_total()),
            (11, 1, 10)
        );
        assert_eq!((seen.receives(), seen.bytes_received()), (1, 100));
        assert_eq!((seen.sends(), seen.bytes_sent()), (2, 1024));
        assert_eq!((seen.work_calls(), seen.accept_pauses()), (1, 1));
    }

    #[test]
    fn accept_errors_are_told_apart_by_what_to_do() {
        let counters = Counters::new();
        let check = |errno: Errno, class: AcceptError| {
            let before = counters.snapshot().accept_errors(class);
            assert_eq!(counters.accept_failed(&errno.into()), class);
            assert_eq!(counters.snapshot().accept_errors(class), before + 1);
        };
        check(Errno::MFILE, AcceptError::Descriptors);
        check(Errno::NFILE, AcceptError::Descriptors);
        check(Errno::CONNABORTED, AcceptError::Aborted);
        check(Errno::HOSTUNREACH, AcceptError::Aborted);
        check(Errno::NOBUFS, AcceptError::Memory);
        check(Errno::NOMEM, AcceptError::Memory);
        check(Errno::BADF, AcceptError::Other);
    }

    #[test]
    fn what_ended_threads_counted_is_kept() {
        let counters = Counters::new();
        for _ in 0..3 {
            std::thread::scope(|scope| {
                scope.spawn(|| counters.received(5)).join().unwrap();
            });
        }
        assert_eq!(counters.snapshot().bytes_received(), 15);
        assert_eq!(
            counters.registry.lock().live.len(),
            0,
            "cells of ended threads are given back"
        );
    }

    #[test]
    fn servers_in_one_process_count_apart() {
        let (one, other) = (Counters::new(), Counters::new());
        one.accepted();
        other.sent(7);
        assert_eq!(
            (one.snapshot().accepted(), one.snapshot().bytes_sent()),
            (1, 0)
        );
        assert_eq!(
            (other.snapshot().accepted(), other.snapshot().bytes_sent()),
            (0, 7)
        );
    }

    #[test]
    fn accepted_is_active_plus_closed_at_every_moment() {
        // Connections are accepted by one thread and closed by another, as fibers and workers do.
        const CONNECTIONS: u64 = 20_000;
        let counters = Counters::new();
        let done = AtomicBool::new(false);
        let (hand_over, take_over) = std::sync::mpsc::sync_channel(16);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let hand_over = hand_over;
                for number in 0..CONNECTIONS {
                    counters.accepted();
                    hand_over.send(number as usize).unwrap();
                }
            });
            scope.spawn(|| {
                for number in take_over {
                    counters.closed(Closed::ALL[number % Closed::ALL.len()]);
                }
                done.store(true, Ordering::Release);
            });
            while !done.load(Ordering::Acquire) {
                let seen = counters.snapshot();
                // In the channel, in each thread's hands, and what happens between two loads of a
                // snapshot only makes `accepted` larger.
                assert_eq!(seen.accepted(), seen.active() + seen.closed_total());
                std::thread::yield_now();
            }
        });
        let seen = counters.snapshot();
        assert_eq!((seen.accepted(), seen.active()), (CONNECTIONS, 0));
    }

    #[test]
    fn every_count_is_in_the_metrics() {
        let counters = Counters::new();
        counters.accepted();
        let mut out = MetricsWriter::default();
        counters.snapshot().write_to(&mut out);
        let text = String::from_utf8(out.finish()).unwrap();
        assert!(
            text.contains("\nweft_connections_accepted_total 1\n"),
            "{text}"
        );
        assert!(text.contains("\nweft_connections_active 1\n"), "{text}");
        assert!(text.contains("{reason=\"timeout_head\"} 0\n"), "{text}");
        assert!(text.contains("{class=\"emfile\"} 0\n"), "{text}");
        let samples = text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(
            samples, NAMED_CELLS,
            "one sample for each named cell but the sum of durations, and one for active"
        );
    }

    #[test]
    fn a_reply_is_counted_in_the_bucket_of_its_time() {
        // On the bound is within it, as Prometheus' `le` says.
        let counters = Counters::new();
        for (count, us) in [(1, 0), (1, 100), (1, 101), (1, 60_000_000), (2, 60_000_001)] {
            counters.replied(count, Duration::from_micros(us));
        }
        let mut out = MetricsWriter::default();
        counters
            .snapshot()
            .write_durations_to("t", "Time.", &mut out);
        let text = String::from_utf8(out.finish()).unwrap();
        for line in [
            "# TYPE t histogram",
            "t_bucket{le=\"0.0001\"} 2",
            "t_bucket{le=\"0.00025\"} 3",
            "t_bucket{le=\"10\"} 3",
            "t_bucket{le=\"60\"} 4",
            "t_bucket{le=\"+Inf\"} 6",
            "t_sum 180.000203",
            "t_count 6",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
    }
}
