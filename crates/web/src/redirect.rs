//! Redirects and rewrites: map a request's path to another address.

mod patterns;

use std::collections::HashMap;

use foldhash::quality::RandomState;

use self::patterns::PatternIndex;
use crate::request::is_host;
use crate::request::target::{RawPath, encoded};
use crate::site::{clean_addresses, path_encoded, percent_encoded};
use crate::status::Status;

/// A rule that redirects a path to another address, or serves the file at another path.
///
/// `from` is a path. A `*` in it, at most one, matches any part of a path; `:name`, in place of a
/// segment, matches a segment. In `to`, `:splat` or `*` is the text that the star matched, and
/// `:name` the segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedirectRule {
    from: Pattern,
    to: Vec<PathPiece>,
    status: Status,
}

/// A path with at most one star, between `head` and `tail`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    text: Box<str>,
    head: Vec<PathPiece>,
    /// `None`: there is no star.
    tail: Option<Vec<PathPiece>>,
}

/// Part of a pattern or target.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PathPiece {
    Text(Box<str>),
    /// A capture, by index.
    Capture(usize),
}

/// Texts that stars and names matched, in the order of the pattern's names; the star's is last.
type Captures<'p> = [&'p str; CAPTURES_MAX];

/// Most captures of a rule, including the star's.
const CAPTURES_MAX: usize = 8;
const SPLAT: usize = CAPTURES_MAX - 1;

impl RedirectRule {
    /// Reads a rule. The default status is 301.
    ///
    /// # Errors
    /// A sentence that describes the mistake.
    pub fn new(from: &str, to: &str, status: Option<&str>) -> Result<RedirectRule, String> {
        let status = status.map_or(Ok(Status::MovedPermanently), status_of)?;
        if status == Status::Ok && from == "/*" {
            return Err("this would hide every file; `spa = \"index.html\"` answers what no file \
                        does"
                .to_owned());
        }
        let mut names = Vec::new();
        let from = Pattern::parse(from, &mut names)?;
        let has_star = from.tail.is_some();
        let to = target(to, &names, has_star, status == Status::Ok)?;
        Ok(RedirectRule { from, to, status })
    }

    /// Reads a line of a file: `/from /to [status]`. `None`: it is empty or a comment.
    ///
    /// # Errors
    /// A sentence that describes the mistake.
    pub fn from_line(line: &str) -> Result<Option<RedirectRule>, String> {
        let words = line.split_whitespace();
        let words: Vec<_> = words.take_while(|word| !word.starts_with('#')).collect();
        match words[..] {
            [] => Ok(None),
            [from, to] => RedirectRule::new(from, to, None).map(Some),
            [from, to, status] => RedirectRule::new(from, to, Some(status)).map(Some),
            _ => {
                Err("write /from /to, or /from /to STATUS; there are no further conditions".into())
            }
        }
    }

    /// Expands the target with these captures: no line break, and on this host unless the rule
    /// names another.
    fn expand(&self, captures: &Captures<'_>) -> String {
        let mut address = String::new();
        for piece in &self.to {
            match piece {
                PathPiece::Text(text) => address.push_str(text),
                // In a query, `&`, `=` and `+` of a capture must not act as separators.
                PathPiece::Capture(at) if address.contains(['?', '#']) => {
                    address.push_str(&percent_encoded(captures[*at]));
                }
                PathPiece::Capture(at) => address.push_str(&path_encoded(captures[*at])),
            }
        }
        // Browsers take `//evil.example` for another host. RFC 3986 4.2
        let second = address.find(|c| c != '/').unwrap_or(address.len());
        if second > 1 {
            address.drain(1..second);
        }
        address
    }
}

/// The rules of a host. The first one that matches applies.
///
/// Rules without star and names are in a hash table, others in a trie.
#[derive(Debug, Default)]
pub struct Redirects {
    rules: Vec<RedirectRule>,
    exact: HashMap<Box<str>, usize, RandomState>,
    patterns: PatternIndex,
}

