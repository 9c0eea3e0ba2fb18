//! File sets for web servers: the thesis's 21,600 files, and the 500 front pages of Rusty's author.
//!
//! The thesis gives its set as one table: the share of requests served by each amount of memory,
//! and the largest file size in it. The sizes are SPECweb99's: nine of each magnitude, from 0.1 to
//! 900 KiB. The number of files of each size follows from the differences between the table's
//! columns; `THESIS` below has the numbers.
//!
//! Requests follow Zipf's law over all files: rank 1 is the most popular. Ranks are distributed
//! over the size groups so that each group gets its share of the requests. In the full set the
//! shares are right to a hundredth of a percent; in a small one (`scale` below 0.1) they are
//! adjusted a little, so that the table holds at every scale.
//!
//! Sizes, paths, popularity and every byte follow from the seed. A manifest, [`MANIFEST`], lies in
//! the set's directory: per file its path, size, CRC-32 (the one of zip and gzip) and share of the
//! requests, most popular first. [`FileSet::read`] reads it.

use std::fmt::{self, Write as _};
use std::fs::{self, File};
use std::io::{self, BufRead, BufWriter, Write};
use std::path::Path;

use crate::random::Random;
use crate::workload::distribution::Weighted;
use crate::workload::input_file;

/// File in the directory of a set that lists it.
pub const MANIFEST: &str = "fileset.tsv";

/// Recipe of a set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recipe {
    /// Model.
    pub model: Model,
    /// Fraction of the thesis's files and directories, from 0.001 to 100; sizes stay.
    pub scale: f64,
    /// Seed of all random choices.
    pub seed: u64,
    /// Zipf's exponent; 1 is Zipf's own.
    pub exponent: f64,
}

/// Model of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// 21,600 files in 650 directories, 2.3 GB, requested by Zipf's law.
    Thesis,
    /// 500 front pages, 63 MB, requested uniformly.
    Pages,
}

/// File of a set.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Path below the set's directory, with a leading slash, as in a request.
    pub path: String,
    /// Length.
    pub size_bytes: u64,
    /// CRC-32 of its content.
    pub crc32: u32,
    /// Share of the requests.
    pub share: f64,
}

/// Set of files, the most popular first.
#[derive(Clone, Debug, PartialEq)]
pub struct FileSet {
    /// Recipe that made it.
    pub recipe: Recipe,
    /// Files; the CRC-32 is 0 until they are written.
    pub entries: Vec<Entry>,
}

/// Group of the thesis's table: its cumulative columns, and its sizes with the number of files of
/// each.
struct Group {
    row: TableColumn,
    sizes: &'static [(&'static [u64], u32)],
}

/// Column of the thesis's table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableColumn {
    /// Share of the requests, in percent…
    pub requests_percent: f64,
    /// …served by this much memory, in MB (10⁶ bytes)…
    pub memory_mb: f64,
    /// …for files up to this size.
    pub size_bytes: u64,
}

const fn group(
    requests_percent: f64,
    memory_mb: f64,
    size_bytes: u64,
    sizes: &'static [(&'static [u64], u32)],
) -> Group {
    let row = TableColumn { requests_percent, memory_mb, size_bytes };
    Group { row, sizes }
}

/// The thesis's table "Cumulative memory for requests by file size", with the numbers of files that
/// its differences yield: (12.2 - 8.4) MB of files of 5,120 bytes are 742 files, and so on.
#[rustfmt::skip]
const THESIS: [Group; 8] = [
    group(10.0, 0.5, 409, &[(&[102, 204, 307, 409], 500)]),
    group(30.0, 1.5, 716, &[(&[512, 614, 716], 537)]),
    group(50.0, 8.4, 4_096, &[(&[819, 921, 1_024, 2_048, 3_072, 4_096], 576)]),
    group(70.0, 12.2, 5_120, &[(&[5_120], 742)]),
    group(80.0, 20.1, 7_168, &[(&[6_144, 7_168], 593)]),
    group(90.0, 94.3, 40_960, &[(&[8_192, 9_216, 10_240, 20_480, 30_720, 40_960], 619)]),
    group(95.0, 126.5, 51_200, &[(&[51_200], 629)]),
    group(100.0, 2_291.6, 921_600, &[
        (&[61_440], 1_188),
        (&[71_680, 81_920, 92_160], 1_185),
        (&[102_400, 204_800, 307_200, 409_600, 512_000, 614_400, 716_800, 819_200, 921_600], 391),
    ]),
];

