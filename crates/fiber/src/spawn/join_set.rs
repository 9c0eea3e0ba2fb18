//! Fibers that belong together: [`JoinSet`].

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use crate::base::lock::lock;
use crate::io::cancel::{checkpoint, is_cancelled};
use crate::sched::block::{current, park, park_until_deadline};
use crate::sched::fiber::Fiber;
use crate::sched::unparker::Unparker;
use crate::spawn::builder::Builder;
use crate::spawn::packet::{self, FiberResult};

/// Fibers whose results are taken in the order in which they come, and that do not outlive the set.
///
/// When the set is dropped, its fibers are [cancelled](Fiber::cancel) and waited for; one of them
/// that drops it does not wait for itself. Cancellation goes down: when the fiber that waits for
/// the next result is cancelled, so are those of the set.
///
/// ```
/// weftwork_fiber::run(|| {
///     let mut set = weftwork_fiber::JoinSet::new();
///     for n in 1..=10 {
///         set.spawn(move || n * n);
///     }
///     let mut sum = 0;
///     while let Some(result) = set.join_next() {
///         sum += result.unwrap();
///     }
///     assert_eq!(sum, 385);
/// });
/// ```
pub struct JoinSet<T> {
    shared: Arc<Mutex<Shared<T>>>,
    /// Fibers whose results have not been taken.
    fibers: HashMap<u64, Fiber>,
}

struct Shared<T> {
    finished: VecDeque<(u64, FiberResult<T>)>,
    waiter: Option<Unparker>,
}

impl<T: Send + 'static> JoinSet<T> {
    /// A set without fibers.
    pub fn new() -> JoinSet<T> {
        let shared = Shared { finished: VecDeque::new(), waiter: None };
        JoinSet { shared: Arc::new(Mutex::new(shared)), fibers: HashMap::new() }
    }

    /// Starts a fiber that belongs to the set.
    ///
    /// # Panics
    /// On a plain thread, or if no stack can be had.
    #[track_caller]
    pub fn spawn(&mut self, f: impl FnOnce() -> T + Send + 'static) -> Fiber {
        let started = self.spawn_with(Builder::new(), f);
        started.expect("failed to spawn a fiber of a set")
    }

    /// Starts a fiber that belongs to the set with a builder's settings.
    ///
    /// # Errors
    /// Like [`Builder::spawn`].
    #[track_caller]
    pub fn spawn_with(
        &mut self,
        builder: Builder,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Fiber> {
        let shared = Arc::clone(&self.shared);
        let run = move || {
            let result = catch_unwind(AssertUnwindSafe(f));
            packet::clear_here();
            let id = current().expect("a fiber's closure runs in it").id();
            let waiter = {
                let mut shared = lock(&shared);
                shared.finished.push_back((id, result));
                shared.waiter.take()
            };
            waiter.iter().for_each(Unparker::unpark);
        };
        let fiber = builder.spawn(run)?.fiber().clone();
        self.fibers.insert(fiber.id(), fiber.clone());
        Ok(fiber)
    }

    /// Waits for the next fiber to finish, and returns what it returned, or the payload of its
    /// panic. `None` if there is no fiber.
    ///
    /// # Panics
    /// In a fiber of the set that is the only one left: it would wait for itself forever.
    pub fn join_next(&mut self) -> Option<FiberResult<T>> {
        while !self.fibers.is_empty() {
            if let Err(error) = self.refuse_to_wait_for_caller() {
                panic!("failed to join a fiber of a set: {error}");
            }
            if is_cancelled() {
                self.cancel_all();
            }
            if let Some(result) = self.take_or_wait(park) {
                return Some(result);
            }
        }
        None
    }

    /// Same as [`join_next`](JoinSet::join_next), but a suspension point like others: it ends at
    /// the deadline of [`timeout`](crate::timeout), and when the fiber that waits is
    /// [cancelled](Fiber::cancel). The fibers of the set continue then.
    ///
    /// # Errors
    /// `TimedOut`, or [`Cancelled`](crate::Cancelled); `Deadlock` in a fiber of the set that is the
    /// only one left.
    pub fn wait_next(&mut self) -> io::Result<Option<FiberResult<T>>> {
        while !self.fibers.is_empty() {
            if let Some(result) = self.try_join_next() {
                return Ok(Some(result));
            }
            self.refuse_to_wait_for_caller()?;
            checkpoint()?;
            if let Some(result) = self.take_or_wait(park_until_deadline) {
                return Ok(Some(result));
            }
        }
        Ok(None)
    }

    /// The result of a fiber that has finished, if there is one. Does not wait.
    pub fn try_join_next(&mut self) -> Option<FiberResult<T>> {
        let (id, result) = lock(&self.shared).finished.pop_front()?;
        self.fibers.remove(&id);
        Some(result)
    }

    /// Refuses the wait of the only fiber left: it leaves no result while it waits for one.
    fn refuse_to_wait_for_caller(&self) -> io::Result<()> {
        let only = self.fibers.keys().next().filter(|_| self.fibers.len() == 1);
        only.map_or(Ok(()), |&only| packet::refuse_to_wait_for(only))
    }

    /// Takes a result, or waits once until there may be one.
    fn take_or_wait(&mut self, park: impl FnOnce()) -> Option<FiberResult<T>> {
        {
            let mut shared = lock(&self.shared);
            if shared.finished.is_empty() {
                let any = self.fibers.values().next();
                any.inspect(|fiber| fiber.control.cluster().process.check("join a fiber"));
                shared.waiter = Some(Unparker::current());
                drop(shared);
                park();
            }
        }
        self.try_join_next()
    }

    /// Cancels all fibers of the set: see [`Fiber::cancel`]. Their results are still to be taken.
    pub fn cancel_all(&self) {
        self.fibers.values().for_each(Fiber::cancel);
    }

    /// Number of fibers whose results have not been taken.
    pub fn len(&self) -> usize {
        self.fibers.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.fibers.is_empty()
    }
}

impl<T: Send + 'static> Default for JoinSet<T> {
    fn default() -> JoinSet<T> {
        JoinSet::new()
    }
}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        self.fibers.values().for_each(Fiber::cancel);
        // While it unwinds, a fiber does not suspend, and those it would wait for may need its
        // processor. They own what they use, so it is sound to leave them running.
        // In the child of a fork they are the parent's, and never end.
        let is_elsewhere = |fiber: &Fiber| !fiber.control.cluster().process.is_here();
        if std::thread::panicking() || self.fibers.values().any(is_elsewhere) {
            return;
        }
        if let Some(caller) = current() {
            self.fibers.remove(&caller.id());
        }
        while !self.fibers.is_empty() {
            let mut shared = lock(&self.shared);
            match shared.finished.pop_front() {
                Some((id, result)) => {
                    drop(shared);
                    drop(result);
                    self.fibers.remove(&id);
                }
                None => {
                    shared.waiter = Some(Unparker::current());
                    drop(shared);
                    park();
                }
            }
        }
    }
}

impl<T> fmt::Debug for JoinSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinSet").field("len", &self.fibers.len()).finish_non_exhaustive()
    }
}
