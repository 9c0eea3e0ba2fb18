//! Which engine carries the connections, as flags say it: the same for `weft serve` and `weft
//! cache`.

use std::io;
use std::sync::LazyLock;

use ::serve::engine::{Accept, EventOptions, PipelineOptions, THREADS_MAX};
use event::{Mechanism, Overflow};
use fiber::BackendChoice;

use crate::common::{Common, WORKERS_MAX};
use crate::netstack::NetstackChoice;
use crate::os::machine::{CgroupVersion, Machine, RAISE_THREADS, why_no_threads};
use crate::settings::{Choices, Setting};
use crate::value::{self, show_count, show_counted};

const ENGINES: Choices = &[
    ("fiber", "a user-level thread per connection"),
    ("thread", "a kernel thread per connection"),
    ("event", "a few event loops, each for many connections"),
    (
        "pipeline",
        "stages with threads and queues of their own, which hand connections on",
    ),
    (
        "netstack",
        "a TCP/IP in this process, on a device of its own",
    ),
];
const BACKENDS: Choices = &[
    ("auto", "io_uring if the kernel allows it, else epoll"),
    ("uring", "io_uring, or do not start"),
    ("epoll", "epoll"),
];
const DISPATCHERS: Choices = &[
    ("select", "select(2), also beyond 1,024 descriptors"),
    ("poll", "poll(2)"),
    (
        "fdm",
        "poll(2) over active, dozing and idle connections in turn",
    ),
    (
        "lap",
        "the same with a bounded delay, and cheap with many idle connections",
    ),
    ("rtsig", "real-time signals"),
    ("epoll", "epoll(7) by level"),
    ("epoll-edge", "epoll(7) by edge"),
    ("uring", "io_uring, which only polls"),
];
const OVERFLOWS: Choices = &[
    ("poll", "ask about all connections with poll(2)"),
    ("select", "ask about all connections with select(2)"),
    (
        "signalfd",
        "the same as poll, and take up to 128 signals with one call",
    ),
];
const ACCEPTS: Choices = &[
    (
        "own",
        "each loop accepts from a socket of its own (SO_REUSEPORT)",
    ),
    (
        "dealt",
        "one thread accepts for all loops, and deals to the one with the fewest",
    ),
];
/// The engines that wait with a dispatcher.
const WITH_LOOPS: &[&str] = &["event", "pipeline"];
/// Those that have as many processors, loops or threads as there are workers.
pub(crate) const WITH_WORKERS: &[&str] = &["fiber", "event", "pipeline", "netstack"];
pub(crate) const ON_OFF: Choices = &[("on", "yes"), ("off", "no")];

/// The choice of an engine, and the options of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EngineChoice {
    pub(crate) kind: Kind,
    io: BackendChoice,
    dispatcher: Option<Mechanism>,
    overflow: Option<Overflow>,
    accept: Option<Accept>,
    multi_accept: Option<bool>,
    pub(crate) file_threads: Option<bool>,
    stage_threads: Option<StageThreads>,
    stage_queue: Option<usize>,
    stage_batch: Option<usize>,
    pub(crate) netstack: NetstackChoice,
}

/// How many threads the stages of a pipeline have, where that was said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct StageThreads {
    read: Option<usize>,
    session: Option<usize>,
    write: Option<usize>,
}

/// What carries the connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    Fiber,
    Thread,
    Event,
    Pipeline,
    Netstack,
}

// A queue or a batch that is longer than this is none.
const STAGE_QUEUE_MAX: usize = 1_000_000;
const STAGE_BATCH_MAX: usize = 10_000;

/// The dispatcher of event loops if no flag names one.
const DISPATCHER: Mechanism = Mechanism::EpollEdge;

