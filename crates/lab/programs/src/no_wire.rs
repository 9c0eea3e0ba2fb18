//! Cost of TCP/IP alone: two netstacks in one thread, each at one end of a pair of devices in
//! memory. All work of a netstack on a frame is included: neighbours, IP, checksums, TCP, timers,
//! the copies into and out of the pair. Frames need no system call, and each figure includes the
//! work of both ends.
//!
//! ```text
//!   near: 64 bytes on each of 100 connections ──▶ far: the same 64 bytes back      a turn
//!
//!   idle=N    beside N other connections, open and silent
//!   close=1   each connection is opened, carries one such pair, and is closed by the near end
//!   pages=1   the far end answers with a page; counted are its segments
//!   pages=2   the same, and the page's sums are precomputed
//! ```
//!
//! The netstack's example `rate` has shards alone, which pass segments to each other.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::time::{Duration, Instant as Clock};

use lab::Output;
use netstack::Netstack;
use netstack::device::{Capabilities, mem};
use netstack::ip::{IpConfig, Prefix};
use netstack::stack::frames::BURST_FRAMES_MAX;
use netstack::stack::{Backlog, FlowId, Pieces, ShardLimits, Writer};
use netstack::tcp::{Connection, TcpConfig, TcpEvents};
use netstack::time::Instant;
use netstack::wire::checksum::{Sum, table_of};
use netstack::wire::ethernet::EthernetAddress;

use super::{Parameters, sample, status};

/// Connections that are active, or opened, at once.
const AT_ONCE: usize = 100;
const MESSAGE_LEN: usize = 64;
const MTU: usize = 1500;
/// Payload of a full segment: the MTU less IP's and TCP's headers, with a timestamp.
const SEGMENT_LEN: usize = MTU - 20 - 32;
/// About the mean of the papers' pages, in full segments.
const PAGE_LEN: usize = 90 * SEGMENT_LEN;
/// Longer than pages take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Two frames of each connection fit into each direction of the pair.
const FRAMES_MAX: usize = 4 * AT_ONCE;
const NEAR: u8 = 1;
const FAR: u8 = 2;
/// Ports of the far end. The near end has one address, so each port allows 64,512 connections.
const PORTS: [u16; 4] = [80, 81, 82, 83];
const CONNECTIONS_PER_PORT: usize = 50_000;

pub(super) fn run(parameters: &Parameters) -> Result<Output, String> {
    measure(parameters).map_err(|error| error.to_string())
}

fn measure(parameters: &Parameters) -> io::Result<Output> {
    let time = Duration::from_millis(parameters.get("ms", 1000));
    let page = match parameters.get("pages", 0) {
        0 => Page::default(),
        pages => Page::new(pages > 1),
    };
    let mut hosts = Hosts::new(page)?;
    if hosts.page.is_there() {
        let flows = hosts.open(AT_ONCE)?;
        return repeat(time, || hosts.fetch(&flows));
    }
    if parameters.get("close", 0) != 0 {
        return repeat(time, || hosts.visit());
    }
    let flows = hosts.open(AT_ONCE)?;
    let before = status("VmRSS:");
    hosts.open(parameters.get("idle", 0) as usize)?;
    let grown = status("VmRSS:").saturating_sub(before);
    Ok(Output { resident_bytes: Some(grown), ..repeat(time, || hosts.ask(&flows))? })
}

/// Repeats `once` until the time is over, and sums up the counts that it returns.
fn repeat(time: Duration, mut once: impl FnMut() -> io::Result<usize>) -> io::Result<Output> {
    let mut done = 0;
    let began = Clock::now();
    while began.elapsed() < time {
        done += once()? as u64;
    }
    Ok(sample(done, began.elapsed()))
}

/// The far end's answer: the same bytes again and again, or what was asked if there are none.
#[derive(Default)]
struct Page {
    bytes: Vec<u8>,
    /// Its sums, if they are precomputed.
    table: Option<Box<[u16]>>,
}

impl Page {
    fn new(has_table: bool) -> Page {
        let bytes: Vec<u8> = (0..PAGE_LEN).map(|at| (at / 7) as u8).collect();
        let table = has_table.then(|| table_of(&bytes));
        Page { bytes, table }
    }

    fn is_there(&self) -> bool {
        !self.bytes.is_empty()
    }

