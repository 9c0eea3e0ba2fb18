use std::collections::VecDeque;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use brotli::enc::BrotliEncoderParams;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::entry::Body;
use super::open::Blocking;
use super::read::{Reading, read_whole};
use super::table::{Id, Record, Survey};
use super::{Moment, Site, mime, rules};
use crate::lookup::Encoding;

/// Shorter files fit into a packet or two uncompressed.
pub(super) const SOURCE_LEN_MIN: u64 = 1 << 10;

/// Longest file that is compressed: some seconds of work. A decoder of zstd need not take a window
/// of more than 8 MiB (RFC 9659).
pub(super) const SOURCE_LEN_MAX: u64 = 8 << 20;

/// Length of the queue.
pub(super) const WAITING_MAX: usize = 1024;

/// Most concurrent compressions; there is one per four processors.
const THREADS_MAX: usize = 4;

/// Niceness added to a compression thread: on busy processors it gets a tenth of one. nice(2)
const NICENESS: i32 = 10;

/// Compression requests, and the threads that serve them.
///
/// ```text
///  request ─▶ record.variant_to_make() ─▶ queue ─▶ thread ─▶ budget ─▶ record.entries[coding]
///     │       (bit closed)                (1,024)  (nice)      │ refused: open again at the next
///     │                                                        │          recheck
///     └─▶ answered at once with what there is                  └ evicted: open again at once
/// ```
#[derive(Debug, Default)]
pub(super) struct Compressor {
    /// Indexed by the site number in a job.
    sites: Vec<Weak<Site>>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// Counters of compression.
#[derive(Debug, Default)]
pub(super) struct Compressions {
    pub(super) waiting: AtomicU64,
    pub(super) made: AtomicU64,
    pub(super) source_len: AtomicU64,
    pub(super) made_len: AtomicU64,
    pub(super) useless: AtomicU64,
    pub(super) refused: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<CompressionJob>,
    sites_gone: usize,
}

/// A variant to be made. It does not keep the record and its bytes in memory.
#[derive(Debug)]
pub(super) struct CompressionJob {
    site: usize,
    path: u64,
    survey: Arc<Survey>,
    encoding: Encoding,
    moment: Moment,
}

/// Variants that can be made of one state of a file: those that a request may queue now (open) or
/// at the next recheck (postponed). A variant that is queued, made, or not worthwhile is neither.
#[derive(Debug)]
pub(super) struct Compressible {
    /// One bit per coding.
    codings: u8,
    open: AtomicU8,
    postponed: AtomicU8,
}

fn bit(encoding: Encoding) -> u8 {
    1 << encoding as u8
}

impl Compressible {
    #[inline]
    pub(super) fn includes(&self, encoding: Encoding) -> bool {
        self.codings & bit(encoding) != 0
    }

    #[inline]
    pub(super) fn is_open(&self, encoding: Encoding) -> bool {
        self.open.load(Relaxed) & bit(encoding) != 0
    }

    pub(super) fn open(&self, encoding: Encoding) {
        self.open.fetch_or(bit(encoding) & self.codings, Relaxed);
    }

    /// Closes the variant; true for exactly one of the concurrent callers.
    fn claim(&self, encoding: Encoding) -> bool {
        self.open.fetch_and(!bit(encoding), Relaxed) & bit(encoding) != 0
    }

    fn postpone(&self, encoding: Encoding) {
        self.postponed.fetch_or(bit(encoding), Relaxed);
    }

    /// Reopens postponed variants.
    pub(super) fn try_again(&self) {
        if self.postponed.load(Relaxed) != 0 {
            let postponed = self.postponed.swap(0, Relaxed);
            self.open.fetch_or(postponed, Relaxed);
        }
    }
}

impl Site {
    /// Starts compression threads for those of the sites whose configuration names a coding. The
    /// threads end with the sites. To be called once per site.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start_compressing<'a>(sites: impl Iterator<Item = &'a Arc<Site>>) -> io::Result<()> {
        let sites: Vec<_> = sites.filter(|site| !site.config.compress.is_empty()).collect();
        if sites.is_empty() {
            return Ok(());
        }
        let compressor = Arc::new(Compressor {
            sites: sites.iter().map(|site| Arc::downgrade(site)).collect(),
            ..Compressor::default()
        });
        for (at, site) in sites.iter().enumerate() {
            _ = site.compressor.set((Arc::clone(&compressor), at));
        }
        let processors = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..(processors / 4).clamp(1, THREADS_MAX) {
            let compressor = Arc::clone(&compressor);
            let thread = thread::Builder::new().name("compress".to_owned());
            thread.spawn(move || compressor.run())?;
        }
        Ok(())
    }

