//! Slots of a back end that makes its completions itself: for each connection what is left to send
//! and the receive in progress, and the queues of slots that can progress.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

use crate::io::operation::{Completion, CompletionKind};

/// See the [module page](self). `S` is the back end's own state of a connection.
pub(crate) struct Slots<S> {
    slots: Vec<Slot<S>>,
    /// Slots with bytes to send, each once.
    dirty: VecDeque<u32>,
    /// Slots that are readable and have a receive in progress.
    ready: VecDeque<u32>,
    ended: Vec<Completion>,
}

#[derive(Default)]
pub(crate) struct Slot<S> {
    pub(crate) state: S,
    out: Vec<u8>,
    sent_bytes: usize,
    pub(crate) receive: Receive,
    pub(crate) is_connecting: bool,
    /// True if there may be bytes, or an end, that no further event announces.
    pub(crate) is_readable: bool,
    is_dirty: bool,
}

/// The receive in progress.
#[derive(Clone, Copy, Default, PartialEq)]
pub(crate) enum Receive {
    #[default]
    None,
    Read,
    Discard(u64),
}

impl<S: Default> Slots<S> {
    pub(crate) fn new(count: u32) -> Slots<S> {
        Slots {
            slots: (0..count).map(|_| Slot::default()).collect(),
            dirty: VecDeque::new(),
            ready: VecDeque::new(),
            ended: Vec::new(),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Slot<S>)> {
        (0..).zip(&self.slots)
    }

    pub(crate) fn output(&mut self, slot: u32) -> &mut Vec<u8> {
        self.set_dirty(slot);
        let entry = &mut self[slot];
        entry.drop_sent();
        &mut entry.out
    }

    /// Queues the slot for sending if it has unsent bytes.
    pub(crate) fn set_writable(&mut self, slot: u32) {
        if !self[slot].out.is_empty() {
            self.set_dirty(slot);
        }
    }

    fn set_dirty(&mut self, slot: u32) {
        if !std::mem::replace(&mut self[slot].is_dirty, true) {
            self.dirty.push_back(slot);
        }
    }

    pub(crate) fn begin_receive(&mut self, slot: u32, receive: Receive) {
        self[slot].receive = receive;
        if self[slot].is_readable {
            self.ready.push_back(slot);
        }
    }

    /// Notes that there are bytes, or an end.
    pub(crate) fn set_readable(&mut self, slot: u32) {
        let was_readable = std::mem::replace(&mut self[slot].is_readable, true);
        if !was_readable && self[slot].receive != Receive::None {
            self.ready.push_back(slot);
        }
    }

    pub(crate) fn cancel(&mut self, slot: u32) {
        let entry = &mut self[slot];
        entry.receive = Receive::None;
        entry.is_connecting = false;
        entry.out.clear();
        entry.sent_bytes = 0;
    }

    /// Resets the slot and returns the back end's state of its connection.
    pub(crate) fn close(&mut self, slot: u32) -> S {
        self.cancel(slot);
        let entry = &mut self[slot];
        let closed = std::mem::take(entry);
        entry.out = closed.out;
        entry.is_dirty = closed.is_dirty;
        self.ended.retain(|completion| completion.slot != slot);
        closed.state
    }

    /// Takes the next slot with bytes to send.
    pub(crate) fn next_dirty(&mut self) -> Option<u32> {
        let slot = self.dirty.pop_front()?;
        self[slot].is_dirty = false;
        Some(slot)
    }

    /// Takes the next slot with a receive in progress. A slot may come twice, or after its receive
    /// was cancelled; then its receive is [`Receive::None`].
    pub(crate) fn next_ready(&mut self) -> Option<u32> {
        self.ready.pop_front()
    }

    /// Queues the completion of an operation.
    pub(crate) fn end(&mut self, slot: u32, kind: CompletionKind, result: i32) {
        self.ended.push(Completion { slot, kind, result });
    }

    pub(crate) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    pub(crate) fn take_ended(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.ended);
    }
}

impl<S> Slot<S> {
    /// Bytes to send next.
    pub(crate) fn unsent(&self) -> &[u8] {
        &self.out[self.sent_bytes..]
    }

    /// Drops what was sent, if it is more than what has to be moved for it: the output may never be
    /// all sent.
    fn drop_sent(&mut self) {
        if self.sent_bytes > self.out.len() / 2 {
            self.out.drain(..self.sent_bytes);
            self.sent_bytes = 0;
        }
    }

    /// Notes that `bytes` bytes were sent.
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.sent_bytes += bytes;
        if self.sent_bytes == self.out.len() {
            self.out.clear();
            self.sent_bytes = 0;
        }
    }
}

impl<S> Index<u32> for Slots<S> {
    type Output = Slot<S>;

    fn index(&self, slot: u32) -> &Slot<S> {
        &self.slots[slot as usize]
    }
}

impl<S> IndexMut<u32> for Slots<S> {
    fn index_mut(&mut self, slot: u32) -> &mut Slot<S> {
        &mut self.slots[slot as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen: over epoll a run with --depth 2 and bodies of 8 MB, against a server that read them
    /// slowly, held every byte that it had ever sent: 240 MB after 30 requests. Cause: the output
    /// was cleared only when all of it was sent, and the next request always came before. Cure: a
    /// request that is appended drops what was sent.
    #[test]
    fn sent_bytes_are_dropped() {
        let mut slots: Slots<()> = Slots::new(1);
        let request = |number: u32| number.to_be_bytes().repeat(250);
        slots.output(0).extend(request(0));
        for number in 1..1000 {
            slots.output(0).extend(request(number));
            slots[0].advance(1000);
            assert_eq!(slots[0].unsent(), request(number));
            let held = slots[0].out.len();
            assert!(held <= 3000, "{held} bytes after {number} requests");
        }
        slots[0].advance(999);
        assert_eq!(slots[0].unsent(), [231]);
        slots[0].advance(1);
        assert_eq!(slots.output(0).len(), 0);
    }
}
