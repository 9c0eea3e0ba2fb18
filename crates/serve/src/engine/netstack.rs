//! The netstack engine: TCP/IP in this process, and sessions inline in its loop. No connection has
//! a socket.
//!
//! ```text
//!                    ┌──────────────────── one loop ─────────────────────┐
//!  device ─ frames ─▶│ shard: TCP ─▶ connections: carriages ─▶ flights   │◀─ letters ─ threads that
//!         ◀─ frames ─│      ▲                                     │      │     work and read
//!                    │      └── asks for the bytes of a segment ──┘      │
//!                    └───────────────────────────────────────────────────┘
//! ```
//!
//! Each loop is a kernel thread with a queue of the device and a shard of the host, which share
//! nothing with those of other loops: a connection's segments come to the queue of its loop. The
//! loop waits for frames, letters and the next timer with poll(2), and for nothing else.
//!
//! In the second form ([`Handlers::Fiber`]) each loop is a fiber of a stack of [`sockets`], and each
//! session runs on a fiber of its own.
//!
//! `worker` (the loop) · `connection` (what it goes on with) · `flight` (what was handed to TCP and
//! is not acknowledged) · `figures` (what the shard counts) · `fibers` (the second form).

mod connection;
mod fibers;
mod figures;
mod flight;
#[cfg(test)]
mod tests;
mod worker;

use std::fmt;
use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::netstack::Netstack;
use ::netstack::interface_config::{DeviceQueue, InterfaceConfig, InterfaceError};
use ::netstack::stack::{Backlog, ShardLimits};
use ::netstack::tcp::TcpConfig;
use session::Session;

use super::admission::{Admission, Opens, Start};
use super::loops::{Gate, Loop, Loops};
use super::pool::REFUSERS;
use crate::listen;
use crate::messages;
use crate::metrics::MetricsWriter;
use crate::tls::Tls;
pub(crate) use fibers::NetstackFibers;
use figures::Figures;
use worker::Worker;

/// Where sessions run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Handlers {
    /// In the loop that has the netstack.
    #[default]
    Inline,
    /// On a fiber for each connection.
    Fiber,
}

/// A network interface with its device open, and the listeners on it.
pub struct NetstackInterface {
    shards: Vec<Netstack<DeviceQueue>>,
    doors: Vec<Door>,
    backlog: Backlog,
    interface: InterfaceConfig,
}

/// Where connections come to a netstack.
#[derive(Clone, Debug)]
pub struct Door {
    /// One of the host's addresses; `0.0.0.0` for all of IPv4, `[::]` for all.
    pub address: SocketAddr,
    /// TLS, if it is spoken there.
    pub tls: Option<Arc<Tls>>,
}

impl Door {
    /// Whether it takes connections to `own`, one of the host's addresses.
    pub fn takes(&self, own: IpAddr) -> bool {
        let door = self.address.ip();
        let is_for_all = door.is_unspecified() && (door.is_ipv6() || own.is_ipv4());
        door == own || is_for_all
    }
}

/// How many connections may be half open at a port, or wait to be accepted, if nothing is said:
/// Linux' `net.core.somaxconn`.
const BACKLOG: usize = 4096;

impl NetstackInterface {
    /// Opens the device, with a queue for each of `shards`. Connections are started with
    /// `tcp`; `backlog` is how many may wait at each port.
    ///
    /// # Errors
    /// What is wrong with the description, or what the kernel says to the device.
    pub fn open(
        interface: &InterfaceConfig,
        shards: usize,
        tcp: TcpConfig,
        doors: Vec<Door>,
        backlog: Option<usize>,
    ) -> Result<NetstackInterface, InterfaceError> {
        let queue_max = backlog.unwrap_or(BACKLOG).clamp(1, BACKLOG);
        Ok(NetstackInterface {
            shards: interface.open(shards, tcp, ShardLimits::default())?,
            doors,
            backlog: Backlog {
                syn_queue_max: queue_max,
                accept_queue_max: queue_max,
            },
            interface: interface.clone(),
        })
    }

    /// Where it listens, with each address of the host in the place of those that stand for all.
    pub fn addresses(&self) -> impl Iterator<Item = (SocketAddr, bool)> {
        let own = self.interface.addresses.iter().map(|prefix| prefix.address);
        self.doors.iter().flat_map(move |door| {
            let taken = own.clone().filter(|own| door.takes(*own));
            let port = door.address.port();
            taken.map(move |own| (SocketAddr::new(own, port), door.tls.is_some()))
        })
    }

    /// What to type into a browser to get there.
    pub fn urls(&self) -> impl Iterator<Item = String> {
        (self.addresses()).map(|(address, is_secure)| listen::url(address, is_secure))
    }
}

impl fmt::Debug for NetstackInterface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetstackInterface")
            .field("interface", &self.interface)
            .field("shards", &self.shards.len())
            .finish_non_exhaustive()
    }
}

