//! I/O back ends behind one interface of completions: io_uring or epoll over kernel TCP, or our own
//! TCP.
//!
//! A worker numbers its connections; each number is a *slot* of the back end. Operations are begun
//! by slot, and [`Backend::submit_and_wait`] reports those that ended. A slot has at most one
//! receive in progress. Sends are gathered: bytes appended to [`Backend::output`] between two calls
//! leave as one.

mod epoll;
pub(crate) mod netstack;
pub(crate) mod operation;
mod slots;
pub(crate) mod socket;
pub(crate) mod tls;
mod uring;

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::netstack::interface_config::DeviceQueue;
use rustix::io::Errno;

use crate::LoadError;
use crate::io::epoll::Poll;
use crate::io::netstack::UserTcp;
use crate::io::operation::{Completion, Gather, Route};
use crate::io::slots::Receive;
use crate::io::socket::{address_of, socket_for};
use crate::io::tls::{Handshake, TlsBackend};
use crate::io::uring::Ring;
use crate::plan::{Io, LoadTarget};

pub(crate) enum Backend {
    Ring(Box<Ring>),
    Poll(Box<Poll>),
    UserTcp(Box<UserTcp<DeviceQueue>>),
    /// One of the others, with TLS.
    Tls(Box<TlsBackend>),
    #[cfg(test)]
    Memory(Box<UserTcp<netstack::tests::Wire>>),
}

/// Blocking connection.
pub(crate) trait ReadWrite: Read + Write {}

impl<S: Read + Write> ReadWrite for S {}

macro_rules! either {
    ($backend:expr, $it:ident => $call:expr) => {
        either!($backend, $it => $call, $it => $call, $it => $call)
    };
    ($backend:expr, $ring:ident => $in_ring:expr, $tls:ident => $in_tls:expr, $it:ident => $call:expr) => {
        match $backend {
            Backend::Ring($ring) => $in_ring,
            Backend::Poll($it) => $call,
            Backend::UserTcp($it) => $call,
            Backend::Tls($tls) => $in_tls,
            #[cfg(test)]
            Backend::Memory($it) => $call,
        }
    };
}

impl Backend {
    /// Begins to connect. Completes as [`CompletionKind::Connected`](operation::CompletionKind),
    /// unless it fails at once.
    pub(crate) fn open(&mut self, slot: u32, route: &Route<'_>) -> Result<(), Errno> {
        match self {
            Backend::Ring(ring) => {
                ring.open(slot, socket_for(route, false)?, address_of(route.to)?);
            }
            Backend::Poll(poll) => {
                let is_udp = route.to.is_udp();
                poll.open(slot, socket_for(route, true)?, address_of(route.to)?, is_udp);
            }
            Backend::UserTcp(tcp) => {
                tcp.open(slot, tcp_of(route.to), route.from, route.is_chatty)?;
            }
            Backend::Tls(tls) => tls.open(slot, route)?,
            #[cfg(test)]
            Backend::Memory(tcp) => {
                tcp.open(slot, tcp_of(route.to), route.from, route.is_chatty)?;
            }
        }
        Ok(())
    }

