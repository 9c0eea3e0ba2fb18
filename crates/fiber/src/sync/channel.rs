//! The channel under [`mpsc`](super::mpsc) and [`mpmc`](super::mpmc): messages, and two lines of
//! those that wait.
//!
//! ```text
//!   senders ──▶ [ m m m m m . . ] ──▶ receivers        capacity 0: from hand to hand, no room between
//!   waiting       messages            waiting
//!
//!   lock of the senders │ lock of the receivers        what waits, what has closed: under both
//! ```
//!
//! Each side has a lock and a cache line of its own. As long as nothing waits, a send takes one
//! lock and a receive the other, and each side reads the other side's count only when its copy of
//! it shows no room or no message: two processors then exchange cache lines once for many messages.
//! Every other call takes both locks, the senders' first.
//!
//! INVARIANTS, under both locks: while a receiver waits there is no message; while a sender waits
//! there is no room. So a message goes straight to a waiting receiver, and room that is made goes
//! straight to a waiting sender, whose message takes its place at the end: order is kept, and none
//! overtakes.
//!
//! No code of the user's (the destructor of a message) runs under a lock.

use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};

use super::blocks::{Block, Cursor};
use super::short::ShortLock;
use super::wait::{Claimed, Limit, Node, Queue, Wait, Wake, Wakes};
use crate::base::atomic::{AtomicPtr, AtomicUsize, Ordering, UnsafeCell};
use crate::sched::waiting;
use crate::switch::reason::WaitReason;

/// Code for a waiter, beside the number of its arm.
pub(super) const PASSED: usize = 0;
pub(super) const CLOSED: usize = 1;

/// The code for arm `tag`.
pub(super) fn code(tag: usize, outcome: usize) -> usize {
    tag << 1 | outcome
}

/// Flags of a channel.
const SENDERS_WAIT: usize = 1;
const RECEIVERS_WAIT: usize = 2;
/// All senders are gone.
const NO_SENDERS: usize = 4;
/// All receivers are gone.
const NO_RECEIVERS: usize = 8;

#[derive(Debug)]
pub(super) struct Channel<T> {
    /// Changed under both locks only, so that either is enough to read them.
    flags: AtomicUsize,
    /// Limit on messages; `None` for a channel without one, which the user has asked for by name.
    capacity: Option<usize>,
    sender_count: AtomicUsize,
    receiver_count: AtomicUsize,
    sending: SendingSide<T>,
    receiving: ReceivingSide<T>,
}

/// In cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct SendingSide<T> {
    /// Messages sent so far, for receivers.
    sent: AtomicUsize,
    own: ShortLock<SendState<T>>,
}

#[derive(Debug)]
struct SendState<T> {
    cursor: Cursor<T>,
    sent: usize,
    /// Value of `received` when there seemed to be no space.
    received_seen: usize,
    waiting: Queue,
}

/// In cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct ReceivingSide<T> {
    /// Messages received so far, for senders.
    received: AtomicUsize,
    /// Block that is being read, for senders.
    block: AtomicPtr<Block<T>>,
    own: ShortLock<ReceiveState<T>>,
}

#[derive(Debug)]
struct ReceiveState<T> {
    cursor: Cursor<T>,
    received: usize,
    /// Value of `sent` when there seemed to be no message.
    sent_seen: usize,
    waiting: Queue,
}

/// A message on its way, in the waiter's frame. The waiter accesses it while its node is in no
/// queue; a claimer accesses it from the claim to the grant. In the models loom checks that.
#[derive(Debug)]
pub(super) struct Slot<T>(UnsafeCell<Option<T>>);

impl<T> Slot<T> {
    pub(super) fn new(message: Option<T>) -> Slot<T> {
        Slot(UnsafeCell::new(message))
    }

    /// Address for the node of a waiter.
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
    /// Like [`with`](Slot::with).
    pub(super) unsafe fn put(&self, message: T) {
        // SAFETY: the caller's promise.
        unsafe { self.with(|slot| *slot = Some(message)) };
    }

    /// # Safety
    /// Like [`with`](Slot::with).
    pub(super) unsafe fn take(&self) -> Option<T> {
        // SAFETY: the caller's promise.
        unsafe { self.with(Option::take) }
    }