/// What all loops share.
struct Hall<O> {
    admission: Admission<O>,
    gate: Arc<Gate>,
    doors: Vec<Door>,
}

impl<O> Hall<O> {
    fn new(admission: Admission<O>, doors: Vec<Door>, loops: usize) -> Hall<O> {
        let refusers = if admission.has_refusal() { REFUSERS } else { 0 };
        let open_max = admission.shared.limits.connections_max;
        Hall {
            gate: Arc::new(Gate::new(open_max.saturating_add(refusers), loops)),
            admission,
            doors,
        }
    }

    /// Which door takes a connection to this address.
    fn door_of(&self, own: IpAddr, port: u16) -> Option<usize> {
        door_of(&self.doors, own, port)
    }
}

fn door_of(doors: &[Door], own: IpAddr, port: u16) -> Option<usize> {
    let is_it = |door: &Door| door.address.port() == port && door.takes(own);
    doors.iter().position(is_it)
}

/// How often it is told that the device cannot send, at most: frames may come all the while.
const SENDING_FAILURE_EVERY: Duration = Duration::from_secs(10);

/// What a loop tells of its device: the first failure until frames have come again.
#[derive(Default)]
struct Complaints {
    is_told: bool,
    /// That it cannot send is not told again before.
    sending_at: Option<Instant>,
}

impl Complaints {
    fn has_received(&mut self, frames: &io::Result<usize>) {
        match frames {
            Err(failure) => self.tell(failure),
            Ok(1..) => self.is_told = false,
            Ok(_) => {}
        }
    }

    /// An AF_XDP socket brings nothing, and reports nothing, when its interface is down or gone.
    fn cannot_send(&mut self, failure: &io::Error, now: Instant) {
        if self.sending_at.is_none_or(|at| now >= at) {
            self.sending_at = Some(now + SENDING_FAILURE_EVERY);
            self.tell(failure);
        }
    }

    fn tell(&mut self, failure: &io::Error) {
        if !mem::replace(&mut self.is_told, true) {
            complain(failure);
        }
    }
}

fn complain(failure: &io::Error) {
    messages::write(&format!(
        "the netstack's device brings nothing: {failure}; it is tried again\n"
    ));
}

/// `netstack on tap:weft0, 1 shard, 10.9.0.2/24`
fn describe(interface: &InterfaceConfig, shards: usize) -> String {
    let InterfaceConfig {
        device, addresses, ..
    } = interface;
    let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    let shards = match shards {
        1 => "1 shard".to_owned(),
        count => format!("{count} shards"),
    };
    format!("netstack on {device}, {shards}, {}", addresses.join(", "))
}

/// The engine at work.
pub(crate) struct Netstacks {
    pub(crate) loops: Loops,
    /// Of each loop.
    figures: Vec<Arc<Figures>>,
    interface: InterfaceConfig,
}

impl Netstacks {
    /// # Errors
    /// What the kernel says to new threads and descriptors.
    pub(crate) fn start<S: Session + 'static, O: Opens<S>>(
        opened: NetstackInterface,
        start: Start<O>,
    ) -> io::Result<Netstacks> {
        let NetstackInterface {
            shards,
            doors,
            backlog,
            interface,
        } = opened;
        let hall = Arc::new(Hall::new(start.admission, doors, shards.len()));
        let mut netstacks = Netstacks {
            // The kernel has no socket of it.
            loops: Loops::behind(&hall.gate, &hall.admission.shared, Vec::new()),
            figures: Vec::new(),
            interface,
        };
        for (at, netstack) in shards.into_iter().enumerate() {
            let (own, figures) = (Loop::new()?, Arc::default());
            netstacks.figures.push(Arc::clone(&figures));
            let name = at.to_string();
            netstacks.loops.named.push((name, Arc::clone(&own)));
            let hall = Arc::clone(&hall);
            let make = move || Ok(Worker::new(hall, own, figures, netstack, backlog));
            let name = format!("netstack {at}");
            netstacks.loops.threads.spawn(name, make, Worker::run)?;
        }
        Ok(netstacks)
    }

    pub(crate) fn describe(&self) -> String {
        describe(&self.interface, self.figures.len())
    }

    /// What each loop and its shard have counted.
    pub(crate) fn dump(&self) -> String {
        self.loops.dump()
            + &self
                .figures()
                .map(|(at, figures)| figures.line(at))
                .collect::<String>()
    }

    pub(crate) fn write_metrics(&self, out: &mut MetricsWriter) {
        self.loops.write_metrics(out);
        for (at, figures) in self.figures() {
            figures.write_metrics(at, out);
        }
    }

    fn figures(&self) -> impl Iterator<Item = (&str, &Figures)> {
        let names = self.loops.named.iter().map(|(name, _)| name.as_str());
        names.zip(self.figures.iter().map(Arc::as_ref))
    }
}
