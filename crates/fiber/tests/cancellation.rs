//! Cancellation, over each back end: it ends every wait, waits for the kernel, and loses nothing.

extern crate weftwork_fiber as fiber;

#[macro_use]
mod harness;

use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fiber::net::{TcpListener, TcpStream, UdpSocket, pipe};
use fiber::sync::mpmc;
use fiber::{is_cancellation, is_cancelled};

contract! {
    a_cancelled_read_says_so
    a_cancelled_write_says_so_and_counts_what_was_sent
    cancelled_accepts_connects_datagrams_and_pipes_say_so
    a_cancelled_sleep_returns_early
    a_loop_that_ignores_the_request_is_slowed_down
    a_wait_for_a_channel_ends
    a_park_ends_at_its_deadline
    a_cancelled_park_returns
    the_request_stays
    what_is_uncancellable_is_brought_to_its_end
    a_fiber_that_never_waits_finds_out_by_a_checkpoint
    an_unstarted_fiber_starts_and_finds_out
    a_busy_stream_does_not_hide_the_request
    join_of_a_cancelled_fiber_brings_its_result
    waiting_for_a_fiber_can_be_cancelled_and_timed_out
    timed_waits_for_locks_and_channels_end_and_the_others_go_on
    offloaded_calls_are_waited_for
    a_cancelled_acceptor_leaves_the_connections_to_others
    a_connection_that_comes_while_an_acceptor_leaves_is_for_the_others
    connections_for_a_processor_whose_acceptor_has_gone_are_for_the_others
    accept_keeps_the_deadline
    accept_against_cancel_loses_no_connection
    receive_against_cancel_loses_no_byte
    send_against_cancel_counts_every_byte
    sleep_against_cancel_ends_once
    read_to_end_does_not_repeat_what_was_cancelled
    a_step_is_told
    a_step_that_ignores_the_request_is_slowed_down
    a_finished_fiber_may_be_cancelled
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap())
}

/// Starts a fiber that waits in `wait`, cancels it there, and returns what it got.
fn cancelled_in<T: Send + 'static>(wait: impl FnOnce() -> T + Send + 'static) -> T {
    let waiting = Arc::new(AtomicBool::new(false));
    let begins = Arc::clone(&waiting);
    let fiber = fiber::spawn(move || {
        begins.store(true, Ordering::SeqCst);
        wait()
    });
    while !waiting.load(Ordering::SeqCst) {
        fiber::yield_now();
    }
    // Lets its operation reach the kernel, on whichever processor it is.
    (0..3).for_each(|_| fiber::yield_now());
    fiber.cancel();
    assert!(fiber.fiber().is_cancel_requested());
    fiber.join().unwrap()
}

fn assert_cancelled<T: std::fmt::Debug>(result: io::Result<T>) {
    let error = result.unwrap_err();
    assert!(is_cancellation(&error), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Other);
}

fn a_cancelled_read_says_so() {
    let (near, mut far) = pair();
    let near = Arc::new(near);
    let reader = Arc::clone(&near);
    assert_cancelled(cancelled_in(move || (&*reader).read(&mut [0; 8])));
    let reader = Arc::clone(&near);
    assert_cancelled(cancelled_in(move || reader.receive(None, <[u8]>::len)));
    // The connection still works.
    far.write_all(b"still").unwrap();
    let mut got = [0; 5];
    (&*near).read_exact(&mut got).unwrap();
    assert_eq!(&got, b"still");
}

fn a_cancelled_write_says_so_and_counts_what_was_sent() {
    let (near, mut far) = pair();
    let sent = cancelled_in(move || {
        let chunk = vec![7; 1 << 20];
        let mut sent = 0;
        loop {
            match (&near).write(&chunk) {
                Ok(len) => sent += len,
                Err(error) => {
                    assert!(is_cancellation(&error), "{error:?}");
                    return sent;
                }
            }
        }
    });
    let mut all = Vec::new();
    far.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), sent);
}

