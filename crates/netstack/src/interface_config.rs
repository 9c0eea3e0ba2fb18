//! Configuration of a network interface: device, addresses, gateways, MTU. Opening it gives one
//! netstack for each shard.
//!
//! ```text
//!   tap:weft0  10.9.0.2/24  fd00:9::2/64  gateway 10.9.0.1         text, by FromStr of its parts
//!        │
//!     InterfaceConfig ── open(shards: 2) ──▶ Netstack on queue 0, Netstack on queue 1
//! ```
//!
//! All shards are one host: the same addresses, the same Ethernet address. A flow is on the shard
//! whose queue its segments come to; a shard that opens a connection chooses a port for which that
//! is its own queue. Frames about the link reach all shards
//! ([`siblings`](crate::device::siblings)).

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;

use siphasher::sip::SipHasher13;

use crate::Netstack;
use crate::device::Device;
use crate::device::name::{DeviceKind, DeviceName, NamedDevice};
use crate::device::siblings::Sibling;
use crate::ip::{IpConfig, MTU_MIN_V6, Prefix};
use crate::stack::ShardLimits;
use crate::tcp::TcpConfig;
use crate::wire::ethernet::EthernetAddress;

/// Least MTU of an IPv4 link: the smallest segments of a connection with their headers, and the
/// shortest packets that the paper on Rusty measures. MTUs reported by routers have another bound,
/// [`MTU_MIN_V4`](crate::ip::MTU_MIN_V4).
const LINK_MTU_MIN_V4: usize = 128;

/// Network interface of a netstack, as a user describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceConfig {
    /// Device that carries its frames.
    pub device: DeviceName,
    /// Addresses, each with the prefix that is on the link: at least one.
    pub addresses: Vec<Prefix>,
    /// Gateways for packets that leave the link: at most one of each family.
    pub gateways: Vec<IpAddr>,
    /// Longest IP packet, if that is less than the device takes.
    pub mtu: Option<usize>,
}

/// One queue of an interface's device.
pub type DeviceQueue = Sibling<NamedDevice>;

/// Error of [`InterfaceConfig::check`] and [`InterfaceConfig::open`]. Its text is a sentence for
/// people.
#[derive(Debug)]
pub enum InterfaceError {
    /// The description is wrong.
    Described(String),
    /// The device cannot be opened.
    Device(DeviceName, io::Error),
}

impl InterfaceConfig {
    /// Checks the description as far as possible without opening the device.
    ///
    /// # Errors
    ///
    /// [`InterfaceError::Described`]
    pub fn check(&self) -> Result<(), InterfaceError> {
        let wrong = |why: String| Err(InterfaceError::Described(why));
        if self.addresses.is_empty() {
            return wrong("the netstack needs an address, such as 10.9.0.2/24".to_owned());
        }
        let mut addresses = HashSet::new();
        for prefix in &self.addresses {
            if !prefix.is_of_one_host() {
                return wrong(format!("{prefix} is not an address that a host can have"));
            }
            if !addresses.insert(prefix.address) {
                return wrong(format!("{} is given twice", prefix.address));
            }
        }
        for (at, gateway) in self.gateways.iter().enumerate() {
            if addresses.contains(gateway) {
                return wrong(format!("gateway {gateway} is the netstack's own address"));
            }
            let is_same_family = |other: &IpAddr| other.is_ipv4() == gateway.is_ipv4();
            if self.gateways[..at].iter().any(is_same_family) {
                return wrong(format!(
                    "gateway {gateway} is the second of its family; give only one"
                ));
            }
            let links = || self.addresses.iter().filter(|it| it.contains(*gateway));
            let is_link_local = matches!(gateway, IpAddr::V6(six) if six.is_unicast_link_local());
            if !is_link_local && links().next().is_none() {
                return wrong(format!(
                    "gateway {gateway} is not in the prefix of any address, so it cannot be reached"
                ));
            }
            let of_one_host = |link: &Prefix| {
                let address = *gateway;
                Prefix { address, ..*link }.is_of_one_host()
            };
            if !links().all(of_one_host) {
                return wrong(format!("gateway {gateway} is not an address that a host can have"));
            }
            if gateway.is_ipv6() && self.addresses.iter().all(|it| it.address.is_ipv4()) {
                return wrong(format!(
                    "gateway {gateway} is an IPv6 address, but the netstack has none; give one"
                ));
            }
        }
        match self.mtu {
            Some(mtu) if mtu < self.mtu_min() => Err(self.mtu_is_below(mtu)),
            _ => Ok(()),
        }
    }

