//! Event sources of one loop: readiness, timers and the run queue.

use std::collections::VecDeque;
use std::io;
use std::iter;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use event::{Dispatcher, Interest, Ready, Token, Trigger};
use slab::Slab;
use timer::{Tick, TimerKey, Wheel};

use super::context::EngineContext;
use super::waker::LoopHandle;

/// Token of the waker in reports.
const WAKER: u64 = u64::MAX;

/// Token of the first listener. Connections have smaller tokens: a serial number and their slot.
pub(crate) const FIRST_LISTENER: u64 = 1 << 63;

/// A tick of the timers is some 131 µs: the shortest wait is 100 µs, and a shift takes less time
/// than a division.
const TICK_SHIFT: u32 = 17;

/// Pause after an error of the dispatcher, which would recur at once.
const ERROR_PAUSE: Duration = Duration::from_millis(5);

/// A connection's registration: interest, timer, queued flag.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Token in messages and reports, unique among all connections of the loop.
    pub(crate) token: u64,
    /// Interest registered with the dispatcher.
    watched: Option<Interest>,
    /// End of the wait, and the timer. The timer may be set earlier: nearly every wait ends later
    /// than the previous one, so the timer is only set again when it expires.
    due: Tick,
    timer: Option<(TimerKey, Tick)>,
    /// It is in the run queue.
    is_queued: bool,
}

impl Watch {
    pub(crate) fn is_watched(&self) -> bool {
        self.watched.is_some()
    }
}

/// Holder of a registration in the slab of a loop: a connection, or its slot.
pub(crate) trait HasWatch {
    fn watch(&mut self) -> &mut Watch;
}

/// Returns the slot of the connection with this token, unless it has left.
#[inline]
pub(crate) fn slot_of<T: HasWatch>(slots: &mut Slab<T>, token: u64) -> Option<usize> {
    let at = (token & u64::from(u32::MAX)) as usize;
    let slot = slots.get_mut(at)?;
    (slot.watch().token == token).then_some(at)
}

/// See the [module page](self).
pub(crate) struct Poller {
    own: Arc<LoopHandle>,
    dispatcher: Box<dyn Dispatcher>,
    pub(crate) is_level: bool,
    /// Reports of the last wait, and the index of the next one to handle.
    reports: Vec<Ready>,
    next_report_index: usize,
    timers: Wheel<u64>,
    /// Tokens of connections whose timer has expired, and the run queue.
    expired: VecDeque<u64>,
    run_queue: VecDeque<u64>,
    /// Origin of the ticks.
    start: Instant,
    /// Time for which reports are relied on, also in ticks. `None`: forever; none can be lost.
    relies_for: (Option<Duration>, Tick),
    /// Number of connections so far: the half of a token that differs between connections in the
    /// same slot.
    serial: u32,
}

impl Poller {
    /// # Errors
    /// Errors of the dispatcher.
    pub(crate) fn new<O>(
        engine: &EngineContext<O>,
        own: Arc<LoopHandle>,
        mut dispatcher: Box<dyn Dispatcher>,
    ) -> io::Result<Poller> {
        let is_level = match dispatcher.trigger() {
            Trigger::Level => true,
            Trigger::Edge => false,
            // One-shot reports cost a call each, without any benefit here.
            Trigger::OneShot => return Err(io::ErrorKind::Unsupported.into()),
        };
        dispatcher.add(own.waker.as_fd(), Token(WAKER), Interest::READ.pinned())?;
        let shared = &engine.admission.shared;
        let may_lose = dispatcher.may_lose_reports();
        let relies_for = may_lose.then_some(shared.limits.recheck);
        Ok(Poller {
            own,
            is_level,
            dispatcher,
            reports: Vec::new(),
            next_report_index: 0,
            timers: Wheel::new(),
            expired: VecDeque::new(),
            run_queue: VecDeque::new(),
            start: shared.start,
            relies_for: (relies_for, ticks(relies_for.unwrap_or(Duration::MAX)) + 1),
            serial: 0,
        })
    }

    /// Creates the registration of a connection in this slot.
    pub(crate) fn register(&mut self, slot: usize) -> Watch {
        self.serial = (self.serial + 1) & (u32::MAX >> 1);
        Watch {
            token: u64::from(self.serial) << 32 | slot as u64,
            watched: None,
            due: 0,
            timer: None,
            is_queued: false,
        }
    }

    pub(crate) fn dispatcher(&mut self) -> &mut dyn Dispatcher {
        &mut *self.dispatcher
    }

