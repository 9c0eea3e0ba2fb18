//! Turns of a processor.
//!
//! One turn: run the fibers that were ready when it began, take messages, expire timers, then enter
//! the back end once, to hand over all operations that the fibers made and to collect what has
//! completed. Batching the fibers' sends into that one system call is where the speed comes from.
//!
//! Pinned fibers whose wait is over go before those that yielded, which have more to do. A turn
//! that has lasted for [`TURN_MAX`](crate::sched::processor::TURN_MAX) enters the back end before
//! it continues with pinned fibers, and the next one begins with movable ones, such as stackless
//! ones with a peer's next request. So a burst of fibers with much work, as when all have
//! accepted connections and send large files, does not delay fibers with little work.
//!
//! Otherwise pinned and movable fibers are served by age. For the pinned ones the age is
//! that of the turn before: reading the counter for each would cost ten times what the rest does.

mod overflow;
mod retire;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::backend::{BackendKind, Completed, SleepLimit};
use crate::base::counters::Counters;
use crate::base::stamp;
use crate::base::topology::{last_level_cache, thread_id};
use crate::io::end;
use crate::sched::cluster::Message;
use crate::sched::fiber::{FiberRef, Flow, RunOutcome, Suspend};
use crate::sched::idle::Woken;
use crate::sched::processor::{Expiry, Here, Processor};
use crate::sched::ready_queue::Origin;
use crate::sched::run::{DIRECT_MAX, MUCH_UNSUSPENDED};

pub(crate) use retire::retire_here;

/// Fibers from the run queues that a turn runs: enough to keep busy, few enough that completions
/// are not kept waiting.
const MOVABLE_PER_TURN: usize = 64;

/// A turn that has run fewer fibers continues with those that have become ready meanwhile.
const RUNS_PER_TURN: u64 = 64;

/// Pinned fibers that run between two looks at the time, if none has done much and the turn before
/// was not cut short.
const PINNED_PER_TIME: usize = 8;

/// After so many pinned fibers the processor checks if the work of another has waited much
/// longer.
const PINNED_PER_LOOK: u8 = 16;

/// Rounds that a processor without work looks around before it sleeps; with the pauses some 5 to 10
/// µs, which is less than it takes to wake a thread.
const SPIN_ROUNDS: usize = 64;
const PAUSES_PER_ROUND: usize = 8;

/// Samples of the run queues that all have something while others have more than they can do.
const BACKLOG_SAMPLES: usize = 16;

/// Sleep of a processor that finds only work that others are about to take, and the number of naps
/// in a row without even that. With the kernel's slack one takes 0.1 ms.
const NAP: Duration = Duration::from_micros(50);
const NAPS: u8 = 4;

impl Processor {
    /// Runs fibers until the cluster stops, or the processor is removed.
    pub(crate) fn run(&self) {
        overflow::install();
        self.shared().thread.store(thread_id(), Ordering::Release);
        // SAFETY: the guard goes at the end of this call.
        let _here = unsafe { Here::enter(self) };
        self.note_cache();
        // Start of the latest turn after whose search the back end was entered.
        let mut polled_at = self.turn_began.get();
        while !self.cluster.is_stopping() {
            self.shared().counters.turns.add(1);
            self.take_messages();
            if self.has_work() || self.retiring.is_begun() {
                self.hand_over();
            }
            self.run_some();
            self.expire_timers();
            if self.retiring.is_begun() && self.wind_down() {
                break;
            }
            let is_busy = self.has_work() || self.retiring.is_busy();
            if is_busy || self.shared().has_messages() || self.backend.expects_completion() {
                self.enter_backend(SleepLimit::Poll);
            } else if self.retiring.is_begun() {
                self.sleep_for_messages();
            } else if !self.search() {
                self.rest();
            } else if self.backend.has_pending() || self.is_long_since(polled_at) {
                // Others may have work for it for a long time, and the back end must not wait.
                polled_at = self.turn_began.get();
                self.enter_backend(SleepLimit::Poll);
            }
        }
        // Takes back buffers that were read elsewhere.
        self.take_messages();
        self.shut_down_backend();
        self.acceptors.leave_all(self);
        self.shared().close_inbox();
    }

    /// Hands over operations, collects completions, and makes their fibers ready.
    fn enter_backend(&self, wait: SleepLimit) {
        self.take_completed(|counters, completed| self.backend.turn(counters, wait, completed));
    }

