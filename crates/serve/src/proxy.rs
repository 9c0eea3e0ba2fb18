//! PROXY protocol, versions 1 and 2: the header in which a proxy names its client, before anything
//! else on the connection, including TLS.
//!
//! As in haproxy's `proxy-protocol.txt`. Bytes in, a header out; the machine decides what follows.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use session::Networks;

/// Connections that begin with a PROXY header, which names their client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyProtocol {
    /// Networks of the proxies. A header from another peer is ordinary input.
    pub from: Networks,
    /// A connection without a header is closed. Otherwise its client is the proxy itself, so behind
    /// a proxy that forwards bytes unchanged, clients can claim any address.
    pub is_required: bool,
}

/// Length of a header of version 1, with its CRLF: section 2.1.
pub(crate) const V1_LEN_MAX: usize = 107;

/// Length of a header of version 2. The specification asks for 536 bytes to be sent at once; a
/// client's certificate in a TLV takes more. nginx has the same limit.
pub(crate) const V2_LEN_MAX: usize = 4096;

const V1_START: &[u8] = b"PROXY";
const V2_START: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family and protocol, length of the rest.
const V2_HEAD_LEN: usize = 16;
const TLV_CRC32C: u8 = 3;

/// The beginning of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// More bytes are needed.
    Partial,
    /// Not the beginning of a header.
    Absent,
    /// A header that breaks the rules.
    Malformed,
    Header(Header),
}

/// A whole header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) version: u8,
    pub(crate) len: usize,
    /// `None` if the proxy speaks for itself, as in a health check, or for a client without an IP
    /// address: the connection's own address then applies.
    pub(crate) client: Option<SocketAddr>,
}

/// Parses the header at the start of `input`.
pub(crate) fn read(input: &[u8]) -> Beginning {
    if input.starts_with(V2_START) {
        return read_v2(input).unwrap_or(Beginning::Malformed);
    }
    if input.starts_with(V1_START) {
        return read_v1(input).unwrap_or(Beginning::Malformed);
    }
    if V2_START.starts_with(input) || V1_START.starts_with(input) {
        return Beginning::Partial;
    }
    Beginning::Absent
}

/// `None` if it is malformed.
fn read_v1(input: &[u8]) -> Option<Beginning> {
    let line = &input[..input.len().min(V1_LEN_MAX)];
    let Some(end) = line.iter().position(|&byte| byte == b'\n') else {
        // A CR that is not followed by its LF is final: it cannot become valid.
        let is_short = line.len() < V1_LEN_MAX;
        let body = line.strip_suffix(b"\r").unwrap_or(line);
        return (is_short && !body.contains(&b'\r')).then_some(Beginning::Partial);
    };
    let line = str::from_utf8(line[..end].strip_suffix(b"\r")?).ok()?;
    let client = if line == "PROXY UNKNOWN" || line.starts_with("PROXY UNKNOWN ") {
        None
    } else {
        Some(v1_client(line)?)
    };
    Some(Beginning::Header(Header { version: 1, len: end + 1, client }))
}

fn v1_client(line: &str) -> Option<SocketAddr> {
    let mut words = line.split(' ');
    let (protocol, family) = (words.next()?, words.next()?);
    let mut address = || -> Option<IpAddr> {
        let word = words.next()?;
        match family {
            "TCP4" => word.parse().map(IpAddr::V4).ok(),
            "TCP6" => word.parse().map(IpAddr::V6).ok(),
            _ => None,
        }
    };
    let (client, _server) = (address()?, address()?);
    let (port, _server) = (port(words.next()?)?, port(words.next()?)?);
    let is_whole = protocol == "PROXY" && words.next().is_none();
    is_whole.then_some(SocketAddr::new(client, port))
}

/// Parses a decimal port without leading zero or sign.
fn port(word: &str) -> Option<u16> {
    let is_plain = word.bytes().all(|byte| byte.is_ascii_digit());
    let is_shortest = word == "0" || !word.starts_with('0');
    (is_plain && is_shortest).then(|| word.parse().ok())?
}

