use crate::store::{Rule, Seconds};

/// A parsed store command.
pub(crate) struct Storage<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) flags: u32,
    pub(crate) exptime: Seconds,
    pub(crate) value_len: usize,
    pub(crate) rule: Rule,
    /// True if the old value must not outlive an attempt that fails for its length or lack of
    /// memory.
    pub(crate) forgets: bool,
    /// memcached's name of the command, for watchers.
    pub(crate) name: &'static str,
}

/// Reason why a line is refused.
pub(crate) enum Bad {
    /// The value's length is unreadable: the reply is sent at once, and the next bytes are taken as
    /// the next line.
    Line(&'static [u8]),
    /// A value of this length is skipped; the reply follows it.
    Swallow(&'static [u8], usize),
}
