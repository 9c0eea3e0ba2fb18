//! Options of `--engine netstack`: a device, addresses, and the listening addresses of its TCP.

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self as unix, UnixDatagram};
use std::sync::Arc;

use ::serve::engine::netstack::{NetstackInterface, NetstackListener};
use ::serve::listen::{Address, Inherited, tap_holder};
use ::serve::tls::Tls;
use netstack::device::name::{DeviceKind, DeviceName};
use netstack::interface_config::{InterfaceConfig, InterfaceError};
use netstack::ip::Prefix;
use netstack::tcp::{CongestionControl, TcpConfig};

use crate::failure::Failure;

/// Options of the netstack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NetstackChoice {
    pub(crate) device: Option<DeviceName>,
    pub(crate) addresses: Vec<Prefix>,
    pub(crate) gateways: Vec<IpAddr>,
    pub(crate) mtu: Option<usize>,
    pub(crate) congestion: CongestionControl,
    /// Sum every payload when it is sent.
    pub(crate) computes_checksums: bool,
}

/// Longest IPv4 packet.
pub(crate) const MTU_MAX: usize = 0xffff;

/// Parses an address and its prefix. In other servers the flag is a listening address.
pub(crate) fn own_address(text: &str) -> Result<Prefix, String> {
    let read: Result<Prefix, String> = text.parse();
    read.map_err(|why| {
        if text.contains('/') {
            why
        } else {
            format!("{why}; to say where the server listens, use --listen")
        }
    })
}

pub(crate) fn gateway(text: &str) -> Result<IpAddr, String> {
    let wrong = |_| format!("'{text}' is not an IP address; write one such as 10.9.0.1 or fe80::1");
    text.parse().map_err(wrong)
}

impl NetstackChoice {
    /// Finds missing keys and conflicting values.
    ///
    /// # Errors
    /// A sentence with the remedy.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.interface().map(drop)
    }

    /// True if tables of sums are kept beside files in memory: the device completes no checksum.
    pub(crate) fn keeps_sums(&self) -> bool {
        let kind = self.device.as_ref().map(|device| device.kind);
        kind == Some(DeviceKind::Xdp) && !self.computes_checksums
    }

    fn interface(&self) -> Result<InterfaceConfig, String> {
        let device = self.device.clone().ok_or_else(|| self.lacks("a device"))?;
        if self.addresses.is_empty() {
            return Err(self.lacks("an address"));
        }
        let interface = InterfaceConfig {
            device,
            addresses: self.addresses.clone(),
            gateways: self.gateways.clone(),
            mtu: self.mtu,
        };
        interface.check().map_err(|error| error.to_string())?;
        Ok(interface)
    }

    /// States the missing part, with both required keys: the given ones, else examples.
    fn lacks(&self, what: &str) -> String {
        let device = self.device.as_ref();
        let device = device.map_or("tap:weft0".to_owned(), ToString::to_string);
        let address = match self.addresses.first() {
            Some(own) => own.to_string(),
            None => "10.9.0.2/24".to_owned(),
        };
        format!(
            "--engine netstack needs {what}: --engine netstack:device={device},address={address}"
        )
    }

    /// A warning if connections cannot arrive because the kernel answers for an address first.
    /// AF_XDP gets the frames before the kernel.
    pub(crate) fn warning(&self) -> Option<String> {
        let kind = self.device.as_ref().map(|device| device.kind);
        if !matches!(kind, Some(DeviceKind::Tap | DeviceKind::Packet)) {
            return None;
        }
        let mut own = self.addresses.iter().map(|own| own.address);
        let address = own.find(|&address| is_kernels(address))?;
        Some(format!(
            "the kernel has the netstack's address {address} as well, and answers for it: take it \
             from the interface that has it (ip address show to {address})"
        ))
    }

    /// A warning if another process serves one of the addresses on the same interface. Over packet
    /// sockets the kernel delivers each frame to both, and neither sees what the other sends.
    /// Claims the addresses for this process.
    pub(crate) fn claim(&self) -> Option<String> {
        let device = self.device.as_ref()?;
        if device.kind != DeviceKind::Packet {
            return None;
        }
        let mut own = self.addresses.iter().map(|own| own.address);
        let address = own.find(|&address| !is_claimed(device, address))?;
        Some(format!(
            "another process serves at {address} on {device}, and each of the two resets the other \
             one's connections: stop one of them"
        ))
    }

    /// Opens the device. `listen` are the netstack's listening addresses, each with TLS or without.
    ///
    /// # Errors
    /// The impossible setting, or the kernel's error for the device.
    pub(crate) fn open(
        &self,
        shards: usize,
        listen: impl IntoIterator<Item = (Address, Option<Arc<Tls>>)>,
        backlog: Option<usize>,
    ) -> Result<NetstackInterface, Failure> {
        let interface = self.interface().map_err(Failure::Usage)?;
        let listener = |(address, tls)| {
            let address = address_of_listener(&interface, &address)?;
            Ok(NetstackListener { address, tls })
        };
        let listeners = listen.into_iter().map(listener).collect::<Result<Vec<_>, _>>();
        let listeners = listeners.and_then(|listeners| apart(&interface, listeners));
        let listeners = listeners.map_err(Failure::Usage)?;
        let tcp = TcpConfig { congestion: self.congestion, ..TcpConfig::default() };
        refuse_shared(&interface)?;
        NetstackInterface::open(&interface, shards, tcp, listeners, backlog).map_err(|error| {
            let why = error.to_string();
            match error {
                InterfaceError::Described(_) => Failure::Usage(why),
                InterfaceError::Device(..) => Failure::Running(why),
            }
        })
    }
}

