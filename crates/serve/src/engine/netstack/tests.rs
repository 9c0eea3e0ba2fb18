//! Guarantees of every engine, between two hosts in memory: the client's TCP is a netstack as well,
//! and both run in turns on the test's thread. The machine itself is tested elsewhere.

mod cache_transcripts;

use std::fs::File;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ::netstack::device::impair::{Impair, Impairment};
use ::netstack::device::mem::{self, Mem};
use ::netstack::device::{Capabilities, Device, OutgoingFrame, ReceiveBurst, TransmitError};
use ::netstack::ip::{IpConfig, Prefix};
use ::netstack::stack::FlowId;
use ::netstack::tcp::End;
use ::netstack::time::Instant as NetInstant;
use ::netstack::wire::ethernet::EthernetAddress;
use session::{
    Echo, FileRange, Networks, Next, Now, Opening, Outbox, Phase, PrefixLen, Received, SharedFile,
    SharedPage,
};

use super::*;
use crate::connection::DRAIN_GRACE;
use crate::counters::Closed;
use crate::engine::admission::Admission;
use crate::engine::reactor::ConnectionLimit;
use crate::jobs::tests::Call;
use crate::limits::{AddressLimit, Limits, ProxyProtocol};
use crate::shared::Shared;

type Open<S> = Box<dyn Fn(Opening<'_>) -> S + Send + Sync>;

/// A server and a client, and the server's shared state.
struct World<S: Session> {
    event_loop: EventLoop<S, Open<S>, Pluggable>,
    client: Netstack<Mem>,
    shared: Arc<Shared>,
    connection_limit: Arc<ConnectionLimit>,
    start: Instant,
}

/// Longer than any test takes.
const PATIENCE: Duration = Duration::from_secs(30);
const PORT: u16 = 80;

fn host(device_host: u8) -> IpConfig {
    IpConfig {
        mac: EthernetAddress([2, 0, 0, 0, 0, device_host]),
        mtu: 1500,
        addresses: vec![Prefix { address: address(device_host), len: 24 }],
        gateway_v4: None,
        gateway_v6: None,
    }
}

fn address(host: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, host])
}

