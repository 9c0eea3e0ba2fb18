//! What other threads have for a loop: connections that were distributed to it, work and reads that are
//! done.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::{io, mem};

use bytes::Bytes;

use crate::engine::reactor::{Accepted, LoopHandle};
use crate::jobs::Job;

/// The inboxes of all loops, in the order of the loops. A thread that deals a connection picks
/// one.
pub(super) struct Inboxes<S>(Vec<Arc<Inbox<S>>>);

impl<S> Inboxes<S> {
    pub(super) fn new(inboxes: Vec<Arc<Inbox<S>>>) -> Inboxes<S> {
        Inboxes(inboxes)
    }

    pub(super) fn of(&self, number: usize) -> Arc<Inbox<S>> {
        Arc::clone(&self.0[number])
    }

    /// The loop with the fewest connections. Where several have as few, it is the next after
    /// `last`, in turn.
    pub(super) fn emptiest(&self, last: usize) -> usize {
        let count = self.0.len();
        let in_turn = (1..=count).map(|step| (last + step) % count);
        let emptiest = in_turn.min_by_key(|&at| self.0[at].open());
        emptiest.expect("there is a loop")
    }

    /// Where a connection goes that loop `own` has accepted: it stays there, unless that has a
    /// quarter more connections than the emptiest, and one besides.
    pub(super) fn place_for_one_of(&self, own: usize) -> usize {
        let emptiest = self.emptiest(own);
        let fewest = self.0[emptiest].open();
        match self.0[own].open() > fewest + fewest / 4 + 1 {
            true => emptiest,
            false => own,
        }
    }

    /// Gives a connection to a loop.
    pub(super) fn distribute(&self, to: usize, accepted: Accepted) {
        self.0[to].to.open.fetch_add(1, Ordering::Relaxed);
        self.0[to].post(Message::Accepted(accepted));
    }
}

/// For a loop.
pub(super) enum Message<S> {
    /// A connection of its own from now on.
    Accepted(Accepted),
    /// The session of this connection has worked; `None` if it panicked.
    Worked(u64, Option<Job<S>>),
    /// A piece of a file was read for this connection.
    Read(u64, io::Result<Bytes>),
}

/// Messages, in the order in which they came. As many as the loop has connections and no more: a
/// connection is distributed once, and waits for one thing at a time.
pub(super) struct Inbox<S> {
    messages: Mutex<Vec<Message<S>>>,
    to: Arc<LoopHandle>,
}

impl<S> Inbox<S> {
    pub(super) fn new(to: Arc<LoopHandle>) -> Inbox<S> {
        Inbox {
            messages: Mutex::new(Vec::new()),
            to,
        }
    }

    fn open(&self) -> usize {
        self.to.open.load(Ordering::Relaxed)
    }

    pub(super) fn post(&self, message: Message<S>) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.push(message);
        drop(messages);
        self.to.waker.ring();
    }

    /// The loop, whose thread this is, has a piece of a file read elsewhere.
    pub(super) fn count_slow_read(&self) {
        self.to.counters.slow_reads.add(1);
    }

    /// All that has come, in exchange for an empty vector.
    pub(super) fn take(&self, empty: &mut Vec<Message<S>>) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        mem::swap(&mut *messages, empty);
    }
}
