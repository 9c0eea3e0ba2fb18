//! Segment between two hosts on one link, for the measuring examples.

use std::net::{IpAddr, Ipv4Addr};

use netstack::ip::{Interface, IpConfig, Prefix};
use netstack::time::Instant;
use netstack::wire::ethernet::EthernetAddress;
use netstack::wire::tcp::{Flags, Segment, SeqNumber, TcpOptions};

/// The length of its header.
pub(crate) const TCP_LEN: usize = 32;

pub(crate) const SEGMENT: Segment<'static> = Segment {
    src_port: 80,
    dst_port: 4000,
    seq: SeqNumber(1),
    ack: Some(SeqNumber(2)),
    flags: Flags::PSH,
    window: 1000,
    urgent: 0,
    options: TcpOptions { timestamps: Some((1, 2)), ..TcpOptions::NONE },
    payload: &[],
};

pub(crate) fn address(host: u8) -> IpAddr {
    Ipv4Addr::new(10, 9, 0, host).into()
}

fn mac(host: u8) -> EthernetAddress {
    EthernetAddress([2, 0, 0, 0, 0, host])
}

/// Interface of one host, which knows the other's Ethernet address.
pub(crate) fn interface(host: u8, peer: u8) -> Interface {
    let mut interface = Interface::new(IpConfig {
        mac: mac(host),
        mtu: 1500,
        addresses: vec![Prefix { address: address(host), len: 24 }],
        gateway_v4: None,
        gateway_v6: None,
    });
    let neighbors = interface.neighbors();
    neighbors.fix(Instant::START, address(peer), mac(peer));
    interface
}
