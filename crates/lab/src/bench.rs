//! Servers under measurement: started, awaited, asked by generators on the other core, read, and
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
//! The server's CPU time is read fifty times a second with the time of day beside it. The generator
//! says when it began to measure and for how long; the readings around these two moments give what
//! the server used between them. So warming up and setting up connections are not part of any
//! figure, and no server needs to help.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use load::Outcome;
use serde::Deserialize;

use crate::busy::{self, Usage};
use crate::place::{
    LabPlace, Launched, Link, LinkPlan, SERVER, ServerLimits, Side, processes, sys,
};
use crate::sample::{LASTED_S, Noise, Sample};
use crate::subject::{Speaks, Stand, Start, Subject, words};

/// How long a server may take until it answers.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// How long a reply to a question of the laboratory's own may take.
const REPLY_PATIENCE: Duration = Duration::from_secs(10);
/// How long a generator may take beyond its time.
const END_PATIENCE: Duration = Duration::from_secs(30);
/// How long a server that answers may take until it has all its processes.
const SETTLE: Duration = Duration::from_millis(50);
/// How often clocks are read.
const READ_EVERY: Duration = Duration::from_millis(20);
/// And where that takes time from the server: a p99 must not be that of reading.
const READ_SELDOM: Duration = Duration::from_millis(100);

/// Why there is no sample.
#[derive(Debug)]
pub enum Fault {
    /// This sample failed; the sentence says how.
    Failed(String),
    /// The subject has nothing of the kind.
    Absent,
    /// The user wants to stop.
    Stopped,
}

impl<E: Display> From<E> for Fault {
    fn from(why: E) -> Fault {
        Fault::Failed(why.to_string())
    }
}

/// Where samples of servers are taken.
pub struct Bench<'a> {
    pub(crate) place: &'a mut LabPlace,
    /// The weft that generates the load.
    pub(crate) generator: &'a Path,
    /// How long a sample is measured.
    pub(crate) seconds: f64,
    /// Set when the user wants to stop.
    pub(crate) stop: &'a AtomicBool,
}

