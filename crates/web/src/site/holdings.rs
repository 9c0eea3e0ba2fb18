use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use session::SharedPage;

use super::budget::Budget;
use super::config::SiteConfig;
use super::entry::Entry;
use super::ring::Ring;
use super::sketch::Sketch;
use super::table::{Id, Record, Table};
use crate::lookup::Encoding;

/// Everything that the site holds, and the only writer of the [`Table`]: one lock keeps accounts
/// and table consistent. Hits do not take it. Nothing here waits for the disk; records taken out of
/// the table are returned as [`Garbage`], to be freed and closed outside the lock.
#[derive(Debug)]
pub(super) struct Holdings {
    /// Bytes held in memory.
    pub(super) memory: Budget,
    /// Bytes in the page cache. A closed file keeps its place here.
    pub(super) pages: Budget,
    /// Driver's tables count in memory as well.
    has_tables: bool,
    files: Ring,
    files_max: usize,
    paths: Ring,
    paths_max: usize,
    pub(super) files_closed: u64,
    pub(super) paths_dropped: u64,
    /// Bytes that had been removed from memory when free memory was last returned to the system.
    returned: u64,
}

/// Records that left the table. Dropping it closes their descriptors and frees their bytes.
#[derive(Debug, Default)]
#[must_use = "to be dropped outside the lock"]
pub(super) struct Garbage(Vec<Arc<Record>>);

/// Overhead of an entry in memory, in bytes: header lines, its part of the record, accounts.
pub(super) const MEMORY_OVERHEAD: u64 = 1024;

/// Minimum of bytes removed from memory before free memory is returned to the system.
const RETURN_LEN_MIN: u64 = 4 << 20;

/// Size of a page in the page cache.
const PAGE: u64 = 4096;

/// Maximum number of files with a place in the page cache's accounts (about 60 bytes each).
const PAGES_LEN_MAX: usize = 1 << 18;

impl Holdings {
    pub(super) fn new(config: &SiteConfig, page_cache_budget: u64) -> Holdings {
        Holdings {
            memory: Budget::new(config.memory_budget, config.paths_max),
            pages: Budget::new(page_cache_budget, PAGES_LEN_MAX),
            has_tables: config.driver_tables,
            files: Ring::default(),
            files_max: config.open_files_max.max(1),
            paths: Ring::default(),
            paths_max: config.paths_max.max(1),
            files_closed: 0,
            paths_dropped: 0,
            returned: 0,
        }
    }

    /// True, once, when enough was removed from memory to be worth returning to the system.
    pub(super) fn begin_returning(&mut self) -> bool {
        let removed = self.memory.removed();
        let is_due = removed - self.returned >= RETURN_LEN_MIN.max(self.memory.limit() / 4);
        if is_due {
            self.returned = removed;
        }
        is_due
    }

    pub(super) fn files_open(&self) -> usize {
        self.files.len()
    }

    pub(super) fn paths(&self) -> usize {
        self.paths.len()
    }

    /// Inserts a new record without entries; drops unpopular paths if there are too many. Returns
    /// the valid record: an equal one that another request inserted meanwhile stays, with its
    /// entries.
    pub(super) fn enroll(&mut self, table: &Table, record: Arc<Record>) -> (Arc<Record>, Garbage) {
        let mut garbage = Garbage::default();
        if let Some(known) = table.get_hash(record.hash)
            && known.agrees(&record)
        {
            known.confirm(record.checked_ns());
            return (known, garbage);
        }
        self.forget(table, record.hash, &mut garbage);
        while self.paths.len() >= self.paths_max {
            self.drop_a_path(table, &mut garbage);
        }
        self.paths.insert(path_id(record.hash), 1);
        garbage.extend(table.put(Arc::clone(&record)));
        (record, garbage)
    }

    /// Decides whether `len` bytes with this popularity would be held in memory; returns the
    /// victims.
    pub(super) fn consider(&mut self, len: u64, estimate: u8, sketch: &Sketch) -> Option<Vec<Id>> {
        let weight = self.weight(len);
        self.memory.consider(weight, estimate, sketch)
    }

    /// Bytes of memory that a file of `len` bytes costs there.
    fn weight(&self, len: u64) -> u64 {
        let has_table = self.has_tables && len <= SharedPage::LEN_MAX;
        let table_len = if has_table { SharedPage::table_len_max(len) } else { 0 };
        len + table_len + MEMORY_OVERHEAD
    }

    /// Puts an entry with its bytes in memory into the table, if there is still space. Returns the
    /// entry to answer with: another request may have read the same file meanwhile, and one copy is
    /// enough.
    pub(super) fn hold(
        &mut self,
        table: &Table,
        record: &Record,
        id: Id,
        entry: Arc<Entry>,
        victims: &[Id],
    ) -> (Arc<Entry>, Garbage) {
        let mut garbage = Garbage::default();
        let Some(current) = self.current(table, record) else {
            return (entry, garbage);
        };
        if let Some(held) = current.in_memory(id.encoding) {
            return (Arc::clone(held), garbage);
        }
        let weight = self.weight(entry.len);
        if !self.memory.admit(id, weight, victims) {
            return (entry, garbage);
        }
        for &victim in victims {
            self.take_entry(table, victim, &mut garbage);
        }
        // A victim may be another representation of the same path, so look it up again.
        let current = self.current(table, record).unwrap_or(current);
        self.files.remove(id);
        self.pages.remove(id);
        garbage.extend(table.put(Arc::new(current.with(id.encoding, Some(Arc::clone(&entry))))));
        (entry, garbage)
    }

