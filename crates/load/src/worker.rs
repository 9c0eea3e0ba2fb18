//! One kernel thread of the generator: its connections, requests and counts.
//!
//! ```text
//!           ┌──── connect ────┐   ┌──────── reply, more to ask ───┐
//! Closed ───┴──▶ Connecting ──┴──▶ Open ──────────────────────────┘
//!   ▲                 │             │  last reply, peer closed, time-out, error
//!   └──── nothing is under way ◀── Closing
//! ```
//!
//! One iteration opens the connections that are due, admits the arrivals whose time has come,
//! submits everything to the kernel with one system call, waits, and reads the replies.

mod admission;
mod connection;
mod datagrams;
mod exchange;
mod gather;
mod multiplexed;
pub(crate) mod populate;
mod session;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::io::Backend;
use crate::io::operation::Completion;
use crate::outcome::Tally;
use crate::plan::schedule::Schedule;
use crate::plan::{Arrivals, Plan, Workload};
use crate::protocol::{Protocol, Reader, RenderedRequests, RequestTag};
use crate::random::Random;
use crate::worker::gather::GatherMeter;
use crate::worker::populate::{STOP_CHECK_EVERY, set_all};

/// Pause before a failed connection of a closed loop is opened again, so that a server that refuses
/// is not asked a million times per second.
const RETRY_PAUSE_NS: u64 = 10_000_000;
/// Longest wait of an iteration, so that a stop is noticed.
const WAIT_MAX_NS: u64 = 50_000_000;
/// Time before an arrival at which a thread stops sleeping and spins: as long as recent sleeps
/// overslept, within these bounds. A sleeping processor wakes late, and a virtual one very late.
const SPIN_MIN_NS: u64 = 60_000;
const SPIN_MAX_NS: u64 = 250_000;
/// Unsent bytes beside requests, such as acknowledgements; more is a server that does not read.
const UNSENT_BESIDE_BYTES: usize = 1 << 20;
/// Number of scans for time-outs within one time-out.
const SCANS_PER_TIMEOUT: u64 = 16;

/// Times of the run, in nanoseconds from its start.
#[derive(Clone, Copy)]
pub(crate) struct RunTimes {
    pub(crate) warm_up_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) interval_ns: u64,
}

/// Supervisor of a worker: requests stops and receives its counts.
pub(crate) trait Overseer {
    /// True if the run must stop now.
    fn is_stopped(&self) -> bool;
    /// Takes the counts of an interval and leaves empty ones. `index` counts from the start of the
    /// run; `spun` is the time spent spinning without work.
    fn interval(&mut self, index: u64, tally: &mut Tally, spun: Duration);
    /// Notes the end of the measurement; afterwards only the last replies are awaited.
    fn end(&mut self, spun: Duration);
}

pub(crate) struct Worker<'p> {
    plan: &'p Plan,
    times: RunTimes,
    backend: Backend,
    protocol: Protocol,
    schedule: Option<Schedule>,
    next_arrival_ns: u64,
    /// Completions of an iteration; empty between iterations.
    completions: Vec<Completion>,
    connections: Vec<Connection>,
    /// Number of connections that send requests; the others are idle.
    active: u32,
    /// Connections that may take a request, each once.
    free: VecDeque<u32>,
    /// Intended times of requests that wait for a connection.
    backlog: VecDeque<u64>,
    backlog_max: usize,
    /// Think times, retries and idle bytes that are due later. An entry is stale if the
    /// connection's `wake_ns` differs.
    timers: BinaryHeap<Reverse<(u64, u32)>>,
    /// Connections being closed.
    closing: Vec<u32>,
    /// Connections to open before the run, one by one, and the time of the next one.
    opening: std::ops::Range<u32>,
    opening_ns: u64,
    opening_gap_ns: u64,
    connecting: u32,
    in_flight_total: u64,
    /// Length of the longest request.
    longest_bytes: usize,
    /// Number of requests that may still be begun.
    left: u64,
    next_script: usize,
    random: Random,
    /// Random numbers for the lifetimes of connections: apart, so that the time of opening does not
    /// change the requests.
    lifetimes: Random,
    tally: Tally,
    interval: u64,
    next_scan_ns: u64,
    scan_every_ns: u64,
    started: Instant,
    now_ns: u64,
    is_ending: bool,
    is_udp: bool,
    /// True if bytes or connects were submitted since the last iteration.
    did_send: bool,
    spun: Duration,
    spin_ns: u64,
    gather: GatherMeter,
}

