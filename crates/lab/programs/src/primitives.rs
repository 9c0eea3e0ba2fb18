//! Cost of single operations: to start and join a fiber, a lock, a channel, a transfer between
//! processors, a wake-up; and the cost if nothing happens, or if all work is on one processor.

use std::hint::black_box;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use fiber::net::{self, Input};
use fiber::sync::{Mutex, mpmc, mpsc};
use fiber::{Builder, Fiber, Flow, Runtime, Source, Stackless};
use lab::Output;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{ClockId, clock_gettime};

use super::{Batch, Mode, Parameters, Total, sample};

/// One fiber starts and joins others that do nothing, `at_once` at a time.
pub(super) fn spawn(parameters: &Parameters) -> Result<Output, String> {
    let runtime = parameters.runtime()?;
    let total = Arc::new(Total::default());
    let at_once = parameters.get("at_once", 1);
    let mut batch = Batch::of(&total);
    let start = Instant::now();
    parameters.spawn(&runtime, move || {
        let mut handles = Vec::with_capacity(at_once as usize);
        loop {
            handles.extend((0..at_once).map(|_| fiber::spawn(|| {})));
            for handle in handles.drain(..) {
                handle.join().expect("it does nothing");
                if !batch.count() {
                    return;
                }
            }
        }
    });
    Ok(parameters.time(start, &total))
}

/// An uncontended lock.
pub(super) fn mutex(parameters: &Parameters) -> Result<Output, String> {
    let runtime = parameters.runtime()?;
    let total = Arc::new(Total::default());
    let mut batch = Batch::of(&total);
    let start = Instant::now();
    parameters.spawn(&runtime, move || {
        let mutex = Mutex::new(0u64);
        loop {
            *black_box(&mutex).lock().expect("no fiber panics") += 1;
            if !batch.count() {
                return;
            }
        }
    });
    Ok(parameters.time(start, &total))
}

/// A channel from a fiber on the first processor to one on the last.
pub(super) fn channel(parameters: &Parameters) -> Result<Output, String> {
    let runtime = parameters.runtime()?;
    let total = Arc::new(Total::default());
    let (sender, receiver) = mpsc::sync_channel(parameters.get("bound", 128) as usize);
    let mut batch = Batch::of(&total);
    let start = Instant::now();
    spawn_on(&runtime, 0, move || {
        for n in 0u64.. {
            if sender.send(n).is_err() {
                return;
            }
        }
    })?;
    let last = runtime.processor_count() - 1;
    spawn_on(&runtime, last, move || while batch.count() && receiver.recv().is_ok() {})?;
    Ok(parameters.time(start, &total))
}

/// Four senders and four receivers, half of them on each processor.
pub(super) fn crowd(parameters: &Parameters) -> Result<Output, String> {
    let runtime = parameters.runtime()?;
    let total = Arc::new(Total::default());
    let (sender, receiver) = mpmc::bounded(parameters.get("bound", 128) as usize);
    let start = Instant::now();
    for at in 0..4 {
        let sender = sender.clone();
        let receiver = receiver.clone();
        let mut batch = Batch::of(&total);
        spawn_on(&runtime, at, move || {
            for n in 0u64.. {
                if sender.send(n).is_err() {
                    return;
                }
            }
        })?;
        spawn_on(&runtime, at, move || while batch.count() && receiver.recv().is_ok() {})?;
    }
    Ok(parameters.time(start, &total))
}

fn spawn_on(
    runtime: &Runtime,
    processor: usize,
    f: impl FnOnce() + Send + 'static,
) -> Result<Fiber, String> {
    let spawned = runtime.spawn_with(Builder::new().processor(processor), f);
    let handle = spawned.map_err(|error| error.to_string())?;
    Ok(handle.fiber().clone())
}

/// One of the two players.
#[derive(Default)]
struct Side {
    has_ball: AtomicBool,
    fiber: OnceLock<Fiber>,
}

/// Two fibers on two processors pass a ball to and fro: the time that it is on its way. Either both
/// processors have other work, and are always awake; or each fiber keeps the ball for a while,
/// until the other processor has fallen asleep.
pub(super) fn hand_over(parameters: &Parameters) -> Result<Output, String> {
    let is_awake = parameters.get("awake", 0) != 0;
    let keep = Duration::from_micros(parameters.get("keep_us", 0));
    let runtime = parameters.runtime()?;
    let total = Arc::new(Total::default());
    let sides = Arc::<[Side; 2]>::default();
    let on_its_way = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let sent_at = Arc::new(AtomicU64::new(0));
    let since = move || start.elapsed().as_nanos() as u64;
    for at in 0..2 {
        let all = Arc::clone(&sides);
        let total = Arc::clone(&total);
        let sent_at = Arc::clone(&sent_at);
        let on_its_way = Arc::clone(&on_its_way);
        let is_over = Arc::clone(&total);
        let play = move || {
            bind_to_cpu(at);
            let mine = &all[at];
            let other = &all[1 - at];
            while !total.is_over.load(Ordering::Relaxed) {
                while !mine.has_ball.swap(false, Ordering::Acquire) {
                    fiber::park();
                }
                let came_at = since();
                let took = came_at - sent_at.load(Ordering::Relaxed);
                on_its_way.fetch_add(took, Ordering::Relaxed);
                total.ops.fetch_add(1, Ordering::Relaxed);
                while since() - came_at < keep.as_nanos() as u64 {
                    std::hint::spin_loop();
                }
                sent_at.store(since(), Ordering::Relaxed);
                other.has_ball.store(true, Ordering::Release);
                other.fiber.get().expect("both are there").unpark();
            }
        };
        let _ = sides[at].fiber.set(spawn_on(&runtime, at, play)?);
        if is_awake {
            spawn_on(&runtime, at, move || {
                while !is_over.is_over.load(Ordering::Relaxed) {
                    fiber::yield_now();
                }
            })?;
        }
    }
    sent_at.store(since(), Ordering::Relaxed);
    sides[0].has_ball.store(true, Ordering::Release);
    sides[0].fiber.get().expect("just set").unpark();
    let ops = parameters.time(start, &total).ops;
    let sleeps: u64 = runtime.counters().iter().map(|of| of.sleeps).sum();
    if !is_awake && sleeps < ops * 3 / 4 {
        return Err(format!("only {sleeps} sleeps in {ops} hand-overs"));
    }
    let nanos = on_its_way.load(Ordering::Relaxed);
    Ok(sample(ops, Duration::from_nanos(nanos)))
}

