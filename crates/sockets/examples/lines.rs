//! A line protocol on a stack of its own: each line comes back reversed, and `quit` ends the
//! conversation. Until standard input ends.
//!
//! ```text
//! lines KIND:INTERFACE ADDRESS/LEN      as root
//!
//! cargo build --example lines
//! sudo target/debug/examples/lines tap:weft0 10.9.0.2/24 &
//! sudo ip address add 10.9.0.1/24 dev weft0; sudo ip link set weft0 up
//! nc 10.9.0.2 7
//! ```

extern crate weftwork_sockets as sockets;

use std::env;
use std::error::Error;
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use netstack::Netstack;
use netstack::interface_config::{DeviceQueue, InterfaceConfig};
use netstack::stack::ShardLimits;
use netstack::tcp::TcpConfig;
use sockets::{SocketStack, TcpListener, TcpStream};

const PORT: u16 = 7;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [device, address] = &words[..] else {
        return Err("usage: lines KIND:INTERFACE ADDRESS/LEN".into());
    };
    let interface = InterfaceConfig {
        device: device.parse()?,
        addresses: vec![address.parse()?],
        gateways: Vec::new(),
        mtu: None,
    };
    let at = SocketAddr::new(interface.addresses[0].address, PORT);
    let mut shards = interface.open(1, TcpConfig::default(), ShardLimits::default())?;
    let netstack = shards.remove(0);
    let runtime = fiber::Runtime::builder().processors(1).start()?;
    Ok(runtime.run(move || serve(netstack, at))?)
}

fn serve(netstack: Netstack<DeviceQueue>, at: SocketAddr) -> io::Result<()> {
    let stack = SocketStack::start(netstack, fiber::Builder::new())?;
    let listener = Arc::new(TcpListener::bind(&stack, at)?);
    println!("ready");
    let own = Arc::clone(&listener);
    let acceptor = fiber::spawn(move || {
        while let Ok(stream) = own.accept() {
            fiber::spawn(move || converse(&stream));
        }
    });
    fiber::offload(|| io::copy(&mut io::stdin(), &mut io::sink()))?;
    listener.close();
    acceptor.join().expect("the acceptor does not panic");
    println!("{:?}", stack.counters());
    Ok(())
}

fn converse(mut stream: &TcpStream) -> io::Result<()> {
    for line in BufReader::new(stream).lines() {
        let line = line?;
        if line == "quit" {
            break;
        }
        let reversed: String = line.chars().rev().collect();
        stream.write_all(format!("{reversed}\n").as_bytes())?;
    }
    stream.linger(None)
}
