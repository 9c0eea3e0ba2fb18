//! Signals, waited for in a fiber.
//!
//! ```no_run
//! use weftwork_fiber::signal::{SIGHUP, SIGTERM, Signals};
//!
//! weftwork_fiber::run(|| {
//!     let signals = Signals::new([SIGTERM, SIGHUP]).unwrap();
//!     loop {
//!         match signals.wait() {
//!             Ok(SIGHUP) => println!("reload"),
//!             Ok(_) => return println!("drain"),
//!             Err(error) => panic!("{error}"),
//!         }
//!     }
//! });
//! ```

use std::ffi::{c_int, c_void};
use std::fmt;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::AtomicPtr;

pub use libc::{
    SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2,
    SIGWINCH,
};

use crate::base::atomic::{AtomicU64, Ordering};
use crate::base::home::Home;
use crate::base::lock::lock;
use crate::io::fork::notice_forks;
use crate::net::UnixStream;

/// Waits for signals. From when it is made until it is dropped, these signals do nothing by
/// themselves any more; a handler that was there before is called as well. When the last `Signals`
/// of a signal is dropped the former disposition comes back: SIGTERM, for one, ends the process
/// again.
///
/// A handler that was installed over this one meanwhile (`signal-hook` and others call the handler
/// that they find) stays, and decides what the signal does.
///
/// A signal that comes twice before a wait is reported once, as the kernel does with blocked
/// signals.
pub struct Signals {
    listener: &'static Listener,
    wake_receiver: UnixStream,
}

/// State of one [`Signals`] that the handler touches: it may only do what is safe at any moment
/// (signal-safety(7)). Never freed, because a handler may be looking at it, and used again: there
/// are as many as there have been `Signals` at one time.
struct Listener {
    /// One bit for each signal that it listens to; none while no `Signals` has it.
    wanted: AtomicU64,
    pending: Pending,
    /// Process that owns the sockets: a byte from a forked child would wake the parent, or the
    /// other way round.
    home: Home,
    wake_sender: StdUnixStream,
    wake_receiver: StdUnixStream,
    next: Option<&'static Listener>,
}

/// All listeners, in a list that only grows.
static LISTENERS: AtomicPtr<Listener> = AtomicPtr::new(ptr::null_mut());

/// Signals have the numbers 1 to 64.
const SIGNALS: usize = 65;

/// Former dispositions, by signal. Never freed either.
static FORMER: [AtomicPtr<libc::sigaction>; SIGNALS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; SIGNALS];

/// Held while dispositions change.
static REGISTERED: Mutex<Registered> =
    Mutex::new(Registered { users: [0; SIGNALS], is_beneath: [false; SIGNALS], idle: Vec::new() });

struct Registered {
    /// Number of `Signals` that wait, by signal.
    users: [usize; SIGNALS],
    /// True if another handler lay over this one when the last of them was dropped, by signal.
    is_beneath: [bool; SIGNALS],
    /// Listeners that no `Signals` has.
    idle: Vec<&'static Listener>,
}

/// Signals of which a handler cannot return, and those that cannot be caught.
const FORBIDDEN: [i32; 6] =
    [libc::SIGKILL, libc::SIGSTOP, libc::SIGILL, libc::SIGFPE, libc::SIGSEGV, libc::SIGBUS];

impl Signals {
    /// Starts to wait for these signals.
    ///
    /// # Errors
    /// `InvalidInput` for a signal that cannot be caught; else what `sigaction(2)` or
    /// `socketpair(2)` reports.
    pub fn new(signals: impl IntoIterator<Item = i32>) -> io::Result<Signals> {
        // The caller's code runs before the lock is taken.
        let signals: Vec<i32> = signals.into_iter().collect();
        notice_forks();
        let mut registered = lock(&REGISTERED);
        registered.idle.retain(|listener| listener.home.is_here());
        let listener = match registered.idle.pop() {
            Some(listener) => listener,
            None => Listener::add()?,
        };
        listener.forget();
        let wake_receiver = match listener.wake_receiver.try_clone() {
            Ok(wake_receiver) => OwnedFd::from(wake_receiver).into(),
            Err(error) => {
                registered.idle.push(listener);
                return Err(error);
            }
        };
        let waiting = Signals { listener, wake_receiver };
        let result =
            signals.into_iter().try_for_each(|signal| waiting.add(&mut registered, signal));
        // If one failed, dropping `waiting` takes the others back.
        drop(registered);
        result.map(|()| waiting)
    }

