use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use session::{FileStamp, SharedFile};

use super::open::{Miss, miss_of};
use super::table::{Record, Survey};
use super::{Moment, Site};

/// Time without a write after which a file is served. A write in progress leaves no trace: the
/// kernel sets the time before it copies the bytes. A write that began this long ago is over,
/// unless a single `write(2)` takes longer.
pub(super) const QUIET_PERIOD: Duration = Duration::from_millis(50);

/// Maximum time that a request waits for files to be quiet. After that it gets the present state,
/// with a weak validator and `no-store`.
pub(super) const WAIT_MAX: Duration = Duration::from_millis(200);

/// Maximum number of requests that wait at once: each holds a thread that others need for the disk.
pub(super) const WAITING_MAX: u64 = 16;

/// Quiet period of an empty file that still has blocks. While truncating a long file, the kernel
/// frees its blocks between setting the length and the times; but blocks may also be reserved
/// (`FALLOC_FL_KEEP_SIZE`, fallocate(2)).
const EMPTY_WITH_BLOCKS_QUIET: Duration = Duration::from_secs(1);

/// Time of continuous writing after which requests no longer wait for the file, such as a log.
const NEVER_QUIET_AFTER: Duration = Duration::from_secs(2);

/// Interval of checks while an older state of a file is served: a tick of the kernel's coarse
/// clock, by which files are stamped.
pub(super) const CHECK_AGAIN_MIN: Duration = Duration::from_millis(4);

/// A state of the disk that is not accepted yet, and the time when it was first seen.
#[derive(Debug)]
pub(super) struct Pending {
    survey: Survey,
    since_ns: u64,
}

/// Files that are being written: the states to accept, the older state to serve meanwhile, and the
/// time that a request waits.
///
/// ```text
///   open(O_TRUNC)       length 0, the old times, for some ms: ext4, XFS, Btrfs
///   ...                 length 0, new times
///   write(2) × n        new times, then bytes and length, piece by piece
///   (left alone)        after QUIET_PERIOD it is accepted
/// ```
impl Site {
    /// Time for which the file must still stay unmodified. `None`: it is accepted now.
    pub(super) fn quiet_left(
        &self,
        record: &Record,
        file: &SharedFile,
        moment: Moment,
    ) -> Result<Option<Duration>, Miss> {
        let stamp = file.stamp();
        let seen_for = Duration::from_nanos(moment.ns.saturating_sub(record.seen_ns));
        let second_look = match (stamp.len, record.is_resized) {
            (0, _) if has_blocks(file)? => EMPTY_WITH_BLOCKS_QUIET,
            (0, _) | (_, true) => QUIET_PERIOD,
            _ => Duration::ZERO,
        };
        let left = if record.settled {
            Duration::ZERO
        } else {
            QUIET_PERIOD.saturating_sub(age(stamp, moment.since_epoch))
        };
        let left = left.max(second_look.saturating_sub(seen_for));
        Ok((!left.is_zero()).then_some(left))
    }

    /// Waits for a write to end. `None` if too many requests wait already.
    pub(super) fn wait_until_quiet(&self, moment: Moment, left: Duration) -> Option<Moment> {
        let may_wait = self.cache.waiting.fetch_add(1, Relaxed) < WAITING_MAX;
        if may_wait {
            self.cache.counts.waits.fetch_add(1, Relaxed);
            std::thread::sleep(left);
        }
        self.cache.waiting.fetch_sub(1, Relaxed);
        may_wait.then(|| moment.after(left))
    }