impl<C: AsMut<Common> + 'static> Setting<C> {
    /// What both commands can be told about the engine.
    pub(crate) const ENGINE: &'static [Setting<C>] = &[
        Setting::new("engine")
            .chooses(ENGINES, |config: &mut C, text| {
                config.as_mut().engine.kind = match text {
                    "thread" => Kind::Thread,
                    "event" => Kind::Event,
                    "pipeline" => Kind::Pipeline,
                    "netstack" => Kind::Netstack,
                    _ => Kind::Fiber,
                };
                Ok(())
            })
            .starts_as("fiber")
            .help("What carries the connections")
            .more("All serve the same bytes; they differ in speed and in what a connection costs."),
        Setting::new("io")
            .chooses(BACKENDS, |config: &mut C, text| {
                config.as_mut().engine.io = match text {
                    "uring" => BackendChoice::Uring,
                    "epoll" => BackendChoice::Epoll,
                    _ => BackendChoice::Auto,
                };
                Ok(())
            })
            .starts_as("auto")
            .on_engines(&["fiber"])
            .help("How fibers do their input and output")
            .more(
                "auto is io_uring where the kernel allows it, and else epoll; `weft doctor` tells \
                 which, and why.",
            ),
        Setting::new("dispatcher")
            .chooses(DISPATCHERS, |config: &mut C, text| {
                config.as_mut().engine.dispatcher = text.parse().ok();
                Ok(())
            })
            .derived("epoll-edge")
            .on_engines(WITH_LOOPS)
            .help("How event loops find out which connections are ready")
            .more("The others are there to be compared with epoll-edge."),
        Setting::new("rtsig-overflow")
            .chooses(OVERFLOWS, |config: &mut C, text| {
                config.as_mut().engine.overflow = Some(match text {
                    "select" => Overflow::Select,
                    "signalfd" => Overflow::Signalfd,
                    _ => Overflow::Poll,
                });
                Ok(())
            })
            .derived("poll")
            .on_engines(WITH_LOOPS)
            .help("What an event loop does when the kernel's queue of signals has overflowed")
            .more("For --dispatcher rtsig."),
        Setting::new("accept")
            .chooses(ACCEPTS, |config: &mut C, text| {
                config.as_mut().engine.accept = Some(match text {
                    "dealt" => Accept::Distributed,
                    _ => Accept::Own,
                });
                Ok(())
            })
            .derived("own")
            .on_engines(&["event"])
            .help("How connections come to event loops")
            .more(
                "What comes to a socket that was inherited, or to a Unix socket, is dealt even \
                 with own.",
            ),
        Setting::new("multi-accept")
            .chooses(ON_OFF, |config: &mut C, text| {
                config.as_mut().engine.multi_accept = Some(text == "on");
                Ok(())
            })
            .derived("on")
            .on_engines(&["event"])
            .help("Accept many of the connections that wait before looking around again")
            .more(
                "64 at first, and twice as many each time while some are left, up to 1,024, for at \
                 most 2 ms. With off it is one at a time.",
            ),
        Setting::new("stage-threads")
            .takes("LIST", |config: &mut C, text| {
                config.as_mut().engine.stage_threads = Some(stage_threads(text)?);
                Ok(())
            })
            .derived("worked out from --workers")
            .on_engines(&["pipeline"])
            .help("Threads of each stage of a pipeline, as in read=1,session=4,write=1")
            .more(
                "The session stage has as many as --workers says; for each four workers one \
                 thread reads and one writes. What is not named \
                 keeps its number.",
            ),
        Setting::new("stage-queue")
            .takes("N", |config: &mut C, text| {
                config.as_mut().engine.stage_queue = Some(value::count(text, 1..=STAGE_QUEUE_MAX)?);
                Ok(())
            })
            .derived("1024")
            .on_engines(&["pipeline"])
            .help("Connections that may wait in front of a stage of a pipeline")
            .more(
                "While the first queue is full no connection is accepted; while another is, what \
                 would go there waits, and nothing is dropped.",
            ),
        Setting::new("stage-batch")
            .takes("N", |config: &mut C, text| {
                config.as_mut().engine.stage_batch = Some(value::count(text, 1..=STAGE_BATCH_MAX)?);
                Ok(())
            })
            .derived("32")
            .on_engines(&["pipeline"])
            .help("Connections that a thread of a pipeline takes from its queue at a time"),
    ];
}