    /// Least MTU that the families of its addresses need.
    fn mtu_min(&self) -> usize {
        if self.addresses.iter().all(|it| it.address.is_ipv4()) {
            LINK_MTU_MIN_V4
        } else {
            MTU_MIN_V6
        }
    }

    fn mtu_is_below(&self, mtu: usize) -> InterfaceError {
        let mtu_min = self.mtu_min();
        InterfaceError::Described(format!("MTU {mtu} is below the minimum of {mtu_min}"))
    }

    /// MTU on a device.
    fn mtu_on(&self, device_mtu: usize) -> Result<usize, InterfaceError> {
        let mtu = self.mtu.unwrap_or(device_mtu);
        if mtu > device_mtu {
            return Err(InterfaceError::Described(format!(
                "MTU {mtu} is above {device_mtu}, the MTU of {}",
                self.device
            )));
        }
        if mtu < self.mtu_min() {
            return Err(self.mtu_is_below(mtu));
        }
        Ok(mtu)
    }

    /// Opens the device, with a queue for each of `shards`, and makes a netstack on each.
    ///
    /// # Errors
    ///
    /// [`InterfaceError`]
    pub fn open(
        &self,
        shards: usize,
        tcp: TcpConfig,
        limits: ShardLimits,
    ) -> Result<Vec<Netstack<DeviceQueue>>, InterfaceError> {
        self.open_keyed(shards, tcp, limits, random_key)
    }

    /// Opens as [`InterfaceConfig::open`], with the caller's keys. With the same key in each run, a
    /// host's sequence numbers continue. The key must be secret.
    ///
    /// # Errors
    ///
    /// [`InterfaceError`]
    pub fn open_keyed(
        &self,
        shards: usize,
        tcp: TcpConfig,
        limits: ShardLimits,
        key: impl Fn() -> io::Result<[u8; 16]>,
    ) -> Result<Vec<Netstack<DeviceQueue>>, InterfaceError> {
        self.check()?;
        let refused = |error| InterfaceError::Device(self.device.clone(), error);
        let mac = self.device.fixed_mac().map_err(refused)?;
        let queues = self.device.open(shards).map_err(refused)?;
        let queues = Sibling::family(queues).map_err(refused)?;
        let mtu = self.mtu_on(queues[0].capabilities().mtu)?;
        let interface = IpConfig {
            mac: mac.unwrap_or_else(|| mac_of(self.addresses[0].address)),
            mtu,
            addresses: self.addresses.clone(),
            gateway_v4: self.gateways.iter().find_map(|gateway| match gateway {
                IpAddr::V4(four) => Some(*four),
                IpAddr::V6(_) => None,
            }),
            gateway_v6: self.gateways.iter().find_map(|gateway| match gateway {
                IpAddr::V6(six) => Some(*six),
                IpAddr::V4(_) => None,
            }),
        };
        let netstack = |device| {
            let key = key().map_err(refused)?;
            Ok(Netstack::new(device, interface.clone(), tcp, limits, key))
        };
        queues.into_iter().map(netstack).collect()
    }
}

/// Locally administered Ethernet address for an IP address. It is the same after a restart, so that
/// neighbours need not learn another.
fn mac_of(address: IpAddr) -> EthernetAddress {
    match address {
        IpAddr::V4(four) => {
            let [a, b, c, d] = four.octets();
            EthernetAddress([0x02, 0x77, a, b, c, d])
        }
        // From all octets: hosts of one link may differ in their prefixes alone.
        IpAddr::V6(six) => {
            let hash = SipHasher13::new_with_key(&[0; 16]).hash(&six.octets());
            let [a, b, c, d, e, ..] = hash.to_be_bytes();
            EthernetAddress([0x06, a, b, c, d, e])
        }
    }
}

fn random_key() -> io::Result<[u8; 16]> {
    let mut key = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut key)?;
    Ok(key)
}