    fn take_completed(&self, turn: impl FnOnce(&Counters, &mut Vec<Completed>)) {
        let mut completed = self.completed.borrow_mut();
        turn(&self.shared().counters, &mut completed);
        for &completed in &*completed {
            end::take(self, completed);
        }
        completed.clear();
    }

    /// Takes back what the kernel may still write to; waits for a second at most.
    fn shut_down_backend(&self) {
        self.backend.begin_shut_down(&self.shared().waker);
        let deadline = Instant::now() + Duration::from_secs(1);
        while self.backend.is_shutting_down() && Instant::now() < deadline {
            self.take_completed(|counters, completed| {
                self.backend.shut_down_turn(counters, completed);
            });
        }
    }

    fn take_messages(&self) {
        self.take_ready();
        for message in self.shared().take_messages() {
            self.shared().counters.messages.add(1);
            self.shares_work.set(true);
            match message {
                Message::Start(fiber) if self.retiring.is_begun() => self.pass_on(fiber),
                Message::Start(fiber) => self.push_ready(fiber),
                Message::Call(call, words) => call(words),
                Message::Job(job) => job(),
            }
        }
    }

    /// Runs the fibers ready when the turn began, the oldest first; then those that became ready
    /// meanwhile, as long as the rest of the turn has nothing to do.
    fn run_some(&self) {
        let queue = &self.cluster.queue;
        let mut began = stamp::now();
        let switches_before = self.shared().counters.switches.get();
        // The pinned fibers became ready in the turn before.
        let mut pinned_since = self.turn_began.replace(began);
        let is_monitored = self.cluster.is_monitored();
        if is_monitored {
            let took = began.saturating_sub(pinned_since);
            self.backlog.begin_turn(began, took);
        }
        self.begin_batch();
        self.is_past_batch.set(false);
        let gave_way_before = self.gave_way_left.get();
        let mut has_shared = false;
        let was_cut = self.turn_was_cut.replace(false);
        let is_direct = !was_cut && !self.retiring.is_begun();
        self.direct_max.set(if is_direct { DIRECT_MAX } else { 0 });
        self.direct_left.set(self.direct_max.get());
        let mut until_time = PINNED_PER_TIME;
        // A fiber that may leave a processor that goes does so instead of running.
        let mut movable_left = if self.retiring.is_begun() { 0 } else { MOVABLE_PER_TURN };
        loop {
            let pinned = if self.is_past_batch.get() { 0 } else { self.batch_left() };
            has_shared = has_shared || self.share(pinned);
            let limit = if pinned > 0 && !was_cut { pinned_since } else { began };
            if movable_left > 0 && queue.oldest(self.index) < limit {
                movable_left -= 1;
                self.run_movable(if pinned > 0 { pinned_since } else { u64::MAX });
            } else if pinned > 0 {
                let runs = self.run_pinned(pinned_since);
                until_time = until_time.saturating_sub(usize::from(runs));
                let is_time = was_cut || self.unsuspended.get() >= MUCH_UNSUSPENDED;
                if !is_time && until_time > 0 {
                    continue;
                }
                until_time = PINNED_PER_TIME;
                if pinned > 1 && self.is_turn_long() {
                    let gave_way = self.gave_way_left.get();
                    if gave_way > 0 && gave_way == gave_way_before {
                        // One of them runs in each turn, however many others there are.
                        self.ready_left.set(0);
                        self.run_pinned(pinned_since);
                    }
                    self.turn_was_cut.set(true);
                    self.shared().counters.turns_cut.add(1);
                    break;
                }
            } else {
                let runs = self.shared().counters.switches.get() - switches_before;
                let is_over = was_cut || runs >= RUNS_PER_TURN || movable_left == 0;
                if is_over || !self.may_go_on() || self.has_been_long() {
                    break;
                }
                // All that is ready now, of which nothing is older than the turn.
                pinned_since = self.turn_began.get();
                began = u64::MAX;
                self.begin_batch();
                self.is_past_batch.set(false);
            }
        }
        if is_monitored && queue.oldest(self.index) == u64::MAX {
            self.backlog.clear();
        }
    }