/// A matching rule, and the address that it leads to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Redirected {
    /// Index of the rule.
    pub(crate) rule: usize,
    pub(crate) status: Status,
    /// Percent-encoded. For [`Status::Ok`] the path of a file.
    pub(crate) address: String,
}

/// Most redirects in sequence.
const HOPS_MAX: usize = 10;

impl Redirects {
    /// Indexes the rules. `pages`: the names of index files, with clean URLs.
    ///
    /// # Errors
    /// Rules that form a loop: by index, with a sentence.
    pub fn new(
        rules: Vec<RedirectRule>,
        pages: Option<&[String]>,
    ) -> Result<Redirects, Vec<(usize, String)>> {
        let mut redirects = Redirects::default();
        for (at, rule) in rules.iter().enumerate() {
            if let Some(path) = rule.from.as_path() {
                redirects.exact.entry(path.into()).or_insert(at);
            }
        }
        let patterns = rules.iter().map(|rule| &rule.from).enumerate();
        let patterns = patterns.filter(|(_, pattern)| pattern.as_path().is_none());
        redirects.patterns = PatternIndex::new(patterns);
        redirects.rules = rules;
        let circles = (0..redirects.rules.len()).filter(|at| redirects.is_endless(*at, pages));
        let circles: Vec<_> = circles
            .map(|at| {
                let text = &redirects.rules[at].from.text;
                (at, format!("'{text}' leads to more than {HOPS_MAX} redirects, one after another"))
            })
            .collect();
        if circles.is_empty() { Ok(redirects) } else { Err(circles) }
    }

    /// Number of rules.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// True if there are no rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The first rule that matches a normalized path.
    pub(crate) fn find(&self, path: &str) -> Option<Redirected> {
        let exact = self.exact.get(path).copied();
        let at = exact.into_iter().chain(self.patterns.find(path)).min()?;
        let rule = &self.rules[at];
        let address = rule.expand(&rule.from.matches(path)?);
        Some(Redirected { rule: at, status: rule.status, address })
    }

    /// True if a client that follows this rule, with a sample for each capture, is redirected
    /// endlessly by rules or to clean URLs of pages.
    fn is_endless(&self, rule: usize, pages: Option<&[String]>) -> bool {
        let rule = &self.rules[rule];
        let mut next = rule.expand(&["sample"; CAPTURES_MAX]);
        if rule.status == Status::Ok {
            return false;
        }
        for _ in 0..HOPS_MAX {
            let mut buffer = Vec::new();
            let path = next.split(['?', '#']).next().unwrap_or_default();
            let raw = RawPath::parse(path.as_bytes()).ok();
            let path = raw.as_ref().and_then(|raw| raw.normalize(&mut buffer).ok());
            let Some(path) = path.filter(|path| path.starts_with('/')) else { return false };
            let clean = || clean_addresses(path, pages?).next().map(percent_encoded);
            next = match self.find(path) {
                Some(again) if again.status == Status::Ok => return false,
                Some(again) => again.address,
                None => match clean() {
                    Some(address) => address,
                    None => return false,
                },
            };
        }
        true
    }
}

impl Redirected {
    /// The value of `Location`, with the query of the request.
    pub(crate) fn location(&self, query: &[u8]) -> Vec<u8> {
        let (address, fragment) = match self.address.split_once('#') {
            Some((address, fragment)) => (address, Some(fragment)),
            None => (&self.address[..], None),
        };
        let mut location = encoded(address.as_bytes()).into_owned();
        if !query.is_empty() {
            location.push(if address.contains('?') { b'&' } else { b'?' });
            location.extend_from_slice(&encoded(query));
        }
        if let Some(fragment) = fragment {
            location.push(b'#');
            location.extend_from_slice(&encoded(fragment.as_bytes()));
        }
        location
    }
}

