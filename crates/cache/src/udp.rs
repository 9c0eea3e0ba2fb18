//! Framing of memcached over UDP: pure functions, no sockets.
//!
//! ```text
//!  0            2                 4                       6          8
//!  ┌────────────┬─────────────────┬───────────────────────┬──────────┬──────────────
//!  │ request id │ sequence number │ datagrams in message  │ reserved │ as over TCP …
//!  └────────────┴─────────────────┴───────────────────────┴──────────┴──────────────
//! ```
//!
//! All numbers are big-endian. A request occupies one datagram. A reply is split into as many as it
//! needs, which carry the request's id and are numbered from 0. memcached's doc/protocol.txt, "UDP
//! protocol"

/// Length of the header before each datagram's payload.
pub const HEADER_LEN: usize = 8;

/// Longest datagram of a reply, header included: as in memcached, and within a path MTU of 1,500
/// bytes.
pub const DATAGRAM_LEN_MAX: usize = 1400;

/// Longest reply: the payload of 65,535 datagrams.
pub const REPLY_LEN_MAX: usize = (DATAGRAM_LEN_MAX - HEADER_LEN) * u16::MAX as usize;

/// A request, as received in a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The client's number for it, repeated in every datagram of the reply.
    pub id: u16,
    /// Commands, in the same form as over TCP.
    pub payload: &'a [u8],
}

/// Reason why a datagram is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Shorter than its header. Dropped: there is no id to reply with.
    Short,
    /// One of several datagrams. Answered with [`MULTI_PACKET`].
    Fragment {
        /// The client's number for the request.
        id: u16,
    },
    /// The error reply of a server. Dropped: two servers that answer each other's errors would
    /// never stop, and one datagram with a forged address would start them.
    Error,
}

/// Prefixes of errors. Any reply to a stray reply begins with one: replies are no commands.
const ERRORS: [&[u8]; 3] = [b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR"];

/// memcached's reply to a request of several datagrams.
pub const MULTI_PACKET: &[u8] = b"SERVER_ERROR multi-packet request not supported\r\n";

/// Parses a datagram.
///
/// # Errors
/// [`Malformed`], if it is too short, a part of a longer request, or an error reply.
pub fn request(datagram: &[u8]) -> Result<Request<'_>, Malformed> {
    let Some((header, payload)) = datagram.split_first_chunk::<HEADER_LEN>() else {
        return Err(Malformed::Short);
    };
    let [id_hi, id_lo, _, _, total_hi, total_lo, _, _] = *header;
    let id = u16::from_be_bytes([id_hi, id_lo]);
    match u16::from_be_bytes([total_hi, total_lo]) {
        1 if ERRORS.iter().any(|error| payload.starts_with(error)) => Err(Malformed::Error),
        1 => Ok(Request { id, payload }),
        _ => Err(Malformed::Fragment { id }),
    }
}

/// Number of datagrams for a reply of `len` bytes; `None` above [`REPLY_LEN_MAX`]. An empty reply
/// needs none.
fn datagram_count(len: usize) -> Option<u16> {
    u16::try_from(len.div_ceil(DATAGRAM_LEN_MAX - HEADER_LEN)).ok()
}

/// Calls `send` with each datagram of the reply, in order. Does nothing if the reply is empty or
/// above [`REPLY_LEN_MAX`]; returns the number of datagrams.
pub fn reply(id: u16, reply: &[u8], mut send: impl FnMut(&[u8])) -> u16 {
    let Some(total) = datagram_count(reply.len()) else {
        return 0;
    };
    let mut datagram = [0; DATAGRAM_LEN_MAX];
    for (sequence, payload) in (0_u16..).zip(reply.chunks(DATAGRAM_LEN_MAX - HEADER_LEN)) {
        datagram[..HEADER_LEN].copy_from_slice(&header(id, sequence, total));
        let end = HEADER_LEN + payload.len();
        datagram[HEADER_LEN..end].copy_from_slice(payload);
        send(&datagram[..end]);
    }
    total
}

/// The header of datagram `sequence` of `total`.
pub fn header(id: u16, sequence: u16, total: u16) -> [u8; HEADER_LEN] {
    let ([a, b], [c, d], [e, f]) = (id.to_be_bytes(), sequence.to_be_bytes(), total.to_be_bytes());
    [a, b, c, d, e, f, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_datagram_request() {
        let datagram = [&header(0xabcd, 0, 1)[..], b"get a\r\n"].concat();
        let expected = Request { id: 0xabcd, payload: b"get a\r\n" };
        assert_eq!(request(&datagram), Ok(expected));
        assert_eq!(request(&datagram[..7]), Err(Malformed::Short));
    }

    #[test]
    fn multi_datagram_request_is_refused() {
        assert_eq!(request(&header(7, 0, 2)), Err(Malformed::Fragment { id: 7 }));
    }

    #[test]
    fn error_reply_is_no_request() {
        for error in ["ERROR\r\n", "CLIENT_ERROR bad\r\n", "ERROR\r\nget a\r\n"] {
            let datagram = [&header(7, 0, 1)[..], error.as_bytes()].concat();
            assert_eq!(request(&datagram), Err(Malformed::Error), "{error:?}");
        }
        let multi = [&header(7, 0, 1)[..], MULTI_PACKET].concat();
        assert_eq!(request(&multi), Err(Malformed::Error));
    }

    #[test]
    fn a_reply_is_cut_and_counted() {
        let long: Vec<u8> = (0..3000_u32).map(|at| at as u8).collect();
        let mut datagrams = Vec::new();
        assert_eq!(reply(9, &long, |datagram| datagrams.push(datagram.to_vec())), 3);
        let lens: Vec<_> = datagrams.iter().map(Vec::len).collect();
        assert_eq!(lens, [1400, 1400, 8 + 3000 - 2 * 1392]);
        for (at, datagram) in datagrams.iter().enumerate() {
            assert_eq!(datagram[..8], header(9, at as u16, 3));
        }
        let joined: Vec<u8> = datagrams.iter().flat_map(|d| d[8..].to_vec()).collect();
        assert_eq!(joined, long);
    }

    #[test]
    fn no_reply_takes_no_datagram() {
        assert_eq!(reply(1, b"", |_| panic!("sent")), 0);
        assert_eq!(datagram_count(REPLY_LEN_MAX), Some(u16::MAX));
        assert_eq!(datagram_count(REPLY_LEN_MAX + 1), None);
    }
}
