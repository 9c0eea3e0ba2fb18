//! The client of a request that comes through proxies, by `X-Forwarded-For` or `Forwarded`
//! (RFC 7239).
//!
//! Each proxy appends the address of its own peer, so the list is read from its end: past trusted
//! proxies to the first address that is not trusted. Anything before that may be forged by the
//! client. The same holds before an element that is no address (`unknown`, `_hidden`, garbage):
//! the client is then the last known proxy.

use std::net::{IpAddr, SocketAddr};

use session::Networks;

use crate::config::{ForwardedField, Proxies};
use crate::log::Peer;
use crate::request::Fields;
use crate::request::fields::trim;

/// The client of a request, as trusted proxies name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Client {
    pub(crate) peer: Peer,
    /// True if the request came to the first proxy by https, as far as the proxies say.
    pub(crate) is_https: bool,
    /// A client broke the grammar in front of a proxy's address, perhaps to hide it.
    pub(crate) is_hidden: bool,
}

impl Client {
    /// A client that no proxy has named: the peer.
    pub(crate) fn unnamed(peer: Peer) -> Client {
        Client { peer, is_https: false, is_hidden: false }
    }
}

impl Proxies {
    /// The client of a request from `peer`.
    pub(crate) fn client(&self, peer: Peer, fields: &Fields<'_>) -> Client {
        let unnamed = Client::unnamed(peer);
        let address = match peer {
            Peer::Tcp(address) => Some(address),
            Peer::Unix => None,
        };
        if !self.from.contains(address) {
            return unnamed;
        }
        let mut walk = Walk { trusted: &self.from, peer, client: unnamed, is_known: false };
        match self.field {
            ForwardedField::XForwardedFor => {
                for value in fields.search("x-forwarded-for") {
                    value.split(|&byte| byte == b',').for_each(|member| {
                        walk.pass(node(trim(member)), false);
                    });
                }
                // The protocol that the nearest proxy names.
                let schemes = fields.search("x-forwarded-proto");
                let last =
                    schemes.last().and_then(|value| value.rsplit(|&byte| byte == b',').next());
                walk.client.is_https = last.is_some_and(|last| is_https(trim(last)));
            }
            ForwardedField::Forwarded => {
                for value in fields.search("forwarded") {
                    if read_forwarded(value, |node, is_https| walk.pass(node, is_https)).is_none() {
                        walk.pass(None, false);
                        walk.client.is_hidden = true;
                    }
                }
            }
        }
        walk.client
    }
}

/// A walk over a list from its start, in constant memory. It ends with the same client as a walk
/// from the end.
struct Walk<'a> {
    trusted: &'a Networks,
    peer: Peer,
    client: Client,
    /// False before the first address, and after an element that is no address.
    is_known: bool,
}

impl Walk<'_> {
    fn pass(&mut self, node: Option<SocketAddr>, is_https: bool) {
        let is_proxy = node.is_none_or(|node| self.trusted.contains_address(node.ip()));
        if is_proxy && node.is_some() && self.is_known {
            return;
        }
        self.is_known = node.is_some();
        self.client = Client {
            peer: node.map_or(self.peer, Peer::Tcp),
            is_https: is_https && self.is_known,
            is_hidden: self.client.is_hidden && is_proxy,
        };
    }
}

fn is_https(scheme: &[u8]) -> bool {
    scheme.eq_ignore_ascii_case(b"https")
}

/// Parses an address, with or without port and brackets. A hidden or absent port is 0.
fn node(text: &[u8]) -> Option<SocketAddr> {
    let text = str::from_utf8(text).ok()?;
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(SocketAddr::new(address, 0));
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(address);
    }
    // `[2001:db8::1]`, and ports such as `_hidden`. RFC 7239 6
    let (address, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            (IpAddr::V6(address.parse().ok()?), port)
        }
        None => {
            let at = text.find(':')?;
            (IpAddr::V4(text[..at].parse().ok()?), &text[at..])
        }
    };
    (port.is_empty() || port.starts_with(":_")).then_some(SocketAddr::new(address, 0))
}

