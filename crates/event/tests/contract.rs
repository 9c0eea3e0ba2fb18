//! Contract of [`event::Dispatcher`], tested over every mechanism.

#![allow(unsafe_code)]

extern crate weftwork_event as event;

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use event::{Dispatcher, Interest, Mechanism, Ready, Token, Trigger, Waker};

/// Longer than any expected event takes.
const BOUND: Duration = Duration::from_secs(20);
/// Long enough to show that something does not happen, if it would otherwise happen at once.
const GLANCE: Duration = Duration::from_millis(20);

/// A dispatcher under test.
struct World {
    dispatcher: Box<dyn Dispatcher>,
    ready: Vec<Ready>,
}

impl World {
    fn new(mechanism: Mechanism) -> World {
        World { dispatcher: mechanism.open().unwrap(), ready: Vec::new() }
    }

    fn add(&mut self, fd: impl AsFd, token: u64, interest: Interest) {
        self.dispatcher.add(fd.as_fd(), Token(token), interest).unwrap();
    }

    fn modify(&mut self, fd: impl AsFd, token: u64, interest: Interest) {
        self.dispatcher.modify(fd.as_fd(), Token(token), interest).unwrap();
    }

    fn remove(&mut self, fd: impl AsFd) {
        self.dispatcher.remove(fd.as_fd()).unwrap();
    }

    fn poll(&mut self) {
        self.dispatcher.wait(&mut self.ready, Some(Duration::ZERO)).unwrap();
    }

    /// Waits until `token` is reported.
    fn expect(&mut self, token: u64) -> Ready {
        let until = Instant::now() + BOUND;
        while Instant::now() < until {
            self.dispatcher.wait(&mut self.ready, Some(BOUND)).unwrap();
            if let Some(ready) = self.ready.iter().find(|ready| ready.token == Token(token)) {
                return *ready;
            }
        }
        panic!("{token} was not reported within {BOUND:?}");
    }

    /// Waits for a moment, in which nothing but `except` may be reported.
    fn expect_silence(&mut self, except: &[u64]) {
        let until = Instant::now() + GLANCE;
        while Instant::now() < until {
            self.dispatcher.wait(&mut self.ready, Some(GLANCE)).unwrap();
            for ready in &self.ready {
                assert!(except.contains(&ready.token.0), "{ready:?} was reported");
            }
        }
    }
}

fn pair() -> (UnixStream, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    (near, far)
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    far.set_nonblocking(true).unwrap();
    (near, far)
}

/// Reads until there is no more: what a caller does under edge.
fn drain(mut from: impl Read) -> usize {
    let mut bytes = [0; 4096];
    let mut total = 0;
    loop {
        match from.read(&mut bytes) {
            Ok(0) => return total,
            Ok(read) => total += read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return total,
            Err(error) => panic!("{error}"),
        }
    }
}

fn bytes_are_reported(mechanism: Mechanism) {
    let mut world = World::new(mechanism);
    let (mut near, far) = pair();
    world.add(&far, 1, Interest::READ);
    world.expect_silence(&[]);
    near.write_all(b"x").unwrap();
    assert!(world.expect(1).readiness.is_readable());
}

fn bytes_before_add_are_reported(mechanism: Mechanism) {
    let mut world = World::new(mechanism);
    let (mut near, far) = pair();
    near.write_all(b"x").unwrap();
    world.add(&far, 1, Interest::READ);
    world.expect(1);
}

fn modify_reports_readiness_again(mechanism: Mechanism) {
    let mut world = World::new(mechanism);
    let (mut near, far) = pair();
    world.add(&far, 1, Interest::READ);
    near.write_all(b"x").unwrap();
    world.expect(1);
    world.modify(&far, 2, Interest::READ);
    world.expect(2);
    assert!(world.ready.iter().all(|ready| ready.token == Token(2)), "{:?}", world.ready);
}

fn level_repeats_and_one_shot_does_not(mechanism: Mechanism) {
    let mut world = World::new(mechanism);
    let (mut near, far) = pair();
    world.add(&far, 1, Interest::READ);
    near.write_all(b"x").unwrap();
    world.expect(1);
    match world.dispatcher.trigger() {
        Trigger::Level => (0..20).for_each(|_| assert!(world.expect(1).readiness.is_readable())),
        Trigger::Edge => {}
        Trigger::OneShot => {
            world.expect_silence(&[]);
            near.write_all(b"x").unwrap();
            world.expect_silence(&[]);
        }
    }
}

