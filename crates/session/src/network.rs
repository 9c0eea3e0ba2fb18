//! Networks of addresses: which peers are trusted, and which addresses count as one.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// Bits before an IPv4 address that is written as IPv6 (`::ffff:0:0/96`). RFC 4291 2.5.5.2
const V4_AT: u8 = 96;

/// All addresses with a common prefix: `10.0.0.0/8`, `2001:db8::/32`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpNetwork {
    bits: u128,
    /// Prefix length in bits. An IPv4 network has 96 or more.
    len: u8,
}

impl IpNetwork {
    /// True if the address is in the network. An IPv4 address is in IPv4 networks only, also if it
    /// came over IPv6.
    pub fn contains(&self, address: IpAddr) -> bool {
        let is_family = self.len >= V4_AT || !address.to_canonical().is_ipv4();
        is_family && (self.bits ^ bits(address)) & mask(self.len) == 0
    }
}

impl FromStr for IpNetwork {
    type Err = String;

    fn from_str(text: &str) -> Result<IpNetwork, String> {
        let wrong = || {
            format!("'{text}' is no network; write 10.0.0.0/8, 2001:db8::/32 or a single address")
        };
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let (before, len_max) = if address.is_ipv4() { (V4_AT, 32) } else { (0, 128) };
        let is_plain = |len: &str| len.bytes().all(|byte| byte.is_ascii_digit());
        let len = match len {
            None => len_max,
            Some(len) if is_plain(len) => len.parse().map_err(|_| wrong())?,
            Some(_) => return Err(wrong()),
        };
        if len > len_max {
            return Err(format!("'{text}': a prefix has {len_max} bits at most"));
        }
        let network = IpNetwork { bits: bits(address) & mask(before + len), len: before + len };
        if network.bits != bits(address) {
            return Err(format!("'{text}' has bits behind its prefix; write {network}"));
        }
        Ok(network)
    }
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Ipv6Addr::from_bits(self.bits);
        match address.to_ipv4_mapped() {
            Some(address) if self.len >= V4_AT => write!(f, "{address}/{}", self.len - V4_AT),
            _ => write!(f, "{address}/{}", self.len),
        }
    }
}

/// A set of networks, which may include the peers of Unix sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    /// The networks.
    pub list: Vec<IpNetwork>,
    /// True if peers of Unix sockets, which have no address, are in the set.
    pub has_unix: bool,
}

impl Networks {
    /// True if nothing is in the set.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty() && !self.has_unix
    }

    /// True if the peer is in the set. `None` is the peer of a Unix socket.
    pub fn contains(&self, peer: Option<SocketAddr>) -> bool {
        match peer {
            Some(peer) => self.contains_address(peer.ip()),
            None => self.has_unix,
        }
    }

    /// True if the address is in one of the networks.
    pub fn contains_address(&self, address: IpAddr) -> bool {
        self.list.iter().any(|network| network.contains(address))
    }
}

/// Length of the prefixes that count as one address, for each family, in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixLen {
    /// 32 by default: each address by itself.
    pub v4: u8,
    /// 64 by default: the least that one subscriber gets. RFC 6177
    pub v6: u8,
}

impl PrefixLen {
    /// The prefix of an address, the same for all addresses that count as one.
    pub fn prefix_of(self, address: IpAddr) -> u128 {
        let len = match address.to_canonical() {
            IpAddr::V4(_) => V4_AT + self.v4.min(32),
            IpAddr::V6(_) => self.v6.min(128),
        };
        bits(address) & mask(len)
    }
}

impl Default for PrefixLen {
    fn default() -> PrefixLen {
        PrefixLen { v4: 32, v6: 64 }
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn mask(len: u8) -> u128 {
    !u128::MAX.checked_shr(len.into()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn network_holds_the_addresses_of_its_prefix() {
        let check = |network: &str, inside: &[&str], outside: &[&str]| {
            let network: IpNetwork = network.parse().unwrap();
            assert_eq!(network.to_string().parse(), Ok(network));
            for text in inside {
                assert!(network.contains(address(text)), "{text} in {network}");
            }
            for text in outside {
                assert!(!network.contains(address(text)), "{text} in {network}");
            }
        };
        check(
            "10.0.0.0/8",
            &["10.0.0.0", "10.255.255.255", "::ffff:10.1.2.3"],
            &["9.255.255.255", "11.0.0.0", "::10.1.2.3", "a00::"],
        );
        check("192.0.2.7", &["192.0.2.7"], &["192.0.2.6", "192.0.2.8", "::"]);
        check("0.0.0.0/0", &["0.0.0.0", "255.255.255.255"], &["::", "::1"]);
        check(
            "2001:db8::/33",
            &["2001:db8::", "2001:db8:7fff::1"],
            &["2001:db8:8000::", "2001:db7::", "32.1.13.184"],
        );
        check("::/0", &["::", "ffff::"], &["1.2.3.4", "::ffff:1.2.3.4"]);
        check("::1", &["::1"], &["::", "0.0.0.1"]);
    }

    #[test]
    fn what_is_no_network_says_what_to_write() {
        for text in ["", "/8", "10.0.0.0/", "10.0.0.0/+8", "10.0/8", "::/-1", "a", "::1%lo"] {
            let error = text.parse::<IpNetwork>().unwrap_err();
            assert!(error.contains("write 10.0.0.0/8"), "{error}");
        }
        for (text, says) in [
            ("10.0.0.0/33", "32 bits at most"),
            ("::/129", "128 bits at most"),
            ("10.0.0.1/8", "write 10.0.0.0/8"),
            ("2001:db8::1/64", "write 2001:db8::/64"),
        ] {
            let error = text.parse::<IpNetwork>().unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn peers_without_an_address_are_asked_for_by_name() {
        let mut networks = Networks::default();
        assert!(networks.is_empty() && !networks.contains(None));
        networks.has_unix = true;
        assert!(!networks.is_empty() && networks.contains(None));
        assert!(!networks.contains(Some("127.0.0.1:1".parse().unwrap())));
        networks.list.push("127.0.0.0/8".parse().unwrap());
        assert!(networks.contains(Some("127.0.0.1:1".parse().unwrap())));
        assert!(networks.contains(Some("[::ffff:127.0.0.1]:1".parse().unwrap())));
    }

    #[test]
    fn addresses_of_one_prefix_count_as_one() {
        let same = |prefix: PrefixLen, one: &str, other: &str| {
            prefix.prefix_of(address(one)) == prefix.prefix_of(address(other))
        };
        let usual = PrefixLen::default();
        assert!(same(usual, "192.0.2.7", "::ffff:192.0.2.7"));
        assert!(!same(usual, "192.0.2.7", "192.0.2.6"));
        assert!(same(usual, "2001:db8::1", "2001:db8::ffff:0:0:1"));
        assert!(!same(usual, "2001:db8::1", "2001:db8:0:1::1"));
        let wide = PrefixLen { v4: 24, v6: 48 };
        assert!(same(wide, "192.0.2.7", "192.0.2.250"));
        assert!(!same(wide, "192.0.2.7", "192.0.3.7"));
        assert!(same(wide, "2001:db8::1", "2001:db8:0:1::1"));
        let all = PrefixLen { v4: 0, v6: 0 };
        assert!(same(all, "0.0.0.0", "255.1.1.1") && !same(all, "0.0.0.0", "::"));
    }
}