    /// True if more is ready by now, after all that was ready, and the rest of a turn would have
    /// nothing to do.
    fn may_go_on(&self) -> bool {
        self.has_work()
            && !self.retiring.is_begun()
            && !self.shared().has_messages()
            && !self.backend.has_pending()
    }

    /// Same as [`is_turn_long`](Processor::is_turn_long), by the latest stamp of a push since the
    /// last look, if there is one: that has been read already.
    fn has_been_long(&self) -> bool {
        match self.latest_push.replace(0) {
            0 => self.is_turn_long(),
            latest => latest.saturating_sub(self.turn_began.get()) >= self.turn_max,
        }
    }

    /// Wakes another processor, before a fiber runs, if further work waits here that any processor
    /// may run, and if that is worth it. Returns true if it did.
    ///
    /// A fiber with frames may run for any time, so work that waits behind one is always worth it.
    #[inline]
    fn share(&self, pinned: usize) -> bool {
        let queue = &self.cluster.queue;
        let is_worth = self.cluster.idle.has_sleepers()
            && queue.oldest(self.index) != u64::MAX
            && (pinned > 0
                || queue.has_several(self.index)
                    && (!self.cluster.is_monitored()
                        || self.backlog.is_worth_waking(stamp::now())));
        if is_worth {
            self.notify();
        }
        is_worth
    }

    /// Runs the next fiber by the rule of the ready queue: an own one as a rule, or one of a
    /// processor that it helps.
    fn run_movable(&self, waiting_since: u64) {
        let mut visitor = self.visitor.borrow_mut();
        let popped = self.cluster.queue.pop(&mut visitor, stamp::now, waiting_since);
        drop(visitor);
        let Some((fiber, origin)) = popped else {
            return; // Others have been faster.
        };
        let counters = &self.shared().counters;
        match origin {
            Origin::Own => counters.fibers_popped.add(1),
            Origin::Helped => {
                self.shares_work.set(true);
                counters.fibers_helped.add(1);
            }
        }
        self.run_fiber(fiber);
    }

    /// Runs the next of the batch, and those that it gives the processor to; now and then one of
    /// another processor before, if that has waited much longer. Returns how many ran.
    fn run_pinned(&self, waiting_since: u64) -> u8 {
        if self.pinned_in_a_row.get() >= PINNED_PER_LOOK {
            self.pinned_in_a_row.set(0);
            self.help_one(waiting_since);
        }
        let (queue, left) = self.batch_queue();
        left.set(left.get().saturating_sub(1));
        let fiber = queue.borrow_mut().pop_front();
        if let Some(fiber) = fiber {
            self.run_fiber(fiber);
        }
        let runs = 1 + self.direct_max.get() - self.direct_left.get();
        let in_a_row = self.pinned_in_a_row.get().saturating_add(runs);
        self.pinned_in_a_row.set(in_a_row);
        runs
    }

    /// Runs a fiber of another processor's, if one has waited much longer than those here.
    fn help_one(&self, waiting_since: u64) {
        if self.retiring.is_begun() {
            return;
        }
        let mut visitor = self.visitor.borrow_mut();
        let queue = &self.cluster.queue;
        let helped = queue.help(&mut visitor, stamp::now, waiting_since);
        drop(visitor);
        if let Some(fiber) = helped {
            self.shared().counters.fibers_helped.add(1);
            self.run_fiber(fiber);
        }
    }

    /// Looks for work in all run queues.
    fn search(&self) -> bool {
        let found = self.find(self.keep_ticks);
        if let Some(fiber) = found {
            self.hand_over();
            self.run_fiber(fiber);
        }
        found.is_some()
    }

    /// Takes an item from any run queue; of another processor's, one that has waited for so many
    /// ticks.
    fn find(&self, ticks: u64) -> Option<FiberRef> {
        let mut visitor = self.visitor.borrow_mut();
        let now = stamp::now();
        let until = now.saturating_sub(ticks);
        let Some(fiber) = self.cluster.queue.search(&mut visitor, now, until) else {
            self.look_after_young();
            return None;
        };
        self.shares_work.set(true);
        self.shared().counters.fibers_stolen.add(1);
        Some(fiber)
    }

    /// Schedules another search for fibers that were too young to take. Their pusher may have seen
    /// this processor search, and woken none.
    fn look_after_young(&self) {
        if !self.cluster.queue.is_empty() {
            let is_first = self.naps_left.get() == 0;
            self.naps_left.set(NAPS + u8::from(is_first));
        }
    }

