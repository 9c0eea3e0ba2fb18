//! The threads behind [`offload`](super::offload): as many as there is work for, up to a limit; the
//! rest stands in line.
//!
//! One pool for the process, whatever runtimes there are.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::base::lock::lock;
use crate::base::thread_wait;

/// At most this many calls run at once unless [`set_offload_threads_max`] says otherwise; more wait
/// in line.
const THREADS_MAX_DEFAULT: usize = 32;

/// Limit on calls that do not count because they wait for fibers, which may make calls themselves.
const UNCOUNTED_MAX: usize = 1024;

/// A thread without work goes away after this time.
const IDLE_MAX: Duration = Duration::from_secs(10);

pub(super) type Job = Box<dyn FnOnce() + Send>;

/// Names a call, for taking it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallId(u64);

pub(super) struct Pool {
    state: Mutex<PoolState>,
    work: Condvar,
}

/// The line is not longer than there are fibers that wait, because each waits for one call and
/// takes it out of the line if it gives up, and calls that were handed over
/// [detached](super::offload_detached), which their callers limit.
struct PoolState {
    line: VecDeque<QueuedCall>,
    /// Calls that run, and since when.
    active: Vec<(CallId, Instant)>,
    threads: usize,
    threads_max: usize,
    idle: usize,
    /// Calls that run and wait for fibers.
    waiting_for_fibers: usize,
    calls: u64,
    given_up: u64,
    waiting_max: usize,
    wait_longest: Duration,
}

struct QueuedCall {
    id: CallId,
    since: Instant,
    job: Job,
}

impl PoolState {
    /// Present limit on threads.
    fn limit(&self) -> usize {
        self.threads_max.saturating_add(self.waiting_for_fibers.min(UNCOUNTED_MAX))
    }
}

/// State of the [`offload`](crate::offload()) threads. When a disk or a name server hangs, it shows
/// here first: `active` at `threads_max`, `active_oldest` and `waiting` growing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OffloadCounters {
    /// Threads that there are.
    pub threads: usize,
    /// Limit on threads, beside those whose calls wait for fibers; more calls are queued.
    pub threads_max: usize,
    /// Calls that run.
    pub active: usize,
    /// Threads whose calls wait for fibers, in this crate's `join` or [`sync`](crate::sync).
    pub waiting_for_fibers: usize,
    /// For how long the oldest of them has been running.
    pub active_oldest: Duration,
    /// Queued calls.
    pub waiting: usize,
    /// For how long the first of them has been waiting.
    pub waiting_oldest: Duration,
    /// The longest that the line has been.
    pub waiting_max: usize,
    /// Longest time that a call was queued before it began.
    pub wait_longest: Duration,
    /// Calls made.
    pub calls: u64,
    /// Calls whose fiber did not wait for the end: see [`try_offload`](crate::try_offload).
    pub given_up: u64,
}

impl fmt::Display for OffloadCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OffloadCounters { active, threads_max, waiting, .. } = self;
        write!(
            f,
            "{active} of {threads_max} threads busy (longest {:?}), {waiting} calls in line \
             (longest {:?}), {} made, {} given up",
            self.active_oldest, self.waiting_oldest, self.calls, self.given_up
        )
    }
}

/// Returns the counters of the offload threads.
pub fn offload_counters() -> OffloadCounters {
    let pool = pool();
    let state = lock(&pool.state);
    let now = Instant::now();
    let age = |since: Option<Instant>| since.map_or(Duration::ZERO, |since| now - since);
    OffloadCounters {
        threads: state.threads,
        threads_max: state.threads_max,
        active: state.active.len(),
        waiting_for_fibers: state.waiting_for_fibers,
        active_oldest: age(state.active.iter().map(|&(_, since)| since).min()),
        waiting: state.line.len(),
        waiting_oldest: age(state.line.front().map(|waiting| waiting.since)),
        waiting_max: state.waiting_max,
        wait_longest: state.wait_longest,
        calls: state.calls,
        given_up: state.given_up,
    }
}

