//! The generator over a link in memory. At the other end is a host with a server, which works
//! whenever the generator looks at the link: all of it is one thread.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use netstack::Netstack;
use netstack::device::impair::{Impair, Impairment};
use netstack::device::mem::{self, Mem};
use netstack::device::{Capabilities, Device, OutgoingFrame, ReceiveBurst, TransmitError};
use netstack::ip::{IpConfig, Prefix};
use netstack::stack::{Backlog, FlowId, ShardLimits};
use netstack::tcp::{TcpConfig, TcpEvents};
use netstack::time::Instant;
use netstack::wire::ethernet::EthernetAddress;
use rustix::io::Errno;

use super::{UserTcp, key, limits, now, tcp};
use crate::io::Backend;
use crate::outcome::Outcome;
use crate::plan::{Arrivals, Choice, Expected, Http, Idle, LoadTarget, Page, Plan, Workload};
use crate::run::run_over;
use crate::{LoadError, plan};

const PORT: u16 = 80;
const MTU: usize = 1500;
const FRAMES_MAX: usize = 4096;

#[test]
fn closed_loop_replies_equal_requests() {
    let (outcome, seen) = Link::default().run(&Plan { requests_max: Some(500), ..asking(4) });
    assert_clean(&outcome, 500);
    assert_eq!((outcome.total.opened, seen.requests), (4, 500));
    assert_eq!(outcome.total.sent, 500);
    assert_eq!(seen.accepted, 4 + 1, "the first one looks for the server");
    assert_eq!(seen.flows_left, 0, "the server's side is closed as well");
}

#[test]
fn an_open_loop_sends_what_is_due() {
    let (outcome, seen) = Link::default().run(&Plan {
        arrivals: Arrivals::Poisson { rate_per_s: 1000.0 },
        requests_max: Some(200),
        ..asking(8)
    });
    assert_clean(&outcome, 200);
    assert_eq!((outcome.total.intended, seen.requests), (200, 200));
}

#[test]
fn pipelined_requests_in_order() {
    let (outcome, seen) =
        Link::default().run(&Plan { depth: 32, requests_max: Some(1000), ..asking(2) });
    assert_clean(&outcome, 1000);
    assert_eq!(seen.requests, 1000);
}

#[test]
fn connections_use_addresses_in_turn() {
    let addresses = ["192.0.2.10", "192.0.2.11", "192.0.2.12"];
    let mut plan = Plan {
        sources: addresses.map(|it| it.parse().unwrap()).to_vec(),
        requests_max: Some(300),
        ..asking(6)
    };
    http_of(&mut plan).requests_per_connection = Some(1);
    let (outcome, seen) = Link::default().run(&plan);
    assert_clean(&outcome, 300);
    // The last ones were opened for requests that were not needed any more.
    assert!(outcome.total.opened >= 300);
    assert_eq!(seen.accepted, outcome.total.opened + 1);
    assert_eq!(seen.clients, plan.sources.iter().copied().collect());
    assert_eq!(seen.flows_left, 0);
}

#[test]
fn long_body_is_compared_whole() {
    let body: Vec<u8> = (0..1_000_000_u32).map(|at| (at >> 3) as u8).collect();
    let link = Link { body: body.clone(), ..Link::default() };
    let mut plan = Plan { verify: true, requests_max: Some(6), ..asking(2) };
    let expected = Expected { bytes: body.len() as u64, crc32: crc32fast::hash(&body) };
    http_of(&mut plan).pages = [Page { expected: Some(expected), ..Page::new("/") }].into();
    let (outcome, _) = link.run(&plan);
    assert_clean(&outcome, 6);
    assert_eq!(outcome.total.compared, 6);

    let dropped = Plan { verify: false, ..plan };
    let (outcome, _) = link.run(&dropped);
    assert_clean(&outcome, 6);
    assert!(outcome.total.received_bytes >= 6_000_000);
}

