//! `web-sendfile`: one responder that sends files in several ways, to slow and fast readers.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::catalog::prelude::*;

pub(in crate::catalog) const WEB_SENDFILE: Experiment = Experiment {
    name: "web-sendfile",
    about: "ways to send files from one responder, with slow readers among fast ones",
    page: page!("web-sendfile"),
    measures: &[Measure::RATE, Measure::P99, WORKERS, CLOSE_WAIT, Measure::CPU_US, Measure::ERRORS],
    configurations,
    systems: &[POLL, YIELD, BLOCKING, SPLICE, SECOND, FEW, READ],
    work: Work::Server(ServerWork {
        lasts: 1.5,
        seconds_min: 0.5,
        quick_repetitions: 2,
        // A way may have hundreds of threads.
        queues_by_itself: true,
        asks_itself: true,
        ..ServerWork::new(take)
    }),
    figures: &[bars(0), bars(1), bars(2)],
    expectations,
};

const POLL: &str = "sendfile poll";
const YIELD: &str = "sendfile yield";
const BLOCKING: &str = "sendfile blocking";
const SPLICE: &str = "splice";
const SECOND: &str = "splice, second ring";
const FEW: &str = "splice, 8 workers";
const READ: &str = "read and send";

const WORKERS: Measure =
    Measure { is_told: true, ..less("kernel_workers", "threads of the kernel for the ring", "") };
const CLOSE_WAIT: Measure =
    Measure { is_told: true, ..less("close_wait", "sockets in CLOSE-WAIT", "") };

const FAST_BYTES: u64 = 100 * 1024;
/// More than the buffers of a socket.
const SLOW_BYTES: u64 = 8 << 20;
/// Time in which most ways have filled the sockets of the slow readers; one never finishes.
///
/// Seen: "read and send" answered 427 requests a second. Cause: each of these sockets accepts some
/// 2.6 MB, and copying them takes longer than a sample. Cure: the load begins after that.
const FILL_S: u64 = 3;
const NO_SLOW: &str = "no slow readers";
const SLOW: &str = "500 slow readers";

fn configurations(_: &Breadth) -> Vec<Configuration> {
    let configurations = [(NO_SLOW, 0, 0), (SLOW, 500, FILL_S)].map(|(label, slow, least_s)| {
        Configuration::new(label, "http", [("slow", slow), ("least_s", least_s)])
    });
    configurations.into()
}

fn take(bench: &mut Bench<'_>, configuration: &Configuration, system: &System) -> Taken {
    let site = super::site(bench, "sendfile", &[FAST_BYTES, SLOW_BYTES])?;
    let mut server = bench.start(system, &site, ServerLimits::default())?;
    server.verify(&format!("/{FAST_BYTES}.html"), &super::body(FAST_BYTES, FAST_BYTES as usize))?;
    let slow = SlowReaders::start(server.port, configuration.get("slow", 0))?;
    server.rest(Duration::from_secs(FILL_S))?;
    let url = server.url(&format!("/{FAST_BYTES}.html"));
    let warm_up_ms = 500.0 * bench.seconds;
    let how = format!("http {url} -c 64 --timeout 1s --warm-up {warm_up_ms:.0}ms");
    let driven = bench.drive(&mut server, &[words(&how)])?;
    let mut sample = driven.sample();
    // Healthy servers close connections that the generator has closed. Count before the slow
    // readers leave, since their effect is measured.
    thread::sleep(Duration::from_millis(100));
    sample.add([
        (WORKERS.name, server.kernel_workers() as f64),
        (CLOSE_WAIT.name, f64::from(close_wait(server.port)?)),
    ]);
    drop(slow);
    Ok(sample)
}

/// Sockets of this port whose client has closed, and the server has not.
fn close_wait(port: u16) -> Result<u32, Fault> {
    Ok(count_close_wait(&fs::read_to_string("/proc/net/tcp")?, port))
}

fn count_close_wait(table: &str, port: u16) -> u32 {
    let local = format!(":{port:04X}");
    let is_one = |line: &&str| {
        let mut words = line.split_whitespace().skip(1);
        let is_local = words.next().is_some_and(|address| address.ends_with(&local));
        is_local && words.nth(1) == Some("08")
    };
    table.lines().filter(is_one).count() as u32
}

/// Clients that request a long file and read some 20 KB of it per second.
struct SlowReaders {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl SlowReaders {
    const BUFFER_BYTES: usize = 4096;
    const PAUSE: Duration = Duration::from_millis(50);

    fn start(port: u16, count: u64) -> Result<SlowReaders, Fault> {
        let stop = Arc::new(AtomicBool::new(false));
        let connect = |_| SlowReaders::connect(port);
        let streams = (0..count).map(connect).collect::<Result<Vec<_>, Fault>>()?;
        let is_over = Arc::clone(&stop);
        let thread = thread::spawn(move || SlowReaders::read(streams, &is_over));
        Ok(SlowReaders { stop, thread: Some(thread) })
    }

    fn connect(port: u16) -> Result<TcpStream, Fault> {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
        // Before the connect, because the window of the first packet follows from it.
        sockopt::set_socket_recv_buffer_size(&socket, SlowReaders::BUFFER_BYTES)?;
        rustix::net::connect(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
        let mut stream = TcpStream::from(socket);
        write!(stream, "GET /{SLOW_BYTES}.html HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    fn read(mut streams: Vec<TcpStream>, is_over: &AtomicBool) {
        let mut some = [0; 1024];
        while !is_over.load(Ordering::Relaxed) && !streams.is_empty() {
            streams.retain_mut(|stream| match stream.read(&mut some) {
                Ok(read) => read > 0,
                Err(error) => error.kind() == ErrorKind::WouldBlock,
            });
            thread::sleep(SlowReaders::PAUSE);
        }
    }
}

impl Drop for SlowReaders {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn expectations(rows: &Rows) -> Expectations {
    let rate = rows.by(&Measure::RATE);
    let cpu = rows.by(&Measure::CPU_US);
    let workers = rows.by(&WORKERS);
    vec![
        // A blocked call occupies a kernel thread.
        paper(workers.at_least(SLOW, SPLICE, 400.0)),
        paper(workers.at_least(SLOW, SECOND, 400.0)),
        paper(rate.beats(SLOW, POLL, &[BLOCKING], 10.0)),
        // The thesis presumes that this gives good performance.
        paper(rate.alike(SLOW, NO_SLOW, FEW)),
        rate.alike(SLOW, NO_SLOW, POLL),
        rate.beats(SLOW, POLL, &[YIELD, SPLICE, SECOND, FEW, READ], 1.0),
        cpu.beats(NO_SLOW, POLL, &[SPLICE, READ], 1.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_in_close_wait() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n   0: 0100007F:07D1 \
                     0100007F:9C40 08 00000000:00000000\n   1: 0100007F:07D1 0100007F:9C42 01 \
                     00000000:00000000\n   2: 0100007F:9C40 0100007F:07D1 08 00000000:00000000\n";
        assert_eq!((count_close_wait(table, 2001), count_close_wait(table, 80)), (1, 0));
    }
}
