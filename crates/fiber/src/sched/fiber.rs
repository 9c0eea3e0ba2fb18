//! The control block of a fiber, and how a fiber gives its processor away.
//!
//! ```text
//!              spawn                 first run                  suspend
//!   Unstarted ───────▶ in a lane ───────────────▶ running ◀──────────────▶ waiting
//!                      (may start                    │         resume      (on its home
//!                       anywhere)                    ▼                      processor, for ever)
//!                                                 finished
//! ```
//!
//! A fiber that has started stays on its processor: Rust code may hold pointers into the thread-local
//! storage of the kernel thread that it runs on (the compiler itself keeps them in registers across calls),
//! so a fiber that moved would be unsound. What crosses threads is the closure before it starts, and wake-ups.

use std::backtrace::Backtrace;
use std::borrow::Cow;
use std::cell::{Cell, OnceCell, UnsafeCell};
use std::fmt;
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::backend::{Op, OpCarrier};
use crate::base::counters::Counter;
use crate::sched::cancel::Cancellation;
use crate::sched::cluster::{Cluster, Message, ProcessorShared};
use crate::sched::local::Locals;
use crate::sched::processor::{self, Expiry, Processor};
use crate::sched::roster::Place;
use crate::sched::spans::{self, Spans};
use crate::sched::waiting::{self, WaitReason, Waiting};
use crate::sched::watch::Watch;
use crate::spawn::steps::{Flow, Frame};
use crate::switch::look::{Frame as WaitingFrame, Look, Phase};
use crate::switch::stack::{FiberStack, StackPlace};
use crate::switch::token::Token;

/// A handle to a fiber, like [`std::thread::Thread`].
#[derive(Clone)]
pub struct Fiber {
    pub(crate) control: Arc<Control>,
}

/// Everything the runtime knows of one fiber.
pub(crate) struct Control {
    id: u64,
    /// It may go on on any processor, whatever it has on its stack: see [`Builder::migratable`](crate::Builder::migratable).
    is_migratable: bool,
    is_steps: bool,
    /// It is ending and makes no fiber-local values any more. Touched where the fiber runs only.
    has_no_locals: Cell<bool>,
    /// Boxed: most have none.
    name: Option<Box<Cow<'static, str>>>,
    spawned_at: &'static Location<'static>,
    token: Token,
    /// Where it started; null before. Wake-ups from other threads go there.
    home: AtomicPtr<ProcessorShared>,
    /// Of a fiber that runs steps.
    steps: UnsafeCell<Option<Box<dyn Frame>>>,
    context: UnsafeCell<Option<Context>>,
    yielder: Cell<*const Yielder<Resume, Suspend>>,
    watch: Watch,
    place: Place,
    waiting: Waiting,
    cancellation: Cancellation,
    /// Touched where the fiber runs only.
    seldom: OnceCell<Box<Seldom>>,
    /// The spans that it is inside of: left and entered again at each switch.
    spans: Spans,
    /// Whose stack it is on, where that has come to: for those who look.
    look: Look,
    /// Where it is: changed only by who has the fiber in hand. Kept by one of the two below.
    cluster: AtomicPtr<Cluster>,
    /// Keeps the shared halves of the processors alive as long as anybody may unpark this fiber.
    birthplace: Arc<Cluster>,
    /// Touched only by who has the fiber in hand.
    travels: UnsafeCell<Option<Box<Travels>>>,
}

/// Of a fiber that has been in other clusters than its first, or is about to be.
struct Travels {
    /// Where it goes when it may.
    target: Option<Arc<Cluster>>,
    /// Where it has been, each once: as [`Control::birthplace`].
    visited: Vec<Arc<Cluster>>,
}

/// What few fibers need.
#[derive(Default)]
struct Seldom {
    /// Of [`timeout`] and [`deadline`].
    deadline: Cell<Option<Instant>>,
    locals: Locals,
    /// On its way from the fiber to the processor that asked.
    traced: Cell<Option<Box<Backtrace>>>,
}