    /// Variants that can be made of a surveyed file, once it has settled.
    pub(super) fn compressible(
        &self,
        survey: &Survey,
        is_settled: bool,
    ) -> Option<Arc<Compressible>> {
        let source = &survey.source;
        let is_worth = |len| (SOURCE_LEN_MIN..=SOURCE_LEN_MAX).contains(&len);
        let is_eligible = !self.config.compress.is_empty()
            && survey.has_plain
            && is_worth(survey.plain.len)
            && is_text(self.content_type(source))
            && self.rules.coding(source).is_none()
            && !rules::forbid_transform(&self.rules.lines(source));
        if !is_eligible {
            return None;
        }
        let wanted = self.config.compress.iter();
        let codings = wanted
            .filter(|encoding| survey.is_made(Some(**encoding)))
            .fold(0, |bits, encoding| bits | bit(*encoding));
        let open = AtomicU8::new(if is_settled { codings } else { 0 });
        (codings != 0)
            .then(|| Arc::new(Compressible { codings, open, postponed: AtomicU8::new(0) }))
    }

    /// Queues a variant, unless another request did, the queue is full, or the memory budget would
    /// refuse it.
    #[cold]
    pub(super) fn queue_variant(&self, record: &Record, encoding: Encoding, moment: Moment) {
        let Some(compressible) = record.compressible.as_ref() else {
            return;
        };
        if !compressible.claim(encoding) {
            return;
        }
        let compressor = self.compressor.get();
        let job = CompressionJob {
            site: compressor.map_or(0, |(_, at)| *at),
            path: record.hash,
            survey: Arc::clone(&record.survey),
            encoding,
            moment,
        };
        // Estimate: text shrinks to a quarter.
        let len = record.survey.plain.len / 4;
        let fits = |estimate| self.holdings().consider(len, estimate, &self.cache.sketch).is_some();
        self.cache.compressions.waiting.fetch_add(1, Relaxed);
        let is_queued = fits(self.estimate_of(&job))
            && compressor.is_some_and(|(compressor, _)| compressor.push(job));
        if !is_queued {
            self.cache.compressions.waiting.fetch_sub(1, Relaxed);
            self.postpone(compressible, encoding);
        }
    }

    fn postpone(&self, compressible: &Compressible, encoding: Encoding) {
        self.cache.compressions.refused.fetch_add(1, Relaxed);
        compressible.postpone(encoding);
    }

    /// Number of recent requests for the file, plain or as this variant.
    fn estimate_of(&self, job: &CompressionJob) -> u8 {
        let of = |encoding| {
            let path = job.path;
            self.cache.sketch.estimate(Id { path, encoding }.hash())
        };
        of(None).max(of(Some(job.encoding))).max(1)
    }

    /// Makes a variant and puts it into the table, if the file is unchanged.
    pub(super) fn make_variant(&self, job: &CompressionJob) {
        self.cache.compressions.waiting.fetch_sub(1, Relaxed);
        let record = self.cache.table.get_hash(job.path);
        let Some(record) = record.filter(|record| Arc::ptr_eq(&record.survey, &job.survey)) else {
            return;
        };
        let Some(compressible) = record.compressible.as_ref() else {
            return;
        };
        let Some(source) = self.source_bytes(&record) else {
            return self.postpone(compressible, job.encoding);
        };
        let made = catch_unwind(AssertUnwindSafe(|| compress(&source, job.encoding)));
        // The panic hook has reported a panic.
        let made = made.ok().filter(|made| is_worthwhile(made.len(), source.len()));
        let Some(made) = made else {
            self.cache.compressions.useless.fetch_add(1, Relaxed);
            return;
        };
        let made_len = made.len() as u64;
        if !self.hold_made(&record, job, made.into()) {
            return self.postpone(compressible, job.encoding);
        }
        self.cache.compressions.made.fetch_add(1, Relaxed);
        self.cache.compressions.source_len.fetch_add(source.len() as u64, Relaxed);
        self.cache.compressions.made_len.fetch_add(made_len, Relaxed);
    }

