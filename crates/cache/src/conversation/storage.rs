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
    /// The value's length cannot be read: the reply comes at once, and what follows is the next
    /// line.
    Line(&'static [u8]),
    /// The value is skipped, which is that long, and the reply comes after it.
    Swallow(&'static [u8], usize),
}