// SAFETY: `steps`, `context`, `travels` and the cells are touched only by the processor that starts
// the fiber and then keeps it; a queue hands a control block to one processor at a time. The rest is
// atomic or never changes.
unsafe impl Sync for Control {}
// SAFETY: as above; what a fiber runs is `Send`, and no frame of it moves between threads (but by its author's promise).
unsafe impl Send for Control {}

/// What a fiber runs.
pub(crate) enum Body {
    /// A closure, which lies at the base of its stack until it runs there.
    Once(Context, StackPlace),
    /// Steps, each on any stack.
    Steps(Box<dyn Frame>),
}

impl Body {
    pub(crate) fn once<F: FnOnce() + Send + 'static>(stack: FiberStack, f: F) -> Body {
        if size_of::<F>() > CLOSURE_LEN_MAX {
            let boxed: Box<dyn FnOnce() + Send> = Box::new(f);
            return Body::once(stack, boxed);
        }
        let place = stack.place();
        let context = Coroutine::with_stack(stack, move |yielder, _| {
            processor::here(|processor| {
                let fiber = processor.running().expect("this very fiber runs");
                fiber.control().yielder.set(yielder);
            });
            f();
            Flow::Done
        });
        Body::Once(context, place)
    }
}

/// Closures up to this many bytes lie at the base of the fiber's stack, larger ones on the heap. corosensei takes 1 KiB, with
/// what is put around the closure here.
const CLOSURE_LEN_MAX: usize = 512;

pub(crate) type Context = Coroutine<Resume, Suspend, Flow, FiberStack>;

/// What a fiber is given the processor for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resume {
    /// To go on.
    GoOn,
    /// To say where it is, and to wait on.
    Trace,
}

/// What a fiber asks of its processor when it gives it away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suspend {
    /// Run me again after the others.
    Yield,
    /// Run me when somebody unparks me, from any thread.
    Park,
    /// Somebody on this processor (a completion, a timer) has my address and makes me ready.
    Wait,
    /// Run me in the cluster that I named as my target.
    Move,
}

/// What came of running a fiber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ran {
    Suspended(Suspend),
    /// A step has ended, and this comes next.
    Stepped(Flow),
    Finished,
}

/// A fiber that is not finished, as queues and operations hold it.
///
/// INVARIANT: the runtime owns one count of the control block from spawn to finish, so the address is
/// good; and the fiber is in one place only: running, in one queue, or named by one waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FiberRef(NonNull<Control>);

// SAFETY: it is a counted pointer to a `Sync` control block; see the invariant.
unsafe impl Send for FiberRef {}

