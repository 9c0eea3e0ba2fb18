//! Saves all items to a file, so that a restarted server is warm.
//!
//! ```text
//!  head    ┌──────────┬─────────┬──────────────┬─────┬──────────┬─────────┬──────────┬───────┐
//!  52 bytes│ weftsnap │ version │ time of save │ now │ last cas │ flush at│ reserved │ crc32 │
//!          └──────────┴─────────┴──────────────┴─────┴──────────┴─────────┴──────────┴───────┘
//!  blocks  ┌─────┬───────┬──────────────────────────┐
//!          │ len │ crc32 │ up to 256 KiB of records │  ...  and at the end a block of length 0
//!          └─────┴───────┴──────────────────────────┘  whose checksum is the number of items
//!  record  ┌─────────┬───────┬──────┬───────┬─────────┬─────────────┬─────┬───────────┬─────┬───────┐
//!          │ key len │ marks │ used │ flags │ exptime │ last access │ cas │ value len │ key │ value │
//!          └─────────┴───────┴──────┴───────┴─────────┴─────────────┴─────┴───────────┴─────┴───────┘
//! ```
//!
//! Numbers are little-endian. Records continue from block to block, the oldest items of each class
//! first, so that restored items keep their eviction order. memcached's `-e` keeps its memory with
//! its pointers in a file on a RAM disk; this is a copy, which takes a second per gigabyte but can
//! be verified: the whole file is, before any of it is used.
//!
//! A snapshot is used once: [`Store::restore`] removes the file after reading it. After a crash an
//! hour later it would restore items that have been deleted since.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::{error, fmt};

use rustix::fs::OFlags;

use crate::store::access::handle::Store;
use crate::store::memory::arena::Chunk;
use crate::store::memory::layout::Layout;
use crate::store::memory::mark;
use crate::store::rule::{Mode, NEVER, Rule, Seconds};
use crate::store::slab::Use;

const MAGIC: &[u8; 8] = b"weftsnap";
const VERSION: u32 = 1;
const HEAD_LEN: usize = 52;
const BLOCK_LEN_MAX: usize = 256 << 10;
const RECORD_HEAD_LEN: usize = 27;

/// Marks that are saved.
const MARKS: [u32; 3] = [mark::FETCHED, mark::STALE, mark::WIN];

/// The time by both clocks: a restarted server counts its seconds from the start again.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotTime {
    /// The store's own time.
    pub now: Seconds,
    /// Seconds since 1970.
    pub unix: u64,
}

/// Result of a save or a restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Items saved or restored.
    pub items: u64,
    /// Items that expired meanwhile.
    pub expired: u64,
    /// Items that are longer than this store allows, or without memory for them.
    pub refused: u64,
    /// The file's length in bytes.
    pub file_len: u64,
}

/// Error of reading a snapshot. Nothing was stored, and the file is unchanged.
#[derive(Debug)]
pub enum RestoreError {
    /// The file cannot be read.
    Io(io::Error),
    /// The file is not a snapshot.
    Foreign,
    /// The file has another version of the format.
    Version(u32),
    /// The file is damaged or truncated, near this byte.
    Torn(u64),
}

impl Store {
    /// Writes all live items to a new file beside `path`, and renames it to `path` when complete.
    ///
    /// For an orderly shutdown: no memory is reclaimed while it runs.
    pub fn save(&self, path: &Path, time: SnapshotTime) -> io::Result<Snapshot> {
        let mut beside = path.as_os_str().to_owned();
        beside.push(".new");
        let written = self.write_snapshot(Path::new(&beside), time);
        let renamed = written.and_then(|written| {
            fs::rename(&beside, path)?;
            Ok(written)
        });
        if renamed.is_err() {
            // An incomplete file is useless. It may not exist, so the result is ignored.
            let _ = fs::remove_file(&beside);
        }
        renamed
    }

    fn write_snapshot(&self, path: &Path, time: SnapshotTime) -> io::Result<Snapshot> {
        let pool = self.pool();
        let clock = pool.clock(time.now);
        // Remove the rest of a killed save: an existing file may be open in another process.
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Other users of the machine must not read the items.
        let mut options = File::options();
        options.write(true).create_new(true);
        let file = options.mode(0o600).open(path)?;
        let mut blocks = BlockWriter::new(BufWriter::new(file));
        let flush_at = pool.flush_due();
        blocks.file.write_all(&head(time, pool.last_cas(), flush_at))?;
        let _pinned = pool.pin();
        let mut saved = Snapshot::default();
        for id in pool.class_ids() {
            let chunks = pool.class(id).oldest_first(&pool.arena);
            for chunk in chunks.into_iter().filter(|chunk| !clock.is_dead(&pool.arena, *chunk)) {
                self.write_item(&mut blocks, chunk)?;
                saved.items += 1;
            }
        }
        let mut file = blocks.finish(saved.items)?;
        file.flush()?;
        let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        // The file must be complete before it is renamed, even after a power failure.
        file.sync_all()?;
        saved.file_len = file.metadata()?.len();
        Ok(saved)
    }

