//! TLS as a transform of bytes: records in, plain bytes out, and the other way round. No stream
//! beneath it.

use std::io::{self, BufRead, Write};
use std::sync::Arc;

use rustls::ServerConnection;
use session::{Chunk, Outbox, TlsFacts};

use crate::memory::{Charge, Memory};
use crate::tls::Tls;

/// Bytes to encrypt before they are sent. A peer that takes less than this within the send time-out
/// is too slow: some 500 bytes a second.
pub(super) const SEALED_LEN_MAX: usize = 32 * 1024;

/// Memory of a handshake beside the connection: keys, its messages, the certificate chain on its
/// way out. Measured: 7 to 9 KiB.
const HANDSHAKE_LEN: usize = 12 * 1024;

/// The header of a record has the content type, the version and the length, which is no more than
/// this in the clear. RFC 8446 5.1
const HEADER_LEN: usize = 5;
const HANDSHAKE_RECORD: u8 = 22;
const RECORD_LEN_MAX: usize = 1 << 14;

/// Space for records that rustls keeps for every connection, and the step in which it grows.
const BUFFER_STEP_LEN: usize = 4096;

/// Most input that rustls keeps: fragments of one handshake message.
const BUFFER_LEN_MAX: usize = 1 << 16;

/// The same while memory is short.
const SEALED_LEN_LEAN: usize = 4 * 1024;

/// The state of TLS on one connection.
pub(crate) struct TlsConnection {
    /// `None` until the peer's first record has come whole: one that sends nothing, or a part,
    /// costs next to nothing.
    connection: Option<Box<ServerConnection>>,
    tls: Arc<Tls>,
    /// Charge for the handshake and the buffer for records.
    charge: Charge,
    records: Records,
    /// The last record was made: the peer is told that nothing comes after it.
    pub(super) has_ended: bool,
}

impl TlsConnection {
    pub(crate) fn new(tls: &Arc<Tls>) -> Box<TlsConnection> {
        Box::new(TlsConnection {
            connection: None,
            tls: Arc::clone(tls),
            charge: Charge::default(),
            records: Records::default(),
            has_ended: false,
        })
    }

    /// True once the handshake has begun.
    pub(super) fn has_begun(&self) -> bool {
        self.connection.is_some()
    }

    /// Begins the handshake.
    ///
    /// # Errors
    /// What rustls says to a new connection, which concerns its memory only.
    pub(super) fn begin(&mut self, memory: &Arc<Memory>) -> io::Result<()> {
        let connection = ServerConnection::new(self.tls.config()).map_err(io::Error::other)?;
        self.connection = Some(Box::new(connection));
        self.charge(memory);
        Ok(())
    }

    /// Charges what TLS holds to `memory`. Says whether that has grown.
    pub(super) fn charge(&mut self, memory: &Arc<Memory>) -> bool {
        let handshake_len = if self.is_handshaking() {
            HANDSHAKE_LEN
        } else {
            0
        };
        self.charge.set(memory, handshake_len + self.buffer_len())
    }

    /// Bytes by which the buffer for records has grown.
    pub(super) fn buffer_len(&self) -> usize {
        match self.records.buffered_len {
            ..=BUFFER_STEP_LEN => 0,
            len => len.min(BUFFER_LEN_MAX).next_multiple_of(BUFFER_STEP_LEN),
        }
    }

    pub(super) fn is_handshaking(&self) -> bool {
        (self.connection.as_ref()).is_none_or(|connection| connection.is_handshaking())
    }