    /// Message that is left when the wait is over.
    pub(super) fn into_message(self) -> Option<T> {
        // SAFETY: nothing else has it. Not by `into_inner`, which loom would not check.
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

impl<T> SendingSide<T> {
    /// True if there is space for a message. With the lock held.
    #[inline]
    fn find_space(&self, own: &mut SendState<T>, channel: &Channel<T>) -> bool {
        let Some(capacity) = channel.capacity else {
            return true;
        };
        if own.sent.wrapping_sub(own.received_seen) < capacity {
            return true;
        }
        own.received_seen = channel.receiving.received.load(Ordering::Acquire);
        own.sent.wrapping_sub(own.received_seen) < capacity
    }

    /// Appends a message, for which there is space. With the lock held.
    #[inline]
    fn push(&self, own: &mut SendState<T>, message: T, channel: &Channel<T>) {
        let reading = || channel.receiving.block.load(Ordering::Acquire);
        // SAFETY: the lock is held. The reader publishes a block when it enters it.
        unsafe { own.cursor.write(message, reading) };
        own.sent = own.sent.wrapping_add(1);
        self.sent.store(own.sent, Ordering::Release);
    }
}

impl<T> ReceivingSide<T> {
    /// Takes a message, if there is one. With the lock held.
    #[inline]
    fn pop(&self, own: &mut ReceiveState<T>, sending: &SendingSide<T>) -> Option<T> {
        if own.received == own.sent_seen {
            own.sent_seen = sending.sent.load(Ordering::Acquire);
            if own.received == own.sent_seen {
                return None;
            }
        }
        let block = own.cursor.block();
        // SAFETY: the lock is held, and so many were sent.
        let message = unsafe { own.cursor.read() };
        if own.cursor.block() != block {
            self.block.store(own.cursor.block(), Ordering::Release);
        }
        own.received = own.received.wrapping_add(1);
        self.received.store(own.received, Ordering::Release);
        Some(message)
    }
}

/// A channel with both locks held.
struct Both<'a, T> {
    channel: &'a Channel<T>,
    sending: &'a mut SendState<T>,
    receiving: &'a mut ReceiveState<T>,
    flags: usize,
}

impl<T> Both<'_, T> {
    fn find_space(&mut self) -> bool {
        self.channel.sending.find_space(self.sending, self.channel)
    }

    fn push(&mut self, message: T) {
        self.channel.sending.push(self.sending, message, self.channel);
    }

    fn has_message(&self) -> bool {
        self.sending.sent != self.receiving.received
    }

    /// Passes the message on, if it can be at once. It stays in the option if not.
    fn send(&mut self, message: &mut Option<T>) -> Result<Option<Wake>, Refused> {
        if self.flags & NO_RECEIVERS != 0 {
            return Err(Refused::Closed);
        }
        if let Some(receiver) = self.receiving.waiting.claim_front() {
            // SAFETY: a receiver's slot is of this type, and exclusive from the claim to the grant.
            unsafe { receiver.message_slot().with(|slot| *slot = message.take()) };
            let code = code(receiver.tag(), PASSED);
            return Ok(Some(receiver.grant(code)));
        }
        if !self.find_space() {
            return Err(Refused::Full);
        }
        message.take().into_iter().for_each(|message| self.push(message));
        Ok(None)
    }

    fn receive(&mut self) -> Result<(T, Option<Wake>), Nothing> {
        let channel = self.channel;
        let first = channel.receiving.pop(self.receiving, &channel.sending);
        let Some((sender, wake)) = self.take_from_sender() else {
            return match first {
                Some(message) => Ok((message, None)),
                None if self.flags & NO_SENDERS != 0 => Err(Nothing::Closed),
                None => Err(Nothing::Empty),
            };
        };
        match first {
            Some(message) => {
                self.push(sender);
                Ok((message, Some(wake)))
            }
            None => Ok((sender, Some(wake))),
        }
    }

    /// The message of the first sender that waits.
    fn take_from_sender(&mut self) -> Option<(T, Wake)> {
        let sender = self.sending.waiting.claim_front()?;
        // SAFETY: a sender's slot is of this type, and exclusive from the claim to the grant.
        let message = unsafe { sender.message_slot::<T>().take() };
        let code = code(sender.tag(), PASSED);
        let wake = sender.grant(code);
        Some((message.expect("a waiting sender has its message"), wake))
    }
}