impl fmt::Display for InterfaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (device, error) = match self {
            InterfaceError::Described(why) => return f.write_str(why),
            InterfaceError::Device(device, error) => (device, error),
        };
        let DeviceName { kind, interface } = device;
        write!(f, "cannot open {device}: ")?;
        match (error.kind(), error.raw_os_error()) {
            (io::ErrorKind::PermissionDenied, _) => match kind {
                DeviceKind::Tap => write!(
                    f,
                    "this user may not open {interface}; start as root or with CAP_NET_ADMIN, or \
                     create it first, as root: ip tuntap add {interface} mode tap user NAME"
                ),
                DeviceKind::Packet => f.write_str("this needs CAP_NET_RAW; start as root"),
                DeviceKind::Xdp => {
                    f.write_str("this needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF; start as root")
                }
            },
            (_, Some(libc::ENODEV)) => write!(f, "there is no interface {interface}"),
            (io::ErrorKind::ResourceBusy, _) => write!(f, "{interface} is in use"),
            (_, Some(libc::EINVAL)) => match kind {
                DeviceKind::Tap => write!(
                    f,
                    "{interface} is not a TAP interface, or has the wrong number of queues; create \
                     it with `ip tuntap add`, without multi_queue for one worker and with it for \
                     several"
                ),
                DeviceKind::Packet => error.fmt(f),
                DeviceKind::Xdp => write!(
                    f,
                    "{interface} has fewer queues than there are workers; start fewer workers"
                ),
            },
            _ => error.fmt(f),
        }
    }
}

