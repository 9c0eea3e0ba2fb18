//! The thread engine: a kernel thread per connection, with plain blocking system calls.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use session::Session;

use super::admission::{Opens, Start};
use super::pool::{self, AcceptPool, Workers};
use super::serving::{self, Serving};
use crate::blocking::converse;
use crate::listen::Bound;
use crate::stream::ThreadStream;

/// Limit on threads. Each costs some 20 KiB and an entry in the scheduler; for more connections use
/// fibers.
pub const THREADS_MAX: usize = 8192;

/// Stack size of a kernel thread: sessions need little.
const STACK_SIZE: usize = 256 * 1024;

pub(crate) struct Threads {
    pub(super) workers: Workers<Listener>,
}

impl Threads {
    /// # Errors
    /// Errors of new threads and descriptors.
    pub(crate) fn start<S: Session + 'static, O: Opens<S>>(start: Start<O>) -> io::Result<Threads> {
        // A thread belongs to no worker. Only one accepts at a time, so one list of connections
        // suffices.
        let (pool, workers) = AcceptPool::new(start, Listener::new, 1, THREADS_MAX)?;
        pool.start(|point| spawn(&pool, point))?;
        Ok(Threads { workers })
    }

    pub(crate) fn describe(&self) -> String {
        "a kernel thread for each connection".to_owned()
    }
}

fn spawn<S: Session + 'static, O: Opens<S>>(
    pool: &Arc<AcceptPool<Listener, O>>,
    point: usize,
) -> io::Result<()> {
    let pool = Arc::clone(pool);
    let builder = thread::Builder::new().name("connection".into());
    let builder = builder.stack_size(STACK_SIZE);
    builder.spawn(move || serve_connections(&pool, point)).map(drop)
}

/// Body of a kernel thread: accepts, serves, and repeats.
fn serve_connections<S: Session + 'static, O: Opens<S>>(
    pool: &Arc<AcceptPool<Listener, O>>,
    point: usize,
) {
    while let Some(stream) = pool.accept(point, Listener::accept) {
        if pool.admit(point, &stream, |point| spawn(pool, point)) {
            let mut serving = Serving::begin(pool, point, stream);
            serving.guard(|driver| converse(driver, serving::open(pool, point)));
            drop(serving);
            pool.admission.release();
        }
        if !pool.is_to_stay(point) {
            return;
        }
    }
}

/// A listener for kernel threads. One of them waits for the socket or the end, the others for that
/// thread: `poll(2)` would wake all of them for every connection.
pub(super) struct Listener {
    fd: OwnedFd,
    end: OwnedFd,
    turn: Mutex<()>,
}

impl Listener {
    fn new(bound: &Bound) -> io::Result<Listener> {
        let fd = bound.as_fd().try_clone_to_owned()?;
        rustix::io::ioctl_fionbio(&fd, true)?;
        let end = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Listener { fd, end, turn: Mutex::new(()) })
    }

    fn accept(&self) -> io::Result<ThreadStream> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let mut fds =
                [PollFd::new(&self.end, PollFlags::IN), PollFd::new(&self.fd, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if !fds[0].revents().is_empty() {
                return Err(io::ErrorKind::NotConnected.into());
            }
            match rustix::net::accept_with(&self.fd, rustix::net::SocketFlags::CLOEXEC) {
                Ok(fd) => return Ok(ThreadStream::new(fd)),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl pool::Listener for Listener {
    fn close(&self) {
        // It is never read, so it stays readable for all.
        let _ = rustix::io::write(&self.end, &1u64.to_ne_bytes());
    }
}
