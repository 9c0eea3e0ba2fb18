//! Datagram sockets and names, over each back end.

#[macro_use]
mod harness;
mod closed_port;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fiber::net::{TcpListener, TcpStream, UdpSocket, UnixDatagram};

contract! {
    a_datagram_arrives_whole_with_its_sender
    datagrams_that_came_together_are_received_one_by_one
    a_connected_socket_hears_only_its_peer
    an_empty_datagram_is_no_end
    a_long_datagram_is_cut_to_the_buffer
    a_peeked_datagram_stays
    receive_past_its_timeout_fails_and_loses_nothing
    timeout_bounds_a_receive
    many_fibers_serve_one_socket
    nobody_listens_is_an_error_of_the_next_call
    a_clone_is_the_same_socket
    a_standard_socket_becomes_ours
    unix_datagrams_carry_names
    a_full_receiver_holds_up_the_sender_and_loses_nothing
    names_are_looked_up
    all_addresses_are_tried
}

fn bind() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// Two sockets that are connected to each other.
fn pair() -> (UdpSocket, UdpSocket) {
    let ((a, a_address), (b, b_address)) = (bind(), bind());
    a.connect(b_address).unwrap();
    b.connect(a_address).unwrap();
    (a, b)
}

fn a_datagram_arrives_whole_with_its_sender() {
    let ((a, a_address), (b, b_address)) = (bind(), bind());
    let receiver = fiber::spawn(move || {
        let mut buffer = [0; 64];
        let (len, sender) = b.recv_from(&mut buffer).unwrap();
        (buffer[..len].to_vec(), sender)
    });
    fiber::yield_now();
    assert_eq!(a.send_to(b"one piece", b_address).unwrap(), 9);
    assert_eq!(receiver.join().unwrap(), (b"one piece".to_vec(), a_address));
}

fn datagrams_that_came_together_are_received_one_by_one() {
    // Short ones: a receive that is shorter than its buffer must not be taken for the last.
    let (a, b) = pair();
    let receiver = fiber::spawn(move || {
        let mut buffer = [0; 64];
        (0..50u8).all(|n| b.recv(&mut buffer).unwrap() == 1 && buffer[0] == n)
    });
    fiber::yield_now();
    for n in 0..50u8 {
        a.send(&[n]).unwrap();
    }
    assert!(receiver.join().unwrap());
}

fn a_connected_socket_hears_only_its_peer() {
    let ((a, _), (b, b_address)) = (bind(), bind());
    let (stranger, _) = bind();
    b.connect(a.local_addr().unwrap()).unwrap();
    assert_eq!(b.peer_addr().unwrap(), a.local_addr().unwrap());
    stranger.send_to(b"stranger", b_address).unwrap();
    a.send_to(b"peer", b_address).unwrap();
    let mut buffer = [0; 16];
    let len = b.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"peer");
    assert_eq!(a.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
}

fn an_empty_datagram_is_no_end() {
    let (a, b) = pair();
    assert_eq!(a.send(b"").unwrap(), 0);
    a.send(b"next").unwrap();
    let mut buffer = [0; 16];
    assert_eq!(b.recv(&mut buffer).unwrap(), 0);
    assert_eq!(b.recv(&mut buffer).unwrap(), 4);
}

fn a_long_datagram_is_cut_to_the_buffer() {
    let (a, b) = pair();
    a.send(b"0123456789").unwrap();
    a.send(b"next").unwrap();
    let mut buffer = [0; 4];
    assert_eq!(b.recv_from(&mut buffer).unwrap().0, 4);
    assert_eq!(&buffer, b"0123");
    assert_eq!(b.recv(&mut buffer).unwrap(), 4);
    assert_eq!(&buffer, b"next");
}

fn a_peeked_datagram_stays() {
    let ((a, a_address), (b, b_address)) = (bind(), bind());
    a.send_to(b"look", b_address).unwrap();
    let mut buffer = [0; 8];
    assert_eq!(b.peek(&mut buffer).unwrap(), 4);
    assert_eq!(b.peek_from(&mut buffer).unwrap(), (4, a_address));
    assert_eq!(b.recv_from(&mut buffer).unwrap(), (4, a_address));
}

