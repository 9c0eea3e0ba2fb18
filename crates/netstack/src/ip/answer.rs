//! Answers of the host: echo replies, ICMP errors, and its part in neighbour discovery.

use std::net::IpAddr;
use std::time::Duration;

use super::own::OwnFrame;
use super::path_mtu::{MTU_MIN_V6, plateau_below};
use super::{
    Delivery, Interface, IpFields, NDP_HOP_LIMIT, PathError, PathErrorKind, solicited_node,
};
use crate::device::Verified;
use crate::time::Instant;
use crate::wire::checksum::Sum;
use crate::wire::ethernet;
use crate::wire::icmpv4::{self, IcmpEcho, Icmpv4Message};
use crate::wire::icmpv6::{self, Icmpv6Message};
use crate::wire::ipv4::Ipv4Header;
use crate::wire::ipv6::{self, Ipv6Header};
use crate::wire::mld;
use crate::wire::ndp::NdpMessage;
use crate::wire::quoted::QuotedSegment;
use crate::wire::udp::UdpHeader;
use crate::wire::{Ecn, Protocol};

/// Answers in a second, on average: echo replies, and errors. RFC 4443 2.4 (f), RFC 1812 4.3.2.8
pub const ANSWERS_PER_S: u64 = 1000;

/// Largest burst of answers.
pub const ANSWERS_BURST: u64 = 50;

/// Longest packet of an ICMP error. RFC 1812 4.3.2.3; RFC 4443 2.4 (c)
const ERROR_LEN_MAX_V4: usize = 576;
const ERROR_LEN_MAX_V6: usize = MTU_MIN_V6;

/// Next header of a packet without payload. RFC 8200 4.7
const NO_NEXT_HEADER: Protocol = Protocol(59);

/// Rate limit with a burst, kept as one time: when the bucket would be empty again.
#[derive(Default)]
pub(super) struct Limiter {
    empty_at: Instant,
}

impl Limiter {
    fn allows(&mut self, now: Instant) -> bool {
        const EVERY: Duration = Duration::from_nanos(1_000_000_000 / ANSWERS_PER_S);
        const BURST: Duration = Duration::from_nanos(ANSWERS_BURST * 1_000_000_000 / ANSWERS_PER_S);
        let after = self.empty_at.max(now) + EVERY;
        let is_allowed = after.since(now) <= BURST;
        if is_allowed {
            self.empty_at = after;
        }
        is_allowed
    }
}

/// Addresses of an answer.
struct Back {
    /// An address of this host.
    src: IpAddr,
    dst: IpAddr,
    protocol: Protocol,
}

impl Interface {
    /// Sends an answer of `len` bytes, if the rate allows.
    fn answer(&mut self, now: Instant, back: Back, len: usize, write: impl FnOnce(&mut [u8])) {
        if !self.limiter.allows(now) {
            self.counters.limited += 1;
            return;
        }
        let is_sent = self.send(now, back, len, write).is_some();
        if is_sent {
            self.counters.answered += 1;
        } else {
            self.counters.own_dropped += 1;
        }
    }

