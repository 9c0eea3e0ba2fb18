//! The site table: what lies at a path, found without blocking when it can be, held open or in
//! memory within stated budgets, and never older than stated.
//!
//! ```text
//!   find ──▶ table ──hit──▶ entry in memory               one read lock, ~50 ns
//!              │ miss or due for a check
//!              ▼
//!           survey ──▶ record ──▶ open file ──▶ worth memory? ──▶ read ──▶ entry
//!           (openat2 of x, x.br, x.zst, x.gz)      no: entry with the open file
//! ```
//!
//! [`Site::find`] does all that only as far as the kernel's caches know the answer (`RESOLVE_CACHED`,
//! `RWF_NOWAIT`); where they do not, it says [`Found::WouldBlock`], and [`Site::load`] does the same
//! with leave to wait for the disk.
//!
//! **Freshness.** Each record is compared with the disk when it is used and was last compared more than
//! half of `recheck_every` ago, and so is the root directory itself; so a change is served at the latest
//! `recheck_every` after it. An open file is compared at each use. Bytes in memory were read between two
//! equal stamps and never change, and an entry's header is made from the same stamp. What changes
//! through a shared writable mapping shows when the kernel notes it (`msync(2)`), not before.
//!
//! **Memory.** Small files are held in memory and all files in the page cache under one budget each,
//! with one rule of admission ([`budget`]). A file that has neither place is read past the page cache.
//!
//! **Floods.** Names that do not exist are not remembered: each costs one look-up in the kernel's
//! own caches, or on a worker thread the first time. So random names cannot displace what exists.

mod budget;
mod config;
mod entry;
mod head;
mod ledger;
mod listing;
mod mime;
mod open;
mod read;
mod ring;
mod room;
mod rules;
mod sketch;
mod table;

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use session::{FileStamp, Now, SharedFile};

pub use config::{CacheRule, HeaderRule, SiteConfig, SiteError};
pub(crate) use entry::{Body, Entry, Found};

use crate::lookup::{Encoding, Encodings, Lookup};
use head::Description;
use ledger::{Garbage, Ledger};
use listing::Listings;
use open::{Blocking, Kind, Miss, Root, is_hidden};
use read::{Reading, read_whole};
use rules::Rules;
use sketch::Sketch;
use table::{Id, Key, Record, Survey, Table};

/// The files of one directory, ready to be served to any number of connections: put it in an `Arc`.
#[derive(Debug)]
pub struct Site {
    config: SiteConfig,
    rules: Rules,
    root: RwLock<Arc<Root>>,
    root_checked_ns: AtomicU64,
    /// Half the promised time, because two looks follow each other: the root's and the file's in it.
    recheck_ns: u64,
    opened_at: Instant,
    /// Makes the readings of unsettled files distinct, also from those of an earlier process.
    readings: AtomicU64,
    opened_since_epoch: Duration,
    table: Table,
    sketch: Sketch,
    ledger: Mutex<Ledger>,
    listings: Listings,
    error_pages: Vec<(u16, Arc<Entry>)>,
    counts: Counts,
}

/// Beside what table and ledger count.
#[derive(Debug, Default)]
struct Counts {
    misses: AtomicU64,
    would_block: AtomicU64,
    not_found: AtomicU64,
    rechecks: AtomicU64,
    changed: AtomicU64,
    out_of_descriptors: AtomicU64,
}

/// The moment of a request.
#[derive(Clone, Copy, Debug)]
struct Moment {
    /// Nanoseconds since the site opened.
    ns: u64,
    since_epoch: Duration,
}

/// A file that changes faster than it can be opened is tried this often.
const CHANGING_MAX: u32 = 4;

/// From this estimate on a file that waits for the disk is worth a trip to a worker to be read into
/// memory: a file that is asked for once never is, however much room there is.
const WORTH_LOADING: u8 = 2;

/// An error page is held in memory as long as the site is.
const ERROR_PAGE_LEN_MAX: u64 = 1 << 20;

/// For the sketch: what a file in memory weighs, about.
const MEAN_FILE_LEN: u64 = 16 << 10;

