//! A cluster: processors that share the fibers which have no frames.
//!
//! Each processor has a half that only its own thread touches (`processor.rs`) and a half that
//! every thread may reach, which is here: the inbox, through which other threads make a processor's
//! own fibers ready. What all share is the [`ReadyQueue`] of fibers that any processor may run.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::backend::{BackendKind, LentMemory, Waker};
use crate::base::counters::Counters;
use crate::base::home::Home;
use crate::base::lock::lock;
use crate::base::stamp;
use crate::sched::fiber_ref::FiberRef;
use crate::sched::idle::{Idle, Notified};
use crate::sched::inbox::{Inbox, Next};
use crate::sched::ready_queue::ReadyQueue;
use crate::sched::registry::Registry;
use crate::sched::threads::ProcessorThreads;

/// Time between two looks at another processor's run queues while runs are short: less than what
/// waits there must have waited to be helped.
const LOOK: Duration = Duration::from_micros(2);

/// Processors that work together, and the fibers that live on them.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// Process of the processors' threads.
    pub(crate) process: Home,
    pub(crate) backend: BackendKind,
    /// A slot for each processor that there may ever be at a time. See
    /// [`open_slots`](Cluster::open_slots).
    pub(crate) processors: Box<[ProcessorShared]>,
    /// Number of slots from the first to the last that was ever taken.
    slots_open: AtomicUsize,
    pub(crate) processor_threads: ProcessorThreads,
    /// Number of processors that run and do not retire.
    pub(crate) running: AtomicUsize,
    /// Round robin for spawns from plain threads.
    pub(super) next: AtomicUsize,
    pub(crate) queue: ReadyQueue<FiberRef>,
    pub(crate) idle: Arc<Idle>,
    /// Number of fibers, with the flag [`CLOSED`].
    fiber_count: AtomicUsize,
    pub(super) registry: Registry<FiberRef>,
    stopping: AtomicBool,
    /// True if a monitor checks now and then whether work waits while a processor sleeps.
    is_monitored: AtomicBool,
    /// Times that a fiber was seen to keep its processor for too long.
    pub(crate) stalls: AtomicU64,
    empty: Condvar,
    empty_lock: Mutex<()>,
}

/// Flag in the count of fibers: no more are admitted, because the runtime is shut down.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// The half of a processor that every thread may reach.
#[derive(Debug)]
pub(crate) struct ProcessorShared {
    pub(crate) counters: Counters,
    pub(crate) waker: Waker,
    inbox: Inbox<Message>,
    pub(crate) index: usize,
    idle: Arc<Idle>,
    pub(crate) stage: SlotState,
    /// Fibers that have frames here and cannot leave, as of its latest turn.
    pub(crate) pinned: AtomicUsize,
    /// Memory of the ring's receive buffers, which fibers that move take along; unset on other back
    /// ends.
    pub(crate) lent_memory: OnceLock<Arc<LentMemory>>,
    pub(crate) running: Running,
    /// Its kernel thread, as gettid(2) says; 0 before it runs.
    pub(crate) thread: AtomicI32,
}

/// The number of the fiber that runs; 0 is none. In cache lines of its own, because the processor
/// writes it at every switch, and others read what lies beside it to reach the processor.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Running(AtomicU64);

impl Running {
    #[inline]
    pub(crate) fn set(&self, fiber: u64) {
        self.0.store(fiber, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A message from another thread to a processor.
pub(crate) enum Message {
    /// A fiber that was spawned for this processor.
    Start(FiberRef),
    /// A call of the function with these words, on the processor's own stack. The function finds
    /// its processor by [`here`](crate::sched::processor::here).
    Call(fn([u64; 2]), [u64; 2]),
    /// A call with data that does not fit into words; it costs an allocation.
    Job(Box<dyn FnOnce() + Send>),
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Message::Start(_) => "Start",
            Message::Call(..) => "Call",
            Message::Job(_) => "Job",
        })
    }
}

/// State of a slot: free, with a processor, or with one that retires.
#[derive(Debug, Default)]
pub(crate) struct SlotState(AtomicU8);

