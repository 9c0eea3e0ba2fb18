//! A host of its own on a link, without any TCP: it answers ARP, neighbour discovery, ping and
//! datagrams to ports that it does not have, and *mirrors* segments, until its standard input ends.
//! It is what the devices are tested with.
//!
//! ```text
//! answer KIND:INTERFACE ADDRESS/LEN...      as root
//!
//! tap, taps        a TAP interface, with one queue or two
//! wire             a TAP interface without offloads
//! packet, packets  an interface that is there, by one packet socket or two
//! xdp              an interface that is there, by AF_XDP
//!
//! cargo build --example answer
//! sudo target/debug/examples/answer tap:weft0 10.9.0.2/24 &
//! sudo ip address add 10.9.0.1/24 dev weft0; sudo ip link set weft0 up
//! ping 10.9.0.2
//! ```
//!
//! To mirror is to send back what comes in order, in
//! segments as long as the device cuts them, and to send nothing twice: so it works where nothing
//! is lost, with peers that wait for the whole of what they have sent.

use std::env;
use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use netstack::device::packet::Packet;
use netstack::device::tap::Tap;
use netstack::device::xdp::Xdp;
use netstack::device::{
    Device, Offload, OutgoingFrame, PartialChecksum, ReceiveBurst, Segmentation,
};
use netstack::ip::{
    Arrived, Delivery, HEADERS_LEN_MAX, Interface, InterfaceConfig, IpFields, Prefix,
};
use netstack::time::Instant;
use netstack::wire::Ecn;
use netstack::wire::checksum::Sum;
use netstack::wire::ethernet::EthernetAddress;
use netstack::wire::tcp::{self, Flags, Segment, SeqNumber, TcpOptions};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const MAC: EthernetAddress = EthernetAddress([0x02, 0x77, 0x65, 0x66, 0x74, 0x01]);
const FRAMES_PER_BURST: usize = 64;
/// Of packet sockets.
const GROUP: u16 = 7;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = env::args().skip(1);
    let device = words.next().ok_or("usage: answer DEVICE ADDRESS/LEN...")?;
    let addresses = words
        .map(|word| prefix(&word))
        .collect::<Result<Vec<_>, _>>()?;
    match device.split_once(':') {
        Some(("tap", name)) => serve(Tap::open(name, 1, true)?, addresses),
        Some(("taps", name)) => serve(Tap::open(name, 2, true)?, addresses),
        Some(("wire", name)) => serve(Tap::open(name, 1, false)?, addresses),
        Some(("packet", name)) => serve(Packet::open(name, 1, 0)?, addresses),
        Some(("packets", name)) => serve(Packet::open(name, 2, GROUP)?, addresses),
        Some(("xdp", name)) => serve(Xdp::open(name, 1)?, addresses),
        _ => Err(format!("{device:?} is no device").into()),
    }
}

fn prefix(word: &str) -> Result<Prefix, Box<dyn Error>> {
    let (address, len) = word.split_once('/').ok_or("an address without a length")?;
    Ok(Prefix {
        address: address.parse::<IpAddr>()?,
        len: len.parse()?,
    })
}

fn serve(mut queues: Vec<impl Device>, addresses: Vec<Prefix>) -> Result<(), Box<dyn Error>> {
    let capabilities = queues[0].capabilities();
    let mut interface = Interface::new(InterfaceConfig {
        mac: MAC,
        mtu: capabilities.mtu,
        addresses,
        gateway_v4: None,
        gateway_v6: None,
    });
    let began = std::time::Instant::now();
    let mut burst = ReceiveBurst::new(FRAMES_PER_BURST, capabilities.receive_len_max);
    let mut mirror = Mirror::default();
    println!("ready");
    loop {
        let now = Instant::START + began.elapsed();
        let mut is_idle = true;
        for device in &mut queues {
            burst.clear();
            device.receive(now, &mut burst)?;
            is_idle &= burst.is_empty();
            for frame in burst.frames() {
                if let Delivery::Segment(arrived) = interface.receive(now, frame) {
                    mirror.answer(now, device, &mut interface, &arrived)?;
                }
            }
            interface.on_timer(now);
            interface.transmit(now, device);
            device.flush(now)?;
        }
        let timeout = interface.wakes_at().map(|at| at.since(now));
        if is_idle && has_ended(&queues, timeout)? {
            // How much came merged, and how much left to be cut.
            println!("merged {} cut {}", mirror.merged, mirror.cut);
            return Ok(());
        }
    }
}

