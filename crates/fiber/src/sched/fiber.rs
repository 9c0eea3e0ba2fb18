//! The control block of a fiber, and how a fiber gives its processor away.
//!
//! ```text
//!              spawn                  first run              suspend
//!   Unstarted ───────▶ in a run queue ───────────▶ running ◀──────────────▶ waiting
//!                      (may start                     │         resume      (pinned: on its
//!                       anywhere)                     ▼                      home processor)
//!                                                  finished
//! ```
//!
//! A pinned fiber that has started stays on its processor: Rust code may hold pointers into the
//! thread-local storage of the kernel thread that it runs on (the compiler itself keeps them in
//! registers across calls), so a fiber that moved could be unsound. What crosses threads is the
//! closure before it starts, and wake-ups. Migratable and stackless fibers may move.

use std::backtrace::Backtrace;
use std::borrow::Cow;
use std::cell::{Cell, OnceCell, UnsafeCell};
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use timer::Tick;

use crate::base::cancelled::Cancellation;
use crate::base::stamp;
use crate::sched::cluster::{Cluster, Message, ProcessorShared};
pub(crate) use crate::sched::fiber_ref::FiberRef;
use crate::sched::inbox::Next;
use crate::sched::watch::Watch;
use crate::switch::context::Context;
use crate::switch::locals::Locals;
use crate::switch::look::{FiberState, Look};
use crate::switch::reason::Waiting;
use crate::switch::stack::StackPlace;
use crate::switch::token::Token;

/// A handle to a fiber, like [`std::thread::Thread`].
#[derive(Clone)]
pub struct Fiber {
    pub(crate) control: Arc<Control>,
}

/// Everything the runtime knows of one fiber. The fields that a switch touches come first.
#[repr(C)]
pub(crate) struct Control {
    pub(super) context: Context,
    /// Processor where it started; null before. Wake-ups from other threads go there.
    pub(super) home: AtomicPtr<ProcessorShared>,
    /// The fiber before it in an inbox: see [`Inbox`](crate::sched::inbox::Inbox).
    pub(super) next: Next,
    /// State for observers.
    pub(super) look: Look,
    pub(super) token: Token,
    /// True if it may continue on any processor, whatever is on its stack: see
    /// [`Builder::migratable`](crate::Builder::migratable).
    is_migratable: bool,
    is_stackless: bool,
    /// True if it ends, so makes no fiber-local values. Touched where the fiber runs only.
    has_no_locals: Cell<bool>,
    cancellation: Cancellation,
    /// Slot in its shard of the cluster's registry.
    pub(super) registry_slot: AtomicU32,
    id: u64,
    waiting: Waiting,
    /// Touched where the fiber runs only.
    rare: OnceCell<Box<RareState>>,
    watch: Watch<ProcessorShared>,
    /// Value of a stackless fiber.
    stackless: UnsafeCell<Option<Box<dyn StacklessBody>>>,
    /// Keeps the shared halves of the processors alive as long as anything may unpark this fiber.
    cluster: Arc<Cluster>,
    name: Option<Arc<Cow<'static, str>>>,
    spawned_at: &'static Location<'static>,
    /// Time of the spawn: see [`stamp`].
    pub(super) spawned: u64,
}

/// State that few fibers need.
#[derive(Default)]
pub(super) struct RareState {
    /// Deadline of [`timeout`](crate::timeout) and [`deadline`](crate::deadline).
    pub(super) deadline: Cell<Option<Instant>>,
    locals: Locals,
    /// Backtrace on its way from the fiber to the processor that asked.
    pub(super) traced: Cell<Option<Box<Backtrace>>>,
}

// SAFETY: `stackless`, `context` and the cells are touched only by the processor that
// starts the fiber and then keeps it; a queue hands a control block to one processor at a time. The
// rest is atomic or never changes.
unsafe impl Sync for Control {}
// SAFETY: as above; what a fiber runs is `Send`, and no frame of it moves between threads (but by
// its author's promise).
unsafe impl Send for Control {}

/// Code of a fiber.
pub(crate) enum Body {
    /// A closure, which lies at the base of its stack until it runs there.
    Once(Context),
    /// A value whose steps run each on any stack.
    Stackless(Box<dyn StacklessBody>),
}

/// Continuation after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Wait for input; then [`Stackless::received`](crate::Stackless::received).
    Receive,
    /// Let others have their turn; then [`Stackless::resumed`](crate::Stackless::resumed).
    Yield,
    /// Wait for a call of [`Fiber::unpark`](crate::Fiber::unpark); then
    /// [`Stackless::resumed`](crate::Stackless::resumed). As [`park`](crate::park), it may end for
    /// no reason.
    Park,
    /// The fiber is finished.
    Done,
}

