//! Requests that come as datagrams: a conversation each, of one request.

use std::net::SocketAddr;
use std::sync::Arc;

use cache::udp::{self, MULTI_PACKET, Malformed, REPLY_LEN_MAX};
use cache::{Peer, Service, Session};
use session::{Chunk, Next, Now, Outbox, Session as _};

/// A reply larger than this is not sent by datagrams: a request of a few bytes with a forged
/// address must not send megabytes to that address. This is the longest value of the default
/// configuration, with its line.
const ANSWER_LEN_MAX: usize = 1024 * 1024 + 512;

const TOO_LARGE: &[u8] = b"SERVER_ERROR out of memory writing stats\r\n";

/// Answers a datagram.
pub(crate) fn answer(
    service: &Arc<Service>,
    datagram: &[u8],
    from: SocketAddr,
    send: &mut dyn FnMut(&[u8]),
) {
    match udp::request(datagram) {
        Ok(request) => {
            let reply = converse(service, request.payload, from);
            udp::reply(request.id, &reply, send);
        }
        Err(Malformed::Fragment { id }) => {
            udp::reply(id, MULTI_PACKET, send);
        }
        Err(Malformed::Short) => {}
    }
}

fn converse(service: &Arc<Service>, request: &[u8], from: SocketAddr) -> Vec<u8> {
    const { assert!(ANSWER_LEN_MAX <= REPLY_LEN_MAX) };
    let mut session = Session::new(Arc::clone(service), Peer::Udp(from), Now::read());
    let reply = replies(&mut session, request);
    session.closed(Now::read());
    reply
}

fn replies(session: &mut Session, request: &[u8]) -> Vec<u8> {
    let (mut out, mut reply) = (Outbox::new(), Vec::new());
    let mut rest = request;
    loop {
        let received = session.receive(rest, Now::read(), &mut out);
        rest = &rest[received.used..];
        for chunk in out.chunks() {
            match chunk {
                Chunk::Bytes(bytes) => reply.extend_from_slice(bytes),
                Chunk::Shared(bytes) => reply.extend_from_slice(bytes),
                Chunk::File(_) => unreachable!("a cache sends no files"),
            }
        }
        out.clear();
        if reply.len() > ANSWER_LEN_MAX {
            return TOO_LARGE.to_vec();
        }
        match received.next {
            Next::Flush => {}
            Next::Work => fiber::offload(|| session.work(Now::read())),
            // `watch` is refused over UDP.
            Next::Receive(_) | Next::Wait | Next::Close | Next::Linger => return reply,
        }
    }
}
