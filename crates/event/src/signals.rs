//! The queue of real-time signals of one thread: the system calls under [`RtSig`](crate::RtSig).

#![allow(unsafe_code)]

use std::io;
use std::mem::{MaybeUninit, align_of, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{null, null_mut};
use std::time::Duration;

use libc::pollfd;
use rustix::io::Errno;

use crate::sys;

// <asm-generic/fcntl.h>; the C library's crate does not have them.
const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;
const F_SETOWN_EX: i32 = 15;
const F_GETOWN_EX: i32 = 16;
const F_OWNER_TID: i32 = 0;

/// Signals that one read of the signalfd takes.
const SIGNALS_PER_READ: usize = 128;

/// The signals that descriptors send to the calling thread.
pub(crate) struct Queue {
    signal: i32,
    /// `signal`, and SIGIO, by which the kernel reports that its queue has overflowed.
    signals: libc::sigset_t,
    /// Takes many signals in one call.
    signalfd: Option<OwnedFd>,
}

/// Entry of the queue.
pub(crate) enum Signal {
    /// A descriptor became ready; `band` has the bits of `poll(2)`.
    Ready { fd: RawFd, band: u32 },
    /// SIGIO: from here on signals were dropped.
    Overflow,
}

pub(crate) enum Next {
    Some,
    Empty,
    Interrupted,
}

impl Queue {
    /// Blocks the signals in the calling thread: from now on they stay queued until they are taken.
    pub(crate) fn new(is_batched: bool) -> io::Result<Queue> {
        let signal = libc::SIGRTMIN() + 5;
        let signals = signal_set(&[signal, libc::SIGIO]);
        block(&signals)?;
        let signalfd = is_batched.then(|| signalfd(&signals)).transpose()?;
        Ok(Queue { signal, signals, signalfd })
    }

    /// Takes the next signal, or the next few if they are batched, and appends them to `batch`.
    pub(crate) fn next(
        &self,
        batch: &mut Vec<Signal>,
        timeout: Option<Duration>,
    ) -> io::Result<Next> {
        match &self.signalfd {
            Some(signalfd) => self.read(signalfd, batch, timeout),
            None => self.wait(batch, timeout),
        }
    }

    fn wait(&self, batch: &mut Vec<Signal>, timeout: Option<Duration>) -> io::Result<Next> {
        let timeout = timeout.map(sys::timespec);
        let limit = timeout.as_ref().map_or(null(), |it| it as *const libc::timespec);
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: the kernel reads the set and the time-out, which live until the end of this
        // function, and writes one siginfo_t (sigtimedwait(2)).
        let signal = unsafe { libc::sigtimedwait(&self.signals, info.as_mut_ptr(), limit) };
        if signal == -1 {
            return nothing_taken();
        }
        // SAFETY: `info` was zeroed before the kernel wrote to it, is as large as SigPoll and as
        // aligned, and SigPoll may have any bits.
        let sent = unsafe { info.as_ptr().cast::<SigPoll>().read() };
        batch.push(self.signal(signal, sent.fd, sent.band as u32));
        Ok(Next::Some)
    }

    fn read(
        &self,
        signalfd: &OwnedFd,
        batch: &mut Vec<Signal>,
        timeout: Option<Duration>,
    ) -> io::Result<Next> {
        let fd = signalfd.as_raw_fd();
        if timeout != Some(Duration::ZERO) {
            let mut one = [pollfd { fd, events: libc::POLLIN, revents: 0 }];
            sys::poll(&mut one, timeout)?;
        }
        type Info = libc::signalfd_siginfo;
        let mut infos = [const { MaybeUninit::<Info>::uninit() }; SIGNALS_PER_READ];
        // SAFETY: the kernel writes at most the bytes of `infos`, as whole entries (signalfd(2)).
        let read = unsafe { libc::read(fd, infos.as_mut_ptr().cast(), size_of_val(&infos)) };
        let Ok(bytes) = usize::try_from(read) else {
            return nothing_taken();
        };
        for info in &infos[..bytes / size_of::<Info>()] {
            // SAFETY: the kernel has written this many entries.
            let info = unsafe { info.assume_init_ref() };
            batch.push(self.signal(info.ssi_signo as i32, info.ssi_fd, info.ssi_band));
        }
        Ok(Next::Some)
    }

    fn signal(&self, signal: i32, fd: RawFd, band: u32) -> Signal {
        if signal == self.signal { Signal::Ready { fd, band } } else { Signal::Overflow }
    }

    /// Makes the descriptor queue a signal to this thread when it becomes ready.
    pub(crate) fn arm(&self, fd: RawFd) -> io::Result<()> {
        let owner = Owner { kind: F_OWNER_TID, id: this_thread() };
        // The kernel notes the number that it puts into the signal when the flag goes from off to
        // on. It may be on: then the file was watched under another number, or elsewhere.
        disarm(fd)?;
        // SAFETY: these set what the file does when it becomes ready; F_SETOWN_EX reads one
        // f_owner_ex (fcntl(2)).
        unsafe {
            done(libc::fcntl(fd, F_SETSIG, self.signal))?;
            done(libc::fcntl(fd, F_SETOWN_EX, &raw const owner))?;
        }
        // A file without support for it takes the flag silently, and does not keep it.
        set_flags(fd, flags(fd)? | libc::O_ASYNC)?;
        if flags(fd)? & libc::O_ASYNC == 0 {
            return Err(Errno::PERM.into());
        }
        Ok(())
    }

    /// True if the descriptor is open and sends signals of this queue. The number may name another
    /// file by now, and this may be a copy of the queue in a forked child.
    pub(crate) fn is_armed(&self, fd: RawFd) -> bool {
        let mut owner = Owner { kind: -1, id: 0 };
        // SAFETY: both read properties of the file, the second into one f_owner_ex (fcntl(2)).
        let signal = unsafe {
            libc::fcntl(fd, F_GETOWN_EX, &raw mut owner);
            libc::fcntl(fd, F_GETSIG)
        };
        signal == self.signal && owner.kind == F_OWNER_TID && owner.id == this_thread()
    }
}

/// Stops the signals of the descriptor.
pub(crate) fn disarm(fd: RawFd) -> io::Result<()> {
    match flags(fd)? {
        armed if armed & libc::O_ASYNC != 0 => set_flags(fd, armed & !libc::O_ASYNC),
        _ => Ok(()),
    }
}

/// `siginfo_t` of a signal that a descriptor sent (sigaction(2), `si_band` and `si_fd`), which the
/// C library's crate does not describe.
#[repr(C)]
struct SigPoll {
    signo: i32,
    errno: i32,
    code: i32,
    // The union behind these is aligned as a long: `band` is.
    band: libc::c_long,
    fd: i32,
}

const _: () = assert!(size_of::<SigPoll>() <= size_of::<libc::siginfo_t>());
const _: () = assert!(align_of::<SigPoll>() <= align_of::<libc::siginfo_t>());

/// `struct f_owner_ex` of fcntl(2).
#[repr(C)]
struct Owner {
    kind: i32,
    id: libc::pid_t,
}

fn this_thread() -> libc::pid_t {
    rustix::thread::gettid().as_raw_nonzero().get()
}

fn signal_set(signals: &[i32]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initializes the set; sigaddset gets signals that exist (sigsetops(3)).
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}

fn block(signals: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: it reads the set (pthread_sigmask(3)).
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, signals, null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

fn signalfd(signals: &libc::sigset_t) -> io::Result<OwnedFd> {
    // SAFETY: it reads the set and returns a new descriptor, or -1 (signalfd(2)).
    let fd = unsafe { libc::signalfd(-1, signals, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    let fd = done(fd)?;
    // SAFETY: the descriptor is new and open, and nothing else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn flags(fd: RawFd) -> io::Result<i32> {
    // SAFETY: it reads the flags of the file (fcntl(2)).
    done(unsafe { libc::fcntl(fd, libc::F_GETFL) })
}

fn set_flags(fd: RawFd, flags: i32) -> io::Result<()> {
    // SAFETY: it sets flags of the file (fcntl(2)).
    done(unsafe { libc::fcntl(fd, libc::F_SETFL, flags) }).map(drop)
}

/// A call that takes signals has failed: there are none, or a handler ran.
fn nothing_taken() -> io::Result<Next> {
    let error = io::Error::last_os_error();
    match error.kind() {
        io::ErrorKind::WouldBlock => Ok(Next::Empty),
        io::ErrorKind::Interrupted => Ok(Next::Interrupted),
        _ => Err(error),
    }
}

fn done(returned: i32) -> io::Result<i32> {
    if returned == -1 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}
