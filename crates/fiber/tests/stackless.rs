//! Stackless fibers, on each back end.

extern crate weftwork_fiber as fiber;

#[macro_use]
mod harness;

use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fiber::net::{Input, TcpListener, TcpStream, UnixStream};
use fiber::sync::{Event, Semaphore};
use fiber::{BackendChoice, Builder, Flow, Runtime, Source, Stackless};

contract! {
    echoes_until_the_end_of_the_stream
    many_conversations_at_once
    a_step_may_block
    a_deadline_ends_the_wait_and_the_next_step_may_wait_again
    a_panic_is_carried_to_who_joins
    what_comes_before_the_first_input
    a_reset_is_an_error
    unix_streams_work_alike
    value_is_dropped_when_done
    more_conversations_at_once_than_lent_buffers
    who_holds_input_for_long_starves_nobody
    stackless_yields_and_parks
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let accepted = fiber::spawn(move || listener.accept().unwrap());
    let connected = TcpStream::connect(address).unwrap();
    (connected, accepted.join().unwrap())
}

/// Echoes its input until the end or an error, which it leaves in `ended`.
struct Echo {
    stream: TcpStream,
    ended: Arc<std::sync::Mutex<Option<io::Result<()>>>>,
}

impl Echo {
    fn new(stream: TcpStream) -> Echo {
        let ended = Arc::default();
        Echo { stream, ended }
    }
}

impl Stackless for Echo {
    fn source(&self) -> Source<'_> {
        self.stream.source()
    }

    fn received(&mut self, input: io::Result<Input>) -> Flow {
        let end = match input {
            Ok(input) if !input.is_empty() => match self.stream.write_all(&input) {
                Ok(()) => return Flow::Receive,
                Err(error) => Err(error),
            },
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        *self.ended.lock().unwrap() = Some(end);
        Flow::Done
    }
}

fn converse(stream: &mut (impl Read + Write), rounds: usize) {
    for round in 0..rounds {
        let sent: Vec<u8> = (0..100 + round).map(|i| (i * 7 + round) as u8).collect();
        let mut got = vec![0; sent.len()];
        stream.write_all(&sent).unwrap();
        stream.read_exact(&mut got).unwrap();
        assert!(got == sent, "round {round}");
    }
}

fn echoes_until_the_end_of_the_stream() {
    let (mut near, far) = pair();
    let echo = Echo::new(far);
    let ended = Arc::clone(&echo.ended);
    let steps = fiber::spawn_stackless(echo);
    converse(&mut near, 50);
    assert!(!steps.is_finished());
    near.shutdown(std::net::Shutdown::Write).unwrap();
    steps.join().unwrap();
    assert!(matches!(*ended.lock().unwrap(), Some(Ok(()))));
    assert_eq!(near.read(&mut [0; 1]).unwrap(), 0);
}

fn many_conversations_at_once() {
    const COUNT: usize = 200;
    fiber::scope(|scope| {
        for _ in 0..COUNT {
            let (mut near, far) = pair();
            fiber::spawn_stackless(Echo::new(far));
            scope.spawn(move || converse(&mut near, 10));
        }
    });
}

fn more_conversations_at_once_than_lent_buffers() {
    const COUNT: usize = 1500;
    let mut nears = Vec::new();
    for _ in 0..COUNT {
        let (near, far) = pair();
        fiber::spawn_stackless(Echo::new(far));
        nears.push(near);
    }
    for near in &mut nears {
        near.write_all(b"all at once").unwrap();
    }
    for near in &mut nears {
        let mut got = [0; 11];
        near.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"all at once");
    }
}

fn a_step_may_block() {
    struct Slow(TcpStream);
    impl Stackless for Slow {
        fn source(&self) -> Source<'_> {
            self.0.source()
        }
        fn received(&mut self, input: io::Result<Input>) -> Flow {
            let Ok(input) = input else { return Flow::Done };
            if input.is_empty() {
                return Flow::Done;
            }
            let len = input.len();
            drop(input);
            fiber::sleep(Duration::from_millis(1));
            let helped = fiber::spawn(move || len * 2).join().unwrap();
            self.0.write_all(&helped.to_be_bytes()).unwrap();
            Flow::Receive
        }
    }
    let (mut near, far) = pair();
    fiber::spawn_stackless(Slow(far));
    for len in [1usize, 10, 100] {
        near.write_all(&vec![1; len]).unwrap();
        let mut got = [0; 8];
        near.read_exact(&mut got).unwrap();
        assert_eq!(usize::from_be_bytes(got), len * 2);
    }
}