pub(crate) const FREE: u8 = 0;
pub(crate) const RUNNING: u8 = 1;
pub(crate) const RETIRING: u8 = 2;

impl SlotState {
    pub(crate) fn enter(&self, stage: u8) {
        self.0.store(stage, Ordering::SeqCst);
    }

    pub(crate) fn now(&self) -> u8 {
        self.0.load(Ordering::SeqCst)
    }

    pub(crate) fn is(&self, stage: u8) -> bool {
        self.now() == stage
    }
}

impl Cluster {
    /// A cluster without processors, of which there may be up to `processors_max` at a time.
    pub(crate) fn new(processors_max: usize, backend: BackendKind) -> Arc<Cluster> {
        assert!(processors_max > 0, "a cluster of 0 processors runs no fiber");
        let idle = Arc::new(Idle::new(processors_max));
        let processors = (0..processors_max)
            .map(|index| ProcessorShared::new(index, Arc::clone(&idle)))
            .collect();
        Arc::new(Cluster {
            process: Home::here(),
            backend,
            processors,
            slots_open: AtomicUsize::new(0),
            processor_threads: ProcessorThreads::new(processors_max),
            running: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            queue: ReadyQueue::new(processors_max, stamp::ticks(LOOK)),
            idle,
            fiber_count: AtomicUsize::new(0),
            registry: Registry::new(),
            stopping: AtomicBool::new(false),
            is_monitored: AtomicBool::new(false),
            stalls: AtomicU64::new(0),
            empty: Condvar::new(),
            empty_lock: Mutex::new(()),
        })
    }

