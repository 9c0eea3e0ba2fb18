//! A stack: its netstack, the two fibers that drive it, and the fibers that wait.
//!
//! ```text
//!   frames   waits for the device's descriptor ──┐
//!                                                ├─▶ a round: receive ▶ wake ▶ yield ▶ transmit
//!   clock    waits for the next timer or a call ─┘                          │
//!                                                             fibers read and write
//! ```
//!
//! Bytes that fibers write during a round leave at its end. A fiber that writes at another time
//! wakes the clock, whose round begins when the fiber yields: so a burst of writes is one burst of
//! frames.
//!
//! The lock is held for a call into the netstack, and never by a fiber that waits.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fiber::Fiber;
use fiber::net::Readable;
use fiber::sync::{Condvar, Mutex, MutexGuard};
use netstack::Netstack;
use netstack::device::Device;
use netstack::interface_config::DeviceQueue;
use netstack::stack::frames::BURST_FRAMES_MAX;
use netstack::stack::{FlowId, Shard};
use netstack::tcp::TcpEvents;
use netstack::time::Instant as NetInstant;

/// Delay before a frame is retried that the device had no space for, and least time between two
/// rounds of the clock: its timers have ticks of this length.
const TICK: Duration = Duration::from_millis(1);

/// Interval at which [`SocketStack::wait_for_ends`] checks.
const LOOK_STEP: Duration = Duration::from_millis(2);

/// Pause after an error of the device, because a retry would fail at once. Further errors double it
/// up to the second value, because a device may be gone forever.
const DEVICE_PAUSE: Duration = Duration::from_millis(1);
const DEVICE_PAUSE_MAX: Duration = Duration::from_millis(128);

/// A netstack that two fibers drive. Dropping it ends it, and so does a panic in it or in
/// [`with_netstack`](SocketStack::with_netstack): calls that wait return `NotConnected`. A dropped
/// stack sends the segments that are due, such as FINs and RSTs, once and does not retransmit them.
/// Its device is closed when the last of its sockets is dropped too.
pub struct SocketStack<D: Device + Send + 'static = DeviceQueue> {
    pub(crate) shared: Arc<Shared<D>>,
}

/// Counters of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackCounters {
    /// Rounds: receive, wake, transmit.
    pub rounds: u64,
    /// Rounds of the clock among them, begun by its timers or by a fiber's call.
    pub clock_rounds: u64,
    /// Rounds in which the device has failed.
    pub device_errors: u64,
}

impl<D: Device + Send + 'static> SocketStack<D> {
    /// Starts the fibers that drive `netstack`, both with `builder`: it says in which cluster and
    /// on which processor, and names them if it has no name.
    ///
    /// # Errors
    /// `InvalidInput` if the device has no descriptor to wait for; the kernel's error if the
    /// descriptor cannot be duplicated; or an error of [`fiber::Builder::spawn`].
    pub fn start(mut netstack: Netstack<D>, builder: fiber::Builder) -> io::Result<SocketStack<D>> {
        let descriptor = netstack.device().descriptor().ok_or_else(|| {
            let message = "the netstack's device has no descriptor to wait for";
            io::Error::new(io::ErrorKind::InvalidInput, message)
        })?;
        let readable = descriptor.try_clone_to_owned()?;
        netstack.interface().announce(NetInstant::START);
        let shared =
            Arc::new(Shared { start: Instant::now(), state: Mutex::new(State::new(netstack)) });
        let stack = SocketStack { shared };
        // The state needs the clock's handle before the frames fiber can call the clock.
        let own = Arc::clone(&stack.shared);
        let mut state = stack.shared.lock();
        let clock = builder.clone().name("netstack clock");
        let clock = clock.spawn(move || own.run_clock())?;
        state.clock = Some(clock.fiber().clone());
        drop(state);
        let own = Arc::clone(&stack.shared);
        let frames = builder.name("netstack frames");
        let frames = frames.spawn(move || own.receive_frames(readable))?;
        stack.shared.lock().frames = Some(frames.fiber().clone());
        Ok(stack)
    }

    /// Calls `f` with the netstack. No fiber of the stack runs meanwhile.
    pub fn with_netstack<R>(&self, f: impl FnOnce(&mut Netstack<D>) -> R) -> R {
        f(&mut self.shared.lock().netstack)
    }

    /// Counters since the start.
    pub fn counters(&self) -> StackCounters {
        self.shared.lock().counters
    }

    /// Waits until every peer has acknowledged the end of connections that were shut down or
    /// dropped: a dropped stack retransmits nothing. Returns `false` past the deadline.
    pub fn wait_for_ends(&self, deadline: Instant) -> bool {
        while self.with_netstack(|netstack| netstack.shard().has_unacknowledged_ends()) {
            if Instant::now() >= deadline {
                return false;
            }
            fiber::sleep(LOOK_STEP);
        }
        true
    }
}

