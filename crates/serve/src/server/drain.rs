//! The end of a server, at which no client loses a request that it has sent.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Server;
use crate::connection::DRAIN_GRACE;
use crate::listen::{Address, Bound, handshakes_under_way};

/// Time for handshakes in progress to complete and enter the listen queue: for clients on this
/// machine, and for clients elsewhere, a round trip away.
const HANDSHAKE_PATIENCE_HERE: Duration = Duration::from_millis(20);
const HANDSHAKE_PATIENCE: Duration = DRAIN_GRACE;

/// Time, including that, for the connections in the listen queue to be accepted, on a busy machine
/// or at the connection limit.
const QUEUE_PATIENCE_MAX: Duration = Duration::from_secs(1);

/// Time between two checks of a drain.
const DRAIN_STEP: Duration = Duration::from_millis(2);

/// Time for connections to notice that they were cut.
const CUT_PATIENCE: Duration = Duration::from_secs(1);

impl Server {
    /// Ends gracefully. While connections are open, everything continues for up to a quarter of a
    /// second, but every reply announces the end of its connection: a request in flight gets its
    /// reply. Then no more handshakes begin, and those in progress get a quarter of a second as
    /// well (20 ms if all clients are on this machine). Then idle connections are closed, others
    /// may finish, and the rest is cut at the [deadline](crate::limits::Limits::drain_deadline).
    /// Returns the number of cut connections.
    ///
    /// A server without connections and handshakes in progress ends at once.
    pub fn drain(&self) -> usize {
        let start = Instant::now();
        let deadline = start + self.shared.limits.drain_deadline;
        self.shared.server_state.drain();
        self.running.drain();
        let grace_until = deadline.min(start + DRAIN_GRACE);
        while self.has_clients() && Instant::now() < grace_until {
            thread::sleep(DRAIN_STEP);
        }
        self.stop_listening(deadline);
        self.running.close_idle(self.shared.start.elapsed());
        while self.connection_count() > 0 && Instant::now() < deadline {
            thread::sleep(DRAIN_STEP);
            // Repeated: recently accepted connections get their time, too.
            self.running.close_idle(self.shared.start.elapsed());
        }
        self.shared.server_state.cut();
        let cut = self.running.cut();
        let deadline = Instant::now() + CUT_PATIENCE;
        while self.connection_count() > 0 && Instant::now() < deadline {
            thread::sleep(DRAIN_STEP);
        }
        cut
    }

    /// Ends all waits for connections, and shuts down sockets that only this server uses: clients
    /// that connect from now on are refused, not left to wait. An inherited socket continues to
    /// listen for the process that gets it next.
    ///
    /// Waits until the deadline for clients that are connecting, or in the listen queue.
    pub(super) fn stop_listening(&self, deadline: Instant) {
        if self.is_over.swap(true, Ordering::Relaxed) {
            return; // Drained already.
        }
        let ours = || self.own_listeners();
        // Stop queueing first: connections that are still in the queue when it closes are reset.
        // Then leave time to accept them.
        ours().for_each(Bound::stop_queueing);
        let deadline = deadline.min(Instant::now() + QUEUE_PATIENCE_MAX);
        self.wait_for_handshakes(deadline.min(Instant::now() + handshake_patience(ours())));
        while self.has_waiting_clients() && Instant::now() < deadline {
            // At the connection limit, clients in the queue wait for these to end.
            self.running.close_idle(self.shared.start.elapsed());
            thread::sleep(DRAIN_STEP);
        }
        self.running.stop_accepting();
        for socket in ours().flat_map(Bound::sockets) {
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
    }

    /// Waits for handshakes until then, or until they have ended if there are few enough
    /// connections to tell.
    fn wait_for_handshakes(&self, until: Instant) {
        let ports: Vec<u16> = self.own_listeners().filter_map(Bound::port).collect();
        if ports.is_empty() {
            return;
        }
        while Instant::now() < until && (self.has_clients() || handshakes_under_way(&ports)) {
            thread::sleep(DRAIN_STEP);
        }
    }

    /// Listeners that no other process will continue to use.
    fn own_listeners(&self) -> impl Iterator<Item = &Bound> {
        let listeners = self.running.listeners().iter();
        listeners.filter(|bound| !bound.is_inherited())
    }

    fn has_clients(&self) -> bool {
        self.connection_count() > 0 || self.has_waiting_clients()
    }

    /// True if connections wait to be accepted.
    fn has_waiting_clients(&self) -> bool {
        let mut sockets = self.own_listeners().flat_map(Bound::sockets);
        sockets.any(has_connections)
    }
}

/// Time for handshakes with these listeners.
fn handshake_patience<'a>(mut listeners: impl Iterator<Item = &'a Bound>) -> Duration {
    let has_far_clients = |bound: &Bound| match bound.address {
        Address::Tcp(address) => !address.ip().is_loopback(),
        _ => false,
    };
    if listeners.any(has_far_clients) { HANDSHAKE_PATIENCE } else { HANDSHAKE_PATIENCE_HERE }
}

