//! A shard on its device: frames in, frames out.
//!
//! ```text
//!   device ─▶ burst of frames ─▶ Interface ─▶ segments, path errors ─▶ Shard ─▶ events
//!   device ◀─ headers | pieces of payload ◀─ Interface ◀─ departures ◀─ Shard ◀─ application
//! ```
//!
//! A round of its owner's loop:
//!
//! ```text
//!   netstack.receive(now)?              timers, then a burst of frames
//!   while let Some(event) = netstack.shard().next_event() { … }
//!   netstack.transmit(now, &writer)?    segments that are due
//!   wait for the device's descriptor, or until netstack.wakes_at()
//! ```
//!
//! A frame that a full device refuses is kept whole and leaves first the next time: the connection
//! has counted it as sent. There is at most one such frame, since nothing else is sent before it. A
//! frame that has become too long for the device counts as a router's report: the connection sends
//! shorter segments. A frame above 64 KiB is not kept, because the kernel may lack memory for so
//! much at once for a long time. It counts as lost, and its connection sends shorter ones.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::{ConnectError, Departure, FlowId, Shard, ShardLimits, Writer};
use crate::device::{
    BigTcp, Device, Losses, Offload, OutgoingFrame, PartialChecksum, ReceiveBurst, Segmentation,
    TransmitError,
};
use crate::ip::{
    Delivery, HEADERS_LEN_MAX, Interface, IpConfig, IpFields, PathError, PathErrorKind,
};
use crate::tcp::secret::FourTuple;
use crate::tcp::{TcpConfig, TcpEvents};
use crate::time::Instant;
use crate::wire::ipv4::{self, PACKET_LEN_MAX};
use crate::wire::tcp::{self, Flags, HEADER_LEN_MAX, Segment};

/// Frames that are taken from the device in one turn.
pub const BURST_FRAMES_MAX: usize = 64;

/// Interval at which the device is asked for its losses, which costs a system call.
const LOSSES_EVERY: Duration = Duration::from_secs(1);

/// IP's and TCP's headers, without options: what an MTU loses to them.
const HEADERS_V4: usize = 20 + 20;
const HEADERS_V6: usize = 40 + 20;

fn headers_to(peer: IpAddr) -> usize {
    match peer {
        IpAddr::V4(_) => HEADERS_V4,
        IpAddr::V6(_) => HEADERS_V6,
    }
}

/// Payload of a segment without options in a packet of `mtu` bytes.
fn mss_of(mtu: usize, headers: usize) -> u16 {
    mtu.saturating_sub(headers).min(usize::from(u16::MAX)) as u16
}

/// Largest payload of a packet of that length, whatever its headers are.
fn payload_len_max(packet_len: usize) -> usize {
    packet_len.saturating_sub(HEADERS_LEN_MAX + HEADER_LEN_MAX)
}

/// A host's TCP, with its device.
pub struct Netstack<D> {
    shard: Shard,
    interface: Interface,
    device: D,
    burst: ReceiveBurst,
    /// Frame that the device did not take yet.
    kept: KeptFrame,
    /// Segments without a route to their peer. They count as lost.
    unroutable: u64,
    /// Losses of the device at the last query, and the time of the next.
    losses: Losses,
    losses_at: Instant,
}

/// A frame that was not taken.
struct KeptFrame {
    bytes: Vec<u8>,
    offload: Offload,
}

impl<D: Device> Netstack<D> {
    /// A netstack on `device`. The MSS in `tcp` is replaced by that of the MTU.
    pub fn new(
        device: D,
        interface: IpConfig,
        tcp: TcpConfig,
        limits: ShardLimits,
        key: [u8; 16],
    ) -> Netstack<D> {
        let capabilities = device.capabilities();
        let big_len_max = capabilities.big_tcp.map_or(0, |big| big.len_max);
        assert!(
            big_len_max <= BigTcp::LEN_MAX,
            "packets of {big_len_max} bytes, above {}",
            BigTcp::LEN_MAX
        );
        let v4 = TcpConfig { mss: mss_of(interface.mtu, HEADERS_V4), mss_default: 536, ..tcp };
        // RFC 9293 3.7.1: IPv6 passes 1280 bytes everywhere.
        let v6 = TcpConfig { mss: mss_of(interface.mtu, HEADERS_V6), mss_default: 1220, ..tcp };
        let mut shard = Shard::new_dual(v4, v6, limits, key);
        shard.set_long_len_max(payload_len_max(big_len_max) as u32);
        Netstack {
            shard,
            interface: Interface::new(interface),
            burst: ReceiveBurst::new(BURST_FRAMES_MAX, capabilities.receive_len_max),
            device,
            kept: KeptFrame { bytes: Vec::new(), offload: Offload::None },
            unroutable: 0,
            losses: Losses::default(),
            losses_at: Instant::START,
        }
    }