impl Bench<'_> {
    /// A folder that is made once in a run, and then found.
    pub(crate) fn folder(
        &mut self,
        name: &str,
        make: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<PathBuf> {
        let folder = self.place.scratch().join(name);
        if !folder.exists() {
            fs::create_dir(&folder)?;
            make(&folder)?;
        }
        Ok(folder)
    }

    /// Starts a server over a folder and waits until it answers.
    pub(crate) fn start(
        &mut self,
        subject: &Subject,
        root: &Path,
        limits: ServerLimits,
    ) -> Result<Running, Fault> {
        self.start_at(subject, root, limits, None, 1, &[])
    }

    /// Starts a server at the far end of a link, with so many workers, and more words behind its
    /// own.
    pub(crate) fn start_on(
        &mut self,
        link: LinkPlan,
        subject: &Subject,
        root: &Path,
        workers: u64,
        words: &[&str],
    ) -> Result<Running, Fault> {
        let programs = self.generator.with_file_name("weft-programs");
        let link = self.place.link(link, &programs)?;
        let limits = ServerLimits::default();
        self.start_at(subject, root, limits, Some(link), workers, words)
    }

    /// Starts so many servers with so many workers each, all on both cores, and takes them for one.
    /// [Their generators](Bench::drive_among) have what they leave of the cores.
    pub(crate) fn start_on_both_cores(
        &mut self,
        subject: &Subject,
        root: &Path,
        servers: u64,
        workers: u64,
    ) -> Result<Running, Fault> {
        let limits = ServerLimits {
            has_both_cores: true,
            ..ServerLimits::default()
        };
        let mut start = || self.start_at(subject, root, limits, None, workers, &[]);
        let mut first = start()?;
        for _ in 1..servers {
            first.beside.push(start()?);
        }
        // What answers may have been about to start its other workers.
        thread::sleep(SETTLE);
        first.pids = first.family();
        Ok(first)
    }

    fn start_at(
        &mut self,
        subject: &Subject,
        root: &Path,
        limits: ServerLimits,
        link: Option<Link>,
        workers: u64,
        words: &[&str],
    ) -> Result<Running, Fault> {
        let Start::Server(server) = &subject.start else {
            return Err(format!("{} is no server", subject.name).into());
        };
        let (host, interface) = match &link {
            Some(link) => (SERVER, &*link.interface),
            None => (Ipv4Addr::LOCALHOST, ""),
        };
        let port = self.place.port()?;
        let (scratch, is_root) = (self.place.scratch().to_owned(), self.place.is_root());
        let log = scratch.join("server.log");
        let mut argv = server.argv(&Stand {
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
        let launched = self
            .place
            .launch(Side::Server, &argv, &log, limits, network)?;
        let mut running = Running {
            launched,
            host,
            port,
            log,
            pids: Vec::new(),
            beside: Vec::new(),
            link,
        };
        let greeting: &[u8] = match server.protocol {
            Speaks::Web => b"HEAD / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
            Speaks::Cache => b"version\r\n",
        };
        // An answer, for a connection alone says little: nginx listens before it has a worker.
        let deadline = Instant::now() + START_PATIENCE;
        while !running.answers(greeting) {
            self.go_on()?;
            if running.launched.ended()?.is_some() || Instant::now() > deadline {
                let (name, words) = (&subject.name, running.last_words());
                return Err(format!("{name} does not answer: {words}").into());
            }
            thread::sleep(Duration::from_millis(10));
        }
        running.pids = running.family();
        // Seen once, on a machine with much else to do: a server that answers, and a cost of 0.
        match running.pids.is_empty() {
            true => Err("no process of the server is found".into()),
            false => Ok(running),
        }
    }

    /// Lets generators ask, all at once, and reads the meters meanwhile. Each entry is what comes
    /// after `weft load`, without durations.
    pub(crate) fn drive(
        &mut self,
        server: &mut Running,
        loads: &[Vec<String>],
    ) -> Result<Driven, Fault> {
        let side = |_| Side::Generator;
        self.drive_from(&side, READ_EVERY, server, loads)
    }

    /// The same by two generators, one on each core, where the server has both. What they say is
    /// one outcome.
    pub(crate) fn drive_among(
        &mut self,
        server: &mut Running,
        load: &[String],
    ) -> Result<Driven, Fault> {
        // With one seed both would ask at the same moments.
        let loads = ["--seed 1", "--seed 2"].map(|seed| [load, &words(seed)[..]].concat());
        self.drive_from(&Side::Among, READ_SELDOM, server, &loads)?
            .merged()
    }

    /// As [`drive`](Bench::drive). Several generators have one core, and number `ahead` goes ahead
    /// of the others there: else most of its p99 is how long it waits for them.
    pub(crate) fn drive_ahead(
        &mut self,
        server: &mut Running,
        loads: &[Vec<String>],
        ahead: usize,
    ) -> Result<Driven, Fault> {
        let side = |at| match loads.len() > 1 && at == ahead {
            true => Side::Ahead,
            false => Side::Generator,
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
        let (mut readings, usage) = (vec![server.read()?], Usage::now());
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
        // The generator may have ended its time after the last one.
        readings.push(server.read()?);
        drop(ahead);
        let last = readings[readings.len() - 1];
        let own = (last.cpu + last.relay).saturating_sub(readings[0].cpu + readings[0].relay);
        let mut noise = Noise::since(usage, own);
        server.check()?;
        let (mut outcomes, mut intervals) = (Vec::new(), Vec::new());
        for generator in &generators {
            let (outcome, its_intervals) = generator.outcome()?;
            outcomes.push(outcome);
            intervals.push(its_intervals);
        }
        let window = Window::of(&readings, outcomes[0].began, outcomes[0].elapsed);
        let window = window.ok_or("the clock was set while a sample was taken")?;
        let replies = outcomes.iter().map(|one| one.total.replies()).sum();
        window.check(replies)?;
        let generators_delay: f64 = outcomes.iter().map(generator_delay_percent).sum();
        noise.run_delay_percent = window.delay_percent() + generators_delay;
        Ok(Driven {
            noise,
            outcomes,
            intervals,
            window,
        })
    }

    fn generate(&mut self, at: usize, side: Side, words: &[String]) -> Result<Generator, Fault> {
        let scratch = self.place.scratch();
        let [log, json] = ["log", "json"].map(|kind| scratch.join(format!("load-{at}.{kind}")));
        let _ = fs::remove_file(&json);
        let duration = format!("{}ms", (self.seconds * 1000.0) as u64);
        let mut argv: Vec<OsString> = vec![self.generator.into(), "load".into()];
        argv.extend(words.iter().map(OsString::from));
        argv.extend(["--quiet", "--color", "never", "--duration"].map(OsString::from));
        argv.extend([duration.into(), "--json".into(), json.clone().into()]);
        let limits = ServerLimits::default();
        let launched = self.place.launch(side, &argv, &log, limits, None)?;
        Ok(Generator {
            launched,
            log,
            json,
        })
    }

    /// Lets another generator ask, and reads what it prints and how much of its core it used.
    pub(crate) fn watch(
        &mut self,
        server: &mut Running,
        argv: &[OsString],
    ) -> Result<Watched, Fault> {
        let log = self.place.scratch().join("watched.log");
        let (usage, first) = (Usage::now(), server.read()?);
        let mut generator = self.place.launch_beside(argv, &log)?;
        let (began, pid) = (Instant::now(), generator.pid());
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
        let (mut noise, server_s) = (Noise::since(usage, server), server.as_secs_f64());
        // As in a window: the server's own threads had what it used of its core.
        let waited_s = last.delay_ns.saturating_sub(first.delay_ns) as f64 / 1e9;
        let waited_s = waited_s.min((lasted - server_s).max(0.0));
        noise.run_delay_percent = 100.0 * (delay_ns as f64 / 1e9 + waited_s) / lasted;
        Ok(Watched {
            said,
            busy: busy_in_the_middle(&readings),
            server_s,
            noise,
        })
    }

    /// Runs the generator's program to its end, for what it does and not for what it measures.
    pub(crate) fn weft(&mut self, words: &[impl AsRef<OsStr>]) -> Result<(), Fault> {
        let log = self.place.scratch().join("weft.log");
        let mut argv: Vec<OsString> = vec![self.generator.into()];
        argv.extend(words.iter().map(OsString::from));
        let mut launched = self.place.launch_beside(&argv, &log)?;
        self.see_end(&mut launched, &log)
    }

    /// Waits until a program has ended well that does so by itself.
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

    /// An error once the user wants to stop.
    pub(crate) fn go_on(&self) -> Result<(), Fault> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err(Fault::Stopped),
            false => Ok(()),
        }
    }
}

/// A server that answers.
pub(crate) struct Running {
    launched: Launched,
    host: Ipv4Addr,
    pub(crate) port: u16,
    log: PathBuf,
    /// Of those beside it as well.
    pids: Vec<u32>,
    /// Others that are taken for one with it.
    beside: Vec<Running>,
    /// It goes when the server has gone.
    link: Option<Link>,
}

/// The server's clocks at one moment.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: SystemTime,
    cpu: Duration,
    delay_ns: u64,
    /// Of the relay on the way to it, if there is one: the laboratory's own.
    relay: Duration,
    /// Of all processors, by whatever it was used.
    machine: Duration,
    disk_read_bytes: u64,
    /// 0 without a group that counts them.
    disk_reads: u64,
    /// Clock ticks outside of the kernel and in it.
    ticks: [u64; 2],
}

