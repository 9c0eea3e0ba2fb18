//! Choice of an engine, for `weft serve` and `weft cache`: parsing of `--engine`, its needs on this
//! machine, and the corresponding engine of crate `serve`.

mod keys;

use std::io;
use std::num::NonZeroUsize;
use std::sync::LazyLock;
use std::time::Duration;

use ::serve::engine::{Accept, EventOptions, PipelineOptions, THREADS_MAX};
use event::Mechanism;
use fiber::BackendChoice;

use crate::netstack::NetstackChoice;
use crate::os::machine::{CgroupVersion, Machine, RAISE_THREADS, why_no_threads};
use crate::value::{show_count, show_counted};

pub(crate) use keys::{names, write_manual};

/// Engine and its options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EngineChoice {
    pub(crate) kind: EngineKind,
    io: BackendChoice,
    /// Fixed number of fibers or threads that accept connections; `None`: one per connection.
    pub(crate) fibers: Option<NonZeroUsize>,
    dispatcher: Option<Mechanism>,
    fdm: FdmTuning,
    accept: Option<Accept>,
    multi_accept: Option<bool>,
    file_threads: Option<bool>,
    stage_threads: StageThreads,
    stage_queue: Option<usize>,
    stage_batch: Option<usize>,
    pub(crate) netstack: NetstackChoice,
}

/// Parameters of FDM, where given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FdmTuning {
    live: Option<u32>,
    nap: Option<Duration>,
}

/// Threads of each stage of a pipeline, where given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct StageThreads {
    read: Option<usize>,
    session: Option<usize>,
    write: Option<usize>,
}

/// Concurrency model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EngineKind {
    #[default]
    Fiber,
    Thread,
    Event,
    Pipeline,
    Netstack,
}

// Largest number of kernel threads or connections; a larger one is a typing error.
pub(crate) const WORKERS_MAX: usize = 1024;
pub(crate) const FIBERS_MAX: usize = 4_000_000;

/// Default dispatcher of event loops.
const DISPATCHER: Mechanism = Mechanism::EpollEdge;

