//! [`select!`](crate::select) and what it is made of.

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::sync::mpsc::{RecvError, SendError, TryRecvError, TrySendError};
use std::time::Duration;

use super::channel::{Channel, Slot};
use super::wait::{Limit, Node, Wait};
use crate::base::clock::after;
use crate::sched::waiting;
use crate::switch::reason::WaitReason;

/// Waits for the first of several channel operations; see [`select!`](crate::select), which is this
/// in fewer words.
///
/// ```
/// use weftwork_fiber::sync::{Select, mpmc};
///
/// let (sender, receiver) = mpmc::bounded(1);
/// let (_quiet, silence) = mpmc::bounded::<()>(1);
/// sender.send(7).unwrap();
///
/// let (word, nothing) = (receiver.receiving(), silence.receiving());
/// let mut select = Select::new();
/// let first = select.receive(&word);
/// select.receive(&nothing);
/// assert_eq!(select.wait(), first);
/// assert_eq!(word.take(), Ok(7));
/// ```
#[derive(Default)]
pub struct Select<'a> {
    arms: Vec<(usize, &'a dyn Arm)>,
}

/// One operation of several, on one thread.
trait Arm {
    /// Does the operation, if that is possible at once (or never).
    fn attempt(&self) -> bool;
    /// Queues the operation; `false` if it could be done at once.
    fn enlist(&self, wait: &Wait, index: usize) -> bool;
    /// Leaves the queue.
    fn delist(&self);
    /// Ends the operation: another thread did it, or it can be done no more.
    fn finish(&self, outcome: usize);

    /// Ends the operation as if the other side were gone, unless it is done.
    fn fail(&self) -> bool;
}

impl<'a> Select<'a> {
    /// Without operations: [`wait`](Select::wait) would wait forever.
    pub fn new() -> Select<'a> {
        Select::default()
    }

    /// Adds an operation and returns its number: 0, 1, …
    ///
    /// # Panics
    /// If it was added before.
    pub fn receive<T>(&mut self, arm: &'a Receiving<'_, T>) -> usize {
        self.add(arm)
    }

    /// Adds an operation and returns its number.
    ///
    /// # Panics
    /// If it was added before.
    pub fn send<T>(&mut self, arm: &'a Sending<'_, T>) -> usize {
        self.add(arm)
    }

    fn add(&mut self, arm: &'a dyn Arm) -> usize {
        // It has one node, which cannot be in a queue twice.
        let is_new = |&(_, other): &(usize, &dyn Arm)| !std::ptr::addr_eq(other, arm);
        assert!(self.arms.iter().all(is_new), "an operation is added once");
        let number = self.arms.len();
        self.arms.push((number, arm));
        number
    }

    /// Does one of the operations, waiting for the first that can be done; returns its number. If
    /// several can be, each has the same chance. An operation on a channel whose other side is gone
    /// can be done: it fails. So does one of the operations, if none can be done and the fiber is
    /// [cancelled](crate::Fiber::cancel) or the time of [`timeout`](crate::timeout) is over.
    pub fn wait(&mut self) -> usize {
        let mut limit = Limit::WithFiber;
        loop {
            if let Some(number) = self.wait_within(limit) {
                return number;
            }
            if let Some(&(number, _)) = self.arms.iter().find(|(_, arm)| arm.fail()) {
                return number;
            }
            // All have been done before.
            limit = Limit::Never;
        }
    }

    /// Same as [`wait`](Select::wait), but not longer than `timeout`: then `None`, and nothing was
    /// done.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<usize> {
        self.wait_within(Limit::At(after(timeout)))
    }

    /// Does one of the operations, if one can be done now.
    pub fn try_wait(&mut self) -> Option<usize> {
        shuffle(&mut self.arms);
        let ready = self.arms.iter().find(|(_, arm)| arm.attempt());
        ready.map(|&(number, _)| number)
    }

    fn wait_within(&mut self, limit: Limit) -> Option<usize> {
        loop {
            if let Some(number) = self.try_wait() {
                return Some(number);
            }
            if let Some(ended) = self.wait_in_queues(limit) {
                return ended;
            }
        }
    }

    /// Waits in all queues at once; `None` if one of the operations could be done at once, after
    /// all.
    fn wait_in_queues(&self, limit: Limit) -> Option<Option<usize>> {
        let wait = Wait::new();
        let mut enlisted = self.arms.iter();
        let all = enlisted.all(|&(number, arm)| arm.enlist(&wait, number));
        // The wait may be claimed already, through a queue that has it: then the claim counts.
        let granted = if !all && wait.give_up() {
            None
        } else {
            let _noted = waiting::on(WaitReason::Select);
            Some(wait.block(limit))
        };
        self.arms.iter().for_each(|(_, arm)| arm.delist());
        let ended = granted?.map(|granted| {
            let number = granted >> 1;
            let outcome = granted & 1;
            let arm = self.arms.iter().find(|&&(of, _)| of == number);
            arm.expect("the number of an arm of this select").1.finish(outcome);
            number
        });
        Some(ended)
    }
}