const THESIS_DIRECTORIES: f64 = 650.0;

/// Sizes of the 500 front pages: the share of the pages up to a size. Between two points the
/// logarithm is linear; these points also give the published mean of 126 KB.
const PAGES: [(f64, f64); 6] = [
    (0.0, 3_500.0),
    (0.5, 68_000.0),
    (0.7, 150_000.0),
    (0.9, 300_000.0),
    (0.966, 500_000.0),
    (1.0, 1_100_000.0),
];
const PAGE_COUNT: usize = 500;

impl FileSet {
    /// Plans the set of a recipe, without writing a byte.
    ///
    /// # Errors
    /// If the recipe is out of range.
    pub fn plan(recipe: Recipe) -> Result<FileSet, String> {
        if !(0.001..=100.0).contains(&recipe.scale) {
            return Err(format!("a scale of {} is outside 0.001 to 100", recipe.scale));
        }
        if !(0.0..=2.0).contains(&recipe.exponent) {
            return Err(format!("an exponent of {} is outside 0 to 2", recipe.exponent));
        }
        let entries = match recipe.model {
            Model::Thesis => plan_thesis(&recipe),
            Model::Pages => plan_pages(&recipe),
        };
        Ok(FileSet { recipe, entries })
    }

    /// Sum of all sizes.
    pub fn total_bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.size_bytes).sum()
    }

    /// Number of directories.
    pub fn directories(&self) -> usize {
        let mut names: Vec<_> =
            self.entries.iter().filter_map(|e| e.path.rsplit_once('/')).collect();
        names.sort_unstable();
        names.dedup_by_key(|(directory, _)| *directory);
        names.len()
    }

    /// Creates a chooser that draws entries by their share.
    pub fn chooser(&self) -> Weighted {
        let shares: Vec<f64> = self.entries.iter().map(|entry| entry.share).collect();
        Weighted::new(&shares)
    }

    /// Columns of the thesis's table, each with this set's.
    pub fn table(&self) -> Vec<(TableColumn, TableColumn)> {
        let weighted = self.entries.iter().map(|entry| (entry.size_bytes, entry.share));
        // A millionth, for rounding errors of the sums.
        table_of(weighted.collect(), &self.entries, |_| 1e-6)
    }

    /// Columns of the thesis's table, each with that of actual requests: `counts[i]` of entry `i`.
    /// The number of requests to a group is binomial, so its edge is known to three standard
    /// errors.
    pub fn table_of_requests(&self, counts: &[u64]) -> Vec<(TableColumn, TableColumn)> {
        let sizes = self.entries.iter().map(|entry| entry.size_bytes);
        let requests = counts.iter().sum::<u64>().max(1) as f64;
        table_of(
            sizes.zip(counts.iter().map(|&count| count as f64)).collect(),
            &self.entries,
            |share| 3.0 * (share * (1.0 - share) / requests).sqrt(),
        )
    }

    /// Writes all files and the manifest below `directory`, and calls `progress` with the bytes
    /// written so far.
    ///
    /// # Errors
    /// If the directory holds something else, lacks space, or a write fails.
    pub fn write(&mut self, directory: &Path, mut progress: impl FnMut(u64)) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        refuse_strangers(directory)?;
        refuse_without_space(directory, self.total_bytes())?;
        let mut written_bytes = 0;
        let mut buffer = vec![0; 256 << 10];
        for (at, entry) in self.entries.iter_mut().enumerate() {
            let path = directory.join(entry.path.trim_start_matches('/'));
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            let random = Random::stream(self.recipe.seed, at as u64);
            entry.crc32 = write_content(&path, entry.size_bytes, random, &mut buffer)?;
            written_bytes += entry.size_bytes;
            progress(written_bytes);
        }
        self.write_manifest(&directory.join(MANIFEST))
    }

    fn write_manifest(&self, path: &Path) -> io::Result<()> {
        // Written beside it, then renamed: a manifest is whole or absent.
        let beside = path.with_extension("tmp");
        let mut out = BufWriter::new(File::create(&beside)?);
        writeln!(out, "{}", self.recipe)?;
        writeln!(out, "# path\tbytes\tcrc32\tshare")?;
        for entry in &self.entries {
            let Entry { path, size_bytes, crc32, share } = entry;
            writeln!(out, "{path}\t{size_bytes}\t{crc32:08x}\t{share:e}")?;
        }
        out.into_inner()?.sync_all()?;
        fs::rename(beside, path)
    }

    /// Reads the manifest at `path`, or in the directory `path`.
    ///
    /// # Errors
    /// If it cannot be read, or is no manifest: with the line.
    pub fn read(path: &Path) -> io::Result<FileSet> {
        let path = if path.is_dir() { path.join(MANIFEST) } else { path.to_owned() };
        let in_file = |what: String| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.display()))
        };
        let bytes = input_file::read(&path).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("{}: {error}; make a set with weft load fileset DIR", path.display()),
            )
        })?;
        FileSet::parse(&bytes[..]).map_err(in_file)
    }

    fn parse(lines: impl BufRead) -> Result<FileSet, String> {
        let mut recipe = None;
        let mut entries = Vec::new();
        for (at, line) in lines.lines().enumerate() {
            let line = line.map_err(|error| format!("line {}: {error}", at + 1))?;
            if at == 0 {
                recipe = Some(Recipe::parse(&line)?);
            } else if !line.starts_with('#') {
                let entry = Entry::parse(&line);
                entries
                    .push(entry.ok_or_else(|| {
                        format!("line {}: not path, bytes, crc32, share", at + 1)
                    })?);
            }
        }
        match (recipe, entries.is_empty()) {
            (Some(recipe), false) => Ok(FileSet { recipe, entries }),
            _ => Err("the list is empty".to_owned()),
        }
    }
}

