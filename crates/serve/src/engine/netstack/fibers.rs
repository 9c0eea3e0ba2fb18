//! The second form: a fiber for each connection, over [`sockets`], with the blocking driver.
//!
//! Each shard has a processor, on which its stack's fibers and those of its connections are. A
//! carrier accepts a connection and serves it, as under the fiber engine; but it has a stack all
//! the while.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr};
use std::process;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ::netstack::interface_config::{DeviceQueue, InterfaceConfig};
use fiber::{ClusterHandle, Runtime};
use session::Session;
use sockets::{SocketStack, TcpListener, TcpStream};

use super::connection::CACHED_PIECE_LEN;
use super::figures::Figures;
use super::flight::Hangar;
use super::worker::{ENDS_PATIENCE, HANDSHAKE_PATIENCE, LAST_BYTES_PATIENCE, LINE_PATIENCE};
use super::{Door, NetstackInterface, complain, describe};
use crate::blocking::converse;
use crate::carriage::{Carried, FilePiece, Look, Queues, Untaken};
use crate::counters::Closed;
use crate::engine::admission::{Opens, Start};
use crate::engine::pool::{self, AcceptPool, Carriers};
use crate::engine::processors;
use crate::engine::serving::{self, Serving};
use crate::file;
use crate::messages;
use crate::metrics::MetricsWriter;
use crate::shared::CUTTING;
use crate::stream::{RECEIVE_BUFFER, RECEIVE_LEN, Stream};

/// How often the end looks whether those that wait have been accepted.
const LOOK_STEP: Duration = Duration::from_millis(2);

/// The engine at work. The stacks end before the processors do.
pub(crate) struct NetstackFibers {
    stacks: Vec<SocketStack>,
    ports: BTreeMap<u16, Arc<Port>>,
    pub(crate) carriers: Carriers<Port>,
    interface: InterfaceConfig,
    runtime: Runtime,
}

/// What all carriers share.
struct Hall<O> {
    pool: Arc<AcceptPool<Port, O>>,
    doors: Vec<Door>,
    cluster: ClusterHandle,
}

/// A port, on each shard. Doors of the same port share it.
pub(crate) struct Port(Vec<TcpListener>);

impl Port {
    fn new(
        stacks: &[SocketStack],
        port: u16,
        backlog: netstack::stack::Backlog,
    ) -> io::Result<Port> {
        let everywhere = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
        let listeners = stacks
            .iter()
            .map(|stack| TcpListener::bind_with(stack, everywhere, backlog));
        listeners.collect::<io::Result<_>>().map(Port)
    }
}

impl pool::Listener for Port {
    fn close(&self) {
        self.0.iter().for_each(TcpListener::close);
    }
}