impl EngineChoice {
    /// Finds conflicting keys.
    ///
    /// # Errors
    /// A sentence with the remedy.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.kind == EngineKind::Netstack {
            self.netstack.check()?;
        }
        let is_fdm = matches!(self.mechanism(), Mechanism::Fdm { .. });
        if !is_fdm && self.fdm != FdmTuning::default() {
            return Err("fdm-live and fdm-nap need dispatcher=fdm".to_owned());
        }
        Ok(())
    }

    /// A note that the number of workers has no effect, if it has none; `flag` is its name.
    pub(crate) fn note_workers(&self, flag: &str) -> Option<String> {
        let is_idle = self.kind == EngineKind::Thread;
        is_idle.then(|| format!("{flag} has no effect with --engine thread"))
    }

    /// True if the engine may set up a ring of io_uring.
    pub(crate) fn may_use_io_uring(&self) -> bool {
        match self.engine(1) {
            ::serve::Engine::Fiber { backend, .. } => backend != BackendChoice::Epoll,
            ::serve::Engine::Event(options) => options.dispatcher == Mechanism::Uring,
            ::serve::Engine::Pipeline(options) => options.dispatcher == Mechanism::Uring,
            ::serve::Engine::Thread | ::serve::Engine::Netstack => false,
        }
    }

    /// Warning about a reason why connections may not arrive although the settings are valid.
    pub(crate) fn warning(&self) -> Option<String> {
        match self.kind {
            EngineKind::Netstack => self.netstack.warning().or_else(|| self.netstack.claim()),
            _ => None,
        }
    }

    /// Finds a limit on connections that this engine cannot hold on this machine.
    ///
    /// # Errors
    /// A sentence with the remedy; `flag` is the name of the limit.
    pub(crate) fn check_holds(
        &self,
        flag: &str,
        connections: usize,
        workers: usize,
        machine: &Machine,
    ) -> Result<(), String> {
        let max = self.connections_max(workers, machine);
        if connections <= max {
            return Ok(());
        }
        let connections = show_count(connections as u64);
        let held = self.holds(max, workers, machine);
        Err(format!("{flag} {connections}: {held}"))
    }

    /// Finds a fixed number of fibers or threads that this machine does not allow.
    ///
    /// # Errors
    /// A sentence with the remedy.
    pub(crate) fn check_fixed(&self, workers: usize, machine: &Machine) -> Result<(), String> {
        let key = match self.kind {
            EngineKind::Thread => "threads",
            _ => "fibers",
        };
        let fixed = self.fibers.map_or(0, usize::from);
        let max = self.connections_max(workers, machine);
        if fixed <= max {
            return Ok(());
        }
        let held = self.holds(max, workers, machine);
        Err(format!("{}:{key}={fixed}: {held}", self.kind.name()))
    }

    /// Most concurrent connections with a fixed number of fibers or threads; no limit without one.
    pub(crate) fn fixed_max(&self) -> usize {
        self.fibers.map_or(usize::MAX, usize::from)
    }

    /// `connections` for people, after the fixed number of fibers or threads if there is one.
    pub(crate) fn show_connections(&self, connections: usize) -> String {
        let shown = show_counted(connections as u64, "connection");
        let worker = match (self.fibers, self.kind) {
            (None, _) => return shown,
            (_, EngineKind::Thread) => "thread",
            _ => "fiber",
        };
        let workers = self.fixed_max().min(connections);
        format!("{}, {shown}", show_counted(workers as u64, worker))
    }

    /// States that this engine holds `max` connections, and how to hold more.
    pub(crate) fn holds(&self, max: usize, workers: usize, machine: &Machine) -> String {
        let watched_max = self.watched_max(workers, machine);
        let cure = match self.kind {
            EngineKind::Thread => format!("{RAISE_THREADS}, or use --engine fiber or event"),
            EngineKind::Fiber if watched_max < fibers_max(machine) => {
                format!("raise {WATCHES} for more, or use --engine fiber:io=uring")
            }
            EngineKind::Fiber | EngineKind::Netstack => {
                "raise vm.max_map_count for more".to_owned()
            }
            EngineKind::Event | EngineKind::Pipeline => {
                format!("raise {WATCHES} for more, or use {}:dispatcher=uring", self.kind.name())
            }
        };
        let (name, max) = (self.kind.name(), show_counted(max as u64, "connection"));
        format!("{name} holds {max} on this machine; {cure}")
    }

    /// Descriptors needed for this number of connections.
    pub(crate) fn descriptors_of(&self, connections: usize) -> usize {
        match self.kind {
            EngineKind::Netstack => 0,
            _ => connections,
        }
    }

    /// Most connections on this machine, apart from descriptors.
    pub(crate) fn connections_max(&self, workers: usize, machine: &Machine) -> usize {
        let carried = match self.kind {
            EngineKind::Fiber => fibers_max(machine),
            EngineKind::Thread => threads_max(machine),
            EngineKind::Event | EngineKind::Pipeline | EngineKind::Netstack => usize::MAX,
        };
        carried.min(self.watched_max(workers, machine))
    }

    /// Most connections that fit into the memory; no limit if its size is unknown.
    pub(crate) fn connections_in(
        &self,
        memory: Option<u64>,
        has_tls: bool,
        machine: &Machine,
    ) -> usize {
        // Stack, buffers and session of a waiting connection, measured under each engine with peers
        // that send half a head and with peers that do not read; memory beyond that counts as
        // connection memory.
        let own_len: u64 = match self.kind {
            EngineKind::Thread => 64 << 10,
            EngineKind::Fiber => 16 << 10,
            EngineKind::Netstack => 8 << 10,
            EngineKind::Event | EngineKind::Pipeline => 3 << 10,
        };
        // cgroup v1 does not count the kernel's own structure of a socket.
        let is_v1 = (machine.cgroup_memory_limit_bytes())
            .is_some_and(|(version, _)| version == CgroupVersion::V1);
        let socket_len = if is_v1 { 0 } else { 3 << 10 };
        let tls_len = if has_tls { 6 << 10 } else { 0 };
        let len = own_len + socket_len + tls_len;
        memory.map_or(usize::MAX, |memory| ((memory / len) as usize).max(1))
    }

    /// Most connections that epoll can watch, if it is used.
    fn watched_max(&self, workers: usize, machine: &Machine) -> usize {
        let dispatcher = self.mechanism();
        let has_epoll = matches!(dispatcher, Mechanism::Epoll | Mechanism::EpollEdge);
        let watches_each = match self.kind {
            // Each processor on which a connection has waited watches it until it is closed.
            EngineKind::Fiber if waits_with_epoll(self.io) => workers.max(1),
            EngineKind::Event if has_epoll => 1,
            // A connection that waits for space is watched by its reader and by its writer.
            EngineKind::Pipeline if has_epoll => 2,
            _ => return usize::MAX,
        };
        let watches = machine.number("proc/sys/fs/epoll/max_user_watches");
        let connections = |watches: u64| {
            let for_connections = watches.saturating_sub(WATCHES_RESERVED) as usize;
            (for_connections / watches_each).max(1)
        };
        watches.map_or(usize::MAX, connections)
    }

    /// Engine of crate `serve` with this number of workers.
    pub(crate) fn engine(&self, workers: usize) -> ::serve::Engine {
        match self.kind {
            EngineKind::Thread => ::serve::Engine::Thread,
            EngineKind::Netstack => ::serve::Engine::Netstack,
            EngineKind::Fiber => ::serve::Engine::Fiber { processors: workers, backend: self.io },
            EngineKind::Event => ::serve::Engine::Event(EventOptions {
                loops: workers,
                dispatcher: self.mechanism(),
                accept: self.accept.unwrap_or(Accept::Own),
                accepts_many: self.multi_accept.unwrap_or(true),
                has_file_threads: self.file_threads.unwrap_or(true),
            }),
            EngineKind::Pipeline => {
                let said = self.stage_threads;
                let usual = PipelineOptions::for_processors(workers);
                ::serve::Engine::Pipeline(PipelineOptions {
                    read_threads: said.read.unwrap_or(usual.read_threads),
                    session_threads: said.session.unwrap_or(usual.session_threads),
                    write_threads: said.write.unwrap_or(usual.write_threads),
                    queue_limit: self.stage_queue.unwrap_or(usual.queue_limit),
                    batch_max: self.stage_batch.unwrap_or(usual.batch_max),
                    dispatcher: self.mechanism(),
                })
            }
        }
    }

    /// Reason why a server on this engine did not start, in one sentence. The kernel's error alone
    /// does not tell what forbids a ring.
    pub(crate) fn why_not_started(&self, error: &io::Error) -> String {
        let has_loops = matches!(self.kind, EngineKind::Event | EngineKind::Pipeline);
        let has_ring = has_loops && self.mechanism() == Mechanism::Uring;
        match has_ring.then(fiber::probe) {
            Some(Err(denied)) => format!("{}:dispatcher=uring: {denied}", self.kind.name()),
            _ => why_no_threads("the server", error),
        }
    }

    fn mechanism(&self) -> Mechanism {
        match self.dispatcher.unwrap_or(DISPATCHER) {
            Mechanism::Fdm { live, nap } => Mechanism::Fdm {
                live: self.fdm.live.unwrap_or(live),
                nap: self.fdm.nap.unwrap_or(nap),
            },
            other => other,
        }
    }
}

