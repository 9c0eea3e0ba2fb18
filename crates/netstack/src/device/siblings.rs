//! Queues of one interface, each with a shard. Frames about the link arrive at one of them and
//! concern all.
//!
//! ```text
//!   interface ─┬─ queue 0 ── Sibling ── shard 0      A flow's segments come to the queue of its
//!              │               │ ▲                   shard. An answer to "who has 10.0.0.1?" comes
//!              │          inbox│ │inbox              to either, whichever shard has asked.
//!              │               ▼ │
//!              └─ queue 1 ── Sibling ── shard 1
//! ```
//!
//! Such frames are few. A full inbox refuses them and counts them as overflowed; the question is
//! repeated. A burst has some frames of the inbox before those of the queue, and the rest behind
//! them as space allows, so that neither starves the other.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, epoll, eventfd};

use super::mem::Held;
use super::{Capabilities, Device, Frame, Losses, OutgoingFrame, ReceiveBurst, TransmitError};
use crate::time::Instant;
use crate::wire::arp::{ArpOperation, ArpPacket};
use crate::wire::ethernet::{EtherType, EthernetHeader};
use crate::wire::{Protocol, ipv6};

/// Frames that wait for one shard.
pub const INBOX_FRAMES_MAX: usize = 64;

/// Frames of an inbox that come before those of the queue, in a burst.
const INBOX_FRAMES_FIRST: usize = 8;

/// One of several queues.
pub struct Sibling<D> {
    device: D,
    /// `None` if it is the only one.
    family: Option<Family>,
}

struct Family {
    own: usize,
    inboxes: Arc<[Inbox]>,
    /// Readable when the queue or the inbox has something.
    either: OwnedFd,
    /// Descriptors of all queues, so that none leaves before the last sibling ends: the kernel
    /// distributes frames by the number and the order of queues.
    _queues: Arc<[OwnedFd]>,
}

/// Apart from the others by two cache lines, which processors fetch together: each shard looks at
/// its own with every burst.
#[repr(align(128))]
struct Inbox {
    frames: Mutex<VecDeque<Held>>,
    /// Allows a check without taking the lock.
    has_some: AtomicBool,
    /// Readable when there are some.
    waker: OwnedFd,
    /// Frames that did not fit.
    overflowed: AtomicU64,
}

impl<D: Device> Sibling<D> {
    /// The queues of one interface.
    ///
    /// # Errors
    ///
    /// Errors of the kernel for new descriptors.
    pub fn family(queues: Vec<D>) -> io::Result<Vec<Sibling<D>>> {
        let inboxes = queues.iter().map(|_| Inbox::new());
        let inboxes: Arc<[Inbox]> = inboxes.collect::<io::Result<_>>()?;
        let count = queues.len();
        let descriptors = queues.iter().filter_map(Device::descriptor);
        let descriptors = descriptors.map(|fd| fd.try_clone_to_owned());
        let descriptors: Arc<[OwnedFd]> = descriptors.collect::<io::Result<_>>()?;
        let member = |(own, device): (usize, D)| {
            let family = match count {
                1 => None,
                _ => {
                    Some(Family::new(own, Arc::clone(&inboxes), Arc::clone(&descriptors), &device)?)
                }
            };
            Ok(Sibling { device, family })
        };
        queues.into_iter().enumerate().map(member).collect()
    }
}

impl Family {
    fn new(
        own: usize,
        inboxes: Arc<[Inbox]>,
        queues: Arc<[OwnedFd]>,
        device: &impl Device,
    ) -> io::Result<Family> {
        let either = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = inboxes[own].waker.as_fd();
        for fd in device.descriptor().into_iter().chain([waker]) {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&either, fd, data, epoll::EventFlags::IN)?;
        }
        Ok(Family { own, inboxes, either, _queues: queues })
    }

    /// Inbox of this queue.
    fn inbox(&self) -> &Inbox {
        &self.inboxes[self.own]
    }

    fn send_to_others(&self, frame: &Frame<'_>) {
        for (at, inbox) in self.inboxes.iter().enumerate() {
            if at != self.own {
                inbox.put(frame);
            }
        }
    }
}

