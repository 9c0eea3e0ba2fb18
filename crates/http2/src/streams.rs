//! Open streams: a table, and the queues of those whose body can be sent.
//!
//! ```text
//!  slots   │ stream 1 │ stream 9 │ free │ stream 5 │ ···        one for each open stream
//!  queues  │ u=0: –   │ u=1: 9   │ ···  │ u=3: 1 ⇄ 5 │ ···      linked through the slots
//! ```
//!
//! A stream is in the queue of its urgency as long as it has a body to send, its window is open,
//! and its owner has not paused it. The front of the most urgent queue is sent first. A small reply
//! goes out whole; a large one goes to the end of its queue after a turn, so that it does not hold
//! up others.

use crate::error::{Fault, malformed};
use crate::priority::{Priority, URGENCIES};

/// Handle of a stream that the peer has opened. It becomes stale with the stream's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamKey {
    id: u32,
    slot: u16,
}

impl StreamKey {
    /// Identifier of the stream, as the peer knows it.
    pub fn id(self) -> u32 {
        self.id
    }

    /// Number of the stream among those open: below their limit, and used again after its end.
    pub fn slot(self) -> usize {
        self.slot.into()
    }
}

/// One open stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) priority: Priority,
    /// The peer has ended its side: half-closed (remote). RFC 9113 5.1
    pub(crate) is_remote_ended: bool,
    /// The final head was written.
    pub(crate) is_replied: bool,
    /// Our side has ended: half-closed (local).
    pub(crate) is_local_ended: bool,
    /// The body of the request was too long.
    pub(crate) is_too_long: bool,
    is_paused: bool,
    is_queued: bool,
    /// Windows in both directions; the peer's may be negative. RFC 9113 6.9.2
    pub(crate) send_window: i32,
    pub(crate) receive_window: u32,
    /// Bytes of the reply's body: sent, and in all.
    pub(crate) sent: u64,
    pub(crate) body_len: u64,
    /// Bytes of the request's body so far, and most that are read.
    pub(crate) received: u64,
    pub(crate) received_max: u64,
    pub(crate) content_length: Option<u64>,
    /// Bytes until it goes to the end of its queue.
    turn_left: i32,
    next: u16,
    previous: u16,
}

/// Bytes that a stream sends before others of its urgency have their turn. Most replies are shorter
/// and go out whole, as RFC 9218 10 recommends for those that are not incremental.
const TURN_LEN: i32 = 256 * 1024;
const TURN_LEN_INCREMENTAL: i32 = 64 * 1024;

/// No slot.
const NONE: u16 = u16::MAX;

/// Slots that a connection without streams keeps.
const KEPT_SLOTS: usize = 8;

#[derive(Debug)]
pub(crate) struct Streams {
    /// Identifier of the stream in each slot, 0 if it is free: searched for frames of the peer.
    ids: Vec<u32>,
    slots: Vec<Stream>,
    free: Vec<u16>,
    queues: [Queue; URGENCIES],
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    first: u16,
    last: u16,
}

impl Stream {
    /// A stream whose head has been received.
    pub(crate) fn new(send_window: i32, receive_window: u32) -> Stream {
        Stream {
            priority: Priority::default(),
            is_remote_ended: false,
            is_replied: false,
            is_local_ended: false,
            is_too_long: false,
            is_paused: false,
            is_queued: false,
            send_window,
            receive_window,
            sent: 0,
            body_len: 0,
            received: 0,
            received_max: u64::MAX,
            content_length: None,
            turn_left: 0,
            next: NONE,
            previous: NONE,
        }
    }

    /// True if body bytes are left to send.
    pub(crate) fn has_body_left(&self) -> bool {
        self.sent < self.body_len
    }

    /// Compares the request's body so far with its `content-length`. RFC 9113 8.1.1
    pub(crate) fn check_length(&self, is_all: bool) -> Result<(), Fault> {
        let is_right = self
            .content_length
            .is_none_or(|len| self.received == len || (self.received < len && !is_all));
        let fault = malformed("the length of DATA differs from content-length");
        is_right.then_some(()).ok_or(fault)
    }

    fn belongs_in_queue(&self) -> bool {
        self.has_body_left() && self.send_window > 0 && !self.is_paused
    }

    fn turn_len(&self) -> i32 {
        if self.priority.is_incremental { TURN_LEN_INCREMENTAL } else { TURN_LEN }
    }
}

impl Streams {
    pub(crate) fn new() -> Streams {
        let empty = Queue { first: NONE, last: NONE };
        Streams { ids: Vec::new(), slots: Vec::new(), free: Vec::new(), queues: [empty; URGENCIES] }
    }

    /// Number of open streams.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Bytes of memory that the table has allocated.
    pub(crate) fn allocated_len(&self) -> usize {
        self.slots.capacity() * size_of::<Stream>()
            + self.ids.capacity() * size_of::<u32>()
            + self.free.capacity() * size_of::<u16>()
    }

