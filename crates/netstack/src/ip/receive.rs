//! Reception: checks each frame from the outside in, and sorts it.

use std::net::IpAddr;

use super::{Arrived, Delivery, Interface, route};
use crate::device::{Frame, Verified};
use crate::time::Instant;
use crate::wire::arp::{ArpOperation, ArpPacket};
use crate::wire::checksum::Sum;
use crate::wire::ethernet::{EtherType, EthernetHeader};
use crate::wire::icmpv6::Icmpv6Message;
use crate::wire::ipv4::Ipv4Header;
use crate::wire::ipv6::{self, ExtensionError, Ipv6Header};
use crate::wire::tcp::{self, Segment};
use crate::wire::{Ecn, Malformed, Protocol};

impl Interface {
    /// Reads a frame.
    pub fn receive<'f>(&mut self, now: Instant, frame: Frame<'f>) -> Delivery<'f> {
        self.counters.frames += 1;
        let Ok((header, payload)) = EthernetHeader::parse(frame.bytes) else {
            self.counters.malformed += 1;
            return Delivery::Nothing;
        };
        let is_ours = header.dst == self.mac;
        if !is_ours && header.dst.is_unicast() {
            self.counters.to_other_hosts += 1;
            return Delivery::Nothing;
        }
        if !header.src.is_unicast() || header.src == self.mac {
            self.counters.bad_sources += 1;
            return Delivery::Nothing;
        }
        match header.ethertype {
            EtherType::IPV4 => self.receive_v4(now, frame, payload, is_ours),
            EtherType::IPV6 => self.receive_v6(now, frame, payload, is_ours),
            EtherType::ARP => {
                self.receive_arp(now, payload);
                Delivery::Nothing
            }
            _ => {
                self.counters.unknown += 1;
                Delivery::Nothing
            }
        }
    }

    fn receive_arp(&mut self, now: Instant, payload: &[u8]) {
        let Ok(packet) = ArpPacket::parse(payload) else {
            self.counters.malformed += 1;
            return;
        };
        if !packet.sender_mac.is_unicast() || packet.sender_mac == self.mac {
            self.counters.bad_sources += 1;
            return;
        }
        let sender = IpAddr::V4(packet.sender_ip);
        let target = IpAddr::V4(packet.target_ip);
        if self.is_own(sender) {
            self.counters.conflicts += 1;
            return;
        }
        let is_for_us = self.is_own(target);
        // A probe has no sender yet: RFC 5227 2.1.1. Others are neighbours only if on this link.
        if self.routes.is_on_link(sender) {
            match packet.operation {
                ArpOperation::Request => {
                    self.neighbors.solicited(now, sender, packet.sender_mac, is_for_us);
                }
                ArpOperation::Reply => {
                    let mac = Some(packet.sender_mac);
                    self.neighbors.advertised(now, sender, mac, is_for_us, true);
                }
            }
        }
        if is_for_us && packet.operation == ArpOperation::Request {
            self.counters.answered += 1;
            let reply = ArpPacket {
                operation: ArpOperation::Reply,
                sender_mac: self.mac,
                sender_ip: packet.target_ip,
                target_mac: packet.sender_mac,
                target_ip: packet.sender_ip,
            };
            self.send_arp_to(packet.sender_mac, reply);
        }
    }

    fn receive_v4<'f>(
        &mut self,
        now: Instant,
        frame: Frame<'f>,
        packet: &'f [u8],
        is_to_one: bool,
    ) -> Delivery<'f> {
        let parsed = match frame.segment_len {
            None => Ipv4Header::parse(packet),
            Some(_) => Ipv4Header::parse_merged(packet),
        };
        let (header, payload) = match parsed {
            Ok(parsed) => parsed,
            Err(malformed) => return self.dropped_as(malformed),
        };
        let src = IpAddr::V4(header.src);
        let dst = IpAddr::V4(header.dst);
        // Packets for a group or a broadcast address: nothing here listens. RFC 1122 3.2.1.3, 3.3.6
        if !is_to_one || !self.is_own(dst) {
            self.counters.to_other_hosts += 1;
            return Delivery::Nothing;
        }
        if !route::is_one_host_v4(header.src) || self.is_own(src) || self.routes.is_broadcast(src) {
            self.counters.bad_sources += 1;
            return Delivery::Nothing;
        }
        if header.is_fragment() {
            self.counters.fragments += 1;
            return Delivery::Nothing;
        }
        match header.protocol {
            Protocol::TCP => {
                let sum = || {
                    let len = payload.len() as u32;
                    Sum::pseudo_header_v4(header.src, header.dst, Protocol::TCP.0, len)
                };
                self.receive_tcp(frame, src, dst, header.ecn, payload, sum)
            }
            Protocol::ICMP => self.receive_icmpv4(now, &header, payload),
            _ => {
                // Excludes the frame's padding.
                let len = packet.len().min(usize::from(u16::from_be_bytes([packet[2], packet[3]])));
                self.refuse_v4(now, &header, payload, &packet[..len], frame.verified);
                Delivery::Nothing
            }
        }
    }

    fn receive_v6<'f>(
        &mut self,
        now: Instant,
        frame: Frame<'f>,
        packet: &'f [u8],
        is_to_one: bool,
    ) -> Delivery<'f> {
        let (header, payload) = match Ipv6Header::parse(packet) {
            Ok(parsed) => parsed,
            Err(malformed) => return self.dropped_as(malformed),
        };
        let src = IpAddr::V6(header.src);
        let dst = IpAddr::V6(header.dst);
        let is_to_group = header.dst.is_multicast();
        let is_ours = if is_to_group {
            self.routes.listens_to(header.dst)
        } else {
            is_to_one && self.is_own(dst)
        };
        if !is_ours {
            self.counters.to_other_hosts += 1;
            return Delivery::Nothing;
        }
        if self.is_own(src) {
            // Another host that uses this address answers a question for it from there, with a hop
            // limit that no router has lowered. RFC 4861 7.2.4
            match header.hop_limit {
                255 => self.counters.conflicts += 1,
                _ => self.counters.bad_sources += 1,
            }
            return Delivery::Nothing;
        }
        if !route::may_send_v6(header.src) {
            self.counters.bad_sources += 1;
            return Delivery::Nothing;
        }
        let whole = &packet[..ipv6::HEADER_LEN + payload.len()];
        let upper = match ipv6::upper_layer(header.next_header, payload) {
            Ok(upper) => upper,
            Err(ExtensionError::Malformed(malformed)) => return self.dropped_as(malformed),
            Err(error) => {
                self.counters.extensions += 1;
                if let ExtensionError::ParameterProblem { code, pointer, even_of_group } = error
                    && (!is_to_group || even_of_group)
                {
                    let problem =
                        |quoted| Icmpv6Message::ParameterProblem { code, pointer, quoted };
                    self.send_error_v6(now, &header, whole, problem);
                }
                return Delivery::Nothing;
            }
        };
        if upper.is_fragment {
            self.counters.fragments += 1;
            return Delivery::Nothing;
        }
        match upper.protocol {
            Protocol::TCP if !is_to_group && !header.src.is_unspecified() => {
                let sum = || {
                    let len = upper.payload.len() as u32;
                    Sum::pseudo_header_v6(header.src, header.dst, Protocol::TCP.0, len)
                };
                self.receive_tcp(frame, src, dst, header.ecn, upper.payload, sum)
            }
            Protocol::ICMPV6 => self.receive_icmpv6(now, &header, upper.payload),
            _ if is_to_group => Delivery::Nothing,
            _ => {
                self.refuse_v6(now, &header, upper, whole, frame.verified);
                Delivery::Nothing
            }
        }
    }

    fn receive_tcp<'f>(
        &mut self,
        frame: Frame<'f>,
        src: IpAddr,
        dst: IpAddr,
        ecn: Ecn,
        bytes: &'f [u8],
        pseudo_header: impl FnOnce() -> Sum,
    ) -> Delivery<'f> {
        let segment = match Segment::parse(bytes) {
            Ok(segment) => segment,
            Err(malformed) => return self.dropped_as(malformed),
        };
        if frame.verified == Verified::No && !tcp::checksum_fits(pseudo_header(), bytes) {
            self.counters.checksums += 1;
            return Delivery::Nothing;
        }
        self.counters.segments += 1;
        Delivery::Segment(Arrived { src, dst, ecn, segment_len: frame.segment_len, segment })
    }

    pub(super) fn dropped_as<'f>(&mut self, malformed: Malformed) -> Delivery<'f> {
        match malformed {
            Malformed::Checksum => self.counters.checksums += 1,
            _ => self.counters.malformed += 1,
        }
        Delivery::Nothing
    }
}
