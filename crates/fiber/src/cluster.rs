//! A cluster: processors that share their unstarted fibers.
//!
//! Each processor has a half that only its own thread touches (`processor.rs`) and a half that
//! everybody may reach, which is here: the lane of unstarted fibers, from which any processor may
//! take, and the inbox, through which other threads make a processor's own fibers ready.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::backend::LentMemory;
use crate::counters::Counters;
use crate::fiber::{Fiber, FiberRef};
use crate::fork::Home;
use crate::look::TraceJob;
use crate::roster::Roster;

/// Processors that work together, and the fibers that live on them.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// Where the threads of the processors are.
    pub(crate) process: Home,
    pub(crate) processors: Vec<ProcessorShared>,
    /// Round robin for spawns from plain threads.
    next: AtomicUsize,
    /// How many processors sleep: a spawn that finds none has nobody to wake.
    sleeper_count: AtomicUsize,
    fiber_count: AtomicUsize,
    pub(crate) roster: Roster,
    stopping: AtomicBool,
    /// Times that a fiber was seen to keep its processor for too long.
    pub(crate) stalls: AtomicU64,
    empty: Condvar,
    empty_lock: Mutex<()>,
}

/// The half of a processor that everybody may reach.
#[derive(Debug)]
pub(crate) struct ProcessorShared {
    pub(crate) counters: Counters,
    pub(crate) wake_fd: OwnedFd,
    inbox: Mutex<Vec<Message>>,
    has_mail: AtomicBool,
    lane: Mutex<VecDeque<FiberRef>>,
    lane_len: AtomicUsize,
    sleeping: AtomicBool,
    /// Of the ring's receive buffers, which fibers that move take along; unset on other back ends.
    pub(crate) lent_memory: OnceLock<Arc<LentMemory>>,
    /// The number of the fiber that runs; 0 is none.
    pub(crate) running: AtomicU64,
    /// Its kernel thread, as gettid(2) says; 0 before it runs.
    pub(crate) thread: AtomicI32,
}

/// What other threads tell a processor.
#[derive(Debug)]
pub(crate) enum Message {
    /// One of its own fibers was unparked.
    Ready(FiberRef),
    /// A fiber that was spawned for this processor.
    Start(FiberRef),
    /// A listener was closed: stop accepting from it, tell those who wait for it.
    CloseListener(u64),
    /// One of its receive buffers has been read elsewhere.
    Buffer(u16),
    /// A connection of this listener has been put by.
    Connection(u64),
    /// One of its own fibers was cancelled.
    Cancel(Fiber),
    /// Say where these fibers are that wait here.
    Trace(TraceJob),
}

impl Cluster {
    pub(crate) fn new(processor_count: usize) -> io::Result<Arc<Cluster>> {
        assert!(processor_count > 0, "a cluster of 0 processors runs nobody");
        let processors = (0..processor_count)
            .map(|_| ProcessorShared::new())
            .collect::<io::Result<_>>()?;
        Ok(Arc::new(Cluster {
            process: Home::here(),
            processors,
            next: AtomicUsize::new(0),
            sleeper_count: AtomicUsize::new(0),
            fiber_count: AtomicUsize::new(0),
            roster: Roster::default(),
            stopping: AtomicBool::new(false),
            stalls: AtomicU64::new(0),
            empty: Condvar::new(),
            empty_lock: Mutex::new(()),
        }))
    }

    fn count_in(&self, fiber: FiberRef) {
        self.process.check("spawn a fiber");
        self.fiber_count.fetch_add(1, Ordering::Relaxed);
        self.roster.add(fiber);
    }

    /// Puts an unstarted fiber into the lane of processor `index`, or of the next in turn.
    pub(crate) fn spawn(&self, fiber: FiberRef, index: Option<usize>) {
        self.count_in(fiber);
        let count = self.processors.len();
        let index = index.unwrap_or_else(|| self.next.fetch_add(1, Ordering::Relaxed) % count);
        self.processors[index].push_unstarted(fiber);
        self.wake_for_unstarted(index);
    }

    /// Starts a fiber on this very processor.
    pub(crate) fn spawn_on(&self, fiber: FiberRef, index: usize) {
        self.count_in(fiber);
        self.processors[index].send(Message::Start(fiber));
    }

    /// Wakes the processor whose lane grew or, if that is awake, some sleeper that may steal.
    fn wake_for_unstarted(&self, index: usize) {
        // Pairs with the fence in `try_sleep`: either the sleeper sees the lane, or we see the sleeper.
        fence(Ordering::SeqCst);
        if self.sleeper_count.load(Ordering::Relaxed) == 0 || self.processors[index].wake() {
            return;
        }
        let _ = self.processors.iter().any(ProcessorShared::wake);
    }

