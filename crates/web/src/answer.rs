//! Decides the reply to a request's head; `reply.rs` writes it.

use std::sync::Arc;

use session::{Now, name_and_port};

use crate::challenge;
use crate::conditional::{Validators, Verdict, judge, range_applies};
use crate::handle::Service;
use crate::host::VirtualHost;
use crate::lookup::{ListingFormat, ListingSort, Lookup};
use crate::negotiate;
use crate::password::Verification;
use crate::range::{Selection, select};
use crate::redirect::Redirected;
use crate::reply::{ALLOW_LINE, PREFLIGHT_LINES, Replier, RequestFacts, Transport, credentials};
use crate::request::target::{PathError, RawPath, encoded};
use crate::request::{Head, Method, Name, Target};
use crate::site::{Area, Entry, Found, NO_FILE, Readers, Site, private};
use crate::status::Status;

/// Outcome of [`answer`].
#[derive(Debug)]
pub(crate) enum Answer {
    Sent,
    /// The lookup may block: call [`load`] where blocking is allowed, then try again.
    Blocked,
    /// A password must be verified, which takes long: run it on a job thread, then try again with
    /// the result.
    Verify(Verification),
}

/// Attempts at answering a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    First,
    /// After a [`load`] or a [`Verification`].
    Again,
    /// After a [`Verification`] that found the password wrong.
    Refused,
}

/// Answers a request whose body has been read. `found` is the result of [`load`], if it was called;
/// `attempt` says what was done before. `room` is the buffer for a path that needs decoding.
#[inline]
pub(crate) fn answer(
    replier: &mut Replier<'_>,
    head: &Head<'_>,
    persists: bool,
    found: Option<Found>,
    attempt: Attempt,
    buffer: &mut Vec<u8>,
) -> Answer {
    let facts = RequestFacts::of(head, persists);
    let Some((host, is_alias)) = replier.service.host(head.host()) else {
        let why = Some("no host has this name");
        replier.page_anywhere(Status::Misdirected, facts, &[], why);
        return Answer::Sent;
    };
    replier.host = Some(host);
    if let Some(reply) = replier.handle.challenges().find(head) {
        replier.challenge(facts, reply.as_bytes());
        return Answer::Sent;
    }
    if (is_alias || matches!(replier.transport, Transport::ToHttps(_)))
        && send_elsewhere(replier, head, facts, is_alias, buffer)
    {
        return Answer::Sent;
    }
    if head.method == Method::Options && permit(replier, head, facts, buffer) {
        return Answer::Sent;
    }
    let routed = route(host, head, buffer);
    let rewrite = routed.as_ref().filter(|found| found.status == Status::Ok);
    let rewrite = rewrite.map(|found| rewritten(head, found));
    let target = rewrite.as_ref().unwrap_or(&head.target);
    if host.site.has_areas() {
        if let Some(answer) = guard(replier, head, &head.target, facts, None, attempt, buffer) {
            return answer;
        }
        // The file that answers may be in a protected area too, whatever path led to it.
        if rewrite.is_some()
            && let Some(answer) = guard(replier, head, target, facts, None, attempt, buffer)
        {
            return answer;
        }
    }
    if let (Some(found), None) = (&routed, &rewrite) {
        redirect_by_rule(replier, head, facts, found, buffer);
        return Answer::Sent;
    }
    let raw = match (head.method, target) {
        (Method::Get | Method::Head, Target::Path(raw)) => raw,
        _ => {
            answer_without_lookup(replier, head, facts, buffer);
            return Answer::Sent;
        }
    };
    let hit = match found {
        None if raw.is_plain => {
            host.site.hit(raw.path, negotiate::encodings(&head.fields), replier.now)
        }
        _ => None,
    };
    let (entry, is_fallback) = match hit {
        Some(entry) => (entry, false),
        None => match search(replier, head, target, raw, facts, found, buffer) {
            Ok(found) => found,
            Err(answer) => return answer,
        },
    };
    if host.site.has_areas() {
        // The target of a rewrite may have another address, as a directory and a page do.
        let area = rewrite.as_ref().and_then(|_| host.site.area_of_address(&entry, is_fallback));
        let asked_by_address =
            area.and_then(|area| ask(replier, head, facts, area, attempt, buffer));
        if let Some(answer) = asked_by_address {
            return answer;
        }
        let found = Some((&*entry, is_fallback));
        if let Some(answer) = guard(replier, head, target, facts, found, attempt, buffer) {
            return answer;
        }
    }
    serve(replier, head, facts, &entry);
    Answer::Sent
}

