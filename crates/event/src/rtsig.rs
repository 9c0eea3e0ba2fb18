//! POSIX real-time signals: each descriptor queues a signal to this thread when it becomes ready
//! (`F_SETSIG` and `O_ASYNC` in fcntl(2)), and the thread takes them from the queue one by one.
//!
//! Difficulties, and their treatment here:
//!
//! - **The queue overflows** at `RLIMIT_SIGPENDING` signals of the user. The kernel then sends one
//!   SIGIO and drops the rest. [`Overflow`] says how the dispatcher recovers: it empties the queue
//!   and polls all descriptors once.
//! - **Bytes that came before** `O_ASYNC` was set send no signal. So the next wait polls each
//!   descriptor that was added or modified.
//! - **Signals outlive their descriptor.** A signal that is still queued when its descriptor is
//!   removed may meet another with the same number. The queue is in order, so signals taken after
//!   it was empty are no older than that. A signal for a descriptor that was added since then is
//!   verified with `poll(2)`.
//! - **Signals do not collapse**: three writes by the peer are three signals. Within one wait they
//!   become one report.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use libc::pollfd;
use rustix::io::Errno;

use crate::bitmaps::Bitmaps;
use crate::dispatcher::{Dispatcher, Ready, Token, Trigger};
use crate::interest::{Interest, Readiness};
use crate::signals::{Next, Queue, Signal, disarm};
use crate::sys;
use crate::table::Table;

/// Signals that one wait takes from the queue; the next wait takes the rest.
const SIGNALS_PER_WAIT: usize = 1024;
/// Signals taken after an overflow: more than Linux lets a user queue by default. The queue need
/// not be emptied: a signal left over only causes one more report.
const SIGNALS_PER_OVERFLOW: usize = 1 << 17;

/// Way in which [`RtSig`] takes signals, and recovers after the kernel's queue has overflowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// One signal for each call; asks about all descriptors with `poll(2)`.
    Poll,
    /// The same, with a list for `poll(2)` that `add`, `modify` and `remove` keep up to date, as in
    /// Liu and Chen's server.
    KeptPoll,
    /// One signal for each call; asks about all descriptors with `select(2)`.
    Select,
    /// Up to 128 signals for each call, through a signalfd; asks with `poll(2)`.
    Signalfd,
}

/// Real-time signals to the thread that made it.
///
/// The signals stay blocked in this thread for good, also after the dispatcher is dropped: a later
/// signal from a forgotten duplicate of a descriptor would end the process.
///
/// A file sends its signals for one descriptor: that of its duplicates which was added last.
///
/// A Unix stream socket signals that it is writable again only if a write has failed with `EAGAIN`
/// while it was watched, for any event. So a caller adds it before it writes.
pub struct RtSig {
    overflow: Overflow,
    queue: Queue,
    watched: Table<Watched>,
    /// Descriptors which may have become ready before they sent signals.
    unsure: Vec<RawFd>,
    /// The queue has overflowed: any descriptor may be ready without a signal.
    has_overflowed: bool,
    /// Number of times that the queue was found empty.
    emptied: u64,
    waits: u64,
    counts: RtSigCounts,
    /// Signals that one call took from the queue. Empty between two waits.
    batch: Vec<Signal>,
    /// Descriptors to poll. Empty between two waits.
    asked: Vec<pollfd>,
    /// All descriptors, with [`Overflow::KeptPoll`].
    kept: Option<Vec<pollfd>>,
    /// Signals go to one thread.
    not_send: PhantomData<*const ()>,
}

struct Watched {
    token: Token,
    events: i16,
    /// [`RtSig::emptied`] when it was added.
    added_at: u64,
    /// Index in [`RtSig::kept`], if that list exists.
    kept_at: usize,
    /// Index in [`RtSig::unsure`].
    unsure_at: Option<usize>,
    /// The last wait that reported it, and where in the report.
    reported_by: u64,
    reported_at: usize,
}

/// Counters of an [`RtSig`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RtSigCounts {
    /// Signals taken from the queue.
    pub signals: u64,
    /// Signals among them of descriptors that were removed, or reused and not ready.
    pub stale: u64,
    /// Overflows of the queue.
    pub overflows: u64,
}

thread_local! {
    /// Two on one thread would take each other's signals.
    static IN_USE: Cell<bool> = const { Cell::new(false) };
}

impl RtSig {
    /// A dispatcher for the calling thread, which watches nothing yet.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the thread has one already; `EMFILE`.
    pub fn new(overflow: Overflow) -> io::Result<RtSig> {
        if IN_USE.get() {
            return Err(Errno::BUSY.into());
        }
        let queue = Queue::new(overflow == Overflow::Signalfd)?;
        IN_USE.set(true);
        Ok(RtSig {
            overflow,
            queue,
            watched: Table::default(),
            unsure: Vec::new(),
            has_overflowed: false,
            emptied: 0,
            waits: 0,
            counts: RtSigCounts::default(),
            batch: Vec::new(),
            asked: Vec::new(),
            kept: (overflow == Overflow::KeptPoll).then(Vec::new),
            not_send: PhantomData,
        })
    }