    /// Result of the handshake.
    pub(super) fn facts(&self) -> TlsFacts<'_> {
        let connection = self.connection.as_ref();
        let chain = connection.and_then(|connection| connection.peer_certificates());
        TlsFacts {
            alpn: connection.and_then(|connection| connection.alpn_protocol()),
            server_name: connection.and_then(|connection| connection.server_name()),
            client: chain.and_then(<[_]>::first).map(AsRef::as_ref),
        }
    }

    /// Opens the records in `input` and shows what is in them. A record whose end is yet to come is
    /// kept. Says whether the peer said goodbye.
    ///
    /// # Errors
    /// What is wrong with the records. The alert that says so is the last record to take.
    pub(super) fn open(
        &mut self,
        mut input: &[u8],
        mut show: impl FnMut(&[u8]),
    ) -> Result<bool, rustls::Error> {
        let was_handshaking = self.is_handshaking();
        let Some(connection) = &mut self.connection else {
            return Ok(false);
        };
        self.records.came(input);
        let mut has_shown = false;
        let mut has_peer_ended = false;
        let mut opened = Ok(());
        while opened.is_ok() && !input.is_empty() {
            // A slice is read without an error; 0 is the end after a goodbye.
            if !matches!(connection.read_tls(&mut input), Ok(1..)) {
                break;
            }
            opened = connection.process_new_packets().map(|state| {
                has_peer_ended = state.peer_has_closed();
            });
            let mut reader = connection.reader();
            while let Ok(plain @ [_, ..]) = reader.fill_buf() {
                let len = plain.len();
                has_shown = true;
                show(plain);
                reader.consume(len);
            }
        }
        let has_begun = was_handshaking && !self.is_handshaking();
        if has_begun && opened.is_ok() {
            self.tls.count_handshake();
        }
        if has_shown || has_begun {
            self.records.joined_len = 0;
        }
        opened
            .map(|()| has_peer_ended)
            .inspect_err(|_| self.tls.count_failure())
    }

    /// Returns the reply in the clear to a peer that does not speak TLS, which this error shows.
    pub(super) fn in_the_clear(&self, error: &rustls::Error) -> Option<&'static [u8]> {
        const NO_RECORD: rustls::Error =
            rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
        let text = self.tls.in_the_clear();
        (self.is_handshaking() && *error == NO_RECORD && !text.is_empty()).then_some(text)
    }

    /// Makes records of what is in `out`, up to the first file. Returns how many bytes they hold.
    pub(super) fn seal(&mut self, out: &mut Outbox, sealed: &mut Outbox) -> usize {
        let len_max = if out.is_lean() {
            SEALED_LEN_LEAN
        } else {
            SEALED_LEN_MAX
        };
        let mut len = 0;
        let memory = out.chunks().map_while(|chunk| match chunk {
            Chunk::Bytes(bytes) => Some(bytes),
            Chunk::Shared(bytes) => Some(&bytes[..]),
            Chunk::File(_) => None,
        });
        for bytes in memory {
            let part = &bytes[..bytes.len().min(len_max - len)];
            len += part.len();
            self.seal_bytes(part, sealed);
        }
        out.consume(len as u64);
        len
    }

    /// Makes records of `bytes`.
    fn seal_bytes(&mut self, bytes: &[u8], sealed: &mut Outbox) {
        for piece in bytes.chunks(SEALED_LEN_MAX) {
            let connection = self.connection.as_mut();
            let connection = connection.expect("nothing is sent before the handshake");
            let written = connection.writer().write_all(piece);
            written.expect("rustls has space for 64 KiB, and it is empty");
            self.take_records(sealed);
        }
    }

    /// Makes the record that says that nothing comes after it.
    pub(super) fn end(&mut self, sealed: &mut Outbox) {
        self.has_ended = true;
        if let Some(connection) = &mut self.connection {
            connection.send_close_notify();
        }
        self.take_records(sealed);
    }

    /// Takes the records that were made, in the order in which they were.
    pub(super) fn take_records(&mut self, sealed: &mut Outbox) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        while connection.wants_write() {
            let written = connection.write_tls(sealed);
            written.expect("an outbox takes everything");
        }
    }
}

/// Bytes of records that rustls keeps. It keeps a record until its end comes, and the fragments of
/// a handshake message, in a buffer that shrinks when the next record begins in an empty one.
#[derive(Debug, Default)]
struct Records {
    /// The header of the record that comes, and how much of that record has come.
    header: [u8; HEADER_LEN],
    part_len: usize,
    /// Bytes since the last plain bytes: they may be fragments of a handshake message.
    joined_len: usize,
    buffered_len: usize,
}

impl Records {
    /// This much has come.
    fn came(&mut self, input: &[u8]) {
        if self.part_len == 0 && self.joined_len == 0 {
            self.buffered_len = 0;
        }
        self.joined_len += input.len();
        let longest = self.advance(input);
        self.buffered_len = self.buffered_len.max(longest).max(self.joined_len);
    }

    /// Finds the records in `input`. Returns the most that had come of one.
    fn advance(&mut self, mut input: &[u8]) -> usize {
        let mut longest = 0;
        while !input.is_empty() {
            let wanted = HEADER_LEN.saturating_sub(self.part_len);
            let (part, rest) = input.split_at(input.len().min(match wanted {
                0 => self.record_len() - self.part_len,
                wanted => wanted,
            }));
            if wanted > 0 {
                self.header[self.part_len..][..part.len()].copy_from_slice(part);
            }
            self.part_len += part.len();
            longest = longest.max(self.part_len);
            if self.part_len >= HEADER_LEN && self.part_len == self.record_len() {
                self.part_len = 0;
            }
            input = rest;
        }
        longest
    }

    /// The length of the record whose header has come, with the header.
    fn record_len(&self) -> usize {
        let [_, _, _, high, low] = self.header;
        HEADER_LEN + usize::from(u16::from_be_bytes([high, low]))
    }
}

/// True if a handshake can begin with these bytes: the first record is whole, or its header says
/// that it is none.
pub(crate) fn is_record_whole(bytes: &[u8]) -> bool {
    match bytes {
        [HANDSHAKE_RECORD, _, _, high, low, rest @ ..] => {
            let len = usize::from(u16::from_be_bytes([*high, *low]));
            rest.len() >= len || len > RECORD_LEN_MAX
        }
        _ => bytes.len() >= HEADER_LEN,
    }
}
