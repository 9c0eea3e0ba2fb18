//! The site table: finds the file at a path without blocking where possible, and keeps files open
//! or in memory within stated budgets and a stated age.
//!
//! ```text
//!   find ──▶ table ──hit──▶ entry in memory               one read lock, ~50 ns
//!              │ miss or due for a check
//!              ▼
//!           survey ──▶ record ──▶ open file ──▶ worth memory? ──▶ read ──▶ entry
//!           (openat2 of x, x.br, x.zst, x.gz)      no: entry with the open file
//! ```
//!
//! [`Site::find`] uses only the kernel's caches (`RESOLVE_CACHED`, `RWF_NOWAIT`), else it returns
//! [`Found::WouldBlock`]. [`Site::load`] may wait for the disk.
//!
//! **Freshness.** A record is compared with the disk on use, if the last comparison is more than
//! half of `recheck_every` ago, and so is the root directory; a change is thus served at most
//! `recheck_every` later. An open file is compared at each use. Bytes in memory were read between
//! two equal stamps and never change, and an entry's header is made from the same stamp. A file is
//! served only after a quiet period ([`quiet::QUIET_PERIOD`]); an open one also records whether its
//! stamp would show a write. Changes through a shared writable mapping show when the kernel updates
//! the file's times (`msync(2)`), not before.
//!
//! **Memory.** Small files are held in memory and all files in the page cache, under one budget
//! each and one admission rule ([`budget`]). A file admitted to neither is read with `O_DIRECT`.
//! The sites of a server's hosts share table and budgets ([`Site::open_beside`]).
//!
//! **Compression.** If configured, a request for a file without an acceptable variant queues the
//! variant ([`compress`]), and is answered with the existing representation.
//!
//! **Floods.** Missing names are not remembered: each costs one lookup in the kernel's own caches
//! (four with an extension, because it may exist in compressed form only, unless its directory
//! [is known](directories) to have none), or on a worker thread the first time. Random names thus
//! cannot displace existing ones.

mod access;
mod available_memory;
mod budget;
mod compress;
mod config;
mod cors;
mod directories;
mod entries;
mod entry;
mod error_pages;
mod explain;
mod head;
mod holdings;
mod listing;
mod mime;
mod open;
mod pages;
mod quiet;
mod read;
mod ring;
mod rules;
mod shared;
mod sketch;
mod survey;
mod table;

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use session::Now;

pub(crate) use access::{Area, NO_FILE, private};
pub use config::{CacheRule, ConfigError, CorsRule, EtagKind, HeaderRule, SiteConfig};
pub(crate) use cors::Readers;
pub(crate) use entry::{Body, Entry, Found};
pub use explain::RuleList;
pub(crate) use listing::{path_encoded, percent_encoded};
pub(crate) use survey::clean_addresses;

use crate::lookup::{Encodings, Lookup};
use access::Access;
use available_memory::AvailableMemory;
use compress::{Compressions, Compressor};
use directories::Directories;
use error_pages::ErrorPage;
use holdings::{Garbage, Holdings};
use listing::Listings;
use open::{Blocking, Miss, Root, Roots};
use rules::Rules;
use shared::Shared;
use sketch::Sketch;
use table::{Key, Record, Table};

/// The files of one directory, ready to be served to any number of connections: share it by `Arc`.
#[derive(Debug)]
pub struct Site {
    config: SiteConfig,
    rules: Arc<Rules>,
    /// `None` without such rules.
    access: Option<Arc<Access>>,
    root: RwLock<Arc<Root>>,
    /// Generation of the root. Written under the lock of the holdings.
    generation: AtomicU64,
    root_checked_ns: AtomicU64,
    /// Half the promised time: the root and a file in it are checked one after the other.
    half_recheck_ns: u64,
    cache: Arc<SiteCache>,
    /// Number of this site in the shared cache.
    number: u32,
    /// The compression threads, once started, and the number of the site there.
    compressor: OnceLock<(Arc<Compressor>, usize)>,
    error_pages: Vec<Arc<ErrorPage>>,
    on_warning: Warnings,
}