/// Sets how many [`offload`](crate::offload()) calls run at once in this process, 32 unless set; at
/// least 1. Threads that are too many end when they have nothing to do.
pub fn set_offload_threads_max(count: usize) {
    let pool = pool();
    let mut state = lock(&pool.state);
    state.threads_max = count.max(1);
    let room = state.limit().saturating_sub(state.threads);
    for _ in 0..room.min(state.line.len()) {
        // If no thread can be started, the present ones do the work.
        if pool.add_thread(&mut state).is_err() {
            break;
        }
    }
    pool.work.notify_all();
}

/// The pool of this process; null until it is needed.
static POOL: AtomicPtr<Pool> = AtomicPtr::new(ptr::null_mut());

pub(super) fn pool() -> &'static Pool {
    let mut pool = POOL.load(Ordering::Acquire);
    if pool.is_null() {
        let fresh = Box::into_raw(Box::new(Pool::new()));
        pool = match POOL.compare_exchange(pool, fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => fresh,
            Err(other) => {
                // SAFETY: nothing else has seen it.
                drop(unsafe { Box::from_raw(fresh) });
                other
            }
        };
    }
    // SAFETY: a pool that has been published is never freed.
    unsafe { &*pool }
}

thread_local! {
    static IS_KEPT: Cell<bool> = const { Cell::new(false) };
}

/// Keeps the calling thread, if it is one of the pool, when it has nothing to do: it is the parent
/// of a process that may have asked to die with it. PR_SET_PDEATHSIG(2const)
pub(crate) fn keep_thread() {
    IS_KEPT.set(true);
}

/// Forgets the pool in the child of a fork: its threads do not exist there, and one of them may
/// hold the lock.
pub(crate) fn forget_after_fork() {
    POOL.store(ptr::null_mut(), Ordering::Release);
    thread_wait::set_listener(None);
}

impl Pool {
    fn new() -> Pool {
        Pool {
            state: Mutex::new(PoolState {
                line: VecDeque::new(),
                active: Vec::new(),
                threads: 0,
                threads_max: THREADS_MAX_DEFAULT,
                idle: 0,
                waiting_for_fibers: 0,
                calls: 0,
                given_up: 0,
                waiting_max: 0,
                wait_longest: Duration::ZERO,
            }),
            work: Condvar::new(),
        }
    }

    pub(super) fn submit(&'static self, job: Job) -> CallId {
        let mut state = lock(&self.state);
        state.calls += 1;
        let id = CallId(state.calls);
        let since = Instant::now();
        state.line.push_back(QueuedCall { id, since, job });
        state.waiting_max = state.waiting_max.max(state.line.len());
        let has_thread = state.idle >= state.line.len()
            || state.threads < state.limit() && self.add_thread(&mut state).is_ok();
        if has_thread || state.threads > state.waiting_for_fibers {
            self.work.notify_one();
        } else {
            // No thread can be started and none will take the call: rather block a processor than
            // wait forever.
            if let Some(call) = state.line.pop_back() {
                drop(self.run(state, call));
            }
        }
        id
    }

    /// Takes a call out of the queue. A call that has begun continues without its fiber.
    pub(super) fn give_up(&self, id: CallId) {
        let mut state = lock(&self.state);
        state.given_up += 1;
        let taken = state.line.iter().position(|call| call.id == id);
        let taken = taken.and_then(|at| state.line.remove(at));
        // Dropping it may run destructors of the user's.
        drop(state);
        drop(taken);
    }

    /// Notes that a call on this pool thread begins or ends a wait for fibers, which may be about
    /// to make calls.
    fn note_wait(&'static self, is_begun: bool) {
        let mut state = lock(&self.state);
        if !is_begun {
            state.waiting_for_fibers -= 1;
            return;
        }
        state.waiting_for_fibers += 1;
        if state.idle < state.line.len() && state.threads < state.limit() {
            // If no thread can be started, the present ones do the work.
            let _ = self.add_thread(&mut state);
        }
        // A thread beyond the limit may take a call now.
        self.work.notify_one();
    }

