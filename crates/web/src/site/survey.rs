use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use session::FileStamp;

use super::entry::Entry;
use super::open::{Blocking, DiskLookup, Kind, Miss, Root, is_hidden};
use super::quiet::WAIT_MAX;
use super::table::{Key, Record, Survey};
use super::{Moment, Site, head, mime};
use crate::lookup::{Encoding, Encodings};

/// Attempts to open a file that keeps changing; then it is sent as read.
const CHANGING_MAX: u32 = 8;

/// Makes records from paths: surveys the files that exist for a path.
impl Site {
    /// The entry that answers for a path, through the table.
    pub(super) fn entry_at(
        &self,
        key: Key<'_>,
        accepts: Encodings,
        moment: Moment,
        blocking: Blocking,
    ) -> Result<Arc<Entry>, Miss> {
        let start = moment;
        let mut moment = moment;
        for _ in 0..CHANGING_MAX {
            let record = self.record_at(key, moment, blocking)?;
            if let Some(encoding) = record.variant_to_make(accepts) {
                self.queue_variant(&record, encoding, moment);
            }
            let id = record.best(accepts);
            let has_plain = record.survey.has_plain;
            if id.encoding.is_none() && !has_plain {
                return Err(Miss::OnlyCompressed);
            }
            let entry = match self.entry_of(&record, id, moment, blocking) {
                // The original answers in place of a variant that is unreadable or being written.
                Err(Miss::Forbidden | Miss::BeingWritten(_))
                    if id.encoding.is_some() && has_plain =>
                {
                    self.entry_of(&record, record.best(Encodings::NONE), moment, blocking)
                }
                done => done,
            };
            match entry {
                Ok(Some(entry)) => return Ok(entry),
                Ok(None) => self.drop_changed(&record),
                Err(Miss::BeingWritten(_)) if blocking == Blocking::Never => break,
                Err(Miss::BeingWritten(_)) if self.never_quiet(&record, moment) => break,
                Err(Miss::BeingWritten(left)) => {
                    let waited = Duration::from_nanos(moment.ns - start.ns);
                    let left = left.min(WAIT_MAX.saturating_sub(waited));
                    let waits = !left.is_zero();
                    match waits.then(|| self.wait_until_quiet(moment, left)).flatten() {
                        Some(later) => moment = later,
                        None => break,
                    }
                }
                Err(miss) => return Err(miss),
            }
        }
        if blocking == Blocking::Never {
            return Err(Miss::WouldBlock);
        }
        let record = self.record_at(key, moment, blocking)?;
        self.moving_entry(&record, accepts, moment)
    }

    /// The record of a path: from the table if it is fresh, else compared with the disk.
    pub(super) fn record_at(
        &self,
        key: Key<'_>,
        moment: Moment,
        blocking: Blocking,
    ) -> Result<Arc<Record>, Miss> {
        if is_hidden(key.path, self.config.hidden) || self.denies(key.path) {
            return Err(Miss::NotFound);
        }
        let root = self.current_root(moment, blocking)?;
        let known = self.cache.table.get(key).filter(|record| record.generation == root.generation);
        let disk = DiskLookup { root: &root, moment, blocking };
        let Some(known) = known else {
            let survey = self.with_descriptors(blocking, || self.survey(disk, key.path))?;
            return Ok(self.enroll(key, survey, &root, None, moment));
        };
        // Counts from the second request on, so that files requested once are evicted first.
        known.refer();
        if !self.is_record_due(&known, moment) {
            return Ok(known);
        }
        self.cache.counts.rechecks.fetch_add(1, Relaxed);
        match self.with_descriptors(blocking, || self.survey(disk, key.path)) {
            Ok(survey) if survey == *known.survey && known.settled => {
                known.confirm(moment.ns);
                Ok(known)
            }
            Ok(survey) if self.stands(&known, &survey, moment) => Ok(known),
            Ok(survey) => {
                self.drop_changed(&known);
                Ok(self.enroll(key, survey, &root, Some(&known), moment))
            }
            // One request checks where blocking is allowed. For the others the record may stand for
            // a second interval: the promise covers two.
            Err(Miss::WouldBlock)
                if blocking == Blocking::Never
                    && moment.ns.saturating_sub(known.checked_ns()) <= 2 * self.half_recheck_ns
                    && !known.claim(moment.ns, self.half_recheck_ns) =>
            {
                Ok(known)
            }
            // Whether the record is still valid is unknown.
            Err(miss @ (Miss::WouldBlock | Miss::OutOfDescriptors)) => Err(miss),
            Err(miss) => {
                self.drop_changed(&known);
                Err(miss)
            }
        }
    }

    /// Surveys the disk for a path: one lookup for the file, and one per variant. With clean URLs,
    /// a file with a better address gives [`Miss::Moved`] to it.
    fn survey(&self, disk: DiskLookup<'_>, path: &str) -> Result<Survey, Miss> {
        let surveyed = self.survey_at(disk, path);
        if !self.config.clean_urls {
            return surveyed;
        }
        let address = match &surveyed {
            Ok(survey) => self.clean_address(disk, path, &survey.source)?,
            Err(miss) => self.without_slash(disk, path, miss)?,
        };
        address.map_or(surveyed, |address| Err(Miss::Moved(address)))
    }

