//! A TCP proxy: two fibers for each connection, one for each direction. The end of one direction is
//! passed on while the other continues.

extern crate weftwork_fiber as fiber;

use std::io;
use std::net::{Shutdown, SocketAddr};

use fiber::net::{TcpListener, TcpStream};

/// Passes connections on to `upstream` until the listener is closed.
pub(crate) fn serve(listener: &TcpListener, upstream: SocketAddr) {
    while let Ok(client) = listener.accept() {
        fiber::spawn(move || {
            if let Err(error) = pass_on(&client, upstream) {
                eprintln!("{upstream}: {error}");
            }
        });
    }
}

fn pass_on(client: &TcpStream, upstream: SocketAddr) -> io::Result<()> {
    let server = TcpStream::connect(upstream)?;
    fiber::scope(|scope| {
        let request = scope.spawn(|| one_way(client, &server));
        let reply = one_way(&server, client);
        let request = request.join().expect("copying does not panic");
        request.and(reply)
    })
}

fn one_way(mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    io::copy(&mut from, &mut to)?;
    to.shutdown(Shutdown::Write)
}

fn main() -> io::Result<()> {
    let upstream = std::env::args().nth(1).expect("usage: proxy ADDRESS:PORT");
    let upstream = upstream.parse().expect("ADDRESS:PORT");
    fiber::run(move || {
        let listener = TcpListener::bind("127.0.0.1:7009")?;
        println!("{} to {upstream}", listener.local_addr()?);
        serve(&listener, upstream);
        Ok(())
    })
}