impl fmt::Debug for Select<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Select").field("arms", &self.arms.len()).finish()
    }
}

/// Any order with the same chance (Fisher and Yates).
fn shuffle<T>(list: &mut [T]) {
    for last in (1..list.len()).rev() {
        list.swap(last, random_below(last + 1));
    }
}

/// In the models the order is the same each time: loom repeats a run exactly.
#[cfg(loom)]
fn random_below(n: usize) -> usize {
    n - 1
}

/// Pseudo-random (xorshift, Marsaglia 2003). Not inlined: see `processor::here`.
#[cfg(not(loom))]
#[inline(never)]
fn random_below(n: usize) -> usize {
    thread_local! {
        static SEED: Cell<u64> = const { Cell::new(0x9e37_79b9_7f4a_7c15) };
    }
    let mut seed = SEED.get();
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    SEED.set(seed);
    ((seed >> 32) as usize * n) >> 32
}

/// An operation of a [`Select`]: to receive.
pub struct Receiving<'a, T> {
    channel: &'a Channel<T>,
    state: ArmState<T>,
}

/// An operation of a [`Select`]: to send.
pub struct Sending<'a, T> {
    channel: &'a Channel<T>,
    state: ArmState<T>,
}

/// State of one operation: the message, and a node for the queue of its channel.
struct ArmState<T> {
    slot: Slot<T>,
    stage: Cell<Progress>,
    node: UnsafeCell<Option<Node>>,
}

/// Progress of an operation.
///
/// Not being `Sync` does not give a select exclusive use of it: fibers of one processor share its
/// thread's values, and one may use it while the select of another waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Open,
    /// A select waits in the channel's queue: node and slot are the channel's.
    Queued,
    Done,
}

impl<T> ArmState<T> {
    fn new(message: Option<T>) -> ArmState<T> {
        ArmState {
            slot: Slot::new(message),
            stage: Cell::new(Progress::Open),
            node: UnsafeCell::new(None),
        }
    }

    /// # Panics
    /// If a select waits for the operation.
    fn is_open(&self) -> bool {
        let stage = self.stage.get();
        assert_ne!(stage, Progress::Queued, "another select waits for this operation");
        stage == Progress::Open
    }

    /// Queues the node by `enlist`, unless the operation is done; `false` if it could be done.
    fn enlist(&self, wait: &Wait, index: usize, enlist: impl FnOnce(&Node) -> bool) -> bool {
        if !self.is_open() {
            return true;
        }
        let fresh = Node::new(wait, index, self.slot.address());
        // SAFETY: the stage is `Open`, so the node is in no queue and nothing else looks at it.
        let is_in = enlist(unsafe { (*self.node.get()).insert(fresh) });
        if is_in {
            self.stage.set(Progress::Queued);
        }
        is_in
    }

