//! A run: its threads, intervals and outcome.

mod capacity;
mod thread_meters;

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::io::netstack::UserTcp;
use crate::io::tls::{TlsBackend, TlsClient};
use crate::io::{Backend, Kernel, socket};
use crate::outcome::{
    Demand, Generator, IntervalRecord, Kind, Outcome, Progress, Tally, ThreadUse,
};
use crate::plan::{Arrivals, LoadTarget, Network, Plan, Workload};
use crate::protocol::RenderedRequests;
use crate::worker::{Overseer, RunTimes, Share, Worker};
use crate::{LoadError, plan::schedule};
pub use capacity::table_drops;
use thread_meters::Meters;

/// Size of a receive. A reply's head and a small body arrive together, and so do the replies to the
/// requests of one send. Longer bodies are discarded without a copy, or, if every byte is compared,
/// arrive in pieces of the largest size.
const INPUT_BYTES: usize = 8 * 1024;
const INPUT_DEEP_BYTES: usize = 16 * 1024;
const INPUT_WHOLE_BYTES: usize = 32 * 1024;
/// Longest datagram: the rest of one is lost (udp(7)).
const INPUT_DATAGRAM_BYTES: usize = 64 * 1024;

/// Carries out the plan. Returns at the latest one request time-out after its end, or soon after
/// `stop` becomes true, with the measurements until then. `observer` is called after every
/// interval.
///
/// # Errors
/// If the plan contradicts itself, no server answers at a target, or a system call of the generator
/// fails. Failures of single requests are counted in the outcome.
pub fn run(
    plan: &Plan,
    stop: &AtomicBool,
    observer: &mut dyn FnMut(&Progress<'_>),
) -> Result<Outcome, LoadError> {
    plan.check()?;
    capacity::check(plan)?;
    let tls = TlsClient::of_plan(plan)?;
    let secured = |backend, slots| match &tls {
        Some(client) => Backend::Tls(Box::new(TlsBackend::new(backend, client.clone(), slots))),
        None => backend,
    };
    match &plan.network {
        Network::Kernel => {
            let kernel = Kernel::choose(plan.io, input_bytes(plan))?;
            let agreed = probe_until(stop, plan, tls.as_ref())?;
            let open = |slots| Ok(secured(kernel.open(slots)?, slots));
            let io = || kernel.reason(plan.threads) + &agreed;
            run_over(plan, stop, observer, io, open)
        }
        Network::Netstack(interface) => {
            let open = |slots| {
                let tcp = UserTcp::of_interface(interface, plan, slots)?;
                Ok(secured(Backend::UserTcp(Box::new(tcp)), slots))
            };
            let io = || format!("netstack on {}", interface.device);
            run_over(plan, stop, observer, io, open)
        }
    }
}

/// Carries the plan out over one back end per thread, which `open` creates with a number of slots.
/// `io` describes them at the end.
pub(crate) fn run_over(
    plan: &Plan,
    stop: &AtomicBool,
    observer: &mut dyn FnMut(&Progress<'_>),
    io: impl FnOnce() -> String,
    open: impl Fn(u32) -> Result<Backend, LoadError> + Sync,
) -> Result<Outcome, LoadError> {
    let times = times(plan);
    let context = RunContext {
        plan,
        times,
        rendered: RenderedRequests::of(plan),
        open,
        stop,
        is_whole: OnceLock::new(),
        failed: AtomicBool::new(false),
        ready: Barrier::new(plan.threads as usize),
        started: OnceLock::new(),
    };
    let (sender, receiver) = mpsc::channel();
    let dropped_before = table_drops();
    let (results, mut intervals) = thread::scope(|scope| {
        let threads: Vec<_> = (0..plan.threads)
            .map(|thread| {
                let context = &context;
                let sender = sender.clone();
                let body = move || context.work(thread, sender);
                thread::Builder::new().name(format!("load-{thread}")).spawn_scoped(scope, body)
            })
            .collect();
        let _ = context.is_whole.set(threads.iter().all(Result::is_ok));
        drop(sender);
        let intervals = collect(plan, &times, &receiver, observer);
        let results: Vec<_> = threads.into_iter().map(joined).collect();
        (results, intervals)
    });
    let threads = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    // Keys are stored and connections opened before the clock starts.
    let lasted = context.started.get().map(Instant::elapsed);
    let began = SystemTime::now() - lasted.unwrap_or_default();
    let warm_up = Duration::from_nanos(times.warm_up_ns);
    intervals.retain(|record| record.begins >= warm_up);
    let table_drops = table_drops().saturating_sub(dropped_before);
    let used = threads.iter().map(|worked| worked.used).collect();
    let generator = Generator { io: io(), threads: used, table_drops };
    Ok(finish(plan, &times, began, generator, &threads, intervals))
}

/// Outcome of a step of the run.
type Ran<T> = Result<T, LoadError>;

const NO_THREAD: &str = "cannot start a thread (ulimit -u)";

fn joined(thread: io::Result<thread::ScopedJoinHandle<'_, Ran<Worked>>>) -> Ran<Worked> {
    let thread = thread.map_err(LoadError::during(NO_THREAD))?;
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Times of the run. The warm-up is rounded up to whole intervals.
fn times(plan: &Plan) -> RunTimes {
    let interval_ns = plan.interval.min(plan.duration).as_nanos() as u64;
    let warm_up_ns = (plan.warm_up.as_nanos() as u64).div_ceil(interval_ns) * interval_ns;
    RunTimes { warm_up_ns, end_ns: warm_up_ns + plan.duration.as_nanos() as u64, interval_ns }
}

fn input_bytes(plan: &Plan) -> usize {
    if plan.is_udp() {
        return INPUT_DATAGRAM_BYTES;
    }
    // Frames of HTTP/2 are too short to be discarded separately.
    match (plan.verify || plan.http2, plan.depth) {
        (true, _) => INPUT_WHOLE_BYTES,
        (false, 2..) => INPUT_DEEP_BYTES,
        (false, _) => INPUT_BYTES,
    }
}

/// Interval at which the wait for the first connections checks for a stop.
const STOP_CHECK_EVERY: Duration = Duration::from_millis(50);

/// Probes on a thread of its own, which is abandoned once `stop` is true: a connection to a host
/// that does not answer ends only with its time-out.
fn probe_until(stop: &AtomicBool, plan: &Plan, tls: Option<&TlsClient>) -> Ran<String> {
    let targets = plan.targets.clone();
    let limit = plan.connect_timeout;
    let tls = tls.cloned();
    let (sender, receiver) = mpsc::channel();
    let work = move || {
        // After a stop the other end is gone.
        let _ = sender.send(probe(&targets, limit, tls.as_ref()));
    };
    let started = thread::Builder::new().name("load-probe".to_owned()).spawn(work);
    started.map_err(LoadError::during(NO_THREAD))?;
    loop {
        match receiver.recv_timeout(STOP_CHECK_EVERY) {
            Ok(probed) => return probed,
            // The rest of the run ends at once, with nothing counted.
            Err(_) if stop.load(Ordering::Relaxed) => return Ok(String::new()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => panic!("the probe panicked"),
        }
    }
}

/// Opens one connection to each target, so that a run without a server ends with an error and not
/// with counters. Returns what TLS agreed on, for people.
fn probe(targets: &[LoadTarget], limit: Duration, tls: Option<&TlsClient>) -> Ran<String> {
    let mut agreed = String::new();
    for target in targets {
        let unreachable = |error: io::Error| LoadError::unreachable(target, &error);
        if let LoadTarget::Udp(address) = target {
            socket::ask_version(*address, limit).map_err(unreachable)?;
            continue;
        }
        let stream = socket::blocking_stream(target, limit, limit).map_err(unreachable)?;
        if let Some(client) = tls {
            let tried = client.try_on(stream, limit);
            let said =
                tried.map_err(|reason| LoadError(format!("TLS with {target} failed: {reason}")))?;
            agreed = format!(", {said}");
        }
    }
    Ok(agreed)
}

/// Data shared by the threads of a run.
struct RunContext<'a, Open> {
    plan: &'a Plan,
    times: RunTimes,
    rendered: RenderedRequests,
    open: Open,
    stop: &'a AtomicBool,
    /// True if all threads were started. A barrier would wait for missing ones.
    is_whole: OnceLock<bool>,
    /// Set if a thread could not begin; then none does.
    failed: AtomicBool,
    ready: Barrier,
    started: OnceLock<Instant>,
}

/// Interval of one thread.
struct ThreadInterval {
    index: u64,
    tally: Tally,
    ended: Duration,
}

/// Result of a thread.
struct Worked {
    used: ThreadUse,
    measured: Duration,
}

impl<Open: Fn(u32) -> Ran<Backend>> RunContext<'_, Open> {
    fn work(&self, thread: u32, reports: Sender<ThreadInterval>) -> Ran<Worked> {
        let share = Share { thread, threads: self.plan.threads };
        let mut overseer = ThreadOverseer {
            context: self,
            reports,
            began: Meters::read(),
            ended: None,
            spun: Duration::ZERO,
        };
        if !self.is_whole.wait() {
            return Ok(overseer.worked(Instant::now()));
        }
        let prepared = self.prepare(&share, &overseer);
        if prepared.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        self.ready.wait();
        let started = *self.started.get_or_init(Instant::now);
        let mut worker = prepared?;
        if !self.failed.load(Ordering::Relaxed) {
            overseer.began = Meters::read();
            let ran = worker.run(started, &mut overseer);
            ran.map_err(LoadError::during("the generator's back end failed"))?;
        }
        Ok(overseer.worked(started))
    }

    fn prepare(&self, share: &Share, overseer: &ThreadOverseer<'_, Open>) -> Ran<Worker<'_>> {
        let backend = (self.open)(Worker::slots(self.plan, share))?;
        let mut worker = Worker::new(self.plan, share, self.times, &self.rendered, backend);
        let stored = worker.populate(share, overseer);
        stored.map_err(LoadError::during("cannot store the keys before the run"))?;
        let opened = worker.open_all(overseer);
        opened.map_err(LoadError::during("cannot open the connections"))?;
        Ok(worker)
    }
}

struct ThreadOverseer<'a, Open> {
    context: &'a RunContext<'a, Open>,
    reports: Sender<ThreadInterval>,
    began: Meters,
    ended: Option<Meters>,
    spun: Duration,
}

impl<Open> ThreadOverseer<'_, Open> {
    fn worked(&self, started: Instant) -> Worked {
        let ended = self.ended.unwrap_or_else(Meters::read);
        let end = Duration::from_nanos(self.context.times.end_ns);
        let warm_up = Duration::from_nanos(self.context.times.warm_up_ns);
        Worked {
            used: ended.since(&self.began, self.spun),
            measured: ended.time_since(started).min(end).saturating_sub(warm_up),
        }
    }
}

impl<Open> Overseer for ThreadOverseer<'_, Open> {
    fn is_stopped(&self) -> bool {
        self.context.stop.load(Ordering::Relaxed) || self.context.failed.load(Ordering::Relaxed)
    }

    fn interval(&mut self, index: u64, tally: &mut Tally, spun: Duration) {
        self.spun += spun;
        let times = &self.context.times;
        if (index + 1) * times.interval_ns == times.warm_up_ns {
            self.began = Meters::read();
            self.spun = Duration::ZERO;
            // A run that was stopped in its warm-up has measured nothing.
            self.ended = self.ended.map(|_| self.began);
        }
        let ended = self.context.started.get().map_or(Duration::ZERO, Instant::elapsed);
        // A new one costs less than emptying the old one: the kernel provides its zeros.
        let tally = std::mem::replace(tally, Tally::new(&self.context.plan.classes()));
        // The receiver is gone only after the run.
        let _ = self.reports.send(ThreadInterval { index, tally, ended });
    }

    fn end(&mut self, spun: Duration) {
        self.spun += spun;
        self.ended = Some(Meters::read());
    }
}