impl<T> Channel<T> {
    pub(super) fn new(capacity: Option<usize>) -> Channel<T> {
        let (writer, reader) = Cursor::pair(capacity);
        Channel {
            flags: AtomicUsize::new(0),
            capacity,
            sender_count: AtomicUsize::new(1),
            receiver_count: AtomicUsize::new(1),
            receiving: ReceivingSide {
                received: AtomicUsize::new(0),
                block: AtomicPtr::new(reader.block()),
                own: ShortLock::new(ReceiveState {
                    cursor: reader,
                    received: 0,
                    sent_seen: 0,
                    waiting: Queue::new(),
                }),
            },
            sending: SendingSide {
                sent: AtomicUsize::new(0),
                own: ShortLock::new(SendState {
                    cursor: writer,
                    sent: 0,
                    received_seen: 0,
                    waiting: Queue::new(),
                }),
            },
        }
    }

    fn with_both<R>(&self, f: impl FnOnce(&mut Both<'_, T>) -> R) -> R {
        self.sending.own.with(|sending| {
            self.receiving.own.with(|receiving| {
                let flags = self.flags.load(Ordering::Relaxed);
                let mut both = Both { channel: self, sending, receiving, flags };
                let result = f(&mut both);
                let mut now = both.flags & (NO_SENDERS | NO_RECEIVERS);
                now |= usize::from(!both.sending.waiting.is_empty()) * SENDERS_WAIT;
                now |= usize::from(!both.receiving.waiting.is_empty()) * RECEIVERS_WAIT;
                if now != flags {
                    self.flags.store(now, Ordering::Relaxed);
                }
                result
            })
        })
    }

    pub(super) fn len(&self) -> usize {
        self.with_both(|both| both.sending.sent.wrapping_sub(both.receiving.received))
    }

    pub(super) fn capacity(&self) -> Option<usize> {
        self.capacity
    }

    /// Sends if nothing waits; the message stays in the option if it could not be sent. `None` if
    /// this side alone cannot decide.
    #[inline]
    fn send_fast(&self, message: &mut Option<T>) -> Option<Result<(), Refused>> {
        let sending = &self.sending;
        sending.own.with(|own| {
            if self.flags.load(Ordering::Relaxed) != 0 {
                return None;
            }
            if !sending.find_space(own, self) {
                return Some(Err(Refused::Full));
            }
            sending.push(own, message.take()?, self);
            Some(Ok(()))
        })
    }

    /// Same as [`send_fast`](Channel::send_fast), for a receiver.
    #[inline]
    fn receive_fast(&self) -> Option<Result<T, Nothing>> {
        let receiving = &self.receiving;
        receiving.own.with(|own| {
            let flags = self.flags.load(Ordering::Relaxed);
            if flags & !NO_SENDERS != 0 {
                return None;
            }
            match receiving.pop(own, &self.sending) {
                Some(message) => Some(Ok(message)),
                None if flags == 0 => Some(Err(Nothing::Empty)),
                None => Some(Err(Nothing::Closed)),
            }
        })
    }

    #[inline]
    pub(super) fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        let mut message = Some(message);
        let sent = match self.send_fast(&mut message) {
            Some(sent) => sent,
            None => self.send_under_both(&mut message),
        };
        match (sent, message) {
            (Ok(()), _) => Ok(()),
            (Err(Refused::Full), Some(message)) => Err(TrySendError::Full(message)),
            (Err(_), Some(message)) => Err(TrySendError::Disconnected(message)),
            (Err(_), None) => unreachable!("a refused message stays with the sender"),
        }
    }