impl EngineChoice {
    /// Finds flags that do not go together.
    ///
    /// # Errors
    /// A sentence with what to change.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.kind == Kind::Netstack {
            self.netstack.check()?;
        }
        match (self.overflow, self.dispatcher) {
            (None, _) | (Some(_), Some(Mechanism::RtSig(_))) => Ok(()),
            _ => Err(
                "--rtsig-overflow is about signals; add --dispatcher rtsig, or leave it out"
                    .to_owned(),
            ),
        }
    }

    /// What keeps connections away although nothing is wrong with what was typed.
    pub(crate) fn warning(&self) -> Option<String> {
        match self.kind {
            Kind::Netstack => self.netstack.warning().or_else(|| self.netstack.claim()),
            _ => None,
        }
    }

    /// Finds a limit on connections that this engine cannot keep on this machine.
    ///
    /// # Errors
    /// A sentence with what to change; `flag` is how the limit is typed.
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

    /// Says that this engine holds `max` connections, and how it holds more.
    pub(crate) fn holds(&self, max: usize, workers: usize, machine: &Machine) -> String {
        let watched_max = self.watched_max(workers, machine);
        let cure = match self.kind {
            Kind::Thread => format!("{RAISE_THREADS}, or use --engine fiber or event"),
            Kind::Fiber if watched_max < fibers_max(machine) => {
                format!("raise {WATCHES} for more, or use --io uring")
            }
            Kind::Fiber | Kind::Netstack => "raise vm.max_map_count for more".to_owned(),
            Kind::Event | Kind::Pipeline => {
                format!("raise {WATCHES} for more, or use --dispatcher uring")
            }
        };
        let (name, max) = (self.kind.name(), show_counted(max as u64, "connection"));
        format!("{name} holds {max} on this machine; {cure}")
    }

    /// How many descriptors so many connections take.
    pub(crate) fn descriptors_of(&self, connections: usize) -> usize {
        match self.kind {
            Kind::Netstack => 0,
            _ => connections,
        }
    }

    /// How many connections it can have on this machine, descriptors apart.
    pub(crate) fn connections_max(&self, workers: usize, machine: &Machine) -> usize {
        let carried = match self.kind {
            Kind::Fiber => fibers_max(machine),
            Kind::Thread => threads_max(machine),
            Kind::Event | Kind::Pipeline | Kind::Netstack => usize::MAX,
        };
        carried.min(self.watched_max(workers, machine))
    }

    /// How many connections have room in so much memory. `None` if that is not known.
    pub(crate) fn connections_in(
        &self,
        memory: Option<u64>,
        has_tls: bool,
        machine: &Machine,
    ) -> usize {
        // Stack, buffers and session of one that waits for its peer, measured under each engine
        // with peers that send half a head and with peers that do not read; what is beyond that
        // counts as connection memory.
        let own_len: u64 = match self.kind {
            Kind::Thread => 64 << 10,
            Kind::Fiber => 16 << 10,
            Kind::Netstack => 8 << 10,
            Kind::Event | Kind::Pipeline => 3 << 10,
        };
        // The first cgroup version does not count the kernel's own structure of a socket.
        let is_v1 = (machine.cgroup_memory_limit_bytes())
            .is_some_and(|(version, _)| version == CgroupVersion::V1);
        let socket_len = if is_v1 { 0 } else { 3 << 10 };
        let tls_len = if has_tls { 6 << 10 } else { 0 };
        let len = own_len + socket_len + tls_len;
        memory.map_or(usize::MAX, |memory| ((memory / len) as usize).max(1))
    }

    /// How many connections it can have epoll watch, if it does so.
    fn watched_max(&self, workers: usize, machine: &Machine) -> usize {
        let dispatcher = self.dispatcher.unwrap_or(DISPATCHER);
        let has_epoll = matches!(dispatcher, Mechanism::Epoll | Mechanism::EpollEdge);
        let watches_each = match self.kind {
            // Each processor on which it has waited watches it until it is closed.
            Kind::Fiber if waits_with_epoll(self.io) => workers.max(1),
            Kind::Event if has_epoll => 1,
            // One that waits for room is watched by its reader and by its writer.
            Kind::Pipeline if has_epoll => 2,
            _ => return usize::MAX,
        };
        let watches = machine.number("proc/sys/fs/epoll/max_user_watches");
        let connections = |watches: u64| {
            let for_connections = watches.saturating_sub(WATCHES_RESERVED) as usize;
            (for_connections / watches_each).max(1)
        };
        watches.map_or(usize::MAX, connections)
    }

    /// The engine with so many workers.
    pub(crate) fn engine(&self, workers: usize) -> ::serve::Engine {
        match self.kind {
            Kind::Thread => ::serve::Engine::Thread,
            Kind::Netstack => ::serve::Engine::Netstack,
            Kind::Fiber => ::serve::Engine::Fiber {
                processors: workers,
                backend: self.io,
            },
            Kind::Event => ::serve::Engine::Event(EventOptions {
                loops: workers,
                dispatcher: self.mechanism(),
                accept: self.accept.unwrap_or(Accept::Own),
                accepts_many: self.multi_accept.unwrap_or(true),
                has_file_threads: self.file_threads.unwrap_or(true),
            }),
            Kind::Pipeline => {
                let said = self.stage_threads.unwrap_or_default();
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

    /// Why a server on it did not start, in one sentence. The kernel's word alone does not say who
    /// denies a ring.
    pub(crate) fn why_not_started(&self, error: &io::Error) -> String {
        let has_loops = matches!(self.kind, Kind::Event | Kind::Pipeline);
        let has_ring = has_loops && self.mechanism() == Mechanism::Uring;
        match has_ring.then(fiber::probe) {
            Some(Err(denied)) => format!("--dispatcher uring: {denied}"),
            _ => why_no_threads("the server", error),
        }
    }

    fn mechanism(&self) -> Mechanism {
        match (self.dispatcher, self.overflow) {
            (Some(Mechanism::RtSig(_)), Some(overflow)) => Mechanism::RtSig(overflow),
            (dispatcher, _) => dispatcher.unwrap_or(DISPATCHER),
        }
    }
}

/// Reads `read=1,session=4,write=1`, or a part of it.
fn stage_threads(text: &str) -> Result<StageThreads, String> {
    let mut threads = StageThreads::default();
    for part in text.split(',') {
        let (stage, number) = part.split_once('=').unwrap_or((part, ""));
        let threads = match stage.trim() {
            "read" => &mut threads.read,
            "session" => &mut threads.session,
            "write" => &mut threads.write,
            _ => return Err(format!("'{part}' is none of read=N, session=N, write=N")),
        };
        *threads = Some(value::count(number.trim(), 1..=WORKERS_MAX)?);
    }
    Ok(threads)
}

// What epoll watches beside connections: the bell and the listeners of each loop or processor.
const WATCHES_RESERVED: u64 = 64;
const WATCHES: &str = "fs.epoll.max_user_watches";

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Fiber => "--engine fiber",
            Kind::Thread => "--engine thread",
            Kind::Event => "--engine event",
            Kind::Pipeline => "--engine pipeline",
            Kind::Netstack => "--engine netstack",
        }
    }
}

