//! Sleep of processors.

extern crate weftwork_fiber as fiber;

mod refused;

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use fiber::net::Input;
use fiber::{BackendChoice, Builder, Flow, Runtime, Source, Stackless};

const EXCHANGES: u64 = 100;
/// Longer than anything here takes, on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct Echo(fiber::net::TcpStream);

impl Stackless for Echo {
    fn source(&self) -> Source<'_> {
        self.0.source()
    }

    fn received(&mut self, input: io::Result<Input>) -> Flow {
        let input = input.unwrap();
        if input.is_empty() {
            Flow::Done
        } else {
            self.0.write_all(&input).map_or(Flow::Done, |()| Flow::Receive)
        }
    }
}

/// A runtime of one processor that echoes what its client sends.
fn echoing(choice: BackendChoice) -> (Runtime, TcpStream) {
    let builder = Runtime::builder().processors(1).backend(choice);
    let runtime = builder.start().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let (stream, _) = listener.accept().unwrap();
    runtime.spawn_stackless_with(Builder::new(), Echo(stream.into()));
    (runtime, client)
}

fn exchange(client: &mut TcpStream) {
    client.write_all(b"x").unwrap();
    client.read_exact(&mut [0]).unwrap();
}

/// Number of times that the processor sleeps in so many exchanges, one after the other.
fn sleeps(runtime: &Runtime, client: &mut TcpStream) -> u64 {
    exchange(client);
    let count = || runtime.counters()[0].sleeps;
    let before = count();
    (0..EXCHANGES).for_each(|_| exchange(client));
    count() - before
}

/// Seen: on a ring a processor took its leave of the others, and came back, twice for each request.
/// Cause: what handed over a send was thought to be a sleep, and ended at once. Cure: a turn that
/// hands over a send does not mean to sleep.
#[test]
fn to_send_is_no_sleep() {
    for choice in [BackendChoice::Uring, BackendChoice::Epoll] {
        let (runtime, mut client) = echoing(choice);
        let sleeps = sleeps(&runtime, &mut client);
        assert!(sleeps < EXCHANGES * 3 / 2, "{choice:?}: {sleeps} sleeps");
    }
}

/// Seen: one connection that might be idle for 60 days ended the server, on a kernel before Linux
/// 5.11. Cause: such a time does not fit into the milliseconds of epoll_wait(2), and rustix calls
/// epoll_pwait2(2) for it. Cure: a processor sleeps for less, and looks again.
#[test]
fn months_of_sleep_on_old_kernels() {
    let sleep = || {
        refused::answer(libc::SYS_epoll_pwait2, libc::ENOSYS);
        let builder = Runtime::builder().processors(1).backend(BackendChoice::Epoll);
        let runtime = builder.start().unwrap();
        let sleeper = runtime.spawn(|| fiber::sleep(Duration::from_secs(60 * 24 * 3600)));
        // Each finds the processor asleep, or about to be.
        (0..10).for_each(|_| runtime.spawn(|| ()).join().unwrap());
        sleeper.cancel();
        sleeper.join().unwrap();
    };
    thread::spawn(sleep).join().unwrap();
}
