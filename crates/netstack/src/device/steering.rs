//! Steering of segments to queues, by a rule that the kernel follows and a shard knows: so it can
//! open connections whose answers come to its own queue.
//!
//! ```text
//!   mixed = ((one port ^ other port) · 0x9e3779b1) mod 2^32      queue = mixed / 2^16 mod queues
//! ```
//!
//! A client's ports lie side by side, and Linux takes every second one; the product spreads them.
//! Knuth, The Art of Computer Programming 3, 6.4. The kernel's own hashes have a secret, and
//! this rule has none: a peer can choose its shard, and a flood can aim at one.
//!
//! Frames that are not TCP come to the first queue, and so does TCP behind an extension header of
//! IPv6.
//!
//! | device | how the kernel is told |
//! |---|---|
//! | TAP | a program picks the queue of each frame: `TUNSETSTEERINGEBPF`, which needs `CAP_BPF` |
//! | packet socket | a classic program picks the member of the group: `PACKET_FANOUT_CBPF` |
//! | AF_XDP | not at all: the card distributes the frames |

use super::bpf::{Instruction, code, instruction};
use super::others::{ETHERTYPE_AT, PROTOCOL_V4_AT, PROTOCOL_V6_AT};
use crate::wire::ethernet::EtherType;
use crate::wire::{Protocol, ethernet, ipv6};

/// The golden ratio's part of 2^32, as a prime.
const MULTIPLIER: u32 = 0x9e37_79b1;

/// Share of the frames that a queue receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    /// All frames: there is one queue.
    Whole,
    /// Share by the rule over port numbers.
    ByPorts { own: u32, queues: u32 },
    /// Something else steers the frames.
    Unknown,
}

impl Share {
    /// Share of queue `own` of `queues`; `is_ruled` if the kernel follows the rule.
    pub(super) fn of(own: usize, queues: usize, is_ruled: bool) -> Share {
        match queues {
            1 => Share::Whole,
            _ if is_ruled => Share::ByPorts { own: own as u32, queues: queues as u32 },
            _ => Share::Unknown,
        }
    }

    /// [`Device::takes`](super::Device::takes)
    pub(super) fn takes(self, local_port: u16, remote_port: u16) -> Option<bool> {
        match self {
            Share::Whole => Some(true),
            Share::ByPorts { own, queues } => {
                Some(queue_of(local_port, remote_port, queues) == own)
            }
            Share::Unknown => None,
        }
    }
}

fn queue_of(local_port: u16, remote_port: u16, queues: u32) -> u32 {
    let mixed = u32::from(local_port ^ remote_port).wrapping_mul(MULTIPLIER);
    (mixed >> 16) % queues
}

/// The rule for the kernel, up to the remainder, which it takes itself. It sees a frame from its
/// Ethernet header on.
///
/// ```text
///    0   r6 = r1                       where loads from the frame look
///    1   r0 = ethertype
///    2   if r0 != IPv4 goto 9
///    3   r0 = IPv4's protocol
///    4   if r0 != TCP goto 21
///    5   r0 = (first byte & 0xf) << 2  the length of IPv4's header
///    8   goto 13
///    9   if r0 != IPv6 goto 21
///   10   r0 = IPv6's next header
///   11   if r0 != TCP goto 21
///   12   r0 = 40                       the length of IPv6's header
///   13   r7 = r0
///   14   r0 = the port behind; r8 = r0
///   16   r0 = the other port
///   17   r0 ^= r8; r0 *= MULTIPLIER; r0 >>= 16
///   20   exit
///   21   r0 = 0; exit
/// ```
pub(super) fn program() -> [Instruction; 23] {
    const IP_AT: i32 = ethernet::HEADER_LEN as i32;
    let ethertype = |it: EtherType| i32::from(it.0);
    let tcp = i32::from(Protocol::TCP.0);
    [
        instruction(code::MOVE, 6, 1, 0, 0),
        instruction(code::LOAD_FRAME_HALF, 0, 0, 0, ETHERTYPE_AT as i32),
        instruction(code::JUMP_UNLESS_EQUAL, 0, 0, 6, ethertype(EtherType::IPV4)),
        instruction(code::LOAD_FRAME_BYTE, 0, 0, 0, PROTOCOL_V4_AT as i32),
        instruction(code::JUMP_UNLESS_EQUAL, 0, 0, 16, tcp),
        instruction(code::LOAD_FRAME_BYTE, 0, 0, 0, IP_AT),
        instruction(code::AND_IMMEDIATE, 0, 0, 0, 0xf),
        instruction(code::SHIFT_LEFT_IMMEDIATE, 0, 0, 0, 2),
        instruction(code::JUMP, 0, 0, 4, 0),
        instruction(code::JUMP_UNLESS_EQUAL, 0, 0, 11, ethertype(EtherType::IPV6)),
        instruction(code::LOAD_FRAME_BYTE, 0, 0, 0, PROTOCOL_V6_AT as i32),
        instruction(code::JUMP_UNLESS_EQUAL, 0, 0, 9, tcp),
        instruction(code::MOVE_IMMEDIATE, 0, 0, 0, ipv6::HEADER_LEN as i32),
        instruction(code::MOVE, 7, 0, 0, 0),
        instruction(code::LOAD_FRAME_HALF_BEHIND, 0, 7, 0, IP_AT),
        instruction(code::MOVE, 8, 0, 0, 0),
        instruction(code::LOAD_FRAME_HALF_BEHIND, 0, 7, 0, IP_AT + 2),
        instruction(code::EXCLUSIVE_OR, 0, 8, 0, 0),
        instruction(code::MULTIPLY_WORD, 0, 0, 0, MULTIPLIER as i32),
        instruction(code::SHIFT_RIGHT_WORD, 0, 0, 0, 16),
        instruction(code::EXIT, 0, 0, 0, 0),
        instruction(code::MOVE_IMMEDIATE, 0, 0, 0, 0),
        instruction(code::EXIT, 0, 0, 0, 0),
    ]
}

