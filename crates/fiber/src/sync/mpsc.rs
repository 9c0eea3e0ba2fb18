//! Channels with many senders and one receiver, with the names and errors of [`std::sync::mpsc`].
//!
//! ```
//! use weftwork_fiber::sync::mpsc;
//!
//! weftwork_fiber::run(|| {
//!     let (sender, receiver) = mpsc::sync_channel(2);
//!     weftwork_fiber::spawn(move || (0..10).for_each(|n| sender.send(n).unwrap()));
//!     assert_eq!(receiver.iter().sum::<i32>(), 45);
//! });
//! ```

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
pub use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};
use std::time::Duration;

use super::channel::{self, Channel};
pub use super::endpoints::SendTimeoutError;
use super::endpoints::{clone_and_drop, receiver, sender};
use super::select::{Receiving, Sending};
use super::wait::Limit;
use crate::base::clock::after;

/// The sending end of a channel without a limit.
pub struct Sender<T> {
    channel: Arc<Channel<T>>,
}

/// The sending end of a channel with a limit.
pub struct SyncSender<T> {
    channel: Arc<Channel<T>>,
}

/// The receiving end: there is one, and it may be sent elsewhere but not shared.
pub struct Receiver<T> {
    channel: Arc<Channel<T>>,
    /// Not `Sync`, as std's.
    one: PhantomData<Cell<()>>,
}

/// A channel without a limit, as [`std::sync::mpsc::channel`]: sending never waits, and a sender
/// that is faster than the other receives fills the memory. [`Receiver::len`] says how far it has
/// come; [`sync_channel`] is the safe choice.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let channel = Arc::new(Channel::new(None));
    let receiver = Receiver { channel: Arc::clone(&channel), one: PhantomData };
    (Sender { channel }, receiver)
}

/// A channel that holds up to `bound` messages, as [`std::sync::mpsc::sync_channel`]. With 0 a
/// message goes from hand to hand.
pub fn sync_channel<T>(bound: usize) -> (SyncSender<T>, Receiver<T>) {
    let channel = Arc::new(Channel::new(Some(bound)));
    let receiver = Receiver { channel: Arc::clone(&channel), one: PhantomData };
    (SyncSender { channel }, receiver)
}

impl<T> Sender<T> {
    /// Sends; never waits.
    ///
    /// # Errors
    /// The message, if the receiver is gone.
    #[inline]
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        self.channel.try_send(message).map_err(channel::disconnected)
    }

    /// For [`Select`](super::Select) and [`select!`](crate::select): to send `message`.
    pub fn sending(&self, message: T) -> Sending<'_, T> {
        Sending::new(&self.channel, message)
    }
}

clone_and_drop!(Sender, add_sender, drop_sender);
sender!(SyncSender);
receiver!(Receiver);

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.channel.drop_receiver();
    }
}
