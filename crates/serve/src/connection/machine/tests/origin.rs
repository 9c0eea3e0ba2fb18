//! PROXY headers before TLS and without it, and limits by address.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use session::{Networks, Phase, PrefixLen};

use super::tls::Pair;
use super::world::{Blocked, World};
use crate::counters::Closed;
use crate::limits::{AddressLimit, Limits, ProxyProtocol};
use crate::shared::{DRAINING, Shared};

const V1: &[u8] = b"PROXY TCP4 192.0.2.7 10.0.0.2 5000 443\r\n";
const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

/// A server that expects headers from this network, and allows one connection per address; the
/// proxy's network has no limit.
fn server(from: &str, is_required: bool) -> Arc<Shared> {
    let networks = |text: &str| Networks { list: vec![text.parse().unwrap()], has_unix: false };
    let limits = Limits {
        proxy_protocol: Some(ProxyProtocol { from: networks(from), is_required }),
        by_address: Some(AddressLimit {
            connections_max: 1,
            prefix: PrefixLen::default(),
            exempt: networks("10.0.0.0/8"),
        }),
        ..Limits::default()
    };
    Arc::new(Shared::new(limits, None))
}

/// A connection from 10.0.0.1, which must send a header.
fn proxied() -> World {
    World::of(server("10.0.0.0/8", true), None)
}

fn client() -> Option<SocketAddr> {
    Some("192.0.2.7:5000".parse().unwrap())
}

#[test]
fn client_of_a_header_reaches_the_session() {
    for cut in 1..V1.len() {
        let mut world = proxied();
        for part in [&V1[..cut], &V1[cut..]] {
            assert_eq!(world.run(), Blocked::Receive);
            assert_eq!(world.client, None);
            world.machine.handle_input(part, world.now);
        }
        assert_eq!(world.say("say hello\n"), Blocked::Receive);
        assert_eq!((world.client, world.take_got()), (client(), "hello\n".into()));
    }
}

#[test]
fn a_request_behind_the_header_is_not_lost() {
    let mut world = proxied();
    let input = [V1, b"say one\nsay two\n"].concat();
    world.machine.handle_input(&input, world.now);
    assert_eq!(world.run(), Blocked::Receive);
    assert_eq!(world.take_got(), "one\ntwo\n");
    let mut slow = proxied();
    for byte in &input {
        slow.machine.handle_input(&[*byte], slow.now);
        slow.run();
    }
    assert_eq!(slow.take_got(), "one\ntwo\n");
    assert_eq!(slow.client, client());
}

#[test]
fn handshakes_begin_behind_the_header() {
    for cut in [0, 1, V1.len() - 1, V1.len(), V1.len() + 1, V1.len() + 20] {
        let mut pair = Pair::of(server("10.0.0.0/8", true));
        let input = [V1, &pair.hello()].concat();
        for part in [&input[..cut], &input[cut..]] {
            if !part.is_empty() {
                pair.world.machine.handle_input(part, pair.world.now);
                assert_eq!(pair.world.run(), Blocked::Receive, "cut at {cut}");
            }
        }
        assert_eq!(pair.say("say hello\n"), Blocked::Receive);
        assert_eq!((&pair.received[..], pair.world.client), (&b"hello\n"[..], client()));
    }
    // The handshake's time counts from the accept, even after a late header.
    let mut late = Pair::of(server("10.0.0.0/8", true));
    let timeout = Limits::default().handshake_timeout;
    late.world.pass(timeout - Duration::from_secs(1));
    late.world.machine.handle_input(V1, late.world.now);
    let hello = late.hello();
    late.world.machine.handle_input(&hello, late.world.now);
    late.world.run();
    late.world.pass(Duration::from_secs(1));
    late.world.machine.handle_timeout(late.world.now);
    let end = Blocked::Closed(Closed::TimedOut(Phase::Head));
    assert_eq!(late.world.run(), end);
}

#[test]
fn header_from_elsewhere_is_input() {
    let mut world = World::of(server("10.0.0.2/32", true), None);
    world.machine.handle_input(b"say PROXY\n", world.now);
    assert_eq!(world.run(), Blocked::Receive);
    assert_eq!(world.take_got(), "PROXY\n");
}