impl Control {
    pub(crate) fn new(
        cluster: Arc<Cluster>,
        name: Option<Cow<'static, str>>,
        spawned_at: &'static Location<'static>,
        is_migratable: bool,
        span: spans::Chosen,
        body: Body,
    ) -> Arc<Control> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let look = Look::new();
        let (steps, context) = match body {
            Body::Once(context, place) => {
                look.note_stack(place);
                (None, Some(context))
            }
            Body::Steps(steps) => (Some(steps), None),
        };
        Arc::new(Control {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            is_migratable,
            is_steps: steps.is_some(),
            has_no_locals: Cell::new(false),
            name: name.map(Box::new),
            spawned_at,
            token: Token::new(),
            home: AtomicPtr::new(std::ptr::null_mut()),
            steps: UnsafeCell::new(steps),
            context: UnsafeCell::new(context),
            yielder: Cell::new(std::ptr::null()),
            watch: Watch::default(),
            place: Place::default(),
            waiting: Waiting::default(),
            cancellation: Cancellation::default(),
            seldom: OnceCell::new(),
            spans: Spans::new(span),
            look,
            cluster: AtomicPtr::new(Arc::as_ptr(&cluster).cast_mut()),
            birthplace: cluster,
            travels: UnsafeCell::new(None),
        })
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_ref().map(|name| &***name)
    }

    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// What it waits for.
    pub(crate) fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    #[inline]
    pub(crate) fn cancellation(&self) -> &Cancellation {
        &self.cancellation
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn locals(&self) -> Option<&Locals> {
        Some(&self.seldom.get()?.locals)
    }

    /// `None` once the fiber is ending.
    pub(crate) fn locals_or_new(&self) -> Option<&Locals> {
        (!self.has_no_locals.get()).then(|| &self.seldom().locals)
    }

    pub(crate) fn end_locals(&self) {
        self.has_no_locals.set(true);
    }

    fn seldom(&self) -> &Seldom {
        self.seldom.get_or_init(Box::default)
    }

    pub(crate) fn is_home(&self, here: &ProcessorShared) -> bool {
        std::ptr::eq(self.home.load(Ordering::SeqCst), here)
    }

    /// Sends a message to the processor where the fiber lives. Unstarted fibers live nowhere: nobody is told.
    pub(crate) fn tell_home(&self, message: Message) {
        let home = self.home.load(Ordering::SeqCst);
        if !home.is_null() {
            // SAFETY: a shared half lives as long as the cluster, which the control block holds.
            unsafe { (*home).send(message) };
        }
    }

    /// Where it is.
    pub(crate) fn cluster(&self) -> &Cluster {
        // SAFETY: the control block holds every cluster that this ever pointed to.
        unsafe { &*self.cluster.load(Ordering::Acquire) }
    }

    /// Whether it runs [`Steps`](crate::Steps).
    pub(crate) fn is_steps(&self) -> bool {
        self.is_steps
    }

    /// If `address` lies in the guard page of the fiber's stack: the length of that stack.
    pub(crate) fn overflowed_at(&self, address: usize) -> Option<usize> {
        let stack = self.look.stack()?;
        (stack.guard().contains(&address)).then_some(stack.usable().len())
    }

    pub(crate) fn look(&self) -> &Look {
        &self.look
    }

    pub(crate) fn spans(&self) -> &Spans {
        &self.spans
    }

    /// Whether another processor may be about to run it even while it waits with frames.
    pub(crate) fn is_migratable(&self) -> bool {
        self.is_migratable
    }

    /// The processor that it started on or took its last step on.
    pub(crate) fn home(&self) -> *const ProcessorShared {
        self.home.load(Ordering::SeqCst)
    }

    pub(crate) fn spawned_at(&self) -> &'static Location<'static> {
        self.spawned_at
    }
}

impl FiberRef {
    /// Hands one count of the control block to the runtime.
    pub(crate) fn new(control: Arc<Control>) -> FiberRef {
        let address = Arc::into_raw(control).cast_mut();
        FiberRef(NonNull::new(address).expect("an Arc is never null"))
    }

    /// For as long as the handle is there.
    pub(crate) fn of(fiber: &Fiber) -> FiberRef {
        FiberRef(NonNull::from(&*fiber.control))
    }

    pub(crate) fn control(&self) -> &Control {
        // SAFETY: see the invariant of FiberRef.
        unsafe { self.0.as_ref() }
    }

    pub(crate) fn handle(self) -> Fiber {
        // SAFETY: the pointer came from Arc::into_raw, and the runtime's own count keeps it alive
        // while a new one is made.
        let control = unsafe {
            Arc::increment_strong_count(self.0.as_ptr());
            Arc::from_raw(self.0.as_ptr())
        };
        Fiber { control }
    }

    /// Gives the runtime's count back: the fiber is finished.
    pub(crate) fn release(self) {
        // SAFETY: the pointer came from Arc::into_raw, and this is the end of the invariant.
        drop(unsafe { Arc::from_raw(self.0.as_ptr()) });
    }

