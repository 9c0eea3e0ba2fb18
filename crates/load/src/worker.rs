//! One kernel thread of the generator: its connections, what it asks on them, and what it counts.
//!
//! ```text
//!           ┌──── connect ────┐   ┌──────── reply, more to ask ───┐
//! Closed ───┴──▶ Connecting ──┴──▶ Open ──────────────────────────┘
//!   ▲                 │             │  last reply, peer closed, time-out, error
//!   └──── nothing is under way ◀── Closing
//! ```
//!
//! A turn: open what is due, admit the arrivals whose time has come, hand everything to the kernel
//! with one system call, wait, and read what came.

mod admission;
mod connection;
mod exchange;
pub(crate) mod populate;
mod session;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::io::Backend;
use crate::io::operation::Completion;
use crate::outcome::Tally;
use crate::plan::schedule::Schedule;
use crate::plan::{Arrivals, Plan, Workload};
use crate::protocol::{Reader, RequestTag, Speaker};
use crate::random::Random;
use crate::worker::populate::{LOOK_EVERY, set_all};

/// A connection that failed in a closed loop is tried again after this: a server that refuses is
/// not asked a million times per second.
const RETRY_PAUSE_NS: u64 = 10_000_000;
/// The longest that a turn waits, so that a stop is noticed.
const WAIT_MAX_NS: u64 = 50_000_000;
/// How long before an arrival a thread stops sleeping and spins: as long as recent sleeps
/// overslept, within these bounds. A sleeping processor wakes late, and a virtual one very late.
const SPIN_MIN_NS: u64 = 60_000;
const SPIN_MAX_NS: u64 = 250_000;
/// How often connections are looked over for time-outs, as a part of the time-out.
const SCANS_PER_TIMEOUT: u64 = 16;

/// When things happen, in nanoseconds from the beginning of the run.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub(crate) warm_up_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) interval_ns: u64,
}

/// The world of a worker: orders to stop, and the receiver of its counts.
pub(crate) trait Overseer {
    /// Whether to end now.
    fn is_stopped(&self) -> bool;
    /// Takes the count of an interval and leaves an empty one; `index` counts from the beginning of
    /// the run, `spun` is the time spent spinning with nothing to do.
    fn interval(&mut self, index: u64, tally: &mut Tally, spun: Duration);
    /// The time to measure is over; what follows is only waiting for the last replies.
    fn end(&mut self, spun: Duration);
}

pub(crate) struct Worker<'p> {
    plan: &'p Plan,
    times: Times,
    backend: Backend,
    speaker: Speaker,
    schedule: Option<Schedule>,
    next_arrival_ns: u64,
    /// The completions of a turn; empty between turns.
    completions: Vec<Completion>,
    slots: Vec<Slot>,
    /// How many of the slots send requests; the others are idle.
    asking: u32,
    /// Slots that may take a request, each once.
    free: VecDeque<u32>,
    /// Intended times of requests that wait for a connection.
    backlog: VecDeque<u64>,
    backlog_max: usize,
    /// What is due later: think times, retries, idle bytes. Stale if the slot's `wake_ns` differs.
    timers: BinaryHeap<Reverse<(u64, u32)>>,
    /// Slots on their way to being closed.
    leaving: Vec<u32>,
    /// Slots that are opened one by one before the run: the next one, and when.
    opening: std::ops::Range<u32>,
    opening_ns: u64,
    opening_gap_ns: u64,
    connecting: u32,
    in_flight: u64,
    /// How many requests may still be begun.
    left: u64,
    next_script: usize,
    random: Random,
    /// Of how long connections live: when they open does not change what is asked.
    lives: Random,
    tally: Tally,
    interval: u64,
    next_scan_ns: u64,
    scan_every_ns: u64,
    started: Instant,
    now_ns: u64,
    is_ending: bool,
    /// Bytes or connections were handed over since the last turn.
    did_send: bool,
    spun: Duration,
    spin_ns: u64,
}

struct Slot {
    state: State,
    /// When the state began.
    since_ns: u64,
    target: SocketAddr,
    source: Option<IpAddr>,
    flights: VecDeque<Flight>,
    /// The intended time of what is asked when the connection is open.
    wanted: Option<u64>,
    reading: Reading,
    reader: Reader,
    served: u32,
    /// How many requests its connection is for.
    life: u32,
    is_listed: bool,
    has_failed: bool,
    wake_ns: u64,
    session: Option<Session>,
    /// Bytes that an idle connection sent.
    trickled: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Closed,
    Connecting,
    Open,
    Closing,
}

#[derive(Clone, Copy, PartialEq)]
enum Reading {
    Nothing,
    Look,
    Discard,
}

