//! Link with impairments: it loses, doubles, corrupts, delays and reorders frames, and has a rate
//! and a queue. A seed determines all of it.
//!
//! Steps of a frame, in this order:
//!
//! ```text
//!            loss      queue full             corruption, mark        duplication
//!   frame ──▶ ? ──▶ ──▶ ? ──▶ [ queue ] ──rate──▶ ? ──▶ delay + jitter ──▶ ? ──▶ frame
//!             │         │                                    │
//!            lost    overflowed                  reordering: held longer
//! ```
//!
//! Time is an argument, so a run with one seed and the same calls is the same run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::mem::Held;
use super::{
    Capabilities, Device, Frame, Losses, Offload, OutgoingFrame, ReceiveBurst, TransmitError,
    Verified,
};
use crate::time::Instant;
use crate::wire::checksum::{self, Sum};
use crate::wire::ethernet::{self, EtherType, EthernetHeader};
use crate::wire::{ipv4, ipv6};

/// Impairment of one direction of the link. Probabilities are from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Impairment {
    /// Probability that a frame is lost.
    pub loss: f64,
    /// Probability that a frame arrives twice.
    pub duplication: f64,
    /// Probability that one bit of a frame, behind the Ethernet header, is flipped.
    pub corruption: f64,
    /// Probability of a hold for [`Impairment::reordering_by`] longer, so that others pass.
    pub reordering: f64,
    /// Additional delay of a reordered frame.
    pub reordering_by: Duration,
    /// Probability of a congestion mark, if the frame's sender supports that. RFC 3168
    pub marking: f64,
    /// Propagation delay.
    pub delay: Duration,
    /// Limit of a further delay, evenly distributed. It does not reorder frames.
    pub jitter: Duration,
    /// Rate in bytes per second, Ethernet headers included.
    pub rate_bytes_per_s: Option<u64>,
    /// Limit on the bytes that wait for the rate.
    pub queue_bytes_max: u64,
    /// Limit on frames in flight, which bounds the memory.
    pub frames_max: usize,
}

impl Impairment {
    /// A link that passes everything at once.
    pub const NONE: Impairment = Impairment {
        loss: 0.0,
        duplication: 0.0,
        corruption: 0.0,
        reordering: 0.0,
        reordering_by: Duration::ZERO,
        marking: 0.0,
        delay: Duration::ZERO,
        jitter: Duration::ZERO,
        rate_bytes_per_s: None,
        queue_bytes_max: u64::MAX,
        frames_max: 4096,
    };
}

/// Counters of the frames of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImpairCounters {
    /// Frames that came.
    pub came: u64,
    /// Frames that have left, doubled ones twice.
    pub left: u64,
    /// Lost by [`Impairment::loss`].
    pub lost: u64,
    /// Dropped by [`Impairment::queue_bytes_max`] or [`Impairment::frames_max`], or because the
    /// device's MTU was lowered.
    pub overflowed: u64,
    /// Doubled.
    pub doubled: u64,
    /// Corrupted.
    pub corrupted: u64,
    /// Held so that others could pass.
    pub reordered: u64,
    /// Marked.
    pub marked: u64,
}

/// Pause before a full device is tried again.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// A device behind a bad link. It offers no offload for transmission, so it impairs the frames that
/// a wire would see. A device that merges segments must be opened without merging.
pub struct Impair<D> {
    device: D,
    transmit: Direction,
    receive: Direction,
    /// Frames from the device, before they are impaired.
    came: ReceiveBurst,
    /// Time before which the full device is not tried again.
    full_until: Instant,
}

impl<D: Device> Impair<D> {
    /// Impairs the frames that `device` transmits and receives. The seed decides everything.
    pub fn new(device: D, transmit: Impairment, receive: Impairment, seed: u64) -> Impair<D> {
        const FRAMES_PER_RECEIVE: usize = 64;
        let came = ReceiveBurst::new(FRAMES_PER_RECEIVE, device.capabilities().receive_len_max);
        let mut seeds = Random(seed);
        Impair {
            device,
            transmit: Direction::new(transmit, seeds.draw()),
            receive: Direction::new(receive, seeds.draw()),
            came,
            full_until: Instant::START,
        }
    }

    /// Counters of transmitted and of received frames.
    pub fn counters(&self) -> (ImpairCounters, ImpairCounters) {
        (self.transmit.counters, self.receive.counters)
    }

    /// The device behind the link.
    pub fn device(&mut self) -> &mut D {
        &mut self.device
    }

    /// Replaces the link's impairments; frames in flight are not affected.
    pub fn change(&mut self, transmit: Impairment, receive: Impairment) {
        self.transmit.impairment = transmit;
        self.receive.impairment = receive;
    }

