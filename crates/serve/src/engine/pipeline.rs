//! The pipeline engine: stages with their own threads, and a bounded queue before each. Welsh,
//! Culler and Brewer called it SEDA (2001).
//!
//! ```text
//!            ┌──────────────── back, for more input, or to end ───────────────┐
//!            ▼                                                                │
//!  accept ─▶ ║ read ──── input ────▶ ║ session ──── output ────▶ ║ write ─────┤
//!                                    ▲     │ ▲                                │
//!                                    │     ▼ └─ work and reads, from the pool │
//!                                    └──── the next turn, cold files ─────────┘
//! ```
//!
//! A connection moves from stage to stage as a whole: its machine, its socket, and the data that
//! one stage has for the next. The thread that has it owns it, so nothing in it is locked. The read
//! stage receives, the session stage passes input to sessions, the write stage sends; the machine's
//! next action determines the next stage. The first and the last are loops over a dispatcher and
//! never block; blocking work and reads of cold files are left to the pool of jobs.
//!
//! # Why nothing is lost, and nothing gets stuck
//!
//! Every queue has the same limit. A thread that finds one full does one of two things: it *waits*
//! for space, or it keeps the connection *pending* and *comes back* when there is space.
//! Loops come back; only threads that are no loops wait:
//!
//! ```text
//!  accept ── waits ──▶ read          read ── comes back ──▶ session
//!  session ── waits ──▶ read, write       write ── comes back ──▶ session, read
//!  pool ── waits ──▶ session
//! ```
//!
//! The stages form a circle, so if all of them waited, they could deadlock. But a loop waits for no
//! other stage: in each turn it takes up to a batch from its queue, however full the others are. So
//! queues of loops always get space; so a thread of the session stage, which waits for nothing
//! else, always reaches its next batch; so its queue gets space, and pending connections are handed
//! over. A hanging disk stops threads of the pool, but no stage.
//!
//! Pending connections are bounded as well. A reader stops receiving when a batch is pending: bytes
//! stay in the socket, and the peer slows down. A writer keeps connections that have nothing more
//! to send, at most as many as may be open. The accept stage does not accept while the queue of
//! each read thread is full: further clients wait in the listen queue.
//!
//! A connection whose reply was sent and whose peer has sent nothing more does not go through a
//! queue: it is *idle* until its reader gets a report for it, and wakes no thread.
//!
//! `read`, `session`, `write` (the stages) · `queue` · `idle` · `connection` (the unit handed over)
//! · `stages` (shared by all threads).

mod connection;
mod idle;
mod queue;
mod read;
mod session;
mod stages;
#[cfg(test)]
mod tests;
mod write;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread;

use ::session::Session;
use event::Mechanism;

use self::session::SessionThread;
use super::admission::{Opens, Start};
use super::reactor::{
    Accepted, ConnectionLimit, Distribute, EngineContext, LoopHandle, LoopThreads, Loops,
    OpenDispatcher, all_sockets,
};
use crate::metrics::MetricsWriter;
use connection::Arrival;
use queue::{Counted, Queue};
use read::Reader;
use stages::Stages;
use write::Writer;

/// Options of the pipeline engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineOptions {
    /// Number of threads that receive.
    pub read_threads: usize,
    /// Number of threads that run sessions.
    pub session_threads: usize,
    /// Number of threads that send.
    pub write_threads: usize,
    /// Limit on the queue of a thread that reads or writes, and on that of the session stage, in
    /// connections.
    pub queue_limit: usize,
    /// Most connections that a thread takes from its queue at a time.
    pub batch_max: usize,
    /// Mechanism that reports readiness to threads that read and write.
    pub dispatcher: Mechanism,
}

impl PipelineOptions {
    /// Options for a machine with so many processors.
    pub fn for_processors(processors: usize) -> PipelineOptions {
        PipelineOptions {
            read_threads: processors.div_ceil(4),
            session_threads: processors,
            write_threads: processors.div_ceil(4),
            queue_limit: 1024,
            batch_max: 32,
            dispatcher: Mechanism::EpollEdge,
        }
    }
}

impl Default for PipelineOptions {
    fn default() -> PipelineOptions {
        PipelineOptions::for_processors(thread::available_parallelism().map_or(1, usize::from))
    }
}

/// The running engine.
pub(crate) struct Pipeline {
    options: PipelineOptions,
    gauges: Vec<Gauge>,
    pub(super) loops: Loops,
}

/// A queue, for display.
struct Gauge {
    stage: &'static str,
    /// Number of the queue in its stage.
    number: usize,
    read: Box<dyn Fn() -> Counted + Send + Sync>,
}

impl Gauge {
    fn new<T: Send + 'static>(stage: &'static str, number: usize, queue: &Arc<Queue<T>>) -> Gauge {
        let queue = Arc::clone(queue);
        let read = Box::new(move || queue.counted());
        Gauge { stage, number, read }
    }
}

/// The accept stage: distributes connections to readers in turn, skipping full queues while another
/// has space.
struct InTurn<S: Session> {
    stages: Arc<Stages<S>>,
    connection_limit: Arc<ConnectionLimit>,
    next: usize,
}

impl<S: Session> Distribute for InTurn<S> {
    fn find_space(&mut self, own: &Arc<LoopHandle>) -> bool {
        let readers = &self.stages.readers;
        let mut in_turn = (0..readers.len()).map(|step| (self.next + step) % readers.len());
        let found = in_turn.find(|&at| readers[at].queue.has_space_or_wait(own));
        self.next = found.unwrap_or(self.next);
        found.is_some()
    }