/// Looks up the file, unless [`load`] has, and tells whether it stands for an unknown path.
/// `Err`: there is no file, or the request must wait.
#[inline(never)]
fn search(
    replier: &mut Replier<'_>,
    head: &Head<'_>,
    target: &Target<'_>,
    raw: &RawPath<'_>,
    facts: RequestFacts<'_>,
    found: Option<Found>,
    buffer: &mut Vec<u8>,
) -> Result<(Arc<Entry>, bool), Answer> {
    let site = replier.site();
    let was_loaded = found.is_some();
    let found = match found {
        Some(found) => Ok(found),
        None => {
            let is_rewritten = !std::ptr::eq(target, &head.target);
            look_up(head, raw, buffer, site, is_rewritten, |at| site.find(at, replier.now))
        }
    };
    match found {
        Ok(Found::Entry(entry)) => Ok((entry, false)),
        Ok(Found::Fallback(entry)) => Ok((entry, true)),
        Ok(Found::WouldBlock) if !was_loaded => Err(Answer::Blocked),
        other => {
            let rules = rules_of(replier, target, buffer);
            answer_without_file(replier, facts, other, raw.query, &rules);
            Err(Answer::Sent)
        }
    }
}

/// Asks for credentials where the path needs them, or where the `found` file (for an unknown path,
/// if true) is in another area than its path. `None`: the request may go on.
#[inline(never)]
fn guard(
    replier: &mut Replier<'_>,
    head: &Head<'_>,
    target: &Target<'_>,
    facts: RequestFacts<'_>,
    found: Option<(&Entry, bool)>,
    attempt: Attempt,
    buffer: &mut Vec<u8>,
) -> Option<Answer> {
    let Target::Path(raw) = target else {
        return None;
    };
    let site = replier.site();
    // A path that cannot name a file is only in the areas that cover the whole site.
    let path = raw.normalize(buffer).unwrap_or(NO_FILE);
    let area = match found {
        None => site.area(path),
        Some((entry, is_fallback)) => site.area_of(path, entry, is_fallback),
    };
    ask(replier, head, facts, area?, attempt, buffer)
}

/// Asks for the credentials of an area. `None`: the request has them.
fn ask(
    replier: &mut Replier<'_>,
    head: &Head<'_>,
    facts: RequestFacts<'_>,
    area: &Area,
    attempt: Attempt,
    buffer: &mut Vec<u8>,
) -> Option<Answer> {
    let site = replier.site();
    // Only on the first attempt: after a long wait for a job the files would be due again.
    if attempt == Attempt::First && site.is_due_for_passwords(area, replier.now) {
        return Some(Answer::Blocked);
    }
    let (status, line, why) = match (credentials(&head.fields), attempt) {
        (Some(credentials), _) if area.passwords.knows(credentials) => return None,
        (Some(credentials), Attempt::First | Attempt::Again) => {
            let turns = replier.handle.turns();
            if let Some(verification) = area.passwords.verify(credentials, turns) {
                return Some(Answer::Verify(verification));
            }
            let why = "too many passwords are being verified";
            (Status::ServiceUnavailable, "Retry-After: 1\r\n", Some(why))
        }
        _ => (Status::Unauthorized, &*area.challenge, None),
    };
    let rules = rules_of(replier, &head.target, buffer);
    // The file may be in the area even if its path is not.
    let rules = private(&String::from_utf8_lossy(&rules));
    replier.page(status, facts, rules.as_bytes(), line.as_bytes(), why);
    Some(Answer::Sent)
}

