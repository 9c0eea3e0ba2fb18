use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard, PoisonError, TryLockError};

use bytes::Bytes;
use rustix::fs::FileType;
use session::{FileStamp, SharedFile, SharedPage};

use super::access::private;
use super::entry::{Body, Entry};
use super::head::{Description, Modified};
use super::open::{Blocking, Miss, miss_of};
use super::read::{Reading, read_whole};
use super::sketch::ESTIMATE_MAX;
use super::table::{Id, Record};
use super::{Moment, Site, head, mime};
use crate::lookup::{Encoding, Encodings};

/// Longest file that a loop or processor reads into memory itself: reading so much from the page
/// cache takes 0.1 ms.
const READ_AT_ONCE_LEN_MAX: u64 = 1 << 20;

/// Most rereads of a short file that changes during the read.
const SHORT_READ_AGAIN_MAX: u32 = 8;

/// Result of reading a file into memory, if it is worth it.
enum LoadOutcome {
    Loaded(Arc<Entry>),
    Skipped,
    Changed,
}

/// Makes entries from records: opens the file, or reads its bytes into memory.
impl Site {
    /// The entry of one representation: unchanged, moved into memory, or made anew. `None`: the
    /// file no longer matches the record.
    pub(super) fn entry_of(
        &self,
        record: &Record,
        id: Id,
        moment: Moment,
        blocking: Blocking,
    ) -> Result<Option<Arc<Entry>>, Miss> {
        // A request that would block is repeated, so it is counted only once answered, but judged
        // as if it had been counted.
        let estimate = (self.cache.sketch.estimate(id.hash()) + 1).min(ESTIMATE_MAX);
        let entry = self.entry_by_worth(record, id, estimate, moment, blocking)?;
        if entry.is_some() {
            self.cache.sketch.touch(id.hash(), moment.ns);
        }
        Ok(entry)
    }

    fn entry_by_worth(
        &self,
        record: &Record,
        id: Id,
        estimate: u8,
        moment: Moment,
        blocking: Blocking,
    ) -> Result<Option<Arc<Entry>>, Miss> {
        let known = record.entry(id.encoding);
        let file = match known.map(|entry| &entry.body) {
            Some(Body::Memory(_)) => return Ok(known.cloned()),
            Some(Body::File { file, .. }) if file.is_moving() => return Ok(known.cloned()),
            Some(Body::File { file, .. }) => match file.is_unchanged() {
                Ok(true) => Arc::clone(file),
                _ => return Ok(None),
            },
            None => match self.open_representation(record, id, blocking)? {
                Some(file) => Arc::new(file),
                None => return Ok(None),
            },
        };
        // A known entry has been valid since the record was made.
        if known.is_none()
            && let Some(left) = self.quiet_left(record, &file, moment)?
        {
            return Err(Miss::BeingWritten(left));
        }
        match self.read_if_worth(record, id, &file, estimate, moment, blocking)? {
            LoadOutcome::Loaded(entry) => Ok(Some(entry)),
            LoadOutcome::Changed => Ok(None),
            LoadOutcome::Skipped => {
                Ok(Some(self.entry_with_file(record, id, file, estimate, moment)))
            }
        }
    }

    pub(super) fn open_representation(
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
        match self.with_descriptors(blocking, || root.open_file(&name, blocking)) {
            // The same inode in the same state, so it is the regular file that the survey saw.
            Ok(file) => {
                Ok(Some(file).filter(|file| Some(file.stamp()) == survey.stamp(id.encoding)))
            }
            // The file was removed after the survey.
            Err(Miss::NotFound) => Ok(None),
            Err(miss) => Err(miss),
        }
    }

