use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::lookup::Encoding;

/// Configuration of a [`Site`](super::Site).
#[derive(Clone, Debug)]
pub struct SiteConfig {
    /// The directory whose files are served. May be a symbolic link: when it is switched to another
    /// directory (a usual way to publish a release), the site follows within `recheck_every`.
    pub root: PathBuf,
    /// Index files: the first of these names that exists answers for a directory.
    pub index: Vec<String>,
    /// List directories without an index file (otherwise: 403).
    pub listing: bool,
    /// Serve and list names that begin with a dot. `/.well-known/` is always served. RFC 8615
    pub hidden: bool,
    /// Follow symbolic links out of the root. Links like `/proc/self/fd/3` are never followed.
    pub follow_links_out: bool,
    /// Serve `a.html` at `/a`, and send clients there from `/a.html` and, if no index file answers,
    /// from `/a/`; from `/b/index.html` to `/b/`. A file `a` comes before `a.html`.
    pub clean_urls: bool,
    /// Fallback for paths that do not exist, for applications that route in the browser: a path
    /// within the root, such as `index.html`.
    pub spa_fallback: Option<String>,
    /// Bodies for error replies, by status. A relative path begins at the root that is served now.
    /// At most 1 MiB each.
    pub error_pages: Vec<(u16, PathBuf)>,
    /// Globs of paths that are answered as if they did not exist, as in [`HeaderRule`]; for a
    /// directory, including everything below it.
    pub deny: Vec<String>,
    /// Globs of paths that require a name and a password, and the file of permitted users: lines of
    /// `NAME:HASH` with bcrypt, SHA-crypt or argon2. The last matching glob applies.
    pub basic_auth: Vec<(String, PathBuf)>,
    /// Extra header fields. Of matching rules with the same name, the last one applies.
    pub headers: Vec<HeaderRule>,
    /// Origins whose scripts may read replies; all matching rules apply.
    pub cors: Vec<CorsRule>,
    /// Values of `Cache-Control`. The last matching rule applies.
    pub cache_rules: Vec<CacheRule>,
    /// Send `x.br`, `x.zst` or `x.gz` instead of `x` to clients that accept it, if it is at least
    /// as new as `x`, or `x` does not exist.
    pub precompressed: bool,
    /// Codings in which variants are made of files without a precompressed one. Requires
    /// [`Site::start_compressing`](super::Site::start_compressing).
    pub compress: Vec<Encoding>,
    /// Budget in bytes for small files in memory, with 1 KiB of overhead for each.
    pub memory_budget: u64,
    /// Longest file to hold in memory, in bytes. For a longer one, a driver that lets the kernel
    /// send from its page cache needs less CPU than for a copy.
    pub memory_file_len_max: u64,
    /// Give each file in memory, of up to 4 MiB, a place for a table that the driver makes of its
    /// bytes ([`SharedPage`](session::SharedPage)). `memory_budget` includes it.
    pub driver_tables: bool,
    /// Budget in bytes for files in the kernel's page cache (see
    /// [`FileRange::keep`](session::FileRange)). `None`: the memory that the machine and its
    /// cgroups leave, checked while running. Files over the budget are read with `O_DIRECT`, so
    /// that a walk over a huge file set does not evict popular files.
    pub page_cache_budget: Option<u64>,
    /// Makes the allocator return its free memory to the system, if it does not do so by itself.
    /// May take milliseconds. Called after many files in memory were replaced, before the available
    /// memory is checked.
    pub return_free_memory: Option<fn()>,
    /// Maximum number of open files. A driver that reads with `O_DIRECT` may open each of them a
    /// second time.
    pub open_files_max: usize,
    /// Maximum number of known paths (about half a KiB each, beside bytes and descriptors).
    pub paths_max: usize,
    /// A change on disk is served at the latest this long after it, plus the reply in progress.
    pub recheck_every: Duration,
    /// Source of ETags.
    pub etag: EtagKind,
    /// Types that override the built-in table. A pattern without glob characters is an extension
    /// (without its dot) or a whole file name, any other a glob as in [`HeaderRule`]. The last
    /// matching one applies.
    pub mime_types: Vec<(String, String)>,
}

/// Source of a file's ETag, in addition to its length. RFC 9110 8.8.3
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EtagKind {
    /// A hash of inode number, change time and modification time: it differs after every change,
    /// even if tools give every file the same modification time.
    #[default]
    Inode,
    /// The modification time: the same on servers with the same files. A file whose time is known
    /// to be the same for all versions gets no ETag.
    Mtime,
    /// No ETag.
    Off,
}

/// A header field for replies about files whose path matches a glob; with the glob `**` for every
/// reply.
///
/// Globs are written as in `.gitignore`: without a slash (`*.js`) they match the file's name in any
/// directory, with one (`assets/**`, `/index.html`) the whole path from the root. `*` stops at a
/// slash, `**` does not. The glob is matched with the file that answers (`blog/index.html` for
/// `/blog/`), or with the requested path if no file answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HeaderRule {
    /// Pattern of the files.
    pub glob: String,
    /// The field's name. Names that the server sets itself are refused. `Content-Encoding` declares
    /// how the files are compressed (`br`, `zstd`, `gzip`), or that they are not (`identity`).
    pub name: String,
    /// The field's value.
    pub value: String,
}

/// A value of `Cache-Control` for the files whose path matches a glob (see [`HeaderRule`]).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CacheRule {
    /// Pattern of the files.
    pub glob: String,
    /// The value, such as `max-age=31536000, immutable`. RFC 9111 5.2
    pub value: String,
}

/// An origin whose scripts may read replies about files whose path matches a glob (see
/// [`HeaderRule`]).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CorsRule {
    /// Pattern of the files.
    pub glob: String,
    /// `https://app.example.org`, `https://*.example.org`, or `*` for all. RFC 6454 7
    pub origin: String,
}

impl Default for SiteConfig {
    fn default() -> SiteConfig {
        SiteConfig {
            root: PathBuf::from("."),
            index: vec!["index.html".to_owned()],
            listing: false,
            hidden: false,
            follow_links_out: false,
            clean_urls: false,
            spa_fallback: None,
            error_pages: Vec::new(),
            deny: Vec::new(),
            basic_auth: Vec::new(),
            headers: Vec::new(),
            cors: Vec::new(),
            cache_rules: Vec::new(),
            precompressed: true,
            compress: Vec::new(),
            memory_budget: 64 << 20,
            memory_file_len_max: 64 << 10,
            driver_tables: false,
            page_cache_budget: None,
            return_free_memory: None,
            open_files_max: 512,
            paths_max: 32_768,
            recheck_every: Duration::from_secs(1),
            etag: EtagKind::default(),
            mime_types: Vec::new(),
        }
    }
}

/// Error of a configuration. The message names the mistake and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(pub(crate) String);

impl ConfigError {
    /// Error: a glob cannot be parsed.
    pub(super) fn glob(glob: &str, why: impl fmt::Display) -> ConfigError {
        ConfigError(format!("the glob {glob:?} is wrong: {why}"))
    }

    /// Error: a header field's name is no token, or is reserved for the server.
    pub(super) fn header_name(name: &str, why: &str) -> ConfigError {
        ConfigError(format!("the header name {name:?} cannot be used: {why}"))
    }

    /// Error: a header field's value could end its line.
    pub(super) fn header_value(name: &str, value: &str) -> ConfigError {
        ConfigError(format!(
            "the value {value:?} of {name} cannot be used: it holds a line break or another \
             control character, or is not ASCII"
        ))
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for ConfigError {}