    /// Runs the fiber on this processor until it suspends or finishes.
    pub(crate) fn run(self, processor: &Processor, started: &Counter) -> Ran {
        // SAFETY: only the processor that runs a fiber touches its context (invariant of FiberRef).
        let context = unsafe { &mut *self.control().context.get() };
        let is_new = self.control().home.load(Ordering::Relaxed).is_null();
        let has_frames = context.is_some();
        if is_new || !has_frames || self.control().is_migratable {
            self.settle(processor, started);
        }
        if !has_frames {
            *context = self.begin_step(processor);
        } else if is_new {
            processor.pin(self);
        }
        let Some(running) = context.as_mut() else {
            return Ran::Finished; // There was no stack to be had.
        };
        let look = self.control().look();
        look.enter(Phase::Running);
        let outcome = self.control().spans.around(processor, || {
            let outcome = running.resume(Resume::GoOn);
            self.control().cluster().process.abort_if_left();
            outcome
        });
        match outcome {
            CoroutineResult::Yield(suspend) => {
                look.enter(match suspend {
                    Suspend::Yield | Suspend::Move => Phase::Ready,
                    Suspend::Park | Suspend::Wait => Phase::Waiting,
                });
                Ran::Suspended(suspend)
            }
            CoroutineResult::Return(flow) => {
                look.forget_stack();
                processor.unpin(self);
                let ended = context.take().expect("it just ran");
                processor.stacks.give(ended.into_stack());
                match flow {
                    Flow::Done => {
                        look.enter(Phase::Finished);
                        Ran::Finished
                    }
                    flow => {
                        look.enter(Phase::BetweenSteps);
                        Ran::Stepped(flow)
                    }
                }
            }
        }
    }

    /// The fiber is at home on this processor from now on: who cancels it, or wakes it, finds it here.
    fn settle(self, processor: &Processor, started: &Counter) {
        let home: *const ProcessorShared = processor.shared();
        // Sequentially consistent, for `Fiber::cancel`: it sees where we are, or we see its flag.
        let before = self.control().home.swap(home.cast_mut(), Ordering::SeqCst);
        if before.is_null() {
            started.add(1);
        }
    }

    /// Makes the frames of a fiber between two steps. `None` if there is no memory for the stack: such a fiber is finished.
    fn begin_step(self, processor: &Processor) -> Option<Context> {
        let abandon = |error| {
            // Destructors of the user's run here, on the processor's own stack: they must not suspend.
            processor.set_current(None);
            self.steps().abandon(error);
        };
        let stack = processor.stacks.take().map_err(abandon).ok()?;
        self.control().look.note_stack(stack.place());
        processor.pin(self);
        Some(Coroutine::with_stack(stack, move |yielder, _| {
            self.control().yielder.set(yielder);
            let flow = self.steps().step();
            // The next step may be on another thread.
            crate::sched::local::reset_here();
            flow
        }))
    }

    /// What a fiber between two steps, or in one, runs. While it is in one the kernel has nothing of the frame: its
    /// operation is complete.
    fn steps<'a>(self) -> &'a mut dyn Frame {
        // SAFETY: only the processor that runs a fiber, or begins its wait, touches its steps (invariant of FiberRef), and
        // none of our callers holds on to it. They live as long as the control block.
        let steps = unsafe { &mut *self.control().steps.get() };
        &mut **steps.as_mut().expect("a closure has no steps")
    }

    /// Gives a fiber that waits the processor for as long as it takes to say where it is. Only by its own processor, and
    /// not from inside a fiber.
    pub(crate) fn trace(self) -> Option<Backtrace> {
        let control = self.control();
        // SAFETY: as in `run`. It waits, so it has frames and does not run.
        let context = unsafe { &mut *control.context.get() }.as_mut()?;
        let resumed = context.resume(Resume::Trace);
        assert!(
            matches!(resumed, CoroutineResult::Yield(_)),
            "a fiber that only says where it is goes on waiting"
        );
        control.seldom.get()?.traced.take().map(|traced| *traced)
    }

    /// Names the cluster where it goes when its step is over, or it suspends for this; by the fiber itself.
    pub(crate) fn set_target(self, target: Option<Arc<Cluster>>) {
        // SAFETY: the fiber runs, so its travels are its own, and nothing below calls anybody who looks at them.
        let travels = unsafe { &mut *self.control().travels.get() };
        if let Some(travels) = travels {
            travels.target = target;
        } else if target.is_some() {
            let visited = Vec::new();
            *travels = Some(Box::new(Travels { target, visited }));
        }
    }

    /// Whether it has named one. By the processor that has just run it.
    #[inline]
    pub(crate) fn has_target(self) -> bool {
        // SAFETY: the fiber is in the caller's hand (invariant).
        let travels = unsafe { &*self.control().travels.get() };
        travels
            .as_ref()
            .is_some_and(|travels| travels.target.is_some())
    }

