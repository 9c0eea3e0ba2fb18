use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use rustix::fs::Dir;
use session::FileStamp;

use super::open::{Blocking, DiskLookup, Kind, Miss, Root, miss_of};
use super::{Site, head};
use crate::lookup::Encoding;

/// Directories in which surveys found no variants; surveys of further files there skip the lookups
/// for them.
///
/// ```text
///  survey of a/x ─▶ absent in a/, checked lately ─▶ no look-ups for a/x.br, a/x.zst, a/x.gz
///                   │ due: stamp of a/ is equal ─▶ the same
///                   │ not known: 32 surveys in vain ─▶ names of a/ are read, where that may block
/// ```
/// On trusted file systems a new name changes the stamp of its directory. Once the stamp is so old
/// that the next change must differ, it therefore stands for the whole list of names.
#[derive(Debug, Default)]
pub(super) struct Directories {
    known: RwLock<HashMap<u64, Arc<Directory>>>,
    pub(super) spared: AtomicU64,
    pub(super) dropped: AtomicU64,
}

#[derive(Debug)]
struct Directory {
    path: Box<str>,
    generation: u64,
    /// Number of surveys that looked for variants.
    surveys: AtomicU32,
    /// The stamp at which no name was a variant's, if known.
    absent: Option<FileStamp>,
    /// Last check of the stamp, in nanoseconds since the site opened.
    checked_ns: AtomicU64,
    /// The names are not read again: they include variants, or are too many.
    is_useless: AtomicBool,
}

/// Result of reading a directory's names.
enum CompressedNames {
    /// No name is a variant's, as long as the stamp is this one.
    Absent(FileStamp),
    /// Some names are variants', or it is unknown.
    Present,
    /// The names changed during the read.
    Changing,
}

/// Maximum number of directories, of some 200 bytes each.
const DIRECTORIES_MAX: usize = 4096;

/// Surveys between two reads of a directory's names.
const SURVEYS_BETWEEN: u32 = 32;

/// Most names that are read: some milliseconds.
const NAMES_MAX: usize = 1 << 16;

/// File systems that change a directory's stamp with each new name: ext4, XFS, Btrfs, tmpfs,
/// overlayfs, F2FS, ZFS. statfs(2)
const TRUSTED: [u32; 7] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630, 0xf2f5_2010, 0x2fc1_2fc1];

impl Site {
    /// False only if the directory of `source` is known to contain no variant.
    pub(super) fn may_have_variants(
        &self,
        disk: DiskLookup<'_>,
        source: &str,
    ) -> Result<bool, Miss> {
        let path = &source[..source.rfind('/').map_or(0, |slash| slash + 1)];
        let hash = self.cache.table.key(self.number, path).hash;
        let directories = &self.cache.directories;
        let known = directories
            .get(hash)
            .filter(|known| known.generation == disk.root.generation && *known.path == *path);
        let Some(known) = known else {
            directories.put(hash, Directory::new(path, disk.root.generation, None, 0));
            return Ok(true);
        };
        let Some(absent) = known.absent else {
            return self.learn(disk, hash, &known);
        };
        if self.is_due(known.checked_ns.load(Relaxed), disk.moment) {
            match disk.stat(path) {
                Ok((Kind::Directory, stamp)) if stamp == absent => {
                    known.checked_ns.fetch_max(disk.moment.ns, Relaxed);
                }
                Err(miss @ (Miss::WouldBlock | Miss::OutOfDescriptors)) => return Err(miss),
                _ => {
                    directories.put(hash, Directory::new(path, known.generation, None, 0));
                    return Ok(true);
                }
            }
        }
        directories.spared.fetch_add(1, Relaxed);
        Ok(false)
    }

