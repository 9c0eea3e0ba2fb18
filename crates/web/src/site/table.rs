use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use foldhash::quality::RandomState;
use session::FileStamp;

use super::compress::Compressible;
use super::entry::Entry;
use super::head;
use super::quiet::{Pending, is_resized};
use crate::lookup::{Encoding, Encodings};

/// Recently requested, existing paths, in shards with one lock each: a hit takes one short read
/// lock and allocates nothing. Only the [`Holdings`](super::holdings::Holdings) writes.
///
/// ```text
///  path ─hash─▶ shard ─hash─▶ Record { survey: files on disk: x, x.br, x.zst, x.gz
///                                      entries: those of them that are open or in memory
///                                      checked: time when it was last confirmed }
/// ```
#[derive(Debug)]
pub(super) struct Table {
    shards: Box<[TableShard]>,
    hasher: RandomState,
}

/// Aligned so that two processors that read different shards do not share a cache line (or the
/// adjacent one, which the prefetcher loads as well).
#[derive(Debug, Default)]
#[repr(align(128))]
struct TableShard {
    records: RwLock<Records>,
    /// Next to the lock, whose cache line a hit owns anyway.
    hits: AtomicU64,
}

/// Records by hash only: of two paths with the same 64-bit hash, the later one stays.
type Records = HashMap<u64, Arc<Record>, BuildHasherDefault<Hashed>>;

const SHARDS: usize = 32;

/// Spreads small numbers over 64 bits: 2^64 divided by the golden ratio. Knuth, TAOCP 6.4
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

/// A path of a site (no slash first) and its hash.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key<'a> {
    pub(super) site: u32,
    pub(super) path: &'a str,
    pub(super) hash: u64,
}

/// One representation of the file at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Id {
    /// The hash of the path.
    pub(super) path: u64,
    /// `None`: uncompressed.
    pub(super) encoding: Option<Encoding>,
}

/// Files found on disk for a path, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Survey {
    /// The file that answers, from the root, without its variants' suffixes.
    pub(super) source: Box<str>,
    /// True if the source itself exists, not only variants of it.
    pub(super) has_plain: bool,
    /// Stamp of the source; if it does not exist, of one of the variants.
    pub(super) plain: FileStamp,
    /// Indexed as [`Encoding::ALL`].
    pub(super) variants: [Option<FileStamp>; 3],
}

/// A path, its survey, and its entries that are open or in memory. Replaced as a whole when an
/// entry changes; successive records share the survey.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) hash: u64,
    pub(super) site: u32,
    path: Box<str>,
    pub(super) survey: Arc<Survey>,
    /// Generation of the root in which it was found.
    pub(super) generation: u64,
    /// True if no file changed just before the survey. Otherwise a later change may have the same
    /// time stamp, so the next check makes the record anew.
    pub(super) settled: bool,
    /// Nanoseconds until it is made anew; unlimited if it is settled.
    pub(super) stands_ns: u64,
    /// Time at which this survey was first seen, in nanoseconds since the site opened.
    pub(super) seen_ns: u64,
    /// True if only the length of a file differed at the previous check.
    pub(super) is_resized: bool,
    /// True if another known state of the path had the same date.
    pub(super) is_date_shared: bool,
    /// Time since when requests have received the file while it was being written; 0: none has.
    moving_since_ns: AtomicU64,
    /// Current state on disk, if it is not accepted yet.
    pending: Mutex<Option<Pending>>,
    /// Earliest time of the next check.
    postponed_ns: AtomicU64,
    /// Time at which the survey was last confirmed, in nanoseconds since the site opened.
    checked_ns: AtomicU64,
    /// Time at which a request last claimed the next blocking check.
    claimed_ns: AtomicU64,
    /// Requested since the clock hand last passed.
    pub(super) referenced: AtomicBool,
    /// Variants that can be made; `None` if none can.
    pub(super) compressible: Option<Arc<Compressible>>,
    entries: [Option<Arc<Entry>>; 4],
}

impl Table {
    pub(super) fn new() -> Table {
        let shards = (0..SHARDS).map(|_| TableShard::default()).collect();
        Table { shards, hasher: RandomState::default() }
    }

