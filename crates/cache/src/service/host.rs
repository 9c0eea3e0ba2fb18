//! The process around the sessions.

use std::time::Duration;

/// Facts and actions of the process, which the command provides to the sessions.
pub trait Host: Send + Sync {
    /// Reads the process's figures.
    fn process(&self) -> Process;

    /// Ends the server: a client asked for it (`shutdown`, `shutdown graceful`), as permitted.
    fn shut_down(&self, how: StopMode);

    /// Reads the certificate again, for a client (`refresh_certs`). `None` without TLS; an error
    /// describes the fault of the files.
    fn refresh_certificates(&self) -> Option<Result<(), String>> {
        None
    }
}

/// Way of ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// Stop as on SIGINT.
    Now,
    /// Finish running requests, as on SIGUSR1.
    Graceful,
}

/// Figures of the process in `stats`: 0 if unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Processor time in user mode.
    pub rusage_user: Duration,
    /// Processor time in the kernel.
    pub rusage_system: Duration,
    /// Connections refused because there were too many.
    pub rejected_connections: u64,
    /// Connections for which memory is held.
    pub connection_structures: u64,
    /// Descriptors that are not for connections.
    pub reserved_fds: u64,
    /// Bytes received.
    pub bytes_read: u64,
    /// Bytes sent.
    pub bytes_written: u64,
    /// Number of pauses in accepting.
    pub listen_disabled_num: u64,
    /// Connections closed because they were idle.
    pub idle_kicks: u64,
}

/// A host without figures or actions: for tests, and for programs that embed a cache.
#[derive(Clone, Copy, Debug)]
pub struct NoHost;

impl Host for NoHost {
    fn process(&self) -> Process {
        Process { pid: std::process::id(), ..Process::default() }
    }

    fn shut_down(&self, _: StopMode) {}
}
