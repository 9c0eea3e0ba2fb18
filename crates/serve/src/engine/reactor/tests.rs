//! Faults of a dispatcher, which may cost time or a connection, counted with a reason, but never
//! one in silence; uncached files, and slow datagram answers: under each engine with a dispatcher.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use event::{Dispatcher, Interest, Mechanism, Overflow, Ready, Token, Trigger};
use rustix::fs::Advice;
use rustix::io::Errno;
use session::replay::Random;
use session::{
    Echo, FileRange, Next, NoWork, Now, Opening, Outbox, Phase, Received, Session, SharedFile,
};

use super::accept_thread::{AcceptThread, Distribute};
use super::{
    Accepted, Acceptor, EngineContext, FIRST_LISTENER, Listeners, LoopHandle, Poller, all_sockets,
};
use crate::counters::{Closed, CounterSnapshot};
use crate::engine::admission::{Admission, Start};
use crate::engine::event::Events;
use crate::engine::pipeline::Pipeline;
use crate::engine::{Accept, Engine, EventOptions, PipelineOptions, Running};
use crate::file::tests::file_on_disk;
use crate::limits::Limits;
use crate::listen::{Address, bind};
use crate::metrics::MetricsWriter;
use crate::server::{Server, Settings};
use crate::shared::Shared;

/// A dispatcher with the faults that the kernel may have.
struct Faulty {
    real: Box<dyn Dispatcher>,
    faults: Faults,
    calls: Calls,
}

/// Calls so far, for each kind of fault.
#[derive(Default)]
struct Calls {
    waits: u64,
    failed_waits: u64,
    adds: u64,
    changes: u64,
    listener_adds: u64,
    reports: u64,
    other_reports: u64,
}

/// Counts a call. True for every `every`-th one.
fn is_nth(calls: &mut u64, every: u64) -> bool {
    *calls += 1;
    every > 0 && calls.is_multiple_of(every)
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// Interval of waits that a signal interrupts; 0: none. So for each fault below.
    pub(crate) interrupts: u64,
    /// Interval of waits that fail: `poll(2)` copies its list, for which memory may lack.
    pub(crate) wait_fails: u64,
    /// Interval of connections that cannot be watched.
    pub(crate) add_fails: Option<(u64, Errno)>,
    /// Interval of changes of interest that fail.
    pub(crate) change_fails: u64,
    /// Number of times that a listener cannot be watched again.
    pub(crate) listener_adds_fail: u64,
    /// Interval of lost reports of a connection, as real-time signals may be.
    pub(crate) loses: u64,
    /// Interval of lost reports of a listener or of the waker.
    pub(crate) loses_others: u64,
}

impl Dispatcher for Faulty {
    fn add(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        let is_connection = token.0 < FIRST_LISTENER;
        if (FIRST_LISTENER..u64::MAX).contains(&token.0) {
            self.calls.listener_adds += 1;
            if (2..2 + self.faults.listener_adds_fail).contains(&self.calls.listener_adds) {
                return Err(Errno::NOMEM.into());
            }
        }
        match self.faults.add_fails {
            Some((every, errno)) if is_connection && is_nth(&mut self.calls.adds, every) => {
                Err(errno.into())
            }
            _ => self.real.add(fd, token, interest),
        }
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        if is_nth(&mut self.calls.changes, self.faults.change_fails) {
            Err(Errno::NOMEM.into())
        } else {
            self.real.modify(fd, token, interest)
        }
    }

    fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.real.remove(fd)
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> io::Result<()> {
        ready.clear();
        if is_nth(&mut self.calls.waits, self.faults.interrupts) {
            return Ok(());
        }
        if is_nth(&mut self.calls.failed_waits, self.faults.wait_fails) {
            return Err(Errno::NOMEM.into());
        }
        self.real.wait(ready, timeout)?;
        let Faulty { faults, calls, .. } = self;
        ready.retain(|report| {
            if report.token.0 < FIRST_LISTENER {
                !is_nth(&mut calls.reports, faults.loses)
            } else {
                !is_nth(&mut calls.other_reports, faults.loses_others)
            }
        });
        Ok(())
    }

