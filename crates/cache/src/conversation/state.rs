use std::sync::Arc;

use session::{Next, Phase};

use super::dump::Dump;
use crate::service::watch::Watcher;
use crate::store::{Reservation, Seconds};

/// State of a conversation.
#[derive(Debug)]
pub(crate) enum State {
    /// Before a command, or inside its line or header.
    Command,
    /// Inside the line of a retrieval command, with its keys answered one by one.
    Keys(Retrieval),
    /// Inside a refused line whose end has not arrived.
    SkipLine,
    /// Inside a value that is received straight into its item.
    Value(Box<Pending>),
    /// Inside a value that was refused.
    Swallow(Box<Swallow>),
    /// Sending a listing of all items.
    Dump(Box<Dump>),
    /// A crawl over all items was requested.
    Crawl,
    /// The crawl is done or was refused; its reply.
    Crawled(&'static [u8]),
    /// Sending event lines to a watcher, without end.
    Watch {
        watcher: Arc<Watcher>,
        /// True while the watcher waits for lines.
        waits: bool,
    },
    /// After the last reply.
    Closed,
    /// After the last reply, with more input possibly in flight.
    Refused,
}

/// A store command whose value is still arriving.
#[derive(Debug)]
pub(crate) struct Pending {
    /// The command line, or the header with extras and key. It is parsed again when the value is
    /// complete, which is rare.
    pub(crate) head: Box<[u8]>,
    pub(crate) reservation: Reservation,
}

/// A refused value that is skipped.
#[derive(Debug)]
pub(crate) struct Swallow {
    /// Number of bytes still to come.
    pub(crate) left: u64,
    /// Reply to send at its end.
    pub(crate) reply: Vec<u8>,
}

impl State {
    /// True if replies may come without further input.
    pub(crate) fn has_output(&self) -> bool {
        matches!(self, State::Dump(_) | State::Watch { .. })
    }
}

/// Result of one step of the conversation.
pub(crate) struct Progress {
    pub(crate) used: usize,
    /// `None`: continue with the next step.
    pub(crate) next: Option<Next>,
}

impl Progress {
    #[inline]
    pub(crate) fn used(used: usize) -> Progress {
        Progress { used, next: None }
    }

    pub(crate) fn wait(phase: Phase) -> Progress {
        Progress { used: 0, next: Some(Next::Receive(phase)) }
    }

    pub(crate) fn then(next: Next) -> Progress {
        Progress { used: 0, next: Some(next) }
    }
}

/// Contents of the reply for each key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retrieval {
    /// `gets`, `gats`: with the cas.
    pub(crate) with_cas: bool,
    /// `gat`, `gats`: with a new expiry time.
    pub(crate) exptime: Option<Seconds>,
}
