//! Content negotiation: content codings, and the format of a listing. RFC 9110 12

use crate::lookup::{Encoding, Encodings, ListingFormat, ListingSort, SortKey};
use crate::request::{Fields, Name, fields};

/// The codings that `Accept-Encoding` allows, best first. RFC 9110 12.5.3
///
/// Identity is always served when nothing else fits, even where `identity;q=0` forbids it: the RFC
/// permits that, and an answer helps more than a 406.
#[inline]
pub(crate) fn encodings(request: &Fields<'_>) -> Encodings {
    // Without the field any coding is allowed, but such a client most likely decodes none.
    if !request.has(Name::AcceptEncoding) {
        return Encodings::NONE;
    }
    match request.single(Name::AcceptEncoding) {
        // Values of browsers over HTTPS and over HTTP, and of curl. They are compared whole,
        // because parsing costs 50 ns.
        Some(b"gzip, deflate, br, zstd" | b"deflate, gzip, br, zstd") => Encodings::EVERY,
        Some(b"gzip, deflate") => Encodings::GZIP,
        _ => rank(request),
    }
}

fn rank(request: &Fields<'_>) -> Encodings {
    let mut wishes = Wishes::default();
    for member in request.members(Name::AcceptEncoding) {
        wishes.take(member);
    }
    wishes.ranked()
}

/// A weight in thousandths; `None` if the client named none. RFC 9110 12.4.2
type Weight = Option<u16>;

/// The client's weight for each coding that the server has.
#[derive(Default)]
struct Wishes {
    br: Weight,
    zstd: Weight,
    gzip: Weight,
    identity: Weight,
    others: Weight,
}

impl Wishes {
    fn take(&mut self, member: &[u8]) {
        let (coding, weight) = with_weight(member);
        let wish = match coding {
            // `x-gzip` is gzip: RFC 9110 8.4.1.3
            _ if is(coding, b"gzip") || is(coding, b"x-gzip") => &mut self.gzip,
            _ if is(coding, b"br") => &mut self.br,
            _ if is(coding, b"zstd") => &mut self.zstd,
            _ if is(coding, b"identity") => &mut self.identity,
            b"*" => &mut self.others,
            _ => return,
        };
        *wish = Some(weight);
    }

    fn weight(&self, encoding: Encoding) -> u16 {
        let own = match encoding {
            Encoding::Br => self.br,
            Encoding::Zstd => self.zstd,
            Encoding::Gzip => self.gzip,
        };
        own.or(self.others).unwrap_or(0)
    }

    /// The codings that the client accepts at least as much as the plain file, by weight and then
    /// by the server's preference.
    fn ranked(&self) -> Encodings {
        let least = self.identity.unwrap_or(0).max(1);
        let mut ranked = Encodings::NONE;
        let mut taken = [false; 3];
        while let Some(at) = (0..3)
            .filter(|&at| !taken[at] && self.weight(Encoding::ALL[at]) >= least)
            .min_by_key(|&at| (u16::MAX - self.weight(Encoding::ALL[at]), at))
        {
            taken[at] = true;
            ranked.push(Encoding::ALL[at]);
        }
        ranked
    }
}

fn is(token: &[u8], lower: &[u8]) -> bool {
    token.eq_ignore_ascii_case(lower)
}

/// Splits `gzip;q=0.5`. An invalid weight counts as 0.
fn with_weight(member: &[u8]) -> (&[u8], u16) {
    let Some(semicolon) = member.iter().position(|&byte| byte == b';') else {
        return (member, 1000);
    };
    let parameter = fields::trim(&member[semicolon + 1..]);
    let weight = match parameter {
        [b'q' | b'Q', b'=', number @ ..] => parse_weight(number).unwrap_or(0),
        _ => 0,
    };
    (fields::trim(&member[..semicolon]), weight)
}

/// RFC 9110 12.4.2 `qvalue`: 0 to 1 with at most three decimals.
fn parse_weight(number: &[u8]) -> Option<u16> {
    let (whole, decimals) = match number {
        [whole] | [whole, b'.'] => (whole, &b""[..]),
        [whole, b'.', decimals @ ..] if decimals.len() <= 3 => (whole, decimals),
        _ => return None,
    };
    let mut thousandths = match whole {
        b'0' => 0,
        b'1' => 1000,
        _ => return None,
    };
    for (digit, scale) in decimals.iter().zip([100, 10, 1]) {
        if !digit.is_ascii_digit() {
            return None;
        }
        thousandths += u16::from(digit - b'0') * scale;
    }
    (thousandths <= 1000).then_some(thousandths)
}

