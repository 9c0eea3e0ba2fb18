//! Header fields: the few that this server reads, found by length and then by comparison.

use std::iter;

use memchr::memchr;

use super::Refusal;
use super::head::is_token;

/// The fields that this server reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Name {
    Host,
    Connection,
    ContentLength,
    TransferEncoding,
    Expect,
    Range,
    IfRange,
    IfMatch,
    IfNoneMatch,
    IfModifiedSince,
    IfUnmodifiedSince,
    Accept,
    AcceptEncoding,
    Referer,
    UserAgent,
}

const NAME_COUNT: usize = 15;

impl Name {
    fn bit(self) -> u16 {
        1 << self as u8
    }

    /// `name` must contain no control bytes: [`is_same`] relies on it.
    #[inline]
    fn of(name: &[u8]) -> Option<Name> {
        let found = |is_same, name| if is_same { Some(name) } else { None };
        match name.len() {
            4 => found(is_same(name, b"host"), Name::Host),
            5 => found(is_same(name, b"range"), Name::Range),
            6 if is_same(name, b"accept") => Some(Name::Accept),
            6 => found(is_same(name, b"expect"), Name::Expect),
            7 => found(is_same(name, b"referer"), Name::Referer),
            8 if is_same(name, b"if-match") => Some(Name::IfMatch),
            8 => found(is_same(name, b"if-range"), Name::IfRange),
            10 if is_same(name, b"user-agent") => Some(Name::UserAgent),
            10 => found(is_same(name, b"connection"), Name::Connection),
            13 => found(is_same(name, b"if-none-match"), Name::IfNoneMatch),
            14 => found(is_same(name, b"content-length"), Name::ContentLength),
            15 => found(is_same(name, b"accept-encoding"), Name::AcceptEncoding),
            17 if is_same(name, b"if-modified-since") => Some(Name::IfModifiedSince),
            17 => found(is_same(name, b"transfer-encoding"), Name::TransferEncoding),
            19 => found(is_same(name, b"if-unmodified-since"), Name::IfUnmodifiedSince),
            _ => None,
        }
    }
}

/// True if a field name without control bytes equals `lower`, ignoring case.
///
/// Setting bit 5 turns capitals into small letters. It also turns CR into `-`, but CR is a control
/// byte; no other byte becomes a letter. The length is a constant, so this compiles to a few
/// vector instructions and no loop.
#[inline]
fn is_same<const N: usize>(name: &[u8], lower: &[u8; N]) -> bool {
    <&[u8; N]>::try_from(name).is_ok_and(|name| {
        name.iter().zip(lower).fold(0, |diff, (a, b)| diff | ((a | 0x20) ^ b)) == 0
    })
}

/// The fields of one request. A repeated field is marked as such, and its values are searched for
/// again if all of them are needed, which is rare.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    /// The input from the first field line on. The search ends at the blank line.
    block: &'a [u8],
    /// Offset and length of the first value of each name. Half the size of slices: a head is moved
    /// twice.
    values: [(u32, u32); NAME_COUNT],
    present: u16,
    repeated: u16,
}

