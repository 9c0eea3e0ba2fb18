//! Nothing is allocated for a packet: a counting allocator under a shard that has warmed up, and
//! under a whole netstack. Each thread, and so each test, is counted by itself.

extern crate weftwork_netstack as netstack;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use netstack::Netstack;
use netstack::device::{Capabilities, mem};
use netstack::ip::{IpConfig, Prefix};
use netstack::stack::{Backlog, FlowId, Pieces, Shard, ShardLimits, Writer};
use netstack::tcp::TcpConfig;
use netstack::time::Instant;
use netstack::wire::Ecn;
use netstack::wire::ethernet::EthernetAddress;
use netstack::wire::tcp::Segment;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: all is passed on to the system's allocator; the counter is a thread's own and is not
// allocated.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ADDRESSES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2))];
const PORT: u16 = 80;

/// A body that the application has in memory anyway.
struct Page([u8; 4096]);

impl Writer for Page {
    fn gather<'a>(&'a self, _: FlowId, offset: u64, len: usize, pieces: &mut Pieces<'a>) {
        let at = offset as usize % self.0.len();
        let front = len.min(self.0.len() - at);
        pieces.push(&self.0[at..at + front]);
        pieces.push(&self.0[..len - front]);
    }
}

/// A segment on its way: in an array, since the link must not allocate either.
#[derive(Clone, Copy)]
struct Packet {
    segment: Segment<'static>,
    payload: [u8; 1500],
    len: usize,
}

/// Moves segments between the two until neither has one. Every `loss`th one is lost.
fn exchange(
    shards: &mut [Shard; 2],
    now: Instant,
    page: &Page,
    link: &mut Vec<Packet>,
    loss: usize,
    count: &mut usize,
) {
    for from in [0, 1, 0, 1, 0, 1] {
        link.clear();
        shards[from].transmit(now, 0, page, |departure| {
            let mut packet = Packet {
                segment: *departure.segment,
                payload: [0; 1500],
                len: departure.pieces.len(),
            };
            let mut at = 0;
            for piece in departure.pieces.as_slice() {
                packet.payload[at..at + piece.len()].copy_from_slice(piece);
                at += piece.len();
            }
            *count += 1;
            if loss == 0 || !count.is_multiple_of(loss) {
                link.push(packet);
            }
            link.len() < link.capacity()
        });
        for packet in &*link {
            let segment = Segment { payload: &packet.payload[..packet.len], ..packet.segment };
            shards[1 - from].receive(
                now,
                ADDRESSES[1 - from],
                ADDRESSES[from],
                &segment,
                Ecn::NotCapable,
            );
        }
    }
}

/// Both read the received bytes and queue `len` more: requests one way, replies the other.
fn converse(shards: &mut [Shard; 2], flows: [FlowId; 2], lens: [u64; 2]) {
    for at in 0..2 {
        while let Some((id, _)) = shards[at].next_event() {
            let (front, back) = shards[at].peek(id);
            let readable = front.len() + back.len();
            shards[at].consume(id, readable);
        }
        let machine = shards[at].connection(flows[at]).expect("the connection is open");
        if machine.unsent_len() < 4 * lens[at] {
            shards[at].queue(flows[at], lens[at]);
        }
    }
}

#[test]
fn a_warm_shard_allocates_nothing() {
    let config = TcpConfig { has_nagle: false, ..TcpConfig::default() };
    let limits = ShardLimits::default();
    let mut shards = [1, 2].map(|key| Shard::new(config, limits, [key; 16]));
    let page = Page([7; 4096]);
    let mut link = Vec::with_capacity(256);
    let mut now = Instant::START;
    let mut count = 0;
    shards[1].listen(PORT, Backlog::default());
    let remote = SocketAddr::new(ADDRESSES[1], PORT);
    let near = shards[0].connect(now, ADDRESSES[0], remote).expect("a port");
    exchange(&mut shards, now, &page, &mut link, 0, &mut count);
    let far = shards[1].accept(PORT).expect("a connection");
    for loss in [0, 50] {
        // First it grows to the needed size, then it must not grow any more.
        let mut before = (0, 0);
        for round in 0..4000 {
            if round == 2000 {
                before = (ALLOCATIONS.with(Cell::get), count);
            }
            converse(&mut shards, [near, far], [300, 20_000]);
            exchange(&mut shards, now, &page, &mut link, loss, &mut count);
            now += Duration::from_millis(1);
            shards.iter_mut().for_each(|shard| shard.expire(now));
        }
        let allocations = ALLOCATIONS.with(Cell::get) - before.0;
        let packets = count - before.1;
        assert!(packets > 5_000, "{packets} packets");
        assert_eq!(allocations, 0, "in {packets} packets, each {loss}th lost");
    }
}

/// Counts the layers between a shard and its device as well: neighbours, IP, checksums, frames.
#[test]
fn a_warm_netstack_allocates_nothing() {
    let (near, far) = mem::pair(Capabilities::plain(1500), 256);
    let mut number = 0;
    let mut hosts = [near, far].map(|device| {
        let address = ADDRESSES[usize::from(number)];
        number += 1;
        let interface = IpConfig {
            mac: EthernetAddress([2, 0, 0, 0, 0, number]),
            mtu: 1500,
            addresses: vec![Prefix { address, len: 24 }],
            gateway_v4: None,
            gateway_v6: None,
        };
        let tcp = TcpConfig::default();
        let limits = ShardLimits::default();
        Netstack::new(device, interface, tcp, limits, [number; 16])
    });
    let page = Page([7; 4096]);
    let mut now = Instant::START;
    hosts[1].shard().listen(PORT, Backlog::default());
    let remote = SocketAddr::new(ADDRESSES[1], PORT);
    let mut flows = [hosts[0].connect(now, remote).ok(), None];
    // First it grows to the needed size, then it must not grow any more.
    let mut before = (0, 0);
    for round in 0..4000 {
        if round == 2000 {
            let frames = hosts[0].interface().counters().0.frames;
            before = (ALLOCATIONS.with(Cell::get), frames);
        }
        for ((host, flow), len) in hosts.iter_mut().zip(&mut flows).zip([300, 20_000]) {
            host.receive(now).expect("memory");
            let shard = host.shard();
            *flow = flow.or_else(|| shard.accept(PORT));
            while let Some((id, _)) = shard.next_event() {
                let (front, back) = shard.peek(id);
                let readable = front.len() + back.len();
                shard.consume(id, readable);
            }
            if let Some(id) = *flow
                && shard.connection(id).expect("the connection is open").unsent_len() < 4 * len
            {
                shard.queue(id, len);
            }
            host.transmit(now, &page).expect("memory");
        }
        now += Duration::from_millis(1);
    }
    let allocations = ALLOCATIONS.with(Cell::get) - before.0;
    let frames = hosts[0].interface().counters().0.frames - before.1;
    assert!(frames > 5_000, "{frames} frames");
    assert_eq!(allocations, 0, "in {frames} frames");
}