    pub(crate) fn set_monitored(&self, is_monitored: bool) {
        self.is_monitored.store(is_monitored, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_monitored(&self) -> bool {
        self.is_monitored.load(Ordering::Relaxed)
    }

    /// Number of processors that run and do not retire.
    pub(crate) fn processor_count(&self) -> usize {
        self.running.load(Ordering::Acquire)
    }

    /// The slots of present and former processors.
    pub(crate) fn open_slots(&self) -> &[ProcessorShared] {
        &self.processors[..self.slots_open.load(Ordering::Acquire)]
    }

    pub(crate) fn open_slot(&self, index: usize) {
        self.slots_open.fetch_max(index + 1, Ordering::AcqRel);
    }

    /// Counts a new fiber; false if the cluster is closed.
    pub(super) fn count_in(&self) -> bool {
        let is_closed = self.fiber_count.fetch_add(1, Ordering::AcqRel) & CLOSED != 0;
        if is_closed {
            self.fiber_finished();
        }
        !is_closed
    }

    /// Refuses further fibers; returns how many there are.
    pub(crate) fn close(&self) -> usize {
        self.fiber_count.fetch_or(CLOSED, Ordering::AcqRel) & !CLOSED
    }

    /// Sends a message to the running processor after `index` others, modulo their number; to none
    /// if the cluster has stopped.
    pub(crate) fn send_to_running(&self, index: usize, mut message: Message) {
        while !self.is_stopping() {
            let running = self.open_slots().iter().filter(|slot| slot.is_running());
            let count = running.clone().count().max(1);
            let Some(slot) = running.clone().nth(index % count) else {
                continue; // It ended during the count.
            };
            match slot.try_send(message) {
                Ok(()) => return,
                Err(refused) => message = refused,
            }
        }
    }

    /// Wakes a sleeper, if there is one and no spinner, because there is work for any processor.
    pub(crate) fn notify(&self) -> Notified {
        let notified = self.idle.notify();
        if let Notified::Wake(index) = notified {
            self.processors[index].waker.wake();
        }
        notified
    }

    /// Number of the processor with this shared half, if the cluster has it.
    pub(crate) fn index_of(&self, shared: *const ProcessorShared) -> Option<usize> {
        let mut processors = self.open_slots().iter();
        processors.position(|slot| std::ptr::eq(slot, shared) && !slot.is_free())
    }

    pub(crate) fn fiber_finished(&self) {
        if self.fiber_count.fetch_sub(1, Ordering::AcqRel) & !CLOSED == 1 {
            let _guard = lock(&self.empty_lock);
            self.empty.notify_all();
        }
    }

    pub(crate) fn fiber_count(&self) -> usize {
        self.fiber_count.load(Ordering::Acquire) & !CLOSED
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
            guard = self.empty.wait_timeout(guard, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.processors.iter().for_each(ProcessorShared::wake);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// True if processor `index`, which has registered as a sleeper, must stay awake after all.
    pub(crate) fn is_work_for(&self, index: usize) -> bool {
        let has_messages = self.processors[index].has_messages();
        let is_work = !self.queue.is_empty() && !self.idle.has_spinner();
        has_messages || is_work || self.is_stopping()
    }
}

impl ProcessorShared {
    /// True if there is no processor here.
    pub(crate) fn is_free(&self) -> bool {
        self.stage.is(FREE)
    }

    /// True if there is a processor here that does not retire.
    pub(crate) fn is_running(&self) -> bool {
        self.stage.is(RUNNING)
    }

    fn new(index: usize, idle: Arc<Idle>) -> ProcessorShared {
        ProcessorShared {
            counters: Counters::default(),
            waker: Waker::default(),
            inbox: Inbox::closed(),
            index,
            idle,
            stage: SlotState::default(),
            pinned: AtomicUsize::new(0),
            lent_memory: OnceLock::new(),
            running: Running::default(),
            thread: AtomicI32::new(0),
        }
    }

    /// Opens the eventfd that ends the sleep of a new processor.
    pub(crate) fn open(&self) -> io::Result<Arc<OwnedFd>> {
        let wake_fd = self.waker.open()?;
        self.inbox.open();
        Ok(wake_fd)
    }

    /// Closes it after the processor has ended.
    pub(crate) fn close(&self) {
        self.close_inbox();
        self.waker.close();
        self.thread.store(0, Ordering::Release);
    }

    /// Closes the inbox of a retiring processor if it is empty; returns true if so. Nothing can be
    /// put there afterwards.
    pub(crate) fn close_inbox_if_empty(&self) -> bool {
        self.inbox.close_if_empty()
    }

    /// Closes the inbox when the cluster stops: present and later messages are lost.
    pub(crate) fn close_inbox(&self) {
        // A message may name a fiber, which keeps the cluster, which keeps the message.
        drop(self.inbox.close());
    }

    /// Posts a message and wakes the processor. Without a processor the message is dropped: the
    /// fiber that lived there has left, and checks for itself where it continues.
    pub(crate) fn send(&self, message: Message) {
        drop(self.try_send(message));
    }

    /// # Errors
    /// The message, if there is no processor to read it.
    fn try_send(&self, message: Message) -> Result<(), Message> {
        self.inbox.post(message)?;
        self.wake();
        Ok(())
    }

    /// Same as [`send`](ProcessorShared::send), without waking the processor.
    pub(crate) fn send_unhurried(&self, message: Message) {
        drop(self.inbox.post(message));
    }

    /// Makes one of the processor's own fibers ready, from another thread, and wakes the processor.
    /// `next` is the fiber's.
    #[inline]
    pub(crate) fn send_ready(&self, fiber: FiberRef, next: &Next) {
        self.inbox.push_ready(fiber.address().as_ptr(), next);
        self.wake();
    }

    /// Takes the fibers that others have made ready: the latest, and behind it those before.
    pub(crate) fn take_ready(&self) -> Option<FiberRef> {
        FiberRef::at_some(self.inbox.take_ready())
    }

    pub(crate) fn has_messages(&self) -> bool {
        self.inbox.has_some()
    }

    pub(crate) fn take_messages(&self) -> Vec<Message> {
        self.inbox.take()
    }

    pub(crate) fn is_asleep(&self) -> bool {
        self.idle.is_asleep(self.index)
    }

    /// Wakes the processor if it sleeps. Only the first of many wakers makes the system call.
    fn wake(&self) {
        if self.idle.wake(self.index) {
            self.waker.wake();
        }
    }
}

pub(crate) fn stopped() -> io::Error {
    let message = "the runtime of this cluster has been shut down";
    io::Error::new(io::ErrorKind::NotConnected, message)
}
