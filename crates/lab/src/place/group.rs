//! Memory groups of servers: cgroups(7), version 1 or 2.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where groups are made.
pub(super) struct MemoryGroups {
    root: PathBuf,
    version: Version,
    made: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl MemoryGroups {
    /// The hierarchy that limits memory; a sentence if there is none.
    pub(super) fn find() -> Result<MemoryGroups, String> {
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        let controls = |root: &Path| {
            let list = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            list.split_whitespace().any(|name| name == "memory")
        };
        let (root, version) = hierarchy(&mounts, controls).ok_or_else(|| {
            "no memory group is mounted: mkdir -p /sys/fs/cgroup/memory && \
             mount -t cgroup -o memory cgroup /sys/fs/cgroup/memory"
                .to_owned()
        })?;
        Ok(MemoryGroups {
            root,
            version,
            made: 0,
        })
    }

    /// The path of the next group.
    pub(super) fn name(&mut self) -> PathBuf {
        self.made += 1;
        self.root
            .join(format!("weft-lab-{}-{}", std::process::id(), self.made))
    }

    pub(super) fn make(&self, group: &Path, limit_bytes: u64) -> io::Result<()> {
        if self.version == Version::Two {
            fs::write(self.root.join("cgroup.subtree_control"), "+memory")?;
        }
        fs::create_dir(group)?;
        let limit = match self.version {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        };
        fs::write(group.join(limit), limit_bytes.to_string())
    }
}

fn hierarchy(mounts: &str, controls: impl Fn(&Path) -> bool) -> Option<(PathBuf, Version)> {
    let mut unified = None;
    for line in mounts.lines() {
        let [_, point, kind, options, ..] = line.split(' ').collect::<Vec<_>>()[..] else {
            continue;
        };
        match kind {
            "cgroup" if options.split(',').any(|option| option == "memory") => {
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
    fn version_1_counts_if_it_is_mounted_and_version_2_if_it_limits_memory() {
        let two = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let both = format!("{two}cgroup /mnt/memory cgroup rw,memory 0 0\n");
        let one = Some((PathBuf::from("/mnt/memory"), Version::One));
        assert_eq!(hierarchy(&both, |_| false), one);
        let found = hierarchy(two, |root| root == Path::new("/sys/fs/cgroup"));
        assert_eq!(found, Some((PathBuf::from("/sys/fs/cgroup"), Version::Two)));
        assert_eq!(hierarchy(two, |_| false), None);
        assert_eq!(
            hierarchy("cgroup /a cgroup rw,cpu 0 0\nshort", |_| true),
            None
        );
    }
}
