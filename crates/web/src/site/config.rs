use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// What a [`Site`](super::Site) serves, and how much it may hold for that.
#[derive(Clone, Debug)]
pub struct SiteConfig {
    /// The directory whose files are served. May be a symbolic link: when it is switched to another
    /// directory (the usual way to publish a release), the site follows within `recheck_every`.
    pub root: PathBuf,
    /// What answers for a directory: the first of these names that exists in it.
    pub index: Vec<String>,
    /// Whether a directory without an index file is listed (otherwise: 403).
    pub listing: bool,
    /// Whether names that begin with a dot are served and listed. `/.well-known/` always is,
    /// because its very purpose is to be found. RFC 8615
    pub hidden: bool,
    /// Whether symbolic links may lead out of the root. Links like `/proc/self/fd/3` never may.
    pub follow_links_out: bool,
    /// What answers for a path that does not exist, for applications that route in the browser:
    /// a path within the root, such as `index.html`.
    pub spa_fallback: Option<String>,
    /// Bodies for error replies, by status. A relative path begins at the root that is served now.
    /// At most 1 MiB each.
    pub error_pages: Vec<(u16, PathBuf)>,
    /// Extra header fields. Of rules that match and have the same name, the last one counts.
    pub headers: Vec<HeaderRule>,
    /// Values of `Cache-Control`. Of rules that match, the last one counts.
    pub cache_rules: Vec<CacheRule>,
    /// Whether `x.br`, `x.zst` or `x.gz` is sent instead of `x` to clients that take it, when it
    /// lies beside it and is at least as new, or `x` itself is not there.
    pub precompressed: bool,
    /// How many bytes of small files may be held in memory, 1 KiB of overhead for each included.
    pub memory_budget: u64,
    /// Up to which length a file may be held in memory, in bytes. A driver that can have the kernel
    /// send longer ones from its page cache pays less for that than for a copy.
    pub memory_file_len_max: u64,
    /// How many bytes of files may be left to the kernel's page cache (see
    /// [`FileRange::keep`](session::FileRange)). `None`: half of what this machine and its memory
    /// cgroups leave free when the site opens. Files that find no room here are read past the page
    /// cache, so that a walk over a huge file set does not push out what is popular.
    pub page_cache_budget: Option<u64>,
    /// How many files may be held open. A driver that reads past the page cache may open each of
    /// them a second time.
    pub open_files_max: usize,
    /// How many paths may be remembered (about half a KiB each, beside the bytes and descriptors).
    pub paths_max: usize,
    /// A change on disk is served at the latest this long after it, plus the reply in progress.
    pub recheck_every: Duration,
    /// What ETags are made of.
    pub etag: EtagKind,
    /// Types, before the built-in table: by extension (without its dot) or whole file name, if
    /// there is no sign of a glob in it, and else by glob as in [`HeaderRule`]. Of those that
    /// match, the last one counts.
    pub mime_types: Vec<(String, String)>,
}

/// What a file's ETag is made of, beside its length. RFC 9110 8.8.3
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EtagKind {
    /// A hash of inode number, change time and modification time: whatever is done to a file, it
    /// gets another one, also where tools give every file the same modification time.
    #[default]
    Inode,
    /// The modification time: the same on servers that have the same files. A file whose time is
    /// known to be the same for all of its versions has none.
    Mtime,
    /// None.
    Off,
}

/// A header field for replies about files whose path matches a glob; with the glob `**` for every
/// reply.
///
/// Globs are written as in `.gitignore`: without a slash (`*.js`) they match the file's name in any
/// directory, with one (`assets/**`, `/index.html`) the whole path from the root. `*` stops at a
/// slash, `**` does not. What is matched is the file that answers (`blog/index.html` for `/blog/`),
/// or where none does the path that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderRule {
    /// Which files.
    pub glob: String,
    /// The field's name. Names that the server sets itself are refused. `Content-Encoding` says
    /// what the files are compressed with (`br`, `zstd`, `gzip`), or that they are not
    /// (`identity`).
    pub name: String,
    /// The field's value.
    pub value: String,
}

