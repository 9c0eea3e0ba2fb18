//! The netstack engine: in-process TCP/IP, with sessions inline in its loop. Connections have no
//! sockets.
//!
//! ```text
//!                    ┌────────────────────────── one loop ──────────────────────────┐
//!  device ─ frames ─▶│ shard: TCP ─▶ connections: machines ─▶ retransmit buffers    │◀─ messages ─ threads
//!         ◀─ frames ─│      ▲                                         │             │   that work and read
//!                    │      └─── asks for the bytes of a segment ─────┘             │
//!                    └──────────────────────────────────────────────────────────────┘
//! ```
//!
//! Each loop is a kernel thread with a queue of the device and a shard of the host, and shares
//! nothing with other loops: a connection's segments arrive in the queue of its loop. The loop
//! waits with poll(2) for frames, messages and the next timer, and for nothing else.
//!
//! `event_loop` (the loop) · `connection` (one of its connections) · `retransmit_buffer` (bytes
//! passed to TCP and not yet acknowledged) · `figures` (the shard's counters).

mod connection;
mod event_loop;
mod figures;
mod retransmit_buffer;
#[cfg(test)]
mod tests;

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

use super::admission::{Opens, Start};
use super::reactor::{EngineContext, LoopHandle, Loops};
use crate::listen;
use crate::messages;
use crate::metrics::MetricsWriter;
use crate::tls::Tls;
use event_loop::EventLoop;
use figures::Figures;

/// A network interface with its opened device, and the listeners on it.
pub struct NetstackInterface {
    shards: Vec<Netstack<DeviceQueue>>,
    listeners: Vec<NetstackListener>,
    backlog: Backlog,
    interface: InterfaceConfig,
}

/// A listener of a netstack.
#[derive(Clone, Debug)]
pub struct NetstackListener {
    /// An address of the host; `0.0.0.0` for all of IPv4, `[::]` for all.
    pub address: SocketAddr,
    /// TLS, if it is used there.
    pub tls: Option<Arc<Tls>>,
}

impl NetstackListener {
    /// True if it accepts connections to `own`, an address of the netstack.
    pub fn takes(&self, own: IpAddr) -> bool {
        let listener = self.address.ip();
        let is_for_all = listener.is_unspecified() && (listener.is_ipv6() || own.is_ipv4());
        listener == own || is_for_all
    }
}

/// Default limit, per port, on half-open connections and on those not yet accepted: Linux'
/// `net.core.somaxconn`.
const BACKLOG: usize = 4096;

impl NetstackInterface {
    /// Opens the device, with one queue per shard. `tcp` configures connections; `backlog` is the
    /// number that may wait at each port.
    ///
    /// # Errors
    /// The mistake in the description, or the kernel's error for the device.
    pub fn open(
        interface: &InterfaceConfig,
        shards: usize,
        tcp: TcpConfig,
        listeners: Vec<NetstackListener>,
        backlog: Option<usize>,
    ) -> Result<NetstackInterface, InterfaceError> {
        let queue_max = backlog.unwrap_or(BACKLOG).clamp(1, BACKLOG);
        Ok(NetstackInterface {
            shards: interface.open(shards, tcp, ShardLimits::default())?,
            listeners,
            backlog: Backlog { syn_queue_max: queue_max, accept_queue_max: queue_max },
            interface: interface.clone(),
        })
    }

    /// Returns the listening addresses, and whether each uses TLS. `0.0.0.0` and `[::]` are
    /// expanded.
    pub fn addresses(&self) -> impl Iterator<Item = (SocketAddr, bool)> {
        let own = self.interface.addresses.iter().map(|prefix| prefix.address);
        self.listeners.iter().flat_map(move |listener| {
            let taken = own.clone().filter(|own| listener.takes(*own));
            let port = listener.address.port();
            taken.map(move |own| (SocketAddr::new(own, port), listener.tls.is_some()))
        })
    }