impl Running {
    /// The numbers of its processes, as a list with commas.
    pub(crate) fn pids(&self) -> String {
        let pids = self.pids.iter().map(u32::to_string);
        pids.collect::<Vec<_>>().join(",")
    }

    /// The generator's end of the link; nothing on the loopback.
    pub(crate) fn near(&self) -> &str {
        self.link.as_ref().map_or("", |link| &link.near)
    }

    /// `HOST:PORT` of it and of those beside it.
    pub(crate) fn addresses(&self) -> Vec<String> {
        let all = [self].into_iter().chain(&self.beside);
        all.map(|one| format!("{}:{}", one.host, one.port))
            .collect()
    }

    /// `http://HOST:PORT/PATH`
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}:{}{path}", self.host, self.port)
    }

    pub(crate) fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect((self.host, self.port))?;
        stream.set_read_timeout(Some(REPLY_PATIENCE))?;
        stream.set_write_timeout(Some(REPLY_PATIENCE))?;
        Ok(stream)
    }

    fn answers(&self, greeting: &[u8]) -> bool {
        let ask = || -> io::Result<bool> {
            let mut stream = self.connect()?;
            stream.write_all(greeting)?;
            Ok(stream.read(&mut [0])? > 0)
        };
        ask().unwrap_or(false)
    }

    /// Asks for a file and compares every byte of what comes.
    pub(crate) fn verify(&self, path: &str, body: &[u8]) -> Result<(), Fault> {
        let mut stream = self.connect()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")?;
        read_reply(&mut BufReader::new(stream), path, body)?;
        let mut beside = self.beside.iter();
        beside.try_for_each(|one| one.verify(path, body))
    }

    /// Resident memory of all its processes, page tables included.
    pub(crate) fn resident_bytes(&self) -> Result<u64, Fault> {
        let each = self.pids.iter().map(|&pid| processes::resident_bytes(pid));
        let sum: Option<u64> = each.sum();
        Ok(sum.ok_or("a process of the server is gone")?)
    }

    /// Its processes are still those that it had when it began to answer.
    pub(crate) fn check(&mut self) -> Result<(), Fault> {
        let now = self.family();
        match now == self.pids {
            true => Ok(()),
            false => {
                let (before, words) = (&self.pids, self.last_words());
                Err(format!("the server's processes {before:?} became {now:?}: {words}").into())
            }
        }
    }

    fn family(&self) -> Vec<u32> {
        let all = [self].into_iter().chain(&self.beside);
        let sessions: Vec<u32> = all.map(|one| one.launched.pid()).collect();
        let members = processes::of_sessions(&sessions);
        let alive = members.iter().filter(|process| !process.is_zombie);
        alive.map(|process| process.pid).collect()
    }

    fn read(&self) -> Result<Reading, Fault> {
        let mut reading = Reading {
            at: SystemTime::now(),
            cpu: Duration::ZERO,
            delay_ns: 0,
            relay: self.link.as_ref().map_or(Duration::ZERO, Link::relay_cpu),
            machine: busy::machine().unwrap_or_default(),
            disk_read_bytes: 0,
            disk_reads: self.launched.disk_reads().unwrap_or(0),
            ticks: [0; 2],
        };
        for &pid in &self.pids {
            let time = sys::cpu_time(pid)
                .map_err(|error| format!("process {pid} of the server: {error}"))?;
            reading.cpu += time;
            reading.delay_ns += processes::run_delay_ns(pid);
            let ticks = processes::ticks(pid).unwrap_or_default();
            reading.ticks = [0, 1].map(|at| reading.ticks[at] + ticks[at]);
            reading.disk_read_bytes += processes::storage_read_bytes(pid).unwrap_or(0);
        }
        Ok(reading)
    }

    fn last_words(&self) -> String {
        tail(&self.log)
    }
}

