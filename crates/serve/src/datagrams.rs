//! Datagrams beside connections: any number of fibers (or a few kernel threads) receive from one socket, answer, and
//! receive again. No conversation is kept between two datagrams.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use fiber::Runtime;

/// The longest datagram there can be. udp(7)
const DATAGRAM_LEN_MAX: usize = 65_536;

/// Who receives, per processor or in all: while one answers, others receive.
const FIBERS_PER_PROCESSOR: usize = 4;
const THREADS: usize = 2;

/// How long a stop may go unnoticed.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How long a reply may wait for room in the socket's buffer. A datagram may be lost anywhere else as well.
const SEND_PATIENCE: Duration = Duration::from_millis(200);

const ERROR_PAUSE: Duration = Duration::from_millis(20);

/// What became of datagrams.
#[derive(Debug, Default)]
pub struct DatagramCounters {
    received: AtomicU64,
    sent: AtomicU64,
    unsent: AtomicU64,
}

impl DatagramCounters {
    /// Datagrams received.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Datagrams sent.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Datagrams that could not be sent.
    pub fn unsent(&self) -> u64 {
        self.unsent.load(Ordering::Relaxed)
    }
}

/// Calls its second argument with each datagram of the answer to the first.
pub(crate) trait Answer:
    Fn(&[u8], SocketAddr, &mut dyn FnMut(&[u8])) + Send + Sync + 'static
{
}
impl<F: Fn(&[u8], SocketAddr, &mut dyn FnMut(&[u8])) + Send + Sync + 'static> Answer for F {}

struct Post<F, S> {
    socket: S,
    answer: F,
    counters: Arc<DatagramCounters>,
    is_over: Arc<AtomicBool>,
}

/// What is asked of a socket: fibers have theirs, threads have std's.
trait Socket: Send + Sync + 'static {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)>;
    fn send(&self, bytes: &[u8], to: SocketAddr) -> io::Result<usize>;
}

impl Socket for fiber::net::UdpSocket {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.recv_from(buffer)
    }

    fn send(&self, bytes: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.send_to(bytes, to)
    }
}

impl Socket for std::net::UdpSocket {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.recv_from(buffer)
    }

    fn send(&self, bytes: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.send_to(bytes, to)
    }
}

/// Starts to receive. Ends soon after `is_over`.
pub(crate) fn start(
    socket: std::net::UdpSocket,
    runtime: Option<&Runtime>,
    is_over: Arc<AtomicBool>,
    answer: impl Answer,
) -> io::Result<Arc<DatagramCounters>> {
    let counters = Arc::new(DatagramCounters::default());
    let Some(runtime) = runtime else {
        socket.set_read_timeout(Some(LOOK_EVERY))?;
        socket.set_write_timeout(Some(SEND_PATIENCE))?;
        let post = Arc::new(Post {
            socket,
            answer,
            counters: Arc::clone(&counters),
            is_over,
        });
        for _ in 0..THREADS {
            let post = Arc::clone(&post);
            let builder = thread::Builder::new().name("datagrams".into());
            builder.spawn(move || post.serve())?;
        }
        return Ok(counters);
    };
    let socket = fiber::net::UdpSocket::from(socket);
    socket.set_read_timeout(Some(LOOK_EVERY))?;
    socket.set_write_timeout(Some(SEND_PATIENCE))?;
    let post = Arc::new(Post {
        socket,
        answer,
        counters: Arc::clone(&counters),
        is_over,
    });
    for index in 0..runtime.processor_count() * FIBERS_PER_PROCESSOR {
        let post = Arc::clone(&post);
        let builder = fiber::Builder::new().name("datagrams").processor(index);
        drop(runtime.spawn_with(builder, move || post.serve())?);
    }
    Ok(counters)
}

impl<F: Answer, S: Socket> Post<F, S> {
    fn serve(&self) {
        let mut buffer = vec![0; DATAGRAM_LEN_MAX];
        while !self.is_over.load(Ordering::Relaxed) {
            let (len, from) = match self.socket.receive(&mut buffer) {
                Ok(received) => received,
                Err(error) => {
                    rest_after(&error);
                    continue;
                }
            };
            self.counters.received.fetch_add(1, Ordering::Relaxed);
            (self.answer)(&buffer[..len], from, &mut |datagram| {
                let counter = match self.socket.send(datagram, from) {
                    Ok(_) => &self.counters.sent,
                    Err(_) => &self.counters.unsent,
                };
                counter.fetch_add(1, Ordering::Relaxed);
            });
        }
    }
}

/// After an error that comes back at once a fiber must not spin.
fn rest_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionRefused, Interrupted, TimedOut, WouldBlock};
    // Nothing came in time, or what was sent before did not arrive (ICMP). udp(7)
    let is_usual = [ConnectionRefused, Interrupted, TimedOut, WouldBlock].contains(&error.kind());
    if !is_usual {
        fiber::sleep(ERROR_PAUSE);
    }
}
