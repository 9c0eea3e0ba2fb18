//! A custom server on one page: a protocol as a [`Session`], and the server that hosts it.
//! `docs/your-own-server.md` explains it line by line.
//!
//! ```text
//! cargo run --release -p weftwork-serve --example line -- 127.0.0.1:7000 fiber
//! printf 'hello\nworld\n' | nc -q1 127.0.0.1 7000
//! ```

extern crate weftwork_serve as serve;

use std::io;
use std::net::Ipv4Addr;

use netstack::interface_config::InterfaceConfig;
use netstack::tcp::TcpConfig;
use serve::engine::netstack::{NetstackInterface, NetstackListener};
use serve::engine::{EventOptions, PipelineOptions};
use serve::listen::{self, Address, Bound};
use serve::{Engine, Server, Settings};
use session::{Next, NoWork, Now, Outbox, Phase, Received, Session};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Answers each line with the same line reversed.
struct Reverse;

const LINE_LEN_MAX: usize = 4096;

impl Session for Reverse {
    type Work = NoWork;

    fn receive(&mut self, input: &[u8], _now: Now, out: &mut Outbox) -> Received {
        let mut used = 0;
        let then = |used, next| Received { used, next };
        while let Some(len) = input[used..].iter().position(|&byte| byte == b'\n') {
            if out.is_full() {
                return then(used, Next::Flush);
            }
            let line = input[used..used + len].iter().rev().copied();
            out.put(&line.chain(*b"\n").collect::<Vec<_>>());
            used += len + 1;
        }
        match input.len() - used {
            0 => then(used, Next::Receive(Phase::Idle)),
            1..=LINE_LEN_MAX => then(used, Next::Receive(Phase::Head)),
            _ => {
                out.put(b"the line is too long\n");
                then(input.len(), Next::Linger)
            }
        }
    }
}

/// Serves connections of these listeners.
pub(crate) fn start(listeners: Vec<Bound>, engine: Engine) -> io::Result<Server> {
    let settings = Settings { engine, listeners, ..Settings::default() };
    Server::start(settings, |_opening| Reverse)
}

/// The engine with this name.
pub(crate) fn engine(name: &str) -> io::Result<Engine> {
    match name {
        "fiber" => Ok(Engine::default()),
        "thread" => Ok(Engine::Thread),
        "event" => Ok(Engine::Event(EventOptions::default())),
        "pipeline" => Ok(Engine::Pipeline(PipelineOptions::default())),
        _ => Err(io::Error::other(format!("there is no engine '{name}'"))),
    }
}

/// Serves at port 7000 of an in-process TCP/IP stack with this address: `10.9.0.2/24`.
pub(crate) fn start_on_netstack(address: &str) -> io::Result<Server> {
    let interface = InterfaceConfig {
        device: "tap:line0".parse().map_err(io::Error::other)?,
        addresses: vec![address.parse().map_err(io::Error::other)?],
        gateways: Vec::new(),
        mtu: None,
    };
    let address = (Ipv4Addr::UNSPECIFIED, 7000).into();
    let listeners = vec![NetstackListener { address, tls: None }];
    let opened = NetstackInterface::open(&interface, 1, TcpConfig::default(), listeners, None);
    let settings = Settings {
        engine: Engine::Netstack,
        netstack: Some(opened.map_err(io::Error::other)?),
        ..Settings::default()
    };
    Server::start(settings, |_opening| Reverse)
}

fn main() -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or("127.0.0.1:7000".to_owned());
    let server = match &*arguments.next().unwrap_or("fiber".to_owned()) {
        "netstack" => start_on_netstack(&address)?,
        name => {
            let listeners = listen::bind(&address.parse::<Address>()?, None)?;
            start(listeners, engine(name)?)?
        }
    };
    println!("listening at {address}");
    signals.forever().next();
    let cut = server.drain();
    println!("drained, {cut} connections cut");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Reverse;
    use session::replay::{Script, replay};

    #[test]
    fn each_line_comes_back_reversed() {
        let script = Script::new().send("hello\n\nworld\n");
        replay(|| Reverse, &script.expect("olleh\n\ndlrow\n"));
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let script = Script::new().send(vec![b'a'; 4097]).closed();
        replay(|| Reverse, &script.expect("the line is too long\n"));
    }
}
