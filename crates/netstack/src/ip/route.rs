//! Routes: the host's own addresses, those on the link, and the gateways for all others.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::{IpConfig, solicited_node};
use crate::time::Instant;
use crate::wire::ethernet::EthernetAddress;

/// An address with the prefix that it shares with its link, as in `10.9.0.2/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix {
    /// The address.
    pub address: IpAddr,
    /// Number of leading bits that are the link's.
    pub len: u8,
}

impl Prefix {
    /// True if `address` begins with the same bits.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differ = u32::from(own) ^ u32::from(other);
                differ.leading_zeros() >= u32::from(self.len)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differ = u128::from(own) ^ u128::from(other);
                differ.leading_zeros() >= u32::from(self.len)
            }
            _ => false,
        }
    }

    /// True if a host can have this address: RFC 1122 3.2.1.3, RFC 4291 2.5.2 to 2.7.
    pub(crate) fn is_of_one_host(&self) -> bool {
        match self.address {
            IpAddr::V4(four) => is_one_host_v4(four) && !self.is_broadcast(self.address),
            IpAddr::V6(six) => may_send_v6(six) && !six.is_unspecified(),
        }
    }

    fn is_broadcast(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                LinkPrefix::v4(own, self.len).is_broadcast(other)
            }
            _ => false,
        }
    }
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Prefix, String> {
        let parsed = text.split_once('/').and_then(|(address, len)| {
            let address: IpAddr = address.parse().ok()?;
            let len = len.parse().ok()?;
            let len_max = if address.is_ipv4() { 32 } else { 128 };
            (1..=len_max).contains(&len).then_some(Prefix { address, len })
        });
        parsed.ok_or_else(|| {
            format!(
                "'{text}' is not an address with its prefix; write one such as 10.9.0.2/24 or fd00::2/64"
            )
        })
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

/// True if a packet can come from `address`: one host's, and not loopback. RFC 1122 3.2.1.3
pub(super) fn is_one_host_v4(address: Ipv4Addr) -> bool {
    let [first, ..] = address.octets();
    // 0/8 is "this network", 127/8 loopback, 224/4 groups, 240/4 reserved, with all hosts at its
    // end.
    first != 0 && first != 127 && first < 224
}

/// True if a packet can come from `address`, as [`is_one_host_v4`], or it is unspecified: an
/// address that is being checked. RFC 4291 2.5.2
pub(super) fn may_send_v6(address: Ipv6Addr) -> bool {
    !address.is_multicast() && !address.is_loopback() && address.to_ipv4_mapped().is_none()
}

/// True if routers forward packets to `address`. RFC 4291 2.5.6
fn is_beyond_link_v6(address: Ipv6Addr) -> bool {
    may_send_v6(address) && !address.is_unicast_link_local()
}

/// Bits that a link's addresses share, as numbers: each frame is compared with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LinkPrefix<T> {
    /// The bits of the prefix, and zeros.
    network: T,
    /// A one for each bit behind the prefix.
    hosts: T,
}

impl LinkPrefix<u32> {
    fn v4(address: Ipv4Addr, len: u8) -> LinkPrefix<u32> {
        let hosts = u32::MAX.checked_shr(len.into()).unwrap_or(0);
        LinkPrefix { network: address.to_bits() & !hosts, hosts }
    }

    fn contains(self, address: Ipv4Addr) -> bool {
        address.to_bits() & !self.hosts == self.network
    }

    /// The address of all hosts of the prefix, and that of none: RFC 1122 3.2.1.3. Prefixes of 31
    /// and 32 bits have neither: RFC 3021.
    fn is_broadcast(self, address: Ipv4Addr) -> bool {
        let host = address.to_bits() & self.hosts;
        self.hosts > 1 && self.contains(address) && (host == self.hosts || host == 0)
    }
}

impl LinkPrefix<u128> {
    fn v6(address: Ipv6Addr, len: u8) -> LinkPrefix<u128> {
        let hosts = u128::MAX.checked_shr(len.into()).unwrap_or(0);
        LinkPrefix { network: address.to_bits() & !hosts, hosts }
    }

    fn contains(self, address: Ipv6Addr) -> bool {
        address.to_bits() & !self.hosts == self.network
    }
}

pub(super) struct Routes {
    own: Vec<Prefix>,
    /// The addresses of `own` as numbers, in order: each frame is compared with them, and there may
    /// be many.
    own_v4: Vec<u32>,
    own_v6: Vec<u128>,
    /// Solicited-node groups of the IPv6 addresses in `own`, in order.
    groups: Vec<Ipv6Addr>,
    /// One for each prefix of `own`.
    links_v4: Vec<LinkPrefix<u32>>,
    links_v6: Vec<LinkPrefix<u128>>,
    gateway_v4: Option<Ipv4Addr>,
    gateway_v6: Option<Ipv6Addr>,
    /// The advertised router, and the end of its lifetime.
    router: Option<(Ipv6Addr, Instant)>,
    link_local: Ipv6Addr,
}