impl Entry {
    fn parse(line: &str) -> Option<Entry> {
        let mut fields = line.split('\t');
        let entry = Entry {
            path: fields.next().filter(|path| path.starts_with('/'))?.to_owned(),
            size_bytes: fields.next()?.parse().ok()?,
            crc32: u32::from_str_radix(fields.next()?, 16).ok()?,
            share: fields
                .next()?
                .parse()
                .ok()
                .filter(|share: &f64| share.is_finite() && *share >= 0.0)?,
        };
        fields.next().is_none().then_some(entry)
    }
}

const SIGNATURE: &str = "# weft fileset 1";

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let model = match self.model {
            Model::Thesis => "thesis",
            Model::Pages => "pages",
        };
        let Recipe { scale, seed, exponent, .. } = self;
        write!(f, "{SIGNATURE} {model} {scale} {seed} {exponent}")
    }
}

impl Recipe {
    fn parse(line: &str) -> Result<Recipe, String> {
        let recipe = || {
            let mut words = line.strip_prefix(SIGNATURE)?.split_whitespace();
            Some(Recipe {
                model: match words.next()? {
                    "thesis" => Model::Thesis,
                    "pages" => Model::Pages,
                    _ => return None,
                },
                scale: words.next()?.parse().ok()?,
                seed: words.next()?.parse().ok()?,
                exponent: words.next()?.parse().ok()?,
            })
        };
        recipe().ok_or_else(|| {
            format!("the first line does not begin with {SIGNATURE:?}: no list of a file set")
        })
    }
}

fn plan_thesis(recipe: &Recipe) -> Vec<Entry> {
    let mut random = Random::new(recipe.seed);
    let mut groups = scaled_groups(recipe.scale, &mut random);
    let count: usize = groups.iter().map(Vec::len).sum();
    let directories = ((THESIS_DIRECTORIES * recipe.scale).round() as usize).clamp(1, count);
    // Popular files are spread over the directories, not collected in the first.
    let mut places: Vec<usize> = (0..count).collect();
    random.shuffle(&mut places);
    let dealt = deal_ranks(&groups.each_ref().map(Vec::len), recipe.exponent);
    let entry = |(rank, (group, share)): (usize, (usize, f64))| Entry {
        path: format!("/d{:03}/{:05}.bin", places[rank] % directories, places[rank]),
        size_bytes: groups[group].pop().expect("as many ranks as files were dealt"),
        crc32: 0,
        share,
    };
    dealt.into_iter().enumerate().map(entry).collect()
}