    fn add(&self, registered: &mut Registered, signal: i32) -> io::Result<()> {
        let index = usize::try_from(signal).unwrap_or(0);
        if FORBIDDEN.contains(&signal) || !(1..SIGNALS).contains(&index) {
            let message = format!("signal {signal} cannot be caught");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let wanted = self.listener.wanted.load(Ordering::Relaxed);
        if wanted & bit_of(signal) != 0 {
            return Ok(());
        }
        // Set before the handler is installed, which replaces the signal's default effect.
        let more = wanted | bit_of(signal);
        self.listener.wanted.store(more, Ordering::Release);
        if registered.users[index] == 0 {
            install(registered, signal)
                .inspect_err(|_| self.listener.wanted.store(wanted, Ordering::Release))?;
        }
        registered.users[index] += 1;
        Ok(())
    }

    /// Waits until one of the signals has come, and returns its number. One waits at a time.
    ///
    /// # Errors
    /// `TimedOut` past the deadline of [`timeout`](crate::timeout); `NotConnected` in the child of
    /// a fork, which needs `Signals` of its own; else what `recv(2)` reports.
    pub fn wait(&self) -> io::Result<i32> {
        if !self.listener.home.is_here() {
            let message = "this process was forked from the one that waits for these signals";
            return Err(io::Error::new(io::ErrorKind::NotConnected, message));
        }
        loop {
            if let Some(signal) = self.listener.take() {
                return Ok(signal);
            }
            // Takes all bytes: each was sent after its bit was set.
            if (&self.wake_receiver).read(&mut [0; 64])? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// A signal that has come and was not returned yet, if there is one. Does not wait.
    pub fn take(&self) -> Option<i32> {
        self.listener.take()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        let mut registered = lock(&REGISTERED);
        let wanted = self.listener.wanted.load(Ordering::Relaxed);
        for signal in (1..SIGNALS as i32).filter(|&signal| wanted & bit_of(signal) != 0) {
            let users = &mut registered.users[signal as usize];
            *users -= 1;
            if *users == 0 {
                uninstall(&mut registered, signal);
            }
        }
        self.listener.wanted.store(0, Ordering::Release);
        registered.idle.push(self.listener);
    }
}

fn bit_of(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Reads the disposition of a signal, or sets it.
fn sigaction(signal: i32, new: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: all-zero is a valid `sigaction`; the kernel reads and writes whole ones. `new` holds
    // the runtime's handler, which may be called at any moment, or the disposition from before.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        match libc::sigaction(signal, new, &mut old) {
            0 => Ok(old),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn is_ours(action: &libc::sigaction) -> bool {
    action.sa_sigaction == handler as *const () as usize
}

fn install(registered: &mut Registered, signal: i32) -> io::Result<()> {
    let current = sigaction(signal, None)?;
    let is_function = ![libc::SIG_DFL, libc::SIG_IGN].contains(&current.sa_sigaction);
    let is_beneath = std::mem::take(&mut registered.is_beneath[signal as usize]);
    if is_ours(&current) || (is_beneath && is_function) {
        return Ok(());
    }
    let former = &FORMER[signal as usize];
    // SAFETY: null or leaked.
    let known = unsafe { former.load(Ordering::Acquire).as_ref() };
    let is_known = known.is_some_and(|known| {
        let of = |it: &libc::sigaction| (it.sa_sigaction, it.sa_flags);
        of(known) == of(&current)
    });
    if !is_known {
        let current: &mut _ = Box::leak(Box::new(current));
        former.store(current, Ordering::Release);
    }
    // SAFETY: all-zero is a valid `sigaction`, with an empty mask.
    let mut own: libc::sigaction = unsafe { std::mem::zeroed() };
    own.sa_sigaction = handler as *const () as usize;
    // ONSTACK: the stacks of fibers are small.
    own.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    sigaction(signal, Some(&own)).map(drop)
}

/// Brings the former disposition back, unless another handler was installed over this one.
fn uninstall(registered: &mut Registered, signal: i32) {
    let is_on_top = sigaction(signal, None).is_ok_and(|current| is_ours(&current));
    registered.is_beneath[signal as usize] = !is_on_top;
    // SAFETY: null or leaked.
    let former = unsafe { FORMER[signal as usize].load(Ordering::Acquire).as_ref() };
    if let Some(former) = former.filter(|_| is_on_top) {
        // The kernel took it before, so it takes it again.
        let _ = sigaction(signal, Some(former));
    }
}

extern "C" fn handler(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the address of this thread's own. The interrupted code finds it as it was.
    let errno = unsafe { *libc::__errno_location() };
    let former = usize::try_from(signal).ok().and_then(|index| FORMER.get(index));
    // SAFETY: null or leaked.
    if let Some(former) = former.and_then(|it| unsafe { it.load(Ordering::Acquire).as_ref() }) {
        call(former, signal, info, context);
    }
    // SAFETY: null or leaked.
    let mut next = unsafe { LISTENERS.load(Ordering::Acquire).as_ref() };
    while let Some(listener) = next {
        listener.arrived(signal);
        next = listener.next;
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Calls a handler that was installed before the runtime's, as the kernel would.
pub(crate) fn call(
    action: &libc::sigaction,
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    type Plain = extern "C" fn(c_int);
    type WithInfo = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
    let function = action.sa_sigaction;
    if [libc::SIG_DFL, libc::SIG_IGN].contains(&function) {
        return;
    }
    let function = ptr::with_exposed_provenance::<()>(function);
    // SAFETY: it was installed as a handler of this form, and its library is still there, as the
    // kernel takes for granted as well. sigaction(2)
    unsafe {
        if action.sa_flags & libc::SA_SIGINFO == 0 {
            std::mem::transmute::<*const (), Plain>(function)(signal);
        } else {
            std::mem::transmute::<*const (), WithInfo>(function)(signal, info, context);
        }
    }
}

/// One bit for each signal that has come and was not returned yet.
struct Pending(AtomicU64);

impl Pending {
    /// Adds a signal; `false` if it is pending already.
    fn add(&self, signal: i32) -> bool {
        self.0.fetch_or(bit_of(signal), Ordering::AcqRel) & bit_of(signal) == 0
    }

    fn take(&self) -> Option<i32> {
        let set = Ordering::AcqRel;
        let fetch = Ordering::Acquire;
        let without_first = |pending: u64| (pending != 0).then(|| pending & (pending - 1));
        let before = self.0.fetch_update(set, fetch, without_first).ok()?;
        Some(before.trailing_zeros() as i32 + 1)
    }
}

impl Listener {
    /// Adds a listener, under the lock of [`REGISTERED`].
    fn add() -> io::Result<&'static Listener> {
        let (wake_sender, wake_receiver) = StdUnixStream::pair()?;
        wake_sender.set_nonblocking(true)?;
        // SAFETY: null or leaked.
        let next = unsafe { LISTENERS.load(Ordering::Acquire).as_ref() };
        let listener: &'static mut Listener = Box::leak(Box::new(Listener {
            wanted: AtomicU64::new(0),
            pending: Pending(AtomicU64::new(0)),
            home: Home::here(),
            wake_sender,
            wake_receiver,
            next,
        }));
        LISTENERS.store(listener, Ordering::Release);
        Ok(listener)
    }

    /// Forgets signals of its previous `Signals`.
    fn forget(&self) {
        let flags = rustix::net::RecvFlags::DONTWAIT;
        let mut bytes = [0u8; 64];
        while rustix::net::recv(&self.wake_receiver, &mut bytes[..], flags).is_ok_and(|it| it.1 > 0)
        {
        }
        self.pending.0.store(0, Ordering::Release);
    }

    /// Takes a pending signal, but none that a handler of another thread adds late, for the
    /// previous `Signals`.
    fn take(&self) -> Option<i32> {
        loop {
            let signal = self.pending.take()?;
            if self.wanted.load(Ordering::Acquire) & bit_of(signal) != 0 {
                return Some(signal);
            }
        }
    }

    /// Notes a signal, in a handler.
    fn arrived(&self, signal: i32) {
        let is_wanted = self.wanted.load(Ordering::Acquire) & bit_of(signal) != 0;
        if !is_wanted || !self.home.is_here() || !self.pending.add(signal) {
            return; // Not wanted, or a byte is on its way.
        }
        // A full socket holds enough bytes to wake the receiver.
        // SAFETY: sends one byte of a live local through a descriptor that is never closed.
        unsafe { libc::send(self.wake_sender.as_raw_fd(), [1u8].as_ptr().cast(), 1, WAKE_FLAGS) };
    }
}

const WAKE_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

impl fmt::Debug for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signals").finish_non_exhaustive()
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Seen (in review): `wait` went to sleep over a signal that had come. Cause: it met a call of
    /// `take` that was faster with another one, and took that for the last. Cure: it takes the
    /// other one.
    #[test]
    fn each_taker_gets_a_signal() {
        loom::model(|| {
            let pending = Arc::new(Pending(AtomicU64::new(0)));
            assert!(pending.add(7) && pending.add(9) && !pending.add(9));
            let other = Arc::clone(&pending);
            let taker = thread::spawn(move || other.take().unwrap());
            let taken = pending.take().unwrap();
            assert_eq!(taken + taker.join().unwrap(), 7 + 9);
            assert_eq!(pending.take(), None);
        });
    }
}
