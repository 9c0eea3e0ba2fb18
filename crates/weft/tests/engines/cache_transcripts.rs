//! The cache's transcripts, played to live servers.

#[path = "../../../cache/tests/transcript/mod.rs"]
mod transcript;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serve::listen::{Address, bind};
use serve::{Engine, Server, Settings};
use session::replay::{Random, Script};

const PATIENCE: Duration = Duration::from_secs(30);

/// Number of ways in which each transcript is cut.
const CUTTINGS: u64 = 2;
const PIECES: usize = 6;

pub(super) fn every_cache_transcript_plays_as_written(engine: &Engine) {
    let listeners = bind(&"127.0.0.1:0".parse().unwrap(), None).unwrap();
    let Address::Tcp(address) = listeners[0].address else {
        panic!("{:?} is not TCP", listeners[0].address)
    };
    let settings = Settings { engine: engine.clone(), listeners, ..Settings::default() };
    let server = Server::start(settings, |_| transcript::conversation().unwrap()).unwrap();
    let mut failures = Vec::new();
    for (name, script) in
        transcript::FILES.iter().flat_map(|(file, text)| transcript::parse(file, text))
    {
        let mut check = |how: &str, replied: &[u8]| {
            if Some(replied) != script.expected() {
                let replied = replied.escape_ascii();
                failures.push(format!("{name} ({how}): {replied}"));
            }
        };
        check("whole", &play(&server, address, &script, &[]));
        for seed in 1..=CUTTINGS {
            let mut random = Random(seed);
            let mut cuts = [(); PIECES - 1].map(|()| random.below(script.sent().len() as u64));
            cuts.sort_unstable();
            check(&format!("cut {cuts:?}"), &play(&server, address, &script, &cuts));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Plays one transcript in pieces that arrive one by one. Returns the replies.
fn play(server: &Server, address: SocketAddr, script: &Script, cuts: &[u64]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let before = server.counters().bytes_received();
    let mut from = 0;
    let ends = cuts.iter().map(|&cut| cut as usize);
    for end in ends.chain([script.sent().len()]) {
        // A server that closes may reset the connection while data is in flight.
        if stream.write_all(&script.sent()[from..end]).is_err() {
            break;
        }
        from = end;
        let deadline = Instant::now() + PATIENCE;
        while server.counters().bytes_received() < before + from as u64 && !has_ended(&stream) {
            assert!(Instant::now() < deadline, "{from} bytes were not received");
            std::thread::sleep(Duration::from_micros(50));
        }
        if has_ended(&stream) {
            break;
        }
    }
    if !script.closes() {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut replied = Vec::new();
    let _ = stream.read_to_end(&mut replied);
    replied
}

/// True if the server sends nothing more, and reads nothing more.
fn has_ended(stream: &TcpStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
    poll(&mut fds, Some(&Timespec::default())).unwrap();
    !fds[0].revents().is_empty()
}