/// `None` if it is malformed.
fn read_v2(input: &[u8]) -> Option<Beginning> {
    // Report mistakes as early as possible.
    let is_local = match input.get(12) {
        Some(0x20) => true,
        Some(0x21) => false,
        Some(_) => return None,
        None => return Some(Beginning::Partial),
    };
    let family = match input.get(13) {
        Some(&family) if !is_local && (family >> 4 > 3 || family & 15 > 2) => return None,
        Some(&family) => family,
        None => return Some(Beginning::Partial),
    };
    let Some(&[high, low]) = input.get(14..V2_HEAD_LEN) else {
        return Some(Beginning::Partial);
    };
    let len = V2_HEAD_LEN + usize::from(u16::from_be_bytes([high, low]));
    if len > V2_LEN_MAX {
        return None;
    }
    let Some(header) = input.get(..len) else {
        return Some(Beginning::Partial);
    };
    let rest = &header[V2_HEAD_LEN..];
    let client = if is_local {
        None // Whatever else it has is skipped.
    } else {
        let (client, addresses_len) = match family {
            0x11 | 0x12 => (v2_client::<4, Ipv4Addr>(rest, 8), 12),
            0x21 | 0x22 => (v2_client::<16, Ipv6Addr>(rest, 32), 36),
            0x31 | 0x32 => (None, 216),
            _ => (None, 0), // Of an unknown length, so no TLVs can be found behind it.
        };
        let tlvs = rest.get(addresses_len..)?;
        if addresses_len > 0 && !has_right_sum(header, tlvs)? {
            return None;
        }
        client
    };
    Some(Beginning::Header(Header { version: 2, len, client }))
}

/// The source address; its port follows both addresses.
fn v2_client<const N: usize, A: From<[u8; N]> + Into<IpAddr>>(
    rest: &[u8],
    port_at: usize,
) -> Option<SocketAddr> {
    let address = A::from(*rest.first_chunk()?);
    let port = u16::from_be_bytes(*rest.get(port_at..)?.first_chunk()?);
    Some(SocketAddr::new(address.into(), port))
}

/// False if there is a wrong checksum. `None` if the list of TLVs is truncated, or the checksum has
/// a wrong length. Other TLVs are skipped.
fn has_right_sum(header: &[u8], mut tlvs: &[u8]) -> Option<bool> {
    while let Some((&[kind, high, low], rest)) = tlvs.split_first_chunk() {
        let (value, next) = rest.split_at_checked(u16::from_be_bytes([high, low]).into())?;
        if kind == TLV_CRC32C {
            let sum = u32::from_be_bytes(value.try_into().ok()?);
            let after = next.len();
            let zeroed = header[..header.len() - after - 4]
                .iter()
                .chain(&[0; 4])
                .chain(&header[header.len() - after..]);
            if crc32c(zeroed) != sum {
                return Some(false);
            }
        }
        tlvs = next;
    }
    tlvs.is_empty().then_some(true)
}

