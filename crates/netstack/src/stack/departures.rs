//! Departing segments: a burst of them, with the bytes that the application writes.

use super::{FlowId, Shard};
use crate::device::OutgoingFrame;
use crate::tcp::SendBuffer;
use crate::tcp::secret::FourTuple;
use crate::time::Instant;
use crate::wire::Ecn;
use crate::wire::checksum::Sum;
use crate::wire::tcp::Segment;

/// Producer of a stream's bytes, at the first transmission and at each later one.
pub trait Writer {
    /// Adds the bytes `offset..offset + len` of the stream of `id` to `pieces`: slices of memory
    /// that stays as it is until they are acknowledged ([`super::TcpEvents::RELEASED`]), so that
    /// nothing is copied. They are the same bytes each time.
    fn gather<'a>(&'a self, id: FlowId, offset: u64, len: usize, pieces: &mut Pieces<'a>);
}

/// For applications that only use [`Shard::write`].
impl Writer for () {
    fn gather<'a>(&'a self, id: FlowId, offset: u64, len: usize, _: &mut Pieces<'a>) {
        panic!("{len} bytes at {offset} of {id:?} were queued without a source");
    }
}

/// The payload of a segment, in place.
///
/// Its bytes are summed for a device that completes no checksum, and then each time, unless their
/// source knows the sum.
#[derive(Clone, Copy, Debug)]
pub struct Pieces<'a> {
    slices: [&'a [u8]; Pieces::COUNT_MAX],
    count: usize,
    /// The last piece whose sum its source knows, and that sum. Segments without offloads are so
    /// short that there is hardly ever another one.
    summed: Option<(usize, Sum)>,
}

impl Default for Pieces<'_> {
    fn default() -> Self {
        Pieces { slices: [&[]; Pieces::COUNT_MAX], count: 0, summed: None }
    }
}

impl<'a> Pieces<'a> {
    /// Pieces that a device gathers into one frame.
    pub const COUNT_MAX: usize = OutgoingFrame::PIECES_MAX;

    /// Adds a piece.
    ///
    /// # Panics
    ///
    /// If there are [`Pieces::COUNT_MAX`].
    pub fn push(&mut self, bytes: &'a [u8]) {
        assert!(self.count < Self::COUNT_MAX, "more than {} pieces", Self::COUNT_MAX);
        if !bytes.is_empty() {
            self.slices[self.count] = bytes;
            self.count += 1;
        }
    }

    /// Adds a piece whose sum is known: [`Sum::of`] of it.
    ///
    /// # Panics
    ///
    /// If there are [`Pieces::COUNT_MAX`].
    pub fn push_summed(&mut self, bytes: &'a [u8], sum: Sum) {
        self.push(bytes);
        if !bytes.is_empty() {
            self.summed = Some((self.count - 1, sum));
        }
    }

    /// The sum of all pieces.
    pub fn sum(&self) -> Sum {
        let pieces = self.as_slice().iter().enumerate();
        Sum::joined(pieces.map(|(at, piece)| match self.summed {
            Some((summed, sum)) if summed == at => (piece.len(), sum),
            _ => (piece.len(), Sum::of(piece)),
        }))
    }

    /// All pieces.
    pub fn as_slice(&self) -> &[&'a [u8]] {
        &self.slices[..self.count]
    }

    /// The first `len` bytes of them.
    pub(super) fn first(&self, len: usize) -> Pieces<'a> {
        let mut first = Pieces::default();
        let mut left = len;
        for piece in self.as_slice() {
            let taken = piece.len().min(left);
            first.push(&piece[..taken]);
            left -= taken;
        }
        first
    }

    /// Their length.
    pub fn len(&self) -> usize {
        self.as_slice().iter().map(|piece| piece.len()).sum()
    }

    /// True if there is no byte.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// A segment that leaves.
