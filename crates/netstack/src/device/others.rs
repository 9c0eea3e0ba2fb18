//! Limit on frames that are not TCP: ARP, neighbour discovery, ICMP, and floods of anything else.
//!
//! Anyone on the link can send more of them than a shard can take. They would fill its ring or
//! queue, and a SYN that does not fit is repeated only after a second. So such frames are limited
//! on their way to a shard:
//!
//! | device | where | what is refused |
//! |---|---|---|
//! | packet socket, AF_XDP | a program in the kernel | frames beyond the [`Limit`] that the shard has set |
//! | TAP | after the read | frames beyond [`WHILE_BEHIND`] in a burst of a shard that [lags](Lag) |
//!
//! ```text
//!   the limit of a queue, in a map     | left i64 | refused u64 | passes_at u64 |
//!                                        ▲ the shard sets it, the program counts it down
//! ```
//!
//! The program counts a frame before the kernel knows whether it can deliver it. If all counted
//! frames are lost, nothing wakes the shard; so the program lets one frame through beyond the limit
//! every [`PASSES_EVERY_NS`].
//!
//! TCP behind an extension header of IPv6 is not recognized, and is limited as well.

#![allow(unsafe_code)]

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::bpf::{self, Instruction, code, instruction};
use super::mapping::Mapping;
use crate::wire::{Protocol, ethernet};

/// Frames that may come after a shard has drained its queue: half of the shortest ring.
const WHILE_DRAINED: i64 = 128;

/// Frames that may come with each burst while a shard lags.
pub(super) const WHILE_BEHIND: usize = 16;

/// Interval at which one frame passes beyond the limit. A shard that stands still for ten seconds
/// finds no more of them than its queue holds.
const PASSES_EVERY_NS: i32 = 100_000_000;

/// Offset of the EtherType in a frame, and of the protocol in IPv4's and IPv6's headers.
pub(super) const ETHERTYPE_AT: usize = 12;
pub(super) const PROTOCOL_V4_AT: usize = ethernet::HEADER_LEN + 9;
pub(super) const PROTOCOL_V6_AT: usize = ethernet::HEADER_LEN + 6;

pub(super) fn is_tcp(frame: &[u8]) -> bool {
    let protocol_at = match frame.get(ETHERTYPE_AT..ETHERTYPE_AT + 2) {
        Some([0x08, 0x00]) => PROTOCOL_V4_AT,
        Some([0x86, 0xdd]) => PROTOCOL_V6_AT,
        _ => return false,
    };
    frame.get(protocol_at) == Some(&Protocol::TCP.0)
}

/// Tracks whether a shard keeps up with a device that hands over all that has arrived.
#[derive(Default)]
pub(super) struct Lag {
    /// Bursts in a row that left something.
    bursts: u8,
}

impl Lag {
    /// Limit on the frames that are not TCP in the next burst.
    pub(super) fn others_max(&self) -> usize {
        // Any crowd of clients causes a few full bursts, and all of that traffic is wanted.
        const BURSTS_BEHIND: u8 = 4;
        match self.bursts {
            ..BURSTS_BEHIND => usize::MAX,
            BURSTS_BEHIND.. => WHILE_BEHIND,
        }
    }

    pub(super) fn was_received(&mut self, is_drained: bool) {
        self.bursts = if is_drained { 0 } else { self.bursts.saturating_add(1) };
    }
}

/// Remaining budget of each queue.
pub(super) struct Limit {
    map: OwnedFd,
    memory: Mapping,
}

/// QueueEntry of a queue in the map.
#[repr(C)]
struct QueueEntry {
    left: AtomicI64,
    refused: AtomicU64,
    /// Time at which the next frame passes beyond the limit, by the kernel's clock. Only the
    /// program writes it.
    passes_at: AtomicU64,
}

/// The length of [`Limit::counts_down`].
pub(super) const COUNTS_DOWN_LEN: i16 = 21;

impl Limit {
    /// Makes the limits of `queues` queues, with the queues assumed empty.
    pub(super) fn new(queues: u32) -> io::Result<Limit> {
        let entry_len = size_of::<QueueEntry>();
        let map = bpf::create_map(bpf::MAP_OF_VALUES, entry_len, queues, bpf::MAP_IS_MAPPED)?;
        // The kernel maps whole pages of it, and this is rounded up to them.
        let memory = Mapping::of(map.as_fd(), queues as usize * entry_len, 0)?;
        let limit = Limit { map, memory };
        for queue in 0..queues {
            limit.was_received(queue, true);
        }
        Ok(limit)
    }

    /// Renews the limit after a receive; `is_drained` if the shard has emptied its queue.
    pub(super) fn was_received(&self, queue: u32, is_drained: bool) {
        let left = if is_drained { WHILE_DRAINED } else { WHILE_BEHIND as i64 };
        // A count-down by the program in between is overwritten: the limit is not exact.
        self.entry(queue).left.store(left, Ordering::Relaxed);
    }

    /// Number of refused frames.
    pub(super) fn refused(&self, queue: u32) -> u64 {
        self.entry(queue).refused.load(Ordering::Relaxed)
    }

