//! One interface with its addresses: checks and sorts arriving packets, writes the headers of
//! leaving ones, and answers requests to the host itself.
//!
//! ```text
//!            Frame                                                        Segment, PathError
//!   device ─────────▶ receive ─┬─ Ethernet ─┬─ ARP ─────▶ neighbours      ───────────▶ host
//!                              │            ├─ IPv4 ─┬─ TCP ──────────────────▶
//!                              │            │        ├─ ICMP: echo, errors ───▶
//!                              │            │        └─ others: unreachable
//!                              │            └─ IPv6 ─── the same, and neighbour discovery
//!                              ▼
//!   device ◀──── transmit: own frames (answers, questions, frames that waited for a neighbour)
//!   device ◀──────────────────────────────────────────── write_headers ◀──── host
//! ```
//!
//! # Dropped packets
//!
//! Every packet that is dropped is counted by its reason: [`IpCounters`].
//!
//! - Packets for other hosts, and packets that no single host can have sent: RFC 1122 3.2.1.3.
//! - **Fragments.** TCP sends none here, because every packet forbids fragmentation; and strangers
//!   could fill the memory of reassembly. RFC 8900 3 lists its other costs.
//! - Errors that are not about a segment of this host. The others are handed up: only the
//!   connection knows whether they can be true. RFC 5927 4
//!
//! # Answered packets
//!
//! Echo requests; datagrams to ports, and packets of protocols, that nothing listens to. Answers
//! have a rate ([`ANSWERS_PER_S`]), and a queue with a limit ([`OWN_FRAMES_MAX`]).

mod announcement;
mod answer;
mod groups;
mod own;
mod path_mtu;
mod receive;
mod route;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub use announcement::{ROUTER_QUESTION_EVERY, ROUTER_QUESTIONS_MAX};
pub use answer::{ANSWERS_BURST, ANSWERS_PER_S};
pub use own::OWN_FRAMES_MAX;
pub use path_mtu::{MTU_MIN_V4, MTU_MIN_V6, PATH_MTU_FOR, PATHS_MAX};
pub use route::Prefix;

use crate::device::{Device, Offload, OutgoingFrame, TransmitError};
use crate::neighbor::{NeighborCache, NeighborCounters, Question, Resolution};
use crate::time::Instant;
use crate::wire::arp::{ArpOperation, ArpPacket};
use crate::wire::checksum::Sum;
use crate::wire::ethernet::{self, EtherType, EthernetAddress, EthernetHeader};
use crate::wire::icmpv6::Icmpv6Message;
use crate::wire::ipv4::Ipv4Header;
use crate::wire::ipv6::{self, Ipv6Header};
use crate::wire::ndp::NdpMessage;
use crate::wire::tcp::{Segment, SeqNumber};
use crate::wire::{Ecn, Protocol};
use announcement::Announcement;
use answer::Limiter;
use groups::Reports;
use own::{OwnFrame, OwnFrames};
use path_mtu::PathMtus;
use route::Routes;

/// Longest headers that [`Interface::write_headers`] writes.
pub const HEADERS_LEN_MAX: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN;

/// Initial hop limit of packets, unless a router says otherwise. RFC 1700
const HOP_LIMIT: u8 = 64;

/// Configuration of an interface's IP layer.
#[derive(Clone, Debug)]
pub struct IpConfig {
    /// Its address on the link.
    pub mac: EthernetAddress,
    /// The longest IP packet: the device's.
    pub mtu: usize,
    /// Its addresses, each with the prefix that is on this link. A link-local one is added.
    pub addresses: Vec<Prefix>,
    /// Gateway of IPv4.
    pub gateway_v4: Option<Ipv4Addr>,
    /// Gateway of IPv6; without one, a router may advertise itself.
    pub gateway_v6: Option<Ipv6Addr>,
}

