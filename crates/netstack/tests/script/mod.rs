//! Packet scripts: a conversation with one shard in virtual time, as text.
//!
//! ```text
//!   # RFC 6298 5.5: the time-out doubles.          the first line says what the script shows
//!   config sack off                                before anything else
//!   listen
//!   < S 0 win 65535 mss 1000                       the peer sends a segment
//!   > S. 0 ack 1                                   the shard must send this one, now
//!   < . 1 ack 1 win 65535
//!   write 1000
//!   > P. 1:1000 ack 1                              sequence number : length of the payload
//!   +1s > P. 1:1000 ack 1                          a second later, and nothing before
//!   rto 2s                                         what the connection must say of itself
//! ```
//!
//! Sequence numbers are counted from each end's initial one. Segments have the flags `S F R P .`
//! (`.` is ACK; `U E C` as well), then `SEQ` or `SEQ:LEN`, then, in any order, `ack N`, `win N`,
//! `mss N`, `scale N`, `sackok`, `ts VALUE ECHO`, `sack A-B,C-D`, `urg N`. Of an outgoing segment
//! flags, numbers, `ack` and SACK blocks must be as the script says; `win` and the other options if
//! it names them; `noopt` says that there are none. `ce` is a segment that a router has marked,
//! `ect` an outgoing one that routers may mark, `noect` one that they may not. Own
//! timestamps are milliseconds since the start; those of the peer are its own.
//!
//! `<+` is a segment that comes in one burst with the next one: the shard sends nothing between.
//!
//! A segment that the script does not expect, or not at that time, is a failure.
//!
//! Each script is played over IPv4 and over IPv6, with the same settings.

mod line;
mod world;

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

pub(crate) use line::Line;
use world::World;

/// The shard's address and that of its peers, in each family. RFC 5737, RFC 3849
const ENDS: [(IpAddr, IpAddr); 2] = [
    (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2))),
    (
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2)),
    ),
];

/// A script as it lies in its file.
pub(crate) struct Script {
    /// Relative to the folder of scripts, without its ending.
    pub(crate) name: String,
    /// The first line, without its mark.
    pub(crate) title: String,
    lines: Vec<(usize, String)>,
}

impl Script {
    /// Splits `text` into lines.
    pub(crate) fn new(name: &str, text: &str) -> Script {
        let title = text.lines().next().and_then(|line| line.strip_prefix("# "));
        let title = title.unwrap_or_else(|| panic!("{name}: the first line is no title"));
        let lines = text.lines().enumerate().filter_map(|(at, line)| {
            let line = line.split('#').next().unwrap_or_default().trim();
            (!line.is_empty()).then(|| (at + 1, line.to_owned()))
        });
        Script { name: name.to_owned(), title: title.to_owned(), lines: lines.collect() }
    }

    /// Plays it over each family. The error has the failed line, the difference, and
    /// the earlier events.
    pub(crate) fn run(&self) -> Result<(), String> {
        ENDS.into_iter().try_for_each(|ends| self.run_between(ends))
    }

    fn run_between(&self, ends: (IpAddr, IpAddr)) -> Result<(), String> {
        let mut world = World::new(ends);
        for (number, text) in &self.lines {
            let step = Line::parse(text).and_then(|line| world.step(&line));
            step.map_err(|error| self.failure(&world, *number, text, &error))?;
        }
        let end = world.end();
        end.map_err(|error| self.failure(&world, self.lines.len(), "(the end)", &error))
    }

    fn failure(&self, world: &World, number: usize, text: &str, error: &str) -> String {
        let mut report = format!("{}.txt:{number}: {text}\n    {error}\n", self.name);
        let _ = writeln!(report, "    # {}", self.title);
        let _ = writeln!(report, "    events before the failure, over {}:", world.family());
        for line in world.trace() {
            let _ = writeln!(report, "      {line}");
        }
        report
    }
}

/// All scripts of a folder, in order.
pub(crate) fn all(folder: &Path) -> Vec<Script> {
    let mut scripts = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(open) = folders.pop() {
        for entry in std::fs::read_dir(&open).expect("the folder of scripts") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(folder).expect("within the folder");
            let name = name.with_extension("");
            let text = std::fs::read_to_string(&path).expect("a script");
            scripts.push(Script::new(name.to_str().expect("a name"), &text));
        }
    }
    scripts.sort_by(|a, b| a.name.cmp(&b.name));
    scripts
}