/// The rule of the host that the request matches.
#[inline]
pub(crate) fn route(
    host: &VirtualHost,
    head: &Head<'_>,
    buffer: &mut Vec<u8>,
) -> Option<Redirected> {
    if host.redirects.is_empty() {
        return None;
    }
    match head.target {
        Target::Path(raw) if head.method != Method::Options => {
            host.redirects.find(raw.normalize(buffer).ok()?)
        }
        _ => None,
    }
}

/// The path of the file that a rewrite names, with the query of the request.
pub(crate) fn rewritten<'a>(head: &Head<'a>, found: &'a Redirected) -> Target<'a> {
    match (head.target, RawPath::parse(found.address.as_bytes())) {
        (Target::Path(raw), Ok(to)) => Target::Path(RawPath { query: raw.query, ..to }),
        (target, _) => target,
    }
}

#[cold]
fn redirect_by_rule(
    replier: &mut Replier<'_>,
    head: &Head<'_>,
    facts: RequestFacts<'_>,
    found: &Redirected,
    buffer: &mut Vec<u8>,
) {
    let Target::Path(raw) = head.target else { unreachable!("a rule is about a path") };
    let rules = rules_of(replier, &head.target, buffer);
    let line = location_line(&found.location(raw.query));
    replier.page(found.status, facts, &rules, &line, None);
}

/// Redirects to the first name of the host and to HTTPS, as configured. False: the request is
/// answered here, because it is a challenge of ACME or has no path.
#[cold]
fn send_elsewhere(
    replier: &mut Replier<'_>,
    head: &Head<'_>,
    facts: RequestFacts<'_>,
    is_alias: bool,
    buffer: &mut Vec<u8>,
) -> bool {
    let Target::Path(raw) = head.target else {
        return false;
    };
    let path = raw.normalize(buffer);
    if path.is_ok_and(|path| path.starts_with(challenge::DIRECTORY)) {
        return false;
    }
    let Some((name, port)) = head.host().and_then(name_and_port) else {
        let why = Some("without the name of a host there is no address to redirect to");
        replier.page_anywhere(Status::BadRequest, facts, &[], why);
        return true;
    };
    let first = replier.host.filter(|_| is_alias).and_then(|host| host.names.first());
    let name = first.map_or(&*name, |first| first.as_str());
    let mut location = match replier.transport {
        Transport::ToHttps(443) => format!("https://{name}").into_bytes(),
        Transport::ToHttps(port) => format!("https://{name}:{port}").into_bytes(),
        // Keep the scheme: behind a proxy it is unknown. RFC 3986 4.2
        Transport::Plain | Transport::Tls => [b"//", name.as_bytes(), port].concat(),
    };
    location.extend_from_slice(&encoded(raw.path));
    push_query(&mut location, raw.query);
    let line = location_line(&location);
    let rules = rules_of(replier, &head.target, buffer);
    replier.page(Status::MovedPermanently, facts, &rules, &line, None);
    true
}

fn push_query(location: &mut Vec<u8>, query: &[u8]) {
    if !query.is_empty() {
        location.push(b'?');
        location.extend_from_slice(&encoded(query));
    }
}

fn location_line(location: &[u8]) -> Vec<u8> {
    [b"Location: ", location, b"\r\n"].concat()
}

/// Answers a request for which no file is looked up.
#[cold]
fn answer_without_lookup(
    replier: &mut Replier<'_>,
    head: &Head<'_>,
    facts: RequestFacts<'_>,
    buffer: &mut Vec<u8>,
) {
    let rules = rules_of(replier, &head.target, buffer);
    let (status, lines, why) = match head.method {
        // RFC 9112 3.2.4: `*` is for OPTIONS alone.
        Method::Get | Method::Head => (Status::BadRequest, &b""[..], Some("* is not a path")),
        Method::Options => return replier.options(facts, &rules),
        Method::Forbidden => (Status::MethodNotAllowed, ALLOW_LINE, None),
        Method::Unknown => (Status::NotImplemented, &b""[..], None),
    };
    replier.page(status, facts, &rules, lines, why);
}

