//! Spans of [`tracing`] that follow fibers (with the feature `tracing`).
//!
//! A subscriber keeps the spans that are entered in a list for each *thread*. Fibers share threads:
//! what one has entered would be seen by all that run after it, and stay behind when it goes on
//! elsewhere. [`follow`] wraps a subscriber so that a fiber's spans are left when it gives its
//! processor away, and entered again when it goes on, wherever that is:
//!
//! ```text
//!   processor's list of spans      ┌ fiber 1 ┐      ┌ fiber 2 ┐      ┌ fiber 1 ┐
//!                                  │ a  a:b  │  -   │ c       │  -   │ a:b  a  │
//!                                  └─────────┘      └─────────┘      └─────────┘
//!                                         └ b, a left                └ a, b entered again
//! ```
//!
//! ```
//! use fiber::spans;
//! use tracing_subscriber::util::SubscriberInitExt;
//!
//! spans::follow(tracing_subscriber::fmt().finish()).init();
//! fiber::run(|| {
//!     let _request = tracing::info_span!("request", id = 7).entered();
//!     fiber::yield_now(); // Others see nothing of it, and here it is still entered.
//!     let child = fiber::spawn(|| tracing::info!("is said in request, id=7"));
//!     child.join().unwrap();
//! });
//! ```
//!
//! * A fiber runs inside the span that was current where it was spawned, which stays open for as
//!   long as it does. Another one, or none: [`Builder::span`](crate::Builder::span). Calls of
//!   [`offload`](crate::offload()) run inside the caller's.
//! * A guard of `Span::enter` or `Span::entered` may live across any wait, also in a
//!   [migratable](crate::Builder::migratable) fiber. A stackless fiber runs inside what was entered
//!   when the last one ended.
//! * Leaving and entering again is told to the subscriber, as it is for futures: a layer that
//!   prints both (`FmtSpan::ACTIVE`) prints each switch, and the time that `fmt` gives as
//!   `time.busy` is that of the processor. It runs outside of the fiber and must not wait for one.
//! * [`Runtime::dump`](crate::Runtime::dump) says which spans a fiber is in.
//! * `tracing::subscriber::with_default` is about the thread: do not wait inside it.
//!
//! The price: a load and a branch at each switch; for a fiber inside a span, what the subscriber
//! needs to leave and enter it.

use std::any::TypeId;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use ::tracing::metadata::LevelFilter;
use ::tracing::span::{Attributes, Id, Record};
use ::tracing::subscriber::Interest;
use ::tracing::{Dispatch, Event, Metadata, Span, Subscriber};

use tracing_core::span::Current;

use crate::base::lock::lock;

/// Wraps `subscriber` so that spans follow fibers. To be made the default like any other; layers
/// are added before.
pub fn follow(subscriber: impl Subscriber + Send + Sync) -> Follow {
    Follow(Arc::new(subscriber))
}

/// A subscriber whose spans follow fibers: see [`follow`].
#[derive(Clone)]
pub struct Follow(Arc<dyn Subscriber + Send + Sync>);

impl fmt::Debug for Follow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follow").finish_non_exhaustive()
    }
}

impl Subscriber for Follow {
    fn enter(&self, id: &Id) {
        self.0.enter(id);
        with_inside(|spans| spans.note(self, id));
    }

    fn exit(&self, id: &Id) {
        self.0.exit(id);
        with_inside(|spans| spans.forget(self, id));
    }

    // The rest is the subscriber's.

    fn on_register_dispatch(&self, dispatch: &Dispatch) {
        self.0.on_register_dispatch(dispatch);
    }

    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        self.0.register_callsite(metadata)
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.0.enabled(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        self.0.max_level_hint()
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        self.0.new_span(attributes)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        self.0.record(id, values);
    }

    fn record_follows_from(&self, id: &Id, follows: &Id) {
        self.0.record_follows_from(id, follows);
    }

    fn event_enabled(&self, event: &Event<'_>) -> bool {
        self.0.event_enabled(event)
    }

    fn event(&self, event: &Event<'_>) {
        self.0.event(event);
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.0.clone_span(id)
    }

    fn try_close(&self, id: Id) -> bool {
        self.0.try_close(id)
    }

    fn current_span(&self) -> Current {
        self.0.current_span()
    }

    unsafe fn downcast_raw(&self, id: TypeId) -> Option<*const ()> {
        if id == TypeId::of::<Follow>() {
            return Some(std::ptr::from_ref(self).cast());
        }
        // SAFETY: what our caller promises is what this one asks for.
        unsafe { self.0.downcast_raw(id) }
    }
}

/// Span that a fiber is to run in: `None` is the one where it is spawned.
pub(crate) type Chosen = Option<Span>;

/// The spans that one fiber is inside of. Changed by the processor that runs it, read by those who
/// look.
#[derive(Default)]
pub(crate) struct Spans(OnceLock<Box<Kept>>);

/// Made for a fiber when it first enters a span.
#[derive(Default)]
struct Kept {
    /// Number of notes: no lock is taken for none.
    depth: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// From the outermost to the innermost.
    notes: Vec<Note>,
    /// Keeps the span open that the fiber runs in.
    base: Option<Span>,
}

/// A span that was entered and not left.
struct Note {
    followed: Follow,
    id: Id,
    name: &'static str,
}

thread_local! {
    /// Spans of the fiber that this processor's thread runs, on whichever stack that is.
    static INSIDE: Cell<Option<NonNull<Spans>>> = const { Cell::new(None) };
}

