//! Keys of `--engine`: one table for its parser and its manual.

use std::io::{self, Write};
use std::str::FromStr;
use std::time::Duration;

use ::serve::engine::Accept;
use fiber::BackendChoice;
use netstack::tcp::CongestionControl;

use super::{EngineChoice, EngineKind, FIBERS_MAX, WORKERS_MAX};
use crate::netstack::{MTU_MAX, gateway, own_address};
use crate::settings::{Setting, put};
use crate::value::{self, write_row};

/// An engine: its name and its keys.
struct Engine {
    name: &'static str,
    kind: EngineKind,
    help: &'static str,
    keys: &'static [Key],
}

/// A key of an engine.
struct Key {
    name: &'static str,
    /// Words separated by bars, or a placeholder for any other value.
    values: &'static str,
    default: &'static str,
    help: &'static str,
    set: Set,
}

/// Puts the value of a key into the choice.
type Set = fn(&mut EngineChoice, &str) -> Result<(), String>;

// Longest queue or batch; a longer one is a typing error.
const STAGE_QUEUE_MAX: usize = 1_000_000;
const STAGE_BATCH_MAX: usize = 10_000;

const ENGINES: &[Engine] = &[
    Engine {
        name: "fiber",
        kind: EngineKind::Fiber,
        help: "a user-level thread per connection; the default",
        keys: &[
            Key {
                name: "io",
                values: "auto|uring|epoll",
                default: "auto",
                help: "input and output of fibers; auto is io_uring if the kernel allows it, else \
                       epoll (`weft doctor` tells which)",
                set: |choice, text| {
                    choice.io = match text {
                        "uring" => BackendChoice::Uring,
                        "epoll" => BackendChoice::Epoll,
                        _ => BackendChoice::Auto,
                    };
                    Ok(())
                },
            },
            Key {
                name: "fibers",
                values: "N",
                default: "one per connection",
                help: "fixed number of connection fibers, made at start; each accepts a \
                       connection, serves it to its end and accepts the next",
                set: put!(fibers = Some value::up_to::<FIBERS_MAX, _>),
            },
        ],
    },
    Engine {
        name: "thread",
        kind: EngineKind::Thread,
        help: "a kernel thread per connection",
        keys: &[Key {
            name: "threads",
            values: "N",
            default: "one per connection",
            help: "fixed number of connection threads, made at start",
            set: put!(fibers = Some value::up_to::<FIBERS_MAX, _>),
        }],
    },
    Engine {
        name: "event",
        kind: EngineKind::Event,
        help: "event loops, --workers of them, each for many connections",
        keys: &[
            DISPATCHER,
            Key {
                name: "fdm-live",
                values: "N",
                default: "3",
                help: "with dispatcher=fdm: N of its paper, 3 to 10",
                set: |choice, text| {
                    choice.fdm.live = Some(value::count(text, 3..=10)? as u32);
                    Ok(())
                },
            },
            Key {
                name: "fdm-nap",
                values: "MICROSECONDS",
                default: "500",
                help: "with dispatcher=fdm: sleep while nothing is ready",
                set: |choice, text| {
                    let micros = value::count(text, 1..=100_000)?;
                    choice.fdm.nap = Some(Duration::from_micros(micros as u64));
                    Ok(())
                },
            },
            Key {
                name: "accept",
                values: "own|distributed",
                default: "own",
                help: "own: each loop accepts from its own socket (SO_REUSEPORT); distributed: \
                       one thread accepts, and gives each connection to the loop with the fewest. \
                       Inherited and Unix sockets are always distributed",
                set: |choice, text| {
                    choice.accept = Some(match text {
                        "distributed" => Accept::Distributed,
                        _ => Accept::Own,
                    });
                    Ok(())
                },
            },
            Key {
                name: "multi-accept",
                values: "on|off",
                default: "on",
                help: "accept pending connections in batches (64, doubling to 1,024, for at most \
                       2 ms) before returning to the loop; off: one at a time",
                set: put!(multi_accept = Some value::switch),
            },
            Key {
                name: "file-threads",
                values: "on|off",
                default: "on",
                help: "read files that are not in memory on separate threads; off: the loop \
                       waits for the disk",
                set: put!(file_threads = Some value::switch),
            },
        ],
    },
    Engine {
        name: "pipeline",
        kind: EngineKind::Pipeline,
        help: "stages with their own threads and queues, as in SEDA",
        keys: &[
            Key {
                name: "read-threads",
                values: "N",
                default: "1 per 4 workers",
                help: "threads of the read stage",
                set: put!(stage_threads.read = Some value::up_to::<WORKERS_MAX, _>),
            },
            Key {
                name: "session-threads",
                values: "N",
                default: "--workers",
                help: "threads of the session stage",
                set: put!(stage_threads.session = Some value::up_to::<WORKERS_MAX, _>),
            },
            Key {
                name: "write-threads",
                values: "N",
                default: "1 per 4 workers",
                help: "threads of the write stage",
                set: put!(stage_threads.write = Some value::up_to::<WORKERS_MAX, _>),
            },
            Key {
                name: "queue",
                values: "N",
                default: "1024",
                help: "capacity of the queue in front of each stage; while one is full, the stage \
                       before it waits, and nothing is dropped",
                set: put!(stage_queue = Some value::up_to::<STAGE_QUEUE_MAX, _>),
            },
            Key {
                name: "batch",
                values: "N",
                default: "32",
                help: "connections that a thread takes from its queue at a time",
                set: put!(stage_batch = Some value::up_to::<STAGE_BATCH_MAX, _>),
            },
            DISPATCHER,
        ],
    },
    Engine {
        name: "netstack",
        kind: EngineKind::Netstack,
        help: "TCP/IP in this process, on its own network device",
        keys: &[
            Key {
                name: "device",
                values: "KIND:NAME",
                default: "",
                help: "required; tap:NAME makes the interface if it does not exist; packet:NAME \
                       and xdp:NAME use one that exists, such as a network card or one end of a \
                       veth. With tap and xdp, each worker uses its own queue. Needs root, or \
                       CAP_NET_ADMIN (a tap made for another user), CAP_NET_RAW (packet), both \
                       and CAP_BPF (xdp)",
                set: put!(netstack.device = Some str::parse),
            },
            Key {
                name: "address",
                values: "ADDRESS/PREFIX",
                default: "",
                help: "required; an address that the kernel does not have, and the prefix length \
                       of its link; may be repeated",
                set: put!(netstack.addresses += own_address),
            },
            Key {
                name: "gateway",
                values: "ADDRESS",
                default: "",
                help: "default gateway; may be given once for IPv4 and once for IPv6, where a \
                       router may also advertise itself",
                set: put!(netstack.gateways += gateway),
            },
            Key {
                name: "mtu",
                values: "N",
                default: "the interface's",
                help: "longest packet in bytes; at most the interface's",
                set: put!(netstack.mtu = Some value::up_to::<MTU_MAX, _>),
            },
            Key {
                name: "congestion",
                values: "cubic|newreno",
                default: "cubic",
                help: "TCP congestion control (RFC 9438; RFC 5681 and 6582)",
                set: |choice, text| {
                    choice.netstack.congestion = match text {
                        "newreno" => CongestionControl::NewReno,
                        _ => CongestionControl::Cubic,
                    };
                    Ok(())
                },
            },
            Key {
                name: "checksums",
                values: "precomputed|computed",
                default: "precomputed",
                help: "with device=xdp: checksums of files in memory are made from a table that \
                       is kept beside each; computed: from the bytes, whenever they are sent",
                set: |choice, text| {
                    choice.netstack.computes_checksums = text == "computed";
                    Ok(())
                },
            },
        ],
    },
];