/// The operator's header lines for a reply without a file. Notes the origins that may read it.
#[cold]
fn rules_of(replier: &mut Replier<'_>, target: &Target<'_>, buffer: &mut Vec<u8>) -> Vec<u8> {
    let site = replier.site();
    let path = match target {
        Target::Path(raw) => raw.normalize(buffer).ok(),
        Target::Server => None,
    };
    let (lines, readers) = match path {
        Some(path) => {
            let (lines, readers) = site.lines_without_file(path);
            (lines.into_bytes(), readers)
        }
        None => {
            let (lines, readers) = site.lines_everywhere();
            (lines.into(), readers)
        }
    };
    replier.readers = readers;
    lines
}

/// Answers a preflight request, to which a browser adds no password. False: it is no preflight
/// request, or no other origin may read the path.
#[cold]
fn permit(
    replier: &mut Replier<'_>,
    head: &Head<'_>,
    facts: RequestFacts<'_>,
    buffer: &mut Vec<u8>,
) -> bool {
    let mut method = head.fields.search("access-control-request-method");
    if !replier.site().has_readers() || method.next().is_none() {
        return false;
    }
    let rules = rules_of(replier, &head.target, buffer);
    if replier.readers == Readers::Own {
        return false;
    }
    replier.options(facts, &[&rules, PREFLIGHT_LINES].concat());
    true
}

/// Answers for a path at which there is no file.
#[cold]
fn answer_without_file(
    replier: &mut Replier<'_>,
    facts: RequestFacts<'_>,
    found: Result<Found, PathError>,
    query: &[u8],
    rules: &[u8],
) {
    let mut bad = |why| replier.page(Status::BadRequest, facts, rules, &[], Some(why));
    let found = match found {
        Ok(found) => found,
        Err(PathError::NoFile) => Found::NotFound,
        Err(PathError::Encoding) => return bad("the path is badly encoded"),
        Err(PathError::AboveRoot) => return bad("the path leaves the root"),
    };
    match found {
        Found::Moved(path) => redirect(replier, facts, &path, query, rules),
        Found::NotFound => replier.page(Status::NotFound, facts, rules, &[], None),
        Found::NoIndex => replier.no_index(facts, rules),
        Found::Forbidden => replier.page(Status::Forbidden, facts, rules, &[], None),
        Found::OnlyCompressed => {
            let vary = b"Vary: Accept-Encoding\r\n";
            replier.page(Status::NotAcceptable, facts, rules, vary, None);
        }
        Found::Failed { status, why } => fail(replier, facts, rules, status, &why),
        Found::WouldBlock => {
            let why = "the site wants to block where it may, and does not";
            fail(replier, facts, rules, 500, why);
        }
        Found::Entry(_) | Found::Fallback(_) => unreachable!("a found entry is served"),
    }
}

/// Looks up the request's path where blocking is allowed. `None` if the request has no path or no
/// host, or if a password file was due to be read.
pub(crate) fn load(
    service: &Service,
    head: &Head<'_>,
    now: Now,
    buffer: &mut Vec<u8>,
) -> Option<Found> {
    let (host, _) = service.host(head.host())?;
    let site = &host.site;
    if site.refresh_passwords(now) {
        return None;
    }
    let routed = route(host, head, buffer);
    let rewrite = routed.as_ref().filter(|found| found.status == Status::Ok);
    let target = rewrite.map_or(head.target, |found| rewritten(head, found));
    match target {
        Target::Path(raw) => {
            look_up(head, &raw, buffer, site, rewrite.is_some(), |at| site.load(at, now)).ok()
        }
        Target::Server => None,
    }
}

