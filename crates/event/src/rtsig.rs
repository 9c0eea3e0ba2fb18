//! POSIX real-time signals: each descriptor queues a signal to this thread when it becomes ready
//! (`F_SETSIG` and `O_ASYNC` in fcntl(2)), and the thread takes them from the queue one by one.
//!
//! What is hard about it, and what is done here:
//!
//! - **The queue overflows** at `RLIMIT_SIGPENDING` signals of the user. The kernel then sends one
//!   SIGIO and drops the rest. [`Overflow`] says how the dispatcher recovers: it empties the queue and
//!   asks about all descriptors once.
//! - **Bytes that came before** `O_ASYNC` was set send no signal. So a descriptor that was added or
//!   modified is asked about once by the next wait.
//! - **Signals outlive their descriptor.** One that is still queued when its descriptor is removed may
//!   meet another with the same number. Signals of one number are queued in order, so whatever is
//!   taken after the queue was seen empty is no older than that. A signal for a descriptor that was
//!   added since then is checked with `poll(2)` before it is believed.
//! - **Signals do not collapse**: three writes by the peer are three signals. Within one wait they
//!   become one report.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use libc::pollfd;
use rustix::io::Errno;

use crate::table::Table;
use crate::{Dispatcher, Interest, Readiness, Ready, Token, Trigger, sys};

// <asm-generic/fcntl.h>; the C library's crate does not have them.
const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;
const F_SETOWN_EX: i32 = 15;
const F_OWNER_TID: i32 = 0;

/// What one wait takes from the queue; the rest comes with the next.
const SIGNALS_PER_WAIT: usize = 1024;
/// What one read of the signalfd takes.
const SIGNALS_PER_READ: usize = 128;

/// How [`RtSig`] takes signals, and how it recovers when the kernel's queue has overflowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// One signal for each call; asks about all descriptors with `poll(2)`.
    Poll,
    /// One signal for each call; asks about all descriptors with `select(2)`.
    Select,
    /// Up to 128 signals for each call, through a signalfd; asks with `poll(2)`.
    Signalfd,
}

/// Real-time signals to the thread that made it.
///
/// The signals stay blocked in this thread for good, also after the dispatcher is dropped: one that
/// a forgotten duplicate of a descriptor sends later would end the process.
///
/// A Unix stream socket signals that it is writable again only if a write has failed with `EAGAIN`
/// while it was watched. Callers that write first, and wait then, notice nothing of it.
pub struct RtSig {
    overflow: Overflow,
    signal: i32,
    /// Our signal and SIGIO.
    signals: libc::sigset_t,
    signalfd: Option<OwnedFd>,
    watched: Table<Watched>,
    /// Descriptors which may have become ready before they sent signals.
    unsure: Vec<RawFd>,
    /// How often the queue was seen empty.
    emptied: u64,
    waits: u64,
    counts: RtSigCounts,
    /// Signals go to one thread.
    not_send: PhantomData<*const ()>,
}

struct Watched {
    token: Token,
    events: i16,
    /// [`RtSig::emptied`] when it was added.
    added_at: u64,
    /// The last wait that reported it, and where in the report.
    reported_by: u64,
    reported_at: usize,
}

/// What an [`RtSig`] has seen so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RtSigCounts {
    /// Signals taken from the queue.
    pub signals: u64,
    /// Of these, signals of descriptors that were removed, or reused and not ready.
    pub stale: u64,
    /// How often the queue had overflowed.
    pub overflows: u64,
}

/// A signal: which descriptor, and its readiness as `poll(2)` has it.
struct Sent {
    fd: RawFd,
    band: u32,
}

thread_local! {
    /// Two on one thread would take each other's signals.
    static IN_USE: Cell<bool> = const { Cell::new(false) };
}

impl RtSig {
    /// A dispatcher for the calling thread, which watches nothing yet.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the thread has one already; `EMFILE`.
    pub fn new(overflow: Overflow) -> io::Result<RtSig> {
        let signal = libc::SIGRTMIN() + 5;
        let signals = signal_set(&[signal, libc::SIGIO]);
        block(&signals)?;
        let signalfd = match overflow {
            Overflow::Signalfd => Some(signalfd(&signals)?),
            Overflow::Poll | Overflow::Select => None,
        };
        if IN_USE.replace(true) {
            return Err(Errno::BUSY.into());
        }
        Ok(RtSig {
            overflow,
            signal,
            signals,
            signalfd,
            watched: Table::default(),
            unsure: Vec::new(),
            emptied: 0,
            waits: 0,
            counts: RtSigCounts::default(),
            not_send: PhantomData,
        })
    }

