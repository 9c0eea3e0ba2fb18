use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use session::{FileStamp, Now, SharedFile};

use super::config::ConfigError;
use super::open::{Blocking, Miss};
use super::quiet::{CHECK_AGAIN_MIN, QUIET_PERIOD, age};
use super::read::{Reading, read_whole};
use super::{Moment, Site, head};
use crate::error_page::Page;

/// Longest error page; it stays in memory as long as the site.
const LEN_MAX: u64 = 1 << 20;

/// The operator's page for one status.
#[derive(Debug)]
pub(super) struct ErrorPage {
    status: u16,
    /// A relative path begins at the current root.
    path: PathBuf,
    /// `None`: the page cannot be read, so the built-in one is sent.
    shown: ArcSwapOption<Page>,
    /// Time of the last check, in nanoseconds since the site opened.
    checked_ns: AtomicU64,
    /// Held by the request that checks the page.
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Stamp of the current page. `None`: another state could have the same one.
    stamp: Option<FileStamp>,
    /// Time at which the current page was last confirmed.
    confirmed_ns: u64,
    /// An empty file, perhaps one being written, and the time since when it is empty.
    emptied: Option<(FileStamp, u64)>,
}

/// Error pages: read when the site is opened, and checked when due by the requests that send them.
/// A request that may not wait for the disk sends the known page and leaves the check to the next
/// one that may.
impl Site {
    /// The operator's page for an error status, if it exists and is readable.
    pub(crate) fn error_page(&self, status: u16, now: Now) -> Option<Arc<Page>> {
        let page = self.error_pages.iter().find(|page| page.status == status)?;
        _ = self.look_at(page, self.moment(now), Blocking::Never);
        page.shown.load_full()
    }

    /// Checks the 404 page, if it is due; where blocking is allowed, all of them.
    ///
    /// # Errors
    /// Only [`Miss::WouldBlock`].
    pub(super) fn look_at_error_pages(
        &self,
        miss: &Miss,
        moment: Moment,
        blocking: Blocking,
    ) -> Result<(), Miss> {
        let status = match miss {
            Miss::NotFound => 404,
            Miss::Forbidden | Miss::Directory => 403,
            Miss::OnlyCompressed => 406,
            Miss::OutOfDescriptors => 503,
            Miss::Failed(status, _) => *status,
            Miss::WouldBlock | Miss::BeingWritten(_) | Miss::Moved(_) => return Ok(()),
        };
        let is_meant =
            |page: &&Arc<ErrorPage>| page.status == status || blocking == Blocking::Allowed;
        let mut pages = self.error_pages.iter().filter(is_meant);
        pages.try_for_each(|page| self.look_at(page, moment, blocking))
    }