    /// Its connections.
    pub fn shard(&mut self) -> &mut Shard {
        &mut self.shard
    }

    /// Its addresses and neighbours.
    pub fn interface(&mut self) -> &mut Interface {
        &mut self.interface
    }

    /// Its device.
    pub fn device(&mut self) -> &mut D {
        &mut self.device
    }

    /// Segments that were dropped because there was no route to their peer.
    pub fn unroutable(&self) -> u64 {
        self.unroutable
    }

    /// Frames that the device has lost, as of the last turn or up to a second before it. Only turns
    /// update the number.
    pub fn losses(&self) -> Losses {
        self.losses
    }

    /// Opens a connection, from the own address that suits the peer's.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]
    pub fn connect(&mut self, now: Instant, remote: SocketAddr) -> Result<FlowId, ConnectError> {
        let local = self.interface.source_for(remote.ip());
        self.connect_from_address(now, local.ok_or(ConnectError::NoAddress)?, remote)
    }

    /// Opens a connection from one of its addresses.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]
    pub fn connect_from_address(
        &mut self,
        now: Instant,
        local: IpAddr,
        remote: SocketAddr,
    ) -> Result<FlowId, ConnectError> {
        // RFC 9293 3.9.1.1, MUST-46
        let is_one_host = self.interface.is_one_host(remote.ip());
        if !is_one_host || !self.interface.has_route(now, remote.ip()) {
            return Err(ConnectError::NoAddress);
        }
        let device = &self.device;
        let remote_port = remote.port();
        if device.takes(0, remote_port).is_none() {
            return Err(ConnectError::NotAlone);
        }
        let comes_here = |local_port| device.takes(local_port, remote_port) == Some(true);
        self.shard.connect_from_any(now, local, remote, comes_here)
    }

    /// Handles due timers and takes in a burst of frames. Returns the number of frames: after a
    /// full burst there may be more.
    ///
    /// # Errors
    ///
    /// Errors of the device.
    pub fn receive(&mut self, now: Instant) -> io::Result<usize> {
        self.shard.expire(now);
        while let Some(peer) = self.shard.next_silent() {
            self.interface.probe(now, peer);
        }
        self.interface.on_timer(now);
        if now >= self.losses_at {
            self.losses = self.device.losses();
            self.losses_at = now + LOSSES_EVERY;
        }
        self.burst.clear();
        let received = self.device.receive(now, &mut self.burst);
        let mut confirmed = None;
        for index in 0..self.burst.len() {
            match self.interface.receive(now, self.burst.frame(index)) {
                Delivery::Segment(arrived) => {
                    let ours = arrived.dst;
                    let peer = arrived.src;
                    let events = self.shard.receive(now, ours, peer, &arrived.segment, arrived.ecn);
                    if events.contains(TcpEvents::RELEASED) && confirmed != Some(peer) {
                        // Own segments arrive, so the route works. RFC 4861 7.3.1
                        self.interface.confirm(now, peer);
                        confirmed = Some(peer);
                    }
                    if events.contains(TcpEvents::CONNECTED) {
                        let tuple = FourTuple {
                            local: ours,
                            local_port: arrived.segment.dst_port,
                            remote: peer,
                            remote_port: arrived.segment.src_port,
                        };
                        self.opened(now, &tuple);
                    }
                }
                Delivery::Error(error) => self.on_path_error(now, &error),
                Delivery::Nothing => {}
            }
        }
        let mss_v6 = mss_of(self.interface.link_mtu_v6(), HEADERS_V6);
        self.shard.set_mss_v6(mss_v6);
        received.map(|()| self.burst.len())
    }