// Other descriptors watched by epoll: the waker and the listeners of each loop or processor.
const WATCHES_RESERVED: u64 = 64;
const WATCHES: &str = "fs.epoll.max_user_watches";

impl EngineKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            EngineKind::Fiber => "--engine fiber",
            EngineKind::Thread => "--engine thread",
            EngineKind::Event => "--engine event",
            EngineKind::Pipeline => "--engine pipeline",
            EngineKind::Netstack => "--engine netstack",
        }
    }
}

/// True if fibers with this back end wait with epoll.
fn waits_with_epoll(io: BackendChoice) -> bool {
    // Probed once: it needs a ring and a thread.
    static IS_DENIED: LazyLock<bool> = LazyLock::new(|| fiber::probe().is_err());
    match io {
        BackendChoice::Epoll => true,
        BackendChoice::Uring => false,
        BackendChoice::Auto => *IS_DENIED,
    }
}

fn fibers_max(machine: &Machine) -> usize {
    if fiber::guard_install_supported() {
        return usize::MAX;
    }
    let mappings = machine.number("proc/sys/vm/max_map_count");
    // Without MADV_GUARD_INSTALL the fiber crate uses at most this share of the mappings.
    mappings.unwrap_or(65_530) as usize / 4
}

// Threads of this process that serve no connection, and threads of other programs.
const THREADS_RESERVED: u64 = 1024;