    /// Transmits the frames that are due. If the device is full, they wait in order.
    fn release(&mut self, now: Instant) -> io::Result<()> {
        if now < self.full_until {
            return Ok(());
        }
        while let Some(held) = self.transmit.next(now) {
            let frame =
                OutgoingFrame { headers: &held.bytes, payload: &[], offload: Offload::None };
            let taken = self.device.transmit(now, &frame);
            if let Err(TransmitError::Full) = taken {
                self.full_until = now + FULL_PAUSE;
                return Ok(());
            }
            let held = self.transmit.due(now);
            self.transmit.spare.extend(held.map(|it| it.bytes));
            match taken {
                Ok(()) => self.transmit.counters.left += 1,
                Err(TransmitError::Io(error)) => return Err(error),
                Err(_) => self.transmit.counters.overflowed += 1,
            }
        }
        Ok(())
    }
}

impl<D: Device> Device for Impair<D> {
    fn capabilities(&self) -> Capabilities {
        let own = self.device.capabilities();
        Capabilities { has_checksum_offload: false, segmentation_len_max: 0, big_tcp: None, ..own }
    }

    fn receive(&mut self, now: Instant, burst: &mut ReceiveBurst) -> io::Result<()> {
        self.flush(now)?;
        self.came.clear();
        self.device.receive(now, &mut self.came)?;
        for frame in self.came.frames() {
            self.receive.take(now, &frame);
        }
        while let Some(buffer) = burst.spare_buffer() {
            let Some(held) = self.receive.due(now) else {
                break;
            };
            let len = held.bytes.len();
            buffer[..len].copy_from_slice(&held.bytes);
            burst.push(len, held.verified, held.segment_len);
            self.receive.counters.left += 1;
            self.receive.spare.push(held.bytes);
        }
        Ok(())
    }

    fn transmit(&mut self, now: Instant, frame: &OutgoingFrame<'_>) -> Result<(), TransmitError> {
        self.capabilities().assert_fit(frame);
        let mut bytes = self.transmit.spare.pop().unwrap_or_default();
        bytes.resize(frame.len(), 0);
        frame.gather(&mut bytes);
        let whole = Frame { bytes: &bytes, verified: Verified::No, segment_len: None };
        self.transmit.take(now, &whole);
        self.transmit.spare.push(bytes);
        self.release(now).map_err(TransmitError::Io)
    }

    fn flush(&mut self, now: Instant) -> io::Result<()> {
        self.release(now)?;
        self.device.flush(now)
    }

    fn takes(&self, local_port: u16, remote_port: u16) -> Option<bool> {
        self.device.takes(local_port, remote_port)
    }

    fn losses(&mut self) -> Losses {
        self.device.losses()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.device.descriptor()
    }

    fn wakes_at(&self) -> Option<Instant> {
        let outgoing = self.transmit.next_due();
        let outgoing = outgoing.map(|due| due.max(self.full_until));
        let own = [outgoing, self.receive.next_due()];
        let all = own.into_iter().chain([self.device.wakes_at()]);
        all.flatten().min()
    }
}

/// One direction.
struct Direction {
    impairment: Impairment,
    random: Random,
    under_way: BinaryHeap<Reverse<UnderWay>>,
    pushed: u64,
    /// Buffers of frames that have left.
    spare: Vec<Vec<u8>>,
    /// Time at which the rate lets the next frame pass.
    free_at: Instant,
    /// Time at which the last frame in order leaves.
    last_due: Instant,
    counters: ImpairCounters,
}

/// Frame in flight, ordered by the time at which it leaves.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct UnderWay {
    due: Instant,
    /// Frames that are due together leave in the order in which they came.
    number: u64,
    held: Held,
}

impl Direction {
    fn new(impairment: Impairment, seed: u64) -> Direction {
        Direction {
            impairment,
            random: Random(seed),
            under_way: BinaryHeap::with_capacity(impairment.frames_max),
            pushed: 0,
            spare: Vec::with_capacity(impairment.frames_max),
            free_at: Instant::START,
            last_due: Instant::START,
            counters: ImpairCounters::default(),
        }
    }