    fn push<'a>(&'a self, range: Range<usize>, pieces: &mut Pieces<'a>) {
        let bytes = &self.bytes[range.clone()];
        match &self.table {
            Some(table) => pieces.push_summed(bytes, Sum::of_slice(&self.bytes, table, range)),
            None => pieces.push(bytes),
        }
    }
}

impl Writer for Page {
    fn gather<'a>(&'a self, _: FlowId, offset: u64, len: usize, pieces: &mut Pieces<'a>) {
        let start = (offset % PAGE_LEN as u64) as usize;
        let end = (start + len).min(PAGE_LEN);
        self.push(start..end, pieces);
        // The next page's beginning.
        self.push(0..start + len - end, pieces);
    }
}

struct Hosts {
    near: Netstack<mem::Mem>,
    far: Netstack<mem::Mem>,
    page: Page,
    began: Clock,
    /// Time of this turn, read once in each.
    now: Instant,
    /// Number of connections so far.
    opened: usize,
}

impl Hosts {
    fn new(page: Page) -> io::Result<Hosts> {
        let (near, far) = mem::pair(Capabilities::plain(MTU), FRAMES_MAX);
        let near = host(near, NEAR);
        let mut far = host(far, FAR);
        for port in PORTS {
            far.shard().listen(port, Backlog::default());
        }
        let began = Clock::now();
        let mut hosts = Hosts { near, far, page, began, now: Instant::START, opened: 0 };
        // One alone, which finds the neighbour: of several SYNs that wait for it, one is kept.
        hosts.open(1)?;
        Ok(hosts)
    }

    /// Opens `count` more connections, on both ends.
    fn open(&mut self, count: usize) -> io::Result<Vec<FlowId>> {
        let mut flows = Vec::with_capacity(count);
        while flows.len() < count {
            let batch = (count - flows.len()).min(AT_ONCE);
            for _ in 0..batch {
                flows.push(self.connect()?);
            }
            let mut opened = 0;
            while self.turn()? > 0 {
                while let Some((_, events)) = self.near.shard().next_event() {
                    opened += usize::from(events.contains(TcpEvents::CONNECTED));
                }
            }
            expect_all("connections opened", opened, batch)?;
        }
        Ok(flows)
    }

    /// Sends a request on each flow. Returns the number of replies: all.
    fn ask(&mut self, flows: &[FlowId]) -> io::Result<usize> {
        for &id in flows {
            self.near.shard().write(id, &[7; MESSAGE_LEN]);
        }
        self.turn()?;
        let mut buffer = [0; MESSAGE_LEN];
        let mut answered = 0;
        let shard = self.near.shard();
        while let Some((id, _)) = shard.next_event() {
            answered += usize::from(shard.read(id, &mut buffer) > 0);
        }
        expect_all("requests were answered", answered, flows.len())
    }

    /// A page on each. Returns the number of segments that they are.
    fn fetch(&mut self, flows: &[FlowId]) -> io::Result<usize> {
        for &id in flows {
            self.near.shard().write(id, &[7; MESSAGE_LEN]);
        }
        let all = flows.len() * PAGE_LEN;
        let mut buffer = [0; 16 * 1024];
        let mut came = 0;
        let asked = Clock::now();
        while came < all && asked.elapsed() < PATIENCE {
            self.turn()?;
            let shard = self.near.shard();
            while let Some((id, _)) = shard.next_event() {
                loop {
                    let len = shard.read(id, &mut buffer);
                    if len == 0 {
                        break;
                    }
                    came += len;
                }
            }
        }
        expect_all("bytes of pages came", came, all)?;
        Ok(all / SEGMENT_LEN)
    }

    /// Connections that are opened, carry a request and its answer, and are closed. Returns how
    /// many there were: all, and nothing of them is left but names in TIME-WAIT.
    fn visit(&mut self) -> io::Result<usize> {
        let before = self.flows_len();
        for _ in 0..AT_ONCE {
            let id = self.connect()?;
            self.near.shard().write(id, &[7; MESSAGE_LEN]);
        }
        let mut buffer = [0; MESSAGE_LEN];
        let mut answered = 0;
        while self.turn()? > 0 {
            let shard = self.near.shard();
            let now = self.now;
            while let Some((id, _)) = shard.next_event() {
                if shard.read(id, &mut buffer) > 0 {
                    shard.close(now, id);
                    answered += 1;
                }
            }
        }
        let closed = (before + 2 * AT_ONCE).saturating_sub(self.flows_len());
        expect_all("ends were closed", closed, 2 * AT_ONCE)?;
        expect_all("visits were answered", answered, AT_ONCE)
    }