/// Binds the calling kernel thread to a CPU, so that the scheduler does not put both on one. The
/// fiber is pinned to the thread.
fn bind_to_cpu(at: usize) {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(at);
    // A machine with one CPU needs no binding.
    let _ = rustix::thread::sched_setaffinity(None, &cpus);
}

/// CPU time of the process while its fibers sleep repeatedly, each for `period_ms`.
pub(super) fn idle(parameters: &Parameters) -> Result<Output, String> {
    let runtime = parameters.runtime()?;
    let total = Arc::new(Total::default());
    let count = parameters.get("threads", 0);
    let period_ms = parameters.get("period_ms", 60_000);
    let asleep = Arc::new(AtomicU64::new(0));
    for at in 0..count {
        let total = Arc::clone(&total);
        let asleep = Arc::clone(&asleep);
        parameters.spawn(&runtime, move || {
            asleep.fetch_add(1, Ordering::Relaxed);
            // Spread over the period.
            fiber::sleep(Duration::from_millis(period_ms * at / count));
            loop {
                total.ops.fetch_add(1, Ordering::Relaxed);
                fiber::sleep(Duration::from_millis(period_ms));
            }
        });
    }
    while asleep.load(Ordering::Relaxed) < count {
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(Duration::from_millis(100));
    let before = total.ops.load(Ordering::Relaxed);
    let start = Instant::now();
    let cpu_before = cpu_time();
    thread::sleep(Duration::from_millis(parameters.get("ms", 1000)));
    let cpu = cpu_time() - cpu_before;
    let woken = total.ops.load(Ordering::Relaxed) - before;
    Ok(Output { cpu_seconds: Some(cpu.as_secs_f64()), ..sample(woken, start.elapsed()) })
}

/// CPU time of all threads of this process. clock_gettime(2)
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Conversations that have all begun on the first processor: each request needs some computation.
pub(super) fn imbalance(parameters: &Parameters) -> Result<Output, String> {
    struct Computing {
        stream: net::UnixStream,
        rounds: u64,
    }
    impl Stackless for Computing {
        fn source(&self) -> Source<'_> {
            self.stream.source()
        }
        fn received(&mut self, input: std::io::Result<Input>) -> Flow {
            match input {
                Ok(input) if !input.is_empty() => {}
                _ => return Flow::Done,
            }
            compute(self.rounds);
            match self.stream.write_all(b"!") {
                Ok(()) => Flow::Receive,
                Err(_) => Flow::Done,
            }
        }
    }
    let runtime = parameters.runtime()?;
    let rounds = parameters.get("rounds", 50_000);
    let mut clients = Vec::new();
    for _ in 0..parameters.threads() {
        let (client, server) = UnixStream::pair().map_err(|error| error.to_string())?;
        clients.push(client);
        let mut stream = server.into();
        let first = Builder::new().processor(0);
        if parameters.mode == Mode::Stackless {
            runtime.spawn_stackless_with(first, Computing { stream, rounds });
            continue;
        }
        spawn_on(&runtime, 0, move || {
            let mut byte = [0];
            while stream.read_exact(&mut byte).is_ok() {
                compute(rounds);
                if stream.write_all(b"!").is_err() {
                    return;
                }
            }
        })?;
    }
    let limit = Duration::from_millis(parameters.get("ms", 1000));
    let start = Instant::now();
    let ops = ask(&clients, limit).map_err(|error| error.to_string())?;
    Ok(sample(ops, start.elapsed()))
}

/// The computation of one request.
fn compute(rounds: u64) {
    let mut random = super::Random::new(rounds);
    (0..rounds).for_each(|_| {
        black_box(random.below(7));
    });
}

/// Runs a closed loop over all connections, on the calling thread, with one request in flight on
/// each. Returns the number of replies.
fn ask(clients: &[UnixStream], limit: Duration) -> std::io::Result<u64> {
    let mut waits: Vec<_> =
        clients.iter().map(|client| PollFd::new(client, PollFlags::IN)).collect();
    let start = Instant::now();
    let mut replies = 0;
    for mut client in clients {
        client.write_all(b"?")?;
    }
    while start.elapsed() < limit {
        let patience = Duration::from_millis(100).try_into().expect("short");
        poll(&mut waits, Some(&patience))?;
        for (mut client, wait) in clients.iter().zip(&waits) {
            if wait.revents().contains(PollFlags::IN) {
                client.read_exact(&mut [0])?;
                replies += 1;
                client.write_all(b"?")?;
            }
        }
    }
    Ok(replies)
}