impl Routes {
    pub(super) fn new(config: &IpConfig) -> Routes {
        let link_local = link_local(config.mac);
        let mut own = config.addresses.clone();
        if own.iter().any(|prefix| prefix.address.is_ipv6()) {
            own.push(Prefix { address: link_local.into(), len: 64 });
        }
        let mut own_v4 = Vec::new();
        let mut own_v6 = Vec::new();
        let mut links_v4 = Vec::new();
        let mut links_v6 = Vec::new();
        for prefix in &own {
            match prefix.address {
                IpAddr::V4(address) => {
                    own_v4.push(address.to_bits());
                    add_new(&mut links_v4, LinkPrefix::v4(address, prefix.len));
                }
                IpAddr::V6(address) => {
                    own_v6.push(address.to_bits());
                    add_new(&mut links_v6, LinkPrefix::v6(address, prefix.len));
                }
            }
        }
        own_v4.sort_unstable();
        own_v6.sort_unstable();
        let groups = own.iter().filter_map(|prefix| match prefix.address {
            IpAddr::V6(address) => Some(solicited_node(address)),
            IpAddr::V4(_) => None,
        });
        let mut groups: Vec<Ipv6Addr> = groups.collect();
        groups.sort_unstable();
        groups.dedup();
        Routes {
            own,
            own_v4,
            own_v6,
            groups,
            links_v4,
            links_v6,
            gateway_v4: config.gateway_v4,
            gateway_v6: config.gateway_v6,
            router: None,
            link_local,
        }
    }

    pub(super) fn own(&self) -> &[Prefix] {
        &self.own
    }

    pub(super) fn link_local(&self) -> Ipv6Addr {
        self.link_local
    }

    pub(super) fn is_own(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.own_v4.binary_search(&address.to_bits()).is_ok(),
            IpAddr::V6(address) => self.own_v6.binary_search(&address.to_bits()).is_ok(),
        }
    }

    /// True if `address` is the broadcast of this link, or of all links.
    pub(super) fn is_broadcast(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.links_v4.iter().any(|link| link.is_broadcast(address)),
            IpAddr::V6(_) => false,
        }
    }

    /// True if this host listens to `group`: all nodes, and the solicited-node group of each of its
    /// addresses.
    pub(super) fn listens_to(&self, group: Ipv6Addr) -> bool {
        let is_all_nodes = group == super::ALL_NODES && !self.groups.is_empty();
        is_all_nodes || self.groups.binary_search(&group).is_ok()
    }

    /// Groups that it reports: all but that of all nodes. RFC 3810 6
    pub(super) fn groups(&self) -> &[Ipv6Addr] {
        &self.groups
    }

    /// True if `address` is that of one other host.
    pub(super) fn is_one_host(&self, address: IpAddr) -> bool {
        let is_one_host = match address {
            IpAddr::V4(address) => is_one_host_v4(address),
            IpAddr::V6(address) => may_send_v6(address) && !address.is_unspecified(),
        };
        is_one_host && !self.is_own(address) && !self.is_broadcast(address)
    }

    /// True if `address` is a neighbour's.
    pub(super) fn is_on_link(&self, address: IpAddr) -> bool {
        let has_it = match address {
            IpAddr::V4(address) => self.links_v4.iter().any(|link| link.contains(address)),
            IpAddr::V6(address) => self.links_v6.iter().any(|link| link.contains(address)),
        };
        has_it && self.is_one_host(address)
    }

    /// The neighbour that a packet to `dst` goes to.
    pub(super) fn next_hop(&self, now: Instant, dst: IpAddr) -> Option<IpAddr> {
        if self.is_on_link(dst) {
            return Some(dst);
        }
        match dst {
            _ if self.is_own(dst) || self.is_broadcast(dst) => None,
            IpAddr::V4(dst) if is_one_host_v4(dst) => self.gateway_v4.map(IpAddr::V4),
            IpAddr::V6(dst) if is_beyond_link_v6(dst) => {
                let router = self.router.filter(|(_, until)| now < *until);
                let router = router.map(|(router, _)| router);
                self.gateway_v6.or(router).map(IpAddr::V6)
            }
            _ => None,
        }
    }

    /// The own address that shares the longest prefix with `dst`; else the first of its family
    /// that is known beyond the link. A part of RFC 6724 5.
    pub(super) fn source_for(&self, dst: IpAddr) -> Option<IpAddr> {
        let own = || self.own.iter();
        let near = own().filter(|prefix| prefix.contains(dst));
        let near = near.max_by_key(|prefix| prefix.len);
        let far = own().find(|prefix| match (prefix.address, dst) {
            (IpAddr::V4(_), IpAddr::V4(_)) => true,
            (IpAddr::V6(address), IpAddr::V6(_)) => !address.is_unicast_link_local(),
            _ => false,
        });
        near.or(far).map(|prefix| prefix.address)
    }

    pub(super) fn wants_router(&self) -> bool {
        self.gateway_v6.is_none() && self.is_own(self.link_local.into())
    }

    /// True if a router that advertises itself would be the way to `dst`.
    pub(super) fn may_have_router(&self, dst: IpAddr) -> bool {
        let is_beyond = matches!(dst, IpAddr::V6(six) if is_beyond_link_v6(six));
        is_beyond && !self.is_own(dst) && self.wants_router()
    }

    /// Takes a router advertisement; `until` is `now` if it resigns. The first router is kept.
    pub(super) fn router_advertised(&mut self, now: Instant, router: Ipv6Addr, until: Instant) {
        match self.router {
            Some((known, end)) if known != router && now < end => {}
            _ => self.router = Some((router, until)),
        }
    }
}

