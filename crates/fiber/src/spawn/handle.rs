//! A handle to a cluster.

use std::fmt;
use std::sync::Arc;

use crate::sched::cluster::Cluster;
use crate::sched::processor;

/// A cluster of processors, which belongs to a [`Runtime`](crate::Runtime): a handle, cheap to
/// clone, from [`Runtime::cluster`](crate::Runtime::cluster). It does not keep the runtime: when
/// that has been shut down, nothing can be spawned there any more.
///
/// Fibers of a cluster share its processors and no others. So long work gets a cluster of its own:
/// calls that block their thread, for instance, while the connections' processors continue.
///
/// ```
/// let disk = weftwork_fiber::Runtime::builder().processors(2).start().unwrap();
/// let cluster = disk.cluster();
/// weftwork_fiber::run(move || {
///     let name = String::from("/proc/self/stat");
///     // This fiber waits; a processor of the other cluster blocks.
///     let text = cluster.run(|| std::fs::read_to_string(&name)).unwrap();
///     assert!(!text.is_empty());
/// });
/// ```
#[derive(Clone)]
pub struct ClusterHandle(pub(crate) Arc<Cluster>);

impl ClusterHandle {
    /// The cluster of the fiber that calls; `None` on a plain thread.
    pub fn current() -> Option<ClusterHandle> {
        processor::with_running(|processor, _| ClusterHandle(Arc::clone(&processor.cluster)))
    }

    /// Same as [`Runtime::fiber_count`](crate::Runtime::fiber_count).
    pub fn fiber_count(&self) -> usize {
        self.0.fiber_count()
    }

    /// Same as [`Runtime::processor_count`](crate::Runtime::processor_count).
    pub fn processor_count(&self) -> usize {
        self.0.processor_count()
    }
}

/// The same cluster.
impl PartialEq for ClusterHandle {
    fn eq(&self, other: &ClusterHandle) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ClusterHandle {}

impl fmt::Debug for ClusterHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterHandle")
            .field("processors", &self.processor_count())
            .field("fibers", &self.fiber_count())
            .finish()
    }
}