    fn source_bytes(&self, record: &Record) -> Option<Bytes> {
        if let Some(Body::Memory(bytes)) = record.entry(None).map(|entry| &entry.body) {
            return Some(bytes.clone());
        }
        let id = Id { path: record.hash, encoding: None };
        let file = self.open_representation(record, id, Blocking::Allowed).ok()??;
        match read_whole(&file, Blocking::Allowed) {
            Ok(Reading::Whole(bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// Puts a variant into the memory budget. False if it is refused.
    fn hold_made(&self, record: &Record, job: &CompressionJob, made: Bytes) -> bool {
        let id = Id { path: job.path, encoding: Some(job.encoding) };
        let stamp = record.survey.plain;
        let estimate = self.estimate_of(job);
        let body = Body::Memory(made);
        let entry = self.make_entry(record, id, stamp, body, false, job.moment);
        let mut holdings = self.holdings();
        let Some(victims) = holdings.consider(entry.len, estimate, &self.cache.sketch) else {
            return false;
        };
        let (_, garbage) = holdings.hold(&self.cache.table, record, id, entry, &victims);
        let is_held = holdings.memory.contains(id);
        drop(holdings);
        drop(garbage);
        if is_held {
            // It inherits the popularity of the file that it stands for.
            (0..estimate).for_each(|_| _ = self.cache.sketch.touch(id.hash(), job.moment.ns));
        }
        is_held
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some((compressor, _)) = self.compressor.get() {
            compressor.lock().sites_gone += 1;
            compressor.changed.notify_all();
        }
    }
}

impl Compressor {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, job: CompressionJob) -> bool {
        let mut queue = self.lock();
        if queue.jobs.len() >= WAITING_MAX {
            return false;
        }
        queue.jobs.push_back(job);
        drop(queue);
        self.changed.notify_one();
        true
    }

    /// Waits for the oldest job; `None` when the queue is empty and the sites are gone.
    pub(super) fn pop(&self) -> Option<CompressionJob> {
        let is_idle =
            |queue: &mut Queue| queue.jobs.is_empty() && queue.sites_gone < self.sites.len();
        let queue = self.changed.wait_while(self.lock(), is_idle);
        queue.unwrap_or_else(PoisonError::into_inner).jobs.pop_front()
    }

    fn run(&self) {
        // If not permitted, the thread keeps its normal priority.
        _ = rustix::process::nice(NICENESS);
        while let Some(job) = self.pop() {
            if let Some(site) = self.sites[job.site].upgrade() {
                site.make_variant(&job);
            }
        }
    }
}

/// True if files of this type compress well. A PDF is compressed internally.
fn is_text(content_type: &str) -> bool {
    mime::is_compressible(content_type) && content_type != "application/pdf"
}

/// True if a variant saves a tenth of the bytes.
fn is_worthwhile(made_len: usize, source_len: usize) -> bool {
    made_len <= source_len - source_len / 10
}

/// Longest file for brotli's level 10: a tenth shorter than 9, at 1 MB/s.
const THOROUGH_LEN_MAX: usize = 128 << 10;

/// Compresses at a level that costs 0.1 to 1 µs a byte. The result is deterministic.
fn compress(source: &[u8], encoding: Encoding) -> Vec<u8> {
    let mut made = Vec::with_capacity(source.len() / 3);
    match encoding {
        Encoding::Br => {
            let params = BrotliEncoderParams {
                quality: if source.len() <= THOROUGH_LEN_MAX { 10 } else { 9 },
                size_hint: source.len(),
                ..BrotliEncoderParams::default()
            };
            brotli::BrotliCompress(&mut &source[..], &mut made, &params).expect(INTO_MEMORY);
        }
        Encoding::Zstd => made = zstd::bulk::compress(source, 19).expect(INTO_MEMORY),
        Encoding::Gzip => {
            let mut encoder = GzEncoder::new(made, Compression::best());
            encoder.write_all(source).expect(INTO_MEMORY);
            made = encoder.finish().expect(INTO_MEMORY);
        }
    }
    made
}

const INTO_MEMORY: &str = "a vector takes everything";
