//! Host on a link that answers ping, rejects datagrams with "port unreachable", and echoes on port
//! 80, until its standard input ends. The device tests use it.
//!
//! ```text
//! answer KIND:INTERFACE ADDRESS/LEN...      as root
//!
//! tap, taps        a TAP interface, with one queue or two
//! wire             a TAP interface without offloads
//! packet, packets  an existing interface, by one packet socket or two
//! xdp              an existing interface, by AF_XDP
//!
//! cargo build --example answer
//! sudo target/debug/examples/answer tap:weft0 10.9.0.2/24 &
//! sudo ip address add 10.9.0.1/24 dev weft0; sudo ip link set weft0 up
//! ping 10.9.0.2; nc 10.9.0.2 80
//! ```

extern crate weftwork_netstack as netstack;

use std::env;
use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use netstack::Netstack;
use netstack::device::packet::Packet;
use netstack::device::tap::Tap;
use netstack::device::xdp::Xdp;
use netstack::device::{Capabilities, Device, Offload, OutgoingFrame, ReceiveBurst, TransmitError};
use netstack::ip::{IpConfig, Prefix};
use netstack::stack::{Backlog, FlowId, Shard, ShardLimits};
use netstack::tcp::{TcpConfig, TcpEvents};
use netstack::time::Instant;
use netstack::wire::ethernet::EthernetAddress;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const MAC: EthernetAddress = EthernetAddress([0x02, 0x77, 0x65, 0x66, 0x74, 0x01]);
const PORT: u16 = 80;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = env::args().skip(1);
    let device = words.next().ok_or("usage: answer DEVICE ADDRESS/LEN...")?;
    let addresses = words.map(|word| prefix(&word));
    let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
    match device.split_once(':') {
        Some(("tap", name)) => serve(Tap::open(name, 1, true)?, addresses),
        Some(("taps", name)) => serve(Tap::open(name, 2, true)?, addresses),
        Some(("wire", name)) => serve(Tap::open(name, 1, false)?, addresses),
        Some(("packet", name)) => serve(Packet::open(name, 1)?, addresses),
        Some(("packets", name)) => serve(Packet::open(name, 2)?, addresses),
        Some(("xdp", name)) => serve(Xdp::open(name, 1)?, addresses),
        _ => Err(format!("{device:?} is not a device").into()),
    }
}

fn prefix(word: &str) -> Result<Prefix, Box<dyn Error>> {
    let (address, len) = word.split_once('/').ok_or("an address without a length")?;
    Ok(Prefix { address: address.parse::<IpAddr>()?, len: len.parse()? })
}

fn serve(queues: Vec<impl Device>, addresses: Vec<Prefix>) -> Result<(), Box<dyn Error>> {
    let device = Queues { queues, merged: 0, cut: 0 };
    let interface = IpConfig {
        mac: MAC,
        mtu: device.capabilities().mtu,
        addresses,
        gateway_v4: None,
        gateway_v6: None,
    };
    let tcp = TcpConfig::default();
    let limits = ShardLimits::default();
    // A server draws its key at random; a fixed key makes runs repeatable.
    let mut netstack = Netstack::new(device, interface, tcp, limits, [7; 16]);
    netstack.shard().listen(PORT, Backlog::default());
    let began = std::time::Instant::now();
    netstack.interface().announce(Instant::START);
    println!("ready");
    loop {
        let now = Instant::START + began.elapsed();
        let received = netstack.receive(now)?;
        let shard = netstack.shard();
        while let Some(flow) = shard.accept(PORT) {
            send_back(shard, now, flow);
        }
        while let Some((flow, events)) = shard.next_event() {
            if !events.contains(TcpEvents::ENDED) {
                send_back(shard, now, flow);
            }
        }
        netstack.transmit(now, &())?;
        let wait = netstack.wakes_at().since(now);
        if received == 0 && has_ended(netstack.device(), wait)? {
            let device = netstack.device();
            println!("merged {} cut {}", device.merged, device.cut);
            return Ok(());
        }
    }
}

/// Echoes received bytes as far as they fit, and the end of the stream.
fn send_back(shard: &mut Shard, now: Instant, flow: FlowId) {
    let mut buffer = [0; 1 << 14];
    loop {
        let len = shard.writable_len(flow).min(buffer.len());
        let read = shard.read(flow, &mut buffer[..len]);
        if read == 0 {
            break;
        }
        shard.write(flow, &buffer[..read]);
    }
    let connection = shard.connection(flow);
    if connection.is_some_and(|it| it.is_peer_closed() && it.readable_len() == 0) {
        shard.close(now, flow);
    }
}

/// Several queues as one device. Frames leave by the first.
struct Queues<D> {
    queues: Vec<D>,
    /// Frames that came as several segments in one, and that left so.
    merged: u64,
    cut: u64,
}

impl<D: Device> Device for Queues<D> {
    fn capabilities(&self) -> Capabilities {
        self.queues[0].capabilities()
    }

    fn receive(&mut self, now: Instant, burst: &mut ReceiveBurst) -> io::Result<()> {
        for queue in &mut self.queues {
            queue.receive(now, burst)?;
        }
        let merged = burst.frames().filter(|frame| frame.segment_len.is_some());
        self.merged += merged.count() as u64;
        Ok(())
    }

    fn transmit(&mut self, now: Instant, frame: &OutgoingFrame<'_>) -> Result<(), TransmitError> {
        self.cut += u64::from(matches!(frame.offload, Offload::Segmentation(_)));
        self.queues[0].transmit(now, frame)
    }

    fn flush(&mut self, now: Instant) -> io::Result<()> {
        self.queues[0].flush(now)
    }
}

/// Waits for a frame, the end of standard input, or the time. Returns true at the end of input.
fn has_ended(device: &Queues<impl Device>, wait: Duration) -> io::Result<bool> {
    let stdin = io::stdin();
    let mut waits = vec![PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN)];
    let descriptors = device.queues.iter().filter_map(Device::descriptor);
    waits.extend(descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    let limit =
        Timespec { tv_sec: wait.as_secs().min(3600) as i64, tv_nsec: wait.subsec_nanos().into() };
    match poll(&mut waits, Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(!waits[0].revents().is_empty()),
        Err(error) => Err(error.into()),
    }
}
