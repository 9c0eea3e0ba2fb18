//! Messages of other threads for one loop: work and reads that are done, connections that were
//! distributed to it.

use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use session::{Now, Session};

use super::waker::LoopHandle;
use crate::file::DiskRead;
use crate::jobs::{Job, Jobs};

/// A message to a loop that names its connections by `K` and is given connections as `A`.
pub(crate) enum Message<K, A, S> {
    /// A connection of the loop from now on.
    Accepted(A),
    /// The session of this connection has worked; `None` if it panicked.
    Worked(K, Option<Job<S>>),
    /// A piece of a file was read for this connection.
    Read(K, io::Result<Bytes>),
}

/// Messages to one loop, in the order in which they came. Bounded by the connections of the loop: a
/// connection is distributed once, and waits for one thing at a time.
pub(crate) struct Inbox<K, A, S> {
    messages: Mutex<Vec<Message<K, A, S>>>,
    /// There are some, so that an empty inbox costs a load and no lock.
    has_some: AtomicBool,
    to: Arc<LoopHandle>,
}

impl<K, A, S> Inbox<K, A, S> {
    pub(crate) fn new(to: Arc<LoopHandle>) -> Inbox<K, A, S> {
        Inbox {
            messages: Mutex::new(Vec::new()),
            has_some: AtomicBool::new(false),
            to,
        }
    }

    /// The loop that takes the messages.
    pub(crate) fn to(&self) -> &LoopHandle {
        &self.to
    }

    /// Leaves a message and wakes the loop.
    pub(crate) fn post(&self, message: Message<K, A, S>) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.push(message);
        self.has_some.store(true, Ordering::Release);
        drop(messages);
        self.to.waker.wake();
    }

    /// Takes all messages, in exchange for an empty vector.
    pub(crate) fn take(&self, empty: &mut Vec<Message<K, A, S>>) {
        // The waker makes seen what was posted before the loop was woken.
        if self.has_some.load(Ordering::Acquire) {
            let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
            self.has_some.store(false, Ordering::Relaxed);
            mem::swap(&mut *messages, empty);
        }
    }
}

impl<K, A, S> Inbox<K, A, S>
where
    K: Send + 'static,
    A: Send + 'static,
    S: Session + 'static,
{
    /// Hands the work of a connection to a thread, which posts the result.
    ///
    /// # Errors
    /// As [`Jobs::work`].
    pub(crate) fn work(
        self: &Arc<Self>,
        jobs: &Arc<Jobs>,
        of: K,
        job: Job<S>,
        now: Now,
    ) -> io::Result<()> {
        let inbox = Arc::clone(self);
        jobs.work(job, now, move |job| inbox.post(Message::Worked(of, job)))
    }

    /// Hands the read of a connection to a thread, which posts the piece or the error.
    pub(crate) fn read(self: &Arc<Self>, jobs: &Arc<Jobs>, of: K, read: DiskRead)
    where
        K: Copy,
    {
        self.to.counters.slow_reads.add(1);
        let inbox = Arc::clone(self);
        let call = move || inbox.post(Message::Read(of, read.run()));
        if let Err(error) = jobs.hand_over(false, call) {
            self.post(Message::Read(of, Err(error)));
        }
    }
}
