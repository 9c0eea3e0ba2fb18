use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use session::FileStamp;

use super::entry::{Body, Entry};
use crate::lookup::Encoding;

/// The values of an entry's header fields.
#[derive(Debug)]
pub(super) struct Description<'a> {
    pub(super) content_type: &'a str,
    pub(super) encoding: Option<Encoding>,
    pub(super) len: u64,
    /// With its quotes.
    pub(super) etag: String,
    /// Seconds since 1970.
    pub(super) modified_s: u64,
    pub(super) modified_is_strong: bool,
    /// The value of `Vary`, if any.
    pub(super) vary: Option<&'static str>,
    /// Lines by the operator's rules.
    pub(super) extra: &'a str,
}

/// How long after a change another one may carry the same time stamp. Linux's file systems stamp to
/// some milliseconds or better, ext3 and old NFS to a second, FAT to two.
const STAMP_GRAIN: Duration = Duration::from_secs(2);

/// Whether a file's stamp, taken at `since_epoch`, will tell it from every later state. A file
/// that was changed just now may change again without another stamp, as git's index found out
/// ("racy git"). `ctime` is what counts: it cannot be set back.
///
/// A change time that lies further ahead than [`STAMP_GRAIN`] means that the clocks of file server
/// and web server disagree. Nothing can be told then, and the file counts as settled: otherwise a
/// clock that is wrong would have every file read again at every check.
pub(super) fn is_settled(stamp: FileStamp, since_epoch: Duration) -> bool {
    let now_ns = since_epoch.as_nanos() as i128;
    (now_ns - stamp.ctime_ns).unsigned_abs() > STAMP_GRAIN.as_nanos()
}

/// How long a file must have been left alone before it is sent from its open file. A write in
/// progress leaves no trace: the kernel sets the time before it copies the bytes. What began this
/// long ago is over, unless a single `write(2)` takes longer.
pub(super) const REST: Duration = Duration::from_millis(50);

/// Whether no write into the file is likely to be under way.
pub(super) fn is_at_rest(stamp: FileStamp, since_epoch: Duration) -> bool {
    since_epoch.as_nanos() as i128 - stamp.ctime_ns >= REST.as_nanos() as i128
}

/// How soon a file that is not settled is looked at again: after as long as it was left alone
/// before. So a state that was caught between two writes is replaced soon, and a file that no
/// longer changes is soon not checked any more.
pub(super) fn look_again_after(stamp: FileStamp, since_epoch: Duration) -> Duration {
    let age_ns = since_epoch.as_nanos() as i128 - stamp.ctime_ns;
    Duration::from_nanos(u64::try_from(age_ns).unwrap_or(0)).max(LOOK_AGAIN_MIN)
}

/// A tick of the kernel's coarse clock, by which files are stamped.
const LOOK_AGAIN_MIN: Duration = Duration::from_millis(4);

/// `"len-mtime"` in hexadecimal, `-br` and the like behind it for variants. Neither inode nor
/// change time is in it, so that replicas with the same files (`rsync -t`) agree. RFC 9110 8.8.3
///
/// While the file is not settled, two states could have the same length and time. A strong
/// validator must tell them apart, so until then it also names this `reading` of the file: a client
/// that resumes a download of a file that was written less than two seconds before its first
/// request starts again.
pub(super) fn etag(stamp: FileStamp, encoding: Option<Encoding>, reading: Option<u128>) -> String {
    let mut etag = format!("\"{:x}-{:x}", stamp.len, stamp.mtime_ns);
    if let Some(encoding) = encoding {
        etag.extend(["-", encoding.token()]);
    }
    if let Some(reading) = reading {
        _ = write!(etag, "-{reading:x}");
    }
    etag.push('"');
    etag
}

/// A file's time of modification in whole seconds, but never in the future (RFC 9110 8.8.2.1), and
/// whether it may serve as a strong validator: when it is so old that the file, had it changed
/// again in that second, would have done so before we looked (RFC 9110 8.8.2.2).
pub(super) fn modified(stamp: FileStamp, since_epoch: Duration) -> (u64, bool) {
    let now_s = since_epoch.as_secs();
    let modified_s = stamp
        .mtime_ns
        .div_euclid(1_000_000_000)
        .clamp(0, i128::from(now_s)) as u64;
    let is_old = modified_s + STAMP_GRAIN.as_secs() <= now_s;
    (modified_s, is_old && is_settled(stamp, since_epoch))
}

