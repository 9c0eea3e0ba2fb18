//! What TAP and packet sockets have in common: a descriptor that takes and gives a frame with each
//! call, with a virtio-net header in front.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsFd;

use rustix::io::{Errno, readv, writev};

use super::{Offload, OutgoingFrame, ReceiveBurst, TransmitError, Verified};
use crate::wire::vnet::{HEADER_LEN, VnetChecksum, VnetGso, VnetHeader};

/// A header, and the frame's pieces: what one `writev` takes.
const SLICES_MAX: usize = 2 + OutgoingFrame::PIECES_MAX;

/// Reads frames until there are no more, or no more fit. Those whose header cannot be are dropped
/// and counted.
pub(super) fn receive(
    fd: impl AsFd,
    burst: &mut ReceiveBurst,
    dropped: &mut u64,
) -> io::Result<()> {
    while let Some(room) = burst.room() {
        let mut header = [0; HEADER_LEN];
        let mut slices = [IoSliceMut::new(&mut header), IoSliceMut::new(room)];
        let read = match readv(&fd, &mut slices) {
            Ok(read) => read,
            Err(Errno::AGAIN) => break,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        let parsed = VnetHeader::parse(&header);
        match (read.checked_sub(HEADER_LEN), parsed) {
            (Some(len), Ok((header, _))) => {
                let segment_len = header.gso.map(|gso| gso.segment_len);
                burst.push(len, verified(&header), segment_len);
            }
            _ => *dropped += 1,
        }
    }
    Ok(())
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
        checksum: VnetChecksum::Needed {
            start: checksum.start,
            offset: checksum.offset,
        },
        gso,
    }
}