    /// What was seen so far.
    #[must_use]
    pub fn counts(&self) -> RtSigCounts {
        self.counts
    }

    /// Takes what is queued, waiting for the first if there is time left, and reports it. Says
    /// whether the queue had overflowed.
    fn take_signals(
        &mut self,
        ready: &mut Vec<Ready>,
        deadline: Option<Instant>,
    ) -> io::Result<bool> {
        let mut batch = Vec::new();
        let mut taken = 0;
        let mut has_overflowed = false;
        while taken < SIGNALS_PER_WAIT || has_overflowed {
            let may_sleep = taken == 0 && ready.is_empty();
            let timeout = match deadline {
                _ if !may_sleep => Some(Duration::ZERO),
                Some(deadline) => Some(deadline.saturating_duration_since(Instant::now())),
                None => None,
            };
            batch.clear();
            match self.next_signals(&mut batch, timeout)? {
                Next::Some => {}
                Next::Empty => {
                    self.emptied += 1;
                    break;
                }
                Next::Interrupted if taken == 0 => break,
                Next::Interrupted => continue,
            }
            for sent in &batch {
                taken += 1;
                match sent {
                    None => has_overflowed = true,
                    // A full look follows, so what the queue still says is not needed.
                    Some(_) if has_overflowed => self.counts.signals += 1,
                    Some(sent) => self.on_signal(sent, ready)?,
                }
            }
        }
        Ok(has_overflowed)
    }

    /// The next signals of the queue; `None` in it is SIGIO.
    fn next_signals(
        &self,
        batch: &mut Vec<Option<Sent>>,
        timeout: Option<Duration>,
    ) -> io::Result<Next> {
        match &self.signalfd {
            Some(signalfd) => read_signals(signalfd, self.signal, batch, timeout),
            None => wait_for_signal(&self.signals, self.signal, batch, timeout),
        }
    }

    fn on_signal(&mut self, sent: &Sent, ready: &mut Vec<Ready>) -> io::Result<()> {
        self.counts.signals += 1;
        let Some(watched) = self.watched.find(sent.fd) else {
            self.counts.stale += 1;
            return Ok(());
        };
        let mut band = sent.band;
        if watched.added_at == self.emptied {
            band = sys::look_at(sent.fd, watched.events)?;
            self.counts.stale += u64::from(band == 0);
        }
        let always = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;
        band &= (watched.events | always) as u32;
        self.report(sent.fd, Readiness::from_poll(band), ready);
        Ok(())
    }

    fn report(&mut self, fd: RawFd, readiness: Readiness, ready: &mut Vec<Ready>) {
        let Some(watched) = self.watched.find(fd).filter(|_| !readiness.is_nothing()) else {
            return;
        };
        if watched.reported_by == self.waits {
            ready[watched.reported_at].readiness |= readiness;
            return;
        }
        watched.reported_by = self.waits;
        watched.reported_at = ready.len();
        ready.push(Ready {
            token: watched.token,
            readiness,
        });
    }

    /// Asks about descriptors that may have become ready before they sent signals.
    fn look_at_unsure(&mut self, ready: &mut Vec<Ready>) -> io::Result<()> {
        let unsure = std::mem::take(&mut self.unsure);
        self.look_at(unsure.into_iter(), ready)
    }

    fn look_at(
        &mut self,
        fds: impl Iterator<Item = RawFd>,
        ready: &mut Vec<Ready>,
    ) -> io::Result<()> {
        let asked = fds.filter_map(|fd| {
            let events = self.watched.find(fd)?.events;
            Some(pollfd {
                fd,
                events,
                revents: 0,
            })
        });
        let mut asked: Vec<_> = asked.collect();
        if asked.is_empty() {
            return Ok(());
        }
        sys::poll(&mut asked, Some(Duration::ZERO))?;
        for polled in &asked {
            self.report(
                polled.fd,
                Readiness::from_poll(polled.revents as u32),
                ready,
            );
        }
        Ok(())
    }

