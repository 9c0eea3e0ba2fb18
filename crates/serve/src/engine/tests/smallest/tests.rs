//! Guarantees of every engine, with real sockets. The machine itself is tested elsewhere.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

use session::{Echo, FileRange, Next, NoWork, Outbox, Phase, Received, SharedFile};

use super::{start as start_smallest, *};
use crate::engine::reactor::tests::{PATIENCE, connect, read_line, start_on_loopback};
use crate::jobs::tests::Call;
use crate::limits::Limits;
use crate::shared::Shared;

struct World {
    engine: Loops,
    shared: Arc<Shared>,
    address: SocketAddr,
}

impl World {
    fn new<S: Session + 'static>(
        limits: Limits,
        open: impl Fn() -> S + Send + Sync + 'static,
    ) -> World {
        let (start, shared, address) = start_on_loopback(limits, open);
        World { engine: start_smallest(start).unwrap(), shared, address }
    }

    fn connect(&self) -> TcpStream {
        connect(self.address)
    }

    /// Waits until the number of open connections is `count`.
    fn wait_for_count(&self, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.engine.connection_count() != count {
            assert!(Instant::now() < deadline, "{}", self.engine.connection_count());
            thread::yield_now();
        }
    }
}

#[test]
fn many_conversations_go_on_at_once() {
    let world = World::new(Limits::default(), || Echo);
    let mut clients: Vec<_> = (0..50).map(|_| world.connect()).collect();
    for round in 0..3 {
        for (number, client) in clients.iter_mut().enumerate() {
            writeln!(client, "{round} {number}").unwrap();
        }
        for (number, client) in clients.iter_mut().enumerate() {
            assert_eq!(read_line(client), format!("{round} {number}\n"));
        }
    }
    assert_eq!(world.engine.listeners().len(), 1);
    world.wait_for_count(50);
    drop(clients);
    world.wait_for_count(0);
}

#[test]
fn pipelining_without_reading_holds_nobody_up() {
    const LINES: usize = 200_000;
    let world = World::new(Limits::default(), || Echo);
    let greedy = world.connect();
    let mut writer = greedy.try_clone().unwrap();
    let sending = thread::spawn(move || {
        writer.write_all(&b"0123456789\n".repeat(LINES)).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut other = world.connect();
    other.write_all(b"hello\n").unwrap();
    assert_eq!(read_line(&mut other), "hello\n");
    let mut replies = Vec::new();
    (&greedy).read_to_end(&mut replies).unwrap();
    assert_eq!(replies.len(), 11 * LINES);
    sending.join().unwrap();
}

#[test]
fn at_the_limit_others_wait_until_one_ends() {
    let limits = Limits { connections_max: 1, ..Limits::default() };
    let world = World::new(limits, || Echo);
    let (mut first, mut second) = (world.connect(), world.connect());
    second.write_all(b"second\n").unwrap();
    first.write_all(b"first\n").unwrap();
    assert_eq!(read_line(&mut first), "first\n");
    drop(first);
    assert_eq!(read_line(&mut second), "second\n");
    world.wait_for_count(1);
}

#[test]
fn a_silent_peer_is_closed_after_its_time() {
    let limits = Limits { head_timeout: Duration::from_millis(50), ..Limits::default() };
    let world = World::new(limits, || Echo);
    let mut last_words = Vec::new();
    world.connect().read_to_end(&mut last_words).unwrap();
    world.wait_for_count(0);
    let timed_out = Closed::TimedOut(Phase::Idle);
    assert_eq!(world.shared.counters.snapshot().closed(timed_out), 1);
}

#[test]
fn a_drain_closes_an_idle_connection() {
    let world = World::new(Limits::default(), || Echo);
    let mut idle = world.connect();
    idle.write_all(b"one\n").unwrap();
    assert_eq!(read_line(&mut idle), "one\n");
    world.shared.server_state.drain();
    world.engine.stop_accepting();
    assert_eq!(idle.read(&mut [0]).unwrap(), 0, "closed");
    world.wait_for_count(0);
}

/// A session that panics at the line `panic`.
struct Fragile;

impl Session for Fragile {
    type Work = NoWork;

    fn receive(&mut self, input: &[u8], now: Now, out: &mut Outbox) -> Received {
        assert!(!input.starts_with(b"panic"), "as the test wants it");
        Echo.receive(input, now, out)
    }
}

#[test]
fn a_panic_ends_its_connection_alone() {
    let world = World::new(Limits::default(), || Fragile);
    let (mut fragile, mut other) = (world.connect(), world.connect());
    fragile.write_all(b"panic\n").unwrap();
    assert_eq!(fragile.read(&mut [0]).unwrap_or(0), 0, "closed");
    other.write_all(b"hello\n").unwrap();
    assert_eq!(read_line(&mut other), "hello\n");
    world.wait_for_count(1);
    assert_eq!(world.shared.counters.snapshot().closed(Closed::Error), 1);
}

/// A session that answers each line with a file, after work.
struct Sender {
    file: Arc<SharedFile>,
    has_worked: bool,
}

impl Session for Sender {
    type Work = Call;

    fn receive(&mut self, input: &[u8], _now: Now, out: &mut Outbox) -> Received {
        let next = match (input.len(), std::mem::take(&mut self.has_worked)) {
            (0, _) => Next::Receive(Phase::Idle),
            (_, false) => {
                return Received { used: 0, next: Next::Work };
            }
            (_, true) => {
                let (file, range) = (Arc::clone(&self.file), 0..self.file.stamp().len);
                out.put_file(FileRange { file, range, keep: true, settled: true });
                Next::Receive(Phase::Idle)
            }
        };
        Received { used: input.len(), next }
    }

    fn take_work(&mut self) -> Option<Call> {
        Some(Call(|| (), false))
    }

    fn handle_worked(&mut self, _: Call, _: Now, _: &mut Outbox) -> Next {
        self.has_worked = true;
        Next::Flush
    }
}

#[test]
fn a_file_arrives_whole_after_work() {
    const LEN: usize = 8 << 20;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let bytes: Vec<u8> = (0..LEN).map(|at| (at / 7) as u8).collect();
    std::fs::write(&path, &bytes).unwrap();
    let file = Arc::new(SharedFile::try_from(File::open(&path).unwrap()).unwrap());
    let world = World::new(Limits::default(), move || Sender {
        file: Arc::clone(&file),
        has_worked: false,
    });
    let mut client = world.connect();
    client.write_all(b"x").unwrap();
    let mut received = vec![0; LEN];
    client.read_exact(&mut received).unwrap();
    assert!(received == bytes, "other bytes than the file's");
}

/// The page quotes the code that is compiled here.
#[test]
fn the_page_quotes_the_engine() {
    let page = include_str!("../../../../../../docs/adding-an-engine.md");
    let engine = include_str!("../smallest.rs");
    let blocks = page.split("```rust\n").skip(1);
    let mut count = 0;
    for block in blocks.map(|block| block.split("```").next().unwrap()) {
        let lines = |text: &str| -> Vec<String> {
            text.lines().map(|line| line.trim().to_owned()).collect()
        };
        let (quoted, all) = (lines(block), lines(engine));
        let is_there = all.windows(quoted.len()).any(|window| window == quoted);
        assert!(is_there, "not in smallest.rs:\n{block}");
        count += 1;
    }
    assert!(count >= 5, "{count} quotations");
}