struct Connection {
    state: ConnectionState,
    /// Start of the state.
    since_ns: u64,
    /// Index of its target.
    target: usize,
    source: Option<IpAddr>,
    in_flight: VecDeque<InFlight>,
    /// Intended time of the request to send when the connection opens.
    queued_ns: Option<u64>,
    reading: Reading,
    reader: Reader,
    served: u32,
    /// Number of requests after which the connection is closed.
    requests_max: u32,
    is_free_listed: bool,
    has_failed: bool,
    wake_ns: u64,
    /// HTTP/2: time of the last input.
    heard_ns: u64,
    /// HTTP/2: time since which it has no request in flight: the end of the last one or of a pause.
    asked_ns: u64,
    session: Option<SessionProgress>,
    /// Bytes sent by an idle connection.
    trickled: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum ConnectionState {
    Closed,
    Connecting,
    Open,
    Closing,
}

#[derive(Clone, Copy, PartialEq)]
enum Reading {
    None,
    Read,
    Discard,
}

/// In-flight request.
#[derive(Clone, Copy)]
struct InFlight {
    intended_ns: u64,
    sent_ns: u64,
    tag: RequestTag,
}

/// Position in a session.
#[derive(Clone, Copy)]
struct SessionProgress {
    script: usize,
    burst: usize,
    /// Requests of the burst that were sent.
    sent: usize,
    /// Due time of the next request, even if its connection is still being opened.
    due_ns: u64,
}

/// True if a connection is opened only when a request needs it.
pub(crate) fn opens_on_demand(plan: &Plan) -> bool {
    match &plan.workload {
        Workload::Sessions(_) => true,
        Workload::Http(http) => {
            plan.arrivals != Arrivals::Closed && http.requests_per_connection == Some(1)
        }
        Workload::Cache(_) | Workload::Idle => false,
    }
}

/// A thread's share of the plan.
pub(crate) struct Share {
    pub(crate) thread: u32,
    pub(crate) threads: u32,
}

impl Share {
    /// Share of `all` of this thread.
    pub(crate) fn of(&self, all: u32) -> u32 {
        all / self.threads + u32::from(self.thread < all % self.threads)
    }

    fn of_many(&self, all: u64) -> u64 {
        let thread = u64::from(self.thread);
        let threads = u64::from(self.threads);
        all / threads + u64::from(thread < all % threads)
    }

    fn first(&self, all: u32) -> u32 {
        self.thread * (all / self.threads) + self.thread.min(all % self.threads)
    }
}

impl<'p> Worker<'p> {
    pub(crate) fn new(
        plan: &'p Plan,
        share: &Share,
        times: RunTimes,
        rendered: &RenderedRequests,
        backend: Backend,
    ) -> Worker<'p> {
        let active = match plan.workload {
            Workload::Idle => 0,
            _ => share.of(plan.connections),
        };
        let idle = share.of(plan.idle.connections);
        let (first, first_idle) =
            (share.first(plan.connections), share.first(plan.idle.connections));
        let numbers = (first..first + active).chain(first_idle..first_idle + idle);
        let connections: Vec<Connection> =
            numbers.map(|number| Connection::new(plan, number)).collect();
        let mut schedule = Schedule::new(&plan.arrivals, share.thread, share.threads, plan.seed);
        let timeout = plan.request_timeout.min(plan.connect_timeout);
        let rate = plan.connect_rate_per_s.map(|rate| rate / f64::from(share.threads));
        Worker {
            plan,
            times,
            backend,
            protocol: Protocol::new(plan, rendered, share.thread),
            next_arrival_ns: schedule.as_mut().and_then(Schedule::next_ns).unwrap_or(u64::MAX),
            schedule,
            opening: 0..connections.len() as u32,
            completions: Vec::new(),
            connections,
            active,
            free: VecDeque::new(),
            backlog: VecDeque::new(),
            backlog_max: share.of(plan.backlog_max).max(1) as usize,
            timers: BinaryHeap::new(),
            closing: Vec::new(),
            opening_ns: 0,
            opening_gap_ns: rate.map_or(0, |rate| (1e9 / rate) as u64),
            connecting: 0,
            in_flight_total: 0,
            longest_bytes: 0,
            left: plan.requests_max.map_or(u64::MAX, |max| share.of_many(max)),
            next_script: share.thread as usize,
            random: Random::stream(plan.seed, u64::from(share.thread) + 2_000),
            lifetimes: Random::stream(plan.seed, u64::from(share.thread) + 3_000),
            tally: Tally::new(&plan.classes()),
            interval: 0,
            next_scan_ns: 0,
            scan_every_ns: (timeout.as_nanos() as u64 / SCANS_PER_TIMEOUT)
                .clamp(1_000_000, 100_000_000),
            started: Instant::now(),
            now_ns: 0,
            is_ending: false,
            is_udp: plan.is_udp(),
            did_send: false,
            spun: Duration::ZERO,
            spin_ns: SPIN_MIN_NS,
            gather: GatherMeter::default(),
        }
    }

    /// Number of slots that the back end needs.
    pub(crate) fn slots(plan: &Plan, share: &Share) -> u32 {
        share.of(plan.connections) + share.of(plan.idle.connections)
    }