/// Table, budgets and counters of one site, or of all sites opened [beside](Site::open_beside) it.
#[derive(Debug)]
struct SiteCache {
    sites: AtomicU32,
    roots: Arc<Roots>,
    shared: Shared,
    opened_at: Instant,
    opened_since_epoch: Duration,
    /// Numbers the readings of unsettled files, distinct also from those of an earlier process.
    readings: AtomicU64,
    /// Number of requests that wait for a file to be quiet.
    waiting: AtomicU64,
    /// Held by the request that reads a long file into memory, so that at most one such file is
    /// read beyond the budget.
    long_read: Mutex<()>,
    table: Table,
    sketch: Sketch,
    memory_budget: u64,
    holdings: Mutex<Holdings>,
    /// Memory that the page-cache budget follows. `None` if the budget is configured.
    available: Option<AvailableMemory>,
    listings: Listings,
    directories: Directories,
    compressions: Compressions,
    /// A wait for a descriptor failed, and no file has been opened since.
    is_starved: AtomicBool,
    counts: Counts,
}

/// Receiver of warnings.
#[derive(Default)]
struct Warnings(Option<Box<Warn>>);

type Warn = dyn Fn(&str) + Send + Sync;

impl fmt::Debug for Warnings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Warnings").finish_non_exhaustive()
    }
}

/// Counters other than those of table and holdings.
#[derive(Debug, Default)]
struct Counts {
    misses: AtomicU64,
    would_block: AtomicU64,
    not_found: AtomicU64,
    rechecks: AtomicU64,
    changed: AtomicU64,
    waits: AtomicU64,
    moving: AtomicU64,
    error_pages_lost: AtomicU64,
    out_of_descriptors: AtomicU64,
}

/// The moment of a request.
#[derive(Clone, Copy, Debug)]
struct Moment {
    /// Nanoseconds since the first site of the cache opened.
    ns: u64,
    since_epoch: Duration,
}

impl Moment {
    fn after(self, wait: Duration) -> Moment {
        Moment { ns: self.ns + wait.as_nanos() as u64, since_epoch: self.since_epoch + wait }
    }
}

/// Mean weight of a file in memory or in the page cache, for sizing the sketch.
const MEAN_FILE_LEN: u64 = 16 << 10;

/// Waits before each attempt to open a file: a quarter of a second in total. Before the second
/// attempt, some files are closed.
const DESCRIPTOR_WAITS_MS: [u64; 10] = [0, 0, 1, 2, 5, 10, 20, 40, 80, 100];

/// Rows of name, help text and value.
macro_rules! rows {
    ($($name:literal $help:literal $value:expr;)*) => { [$(($name, $help, $value)),*] };
}

impl Site {
    /// Opens the root, compiles the rules, and reads the error pages.
    ///
    /// # Errors
    /// Describes the mistake in the configuration.
    pub fn open(config: SiteConfig) -> Result<Site, ConfigError> {
        Site::open_with(config, None, Arc::default())
    }

    /// The same for a site that replaces `old` and those beside it: directories they have open are
    /// reused.
    ///
    /// # Errors
    /// Same as [`Site::open`].
    pub fn open_after(old: &Site, config: SiteConfig) -> Result<Site, ConfigError> {
        Site::open_with(config, None, Arc::clone(&old.cache.roots))
    }

    /// The same for a site that shares the budgets of `other`, whatever its own configuration says
    /// about them. Rules and passwords that several of these sites share are held once.
    ///
    /// # Errors
    /// Same as [`Site::open`].
    pub fn open_beside(other: &Site, config: SiteConfig) -> Result<Site, ConfigError> {
        Site::open_with(config, Some(other), Arc::clone(&other.cache.roots))
    }