/// Sizes of each group's files in random order, a fraction `scale` of the thesis's numbers. Counts
/// are rounded so that the bytes up to each size stay as close to the fraction as whole files
/// allow.
fn scaled_groups(scale: f64, random: &mut Random) -> [Vec<u64>; THESIS.len()] {
    let mut wanted_bytes = 0.0;
    let mut made_bytes = 0.0;
    THESIS.map(|group| {
        let mut sizes = Vec::new();
        for &(of_count, count) in group.sizes {
            for &size in of_count {
                wanted_bytes += scale * size as f64 * f64::from(count);
                let missing = ((wanted_bytes - made_bytes) / size as f64).round().max(0.0);
                made_bytes += missing * size as f64;
                sizes.extend(std::iter::repeat_n(size, missing as usize));
            }
        }
        if sizes.is_empty() {
            let largest = group.row.size_bytes;
            made_bytes += largest as f64;
            sizes.push(largest);
        }
        random.shuffle(&mut sizes);
        sizes
    })
}

/// Group and share of the requests of each rank. A rank goes to the group whose remaining files
/// need the most popular ones; finally each group's shares are scaled to their sum.
fn deal_ranks(counts: &[usize; THESIS.len()], exponent: f64) -> Vec<(usize, f64)> {
    let weights: Vec<f64> =
        (1..=counts.iter().sum()).map(|rank: usize| (rank as f64).powf(-exponent)).collect();
    let sum: f64 = weights.iter().sum();
    let wanted = group_shares();
    let mut left = *counts;
    let mut given = [0.0; THESIS.len()];
    let mut dealt = Vec::with_capacity(weights.len());
    for weight in weights {
        let need = |group: usize| (wanted[group] - given[group]) / left[group] as f64;
        let open = (0..left.len()).filter(|&group| left[group] > 0);
        let group = open.max_by(|&a, &b| need(a).total_cmp(&need(b))).expect("a rank per file");
        left[group] -= 1;
        given[group] += weight / sum;
        dealt.push((group, weight / sum));
    }
    let bend = |(group, share): (usize, f64)| (group, share * wanted[group] / given[group]);
    dealt.into_iter().map(bend).collect()
}

fn group_shares() -> [f64; THESIS.len()] {
    let mut before = 0.0;
    THESIS.map(|group| {
        let percent = group.row.requests_percent - before;
        before = group.row.requests_percent;
        percent / 100.0
    })
}

fn plan_pages(recipe: &Recipe) -> Vec<Entry> {
    let mut sizes: Vec<u64> = (0..PAGE_COUNT).map(page_size).collect();
    Random::new(recipe.seed).shuffle(&mut sizes);
    let entry = |(at, size_bytes): (usize, u64)| Entry {
        path: format!("/pages/{at:03}.html"),
        size_bytes,
        crc32: 0,
        share: 1.0 / PAGE_COUNT as f64,
    };
    sizes.into_iter().enumerate().map(entry).collect()
}

/// The size of the page that is number `at` from the smallest.
fn page_size(at: usize) -> u64 {
    let part = at as f64 / (PAGE_COUNT - 1) as f64;
    let ends = PAGES.windows(2).find(|ends| part <= ends[1].0).unwrap_or(&PAGES[4..]);
    let ((p0, s0), (p1, s1)) = (ends[0], ends[1]);
    (s0 * (s1 / s0).powf((part - p0) / (p1 - p0))).round() as u64
}

/// The columns of the thesis's table, and those of files that are requested with these weights.
///
/// A column ends where its share of the requests is reached, within `error(share)`: a sample's
/// share differs a little from the set's, and the column must end at the edge of a group, as the
/// thesis's does.
fn table_of(
    mut weighted: Vec<(u64, f64)>,
    entries: &[Entry],
    error: impl Fn(f64) -> f64,
) -> Vec<(TableColumn, TableColumn)> {
    weighted.sort_by_key(|(size, _)| *size);
    let total: f64 = weighted.iter().map(|(_, weight)| weight).sum();
    let column = |group: &Group| {
        let share = group.row.requests_percent / 100.0;
        let wanted = (share - error(share)) * total;
        let mut until = 0.0;
        let reached = weighted.iter().find(|(_, weight)| {
            until += weight;
            until >= wanted
        });
        let size_bytes = reached.or(weighted.last()).map_or(0, |(size, _)| *size);
        let asked: f64 = weighted
            .iter()
            .take_while(|(size, _)| *size <= size_bytes)
            .map(|(_, weight)| weight)
            .sum();
        let within =
            entries.iter().map(|entry| entry.size_bytes).filter(|size| *size <= size_bytes);
        let memory_mb = within.sum::<u64>() as f64 / 1e6;
        (group.row, TableColumn { memory_mb, size_bytes, requests_percent: 100.0 * asked / total })
    };
    THESIS.iter().map(column).collect()
}