fn more_bytes_after_a_read_are_reported(mechanism: Mechanism) {
    let mut world = World::new(mechanism);
    let (mut near, far) = pair();
    world.add(&far, 1, Interest::READ);
    for _ in 0..30 {
        near.write_all(b"x").unwrap();
        world.expect(1);
        assert_eq!(drain(&far), 1);
        if world.dispatcher.trigger() == Trigger::OneShot {
            world.modify(&far, 1, Interest::READ);
        }
    }
    world.expect_silence(&[]);
}

fn only_an_unfilled_send_buffer_is_writable(mechanism: Mechanism) {
    let mut world = World::new(mechanism);
    let (mut near, mut far) = pair();
    world.add(&far, 1, Interest::WRITE);
    assert!(world.expect(1).readiness.is_writable());
    while far.write(&[0; 65536]).is_ok() {}
    world.remove(&far);
    world.add(&far, 1, Interest::WRITE);
    world.expect_silence(&[]);
    // The peer frees buffer space.
    near.set_nonblocking(true).unwrap();
    assert!(drain(&near) > 0);
    assert!(near.read(&mut [0]).is_err(), "bytes were left");
    assert!(world.expect(1).readiness.is_writable());
}

fn only_the_interest_is_reported(mechanism: Mechanism) {
    let mut world = World::new(mechanism);
    let (mut near, far) = pair();
    world.add(&far, 1, Interest::WRITE);
    near.write_all(b"x").unwrap();
    for _ in 0..3 {
        let readiness = world.expect(1).readiness;
        assert!(readiness.is_writable() && !readiness.is_readable(), "{readiness:?}");
        world.modify(&far, 1, Interest::WRITE);
    }
    world.modify(&far, 1, Interest::READ);
    let readiness = world.expect(1).readiness;
    assert!(readiness.is_readable() && !readiness.is_writable(), "{readiness:?}");
}

fn a_half_closed_peer_is_readable(mechanism: Mechanism) {
    let mut world = World::new(mechanism);
    let (near, far) = tcp_pair();
    world.add(&far, 1, Interest::READ);
    near.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(world.expect(1).readiness.is_readable());
    assert_eq!((&far).read(&mut [0]).unwrap(), 0);
}

/// A caller that trusts a short read would wait forever for an end that came together with the
/// bytes.
fn end_of_stream_behind_bytes_is_reported(mechanism: Mechanism) {
    let mut world = World::new(mechanism);
    let (near, far) = tcp_pair();
    (&near).write_all(b"last").unwrap();
    world.add(&far, 1, Interest::READ);
    assert!(!world.expect(1).readiness.is_read_closed());
    near.shutdown(std::net::Shutdown::Write).unwrap();
    if world.dispatcher.trigger() == Trigger::OneShot {
        world.modify(&far, 1, Interest::READ);
    }
    let told = world.expect(1).readiness.is_read_closed();
    assert_eq!(told, world.dispatcher.tells_end());
}

fn forgotten_descriptors_are_not_reported(mechanism: Mechanism) {
    let mut world = World::new(mechanism);
    let (near, far) = tcp_pair();
    world.add(&far, 1, Interest::READ);
    (&near).write_all(b"late").unwrap();
    world.dispatcher.forget(far.as_fd()).unwrap();
    drop(far);
    world.expect_silence(&[]);
    // Its number is free for another.
    let (near, far) = tcp_pair();
    world.add(&far, 2, Interest::READ);
    (&near).write_all(b"new").unwrap();
    assert!(world.expect(2).readiness.is_readable());
}

fn a_closed_peer_is_readable(mechanism: Mechanism) {
    let mut world = World::new(mechanism);
    let (near, far) = pair();
    world.add(&far, 1, Interest::READ);
    drop(near);
    assert!(world.expect(1).readiness.is_readable());
    assert_eq!((&far).read(&mut [0]).unwrap(), 0);
}

fn a_reset_is_readable(mechanism: Mechanism) {
    let mut world = World::new(mechanism);
    let (near, mut far) = tcp_pair();
    far.write_all(b"unread").unwrap();
    world.add(&far, 1, Interest::READ);
    // Bytes that were not read make the kernel reset the connection.
    near.peek(&mut [0]).unwrap();
    drop(near);
    assert!(world.expect(1).readiness.is_readable());
    let error = far.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

fn a_refused_connection_is_writable(mechanism: Mechanism) {
    let mut world = World::new(mechanism);
    let refused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        rustix::net::SocketFlags::NONBLOCK,
        None,
    )
    .unwrap();
    let _ = rustix::net::connect(&socket, &refused);
    world.add(&socket, 1, Interest::WRITE);
    assert!(world.expect(1).readiness.is_writable());
}

