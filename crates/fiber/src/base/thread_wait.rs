//! Waits of kernel threads for fibers, reported to the pool that a thread belongs to.

use std::cell::Cell;

/// Callback on the waiting thread, as a wait begins (`true`) and ends.
pub(crate) type WaitListener = fn(bool);

thread_local! {
    static LISTENER: Cell<Option<WaitListener>> = const { Cell::new(None) };
}

/// Reports the calling thread's waits to `listener` from now on.
pub(crate) fn set_listener(listener: Option<WaitListener>) {
    LISTENER.set(listener);
}

/// Runs `wait`, in which the calling thread waits for a fiber.
pub(crate) fn for_fibers(wait: impl FnOnce()) {
    let listener = LISTENER.get();
    listener.inspect(|notify| notify(true));
    wait();
    listener.inspect(|notify| notify(false));
}