    /// The clean address of the file that answers for a path, if it differs: the directory for an
    /// index file, `a` for `a.html`, unless another file answers there.
    fn clean_address(
        &self,
        disk: DiskLookup<'_>,
        path: &str,
        source: &str,
    ) -> Result<Option<String>, Miss> {
        for address in clean_addresses(source, &self.config.index) {
            if address == path {
                return Ok(None);
            }
            if self.leads_to(disk, address, source)? {
                return Ok(Some(address.to_owned()));
            }
        }
        Ok(None)
    }

    /// The address `a` for `a/`, if no file answers for `a/` and `a.html` does for `a`.
    fn without_slash(
        &self,
        disk: DiskLookup<'_>,
        path: &str,
        miss: &Miss,
    ) -> Result<Option<String>, Miss> {
        let may_move = match miss {
            Miss::Directory => !self.config.listing,
            miss => *miss == Miss::NotFound,
        };
        let Some(name) = path.strip_suffix('/').filter(|_| may_move) else {
            return Ok(None);
        };
        let is_page = self.leads_to(disk, name, &page_of(name))?;
        Ok(is_page.then(|| name.to_owned()))
    }

    /// True if `source` is the file that answers for `path`.
    fn leads_to(&self, disk: DiskLookup<'_>, path: &str, source: &str) -> Result<bool, Miss> {
        match self.survey_at(disk, path) {
            Ok(survey) => Ok(*survey.source == *source),
            Err(miss @ (Miss::WouldBlock | Miss::OutOfDescriptors)) => Err(miss),
            Err(_) => Ok(false),
        }
    }

    /// The survey of a path, unless a rule denies the file that answers.
    fn survey_at(&self, disk: DiskLookup<'_>, path: &str) -> Result<Survey, Miss> {
        let survey = self.survey_disk(disk, path)?;
        if self.denies(&survey.source) {
            return Err(Miss::NotFound);
        }
        Ok(survey)
    }

    fn survey_disk(&self, disk: DiskLookup<'_>, path: &str) -> Result<Survey, Miss> {
        let miss = match self.source(disk, path) {
            Ok((source, plain)) => {
                let variants = self.variants(disk, &source, Some(&plain))?;
                return Ok(Survey { source: source.into(), has_plain: true, plain, variants });
            }
            Err(miss) => miss,
        };
        for source in self.only_compressed(path, &miss) {
            let variants = self.variants(disk, &source, None)?;
            if let Some(plain) = variants.into_iter().flatten().next() {
                return Ok(Survey { source: source.into(), has_plain: false, plain, variants });
            }
        }
        Err(miss)
    }

    /// Files that would answer for a missing path, and may exist in compressed form. Names without
    /// an extension (application routes, probes of scanners) are not worth the lookups.
    fn only_compressed(&self, path: &str, miss: &Miss) -> Vec<String> {
        let mut sources = match miss {
            Miss::NotFound if mime::extension(path).is_some() => vec![path.to_owned()],
            Miss::Directory => {
                let index = self.config.index.iter();
                index.map(|name| format!("{path}{name}")).collect()
            }
            _ => Vec::new(),
        };
        let is_missing = matches!(miss, Miss::NotFound | Miss::Moved(_));
        sources.extend(self.page(path).filter(|_| is_missing));
        sources
    }

    /// The variants of a file; if `plain` exists, only those that are not older.
    fn variants(
        &self,
        disk: DiskLookup<'_>,
        source: &str,
        plain: Option<&FileStamp>,
    ) -> Result<[Option<FileStamp>; 3], Miss> {
        let mut variants = [None; 3];
        // A file that is itself compressed has no variants.
        if !self.config.precompressed || self.rules.coding(source).is_some() {
            return Ok(variants);
        }
        if !self.may_have_variants(disk, source)? {
            return Ok(variants);
        }
        for (variant, encoding) in variants.iter_mut().zip(Encoding::ALL) {
            let name = format!("{source}{}", encoding.suffix());
            *variant = match disk.stat(&name) {
                // An older variant was made from an older state of the original.
                Ok((Kind::File, stamp)) => Some(stamp)
                    .filter(|variant| plain.is_none_or(|plain| is_as_new(variant, plain))),
                Err(miss @ (Miss::WouldBlock | Miss::OutOfDescriptors)) => return Err(miss),
                _ => None,
            };
        }
        Ok(variants)
    }

