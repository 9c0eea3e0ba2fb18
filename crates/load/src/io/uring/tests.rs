//! Promises of the ring that a whole run would not show at once.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use super::*;
use crate::io::operation::Route;
use crate::io::socket::{address_of, socket_for};
use crate::plan::LoadTarget;

const PATIENCE: Duration = Duration::from_secs(60);

/// The ring with all its slots connected, and the other ends, in the order of the slots.
fn connected(mut ring: Ring) -> (Ring, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = LoadTarget::Tcp(listener.local_addr().unwrap());
    let peers = (0..ring.slots.len() as u32).map(|slot| {
        let route = Route { to: &target, from: None, is_chatty: true };
        let socket = socket_for(&route, false).unwrap();
        ring.open(slot, socket, address_of(&target).unwrap());
        let connected = await_some(&mut ring, 1);
        assert_eq!((connected[0].kind, connected[0].result), (CompletionKind::Connected, 0));
        listener.accept().unwrap().0
    });
    let peers = peers.collect();
    (ring, peers)
}

/// Iterates until `count` operations have ended.
fn await_some(ring: &mut Ring, count: usize) -> Vec<Completion> {
    let until = Instant::now() + PATIENCE;
    let mut completions = Vec::new();
    while completions.len() < count {
        assert!(Instant::now() < until, "{} of {count}", completions.len());
        ring.submit_and_wait(Duration::from_millis(100), &mut completions).unwrap();
    }
    completions
}

#[test]
fn receive_without_buffer_is_retried() {
    const MOST: usize = 8;
    let slots = 3 * MOST;
    let ring = Ring::with_buffers(slots as u32, 64, 2, MOST as u16).unwrap();
    let (mut ring, mut peers) = connected(ring);
    for (slot, peer) in peers.iter_mut().enumerate() {
        peer.write_all(&[slot as u8; 4]).unwrap();
        ring.receive(slot as u32);
    }
    let mut heard = vec![false; slots];
    while heard.contains(&false) {
        let completions = await_some(&mut ring, 1);
        assert!(completions.len() <= MOST, "{}", completions.len());
        for completion in &completions {
            let slot = completion.slot as usize;
            assert_eq!((completion.kind, completion.result), (CompletionKind::Received, 4));
            assert_eq!(ring.input(completion.slot, 4), [slot as u8; 4]);
            assert!(!std::mem::replace(&mut heard[slot], true), "slot {slot}");
        }
        for completion in completions {
            ring.give_back(completion.slot);
        }
    }
}

#[test]
fn registered_connection_is_closed() {
    let (mut ring, mut peers) = connected(Ring::new(1, 64).unwrap());
    for round in 0..2 * REGISTER_AFTER as u8 {
        ring.output(0).push(round);
        ring.receive(0);
        let mut byte = [0];
        let mut completions = Vec::new();
        ring.submit_and_wait(Duration::ZERO, &mut completions).unwrap();
        peers[0].read_exact(&mut byte).unwrap();
        peers[0].write_all(&byte).unwrap();
        completions.append(&mut await_some(&mut ring, 1));
        assert_eq!(completions[0].result, 1);
        assert_eq!(ring.input(0, 1), [round]);
    }
    assert!(ring.slots[0].is_registered);
    ring.close(0);
    peers[0].set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(peers[0].read(&mut [0]).unwrap(), 0);
}

#[test]
fn staged_bytes_follow_the_send() {
    let (mut ring, mut peers) = connected(Ring::new(1, 64).unwrap());
    let long = vec![b'a'; 8 << 20];
    ring.output(0).extend_from_slice(&long);
    let mut completions = Vec::new();
    // More than the socket takes: the send stays under way.
    ring.submit_and_wait(Duration::ZERO, &mut completions).unwrap();
    assert!(ring.slots[0].is_sending);
    ring.output(0).extend_from_slice(b"end");
    let reader = std::thread::spawn(move || {
        let mut said = vec![0; (8 << 20) + 3];
        peers[0].read_exact(&mut said).unwrap();
        (said, peers)
    });
    let until = Instant::now() + PATIENCE;
    while ring.is_busy(0) || !ring.slots[0].out.is_empty() {
        assert!(Instant::now() < until, "not sent");
        ring.submit_and_wait(Duration::from_millis(10), &mut completions).unwrap();
    }
    let (said, _peers) = reader.join().unwrap();
    assert!(said.starts_with(&long) && said.ends_with(b"aend"));
    assert!(completions.is_empty(), "{completions:?}");
}