    /// Wakes another processor for young work, before this one runs a fiber.
    fn hand_over(&self) {
        if self.naps_left.replace(0) > 0 && !self.cluster.queue.is_empty() {
            self.notify();
        }
    }

    /// Sleeps until there is something to do; before that, looks around for a moment if that seems
    /// worth it.
    fn rest(&self) {
        // Neither a search nor a sleep counts as run time of the fibers.
        let now = stamp::now();
        let took = now.saturating_sub(self.turn_began.replace(now));
        self.backlog.note_runs(took);
        self.stacks.trim(now);
        let idle = &self.cluster.idle;
        let naps_left = self.naps_left.get();
        let shares_work = self.shares_work.replace(false) || naps_left > 0;
        let is_worth = self.cluster.open_slots().len() > 1 && shares_work;
        if is_worth && idle.begin_spin() {
            let has_found = match naps_left {
                1..=NAPS => self.nap(),
                _ => self.spin(),
            };
            if has_found || self.naps_left.get() > 0 {
                return;
            }
        }
        idle.register(self.index);
        if self.cluster.is_work_for(self.index) {
            self.handle_wake(idle.leave(self.index));
            return self.enter_backend(SleepLimit::Poll);
        }
        self.naps_left.set(0);
        self.shared().counters.sleeps.add(1);
        self.enter_backend(SleepLimit::For(self.until_next_timer()));
        self.turn_began.set(stamp::now());
        self.note_cache();
        self.handle_wake(idle.leave(self.index));
    }

    /// Sleeps until there is a message for this processor, which retires.
    fn sleep_for_messages(&self) {
        let idle = &self.cluster.idle;
        idle.register_for_messages(self.index);
        let wait = if self.shared().has_messages() || self.cluster.is_stopping() {
            SleepLimit::Poll
        } else {
            SleepLimit::For(self.until_next_timer())
        };
        self.shared().counters.sleeps.add(1);
        self.enter_backend(wait);
        self.turn_began.set(stamp::now());
        self.handle_wake(idle.leave(self.index));
    }

    /// Searches as the spinner of the cluster, then stops being it; returns true if there is
    /// something to do.
    fn spin(&self) -> bool {
        self.shared().counters.spins.add(1);
        self.naps_left.set(self.naps_left.get().min(NAPS));
        for _ in 0..SPIN_ROUNDS {
            if self.shared().has_messages()
                || self.cluster.queue.has_since(stamp::now().saturating_sub(self.keep_ticks))
                || self.has_work()
            {
                break;
            }
            // A message may be a fiber of another processor's that waits for this one.
            let mut pauses = (0..PAUSES_PER_ROUND).map(|_| std::hint::spin_loop());
            if pauses.any(|()| self.shared().has_messages()) {
                break;
            }
            if self.backend.kind() == BackendKind::Uring {
                // No system call as long as nothing has come.
                self.enter_backend(SleepLimit::Poll);
            }
        }
        if self.shared().has_messages() {
            self.cluster.idle.end_spin();
            self.look_after_young();
            return true;
        }
        self.search_as_spinner() || self.shared().has_messages() || self.has_work()
    }

    /// Naps as the spinner of the cluster. The other processors run their own work sooner than this
    /// one could fetch it, so they wake no processor; work that does wait is found after the nap.
    /// Returns true if the processor is to continue.
    fn nap(&self) -> bool {
        let idle = &self.cluster.idle;
        self.naps_left.set(self.naps_left.get() - 1);
        self.shared().counters.naps.add(1);
        idle.register_for_messages(self.index);
        let wait = if self.shared().has_messages() || self.cluster.is_stopping() {
            SleepLimit::Poll
        } else {
            let limit = self.until_next_timer();
            SleepLimit::For(Some(limit.map_or(NAP, |limit| limit.min(NAP))))
        };
        self.enter_backend(wait);
        self.turn_began.set(stamp::now());
        idle.leave(self.index);
        self.search_as_spinner() || self.shared().has_messages() || self.has_work()
    }

