//! Memory, processors and limits of the machine, read from `/proc` and `/sys` under a root that
//! tests replace.

use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

/// The machine, seen through its `/proc` and `/sys`.
pub(crate) struct Machine {
    root: PathBuf,
}

/// Version of the cgroup interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CgroupVersion {
    V1,
    V2,
}

/// A soft and a hard limit. `None` means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) soft: Option<u64>,
    pub(crate) hard: Option<u64>,
}

/// Number of CPUs allowed by affinity and the cgroup's quota, as computed by std.
pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Machine {
    /// The machine that this process runs on.
    pub(crate) fn this() -> Machine {
        Machine::at(Path::new("/"))
    }

    /// A machine whose `/proc` and `/sys` are under `root`.
    fn at(root: &Path) -> Machine {
        Machine { root: root.to_owned() }
    }

    /// Limit on the total threads of all processes of this user. The root user has none, unless it
    /// is the root of a user namespace. setrlimit(2), `RLIMIT_NPROC`
    pub(crate) fn user_threads_max(&self) -> Option<u64> {
        let first = |path, name| {
            let text = self.text(path)?;
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.split_whitespace().next()?.to_owned())
        };
        let user = first("proc/self/status", "Uid:")?;
        let limit = first("proc/self/limits", "Max processes")?;
        let is_root = user == "0" && !self.maps_users();
        limit.parse().ok().filter(|_| !is_root)
    }

    /// True if user ids here differ from those outside. user_namespaces(7)
    fn maps_users(&self) -> bool {
        self.text("proc/self/uid_map")
            .is_some_and(|map| !map.split_whitespace().eq(["0", "0", "4294967295"]))
    }

    /// Memory that this process may use: the cgroup's limit or the installed memory.
    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        let limit = self.cgroup_memory_limit_bytes().map(|(_, bytes)| bytes);
        limit.into_iter().chain(self.installed_bytes()).min()
    }

    /// Installed memory. proc_meminfo(5)
    pub(crate) fn installed_bytes(&self) -> Option<u64> {
        let text = self.text("proc/meminfo")?;
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
    }

    /// Lowest memory limit of this process's cgroup and its ancestors.
    pub(crate) fn cgroup_memory_limit_bytes(&self) -> Option<(CgroupVersion, u64)> {
        self.cgroup_lowest("memory", "memory.limit_in_bytes", "memory.max")
    }

    /// Limit on the tasks of this process's cgroup. systemd's `TasksMax=` sets it.
    pub(crate) fn cgroup_tasks_max(&self) -> Option<u64> {
        self.cgroup_lowest("pids", "pids.max", "pids.max").map(|(_, tasks)| tasks)
    }

    /// CPU time that the cgroup may use, in CPUs.
    pub(crate) fn cgroup_cpus(&self) -> Option<f64> {
        let (version, folders) = self.cgroup_folders("cpu")?;
        let quota = |folder: &PathBuf| match version {
            CgroupVersion::V2 => {
                let text = std::fs::read_to_string(folder.join("cpu.max")).ok()?;
                let (quota, period) = text.trim().split_once(' ')?;
                Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
            }
            CgroupVersion::V1 => {
                let quota = number_in(&folder.join("cpu.cfs_quota_us"))?;
                let period = number_in(&folder.join("cpu.cfs_period_us"))?;
                Some(quota as f64 / period as f64)
            }
        };
        folders.iter().filter_map(quota).min_by(f64::total_cmp)
    }

    /// The number in a file; also `None` for `max` and `-1`.
    pub(crate) fn number(&self, path: &str) -> Option<u64> {
        number_in(&self.root.join(path))
    }

    /// The text of a file.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.root.join(path)).ok()
    }

    fn cgroup_lowest(&self, controller: &str, v1: &str, v2: &str) -> Option<(CgroupVersion, u64)> {
        let (version, folders) = self.cgroup_folders(controller)?;
        let file = if version == CgroupVersion::V1 { v1 } else { v2 };
        let limits = folders.iter().filter_map(|folder| number_in(&folder.join(file)));
        // v1 represents "no limit" by the largest multiple of the page size that fits in 63 bits.
        limits.filter(|limit| *limit < 1 << 60).min().map(|limit| (version, limit))
    }

    /// Directories of this process's cgroup and its ancestors, in the hierarchy that has
    /// `controller`. cgroups(7), proc_pid_mountinfo(5)
    fn cgroup_folders(&self, controller: &str) -> Option<(CgroupVersion, Vec<PathBuf>)> {
        let memberships = self.text("proc/self/cgroup")?;
        let mounts = self.text("proc/self/mountinfo")?;
        let v1 = memberships.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let has_it = fields.next()?.split(',').any(|name| name == controller);
            has_it.then_some(fields.next()?)
        });
        if let Some(path) = v1 {
            let mount =
                mounts.lines().find_map(|line| mount_of(line, "cgroup", Some(controller)))?;
            return Some((CgroupVersion::V1, self.folders_up(path, mount)));
        }
        let path = memberships.lines().find_map(|line| line.strip_prefix("0::"))?;
        let mount = mounts.lines().find_map(|line| mount_of(line, "cgroup2", None))?;
        Some((CgroupVersion::V2, self.folders_up(path, mount)))
    }

    fn folders_up(&self, path: &str, (top, point): (&str, &str)) -> Vec<PathBuf> {
        // In a container the mount only shows the part of the hierarchy below `top`.
        let below = path.strip_prefix(top.trim_end_matches('/')).unwrap_or("");
        let point = self.root.join(point.trim_start_matches('/'));
        let leaf = point.join(below.trim_start_matches('/'));
        let up = leaf.ancestors().take_while(|folder| folder.starts_with(&point));
        up.map(Path::to_owned).collect()
    }
}

