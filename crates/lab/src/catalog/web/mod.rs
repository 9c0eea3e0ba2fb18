//! Web servers beside each other.

pub(super) mod cold;
pub(super) mod disk;
pub(super) mod files;
pub(super) mod idle;
pub(super) mod overload;
pub(super) mod rows;
pub(super) mod servers;
pub(super) mod throughput;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::bench::{Bench, Fault};
use crate::place::filesystem_of;

/// Every server that there is, and the two that show how far one could go.
pub(super) const SERVERS: &[&str] = &[
    "weft",
    "weft epoll",
    "weft event",
    "weft thread",
    "nginx sendfile",
    "nginx copy",
    "lighttpd",
    "ceiling ring",
    "ceiling event",
];

/// Bytes that look like nothing, so that a body that is shifted or mixed up is noticed.
pub(super) fn body(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        // xorshift64 (Marsaglia 2003)
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// A folder with a file of each size, `SIZE.html`.
pub(super) fn make_site(folder: &Path, sizes: &[u64]) -> io::Result<()> {
    for &size in sizes {
        fs::write(
            folder.join(format!("{size}.html")),
            body(size, size as usize),
        )?;
    }
    // The ETag of a file that changed in the last two seconds is longer than it is later, and a
    // generator would see replies of two lengths.
    thread::sleep(Duration::from_millis(2500));
    Ok(())
}

/// The thesis's file set, scaled to 432 files.
pub(super) fn thesis(bench: &mut Bench<'_>) -> Result<PathBuf, Fault> {
    let site = bench.place.scratch().join("thesis");
    if !site.exists() {
        let folder = site.display().to_string();
        bench.weft(&["load", "fileset", &folder, "--scale", "0.02"])?;
    }
    Ok(site)
}

/// The front pages of Rusty's author: 500, of 3.5 KB to 1.1 MB.
pub(super) fn pages(bench: &mut Bench<'_>) -> Result<PathBuf, Fault> {
    let site = bench.place.scratch().join("pages");
    if !site.exists() {
        let folder = site.display().to_string();
        bench.weft(&["load", "fileset", &folder, "--model", "pages"])?;
    }
    Ok(site)
}

/// In memory, or layered over something else: no disk to wait for.
const NOT_A_DISK: &[&str] = &["tmpfs", "ramfs", "overlay"];

fn demand_disk(site: &Path) -> Result<(), Fault> {
    let kind = filesystem_of(site).unwrap_or_else(|| "unknown".to_owned());
    if !NOT_A_DISK.contains(&kind.as_str()) {
        return Ok(());
    }
    let site = site.display();
    let what = format!("{site} lies on {kind}: name a folder on a disk with --scratch");
    Err(Fault::Failed(what))
}
