//! The most requested paths, for operators: a bounded table, fed from a sample of the replies.
//!
//! ```text
//!  reply ─▶ sample: all replies while there are up to 256 in a second,
//!                │   else one in 128, which counts for 128
//!                ▼
//!           table of 128 paths ── weight (ages), replies and bytes since the path came in
//!                                 a new path replaces the one of the least weight
//! ```
//!
//! Space-saving with aging. Metwally, Agrawal, El Abbadi: *Efficient Computation of Frequent and
//! Top-k Elements in Data Streams* (2005)

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, TryLockError};

use crate::request::Target;
use crate::request::target::encoded;

/// Limit on paths.
const PATHS_MAX: usize = 128;

/// Bytes kept of a path.
const PATH_LEN_MAX: usize = 256;

/// Replies per second up to which all are counted.
const EXACT_MAX: u64 = 256;

/// Sampling interval above that rate: one reply counts for this many.
const SAMPLE_EVERY: u64 = 128;

/// Interval at which weights are halved, so that new paths can displace old ones.
const AGE_EVERY_S: u64 = 16;

/// A path and its replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PopularPath {
    /// The name of the host, if it has one, and the path as it was requested, without the query,
    /// and with bytes above ASCII percent-encoded.
    pub path: String,
    /// Estimated replies since the path entered the table.
    pub replies: u64,
    /// Bytes of their bodies.
    pub body_bytes: u64,
}

/// The sample and the table.
#[derive(Debug)]
pub(crate) struct PopularPaths {
    /// A reply is counted if the hash of its number is at most this.
    threshold: AtomicU64,
    table: Mutex<PathCounts>,
    /// Hashes paths unpredictably for clients.
    seed: RandomState,
    missed: AtomicU64,
    replaced: AtomicU64,
}

const ALL: u64 = u64::MAX;
const ONE_IN_MANY: u64 = u64::MAX / SAMPLE_EVERY;

#[derive(Debug, Default)]
struct PathCounts {
    /// Hashes of the paths, in the order of `rows`: a search reads only these.
    hashes: Vec<u64>,
    rows: Vec<CountedPath>,
    aged_s: u64,
    second: u64,
    /// Estimated replies of that second.
    counted: u64,
}

#[derive(Debug)]
struct CountedPath {
    weight: u64,
    known: PopularPath,
}

impl PopularPaths {
    pub(crate) fn new() -> PopularPaths {
        PopularPaths {
            threshold: AtomicU64::new(ALL),
            table: Mutex::default(),
            seed: RandomState::new(),
            missed: AtomicU64::new(0),
            replaced: AtomicU64::new(0),
        }
    }

    /// Weight of the reply with this number: 0 if it is not sampled.
    #[inline]
    pub(crate) fn weight(&self, number: u64) -> u64 {
        // Multiples of the golden ratio are spread evenly, whatever the period of the requests.
        // Every 128th reply would always be the same path for a client that requests 128 paths in
        // turn. Knuth, TAOCP 3, 6.4
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let threshold = self.threshold.load(Relaxed);
        if number.wrapping_mul(GOLDEN) > threshold {
            return 0;
        }
        if threshold == ALL { 1 } else { SAMPLE_EVERY }
    }

    /// Counts a reply with a weight. `line` is the request line.
    #[cold]
    pub(crate) fn add(&self, weight: u64, second: u64, host: &str, line: &[u8], body_len: u64) {
        let path = path_of(line);
        let path = &path[..path.len().min(PATH_LEN_MAX)];
        let hash = self.seed.hash_one((host, path));
        let mut table = match self.table.try_lock() {
            Ok(table) => table,
            Err(TryLockError::Poisoned(table)) => table.into_inner(),
            // A reply never waits for the table.
            Err(TryLockError::WouldBlock) => {
                self.missed.fetch_add(weight, Relaxed);
                return;
            }
        };
        table.age(second);
        table.counted += weight;
        self.threshold.store(table.threshold(), Relaxed);
        let text = || format!("{host}{}", String::from_utf8_lossy(path));
        let at = match table.hashes.iter().position(|known| *known == hash) {
            Some(at) => at,
            None => {
                let is_full = table.rows.len() == PATHS_MAX;
                self.replaced.fetch_add(is_full.into(), Relaxed);
                table.enter(hash, text())
            }
        };
        let row = &mut table.rows[at];
        row.weight += weight;
        row.known.replies += weight;
        row.known.body_bytes += weight * body_len;
    }