    /// Leaves the queue by `delist`, if the node is in it.
    fn delist(&self, delist: impl FnOnce(&Node)) {
        if self.stage.get() == Progress::Queued {
            // SAFETY: shared, as the queue's neighbours have it; `enlist` alone changes it.
            let node = unsafe { &*self.node.get() };
            delist(node.as_ref().expect("a queued node has been placed"));
            self.stage.set(Progress::Open);
        }
    }

    fn fail(&self) -> bool {
        let is_open = self.is_open();
        self.stage.set(Progress::Done);
        is_open
    }

    /// The message that is left after the operation.
    ///
    /// # Panics
    /// If another operation was done.
    fn take(self) -> Option<T> {
        let stage = self.stage.get();
        assert_eq!(stage, Progress::Done, "another operation was selected");
        self.slot.into_message()
    }
}

impl<'a, T> Receiving<'a, T> {
    pub(super) fn new(channel: &'a Channel<T>) -> Receiving<'a, T> {
        Receiving { channel, state: ArmState::new(None) }
    }

    /// Received message, after the select returned this operation.
    ///
    /// # Errors
    /// Like [`recv`](super::mpsc::Receiver::recv).
    ///
    /// # Panics
    /// If it was another operation.
    pub fn take(self) -> Result<T, RecvError> {
        self.state.take().ok_or(RecvError)
    }
}

impl<'a, T> Sending<'a, T> {
    pub(super) fn new(channel: &'a Channel<T>, message: T) -> Sending<'a, T> {
        Sending { channel, state: ArmState::new(Some(message)) }
    }

    /// Result of the send, after the select returned this operation.
    ///
    /// # Errors
    /// The message, as [`send`](super::mpsc::SyncSender::send).
    ///
    /// # Panics
    /// If it was another operation.
    pub fn take(self) -> Result<(), SendError<T>> {
        self.state.take().map_or(Ok(()), |message| Err(SendError(message)))
    }

    /// The message, if it was another operation.
    pub fn into_message(self) -> Option<T> {
        self.state.slot.into_message()
    }
}

impl<T> Arm for Receiving<'_, T> {
    fn attempt(&self) -> bool {
        if !self.state.is_open() {
            return false;
        }
        match self.channel.try_receive() {
            // SAFETY: the arm is in no queue, so nothing else looks at its slot.
            Ok(message) => unsafe { self.state.slot.put(message) },
            Err(TryRecvError::Disconnected) => {}
            Err(TryRecvError::Empty) => return false,
        }
        self.state.stage.set(Progress::Done);
        true
    }

    fn enlist(&self, wait: &Wait, index: usize) -> bool {
        let enlist = |node: &Node| self.channel.enlist_receiving_arm(node, wait);
        self.state.enlist(wait, index, enlist)
    }

    fn delist(&self) {
        self.state.delist(|node| self.channel.delist_receiver(node));
    }

    fn finish(&self, _outcome: usize) {
        self.state.stage.set(Progress::Done);
    }

    fn fail(&self) -> bool {
        self.state.fail()
    }
}

impl<T> Arm for Sending<'_, T> {
    fn attempt(&self) -> bool {
        if !self.state.is_open() {
            return false;
        }
        // SAFETY: the arm is in no queue, so nothing else looks at its slot.
        let message = unsafe { self.state.slot.take() };
        let message = message.expect("an open arm has its message");
        match self.channel.try_send(message) {
            Ok(()) => {}
            // SAFETY: as above.
            Err(TrySendError::Disconnected(back)) => unsafe { self.state.slot.put(back) },
            Err(TrySendError::Full(back)) => {
                // SAFETY: as above.
                unsafe { self.state.slot.put(back) };
                return false;
            }
        }
        self.state.stage.set(Progress::Done);
        true
    }

    fn enlist(&self, wait: &Wait, index: usize) -> bool {
        let enlist = |node: &Node| self.channel.enlist_sending_arm(node, wait);
        self.state.enlist(wait, index, enlist)
    }

    fn delist(&self) {
        self.state.delist(|node| self.channel.delist_sender(node));
    }

    fn finish(&self, _outcome: usize) {
        self.state.stage.set(Progress::Done);
    }

    fn fail(&self) -> bool {
        self.state.fail()
    }
}

