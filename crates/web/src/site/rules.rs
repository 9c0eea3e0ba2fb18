use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use super::config::{CacheRule, HeaderRule, SiteError};

/// Header and cache rules, compiled. Matched once for each entry, when it is made.
#[derive(Debug)]
pub(super) struct Rules {
    globs: GlobSet,
    /// The field of each glob, in the same order.
    fields: Vec<(String, String)>,
    /// The header lines of the rules for every path.
    everywhere: String,
}

/// Fields that the server sets itself; a rule with such a name would contradict it.
const RESERVED: [&str; 19] = [
    "accept-ranges",
    "age",
    "allow",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "date",
    "etag",
    "keep-alive",
    "last-modified",
    "location",
    "server",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-content-type-options",
];

impl Rules {
    /// Compiles the rules.
    ///
    /// # Errors
    /// The first rule that cannot be used, and why.
    pub(super) fn new(headers: &[HeaderRule], caches: &[CacheRule]) -> Result<Rules, SiteError> {
        let mut globs = GlobSetBuilder::new();
        let mut fields = Vec::new();
        for HeaderRule { glob, name, value } in headers {
            check_name(name)?;
            add_glob(&mut globs, glob)?;
            fields.push(checked_field(name, value)?);
        }
        for CacheRule { glob, value } in caches {
            add_glob(&mut globs, glob)?;
            fields.push(checked_field("Cache-Control", value)?);
        }
        let globs = globs
            .build()
            .map_err(|error| glob_error("all globs together", &error))?;
        let is_everywhere = |&rule: &usize| headers[rule].glob == EVERYWHERE;
        let everywhere: Vec<_> = (0..headers.len()).filter(is_everywhere).collect();
        Ok(Rules {
            globs,
            everywhere: lines_of(&fields, &everywhere),
            fields,
        })
    }

    /// The header lines, each ending in CRLF, for what is no file or listing.
    pub(super) fn everywhere(&self) -> &str {
        &self.everywhere
    }

    /// The header lines, each ending in CRLF, for the file at `path` (from the root, no slash
    /// first).
    pub(super) fn lines(&self, path: &str) -> String {
        lines_of(&self.fields, &self.globs.matches(path))
    }
}

/// The part of [`Rules::lines`] that a reply carries which is about a path and has no file: an
/// error, a redirect, the reply to OPTIONS. A cache that keeps an error as long as it may keep the
/// file hides the file, so `Cache-Control` is there only if it forbids that.
pub(super) fn without_file(lines: &str) -> &str {
    // Cache rules stand behind header rules, and one of them holds.
    let last = lines.split_inclusive('\n').next_back().unwrap_or_default();
    match last.strip_prefix("Cache-Control: ") {
        Some(value) if !forbids_reuse(value) => &lines[..lines.len() - last.len()],
        _ => lines,
    }
}

/// Whether a reply with this `Cache-Control` is not reused before the server was asked. RFC 9111
/// 5.2.2
fn forbids_reuse(value: &str) -> bool {
    let directives = value.split(',').map(|directive| directive.trim());
    let mut forbidding = directives.filter(|directive| {
        ["no-store", "no-cache"]
            .iter()
            .any(|name| directive.eq_ignore_ascii_case(name))
    });
    forbidding.next().is_some()
}

/// The glob of a rule for every path.
const EVERYWHERE: &str = "**";

fn lines_of(fields: &[(String, String)], matching: &[usize]) -> String {
    let mut lines = String::new();
    for (nth, &rule) in matching.iter().enumerate() {
        let (name, value) = &fields[rule];
        let overruled = |later: &usize| fields[*later].0.eq_ignore_ascii_case(name);
        if !matching[nth + 1..].iter().any(overruled) {
            lines.extend([name, ": ", value, "\r\n"]);
        }
    }
    lines
}

fn add_glob(globs: &mut GlobSetBuilder, glob: &str) -> Result<(), SiteError> {
    let anchored = match glob.strip_prefix('/') {
        Some(rest) => rest.to_owned(),
        None if glob.contains('/') => glob.to_owned(),
        None => format!("**/{glob}"),
    };
    let glob = GlobBuilder::new(&anchored)
        .literal_separator(true)
        .build()
        .map_err(|error| glob_error(glob, &error))?;
    globs.add(glob);
    Ok(())
}

fn glob_error(glob: &str, error: &globset::Error) -> SiteError {
    SiteError::Glob {
        glob: glob.to_owned(),
        why: error.kind().to_string(),
    }
}

fn check_name(name: &str) -> Result<(), SiteError> {
    let why = if name.is_empty() || !name.bytes().all(is_token) {
        "a name is letters, digits and !#$%&'*+-.^_`|~ only"
    } else if name.eq_ignore_ascii_case("cache-control") {
        "use a cache rule for it"
    } else if RESERVED.contains(&name.to_ascii_lowercase().as_str()) {
        "the server sets this field itself"
    } else {
        return Ok(());
    };
    Err(SiteError::HeaderName {
        name: name.to_owned(),
        why,
    })
}

