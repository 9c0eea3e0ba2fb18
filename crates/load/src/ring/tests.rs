//! Promises of the ring that a whole run would not show at once.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use super::*;
use crate::socket::socket_for;

const PATIENCE: Duration = Duration::from_secs(10);

/// A ring whose ports are connected, and the other ends, in the order of the ports.
fn connected(ports: u32) -> (Ring, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap();
    let mut ring = Ring::new(ports, 64).unwrap();
    let peers = (0..ports).map(|port| {
        let socket = socket_for(target, None, false, true).unwrap();
        ring.open(port, socket, SocketAddrAny::from(target));
        let connected = await_some(&mut ring, 1);
        assert_eq!(
            (connected[0].what, connected[0].result),
            (What::Connected, 0)
        );
        listener.accept().unwrap().0
    });
    let peers = peers.collect();
    (ring, peers)
}

/// Takes turns until so many operations ended.
fn await_some(ring: &mut Ring, count: usize) -> Vec<Completion> {
    let until = Instant::now() + PATIENCE;
    let mut completions = Vec::new();
    while completions.len() < count {
        assert!(Instant::now() < until, "{} of {count}", completions.len());
        ring.turn(Duration::from_millis(100), &mut completions)
            .unwrap();
    }
    completions
}

#[test]
fn a_receive_that_finds_no_buffer_is_begun_again_and_loses_nothing() {
    let ports = 2 * BUFFERS_MAX + 10;
    let (mut ring, mut peers) = connected(ports);
    for (port, peer) in peers.iter_mut().enumerate() {
        peer.write_all(&(port as u32).to_le_bytes()).unwrap();
        ring.receive(port as u32);
    }
    let until = Instant::now() + PATIENCE;
    let mut heard = vec![false; ports as usize];
    let mut largest_turn = 0;
    while heard.contains(&false) {
        assert!(Instant::now() < until, "some port heard nothing");
        let mut completions = Vec::new();
        ring.turn(Duration::from_millis(100), &mut completions)
            .unwrap();
        largest_turn = largest_turn.max(completions.len());
        for completion in completions {
            assert_eq!((completion.what, completion.result), (What::Received, 4));
            let said = ring.input(completion.port, 4).try_into().unwrap();
            assert_eq!(u32::from_le_bytes(said), completion.port);
            heard[completion.port as usize] = true;
            // Not given back before the next turn.
        }
        for port in 0..ports {
            if heard[port as usize] {
                ring.give_back(port);
            }
        }
    }
    assert!(
        largest_turn <= BUFFERS_MAX as usize,
        "{largest_turn} receives with {BUFFERS_MAX} buffers"
    );
}

#[test]
fn a_connection_that_lasted_is_closed_for_its_peer_too() {
    let (mut ring, mut peers) = connected(1);
    for round in 0..2 * REGISTER_AFTER as u8 {
        ring.output(0).push(round);
        ring.receive(0);
        let mut byte = [0];
        let mut completions = Vec::new();
        ring.turn(Duration::ZERO, &mut completions).unwrap();
        peers[0].read_exact(&mut byte).unwrap();
        peers[0].write_all(&byte).unwrap();
        completions.append(&mut await_some(&mut ring, 1));
        assert_eq!(completions[0].result, 1);
        assert_eq!(ring.input(0, 1), [round]);
    }
    assert!(ring.ports[0].is_registered);
    ring.close(0);
    peers[0].set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(peers[0].read(&mut [0]).unwrap(), 0);
}

#[test]
fn bytes_said_while_others_are_being_sent_follow_them() {
    let (mut ring, mut peers) = connected(1);
    let long = vec![b'a'; 8 << 20];
    ring.output(0).extend_from_slice(&long);
    let mut completions = Vec::new();
    // More than the socket takes: the send stays under way.
    ring.turn(Duration::ZERO, &mut completions).unwrap();
    assert!(ring.ports[0].is_sending);
    ring.output(0).extend_from_slice(b"end");
    let reader = std::thread::spawn(move || {
        let mut said = vec![0; (8 << 20) + 3];
        peers[0].read_exact(&mut said).unwrap();
        (said, peers)
    });
    let until = Instant::now() + PATIENCE;
    while ring.is_busy(0) || !ring.ports[0].out.is_empty() {
        assert!(Instant::now() < until, "not sent");
        ring.turn(Duration::from_millis(10), &mut completions)
            .unwrap();
    }
    let (said, _peers) = reader.join().unwrap();
    assert!(said.starts_with(&long) && said.ends_with(b"aend"));
    assert!(completions.is_empty(), "{completions:?}");
}
