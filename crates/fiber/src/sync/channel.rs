//! The channel under [`mpsc`](super::mpsc) and [`mpmc`](super::mpmc): messages, and two lines of
//! those that wait.
//!
//! ```text
//!   senders ──▶ [ m m m m m . . ] ──▶ receivers        capacity 0: from hand to hand, no room between
//!   waiting       messages            waiting
//! ```
//!
//! INVARIANTS, under the lock: while a receiver waits there is no message; while a sender waits
//! there is no room. So a message goes straight to a waiting receiver, and room that is made goes
//! straight to a waiting sender, whose message takes its place at the end: order is kept, and none
//! overtakes.
//!
//! No code of the user's (the destructor of a message) runs under the lock.

use std::collections::VecDeque;
use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};

use super::short::Short;
use super::wait::{Claimed, Limit, Node, Queue, Wait, Wake};
use crate::base::atomic::{AtomicUsize, Ordering, UnsafeCell};
use crate::sched::waiting;
use crate::switch::reason::WaitReason;

/// Code for a waiter, beside the number of its arm.
pub(super) const PASSED: usize = 0;
pub(super) const CLOSED: usize = 1;

/// The code for arm `tag`.
pub(super) fn code(tag: usize, outcome: usize) -> usize {
    tag << 1 | outcome
}

/// At once so much room is made; the rest grows.
const ROOM_FIRST: usize = 32;

#[derive(Debug)]
pub(super) struct Channel<T> {
    state: Short<State<T>>,
    /// `None`: as many as the memory holds, which the user has asked for by name.
    capacity: Option<usize>,
    sender_count: AtomicUsize,
    receiver_count: AtomicUsize,
}

#[derive(Debug)]
struct State<T> {
    messages: VecDeque<T>,
    senders: Queue,
    receivers: Queue,
    /// All senders are gone.
    no_senders: bool,
    /// All receivers are gone.
    no_receivers: bool,
}

/// A message on its way, in the frame of the one that waits: touched by the waiter while it stands
/// in no line, and by the one that has claimed it until the grant. In the models loom sees to that.
#[derive(Debug)]
pub(super) struct Slot<T>(UnsafeCell<Option<T>>);

impl<T> Slot<T> {
    pub(super) fn new(message: Option<T>) -> Slot<T> {
        Slot(UnsafeCell::new(message))
    }

    /// For the node of a waiter.
    pub(super) fn address(&self) -> *mut () {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// # Safety
    /// Nothing else touches the slot meanwhile.
    unsafe fn with<R>(&self, f: impl FnOnce(&mut Option<T>) -> R) -> R {
        // SAFETY: the caller's promise.
        self.0.with_mut(|message| f(unsafe { &mut *message }))
    }

    /// # Safety
    /// As [`with`](Slot::with).
    pub(super) unsafe fn put(&self, message: T) {
        // SAFETY: the caller's promise.
        unsafe { self.with(|slot| *slot = Some(message)) };
    }

    /// # Safety
    /// As [`with`](Slot::with).
    pub(super) unsafe fn take(&self) -> Option<T> {
        // SAFETY: the caller's promise.
        unsafe { self.with(Option::take) }
    }

    /// Message that is left when the wait is over.
    pub(super) fn into_message(self) -> Option<T> {
        // SAFETY: it is ours alone. Not by `into_inner`, which loom would not look at.
        unsafe { self.take() }
    }
}

impl Claimed {
    /// # Safety
    /// The waiter's slot is of this type.
    unsafe fn message_slot<T>(&self) -> &Slot<T> {
        // SAFETY: the caller's promise; the frame that it is in stays until the grant, which
        // consumes `self`.
        unsafe { &*self.slot().cast::<Slot<T>>() }
    }
}

/// Reason why a send did not happen at once.
enum Refused {
    Full,
    Closed,
}

/// Reason why a receive did not happen at once.
enum Nothing {
    Empty,
    Closed,
}

impl<T> State<T> {
    /// Passes the message on, if it can be at once. It stays in the option if not.
    #[inline]
    fn send(
        &mut self,
        capacity: Option<usize>,
        message: &mut Option<T>,
    ) -> Result<Option<Wake>, Refused> {
        if self.no_receivers {
            return Err(Refused::Closed);
        }
        if let Some(receiver) = self.receivers.claim_front() {
            // SAFETY: a receiver's slot is of this type, and claimed it is ours until the grant.
            unsafe { receiver.message_slot().with(|slot| *slot = message.take()) };
            let code = code(receiver.tag(), PASSED);
            return Ok(Some(receiver.grant(code)));
        }
        if capacity.is_some_and(|capacity| self.messages.len() >= capacity) {
            return Err(Refused::Full);
        }
        self.messages.extend(message.take());
        Ok(None)
    }