fn cancelled_accepts_connects_datagrams_and_pipes_say_so() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_cancelled(cancelled_in(move || listener.accept()));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    assert_cancelled(cancelled_in(move || socket.recv_from(&mut [0; 8])));
    let (mut reader, _writer) = pipe().unwrap();
    assert_cancelled(cancelled_in(move || reader.read(&mut [0; 8])));
    // A listener without accepts, with a full queue: connecting waits.
    let full = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = full.local_addr().unwrap();
    rustix::net::listen(&full, 0).unwrap();
    let _first = std::net::TcpStream::connect(address).unwrap();
    let error = cancelled_in(move || {
        let streams: io::Result<Vec<_>> = (0..50).map(|_| TcpStream::connect(address)).collect();
        streams.map(drop)
    });
    assert_cancelled(error);
}

fn a_cancelled_sleep_returns_early() {
    let start = Instant::now();
    let told = cancelled_in(|| {
        fiber::sleep(Duration::from_secs(3600));
        is_cancelled()
    });
    assert!(told && start.elapsed() < Duration::from_secs(3600));
}

/// Seen: a cancelled `loop { sleep(..) }`, as written for `std`, that used a core up. A loop past
/// its deadline did as well, and one around a wait with a time-out.
fn a_loop_that_ignores_the_request_is_slowed_down() {
    const TURNS: usize = 12;
    const PAUSES: Duration = Duration::from_millis(1 + 2 + 4 + 8 + 16 + 32 + 64);
    let event = fiber::sync::Event::new();
    let waits: [&(dyn Fn() + Sync); 2] = [&|| fiber::sleep(Duration::from_secs(3600)), &|| {
        assert!(!event.wait_timeout(Duration::from_secs(3600)))
    }];
    for wait in waits {
        let took = fiber::scope(|scope| {
            let turns = || {
                let start = Instant::now();
                (0..TURNS).for_each(|_| wait());
                start.elapsed()
            };
            let cancelled = scope.spawn(move || {
                while !is_cancelled() {
                    fiber::park();
                }
                turns()
            });
            cancelled.cancel();
            let past = scope.spawn(move || fiber::timeout(Duration::ZERO, turns));
            [cancelled.join().unwrap(), past.join().unwrap()]
        });
        assert!(took.iter().all(|&took| took >= PAUSES), "{took:?}");
    }
    let parks = || (0..TURNS).for_each(|_| fiber::park());
    let start = Instant::now();
    fiber::timeout(Duration::ZERO, parks);
    assert!(start.elapsed() >= PAUSES, "parks past the deadline spun");
    // The errors of operations come at once, as a rule.
    let failures = fiber::spawn(|| {
        while !is_cancelled() {
            fiber::park();
        }
        let (mut stream, _peer) = fiber::net::UnixStream::pair().unwrap();
        let failed = (0..2000).filter(|_| stream.read(&mut [0]).is_err());
        failed.count()
    });
    failures.cancel();
    assert_eq!(failures.join().unwrap(), 2000);
}

/// A receive fails as if the other side were gone, so a loop over a receiver ends; and nothing is
/// lost.
fn a_wait_for_a_channel_ends() {
    let (sender, receiver) = mpmc::rendezvous::<u32>();
    let waits: [&(dyn Fn() + Sync); 4] = [
        &|| assert!(receiver.recv().is_err()),
        &|| assert_eq!(receiver.iter().count(), 0),
        &|| assert_eq!(sender.send(7).unwrap_err().0, 7),
        &|| {
            fiber::select! {
                recv(receiver) -> message => assert!(message.is_err()),
            }
        },
    ];
    for wait in waits {
        fiber::scope(|scope| {
            let cancelled = scope.spawn(move || {
                wait();
                assert!(is_cancellation(&fiber::checkpoint().unwrap_err()));
            });
            (0..10).for_each(|_| fiber::yield_now());
            cancelled.cancel();
            cancelled.join().unwrap();
        });
        fiber::timeout(Duration::from_millis(2), || {
            wait();
            let error = fiber::checkpoint().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut);
        });
    }
    // Messages that have come are received all the same.
    let (sender, receiver) = mpmc::unbounded();
    (0..3).for_each(|n| sender.send(n).unwrap());
    let received = fiber::timeout(Duration::ZERO, || receiver.iter().collect::<Vec<u32>>());
    assert_eq!(received, [0, 1, 2]);
}

