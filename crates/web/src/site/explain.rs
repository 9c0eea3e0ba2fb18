use std::path::PathBuf;

use super::Site;
use super::rules::is_coding;

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

/// Rules by their list and their place in it, from 0.
pub(crate) type AppliedRules = Vec<(RuleList, usize)>;

impl Site {
    /// The file that has just answered for a path with this status, if one has, and the rules that
    /// hold for the reply.
    pub(crate) fn explain(&self, path: &str, status: u16) -> (Option<PathBuf>, AppliedRules) {
        let mut applied = Vec::new();
        let mut add = |list, rules: &mut dyn Iterator<Item = usize>| {
            applied.extend(rules.map(|at| (list, at)));
        };
        let own = path.trim_start_matches('/');
        let answers = |path: &str| self.cache.table.get(self.key(path)).filter(|_| status == 200);
        let record = answers(path);
        let fallback = self.fallback().filter(|_| record.is_none());
        let fallback = fallback.and_then(answers);
        add(RuleList::SpaFallback, &mut fallback.iter().map(|_| 0));
        let record = record.or(fallback);
        let source = record.as_ref().map(|record| &*record.survey.source);
        let access_at = |at| self.access.as_ref().filter(|_| status == at);
        let denied = access_at(404).and_then(|access| access.denied.last(own));
        add(RuleList::Deny, &mut denied.into_iter());
        let area = access_at(401).and_then(|access| access.rule(own, &self.config));
        add(RuleList::BasicAuth, &mut area.into_iter());
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
        for rule in self.rules.in_force(file, has_file) {
            match headers.get(rule) {
                Some((at, _)) => add(RuleList::Headers, &mut [*at].into_iter()),
                None => {
                    let at = rule - headers.len();
                    add(RuleList::CacheRules, &mut [at].into_iter());
                }
            }
        }
        let of_cors = self.rules.cors().map(|cors| cors.rules(file));
        add(RuleList::Cors, &mut of_cors.into_iter().flatten());
        let file = source.map(|source| self.config.root.join(source));
        (file, applied)
    }
}
