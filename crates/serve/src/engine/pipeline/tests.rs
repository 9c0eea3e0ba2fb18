//! The pipeline at its limits: queues and batches of one, sessions that block, wait and panic,
//! peers that do not read and never stop, and an end with every queue full. In all cases no
//! connection is lost and nothing waits forever.

mod actor;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use ::session::replay::Random;
use ::session::{Echo, NoWork, Now, Outbox, Phase, Received};

use super::*;
use crate::counters::Closed;
use crate::engine::reactor::tests::{PATIENCE, connect, read_line, start_on_loopback};
use crate::limits::Limits;
use crate::shared::Shared;
use actor::{Actor, BIG_LEN, Locks};

/// The smallest limits: every queue is full.
const NARROW: PipelineOptions = PipelineOptions {
    read_threads: 1,
    session_threads: 1,
    write_threads: 1,
    queue_limit: 1,
    batch_max: 1,
    dispatcher: Mechanism::EpollEdge,
};

struct World {
    pipeline: Pipeline,
    shared: Arc<Shared>,
    address: SocketAddr,
}

impl World {
    fn new<S: Session + 'static>(
        options: PipelineOptions,
        open: impl Fn() -> S + Send + Sync + 'static,
    ) -> World {
        World::with(options, Limits::default(), open)
    }

    fn with<S: Session + 'static>(
        options: PipelineOptions,
        limits: Limits,
        open: impl Fn() -> S + Send + Sync + 'static,
    ) -> World {
        let (start, shared, address) = start_on_loopback(limits, open);
        World { pipeline: Pipeline::start(options, start).unwrap(), shared, address }
    }

    fn connect(&self) -> TcpStream {
        connect(self.address)
    }

    /// A client that has sent this line.
    fn send(&self, line: &str) -> TcpStream {
        let mut client = self.connect();
        client.write_all(line.as_bytes()).unwrap();
        client
    }

    fn wait_until(&self, what: &str, mut is_so: impl FnMut(&Pipeline) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(&self.pipeline) {
            assert!(Instant::now() < deadline, "{what}:\n{}", self.pipeline.dump());
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Counters of the session stage's queue.
    fn sessions(pipeline: &Pipeline) -> Counted {
        let mut gauges = pipeline.gauges.iter();
        let gauge = gauges.find(|gauge| gauge.stage == "session").unwrap();
        (gauge.read)()
    }
}

/// Reads to the end, which may be a reset.
fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    match stream.read_to_end(&mut all) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
        _ => all,
    }
}

fn actors(options: PipelineOptions) -> (World, Arc<Locks>) {
    let locks = Arc::new(Locks::default());
    let of_sessions = Arc::clone(&locks);
    let world = World::new(options, move || Actor::new(&of_sessions));
    (world, locks)
}

#[test]
fn many_connections_share_queues_of_one() {
    let world = World::new(NARROW, || Echo);
    let mut clients: Vec<_> = (0..200).map(|_| world.connect()).collect();
    for round in 0..3 {
        for (number, client) in clients.iter_mut().enumerate() {
            writeln!(client, "{round} {number}").unwrap();
        }
        for (number, client) in clients.iter_mut().enumerate() {
            assert_eq!(read_line(client), format!("{round} {number}\n"));
        }
    }
    drop(clients);
    world.wait_until("all have left", |pipeline| pipeline.loops.connection_count() == 0);
}

/// Tests the argument on the engine's page: small queues, and peers whose requests send their
/// connections through all paths.
#[test]
fn the_circle_never_stands_still() {
    const CLIENTS: u64 = 24;
    const REQUESTS: u64 = 60;
    for (threads, queue_limit, batch_max) in [(1, 1, 1), (2, 1, 4), (1, 2, 32), (3, 2, 1)] {
        let options = PipelineOptions {
            read_threads: threads.min(2),
            session_threads: threads,
            write_threads: threads.min(2),
            queue_limit,
            batch_max,
            ..NARROW
        };
        let seed = u64::from(std::process::id());
        println!("seed {seed}, {options:?}");
        let (world, _) = actors(options);
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                let world = &world;
                scope.spawn(move || {
                    let mut random = Random(seed * CLIENTS + client);
                    let bytes = (0..REQUESTS).map(|_| b"eeeewwb~"[random.below(8) as usize]);
                    let bytes: Vec<u8> = bytes.collect();
                    let big = bytes.iter().filter(|&&byte| byte == b'b').count();
                    let expected = bytes.len() + big * (BIG_LEN - 1);
                    let stream = world.connect();
                    let mut sender = stream.try_clone().unwrap();
                    let sending = scope.spawn(move || {
                        for piece in bytes.chunks(1 + random.below(REQUESTS) as usize) {
                            sender.write_all(piece).unwrap();
                        }
                        sender.shutdown(Shutdown::Write).unwrap();
                    });
                    let mut stream = stream;
                    assert_eq!(read_all(&mut stream).len(), expected);
                    sending.join().unwrap();
                });
            }
        });
        world.wait_until("all have left", |pipeline| pipeline.loops.connection_count() == 0);
        let counted = World::sessions(&world.pipeline);
        assert!(counted.longest <= queue_limit, "{counted:?}");
    }
}

