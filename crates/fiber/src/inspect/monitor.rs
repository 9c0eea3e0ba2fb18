//! The monitor: a kernel thread that notices when a fiber keeps its processor for too long, and
//! when fibers wait for each other in a ring.
//!
//! Nothing can take the processor from a fiber (Rust code and the C library cannot be interrupted
//! safely at any point), so what remains is to say which it was, where it was spawned, and what it
//! was doing. The monitor looks at each processor twice per threshold; if the same turn of the same
//! fiber is there as a threshold ago, and its thread did not just wait for a CPU, it sends the
//! thread a signal, whose handler notes the return addresses on the stack. They become names on the
//! monitor's thread.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, Once, OnceLock};
use std::time::{Duration, Instant};

use crate::base::lock::lock;
use crate::base::report::report;
use crate::base::topology::thread_id;
use crate::inspect::dump::Dump;
use crate::inspect::thread_time::ThreadTime;
use crate::sched::cluster::Cluster;
use crate::signal;

/// A fiber that has kept its processor for longer than the threshold.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stall {
    /// The processor.
    pub processor: usize,
    /// The fiber's number.
    pub fiber: u64,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Source location of its spawn, if it has not ended meanwhile.
    pub spawned_at: Option<String>,
    /// Time for which it has kept the processor so far, at least. Time in which the processor's
    /// thread waited for a CPU is not counted.
    pub duration: Duration,
    /// Backtrace at the time, innermost frame first.
    pub backtrace: String,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_deref().unwrap_or("<unnamed>");
        let spawned_at = self.spawned_at.as_deref().unwrap_or("<unknown>");
        write!(
            f,
            "fiber '{name}' (number {}, spawned at {spawned_at}) has kept processor {} for {} ms; let it call \
             fiber::yield_now or fiber::offload\n{}",
            self.fiber,
            self.processor,
            self.duration.as_millis(),
            self.backtrace,
        )
    }
}

/// Fibers that wait for each other in a ring.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Deadlock {
    /// State of every fiber of the runtime; see [`Dump::deadlocks`].
    pub dump: Dump,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fibers wait for each other and will for ever\n{}", self.dump)
    }
}

/// Callbacks of the monitor.
#[derive(Clone)]
pub(crate) struct Listeners {
    pub(crate) stall: Arc<dyn Fn(&Stall) + Send + Sync>,
    pub(crate) deadlock: Arc<dyn Fn(&Deadlock) + Send + Sync>,
}

impl Default for Listeners {
    fn default() -> Listeners {
        Listeners {
            stall: Arc::new(|stall| report(format_args!("{stall}\n"))),
            deadlock: Arc::new(|deadlock| report(format_args!("{deadlock}\n"))),
        }
    }
}

/// Calls a listener. The panic hook reports a panic of it, and the monitor continues.
fn notify<T>(listener: &dyn Fn(&T), news: &T) {
    let _ = catch_unwind(AssertUnwindSafe(|| listener(news)));
}

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listeners")
    }
}

/// Period while all processors sleep: an idle runtime should cost nothing.
const IDLE_PERIOD: Duration = Duration::from_secs(1);

/// Rings are not looked for among more fibers than this.
const DEADLOCKED_MAX: usize = 100_000;

/// Looks for rings take one in so many parts of the time, beside fibers that run.
const RING_LOOKS_SHARE: u32 = 1000;