fn listeners_report_each_connection(mechanism: Mechanism) {
    let mut world = World::new(mechanism);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    world.add(&listener, 1, Interest::READ.pinned());
    for _ in 0..20 {
        let _near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        world.expect(1);
        listener.accept().unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        if world.dispatcher.trigger() == Trigger::OneShot {
            world.modify(&listener, 1, Interest::READ.pinned());
        }
    }
}

fn nothing_is_reported_after_remove(mechanism: Mechanism) {
    let mut world = World::new(mechanism);
    let (mut near, far) = pair();
    world.add(&far, 1, Interest::READ);
    near.write_all(b"x").unwrap();
    world.expect(1);
    near.write_all(b"x").unwrap();
    world.remove(&far);
    world.expect_silence(&[]);
}

fn a_reused_number_inherits_no_readiness(mechanism: Mechanism) {
    let mut world = World::new(mechanism);
    for token in 0..50 {
        let (mut near, far) = pair();
        world.add(&far, 1000 + token, Interest::READ);
        near.write_all(b"x").unwrap();
        // The report is taken for half of the tokens, and still queued for the others.
        if token % 2 == 0 {
            world.expect(1000 + token);
        }
        world.remove(&far);
        // The number stands for another file now.
        let (_quiet_near, quiet) = pair();
        let mut successor = OwnedFd::from(far);
        rustix::io::dup2(&quiet, &mut successor).unwrap();
        world.add(&successor, token, Interest::READ);
        for _ in 0..2 {
            world.poll();
            assert_eq!(world.ready, [], "of the successor of {}", successor.as_raw_fd());
        }
        world.remove(&successor);
    }
}

fn misuse_is_an_error(mechanism: Mechanism) {
    let mut world = World::new(mechanism);
    let (_near, far) = pair();
    let code = |result: io::Result<()>| result.unwrap_err().raw_os_error().unwrap();
    let dispatcher = &mut world.dispatcher;
    assert_eq!(code(dispatcher.remove(far.as_fd())), libc::ENOENT);
    assert_eq!(code(dispatcher.modify(far.as_fd(), Token(1), Interest::READ)), libc::ENOENT);
    dispatcher.add(far.as_fd(), Token(1), Interest::READ).unwrap();
    assert_eq!(code(dispatcher.add(far.as_fd(), Token(1), Interest::READ)), libc::EEXIST);
    dispatcher.remove(far.as_fd()).unwrap();
    assert_eq!(code(dispatcher.remove(far.as_fd())), libc::ENOENT);
}

fn another_thread_wakes_an_endless_wait(mechanism: Mechanism) {
    let mut world = World::new(mechanism);
    let waker = Arc::new(Waker::new().unwrap());
    world.add(&*waker, 1, Interest::READ.pinned());
    for _ in 0..20 {
        let other = thread::spawn({
            let waker = Arc::clone(&waker);
            move || waker.wake()
        });
        while !world.ready.iter().any(|ready| ready.token == Token(1)) {
            world.dispatcher.wait(&mut world.ready, None).unwrap();
        }
        waker.reset();
        if world.dispatcher.trigger() == Trigger::OneShot {
            world.modify(&*waker, 1, Interest::READ.pinned());
        }
        other.join().unwrap();
        world.expect_silence(&[1]);
    }
}

fn waits_do_not_end_early(mechanism: Mechanism) {
    let mut world = World::new(mechanism);
    let (_near, far) = pair();
    world.add(&far, 1, Interest::READ);
    // Nothing is left that could end the next wait early.
    world.poll();
    for timeout in [Duration::from_micros(300), Duration::from_micros(2500)] {
        let began = Instant::now();
        world.dispatcher.wait(&mut world.ready, Some(timeout)).unwrap();
        assert_eq!(world.ready, []);
        assert!(began.elapsed() >= timeout, "{:?} of {timeout:?}", began.elapsed());
    }
}

/// Seen: the ring ended each wait of `Duration::MAX` at once, because the kernel took its seconds
/// for a negative number. The caller went round and round.
fn the_longest_time_out_sleeps(mechanism: Mechanism) {
    let mut world = World::new(mechanism);
    let (mut near, far) = pair();
    world.add(&far, 1, Interest::READ);
    let other = thread::spawn(move || {
        // Time for many waits that do not sleep. Those that do are few, however long this takes.
        thread::sleep(GLANCE);
        near.write_all(b"x").map(|()| near)
    });
    let mut waits = 0;
    while world.ready.is_empty() {
        waits += 1;
        world.dispatcher.wait(&mut world.ready, Some(Duration::MAX)).unwrap();
    }
    assert_eq!(world.ready[0].token, Token(1));
    assert!(waits <= 3, "{waits} waits for one event");
    other.join().unwrap().unwrap();
}