fn a_deadline_ends_the_wait_and_the_next_step_may_wait_again() {
    struct Patient {
        stream: TcpStream,
        deadline: Option<Instant>,
        timeouts: Arc<AtomicUsize>,
    }
    impl Stackless for Patient {
        fn source(&self) -> Source<'_> {
            self.stream.source()
        }
        fn deadline(&self) -> Option<Instant> {
            self.deadline
        }
        fn received(&mut self, input: io::Result<Input>) -> Flow {
            match input {
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    assert!(Instant::now() >= self.deadline.unwrap());
                    self.deadline = Some(Instant::now() + Duration::from_millis(5));
                    if self.timeouts.fetch_add(1, Ordering::SeqCst) == 2 {
                        self.deadline = None;
                        self.stream.write_all(b"?").unwrap();
                    }
                    Flow::Receive
                }
                Ok(input) if !input.is_empty() => {
                    self.stream.write_all(&input).unwrap();
                    Flow::Receive
                }
                _ => Flow::Done,
            }
        }
    }
    let (mut near, stream) = pair();
    let timeouts = Arc::new(AtomicUsize::new(0));
    let steps = fiber::spawn_stackless(Patient {
        stream,
        deadline: Some(Instant::now() + Duration::from_millis(5)),
        timeouts: Arc::clone(&timeouts),
    });
    let mut asked = [0; 1];
    near.read_exact(&mut asked).unwrap();
    assert_eq!(&asked, b"?");
    assert_eq!(timeouts.load(Ordering::SeqCst), 3);
    converse(&mut near, 3);
    drop(near);
    steps.join().unwrap();
}

fn a_panic_is_carried_to_who_joins() {
    struct Broken(TcpStream);
    impl Stackless for Broken {
        fn source(&self) -> Source<'_> {
            self.0.source()
        }
        fn received(&mut self, _: io::Result<Input>) -> Flow {
            std::panic::panic_any(7u32)
        }
    }
    let (mut near, far) = pair();
    let steps = fiber::spawn_stackless(Broken(far));
    near.write_all(b"x").unwrap();
    let payload = steps.join().unwrap_err();
    assert_eq!(payload.downcast_ref::<u32>(), Some(&7));
    assert!(!matches!(near.read(&mut [0; 1]), Ok(1..)), "the stream is closed");
}

fn what_comes_before_the_first_input() {
    struct Greeting(TcpStream);
    impl Stackless for Greeting {
        fn begin(&mut self) -> Flow {
            self.0.write_all(b"hello").unwrap();
            Flow::Done
        }
        fn source(&self) -> Source<'_> {
            self.0.source()
        }
        fn received(&mut self, _: io::Result<Input>) -> Flow {
            unreachable!("the fiber is done")
        }
    }
    let (mut near, far) = pair();
    let named = Builder::new().name("greeting").processor(1);
    let steps = named.spawn_stackless(Greeting(far)).unwrap();
    assert_eq!(steps.fiber().name(), Some("greeting"));
    let mut got = String::new();
    near.read_to_string(&mut got).unwrap();
    assert_eq!(got, "hello");
    steps.join().unwrap();
}

fn a_reset_is_an_error() {
    let (near, far) = pair();
    let echo = Echo::new(far);
    let ended = Arc::clone(&echo.ended);
    let steps = fiber::spawn_stackless(echo);
    let linger = Some(Duration::ZERO);
    rustix::net::sockopt::set_socket_linger(&near, linger).unwrap();
    drop(near);
    steps.join().unwrap();
    let ended = ended.lock().unwrap().take().unwrap().unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::ConnectionReset);
}

fn unix_streams_work_alike() {
    struct UnixEcho(UnixStream);
    impl Stackless for UnixEcho {
        fn source(&self) -> Source<'_> {
            self.0.source()
        }
        fn received(&mut self, input: io::Result<Input>) -> Flow {
            match input {
                Ok(input) if !input.is_empty() => {
                    self.0.write_all(&input).unwrap();
                    Flow::Receive
                }
                _ => Flow::Done,
            }
        }
    }
    let (mut near, far) = UnixStream::pair().unwrap();
    let steps = fiber::spawn_stackless(UnixEcho(far));
    converse(&mut near, 20);
    drop(near);
    steps.join().unwrap();
}