    /// Counters since the start.
    #[must_use]
    pub fn counts(&self) -> RtSigCounts {
        self.counts
    }

    /// Takes the queued signals, waiting for the first if there is time left, and reports them.
    fn take_signals(
        &mut self,
        ready: &mut Vec<Ready>,
        deadline: Option<Instant>,
    ) -> io::Result<()> {
        let mut taken = 0;
        while taken < self.takes_at_most() {
            let may_sleep = taken == 0 && ready.is_empty() && !self.has_overflowed;
            let timeout = match deadline {
                _ if !may_sleep => Some(Duration::ZERO),
                Some(deadline) => Some(deadline.saturating_duration_since(Instant::now())),
                None => None,
            };
            match self.queue.next(&mut self.batch, timeout)? {
                Next::Some => taken += self.batch.len(),
                Next::Interrupted if taken == 0 => return Ok(()),
                Next::Interrupted => {}
                Next::Empty => {
                    self.emptied += 1;
                    return Ok(());
                }
            }
            let mut batch = std::mem::take(&mut self.batch);
            for signal in batch.drain(..) {
                self.on_signal(signal, ready);
            }
            self.batch = batch;
        }
        Ok(())
    }

    fn takes_at_most(&self) -> usize {
        if self.has_overflowed { SIGNALS_PER_OVERFLOW } else { SIGNALS_PER_WAIT }
    }

    fn on_signal(&mut self, signal: Signal, ready: &mut Vec<Ready>) {
        let Signal::Ready { fd, mut band } = signal else {
            self.has_overflowed = true;
            return;
        };
        self.counts.signals += 1;
        if self.has_overflowed {
            // All descriptors are polled next, so the rest of the queue is not needed.
            return;
        }
        let Some(watched) = self.watched.find(fd) else {
            self.counts.stale += 1;
            return;
        };
        if watched.added_at == self.emptied {
            // A signal that cannot be checked is believed.
            band = sys::poll_one(fd, watched.events).unwrap_or(band);
            self.counts.stale += u64::from(band == 0);
        }
        let always = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;
        band &= (watched.events | always) as u32;
        self.report(fd, Readiness::from_poll(band), ready);
    }

    fn report(&mut self, fd: RawFd, readiness: Readiness, ready: &mut Vec<Ready>) {
        let Some(watched) = self.watched.find(fd).filter(|_| !readiness.is_nothing()) else {
            return;
        };
        if watched.reported_by == self.waits {
            ready[watched.reported_at].readiness |= readiness;
            return;
        }
        watched.reported_by = self.waits;
        watched.reported_at = ready.len();
        ready.push(Ready { token: watched.token, readiness });
    }

    /// Makes the next wait poll `fd`, which is watched.
    fn mark_unsure(&mut self, fd: RawFd) -> io::Result<()> {
        let watched = self.watched.get_mut(fd)?;
        if watched.unsure_at.is_none() {
            watched.unsure_at = Some(self.unsure.len());
            self.unsure.push(fd);
        }
        Ok(())
    }

    /// Asks about descriptors that may have become ready before they sent signals.
    fn poll_unsure(&mut self, ready: &mut Vec<Ready>) -> io::Result<()> {
        if self.unsure.is_empty() {
            return Ok(());
        }
        let unsure = std::mem::take(&mut self.unsure);
        for fd in &unsure {
            let watched = self.watched.get_mut(*fd)?;
            watched.unsure_at = None;
            self.asked.push(asks(*fd, watched));
        }
        let polled = self.poll_asked(ready);
        self.unsure = unsure;
        if polled.is_ok() {
            self.unsure.clear();
            return Ok(());
        }
        // The poll failed, so the descriptors stay unsure.
        for (at, fd) in self.unsure.iter().enumerate() {
            self.watched.get_mut(*fd)?.unsure_at = Some(at);
        }
        polled
    }

    /// The queue has overflowed: any descriptor may be ready without a signal.
    fn poll_all(&mut self, ready: &mut Vec<Ready>) -> io::Result<()> {
        self.counts.overflows += 1;
        if let Some(mut kept) = self.kept.take() {
            let asked = self.ask(&mut kept, ready);
            self.kept = Some(kept);
            asked?;
        } else if self.overflow != Overflow::Select || self.select_all(ready).is_err() {
            // If a descriptor was closed while it was watched, select fails and poll says which.
            let all = self.watched.iter().map(|(fd, watched)| asks(fd, watched));
            self.asked.extend(all);
            self.poll_asked(ready)?;
        }
        self.has_overflowed = false;
        Ok(())
    }