/// A stackless fiber's value, as the runtime holds it.
pub(crate) trait StacklessBody: Send {
    /// Runs the next step on the fiber's stack.
    fn step(&mut self) -> Flow;

    /// Begins the wait for the next one, on the processor's own stack; `false` if there is nothing
    /// to wait for. It does not make the fiber ready: another processor would have the value while
    /// `self` is still borrowed.
    fn begin_wait(&mut self, fiber: FiberRef) -> bool;

    /// Leaves the wait for the next step to the processor that runs the fiber next.
    fn postpone_wait(&mut self);

    /// Ends without a step, and outside of the fiber: there is no memory for a stack.
    fn abandon(&mut self, error: io::Error);
}

/// Word that comes with a switch: resume.
pub(super) const RESUME: usize = 0;

/// Word that comes with a switch: report the backtrace, and continue to wait.
pub(super) const TRACE: usize = 1;

/// Request of a fiber that gives its processor away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suspend {
    /// Run the fiber again after the others.
    Yield,
    /// Run the fiber when it is unparked, from any thread.
    Park,
    /// Something on this processor (a completion, a timer) has its address and makes it ready.
    Wait,
}

/// State in which a fiber has left the processor to the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunOutcome {
    Suspended(Suspend),
    /// A step has ended, or the whole fiber.
    Ended(Flow),
}