impl<S: Session + 'static> World<S> {
    fn new(limits: Limits, open: impl Fn() -> S + Send + Sync + 'static) -> World<S> {
        World::over(Impairment::NONE, limits, open)
    }

    /// A world whose link impairs the frames to and from the server.
    fn over(
        link: Impairment,
        limits: Limits,
        open: impl Fn() -> S + Send + Sync + 'static,
    ) -> World<S> {
        let shared = Arc::new(Shared::new(limits, None));
        let open: Open<S> = Box::new(move |_| open());
        let admission = Admission::new(Arc::clone(&shared), false, open);
        let listeners =
            vec![NetstackListener { address: SocketAddr::new(address(1), PORT), tls: None }];
        let engine = EngineContext::new(admission, vec![None], usize::MAX, (1, true));
        let (near, far) = mem::pair(Capabilities::offloading(1500), 1024);
        let near = Pluggable {
            link: Impair::new(near, link, link, 7),
            is_gone: false,
            takes_nothing: false,
        };
        let (tcp, limits) = (TcpConfig::default(), ShardLimits::default());
        let netstack = Netstack::new(near, host(1), tcp, limits, [1; 16]);
        let backlog = Backlog::default();
        World {
            connection_limit: Arc::clone(&engine.connection_limit),
            event_loop: EventLoop::new(
                engine,
                listeners.into(),
                LoopHandle::new().unwrap(),
                Arc::default(),
                netstack,
                backlog,
            ),
            client: Netstack::new(far, host(2), tcp, limits, [2; 16]),
            start: shared.start,
            shared,
        }
    }

    fn now(&self) -> NetInstant {
        NetInstant::START + self.start.elapsed()
    }

    /// Runs one turn of the server and one of the client.
    fn step(&mut self) {
        self.event_loop.turn();
        self.step_client();
    }

    fn step_client(&mut self) {
        let now = self.now();
        self.client.receive(now).unwrap();
        while self.client.shard().next_event().is_some() {}
        self.client.transmit(now, &()).unwrap();
    }

    fn until(&mut self, what: &str, mut holds: impl FnMut(&mut World<S>) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds(self) {
            assert!(Instant::now() < deadline, "{what}");
            self.step();
        }
    }

    fn connect(&mut self) -> FlowId {
        self.connect_to(PORT)
    }

    fn connect_to(&mut self, port: u16) -> FlowId {
        let (now, to) = (self.now(), SocketAddr::new(address(1), port));
        self.client.connect(now, to).unwrap()
    }

    fn write(&mut self, id: FlowId, mut bytes: &[u8]) {
        self.until("written", |world| {
            let taken = world.client.shard().write(id, bytes);
            bytes = &bytes[taken..];
            bytes.is_empty()
        });
    }

    /// The next `len` received bytes.
    fn read(&mut self, id: FlowId, len: usize) -> Vec<u8> {
        let (mut all, mut space) = (Vec::new(), vec![0; 1 << 16]);
        self.until("read", |world| {
            let wanted = space.len().min(len - all.len());
            let read = world.client.shard().read(id, &mut space[..wanted]);
            all.extend_from_slice(&space[..read]);
            all.len() == len
        });
        all
    }

    fn ask(&mut self, id: FlowId, line: &str) {
        self.write(id, line.as_bytes());
        let reply = self.read(id, line.len());
        assert_eq!(String::from_utf8(reply).unwrap(), line);
    }

    /// Waits for the end of the server's stream, without any bytes before it.
    fn read_end(&mut self, id: FlowId) {
        self.until("the end", |world| {
            let connection = world.client.shard().connection(id);
            connection.is_none_or(|it| {
                assert_eq!(it.readable_len(), 0, "bytes before the end");
                it.is_peer_closed() || it.end().is_some()
            })
        });
    }

    fn close(&mut self, id: FlowId) {
        let now = self.now();
        self.client.shard().close(now, id);
    }

    fn until_count(&mut self, count: usize) {
        self.until("connections", |world| world.connection_limit.open() == count);
    }

    fn closed(&self, why: Closed) -> u64 {
        self.shared.counters.snapshot().closed(why)
    }
}

#[test]
fn many_conversations_go_on_at_once() {
    let mut world = World::new(Limits::default(), || Echo);
    let clients: Vec<_> = (0..50).map(|_| world.connect()).collect();
    for round in 0..3 {
        for (number, client) in clients.iter().enumerate() {
            let line = format!("{round} {number}\n");
            world.client.shard().write(*client, line.as_bytes());
        }
        for (number, client) in clients.iter().enumerate() {
            let line = format!("{round} {number}\n");
            assert_eq!(world.read(*client, line.len()), line.as_bytes());
        }
    }
    world.until_count(50);
    clients.into_iter().for_each(|client| world.close(client));
    world.until_count(0);
    assert_eq!(world.closed(Closed::Peer), 50);
}

#[test]
fn pipelining_without_reading_holds_nobody_up() {
    let lines = b"0123456789\n".repeat(200_000);
    let mut world = World::new(Limits::default(), || Echo);
    let (greedy, other) = (world.connect(), world.connect());
    let (mut sent, mut came, mut space) = (0, Vec::new(), vec![0; 1 << 16]);
    // Until the server takes no more: its retransmit buffer and both hosts' windows are full.
    let mut stalls = 0;
    world.until("a full retransmit", |world| {
        let taken = world.client.shard().write(greedy, &lines[sent..]);
        sent += taken;
        stalls = if taken > 0 { 0 } else { stalls + 1 };
        stalls > 2000
    });
    assert!(sent < lines.len(), "everything was accepted without a reader");
    world.ask(other, "hello\n");
    world.until("all lines", |world| {
        sent += world.client.shard().write(greedy, &lines[sent..]);
        let read = world.client.shard().read(greedy, &mut space);
        came.extend_from_slice(&space[..read]);
        came.len() == lines.len()
    });
    assert!(came == lines, "other bytes than were sent");
}

