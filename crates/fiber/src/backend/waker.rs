//! The waker of a processor: ends its sleep from another thread.
//!
//! A processor sleeps in its back end, so a wake-up must complete something there. An eventfd works
//! everywhere. Where the kernel can put a completion into another ring (`IORING_OP_MSG_RING`;
//! without an own ring since Linux 6.13), two steps are saved: no read of the eventfd to start for
//! each sleep, and none to finish at each wake-up. `weft lab run rt-wake` compares both with a
//! futex.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use io_uring::{opcode, squeue, types::Fd};
use rustix::event::{EventfdFlags, eventfd};

use crate::base::lock::lock;

/// User data of the completion that a wake-up message makes.
pub(super) const WOKEN_BY_MESSAGE: u64 = 2;

/// Waker at one processor index; set while there is a processor.
#[derive(Debug, Default)]
pub(crate) struct Waker(Mutex<Option<WakeTarget>>);

/// Used under the lock, so that nothing writes to a closed descriptor.
#[derive(Debug)]
struct WakeTarget {
    eventfd: Arc<OwnedFd>,
    /// Ring in which the processor sleeps; `None` with epoll.
    ring: Option<RawFd>,
}

/// True once this kernel, or its administrator, has refused messages without a ring.
static NO_MESSAGES: AtomicBool = AtomicBool::new(false);

impl Waker {
    /// Opens the eventfd that the back end of a new processor waits for.
    ///
    /// # Errors
    /// Errors of `eventfd(2)`.
    pub(crate) fn open(&self) -> io::Result<Arc<OwnedFd>> {
        let eventfd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        *lock(&self.0) = Some(WakeTarget { eventfd: Arc::clone(&eventfd), ring: None });
        Ok(eventfd)
    }

    /// Closes the waker after the processor has ended.
    pub(crate) fn close(&self) {
        lock(&self.0).take();
    }

    /// Sends wake-ups to this ring from now on, until [`detach`](Waker::detach), which comes before
    /// the ring is closed.
    pub(super) fn attach(&self, ring: RawFd) {
        if let Some(target) = lock(&self.0).as_mut() {
            target.ring = Some(ring);
        }
    }

    pub(super) fn detach(&self) {
        if let Some(target) = lock(&self.0).as_mut() {
            target.ring = None;
        }
    }

    /// Ends the sleep of the processor, which was woken, or is about to sleep.
    pub(crate) fn wake(&self) {
        let target = lock(&self.0);
        let Some(target) = target.as_ref() else {
            return;
        };
        if !target.send_message() {
            // The count of an eventfd cannot overflow here: each sleep is written to once.
            rustix::io::write(&target.eventfd, &1u64.to_ne_bytes()).expect("write to an eventfd");
        }
    }
}

impl WakeTarget {
    fn send_message(&self) -> bool {
        let Some(ring) = self.ring else { return false };
        if NO_MESSAGES.load(Ordering::Relaxed) {
            return false;
        }
        let sent = message_to(ring);
        if let Err(error) = &sent {
            // Other errors pass, such as a lack of memory: this time the eventfd serves.
            let for_ever = [libc::EINVAL, libc::ENOSYS, libc::EPERM, libc::EACCES];
            if for_ever.contains(&error.raw_os_error().unwrap_or(0)) {
                NO_MESSAGES.store(true, Ordering::Relaxed);
            }
        }
        sent.is_ok()
    }
}

/// Puts a completion with [`WOKEN_BY_MESSAGE`] into a ring. `io_uring_register(2)`
fn message_to(ring: RawFd) -> io::Result<()> {
    /// Not in libc's headers of 2024.
    const IORING_REGISTER_SEND_MSG_RING: libc::c_uint = 31;
    let entry: squeue::Entry =
        opcode::MsgRingData::new(Fd(ring), 0, WOKEN_BY_MESSAGE, None).build();
    let (no_ring, entries): (libc::c_int, libc::c_uint) = (-1, 1);
    // SAFETY: an entry is the kernel's `struct io_uring_sqe` (the crate declares it so), and is
    // only read.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            no_ring,
            IORING_REGISTER_SEND_MSG_RING,
            &raw const entry,
            entries,
        )
    };
    match sent {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::backend::ring::set_up;
    use std::os::fd::AsRawFd;

    /// Completions that the ring got, and the count of the eventfd.
    fn heard(eventfd: &OwnedFd, ring: &mut io_uring::IoUring) -> (usize, u64) {
        ring.submit_and_wait(0).unwrap();
        let messages = ring.completion().filter(|entry| entry.user_data() == WOKEN_BY_MESSAGE);
        let messages = messages.count();
        rustix::io::ioctl_fionbio(eventfd, true).unwrap();
        let mut count = [0; 8];
        match rustix::io::read(eventfd, &mut count) {
            Ok(_) => (messages, u64::from_ne_bytes(count)),
            Err(_) => (messages, 0),
        }
    }

    #[test]
    fn wakes_once_by_ring_or_eventfd() {
        let (waker, mut ring) = (Waker::default(), set_up(8).unwrap());
        let eventfd = waker.open().unwrap();
        waker.attach(ring.as_raw_fd());
        std::thread::scope(|scope| scope.spawn(|| waker.wake()).join().unwrap());
        let expected = if NO_MESSAGES.load(Ordering::Relaxed) { (0, 1) } else { (1, 0) };
        assert_eq!(heard(&eventfd, &mut ring), expected);
    }

    #[test]
    fn detached_ring_gets_no_message() {
        let (waker, mut ring) = (Waker::default(), set_up(8).unwrap());
        let eventfd = waker.open().unwrap();
        waker.attach(ring.as_raw_fd());
        waker.detach();
        waker.wake();
        assert_eq!(heard(&eventfd, &mut ring), (0, 1));
        waker.close();
        waker.wake();
        assert_eq!(heard(&eventfd, &mut ring), (0, 0));
    }

    #[test]
    fn eventfd_wakes_without_message() {
        let (waker, mut ring) = (Waker::default(), set_up(8).unwrap());
        let eventfd = waker.open().unwrap();
        // Not a ring.
        waker.attach(eventfd.as_raw_fd());
        waker.wake();
        assert_eq!(heard(&eventfd, &mut ring), (0, 1));
    }
}