    /// Serves a file that is constantly written: with its current length, a weak validator, and
    /// `no-store`. The entry is valid as long as the record, which is short.
    pub(super) fn moving_entry(
        &self,
        record: &Record,
        accepts: Encodings,
        moment: Moment,
    ) -> Result<Arc<Entry>, Miss> {
        // The plain file, if it exists.
        let id = if record.survey.has_plain {
            record.best(Encodings::NONE)
        } else {
            record.best(accepts)
        };
        if id.encoding.is_none() && !record.survey.has_plain {
            return Err(Miss::OnlyCompressed);
        }
        let mut file = self.open_moving(record, id)?;
        let mut bytes = self.read_moving(&file);
        // A short file that changes during the read would be truncated, so it is read again.
        for _ in 0..SHORT_READ_AGAIN_MAX {
            if bytes.is_some() || file.stamp().len > self.moving_len_max() {
                break;
            }
            file = self.open_moving(record, id)?;
            bytes = self.read_moving(&file);
        }
        self.cache.counts.moving.fetch_add(1, Relaxed);
        record.note_moving(moment.ns);
        let stamp = file.stamp();
        let body = match bytes {
            Some(bytes) => Body::Memory(bytes),
            None => Body::File { file: Arc::new(file.moving()), keep: false, settled: false },
        };
        let entry = self.make_entry(record, id, stamp, body, true, moment);
        // An old stamp does not show later changes, so other requests must read for themselves.
        if record.settled { Ok(entry) } else { Ok(self.share_moving(record, id, entry)) }
    }