/// Seen on the ring: an event that came since the last wait made the kernel refuse to end the poll
/// (`EALREADY`). It held the file for good, so the peer never saw the end of the connection.
fn remove_then_close_ends_the_connection(mechanism: Mechanism) {
    let mut world = World::new(mechanism);
    for is_modified in [false, true] {
        let (mut near, far) = pair();
        near.set_nonblocking(true).unwrap();
        world.add(&far, 1, Interest::READ);
        world.poll();
        near.write_all(b"x").unwrap();
        if is_modified {
            world.modify(&far, 2, Interest::READ);
            near.write_all(b"x").unwrap();
        }
        world.remove(&far);
        drop(far);
        // The kernel may let go of it a moment later.
        let until = Instant::now() + BOUND;
        while near.read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            assert!(Instant::now() < until, "the peer does not see the end of the stream");
            world.poll();
        }
    }
}

fn a_regular_file_is_refused_or_ready(mechanism: Mechanism) {
    let mut world = World::new(mechanism);
    let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    match world.dispatcher.add(file.as_fd(), Token(1), Interest::READ) {
        Ok(()) => assert!(world.expect(1).readiness.is_readable()),
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{error}");
            world.poll();
            assert_eq!(world.ready, []);
        }
    }
}

/// Seen: a panic. `AT_FDCWD` is a `BorrowedFd` that safe code can have, and is negative.
fn non_descriptors_are_refused(mechanism: Mechanism) {
    let mut world = World::new(mechanism);
    let none = rustix::fs::CWD;
    let code = |result: io::Result<()>| result.unwrap_err().raw_os_error();
    let dispatcher = &mut world.dispatcher;
    assert_eq!(code(dispatcher.add(none, Token(1), Interest::READ)), Some(libc::EBADF));
    for changed in [dispatcher.modify(none, Token(1), Interest::READ), dispatcher.remove(none)] {
        let code = code(changed);
        assert!(matches!(code, Some(libc::EBADF | libc::ENOENT)), "{code:?}");
    }
}

fn a_storm_of_signals_loses_nothing(mechanism: Mechanism) {
    let mut world = World::new(mechanism);
    let (mut near, far) = pair();
    world.add(&far, 1, Interest::READ);
    let _storm = Storm::on_this_thread();
    for _ in 0..200 {
        near.write_all(b"x").unwrap();
        world.expect(1);
        assert_eq!(drain(&far), 1);
        if world.dispatcher.trigger() == Trigger::OneShot {
            world.modify(&far, 1, Interest::READ);
        }
    }
    let until = Instant::now() + GLANCE;
    while Instant::now() < until {
        world.dispatcher.wait(&mut world.ready, Some(GLANCE)).unwrap();
        assert!(world.ready.iter().all(|ready| !ready.readiness.is_error()));
    }
}

/// Another thread interrupts this one with a signal that has a handler, again and again.
struct Storm {
    is_over: Arc<AtomicBool>,
    sender: Option<thread::JoinHandle<()>>,
}

impl Storm {
    fn on_this_thread() -> Storm {
        extern "C" fn handler(_: libc::c_int) {}
        let handler: extern "C" fn(libc::c_int) = handler;
        // SAFETY: the handler does nothing, so it is safe in any signal context (signal(7)).
        unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
        // SAFETY: it only returns the calling thread's identifier.
        let victim = unsafe { libc::pthread_self() };
        let is_over = Arc::new(AtomicBool::new(false));
        let sender = thread::spawn({
            let is_over = Arc::clone(&is_over);
            move || {
                while !is_over.load(Ordering::Relaxed) {
                    // SAFETY: the thread lives until this one has been joined, in drop.
                    unsafe { libc::pthread_kill(victim, libc::SIGUSR1) };
                    // Without a pause the victim does nothing but handle signals.
                    thread::sleep(Duration::from_micros(20));
                }
            }
        });
        Storm { is_over, sender: Some(sender) }
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.sender.take().unwrap().join();
    }
}

fn all_of_many_are_reported(mechanism: Mechanism) {
    many(mechanism, 600);
}

