//! Clients behind proxies, and limits of each client's address.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use serve::Engine;
use serve::counters::Closed;
use serve::limits::{AddressLimit, Limits, ProxyProtocol};
use session::{Networks, PrefixLen};
use web::{ForwardedField, Proxies, RateLimit, ServiceConfig};

use super::transcript::{self, PROBE};
use super::{GET, LOG, World, read_all, read_reply};

const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x08\x7f\0\0\x01\x13\x88\0\x50";

fn loopback() -> Networks {
    Networks { list: vec!["127.0.0.0/8".parse().unwrap()], has_unix: false }
}

fn proxied(limits: &mut Limits) {
    limits.proxy_protocol = Some(ProxyProtocol { from: loopback(), is_required: true });
}

/// A server that takes client addresses from `X-Forwarded-For` and limits their request rates.
fn world_of_fields(engine: &Engine, burst: u32) -> World {
    let directory = tempfile::tempdir().unwrap();
    transcript::make_site(directory.path()).unwrap();
    let config = ServiceConfig {
        proxies: Some(Proxies { from: loopback(), field: ForwardedField::XForwardedFor }),
        rate_limit: Some(RateLimit {
            requests: 1,
            per: Duration::from_secs(3600),
            burst,
            prefix: PrefixLen::default(),
            exempt: loopback(),
        }),
        ..ServiceConfig::default()
    };
    let site = directory.path().to_owned();
    World::over(engine, &site, directory, Limits::default(), config)
}

/// The addresses in the log, once it has `count` lines; sorted, because loops write in any order.
fn logged(world: &World, count: usize) -> Vec<String> {
    let log = || std::fs::read_to_string(world.directory.path().join(LOG)).unwrap();
    world.wait_until("all lines are logged", |_| log().lines().count() >= count);
    let first = |line: &str| line.split(' ').next().unwrap().to_owned();
    let mut addresses: Vec<_> = log().lines().map(first).collect();
    addresses.sort();
    addresses
}

pub(super) fn clients_of_proxies_are_logged(engine: &Engine) {
    let world = World::with(engine, proxied);
    for header in [&b"PROXY TCP6 2001:db8::7 ::1 5000 80\r\n"[..], V2] {
        // Once whole, and once in pieces that arrive apart.
        let whole = world.exchange(&[header, PROBE].concat());
        assert!(whole.starts_with(b"HTTP/1.1 "));
        let mut stream = world.connect();
        for cut in header.chunks(20) {
            let before = world.server.counters().receives();
            stream.write_all(cut).unwrap();
            world.wait_until("the piece is received", |s| s.counters().receives() > before);
        }
        stream.write_all(PROBE).unwrap();
        assert!(read_all(&mut stream).starts_with(b"HTTP/1.1 "));
    }
    let expected = ["192.0.2.8", "192.0.2.8", "2001:db8::7", "2001:db8::7"];
    assert_eq!(logged(&world, 4), expected);

    let world = world_of_fields(engine, 100);
    let get = String::from_utf8_lossy(GET).replace("Host", "X-Forwarded-For: 192.0.2.9\r\nHost");
    let mut stream = world.connect();
    for request in [get.as_bytes(), GET, get.as_bytes()] {
        stream.write_all(request).unwrap();
        read_reply(&mut stream);
    }
    stream.write_all(b"\0\r\n\r\n").unwrap();
    read_all(&mut stream);
    let expected = ["127.0.0.1", "127.0.0.1", "192.0.2.9", "192.0.2.9"];
    assert_eq!(logged(&world, 4), expected);
}

pub(super) fn a_malformed_proxy_header_is_closed(engine: &Engine) {
    let world = World::with(engine, proxied);
    for input in [GET, b"PROXY TCP4 192.0.2.7 127.0.0.1 5000 80\n"] {
        assert_eq!(world.exchange(input), b"");
    }
    world
        .wait_until("both are closed", |server| server.counters().closed(Closed::ProxyHeader) == 2);
    // A health check sends no header and closes.
    drop(world.connect());
    world.wait_until("the peer is gone", |server| server.counters().closed(Closed::Peer) == 1);
}

pub(super) fn too_many_connections_of_an_address_are_closed(engine: &Engine) {
    let world = World::with(engine, |limits| {
        proxied(limits);
        limits.by_address = Some(AddressLimit {
            connections_max: 2,
            prefix: PrefixLen::default(),
            exempt: loopback(),
        });
    });
    let connect = |client: &str| {
        let mut stream = world.connect();
        let header = format!("PROXY TCP4 {client} 127.0.0.1 5000 80\r\n");
        stream.write_all(&[header.as_bytes(), GET].concat()).unwrap();
        let mut first = [0];
        let is_open = stream.read(&mut first).is_ok_and(|len| len == 1);
        (stream, is_open)
    };
    let open = [connect("192.0.2.7"), connect("192.0.2.7"), connect("192.0.2.8")];
    assert!(open.iter().all(|(_, is_open)| *is_open));
    for _ in 0..3 {
        assert!(!connect("192.0.2.7").1);
    }
    world.wait_until("the others are closed", |server| {
        server.counters().closed(Closed::AddressLimit) == 3
    });
    drop(open);
    world.wait_until("those are closed", |server| server.counters().active() == 0);
    assert!(connect("192.0.2.7").1);

    // Without a header the socket's own address is limited.
    let world = World::with(engine, |limits| {
        limits.by_address = Some(AddressLimit {
            connections_max: 1,
            prefix: PrefixLen { v4: 8, v6: 64 },
            exempt: Networks::default(),
        });
    });
    let mut first = world.connect();
    first.write_all(GET).unwrap();
    assert!(read_reply(&mut first).starts_with("HTTP/1.1 200 "));
    let mut second = world.connect();
    let _ = second.write_all(GET);
    assert!(read_all(&mut second).is_empty());
}

/// Requests from 10,000 addresses do not exhaust memory; a single heavy sender is still refused.
pub(super) fn a_distributed_flood_leaves_others_alone(engine: &Engine) {
    const ADDRESSES: usize = 10_000;
    const AT_ONCE: usize = 100;
    let world = Arc::new(world_of_fields(engine, 2));
    let request = |client: &str| {
        format!("GET /hello.txt HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: {client}\r\n\r\n")
    };
    let ask = |stream: &mut std::net::TcpStream, client: &str| {
        stream.write_all(request(client).as_bytes()).unwrap();
        read_reply(stream)
    };
    let mut stream = world.connect();
    let mut refused = 0;
    for turn in 0..ADDRESSES / AT_ONCE {
        let clients = (turn * AT_ONCE..).take(AT_ONCE).map(|nth| {
            let [high, low] = (nth as u16).to_be_bytes();
            request(&format!("198.18.{high}.{low}"))
        });
        stream.write_all(clients.collect::<String>().as_bytes()).unwrap();
        for _ in 0..AT_ONCE {
            refused += u32::from(!read_reply(&mut stream).starts_with("HTTP/1.1 200 "));
        }
        if turn < 2 {
            assert!(ask(&mut stream, "192.0.2.7").starts_with("HTTP/1.1 200 "));
        } else {
            let reply = ask(&mut stream, "192.0.2.7");
            assert!(reply.starts_with("HTTP/1.1 429 "), "{reply}");
            assert!(reply.contains("\r\nRetry-After: 3"), "{reply}");
            // Proxies themselves have no limit.
            assert!(ask(&mut stream, "127.0.0.1").starts_with("HTTP/1.1 200 "));
        }
    }
    // About one pair of addresses in some millions shares a tag.
    assert!(refused <= 2, "{refused} of {ADDRESSES}");
}
