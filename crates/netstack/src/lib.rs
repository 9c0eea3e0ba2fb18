//! A TCP/IP stack in user space: a machine that is handed frames and the time, and hands frames
//! back.
//!
//! It starts no threads, reads no clock and allocates nothing for a packet. So it can be run in
//! virtual time, over a link that loses, doubles and reorders frames as a seed says, and the same
//! seed gives the same run again.
//!
//! # Floors
//!
//! ```text
//!   interface_config  device, addresses, gateways, MTU of a host; opened: a netstack a shard
//!   stack       one shard: timers, receive burst, handlers, transmit burst
//!   tcp         connections: states, retransmission, congestion control
//!   ip          own addresses, routes, ICMP, path MTU
//!   neighbor    who has which address on this link: ARP and neighbour discovery
//!   device      where frames come from and go to: mem, tap, packet, xdp; Impair and Pcap around one
//!   wire        bytes as headers and headers as bytes; checksums
//!   time        an instant, counted from where the caller likes
//! ```
//!
//! Each knows only those below it. `device` is the one place with system calls, but
//! for the key that `interface_config` draws.

#![warn(missing_docs)]
#![deny(unsafe_code)]

pub mod device;
pub mod interface_config;
pub mod ip;
pub mod neighbor;
pub mod stack;
pub mod tcp;
pub mod time;
pub mod wire;

pub use stack::frames::Netstack;