/// Sums the threads' intervals as they arrive, and calls the observer.
fn collect(
    plan: &Plan,
    times: &RunTimes,
    reports: &Receiver<ThreadInterval>,
    observer: &mut dyn FnMut(&Progress<'_>),
) -> Vec<IntervalRecord> {
    const PATIENCE: Duration = Duration::from_millis(200);
    let interval = Duration::from_nanos(times.interval_ns);
    let mut open: BTreeMap<u64, (u32, IntervalRecord)> = BTreeMap::new();
    let mut records = Vec::new();
    loop {
        let is_over = match reports.recv_timeout(PATIENCE) {
            Ok(report) => {
                let begins = interval * report.index as u32;
                let lasts = report.ended.saturating_sub(begins);
                match open.get_mut(&report.index) {
                    Some((threads, record)) => {
                        *threads += 1;
                        record.tally.add_thread(&report.tally);
                    }
                    None => {
                        let record = IntervalRecord { begins, lasts, tally: report.tally };
                        open.insert(report.index, (1, record));
                    }
                }
                false
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        };
        while let Some(first) = open.first_entry() {
            if first.get().0 < plan.threads && !is_over {
                break;
            }
            let (_, mut record) = first.remove();
            if !is_over {
                // The last one includes the drain; the others are as long as planned.
                record.lasts = record.lasts.min(interval);
            }
            notify(times, &record, observer);
            records.push(record);
        }
        if is_over {
            return records;
        }
    }
}

fn notify(times: &RunTimes, record: &IntervalRecord, observer: &mut dyn FnMut(&Progress<'_>)) {
    let elapsed = record.begins + record.lasts;
    observer(&Progress {
        elapsed,
        planned: Duration::from_nanos(times.end_ns),
        is_warm_up: record.begins < Duration::from_nanos(times.warm_up_ns),
        interval: record,
    });
}

fn finish(
    plan: &Plan,
    times: &RunTimes,
    began: SystemTime,
    generator: Generator,
    threads: &[Worked],
    mut intervals: Vec<IntervalRecord>,
) -> Outcome {
    let warm_up = Duration::from_nanos(times.warm_up_ns);
    let elapsed = threads.iter().map(|worked| worked.measured).max().unwrap_or_default();
    let mut total = Tally::new(&plan.classes());
    for record in &mut intervals {
        record.begins -= warm_up;
        total.add_later(&record.tally);
    }
    let offered = schedule::expected(&plan.arrivals, warm_up, warm_up + elapsed);
    // Each ends as a reply or an error; some were never sent, as no connection could be opened.
    let made = total.intended.max(total.sent).max(total.ended());
    Outcome {
        began: began + warm_up,
        elapsed,
        asked: demand_of(plan),
        offered_rate_per_s: offered.map(|count| count / elapsed.as_secs_f64().max(1e-9)),
        total,
        intervals,
        generator,
        stopped_early: elapsed < plan.duration && plan.requests_max.is_none_or(|max| made < max),
    }
}

fn demand_of(plan: &Plan) -> Demand {
    let kind = match (&plan.workload, &plan.arrivals) {
        (Workload::Idle, _) => Kind::Idle,
        (Workload::Sessions(_), _) => Kind::Sessions,
        (_, Arrivals::Closed) => Kind::Closed,
        _ => Kind::Open,
    };
    Demand {
        kind,
        connections: u64::from(plan.connections),
        idle_connections: u64::from(plan.idle.connections),
        requests_max: plan.requests_max,
        verify: plan.verify,
    }
}
