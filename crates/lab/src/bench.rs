//! Servers under measurement: started, awaited, loaded by generators on the other core, read, and
//! stopped.
//!
//! ```text
//!   start ──▶ ready ──▶ warm ──▶ measured ──▶ drained ──▶ stopped
//!   a fresh   answers   the generator says    it ends,    killed, with
//!   port      anything  when; the server's    is alive    all its processes
//!                       clocks are read
//!                       all the while
//! ```
//!
//! The server's CPU time is read fifty times a second, together with the time of day. The generator
//! reports when it began to measure and for how long; the readings around these two moments give
//! the server's CPU time between them. So no figure includes the warm-up or the opening of
//! connections, and no server needs to cooperate.

mod driven;
mod fault;
mod generator;
mod running;
mod window;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) use driven::Driven;
use fault::tail;
pub(crate) use fault::{Fault, Taken};
pub(crate) use generator::Interval;
use generator::{Generator, Watched, busy_in_the_middle, generator_delay_percent};
pub(crate) use running::{Running, read_reply};
use window::Window;

use crate::busy::{self, Usage};
use crate::sample::Noise;
use crate::system::{ServerProtocol, Start, StartContext, System, programs_beside, words};
use crate::testbed::{
    Launched, Link, LinkPlan, SERVER, ServerLimits, Side, Testbed, processes, sys,
};

/// Longest time until a server answers.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// Longest time of a generator beyond its run.
const END_PATIENCE: Duration = Duration::from_secs(30);
/// Longest time until an answering server has all its processes.
const SETTLE: Duration = Duration::from_millis(50);
/// Interval between readings of the clocks.
const READ_EVERY: Duration = Duration::from_millis(20);
/// Interval where reading takes CPU time from the server, whose p99 it must not determine.
const READ_SELDOM: Duration = Duration::from_millis(100);

/// Takes samples of servers.
pub(crate) struct Bench<'a> {
    pub(crate) testbed: &'a mut Testbed,
    /// The weft that generates the load.
    pub(crate) generator: &'a Path,
    /// Length of a measurement.
    pub(crate) seconds: f64,
    /// Set when the user wants to stop.
    pub(crate) stop: &'a AtomicBool,
}