    /// The queue has overflowed: any descriptor may be ready without a signal.
    fn look_at_all(&mut self, ready: &mut Vec<Ready>) -> io::Result<()> {
        self.counts.overflows += 1;
        if self.overflow == Overflow::Select {
            return self.select_all(ready);
        }
        let all: Vec<_> = self.watched.iter().map(|(fd, _)| fd).collect();
        self.look_at(all.into_iter(), ready)
    }

    fn select_all(&mut self, ready: &mut Vec<Ready>) -> io::Result<()> {
        let words = self
            .watched
            .iter()
            .last()
            .map_or(0, |(fd, _)| fd as usize / 64 + 1);
        let (mut reads, mut writes) = (vec![0_u64; words], vec![0_u64; words]);
        let mut asked = Vec::with_capacity(self.watched.len());
        for (fd, watched) in self.watched.iter() {
            let (word, bit) = (fd as usize / 64, 1 << (fd % 64));
            reads[word] |= if watched.events & libc::POLLIN != 0 {
                bit
            } else {
                0
            };
            writes[word] |= if watched.events & libc::POLLOUT != 0 {
                bit
            } else {
                0
            };
            asked.push((fd, word, bit));
        }
        sys::select(&mut reads, &mut writes, Some(Duration::ZERO))?;
        for (fd, word, bit) in asked {
            let mut readiness = Readiness::default();
            if reads[word] & bit != 0 {
                readiness |= Readiness::READABLE;
            }
            if writes[word] & bit != 0 {
                readiness |= Readiness::WRITABLE;
            }
            self.report(fd, readiness, ready);
        }
        Ok(())
    }
}

impl Dispatcher for RtSig {
    fn add(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        let fd = fd.as_raw_fd();
        let watched = Watched {
            token,
            events: interest.poll_events(),
            added_at: self.emptied,
            reported_by: 0,
            reported_at: 0,
        };
        self.watched.insert(fd, watched)?;
        if let Err(error) = arm(fd, self.signal) {
            self.watched.remove(fd)?;
            return Err(error);
        }
        self.unsure.push(fd);
        Ok(())
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        let watched = self.watched.get_mut(fd.as_raw_fd())?;
        watched.token = token;
        watched.events = interest.poll_events();
        self.unsure.push(fd.as_raw_fd());
        Ok(())
    }

    fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.watched.remove(fd.as_raw_fd())?;
        disarm(fd.as_raw_fd())
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> io::Result<()> {
        ready.clear();
        self.waits += 1;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.look_at_unsure(ready)?;
        // A signal that is stale or not asked for is not a reason to end the wait.
        loop {
            let taken_before = self.counts.signals;
            if self.take_signals(ready, deadline)? {
                self.look_at_all(ready)?;
            }
            let is_over = deadline.is_some_and(|deadline| deadline <= Instant::now());
            if !ready.is_empty() || is_over || self.counts.signals == taken_before {
                return Ok(());
            }
        }
    }

    fn trigger(&self) -> Trigger {
        Trigger::Edge
    }
}

impl Drop for RtSig {
    fn drop(&mut self) {
        for (fd, _) in self.watched.iter() {
            // The number may stand for another file by now, which is none of our business.
            if sends_signal(fd, self.signal) {
                let _ = disarm(fd);
            }
        }
        let mut batch = Vec::new();
        while let Ok(Next::Some) = self.next_signals(&mut batch, Some(Duration::ZERO)) {
            batch.clear();
        }
        IN_USE.set(false);
    }
}

enum Next {
    Some,
    Empty,
    Interrupted,
}

fn wait_for_signal(
    signals: &libc::sigset_t,
    own: i32,
    batch: &mut Vec<Option<Sent>>,
    timeout: Option<Duration>,
) -> io::Result<Next> {
    let timeout = timeout.map(sys::timespec);
    let limit = timeout
        .as_ref()
        .map_or(null(), |it| it as *const libc::timespec);
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: the kernel reads the set and the time-out, which live until the end of this function,
    // and writes one siginfo_t (sigtimedwait(2)).
    let signal = unsafe { libc::sigtimedwait(signals, info.as_mut_ptr(), limit) };
    if signal == own {
        // SAFETY: it is zeroed memory with what the kernel wrote into it, and larger than SigPoll;
        // for a signal of F_SETSIG the kernel has filled in what SigPoll describes.
        let sent = unsafe { info.as_ptr().cast::<SigPoll>().read() };
        batch.push(Some(Sent {
            fd: sent.fd,
            band: sent.band as u32,
        }));
        return Ok(Next::Some);
    }
    if signal == libc::SIGIO {
        batch.push(None);
        return Ok(Next::Some);
    }
    match Errno::from_io_error(&io::Error::last_os_error()) {
        Some(Errno::AGAIN) => Ok(Next::Empty),
        Some(Errno::INTR) => Ok(Next::Interrupted),
        error => Err(error.unwrap_or(Errno::INVAL).into()),
    }
}

