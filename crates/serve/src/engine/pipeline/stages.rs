//! The stages with their queues, shared by all threads of the pipeline.

use std::io;
use std::sync::Arc;

use session::Session;

use super::connection::{Arrival, Connection};
use super::idle::IdleList;
use super::queue::Queue;
use super::{Gauge, PipelineOptions};
use crate::engine::reactor::LoopHandle;

/// See the [module page](self).
pub(super) struct Stages<S: Session> {
    pub(super) readers: Vec<QueuedLoop<Arrival<S>>>,
    /// One per reader.
    pub(super) idle_lists: Vec<Arc<IdleList<S>>>,
    /// One queue for all threads of the stage: whichever is free takes from it.
    pub(super) sessions: Arc<Queue<Box<Connection<S>>>>,
    pub(super) session_threads: usize,
    pub(super) writers: Vec<QueuedLoop<Box<Connection<S>>>>,
    /// Limit of each queue.
    pub(super) queue_limit: usize,
    /// Most items that a thread takes from its queue at a time.
    pub(super) batch_max: usize,
}

/// A loop that reads or writes, with its queue.
pub(super) struct QueuedLoop<T> {
    pub(super) own: Arc<LoopHandle>,
    pub(super) queue: Arc<Queue<T>>,
}

impl<S: Session> Stages<S> {
    pub(super) fn new(options: &PipelineOptions) -> io::Result<Stages<S>> {
        let limit = options.queue_limit;
        let readers = QueuedLoop::some(options.read_threads, limit)?;
        let idle_lists = readers.iter().map(|reader| IdleList::new(&reader.own));
        Ok(Stages {
            idle_lists: idle_lists.map(Arc::new).collect(),
            readers,
            sessions: Arc::new(Queue::new(limit, None)),
            session_threads: options.session_threads,
            writers: QueuedLoop::some(options.write_threads, limit)?,
            queue_limit: limit,
            batch_max: options.batch_max,
        })
    }

    pub(super) fn gauges(&self) -> Vec<Gauge>
    where
        S: Send + 'static,
    {
        let readers = self.readers.iter().map(|reader| &reader.queue);
        let writers = self.writers.iter().map(|writer| &writer.queue);
        let mut gauges = Vec::new();
        gauges.extend(readers.enumerate().map(|(at, queue)| Gauge::new("read", at, queue)));
        gauges.push(Gauge::new("session", 0, &self.sessions));
        gauges.extend(writers.enumerate().map(|(at, queue)| Gauge::new("write", at, queue)));
        gauges
    }
}

impl<T> QueuedLoop<T> {
    fn some(count: usize, limit: usize) -> io::Result<Vec<QueuedLoop<T>>> {
        let queued = |_| {
            let own = LoopHandle::new()?;
            let queue = Arc::new(Queue::new(limit, Some(Arc::clone(&own))));
            Ok(QueuedLoop { own, queue })
        };
        (0..count).map(queued).collect()
    }
}