    /// The table, unordered.
    pub(crate) fn list(&self, second: u64) -> Vec<PopularPath> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        // After a burst the sample may be too sparse to age the table in time.
        table.age(second);
        self.threshold.store(table.threshold(), Relaxed);
        table.rows.iter().map(|row| row.known.clone()).collect()
    }

    /// Replies that were not counted because the table was in use.
    pub(crate) fn missed(&self) -> u64 {
        self.missed.load(Relaxed)
    }

    /// Paths that were displaced by others.
    pub(crate) fn replaced(&self) -> u64 {
        self.replaced.load(Relaxed)
    }
}

impl PathCounts {
    fn age(&mut self, second: u64) {
        if second != self.second {
            // The previous second's count is the best estimate for this one.
            let is_next = second == self.second + 1;
            let is_crowd = is_next && self.counted > EXACT_MAX;
            self.counted = if is_crowd { EXACT_MAX } else { 0 };
            self.second = second;
        }
        if second >= self.aged_s + AGE_EVERY_S {
            self.aged_s = second;
            self.rows.iter_mut().for_each(|row| row.weight /= 2);
        }
    }

    fn threshold(&self) -> u64 {
        if self.counted < EXACT_MAX { ALL } else { ONE_IN_MANY }
    }

    /// Inserts a path; in a full table it replaces the path of the least weight and inherits that
    /// weight. Returns its index.
    fn enter(&mut self, hash: u64, path: String) -> usize {
        let known = PopularPath { path, replies: 0, body_bytes: 0 };
        if self.rows.len() < PATHS_MAX {
            self.hashes.push(hash);
            self.rows.push(CountedPath { weight: 0, known });
            return self.rows.len() - 1;
        }
        let rows = self.rows.iter().enumerate();
        let (at, _) = rows.min_by_key(|(_, row)| row.weight).expect("it is full");
        self.hashes[at] = hash;
        self.rows[at].known = known;
        at
    }
}

