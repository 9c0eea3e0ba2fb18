//! Host names of requests and TLS handshakes, and an index of values by host name.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use foldhash::quality::RandomState;

/// Name of a host in the form in which names are compared: lower case, without port and last dot;
/// an IPv6 address in brackets and in its shortest form. `*.example.org` stands for every name that
/// ends with `.example.org`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostName(Box<str>);

impl HostName {
    /// The name in the form in which names are compared.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True for a wildcard, which stands for every name below a name.
    pub fn is_wildcard(&self) -> bool {
        self.0.starts_with('*')
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for HostName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<HostName, &'static str> {
        let name = text.strip_prefix("*.").unwrap_or(text);
        if !name.is_ascii() {
            return Err(
                "write the name as clients send it, in Punycode: xn--bcher-kva.example for \
                        bücher.example",
            );
        }
        if name == "_" {
            return Err(
                "other names than those of hosts get the site above the first [[host]]: `root` is \
                 its directory",
            );
        }
        let is_address = name.starts_with('[') && name.ends_with(']') && name == text;
        if name.contains(':') && !is_address {
            return Err("a name is without scheme and port; an IPv6 address stands in brackets");
        }
        let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if !is_address && !name.bytes().all(is_name_byte) {
            return Err("a name is letters, digits, hyphens and dots, such as example.org or \
                        *.example.org");
        }
        let mut buffer = [0; NAME_LEN_MAX];
        let name = compared(name.as_bytes(), &mut buffer);
        match name.and_then(|name| std::str::from_utf8(name).ok()) {
            Some(name) if name.split('.').all(|label| !label.is_empty()) => {
                let wildcard = if text.starts_with('*') { "*." } else { "" };
                Ok(HostName(format!("{wildcard}{name}").into()))
            }
            _ => Err("this is not the name of a host, such as example.org, *.example.org or [::1]"),
        }
    }
}

/// Longest name. RFC 1035 3.1
const NAME_LEN_MAX: usize = 253;

/// Normalizes the name in a `Host` field for comparison; `None` if it is not a valid name.
fn compared<'b>(field: &[u8], buffer: &'b mut [u8; NAME_LEN_MAX]) -> Option<&'b [u8]> {
    if let Some(rest) = field.strip_prefix(b"[") {
        let (address, port) = rest.split_at(memchr::memchr(b']', rest)?);
        let address: Ipv6Addr = std::str::from_utf8(address).ok()?.parse().ok()?;
        if !is_port(&port[1..]) {
            return None;
        }
        let text = format!("[{address}]");
        buffer[..text.len()].copy_from_slice(text.as_bytes());
        return Some(&buffer[..text.len()]);
    }
    let name_len = memchr::memchr(b':', field).unwrap_or(field.len());
    let (name, port) = field.split_at(name_len);
    let name = name.strip_suffix(b".").unwrap_or(name);
    if name.is_empty() || name.len() > NAME_LEN_MAX || !is_port(port) {
        return None;
    }
    let lower = &mut buffer[..name.len()];
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    Some(lower)
}

/// Name and port (with its colon, if there is one) in a `Host` field, for an address; `None` if a
/// character is not allowed in a name.
pub fn name_and_port(field: &[u8]) -> Option<(String, &[u8])> {
    let mut buffer = [0; NAME_LEN_MAX];
    let name = std::str::from_utf8(compared(field, &mut buffer)?).ok()?.to_owned();
    let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !name.starts_with('[') && !name.bytes().all(is_name_byte) {
        return None;
    }
    let port_at = field.iter().rposition(|byte| !byte.is_ascii_digit());
    let port = port_at.filter(|at| field[*at] == b':' && at + 1 < field.len());
    Some((name, port.map_or(b"", |at| &field[at..])))
}

