//! Full duplex: many streams on one connection, and input while output waits.

#[path = "../../../session/tests/mux/mod.rs"]
mod protocol;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serve::listen::{Address, bind};
use serve::{Engine, Server, Settings};
use session::replay::Random;

use self::protocol::{Mux, SLOW_LEN};

const PATIENCE: Duration = Duration::from_secs(30);

fn start(engine: &Engine) -> (Server, SocketAddr) {
    let listeners = bind(&"127.0.0.1:0".parse().unwrap(), None).unwrap();
    let Address::Tcp(address) = listeners[0].address else {
        panic!("{:?} is not TCP", listeners[0].address)
    };
    let settings = Settings { engine: engine.clone(), listeners, ..Settings::default() };
    let server = Server::start(settings, |_| Mux::default()).unwrap();
    (server, address)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    all
}

/// The bytes of each stream, and the offset of its first frame.
fn by_stream(replies: &[u8]) -> BTreeMap<u32, (usize, Vec<u8>)> {
    let mut streams = BTreeMap::<u32, (usize, Vec<u8>)>::new();
    let mut at = 0;
    while let Some((stream, bytes)) = Mux::parse(&replies[at..]) {
        let (_, all) = streams.entry(stream).or_insert((at, Vec::new()));
        all.extend_from_slice(bytes);
        at += Mux::frame(stream, b"").len() + bytes.len();
    }
    assert_eq!(at, replies.len(), "frames are whole");
    streams
}

/// Waits until a condition holds.
fn wait_until(what: &str, server: &Server, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: {:?}", server.counters());
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(super) fn streams_of_a_connection_are_answered(engine: &Engine) {
    let (_server, address) = start(engine);
    for seed in 0..4 {
        let mut random = Random(seed);
        let mut sent = Vec::new();
        let mut expected = BTreeMap::new();
        for stream in 0..40 {
            let (asked, reply) = match random.below(3) {
                0 => ("work", "worked".to_owned()),
                1 => ("ping", "ping".to_owned()),
                _ => ("slow 1", "x".repeat(SLOW_LEN)),
            };
            sent.extend(Mux::frame(stream, asked.as_bytes()));
            expected.insert(stream, reply.into_bytes());
        }
        sent.extend(Mux::frame(0, b"bye"));
        let mut stream = connect(address);
        let mut rest = &sent[..];
        while !rest.is_empty() {
            let len = 1 + random.below(rest.len() as u64) as usize;
            stream.write_all(&rest[..len]).unwrap();
            rest = &rest[len..];
        }
        let got = by_stream(&read_all(&mut stream));
        let bytes = got.into_iter().map(|(stream, (_, bytes))| (stream, bytes));
        assert!(bytes.collect::<BTreeMap<_, _>>() == expected, "seed {seed}");
    }
}

/// The client reads nothing of a long reply and sends more requests. The server reads them, and
/// answers before the end of the long reply. A pipeline sends first, but loses nothing.
pub(super) fn input_is_taken_while_output_waits(engine: &Engine) {
    // More than the buffers of both sockets hold.
    const SLOW_COUNT: usize = 320;
    let (server, address) = start(engine);
    let mut stream = connect(address);
    stream.write_all(&Mux::frame(1, format!("slow {SLOW_COUNT}").as_bytes())).unwrap();
    let mut before = 0;
    wait_until("the output is blocked", &server, || {
        let now = server.counters().bytes_sent();
        now > 0 && std::mem::replace(&mut before, now) == now
    });
    let heard = server.counters().bytes_received();
    let asked = [&b"ping"[..], b"work"].map(|asked| Mux::frame(2, asked));
    stream.write_all(&asked.concat()).unwrap();
    let is_duplex = !matches!(engine, Engine::Pipeline(_));
    if is_duplex {
        wait_until("the server receives the requests", &server, || {
            server.counters().bytes_received() == heard + asked.concat().len() as u64
        });
    }
    stream.write_all(&Mux::frame(2, b"bye")).unwrap();
    let got = read_all(&mut stream);
    let streams = by_stream(&got);
    let (at, answers) = &streams[&2];
    let is_early = *at < got.len() - 2 * SLOW_LEN;
    assert!(is_early || !is_duplex, "at {at} of {}", got.len());
    assert_eq!(answers, b"pingworked");
    assert_eq!(streams[&1].1.len(), SLOW_COUNT * SLOW_LEN);
}
