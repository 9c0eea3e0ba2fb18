//! Control groups of servers: cgroups(7), version 1 or 2.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

use super::ServerLimits;

/// Period of a server's CPU quota. The kernel enforces it at ticks, up to 10 ms apart, and
/// subtracts an excess from the next period.
pub(crate) const CPU_PERIOD_US: u64 = 20_000;

/// Largest shares of version 1, and largest weight of version 2. A group has priority over others
/// only by these: nice values count inside of it.
const SHARES_MOST: u64 = 262_144;
const WEIGHT_MOST: u64 = 10_000;

/// Resource that a control group limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// Memory, page cache included.
    Memory,
    /// Time on a core.
    Cpu,
    /// Reads of a disk.
    Disk,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Controller {
    const fn name(self, version: Version) -> &'static str {
        match (self, version) {
            (Controller::Memory, _) => "memory",
            (Controller::Cpu, _) => "cpu",
            (Controller::Disk, Version::One) => "blkio",
            (Controller::Disk, Version::Two) => "io",
        }
    }
}

/// Folders of the control groups.
pub(super) struct Groups {
    mounts: String,
    is_root: bool,
    made: u32,
}

impl Groups {
    /// Finds the control groups of this machine.
    pub(super) fn new(is_root: bool) -> Groups {
        Groups { mounts: fs::read_to_string("/proc/mounts").unwrap_or_default(), is_root, made: 0 }
    }

    /// Reason why there are none of this kind; `None` if there are.
    pub(super) fn lacks(&self, controller: Controller) -> Option<String> {
        self.find(controller).err()
    }

    fn find(&self, controller: Controller) -> Result<(PathBuf, Version), String> {
        if !self.is_root {
            return Err("control groups need root".to_owned());
        }
        let name = controller.name(Version::Two);
        let controls = |root: &Path| {
            let list = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            list.split_whitespace().any(|one| one == name)
        };
        hierarchy(&self.mounts, controller, controls).ok_or_else(|| {
            let name = controller.name(Version::One);
            format!(
                "no {name} group is mounted: mkdir -p /sys/fs/cgroup/{name} && \
                 mount -t cgroup -o {name} cgroup /sys/fs/cgroup/{name}"
            )
        })
    }

    /// Makes the groups for these limits, each noted in the journal before it exists.
    pub(super) fn make(
        &mut self,
        limits: &ServerLimits,
        scratch: &Path,
        mut note: impl FnMut(&Path) -> io::Result<()>,
    ) -> io::Result<Vec<PathBuf>> {
        self.made += 1;
        let name = format!("weft-lab-{}-{}", std::process::id(), self.made);
        let mut groups: Vec<PathBuf> = Vec::new();
        let limits = [
            (Controller::Memory, limits.memory_bytes),
            (Controller::Cpu, limits.cpu_percent),
            (Controller::Disk, limits.disk_reads_per_s),
        ];
        for (controller, limit) in limits {
            let Some(limit) = limit else {
                continue;
            };
            let (root, version) = self.find(controller).map_err(io::Error::other)?;
            if version == Version::Two {
                let name = controller.name(version);
                fs::write(root.join("cgroup.subtree_control"), format!("+{name}"))?;
            }
            // All controllers of version 2 have one hierarchy.
            let group = root.join(&name);
            if !groups.contains(&group) {
                note(&group)?;
                fs::create_dir(&group)?;
                groups.push(group.clone());
            }
            let disk = match controller {
                Controller::Disk => disk_of(scratch)?,
                _ => String::new(),
            };
            for (file, value) in settings(controller, version, limit, &disk) {
                fs::write(group.join(file), value)?;
            }
        }
        Ok(groups)
    }
}

/// Files of a group, and their contents.
fn settings(
    controller: Controller,
    version: Version,
    limit: u64,
    disk: &str,
) -> Vec<(&'static str, String)> {
    let quota_us = limit * CPU_PERIOD_US / 100;
    match (controller, version) {
        (Controller::Memory, Version::One) => vec![("memory.limit_in_bytes", limit.to_string())],
        (Controller::Memory, Version::Two) => vec![("memory.max", limit.to_string())],
        (Controller::Cpu, Version::One) => vec![
            ("cpu.cfs_period_us", CPU_PERIOD_US.to_string()),
            ("cpu.cfs_quota_us", quota_us.to_string()),
            ("cpu.shares", SHARES_MOST.to_string()),
        ],
        (Controller::Cpu, Version::Two) => vec![
            ("cpu.max", format!("{quota_us} {CPU_PERIOD_US}")),
            ("cpu.weight", WEIGHT_MOST.to_string()),
        ],
        (Controller::Disk, Version::One) => {
            let reads = format!("{disk} {limit}");
            vec![("blkio.throttle.read_iops_device", reads)]
        }
        (Controller::Disk, Version::Two) => vec![("io.max", format!("{disk} riops={limit}"))],
    }
}

