//! What other threads have for a loop: connections that were dealt to it, work and reads that are
//! done.

use std::sync::{Arc, Mutex, PoisonError};
use std::{io, mem};

use crate::engine::loops::{Accepted, Loop};
use crate::file::ReadPiece;
use crate::jobs::Job;

/// For a loop.
pub(super) enum Letter<S> {
    /// A connection of its own from now on.
    Accepted(Accepted),
    /// The session of this connection has worked; `None` if it panicked.
    Worked(u64, Option<Job<S>>),
    /// A piece of a file was read for this connection.
    Read(u64, io::Result<ReadPiece>),
}

/// Letters, in the order in which they came. As many as the loop has connections and no more: a
/// connection is dealt once, and waits for one thing at a time.
pub(super) struct Mailbox<S> {
    letters: Mutex<Vec<Letter<S>>>,
    to: Arc<Loop>,
}

impl<S> Mailbox<S> {
    pub(super) fn new(to: Arc<Loop>) -> Mailbox<S> {
        Mailbox {
            letters: Mutex::new(Vec::new()),
            to,
        }
    }

    pub(super) fn post(&self, letter: Letter<S>) {
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        letters.push(letter);
        drop(letters);
        self.to.bell.ring();
    }

    /// The loop, whose thread this is, has a piece of a file read elsewhere.
    pub(super) fn count_slow_read(&self) {
        self.to.counters.slow_reads.add(1);
    }

    /// All that has come, in exchange for an empty vector.
    pub(super) fn take(&self, empty: &mut Vec<Letter<S>>) {
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        mem::swap(&mut *letters, empty);
    }
}