    fn write_item(&self, blocks: &mut BlockWriter, chunk: Chunk) -> io::Result<()> {
        let pool = self.pool();
        let header = pool.arena.header(chunk);
        let key = pool.key(chunk);
        let state = header.state.load(Relaxed);
        let marks = MARKS.iter().enumerate();
        let marks = marks.map(|(bit, mark)| u8::from(state & mark != 0) << bit).sum::<u8>();
        // Items in the main queue have been used twice.
        let used = mark::used(state).max(if pool.uses(chunk) == Use::Main { 2 } else { 0 });
        let mut record = Vec::with_capacity(RECORD_HEAD_LEN + key.len());
        record.extend([key.len() as u8, marks, used as u8]);
        for number in [&header.flags, &header.exptime, &header.last_access] {
            record.extend(number.load(Relaxed).to_le_bytes());
        }
        record.extend(header.cas.load(Relaxed).to_le_bytes());
        record.extend(header.value_len.load(Relaxed).to_le_bytes());
        record.extend(key);
        blocks.put(&record)?;
        let layout = Layout::of(&pool.arena, chunk);
        (0..layout.pieces()).try_for_each(|at| blocks.put(pool.piece(chunk, &layout, at)))
    }

    /// Reads a snapshot into the store, which should be empty, and removes the file. The whole file
    /// is checked first.
    pub fn restore(&self, path: &Path, time: SnapshotTime) -> Result<Snapshot, RestoreError> {
        let head = Head::parse(&check(path)?);
        let file_len = fs::metadata(path)?.len();
        let mut records = Records::open(path)?;
        let mut restored = Snapshot { file_len, ..Snapshot::default() };
        let downtime = Downtime::new(head, time);
        while let Some(record) = records.next()? {
            self.install(&mut records, record, downtime, &mut restored)?;
        }
        self.pool().raise_cas(head.last_cas);
        if head.flush_at != 0 {
            // A flush that became due meanwhile, or is still to come.
            self.flush(downtime.shift_future(head.flush_at).unwrap_or(time.now), time.now);
        }
        fs::remove_file(path)?;
        Ok(restored)
    }

    fn install(
        &self,
        records: &mut Records,
        record: Record,
        downtime: Downtime,
        restored: &mut Snapshot,
    ) -> Result<(), RestoreError> {
        let exptime = match record.exptime {
            NEVER => Some(NEVER),
            exptime => downtime.shift_future(exptime),
        };
        let Some(exptime) = exptime else {
            restored.expired += 1;
            return records.skip(record.value_len);
        };
        let mut guard = self.access(downtime.now);
        let reservation = guard.reserve(&record.key, record.value_len, record.flags, exptime);
        let Ok(mut reservation) = reservation else {
            restored.refused += 1;
            return records.skip(record.value_len);
        };
        while !reservation.is_full() {
            let missing = reservation.missing();
            let Ok(room) = reservation.space() else {
                restored.refused += 1;
                return records.skip(missing);
            };
            records.blocks.read_exact(room)?;
            let filled = room.len();
            reservation.filled(filled);
        }
        let rule = Rule { new_cas: Some(record.cas), ..Mode::Set.into() };
        match guard.commit(reservation, rule) {
            Ok(_) => restored.items += 1,
            Err(_) => restored.refused += 1,
        }
        self.restore_marks(&record, downtime);
        Ok(())
    }

    /// Restores the marks and the age of an item.
    fn restore_marks(&self, record: &Record, downtime: Downtime) {
        let pool = self.pool();
        let locked = pool.index.lock(pool.hash(&record.key));
        if let Some((_, chunk)) = locked.find(|chunk| pool.key(chunk) == &record.key[..]) {
            let header = pool.arena.header(chunk);
            let marks = MARKS.iter().enumerate();
            let marks = marks.filter(|(bit, _)| record.marks >> bit & 1 == 1);
            header.state.fetch_or(marks.map(|(_, mark)| mark).sum::<u32>(), Relaxed);
            mark::set_use(&header.state, u32::from(record.used));
            header.last_access.store(downtime.shift_past(record.last_access), Relaxed);
        }
    }
}

/// Time that passed between the save and now.
#[derive(Clone, Copy)]
struct Downtime {
    saved_now: Seconds,
    now: Seconds,
    /// 0 if the clock was set back: no item's lifetime grows.
    seconds: u64,
}

impl Downtime {
    fn new(head: Head, time: SnapshotTime) -> Downtime {
        let seconds = time.unix.saturating_sub(head.unix);
        Downtime { saved_now: head.now, now: time.now, seconds }
    }

