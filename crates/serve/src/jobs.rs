//! Jobs: blocking work, run where blocking is allowed. One pool for all engines.
//!
//! The pool is the runtime's offload threads, of which a process has at most 32. A separate pool
//! would not relieve them: file reads, lookups of names and listings of fibers use them already,
//! and two pools would mean two limits for one disk. A fiber waits for its job there
//! ([`fiber::offload`]); an engine whose threads serve many connections [hands it
//! over](Jobs::hand_over), with a callback that delivers the result.
//!
//! Threads of the thread engine block themselves, outside of the pool and its metrics
//! (`weft_jobs_…`): nothing else waits for them.
//!
//! A connection has at most eight queued jobs ([`session::WORKS_MAX`]). A connection that is cut
//! leaves its jobs behind, so handed-over jobs have a limit and a counter of their own. Jobs that
//! wait for an event (a `watch`) are started, count towards that limit, and occupy no thread.

use std::io;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use session::{Now, Work};

use crate::metrics::MetricsWriter;

/// Jobs of a server.
#[derive(Debug)]
pub(crate) struct Jobs {
    /// Number of jobs handed over and not done.
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

    /// Runs work and waits for it, on a fiber or on the thread of a connection.
    ///
    /// # Errors
    /// Returns the work, as [`work`](Jobs::work) does.
    ///
    /// # Panics
    /// If the work panics.
    pub(crate) fn run<W: Work>(self: &Arc<Self>, mut work: W, now: Now) -> Result<W, W> {
        if !work.waits() || fiber::current().is_none() {
            fiber::offload(|| work.run(now));
            return Ok(work);
        }
        let (done, wait) = fiber::sync::mpsc::channel();
        self.work(work, now, move |work| drop(done.send(work)))?;
        // The session waits for it, so the wait must not be cancelled.
        match fiber::uncancellable(|| wait.recv()) {
            Ok(Some(work)) => Ok(work),
            _ => resume_unwind(Box::new("a job has panicked")),
        }
    }

    /// Runs work in the background, or starts it. `done` gets it back, on the thread that ran it or
    /// that ended its wait; `None` if it panicked.
    ///
    /// # Errors
    /// Returns the work if the limit on unfinished jobs is reached.
    pub(crate) fn work<W: Work>(
        self: &Arc<Self>,
        mut work: W,
        now: Now,
        done: impl FnOnce(Option<W>) + Send + 'static,
    ) -> Result<(), W> {
        let Ok(permit) = self.reserve() else {
            return Err(work);
        };
        if work.waits() {
            let guard = CompletionGuard::new(permit, done);
            work.begin(now, Box::new(move |work| guard.give(work)));
            return Ok(());
        }
        permit.hand_over(move || {
            let run = AssertUnwindSafe(|| {
                work.run(now);
                work
            });
            // The panic hook has reported it.
            done(catch_unwind(run).ok());
        });
        Ok(())
    }

    /// Runs a call in the background.
    ///
    /// # Errors
    /// `ResourceBusy` if the limit on unfinished jobs is reached.
    #[cfg(feature = "event")]
    pub(crate) fn hand_over(
        self: &Arc<Self>,
        call: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        self.reserve()?.hand_over(call);
        Ok(())
    }