/// Never inlined, so that no caller keeps the address of the thread-local across a switch.
#[inline(never)]
fn set_inside(spans: Option<NonNull<Spans>>) {
    INSIDE.set(spans);
}

/// Calls `f` with the spans of the fiber that runs on this thread, also while it unwinds.
#[inline(never)]
fn with_inside(f: impl FnOnce(&Spans)) {
    if let Some(spans) = INSIDE.get() {
        // SAFETY: set by `around` for as long as the fiber runs, whose control block they are in.
        f(unsafe { spans.as_ref() });
    }
}

impl Spans {
    /// Spans of a fiber that is spawned here and now.
    pub(crate) fn new(chosen: Chosen) -> Spans {
        let base = chosen.unwrap_or_else(Span::current);
        let name = base.metadata().map_or("?", Metadata::name);
        let note = base.with_subscriber(|(id, dispatch)| {
            let followed = dispatch.downcast_ref::<Follow>()?.clone();
            let id = id.clone();
            Some(Note { followed, id, name })
        });
        let spans = Spans::default();
        if let Some(note) = note.flatten() {
            let kept = spans.kept();
            kept.depth.store(1, Ordering::Relaxed);
            lock(&kept.state).notes.push(note);
            lock(&kept.state).base = Some(base);
        }
        spans
    }

    /// Lets the fiber run by `resume`, inside of its spans. What subscribers do about it is called
    /// by `as_nobody`: their code is not the fiber's, and must not suspend it.
    #[inline]
    pub(crate) fn around<R>(
        &self,
        as_nobody: impl Fn(&mut dyn FnMut()),
        resume: impl FnOnce() -> R,
    ) -> R {
        if self.are_some() {
            as_nobody(&mut || self.tell_all(Follow::enter_again));
        }
        set_inside(Some(NonNull::from(self)));
        let outcome = resume();
        set_inside(None);
        if self.are_some() {
            as_nobody(&mut || self.tell_all(Follow::leave));
        }
        outcome
    }

    #[inline]
    fn are_some(&self) -> bool {
        self.0
            .get()
            .is_some_and(|kept| kept.depth.load(Ordering::Relaxed) > 0)
    }

    /// Leaves or enters all spans.
    #[cold]
    fn tell_all(&self, how: fn(&[Note])) {
        let state = &self.kept().state;
        // Not under the lock: a subscriber may enter spans itself.
        let notes = std::mem::take(&mut lock(state).notes);
        // The hook reports a subscriber that panics; the fiber cannot help it.
        let _ = catch_unwind(AssertUnwindSafe(|| how(&notes)));
        lock(state).notes = notes;
    }

    /// At the fiber's end, in the fiber: before those that wait for it go on.
    fn end(&self) {
        let Some(kept) = self.0.get() else { return };
        kept.depth.store(0, Ordering::Relaxed);
        self.tell_all(Follow::leave);
        let State { notes, base } = std::mem::take(&mut *lock(&kept.state));
        drop(notes);
        let _ = catch_unwind(AssertUnwindSafe(|| drop(base)));
    }

    fn note(&self, followed: &Follow, id: &Id) {
        let current = followed.0.current_span();
        let kept = self.kept();
        let mut state = lock(&kept.state);
        let known = state.notes.iter().find(|note| note.id == *id);
        let name = match current.metadata() {
            // It was entered before, and the subscriber does not name it again.
            _ if known.is_some() => known.map_or("?", |note| note.name),
            Some(metadata) if current.id() == Some(id) => metadata.name(),
            _ => "?",
        };
        state.notes.push(Note {
            followed: followed.clone(),
            id: id.clone(),
            name,
        });
        kept.depth.store(state.notes.len(), Ordering::Relaxed);
    }

    fn forget(&self, followed: &Follow, id: &Id) {
        let Some(kept) = self.0.get() else { return };
        let mut state = lock(&kept.state);
        let is_it = |note: &Note| note.id == *id && Arc::ptr_eq(&note.followed.0, &followed.0);
        let Some(at) = state.notes.iter().rposition(is_it) else {
            return; // Entered before the fiber was, or twice left.
        };
        let note = state.notes.remove(at);
        kept.depth.store(state.notes.len(), Ordering::Relaxed);
        drop(state);
        drop(note);
    }

    fn kept(&self) -> &Kept {
        self.0.get_or_init(Box::default)
    }

    /// From the outermost to the innermost, for those who look.
    pub(crate) fn names(&self) -> Vec<String> {
        let Some(kept) = self.0.get() else {
            return Vec::new();
        };
        let state = lock(&kept.state);
        let names = state.notes.iter().map(|note| note.name.to_owned());
        names.collect()
    }
}

impl Follow {
    fn enter_again(notes: &[Note]) {
        notes
            .iter()
            .for_each(|note| note.followed.0.enter(&note.id));
    }

    fn leave(notes: &[Note]) {
        let inwards = notes.iter().rev();
        inwards.for_each(|note| note.followed.0.exit(&note.id));
    }
}

/// At the end of the calling fiber.
pub(crate) fn end_here() {
    with_inside(Spans::end);
}

/// A call that runs inside the caller's span, on whichever thread.
pub(crate) fn carry<F: FnOnce() -> T, T>(f: F) -> impl FnOnce() -> T {
    let span = Span::current();
    move || span.in_scope(f)
}