    #[inline]
    pub(super) fn key<'a>(&self, site: u32, path: &'a str) -> Key<'a> {
        Key { site, path, hash: self.hash(site, path.as_bytes()) }
    }

    /// Mixed further where needed; no client knows the hash of a path.
    #[inline]
    fn hash(&self, site: u32, path: &[u8]) -> u64 {
        self.hasher.hash_one(path) ^ u64::from(site).wrapping_mul(GOLDEN_RATIO)
    }

    /// The entry that answers for a path without a lookup, if it exists and its record was checked
    /// recently. A path that is not UTF-8 has no record.
    #[inline]
    pub(super) fn hit(
        &self,
        site: u32,
        path: &[u8],
        accepts: Encodings,
        is_fresh: impl FnOnce(&Record) -> bool,
        is_ready: impl FnOnce(&Entry) -> bool,
    ) -> Option<(Arc<Entry>, Id)> {
        let hash = self.hash(site, path);
        let shard = self.shard(hash);
        let records = shard.records.read().unwrap_or_else(PoisonError::into_inner);
        let record = records.get(&hash).filter(|record| record.is_at(site, path))?;
        if !is_fresh(record) || record.variant_to_make(accepts).is_some() {
            return None;
        }
        let id = record.best(accepts);
        let entry = record.entry(id.encoding).filter(|entry| is_ready(entry));
        let entry = Arc::clone(entry?);
        record.refer();
        shard.hits.fetch_add(1, Relaxed);
        Some((entry, id))
    }

    pub(super) fn get(&self, key: Key<'_>) -> Option<Arc<Record>> {
        self.get_hash(key.hash).filter(|record| record.is_at(key.site, key.path.as_bytes()))
    }

    pub(super) fn get_hash(&self, hash: u64) -> Option<Arc<Record>> {
        let records = self.shard(hash).records.read().unwrap_or_else(PoisonError::into_inner);
        records.get(&hash).cloned()
    }

    /// Inserts a record; returns the one that it replaces.
    pub(super) fn put(&self, record: Arc<Record>) -> Option<Arc<Record>> {
        let mut records =
            self.shard(record.hash).records.write().unwrap_or_else(PoisonError::into_inner);
        records.insert(record.hash, record)
    }

    pub(super) fn remove(&self, hash: u64) -> Option<Arc<Record>> {
        let mut records = self.shard(hash).records.write().unwrap_or_else(PoisonError::into_inner);
        records.remove(&hash)
    }

    /// The hashes of all paths of a site.
    pub(super) fn hashes_of(&self, site: u32) -> Vec<u64> {
        let of_shard = |shard: &TableShard| {
            let records = shard.records.read().unwrap_or_else(PoisonError::into_inner);
            let of_site = records.values().filter(|record| record.site == site);
            of_site.map(|record| record.hash).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of_shard).collect()
    }

    pub(super) fn hits(&self) -> u64 {
        self.shards.iter().map(|shard| shard.hits.load(Relaxed)).sum()
    }

    #[inline]
    fn shard(&self, hash: u64) -> &TableShard {
        // The map below uses the lowest and the highest bits.
        &self.shards[(hash >> 32) as usize % SHARDS]
    }
}

impl Id {
    /// Hash for the sketch: well mixed, different for each representation.
    #[inline]
    pub(super) fn hash(self) -> u64 {
        let nth = self.encoding.map_or(0, |encoding| encoding as u64);
        self.path.wrapping_add(nth.wrapping_mul(GOLDEN_RATIO))
    }
}

impl Survey {
    #[inline]
    pub(super) fn stamp(&self, encoding: Option<Encoding>) -> Option<FileStamp> {
        match encoding {
            None => Some(self.plain),
            Some(encoding) => self.variants[encoding as usize - 1],
        }
    }

    pub(super) fn has_variants(&self) -> bool {
        self.variants.iter().any(Option::is_some)
    }

    /// True if this variant is no file on disk, so it can only be one made from the plain file.
    pub(super) fn is_made(&self, encoding: Option<Encoding>) -> bool {
        self.stamp(encoding).is_none()
    }

    /// All stamps.
    pub(super) fn stamps(&self) -> impl Iterator<Item = FileStamp> {
        std::iter::once(self.plain).chain(self.variants.into_iter().flatten())
    }
}