impl Bench<'_> {
    /// Makes a folder once per run, and finds it later.
    pub(crate) fn folder(
        &mut self,
        name: &str,
        make: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<PathBuf> {
        let folder = self.testbed.scratch().join(name);
        if !folder.exists() {
            fs::create_dir(&folder)?;
            make(&folder)?;
        }
        Ok(folder)
    }

    /// Starts a server over a folder and waits until it answers.
    pub(crate) fn start(
        &mut self,
        system: &System,
        root: &Path,
        limits: ServerLimits,
    ) -> Result<Running, Fault> {
        self.start_at(system, root, limits, None, 1, &[])
    }

    /// Starts a server at the far end of a link, with this number of workers, and appends words to
    /// its command line.
    pub(crate) fn start_on(
        &mut self,
        link: LinkPlan,
        system: &System,
        root: &Path,
        workers: u64,
        words: &[&str],
    ) -> Result<Running, Fault> {
        let programs = programs_beside(self.generator);
        let link = self.testbed.link(link, &programs)?;
        let limits = ServerLimits::default();
        self.start_at(system, root, limits, Some(link), workers, words)
    }

    /// Starts several servers with several workers each, all on both cores, and treats them as one.
    /// [Their generators](Bench::drive_among) use the CPU time that they leave.
    pub(crate) fn start_on_both_cores(
        &mut self,
        system: &System,
        root: &Path,
        servers: u64,
        workers: u64,
    ) -> Result<Running, Fault> {
        let limits = ServerLimits { has_both_cores: true, ..ServerLimits::default() };
        let mut start = || self.start_at(system, root, limits, None, workers, &[]);
        let mut first = start()?;
        for _ in 1..servers {
            first.beside.push(start()?);
        }
        // A server that answers may still be starting its other workers.
        thread::sleep(SETTLE);
        first.pids = first.family();
        Ok(first)
    }

    fn start_at(
        &mut self,
        system: &System,
        root: &Path,
        limits: ServerLimits,
        link: Option<Link>,
        workers: u64,
        words: &[&str],
    ) -> Result<Running, Fault> {
        let Start::Server(server) = &system.start else {
            return Err(format!("{} is not a server", system.name).into());
        };
        let (host, interface) = match &link {
            Some(link) => (SERVER, &*link.interface),
            None => (self.testbed.address(), ""),
        };
        let port = self.testbed.port()?;
        let scratch = self.testbed.scratch().to_owned();
        let is_root = self.testbed.is_root();
        let log = scratch.join("server.log");
        let mut argv = server.argv(&StartContext {
            host,
            port,
            root,
            interface,
            workers,
            scratch: &scratch,
            is_root,
        })?;
        argv.extend(words.iter().map(OsString::from));
        let network = link.as_ref().and_then(|link| link.network.as_ref());
        let network = network.map(AsFd::as_fd);
        let launched = self.testbed.launch(Side::Server, &argv, &log, limits, network)?;
        let mut running =
            Running { launched, host, port, log, pids: Vec::new(), beside: Vec::new(), link };
        let greeting: &[u8] = match server.protocol {
            ServerProtocol::Web => b"HEAD / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
            ServerProtocol::Cache => b"version\r\n",
        };
        // Wait for an answer and not just a connection: nginx listens before it has a worker.
        let deadline = Instant::now() + START_PATIENCE;
        while !running.answers(greeting) {
            self.go_on()?;
            if running.launched.ended()?.is_some() || Instant::now() > deadline {
                let name = &system.name;
                let words = running.last_words();
                return Err(format!("{name} does not answer: {words}").into());
            }
            thread::sleep(Duration::from_millis(10));
        }
        running.pids = running.family();
        // Seen once, on a busy machine: a server that answers, and a cost of 0.
        if running.pids.is_empty() {
            Err("found no process of the server".into())
        } else {
            Ok(running)
        }
    }

    /// Runs generators, all at once, and reads the meters meanwhile. Each entry has the arguments
    /// of `weft load`, without durations.
    pub(crate) fn drive(&mut self, server: &mut Running, loads: &[Vec<String>]) -> Taken<Driven> {
        let side = |_| Side::Generator;
        self.drive_from(&side, READ_EVERY, server, loads)
    }

    /// Runs two generators, one on each core, where the server has both. Their outcomes are merged.
    pub(crate) fn drive_among(&mut self, server: &mut Running, load: &[String]) -> Taken<Driven> {
        // With the same seed both would send at the same moments.
        let loads = ["--seed 1", "--seed 2"].map(|seed| [load, &words(seed)[..]].concat());
        self.drive_from(&Side::Among, READ_SELDOM, server, &loads)?.merged()
    }

    /// Runs several generators on one core, like [`drive`](Bench::drive); number `ahead` has
    /// priority: otherwise most of its p99 would be its wait for the others.
    pub(crate) fn drive_ahead(
        &mut self,
        server: &mut Running,
        loads: &[Vec<String>],
        ahead: usize,
    ) -> Result<Driven, Fault> {
        let side = |at| {
            if loads.len() > 1 && at == ahead { Side::Ahead } else { Side::Generator }
        };
        self.drive_from(&side, READ_EVERY, server, loads)
    }

    fn drive_from(
        &mut self,
        side: &dyn Fn(usize) -> Side,
        read_every: Duration,
        server: &mut Running,
        loads: &[Vec<String>],
    ) -> Result<Driven, Fault> {
        let mut generators = Vec::new();
        for words in loads {
            self.testbed.prepare_remote(words, self.stop)?;
        }
        let [here, there] = self.testbed.clocks()?;
        let mut readings = vec![server.read()?];
        let usage = Usage::now();
        let interrupts = busy::interrupts();
        for (at, words) in loads.iter().enumerate() {
            generators.push(self.generate(at, side(at), words)?);
        }
        // Seen: 5 µs of CPU for a request, and 17 in the next sample. Cause: server and generators
        // had both cores, and this thread read the clock long after the time of day.
        let is_squeezed = matches!(side(0), Side::Among(_));
        let ahead = is_squeezed.then(sys::Ahead::go).transpose()?;
        let deadline = Instant::now() + Duration::from_secs_f64(self.seconds + 5.0) + END_PATIENCE;
        loop {
            thread::sleep(read_every);
            self.go_on()?;
            readings.push(server.read()?);
            let mut is_over = true;
            for generator in &mut generators {
                is_over &= generator.launched.ended()?.is_some();
            }
            if is_over {
                break;
            }
            if Instant::now() > deadline {
                return Err("the generator did not end in time".into());
            }
        }
        // The measurement may have ended after the last reading.
        readings.push(server.read()?);
        drop(ahead);
        let last = readings[readings.len() - 1];
        let mut own = (last.cpu + last.relay).saturating_sub(readings[0].cpu + readings[0].relay);
        if self.testbed.is_remote() {
            // The CPU time of packets from outside belongs to no process, and is spent on any core.
            own += busy::interrupts().saturating_sub(interrupts);
        }
        let mut noise = Noise::since(usage, own);
        server.check()?;
        let mut outcomes = Vec::new();
        let mut intervals = Vec::new();
        for generator in &generators {
            let (outcome, its_intervals) = generator.outcome()?;
            outcomes.push(outcome);
            intervals.push(its_intervals);
        }
        let began = outcomes[0].began.duration_since(there).map(|after| here + after);
        let window = began.ok().and_then(|at| Window::of(&readings, at, outcomes[0].elapsed));
        let window = window.ok_or("the clock was set while a sample was taken")?;
        let replies = outcomes.iter().map(|one| one.total.replies()).sum();
        window.check(replies)?;
        let generators_delay: f64 = outcomes.iter().map(generator_delay_percent).sum();
        noise.run_delay_percent = window.delay_percent() + generators_delay;
        Ok(Driven { noise, outcomes, intervals, window })
    }

    fn generate(&mut self, at: usize, side: Side, words: &[String]) -> Result<Generator, Fault> {
        let scratch = self.testbed.scratch();
        let [log, json] = ["log", "json"].map(|kind| scratch.join(format!("load-{at}.{kind}")));
        let _ = fs::remove_file(&json);
        let duration = format!("{}ms", (self.seconds * 1000.0) as u64);
        let mut argv = [&["load".to_owned()], words].concat();
        let common = ["--quiet", "--color", "never", "--duration", &duration, "--json"];
        argv.extend(common.map(str::to_owned));
        let launched = if self.testbed.is_remote() {
            // No core can be reserved there, so no generator has priority.
            argv.push("-".to_owned());
            self.testbed.launch_remote(&argv, &json, &log, self.stop)?
        } else {
            let mut argv: Vec<OsString> = argv.into_iter().map(OsString::from).collect();
            argv.insert(0, self.generator.into());
            argv.push(json.clone().into());
            self.testbed.launch(side, &argv, &log, ServerLimits::default(), None)?
        };
        Ok(Generator { launched, log, json })
    }

    /// Runs another project's generator, and reads its output and its share of its core.
    pub(crate) fn watch(&mut self, server: &mut Running, argv: &[OsString]) -> Taken<Watched> {
        let log = self.testbed.scratch().join("watched.log");
        let usage = Usage::now();
        let first = server.read()?;
        let mut generator = self.testbed.launch_beside(argv, &log)?;
        let began = Instant::now();
        let pid = generator.pid();
        let mut readings: Vec<(f64, f64)> = Vec::new();
        let mut delay_ns = 0;
        let status = loop {
            thread::sleep(READ_EVERY);
            self.go_on()?;
            if let Some(status) = generator.ended()? {
                break status;
            }
            if began.elapsed() > Duration::from_secs_f64(self.seconds + 5.0) + END_PATIENCE {
                return Err("the generator did not end in time".into());
            }
            if let Ok(cpu) = sys::cpu_time(pid) {
                readings.push((began.elapsed().as_secs_f64(), cpu.as_secs_f64()));
                delay_ns = processes::run_delay_ns(pid).max(delay_ns);
            }
        };
        let lasted = began.elapsed().as_secs_f64();
        let said = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        if !status.success() {
            return Err(format!("{status}: {}", tail(&log)).into());
        }
        server.check()?;
        let last = server.read()?;
        let server = last.cpu.saturating_sub(first.cpu);
        let mut noise = Noise::since(usage, server);
        let server_s = server.as_secs_f64();
        // As in a window: the server's own threads account for the CPU time that it used.
        let waited_s = last.delay_ns.saturating_sub(first.delay_ns) as f64 / 1e9;
        let waited_s = waited_s.min((lasted - server_s).max(0.0));
        noise.run_delay_percent = 100.0 * (delay_ns as f64 / 1e9 + waited_s) / lasted;
        Ok(Watched { said, busy: busy_in_the_middle(&readings), server_s, noise })
    }

    /// Runs the generator's program to its end, without measuring.
    pub(crate) fn weft(&mut self, words: &[impl AsRef<OsStr>]) -> Result<(), Fault> {
        let log = self.testbed.scratch().join("weft.log");
        let mut argv: Vec<OsString> = vec![self.generator.into()];
        argv.extend(words.iter().map(OsString::from));
        let mut launched = self.testbed.launch_beside(&argv, &log)?;
        self.see_end(&mut launched, &log)
    }

    /// Waits until a program has ended by itself, with success.
    pub(crate) fn see_end(&self, launched: &mut Launched, log: &Path) -> Result<(), Fault> {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            self.go_on()?;
            match launched.ended()? {
                Some(status) if status.success() => return Ok(()),
                Some(_) => return Err(Fault::Failed(tail(log))),
                None if Instant::now() > deadline => {
                    return Err("it did not end in time".into());
                }
                None => thread::sleep(READ_EVERY),
            }
        }
    }

    /// Returns an error once the user wants to stop.
    pub(crate) fn go_on(&self) -> Result<(), Fault> {
        if self.stop.load(Ordering::Relaxed) { Err(Fault::Stopped) } else { Ok(()) }
    }
}
