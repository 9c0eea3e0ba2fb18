use std::sync::Arc;

use session::Now;

use super::access::private;
use super::config::ConfigError;
use super::entry::Entry;
use super::open::{Blocking, Miss};
use super::{Moment, Site, listing};
use crate::lookup::Lookup;

/// Generated and fallback pages of the site.
impl Site {
    pub(super) fn listing(
        &self,
        lookup: &Lookup<'_>,
        moment: Moment,
        blocking: Blocking,
    ) -> Result<Arc<Entry>, Miss> {
        if !self.config.listing {
            return Err(Miss::Directory);
        }
        let is_fresh = |made_ns| !self.is_due(made_ns, moment);
        if let Some(entry) = self.cache.listings.get(self.number, lookup, is_fresh) {
            return Ok(entry);
        }
        if blocking == Blocking::Never {
            return Err(Miss::WouldBlock);
        }
        if !self.cache.listings.admit() {
            let why = "the listings that clients have not received yet are too many".to_owned();
            return Err(Miss::Failed(503, why));
        }
        let root = self.current_root(moment, blocking)?;
        let is_shown = |path: &str| {
            let is_visible =
                self.config.hidden || !path.rsplit('/').next().unwrap_or(path).starts_with('.');
            is_visible && !self.denies(path)
        };
        let page = self.with_descriptors(blocking, || listing::render(&root, lookup, is_shown))?;
        let page = self.cache.listings.hold(page);
        let path = lookup.path.trim_start_matches('/');
        let address_area = self.rule_of_address(path);
        let lines = self.rules.lines(path);
        let lines = if address_area.is_some() { private(&lines) } else { lines };
        let mut made = listing::entry(page, &lines, lookup, moment.since_epoch);
        made.area = self.rule_of_file(path);
        made.address_area = address_area;
        made.readers = self.rules.readers(path);
        Ok(self.cache.listings.put(self.number, lookup, Arc::new(made), moment.ns))
    }

    pub(super) fn check_fallback(&mut self, now: Now) -> Result<(), ConfigError> {
        let Some(fallback) = self.config.spa_fallback.take() else {
            return Ok(());
        };
        let mut path = fallback.trim_start_matches('/').to_owned();
        let look = |path: &str| self.record_at(self.key(path), self.moment(now), Blocking::Allowed);
        let mut looked = look(&path);
        // With clean URLs look up its address, so that no route is redirected.
        if let (Err(Miss::Moved(address)), true) = (&looked, self.config.clean_urls) {
            path.clone_from(address);
            looked = look(&path);
        }
        match looked {
            Ok(_) => {
                self.config.spa_fallback = Some(path);
                Ok(())
            }
            Err(_) => Err(ConfigError(format!(
                "the fallback {fallback:?} is not a file that this site serves; it must be a path \
                 within the root, such as index.html"
            ))),
        }
    }
}