/// A running monitor; ends when dropped.
#[derive(Debug)]
pub(crate) struct Monitor {
    end: Arc<StopFlag>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct StopFlag {
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl StopFlag {
    /// Waits; `true` when it is over.
    fn wait(&self, duration: Duration) -> bool {
        let guard = lock(&self.is_over);
        let waited = self.changed.wait_timeout_while(guard, duration, |over| !*over);
        *waited.unwrap_or_else(std::sync::PoisonError::into_inner).0
    }
}

impl Monitor {
    pub(crate) fn start(
        cluster: &Arc<Cluster>,
        threshold: Duration,
        listeners: Listeners,
    ) -> std::io::Result<Monitor> {
        install_handler();
        let end = Arc::new(StopFlag::default());
        let mut watch = MonitorLoop {
            cluster: Arc::clone(cluster),
            threshold,
            listeners,
            seen: Vec::new(),
            is_ring_reported: false,
            rings_due: Instant::now() + IDLE_PERIOD,
        };
        cluster.set_monitored(true);
        let ended = Arc::clone(&end);
        let body = move || {
            let mut period = threshold / 2;
            while !ended.wait(period) {
                period = watch.look();
            }
            watch.cluster.set_monitored(false);
        };
        let thread = std::thread::Builder::new().name("monitor".to_owned()).spawn(body)?;
        Ok(Monitor { end, thread: Some(thread) })
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        *lock(&self.end.is_over) = true;
        self.end.changed.notify_all();
        let this = std::thread::current().id();
        // A listener may drop the runtime: then this thread ends by itself.
        if let Some(thread) = self.thread.take().filter(|t| t.thread().id() != this) {
            let _ = thread.join();
        }
    }
}

struct MonitorLoop {
    cluster: Arc<Cluster>,
    threshold: Duration,
    listeners: Listeners,
    /// Fiber of each processor, as of its latest change.
    seen: Vec<Seen>,
    is_ring_reported: bool,
    /// Time of the next look for rings if a processor is awake.
    rings_due: Instant,
}

#[derive(Clone, Copy)]
struct Seen {
    fiber: u64,
    switches: u64,
    since: Instant,
    /// Times of the processor's thread, at that time.
    time: Option<ThreadTime>,
    is_reported: bool,
}

impl Seen {
    /// Time for which the fiber had kept the processor when `now` was seen.
    fn kept_until(&self, now: &Seen) -> Duration {
        let elapsed = now.since.saturating_duration_since(self.since);
        match (&self.time, &now.time) {
            (Some(before), Some(time)) => time.taken_since(before, elapsed),
            _ => elapsed,
        }
    }
}

impl MonitorLoop {
    /// Looks at all processors; says when to look again.
    fn look(&mut self) -> Duration {
        let cluster = Arc::clone(&self.cluster);
        let mut all_asleep = true;
        for (index, processor) in cluster.open_slots().iter().enumerate() {
            all_asleep &= processor.is_asleep();
            let fiber = processor.running.get();
            let thread = processor.thread.load(Ordering::Acquire);
            let now = Seen {
                fiber,
                switches: processor.counters.switches.get(),
                since: Instant::now(),
                time: (fiber != 0).then(|| ThreadTime::of(thread)).flatten(),
                is_reported: false,
            };
            match self.seen.get_mut(index) {
                None => self.seen.push(now),
                Some(seen) if (seen.fiber, seen.switches) != (now.fiber, now.switches) => {
                    *seen = now;
                }
                Some(seen) => {
                    let duration = seen.kept_until(&now);
                    let is_stalled = seen.fiber != 0 && duration >= self.threshold;
                    if is_stalled && !std::mem::replace(&mut seen.is_reported, true) {
                        let fiber = seen.fiber;
                        self.report_stall(index, fiber, duration);
                    }
                }
            }
        }
        // Work may wait behind a fiber that computes although its runs are usually short: then the
        // processor has woken no other for it. See `sched::backlog`.
        if !cluster.queue.is_empty() {
            cluster.notify();
        }
        if all_asleep || Instant::now() >= self.rings_due {
            self.look_for_rings();
        }
        let period = self.threshold / 2;
        if all_asleep { IDLE_PERIOD.max(period) } else { period }
    }

    fn report_stall(&self, processor: usize, number: u64, duration: Duration) {
        let shared = &self.cluster.processors[processor];
        let backtrace = trace_thread(shared.thread.load(Ordering::Acquire));
        self.cluster.stalls.fetch_add(1, Ordering::Relaxed);
        let fibers = self.cluster.fibers();
        let fiber = fibers.iter().find(|fiber| fiber.id() == number);
        let stall = Stall {
            processor,
            fiber: number,
            name: fiber.and_then(|fiber| fiber.name().map(str::to_owned)),
            spawned_at: fiber.map(|fiber| fiber.control.spawned_at().to_string()),
            duration,
            backtrace,
        };
        notify(&*self.listeners.stall, &stall);
    }

    /// Looks for rings of fibers. They last, so it need not be often.
    fn look_for_rings(&mut self) {
        if self.is_ring_reported || self.cluster.fiber_count() > DEADLOCKED_MAX {
            return;
        }
        let began = Instant::now();
        let is_any = Dump::is_any_ring(&self.cluster);
        self.rings_due = began + IDLE_PERIOD.max(began.elapsed() * RING_LOOKS_SHARE);
        if !is_any {
            return;
        }
        self.is_ring_reported = true;
        let dump = Dump::of(&self.cluster, true);
        notify(&*self.listeners.deadlock, &Deadlock { dump });
    }
}

/// SIGURG: it stands for out-of-band data, which is hardly used, and by default it is ignored.
const SIGNAL: i32 = libc::SIGURG;

const ADDRESSES_MAX: usize = 128;

/// Question to a thread, and where the signal handler leaves the answer; one thread is asked at a
/// time.
static ASKED: Question = Question(AtomicI32::new(0));
static FOUND: [AtomicUsize; ADDRESSES_MAX] = [const { AtomicUsize::new(0) }; ADDRESSES_MAX];
static FOUND_COUNT: AtomicUsize = AtomicUsize::new(0);

/// The thread that is asked what it is doing; 0 is none.
struct Question(AtomicI32);

/// The thread that was asked has begun to answer.
const ANSWERING: i32 = -1;

impl Question {
    fn ask(&self, thread: i32) {
        self.0.store(thread, Ordering::Release);
    }

    /// True if `thread` is asked; it answers then, and the question cannot be withdrawn.
    fn begin_answer(&self, thread: i32) -> bool {
        self.replace(thread, ANSWERING)
    }

    fn end_answer(&self) {
        self.0.store(0, Ordering::Release);
    }

    fn is_answered(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// `false` if `thread` is answering or has answered.
    fn withdraw(&self, thread: i32) -> bool {
        self.replace(thread, 0)
    }

    fn replace(&self, from: i32, to: i32) -> bool {
        let done = Ordering::AcqRel;
        let not = Ordering::Acquire;
        self.0.compare_exchange(from, to, done, not).is_ok()
    }
}

/// Disposition of the signal before this handler.
static FORMER: OnceLock<libc::sigaction> = OnceLock::new();

fn install_handler() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: plain data for sigaction(2). The handler's own comments argue that it is safe.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(SIGNAL, std::ptr::null(), &mut action);
            // Set before the handler is installed, which reads it.
            FORMER.get_or_init(|| action);
            action.sa_sigaction = note_addresses as *const () as usize;
            // On the alternate stack: the fiber's may be nearly used up.
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(SIGNAL, &action, std::ptr::null_mut());
        }
    });
}