/// Looks up a path, or the path of a rewrite. A rewrite serves a page or directory in place,
/// without a redirect to its address.
fn look_up(
    head: &Head<'_>,
    raw: &RawPath<'_>,
    buffer: &mut Vec<u8>,
    site: &Site,
    is_rewritten: bool,
    ask: impl Fn(&Lookup<'_>) -> Found,
) -> Result<Found, PathError> {
    let mut found = look_up_at(head, raw, buffer, site, &ask)?;
    let moves_max = if is_rewritten { MOVES_MAX } else { 0 };
    for _ in 0..moves_max {
        let Found::Moved(address) = &found else { break };
        let Ok(to) = RawPath::parse(address.as_bytes()) else { break };
        let to = RawPath { query: raw.query, ..to };
        found = look_up_at(head, &to, buffer, site, &ask)?;
    }
    Ok(found)
}

/// Most redirects within a rewrite's target: to a directory, and to its page.
const MOVES_MAX: usize = 2;

fn look_up_at(
    head: &Head<'_>,
    raw: &RawPath<'_>,
    buffer: &mut Vec<u8>,
    site: &Site,
    ask: impl Fn(&Lookup<'_>) -> Found,
) -> Result<Found, PathError> {
    let path = match (raw.normalize(buffer), site.fallback()) {
        // A route of a single-page application may be no valid file name.
        (Err(PathError::NoFile), Some(fallback)) => fallback,
        (path, _) => path?,
    };
    // Only directories have listings, so other requests skip the parsing.
    let (listing, sort) = match path.as_bytes().last() {
        Some(b'/') => {
            (negotiate::listing_format(raw.query, &head.fields), negotiate::listing_sort(raw.query))
        }
        _ => (ListingFormat::default(), ListingSort::default()),
    };
    let accepts = negotiate::encodings(&head.fields);
    Ok(ask(&Lookup { path, accepts, listing, sort }))
}

/// Serves what was found: all of it, parts of it, or a 304 if the client has it already.
#[inline]
fn serve(replier: &mut Replier<'_>, head: &Head<'_>, facts: RequestFacts<'_>, entry: &Entry) {
    replier.readers = entry.readers;
    let current = Validators {
        etag: &entry.etag,
        modified_s: entry.modified_s,
        modified_is_told: entry.modified_is_told,
        modified_is_strong: entry.modified_is_strong,
    };
    match judge(&head.fields, current) {
        Verdict::Perform => {}
        Verdict::NotModified => return replier.not_modified(facts, entry),
        Verdict::Failed => {
            let status = Status::PreconditionFailed;
            return replier.page(status, facts, entry.rule_lines(), &[], None);
        }
    }
    // RFC 9110 14.2: a range is for GET alone.
    match head.fields.single(Name::Range) {
        Some(range) if head.method == Method::Get && range_applies(&head.fields, current) => {
            serve_range(replier, facts, entry, range);
        }
        _ => replier.whole(facts, entry),
    }
}

fn serve_range(replier: &mut Replier<'_>, facts: RequestFacts<'_>, entry: &Entry, range: &[u8]) {
    match select(range, entry.len) {
        Selection::Whole => replier.whole(facts, entry),
        Selection::Ignored(why) => {
            replier.handle.counts().ranges_ignored(why);
            replier.whole(facts, entry);
        }
        Selection::Part(part) => replier.part(facts, entry, part),
        Selection::Parts(parts) => replier.parts(facts, entry, &parts),
        Selection::Unsatisfiable => {
            let line = format!("Content-Range: bytes */{}\r\n", entry.len);
            let status = Status::RangeNotSatisfiable;
            replier.page(status, facts, entry.rule_lines(), line.as_bytes(), None);
        }
    }
}

/// Sends the client to the address of a directory or page, keeping the query.
/// `path` is percent-encoded and begins with one slash ([`Found::Moved`]): browsers take
/// `//evil.example` and `/\evil.example` for another host.
fn redirect(
    replier: &mut Replier<'_>,
    facts: RequestFacts<'_>,
    path: &str,
    query: &[u8],
    rules: &[u8],
) {
    let mut location = path.as_bytes().to_vec();
    push_query(&mut location, query);
    let line = location_line(&location);
    replier.page(Status::MovedPermanently, facts, rules, &line, None);
}

fn fail(replier: &mut Replier<'_>, facts: RequestFacts<'_>, rules: &[u8], status: u16, why: &str) {
    if status == Status::ServiceUnavailable.code() {
        // RFC 9110 10.2.3
        let line = b"Retry-After: 5\r\n";
        replier.page(Status::ServiceUnavailable, facts, rules, line, Some(why));
    } else {
        replier.page(Status::InternalServerError, facts, rules, &[], Some(why));
    }
}