impl<D: Device + Send + 'static> Drop for SocketStack<D> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.send_last(self.shared.now());
        state.end();
        if let Some(frames) = &state.frames {
            frames.cancel();
        }
    }
}

impl<D: Device + Send + 'static> fmt::Debug for SocketStack<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counters = self.counters();
        f.debug_struct("SocketStack").field("counters", &counters).finish_non_exhaustive()
    }
}

/// State that a stack shares with its sockets.
pub(crate) struct Shared<D> {
    /// Zero of the netstack's time.
    start: Instant,
    state: Mutex<State<D>>,
}

pub(crate) type Locked<'a, D> = MutexGuard<'a, State<D>>;

pub(crate) struct State<D> {
    netstack: Netstack<D>,
    /// Waiting fibers of connections, by flow index.
    waits: Vec<Option<Arc<Waits>>>,
    /// Fibers that wait to accept, by port.
    ports: BTreeMap<u16, Arc<Condvar>>,
    /// Number of rounds begun and not yet transmitted: bytes written now leave with them.
    rounds: usize,
    clock: Option<Fiber>,
    frames: Option<Fiber>,
    /// Time of the clock's next round; `START` if a fiber has called the clock.
    clock_at: NetInstant,
    /// Time of the clock's last round.
    clock_was_at: NetInstant,
    /// Pause after the device's last error; zero while the device works.
    device_pause: Duration,
    is_over: bool,
    /// Reason of the end, unless the stack was dropped.
    failure: Option<String>,
    counters: StackCounters,
}

/// Fibers that wait for a connection.
#[derive(Default)]
pub(crate) struct Waits {
    pub(crate) readable: Condvar,
    pub(crate) writable: Condvar,
}

impl Waits {
    fn notify(&self, events: TcpEvents) {
        let is_any = |of: [TcpEvents; 4]| of.iter().any(|&it| events.contains(it));
        use TcpEvents as It;
        if is_any([It::READABLE, It::PEER_CLOSED, It::TIME_WAIT, It::ENDED]) {
            self.readable.notify_all();
        }
        if is_any([It::RELEASED, It::CONNECTED, It::TIME_WAIT, It::ENDED]) {
            self.writable.notify_all();
        }
    }
}

/// Outcome of a round.
enum Round {
    /// The device has no more frames.
    Done,
    /// A whole burst was received.
    More,
    Failed,
}

