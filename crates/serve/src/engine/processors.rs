//! The processors of engines on fibers: start, description and counters.

use std::io;
use std::time::Duration;

use fiber::{BackendChoice, ProcessorCounters, Runtime};

use crate::messages;
use crate::metrics::MetricsWriter;

/// Time after which a fiber that does not yield counts as a bug: the monitor reports which one, and
/// what it does.
const STALL_THRESHOLD: Duration = Duration::from_secs(1);

/// # Errors
/// Errors of new threads and rings.
pub(super) fn start(processors: usize, backend: BackendChoice) -> io::Result<Runtime> {
    let builder = Runtime::builder().processors(processors).backend(backend);
    let builder = builder.stall_detector(STALL_THRESHOLD);
    let builder = builder.on_stall(|stall| messages::write(&format!("{stall}\n")));
    let builder = builder.on_deadlock(|deadlock| messages::write(&format!("{deadlock}\n")));
    builder.start()
}

pub(super) fn write_metrics(runtime: &Runtime, out: &mut MetricsWriter) {
    let processors = runtime.counters();
    // Samples of a metric must be adjacent, so the counter's name is the outer loop.
    for (at, (name, help, _)) in ProcessorCounters::default().iter().enumerate() {
        let name = format!("weft_processor_{name}_total");
        for (number, counters) in processors.iter().enumerate() {
            let value = counters.iter().nth(at).map_or(0, |(_, _, value)| value);
            out.counter(&name, help, &[("processor", &number.to_string())], value);
        }
    }
    let help = "Fibers, including those that wait for a connection.";
    let count = runtime.fiber_count();
    out.gauge("weft_fibers", help, &[], count as f64);
    let help = "Fibers by state; waiting ones by the reason of the wait.";
    for (state, count) in runtime.inspector().count_by_state() {
        out.gauge("weft_fibers_by_state", help, &[("state", state)], count as f64);
    }
    let help = "Fibers found to keep their processor for a second or more.";
    out.counter("weft_stalls_total", help, &[], runtime.stall_count());
}

pub(super) fn dump(runtime: &Runtime) -> String {
    let mut text = String::new();
    for (index, counters) in runtime.counters().iter().enumerate() {
        let counted = counters.iter().map(|(name, _, value)| format!("{name} {value}"));
        let counted = counted.collect::<Vec<_>>().join(", ");
        text += &format!("  processor {index}: {counted}\n");
    }
    text + &runtime.dump().to_string()
}
