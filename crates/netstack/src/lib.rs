//! A TCP/IP stack in user space, as a state machine: frames and the time go in, frames come out.
//!
//! It starts no threads, reads no clock and allocates nothing for a packet. So it runs in virtual
//! time as well, over a link that loses, doubles and reorders frames by a seed, and the same seed
//! repeats the run.
//!
//! # Floors
//!
//! ```text
//!   interface_config  device, addresses, gateways, MTU; opened as one netstack for each shard
//!   stack             one shard: timers, receive burst, handlers, transmit burst
//!   tcp               connections: states, retransmission, congestion control
//!   ip                own addresses, routes, ICMP, path MTU
//!   neighbor          cache of Ethernet addresses: ARP and neighbour discovery
//!   device            mem, tap, packet, xdp; Impair wraps one
//!   wire              headers to bytes and back; checksums
//!   time              an instant, counted from a start of the caller's choice
//! ```
//!
//! Each floor knows only those below it. Only `device` makes system calls, except that
//! `interface_config` reads a random key.

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
