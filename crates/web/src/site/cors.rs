//! Cross-origin requests: the origins whose scripts may read replies about a path, and whose pages
//! may use its fonts and modules. <https://fetch.spec.whatwg.org/#http-cors-protocol>
//!
//! A path that every origin may read has a prepared header line, and costs nothing. A path for
//! named origins has `Vary: Origin` there, and its entry holds the matching rules; only a request
//! with an `Origin` is compared with them.

use globset::{GlobSet, GlobSetBuilder};

use super::config::{ConfigError, CorsRule};
use super::rules::{EVERYWHERE, add_glob, built};

/// Rules for origins, compiled.
#[derive(Debug)]
pub(super) struct Cors {
    globs: GlobSet,
    /// The origin of each glob, in the same order.
    origins: Vec<Origin>,
    /// The rules for every path.
    everywhere: Vec<usize>,
}

/// The origins that may read a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Readers {
    /// The site's own pages only.
    #[default]
    Own,
    All,
    /// Origins of the rules whose bits are set.
    Named(u64),
}

#[derive(Debug, PartialEq, Eq)]
enum Origin {
    Any,
    One(Box<str>),
    /// Any name between the two parts, as in `https://*.example.org`.
    Between(Box<str>, Box<str>),
}

/// One bit per rule.
const RULES_MAX: usize = 64;

impl Cors {
    /// # Errors
    /// The first invalid rule, and the reason.
    pub(super) fn new(rules: &[CorsRule]) -> Result<Cors, ConfigError> {
        let mut globs = GlobSetBuilder::new();
        let mut origins = Vec::new();
        for (at, CorsRule { glob, origin }) in rules.iter().enumerate() {
            let wrong =
                |why: &str| ConfigError(format!("the origin {origin:?} cannot be used: {why}"));
            if at >= RULES_MAX {
                return Err(wrong("a site has 64 of these rules at most"));
            }
            add_glob(&mut globs, glob)?;
            origins.push(Origin::parse(origin).map_err(wrong)?);
        }
        let everywhere = (0..rules.len()).filter(|at| rules[*at].glob == EVERYWHERE);
        Ok(Cors { globs: built(globs)?, origins, everywhere: everywhere.collect() })
    }

    /// The rules for a path (no slash first).
    pub(super) fn rules(&self, path: &str) -> Vec<usize> {
        self.globs.matches(path)
    }

    /// The rules for replies without a path.
    pub(super) fn rules_everywhere(&self) -> Vec<usize> {
        self.everywhere.clone()
    }

    /// The readers of a path (no slash first).
    pub(super) fn readers(&self, path: &str) -> Readers {
        self.readers_by(&self.rules(path))
    }

    /// The readers of a reply without a path.
    pub(super) fn readers_everywhere(&self) -> Readers {
        self.readers_by(&self.everywhere)
    }

    fn readers_by(&self, rules: &[usize]) -> Readers {
        if rules.is_empty() {
            return Readers::Own;
        }
        if rules.iter().any(|rule| self.origins[*rule] == Origin::Any) {
            return Readers::All;
        }
        Readers::Named(rules.iter().fold(0, |bits, rule| bits | 1 << rule))
    }

    /// True if `readers` includes this value of `Origin`.
    pub(super) fn admits(&self, readers: Readers, origin: &[u8]) -> bool {
        let Readers::Named(bits) = readers else {
            return readers == Readers::All;
        };
        let named = self.origins.iter().enumerate();
        let mut named = named.filter(|(at, _)| bits & 1 << at != 0);
        named.any(|(_, named)| named.is(origin))
    }
}

impl Readers {
    /// Header lines of every reply that these origins may read.
    pub(super) fn lines(self) -> &'static str {
        match self {
            Readers::Own => "",
            Readers::All => "Access-Control-Allow-Origin: *\r\n",
            Readers::Named(_) => "Vary: Origin\r\n",
        }
    }
}