#[test]
fn long_request_arrives_whole() {
    let mut plan = Plan { requests_max: Some(4), ..asking(1) };
    http_of(&mut plan).method = "POST".to_owned();
    http_of(&mut plan).body = vec![b'x'; 20 * super::SEND_CAPACITY].into();
    let (outcome, seen) = Link::default().run(&plan);
    assert_clean(&outcome, 4);
    assert!(seen.bytes >= 80 * super::SEND_CAPACITY as u64, "{seen:?}");
}

#[test]
fn server_stall_shows_in_latency() {
    let stalled = Duration::from_millis(150);
    let link = Link { takes: stalled, ..Link::default() };
    let (outcome, _) = link.run(&Plan {
        arrivals: Arrivals::Fixed { rate_per_s: 100.0 },
        requests_max: Some(20),
        ..asking(1)
    });
    assert_clean(&outcome, 20);
    let class = &outcome.total.classes[0];
    let served_ns = class.service_ns.min();
    let responded_ns = class.response_ns.max();
    let stalled_ns = stalled.as_nanos() as u64;
    assert!(served_ns >= stalled_ns * 99 / 100, "{served_ns}");
    // The twentieth was due after 190 ms, and began when nineteen had had their 150 ms.
    assert!(responded_ns >= 18 * stalled_ns, "{responded_ns}");
}

#[test]
fn port_without_listener_is_an_error() {
    let link = Link { is_listening: false, ..Link::default() };
    let refused = link.try_run(&asking(1)).0.unwrap_err();
    assert!(refused.to_string().contains("Connection refused"), "{refused}");
}

#[test]
fn lost_listener_counts_as_refused() {
    let link = Link { accepts_max: 11, ..Link::default() };
    // Long enough for eleven requests on a busy machine.
    let mut plan = Plan { duration: Duration::from_secs(3), ..asking(1) };
    http_of(&mut plan).requests_per_connection = Some(1);
    let (outcome, _) = link.run(&plan);
    assert_eq!(outcome.total.replies(), 10);
    assert!(outcome.total.errors.refused > 0);
    assert_eq!(outcome.total.errors.total(), outcome.total.errors.refused);
}

#[test]
fn each_reset_is_counted_once() {
    let link = Link { resets_every: Some(5), ..Link::default() };
    let (outcome, seen) = link.run(&Plan { requests_max: Some(100), ..asking(2) });
    assert_eq!((outcome.total.replies(), seen.requests), (80, 100));
    assert_eq!(outcome.total.errors.reset, 20);
    assert_eq!(outcome.total.errors.total(), 20);
}

#[test]
fn a_bad_link_costs_time_and_no_request() {
    let link = Link {
        impairment: Impairment {
            loss: 0.03,
            duplication: 0.03,
            corruption: 0.03,
            ..Impairment::NONE
        },
        ..Link::default()
    };
    let (outcome, seen) = link.run(&Plan { requests_max: Some(300), ..asking(10) });
    assert_clean(&outcome, 300);
    assert_eq!(seen.requests, 300);
}

#[test]
fn dead_link_counts_time_outs() {
    let link = Link { accepts_max: 1, goes_dark: true, ..Link::default() };
    let plan = Plan {
        connect_timeout: Duration::from_millis(200),
        request_timeout: Duration::from_millis(200),
        duration: Duration::from_millis(500),
        ..asking(3)
    };
    let (outcome, _) = link.run(&plan);
    assert_eq!((outcome.total.opened, outcome.total.replies()), (0, 0));
    assert!(outcome.total.errors.client_timeout >= 3);
    let errors = &outcome.total.errors;
    assert_eq!(errors.total(), errors.client_timeout, "{errors:?}");

    // A dead link fails the run at once.
    let dark = Link { impairment: Impairment { loss: 1.0, ..Impairment::NONE }, ..Link::default() };
    let error = dark.try_run(&plan).0.unwrap_err();
    assert!(error.to_string().starts_with("cannot connect to"), "{error}");
}

