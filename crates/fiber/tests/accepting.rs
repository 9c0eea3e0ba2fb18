//! Plain threads that accept beside fibers, from the same listener.

extern crate weftwork_fiber as fiber;

use std::io::{ErrorKind, Read};
use std::net::{Shutdown, SocketAddr, TcpStream as Client};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use fiber::net::TcpListener;
use fiber::{BackendChoice, Builder, Runtime};

/// Longer than anything here takes, on any machine.
const BOUND: Duration = Duration::from_secs(60);

fn on_each(test: impl Fn(&Runtime)) {
    for backend in [BackendChoice::Uring, BackendChoice::Epoll] {
        let builder = Runtime::builder().processors(2).backend(backend);
        let runtime = builder.start().unwrap();
        test(&runtime);
        assert_eq!(runtime.shutdown(BOUND), 0, "{backend:?}");
    }
}

/// Connects; the connection is served when the fiber that accepted it has closed it.
fn visit(address: SocketAddr) {
    let mut client = Client::connect(address).unwrap();
    client.set_read_timeout(Some(BOUND)).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let served = client.read(&mut [0; 1]);
    assert_eq!(served.expect("no fiber accepted the connection"), 0);
}

/// Accepts until the listener is closed.
fn serve(listener: &TcpListener, served: &AtomicUsize) {
    loop {
        match listener.accept() {
            Ok(connection) => {
                served.fetch_add(1, Ordering::Relaxed);
                drop(connection);
            }
            Err(error) if error.kind() == ErrorKind::NotConnected => return,
            Err(error) => panic!("accept: {error}"),
        }
    }
}

/// Runs `f` on a plain thread; the receiver gets a message when it has ended.
fn on_a_thread(f: impl FnOnce() + Send + 'static) -> mpsc::Receiver<()> {
    let (ended, end) = mpsc::channel();
    std::thread::spawn(move || {
        f();
        ended.send(()).unwrap();
    });
    end
}

/// Seen: of 200 clients that came at once, before the first accept, 71 waited a second and more for
/// the next try of their handshake. Cause: std's listeners have room for 128. Cure: as many wait as
/// the system allows.
#[test]
fn backlog_holds_a_crowd() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let connect = |_| Client::connect_timeout(&address, BOUND / 10).expect("the queue is full");
    let allowed = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    let len = allowed.trim().parse::<usize>().unwrap().min(200);
    let crowd: Vec<_> = (0..len).map(connect).collect();
    drop((listener, crowd));
}

/// Seen: the fibers got `EAGAIN`, because the thread had made the listener non-blocking under an
/// accept of the ring; a thread that waited did not notice that the listener was closed.
#[test]
fn threads_and_fibers_accept() {
    on_each(|runtime| {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
        let address = listener.local_addr().unwrap();
        let served: Arc<[AtomicUsize; 2]> = Arc::default();
        let fibers: Vec<_> = (0..4)
            .map(|_| {
                let (listener, served) = (Arc::clone(&listener), Arc::clone(&served));
                runtime.spawn(move || serve(&listener, &served[0]))
            })
            .collect();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (listener, served) = (Arc::clone(&listener), Arc::clone(&served));
                on_a_thread(move || serve(&listener, &served[1]))
            })
            .collect();
        let visitors: Vec<_> = (0..4)
            .map(|_| std::thread::spawn(move || (0..200).for_each(|_| visit(address))))
            .collect();
        visitors.into_iter().for_each(|v| v.join().unwrap());
        listener.close();
        for thread in threads {
            thread.recv_timeout(BOUND).expect("the thread ends");
        }
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        let [by_fibers, by_threads] = [0, 1].map(|who| served[who].load(Ordering::Relaxed));
        assert_eq!(by_fibers + by_threads, 800);
    });
}

/// Fibers that come and go leave connections that the kernel has reported to their ring; the thread
/// is notified of them.
#[test]
fn a_thread_gets_what_fibers_leave() {
    on_each(|runtime| {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
        let address = listener.local_addr().unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        // Each accepts one and goes.
        let goers: Vec<_> = (0..2)
            .map(|_| {
                let (listener, is_over) = (Arc::clone(&listener), Arc::clone(&is_over));
                runtime.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        let patience = Duration::from_millis(1);
                        drop(fiber::timeout(patience, || listener.accept()));
                        fiber::sleep(Duration::from_millis(3));
                    }
                })
            })
            .collect();
        let thread = {
            let listener = Arc::clone(&listener);
            on_a_thread(move || serve(&listener, &AtomicUsize::new(0)))
        };
        (0..300).for_each(|_| visit(address));
        is_over.store(true, Ordering::Relaxed);
        goers.into_iter().for_each(|goer| goer.join().unwrap());
        (0..20).for_each(|_| visit(address));
        listener.close();
        thread.recv_timeout(BOUND).expect("the thread ends");
    });
}

