//! Programs on other runtimes, built here from their sources.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::system::{Start, System};

/// Another runtime that the laboratory can build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRuntime {
    /// Goroutines. Needs Go 1.22 or newer.
    Go,
    /// Tokio's multi-threaded scheduler. Needs cargo.
    Tokio,
    /// may's fibers. Needs cargo.
    May,
    /// Plain kernel threads, with the standard library, parking_lot and bare system calls. Needs
    /// cargo.
    Threads,
}

/// Ways to wake a thread in [`PeerRuntime::Threads`], each a system of its own.
const WAYS_TO_WAKE: [&str; 4] = ["futex", "eventfd", "msg-ring", "msg-ring register"];

/// Common module of the peers in Rust.
const COMMON: (&str, &str) = ("src/common.rs", include_str!("../peers/common.rs"));
/// Module of peers with user-level threads.
const PROGRAMS: (&str, &str) = ("src/programs.rs", include_str!("../peers/programs.rs"));

impl PeerRuntime {
    /// All.
    pub const ALL: [PeerRuntime; 4] =
        [PeerRuntime::Go, PeerRuntime::Tokio, PeerRuntime::May, PeerRuntime::Threads];

    /// `go`.
    pub fn name(self) -> &'static str {
        match self {
            PeerRuntime::Go => "go",
            PeerRuntime::Tokio => "tokio",
            PeerRuntime::May => "may",
            PeerRuntime::Threads => "threads",
        }
    }

    fn sources(self) -> &'static [(&'static str, &'static str)] {
        match self {
            PeerRuntime::Go => &[
                ("main.go", include_str!("../peers/go/main.go")),
                ("go.mod", include_str!("../peers/go/go.mod.txt")),
            ],
            PeerRuntime::Tokio => &[
                ("src/main.rs", include_str!("../peers/tokio/src/main.rs")),
                COMMON,
                PROGRAMS,
                ("Cargo.toml", include_str!("../peers/tokio/Cargo.toml.txt")),
            ],
            PeerRuntime::May => &[
                ("src/main.rs", include_str!("../peers/may/src/main.rs")),
                COMMON,
                PROGRAMS,
                ("Cargo.toml", include_str!("../peers/may/Cargo.toml.txt")),
            ],
            PeerRuntime::Threads => &[
                ("src/main.rs", include_str!("../peers/threads/src/main.rs")),
                ("src/wake.rs", include_str!("../peers/threads/src/wake.rs")),
                COMMON,
                ("Cargo.toml", include_str!("../peers/threads/Cargo.toml.txt")),
            ],
        }
    }

    /// Builds the peer in its own folder below `folder`, unless the same sources were already built
    /// there; returns its systems.
    ///
    /// # Errors
    /// `NotFound` without its tool chain; otherwise the build's output.
    pub fn build(self, folder: &Path) -> io::Result<Vec<System>> {
        let folder = folder.join(self.name());
        let program = folder.join("peer");
        let stamp = folder.join("built-from");
        let sources: String = self.sources().iter().map(|(_, text)| *text).collect();
        let is_built = fs::read_to_string(&stamp).is_ok_and(|built_from| built_from == sources);
        if !is_built || !program.exists() {
            for (name, text) in self.sources() {
                let file = folder.join(name);
                fs::create_dir_all(file.parent().expect("a file in a folder"))?;
                fs::write(file, text)?;
            }
            self.compile(&folder, &program)?;
            fs::write(stamp, sources)?;
        }
        let system = |name: &str, parameters| {
            let start =
                Start::Program { program: program.clone(), arguments: Vec::new(), parameters };
            System::new(name, String::new(), start)
        };
        let mut systems = vec![system(self.name(), Vec::new())];
        if self == PeerRuntime::Tokio {
            systems.push(system("tokio block", vec!["block=1".into()]));
        }
        if self == PeerRuntime::Threads {
            let ways = WAYS_TO_WAKE.iter().enumerate();
            systems.extend(ways.map(|(at, way)| system(way, vec![format!("way={at}").into()])));
        }
        Ok(systems)
    }

    fn compile(self, folder: &Path, program: &Path) -> io::Result<()> {
        let mut command = match self {
            PeerRuntime::Go => {
                let mut go = Command::new("go");
                go.args(["build", "-o"]).arg(program).arg(".");
                go
            }
            PeerRuntime::Tokio | PeerRuntime::May | PeerRuntime::Threads => {
                let mut cargo = Command::new("cargo");
                cargo.args(["build", "--release", "--quiet"]);
                cargo.env("CARGO_TARGET_DIR", folder.join("target"));
                cargo
            }
        };
        let built = command.current_dir(folder).stdin(Stdio::null()).output();
        let built = built.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                let tool = command.get_program().display();
                io::Error::new(error.kind(), format!("{tool} is not installed"))
            }
            _ => error,
        })?;
        if !built.status.success() {
            let said = String::from_utf8_lossy(&built.stderr);
            let said = said.lines().take(3).collect::<Vec<_>>().join("; ");
            return Err(io::Error::other(format!("{} does not build: {said}", self.name())));
        }
        if self != PeerRuntime::Go {
            fs::copy(folder.join("target/release/peer"), program)?;
        }
        Ok(())
    }
}