    /// True if the file has a place in the page cache's accounts, or gets one now. `garbage` takes
    /// the records that lost theirs.
    pub(super) fn keeps(
        &mut self,
        table: &Table,
        id: Id,
        len: u64,
        estimate: u8,
        sketch: &Sketch,
    ) -> (bool, Garbage) {
        let mut garbage = Garbage::default();
        if self.pages.contains(id) {
            return (true, garbage);
        }
        let weight = len.next_multiple_of(PAGE).max(PAGE);
        let Some(victims) = self.pages.consider(weight, estimate, sketch) else {
            return (false, garbage);
        };
        let kept = self.pages.admit(id, weight, &victims);
        for &victim in victims.iter().filter(|_| kept) {
            // The victim's entry has the "keep" flag: close it, so that it is reopened without.
            if self.files.contains(victim) {
                self.take_entry(table, victim, &mut garbage);
            }
        }
        (kept, garbage)
    }

    /// Sets the limit of the page cache. `garbage` takes the records that lost their place.
    pub(super) fn limit_pages(&mut self, table: &Table, limit: u64, sketch: &Sketch) -> Garbage {
        let mut garbage = Garbage::default();
        for victim in self.pages.set_limit(limit, sketch) {
            // The victim's entry has the "keep" flag: close it, so that it is reopened without.
            if self.files.contains(victim) {
                self.take_entry(table, victim, &mut garbage);
            }
        }
        garbage
    }

    /// Puts an entry with its open file into the table; closes others when there are too many.
    pub(super) fn open(
        &mut self,
        table: &Table,
        record: &Record,
        id: Id,
        entry: &Arc<Entry>,
    ) -> Garbage {
        let mut garbage = Garbage::default();
        // Prefer the entry that another request has read into memory meanwhile.
        if self
            .current(table, record)
            .is_none_or(|current| current.in_memory(id.encoding).is_some())
        {
            return garbage;
        }
        if !self.files.contains(id) {
            while self.files.len() >= self.files_max {
                self.close_a_file(table, &mut garbage);
            }
            self.files.insert(id, 1);
        }
        if let Some(current) = self.current(table, record) {
            garbage.extend(table.put(Arc::new(current.with(id.encoding, Some(Arc::clone(entry))))));
        }
        garbage
    }

    /// Closes an eighth of the open files: descriptors have run out.
    pub(super) fn close_some(&mut self, table: &Table) -> Garbage {
        let mut garbage = Garbage::default();
        for _ in 0..self.files.len().div_ceil(8) {
            self.close_a_file(table, &mut garbage);
        }
        garbage
    }

    /// Removes an outdated record.
    pub(super) fn drop_record(&mut self, table: &Table, record: &Record) -> Garbage {
        let mut garbage = Garbage::default();
        if self.current(table, record).is_some() {
            self.forget(table, record.hash, &mut garbage);
        }
        garbage
    }

    /// Removes all records of a site whose root is now another directory.
    pub(super) fn start_over(&mut self, table: &Table, site: u32) -> Garbage {
        let mut garbage = Garbage::default();
        for hash in table.hashes_of(site) {
            self.forget(table, hash, &mut garbage);
            for id in ids_of(hash) {
                self.pages.remove(id);
            }
        }
        garbage
    }

    /// The table's current version of this record, unless the path was surveyed again since.
    fn current(&self, table: &Table, record: &Record) -> Option<Arc<Record>> {
        table.get_hash(record.hash).filter(|current| current.is_same(record))
    }

    fn forget(&mut self, table: &Table, hash: u64, garbage: &mut Garbage) {
        let Some(record) = table.remove(hash) else {
            return;
        };
        for (id, _) in record.entries() {
            self.memory.remove(id);
            self.files.remove(id);
        }
        self.paths.remove(path_id(hash));
        garbage.extend(Some(record));
    }

    /// Takes one entry out of its record; its bytes or descriptor go, the survey stays.
    fn take_entry(&mut self, table: &Table, id: Id, garbage: &mut Garbage) {
        self.files.remove(id);
        self.memory.remove(id);
        if let Some(record) = table.get_hash(id.path) {
            garbage.extend(table.put(Arc::new(record.with(id.encoding, None))));
        }
    }

    fn close_a_file(&mut self, table: &Table, garbage: &mut Garbage) {
        if let Some(id) = second_chance(&mut self.files, table) {
            self.take_entry(table, id, garbage);
            self.files_closed += 1;
        }
    }

    fn drop_a_path(&mut self, table: &Table, garbage: &mut Garbage) {
        if let Some(id) = second_chance(&mut self.paths, table) {
            self.paths.remove(id);
            self.forget(table, id.path, garbage);
            self.paths_dropped += 1;
        }
    }
}

/// CLOCK: the hand clears the reference bit of each item it passes, and stops at the first item
/// without one, after at most one round and one step.
fn second_chance(ring: &mut Ring, table: &Table) -> Option<Id> {
    let has_chance = |id: &Id| {
        let record = table.get_hash(id.path);
        record.is_some_and(|record| record.referenced.swap(false, Relaxed))
    };
    (0..ring.len())
        .find_map(|_| ring.next().map(|(id, _)| id).filter(|id| !has_chance(id)))
        .or_else(|| ring.next().map(|(id, _)| id))
}

impl Garbage {
    fn extend(&mut self, record: Option<Arc<Record>>) {
        self.0.extend(record);
    }
}

/// All representations of a path.
fn ids_of(path: u64) -> impl Iterator<Item = Id> {
    let encodings = [None].into_iter().chain(Encoding::ALL.map(Some));
    encodings.map(move |encoding| Id { path, encoding })
}

fn path_id(hash: u64) -> Id {
    Id { path: hash, encoding: None }
}
