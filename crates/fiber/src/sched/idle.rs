//! Sleeping processors: wakes as few as will do, and never none by mistake.
//!
//! * **Last in, first out.** The last to fall asleep is woken first: its cache is warm, and the
//!   others may stay asleep.
//! * **At most one spinner.** A processor without work looks around for a moment before it sleeps,
//!   because waking a thread takes some 16 µs and looking takes none. One is enough: it finds
//!   whatever is pushed.
//! * **Wake suppression.** A push while there is a spinner wakes no processor. A processor that is
//!   woken to look for work *is* the spinner until it has found some; then it stops being it and,
//!   if there is more, wakes the next. So a burst of pushes wakes one processor at a time.
//! * **Two steps to sleep.** First a processor registers, then it looks once more at everything. A
//!   thread that adds work does it the other way round: adds, then looks which sleep. With a fence
//!   between the two steps on both sides, one of them sees the other. (Dekker's argument; the
//!   models below check it.)
//!
//! ```text
//!            register                 wake (message for it): AWAKE
//!   AWAKE ───────────▶ ASLEEP ──┬───────────────────────────────▶ leave ──▶ AWAKE
//!                               └───────────────────────────────▶   "
//!                                     notify (work for any): SEARCH, and it is the spinner
//! ```

use crate::base::atomic::{
    AtomicBool, AtomicU8, AtomicUsize, Mutex, MutexGuard, Ordering, full_fence,
};

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
/// Woken in order to look for work.
const SEARCH: u8 = 2;

/// The sleepers of a cluster.
#[derive(Debug)]
pub(crate) struct Idle {
    /// True while a processor looks for work.
    spinner: AtomicBool,
    /// Processors that have registered and not left, in this order. Some may have been woken and be
    /// on their way.
    sleepers: Mutex<Vec<usize>>,
    /// Length of `sleepers`, to be read without the lock.
    sleeper_count: AtomicUsize,
    states: Box<[AtomicU8]>,
}

/// Effect of new work on sleepers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notified {
    /// All are awake.
    None,
    /// There is a spinner, which will find the work.
    Suppressed,
    /// This processor, which the caller now has to wake.
    Wake(usize),
}

/// Reason for which a processor is awake again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// No wake: a completion or a timer ended the sleep, or the processor did not sleep at all.
    ByItself,
    /// There are messages.
    ForMessages,
    /// To look for work: it is the spinner.
    ToSearch,
}

impl Idle {
    pub(crate) fn new(processors_max: usize) -> Idle {
        Idle {
            spinner: AtomicBool::new(false),
            sleepers: Mutex::new(Vec::with_capacity(processors_max)),
            sleeper_count: AtomicUsize::new(0),
            states: (0..processors_max).map(|_| AtomicU8::new(AWAKE)).collect(),
        }
    }