fn add_new<T: PartialEq>(links: &mut Vec<T>, link: T) {
    if !links.contains(&link) {
        links.push(link);
    }
}

/// Address in `fe80::/64` of an Ethernet address. RFC 4291 appendix A
fn link_local(mac: EthernetAddress) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    let word = |high, low| u16::from_be_bytes([high, low]);
    let words = [word(a ^ 2, b), word(c, 0xff), word(0xfe, d), word(e, f)];
    Ipv6Addr::new(0xfe80, 0, 0, 0, words[0], words[1], words[2], words[3])
}

#[cfg(test)]
mod tests {
    use super::super::Interface;
    use super::*;

    #[test]
    fn off_link_traffic_needs_a_router() {
        let interface = |gateway_v4: Option<&str>, gateway_v6: Option<&str>| {
            Interface::new(IpConfig {
                mac: EthernetAddress([2, 0, 0, 0, 0, 2]),
                mtu: 1500,
                addresses: ["10.9.0.2/24", "fd00:9::2/64"].map(|it| it.parse().unwrap()).to_vec(),
                gateway_v4: gateway_v4.map(|it| it.parse().unwrap()),
                gateway_v6: gateway_v6.map(|it| it.parse().unwrap()),
            })
        };
        let has_route = |interface: &Interface, dst: &str| {
            interface.has_route(Instant::START, dst.parse().unwrap())
        };
        let alone = interface(None, None);
        let led = interface(Some("10.9.0.1"), Some("fd00:9::1"));
        for near in ["10.9.0.3", "fd00:9::3", "fe80::3"] {
            assert!(has_route(&alone, near) && has_route(&led, near), "{near}");
        }
        assert!(!has_route(&alone, "198.51.100.1") && has_route(&led, "198.51.100.1"));
        assert!(has_route(&alone, "2001:db8::1") && has_route(&led, "2001:db8::1"));
        for own_or_none in ["10.9.0.2", "10.9.0.255", "127.0.0.1", "fd00:9::2", "::1"] {
            assert!(!has_route(&alone, own_or_none), "{own_or_none}");
        }
    }

    #[test]
    fn many_addresses_and_their_links() {
        let hosts = |range: std::ops::Range<u8>| range.map(|host| IpAddr::from([192, 0, 2, host]));
        let addresses =
            hosts(2..200).chain(["10.9.0.7", "fd00:9::2"].map(|it| it.parse().unwrap()));
        let prefix =
            |address: IpAddr| Prefix { address, len: if address.is_ipv4() { 24 } else { 64 } };
        let routes = Routes::new(&IpConfig {
            mac: EthernetAddress([2, 0, 0, 0, 0, 2]),
            mtu: 1500,
            addresses: addresses.clone().map(prefix).collect(),
            gateway_v4: None,
            gateway_v6: None,
        });
        // One for each prefix, and that of fe80::/64.
        assert_eq!((routes.links_v4.len(), routes.links_v6.len()), (2, 2));
        for own in addresses {
            assert!(routes.is_own(own) && !routes.is_on_link(own), "{own}");
        }
        let others = ["10.9.0.8", "fd00:9::3", "fe80::1"].map(|it| it.parse().unwrap());
        for other in hosts(200..255).chain(others) {
            assert!(!routes.is_own(other) && routes.is_on_link(other), "{other}");
        }
        for no_host in ["10.9.0.255", "192.0.2.0"].map(|it| it.parse().unwrap()) {
            assert!(routes.is_broadcast(no_host) && !routes.is_on_link(no_host));
        }
    }
}