/// The last connection that was opened.
#[derive(Default)]
struct Mirror {
    snd_nxt: SeqNumber,
    rcv_nxt: SeqNumber,
    mss: u16,
    merged: u64,
    cut: u64,
}

impl Mirror {
    fn answer(
        &mut self,
        now: Instant,
        device: &mut impl Device,
        interface: &mut Interface,
        arrived: &Arrived<'_>,
    ) -> Result<(), Box<dyn Error>> {
        let segment = arrived.segment;
        let is_syn = segment.flags.contains(Flags::SYN);
        if is_syn {
            self.rcv_nxt = segment.seq;
            self.snd_nxt = SeqNumber(1_000_000);
            self.mss = segment.options.mss.unwrap_or(536);
        }
        // A pure acknowledgement has nothing to be sent back.
        if segment.seq != self.rcv_nxt || segment.seq_len() == 0 {
            return Ok(());
        }
        self.rcv_nxt += segment.seq_len();
        self.merged += u64::from(arrived.segment_len.is_some());
        let header_len = if arrived.dst.is_ipv4() { 40 } else { 60 };
        let mss = (device.capabilities().mtu - header_len) as u16;
        let back = Segment {
            src_port: segment.dst_port,
            dst_port: segment.src_port,
            seq: self.snd_nxt,
            ack: Some(self.rcv_nxt),
            flags: segment.flags,
            window: u16::MAX,
            urgent: 0,
            options: TcpOptions {
                mss: is_syn.then_some(mss),
                ..TcpOptions::NONE
            },
            payload: segment.payload,
        };
        self.snd_nxt += back.seq_len();
        self.send(now, device, interface, arrived, &back)
    }

    fn send(
        &mut self,
        now: Instant,
        device: &mut impl Device,
        interface: &mut Interface,
        arrived: &Arrived<'_>,
        segment: &Segment<'_>,
    ) -> Result<(), Box<dyn Error>> {
        let capabilities = device.capabilities();
        let payload = segment.payload;
        let mut room = [0; HEADERS_LEN_MAX + tcp::HEADER_LEN_MAX];
        let fields = IpFields {
            src: arrived.dst,
            dst: arrived.src,
            ecn: Ecn::NotCapable,
            len: segment.header_len() + payload.len(),
        };
        let written = interface.write_headers(now, &fields, &mut room);
        let written = written.map_err(|error| format!("{error:?}"))?;
        let end = written.len + segment.emit(&mut room[written.len..]);
        let header = &mut room[written.len..end];
        let checksum = PartialChecksum {
            start: written.len as u16,
            offset: tcp::CHECKSUM_OFFSET,
        };
        let is_long = payload.len() > usize::from(self.mss);
        let offload = if is_long {
            self.cut += 1;
            Offload::Segmentation(Segmentation {
                checksum,
                is_v6: arrived.dst.is_ipv6(),
                segment_len: self.mss,
                has_cwr: false,
            })
        } else if capabilities.has_checksum_offload {
            Offload::Checksum(checksum)
        } else {
            Offload::None
        };
        match offload {
            Offload::None => {
                tcp::write_checksum(header, written.pseudo_header, Sum::of(payload));
            }
            _ => tcp::write_partial_checksum(header, written.pseudo_header),
        }
        let frame = OutgoingFrame {
            headers: &room[..end],
            payload: &[payload],
            offload,
        };
        Ok(device.transmit(now, &frame)?)
    }
}

/// Waits for a frame, the end of standard input, or the time. Says whether the input has ended.
fn has_ended(queues: &[impl Device], timeout: Option<Duration>) -> io::Result<bool> {
    let stdin = io::stdin();
    let mut waits = vec![PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN)];
    let descriptors = queues.iter().filter_map(Device::descriptor);
    waits.extend(descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    });
    match poll(&mut waits, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(!waits[0].revents().is_empty()),
        Err(error) => Err(error.into()),
    }
}
