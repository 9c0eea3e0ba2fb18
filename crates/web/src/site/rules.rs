use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};

use super::config::{CacheRule, ConfigError, CorsRule, HeaderRule};
use super::cors::{Cors, Readers};
use super::mime;
use crate::lookup::Encoding;

/// Compiled rules for headers, caching, types and codings. Matched once per entry, when it is made.
#[derive(Debug)]
pub(super) struct Rules {
    globs: GlobSet,
    /// The field of each glob, in the same order.
    fields: Vec<(String, String)>,
    /// The header rules for every path, and their lines.
    everywhere: (Vec<usize>, String),
    /// `None` without such rules.
    cors: Option<Cors>,
    /// Rules for `Content-Encoding`: the compression of files, regardless of their names.
    coding_globs: GlobSet,
    codings: Vec<Option<Encoding>>,
    type_globs: GlobSet,
    types: Vec<String>,
}

/// Fields that the server sets itself; a rule with such a name would contradict it.
const RESERVED: [&str; 18] = [
    "accept-ranges",
    "age",
    "allow",
    "connection",
    "content-length",
    "content-range",
    "date",
    "etag",
    "keep-alive",
    "last-modified",
    "location",
    "proxy-connection",
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
    /// The first invalid rule, and the reason.
    pub(super) fn new(
        headers: &[HeaderRule],
        caches: &[CacheRule],
        mime_types: &[(String, String)],
    ) -> Result<Rules, ConfigError> {
        let (codings, headers): (Vec<_>, Vec<_>) = headers.iter().partition(|rule| is_coding(rule));
        let mut globs = GlobSetBuilder::new();
        let mut fields = Vec::new();
        for HeaderRule { glob, name, value } in &headers {
            check_name(name)?;
            add_glob(&mut globs, glob)?;
            fields.push(checked_field(name, value)?);
        }
        for CacheRule { glob, value } in caches {
            add_glob(&mut globs, glob)?;
            fields.push(checked_field("Cache-Control", value)?);
        }
        let mut coding_globs = GlobSetBuilder::new();
        for rule in &codings {
            add_glob(&mut coding_globs, &rule.glob)?;
        }
        let mut type_globs = GlobSetBuilder::new();
        for (pattern, value) in mime_types {
            check_type(pattern, value)?;
            add_type_glob(&mut type_globs, pattern)?;
        }
        let is_everywhere = |&rule: &usize| headers[rule].glob == EVERYWHERE;
        let everywhere: Vec<_> = (0..headers.len()).filter(is_everywhere).collect();
        Ok(Rules {
            globs: built(globs)?,
            everywhere: (in_force(&fields, &everywhere).collect(), lines_of(&fields, &everywhere)),
            fields,
            cors: None,
            coding_globs: built(coding_globs)?,
            codings: codings.into_iter().map(coding_of).collect::<Result<_, _>>()?,
            type_globs: built(type_globs)?,
            types: mime_types.iter().map(|(_, value)| value.clone()).collect(),
        })
    }

    /// Adds rules for other origins.
    ///
    /// # Errors
    /// The first invalid rule, and the reason.
    pub(super) fn with_cors(mut self, rules: &[CorsRule]) -> Result<Rules, ConfigError> {
        if rules.is_empty() {
            return Ok(self);
        }
        let is_theirs = |name: &str| name.eq_ignore_ascii_case("access-control-allow-origin");
        if let Some((name, _)) = self.fields.iter().find(|(name, _)| is_theirs(name)) {
            return Err(ConfigError::header_name(name, "`cors` sends it"));
        }
        let cors = Cors::new(rules)?;
        self.everywhere.1.insert_str(0, cors.readers_everywhere().lines());
        self.cors = Some(cors);
        Ok(self)
    }

    /// The origins that may read replies about the file at `path`.
    pub(super) fn readers(&self, path: &str) -> Readers {
        (self.cors.as_ref()).map_or(Readers::Own, |cors| cors.readers(path))
    }

    /// The rules for other origins, if there are any.
    pub(super) fn cors(&self) -> Option<&Cors> {
        self.cors.as_ref()
    }

    /// The rule for the coding of the file at `path`, by index among coding rules.
    pub(super) fn coding_rule(&self, path: &str) -> Option<usize> {
        self.coding_globs.matches(path).last().copied()
    }

    /// The coding of the bytes of the file at `path`, for every client.
    pub(super) fn coding(&self, path: &str) -> Option<Encoding> {
        match self.coding_rule(path) {
            Some(rule) => self.codings[rule],
            None => mime::coding_by_name(path),
        }
    }

    /// The rule for the type of the file at `path`.
    pub(super) fn type_rule(&self, path: &str) -> Option<usize> {
        self.type_globs.matches(path).last().copied()
    }

    /// The type of the file at `path`.
    pub(super) fn content_type(&self, path: &str) -> &str {
        if let Some(rule) = self.type_rule(path) {
            return &self.types[rule];
        }
        let name = match self.coding(path) {
            Some(encoding) => mime::without_coding(path, encoding),
            None => path,
        };
        mime::by_name(name).unwrap_or("application/octet-stream")
    }

    /// The header lines, each ending in CRLF, for replies without a file or listing.
    pub(super) fn everywhere(&self) -> &str {
        &self.everywhere.1
    }

    /// The rules that produce them, as in [`Rules::in_force`].
    pub(super) fn in_force_everywhere(&self) -> Vec<usize> {
        self.everywhere.0.clone()
    }

    /// The rules whose header lines a reply about the file at `path` carries, or a reply [without a
    /// file](without_file): header rules, numbered without coding rules, then cache rules.
    pub(super) fn in_force(&self, path: &str, has_file: bool) -> Vec<usize> {
        let matching = self.globs.matches(path);
        let mut rules: Vec<_> = in_force(&self.fields, &matching).collect();
        let is_left_out = |&&rule: &&usize| {
            let (name, value) = &self.fields[rule];
            !has_file && name == "Cache-Control" && !forbids_reuse(value)
        };
        if rules.last().filter(is_left_out).is_some() {
            rules.pop();
        }
        rules
    }

    /// The header lines, each ending in CRLF, for the file at `path` (from the root, no slash
    /// first).
    pub(super) fn lines(&self, path: &str) -> String {
        let lines = lines_of(&self.fields, &self.globs.matches(path));
        [self.readers(path).lines(), &lines].concat()
    }
}

