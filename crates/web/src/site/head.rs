use std::fmt::Write;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use session::FileStamp;

use super::config::EtagKind;
use super::cors::Readers;
use super::entry::{Body, Entry};
use super::quiet::CHECK_AGAIN_MIN;
use super::rules;
use crate::lookup::Encoding;

/// The values of an entry's header fields.
#[derive(Debug)]
pub(super) struct Description<'a> {
    pub(super) content_type: &'a str,
    pub(super) encoding: Option<Encoding>,
    pub(super) len: u64,
    /// With its quotes, if there is one.
    pub(super) etag: Option<String>,
    pub(super) modified: Modified,
    /// The value of `Vary`, if any.
    pub(super) vary: Option<&'static str>,
    /// Lines of the operator's rules.
    pub(super) extra: &'a str,
    pub(super) area: Option<usize>,
    pub(super) address_area: Option<usize>,
    pub(super) readers: Readers,
}

/// Granularity of time stamps: two changes within it may get the same stamp. Linux's file systems
/// stamp to some milliseconds or better, ext3 and old NFS to a second, FAT to two.
const STAMP_GRAIN: Duration = Duration::from_secs(2);

/// True if a file's stamp, taken at `since_epoch`, differs from that of every later state. A file
/// changed just now may change again without another stamp ("racy git"). `ctime` is compared: it
/// cannot be set back.
///
/// A change time further ahead than [`STAMP_GRAIN`] means that the clocks of file server and web
/// server disagree. The file then counts as settled: otherwise a wrong clock would have every file
/// read again at every check.
pub(super) fn is_settled(stamp: FileStamp, since_epoch: Duration) -> bool {
    let now_ns = since_epoch.as_nanos() as i128;
    (now_ns - stamp.ctime_ns).unsigned_abs() > STAMP_GRAIN.as_nanos()
}

/// Interval after which an unsettled file is checked again: equal to its age. A state caught
/// between two writes is thus replaced soon, and checks of an unchanged file soon end.
pub(super) fn check_again_after(stamp: FileStamp, since_epoch: Duration) -> Duration {
    let age_ns = since_epoch.as_nanos() as i128 - stamp.ctime_ns;
    Duration::from_nanos(u64::try_from(age_ns).unwrap_or(0)).max(CHECK_AGAIN_MIN)
}

/// A file's entity tag: its length, the [`EtagKind`] value, and `-br` and the like for variants.
/// RFC 9110 8.8.3
///
/// While the file is not settled, two states could have the same length and times. A strong
/// validator must distinguish them, so until then it also names this `reading` of the file: a
/// client that resumes a download of a file written less than two seconds before its first request
/// starts again.
pub(super) fn etag(
    kind: EtagKind,
    stamp: FileStamp,
    encoding: Option<Encoding>,
    reading: Option<u128>,
) -> Option<String> {
    let state = match kind {
        EtagKind::Inode => state_hash(stamp).into(),
        EtagKind::Mtime if is_normalised(stamp.mtime_ns) => return None,
        EtagKind::Mtime => stamp.mtime_ns,
        EtagKind::Off => return None,
    };
    let mut etag = format!("\"{:x}-{state:x}", stamp.len);
    if let Some(encoding) = encoding {
        etag.extend(["-", encoding.token()]);
    }
    if let Some(reading) = reading {
        _ = write!(etag, "-{reading:x}");
    }
    etag.push('"');
    Some(etag)
}

/// Hash of the stamp fields that change with the bytes. Excludes the device, whose number may
/// change when the machine restarts.
fn state_hash(stamp: FileStamp) -> u64 {
    let mut state = [0; 40];
    state[..8].copy_from_slice(&stamp.inode.1.to_le_bytes());
    state[8..24].copy_from_slice(&stamp.ctime_ns.to_le_bytes());
    state[24..].copy_from_slice(&stamp.mtime_ns.to_le_bytes());
    fnv1a(&state)
}