/// A request under way.
#[derive(Clone, Copy)]
struct Flight {
    intended_ns: u64,
    sent_ns: u64,
    tag: RequestTag,
}

/// Where a session is.
#[derive(Clone, Copy)]
struct Session {
    script: usize,
    burst: usize,
    /// Requests of the burst that were sent.
    sent: usize,
    /// When what comes next was due, however long the connection for it takes.
    due_ns: u64,
}

/// Whether a connection is opened when a request asks for it, and not before.
pub(crate) fn opens_on_demand(plan: &Plan) -> bool {
    match &plan.workload {
        Workload::Sessions(_) => true,
        Workload::Http(http) => {
            plan.arrivals != Arrivals::Closed && http.requests_per_connection == Some(1)
        }
        Workload::Cache(_) | Workload::Idle => false,
    }
}

/// A thread's part of the plan.
pub(crate) struct Share {
    pub(crate) thread: u32,
    pub(crate) threads: u32,
}

impl Share {
    /// How many of `all` fall to this thread.
    pub(crate) fn of(&self, all: u32) -> u32 {
        all / self.threads + u32::from(self.thread < all % self.threads)
    }

    fn of_many(&self, all: u64) -> u64 {
        let (thread, threads) = (u64::from(self.thread), u64::from(self.threads));
        all / threads + u64::from(thread < all % threads)
    }

    fn first(&self, all: u32) -> u32 {
        self.thread * (all / self.threads) + self.thread.min(all % self.threads)
    }
}