    fn add_thread(&'static self, state: &mut PoolState) -> io::Result<()> {
        let thread = thread::Builder::new().name("offload".into());
        thread.spawn(|| {
            thread_wait::set_listener(Some(|is_begun| pool().note_wait(is_begun)));
            self.serve();
        })?;
        state.threads += 1;
        Ok(())
    }

    fn serve(&self) {
        let mut state = lock(&self.state);
        loop {
            // The limit may have fallen below the number of threads.
            if state.active.len() < state.limit()
                && let Some(call) = state.line.pop_front()
            {
                state = self.run(state, call);
                continue;
            }
            state.idle += 1;
            let (woken, timeout) =
                self.work.wait_timeout(state, IDLE_MAX).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            let too_many = state.threads > state.limit();
            let may_end = state.line.is_empty() && !IS_KEPT.get();
            if (timeout.timed_out() || too_many) && may_end {
                state.threads -= 1;
                return;
            }
        }
    }

    fn run<'a>(
        &'a self,
        mut state: MutexGuard<'a, PoolState>,
        call: QueuedCall,
    ) -> MutexGuard<'a, PoolState> {
        let now = Instant::now();
        state.wait_longest = state.wait_longest.max(now - call.since);
        state.active.push((call.id, now));
        drop(state);
        // The result of a call that was given up is dropped here, and its destructor is user code.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(call.job)) {
            // The panic hook has reported it. The payload's destructor could panic as well, and so
            // on.
            std::mem::forget(payload);
        }
        let mut state = lock(&self.state);
        state.active.retain(|&(id, _)| id != call.id);
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Barrier, mpsc};

    /// Seen: a child that had asked to die with its parent died after ten seconds. Cause: the
    /// thread that had started it had nothing to do, and ended. Cure: it stays.
    #[test]
    fn a_thread_that_has_a_child_stays() {
        let pool: &'static Pool = Box::leak(Box::new(Pool::new()));
        let both_run = Arc::new(Barrier::new(2));
        for is_kept in [true, false] {
            let both_run = Arc::clone(&both_run);
            pool.submit(Box::new(move || {
                if is_kept {
                    keep_thread();
                }
                both_run.wait();
            }));
        }
        let until = |is_so: fn(&PoolState) -> bool| {
            while !is_so(&lock(&pool.state)) {
                pool.work.notify_all();
                thread::sleep(Duration::from_millis(1));
            }
        };
        until(|state| state.idle == 2);
        // Both threads exceed the limit now.
        lock(&pool.state).threads_max = 0;
        until(|state| state.threads <= 1);
        lock(&pool.state).threads_max = 1;
        let (sender, receiver) = mpsc::channel();
        pool.submit(Box::new(move || sender.send(IS_KEPT.get()).unwrap()));
        assert!(receiver.recv().unwrap(), "the kept thread has ended");
    }

    /// Seen (in review): a call was queued for ten seconds, beside a thread that had nothing to
    /// do. Cause: that one had been too many, and when another call began to wait for fibers, and
    /// it was so no longer, nothing woke it. Cure: that does.
    #[test]
    fn wait_for_fibers_frees_a_thread() {
        let pool: &'static Pool = Box::leak(Box::new(Pool::new()));
        let (hold, held) = mpsc::channel::<()>();
        let (begun, begins) = mpsc::channel();
        let ends = begun.clone();
        pool.submit(Box::new(move || {
            begun.send("first").unwrap();
            let _ = held.recv();
        }));
        let (release, released) = mpsc::channel::<()>();
        let second = ends.clone();
        pool.submit(Box::new(move || {
            second.send("second").unwrap();
            let _ = released.recv();
        }));
        for _ in 0..2 {
            begins.recv().unwrap();
        }
        lock(&pool.state).threads_max = 1;
        pool.submit(Box::new(move || ends.send("third").unwrap()));
        drop(release);
        while lock(&pool.state).idle == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(lock(&pool.state).line.len(), 1);
        pool.note_wait(true);
        assert_eq!(begins.recv_timeout(IDLE_MAX * 9 / 10), Ok("third"));
        drop(hold);
    }
}