    pub(crate) fn take_target(self) -> Option<Arc<Cluster>> {
        // SAFETY: as in `has_target`.
        let travels = unsafe { &mut *self.control().travels.get() };
        travels.as_mut()?.target.take()
    }

    /// It is in this cluster from now on. By the processor that has run it elsewhere.
    pub(crate) fn enter(self, cluster: &Arc<Cluster>) {
        // SAFETY: as in `has_target`.
        let travels = unsafe { &mut *self.control().travels.get() };
        let visited = &mut travels.as_mut().expect("it had a target").visited;
        let birthplace = &self.control().birthplace;
        let is_kept = visited
            .iter()
            .chain([birthplace])
            .any(|kept| Arc::ptr_eq(kept, cluster));
        if !is_kept {
            visited.push(Arc::clone(cluster));
        }
        let address = Arc::as_ptr(cluster).cast_mut();
        self.control().cluster.store(address, Ordering::Release);
    }

    /// After a step: begins the wait for the next one's input. `false` if there is nothing to wait for, so that the caller makes
    /// the fiber ready, when its steps are borrowed no longer.
    pub(crate) fn begin_wait(self, processor: &Processor) -> bool {
        self.steps().begin_wait(self, processor)
    }

    /// After a step: the wait for the next one's input is to begin where the fiber is run next.
    pub(crate) fn postpone_wait(self) {
        self.steps().postpone_wait();
    }

    /// After the fiber suspended with [`Suspend::Park`]: parks it, or says that it was unparked in
    /// the meantime and is ready.
    pub(crate) fn park_after_switch(self) -> bool {
        self.control().token.park()
    }

    /// Whether any processor may run it next, once it has started: it has no frames, because it is between two steps, or its
    /// author has promised that they may move. Asked by whoever is about to make it ready.
    #[inline]
    pub(crate) fn is_movable(self) -> bool {
        let control = self.control();
        // By the mark and not by `context`: the fiber's home may be tracing it just now, and has that borrowed.
        control.is_migratable || control.is_steps && control.look.stack().is_none()
    }
}

impl Fiber {
    /// A number that no other fiber of this process had or gets.
    pub fn id(&self) -> u64 {
        self.control.id
    }

    /// The name that its [`Builder`](crate::Builder) gave it.
    pub fn name(&self) -> Option<&str> {
        self.control.name()
    }

    /// Lets the fiber's [`park`] return, now or at its next call. From any thread.
    pub fn unpark(&self) {
        if self.control.token.unpark() {
            self.make_ready();
        }
    }

    /// Only the caller that moved it from parked to ready comes here, so it enters one queue.
    fn make_ready(&self) {
        let fiber = FiberRef::of(self);
        // SAFETY: a parked fiber has started, so `home` was set, to a shared half that lives as long
        // as the cluster, which the control block holds.
        let home = unsafe { &*self.control.home.load(Ordering::Acquire) };
        if fiber.is_movable() {
            self.control.cluster().push_movable(fiber, home.index);
        } else {
            home.push_ready(fiber);
        }
    }
}

impl fmt::Debug for Fiber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fiber")
            .field("id", &self.id())
            .field("name", &self.name())
            .field("spawned_at", &format_args!("{}", self.control.spawned_at))
            .finish()
    }
}

/// The fiber that calls, or `None` on a plain thread.
pub fn current() -> Option<Fiber> {
    processor::with_current(|_, fiber| fiber.handle())
}

/// Gives the other ready fibers of this processor their turn. On a plain thread,
/// [`std::thread::yield_now`].
pub fn yield_now() {
    match processor::with_current(|_, fiber| fiber) {
        Some(fiber) => suspend_fiber(fiber, Suspend::Yield),
        None => std::thread::yield_now(),
    }
}

/// Operations that a fiber does without suspending before it gives way.
const UNSUSPENDED_MAX: u8 = 32;

/// After an operation that did not have to wait: a peer that is always ready must not keep the processor from the other
/// fibers.
pub(crate) fn give_way() {
    let due =
        processor::with_current(|processor, _| processor.count_unsuspended() > UNSUSPENDED_MAX);
    if due == Some(true) {
        yield_now();
    }
}