    fn open_with(
        mut config: SiteConfig,
        other: Option<&Site>,
        roots: Arc<Roots>,
    ) -> Result<Site, ConfigError> {
        // Kept unresolved: the site follows if a symbolic link in it changes.
        config.root =
            std::path::absolute(&config.root).map_err(|error| root_error(&config.root, error))?;
        check_config(&config)?;
        let root = roots
            .open(&config.root, config.follow_links_out, 0)
            .map_err(|error| root_error(&config.root, error))?;
        let now = Now::read();
        let cache = other.map(|other| Arc::clone(&other.cache));
        let cache = cache.unwrap_or_else(|| Arc::new(SiteCache::new(&config, roots, now)));
        let access = cache.shared.access_of(&config, now)?;
        let rules = cache.shared.rules_of(&config)?;
        let mut site = Site {
            access,
            rules,
            root: RwLock::new(Arc::new(root)),
            generation: AtomicU64::new(0),
            root_checked_ns: AtomicU64::new(0),
            half_recheck_ns: u64::try_from(config.recheck_every.as_nanos() / 2).unwrap_or(u64::MAX),
            number: cache.sites.fetch_add(1, Relaxed),
            cache,
            compressor: OnceLock::new(),
            error_pages: Vec::new(),
            on_warning: Warnings::default(),
            config,
        };
        let moment = site.moment(now);
        site.root_checked_ns.store(moment.ns, Relaxed);
        site.check_fallback(now)?;
        site.error_pages = site.open_error_pages(moment)?;
        Ok(site)
    }

    /// Answers without blocking on the disk, or reports that it would have to.
    pub(crate) fn find(&self, lookup: &Lookup<'_>, now: Now) -> Found {
        match self.hit(lookup.path.as_bytes(), lookup.accepts, now) {
            Some(entry) => Found::Entry(entry),
            None => self.answer(lookup, self.moment(now), Blocking::Never),
        }
    }

    /// The entry that answers for a path without a lookup, if there is one.
    #[inline]
    pub(crate) fn hit(&self, path: &[u8], accepts: Encodings, now: Now) -> Option<Arc<Entry>> {
        let moment = self.moment(now);
        let path = path.strip_prefix(b"/").unwrap_or(path);
        let is_fresh = |record: &Record| !self.is_record_due(record, moment);
        let is_ready = |entry: &Entry| entry.is_ready(self.config.memory_file_len_max);
        let (entry, id) = self.cache.table.hit(self.number, path, accepts, is_fresh, is_ready)?;
        if !entry.is_unchanged() {
            return None;
        }
        self.cache.sketch.touch(id.hash(), moment.ns);
        Some(entry)
    }

    /// Answers, waiting for the disk where necessary.
    pub(crate) fn load(&self, lookup: &Lookup<'_>, now: Now) -> Found {
        self.answer(lookup, self.moment(now), Blocking::Allowed)
    }

    /// The path of the file that answers for unknown paths.
    #[inline]
    pub(crate) fn fallback(&self) -> Option<&str> {
        self.config.spa_fallback.as_deref()
    }

    /// The operator's header lines for a reply without a file or listing.
    pub(crate) fn lines_everywhere(&self) -> (&[u8], Readers) {
        let cors = self.rules.cors();
        let readers = cors.map_or(Readers::Own, |cors| cors.readers_everywhere());
        (self.rules.everywhere().as_bytes(), readers)
    }

    /// The operator's header lines for a reply to `path` without a file, and the origins that may
    /// read it. For a directory they are those of its index file.
    pub(crate) fn lines_without_file(&self, path: &str) -> (String, Readers) {
        let path = path.trim_start_matches('/');
        let file = self.usual_file(path);
        let mut lines = self.rules.lines(&file);
        lines.truncate(rules::without_file(&lines).len());
        (self.private(path, lines), self.rules.readers(&file))
    }