/// The path of a request line, without host and query, in ASCII.
fn path_of(line: &[u8]) -> Cow<'_, [u8]> {
    let target = line.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    let path = match Target::parse(target) {
        Ok(Target::Path(raw)) => raw.path,
        _ => target,
    };
    encoded(&path[..path.len().min(PATH_LEN_MAX)])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests of one thread.
    struct Client(PopularPaths, u64);

    impl Client {
        fn new() -> Client {
            Client(PopularPaths::new(), 0)
        }

        fn ask(&mut self, second: u64, path: &str, body_len: u64) {
            let Client(paths, number) = self;
            let weight = paths.weight(*number);
            *number += 1;
            if weight > 0 {
                let line = format!("GET {path} HTTP/1.1");
                paths.add(weight, second, "", line.as_bytes(), body_len);
            }
        }

        fn replies(&self, path: &str) -> u64 {
            let list = self.0.list(0);
            let found = list.iter().find(|popular| popular.path == path);
            found.map_or(0, |popular| popular.replies)
        }
    }

    #[test]
    fn few_replies_are_counted_exactly() {
        let mut client = Client::new();
        for (path, body_len) in [("/a", 10), ("/b?x", 1), ("/a?y=1", 20), ("*", 0)] {
            client.ask(7, path, body_len);
        }
        client.0.add(1, 7, "h.example", b"GET /a HTTP/1.1", 5);
        let mut list = client.0.list(7);
        list.sort_by(|one, other| one.path.cmp(&other.path));
        let list = list.iter();
        let list = list.map(|path| (&*path.path, path.replies, path.body_bytes));
        let expected = [("*", 1, 0), ("/a", 2, 30), ("/b", 1, 1), ("h.example/a", 1, 5)];
        assert_eq!(list.collect::<Vec<_>>(), expected);
    }

    /// Seen: a page had one row per form of its target, and invisible characters raw.
    #[test]
    fn a_path_has_one_row_for_all_forms() {
        let mut client = Client::new();
        for path in ["/é", "/%C3%A9", "http://h.example/é?x", "HTTPS://h.example:8443/%C3%A9"] {
            client.ask(7, path, 1);
        }
        for path in ["/", "http://h.example", "http://h.example?x=/a"] {
            client.ask(7, path, 1);
        }
        client.ask(7, "/\u{9b}\u{202e}", 1);
        assert_eq!((client.replies("/%C3%A9"), client.replies("/")), (4, 3));
        assert_eq!(client.replies("/%C2%9B%E2%80%AE"), 1);
        client.ask(7, &"/é".repeat(200), 1);
        assert!(client.0.list(7).iter().all(|row| row.path.len() <= PATH_LEN_MAX));
    }

    #[test]
    fn a_sample_of_many_is_true_to_them() {
        const REPLIES: u64 = 1_000_000;
        for period in [1, 2, 10, 64, 100, 128] {
            let mut client = Client::new();
            for number in 0..REPLIES {
                let second = number / 100_000;
                client.ask(second, &format!("/{}", number % period), 1);
            }
            for path in 0..period {
                let share = client.replies(&format!("/{path}")) * period;
                let error = share.abs_diff(REPLIES) as f64 / REPLIES as f64;
                assert!(error < 0.1, "{path} of {period}: {share} of {REPLIES}");
            }
        }
    }

    #[test]
    fn a_crowd_that_has_gone_thins_the_sample_no_more() {
        let mut client = Client::new();
        (0..10_000).for_each(|_| client.ask(7, "/crowd", 1));
        assert_eq!(client.0.threshold.load(Relaxed), ONE_IN_MANY);
        client.0.list(8);
        client.0.list(9);
        (0..10).for_each(|_| client.ask(9, "/quiet", 1));
        assert_eq!(client.replies("/quiet"), 10);
    }

    #[test]
    fn table_is_bounded_and_keeps_the_popular() {
        let mut client = Client::new();
        let tail = 3 * PATHS_MAX;
        for number in 0..100 * tail {
            // The second advances, so each reply is counted.
            let second = number as u64 / 100;
            let path = if number % 10 == 0 { "/hot".into() } else { format!("/{}", number % tail) };
            client.ask(second, &path, 1);
        }
        assert_eq!(client.0.list(0).len(), PATHS_MAX);
        assert_eq!(client.replies("/hot"), 10 * tail as u64);
        assert!(client.0.replaced() > 0);
    }

    #[test]
    fn newly_popular_path_finds_a_place() {
        let mut client = Client::new();
        for number in 0..PATHS_MAX * 200 {
            let path = format!("/old{}", number % PATHS_MAX);
            client.ask(number as u64 / 200, &path, 1);
        }
        let later = 100_000;
        for number in 0..1000 {
            let path = if number % 2 == 0 { "/new".to_owned() } else { format!("/tail{number}") };
            client.ask(later + number / 100, &path, 1);
        }
        assert_eq!(client.replies("/new"), 500);
    }

    #[test]
    fn long_paths_are_cut() {
        let mut client = Client::new();
        client.ask(1, &"/x".repeat(10_000), 1);
        assert_eq!(client.0.list(1)[0].path.len(), PATH_LEN_MAX);
    }

    #[test]
    fn no_reply_waits_for_the_table() {
        let paths = PopularPaths::new();
        let held = paths.table.lock().unwrap();
        paths.add(128, 1, "", b"GET / HTTP/1.1", 1);
        drop(held);
        assert_eq!((paths.list(1).len(), paths.missed()), (0, 128));
    }
}