#[test]
fn slow_readers_take_no_place_in_a_queue() {
    let (world, _) = actors(NARROW);
    // Each has more output than two sockets hold.
    let mut slow: Vec<_> = (0..20).map(|_| world.send(&"b".repeat(40))).collect();
    for _ in 0..100 {
        assert_eq!(world.send("e").read(&mut [0]).unwrap(), 1);
    }
    for reader in &mut slow {
        reader.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(reader).len(), 40 * BIG_LEN);
    }
}

#[test]
fn clients_wait_for_a_busy_session_stage() {
    let (world, locks) = actors(NARROW);
    let mut clients: Vec<_> = (0..50).map(|_| world.send("e")).collect();
    for client in &mut clients {
        client.read_exact(&mut [0]).unwrap();
    }
    let mut busy = world.send("S");
    world.wait_until("the work stage is busy", |_| locks.waits() == 1);
    for client in &mut clients {
        client.write_all(b"e").unwrap();
    }
    world.wait_until("the queue is full", |pipeline| World::sessions(pipeline).length == 1);
    locks.open(b'S');
    for client in clients.iter_mut().chain([&mut busy]) {
        client.read_exact(&mut [0]).unwrap();
    }
    let pending = World::sessions(&world.pipeline).pending_longest;
    assert!(pending <= 1, "{pending} were received from, and bytes held");
}

/// Seen: ten clients on a long listing made a client of a file in memory wait for 0.2 to 7 s.
/// Cause: threads of the session stage did blocking work themselves, so all of them were listing.
/// Cure: it is handed to the pool of jobs, as on the other engines.
#[test]
fn blocking_work_takes_no_session_thread() {
    const BLOCKED: usize = 8;
    let (world, locks) = actors(NARROW);
    let mut blocked: Vec<_> = (0..BLOCKED).map(|_| world.send("0")).collect();
    world.wait_until("all work", |_| locks.waits() == BLOCKED);
    let mut neighbor = world.connect();
    for _ in 0..20 {
        neighbor.write_all(b"e").unwrap();
        neighbor.read_exact(&mut [0]).unwrap();
    }
    // Other work does not wait for it either.
    assert_eq!(world.send("A").read(&mut [0]).unwrap(), 1);
    for client in &mut blocked {
        client.read_exact(&mut [0]).unwrap();
    }
}

/// Work that does not fit into the queue returns to its session, which closes here.
#[test]
fn work_beyond_the_job_limit_is_refused() {
    let limits = Limits { connections_max: 1, ..Limits::default() };
    let locks = Arc::new(Locks::default());
    let of_sessions = Arc::clone(&locks);
    let world = World::with(NARROW, limits, move || Actor::new(&of_sessions));
    let taken = world.shared.jobs.reserve().unwrap();
    assert_eq!(read_all(&mut world.send("w")), b"");
    drop(taken);
    assert_eq!(world.send("w").read(&mut [0]).unwrap(), 1);
    let closed = || world.shared.counters.snapshot().closed(Closed::Session);
    world.wait_until("it is counted", |_| closed() == 1);
}

#[test]
fn waiting_work_takes_no_stage_thread() {
    let (world, locks) = actors(NARROW);
    let mut watchers: Vec<_> = (0..3).map(|_| world.send("?")).collect();
    world.wait_until("all wait", |_| world.shared.counters.snapshot().work_calls() == 3);
    assert_eq!(world.send("w").read(&mut [0]).unwrap(), 1);
    locks.open(b'?');
    for watcher in &mut watchers {
        watcher.read_exact(&mut [0]).unwrap();
    }
}

#[test]
fn a_panic_ends_its_own_connection() {
    let (world, _) = actors(NARROW);
    for line in ["P", "!"] {
        assert_eq!(read_all(&mut world.send(line)), b"");
    }
    assert_eq!(world.send("e").read(&mut [0]).unwrap(), 1);
    let errors = || world.shared.counters.snapshot().closed(Closed::Error);
    world.wait_until("both are counted", |_| errors() == 2);
}

/// Sends lines, each after the reply to the previous one: the connection is idle in between.
fn exchange(client: &mut TcpStream, lines: usize) {
    for _ in 0..lines {
        client.write_all(b"hello\n").unwrap();
        assert_eq!(read_line(client), "hello\n");
    }
}

/// Seen (in review): while the queue of one reader was full nothing was accepted, although another
/// was idle. Cause: only the next reader was checked. Cure: all are.
#[test]
fn full_reader_queues_pause_accepting() {
    let options = PipelineOptions { read_threads: 2, ..NARROW };
    let stages = Arc::new(Stages::<Echo>::new(&options).unwrap());
    let mut to = InTurn {
        stages: Arc::clone(&stages),
        connection_limit: Arc::new(ConnectionLimit::new(10, 1)),
        next: 0,
    };
    let own = LoopHandle::new().unwrap();
    let accepted =
        || Accepted { socket: tempfile::tempfile().unwrap().into(), peer: None, listener: 0 };
    let lengths = || [0, 1].map(|at: usize| stages.readers[at].queue.counted().length);
    for expected in [[1, 0], [1, 1]] {
        assert!(to.find_space(&own), "{:?}", lengths());
        to.distribute(accepted());
        assert_eq!(lengths(), expected);
    }
    assert!(!to.find_space(&own));
    // It is the first reader's turn, but only the second has space.
    stages.readers[1].queue.take(1, &mut Vec::new());
    assert!(own.waker.is_woken(), "the loop was not woken by space");
    assert!(to.find_space(&own));
    to.distribute(accepted());
    assert_eq!(lengths(), [1, 1]);
}

