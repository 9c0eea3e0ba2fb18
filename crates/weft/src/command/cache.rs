//! `weft cache`: from memcached's command line to a running cache, and its reaction to signals.

mod config;
mod daemon;
mod engine;
mod extended;
mod help;
mod host;
mod memory;
mod metrics;
mod prepare;
mod restart;
mod table;
mod udp;
mod verbose;

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use ::serve::messages;

use crate::failure::Failure;
use crate::operate::{ManagedServer, Part, SignalQueue};
use crate::os::machine::Machine;
use crate::settings::layer::Layer;
use crate::value::{show_count, show_counted, show_size};
pub(crate) use config::CacheConfig;
use engine::Running;
use memory::Share;
use prepare::prepare;
use restart::Restored;
pub(crate) use table::spell_out;

/// Runs a cache until told to stop.
///
/// # Errors
/// If it cannot start, or cannot save the items at the end. See the exit codes.
pub(crate) fn run(typed: Layer) -> Result<(), Failure> {
    let mut out = io::stdout();
    for (long, print) in [
        ("help", help::help as fn(&mut io::Stdout) -> io::Result<()>),
        ("license", help::license),
        ("version", help::version),
    ] {
        if typed.contains_key(long) {
            print(&mut out)?;
            return Ok(out.flush()?);
        }
    }
    let config = CacheConfig::read(typed).map_err(Failure::Usage)?;
    serve(&config)
}

fn serve(config: &CacheConfig) -> Result<(), Failure> {
    let terminal = Terminal(config.service.verbosity);
    config.idle.iter().for_each(|note| terminal.note(note));
    let variables = std::env::vars_os().map(|(name, _)| name);
    let unread = config::unread(variables);
    unread.iter().for_each(|text| terminal.warn(text));
    let share = Share::derive(config, &Machine::this());
    let mut config = config.clone();
    config.connections_max = share.connections_max;
    config.connection_memory_max = share.held_max;
    let config = &config;
    // This must come first: only a single-threaded process may fork and continue.
    let daemon = config.is_daemon.then(daemon::detach).transpose()?;
    let mut signals = SignalQueue::install()?;
    let mut prepared = prepare(config)?;
    let _pid_file = prepared.pid_file.take();
    let places = prepared.places();
    let told = Terminal(config.service.verbosity);
    let tell = move |news: Result<&str, &str>| match news {
        Ok(text) => told.note(text),
        Err(text) => told.warn(text),
    };
    let sandbox = signals.confine(&config.common, prepare::needs(config))?;
    let (running, restored) = Running::start(config, prepared, signals.sender.clone(), tell)?;
    if let Some(warning) = config.common.engine.warning() {
        terminal.warn(&warning);
    }
    let hosted = &running.hosted;
    hosted.warn_of_certificates(|text| terminal.warn(text));
    share.warnings.iter().for_each(|text| terminal.warn(text));
    terminal.tell_of(config, &places, &running);
    terminal.note(&format!("sandbox: {}", sandbox.describe()));
    terminal.tell_restored(config, &restored);
    if let Some(daemon) = daemon {
        daemon.report_up(config.service.verbosity > 0)?;
    }
    let mut caching = Caching { config, running, terminal };
    signals.run_until_stop(&mut caching);
    match &config.memory_file {
        None => Ok(()),
        Some(file) => save(&caching.running, file, &caching.terminal),
    }
}

/// A running cache, as changed by signals.
struct Caching<'a> {
    config: &'a CacheConfig,
    running: Running,
    terminal: Terminal,
}

impl ManagedServer for Caching<'_> {
    fn reload(&mut self) -> Vec<Part> {
        let users = self.running.reload_users(self.config);
        let hosted = &self.running.hosted;
        let certificate = hosted.reload_certificate(|text| self.terminal.warn(text));
        users.into_iter().chain(certificate).collect()
    }

    /// False: in memcached SIGUSR1 is a graceful end that saves the items. Upgrades send it.
    fn dump(&self) -> bool {
        false
    }

    fn open(&self) -> (usize, Duration) {
        let patience = self.config.common.drain_timeout;
        (self.running.hosted.server.connection_count(), patience)
    }

    fn drain(&self) -> usize {
        self.running.drain()
    }

    fn say(&self, text: &str) {
        self.terminal.note(text);
    }

    fn warn(&self, text: &str) {
        self.terminal.warn(text);
    }

    fn say_cut(&self, text: &str) {
        self.terminal.note(text);
    }
}

fn save(running: &Running, file: &Path, terminal: &Terminal) -> Result<(), Failure> {
    let done = running.save(file).map_err(|error| {
        Failure::Running(format!(
            "the items are lost: cannot save them to {}: {error}",
            file.display()
        ))
    })?;
    let (items, size) = (show_counted(done.items, "item"), show_size(done.file_len));
    terminal.note(&format!("{items} saved to {}, {size}", file.display()));
    Ok(())
}

/// Standard error. Without `-v` it gets one line with the listening addresses, and warnings.
struct Terminal(u32);

impl Terminal {
    /// Reports a success.
    fn note(&self, text: &str) {
        if self.0 > 0 {
            write(text);
        }
    }

    /// Reports a failure that the server survived.
    fn warn(&self, text: &str) {
        write(&format!("warning: {text}"));
    }

    fn tell_of(&self, config: &CacheConfig, places: &[String], running: &Running) {
        let memory = show_size(config.store.memory_max);
        write(&format!(
            "weft {} listening on {}; {memory} for items",
            env!("CARGO_PKG_VERSION"),
            places.join(", ")
        ));
        let engine = &config.common.engine;
        let connections = engine.show_connections(config.connections_max);
        self.note(&format!("{}; {connections}", running.hosted.server.describe()));
        if self.0 >= 2 {
            write(&slab_classes(running));
        }
    }

    fn tell_restored(&self, config: &CacheConfig, restored: &Restored) {
        let Some(file) = &config.memory_file else {
            return;
        };
        let file = file.display();
        match restored {
            Restored::Items(found) => {
                let lost = show_count(found.expired + found.refused);
                let items = show_counted(found.items, "item");
                self.note(&format!("{items} from {file}; {lost} more had expired or did not fit"));
            }
            Restored::Nothing => {
                self.note(&format!("{file} does not exist; the cache begins empty"));
            }
            Restored::PutAside { why, aside } => self.warn(&format!(
                "{file} is not used: {why}; it is now {}, and the cache begins empty",
                aside.display()
            )),
        }
    }
}

/// Sizes of the slab classes, as `memcached -vv` prints them.
fn slab_classes(running: &Running) -> String {
    let lens = running.service().store().chunk_lens();
    let line = |(at, (chunk, count)): (usize, (usize, usize))| {
        format!("slab class {:3}: chunk size {chunk:9} perslab {count:7}", at + 1)
    };
    lens.into_iter().enumerate().map(line).collect::<Vec<_>>().join("\n")
}

/// Writes in one call, so that the line does not mix with those of others.
fn write(text: &str) {
    messages::write(&format!("{text}\n"));
}

#[cfg(test)]
pub(crate) fn typed(line: &str) -> Layer {
    let words = ["weft", "cache"].into_iter().chain(line.split_whitespace());
    match crate::args::read(words.map(Into::into)) {
        Ok(crate::args::Invocation::Cache(typed)) => typed,
        Ok(_) => unreachable!("the command is `cache`"),
        Err(error) => panic!("{line}: {error}"),
    }
}