#[test]
fn at_the_limit_others_wait_until_one_ends() {
    let limits = Limits { connections_max: 1, ..Limits::default() };
    let mut world = World::new(limits, || Echo);
    let first = world.connect();
    world.ask(first, "first\n");
    let second = world.connect();
    world.client.shard().write(second, b"second\n");
    world.ask(first, "first again\n");
    world.until("it waits for space", |world| world.event_loop.waits_for_space);
    assert_eq!(world.closed(Closed::Peer), 0);
    world.close(first);
    assert_eq!(world.read(second, 7), b"second\n");
    world.until_count(1);
}

/// A server with space for one connection, which exists, that sends a refusal to the next.
fn full_engine() -> (World<Echo>, FlowId) {
    let limits = Limits { connections_max: 1, refusal: Some("too many\n"), ..Limits::default() };
    let mut world = World::new(limits, || Echo);
    let first = world.connect();
    world.ask(first, "first\n");
    (world, first)
}

#[test]
fn a_refusal_line_is_sent_at_the_limit() {
    let (mut world, first) = full_engine();
    let second = world.connect();
    assert_eq!(world.read(second, 9), b"too many\n");
    world.read_end(second);
    world.close(second);
    world.until_count(1);
    assert_eq!(world.closed(Closed::Refused), 1);
    world.ask(first, "again\n");
}

/// Seen (in review): refused peers that acknowledged nothing held the few slots for refusals for
/// two minutes, and others waited that long. Cause: they got as much time as a connection with a
/// reply in flight. Cure: a second, as with fibers.
#[test]
fn a_silent_refused_peer_frees_its_place() {
    let (mut world, first) = full_engine();
    let mute = world.connect();
    world.step_client(); // Its SYN is under way.
    world.event_loop.turn(); // It is half open.
    world.step_client(); // The handshake is complete, and the client says nothing from now on.
    world.event_loop.turn();
    assert_eq!((world.closed(Closed::Refused), world.connection_limit.open()), (1, 2));
    let deadline = Instant::now() + PATIENCE;
    while world.connection_limit.open() > 1 {
        assert!(Instant::now() < deadline, "the connection keeps its place");
        world.event_loop.turn();
    }
    world.until("a reset", |world| world.client.shard().end(mute).is_some());
    assert_eq!(world.client.shard().end(mute), Some(End::Reset));
    let told = world.connect();
    assert_eq!(world.read(told, 9), b"too many\n");
    world.ask(first, "again\n");
}

#[test]
fn a_silent_peer_is_closed_after_its_time() {
    let limits = Limits { head_timeout: Duration::from_millis(50), ..Limits::default() };
    let mut world = World::new(limits, || Sender::of_memory(0));
    let silent = world.connect();
    world.read_end(silent);
    world.until_count(0);
    assert_eq!(world.closed(Closed::TimedOut(Phase::Idle)), 1);
}

#[test]
fn a_stalled_peer_is_reset() {
    let limits = Limits { send_timeout: Duration::from_millis(50), ..Limits::default() };
    let mut world = World::new(limits, || Sender::of_memory(4 << 20));
    let client = world.connect();
    world.write(client, b"x");
    world.until("an end", |world| world.client.shard().end(client).is_some());
    assert_eq!(world.client.shard().end(client), Some(End::Reset));
    world.until_count(0);
    assert_eq!(world.closed(Closed::TooSlow), 1);
}