    #[cold]
    fn send_under_both(&self, message: &mut Option<T>) -> Result<(), Refused> {
        let wake = self.with_both(|both| both.send(message))?;
        wake.into_iter().for_each(Wake::wake);
        Ok(())
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

    /// Puts a sender into the queue, unless its message can go now or never: then returns the
    /// outcome.
    fn enlist_sender(&self, node: &Node, slot: &Slot<T>) -> Option<usize> {
        let (outcome, wake) = self.with_both(|both| {
            // SAFETY: the sender is in no queue, so nothing else looks at its slot.
            let sent = unsafe { slot.with(|message| both.send(message)) };
            match sent {
                Ok(wake) => (Some(PASSED), wake),
                Err(Refused::Closed) => (Some(CLOSED), None),
                Err(Refused::Full) => {
                    // SAFETY: the caller's frame continues when the node is claimed, and so out of
                    // the queue, or after it has removed it.
                    unsafe { both.sending.waiting.push_back(node) };
                    (None, None)
                }
            }
        });
        wake.into_iter().for_each(Wake::wake);
        outcome
    }

    pub(super) fn delist_sender(&self, node: &Node) {
        self.with_both(|both| both.sending.waiting.remove(node));
    }

    #[inline]
    pub(super) fn try_receive(&self) -> Result<T, TryRecvError> {
        let received = match self.receive_fast() {
            Some(received) => received,
            None => self.receive_under_both(),
        };
        received.map_err(|nothing| match nothing {
            Nothing::Empty => TryRecvError::Empty,
            Nothing::Closed => TryRecvError::Disconnected,
        })
    }

    #[cold]
    fn receive_under_both(&self) -> Result<T, Nothing> {
        let (message, wake) = self.with_both(|both| both.receive())?;
        wake.into_iter().for_each(Wake::wake);
        Ok(message)
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
        let (outcome, wake) = self.with_both(|both| match both.receive() {
            Ok((message, wake)) => {
                // SAFETY: the receiver is in no queue, so nothing else looks at its slot.
                unsafe { slot.put(message) };
                (Some(PASSED), wake)
            }
            Err(Nothing::Closed) => (Some(CLOSED), None),
            Err(Nothing::Empty) => {
                // SAFETY: as in `enlist_sender`.
                unsafe { both.receiving.waiting.push_back(node) };
                (None, None)
            }
        });
        wake.into_iter().for_each(Wake::wake);
        outcome
    }

    pub(super) fn delist_receiver(&self, node: &Node) {
        self.with_both(|both| both.receiving.waiting.remove(node));
    }

    /// For `select!`: puts an arm into the queue of senders; `false` if it could be done at once.
    pub(super) fn enlist_sending_arm(&self, node: &Node, wait: &Wait) -> bool {
        self.with_both(|both| {
            let is_closed = both.flags & NO_RECEIVERS != 0;
            if is_closed || both.find_space() || both.receiving.waiting.has_other(wait) {
                return false;
            }
            // SAFETY: a select takes its arms out of the lines before it returns.
            unsafe { both.sending.waiting.push_back(node) };
            true
        })
    }

    /// For `select!`: puts an arm into the queue of receivers; `false` if it could be done at once.
    pub(super) fn enlist_receiving_arm(&self, node: &Node, wait: &Wait) -> bool {
        self.with_both(|both| {
            let is_closed = both.flags & NO_SENDERS != 0;
            if is_closed || both.has_message() || both.sending.waiting.has_other(wait) {
                return false;
            }
            // SAFETY: as above.
            unsafe { both.receiving.waiting.push_back(node) };
            true
        })
    }

    pub(super) fn add_sender(&self) {
        self.sender_count.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_receiver(&self) {
        self.receiver_count.fetch_add(1, Ordering::Relaxed);
    }

    /// Drops a sender; the last one ends the waits of receivers.
    pub(super) fn drop_sender(&self) {
        if self.sender_count.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let mut wakes = Wakes::default();
        self.with_both(|both| {
            both.flags |= NO_SENDERS;
            let waiting = &mut both.receiving.waiting;
            waiting.grant_all(&mut wakes, |tag| code(tag, CLOSED));
        });
        wakes.wake();
    }

    /// Drops a receiver; the last one ends the waits of senders, and drops unreceived messages.
    pub(super) fn drop_receiver(&self) {
        if self.receiver_count.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let mut wakes = Wakes::default();
        self.with_both(|both| {
            both.flags |= NO_RECEIVERS;
            let waiting = &mut both.sending.waiting;
            waiting.grant_all(&mut wakes, |tag| code(tag, CLOSED));
        });
        wakes.wake();
        self.drop_messages();
    }

    fn drop_messages(&self) {
        let receiving = &self.receiving;
        let pop = || receiving.own.with(|own| receiving.pop(own, &self.sending));
        std::iter::from_fn(pop).for_each(drop);
    }

    fn reason(&self) -> WaitReason {
        let address = std::ptr::from_ref(self).addr();
        WaitReason::Channel { address }
    }
}

impl<T> Drop for Channel<T> {
    fn drop(&mut self) {
        self.drop_messages();
        // SAFETY: both ends are gone.
        self.sending.own.with(|own| unsafe { own.cursor.free() });
    }
}

/// Error of a send without a time-out of its own, which has only one.
pub(super) fn disconnected<T>(error: TrySendError<T>) -> SendError<T> {
    match error {
        TrySendError::Full(message) | TrySendError::Disconnected(message) => SendError(message),
    }
}

/// Error of a receive without a time-out of its own, which has only one.
pub(super) fn ended(_: RecvTimeoutError) -> RecvError {
    RecvError
}
