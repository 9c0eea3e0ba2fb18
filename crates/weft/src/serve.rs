//! `weft serve`: from the configuration to a running server, and what signals do to it.

mod engine;
mod prepare;
mod terminal;

use std::fs;
use std::io;
use std::sync::{Arc, mpsc};

use ::serve::access_log::Target;
use ::serve::listen::{self, Bound};
use ::serve::signals::{Signal, Signals};
use sd_notify::NotifyState;

use crate::Failure;
use crate::config::{self, Fixed, Layer, Resolved, ServeConfig};
use crate::value::{show_count, show_duration, show_size};
use engine::Running;
use prepare::{Limits, Prepared, prepare};
use terminal::Terminal;

/// Serves until told to stop.
///
/// # Errors
/// If it cannot start. See the exit codes.
pub(crate) fn run(flags: Layer) -> Result<(), Failure> {
    let (env, warnings) = config::environment(std::env::vars_os()).map_err(Failure::Usage)?;
    let fixed = Fixed { flags, env };
    let resolved = fixed.resolve().map_err(Failure::Usage)?;
    let config = &resolved.config;
    resolved.check(check).map_err(Failure::Usage)?;
    let terminal = Arc::new(Terminal::new(config.color, config.quiet));
    for warning in &warnings {
        terminal.warn(warning);
    }
    // Before anything of ours takes their numbers. sd_listen_fds(3)
    let inherited = listen::inherited().map_err(|error| Failure::Running(error.to_string()))?;
    // Before the sockets are there: a program that can connect may also send a signal.
    let (signals, asked) = mpsc::channel();
    let _signals = Signals::start(move |signal| {
        // The receiver is gone only while the process ends anyway.
        let _ = signals.send(signal);
    })?;
    let prepared = prepare(config, inherited)?;
    let Prepared {
        listeners,
        admin,
        tls,
        limits,
        pid_file: _pid_file,
    } = prepared;
    let urls = urls(&listeners, &admin);
    let running = Running::start(
        config,
        &limits,
        listeners,
        admin,
        tls,
        Arc::clone(&terminal),
    )?;
    terminal.banner(config, &banner(config, &limits, urls, running.describe()));
    if shows_nothing(config) {
        terminal.say(
            "note: there is no index file here, so / is answered with 403; --listing lists the files instead",
        );
    }
    tell_systemd(&[NotifyState::Ready]);
    Operated {
        fixed,
        resolved,
        limits,
        running,
        terminal,
    }
    .obey(&asked);
    Ok(())
}

/// A running server and what it was made of, so that signals can change it.
struct Operated {
    fixed: Fixed,
    resolved: Resolved,
    limits: Limits,
    running: Running,
    terminal: Arc<Terminal>,
}

impl Operated {
    /// Does what signals ask for, until one says stop.
    fn obey(mut self, asked: &mpsc::Receiver<Signal>) {
        while let Ok(signal) = asked.recv() {
            match signal {
                Signal::Reload => self.reload(),
                Signal::Dump => self.terminal.say(&self.running.dump()),
                Signal::Terminate | Signal::Interrupt | Signal::TerminalGone => break,
            }
        }
        self.stop();
    }

    fn reload(&mut self) {
        // systemd wants to know when it began, to tell this READY from an earlier one. sd_notify(3)
        let begun = NotifyState::monotonic_usec_now();
        let states: Vec<_> = [NotifyState::Reloading].into_iter().chain(begun).collect();
        tell_systemd(&states);
        match self.try_reload() {
            Ok(()) => self.terminal.say("reloaded"),
            // A mistake must not take a running server down: the old configuration goes on.
            Err(why) => self.terminal.warn(&format!("not reloaded: {why}")),
        }
        tell_systemd(&[NotifyState::Ready]);
    }

    fn try_reload(&mut self) -> Result<(), String> {
        let newer = self.fixed.resolve()?;
        check_root(&newer.config)?;
        self.running.reload(&newer.config, &self.limits)?;
        for name in self.resolved.needs_restart(&newer) {
            let warning = format!("`{name}` has changed, which only a restart applies");
            self.terminal.warn(&warning);
        }
        self.resolved = newer;
        Ok(())
    }

    fn stop(&self) {
        tell_systemd(&[NotifyState::Stopping]);
        let open = show_count(self.running.connection_count() as u64);
        let patience = show_duration(self.limits.connections.drain_deadline);
        let terminal = &self.terminal;
        terminal.say(&format!(
            "stopping: {open} connections may finish within {patience}"
        ));
        let cut = self.running.drain();
        if cut > 0 {
            terminal.warn(&format!("{} connections were cut", show_count(cut as u64)));
        }
    }
}

/// Finds the first thing that is wrong with a configuration and can be known without starting: the root, the rules,
/// the files that it names.
///
/// # Errors
/// A sentence with what is wrong and what to do.
pub(crate) fn check(config: &ServeConfig) -> Result<(), String> {
    check_root(config)?;
    prepare::open_tls(config)?;
    engine::check(config)
}

fn check_root(config: &ServeConfig) -> Result<(), String> {
    let root = config.root.display();
    let meta = fs::metadata(&config.root).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            format!("there is no directory '{root}'; name the one to serve: weft serve DIR")
        }
        _ => format!("cannot look at '{root}': {error}"),
    })?;
    match meta.is_dir() {
        true => Ok(()),
        false => Err(format!(
            "'{root}' is a file; name the directory to serve: weft serve DIR"
        )),
    }
}

/// Whether the first page that a visitor sees is a refusal: the directory has no index file, and nothing takes its place.
fn shows_nothing(config: &ServeConfig) -> bool {
    let has_index = || {
        config
            .index
            .iter()
            .any(|name| config.root.join(name).exists())
    };
    !config.listing && config.spa.is_none() && !has_index()
}

/// The lines of the start-up message, as name and text.
type Lines = Vec<(&'static str, String)>;

fn banner(config: &ServeConfig, limits: &Limits, mut lines: Lines, engine: String) -> Lines {
    lines.push(("engine", engine));
    let connections = show_count(limits.connections.connections_max as u64);
    let memory = show_size(limits.memory_budget_bytes);
    lines.push((
        "limits",
        format!("{connections} connections, {memory} for the bytes of files"),
    ));
    match &config.access_log {
        None => {}
        Some(Target::Stdout) => lines.push(("log", "standard output".to_owned())),
        Some(Target::File(path)) => lines.push(("log", path.display().to_string())),
    }
    lines
}

fn urls(listeners: &[Bound], admin: &[Bound]) -> Lines {
    let site = listeners
        .iter()
        .flat_map(Bound::urls)
        .map(|url| ("url", url));
    site.chain(admin.iter().flat_map(Bound::urls).map(|url| ("admin", url)))
        .collect()
}

/// Does nothing unless systemd asked for it (`NOTIFY_SOCKET`).
fn tell_systemd(states: &[NotifyState<'_>]) {
    // If systemd does not listen, it finds out by its own time-out; serving goes on.
    let _ = sd_notify::notify(states);
}
