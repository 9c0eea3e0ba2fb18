//! A site over a directory, with a clock that the test moves.

mod access;
mod beside;
mod clean_urls;
mod compress;
mod error_pages;
mod etags;
mod found;
mod fresh;
mod limits;
mod storm;
mod variants;
mod written;
mod young;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use proptest::prelude::*;
use tempfile::TempDir;

use super::read::{Reading, read_whole};
use super::*;
use crate::lookup::{Encoding, Encodings, ListingFormat, ListingSort};

/// All codings.
const ALL: [Encoding; 3] = Encoding::ALL;

/// A site over a directory of its own, and a clock that the test moves.
struct World {
    dir: TempDir,
    site: Site,
    start: Now,
    /// Seconds since the files were written; ten, so that they are settled.
    at_s: f64,
}

impl World {
    fn new(files: &[(&str, &str)]) -> World {
        World::with(files, |_| ())
    }

    fn with(files: &[(&str, &str)], configure: impl FnOnce(&mut SiteConfig)) -> World {
        let dir = TempDir::new().unwrap();
        files.iter().for_each(|(path, text)| write(&dir, path, text));
        let mut config = SiteConfig {
            root: dir.path().to_owned(),
            // By default the site checks the machine's memory now and then, which may block.
            page_cache_budget: Some(8 << 30),
            ..SiteConfig::default()
        };
        configure(&mut config);
        let start = Now::read();
        World { site: Site::open(config).unwrap(), dir, start, at_s: 10.0 }
    }

    /// Acts as on a kernel without `openat2`.
    fn without_openat2(self) -> World {
        let root = Root::open(self.dir.path(), false, 0).unwrap();
        *self.site.root.write().unwrap() = Arc::new(root.without_openat2());
        self
    }

    fn write(&self, path: &str, text: &str) {
        write(&self.dir, path, text);
    }

    /// Restarts the clock now, however long it took to write the files.
    fn settle(&mut self) {
        self.start = Now::read();
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    /// Sets the clock so long after the file's last change, however slow the test was.
    fn set_age(&mut self, path: &str, age: Duration) {
        let file = fs::metadata(self.path(path)).unwrap();
        let changed = Duration::new(file.ctime() as u64, file.ctime_nsec() as u32);
        self.start.since_epoch = changed + age - Duration::from_secs_f64(self.at_s);
    }

    fn now(&self) -> Now {
        let since = Duration::from_secs_f64(self.at_s);
        Now { monotonic: self.start.monotonic + since, since_epoch: self.start.since_epoch + since }
    }

    fn find(&self, path: &str, accepts: &[Encoding]) -> Found {
        self.site.find(&lookup(path, accepts), self.now())
    }

    fn load(&self, path: &str, accepts: &[Encoding]) -> Found {
        self.site.load(&lookup(path, accepts), self.now())
    }

    /// Looks up as a session does: first without blocking, then with.
    fn ask(&self, path: &str, accepts: &[Encoding]) -> Found {
        match self.find(path, accepts) {
            Found::WouldBlock => self.load(path, accepts),
            found => found,
        }
    }

    fn entry(&self, path: &str) -> Arc<Entry> {
        entry_of(self.ask(path, &[]))
    }

    fn text(&self, path: &str) -> String {
        text_of(&self.entry(path))
    }

    fn count(&self, name: &str) -> u64 {
        self.site.counters().find(|(of, ..)| *of == name).unwrap().2
    }
}

fn write(dir: &TempDir, path: &str, text: &str) {
    let path = dir.path().join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn lookup<'a>(path: &'a str, accepts: &[Encoding]) -> Lookup<'a> {
    let mut encodings = Encodings::NONE;
    accepts.iter().for_each(|&encoding| encodings.push(encoding));
    Lookup { path, accepts: encodings, listing: ListingFormat::Html, sort: ListingSort::default() }
}

fn entry_of(found: Found) -> Arc<Entry> {
    match found {
        Found::Entry(entry) | Found::Fallback(entry) => entry,
        other => panic!("no entry: {other:?}"),
    }
}

/// The bytes of an entry as a driver sends them, checked against its own header.
fn bytes_of(entry: &Entry) -> Bytes {
    let bytes = match &entry.body {
        Body::Memory(bytes) => bytes.clone(),
        Body::File { file, .. } => match read_whole(file, Blocking::Allowed).unwrap() {
            Reading::Whole(bytes) => bytes,
            other => panic!("{other:?}"),
        },
    };
    assert_eq!(bytes.len() as u64, entry.len);
    bytes
}

fn text_of(entry: &Entry) -> String {
    String::from_utf8(bytes_of(entry).to_vec()).unwrap()
}

fn head_of(entry: &Entry) -> String {
    String::from_utf8(entry.head_200.to_vec()).unwrap()
}

fn is_in_memory(entry: &Entry) -> bool {
    matches!(entry.body, Body::Memory(_))
}

fn set_mtime(path: &Path, seconds: u64) {
    let time = std::time::UNIX_EPOCH + Duration::from_secs(seconds);
    File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}