/// True if an interface of the kernel has this address: only then can a socket be bound to it.
/// Exceptions are `ip_nonlocal_bind`, and a network namespace in which no address was ever set:
/// there a socket can be bound to any, and nothing can be concluded.
fn is_kernels(address: IpAddr) -> bool {
    // No host has it: it is reserved, or only discards. RFC 1112 4, RFC 6666
    let nobodys: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::new(240, 0, 0, 1).into(),
        IpAddr::V6(_) => Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1).into(),
    };
    let can_bind = |address: IpAddr| UdpSocket::bind((address, 0)).is_ok();
    can_bind(address) && !can_bind(nobodys)
}

/// Claims an address of a device for as long as this process lives; `false` if another process has
/// it. The kernel does not know such an address, but it knows the owner of a socket name,
/// separately in each network namespace. unix(7)
fn is_claimed(device: &DeviceName, address: IpAddr) -> bool {
    let name = format!("weft {device} {address}");
    let bound = unix::SocketAddr::from_abstract_name(name).and_then(|name| {
        // It is closed at the end of the process.
        UnixDatagram::bind_addr(&name).map(mem::forget)
    });
    // Without such sockets nothing can be concluded.
    !matches!(bound, Err(error) if error.kind() == io::ErrorKind::AddrInUse)
}

/// Refuses a TAP interface in use. With several queues it would accept a second program, which then
/// gets a part of the first one's frames: each loses connections, without any error.
///
/// # Errors
/// If another process has the interface.
fn refuse_shared(interface: &InterfaceConfig) -> Result<(), Failure> {
    let device = interface.device.to_string();
    let holder = device.strip_prefix("tap:").and_then(tap_holder);
    holder.map_or(Ok(()), |holder| {
        Err(Failure::Running(format!(
            "cannot open {device}: the interface is in use by {holder}; stop it or choose another \
             interface"
        )))
    })
}

/// Refuses sockets from systemd, which belong to the kernel's TCP.
///
/// # Errors
/// If there are any.
pub(crate) fn refuse_inherited(inherited: &[Inherited]) -> Result<(), Failure> {
    match inherited {
        [] => Ok(()),
        _ => Err(Failure::Usage(
            "sockets that systemd passes are the kernel's, and --engine netstack takes none"
                .to_owned(),
        )),
    }
}

