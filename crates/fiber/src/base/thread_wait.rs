//! Waits of kernel threads for fibers, of which the pool that a thread belongs to is told.

use std::cell::Cell;

/// Told on the thread itself as a wait begins (`true`) and ends.
pub(crate) type WaitListener = fn(bool);

thread_local! {
    static LISTENER: Cell<Option<WaitListener>> = const { Cell::new(None) };
}

/// From now on the calling thread's waits are told of to `listener`.
pub(crate) fn set_listener(listener: Option<WaitListener>) {
    LISTENER.set(listener);
}

/// Runs `wait`, in which the calling thread waits for a fiber.
pub(crate) fn for_fibers(wait: impl FnOnce()) {
    let listener = LISTENER.get();
    listener.inspect(|tell| tell(true));
    wait();
    listener.inspect(|tell| tell(false));
}
