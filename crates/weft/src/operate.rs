//! The process around a server, the same for `weft serve` and `weft cache`: admin endpoint,
//! signals, systemd, listeners, change of user.

mod admin;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, SystemTime};

use ::serve::Server;
use ::serve::engine::netstack::NetstackInterface;
use ::serve::listen::{self, Address, Bound, Inherited};
use ::serve::metrics::MetricsWriter;
use ::serve::tls::Tls;
pub(crate) use admin::{Admin, Route};
use sd_notify::NotifyState;

use crate::common::Common;
use crate::engine::{EngineChoice, EngineKind};
use crate::failure::Failure;
use crate::netstack::refuse_inherited;
use crate::os::machine::why_no_threads;
use crate::os::privileges::{self, Ids};
use crate::os::process;
use crate::os::sandbox::{Needs, Sandbox};
use crate::os::signals::{Signal, Signals};
use crate::value::{show_counted, show_duration};

/// A server and its admin endpoint.
pub(crate) struct Hosted {
    pub(crate) server: Arc<Server>,
    pub(crate) tls: Option<Arc<Tls>>,
    is_draining: Arc<AtomicBool>,
    _admin: Option<Admin>,
}

impl Hosted {
    /// Starts the admin endpoint of a server, and watches the files of its certificates. `more` are
    /// additional paths, `write_more` adds metrics to those of the server and the process, `tell`
    /// reports successes and failures.
    ///
    /// # Errors
    /// A sentence if no thread or descriptor can be created.
    pub(crate) fn new(
        server: Arc<Server>,
        tls: Option<Arc<Tls>>,
        admin: Vec<Bound>,
        more: Vec<Route>,
        write_more: impl Fn(&Server, &mut MetricsWriter) + Send + Sync + 'static,
        tell: impl Fn(Result<&str, &str>) + Send + 'static,
    ) -> Result<Hosted, Failure> {
        if let Some(tls) = &tls {
            let followed = tls.follow(tell);
            followed.map_err(|error| {
                Failure::Running(why_no_threads("the thread of certificates", &error))
            })?;
        }
        let is_draining = Arc::new(AtomicBool::new(false));
        let mut hosted = Hosted { server, tls, is_draining, _admin: None };
        if !admin.is_empty() {
            let started = Admin::start(admin, hosted.routes(more, write_more));
            hosted._admin =
                Some(started.map_err(|error| {
                    Failure::Running(why_no_threads("the admin endpoint", &error))
                })?);
        }
        Ok(hosted)
    }

    fn routes(
        &self,
        more: Vec<Route>,
        write_more: impl Fn(&Server, &mut MetricsWriter) + Send + Sync + 'static,
    ) -> Vec<Route> {
        let fibers = match self.server.inspector() {
            Some(inspector) => Route::fibers(inspector),
            None => Route::no_fibers(&self.server.describe()),
        };
        let server = Arc::clone(&self.server);
        let tls = self.tls.clone();
        let metrics = move |out: &mut MetricsWriter| {
            server.write_metrics(out);
            write_more(&server, out);
            if let Some(tls) = &tls {
                tls.write_metrics(out);
            }
            process::write_metrics(out);
        };
        let is_draining = Arc::clone(&self.is_draining);
        let health = Route::health(move || is_draining.load(Ordering::Relaxed));
        let own = [Route::metrics(metrics), health, fibers];
        own.into_iter().chain(more).collect()
    }

    /// Reads the certificate again, if one is used.
    pub(crate) fn reload_certificate(&self, warn: impl Fn(&str)) -> Option<Part> {
        let reloaded = self.tls.as_ref()?.reload();
        if reloaded.is_ok() {
            self.warn_of_certificates(warn);
        }
        Some(("the certificate", reloaded))
    }

    /// Warns about certificates that clients will refuse.
    pub(crate) fn warn_of_certificates(&self, warn: impl Fn(&str)) {
        let tls = self.tls.iter();
        for warning in tls.flat_map(|tls| tls.warnings(SystemTime::now())) {
            warn(&warning);
        }
    }

    /// Stops accepting, and lets open connections finish within the drain time-out. Returns the
    /// number of connections cut.
    pub(crate) fn drain(&self) -> usize {
        self.is_draining.store(true, Ordering::Relaxed);
        self.server.drain()
    }
}

/// Signals to the process, and client requests with the same meaning.
pub(crate) struct SignalQueue {
    receiver: Receiver<Signal>,
    /// Sender for client requests.
    pub(crate) sender: Sender<Signal>,
    signals: Signals,
}

impl SignalQueue {
    /// Begins to queue signals. Call it before the sockets exist: a program that can connect may
    /// also send a signal.
    ///
    /// # Errors
    /// A sentence if they cannot be queued.
    pub(crate) fn install() -> Result<SignalQueue, Failure> {
        let (sender, receiver) = mpsc::channel();
        Ok(SignalQueue { receiver, sender, signals: Signals::install()? })
    }

