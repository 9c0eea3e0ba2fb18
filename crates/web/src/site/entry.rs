//! Results that the site table returns to the protocol half.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use session::{SharedFile, SharedPage};

use super::cors::Readers;

/// One representation of one file, ready to be served: its bytes or descriptor, and the header
/// fields that every reply with it carries. Never changes; a changed file becomes a new entry.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Validator with its quotes (`head::etag` says more), empty if there is none. Strong, unless
    /// the file was still being written. RFC 9110 8.8.3
    pub(crate) etag: Box<str>,
    /// Last modification, whole seconds since 1970, for the conditional fields.
    pub(crate) modified_s: u64,
    /// True if `Last-Modified` is sent, and `If-Modified-Since` answered.
    pub(crate) modified_is_told: bool,
    /// True if `Last-Modified` is a strong validator (RFC 9110 8.8.2.2: at least a second older
    /// than the check).
    pub(crate) modified_is_strong: bool,
    /// Value of `Content-Type`, for parts of a multipart/byteranges reply.
    pub(crate) content_type: Box<str>,
    /// Header lines of a 200 (each ending in CRLF): Content-Type, Content-Encoding, Content-Length,
    /// Last-Modified and ETag (if told), Accept-Ranges, Vary, X-Content-Type-Options, extra and
    /// cache rules. No status line, no Date, no Server, no Connection, no blank line.
    pub(crate) head_200: Bytes,
    /// The same as fields of HTTP/2, encoded for the first such reply.
    pub(crate) fields_200: OnceLock<Box<[u8]>>,
    /// The same lines without Content-Type and Content-Length: a 206 adds its own.
    pub(crate) head_206: Bytes,
    /// The lines of a 304. RFC 9110 15.4.5: ETag, Last-Modified, Vary, Cache-Control and other
    /// extra fields.
    pub(crate) head_304: Bytes,
    /// Range of the operator's lines in `head_304` that a reply without the file also carries.
    pub(crate) rules: Range<usize>,
    /// Origins whose scripts may read the replies.
    pub(crate) readers: Readers,
    /// Length of the body in bytes.
    pub(crate) len: u64,
    /// The rule that protects the file itself; its address may have another.
    pub(crate) area: Option<usize>,
    /// The rule that protects its address: a rewrite may name the file.
    pub(crate) address_area: Option<usize>,
    /// The bytes.
    pub(crate) body: Body,
    /// The bytes in memory with a place for the driver's table, if they have one.
    pub(crate) page: Option<Arc<SharedPage>>,
}

impl Entry {
    pub(super) fn is_in_memory(&self) -> bool {
        matches!(self.body, Body::Memory(_))
    }

    /// True if the entry can be sent unchanged: its bytes are in memory, or its file has a place in
    /// the page cache and is too long for memory.
    #[inline]
    pub(super) fn is_ready(&self, memory_file_len_max: u64) -> bool {
        let is_long = self.len > memory_file_len_max;
        match &self.body {
            Body::Memory(_) => true,
            Body::File { keep, settled, .. } => *keep && *settled && is_long,
        }
    }

    /// True if the bytes still match the stamp.
    #[inline]
    pub(super) fn is_unchanged(&self) -> bool {
        match &self.body {
            Body::Memory(_) => true,
            Body::File { file, .. } => file.is_unchanged().unwrap_or(false),
        }
    }

    /// The operator's header lines for a reply about this file without its content.
    pub(crate) fn rule_lines(&self) -> &[u8] {
        &self.head_304[self.rules.clone()]
    }
}

/// Bytes of an entry.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    /// In memory, read at the time of the entry's stamp.
    Memory(Bytes),
    /// In an open file; `keep`: popular enough for the page cache; `settled`: a later write would
    /// change its stamp.
    File { file: Arc<SharedFile>, keep: bool, settled: bool },
}

/// The result of a look-up.
#[derive(Debug)]
#[allow(clippy::enum_variant_names, reason = "`NotFound` is what it is called everywhere")]
pub(crate) enum Found {
    /// A file (an index file and a listing look like one).
    Entry(Arc<Entry>),
    /// The file that answers unknown paths.
    Fallback(Arc<Entry>),
    /// Redirect to this path: of a directory with its slash, or of a page without its extension
    /// (already percent-encoded, begins with exactly one `/`).
    Moved(Box<str>),
    /// Absent, or not to be shown (hidden files and links out of the root look the same: no
    /// oracle).
    NotFound,
    /// Present, but not readable for the server.
    Forbidden,
    /// A directory without an index file, whose listing is off.
    NoIndex,
    /// Present, but only in codings that the client does not accept.
    OnlyCompressed,
    /// Out of descriptors or memory, or the disk failed: the reply is a 503 or 500; `why` is for
    /// the log.
    Failed { status: u16, why: String },
    /// The answer needs blocking: call [`Site::load`] where that is allowed.
    WouldBlock,
}