/// FNV-1a, 64 bits: the same on every machine. A client gains nothing from a collision.
pub(super) fn fnv1a(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// True for a time that tools give to every file to make builds reproducible: such files keep their
/// time when they change. Any time before 1990, when there was no web, is one: 0 and 1 (OSTree,
/// Nix, Guix, container images), 1980 (zip), 1984 (Yarn), 1985 (npm). Later ones are listed.
fn is_normalised(mtime_ns: i128) -> bool {
    const YEAR_1990_S: i128 = 631_152_000;
    // cargo package, Bazel, Poetry, Hatch.
    const BY_NAME_S: [i128; 4] = [1_153_704_088, 1_262_304_000, 1_451_606_400, 1_580_601_600];
    let seconds = mtime_ns.div_euclid(1_000_000_000);
    seconds < YEAR_1990_S || BY_NAME_S.map(|seconds| seconds * 1_000_000_000).contains(&mtime_ns)
}

/// A file's modification time, as clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Modified {
    /// Whole seconds since 1970, never in the future (RFC 9110 8.8.2.1).
    pub(super) s: u64,
    /// True if it distinguishes states of the file, and is therefore sent.
    pub(super) is_told: bool,
    /// True if it may replace a strong ETag. RFC 9110 8.8.2.2
    pub(super) is_strong: bool,
}

/// A file's modification time. It is sent unless it is [normalised](is_normalised), or was equal
/// for another known state of the path (`is_shared`).
pub(super) fn modified(stamp: FileStamp, is_shared: bool, since_epoch: Duration) -> Modified {
    let now_s = since_epoch.as_secs();
    let s = stamp.mtime_ns.div_euclid(1_000_000_000).clamp(0, i128::from(now_s)) as u64;
    let is_told = !is_shared && !is_normalised(stamp.mtime_ns);
    let is_over = s + STAMP_GRAIN.as_secs() <= now_s;
    Modified { s, is_told, is_strong: is_told && is_over && is_settled(stamp, since_epoch) }
}

/// True if clients see the same date for both states.
pub(super) fn is_one_date(one: FileStamp, other: FileStamp) -> bool {
    let second = |stamp: FileStamp| stamp.mtime_ns.div_euclid(1_000_000_000);
    one != other && second(one) == second(other)
}

/// Writes the header lines and makes the entry.
pub(super) fn entry(description: &Description<'_>, body: Body) -> Entry {
    let shared = shared_lines(description);
    let coding = match description.encoding {
        Some(encoding) => format!("Content-Encoding: {}\r\n", encoding.token()),
        None => String::new(),
    };
    let Description { content_type, len, .. } = *description;
    // nosniff: a browser must not run a text file that looks like a script.
    // https://fetch.spec.whatwg.org/#x-content-type-options-header
    let body_lines = format!("{coding}Accept-Ranges: bytes\r\nX-Content-Type-Options: nosniff\r\n");
    let head_206 = format!("{body_lines}{shared}");
    let rules_start = shared.len() - description.extra.len();
    let rules_len = rules::without_file(description.extra).len();
    let head_200 = format!("Content-Type: {content_type}\r\nContent-Length: {len}\r\n{head_206}");
    Entry {
        etag: description.etag.as_deref().unwrap_or_default().into(),
        modified_s: description.modified.s,
        modified_is_told: description.modified.is_told,
        modified_is_strong: description.modified.is_strong,
        content_type: content_type.into(),
        head_200: Bytes::from(head_200),
        fields_200: OnceLock::new(),
        head_206: Bytes::from(head_206),
        head_304: Bytes::from(shared),
        rules: rules_start..rules_start + rules_len,
        len,
        area: description.area,
        address_area: description.address_area,
        readers: description.readers,
        body,
        page: None,
    }
}

/// Header lines of a 304 and of all other replies. RFC 9110 15.4.5
fn shared_lines(description: &Description<'_>) -> String {
    let mut lines = String::new();
    if description.modified.is_told {
        let modified = http_date(description.modified.s);
        _ = write!(lines, "Last-Modified: {modified}\r\n");
    }
    if let Some(etag) = &description.etag {
        _ = write!(lines, "ETag: {etag}\r\n");
    }
    if let Some(vary) = description.vary {
        _ = write!(lines, "Vary: {vary}\r\n");
    }
    lines.push_str(description.extra);
    lines
}