    /// # Errors
    /// Only [`Miss::WouldBlock`].
    fn look_at(&self, page: &ErrorPage, moment: Moment, blocking: Blocking) -> Result<(), Miss> {
        if !self.is_due(page.checked_ns.load(Relaxed), moment) {
            return Ok(());
        }
        let mut seen = match page.seen.try_lock() {
            Ok(seen) => seen,
            Err(TryLockError::Poisoned(seen)) => seen.into_inner(),
            // Another request checks the page.
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        let read = self.current_root(moment, blocking).and_then(|root| {
            let file = self.with_descriptors(blocking, || root.open_page(&page.path, blocking))?;
            self.read_page(page, &file, &mut seen, moment, blocking)
        });
        let mut checked_ns = moment.ns;
        match read {
            Ok(()) => {}
            Err(Miss::WouldBlock) => return Err(Miss::WouldBlock),
            // The page itself is not at fault.
            Err(Miss::OutOfDescriptors | Miss::Failed(503, _)) => {}
            Err(Miss::BeingWritten(_)) => {
                let soon_ns = moment.ns + CHECK_AGAIN_MIN.as_nanos() as u64;
                checked_ns = soon_ns.saturating_sub(self.half_recheck_ns);
            }
            Err(miss) => {
                *seen = Seen { confirmed_ns: moment.ns, ..Seen::default() };
                self.lose(page, &miss);
            }
        }
        page.checked_ns.store(checked_ns, Relaxed);
        Ok(())
    }

    /// Reads the page if its file has changed. While a new state is being written, the previous
    /// page is kept, for the promised time at most.
    fn read_page(
        &self,
        page: &ErrorPage,
        file: &SharedFile,
        seen: &mut Seen,
        moment: Moment,
        blocking: Blocking,
    ) -> Result<(), Miss> {
        let stamp = file.stamp();
        if seen.stamp == Some(stamp) {
            seen.confirmed_ns = moment.ns;
            return Ok(());
        }
        check_page(file)?;
        let is_late = moment.ns.saturating_sub(seen.confirmed_ns) > 2 * self.half_recheck_ns;
        if !is_late && !seen.note(stamp, moment) {
            return Err(Miss::BeingWritten(QUIET_PERIOD));
        }
        match read_whole(file, blocking)? {
            Reading::Whole(bytes) => {
                let content_type = self.content_type(name_of(&page.path));
                page.shown.store(Some(Arc::new(Page::new(content_type, bytes))));
                *seen = Seen {
                    stamp: Some(stamp).filter(|it| head::is_settled(*it, moment.since_epoch)),
                    confirmed_ns: moment.ns,
                    emptied: None,
                };
                Ok(())
            }
            Reading::Changed => Err(Miss::BeingWritten(QUIET_PERIOD)),
            Reading::WouldBlock => Err(Miss::WouldBlock),
        }
    }

    fn lose(&self, page: &ErrorPage, miss: &Miss) {
        if page.shown.swap(None).is_none() {
            return;
        }
        self.cache.counts.error_pages_lost.fetch_add(1, Relaxed);
        let ErrorPage { status, path, .. } = page;
        let path = path.display();
        let why = why(miss);
        self.warn(&format!(
            "the error page for {status}, {path}, cannot be read any more: {why}; the built-in \
             one is sent"
        ));
    }

    /// The pages of the configuration. A page outside the root is held once for all sites.
    pub(super) fn open_error_pages(
        &self,
        moment: Moment,
    ) -> Result<Vec<Arc<ErrorPage>>, ConfigError> {
        let pages = self.config.error_pages.iter().map(|(status, path)| {
            if !(400..=599).contains(status) {
                let why = "only 400 to 599 are errors";
                return Err(ConfigError(format!("an error page for status {status}: {why}")));
            }
            let shared = &self.cache.shared.pages;
            let mut known = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let content_type = self.content_type(name_of(path)).to_owned();
            let key = (path.clone(), *status, content_type);
            if let Some(page) = known.get(&key) {
                return Ok(Arc::clone(page));
            }
            let opened = self.open_error_page(*status, path, moment);
            let page = Arc::new(opened.map_err(|miss| {
                let path = self.config.root.join(path);
                let path = path.display();
                let why = why(&miss);
                ConfigError(format!("the error page for {status}, {path}, cannot be read: {why}"))
            })?);
            if path.is_absolute() {
                known.insert(key, Arc::clone(&page));
            }
            Ok(page)
        });
        pages.collect()
    }

    fn open_error_page(&self, status: u16, path: &Path, moment: Moment) -> Result<ErrorPage, Miss> {
        let page = ErrorPage {
            status,
            path: path.to_owned(),
            shown: ArcSwapOption::empty(),
            checked_ns: AtomicU64::new(moment.ns),
            seen: Mutex::default(),
        };
        let root = self.current_root(moment, Blocking::Allowed)?;
        let file = root.open_page(path, Blocking::Allowed)?;
        check_page(&file)?;
        let Reading::Whole(bytes) = read_whole(&file, Blocking::Allowed)? else {
            let why = "it changed while it was read".to_owned();
            return Err(Miss::Failed(500, why));
        };
        let content_type = self.content_type(name_of(path));
        page.shown.store(Some(Arc::new(Page::new(content_type, bytes))));
        Ok(page)
    }
}

impl Seen {
    /// Notes a new state of the file. True once it is complete, as far as can be known.
    fn note(&mut self, stamp: FileStamp, moment: Moment) -> bool {
        if stamp.len > 0 {
            return age(stamp, moment.since_epoch) >= QUIET_PERIOD;
        }
        // A truncation changes the length before the times.
        let since_ns = match self.emptied {
            Some((emptied, since_ns)) if emptied == stamp => since_ns,
            _ => moment.ns,
        };
        self.emptied = Some((stamp, since_ns));
        Duration::from_nanos(moment.ns.saturating_sub(since_ns)) >= QUIET_PERIOD
    }
}

fn check_page(file: &SharedFile) -> Result<(), Miss> {
    let len = file.stamp().len;
    if len > LEN_MAX {
        let why = format!("{len} bytes are more than {LEN_MAX}");
        return Err(Miss::Failed(500, why));
    }
    Ok(())
}

fn name_of(path: &Path) -> &str {
    let name = path.file_name().and_then(|name| name.to_str());
    name.unwrap_or_default()
}

fn why(miss: &Miss) -> String {
    match miss {
        Miss::NotFound => "it is not there".to_owned(),
        Miss::Forbidden => "this user may not read it".to_owned(),
        Miss::Failed(_, why) => why.clone(),
        other => format!("{other:?}"),
    }
}