/// Keys that may be repeated with different values.
const REPEATABLE: [&str; 2] = ["address", "gateway"];

const DISPATCHER: Key = Key {
    name: "dispatcher",
    values: "select|poll|fdm|lap|rtsig|rtsig-kept-poll|rtsig-select|rtsig-signalfd|epoll|epoll-edge|uring",
    default: "epoll-edge",
    help: "readiness notification of the loops",
    set: |choice, text| {
        choice.dispatcher = text.parse().ok();
        Ok(())
    },
};

impl<C: AsMut<EngineChoice> + 'static> Setting<C> {
    /// The setting `--engine`, for both commands.
    pub(crate) const ENGINE: Setting<C> = Setting::new("engine")
        .takes("NAME[:KEY=VALUE,...]", |config: &mut C, text| {
            *config.as_mut() = text.parse()?;
            Ok(())
        })
        .starts_as("fiber")
        .help("Concurrency model: fiber, thread, event, pipeline or netstack")
        .more("`--engine help` lists the keys of each. All serve the same bytes.");
}

impl FromStr for EngineChoice {
    type Err = String;

    /// Parses `event` or `event:dispatcher=lap,accept=distributed`.
    fn from_str(text: &str) -> Result<EngineChoice, String> {
        let (name, pairs) = match text.split_once(':') {
            Some((name, pairs)) => (name, Some(pairs)),
            None => (text, None),
        };
        let engine = ENGINES.iter().find(|engine| engine.name == name);
        let engine = engine.ok_or_else(|| {
            if name.contains(['=', ',']) {
                return format!("'{name}' is not an engine; keys follow a colon: fiber:io=epoll");
            }
            let names = names().collect::<Vec<_>>().join(", ");
            format!("'{name}' is not an engine: choose one of {names}; --engine help tells more")
        })?;
        let mut choice = EngineChoice { kind: engine.kind, ..EngineChoice::default() };
        let Some(pairs) = pairs else {
            return Ok(choice);
        };
        let mut given = Vec::new();
        for (at, pair) in pairs.split(',').enumerate() {
            if pair.trim().is_empty() {
                let before = if at == 0 { ':' } else { ',' };
                return Err(format!("a key is missing after '{before}'"));
            }
            let key = engine.set(&mut choice, pair)?;
            if given.contains(&key) && !REPEATABLE.contains(&key) {
                return Err(format!("{key} is given twice; keep one of them"));
            }
            given.push(key);
        }
        Ok(choice)
    }
}

