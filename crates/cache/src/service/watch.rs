//! `watch`: lines about events in the cache, for clients that watch.
//!
//! Without a watcher a command costs one load of [`Watchers::kinds`]. Each watcher has a bounded
//! queue; lines that do not fit are counted, and the watcher is told how many it missed.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use session::Now;

/// Maximum number of watchers, as in memcached: each line is copied for each.
pub(crate) const WATCHERS_MAX: usize = 20;

/// Maximum bytes of queued lines per watcher (memcached's `watcher_logbuf_size`).
pub(crate) const QUEUE_LEN_MAX: usize = 256 * 1024;

/// Kinds of events that a watcher requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kinds(u32);

impl Kinds {
    pub(crate) const NONE: Kinds = Kinds(0);
    pub(crate) const FETCHERS: Kinds = Kinds(1);
    pub(crate) const MUTATIONS: Kinds = Kinds(2);
    pub(crate) const EVICTIONS: Kinds = Kinds(4);
    pub(crate) const CONNEVENTS: Kinds = Kinds(8);
    pub(crate) const RAWCMDS: Kinds = Kinds(16);
    pub(crate) const SYSEVENTS: Kinds = Kinds(32);
    pub(crate) const DELETIONS: Kinds = Kinds(64);
    /// Events of the proxy: the name is accepted, but nothing is logged, because there is no proxy
    /// here.
    pub(crate) const PROXY: Kinds = Kinds(128);

    pub(crate) fn named(name: &[u8]) -> Option<Kinds> {
        Some(match name {
            b"fetchers" => Kinds::FETCHERS,
            b"mutations" => Kinds::MUTATIONS,
            b"evictions" => Kinds::EVICTIONS,
            b"connevents" => Kinds::CONNEVENTS,
            b"rawcmds" => Kinds::RAWCMDS,
            b"sysevents" => Kinds::SYSEVENTS,
            b"deletions" => Kinds::DELETIONS,
            b"proxyreqs" | b"proxyevents" | b"proxyuser" => Kinds::PROXY,
            _ => return None,
        })
    }

    pub(crate) fn and(self, other: Kinds) -> Kinds {
        Kinds(self.0 | other.0)
    }

    #[inline]
    pub(crate) fn overlap(self, other: Kinds) -> bool {
        self.0 & other.0 != 0
    }
}

/// All watchers of a server.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    /// Union of the kinds that watchers request.
    kinds: AtomicU32,
    list: Mutex<Vec<Arc<Watcher>>>,
    line_number: AtomicU64,
    pub(crate) written: AtomicU64,
    pub(crate) skipped: AtomicU64,
    pub(crate) sent: AtomicU64,
}

/// Notifies a connection of available lines. Called once, without locks.
pub(crate) type Wake = Box<dyn FnOnce() + Send>;

/// One connection that watches.
#[derive(Debug)]
pub(crate) struct Watcher {
    kinds: Kinds,
    queue: Mutex<LineQueue>,
    changed: Condvar,
    is_ended: AtomicBool,
}

#[derive(Default)]
struct LineQueue {
    lines: Vec<u8>,
    line_count: u64,
    skipped: u64,
    /// Wakes a connection that waits without occupying a thread.
    wake: Option<Wake>,
}

impl fmt::Debug for LineQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waits = self.wake.is_some();
        f.debug_struct("LineQueue")
            .field("line_count", &self.line_count)
            .field("waits", &waits)
            .finish()
    }
}

impl Watchers {
    /// Kinds that are currently watched.
    #[inline]
    pub(crate) fn kinds(&self) -> Kinds {
        Kinds(self.kinds.load(Ordering::Relaxed))
    }

    /// Number of watchers.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// A new watcher, or `None` when there are [`WATCHERS_MAX`].
    pub(crate) fn add(&self, kinds: Kinds) -> Option<Arc<Watcher>> {
        let mut list = self.lock();
        if list.len() >= WATCHERS_MAX {
            return None;
        }
        let watcher = Arc::new(Watcher {
            kinds,
            queue: Mutex::default(),
            changed: Condvar::new(),
            is_ended: AtomicBool::new(false),
        });
        list.push(watcher.clone());
        self.kinds.fetch_or(kinds.0, Ordering::Relaxed);
        Some(watcher)
    }

    pub(crate) fn remove(&self, watcher: &Arc<Watcher>) {
        let mut list = self.lock();
        list.retain(|other| !Arc::ptr_eq(other, watcher));
        let kinds = list.iter().fold(Kinds::NONE, |all, one| all.and(one.kinds));
        self.kinds.store(kinds.0, Ordering::Relaxed);
        drop(list);
        watcher.end();
    }

    /// Ends all watches: a server that drains does not wait for watchers.
    pub(crate) fn end(&self) {
        let all = self.lock().clone();
        all.iter().for_each(|watcher| watcher.end());
    }