    /// Counts a survey of an unknown directory; now and then reads its names.
    fn learn(&self, disk: DiskLookup<'_>, hash: u64, known: &Directory) -> Result<bool, Miss> {
        let is_due = |surveys: u32| (surveys + 1).is_multiple_of(SURVEYS_BETWEEN);
        if disk.blocking == Blocking::Never && is_due(known.surveys.load(Relaxed)) {
            return Err(Miss::WouldBlock);
        }
        if !is_due(known.surveys.fetch_add(1, Relaxed)) || known.is_useless.load(Relaxed) {
            return Ok(true);
        }
        let is_settled = |stamp| head::is_settled(stamp, disk.moment.since_epoch);
        match read_names(disk.root, &known.path) {
            Ok(CompressedNames::Absent(stamp)) if is_settled(stamp) => {
                let now_ns = disk.moment.ns;
                let directory = Directory::new(&known.path, known.generation, Some(stamp), now_ns);
                self.cache.directories.put(hash, directory);
                return Ok(false);
            }
            Ok(CompressedNames::Absent(_) | CompressedNames::Changing) => {}
            Err(miss @ Miss::OutOfDescriptors) => return Err(miss),
            Ok(CompressedNames::Present) | Err(_) => known.is_useless.store(true, Relaxed),
        }
        Ok(true)
    }
}

/// Reads the names of a directory. Blocks.
fn read_names(root: &Root, path: &str) -> Result<CompressedNames, Miss> {
    let fd = root.open_directory(path)?;
    let file_system = rustix::fs::fstatfs(&fd).map_err(miss_of)?.f_type;
    if !TRUSTED.contains(&(file_system as u32)) {
        return Ok(CompressedNames::Present);
    }
    let stamp = || rustix::fs::fstat(&fd).map(|stat| FileStamp::of(&stat));
    let before = stamp().map_err(miss_of)?;
    for (nth, entry) in Dir::read_from(fd.as_fd()).map_err(miss_of)?.enumerate() {
        let entry = entry.map_err(miss_of)?;
        if nth == NAMES_MAX || is_variant(entry.file_name().to_bytes()) {
            return Ok(CompressedNames::Present);
        }
    }
    let is_same = stamp().map_err(miss_of)? == before;
    Ok(if is_same { CompressedNames::Absent(before) } else { CompressedNames::Changing })
}

/// True for the name of a variant, even in a case-insensitive directory. ext4(5), casefold
fn is_variant(name: &[u8]) -> bool {
    Encoding::ALL.iter().any(|encoding| {
        let suffix = encoding.suffix().as_bytes();
        let end = &name[name.len().saturating_sub(suffix.len())..];
        end.eq_ignore_ascii_case(suffix)
    })
}

impl Directories {
    fn get(&self, hash: u64) -> Option<Arc<Directory>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&hash).cloned()
    }

    fn put(&self, hash: u64, directory: Directory) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() == DIRECTORIES_MAX && !known.contains_key(&hash) {
            // An arbitrary one: the hashes are keyed.
            let victim = known.keys().next().copied();
            victim.map(|victim| known.remove(&victim));
            self.dropped.fetch_add(1, Relaxed);
        }
        known.insert(hash, Arc::new(directory));
    }

    pub(super) fn len(&self) -> usize {
        self.known.read().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Directory {
    fn new(path: &str, generation: u64, absent: Option<FileStamp>, checked_ns: u64) -> Directory {
        Directory {
            path: path.into(),
            generation,
            surveys: AtomicU32::new(0),
            absent,
            checked_ns: AtomicU64::new(checked_ns),
            is_useless: AtomicBool::new(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn times_of_proc_are_not_trusted() {
        let root = Root::open(Path::new("/proc/self"), false, 0).unwrap();
        assert!(matches!(read_names(&root, ""), Ok(CompressedNames::Present)));
    }

    #[test]
    fn variants_are_told_by_their_names() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path(), false, 0).unwrap();
        assert!(matches!(read_names(&root, ""), Ok(CompressedNames::Absent(_))));
        std::fs::write(directory.path().join("a.ZST"), "").unwrap();
        assert!(matches!(read_names(&root, ""), Ok(CompressedNames::Present)));
    }
}