/// Content of a frame for the layers above.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Delivery<'f> {
    /// A TCP segment for this host, whose checksum is right.
    Segment(Arrived<'f>),
    /// A router, or the peer's host, says that a segment of this host was dropped.
    Error(PathError),
    /// Nothing is left to do: the frame was answered, learned from, or dropped and counted.
    Nothing,
}

/// A segment that has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrived<'f> {
    /// From: one host.
    pub src: IpAddr,
    /// To: an address of this host.
    pub dst: IpAddr,
    /// ECN codepoint; says whether a router was congested.
    pub ecn: Ecn,
    /// Payload length of each segment, if the device has merged several.
    pub segment_len: Option<u16>,
    /// The segment.
    pub segment: Segment<'f>,
}

/// Content of an ICMP error. It counts only if the connection of `local` and `remote` finds `seq`
/// among its unacknowledged data. RFC 5927 4.1
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathError {
    /// Address and port of this host.
    pub local: SocketAddr,
    /// Address and port of the peer.
    pub remote: SocketAddr,
    /// Sequence number of the dropped segment.
    pub seq: SeqNumber,
    /// Reason for the drop.
    pub kind: PathErrorKind,
}

/// Reason why a segment was dropped on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathErrorKind {
    /// The packet was too long. The connection confirms it: [`Interface::path_mtu_lowered`].
    TooBig {
        /// The longest packet that fits.
        mtu: u16,
    },
    /// The peer reports that nothing listens there: a connection that is being opened can end, RFC
    /// 1122 4.2.3.9; an open one continues, RFC 5927 5.2.
    Hard,
    /// A condition that may pass.
    Soft,
}

/// Destination and IP header fields of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpFields {
    /// From: an address of this host.
    pub src: IpAddr,
    /// To: of the same family.
    pub dst: IpAddr,
    /// The class of service that its sender asks for. RFC 2474
    pub dscp: u8,
    /// ECN codepoint of the sender.
    pub ecn: Ecn,
    /// The length of the segment, header and payload.
    pub len: usize,
}

/// Headers that were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Length of the headers: offset of the segment.
    pub len: usize,
    /// Pseudo header for the segment's checksum.
    pub pseudo_header: Sum,
    /// True if the frame can leave. Otherwise its neighbour is being resolved: [`Interface::hold`].
    pub is_resolved: bool,
}

/// Reason why a segment cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoute {
    /// The address is neither on this link nor behind a gateway, or is not one host's.
    NoGateway,
    /// Too many neighbours are being resolved.
    Crowded,
}

/// Counters of packets, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpCounters {
    /// Frames that came.
    pub frames: u64,
    /// Segments among them that were handed up.
    pub segments: u64,
    /// Errors that were handed up.
    pub path_errors: u64,
    /// Dropped: to another host.
    pub to_other_hosts: u64,
    /// Dropped: an invalid header.
    pub malformed: u64,
    /// Dropped: a wrong checksum.
    pub checksums: u64,
    /// Dropped: from an address that cannot be that of one other host.
    pub bad_sources: u64,
    /// Dropped: a fragment.
    pub fragments: u64,
    /// Dropped: by its extension headers.
    pub extensions: u64,
    /// Dropped: neither IP nor ARP.
    pub unknown: u64,
    /// Another host on the link has, or wants, an address of this one.
    pub conflicts: u64,
    /// Answers sent: echo, unreachable, neighbour discovery.
    pub answered: u64,
    /// Answers not sent, because the rate was reached.
    pub limited: u64,
    /// Own frames that were dropped, because their queue was full or the device has failed.
    pub own_dropped: u64,
    /// Paths that were found to be narrower.
    pub paths_lowered: u64,
}

/// One interface with its addresses.
pub struct Interface {
    mac: EthernetAddress,
    mtu: usize,
    /// MTU that a router has advertised, if that is less than the device's.
    mtu_v6: usize,
    hop_limit: u8,
    routes: Routes,
    neighbors: NeighborCache,
    paths: PathMtus,
    limiter: Limiter,
    reports: Reports,
    announcement: Announcement,
    own: OwnFrames,
    /// Identification of the next packet that may be fragmented.
    identification: u16,
    counters: IpCounters,
}