    fn trigger(&self) -> Trigger {
        self.real.trigger()
    }

    fn tells_end(&self) -> bool {
        self.real.tells_end()
    }

    /// Level-triggered reports are repeated, so none can be lost.
    fn may_lose_reports(&self) -> bool {
        self.real.trigger() != Trigger::Level
    }
}

/// Results of clients of a server over a faulty dispatcher, and its counters.
struct Outcome {
    /// Clients that got all their lines back.
    served: usize,
    /// Errors counted by the loops.
    errors: u64,
    counted: CounterSnapshot,
}

const CLIENTS: usize = 40;
const LINES: usize = 5;
pub(crate) const CLOSE_STEP: Duration = Duration::from_millis(1);
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The engines that use this dispatcher.
fn engines(dispatcher: Mechanism) -> [Engine; 2] {
    let event = EventOptions { loops: 2, dispatcher, ..EventOptions::default() };
    let pipeline = PipelineOptions {
        read_threads: 2,
        session_threads: 2,
        write_threads: 2,
        queue_limit: 2,
        batch_max: 2,
        dispatcher,
    };
    [Engine::Event(event), Engine::Pipeline(pipeline)]
}

/// Serves clients that exchange lines. With any faults, no client waits forever, and each unserved
/// one is counted with a reason. After `patience` a wait is retried, which makes up for a lost
/// report.
fn serve_for(patience: Duration, engine: Engine, faults: Faults) -> Outcome {
    let limits = Limits {
        head_timeout: patience,
        idle_timeout: patience,
        send_timeout: patience,
        recheck: patience,
        ..Limits::default()
    };
    let (running, shared, address) = start_faulty(engine, faults, limits);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|nth| {
            thread::spawn(move || {
                let client = TcpStream::connect(address).unwrap();
                match nth % 10 {
                    0 => pour(client),
                    _ => converse(client),
                }
            })
        })
        .collect();
    let clients = clients.into_iter().map(|client| client.join().unwrap());
    let served = clients.filter(|is_served| *is_served).count();
    let deadline = Instant::now() + PATIENCE;
    while shared.counters.snapshot().closed_total() < CLIENTS as u64 {
        assert!(Instant::now() < deadline, "a connection never ends");
        thread::sleep(CLOSE_STEP);
    }
    assert_eq!(running.connection_count(), 0);
    let counted = shared.counters.snapshot();
    let unserved = (CLIENTS - served) as u64;
    let with_reason = CLIENTS as u64 - counted.closed(Closed::Peer);
    assert!(unserved <= with_reason, "{unserved} not served, {with_reason} counted");
    Outcome { served, errors: errors(&running), counted }
}

/// The same without lost reports: nothing waits for the patience to end, however busy the machine
/// is.
fn serve(engine: Engine, faults: Faults) -> Outcome {
    serve_for(PATIENCE, engine, faults)
}

/// Dispatcher errors in the metrics of the loops.
fn errors(running: &Running) -> u64 {
    counted(running, "weft_loop_dispatcher_errors_total{")
}

/// Sum of a metric over the loops, by the start of its lines.
fn counted(running: &Running, name: &str) -> u64 {
    let text = metrics(running);
    let lines = text.lines().filter(|line| line.starts_with(name));
    let count = |line: &str| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    lines.map(count).sum()
}

fn metrics(running: &Running) -> String {
    let mut out = MetricsWriter::default();
    running.write_metrics(&mut out);
    String::from_utf8(out.finish()).unwrap()
}

