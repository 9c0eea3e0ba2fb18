//! The process from the protocols' view: figures, and requests such as `shutdown`.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use ::serve::Server;
use ::serve::counters::Closed;
use ::serve::tls::Tls;
use cache::{Host, Process, StopMode};
use session::Phase;

use crate::os::signals::Signal;

/// Descriptors that are not for connections.
const DESCRIPTORS_RESERVED: u64 = 64;

/// This process. A handle: clones share the state.
#[derive(Clone)]
pub(crate) struct ProcessHost(Arc<Known>);

struct Known {
    /// Receives requests such as `shutdown`.
    asked: Mutex<Sender<Signal>>,
    tls: Option<Arc<Tls>>,
    /// Set when the server runs. Weak, because the server's sessions hold the service, which holds
    /// this.
    server: OnceLock<Weak<Server>>,
}

impl ProcessHost {
    pub(crate) fn new(asked: Sender<Signal>, tls: Option<Arc<Tls>>) -> ProcessHost {
        ProcessHost(Arc::new(Known { asked: Mutex::new(asked), tls, server: OnceLock::new() }))
    }

    pub(crate) fn knows(&self, server: &Arc<Server>) {
        // Called once.
        let _ = self.0.server.set(Arc::downgrade(server));
    }
}

impl Host for ProcessHost {
    fn process(&self) -> Process {
        let (rusage_user, rusage_system) = processor_time();
        let process = Process {
            pid: std::process::id(),
            rusage_user,
            rusage_system,
            reserved_fds: DESCRIPTORS_RESERVED,
            ..Process::default()
        };
        let Some(server) = self.0.server.get().and_then(Weak::upgrade) else {
            return process;
        };
        let counters = server.counters();
        Process {
            rejected_connections: counters.closed(Closed::Refused),
            connection_structures: counters.active(),
            bytes_read: counters.bytes_received(),
            bytes_written: counters.bytes_sent(),
            listen_disabled_num: counters.accept_pauses(),
            idle_kicks: counters.closed(Closed::TimedOut(Phase::Idle)),
            ..process
        }
    }

    /// Drains the server, for both modes.
    fn shut_down(&self, _: StopMode) {
        // The receiver is only gone while the process is ending anyway.
        let _ = self.0.asked.lock().unwrap_or_else(PoisonError::into_inner).send(Signal::Stop);
    }

    fn refresh_certificates(&self) -> Option<Result<(), String>> {
        self.0.tls.as_ref().map(|tls| tls.reload())
    }
}

/// Processor time in user mode and in the kernel.
fn processor_time() -> (Duration, Duration) {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes one rusage through the pointer, or nothing. getrusage(2)
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        // SAFETY: it was zeroed, which is valid for this plain struct.
        usage.assume_init()
    };
    let duration =
        |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    (duration(usage.ru_utime), duration(usage.ru_stime))
}
