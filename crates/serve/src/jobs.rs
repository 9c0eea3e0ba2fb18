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
//! A connection has at most eight jobs in the line ([`session::WORKS_MAX`]). One that is cut leaves
//! its jobs behind, so what is handed over has a limit and a counter of its own. Jobs that wait for
//! something to happen have threads of their own and never stand in the line: twenty `watch`ers
//! took twenty of the threads for as long as they watched.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use session::{Now, Work};

use crate::metrics::MetricsWriter;

/// The jobs of a server.
#[derive(Debug)]
pub(crate) struct Jobs {
    /// Handed over and not yet done.
    handed_over: AtomicUsize,
    handed_over_max: usize,
    refused: AtomicU64,
    deferred: AtomicU64,
}

impl Jobs {
    pub(crate) fn new(handed_over_max: usize) -> Jobs {
        Jobs {
            handed_over: AtomicUsize::new(0),
            handed_over_max,
            refused: AtomicU64::new(0),
            deferred: AtomicU64::new(0),
        }
    }

    /// Runs work and waits for it, on a fiber or on a thread that serves one connection.
    ///
    /// # Errors
    /// The work, as [`work`](Jobs::work).
    ///
    /// # Panics
    /// With the work.
    pub(crate) fn run<W: Work>(self: &Arc<Self>, mut work: W, now: Now) -> Result<W, W> {
        if !work.waits() || fiber::current().is_none() {
            fiber::offload(|| work.run(now));
            return Ok(work);
        }
        let (done, wait) = fiber::sync::mpsc::channel();
        self.work(work, now, move |work| drop(done.send(work)))?;
        // The session waits for it, without which nothing goes on.
        match fiber::uncancellable(|| wait.recv()) {
            Ok(Some(work)) => Ok(work),
            _ => resume_unwind(Box::new("a job has panicked")),
        }
    }

    /// Has work run elsewhere. `done` gets it back on the thread that ran it; `None` if it
    /// panicked.
    ///
    /// # Errors
    /// The work, if as much as may be handed over has not been done yet.
    pub(crate) fn work<W: Work>(
        self: &Arc<Self>,
        mut work: W,
        now: Now,
        done: impl FnOnce(Option<W>) + Send + 'static,
    ) -> Result<(), W> {
        let Ok(place) = self.reserve() else {
            return Err(work);
        };
        let waits = work.waits();
        let run = move || {
            let run = AssertUnwindSafe(|| {
                work.run(now);
                work
            });
            // The panic hook has reported it.
            done(catch_unwind(run).ok());
        };
        place.hand_over_as(waits, run);
        Ok(())
    }

    /// Has something done elsewhere. `waits`: it waits for something to happen, and so has a thread
    /// of its own.
    ///
    /// # Errors
    /// `ResourceBusy` if as much as may be handed over has not been done yet.
    #[cfg(feature = "event")]
    pub(crate) fn hand_over(
        self: &Arc<Self>,
        waits: bool,
        call: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        self.reserve()?.hand_over_as(waits, call);
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

    /// Counts that a connection was not asked for more work.
    pub(crate) fn count_deferral(&self) {
        self.deferred.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes how the pool is doing.
    pub(crate) fn write_metrics(&self, out: &mut MetricsWriter) {
        let pool = fiber::offload_counters();
        let help = "Jobs that may block: session work, file reads and listings off the processors.";
        out.counter("weft_jobs_total", help, &[], pool.calls);
        let help = "Jobs that were not begun because too many waited.";
        let refused = self.refused.load(Ordering::Relaxed);
        out.counter("weft_jobs_refused_total", help, &[], refused);
        let help = "Times that a connection began no more jobs because it had eight.";
        let deferred = self.deferred.load(Ordering::Relaxed);
        out.counter("weft_jobs_deferred_total", help, &[], deferred);
        for (name, help, value) in [
            ("weft_jobs_running", "Jobs that run.", pool.active),
            ("weft_jobs_waiting", "Jobs in line.", pool.waiting),
            ("weft_jobs_running_max", "Jobs that run at once, at most.", pool.threads_max),
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

    fn hand_over_as(self, waits: bool, call: impl FnOnce() + Send + 'static) {
        if waits {
            on_own_thread(move || self.run(call));
        } else {
            self.hand_over(call);
        }
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
pub(crate) mod tests {
    use super::*;
    use std::sync::{Condvar, Mutex};
    use std::time::{Duration, Instant};

    /// Work of test sessions: a call, on a thread of its own if it is to be so.
    #[derive(Debug)]
    pub(crate) struct Call(pub(crate) fn(), pub(crate) bool);

    impl Work for Call {
        fn run(&mut self, _: Now) {
            self.0();
        }

        fn waits(&self) -> bool {
            self.1
        }
    }

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
        jobs.hand_over(false, move || done.send(()).unwrap()).unwrap();
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
        jobs.hand_over(true, || panic!("deliberate, from a test")).unwrap();
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
        ended.recv_timeout(PATIENCE).expect("what was handed over is done");
    }
}