    /// Handles a wake-up: searches if it was woken to search.
    fn handle_wake(&self, woken: Woken) {
        if woken != Woken::ByItself {
            self.shared().counters.wakes.add(1);
        }
        if woken == Woken::ToSearch && !self.search_as_spinner() {
            self.shared().counters.wakes_early.add(1);
        }
    }

    /// Looks for work and stops being the spinner. Pushes meanwhile woke no processor, so if there
    /// is more than it takes itself, it wakes the next.
    fn search_as_spinner(&self) -> bool {
        let ticks = if self.is_backlog() { 0 } else { self.keep_ticks };
        let found = self.find(ticks);
        self.cluster.idle.end_spin();
        let Some(fiber) = found else {
            self.look_after_young();
            return false;
        };
        self.naps_left.set(0);
        if !self.cluster.queue.is_empty() {
            self.notify();
        }
        self.run_fiber(fiber);
        true
    }

    /// True if something waits all the time: then the others have more than they can do, however
    /// soon they take each item.
    fn is_backlog(&self) -> bool {
        (0..BACKLOG_SAMPLES).all(|_| {
            std::hint::spin_loop();
            !self.cluster.queue.is_empty()
        })
    }

    /// Notes the cache of this CPU: the kernel may have moved the thread.
    fn note_cache(&self) {
        self.cluster.queue.set_cache(self.index, last_level_cache());
    }

    fn until_next_timer(&self) -> Option<Duration> {
        let tick = self.timers.borrow().next_expiry();
        let due = tick.map(|tick| self.epoch + Duration::from_millis(tick));
        let until_due = due.map(|due| due.saturating_duration_since(Instant::now()));
        until_due.into_iter().chain(self.stacks.trims_after()).min()
    }

    /// Runs a fiber, and those that it gives the processor to, until one leaves it to the loop.
    fn run_fiber(&self, fiber: FiberRef) {
        let counters = &self.shared().counters;
        self.direct_left.set(self.direct_max.get());
        self.enter(fiber);
        let outcome = fiber.run(self, &counters.fibers_started);
        let fiber = self.running().expect("a fiber has left the processor");
        self.shared().running.set(0);
        self.set_current(None);
        match outcome {
            Some(RunOutcome::Suspended(Suspend::Yield)) => self.make_ready_again(fiber),
            Some(RunOutcome::Suspended(Suspend::Wait)) => {}
            Some(RunOutcome::Suspended(Suspend::Park)) => {
                if !fiber.park_after_switch() {
                    self.make_ready(fiber);
                }
            }
            Some(RunOutcome::Ended(flow)) => {
                fiber.end_frames(self, flow);
                self.handle_flow(fiber, flow);
            }
            None => self.finish(fiber),
        }
    }

    /// Continues after a step, or after the whole fiber.
    fn handle_flow(&self, fiber: FiberRef, flow: Flow) {
        match flow {
            Flow::Done => self.finish(fiber),
            Flow::Receive if self.retiring.is_begun() => {
                fiber.postpone_wait();
                self.make_ready(fiber);
            }
            Flow::Receive => self.begin_wait(fiber),
            Flow::Park if fiber.park_after_switch() => {}
            Flow::Park | Flow::Yield => self.make_ready(fiber),
        }
    }

    fn finish(&self, fiber: FiberRef) {
        self.shared().counters.fibers_finished.add(1);
        self.end_watch(fiber);
        self.cluster.unlist(fiber);
        fiber.release();
        self.cluster.fiber_finished();
    }

    /// Begins the wait for the next step's input, after a step. Only then is the fiber made ready,
    /// or its wait ended: from that moment another processor may have its value.
    fn begin_wait(&self, fiber: FiberRef) {
        if !fiber.begin_wait() {
            self.make_ready(fiber);
        } else if fiber.control().cancellation().is_due() {
            end::cancel_begun(self, &fiber.handle());
        }
    }

    fn expire_timers(&self) {
        if self.timers.borrow().is_empty() {
            return;
        }
        let now = self.epoch.elapsed().as_millis() as u64;
        let mut expired = Vec::new();
        self.timers.borrow_mut().advance(now, |expiry| expired.push(expiry));
        self.shared().counters.timers_expired.add(expired.len() as u64);
        for expiry in expired {
            match expiry {
                Expiry::Unpark(fiber) => fiber.unpark(),
                Expiry::Watch(fiber) => end::expire_watch(self, &fiber),
            }
        }
    }
}
