//! [`TcpStream`].

use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use netstack::device::Device;
use netstack::interface_config::DeviceQueue;
use netstack::stack::{ConnectError, FlowId, Shard};
use netstack::tcp::{Connection, End};

use crate::stack::{Locked, Shared, SocketStack, Waits};

/// A TCP connection of a [`SocketStack`], like [`fiber::net::TcpStream`] for the kernel's TCP.
/// Several fibers may read and write at once.
///
/// ```no_run
/// # use std::io::{Read, Write};
/// # fn ask(stack: &weftwork_sockets::SocketStack) -> std::io::Result<String> {
/// use weftwork_sockets::TcpStream;
///
/// let mut stream = TcpStream::connect(stack, "10.9.0.1:7".parse().unwrap())?;
/// stream.write_all(b"hello")?;
/// stream.shutdown(std::net::Shutdown::Write)?;
/// let mut answer = String::new();
/// stream.read_to_string(&mut answer)?;
/// # Ok(answer)
/// # }
/// ```
pub struct TcpStream<D: Device + Send + 'static = DeviceQueue> {
    shared: Arc<Shared<D>>,
    id: FlowId,
    waits: Arc<Waits>,
    local: SocketAddr,
    peer: SocketAddr,
    is_read_shut: AtomicBool,
    /// Nanoseconds; 0 for none.
    read_timeout: AtomicU64,
    write_timeout: AtomicU64,
}

