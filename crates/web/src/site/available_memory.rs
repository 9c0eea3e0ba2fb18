//! Memory available to the page cache, as far as this process can tell.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Fallback if nothing is known.
const GUESS: u64 = 1 << 30;

/// Divisor of the reserve that is left for other processes until the next check. A small one is
/// enough: the kernel reclaims page-cache pages under pressure.
const RESERVE_PART: u64 = 128;

/// Interval between two checks of the available memory.
const CHECK_NS: u64 = 1_000_000_000;

/// The machine and the memory cgroups of this process, through their `/proc` and `/sys`.
#[derive(Debug)]
pub(super) struct AvailableMemory {
    root: PathBuf,
    checked_ns: AtomicU64,
}

/// Total and available bytes of one cgroup or of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Amount {
    total: u64,
    available: u64,
}

impl AvailableMemory {
    /// The machine of this process, or another root in tests.
    pub(super) fn at(root: &Path) -> AvailableMemory {
        AvailableMemory { root: root.to_owned(), checked_ns: AtomicU64::new(0) }
    }

    /// True if the next check is due. The check reads files, so it may block.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.checked_ns.load(Relaxed).saturating_add(CHECK_NS)
    }

    /// Begins a check if one is due. `false` if another request has begun it.
    pub(super) fn begin_check(&self, now_ns: u64) -> bool {
        let checked_ns = self.checked_ns.load(Relaxed);
        let begin = || (self.checked_ns).compare_exchange(checked_ns, now_ns, Relaxed, Relaxed);
        now_ns >= checked_ns.saturating_add(CHECK_NS) && begin().is_ok()
    }

    /// Bytes that the page cache may hold beside `planned` bytes that this process will still
    /// allocate: the minimum over the machine and its cgroups, less a reserve. Pages already in the
    /// page cache count as available, because the kernel reclaims them under pressure.
    pub(super) fn len(&self, planned: u64) -> u64 {
        let meminfo = self.text("proc/meminfo");
        let cgroups = self.text("proc/self/cgroup");
        let groups = groups(&cgroups).into_iter();
        let groups = groups.filter_map(|(version, folder)| self.group(version, &folder));
        let left = |memory: Amount| {
            let reserve = memory.total / RESERVE_PART;
            memory.available.saturating_sub(planned + reserve)
        };
        let least = groups.chain(machine(&meminfo)).map(left).min();
        least.unwrap_or_else(|| (GUESS / 2).saturating_sub(planned))
    }

    /// Memory of a cgroup, if it has a limit: all except used memory that is not page cache.
    fn group(&self, version: CgroupVersion, folder: &str) -> Option<Amount> {
        let names = version.names();
        let text = |name: &str| self.text(&format!("{}{folder}/{name}", version.mount()));
        let number = |name: &str| text(name).trim().parse::<u64>().ok();
        let total = number(names.limit)?;
        let used = number(names.used).unwrap_or(0);
        let stat = text("memory.stat");
        let cached = field(&stat, names.cached).unwrap_or(0);
        let shared = field(&stat, names.shared).unwrap_or(0);
        let kept = used.saturating_sub(cached.saturating_sub(shared));
        Some(Amount { total, available: total.saturating_sub(kept) })
    }

    /// The text of a file; empty if there is no such file.
    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.root.join(path)).unwrap_or_default()
    }
}

/// Version of the kernel's cgroup interface. cgroups(7)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CgroupVersion {
    V1,
    V2,
}

/// File and field names of one version.
struct Names {
    limit: &'static str,
    used: &'static str,
    cached: &'static str,
    /// Shared memory: counted as cached, but not backed by a file.
    shared: &'static str,
}

impl CgroupVersion {
    fn mount(self) -> &'static str {
        match self {
            CgroupVersion::V1 => "sys/fs/cgroup/memory",
            CgroupVersion::V2 => "sys/fs/cgroup",
        }
    }

    fn names(self) -> Names {
        match self {
            CgroupVersion::V1 => Names {
                limit: "memory.limit_in_bytes",
                used: "memory.usage_in_bytes",
                cached: "total_cache",
                shared: "total_shmem",
            },
            CgroupVersion::V2 => Names {
                limit: "memory.max",
                used: "memory.current",
                cached: "file",
                shared: "shmem",
            },
        }
    }
}

