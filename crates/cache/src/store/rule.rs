use std::error;
use std::fmt;

/// The time in whole seconds since the server started, as memcached counts it: begins at 2 or
/// above, so that an item with an expiry time of 1 has expired whenever one looks.
pub type Seconds = u32;

/// The expiry time of what never expires.
pub const NEVER: Seconds = 0;

/// The expiry time of what has already expired: for negative expiry times of the protocol.
pub const EXPIRED: Seconds = 1;

/// Condition and effect of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Effect of the write.
    pub mode: Mode,
    /// Only if the item's cas is this one; a set or replace of a missing item is then
    /// [`StoreOutcome::NotFound`]. An add does not look at it.
    pub cas: Option<u64>,
    /// Meta `I`: where `cas` is older (less) than the item's, store all the same, and mark as
    /// stale.
    pub invalidate: bool,
    /// Meta `E`: the item's new cas, instead of the store's next one.
    pub new_cas: Option<u64>,
    /// Meta `N` of append and prepend: a missing item is stored, with the reservation's expiry
    /// time.
    pub vivify: bool,
    /// Meta `N` of get: the item begins with its win token given out.
    pub win_taken: bool,
}

/// Effect of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Stores.
    #[default]
    Set,
    /// Stores what is not there.
    Add,
    /// Stores over what is there.
    Replace,
    /// Puts the value behind what is there; flags and expiry time stay.
    Append,
    /// Puts the value before what is there; flags and expiry time stay.
    Prepend,
}

impl From<Mode> for Rule {
    fn from(mode: Mode) -> Rule {
        Rule { mode, ..Rule::default() }
    }
}

/// Result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOutcome {
    /// Done; the item has this cas now.
    Stored {
        /// The item's cas (0 with `-C`).
        cas: u64,
    },
    /// The rule's mode forbade it.
    NotStored,
    /// The cas is another one.
    Exists,
    /// A cas was given, and there is no item.
    NotFound,
}

/// Reason of a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// There is no such item.
    NotFound,
    /// There was one, and its time was over.
    Expired,
    /// There was one, and it was flushed.
    Flushed,
}

/// Condition and effect of a delete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeleteRule {
    /// Only if the item's cas is this one.
    pub cas: Option<u64>,
    /// Meta `E`: the new cas of what is kept.
    pub new_cas: Option<u64>,
    /// Meta `I`: keep the item, marked as stale, with its win token free again.
    pub invalidate: bool,
    /// Meta `x`: keep the item, as a new one without value, flags, marks and expiry time.
    pub clear_value: bool,
    /// Meta `T`: the new expiry time of what is kept.
    pub exptime: Option<Seconds>,
}

/// Result of a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// Gone, or marked, as the rule says.
    Deleted,
    /// There is no such item.
    NotFound,
    /// The cas is another one.
    Exists,
}

/// Arithmetic on an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic {
    /// Up or down.
    pub direction: Direction,
    /// By how much.
    pub delta: u64,
    /// Only if the item's cas is this one.
    pub cas: Option<u64>,
    /// Meta `E`: the item's new cas.
    pub new_cas: Option<u64>,
    /// Meta `T`: the item's new expiry time.
    pub exptime: Option<Seconds>,
}

/// The direction of [`Arithmetic`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Wraps at 2^64.
    Up,
    /// Stops at 0.
    Down,
}

/// Result of arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// The new number, and the item's cas now.
    Stored {
        /// The new number.
        number: u64,
        /// The item's cas.
        cas: u64,
    },
    /// There is no such item.
    NotFound,
    /// The cas is another one.
    Exists,
    /// The value is not a decimal number of 64 bits.
    NotANumber,
}

/// Reason for which an item could not be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// Longer than `-I` allows.
    TooLarge,
    /// The memory is full and nothing may be given up for the item.
    OutOfMemory,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StoreError::TooLarge => "object too large for cache",
            StoreError::OutOfMemory => "out of memory storing object",
        })
    }
}

impl error::Error for StoreError {}
