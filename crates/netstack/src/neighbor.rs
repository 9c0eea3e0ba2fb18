//! Cache of the Ethernet addresses on this link, for ARP and neighbour discovery.
//!
//! Both protocols ask the same question, so one state machine serves both: that of RFC 4861 7.3.2,
//! as in Linux. It does no I/O: parsed packets and the time go in, questions and frames that can
//! leave come out.
//!
//! ```text
//!                 resolve                     answer
//!      (none) ───────────────▶ Incomplete ──────────────▶ Reachable ◀───┐ answer, or `confirm`
//!                                │ 3 questions, 1 s each      │ 30 s    │
//!                                ▼                            ▼         │
//!                             (removed)      request ─────▶ Stale       │
//!                                ▲                            │ resolve │   `probe`: at once
//!                                │                            ▼    5 s  │
//!                                └─── 3 questions, 1 s ── Probe ◀──── Delay
//! ```
//!
//! In all states but `Incomplete` the address is known and used. During a resolution only the
//! newest frame to the neighbour is kept: RFC 1122 2.3.2.2. TCP sends the others again.
//!
//! # Trust
//!
//! Anyone on the link can claim anything. These rules limit the damage; they do not prevent it.
//!
//! - Answers to own requests are believed.
//! - A request *to this host* makes a stale entry: the asker is about to be answered. RFC 826; RFC
//!   4861 7.2.3
//! - Unsolicited claims, such as a gratuitous ARP, change an existing entry and make none. An entry
//!   that was changed less than [`LOCK`] ago stays, so that two hosts with one address do not make
//!   it flap with every packet.
//! - Neighbours are limited, and so are resolutions: a scan of a large prefix exhausts neither. RFC
//!   6583
//! - Stale entries are evicted first: nothing was sent to them of late. For a stranger that only
//!   asks, one is evicted at most every [`STRANGER_EVERY`]: the search takes time, and the stranger
//!   is answered without an entry.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use crate::time::Instant;
use crate::wire::ethernet::EthernetAddress;

/// Limit on known neighbours.
pub const NEIGHBORS_MAX: usize = 1024;

/// Limit on neighbours in resolution: each holds a frame.
pub const INCOMPLETE_MAX: usize = 64;

/// Entries reserved for routers: strangers can make a host resolve any number of neighbours, and
/// all hosts beyond the link are behind a router.
pub const INCOMPLETE_ROUTERS_MAX: usize = 8;

/// Questions before a neighbour counts as absent: MAX_MULTICAST_SOLICIT. RFC 4861 10
pub const QUESTIONS_MAX: u8 = 3;

/// Interval of questions: RETRANS_TIMER in RFC 4861 10, and what RFC 1122 2.3.2.1 allows ARP.
pub const QUESTION_EVERY: Duration = Duration::from_secs(1);

/// Validity of an answer: REACHABLE_TIME. RFC 4861 10
pub const REACHABLE_FOR: Duration = Duration::from_secs(30);

/// Time for which TCP may confirm a stale neighbour before it is probed: DELAY_FIRST_PROBE_TIME.
/// RFC 4861 10
pub const DELAY: Duration = Duration::from_secs(5);

/// Time for which unsolicited messages do not change an address again.
pub const LOCK: Duration = Duration::from_secs(1);

/// Interval at which a full cache takes one neighbour that nothing was sent to yet.
pub const STRANGER_EVERY: Duration = Duration::from_millis(1);

/// Outcome of a resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Known address: frames go there.
    Known(EthernetAddress),
    /// A question is on its way: [`NeighborCache::hold`].
    Asked,
    /// There is no room for another question.
    Refused,
}

/// A question to be asked on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Address whose owner is asked for.
    pub target: IpAddr,
    /// Recipient of a unicast probe, the last known owner; `None` for a broadcast or multicast.
    pub unicast_to: Option<EthernetAddress>,
}

/// Counters of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NeighborCounters {
    /// Questions asked.
    pub asked: u64,
    /// Neighbours that did not answer.
    pub absent: u64,
    /// Frames that were dropped because their neighbour was absent, or a newer one came.
    pub frames_dropped: u64,
    /// Neighbours not taken up, or frames not held, because there was no room.
    pub refused: u64,
    /// Neighbours that made room for others.
    pub evicted: u64,
    /// Changes of an address that were not believed.
    pub not_believed: u64,
}