/// Reads one reply, which must be the file.
pub(crate) fn read_reply(stream: &mut impl BufRead, path: &str, body: &[u8]) -> Result<(), Fault> {
    let mut status = String::new();
    stream.read_line(&mut status)?;
    let mut length = None;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Err(format!("{path}: the reply ends in its head").into());
        }
        if line.trim_end().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse::<usize>().ok();
        }
    }
    if !status.starts_with("HTTP/1.1 200 ") {
        return Err(format!("{path}: {}", status.trim_end()).into());
    }
    let expected = body.len();
    let mut read = vec![0; length.filter(|&length| length == expected).unwrap_or(0)];
    stream.read_exact(&mut read)?;
    match read == body {
        true => Ok(()),
        false => Err(format!(
            "{path}: the body is not the file's {expected} bytes (length {length:?})"
        )
        .into()),
    }
}

struct Generator {
    launched: Launched,
    log: PathBuf,
    json: PathBuf,
}

impl Generator {
    fn outcome(&self) -> Result<(Outcome, Vec<Interval>), Fault> {
        let text = fs::read(&self.json).unwrap_or_default();
        let read = |text| {
            let document: serde_json::Value = serde_json::from_slice(text)?;
            let intervals = Vec::<Interval>::deserialize(&document["intervals"])?;
            Ok::<_, serde_json::Error>((document, intervals))
        };
        let read = read(&text).map_err(|_| format!("the generator: {}", tail(&self.log)));
        let (document, intervals) = read?;
        Ok((Outcome::from_json(document)?, intervals))
    }
}