/// Seen: three system calls per request woke its reader to tell it that a reply was sent. Cause:
/// returned connections went through the reader's queue and woke it. Cure: a connection is idle
/// until the reader gets a report of its peer.
#[test]
fn a_sent_reply_wakes_no_reader() {
    const LINES: usize = 200;
    let world = World::new(NARROW, || Echo);
    let came_back = || (world.pipeline.gauges[0].read)().taken;
    let mut client = world.connect();
    // After the first exchange its reader has a timer for it.
    exchange(&mut client, 2);
    let before = came_back();
    exchange(&mut client, LINES);
    assert!(came_back() < before + LINES as u64 / 10);
}

/// An idle connection misses no event: its time-outs, even one earlier than the previous, its
/// peer's end, and the server's.
#[test]
fn an_idle_connection_misses_nothing() {
    let (short, long) = (Duration::from_secs(1), Duration::from_secs(600));
    let limits =
        |head_timeout, idle_timeout| Limits { head_timeout, idle_timeout, ..Limits::default() };
    let is_over = |client: &mut TcpStream, reason, world: &World| {
        read_all(client);
        world.wait_until("it has ended", |_| world.shared.counters.snapshot().closed(reason) == 1);
    };

    let world = World::with(NARROW, limits(long, short), || Echo);
    let mut client = world.connect();
    exchange(&mut client, 3);
    is_over(&mut client, Closed::TimedOut(Phase::Idle), &world);

    let world = World::with(NARROW, limits(short, long), || Echo);
    let mut client = world.connect();
    exchange(&mut client, 3);
    client.write_all(b"half a line").unwrap();
    is_over(&mut client, Closed::TimedOut(Phase::Head), &world);

    let world = World::with(NARROW, limits(long, long), || Echo);
    let (mut client, mut other) = (world.connect(), world.connect());
    exchange(&mut client, 3);
    exchange(&mut other, 3);
    client.shutdown(Shutdown::Write).unwrap();
    is_over(&mut client, Closed::Peer, &world);
    world.shared.server_state.drain();
    world.pipeline.loops.wake();
    is_over(&mut other, Closed::Drained, &world);
}

/// An uncaught panic of a session would end a thread shared by many connections.
struct Brittle;

impl Session for Brittle {
    type Work = NoWork;

    fn receive(&mut self, input: &[u8], now: Now, out: &mut Outbox) -> Received {
        Echo.receive(input, now, out)
    }

    fn drain(&mut self, _now: Now, _out: &mut Outbox) {
        panic!("deliberate, from a test");
    }
}

impl Drop for Brittle {
    fn drop(&mut self) {
        assert!(thread::panicking(), "deliberate, from a test");
    }
}

#[test]
fn panic_in_drain_or_drop_ends_one_connection() {
    let world = World::new(NARROW, || Brittle);
    let mut clients: Vec<_> = (0..3).map(|_| world.send("hello\n")).collect();
    for client in &mut clients {
        assert_eq!(read_line(client), "hello\n");
    }
    drop(clients.pop());
    world.wait_until("one has left", |pipeline| pipeline.loops.connection_count() == 2);
    world.shared.server_state.drain();
    world.pipeline.loops.wake();
    for client in &mut clients {
        assert_eq!(read_all(client), b"");
    }
    world.wait_until("all have left", |pipeline| pipeline.loops.connection_count() == 0);
}

/// The end does not wait for a disk: a blocking session holds its own connection, and no other.
#[test]
fn an_end_with_full_queues() {
    let (world, locks) = actors(NARROW);
    let mut watching = world.send("?");
    let mut blocking = world.send("0");
    world.wait_until("both wait", |_| locks.waits() == 2);
    let mut others: Vec<_> = (0..10).map(|_| world.send(&"b".repeat(40))).collect();
    let mut busy = world.send("S");
    world.wait_until("the work stage is busy", |_| locks.waits() == 3);
    others.extend((0..50).map(|_| world.send("b")));
    let accepted = || world.shared.counters.snapshot().accepted();
    world.wait_until("the queue is full", |pipeline| {
        World::sessions(pipeline).length == 1 && accepted() == 63
    });
    let World { pipeline, shared, .. } = world;
    drop(pipeline);
    for client in others.iter_mut().chain([&mut watching]) {
        read_all(client);
    }
    assert_eq!(shared.counters.snapshot().closed_total(), 61);
    locks.open(b'0');
    locks.open(b'S');
    for client in [&mut blocking, &mut busy] {
        assert_eq!(read_all(client), b"");
    }
}