/// Waits until somebody calls [`Fiber::unpark`]; returns at once if somebody did since the last
/// `park`. May return for no reason, as [`std::thread::park`] may. On a plain thread it is just that.
pub fn park() {
    match processor::with_current(|_, fiber| fiber) {
        Some(fiber) if !fiber.take_token() => {
            let _noted = waiting::on_unless_noted(fiber, WaitReason::Park);
            suspend_fiber(fiber, Suspend::Park);
        }
        Some(_) => {}
        // A fiber that unwinds may not suspend (see processor::with_current). Returning for no reason is allowed.
        None if processor::is_here() => std::thread::yield_now(),
        None => std::thread::park(),
    }
}

/// As [`park`], but not longer than `timeout`.
pub fn park_timeout(timeout: Duration) {
    let Some(fiber) = processor::with_current(|_, fiber| fiber) else {
        return std::thread::park_timeout(timeout);
    };
    if fiber.take_token() {
        return;
    }
    let deadline = after(timeout);
    let handle = fiber.handle();
    let _noted = waiting::on_unless_noted(fiber, WaitReason::Park);
    let (timer, number, keeper) = processor::here(|processor| {
        let timer = processor.set_timer(deadline, Expiry::Unpark(handle));
        (timer, processor.id, NonNull::from(processor.shared()))
    });
    suspend(Suspend::Park);
    // SAFETY: it is of a cluster that the fiber has been in, which its control block keeps.
    let keeper = unsafe { keeper.as_ref() };
    processor::here(|processor| processor.cancel_timer(keeper, number, timer));
}

/// As [`park`], but not past the deadline of [`timeout`].
pub(crate) fn park_until_deadline() {
    match left_until_deadline() {
        Some(left) => park_timeout(left),
        None => park(),
    }
}

/// How long it is until the deadline of [`timeout`], if there is one.
pub(crate) fn left_until_deadline() -> Option<Duration> {
    let deadline = processor::with_current(|_, fiber| fiber.deadline()).flatten()?;
    Some(deadline.saturating_duration_since(Instant::now()))
}

/// Sleeps for at least `duration` (rounded up to milliseconds) without holding the processor; less if the fiber is
/// [cancelled](Fiber::cancel), and not past the deadline of [`timeout`]. On a plain thread,
/// [`std::thread::sleep`].
pub fn sleep(duration: Duration) {
    let Some(fiber) = processor::with_current(|_, fiber| fiber) else {
        return std::thread::sleep(duration);
    };
    if fiber.control().cancellation().is_due() {
        // A loop around a sleep that fails to look must not keep the processor from the others.
        return yield_now();
    }
    let until = earlier(Some(after(duration)), fiber.deadline());
    loop {
        let op = Op::carried_by(OpCarrier::Watch, fiber);
        processor::here(|processor| op.watch(processor, until));
        op.wait(WaitReason::Timer);
        if !op.is_relocated() {
            return;
        }
    }
}

/// Runs `f` with a deadline: waits that it is in `duration` from now, or begins later, fail with
/// [`TimedOut`](std::io::ErrorKind::TimedOut). Nested deadlines only shorten. Fibers that `f` spawns do not inherit it. On a
/// plain thread `f` just runs.
///
/// | bounded | not bounded |
/// |---|---|
/// | all of [`net`](crate::net), pipes, [`Child::wait`](crate::process::Child::wait), [`Signals::wait`](crate::signal::Signals::wait) | looking up names that are borrowed: see [`resolve_name`](crate::net::resolve_name) |
/// | [`JoinHandle::wait`](crate::JoinHandle::wait), [`JoinSet::wait_next`](crate::JoinSet::wait_next), [`checkpoint`](crate::checkpoint) | [`JoinHandle::join`](crate::JoinHandle::join), [`JoinSet::join_next`](crate::JoinSet::join_next), the end of [`scope`](crate::scope) |
/// | [`sync`](crate::sync) with a time-out, [`sleep`] (returns early) | `sync` without, [`park`] |
/// | [`try_offload`](crate::try_offload) | [`offload`](crate::offload()) |
/// | [`fs`](crate::fs) on a ring, until the disk has begun | `fs` with epoll |
pub fn timeout<R>(duration: Duration, f: impl FnOnce() -> R) -> R {
    deadline(after(duration), f)
}

