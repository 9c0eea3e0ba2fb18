//! How far a connection goes before others have their turn.

use std::ops::ControlFlow::{self, Break, Continue};

/// After so many steps, or so much that was sent, a connection gives way to others: neither a peer
/// that takes a file as fast as it is sent, nor one that sends without end, keeps a thread to
/// itself.
pub(crate) const STEPS_MAX: usize = 16;
const SENT_LEN_MAX: u64 = 512 * 1024;

/// Takes steps, each of which says how much it sent, until one has to wait and says for what.
/// `None` if the connection gives way to others first.
#[inline]
pub(crate) fn take_steps<W>(mut step: impl FnMut() -> ControlFlow<W, u64>) -> Option<W> {
    let mut sent_len = 0;
    for _ in 0..STEPS_MAX {
        match step() {
            Break(waits) => return Some(waits),
            Continue(len) => sent_len += len,
        }
        if sent_len >= SENT_LEN_MAX {
            break;
        }
    }
    None
}