    fn send(
        &mut self,
        now: Instant,
        back: Back,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> Option<()> {
        let fields = IpFields { src: back.src, dst: back.dst, dscp: 0, ecn: Ecn::NotCapable, len };
        let header_len = if back.dst.is_ipv4() { 20 } else { 40 };
        if header_len + len > self.mtu_to(now, back.dst) {
            return None;
        }
        let mut buffer = self.own.take_buffer()?;
        let written = self.write_ip(now, &fields, back.protocol, self.hop_limit, &mut buffer);
        let Ok(written) = written else {
            self.own.reuse(buffer);
            return None;
        };
        let end = written.len + len;
        write(&mut buffer[written.len..end]);
        if written.is_resolved {
            self.own.push(OwnFrame { buffer, len: end });
        } else {
            self.hold(now, back.dst, &buffer[..end], &[]);
            self.own.reuse(buffer);
        }
        Some(())
    }

    pub(super) fn receive_icmpv4<'f>(
        &mut self,
        now: Instant,
        header: &Ipv4Header,
        bytes: &[u8],
    ) -> Delivery<'f> {
        let message = match Icmpv4Message::parse(bytes) {
            Ok(message) => message,
            Err(malformed) => return self.dropped_as(malformed),
        };
        match message {
            Icmpv4Message::EchoRequest(echo) => {
                let back = Back {
                    src: header.dst.into(),
                    dst: header.src.into(),
                    protocol: Protocol::ICMP,
                };
                self.answer(now, back, bytes.len(), |buffer| {
                    Icmpv4Message::EchoReply(echo).emit(buffer);
                });
                Delivery::Nothing
            }
            Icmpv4Message::Unreachable { code, mtu, quoted } => {
                let quoted = QuotedSegment::parse_v4(quoted);
                let kind = |packet_len| match code {
                    icmpv4::FRAGMENTATION_NEEDED => too_big_v4(usize::from(mtu), packet_len),
                    // RFC 1122 4.2.3.9
                    icmpv4::PROTOCOL_UNREACHABLE | icmpv4::PORT_UNREACHABLE => {
                        Some(PathErrorKind::Hard)
                    }
                    _ => Some(PathErrorKind::Soft),
                };
                self.path_error(quoted.ok(), kind)
            }
            Icmpv4Message::TimeExceeded { quoted, .. }
            | Icmpv4Message::ParameterProblem { quoted, .. } => {
                let quoted = QuotedSegment::parse_v4(quoted);
                self.path_error(quoted.ok(), |_| Some(PathErrorKind::Soft))
            }
            Icmpv4Message::EchoReply(_) | Icmpv4Message::Other { .. } => Delivery::Nothing,
        }
    }

    /// Parses an error about the segment that it quotes; `None` if that is not plausible.
    fn path_error<'f>(
        &mut self,
        quoted: Option<QuotedSegment>,
        kind: impl FnOnce(usize) -> Option<PathErrorKind>,
    ) -> Delivery<'f> {
        let quoted = quoted.filter(|it| self.is_own(it.src.ip()));
        let Some((quoted, kind)) = quoted.and_then(|it| Some((it, kind(it.packet_len)?))) else {
            self.counters.malformed += 1;
            return Delivery::Nothing;
        };
        self.counters.path_errors += 1;
        Delivery::Error(PathError { local: quoted.src, remote: quoted.dst, seq: quoted.seq, kind })
    }

    /// Rejects a packet of a protocol other than TCP and ICMP.
    pub(super) fn refuse_v4(
        &mut self,
        now: Instant,
        header: &Ipv4Header,
        payload: &[u8],
        packet: &[u8],
        verified: Verified,
    ) {
        let pseudo_header = || {
            let len = payload.len() as u32;
            Sum::pseudo_header_v4(header.src, header.dst, Protocol::UDP.0, len)
        };
        let code = match header.protocol {
            Protocol::UDP if !is_datagram(payload, verified, pseudo_header) => {
                self.counters.malformed += 1;
                return;
            }
            Protocol::UDP => icmpv4::PORT_UNREACHABLE,
            _ => icmpv4::PROTOCOL_UNREACHABLE,
        };
        let quoted_len_max = ERROR_LEN_MAX_V4 - 20 - icmpv4::HEADER_LEN;
        let quoted = &packet[..packet.len().min(quoted_len_max)];
        let back =
            Back { src: header.dst.into(), dst: header.src.into(), protocol: Protocol::ICMP };
        let message = Icmpv4Message::Unreachable { code, mtu: 0, quoted };
        self.answer(now, back, icmpv4::HEADER_LEN + quoted.len(), |buffer| {
            message.emit(buffer);
        });
    }

    pub(super) fn receive_icmpv6<'f>(
        &mut self,
        now: Instant,
        header: &Ipv6Header,
        bytes: &[u8],
    ) -> Delivery<'f> {
        let message = match Icmpv6Message::parse(header.src, header.dst, bytes) {
            Ok(message) => message,
            Err(malformed) => return self.dropped_as(malformed),
        };
        match message {
            Icmpv6Message::Ndp(message) => self.receive_ndp(now, header, message),
            Icmpv6Message::EchoRequest(echo) => {
                self.answer_echo_v6(now, header, echo);
                Delivery::Nothing
            }
            Icmpv6Message::PacketTooBig { mtu, quoted } => {
                let quoted = QuotedSegment::parse_v6(quoted);
                self.path_error(quoted.ok(), |packet_len| {
                    let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
                    let can_be = (MTU_MIN_V6..packet_len).contains(&usize::from(mtu));
                    can_be.then_some(PathErrorKind::TooBig { mtu })
                })
            }
            Icmpv6Message::Unreachable { code, quoted } => {
                let kind = match code {
                    icmpv6::PORT_UNREACHABLE => PathErrorKind::Hard,
                    _ => PathErrorKind::Soft,
                };
                self.path_error(QuotedSegment::parse_v6(quoted).ok(), |_| Some(kind))
            }
            Icmpv6Message::ParameterProblem { code, quoted, .. } => {
                let kind = match code {
                    icmpv6::UNKNOWN_NEXT_HEADER => PathErrorKind::Hard,
                    _ => PathErrorKind::Soft,
                };
                self.path_error(QuotedSegment::parse_v6(quoted).ok(), |_| Some(kind))
            }
            Icmpv6Message::TimeExceeded { quoted, .. } => {
                let quoted = QuotedSegment::parse_v6(quoted).ok();
                self.path_error(quoted, |_| Some(PathErrorKind::Soft))
            }
            Icmpv6Message::Other { kind: mld::QUERY, code: 0, word, data } => {
                self.receive_query(now, header, word, data);
                Delivery::Nothing
            }
            Icmpv6Message::EchoReply(_) | Icmpv6Message::Other { .. } => Delivery::Nothing,
        }
    }

    fn answer_echo_v6(&mut self, now: Instant, header: &Ipv6Header, echo: IcmpEcho<'_>) {
        // A request to a group is not answered: it may have reached many hosts.
        if header.dst.is_multicast() || header.src.is_unspecified() {
            return;
        }
        let src = header.dst;
        let dst = header.src;
        let back = Back { src: src.into(), dst: dst.into(), protocol: Protocol::ICMPV6 };
        let len = icmpv6::HEADER_LEN + echo.data.len();
        self.answer(now, back, len, |buffer| {
            Icmpv6Message::EchoReply(echo).emit(src, dst, buffer);
        });
    }

    fn receive_ndp<'f>(
        &mut self,
        now: Instant,
        header: &Ipv6Header,
        message: NdpMessage,
    ) -> Delivery<'f> {
        if header.hop_limit != NDP_HOP_LIMIT {
            self.counters.bad_sources += 1;
            return Delivery::Nothing;
        }
        let src = IpAddr::V6(header.src);
        match message {
            NdpMessage::NeighborSolicitation { target, source } if self.is_own(target.into()) => {
                if header.src.is_unspecified() {
                    // RFC 4861 7.1.1
                    if header.dst != solicited_node(target) || source.is_some() {
                        self.counters.malformed += 1;
                        return Delivery::Nothing;
                    }
                    // Another host wants to have this address. RFC 4862 5.4.3
                    self.counters.conflicts += 1;
                    self.advertise(target);
                } else {
                    if let Some(mac) = source.filter(|mac| self.may_be_neighbor(src, *mac)) {
                        self.neighbors.solicited(now, src, mac, true);
                    }
                    self.advertise_to(now, target, header.src, source);
                }
                self.counters.answered += 1;
            }
            NdpMessage::NeighborAdvertisement {
                target, link, is_solicited, is_override, ..
            } => {
                let is_conflict = self.is_own(target.into());
                // An advertisement to a group cannot be an answer. RFC 4861 7.1.2
                let is_wrong = header.dst.is_multicast() && is_solicited;
                self.counters.conflicts += u64::from(is_conflict);
                self.counters.malformed += u64::from(is_wrong);
                let link = link.filter(|mac| mac.is_unicast());
                if !is_conflict && !is_wrong {
                    let address = target.into();
                    let neighbors = &mut self.neighbors;
                    neighbors.advertised(now, address, link, is_solicited, is_override);
                }
            }
            // RFC 4861 6.1.2: from its link-local address.
            NdpMessage::RouterAdvertisement(router) if header.src.is_unicast_link_local() => {
                if let Some(mac) = router.source.filter(|mac| self.may_be_neighbor(src, *mac)) {
                    self.neighbors.solicited(now, src, mac, true);
                }
                let until = now + router.lifetime;
                self.routes.router_advertised(now, header.src, until);
                if !router.lifetime.is_zero() {
                    self.announcement.stop_soliciting();
                }
                if let Some(mtu) = router.mtu {
                    self.mtu_v6 = (mtu as usize).clamp(MTU_MIN_V6, self.mtu.max(MTU_MIN_V6));
                }
            }
            NdpMessage::RouterSolicitation { .. }
            | NdpMessage::RouterAdvertisement(_)
            | NdpMessage::NeighborSolicitation { .. } => {}
        }
        Delivery::Nothing
    }

    fn may_be_neighbor(&self, address: IpAddr, mac: ethernet::EthernetAddress) -> bool {
        mac.is_unicast() && mac != self.mac && self.routes.is_on_link(address)
    }

    /// Rejects a packet of a protocol other than TCP and ICMP, which is named at `next_header_at`.
    pub(super) fn refuse_v6(
        &mut self,
        now: Instant,
        header: &Ipv6Header,
        upper: ipv6::UpperLayer<'_>,
        packet: &[u8],
        verified: Verified,
    ) {
        let pseudo_header = || {
            let len = upper.payload.len() as u32;
            Sum::pseudo_header_v6(header.src, header.dst, Protocol::UDP.0, len)
        };
        match upper.protocol {
            NO_NEXT_HEADER => {}
            Protocol::UDP if !is_datagram(upper.payload, verified, pseudo_header) => {
                self.counters.malformed += 1;
            }
            Protocol::UDP => {
                let code = icmpv6::PORT_UNREACHABLE;
                self.send_error_v6(now, header, packet, |quoted| Icmpv6Message::Unreachable {
                    code,
                    quoted,
                });
            }
            _ => {
                let code = icmpv6::UNKNOWN_NEXT_HEADER;
                let pointer = upper.next_header_at as u32;
                let problem = |quoted| Icmpv6Message::ParameterProblem { code, pointer, quoted };
                self.send_error_v6(now, header, packet, problem);
            }
        }
    }

    /// Sends an ICMPv6 error to the sender of `packet`.
    pub(super) fn send_error_v6<'p>(
        &mut self,
        now: Instant,
        header: &Ipv6Header,
        packet: &'p [u8],
        message: impl FnOnce(&'p [u8]) -> Icmpv6Message<'p>,
    ) {
        // No error to an unspecified source, and none about an error. RFC 4443 2.4 (e)
        if header.src.is_unspecified() || is_icmpv6_error(header, packet) {
            return;
        }
        // The answer to a packet for a group comes from one of this host's own addresses.
        let src = if header.dst.is_multicast() {
            self.routes.source_for(header.src.into())
        } else {
            Some(header.dst.into())
        };
        let Some(IpAddr::V6(src)) = src else {
            return;
        };
        let quoted_len_max = ERROR_LEN_MAX_V6 - ipv6::HEADER_LEN - icmpv6::HEADER_LEN;
        let quoted = &packet[..packet.len().min(quoted_len_max)];
        let back = Back { src: src.into(), dst: header.src.into(), protocol: Protocol::ICMPV6 };
        let message = message(quoted);
        let dst = header.src;
        self.answer(now, back, icmpv6::HEADER_LEN + quoted.len(), |buffer| {
            message.emit(src, dst, buffer);
        });
    }
}

