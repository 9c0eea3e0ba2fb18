//! Device names such as `tap:weft0`, and one type for all kinds of opened devices.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::str::FromStr;

use super::packet::Packet;
use super::tap::Tap;
use super::xdp::Xdp;
use super::{Capabilities, Device, Losses, OutgoingFrame, ReceiveBurst, TransmitError, sys};
use crate::time::Instant;
use crate::wire::ethernet::EthernetAddress;

/// `tap:NAME`, `packet:NAME` or `xdp:NAME`, with the name of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceName {
    /// Kind of the device.
    pub kind: DeviceKind,
    /// Interface name of 1 to 15 bytes.
    pub interface: String,
}

/// Way of exchanging frames with an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// [`Tap`], which is created if it does not exist.
    Tap,
    /// [`Packet`].
    Packet,
    /// [`Xdp`].
    Xdp,
}

impl DeviceName {
    /// Opens `queues` queues of the interface, one device for each.
    ///
    /// # Errors
    ///
    /// Errors of [`Tap::open`], [`Packet::open`] and [`Xdp::open`].
    pub fn open(&self, queues: usize) -> io::Result<Vec<NamedDevice>> {
        fn all<D>(opened: Vec<D>, named: fn(D) -> NamedDevice) -> Vec<NamedDevice> {
            opened.into_iter().map(named).collect()
        }
        let name = &*self.interface;
        Ok(match self.kind {
            DeviceKind::Tap => all(Tap::open(name, queues, true)?, NamedDevice::Tap),
            DeviceKind::Packet => all(Packet::open(name, queues)?, NamedDevice::Packet),
            DeviceKind::Xdp => all(Xdp::open(name, queues)?, NamedDevice::Xdp),
        })
    }

    /// Ethernet address that a netstack on this device must have, if it cannot choose: AF_XDP
    /// receives only the frames that the card accepts for its interface.
    ///
    /// # Errors
    ///
    /// `ENODEV` if there is no such interface.
    pub fn fixed_mac(&self) -> io::Result<Option<EthernetAddress>> {
        match self.kind {
            DeviceKind::Tap | DeviceKind::Packet => Ok(None),
            DeviceKind::Xdp => sys::mac_of(&self.interface).map(Some),
        }
    }
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceName, String> {
        let (kind, interface) = text.split_once(':').unwrap_or((text, ""));
        let kind = match kind {
            "tap" => DeviceKind::Tap,
            "packet" => DeviceKind::Packet,
            "xdp" => DeviceKind::Xdp,
            _ => {
                return Err(format!(
                    "'{text}' is not a device; write tap:NAME, packet:NAME or xdp:NAME"
                ));
            }
        };
        sys::interface_name(interface).map_err(|error| error.to_string())?;
        Ok(DeviceName { kind, interface: interface.to_owned() })
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            DeviceKind::Tap => "tap",
            DeviceKind::Packet => "packet",
            DeviceKind::Xdp => "xdp",
        };
        write!(f, "{kind}:{}", self.interface)
    }
}

/// Device that a [`DeviceName`] opens.
#[expect(missing_docs, reason = "the types say it")]
#[expect(clippy::large_enum_variant, reason = "a shard has one, and asks it for each frame")]
pub enum NamedDevice {
    Tap(Tap),
    Packet(Packet),
    Xdp(Xdp),
}

macro_rules! each {
    ($self:ident, $device:ident => $call:expr) => {
        match $self {
            NamedDevice::Tap($device) => $call,
            NamedDevice::Packet($device) => $call,
            NamedDevice::Xdp($device) => $call,
        }
    };
}

impl Device for NamedDevice {
    fn capabilities(&self) -> Capabilities {
        each!(self, device => device.capabilities())
    }

    fn receive(&mut self, now: Instant, burst: &mut ReceiveBurst) -> io::Result<()> {
        each!(self, device => device.receive(now, burst))
    }

    fn transmit(&mut self, now: Instant, frame: &OutgoingFrame<'_>) -> Result<(), TransmitError> {
        each!(self, device => device.transmit(now, frame))
    }

    fn flush(&mut self, now: Instant) -> io::Result<()> {
        each!(self, device => device.flush(now))
    }

    fn takes(&self, local_port: u16, remote_port: u16) -> Option<bool> {
        each!(self, device => device.takes(local_port, remote_port))
    }

    fn losses(&mut self) -> Losses {
        each!(self, device => device.losses())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        each!(self, device => device.descriptor())
    }

    fn wakes_at(&self) -> Option<Instant> {
        each!(self, device => device.wakes_at())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_display_as_written() {
        for text in ["tap:weft0", "packet:eth0", "xdp:veth-1"] {
            assert_eq!(text.parse::<DeviceName>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn bad_names_are_refused_with_the_syntax() {
        for text in ["", "weft0", "tun:weft0", "TAP:weft0"] {
            let why = text.parse::<DeviceName>().unwrap_err();
            assert!(why.contains("write tap:NAME"), "{why}");
        }
        for text in ["tap", "tap:", "tap:a/b", "packet:a-name-of-16-byt"] {
            let why = text.parse::<DeviceName>().unwrap_err();
            assert!(why.contains("is not the name of an interface"), "{why}");
        }
    }
}
