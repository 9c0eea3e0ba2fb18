//! Common part of TAP and packet sockets: a descriptor that reads and writes one frame a call, with
//! a virtio-net header in front.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsFd;

use rustix::io::{Errno, readv, writev};

use super::others::is_tcp;
use super::{Losses, Offload, OutgoingFrame, ReceiveBurst, TransmitError, Verified};
use crate::wire::vnet::{HEADER_LEN, VnetChecksum, VnetGso, VnetHeader};

/// A header, and the frame's pieces: what one `writev` takes.
const SLICES_MAX: usize = 2 + OutgoingFrame::PIECES_MAX;

/// Frames of a flood that one receive drops before the others are served: the default length of a
/// TAP queue.
const REFUSED_MAX: u64 = 1000;

/// Reads frames until none are left or no more fit, but only `others_max` that are not TCP. Further
/// such frames are dropped and counted, as are those with an invalid header. Returns true if none
/// are left.
pub(super) fn receive(
    fd: impl AsFd,
    burst: &mut ReceiveBurst,
    others_max: usize,
    losses: &mut Losses,
) -> io::Result<bool> {
    let refused_max = losses.refused + REFUSED_MAX;
    let mut others_left = others_max;
    while burst.spare_buffer().is_some() && losses.refused < refused_max {
        if !receive_one(&fd, burst, &mut others_left, losses)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads a frame. Returns false if there is none, or no space for it.
pub(super) fn receive_one(
    fd: impl AsFd,
    burst: &mut ReceiveBurst,
    others_left: &mut usize,
    losses: &mut Losses,
) -> io::Result<bool> {
    let Some(buffer) = burst.spare_buffer() else {
        return Ok(false);
    };
    let mut header = [0; HEADER_LEN];
    let mut slices = [IoSliceMut::new(&mut header), IoSliceMut::new(buffer)];
    let read = loop {
        match readv(&fd, &mut slices) {
            Ok(read) => break read,
            Err(Errno::AGAIN) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    };
    let Some(len) = read.checked_sub(HEADER_LEN) else {
        losses.malformed += 1;
        return Ok(true);
    };
    if !is_tcp(&buffer[..len]) {
        let Some(left) = others_left.checked_sub(1) else {
            losses.refused += 1;
            return Ok(true);
        };
        *others_left = left;
    }
    take(&header, len, burst, losses);
    Ok(true)
}

/// Adds a frame of `len` bytes, which lies at the start of the burst's free memory.
pub(super) fn take(header: &[u8], len: usize, burst: &mut ReceiveBurst, losses: &mut Losses) {
    match VnetHeader::parse(header) {
        Ok((header, _)) => {
            let segment_len = header.gso.map(|gso| gso.segment_len);
            burst.push(len, verified(&header), segment_len);
        }
        Err(_) => losses.malformed += 1,
    }
}

/// A checksum that is still to be completed belongs to a frame that was on no wire.
fn verified(header: &VnetHeader) -> Verified {
    match header.checksum {
        VnetChecksum::Unknown => Verified::No,
        VnetChecksum::Valid | VnetChecksum::Needed { .. } => Verified::Transport,
    }
}

/// Writes a frame.
pub(super) fn transmit(fd: impl AsFd, frame: &OutgoingFrame<'_>) -> Result<(), TransmitError> {
    let mut header = [0; HEADER_LEN];
    header_of(frame).emit(&mut header);
    let mut slices = [IoSlice::new(&[]); SLICES_MAX];
    slices[0] = IoSlice::new(&header);
    slices[1] = IoSlice::new(frame.headers);
    for (slice, piece) in slices[2..].iter_mut().zip(frame.payload) {
        *slice = IoSlice::new(piece);
    }
    let slices = &slices[..2 + frame.payload.len()];
    loop {
        return match writev(&fd, slices) {
            Ok(_) => Ok(()),
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN | Errno::NOBUFS) => Err(TransmitError::Full),
            Err(error) => Err(TransmitError::Io(error.into())),
        };
    }
}

fn header_of(frame: &OutgoingFrame<'_>) -> VnetHeader {
    let (checksum, gso) = match frame.offload {
        Offload::None => return VnetHeader::default(),
        Offload::Checksum(checksum) => (checksum, None),
        Offload::Segmentation(cut) => {
            let gso = VnetGso {
                is_v6: cut.is_v6,
                has_cwr: cut.has_cwr,
                headers_len: frame.headers.len() as u16,
                segment_len: cut.segment_len,
            };
            (cut.checksum, Some(gso))
        }
    };
    VnetHeader {
        checksum: VnetChecksum::Needed { start: checksum.start, offset: checksum.offset },
        gso,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{PartialChecksum, Segmentation};
    use std::os::unix::net::UnixDatagram;

    /// Datagrams keep their ends, as frames do.
    fn pair() -> (UnixDatagram, UnixDatagram) {
        let (near, far) = UnixDatagram::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        (near, far)
    }

    #[test]
    fn frames_cross_with_their_offload() {
        let (near, far) = pair();
        let checksum = PartialChecksum { start: 34, offset: 16 };
        let cut = Segmentation { checksum, is_v6: true, segment_len: 1440, has_cwr: true };
        let offloads = [Offload::None, Offload::Checksum(checksum), Offload::Segmentation(cut)];
        for offload in offloads {
            let frame =
                OutgoingFrame { headers: b"headers ", payload: &[b"and ", b"payload"], offload };
            transmit(&near, &frame).unwrap();
        }
        let mut burst = ReceiveBurst::new(8, 100);
        let mut losses = Losses::default();
        assert!(receive(&far, &mut burst, usize::MAX, &mut losses).unwrap());
        let seen: Vec<_> =
            burst.frames().map(|frame| (frame.verified, frame.segment_len)).collect();
        let expected =
            [(Verified::No, None), (Verified::Transport, None), (Verified::Transport, Some(1440))];
        assert_eq!(seen, expected);
        assert!(burst.frames().all(|frame| frame.bytes == b"headers and payload"));
        assert_eq!(losses, Losses::default());
    }

    #[test]
    fn bad_vnet_headers_are_dropped_and_counted() {
        let (near, far) = pair();
        near.send(b"short").unwrap();
        // A header that asks for UDP segmentation, an offload that was not enabled.
        near.send(&[0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]).unwrap();
        near.send(&[0; 24]).unwrap();
        let mut burst = ReceiveBurst::new(8, 100);
        let mut losses = Losses::default();
        receive(&far, &mut burst, usize::MAX, &mut losses).unwrap();
        assert_eq!((burst.len(), losses.malformed), (1, 2));
        assert_eq!(burst.frame(0).bytes, [0; 14]);
    }

    /// Seen: while a host sent ARP as fast as it could, a client waited for seconds. Cause: a burst
    /// was full of ARP each time, so the queue was never read to its end and a SYN did not fit.
    /// Cure: a shard that is behind reads on, and keeps little but TCP.
    #[test]
    fn a_lagging_shard_gets_tcp_behind_a_flood() {
        let (near, far) = pair();
        let arp = [&[0; 10][..], &[0xff; 12], &[0x08, 0x06], &[0; 28]].concat();
        let tcp = [&[0; 10][..], &[2; 12], &[0x08, 0], &[0; 9], &[6], &[0; 30]].concat();
        for frame in [&arp, &arp, &arp, &tcp, &arp] {
            near.send(frame).unwrap();
        }
        let mut burst = ReceiveBurst::new(3, 100);
        let mut losses = Losses::default();
        assert!(receive(&far, &mut burst, 1, &mut losses).unwrap());
        let seen: Vec<_> = burst.frames().map(|frame| is_tcp(frame.bytes)).collect();
        assert_eq!((seen, losses.refused), (vec![false, true], 3));
    }

    #[test]
    fn a_full_descriptor_refuses_frames() {
        let (near, _far) = pair();
        near.set_nonblocking(true).unwrap();
        let bytes = [0; 1000];
        let frame = OutgoingFrame { headers: &bytes, payload: &[], offload: Offload::None };
        let taken = (0..1_000_000).map(|_| transmit(&near, &frame));
        let refused = taken.into_iter().find_map(Result::err);
        assert!(matches!(refused, Some(TransmitError::Full)), "{refused:?}");
    }
}