/// The neighbours of one link.
#[derive(Default)]
pub struct NeighborCache {
    /// Ordered, so that a run with the same input repeats itself.
    entries: BTreeMap<IpAddr, Neighbor>,
    incomplete: usize,
    /// Lower bound of the entries' times.
    wakes_at: Option<Instant>,
    questions: VecDeque<Question>,
    /// Frames that can leave.
    released: VecDeque<Vec<u8>>,
    /// Buffers of released frames.
    spare: Vec<Vec<u8>>,
    /// Time before which no stranger evicts a neighbour.
    stranger_at: Instant,
    counters: NeighborCounters,
}

struct Neighbor {
    state: State,
    /// Meaningless in state `Incomplete`.
    mac: EthernetAddress,
    held: Option<Vec<u8>>,
    used_at: Instant,
    changed_at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Incomplete {
        asked: u8,
        next: Instant,
    },
    Reachable {
        until: Instant,
    },
    Stale,
    Delay {
        until: Instant,
    },
    Probe {
        asked: u8,
        next: Instant,
    },
    /// Set by the user; it does not change.
    Fixed,
}

impl State {
    fn wakes_at(self) -> Option<Instant> {
        match self {
            State::Incomplete { next, .. } | State::Probe { next, .. } => Some(next),
            State::Delay { until } => Some(until),
            State::Reachable { .. } | State::Stale | State::Fixed => None,
        }
    }
}

impl NeighborCache {
    /// Counters since the start.
    pub fn counters(&self) -> NeighborCounters {
        self.counters
    }

    /// Number of neighbours.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a neighbour with a fixed address, for which no question is asked.
    pub fn fix(&mut self, now: Instant, address: IpAddr, mac: EthernetAddress) {
        self.know(now, address, mac, State::Fixed);
    }

    /// Resolves the Ethernet address for `address`; asks the link if it is unknown.
    pub fn resolve(&mut self, now: Instant, address: IpAddr) -> Resolution {
        self.find(now, address, INCOMPLETE_MAX)
    }

    /// Resolves a router as [`NeighborCache::resolve`], with an entry in reserve for it.
    pub fn resolve_router(&mut self, now: Instant, address: IpAddr) -> Resolution {
        self.find(now, address, INCOMPLETE_MAX + INCOMPLETE_ROUTERS_MAX)
    }

    fn find(&mut self, now: Instant, address: IpAddr, incomplete_max: usize) -> Resolution {
        let Some(entry) = self.entries.get_mut(&address) else {
            return self.ask_for(now, address, incomplete_max);
        };
        entry.used_at = now;
        match entry.state {
            State::Incomplete { .. } => return Resolution::Asked,
            State::Reachable { until } if now < until => {}
            State::Reachable { .. } | State::Stale => {
                let until = now + DELAY;
                entry.state = State::Delay { until };
                wake(&mut self.wakes_at, until);
            }
            State::Delay { .. } | State::Probe { .. } | State::Fixed => {}
        }
        Resolution::Known(entry.mac)
    }

    fn ask_for(&mut self, now: Instant, address: IpAddr, incomplete_max: usize) -> Resolution {
        if self.incomplete >= incomplete_max || !self.evict_if_full() {
            self.counters.refused += 1;
            return Resolution::Refused;
        }
        let next = now + QUESTION_EVERY;
        let state = State::Incomplete { asked: 1, next };
        self.entries.insert(address, Neighbor::new(now, state));
        self.incomplete += 1;
        self.ask(address, None);
        wake(&mut self.wakes_at, next);
        Resolution::Asked
    }

    /// Keeps a frame, from its Ethernet header on, until its neighbour is known. It takes the place
    /// of one that was kept before. Its destination address is filled in when it leaves.
    ///
    /// # Panics
    ///
    /// If `headers` are shorter than that address.
    pub fn hold(&mut self, address: IpAddr, headers: &[u8], payload: &[&[u8]]) {
        assert!(headers.len() >= 6, "headers of {} bytes", headers.len());
        let entry = self.entries.get_mut(&address);
        let Some(entry) = entry.filter(|it| matches!(it.state, State::Incomplete { .. })) else {
            self.counters.refused += 1;
            return;
        };
        let mut frame = match entry.held.take() {
            Some(older) => {
                self.counters.frames_dropped += 1;
                older
            }
            None => self.spare.pop().unwrap_or_default(),
        };
        frame.clear();
        for piece in [headers].iter().chain(payload) {
            frame.extend_from_slice(piece);
        }
        entry.held = Some(frame);
    }