impl Interface {
    /// An interface that has sent nothing yet.
    pub fn new(config: IpConfig) -> Interface {
        Interface {
            mac: config.mac,
            mtu: config.mtu,
            mtu_v6: config.mtu,
            hop_limit: HOP_LIMIT,
            routes: Routes::new(&config),
            neighbors: NeighborCache::default(),
            paths: PathMtus::default(),
            limiter: Limiter::default(),
            reports: Reports::default(),
            announcement: Announcement::default(),
            own: OwnFrames::new(ethernet::HEADER_LEN + config.mtu),
            identification: 0,
            counters: IpCounters::default(),
        }
    }

    /// Counters of packets and of neighbours.
    pub fn counters(&self) -> (IpCounters, NeighborCounters) {
        (self.counters, self.neighbors.counters())
    }

    /// Its address on the link.
    pub fn mac(&self) -> EthernetAddress {
        self.mac
    }

    /// Its neighbour cache: to fix an entry, or to share what another shard has learned.
    pub fn neighbors(&mut self) -> &mut NeighborCache {
        &mut self.neighbors
    }

    /// Sets the hop limit of its packets; 64 by default. RFC 9293 3.9.2, MUST-49
    pub fn set_hop_limit(&mut self, hop_limit: u8) {
        self.hop_limit = hop_limit;
    }

    /// True if `address` is one of its own.
    pub fn is_own(&self, address: IpAddr) -> bool {
        self.routes.is_own(address)
    }

    /// True if `address` is that of one other host: neither a group's, nor the link's broadcast,
    /// nor one of its own.
    pub fn is_one_host(&self, address: IpAddr) -> bool {
        self.routes.is_one_host(address)
    }

    /// Source address for packets to `dst`.
    pub fn source_for(&self, dst: IpAddr) -> Option<IpAddr> {
        self.routes.source_for(dst)
    }

    /// True if there is a way to `dst`: on the link, or behind a gateway. A router of IPv6 may
    /// still advertise itself if no gateway was named.
    pub fn has_route(&self, now: Instant, dst: IpAddr) -> bool {
        let may_come = dst.is_ipv6() && self.routes.may_have_router(dst);
        may_come || self.routes.next_hop(now, dst).is_some()
    }

    /// The longest IP packet that reaches `dst`, as far as is known.
    pub fn mtu_to(&self, now: Instant, dst: IpAddr) -> usize {
        let link = if dst.is_ipv4() { self.mtu } else { self.mtu_v6 };
        let path = self.paths.mtu_to(now, dst);
        path.map_or(link, |mtu| mtu.min(link))
    }

    /// Path MTU to `dst` that routers have reported, if it is below the link's.
    pub fn path_mtu_to(&self, now: Instant, dst: IpAddr) -> Option<usize> {
        self.paths.mtu_to(now, dst)
    }

    /// Resolves `dst`, which may ask the link; true if it is a host of the link and has the
    /// Ethernet address `mac`.
    pub fn resolves_to(&mut self, now: Instant, dst: IpAddr, mac: EthernetAddress) -> bool {
        self.routes.is_on_link(dst) && self.neighbors.resolve(now, dst) == Resolution::Known(mac)
    }

    /// The longest packet of IPv6 on the link: the device's, or what a router has said. RFC 4861
    /// 6.3.4
    pub fn link_mtu_v6(&self) -> usize {
        self.mtu_v6.min(self.mtu)
    }

    /// Records that a packet to `dst` was too long, as its connection has confirmed. Returns true
    /// if packets to `dst` must be shorter now.
    pub fn path_mtu_lowered(&mut self, now: Instant, dst: IpAddr, mtu: u16) -> bool {
        let before = self.mtu_to(now, dst);
        self.paths.lower(now, dst, usize::from(mtu), before);
        let is_lower = self.mtu_to(now, dst) < before;
        self.counters.paths_lowered += u64::from(is_lower);
        is_lower
    }