fn value_is_dropped_when_done() {
    struct Counted(TcpStream, Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            // There is a stack to block on.
            fiber::yield_now();
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }
    impl Stackless for Counted {
        fn source(&self) -> Source<'_> {
            self.0.source()
        }
        fn received(&mut self, _: io::Result<Input>) -> Flow {
            Flow::Done
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let (near, far) = pair();
    let steps = fiber::spawn_stackless(Counted(far, Arc::clone(&dropped)));
    drop(near);
    steps.join().unwrap();
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}

fn stackless_yields_and_parks() {
    struct Counting {
        left: usize,
        count: Arc<AtomicUsize>,
    }
    impl Stackless for Counting {
        fn begin(&mut self) -> Flow {
            Flow::Yield
        }
        fn resumed(&mut self) -> Flow {
            self.count.fetch_add(1, Ordering::SeqCst);
            self.left -= 1;
            match self.left {
                0 => Flow::Done,
                left if left % 2 == 0 => Flow::Yield,
                _ => Flow::Park,
            }
        }
    }
    let count = Arc::new(AtomicUsize::new(0));
    let counting = Counting { left: 1000, count: Arc::clone(&count) };
    let steps = fiber::spawn_stackless(counting);
    while !steps.is_finished() {
        steps.fiber().unpark();
        fiber::yield_now();
    }
    steps.join().unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 1000);
}

/// Yields a hundred times, and notes on which threads it ran.
struct Wandering(usize);

impl Stackless for Wandering {
    fn begin(&mut self) -> Flow {
        Flow::Yield
    }

    fn resumed(&mut self) -> Flow {
        self.0 -= 1;
        if self.0 == 0 { Flow::Done } else { Flow::Yield }
    }
}

#[test]
fn stackless_leaves_busy_processor() {
    for choice in [BackendChoice::Uring, BackendChoice::Epoll] {
        let builder = Runtime::builder().processors(2);
        let runtime = builder.backend(choice).start().unwrap();
        runtime.run(|| {
            // Both processors have taken fibers by the time that one of them is kept busy.
            let steps: Vec<_> = (0..100).map(|_| fiber::spawn_stackless(Wandering(100))).collect();
            fiber::yield_now();
            let deadline = Instant::now() + Duration::from_secs(60);
            while !steps.iter().all(fiber::JoinHandle::is_finished) {
                assert!(Instant::now() < deadline, "no other processor helped");
                std::hint::spin_loop();
            }
        });
        let counters = runtime.counters();
        let taken = counters.iter().map(|c| c.fibers_helped + c.fibers_stolen).sum::<u64>();
        assert!(taken > 0, "nothing left the busy processor");
    }
}

/// Notes how many others have run by the time that its input comes.
struct Notes {
    stream: TcpStream,
    ran: Arc<AtomicUsize>,
    seen: Arc<AtomicUsize>,
}

impl Stackless for Notes {
    fn source(&self) -> Source<'_> {
        self.stream.source()
    }

    fn received(&mut self, _input: io::Result<Input>) -> Flow {
        let ran = self.ran.load(Ordering::SeqCst);
        self.seen.store(ran, Ordering::SeqCst);
        Flow::Done
    }
}

/// Seen: a thousand connections that were accepted at once, and sent what their sockets took of a
/// large file, kept one that was open waiting for a second. Cause: a turn ran all that was ready,
/// however long that took, before it looked for input. Cure: a turn that takes long is cut short,
/// and the next one begins with stackless fibers that have input.
#[test]
fn burst_does_not_delay_input() {
    const BURST: usize = 40;
    for choice in [BackendChoice::Uring, BackendChoice::Epoll] {
        let builder = Runtime::builder().processors(1);
        let runtime = builder.backend(choice).start().unwrap();
        runtime.run(|| {
            let (near, far) = pair();
            let near = Arc::new(near);
            let (ran, seen) = (Arc::default(), Arc::default());
            let steps = fiber::spawn_stackless(Notes {
                stream: far,
                ran: Arc::clone(&ran),
                seen: Arc::clone(&seen),
            });
            let go = Arc::new(Event::new());
            let burst: Vec<_> = (0..BURST)
                .map(|number| {
                    let (go, ran, near) = (Arc::clone(&go), Arc::clone(&ran), Arc::clone(&near));
                    fiber::spawn(move || {
                        go.wait();
                        if number == 0 {
                            (&*near).write_all(b"input").unwrap();
                        }
                        // Longer than a turn may take.
                        let until = Instant::now() + Duration::from_millis(3);
                        while Instant::now() < until {
                            std::hint::spin_loop();
                        }
                        ran.fetch_add(1, Ordering::SeqCst);
                    })
                })
                .collect();
            // All of them wait before they are let go.
            fiber::sleep(Duration::from_millis(1));
            go.set();
            burst.into_iter().for_each(|one| one.join().unwrap());
            steps.join().unwrap();
            let seen = seen.load(Ordering::SeqCst);
            assert!(seen < BURST / 2, "{seen} of {BURST} fibers ran before it, on {choice:?}");
        });
        let cut: u64 = runtime.counters().iter().map(|c| c.turns_cut).sum();
        assert!(cut > 0, "no turn was cut short");
    }
}

