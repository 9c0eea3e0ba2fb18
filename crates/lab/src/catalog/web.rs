//! Comparison of web servers.

pub(super) mod cold;
pub(super) mod disk;
pub(super) mod files;
pub(super) mod generators;
pub(super) mod idle;
pub(super) mod memory;
pub(super) mod overload;
pub(super) mod pages;
pub(super) mod rows;
pub(super) mod sendfile;
pub(super) mod servers;
pub(super) mod throughput;
pub(super) mod workers;

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use load::random::Random;

use crate::catalog::prelude::*;
use crate::testbed::{drop_from_page_cache, filesystem_of};

/// All servers, and the two ceilings.
pub(super) const SERVERS: &[&str] = &[
    "weft",
    "weft epoll",
    "weft event",
    "weft thread",
    "nginx sendfile",
    "nginx copy",
    "lighttpd",
    "h2o",
    "caddy",
    "ceiling ring",
    "ceiling event",
];

const NGINX: &[&str] = &["nginx sendfile", "nginx copy"];

/// Pseudorandom bytes, so that a shifted or mixed up body is noticed.
pub(super) fn body(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let words = std::iter::repeat_with(|| random.bits().to_le_bytes());
    words.flatten().take(length).collect()
}

/// A folder of the run with a file of each size, `SIZE.html`.
pub(super) fn site(bench: &mut Bench<'_>, name: &str, sizes: &[u64]) -> Result<PathBuf, Fault> {
    let site = bench.folder(name, |folder| {
        for &size in sizes {
            let file = folder.join(format!("{size}.html"));
            fs::write(file, body(size, size as usize))?;
        }
        // The ETag of a file that changed in the last two seconds is longer than later ones, and a
        // generator would see replies of two lengths.
        thread::sleep(Duration::from_millis(2500));
        Ok(())
    });
    Ok(site?)
}

/// Makes a file of `bytes` bytes below `kind` for each of `seeds`, and a list of their paths.
fn make_listed(site: &Path, kind: &str, seeds: Range<usize>, bytes: usize) -> io::Result<()> {
    fs::create_dir(site.join(kind))?;
    let mut list = String::new();
    for (file, seed) in seeds.enumerate() {
        let path = format!("/{kind}/{file:04}.html");
        fs::write(site.join(&path[1..]), body(seed as u64, bytes))?;
        list.push_str(&path);
        list.push('\n');
    }
    fs::write(site.join(format!("{kind}.paths")), list)
}

/// The thesis's file set, scaled to 432 files.
pub(super) fn thesis(bench: &mut Bench<'_>) -> Result<PathBuf, Fault> {
    fileset(bench, "thesis", &["--scale", "0.02"])
}

/// The thesis's file set, whole: 21,600 files of 2.3 GB.
pub(super) fn whole_thesis(bench: &mut Bench<'_>) -> Result<PathBuf, Fault> {
    fileset(bench, "whole-thesis", &["--scale", "1"])
}

/// The front pages of Rusty's author: 500, of 3.5 KB to 1.1 MB.
pub(super) fn pages(bench: &mut Bench<'_>) -> Result<PathBuf, Fault> {
    fileset(bench, "pages", &["--model", "pages"])
}

fn fileset(bench: &mut Bench<'_>, name: &str, how: &[&str]) -> Result<PathBuf, Fault> {
    let site = bench.testbed.scratch().join(name);
    if !site.exists() {
        make_fileset(bench, &site, how)?;
    }
    Ok(site)
}

fn make_fileset(bench: &mut Bench<'_>, folder: &Path, how: &[&str]) -> Result<(), Fault> {
    let folder = folder.display().to_string();
    let all = [&["load", "fileset", &folder], how].concat();
    bench.weft(&all)
}

/// Takes a folder's files out of the page cache.
fn cool(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { cool(&path)? } else { drop_from_page_cache(&path)? }
    }
    Ok(())
}

/// Bytes of a folder's files.
fn size_of(folder: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let about = entry.metadata()?;
        bytes += if about.is_dir() { size_of(&entry.path())? } else { about.len() };
    }
    Ok(bytes)
}

/// Arguments of the generator to request a file set.
pub(super) fn ask_for_files(server: &Running, site: &Path, how: &str) -> Vec<String> {
    let mut load = words(&format!("http {} {how} --fileset", server.url("/")));
    load.push(site.display().to_string());
    load
}

/// In memory, or layered over something else: no disk to wait for.
const NOT_A_DISK: &[&str] = &["tmpfs", "ramfs", "overlay"];

fn demand_disk(site: &Path) -> Result<(), Fault> {
    let kind = filesystem_of(site).unwrap_or_else(|| "unknown".to_owned());
    if !NOT_A_DISK.contains(&kind.as_str()) {
        return Ok(());
    }
    let site = site.display();
    Err(format!("{site} lies on {kind}: name a folder on a disk with --scratch").into())
}