/// Statuses of rules; a trailing `!` is accepted and changes nothing.
fn status_of(text: &str) -> Result<Status, String> {
    match text.strip_suffix('!').unwrap_or(text) {
        "200" => Ok(Status::Ok),
        "301" => Ok(Status::MovedPermanently),
        "302" => Ok(Status::Found),
        "303" => Ok(Status::SeeOther),
        "307" => Ok(Status::TemporaryRedirect),
        "308" => Ok(Status::PermanentRedirect),
        _ => Err(format!(
            "'{text}' is not the status of a rule; 301, 302, 303, 307 and 308 redirect, 200 serves \
             the file at the other path"
        )),
    }
}

impl Pattern {
    fn parse(text: &str, names: &mut Vec<String>) -> Result<Pattern, String> {
        if text.contains(['?', '#']) {
            return Err(format!("'{text}': a rule is about the path alone, and keeps the query"));
        }
        let wrong = || format!("'{text}' is not a path such as /old/page or /old/*");
        if !text.starts_with('/') {
            return Err(wrong());
        }
        let raw = RawPath::parse(text.as_bytes()).map_err(|_| wrong())?;
        let mut buffer = Vec::new();
        let path = raw.normalize(&mut buffer).map_err(|_| wrong())?;
        let (head, tail) = match path.split_once('*') {
            Some((_, tail)) if tail.contains('*') => {
                return Err(format!("'{text}' has more than one star; name segments, as /:year/*"));
            }
            Some((head, tail)) => (head, Some(tail)),
            None => (path, None),
        };
        let is_cut = tail.is_some();
        Ok(Pattern {
            text: text.into(),
            head: pieces(head, is_cut, names)?,
            tail: tail.map(|tail| pieces(tail, false, names)).transpose()?,
        })
    }

    /// The captures, if the pattern matches.
    fn matches<'p>(&self, path: &'p str) -> Option<Captures<'p>> {
        let mut captures = [""; CAPTURES_MAX];
        let mut rest = path;
        for piece in &self.head {
            match piece {
                PathPiece::Text(text) => rest = rest.strip_prefix(&**text)?,
                PathPiece::Capture(at) => {
                    let (segment, after) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                    captures[*at] = Some(segment).filter(|segment| !segment.is_empty())?;
                    rest = after;
                }
            }
        }
        let Some(tail) = &self.tail else {
            return rest.is_empty().then_some(captures);
        };
        for piece in tail.iter().rev() {
            match piece {
                PathPiece::Text(text) => rest = rest.strip_suffix(&**text)?,
                PathPiece::Capture(at) => {
                    let (before, segment) = rest.split_at(rest.rfind('/')? + 1);
                    captures[*at] = Some(segment).filter(|segment| !segment.is_empty())?;
                    rest = before;
                }
            }
        }
        captures[SPLAT] = rest;
        Some(captures)
    }

    /// The only path that matches, for a pattern without star and names.
    fn as_path(&self) -> Option<&str> {
        match (&self.head[..], &self.tail) {
            ([PathPiece::Text(path)], None) => Some(path),
            _ => None,
        }
    }
}