    /// Adds a stream. The caller keeps their number below its limit.
    pub(crate) fn add(&mut self, id: u32, stream: Stream) -> StreamKey {
        let slot = match self.free.pop() {
            Some(slot) => {
                self.ids[usize::from(slot)] = id;
                self.slots[usize::from(slot)] = stream;
                slot
            }
            None => {
                self.ids.push(id);
                self.slots.push(stream);
                (self.slots.len() - 1) as u16
            }
        };
        StreamKey { id, slot }
    }

    /// Finds a stream by its identifier.
    pub(crate) fn find(&self, id: u32) -> Option<StreamKey> {
        let slot = self.ids.iter().position(|&other| other == id)?;
        let slot = slot as u16;
        Some(StreamKey { id, slot })
    }

    /// The stream, unless it has ended.
    #[inline]
    pub(crate) fn get(&mut self, key: StreamKey) -> Option<&mut Stream> {
        let is_open = self.ids.get(key.slot()) == Some(&key.id);
        is_open.then(|| &mut self.slots[key.slot()])
    }

    /// Removes a stream that is open.
    pub(crate) fn remove(&mut self, key: StreamKey) {
        self.take_out(key.slot);
        self.ids[key.slot()] = 0;
        self.free.push(key.slot);
        if self.len() == 0 {
            self.ids.clear();
            self.slots.clear();
            self.free.clear();
            self.ids.shrink_to(KEPT_SLOTS);
            self.slots.shrink_to(KEPT_SLOTS);
            self.free.shrink_to(KEPT_SLOTS);
        }
    }