    /// Returns the URLs of its listeners.
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

/// Returns the number of the listener that accepts a connection to this address.
fn listener_of(listeners: &[NetstackListener], own: IpAddr, port: u16) -> Option<usize> {
    let takes = |it: &NetstackListener| it.address.port() == port && it.takes(own);
    listeners.iter().position(takes)
}

/// Least time between two messages about failed sends: frames may arrive in between.
const SENDING_FAILURE_EVERY: Duration = Duration::from_secs(10);

/// Messages about a loop's device: the first failure, then none until frames arrive again.
#[derive(Default)]
struct DeviceMessages {
    is_reported: bool,
    /// Time before which a failed send is not reported again.
    sending_at: Option<Instant>,
}

impl DeviceMessages {
    fn note_received(&mut self, frames: &io::Result<usize>) {
        match frames {
            Err(failure) => self.report(failure),
            Ok(1..) => self.is_reported = false,
            Ok(_) => {}
        }
    }

    /// Reports that the device cannot send. An AF_XDP socket receives nothing, and reports nothing,
    /// when its interface is down or gone.
    fn note_send_failure(&mut self, failure: &io::Error, now: Instant) {
        if self.sending_at.is_none_or(|at| now >= at) {
            self.sending_at = Some(now + SENDING_FAILURE_EVERY);
            self.report(failure);
        }
    }

    fn report(&mut self, failure: &io::Error) {
        if !mem::replace(&mut self.is_reported, true) {
            messages::write(&format!("netstack: the device failed: {failure}; retrying\n"));
        }
    }
}

/// Describes the engine: `netstack on tap:weft0, 1 shard, 10.9.0.2/24`.
fn describe(interface: &InterfaceConfig, shards: usize) -> String {
    let InterfaceConfig { device, addresses, .. } = interface;
    let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    let shards = match shards {
        1 => "1 shard".to_owned(),
        count => format!("{count} shards"),
    };
    format!("netstack on {device}, {shards}, {}", addresses.join(", "))
}

/// The running engine.
pub(crate) struct Netstacks {
    pub(crate) loops: Loops,
    /// Figures of each loop.
    figures: Vec<Arc<Figures>>,
    interface: InterfaceConfig,
}

impl Netstacks {
    /// # Errors
    /// Errors of new threads and descriptors.
    pub(crate) fn start<S: Session + 'static, O: Opens<S>>(
        opened: NetstackInterface,
        start: Start<O>,
    ) -> io::Result<Netstacks> {
        let NetstackInterface { shards, listeners, backlog, interface } = opened;
        let tls = listeners.iter().map(|listener| listener.tls.clone()).collect();
        let accepting = (shards.len(), true);
        let engine = EngineContext::new(start.admission, tls, usize::MAX, accepting);
        let listeners: Arc<[_]> = listeners.into();
        let mut netstacks = Netstacks {
            // The kernel has no socket for it.
            loops: Loops::new(&engine, Vec::new()),
            figures: Vec::new(),
            interface,
        };
        for (at, netstack) in shards.into_iter().enumerate() {
            let (own, figures) = (LoopHandle::new()?, Arc::default());
            netstacks.figures.push(Arc::clone(&figures));
            let name = at.to_string();
            netstacks.loops.named.push((name, Arc::clone(&own)));
            let (engine, listeners) = (Arc::clone(&engine), Arc::clone(&listeners));
            let make =
                move || Ok(EventLoop::new(engine, listeners, own, figures, netstack, backlog));
            let name = format!("netstack {at}");
            netstacks.loops.threads.spawn(name, make, EventLoop::run)?;
        }
        Ok(netstacks)
    }

    pub(crate) fn describe(&self) -> String {
        describe(&self.interface, self.figures.len())
    }

    /// Counters of each loop and its shard, for people.
    pub(crate) fn dump(&self) -> String {
        self.loops.dump()
            + &self.figures().map(|(at, figures)| figures.line(at)).collect::<String>()
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
