//! Which engine carries the connections, as flags say it: the same for `weft serve` and `weft
//! cache`.

use ::serve::engine::{Accept, EventOptions, THREADS_MAX};
use event::{Mechanism, Overflow};
use fiber::BackendChoice;

use crate::common::Common;
use crate::machine::Machine;
use crate::settings::{Choices, Setting};
use crate::value::show_count;

const ENGINES: Choices = &[
    ("fiber", "a user-level thread per connection"),
    ("thread", "a kernel thread per connection"),
    ("event", "a few event loops, each for many connections"),
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
        "one thread accepts for all loops, and deals in turn",
    ),
];
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
}

/// What carries the connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    Fiber,
    Thread,
    Event,
}

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
            .help("How fibers do their input and output")
            .more(
                "With auto, the start-up message says which one was taken and why. `weft doctor` \
                 tells what the kernel allows.",
            ),
        Setting::new("dispatcher")
            .chooses(DISPATCHERS, |config: &mut C, text| {
                config.as_mut().engine.dispatcher = text.parse().ok();
                Ok(())
            })
            .derived("epoll-edge")
            .help("How event loops find out which connections are ready")
            .more("With --engine event. The others are there to be compared with epoll-edge."),
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
            .help("What an event loop does when the kernel's queue of signals has overflowed")
            .more("With --dispatcher rtsig."),
        Setting::new("accept")
            .chooses(ACCEPTS, |config: &mut C, text| {
                config.as_mut().engine.accept = Some(match text {
                    "dealt" => Accept::Dealt,
                    _ => Accept::Own,
                });
                Ok(())
            })
            .derived("own")
            .help("How connections come to event loops")
            .more(
                "With --engine event. What comes to a socket that was inherited, or to a Unix \
                 socket, is dealt even with own.",
            ),
        Setting::new("multi-accept")
            .chooses(ON_OFF, |config: &mut C, text| {
                config.as_mut().engine.multi_accept = Some(text == "on");
                Ok(())
            })
            .derived("on")
            .help("Accept all connections that wait before looking around again")
            .more("With --engine event. With off it is one at a time."),
    ];
}

