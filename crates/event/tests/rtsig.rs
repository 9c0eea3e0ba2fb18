//! The queue of real-time signals overflows, and nothing is lost.
//!
//! One test, in a program of its own: the limit is the process's, and what is queued counts for all
//! processes of the user.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use event::{Dispatcher, Interest, Overflow, RtSig, Token};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Enough that no socket is full before the queue is.
const WATCHED: usize = 120;

#[test]
fn an_overflowing_queue_loses_no_readiness() {
    let limits = getrlimit(Resource::Sigpending);
    for queue in [64, 1024, 2048] {
        let current = limits.maximum.map_or(queue, |most| most.min(queue));
        setrlimit(
            Resource::Sigpending,
            Rlimit {
                current: Some(current),
                ..limits
            },
        )
        .unwrap();
        for overflow in [Overflow::Poll, Overflow::Select, Overflow::Signalfd] {
            overflows(overflow, queue as usize);
        }
    }
}

fn overflows(overflow: Overflow, queue: usize) {
    let mut dispatcher = RtSig::new(overflow).unwrap();
    let pairs: Vec<_> = (0..WATCHED).map(|_| UnixStream::pair().unwrap()).collect();
    for (token, (_, far)) in pairs.iter().enumerate() {
        dispatcher
            .add(far.as_fd(), Token(token as u64), Interest::READ)
            .unwrap();
    }
    let mut ready = Vec::new();
    dispatcher.wait(&mut ready, Some(Duration::ZERO)).unwrap();
    assert_eq!(ready, [], "{overflow:?}");
    // The first half fills the queue, three times over; of the rest no signal is left.
    for write in 0..3 * queue {
        (&pairs[write % (WATCHED / 2)].0).write_all(b"x").unwrap();
    }
    for (near, _) in &pairs[WATCHED / 2..] {
        (&mut &*near).write_all(b"x").unwrap();
    }
    let mut seen = [false; WATCHED];
    for _ in 0..100 {
        dispatcher.wait(&mut ready, Some(Duration::ZERO)).unwrap();
        ready
            .iter()
            .for_each(|ready| seen[ready.token.0 as usize] = true);
    }
    assert_eq!(
        seen,
        [true; WATCHED],
        "{overflow:?}, {queue} signals: {:?}",
        dispatcher.counts()
    );
    let counts = dispatcher.counts();
    assert!(
        counts.overflows >= 1,
        "{overflow:?}, {queue} signals: {counts:?}"
    );
    // And afterwards signals arrive as before.
    assert_eq!(ready, []);
    (&pairs[0].0).write_all(b"x").unwrap();
    dispatcher
        .wait(&mut ready, Some(Duration::from_secs(20)))
        .unwrap();
    // It may come with others: another process's signals count against the limit as well.
    assert!(
        ready.iter().any(|ready| ready.token == Token(0)),
        "{overflow:?}: {ready:?}"
    );
}

#[test]
fn a_second_one_on_the_thread_is_refused() {
    let first = RtSig::new(Overflow::Poll).unwrap();
    let second = RtSig::new(Overflow::Signalfd).map(drop).unwrap_err();
    assert_eq!(second.raw_os_error(), Some(16), "EBUSY");
    drop(first);
    RtSig::new(Overflow::Signalfd).unwrap();
}