/// `siginfo_t` of a signal that a descriptor sent (sigaction(2), `si_band` and `si_fd`), which the C
/// library's crate does not describe.
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

fn read_signals(
    signalfd: &OwnedFd,
    own: i32,
    batch: &mut Vec<Option<Sent>>,
    timeout: Option<Duration>,
) -> io::Result<Next> {
    if timeout != Some(Duration::ZERO) {
        let fd = signalfd.as_raw_fd();
        let mut one = [pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        }];
        sys::poll(&mut one, timeout)?;
    }
    let mut infos = [const { MaybeUninit::<libc::signalfd_siginfo>::uninit() }; SIGNALS_PER_READ];
    let size = size_of::<libc::signalfd_siginfo>();
    // SAFETY: the kernel writes at most the bytes of `infos`, as whole entries (signalfd(2)).
    let read = unsafe {
        libc::read(
            signalfd.as_raw_fd(),
            infos.as_mut_ptr().cast(),
            SIGNALS_PER_READ * size,
        )
    };
    let Ok(bytes) = usize::try_from(read) else {
        return match Errno::from_io_error(&io::Error::last_os_error()) {
            Some(Errno::AGAIN) => Ok(Next::Empty),
            Some(Errno::INTR) => Ok(Next::Interrupted),
            error => Err(error.unwrap_or(Errno::INVAL).into()),
        };
    };
    for info in &infos[..bytes / size] {
        // SAFETY: the kernel wrote `bytes / size` entries.
        let info = unsafe { info.assume_init_ref() };
        let is_own = info.ssi_signo == own as u32;
        batch.push(is_own.then_some(Sent {
            fd: info.ssi_fd,
            band: info.ssi_band,
        }));
    }
    Ok(Next::Some)
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

/// Blocks the signals in this thread: they stay in the queue until they are taken.
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
    if fd == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and open, and nothing else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes the descriptor queue `signal` to this thread when it becomes ready.
fn arm(fd: RawFd, signal: i32) -> io::Result<()> {
    let owner = Owner {
        kind: F_OWNER_TID,
        id: rustix::thread::gettid().as_raw_nonzero().get(),
    };
    // SAFETY: these set what the file does when it becomes ready; F_SETOWN_EX reads one f_owner_ex
    // (fcntl(2)).
    unsafe {
        fcntl_result(libc::fcntl(fd, F_SETSIG, signal))?;
        fcntl_result(libc::fcntl(fd, F_SETOWN_EX, &raw const owner))?;
        let flags = fcntl_result(libc::fcntl(fd, libc::F_GETFL))?;
        fcntl_result(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_ASYNC))?;
    }
    // A file without support for it takes the flag silently, or not at all.
    // SAFETY: it reads the flags (fcntl(2)).
    let flags = fcntl_result(unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
    if flags & libc::O_ASYNC == 0 {
        Err(Errno::PERM.into())
    } else {
        Ok(())
    }
}

/// `struct f_owner_ex` of fcntl(2).
#[repr(C)]
struct Owner {
    kind: i32,
    id: libc::pid_t,
}

fn disarm(fd: RawFd) -> io::Result<()> {
    // SAFETY: it reads and sets the flags of the file (fcntl(2)).
    unsafe {
        let flags = fcntl_result(libc::fcntl(fd, libc::F_GETFL))?;
        fcntl_result(libc::fcntl(fd, libc::F_SETFL, flags & !libc::O_ASYNC))?;
    }
    Ok(())
}

fn sends_signal(fd: RawFd, signal: i32) -> bool {
    // SAFETY: it reads a property of the file, if the descriptor is open (fcntl(2)).
    unsafe { libc::fcntl(fd, F_GETSIG) == signal }
}

fn fcntl_result(returned: i32) -> io::Result<i32> {
    if returned == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(returned)
    }
}