    /// Opens the connections that exist from the start, before the clock starts.
    pub(crate) fn open_all(&mut self, overseer: &impl Overseer) -> io::Result<()> {
        if self.opens_on_demand() {
            self.free.extend(0..self.active);
            (0..self.active).for_each(|slot| self.connections[slot as usize].is_free_listed = true);
            self.opening.start = self.active;
        }
        self.is_ending = true; // Send no requests yet.
        while (!self.opening.is_empty() || self.connecting > 0) && !overseer.is_stopped() {
            self.update_clock();
            self.open_due();
            self.run_once()?;
        }
        self.is_ending = false;
        Ok(())
    }

    /// Runs the load; times count from `started`.
    pub(crate) fn run(&mut self, started: Instant, overseer: &mut impl Overseer) -> io::Result<()> {
        self.start_clock(started);
        loop {
            self.update_clock();
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
            self.run_once()?;
        }
        if !overseer.is_stopped() {
            // A request of the last moment times out one whole time-out after the end.
            let connecting =
                self.connections.iter().filter(|slot| slot.queued_ns.is_some()).count() as u64;
            let unanswered = self.in_flight_total + self.backlog.len() as u64 + connecting;
            self.tally.errors.client_timeout += unanswered;
        }
        self.count_idle();
        if !self.is_ending {
            overseer.end(std::mem::take(&mut self.spun));
        }
        overseer.interval(self.interval, &mut self.tally, std::mem::take(&mut self.spun));
        Ok(())
    }

    fn start_clock(&mut self, started: Instant) {
        self.started = started;
        self.next_scan_ns = 0;
        self.update_clock();
        for slot in 0..self.connections.len() as u32 {
            let is_open = self.connections[slot as usize].state == ConnectionState::Open;
            self.connections[slot as usize].since_ns = self.now_ns;
            self.connections[slot as usize].asked_ns = self.now_ns;
            if slot >= self.active {
                self.plan_trickle(slot);
            } else if is_open {
                self.send_due(slot);
            } else if !self.opens_on_demand() {
                self.retry_later(slot);
            }
        }
    }

    fn update_clock(&mut self) {
        self.now_ns = self.started.elapsed().as_nanos() as u64;
    }

    fn is_open_loop(&self) -> bool {
        self.schedule.is_some()
    }

    fn opens_on_demand(&self) -> bool {
        opens_on_demand(self.plan)
    }

    /// True if a closed connection is opened again.
    fn has_more_to_ask(&self) -> bool {
        !self.is_ending && (self.is_open_loop() || self.left > 0)
    }

    fn is_over(&self) -> bool {
        let timeout_ns = self.plan.request_timeout.as_nanos() as u64;
        let is_idle = self.in_flight_total == 0 && self.backlog.is_empty() && self.connecting == 0;
        if self.left == 0 && is_idle {
            return true;
        }
        // A closed loop awaits its last replies too; otherwise a reply that never comes would not
        // be counted.
        let is_done = if self.is_open_loop() {
            is_idle && self.next_arrival_ns >= self.times.end_ns
        } else {
            self.in_flight_total == 0
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
            overseer.interval(self.interval, &mut self.tally, std::mem::take(&mut self.spun));
            self.interval += 1;
        }
    }

    fn count_idle(&mut self) {
        let idle = &self.connections[self.active as usize..];
        self.tally.idle_open =
            idle.iter().filter(|slot| slot.state == ConnectionState::Open).count() as u64;
    }

    fn run_once(&mut self) -> io::Result<()> {
        let wait_ns = self.wait_ns();
        let mut completions = std::mem::take(&mut self.completions);
        self.backend.submit_and_wait(Duration::from_nanos(wait_ns), &mut completions)?;
        let began_ns = self.now_ns;
        self.update_clock();
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
        self.finish_closes();
        Ok(())
    }

    /// Adapts the spin margin to the lateness of a sleep. One late sleep raises it at once; many
    /// punctual ones lower it.
    fn slept(&mut self, late_ns: u64) {
        let faded_ns = self.spin_ns - self.spin_ns / 16;
        self.spin_ns = faded_ns.max(late_ns + late_ns / 2).clamp(SPIN_MIN_NS, SPIN_MAX_NS);
    }

    fn wait_ns(&self) -> u64 {
        let timer_ns = self.timers.peek().map_or(u64::MAX, |Reverse((due_ns, _))| *due_ns);
        let opening_ns = if self.opening.is_empty() { u64::MAX } else { self.opening_ns };
        // The last interval ends with the run; after that only replies are due.
        let [interval_ns, end_ns, arrival_ns] = if self.is_ending {
            [u64::MAX; 3]
        } else {
            [(self.interval + 1) * self.times.interval_ns, self.times.end_ns, self.next_arrival_ns]
        };
        let others_ns = interval_ns.max(self.now_ns + 1).min(timer_ns).min(opening_ns).min(end_ns);
        let until = |due_ns: u64| due_ns.saturating_sub(self.now_ns).min(WAIT_MAX_NS);
        until(others_ns).min(until(arrival_ns).saturating_sub(self.spin_ns))
    }