    /// True if the known state is served although the disk has another one: the new one is not
    /// complete yet, and the bytes of the old one are in memory. Limited to the promised time.
    pub(super) fn stands(&self, known: &Record, survey: &Survey, moment: Moment) -> bool {
        let check_ns = moment.ns + CHECK_AGAIN_MIN.as_nanos() as u64;
        let is_late = check_ns.saturating_sub(known.checked_ns()) > 2 * self.half_recheck_ns;
        if is_late || known.is_moving() {
            return false;
        }
        let seen_ns = known.seen_since(survey, moment.ns);
        // Another thread may have checked a little later.
        let seen_for = Duration::from_nanos(moment.ns.saturating_sub(seen_ns));
        let is_unfinished = known.entries().any(|(id, entry)| {
            // A variant made from the plain file has its state.
            let file = id.encoding.filter(|_| !known.survey.is_made(id.encoding));
            let before = known.survey.stamp(file);
            let stamps = before.zip(survey.stamp(file));
            entry.is_in_memory()
                && stamps.is_some_and(|(before, now)| {
                    before != now
                        && (age(now, moment.since_epoch) < QUIET_PERIOD
                            || (is_doubtful(before, now) && seen_for < QUIET_PERIOD))
                })
        });
        if is_unfinished {
            known.postpone(check_ns);
        }
        is_unfinished
    }

    /// True if the file has been written to for so long that requests no longer wait for the end.
    pub(super) fn never_quiet(&self, record: &Record, moment: Moment) -> bool {
        let moving_for = Duration::from_nanos(moment.ns.saturating_sub(record.moving_since_ns()));
        // An empty file would be of no use to a client.
        record.is_moving() && moving_for >= NEVER_QUIET_AFTER && record.survey.plain.len > 0
    }
}

/// Time since the last write, as far as the stamp tells. A write sets both times, so the last one
/// was no later than the earlier of the two: a rename sets `ctime` alone, and setting `mtime` needs
/// write access. Zero for a time in the future.
pub(super) fn age(stamp: FileStamp, since_epoch: Duration) -> Duration {
    let written_ns = stamp.mtime_ns.min(stamp.ctime_ns);
    let age_ns = (since_epoch.as_nanos() as i128).saturating_sub(written_ns);
    Duration::from_nanos(u64::try_from(age_ns.max(0)).unwrap_or(u64::MAX))
}

/// True if the later stamp must persist for a while before it is accepted, whatever its times: a
/// truncation changes the length before the times.
fn is_doubtful(before: FileStamp, now: FileStamp) -> bool {
    now.len == 0 || is_resized(before, now)
}

/// True if only the length differs: a write is in progress.
pub(super) fn is_resized(before: FileStamp, now: FileStamp) -> bool {
    let len = before.len;
    now.len != len && FileStamp { len, ..now } == before
}

fn has_blocks(file: &SharedFile) -> Result<bool, Miss> {
    Ok(rustix::fs::fstat(file).map_err(miss_of)?.st_blocks > 0)
}

impl Pending {
    pub(super) fn new(survey: &Survey, since_ns: u64) -> Pending {
        Pending { survey: survey.clone(), since_ns }
    }

    /// Time when this state was first seen, if it is the same.
    pub(super) fn since_ns(&self, survey: &Survey) -> Option<u64> {
        (self.survey == *survey).then_some(self.since_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i128 = 1_000_000;

    fn stamp(len: u64, mtime_ns: i128, ctime_ns: i128) -> FileStamp {
        FileStamp { len, mtime_ns, ctime_ns, inode: (1, 2) }
    }

    #[test]
    fn age_by_the_earlier_time() {
        let now = Duration::from_secs(1000);
        let at = |before_ms: i128| now.as_nanos() as i128 - before_ms * MS;
        let age_ms =
            |mtime_ms, ctime_ms| age(stamp(1, at(mtime_ms), at(ctime_ms)), now).as_millis() as u64;
        assert_eq!(age_ms(30, 30), 30);
        assert_eq!(age_ms(5000, 30), 5000, "renamed, or its time set back");
        assert_eq!(age_ms(-5000, 30), 30, "its time set ahead");
        assert_eq!(age_ms(-1, -1), 0);
    }

    #[test]
    fn length_without_time_is_a_write() {
        let before = stamp(100, 1, 1);
        assert!(is_resized(before, stamp(0, 1, 1)) && is_resized(before, stamp(7, 1, 1)));
        assert!(!is_resized(before, before) && !is_resized(before, stamp(7, 2, 2)));
        let inode = (1, 3);
        let other = FileStamp { inode, ..stamp(7, 1, 1) };
        assert!(!is_resized(before, other), "renamed over it");
        assert!(is_doubtful(before, FileStamp { inode, ..stamp(0, 9, 9) }));
    }
}
