//! The ports of a back end that makes its completions itself: what each has to send and waits to
//! receive, and which of them the next turn looks at.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

use crate::io::operation::{Completion, What};

/// See the [module page](self).
pub(crate) struct Ports<L> {
    ports: Vec<Port<L>>,
    /// Ports with bytes to send, each once.
    dirty: VecDeque<u32>,
    /// Ports with a receive under way that may have something.
    ready: VecDeque<u32>,
    ended: Vec<Completion>,
}

#[derive(Default)]
pub(crate) struct Port<L> {
    /// What the back end has of the connection.
    pub(crate) line: L,
    out: Vec<u8>,
    sent_bytes: usize,
    pub(crate) want: Want,
    pub(crate) is_connecting: bool,
    /// There may be bytes, or an end, that no event will tell of again.
    pub(crate) is_readable: bool,
    is_dirty: bool,
}

/// The receive that is under way.
#[derive(Clone, Copy, Default, PartialEq)]
pub(crate) enum Want {
    #[default]
    Nothing,
    Look,
    Discard(u64),
}

impl<L: Default> Ports<L> {
    pub(crate) fn new(count: u32) -> Ports<L> {
        Ports {
            ports: (0..count).map(|_| Port::default()).collect(),
            dirty: VecDeque::new(),
            ready: VecDeque::new(),
            ended: Vec::new(),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Port<L>)> {
        (0..).zip(&self.ports)
    }

    pub(crate) fn output(&mut self, port: u32) -> &mut Vec<u8> {
        self.is_dirty(port);
        &mut self[port].out
    }

    /// What has to be sent may be sent now.
    pub(crate) fn is_writable(&mut self, port: u32) {
        if !self[port].out.is_empty() {
            self.is_dirty(port);
        }
    }

    fn is_dirty(&mut self, port: u32) {
        if !std::mem::replace(&mut self[port].is_dirty, true) {
            self.dirty.push_back(port);
        }
    }

    pub(crate) fn want(&mut self, port: u32, want: Want) {
        self[port].want = want;
        if self[port].is_readable {
            self.ready.push_back(port);
        }
    }

    /// There are bytes, or an end.
    pub(crate) fn is_readable(&mut self, port: u32) {
        let was_readable = std::mem::replace(&mut self[port].is_readable, true);
        if !was_readable && self[port].want != Want::Nothing {
            self.ready.push_back(port);
        }
    }

    pub(crate) fn cancel(&mut self, port: u32) {
        let place = &mut self[port];
        place.want = Want::Nothing;
        place.is_connecting = false;
        place.out.clear();
        place.sent_bytes = 0;
    }

    /// Makes the port as new. Returns what the back end had of the connection.
    pub(crate) fn close(&mut self, port: u32) -> L {
        self.cancel(port);
        let place = &mut self[port];
        let closed = std::mem::take(place);
        (place.out, place.is_dirty) = (closed.out, closed.is_dirty);
        self.ended.retain(|completion| completion.port != port);
        closed.line
    }

    /// The next one with bytes to send.
    pub(crate) fn next_dirty(&mut self) -> Option<u32> {
        let port = self.dirty.pop_front()?;
        self[port].is_dirty = false;
        Some(port)
    }

    /// The next one with a receive under way. It may come twice, or for a receive that was
    /// cancelled; then it wants nothing.
    pub(crate) fn next_ready(&mut self) -> Option<u32> {
        self.ready.pop_front()
    }

    /// An operation has ended.
    pub(crate) fn end(&mut self, port: u32, what: What, result: i32) {
        self.ended.push(Completion { port, what, result });
    }

    pub(crate) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    pub(crate) fn take_ended(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.ended);
    }
}

impl<L> Port<L> {
    /// What is to be sent next.
    pub(crate) fn unsent(&self) -> &[u8] {
        &self.out[self.sent_bytes..]
    }

    pub(crate) fn has_sent(&mut self, bytes: usize) {
        self.sent_bytes += bytes;
        if self.sent_bytes == self.out.len() {
            self.out.clear();
            self.sent_bytes = 0;
        }
    }
}

impl<L> Index<u32> for Ports<L> {
    type Output = Port<L>;

    fn index(&self, port: u32) -> &Port<L> {
        &self.ports[port as usize]
    }
}

impl<L> IndexMut<u32> for Ports<L> {
    fn index_mut(&mut self, port: u32) -> &mut Port<L> {
        &mut self.ports[port as usize]
    }
}
