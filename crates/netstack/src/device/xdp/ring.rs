//! The memory that is shared with the kernel: umem, and the four rings.
//!
//! ```text
//!   a ring   | producer u32 | … | consumer u32 | … | entry | entry | … entry |     entries: 2^n
//!
//!   producer and consumer count up and wrap; entry i is that of count i modulo 2^n. The kernel
//!   writes one of the two, and this process the other: with Release, after it has written or read
//!   the entries that are counted. It reads the kernel's with Acquire.
//! ```

#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpRingOffset, XdpUmemReg,
    XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use super::super::mapping::Mapping;
use super::super::sys;

/// A frame in umem: `struct xdp_desc` in `linux/if_xdp.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptor {
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) options: u32,
}

/// The rings of one socket.
pub(super) struct Rings {
    pub(super) fill: Producer<u64>,
    pub(super) completion: Consumer<u64>,
    pub(super) receive: Consumer<Descriptor>,
    pub(super) transmit: Producer<Descriptor>,
}

/// A socket with its umem, bound to a queue: each ring has a place for every chunk. A frame may
/// have several if it `has_pieces`.
pub(super) fn open(
    interface: u32,
    queue: u32,
    chunk_len: usize,
    chunks: usize,
    has_pieces: bool,
) -> io::Result<(OwnedFd, Umem, Rings)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)?;
    let fd = socket.as_fd();
    let umem = Umem { memory: Mapping::anonymous(chunk_len * chunks)? };
    let region = XdpUmemReg {
        addr: umem.memory.at(0, 0).as_ptr() as u64,
        len: umem.memory.len() as u64,
        chunk_size: chunk_len as u32,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    sockopt::set_xdp_umem_reg(fd, region)?;
    let entries = chunks as u32;
    sockopt::set_xdp_umem_fill_ring_size(fd, entries)?;
    sockopt::set_xdp_umem_completion_ring_size(fd, entries)?;
    sockopt::set_xdp_rx_ring_size(fd, entries)?;
    sockopt::set_xdp_tx_ring_size(fd, entries)?;
    // Before Linux 6.17 it takes 32 with each call, whatever is asked for.
    let _ = sys::set_option(fd, libc::SOL_XDP, sys::XDP_MAX_TX_SKB_BUDGET, &entries);
    let offsets = sockopt::xdp_mmap_offsets(fd)?;
    let map = |offset: &XdpRingOffset, page_offset: u64, entry_len: usize| {
        let len = offset.desc as usize + chunks * entry_len;
        Ok::<_, io::Error>(Counters {
            memory: Mapping::of(fd, len, page_offset)?,
            producer_at: offset.producer as usize,
            consumer_at: offset.consumer as usize,
            entries_at: offset.desc as usize,
            entries,
        })
    };
    let numbers = size_of::<u64>();
    let frames = size_of::<Descriptor>();
    let rings = Rings {
        fill: Producer::new(map(&offsets.fr, XDP_UMEM_PGOFF_FILL_RING, numbers)?),
        completion: Consumer::new(map(&offsets.cr, XDP_UMEM_PGOFF_COMPLETION_RING, numbers)?),
        receive: Consumer::new(map(&offsets.rx, XDP_PGOFF_RX_RING, frames)?),
        transmit: Producer::new(map(&offsets.tx, XDP_PGOFF_TX_RING, frames)?),
    };
    let mut flags = SocketAddrXdpFlags::XDP_COPY;
    flags.set(SocketAddrXdpFlags::XDP_USE_SG, has_pieces);
    bind(fd, &SocketAddrXdp::new(flags, interface, queue))?;
    Ok((socket, umem, rings))
}

/// The frames' memory.
pub(super) struct Umem {
    memory: Mapping,
}

impl Umem {
    /// Copies the bytes at `address`, which the kernel has handed over.
    pub(super) fn read(&self, address: u64, buffer: &mut [u8]) {
        let from = self.memory.at(address as usize, buffer.len());
        // SAFETY: `at` has checked that so many bytes lie there; the kernel does not write a chunk
        // between its frame's arrival and its return by the fill ring; and `buffer` is memory of
        // this process alone.
        unsafe { from.copy_to_nonoverlapping(NonNull::from(&mut *buffer).cast(), buffer.len()) };
    }

    /// Writes to `address`, in a chunk that the kernel does not have.
    pub(super) fn write(&mut self, address: u64, bytes: &[u8]) {
        let to = self.memory.at(address as usize, bytes.len());
        // SAFETY: `at` has checked that there is so much room; the kernel has no address within
        // this chunk until it is put into the transmit ring; and `bytes` are borrowed from others.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
    }
}

/// A ring whose producer is this process.
pub(super) struct Producer<T> {
    ring: Counters,
    produced: u32,
    entries: PhantomData<T>,
}

impl<T: Copy> Producer<T> {
    fn new(ring: Counters) -> Producer<T> {
        Producer { ring, produced: 0, entries: PhantomData }
    }

    /// Adds an entry; `false` if the ring is full.
    pub(super) fn push(&mut self, entry: T) -> bool {
        let consumed = self.ring.consumer().load(Ordering::Acquire);
        if self.produced.wrapping_sub(consumed) >= self.ring.entries {
            return false;
        }
        let place = self.ring.entry::<T>(self.produced);
        // SAFETY: the place is one of the ring's, aligned as entries are, and the kernel does not
        // read it before the store below, nor again since it has counted it as consumed.
        unsafe { place.write(entry) };
        self.produced = self.produced.wrapping_add(1);
        self.ring.producer().store(self.produced, Ordering::Release);
        true
    }

    /// True if the kernel has consumed all entries.
    pub(super) fn is_taken(&self) -> bool {
        self.ring.consumer().load(Ordering::Acquire) == self.produced
    }
}

/// A ring whose consumer is this process.
pub(super) struct Consumer<T> {
    ring: Counters,
    consumed: u32,
    entries: PhantomData<T>,
}

impl<T: Copy> Consumer<T> {
    fn new(ring: Counters) -> Consumer<T> {
        Consumer { ring, consumed: 0, entries: PhantomData }
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let produced = self.ring.producer().load(Ordering::Acquire);
        if produced == self.consumed {
            return None;
        }
        let place = self.ring.entry::<T>(self.consumed);
        // SAFETY: the place is one of the ring's, aligned as entries are; the kernel has written it
        // before it counted it as produced, and writes it again only after the store below.
        let entry = unsafe { place.read() };
        self.consumed = self.consumed.wrapping_add(1);
        self.ring.consumer().store(self.consumed, Ordering::Release);
        Some(entry)
    }
}

/// Pointers to the parts of a ring.
struct Counters {
    memory: Mapping,
    producer_at: usize,
    consumer_at: usize,
    entries_at: usize,
    /// A power of two.
    entries: u32,
}

impl Counters {
    fn producer(&self) -> &AtomicU32 {
        self.counter(self.producer_at)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.counter(self.consumer_at)
    }

    fn counter(&self, at: usize) -> &AtomicU32 {
        let place = self.memory.at(at, size_of::<AtomicU32>()).cast();
        // SAFETY: `at` has checked that it lies in the mapping, which lives as long as `self`; the
        // kernel aligns its counters, and both sides access them atomically.
        unsafe { place.as_ref() }
    }

    fn entry<T>(&self, count: u32) -> NonNull<T> {
        let index = (count & (self.entries - 1)) as usize;
        let at = self.entries_at + index * size_of::<T>();
        self.memory.at(at, size_of::<T>()).cast()
    }
}
