//! Two stacks on a link inside this process, each on a processor of its own if there are two.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fiber::{BackendChoice, Inspector, Runtime};
use netstack::Netstack;
use netstack::device::impair::{Impair, Impairment};
use netstack::device::{
    Capabilities, Device, OutgoingFrame, ReceiveBurst, TransmitError, Verified,
};
use netstack::ip::{IpConfig, Prefix};
use netstack::stack::ShardLimits;
use netstack::tcp::TcpConfig;
use netstack::time::Instant as NetInstant;
use netstack::wire::ethernet::EthernetAddress;
use rustix::event::{EventfdFlags, eventfd};
use sockets::SocketStack;

/// Longer than any step of these tests takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const MTU: usize = 1500;

/// Bounds of the devices in these tests.
pub(crate) trait AnyDevice: Device + Send + 'static {}
impl<D: Device + Send + 'static> AnyDevice for D {}

/// A promise about the stacks of a server and a client.
type Promise<C> = fn(Arc<SocketStack<Wire>>, Arc<SocketStack<C>>);

/// One end of the link. What one end transmits waits in memory for the other.
pub(crate) struct Wire {
    outgoing: Arc<Pipe>,
    incoming: Arc<Pipe>,
    /// Number of coming calls that fail.
    pub(crate) receives_to_fail: usize,
    pub(crate) transmits_to_fail: usize,
}

/// One direction, with a descriptor that is readable while there are frames.
struct Pipe {
    frames: Mutex<VecDeque<Vec<u8>>>,
    frames_max: usize,
    waker: OwnedFd,
}

fn pair(frames_max: usize) -> (Wire, Wire) {
    let pipe = || {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        Arc::new(Pipe { frames: Mutex::default(), frames_max, waker: eventfd(0, flags).unwrap() })
    };
    let there = pipe();
    let back = pipe();
    let end = |outgoing: &Arc<Pipe>, incoming: &Arc<Pipe>| Wire {
        outgoing: Arc::clone(outgoing),
        incoming: Arc::clone(incoming),
        receives_to_fail: 0,
        transmits_to_fail: 0,
    };
    (end(&there, &back), end(&back, &there))
}

impl Device for Wire {
    fn capabilities(&self) -> Capabilities {
        Capabilities::plain(MTU)
    }

    fn receive(&mut self, _now: NetInstant, burst: &mut ReceiveBurst) -> io::Result<()> {
        fails(&mut self.receives_to_fail)?;
        let mut frames = self.incoming.frames.lock().unwrap();
        while let Some(buffer) = burst.spare_buffer() {
            let Some(frame) = frames.pop_front() else {
                let _ = rustix::io::read(&self.incoming.waker, &mut [0; 8]);
                break;
            };
            buffer[..frame.len()].copy_from_slice(&frame);
            burst.push(frame.len(), Verified::No, None);
        }
        Ok(())
    }

    fn transmit(&mut self, _: NetInstant, frame: &OutgoingFrame<'_>) -> Result<(), TransmitError> {
        fails(&mut self.transmits_to_fail).map_err(TransmitError::Io)?;
        let mut frames = self.outgoing.frames.lock().unwrap();
        if frames.len() == self.outgoing.frames_max {
            return Err(TransmitError::Full);
        }
        let mut bytes = vec![0; frame.len()];
        frame.gather(&mut bytes);
        frames.push_back(bytes);
        rustix::io::write(&self.outgoing.waker, &1u64.to_ne_bytes()).unwrap();
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.incoming.waker.as_fd())
    }
}

fn fails(left: &mut usize) -> io::Result<()> {
    if *left > 0 {
        *left -= 1;
        return Err(io::Error::other("a device that fails"));
    }
    Ok(())
}

/// The address of the server's stack is 1, the client's 2.
pub(crate) fn address(stack: u8, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::from([192, 0, 2, stack]), port)
}

fn start<D: AnyDevice>(device: D, number: u8) -> Arc<SocketStack<D>> {
    let interface = IpConfig {
        mac: EthernetAddress([2, 0, 0, 0, 0, number]),
        mtu: MTU,
        addresses: vec![Prefix { address: address(number, 0).ip(), len: 24 }],
        gateway_v4: None,
        gateway_v6: None,
    };
    let (tcp, limits, key) = (TcpConfig::default(), ShardLimits::default(), [number; 16]);
    let netstack = Netstack::new(device, interface, tcp, limits, key);
    let builder = fiber::Builder::new().processor(usize::from(number) - 1);
    Arc::new(SocketStack::start(netstack, builder).unwrap())
}

fn run(backend: BackendChoice, processors: usize, f: impl FnOnce(Inspector) + Send + 'static) {
    let builder = Runtime::builder().processors(processors);
    let runtime = builder.backend(backend).start().unwrap();
    let inspector = runtime.inspector();
    runtime.run(|| fiber::timeout(PATIENCE, || f(inspector)));
    assert_eq!(runtime.shutdown(PATIENCE), 0, "fibers are left");
}

/// Runs `f` with a server's stack and a client's, on each back end, on one processor and on two.
/// The link holds so few frames that it is often full.
pub(crate) fn on_a_link(f: Promise<Wire>) {
    on_a_link_seen(move |server, client, _| f(server, client));
}

/// Runs as [`on_a_link`] and passes an inspector of the fibers.
pub(crate) fn on_a_link_seen(
    f: impl Fn(Arc<SocketStack<Wire>>, Arc<SocketStack<Wire>>, Inspector) + Copy + Send + 'static,
) {
    for backend in [BackendChoice::Auto, BackendChoice::Epoll] {
        for processors in [1, 2] {
            run(backend, processors, move |inspector| {
                let (near, far) = pair(100);
                f(start(near, 1), start(far, 2), inspector);
            });
        }
    }
}

/// Runs with the client's stack behind a link that impairs both directions by the seed.
pub(crate) fn over(link: Impairment, seed: u64, backend: BackendChoice, f: Promise<Impair<Wire>>) {
    run(backend, 2, move |_| {
        let (near, far) = pair(10_000);
        f(start(near, 1), start(Impair::new(far, link, link, seed), 2));
    });
}