#[test]
fn idle_connections_are_held() {
    let (outcome, seen) = Link::default().run(&Plan {
        workload: Workload::Idle,
        connections: 0,
        idle: Idle { connections: 50, byte_every: Some(Duration::from_millis(10)) },
        duration: Duration::from_millis(300),
        ..asking(1)
    });
    assert_eq!((outcome.total.idle_open, outcome.total.idle_closed), (50, 0));
    assert!(seen.bytes > 0);
    assert_eq!(outcome.total.errors.total(), 0);
}

#[test]
fn no_gateway_fails_at_once() {
    // Seen in a review: from an address that the plan names, the SYN had no route, and the open
    // ended with a time-out.
    let (near, _far) = mem::pair(Capabilities::plain(MTU), FRAMES_MAX);
    let own = host(2, vec![address(2), address(3)]);
    let mut tcp = UserTcp::new(Netstack::new(near, own, tcp(), limits(), key()), 3);
    for (port, from) in [None, Some(address(2)), Some(address(3))].into_iter().enumerate() {
        let mut open = |to| {
            let port = port as u32;
            tcp.open(port, to, from, true)
        };
        let beyond = open("198.51.100.1:80".parse().unwrap());
        assert_eq!(beyond, Err(Errno::NETUNREACH), "from {from:?}");
        let broadcast = open("192.0.2.255:80".parse().unwrap());
        assert_eq!(broadcast, Err(Errno::NETUNREACH), "from {from:?}");
        assert_eq!(open((address(1), PORT).into()), Ok(()), "from {from:?}");
    }
}

#[test]
fn netstack_plan_errors() {
    let interface = |addresses: &[&str], gateways: &[&str]| {
        plan::Network::Netstack(netstack::interface_config::InterfaceConfig {
            device: "tap:weft0".parse().unwrap(),
            addresses: addresses.iter().map(|it| it.parse().unwrap()).collect(),
            gateways: gateways.iter().map(|it| it.parse().unwrap()).collect(),
            mtu: None,
        })
    };
    let near = || interface(&["192.0.2.9/24"], &[]);
    let target = |text: &str| LoadTarget::Tcp(text.parse().unwrap());
    let plan = || Plan { network: near(), ..asking(4) };
    plan().check().unwrap();
    let behind = Plan { targets: vec![target("198.51.100.1:80")], ..plan() };
    Plan { network: interface(&["192.0.2.9/24"], &["192.0.2.1"]), ..behind.clone() }
        .check()
        .unwrap();
    for (plan, why) in [
        (behind, "no --gateway leads to it"),
        (Plan { threads: 2, ..plan() }, "supports one thread"),
        (
            Plan { sources: vec!["192.0.2.8".parse().unwrap()], ..plan() },
            "not an --address of the netstack",
        ),
        (Plan { targets: vec![target("192.0.2.9:80")], ..plan() }, "own address"),
        (Plan { network: interface(&[], &[]), ..plan() }, "needs an address"),
    ] {
        let said = plan.check().unwrap_err().to_string();
        assert!(said.contains(why), "{said}");
    }
}

// ---- the link, and the host at its other end

fn asking(connections: u32) -> Plan {
    Plan {
        targets: vec![LoadTarget::Tcp((address(1), PORT).into())],
        workload: Workload::Http(Http {
            authority: "192.0.2.1".to_owned(),
            method: "GET".to_owned(),
            pages: [Page::new("/")].into(),
            choice: Choice::InTurn,
            headers: Vec::new(),
            body: Vec::new().into(),
            requests_per_connection: None,
        }),
        connections,
        duration: Duration::from_secs(60),
        interval: Duration::from_secs(60),
        ..Plan::default()
    }
}

fn http_of(plan: &mut Plan) -> &mut Http {
    match &mut plan.workload {
        Workload::Http(http) => http,
        _ => panic!("not HTTP"),
    }
}

fn address(host: u8) -> IpAddr {
    [192, 0, 2, host].into()
}

fn assert_clean(outcome: &Outcome, replies: u64) {
    let errors = &outcome.total.errors;
    assert_eq!(errors.total(), 0, "{errors:?}");
    assert_eq!(outcome.total.replies(), replies);
}