    /// Enters the sandbox and starts to receive signals. No thread may be started before, because
    /// it would stay outside.
    ///
    /// # Errors
    /// A sentence if the sandbox is required but not available, or if no thread can be started.
    pub(crate) fn confine(
        &mut self,
        common: &Common,
        mut needs: Needs,
    ) -> Result<Sandbox, Failure> {
        needs.files.extend(common.files_to_remove());
        needs.has_rings = common.engine.may_use_io_uring();
        needs.has_device = common.engine.kind == EngineKind::Netstack;
        let sandbox = Sandbox::enter(common.sandbox, &needs).map_err(Failure::Running)?;
        let sender = self.sender.clone();
        let started = self.signals.start(move |signal| {
            // The receiver is only gone while the process ends.
            let _ = sender.send(signal);
        });
        started.map_err(|error| Failure::Running(why_no_threads("the signals' thread", &error)))?;
        Ok(sandbox)
    }

    /// Notifies systemd that the server is ready, handles signals until one asks to stop, and
    /// drains the server.
    pub(crate) fn run_until_stop(self, server: &mut impl ManagedServer) {
        tell_systemd(&[NotifyState::Ready]);
        while let Ok(signal) = self.receiver.recv() {
            match signal {
                Signal::Reload => reload(server),
                Signal::Dump if server.dump() => {}
                Signal::Dump | Signal::Stop => break,
            }
        }
        stop(server);
    }
}