/// The table as text: this set's cell, the thesis's, and the difference.
pub fn show_table(table: &[(TableColumn, TableColumn)], scale: f64) -> String {
    let mut text = String::from(
        "  requests    thesis │  memory MB    thesis   differs │  file size B   thesis   differs\n",
    );
    for (thesis, ours) in table {
        let memory = thesis.memory_mb * scale;
        let _ = writeln!(
            text,
            "  {:>6.2} % {:>7} % │ {:>10.2} {:>9.2} {:>7.1} % │ {:>12} {:>8} {:>7.1} %",
            ours.requests_percent,
            thesis.requests_percent,
            ours.memory_mb,
            memory,
            100.0 * (ours.memory_mb / memory - 1.0),
            ours.size_bytes,
            thesis.size_bytes,
            100.0 * (ours.size_bytes as f64 / thesis.size_bytes as f64 - 1.0),
        );
    }
    text
}

/// Published figures of Rusty's 500 pages, and those of this set: name, published, this set's.
pub fn page_figures(set: &FileSet) -> Vec<(&'static str, f64, f64)> {
    let mut sizes: Vec<u64> = set.entries.iter().map(|entry| entry.size_bytes).collect();
    sizes.sort_unstable();
    let count = sizes.len().max(1) as f64;
    let percent = |bytes| 100.0 * sizes.partition_point(|&size| size < bytes) as f64 / count;
    let kb = |size: Option<&u64>| size.map_or(0.0, |&size| size as f64 / 1e3);
    let large = sizes.iter().filter(|&&size| size > 500_000).count();
    vec![
        ("smallest, KB", 3.5, kb(sizes.first())),
        ("median, KB", 68.0, kb(sizes.get(sizes.len() / 2))),
        ("mean, KB", 126.0, set.total_bytes() as f64 / count / 1e3),
        ("largest, KB", 1_100.0, kb(sizes.last())),
        ("below 150 KB, %", 70.0, percent(150_000)),
        ("below 300 KB, %", 90.0, percent(300_000)),
        ("pages above 500 KB", 17.0, large as f64),
    ]
}

fn write_content(path: &Path, len: u64, mut random: Random, buffer: &mut [u8]) -> io::Result<u32> {
    let mut file = File::create(path)?;
    let mut checksum = crc32fast::Hasher::new();
    let mut left_bytes = len;
    while left_bytes > 0 {
        let length =
            usize::try_from(left_bytes).map_or(buffer.len(), |left| left.min(buffer.len()));
        let piece = &mut buffer[..length];
        random.fill(piece);
        checksum.update(piece);
        file.write_all(piece)?;
        left_bytes -= length as u64;
    }
    Ok(checksum.finalize())
}

/// Refuses a directory with other files; one with a manifest may be overwritten.
fn refuse_strangers(directory: &Path) -> io::Result<()> {
    if directory.join(MANIFEST).exists() || fs::read_dir(directory)?.next().is_none() {
        return Ok(());
    }
    let what = format!(
        "{} is not empty and holds no {MANIFEST}; choose an empty directory or a new one",
        directory.display()
    );
    Err(io::Error::new(io::ErrorKind::AlreadyExists, what))
}

fn refuse_without_space(directory: &Path, needed_bytes: u64) -> io::Result<()> {
    let space = rustix::fs::statvfs(directory)?;
    let free_bytes = space.f_bavail.saturating_mul(space.f_frsize);
    if free_bytes > needed_bytes {
        return Ok(());
    }
    let what = format!(
        "{} has {} MB free and the set needs {} MB; free some space or make a smaller set with --scale",
        directory.display(),
        free_bytes / 1_000_000,
        needed_bytes / 1_000_000
    );
    Err(io::Error::new(io::ErrorKind::StorageFull, what))
}

#[cfg(test)]
mod tests;