    /// Reserves space in the queue, for a caller that must keep its job otherwise.
    ///
    /// # Errors
    /// As [`hand_over`](Jobs::hand_over).
    pub(crate) fn reserve(self: &Arc<Self>) -> io::Result<JobPermit> {
        if self.handed_over.fetch_add(1, Ordering::Relaxed) >= self.handed_over_max {
            self.handed_over.fetch_sub(1, Ordering::Relaxed);
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        Ok(JobPermit(Arc::clone(self)))
    }

    /// Counts that a connection was at its limit and not asked for more work.
    pub(crate) fn count_deferral(&self) {
        self.deferred.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes the state of the pool.
    pub(crate) fn write_metrics(&self, out: &mut MetricsWriter) {
        let pool = fiber::offload_counters();
        let help = "Jobs that may block: session work, file reads and listings off the processors.";
        out.counter("weft_jobs_total", help, &[], pool.calls);
        let help = "Jobs that were refused because too many waited.";
        let refused = self.refused.load(Ordering::Relaxed);
        out.counter("weft_jobs_refused_total", help, &[], refused);
        let help = "Times that a connection began no more jobs because it had eight.";
        let deferred = self.deferred.load(Ordering::Relaxed);
        out.counter("weft_jobs_deferred_total", help, &[], deferred);
        for (name, help, value) in [
            ("weft_jobs_running", "Jobs running.", pool.active),
            ("weft_jobs_waiting", "Jobs waiting.", pool.waiting),
            ("weft_jobs_running_max", "Limit on running jobs.", pool.threads_max),
        ] {
            out.gauge(name, help, &[], value as f64);
        }
    }
}

/// The slot of a job; dropping it ends the job.
pub(crate) struct JobPermit(Arc<Jobs>);

impl JobPermit {
    /// Runs a call on a thread of the pool.
    pub(crate) fn hand_over(self, call: impl FnOnce() + Send + 'static) {
        fiber::offload_detached(move || self.run(call));
    }

    fn run(self, call: impl FnOnce()) {
        call();
    }
}

impl Drop for JobPermit {
    fn drop(&mut self) {
        self.0.handed_over.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The return path of waiting work. If it is dropped unused, the work has panicked.
struct CompletionGuard<W, F: FnOnce(Option<W>)>(Option<(JobPermit, F)>, PhantomData<fn(W)>);

impl<W, F: FnOnce(Option<W>)> CompletionGuard<W, F> {
    fn new(permit: JobPermit, done: F) -> Self {
        CompletionGuard(Some((permit, done)), PhantomData)
    }

    fn give(mut self, work: W) {
        self.end(Some(work));
    }

    fn end(&mut self, work: Option<W>) {
        if let Some((permit, done)) = self.0.take() {
            permit.run(|| done(work));
        }
    }
}

impl<W, F: FnOnce(Option<W>)> Drop for CompletionGuard<W, F> {
    fn drop(&mut self) {
        self.end(None);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};

    /// Work of test sessions: a call, which optionally waits for an event.
    #[derive(Debug)]
    pub(crate) struct Call(pub(crate) fn(), pub(crate) bool);

    impl Work for Call {
        fn run(&mut self, _: Now) {
            self.0();
        }

        fn waits(&self) -> bool {
            self.1
        }

        fn begin(self, _: Now, done: Box<dyn FnOnce(Self) + Send>) {
            self.0();
            done(self);
        }
    }

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Work that waits until the function that it sends is called.
    struct Wait(mpsc::Sender<Box<dyn FnOnce() + Send>>);

    impl Work for Wait {
        fn run(&mut self, _: Now) {
            unreachable!("this work is begun, not run");
        }

        fn waits(&self) -> bool {
            true
        }

        fn begin(self, _: Now, done: Box<dyn FnOnce(Self) + Send>) {
            let wakers = self.0.clone();
            let done = move || done(self);
            wakers.send(Box::new(done)).unwrap();
        }
    }

    /// Seen: each `watch` of the cache held one of the 32 threads shared by cold files, listings
    /// and crawls, for as long as it watched; later, a thread of its own. Cause: waiting for an
    /// event was work like any other. Cure: such work is marked, and called when the event occurs.
    #[test]
    fn waiting_jobs_have_no_threads() {
        let jobs = Arc::new(Jobs::new(1000));
        let (wakers, all) = mpsc::channel();
        let (done, ended) = mpsc::channel();
        for _ in 0..100 {
            let done = done.clone();
            let done = move |work: Option<Wait>| done.send(work.is_some()).unwrap();
            assert!(jobs.work(Wait(wakers.clone()), Now::read(), done).is_ok());
        }
        assert_eq!(jobs.handed_over.load(Ordering::Relaxed), 100);
        jobs.hand_over(move || done.send(false).unwrap()).unwrap();
        assert_eq!(ended.recv_timeout(PATIENCE), Ok(false), "a job among many that wait");
        // Some have panicked.
        let all: Vec<Box<dyn FnOnce() + Send>> = all.try_iter().collect();
        for (nth, wake) in all.into_iter().enumerate() {
            if nth < 90 { wake() } else { drop(wake) }
        }
        let ended: Vec<_> = ended.try_iter().collect();
        assert_eq!((&ended[..90], &ended[90..]), (&[true; 90][..], &[false; 10][..]));
        assert_eq!(jobs.handed_over.load(Ordering::Relaxed), 0);
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
        jobs.hand_over(waits).unwrap();
        // A job that panics has ended, too.
        jobs.hand_over(|| panic!("deliberate, from a test")).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while jobs.handed_over.load(Ordering::Relaxed) > 1 {
            assert!(Instant::now() < deadline, "the job that panicked kept its permit");
            thread::yield_now();
        }
        let (go_too, gone_too) = mpsc::channel::<()>();
        let waits_too = move || {
            let _ = gone_too.recv();
        };
        jobs.hand_over(waits_too).unwrap();
        let refused = jobs.hand_over(|| panic!("a refused job was run"));
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        assert_eq!(jobs.refused.load(Ordering::Relaxed), 1);
        drop((go, go_too));
        ended.recv_timeout(PATIENCE).expect("an accepted job is done");
    }
}