fn receive_past_its_timeout_fails_and_loses_nothing() {
    let (a, b) = pair();
    b.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let start = Instant::now();
    let mut buffer = [0; 8];
    assert_eq!(b.recv(&mut buffer).unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(
        b.recv_from(&mut buffer).unwrap_err().kind(),
        ErrorKind::TimedOut
    );
    assert!(start.elapsed() >= Duration::from_millis(20));
    a.send(b"late").unwrap();
    b.set_read_timeout(None).unwrap();
    assert_eq!(b.recv(&mut buffer).unwrap(), 4);
    let error = b.set_write_timeout(Some(Duration::ZERO)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

fn timeout_bounds_a_receive() {
    let (_a, b) = pair();
    let result = fiber::timeout(Duration::from_millis(10), || b.recv(&mut [0; 8]));
    assert_eq!(result.unwrap_err().kind(), ErrorKind::TimedOut);
}

fn many_fibers_serve_one_socket() {
    let (server, address) = bind();
    let server = Arc::new(server);
    let echo = |server: Arc<UdpSocket>| {
        let mut buffer = [0; 64];
        loop {
            let (len, sender) = server.recv_from(&mut buffer).unwrap();
            if len == 0 {
                return;
            }
            server.send_to(&buffer[..len], sender).unwrap();
        }
    };
    let servers: Vec<_> = (0..8)
        .map(|number| {
            let server = Arc::clone(&server);
            let builder = fiber::Builder::new().processor(number);
            builder.spawn(move || echo(server)).unwrap()
        })
        .collect();
    fiber::scope(|scope| {
        for client in 0..20u32 {
            scope.spawn(move || {
                let (socket, _) = bind();
                socket.connect(address).unwrap();
                for round in 0..50 {
                    let word = (client * 1000 + round).to_le_bytes();
                    socket.send(&word).unwrap();
                    let mut answer = [0; 8];
                    assert_eq!(socket.recv(&mut answer).unwrap(), 4);
                    assert_eq!(answer[..4], word);
                }
            });
        }
    });
    let (stopper, _) = bind();
    for _ in 0..8 {
        stopper.send_to(b"", address).unwrap();
    }
    servers
        .into_iter()
        .for_each(|server| server.join().unwrap());
}

fn nobody_listens_is_an_error_of_the_next_call() {
    let (a, _) = bind();
    // It holds its port, and what does not come from its own peer is refused.
    let (aloof, nobody) = bind();
    let (_peer, address) = bind();
    aloof.connect(address).unwrap();
    a.connect(nobody).unwrap();
    a.send(b"anybody?").unwrap();
    let error = a.recv(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert!(a.take_error().unwrap().is_none(), "it has been told");
}

fn a_clone_is_the_same_socket() {
    let (a, b) = pair();
    let also_b = b.try_clone().unwrap();
    a.send(b"1").unwrap();
    a.send(b"2").unwrap();
    let mut buffer = [0; 1];
    b.recv(&mut buffer).unwrap();
    assert_eq!(&buffer, b"1");
    drop(b);
    also_b.recv(&mut buffer).unwrap();
    assert_eq!(&buffer, b"2");
}

fn a_standard_socket_becomes_ours() {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let address = socket.local_addr().unwrap();
    let socket = UdpSocket::from(socket);
    let receiver = fiber::spawn(move || socket.recv(&mut [0; 8]).unwrap());
    fiber::yield_now();
    let (other, _) = bind();
    other.send_to(b"abc", address).unwrap();
    assert_eq!(receiver.join().unwrap(), 3);
}

fn unix_datagrams_carry_names() {
    let directory = tempfile::tempdir().unwrap();
    let (a_path, b_path) = (directory.path().join("a"), directory.path().join("b"));
    let a = UnixDatagram::bind(&a_path).unwrap();
    let b = UnixDatagram::bind(&b_path).unwrap();
    let mut buffer = [0; 16];
    a.send_to(b"by name", &b_path).unwrap();
    let (len, sender) = b.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"by name");
    assert_eq!(sender.as_pathname(), Some(a_path.as_path()));

    let nameless = UnixDatagram::unbound().unwrap();
    nameless.connect(&b_path).unwrap();
    nameless.send(b"who?").unwrap();
    let (len, sender) = b.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"who?");
    assert!(sender.is_unnamed());
    let own = nameless.local_addr().unwrap();
    assert!(own.is_unnamed(), "{own:?}");

    let name = format!("weft-test-{}-{:p}", std::process::id(), &buffer);
    let name = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
    let hidden = std::os::unix::net::UnixDatagram::bind_addr(&name).unwrap();
    hidden.send_to(b"abstract", &b_path).unwrap();
    let (_, sender) = b.recv_from(&mut buffer).unwrap();
    assert_eq!(sender.as_abstract_name(), name.as_abstract_name());
}

fn a_full_receiver_holds_up_the_sender_and_loses_nothing() {
    let (a, b) = UnixDatagram::pair().unwrap();
    let sender = fiber::spawn(move || {
        for n in 0..2000u32 {
            a.send(&n.to_le_bytes()).unwrap();
        }
    });
    // The sender runs into the full queue before anything receives.
    (0..3).for_each(|_| fiber::yield_now());
    let mut buffer = [0; 4];
    for n in 0..2000u32 {
        assert_eq!(b.recv(&mut buffer).unwrap(), 4);
        assert_eq!(u32::from_le_bytes(buffer), n);
    }
    sender.join().unwrap();
}

fn names_are_looked_up() {
    let addresses = fiber::net::resolve("localhost:80").unwrap();
    assert!(!addresses.is_empty());
    assert!(
        addresses
            .iter()
            .all(|a| a.ip().is_loopback() && a.port() == 80)
    );
    let error = fiber::net::resolve("no such name:80").unwrap_err();
    assert_ne!(error.kind(), ErrorKind::Other, "{error}");
    assert!(fiber::net::resolve("a name without a port").is_err());
    let known = SocketAddr::from((Ipv4Addr::LOCALHOST, 7));
    assert_eq!(
        fiber::net::resolve(&[known, known][..]).unwrap(),
        [known; 2]
    );
}

fn all_addresses_are_tried() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let open = listener.local_addr().unwrap();
    let held = closed_port::closed_port();
    let closed = held.address;
    let stream = TcpStream::connect(&[closed, open][..]).unwrap();
    assert_eq!(stream.peer_addr().unwrap(), open);
    let error = TcpStream::connect(&[closed, closed][..]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    let error = TcpStream::connect(&[][..]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}