impl Record {
    /// Makes a record; `before` is the previous one of the path.
    pub(super) fn new(
        key: Key<'_>,
        survey: Survey,
        generation: u64,
        check_again_after: Option<Duration>,
        before: Option<&Record>,
        now_ns: u64,
    ) -> Record {
        let settled = check_again_after.is_none();
        let moving = before.filter(|_| !settled);
        Record {
            hash: key.hash,
            site: key.site,
            path: key.path.into(),
            generation,
            settled,
            stands_ns: check_again_after.map_or(u64::MAX, |after| after.as_nanos() as u64),
            seen_ns: before.map_or(now_ns, |before| before.seen_since(&survey, now_ns)),
            is_resized: before.is_some_and(|before| before.is_resized_to(&survey)),
            is_date_shared: before.is_some_and(|before| before.has_date_of(&survey)),
            moving_since_ns: AtomicU64::new(moving.map_or(0, Record::moving_since_ns)),
            pending: Mutex::default(),
            postponed_ns: AtomicU64::new(0),
            survey: Arc::new(survey),
            checked_ns: AtomicU64::new(now_ns),
            claimed_ns: AtomicU64::new(0),
            referenced: AtomicBool::new(false),
            compressible: None,
            entries: [const { None }; 4],
        }
    }

    /// The representation that the client prefers among those that exist.
    #[inline]
    pub(super) fn best(&self, accepts: Encodings) -> Id {
        let there = |encoding: &Encoding| {
            self.survey.variants[*encoding as usize - 1].is_some()
                || self.entry(Some(*encoding)).is_some()
        };
        Id { path: self.hash, encoding: accepts.iter().find(there) }
    }

    /// The variant to make for a client that accepts these codings. None if an acceptable file
    /// exists beside the plain one.
    #[inline]
    pub(super) fn variant_to_make(&self, accepts: Encodings) -> Option<Encoding> {
        let compressible = self.compressible.as_ref()?;
        let first = accepts.iter().find(|encoding| compressible.includes(*encoding));
        let has_file = |encoding| !self.survey.is_made(Some(encoding));
        first.filter(|first| compressible.is_open(*first) && !accepts.iter().any(has_file))
    }

    #[inline]
    pub(super) fn entry(&self, encoding: Option<Encoding>) -> Option<&Arc<Entry>> {
        self.entries[slot(encoding)].as_ref()
    }

    /// The entry, if its bytes are in memory.
    #[inline]
    pub(super) fn in_memory(&self, encoding: Option<Encoding>) -> Option<&Arc<Entry>> {
        self.entry(encoding).filter(|entry| entry.is_in_memory())
    }

    /// All entries that are open or in memory.
    pub(super) fn entries(&self) -> impl Iterator<Item = (Id, &Arc<Entry>)> {
        let encodings = [None].into_iter().chain(Encoding::ALL.map(Some));
        encodings
            .filter_map(|encoding| Some((Id { path: self.hash, encoding }, self.entry(encoding)?)))
    }

    /// The same record with another entry (or none).
    pub(super) fn with(&self, encoding: Option<Encoding>, entry: Option<Arc<Entry>>) -> Record {
        let mut entries = self.entries.clone();
        if let (None, Some(encoding), Some(compressible)) = (&entry, encoding, &self.compressible) {
            compressible.open(encoding);
        }
        entries[slot(encoding)] = entry;
        Record {
            hash: self.hash,
            site: self.site,
            path: self.path.clone(),
            survey: Arc::clone(&self.survey),
            generation: self.generation,
            settled: self.settled,
            stands_ns: self.stands_ns,
            seen_ns: self.seen_ns,
            is_resized: self.is_resized,
            is_date_shared: self.is_date_shared,
            moving_since_ns: AtomicU64::new(self.moving_since_ns()),
            pending: Mutex::default(),
            postponed_ns: AtomicU64::new(self.postponed_ns()),
            checked_ns: AtomicU64::new(self.checked_ns()),
            claimed_ns: AtomicU64::new(self.claimed_ns.load(Relaxed)),
            referenced: AtomicBool::new(self.referenced.load(Relaxed)),
            compressible: self.compressible.clone(),
            entries,
        }
    }

