use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use session::{Now, SharedFile};

use super::config::SiteError;
use super::entry::{Body, Entry};
use super::head::Description;
use super::open::{Blocking, Miss};
use super::read::{Reading, read_whole};
use super::{Moment, Site, head, listing};
use crate::lookup::Lookup;

/// An error page is held in memory as long as the site is.
const ERROR_PAGE_LEN_MAX: u64 = 1 << 20;

/// The site's other pages: listings, error pages, the fallback.
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
        if let Some(entry) = self.listings.get(lookup, is_fresh) {
            return Ok(entry);
        }
        if blocking == Blocking::Never {
            return Err(Miss::WouldBlock);
        }
        if !self.listings.have_room() {
            let why = "the listings that clients have not received yet are too many".to_owned();
            return Err(Miss::Failed(503, why));
        }
        let root = self.current_root(moment, blocking)?;
        let page = self.with_descriptors(|| listing::render(&root, lookup, self.config.hidden))?;
        let page = self.listings.hold(page);
        let made = listing::entry(page, &self.rules, lookup, moment.since_epoch);
        Ok(self.listings.put(lookup, Arc::new(made), moment.ns))
    }

    pub(super) fn check_fallback(&mut self, now: Now) -> Result<(), SiteError> {
        let Some(fallback) = self.config.spa_fallback.take() else {
            return Ok(());
        };
        let path = fallback.trim_start_matches('/').to_owned();
        match self.record_at(self.key(&path), self.moment(now), Blocking::Allowed) {
            Ok(_) => {
                self.config.spa_fallback = Some(path);
                Ok(())
            }
            Err(_) => Err(SiteError::Fallback(fallback)),
        }
    }

    pub(super) fn read_error_pages(&self, now: Now) -> Result<Vec<(u16, Arc<Entry>)>, SiteError> {
        let pages = self.config.error_pages.iter().map(|(status, path)| {
            if !(400..=599).contains(status) {
                return Err(SiteError::ErrorPageStatus(*status));
            }
            let path = self.config.root.join(path);
            let error = |error| SiteError::ErrorPage {
                status: *status,
                path: path.clone(),
                error,
            };
            Ok((*status, self.read_error_page(&path, now).map_err(error)?))
        });
        pages.collect()
    }

    fn read_error_page(&self, path: &Path, now: Now) -> io::Result<Arc<Entry>> {
        let metadata = fs::metadata(path)?;
        if !metadata.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        if metadata.len() > ERROR_PAGE_LEN_MAX {
            let len = metadata.len();
            return Err(io::Error::other(format!(
                "{len} bytes are more than {ERROR_PAGE_LEN_MAX}"
            )));
        }
        let file = SharedFile::try_from(fs::File::open(path)?)?;
        let Ok(Reading::Whole(bytes)) = read_whole(&file, Blocking::Allowed) else {
            return Err(io::Error::other("it changed while it was read"));
        };
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let description = Description {
            content_type: self.content_type(name),
            encoding: None,
            len: bytes.len() as u64,
            etag: None,
            modified: head::modified(file.stamp(), now.since_epoch),
            vary: None,
            extra: &self.rules.lines(name),
        };
        Ok(Arc::new(head::entry(&description, Body::Memory(bytes))))
    }
}