#[derive(Clone, Copy, Debug)]
pub struct Departure<'a> {
    /// Addresses and ports.
    pub tuple: &'a FourTuple,
    /// Its header; the payload is in `pieces`.
    pub segment: &'a Segment<'static>,
    /// Its payload.
    pub pieces: &'a Pieces<'a>,
    /// Payload length of each segment, if the device cuts a longer payload.
    pub mss: u16,
    /// True if it was sent before.
    pub is_retransmission: bool,
    /// Class of service. RFC 2474
    pub dscp: u8,
    /// ECN codepoint for its packet.
    pub ecn: Ecn,
}

impl Shard {
    /// Sends due segments, until `emit` reports that no more fits. `len_max` is the longest payload
    /// that the device cuts into segments, 0 if it does not; it is more for connections with
    /// [`Shard::set_long`].
    pub fn transmit(
        &mut self,
        now: Instant,
        len_max: u32,
        source: &impl Writer,
        mut emit: impl FnMut(&Departure<'_>) -> bool,
    ) {
        while let Some((tuple, outgoing)) = self.replies.pop_front() {
            let is_room_left = emit(&Departure {
                tuple: &tuple,
                segment: &outgoing.segment,
                pieces: &Pieces::default(),
                mss: outgoing.mss,
                is_retransmission: false,
                dscp: 0,
                ecn: outgoing.ecn,
            });
            if !is_room_left {
                return;
            }
        }
        for _ in 0..self.send_queue.len() {
            let Some(index) = self.send_queue.pop_front() else {
                return;
            };
            self.flows[index as usize].is_in_send_queue = false;
            match self.transmit_of(now, index, len_max, source, &mut emit) {
                Served::Done => {
                    let deadline = self.flows[index as usize].connection.deadline();
                    self.wheel.arm(index, deadline);
                    self.free_if_done(index);
                }
                Served::QuotaUsed => self.wake(index),
                Served::Full => {
                    self.wake(index);
                    return;
                }
            }
        }
    }

    /// True if [`Shard::transmit`] has flows to serve.
    pub fn has_to_transmit(&self) -> bool {
        !self.replies.is_empty() || !self.send_queue.is_empty()
    }

    fn transmit_of(
        &mut self,
        now: Instant,
        index: u32,
        len_max: u32,
        source: &impl Writer,
        emit: &mut impl FnMut(&Departure<'_>) -> bool,
    ) -> Served {
        let id = self.id_of(index);
        let flow = &mut self.flows[index as usize];
        let config = self.configs.of(&flow.tuple);
        let len_max = if flow.is_long { len_max.max(self.long_len_max) } else { len_max };
        for _ in 0..self.limits.turn_segments_max {
            let Some(outgoing) = flow.connection.transmit(config, now, len_max) else {
                return Served::Done;
            };
            let mut pieces = Pieces::default();
            let len = outgoing.len as usize;
            if len > 0 {
                gather(&flow.send, source, id, outgoing.offset, len, &mut pieces);
            }
            let is_room_left = emit(&Departure {
                tuple: &flow.tuple,
                segment: &outgoing.segment,
                pieces: &pieces,
                mss: outgoing.mss,
                is_retransmission: outgoing.is_retransmission,
                dscp: flow.dscp,
                ecn: outgoing.ecn,
            });
            if !is_room_left {
                return Served::Full;
            }
        }
        Served::QuotaUsed
    }
}

/// Takes bytes from the connection's own ring, if it has one, or else from the application.
fn gather<'a>(
    ring: &'a SendBuffer,
    source: &'a impl Writer,
    id: FlowId,
    offset: u64,
    len: usize,
    pieces: &mut Pieces<'a>,
) {
    if ring.end() > 0 {
        let (front, back) = ring.slices(offset, len);
        pieces.push(front);
        pieces.push(back);
    } else {
        source.gather(id, offset, len, pieces);
    }
    assert_eq!(pieces.len(), len, "at offset {offset} of {id:?}");
}

/// Outcome of serving one flow.
enum Served {
    /// The flow has nothing more.
    Done,
    /// The flow has sent its share; others are served first.
    QuotaUsed,
    /// The device is full.
    Full,
}