/// Seen: three fibers asked for a connection, and a ring took the whole listen queue, 3,000 of a
/// server's clients. What no fiber had asked for was parked, and used up the descriptors that files
/// needed. Cause: a multishot accept does not stop. Cure: connections are accepted for those that
/// wait, and for no others.
#[test]
fn unasked_connections_stay_queued() {
    on_each(|runtime| {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
        let address = listener.local_addr().unwrap();
        let accept = |listener: &Arc<TcpListener>| {
            let listener = Arc::clone(listener);
            runtime.spawn(move || listener.accept().unwrap())
        };
        let accepted = || -> u64 { runtime.counters().iter().map(|c| c.accepted).sum() };
        let waiting: Vec<_> = (0..3).map(|_| accept(&listener)).collect();
        let clients: Vec<_> = (0..100).map(|_| Client::connect(address)).collect();
        let open: Vec<_> = waiting.into_iter().map(|fiber| fiber.join()).collect();
        assert_eq!(accepted(), 3, "100 clients, 3 fibers that accept");
        // The 97 others are there for those that ask next.
        let rest: Vec<_> = (0..97).map(|_| accept(&listener)).collect();
        rest.into_iter().for_each(|fiber| drop(fiber.join()));
        assert_eq!(accepted(), 100);
        drop((open, clients));
    });
}

/// Seen: programs for `std::net` and Go begin with a loop over `incoming`, which was not there; a
/// loop around `accept` that skips errors never ended once the listener was closed or its fiber
/// cancelled.
#[test]
fn incoming_ends_with_listener_or_fiber() {
    on_each(|runtime| {
        for ends_by_close in [true, false] {
            let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
            let address = listener.local_addr().unwrap();
            let served = {
                let listener = Arc::clone(&listener);
                runtime.spawn(move || listener.incoming().filter(|one| one.is_ok()).count())
            };
            visit(address);
            visit(address);
            if ends_by_close {
                listener.close()
            } else {
                served.fiber().cancel()
            }
            assert_eq!(served.join().unwrap(), 2);
        }
        runtime.run(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let serve = move || listener.incoming().filter(|one| one.is_ok()).count();
            let served = fiber::spawn(|| fiber::timeout(Duration::from_millis(5), serve));
            let ended = fiber::timeout(BOUND, || served.wait());
            served.fiber().cancel();
            ended.expect("the deadline ends the accept as well");
        });
    });
}

/// Seen: on epoll a fiber that accepted from a full listen queue kept its processor until the queue
/// was empty, which under load is never. Cause: a connection that is there at once was not counted
/// as an operation that did not suspend.
#[test]
fn a_full_listen_queue_starves_no_fiber() {
    const CONNECTIONS: usize = 100;
    for backend in [BackendChoice::Uring, BackendChoice::Epoll] {
        let builder = Runtime::builder().processors(1).backend(backend);
        let runtime = builder.start().unwrap();
        runtime.run(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let connect = |_| Client::connect(address).unwrap();
            let _clients: Vec<_> = (0..CONNECTIONS).map(connect).collect();
            let has_run = Arc::new(AtomicBool::new(false));
            let other = {
                let has_run = Arc::clone(&has_run);
                fiber::spawn(move || has_run.store(true, Ordering::Relaxed))
            };
            for _ in 0..CONNECTIONS {
                listener.accept().unwrap();
            }
            assert!(has_run.load(Ordering::Relaxed), "{backend:?}");
            other.join().unwrap();
        });
    }
}

