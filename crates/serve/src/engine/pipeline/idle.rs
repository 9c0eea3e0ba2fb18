//! Connections with nothing to do until their peers send more.
//!
//! Their reader is not woken for them: it gets reports of their input itself, and then takes them
//! from here. It asks to be woken only after a report for a connection that had not returned yet.
//! There are at most as many here as connections.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use session::Session;

use super::connection::Connection;
use crate::engine::reactor::LoopHandle;

/// See the [module page](self).
pub(super) struct IdleList<S: Session> {
    state: Mutex<IdleListState<S>>,
    reader: Arc<LoopHandle>,
}

struct IdleListState<S: Session> {
    connections: Vec<Box<Connection<S>>>,
    /// The reader has an event for a connection that has not returned yet.
    is_expected: bool,
    is_closed: bool,
}

impl<S: Session> IdleList<S> {
    /// An empty list for the connections of this reader.
    pub(super) fn new(reader: &Arc<LoopHandle>) -> IdleList<S> {
        IdleList {
            state: Mutex::new(IdleListState {
                connections: Vec::new(),
                is_expected: false,
                is_closed: false,
            }),
            reader: Arc::clone(reader),
        }
    }

    /// Adds an idle connection. Returns it if the server is over.
    pub(super) fn put(&self, connection: Box<Connection<S>>) -> Option<Box<Connection<S>>> {
        let mut state = self.lock();
        if state.is_closed {
            return Some(connection);
        }
        state.connections.push(connection);
        let is_expected = state.is_expected;
        drop(state);
        if is_expected {
            self.reader.waker.wake();
        }
        None
    }

    /// Takes all connections, in exchange for an empty vector. `is_expected`: wake the reader for
    /// later ones.
    pub(super) fn take(&self, empty: &mut Vec<Box<Connection<S>>>, is_expected: bool) {
        let mut state = self.lock();
        state.is_expected = is_expected;
        mem::swap(&mut state.connections, empty);
    }

    /// Closes the list. Returns its connections.
    pub(super) fn close(&self) -> Vec<Box<Connection<S>>> {
        let mut state = self.lock();
        state.is_closed = true;
        mem::take(&mut state.connections)
    }

    fn lock(&self) -> MutexGuard<'_, IdleListState<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
