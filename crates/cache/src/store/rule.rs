use std::error;
use std::fmt;

/// Time in whole seconds since server start, as in memcached. It begins at 2 or above, so that an
/// item with an expiry time of 1 has always expired.
pub type Seconds = u32;

/// Expiry time of an item that never expires.
pub const NEVER: Seconds = 0;

/// Expiry time of an item that has already expired: for negative expiry times of the protocol.
pub const EXPIRED: Seconds = 1;

/// Condition and effect of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Effect of the write.
    pub mode: Mode,
    /// Only if the item's cas equals this; a set or replace of a missing item is then
    /// [`StoreOutcome::NotFound`]. Ignored by an add.
    pub cas: Option<u64>,
    /// Meta `I`: if `cas` is lower (older) than the item's, store nevertheless, and mark as stale.
    pub invalidate: bool,
    /// Meta `E`: the item's new cas, instead of the store's next one.
    pub new_cas: Option<u64>,
    /// Meta `N` of append and prepend: a missing item is stored, with the reservation's expiry
    /// time.
    pub vivify: bool,
    /// Meta `N` of get: the item begins with its win token taken.
    pub win_taken: bool,
}

/// Effect of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Stores unconditionally.
    #[default]
    Set,
    /// Stores a missing item.
    Add,
    /// Stores over an existing item.
    Replace,
    /// Appends to the existing value; flags and expiry time stay.
    Append,
    /// Prepends to the existing value; flags and expiry time stay.
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
    /// Stored; the item has this cas now.
    Stored {
        /// The item's cas (0 with `-C`).
        cas: u64,
    },
    /// The rule's mode forbade it.
    NotStored,
    /// The item has another cas.
    Exists,
    /// A cas was given, but there is no item.
    NotFound,
}

/// Reason of a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// There is no such item.
    NotFound,
    /// The item had expired.
    Expired,
    /// The item had been flushed.
    Flushed,
}

/// Condition and effect of a delete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeleteRule {
    /// Only if the item's cas equals this.
    pub cas: Option<u64>,
    /// Meta `E`: the new cas of a kept item.
    pub new_cas: Option<u64>,
    /// Meta `I`: keep the item, marked as stale, with its win token free again.
    pub invalidate: bool,
    /// Meta `x`: keep the item, as a new one without value, flags, marks and expiry time.
    pub clear_value: bool,
    /// Meta `T`: the new expiry time of a kept item.
    pub exptime: Option<Seconds>,
}

/// Result of a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// Deleted or marked, according to the rule.
    Deleted,
    /// There is no such item.
    NotFound,
    /// The item has another cas.
    Exists,
}

/// Arithmetic on an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic {
    /// Up or down.
    pub direction: Direction,
    /// Amount.
    pub delta: u64,
    /// Only if the item's cas equals this.
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
    /// The item has another cas.
    Exists,
    /// The value is not a decimal number of 64 bits.
    NotANumber,
}

/// Reason why an item could not be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// Longer than `-I` allows.
    TooLarge,
    /// The memory is full and nothing may be evicted for the item.
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