    /// Opens a blocking connection for work before the run; to a UDP server over TCP. It uses the
    /// first slot, which must be closed. A read or write fails after `wait`, and may be repeated.
    pub(crate) fn stream(
        &mut self,
        to: &LoadTarget,
        connect_timeout: Duration,
        wait: Duration,
    ) -> io::Result<Box<dyn ReadWrite + '_>> {
        Ok(match self {
            Backend::Ring(_) | Backend::Poll(_) => {
                socket::blocking_stream(to, connect_timeout, wait)?
            }
            Backend::UserTcp(tcp) => Box::new(tcp.stream(tcp_of(to), connect_timeout, wait)?),
            Backend::Tls(tls) => tls.stream(to, connect_timeout, wait)?,
            #[cfg(test)]
            Backend::Memory(tcp) => Box::new(tcp.stream(tcp_of(to), connect_timeout, wait)?),
        })
    }

    /// Buffer for bytes that the next call sends.
    pub(crate) fn output(&mut self, slot: u32) -> &mut Vec<u8> {
        either!(self, ring => ring.output(slot), tls => tls.output(slot), it => it.slots.output(slot))
    }

    /// Number of bytes that wait to be sent.
    pub(crate) fn unsent(&self, slot: u32) -> usize {
        either!(self, ring => ring.unsent(slot), tls => tls.unsent(slot), it => it.slots[slot].unsent().len())
    }

    /// Begins to receive. Completes as `Received`; the bytes are in [`Backend::input`].
    pub(crate) fn receive(&mut self, slot: u32) {
        let want = Receive::Read;
        either!(self, ring => ring.receive(slot), tls => tls.begin_receive(slot, want), it => it.slots.begin_receive(slot, want));
    }

    /// Begins to receive and discard up to `bytes` bytes. Completes as `Received`.
    pub(crate) fn discard(&mut self, slot: u32, bytes: u64) {
        let want = Receive::Discard(bytes);
        either!(self, ring => ring.discard(slot, bytes), tls => tls.begin_receive(slot, want), it => it.slots.begin_receive(slot, want));
    }

    /// Bytes of the last receive; valid until the next one begins.
    pub(crate) fn input(&mut self, slot: u32, length: usize) -> &[u8] {
        either!(self, it => it.input(slot, length))
    }

    /// True if the kernel has an operation of the slot. Only a ring leaves one with the kernel.
    pub(crate) fn is_busy(&self, slot: u32) -> bool {
        match self {
            Backend::Ring(ring) => ring.is_busy(slot),
            Backend::Tls(tls) => tls.is_busy(slot),
            _ => false,
        }
    }

    /// True if the peer's end of TCP came without one of TLS, by which alone a reply may end (RFC
    /// 9112 9.8).
    pub(crate) fn is_torn(&self, slot: u32) -> bool {
        matches!(self, Backend::Tls(tls) if tls.is_torn(slot))
    }

    /// Cancels all operations of the slot; each still completes.
    pub(crate) fn cancel(&mut self, slot: u32) {
        either!(self, ring => ring.cancel(slot), tls => tls.cancel(slot), it => it.slots.cancel(slot));
    }

    /// The TLS handshake of a connection that has just connected.
    pub(crate) fn take_handshake(&mut self, slot: u32) -> Option<Handshake> {
        match self {
            Backend::Tls(tls) => tls.take_handshake(slot),
            _ => None,
        }
    }

    /// Closes the socket. No operation may be in progress.
    pub(crate) fn close(&mut self, slot: u32) {
        either!(self, it => it.close(slot));
    }

    /// Sets how many completions the next waits are for, if the back end can wait for several.
    pub(crate) fn gather(&mut self, gather: Gather) {
        match self {
            Backend::Ring(ring) => ring.gather(gather),
            Backend::Tls(tls) => tls.gather(gather),
            _ => {}
        }
    }

    /// Submits all operations and collects completions. Waits for one, at most `wait`.
    pub(crate) fn submit_and_wait(
        &mut self,
        wait: Duration,
        completions: &mut Vec<Completion>,
    ) -> io::Result<()> {
        either!(self, it => it.submit_and_wait(wait, completions))
    }
}

/// Address of a netstack's target.
fn tcp_of(target: &LoadTarget) -> SocketAddr {
    target.address().expect("the plan was checked: a netstack has TCP alone")
}

/// Back ends of a run over kernel TCP.
pub(crate) struct Kernel {
    asked: Io,
    io: Io,
    /// Choice and reason, for people.
    reason: String,
    input_bytes: usize,
    /// Reasons of the threads whose ring failed although the small one had not.
    without_ring: Mutex<Vec<&'static str>>,
}

impl Kernel {
    /// Chooses by trying a small ring. A larger one would take memory and descriptors that the
    /// kernel returns only some time after it is closed.
    pub(crate) fn choose(asked: Io, input_bytes: usize) -> Result<Kernel, LoadError> {
        let tried = match asked {
            Io::Epoll => Ok(()),
            Io::Auto | Io::Uring => Ring::new(1, 64).and_then(|mut ring| ring.try_enter()),
        };
        let (io, reason) = match (asked, tried) {
            (Io::Epoll, _) => (Io::Epoll, "epoll (requested)".to_owned()),
            (Io::Uring, Ok(())) => (Io::Uring, "io_uring (requested)".to_owned()),
            (Io::Auto, Ok(())) => (Io::Uring, "io_uring".to_owned()),
            (Io::Auto, Err(error)) => (Io::Epoll, format!("epoll ({})", why_no_ring(&error))),
            (Io::Uring, Err(error)) => return Err(no_ring(error)),
        };
        Ok(Kernel { asked, io, reason, input_bytes, without_ring: Mutex::default() })
    }

    /// Opens a back end, for use by this thread alone.
    pub(crate) fn open(&self, slots: u32) -> Result<Backend, LoadError> {
        match self.io {
            Io::Epoll => self.poll(slots),
            Io::Auto | Io::Uring => self.take(Ring::new(slots, self.input_bytes), slots),
        }
    }

    fn take(&self, ring: io::Result<Ring>, slots: u32) -> Result<Backend, LoadError> {
        match (ring, self.asked) {
            (Ok(ring), _) => Ok(Backend::Ring(Box::new(ring))),
            // Each ring takes memory and descriptors, so a later one may fail.
            (Err(error), Io::Auto) => {
                self.failures().push(why_no_ring(&error));
                self.poll(slots)
            }
            (Err(error), Io::Epoll | Io::Uring) => Err(no_ring(error)),
        }
    }