    /// Converts a future time to this server's seconds. None if it has passed.
    fn shift_future(&self, then: Seconds) -> Option<Seconds> {
        let left = u64::from(then.saturating_sub(self.saved_now)).checked_sub(self.seconds)?;
        let left = Seconds::try_from(left).ok().filter(|left| *left > 0)?;
        Some(self.now.saturating_add(left))
    }

    /// Converts a past time to this server's seconds; at least 1.
    fn shift_past(&self, then: Seconds) -> Seconds {
        let age = u64::from(self.saved_now.saturating_sub(then)) + self.seconds;
        self.now.saturating_sub(Seconds::try_from(age).unwrap_or(Seconds::MAX)).max(1)
    }
}

#[derive(Clone, Copy)]
struct Head {
    unix: u64,
    now: Seconds,
    last_cas: u64,
    flush_at: Seconds,
}

fn head(time: SnapshotTime, last_cas: u64, flush_at: Seconds) -> [u8; HEAD_LEN] {
    let mut bytes = Vec::with_capacity(HEAD_LEN);
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(time.unix.to_le_bytes());
    bytes.extend(time.now.to_le_bytes());
    bytes.extend(last_cas.to_le_bytes());
    bytes.extend(flush_at.to_le_bytes());
    bytes.extend([0; 12]);
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    bytes.try_into().expect("the fields of a head are its length")
}

impl Head {
    fn parse(bytes: &[u8; HEAD_LEN]) -> Head {
        let u32_at = |at| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        Head { unix: u64_at(12), now: u32_at(20), last_cas: u64_at(24), flush_at: u32_at(32) }
    }
}

struct BlockWriter {
    file: BufWriter<File>,
    block: Vec<u8>,
}

impl BlockWriter {
    fn new(file: BufWriter<File>) -> BlockWriter {
        BlockWriter { file, block: Vec::with_capacity(BLOCK_LEN_MAX) }
    }

    fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let len = bytes.len().min(BLOCK_LEN_MAX - self.block.len());
            self.block.extend(&bytes[..len]);
            bytes = &bytes[len..];
            if self.block.len() == BLOCK_LEN_MAX {
                self.flush_block()?;
            }
        }
        Ok(())
    }

    fn flush_block(&mut self) -> io::Result<()> {
        if !self.block.is_empty() {
            self.file.write_all(&(self.block.len() as u32).to_le_bytes())?;
            self.file.write_all(&crc32fast::hash(&self.block).to_le_bytes())?;
            self.file.write_all(&self.block)?;
            self.block.clear();
        }
        Ok(())
    }

    fn finish(mut self, items: u64) -> io::Result<BufWriter<File>> {
        self.flush_block()?;
        self.file.write_all(&0_u32.to_le_bytes())?;
        self.file.write_all(&(items as u32).to_le_bytes())?;
        Ok(self.file)
    }
}

/// Bytes of the records, block by block, each verified.
struct BlockReader {
    file: BufReader<File>,
    /// Offset of the next block in the file.
    offset: u64,
    block: Vec<u8>,
    at: usize,
    /// The number of items, once the end has been read.
    end: Option<u32>,
}

impl BlockReader {
    /// Opens a file and reads its head.
    fn open(path: &Path) -> Result<(BlockReader, [u8; HEAD_LEN]), RestoreError> {
        // A FIFO without a writer would block the open, and a device may never end.
        let mut options = File::options();
        options.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
        let file = options.open(path)?;
        if !file.metadata()?.is_file() {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file");
            return Err(RestoreError::Io(error));
        }
        let mut file = BufReader::new(file);
        let mut head = [0; HEAD_LEN];
        let magic = file.read_exact(&mut head[..MAGIC.len()]);
        if magic.is_err() || &head[..MAGIC.len()] != MAGIC {
            return Err(RestoreError::Foreign);
        }
        read_or_torn(&mut file, &mut head[MAGIC.len()..], 0)?;
        let version = u32::from_le_bytes(head[8..12].try_into().expect("4 bytes"));
        if version != VERSION {
            return Err(RestoreError::Version(version));
        }
        let (fields, crc) = head.split_at(HEAD_LEN - 4);
        if crc32fast::hash(fields).to_le_bytes() != crc {
            return Err(RestoreError::Torn(0));
        }
        let offset = HEAD_LEN as u64;
        Ok((BlockReader { file, offset, block: Vec::new(), at: 0, end: None }, head))
    }