/// Whether fibers that are started in this way wait with epoll.
fn waits_with_epoll(io: BackendChoice) -> bool {
    // Asked once: the answer takes a ring and a thread.
    static IS_DENIED: LazyLock<bool> = LazyLock::new(|| fiber::probe().is_err());
    match io {
        BackendChoice::Epoll => true,
        BackendChoice::Uring => false,
        BackendChoice::Auto => *IS_DENIED,
    }
}

fn fibers_max(machine: &Machine) -> usize {
    match fiber::guard_install_supported() {
        true => usize::MAX,
        // Without MADV_GUARD_INSTALL the fiber crate uses at most this share of the mappings.
        false => {
            machine
                .number("proc/sys/vm/max_map_count")
                .unwrap_or(65_530) as usize
                / 4
        }
    }
}

// Room for threads of this process that carry no connection, and for other programs.
const THREADS_RESERVED: u64 = 1024;

fn threads_max(machine: &Machine) -> usize {
    let limits = [
        machine.cgroup_tasks_max(),
        machine.user_threads_max(),
        machine.number("proc/sys/kernel/threads-max"),
        machine.number("proc/sys/kernel/pid_max"),
        // A thread's stack is two mappings with its guard. pthread_attr_setguardsize(3)
        machine
            .number("proc/sys/vm/max_map_count")
            .map(|mappings| mappings / 2),
    ];
    let lowest = limits.into_iter().flatten().min().unwrap_or(32_768);
    (lowest / 2)
        .max(lowest.saturating_sub(THREADS_RESERVED))
        .clamp(1, THREADS_MAX as u64) as usize
}