/// CRC32C (Castagnoli), bit by bit: there is one header per connection. RFC 4960 B
fn crc32c<'a>(bytes: impl Iterator<Item = &'a u8>) -> u32 {
    !bytes.fold(u32::MAX, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| {
            (sum >> 1) ^ (0x82f6_3b78 & (sum & 1).wrapping_neg())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const V6: &str = "2001:db8::7";

    /// A header of version 2.
    fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let len = (rest.len() as u16).to_be_bytes();
        [V2_START, &[command, family], &len, rest].concat()
    }

    /// From 192.0.2.7:5000 to 192.0.2.1:443, with these TLVs.
    fn v2_tcp4(tlvs: &[u8]) -> Vec<u8> {
        let addresses = [192, 0, 2, 7, 192, 0, 2, 1, 0x13, 0x88, 1, 0xbb];
        v2(0x21, 0x11, &[&addresses, tlvs].concat())
    }

    fn v2_tcp6(family: u8) -> Vec<u8> {
        let address = V6.parse::<Ipv6Addr>().unwrap().octets();
        v2(0x21, family, &[&address[..], &[0; 16], &[0x13, 0x88, 0, 1]].concat())
    }

    /// A header that ends with its checksum TLV.
    fn with_sum() -> Vec<u8> {
        let mut header = v2_tcp4(&[TLV_CRC32C, 0, 4, 0, 0, 0, 0]);
        let sum = crc32c(header.iter()).to_be_bytes();
        let at = header.len() - 4;
        header[at..].copy_from_slice(&sum);
        header
    }

    /// Checks that the header is found whole, cut at every byte, and with anything after it.
    fn check(header: &[u8], client: Option<&str>) {
        let client = client.map(|client| client.parse().unwrap());
        for cut in 0..header.len() {
            assert_eq!(read(&header[..cut]), Beginning::Partial, "{cut} of {header:?}");
        }
        for behind in ["", "GET / HTTP/1.1\r\n", "PROXY UNKNOWN\r\n"] {
            match read(&[header, behind.as_bytes()].concat()) {
                Beginning::Header(found) => {
                    assert_eq!((found.len, found.client), (header.len(), client));
                }
                other => panic!("{other:?} for {header:?}"),
            }
        }
    }

    #[test]
    fn version_1_names_the_client() {
        check(b"PROXY TCP4 192.0.2.7 192.0.2.1 5000 443\r\n", Some("192.0.2.7:5000"));
        check(
            b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n",
            Some("255.255.255.255:65535"),
        );
        check(b"PROXY TCP6 2001:db8::7 ::1 0 443\r\n", Some("[2001:db8::7]:0"));
        check(b"PROXY UNKNOWN\r\n", None);
        let longest = format!(
            "PROXY UNKNOWN {0} {0} 65535 65535\r\n",
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
        );
        assert_eq!(longest.len(), V1_LEN_MAX);
        check(longest.as_bytes(), None);
        check(&[b"PROXY UNKNOWN ", &[b'x'; 91][..], b"\r\n"].concat(), None);
    }

    #[test]
    fn version_2_names_the_client() {
        check(&v2_tcp4(&[]), Some("192.0.2.7:5000"));
        check(&v2_tcp6(0x21), Some("[2001:db8::7]:5000"));
        check(&v2_tcp6(0x22), Some("[2001:db8::7]:5000"));
        // LOCAL, UNSPEC and Unix sockets: the connection's own address.
        check(&v2(0x20, 0x00, b""), None);
        check(&v2(0x20, 0x11, b"anything"), None);
        check(&v2(0x21, 0x00, b"anything"), None);
        check(&v2(0x21, 0x10, &[0; 12]), None);
        check(&v2(0x21, 0x31, &[0; 216]), None);
        // TLVs are skipped, up to the longest header.
        check(&v2_tcp4(b"\x02\0\x05a.org\x04\0\0"), Some("192.0.2.7:5000"));
        let len = V2_LEN_MAX - V2_HEAD_LEN - 12 - 3;
        let [high, low] = (len as u16).to_be_bytes();
        let tlv = [&[0x20, high, low][..], &vec![0xff; len]].concat();
        let longest = v2_tcp4(&tlv);
        assert_eq!(longest.len(), V2_LEN_MAX);
        check(&longest, Some("192.0.2.7:5000"));
    }

    /// The family of LOCAL is ignored: section 2.2 of the protocol, in which a proxy checks health.
    #[test]
    fn local_has_any_family() {
        for family in [0x00, 0x13, 0x22, 0x41, 0xff] {
            check(&v2(0x20, family, b""), None);
            check(&v2(0x20, family, b"anything"), None);
        }
    }

    #[test]
    fn a_checksum_is_checked() {
        // RFC 3720 B.4
        assert_eq!(crc32c([0; 32].iter()), 0x8a91_36aa);
        assert_eq!(crc32c([0xff; 32].iter()), 0x62a8_ab43);
        let header = with_sum();
        check(&header, Some("192.0.2.7:5000"));
        for at in V2_HEAD_LEN..header.len() {
            let mut wrong = header.clone();
            wrong[at] ^= 0x40;
            // A changed TLV type makes it another TLV, which is skipped.
            if wrong[at] != TLV_CRC32C ^ 0x40 || at != header.len() - 7 {
                assert_eq!(read(&wrong), Beginning::Malformed, "byte {at}");
            }
        }
    }

    #[test]
    fn malformed_headers_are_told_early() {
        for line in [
            "PROXY",
            "PROXY\r\n",
            "PROXY \r\n",
            "PROXY TCP4 192.0.2.7 192.0.2.1 5000 443\n",
            "PROXY TCP4 192.0.2.7 192.0.2.1 5000 443\rG",
            "PROXY TCP4 192.0.2.7 192.0.2.1 5000 443 \r\n",
            "PROXY TCP4  192.0.2.7 192.0.2.1 5000 443\r\n",
            "PROXY TCP4 192.0.2.07 192.0.2.1 5000 443\r\n",
            "PROXY TCP4 192.0.2 192.0.2.1 5000 443\r\n",
            "PROXY TCP4 ::1 ::1 5000 443\r\n",
            "PROXY TCP6 192.0.2.7 192.0.2.1 5000 443\r\n",
            "PROXY TCP6 fe80::1%lo ::1 5000 443\r\n",
            "PROXY TCP4 192.0.2.7 192.0.2.1 05000 443\r\n",
            "PROXY TCP4 192.0.2.7 192.0.2.1 +5000 443\r\n",
            "PROXY TCP4 192.0.2.7 192.0.2.1 5000 65536\r\n",
            "PROXY TCP4 192.0.2.7 192.0.2.1 5000\r\n",
            "PROXY TCP4 192.0.2.7 192.0.2.1 5000 \r\n",
            "PROXY UDP4 192.0.2.7 192.0.2.1 5000 443\r\n",
            "PROXY UNKNOWNS\r\n",
            "PROXYS TCP4 192.0.2.7 192.0.2.1 5000 443\r\n",
            "PROXY unknown\r\n",
        ] {
            let is_start = line == "PROXY";
            let expected = if is_start { Beginning::Partial } else { Beginning::Malformed };
            assert_eq!(read(line.as_bytes()), expected, "{line:?}");
        }
        let endless = [b"PROXY UNKNOWN ", &[b'x'; 300][..]].concat();
        assert_eq!(read(&endless[..V1_LEN_MAX - 1]), Beginning::Partial);
        assert_eq!(read(&endless[..V1_LEN_MAX]), Beginning::Malformed);
        let late = [b"PROXY UNKNOWN ", &[b'x'; 92][..], b"\r\n"].concat();
        assert_eq!(read(&late), Beginning::Malformed);

        let whole = v2_tcp4(&[]);
        for (at, wrong) in [(12, 0x22), (12, 0x11), (12, 0), (13, 0x41), (13, 0x13)] {
            let mut header = whole[..=at].to_vec();
            header[at] = wrong;
            assert_eq!(read(&header), Beginning::Malformed, "{wrong:#x} at {at}");
        }
        let too_long = ((V2_LEN_MAX - V2_HEAD_LEN + 1) as u16).to_be_bytes();
        let header = [V2_START, &[0x21, 0x11], &too_long].concat();
        assert_eq!(read(&header), Beginning::Malformed);
        for header in [
            v2(0x21, 0x11, &[0; 11]),
            v2(0x21, 0x21, &[0; 35]),
            v2(0x21, 0x31, &[0; 215]),
            v2_tcp4(&[4]),
            v2_tcp4(&[4, 0]),
            v2_tcp4(&[4, 0, 2, 0]),
            v2_tcp4(&[TLV_CRC32C, 0, 3, 0, 0, 0]),
            v2_tcp4(&[TLV_CRC32C, 0, 4, 0, 0, 0, 0]),
        ] {
            assert_eq!(read(&header), Beginning::Malformed, "{header:?}");
        }
    }

    #[test]
    fn other_protocols_are_no_header() {
        let hello = [22, 3, 1, 0, 5];
        for input in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"PROPFIND / HTTP/1.1\r\n",
            b"PRI * HTTP/2.0\r\n",
            b"\r\nGET / HTTP/1.1\r\n",
            b"\r\n\r\nGET",
            b"proxy TCP4",
            &hello,
        ] {
            assert_eq!(read(input), Beginning::Absent, "{input:?}");
        }
    }

    /// The result for a prefix is final, whatever follows it.
    #[test]
    fn damaged_headers_are_decided_once() {
        let line = b"PROXY TCP6 2001:db8::7 ::1 5000 443\r\nGET".to_vec();
        let wholes = [with_sum(), v2_tcp6(0x21), v2(0x20, 0, &[4, 0, 1, 9]), line];
        let mut seed = 1_u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % below
        };
        for _ in 0..5_000 {
            let mut input = wholes[random(wholes.len())].clone();
            for _ in 0..random(4) {
                let at = random(input.len());
                input[at] = [random(256) as u8, b' ', b'\r', b'\n', 0][random(5)];
            }
            let found = (0..=input.len()).map(|cut| read(&input[..cut]));
            let mut decided = found.skip_while(|start| *start == Beginning::Partial);
            if let Some(first) = decided.next() {
                assert!(decided.all(|later| later == first), "{input:?}");
            }
        }
    }
}