impl Engine {
    /// Sets the key of a pair `KEY=VALUE`; returns the key.
    fn set(&self, choice: &mut EngineChoice, pair: &str) -> Result<&'static str, String> {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (name.trim(), value.trim());
        let Some(key) = self.keys.iter().find(|key| key.name == name) else {
            let keys = self.keys.iter().map(|key| key.name);
            let keys = keys.collect::<Vec<_>>().join(", ");
            let engine = self.name;
            return Err(format!("{engine} has no key '{name}'; its keys: {keys}"));
        };
        let words: Vec<_> = key.values.split('|').collect();
        if value.is_empty() {
            return Err(format!("{name} needs a value: {name}={}", key.values));
        }
        if words.len() > 1 && !words.contains(&value) {
            let words = words.join(", ");
            return Err(format!("{name}: '{value}' is not one of {words}"));
        }
        (key.set)(choice, value).map_err(|why| format!("{name}: {why}"))?;
        Ok(key.name)
    }
}

/// Names of the engines.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    ENGINES.iter().map(|engine| engine.name)
}

const COLUMN: usize = 27;
const WIDTH: usize = 80;

/// Writes the output of `--engine help`: each engine and its keys.
///
/// # Errors
/// Errors of `out`.
pub(crate) fn write_manual(out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "--engine NAME[:KEY=VALUE,...]")?;
    for engine in ENGINES {
        writeln!(out, "\n{}: {}", engine.name, engine.help)?;
        for key in engine.keys {
            let default = match key.default {
                "" => String::new(),
                default => format!(" [default: {default}]"),
            };
            let mut usage = format!("  {}={}", key.name, key.values);
            if usage.len() > WIDTH
                && let Some(bar) = usage[..WIDTH].rfind('|')
            {
                // The other words are aligned below the first one.
                let rest = usage.split_off(bar + 1);
                writeln!(out, "{usage}")?;
                usage = format!("{:1$}{rest}", "", key.name.len() + 3);
            }
            let text = format!("{}{default}", key.help);
            write_row(out, &usage, COLUMN, WIDTH, &text)?;
        }
    }
    let examples = "\n--engine event:dispatcher=lap,accept=distributed\n\
                    --engine netstack:device=tap:weft0,address=10.9.0.2/24";
    writeln!(out, "{examples}")
}

