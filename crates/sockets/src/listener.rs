//! [`TcpListener`].

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fiber::sync::Condvar;
use netstack::device::Device;
use netstack::interface_config::DeviceQueue;
use netstack::stack::{Backlog, FlowId, Shard};

use crate::stack::{Locked, Shared, SocketStack};
use crate::stream::TcpStream;

/// A listening port of a [`SocketStack`], like [`fiber::net::TcpListener`]. Any number of fibers
/// may accept from it at once.
///
/// ```no_run
/// # fn serve(stack: &weftwork_sockets::SocketStack) -> std::io::Result<()> {
/// use weftwork_sockets::TcpListener;
///
/// let listener = TcpListener::bind(stack, "0.0.0.0:80".parse().unwrap())?;
/// while let Ok(stream) = listener.accept() {
///     fiber::spawn(move || println!("{} has come", stream.peer_addr()));
/// }
/// # Ok(())
/// # }
/// ```
pub struct TcpListener<D: Device + Send + 'static = DeviceQueue> {
    shared: Arc<Shared<D>>,
    address: SocketAddr,
    waiting: Arc<Condvar>,
    is_closed: AtomicBool,
}

impl<D: Device + Send + 'static> TcpListener<D> {
    /// Listens at one of the stack's addresses; `0.0.0.0` is all of IPv4, `[::]` all. A port has
    /// one listener: connections to it at another address are reset.
    ///
    /// # Errors
    /// `AddrInUse`; `AddrNotAvailable` if the address is not the stack's; `InvalidInput` for port
    /// 0.
    pub fn bind(stack: &SocketStack<D>, address: SocketAddr) -> io::Result<TcpListener<D>> {
        TcpListener::bind_with(stack, address, Backlog::default())
    }

    /// Binds as [`bind`](TcpListener::bind), with limits on the connections that wait to be
    /// accepted.
    ///
    /// # Errors
    /// Like [`bind`](TcpListener::bind).
    pub fn bind_with(
        stack: &SocketStack<D>,
        address: SocketAddr,
        backlog: Backlog,
    ) -> io::Result<TcpListener<D>> {
        let mut state = stack.shared.lock();
        state.check()?;
        if address.port() == 0 {
            let message = "a listener needs a port";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        state.check_local(address.ip())?;
        let waiting = state.open_port(address.port());
        let waiting = waiting.ok_or(io::ErrorKind::AddrInUse)?;
        state.shard()?.listen(address.port(), backlog);
        Ok(TcpListener {
            shared: Arc::clone(&stack.shared),
            address,
            waiting,
            is_closed: AtomicBool::new(false),
        })
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// `NotConnected` after [`close`](TcpListener::close) and when the stack has ended;
    /// [`fiber::Cancelled`].
    pub fn accept(&self) -> io::Result<TcpStream<D>> {
        fiber::checkpoint()?;
        let mut state = self.shared.lock();
        loop {
            while let Some(id) = self.shard(&mut state)?.accept(self.address.port()) {
                if let Some(stream) = self.admit(&mut state, id) {
                    return Ok(stream);
                }
            }
            state = Shared::wait(state, &self.waiting, None).inspect_err(|_| {
                // This fiber may have taken a notification that another waiting fiber needs.
                self.waiting.notify_one();
            })?;
        }
    }

    /// Shard, as long as this listener owns its port: after a close, the port may have a new owner.
    ///
    /// # Errors
    /// `NotConnected` after [`close`](TcpListener::close) and when the stack has ended.
    fn shard<'a>(&self, state: &'a mut Locked<'_, D>) -> io::Result<&'a mut Shard> {
        if self.is_closed.load(Ordering::Relaxed) {
            Err(io::ErrorKind::NotConnected.into())
        } else {
            state.shard()
        }
    }

    fn admit(&self, state: &mut Locked<'_, D>, id: FlowId) -> Option<TcpStream<D>> {
        let (local, _) = state.addresses(id)?;
        if takes(self.address.ip(), local.ip()) {
            return TcpStream::of(&self.shared, state, id);
        }
        state.shard().ok()?.abort(id);
        state.call();
        None
    }

    /// Number of connections that are half open or wait to be accepted.
    pub fn backlog_len(&self) -> usize {
        let mut state = self.shared.lock();
        let shard = self.shard(&mut state);
        shard.map_or(0, |shard| shard.backlog_len(self.address.port()))
    }

    /// Stops listening: fibers that wait in [`accept`](TcpListener::accept) get an error,
    /// connections that wait for them are reset, later ones refused.
    pub fn close(&self) {
        let mut state = self.shared.lock();
        if !self.is_closed.swap(true, Ordering::Relaxed) {
            state.close_port(self.address.port());
        }
    }

    /// The address that it was bound to.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }
}

impl<D: Device + Send + 'static> Drop for TcpListener<D> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<D: Device + Send + 'static> fmt::Debug for TcpListener<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpListener").field("address", &self.address).finish_non_exhaustive()
    }
}

/// True if a listener at `bound` takes connections to `own`, one of the stack's addresses.
fn takes(bound: IpAddr, own: IpAddr) -> bool {
    bound == own || bound.is_unspecified() && (bound.is_ipv6() || own.is_ipv4())
}