/// The part of [`Rules::lines`] for a reply about a path without its file: an error, a redirect,
/// the reply to OPTIONS. A cache that stores an error as long as the file hides the file, so
/// `Cache-Control` is included only if it forbids that.
pub(super) fn without_file(lines: &str) -> &str {
    // Cache rules follow header rules, and only one of them applies.
    let last = lines.split_inclusive('\n').next_back().unwrap_or_default();
    match last.strip_prefix("Cache-Control: ") {
        Some(value) if !forbids_reuse(value) => &lines[..lines.len() - last.len()],
        _ => lines,
    }
}

/// True if this `Cache-Control` forbids reuse without revalidation. RFC 9111 5.2.2
fn forbids_reuse(value: &str) -> bool {
    let directives = value.split(',').map(|directive| directive.trim());
    let mut forbidding = directives.filter(|directive| {
        ["no-store", "no-cache"].iter().any(|name| directive.eq_ignore_ascii_case(name))
    });
    forbidding.next().is_some()
}

/// True if these header lines forbid recoding the file. RFC 9111 5.2.2.6
pub(super) fn forbid_transform(lines: &str) -> bool {
    let value = lines.lines().find_map(|line| line.strip_prefix("Cache-Control: "));
    let mut directives = value.unwrap_or_default().split(',').map(str::trim);
    directives.any(|directive| directive.eq_ignore_ascii_case("no-transform"))
}

/// The glob of a rule for every path.
pub(super) const EVERYWHERE: &str = "**";

/// True for a rule that declares how files are compressed.
pub(super) fn is_coding(rule: &HeaderRule) -> bool {
    rule.name.eq_ignore_ascii_case("content-encoding")
}

/// The last matching rule of each name.
fn in_force<'a>(
    fields: &'a [(String, String)],
    matching: &'a [usize],
) -> impl Iterator<Item = usize> + 'a {
    let overruled = move |nth: usize, name: &str| {
        let mut later = matching[nth + 1..].iter();
        later.any(|later| fields[*later].0.eq_ignore_ascii_case(name))
    };
    let rules = matching.iter().copied().enumerate();
    rules.filter_map(move |(nth, rule)| (!overruled(nth, &fields[rule].0)).then_some(rule))
}