#[cfg(test)]
mod tests {
    use super::super::choice;
    use super::*;
    use crate::command::serve::ServeConfig;
    use crate::hints::MOVED;
    use crate::settings::find;

    fn refusal(text: &str) -> String {
        text.parse::<EngineChoice>().unwrap_err()
    }

    #[test]
    fn mistakes_name_what_there_is() {
        for (text, said) in [
            ("fibre", "'fibre' is not an engine: choose one of fiber, thread"),
            ("", "'' is not an engine"),
            ("fiber:dispatcher=lap", "fiber has no key 'dispatcher'; its keys: io, fibers"),
            ("event:io=epoll", "event has no key 'io'; its keys: dispatcher, fdm-live,"),
            ("event:accept", "accept needs a value: accept=own|distributed"),
            ("event:accept=dealt", "accept: 'dealt' is not one of own, distributed"),
            ("pipeline:queue=0", "queue: '0' is not a whole number from 1"),
            ("netstack:mtu=70000", "mtu: '70000' is not a whole number"),
            ("fiber,io=epoll", "'fiber,io=epoll' is not an engine; keys follow a colon"),
            ("io=epoll", "'io=epoll' is not an engine; keys follow a colon"),
        ] {
            assert!(refusal(text).starts_with(said), "{text}: {}", refusal(text));
        }
    }

    #[test]
    fn each_word_and_default_of_a_key_is_right() {
        for engine in ENGINES {
            assert_eq!(choice(engine.name).kind, engine.kind);
            for key in engine.keys {
                let words = key.values.split('|');
                let is_choice = key.values.contains('|');
                let words: Vec<_> = words.filter(|_| is_choice).collect();
                assert!(words.is_empty() || words.contains(&key.default));
                for word in words {
                    choice(&format!("{}:{}={word}", engine.name, key.name));
                }
            }
        }
    }

    /// Seen: `event:dispatcher=lap,dispatcher=poll` used the last one, and `event:` was `event`.
    #[test]
    fn repeated_and_missing_keys_are_refused() {
        for (text, said) in [
            ("event:dispatcher=lap,dispatcher=poll", "dispatcher is given twice; keep one of them"),
            ("fiber:io=auto,fibers=2,io=auto", "io is given twice"),
            ("event:", "a key is missing after ':'"),
            ("event:,", "a key is missing after ':'"),
            ("event:dispatcher=lap,", "a key is missing after ','"),
        ] {
            assert!(refusal(text).starts_with(said), "{text}: {}", refusal(text));
        }
        let two = choice("netstack:address=10.9.0.2/24,address=fd00:9::2/64");
        assert_eq!(two.netstack.addresses.len(), 2);
    }

    /// A form that is shown can be pasted.
    #[test]
    fn new_forms_of_moved_settings_are_right() {
        for (_, form) in MOVED.rows() {
            choice(form).check().unwrap();
        }
        assert!(MOVED.names().all(|name| find::<ServeConfig>(name).is_none()));
    }

    #[test]
    fn the_help_shows_every_key_and_fits() {
        let mut text = Vec::new();
        write_manual(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let joined = text.replace("|\n             ", "|");
        for key in ENGINES.iter().flat_map(|engine| engine.keys) {
            let usage = format!("\n  {}={}", key.name, key.values);
            assert!(joined.contains(&usage), "{usage}");
        }
        let longest = text.lines().max_by_key(|line| line.len()).unwrap();
        assert!(longest.len() <= WIDTH, "{longest}");
    }
}