/// Format of a listing: `?format=json`, or an `Accept` that prefers JSON to HTML.
pub(crate) fn listing_format(query: &[u8], request: &Fields<'_>) -> ListingFormat {
    match parameter(query, b"format") {
        Some(b"json") => ListingFormat::Json,
        Some(_) => ListingFormat::Html,
        None if likes_json(request) => ListingFormat::Json,
        None => ListingFormat::Html,
    }
}

fn likes_json(request: &Fields<'_>) -> bool {
    let mut json = 0;
    let mut html = 0;
    for member in request.members(Name::Accept) {
        let (kind, weight) = with_weight(member);
        if is(kind, b"application/json") {
            json = weight;
        } else if is(kind, b"text/html") {
            html = weight;
        }
    }
    json > html
}

/// `?sort=name|size|time&order=asc|desc`; unknown values are ignored.
pub(crate) fn listing_sort(query: &[u8]) -> ListingSort {
    let by = match parameter(query, b"sort") {
        Some(b"size") => SortKey::Size,
        Some(b"time") => SortKey::Time,
        _ => SortKey::Name,
    };
    ListingSort { by, descending: parameter(query, b"order") == Some(b"desc") }
}

fn parameter<'q>(query: &'q [u8], name: &[u8]) -> Option<&'q [u8]> {
    query.split(|&byte| byte == b'&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix(b"="))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::with_fields;

    #[track_caller]
    fn check(value: &str, ranked: &str) {
        let encodings = with_fields(&format!("Accept-Encoding: {value}"), encodings);
        let tokens: Vec<_> = encodings.iter().map(Encoding::token).collect();
        assert_eq!(tokens.join(" "), ranked, "{value}");
    }

    #[test]
    fn codings_in_client_order_then_ours() {
        check("gzip, deflate, br, zstd", "br zstd gzip");
        check("gzip", "gzip");
        check("x-gzip", "gzip");
        check("GZIP;q=1.0, br;q=0.5", "gzip br");
        check("br; q=0.1, zstd ;Q=0.2", "zstd br");
        check("*", "br zstd gzip");
        check("*;q=0.5, gzip", "gzip br zstd");
        check("br, *;q=0", "br");
        check("gzip, deflate", "gzip");
        check("deflate, gzip, br, zstd", "br zstd gzip");
    }

    #[test]
    fn unwanted_codings_are_not_used() {
        check("", "");
        check("deflate", "");
        check("br;q=0, gzip;q=0.000", "");
        check("br;q=2, gzip;q=0.1234, zstd;q=.5", "");
        check("br;level=5", "");
        check("identity, gzip;q=0.5", "");
        check("identity;q=0.5, gzip", "gzip");
        check("identity;q=0", "");
        with_fields("", |fields| assert_eq!(encodings(fields), Encodings::NONE));
    }

    #[test]
    fn two_fields_are_one_list() {
        let two = "Accept-Encoding: gzip\r\nAccept-Encoding: br;q=0.1";
        let tokens: Vec<_> = with_fields(two, encodings).iter().map(Encoding::token).collect();
        assert_eq!(tokens, ["gzip", "br"]);
    }

    #[test]
    fn listing_is_json_on_request() {
        let format = |query: &str, accept: &str| {
            with_fields(accept, |fields| listing_format(query.as_bytes(), fields))
        };
        assert_eq!(format("", ""), ListingFormat::Html);
        assert_eq!(format("a=b&format=json", ""), ListingFormat::Json);
        assert_eq!(format("", "Accept: application/json"), ListingFormat::Json);
        assert_eq!(format("format=html", "Accept: application/json"), ListingFormat::Html);
        let browser = "Accept: text/html,application/xml;q=0.9,*/*;q=0.8";
        assert_eq!(format("", browser), ListingFormat::Html);
        let both = "Accept: text/html, application/json;q=0.9";
        assert_eq!(format("", both), ListingFormat::Html);
    }

    #[test]
    fn listing_order_from_the_query() {
        let sort = |by, descending| ListingSort { by, descending };
        assert_eq!(listing_sort(b""), sort(SortKey::Name, false));
        assert_eq!(listing_sort(b"sort=size&order=desc"), sort(SortKey::Size, true));
        assert_eq!(listing_sort(b"order=asc&sort=time"), sort(SortKey::Time, false));
        assert_eq!(listing_sort(b"sort=color&order=up"), sort(SortKey::Name, false));
    }
}