/// What some flags say together.
#[cfg(test)]
pub(crate) fn choice(flags: &[(&str, &str)]) -> EngineChoice {
    let mut config = crate::command::serve::ServeConfig::default();
    for (flag, text) in flags {
        let row = crate::settings::find::<crate::command::serve::ServeConfig>(flag).unwrap();
        row.set(&mut config, text).unwrap();
    }
    config.common.engine
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::machine::tests::machine;

    const WATCHED: (&str, &str) = ("proc/sys/fs/epoll/max_user_watches", "9000\n");

    /// The row of `--engine` reads the names one by one: one that it forgets would be fibers.
    #[test]
    fn each_name_of_an_engine_is_that_engine() {
        for (name, _) in ENGINES {
            let kind = choice(&[("engine", name)]).kind;
            assert_eq!(kind.name(), format!("--engine {name}"));
        }
    }

    #[test]
    fn an_overflow_is_for_signals() {
        let event = [("engine", "event"), ("rtsig-overflow", "select")];
        let check = |dispatcher| choice(&[event[0], event[1], ("dispatcher", dispatcher)]).check();
        let why = check("poll").unwrap_err();
        assert!(why.contains("add --dispatcher rtsig"), "{why}");
        check("rtsig").unwrap();
    }

    /// Seen: "Resource temporarily unavailable (os error 11)", and nothing else. Cause: the
    /// kernel's word was taken for the reason. Cure: the limit is named.
    #[test]
    fn a_limit_on_threads_is_named() {
        let said = choice(&[]).why_not_started(&io::ErrorKind::WouldBlock.into());
        assert!(said.contains("ulimit -u"), "{said}");
    }

    #[test]
    fn every_choice_is_an_engine_of_its_own() {
        let dispatcher = |flags: &[(&str, &str)]| {
            let flags = [&[("engine", "event")], flags].concat();
            match choice(&flags).engine(3) {
                ::serve::Engine::Event(options) => options.dispatcher.to_string(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(dispatcher(&[]), "epoll-edge");
        for (name, _) in DISPATCHERS {
            assert_eq!(dispatcher(&[("dispatcher", name)]), *name);
        }
        let signals = ("dispatcher", "rtsig");
        let signalfd = dispatcher(&[signals, ("rtsig-overflow", "signalfd")]);
        assert_eq!(signalfd, "rtsig-signalfd");
    }

    /// Nothing tied what the laboratory measures to what there is: a new dispatcher would have been
    /// left out silently.
    #[test]
    fn the_laboratory_measures_every_dispatcher_that_there_is() {
        let names: Vec<&str> = DISPATCHERS.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ::lab::DISPATCHERS);
        for mechanism in Mechanism::ALL {
            let is_offered = match mechanism {
                // How signals go on is another flag, and no engine runs on one-shot.
                Mechanism::RtSig(overflow) => overflow == Overflow::Poll,
                Mechanism::EpollOneShot => false,
                _ => true,
            };
            let name = mechanism.to_string();
            assert_eq!(names.contains(&&*name), is_offered, "{name}");
        }
    }

    #[test]
    fn a_pipeline_has_what_was_said_and_the_rest_from_the_workers() {
        let pipeline = |flags: &[(&str, &str)], workers| {
            let flags = [&[("engine", "pipeline")], flags].concat();
            match choice(&flags).engine(workers) {
                ::serve::Engine::Pipeline(options) => options,
                other => panic!("{other:?}"),
            }
        };
        let usual = PipelineOptions::for_processors(8);
        assert_eq!(pipeline(&[], 8), usual);
        let said = [
            ("stage-threads", "write=3, session=7"),
            ("stage-queue", "5"),
            ("stage-batch", "2"),
            ("dispatcher", "poll"),
        ];
        let expected = PipelineOptions {
            read_threads: usual.read_threads,
            session_threads: 7,
            write_threads: 3,
            queue_limit: 5,
            batch_max: 2,
            dispatcher: Mechanism::Poll,
        };
        assert_eq!(pipeline(&said, 8), expected);
        for wrong in ["", "reed=1", "read", "read=0", "read=1;write=1", "read=1,"] {
            stage_threads(wrong).unwrap_err();
        }
    }

    #[test]
    fn more_connections_than_an_engine_holds_are_refused() {
        let (_root, machine) = machine(&[WATCHED]);
        let check = |flags: &[(&str, &str)]| {
            choice(flags).check_holds("--max-connections", 10_000, 2, &machine)
        };
        let why = check(&[("engine", "thread")]).unwrap_err();
        assert!(
            why.contains("8,192") && why.contains("--engine fiber"),
            "{why}"
        );
        let why = check(&[("engine", "event")]).unwrap_err();
        assert!(why.contains("8,936") && why.contains(WATCHES), "{why}");
        let why = check(&[("engine", "pipeline")]).unwrap_err();
        assert!(why.contains("4,468") && why.contains(WATCHES), "{why}");
        // Each watch but those of bells and listeners.
        let event = choice(&[("engine", "event")]);
        event.check_holds("-c", 8_936, 2, &machine).unwrap();
        event.check_holds("-c", 8_937, 2, &machine).unwrap_err();
        for (name, _) in DISPATCHERS.iter().filter(|it| !it.0.starts_with("epoll")) {
            for engine in ["event", "pipeline"] {
                check(&[("engine", engine), ("dispatcher", name)]).unwrap();
            }
        }
    }

    /// Seen (in review): `--engine fiber --io epoll` took any limit. Cause: only loops were held to
    /// what epoll watches. Cure: fibers are, for each processor that a connection may wait on.
    #[test]
    fn fibers_hold_what_epoll_watches_on_all_their_processors() {
        let (_nothing, silent) = machine(&[]);
        let (_root, machine) = machine(&[WATCHED]);
        let on_epoll = choice(&[("io", "epoll")]);
        for (workers, held) in [(1, 8_936), (2, 4_468), (4, 2_234)] {
            on_epoll.check_holds("-c", held, workers, &machine).unwrap();
            let why = on_epoll.check_holds("-c", held + 1, workers, &machine);
            let why = why.unwrap_err();
            assert!(why.contains(WATCHES) && why.contains("--io uring"), "{why}");
        }
        // A ring watches nothing with epoll.
        let on_uring = choice(&[("io", "uring")]);
        on_uring.check_holds("-c", 10_000, 2, &machine).unwrap();
        // Where the machine does not say.
        on_epoll.check_holds("-c", 10_000, 2, &silent).unwrap();
    }
}