    /// The file that usually answers for a path (no slash first): for a directory its index file.
    fn usual_file<'a>(&self, path: &'a str) -> Cow<'a, str> {
        let is_directory = path.is_empty() || path.ends_with('/');
        let index = self.config.index.first().filter(|_| is_directory);
        index.map_or(path.into(), |index| format!("{path}{index}").into())
    }

    /// True if some rule lets other origins read replies.
    pub(crate) fn has_readers(&self) -> bool {
        self.rules.cors().is_some()
    }

    /// True if `readers` includes `origin`, a value of that field.
    pub(crate) fn admits(&self, readers: Readers, origin: &[u8]) -> bool {
        let cors = self.rules.cors();
        cors.is_some_and(|cors| cors.admits(readers, origin))
    }

    /// Calls `warn` with a sentence when something on the site can no longer be served. The
    /// callback runs where a session must not wait, so it must not block.
    pub fn on_warning(&mut self, warn: impl Fn(&str) + Send + Sync + 'static) {
        self.on_warning = Warnings(Some(Box::new(warn)));
    }

    fn warn(&self, text: &str) {
        if let Warnings(Some(warn)) = &self.on_warning {
            warn(text);
        }
    }

    /// Name, help text and value of each metric. `_total` counts since the site opened; the others
    /// are current values.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + use<> {
        let counts = &self.cache.counts;
        let holdings = self.holdings();
        let compressions = &self.cache.compressions;
        let of = |count: &AtomicU64| count.load(Relaxed);
        let rows = rows! {
            "site_paths" "Paths in the table." holdings.paths() as u64;
            "site_files_open" "Files held open." holdings.files_open() as u64;
            "site_memory_files" "Files whose bytes are in memory." holdings.memory.len() as u64;
            "site_memory_bytes" "Bytes of files in memory." holdings.memory.used();
            "site_page_cache_files" "Files that are served through the page cache." holdings.pages.len() as u64;
            "site_page_cache_bytes" "Bytes of files that are served through the page cache." holdings.pages.used();
            "site_hits_total" "Requests answered from the table." self.cache.table.hits();
            "site_misses_total" "Requests that the table could not answer at once." of(&counts.misses);
            "site_would_block_total" "Of these, those that had to wait for the disk." of(&counts.would_block);
            "site_not_found_total" "Requests for paths that do not exist." of(&counts.not_found);
            "site_rechecks_total" "Checks of known files for changes." of(&counts.rechecks);
            "site_changed_total" "Checks that found a change." of(&counts.changed);
            "site_waits_total" "Requests that waited until a file was no longer being written." of(&counts.waits);
            "site_moving_total" "Files sent while they were still being written." of(&counts.moving);
            "site_out_of_descriptors_total" "Files that could not be opened because no descriptor was left (EMFILE, ENFILE)." of(&counts.out_of_descriptors);
            "site_error_pages_lost_total" "Error pages that became unreadable, so that the built-in one is sent." of(&counts.error_pages_lost);
            "site_directories" "Directories known to have compressed files or none, or being searched for them." self.cache.directories.len() as u64;
            "site_directories_dropped_total" "Directories forgotten to make room for others." of(&self.cache.directories.dropped);
            "site_variants_spared_total" "Files whose compressed variants were not looked up, because their directory has none." of(&self.cache.directories.spared);
            "site_listing_bytes" "Bytes of listings that are cached or being sent." self.cache.listings.held_len();
            "site_listings_refused_total" "Listings refused because clients had not received too many bytes of others." self.cache.listings.refused();
            "site_memory_admitted_total" "Files taken into memory." holdings.memory.admitted;
            "site_memory_refused_total" "Files not taken into memory, because those there are requested more often." holdings.memory.refused;
            "site_memory_evicted_total" "Files that left memory for others." holdings.memory.evicted;
            "site_page_cache_max_bytes" "Limit on the bytes of files in the page cache: --page-cache-budget, or measured free memory." holdings.pages.limit();
            "site_page_cache_admitted_total" "Files admitted to the page cache." holdings.pages.admitted;
            "site_page_cache_refused_total" "Files kept out of the page cache, because those there are requested more often." holdings.pages.refused;
            "site_page_cache_evicted_total" "Files that left the page cache for others." holdings.pages.evicted;
            "site_compressed_total" "Variants made by --compress." of(&compressions.made);
            "site_compressed_source_bytes_total" "Bytes of the files from which these variants were made." of(&compressions.source_len);
            "site_compressed_bytes_total" "Bytes of these variants." of(&compressions.made_len);
            "site_compressions_waiting" "Files waiting to be compressed." of(&compressions.waiting);
            "site_compressions_useless_total" "Files that compression shortens by less than a tenth, and that are not tried again." of(&compressions.useless);
            "site_compressions_refused_total" "Compressions put off: too many wait, or the memory has more popular files." of(&compressions.refused);
            "site_files_closed_total" "Files closed to make room for others." holdings.files_closed;
            "site_paths_dropped_total" "Paths forgotten to make room for others." holdings.paths_dropped;
        };
        rows.into_iter()
    }

    fn answer(&self, lookup: &Lookup<'_>, moment: Moment, blocking: Blocking) -> Found {
        self.cache.counts.misses.fetch_add(1, Relaxed);
        self.cache.sketch.age_if_late(moment.ns);
        let key = self.key(lookup.path);
        if let Some(available) =
            self.cache.available.as_ref().filter(|available| available.is_due(moment.ns))
        {
            if blocking == Blocking::Never {
                return self.found_of(Miss::WouldBlock, key.path);
            }
            self.follow(available, moment);
        }
        let mut answer = self.entry_at(key, lookup.accepts, moment, blocking);
        let mut found: fn(_) -> _ = Found::Entry;
        if let (Err(Miss::NotFound), Some(fallback)) = (&answer, &self.config.spa_fallback) {
            answer = self.entry_at(self.key(fallback), lookup.accepts, moment, blocking);
            found = Found::Fallback;
        }
        if let Err(Miss::Directory) = answer {
            answer = self.listing(lookup, moment, blocking);
        }
        match answer {
            Ok(entry) => found(entry),
            Err(miss) => {
                // The site's own 404 page may need the disk.
                let looked = self.look_at_error_pages(&miss, moment, blocking);
                self.found_of(looked.err().unwrap_or(miss), key.path)
            }
        }
    }

    /// Sets the budget of the page cache to the available memory, unless another request is doing
    /// so. Free memory held by the allocator does not count as available: glibc keeps it in the
    /// arenas of the threads that read the replaced files.
    fn follow(&self, available: &AvailableMemory, moment: Moment) {
        if !available.begin_check(moment.ns) {
            return;
        }
        if let Some(return_free_memory) = self.config.return_free_memory
            && self.holdings().begin_returning()
        {
            return_free_memory();
        }
        let held = self.holdings().memory.used();
        let len = available.len(self.cache.memory_budget.saturating_sub(held));
        let garbage = self.holdings().limit_pages(&self.cache.table, len, &self.cache.sketch);
        drop(garbage);
    }

    fn found_of(&self, miss: Miss, path: &str) -> Found {
        match miss {
            Miss::NotFound => {
                self.cache.counts.not_found.fetch_add(1, Relaxed);
                Found::NotFound
            }
            Miss::WouldBlock | Miss::BeingWritten(_) => {
                self.cache.counts.would_block.fetch_add(1, Relaxed);
                Found::WouldBlock
            }
            Miss::Forbidden => Found::Forbidden,
            Miss::Directory => Found::NoIndex,
            Miss::OnlyCompressed => Found::OnlyCompressed,
            Miss::Moved(to) => Found::Moved(address(&to).into()),
            Miss::OutOfDescriptors => {
                let why = "no file descriptor left; raise LimitNOFILE or ulimit -n".to_owned();
                Found::Failed { status: 503, why }
            }
            Miss::Failed(status, why) => Found::Failed { status, why: format!("/{path}: {why}") },
        }
    }

    fn moment(&self, now: Now) -> Moment {
        let since_open = now.monotonic.saturating_duration_since(self.cache.opened_at);
        Moment { ns: since_open.as_nanos() as u64, since_epoch: now.since_epoch }
    }

    fn key<'a>(&self, path: &'a str) -> Key<'a> {
        let path = path.strip_prefix('/').unwrap_or(path);
        self.cache.table.key(self.number, path)
    }

    /// True if the last check at `checked_ns` is too old.
    fn is_due(&self, checked_ns: u64, moment: Moment) -> bool {
        self.half_recheck_ns == 0 || moment.ns.saturating_sub(checked_ns) > self.half_recheck_ns
    }

    fn is_record_due(&self, record: &Record, moment: Moment) -> bool {
        let checked_ns = record.checked_ns();
        let is_old = moment.ns.saturating_sub(checked_ns) > record.stands_ns;
        (self.is_due(checked_ns, moment) || is_old) && moment.ns >= record.postponed_ns()
    }

    /// Runs `open`; without a free descriptor, closes some files and tries again. Where the thread
    /// may wait, it also tries a little later, since other requests hold descriptors only briefly.
    /// After a wait that failed, none begins until another open succeeds.
    fn with_descriptors<T>(
        &self,
        blocking: Blocking,
        open: impl Fn() -> Result<T, Miss>,
    ) -> Result<T, Miss> {
        let is_starved = &self.cache.is_starved;
        for (nth, wait) in DESCRIPTOR_WAITS_MS.into_iter().enumerate() {
            std::thread::sleep(Duration::from_millis(wait));
            match open() {
                Err(Miss::OutOfDescriptors) => {}
                done => {
                    if is_starved.load(Relaxed) {
                        is_starved.store(false, Relaxed);
                    }
                    return done;
                }
            }
            match nth {
                0 => {
                    let garbage: Garbage = self.holdings().close_some(&self.cache.table);
                    drop(garbage);
                }
                _ if blocking == Blocking::Never => return Err(Miss::WouldBlock),
                _ if is_starved.load(Relaxed) => break,
                _ => {}
            }
        }
        is_starved.store(true, Relaxed);
        self.cache.counts.out_of_descriptors.fetch_add(1, Relaxed);
        Err(Miss::OutOfDescriptors)
    }

    fn holdings(&self) -> MutexGuard<'_, Holdings> {
        self.cache.holdings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SiteCache {
    fn new(config: &SiteConfig, roots: Arc<Roots>, now: Now) -> SiteCache {
        let memory_budget = config.memory_budget;
        let available =
            (config.page_cache_budget.is_none()).then(|| AvailableMemory::at(Path::new("/")));
        let page_cache_budget = match &available {
            Some(available) => available.len(memory_budget),
            None => config.page_cache_budget.unwrap_or(0),
        };
        let budgets = memory_budget.saturating_add(page_cache_budget);
        SiteCache {
            sites: AtomicU32::new(0),
            roots,
            shared: Shared::default(),
            opened_at: now.monotonic,
            opened_since_epoch: now.since_epoch,
            readings: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            long_read: Mutex::new(()),
            table: Table::new(),
            sketch: Sketch::new(budgets / MEAN_FILE_LEN),
            memory_budget,
            holdings: Mutex::new(Holdings::new(config, page_cache_budget)),
            available,
            listings: Listings::default(),
            directories: Directories::default(),
            compressions: Compressions::default(),
            is_starved: AtomicBool::new(false),
            counts: Counts::default(),
        }
    }
}

/// Redirect target of a path. It begins with exactly one `/`: two would name another host.
/// RFC 3986 4.2
fn address(path: &str) -> String {
    let path = path_encoded(path);
    format!("/{}", path.trim_start_matches('/'))
}

fn root_error(root: &Path, error: io::Error) -> ConfigError {
    let other = format!("cannot be opened: {error}");
    let why = match error.kind() {
        io::ErrorKind::NotFound => "does not exist",
        io::ErrorKind::NotADirectory => "is not a directory",
        io::ErrorKind::PermissionDenied => {
            "may not be entered by this user: it needs execute permission there and on every \
             directory above"
        }
        _ => other.as_str(),
    };
    ConfigError(format!("the site's root {} {why}", root.display()))
}

fn check_config(config: &SiteConfig) -> Result<(), ConfigError> {
    let is_unusable = |name: &&String| name.is_empty() || name.contains('/') || name.contains('\0');
    if let Some(name) = config.index.iter().find(is_unusable) {
        let why = "it must be a plain file name without a slash";
        return Err(ConfigError(format!("{name:?} cannot be an index file: {why}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