    /// Confirms a neighbour: TCP has heard from a host behind `address`. RFC 4861 7.3.1
    pub fn confirm(&mut self, now: Instant, address: IpAddr) {
        if let Some(entry) = self.entries.get_mut(&address) {
            entry.confirm(now);
        }
    }

    /// Probes a neighbour at once, because TCP hears nothing from behind `address`. Its entry is
    /// used meanwhile.
    pub fn probe(&mut self, now: Instant, address: IpAddr) {
        let Some(entry) = self.entries.get_mut(&address) else {
            return;
        };
        if let State::Reachable { .. } | State::Stale | State::Delay { .. } = entry.state {
            entry.state = State::Delay { until: now };
            wake(&mut self.wakes_at, now);
        }
    }

    /// Takes the address from an ARP reply or a neighbour advertisement; `was_asked` if that claims
    /// to be an answer. RFC 4861 7.2.5
    pub fn advertised(
        &mut self,
        now: Instant,
        address: IpAddr,
        mac: Option<EthernetAddress>,
        was_asked: bool,
        is_override: bool,
    ) {
        let Some(entry) = self.entries.get_mut(&address) else {
            return;
        };
        if let State::Incomplete { .. } = entry.state {
            if let Some(mac) = mac {
                let state = if was_asked {
                    State::Reachable { until: now + REACHABLE_FOR }
                } else {
                    State::Stale
                };
                self.know(now, address, mac, state);
            }
            return;
        }
        let is_other = mac.is_some_and(|mac| mac != entry.mac);
        // The message claims to be an answer; only the state shows if it is one.
        let is_answer = was_asked && matches!(entry.state, State::Probe { .. });
        if is_other && !(is_override && (is_answer || entry.may_change(now))) {
            self.counters.not_believed += 1;
            // Two hosts claim the address: the next use asks.
            if !is_override && matches!(entry.state, State::Reachable { .. }) {
                entry.state = State::Stale;
            }
            return;
        }
        if let Some(mac) = mac.filter(|_| is_other) {
            entry.change(now, mac);
        }
        if was_asked {
            entry.confirm(now);
        }
    }

    /// Takes the address from a neighbour's own question; `may_add` if that was for this host.
    pub fn solicited(
        &mut self,
        now: Instant,
        address: IpAddr,
        mac: EthernetAddress,
        may_add: bool,
    ) {
        let Some(entry) = self.entries.get_mut(&address) else {
            if may_add && self.evict_for_stranger(now) {
                self.know(now, address, mac, State::Stale);
            }
            return;
        };
        if let State::Incomplete { .. } = entry.state {
            self.know(now, address, mac, State::Stale);
        } else if entry.mac != mac {
            if entry.may_change(now) {
                entry.change(now, mac)
            } else {
                self.counters.not_believed += 1;
            }
        }
    }

    /// Makes the address known, and releases the frame that waited for it.
    fn know(&mut self, now: Instant, address: IpAddr, mac: EthernetAddress, state: State) {
        let added = Neighbor::new(now, state);
        let entry = self.entries.entry(address).or_insert(added);
        if let State::Incomplete { .. } = entry.state {
            self.incomplete -= 1;
        }
        entry.state = state;
        entry.mac = mac;
        entry.changed_at = now;
        if let Some(mut frame) = entry.held.take() {
            frame[..mac.0.len()].copy_from_slice(&mac.0);
            self.released.push_back(frame);
        }
    }

    /// Does the due work: asks again, or gives up.
    pub fn on_timer(&mut self, now: Instant) {
        if self.wakes_at.is_none_or(|at| now < at) {
            return;
        }
        let mut wakes_at = None;
        let mut entries = std::mem::take(&mut self.entries);
        entries.retain(|address, entry| {
            if entry.state.wakes_at().is_some_and(|at| at <= now)
                && !self.step(now, *address, entry)
            {
                return false;
            }
            if let Some(at) = entry.state.wakes_at() {
                wake(&mut wakes_at, at);
            }
            true
        });
        self.entries = entries;
        self.wakes_at = wakes_at;
    }