fn lines_of(fields: &[(String, String)], matching: &[usize]) -> String {
    let mut lines = String::new();
    for rule in in_force(fields, matching) {
        let (name, value) = &fields[rule];
        lines.extend([name, ": ", value, "\r\n"]);
    }
    lines
}

pub(super) fn built(globs: GlobSetBuilder) -> Result<GlobSet, ConfigError> {
    globs.build().map_err(|error| ConfigError::glob("all globs together", error.kind()))
}

/// The coding that a `Content-Encoding` rule names; `None` for `identity`, which overrides the
/// coding implied by the file's name.
fn coding_of(rule: &HeaderRule) -> Result<Option<Encoding>, ConfigError> {
    let wrong = |why| ConfigError::header_name(&rule.name, why);
    if rule.glob == EVERYWHERE {
        return Err(wrong("name the files that are compressed: *.data.gz=Content-Encoding: gzip"));
    }
    let value = rule.value.trim();
    let named = |encoding: &Encoding| value.eq_ignore_ascii_case(encoding.token());
    match Encoding::ALL.into_iter().find(named) {
        None if !value.eq_ignore_ascii_case("identity") => {
            Err(wrong("its value is br, zstd, gzip or identity"))
        }
        coding => Ok(coding),
    }
}

fn check_type(pattern: &str, value: &str) -> Result<(), ConfigError> {
    let is_of_directory = pattern.ends_with('/').then_some("no file's name ends with a slash");
    if let Some(why) = is_of_directory.or_else(|| never_matches(pattern)) {
        return Err(ConfigError::glob(pattern, why));
    }
    if value.is_empty() || !is_value(value) {
        return Err(ConfigError::header_value("Content-Type", value));
    }
    Ok(())
}

/// A plain word is an extension or a whole file name; anything else is a glob.
fn add_type_glob(globs: &mut GlobSetBuilder, pattern: &str) -> Result<(), ConfigError> {
    if pattern.contains(['*', '?', '[', ']', '{', '}', '\\', '/', ',', '!']) {
        return add_glob(globs, pattern);
    }
    let glob = GlobBuilder::new(&format!("**/{{?*.{pattern},{pattern}}}"))
        .literal_separator(true)
        .case_insensitive(true)
        .build()
        .map_err(|error| ConfigError::glob(pattern, error.kind()))?;
    globs.add(glob);
    Ok(())
}

/// Reason why a glob matches no path, if any.
fn never_matches(glob: &str) -> Option<&'static str> {
    // Location forms of nginx; each character alone may occur in a name, as in `~*` and `*$`.
    let is_location = ["~ ", "~* ", "^~", "^/"].iter().any(|start| glob.starts_with(start));
    let is_anchored = glob.starts_with('^') || glob.ends_with('$');
    if is_location || is_anchored && ["\\.", ".*"].iter().any(|sign| glob.contains(sign)) {
        return Some("a glob is no regular expression: * stands for any text, as in *.css");
    }
    let path = glob.strip_prefix('/').unwrap_or(glob);
    let path = path.strip_suffix('/').unwrap_or(path);
    path.split('/').find_map(|segment| match segment {
        "" if !glob.is_empty() => Some("no path has two slashes in a row"),
        "." | ".." => Some("no path has . or .. in it: write it from the root, as /assets/**"),
        _ => None,
    })
}

pub(super) fn add_glob(globs: &mut GlobSetBuilder, glob: &str) -> Result<(), ConfigError> {
    globs.add(parsed_glob(glob)?);
    Ok(())
}

pub(super) fn parsed_glob(glob: &str) -> Result<Glob, ConfigError> {
    if let Some(why) = never_matches(glob) {
        return Err(ConfigError::glob(glob, why));
    }
    let anchored = match glob.strip_prefix('/') {
        Some(rest) => rest.to_owned(),
        None if glob.contains('/') => glob.to_owned(),
        None => format!("**/{glob}"),
    };
    let built = GlobBuilder::new(&anchored).literal_separator(true).build();
    built.map_err(|error| ConfigError::glob(glob, error.kind()))
}

