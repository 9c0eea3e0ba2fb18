use std::path::{Path, PathBuf};
use std::sync::Arc;

use regex_automata::meta::Regex;
use regex_automata::nfa::thompson::WhichCaptures;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input, MatchKind, PatternSet};
use session::Now;

use super::Site;
use super::config::{ConfigError, SiteConfig};
use super::entry::Entry;
use super::open::is_hidden;
use super::rules::{EVERYWHERE, parsed_glob};
use super::survey::page_of;
use crate::lookup::Encoding;
use crate::password::Passwords;

/// Rules by path that apply before any lookup: denied paths, and areas with passwords. Neither
/// depends on the disk, so their replies reveal nothing about it.
#[derive(Debug)]
pub(super) struct Access {
    pub(super) denied: PathGlobs,
    pub(super) protected: PathGlobs,
    /// The area of each glob of `protected`, in the same order.
    areas: Vec<Arc<Area>>,
}

/// A part of the site that requires a password.
#[derive(Debug)]
pub(crate) struct Area {
    /// `WWW-Authenticate` with its CRLF. RFC 7617 2
    pub(crate) challenge: String,
    pub(crate) passwords: Passwords,
}

/// Placeholder for a path that no file can have.
pub(crate) const NO_FILE: &str = "?";

/// Globs that are matched with every name of a path, in one pass.
#[derive(Debug)]
pub(super) struct PathGlobs(Regex);

/// Limit on the compiled globs.
const REGEX_BYTES_MAX: usize = 64 << 20;

/// Limit on cached states, for each thread that matches concurrently.
const REGEX_CACHE_BYTES_MAX: usize = 4 << 20;

#[cfg(test)]
thread_local! {
    /// Bytes matched against globs so far.
    pub(super) static MATCHED_LEN: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Access {
    /// Compiles the rules and reads the password files.
    ///
    /// # Errors
    /// The first invalid rule or file, and the reason.
    pub(super) fn new(config: &SiteConfig, now: Now) -> Result<Access, ConfigError> {
        let mut areas: Vec<Arc<Area>> = Vec::new();
        let mut paths: Vec<&PathBuf> = Vec::new();
        for (_, path) in &config.basic_auth {
            let known = paths.iter().position(|known| *known == path);
            let area = match known {
                Some(at) => Arc::clone(&areas[at]),
                None => Arc::new(Area::open(path, areas.len(), now)?),
            };
            paths.push(path);
            areas.push(area);
        }
        let protected = config.basic_auth.iter().map(|(glob, _)| glob);
        Ok(Access {
            denied: PathGlobs::new(config.deny.iter())?,
            protected: PathGlobs::new(protected)?,
            areas,
        })
    }
}

impl Area {
    fn open(path: &Path, nth: usize, now: Now) -> Result<Area, ConfigError> {
        let wrong = |why: String| {
            ConfigError(format!("the password file {} cannot be used: {why}", path.display()))
        };
        let passwords = Passwords::open(path, now).map_err(wrong)?;
        // Browsers store one password per realm.
        let number = nth + 1;
        let challenge =
            format!("WWW-Authenticate: Basic realm=\"Restricted {number}\", charset=\"UTF-8\"\r\n");
        Ok(Area { challenge, passwords })
    }
}

impl SiteConfig {
    /// True if a file of this name below the root may be requested: neither hidden nor denied.
    pub fn shows(&self, name: &str) -> bool {
        let denied = PathGlobs::new(self.deny.iter());
        !is_hidden(name, self.hidden) && denied.is_ok_and(|globs| globs.last(name).is_none())
    }
}

impl PathGlobs {
    pub(super) fn new<'a>(
        globs: impl Iterator<Item = &'a String>,
    ) -> Result<PathGlobs, ConfigError> {
        let of_glob = |glob: &String| {
            let is_for_all = matches!(glob.trim_start_matches('/'), "" | "*" | "**" | "**/*");
            let glob = parsed_glob(if is_for_all { EVERYWHERE } else { glob })?;
            // A name ends before or after a slash, or with the path: these are the ends of "lines".
            let regex = glob.regex();
            Ok(format!("{}(?m:$|^)", regex.strip_suffix('$').unwrap_or(regex)))
        };
        let regexes = globs.map(of_glob).collect::<Result<Vec<_>, _>>()?;
        let syntax = syntax::Config::new().utf8(false).dot_matches_new_line(true);
        let config = Regex::config()
            .match_kind(MatchKind::All)
            .utf8_empty(false)
            .line_terminator(b'/')
            .nfa_size_limit(Some(REGEX_BYTES_MAX))
            // Match positions would cost memory per state for each of thousands of globs.
            .which_captures(WhichCaptures::None)
            .hybrid_cache_capacity(REGEX_CACHE_BYTES_MAX);
        let built = Regex::builder().syntax(syntax).configure(config).build_many(&regexes);
        built.map(PathGlobs).map_err(|error| ConfigError::glob("all globs together", error))
    }

    /// The last glob that matches one of the names of a path (no slash first): its directories with
    /// and without their slash, the path itself, and the original of a compressed variant. The cost
    /// is linear in the path, because any client may choose its length.
    pub(super) fn last(&self, path: &str) -> Option<usize> {
        let bare = path.trim_matches('/');
        let originals = Encoding::ALL.iter().filter_map(|of| bare.strip_suffix(of.suffix()));
        let originals = originals.filter_map(|original| self.last_in(original));
        self.last_in(&format!("{bare}/")).into_iter().chain(originals).max()
    }

    fn last_in(&self, text: &str) -> Option<usize> {
        #[cfg(test)]
        MATCHED_LEN.set(MATCHED_LEN.get() + text.len());
        let mut matching = PatternSet::new(self.0.pattern_len());
        let input = Input::new(text).anchored(Anchored::Yes);
        self.0.which_overlapping_matches(&input, &mut matching);
        matching.iter().next_back().map(|glob| glob.as_usize())
    }
}