impl<D: Device + Send + 'static> TcpStream<D> {
    /// Connects to `peer`, from a port that is free. [`fiber::timeout`] bounds it; without, the
    /// SYN's retransmissions do.
    ///
    /// # Errors
    /// `ConnectionRefused`, `TimedOut`, `HostUnreachable`; `NetworkUnreachable` if no address of
    /// the stack's and no gateway leads there, `AddrNotAvailable` if no port is free,
    /// `QuotaExceeded` if the stack has as many connections as it may, `Unsupported` on one of
    /// several shards whose device does not say which frames come to it: AF_XDP, and TAP without
    /// `CAP_BPF`.
    pub fn connect(stack: &SocketStack<D>, peer: SocketAddr) -> io::Result<TcpStream<D>> {
        fiber::checkpoint()?;
        let shared = &stack.shared;
        let mut state = shared.lock();
        state.check()?;
        let now = shared.now();
        let id = state.netstack()?.connect(now, peer).map_err(refusal)?;
        let stream = TcpStream::of(shared, &mut state, id).ok_or(io::ErrorKind::NotConnected)?;
        state.call();
        drop(state);
        // From here on an error drops the stream, and so the connection.
        let mut state = shared.lock();
        loop {
            let connection = stream.connection(&mut state)?;
            if let Some(end) = connection.end() {
                return Err(error_of(end));
            }
            if connection.state().is_synchronized() {
                drop(state);
                return Ok(stream);
            }
            state = Shared::wait(state, &stream.waits.writable, None)?;
        }
    }

    /// Wraps a connection of the stack.
    pub(crate) fn of(
        shared: &Arc<Shared<D>>,
        state: &mut Locked<'_, D>,
        id: FlowId,
    ) -> Option<TcpStream<D>> {
        let (local, peer) = state.addresses(id)?;
        Some(TcpStream {
            shared: Arc::clone(shared),
            id,
            waits: state.register_waits(id),
            local,
            peer,
            is_read_shut: AtomicBool::new(false),
            read_timeout: AtomicU64::new(0),
            write_timeout: AtomicU64::new(0),
        })
    }

    /// Receives into `buffer`, and waits until there is something; 0 is the end of the stream.
    ///
    /// # Errors
    /// `TimedOut` past the deadline; `ConnectionReset` and others of the connection's end.
    pub fn receive_into(&self, buffer: &mut [u8], deadline: Option<Instant>) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let mut state = self.until_readable(deadline)?;
        let len = state.shard()?.read(self.id, buffer);
        if len > 0 {
            // The peer may be waiting for the window to open.
            state.call();
        }
        Ok(len)
    }

    /// Waits until there is something to receive, or the end of the stream.
    ///
    /// # Errors
    /// Like [`receive_into`](TcpStream::receive_into).
    pub fn wait_readable(&self, deadline: Option<Instant>) -> io::Result<()> {
        self.until_readable(deadline).map(drop)
    }

    /// Number of bytes that can be received without waiting; 0 also at the end.
    pub fn readable_len(&self) -> usize {
        let mut state = self.shared.lock();
        let connection = self.connection(&mut state);
        connection.map_or(0, |connection| connection.readable_len())
    }

    fn until_readable(&self, deadline: Option<Instant>) -> io::Result<Locked<'_, D>> {
        fiber::checkpoint()?;
        let mut state = self.shared.lock();
        loop {
            let connection = self.connection(&mut state)?;
            if connection.readable_len() > 0 {
                return Ok(state);
            }
            match connection.end() {
                None | Some(End::Closed) => {}
                Some(end) => return Err(error_of(end)),
            }
            let has_ended = connection.is_peer_closed() || connection.end().is_some();
            if has_ended || self.is_read_shut.load(Ordering::Relaxed) {
                return Ok(state);
            }
            state = Shared::wait(state, &self.waits.readable, deadline)?;
        }
    }

    /// Sends as much of `slices` as possible, after a wait for space if there is none.
    ///
    /// # Errors
    /// `TimedOut` past the deadline; `BrokenPipe` after [`shutdown`](TcpStream::shutdown) and when
    /// both ends have closed; `ConnectionReset` and others of the connection's end.
    pub fn send(&self, slices: &[IoSlice<'_>], deadline: Option<Instant>) -> io::Result<usize> {
        let mut sent = 0;
        let mut state = self.until_writable(deadline, |shard| {
            for slice in slices {
                let taken = shard.write(self.id, slice);
                sent += taken;
                if taken < slice.len() {
                    break;
                }
            }
            sent > 0 || slices.iter().all(|slice| slice.is_empty())
        })?;
        if sent > 0 {
            state.call();
        }
        Ok(sent)
    }

    /// Waits until there is room to send something.
    ///
    /// # Errors
    /// Like [`send`](TcpStream::send).
    pub fn wait_writable(&self, deadline: Option<Instant>) -> io::Result<()> {
        let is_writable = |shard: &mut Shard| shard.writable_len(self.id) > 0;
        self.until_writable(deadline, is_writable).map(drop)
    }

    /// Waits until `is_enough` holds for the connection, which must allow writes.
    fn until_writable(
        &self,
        deadline: Option<Instant>,
        mut is_enough: impl FnMut(&mut Shard) -> bool,
    ) -> io::Result<Locked<'_, D>> {
        fiber::checkpoint()?;
        let mut state = self.shared.lock();
        loop {
            let connection = self.connection(&mut state)?;
            match connection.end() {
                None if !connection.is_finished() => {}
                None | Some(End::Closed) => return Err(io::ErrorKind::BrokenPipe.into()),
                Some(end) => return Err(error_of(end)),
            }
            if is_enough(state.shard()?) {
                return Ok(state);
            }
            state = Shared::wait(state, &self.waits.writable, deadline)?;
        }
    }

    /// Ends reading, writing or both, and wakes waiting fibers. Received bytes can still be read,
    /// and written bytes are still sent.
    ///
    /// # Errors
    /// `NotConnected` if the connection is over.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let mut state = self.shared.lock();
        if self.connection(&mut state)?.end().is_some() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        if how != Shutdown::Write {
            self.is_read_shut.store(true, Ordering::Relaxed);
            self.waits.readable.notify_all();
        }
        if how != Shutdown::Read {
            state.shard()?.finish(self.id);
            self.waits.writable.notify_all();
            state.call();
        }
        Ok(())
    }

    /// Ends writing, and waits until the peer has acknowledged all that was written, and the end.
    ///
    /// # Errors
    /// `TimedOut` past the deadline: unacknowledged bytes are still sent. `ConnectionReset` and
    /// others of the connection's end.
    pub fn linger(&self, deadline: Option<Instant>) -> io::Result<()> {
        let mut state = self.shared.lock();
        state.shard()?.finish(self.id);
        state.call();
        loop {
            let connection = self.connection(&mut state)?;
            match connection.end() {
                None if connection.state().is_sending() => {}
                None | Some(End::Closed) => return Ok(()),
                Some(end) => return Err(error_of(end)),
            }
            state = Shared::wait(state, &self.waits.writable, deadline)?;
        }
    }

    /// Ends the connection with a RST: reads and writes fail from now on.
    pub fn reset(&self) {
        let mut state = self.shared.lock();
        if let Ok(shard) = state.shard() {
            shard.abort(self.id);
        }
        self.waits.readable.notify_all();
        self.waits.writable.notify_all();
        state.call();
    }

    /// Sets whether short segments are sent at once (TCP_NODELAY), including one that waits. By
    /// default a short segment waits while data is in flight. RFC 9293 3.7.4
    pub fn set_nodelay(&self, is_nodelay: bool) {
        let mut state = self.shared.lock();
        if let Ok(shard) = state.shard() {
            shard.set_nodelay(self.id, is_nodelay);
            // A short segment may be waiting.
            state.call();
        }
    }

    /// The other end's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// This end's address.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Sets the time-out of reads; `None` (the default) waits forever.
    ///
    /// # Errors
    /// `InvalidInput` for a zero time-out.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        set_timeout(&self.read_timeout, timeout)
    }

    /// Sets the time-out of writes; `None` (the default) waits forever.
    ///
    /// # Errors
    /// `InvalidInput` for a zero time-out.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        set_timeout(&self.write_timeout, timeout)
    }

    /// The read time-out.
    pub fn read_timeout(&self) -> Option<Duration> {
        timeout_of(&self.read_timeout)
    }

    /// The write time-out.
    pub fn write_timeout(&self) -> Option<Duration> {
        timeout_of(&self.write_timeout)
    }

    /// # Errors
    /// `ConnectionAborted` after [`reset`](TcpStream::reset); `NotConnected` if the stack has
    /// ended.
    fn connection<'a>(&self, state: &'a mut Locked<'_, D>) -> io::Result<&'a Connection> {
        let connection = state.shard()?.connection(self.id);
        connection.ok_or_else(|| error_of(End::Aborted))
    }
}