    /// Handles an entry whose time has come. Returns false if it is to be removed.
    fn step(&mut self, now: Instant, address: IpAddr, entry: &mut Neighbor) -> bool {
        let next = now + QUESTION_EVERY;
        match &mut entry.state {
            State::Incomplete { asked, next: at } if *asked < QUESTIONS_MAX => {
                (*asked, *at) = (*asked + 1, next);
                self.ask(address, None);
            }
            State::Delay { .. } => {
                entry.state = State::Probe { asked: 1, next };
                self.ask(address, Some(entry.mac));
            }
            State::Probe { asked, next: at } if *asked < QUESTIONS_MAX => {
                (*asked, *at) = (*asked + 1, next);
                self.ask(address, Some(entry.mac));
            }
            state => {
                self.incomplete -= usize::from(matches!(state, State::Incomplete { .. }));
                self.counters.absent += 1;
                if let Some(frame) = entry.held.take() {
                    self.counters.frames_dropped += 1;
                    self.spare.push(frame);
                }
                return false;
            }
        }
        true
    }

    /// Earliest time at which [`NeighborCache::on_timer`] has something to do.
    pub fn wakes_at(&self) -> Option<Instant> {
        self.wakes_at
    }

    /// The next question to ask.
    pub fn question(&mut self) -> Option<Question> {
        self.questions.pop_front()
    }

    /// The next frame that can leave. Its buffer is given back by [`NeighborCache::reuse`].
    pub fn released(&mut self) -> Option<Vec<u8>> {
        self.released.pop_front()
    }

    /// Takes back the buffer of a frame.
    pub fn reuse(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < INCOMPLETE_MAX {
            self.spare.push(buffer);
        }
    }

    fn ask(&mut self, target: IpAddr, unicast_to: Option<EthernetAddress>) {
        // Each neighbour has at most one untaken question: its next one comes later.
        if self.questions.len() == NEIGHBORS_MAX {
            self.counters.refused += 1;
            return;
        }
        self.counters.asked += 1;
        self.questions.push_back(Question { target, unicast_to });
    }

    fn evict_for_stranger(&mut self, now: Instant) -> bool {
        if self.entries.len() < NEIGHBORS_MAX {
            return true;
        }
        if now < self.stranger_at {
            self.counters.refused += 1;
            return false;
        }
        self.stranger_at = now + STRANGER_EVERY;
        self.evict_if_full()
    }

    /// Evicts the neighbour unused for longest, but none that is being resolved or was set by the
    /// user. One in use stays as long as another is not in use: a single frame makes a stranger
    /// known and must not evict others.
    fn evict_if_full(&mut self) -> bool {
        if self.entries.len() < NEIGHBORS_MAX {
            return true;
        }
        let entries = self.entries.iter();
        let candidates =
            entries.filter(|(_, it)| !matches!(it.state, State::Incomplete { .. } | State::Fixed));
        let oldest = candidates.min_by_key(|(_, it)| (it.state != State::Stale, it.used_at));
        let Some((&oldest, _)) = oldest else {
            return false;
        };
        self.entries.remove(&oldest);
        self.counters.evicted += 1;
        true
    }
}

impl Neighbor {
    fn new(now: Instant, state: State) -> Neighbor {
        Neighbor { state, mac: EthernetAddress::ZERO, held: None, used_at: now, changed_at: now }
    }

    fn confirm(&mut self, now: Instant) {
        if !matches!(self.state, State::Incomplete { .. } | State::Fixed) {
            let until = now + REACHABLE_FOR;
            self.state = State::Reachable { until };
        }
    }

    /// True if an unsolicited message may change the address.
    fn may_change(&self, now: Instant) -> bool {
        self.state != State::Fixed && now.since(self.changed_at) >= LOCK
    }

    fn change(&mut self, now: Instant, mac: EthernetAddress) {
        self.mac = mac;
        self.state = State::Stale;
        self.changed_at = now;
    }
}

fn wake(wakes_at: &mut Option<Instant>, at: Instant) {
    *wakes_at = Some(wakes_at.map_or(at, |before| before.min(at)));
}