/// Parses part of a pattern. `is_cut`: a star follows.
fn pieces(part: &str, is_cut: bool, names: &mut Vec<String>) -> Result<Vec<PathPiece>, String> {
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut segments = part.split('/').enumerate().peekable();
    while let Some((nth, segment)) = segments.next() {
        if nth > 0 {
            text.push('/');
        }
        // Text beside a star is not a whole segment.
        let is_whole = nth > 0 && !(is_cut && segments.peek().is_none());
        let name = segment.strip_prefix(':').filter(|name| is_name(name));
        match name.filter(|_| is_whole) {
            Some(name) if name == "splat" || names.iter().any(|known| known == name) => {
                return Err(format!("':{name}' stands for something else already"));
            }
            Some(_) if names.len() == SPLAT => {
                return Err(format!("a rule has at most {SPLAT} names"));
            }
            Some(name) => {
                pieces.push(PathPiece::Text(std::mem::take(&mut text).into()));
                pieces.push(PathPiece::Capture(names.len()));
                names.push(name.to_owned());
            }
            None => text.push_str(segment),
        }
    }
    if !text.is_empty() {
        pieces.push(PathPiece::Text(text.into()));
    }
    Ok(pieces)
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Variables of nginx that targets may contain.
const VARIABLES: [&str; 9] = [
    "args",
    "document_uri",
    "host",
    "is_args",
    "query_string",
    "request_uri",
    "scheme",
    "server_name",
    "uri",
];

/// True if an nginx variable follows a dollar sign. Other words may be names, such as `$metadata`.
fn is_variable(text: &str) -> bool {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let name = &text[..text.find(|c| !is_of_name(c)).unwrap_or(text.len())];
    let is_group = matches!(name.as_bytes(), [b'1'..=b'9', rest @ ..]
        if !rest.first().is_some_and(u8::is_ascii_digit));
    is_group || text.starts_with('{') || name.starts_with("arg_") || VARIABLES.contains(&name)
}

/// Parses a target.
fn target(
    to: &str,
    names: &[String],
    has_star: bool,
    is_path: bool,
) -> Result<Vec<PathPiece>, String> {
    let is_local = to.starts_with('/') && !to.starts_with("//") && !to.starts_with("/\\");
    let authority = ["http://", "https://"].iter().find_map(|scheme| {
        let (start, rest) = to.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(rest)
    });
    if !is_local && (is_path || authority.is_none()) {
        let forms = if is_path { "/page" } else { "/page or https://example.org/page" };
        return Err(format!("'{to}' is not a target such as {forms}"));
    }
    if to.bytes().any(|byte| byte.is_ascii_control() || b" \\".contains(&byte)) {
        return Err(format!("'{to}' has a control character, a space or a backslash in it"));
    }
    if to.split('$').skip(1).any(is_variable) {
        return Err(format!(
            "'{to}' has a variable; `:splat` is what the star stands for, and `:name` a segment (a \
             dollar sign is written %24)"
        ));
    }
    if is_path && to.contains(['?', '#']) {
        return Err(format!("'{to}' is not the path of a file: it has a query or a fragment"));
    }
    // A client must not choose the host.
    let authority = authority.map(|rest| rest.split(['/', '?', '#']).next().unwrap_or(rest));
    let scheme_len = to.find("//").map_or(0, |at| at + 2);
    let fixed_len = authority.map_or(0, |authority| scheme_len + authority.len());
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut rest = to;
    while let Some(c) = rest.chars().next() {
        let at = to.len() - rest.len();
        let (capture, len) = match c {
            '*' if has_star => (Some(SPLAT), 1),
            ':' => {
                let is_name_byte = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let name = &rest[1..];
                let name = &name[..name.find(|c| !is_name_byte(c)).unwrap_or(name.len())];
                let known = match names.iter().position(|known| known == name) {
                    None if name == "splat" && has_star => Some(SPLAT),
                    known => known,
                };
                if known.is_none() && is_name(name) && to[..at].ends_with('/') {
                    return Err(format!("'{to}': the path before it has no ':{name}'"));
                }
                (known, known.map_or(1, |_| 1 + name.len()))
            }
            _ => (None, c.len_utf8()),
        };
        match capture {
            Some(_) if at <= fixed_len => {
                return Err(format!("'{to}': a request must not choose the host"));
            }
            Some(capture) => {
                pieces.push(PathPiece::Text(std::mem::take(&mut text).into()));
                pieces.push(PathPiece::Capture(capture));
            }
            None => text.push_str(&rest[..len]),
        }
        rest = &rest[len..];
    }
    // Browsers skip further slashes and take https:///evil.example for a host. WHATWG URL 4.4
    if authority.is_some_and(|authority| !is_host(authority.as_bytes())) {
        return Err(format!("'{to}' names no host, as https://example.org does"));
    }
    pieces.push(PathPiece::Text(text.into()));
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rules(lines: &str) -> Redirects {
        let rules = lines.lines().map(|line| RedirectRule::from_line(line).unwrap());
        Redirects::new(rules.flatten().collect(), None).unwrap()
    }

    /// The `Location` of a request with a query.
    fn location(rules: &Redirects, path: &str) -> Option<String> {
        let found = rules.find(path)?;
        let location = found.location(b"q=1");
        Some(format!("{} {}", found.status.code(), String::from_utf8(location).unwrap()))
    }

    fn check(lines: &str, path: &str, expected: Option<&str>) {
        let found = location(&rules(lines), path);
        assert_eq!(found.as_deref(), expected, "{lines:?} {path}");
    }

    #[test]
    fn star_and_names_are_put_into_the_target() {
        for (line, path, to) in [
            ("/a /b", "/a", Some("301 /b?q=1")),
            ("/a /b 302", "/a", Some("302 /b?q=1")),
            ("/a /b 308! # moved", "/a", Some("308 /b?q=1")),
            ("/a /b", "/a/", None),
            ("/a/ /b/", "/a/", Some("301 /b/?q=1")),
            ("/caf%C3%A9 /coffee", "/café", Some("301 /coffee?q=1")),
            ("/old/* /new/:splat", "/old/x/y", Some("301 /new/x/y?q=1")),
            ("/old/* /new/*", "/old/x y/ü", Some("301 /new/x%20y/%C3%BC?q=1")),
            ("/old/* /new/:splat", "/old/", Some("301 /new/?q=1")),
            ("/old/* /new/:splat", "/old", None),
            ("/*.php /:splat", "/a/b.php", Some("301 /a/b?q=1")),
            (
                "/blog/*/index.html /blog/:splat/",
                "/blog/a/b/index.html",
                Some("301 /blog/a/b/?q=1"),
            ),
            (
                "/b/:year/:month/* /posts/:month-:year/:splat",
                "/b/2026/11/a",
                Some("301 /posts/11-2026/a?q=1"),
            ),
            ("/u/:id /users/:id", "/u/a/b", None),
            ("/u/:id /users/:id", "/u/", None),
            ("/u/*/:id /users/:id", "/u/a/b/7", Some("301 /users/7?q=1")),
            ("/wiki/Talk:Main /talk", "/wiki/Talk:Main", Some("301 /talk?q=1")),
            ("/a/* https://b.org/:splat", "/a/c", Some("301 https://b.org/c?q=1")),
            ("/a https://b.org:8443", "/a", Some("301 https://b.org:8443?q=1")),
            ("/a /b?x=y", "/a", Some("301 /b?x=y&q=1")),
            ("/a /b#part", "/a", Some("301 /b?q=1#part")),
            ("/a /ü", "/a", Some("301 /%C3%BC?q=1")),
            ("/a /b/%24x$", "/a", Some("301 /b/%24x$?q=1")),
            // `$` in file names and in OData.
            ("/a /b/$metadata", "/a", Some("301 /b/$metadata?q=1")),
            ("/a /b?$filter=x", "/a", Some("301 /b?$filter=x&q=1")),
            ("/a /$hosts/$100/$0/$Host/$argx", "/a", Some("301 /$hosts/$100/$0/$Host/$argx?q=1")),
        ] {
            check(line, path, to);
        }
    }

    #[test]
    fn the_first_rule_that_matches_holds() {
        let lines = "/a/b /one\n/a/* /two\n/a/c /three\n/* /four\n/a/:x /five";
        let lines = rules(&format!("/four /done 200\n/one /o 200\n/two /t 200\n{lines}"));
        for (path, to) in [("/a/b", "/one"), ("/a/c", "/two"), ("/b", "/four"), ("/a", "/four")] {
            assert_eq!(lines.find(path).unwrap().address, to, "{path}");
        }
    }

    /// Seen: each request tried 10,000 rules with a star in one directory one by one, even if none
    /// matched, and the check for loops took quadratic time.
    #[test]
    fn many_patterns_in_one_directory_cost_little() {
        let looks = || patterns::LOOKS.replace(0);
        for (from, path) in [
            ("/p#-*", "/p77-x"),
            ("/:lang/p#", "/en/p77"),
            ("/*-p#.html", "/a/b-p77.html"),
            ("/:a/p#/*", "/x/p77/y/z"),
            ("/*/:a/p#", "/q/w/p77"),
            ("/:a/*/:b/p#", "/q/x/w/p77"),
        ] {
            let line = |nth: usize| format!("{} /new/{nth}\n", from.replace('#', &nth.to_string()));
            let lines: String = (0..10_000).map(line).collect();
            let rules = rules(&lines);
            let checked = looks();
            assert!(checked < 10_000 * 300, "{from}: {checked} for the check");
            assert_eq!(rules.find(path).map(|found| found.rule), Some(77), "{from}");
            assert!(rules.find("/").is_none() && rules.find(&"/p".repeat(9)).is_none());
            let found = looks();
            assert!(found < 1000, "{from}: {found} for three paths");
            // A long path costs time by its length.
            _ = rules.find(&"/p7".repeat(2700));
            let long = looks();
            assert!(long < 10 * 8100, "{from}: {long} for 8,100 bytes");
        }
    }

    #[test]
    fn a_wrong_rule_says_what_is_wrong() {
        for (line, why) in [
            ("/a", "write /from /to"),
            ("/a /b 301 Country=au", "no further conditions"),
            ("/a /b 404", "'404' is not the status"),
            ("a /b", "'a' is not a path"),
            ("https://x.org/a /b", "is not a path"),
            ("/a?b=c /d", "keeps the query"),
            ("/a/../.. /d", "is not a path"),
            ("/*/* /d", "more than one star"),
            ("/:a/:a /d", "':a' stands for something else"),
            ("/:splat /d", "':splat' stands for"),
            ("/a/:b /c/:d", "has no ':d'"),
            ("/a /c/:splat", "has no ':splat'"),
            ("/a b", "'b' is not a target"),
            ("/a //b.org/", "'//b.org/' is not a target"),
            ("/a /\\b.org/", "is not a target"),
            ("/a javascript:x", "is not a target"),
            ("/a/* https://:splat/", "must not choose the host"),
            ("/a/* https://b.org:splat", "must not choose the host"),
            ("/a/* https://b.org*", "must not choose the host"),
            ("/a/* https:///:splat", "names no host"),
            ("/a/* https://///:splat", "names no host"),
            ("/a/* HTTP:///@:splat", "names no host"),
            ("/a/* https://?:splat", "names no host"),
            ("/a https://#:splat", "names no host"),
            ("/a https://", "names no host"),
            ("/a https://:443/b", "names no host"),
            ("/a https://b.org:port/", "names no host"),
            ("/a https://b.org@c.org/", "names no host"),
            ("/a https://bücher.example/", "names no host"),
            ("/a https://b.org/c 200", "is not a target such as /page"),
            ("/a /b?c 200", "has a query"),
            ("/* /index.html 200", "spa = "),
            ("/a /b\u{7f}", "a control character"),
            ("/a/* /b/$1", "`:splat` is what the star stands for"),
            ("/a https://$host/b", "has a variable"),
            ("/a /b$request_uri", "has a variable"),
            ("/a /$x$is_args$args", "has a variable"),
            ("/a /b?c=$arg_c", "has a variable"),
            ("/a /$9x", "has a variable"),
            ("/a /${host}", "has a variable"),
        ] {
            let error = RedirectRule::from_line(line).unwrap_err();
            assert!(error.contains(why), "{line}: {error}");
        }
        assert_eq!(RedirectRule::from_line("  # /a /b"), Ok(None));
        assert_eq!(RedirectRule::from_line(""), Ok(None));
    }

    #[test]
    fn rules_in_a_circle_are_refused() {
        let circles_of = |lines: &str, pages: Option<&[String]>| {
            let rules = lines.lines().map(|line| RedirectRule::from_line(line).unwrap().unwrap());
            let found = Redirects::new(rules.collect(), pages).err().unwrap_or_default();
            found.into_iter().map(|(at, _)| at).collect::<Vec<_>>()
        };
        let circles = |lines: &str| circles_of(lines, None);
        assert_eq!(circles("/a /a"), [0]);
        assert_eq!(circles("/x /y\n/a /b\n/b /c?d\n/c /a#e"), [1, 2, 3]);
        assert_eq!(circles("/* /new/:splat"), [0]);
        assert_eq!(circles("/* /new/:splat\n/new/* /old/:splat 200"), [0]);
        assert_eq!(circles("/new/* /old/:splat 200\n/* /new/:splat"), [0_usize; 0]);
        assert_eq!(circles("/*.php /:splat\n/a /a/ 302\n/b /b 200"), [0_usize; 0]);
        let chain = |len: usize| {
            let lines = (0..len).map(|nth| format!("/{nth} /{}", nth + 1));
            lines.collect::<Vec<_>>().join("\n")
        };
        assert_eq!(circles(&chain(HOPS_MAX)), [0_usize; 0]);
        assert_eq!(circles(&chain(HOPS_MAX + 1)), [0]);
        // Seen: with clean URLs, /about was redirected to /about.html and back.
        let index = ["index.html".to_owned()];
        for (lines, of_clean) in [
            ("/about /about.html", &[0][..]),
            ("/a/b/ /a/b/index.html?c", &[0]),
            ("/ /index.html 302", &[0]),
            ("/ü /ü.html", &[0]),
            ("/one /two.html\n/two /one.html", &[0, 1]),
            ("/about /about.html 200", &[]),
            ("/old /about.html\n/blog /blog/\n/home /index.html", &[]),
            ("/a/b /a/b/index.html\n/c/ /c/page.html", &[]),
        ] {
            assert_eq!(circles(lines), [0_usize; 0], "{lines}");
            assert_eq!(circles_of(lines, Some(&index)), of_clean, "{lines}");
        }
    }

    proptest! {
        /// Compares with a reference that tries the rules one by one.
        #[test]
        fn the_trie_finds_the_first_match(
            rules in prop::collection::vec("(/|/a|/:p|/b|/ab[*]?)(/a|/:q|/[*]|/b[*]a|/b|[*]/:u/b)?(/a|/:r|/b)?(/:s|/a|a|/)?", 0..9),
            paths in prop::collection::vec("/[ab]{0,2}(/[ab]{0,2}){0,3}", 9),
        ) {
            let rule = |from: &String| RedirectRule::new(from, "/to", Some("200")).ok();
            let rules: Vec<_> = rules.iter().filter_map(rule).collect();
            let redirects = Redirects::new(rules.clone(), None).unwrap();
            for path in paths {
                let first = rules.iter().position(|rule| rule.from.matches(&path).is_some());
                prop_assert_eq!(redirects.find(&path).map(|found| found.rule), first, "{}", path);
            }
        }

        /// For any path, the client stays on this host, and no header line can be injected.
        #[test]
        fn no_request_chooses_host_or_header(path in "/[/a.:@\\\\ü\r\n%?#-]{0,12}", at in 0..5_usize) {
            let rules = rules(["/* /:splat 302\n", "/a* /*\n", "/:a/* /:a:splat\n", "/a*a /*/b\n", "/*a /*//b.org\n"][at].replace("/* /:splat 302\n", "/-* /:splat 302\n").as_str());
            let mut buffer = Vec::new();
            let request = percent_encoded(&path);
            let raw = RawPath::parse(request.as_bytes()).unwrap();
            let Ok(path) = raw.normalize(&mut buffer) else { return Ok(()) };
            if let Some(found) = rules.find(path) {
                let location = found.location(b"");
                prop_assert!(location[0] == b'/' && !b"/\\".contains(location.get(1).unwrap_or(&b' ')));
                prop_assert!(location.iter().all(u8::is_ascii_graphic));
            }
        }
    }
}
