//! What a back end is asked for, and how it answers.

use std::net::{IpAddr, SocketAddr};

/// A connection to be opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) to: SocketAddr,
    /// The address to connect from; `None`: what the network picks.
    pub(crate) from: Option<IpAddr>,
    /// More than one request may be under way on it, so none of them waits for the other's
    /// acknowledgement (Nagle).
    pub(crate) is_chatty: bool,
}

/// The most that one operation drops unread. Nothing is stored there.
pub(crate) const DISCARD_BYTES: usize = 1 << 20;

/// An operation that ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) port: u32,
    pub(crate) what: What,
    /// As a system call's in the kernel: a count, or a negative error number.
    pub(crate) result: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum What {
    Connected = 0,
    /// Reported only if it failed, or after a cancel.
    Sent = 1,
    Received = 2,
    Cancelled = 3,
}

impl What {
    pub(crate) fn from_bits(bits: u64) -> What {
        match bits {
            0 => What::Connected,
            1 => What::Sent,
            2 => What::Received,
            _ => What::Cancelled,
        }
    }
}