#[test]
fn malformed_and_missing_headers_are_closed() {
    for (input, is_required) in [
        (&b"PROXY TCP4 192.0.2.7 10.0.0.2 5000 99999\r\n"[..], false),
        (b"PROXY TCP4 192.0.2.7 10.0.0.2 5000 99999\r\n", true),
        (b"say hello\n", true),
        (&[b'x'; 10_000], true),
        (&[&b"PROXY UNKNOWN "[..], &[b'x'; 10_000]].concat(), true),
    ] {
        let mut world = World::of(server("10.0.0.0/8", is_required), None);
        world.machine.handle_input(input, world.now);
        assert_eq!(world.run(), Blocked::Closed(Closed::ProxyHeader));
        assert_eq!(world.take_got(), "");
    }
    let mut pair = Pair::of(server("10.0.0.0/8", true));
    let hello = pair.hello();
    pair.world.machine.handle_input(&hello, pair.world.now);
    assert_eq!(pair.world.run(), Blocked::Closed(Closed::ProxyHeader));
}

#[test]
fn an_optional_header_may_be_missing() {
    let mut world = World::of(server("10.0.0.0/8", false), None);
    // The bytes so far may still become one.
    world.machine.handle_input(b"say ", world.now);
    world.machine.handle_input(b"hello\n", world.now);
    assert_eq!(world.run(), Blocked::Receive);
    assert_eq!(world.take_got(), "hello\n");
    assert_eq!(world.client, super::world::PEER);
    let mut pair = Pair::of(server("10.0.0.0/8", false));
    assert_eq!(pair.say("say hello\n"), Blocked::Receive);
    assert_eq!(pair.received, b"hello\n");
}

#[test]
fn a_proxy_may_speak_for_itself() {
    let mut world = proxied();
    world.machine.handle_input(LOCAL, world.now);
    assert_eq!(world.say("say up\n"), Blocked::Receive);
    assert_eq!(world.client, super::world::PEER);
}

#[test]
fn a_header_that_does_not_come_times_out() {
    for input in [&b""[..], b"P", &V1[..V1.len() - 1]] {
        let mut world = proxied();
        assert_eq!(world.run(), Blocked::Receive);
        if !input.is_empty() {
            world.machine.handle_input(input, world.now);
        }
        world.pass(Limits::default().head_timeout);
        world.machine.handle_timeout(world.now);
        let end = Blocked::Closed(Closed::TimedOut(Phase::Head));
        assert_eq!(world.run(), end);
    }
    let mut checked = proxied();
    checked.machine.handle_end_of_input(checked.now);
    assert_eq!(checked.run(), Blocked::Closed(Closed::Peer));
    let mut drained = proxied();
    drained.run();
    drained.machine.handle_server_state(DRAINING, drained.now);
    drained.pass(Limits::default().head_timeout);
    drained.machine.handle_timeout(drained.now);
    assert_eq!(drained.run(), Blocked::Closed(Closed::Drained));
}

#[test]
fn an_address_has_so_many_connections() {
    let shared = server("10.0.0.0/8", true);
    let connect = |client: &str| {
        let mut world = World::of(Arc::clone(&shared), None);
        let header = format!("PROXY TCP4 {client} 10.0.0.2 5000 443\r\n");
        world.machine.handle_input(header.as_bytes(), world.now);
        (world.run(), world)
    };
    let (first, world) = connect("192.0.2.7");
    assert_eq!(first, Blocked::Receive);
    let (second, _) = connect("192.0.2.7");
    assert_eq!(second, Blocked::Closed(Closed::AddressLimit));
    assert_eq!(connect("192.0.2.8").0, Blocked::Receive);
    drop(world);
    let (third, _third) = connect("192.0.2.7");
    assert_eq!(third, Blocked::Receive);
    // The proxy itself has no limit.
    let (one, _one) = connect("10.0.0.1");
    let (other, _other) = connect("10.0.0.1");
    assert_eq!((one, other), (Blocked::Receive, Blocked::Receive));
}
