//! Datagrams: several fibers, or a few kernel threads, receive from one socket and answer. No state
//! is kept between two datagrams.

use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use fiber::Runtime;

/// Longest possible datagram. udp(7)
const DATAGRAM_LEN_MAX: usize = 65_536;

/// Number of receivers, per processor or in total: while one answers, others receive.
const FIBERS_PER_PROCESSOR: usize = 4;
const THREADS: usize = 2;

/// Interval between two checks for the end of the server.
const CHECK_EVERY: Duration = Duration::from_millis(200);

/// Time that a reply waits for space in the socket's buffer; then it is dropped, as the network
/// might drop it.
const SEND_PATIENCE: Duration = Duration::from_millis(200);

const ERROR_PAUSE: Duration = Duration::from_millis(20);

/// Counters of datagrams.
#[derive(Debug, Default)]
pub struct DatagramCounters {
    received: AtomicU64,
    sent: AtomicU64,
    unsent: AtomicU64,
    panicked: AtomicU64,
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

    /// Datagrams whose answer panicked: a bug that costs only this answer.
    pub fn panicked(&self) -> u64 {
        self.panicked.load(Ordering::Relaxed)
    }
}

/// Calls its second argument with each datagram of the answer to the first.
pub(crate) trait Answer:
    Fn(&[u8], SocketAddr, &mut dyn FnMut(&[u8])) + Send + Sync + 'static
{
}
impl<F: Fn(&[u8], SocketAddr, &mut dyn FnMut(&[u8])) + Send + Sync + 'static> Answer for F {}

/// State shared by the receivers of one socket.
struct Receiver<F, S> {
    socket: S,
    answer: F,
    counters: Arc<DatagramCounters>,
    is_over: Arc<AtomicBool>,
}

/// A datagram socket: of `fiber` on fibers, of std on threads.
trait DatagramSocket: Send + Sync + 'static {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)>;
    fn send(&self, bytes: &[u8], to: SocketAddr) -> io::Result<usize>;
}

impl DatagramSocket for fiber::net::UdpSocket {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.recv_from(buffer)
    }

    fn send(&self, bytes: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.send_to(bytes, to)
    }
}

impl DatagramSocket for std::net::UdpSocket {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.recv_from(buffer)
    }

    fn send(&self, bytes: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.send_to(bytes, to)
    }
}

/// Starts receivers on kernel threads. They end soon after `is_over` is set.
pub(crate) fn start_on_threads(
    socket: std::net::UdpSocket,
    is_over: Arc<AtomicBool>,
    answer: impl Answer,
) -> io::Result<Arc<DatagramCounters>> {
    socket.set_read_timeout(Some(CHECK_EVERY))?;
    socket.set_write_timeout(Some(SEND_PATIENCE))?;
    let receiver = Receiver::new(socket, is_over, answer);
    for _ in 0..THREADS {
        let receiver = Arc::clone(&receiver);
        let builder = thread::Builder::new().name("datagrams".into());
        builder.spawn(move || receiver.serve())?;
    }
    Ok(Arc::clone(&receiver.counters))
}

/// Starts receivers on fibers. They end soon after `is_over` is set.
pub(crate) fn start_on_fibers(
    runtime: &Runtime,
    socket: std::net::UdpSocket,
    is_over: Arc<AtomicBool>,
    answer: impl Answer,
) -> io::Result<Arc<DatagramCounters>> {
    let socket = fiber::net::UdpSocket::from(socket);
    socket.set_read_timeout(Some(CHECK_EVERY))?;
    socket.set_write_timeout(Some(SEND_PATIENCE))?;
    let receiver = Receiver::new(socket, is_over, answer);
    for index in 0..runtime.processor_count() * FIBERS_PER_PROCESSOR {
        let receiver = Arc::clone(&receiver);
        let builder = fiber::Builder::new().name("datagrams").processor(index);
        drop(runtime.spawn_with(builder, move || receiver.serve())?);
    }
    Ok(Arc::clone(&receiver.counters))
}

impl<F: Answer, S: DatagramSocket> Receiver<F, S> {
    fn new(socket: S, is_over: Arc<AtomicBool>, answer: F) -> Arc<Receiver<F, S>> {
        Arc::new(Receiver { socket, answer, counters: Arc::default(), is_over })
    }

    fn serve(&self) {
        let mut buffer = vec![0; DATAGRAM_LEN_MAX];
        while !self.is_over.load(Ordering::Relaxed) {
            let (len, from) = match self.socket.receive(&mut buffer) {
                Ok(received) => received,
                Err(error) => {
                    back_off_after(&error);
                    continue;
                }
            };
            self.counters.received.fetch_add(1, Ordering::Relaxed);
            self.answer(&buffer[..len], from);
        }
    }

    fn answer(&self, request: &[u8], from: SocketAddr) {
        let mut send = |datagram: &[u8]| {
            let counter = match self.socket.send(datagram, from) {
                Ok(_) => &self.counters.sent,
                Err(_) => &self.counters.unsent,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        };
        // The panic was printed with its location. Receiving continues in any case.
        let answered = catch_unwind(AssertUnwindSafe(|| (self.answer)(request, from, &mut send)));
        if answered.is_err() {
            self.counters.panicked.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Pauses after an error that may recur at once, so that the receiver does not spin.
fn back_off_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionRefused, Interrupted, TimedOut, WouldBlock};
    // A time-out, or an undelivered earlier datagram (ICMP). udp(7)
    let is_usual = [ConnectionRefused, Interrupted, TimedOut, WouldBlock].contains(&error.kind());
    if !is_usual {
        fiber::sleep(ERROR_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    type TestAnswer = fn(&[u8], SocketAddr, &mut dyn FnMut(&[u8]));

    /// Seen: a panic in the answer ended its receiver, and after as many such datagrams as there
    /// are receivers the port did not answer any more. Cause: nothing caught the panic. Cure: it is
    /// caught and counted, and receiving continues.
    fn survives_panics(
        start: impl FnOnce(UdpSocket, Arc<AtomicBool>, TestAnswer) -> io::Result<Arc<DatagramCounters>>,
    ) {
        const PANICS: u64 = 50;
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(server.local_addr().unwrap()).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let answer: TestAnswer = |request, _, send| {
            send(request);
            assert_ne!(request, b"panic", "deliberate, from a test");
        };
        let counters = start(server, Arc::clone(&is_over), answer).unwrap();
        let mut reply = [0; 16];
        for _ in 0..PANICS {
            client.send(b"panic").unwrap();
            assert_eq!(client.recv(&mut reply).unwrap(), 5);
        }
        client.send(b"well").unwrap();
        let len = client.recv(&mut reply).expect("an answer after the panics");
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(&reply[..len], b"well");
        // The last panics may not be counted yet: their answers are sent earlier.
        assert!(counters.panicked() >= PANICS - FIBERS_PER_PROCESSOR as u64);
    }

    #[test]
    fn panic_in_an_answer_on_a_thread() {
        survives_panics(start_on_threads);
    }

    #[test]
    fn panic_in_an_answer_on_a_fiber() {
        let runtime = Runtime::builder().processors(1).start().unwrap();
        survives_panics(|socket, is_over, answer| {
            start_on_fibers(&runtime, socket, is_over, answer)
        });
    }
}