    /// Becomes the spinner; `false` if there is one.
    pub(crate) fn begin_spin(&self) -> bool {
        // Not a swap, which writes even if it fails: `end_spin` stays the last write.
        let begun = self.spinner.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed);
        begun.is_ok()
    }

    /// Stops being the spinner. Afterwards the caller checks if work is left, and wakes the next
    /// processor if so: pushers in the meantime relied on it.
    pub(crate) fn end_spin(&self) {
        self.spinner.store(false, Ordering::Release);
        full_fence();
    }

    /// The first step to sleep. The second is to look at everything once more.
    pub(crate) fn register(&self, index: usize) {
        let mut sleepers = self.lock();
        self.states[index].store(ASLEEP, Ordering::Relaxed);
        sleepers.push(index);
        self.sleeper_count.store(sleepers.len(), Ordering::Relaxed);
        drop(sleepers);
        // Without it the models below deadlock: the count may be seen after the run queues were
        // seen empty.
        full_fence();
    }

    /// Registers as [`register`](Idle::register), for a processor that retires: it is woken by
    /// messages, and not for work that others can do.
    pub(crate) fn register_for_messages(&self, index: usize) {
        self.states[index].store(ASLEEP, Ordering::Relaxed);
        full_fence();
    }

    /// Ends a sleep, or an attempt to sleep; returns the reason.
    pub(crate) fn leave(&self, index: usize) -> Woken {
        let mut sleepers = self.lock();
        sleepers.retain(|&sleeper| sleeper != index);
        self.sleeper_count.store(sleepers.len(), Ordering::Relaxed);
        match self.states[index].swap(AWAKE, Ordering::AcqRel) {
            ASLEEP => Woken::ByItself,
            SEARCH => Woken::ToSearch,
            _ => Woken::ForMessages,
        }
    }

    /// True if there is a spinner, which takes the work that is there, or wakes a processor for it.
    /// To be called after [`register`](Idle::register).
    pub(crate) fn has_spinner(&self) -> bool {
        self.spinner.load(Ordering::Relaxed)
    }

    /// True if processor `index` sleeps and was not woken.
    pub(crate) fn is_asleep(&self, index: usize) -> bool {
        self.states[index].load(Ordering::SeqCst) == ASLEEP
    }

    /// Returns true if the caller must wake processor `index`, after something was put into its
    /// inbox.
    #[inline]
    pub(crate) fn wake(&self, index: usize) -> bool {
        full_fence();
        let state = &self.states[index];
        state.load(Ordering::Relaxed) == ASLEEP
            && state.compare_exchange(ASLEEP, AWAKE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// True if a processor sleeps, as far as is known without the lock and without a fence: one
    /// that falls asleep just now may be missed, and looks at the run queues before it does.
    #[inline]
    pub(crate) fn has_sleepers(&self) -> bool {
        self.sleeper_count.load(Ordering::Relaxed) > 0
    }

    /// Chooses the processor to wake after work was added that any may take.
    #[inline]
    pub(crate) fn notify(&self) -> Notified {
        full_fence();
        if !self.has_sleepers() {
            return Notified::None;
        }
        if self.spinner.load(Ordering::Relaxed) {
            return Notified::Suppressed;
        }
        self.choose()
    }

    /// Makes the last sleeper the spinner. All under the lock: a thread that sees a spinner during
    /// the choice counts on a sleeper, and if none is found, processors that fall asleep next do so
    /// after the choice, and look again.
    fn choose(&self) -> Notified {
        let sleepers = self.lock();
        if sleepers.is_empty() {
            return Notified::None;
        }
        if !self.begin_spin() {
            return Notified::Suppressed;
        }
        let woken = sleepers.iter().rev().find(|&&index| {
            self.states[index]
                .compare_exchange(ASLEEP, SEARCH, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        });
        match woken {
            Some(&index) => Notified::Wake(index),
            None => {
                // All of them have been woken by messages, and will look at everything before they
                // sleep again.
                self.spinner.store(false, Ordering::Release);
                Notified::None
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<usize>> {
        self.sleepers.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn wakes_latest_sleeper_first() {
        let idle = Idle::new(3);
        assert_eq!(idle.notify(), Notified::None);
        [0, 1, 2].into_iter().for_each(|index| idle.register(index));
        assert_eq!(idle.notify(), Notified::Wake(2));
        assert_eq!(idle.notify(), Notified::Suppressed);
        assert_eq!(idle.leave(2), Woken::ToSearch);
        idle.end_spin();
        assert_eq!(idle.notify(), Notified::Wake(1));
    }

    #[test]
    fn message_wakes_its_processor_once() {
        let idle = Idle::new(2);
        idle.register(0);
        idle.register(1);
        assert!(idle.wake(0));
        assert!(!idle.wake(0), "processor 0 is already woken");
        assert_eq!(idle.leave(0), Woken::ForMessages);
        assert_eq!(idle.notify(), Notified::Wake(1));
    }

    #[test]
    fn one_processor_spins() {
        let idle = Idle::new(2);
        assert!(idle.begin_spin());
        assert!(!idle.begin_spin());
        idle.register(1);
        assert_eq!(idle.notify(), Notified::Suppressed);
        idle.end_spin();
        assert_eq!(idle.notify(), Notified::Wake(1));
    }

    #[test]
    fn retiring_sleeper_ignores_work() {
        let idle = Idle::new(2);
        idle.register(0);
        idle.register_for_messages(1);
        assert_eq!(idle.notify(), Notified::Wake(0));
        idle.end_spin();
        assert_eq!(idle.notify(), Notified::None);
        assert!(idle.wake(1));
        assert_eq!(idle.leave(1), Woken::ForMessages);
    }

    #[test]
    fn no_wake_when_all_are_woken() {
        let idle = Idle::new(1);
        idle.register(0);
        assert!(idle.wake(0));
        assert_eq!(idle.notify(), Notified::None);
        assert!(idle.begin_spin(), "a spinner is left over");
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::{Arc, Condvar, Mutex as Lock};
    use loom::thread;

    /// Work in the run queues of a third processor, messages for processor 0, and parkers of both.
    struct World {
        idle: Idle,
        queues: AtomicUsize,
        /// True while the work is too young to take.
        is_young: AtomicBool,
        /// Same as `Processor::naps_left`, of one.
        naps: [AtomicBool; 2],
        inbox: AtomicBool,
        parkers: [(Lock<bool>, Condvar); 2],
    }

    impl World {
        fn new() -> Arc<World> {
            Arc::new(World {
                idle: Idle::new(2),
                queues: AtomicUsize::new(0),
                is_young: AtomicBool::new(false),
                naps: [(), ()].map(|()| AtomicBool::new(false)),
                inbox: AtomicBool::new(false),
                parkers: [(), ()].map(|()| (Lock::new(false), Condvar::new())),
            })
        }

        fn wake(&self, index: usize) {
            *self.parkers[index].0.lock().unwrap() = true;
            self.parkers[index].1.notify_one();
        }

        fn notify(&self) {
            if let Notified::Wake(index) = self.idle.notify() {
                self.wake(index);
            }
        }

        /// Any thread adds work for any processor.
        fn push(&self) {
            self.queues.fetch_add(1, Ordering::Relaxed);
            self.notify();
        }

        /// Any thread adds a message for processor 0.
        fn send(&self) {
            self.inbox.store(true, Ordering::Relaxed);
            if self.idle.wake(0) {
                self.wake(0);
            }
        }

        fn take(&self) -> bool {
            let left = self.queues.load(Ordering::Relaxed);
            left > 0
                && self
                    .queues
                    .compare_exchange(left, left - 1, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
        }

        /// Same as `Processor::find`.
        fn find(&self, index: usize) -> bool {
            let found = !self.is_young.load(Ordering::Relaxed) && self.take();
            if !found {
                self.look_after_young(index);
            }
            found
        }

        fn has_work(&self) -> bool {
            self.queues.load(Ordering::Relaxed) > 0
        }

        fn look_after_young(&self, index: usize) {
            if self.has_work() {
                self.naps[index].store(true, Ordering::Relaxed);
            }
        }

        /// Same as `Processor::hand_over`.
        fn hand_over(&self, index: usize) {
            let looks_after = self.naps[index].load(Ordering::Relaxed);
            self.naps[index].store(false, Ordering::Relaxed);
            if looks_after && self.has_work() {
                self.notify();
            }
        }

        /// Same as `Processor::search`.
        fn search(&self, index: usize) -> bool {
            let found = self.find(index);
            if found {
                self.hand_over(index);
            }
            found
        }

        /// Same as `Processor::search_as_spinner`.
        fn search_as_spinner(&self, index: usize) -> bool {
            let found = self.find(index);
            self.idle.end_spin();
            if !found {
                self.look_after_young(index);
                return false;
            }
            self.naps[index].store(false, Ordering::Relaxed);
            if self.has_work() {
                self.notify();
            }
            true
        }

        /// Same as `Processor::rest`: spin once or nap, register, look again, sleep. Returns true
        /// if it took work.
        fn rest(&self, index: usize) -> bool {
            if self.idle.begin_spin() {
                if self.naps[index].load(Ordering::Relaxed) {
                    self.naps[index].store(false, Ordering::Relaxed);
                    self.idle.register_for_messages(index);
                    thread::yield_now();
                    self.idle.leave(index);
                }
                if self.search_as_spinner(index) {
                    return true;
                }
                if self.naps[index].load(Ordering::Relaxed) {
                    return false;
                }
            }
            self.idle.register(index);
            let inbox = index == 0 && self.inbox.load(Ordering::Relaxed);
            let is_work = self.has_work() && !self.idle.has_spinner();
            if !inbox && !is_work {
                self.naps[index].store(false, Ordering::Relaxed);
                self.sleep(index);
            }
            self.idle.leave(index) == Woken::ToSearch && self.search_as_spinner(index)
        }

        fn sleep(&self, index: usize) {
            let (woken, wake_up) = &self.parkers[index];
            let mut woken = woken.lock().unwrap();
            while !*woken {
                woken = wake_up.wait(woken).unwrap();
            }
            *woken = false;
        }

        /// Same as `Processor::sleep_for_messages`, of processor 0.
        fn sleep_for_messages(&self) {
            self.idle.register_for_messages(0);
            if !self.inbox.load(Ordering::Relaxed) {
                self.sleep(0);
            }
            self.idle.leave(0);
        }

        /// A processor that runs until it has taken one piece of work.
        fn work_one(&self, index: usize) {
            while !self.search(index) && !self.rest(index) {
                thread::yield_now();
            }
        }
    }

    fn check(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(model);
    }

    /// A wake-up that is lost shows as a deadlock, which loom reports.
    #[test]
    fn a_push_wakes_a_sleeper() {
        check(|| {
            let world = World::new();
            let pusher = Arc::clone(&world);
            let thread = thread::spawn(move || pusher.push());
            world.work_one(0);
            thread.join().unwrap();
        });
    }

    /// Runs `does` on processor 0, while a thread brings something and processor 1 works.
    fn check_between(brings: fn(&World), does: fn(&World)) {
        check(move || {
            let world = World::new();
            let (bringer, second) = (Arc::clone(&world), Arc::clone(&world));
            let threads = [
                thread::spawn(move || brings(&bringer)),
                thread::spawn(move || second.work_one(1)),
            ];
            does(&world);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }

    fn push_and_send(world: &World) {
        world.push();
        world.send();
    }

    #[test]
    fn two_pushes_reach_two_processors() {
        let push_twice = |world: &World| (0..2).for_each(|_| world.push());
        check_between(push_twice, |world| world.work_one(0));
    }

    /// Messages and work at once: processor 0 waits for both, processor 1 for work.
    #[test]
    fn messages_and_work_at_once() {
        check_between(push_and_send, |world| {
            let mut took = false;
            while !world.inbox.load(Ordering::Relaxed) {
                took |= world.rest(0);
                thread::yield_now();
            }
            world.hand_over(0);
            if took {
                world.push(); // The other waits for it, and may sleep by now.
            }
        });
    }

    /// Pushes items that are too young to take; nothing reports when they are old enough.
    fn push_young(world: &World, pushes: usize) {
        world.is_young.store(true, Ordering::Relaxed);
        (0..pushes).for_each(|_| world.push());
        world.is_young.store(false, Ordering::Relaxed);
    }

    #[test]
    fn young_work_is_looked_after() {
        let push_twice = |world: &World| push_young(world, 2);
        check_between(push_twice, |world| world.work_one(0));
    }

    /// Processor 0 has looked after young work, when a message comes that it runs for long.
    #[test]
    fn young_work_is_handed_over() {
        let brings = |world: &World| {
            push_young(world, 1);
            world.send();
        };
        check_between(brings, |world| {
            let mut took = false;
            while !world.inbox.load(Ordering::Relaxed) {
                took |= !took && (world.search(0) || world.rest(0));
                thread::yield_now();
            }
            world.hand_over(0);
            if took {
                world.push(); // The other waits for it, and may sleep by now.
            }
        });
    }

    /// Processor 0 retires: first it still sleeps like others, then for messages only. Work that
    /// comes meanwhile reaches processor 1, and the messages reach processor 0.
    #[test]
    fn retiring_processor_passes_wake_on() {
        check_between(push_and_send, |world| {
            if world.rest(0) {
                world.push(); // Handed over: it takes none.
            }
            world.hand_over(0);
            while !world.inbox.load(Ordering::Relaxed) {
                world.sleep_for_messages();
                thread::yield_now();
            }
        });
    }
}