impl<D: Device + Send + 'static> Drop for TcpStream<D> {
    fn drop(&mut self) {
        let now = self.shared.now();
        let mut state = self.shared.lock();
        if let Ok(shard) = state.shard() {
            shard.close(now, self.id);
            state.unregister_waits(self.id, &self.waits);
            state.call();
        }
    }
}

impl<D: Device + Send + 'static> Read for &TcpStream<D> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive_into(buffer, deadline_of(&self.read_timeout))
    }
}

impl<D: Device + Send + 'static> Write for &TcpStream<D> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send(slices, deadline_of(&self.write_timeout))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<D: Device + Send + 'static> Read for TcpStream<D> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }
}

impl<D: Device + Send + 'static> Write for TcpStream<D> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<D: Device + Send + 'static> fmt::Debug for TcpStream<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpStream")
            .field("local", &self.local)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

/// Error that the kernel reports for a connection with this end.
fn error_of(end: End) -> io::Error {
    let kind = match end {
        End::Closed => io::ErrorKind::NotConnected,
        End::Reset => io::ErrorKind::ConnectionReset,
        End::Refused => io::ErrorKind::ConnectionRefused,
        End::TimedOut => io::ErrorKind::TimedOut,
        End::Aborted => io::ErrorKind::ConnectionAborted,
        End::Unreachable => io::ErrorKind::HostUnreachable,
    };
    kind.into()
}

fn refusal(error: ConnectError) -> io::Error {
    let kind = match error {
        ConnectError::TooMany => io::ErrorKind::QuotaExceeded,
        ConnectError::NoPort => io::ErrorKind::AddrNotAvailable,
        ConnectError::InUse => io::ErrorKind::AddrInUse,
        ConnectError::NoAddress => io::ErrorKind::NetworkUnreachable,
        ConnectError::NotAlone => io::ErrorKind::Unsupported,
    };
    io::Error::new(kind, error)
}

fn set_timeout(cell: &AtomicU64, timeout: Option<Duration>) -> io::Result<()> {
    if timeout == Some(Duration::ZERO) {
        let message = "the time-out is zero; pass None for no time-out";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let nanos = timeout.map_or(0, |it| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX));
    cell.store(nanos, Ordering::Relaxed);
    Ok(())
}

fn timeout_of(cell: &AtomicU64) -> Option<Duration> {
    let nanos = cell.load(Ordering::Relaxed);
    (nanos != 0).then(|| Duration::from_nanos(nanos))
}

fn deadline_of(cell: &AtomicU64) -> Option<Instant> {
    Instant::now().checked_add(timeout_of(cell)?)
}