/// Seen: `--depth 64` with values of 100 MB panicked: "plans bound what is sent at once". Cause:
/// all of it was one send. Cure: long sends are split.
#[test]
fn long_send_is_split() {
    let (mut ring, mut peers) = connected(Ring::new(1, 64).unwrap());
    let sent: Vec<u8> = (0..5 * SEND_BYTES_MAX / 2).map(|at| (at % 251) as u8).collect();
    let mut peer = peers.remove(0);
    let expected = sent.clone();
    let heard = std::thread::spawn(move || {
        let mut heard = vec![0; expected.len() + 3];
        peer.read_exact(&mut heard).unwrap();
        peer.write_all(b"!").unwrap();
        (heard == [&expected[..], b"end"].concat(), peer)
    });
    ring.output(0).extend_from_slice(&sent);
    let mut completions = Vec::new();
    ring.submit_and_wait(Duration::ZERO, &mut completions).unwrap();
    // Staged while the first part is under way, or sent behind the last one.
    ring.output(0).extend_from_slice(b"end");
    ring.receive(0);
    let completions = await_some(&mut ring, 1);
    assert_eq!((completions[0].kind, completions[0].result), (CompletionKind::Received, 1));
    assert!(heard.join().unwrap().0);
}

/// A slot with a send under way.
fn sending(out: &[u8], staged: &[u8]) -> RingSlot {
    RingSlot { out: out.to_vec(), staged: staged.to_vec(), is_sending: true, ..RingSlot::default() }
}

/// Seen: the rest of a short send was dropped, and the next bytes followed the hole. Cause: every
/// send counted as complete. Cure: only bytes that were sent leave the buffer.
#[test]
fn short_send_continues() {
    let mut slot = sending(b"abcdef", b"gh");
    assert!(!slot.sent(4), "it goes on, which is no news");
    assert_eq!((&slot.out[..], &slot.staged[..]), (&b"efgh"[..], &b""[..]));
}

#[test]
fn failed_send_is_not_repeated() {
    let mut slot = sending(b"abcdef", b"");
    assert!(slot.sent(-libc::EPIPE));
    assert!(slot.out.is_empty() && !slot.is_sending);
    let mut cancelled = sending(b"abcdef", b"");
    cancelled.is_cancelled = true;
    assert!(cancelled.sent(2));
    assert!(cancelled.out.is_empty());
}

/// A second buffer would cost each connection an allocation, and each request more of the cache.
#[test]
fn unstaged_connection_has_one_buffer() {
    let mut slot = sending(b"abcdef", b"");
    let buffer = slot.out.as_ptr();
    assert!(!slot.sent(6));
    assert!(slot.out.is_empty() && slot.out.capacity() >= 6);
    assert_eq!(slot.out.as_ptr(), buffer);
}

/// Seen in a review: a long body that its server took slowly delayed replies on other connections
/// by up to 50 ms. Cause: its send was counted among those that complete at once.
#[test]
fn a_long_send_delays_no_other_connection() {
    let (mut ring, mut peers) = connected(Ring::new(2, 64).unwrap());
    ring.output(0).extend_from_slice(&vec![1; SEND_BYTES_MAX]);
    ring.receive(1);
    peers[1].write_all(b"reply").unwrap();
    let began = Instant::now();
    let mut completions = Vec::new();
    ring.submit_and_wait(PATIENCE, &mut completions).unwrap();
    assert_eq!(completions.len(), 1, "{completions:?}");
    assert!(began.elapsed() < PATIENCE, "it was the time-out that ended the wait");
}

#[test]
fn gathered_completions_end_a_wait_together() {
    let (mut ring, mut peers) = connected(Ring::new(3, 64).unwrap());
    if !ring.ring.params().is_feature_min_timeout() {
        return; // Linux 6.12.
    }
    for slot in 0..3 {
        ring.receive(slot);
    }
    ring.gather(Gather { count: 2, within: PATIENCE });
    peers[0].write_all(b"a").unwrap();
    let other = peers.remove(2);
    let later = std::thread::spawn(move || {
        (&other).write_all(b"b").unwrap();
        other
    });
    let mut completions = Vec::new();
    ring.submit_and_wait(PATIENCE, &mut completions).unwrap();
    assert_eq!(completions.len(), 2, "{completions:?}");
    later.join().unwrap();
    // After its time one suffices.
    ring.gather(Gather { count: 2, within: Duration::from_micros(50) });
    peers[1].write_all(b"c").unwrap();
    let began = Instant::now();
    ring.submit_and_wait(PATIENCE, &mut completions).unwrap();
    assert_eq!(completions.len(), 3, "{completions:?}");
    assert!(began.elapsed() < PATIENCE, "one sufficed");
    // A wait that is shorter ends in time.
    ring.gather(Gather { count: 2, within: PATIENCE });
    let began = Instant::now();
    ring.submit_and_wait(Duration::from_millis(1), &mut completions).unwrap();
    assert!(began.elapsed() < PATIENCE, "it lasted as long as a batch's");
}