/// Keeps its first input until the test releases it, then takes the rest.
struct Holds {
    stream: TcpStream,
    begin: Arc<Semaphore>,
    may_end: Arc<Event>,
}

impl Stackless for Holds {
    fn source(&self) -> Source<'_> {
        self.stream.source()
    }

    fn received(&mut self, input: io::Result<Input>) -> Flow {
        let input = input.unwrap();
        if input.is_empty() {
            return Flow::Done;
        }
        self.begin.release(1);
        self.may_end.wait();
        assert!(input.iter().all(|&byte| byte == b'h'));
        Flow::Receive
    }
}

/// Seen: when as many fibers kept their input as there are buffers, the receives of all others were
/// repeated without end. Cause: a receive that found no buffer was only ever repeated. Cure: it
/// takes one of its own.
fn who_holds_input_for_long_starves_nobody() {
    // Ten times what a processor lends in all.
    const COUNT: usize = 320;
    const LEN: usize = 32 * 1024;
    let (began, may_end) = (Arc::new(Semaphore::new(0)), Arc::new(Event::new()));
    let (mut idle, far) = pair();
    let idle_steps = fiber::spawn_stackless(Echo::new(far));
    let mut nears = Vec::new();
    let mut holders = Vec::new();
    for at in 0..COUNT {
        let (near, far) = pair();
        let (begin, may_end) = (Arc::clone(&began), Arc::clone(&may_end));
        // By stackless fibers, and by fibers that wait in the middle.
        holders.push(if at % 2 == 0 {
            let stream = far;
            fiber::spawn_stackless(Holds { stream, begin, may_end })
        } else {
            fiber::spawn(move || {
                let hold = |input: &[u8]| {
                    begin.release(1);
                    may_end.wait();
                    assert!(input.iter().all(|&byte| byte == b'h'));
                    input.len()
                };
                while far.receive(None, hold).unwrap() > 0 {}
            })
        });
        nears.push(near);
    }
    for near in &mut nears {
        near.write_all(&[b'h'; LEN]).unwrap();
    }
    began.acquire_many(COUNT).forget();
    // All hold something now.
    let (mut late, far) = pair();
    let late_steps = fiber::spawn_stackless(Echo::new(far));
    converse(&mut late, 10);
    converse(&mut idle, 10);
    drop((late, idle));
    late_steps.join().unwrap();
    idle_steps.join().unwrap();
    may_end.set();
    drop(nears);
    holders.into_iter().for_each(|h| h.join().unwrap());
    assert_eq!(fiber::resources().buffers_left, 0);
}

/// Names its source once, and panics when asked again.
struct AskedOnce {
    stream: TcpStream,
    asked: AtomicUsize,
}

impl Stackless for AskedOnce {
    fn source(&self) -> Source<'_> {
        let before = self.asked.fetch_add(1, Ordering::Relaxed);
        assert_eq!(before, 0, "asked again");
        self.stream.source()
    }

    fn received(&mut self, _: io::Result<Input>) -> Flow {
        Flow::Done
    }
}

/// Seen: each panic in `source` after input had come took a piece of a receive buffer with it,
/// until there were none. Cause: the buffer was looked at only after the value had been asked.
/// Cure: the other way round.
#[test]
fn source_panic_returns_buffer() {
    let left_before = fiber::resources().buffers_left;
    harness::run(BackendChoice::Auto, || {
        let (mut near, far) = pair();
        let asked = AtomicUsize::new(0);
        let steps = fiber::spawn_stackless(AskedOnce { stream: far, asked });
        near.write_all(b"input").unwrap();
        steps.join().unwrap_err();
    });
    assert_eq!(fiber::resources().buffers_left, left_before);
}