impl<'a> Fields<'a> {
    /// Parses the lines at the start of `input`.
    #[inline]
    pub(super) fn new(input: &'a [u8]) -> Fields<'a> {
        Fields { block: input, values: [(0, 0); NAME_COUNT], present: 0, repeated: 0 }
    }

    /// Takes one field line without its CRLF and without control bytes: `line_len` bytes from
    /// `start` on. Always inlined into the two parsers, of HTTP/1.1 and of streams.
    #[inline(always)]
    pub(super) fn push_line(&mut self, start: usize, line_len: usize) -> Result<(), Refusal> {
        let input = &self.block[start..];
        let line = &input[..line_len];
        let Some(colon) = find_colon(input).filter(|&colon| colon < line_len) else {
            return Err(refusal_of(line));
        };
        match Name::of(&line[..colon]) {
            Some(name) if !self.has(name) => {
                self.present |= name.bit();
                let after = &line[colon + 1..];
                let value = trim_start(after);
                let at = start + colon + 1 + (after.len() - value.len());
                // A head is shorter than 4 GiB: `RequestLimits`.
                self.values[name as usize] = (at as u32, trim_end(value).len() as u32);
                Ok(())
            }
            Some(name) => {
                self.repeated |= name.bit();
                Ok(())
            }
            None if is_token(&line[..colon]) => Ok(()),
            None => Err(refusal_of(line)),
        }
    }

    /// True if the field is present.
    #[inline]
    pub(crate) fn has(&self, name: Name) -> bool {
        self.present & name.bit() != 0
    }

    /// The value of a singleton field; the first one if it is repeated.
    #[inline]
    pub(crate) fn get(&self, name: Name) -> Option<&'a [u8]> {
        self.has(name).then(|| {
            let (at, len) = self.values[name as usize];
            &self.block[at as usize..][..len as usize]
        })
    }

    /// The value of a field that is ignored if repeated, such as a date.
    #[inline]
    pub(crate) fn single(&self, name: Name) -> Option<&'a [u8]> {
        self.get(name).filter(|_| !self.is_repeated(name))
    }

    /// True if the field is repeated.
    #[inline]
    pub(crate) fn is_repeated(&self, name: Name) -> bool {
        self.repeated & name.bit() != 0
    }

    /// Every value of a field, in order of arrival.
    pub(crate) fn all(&self, name: Name) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let is_repeated = self.is_repeated(name);
        let first = self.get(name).filter(|_| !is_repeated);
        let block = if is_repeated { self.block } else { &[] };
        first.into_iter().chain(lines(block).filter_map(move |line| {
            let colon = find_colon(line)?;
            (Name::of(&line[..colon]) == Some(name)).then(|| trim(&line[colon + 1..]))
        }))
    }

    /// Every value of a field that is not a [`Name`], in order of arrival, found line by line.
    /// `lower` is its name in small letters.
    pub(crate) fn search(&self, lower: &'static str) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        lines(self.block).filter_map(move |line| {
            let (name, value) = line.split_at_checked(lower.len())?;
            let value = value.strip_prefix(b":")?;
            name.eq_ignore_ascii_case(lower.as_bytes()).then(|| trim(value))
        })
    }

    /// Every member of a list field without quoted strings; empty ones are skipped. RFC 9110 5.6.1
    pub(crate) fn members(&self, name: Name) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.all(name).flat_map(members)
    }

    /// True if a list field contains `token`, ignoring case.
    #[inline]
    pub(crate) fn has_token(&self, name: Name, token: &[u8]) -> bool {
        self.has(name) && self.members(name).any(|member| member.eq_ignore_ascii_case(token))
    }
}

/// The members of one value of a list field, trimmed; empty ones are skipped. RFC 9110 5.6.1.2
pub(crate) fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(trim).filter(|member| !member.is_empty())
}

/// The refusal of a line that is no field.
#[cold]
fn refusal_of(line: &[u8]) -> Refusal {
    match line.first() {
        // RFC 9112 5.2: a folded line, one that continues the line before it, is refused.
        Some(b' ' | b'\t') => Refusal::FieldFolded,
        // RFC 9112 5.1: no whitespace before the colon either.
        _ => Refusal::FieldName,
    }
}

/// Offset of the first colon. Names are short and of many lengths, so a byte loop would cost one
/// mispredicted branch each (a fifth of a browser's request): sixteen bytes are compared at once,
/// past the end of the line if there is more input.
#[inline(always)]
fn find_colon(input: &[u8]) -> Option<usize> {
    const ONES: u128 = u128::MAX / 0xff;
    match input.first_chunk::<16>() {
        Some(start) => {
            let differ = u128::from_le_bytes(*start) ^ (ONES * b':' as u128);
            // The high bit of the first zero byte is set; a borrow can set false ones only after
            // it.
            let found = differ.wrapping_sub(ONES) & !differ & (ONES * 0x80);
            match found {
                0 => memchr(b':', &input[16..]).map(|at| 16 + at),
                _ => Some(found.trailing_zeros() as usize / 8),
            }
        }
        None => input.iter().position(|&byte| byte == b':'),
    }
}