impl Origin {
    /// Parses an origin as browsers write it: in small letters, without a slash, and without the
    /// default port of its scheme.
    fn parse(text: &str) -> Result<Origin, &'static str> {
        if text == "*" {
            return Ok(Origin::Any);
        }
        let how = "an origin is written as browsers send it, such as https://app.example.org, \
                   https://*.example.org or http://localhost:3000; * is every one";
        let (scheme, name) = text.split_once("://").ok_or(how)?;
        let below = name.strip_prefix("*.");
        let is_origin_byte = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._:[]+".contains(&byte)
        };
        let name_bytes = below.unwrap_or(name).bytes();
        let is_right = !scheme.is_empty()
            && !name.is_empty()
            && scheme.bytes().chain(name_bytes).all(is_origin_byte);
        let has_default_port = scheme == "https" && name.ends_with(":443")
            || scheme == "http" && name.ends_with(":80");
        match below {
            _ if !is_right => Err(how),
            _ if has_default_port => Err("browsers leave out the port of the scheme"),
            Some(below) => {
                Ok(Origin::Between(format!("{scheme}://").into(), format!(".{below}").into()))
            }
            None => Ok(Origin::One(text.into())),
        }
    }

    fn is(&self, origin: &[u8]) -> bool {
        match self {
            Origin::Any => true,
            Origin::One(one) => origin == one.as_bytes(),
            Origin::Between(scheme, suffix) => origin
                .strip_prefix(scheme.as_bytes())
                .and_then(|rest| rest.strip_suffix(suffix.as_bytes()))
                .is_some_and(|name| !name.is_empty() && name.iter().all(is_name_byte)),
        }
    }
}

/// True for a byte of a host name as browsers write it.
fn is_name_byte(byte: &u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._".contains(byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cors(rules: &[(&str, &str)]) -> Result<Cors, ConfigError> {
        let rule =
            |&(glob, origin): &(&str, &str)| CorsRule { glob: glob.into(), origin: origin.into() };
        Cors::new(&rules.iter().map(rule).collect::<Vec<_>>())
    }

    #[test]
    fn origins_are_compared_as_browsers_write_them() {
        let rules = cors(&[
            ("**", "https://a.org"),
            ("**", "http://localhost:3000"),
            ("*.woff2", "https://*.b.org"),
        ]);
        let rules = rules.unwrap();
        let admits =
            |path: &str, origin: &str| rules.admits(rules.readers(path), origin.as_bytes());
        for (path, origin, is_admitted) in [
            ("a/b", "https://a.org", true),
            ("a/b.woff2", "https://a.org", true),
            ("x", "http://localhost:3000", true),
            ("x", "http://localhost:3001", false),
            ("x", "http://a.org", false),
            ("x", "https://a.org.evil.org", false),
            ("x", "null", false),
            ("x", "", false),
            ("x", "https://c.b.org", false),
            ("x.woff2", "https://c.b.org", true),
            ("x.woff2", "https://c.d.b.org", true),
            ("x.woff2", "https://b.org", false),
            ("x.woff2", "https://.b.org", false),
            ("x.woff2", "https://evil/.b.org", false),
            ("x.woff2", "https://evil?.b.org", false),
            ("x.woff2", "https://evil#.b.org", false),
            ("x.woff2", "https://evil:1@c.b.org", false),
            ("x.woff2", "http://c.b.org", false),
            ("x.woff2", "https://notb.org", false),
        ] {
            assert_eq!(admits(path, origin), is_admitted, "{path} {origin}");
        }
        assert_eq!(rules.readers_everywhere(), Readers::Named(0b11));
        assert_eq!(rules.readers("a.woff2"), Readers::Named(0b111));
        let all = cors(&[("**", "https://a.org"), ("*.woff2", "*")]).unwrap();
        assert_eq!(all.readers("a.woff2"), Readers::All);
        assert_eq!(cors(&[("*.js", "*")]).unwrap().readers("a"), Readers::Own);
    }

    #[test]
    fn an_origin_that_never_comes_is_refused() {
        for origin in [
            "",
            "null",
            "a.org",
            "https://",
            "https://a.org/",
            "https://A.org",
            "https://a.org:443",
            "http://a.org:80",
            "https://*",
            "https://a.*.org",
            "https://a b",
            "https://a.org, https://b.org",
            "https://bücher.example",
        ] {
            assert!(cors(&[("**", origin)]).is_err(), "{origin}");
        }
        let many = vec![("**", "https://a.org"); RULES_MAX + 1];
        assert!(cors(&many[..RULES_MAX]).is_ok() && cors(&many).is_err());
    }
}