    /// True if a short read means that a socket is empty, unless the report announced its end: the
    /// report is repeated while there is input, or announces the end of the stream.
    pub(crate) fn trusts_short_reads(&self) -> bool {
        self.is_level || self.dispatcher.tells_end()
    }

    /// True if space may not be reported unless a write has failed while the socket was watched.
    /// This is so with real-time signals on Unix sockets, and a connection is only watched after
    /// the failed write.
    pub(crate) fn misses_space(&self) -> bool {
        !self.is_level && !self.dispatcher.tells_end()
    }

    /// Waits for a report, at most for `timeout`, and at most for as long as reports are relied on,
    /// because that of the waker may be lost.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) {
        let timeout = [timeout, self.relies_for.0].into_iter().flatten().min();
        let Poller { own, dispatcher, reports, .. } = self;
        let waited = (own.waker).wait(timeout, |timeout| dispatcher.wait(reports, timeout));
        if waited.is_err() {
            // Readiness is reported by a later wait.
            self.own.counters.errors.add(1);
            thread::sleep(ERROR_PAUSE);
        }
        let overflows = &self.own.counters.signal_overflows;
        overflows.add(self.dispatcher.overflows() - overflows.get());
        self.own.counters.waits.add(1);
        self.own.counters.reports.add(self.reports.len() as u64);
        self.next_report_index = 0;
    }

    /// Returns the next report of the last wait. The waker's is handled here.
    #[inline]
    pub(crate) fn next_report(&mut self) -> Option<Ready> {
        loop {
            let report = *self.reports.get(self.next_report_index)?;
            self.next_report_index += 1;
            match report.token.0 {
                WAKER => self.own.waker.reset(),
                _ => return Some(report),
            }
        }
    }

    /// Appends a connection to the run queue, unless it is there.
    #[inline]
    pub(crate) fn queue(&mut self, watch: &mut Watch) {
        if !mem::replace(&mut watch.is_queued, true) {
            self.run_queue.push_back(watch.token);
        }
    }

    /// Length of the run queue.
    #[inline]
    pub(crate) fn run_queue_len(&self) -> usize {
        self.run_queue.len()
    }

    /// Takes the next connection from the run queue. `None` if it has left.
    #[inline]
    pub(crate) fn take_turn<T: HasWatch>(&mut self, slots: &mut Slab<T>) -> Option<usize> {
        let at = slot_of(slots, self.run_queue.pop_front()?)?;
        slots[at].watch().is_queued = false;
        Some(at)
    }

    /// Registers interest in the events that a connection waits for. With edge-triggered reports it
    /// stays registered from its first wait on, and for both directions once it has waited for
    /// both, so that requests cost no changes.
    ///
    /// # Errors
    /// Errors of the dispatcher. The connection would never be woken.
    pub(crate) fn watch(
        &mut self,
        watch: &mut Watch,
        fd: BorrowedFd<'_>,
        wanted: Interest,
    ) -> io::Result<()> {
        let interest = match watch.watched {
            Some(watched) if watched == wanted || watched == Interest::BOTH => return Ok(()),
            Some(_) if !self.is_level => Interest::BOTH,
            _ => wanted,
        };
        self.own.counters.changes.add(1);
        let token = Token(watch.token);
        let changed = match watch.watched {
            None => self.dispatcher.add(fd, token, interest),
            Some(_) => self.dispatcher.modify(fd, token, interest),
        };
        match changed {
            Ok(()) => watch.watched = Some(interest),
            Err(_) => self.own.counters.errors.add(1),
        }
        changed
    }

    pub(crate) fn unwatch(&mut self, watch: &mut Watch, fd: BorrowedFd<'_>) {
        if watch.watched.take().is_some() {
            self.own.counters.changes.add(1);
            // It is watched, so this cannot fail.
            let _ = self.dispatcher.remove(fd);
        }
    }

    /// Removes the registration: the connection leaves the loop.
    pub(crate) fn deregister(&mut self, watch: &mut Watch, fd: BorrowedFd<'_>) {
        self.disarm(watch);
        self.unwatch(watch, fd);
    }

    /// Removes the registration of a connection that is closed next.
    pub(crate) fn deregister_closing(&mut self, watch: &Watch, fd: BorrowedFd<'_>) {
        self.disarm(watch);
        if watch.watched.is_some() {
            // It is watched, so this cannot fail.
            let _ = self.dispatcher.forget(fd);
        }
    }

    /// Sets a timer for the end of the wait, or for the time until which reports are relied on, if
    /// that is earlier.
    pub(crate) fn arm(&mut self, watch: &mut Watch, until: Instant) {
        let looks_at = self.timers.now() + self.relies_for.1;
        let due = self.due_at(until).min(looks_at);
        self.set_timer(watch, due);
    }

    /// The tick of a time, rounded up so that a timer is never early.
    fn due_at(&self, until: Instant) -> Tick {
        self.tick_of(until) + 1
    }

    fn set_timer(&mut self, watch: &mut Watch, due: Tick) {
        watch.due = due;
        if let Some((timer, set_for)) = watch.timer {
            if set_for <= due {
                return;
            }
            self.timers.cancel(timer);
        }
        watch.timer = Some((self.timers.insert(due, watch.token), due));
    }

    fn disarm(&mut self, watch: &Watch) {
        if let Some((timer, _)) = watch.timer {
            self.timers.cancel(timer);
        }
    }

    /// Expiry of a connection's timer, if it is watched and has one.
    pub(crate) fn timer_expiry(&self, watch: &Watch) -> Option<Instant> {
        let (_, set_for) = watch.timer.filter(|_| watch.is_watched())?;
        Some(self.time_of(set_for))
    }

    /// Expiry of the next timer.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        let tick = self.timers.next_expiry()?;
        Some(self.time_of(tick))
    }

    fn time_of(&self, tick: Tick) -> Instant {
        self.start + Duration::from_nanos(tick << TICK_SHIFT)
    }

    /// Collects expired timers.
    pub(crate) fn expire(&mut self, now: Instant) {
        let now = self.tick_of(now);
        let Poller { timers, expired, .. } = self;
        timers.advance(now, |token| expired.push_back(token));
    }

    /// Takes the next expired timer.
    #[inline]
    pub(crate) fn next_expired<T: HasWatch>(&mut self, slots: &mut Slab<T>) -> Option<usize> {
        iter::from_fn(|| self.expired.pop_front()).find_map(|token| slot_of(slots, token))
    }

    /// Handles the expiry of a connection's timer. Returns true if its wait is over, or has lasted
    /// for as long as reports are relied on; otherwise sets another timer. `until` is `None` if the
    /// connection has no deadline.
    pub(crate) fn handle_expiry(&mut self, watch: &mut Watch, until: Option<Instant>) -> bool {
        watch.timer = None;
        match until {
            Some(until) if watch.due > self.timers.now() => {
                let due = watch.due.min(self.due_at(until));
                self.set_timer(watch, due);
                false
            }
            until => until.is_some(),
        }
    }

    fn tick_of(&self, time: Instant) -> Tick {
        ticks(time.saturating_duration_since(self.start))
    }
}

