//! Threads for calls that block whatever we do: DNS, opening files, what other libraries do.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::cluster::lock;
use crate::fiber::{Fiber, park};
use crate::processor;
use crate::waiting::{self, WaitReason};

/// At most this many calls run at once; more wait in line.
const THREADS_MAX: usize = 32;

/// A thread without work goes away after this time.
const IDLE_MAX: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

struct Pool {
    state: Mutex<PoolState>,
    work: Condvar,
}

/// The line is as long as there are fibers that wait: each waits for one call.
#[derive(Default)]
struct PoolState {
    line: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

static POOL: Pool = Pool {
    state: Mutex::new(PoolState::new()),
    work: Condvar::new(),
};

/// Runs `f` on a thread where blocking hurts nobody, and waits for its result without holding the
/// processor. `f` may borrow. On a plain thread it just runs.
///
/// # Panics
/// With the panic of `f`.
pub fn offload<F, T>(f: F) -> T
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    let Some(fiber) = processor::with_current(|processor, fiber| {
        processor.shared().counters.offloads.add(1);
        fiber.handle()
    }) else {
        return f();
    };
    let done = AtomicBool::new(false);
    let mut result = None;
    let call = Call {
        f,
        result: &raw mut result,
        done: &raw const done,
        fiber,
    };
    let job: Box<dyn FnOnce() + Send + '_> = Box::new(move || call.make());
    // SAFETY: this frame, and with it all that `f` borrows, stays until `done` is set: `park` cannot
    // unwind, and nothing else in the loop can. The job touches nothing borrowed after it sets `done`.
    // If the runtime stops first the frame is never left, and stays in memory.
    POOL.submit(unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + '_>, Job>(job) });
    let _noted = waiting::on(WaitReason::Offload);
    while !done.load(Ordering::Acquire) {
        park();
    }
    match result.expect("the call has been made") {
        Ok(value) => value,
        Err(payload) => resume_unwind(payload),
    }
}

/// One call: what to run, and where its result goes, in the frame of the fiber that waits.
struct Call<F, T> {
    f: F,
    result: *mut Option<thread::Result<T>>,
    done: *const AtomicBool,
    fiber: Fiber,
}

// SAFETY: `f` and the result are `Send`; the pointers are used by one thread at a time (see `make`).
unsafe impl<F: Send, T: Send> Send for Call<F, T> {}

impl<F: FnOnce() -> T, T> Call<F, T> {
    fn make(self) {
        let Call {
            f,
            result,
            done,
            fiber,
        } = self;
        let outcome = catch_unwind(AssertUnwindSafe(f));
        // SAFETY: the fiber reads neither before `done` is set, and does not leave its frame either. The handle
        // keeps the fiber's control block, which is not in that frame, for the unpark.
        unsafe {
            *result = Some(outcome);
            (*done).store(true, Ordering::Release);
        }
        fiber.unpark();
    }
}

impl PoolState {
    const fn new() -> PoolState {
        PoolState {
            line: VecDeque::new(),
            threads: 0,
            idle: 0,
        }
    }
}

impl Pool {
    fn submit(&'static self, job: Job) {
        let mut state = lock(&self.state);
        state.line.push_back(job);
        if state.idle >= state.line.len() || state.threads >= THREADS_MAX {
            self.work.notify_one();
            return;
        }
        state.threads += 1;
        let thread = thread::Builder::new()
            .name("offload".into())
            .spawn(|| self.serve());
        if thread.is_err() {
            state.threads -= 1;
            // No thread to be had and none running: better to block a processor than for ever.
            if state.threads == 0 {
                let job = state.line.pop_back();
                drop(state);
                job.into_iter().for_each(|job| job());
            }
        }
    }

    fn serve(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.line.pop_front() {
                drop(state);
                job();
                state = lock(&self.state);
                continue;
            }
            state.idle += 1;
            let (woken, timeout) = self
                .work
                .wait_timeout(state, IDLE_MAX)
                .unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if timeout.timed_out() && state.line.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}
