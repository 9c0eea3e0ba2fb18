//! How much memory the page cache may have, as far as this process can know.

use std::fs;
use std::path::Path;

/// The fallback if nothing is known.
const GUESS: u64 = 1 << 30;

/// Half of what the machine and the memory cgroups of this process leave after `planned` bytes. The
/// other half is for others: socket buffers, stacks, other processes.
pub(super) fn page_cache_room(planned: u64) -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limit_files(&cgroups)
        .into_iter()
        .filter_map(|path| limit(Path::new(&path)));
    let least = limits.chain(available(&meminfo)).min().unwrap_or(GUESS);
    least.saturating_sub(planned) / 2
}

/// `MemAvailable` in bytes. proc_meminfo(5)
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Where the limits of this process's memory cgroups are, its own and those above. cgroups(7)
fn limit_files(cgroups: &str) -> Vec<String> {
    let mut files = Vec::new();
    for line in cgroups.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (mount, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            v1 if v1.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let above = Path::new(path).ancestors().filter_map(Path::to_str);
        files.extend(above.map(|path| format!("{mount}{}/{file}", path.trim_end_matches('/'))));
    }
    files
}

/// `max` and a file that is not there are no limit.
fn limit(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_in_bytes() {
        let meminfo = "MemTotal:  100 kB\nMemFree: 5 kB\nMemAvailable:     64 kB\n";
        assert_eq!(available(meminfo), Some(65536));
        assert_eq!(available(""), None);
    }

    #[test]
    fn limits_of_all_groups_above_count_in_both_versions() {
        let files = limit_files("0::/a/b\n");
        let expected = ["/a/b/memory.max", "/a/memory.max", "/memory.max"];
        assert_eq!(files, expected.map(|file| format!("/sys/fs/cgroup{file}")));
        let files = limit_files("12:cpu:/x\n4:memory:/lab\n");
        let expected = ["/lab/memory.limit_in_bytes", "/memory.limit_in_bytes"];
        assert_eq!(
            files,
            expected.map(|file| format!("/sys/fs/cgroup/memory{file}"))
        );
    }

    #[test]
    fn a_limit_is_a_number_in_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, expected) in [("12345\n", Some(12345)), ("max\n", None)] {
            fs::write(file.path(), text).unwrap();
            assert_eq!(limit(file.path()), expected);
        }
        assert_eq!(limit(Path::new("/nonexistent")), None);
    }

    #[test]
    fn there_is_some_room_here_and_half_of_it_is_for_others() {
        let room = page_cache_room(0);
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
        let total = available(&meminfo.replace("MemTotal", "MemAvailable")).unwrap();
        assert!(0 < room && room <= total / 2, "{room} of {total}");
        assert_eq!(page_cache_room(u64::MAX), 0);
    }
}