/// The listeners, if each address of the host has at most one at each port, as the kernel also
/// requires.
fn apart(
    interface: &InterfaceConfig,
    listeners: Vec<NetstackListener>,
) -> Result<Vec<NetstackListener>, String> {
    for (at, listener) in listeners.iter().enumerate() {
        let overlaps = |earlier: &&NetstackListener| {
            let takes_both =
                |own: &Prefix| listener.takes(own.address) && earlier.takes(own.address);
            let is_same_port = earlier.address.port() == listener.address.port();
            is_same_port && interface.addresses.iter().any(takes_both)
        };
        if let Some(earlier) = listeners[..at].iter().find(overlaps) {
            return Err(format!(
                "cannot listen at {}: the netstack already listens at {}; name each address once",
                listener.address, earlier.address
            ));
        }
    }
    Ok(listeners)
}

/// Listening address of the netstack for this `--listen`.
fn address_of_listener(
    interface: &InterfaceConfig,
    listen: &Address,
) -> Result<SocketAddr, String> {
    let everywhere = |port| SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
    let address = match listen {
        Address::Tcp(address) => *address,
        Address::Name { host, port } if host.is_empty() => everywhere(*port),
        Address::Name { host, .. } => {
            return Err(format!(
                "cannot listen at {listen}: --engine netstack looks no names up; write an address \
                 in the place of {host}"
            ));
        }
        Address::Unix { .. } => {
            return Err(format!(
                "cannot listen at {listen}: --engine netstack has no Unix sockets"
            ));
        }
    };
    let mut own = interface.addresses.iter().map(|prefix| prefix.address);
    if !address.ip().is_unspecified() && !own.any(|own| own == address.ip()) {
        return Err(format!(
            "cannot listen at {listen}: {} is not an address of the netstack",
            address.ip()
        ));
    }
    match address.port() {
        0 => {
            Err(format!("cannot listen at {listen}: --engine netstack needs to be told which port"))
        }
        _ => Ok(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::choice;

    const NETSTACK: &str = "netstack:device=tap:weft0,address=10.9.0.2/24,address=fd00:9::2/64";

    #[test]
    fn sums_are_kept_for_a_device_without_offload() {
        for (keys, keeps) in [
            ("device=xdp:eth0", true),
            ("device=xdp:eth0,checksums=precomputed", true),
            ("device=xdp:eth0,checksums=computed", false),
            ("device=tap:weft0", false),
            ("device=packet:eth0,checksums=precomputed", false),
        ] {
            let choice = choice(&format!("netstack:{keys},address=10.9.0.2/24"));
            assert_eq!(choice.netstack.keeps_sums(), keeps, "{keys}");
        }
    }

    #[test]
    fn missing_keys_are_named_with_an_example() {
        choice(NETSTACK).check().unwrap();
        for (typed, why) in [
            ("netstack", "needs a device"),
            ("netstack:device=tap:w0", "needs an address"),
            ("netstack:address=10.0.0.2/24", "needs a device"),
        ] {
            let said = choice(typed).check().unwrap_err();
            assert!(said.contains(why), "{said}");
            // Given values stay, and the shown command works unchanged.
            let (_, shown) = said.rsplit_once("--engine ").unwrap();
            choice(shown).check().unwrap();
            let typed = typed.strip_prefix("netstack:").unwrap_or_default();
            assert!(shown.contains(typed), "{said}");
        }
        let why = choice(&format!("{NETSTACK},gateway=10.8.0.1")).check();
        let why = why.unwrap_err();
        assert!(why.contains("10.8.0.1"), "{why}");
    }

    /// Seen: the kernel had the address of the netstack too, and refused every client while the
    /// server reported nothing. Cure: a warning at the start.
    #[test]
    fn an_address_of_the_kernel_is_warned_of() {
        let choice = |device: &str, address: &str| NetstackChoice {
            device: Some(device.parse().unwrap()),
            addresses: vec![own_address(address).unwrap()],
            ..NetstackChoice::default()
        };
        let warning = choice("packet:eth0", "127.0.0.1/8").warning().unwrap();
        assert!(warning.contains("127.0.0.1 as well"), "{warning}");
        // For documentation only, so no machine has it. RFC 5737 3
        assert_eq!(choice("packet:eth0", "192.0.2.1/24").warning(), None);
        assert_eq!(choice("xdp:eth0", "127.0.0.1/8").warning(), None);
    }

    /// Seen: a server started twice on a packet socket lost half of its connections, and neither
    /// process reported it. Over TAP and AF_XDP the kernel refuses the second one.
    #[test]
    fn an_address_of_a_device_is_one_processs() {
        // A name that no concurrent run of this test has.
        let device = format!("packet:t{}", std::process::id()).parse().unwrap();
        let claims = |address: &str| is_claimed(&device, address.parse().unwrap());
        assert!(claims("192.0.2.1") && claims("192.0.2.2"));
        assert!(!claims("192.0.2.1"));
    }

    /// Seen: for `address=127.0.0.1:8080` the advice was to add a prefix.
    #[test]
    fn an_address_to_listen_at_leads_to_the_flag_for_it() {
        for text in ["127.0.0.1:8080", "0.0.0.0"] {
            let why = own_address(text).unwrap_err();
            assert!(why.ends_with("use --listen"), "{why}");
        }
        let why = own_address("10.9.0.2/77").unwrap_err();
        assert!(why.contains("10.9.0.2/24") && !why.contains("--listen"), "{why}");
    }

    /// Seen: `--listen 80 --listen 10.9.0.2:80` served, and the second one never got a connection,
    /// whatever its TLS setting. Over the kernel's TCP it is refused.
    #[test]
    fn an_address_that_is_asked_for_twice_is_refused() {
        let interface = choice(NETSTACK).netstack.interface().unwrap();
        let listeners = |texts: &[&str]| {
            let listener =
                |text: &&str| NetstackListener { address: text.parse().unwrap(), tls: None };
            apart(&interface, texts.iter().map(listener).collect()).map(|listeners| listeners.len())
        };
        for twice in [
            ["10.9.0.2:80", "10.9.0.2:80"],
            ["[::]:80", "10.9.0.2:80"],
            ["[fd00:9::2]:80", "[::]:80"],
            ["0.0.0.0:80", "[::]:80"],
        ] {
            let said = listeners(&twice).unwrap_err();
            assert!(said.contains("already listens at"), "{said}");
        }
        for apart in [
            ["10.9.0.2:80", "10.9.0.2:81"],
            ["10.9.0.2:80", "[fd00:9::2]:80"],
            ["0.0.0.0:80", "[fd00:9::2]:80"],
        ] {
            assert_eq!(listeners(&apart), Ok(2));
        }
    }

    #[test]
    fn the_netstack_listens_at_its_addresses() {
        let interface = choice(NETSTACK).netstack.interface().unwrap();
        let listener = |text: &str| address_of_listener(&interface, &text.parse().unwrap());
        for (typed, address) in [
            ("8080", "[::]:8080"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            ("10.9.0.2:80", "10.9.0.2:80"),
            ("[fd00:9::2]:80", "[fd00:9::2]:80"),
        ] {
            assert_eq!(listener(typed).unwrap().to_string(), address);
        }
        for (typed, why) in [
            ("10.9.0.3:80", "is not an address of"),
            ("localhost:80", "looks no names up"),
            ("unix:/run/x", "no Unix sockets"),
            ("10.9.0.2:0", "which port"),
        ] {
            let said = listener(typed).unwrap_err();
            assert!(said.contains(why) && said.contains(typed), "{said}");
        }
    }
}