impl Control {
    pub(crate) fn new(
        cluster: Arc<Cluster>,
        name: Option<Arc<Cow<'static, str>>>,
        spawned_at: &'static Location<'static>,
        is_migratable: bool,
        body: Body,
    ) -> Arc<Control> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let (stackless, context) = match body {
            Body::Once(context) => (None, context),
            Body::Stackless(value) => (Some(value), Context::without_stack()),
        };
        Arc::new(Control {
            context,
            home: AtomicPtr::new(std::ptr::null_mut()),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            look: Look::new(),
            token: Token::new(),
            next: Next::default(),
            is_migratable,
            is_stackless: stackless.is_some(),
            has_no_locals: Cell::new(false),
            waiting: Waiting::default(),
            cancellation: Cancellation::default(),
            rare: OnceCell::new(),
            watch: Watch::default(),
            stackless: UnsafeCell::new(stackless),
            cluster,
            registry_slot: AtomicU32::new(0),
            name,
            spawned_at,
            spawned: stamp::now(),
        })
    }

    /// Time since it was spawned.
    pub(crate) fn age(&self) -> Duration {
        stamp::since(self.spawned)
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_ref().map(|name| &***name)
    }

    pub(crate) fn watch(&self) -> &Watch<ProcessorShared> {
        &self.watch
    }

    /// The operation that the fiber waits for on processor `here`, the caller's, and its deadline.
    /// Only this thread completes it and then ends the watch, so the operation stays valid until
    /// then.
    pub(crate) fn operation_here(&self, here: &ProcessorShared) -> Option<(*const (), Tick)> {
        // In this order: the fiber was at home there before it began.
        let operation = self.watch.operation()?;
        self.is_home(here).then_some(operation)
    }

    /// The wait of the fiber, for a dump.
    pub(crate) fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    #[inline]
    pub(crate) fn cancellation(&self) -> &Cancellation {
        &self.cancellation
    }

    pub(crate) fn locals(&self) -> Option<&Locals> {
        Some(&self.rare.get()?.locals)
    }

    /// `None` once the fiber is ending.
    pub(crate) fn locals_or_new(&self) -> Option<&Locals> {
        (!self.has_no_locals.get()).then(|| &self.rare().locals)
    }

    pub(crate) fn end_locals(&self) {
        self.has_no_locals.set(true);
    }

    pub(super) fn rare(&self) -> &RareState {
        self.rare.get_or_init(Box::default)
    }

    pub(crate) fn is_home(&self, here: &ProcessorShared) -> bool {
        std::ptr::eq(self.home.load(Ordering::SeqCst), here)
    }

    /// Sends a message to the fiber's home processor, if the fiber has started and so has a home.
    pub(crate) fn send_home(&self, message: impl FnOnce() -> Message) {
        let home = self.home.load(Ordering::SeqCst);
        if !home.is_null() {
            // SAFETY: a shared half lives as long as the cluster, which the control block holds.
            unsafe { (*home).send(message()) };
        }
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Length of the fiber's stack, if `address` lies in its guard page.
    pub(crate) fn overflowed_at(&self, address: usize) -> Option<usize> {
        let stack = self.stack()?;
        (stack.guard().contains(&address)).then_some(stack.usable().len())
    }

    #[inline]
    pub(crate) fn look(&self) -> &Look {
        &self.look
    }

    /// The stack that it has now. No lock, no allocation: the overflow handler asks.
    pub(crate) fn stack(&self) -> Option<StackPlace> {
        self.context.stack()
    }

    /// Instruction, stack and base pointer of the frame that waits, for a debugger that has stopped
    /// the world.
    pub(crate) fn waiting_frame(&self) -> Option<(usize, usize, usize)> {
        let waits = matches!(self.look.state(), FiberState::Ready | FiberState::Waiting);
        (waits && self.stack().is_some()).then(|| self.context.waiting_frame())
    }

    /// True if its stack has room for an unwinder beneath the frame that waits.
    pub(crate) fn has_space_to_trace(&self) -> bool {
        self.context.has_space_to_trace()
    }

    /// True if another processor may be about to run it even while it waits with frames.
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
        let address = NonNull::new(Arc::into_raw(control).cast_mut());
        FiberRef::at(address.expect("an Arc is never null").cast())
    }

    /// A reference that is valid as long as the handle exists.
    pub(crate) fn of(fiber: &Fiber) -> FiberRef {
        FiberRef::at(NonNull::from(&*fiber.control).cast())
    }

    #[inline(always)]
    pub(crate) fn control(&self) -> &Control {
        // SAFETY: see the invariant of FiberRef. Its address is that of a control block, because
        // only `new` and `of` make one.
        unsafe { self.control_ptr().as_ref() }
    }

    #[inline(always)]
    fn control_ptr(self) -> NonNull<Control> {
        self.address().cast()
    }

    pub(crate) fn handle(self) -> Fiber {
        // SAFETY: the pointer came from Arc::into_raw, and the runtime's own count keeps it alive
        // while a new one is made.
        let control = unsafe {
            Arc::increment_strong_count(self.control_ptr().as_ptr());
            Arc::from_raw(self.control_ptr().as_ptr())
        };
        Fiber { control }
    }

    /// Handle without a count of its own, for a caller that knows the fiber to stay meanwhile.
    pub(crate) fn borrow_handle(self) -> ManuallyDrop<Fiber> {
        // SAFETY: the pointer came from Arc::into_raw, and the count that this would give back is
        // never given back.
        let control = unsafe { Arc::from_raw(self.control_ptr().as_ptr()) };
        ManuallyDrop::new(Fiber { control })
    }

    /// Gives the runtime's count back: the fiber is finished.
    pub(crate) fn release(self) {
        // SAFETY: the pointer came from Arc::into_raw, and this is the end of the invariant.
        drop(unsafe { Arc::from_raw(self.control_ptr().as_ptr()) });
    }

    /// Value of a stackless fiber, between two steps or in one. While it is in one the kernel has
    /// nothing of the frame: its operation is complete.
    pub(super) fn stackless<'a>(self) -> &'a mut dyn StacklessBody {
        // SAFETY: only the processor that runs a fiber, or begins its wait, touches its value
        // (invariant of FiberRef), and no caller keeps it. Values live as long as the control
        // block.
        let stackless = unsafe { &mut *self.control().stackless.get() };
        &mut **stackless.as_mut().expect("a closure is not stackless")
    }

    /// Begins the wait for the next step's input, after a step. Returns `false` if there is nothing
    /// to wait for: the caller then makes the fiber ready, once its value is not borrowed any more.
    pub(crate) fn begin_wait(self) -> bool {
        self.stackless().begin_wait(self)
    }

    /// Leaves the wait for the next step's input to the processor that runs the fiber next.
    pub(crate) fn postpone_wait(self) {
        self.stackless().postpone_wait();
    }

    /// After the fiber suspended with [`Suspend::Park`]: parks it, or says that it was unparked in
    /// the meantime and is ready.
    pub(crate) fn park_after_switch(self) -> bool {
        self.control().token.park()
    }

    /// True if any processor may run it next, once it has started: it has no frames, because it is
    /// between two steps, or its author has promised that they may move. Asked before it is made
    /// ready.
    #[inline]
    pub(crate) fn is_movable(self) -> bool {
        let control = self.control();
        // By the mark and not by `context`: the fiber's home may be tracing it just now, and has
        // that borrowed.
        control.is_migratable || control.is_stackless && control.stack().is_none()
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

impl FiberRef {
    /// The deadline that [`timeout`](crate::timeout) set.
    pub(crate) fn deadline(self) -> Option<Instant> {
        self.control().rare.get()?.deadline.get()
    }

    /// Makes the backtrace, in the fiber.
    #[cold]
    pub(super) fn trace_here(self) {
        let trace = Box::new(Backtrace::force_capture());
        self.control().rare().traced.set(Some(trace));
    }

    #[inline]
    pub(super) fn take_token(self) -> bool {
        self.control().token.take()
    }
}