/// The same for the members of a group of packet sockets, as a classic program: it sees a frame
/// from IP's header on.
///
/// ```text
///    0   a = ethertype
///    1   if a != IPv4 goto 6
///    2   a = IPv4's protocol
///    3   if a != TCP goto 18
///    4   x = the length of IPv4's header; goto 10
///    6   if a != IPv6 goto 18
///    7   a = IPv6's next header
///    8   if a != TCP goto 18
///    9   x = 40
///   10   m[0] = the port at x
///   12   a = the port at x + 2; x = m[0]
///   14   a ^= x; a *= MULTIPLIER; a >>= 16
///   17   return a
///   18   return 0
/// ```
pub(super) fn group_program() -> [libc::sock_filter; 19] {
    use libc::{
        BPF_A, BPF_ABS, BPF_ALU, BPF_B, BPF_H, BPF_IMM, BPF_IND, BPF_JA, BPF_JEQ, BPF_JMP, BPF_K,
        BPF_LD, BPF_LDX, BPF_MEM, BPF_MSH, BPF_MUL, BPF_RET, BPF_RSH, BPF_ST, BPF_W, BPF_X,
        BPF_XOR,
    };
    const ETHERTYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL) as u32;
    const TCP: u32 = Protocol::TCP.0 as u32;
    let jump = |code: u32, jf, k| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let step = |code, k| jump(code, 0, k);
    [
        step(BPF_LD | BPF_W | BPF_ABS, ETHERTYPE),
        jump(BPF_JMP | BPF_JEQ | BPF_K, 4, EtherType::IPV4.0.into()),
        step(BPF_LD | BPF_B | BPF_ABS, (PROTOCOL_V4_AT - ethernet::HEADER_LEN) as u32),
        jump(BPF_JMP | BPF_JEQ | BPF_K, 14, TCP),
        step(BPF_LDX | BPF_B | BPF_MSH, 0),
        step(BPF_JMP | BPF_JA, 4),
        jump(BPF_JMP | BPF_JEQ | BPF_K, 11, EtherType::IPV6.0.into()),
        step(BPF_LD | BPF_B | BPF_ABS, (PROTOCOL_V6_AT - ethernet::HEADER_LEN) as u32),
        jump(BPF_JMP | BPF_JEQ | BPF_K, 9, TCP),
        step(BPF_LDX | BPF_W | BPF_IMM, ipv6::HEADER_LEN as u32),
        step(BPF_LD | BPF_H | BPF_IND, 0),
        step(BPF_ST, 0),
        step(BPF_LD | BPF_H | BPF_IND, 2),
        step(BPF_LDX | BPF_W | BPF_MEM, 0),
        step(BPF_ALU | BPF_XOR | BPF_X, 0),
        step(BPF_ALU | BPF_MUL | BPF_K, MULTIPLIER),
        step(BPF_ALU | BPF_RSH | BPF_K, 16),
        step(BPF_RET | BPF_A, 0),
        step(BPF_RET | BPF_K, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_share_a_queue() {
        for port in (1..u16::MAX).step_by(997) {
            assert_eq!(queue_of(80, port, 7), queue_of(port, 80, 7));
            let shares = (0..7).map(|own| Share::of(own, 7, true).takes(port, 80));
            assert_eq!(shares.filter(|takes| *takes == Some(true)).count(), 1);
        }
    }

    #[test]
    fn even_client_ports_are_spread() {
        for queues in [2, 3, 4, 8, 16] {
            let mut counts = vec![0; queues as usize];
            let ports = (32_768_u16..61_000).step_by(2);
            let mean = ports.len() / queues as usize;
            ports.for_each(|port| counts[queue_of(80, port, queues) as usize] += 1);
            let is_near = |count: &usize| (mean * 9 / 10..=mean * 11 / 10).contains(count);
            assert!(counts.iter().all(is_near), "{counts:?}");
        }
    }

    #[test]
    fn without_a_rule_the_queue_is_unknown() {
        assert_eq!(Share::of(1, 2, false).takes(1, 2), None);
        assert_eq!(Share::of(0, 1, false).takes(1, 2), Some(true));
    }
}