/// Plausible MTU in a router's report. RFC 5927 7.2: it is below the length that did not fit. If
/// the router names none, the next lower common length is tried. RFC 1191 5
fn too_big_v4(mtu: usize, packet_len: usize) -> Option<PathErrorKind> {
    const LINK_MTU_MIN: usize = 68;
    let mtu = if mtu == 0 { plateau_below(packet_len) } else { mtu };
    let can_be = (LINK_MTU_MIN..packet_len).contains(&mtu);
    can_be.then_some(PathErrorKind::TooBig { mtu: mtu as u16 })
}

/// True for a datagram that arrived intact.
fn is_datagram(bytes: &[u8], verified: Verified, pseudo_header: impl FnOnce() -> Sum) -> bool {
    match UdpHeader::parse(bytes) {
        Ok((header, _)) => {
            header.checksum == 0
                || verified == Verified::Transport
                || (pseudo_header() + Sum::of(bytes)).is_right()
        }
        Err(_) => false,
    }
}

/// True if a packet whose extension headers could not be read to the end may be an error.
fn is_icmpv6_error(header: &Ipv6Header, packet: &[u8]) -> bool {
    let kind = packet.get(ipv6::HEADER_LEN);
    header.next_header == Protocol::ICMPV6 && kind.is_none_or(|kind| *kind < 128)
}