/// Arguments to start an engine at free ports of these addresses.
pub(crate) fn start_at<S: Session + 'static>(
    addresses: &[&str],
    limits: Limits,
    open: impl Fn() -> S + Send + Sync + 'static,
) -> (Start<impl Fn(Opening<'_>) -> S + Send + Sync + 'static>, Arc<Shared>, Vec<Address>) {
    let listeners = addresses.iter();
    let listeners = listeners.flat_map(|at| bind(&at.parse().unwrap(), None).unwrap());
    let listeners: Vec<_> = listeners.collect();
    let bound = listeners.iter().map(|bound| bound.address.clone());
    let bound = bound.collect();
    let shared = Arc::new(Shared::new(limits, None));
    let start = Start {
        admission: Admission::new(Arc::clone(&shared), false, move |_: Opening<'_>| open()),
        listeners,
        workers: None,
    };
    (start, shared, bound)
}

/// The same at one TCP address.
pub(crate) fn start_on_loopback<S: Session + 'static>(
    limits: Limits,
    open: impl Fn() -> S + Send + Sync + 'static,
) -> (Start<impl Fn(Opening<'_>) -> S + Send + Sync + 'static>, Arc<Shared>, SocketAddr) {
    let (start, shared, bound) = start_at(&["127.0.0.1:0"], limits, open);
    let [Address::Tcp(address)] = bound[..] else { unreachable!("bound as such") };
    (start, shared, address)
}

/// A client with bounded waits.
pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

pub(crate) fn read_line(stream: &mut TcpStream) -> String {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while !line.ends_with(b"\n") {
        stream.read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

/// A server over faulty dispatchers.
pub(crate) fn start_faulty(
    engine: Engine,
    faults: Faults,
    limits: Limits,
) -> (Running, Arc<Shared>, SocketAddr) {
    let (start, shared, address) = start_on_loopback(limits, || Echo);
    let (Engine::Event(EventOptions { dispatcher, .. })
    | Engine::Pipeline(PipelineOptions { dispatcher, .. })) = engine
    else {
        panic!("{engine:?} has no dispatcher")
    };
    let open = Box::new(move || {
        let (real, calls) = (dispatcher.open()?, Calls::default());
        Ok(Box::new(Faulty { real, faults, calls }) as Box<dyn Dispatcher>)
    });
    let running = match engine {
        Engine::Event(options) => Running::Event(Events::start_over(options, start, open).unwrap()),
        Engine::Pipeline(options) => {
            Running::Pipeline(Pipeline::start_over(options, start, open).unwrap())
        }
        _ => unreachable!("it has a dispatcher"),
    };
    (running, shared, address)
}

#[test]
fn interrupted_waits_lose_nothing() {
    for mechanism in [Mechanism::EpollEdge, Mechanism::Poll, Mechanism::Uring] {
        let faults = Faults { interrupts: 2, ..Faults::default() };
        for engine in engines(mechanism) {
            let outcome = serve(engine.clone(), faults);
            assert!(outcome.served > 0 && outcome.errors == 0, "{engine:?}");
        }
    }
}

#[test]
fn failed_waits_lose_nothing() {
    for mechanism in [Mechanism::EpollEdge, Mechanism::Poll, Mechanism::Lap] {
        let faults = Faults { wait_fails: 3, ..Faults::default() };
        for engine in engines(mechanism) {
            let outcome = serve(engine.clone(), faults);
            assert!(outcome.served > 0 && outcome.errors > 0, "{engine:?}");
        }
    }
}

#[test]
fn an_unwatchable_connection_is_closed() {
    for errno in [Errno::NOMEM, Errno::NOSPC] {
        let faults = Faults { add_fails: Some((3, errno)), ..Faults::default() };
        for engine in engines(Mechanism::EpollEdge) {
            let outcome = serve(engine.clone(), faults);
            let closed = outcome.counted.closed(Closed::Error);
            assert!(outcome.served > 0 && closed > 0, "{engine:?}: {closed}");
            assert_eq!(outcome.errors, closed, "{engine:?}");
        }
    }
}

#[test]
fn a_lost_report_is_found_at_the_timeout() {
    for mechanism in [Mechanism::RtSig(Overflow::Poll), Mechanism::EpollEdge] {
        let faults = Faults { loses: 6, ..Faults::default() };
        for engine in engines(mechanism) {
            let outcome = serve_for(Duration::from_millis(500), engine.clone(), faults);
            assert!(outcome.served > 0, "{engine:?}");
        }
    }
}

/// Seen (in review): a cache would never have answered a client whose report was lost, because the
/// time-out that makes up for it was 100 years away; and no engine made up for a lost report of a
/// listener. Cause: sockets were only retried at the end of a wait. Cure: reports are relied on for
/// a minute.
#[test]
fn lost_reports_are_rechecked() {
    const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);
    let limits = Limits {
        head_timeout: FOREVER,
        idle_timeout: FOREVER,
        send_timeout: FOREVER,
        recheck: Duration::from_millis(5),
        ..Limits::default()
    };
    let all_are_lost = Faults { loses: 1, loses_others: 1, ..Faults::default() };
    let signals = Mechanism::RtSig(Overflow::Poll);
    for mechanism in [signals, Mechanism::EpollEdge, Mechanism::Uring] {
        for engine in engines(mechanism) {
            let (_running, _shared, address) =
                start_faulty(engine.clone(), all_are_lost, limits.clone());
            for client in [converse, converse, pour] {
                assert!(client(TcpStream::connect(address).unwrap()), "{engine:?}");
            }
        }
    }
}

/// Seen (in review): 100,000 idle clients of a cache caused some 1,700 useless timers a second.
/// Cause: each connection was retried once a minute with all edge-triggered reports. Cure: only
/// where reports may be lost.
#[test]
fn no_recheck_where_no_report_is_lost() {
    let limits = Limits { recheck: Duration::from_millis(5), ..Limits::default() };
    for (mechanism, may_lose) in [
        (Mechanism::Epoll, false),
        (Mechanism::EpollEdge, false),
        (Mechanism::Uring, true),
        (Mechanism::RtSig(Overflow::Poll), true),
    ] {
        let (start, _shared, _) = start_at(&["127.0.0.1:0"], limits.clone(), || Echo);
        let (engine, bound) = EngineContext::over_sockets(start, (1, true));
        let own = LoopHandle::new().unwrap();
        let listeners = Listeners::new(all_sockets(&bound).unwrap(), FIRST_LISTENER);
        let mut acceptor = Acceptor::new(listeners, &engine, Arc::clone(&own));
        let mut poller = Poller::new(&engine, own, mechanism.open().unwrap()).unwrap();
        acceptor.open(poller.dispatcher()).unwrap();
        assert_eq!(acceptor.wakes_at().is_some(), may_lose, "{mechanism}");

        let (mut watch, now) = (poller.register(0), Instant::now());
        poller.arm(&mut watch, now + Duration::from_secs(3600));
        let next = poller.next_expiry().expect("a timer is set");
        // A distant timer is sorted in again, but not so soon.
        let is_soon = next < now + Duration::from_secs(60);
        assert_eq!(is_soon, may_lose, "{mechanism}");
    }
}

/// Faults of all kinds together, with random intervals.
fn at_random(random: &mut Random) -> Faults {
    let mut every = || 3 + random.below(8);
    Faults {
        interrupts: every(),
        wait_fails: every(),
        add_fails: Some((every(), Errno::NOMEM)),
        change_fails: every(),
        loses: every(),
        loses_others: every(),
        ..Faults::default()
    }
}

/// Under each engine with a dispatcher, over each dispatcher.
#[test]
fn random_faults_lose_no_connection_silently() {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let random = &mut Random(seed);
    // No engine supports one-shot dispatchers.
    let mechanisms = Mechanism::ALL.into_iter();
    for dispatcher in mechanisms.filter(|it| *it != Mechanism::EpollOneShot) {
        let distributed = Engine::Event(EventOptions {
            loops: 2,
            dispatcher,
            accept: Accept::Distributed,
            ..EventOptions::default()
        });
        let [own, pipeline] = engines(dispatcher);
        // One after another they would take three times as long: most of it is waiting.
        thread::scope(|scope| {
            for engine in [own, distributed, pipeline] {
                let faults = at_random(random);
                println!("{engine:?} with {faults:?}");
                scope.spawn(move || {
                    let patience = Duration::from_millis(100);
                    let outcome = serve_for(patience, engine.clone(), faults);
                    assert!(outcome.errors > 0, "{engine:?} had no faults");
                });
            }
        });
    }
}

/// Seen: a server that was dropped waited for one of its loops forever. Cause: the loop checked the
/// server's state, and then reset its waker; a change in between was neither seen nor woke it
/// again. Cure: it checks afterwards.
#[test]
fn loops_hear_of_the_end_whenever_it_comes() {
    const ROUNDS: usize = 200;
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        for round in 0..ROUNDS {
            let (start, shared, _) = start_on_loopback(Limits::default(), || Echo);
            let engine = &engines(Mechanism::Poll)[round % 2];
            let running = Running::start(engine, None, start).unwrap();
            // The loops are still handling one change when the next one comes.
            shared.server_state.drain();
            running.drain();
            drop(running);
        }
        done.send(()).unwrap();
    });
    let all = is_done.recv_timeout(PATIENCE);
    all.expect("a loop sleeps through the end of its server");
}

/// A session that answers whether it was told of a drain before.
#[derive(Default)]
struct Notes {
    is_told: bool,
}

impl Session for Notes {
    type Work = NoWork;

    fn receive(&mut self, input: &[u8], _now: Now, out: &mut Outbox) -> Received {
        out.put(if self.is_told { b"last\n" } else { b"more\n" });
        Received { used: input.len(), next: Next::Receive(Phase::Idle) }
    }

    fn drain(&mut self, _now: Now, _out: &mut Outbox) {
        self.is_told = true;
    }
}

/// Seen: on a busy machine, a reply without `Connection: close` after another connection had been
/// told of the drain. Cause: a loop handled reports before it checked the server's state, and loops
/// are woken one after another. Cure: it checks the state first.
#[test]
fn a_request_during_a_drain_is_the_last() {
    for engine in engines(Mechanism::EpollEdge) {
        let (start, shared, address) = start_on_loopback(Limits::default(), Notes::default);
        let _running = Running::start(&engine, None, start).unwrap();
        let mut client = connect(address);
        let mut replies = BufReader::new(client.try_clone().unwrap());
        for expected in ["more\n", "last\n"] {
            let mut reply = String::new();
            client.write_all(b"x").unwrap();
            replies.read_line(&mut reply).unwrap();
            assert_eq!(reply, expected, "{engine:?}");
            // No waker is called for it.
            shared.server_state.drain();
        }
    }
}

/// A session that sends a file for any input.
struct SendsFile(FileRange);

impl Session for SendsFile {
    type Work = NoWork;

    fn receive(&mut self, input: &[u8], _now: Now, out: &mut Outbox) -> Received {
        if !input.is_empty() {
            out.put_file(self.0.clone());
        }
        Received { used: input.len(), next: Next::Receive(Phase::Idle) }
    }
}

/// Evicts a file on disk from the page cache.
fn evict(file: &File) {
    let len = file.metadata().unwrap().len();
    wait_until("the file leaves memory: is it on a disk?", || {
        rustix::fs::fadvise(file, 0, None, Advice::DontNeed).unwrap();
        !fiber::fs::is_cached(file.as_fd(), 0..len)
    });
}

#[test]
fn a_cold_file_is_read_beside_the_loops() {
    let content: Vec<u8> = (0..3_000_000_u32).map(|at| (at / 7) as u8).collect();
    let file = file_on_disk(&content);
    let [on, pipeline] = engines(Mechanism::EpollEdge);
    let off = Engine::Event(EventOptions { has_file_threads: false, ..EventOptions::default() });
    for (engine, is_beside) in [(on, true), (off, false), (pipeline, true)] {
        // Past the page cache into the socket, and through both.
        for (keep, settled) in [(false, true), (true, false)] {
            let range = FileRange {
                file: Arc::new(SharedFile::try_from(file.reopen().unwrap()).unwrap()),
                range: 0..content.len() as u64,
                keep,
                settled,
            };
            let open = move || SendsFile(range.clone());
            let (start, _shared, address) = start_on_loopback(Limits::default(), open);
            let running = Running::start(&engine, None, start).unwrap();
            evict(file.as_file());
            let mut client = connect(address);
            client.write_all(b"x").unwrap();
            let mut arrived = vec![0; content.len()];
            client.read_exact(&mut arrived).unwrap();
            assert!(arrived == content, "{engine:?}, keep {keep}");
            let slow_reads = counted(&running, "weft_loop_slow_reads_total{");
            assert_eq!(slow_reads > 0, is_beside, "{engine:?}, keep {keep}");
        }
    }
}

/// Seen (in review): the counters of the accept thread were not exported.
#[test]
fn the_accept_thread_shows_its_counters() {
    let [_, pipeline] = engines(Mechanism::EpollEdge);
    let distributed =
        Engine::Event(EventOptions { accept: Accept::Distributed, ..EventOptions::default() });
    for engine in [distributed, pipeline] {
        let (start, _shared, address) = start_on_loopback(Limits::default(), || Echo);
        let running = Running::start(&engine, None, start).unwrap();
        assert!(converse(connect(address)));
        let (metrics, dump) = (metrics(&running), running.dump());
        let passed_on = "weft_loop_passed_on_total{loop=\"accept\"} 1\n";
        assert!(metrics.contains(passed_on), "{engine:?}: {metrics}");
        assert!(dump.contains("  loop accept: "), "{engine:?}: {dump}");
    }
}

/// Runs an accept thread for this socket until the connection limit closes.
fn distribute(
    listener: &TcpListener,
    faults: Faults,
    to: impl Distribute + Send + 'static,
) -> (Arc<LoopHandle>, impl FnOnce(), Arc<Shared>) {
    let (start, shared, _) = start_at(&[], Limits::default(), || Echo);
    let (engine, _) = EngineContext::over_sockets(start, (1, true));
    let own = LoopHandle::new().unwrap();
    let socket = listener.as_fd().try_clone_to_owned().unwrap();
    rustix::io::ioctl_fionbio(&socket, true).unwrap();
    let thread = {
        let (engine, own) = (Arc::clone(&engine), Arc::clone(&own));
        thread::spawn(move || {
            let faulty =
                Faulty { real: Mechanism::Epoll.open().unwrap(), faults, calls: Calls::default() };
            let listeners = Listeners::new(vec![(0, socket)], FIRST_LISTENER);
            let accept_thread = AcceptThread::new(engine, own, to, listeners, Box::new(faulty));
            accept_thread.unwrap().run();
        })
    };
    let waker = Arc::clone(&own);
    let end = move || {
        engine.connection_limit.close();
        waker.waker.wake();
        thread.join().unwrap();
    };
    (own, end, shared)
}

/// Waits for a condition.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(CLOSE_STEP);
    }
}