/// What a generator says of one of its intervals.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub(crate) struct Interval {
    /// From the beginning of measuring.
    pub(crate) begins_s: f64,
    pub(crate) lasts_s: f64,
    pub(crate) intended_per_s: f64,
    /// Good replies.
    pub(crate) achieved_per_s: f64,
    /// Requests that failed.
    pub(crate) errors: u64,
    /// Requests that were never sent.
    pub(crate) missed: u64,
    /// From the intended time.
    pub(crate) p99_us: f64,
}

fn generator_delay_percent(outcome: &Outcome) -> f64 {
    let threads = &outcome.generator.threads;
    let share = |thread: &load::outcome::ThreadUse| {
        100.0 * thread.run_delay.as_secs_f64() / thread.elapsed.as_secs_f64().max(1e-9)
    };
    threads.iter().map(share).fold(0.0, f64::max)
}

/// What another generator did.
pub(crate) struct Watched {
    /// All that it printed.
    pub(crate) said: String,
    /// How much of its core it used once it was under way, from 0 to 1.
    pub(crate) busy: f64,
    /// The server's CPU time from the generator's start to its end, connecting and all.
    pub(crate) server_s: f64,
    pub(crate) noise: Noise,
}

/// CPU time by time, without the first fifth, in which connections are set up, and the last tenth.
fn busy_in_the_middle(readings: &[(f64, f64)]) -> f64 {
    let count = readings.len();
    let (Some(from), Some(to)) = (readings.get(count / 5), readings.get(count * 9 / 10)) else {
        return 0.0;
    };
    (to.1 - from.1) / (to.0 - from.0).max(1e-9)
}

/// What the server used while the generator measured.
#[derive(Clone, Copy, Debug)]
struct Window {
    lasts: Duration,
    cpu_s: f64,
    delay_s: f64,
    machine_s: f64,
    disk_read_bytes: f64,
    disk_reads: f64,
    /// Clock ticks outside of the kernel and in it.
    ticks: [f64; 2],
}

impl Window {
    /// `None` if not all of it lies between the readings.
    fn of(readings: &[Reading], begin: SystemTime, lasts: Duration) -> Option<Window> {
        let end = begin + lasts;
        let used = |meter: fn(&Reading) -> f64| {
            Some(read_at(readings, end, meter)? - read_at(readings, begin, meter)?)
        };
        Some(Window {
            lasts,
            cpu_s: used(|reading| reading.cpu.as_secs_f64())?,
            delay_s: used(|reading| reading.delay_ns as f64 / 1e9)?,
            machine_s: used(|reading| reading.machine.as_secs_f64())?,
            disk_read_bytes: used(|reading| reading.disk_read_bytes as f64)?,
            disk_reads: used(|reading| reading.disk_reads as f64)?,
            ticks: [
                used(|reading| reading.ticks[0] as f64)?,
                used(|reading| reading.ticks[1] as f64)?,
            ],
        })
    }

    /// A fault if that cannot be.
    fn check(&self, replies: u64) -> Result<(), Fault> {
        match self.cpu_s > 0.0 || replies == 0 {
            true => Ok(()),
            false => Err(format!(
                "the server answered {replies} requests, and the clock of its CPU time stood still"
            )
            .into()),
        }
    }

    /// How long the server waited for its core, as far as it was not its own threads that had it:
    /// at most what they left of it.
    fn delay_percent(&self) -> f64 {
        let lasts_s = self.lasts.as_secs_f64();
        let left_s = (lasts_s - self.cpu_s).max(0.0);
        100.0 * self.delay_s.min(left_s) / lasts_s.max(1e-9)
    }
}

/// What a meter showed at a moment: on the line between the readings around it.
fn read_at(readings: &[Reading], at: SystemTime, meter: fn(&Reading) -> f64) -> Option<f64> {
    let after = readings.iter().position(|reading| reading.at >= at)?;
    let (before, after) = (&readings[after.checked_sub(1)?], &readings[after]);
    let between = after.at.duration_since(before.at).ok()?.as_secs_f64();
    let part = at.duration_since(before.at).ok()?.as_secs_f64() / between.max(1e-9);
    Some(meter(before) + (meter(after) - meter(before)) * part)
}

/// What generators and meters say.
pub(crate) struct Driven {
    pub(crate) outcomes: Vec<Outcome>,
    /// Interval by interval, of each generator.
    pub(crate) intervals: Vec<Vec<Interval>>,
    window: Window,
    noise: Noise,
}