impl<D: Device> Shared<D> {
    pub(crate) fn lock(&self) -> Locked<'_, D> {
        unpoisoned(self.state.lock().map_err(PoisonError::into_inner))
    }

    pub(crate) fn now(&self) -> NetInstant {
        NetInstant::START + self.start.elapsed()
    }

    /// Body of the fiber that waits for the device.
    fn receive_frames(&self, readable: OwnedFd) {
        let _end = EndOnDrop(self);
        let readable = Readable::from(readable);
        while !self.lock().is_over {
            let waited = match self.run_round() {
                Round::More => Ok(()),
                Round::Done => readable.wait(None),
                Round::Failed => {
                    let pause = self.lock().device_pause;
                    fiber::sleep(pause);
                    Ok(())
                }
            };
            if fiber::is_cancelled() {
                return;
            }
            if let Err(error) = waited {
                return self.lock().fail(&format!("waiting for its device: {error}"));
            }
        }
    }

    /// Body of the fiber that waits for timers.
    fn run_clock(&self) {
        let _end = EndOnDrop(self);
        while !fiber::is_cancelled() {
            let now = self.now();
            let mut state = self.lock();
            if state.is_over {
                return;
            }
            let is_called = state.clock_at == NetInstant::START;
            state.clock_at = state.wakes_at();
            let at = state.clock_at;
            if is_called || at <= now {
                state.clock_was_at = now;
                state.counters.clock_rounds += 1;
                drop(state);
                self.run_round();
            } else {
                drop(state);
                fiber::park_timeout(at.since(now));
            }
        }
    }

    /// Receives frames, wakes the fibers they concern, lets them run, and transmits.
    fn run_round(&self) -> Round {
        let mut state = self.lock();
        state.rounds += 1;
        state.counters.rounds += 1;
        let received = state.netstack.receive(self.now());
        state.notify_waits();
        drop(state);
        fiber::yield_now();
        let mut state = self.lock();
        state.rounds -= 1;
        if state.is_over {
            return Round::More;
        }
        let transmitted = state.netstack.transmit(self.now(), &());
        let outcome = match (received, transmitted) {
            (Ok(count), Ok(())) => {
                state.device_pause = Duration::ZERO;
                if count < BURST_FRAMES_MAX { Round::Done } else { Round::More }
            }
            _ => {
                state.counters.device_errors += 1;
                let longer = 2 * state.device_pause;
                state.device_pause = longer.clamp(DEVICE_PAUSE, DEVICE_PAUSE_MAX);
                Round::Failed
            }
        };
        // After an error the clock retries: frames that are due may have no timer.
        let wakes_at = state.wakes_at();
        if wakes_at < state.clock_at {
            state.call_clock(wakes_at);
        }
        outcome
    }

    /// Releases the lock and waits until `on` is notified; may also return for no reason.
    ///
    /// # Errors
    /// `TimedOut` past the deadline, or past that of [`fiber::timeout`]; [`fiber::Cancelled`];
    /// `NotConnected` if the stack has ended.
    pub(crate) fn wait<'a>(
        state: Locked<'a, D>,
        on: &Condvar,
        deadline: Option<Instant>,
    ) -> io::Result<Locked<'a, D>> {
        state.check()?;
        let left =
            deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let waited = on.wait_timeout(state, left);
        let state = unpoisoned(match waited {
            Ok((state, _)) => Ok(state),
            Err(poisoned) => Err(poisoned.into_inner().0),
        });
        fiber::checkpoint()?;
        Ok(state)
    }
}

/// Ends the stack when one of its fibers ends, even by a panic.
struct EndOnDrop<'a, D: Device>(&'a Shared<D>);

impl<D: Device> Drop for EndOnDrop<'_, D> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        if thread::panicking() { state.fail("a fiber of it panicked") } else { state.end() }
    }
}

/// Takes the state out of a lock. After a panic the state may be inconsistent: then the stack ends,
/// and the netstack is not used any more.
fn unpoisoned<'a, D: Device>(locked: Result<Locked<'a, D>, Locked<'a, D>>) -> Locked<'a, D> {
    locked.unwrap_or_else(|mut state| {
        state.fail("a panic while it was at work");
        state
    })
}

impl<D: Device> State<D> {
    fn new(netstack: Netstack<D>) -> State<D> {
        State {
            netstack,
            waits: Vec::new(),
            ports: BTreeMap::new(),
            rounds: 0,
            clock: None,
            frames: None,
            clock_at: NetInstant::START,
            clock_was_at: NetInstant::START,
            device_pause: Duration::ZERO,
            is_over: false,
            failure: None,
            counters: StackCounters::default(),
        }
    }

    /// # Errors
    /// `NotConnected` if the stack has ended.
    pub(crate) fn shard(&mut self) -> io::Result<&mut Shard> {
        self.netstack().map(Netstack::shard)
    }

    /// # Errors
    /// `NotConnected` if the stack has ended.
    pub(crate) fn netstack(&mut self) -> io::Result<&mut Netstack<D>> {
        self.check()?;
        Ok(&mut self.netstack)
    }

    /// # Errors
    /// `NotConnected` if the stack has ended.
    pub(crate) fn check(&self) -> io::Result<()> {
        if !self.is_over {
            return Ok(());
        }
        let why = self.failure.as_deref().unwrap_or("its owner dropped it");
        let message = format!("the netstack has ended: {why}");
        Err(io::Error::new(io::ErrorKind::NotConnected, message))
    }