#[test]
fn a_reset_ends_its_connection_alone() {
    let mut world = World::new(Limits::default(), || Sender::of_memory(4 << 20));
    let (first, second) = (world.connect(), world.connect());
    for client in [first, second] {
        world.write(client, b"x");
    }
    world.read(first, 1000);
    world.client.shard().abort(first);
    world.until_count(1);
    assert_eq!(world.closed(Closed::Peer), 1);
    assert!(world.read(second, 4 << 20) == pattern(4 << 20));
    // Bytes that are acknowledged, or never will be, no longer count for the total limit.
    world.until("nothing under way", |world| world.event_loop.buffer_pool.len() == 0);
}

#[test]
fn a_panic_ends_its_connection_alone() {
    let mut world = World::new(Limits::default(), || Sender::of_memory(10));
    let (first, second) = (world.connect(), world.connect());
    world.write(first, b"panic");
    world.read_end(first);
    world.write(second, b"x");
    assert_eq!(world.read(second, 10), pattern(10));
    assert_eq!(world.closed(Closed::Error), 1);
}

#[test]
fn a_proxy_names_its_client() {
    let from = Networks { list: vec!["192.0.2.2".parse().unwrap()], has_unix: false };
    let limits = Limits {
        proxy_protocol: Some(ProxyProtocol { from: from.clone(), is_required: true }),
        by_address: Some(AddressLimit {
            connections_max: 1,
            prefix: PrefixLen::default(),
            exempt: from,
        }),
        ..Limits::default()
    };
    let mut world = World::new(limits, || Echo);
    let [first, second, third] = [(); 3].map(|()| world.connect());
    world.write(first, b"PROXY TCP4 203.0.113.7 192.0.2.1 5000 80\r\n");
    world.ask(first, "first\n");
    world.write(second, b"PROXY TCP4 203.0.113.7 192.0.2.1 5000 80\r\n");
    world.read_end(second);
    world.write(third, b"no header\n");
    world.read_end(third);
    assert_eq!(world.closed(Closed::AddressLimit), 1);
    assert_eq!(world.closed(Closed::ProxyHeader), 1);
}

#[test]
fn a_drain_closes_an_idle_connection() {
    let mut world = World::new(Limits::default(), || Echo);
    let idle = world.connect();
    world.ask(idle, "one\n");
    world.shared.server_state.drain();
    world.read_end(idle);
    world.until_count(0);
    assert_eq!(world.closed(Closed::Drained), 1);
    assert!(world.start.elapsed() >= DRAIN_GRACE);
}

/// The end of the process also ends its TCP: unacknowledged bytes are then lost.
#[test]
fn open_until_the_last_acknowledgement() {
    let mut world =
        World::new(Limits::default(), || Sender { is_last: true, ..Sender::of_memory(1000) });
    let client = world.connect();
    world.until_count(1);
    world.write(client, b"x");
    world.step_client();
    while world.closed(Closed::Session) == 0 {
        world.event_loop.turn();
    }
    assert_eq!(world.connection_limit.open(), 1, "the peer has acknowledged nothing");
    assert_eq!(world.read(client, 1000), pattern(1000));
    world.until_count(0);
}

/// A drained server that is over, with a connection whose peer has not received its end.
fn over_and_unheard() -> (World<Echo>, FlowId) {
    let mut world = World::new(Limits::default(), || Echo);
    let idle = world.connect();
    world.until_count(1);
    world.shared.server_state.drain();
    world.connection_limit.close();
    let deadline = Instant::now() + PATIENCE;
    while world.connection_limit.open() > 0 {
        assert!(Instant::now() < deadline, "the connection is not closed");
        world.event_loop.turn();
    }
    world.shared.server_state.cut();
    world.event_loop.turn();
    (world, idle)
}

/// Seen (in review): the loop ended when all bytes were acknowledged, so a lost FIN could not be
/// retransmitted.
#[test]
fn ends_are_sent_after_the_loop_is_over() {
    let (mut world, idle) = over_and_unheard();
    assert!(!world.event_loop.may_end());
    world.read_end(idle);
    world.until("the loop is over", |world| world.event_loop.may_end());
}