    fn distribute(&mut self, accepted: Accepted) {
        let mut batch = VecDeque::from([Arrival::Accepted(accepted)]);
        self.stages.readers[self.next].queue.put(&mut batch);
        if !batch.is_empty() {
            // The server is over.
            drop(batch);
            self.connection_limit.leave();
        }
        self.next = (self.next + 1) % self.stages.readers.len();
    }
}

impl Pipeline {
    /// # Errors
    /// Errors of new threads, sockets and dispatchers.
    pub(crate) fn start<S: Session + 'static, O: Opens<S>>(
        options: PipelineOptions,
        start: Start<O>,
    ) -> io::Result<Pipeline> {
        let dispatcher = options.dispatcher;
        Pipeline::start_over(options, start, Box::new(move || dispatcher.open()))
    }

    pub(super) fn start_over<S: Session + 'static, O: Opens<S>>(
        options: PipelineOptions,
        start: Start<O>,
        open_dispatcher: OpenDispatcher,
    ) -> io::Result<Pipeline> {
        let (engine, bound) = EngineContext::over_sockets(start, (1, true));
        let stages = Arc::new(Stages::<S>::new(&options)?);
        let gauges = stages.gauges();
        let mut loops = Loops::new(&engine, bound);
        let open = Arc::new(open_dispatcher);
        // The kernel signals events of a socket to one thread only. fcntl(2), F_SETOWN
        let keeps_watch = !matches!(options.dispatcher, Mechanism::RtSig(_));
        for number in 0..stages.readers.len() {
            let (engine, stages, name) = (engine.clone(), stages.clone(), format!("read {number}"));
            let own = Arc::clone(&stages.readers[number].own);
            loops.named.push((name.clone(), own));
            let open = Arc::clone(&open);
            let make = move || Reader::new(engine, &stages, number, keeps_watch, open()?);
            loops.threads.spawn(name, make, Reader::run)?;
        }
        for number in 0..stages.writers.len() {
            let (engine, stages, name) =
                (engine.clone(), stages.clone(), format!("write {number}"));
            let own = Arc::clone(&stages.writers[number].own);
            loops.named.push((name.clone(), own));
            let open = Arc::clone(&open);
            let make = move || Writer::new(engine, &stages, number, open()?);
            loops.threads.spawn(name, make, Writer::run)?;
        }
        for number in 0..stages.session_threads {
            let (engine, stages) = (engine.clone(), stages.clone());
            // The thread ends once its queue is closed and it has finished its current batch. That
            // depends on a session, so nothing waits for it.
            let run = move || SessionThread::new(engine, stages).run();
            LoopThreads::detach(format!("session {number}"), run)?;
        }
        let connection_limit = Arc::clone(&engine.connection_limit);
        let to = InTurn { stages, connection_limit, next: 0 };
        loops.spawn_accept_thread(&engine, all_sockets(loops.listeners())?, to)?;
        Ok(Pipeline { options, gauges, loops })
    }

    pub(crate) fn describe(&self) -> String {
        let PipelineOptions {
            read_threads,
            session_threads,
            write_threads,
            queue_limit,
            dispatcher,
            ..
        } = self.options;
        format!(
            "a pipeline of {read_threads} reading, {session_threads} session and {write_threads} \
             writing threads on {dispatcher}, with queues of {queue_limit}"
        )
    }

    /// Counters of each queue and each loop, for people.
    pub(crate) fn dump(&self) -> String {
        let limit = self.options.queue_limit;
        let queues = self.gauges.iter().map(|gauge| {
            let counted = (gauge.read)();
            let Counted {
                length,
                longest,
                pending_longest,
                full,
                taken,
                batches,
                ..
            } = counted;
            let wait = counted.wait_mean();
            let Gauge { stage, number, .. } = gauge;
            format!(
                "  queue {stage} {number}: length {length} of {limit}, longest {longest}, \
                 longest line {pending_longest}, full {full}, taken {taken}, batches {batches}, mean wait {wait:?}\n"
            )
        });
        queues.chain([self.loops.dump()]).collect()
    }

    pub(crate) fn write_metrics(&self, out: &mut MetricsWriter) {
        self.loops.write_metrics(out);
        for gauge in &self.gauges {
            let (counted, number) = ((gauge.read)(), gauge.number.to_string());
            let labels = [("stage", gauge.stage), ("queue", &number)];
            for (name, help, value) in [
                (
                    "weft_stage_queue_length",
                    "Connections waiting in the queue of the stage.",
                    counted.length,
                ),
                (
                    "weft_stage_queue_longest",
                    "Greatest length of the queue so far.",
                    counted.longest,
                ),
                (
                    "weft_stage_line_longest",
                    "Most connections that one loop has held back because the queue was full.",
                    counted.pending_longest,
                ),
                ("weft_stage_queue_limit", "Capacity of the queue.", self.options.queue_limit),
            ] {
                out.gauge(name, help, &labels, value as f64);
            }
            for (name, help, value) in [
                (
                    "weft_stage_queue_full_total",
                    "Times that a hand-over found the queue full.",
                    counted.full,
                ),
                ("weft_stage_taken_total", "Connections taken from the queue.", counted.taken),
                ("weft_stage_batches_total", "Batches in which they were taken.", counted.batches),
            ] {
                out.counter(name, help, &labels, value);
            }
            let help = "Sum of the times that taken connections had waited in the queue.";
            let name = "weft_stage_wait_seconds_total";
            out.seconds(name, help, &labels, counted.waited.as_secs_f64());
        }
    }
}
