//! What other threads have for a loop: connections that were dealt to it, work and reads that are
//! done, and news of the server.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::{io, mem};

use event::Waker;

use super::Loop;
use crate::file::ReadPiece;
use crate::jobs::Job;

/// Wakes a loop that may be waiting.
#[derive(Debug)]
pub(super) struct Bell {
    waker: Waker,
    /// Rung, and the loop has not looked since: ringing again would be a system call for nothing.
    is_rung: AtomicBool,
}

impl Bell {
    pub(super) fn new() -> io::Result<Bell> {
        Ok(Bell {
            waker: Waker::new()?,
            is_rung: AtomicBool::new(false),
        })
    }

    /// Ends the present wait of the loop, or the next one. From any thread.
    pub(super) fn ring(&self) {
        if !self.is_rung.swap(true, Ordering::SeqCst) {
            self.waker.wake();
        }
    }

    /// Makes it ready to ring again. The loop looks at what it was rung for **afterwards**: one
    /// that rings meanwhile finds it rung and writes nothing. The swap makes seen what that one did
    /// before.
    pub(super) fn reset(&self) {
        self.waker.reset();
        self.is_rung.swap(false, Ordering::SeqCst);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

/// A connection that was accepted.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) socket: OwnedFd,
    pub(super) peer: Option<SocketAddr>,
    /// Which of the server's listeners it came from.
    pub(super) listener: usize,
}

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