/// Part of a reload and its result; after an error the part keeps its old state.
pub(crate) type Part = (&'static str, Result<(), String>);

/// A running server, controlled by signals.
pub(crate) trait ManagedServer {
    /// Reloads each part that can change while the server runs.
    fn reload(&mut self) -> Vec<Part>;

    /// Prints the state of the server; `false` if SIGUSR1 means stop instead.
    fn dump(&self) -> bool;

    /// Number of open connections, and the drain time-out.
    fn open(&self) -> (usize, Duration);

    /// Drains the server; returns the number of connections cut.
    fn drain(&self) -> usize;

    /// Reports a success.
    fn say(&self, text: &str);

    /// Reports a failure that the server survived.
    fn warn(&self, text: &str);

    /// Reports connections cut at the end of a drain.
    fn say_cut(&self, text: &str);
}

fn reload(server: &mut impl ManagedServer) {
    // The time distinguishes this READY from an earlier one. sd_notify(3)
    let begun = NotifyState::monotonic_usec_now();
    let states: Vec<_> = [NotifyState::Reloading].into_iter().chain(begun).collect();
    tell_systemd(&states);
    let mut done = Vec::new();
    let mut is_whole = true;
    for (part, result) in server.reload() {
        match result {
            Ok(()) => done.push(part),
            Err(why) => {
                is_whole = false;
                for line in why.lines() {
                    server.warn(&format!("not reloaded: {line}"));
                }
            }
        }
    }
    process::note_reload(is_whole);
    let status = if is_whole {
        server.say("reloaded");
        "reloaded"
    } else {
        if !done.is_empty() {
            server.say(&format!("reloaded nevertheless: {}", done.join(" and ")));
        }
        "running; the last reload failed: see the log"
    };
    tell_systemd(&[NotifyState::Ready, NotifyState::Status(status)]);
}

fn stop(server: &impl ManagedServer) {
    tell_systemd(&[NotifyState::Stopping]);
    let (open, patience) = server.open();
    server.say(&stopping(open, patience));
    let cut = server.drain();
    if cut > 0 {
        let cut = show_counted(cut as u64, "connection");
        server.say_cut(&format!("{cut} cut off"));
    }
}

fn stopping(open: usize, patience: Duration) -> String {
    if open == 0 {
        return "stopping".to_owned();
    }
    let open = show_counted(open as u64, "connection");
    format!("stopping: {open} may finish within {}", show_duration(patience))
}

/// Notifies systemd if it asked for that (`NOTIFY_SOCKET`).
fn tell_systemd(states: &[NotifyState<'_>]) {
    // On failure systemd's own time-out applies; the server continues.
    let _ = sd_notify::notify(states);
}

/// Listening addresses, each with TLS or without.
pub(crate) type NetstackAddresses = Vec<(Address, Option<Arc<Tls>>)>;

/// Opens the sources of connections: for the netstack engine its device, listening at
/// `netstack_addresses` with this `backlog`; otherwise sockets, and those that the engine adds.
///
/// # Errors
/// A sentence with the cause.
pub(crate) fn open(
    common: &Common,
    inherited: Vec<Inherited>,
    backlog: Option<usize>,
    netstack_addresses: impl FnOnce() -> NetstackAddresses,
    listeners: impl FnOnce(Vec<Inherited>) -> Result<Vec<Bound>, Failure>,
) -> Result<(Vec<Bound>, Option<NetstackInterface>), Failure> {
    let EngineChoice { kind, netstack, .. } = &common.engine;
    if *kind == EngineKind::Netstack {
        let host = netstack.open(common.workers(), netstack_addresses(), backlog)?;
        refuse_inherited(&inherited)?;
        return Ok((Vec::new(), Some(host)));
    }
    let mut listeners = listeners(inherited)?;
    common.engine().prepare(&mut listeners)?;
    Ok((listeners, None))
}

/// Returns the inherited listeners, or those that `bind` opens if there are none; both if addresses
/// were configured. `bind` must skip addresses of inherited listeners: systemd may hold the port
/// that the configuration names.
///
/// # Errors
/// Same as `bind`.
pub(crate) fn listeners(
    inherited: Vec<Inherited>,
    listen_is_default: bool,
    bind: impl FnOnce(&[Bound]) -> Result<Vec<Bound>, Failure>,
) -> Result<Vec<Bound>, Failure> {
    let inherited = inherited.into_iter().map(|inherited| inherited.bound);
    let mut listeners: Vec<_> = inherited.collect();
    if listeners.is_empty() || !listen_is_default {
        let more = bind(&listeners)?;
        listeners.extend(more);
    }
    Ok(listeners)
}

/// Listens at each address without a listener in `inherited`.
///
/// # Errors
/// A sentence on the first address that cannot be bound.
pub(crate) fn bind_all(addresses: &[Address], inherited: &[Bound]) -> Result<Vec<Bound>, Failure> {
    let mut bound = Vec::new();
    for address in addresses {
        bound.extend(listen::bind_beside(inherited, address, None).map_err(running)?);
    }
    Ok(bound)
}

/// Changes to another user, after giving it the files of Unix sockets. `remedy` is appended to the
/// error message.
///
/// # Errors
/// The kernel's error and the remedy.
pub(crate) fn become_user<'a>(
    ids: Option<&Ids>,
    sockets: impl IntoIterator<Item = &'a Bound>,
    remedy: &str,
) -> Result<(), Failure> {
    let Some(ids) = ids else { return Ok(()) };
    let user = ids.user;
    // Only root may give a file to another user.
    if rustix::process::geteuid().is_root() {
        for bound in sockets {
            bound.give_to(user, ids.group).map_err(|error| {
                let address = &bound.address;
                Failure::Running(format!("cannot give {address} to user {user}: {error}"))
            })?;
        }
    }
    privileges::drop_to(ids)
        .map_err(|error| Failure::Running(format!("cannot become user {user}: {error}{remedy}")))
}

/// Makes a failure that is not a usage error.
pub(crate) fn running(error: impl ToString) -> Failure {
    Failure::Running(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Seen: a mistake in the file of users prevented the reload of the certificate. Cause: a
    /// reload ended at the first part that failed. Cure: each part is tried.
    #[test]
    fn failed_part_of_a_reload_stops_no_other() {
        struct Parts(Vec<Part>, RefCell<Vec<String>>);
        impl ManagedServer for Parts {
            fn reload(&mut self) -> Vec<Part> {
                std::mem::take(&mut self.0)
            }
            fn dump(&self) -> bool {
                false
            }
            fn open(&self) -> (usize, Duration) {
                (0, Duration::ZERO)
            }
            fn drain(&self) -> usize {
                0
            }
            fn say(&self, text: &str) {
                self.1.borrow_mut().push(text.to_owned());
            }
            fn warn(&self, text: &str) {
                self.say(text);
            }
            fn say_cut(&self, text: &str) {
                self.say(text);
            }
        }
        let check = |parts: Vec<Part>, expected: &[&str]| {
            let mut parts = Parts(parts, RefCell::default());
            reload(&mut parts);
            assert_eq!(*parts.1.borrow(), expected);
        };
        let torn = || ("the users", Err("-Y: torn".to_owned()));
        let whole = || ("the certificate", Ok(()));
        check(vec![whole()], &["reloaded"]);
        check(vec![torn()], &["not reloaded: -Y: torn"]);
        // Seen: the second of two lines with mistakes had no "warning:" before it.
        let two = ("the configuration", Err("a\nb".to_owned()));
        check(vec![two], &["not reloaded: a", "not reloaded: b"]);
        let both = ["not reloaded: -Y: torn", "reloaded nevertheless: the certificate"];
        check(vec![torn(), whole()], &both);
    }

    #[test]
    fn stopping_message_counts_connections() {
        let stopping = |open| stopping(open, Duration::from_secs(25));
        assert_eq!(stopping(0), "stopping");
        assert_eq!(stopping(1), "stopping: 1 connection may finish within 25 s");
        assert!(stopping(1_000).contains("1,000 connections may"));
    }
}