impl Site {
    /// Opens the root, compiles the rules, and reads the error pages.
    ///
    /// # Errors
    /// What is wrong with the configuration, and where.
    pub fn open(mut config: SiteConfig) -> Result<Site, SiteError> {
        // Kept as a path, not resolved: where it leads may change, and the site follows.
        config.root = std::path::absolute(&config.root)
            .map_err(|error| SiteError::Root(config.root.clone(), error))?;
        check_config(&config)?;
        let root = Root::open(&config.root, config.follow_links_out, 0)
            .map_err(|error| root_error(&config.root, error))?;
        let page_cache_budget = config
            .page_cache_budget
            .unwrap_or_else(|| room::page_cache_room(config.memory_budget));
        let now = Now::read();
        let mut site = Site {
            rules: Rules::new(&config.headers, &config.cache_rules)?,
            root: RwLock::new(Arc::new(root)),
            root_checked_ns: AtomicU64::new(0),
            recheck_ns: u64::try_from(config.recheck_every.as_nanos() / 2).unwrap_or(u64::MAX),
            opened_at: now.monotonic,
            readings: AtomicU64::new(0),
            opened_since_epoch: now.since_epoch,
            table: Table::new(),
            sketch: Sketch::new(config.memory_budget / MEAN_FILE_LEN),
            ledger: Mutex::new(Ledger::new(&config, page_cache_budget)),
            listings: Listings::default(),
            error_pages: Vec::new(),
            counts: Counts::default(),
            config,
        };
        site.check_fallback(now)?;
        site.error_pages = site.read_error_pages(now)?;
        Ok(site)
    }

    /// Answers without ever blocking on the disk, or says that it would have to.
    pub(crate) fn find(&self, lookup: &Lookup<'_>, now: Now) -> Found {
        let moment = self.moment(now);
        let key = self.key(lookup.path);
        let is_fresh = |checked_ns| !self.is_due(checked_ns, moment);
        if let Some((entry, id)) = self.table.hit(key, lookup.accepts, is_fresh) {
            self.sketch.touch(id.hash(), moment.ns);
            return Found::Entry(entry);
        }
        self.answer(lookup, moment, Blocking::Never)
    }

    /// Answers, waiting for the disk where it must.
    pub(crate) fn load(&self, lookup: &Lookup<'_>, now: Now) -> Found {
        self.answer(lookup, self.moment(now), Blocking::Allowed)
    }

    /// The operator's page for an error status.
    pub(crate) fn error_page(&self, status: u16) -> Option<Arc<Entry>> {
        let page = self.error_pages.iter().find(|(of, _)| *of == status);
        page.map(|(_, entry)| Arc::clone(entry))
    }