/// True if a connection waits in the listen queue. A socket that was shut down has no queue, but is
/// readable too.
fn has_connections(listener: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&listener, PollFlags::IN)];
    let _ = poll(&mut fds, Some(&Timespec::default()));
    fds[0].revents() == PollFlags::IN
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;

    use fiber::BackendChoice;
    use session::{Echo, Next, NoWork, Now, Opening, Outbox, Phase, Received, Session};

    use super::*;
    use crate::engine::{Engine, EventOptions, PipelineOptions};
    use crate::limits::Limits;
    use crate::listen::{Address, bind};
    use crate::server::Settings;

    /// A session that echoes input, and announces a drain.
    struct Goodbye;

    impl Session for Goodbye {
        type Work = NoWork;

        fn receive(&mut self, input: &[u8], _now: Now, out: &mut Outbox) -> Received {
            out.put(input);
            Received { used: input.len(), next: Next::Receive(Phase::Idle) }
        }

        fn drain(&mut self, _now: Now, out: &mut Outbox) {
            out.put(b"goodbye\n");
        }
    }

    /// An idle client sends nothing, and its waiting fiber or thread is not woken before the drain
    /// closes it. Its session is still told of the drain, and its final output arrives.
    #[test]
    fn an_idle_session_hears_of_a_drain() {
        let fibers = |backend| Engine::Fiber { processors: 1, backend };
        for engine in [
            Engine::Thread,
            fibers(BackendChoice::Auto),
            fibers(BackendChoice::Epoll),
            Engine::Event(EventOptions::default()),
            Engine::Pipeline(PipelineOptions::default()),
        ] {
            let listeners = bind(&"127.0.0.1:0".parse().unwrap(), None).unwrap();
            let Address::Tcp(address) = listeners[0].address else { unreachable!("bound as such") };
            let settings = Settings { engine, listeners, ..Settings::default() };
            let server = Server::start(settings, |_: Opening<'_>| Goodbye).unwrap();
            let name = format!("{server:?}");
            let mut client = TcpStream::connect(address).unwrap();
            let mut reply = [0; 5];
            client.write_all(b"line\n").unwrap();
            client.read_exact(&mut reply).unwrap();
            assert_eq!(server.drain(), 0, "cut, {name}");
            let mut rest = String::new();
            client.read_to_string(&mut rest).unwrap();
            assert_eq!(rest, "goodbye\n", "{name}");
        }
    }

    /// Seen: every stop on TCP took 1.3 s, without a single connection. Cause: the server was
    /// drained, and then dropped; the second check of the listen queue took the hang-up of a closed
    /// socket for a waiting client.
    #[test]
    fn a_shut_down_listener_is_empty() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(!has_connections(&listener));
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(has_connections(&listener));
        rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).unwrap();
        assert!(!has_connections(&listener));
    }

    fn all_engines() -> [Engine; 4] {
        let event = Engine::Event(EventOptions::default());
        let pipeline = Engine::Pipeline(PipelineOptions::default());
        [Engine::Thread, Engine::default(), event, pipeline]
    }

    /// A systemd unit that is stopped leaves waiting clients to the next start.
    #[test]
    fn an_inherited_socket_goes_on_listening() {
        for engine in all_engines() {
            let mut bound = bind(&"127.0.0.1:0".parse().unwrap(), None).unwrap().remove(0);
            bound.inherit();
            let next = bound.try_clone().unwrap();
            let Address::Tcp(address) = bound.address else { panic!("not a TCP address") };
            let settings = Settings { engine, listeners: vec![bound], ..Settings::default() };
            let server = Server::start(settings, |_: Opening<'_>| Echo).unwrap();
            let name = format!("{server:?}");
            let mut client = TcpStream::connect(address).unwrap();
            client.write_all(b"line\n").unwrap();
            client.read_exact(&mut [0; 5]).unwrap();
            assert_eq!(server.drain(), 0, "cut");
            drop(server);
            let late = TcpStream::connect_timeout(&address, Duration::from_secs(30));
            let _late = late.unwrap_or_else(|error| panic!("{name}: {error}"));
            rustix::io::ioctl_fionbio(&next, true).unwrap();
            let accepted = rustix::net::accept(&next);
            assert!(accepted.is_ok(), "{name}: {accepted:?}");
        }
    }

    /// Seen: an idle server took 270 ms to stop, and the next one found its port taken. Cause: it
    /// waited a quarter of a second for requests in flight, and 20 ms for handshakes, even without
    /// clients. Cure: it then waits for neither.
    #[test]
    fn a_server_without_clients_waits_for_nothing() {
        for engine in all_engines() {
            let settings = Settings {
                engine,
                listeners: bind(&"0.0.0.0:0".parse().unwrap(), None).unwrap(),
                ..Settings::default()
            };
            let port = settings.listeners[0].port().unwrap();
            let server = Server::start(settings, |_: Opening<'_>| Echo).unwrap();
            let name = format!("{server:?}");
            assert!(!server.has_clients(), "{name}");
            // It would wait very long for handshakes.
            server.wait_for_handshakes(Instant::now() + Duration::from_secs(86_400));
            let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
            client.write_all(b"line\n").unwrap();
            client.read_exact(&mut [0; 5]).unwrap();
            assert!(server.has_clients(), "{name}");
            assert_eq!(server.drain(), 0, "cut, {name}");
        }
    }

    /// Seen (in review): a client further away than 20 ms was reset by a drain, although its
    /// handshake had been answered. Cause: handshakes had that long, wherever the client was. Cure:
    /// they have a quarter of a second, unless all clients are on this machine.
    #[test]
    fn a_far_handshake_has_a_round_trip() {
        let directory = tempfile::tempdir().unwrap();
        let unix = format!("unix:{}", directory.path().join("socket").display());
        let patience = |addresses: &[&str]| {
            let bound = addresses.iter();
            let bound = bound.flat_map(|at| bind(&at.parse().unwrap(), None).unwrap());
            handshake_patience(bound.collect::<Vec<_>>().iter())
        };
        assert_eq!(patience(&["127.0.0.1:0", &unix]), HANDSHAKE_PATIENCE_HERE);
        assert_eq!(patience(&["127.0.0.1:0", "0.0.0.0:0"]), HANDSHAKE_PATIENCE);
        assert_eq!(patience(&[]), HANDSHAKE_PATIENCE_HERE);
    }

    /// Seen: clients in the queue of a Unix socket were reset when the server drained. Cause: only
    /// queues of TCP sockets were waited for. Cure: the socket's file is removed first, so that no
    /// more enter the queue, and those in it are served.
    #[test]
    fn a_unix_queue_is_served_in_a_drain() {
        for engine in all_engines() {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("socket");
            let address = format!("unix:{}", path.display()).parse().unwrap();
            let settings = Settings {
                engine,
                listeners: bind(&address, None).unwrap(),
                limits: Limits { connections_max: 2, ..Limits::default() },
                ..Settings::default()
            };
            let server = Server::start(settings, |_: Opening<'_>| Echo).unwrap();
            let name = format!("{server:?}");
            let connect = || UnixStream::connect(&path).unwrap();
            // Idle connections hold the places until the drain closes them.
            let idle = [connect(), connect()];
            let mut waiting = [(); 8].map(|()| connect());
            for client in &mut waiting {
                client.write_all(b"line\n").unwrap();
            }
            assert_eq!(server.drain(), 0, "cut");
            drop(server);
            for mut client in waiting {
                let mut reply = Vec::new();
                let _ = client.read_to_end(&mut reply);
                assert_eq!(reply, b"line\n", "{name}");
            }
            assert!(!path.exists(), "{name}");
            drop(idle);
        }
    }
}
