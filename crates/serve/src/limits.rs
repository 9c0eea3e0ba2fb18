//! Named limits with argued defaults.

use std::io;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub use crate::addresses::AddressLimit;
pub use crate::proxy::ProxyProtocol;

/// Limits on the resources that a peer may use, and for how long.
///
/// [`Duration::MAX`] means no limit.
///
/// Every wait for a peer ends: one that sends a header byte every few seconds, reads nothing, or
/// vanishes without a FIN holds its connection for a bounded time. There is no limit on the
/// requests of one connection; nginx has one only to give back memory that it collects per
/// connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most connections that may be open at once, over all listeners. See
    /// [`Limits::for_descriptors`] for the default.
    pub connections_max: usize,

    /// Most bytes of buffers for files on their way from the disk to peers, over all connections:
    /// 16 MiB. Beyond it files are read in small pieces.
    pub file_buffers_max: usize,

    /// Most bytes of memory that all connections may hold together while they wait for their peers:
    /// replies not taken, input not used, TLS handshakes. 256 MiB. From half of it on replies are
    /// made one by one; when all is used, a connection that needs much is closed.
    pub connection_memory_max: usize,

    /// Reply to a connection beyond [`connections_max`](Limits::connections_max) before it is
    /// closed. `None`, the default: such connections are not accepted, and wait in the kernel's
    /// queue until another ends.
    pub refusal: Option<&'static str>,

    /// Connections that begin with a PROXY header; `None`: none. The header must arrive within the
    /// time of the first request's head, or of the TLS handshake.
    pub proxy_protocol: Option<ProxyProtocol>,

    /// Limit on the connections of one address; `None`: unlimited. Peers of Unix sockets have no
    /// address, and no limit.
    pub by_address: Option<AddressLimit>,

    /// From the accept of a connection to the end of its TLS handshake, however its bytes are
    /// spread: 20 s, which is three round trips and a few lost packets.
    pub handshake_timeout: Duration,

    /// From the first byte of a request's head to its last, however the bytes are spread: 20 s.
    ///
    /// Apache also begins with 20 s (mod_reqtimeout); nginx allows 60 s. A head is a few packets,
    /// and even one that is lost four times in a row arrives after 1 + 2 + 4 + 8 = 15 s (RFC 6298),
    /// so a client that takes longer is not slow but holds the connection on purpose. The limit
    /// also applies to the first request, counted from accept: a peer that connects and is silent
    /// does not get the longer `idle_timeout`.
    pub head_timeout: Duration,

    /// Between two reads of a request's body: 60 s, as nginx (`client_body_timeout`). A body may
    /// be of any length, so a limit on the whole would refuse honest slow uploads.
    pub body_timeout: Duration,

    /// Between two requests of a connection: 75 s, as nginx (`keepalive_timeout`). It is above the
    /// 60 s for which common balancers keep idle connections, so the balancer closes first, and
    /// none of its requests crosses the server's FIN.
    pub idle_timeout: Duration,

    /// While sending, without the peer taking a single byte: 60 s, as nginx (`send_timeout`).
    pub send_timeout: Duration,

    /// Bytes per second that a peer must take while there is something to send, averaged over
    /// [`send_rate_window`](Limits::send_rate_window); 0: no minimum. Default 500, the rate that
    /// Apache demands of senders (mod_reqtimeout `MinRate`): below the slowest modem, far above the
    /// trickle of a slow-read attack.
    pub send_rate_min: u64,

    /// Window over which [`send_rate_min`](Limits::send_rate_min) is averaged: 60 s. The kernel
    /// takes bytes in bursts of a third of a socket buffer, so a short window would see a slow
    /// reader as a dead one.
    pub send_rate_window: Duration,

    /// Time for which a thread with many connections relies on reports that may be lost, as
    /// real-time signals and completions of io_uring may be: 60 s. The time-outs above may be far
    /// longer, as in a cache. After this time (twice as long in a busy pipeline) the thread retries
    /// the calls that it waits for. Where no report can be lost (epoll, poll) it never does.
    pub recheck: Duration,

    /// From the order to stop until the remaining connections are cut: 25 s. Kubernetes kills 30 s
    /// after SIGTERM, so this leaves time to write the log and report the cut.
    pub drain_deadline: Duration,
}

/// Longer than any server runs. Longer durations, such as [`Duration::MAX`], mean the same, but
/// overflow the clock.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Descriptors that are not for connections: listeners, rings, logs, and the files being served.
const RESERVE_MIN: u64 = 64;
const RESERVE_MAX: u64 = 16 * 1024;

/// Largest default, since a higher one would limit nothing: some container engines set a descriptor
/// limit of 2^30.
const CONNECTIONS_DEFAULT_MAX: u64 = 1_000_000;