    /// Queues a line for the watchers of its kind. `write` writes the part after `ts=` and `gid=`.
    #[cold]
    pub(crate) fn log(&self, kind: Kinds, now: Now, write: impl FnOnce(&mut String)) {
        let list = self.lock();
        if !list.iter().any(|watcher| watcher.kinds.overlap(kind)) {
            return;
        }
        let number = self.line_number.fetch_add(1, Ordering::Relaxed) + 1;
        let seconds = now.since_epoch.as_secs();
        let micros = now.since_epoch.subsec_micros();
        let mut line = String::with_capacity(160);
        let _ = write!(line, "ts={seconds}.{micros:06} gid={number} ");
        write(&mut line);
        line.push('\n');
        self.written.fetch_add(1, Ordering::Relaxed);
        let mut wakes = Vec::new();
        for watcher in list.iter().filter(|watcher| watcher.kinds.overlap(kind)) {
            if !watcher.push(line.as_bytes(), &mut wakes) {
                self.skipped.fetch_add(1, Ordering::Relaxed);
            }
        }
        drop(list);
        wakes.into_iter().for_each(|wake| wake());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Watcher>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watcher {
    /// Queues a line, unless the queue is full.
    fn push(&self, line: &[u8], wakes: &mut Vec<Wake>) -> bool {
        let mut queue = self.lock();
        if queue.lines.len() + line.len() > QUEUE_LEN_MAX {
            queue.skipped += 1;
            return false;
        }
        if queue.skipped > 0 {
            let missed = format!("skipped={}\n", std::mem::take(&mut queue.skipped));
            queue.lines.extend_from_slice(missed.as_bytes());
        }
        queue.lines.extend_from_slice(line);
        queue.line_count += 1;
        wakes.extend(queue.wake.take());
        self.changed.notify_all();
        true
    }

    /// Ends the watch.
    fn end(&self) {
        let wake = {
            let mut queue = self.lock();
            self.is_ended.store(true, Ordering::SeqCst);
            self.changed.notify_all();
            queue.wake.take()
        };
        wake.into_iter().for_each(|wake| wake());
    }

    /// Sets a callback for when lines are available or the watch has ended.
    pub(crate) fn wake_by(&self, wake: Wake) {
        let mut queue = self.lock();
        if queue.lines.is_empty() && !self.is_ended() {
            queue.wake = Some(wake);
            return;
        }
        drop(queue);
        wake();
    }

    /// Blocks this thread until lines are available, the timeout expires, or the watch ends.
    pub(crate) fn wait(&self, timeout: Duration) {
        let queue = self.lock();
        let nothing = |queue: &mut LineQueue| queue.lines.is_empty() && !self.is_ended();
        drop(self.changed.wait_timeout_while(queue, timeout, nothing));
    }

    /// Takes the queued lines; returns their number.
    pub(crate) fn take(&self, to: &mut Vec<u8>) -> u64 {
        let mut queue = self.lock();
        to.extend_from_slice(&queue.lines);
        queue.lines = Vec::new();
        std::mem::take(&mut queue.line_count)
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::SeqCst)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, LineQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use session::replay::test_now;

    #[test]
    fn watcher_gets_its_kinds() {
        let watchers = Watchers::default();
        let watcher = watchers.add(Kinds::MUTATIONS).unwrap();
        watchers.log(Kinds::FETCHERS, test_now(), |line| line.push_str("no"));
        watchers.log(Kinds::MUTATIONS, test_now(), |line| line.push_str("yes"));
        let mut lines = Vec::new();
        assert_eq!(watcher.take(&mut lines), 1);
        assert_eq!(lines, b"ts=1795176000.000000 gid=1 yes\n");
        watchers.remove(&watcher);
        assert_eq!(watchers.kinds(), Kinds::NONE);
    }

    #[test]
    fn waiting_connection_is_woken_once() {
        let watchers = Watchers::default();
        let watcher = watchers.add(Kinds::MUTATIONS).unwrap();
        let woken = Arc::new(AtomicU32::new(0));
        let wait = || {
            let woken = Arc::clone(&woken);
            let count = move || _ = woken.fetch_add(1, Ordering::Relaxed);
            watcher.wake_by(Box::new(count));
        };
        let count = || woken.load(Ordering::Relaxed);
        wait();
        watchers.log(Kinds::FETCHERS, test_now(), |line| line.push_str("no"));
        assert_eq!(count(), 0);
        watchers.log(Kinds::MUTATIONS, test_now(), |line| line.push_str("yes"));
        watchers.log(Kinds::MUTATIONS, test_now(), |line| line.push_str("yes"));
        assert_eq!(count(), 1);
        // Lines are available.
        wait();
        assert_eq!(count(), 2);
        watcher.take(&mut Vec::new());
        wait();
        watchers.end();
        assert_eq!(count(), 3);
        wait();
        watchers.remove(&watcher);
        assert_eq!((count(), Arc::strong_count(&watcher)), (4, 1));
    }

    #[test]
    fn slow_watcher_learns_of_skipped_lines() {
        let watchers = Watchers::default();
        let watcher = watchers.add(Kinds::FETCHERS).unwrap();
        let long = "x".repeat(QUEUE_LEN_MAX / 2);
        for _ in 0..3 {
            watchers.log(Kinds::FETCHERS, test_now(), |line| line.push_str(&long));
        }
        assert_eq!(watchers.skipped.load(Ordering::Relaxed), 2);
        watcher.take(&mut Vec::new());
        watchers.log(Kinds::FETCHERS, test_now(), |line| line.push('x'));
        let mut lines = Vec::new();
        watcher.take(&mut lines);
        assert!(lines.starts_with(b"skipped=2\n"));
    }

    #[test]
    fn there_is_a_limit_of_watchers() {
        let watchers = Watchers::default();
        let all: Vec<_> = (0..WATCHERS_MAX).map(|_| watchers.add(Kinds::PROXY)).collect();
        assert!(all.iter().all(Option::is_some));
        assert!(watchers.add(Kinds::PROXY).is_none());
    }
}