    fn poll(&self, slots: u32) -> Result<Backend, LoadError> {
        let poll = Poll::new(slots, self.input_bytes);
        let poll = poll.map_err(LoadError::during("cannot set up the back end of a thread"))?;
        Ok(Backend::Poll(Box::new(poll)))
    }

    fn failures(&self) -> MutexGuard<'_, Vec<&'static str>> {
        self.without_ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Back ends in use, for people.
    pub(crate) fn reason(&self, threads: u32) -> String {
        let failures = self.failures();
        match failures.first() {
            None => self.reason.clone(),
            Some(why) if failures.len() == threads as usize => format!("epoll ({why})"),
            Some(why) => {
                let taken = &self.reason;
                let without = failures.len();
                format!("{taken}; epoll in {without} of {threads} threads ({why})")
            }
        }
    }
}

fn no_ring(error: io::Error) -> LoadError {
    LoadError(format!("{}; use --io epoll: {error}", why_no_ring(&error)))
}

fn why_no_ring(error: &io::Error) -> &'static str {
    let setting = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
    why_no_ring_of(error, setting.as_deref().map(str::trim))
}

/// Explains the error. `setting` is `kernel.io_uring_disabled`, which exists since Linux 6.6.
fn why_no_ring_of(error: &io::Error, setting: Option<&str>) -> &'static str {
    match (error.raw_os_error(), setting) {
        (Some(libc::EPERM | libc::EACCES), Some("0")) => "a seccomp filter forbids io_uring",
        (Some(libc::EPERM | libc::EACCES), Some(_)) => "kernel.io_uring_disabled forbids io_uring",
        (Some(libc::EPERM | libc::EACCES), None) => {
            "io_uring is denied here (kernel.io_uring_disabled, or a seccomp filter)"
        }
        // Some filters answer as if the call did not exist.
        (Some(libc::ENOSYS), Some(_)) => "a seccomp filter hides io_uring",
        (Some(libc::ENOSYS), None) => "this kernel has no io_uring",
        (Some(libc::EINVAL), _) => "this kernel's io_uring is older than Linux 6.1",
        (Some(libc::ENOMEM), _) => "io_uring got no memory (ulimit -l, or the cgroup's MemoryMax=)",
        (Some(libc::EMFILE | libc::ENFILE), _) => "no descriptor is left (ulimit -n)",
        _ => "io_uring could not be set up",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_denies_a_ring_is_said() {
        let why = |number, setting| why_no_ring_of(&io::Error::from_raw_os_error(number), setting);
        for (number, setting, said) in [
            (libc::EPERM, Some("0"), "seccomp"),
            (libc::EPERM, Some("2"), "kernel.io_uring_disabled forbids"),
            (libc::EPERM, None, "or a seccomp filter"),
            (libc::ENOSYS, Some("0"), "seccomp"),
            (libc::ENOSYS, None, "this kernel has no io_uring"),
            (libc::ENOMEM, Some("0"), "ulimit -l"),
            (libc::EMFILE, Some("0"), "ulimit -n"),
        ] {
            let sentence = why(number, setting);
            assert!(sentence.contains(said), "{number} {setting:?}: {sentence}");
        }
    }

    /// Seen: with little memory `--io auto` ended with an error where one thread's ring was made
    /// and another's was not. Cause: one ring was tried, for all. Cure: each thread falls back.
    #[test]
    fn failed_ring_falls_back_to_epoll() {
        let no_memory = || Err(io::Error::from_raw_os_error(libc::ENOMEM));
        let kernel = |asked| Kernel {
            asked,
            io: Io::Uring,
            reason: "io_uring".to_owned(),
            input_bytes: 64,
            without_ring: Mutex::default(),
        };
        let auto = kernel(Io::Auto);
        assert_eq!(auto.reason(2), "io_uring");
        assert!(matches!(auto.take(no_memory(), 1), Ok(Backend::Poll(_))));
        let some = auto.reason(2);
        assert!(some.starts_with("io_uring; epoll in 1 of 2 threads (io_uring got no memory"));
        assert!(matches!(auto.take(no_memory(), 1), Ok(Backend::Poll(_))));
        let all = auto.reason(2);
        assert!(all.starts_with("epoll (io_uring got no memory"), "{all}");
        let Err(refused) = kernel(Io::Uring).take(no_memory(), 1) else {
            panic!("a ring was asked for");
        };
        let said = refused.to_string();
        assert!(said.contains("ulimit -l") && said.contains("--io epoll"), "{said}");
    }
}
