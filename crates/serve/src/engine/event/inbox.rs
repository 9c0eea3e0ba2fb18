//! Inboxes of all loops, and the choice among them for a new connection.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::engine::reactor::{self, Accepted};

/// Messages of one loop.
pub(super) type Inbox<W> = reactor::Inbox<u64, Accepted, W>;

/// State that the connections of one loop share.
pub(super) type LoopContext<W> = reactor::LoopContext<u64, Accepted, W>;

/// A message to one loop.
pub(super) type Message<W> = reactor::Message<u64, Accepted, W>;

/// Inboxes in the order of the loops.
pub(super) struct Inboxes<W>(Vec<Arc<Inbox<W>>>);

impl<W> Inboxes<W> {
    pub(super) fn new(inboxes: Vec<Arc<Inbox<W>>>) -> Inboxes<W> {
        Inboxes(inboxes)
    }

    pub(super) fn of(&self, number: usize) -> Arc<Inbox<W>> {
        Arc::clone(&self.0[number])
    }

    /// Returns the loop with the fewest connections. Among equals, the next one after `last`.
    pub(super) fn emptiest(&self, last: usize) -> usize {
        let count = self.0.len();
        let in_turn = (1..=count).map(|step| (last + step) % count);
        let emptiest = in_turn.min_by_key(|&at| self.open(at));
        emptiest.expect("there is a loop")
    }

    /// Returns the loop for a connection accepted by loop `own`: itself, unless it has at least a
    /// quarter more connections than the emptiest, plus one.
    pub(super) fn choose_loop(&self, own: usize) -> usize {
        let emptiest = self.emptiest(own);
        let fewest = self.open(emptiest);
        if self.open(own) > fewest + fewest / 4 + 1 { emptiest } else { own }
    }

    /// Number of connections of a loop, including those in its inbox.
    fn open(&self, at: usize) -> usize {
        self.0[at].to().open.load(Ordering::Relaxed)
    }

    /// Passes a connection to a loop.
    pub(super) fn distribute(&self, to: usize, accepted: Accepted) {
        self.0[to].to().open.fetch_add(1, Ordering::Relaxed);
        self.0[to].post(Message::Accepted(accepted));
    }
}
