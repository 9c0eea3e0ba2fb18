//! A server of your own on one page: a protocol as a [`Session`], and what hosts it.
//!
//! ```text
//! cargo run --release -p weftwork-serve --example line -- 127.0.0.1:7000
//! printf 'hello\nworld\n' | nc -q1 127.0.0.1 7000
//! ```

use std::io;
use std::sync::mpsc;

use serve::listen::{self, Address};
use serve::signals::Signals;
use serve::{Server, Settings};
use session::{Next, Now, Outbox, Phase, Received, Session};

/// Answers each line with the same line, back to front.
struct Reverse;

const LINE_LEN_MAX: usize = 4096;

impl Session for Reverse {
    fn receive(&mut self, input: &[u8], _now: Now, out: &mut Outbox) -> Received {
        let mut used = 0;
        let then = |used, next| Received { used, next };
        while let Some(len) = input[used..].iter().position(|&byte| byte == b'\n') {
            if out.is_full() {
                return then(used, Next::Flush); // Comes back with what was not used.
            }
            let line = input[used..used + len].iter().rev().copied();
            out.put(&line.chain(*b"\n").collect::<Vec<_>>());
            used += len + 1;
        }
        match input.len() - used {
            0 => then(used, Next::Receive(Phase::Idle)),
            // Half a line is shown again, with more behind it.
            1..=LINE_LEN_MAX => then(used, Next::Receive(Phase::Head)),
            _ => {
                out.put(b"the line is too long\n");
                then(input.len(), Next::Linger)
            }
        }
    }
}

fn main() -> io::Result<()> {
    let (stop, stopped) = mpsc::channel();
    let _signals = Signals::start(move |signal| {
        if signal.is_stop() {
            let _ = stop.send(signal);
        }
    })?;
    let argument = std::env::args().nth(1);
    let address: Address = argument.as_deref().unwrap_or("127.0.0.1:7000").parse()?;
    let settings = Settings {
        listeners: listen::bind(&address, None)?,
        ..Settings::default()
    };
    let server = Server::start(settings, |_| Reverse)?;
    eprintln!("listening at {address}");
    let signal = stopped.recv().expect("sent by the thread of the signals");
    let cut = server.drain();
    eprintln!("{signal}: {cut} connections were cut");
    Ok(())
}
