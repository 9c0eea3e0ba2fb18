//! The memory into which the kernel puts frames: a ring of slots.
//! Documentation/networking/packet_mmap.rst
//!
//! ```text
//!   | slot | slot | slot | …        2 KiB each, or as much as a frame of the MTU needs
//!
//!   a slot   | tpacket2_hdr | … | virtio-net header | frame |        the slot is this process's
//!            ^ tp_status                            ^ tp_mac         while TP_STATUS_USER is set
//! ```
//!
//! A merged frame may be longer than a slot. The kernel then keeps it in the socket's queue and
//! marks its slot (`TP_STATUS_COPY`).

#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{TP_STATUS_COPY, TP_STATUS_KERNEL, TP_STATUS_USER, tpacket2_hdr};

use super::super::mapping::Mapping;
use super::super::sys;
use crate::wire::vnet;

/// The ring's length, if that is enough for [`SLOTS_MIN`].
const RING_LEN: usize = 4 << 20;
const SLOTS_MIN: usize = 256;

/// Least length of a slot, headers included.
const SLOT_LEN_MIN: usize = 2048;
const SLOT_HEADERS_LEN_MAX: usize = 128;

/// The kernel allocates this much at a time: a power of two of pages.
const BLOCK_LEN: usize = 1 << 16;

/// See the [module page](self).
pub(super) struct PacketRing {
    memory: Mapping,
    slot_len: usize,
    /// A power of two.
    slots: usize,
    /// The slot that is filled next.
    next: usize,
}

/// Content of a slot.
pub(super) enum RingSlot<'a> {
    Frame {
        header: &'a [u8],
        bytes: &'a [u8],
    },
    /// The frame is in the socket's queue.
    Queued,
    /// The queue had no room for it.
    Lost,
}

impl PacketRing {
    /// Gives a socket its ring. It is not bound yet.
    pub(super) fn open(socket: BorrowedFd<'_>, frame_len_max: usize) -> io::Result<PacketRing> {
        let slot_len = (frame_len_max + SLOT_HEADERS_LEN_MAX).next_power_of_two();
        let slot_len = slot_len.clamp(SLOT_LEN_MIN, BLOCK_LEN);
        let slots = (RING_LEN / slot_len).max(SLOTS_MIN);
        let len = slots * slot_len;
        sys::set_packet_ring(socket, BLOCK_LEN, slot_len, slots)?;
        Ok(PacketRing { memory: Mapping::of(socket, len, 0)?, slot_len, slots, next: 0 })
    }

    /// Hands the next slot that is filled to `look`, and then back to the kernel.
    pub(super) fn take<R>(&mut self, look: impl FnOnce(RingSlot<'_>) -> R) -> Option<R> {
        let start = self.next * self.slot_len;
        let status = self.memory.at(start, size_of::<AtomicU32>()).cast();
        // SAFETY: `at` has checked that the status lies in the mapping, which lives as long as
        // `self`. It begins a slot, so it is aligned; both sides access it atomically.
        let status: &AtomicU32 = unsafe { status.as_ref() };
        let seen = status.load(Ordering::Acquire);
        if seen & TP_STATUS_USER == 0 {
            return None;
        }
        let looked = look(self.slot(start, seen));
        // Release: this process has finished its reads of the slot.
        status.store(TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) & (self.slots - 1);
        Some(looked)
    }

    /// Content of the slot at `start`, which this process owns.
    fn slot(&self, start: usize, status: u32) -> RingSlot<'_> {
        let header = self.memory.at(start, size_of::<tpacket2_hdr>()).cast();
        // SAFETY: `at` has checked that the header lies in the mapping, at the beginning of a slot,
        // and so aligned. The kernel wrote it before the status that `take` has seen, and writes
        // no more to the slot until that changes. Every bit pattern is such a header.
        let header: tpacket2_hdr = unsafe { header.read() };
        if status & TP_STATUS_COPY != 0 {
            return RingSlot::Queued;
        }
        if header.tp_snaplen < header.tp_len {
            return RingSlot::Lost;
        }
        let frame_at = start + usize::from(header.tp_mac);
        RingSlot::Frame {
            header: self.bytes(frame_at - vnet::HEADER_LEN, vnet::HEADER_LEN),
            bytes: self.bytes(frame_at, header.tp_snaplen as usize),
        }
    }

    fn bytes(&self, at: usize, len: usize) -> &[u8] {
        let bytes = self.memory.at(at, len);
        // SAFETY: `at` has checked that so many bytes lie in the mapping. They are in a slot that
        // is this process's until `take` gives it back, which the borrow of its `RingSlot` outlives
        // not; nothing writes to them before.
        unsafe { slice::from_raw_parts(bytes.as_ptr(), len) }
    }
}