fn lines(block: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = block;
    iter::from_fn(move || {
        let len = memchr(b'\n', rest)?;
        let line = rest[..len].strip_suffix(b"\r").unwrap_or(&rest[..len]);
        rest = &rest[len + 1..];
        (!line.is_empty()).then_some(line)
    })
}

/// Trims spaces and tabs at both ends. RFC 9110 5.6.3
#[inline]
pub(crate) fn trim(value: &[u8]) -> &[u8] {
    trim_end(trim_start(value))
}

#[inline]
fn trim_start(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    value
}

#[inline]
fn trim_end(mut value: &[u8]) -> &[u8] {
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Fields<'_> {
        let mut fields = Fields::new(text.as_bytes());
        for line in lines(text.as_bytes()) {
            let start = line.as_ptr().addr() - text.as_ptr().addr();
            fields.push_line(start, line.len()).unwrap();
        }
        fields
    }

    #[test]
    fn names_ignore_case_values_are_trimmed() {
        let fields = fields("hOsT:\t a \r\nUSER-AGENT:b\r\nif-none-match: c\r\nX-Other: d\r\n");
        assert_eq!(fields.get(Name::Host), Some(&b"a"[..]));
        assert_eq!(fields.get(Name::UserAgent), Some(&b"b"[..]));
        assert_eq!(fields.get(Name::IfNoneMatch), Some(&b"c"[..]));
        assert_eq!(fields.get(Name::Range), None);
    }

    #[test]
    fn all_known_names_are_recognised() {
        let names = [
            "Host",
            "Connection",
            "Content-Length",
            "Transfer-Encoding",
            "Expect",
            "Range",
            "If-Range",
            "If-Match",
            "If-None-Match",
            "If-Modified-Since",
            "If-Unmodified-Since",
            "Accept",
            "Accept-Encoding",
            "Referer",
            "User-Agent",
        ];
        assert_eq!(names.len(), NAME_COUNT);
        for (at, name) in names.iter().enumerate() {
            assert_eq!(Name::of(name.as_bytes()).map(|name| name as usize), Some(at), "{name}");
            // Replacing any byte by another printable one changes the name, apart from case.
            for (at, byte) in (0..name.len()).flat_map(|at| (b' '..=0xff).map(move |b| (at, b))) {
                let mut near = name.as_bytes().to_vec();
                near[at] = byte;
                let is_same = byte.eq_ignore_ascii_case(&name.as_bytes()[at]);
                assert_eq!(Name::of(&near).is_some(), is_same, "{}", near.escape_ascii());
            }
        }
    }

    #[test]
    fn repeated_field_is_one_list() {
        let head = "Connection: a,,b\r\nHost: x\r\nconnection: , c ,\r\n\r\n";
        let pipelined = format!("{head}GET / HTTP/1.1\r\nConnection: d\r\n\r\n");
        let fields = fields(&pipelined);
        let members: Vec<_> = fields.members(Name::Connection).collect();
        assert_eq!(members, [b"a", b"b", b"c"]);
        assert!(fields.is_repeated(Name::Connection));
        assert_eq!(fields.single(Name::Connection), None);
        assert!(fields.has_token(Name::Connection, b"C"));
    }

    #[test]
    fn a_malformed_line_is_named() {
        let refusal =
            |line: &str| Fields::new(line.as_bytes()).push_line(0, line.len()).unwrap_err();
        assert_eq!(refusal(" folded"), Refusal::FieldFolded);
        assert_eq!(refusal("\tfolded"), Refusal::FieldFolded);
        for line in ["Host : x", "Host\t: x", ": x", "no colon", "na(me: x", "é: x", "nocolon"] {
            assert_eq!(refusal(line), Refusal::FieldName, "{line}");
        }
    }
}
