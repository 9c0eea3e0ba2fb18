//! Messages from other threads to one loop: finished work and reads, and distributed connections.

use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use session::{Now, Work};

use super::waker::LoopHandle;
use crate::file::DiskRead;
use crate::jobs::Jobs;

/// A message to a loop that names its connections by `K` and receives new ones as `A`; their work
/// is `W`.
pub(crate) enum Message<K, A, W> {
    /// A new connection for the loop.
    Accepted(A),
    /// Finished work of this connection; `None` if it panicked.
    Worked(K, Option<W>),
    /// A piece of a file was read for this connection.
    Read(K, io::Result<Bytes>),
}

/// Messages to one loop, in order of arrival. Bounded by the connections of the loop: a connection
/// is distributed once, and waits for one read and a few works at a time.
pub(crate) struct Inbox<K, A, W> {
    messages: Mutex<Vec<Message<K, A, W>>>,
    /// True if there are some, so that an empty inbox costs a load and no lock.
    has_some: AtomicBool,
    to: Arc<LoopHandle>,
}

impl<K, A, W> Inbox<K, A, W> {
    pub(crate) fn new(to: Arc<LoopHandle>) -> Inbox<K, A, W> {
        Inbox { messages: Mutex::new(Vec::new()), has_some: AtomicBool::new(false), to }
    }

    /// The loop that takes the messages.
    pub(crate) fn to(&self) -> &LoopHandle {
        &self.to
    }

    /// Posts a message and wakes the loop.
    pub(crate) fn post(&self, message: Message<K, A, W>) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.push(message);
        self.has_some.store(true, Ordering::Release);
        drop(messages);
        self.to.waker.wake();
    }

    /// Takes all messages, in exchange for an empty vector.
    pub(crate) fn take(&self, empty: &mut Vec<Message<K, A, W>>) {
        // The waker makes messages visible that were posted before the loop was woken.
        if self.has_some.load(Ordering::Acquire) {
            let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
            self.has_some.store(false, Ordering::Relaxed);
            mem::swap(&mut *messages, empty);
        }
    }
}

impl<K, A, W> Inbox<K, A, W>
where
    K: Send + 'static,
    A: Send + 'static,
    W: Work,
{
    /// Hands work of a connection to a thread, which posts it when done.
    ///
    /// # Errors
    /// As [`Jobs::work`].
    pub(crate) fn work(
        self: &Arc<Self>,
        jobs: &Arc<Jobs>,
        of: K,
        work: W,
        now: Now,
    ) -> Result<(), W> {
        let inbox = Arc::clone(self);
        jobs.work(work, now, move |work| inbox.post(Message::Worked(of, work)))
    }

    /// Hands a read for a connection to a thread, which posts the bytes or the error.
    pub(crate) fn read(self: &Arc<Self>, jobs: &Arc<Jobs>, of: K, read: DiskRead)
    where
        K: Copy,
    {
        self.to.counters.slow_reads.add(1);
        let inbox = Arc::clone(self);
        let call = move || inbox.post(Message::Read(of, read.run()));
        if let Err(error) = jobs.hand_over(call) {
            self.post(Message::Read(of, Err(error)));
        }
    }
}