/// Number of disk reads by a group with the disk controller.
pub(super) fn disk_reads(group: &Path) -> Option<u64> {
    let files = ["blkio.throttle.io_serviced", "io.stat"];
    let texts = files.map(|file| fs::read_to_string(group.join(file)));
    texts.iter().flatten().find_map(|text| reads(text))
}

/// Version 1 has lines `254:0 Read 7`, version 2 `254:0 rbytes=28672 wbytes=0 rios=7 …`.
fn reads(text: &str) -> Option<u64> {
    let of_line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let count = match words[..] {
            [_, "Read", count] => Some(count),
            _ => words.iter().find_map(|word| word.strip_prefix("rios=")),
        };
        count?.parse::<u64>().ok()
    };
    text.lines().filter_map(of_line).reduce(|a, b| a + b)
}

/// Device numbers of the whole disk below a folder, "254:0": partitions have no limits.
fn disk_of(folder: &Path) -> io::Result<String> {
    let device = fs::metadata(folder)?.dev();
    let numbers = format!("{}:{}", major(device), minor(device));
    let known = Path::new("/sys/dev/block").join(&numbers);
    if !known.exists() {
        let folder = folder.display();
        return Err(io::Error::other(format!(
            "{folder} lies on no disk of its own (device {numbers}): name a folder on one with \
             --scratch"
        )));
    }
    if !known.join("partition").exists() {
        return Ok(numbers);
    }
    let whole = fs::read_to_string(fs::canonicalize(known)?.join("../dev"))?;
    Ok(whole.trim().to_owned())
}

fn hierarchy(
    mounts: &str,
    controller: Controller,
    controls: impl Fn(&Path) -> bool,
) -> Option<(PathBuf, Version)> {
    let name = controller.name(Version::One);
    let mut unified = None;
    for line in mounts.lines() {
        let [_, point, kind, options, ..] = line.split(' ').collect::<Vec<_>>()[..] else {
            continue;
        };
        match kind {
            "cgroup" if options.split(',').any(|option| option == name) => {
                return Some((point.into(), Version::One));
            }
            "cgroup2" => unified = Some(PathBuf::from(point)),
            _ => {}
        }
    }
    let unified = unified.filter(|root| controls(root))?;
    Some((unified, Version::Two))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounted_cgroup_versions() {
        let two = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let both = format!("{two}cgroup /mnt/memory cgroup rw,memory 0 0\n");
        let of = |mounts: &str, controls: bool| {
            hierarchy(mounts, Controller::Memory, |root| {
                controls && root == Path::new("/sys/fs/cgroup")
            })
        };
        let unified = Some((PathBuf::from("/sys/fs/cgroup"), Version::Two));
        assert_eq!(of(&both, false), Some((PathBuf::from("/mnt/memory"), Version::One)));
        assert_eq!(of(two, true), unified);
        assert_eq!(of(two, false), None);
        assert_eq!(of("cgroup /a cgroup rw,cpu 0 0\nshort", true), None);
        // Each controller is searched separately.
        let disk = "cgroup /mnt/blkio cgroup rw,blkio 0 0\n";
        assert_eq!(
            hierarchy(disk, Controller::Disk, |_| false),
            Some((PathBuf::from("/mnt/blkio"), Version::One))
        );
        assert_eq!(hierarchy(disk, Controller::Cpu, |_| false), None);
    }

    #[test]
    fn reads_by_cgroup_version() {
        let one = "254:0 Read 7\n254:0 Write 9\n254:0 Total 16\n8:0 Read 2\nTotal 18\n";
        assert_eq!(reads(one), Some(9));
        let two = "254:0 rbytes=28672 wbytes=0 rios=7 wios=0 dbytes=0 dios=0\n";
        assert_eq!(reads(two), Some(7));
        assert_eq!(reads("Total 0\n"), None);
    }

    #[test]
    fn limits_by_cgroup_version() {
        let written = |controller, version, limit| {
            let settings = settings(controller, version, limit, "254:0");
            let lines = settings.iter().map(|(file, value)| format!("{file}={value}"));
            lines.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            written(Controller::Cpu, Version::One, 25),
            "cpu.cfs_period_us=20000 cpu.cfs_quota_us=5000 cpu.shares=262144"
        );
        assert_eq!(
            written(Controller::Cpu, Version::Two, 25),
            "cpu.max=5000 20000 cpu.weight=10000"
        );
        assert_eq!(
            written(Controller::Disk, Version::One, 1000),
            "blkio.throttle.read_iops_device=254:0 1000"
        );
        assert_eq!(written(Controller::Disk, Version::Two, 1000), "io.max=254:0 riops=1000");
        assert_eq!(written(Controller::Memory, Version::Two, 4096), "memory.max=4096");
    }
}
