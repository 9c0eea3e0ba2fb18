//! Lookup in the site: a path, and what the client accepts.

/// A lookup in the site. Borrowed, `Copy`, and small: one is built per request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lookup<'a> {
    /// Percent-decoded and normalized: begins with `/`, no dot segments, no empty segments, no NUL.
    /// A trailing `/` is kept: it names a directory.
    pub(crate) path: &'a str,
    /// Content codings that the client accepts, best first.
    pub(crate) accepts: Encodings,
    /// Format of a directory listing. Only read if `path` ends with `/`.
    pub(crate) listing: ListingFormat,
    /// Order of a directory listing. Only read if `path` ends with `/`.
    pub(crate) sort: ListingSort,
}

/// A content coding of a file's variant. RFC 9110 8.4.1, RFC 7932 (br), RFC 8878 (zstd)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Encoding {
    /// Brotli, `.br`.
    Br = 1,
    /// Zstandard, `.zst`.
    Zstd = 2,
    /// gzip, `.gz`.
    Gzip = 3,
}

impl Encoding {
    /// All codings, best first: at equal `q` the smallest body wins.
    pub const ALL: [Encoding; 3] = [Encoding::Br, Encoding::Zstd, Encoding::Gzip];

    /// Name in `Accept-Encoding` and `Content-Encoding`.
    pub fn token(self) -> &'static str {
        match self {
            Encoding::Br => "br",
            Encoding::Zstd => "zstd",
            Encoding::Gzip => "gzip",
        }
    }

    /// Suffix of file names.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Encoding::Br => ".br",
            Encoding::Zstd => ".zst",
            Encoding::Gzip => ".gz",
        }
    }
}

/// Codings that a client accepts, in the order of its `q`, then of the server's preference.
///
/// ```text
///   bits  7 6   5 4   3 2   1 0
///         0 0   3rd   2nd   1st      0 = no more
/// ```
/// One byte, so that it can be part of a table's key; the identity coding is always accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Encodings(u8);

impl Encodings {
    /// Identity only.
    pub(crate) const NONE: Encodings = Encodings(0);

    /// All codings, in the server's order.
    pub(crate) const EVERY: Encodings = Encodings(0b11_10_01);

    /// gzip only.
    pub(crate) const GZIP: Encodings = Encodings(Encoding::Gzip as u8);

    /// Appends `encoding` to the list, which must hold fewer than three.
    pub(crate) fn push(&mut self, encoding: Encoding) {
        let len = self.iter().count();
        debug_assert!(len < 3, "{encoding:?} behind {len}");
        self.0 |= (encoding as u8) << (2 * len);
    }

    /// Best first.
    pub(crate) fn iter(self) -> impl Iterator<Item = Encoding> {
        (0..3).map_while(move |at| match (self.0 >> (2 * at)) & 3 {
            1 => Some(Encoding::Br),
            2 => Some(Encoding::Zstd),
            3 => Some(Encoding::Gzip),
            _ => None,
        })
    }
}

/// Format of a directory listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum ListingFormat {
    /// HTML.
    #[default]
    Html,
    /// For programs: `Accept: application/json` or `?format=json`.
    Json,
}

/// Order of a directory listing: `?sort=name|size|time` and `&order=asc|desc`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ListingSort {
    /// Sort column.
    pub(crate) by: SortKey,
    /// Largest, newest or last name first.
    pub(crate) descending: bool,
}

/// The column by which a listing is sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum SortKey {
    /// Name.
    #[default]
    Name,
    /// By length in bytes.
    Size,
    /// By time of modification.
    Time,
}
