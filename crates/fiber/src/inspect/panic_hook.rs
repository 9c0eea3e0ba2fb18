//! A fiber's panic names the fiber: a line before the standard library's message, which names the
//! kernel thread.

use std::panic;
use std::sync::Once;

use crate::base::report::report;
use crate::sched::processor;

/// Installs that line before the program's own panic hook, once for the process. A program that
/// sets a hook of its own later replaces both.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    // A thread that panics cannot change the hook. Runtimes that start then are rare, and the next
    // one does it.
    if std::thread::panicking() {
        return;
    }
    INSTALLED.call_once(|| {
        let next = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            name_fiber();
            next(info);
        }));
    });
}

fn name_fiber() {
    if let Some(fiber) = processor::running_here() {
        let control = fiber.control();
        let name = control.name().unwrap_or("<unnamed>");
        let (number, spawned_at) = (control.id(), control.spawned_at());
        report(format_args!(
            "\nfiber '{name}' (number {number}, spawned at {spawned_at}) panicked:\n"
        ));
    }
}
