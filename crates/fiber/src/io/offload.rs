//! Threads for calls that always block: DNS, opening files, calls of other libraries.

mod pool;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

pub use pool::{OffloadCounters, offload_counters, set_offload_threads_max};
pub(crate) use pool::{forget_after_fork, keep_thread};

use crate::base::abort::while_lent;
use crate::base::lock::lock;
use crate::io::cancel::checkpoint;
use crate::sched::block::{park, park_until_deadline};
use crate::sched::fiber::Fiber;
use crate::sched::processor;
use crate::sched::waiting;
use crate::switch::reason::WaitReason;

/// Runs `f` on a thread that may block, and waits for its result without holding the
/// processor. `f` may borrow. On a plain thread it just runs.
///
/// At most 32 calls run at once in a process ([`set_offload_threads_max`]), and the others wait in
/// line: a disk that hangs fills the threads, which [`offload_counters`] shows. Because `f` may
/// borrow, the caller waits for its end, past deadlines and requests to end; [`try_offload`] does
/// not.
///
/// A call that waits for fibers, by `join` or the types of [`sync`](crate::sync), does not count
/// meanwhile, so the fibers may make calls as well. A call that waits for fibers by other means (a
/// channel of `std`, a socket) does count: 32 of them wait forever if the fibers' own calls are
/// queued.
///
/// # Panics
/// With the panic of `f`.
pub fn offload<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    let Some(fiber) = processor::with_current(|processor, fiber| {
        processor.shared().counters.offloads.add(1);
        fiber.handle()
    }) else {
        return f();
    };
    let done = AtomicBool::new(false);
    let mut result = None;
    let call = Call { f, result: &raw mut result, done: &raw const done, fiber };
    let job: Box<dyn FnOnce() + Send + '_> = Box::new(move || call.make());
    // SAFETY: this frame, and with it all that `f` borrows, stays until `done` is set. The job
    // touches nothing borrowed after that. If the runtime stops first the frame is never left: its
    // stack stays, and so does its kernel thread, of which `f` may have borrowed a thread-local.
    let job = unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + '_>, pool::Job>(job) };
    while_lent(|| {
        pool::pool().submit(job);
        let _noted = waiting::on(WaitReason::Offload);
        while !done.load(Ordering::Acquire) {
            park();
        }
    });
    match result.expect("the call has been made") {
        Ok(value) => value,
        Err(payload) => resume_unwind(payload),
    }
}

/// Same as [`offload`], for a call that owns what it uses: past the deadline of
/// [`timeout`](crate::timeout), or when the fiber is [cancelled](Fiber::cancel), the fiber
/// continues without it. A call that is still queued is then never made; one that has begun runs to
/// its end, keeps its thread until then, and its result is dropped there.
///
/// ```
/// use std::time::Duration;
///
/// weftwork_fiber::run(|| {
///     let hangs = || std::thread::sleep(Duration::from_millis(200));
///     let result = weftwork_fiber::timeout(Duration::from_millis(5), || weftwork_fiber::try_offload(hangs));
///     assert_eq!(result.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
/// });
/// ```
///
/// # Errors
/// `TimedOut`, or [`Cancelled`](crate::Cancelled).
///
/// # Panics
/// With the panic of `f`, if it was waited for.
pub fn try_offload<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    checkpoint()?;
    let Some(fiber) = processor::with_current(|processor, fiber| {
        processor.shared().counters.offloads.add(1);
        fiber.handle()
    }) else {
        return Ok(f());
    };
    let outcome = Arc::new(Mutex::new(None));
    let result = Arc::clone(&outcome);
    let id = pool::pool().submit(Box::new(move || {
        let made = catch_unwind(AssertUnwindSafe(f));
        *lock(&result) = Some(made);
        // If the call was given up, this is the last reference, and drops the result.
        drop(result);
        fiber.unpark();
    }));
    let _noted = waiting::on(WaitReason::Offload);
    loop {
        match lock(&outcome).take() {
            Some(Ok(value)) => return Ok(value),
            Some(Err(payload)) => resume_unwind(payload),
            None => {}
        }
        if let Err(error) = checkpoint() {
            pool::pool().give_up(id);
            return Err(error);
        }
        park_until_deadline();
    }
}

/// Hands a call over to the [`offload`] threads and does not wait for it: for a thread that serves
/// others, such as an event loop's, which learns of the end by what `f` does last. From any thread.
/// A panic of `f` ends the call only.
///
/// The line has no limit of its own: a caller that hands over call after call must have one.
pub fn offload_detached(f: impl FnOnce() + Send + 'static) {
    pool::pool().submit(Box::new(f));
}

/// One call: what to run, and where its result goes, in the frame of the fiber that waits.
struct Call<F, T> {
    f: F,
    result: *mut Option<thread::Result<T>>,
    done: *const AtomicBool,
    fiber: Fiber,
}

// SAFETY: `f` and the result are `Send`; the pointers are used by one thread at a time (see
// `make`).
unsafe impl<F: Send, T: Send> Send for Call<F, T> {}

impl<F: FnOnce() -> T, T> Call<F, T> {
    fn make(self) {
        let Call { f, result, done, fiber } = self;
        let outcome = catch_unwind(AssertUnwindSafe(f));
        // SAFETY: the fiber reads neither before `done` is set, and does not leave its frame
        // either. The handle keeps the fiber's control block, which is not in that frame, for the
        // unpark.
        unsafe {
            *result = Some(outcome);
            (*done).store(true, Ordering::Release);
        }
        fiber.unpark();
    }
}
