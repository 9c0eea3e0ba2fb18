use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use session::Now;

use super::access::Access;
use super::config::{CacheRule, ConfigError, CorsRule, HeaderRule, SiteConfig};
use super::error_pages::ErrorPage;
use super::rules::Rules;

/// Objects shared by many sites of a server, because its hosts inherit their configuration:
/// compiled rules take tens of KiB. One of each kind per configuration.
#[derive(Debug, Default)]
pub(super) struct Shared {
    rules: Mutex<HashMap<RuleLists, Arc<Rules>>>,
    access: Mutex<HashMap<AccessLists, Arc<Access>>>,
    /// Error pages outside the root, with their status and type.
    pub(super) pages: Mutex<HashMap<(PathBuf, u16, String), Arc<ErrorPage>>>,
}

type RuleLists = (Vec<HeaderRule>, Vec<CacheRule>, Vec<(String, String)>, Vec<CorsRule>);
type AccessLists = (Vec<String>, Vec<(String, PathBuf)>);

impl Shared {
    /// The rules of a configuration.
    ///
    /// # Errors
    /// The first invalid rule, and the reason.
    pub(super) fn rules_of(&self, config: &SiteConfig) -> Result<Arc<Rules>, ConfigError> {
        let lists = (
            config.headers.clone(),
            config.cache_rules.clone(),
            config.mime_types.clone(),
            config.cors.clone(),
        );
        let mut known = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rules) = known.get(&lists) {
            return Ok(Arc::clone(rules));
        }
        let rules = Rules::new(&config.headers, &config.cache_rules, &config.mime_types)?;
        let rules = Arc::new(rules.with_cors(&config.cors)?);
        known.insert(lists, Arc::clone(&rules));
        Ok(rules)
    }

    /// The access rules of a configuration, if it has any.
    ///
    /// # Errors
    /// The first invalid rule or password file, and the reason.
    pub(super) fn access_of(
        &self,
        config: &SiteConfig,
        now: Now,
    ) -> Result<Option<Arc<Access>>, ConfigError> {
        if config.deny.is_empty() && config.basic_auth.is_empty() {
            return Ok(None);
        }
        let lists = (config.deny.clone(), config.basic_auth.clone());
        let mut known = self.access.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(access) = known.get(&lists) {
            return Ok(Some(Arc::clone(access)));
        }
        let access = Arc::new(Access::new(config, now)?);
        known.insert(lists, Arc::clone(&access));
        Ok(Some(access))
    }
}