    fn take(&mut self, now: Instant, frame: &Frame<'_>) {
        let is = self.impairment;
        self.counters.came += 1;
        if self.random.is(is.loss) {
            self.counters.lost += 1;
            return;
        }
        let Some(passed_at) = self.pass(now, frame.bytes.len() as u64) else {
            self.counters.overflowed += 1;
            return;
        };
        let mut due = passed_at + is.delay + is.jitter.mul_f64(self.random.part());
        if self.random.is(is.reordering) {
            due += is.reordering_by;
            self.counters.reordered += 1;
        } else {
            due = due.max(self.last_due);
            self.last_due = due;
        }
        let mut held = Held::copy(frame, self.spare.pop().unwrap_or_default());
        if self.random.is(is.marking) && mark(&mut held.bytes) {
            self.counters.marked += 1;
        }
        if self.random.is(is.corruption) && self.corrupt(&mut held) {
            self.counters.corrupted += 1;
        }
        if self.random.is(is.duplication) {
            let frame = Frame {
                bytes: &held.bytes,
                verified: held.verified,
                segment_len: held.segment_len,
            };
            let copy = Held::copy(&frame, self.spare.pop().unwrap_or_default());
            self.push(due, copy);
            self.counters.doubled += 1;
        }
        self.push(due, held);
    }

    /// Time at which the rate has let a frame pass; `None` if the queue is full.
    fn pass(&mut self, now: Instant, len: u64) -> Option<Instant> {
        let Some(rate) = self.impairment.rate_bytes_per_s else {
            return Some(now);
        };
        let took = |bytes: u64| Duration::from_nanos(nanos_of(bytes, rate));
        let backlog = self.free_at.since(now);
        if backlog + took(len) > took(self.impairment.queue_bytes_max.max(len)) {
            return None;
        }
        self.free_at = self.free_at.max(now) + took(len);
        Some(self.free_at)
    }

    fn push(&mut self, due: Instant, held: Held) {
        if self.under_way.len() == self.impairment.frames_max {
            self.counters.overflowed += 1;
            self.spare.push(held.bytes);
            return;
        }
        self.pushed += 1;
        self.under_way.push(Reverse(UnderWay { due, number: self.pushed, held }));
    }

    /// Flips one bit behind the Ethernet header, which every checksum detects.
    fn corrupt(&mut self, held: &mut Held) -> bool {
        let Some(behind) = held.bytes.get_mut(ethernet::HEADER_LEN..) else {
            return false;
        };
        if behind.is_empty() {
            return false;
        }
        let bit = self.random.below(behind.len() as u64 * 8);
        behind[bit as usize / 8] ^= 1 << (bit % 8);
        held.verified = Verified::No;
        true
    }

    fn next_due(&self) -> Option<Instant> {
        self.under_way.peek().map(|Reverse(next)| next.due)
    }

    /// The next one, if it is due.
    fn next(&self, now: Instant) -> Option<&Held> {
        let Reverse(next) = self.under_way.peek()?;
        (next.due <= now).then_some(&next.held)
    }

    fn due(&mut self, now: Instant) -> Option<Held> {
        self.next(now)?;
        let Reverse(next) = self.under_way.pop()?;
        Some(next.held)
    }
}

/// Sets "congestion experienced" in a packet whose sender supports ECN. RFC 3168 5
fn mark(frame: &mut [u8]) -> bool {
    let Ok((header, _)) = EthernetHeader::parse(frame) else {
        return false;
    };
    let packet = &mut frame[ethernet::HEADER_LEN..];
    match header.ethertype {
        EtherType::IPV4 if packet.len() >= ipv4::HEADER_LEN => mark_v4(packet),
        EtherType::IPV6 if packet.len() >= ipv6::HEADER_LEN => {
            let is_capable = packet[1] & 0x30 != 0;
            packet[1] |= if is_capable { 0x30 } else { 0 };
            is_capable
        }
        _ => false,
    }
}

fn mark_v4(packet: &mut [u8]) -> bool {
    const CHECKSUM: std::ops::Range<usize> = 10..12;
    let is_capable = packet[1] & 0b11 != 0;
    if is_capable {
        let old = Sum::of(&packet[..2]);
        packet[1] |= 0b11;
        let before = u16::from_be_bytes([packet[CHECKSUM][0], packet[CHECKSUM][1]]);
        let after = checksum::update(before, old, Sum::of(&packet[..2]));
        packet[CHECKSUM].copy_from_slice(&after.to_be_bytes());
    }
    is_capable
}

fn nanos_of(bytes: u64, rate_bytes_per_s: u64) -> u64 {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate_bytes_per_s.max(1));
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

/// SplitMix64: small, and random enough for this. <https://prng.di.unimi.it/splitmix64.c>
struct Random(u64);

impl Random {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to below 1.
    fn part(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// From 0 to below `end`.
    fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(end)) >> 64) as u64
    }

    /// Draws in each case, so that a probability of 0 does not change later draws.
    fn is(&mut self, probability: f64) -> bool {
        self.part() < probability
    }
}