fn threads_max(machine: &Machine) -> usize {
    let limits = [
        machine.cgroup_tasks_max(),
        machine.user_threads_max(),
        machine.number("proc/sys/kernel/threads-max"),
        machine.number("proc/sys/kernel/pid_max"),
        // A thread's stack is two mappings with its guard. pthread_attr_setguardsize(3)
        machine.number("proc/sys/vm/max_map_count").map(|mappings| mappings / 2),
    ];
    let lowest = limits.into_iter().flatten().min().unwrap_or(32_768);
    (lowest / 2).max(lowest.saturating_sub(THREADS_RESERVED)).clamp(1, THREADS_MAX as u64) as usize
}

/// The choice for a value of `--engine`.
#[cfg(test)]
pub(crate) fn choice(text: &str) -> EngineChoice {
    text.parse().unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::machine::tests::machine;

    const WATCHED: (&str, &str) = ("proc/sys/fs/epoll/max_user_watches", "9000\n");

    #[test]
    fn each_name_is_an_engine_of_its_own() {
        for name in names() {
            assert_eq!(choice(name).kind.name(), format!("--engine {name}"));
        }
    }

    /// Seen: "Resource temporarily unavailable (os error 11)", and nothing else. Cause: the
    /// kernel's error was reported as the reason. Cure: the limit is named.
    #[test]
    fn a_limit_on_threads_is_named() {
        let said = choice("fiber").why_not_started(&io::ErrorKind::WouldBlock.into());
        assert!(said.contains("ulimit -u"), "{said}");
    }

    fn dispatcher(text: &str) -> String {
        match choice(text).engine(3) {
            ::serve::Engine::Event(options) => options.dispatcher.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_dispatcher_can_be_chosen() {
        assert_eq!(dispatcher("event"), "epoll-edge");
        for mechanism in Mechanism::ALL {
            // No engine supports one-shot dispatchers.
            if mechanism != Mechanism::EpollOneShot {
                let name = mechanism.to_string();
                assert_eq!(dispatcher(&format!("event:dispatcher={name}")), name);
            }
        }
    }

    /// Seen: the paper tunes N and the sleep for each load, but both were fixed here.
    #[test]
    fn fdm_can_be_tuned() {
        let mechanism = |text: &str| match choice(text).engine(3) {
            ::serve::Engine::Event(options) => options.dispatcher,
            other => panic!("{other:?}"),
        };
        let tuned = Mechanism::Fdm { live: 8, nap: Duration::from_micros(50) };
        assert_eq!(mechanism("event:fdm-live=8,fdm-nap=50,dispatcher=fdm"), tuned);
        assert_eq!(mechanism("event:dispatcher=fdm"), Mechanism::FDM);
        let check = |text: &str| choice(text).check().unwrap_err();
        assert_eq!(check("event:fdm-live=8"), "fdm-live and fdm-nap need dispatcher=fdm");
        assert!("event:dispatcher=fdm,fdm-live=2".parse::<EngineChoice>().is_err());
    }

    /// Compares the laboratory's list with the real one: a new dispatcher would otherwise be left
    /// out silently.
    #[cfg(feature = "lab")]
    #[test]
    fn the_laboratory_measures_every_dispatcher() {
        let is_measured = |mechanism: &Mechanism| match mechanism {
            Mechanism::RtSig(overflow) => *overflow == event::Overflow::Poll,
            Mechanism::EpollOneShot => false,
            _ => true,
        };
        let names = Mechanism::ALL.iter().filter(|it| is_measured(it));
        let names: Vec<_> = names.map(ToString::to_string).collect();
        assert_eq!(names, ::lab::DISPATCHERS);
    }

    fn pipeline(text: &str) -> PipelineOptions {
        match choice(text).engine(8) {
            ::serve::Engine::Pipeline(options) => options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_pipeline_takes_the_rest_from_the_workers() {
        let usual = PipelineOptions::for_processors(8);
        assert_eq!(pipeline("pipeline"), usual);
        let said = "pipeline:write-threads=3,session-threads=7,queue=5,batch=2,dispatcher=poll";
        let expected = PipelineOptions {
            read_threads: usual.read_threads,
            session_threads: 7,
            write_threads: 3,
            queue_limit: 5,
            batch_max: 2,
            dispatcher: Mechanism::Poll,
        };
        assert_eq!(pipeline(said), expected);
    }

    #[test]
    fn more_connections_than_an_engine_holds() {
        let (_root, machine) = machine(&[WATCHED]);
        let check = |text: &str| choice(text).check_holds("--max-connections", 10_000, 2, &machine);
        let why = check("thread").unwrap_err();
        assert!(why.contains("8,192") && why.contains("--engine fiber"), "{why}");
        let why = check("event").unwrap_err();
        assert!(why.contains("8,936") && why.contains(WATCHES), "{why}");
        let why = check("pipeline").unwrap_err();
        assert!(why.contains("4,468") && why.contains(WATCHES), "{why}");
        // Each watch except those of wakers and listeners.
        let event = choice("event");
        event.check_holds("-c", 8_936, 2, &machine).unwrap();
        event.check_holds("-c", 8_937, 2, &machine).unwrap_err();
        let names = Mechanism::ALL.iter().map(ToString::to_string);
        for name in names.filter(|name| !name.starts_with("epoll")) {
            for engine in ["event", "pipeline"] {
                check(&format!("{engine}:dispatcher={name}")).unwrap();
            }
        }
    }

    #[test]
    fn fixed_numbers_are_held_to_the_machine() {
        let (_root, machine) = machine(&[("proc/sys/kernel/pid_max", "4096\n")]);
        let check = |text: &str| choice(text).check_fixed(2, &machine);
        check("thread").unwrap();
        check("thread:threads=3072").unwrap();
        check("fiber:io=uring,fibers=9").unwrap();
        let why = check("thread:threads=300000").unwrap_err();
        let said = "--engine thread:threads=300000: --engine thread holds 3,072 connections";
        assert!(why.starts_with(said), "{why}");
    }

    #[test]
    fn a_fixed_number_is_shown_before_connections() {
        let shown = |text: &str, connections| choice(text).show_connections(connections);
        assert_eq!(shown("fiber", 1_000), "1,000 connections");
        assert_eq!(shown("fiber:fibers=2", 2), "2 fibers, 2 connections");
        assert_eq!(shown("thread:threads=9", 1), "1 thread, 1 connection");
    }

    /// Seen (in review): `--engine fiber:io=epoll` accepted any limit. Cause: epoll's limit was
    /// checked for loops only. Cure: for fibers too, on each processor a connection may wait on.
    #[test]
    fn fibers_hold_what_epoll_watches() {
        let (_nothing, silent) = machine(&[]);
        let (_root, machine) = machine(&[WATCHED]);
        let on_epoll = choice("fiber:io=epoll");
        for (workers, held) in [(1, 8_936), (2, 4_468), (4, 2_234)] {
            on_epoll.check_holds("-c", held, workers, &machine).unwrap();
            let why = on_epoll.check_holds("-c", held + 1, workers, &machine);
            let why = why.unwrap_err();
            assert!(why.contains(WATCHES) && why.contains("io=uring"), "{why}");
        }
        // A ring does not use epoll.
        let on_uring = choice("fiber:io=uring");
        on_uring.check_holds("-c", 10_000, 2, &machine).unwrap();
        // On a machine with unknown limits.
        on_epoll.check_holds("-c", 10_000, 2, &silent).unwrap();
    }
}