/// The handler, on the stalled thread. No allocation and no lock: the unwinder of gcc 12 and later
/// finds its tables by `_dl_find_object(3)`, which is made to be called from here. A signal that
/// was not requested goes to the previous handler.
extern "C" fn note_addresses(number: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: errno is this thread's own; the interrupted code gets it back.
    let errno = unsafe { *libc::__errno_location() };
    if ASKED.begin_answer(thread_id()) {
        let mut count = 0;
        // SAFETY: one thread at a time is in here, because none is asked before this one has
        // answered. That is what the lock that this leaves out would ensure.
        unsafe {
            backtrace::trace_unsynchronized(|frame| {
                FOUND[count].store(frame.ip() as usize, Ordering::Relaxed);
                count += 1;
                count < ADDRESSES_MAX
            });
        }
        FOUND_COUNT.store(count, Ordering::Relaxed);
        ASKED.end_answer();
    } else if let Some(former) = FORMER.get() {
        signal::call(former, number, info, context);
    }
    // SAFETY: errno, as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Backtrace of a thread of this process, by names.
fn trace_thread(thread: i32) -> String {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    const PATIENCE: Duration = Duration::from_millis(200);
    let _one = lock(&ONE_AT_A_TIME);
    ASKED.ask(thread);
    // SAFETY: a signal with a handler, to a thread of this process (or to none, if it has ended).
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, SIGNAL) };
    let deadline = Instant::now() + PATIENCE;
    while !ASKED.is_answered() {
        // The signal may still arrive, and then finds no question.
        if Instant::now() > deadline && ASKED.withdraw(thread) {
            return "    (the thread did not answer: it may be in the kernel)\n".to_owned();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let count = FOUND_COUNT.load(Ordering::Relaxed);
    let addresses = FOUND[..count].iter().map(|found| found.load(Ordering::Relaxed));
    name_frames(addresses)
}

fn name_frames(addresses: impl Iterator<Item = usize>) -> String {
    let mut frames = Vec::new();
    for address in addresses {
        // The address is where the call returns to; the line is that of the call.
        let call = address.saturating_sub(1) as *mut std::ffi::c_void;
        backtrace::resolve(call, |symbol| {
            let name = symbol.name().map_or("?".to_owned(), |name| format!("{name:#}"));
            let place = symbol.filename().zip(symbol.lineno());
            let place = place.map(|(file, line)| format!("\n        at {}:{line}", file.display()));
            frames.push((name, place.unwrap_or_default()));
        });
    }
    // The handler's own frames come first, then the signal's, then the fiber's down to its entry.
    let is_ours = |name: &str| name.contains("note_addresses") || name.contains("__restore_rt");
    let first = frames.iter().rposition(|(name, _)| is_ours(name));
    let first = first.map_or(0, |at| at + 1);
    let end = frames.iter().position(|(name, _)| name.starts_with("fiber::switch::context::"));
    let end = end.unwrap_or(frames.len()).max(first);
    let shown = frames[first..end].iter();
    shown.map(|(name, place)| format!("    {name}{place}\n")).collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Seen (in review): the backtrace of one stalled fiber under the name of another, and two
    /// threads in the unwinder that takes no lock. Cause: a question was withdrawn while its
    /// thread was answering it, and the next thread was asked. Cure: the answer is waited for.
    #[test]
    fn answered_question_is_not_withdrawn() {
        let question = Question(AtomicI32::new(0));
        question.ask(7);
        assert!(!question.begin_answer(8), "thread 7 is asked");
        assert!(question.begin_answer(7));
        assert!(!question.withdraw(7) && !question.is_answered());
        question.end_answer();
        assert!(question.is_answered());
        question.ask(8);
        assert!(question.withdraw(8) && question.is_answered());
        assert!(!question.begin_answer(8), "the question was withdrawn");
    }
}