impl NetstackFibers {
    /// # Errors
    /// What the kernel says to new threads, rings and descriptors.
    pub(crate) fn start<S: Session + 'static, O: Opens<S>>(
        opened: NetstackInterface,
        start: Start<O>,
    ) -> io::Result<NetstackFibers> {
        let NetstackInterface {
            shards,
            doors,
            backlog,
            interface,
        } = opened;
        let runtime = processors::start(shards.len(), fiber::BackendChoice::Auto)?;
        let cluster = runtime.cluster();
        let on = |at| fiber::Builder::new().cluster(&cluster).processor(at);
        let stacks = shards.into_iter().enumerate();
        let stacks = stacks.map(|(at, netstack)| SocketStack::start(netstack, on(at)));
        let stacks = stacks.collect::<io::Result<Vec<SocketStack>>>()?;
        for (at, stack) in stacks.iter().enumerate() {
            let watch = stack.device_watch();
            let builder = on(at).name("netstack watch");
            builder.spawn(move || {
                while let Ok(failure) = watch.next_failure() {
                    complain(&failure);
                }
            })?;
        }
        let mut ports = BTreeMap::new();
        for door in &doors {
            let port = door.address.port();
            if let Entry::Vacant(place) = ports.entry(port) {
                place.insert(Arc::new(Port::new(&stacks, port, backlog)?));
            }
        }
        let behind = doors.iter().map(|door| {
            let port = &ports[&door.address.port()];
            (Arc::clone(port), door.tls.clone())
        });
        let behind = behind.collect();
        // At least one for each door of each shard, which no carrier of another accepts from.
        let carriers_min = stacks.len() * doors.len();
        let counts = carriers_min..=usize::MAX;
        let (pool, carriers) = AcceptPool::behind(start, behind, stacks.len(), counts);
        let hall = Arc::new(Hall {
            pool,
            doors,
            cluster,
        });
        hall.pool.start(|point| hall.spawn::<S>(point))?;
        Ok(NetstackFibers {
            stacks,
            ports,
            carriers,
            interface,
            runtime,
        })
    }

    pub(crate) fn describe(&self) -> String {
        let shards = describe(&self.interface, self.stacks.len());
        format!("{shards}, fibers, {}", self.runtime.backend())
    }

    pub(crate) fn dump(&self) -> String {
        let figures = self.figures();
        let figures = figures.map(|(at, figures)| figures.line(&at));
        figures.collect::<String>() + &processors::dump(&self.runtime)
    }

    pub(crate) fn write_metrics(&self, out: &mut MetricsWriter) {
        processors::write_metrics(&self.runtime, out);
        for (at, figures) in self.figures() {
            figures.write_metrics(&at, out);
        }
        for (at, stack) in self.stacks.iter().enumerate() {
            let (name, help) = (
                "weft_netstack_device_errors_total",
                "Turns in which the device failed.",
            );
            let errors = stack.counters().device_errors;
            out.counter(name, help, &[("loop", &at.to_string())], errors);
        }
    }

    fn figures(&self) -> impl Iterator<Item = (String, Figures)> {
        self.stacks.iter().enumerate().map(|(at, stack)| {
            let figures = Figures::default();
            stack.with_netstack(|netstack| figures.copy(netstack, &Hangar::default()));
            (at.to_string(), figures)
        })
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Ends with the handshakes that are under way, and then the waits for connections.
    pub(crate) fn stop_accepting(&self) {
        let listeners = || self.ports.values().flat_map(|port| &port.0);
        listeners().for_each(TcpListener::refuse);
        let until = Instant::now() + HANDSHAKE_PATIENCE;
        while Instant::now() < until && listeners().any(|it| it.backlog_len() > 0) {
            thread::sleep(LOOK_STEP);
        }
        self.carriers.stop_accepting();
    }
}

impl Drop for NetstackFibers {
    /// Nothing is sent again once the stacks have ended.
    fn drop(&mut self) {
        let until = Instant::now() + ENDS_PATIENCE;
        for stack in &self.stacks {
            stack.wait_for_ends(until);
        }
    }
}

impl<O> Hall<O> {
    fn spawn<S: Session + 'static>(self: &Arc<Self>, point: usize) -> io::Result<()>
    where
        O: Opens<S>,
    {
        let (hall, worker) = (Arc::clone(self), self.pool.point(point).worker);
        let builder = fiber::Builder::new().name("connection");
        let builder = builder.cluster(&self.cluster).processor(worker);
        builder.spawn(move || hall.carry(point)).map(drop)
    }

    /// A fiber's life: accept, serve, and again.
    fn carry<S: Session + 'static>(self: &Arc<Self>, point: usize)
    where
        O: Opens<S>,
    {
        let pool = &self.pool;
        let accept = |port: &Port| self.accept(port, pool.point(point).worker);
        while let Some((stream, through)) = pool.accept(point, accept) {
            if pool.admit(point, &stream, |another| self.spawn(another)) {
                let mut serving = Serving::begin(pool, through, stream);
                serving.guard(|driver| {
                    let ended = converse(driver, serving::open(pool, through));
                    let is_cut = driver.carriage.shared().stage.get() == CUTTING;
                    driver.connection.stream.end(is_cut, &ended);
                    ended
                });
                drop(serving);
                pool.admission.dismiss();
            } else {
                stream.end_refused();
            }
            if !pool.is_to_stay(point) {
                return;
            }
        }
    }

    /// The next connection to one of the doors, and the accept point of that door.
    fn accept(&self, port: &Port, worker: usize) -> io::Result<(NetstackStream, usize)> {
        loop {
            let listener = &port.0[worker];
            let stream = listener
                .accept()
                .inspect_err(|_| abort_if_failed(listener))?;
            let local = stream.local_addr();
            if let Some(door) = self.door_of(local.ip(), local.port()) {
                // Replies leave whole, so no short segment is worth a wait.
                stream.set_nodelay(true);
                return Ok((NetstackStream(stream), worker * self.doors.len() + door));
            }
            // Nothing listens at this address of the stack.
            stream.reset();
        }
    }