/// True for an empty text, and for a colon and digits. RFC 3986 3.2.3
fn is_port(text: &[u8]) -> bool {
    match text {
        [] => true,
        [b':', digits @ ..] => digits.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

/// Index of values by host name: an exact name takes one look-up, a wildcard one more for each
/// label.
#[derive(Debug)]
pub struct HostIndex<T> {
    whole: HashMap<Box<[u8]>, T, RandomState>,
    /// Values of wildcards, by the name behind `*.`.
    suffixes: HashMap<Box<[u8]>, T, RandomState>,
}

impl<T> Default for HostIndex<T> {
    fn default() -> HostIndex<T> {
        HostIndex { whole: HashMap::default(), suffixes: HashMap::default() }
    }
}

impl<T> HostIndex<T> {
    /// Adds the value of a name; if the name already has one, keeps that and returns false.
    pub fn add(&mut self, name: &HostName, value: T) -> bool {
        let entry = match name.0.strip_prefix("*.") {
            Some(suffix) => self.suffixes.entry(suffix.as_bytes().into()),
            None => self.whole.entry(name.0.as_bytes().into()),
        };
        let is_new = matches!(entry, Entry::Vacant(_));
        entry.or_insert(value);
        is_new
    }

    /// The value of the name in a `Host` field, or of the longest wildcard that fits.
    pub fn find(&self, field: &[u8]) -> Option<&T> {
        let mut buffer = [0; NAME_LEN_MAX];
        let name = compared(field, &mut buffer)?;
        if let Some(value) = self.whole.get(name) {
            return Some(value);
        }
        if self.suffixes.is_empty() {
            return None;
        }
        let mut suffixes = memchr::memchr_iter(b'.', name).map(|at| &name[at + 1..]);
        suffixes.find_map(|suffix| self.suffixes.get(suffix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(hosts: &[&[&str]]) -> HostIndex<usize> {
        let mut names = HostIndex::default();
        for (at, host) in hosts.iter().enumerate() {
            for name in *host {
                assert!(names.add(&name.parse().unwrap(), at));
            }
        }
        names
    }

    #[test]
    fn case_port_and_last_dot_do_not_matter() {
        let names = names(&[&["Example.org", "[2001:DB8:0::1]"], &["10.0.0.1"]]);
        for (field, host) in [
            ("example.org", Some(0)),
            ("EXAMPLE.ORG:8080", Some(0)),
            ("example.org.", Some(0)),
            ("example.org.:443", Some(0)),
            ("example.org:", Some(0)),
            ("[2001:db8::1]", Some(0)),
            ("[2001:db8::0:1]:80", Some(0)),
            ("10.0.0.1:80", Some(1)),
            ("example.org..", None),
            ("example.org:80:80", None),
            ("example.org:http", None),
            ("www.example.org", None),
            ("[2001:db8::1", None),
            ("[2001:db8::1]x", None),
            ("", None),
            (":80", None),
        ] {
            let found = names.find(field.as_bytes());
            assert_eq!(found.copied(), host, "{field}");
        }
        let long = "a.".repeat(NAME_LEN_MAX);
        assert_eq!(names.find(long.as_bytes()), None);
    }

    #[test]
    fn the_longest_wildcard_answers() {
        let names = names(&[&["*.example.org"], &["*.dev.example.org"], &["www.example.org"]]);
        for (field, host) in [
            ("a.example.org", Some(0)),
            ("a.b.example.org", Some(0)),
            ("a.DEV.example.org:1", Some(1)),
            ("dev.example.org", Some(0)),
            ("www.example.org", Some(2)),
            ("example.org", None),
            ("notexample.org", None),
        ] {
            let found = names.find(field.as_bytes());
            assert_eq!(found.copied(), host, "{field}");
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in [
            "",
            ".",
            "*",
            "*.",
            "a..b",
            ".a",
            "*a.org",
            "a.*.org",
            "http://a.org",
            "a.org:80",
            "::1",
            "[::1]:80",
            "*.[::1]",
            "[a]",
            "a b",
            "a/b",
            "bücher.example",
            "_",
        ] {
            assert!(text.parse::<HostName>().is_err(), "{text}");
        }
        let unicode = "bücher.example".parse::<HostName>().unwrap_err();
        assert!(unicode.contains("xn--bcher-kva.example"), "{unicode}");
        let longest = ["a"; NAME_LEN_MAX / 2 + 1].join(".");
        assert!(longest.parse::<HostName>().is_ok());
        assert!(format!("{longest}a").parse::<HostName>().is_err());
    }

    #[test]
    fn two_hosts_do_not_share_a_name() {
        let mut names = names(&[&["a.org", "*.a.org"]]);
        for name in ["A.org.", "*.a.org"] {
            assert!(!names.add(&name.parse().unwrap(), 1), "{name}");
        }
        assert_eq!(names.find(b"a.org"), Some(&0));
    }
}
