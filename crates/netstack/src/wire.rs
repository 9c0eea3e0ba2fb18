//! Packet formats: parsers and emitters of headers, without copies, allocations or state.
//!
//! A parser takes a slice and returns a small value for the header and the rest of the slice. It
//! checks the conditions under which the value makes sense, such as lengths and the checksums of
//! its own layer; the layers above decide the reaction. An emitter writes such a value into a slice
//! and returns its length. `parse(emit(x)) == x` for each of them.
//!
//! ```text
//!   ethernet ─┬─ arp
//!             ├─ ipv4 ─┬─ icmpv4 ── quoted
//!             │        └─ tcp, udp
//!             └─ ipv6 ─┬─ icmpv6 ── quoted, ndp, mld
//!                      └─ tcp, udp
//!   vnet      before a frame, between a virtual device and its user
//!   checksum  of all of them
//! ```
//!
//! Fields that the netstack neither reads nor sets, such as IPv4's options, are passed over when
//! they come and are not emitted.

pub mod arp;
pub mod checksum;
pub mod ethernet;
pub mod icmpv4;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
pub mod mld;
pub mod ndp;
pub mod quoted;
pub mod tcp;
pub mod udp;
pub mod vnet;

/// Reason why bytes are malformed. The frame is dropped and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The bytes end before the header does, or before the length in the header.
    Truncated,
    /// An invalid version, type or length field.
    Header,
    /// The checksum does not fit the bytes.
    Checksum,
}

/// Payload of an IP packet: the number in IPv4's protocol and IPv6's next-header field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Protocol(pub u8);

impl Protocol {
    /// Options of IPv6 that each router examines; the next header follows.
    pub const HOP_BY_HOP: Protocol = Protocol(0);
    /// ICMP for IPv4.
    pub const ICMP: Protocol = Protocol(1);
    /// TCP.
    pub const TCP: Protocol = Protocol(6);
    /// UDP.
    pub const UDP: Protocol = Protocol(17);
    /// ICMP for IPv6.
    pub const ICMPV6: Protocol = Protocol(58);
}

/// Explicit congestion notification: marks in place of drops. RFC 3168 5
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ecn {
    /// The sender does not understand marks.
    #[default]
    NotCapable,
    /// Capable: ECT(1).
    Capable1,
    /// Capable: ECT(0), the one that most senders set.
    Capable0,
    /// A router was congested.
    Congested,
}

/// A class of service (DSCP) has six bits. RFC 2474 3
pub const DSCP_MAX: u8 = 0x3f;

/// DSCP in IPv4's type of service or IPv6's traffic class.
const fn dscp_of(class: u8) -> u8 {
    class >> 2
}

impl Ecn {
    /// ECN codepoint in IPv4's type of service or IPv6's traffic class.
    pub const fn of_traffic_class(class: u8) -> Ecn {
        match class & 0b11 {
            0b00 => Ecn::NotCapable,
            0b01 => Ecn::Capable1,
            0b10 => Ecn::Capable0,
            _ => Ecn::Congested,
        }
    }

    /// The two bits.
    pub const fn bits(self) -> u8 {
        match self {
            Ecn::NotCapable => 0b00,
            Ecn::Capable1 => 0b01,
            Ecn::Capable0 => 0b10,
            Ecn::Congested => 0b11,
        }
    }
}

/// The two bytes at `at`, in network order. The caller has checked the length.
fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The four bytes at `at`, in network order. The caller has checked the length.
fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The bytes from `at` on. The caller has checked the length.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

fn put16(buffer: &mut [u8], at: usize, value: u16) {
    put(buffer, at, &value.to_be_bytes());
}

fn put32(buffer: &mut [u8], at: usize, value: u32) {
    put(buffer, at, &value.to_be_bytes());
}

fn put(buffer: &mut [u8], at: usize, bytes: &[u8]) {
    buffer[at..at + bytes.len()].copy_from_slice(bytes);
}

/// The first `len` bytes and the rest.
fn split(bytes: &[u8], len: usize) -> Result<(&[u8], &[u8]), Malformed> {
    bytes.split_at_checked(len).ok_or(Malformed::Truncated)
}