impl std::error::Error for InterfaceError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(addresses: &[&str], gateways: &[&str], mtu: Option<usize>) -> InterfaceConfig {
        InterfaceConfig {
            device: "tap:weft0".parse().unwrap(),
            addresses: addresses.iter().map(|it| it.parse().unwrap()).collect(),
            gateways: gateways.iter().map(|it| it.parse().unwrap()).collect(),
            mtu,
        }
    }

    #[test]
    fn bad_configs_are_refused_with_the_reason() {
        let both = ["10.9.0.2/24", "fd00:9::2/64"];
        for (interface, why) in [
            (interface(&[], &[], None), "needs an address"),
            (interface(&["10.9.0.2/24", "10.9.0.2/16"], &[], None), "twice"),
            (interface(&both, &["10.8.0.1"], None), "not in the prefix of any"),
            (interface(&both, &["10.9.0.2"], None), "own address"),
            (interface(&both, &["10.9.0.1", "10.9.0.3"], None), "the second of its family"),
            (interface(&both, &[], Some(1279)), "minimum of 1280"),
            (interface(&both[..1], &[], Some(127)), "minimum of 128"),
        ] {
            let said = interface.check().unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
        let gateways = ["10.9.0.1", "fe80::1"];
        interface(&both, &gateways, Some(1280)).check().unwrap();
    }

    /// Seen: on a device with an MTU of 600 the report of sixty groups of IPv6 did not fit into its
    /// buffer, and the server panicked. Cause: only an MTU that was named was looked at.
    ///
    /// Seen after that: netstack-mtu failed at 128, 256 and 512 bytes, which its paper has. Cause:
    /// the bound of what routers may say was taken for that of a link.
    #[test]
    fn devices_below_the_least_mtu_are_refused() {
        let both = ["10.9.0.2/24", "fd00:9::2/64"];
        let said = |addresses, named, device_mtu| {
            let mtu = interface(addresses, &[], named).mtu_on(device_mtu);
            mtu.map_err(|error| error.to_string())
        };
        let below = Err("MTU 600 is below the minimum of 1280".to_owned());
        assert_eq!(said(&both, None, 600), below);
        assert_eq!(said(&both[..1], None, 600), Ok(600));
        assert_eq!(said(&both[..1], None, 128), Ok(128));
        assert_eq!(said(&both, Some(1280), 1500), Ok(1280));
        assert!(said(&both, Some(1501), 1500).is_err());
    }

    /// Seen: `--address 10.9.0.0/24`, `127.0.0.1/8` or `::/64` started a server that could not be
    /// reached, without an error. Cause: an address was only parsed. Cure:
    /// [`InterfaceConfig::check`].
    #[test]
    fn addresses_no_host_has_are_refused() {
        for address in [
            "10.9.0.0/24",
            "10.9.0.255/24",
            "127.0.0.1/8",
            "224.0.0.1/8",
            "0.0.0.0/1",
            "255.255.255.255/32",
            "::/64",
            "::1/128",
            "ff02::1/64",
            "::ffff:10.9.0.2/96",
        ] {
            let said = interface(&[address], &[], None).check().unwrap_err();
            assert_eq!(
                said.to_string(),
                format!("{} is not an address that a host can have", address)
            );
        }
        for address in ["10.9.0.0/31", "10.9.0.255/16", "192.0.2.1/32", "fe80::2/64"] {
            interface(&[address], &[], None).check().unwrap();
        }
    }

    /// Seen: `--gateway 10.9.0.255`, and `--gateway fe80::1` without an address of IPv6, started a
    /// server that never sent a packet that way, without an error. Cause: the check only asked if
    /// the prefix of an address has the gateway in it, or if the gateway is link-local.
    #[test]
    fn gateways_no_host_has_are_refused() {
        let said = |addresses: &[&str], gateway: &str| {
            let checked = interface(addresses, &[gateway], None).check();
            checked.unwrap_err().to_string()
        };
        for gateway in ["10.9.0.255", "10.9.0.0"] {
            let why = format!("gateway {gateway} is not an address that a host can have");
            assert_eq!(said(&["10.9.0.2/24", "fd00:9::2/64"], gateway), why);
        }
        let why = said(&["10.9.0.2/24"], "fe80::1");
        assert!(why.contains("is an IPv6 address"), "{why}");
        for (address, gateway) in [
            ("10.9.0.2/31", "10.9.0.3"),
            ("10.9.0.2/16", "10.9.0.255"),
            ("fd00:9::2/64", "fd00:9::"),
            ("fd00:9::2/64", "fe80::1"),
        ] {
            interface(&[address], &[gateway], None).check().unwrap();
        }
    }

    #[test]
    fn prefixes_display_as_written() {
        for text in ["10.9.0.2/24", "fd00:9::2/64", "192.0.2.1/32"] {
            assert_eq!(text.parse::<Prefix>().unwrap().to_string(), text);
        }
        for text in ["", "10.9.0.2", "10.9.0.2/33", "10.9.0.2/0", "fd00::1/129", "x/8"] {
            let why = text.parse::<Prefix>().unwrap_err();
            assert!(why.contains("write one such as 10.9.0.2/24"), "{why}");
        }
    }

    #[test]
    fn the_mac_is_stable_and_unique() {
        let mac = |text: &str| mac_of(text.parse().unwrap());
        assert_eq!(mac("10.9.0.2"), mac("10.9.0.2"));
        assert_ne!(mac("10.9.0.2"), mac("10.9.0.3"));
        assert_ne!(mac("fd00:9::2"), mac("fd00:9::3"));
        // Seen: 02:77:00:00:00:02 for both, so that each lost the other's frames. Cause: only the
        // last four octets of an IPv6 address counted.
        assert_ne!(mac("fd00:1::2"), mac("fd00:2::2"));
        assert_eq!(mac("fd00:1::2"), mac("fd00:1::2"));
        for address in ["10.9.0.2", "fd00:1::2"] {
            assert!(mac(address).is_unicast());
        }
    }

    #[test]
    fn refused_devices_say_what_they_need() {
        let refused = |device: &str, code| {
            let error = io::Error::from_raw_os_error(code);
            InterfaceError::Device(device.parse().unwrap(), error).to_string()
        };
        let tap = |code| refused("tap:weft0", code);
        // Seen: "it needs CAP_NET_ADMIN", also for an interface made for another user; a user's own
        // interface does not need it.
        assert!(tap(libc::EPERM).contains("CAP_NET_ADMIN"));
        assert!(tap(libc::EPERM).contains("ip tuntap add weft0 mode tap user NAME"));
        assert!(refused("packet:eth0", libc::EPERM).contains("CAP_NET_RAW; start as root"));
        assert!(refused("xdp:eth0", libc::EPERM).contains("CAP_BPF"));
        assert!(tap(libc::ENODEV).contains("no interface weft0"));
        assert!(tap(libc::EBUSY).contains("in use"));
        // Seen: "Invalid argument (os error 22)", for two workers on a TAP interface that was made
        // as `ip tuntap` does by default, and on a veth.
        assert!(tap(libc::EINVAL).contains("multi_queue"));
        assert!(refused("xdp:veth0", libc::EINVAL).contains("fewer workers"));
    }
}