    /// Sets the MSS of a connection that has just opened by the known path MTU, and its burst by
    /// the device and the peer.
    fn opened(&mut self, now: Instant, tuple: &FourTuple) {
        if let Some(mtu) = self.interface.path_mtu_to(now, tuple.remote) {
            let mss = mss_of(mtu, headers_to(tuple.remote));
            self.shard.limit_mss(tuple, mss);
        }
        if let Some(big) = self.device.capabilities().big_tcp
            && tuple.remote.is_ipv4()
            && self.interface.resolves_to(now, tuple.remote, big.host)
        {
            self.shard.set_long(tuple, true);
        }
    }

    fn on_path_error(&mut self, now: Instant, error: &PathError) {
        let local = error.local;
        let remote = error.remote;
        let tuple = FourTuple {
            local: local.ip(),
            local_port: local.port(),
            remote: remote.ip(),
            remote_port: remote.port(),
        };
        match error.kind {
            PathErrorKind::TooBig { mtu } => {
                let mss = mss_of(mtu.into(), headers_to(remote.ip()));
                if self.shard.path_takes(&tuple, error.seq, mss) {
                    self.interface.path_mtu_lowered(now, remote.ip(), mtu);
                }
            }
            PathErrorKind::Hard => self.shard.unreachable(&tuple, error.seq, true),
            PathErrorKind::Soft => self.shard.unreachable(&tuple, error.seq, false),
        }
    }

    /// Transmits due segments until none are left or the device is full.
    ///
    /// # Errors
    ///
    /// Errors of the device.
    pub fn transmit(&mut self, now: Instant, writer: &impl Writer) -> io::Result<()> {
        self.interface.transmit(now, &mut self.device);
        if !self.kept.leaves(now, &mut self.device)? {
            return self.device.flush(now);
        }
        let len_max = payload_len_max(self.device.capabilities().segmentation_len_max);
        let mut failed = None;
        while self.shard.has_to_transmit() && self.kept.bytes.is_empty() && failed.is_none() {
            let mut too_long = None;
            let mut refused_big = None;
            let mut egress = Egress {
                interface: &mut self.interface,
                device: &mut self.device,
                kept: &mut self.kept,
                unroutable: &mut self.unroutable,
                too_long: &mut too_long,
                refused_big: &mut refused_big,
            };
            self.shard.transmit(now, len_max as u32, writer, |departure| {
                match egress.send(now, departure) {
                    Ok(is_room_left) => is_room_left,
                    Err(error) => {
                        failed = Some(error);
                        false
                    }
                }
            });
            if let Some(error) = too_long {
                self.on_path_error(now, &error);
            }
            if let Some(tuple) = refused_big {
                self.shard.set_long(&tuple, false);
            }
        }
        // Asks for neighbours that the segments need.
        self.interface.transmit(now, &mut self.device);
        let flushed = self.device.flush(now);
        failed.map_or(flushed, Err)
    }

    /// Time of the next work that no arriving frame causes.
    pub fn wakes_at(&self) -> Instant {
        let interface = self.interface.wakes_at().unwrap_or(Instant::NEVER);
        let device = self.device.wakes_at().unwrap_or(Instant::NEVER);
        self.shard.wakes_at().min(interface).min(device)
    }

    /// True if the device had no space for a frame: nothing else leaves before it.
    pub fn is_held_up(&self) -> bool {
        !self.kept.bytes.is_empty() || self.interface.is_held_up()
    }
}

/// Parts that a departure passes on its way out.
struct Egress<'a, D> {
    interface: &'a mut Interface,
    device: &'a mut D,
    kept: &'a mut KeptFrame,
    unroutable: &'a mut u64,
    /// Report of a segment that the device refuses as too long, as a router's would be.
    too_long: &'a mut Option<PathError>,
    /// The connection whose frame above 64 KiB the device had no room for.
    refused_big: &'a mut Option<FourTuple>,
}