    /// Reads the next block. False at the end.
    fn next_block(&mut self) -> Result<bool, RestoreError> {
        let mut frame = [0; 8];
        read_or_torn(&mut self.file, &mut frame, self.offset)?;
        let number = |at: usize| u32::from_le_bytes(frame[at..at + 4].try_into().expect("4 bytes"));
        let len = number(0) as usize;
        let crc = number(4);
        (self.at, self.block) = (0, Vec::new());
        if len == 0 {
            self.end = Some(crc);
            return Ok(false);
        }
        if len > BLOCK_LEN_MAX {
            return Err(RestoreError::Torn(self.offset));
        }
        self.block.resize(len, 0);
        read_or_torn(&mut self.file, &mut self.block, self.offset)?;
        if crc32fast::hash(&self.block) != crc {
            return Err(RestoreError::Torn(self.offset));
        }
        self.offset += (frame.len() + len) as u64;
        Ok(true)
    }

    /// Reads the next block if this one is consumed. False at the end of the records.
    fn fill(&mut self) -> Result<bool, RestoreError> {
        Ok(self.at < self.block.len() || (self.end.is_none() && self.next_block()?))
    }

    fn read_exact(&mut self, mut into: &mut [u8]) -> Result<(), RestoreError> {
        while !into.is_empty() {
            if !self.fill()? {
                return Err(RestoreError::Torn(self.offset));
            }
            let len = into.len().min(self.block.len() - self.at);
            into[..len].copy_from_slice(&self.block[self.at..][..len]);
            into = &mut into[len..];
            self.at += len;
        }
        Ok(())
    }
}

struct Records {
    blocks: BlockReader,
}

struct Record {
    key: Vec<u8>,
    marks: u8,
    used: u8,
    flags: u32,
    exptime: Seconds,
    last_access: Seconds,
    cas: u64,
    value_len: usize,
}

impl Records {
    fn open(path: &Path) -> Result<Records, RestoreError> {
        Ok(Records { blocks: BlockReader::open(path)?.0 })
    }

    /// The next record, up to its value, which the caller reads or skips.
    fn next(&mut self) -> Result<Option<Record>, RestoreError> {
        if !self.blocks.fill()? {
            return Ok(None);
        }
        let mut head = [0; RECORD_HEAD_LEN];
        self.blocks.read_exact(&mut head)?;
        let u32_at = |at| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
        let cas = u64::from_le_bytes(head[15..23].try_into().expect("8 bytes"));
        let value_len = u32_at(23) as usize;
        if value_len > 1 << 30 || head[0] == 0 {
            return Err(RestoreError::Torn(self.blocks.offset));
        }
        let mut key = vec![0; usize::from(head[0])];
        self.blocks.read_exact(&mut key)?;
        Ok(Some(Record {
            key,
            marks: head[1],
            used: head[2],
            flags: u32_at(3),
            exptime: u32_at(7),
            last_access: u32_at(11),
            cas,
            value_len,
        }))
    }

    fn skip(&mut self, mut len: usize) -> Result<(), RestoreError> {
        let mut skipped = [0; 4096];
        while len > 0 {
            let some = len.min(skipped.len());
            self.blocks.read_exact(&mut skipped[..some])?;
            len -= some;
        }
        Ok(())
    }
}

/// Verifies the whole file: checksums, end, and number of items.
fn check(path: &Path) -> Result<[u8; HEAD_LEN], RestoreError> {
    let (blocks, head) = BlockReader::open(path)?;
    let mut records = Records { blocks };
    let mut items = 0_u32;
    while let Some(record) = records.next()? {
        records.skip(record.value_len)?;
        items = items.wrapping_add(1);
    }
    let blocks = &mut records.blocks;
    let is_whole = blocks.end == Some(items) && blocks.file.read(&mut [0])? == 0;
    if is_whole { Ok(head) } else { Err(RestoreError::Torn(blocks.offset)) }
}

fn read_or_torn(file: &mut impl Read, into: &mut [u8], offset: u64) -> Result<(), RestoreError> {
    file.read_exact(into).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => RestoreError::Torn(offset),
        _ => RestoreError::Io(error),
    })
}

impl From<io::Error> for RestoreError {
    fn from(error: io::Error) -> RestoreError {
        RestoreError::Io(error)
    }
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const REMEDY: &str = "remove it, or start without it, to begin with an empty cache";
        match self {
            RestoreError::Io(error) => write!(f, "the snapshot cannot be read: {error}"),
            RestoreError::Foreign => write!(f, "the file is not a snapshot of a cache: {REMEDY}"),
            RestoreError::Version(version) => write!(
                f,
                "the snapshot is of version {version} of the format and this server reads version {VERSION}: {REMEDY}"
            ),
            RestoreError::Torn(at) => write!(
                f,
                "the snapshot is damaged or cut off near byte {at}; nothing of it was used: {REMEDY}"
            ),
        }
    }
}

impl error::Error for RestoreError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            RestoreError::Io(error) => Some(error),
            _ => None,
        }
    }
}
