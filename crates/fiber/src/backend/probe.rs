//! Checks that this process may use io_uring; if not, names what forbids it and what to do.

use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};
use std::thread;

use io_uring::{IoUring, Probe, opcode};

use crate::backend::uring::Uring;
use crate::backend::waker::Waker;

/// Features of a ring that this process may use.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Ring {
    /// Name of each feature that the runtime can make use of, and whether this kernel has it.
    pub features: Vec<(&'static str, bool)>,
}

/// Denial of a ring. Displays as one sentence with cause and remedy.
#[derive(Debug)]
pub struct Denied {
    /// Cause of the denial.
    pub cause: DeniedCause,
    /// Error that the kernel reported.
    pub error: io::Error,
}

/// Cause of a denied ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeniedCause {
    /// `kernel.io_uring_disabled` is 2.
    DisabledForAll,
    /// `kernel.io_uring_disabled` is 1, and this process is neither privileged nor in
    /// `kernel.io_uring_group`.
    DisabledForUnprivileged,
    /// The system call is filtered, as container runtimes do.
    Seccomp,
    /// The kernel was built without it, or is older than Linux 5.1.
    Missing,
    /// The kernel has io_uring but not all that is needed (Linux 6.1).
    TooOld,
    /// There is no memory for the rings: they count for the memory limit of the cgroup and, since
    /// Linux 6.14, for the limit of locked memory.
    Memory,
    /// The process is out of file descriptors.
    Descriptors,
    /// Something else; see the error.
    Other,
}

/// Sets up a ring as a processor would, enters it, and checks its features. A filter may forbid
/// each of io_uring's three system calls by itself.
///
/// # Errors
/// [`Denied`], with the cause and the remedy.
pub fn probe() -> Result<Ring, Denied> {
    // On a thread of its own: when a ring is closed, the kernel interrupts system calls of the
    // thread that made it.
    let probed = thread::Builder::new().spawn(|| {
        let wake_fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
        let uring = Uring::new(&Waker::default(), &OnceLock::new(), Arc::new(wake_fd))?;
        let ring = uring.try_enter()?;
        Ok(Ring { features: features(&ring) })
    });
    let result = probed.and_then(|thread| thread.join().expect("the probe does not panic"));
    result.map_err(Denied::from_error)
}

fn features(ring: &IoUring) -> Vec<(&'static str, bool)> {
    let mut probe = Probe::new();
    let probed = ring.submitter().register_probe(&mut probe).is_ok();
    let has = |code: u8| probed && probe.is_supported(code);
    let params = ring.params();
    vec![
        ("single-issuer and deferred task work", true),
        ("fast poll", params.is_feature_fast_poll()),
        ("no dropped completions", params.is_feature_nodrop()),
        ("send and receive", has(opcode::Send::CODE) && has(opcode::Recv::CODE)),
        ("cancel", has(opcode::AsyncCancel::CODE)),
        ("read and write", has(opcode::Read::CODE) && has(opcode::Write::CODE)),
        ("zero-copy send", has(opcode::SendZc::CODE)),
        ("message to another ring", has(opcode::MsgRingData::CODE)),
        ("futex wait", has(opcode::FutexWait::CODE)),
        ("receive and send bundles", params.is_feature_recvsend_bundle()),
        ("minimum wait", params.is_feature_min_timeout()),
    ]
}

impl Denied {
    pub(crate) fn from_error(error: io::Error) -> Denied {
        let cause = match error.raw_os_error() {
            Some(libc::EPERM) => match disabled_setting() {
                Some(2) => DeniedCause::DisabledForAll,
                Some(1) => DeniedCause::DisabledForUnprivileged,
                _ => DeniedCause::Seccomp,
            },
            Some(libc::EACCES) => DeniedCause::Seccomp,
            // Some filters answer as if the call did not exist; the setting proves that it does.
            Some(libc::ENOSYS) if disabled_setting().is_some() => DeniedCause::Seccomp,
            Some(libc::ENOSYS) => DeniedCause::Missing,
            Some(libc::EINVAL) => DeniedCause::TooOld,
            Some(libc::ENOMEM) => DeniedCause::Memory,
            Some(libc::EMFILE | libc::ENFILE) => DeniedCause::Descriptors,
            _ => DeniedCause::Other,
        };
        Denied { cause, error }
    }
}

impl DeniedCause {
    /// Advice in one sentence.
    pub fn remedy(self) -> &'static str {
        match self {
            DeniedCause::DisabledForAll => "allow it with `sysctl kernel.io_uring_disabled=0`",
            DeniedCause::DisabledForUnprivileged => {
                "allow it with `sysctl kernel.io_uring_disabled=0`, or join the group of \
                 kernel.io_uring_group"
            }
            DeniedCause::Seccomp => {
                "allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp \
                 profile"
            }
            DeniedCause::Missing => "run a kernel with CONFIG_IO_URING (Linux 6.1 or newer)",
            DeniedCause::TooOld => "run Linux 6.1 or newer",
            DeniedCause::Memory => {
                "raise the limit of locked memory (`ulimit -l`, LimitMEMLOCK=) or that of the cgroup \
                 (MemoryMax=)"
            }
            DeniedCause::Descriptors => "raise the limit of open files (`ulimit -n`, LimitNOFILE=)",
            DeniedCause::Other => "see the error",
        }
    }
}

impl fmt::Display for DeniedCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeniedCause::DisabledForAll => "kernel.io_uring_disabled is 2",
            DeniedCause::DisabledForUnprivileged => {
                "kernel.io_uring_disabled is 1 and this process is not privileged"
            }
            DeniedCause::Seccomp => "a seccomp filter forbids it",
            DeniedCause::Missing => "this kernel has no io_uring",
            DeniedCause::TooOld => "this kernel's io_uring lacks deferred task work",
            DeniedCause::Memory => "there is no memory for its rings",
            DeniedCause::Descriptors => "no file descriptor is free",
            DeniedCause::Other => "the kernel refuses it",
        })
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Denied { cause, error } = self;
        write!(f, "io_uring is not available: {cause} ({error}); {}", cause.remedy())
    }
}

impl std::error::Error for Denied {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

fn disabled_setting() -> Option<u32> {
    std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_names_cause_and_remedy() {
        let denied = Denied::from_error(io::Error::from_raw_os_error(libc::ENOMEM));
        assert_eq!(denied.cause, DeniedCause::Memory);
        let said = denied.to_string();
        assert!(said.contains("ulimit -l") && said.contains("MemoryMax="), "{said}");
    }
}