/// Behaviour of the link and the server.
#[derive(Clone)]
struct Link {
    impairment: Impairment,
    is_listening: bool,
    /// Maximum of connections.
    accepts_max: u64,
    /// True if the link is dead afterwards.
    goes_dark: bool,
    /// Time from a request to its reply.
    takes: Duration,
    /// Interval of replies that are replaced by a reset.
    resets_every: Option<u64>,
    body: Vec<u8>,
}

impl Default for Link {
    fn default() -> Link {
        Link {
            impairment: Impairment::NONE,
            is_listening: true,
            accepts_max: u64::MAX,
            goes_dark: false,
            takes: Duration::ZERO,
            resets_every: None,
            body: b"hello".to_vec(),
        }
    }
}

/// Events at the server.
#[derive(Clone, Debug, Default)]
struct Seen {
    accepted: u64,
    requests: u64,
    answered: u64,
    bytes: u64,
    clients: BTreeSet<IpAddr>,
    /// Open flows after the generator was dropped.
    flows_left: usize,
}

impl Link {
    fn run(&self, plan: &Plan) -> (Outcome, Seen) {
        let (outcome, seen) = self.try_run(plan);
        (outcome.unwrap(), seen)
    }

    fn try_run(&self, plan: &Plan) -> (Result<Outcome, LoadError>, Seen) {
        plan.check().unwrap();
        let seen = Arc::<Mutex<Seen>>::default();
        let open = |ports| {
            let (near, far) = mem::pair(Capabilities::plain(MTU), FRAMES_MAX);
            let device = Wire {
                near: Impair::new(near, self.impairment, self.impairment, 1),
                server: Server::new(self.clone(), far, Arc::clone(&seen)),
            };
            let addresses = (2..=20).map(address).collect();
            let netstack = Netstack::new(device, host(2, addresses), tcp(), limits(), key());
            let mut tcp = UserTcp::new(netstack, ports);
            tcp.probe(plan)?;
            Ok(Backend::Memory(Box::new(tcp)))
        };
        let stop = AtomicBool::new(false);
        let outcome = run_over(plan, &stop, &mut |_| (), || "memory".to_owned(), open);
        let seen = seen.lock().unwrap().clone();
        (outcome, seen)
    }
}

fn host(number: u8, addresses: Vec<IpAddr>) -> IpConfig {
    let prefix = |address| Prefix { address, len: 24 };
    IpConfig {
        mac: EthernetAddress([2, 0, 0, 0, 0, number]),
        mtu: MTU,
        addresses: addresses.into_iter().map(prefix).collect(),
        gateway_v4: None,
        gateway_v6: None,
    }
}

/// The generator's device: its end of the link, with the server behind it.
pub(crate) struct Wire {
    near: Impair<Mem>,
    server: Server,
}

impl Device for Wire {
    fn capabilities(&self) -> Capabilities {
        self.near.capabilities()
    }

    fn receive(&mut self, now: Instant, burst: &mut ReceiveBurst) -> io::Result<()> {
        self.server.work(now);
        if self.server.is_dark() {
            let dark = Impairment { loss: 1.0, ..Impairment::NONE };
            self.near.change(dark, dark);
        }
        self.near.receive(now, burst)
    }

    fn transmit(&mut self, now: Instant, frame: &OutgoingFrame<'_>) -> Result<(), TransmitError> {
        self.near.transmit(now, frame)
    }

