//! Scans the TCP ports of this machine: a fiber for each, 512 at a time, bounded by a semaphore.

extern crate weftwork_fiber as fiber;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use fiber::net::TcpStream;
use fiber::sync::{Mutex, Semaphore};

/// The ports of the loopback address that accept a connection, in order.
pub(crate) fn scan(ports: impl IntoIterator<Item = u16>) -> Vec<u16> {
    let in_flight = Semaphore::new(512);
    let open = Mutex::new(Vec::new());
    fiber::scope(|scope| {
        for port in ports {
            // Waiting here, not in the fiber, bounds the number of fibers as well.
            let permit = in_flight.acquire();
            let open = &open;
            scope.spawn(move || {
                let _permit = permit;
                let address = (IpAddr::from(Ipv4Addr::LOCALHOST), port);
                if fiber::timeout(Duration::from_secs(1), || TcpStream::connect(address)).is_ok() {
                    open.lock().unwrap().push(port);
                }
            });
        }
    });
    let mut open = open.into_inner().unwrap();
    open.sort_unstable();
    open
}

fn main() {
    for port in fiber::run(|| scan(1..=u16::MAX)) {
        println!("{port}");
    }
}