/// Passes each element's node to `pass`, and whether the element says https. `None` if the value
/// breaks the grammar: an unbalanced quotation mark of a client may then hide any element.
/// RFC 7239 4
fn read_forwarded(value: &[u8], mut pass: impl FnMut(Option<SocketAddr>, bool)) -> Option<()> {
    let mut rest = trim(value);
    while !rest.is_empty() {
        let mut found = None;
        let mut has_for = false;
        let mut has_https = false;
        let mut is_empty = true;
        loop {
            // Elements and pairs may be empty. RFC 9110 5.6.1, RFC 7239 4
            if let [separator @ (b',' | b';'), next @ ..] = rest {
                rest = trim(next);
                match separator {
                    b',' => break,
                    _ => continue,
                }
            }
            if rest.is_empty() {
                break;
            }
            is_empty = false;
            let equals = rest.iter().position(|byte| b"=,;\"".contains(byte));
            let equals = equals.filter(|&at| rest[at] == b'=')?;
            let name = trim(&rest[..equals]);
            let (value, after) = read_value(&rest[equals + 1..])?;
            if name.eq_ignore_ascii_case(b"for") {
                if has_for {
                    return None;
                }
                (found, has_for) = (node(value), true);
            } else if name.eq_ignore_ascii_case(b"proto") {
                has_https = is_https(value);
            }
            rest = trim(after);
            if !matches!(rest, [] | [b',' | b';', ..]) {
                return None;
            }
        }
        if !is_empty {
            pass(found, has_https);
        }
    }
    Some(())
}