    fn connect(&mut self) -> io::Result<FlowId> {
        let port = PORTS[self.opened / CONNECTIONS_PER_PORT % PORTS.len()];
        self.opened += 1;
        let remote = SocketAddr::new(address(FAR), port);
        (self.near.connect(self.now, remote)).map_err(io::Error::other)
    }

    /// Passes the near end's segments to the far end, lets that reply, and passes its segments
    /// back. Returns the number of frames.
    fn turn(&mut self) -> io::Result<usize> {
        self.now = Instant::START + self.began.elapsed();
        self.near.transmit(self.now, &())?;
        let there = receive(&mut self.far, self.now)?;
        self.serve();
        self.far.transmit(self.now, &self.page)?;
        Ok(there + receive(&mut self.near, self.now)?)
    }

    /// The far end sends back what has come, or a page for it, and closes what its peer has closed.
    fn serve(&mut self) {
        let sends_pages = self.page.is_there();
        let shard = self.far.shard();
        let now = self.now;
        for port in PORTS {
            while shard.accept(port).is_some() {}
        }
        let mut buffer = [0; MESSAGE_LEN];
        while let Some((id, _)) = shard.next_event() {
            let len = shard.read(id, &mut buffer);
            if len > 0 && sends_pages {
                shard.queue(id, PAGE_LEN as u64);
            } else if len > 0 {
                shard.write(id, &buffer[..len]);
            }
            if shard.connection(id).is_some_and(Connection::is_peer_closed) {
                shard.close(now, id);
            }
        }
    }

    /// Flows of both ends.
    fn flows_len(&mut self) -> usize {
        self.near.shard().flows_len() + self.far.shard().flows_len()
    }
}

fn host(device: mem::Mem, number: u8) -> Netstack<mem::Mem> {
    let interface = IpConfig {
        mac: EthernetAddress([2, 0, 0, 0, 0, number]),
        mtu: MTU,
        addresses: vec![Prefix { address: address(number), len: 24 }],
        gateway_v4: None,
        gateway_v6: None,
    };
    let limits = ShardLimits { ephemeral_ports: (1024, u16::MAX), ..ShardLimits::default() };
    let tcp = TcpConfig::default();
    let key = [number; 16];
    Netstack::new(device, interface, tcp, limits, key)
}

fn address(number: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, number).into()
}

/// Receives all frames. Returns their number.
fn receive(host: &mut Netstack<mem::Mem>, now: Instant) -> io::Result<usize> {
    let mut all = 0;
    loop {
        let came = host.receive(now)?;
        all += came;
        if came < BURST_FRAMES_MAX {
            return Ok(all);
        }
    }
}

/// Checks that all operations succeeded: a rate of partial work would be meaningless.
fn expect_all(what: &str, count: usize, of: usize) -> io::Result<usize> {
    if count == of { Ok(count) } else { Err(io::Error::other(format!("{count} of {of} {what}"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_visits() {
        let mut hosts = Hosts::new(Page::default()).unwrap();
        let flows = hosts.open(AT_ONCE).unwrap();
        assert_eq!(hosts.open(250).unwrap().len(), 250);
        let open = 2 * (1 + AT_ONCE + 250);
        assert_eq!(hosts.flows_len(), open);
        for _ in 0..50 {
            assert_eq!(hosts.ask(&flows).unwrap(), AT_ONCE);
            assert_eq!(hosts.visit().unwrap(), AT_ONCE);
            assert_eq!(hosts.flows_len(), open);
        }
    }
    /// The near end drops segments with wrong sums.
    #[test]
    fn pages_with_and_without_a_table() {
        for has_table in [false, true] {
            let mut hosts = Hosts::new(Page::new(has_table)).unwrap();
            let flows = hosts.open(10).unwrap();
            for _ in 0..3 {
                assert_eq!(hosts.fetch(&flows).unwrap(), 10 * 90);
            }
            assert_eq!(hosts.near.interface().counters().0.checksums, 0);
        }
    }
}