/// An operator's lines for a file that is still being written, with `no-store`.
pub(super) fn not_stored(lines: &str) -> String {
    let is_kept = |line: &&str| !line.to_ascii_lowercase().starts_with("cache-control:");
    let kept = lines.split_inclusive("\r\n").filter(is_kept);
    kept.chain(["Cache-Control: no-store\r\n"]).collect()
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
        FileStamp { len: 255, mtime_ns: mtime_s * ns, ctime_ns: ctime_s * ns, inode: (1, 2) }
    }

    const NOW: Duration = Duration::from_secs(1000);

    #[test]
    fn mtime_etag_agrees_on_replicas() {
        let of = |stamp, encoding| etag(EtagKind::Mtime, stamp, encoding, None);
        let replica = FileStamp { ctime_ns: 7, inode: (8, 9), ..stamp(1_000_000_000, 1) };
        let expected = "\"ff-de0b6b3a7640000\"".to_owned();
        assert_eq!(of(stamp(1_000_000_000, 1), None), Some(expected.clone()));
        assert_eq!(of(replica, None), Some(expected));
        let br = of(replica, Some(Encoding::Br));
        assert_eq!(br.as_deref(), Some("\"ff-de0b6b3a7640000-br\""));
    }

    #[test]
    fn inode_etag_changes_with_each_part() {
        let of = |stamp| etag(EtagKind::Inode, stamp, None, None).unwrap();
        let one = stamp(1, 1);
        let len = 256;
        let inode = (1, 3);
        let others =
            [stamp(1, 2), stamp(2, 1), FileStamp { len, ..one }, FileStamp { inode, ..one }];
        for other in others {
            assert_ne!(of(one), of(other), "{other:?}");
        }
        let inode = (7, 2);
        let after_a_boot = FileStamp { inode, ..one };
        assert_eq!(of(one), of(after_a_boot), "another number of the device");
        assert_eq!(of(one), "\"ff-68cbd88aadd9322b\"", "stable from release to release");
    }

    #[test]
    fn unsettled_etag_names_the_reading() {
        let of = |reading| etag(EtagKind::Inode, stamp(1, 1), None, Some(reading));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn normalised_time_is_no_validator() {
        for mtime_s in [0, 1, 315_532_800, 499_162_500, 1_153_704_088, 1_580_601_600, -1] {
            let stamp = stamp(mtime_s, 10);
            assert_eq!(etag(EtagKind::Mtime, stamp, None, None), None, "{mtime_s}");
            let now = Duration::from_secs(2_000_000_000);
            let modified = modified(stamp, false, now);
            assert!(!modified.is_told && !modified.is_strong, "{mtime_s}");
            assert!(etag(EtagKind::Inode, stamp, None, None).is_some());
        }
        assert!(!is_normalised(1_580_601_600_000_000_001), "written then");
        assert!(!is_normalised(1_580_601_601_000_000_000));
        assert_eq!(etag(EtagKind::Off, stamp(1, 1), None, None), None);
    }

    #[test]
    fn moving_file_is_no_store() {
        let lines = "X-A: b\r\ncache-control: max-age=9\r\nX-C: d\r\n";
        let expected = "X-A: b\r\nX-C: d\r\nCache-Control: no-store\r\n";
        assert_eq!(not_stored(lines), expected);
    }

    #[test]
    fn file_settles_after_the_stamp_grain() {
        assert!(is_settled(stamp(0, 997), NOW));
        assert!(!is_settled(stamp(0, 999), NOW), "the time of modification can be set back");
        assert!(!is_settled(stamp(0, 1001), NOW));
        assert!(is_settled(stamp(0, 2000), NOW), "a clock that is wrong");
    }

    #[test]
    fn unsettled_recheck_after_its_age() {
        let after = |age_ns: i128| {
            let ctime_ns = NOW.as_nanos() as i128 - age_ns;
            check_again_after(FileStamp { ctime_ns, ..stamp(0, 0) }, NOW)
        };
        assert_eq!(after(300_000_000), Duration::from_millis(300));
        assert_eq!(after(0), CHECK_AGAIN_MIN);
        assert_eq!(after(-1_000_000_000), CHECK_AGAIN_MIN);
    }

    #[test]
    fn date_is_strong_after_its_second() {
        let now = Duration::from_secs(1_700_000_000);
        let at = |ago_s: i128| 1_700_000_000 - ago_s;
        let of = |mtime_s, ctime_s| {
            let Modified { s, is_told, is_strong } = modified(stamp(mtime_s, ctime_s), false, now);
            (now.as_secs() - s, is_told, is_strong)
        };
        assert_eq!(of(at(-1000), 10), (0, true, false), "never in the future");
        assert_eq!(of(at(2), 10), (2, true, true));
        assert_eq!(of(at(1), 10), (1, true, false));
        assert_eq!(of(at(9), at(1)), (9, true, false), "the time can be set back again");
        assert_eq!(modified(stamp(-5, 10), false, now).s, 0);
        assert!(!modified(stamp(at(9), 10), true, now).is_told);
    }
}