/// Seen: of two runtimes with a listener each on one socket, as two programs share one, the second
/// did not see a connection. Cause: a fiber of the first was served after a neighbour's message,
/// and the poll of its ring, now needless, was the one of several that the kernel wakes
/// (EPOLLEXCLUSIVE). Cure: the poll is cancelled then.
#[test]
fn ring_without_waiters_takes_nothing() {
    const PATIENCE: Duration = Duration::from_millis(300);
    let start = |count| {
        let builder = Runtime::builder().processors(count);
        builder.backend(BackendChoice::Uring).start().unwrap()
    };
    let (one, other) = (start(2), start(1));
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let others = TcpListener::from(socket.try_clone().unwrap());
    let listener = Arc::new(TcpListener::from(socket));
    let on = |runtime: &Runtime, index: usize, f: Box<dyn FnOnce() + Send>| {
        let fiber = runtime.spawn_with(Builder::new().processor(index), f);
        // When two have run after it, it waits in the kernel.
        (0..2).for_each(|_| {
            let next = runtime.spawn_with(Builder::new().processor(index), fiber::yield_now);
            next.unwrap().join().unwrap();
        });
        fiber.unwrap()
    };
    let began = Instant::now();
    let impatient = Arc::clone(&listener);
    let impatient =
        on(&one, 0, Box::new(move || drop(fiber::timeout(PATIENCE, || impatient.accept()))));
    let patient = Arc::clone(&listener);
    let patient = on(
        &one,
        1,
        Box::new(move || {
            let connection = patient.accept().unwrap();
            // Until all that this sets off has reached the kernel.
            (0..5).for_each(|_| fiber::yield_now());
            drop(connection);
        }),
    );
    let (served, is_served) = mpsc::channel();
    let _waits = on(&other, 0, Box::new(move || served.send(others.accept().map(drop)).unwrap()));
    // The first processor sees the connection and its fiber's deadline in the same turn.
    let hog = Builder::new().processor(0);
    let hog = one.spawn_with(hog, move || {
        let _client = Client::connect(address).unwrap();
        std::thread::sleep(PATIENCE.saturating_sub(began.elapsed()) + PATIENCE);
    });
    hog.unwrap().join().unwrap();
    impatient.join().unwrap();
    patient.join().unwrap();
    let _client = Client::connect(address).unwrap();
    let told = is_served.recv_timeout(BOUND);
    assert!(told.expect("the other runtime gets the connection").is_ok());
}

/// Seen: under overload most clients of a server on io_uring timed out before they were accepted,
/// and the few others were served at once. Cause: a ring took one connection for each turn of the
/// loop, later nine, and turns are long when there is much to do. Cure: as long as there are more,
/// each turn takes twice as many as the one before, for fibers that wait and for those that come.
#[test]
fn queued_connections_share_turns() {
    const CLIENTS: usize = 512;
    // Nine a turn were 57. A turn also ends by time, so a busy machine may need as many once.
    let few = CLIENTS as u64 / 10;
    for backend in [BackendChoice::Uring, BackendChoice::Epoll] {
        for fibers in [CLIENTS, 1] {
            let tries = (0..10).map(|_| turns_to_accept(backend, CLIENTS, fibers));
            let taken: Vec<_> = tries.take_while(|taken| *taken >= few).collect();
            assert!(taken.len() < 10, "{taken:?} turns, {fibers} fibers on {backend:?}");
        }
    }
}

/// Turns of a processor in which so many fibers accept so many queued connections.
fn turns_to_accept(backend: BackendChoice, clients: usize, fibers: usize) -> u64 {
    let runtime = Runtime::builder().processors(1).backend(backend).start().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&listener, clients as i32).unwrap();
    let listener = Arc::new(TcpListener::from(listener));
    let address = listener.local_addr().unwrap();
    let queued: Vec<_> = (0..clients).map(|_| Client::connect(address).unwrap()).collect();
    let turns = || runtime.counters().iter().map(|of| of.turns).sum::<u64>();
    let before = turns();
    let accept_all = move || {
        let accept = || {
            let listener = Arc::clone(&listener);
            fiber::spawn(move || {
                (0..clients / fibers).for_each(|_| drop(listener.accept().unwrap()));
            })
        };
        let all: Vec<_> = (0..fibers).map(|_| accept()).collect();
        all.into_iter().for_each(|fiber| fiber.join().unwrap());
    };
    runtime.spawn(accept_all).join().unwrap();
    let taken = turns() - before;
    drop(queued);
    assert_eq!(runtime.shutdown(BOUND), 0, "{backend:?}");
    taken
}

/// Non-blocking, so that a file can be sent without a call more; a ring waits for them all the
/// same.
#[test]
fn batch_of_connections_is_uniform() {
    const CLIENTS: usize = 8;
    for backend in [BackendChoice::Uring, BackendChoice::Epoll] {
        let builder = Runtime::builder().processors(1).backend(backend);
        let runtime = builder.start().unwrap();
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
        let address = listener.local_addr().unwrap();
        let clients: Vec<_> = (0..CLIENTS).map(|_| Client::connect(address).unwrap()).collect();
        let accept_all = move || {
            let accept = || {
                let listener = Arc::clone(&listener);
                fiber::spawn(move || {
                    let connection = listener.accept().unwrap();
                    let flags = rustix::fs::fcntl_getfl(&connection).unwrap();
                    flags.contains(rustix::fs::OFlags::NONBLOCK)
                })
            };
            let fibers: Vec<_> = (0..CLIENTS).map(|_| accept()).collect();
            let kinds = fibers.into_iter().map(|fiber| fiber.join().unwrap());
            kinds.collect::<Vec<_>>()
        };
        let kinds = runtime.spawn(accept_all).join().unwrap();
        assert_eq!(kinds, [true; CLIENTS], "{backend:?}");
        drop(clients);
        assert_eq!(runtime.shutdown(BOUND), 0, "{backend:?}");
    }
}
