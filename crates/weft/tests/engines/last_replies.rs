//! The last reply of a connection reaches clients that send too much.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use rustix::net::{AddressFamily, SocketType, sockopt};
use serve::Engine;

use super::{GET, World, read_reply};

/// More than the smallest receive buffer of a client, and less than the server's send buffer. So
/// the server has sent everything, and could close.
const MIDDLE_LEN: usize = 200_000;

/// Seen: on every engine, a client that sent an empty line or another request after its last one
/// lost up to a socket buffer of the reply. Cause: the kernel resets a connection that is closed
/// with unread input, or that receives input afterwards.
pub(crate) fn a_last_reply_survives_input_behind_it(engine: &Engine) {
    let world = World::new(engine);
    let content: Vec<u8> = (0..MIDDLE_LEN).map(|at| (at % 251) as u8).collect();
    std::fs::write(world.directory.path().join("middle.bin"), &content).unwrap();
    for (behind, ends) in [("\r\n", false), ("\r\n", true), ("GET / HTTP/1.1\r\n", false)] {
        let mut stream = connect_with_little_room(&world);
        let asked = b"GET /middle.bin HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all(asked).unwrap();
        let mut got = vec![0; 1];
        stream.read_exact(&mut got).unwrap();
        stream.write_all(behind.as_bytes()).unwrap();
        if ends {
            stream.shutdown(Shutdown::Write).unwrap();
        }
        let end = stream.read_to_end(&mut got);
        assert!(end.is_ok(), "{end:?} after {} bytes, {behind:?}", got.len());
        assert!(got.ends_with(&content), "{} bytes, {behind:?}", got.len());
    }
    world.wait_until("all have closed", |server| server.connection_count() == 0);
}

fn connect_with_little_room(world: &World) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_recv_buffer_size(&socket, 4096).unwrap();
    rustix::net::connect(&socket, &world.address).unwrap();
    TcpStream::from(socket)
}

/// Seen: a client that sends a long body before it reads got a broken pipe instead of the refusal.
/// Cause: the server read on for only 1 MiB.
pub(crate) fn a_long_upload_sees_its_refusal(engine: &Engine) {
    let world = World::new(engine);
    const LEN: usize = 20 << 20;
    let lengths = [format!("Content-Length: {LEN}"), "Transfer-Encoding: chunked".to_owned()];
    for length in lengths {
        let mut stream = world.connect();
        let head = format!("POST /hello.txt HTTP/1.1\r\nHost: x\r\n{length}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let chunk = [&b"10000\r\n"[..], &[b'z'; 1 << 16], b"\r\n"].concat();
        for _ in 0..LEN >> 16 {
            stream.write_all(&chunk).unwrap();
        }
        let reply = read_reply(&mut stream);
        assert!(reply.starts_with("HTTP/1.1 4"), "{length}: {reply}");
    }
}

/// Seen: a drain reset a pipelining client, which lost the reply that announces the close. Cause:
/// the client had already sent its next requests.
pub(crate) fn a_drain_loses_no_reply_of_a_client_that_pipelines(engine: &Engine) {
    let world = World::new(engine);
    let mut stream = world.connect();
    stream.write_all(&GET.repeat(8)).unwrap();
    read_reply(&mut stream);
    std::thread::scope(|scope| {
        let drain = scope.spawn(|| world.server.drain());
        while !read_reply(&mut stream).contains("Connection: close") {
            stream.write_all(GET).unwrap();
        }
        // More of the requests are in flight.
        let mut rest = Vec::new();
        let end = stream.read_to_end(&mut rest);
        assert!(end.is_ok() && rest.is_empty(), "{end:?}: {}", rest.len());
        drop(stream);
        assert_eq!(drain.join().unwrap(), 0, "cut");
    });
}