/// Makes `count` pairs, of which some are written to in turn, and then all at once. These are not
/// read: reports beyond one wait's capacity come with the next, also under level.
fn many(mechanism: Mechanism, count: usize) {
    // Several at a time would need more descriptors than a process may have.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut world = World::new(mechanism);
    let pairs: Vec<_> = (0..count).map(|_| pair()).collect();
    for (token, (_, far)) in pairs.iter().enumerate() {
        world.add(far, token as u64, Interest::READ);
    }
    let again = |world: &mut World, token: usize| {
        if world.dispatcher.trigger() == Trigger::OneShot {
            world.modify(&pairs[token].1, token as u64, Interest::READ);
        }
    };
    for token in (0..count).step_by(count / 20) {
        (&pairs[token].0).write_all(b"x").unwrap();
        world.expect(token as u64);
        assert_eq!(drain(&pairs[token].1), 1);
        again(&mut world, token);
    }
    pairs.iter().for_each(|(near, _)| (&mut &*near).write_all(b"x").unwrap());
    let mut missing = vec![true; count];
    while missing.contains(&true) {
        world.dispatcher.wait(&mut world.ready, Some(BOUND)).unwrap();
        assert_ne!(world.ready, [], "{} not reported", missing.iter().filter(|it| **it).count());
        for token in world.ready.iter().map(|ready| ready.token.0 as usize) {
            missing[token] = false;
        }
    }
}

fn six_thousand_descriptors(mechanism: Mechanism) {
    let needed = 2 * 6000 + 500;
    let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if limits.current.is_some_and(|now| now < needed) {
        let raised = rustix::process::Rlimit { current: limits.maximum, ..limits };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    }
    // A machine whose limit is lower still shows the same with what it has.
    let most = limits.maximum.map_or(needed, |most| most.min(needed)) - 500;
    many(mechanism, (most / 2) as usize);
}

/// Runs `promise`. If the kernel or its administrator denies io_uring, only the refusal is tested;
/// a line that bypasses the test harness says so.
fn run(mechanism: Mechanism, promise: fn(Mechanism)) {
    match mechanism.open().map(drop) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
            assert_eq!(mechanism, Mechanism::Uring, "{error}");
            let said = format!("io_uring is denied here, and not tested: {error}\n");
            let _ = io::stderr().write_all(said.as_bytes());
        }
        _ => promise(mechanism),
    }
}

macro_rules! over_every_dispatcher {
    ($($promise:ident)*) => {
        over_every_dispatcher! { @each select Mechanism::Select; $($promise)* }
        over_every_dispatcher! { @each poll Mechanism::Poll; $($promise)* }
        over_every_dispatcher! { @each fdm Mechanism::FDM; $($promise)* }
        over_every_dispatcher! { @each lap Mechanism::Lap; $($promise)* }
        over_every_dispatcher! { @each rtsig Mechanism::RtSig(event::Overflow::Poll); $($promise)* }
        over_every_dispatcher! {
            @each rtsig_kept_poll Mechanism::RtSig(event::Overflow::KeptPoll); $($promise)*
        }
        over_every_dispatcher! {
            @each rtsig_select Mechanism::RtSig(event::Overflow::Select); $($promise)*
        }
        over_every_dispatcher! {
            @each rtsig_signalfd Mechanism::RtSig(event::Overflow::Signalfd); $($promise)*
        }
        over_every_dispatcher! { @each epoll Mechanism::Epoll; $($promise)* }
        over_every_dispatcher! { @each epoll_edge Mechanism::EpollEdge; $($promise)* }
        over_every_dispatcher! { @each epoll_oneshot Mechanism::EpollOneShot; $($promise)* }
        over_every_dispatcher! { @each uring Mechanism::Uring; $($promise)* }
    };
    (@each $name:ident $mechanism:expr; $($promise:ident)*) => {
        mod $name {
            use super::*;
            $(#[test] fn $promise() { super::run($mechanism, super::$promise); })*
        }
    };
}

over_every_dispatcher! {
    bytes_are_reported
    bytes_before_add_are_reported
    modify_reports_readiness_again
    level_repeats_and_one_shot_does_not
    more_bytes_after_a_read_are_reported
    only_an_unfilled_send_buffer_is_writable
    only_the_interest_is_reported
    a_half_closed_peer_is_readable
    end_of_stream_behind_bytes_is_reported
    forgotten_descriptors_are_not_reported
    a_closed_peer_is_readable
    a_reset_is_readable
    a_refused_connection_is_writable
    listeners_report_each_connection
    nothing_is_reported_after_remove
    a_reused_number_inherits_no_readiness
    misuse_is_an_error
    another_thread_wakes_an_endless_wait
    waits_do_not_end_early
    the_longest_time_out_sleeps
    remove_then_close_ends_the_connection
    a_regular_file_is_refused_or_ready
    non_descriptors_are_refused
    a_storm_of_signals_loses_nothing
    all_of_many_are_reported
    six_thousand_descriptors
}