fn check_name(name: &str) -> Result<(), ConfigError> {
    let why = if name.is_empty() || !name.bytes().all(is_token) {
        "a name is letters, digits and !#$%&'*+-.^_`|~ only"
    } else if name.eq_ignore_ascii_case("cache-control") {
        "use a cache rule for it"
    } else if name.eq_ignore_ascii_case("content-type") {
        "use a rule for MIME types"
    } else if name.eq_ignore_ascii_case("x-content-type-options") {
        "replies have nosniff already"
    } else if RESERVED.contains(&name.to_ascii_lowercase().as_str()) {
        "the server sets this field itself"
    } else {
        return Ok(());
    };
    Err(ConfigError::header_name(name, why))
}

/// RFC 9110 5.6.2
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Checks a field. A line break in a value would let the source of a configuration's
/// variables inject whole replies. RFC 9110 5.5
fn checked_field(name: &str, value: &str) -> Result<(String, String), ConfigError> {
    if is_value(value) {
        Ok((name.to_owned(), value.trim().to_owned()))
    } else {
        Err(ConfigError::header_value(name, value))
    }
}

/// True for visible ASCII, spaces and tabs.
pub(super) fn is_value(value: &str) -> bool {
    value.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(glob: &str, name: &str, value: &str) -> HeaderRule {
        HeaderRule { glob: glob.into(), name: name.into(), value: value.into() }
    }

    fn lines(globs: &[&str], path: &str) -> String {
        let headers: Vec<_> =
            globs.iter().enumerate().map(|(n, glob)| header(glob, &format!("X{n}"), "v")).collect();
        Rules::new(&headers, &[], &[]).unwrap().lines(path)
    }

    #[test]
    fn glob_without_slash_matches_names() {
        assert_eq!(lines(&["*.js"], "a/b/c.js"), "X0: v\r\n");
        assert_eq!(lines(&["*.js"], "c.js"), "X0: v\r\n");
        assert_eq!(lines(&["*.js"], "c.json"), "");
        assert_eq!(lines(&["*"], "a/b/c.js"), "X0: v\r\n");
    }

    #[test]
    fn glob_with_slash_matches_paths() {
        assert_eq!(lines(&["/c.js"], "a/c.js"), "");
        assert_eq!(lines(&["/c.js", "assets/*", "assets/**"], "assets/x/c.js"), "X2: v\r\n");
    }

    #[test]
    fn the_last_rule_of_a_name_counts() {
        let headers =
            [header("*", "X-A", "1"), header("*.js", "x-a", "2"), header("*", "X-B", "3")];
        let caches = [
            CacheRule { glob: "*".into(), value: "no-cache".into() },
            CacheRule { glob: "*.js".into(), value: "max-age=60".into() },
        ];
        let rules = Rules::new(&headers, &caches, &[]).unwrap();
        assert_eq!(rules.lines("a.js"), "x-a: 2\r\nX-B: 3\r\nCache-Control: max-age=60\r\n");
        assert_eq!(rules.lines("a.css"), "X-A: 1\r\nX-B: 3\r\nCache-Control: no-cache\r\n");
    }

    #[test]
    fn cache_rules_skip_error_replies() {
        let without = |value: &str| {
            let headers = [header("*", "X-Cache-Control", "1")];
            let glob = "*.js".to_owned();
            let caches = [CacheRule { glob, value: value.to_owned() }];
            let lines = Rules::new(&headers, &caches, &[]).unwrap().lines("a.js");
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
            let error = Rules::new(&[header("*", "X", value)], &[], &[]).unwrap_err().to_string();
            assert!(error.starts_with("the value "), "{value:?}: {error}");
        }
    }

    #[test]
    fn header_name_must_be_a_free_token() {
        for name in ["", "a b", "X:", "Content-Length", "transfer-encoding", "Cache-Control"] {
            let error = Rules::new(&[header("*", name, "v")], &[], &[]).unwrap_err().to_string();
            assert!(error.starts_with("the header name "), "{name:?}: {error}");
        }
    }

    fn types(rules: &[(&str, &str)]) -> Rules {
        let owned = rules.iter().map(|(glob, of)| (glob.to_string(), of.to_string()));
        Rules::new(&[], &[], &owned.collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn type_by_extension_name_or_glob() {
        let rules = types(&[
            ("webc", "text/html"),
            ("apple-app-site-association", "application/json"),
            ("tar.gz", "application/x-gtar"),
            ("/.well-known/matrix/*", "application/json"),
            ("*.x", "a/first"),
            ("/own/*.x", "a/last"),
        ]);
        for (path, content_type) in [
            ("a/b.WebC", "text/html"),
            ("b.webcx", "application/octet-stream"),
            (".well-known/apple-app-site-association", "application/json"),
            (".well-known/matrix/client", "application/json"),
            ("matrix/client", "application/octet-stream"),
            ("LICENSE", "application/octet-stream"),
            ("a.tar.gz", "application/x-gtar"),
            ("a.gz", "application/gzip"),
            ("a.x", "a/first"),
            ("own/a.x", "a/last"),
            ("own/b/a.x", "a/first"),
            ("a.css", "text/css; charset=utf-8"),
            ("a.css.gz", "text/css; charset=utf-8"),
        ] {
            assert_eq!(rules.content_type(path), content_type, "{path}");
        }
    }

    #[test]
    fn coding_rule_beats_the_name() {
        let rule = |glob, value| header(glob, "Content-Encoding", value);
        let rules = [rule("*.data.gz", "gzip"), rule("/raw/**", "identity")];
        let rules = Rules::new(&rules, &[], &[]).unwrap();
        assert_eq!(rules.coding("game.data.gz"), Some(Encoding::Gzip));
        assert_eq!(rules.content_type("game.js.gz"), "text/javascript; charset=utf-8");
        assert_eq!(rules.coding("raw/game.js.gz"), None);
        assert_eq!(rules.content_type("raw/game.js.gz"), "application/gzip");
        assert_eq!(rules.lines("game.data.gz"), "", "not every reply has this line");
        for (glob, value) in [("**", "gzip"), ("*.z", "deflate"), ("*.z", "")] {
            assert!(Rules::new(&[rule(glob, value)], &[], &[]).is_err(), "{glob} {value}");
        }
    }

    /// Seen: `--mime-type .well-known/x=…` was accepted, but had no effect.
    #[test]
    fn rule_without_a_match_is_refused() {
        for glob in ["./a.js", "a/../b", "/a//b", "//a", "https://x/a", ".."] {
            let error = Rules::new(&[header(glob, "X", "v")], &[], &[]).unwrap_err().to_string();
            assert!(error.starts_with("the glob "), "{glob}: {error}");
            let of_type = [(glob.to_owned(), "a/b".to_owned())];
            assert!(Rules::new(&[], &[], &of_type).is_err(), "{glob}");
        }
        let folder = [("/a/".to_owned(), "a/b".to_owned())];
        assert!(Rules::new(&[], &[], &folder).is_err());
        // A listing's path ends with a slash.
        assert!(Rules::new(&[header("/a/", "X", "v")], &[], &[]).is_ok());
    }

    /// Seen: `deny = "~*"` and `"*$"` were refused as regular expressions, though they are valid
    /// file names.
    #[test]
    fn names_with_signs_are_no_expressions() {
        for (glob, name) in [
            ("~*", "~a"),
            ("~*.tmp", "~a.tmp"),
            ("~*$", "~a$"),
            ("*$", "a$"),
            ("^*", "^a"),
            ("a\\.b", "a.b"),
            ("index.*", "index.html"),
            (".*", ".a"),
        ] {
            assert_eq!(lines(&[glob], name), "X0: v\r\n", "{glob}");
        }
        for glob in
            ["~ a", "~* a$", "^/a", "^~ /a", "\\.php$", "/a/.*$", "~*\\.php$", "^.*", "^\\.ht"]
        {
            let refused = Rules::new(&[header(glob, "X", "v")], &[], &[]).unwrap_err();
            assert!(refused.to_string().contains("regular expression"), "{glob}: {refused}");
        }
    }

    #[test]
    fn a_bad_glob_is_named() {
        let error = Rules::new(&[header("a[", "X", "v")], &[], &[]).unwrap_err().to_string();
        assert!(error.contains("\"a[\""), "{error}");
    }
}