/// As [`timeout`], with the time at which it is over.
pub fn deadline<R>(at: Instant, f: impl FnOnce() -> R) -> R {
    struct Restore<'a>(&'a Control, Option<Instant>);
    impl Drop for Restore<'_> {
        fn drop(&mut self) {
            self.0.seldom().deadline.set(self.1);
        }
    }
    let Some(fiber) = processor::with_current(|_, fiber| fiber) else {
        return f();
    };
    let of_fiber = &fiber.control().seldom().deadline;
    let outer = of_fiber.get();
    let _restore = Restore(fiber.control(), outer);
    of_fiber.set(earlier(outer, Some(at)));
    f()
}

/// Runs `f` on the big stack of the processor instead of the fiber's own, for code that needs much stack and
/// does not wait: pages that a deep call touches stay with a fiber, and ten thousand of them add up.
///
/// Inside `f` nothing suspends: it is as on a plain thread, so what waits blocks the processor. On a plain thread
/// `f` just runs.
pub fn on_processor_stack<R>(f: impl FnOnce() -> R) -> R {
    /// The fiber is on its own stack again, also after a panic.
    struct Back(FiberRef);
    impl Drop for Back {
        fn drop(&mut self) {
            // In the child of a fork there is no processor any more.
            if processor::is_here() {
                processor::here(|processor| processor.set_current(Some(self.0)));
            }
        }
    }
    let Some(fiber) = processor::with_current(|processor, fiber| {
        processor.set_current(None);
        fiber
    }) else {
        return f();
    };
    let _back = Back(fiber);
    // SAFETY: the yielder lives at the bottom of this running fiber's own stack.
    let yielder = unsafe { &*fiber.control().yielder.get() };
    let call = SameThread(f);
    yielder.on_parent_stack(move || call.make())
}

/// A call that `on_parent_stack` makes on this very thread.
struct SameThread<F>(F);

// SAFETY: the bound is there to keep yielders out of the call, which must not suspend. In it no fiber is
// current, so `suspend`, the only user of yielders, is out of reach; and no thread is crossed.
unsafe impl<F> Send for SameThread<F> {}

impl<F: FnOnce() -> R, R> SameThread<F> {
    fn make(self) -> R {
        (self.0)()
    }
}

/// The time after `duration`. What no clock can show is as good as a century.
pub(crate) fn after(duration: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    let now = Instant::now();
    now.checked_add(duration).unwrap_or_else(|| now + CENTURY)
}

/// The earlier of two deadlines, where `None` is never.
pub(crate) fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

impl FiberRef {
    /// The deadline that [`timeout`] set.
    pub(crate) fn deadline(self) -> Option<Instant> {
        self.control().seldom.get()?.deadline.get()
    }

    /// In the fiber: says where it is.
    #[cold]
    fn trace_here(self) {
        let trace = Box::new(Backtrace::force_capture());
        self.control().seldom().traced.set(Some(trace));
    }

    fn take_token(self) -> bool {
        self.control().token.take()
    }
}

/// Gives the processor away. The caller is a fiber, and somebody will make it ready again.
pub(crate) fn suspend(how: Suspend) {
    let fiber = processor::with_current(|_, fiber| fiber).expect("suspended outside a fiber");
    suspend_fiber(fiber, how);
}

/// As [`suspend`]; `fiber` is the caller.
///
/// Not inlined: after the switch nothing computed from thread-local storage before may be used, and a
/// call boundary is what keeps the compiler from doing so in the frames above.
#[inline(never)]
fn suspend_fiber(fiber: FiberRef, how: Suspend) {
    let yielder = fiber.control().yielder.get();
    let frame = WaitingFrame::here();
    let _shown = fiber.control().look.show(&frame);
    // SAFETY: the yielder lives at the bottom of the running fiber's own stack.
    while unsafe { (*yielder).suspend(how) } == Resume::Trace {
        fiber.trace_here();
    }
}
