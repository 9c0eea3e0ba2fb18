//! State shared by all connections of a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use crate::access_log::AccessLog;
use crate::addresses::Addresses;
use crate::buffers::Buffers;
use crate::counters::Counters;
use crate::jobs::Jobs;
use crate::limits::Limits;
use crate::lingering::Lingering;
use crate::memory::Memory;

/// State shared by all connections of a server.
pub(crate) struct Shared {
    pub(crate) limits: Limits,
    pub(crate) counters: Counters,
    pub(crate) log: Option<Arc<AccessLog>>,
    pub(crate) server_state: ServerState,
    /// Connections that have sent their last reply.
    pub(crate) lingering: Lingering,
    /// Pool for blocking work.
    pub(crate) jobs: Arc<Jobs>,
    /// Buffers for files.
    pub(crate) buffers: Arc<Buffers>,
    /// Limit on the memory that connections hold while they wait.
    pub(crate) memory: Arc<Memory>,
    /// Connections by address, if there is a limit per address.
    pub(crate) addresses: Option<Arc<Addresses>>,
    pub(crate) start: Instant,
}

impl Shared {
    pub(crate) fn new(limits: Limits, log: Option<Arc<AccessLog>>) -> Shared {
        Shared {
            jobs: Arc::new(Jobs::new(limits.connections_max)),
            memory: Arc::new(Memory::new(limits.connection_memory_max)),
            buffers: Arc::new(Buffers::new(limits.file_buffers_max)),
            lingering: Lingering::new(limits.connections_max),
            addresses: limits.by_address.clone().map(|limit| Arc::new(Addresses::new(limit))),
            limits: limits.within_reach(),
            counters: Counters::default(),
            log,
            server_state: ServerState::default(),
            start: Instant::now(),
        }
    }
}

/// State of the server: serving, draining or cutting. Connections check it themselves.
#[derive(Debug, Default)]
pub(crate) struct ServerState(AtomicU8);

pub(crate) const SERVING: u8 = 0;
pub(crate) const DRAINING: u8 = 1;
pub(crate) const CUTTING: u8 = 2;

impl ServerState {
    /// Makes conversations end at the next request boundary.
    pub(crate) fn drain(&self) {
        self.0.fetch_max(DRAINING, Ordering::SeqCst);
    }

    /// Makes conversations end at once.
    pub(crate) fn cut(&self) {
        self.0.fetch_max(CUTTING, Ordering::SeqCst);
    }

    /// The current state.
    #[inline]
    pub(crate) fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
}