    /// Wakes the clock for a round, because something is to be sent or a timer has changed.
    pub(crate) fn call(&mut self) {
        let is_coming = self.rounds > 0 || !self.device_pause.is_zero();
        if !is_coming && self.clock_at != NetInstant::START {
            self.call_clock(NetInstant::START);
        }
    }

    fn call_clock(&mut self, at: NetInstant) {
        self.clock_at = at;
        if let Some(clock) = &self.clock {
            clock.unpark();
        }
    }

    /// Time of the clock's next round.
    fn wakes_at(&self) -> NetInstant {
        if !self.device_pause.is_zero() {
            return self.clock_was_at + self.device_pause;
        }
        let not_before = self.clock_was_at + TICK;
        if self.netstack.is_held_up() {
            not_before
        } else {
            self.netstack.wakes_at().max(not_before)
        }
    }

    /// Notifies the fibers that wait for the netstack's events.
    fn notify_waits(&mut self) {
        let shard = self.netstack.shard();
        while let Some((id, events)) = shard.next_event() {
            if let Some(Some(waits)) = self.waits.get(id.index()) {
                waits.notify(events);
            }
        }
        for (&port, waiting) in &self.ports {
            let (.., count) = shard.backlog(port).unwrap_or_default();
            // A fiber that accepts checks for more connections before it waits again.
            (0..count.min(BURST_FRAMES_MAX)).for_each(|_| waiting.notify_one());
        }
    }

    /// Registers the waits of a connection.
    pub(crate) fn register_waits(&mut self, id: FlowId) -> Arc<Waits> {
        let waits = Arc::new(Waits::default());
        if self.waits.len() <= id.index() {
            self.waits.resize_with(id.index() + 1, || None);
        }
        self.waits[id.index()] = Some(Arc::clone(&waits));
        waits
    }

    /// Removes the waits of a connection that its stream gives up.
    pub(crate) fn unregister_waits(&mut self, id: FlowId, waits: &Arc<Waits>) {
        let slot = &mut self.waits[id.index()];
        // After a reset the index may belong to another connection.
        if slot.as_ref().is_some_and(|it| Arc::ptr_eq(it, waits)) {
            *slot = None;
        }
    }

    /// Registers a condition variable for fibers that accept at `port`; `None` if the port has one.
    pub(crate) fn open_port(&mut self, port: u16) -> Option<Arc<Condvar>> {
        if self.ports.contains_key(&port) {
            return None;
        }
        let waiting = Arc::new(Condvar::new());
        self.ports.insert(port, Arc::clone(&waiting));
        Some(waiting)
    }

    pub(crate) fn close_port(&mut self, port: u16) {
        if let Ok(shard) = self.shard() {
            shard.unlisten(port);
        }
        if let Some(waiting) = self.ports.remove(&port) {
            waiting.notify_all();
        }
        self.call();
    }

    /// The addresses of a connection: local, then the peer's.
    pub(crate) fn addresses(&mut self, id: FlowId) -> Option<(SocketAddr, SocketAddr)> {
        let tuple = self.shard().ok()?.tuple(id)?;
        let local = SocketAddr::new(tuple.local, tuple.local_port);
        Some((local, SocketAddr::new(tuple.remote, tuple.remote_port)))
    }

    /// # Errors
    /// `AddrNotAvailable` if `address` is neither the stack's nor unspecified.
    pub(crate) fn check_local(&mut self, address: IpAddr) -> io::Result<()> {
        if address.is_unspecified() || self.netstack.interface().is_own(address) {
            return Ok(());
        }
        Err(io::ErrorKind::AddrNotAvailable.into())
    }

    /// Sends the frames of the next round, as far as the device takes them: no round follows.
    fn send_last(&mut self, now: NetInstant) {
        if !self.is_over {
            // An error is ignored, because no round follows.
            let _ = self.netstack.transmit(now, &());
        }
    }

    /// Ends the stack after a failure; the first reason is kept.
    fn fail(&mut self, why: &str) {
        if !self.is_over {
            self.failure = Some(why.to_owned());
            self.end();
        }
    }

    fn end(&mut self) {
        self.is_over = true;
        if let Some(clock) = &self.clock {
            clock.unpark();
        }
        for waits in self.waits.iter().flatten() {
            waits.readable.notify_all();
            waits.writable.notify_all();
        }
        for waiting in self.ports.values() {
            waiting.notify_all();
        }
    }
}
