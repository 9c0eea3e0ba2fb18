//! Promises of real-time signals alone; above all, an overflow of the queue loses nothing.
//!
//! These tests are a program of their own: the limits are the process's, and queued signals count
//! for all processes of the user.

#![allow(unsafe_code)]

extern crate weftwork_event as event;

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use event::{Dispatcher, Interest, Overflow, RtSig, Token};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Number of sockets, large enough that the queue fills before any of them.
const WATCHED: usize = 120;

#[test]
fn queue_overflow_loses_no_readiness() {
    let limits = getrlimit(Resource::Sigpending);
    for queue in [64, 1024, 2048] {
        let current = limits.maximum.map_or(queue, |most| most.min(queue));
        setrlimit(Resource::Sigpending, Rlimit { current: Some(current), ..limits }).unwrap();
        for overflow in [Overflow::Poll, Overflow::KeptPoll, Overflow::Select, Overflow::Signalfd] {
            overflows(overflow, queue as usize);
        }
    }
}

fn overflows(overflow: Overflow, queue: usize) {
    let mut dispatcher = RtSig::new(overflow).unwrap();
    let pairs: Vec<_> = (0..WATCHED).map(|_| UnixStream::pair().unwrap()).collect();
    for (token, (_, far)) in pairs.iter().enumerate() {
        dispatcher.add(far.as_fd(), Token(token as u64), Interest::READ).unwrap();
    }
    let mut ready = Vec::new();
    dispatcher.wait(&mut ready, Some(Duration::ZERO)).unwrap();
    assert_eq!(ready, [], "{overflow:?}");
    // The first half overfills the queue threefold, so the signals of the second half are dropped.
    for write in 0..3 * queue {
        (&pairs[write % (WATCHED / 2)].0).write_all(b"x").unwrap();
    }
    for (near, _) in &pairs[WATCHED / 2..] {
        (&mut &*near).write_all(b"x").unwrap();
    }
    let mut seen = [false; WATCHED];
    for _ in 0..100 {
        dispatcher.wait(&mut ready, Some(Duration::ZERO)).unwrap();
        ready.iter().for_each(|ready| seen[ready.token.0 as usize] = true);
    }
    assert_eq!(seen, [true; WATCHED], "{overflow:?}, {queue} signals: {:?}", dispatcher.counts());
    let counts = dispatcher.counts();
    assert!(counts.overflows >= 1, "{overflow:?}, {queue} signals: {counts:?}");
    // Signals then arrive as before.
    assert_eq!(ready, []);
    (&pairs[0].0).write_all(b"x").unwrap();
    dispatcher.wait(&mut ready, Some(Duration::from_secs(20))).unwrap();
    // Other reports may come with it: another process's signals count against the limit as well.
    assert!(ready.iter().any(|ready| ready.token == Token(0)), "{overflow:?}: {ready:?}");
}

#[test]
fn a_second_one_per_thread_is_refused() {
    let first = RtSig::new(Overflow::Poll).unwrap();
    let second = RtSig::new(Overflow::Signalfd).map(drop).unwrap_err();
    assert_eq!(second.raw_os_error(), Some(16), "EBUSY");
    drop(first);
    RtSig::new(Overflow::Signalfd).unwrap();
}

/// Seen: the duplicate was armed already, so the kernel kept naming the first number, which is
/// not watched. No event of the connection was ever reported.
#[test]
fn a_renumbered_file_is_reported() {
    let mut dispatcher = RtSig::new(Overflow::Poll).unwrap();
    let (mut near, far) = UnixStream::pair().unwrap();
    dispatcher.add(far.as_fd(), Token(1), Interest::READ).unwrap();
    let duplicate = far.try_clone().unwrap();
    drop(far); // A caller's mistake: it was not removed.
    dispatcher.add(duplicate.as_fd(), Token(2), Interest::READ).unwrap();
    let mut ready = Vec::new();
    dispatcher.wait(&mut ready, Some(Duration::ZERO)).unwrap();
    near.write_all(b"x").unwrap();
    dispatcher.wait(&mut ready, Some(Duration::ZERO)).unwrap();
    assert!(ready.iter().any(|ready| ready.token == Token(2)), "{ready:?}");
}

/// Seen: a child that ended in the ordinary way dropped its copy of the dispatcher, and with that
/// switched off the signals of its parent's connections.
#[test]
fn a_fork_leaves_the_parents_dispatcher_alone() {
    let mut dispatcher = RtSig::new(Overflow::Poll).unwrap();
    let (mut near, far) = UnixStream::pair().unwrap();
    dispatcher.add(far.as_fd(), Token(1), Interest::READ).unwrap();
    let mut ready = Vec::new();
    dispatcher.wait(&mut ready, Some(Duration::ZERO)).unwrap();
    // SAFETY: the child makes system calls and frees memory, which the C libraries allow after a
    // fork, and ends without running anything else.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(dispatcher);
        // SAFETY: it ends the process at once.
        unsafe { libc::_exit(0) };
    }
    assert!(child > 0, "fork failed");
    // SAFETY: nothing else waits for this child, and its status is not asked for.
    let ended = unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    assert_eq!(ended, child);
    near.write_all(b"x").unwrap();
    dispatcher.wait(&mut ready, Some(Duration::ZERO)).unwrap();
    assert_eq!(ready.len(), 1, "{ready:?}");
}

/// Seen: each modify left an entry behind for the next wait to ask about. At more of them than the
/// process may have descriptors `poll(2)` failed with `EINVAL`, and all were forgotten.
#[test]
fn many_changes_between_waits_lose_nothing() {
    let limits = getrlimit(Resource::Nofile);
    let current = limits.maximum.map_or(1024, |most| most.min(1024));
    let lowered = Rlimit { current: Some(current), ..limits };
    setrlimit(Resource::Nofile, lowered).unwrap();
    let mut dispatcher = RtSig::new(Overflow::Poll).unwrap();
    let (mut near, far) = UnixStream::pair().unwrap();
    near.write_all(b"x").unwrap();
    for _ in 0..current {
        dispatcher.add(far.as_fd(), Token(1), Interest::READ).unwrap();
        dispatcher.modify(far.as_fd(), Token(2), Interest::READ).unwrap();
        dispatcher.remove(far.as_fd()).unwrap();
    }
    dispatcher.add(far.as_fd(), Token(3), Interest::READ).unwrap();
    let mut ready = Vec::new();
    dispatcher.wait(&mut ready, Some(Duration::ZERO)).unwrap();
    assert_eq!(ready.len(), 1, "{ready:?}");
}