impl Inbox {
    fn new() -> io::Result<Inbox> {
        Ok(Inbox {
            frames: Mutex::default(),
            has_some: AtomicBool::new(false),
            waker: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            overflowed: AtomicU64::new(0),
        })
    }

    fn put(&self, frame: &Frame<'_>) {
        let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        if frames.len() < INBOX_FRAMES_MAX {
            frames.push_back(Held::copy(frame, Vec::new()));
            self.has_some.store(true, Ordering::Release);
            // Fails only after some 2^64 wakes.
            let _ = rustix::io::write(&self.waker, &1_u64.to_ne_bytes());
        } else {
            self.overflowed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Moves up to `frames_max` frames into the burst.
    fn take(&self, burst: &mut ReceiveBurst, frames_max: usize) {
        if !self.has_some.load(Ordering::Acquire) {
            return;
        }
        let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..frames_max {
            let Some(buffer) = burst.spare_buffer() else {
                return;
            };
            let Some(Held { bytes, verified, segment_len }) = frames.pop_front() else {
                self.has_some.store(false, Ordering::Relaxed);
                let _ = rustix::io::read(&self.waker, &mut [0; 8]);
                return;
            };
            buffer[..bytes.len()].copy_from_slice(&bytes);
            burst.push(bytes.len(), verified, segment_len);
        }
    }
}

/// True for frames that every shard needs: answers about neighbours, announcements of addresses,
/// router advertisements, and errors, which quote a flow of any shard. Questions are answered by
/// the shard that receives them.
fn is_for_all(frame: &[u8]) -> bool {
    let Ok((header, packet)) = EthernetHeader::parse(frame) else {
        return false;
    };
    let byte = |at: usize| packet.get(at).copied();
    match header.ethertype {
        // An announcement has the form of a question for the sender's own address. RFC 5227 1.1
        EtherType::ARP => ArpPacket::parse(packet)
            .is_ok_and(|it| it.operation == ArpOperation::Reply || it.sender_ip == it.target_ip),
        EtherType::IPV4 if byte(9) == Some(Protocol::ICMP.0) => {
            let header_len = usize::from(packet[0] & 0xf) * 4;
            // Unreachable, time exceeded, parameter problem: RFC 792
            matches!(byte(header_len), Some(3 | 11 | 12))
        }
        EtherType::IPV6 if byte(6) == Some(Protocol::ICMPV6.0) => {
            // Errors: RFC 4443 2.1. Advertisements of routers and neighbours: RFC 4861 4
            matches!(byte(ipv6::HEADER_LEN), Some(0..=127 | 134 | 136))
        }
        _ => false,
    }
}

impl<D: Device> Device for Sibling<D> {
    fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    fn receive(&mut self, now: Instant, burst: &mut ReceiveBurst) -> io::Result<()> {
        if let Some(family) = &self.family {
            family.inbox().take(burst, INBOX_FRAMES_FIRST);
        }
        // Frames of the inbox are not forwarded: the sibling that received them has done so.
        let first = burst.len();
        let received = self.device.receive(now, burst);
        if let Some(family) = &self.family {
            for frame in burst.frames().skip(first) {
                if is_for_all(frame.bytes) {
                    family.send_to_others(&frame);
                }
            }
            family.inbox().take(burst, INBOX_FRAMES_MAX);
        }
        received
    }

    fn transmit(&mut self, now: Instant, frame: &OutgoingFrame<'_>) -> Result<(), TransmitError> {
        self.device.transmit(now, frame)
    }

    fn flush(&mut self, now: Instant) -> io::Result<()> {
        self.device.flush(now)
    }

    fn takes(&self, local_port: u16, remote_port: u16) -> Option<bool> {
        self.device.takes(local_port, remote_port)
    }

    fn losses(&mut self) -> Losses {
        let mut losses = self.device.losses();
        if let Some(family) = &self.family {
            losses.overflowed += family.inbox().overflowed.load(Ordering::Relaxed);
        }
        losses
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.family {
            None => self.device.descriptor(),
            Some(family) => Some(family.either.as_fd()),
        }
    }

    fn wakes_at(&self) -> Option<Instant> {
        self.device.wakes_at()
    }
}
