//! State between two steps of housekeeping: the moving page, and the crawler's walk.

use crate::store::index::Cursor;
use crate::store::rule::Seconds;

/// The page being moved from one class to another, if any.
#[derive(Debug)]
pub(crate) struct Mover {
    pub(crate) current: Option<Move>,
    /// Position of the search for the next page of each class.
    pub(crate) next_page: Vec<usize>,
    pub(crate) evicted_since_move: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Move {
    pub(crate) page: u32,
    pub(crate) from: u8,
    /// The class that gets the page; none: the page goes back to the kernel.
    pub(crate) to: Option<u8>,
    /// The next chunk to visit.
    pub(crate) at: u32,
    pub(crate) rounds: u32,
    /// Items evicted to make space for used items of the page.
    pub(crate) room: u32,
}

impl Mover {
    pub(crate) fn new(classes: usize) -> Mover {
        Mover { current: None, next_page: vec![0; classes + 1], evicted_since_move: 0 }
    }
}

/// The crawler's own walk.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    /// Position of the walk, if one is running.
    pub(crate) cursor: Option<Cursor>,
    /// The generation when it began.
    pub(crate) began_in: u16,
    /// No item has a generation before this one.
    pub(crate) oldest: u16,
    pub(crate) next_at: Seconds,
}
