use crate::store::{Rule, Seconds};

/// A store command's line, read.
pub(crate) struct Storage<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) flags: u32,
    pub(crate) exptime: Seconds,
    pub(crate) value_len: usize,
    pub(crate) rule: Rule,
    /// memcached's word for it, for watchers.
    pub(crate) name: &'static str,
}

/// Why a line is none.
pub(crate) enum Bad {
    /// Said at once; what follows is the next line.
    Line(&'static [u8], bool),
    /// Said after the value, which is that long.
    Swallow(&'static [u8], usize),
}