impl Limits {
    /// The defaults for a process that may open `nofile` descriptors: seven eighths of them are for
    /// connections, the rest (64 to 16,384) for files and the server's own needs.
    pub fn for_descriptors(nofile: u64) -> Limits {
        let reserve = (nofile / 8).clamp(RESERVE_MIN, RESERVE_MAX);
        let connections = nofile.saturating_sub(reserve).clamp(1, CONNECTIONS_DEFAULT_MAX);
        Limits {
            connections_max: connections as usize,
            file_buffers_max: 16 << 20,
            connection_memory_max: 256 << 20,
            refusal: None,
            proxy_protocol: None,
            by_address: None,
            handshake_timeout: Duration::from_secs(20),
            head_timeout: Duration::from_secs(20),
            body_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(75),
            send_timeout: Duration::from_secs(60),
            send_rate_min: 500,
            send_rate_window: Duration::from_secs(60),
            recheck: Duration::from_secs(60),
            drain_deadline: Duration::from_secs(25),
        }
    }

    /// True if a setting depends on a connection's address.
    pub(crate) fn asks_for_peers(&self) -> bool {
        self.proxy_protocol.is_some() || self.by_address.is_some()
    }

    /// Caps all durations so that they can be added to the time.
    pub(crate) fn within_reach(self) -> Limits {
        Limits {
            handshake_timeout: self.handshake_timeout.min(FOREVER),
            head_timeout: self.head_timeout.min(FOREVER),
            body_timeout: self.body_timeout.min(FOREVER),
            idle_timeout: self.idle_timeout.min(FOREVER),
            send_timeout: self.send_timeout.min(FOREVER),
            send_rate_window: self.send_rate_window.min(FOREVER),
            recheck: self.recheck.min(FOREVER),
            drain_deadline: self.drain_deadline.min(FOREVER),
            ..self
        }
    }
}

/// The limits for 1024 descriptors, the default of Linux for a process.
impl Default for Limits {
    fn default() -> Limits {
        Limits::for_descriptors(1024)
    }
}

/// Raises the soft limit on open descriptors to the hard one, and returns both new values
/// (`u64::MAX` for none). The soft limit of 1024 exists for programs that use select(2).
///
/// # Errors
/// Errors of `setrlimit(2)`; the limit is then unchanged.
pub fn raise_nofile() -> io::Result<(u64, u64)> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    }
    let limit = getrlimit(Resource::Nofile);
    Ok((limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use event::Mechanism;
    use session::{Echo, Opening};

    use super::*;
    use crate::engine::{Engine, EventOptions, PipelineOptions};
    use crate::listen::{Address, bind};
    use crate::server::{Server, Settings};

    /// Seen: a server did not start, or lost its connections, if a limit was the longest possible
    /// duration. Cause: adding it to the time panics. Cure: limits are capped.
    #[test]
    fn limits_without_end_are_for_ever() {
        for engine in [
            Engine::Thread,
            Engine::default(),
            Engine::Event(EventOptions::default()),
            Engine::Event(EventOptions {
                dispatcher: Mechanism::Uring, // It may lose reports.
                ..EventOptions::default()
            }),
            Engine::Pipeline(PipelineOptions::default()),
        ] {
            let listeners = bind(&"127.0.0.1:0".parse().unwrap(), None).unwrap();
            let Address::Tcp(address) = listeners[0].address else { unreachable!("bound as such") };
            let limits = Limits {
                handshake_timeout: Duration::MAX,
                head_timeout: Duration::MAX,
                body_timeout: Duration::MAX,
                idle_timeout: Duration::MAX,
                send_timeout: Duration::MAX,
                send_rate_window: Duration::MAX,
                recheck: Duration::MAX,
                drain_deadline: Duration::MAX,
                ..Limits::default()
            };
            let settings = Settings { engine, listeners, limits, ..Settings::default() };
            let server = Server::start(settings, |_: Opening<'_>| Echo).unwrap();
            let name = format!("{server:?}");
            let mut client = TcpStream::connect(address).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            for _ in 0..2 {
                let mut reply = [0; 5];
                client.write_all(b"line\n").unwrap();
                let read = client.read_exact(&mut reply);
                assert!(read.is_ok(), "{name}: {read:?}");
            }
            assert_eq!(server.drain(), 0, "cut, {name}");
        }
    }

    #[test]
    fn connections_leave_room_for_files() {
        let check = |nofile, expected| {
            assert_eq!(Limits::for_descriptors(nofile).connections_max, expected, "{nofile}");
        };
        check(1, 1);
        check(64, 1);
        check(256, 192);
        check(1024, 896);
        check(65_536, 57_344);
        check(524_288, 507_904);
        check(1 << 30, 1_000_000);
        check(u64::MAX, 1_000_000);
    }

    #[test]
    fn raising_the_open_file_limit_is_idempotent() {
        let (soft, hard) = raise_nofile().unwrap();
        assert_eq!(soft, hard);
        assert_eq!(raise_nofile().unwrap(), (soft, hard));
    }
}