/// A token or a quoted string, and what follows it. RFC 9110 5.6.4
fn read_value(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let Some(quoted) = input.strip_prefix(b"\"") else {
        let end = input.iter().position(|byte| b",;\" \t".contains(byte));
        return Some(input.split_at(end.unwrap_or(input.len())));
    };
    let mut at = 0;
    loop {
        match quoted.get(at)? {
            b'"' => return Some((&quoted[..at], &quoted[at + 1..])),
            b'\\' => at += 2, // No address has one.
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RequestLimits;
    use crate::request::parse;

    fn proxies(field: ForwardedField) -> Proxies {
        let list = ["10.0.0.0/8", "2001:db8:aaaa::/48"];
        let list = list.map(|text| text.parse().unwrap()).to_vec();
        Proxies { from: Networks { list, has_unix: true }, field }
    }

    fn client(field: ForwardedField, peer: Peer, lines: &str) -> String {
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let limits = RequestLimits::default();
        let head = parse(head.as_bytes(), &limits).unwrap().unwrap();
        proxies(field).client(peer, &head.fields).peer.to_string()
    }

    fn tcp(address: &str) -> Peer {
        Peer::Tcp(SocketAddr::new(address.parse().unwrap(), 40_000))
    }

    /// Checks the client of these lines, received from the proxy 10.0.0.1; "" is the proxy itself.
    fn check(field: ForwardedField, lines: &[&str], expected: &str) {
        let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
        let expected = if expected.is_empty() { "10.0.0.1" } else { expected };
        assert_eq!(client(field, tcp("10.0.0.1"), &lines), expected, "{lines}");
    }

    #[test]
    fn x_forwarded_for_is_read_from_its_end() {
        let check = |values: &[&str], expected: &str| {
            let lines: Vec<_> =
                (values.iter()).map(|value| format!("X-Forwarded-For: {value}")).collect();
            let lines: Vec<_> = lines.iter().map(String::as_str).collect();
            check(ForwardedField::XForwardedFor, &lines, expected);
        };
        check(&[], "");
        check(&["192.0.2.7"], "192.0.2.7");
        check(&["6.6.6.6, 192.0.2.7"], "192.0.2.7");
        check(&["6.6.6.6, 192.0.2.7, 10.0.0.2,10.0.0.3"], "192.0.2.7");
        check(&["6.6.6.6", "192.0.2.7", "10.0.0.2"], "192.0.2.7");
        check(&["10.0.0.9, 10.0.0.2"], "10.0.0.9"); // A client inside.
        // Ports, brackets, IPv6.
        check(&["192.0.2.7:5000"], "192.0.2.7");
        check(&["192.0.2.7:_hidden"], "192.0.2.7");
        check(&["2001:db8::7"], "2001:db8::7");
        check(&["[2001:db8::7]"], "2001:db8::7");
        check(&["[2001:db8::7]:5000"], "2001:db8::7");
        check(&["::ffff:192.0.2.7"], "192.0.2.7");
        check(&["192.0.2.7, 2001:db8:aaaa::1"], "192.0.2.7");
        // An element that is no address hides everything before it.
        for garbage in [
            "unknown",
            "_hidden",
            "",
            "-",
            "a, b",
            "1.2.3",
            "1.2.3.4.5",
            "192.0.2.7:99999",
            "192.0.2.7:",
            "192.0.2.7 10.0.0.2",
            "[2001:db8::7",
            "2001:db8::7]",
            "::1%lo",
            "é",
            "\"192.0.2.7\"",
            "for=192.0.2.7",
            "0x7f.1",
            "192.0.2.07",
        ] {
            check(&[&format!("6.6.6.6, {garbage}")], "");
            check(&[&format!("6.6.6.6, {garbage}, 10.0.0.2, 10.0.0.3")], "10.0.0.2");
            check(&[&format!("{garbage}, 192.0.2.7")], "192.0.2.7");
        }
        let long = "6.6.6.6,".repeat(1_900) + "192.0.2.7";
        check(&[&long], "192.0.2.7");
    }

    #[test]
    fn forwarded_is_read_from_its_end() {
        let check = |values: &[&str], expected: &str| {
            let lines: Vec<_> =
                (values.iter()).map(|value| format!("Forwarded: {value}")).collect();
            let lines: Vec<_> = lines.iter().map(String::as_str).collect();
            check(ForwardedField::Forwarded, &lines, expected);
        };
        check(&["for=192.0.2.7"], "192.0.2.7");
        check(&["For=\"[2001:db8::7]:4711\""], "2001:db8::7");
        check(&["for=\"[2001:db8::7]\";proto=https;by=10.0.0.1"], "2001:db8::7");
        check(&["proto=http; by=_x ;for=192.0.2.7 "], "192.0.2.7");
        check(&["for=6.6.6.6, for=192.0.2.7;host=\"a,b;c=\\\"\", for=10.0.0.2"], "192.0.2.7");
        check(&["for=6.6.6.6", "for=192.0.2.7", "for=\"10.0.0.2:_x\""], "192.0.2.7");
        for empty in ["", ",", " ,, ,", ";", ";;,;"] {
            check(&[empty], "");
            check(&[&format!("{empty}, for=192.0.2.7{empty}")], "192.0.2.7");
            check(&[&format!("for=6.6.6.6,{empty}, for=192.0.2.7")], "192.0.2.7");
            check(&["for=192.0.2.7", empty], "192.0.2.7");
        }
        check(&[";for=192.0.2.7;;proto=http; ;"], "192.0.2.7");
        for hidden in ["for=unknown", "for=_gazonk", "for=\"_gazonk:80\"", "proto=https"] {
            check(&[&format!("for=6.6.6.6, {hidden}")], "");
            check(&[&format!("for=6.6.6.6, {hidden}, for=10.0.0.2")], "10.0.0.2");
        }
        // A client's quotation mark does not hide the element that the proxy appends.
        for opened in [
            "for=6.6.6.6;x=\", for=192.0.2.7",
            "for=6.6.6.6;x=\", for=\"[2001:db8::7]\"",
            "for=6.6.6.6, for=\", for=\"192.0.2.7\"",
            "for=6.6.6.6;x=\"\\\", for=192.0.2.7",
            "for=6.6.6.6;for=192.0.2.7",
            "for",
            "=",
            ",=",
            "for=6.6.6.6 192.0.2.7",
        ] {
            check(&[opened], "");
            check(&[opened, "for=192.0.2.9"], "192.0.2.9");
        }
    }

    #[test]
    fn the_scheme_is_that_of_the_client() {
        let check = |field, lines: &str, expected: bool| {
            let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n");
            let head = parse(head.as_bytes(), &RequestLimits::default());
            let head = head.unwrap().unwrap();
            let client = proxies(field).client(tcp("10.0.0.1"), &head.fields);
            assert_eq!(client.is_https, expected, "{lines}");
            let untrusted = proxies(field).client(tcp("192.0.2.1"), &head.fields);
            assert!(!untrusted.is_https, "{lines}");
        };
        let x = ForwardedField::XForwardedFor;
        check(x, "X-Forwarded-Proto: HTTPS", true);
        check(x, "X-Forwarded-Proto: http, https", true);
        check(x, "X-Forwarded-Proto: https, http", false);
        check(x, "X-Forwarded-Proto: https\r\nX-Forwarded-Proto: http", false);
        check(x, "X-Forwarded-For: 192.0.2.7", false);
        let forwarded = ForwardedField::Forwarded;
        check(forwarded, "Forwarded: for=192.0.2.7;proto=https, for=10.0.0.2;proto=http", true);
        check(forwarded, "Forwarded: for=6.6.6.6;proto=https, for=192.0.2.7;proto=http", false);
        check(forwarded, "Forwarded: for=192.0.2.7;proto=https, for=unknown", false);
        check(forwarded, "X-Forwarded-Proto: https", false);
    }

    #[test]
    fn only_the_named_field_of_trusted_peers_is_believed() {
        let both = "X-Forwarded-For: 192.0.2.7\r\nForwarded: for=192.0.2.8\r\n";
        let x = ForwardedField::XForwardedFor;
        assert_eq!(client(x, tcp("10.0.0.1"), both), "192.0.2.7");
        assert_eq!(client(x, tcp("::ffff:10.0.0.1"), both), "192.0.2.7");
        assert_eq!(client(x, tcp("2001:db8:aaaa::1"), both), "192.0.2.7");
        assert_eq!(client(x, Peer::Unix, both), "192.0.2.7");
        assert_eq!(client(x, tcp("192.0.2.1"), both), "192.0.2.1");
        let forwarded = ForwardedField::Forwarded;
        assert_eq!(client(forwarded, tcp("10.0.0.1"), both), "192.0.2.8");
        let near = "X-Forwarded-Fox: 6.6.6.6\r\nX-Real-IP: 6.6.6.6\r\n";
        assert_eq!(client(x, tcp("10.0.0.1"), near), "10.0.0.1");
    }

    proptest::proptest! {
        /// A walk from the start finds the same client as one from the end.
        #[test]
        fn walk_from_the_end_finds_the_same(list in proptest::collection::vec(0_usize..6, 0..8)) {
            let words = ["6.6.6.6", "10.0.0.2", "10.0.0.3:80", "unknown", "192.0.2.7", "::1"];
            let proxies = proxies(ForwardedField::XForwardedFor);
            let mut expected = tcp("10.0.0.1").to_string();
            for &at in list.iter().rev() {
                let Some(node) = node(words[at].as_bytes()) else { break };
                expected = Peer::Tcp(node).to_string();
                if !proxies.from.contains_address(node.ip()) {
                    break;
                }
            }
            let line = list.iter().map(|&at| words[at]).collect::<Vec<_>>().join(", ");
            let line = if list.is_empty() { String::new() } else { format!("X-Forwarded-For: {line}") };
            let lines = [line.as_str()];
            let lines = if list.is_empty() { &[][..] } else { &lines };
            check(ForwardedField::XForwardedFor, lines, &expected);
        }
    }
}