impl Driven {
    /// What the server made the disk read while the generator measured.
    pub(crate) fn disk_read_bytes(&self) -> f64 {
        self.window.disk_read_bytes
    }

    /// How many reads that were; none if no group counts them.
    pub(crate) fn disk_reads(&self) -> f64 {
        self.window.disk_reads
    }

    /// The same, with the outcomes of all generators as one.
    fn merged(mut self) -> Result<Driven, Fault> {
        let mut outcomes = self.outcomes.drain(..);
        let mut whole = outcomes.next().ok_or("there was no generator")?;
        for outcome in outcomes {
            whole.merge(&outcome)?;
        }
        Ok(Driven {
            outcomes: vec![whole],
            ..self
        })
    }

    /// A fault if anything at all went wrong: then the figures are not of the work that was asked.
    pub(crate) fn sound(self) -> Result<Driven, Fault> {
        let all_answered = self.outcomes.iter().all(|one| one.total.replies() > 0);
        let driven = self.without_errors()?;
        match all_answered {
            true => Ok(driven),
            false => Err("no request was answered".into()),
        }
    }

    /// The same, but there may be no whole reply yet.
    pub(crate) fn without_errors(self) -> Result<Driven, Fault> {
        for outcome in &self.outcomes {
            let errors = outcome.total.errors;
            if errors.total() > 0 {
                let named = errors.named().into_iter().filter(|(_, count)| *count > 0);
                let named = named.map(|(name, count)| format!("{count} {name}"));
                return Err(named.collect::<Vec<_>>().join(", ").into());
            }
        }
        Ok(self)
    }

    /// The figures that every experiment with a server has.
    pub(crate) fn sample(&self) -> Sample {
        let outcome = &self.outcomes[0];
        let seconds = outcome.elapsed.as_secs_f64().max(1e-9);
        let rates = self.outcomes.iter().map(Outcome::achieved_rate_per_s);
        let rate: f64 = rates.sum();
        let figures = load::report::figures(outcome);
        let latency = figures.latency_us.intended;
        let asked = figures.intended.max(figures.sent).max(1);
        let failed = (figures.errors["total"] + figures.missed).min(asked);
        let replies = (rate * seconds).max(1.0);
        let bytes = self.outcomes.iter().map(|one| one.total.received_bytes);
        let bytes: u64 = bytes.sum();
        let is_limited = u8::from(figures.generator_limited);
        let figures = [
            (LASTED_S, seconds),
            ("cpu_us", self.window.cpu_s * 1e6 / replies),
            ("machine_us", self.window.machine_s * 1e6 / replies),
            ("gbit_per_s", bytes as f64 * 8e-9 / seconds),
            ("rate_per_s", rate),
            ("busy_percent", 100.0 * self.window.cpu_s / seconds),
            ("p50_us", latency.p50),
            ("p99_us", latency.p99),
            ("p99.9_us", latency.p99_9),
            ("mean_us", latency.mean),
            ("error_percent", 100.0 * failed as f64 / asked as f64),
            ("generator_cpu_us", figures.generator.cpu_us_per_reply),
            ("generator_limited", f64::from(is_limited)),
            ("lag_p99_us", figures.lag_us.p99),
        ];
        let mut sample = Sample {
            histograms: histograms(&self.outcomes),
            noise: self.noise,
            ..Sample::of(figures)
        };
        let [user, kernel] = self.window.ticks;
        if user + kernel > 0.0 {
            sample.add([("user_percent", 100.0 * user / (user + kernel))]);
        }
        sample
    }
}

/// The distributions of response times, as the generators encoded them: `response_ns` of the first,
/// `response_ns 2` of the second.
fn histograms(outcomes: &[Outcome]) -> BTreeMap<String, String> {
    let encoded = |(at, outcome): (usize, &Outcome)| {
        let document = outcome.without_intervals().to_json();
        let class = document.get("total")?.get("classes")?.get(0)?;
        let encoded = class.get("response_ns")?.as_str()?;
        let name = match at {
            0 => "response_ns".to_owned(),
            _ => format!("response_ns {}", at + 1),
        };
        Some((name, encoded.to_owned()))
    };
    outcomes.iter().enumerate().filter_map(encoded).collect()
}