    #[inline]
    fn receive(&mut self) -> Result<(T, Option<Wake>), Nothing> {
        let first = self.messages.pop_front();
        let Some((sender, wake)) = self.take_from_sender() else {
            return match first {
                Some(message) => Ok((message, None)),
                None if self.no_senders => Err(Nothing::Closed),
                None => Err(Nothing::Empty),
            };
        };
        match first {
            Some(message) => {
                self.messages.push_back(sender);
                Ok((message, Some(wake)))
            }
            None => Ok((sender, Some(wake))),
        }
    }

    /// The message of the first sender that waits.
    #[inline]
    fn take_from_sender(&mut self) -> Option<(T, Wake)> {
        let sender = self.senders.claim_front()?;
        // SAFETY: a sender's slot is of this type, and claimed it is ours until the grant.
        let message = unsafe { sender.message_slot::<T>().take() };
        let code = code(sender.tag(), PASSED);
        let wake = sender.grant(code);
        Some((message.expect("a waiting sender has its message"), wake))
    }
}

impl<T> Channel<T> {
    pub(super) fn new(capacity: Option<usize>) -> Channel<T> {
        let room = capacity.map_or(0, |capacity| capacity.min(ROOM_FIRST));
        let state = State {
            messages: VecDeque::with_capacity(room),
            senders: Queue::new(),
            receivers: Queue::new(),
            no_senders: false,
            no_receivers: false,
        };
        Channel {
            state: Short::new(state),
            capacity,
            sender_count: AtomicUsize::new(1),
            receiver_count: AtomicUsize::new(1),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.state.with(|state| state.messages.len())
    }

    pub(super) fn capacity(&self) -> Option<usize> {
        self.capacity
    }

    #[inline]
    pub(super) fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        let mut message = Some(message);
        let sent = self
            .state
            .with(|state| state.send(self.capacity, &mut message));
        match (sent, message) {
            (Ok(wake), _) => {
                wake.into_iter().for_each(Wake::wake);
                Ok(())
            }
            (Err(Refused::Full), Some(message)) => Err(TrySendError::Full(message)),
            (Err(_), Some(message)) => Err(TrySendError::Disconnected(message)),
            (Err(_), None) => unreachable!("a refused message stays"),
        }
    }

    /// Sends, or waits until it can. `Full` when the wait has ended.
    #[inline]
    pub(super) fn send(&self, message: T, limit: impl Into<Limit>) -> Result<(), TrySendError<T>> {
        match self.try_send(message) {
            Err(TrySendError::Full(message)) => self.send_slow(message, limit.into()),
            ended => ended,
        }
    }

    #[cold]
    fn send_slow(&self, message: T, limit: Limit) -> Result<(), TrySendError<T>> {
        let slot = Slot::new(Some(message));
        let wait = Wait::new();
        let node = Node::new(&wait, 0, slot.address());
        let ended = match self.enlist_sender(&node, &slot) {
            Some(outcome) => Some(outcome),
            None => {
                let _noted = waiting::on(self.reason());
                wait.block(limit)
            }
        };
        if ended.is_none() {
            self.delist_sender(&node);
        }
        match (ended, slot.into_message()) {
            (_, None) => Ok(()),
            (None, Some(message)) => Err(TrySendError::Full(message)),
            (Some(_), Some(message)) => Err(TrySendError::Disconnected(message)),
        }
    }

    /// Puts a sender into the line, unless its message can go (or never will): then what came of
    /// it.
    fn enlist_sender(&self, node: &Node, slot: &Slot<T>) -> Option<usize> {
        let (outcome, wake) = self.state.with(|state| {
            // SAFETY: the sender is in no line, so nothing else looks at its slot.
            let sent = unsafe { slot.with(|message| state.send(self.capacity, message)) };
            match sent {
                Ok(wake) => (Some(PASSED), wake),
                Err(Refused::Closed) => (Some(CLOSED), None),
                Err(Refused::Full) => {
                    // SAFETY: the caller's frame goes on when the node is claimed, and so out of
                    // the queue, or after it has removed it.
                    unsafe { state.senders.push_back(node) };
                    (None, None)
                }
            }
        });
        wake.into_iter().for_each(Wake::wake);
        outcome
    }

    pub(super) fn delist_sender(&self, node: &Node) {
        self.state.with(|state| state.senders.remove(node));
    }

    #[inline]
    pub(super) fn try_receive(&self) -> Result<T, TryRecvError> {
        match self.state.with(State::receive) {
            Ok((message, wake)) => {
                wake.into_iter().for_each(Wake::wake);
                Ok(message)
            }
            Err(Nothing::Empty) => Err(TryRecvError::Empty),
            Err(Nothing::Closed) => Err(TryRecvError::Disconnected),
        }
    }

