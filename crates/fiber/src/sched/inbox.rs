//! The inbox of a processor: other threads put messages there, and the processor takes them all.
//!
//! Not every message wakes the processor: what can wait is posted, and found when the processor is
//! awake for another reason. So one that is about to sleep or to go must see whatever is in the
//! inbox.

use std::mem;

use crate::base::atomic::{AtomicBool, Mutex, MutexGuard, Ordering};

/// In cache lines of its own: what the processor itself writes to at every switch must not lie
/// beside it.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Inbox<M> {
    inbox: Mutex<Messages<M>>,
    /// For a look without the lock. Set under the lock, so that a processor which saw a message
    /// there sees this as well.
    has_some: AtomicBool,
}

#[derive(Debug)]
struct Messages<M> {
    messages: Vec<M>,
    /// There is no processor to read them.
    is_closed: bool,
}

impl<M> Inbox<M> {
    /// For a processor that is yet to come.
    pub(crate) fn closed() -> Inbox<M> {
        Inbox {
            inbox: Mutex::new(Messages {
                messages: Vec::new(),
                is_closed: true,
            }),
            has_some: AtomicBool::new(false),
        }
    }

    pub(crate) fn open(&self) {
        self.lock().is_closed = false;
    }

    /// # Errors
    /// The message, if there is no processor to read it.
    pub(crate) fn post(&self, message: M) -> Result<(), M> {
        let mut inbox = self.lock();
        if inbox.is_closed {
            return Err(message);
        }
        inbox.messages.push(message);
        self.has_some.store(true, Ordering::SeqCst);
        Ok(())
    }

    pub(crate) fn has_some(&self) -> bool {
        self.has_some.load(Ordering::Relaxed)
    }

    pub(crate) fn take(&self) -> Vec<M> {
        if !self.has_some() {
            return Vec::new();
        }
        let mut inbox = self.lock();
        self.has_some.store(false, Ordering::SeqCst);
        mem::take(&mut inbox.messages)
    }

    /// Says whether it was empty, and is closed.
    pub(crate) fn close_if_empty(&self) -> bool {
        let mut inbox = self.lock();
        inbox.is_closed = inbox.messages.is_empty();
        inbox.is_closed
    }

    /// Returns what nothing will read.
    pub(crate) fn close(&self) -> Vec<M> {
        let mut inbox = self.lock();
        inbox.is_closed = true;
        mem::take(&mut inbox.messages)
    }

    fn lock(&self) -> MutexGuard<'_, Messages<M>> {
        self.inbox
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Seen (in review): a processor that was removed slept, and did not go. Cause: the inbox had a
    /// message before `has_some` said so. Between the two, the processor could not close the inbox
    /// and saw no message; and what can wait wakes no processor. Cure: both change under the lock.
    #[test]
    fn retiring_processor_sees_messages() {
        loom::model(|| {
            let inbox = Arc::new(Inbox::closed());
            inbox.open();
            let poster = Arc::clone(&inbox);
            let thread = thread::spawn(move || poster.post(7).is_ok());
            let mut taken = Vec::new();
            // As `Processor::wind_down` and `Processor::sleep_for_messages`.
            while !inbox.close_if_empty() {
                assert!(inbox.has_some(), "asleep over a message");
                taken.extend(inbox.take());
            }
            let is_posted = thread.join().unwrap();
            assert_eq!(taken.len(), usize::from(is_posted), "read, or refused");
        });
    }
}