impl<T> fmt::Debug for Receiving<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiving").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Sending<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sending").finish_non_exhaustive()
    }
}

/// Waits for the first of several channel operations, does it, and runs its arm.
///
/// If several can be done each has the same chance, so none starves. An operation on a channel
/// whose other side is gone counts as done: its pattern then gets an `Err`. With a `default` arm it
/// does not wait, or not longer than the given time.
///
/// ```
/// use std::time::Duration;
/// use weftwork_fiber::select;
/// use weftwork_fiber::sync::mpmc;
///
/// weftwork_fiber::run(|| {
///     let (words, to_read) = mpmc::bounded(1);
///     let (to_write, _replies) = mpmc::rendezvous::<u32>();
///     words.send("hello").unwrap();
///     let heard = select! {
///         recv(to_read) -> word => word.unwrap(),
///         send(to_write, 7) -> sent => { sent.unwrap(); "sent" },
///         default(Duration::from_secs(1)) => "nothing",
///     };
///     assert_eq!(heard, "hello");
/// });
/// ```
#[macro_export]
macro_rules! select {
    // A `let` for each operation. The names are new at each step, so the list carries them along.
    (@arms $select:ident [$($done:tt)*] recv($receiver:expr) -> $result:pat => $body:block $(, $($rest:tt)*)?) => {{
        let arm = ($receiver).receiving();
        let number = $select.receive(&arm);
        $crate::select!(@arms $select [$($done)* (arm number $result => $body)] $($($rest)*)?)
    }};
    (@arms $select:ident [$($done:tt)*] recv($receiver:expr) -> $result:pat => $body:block $($rest:tt)+) => {
        $crate::select!(@arms $select [$($done)*] recv($receiver) -> $result => $body, $($rest)+)
    };
    (@arms $select:ident [$($done:tt)*] recv($receiver:expr) -> $result:pat => $body:expr $(, $($rest:tt)*)?) => {
        $crate::select!(@arms $select [$($done)*] recv($receiver) -> $result => { $body } $(, $($rest)*)?)
    };
    (@arms $select:ident [$($done:tt)*] send($sender:expr, $message:expr) -> $result:pat => $body:block $(, $($rest:tt)*)?) => {{
        let arm = ($sender).sending($message);
        let number = $select.send(&arm);
        $crate::select!(@arms $select [$($done)* (arm number $result => $body)] $($($rest)*)?)
    }};
    (@arms $select:ident [$($done:tt)*] send($sender:expr, $message:expr) -> $result:pat => $body:block $($rest:tt)+) => {
        $crate::select!(@arms $select [$($done)*] send($sender, $message) -> $result => $body, $($rest)+)
    };
    (@arms $select:ident [$($done:tt)*] send($sender:expr, $message:expr) -> $result:pat => $body:expr $(, $($rest:tt)*)?) => {
        $crate::select!(@arms $select [$($done)*] send($sender, $message) -> $result => { $body } $(, $($rest)*)?)
    };
    (@arms $select:ident [$($done:tt)*] default => $body:expr $(,)?) => {
        $crate::select!(@run ($select.try_wait()) [$($done)*] { $body })
    };
    (@arms $select:ident [$($done:tt)*] default($timeout:expr) => $body:expr $(,)?) => {
        $crate::select!(@run ($select.wait_timeout($timeout)) [$($done)*] { $body })
    };
    (@arms $select:ident [$($done:tt)*]) => {
        $crate::select!(@run (::core::option::Option::Some($select.wait())) [$($done)*] {
            ::core::unreachable!("select returned the number of no arm")
        })
    };
    (@run ($chosen:expr) [$(($arm:ident $number:ident $result:pat => $body:block))*] $default:block) => {{
        let chosen = $chosen;
        $(if chosen == ::core::option::Option::Some($number) {
            let $result = $arm.take();
            $body
        } else)* $default
    }};
    ($($arms:tt)+) => {{
        let mut select = $crate::sync::Select::new();
        $crate::select!(@arms select [] $($arms)+)
    }};
}