    /// Receives, or waits until it can. `Timeout` when the wait has ended.
    #[inline]
    pub(super) fn receive(&self, limit: impl Into<Limit>) -> Result<T, RecvTimeoutError> {
        match self.try_receive() {
            Ok(message) => Ok(message),
            Err(TryRecvError::Disconnected) => Err(RecvTimeoutError::Disconnected),
            Err(TryRecvError::Empty) => self.receive_slow(limit.into()),
        }
    }

    #[cold]
    fn receive_slow(&self, limit: Limit) -> Result<T, RecvTimeoutError> {
        let slot = Slot::new(None);
        let wait = Wait::new();
        let node = Node::new(&wait, 0, slot.address());
        let ended = match self.enlist_receiver(&node, &slot) {
            Some(outcome) => Some(outcome),
            None => {
                let _noted = waiting::on(self.reason());
                wait.block(limit)
            }
        };
        if ended.is_none() {
            self.delist_receiver(&node);
        }
        match (ended, slot.into_message()) {
            (_, Some(message)) => Ok(message),
            (None, None) => Err(RecvTimeoutError::Timeout),
            (Some(_), None) => Err(RecvTimeoutError::Disconnected),
        }
    }

    /// Same as [`enlist_sender`](Channel::enlist_sender), for a receiver.
    fn enlist_receiver(&self, node: &Node, slot: &Slot<T>) -> Option<usize> {
        let (outcome, wake) = self.state.with(|state| match state.receive() {
            Ok((message, wake)) => {
                // SAFETY: the receiver is in no line, so nothing else looks at its slot.
                unsafe { slot.put(message) };
                (Some(PASSED), wake)
            }
            Err(Nothing::Closed) => (Some(CLOSED), None),
            Err(Nothing::Empty) => {
                // SAFETY: as in `enlist_sender`.
                unsafe { state.receivers.push_back(node) };
                (None, None)
            }
        });
        wake.into_iter().for_each(Wake::wake);
        outcome
    }

    pub(super) fn delist_receiver(&self, node: &Node) {
        self.state.with(|state| state.receivers.remove(node));
    }

    /// For `select!`: puts an arm into the line of senders, or says (`false`) that it could go at
    /// once.
    pub(super) fn enlist_sending_arm(&self, node: &Node, wait: &Wait) -> bool {
        self.state.with(|state| {
            let room = self
                .capacity
                .is_none_or(|capacity| state.messages.len() < capacity);
            if state.no_receivers || room || state.receivers.has_other(wait) {
                return false;
            }
            // SAFETY: a select takes its arms out of the lines before it returns.
            unsafe { state.senders.push_back(node) };
            true
        })
    }

    /// For `select!`: puts an arm into the line of receivers, or says (`false`) that it could go at
    /// once.
    pub(super) fn enlist_receiving_arm(&self, node: &Node, wait: &Wait) -> bool {
        self.state.with(|state| {
            if state.no_senders || !state.messages.is_empty() || state.senders.has_other(wait) {
                return false;
            }
            // SAFETY: as above.
            unsafe { state.receivers.push_back(node) };
            true
        })
    }

    pub(super) fn add_sender(&self) {
        self.sender_count.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_receiver(&self) {
        self.receiver_count.fetch_add(1, Ordering::Relaxed);
    }

    /// The last to go tells those that wait for a message that there will be none.
    pub(super) fn drop_sender(&self) {
        if self.sender_count.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let wakes = self.state.with(|state| {
            state.no_senders = true;
            state.receivers.grant_all(|tag| code(tag, CLOSED))
        });
        wakes.wake();
    }

    /// The last to go tells those that want to send, and drops what will not be received.
    pub(super) fn drop_receiver(&self) {
        if self.receiver_count.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let (wakes, messages) = self.state.with(|state| {
            state.no_receivers = true;
            let messages = std::mem::take(&mut state.messages);
            (state.senders.grant_all(|tag| code(tag, CLOSED)), messages)
        });
        wakes.wake();
        drop(messages);
    }

    fn reason(&self) -> WaitReason {
        let address = std::ptr::from_ref(self).addr();
        WaitReason::Channel { address }
    }
}

/// Without a time-out of its own, a send has one error.
pub(super) fn disconnected<T>(error: TrySendError<T>) -> SendError<T> {
    match error {
        TrySendError::Full(message) | TrySendError::Disconnected(message) => SendError(message),
    }
}

/// Without a time-out of its own, a receive has one error.
pub(super) fn ended(_: RecvTimeoutError) -> RecvError {
    RecvError
}
