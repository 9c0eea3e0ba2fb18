//! Owned jobs: what may block, done where blocking is allowed. One pool for all engines.
//!
//! The pool is the runtime's offload threads, of which a process has at most 32. A pool of our own
//! would not spare them: reads of files, look-ups of names and listings of a fiber stand in their
//! line already, and two pools would be two limits for one disk. A fiber waits for its job there
//! ([`fiber::offload`]); an engine whose threads serve many connections
//! [hands it over](Jobs::hand_over), and what is called last delivers it.
//!
//! Threads of the thread engine block themselves, beside the pool and its figures (`weft_jobs_…`):
//! nothing else waits for them.
//!
//! A connection has at most one job in the line. One that is cut leaves its job behind, so what is
//! handed over has a limit and a counter of its own. Jobs that wait for something to happen have
//! threads of their own and never stand in the line: twenty `watch`ers took twenty of the threads
//! for as long as they watched.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use session::{Now, Session};

use crate::metrics::MetricsWriter;

/// A session that is handed out for work. The engine runs it wherever blocking is allowed; if the
/// connection ends meanwhile, the job may be dropped as well as brought back.
pub(crate) struct Job<S> {
    pub(crate) session: S,
    /// It waits for something to happen, however long that takes.
    pub(crate) waits: bool,
}

impl<S: Session> Job<S> {
    pub(crate) fn run(mut self, now: Now) -> Job<S> {
        self.session.work(now);
        self
    }
}

/// The jobs of a server.
#[derive(Debug)]
pub(crate) struct Jobs {
    /// Handed over and not yet done.
    handed_over: AtomicUsize,
    handed_over_max: usize,
    refused: AtomicU64,
}

impl Jobs {
    pub(crate) fn new(handed_over_max: usize) -> Jobs {
        Jobs {
            handed_over: AtomicUsize::new(0),
            handed_over_max,
            refused: AtomicU64::new(0),
        }
    }

    /// Runs a job and waits for it, on a fiber or on a thread that serves one connection.
    ///
    /// # Errors
    /// As [`hand_over`](Jobs::hand_over).
    ///
    /// # Panics
    /// With the job.
    pub(crate) fn run<S: Session + 'static>(
        self: &Arc<Self>,
        job: Job<S>,
        now: Now,
    ) -> io::Result<Job<S>> {
        if !job.waits || fiber::current().is_none() {
            return Ok(fiber::offload(move || job.run(now)));
        }
        let (done, wait) = fiber::sync::mpsc::channel();
        self.work(job, now, move |job| drop(done.send(job)))?;
        // The job has the session, without which nothing goes on.
        match fiber::uncancellable(|| wait.recv()) {
            Ok(Some(job)) => Ok(job),
            _ => resume_unwind(Box::new("a job has panicked")),
        }
    }

    /// Has a job run elsewhere. `done` gets it back on the thread that ran it; `None` if it
    /// panicked.
    ///
    /// # Errors
    /// As [`hand_over`](Jobs::hand_over).
    pub(crate) fn work<S: Session + 'static>(
        self: &Arc<Self>,
        job: Job<S>,
        now: Now,
        done: impl FnOnce(Option<Job<S>>) + Send + 'static,
    ) -> io::Result<()> {
        let waits = job.waits;
        // The panic hook has reported it.
        let run = move || done(catch_unwind(AssertUnwindSafe(|| job.run(now))).ok());
        self.hand_over(waits, run)
    }

    /// Has something done elsewhere. `waits`: it waits for something to happen, and so has a thread
    /// of its own.
    ///
    /// # Errors
    /// `ResourceBusy` if as much as may be handed over has not been done yet.
    pub(crate) fn hand_over(
        self: &Arc<Self>,
        waits: bool,
        call: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let place = self.reserve()?;
        if waits {
            on_own_thread(move || place.run(call));
        } else {
            place.hand_over(call);
        }
        Ok(())
    }

    /// Reserves space in the queue, for a caller that wants back what it cannot hand over.
    ///
    /// # Errors
    /// As [`hand_over`](Jobs::hand_over).
    pub(crate) fn reserve(self: &Arc<Self>) -> io::Result<Place> {
        if self.handed_over.fetch_add(1, Ordering::Relaxed) >= self.handed_over_max {
            self.handed_over.fetch_sub(1, Ordering::Relaxed);
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        Ok(Place(Arc::clone(self)))
    }

    /// Writes how the pool is doing.
    pub(crate) fn write_metrics(&self, out: &mut MetricsWriter) {
        let pool = fiber::offload_counters();
        let help = "Jobs that may block: session work, file reads and listings off the processors.";
        out.counter("weft_jobs_total", help, &[], pool.calls);
        let help = "Jobs that were not begun because too many waited.";
        let refused = self.refused.load(Ordering::Relaxed);
        out.counter("weft_jobs_refused_total", help, &[], refused);
        for (name, help, value) in [
            ("weft_jobs_running", "Jobs that run.", pool.active),
            ("weft_jobs_waiting", "Jobs in line.", pool.waiting),
            (
                "weft_jobs_running_max",
                "Jobs that run at once, at most.",
                pool.threads_max,
            ),
        ] {
            out.gauge(name, help, &[], value as f64);
        }
    }
}

