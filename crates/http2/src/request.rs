//! A request's head, checked. RFC 9113 8.1.1, 8.2 and 8.3

use crate::error::{Fault, malformed};
use crate::field::{Field, FieldList};
use crate::priority::Priority;

/// Head of a request, in a buffer that is used again for the next one.
#[derive(Debug)]
pub struct RequestHead {
    pub(crate) list: FieldList,
    /// Positions in the list from 1; 0 is none.
    method: u32,
    scheme: u32,
    authority: u32,
    path: u32,
    /// Number of pseudo-fields, which stand first.
    pseudo: usize,
    pub(crate) content_length: Option<u64>,
    pub(crate) priority: Option<Priority>,
}

/// Fields and pseudo-fields that HTTP/2 itself reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    Method,
    Scheme,
    Authority,
    Path,
    UnknownPseudo,
    ContentLength,
    Host,
    Te,
    Priority,
    /// Fields that are about an HTTP/1.1 connection.
    Connection,
    Other,
}

impl Known {
    #[inline]
    fn of(field: &Field<'_>) -> Known {
        // Indexes of RFC 7541 Appendix A.
        match field.name_index {
            0 => Known::of_name(field.name),
            1 => Known::Authority,
            2 | 3 => Known::Method,
            4 | 5 => Known::Path,
            6 | 7 => Known::Scheme,
            8..=14 => Known::UnknownPseudo,
            28 => Known::ContentLength,
            38 => Known::Host,
            57 => Known::Connection,
            _ => Known::Other,
        }
    }

    fn of_name(name: &[u8]) -> Known {
        match name {
            b":method" => Known::Method,
            b":scheme" => Known::Scheme,
            b":authority" => Known::Authority,
            b":path" => Known::Path,
            [b':', ..] => Known::UnknownPseudo,
            b"content-length" => Known::ContentLength,
            b"host" => Known::Host,
            b"te" => Known::Te,
            b"priority" => Known::Priority,
            b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding"
            | b"upgrade" => Known::Connection,
            _ => Known::Other,
        }
    }
}

impl RequestHead {
    /// A buffer for heads of `size_max` bytes as RFC 9113 6.5.2 counts them, and of `fields_max`
    /// fields.
    pub fn new(size_max: usize, fields_max: usize) -> RequestHead {
        RequestHead {
            list: FieldList::new(size_max, fields_max),
            method: 0,
            scheme: 0,
            authority: 0,
            path: 0,
            pseudo: 0,
            content_length: None,
            priority: None,
        }
    }

    /// The method.
    pub fn method(&self) -> &[u8] {
        self.value(self.method)
    }

    /// The scheme; empty with `CONNECT`.
    pub fn scheme(&self) -> &[u8] {
        self.value(self.scheme)
    }

    /// Host and port of the request, from `:authority` or `host`.
    pub fn authority(&self) -> &[u8] {
        self.value(self.authority)
    }

    /// Path and query; empty with `CONNECT`.
    pub fn path(&self) -> &[u8] {
        self.value(self.path)
    }

