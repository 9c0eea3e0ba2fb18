//! Values that each fiber has of its own: [`fiber_local!`](crate::fiber_local).

use std::cell::{Cell, RefCell};

use crate::base::abort::{AbortOnUnwind, DROPPED};
use crate::sched::processor;
use crate::switch::locals::{AccessError, LocalKey, Locals};

/// Declares values of which each fiber has its own, as [`std::thread_local!`] does for threads.
///
/// A value is made when the fiber first asks for it, and dropped when the fiber ends, before its
/// [`join`](crate::JoinHandle::join) returns; the latest made goes first. A plain thread has values
/// of its own as well, and so has what runs in [`on_processor_stack`](crate::on_processor_stack),
/// which is as on one. A [stackless fiber](crate::Stackless) has them for one step at a time,
/// because the next may be on another thread.
///
/// `thread_local!` values, by contrast, belong to the processor, and all its fibers see the same.
///
/// ```
/// use std::cell::Cell;
///
/// weftwork_fiber::fiber_local! {
///     /// How many requests this fiber has served.
///     static SERVED: Cell<u32> = Cell::new(0);
/// }
///
/// weftwork_fiber::run(|| {
///     SERVED.set(SERVED.get() + 2);
///     assert_eq!(weftwork_fiber::spawn(|| SERVED.get()).join().unwrap(), 0);
///     assert_eq!(SERVED.get(), 2);
/// });
/// ```
#[macro_export]
macro_rules! fiber_local {
    () => {};
    ($(#[$attribute:meta])* $visible:vis static $name:ident: $type:ty = $init:expr; $($rest:tt)*) => {
        $crate::fiber_local!($(#[$attribute])* $visible static $name: $type = $init);
        $crate::fiber_local!($($rest)*);
    };
    ($(#[$attribute:meta])* $visible:vis static $name:ident: $type:ty = $init:expr) => {
        $(#[$attribute])*
        $visible static $name: $crate::LocalKey<$type> = {
            fn init() -> $type {
                $init
            }
            $crate::LocalKey::new(init)
        };
    };
}

impl<T: 'static> LocalKey<T> {
    /// Calls `f` with the calling fiber's value, which is made if there is none.
    ///
    /// # Panics
    /// If the value has been dropped already, because the fiber is ending.
    pub fn with<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        self.try_with(f).expect("destructors of fiber-local values")
    }

    /// Same as [`with`](LocalKey::with), without a panic.
    ///
    /// # Errors
    /// [`AccessError`] if the value has been dropped already, because the fiber is ending.
    pub fn try_with<R>(&'static self, f: impl FnOnce(&T) -> R) -> Result<R, AccessError> {
        with_locals(|locals| {
            let value = locals.get_or_make(self)?;
            // SAFETY: the box stays where it is until the fiber (or thread) that is in this call
            // ends; only shared references to the value are made.
            Ok(f(unsafe { value.as_ref() }))
        })
    }
}

impl<T: 'static> LocalKey<Cell<T>> {
    /// Sets the value.
    pub fn set(&'static self, value: T) {
        self.with(|cell| cell.set(value));
    }

    /// A copy of the value.
    pub fn get(&'static self) -> T
    where
        T: Copy,
    {
        self.with(Cell::get)
    }

    /// Takes the value and leaves the default one.
    pub fn take(&'static self) -> T
    where
        T: Default,
    {
        self.with(Cell::take)
    }

    /// Sets the value and returns the old one.
    pub fn replace(&'static self, value: T) -> T {
        self.with(|cell| cell.replace(value))
    }
}

impl<T: 'static> LocalKey<RefCell<T>> {
    /// Calls `f` with the value.
    ///
    /// # Panics
    /// If it is borrowed mutably.
    pub fn with_borrow<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        self.with(|cell| f(&cell.borrow()))
    }

    /// Calls `f` with the value to change.
    ///
    /// # Panics
    /// If it is borrowed.
    pub fn with_borrow_mut<R>(&'static self, f: impl FnOnce(&mut T) -> R) -> R {
        self.with(|cell| f(&mut cell.borrow_mut()))
    }
}

/// Values of a plain thread.
#[derive(Default)]
struct Plain(Locals);

thread_local! {
    static PLAIN: Plain = Plain::default();
}

/// Works while a fiber unwinds, too, so it does not use `with_current`.
fn with_locals<R>(f: impl FnOnce(&Locals) -> Result<R, AccessError>) -> Result<R, AccessError> {
    match processor::running_here() {
        Some(fiber) => f(fiber.control().locals_or_new().ok_or(AccessError)?),
        None => PLAIN.try_with(|plain| f(&plain.0)).unwrap_or(Err(AccessError)),
    }
}

/// Drops the values of the calling fiber. It may make them anew: in the next step, or in the
/// destructor of its result.
pub(crate) fn reset_here() {
    let Some(fiber) = processor::running_here() else {
        return;
    };
    if let Some(locals) = fiber.control().locals() {
        let abort = AbortOnUnwind(DROPPED);
        locals.clear();
        std::mem::forget(abort);
        locals.forget();
    }
}

/// Ends the values of the calling fiber for good. They may be bound to this thread, while the
/// control block, which holds them, may be dropped on any.
pub(crate) fn end_here() {
    reset_here();
    if let Some(fiber) = processor::running_here() {
        fiber.control().end_locals();
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        self.0.clear();
    }
}
