//! Requests over UDP: each datagram is a conversation of one request.

use std::net::SocketAddr;
use std::sync::Arc;

use cache::udp::{self, MULTI_PACKET, Malformed, REPLY_LEN_MAX};
use cache::{Peer, Service, Session};
use session::{Chunk, Next, Now, Outbox, Session as _, work_here};

/// Largest reply over UDP: a request of a few bytes with a forged address must not send megabytes
/// to that address. It is the longest value of the default configuration, with its line.
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
        Err(Malformed::Short | Malformed::Error) => {}
    }
}

fn converse(service: &Arc<Service>, request: &[u8], from: SocketAddr) -> Vec<u8> {
    const { assert!(ANSWER_LEN_MAX <= REPLY_LEN_MAX) };
    let mut session = Session::new(Arc::clone(service), Peer::Udp(from), Now::read());
    let reply = replies(&mut session, request);
    session.closed(Now::read(), &mut Outbox::new());
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
                Chunk::Shared(bytes, _) => reply.extend_from_slice(bytes),
                Chunk::File(_) => unreachable!("a cache sends no files"),
            }
        }
        out.clear();
        if reply.len() > ANSWER_LEN_MAX {
            return TOO_LARGE.to_vec();
        }
        match received.next {
            Next::Flush => {}
            // This work is never for `watch`, which is refused over UDP.
            Next::Work => drop(fiber::offload(|| work_here(session, Now::read(), &mut out))),
            Next::Receive(_) | Next::Duplex { .. } | Next::Close | Next::Linger => return reply,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen (in review): one datagram with the forged address of another cache, or of the same one,
    /// kept both busy forever. Cause: a reply is no command, and an error was answered with an
    /// error. Cure: errors are not answered.
    #[test]
    fn what_caches_say_to_each_other_comes_to_an_end() {
        const ROUNDS: usize = 6;
        let store = cache::store::Store::new(cache::store::Config::default()).expect("a store");
        let settings = cache::Settings::default();
        let service = Arc::new(Service::new(store, settings, cache::NoHost, Now::read()));
        let other = "127.0.0.1:11211".parse().expect("an address");
        for request in [
            "no command\r\n",
            "version\r\n",
            "stats settings\r\n",
            // A value that looks like a command.
            "set k 0 0 7\r\nget k\r\n\r\nget k\r\n",
            "mg k v k s\r\n",
            "me k\r\n",
            "mn\r\n",
            "lru_crawler mgdump all\r\n",
            "incr k 1\r\n",
        ] {
            let mut said = vec![[&udp::header(7, 0, 1)[..], request.as_bytes()].concat()];
            let mut round_counts = Vec::new();
            for _ in 0..ROUNDS {
                let mut answers = Vec::new();
                for datagram in &said {
                    answer(&service, datagram, other, &mut |answer| {
                        answers.push(answer.to_vec());
                    });
                }
                round_counts.push(answers.len());
                said = answers;
            }
            assert!(round_counts[0] > 0, "{request:?} is not answered");
            assert!(said.is_empty(), "{request:?}: {round_counts:?}");
        }
    }
}
