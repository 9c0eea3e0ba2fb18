//! Operations of a back end, and their completions.

use std::net::IpAddr;
use std::time::Duration;

use crate::plan::LoadTarget;

/// A connection to open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route<'a> {
    pub(crate) to: &'a LoadTarget,
    /// Source address; `None`: the network picks it.
    pub(crate) from: Option<IpAddr>,
    /// True if several requests may be in flight: none may wait for another's acknowledgement
    /// (Nagle).
    pub(crate) is_chatty: bool,
}

/// Number of completions that end a wait; below 2, each does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Gather {
    pub(crate) count: u32,
    /// Time after which one suffices.
    pub(crate) within: Duration,
}

/// Most bytes that one operation discards. Nothing is stored there.
pub(crate) const DISCARD_BYTES: usize = 1 << 20;

/// An operation that ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) slot: u32,
    pub(crate) kind: CompletionKind,
    /// Result of the system call in the kernel: a count, or a negative error number.
    pub(crate) result: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CompletionKind {
    Connected = 0,
    /// Reported only if it failed, or after a cancel.
    Sent = 1,
    Received = 2,
    Cancelled = 3,
}

impl CompletionKind {
    pub(crate) fn from_bits(bits: u64) -> CompletionKind {
        match bits {
            0 => CompletionKind::Connected,
            1 => CompletionKind::Sent,
            2 => CompletionKind::Received,
            _ => CompletionKind::Cancelled,
        }
    }
}