    fn open_moving(&self, record: &Record, id: Id) -> Result<SharedFile, Miss> {
        let root = Arc::clone(&self.root.read().unwrap_or_else(PoisonError::into_inner));
        let suffix = id.encoding.map_or("", Encoding::suffix);
        let name = format!("{}{suffix}", record.survey.source);
        let file =
            self.with_descriptors(Blocking::Allowed, || root.open_file(&name, Blocking::Allowed))?;
        // Another file may be there by now, and its stamp does not show that.
        let stat = rustix::fs::fstat(&file).map_err(miss_of)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(file),
            _ => Err(Miss::NotFound),
        }
    }

    fn moving_len_max(&self) -> u64 {
        self.config.memory_file_len_max.min(READ_AT_ONCE_LEN_MAX)
    }

    /// Reads a short file, if no write shows between beginning and end of the read.
    fn read_moving(&self, file: &SharedFile) -> Option<Bytes> {
        if file.stamp().len > self.moving_len_max() {
            return None;
        }
        match read_whole(file, Blocking::Allowed) {
            Ok(Reading::Whole(bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// Puts the entry into the table, for all requests while the record is valid.
    fn share_moving(&self, record: &Record, id: Id, entry: Arc<Entry>) -> Arc<Entry> {
        if !entry.is_in_memory() {
            let garbage = self.holdings().open(&self.cache.table, record, id, &entry);
            drop(garbage);
            return entry;
        }
        let estimate = self.cache.sketch.estimate(id.hash());
        let mut holdings = self.holdings();
        let Some(victims) = holdings.consider(entry.len, estimate, &self.cache.sketch) else {
            return entry;
        };
        let (entry, garbage) = holdings.hold(&self.cache.table, record, id, entry, &victims);
        drop(holdings);
        drop(garbage);
        entry
    }

    fn read_if_worth(
        &self,
        record: &Record,
        id: Id,
        file: &SharedFile,
        estimate: u8,
        moment: Moment,
        blocking: Blocking,
    ) -> Result<LoadOutcome, Miss> {
        let len = file.stamp().len;
        if len > self.config.memory_file_len_max {
            return Ok(LoadOutcome::Skipped);
        }
        let Some(victims) = self.holdings().consider(len, estimate, &self.cache.sketch) else {
            return Ok(LoadOutcome::Skipped);
        };
        let _lock = if len > READ_AT_ONCE_LEN_MAX {
            let Some(lock) = self.lock_long_read() else {
                return Ok(LoadOutcome::Skipped);
            };
            if blocking == Blocking::Never {
                return Err(Miss::WouldBlock);
            }
            if let Some(held) = self.held_since(record, id) {
                return Ok(LoadOutcome::Loaded(held));
            }
            Some(lock)
        } else {
            None
        };
        match read_whole(file, blocking)? {
            Reading::Whole(bytes) => {
                let entry =
                    self.make_entry(record, id, file.stamp(), Body::Memory(bytes), false, moment);
                let (entry, garbage) =
                    self.holdings().hold(&self.cache.table, record, id, entry, &victims);
                drop(garbage);
                Ok(LoadOutcome::Loaded(entry))
            }
            Reading::Changed => Ok(LoadOutcome::Changed),
            Reading::WouldBlock if blocking == Blocking::Never => Err(Miss::WouldBlock),
            Reading::WouldBlock => Ok(LoadOutcome::Skipped),
        }
    }

    /// Takes the lock for reading a long file into memory, unless another request holds it.
    fn lock_long_read(&self) -> Option<MutexGuard<'_, ()>> {
        match self.cache.long_read.try_lock() {
            Ok(lock) => Some(lock),
            Err(TryLockError::Poisoned(lock)) => Some(lock.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The entry that another request has read into memory since this one took its record from the
    /// table.
    fn held_since(&self, record: &Record, id: Id) -> Option<Arc<Entry>> {
        let current = self.cache.table.get_hash(record.hash)?;
        let is_same = current.is_same(record);
        current.in_memory(id.encoding).filter(|_| is_same).cloned()
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
        let (keep, garbage) =
            self.holdings().keeps(&self.cache.table, id, len, estimate, &self.cache.sketch);
        drop(garbage);
        let settled = record.settled;
        let body = |file| Body::File { file, keep, settled };
        let known = record.entry(id.encoding);
        let entry = match known {
            Some(entry) if matches!(entry.body, Body::File { keep: kept, .. } if kept == keep) => {
                return Arc::clone(entry);
            }
            Some(entry) => Arc::new(Entry { body: body(file), ..Entry::clone(entry) }),
            None => {
                let stamp = file.stamp();
                self.make_entry(record, id, stamp, body(file), false, moment)
            }
        };
        let garbage = self.holdings().open(&self.cache.table, record, id, &entry);
        drop(garbage);
        entry
    }

    pub(super) fn make_entry(
        &self,
        record: &Record,
        id: Id,
        stamp: FileStamp,
        body: Body,
        is_moving: bool,
        moment: Moment,
    ) -> Arc<Entry> {
        let survey = &record.survey;
        let content_type = self.content_type(&survey.source);
        let coding = self.rules.coding(&survey.source);
        let may_vary = (self.config.precompressed || record.compressible.is_some())
            && mime::is_compressible(content_type);
        let varies = survey.has_variants() || (may_vary && coding.is_none());
        let reading = match &body {
            // Another version of the compressor may produce other bytes from the same file.
            Body::Memory(bytes) if survey.is_made(id.encoding) => Some(head::fnv1a(bytes).into()),
            _ if is_moving || !record.settled => Some(self.reading()),
            _ => None,
        };
        let len = match &body {
            Body::Memory(bytes) => bytes.len() as u64,
            Body::File { .. } => stamp.len,
        };
        let strong_etag = head::etag(self.config.etag, stamp, id.encoding, reading);
        let modified = head::modified(stamp, record.is_date_shared, moment.since_epoch);
        let area = self.rule_of_file(&survey.source);
        let address_area = self.rule_of_address(record.path());
        let lines = self.rules.lines(&survey.source);
        let is_private = area.is_some() || address_area.is_some();
        let extra = if is_private { private(&lines) } else { lines };
        let description = Description {
            area,
            address_area,
            readers: self.rules.readers(&survey.source),
            content_type,
            encoding: id.encoding.or(coding),
            len,
            etag: if is_moving { strong_etag.map(|etag| format!("W/{etag}")) } else { strong_etag },
            modified: Modified {
                is_told: modified.is_told && !is_moving,
                // A file and its compressed variants share one date.
                is_strong: modified.is_strong && !is_moving && record.compressible.is_none(),
                ..modified
            },
            vary: varies.then_some("Accept-Encoding"),
            extra: &if is_moving { head::not_stored(&extra) } else { extra },
        };
        let page = match &body {
            // One that is moving answers few requests.
            Body::Memory(bytes) if !is_moving && self.config.driver_tables => {
                let is_page = len <= SharedPage::LEN_MAX;
                is_page.then(|| Arc::new(SharedPage::new(bytes.clone())))
            }
            _ => None,
        };
        Arc::new(Entry { page, ..head::entry(&description, body) })
    }

    pub(super) fn content_type(&self, path: &str) -> &str {
        self.rules.content_type(path)
    }

    /// A number unique to this reading, also across restarts of the process.
    fn reading(&self) -> u128 {
        self.cache.opened_since_epoch.as_nanos()
            + u128::from(self.cache.readings.fetch_add(1, Relaxed))
    }
}