fn a_park_ends_at_its_deadline() {
    let parks: [fn(); 2] = [fiber::park, || fiber::park_timeout(Duration::from_secs(3600))];
    for park in parks {
        fiber::timeout(Duration::from_millis(2), || {
            while fiber::checkpoint().is_ok() {
                park();
            }
        });
        fiber::current().unwrap().unpark();
        fiber::timeout(Duration::ZERO, park);
    }
}

fn a_cancelled_park_returns() {
    cancelled_in(|| {
        while !is_cancelled() {
            fiber::park();
        }
    });
    cancelled_in(|| {
        while !is_cancelled() {
            fiber::park_timeout(Duration::from_secs(3600));
        }
    });
}

fn the_request_stays() {
    let (mut near, _far) = pair();
    cancelled_in(move || {
        for _ in 0..3 {
            assert_cancelled(near.read(&mut [0; 8]));
            assert_cancelled(near.write(b"x"));
            fiber::sleep(Duration::from_secs(3600));
            assert_cancelled(fiber::checkpoint());
        }
    });
}

fn what_is_uncancellable_is_brought_to_its_end() {
    let (near, mut far) = pair();
    let fiber = fiber::spawn(move || {
        let word = fiber::uncancellable(|| {
            assert!(!is_cancelled());
            let mut word = [0; 4];
            (&near).read_exact(&mut word)?;
            // Nested ones end one by one.
            fiber::uncancellable(|| (&near).write_all(b"bye!"))?;
            (&near).write_all(b"bye!")?;
            io::Result::Ok(word)
        });
        assert!(is_cancelled());
        assert_cancelled((&near).read(&mut [0; 8]));
        word.unwrap()
    });
    (0..3).for_each(|_| fiber::yield_now());
    fiber.cancel();
    (0..3).for_each(|_| fiber::yield_now());
    far.write_all(b"word").unwrap();
    assert_eq!(&fiber.join().unwrap(), b"word");
    let mut farewell = Vec::new();
    far.read_to_end(&mut farewell).unwrap();
    assert_eq!(farewell, b"bye!bye!");
}

fn a_fiber_that_never_waits_finds_out_by_a_checkpoint() {
    let rounds = cancelled_in(|| {
        let mut rounds = 0u64;
        loop {
            rounds += 1;
            if let Err(error) = fiber::checkpoint() {
                assert!(is_cancellation(&error));
                return rounds;
            }
            fiber::yield_now();
        }
    });
    assert!(rounds > 0);
    let result = fiber::timeout(Duration::ZERO, fiber::checkpoint);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::TimedOut);
}

fn an_unstarted_fiber_starts_and_finds_out() {
    let (mut near, _far) = pair();
    let fiber = fiber::spawn(move || near.read(&mut [0; 8]));
    fiber.cancel();
    assert_cancelled(fiber.join().unwrap());
}

fn a_busy_stream_does_not_hide_the_request() {
    let (near, mut far) = pair();
    let flood = fiber::spawn(move || {
        let chunk = vec![0; 10_000];
        while far.write_all(&chunk).is_ok() {}
    });
    let drained = cancelled_in(move || {
        let mut buffer = [0; 1000];
        let error = std::iter::from_fn(|| Some((&near).read(&mut buffer))).find_map(Result::err);
        is_cancellation(&error.unwrap())
    });
    assert!(drained);
    flood.join().unwrap();
}

fn join_of_a_cancelled_fiber_brings_its_result() {
    let fiber = fiber::spawn(|| {
        fiber::sleep(Duration::from_secs(3600));
        "its result"
    });
    fiber.cancel();
    fiber.cancel();
    assert_eq!(fiber.join().unwrap(), "its result");
}

fn waiting_for_a_fiber_can_be_cancelled_and_timed_out() {
    let sleeper = fiber::spawn(|| fiber::sleep(Duration::from_secs(3600)));
    let sleeper = Arc::new(sleeper);
    let result = fiber::timeout(Duration::from_millis(10), || sleeper.wait());
    assert_eq!(result.unwrap_err().kind(), ErrorKind::TimedOut);
    let joined = Arc::clone(&sleeper);
    assert_cancelled(cancelled_in(move || joined.wait()));
    sleeper.cancel();
    sleeper.wait().unwrap();
    sleeper.wait().unwrap();
}

