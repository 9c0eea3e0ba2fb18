//! Listening ports.
//!
//! ```text
//!   SYN ─▶ half open (SYN queue) ── ACK ─▶ waiting (accept queue) ─▶ accept()
//!     │ full: the answer is a cookie, and no state is kept
//!     └─────────────────────────── ACK of a cookie ─▶ waiting
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::time::Instant;

/// Limits on the pending connections of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// Half-open connections. Beyond it SYNs are answered with cookies.
    pub syn_queue_max: usize,
    /// Open connections that are not accepted. Beyond it none is taken, and the peer tries again.
    pub accept_queue_max: usize,
}

impl Default for Backlog {
    fn default() -> Backlog {
        Backlog { syn_queue_max: 256, accept_queue_max: 1024 }
    }
}

/// Time for which cookies are accepted after one was sent; at other times an ACK without a
/// connection is no cookie. RFC 4987 3.6
const COOKIES_FOR: Duration = Duration::from_secs(128);

/// One port.
#[derive(Debug)]
pub(super) struct Listening {
    pub(super) backlog: Backlog,
    pub(super) half_open: usize,
    pub(super) waiting: VecDeque<u32>,
    pub(super) refuses_handshakes: bool,
    cookies_until: Instant,
}

impl Listening {
    pub(super) fn is_accept_queue_full(&self) -> bool {
        self.waiting.len() >= self.backlog.accept_queue_max
    }

    pub(super) fn is_syn_queue_full(&self) -> bool {
        self.half_open >= self.backlog.syn_queue_max
    }

    pub(super) fn cookie_sent(&mut self, now: Instant) {
        self.cookies_until = now + COOKIES_FOR;
    }

    pub(super) fn believes_cookies(&self, now: Instant) -> bool {
        now < self.cookies_until
    }
}

/// Listeners by port.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    ports: BTreeMap<u16, Listening>,
}

impl Listeners {
    pub(super) fn add(&mut self, port: u16, backlog: Backlog) {
        self.ports.entry(port).or_insert_with(|| Listening {
            backlog,
            half_open: 0,
            waiting: VecDeque::with_capacity(backlog.accept_queue_max.min(1024)),
            refuses_handshakes: false,
            cookies_until: Instant::START,
        });
    }

    pub(super) fn remove(&mut self, port: u16) {
        self.ports.remove(&port);
    }

    pub(super) fn get(&self, port: u16) -> Option<&Listening> {
        self.ports.get(&port)
    }

    pub(super) fn get_mut(&mut self, port: u16) -> Option<&mut Listening> {
        self.ports.get_mut(&port)
    }
}