/// The last lines of a log, as one.
fn tail(log: &Path) -> String {
    let text = String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().rev().take(4).collect();
    match lines.is_empty() {
        true => "it said nothing".to_owned(),
        false => lines.into_iter().rev().collect::<Vec<_>>().join(" / "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen: what a reply of `web-disk` and `web-cold` cost the disk came out twice as high as it
    /// was. Cause: bytes were counted from the beginning of the warming, replies from its end.
    /// Cure: both between the same two moments.
    #[test]
    fn what_lies_between_two_readings_is_on_the_line_between_them() {
        let start = SystemTime::UNIX_EPOCH;
        let at = |ms: u64| start + Duration::from_millis(ms);
        let reading = |ms: u64, cpu_ms: u64| Reading {
            at: at(ms),
            cpu: Duration::from_millis(cpu_ms),
            delay_ns: 2_000_000 * cpu_ms,
            relay: Duration::ZERO,
            machine: Duration::from_millis(3 * cpu_ms),
            disk_read_bytes: 1000 * cpu_ms,
            disk_reads: 4 * cpu_ms,
            ticks: [5 * cpu_ms, 6 * cpu_ms],
        };
        let readings = [reading(0, 100), reading(20, 120), reading(40, 130)];
        let cpu_ms_at = |ms| {
            let cpu_s = read_at(&readings, at(ms), |reading| reading.cpu.as_secs_f64())?;
            Some((cpu_s * 1e6).round() / 1e3)
        };
        assert_eq!(cpu_ms_at(10), Some(110.0));
        assert_eq!(cpu_ms_at(20), Some(120.0));
        assert_eq!(cpu_ms_at(30), Some(125.0));
        // Outside of what was read.
        assert_eq!((cpu_ms_at(0), cpu_ms_at(41)), (None, None));

        let from_10_to = |ms: u64| Window::of(&readings, at(10), Duration::from_millis(ms - 10));
        let used = from_10_to(30).unwrap();
        let times_s = [used.cpu_s, used.delay_s, used.machine_s];
        assert_eq!(
            times_s.map(|time_s| (1e3 * time_s).round()),
            [15.0, 30.0, 45.0]
        );
        let disk = [used.disk_read_bytes, used.disk_reads];
        assert_eq!(disk.map(f64::round), [15_000.0, 60.0]);
        assert_eq!(used.ticks.map(f64::round), [75.0, 90.0]);
        assert!(from_10_to(41).is_none());
    }

    #[test]
    fn a_server_that_has_all_of_its_core_waits_for_no_other() {
        let window = |cpu_s, delay_s| Window {
            lasts: Duration::from_secs(2),
            cpu_s,
            delay_s,
            machine_s: 0.0,
            disk_read_bytes: 0.0,
            disk_reads: 0.0,
            ticks: [0.0; 2],
        };
        // 64 threads on one core: each waits for the others.
        assert_eq!(window(2.0, 126.0).delay_percent(), 0.0);
        assert_eq!(window(1.8, 126.0).delay_percent().round(), 10.0);
        assert_eq!(window(1.0, 0.5).delay_percent(), 25.0);
        // Seen: "25.3 µs (0–26.1)" in netstack-cores, of a server that answered 10,144 requests
        // and used no CPU time, where /proc/stat had one core of two idle.
        assert!(matches!(
            window(0.0, 0.0).check(10_144),
            Err(Fault::Failed(_))
        ));
        assert!(window(0.0, 0.0).check(0).is_ok() && window(0.1, 0.0).check(9).is_ok());
    }

    #[test]
    fn a_reply_is_right_or_the_sample_fails() {
        let read = |reply: &str| {
            let result = read_reply(&mut reply.as_bytes(), "/a", b"body");
            result.map_err(|fault| match fault {
                Fault::Failed(why) => why,
                _ => unreachable!("it asks for a reply"),
            })
        };
        assert_eq!(
            read("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody"),
            Ok(())
        );
        let wrong = read("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nBODY").unwrap_err();
        assert!(wrong.contains("not the file's 4 bytes"), "{wrong}");
        let short = read("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbod").unwrap_err();
        assert!(short.contains("length Some(3)"), "{short}");
        assert!(
            read("HTTP/1.1 404 Not Found\r\n\r\n")
                .unwrap_err()
                .contains("404")
        );
        assert!(read("HTTP/1.1 200 OK\r\n").unwrap_err().contains("head"));
    }
}