    // ---- Departures

    /// Writes the Ethernet and IP headers of a segment to the beginning of `buffer`, which has
    /// [`HEADERS_LEN_MAX`] bytes.
    ///
    /// # Errors
    ///
    /// [`NoRoute`]; nothing has been written.
    ///
    /// # Panics
    ///
    /// If the two addresses are of different families, or the segment is longer than a packet.
    pub fn write_headers(
        &mut self,
        now: Instant,
        to: &IpFields,
        buffer: &mut [u8],
    ) -> Result<Written, NoRoute> {
        self.write_ip(now, to, Protocol::TCP, self.hop_limit, buffer)
    }

    fn write_ip(
        &mut self,
        now: Instant,
        to: &IpFields,
        protocol: Protocol,
        hop_limit: u8,
        buffer: &mut [u8],
    ) -> Result<Written, NoRoute> {
        let (link, is_resolved) = self.link_to(now, to.dst)?;
        let (ethertype, pseudo_header, network_len);
        let network = &mut buffer[ethernet::HEADER_LEN..];
        match (to.src, to.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let may_cut = self.paths.may_cut(now, to.dst);
                // Packets that are never fragmented need no identification. RFC 6864 4.1
                self.identification = self.identification.wrapping_add(may_cut.into());
                let header = Ipv4Header {
                    src,
                    dst,
                    protocol,
                    hop_limit,
                    dscp: to.dscp,
                    ecn: to.ecn,
                    identification: if may_cut { self.identification } else { 0 },
                    dont_fragment: !may_cut,
                    more_fragments: false,
                    fragment_offset: 0,
                };
                network_len = header.emit(to.len, network);
                pseudo_header = Sum::pseudo_header_v4(src, dst, protocol.0, to.len as u32);
                ethertype = EtherType::IPV4;
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let header = Ipv6Header {
                    src,
                    dst,
                    next_header: protocol,
                    hop_limit,
                    dscp: to.dscp,
                    ecn: to.ecn,
                    flow_label: 0,
                };
                network_len = header.emit(to.len, network);
                pseudo_header = Sum::pseudo_header_v6(src, dst, protocol.0, to.len as u32);
                ethertype = EtherType::IPV6;
            }
            (src, dst) => panic!("a packet from {src} to {dst}"),
        }
        let header = EthernetHeader { dst: link, src: self.mac, ethertype };
        Ok(Written { len: header.emit(buffer) + network_len, pseudo_header, is_resolved })
    }

    /// Next hop of a packet to `dst` on the link, and whether its address is known.
    fn link_to(&mut self, now: Instant, dst: IpAddr) -> Result<(EthernetAddress, bool), NoRoute> {
        if let IpAddr::V6(group) = dst
            && group.is_multicast()
        {
            return Ok((EthernetAddress::of_multicast_v6(group), true));
        }
        let hop = self.routes.next_hop(now, dst).ok_or(NoRoute::NoGateway)?;
        let resolution = if hop == dst {
            self.neighbors.resolve(now, hop)
        } else {
            self.neighbors.resolve_router(now, hop)
        };
        match resolution {
            Resolution::Known(mac) => Ok((mac, true)),
            Resolution::Asked => Ok((EthernetAddress::ZERO, false)),
            Resolution::Refused => Err(NoRoute::Crowded),
        }
    }

    /// Keeps a frame to `dst`, whole, until its neighbour has answered; the newest only. It then
    /// leaves with [`Interface::transmit`]. It is to fit into a packet of the link.
    pub fn hold(&mut self, now: Instant, dst: IpAddr, headers: &[u8], payload: &[&[u8]]) {
        let len = headers.len() + payload.iter().map(|piece| piece.len()).sum::<usize>();
        let hop = self.routes.next_hop(now, dst);
        match hop.filter(|_| len <= ethernet::HEADER_LEN + self.mtu) {
            Some(hop) => self.neighbors.hold(hop, headers, payload),
            None => self.counters.own_dropped += 1,
        }
    }

    /// Confirms the neighbour on the way to `dst`, because a connection has made progress there: it
    /// need not be asked. RFC 4861 7.3.1
    pub fn confirm(&mut self, now: Instant, dst: IpAddr) {
        if let Some(hop) = self.routes.next_hop(now, dst) {
            self.neighbors.confirm(now, hop);
        }
    }

    /// Probes the neighbour on the way to `dst`, because nothing comes back from there. RFC 1122
    /// 3.3.1.4
    pub fn probe(&mut self, now: Instant, dst: IpAddr) {
        if let Some(hop) = self.routes.next_hop(now, dst) {
            self.neighbors.probe(now, hop);
        }
    }

    /// Hands its own frames to the device: answers, questions, and frames that waited for a
    /// neighbour. Frames that do not fit wait: [`Interface::is_held_up`].
    pub fn transmit(&mut self, now: Instant, device: &mut impl Device) {
        while let Some(frame) = self.neighbors.released() {
            match transmit_one(now, device, &frame) {
                Err(TransmitError::Full) => self.queue(|buffer| {
                    buffer[..frame.len()].copy_from_slice(&frame);
                    frame.len()
                }),
                Err(_) => self.counters.own_dropped += 1,
                Ok(()) => {}
            }
            self.neighbors.reuse(frame);
        }
        self.transmit_own(now, device);
        // Answers have left, so that a flood of them leaves room for questions.
        while self.own.free() > 0
            && let Some(question) = self.neighbors.question()
        {
            self.ask(question);
            self.transmit_own(now, device);
        }
    }

    fn transmit_own(&mut self, now: Instant, device: &mut impl Device) {
        while let Some(frame) = self.own.pop() {
            match transmit_one(now, device, &frame.buffer[..frame.len]) {
                Err(TransmitError::Full) => return self.own.push_front(frame),
                Err(_) => self.counters.own_dropped += 1,
                Ok(()) => {}
            }
            self.own.reuse(frame.buffer);
        }
    }

    /// True if the device had no space for all own frames: they leave with the next
    /// [`Interface::transmit`].
    pub fn is_held_up(&self) -> bool {
        self.own.is_held_up()
    }

    /// Does the work that is due.
    pub fn on_timer(&mut self, now: Instant) {
        self.neighbors.on_timer(now);
        // Announcements come before a new report, which waits for the end of the previous one.
        self.on_announcement_timer(now);
        if self.reports.at.is_some_and(|at| at <= now) {
            self.report_groups(now);
        }
    }

    /// Time of the next call of [`Interface::on_timer`].
    pub fn wakes_at(&self) -> Option<Instant> {
        let neighbors = self.neighbors.wakes_at();
        let announcement = self.announcement.wakes_at();
        let times = [neighbors, self.reports.at, announcement];
        times.into_iter().flatten().min()
    }

    fn ask(&mut self, question: Question) {
        let source = self.routes.source_for(question.target);
        match (question.target, source) {
            (IpAddr::V4(target), Some(IpAddr::V4(sender_ip))) => {
                let packet = ArpPacket {
                    operation: ArpOperation::Request,
                    sender_mac: self.mac,
                    sender_ip,
                    target_mac: question.unicast_to.unwrap_or_default(),
                    target_ip: target,
                };
                self.send_arp_to(question.unicast_to.unwrap_or(EthernetAddress::BROADCAST), packet);
            }
            (IpAddr::V6(target), Some(IpAddr::V6(src))) => {
                let source = Some(self.mac);
                let message = NdpMessage::NeighborSolicitation { target, source };
                let (link, dst) = match question.unicast_to {
                    Some(mac) => (mac, target),
                    None => {
                        let group = solicited_node(target);
                        (EthernetAddress::of_multicast_v6(group), group)
                    }
                };
                self.send_icmpv6_to(link, src, dst, &Icmpv6Message::Ndp(message));
            }
            _ => self.counters.own_dropped += 1,
        }
    }

    fn send_arp(&mut self, packet: ArpPacket) {
        self.send_arp_to(EthernetAddress::BROADCAST, packet);
    }

    fn send_arp_to(&mut self, link: EthernetAddress, packet: ArpPacket) {
        let header = EthernetHeader { dst: link, src: self.mac, ethertype: EtherType::ARP };
        self.queue(|buffer| {
            let at = header.emit(buffer);
            at + packet.emit(&mut buffer[at..])
        });
    }

    /// Queues an own frame; `write` fills it and returns its length.
    fn queue(&mut self, write: impl FnOnce(&mut [u8]) -> usize) {
        let Some(mut buffer) = self.own.take_buffer() else {
            self.counters.own_dropped += 1;
            return;
        };
        let len = write(&mut buffer);
        self.own.push(OwnFrame { buffer, len });
    }

    /// Sends a message of neighbour discovery to a group.
    fn send_ndp(&mut self, src: Ipv6Addr, dst: Ipv6Addr, message: Icmpv6Message<'_>) {
        self.send_icmpv6_to(EthernetAddress::of_multicast_v6(dst), src, dst, &message);
    }

    /// Sends a message of neighbour discovery to a known link address, bypassing the cache.
    fn send_icmpv6_to(
        &mut self,
        link: EthernetAddress,
        src: Ipv6Addr,
        dst: Ipv6Addr,
        message: &Icmpv6Message<'_>,
    ) {
        let ethernet = EthernetHeader { dst: link, src: self.mac, ethertype: EtherType::IPV6 };
        let header = Ipv6Header {
            src,
            dst,
            next_header: Protocol::ICMPV6,
            // Proves to the receiver that no router has forwarded it. RFC 4861 7.1
            hop_limit: NDP_HOP_LIMIT,
            dscp: 0,
            ecn: Ecn::NotCapable,
            flow_label: 0,
        };
        self.queue(|buffer| {
            let at = ethernet.emit(buffer);
            let message_len = message.emit(src, dst, &mut buffer[at + ipv6::HEADER_LEN..]);
            at + header.emit(message_len, &mut buffer[at..]) + message_len
        });
    }

    /// Advertises the own `address` to all nodes.
    fn advertise(&mut self, address: Ipv6Addr) {
        self.send_ndp(address, ALL_NODES, self.advertisement(address, false));
    }

    /// Advertises the own `address` to `to`, which has asked for it from link address `source`. A
    /// stranger's answer needs no entry in the cache.
    fn advertise_to(
        &mut self,
        now: Instant,
        address: Ipv6Addr,
        to: Ipv6Addr,
        source: Option<EthernetAddress>,
    ) {
        let source = source.filter(|mac| mac.is_unicast() && *mac != self.mac);
        let link = source.or_else(|| match self.link_to(now, to.into()) {
            Ok((link, true)) => Some(link),
            _ => None,
        });
        if let Some(link) = link {
            let message = self.advertisement(address, true);
            self.send_icmpv6_to(link, address, to, &message);
        }
    }

    fn advertisement(&self, address: Ipv6Addr, is_solicited: bool) -> Icmpv6Message<'static> {
        Icmpv6Message::Ndp(NdpMessage::NeighborAdvertisement {
            target: address,
            link: Some(self.mac),
            is_router: false,
            is_solicited,
            is_override: true,
        })
    }
}

fn transmit_one(now: Instant, device: &mut impl Device, frame: &[u8]) -> Result<(), TransmitError> {
    let whole = OutgoingFrame { headers: frame, payload: &[], offload: Offload::None };
    device.transmit(now, &whole)
}

/// Hop limit of neighbour discovery: proof that no router has forwarded a message. RFC 4861 7.1
const NDP_HOP_LIMIT: u8 = 255;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

/// The group that a host listens to for each of its addresses. RFC 4291 2.7.1
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    let low = u16::from_be_bytes([b, c]);
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), low)
}