    /// Names and values of the fields, without pseudo-fields.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.list.iter().skip(self.pseudo)
    }

    /// Value of `content-length`.
    pub fn content_length(&self) -> Option<u64> {
        self.content_length
    }

    /// Value of `priority`, or the default.
    pub fn priority(&self) -> Priority {
        self.priority.unwrap_or_default()
    }

    /// Bytes of memory that the buffer has allocated.
    pub fn allocated_len(&self) -> usize {
        self.list.allocated_len()
    }

    fn value(&self, position: u32) -> &[u8] {
        let field = (position as usize).checked_sub(1);
        field.map_or(b"", |at| self.list.field(at).value)
    }

    /// Removes the head.
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.method = 0;
        self.scheme = 0;
        self.authority = 0;
        self.path = 0;
        self.pseudo = 0;
        self.content_length = None;
        self.priority = None;
    }

    /// Checks the list as the head of a request. RFC 9113 8.3.1
    pub(crate) fn check(&mut self) -> Result<(), Fault> {
        let mut host = 0;
        for at in 0..self.list.len() {
            let field = self.list.field(at);
            if !field.is_valid {
                return Err(malformed("a field with bytes that may not stand there"));
            }
            let position = at as u32 + 1;
            let known = Known::of(&field);
            let pseudo = match known {
                Known::Method => &mut self.method,
                Known::Scheme => &mut self.scheme,
                Known::Authority => &mut self.authority,
                Known::Path => &mut self.path,
                Known::UnknownPseudo => return Err(malformed("an unknown pseudo-field")),
                Known::Host => &mut host,
                Known::ContentLength => {
                    let len = content_length(field.value);
                    if len.is_none() || self.content_length.is_some() {
                        return Err(malformed("an invalid or repeated content-length"));
                    }
                    self.content_length = len;
                    continue;
                }
                Known::Priority => {
                    self.priority = Some(Priority::parse(field.value));
                    continue;
                }
                Known::Te | Known::Connection => {
                    check_of_connection(known, field.value)?;
                    continue;
                }
                Known::Other => continue,
            };
            if std::mem::replace(pseudo, position) != 0 {
                return Err(malformed("a pseudo-field or host twice"));
            }
            if known != Known::Host {
                if at != self.pseudo {
                    return Err(malformed("a pseudo-field after a field"));
                }
                self.pseudo += 1;
            }
        }
        self.check_target(host)
    }

    fn check_target(&mut self, host: u32) -> Result<(), Fault> {
        let method = self.method();
        if method.is_empty() || !method.iter().all(|&byte| is_token(byte)) {
            return Err(malformed("an invalid method"));
        }
        if method == b"CONNECT" {
            let is_whole = self.scheme == 0 && self.path == 0 && self.authority != 0;
            return is_whole
                .then_some(())
                .ok_or(malformed("CONNECT with a path or without an authority"));
        }
        let path = self.path();
        let is_path = path.starts_with(b"/") || (path == b"*" && method == b"OPTIONS");
        if !is_path || path.iter().any(|&byte| byte <= b' ') {
            return Err(malformed("an invalid path"));
        }
        if self.scheme().is_empty() {
            return Err(malformed("no scheme"));
        }
        if self.authority == 0 {
            self.authority = host;
        } else if host != 0 && !self.value(host).eq_ignore_ascii_case(self.authority()) {
            return Err(malformed("host and :authority differ"));
        }
        // RFC 9113 8.3.1: it must not have user information.
        if self.authority().is_empty() || self.authority().contains(&b'@') {
            return Err(malformed("an invalid authority"));
        }
        Ok(())
    }
}

/// Checks the list as trailers. RFC 9113 8.1
pub(crate) fn check_trailers(list: &FieldList) -> Result<(), Fault> {
    for field in list.fields() {
        if !field.is_valid || field.name.starts_with(b":") {
            return Err(malformed("a trailer that may not stand there"));
        }
        check_of_connection(Known::of(&field), field.value)?;
    }
    Ok(())
}

/// Refuses connection-specific fields. RFC 9113 8.2.2
fn check_of_connection(known: Known, value: &[u8]) -> Result<(), Fault> {
    match known {
        Known::Te if value.eq_ignore_ascii_case(b"trailers") => Ok(()),
        Known::Te | Known::Connection => Err(malformed("a field of an HTTP/1.1 connection")),
        _ => Ok(()),
    }
}

