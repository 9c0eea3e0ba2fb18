//! Host of two shards that opens COUNT connections from each shard to one peer. It begins when its
//! standard input has a line, and prints how many have opened.
//!
//! ```text
//! ask KIND:INTERFACE ADDRESS/LEN PEER:PORT COUNT      as root, KIND as in --engine netstack:device=…
//!
//! cargo build --example ask
//! sudo target/debug/examples/ask packet:eth0 10.9.0.2/24 10.9.0.1:22 50
//! ```

extern crate weftwork_netstack as netstack;

use std::env;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant as Clock};

use netstack::interface_config::InterfaceConfig;
use netstack::stack::ShardLimits;
use netstack::tcp::{TcpConfig, TcpEvents};
use netstack::time::Instant;

/// Longer than the repair of a lost SYN takes.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [device, address, peer, count] = &words[..] else {
        return Err("usage: ask KIND:INTERFACE ADDRESS/LEN PEER:PORT COUNT".into());
    };
    let interface = InterfaceConfig {
        device: device.parse()?,
        addresses: vec![address.parse()?],
        gateways: Vec::new(),
        mtu: None,
    };
    let (peer, count): (SocketAddr, usize) = (peer.parse()?, count.parse()?);
    let mut shards = interface.open(2, TcpConfig::default(), ShardLimits::default())?;
    println!("ready");
    io::stdin().read_line(&mut String::new())?;
    let began = Clock::now();
    for shard in &mut shards {
        for _ in 0..count {
            shard.connect(Instant::START + began.elapsed(), peer)?;
        }
    }
    let mut opened = 0;
    let mut ended = 0;
    while opened + ended < 2 * count && began.elapsed() < PATIENCE {
        for shard in &mut shards {
            let now = Instant::START + began.elapsed();
            shard.receive(now)?;
            while let Some((_, events)) = shard.shard().next_event() {
                opened += usize::from(events.contains(TcpEvents::CONNECTED));
                ended += usize::from(events.contains(TcpEvents::ENDED));
            }
            shard.transmit(now, &())?;
        }
    }
    println!("opened {opened} ended {ended}");
    Ok(())
}