/// Writes the header lines and makes the entry.
pub(super) fn entry(description: &Description<'_>, body: Body) -> Entry {
    let shared = shared_lines(description);
    let coding = match description.encoding {
        Some(encoding) => format!("Content-Encoding: {}\r\n", encoding.token()),
        None => String::new(),
    };
    let Description {
        content_type, len, ..
    } = *description;
    // nosniff: a browser must not run a text file that looks like a script.
    // https://fetch.spec.whatwg.org/#x-content-type-options-header
    let body_lines = format!("{coding}Accept-Ranges: bytes\r\nX-Content-Type-Options: nosniff\r\n");
    let head_206 = format!("{body_lines}{shared}");
    let head_200 = format!("Content-Type: {content_type}\r\nContent-Length: {len}\r\n{head_206}");
    Entry {
        etag: description.etag.as_str().into(),
        modified_s: description.modified_s,
        modified_is_strong: description.modified_is_strong,
        content_type: content_type.into(),
        head_200: Bytes::from(head_200),
        head_206: Bytes::from(head_206),
        head_304: Bytes::from(shared),
        len,
        body,
    }
}

/// The same entry with its bytes elsewhere.
pub(super) fn with_body(entry: &Entry, body: Body) -> Entry {
    Entry {
        etag: entry.etag.clone(),
        modified_s: entry.modified_s,
        modified_is_strong: entry.modified_is_strong,
        content_type: entry.content_type.clone(),
        head_200: entry.head_200.clone(),
        head_206: entry.head_206.clone(),
        head_304: entry.head_304.clone(),
        len: entry.len,
        body,
    }
}

/// What a 304 carries, and so do the others. RFC 9110 15.4.5
fn shared_lines(description: &Description<'_>) -> String {
    let modified = http_date(description.modified_s);
    let mut lines = format!(
        "Last-Modified: {modified}\r\nETag: {}\r\n",
        description.etag
    );
    if let Some(vary) = description.vary {
        _ = write!(lines, "Vary: {vary}\r\n");
    }
    lines.push_str(description.extra);
    lines
}

fn http_date(seconds: u64) -> String {
    // The format ends with the year 9999.
    const LAST_S: u64 = 253_402_300_799;
    let time: SystemTime = UNIX_EPOCH + Duration::from_secs(seconds.min(LAST_S));
    httpdate::fmt_http_date(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(mtime_s: i128, ctime_s: i128) -> FileStamp {
        let ns = 1_000_000_000;
        FileStamp {
            len: 255,
            mtime_ns: mtime_s * ns,
            ctime_ns: ctime_s * ns,
            inode: (1, 2),
        }
    }

    const NOW: Duration = Duration::from_secs(1000);

    #[test]
    fn an_etag_is_the_same_on_every_replica_and_another_for_each_encoding() {
        let replica = FileStamp {
            ctime_ns: 7,
            inode: (8, 9),
            ..stamp(1, 1)
        };
        assert_eq!(etag(stamp(1, 1), None, None), "\"ff-3b9aca00\"");
        assert_eq!(etag(replica, None, None), "\"ff-3b9aca00\"");
        assert_eq!(
            etag(replica, Some(Encoding::Br), None),
            "\"ff-3b9aca00-br\""
        );
    }

    #[test]
    fn an_etag_of_a_file_that_changed_just_now_names_the_reading() {
        assert_ne!(
            etag(stamp(1, 1), None, Some(1)),
            etag(stamp(1, 1), None, Some(2))
        );
    }

    #[test]
    fn a_file_settles_when_its_next_change_must_show() {
        assert!(is_settled(stamp(0, 997), NOW));
        assert!(
            !is_settled(stamp(0, 999), NOW),
            "the time of modification can be set back"
        );
        assert!(!is_settled(stamp(0, 1001), NOW));
        assert!(is_settled(stamp(0, 2000), NOW), "a clock that is wrong");
    }

    #[test]
    fn a_young_file_is_looked_at_again_after_its_own_age() {
        let after = |age_ns: i128| {
            let ctime_ns = NOW.as_nanos() as i128 - age_ns;
            look_again_after(
                FileStamp {
                    ctime_ns,
                    ..stamp(0, 0)
                },
                NOW,
            )
        };
        assert_eq!(after(300_000_000), Duration::from_millis(300));
        assert_eq!(after(0), LOOK_AGAIN_MIN);
        assert_eq!(after(-1_000_000_000), LOOK_AGAIN_MIN);
    }

    #[test]
    fn last_modified_is_never_in_the_future() {
        assert_eq!(modified(stamp(2000, 10), NOW), (1000, false));
        assert_eq!(modified(stamp(-5, 10), NOW), (0, true));
        assert_eq!(modified(stamp(998, 10), NOW), (998, true));
        assert_eq!(modified(stamp(999, 10), NOW), (999, false));
    }
}