fn timed_waits_for_locks_and_channels_end_and_the_others_go_on() {
    use fiber::sync::{Event, Mutex, Semaphore, mpsc};
    const LONG: Duration = Duration::from_secs(3600);
    let (sender, receiver) = mpsc::channel::<u32>();
    let (receiver, word) = cancelled_in(move || {
        let word = receiver.recv_timeout(LONG);
        assert!(receiver.recv_timeout(LONG).is_err(), "the cancel request stays");
        (receiver, word)
    });
    assert_eq!(word, Err(mpsc::RecvTimeoutError::Timeout));
    // Messages that are there are delivered all the same.
    sender.send(7).unwrap();
    assert_eq!(cancelled_in(move || receiver.recv_timeout(LONG)), Ok(7));
    let lock = Arc::new(Mutex::new(()));
    let held = lock.lock().unwrap();
    let wanted = Arc::clone(&lock);
    assert!(cancelled_in(move || wanted.lock_timeout(LONG).is_err()));
    drop(held);
    let semaphore = Semaphore::new(0);
    assert!(cancelled_in(move || semaphore.acquire_timeout(LONG).is_none()));
    // The deadline of `timeout` counts as well.
    let soon = Duration::from_millis(10);
    assert!(!fiber::timeout(soon, || Event::new().wait_timeout(LONG)));
    // Without a time-out the wait continues until it is granted.
    let event = Arc::new(Event::new());
    let waited = Arc::clone(&event);
    let waiter = fiber::spawn(move || waited.wait());
    (0..3).for_each(|_| fiber::yield_now());
    waiter.cancel();
    (0..3).for_each(|_| fiber::yield_now());
    assert!(!waiter.is_finished());
    event.set();
    waiter.join().unwrap();
}

fn offloaded_calls_are_waited_for() {
    let begun = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&begun);
    let fiber = fiber::spawn(move || {
        let on_my_stack = AtomicUsize::new(0);
        let result = fiber::offload(|| {
            flag.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(20));
            on_my_stack.fetch_add(1, Ordering::SeqCst)
        });
        (result, on_my_stack.into_inner())
    });
    while !begun.load(Ordering::SeqCst) {
        fiber::yield_now();
    }
    fiber.cancel();
    assert_eq!(fiber.join().unwrap(), (0, 1));
}

fn a_cancelled_acceptor_leaves_the_connections_to_others() {
    let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
    let address = listener.local_addr().unwrap();
    let acceptor = |number| {
        let listener = Arc::clone(&listener);
        let builder = fiber::Builder::new().processor(number);
        builder.spawn(move || listener.accept().map(drop)).unwrap()
    };
    let (stays, leaves) = (acceptor(0), acceptor(1));
    (0..3).for_each(|_| fiber::yield_now());
    leaves.cancel();
    let left = leaves.join().unwrap();
    let _connection = TcpStream::connect(address).unwrap();
    assert_cancelled(left);
    stays.join().unwrap().unwrap();
}

/// Seen: under load, a connection that was not accepted although a fiber waited for it. Cause: the
/// kernel notifies one of the rings that wait on a listener. That was a ring whose fiber had just
/// left, and whose accept was cancelled before it had looked. Cure: a fiber that ends its accept
/// checks if it has to notify the other rings.
fn a_connection_that_comes_while_an_acceptor_leaves_is_for_the_others() {
    let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
    let address = listener.local_addr().unwrap();
    let settle = || (0..20).for_each(|_| fiber::sleep(Duration::from_millis(1)));
    let accepting = Arc::clone(&listener);
    let builder = fiber::Builder::new().processor(1);
    let leaves = builder.spawn(move || {
        let left = accepting.accept().map(drop);
        // Without a suspension, so that the ring still accepts although no fiber waits here.
        (left, std::net::TcpStream::connect(address).unwrap())
    });
    // The kernel notifies the first ring in its queue first.
    settle();
    let accepting = Arc::clone(&listener);
    let builder = fiber::Builder::new().processor(0);
    let stays = builder.spawn(move || accepting.accept().map(drop));
    settle();
    let leaves = leaves.unwrap();
    leaves.cancel();
    let (left, _connection) = leaves.join().unwrap();
    assert_cancelled(left);
    stays.unwrap().join().unwrap().unwrap();
}