    fn entry(&self, queue: u32) -> &QueueEntry {
        let len = size_of::<QueueEntry>();
        let at = self.memory.at(queue as usize * len, len).cast();
        // SAFETY: `at` has checked that the entry lies in the mapping, which lives as long as
        // `self`. It begins at a multiple of its length, so it is aligned; both sides access it
        // atomically.
        unsafe { at.as_ref() }
    }

    /// Part of a program for a frame that is not TCP. The queue's number is at `r10 - 4`; r8 is
    /// overwritten. Execution continues behind this part if the frame is accepted, and otherwise
    /// the program ends with `refusal`.
    ///
    /// ```text
    ///    0   r2 = r10; r2 += -4
    ///    2   r1 = limits                 the map; two instructions long
    ///    4   call bpf_map_lookup_elem
    ///    5   if r0 == 0 goto 21          not a queue of this process
    ///    6   r1 = r0->left
    ///    7   if r1 > 0 goto 19
    ///    8   r8 = r0
    ///    9   call bpf_ktime_get_ns
    ///   10   r1 = r8->passes_at
    ///   11   if r0 > r1 goto 16
    ///   12   r1 = 1; lock r8->refused += r1
    ///   14   r0 = refusal; exit
    ///   16   r0 += PASSES_EVERY_NS; r8->passes_at = r0
    ///   18   goto 21
    ///   19   r1 = -1; lock r0->left += r1
    ///   21
    /// ```
    pub(super) fn counts_down(&self, refusal: i32) -> [Instruction; COUNTS_DOWN_LEN as usize] {
        const BPF_MAP_LOOKUP_ELEM: i32 = 1;
        const BPF_KTIME_GET_NS: i32 = 5;
        const LEFT_AT: i16 = offset_of!(QueueEntry, left) as i16;
        const REFUSED_AT: i16 = offset_of!(QueueEntry, refused) as i16;
        const PASSES_AT: i16 = offset_of!(QueueEntry, passes_at) as i16;
        let [limits, limits_end] = bpf::load_map(1, self.map.as_fd());
        [
            instruction(code::MOVE, 2, 10, 0, 0),
            instruction(code::ADD_IMMEDIATE, 2, 0, 0, -4),
            limits,
            limits_end,
            instruction(code::CALL, 0, 0, 0, BPF_MAP_LOOKUP_ELEM),
            instruction(code::JUMP_IF_EQUAL, 0, 0, 15, 0),
            instruction(code::LOAD, 1, 0, LEFT_AT, 0),
            instruction(code::JUMP_IF_SIGNED_GREATER, 1, 0, 11, 0),
            instruction(code::MOVE, 8, 0, 0, 0),
            instruction(code::CALL, 0, 0, 0, BPF_KTIME_GET_NS),
            instruction(code::LOAD, 1, 8, PASSES_AT, 0),
            instruction(code::JUMP_IF_GREATER, 0, 1, 4, 0),
            instruction(code::MOVE_IMMEDIATE, 1, 0, 0, 1),
            instruction(code::ATOMIC_ADD, 8, 1, REFUSED_AT, 0),
            instruction(code::MOVE_IMMEDIATE, 0, 0, 0, refusal),
            instruction(code::EXIT, 0, 0, 0, 0),
            instruction(code::ADD_IMMEDIATE, 0, 0, 0, PASSES_EVERY_NS),
            instruction(code::STORE, 8, 0, PASSES_AT, 0),
            instruction(code::JUMP, 0, 0, 2, 0),
            instruction(code::MOVE_IMMEDIATE, 1, 0, 0, -1),
            instruction(code::ATOMIC_ADD, 0, 1, LEFT_AT, 0),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_is_known_behind_ipv4_and_ipv6() {
        let frame = |ethertype: [u8; 2], protocol_at: usize, protocol: u8| {
            let mut bytes = [0; 60];
            bytes[ETHERTYPE_AT..ETHERTYPE_AT + 2].copy_from_slice(&ethertype);
            bytes[protocol_at] = protocol;
            bytes
        };
        assert!(is_tcp(&frame([0x08, 0], PROTOCOL_V4_AT, 6)));
        assert!(is_tcp(&frame([0x86, 0xdd], PROTOCOL_V6_AT, 6)));
        assert!(!is_tcp(&frame([0x08, 0], PROTOCOL_V6_AT, 6)));
        assert!(!is_tcp(&frame([0x08, 0], PROTOCOL_V4_AT, 17)));
        assert!(!is_tcp(&frame([0x08, 0x06], PROTOCOL_V4_AT, 6)));
        assert!(!is_tcp(&[0; 13]) && !is_tcp(&frame([0x08, 0], PROTOCOL_V4_AT, 6)[..20]));
    }

    #[test]
    fn a_shard_lags_after_several_full_bursts() {
        let mut lag = Lag::default();
        for _ in 0..4 {
            assert_eq!(lag.others_max(), usize::MAX);
            lag.was_received(false);
        }
        assert_eq!(lag.others_max(), WHILE_BEHIND);
        lag.was_received(true);
        assert_eq!(lag.others_max(), usize::MAX);
    }
}