    /// True if clients that know the date of this state, or of an earlier one with the same date,
    /// would mistake the files of `survey` for it.
    fn has_date_of(&self, survey: &Survey) -> bool {
        let same = [None].into_iter().chain(Encoding::ALL.map(Some));
        let mut pairs =
            same.filter_map(|encoding| self.survey.stamp(encoding).zip(survey.stamp(encoding)));
        let is_known = self.is_date_shared && pairs.clone().all(|(one, other)| one == other);
        is_known || pairs.any(|(one, other)| head::is_one_date(one, other))
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    #[inline]
    fn is_at(&self, site: u32, path: &[u8]) -> bool {
        self.site == site && self.path.as_bytes() == path
    }

    /// True if both come from one survey.
    pub(super) fn is_same(&self, other: &Record) -> bool {
        Arc::ptr_eq(&self.survey, &other.survey)
    }

    /// True if both are equal for one path, and both are settled.
    pub(super) fn agrees(&self, other: &Record) -> bool {
        self.settled
            && other.settled
            && self.site == other.site
            && self.path == other.path
            && self.generation == other.generation
            && self.survey == other.survey
    }

    pub(super) fn checked_ns(&self) -> u64 {
        self.checked_ns.load(Relaxed)
    }

    pub(super) fn postponed_ns(&self) -> u64 {
        self.postponed_ns.load(Relaxed)
    }

    pub(super) fn postpone(&self, until_ns: u64) {
        self.postponed_ns.fetch_max(until_ns, Relaxed);
    }

    /// Time since when the disk is known to be in the state `survey`. Records it, if it is new.
    pub(super) fn seen_since(&self, survey: &Survey, now_ns: u64) -> u64 {
        if *survey == *self.survey {
            return self.seen_ns;
        }
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let since_ns = pending.as_ref().and_then(|seen| seen.since_ns(survey));
        since_ns.unwrap_or_else(|| {
            *pending = Some(Pending::new(survey, now_ns));
            now_ns
        })
    }

    fn is_resized_to(&self, survey: &Survey) -> bool {
        // A doubtful state stays so until it has been seen for long enough.
        (self.is_resized && *self.survey == *survey)
            || [None].into_iter().chain(Encoding::ALL.map(Some)).any(|of| {
                let stamps = self.survey.stamp(of).zip(survey.stamp(of));
                stamps.is_some_and(|(before, now)| is_resized(before, now))
            })
    }

    /// True if a request has received the file while it was being written.
    pub(super) fn is_moving(&self) -> bool {
        self.moving_since_ns() != 0
    }

    pub(super) fn moving_since_ns(&self) -> u64 {
        self.moving_since_ns.load(Relaxed)
    }

    pub(super) fn note_moving(&self, now_ns: u64) {
        _ = self.moving_since_ns.compare_exchange(0, now_ns.max(1), Relaxed, Relaxed);
    }

    /// Claims the next check for the caller, unless another request did less than `patience_ns`
    /// ago: one check of a slow disk suffices for all requests meanwhile.
    pub(super) fn claim(&self, now_ns: u64, patience_ns: u64) -> bool {
        let claimed = self.claimed_ns.load(Relaxed);
        let is_free = claimed == 0 || now_ns.saturating_sub(claimed) > patience_ns;
        is_free && self.claimed_ns.compare_exchange(claimed, now_ns, Relaxed, Relaxed).is_ok()
    }

    pub(super) fn confirm(&self, now_ns: u64) {
        self.checked_ns.fetch_max(now_ns, Relaxed);
        if let Some(compressible) = &self.compressible {
            compressible.try_again();
        }
    }

    /// Notes that the record was requested; its shared cache line is only written when the value
    /// changes.
    #[inline]
    pub(super) fn refer(&self) {
        if !self.referenced.load(Relaxed) {
            self.referenced.store(true, Relaxed);
        }
    }
}

#[inline]
fn slot(encoding: Option<Encoding>) -> usize {
    encoding.map_or(0, |encoding| encoding as usize)
}

/// A hasher for values that are hashes already.
#[derive(Debug, Default)]
pub(super) struct Hashed(u64);

impl Hasher for Hashed {
    fn write(&mut self, _: &[u8]) {
        unreachable!("only u64 keys")
    }

    #[inline]
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