impl<'p> Worker<'p> {
    pub(crate) fn new(plan: &'p Plan, share: &Share, times: Times, backend: Backend) -> Worker<'p> {
        let asking = match plan.workload {
            Workload::Idle => 0,
            _ => share.of(plan.connections),
        };
        let idle = share.of(plan.idle.connections);
        let (first, first_idle) = (
            share.first(plan.connections),
            share.first(plan.idle.connections),
        );
        let numbers = (first..first + asking).chain(first_idle..first_idle + idle);
        let slots: Vec<Slot> = numbers.map(|number| Slot::new(plan, number)).collect();
        let mut schedule = Schedule::new(&plan.arrivals, share.thread, share.threads, plan.seed);
        let timeout = plan.request_timeout.min(plan.connect_timeout);
        let rate = plan
            .connect_rate_per_s
            .map(|rate| rate / f64::from(share.threads));
        Worker {
            plan,
            times,
            backend,
            speaker: Speaker::new(plan, share.thread),
            next_arrival_ns: schedule
                .as_mut()
                .and_then(Schedule::next_ns)
                .unwrap_or(u64::MAX),
            schedule,
            opening: 0..slots.len() as u32,
            completions: Vec::new(),
            slots,
            asking,
            free: VecDeque::new(),
            backlog: VecDeque::new(),
            backlog_max: share.of(plan.backlog_max).max(1) as usize,
            timers: BinaryHeap::new(),
            leaving: Vec::new(),
            opening_ns: 0,
            opening_gap_ns: rate.map_or(0, |rate| (1e9 / rate) as u64),
            connecting: 0,
            in_flight: 0,
            left: plan.requests_max.map_or(u64::MAX, |max| share.of_many(max)),
            next_script: share.thread as usize,
            random: Random::stream(plan.seed, u64::from(share.thread) + 2_000),
            lives: Random::stream(plan.seed, u64::from(share.thread) + 3_000),
            tally: Tally::new(&plan.classes()),
            interval: 0,
            next_scan_ns: 0,
            scan_every_ns: (timeout.as_nanos() as u64 / SCANS_PER_TIMEOUT)
                .clamp(1_000_000, 100_000_000),
            started: Instant::now(),
            now_ns: 0,
            is_ending: false,
            did_send: false,
            spun: Duration::ZERO,
            spin_ns: SPIN_MIN_NS,
        }
    }

    /// How many ports the backend must have.
    pub(crate) fn ports(plan: &Plan, share: &Share) -> u32 {
        share.of(plan.connections) + share.of(plan.idle.connections)
    }

    /// Opens the connections that the run begins with, before its clock starts.
    pub(crate) fn open_all(&mut self, overseer: &impl Overseer) -> io::Result<()> {
        if self.opens_on_demand() {
            self.free.extend(0..self.asking);
            (0..self.asking).for_each(|slot| self.slots[slot as usize].is_listed = true);
            self.opening.start = self.asking;
        }
        self.is_ending = true; // Nothing is asked yet.
        while (!self.opening.is_empty() || self.connecting > 0) && !overseer.is_stopped() {
            self.tick();
            self.open_due();
            self.turn()?;
        }
        self.is_ending = false;
        Ok(())
    }

    /// Begins the run: from now on, times count from `started`.
    pub(crate) fn run(&mut self, started: Instant, overseer: &mut impl Overseer) -> io::Result<()> {
        self.start_clock(started);
        loop {
            self.tick();
            self.end_intervals(overseer);
            if overseer.is_stopped() || self.is_over() {
                break;
            }
            if !self.is_ending && self.now_ns >= self.times.end_ns {
                self.is_ending = true;
                overseer.end(std::mem::take(&mut self.spun));
            }
            self.wake_due();
            self.admit();
            self.turn()?;
        }
        if !overseer.is_stopped() {
            // What was not answered within a whole time-out after the end.
            let connecting = self
                .slots
                .iter()
                .filter(|slot| slot.wanted.is_some())
                .count() as u64;
            let unanswered = self.in_flight + self.backlog.len() as u64 + connecting;
            self.tally.errors.client_timeout += unanswered;
        }
        self.count_idle();
        overseer.interval(
            self.interval,
            &mut self.tally,
            std::mem::take(&mut self.spun),
        );
        Ok(())
    }

    fn start_clock(&mut self, started: Instant) {
        self.started = started;
        self.next_scan_ns = 0;
        self.tick();
        for slot in 0..self.slots.len() as u32 {
            let is_open = self.slots[slot as usize].state == State::Open;
            self.slots[slot as usize].since_ns = self.now_ns;
            if slot >= self.asking {
                self.plan_trickle(slot);
            } else if is_open {
                self.pump(slot);
            } else if !self.opens_on_demand() {
                self.retry_later(slot);
            }
        }
    }

    fn tick(&mut self) {
        self.now_ns = self.started.elapsed().as_nanos() as u64;
    }

    fn is_open_loop(&self) -> bool {
        self.schedule.is_some()
    }

    fn opens_on_demand(&self) -> bool {
        opens_on_demand(self.plan)
    }

    fn is_over(&self) -> bool {
        let timeout_ns = self.plan.request_timeout.as_nanos() as u64;
        let is_idle = self.in_flight == 0 && self.backlog.is_empty() && self.connecting == 0;
        if self.left == 0 && is_idle {
            return true;
        }
        // A closed loop waits for its last replies too: one that never comes would else be in no
        // figure.
        let is_done = match self.is_open_loop() {
            true => is_idle && self.next_arrival_ns >= self.times.end_ns,
            false => self.in_flight == 0,
        };
        (self.now_ns >= self.times.end_ns && is_done)
            || self.now_ns >= self.times.end_ns.saturating_add(timeout_ns)
    }

    fn end_intervals(&mut self, overseer: &mut impl Overseer) {
        // Replies after the end belong to the last interval.
        loop {
            let ends_ns = (self.interval + 1) * self.times.interval_ns;
            if ends_ns > self.now_ns || ends_ns >= self.times.end_ns {
                return;
            }
            self.count_idle();
            overseer.interval(
                self.interval,
                &mut self.tally,
                std::mem::take(&mut self.spun),
            );
            self.interval += 1;
        }
    }

    fn count_idle(&mut self) {
        let idle = &self.slots[self.asking as usize..];
        self.tally.idle_open = idle.iter().filter(|slot| slot.state == State::Open).count() as u64;
    }

    fn turn(&mut self) -> io::Result<()> {
        let wait_ns = self.wait_ns();
        let mut completions = std::mem::take(&mut self.completions);
        self.backend
            .turn(Duration::from_nanos(wait_ns), &mut completions)?;
        let began_ns = self.now_ns;
        self.tick();
        if wait_ns == 0 && completions.is_empty() && !self.did_send {
            self.spun += Duration::from_nanos(self.now_ns - began_ns);
        } else if wait_ns > 0 && completions.is_empty() {
            self.slept(self.now_ns.saturating_sub(began_ns + wait_ns));
        }
        self.did_send = false;
        for completion in completions.drain(..) {
            self.complete(completion);
        }
        self.completions = completions;
        self.scan();
        self.leave();
        Ok(())
    }

    /// Notes how late a sleep ended. One late sleep raises the margin at once; many punctual ones
    /// lower it again.
    fn slept(&mut self, late_ns: u64) {
        let faded_ns = self.spin_ns - self.spin_ns / 16;
        self.spin_ns = faded_ns
            .max(late_ns + late_ns / 2)
            .clamp(SPIN_MIN_NS, SPIN_MAX_NS);
    }

    fn wait_ns(&self) -> u64 {
        let timer_ns = self
            .timers
            .peek()
            .map_or(u64::MAX, |Reverse((due_ns, _))| *due_ns);
        let opening_ns = match self.opening.is_empty() {
            true => u64::MAX,
            false => self.opening_ns,
        };
        // The last interval ends with the run, and after it nothing is due but replies.
        let [interval_ns, end_ns, arrival_ns] = match self.is_ending {
            true => [u64::MAX; 3],
            false => [
                (self.interval + 1) * self.times.interval_ns,
                self.times.end_ns,
                self.next_arrival_ns,
            ],
        };
        let others_ns = interval_ns
            .max(self.now_ns + 1)
            .min(timer_ns)
            .min(opening_ns)
            .min(end_ns);
        let until = |due_ns: u64| due_ns.saturating_sub(self.now_ns).min(WAIT_MAX_NS);
        until(others_ns).min(until(arrival_ns).saturating_sub(self.spin_ns))
    }

    fn wake_due(&mut self) {
        while let Some(&Reverse((due_ns, slot))) = self.timers.peek() {
            if due_ns > self.now_ns {
                return;
            }
            self.timers.pop();
            if self.slots[slot as usize].wake_ns == due_ns {
                self.slots[slot as usize].wake_ns = 0;
                self.wake(slot, due_ns);
            }
        }
    }

    fn wake_at(&mut self, slot: u32, due_ns: u64) {
        self.slots[slot as usize].wake_ns = due_ns;
        self.timers.push(Reverse((due_ns, slot)));
    }

    fn wake(&mut self, slot: u32, due_ns: u64) {
        if slot >= self.asking {
            return self.trickle(slot);
        }
        let place = &mut self.slots[slot as usize];
        if let Some(session) = &mut place.session {
            session.due_ns = due_ns;
        }
        let is_in_session = place.session.is_some();
        match place.state {
            State::Closed if is_in_session || !self.is_ending => self.connect(slot),
            State::Open if is_in_session => self.go_on(slot, due_ns),
            _ => {}
        }
    }

    fn retry_later(&mut self, slot: u32) {
        self.wake_at(slot, self.now_ns + RETRY_PAUSE_NS);
    }

    /// Finds connections and replies that take too long.
    fn scan(&mut self) {
        if self.now_ns < self.next_scan_ns {
            return;
        }
        self.next_scan_ns = self.now_ns + self.scan_every_ns;
        let connect_ns = self.plan.connect_timeout.as_nanos() as u64;
        let request_ns = self.plan.request_timeout.as_nanos() as u64;
        for number in 0..self.slots.len() as u32 {
            let slot = &self.slots[number as usize];
            let is_late = match (slot.state, slot.flights.front()) {
                (State::Connecting, _) => self.now_ns >= slot.since_ns.saturating_add(connect_ns),
                (State::Open, Some(flight)) => {
                    self.now_ns >= flight.sent_ns.saturating_add(request_ns)
                }
                _ => false,
            };
            if is_late {
                self.fail(number, |tally| tally.errors.client_timeout += 1);
            }
        }
    }

    /// Sets every key of this thread's part once at every target, if the plan says so.
    pub(crate) fn populate(&mut self, share: &Share, overseer: &impl Overseer) -> io::Result<()> {
        let Workload::Cache(cache) = &self.plan.workload else {
            return Ok(());
        };
        let Speaker::Cache { commands, .. } = &self.speaker else {
            return Ok(());
        };
        if !cache.populate {
            return Ok(());
        }
        let threads = u64::from(share.threads);
        let keys = (u64::from(share.thread)..cache.keys).step_by(threads as usize);
        let (connect_timeout, timeout) = (self.plan.connect_timeout, self.plan.request_timeout);
        for &target in &self.plan.targets {
            let stream = self.backend.stream(target, connect_timeout, LOOK_EVERY)?;
            let is_stopped = || overseer.is_stopped();
            set_all(commands, keys.clone(), stream, timeout, is_stopped)?;
        }
        Ok(())
    }
}

impl Slot {
    fn new(plan: &Plan, number: u32) -> Slot {
        let pick = |count: usize| number as usize % count;
        Slot {
            state: State::Closed,
            since_ns: 0,
            target: plan.targets[pick(plan.targets.len())],
            source: (!plan.sources.is_empty()).then(|| plan.sources[pick(plan.sources.len())]),
            flights: VecDeque::new(),
            wanted: None,
            reading: Reading::Nothing,
            reader: Reader::new(plan),
            served: 0,
            life: u32::MAX,
            is_listed: false,
            has_failed: false,
            wake_ns: 0,
            session: None,
            trickled: 0,
        }
    }
}

#[cfg(test)]
mod tests;