#[test]
fn an_unacknowledged_end_holds_no_loop() {
    let (mut world, _idle) = over_and_unheard();
    let deadline = Instant::now() + PATIENCE;
    while !world.event_loop.may_end() {
        assert!(Instant::now() < deadline, "the event loop waits for ever");
        world.event_loop.turn();
    }
}

#[test]
fn handshakes_end_and_none_begins_at_a_stop() {
    let mut world = World::new(Limits::default(), || Echo);
    let first = world.connect();
    world.ask(first, "the hosts know each other\n");
    let early = world.connect();
    world.step_client(); // Its SYN is under way.
    world.event_loop.turn(); // It is half open.
    world.connection_limit.close();
    world.event_loop.turn();
    let late = world.connect();
    world.ask(early, "early\n");
    world.until("an end", |world| world.client.shard().end(late).is_some());
    assert_eq!(world.client.shard().end(late), Some(End::Refused));
    world.ask(early, "still there\n");
}

#[test]
fn a_port_that_nothing_listens_at_refuses() {
    let mut world = World::new(Limits::default(), || Echo);
    let client = world.connect_to(PORT + 1);
    world.until("an end", |world| world.client.shard().end(client).is_some());
    assert_eq!(world.client.shard().end(client), Some(End::Refused));
}

/// Seen: a deleted TAP interface made its loop retry a thousand times a second forever. Cause: it
/// slept a millisecond after each error. Cure: each further error doubles the pause.
#[test]
fn a_lost_device_is_retried_with_back_off() {
    let mut world = World::new(Limits::default(), || Echo);
    let client = world.connect();
    world.ask(client, "hello\n");
    world.event_loop.netstack.device().is_gone = true;
    let ms = Duration::from_millis;
    let mut pauses = Vec::new();
    for _ in 0..20 {
        world.event_loop.turn();
        let pause = world.event_loop.device_pause;
        // Only a timer may shorten the pause.
        let patience = world.event_loop.patience();
        assert!((ms(1)..=pause).contains(&patience), "{patience:?}");
        pauses.push(pause);
    }
    assert_eq!(pauses[..4], [ms(1), ms(2), ms(4), ms(8)]);
    assert_eq!(pauses[7..], [ms(128); 13]);
    world.event_loop.netstack.device().is_gone = false;
    world.ask(client, "hello again\n");
    world.event_loop.netstack.device().is_gone = true;
    world.event_loop.turn();
    assert_eq!(world.event_loop.device_pause, ms(1));
}

/// Seen: over AF_XDP a server reported nothing when its interface was down or deleted. Cause: its
/// socket has no error on receive, only frames that cannot be sent, and those were just counted.
#[test]
fn a_device_that_takes_nothing_is_reported() {
    let mut world = World::new(Limits::default(), || Echo);
    let client = world.connect();
    world.ask(client, "hello\n");
    assert!(!world.event_loop.device_messages.is_reported);
    world.event_loop.netstack.device().takes_nothing = true;
    world.write(client, b"hello again\n");
    world.until("a complaint", |world| world.event_loop.device_messages.is_reported);
    world.event_loop.netstack.device().takes_nothing = false;
    assert_eq!(world.read(client, 12), b"hello again\n");
    world.ask(client, "and again\n");
    assert!(!world.event_loop.device_messages.is_reported);
}

/// A device that can be unplugged.
struct Pluggable {
    link: Impair<Mem>,
    is_gone: bool,
    /// Every transmission fails.
    takes_nothing: bool,
}

impl Pluggable {
    fn is_there(&self) -> io::Result<()> {
        if self.is_gone { Err(io::ErrorKind::NotFound.into()) } else { Ok(()) }
    }
}

impl Device for Pluggable {
    fn capabilities(&self) -> Capabilities {
        self.link.capabilities()
    }

    fn receive(&mut self, now: NetInstant, burst: &mut ReceiveBurst) -> io::Result<()> {
        self.is_there()?;
        self.link.receive(now, burst)
    }