fn ticks(duration: Duration) -> Tick {
    u64::try_from(duration.as_nanos() >> TICK_SHIFT).unwrap_or(Tick::MAX >> 1)
}

#[cfg(test)]
mod tests {
    use event::Mechanism;
    use session::Echo;

    use super::*;
    use crate::engine::reactor::tests::start_at;
    use crate::limits::Limits;

    impl HasWatch for Watch {
        fn watch(&mut self) -> &mut Watch {
            self
        }
    }

    #[test]
    fn a_reused_slot_gets_no_old_reports() {
        let (start, _shared, _) = start_at(&[], Limits::default(), || Echo);
        let (engine, _) = EngineContext::over_sockets(start, (1, true));
        let mut poller =
            Poller::new(&engine, LoopHandle::new().unwrap(), Mechanism::Poll.open().unwrap())
                .unwrap();
        let mut slots = Slab::new();
        let first = slots.insert(poller.register(0));
        let token = slots[first].token;
        poller.queue(&mut slots[first]);
        poller.queue(&mut slots[first]);
        assert_eq!(poller.run_queue_len(), 1, "a connection is queued once");
        poller.arm(&mut slots[first], Instant::now());
        assert_eq!(slot_of(&mut slots, token), Some(first));

        // Its timer expires, and in the same turn the connection leaves the loop.
        poller.expire(Instant::now() + Duration::from_secs(1));
        slots.remove(first);
        let next = slots.insert(poller.register(first));
        assert_eq!(next, first);
        assert_eq!(slot_of(&mut slots, token), None);
        assert_eq!(poller.take_turn(&mut slots), None);
        assert_eq!(poller.next_expired(&mut slots), None);

        poller.queue(&mut slots[next]);
        assert_eq!(poller.take_turn(&mut slots), Some(next));
        poller.queue(&mut slots[next]);
        assert_eq!(poller.take_turn(&mut slots), Some(next));
    }
}
