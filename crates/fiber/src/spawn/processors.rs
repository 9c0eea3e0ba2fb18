//! Processors that come and go while the cluster runs.
//!
//! A cluster has a fixed number of *slots*. A processor that comes takes the first free one: its
//! half of the run queues, its inbox, its counters; it brings a thread, a ring and an eventfd of
//! its own. One that goes leaves in this order:
//!
//! ```text
//!  remove_processor      others                         the processor, in its own loop
//!  ────────────────      ──────                         ──────────────────────────────
//!  shut its run queues   ───▶ push elsewhere
//!  message: Retire  ──────────────────────────────────▶ run queues: carried to the others, each turn
//!                        run what came from there  ◀─── stackless fibers that wait: their receive is
//!                                                       cancelled *and awaited* (what had come is
//!                                                       delivered), begun anew elsewhere
//!                                                       accepts in the ring: ended where none waits
//!                                                       fibers with frames: run on, as long as they like
//!                                                       nothing in the kernel, no buffer lent, no
//!                                                       message: inbox closed
//!                        set timers anew           ◀─── timers of fibers that may be anywhere
//!                                                       ring closed, eventfd closed, thread ends, slot free
//! ```
//!
//! Why nothing is lost: a push to the run queues checks afterwards if they are shut, and the
//! processor empties them after it has shut them (the model is in `ready_queue.rs`). Messages are
//! sent under the inbox's lock, and a refused message is sent to another processor. A fiber whose
//! message comes to a processor that it has left checks by itself when it continues (see
//! [`Fiber::cancel`](crate::Fiber::cancel)).

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::base::lock::lock;
use crate::sched::cluster::{Cluster, FREE, Message, ProcessorShared, RETIRING, RUNNING, stopped};
use crate::sched::processor::Processor;
use crate::sched::threads::ProcessorThread;
use crate::switch::resources;
use crate::sync::Event;
use crate::turn::retire_here;

/// One processor, as [`Runtime::processors`](crate::Runtime::processors) lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessorStatus {
    /// Its number, which another one may get after its end.
    pub index: usize,
    /// True if it was removed and is about to end.
    pub is_retiring: bool,
    /// Fibers that have frames there, as of its latest turn: they cannot continue anywhere else.
    pub pinned: usize,
}

/// A processor that was removed and may still be there, because of fibers that have frames on it.
/// Dropping this changes nothing. From
/// [`Runtime::remove_processor`](crate::Runtime::remove_processor).
#[derive(Clone)]
pub struct Retirement {
    cluster: Arc<Cluster>,
    index: usize,
    ended: Arc<Event>,
}

impl Retirement {
    /// The number that it had.
    pub fn processor(&self) -> usize {
        self.index
    }

    /// True if the processor has ended: its ring and descriptors are closed, its number is free.
    pub fn is_over(&self) -> bool {
        self.ended.is_set()
    }

    /// Number of fibers that it still has to run, because they have frames there.
    /// [`Dump`](crate::Dump) shows which.
    pub fn pinned(&self) -> usize {
        if self.is_over() {
            0
        } else {
            self.cluster.processors[self.index].pinned.load(Ordering::Relaxed)
        }
    }

    /// Waits until the processor has ended, but not longer than `timeout`; true if it has. A fiber
    /// that it still runs would wait for itself.
    pub fn wait(&self, timeout: Duration) -> bool {
        self.ended.wait_timeout(timeout)
    }
}

impl fmt::Debug for Retirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retirement")
            .field("processor", &self.index)
            .field("is_over", &self.is_over())
            .field("pinned", &self.pinned())
            .finish()
    }
}

/// Reports the end of a processor when that drops it.
struct SetOnDrop(Arc<Event>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.set();
    }
}

impl Cluster {
    pub(crate) fn processor_statuses(&self) -> Vec<ProcessorStatus> {
        // One read of each: between two, one that was retiring may have ended, and seem to run.
        let slots = self.open_slots().iter();
        let stages = slots.map(|slot| (slot, slot.stage.now()));
        stages
            .filter(|(_, stage)| *stage != FREE)
            .map(|(slot, stage)| ProcessorStatus {
                index: slot.index,
                is_retiring: stage == RETIRING,
                pinned: slot.pinned.load(Ordering::Relaxed),
            })
            .collect()
    }

    /// # Errors
    /// See [`Runtime::add_processor`](crate::Runtime::add_processor).
    pub(crate) fn add_processor(self: &Arc<Self>) -> io::Result<usize> {
        self.process.check("add a processor");
        let mut members = lock(&self.processor_threads.members);
        let free = self.processors.iter().find(|slot| slot.is_free());
        // After the search: a thread that stays has left its slot because the cluster stops, and
        // must not be joined.
        if self.is_stopping() {
            return Err(stopped());
        }
        let slot = free.ok_or_else(|| self.full())?;
        if let Some(before) = members[slot.index].take() {
            // It has reported its end, so this takes no longer than the end of a thread.
            let _ = before.thread.join();
        }
        let member = self.start(slot)?;
        members[slot.index] = Some(member);
        self.open_slot(slot.index);
        slot.stage.enter(RUNNING);
        self.running.fetch_add(1, Ordering::AcqRel);
        Ok(slot.index)
    }

    fn full(&self) -> io::Error {
        let retiring = self.processors.len() - self.processor_count();
        let message = format!(
            "there are {} processors ({retiring} of them are being removed), which is the limit: wait until one has \
             gone, or raise RuntimeBuilder::max_processors",
            self.processors.len()
        );
        io::Error::new(io::ErrorKind::QuotaExceeded, message)
    }