/// The machine's memory. proc_meminfo(5)
fn machine(meminfo: &str) -> Option<Amount> {
    let bytes = |name| Some(field(meminfo, name)? * 1024);
    let available = bytes("MemAvailable:")?;
    Some(Amount { total: bytes("MemTotal:").unwrap_or(available), available })
}

/// The number after a name at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_ascii_whitespace);
    let mut words = lines.find(|words| words.clone().next() == Some(name))?;
    words.nth(1)?.parse().ok()
}

/// The memory cgroups of this process: its own and its ancestors. cgroups(7)
fn groups(cgroups: &str) -> Vec<(CgroupVersion, String)> {
    let mut groups = Vec::new();
    for line in cgroups.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let version = match controllers {
            "" => CgroupVersion::V2,
            v1 if v1.split(',').any(|name| name == "memory") => CgroupVersion::V1,
            _ => continue,
        };
        let above = Path::new(path).ancestors().filter_map(Path::to_str);
        groups.extend(above.map(|path| (version, path.trim_end_matches('/').to_owned())));
    }
    groups
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A machine of 1 GiB with these additional files.
    pub(in super::super) fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let meminfo =
            ("proc/meminfo", "MemTotal: 1048576 kB\nMemFree: 1 kB\nMemAvailable:  524288 kB\n");
        for (path, text) in [&meminfo].into_iter().chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn len(files: &[(&str, &str)], planned: u64) -> u64 {
        AvailableMemory::at(root(files).path()).len(planned)
    }

    const MIB: u64 = 1 << 20;
    const V1: (&str, &str) = ("proc/self/cgroup", "12:cpu:/x\n4:memory:/lab\n");
    const V2: (&str, &str) = ("proc/self/cgroup", "0::/a/b\n");

    #[test]
    fn no_cgroup_is_the_machine() {
        assert_eq!(len(&[], 0), (512 - 8) * MIB);
        assert_eq!(len(&[], 104 * MIB), 400 * MIB);
        assert_eq!(len(&[], u64::MAX / 2), 0);
    }

    #[test]
    fn unknown_machine_is_a_guess() {
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(AvailableMemory::at(empty.path()).len(MIB), GUESS / 2 - MIB);
    }

    /// Seen: in a cgroup little larger than its files, a server read from the disk forever, with a
    /// quarter of the memory unused. Cause: the page-cache budget was fixed at half of the limit.
    /// Cure: all memory that others do not use.
    #[test]
    fn cgroup_limit_less_anonymous_memory() {
        let files = [
            V1,
            ("sys/fs/cgroup/memory/lab/memory.limit_in_bytes", "67108864\n"),
            ("sys/fs/cgroup/memory/lab/memory.usage_in_bytes", "62914560\n"),
            (
                "sys/fs/cgroup/memory/lab/memory.stat",
                "cache 1\ntotal_cache 52428800\ntotal_shmem 4194304\n",
            ),
        ];
        // Of 60 MiB in use, 46 MiB are page cache.
        assert_eq!(len(&files, 0), (64 - 14) * MIB - MIB / 2);
        assert_eq!(len(&files, 8 * MIB), (64 - 14 - 8) * MIB - MIB / 2);
    }

    #[test]
    fn least_ancestor_cgroup_counts() {
        let files = [
            V2,
            ("sys/fs/cgroup/a/memory.max", "67108864\n"),
            ("sys/fs/cgroup/a/memory.current", "67108864\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 5\nfile 33554432\nshmem 0\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/memory.current", "1048576\n"),
        ];
        assert_eq!(len(&files, 0), 32 * MIB - MIB / 2);
    }

    #[test]
    fn one_request_a_second_checks() {
        let memory = AvailableMemory::at(Path::new("/"));
        assert!(!memory.is_due(CHECK_NS - 1) && !memory.begin_check(CHECK_NS - 1));
        assert!(memory.is_due(CHECK_NS) && memory.begin_check(CHECK_NS));
        assert!(!memory.is_due(CHECK_NS) && !memory.begin_check(CHECK_NS));
        assert!(!memory.is_due(2 * CHECK_NS - 1) && memory.is_due(2 * CHECK_NS));
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(AvailableMemory::at(Path::new("/")).len(0) > 0);
    }
}