    /// The number of the processor with this shared half, if it is one of the cluster's.
    pub(crate) fn index_of(&self, shared: *const ProcessorShared) -> Option<usize> {
        let mut processors = self.processors.iter();
        processors.position(|processor| std::ptr::eq(processor, shared))
    }

    pub(crate) fn fiber_finished(&self) {
        if self.fiber_count.fetch_sub(1, Ordering::AcqRel) == 1 {
            let _guard = lock(&self.empty_lock);
            self.empty.notify_all();
        }
    }

    pub(crate) fn fiber_count(&self) -> usize {
        self.fiber_count.load(Ordering::Acquire)
    }

    /// Waits until all fibers have finished, or the deadline; returns how many are left.
    pub(crate) fn wait_until_empty(&self, deadline: Option<Instant>) -> usize {
        let mut guard = lock(&self.empty_lock);
        loop {
            let left = self.fiber_count();
            let now = Instant::now();
            if left == 0 || deadline.is_some_and(|deadline| now >= deadline) {
                return left;
            }
            let wait = deadline.map_or(Duration::from_secs(3600), |deadline| deadline - now);
            guard = self
                .empty
                .wait_timeout(guard, wait)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        for processor in &self.processors {
            processor.wake();
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Takes an unstarted fiber from another processor's lane, searching from the neighbour on.
    pub(crate) fn steal(&self, thief: usize) -> Option<FiberRef> {
        let count = self.processors.len();
        (1..count).find_map(|step| self.processors[(thief + step) % count].pop_unstarted())
    }

    /// Announces that processor `index` goes to sleep. `false` if there is work after all: stay up.
    ///
    /// Two steps, so that no wake-up is lost: first the announcement, then one more full search. Whoever
    /// adds work does it the other way round.
    pub(crate) fn try_sleep(&self, index: usize) -> bool {
        let processor = &self.processors[index];
        processor.sleeping.store(true, Ordering::SeqCst);
        self.sleeper_count.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let work = processor.has_mail.load(Ordering::Relaxed)
            || self.is_stopping()
            || self
                .processors
                .iter()
                .any(|p| p.lane_len.load(Ordering::Relaxed) > 0);
        if work {
            self.woke(index);
        }
        !work
    }

    /// The other end of [`try_sleep`](Cluster::try_sleep).
    pub(crate) fn woke(&self, index: usize) {
        self.processors[index]
            .sleeping
            .store(false, Ordering::SeqCst);
        self.sleeper_count.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ProcessorShared {
    fn new() -> io::Result<ProcessorShared> {
        Ok(ProcessorShared {
            counters: Counters::default(),
            wake_fd: eventfd(0, EventfdFlags::CLOEXEC)?,
            inbox: Mutex::default(),
            has_mail: AtomicBool::new(false),
            lane: Mutex::default(),
            lane_len: AtomicUsize::new(0),
            sleeping: AtomicBool::new(false),
            lent_memory: OnceLock::new(),
            running: AtomicU64::new(0),
            thread: AtomicI32::new(0),
        })
    }

    /// Makes one of this processor's own fibers ready, from any thread.
    pub(crate) fn push_ready(&self, fiber: FiberRef) {
        if !crate::processor::push_ready_if_here(self, fiber) {
            self.send(Message::Ready(fiber));
        }
    }

    pub(crate) fn send(&self, message: Message) {
        lock(&self.inbox).push(message);
        self.has_mail.store(true, Ordering::SeqCst);
        // Pairs with the fence in `try_sleep`.
        fence(Ordering::SeqCst);
        self.wake();
    }

    pub(crate) fn take_mail(&self) -> Vec<Message> {
        if !self.has_mail.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let mut inbox = lock(&self.inbox);
        self.has_mail.store(false, Ordering::SeqCst);
        std::mem::take(&mut *inbox)
    }

    fn push_unstarted(&self, fiber: FiberRef) {
        let mut lane = lock(&self.lane);
        lane.push_back(fiber);
        self.lane_len.store(lane.len(), Ordering::SeqCst);
    }

    pub(crate) fn pop_unstarted(&self) -> Option<FiberRef> {
        if self.lane_len.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut lane = lock(&self.lane);
        let fiber = lane.pop_front();
        self.lane_len.store(lane.len(), Ordering::SeqCst);
        fiber
    }

    pub(crate) fn is_asleep(&self) -> bool {
        self.sleeping.load(Ordering::SeqCst)
    }

    /// Wakes the processor if it sleeps. Only the first of many wakers makes the system call.
    fn wake(&self) -> bool {
        let woken = self.sleeping.swap(false, Ordering::SeqCst);
        if woken {
            // The count of an eventfd cannot overflow here: each sleep is written to once.
            rustix::io::write(&self.wake_fd, &1u64.to_ne_bytes()).expect("write to an eventfd");
        }
        woken
    }
}

/// Locks; a panic while holding one of these locks leaves no broken state behind.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