    /// Starts a processor's thread, and waits until it has made its back end: a ring belongs to the
    /// thread that made it.
    fn start(self: &Arc<Self>, slot: &ProcessorShared) -> io::Result<ProcessorThread> {
        let (cluster, index) = (Arc::clone(self), slot.index);
        let (ready, is_ready) = mpsc::sync_channel(1);
        let (drop_at_end, dropped_at_end) = mpsc::channel();
        let (stayed, stays) = mpsc::channel();
        let wake_fd = slot.open()?;
        let body = move || {
            let frames_left = run(&cluster, index, wake_fd, &ready);
            let slot = &cluster.processors[index];
            slot.close();
            slot.stage.enter(FREE);
            drop(dropped_at_end);
            drop((cluster, ready));
            if frames_left > 0 {
                stay(stayed);
            }
        };
        let started = thread::Builder::new().name(format!("processor-{index}")).spawn(body);
        let thread = started.inspect_err(|_| slot.close())?;
        if let Err(error) = is_ready.recv().map_err(io::Error::other).flatten() {
            // The thread closes the slot, which the next processor may take after this.
            let _ = thread.join();
            return Err(error);
        }
        Ok(ProcessorThread { thread, drop_at_end, stays })
    }

    /// # Errors
    /// See [`Runtime::remove_processor`](crate::Runtime::remove_processor).
    pub(crate) fn remove_processor(self: &Arc<Self>, index: usize) -> io::Result<Retirement> {
        self.process.check("remove a processor");
        let members = lock(&self.processor_threads.members);
        if self.is_stopping() {
            return Err(stopped());
        }
        let slot = self.processors.get(index).filter(|slot| slot.is_running());
        let member = members.get(index).and_then(Option::as_ref);
        let Some((slot, member)) = slot.zip(member) else {
            let message = format!(
                "no processor has number {index}, or it is being removed: see Runtime::processors"
            );
            return Err(io::Error::new(io::ErrorKind::NotFound, message));
        };
        if self.processor_count() == 1 {
            let message = format!(
                "processor {index} is the last one, and without it no fiber would run: add another first, or shut the \
                 runtime down"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let ended = Arc::new(Event::new());
        // A processor that has ended, because the cluster stops meanwhile, drops this at once.
        let _ = member.drop_at_end.send(Box::new(SetOnDrop(Arc::clone(&ended))));
        self.running.fetch_sub(1, Ordering::AcqRel);
        slot.stage.enter(RETIRING);
        self.queue.close(index);
        slot.send(Message::Call(retire_here, [0; 2]));
        Ok(Retirement { cluster: Arc::clone(self), index, ended })
    }

    /// Stops the processors, and waits for their threads, but for the caller's own and for those
    /// that a fiber keeps for longer than [`KEPT_MAX`].
    pub(crate) fn stop_and_join(&self) {
        self.stop();
        // A call that is adding one holds the lock; one that comes later finds that the cluster
        // stops.
        let members: Vec<_> = lock(&self.processor_threads.members).drain(..).collect();
        let this = thread::current().id();
        let until = Instant::now() + KEPT_MAX;
        for (slot, member) in self.processors.iter().zip(members) {
            let Some(ProcessorThread { thread, stays, .. }) = member else {
                continue;
            };
            // One of its own fibers stops it: this processor ends when that fiber suspends or
            // finishes.
            if thread.thread().id() == this {
                continue;
            }
            // What does not stay drops the other end, whether it returns or panics.
            if wait_for_end(slot, &stays, until) == Err(RecvTimeoutError::Disconnected) {
                // A processor that panicked has said so on standard error.
                let _ = thread.join();
            }
        }
    }
}

/// Time that fibers have, when the cluster stops, to give their processors away. Nothing takes the
/// thread from one that blocks it or computes: it is left behind with its fiber, and ends by itself
/// if it can.
const KEPT_MAX: Duration = Duration::from_secs(2);

/// Pause between two looks at a processor that has had that time and runs no fiber.
const END_LOOK: Duration = Duration::from_millis(10);

/// Waits until the thread of a processor stays (`Ok`) or ends (`Disconnected`); `Timeout` if a
/// fiber keeps it.
fn wait_for_end(
    slot: &ProcessorShared,
    stays: &mpsc::Receiver<()>,
    until: Instant,
) -> Result<(), RecvTimeoutError> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match stays.recv_timeout(left.max(END_LOOK)) {
            // It is closing its ring, which has an end, or waits for a CPU.
            Err(RecvTimeoutError::Timeout) if slot.running.get() == 0 => {}
            ended => return ended,
        }
    }
}

/// The end of a thread on which fibers have been left behind that had started. Their frames may
/// have lent what belongs to the thread: a `thread_local!` to [`offload`](crate::offload()), to
/// another cluster or to the kernel. So it stays as their stacks do, as a thread of `std` stays as
/// long as its frames.
fn stay(stayed: mpsc::Sender<()>) -> ! {
    resources::thread_stays();
    // If one of its own fibers dropped the runtime, nothing waits for this.
    let _ = stayed.send(());
    loop {
        thread::park();
    }
}

/// Body of a processor's thread. Returns how many fibers have frames on it that will never be left.
fn run(
    cluster: &Arc<Cluster>,
    index: usize,
    wake_fd: Arc<OwnedFd>,
    ready: &mpsc::SyncSender<io::Result<()>>,
) -> usize {
    match Processor::new(Arc::clone(cluster), index, wake_fd) {
        Ok(processor) => {
            let _ = ready.send(Ok(()));
            processor.run();
            processor.pinned()
        }
        Err(error) => {
            let _ = ready.send(Err(error));
            0
        }
    }
}