/// The place of something that is handed over; dropping it is its end.
pub(crate) struct Place(Arc<Jobs>);

impl Place {
    /// Has something done by a thread of the pool.
    pub(crate) fn hand_over(self, call: impl FnOnce() + Send + 'static) {
        fiber::offload_detached(move || self.run(call));
    }

    fn run(self, call: impl FnOnce()) {
        call();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.handed_over.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Without memory for a thread it stands in line like the others.
fn on_own_thread(call: impl FnOnce() + Send + 'static) {
    let (give, take) = mpsc::sync_channel::<Box<dyn FnOnce() + Send>>(1);
    let builder = thread::Builder::new().name("waiting".to_owned());
    let spawned = builder.spawn(move || take.recv().map(|call| call()));
    match spawned {
        Ok(_) => drop(give.send(Box::new(call))),
        Err(_) => fiber::offload_detached(call),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Condvar, Mutex};
    use std::time::{Duration, Instant};

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Seen: each `watch` of the cache held one of the 32 threads that cold files, listings and
    /// crawls share, for as long as it watched. Cause: what waits for something to happen was work
    /// like any other. Cure: it says so, and waits on a thread of its own.
    #[test]
    fn waiting_jobs_do_not_delay_others() {
        let jobs = Arc::new(Jobs::new(1000));
        let end = Arc::new((Mutex::new(false), Condvar::new()));
        for _ in 0..2 * fiber::offload_counters().threads_max {
            let end = Arc::clone(&end);
            let wait = move || {
                let is_over = end.0.lock().unwrap();
                drop(end.1.wait_while(is_over, |is_over| !*is_over));
            };
            jobs.hand_over(true, wait).unwrap();
        }
        let (done, ended) = mpsc::channel();
        jobs.hand_over(false, move || done.send(()).unwrap())
            .unwrap();
        let ended = ended.recv_timeout(PATIENCE);
        *end.0.lock().unwrap() = true;
        end.1.notify_all();
        ended.expect("a job among many that wait");
    }

    #[test]
    fn what_is_handed_over_has_a_limit() {
        let jobs = Arc::new(Jobs::new(2));
        let (go, gone) = mpsc::channel::<()>();
        let (done, ended) = mpsc::channel();
        let waits = move || {
            let _ = gone.recv();
            done.send(()).unwrap();
        };
        jobs.hand_over(true, waits).unwrap();
        // The end of a job that panics is an end, too.
        jobs.hand_over(true, || panic!("deliberate, from a test"))
            .unwrap();
        let deadline = Instant::now() + PATIENCE;
        while jobs.handed_over.load(Ordering::Relaxed) > 1 {
            assert!(Instant::now() < deadline, "a panic kept its place");
            thread::yield_now();
        }
        let (go_too, gone_too) = mpsc::channel::<()>();
        let waits_too = move || {
            let _ = gone_too.recv();
        };
        jobs.hand_over(true, waits_too).unwrap();
        let refused = jobs.hand_over(false, || panic!("it was refused"));
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        assert_eq!(jobs.refused.load(Ordering::Relaxed), 1);
        drop((go, go_too));
        ended
            .recv_timeout(PATIENCE)
            .expect("what was handed over is done");
    }
}