/// Seen (in review): a fiber accepted once and ended; the ring of its processor kept accepting,
/// and kept the connections for fibers that might accept there. Cure: connections that no fiber
/// waits for stay in the listen queue, and acceptors on other processors are notified.
fn connections_for_a_processor_whose_acceptor_has_gone_are_for_the_others() {
    let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
    let address = listener.local_addr().unwrap();
    let settle = || (0..10).for_each(|_| fiber::sleep(Duration::from_millis(1)));
    let acceptor = |number| {
        let listener = Arc::clone(&listener);
        let builder = fiber::Builder::new().processor(number);
        builder.spawn(move || listener.accept().map(drop)).unwrap()
    };
    let goes = acceptor(1);
    settle();
    let stays = acceptor(0);
    settle();
    let _connections = [0, 1].map(|_| {
        let connection = std::net::TcpStream::connect(address).unwrap();
        settle();
        connection
    });
    goes.join().unwrap().unwrap();
    stays.join().unwrap().unwrap();
}

fn accept_keeps_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let result = fiber::timeout(Duration::from_millis(10), || listener.accept());
    assert_eq!(result.unwrap_err().kind(), ErrorKind::TimedOut);
    let _connection = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    listener.accept().unwrap();
}

/// A small generator, so that a race is run at other places each time, and again by its seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        // SplitMix64 (Steele, Lea, Flood 2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    /// Lets some time pass: turns of the processor, or work that gives none.
    fn pause(&mut self) {
        for _ in 0..self.below(4) {
            fiber::yield_now();
        }
        for _ in 0..self.below(2000) {
            std::hint::spin_loop();
        }
    }
}

/// Runs a race under many seeds.
fn races(race: impl Fn(&mut Chance)) {
    for seed in 0..60 {
        // The test harness shows what was printed when it fails.
        println!("seed {seed}");
        race(&mut Chance(seed));
    }
}

fn accept_against_cancel_loses_no_connection() {
    races(|chance| {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
        let address = listener.local_addr().unwrap();
        let acceptors: Vec<_> = (0..2)
            .map(|number| {
                let listener = Arc::clone(&listener);
                let accept = move || {
                    let mut accepted = 0;
                    while listener.accept().is_ok() {
                        accepted += 1;
                    }
                    accepted
                };
                let builder = fiber::Builder::new().processor(number);
                builder.spawn(accept).unwrap()
            })
            .collect();
        chance.pause();
        let connections = 1 + chance.below(4) as usize;
        let connecting = fiber::spawn(move || {
            let connect = |_| TcpStream::connect(address).unwrap();
            (0..connections).map(connect).collect::<Vec<_>>()
        });
        chance.pause();
        let mut accepted = 0;
        for acceptor in acceptors {
            acceptor.cancel();
            accepted += acceptor.join().unwrap();
            chance.pause();
        }
        let _connected = connecting.join().unwrap();
        // Connections that were not accepted wait for the next call, on either processor.
        let accepted = Arc::new(AtomicUsize::new(accepted));
        let rest = [0, 1].map(|number| {
            let (listener, accepted) = (Arc::clone(&listener), Arc::clone(&accepted));
            let accept = move || {
                while accepted.load(Ordering::SeqCst) < connections && listener.accept().is_ok() {
                    accepted.fetch_add(1, Ordering::SeqCst);
                }
                listener.close();
            };
            let builder = fiber::Builder::new().processor(number);
            builder.spawn(accept).unwrap()
        });
        rest.into_iter().for_each(|rest| rest.join().unwrap());
        assert_eq!(accepted.load(Ordering::SeqCst), connections);
    });
}

fn receive_against_cancel_loses_no_byte() {
    races(|chance| {
        let (near, mut far) = pair();
        let near = Arc::new(near);
        let by_lent_buffer = chance.below(2) == 0;
        let reader = Arc::clone(&near);
        let reader = fiber::spawn(move || {
            let mut got = Vec::new();
            loop {
                let result = if by_lent_buffer {
                    reader.receive(None, |bytes| got.extend_from_slice(bytes))
                } else {
                    let mut buffer = [0; 64];
                    let received = (&*reader).read(&mut buffer);
                    received.map(|len| got.extend_from_slice(&buffer[..len]))
                };
                if result.is_err() {
                    return got;
                }
            }
        });
        chance.pause();
        for word in ["one ", "two ", "three"] {
            far.write_all(word.as_bytes()).unwrap();
            chance.pause();
            if chance.below(2) == 0 {
                reader.cancel();
            }
        }
        reader.cancel();
        let mut got = reader.join().unwrap();
        drop(far);
        (&*near).read_to_end(&mut got).unwrap();
        assert_eq!(String::from_utf8(got).unwrap(), "one two three");
    });
}

