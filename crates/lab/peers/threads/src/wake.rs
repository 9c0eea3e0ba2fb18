//! Two threads pass a ball to and fro: the time that it is on its way. They spin, or sleep until
//! the other wakes them by one of Linux' mechanisms.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Barrier, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, squeue, types::Fd};

use crate::bind_to_cpu;
use crate::common::{get, result};

const EVENTFD: u64 = 1;
const MSG_RING: u64 = 2;
const MSG_RING_REGISTER: u64 = 3;

/// State of one thread, as the other sees it.
struct Side {
    has_ball: AtomicBool,
    thread: OnceLock<Thread>,
    ring: OnceLock<RawFd>,
    eventfd: OnceLock<RawFd>,
}

impl Side {
    const fn new() -> Side {
        Side {
            has_ball: AtomicBool::new(false),
            thread: OnceLock::new(),
            ring: OnceLock::new(),
            eventfd: OnceLock::new(),
        }
    }
}

static SIDES: [Side; 2] = [Side::new(), Side::new()];
static READY: Barrier = Barrier::new(2);
static START: OnceLock<Instant> = OnceLock::new();
static SENT_AT: AtomicU64 = AtomicU64::new(0);
static ON_ITS_WAY: AtomicU64 = AtomicU64::new(0);
static OPS: AtomicU64 = AtomicU64::new(0);

fn now() -> u64 {
    START.get().unwrap().elapsed().as_nanos() as u64
}

pub fn measure(play: fn(usize)) -> Option<String> {
    START.set(Instant::now()).unwrap();
    SIDES[0].has_ball.store(true, Relaxed);
    for at in 0..2 {
        thread::spawn(move || {
            bind_to_cpu(at);
            play(at)
        });
    }
    thread::sleep(Duration::from_millis(get("ms", 1000)));
    let ops = OPS.load(Relaxed);
    let nanos = ON_ITS_WAY.load(Relaxed);
    Some(result(ops, Duration::from_nanos(nanos)))
}

/// Handles the ball's arrival: counts it, keeps it for `keep_us`, and passes it on.
fn pass(other: &Side) {
    let came_at = now();
    if OPS.fetch_add(1, Relaxed) > 0 {
        ON_ITS_WAY.fetch_add(came_at - SENT_AT.load(Relaxed), Relaxed);
    }
    while now() - came_at < 1000 * get("keep_us", 0) {
        std::hint::spin_loop();
    }
    SENT_AT.store(now(), Relaxed);
    other.has_ball.store(true, Release);
}

pub fn spin(at: usize) {
    loop {
        while !SIDES[at].has_ball.swap(false, Acquire) {
            std::hint::spin_loop();
        }
        pass(&SIDES[1 - at]);
    }
}

pub fn sleep(at: usize) {
    match get("way", 0) {
        0 => by_futex(&SIDES[at], &SIDES[1 - at]),
        way => by_ring(way, &SIDES[at], &SIDES[1 - at]),
    }
}

fn by_futex(mine: &Side, other: &Side) {
    mine.thread.set(thread::current()).unwrap();
    READY.wait();
    loop {
        while !mine.has_ball.swap(false, Acquire) {
            thread::park();
        }
        pass(other);
        other.thread.get().unwrap().unpark();
    }
}

/// Each side sleeps in its ring, as a processor of weft's does.
fn by_ring(way: u64, mine: &Side, other: &Side) {
    let mut ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .build(64)
        .unwrap();
    // SAFETY: makes a descriptor.
    let eventfd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    mine.ring.set(ring.as_raw_fd()).unwrap();
    mine.eventfd.set(eventfd).unwrap();
    READY.wait();
    let other_ring = *other.ring.get().unwrap();
    let other_eventfd = *other.eventfd.get().unwrap();
    let mut count = 0u64;
    let mut is_armed = false;
    loop {
        while !mine.has_ball.swap(false, Acquire) {
            if way == EVENTFD && !is_armed {
                let read = opcode::Read::new(Fd(eventfd), (&raw mut count).cast(), 8);
                // SAFETY: `count` outlives the ring's use of it.
                unsafe { ring.submission().push(&read.build().user_data(1)).unwrap() };
                is_armed = true;
            }
            ring.submit_and_wait(1).unwrap();
            for entry in ring.completion() {
                is_armed &= entry.user_data() != 1;
            }
        }
        pass(other);
        match way {
            EVENTFD => {
                // SAFETY: eight bytes. eventfd(2)
                unsafe { libc::write(other_eventfd, (&raw const ONE).cast(), 8) };
            }
            MSG_RING => {
                let entry = message(other_ring).flags(squeue::Flags::SKIP_SUCCESS);
                // SAFETY: it points nowhere.
                unsafe { ring.submission().push(&entry).unwrap() };
                ring.submit().unwrap();
            }
            MSG_RING_REGISTER => send(&message(other_ring)),
            other => panic!("no way {other}"),
        }
    }
}

static ONE: u64 = 1;

fn message(ring: RawFd) -> squeue::Entry {
    opcode::MsgRingData::new(Fd(ring), 0, 2, None).build()
}

/// Sends a message without a ring. io_uring_register(2), Linux 6.13
fn send(entry: &squeue::Entry) {
    const IORING_REGISTER_SEND_MSG_RING: libc::c_uint = 31;
    // SAFETY: an entry is the kernel's `struct io_uring_sqe`.
    let sent = unsafe { libc::syscall(libc::SYS_io_uring_register, -1, IORING_REGISTER_SEND_MSG_RING, entry, 1) };
    assert!(sent >= 0, "{}", std::io::Error::last_os_error());
}
