//! ARP for IPv4 over Ethernet. RFC 826
//!
//! ```text
//!   | hardware 1 | protocol 0x0800 | 6 | 4 | operation |
//!   | sender MAC 6 | sender IP 4 | target MAC 6 | target IP 4 |
//! ```

use std::net::Ipv4Addr;

use super::ethernet::{EtherType, EthernetAddress};
use super::{Malformed, array, be16, put, put16, split};

/// The packet's length.
pub const PACKET_LEN: usize = 28;

const ETHERNET: u16 = 1;

/// Operation of an ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArpOperation {
    /// "Who has the target IP?"
    Request,
    /// "I have the sender IP."
    Reply,
}

/// An ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpPacket {
    /// Operation.
    pub operation: ArpOperation,
    /// Sender's Ethernet address.
    pub sender_mac: EthernetAddress,
    /// Sender's IP address; unspecified in a probe. RFC 5227 1.1
    pub sender_ip: Ipv4Addr,
    /// Target's Ethernet address; meaningless in a request.
    pub target_mac: EthernetAddress,
    /// Target's IP address; the sender's own in an announcement. RFC 5227 1.1
    pub target_ip: Ipv4Addr,
}

impl ArpPacket {
    /// Reads a packet. What follows it is the frame's padding.
    ///
    /// # Errors
    ///
    /// [`Malformed::Truncated`]; [`Malformed::Header`] if it is about other kinds of addresses, or
    /// another operation.
    pub fn parse(bytes: &[u8]) -> Result<ArpPacket, Malformed> {
        let (packet, _) = split(bytes, PACKET_LEN)?;
        let is_ours = be16(packet, 0) == ETHERNET
            && be16(packet, 2) == EtherType::IPV4.0
            && packet[4..6] == [6, 4];
        let operation = match be16(packet, 6) {
            1 if is_ours => ArpOperation::Request,
            2 if is_ours => ArpOperation::Reply,
            _ => return Err(Malformed::Header),
        };
        Ok(ArpPacket {
            operation,
            sender_mac: EthernetAddress(array(packet, 8)),
            sender_ip: array::<4>(packet, 14).into(),
            target_mac: EthernetAddress(array(packet, 18)),
            target_ip: array::<4>(packet, 24).into(),
        })
    }

    /// Writes the packet to the beginning of `buffer` and returns its length.
    ///
    /// # Panics
    ///
    /// If `buffer` is shorter.
    pub fn emit(&self, buffer: &mut [u8]) -> usize {
        put16(buffer, 0, ETHERNET);
        put16(buffer, 2, EtherType::IPV4.0);
        put(buffer, 4, &[6, 4]);
        let operation = match self.operation {
            ArpOperation::Request => 1,
            ArpOperation::Reply => 2,
        };
        put16(buffer, 6, operation);
        put(buffer, 8, &self.sender_mac.0);
        put(buffer, 14, &self.sender_ip.octets());
        put(buffer, 18, &self.target_mac.0);
        put(buffer, 24, &self.target_ip.octets());
        PACKET_LEN
    }
}