fn send_against_cancel_counts_every_byte() {
    races(|chance| {
        let (near, mut far) = pair();
        let chunk_len = 1 + chance.below(300_000) as usize;
        let sender = fiber::spawn(move || {
            let chunk = vec![7; chunk_len];
            let mut sent = 0;
            while let Ok(len) = (&near).write(&chunk) {
                sent += len;
            }
            sent
        });
        let drain = fiber::spawn(move || {
            let mut all = Vec::new();
            far.read_to_end(&mut all).unwrap();
            all.len()
        });
        chance.pause();
        sender.cancel();
        assert_eq!(sender.join().unwrap(), drain.join().unwrap());
    });
}

fn sleep_against_cancel_ends_once() {
    races(|chance| {
        let sleeper = fiber::spawn(|| {
            fiber::sleep(Duration::from_millis(1));
            // A second wake-up for the same sleep would end this wait, in which nothing cancels.
            let (mut reader, _writer) = pipe().unwrap();
            let soon = Duration::from_millis(2);
            fiber::uncancellable(|| fiber::timeout(soon, || reader.read(&mut [0; 1])))
        });
        for _ in 0..chance.below(3) {
            fiber::sleep(Duration::from_millis(1));
        }
        chance.pause();
        sleeper.cancel();
        let error = sleeper.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    });
}

fn read_to_end_does_not_repeat_what_was_cancelled() {
    let (mut near, _far) = pair();
    assert_cancelled(cancelled_in(move || near.read_to_end(&mut Vec::new())));
}

fn a_step_is_told() {
    struct Waits(TcpStream, Arc<AtomicBool>);
    impl fiber::Stackless for Waits {
        fn source(&self) -> fiber::Source<'_> {
            self.0.source()
        }

        fn received(&mut self, input: io::Result<fiber::net::Input>) -> fiber::Flow {
            assert_cancelled(input);
            self.1.store(true, Ordering::SeqCst);
            fiber::Flow::Done
        }
    }
    for early in [true, false] {
        let ((near, _far), told) = (pair(), Arc::new(AtomicBool::new(false)));
        let steps = fiber::spawn_stackless(Waits(near, Arc::clone(&told)));
        if !early {
            (0..3).for_each(|_| fiber::yield_now());
        }
        steps.cancel();
        steps.join().unwrap();
        assert!(told.load(Ordering::SeqCst));
    }
}

/// Seen (in review): a cancelled stackless fiber that ignores the errors and waits again used a
/// core up. Cause: each of its waits ended at once. Cure: from the thousandth wait on, the end
/// comes after a pause, as for operations of other fibers.
fn a_step_that_ignores_the_request_is_slowed_down() {
    const STEPS: usize = 1200;
    struct Ignores(TcpStream, usize);
    impl fiber::Stackless for Ignores {
        fn source(&self) -> fiber::Source<'_> {
            self.0.source()
        }

        fn received(&mut self, input: io::Result<fiber::net::Input>) -> fiber::Flow {
            assert_cancelled(input);
            self.1 += 1;
            if self.1 == STEPS { fiber::Flow::Done } else { fiber::Flow::Receive }
        }
    }
    let (near, _far) = pair();
    let steps = fiber::spawn_stackless(Ignores(near, 0));
    // It waits by then, as a rule.
    fiber::sleep(Duration::from_millis(10));
    let start = Instant::now();
    steps.cancel();
    steps.join().unwrap();
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(150), "{STEPS} steps in {took:?}");
}

fn a_finished_fiber_may_be_cancelled() {
    let fiber = fiber::spawn(|| ());
    let handle = fiber.fiber().clone();
    fiber.join().unwrap();
    handle.cancel();
    fiber::yield_now();
}