/// A value of `Cache-Control` for the files whose path matches a glob (see [`HeaderRule`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheRule {
    /// Which files.
    pub glob: String,
    /// The value, such as `max-age=31536000, immutable`. RFC 9111 5.2
    pub value: String,
}

impl Default for SiteConfig {
    fn default() -> SiteConfig {
        SiteConfig {
            root: PathBuf::from("."),
            index: vec!["index.html".to_owned()],
            listing: false,
            hidden: false,
            follow_links_out: false,
            spa_fallback: None,
            error_pages: Vec::new(),
            headers: Vec::new(),
            cache_rules: Vec::new(),
            precompressed: true,
            memory_budget: 64 << 20,
            memory_file_len_max: 64 << 10,
            page_cache_budget: None,
            open_files_max: 512,
            paths_max: 32_768,
            recheck_every: Duration::from_secs(1),
            etag: EtagKind::default(),
            mime_types: Vec::new(),
        }
    }
}

/// Why a site cannot be opened. Each message says what is wrong and where.
#[derive(Debug)]
pub enum SiteError {
    /// The root is not there.
    RootMissing(PathBuf),
    /// The root is there, but it is no directory.
    RootNotDirectory(PathBuf),
    /// The root may not be entered by the user that the server runs as.
    RootDenied(PathBuf),
    /// The root cannot be opened for another reason.
    Root(PathBuf, io::Error),
    /// A glob cannot be understood.
    Glob {
        /// The glob.
        glob: String,
        /// What is wrong with it.
        why: String,
    },
    /// A header field's name is no token, or the server sets that field itself.
    HeaderName {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A header field's value holds a line break or another control character.
    HeaderValue {
        /// The field's name.
        name: String,
        /// The value.
        value: String,
    },
    /// An index name is not a plain file name.
    IndexName(String),
    /// The fallback is not a file that the site serves.
    Fallback(String),
    /// An error page's status is none.
    ErrorPageStatus(u16),
    /// An error page cannot be read.
    ErrorPage {
        /// For which status.
        status: u16,
        /// Where it should be.
        path: PathBuf,
        /// What reading it said.
        error: io::Error,
    },
}

impl fmt::Display for SiteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SiteError::RootMissing(path) => {
                write!(f, "the site's root {} does not exist", path.display())
            }
            SiteError::RootNotDirectory(path) => {
                write!(f, "the site's root {} is not a directory", path.display())
            }
            SiteError::RootDenied(path) => write!(
                f,
                "the site's root {} may not be entered by this user: it needs execute permission \
                 there and on every directory above",
                path.display()
            ),
            SiteError::Root(path, error) => {
                write!(
                    f,
                    "the site's root {} cannot be opened: {error}",
                    path.display()
                )
            }
            SiteError::Glob { glob, why } => write!(f, "the glob {glob:?} is wrong: {why}"),
            SiteError::HeaderName { name, why } => {
                write!(f, "the header name {name:?} cannot be used: {why}")
            }
            SiteError::HeaderValue { name, value } => write!(
                f,
                "the value {value:?} of {name} cannot be used: it holds a line break or another \
                 control character, or is not ASCII"
            ),
            SiteError::IndexName(name) => write!(
                f,
                "{name:?} cannot be an index file: it must be a plain file name without a slash"
            ),
            SiteError::Fallback(path) => write!(
                f,
                "the fallback {path:?} is not a file that this site serves; it must be a path \
                 within the root, such as index.html"
            ),
            SiteError::ErrorPageStatus(status) => {
                write!(
                    f,
                    "an error page for status {status}: only 400 to 599 are errors"
                )
            }
            SiteError::ErrorPage {
                status,
                path,
                error,
            } => {
                write!(
                    f,
                    "the error page for {status}, {}, cannot be read: {error}",
                    path.display()
                )
            }
        }
    }
}

impl Error for SiteError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            SiteError::Root(_, error) | SiteError::ErrorPage { error, .. } => Some(error),
            _ => None,
        }
    }
}