impl Access {
    /// The last rule for a path and all files that may answer at it, whatever is on the disk.
    pub(super) fn rule(&self, path: &str, config: &SiteConfig) -> Option<usize> {
        let rules = &self.protected;
        // A name with a dot has an extension; a page with another one is checked when found.
        let name = path.trim_matches('/');
        let has_dot = name.rsplit('/').next().is_some_and(|name| name.contains('.'));
        let may_be_page = config.clean_urls && !has_dot;
        let page = may_be_page.then(|| page_of(name));
        let mut last = rules.last(path).max(page.and_then(|page| rules.last(&page)));
        let is_directory = path.is_empty() || path.ends_with('/');
        for index in config.index.iter().filter(|_| is_directory) {
            last = last.max(rules.last(&format!("{path}{index}")));
        }
        last
    }
}

impl Site {
    /// True if a path (no slash first) is denied.
    pub(super) fn denies(&self, path: &str) -> bool {
        let access = self.access.as_ref();
        access.is_some_and(|access| access.denied.last(path).is_some())
    }

    /// True if some area requires a password.
    #[inline]
    pub(crate) fn has_areas(&self) -> bool {
        self.areas().is_some()
    }

    fn areas(&self) -> Option<&Access> {
        let access = self.access.as_deref();
        access.filter(|access| !access.areas.is_empty())
    }

    /// The area of a path, by its last matching rule.
    pub(crate) fn area(&self, path: &str) -> Option<&Area> {
        let access = self.areas()?;
        let rule = access.rule(path.trim_start_matches('/'), &self.config);
        Some(&access.areas[rule?])
    }

    /// The last rule of an address (no slash first), including files that may answer there.
    pub(super) fn rule_of_address(&self, path: &str) -> Option<usize> {
        self.areas()?.rule(path, &self.config)
    }

    /// The area of the address of a rewrite's file. Unknown paths have none.
    pub(crate) fn area_of_address(&self, entry: &Entry, is_fallback: bool) -> Option<&Area> {
        let access = self.areas().filter(|_| !is_fallback)?;
        Some(&access.areas[entry.address_area?])
    }

    /// The last rule of a file itself, regardless of other files for its path.
    pub(super) fn rule_of_file(&self, path: &str) -> Option<usize> {
        self.areas()?.protected.last(path)
    }

    /// The area of the file found for a path, which may differ from the path's own: the path's last
    /// rule may belong to a page or index file that could answer there, but does not. The file for
    /// unknown paths has no earlier rule than the path.
    pub(crate) fn area_of(&self, path: &str, entry: &Entry, is_fallback: bool) -> Option<&Area> {
        let access = self.areas()?;
        let path = path.trim_start_matches('/');
        let is_asked = |rule: &usize| !is_fallback || Some(*rule) > access.rule(path, &self.config);
        Some(&access.areas[entry.area.filter(is_asked)?])
    }

    /// The name in verified credentials, for any area.
    pub(crate) fn user(&self, credentials: &[u8]) -> Option<Arc<[u8]>> {
        let mut areas = self.areas()?.areas.iter();
        areas.find_map(|area| area.passwords.user(credentials))
    }

    /// Checks the password files that are due, and reads the changed ones; blocks. True if one was
    /// due.
    pub(crate) fn refresh_passwords(&self, now: Now) -> bool {
        let recheck_every = self.config.recheck_every;
        let areas = self.access.iter().flat_map(|access| &access.areas);
        let due = areas.filter(|area| area.passwords.is_due(now, recheck_every));
        let looked = due.map(|area| area.passwords.refresh(now));
        looked.fold(false, |_, refreshed| {
            refreshed.err().into_iter().for_each(|why| self.warn(&why));
            true
        })
    }

    /// True if a password file is due for a check.
    pub(crate) fn is_due_for_passwords(&self, area: &Area, now: Now) -> bool {
        area.passwords.is_due(now, self.config.recheck_every)
    }

    /// The operator's header lines for a path; in an area they are made [`private`].
    pub(super) fn private(&self, path: &str, lines: String) -> String {
        if self.area(path).is_none() { lines } else { private(&lines) }
    }
}

/// Header lines that keep the reply out of shared caches, even if a rule says `public`.
/// RFC 9111 3.5
pub(crate) fn private(lines: &str) -> String {
    let is_cache_line = |line: &&str| line.to_ascii_lowercase().starts_with("cache-control:");
    let value = lines.split_inclusive("\r\n").find(is_cache_line);
    let value = value.map_or("", |line| line["cache-control:".len()..].trim());
    let directives = value.split(',').map(str::trim);
    let is_for_shared = |directive: &str| {
        let name = directive.split('=').next().unwrap_or_default();
        ["", "public", "s-maxage", "private"]
            .iter()
            .any(|shared| name.trim().eq_ignore_ascii_case(shared))
    };
    let kept: Vec<&str> = directives.filter(|directive| !is_for_shared(directive)).collect();
    let others = lines.split_inclusive("\r\n").filter(|line| !is_cache_line(line));
    let mut private: String = others.collect();
    private.push_str("Cache-Control: ");
    private.push_str(&[&["private"], &kept[..]].concat().join(", "));
    private.push_str("\r\n");
    private
}