    fn flush(&mut self, now: Instant) -> io::Result<()> {
        self.near.flush(now)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn wakes_at(&self) -> Option<Instant> {
        let wakes = self.near.wakes_at().unwrap_or(Instant::NEVER);
        Some(wakes.min(self.server.wakes_at()))
    }
}

struct Server {
    link: Link,
    host: Netstack<Mem>,
    conversations: HashMap<FlowId, Conversation>,
    /// Replies that are due, in their order.
    due: VecDeque<(Instant, FlowId)>,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Conversation {
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Server {
    fn new(link: Link, device: Mem, seen: Arc<Mutex<Seen>>) -> Server {
        let tcp = TcpConfig::default();
        let limits = ShardLimits::default();
        let mut host = Netstack::new(device, host(1, vec![address(1)]), tcp, limits, [1; 16]);
        host.shard().expire(now());
        if link.is_listening {
            host.shard().listen(PORT, Backlog::default());
        }
        Server { link, host, conversations: HashMap::new(), due: VecDeque::new(), seen }
    }

    fn is_dark(&self) -> bool {
        self.link.goes_dark && self.seen.lock().unwrap().accepted >= self.link.accepts_max
    }

    fn wakes_at(&self) -> Instant {
        let due = self.due.front().map_or(Instant::NEVER, |(due, _)| *due);
        due.min(self.host.wakes_at())
    }

    fn work(&mut self, now: Instant) {
        let mut seen = self.seen.lock().unwrap();
        while self.host.receive(now).expect("memory") > 0 {}
        let shard = self.host.shard();
        while let Some(flow) = shard.accept(PORT) {
            seen.accepted += 1;
            let client = shard.tuple(flow).map(|tuple| tuple.remote);
            let is_load = seen.accepted > 1; // The first one looks for the server.
            seen.clients.extend(client.filter(|_| is_load));
            self.conversations.insert(flow, Conversation::default());
            if seen.accepted >= self.link.accepts_max {
                shard.unlisten(PORT);
            }
        }
        while let Some((flow, events)) = shard.next_event() {
            let Some(it) = self.conversations.get_mut(&flow) else {
                continue;
            };
            let mut buffer = [0; 4096];
            loop {
                match shard.read(flow, &mut buffer) {
                    0 => break,
                    len => {
                        seen.bytes += len as u64;
                        it.input.extend(&buffer[..len]);
                    }
                }
                for _ in 0..take_requests(&mut it.input) {
                    seen.requests += 1;
                    self.due.push_back((now + self.link.takes, flow));
                }
            }
            if events.contains(TcpEvents::PEER_CLOSED) || events.contains(TcpEvents::ENDED) {
                self.conversations.remove(&flow);
                shard.close(now, flow);
            } else {
                it.go_on(shard, flow);
            }
        }
        while let Some(&(due, flow)) = self.due.front() {
            if due > now {
                break;
            }
            self.due.pop_front();
            let Some(it) = self.conversations.get_mut(&flow) else {
                continue;
            };
            seen.answered += 1;
            if self.link.resets_every.is_some_and(|every| seen.answered.is_multiple_of(every)) {
                self.conversations.remove(&flow);
                shard.abort(flow);
                continue;
            }
            let head =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", self.link.body.len());
            it.output.extend(head.bytes());
            it.output.extend(&self.link.body);
            it.go_on(shard, flow);
        }
        self.host.transmit(now, &()).expect("memory");
        seen.flows_left = self.host.shard().flows_len();
    }
}

impl Conversation {
    /// Sends what fits.
    fn go_on(&mut self, shard: &mut netstack::stack::Shard, flow: FlowId) {
        let taken = shard.write(flow, &self.output);
        self.output.drain(..taken);
    }
}

impl Drop for Server {
    /// Delivers the last frames of the generator.
    fn drop(&mut self) {
        self.work(now());
    }
}

/// Removes the complete requests and returns their number.
fn take_requests(input: &mut Vec<u8>) -> usize {
    let mut count = 0;
    while let Some(end) = memchr::memmem::find(input, b"\r\n\r\n") {
        let head = String::from_utf8_lossy(&input[..end]).to_lowercase();
        let length = head.split("content-length: ").nth(1);
        let length = length.and_then(|rest| rest.split("\r\n").next()?.parse().ok());
        let whole = end + 4 + length.unwrap_or(0_usize);
        if input.len() < whole {
            break;
        }
        input.drain(..whole);
        count += 1;
    }
    count
}