impl EngineChoice {
    /// Finds flags that do not go together.
    ///
    /// # Errors
    /// A sentence with what to change.
    pub(crate) fn check(&self) -> Result<(), String> {
        let is_event = self.kind == Kind::Event;
        let said = [
            ("--dispatcher", self.dispatcher.is_some()),
            ("--rtsig-overflow", self.overflow.is_some()),
            ("--accept", self.accept.is_some()),
            ("--multi-accept", self.multi_accept.is_some()),
            ("--file-threads", self.file_threads.is_some()),
        ];
        if let Some((flag, _)) = said.iter().find(|(_, is_said)| *is_said && !is_event) {
            return Err(format!(
                "{flag} is about event loops, and {} has none; add --engine event",
                self.kind.name()
            ));
        }
        if self.io != BackendChoice::Auto && self.kind != Kind::Fiber {
            return Err(match is_event {
                true => {
                    "--io is about fibers; --engine event waits as --dispatcher says".to_owned()
                }
                false => "--io is about fibers, and --engine thread has none".to_owned(),
            });
        }
        match (self.overflow, self.dispatcher) {
            (None, _) | (Some(_), Some(Mechanism::RtSig(_))) => Ok(()),
            _ => Err(
                "--rtsig-overflow is about signals; add --dispatcher rtsig, or leave it out"
                    .to_owned(),
            ),
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
        machine: &Machine,
    ) -> Result<(), String> {
        let max = self.connections_max(machine);
        if connections <= max {
            return Ok(());
        }
        let (connections, max) = (show_count(connections as u64), show_count(max as u64));
        let cure = match self.kind {
            Kind::Thread => "use --engine fiber or event for more".to_owned(),
            Kind::Fiber => "raise vm.max_map_count for more".to_owned(),
            Kind::Event => format!("raise {WATCHES} for more, or use --dispatcher uring"),
        };
        let name = self.kind.name();
        Err(format!(
            "{flag} {connections}: {name} holds {max} connections on this machine; {cure}"
        ))
    }

    /// How many connections it can have on this machine, descriptors apart.
    pub(crate) fn connections_max(&self, machine: &Machine) -> usize {
        match (self.kind, self.dispatcher.unwrap_or(DISPATCHER)) {
            (Kind::Fiber, _) => fibers_max(machine),
            (Kind::Thread, _) => threads_max(machine),
            (Kind::Event, Mechanism::Epoll | Mechanism::EpollEdge) => {
                let watches = machine.number("proc/sys/fs/epoll/max_user_watches");
                watches.map_or(usize::MAX, |watches| watches as usize)
            }
            (Kind::Event, _) => usize::MAX,
        }
    }

    /// The engine with so many workers.
    pub(crate) fn engine(&self, workers: usize) -> ::serve::Engine {
        match self.kind {
            Kind::Thread => ::serve::Engine::Thread,
            Kind::Fiber => ::serve::Engine::Fiber {
                processors: workers,
                backend: self.io,
            },
            Kind::Event => ::serve::Engine::Event(EventOptions {
                loops: workers,
                dispatcher: match (self.dispatcher, self.overflow) {
                    (Some(Mechanism::RtSig(_)), Some(overflow)) => Mechanism::RtSig(overflow),
                    (dispatcher, _) => dispatcher.unwrap_or(DISPATCHER),
                },
                accept: self.accept.unwrap_or(Accept::Own),
                accepts_many: self.multi_accept.unwrap_or(true),
                has_file_threads: self.file_threads.unwrap_or(true),
            }),
        }
    }
}

const WATCHES: &str = "fs.epoll.max_user_watches";

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Fiber => "--engine fiber",
            Kind::Thread => "--engine thread",
            Kind::Event => "--engine event",
        }
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
    let mut config = crate::serve::ServeConfig::default();
    for (flag, text) in flags {
        let row = crate::settings::find::<crate::serve::ServeConfig>(flag).unwrap();
        row.set(&mut config, text).unwrap();
    }
    config.common.engine
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_do_not_go_together_are_refused_with_what_to_change() {
        let refused = |flags: &[(&str, &str)]| choice(flags).check().unwrap_err();
        for flag in [
            ("dispatcher", "lap"),
            ("rtsig-overflow", "poll"),
            ("accept", "own"),
            ("multi-accept", "off"),
            ("file-threads", "off"),
        ] {
            for engine in ["fiber", "thread"] {
                let why = refused(&[("engine", engine), flag]);
                assert!(why.contains("add --engine event"), "{why}");
                assert!(why.starts_with(&format!("--{} ", flag.0)), "{why}");
            }
        }
        let event = ("engine", "event");
        let why = refused(&[event, ("dispatcher", "poll"), ("rtsig-overflow", "poll")]);
        assert!(why.contains("add --dispatcher rtsig"), "{why}");
        let why = refused(&[event, ("io", "epoll")]);
        assert!(why.contains("--dispatcher"), "{why}");
        choice(&[event, ("dispatcher", "rtsig"), ("rtsig-overflow", "select")])
            .check()
            .unwrap();
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

    #[test]
    fn more_connections_than_an_engine_holds_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let watches = root.path().join("proc/sys/fs/epoll");
        std::fs::create_dir_all(&watches).unwrap();
        std::fs::write(watches.join("max_user_watches"), "9000\n").unwrap();
        let machine = Machine::at(root.path());
        let check = |flags: &[(&str, &str)]| {
            choice(flags).check_holds("--max-connections", 10_000, &machine)
        };
        let why = check(&[("engine", "thread")]).unwrap_err();
        assert!(
            why.contains("8,192") && why.contains("--engine fiber"),
            "{why}"
        );
        let why = check(&[("engine", "event")]).unwrap_err();
        assert!(why.contains("9,000") && why.contains(WATCHES), "{why}");
        for (name, _) in DISPATCHERS.iter().filter(|it| !it.0.starts_with("epoll")) {
            check(&[("engine", "event"), ("dispatcher", name)]).unwrap();
        }
    }
}