/// RFC 9110 5.6.2
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// A line break in a value would let the writer of the configuration's variables write whole
/// replies. RFC 9110 5.5
fn checked_field(name: &str, value: &str) -> Result<(String, String), SiteError> {
    match is_value(value) {
        true => Ok((name.to_owned(), value.trim().to_owned())),
        false => Err(SiteError::HeaderValue {
            name: name.to_owned(),
            value: value.to_owned(),
        }),
    }
}

/// Visible ASCII, spaces and tabs.
pub(super) fn is_value(value: &str) -> bool {
    value
        .bytes()
        .all(|byte| matches!(byte, b'\t' | b' '..=b'~'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(glob: &str, name: &str, value: &str) -> HeaderRule {
        HeaderRule {
            glob: glob.into(),
            name: name.into(),
            value: value.into(),
        }
    }

    fn lines(globs: &[&str], path: &str) -> String {
        let headers: Vec<_> = globs
            .iter()
            .enumerate()
            .map(|(n, glob)| header(glob, &format!("X{n}"), "v"))
            .collect();
        Rules::new(&headers, &[]).unwrap().lines(path)
    }

    #[test]
    fn a_glob_without_a_slash_matches_the_name_anywhere() {
        assert_eq!(lines(&["*.js"], "a/b/c.js"), "X0: v\r\n");
        assert_eq!(lines(&["*.js"], "c.js"), "X0: v\r\n");
        assert_eq!(lines(&["*.js"], "c.json"), "");
        assert_eq!(lines(&["*"], "a/b/c.js"), "X0: v\r\n");
    }

    #[test]
    fn a_glob_with_a_slash_matches_from_the_root() {
        assert_eq!(lines(&["/c.js"], "a/c.js"), "");
        assert_eq!(
            lines(&["/c.js", "assets/*", "assets/**"], "assets/x/c.js"),
            "X2: v\r\n"
        );
    }

    #[test]
    fn the_last_rule_of_a_name_counts() {
        let headers = [
            header("*", "X-A", "1"),
            header("*.js", "x-a", "2"),
            header("*", "X-B", "3"),
        ];
        let caches = [
            CacheRule {
                glob: "*".into(),
                value: "no-cache".into(),
            },
            CacheRule {
                glob: "*.js".into(),
                value: "max-age=60".into(),
            },
        ];
        let rules = Rules::new(&headers, &caches).unwrap();
        assert_eq!(
            rules.lines("a.js"),
            "x-a: 2\r\nX-B: 3\r\nCache-Control: max-age=60\r\n"
        );
        assert_eq!(
            rules.lines("a.css"),
            "X-A: 1\r\nX-B: 3\r\nCache-Control: no-cache\r\n"
        );
    }

    #[test]
    fn a_reply_without_the_file_is_not_kept_like_the_file() {
        let without = |value: &str| {
            let headers = [header("*", "X-Cache-Control", "1")];
            let glob = "*.js".to_owned();
            let caches = [CacheRule {
                glob,
                value: value.to_owned(),
            }];
            let lines = Rules::new(&headers, &caches).unwrap().lines("a.js");
            without_file(&lines).to_owned()
        };
        assert_eq!(without("max-age=9, immutable"), "X-Cache-Control: 1\r\n");
        assert_eq!(without("public"), "X-Cache-Control: 1\r\n");
        let strict = "X-Cache-Control: 1\r\nCache-Control: private, no-store\r\n";
        assert_eq!(without("private, no-store"), strict);
        assert!(without("No-Cache").ends_with("No-Cache\r\n"));
        assert_eq!(without_file(""), "");
        assert_eq!(without_file("X: no\r\n"), "X: no\r\n");
    }

    #[test]
    fn a_value_cannot_smuggle_a_line() {
        for value in ["a\r\nSet-Cookie: x", "a\nb", "a\0", "\u{7f}", "grün"] {
            let error = Rules::new(&[header("*", "X", value)], &[]).unwrap_err();
            assert!(
                matches!(error, SiteError::HeaderValue { .. }),
                "{value:?}: {error}"
            );
        }
    }

    #[test]
    fn a_name_must_be_a_token_that_the_server_does_not_set() {
        for name in [
            "",
            "a b",
            "X:",
            "Content-Length",
            "transfer-encoding",
            "Cache-Control",
        ] {
            let error = Rules::new(&[header("*", name, "v")], &[]).unwrap_err();
            assert!(
                matches!(error, SiteError::HeaderName { .. }),
                "{name:?}: {error}"
            );
        }
    }

    #[test]
    fn a_bad_glob_is_named() {
        let error = Rules::new(&[header("a[", "X", "v")], &[])
            .unwrap_err()
            .to_string();
        assert!(error.contains("\"a[\""), "{error}");
    }
}
