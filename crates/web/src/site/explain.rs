use std::path::PathBuf;
use std::sync::Arc;

use session::Now;

use super::Site;
use super::access::{Access, NO_FILE};
use super::open::{Blocking, Miss};
use super::rules::is_coding;
use super::survey::clean_addresses;

/// A list of rules, of a [`VirtualHost`](crate::VirtualHost) or a
/// [`SiteConfig`](crate::SiteConfig).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleList {
    /// `VirtualHost::names`
    Names,
    /// `VirtualHost::aliases`
    Aliases,
    /// `VirtualHost::redirects`
    Redirects,
    /// `SiteConfig::deny`
    Deny,
    /// `SiteConfig::basic_auth`
    BasicAuth,
    /// `SiteConfig::spa_fallback`, the only one of its list.
    SpaFallback,
    /// `SiteConfig::compress`: the file is compressed after its first request.
    Compress,
    /// `SiteConfig::error_pages`
    ErrorPages,
    /// `SiteConfig::mime_types`
    MimeTypes,
    /// `SiteConfig::headers`
    Headers,
    /// `SiteConfig::cache_rules`
    CacheRules,
    /// `SiteConfig::cors`
    Cors,
}

/// Rules by list and index in it.
pub(crate) type AppliedRules = Vec<(RuleList, usize)>;

impl Site {
    /// The file that has just answered a path with this status, if any, and the rules that apply to
    /// the reply. `None`: no file can have this path.
    pub(crate) fn explain(
        &self,
        path: Option<&str>,
        status: u16,
        now: Now,
    ) -> (Option<PathBuf>, AppliedRules) {
        let mut applied = Vec::new();
        let mut add = |list, rules: &mut dyn Iterator<Item = usize>| {
            applied.extend(rules.map(|at| (list, at)));
        };
        let own = path.unwrap_or(NO_FILE).trim_start_matches('/');
        let known = |path: &str| {
            let record = self.cache.table.get(self.key(path));
            record.filter(|_| [200, 401].contains(&status))
        };
        // A rewrite serves a directory or page from another address.
        let directory = format!("{own}/");
        let moved = [&*directory, own.trim_end_matches('/')];
        let mut moved = moved.into_iter().chain(clean_addresses(own, &self.config.index));
        let record = known(own).or_else(|| moved.find_map(known));
        let fallback = self.fallback().filter(|_| record.is_none() && !self.lists(own, now));
        let fallback = fallback.and_then(known);
        let access_at = |at| self.access.as_ref().filter(|_| status == at);
        let of_file = |access: &Arc<Access>| {
            let answers = record.as_ref().or(fallback.as_ref())?;
            access.protected.last(&answers.survey.source)
        };
        let of_path = access_at(401).and_then(|access| access.rule(own, &self.config));
        let area = of_path.or_else(|| access_at(401).and_then(of_file));
        add(RuleList::BasicAuth, &mut area.into_iter());
        let is_fallback = fallback.is_some() && of_path.is_none();
        add(RuleList::SpaFallback, &mut is_fallback.then_some(0).into_iter());
        let record = record.or(fallback).filter(|_| status == 200);
        let source = record.as_ref().map(|record| &*record.survey.source);
        let is_compressible = record.as_ref().is_some_and(|record| record.compressible.is_some());
        add(RuleList::Compress, &mut is_compressible.then_some(0).into_iter());
        let denied = access_at(404).and_then(|access| access.denied.last(own));
        add(RuleList::Deny, &mut denied.into_iter());
        let mut pages = self.config.error_pages.iter();
        let page = pages.position(|(of_status, _)| *of_status == status);
        add(RuleList::ErrorPages, &mut page.into_iter());

        let is_listing = status == 200 && source.is_none();
        let usual = self.usual_file(own);
        let file = match source {
            Some(source) => source,
            None if is_listing => own,
            None => &usual,
        };
        let of_type = source.and_then(|source| self.rules.type_rule(source));
        add(RuleList::MimeTypes, &mut of_type.into_iter());
        let headers = self.config.headers.iter().enumerate();
        let (codings, headers): (Vec<_>, Vec<_>) = headers.partition(|(_, rule)| is_coding(rule));
        let of_coding = source.and_then(|source| self.rules.coding_rule(source));
        let of_coding = of_coding.map(|rule| codings[rule].0);
        add(RuleList::Headers, &mut of_coding.into_iter());
        let has_file = source.is_some() || is_listing;
        let has_path = has_file || path.is_some();
        let in_force = if has_path {
            self.rules.in_force(file, has_file)
        } else {
            self.rules.in_force_everywhere()
        };
        for rule in in_force {
            match headers.get(rule) {
                Some((at, _)) => add(RuleList::Headers, &mut [*at].into_iter()),
                None => {
                    let at = rule - headers.len();
                    add(RuleList::CacheRules, &mut [at].into_iter());
                }
            }
        }
        let of_cors = self.rules.cors();
        let of_cors =
            of_cors.map(|cors| if has_path { cors.rules(file) } else { cors.rules_everywhere() });
        add(RuleList::Cors, &mut of_cors.into_iter().flatten());
        let file = source.map(|source| self.config.root.join(source));
        (file, applied)
    }

    /// True if a listing answers for the path.
    fn lists(&self, path: &str, now: Now) -> bool {
        let found = self.record_at(self.key(path), self.moment(now), Blocking::Allowed);
        self.config.listing && matches!(found, Err(Miss::Directory))
    }
}