    /// All open streams.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Stream> {
        let slots = self.ids.iter().zip(&self.slots);
        slots.filter_map(|(id, stream)| (*id != 0).then_some(stream))
    }

    /// Adds `change` to the windows of all streams; `false` if one became too large.
    pub(crate) fn change_windows(&mut self, change: i32) -> bool {
        for slot in 0..self.slots.len() {
            if self.ids[slot] == 0 {
                continue;
            }
            let stream = &mut self.slots[slot];
            let Some(window) = stream.send_window.checked_add(change) else {
                return false;
            };
            stream.send_window = window;
            self.update(slot as u16);
        }
        true
    }

    // ---- queues

    /// The stream to send from.
    #[inline]
    pub(crate) fn front(&self) -> Option<(StreamKey, &Stream)> {
        let queue = self.queues.iter().find(|queue| queue.first != NONE)?;
        let slot = queue.first;
        let id = self.ids[usize::from(slot)];
        Some((StreamKey { id, slot }, &self.slots[usize::from(slot)]))
    }

    /// Puts a stream into its queue or takes it out, after a change of its window or body.
    pub(crate) fn refresh(&mut self, key: StreamKey) {
        self.update(key.slot);
    }

    /// Pauses or resumes a stream.
    pub(crate) fn set_paused(&mut self, key: StreamKey, is_paused: bool) {
        if let Some(stream) = self.get(key) {
            stream.is_paused = is_paused;
            self.update(key.slot);
        }
    }

    /// Changes a stream's priority.
    pub(crate) fn set_priority(&mut self, key: StreamKey, priority: Priority) {
        self.take_out(key.slot);
        self.slots[key.slot()].priority = priority;
        self.update(key.slot);
    }

    /// Counts bytes that a stream has sent. At the end of its turn it goes behind the others.
    #[inline]
    pub(crate) fn sent(&mut self, key: StreamKey, len: u32) {
        let stream = &mut self.slots[key.slot()];
        stream.turn_left -= len as i32;
        if stream.turn_left <= 0 && stream.is_queued {
            self.take_out(key.slot);
        }
        self.update(key.slot);
    }

    #[inline]
    fn update(&mut self, slot: u16) {
        let stream = &mut self.slots[usize::from(slot)];
        match (stream.belongs_in_queue(), stream.is_queued) {
            (true, false) => self.put_in(slot),
            (false, true) => self.take_out(slot),
            _ => {}
        }
    }

    fn put_in(&mut self, slot: u16) {
        let stream = &mut self.slots[usize::from(slot)];
        let queue = &mut self.queues[usize::from(stream.priority.urgency)];
        let last = std::mem::replace(&mut queue.last, slot);
        stream.turn_left = stream.turn_len();
        stream.is_queued = true;
        stream.previous = last;
        stream.next = NONE;
        match last {
            NONE => queue.first = slot,
            last => self.slots[usize::from(last)].next = slot,
        }
    }

    fn take_out(&mut self, slot: u16) {
        let stream = &mut self.slots[usize::from(slot)];
        if !std::mem::take(&mut stream.is_queued) {
            return;
        }
        let queue = &mut self.queues[usize::from(stream.priority.urgency)];
        let next = stream.next;
        let previous = stream.previous;
        match previous {
            NONE => queue.first = next,
            previous => self.slots[usize::from(previous)].next = next,
        }
        match next {
            NONE => queue.last = previous,
            next => self.slots[usize::from(next)].previous = previous,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streams(bodies: &[(u32, u8, bool, u64)]) -> (Streams, Vec<StreamKey>) {
        let mut streams = Streams::new();
        let keys = bodies.iter().map(|&(id, urgency, is_incremental, body_len)| {
            let mut stream = Stream::new(i32::MAX, 0);
            stream.body_len = body_len;
            stream.priority = Priority { urgency, is_incremental };
            let key = streams.add(id, stream);
            streams.refresh(key);
            key
        });
        let keys = keys.collect();
        (streams, keys)
    }

    /// Identifiers in the order in which pieces of `len` are sent, with the number of pieces.
    fn order(streams: &mut Streams, len: u64) -> Vec<(u32, usize)> {
        let mut order: Vec<(u32, usize)> = Vec::new();
        while let Some((key, stream)) = streams.front() {
            let len = len.min(stream.body_len - stream.sent);
            streams.get(key).unwrap().sent += len;
            streams.sent(key, len as u32);
            match order.last_mut() {
                Some((id, count)) if *id == key.id() => *count += 1,
                _ => order.push((key.id(), 1)),
            }
        }
        order
    }

    const PIECE: u64 = 64 * 1024;

    #[test]
    fn urgent_streams_are_first() {
        let (mut streams, _) = streams(&[(1, 7, false, 1), (3, 0, true, 1), (5, 3, false, 1)]);
        assert_eq!(order(&mut streams, PIECE), [(3, 1), (5, 1), (1, 1)]);
    }

    #[test]
    fn small_replies_go_out_whole() {
        let small = 2 * PIECE;
        let (mut streams, _) = streams(&[(1, 3, false, small), (3, 3, false, small)]);
        assert_eq!(order(&mut streams, PIECE), [(1, 2), (3, 2)]);
    }

    #[test]
    fn large_replies_take_turns() {
        let (mut streams, _) =
            streams(&[(1, 3, false, 8 * PIECE), (3, 3, false, 5 * PIECE), (5, 3, false, 1)]);
        let expected = [(1, 4), (3, 4), (5, 1), (1, 4), (3, 1)];
        assert_eq!(order(&mut streams, PIECE), expected);
    }

    #[test]
    fn incremental_replies_alternate() {
        let (mut streams, _) = streams(&[(1, 3, true, 2 * PIECE), (3, 3, true, 2 * PIECE)]);
        assert_eq!(order(&mut streams, PIECE), [(1, 1), (3, 1), (1, 1), (3, 1)]);
    }

    #[test]
    fn paused_stream_waits() {
        let (mut streams, keys) = streams(&[(1, 3, false, 1), (3, 3, false, 1)]);
        streams.set_paused(keys[0], true);
        assert_eq!(order(&mut streams, PIECE), [(3, 1)]);
        streams.set_paused(keys[0], false);
        assert_eq!(order(&mut streams, PIECE), [(1, 1)]);
    }

    #[test]
    fn window_decides_who_is_queued() {
        let (mut streams, keys) = streams(&[(1, 3, false, 9), (3, 3, false, 9)]);
        streams.get(keys[0]).unwrap().send_window = 5;
        assert!(streams.change_windows(-5));
        assert_eq!(streams.front().unwrap().0, keys[1]);
        assert!(streams.change_windows(-100));
        assert!(streams.change_windows(101));
        assert_eq!(order(&mut streams, PIECE), [(3, 1), (1, 1)]);
        assert!(!streams.change_windows(i32::MAX));
    }

    #[test]
    fn priority_may_change() {
        let (mut streams, keys) = streams(&[(1, 3, false, 1), (3, 3, false, 1), (5, 3, false, 1)]);
        let urgency = 1;
        let is_incremental = false;
        streams.set_priority(keys[1], Priority { urgency, is_incremental });
        assert_eq!(order(&mut streams, PIECE), [(3, 1), (1, 1), (5, 1)]);
    }

    #[test]
    fn slots_are_used_again() {
        let (mut streams, keys) = streams(&[(1, 3, false, 1), (3, 3, false, 1)]);
        streams.remove(keys[0]);
        assert!(streams.get(keys[0]).is_none() && streams.find(1).is_none());
        let key = streams.add(5, Stream::new(0, 0));
        assert_eq!((key.slot(), streams.len()), (0, 2));
        assert!(streams.get(keys[0]).is_none(), "a stale handle");
        assert_eq!(streams.find(3), Some(keys[1]));
        streams.remove(key);
        streams.remove(keys[1]);
        assert_eq!((streams.len(), streams.front().is_none()), (0, true));
        for id in 0..1000 {
            streams.add(2 * id + 1, Stream::new(0, 0));
        }
        for id in 0..1000 {
            let key = streams.find(2 * id + 1).unwrap();
            streams.remove(key);
        }
        assert!(streams.allocated_len() < 1024, "{}", streams.allocated_len());
    }
}
