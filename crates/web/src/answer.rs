//! From a request's head to its reply: decisions only; `reply.rs` writes what is decided.

use std::ops::Range;

use session::Now;

use crate::conditional::{Validators, Verdict, judge, range_applies};
use crate::lookup::{ListingFormat, ListingSort, Lookup};
use crate::negotiate;
use crate::range::{Selection, select};
use crate::reply::{ALLOW_LINE, Replier, RequestFacts};
use crate::request::target::{PathError, RawPath};
use crate::request::{Head, Method, Name, Target};
use crate::site::{Entry, Found, Site};
use crate::status::Status;

/// Whether a request has been answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Sent,
    /// The site must be asked where blocking is allowed: call [`load`], then try again.
    Blocked,
}

/// Answers a request whose body has been read. `found` is the result of [`load`], if it was called.
/// A path that is not plain is decoded into `room`.
#[inline]
pub(crate) fn answer(
    replier: &mut Replier<'_>,
    head: &Head<'_>,
    persists: bool,
    found: Option<Found>,
    room: &mut Vec<u8>,
) -> Answer {
    let asked = asked(head, persists);
    let raw = match (head.method, head.target) {
        (Method::Get | Method::Head, Target::Path(raw)) => raw,
        // RFC 9112 3.2.4: `*` is for OPTIONS alone.
        (Method::Get | Method::Head, Target::Server) => {
            replier.page(Status::BadRequest, asked, &[], Some("* is not a path"));
            return Answer::Sent;
        }
        (Method::Options, _) => {
            replier.options(asked);
            return Answer::Sent;
        }
        (Method::Forbidden, _) => {
            replier.page(Status::MethodNotAllowed, asked, ALLOW_LINE, None);
            return Answer::Sent;
        }
        (Method::Unknown, _) => {
            replier.page(Status::NotImplemented, asked, &[], None);
            return Answer::Sent;
        }
    };
    let was_loaded = found.is_some();
    let now = replier.now;
    let found = match found {
        Some(found) => Ok(found),
        None => look_up(head, &raw, room, |lookup| {
            replier.service.site.find(lookup, now)
        }),
    };
    match found {
        Ok(Found::Entry(entry)) => serve(replier, head, asked, &entry),
        Ok(Found::SlashMissing(path)) => redirect(replier, asked, &path, raw.query),
        Ok(Found::NotFound) => replier.page(Status::NotFound, asked, &[], None),
        Ok(Found::Forbidden) => replier.page(Status::Forbidden, asked, &[], None),
        Ok(Found::Failed { status, why }) => fail(replier, asked, status, &why),
        Ok(Found::WouldBlock) if was_loaded => {
            fail(
                replier,
                asked,
                500,
                "the site wants to block where it may, and does not",
            );
        }
        Ok(Found::WouldBlock) => return Answer::Blocked,
        Err(PathError::NotUtf8) => replier.page(Status::NotFound, asked, &[], None),
        Err(PathError::Encoding) => {
            replier.page(
                Status::BadRequest,
                asked,
                &[],
                Some("the path is badly encoded"),
            );
        }
        Err(PathError::AboveRoot) => {
            replier.page(
                Status::BadRequest,
                asked,
                &[],
                Some("the path leaves the root"),
            );
        }
    }
    Answer::Sent
}

/// Asks the site where blocking is allowed. `None` if the request names no path.
pub(crate) fn load(site: &Site, head: &Head<'_>, now: Now, room: &mut Vec<u8>) -> Option<Found> {
    match head.target {
        Target::Path(raw) => look_up(head, &raw, room, |lookup| site.load(lookup, now)).ok(),
        Target::Server => None,
    }
}

/// The facts about a request that its reply needs.
#[inline]
pub(crate) fn asked<'a>(head: &'a Head<'a>, persists: bool) -> RequestFacts<'a> {
    RequestFacts {
        line: head.line,
        fields: Some(&head.fields),
        version: head.version,
        wants_body: head.method != Method::Head,
        persists,
    }
}

#[inline]
fn look_up<R>(
    head: &Head<'_>,
    raw: &RawPath<'_>,
    room: &mut Vec<u8>,
    ask: impl FnOnce(&Lookup<'_>) -> R,
) -> Result<R, PathError> {
    let path = raw.normalize(room)?;
    // Only a directory has a listing, so only its requests pay for these.
    let (listing, sort) = match path.as_bytes().last() {
        Some(b'/') => (
            negotiate::listing_format(raw.query, &head.fields),
            negotiate::listing_sort(raw.query),
        ),
        _ => (ListingFormat::default(), ListingSort::default()),
    };
    let accepts = negotiate::encodings(&head.fields);
    Ok(ask(&Lookup {
        path,
        accepts,
        listing,
        sort,
    }))
}

/// Serves what was found: all of it, parts of it, or a 304 if the client has it already.
#[inline]
fn serve(replier: &mut Replier<'_>, head: &Head<'_>, asked: RequestFacts<'_>, entry: &Entry) {
    let current = Validators {
        etag: &entry.etag,
        modified_s: entry.modified_s,
        modified_is_told: entry.modified_is_told,
        modified_is_strong: entry.modified_is_strong,
    };
    match judge(&head.fields, current) {
        Verdict::Perform => {}
        Verdict::NotModified => return replier.not_modified(asked, entry),
        Verdict::Failed => return replier.page(Status::PreconditionFailed, asked, &[], None),
    }
    // RFC 9110 14.2: a range is for GET alone.
    match head.fields.single(Name::Range) {
        Some(range) if head.method == Method::Get && range_applies(&head.fields, current) => {
            serve_range(replier, asked, entry, range);
        }
        _ => replier.whole(asked, entry),
    }
}

fn serve_range(replier: &mut Replier<'_>, asked: RequestFacts<'_>, entry: &Entry, range: &[u8]) {
    match select(range, entry.len) {
        Selection::Whole => replier.whole(asked, entry),
        Selection::Parts(parts) => match parts.as_slice() {
            [part] => replier.part(asked, entry, Range::clone(part)),
            parts => replier.parts(asked, entry, parts),
        },
        Selection::Unsatisfiable => {
            let line = format!("Content-Range: bytes */{}\r\n", entry.len);
            replier.page(Status::RangeNotSatisfiable, asked, line.as_bytes(), None);
        }
    }
}

/// Sends the client to the directory's own address, with its slash, keeping the query.
///
/// `path` is percent-encoded and begins with one slash ([`Found::SlashMissing`]): to a browser
/// `//evil.example` or `/\evil.example` would be another host.
fn redirect(replier: &mut Replier<'_>, asked: RequestFacts<'_>, path: &str, query: &[u8]) {
    let mut line = format!("Location: {path}").into_bytes();
    if !query.is_empty() {
        line.push(b'?');
        line.extend_from_slice(query);
    }
    line.extend_from_slice(b"\r\n");
    replier.page(Status::MovedPermanently, asked, &line, None);
}

fn fail(replier: &mut Replier<'_>, asked: RequestFacts<'_>, status: u16, why: &str) {
    if status == Status::ServiceUnavailable.code() {
        // RFC 9110 10.2.3
        let line = b"Retry-After: 5\r\n";
        replier.page(Status::ServiceUnavailable, asked, line, Some(why));
    } else {
        replier.page(Status::InternalServerError, asked, &[], Some(why));
    }
}