/// Root and mount point of a mountinfo line, if it has this type and this option.
fn mount_of<'a>(line: &'a str, kind: &str, option: Option<&str>) -> Option<(&'a str, &'a str)> {
    let (before, after) = line.split_once(" - ")?;
    let mut after = after.split(' ');
    let is_kind = after.next()? == kind;
    let options = after.nth(1)?;
    let has_option = option.is_none_or(|wanted| options.split(',').any(|name| name == wanted));
    let mut before = before.split(' ').skip(3);
    (is_kind && has_option).then_some((before.next()?, before.next()?))
}

fn number_in(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Remedy for the limits on threads.
pub(crate) const RAISE_THREADS: &str =
    "raise the limit on threads (ulimit -u; LimitNPROC= and TasksMax= in a systemd unit)";

/// The error message for threads of `what` that did not start. The kernel does not tell which limit
/// was reached. pthread_create(3)
pub(crate) fn why_no_threads(what: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock => {
            format!("cannot start {what}: no more threads can be created; {RAISE_THREADS}")
        }
        _ => format!("cannot start {what}: {error}"),
    }
}

/// The limit on open files of this process.
pub(crate) fn nofile() -> Limit {
    limit(Resource::Nofile)
}

/// The limit on locked memory of this process, bytes.
pub(crate) fn memlock() -> Limit {
    limit(Resource::Memlock)
}

fn limit(resource: Resource) -> Limit {
    let limit = getrlimit(resource);
    Limit { soft: limit.current, hard: limit.maximum }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A machine with these files; it lives as long as the returned directory.
    pub(crate) fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Machine) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let machine = Machine::at(root.path());
        (root, machine)
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:       1048576 kB\nMemFree: 1 kB\n");

    #[test]
    fn lowest_limit_up_the_cgroup_tree() {
        let (_root, machine) = machine(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/a/b\n"),
            (
                "proc/self/mountinfo",
                "30 20 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
            ),
            ("sys/fs/cgroup/a/memory.max", "67108864\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/a/b/pids.max", "max\n"),
        ]);
        assert_eq!(machine.cgroup_memory_limit_bytes(), Some((CgroupVersion::V2, 64 << 20)));
        assert_eq!(machine.memory_bytes(), Some(64 << 20));
        assert_eq!(machine.cgroup_cpus(), Some(1.5));
        assert_eq!(machine.cgroup_tasks_max(), None);
    }

    #[test]
    fn limits_of_cgroup_v1() {
        let (_root, machine) = machine(&[
            MEMINFO,
            ("proc/self/cgroup", "4:memory:/box\n3:cpu,cpuacct:/box\n0::/\n"),
            (
                "proc/self/mountinfo",
                "35 31 0:32 /box /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                 36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n",
            ),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n"),
        ]);
        assert_eq!(machine.cgroup_memory_limit_bytes(), None);
        assert_eq!(machine.memory_bytes(), Some(1 << 30));
        assert_eq!(machine.cgroup_cpus(), None);
    }

    #[test]
    fn machine_without_proc_and_sys() {
        let (_root, machine) = machine(&[]);
        assert_eq!(machine.memory_bytes(), None);
        assert_eq!(machine.cgroup_cpus(), None);
    }

    #[test]
    fn user_threads_max_of_users_and_root() {
        let outside = "0 0 4294967295\n";
        let container = "0 1000 1\n1 100000 65536\n";
        for (user, uid_map, limit, expected) in [
            ("1000", outside, "30", Some(30)),
            ("1000", outside, "unlimited", None),
            ("0", outside, "30", None),
            ("0", container, "30", Some(30)),
        ] {
            let status = format!("Name:\tweft\nUid:\t{user}\t1000\t1000\t1000\n");
            let limits = format!("Max processes             {limit}        63000     processes\n");
            let files = [
                ("proc/self/status", &*status),
                ("proc/self/uid_map", uid_map),
                ("proc/self/limits", &limits),
            ];
            assert_eq!(machine(&files).1.user_threads_max(), expected);
        }
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(Machine::this().memory_bytes().unwrap() > 16 << 20);
        assert!(nofile().soft.is_none_or(|soft| soft > 0));
    }
}