    /// Names and values for the metrics page. `_total` counts since the site opened; the others are
    /// what is held now.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let counts = &self.counts;
        let ledger = self.ledger();
        let of = |count: &AtomicU64| count.load(Relaxed);
        [
            ("site_paths", ledger.paths() as u64),
            ("site_files_open", ledger.files_open() as u64),
            ("site_memory_files", ledger.memory.len() as u64),
            ("site_memory_bytes", ledger.memory.used()),
            ("site_page_cache_files", ledger.pages.len() as u64),
            ("site_page_cache_bytes", ledger.pages.used()),
            ("site_hits_total", self.table.hits()),
            ("site_misses_total", of(&counts.misses)),
            ("site_would_block_total", of(&counts.would_block)),
            ("site_not_found_total", of(&counts.not_found)),
            ("site_rechecks_total", of(&counts.rechecks)),
            ("site_changed_total", of(&counts.changed)),
            (
                "site_out_of_descriptors_total",
                of(&counts.out_of_descriptors),
            ),
            ("site_memory_admitted_total", ledger.memory.admitted),
            ("site_memory_refused_total", ledger.memory.refused),
            ("site_memory_evicted_total", ledger.memory.evicted),
            ("site_page_cache_admitted_total", ledger.pages.admitted),
            ("site_page_cache_refused_total", ledger.pages.refused),
            ("site_page_cache_evicted_total", ledger.pages.evicted),
            ("site_files_closed_total", ledger.files_closed),
            ("site_paths_dropped_total", ledger.paths_dropped),
        ]
        .into_iter()
    }

    // ---- from a path to a record

    fn answer(&self, lookup: &Lookup<'_>, moment: Moment, blocking: Blocking) -> Found {
        self.counts.misses.fetch_add(1, Relaxed);
        self.sketch.age_if_late(moment.ns);
        let key = self.key(lookup.path);
        let mut answer = self.entry_at(key, lookup.accepts, moment, blocking);
        if let (Err(Miss::NotFound), Some(fallback)) = (&answer, &self.config.spa_fallback) {
            answer = self.entry_at(self.key(fallback), lookup.accepts, moment, blocking);
        }
        if let Err(Miss::Directory) = answer {
            answer = self.listing(lookup, moment, blocking);
        }
        match answer {
            Ok(entry) => Found::Entry(entry),
            Err(miss) => self.found_of(miss, key.path),
        }
    }

    fn found_of(&self, miss: Miss, path: &str) -> Found {
        match miss {
            Miss::NotFound => {
                self.counts.not_found.fetch_add(1, Relaxed);
                Found::NotFound
            }
            Miss::WouldBlock => {
                self.counts.would_block.fetch_add(1, Relaxed);
                Found::WouldBlock
            }
            Miss::Forbidden | Miss::Directory => Found::Forbidden,
            Miss::SlashMissing => Found::SlashMissing(slash_path(path).into()),
            Miss::OutOfDescriptors => {
                let why = "no file descriptor left; raise LimitNOFILE or ulimit -n".to_owned();
                Found::Failed { status: 503, why }
            }
            Miss::Failed(status, why) => Found::Failed {
                status,
                why: format!("/{path}: {why}"),
            },
        }
    }

    /// The entry that answers for a path, through the table.
    fn entry_at(
        &self,
        key: Key<'_>,
        accepts: Encodings,
        moment: Moment,
        blocking: Blocking,
    ) -> Result<Arc<Entry>, Miss> {
        for _ in 0..CHANGING_MAX {
            let record = self.record_at(key, moment, blocking)?;
            let id = record.best(accepts);
            if let Some(entry) = self.entry_of(&record, id, moment, blocking)? {
                return Ok(entry);
            }
            self.drop_changed(&record);
        }
        Err(Miss::Failed(
            503,
            "changes faster than it can be read".to_owned(),
        ))
    }

    /// What a path stands for: as the table knows it, if that is fresh or still true.
    fn record_at(
        &self,
        key: Key<'_>,
        moment: Moment,
        blocking: Blocking,
    ) -> Result<Arc<Record>, Miss> {
        if is_hidden(key.path, self.config.hidden) {
            return Err(Miss::NotFound);
        }
        let root = self.current_root(moment, blocking)?;
        let known = self
            .table
            .get(key)
            .filter(|record| record.generation == root.generation);
        let Some(known) = known else {
            let survey = self.with_descriptors(|| self.survey(&root, key.path, blocking))?;
            return Ok(self.enroll(key, survey, &root, moment));
        };
        // Only from the second request on: files asked for once go first.
        known.refer();
        if !self.is_due(known.checked_ns(), moment) {
            return Ok(known);
        }
        self.counts.rechecks.fetch_add(1, Relaxed);
        match self.with_descriptors(|| self.survey(&root, key.path, blocking)) {
            Ok(survey) if survey == *known.survey && known.settled => {
                known.confirm(moment.ns);
                Ok(known)
            }
            Ok(survey) => {
                self.drop_changed(&known);
                Ok(self.enroll(key, survey, &root, moment))
            }
            // Not known: neither true nor false.
            Err(miss @ (Miss::WouldBlock | Miss::OutOfDescriptors)) => Err(miss),
            Err(miss) => {
                self.drop_changed(&known);
                Err(miss)
            }
        }
    }

    /// Looks what lies on disk for a path: one look for the file, and for each variant one more.
    fn survey(&self, root: &Root, path: &str, blocking: Blocking) -> Result<Survey, Miss> {
        let (source, plain) = self.source(root, path, blocking)?;
        let mut survey = Survey {
            source: source.into(),
            plain,
            variants: [None; 3],
        };
        if self.config.precompressed {
            for (variant, encoding) in survey.variants.iter_mut().zip(Encoding::ALL) {
                let name = format!("{}{}", survey.source, encoding.suffix());
                *variant = match root.look(&name, blocking) {
                    // An older one is of an older state of the original.
                    Ok((Kind::File, stamp)) => Some(stamp).filter(|s| s.mtime_ns >= plain.mtime_ns),
                    Err(miss @ (Miss::WouldBlock | Miss::OutOfDescriptors)) => return Err(miss),
                    _ => None,
                };
            }
        }
        Ok(survey)
    }

    /// Which file answers for a path: the file itself, or for a directory the first of its index files.
    fn source(
        &self,
        root: &Root,
        path: &str,
        blocking: Blocking,
    ) -> Result<(String, FileStamp), Miss> {
        if !(path.is_empty() || path.ends_with('/')) {
            return match root.look(path, blocking)? {
                (Kind::File, stamp) => Ok((path.to_owned(), stamp)),
                (Kind::Directory, _) => Err(Miss::SlashMissing),
            };
        }
        for name in &self.config.index {
            let index = format!("{path}{name}");
            match root.look(&index, blocking) {
                Ok((Kind::File, stamp)) => return Ok((index, stamp)),
                Ok((Kind::Directory, _)) | Err(Miss::NotFound) => {}
                Err(miss) => return Err(miss),
            }
        }
        root.look(path, blocking)?;
        Err(Miss::Directory)
    }

    fn enroll(&self, key: Key<'_>, survey: Survey, root: &Root, moment: Moment) -> Arc<Record> {
        let settled = survey
            .stamps()
            .all(|stamp| head::is_settled(stamp, moment.since_epoch));
        let record = Arc::new(Record::new(
            key,
            survey,
            root.generation,
            settled,
            moment.ns,
        ));
        let garbage = self.ledger().enroll(&self.table, Arc::clone(&record));
        drop(garbage);
        record
    }

    fn drop_changed(&self, record: &Record) {
        self.counts.changed.fetch_add(1, Relaxed);
        let garbage = self.ledger().drop_record(&self.table, record);
        drop(garbage);
    }

    /// The root, looked at again when that is due: when its path leads to another directory (a new
    /// release), everything known is forgotten.
    fn current_root(&self, moment: Moment, blocking: Blocking) -> Result<Arc<Root>, Miss> {
        let root = Arc::clone(&self.root.read().unwrap_or_else(PoisonError::into_inner));
        if !self.is_due(self.root_checked_ns.load(Relaxed), moment) {
            return Ok(root);
        }
        match root.is_at(&self.config.root, blocking) {
            Err(miss @ (Miss::WouldBlock | Miss::OutOfDescriptors)) => Err(miss),
            // While nothing (that we may see) is there, the old site is better than none.
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
        let Ok(new) = Root::open(&self.config.root, self.config.follow_links_out, generation)
        else {
            return Arc::clone(old);
        };
        let mut root = self.root.write().unwrap_or_else(PoisonError::into_inner);
        if root.generation < generation {
            *root = Arc::new(new);
            let garbage = self.ledger().start_over(&self.table, generation);
            self.listings.clear();
            self.root_checked_ns.fetch_max(moment.ns, Relaxed);
            drop(garbage);
        }
        Arc::clone(&root)
    }

    // ---- from a record to an entry

    /// The entry of one representation: as it is, moved into memory, or made anew. `None`: the file is
    /// not any more what the record says.
    fn entry_of(
        &self,
        record: &Record,
        id: Id,
        moment: Moment,
        blocking: Blocking,
    ) -> Result<Option<Arc<Entry>>, Miss> {
        let estimate = self.sketch.touch(id.hash(), moment.ns);
        let known = record.entry(id.encoding);
        let file = match known.map(|entry| &entry.body) {
            Some(Body::Memory(_)) => return Ok(known.cloned()),
            Some(Body::File { file, .. }) => match file.is_unchanged() {
                Ok(true) => Arc::clone(file),
                _ => return Ok(None),
            },
            None => match self.open_representation(record, id, blocking)? {
                Some(file) => Arc::new(file),
                None => return Ok(None),
            },
        };
        match self.read_if_worth(record, id, &file, estimate, moment, blocking)? {
            Worth::Held(entry) => Ok(Some(entry)),
            Worth::Changed => Ok(None),
            Worth::Not => Ok(Some(
                self.entry_with_file(record, id, file, estimate, moment),
            )),
        }
    }

    fn open_representation(
        &self,
        record: &Record,
        id: Id,
        blocking: Blocking,
    ) -> Result<Option<SharedFile>, Miss> {
        let survey = &record.survey;
        let suffix = id.encoding.map_or("", Encoding::suffix);
        let name = format!("{}{suffix}", survey.source);
        let root = Arc::clone(&self.root.read().unwrap_or_else(PoisonError::into_inner));
        if root.generation != record.generation {
            return Ok(None);
        }
        match self.with_descriptors(|| root.open_file(&name, blocking)) {
            // The same inode in the same state, so it is the regular file that the survey saw.
            Ok(file) => {
                Ok(Some(file).filter(|file| Some(file.stamp()) == survey.stamp(id.encoding)))
            }
            // Gone since the survey.
            Err(Miss::NotFound) => Ok(None),
            Err(miss) => Err(miss),
        }
    }

    fn read_if_worth(
        &self,
        record: &Record,
        id: Id,
        file: &SharedFile,
        estimate: u8,
        moment: Moment,
        blocking: Blocking,
    ) -> Result<Worth, Miss> {
        let len = file.stamp().len;
        if len > self.config.memory_file_len_max {
            return Ok(Worth::Not);
        }
        let Some(victims) = self.ledger().consider(len, estimate, &self.sketch) else {
            return Ok(Worth::Not);
        };
        match read_whole(file, blocking)? {
            Reading::Whole(bytes) => {
                let entry = self.make_entry(record, id, file.stamp(), Body::Memory(bytes), moment);
                let garbage = self
                    .ledger()
                    .hold(&self.table, record, id, &entry, &victims);
                drop(garbage);
                Ok(Worth::Held(entry))
            }
            Reading::Changed => Ok(Worth::Changed),
            Reading::WouldBlock if blocking == Blocking::Never && estimate >= WORTH_LOADING => {
                Err(Miss::WouldBlock)
            }
            Reading::WouldBlock => Ok(Worth::Not),
        }
    }

    fn entry_with_file(
        &self,
        record: &Record,
        id: Id,
        file: Arc<SharedFile>,
        estimate: u8,
        moment: Moment,
    ) -> Arc<Entry> {
        let len = file.stamp().len;
        let (keep, garbage) = self
            .ledger()
            .keeps(&self.table, id, len, estimate, &self.sketch);
        drop(garbage);
        let known = record.entry(id.encoding);
        let entry = match known {
            Some(entry) if matches!(entry.body, Body::File { keep: kept, .. } if kept == keep) => {
                return Arc::clone(entry);
            }
            Some(entry) => Arc::new(head::with_body(entry, Body::File { file, keep })),
            None => {
                let stamp = file.stamp();
                self.make_entry(record, id, stamp, Body::File { file, keep }, moment)
            }
        };
        let garbage = self.ledger().open(&self.table, record, id, &entry);
        drop(garbage);
        entry
    }

    fn make_entry(
        &self,
        record: &Record,
        id: Id,
        stamp: FileStamp,
        body: Body,
        moment: Moment,
    ) -> Arc<Entry> {
        let survey = &record.survey;
        let content_type = self.content_type(&survey.source);
        let varies = survey.has_variants()
            || (self.config.precompressed && mime::is_compressible(content_type));
        let reading = (!record.settled).then(|| self.reading());
        let (modified_s, modified_is_strong) = head::modified(stamp, moment.since_epoch);
        let description = Description {
            content_type,
            encoding: id.encoding,
            len: stamp.len,
            etag: head::etag(stamp, id.encoding, reading),
            modified_s,
            modified_is_strong,
            vary: varies.then_some("Accept-Encoding"),
            extra: &self.rules.lines(&survey.source),
        };
        Arc::new(head::entry(&description, body))
    }

    fn content_type(&self, path: &str) -> &str {
        let extension = mime::extension(path).unwrap_or_default();
        let own = self
            .config
            .mime_types
            .iter()
            .find(|(of, _)| of.eq_ignore_ascii_case(extension));
        own.map(|(_, content_type)| content_type.as_str())
            .or_else(|| mime::by_name(path))
            .unwrap_or(&self.config.default_type)
    }

    /// A number that no other reading has, of this process or an earlier one.
    fn reading(&self) -> u128 {
        self.opened_since_epoch.as_nanos() + u128::from(self.readings.fetch_add(1, Relaxed))
    }

    // ---- listings, error pages, the fallback

    fn listing(
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
        let root = self.current_root(moment, blocking)?;
        let page = self.with_descriptors(|| listing::render(&root, lookup, self.config.hidden))?;
        let entry = Arc::new(listing::entry(
            page,
            &self.rules,
            lookup,
            moment.since_epoch,
        ));
        self.listings.put(lookup, &entry, moment.ns);
        Ok(entry)
    }

    fn check_fallback(&mut self, now: Now) -> Result<(), SiteError> {
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

    fn read_error_pages(&self, now: Now) -> Result<Vec<(u16, Arc<Entry>)>, SiteError> {
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
        let (modified_s, modified_is_strong) = head::modified(file.stamp(), now.since_epoch);
        let description = Description {
            content_type: self.content_type(name),
            encoding: None,
            len: bytes.len() as u64,
            etag: head::etag(file.stamp(), None, None),
            modified_s,
            modified_is_strong,
            vary: None,
            extra: &self.rules.lines(name),
        };
        Ok(Arc::new(head::entry(&description, Body::Memory(bytes))))
    }

    // ---- small things

    fn moment(&self, now: Now) -> Moment {
        let since_open = now.monotonic.saturating_duration_since(self.opened_at);
        Moment {
            ns: since_open.as_nanos() as u64,
            since_epoch: now.since_epoch,
        }
    }

    fn key<'a>(&self, path: &'a str) -> Key<'a> {
        self.table.key(path.strip_prefix('/').unwrap_or(path))
    }

    /// Whether what was last looked at then has to be looked at again.
    fn is_due(&self, checked_ns: u64, moment: Moment) -> bool {
        self.recheck_ns == 0 || moment.ns.saturating_sub(checked_ns) > self.recheck_ns
    }

    /// Tries again once with some files closed when there is no descriptor left.
    fn with_descriptors<T>(&self, open: impl Fn() -> Result<T, Miss>) -> Result<T, Miss> {
        match open() {
            Err(Miss::OutOfDescriptors) => {
                self.counts.out_of_descriptors.fetch_add(1, Relaxed);
                let garbage: Garbage = self.ledger().close_some(&self.table);
                drop(garbage);
                open()
            }
            done => done,
        }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What came of asking whether a file should be in memory.
enum Worth {
    Held(Arc<Entry>),
    Not,
    Changed,
}

/// Where a directory without its slash is redirected to: exactly one `/` first, since two would name
/// another host. RFC 3986 4.2
fn slash_path(path: &str) -> String {
    format!("/{}/", listing::percent_encoded(path.trim_matches('/')))
}

fn root_error(root: &Path, error: io::Error) -> SiteError {
    let root = root.to_owned();
    match error.kind() {
        io::ErrorKind::NotFound => SiteError::RootMissing(root),
        io::ErrorKind::NotADirectory => SiteError::RootNotDirectory(root),
        io::ErrorKind::PermissionDenied => SiteError::RootDenied(root),
        _ => SiteError::Root(root, error),
    }
}

fn check_config(config: &SiteConfig) -> Result<(), SiteError> {
    let is_plain = |name: &&String| name.is_empty() || name.contains('/') || name.contains('\0');
    if let Some(name) = config.index.iter().find(is_plain) {
        return Err(SiteError::IndexName(name.clone()));
    }
    let types = config
        .mime_types
        .iter()
        .map(|(_, value)| value)
        .chain([&config.default_type]);
    match types
        .into_iter()
        .find(|value| value.is_empty() || !rules::is_value(value))
    {
        None => Ok(()),
        Some(value) => Err(SiteError::HeaderValue {
            name: "Content-Type".to_owned(),
            value: value.clone(),
        }),
    }
}

#[cfg(test)]
mod tests;
