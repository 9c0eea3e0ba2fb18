//! Channels with many senders and many receivers; each message goes to one of them.
//!
//! ```
//! use weftwork_fiber::sync::mpmc;
//!
//! weftwork_fiber::run(|| {
//!     let (jobs, to_do) = mpmc::bounded(8);
//!     let workers: Vec<_> = (0..4)
//!         .map(|_| {
//!             let to_do = to_do.clone();
//!             weftwork_fiber::spawn(move || to_do.iter().sum::<u32>())
//!         })
//!         .collect();
//!     (1..=100).for_each(|job| jobs.send(job).unwrap());
//!     drop(jobs);
//!     let sums = workers.into_iter().map(|worker| worker.join().unwrap());
//!     assert_eq!(sums.sum::<u32>(), 5050);
//! });
//! ```

use std::fmt;
use std::sync::Arc;
pub use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};
use std::time::Duration;

use super::channel::{self, Channel};
pub use super::endpoints::SendTimeoutError;
use super::endpoints::{clone_and_drop, receiver, sender};
use super::select::{Receiving, Sending};
use super::wait::Limit;
use crate::base::clock::after;

/// The end that sends. It may be cloned.
pub struct Sender<T> {
    channel: Arc<Channel<T>>,
}

/// The end that receives. It may be cloned: each message goes to one receiver, the one that has
/// waited longest.
pub struct Receiver<T> {
    channel: Arc<Channel<T>>,
}

/// A channel that holds up to `capacity` messages: senders wait while it is full. With 0 it is a
/// [`rendezvous`].
pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    ends(Some(capacity))
}

/// A channel that holds nothing: a message goes from hand to hand, and the first that comes waits
/// for the other.
pub fn rendezvous<T>() -> (Sender<T>, Receiver<T>) {
    ends(Some(0))
}

/// A channel without a limit: sending never waits, and a sender that is faster than the others
/// receive fills the memory. [`Receiver::len`] says how far it has come; [`bounded`] is the safe
/// choice.
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    ends(None)
}

fn ends<T>(capacity: Option<usize>) -> (Sender<T>, Receiver<T>) {
    let channel = Arc::new(Channel::new(capacity));
    let sender = Sender { channel: Arc::clone(&channel) };
    (sender, Receiver { channel })
}

sender!(Sender);
receiver!(Receiver);

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Receiver<T> {
        self.channel.add_receiver();
        let channel = Arc::clone(&self.channel);
        Receiver { channel }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.channel.drop_receiver();
    }
}