/// Seen (in review): an accept thread paused after a failed wait without counting it.
#[test]
fn failed_waits_of_the_accept_thread_lose_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (sender, distributed) = mpsc::channel();
    let faults = Faults { wait_fails: 2, ..Faults::default() };
    let to = move |accepted: Accepted| sender.send(accepted).unwrap();
    let (own, end, _) = distribute(&listener, faults, to);
    for _ in 0..2 {
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        distributed.recv_timeout(PATIENCE).expect("a client is distributed");
    }
    wait_until("a failed wait is counted", || own.counters.errors.get() > 0);
    end();
}

/// A destination that has space when told so.
struct Narrow {
    has_space: Arc<AtomicBool>,
    distributed: mpsc::Sender<Accepted>,
}

impl Distribute for Narrow {
    fn find_space(&mut self, _own: &Arc<LoopHandle>) -> bool {
        self.has_space.load(Ordering::SeqCst)
    }

    fn distribute(&mut self, accepted: Accepted) {
        self.distributed.send(accepted).unwrap();
    }
}

#[test]
fn a_full_destination_pauses_accepting() {
    const CLIENTS: usize = 3;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (sender, distributed) = mpsc::channel();
    let has_space = Arc::new(AtomicBool::new(false));
    let to = Narrow { has_space: Arc::clone(&has_space), distributed: sender };
    let (own, end, shared) = distribute(&listener, Faults::default(), to);
    let address = listener.local_addr().unwrap();
    let _clients = [(); CLIENTS].map(|()| TcpStream::connect(address).unwrap());
    let pauses = || shared.counters.snapshot().accept_pauses();
    wait_until("the loop pauses accepting", || pauses() > 0);
    for _ in 0..CLIENTS {
        let waits = own.counters.waits.get();
        own.waker.wake();
        wait_until("the loop has waited again", || own.counters.waits.get() > waits);
    }
    assert!(distributed.try_recv().is_err(), "a client was distributed without space");
    assert_eq!(pauses(), 1, "one pause is counted");
    has_space.store(true, Ordering::SeqCst);
    own.waker.wake();
    for _ in 0..CLIENTS {
        distributed.recv_timeout(PATIENCE).expect("the client is distributed");
    }
    end();
}