    fn wake_due(&mut self) {
        while let Some(&Reverse((due_ns, slot))) = self.timers.peek() {
            if due_ns > self.now_ns {
                return;
            }
            self.timers.pop();
            if self.connections[slot as usize].wake_ns == due_ns {
                self.connections[slot as usize].wake_ns = 0;
                self.wake(slot, due_ns);
            }
        }
    }

    fn wake_at(&mut self, slot: u32, due_ns: u64) {
        self.connections[slot as usize].wake_ns = due_ns;
        self.timers.push(Reverse((due_ns, slot)));
    }

    fn wake(&mut self, slot: u32, due_ns: u64) {
        if slot >= self.active {
            return self.trickle(slot);
        }
        let has_more = self.has_more_to_ask();
        let connection = &mut self.connections[slot as usize];
        connection.asked_ns = self.now_ns;
        if let Some(session) = &mut connection.session {
            session.due_ns = due_ns;
        }
        let is_in_session = connection.session.is_some();
        match connection.state {
            ConnectionState::Closed if is_in_session || has_more => self.connect(slot),
            ConnectionState::Open if is_in_session => self.continue_session(slot, due_ns),
            _ => {}
        }
    }

    fn retry_later(&mut self, slot: u32) {
        self.wake_at(slot, self.now_ns + RETRY_PAUSE_NS);
    }

    /// Fails connections and requests that exceed their time-outs.
    fn scan(&mut self) {
        if self.now_ns < self.next_scan_ns {
            return;
        }
        self.next_scan_ns = self.now_ns + self.scan_every_ns;
        self.decide_gather();
        let connect_ns = self.plan.connect_timeout.as_nanos() as u64;
        let request_ns = self.plan.request_timeout.as_nanos() as u64;
        for number in 0..self.connections.len() as u32 {
            let slot = &self.connections[number as usize];
            let is_late = match (slot.state, slot.in_flight.front()) {
                (ConnectionState::Connecting, _) => {
                    self.now_ns >= slot.since_ns.saturating_add(connect_ns)
                }
                (ConnectionState::Open, Some(request)) => {
                    self.now_ns >= request.sent_ns.saturating_add(request_ns)
                }
                (ConnectionState::Open, None) => self.has_waited_for_streams(number, request_ns),
                _ => false,
            };
            let is_open = slot.state == ConnectionState::Open;
            let has_requests = !slot.in_flight.is_empty();
            if is_late && is_open && has_requests && self.plan.http2 {
                self.time_out_streams(number);
            } else if is_late && is_open && self.is_udp {
                self.time_out_datagram(number);
            } else if is_late {
                self.fail(number, |tally| tally.errors.client_timeout += 1);
            }
        }
    }

    /// Sets every key of this thread's share once at every target, if the plan says so.
    pub(crate) fn populate(&mut self, share: &Share, overseer: &impl Overseer) -> io::Result<()> {
        let Workload::Cache(cache) = &self.plan.workload else {
            return Ok(());
        };
        let Protocol::Cache { commands, .. } = &self.protocol else {
            return Ok(());
        };
        if !cache.populate {
            return Ok(());
        }
        let threads = u64::from(share.threads);
        let keys = (u64::from(share.thread)..cache.keys).step_by(threads as usize);
        let connect_timeout = self.plan.connect_timeout;
        let timeout = self.plan.request_timeout;
        for target in &self.plan.targets {
            if overseer.is_stopped() {
                break;
            }
            let stream = self.backend.stream(target, connect_timeout, STOP_CHECK_EVERY)?;
            let is_stopped = || overseer.is_stopped();
            set_all(commands, keys.clone(), stream, timeout, is_stopped)?;
        }
        Ok(())
    }
}

impl Connection {
    fn new(plan: &Plan, number: u32) -> Connection {
        let pick = |count: usize| number as usize % count;
        Connection {
            state: ConnectionState::Closed,
            since_ns: 0,
            target: pick(plan.targets.len()),
            source: (!plan.sources.is_empty()).then(|| plan.sources[pick(plan.sources.len())]),
            in_flight: VecDeque::new(),
            queued_ns: None,
            reading: Reading::None,
            reader: Reader::new(plan),
            served: 0,
            requests_max: u32::MAX,
            is_free_listed: false,
            has_failed: false,
            wake_ns: 0,
            heard_ns: 0,
            asked_ns: 0,
            session: None,
            trickled: 0,
        }
    }
}

#[cfg(test)]
mod tests;