    fn transmit(
        &mut self,
        now: NetInstant,
        frame: &OutgoingFrame<'_>,
    ) -> Result<(), TransmitError> {
        self.is_there().map_err(TransmitError::Io)?;
        if self.takes_nothing {
            return Err(TransmitError::Io(io::ErrorKind::NetworkDown.into()));
        }
        self.link.transmit(now, frame)
    }

    fn flush(&mut self, now: NetInstant) -> io::Result<()> {
        self.link.flush(now)
    }

    fn wakes_at(&self) -> Option<NetInstant> {
        self.link.wakes_at()
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 7) as u8).collect()
}

/// Answers with bytes in memory, or with a file after work; panics on command.
struct Sender {
    bytes: bytes::Bytes,
    file: Option<Arc<SharedFile>>,
    has_worked: bool,
    is_last: bool,
}

impl Sender {
    fn of_memory(len: usize) -> Sender {
        Sender { bytes: pattern(len).into(), file: None, has_worked: false, is_last: false }
    }
}

impl Session for Sender {
    type Work = Call;

    fn receive(&mut self, input: &[u8], _now: Now, out: &mut Outbox) -> Received {
        assert_ne!(input, b"panic");
        let next = match (&self.file, input.is_empty()) {
            (_, true) => Next::Receive(Phase::Idle),
            (Some(_), _) if !self.has_worked => {
                let next = Next::Work;
                return Received { used: 0, next };
            }
            (file, false) => {
                match file {
                    Some(file) => out.put_file(FileRange {
                        file: Arc::clone(file),
                        range: 0..file.stamp().len,
                        keep: true,
                        settled: true,
                    }),
                    None => out.put_shared(self.bytes.clone()),
                }
                if self.is_last { Next::Close } else { Next::Receive(Phase::Idle) }
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

/// Answers each request with a head and the bytes of a page from an odd one on.
struct PageSender(Arc<SharedPage>);

impl Session for PageSender {
    type Work = Call;

    fn receive(&mut self, input: &[u8], _now: Now, out: &mut Outbox) -> Received {
        if !input.is_empty() {
            out.put(b"head");
            out.put_page(&self.0, 1..self.0.bytes().len());
        }
        Received { used: input.len(), next: Next::Receive(Phase::Idle) }
    }
}

/// The device completes no checksum, so the client drops each segment whose sum is wrong. What is
/// lost is sent again in other segments.
#[test]
fn checksums_of_a_page_are_by_its_table() {
    const LEN: usize = 600_001;
    let loss = Impairment { loss: 0.03, ..Impairment::NONE };
    let page = Arc::new(SharedPage::new(pattern(LEN).into()));
    let wanted = [&b"head"[..], &pattern(LEN)[1..]].concat();
    for link in [Impairment::NONE, loss] {
        let own = Arc::clone(&page);
        let mut world = World::over(link, Limits::default(), move || PageSender(Arc::clone(&own)));
        let client = world.connect();
        for _ in 0..3 {
            world.write(client, b"x");
            assert!(world.read(client, wanted.len()) == wanted, "other bytes");
        }
        assert_eq!(world.client.interface().counters().0.checksums, 0);
    }
    page.table(|_| panic!("no table was made"));
}

/// 3 % of the frames are lost each way, so retransmit buffers are asked for the same bytes again.
#[test]
fn a_file_survives_a_bad_link() {
    const LEN: usize = 3 << 20;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, pattern(LEN)).unwrap();
    let file = Arc::new(SharedFile::try_from(File::open(&path).unwrap()).unwrap());
    let loss = Impairment { loss: 0.03, ..Impairment::NONE };
    for link in [Impairment::NONE, loss] {
        let file = Arc::clone(&file);
        let mut world = World::over(link, Limits::default(), move || Sender {
            file: Some(Arc::clone(&file)),
            ..Sender::of_memory(0)
        });
        let client = world.connect();
        world.write(client, b"x");
        assert!(world.read(client, LEN) == pattern(LEN), "other bytes");
        world.close(client);
        world.until_count(0);
    }
}