/// Sends more lines than the sockets hold, and takes them as they return. True if all returned.
fn pour(mut client: TcpStream) -> bool {
    const POURED: usize = 4_000_000;
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut sends = client.try_clone().unwrap();
    let lines = [[b'x'; 999].as_slice(), b"\n"].concat().repeat(POURED / 1000);
    thread::scope(|scope| {
        scope.spawn(move || {
            // The server may have ended the connection.
            let _ = sends.write_all(&lines);
            let _ = sends.shutdown(Shutdown::Write);
        });
        let mut back = Vec::new();
        let read = client.read_to_end(&mut back);
        let waits = read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        assert!(!waits, "a client waits for ever");
        // The sending half ends too.
        let _ = client.shutdown(Shutdown::Both);
        back.len() == POURED
    })
}

/// Sends lines one after another. True if all returned; a closed connection does not panic.
pub(crate) fn converse(mut client: TcpStream) -> bool {
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut replies = BufReader::new(client.try_clone().unwrap());
    (0..LINES).all(|nth| {
        let mut reply = String::new();
        let line = format!("line {nth}\n");
        let exchanged =
            client.write_all(line.as_bytes()).and_then(|()| replies.read_line(&mut reply));
        match exchanged {
            Ok(0) => false,
            Ok(_) => reply == line,
            Err(error) => {
                assert_ne!(error.kind(), ErrorKind::WouldBlock, "a client waits for ever");
                false
            }
        }
    })
}