    fn door_of(&self, own: IpAddr, port: u16) -> Option<usize> {
        super::door_of(&self.doors, own, port)
    }
}

/// A stack that nothing drives any more is worse than no server, as a loop that panicked is.
fn abort_if_failed(listener: &TcpListener) {
    if let Some(why) = listener.failure() {
        messages::write(&format!("a shard of the netstack has ended: {why}\n"));
        process::abort();
    }
}

/// A connection that a fiber carries.
struct NetstackStream(TcpStream<DeviceQueue>);

impl NetstackStream {
    /// After the conversation: the connection keeps its place until the peer has acknowledged all
    /// bytes. One that takes nothing is not sent what it has not taken.
    fn end(&self, is_cut: bool, ended: &Result<(), Closed>) {
        let is_given_up = is_cut || *ended == Err(Closed::TooSlow);
        if is_given_up || self.end_within(LAST_BYTES_PATIENCE).is_err() {
            self.0.reset();
        }
    }

    /// Ends our side, and waits until all bytes are acknowledged. The end itself the shard sends
    /// for as long as it must, or the engine lasts: a peer that never acknowledges it holds no
    /// fiber.
    fn end_within(&self, patience: Duration) -> io::Result<()> {
        // If it has ended already, the wait says how.
        let _ = self.0.shutdown(Shutdown::Write);
        self.0.wait_acknowledged(Some(Instant::now() + patience))
    }

    /// After the line that says that there is no room. With bytes that came and were not read the
    /// connection is reset when it is dropped, and the line must have left before.
    fn end_refused(&self) {
        let _ = self.end_within(LINE_PATIENCE);
    }
}

/// The thread's buffer, as one's own: a fiber that receives may wait for the stack's lock, and
/// another one of the thread that does so meanwhile has a new buffer.
fn take_buffer() -> Vec<u8> {
    let mut buffer = RECEIVE_BUFFER.take();
    buffer.resize(RECEIVE_LEN, 0);
    buffer
}

impl Stream for NetstackStream {
    fn receive<R>(
        &self,
        len_max: usize,
        deadline: Instant,
        f: impl FnOnce(&[u8]) -> R,
    ) -> io::Result<R> {
        self.0.wait_readable(Some(deadline))?;
        let mut buffer = take_buffer();
        let len_max = buffer.len().min(len_max);
        let received = self.0.receive_into(&mut buffer[..len_max], Some(deadline));
        let result = received.map(|len| f(&buffer[..len]));
        RECEIVE_BUFFER.set(buffer);
        result
    }

    fn receive_into(&self, room: &mut [u8], deadline: Instant) -> io::Result<usize> {
        self.0.receive_into(room, Some(deadline))
    }

    fn send(&self, slices: &[IoSlice<'_>], _more: bool, deadline: Instant) -> io::Result<usize> {
        self.0.send(slices, Some(deadline))
    }

    fn wait_for_room(&self, deadline: Instant) -> io::Result<()> {
        self.0.wait_writable(Some(deadline))
    }

    fn send_file_cached(&self, piece: &FilePiece<'_>) -> io::Result<Carried> {
        file::read_cached(piece, CACHED_PIECE_LEN).map(Carried::Read)
    }

    fn untaken(&self, _look: &Look) -> io::Result<Untaken> {
        // All that was sent is a copy, so no write to the file changes it any more.
        Ok(Untaken::NONE)
    }

    fn queues(&self, _asks_unsent: bool) -> io::Result<Queues> {
        // What was not acknowledged is waited for at the end.
        let unread = self.0.readable_len() as u64;
        Ok(Queues {
            unread,
            ..Queues::default()
        })
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match how {
            // It is cut.
            Shutdown::Both => self.0.reset(),
            _ => self.0.shutdown(how)?,
        }
        Ok(())
    }

    fn peer(&self) -> Option<SocketAddr> {
        Some(self.0.peer_addr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fiber_that_finds_the_buffer_taken_has_one_of_its_own() {
        // Seen: a fiber that waited for the stack's lock had the thread's buffer borrowed, and the
        // next one panicked.
        let (mut first, mut second) = (take_buffer(), take_buffer());
        first.fill(1);
        second.fill(2);
        assert_eq!(first, [1; RECEIVE_LEN]);
        RECEIVE_BUFFER.set(first);
        RECEIVE_BUFFER.set(second);
        assert_eq!(take_buffer().len(), RECEIVE_LEN);
    }
}