impl<D: Device> Egress<'_, D> {
    /// Sends a segment; returns true if another one fits.
    fn send(&mut self, now: Instant, departure: &Departure<'_>) -> io::Result<bool> {
        let tuple = departure.tuple;
        let payload_len = departure.pieces.len();
        let fields = IpFields {
            src: tuple.local,
            dst: tuple.remote,
            dscp: departure.dscp,
            ecn: departure.ecn,
            len: departure.segment.header_len() + payload_len,
        };
        let mut headers = [0; HEADERS_LEN_MAX + HEADER_LEN_MAX];
        let Ok(written) = self.interface.write_headers(now, &fields, &mut headers) else {
            *self.unroutable += 1;
            return Ok(true);
        };
        if !written.is_resolved && payload_len > usize::from(departure.mss) {
            // A frame that waits for a neighbour is not cut later: its first segment waits, and the
            // others are sent again.
            let flags = departure.segment.flags.without(Flags::PSH | Flags::FIN);
            let segment = Segment { flags, ..*departure.segment };
            let first = Departure {
                segment: &segment,
                pieces: &departure.pieces.first(departure.mss.into()),
                ..*departure
            };
            return self.send(now, &first);
        }
        let len = written.len + departure.segment.emit(&mut headers[written.len..]);
        let header = &mut headers[written.len..len];
        let offload = if written.is_resolved {
            self.offload(written.len, departure)
        } else {
            // A frame that waits for its neighbour is complete.
            Offload::None
        };
        match offload {
            Offload::None => {
                tcp::write_checksum(header, written.pseudo_header, departure.pieces.sum());
            }
            _ => tcp::write_partial_checksum(header, written.pseudo_header),
        }
        let headers = &headers[..len];
        let payload = departure.pieces.as_slice();
        if !written.is_resolved {
            self.interface.hold(now, tuple.remote, headers, payload);
            return Ok(true);
        }
        let frame = OutgoingFrame { headers, payload, offload };
        match self.device.transmit(now, &frame) {
            Ok(()) => Ok(true),
            Err(TransmitError::Full) if ipv4::HEADER_LEN + fields.len > PACKET_LEN_MAX => {
                *self.refused_big = Some(*tuple);
                Ok(false)
            }
            Err(TransmitError::Full) => {
                self.kept.keep(&frame);
                Ok(false)
            }
            Err(TransmitError::TooLong { mtu }) => {
                *self.too_long = Some(PathError {
                    local: SocketAddr::new(tuple.local, tuple.local_port),
                    remote: SocketAddr::new(tuple.remote, tuple.remote_port),
                    seq: departure.segment.seq,
                    kind: PathErrorKind::TooBig { mtu: mtu.min(usize::from(u16::MAX)) as u16 },
                });
                Ok(false)
            }
            Err(TransmitError::Io(error)) => Err(error),
        }
    }

    fn offload(&self, start: usize, departure: &Departure<'_>) -> Offload {
        let capabilities = self.device.capabilities();
        let checksum = PartialChecksum { start: start as u16, offset: tcp::CHECKSUM_OFFSET };
        if departure.pieces.len() > usize::from(departure.mss) {
            return Offload::Segmentation(Segmentation {
                checksum,
                is_v6: matches!(departure.tuple.remote, IpAddr::V6(_)),
                segment_len: departure.mss,
                has_cwr: departure.segment.flags.contains(Flags::CWR),
            });
        }
        if capabilities.has_checksum_offload { Offload::Checksum(checksum) } else { Offload::None }
    }
}

impl KeptFrame {
    fn keep(&mut self, frame: &OutgoingFrame<'_>) {
        self.offload = frame.offload;
        self.bytes.resize(frame.len(), 0);
        frame.gather(&mut self.bytes);
    }

    /// Transmits the kept frame if there is one; true if none is left.
    fn leaves(&mut self, now: Instant, device: &mut impl Device) -> io::Result<bool> {
        if self.bytes.is_empty() {
            return Ok(true);
        }
        let frame = OutgoingFrame { headers: &self.bytes, payload: &[], offload: self.offload };
        match device.transmit(now, &frame) {
            // A frame that is too long is lost: the device reports it again when it is resent.
            Ok(()) | Err(TransmitError::TooLong { .. }) => {
                self.bytes.clear();
                Ok(true)
            }
            Err(TransmitError::Full) => Ok(false),
            Err(TransmitError::Io(error)) => Err(error),
        }
    }
}
