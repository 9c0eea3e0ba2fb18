//! Capture of the frames of a device, as a file for `tcpdump -r` and Wireshark.
//!
//! ```text
//!   | magic a1b23c4d 4 | version 2.4 4 | 0 8 | longest record 4 | Ethernet 4 |   file
//!   | seconds 4 | nanoseconds 4 | length here 4 | length 4 | bytes …         |   for each frame
//! ```
//!
//! Times come from the caller, so a run in virtual time is captured in virtual time. A frame is one
//! record: a frame with an offload is long, and has the checksum that the device will complete.

use std::io::{self, Write};
use std::os::fd::BorrowedFd;

use super::{Capabilities, Device, Losses, Offload, OutgoingFrame, ReceiveBurst, TransmitError};
use crate::time::Instant;
use crate::wire::ethernet;

/// Times in nanoseconds, in the byte order of what follows.
const MAGIC: u32 = 0xa1b2_3c4d;
const LINK_TYPE_ETHERNET: u32 = 1;

/// The longest frame, and more than any device gives.
const RECORD_LEN_MAX: usize = 256 * 1024;

/// A device whose frames are written down.
pub struct Pcap<D, W: Write> {
    device: D,
    capture: Capture<W>,
    /// A frame that leaves, put together.
    scratch: Box<[u8]>,
}

impl<D: Device, W: Write> Pcap<D, W> {
    /// Writes the frames of `device` to `file`, which should be buffered.
    ///
    /// # Errors
    ///
    /// What `file` says of the first bytes. What it says later ends the capture, not the network:
    /// [`Pcap::finish`] returns it.
    pub fn new(device: D, mut file: W) -> io::Result<Pcap<D, W>> {
        let mut header = [0; 24];
        header[0..4].copy_from_slice(&MAGIC.to_ne_bytes());
        header[4..6].copy_from_slice(&2u16.to_ne_bytes());
        header[6..8].copy_from_slice(&4u16.to_ne_bytes());
        header[16..20].copy_from_slice(&(RECORD_LEN_MAX as u32).to_ne_bytes());
        header[20..24].copy_from_slice(&LINK_TYPE_ETHERNET.to_ne_bytes());
        file.write_all(&header)?;
        let capabilities = device.capabilities();
        Ok(Pcap {
            device,
            capture: Capture {
                file,
                written: 0,
                error: None,
            },
            scratch: vec![0; ethernet::HEADER_LEN + capabilities.packet_len_max()].into(),
        })
    }

    /// Number of frames in the capture.
    pub fn written(&self) -> u64 {
        self.capture.written
    }

    /// The device whose frames are written down.
    pub fn device(&mut self) -> &mut D {
        &mut self.device
    }

    /// Ends the capture.
    ///
    /// # Errors
    ///
    /// The first that the file has given.
    pub fn finish(mut self) -> io::Result<(D, W)> {
        if let Some(error) = self.capture.error {
            return Err(error);
        }
        self.capture.file.flush()?;
        Ok((self.device, self.capture.file))
    }
}

impl<D: Device, W: Write> Device for Pcap<D, W> {
    fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    fn receive(&mut self, now: Instant, burst: &mut ReceiveBurst) -> io::Result<()> {
        let before = burst.len();
        let received = self.device.receive(now, burst);
        for index in before..burst.len() {
            self.capture.record(now, burst.frame(index).bytes);
        }
        received
    }

    fn transmit(&mut self, now: Instant, frame: &OutgoingFrame<'_>) -> Result<(), TransmitError> {
        self.device.transmit(now, frame)?;
        let len = frame.gather(&mut self.scratch);
        let whole = &mut self.scratch[..len];
        match frame.offload {
            Offload::None => {}
            Offload::Checksum(checksum) => checksum.complete(whole),
            Offload::Segmentation(cut) => cut.checksum.complete(whole),
        }
        self.capture.record(now, whole);
        Ok(())
    }

    fn flush(&mut self, now: Instant) -> io::Result<()> {
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
        self.device.wakes_at()
    }
}

struct Capture<W> {
    file: W,
    written: u64,
    /// The first that the file has given; nothing is written after it.
    error: Option<io::Error>,
}

impl<W: Write> Capture<W> {
    fn record(&mut self, now: Instant, bytes: &[u8]) {
        if self.error.is_none() {
            match write_record(&mut self.file, now, bytes) {
                Ok(()) => self.written += 1,
                Err(error) => self.error = Some(error),
            }
        }
    }
}

fn write_record(file: &mut impl Write, now: Instant, bytes: &[u8]) -> io::Result<()> {
    let kept = &bytes[..bytes.len().min(RECORD_LEN_MAX)];
    let nanos = now.as_nanos();
    let mut header = [0; 16];
    let fields = [
        (nanos / 1_000_000_000) as u32,
        (nanos % 1_000_000_000) as u32,
        kept.len() as u32,
        bytes.len() as u32,
    ];
    for (place, field) in header.chunks_exact_mut(4).zip(fields) {
        place.copy_from_slice(&field.to_ne_bytes());
    }
    file.write_all(&header)?;
    file.write_all(kept)
}
