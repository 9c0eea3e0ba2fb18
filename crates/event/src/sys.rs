//! The system calls that several mechanisms make.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;
use std::ptr::{null, null_mut};
use std::time::Duration;

use libc::pollfd;
use rustix::event::Timespec;

/// `poll(2)`, with the time-out to the nanosecond. An interrupted call reports nothing ready.
pub(crate) fn poll(fds: &mut [pollfd], timeout: Option<Duration>) -> io::Result<usize> {
    let timeout = timeout.map(timespec);
    let limit = timeout.as_ref().map_or(null(), |it| it as *const libc::timespec);
    // SAFETY: the kernel reads and writes `fds.len()` entries of the slice, which this borrows
    // uniquely, and reads the time-out, which lives until the end of this function (ppoll(2)).
    let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, limit, null()) };
    let ready = some_unless_interrupted(ready)?;
    if ready.is_none() {
        // The kernel has not written the answers of a call that failed.
        fds.iter_mut().for_each(|fd| fd.revents = 0);
    }
    Ok(ready.unwrap_or(0))
}

/// Readiness of one descriptor now, as the bits of `poll(2)`.
pub(crate) fn poll_one(fd: RawFd, events: i16) -> io::Result<u32> {
    let mut one = [pollfd { fd, events, revents: 0 }];
    poll(&mut one, Some(Duration::ZERO))?;
    Ok(one[0].revents as u32)
}

/// `select(2)` over the descriptors of two bitmaps of one length; the answer replaces them. An
/// interrupted call reports nothing ready.
pub(crate) fn select(
    reads: &mut [u64],
    writes: &mut [u64],
    timeout: Option<Duration>,
) -> io::Result<usize> {
    assert_eq!(reads.len(), writes.len(), "two bitmaps of different lengths");
    let mut limit = timeout.map(timeval);
    let limit = limit.as_mut().map_or(null_mut(), |it| it as *mut libc::timeval);
    let descriptors = (reads.len() * 64) as i32;
    // SAFETY: the kernel reads and writes one bit for each of `descriptors` in both bitmaps, which
    // are as long and are borrowed uniquely; `fd_set` is only the C library's name for such a map.
    // glibc and musl pass the pointers on without looking at them (select(2)).
    let ready = unsafe {
        let reads = reads.as_mut_ptr().cast();
        let writes = writes.as_mut_ptr().cast();
        libc::select(descriptors, reads, writes, null_mut(), limit)
    };
    Ok(some_unless_interrupted(ready)?.unwrap_or(0))
}

pub(crate) fn is_open(fd: RawFd) -> bool {
    // SAFETY: F_GETFD only reads a flag of the descriptor, if it is open (fcntl(2)).
    unsafe { libc::fcntl(fd, libc::F_GETFD) != -1 }
}

fn some_unless_interrupted(returned: i32) -> io::Result<Option<usize>> {
    if let Ok(count) = usize::try_from(returned) {
        return Ok(Some(count));
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(None) } else { Err(error) }
}

pub(crate) fn timespec(duration: Duration) -> libc::timespec {
    let duration = duration.min(DURATION_MAX);
    libc::timespec {
        tv_sec: duration.as_secs() as libc::time_t,
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// Time-out of epoll_wait(2), which counts milliseconds in 32 bits. For more, rustix calls
/// epoll_pwait2(2), which kernels before Linux 5.11 do not have, nor some containers; so a longer
/// wait ends too early, with nothing ready.
pub(crate) fn epoll_timespec(duration: Duration) -> Timespec {
    const EPOLL_MAX: Duration = Duration::from_millis(i32::MAX as u64);
    let duration = duration.min(EPOLL_MAX);
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() }
}

/// Rounds up: a wait of 400 ns cut to 0 would spin until the deadline.
fn timeval(duration: Duration) -> libc::timeval {
    let rounded = duration.min(DURATION_MAX) + Duration::from_nanos(999);
    libc::timeval {
        tv_sec: rounded.as_secs() as libc::time_t,
        tv_usec: rounded.subsec_micros().into(),
    }
}

/// Longest time-out, a hundred years: the kernel refuses more or takes it for a negative number.
pub(crate) const DURATION_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen: on a kernel before Linux 5.11 a loop with one connection that might be idle for 60
    /// days got no more events, nor new connections. Cause: such a time-out does not fit into the
    /// milliseconds of epoll_wait(2), and rustix calls epoll_pwait2(2) for it. Cure: it is cut.
    #[test]
    fn epoll_counts_milliseconds() {
        for wanted in [Duration::MAX, DURATION_MAX, Duration::from_secs(60 * 24 * 3600)] {
            let Timespec { tv_sec, tv_nsec } = epoll_timespec(wanted);
            let millis = tv_sec * 1000 + (tv_nsec + 999_999) / 1_000_000;
            assert!(i32::try_from(millis).is_ok(), "{millis} of {wanted:?}");
            assert!(tv_sec > 24 * 3600, "{tv_sec} of {wanted:?}");
        }
        let Timespec { tv_sec, tv_nsec } = epoll_timespec(Duration::new(7, 1));
        assert_eq!((tv_sec, tv_nsec), (7, 1));
    }
}
