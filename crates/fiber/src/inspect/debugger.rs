//! Entry points for a debugger: C functions that `tools/gdb/fibers.py` calls to list the fibers.
//!
//! They are called in the middle of anything, so they only try locks: when a stopped thread holds
//! one, they say so.

use std::ffi::{CString, c_char};
use std::fmt::Write;
use std::sync::{Arc, Mutex, Weak};

use crate::base::lock::lock;
use crate::sched::cluster::Cluster;
use crate::sched::fiber::Fiber;

static CLUSTERS: Mutex<Vec<Weak<Cluster>>> = Mutex::new(Vec::new());

/// Nothing in the program calls it, so the linker would leave it out.
#[used]
static KEPT: extern "C" fn() -> *const c_char = weft_debugger_fibers;

/// Makes a cluster known to debuggers.
pub(crate) fn register(cluster: &Arc<Cluster>) {
    let mut clusters = lock(&CLUSTERS);
    clusters.retain(|cluster| cluster.strong_count() > 0);
    clusters.push(Arc::downgrade(cluster));
}

/// Every fiber, a line each: number, state, instruction, stack and base pointer of the frame that
/// waits (0 if it has none), name, what it waits for, where it was spawned, with tabs between. The
/// text is never freed.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn weft_debugger_fibers() -> *const c_char {
    let text =
        fibers().map_or_else(|| "busy\n".to_owned(), |fibers| fibers.iter().map(line).collect());
    let text = CString::new(text.replace('\0', "?")).expect("without zeros");
    text.into_raw()
}

/// `None` if some lock is taken.
fn fibers() -> Option<Vec<Fiber>> {
    let clusters = CLUSTERS.try_lock().ok()?;
    let mut found = Vec::new();
    for cluster in clusters.iter().filter_map(Weak::upgrade) {
        found.extend(cluster.try_fibers()?);
    }
    found.sort_unstable_by_key(Fiber::id);
    Some(found)
}

fn line(fiber: &Fiber) -> String {
    let control = &fiber.control;
    let (instruction, stack, base) = control.waiting_frame().unwrap_or_default();
    let waits_for = control.waiting().reason();
    let waits_for = waits_for.map_or("-".to_owned(), crate::inspect::dump::in_words);
    let mut line = String::new();
    let _ = writeln!(
        line,
        "{}\t{}\t{instruction}\t{stack}\t{base}\t{}\t{waits_for}\t{}",
        control.id(),
        control.look().state(),
        control.name().unwrap_or("-"),
        control.spawned_at(),
    );
    line
}
