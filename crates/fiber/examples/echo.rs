//! An echo server: one fiber for each connection, plain blocking code.
//!
//! ```console
//! $ cargo run --example echo 127.0.0.1:7007
//! $ nc 127.0.0.1 7007
//! ```

extern crate weftwork_fiber as fiber;

use std::io;
use std::sync::Arc;

use fiber::net::TcpListener;

/// Serves until the listener is closed.
pub(crate) fn serve(listener: &TcpListener) {
    while let Ok(stream) = listener.accept() {
        fiber::spawn(move || io::copy(&mut &stream, &mut &stream));
    }
}

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:7007".into());
    fiber::run(move || {
        let listener = Arc::new(TcpListener::bind(address)?);
        println!("echoing on {}", listener.local_addr()?);
        serve(&listener);
        Ok(())
    })
}