/// A length of at most 19 digits. RFC 9110 8.6
fn content_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 19 {
        return None;
    }
    value.iter().try_fold(0, |len, &byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
        digit.map(|digit| len * 10 + digit)
    })
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::{is_valid_name, is_valid_value};

    /// The head of `name: value` lines, checked.
    fn head(lines: &[&str]) -> Result<RequestHead, Fault> {
        let mut head = RequestHead::new(1 << 16, 100);
        for line in lines {
            let (name, value) = line[1..].split_once(": ").unwrap();
            let name = line[..1].to_owned() + name;
            let (name, value) = (name.as_bytes(), value.as_bytes());
            let is_valid = is_valid_name(name) && is_valid_value(value);
            head.list.push(name, value, 0, is_valid);
        }
        head.check().map(|()| head)
    }

    const GET: [&str; 4] =
        [":method: GET", ":scheme: https", ":path: /a?b", ":authority: example.org"];

    fn get_with(more: &[&'static str]) -> Result<RequestHead, Fault> {
        head(&[&GET[..], more].concat())
    }

    #[test]
    fn parts_of_a_head() {
        let head = get_with(&["x: 1", "priority: u=1", "content-length: 0", "y: 2"]).unwrap();
        assert_eq!(head.method(), b"GET");
        assert_eq!(head.scheme(), b"https");
        assert_eq!(head.path(), b"/a?b");
        assert_eq!(head.authority(), b"example.org");
        assert_eq!(head.content_length(), Some(0));
        assert_eq!(head.priority().urgency, 1);
        let names: Vec<_> = head.fields().map(|(name, _)| name).collect();
        assert_eq!(names, [&b"x"[..], b"priority", b"content-length", b"y"]);
    }

    /// RFC 9113 8.3.
    #[test]
    fn pseudo_fields_are_exact() {
        for missing in 0..4 {
            let mut lines = GET.to_vec();
            lines.remove(missing);
            assert!(head(&lines).is_err(), "{lines:?}");
        }
        for twice in GET {
            assert!(get_with(&[twice]).is_err(), "{twice}");
        }
        assert!(get_with(&[":status: 200"]).is_err());
        assert!(get_with(&[":protocol: websocket"]).is_err());
        let late = [GET[0], GET[1], GET[2], "x: 1", GET[3]];
        assert!(head(&late).is_err(), "after a field");
    }

    #[test]
    fn targets() {
        let with = |method, path, authority: &str| {
            let method = format!(":method: {method}");
            let path = format!(":path: {path}");
            let authority = format!(":authority: {authority}");
            head(&[&method, GET[1], &path, &authority]).is_ok()
        };
        assert!(with("GET", "/", "a"));
        assert!(with("OPTIONS", "*", "a"));
        assert!(with("POST", "/*", "a:80"));
        assert!(!with("GET", "*", "a"));
        assert!(!with("GET", "a", "a"));
        assert!(!with("GET", "", "a"));
        assert!(!with("GET", "/a b", "a"));
        assert!(!with("GET", "http://a/", "a"));
        assert!(!with("G T", "/", "a"));
        assert!(!with("", "/", "a"));
        assert!(!with("GET", "/", "me@a"));
        assert!(!with("GET", "/", ""));
        assert!(!with("CONNECT", "/", "a"));
        assert!(head(&[":method: CONNECT", ":authority: a:443"]).is_ok());
        assert!(head(&[":method: CONNECT"]).is_err());
    }

    /// RFC 9113 8.3.1.
    #[test]
    fn host_stands_for_the_authority() {
        let with = |host| head(&[GET[0], GET[1], GET[2], host]);
        assert_eq!(with("host: a").unwrap().authority(), b"a");
        assert!(with("host: me@a").is_err());
        assert!(get_with(&["host: Example.org"]).is_ok());
        assert!(get_with(&["host: example.com"]).is_err());
        assert!(get_with(&["host: example.org", "host: example.org"]).is_err());
    }

    /// RFC 9113 8.2.2.
    #[test]
    fn fields_of_a_connection_are_refused() {
        for line in [
            "connection: close",
            "keep-alive: 1",
            "proxy-connection: close",
            "transfer-encoding: chunked",
            "upgrade: h2c",
            "te: gzip",
            "te: trailers, gzip",
        ] {
            assert!(get_with(&[line]).is_err(), "{line}");
        }
        assert!(get_with(&["te: trailers"]).is_ok());
    }

    #[test]
    fn lengths() {
        let len = |value: &str| content_length(value.as_bytes());
        assert_eq!(len("0"), Some(0));
        assert_eq!(len("9999999999999999999"), Some(9_999_999_999_999_999_999));
        for value in ["", "-1", "+1", "1 ", "0x1", "1,1", "10000000000000000000"] {
            assert_eq!(len(value), None, "{value}");
        }
        assert!(get_with(&["content-length: 1", "content-length: 1"]).is_err());
        assert!(get_with(&["content-length: x"]).is_err());
    }
}