    /// Polls the descriptors in [`RtSig::asked`], and empties it.
    fn poll_asked(&mut self, ready: &mut Vec<Ready>) -> io::Result<()> {
        let mut asked = std::mem::take(&mut self.asked);
        let polled = self.ask(&mut asked, ready);
        asked.clear();
        self.asked = asked;
        polled
    }

    /// Polls a list of descriptors and reports the ready ones.
    fn ask(&mut self, list: &mut [pollfd], ready: &mut Vec<Ready>) -> io::Result<()> {
        sys::poll(list, Some(Duration::ZERO))?;
        for polled in list {
            let readiness = Readiness::from_poll(polled.revents as u32);
            self.report(polled.fd, readiness, ready);
        }
        Ok(())
    }

    fn select_all(&mut self, ready: &mut Vec<Ready>) -> io::Result<()> {
        let mut asked = Bitmaps::default();
        for (fd, watched) in self.watched.iter() {
            let wants = |event| watched.events & event != 0;
            asked.set(fd, wants(libc::POLLIN), wants(libc::POLLOUT));
        }
        asked.select(Some(Duration::ZERO))?;
        for (fd, readiness) in asked.iter() {
            self.report(fd, readiness, ready);
        }
        Ok(())
    }
}

fn asks(fd: RawFd, watched: &Watched) -> pollfd {
    pollfd { fd, events: watched.events, revents: 0 }
}

impl Dispatcher for RtSig {
    fn add(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        let fd = fd.as_raw_fd();
        let watched = Watched {
            token,
            events: interest.poll_events(),
            added_at: self.emptied,
            kept_at: 0,
            unsure_at: None,
            reported_by: 0,
            reported_at: 0,
        };
        self.watched.insert(fd, watched)?;
        if let Err(error) = self.queue.arm(fd) {
            self.watched.remove(fd)?;
            return Err(error);
        }
        if let Some(kept) = &mut self.kept {
            let watched = self.watched.get_mut(fd)?;
            watched.kept_at = kept.len();
            kept.push(asks(fd, watched));
        }
        self.mark_unsure(fd)
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        let watched = self.watched.get_mut(fd.as_raw_fd())?;
        watched.token = token;
        watched.events = interest.poll_events();
        if let Some(kept) = &mut self.kept {
            kept[watched.kept_at].events = watched.events;
        }
        self.mark_unsure(fd.as_raw_fd())
    }

    fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.forget(fd)?;
        disarm(fd.as_raw_fd())
    }

    /// A file that is closed sends no more signals.
    fn forget(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let watched = self.watched.remove(fd.as_raw_fd())?;
        if let Some(kept) = &mut self.kept {
            kept.swap_remove(watched.kept_at);
            if let Some(moved) = kept.get(watched.kept_at) {
                self.watched.get_mut(moved.fd)?.kept_at = watched.kept_at;
            }
        }
        if let Some(at) = watched.unsure_at {
            self.unsure.swap_remove(at);
            if let Some(&moved) = self.unsure.get(at) {
                self.watched.get_mut(moved)?.unsure_at = Some(at);
            }
        }
        Ok(())
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> io::Result<()> {
        ready.clear();
        self.waits += 1;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.poll_unsure(ready)?;
        // A signal that is stale or not asked for is not a reason to end the wait.
        loop {
            let taken_before = self.counts.signals;
            self.take_signals(ready, deadline)?;
            if self.has_overflowed {
                self.poll_all(ready)?;
            }
            let is_over = deadline.is_some_and(|deadline| deadline <= Instant::now());
            if !ready.is_empty() || is_over || self.counts.signals == taken_before {
                return Ok(());
            }
        }
    }

    fn trigger(&self) -> Trigger {
        Trigger::Edge
    }

    fn tells_end(&self) -> bool {
        false
    }

    /// `F_SETOWN` is of the file, and not of the descriptor: whichever process or thread sets it
    /// last gets the signals. fcntl(2)
    fn may_lose_reports(&self) -> bool {
        true
    }

    fn overflows(&self) -> u64 {
        self.counts.overflows
    }
}

impl Drop for RtSig {
    fn drop(&mut self) {
        for (fd, _) in self.watched.iter() {
            if self.queue.is_armed(fd) {
                let _ = disarm(fd);
            }
        }
        for _ in 0..SIGNALS_PER_OVERFLOW {
            self.batch.clear();
            if !matches!(self.queue.next(&mut self.batch, Some(Duration::ZERO)), Ok(Next::Some)) {
                break;
            }
        }
        IN_USE.set(false);
    }
}