    /// The file that answers for a path: the file itself, or the first existing index file of a
    /// directory.
    fn source(&self, disk: DiskLookup<'_>, path: &str) -> Result<(String, FileStamp), Miss> {
        if !(path.is_empty() || path.ends_with('/')) {
            let miss = match disk.stat(path) {
                Ok((Kind::File, stamp)) => return Ok((path.to_owned(), stamp)),
                Ok((Kind::Directory, _)) => Miss::Moved(format!("{path}/")),
                Err(miss) => miss,
            };
            let is_missing = matches!(miss, Miss::NotFound | Miss::Moved(_));
            let Some(page) = self.page(path).filter(|_| is_missing) else {
                return Err(miss);
            };
            return match disk.stat(&page) {
                Ok((Kind::File, stamp)) => Ok((page, stamp)),
                Ok((Kind::Directory, _)) | Err(Miss::NotFound) => Err(miss),
                Err(miss) => Err(miss),
            };
        }
        for name in &self.config.index {
            let index = format!("{path}{name}");
            match disk.stat(&index) {
                Ok((Kind::File, stamp)) => return Ok((index, stamp)),
                Ok((Kind::Directory, _)) | Err(Miss::NotFound) => {}
                Err(miss) => return Err(miss),
            }
        }
        disk.stat(path)?;
        Err(Miss::Directory)
    }

    /// With clean URLs, the page that answers for a path without a file.
    fn page(&self, path: &str) -> Option<String> {
        let may_be = self.config.clean_urls && !path.ends_with('/') && !path.is_empty();
        (may_be && !path.ends_with(PAGE_SUFFIX)).then(|| page_of(path))
    }

    fn enroll(
        &self,
        key: Key<'_>,
        survey: Survey,
        root: &Root,
        before: Option<&Record>,
        moment: Moment,
    ) -> Arc<Record> {
        // An unsettled stamp may hide another change, so the record is made anew after this
        // interval.
        let unsettled =
            survey.stamps().filter(|stamp| !head::is_settled(*stamp, moment.since_epoch));
        let check_again_after =
            unsettled.map(|stamp| head::check_again_after(stamp, moment.since_epoch)).min();
        let compressible = self.compressible(&survey, check_again_after.is_none());
        let mut record =
            Record::new(key, survey, root.generation, check_again_after, before, moment.ns);
        record.compressible = compressible;
        let record = Arc::new(record);
        let mut holdings = self.holdings();
        if record.generation != self.generation.load(Relaxed) {
            return record;
        }
        let (record, garbage) = holdings.enroll(&self.cache.table, record);
        drop(holdings);
        drop(garbage);
        record
    }

    fn drop_changed(&self, record: &Record) {
        self.cache.counts.changed.fetch_add(1, Relaxed);
        let garbage = self.holdings().drop_record(&self.cache.table, record);
        drop(garbage);
    }

    /// The root, checked when due. If its path leads to another directory (a new release),
    /// everything known is dropped.
    pub(super) fn current_root(
        &self,
        moment: Moment,
        blocking: Blocking,
    ) -> Result<Arc<Root>, Miss> {
        let root = Arc::clone(&self.root.read().unwrap_or_else(PoisonError::into_inner));
        if !self.is_due(self.root_checked_ns.load(Relaxed), moment) {
            return Ok(root);
        }
        match self.with_descriptors(blocking, || root.is_at(&self.config.root, blocking)) {
            Err(miss @ (Miss::WouldBlock | Miss::OutOfDescriptors)) => Err(miss),
            // If the path leads to nothing readable, the old site stays.
            Ok(true) | Err(_) => {
                self.root_checked_ns.fetch_max(moment.ns, Relaxed);
                Ok(root)
            }
            Ok(false) if blocking == Blocking::Never => Err(Miss::WouldBlock),
            Ok(false) => Ok(self.follow_root(&root, moment)),
        }
    }

    fn follow_root(&self, old: &Arc<Root>, moment: Moment) -> Arc<Root> {
        let generation = old.generation + 1;
        let roots = &self.cache.roots;
        let Ok(new) = roots.open(&self.config.root, self.config.follow_links_out, generation)
        else {
            return Arc::clone(old);
        };
        let mut root = self.root.write().unwrap_or_else(PoisonError::into_inner);
        if root.generation < generation {
            *root = Arc::new(new);
            let mut holdings = self.holdings();
            self.generation.store(generation, Relaxed);
            let garbage = holdings.start_over(&self.cache.table, self.number);
            drop(holdings);
            self.cache.listings.clear(self.number);
            self.root_checked_ns.fetch_max(moment.ns, Relaxed);
            drop(garbage);
        }
        Arc::clone(&root)
    }
}

/// Extension that clean URLs omit.
const PAGE_SUFFIX: &str = ".html";

/// Clean URLs of a page, best first: the directory for an index file, `a` for `a.html`.
pub(crate) fn clean_addresses<'a>(
    source: &'a str,
    index: &[String],
) -> impl Iterator<Item = &'a str> + use<'a> {
    let stem = source.strip_suffix(PAGE_SUFFIX);
    let (directory, name) = source.split_at(source.rfind('/').map_or(0, |slash| slash + 1));
    let is_index = index.iter().any(|index| index == name);
    stem.and(is_index.then_some(directory)).into_iter().chain(stem)
}

pub(super) fn page_of(path: &str) -> String {
    format!("{path}{PAGE_SUFFIX}")
}

/// True if a variant is not older than its original, in whole seconds: compressors copy the time,
/// and some (`brotli`) truncate it.
fn is_as_new(variant: &FileStamp, plain: &FileStamp) -> bool {
    let second = |stamp: &FileStamp| stamp.mtime_ns.div_euclid(1_000_000_000);
    second(variant) >= second(plain)
}