/// An answer to a datagram may take long, for example while it waits for a lock or for memory. A
/// loop must not wait, so answers have threads of their own.
#[test]
fn waiting_datagrams_hold_up_no_loop() {
    for engine in engines(Mechanism::EpollEdge) {
        let listeners = bind(&"127.0.0.1:0".parse().unwrap(), None).unwrap();
        let Address::Tcp(address) = listeners[0].address else { unreachable!("bound as such") };
        let settings = Settings { engine: engine.clone(), listeners, ..Settings::default() };
        let server = Server::start(settings, |_| Echo).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(socket.local_addr().unwrap()).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let (end, may_end) = mpsc::channel::<()>();
        let (begin, begun) = mpsc::channel();
        let may_end = Mutex::new(may_end);
        let answer = move |request: &[u8], _: SocketAddr, send: &mut dyn FnMut(&[u8])| {
            begin.send(()).unwrap();
            let _ = may_end.lock().unwrap().recv();
            send(request);
        };
        server.serve_datagrams(socket, answer).unwrap();
        // More than there are threads for them, and than loops.
        let count = 8;
        for _ in 0..count {
            client.send(b"slow").unwrap();
        }
        begun.recv_timeout(PATIENCE).expect("no session receives");

        let mut connection = connect(address);
        connection.write_all(b"quick\n").unwrap();
        assert_eq!(read_line(&mut connection), "quick\n", "{engine:?}");
        drop(end);
        for _ in 0..count {
            assert_eq!(client.recv(&mut [0; 16]).unwrap(), 4);
        }
    }
}
