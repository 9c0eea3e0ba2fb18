//! TLS as a transformation of bytes, without a stream below it: records in, plain bytes out, and
//! the reverse.

use std::io;
use std::sync::Arc;

use rustls::InvalidMessage;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError, WriteTraffic,
};
use session::{Chunk, Outbox, TlsFacts};

use crate::memory::{Charge, Memory};
use crate::tls::{Tls, take_asked_name};

/// Bytes to encrypt before they are sent. A peer that takes fewer within the send time-out is too
/// slow: some 500 bytes a second.
pub(super) const SEALED_LEN_MAX: usize = 32 * 1024;

/// The same while memory is short.
const SEALED_LEN_LEAN: usize = 4 * 1024;

/// Memory of a handshake apart from the connection: keys, its messages, the certificate chain to
/// send. Measured: 7 to 9 KiB.
const HANDSHAKE_LEN: usize = 12 * 1024;

/// Length of a record's header: content type, version and length. RFC 8446 5.1
const HEADER_LEN: usize = 5;
const HANDSHAKE_RECORD: u8 = 22;
const RECORD_LEN_MAX: usize = 1 << 14;

/// Limit on kept input: fragments of one handshake message.
const INCOMING_LEN_MAX: usize = 1 << 16;

/// Smallest step by which the space for kept input grows.
const INCOMING_STEP_LEN: usize = 4096;

/// Most bytes that a record adds to its content: 29 in TLS 1.2 with AES.
const RECORD_OVERHEAD: usize = 32;

/// The state of TLS on one connection.
pub(crate) struct TlsConnection {
    /// `None` until the peer's first record is complete: a peer that sends nothing, or a part,
    /// costs almost nothing.
    connection: Option<Box<UnbufferedServerConnection>>,
    /// Name that the client requested; an unbuffered connection does not expose it.
    server_name: Option<Box<str>>,
    tls: Arc<Tls>,
    /// Charge for the handshake and for buffered input.
    charge: Charge,
    /// Unused input: part of a record, or fragments of a handshake message. Empty between records;
    /// the buffers of rustls' other interface keep 4 KiB per connection.
    incoming: Vec<u8>,
    /// TLS's own records, ready to be sent.
    made: Vec<u8>,
    /// The peer has sent close_notify.
    has_peer_ended: bool,
    /// The last record was made: nothing may follow it.
    pub(super) has_ended: bool,
}

impl TlsConnection {
    pub(crate) fn new(tls: &Arc<Tls>) -> Box<TlsConnection> {
        Box::new(TlsConnection {
            connection: None,
            server_name: None,
            tls: Arc::clone(tls),
            charge: Charge::default(),
            incoming: Vec::new(),
            made: Vec::new(),
            has_peer_ended: false,
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
    /// Errors of rustls for a new connection, which concern only memory.
    pub(super) fn begin(&mut self, memory: &Arc<Memory>) -> io::Result<()> {
        let connection = UnbufferedServerConnection::new(self.tls.config());
        self.connection = Some(Box::new(connection.map_err(io::Error::other)?));
        self.charge(memory);
        Ok(())
    }

    /// Charges held memory to `memory`. Returns whether it has grown.
    pub(super) fn charge(&mut self, memory: &Arc<Memory>) -> bool {
        let handshake_len = if self.is_handshaking() { HANDSHAKE_LEN } else { 0 };
        self.charge.set(memory, handshake_len + self.buffer_len())
    }

    /// Bytes of memory for unused input.
    pub(super) fn buffer_len(&self) -> usize {
        self.incoming.capacity()
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
            server_name: self.server_name.as_deref(),
            client: chain.and_then(<[_]>::first).map(AsRef::as_ref),
        }
    }

    /// Opens the records in `input` and passes their content on. An incomplete record is kept.
    /// Returns whether the peer sent close_notify, after which input is ignored. RFC 8446 6.1
    ///
    /// # Errors
    /// The mistake in the records. The last record to send is the alert about it.
    pub(super) fn open(
        &mut self,
        input: &[u8],
        mut show: impl FnMut(&[u8]),
    ) -> Result<bool, rustls::Error> {
        let was_handshaking = self.is_handshaking();
        let Some(connection) = &mut self.connection else {
            return Ok(false);
        };
        if self.has_peer_ended {
            return Ok(true);
        }
        let spare = self.incoming.capacity() - self.incoming.len();
        if !self.incoming.is_empty() && spare < input.len() {
            // Grow in steps, not by doubling: the memory is charged.
            self.incoming.reserve_exact(input.len().max(INCOMING_STEP_LEN));
        }
        self.incoming.extend_from_slice(input);
        let len = self.incoming.len();
        let mut used = 0;
        let opened = loop {
            let status = connection.process_tls_records(&mut self.incoming[used..]);
            used += status.discard;
            match status.state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(Ok(record)) = traffic.next_record() {
                        used += record.discard;
                        show(record.payload);
                    }
                }
                Ok(ConnectionState::EncodeTlsData(data)) => encode(data, &mut self.made),
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::PeerClosed) => {
                    self.has_peer_ended = true;
                    used = len;
                }
                Ok(_) if len - used > INCOMING_LEN_MAX => {
                    let error = InvalidMessage::HandshakePayloadTooLarge;
                    break Err(rustls::Error::InvalidMessage(error));
                }
                Ok(_) => break Ok(self.has_peer_ended),
                Err(error) => break Err(error),
            }
        };
        if opened.is_err() {
            // Get the alert. After it rustls would process the same records again.
            while connection.wants_write()
                && let Ok(ConnectionState::EncodeTlsData(data)) =
                    connection.process_tls_records(&mut self.incoming[used..]).state
            {
                encode(data, &mut self.made);
            }
        }
        if used > 0 {
            // Free the memory of the used part.
            self.incoming = self.incoming.split_off(used);
        }
        if was_handshaking {
            self.server_name = take_asked_name().or(self.server_name.take());
            if opened.is_ok() && !self.is_handshaking() {
                self.tls.count_handshake();
            }
        }
        opened.inspect_err(|error| self.tls.count_failure(error))
    }

    /// The plain-text reply to a peer that does not speak TLS, if that is this error.
    pub(super) fn in_the_clear(&self, error: &rustls::Error) -> Option<&'static [u8]> {
        const NO_RECORD: rustls::Error =
            rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType);
        let text = self.tls.in_the_clear();
        (self.is_handshaking() && *error == NO_RECORD && !text.is_empty()).then_some(text)
    }

    /// Encrypts the content of `out`, up to the first file. Returns the number of plaintext bytes.
    /// If the keys are exhausted, the last record is close_notify, and the rest stays in `out`.
    pub(super) fn seal(&mut self, out: &mut Outbox, sealed: &mut Outbox) -> usize {
        let len_max = if out.is_lean() { SEALED_LEN_LEAN } else { SEALED_LEN_MAX };
        let mut len = 0;
        let memory = out.chunks().map_while(|chunk| match chunk {
            Chunk::Bytes(bytes) => Some(bytes),
            Chunk::Shared(bytes, _) => Some(&bytes[..]),
            Chunk::File(_) => None,
        });
        for bytes in memory {
            let part = &bytes[..bytes.len().min(len_max - len)];
            if part.is_empty() {
                break;
            }
            if !self.seal_bytes(part, sealed) {
                self.end(sealed);
                break;
            }
            len += part.len();
        }
        out.consume(len as u64);
        len
    }

    /// Encrypts `bytes`, or returns false.
    fn seal_bytes(&mut self, bytes: &[u8], sealed: &mut Outbox) -> bool {
        let records = bytes.len().div_ceil(RECORD_LEN_MAX);
        let len = bytes.len() + records * RECORD_OVERHEAD;
        self.write(sealed, len, |traffic, space| traffic.encrypt(bytes, space))
    }

    /// Makes the close_notify record.
    pub(super) fn end(&mut self, sealed: &mut Outbox) {
        self.has_ended = true;
        self.write(sealed, RECORD_OVERHEAD, |traffic, space| traffic.queue_close_notify(space));
    }

    /// Appends the output of `write` in a space of `len` bytes to `sealed`, after TLS's own
    /// records. False: not possible.
    fn write(
        &mut self,
        sealed: &mut Outbox,
        len: usize,
        mut write: impl FnMut(&mut Traffic<'_>, &mut [u8]) -> Result<usize, EncryptError>,
    ) -> bool {
        self.take_records(sealed);
        let Some(connection) = &mut self.connection else {
            return false;
        };
        // All complete records were opened, so this consumes nothing.
        while let Ok(state) = connection.process_tls_records(&mut self.incoming).state {
            match state {
                ConnectionState::EncodeTlsData(data) => {
                    sealed.put_with(|records| encode(data, records));
                }
                ConnectionState::TransmitTlsData(data) => data.done(),
                ConnectionState::WriteTraffic(mut traffic) => {
                    let mut is_written = true;
                    let write = |space: &mut [u8]| match write(&mut traffic, space) {
                        Err(EncryptError::InsufficientSize(short)) => Err(short),
                        // TLS 1.2 ends after 2^24 records.
                        Err(EncryptError::EncryptExhausted) => {
                            is_written = false;
                            Ok(0)
                        }
                        Ok(len) => Ok(len),
                    };
                    sealed.put_with(|records| append(records, len, write));
                    return is_written;
                }
                _ => break,
            }
        }
        false
    }

    /// Takes the finished records, in order.
    pub(super) fn take_records(&mut self, sealed: &mut Outbox) {
        if !self.made.is_empty() {
            sealed.put(&self.made);
            self.made = Vec::new();
        }
    }
}

type Traffic<'a> = WriteTraffic<'a, ServerConnectionData>;

/// Appends one of TLS's own records.
fn encode(mut data: EncodeTlsData<'_, ServerConnectionData>, records: &mut Vec<u8>) {
    append(records, 0, |space| match data.encode(space) {
        Ok(len) => Ok(len),
        Err(EncodeError::InsufficientSize(short)) => Err(short),
        Err(EncodeError::AlreadyEncoded) => Ok(0),
    });
}

/// Appends the output of `write` in a space of `len` bytes, or of as many as it needs.
fn append(
    records: &mut Vec<u8>,
    mut len: usize,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, InsufficientSizeError>,
) {
    let start = records.len();
    loop {
        records.resize(start + len, 0);
        match write(&mut records[start..]) {
            Ok(written) => return records.truncate(start + written),
            Err(short) => len = short.required_size,
        }
    }
}

/// True if a handshake can begin with these bytes: the first record is complete, or its header is
/// invalid.
pub(crate) fn is_record_whole(bytes: &[u8]) -> bool {
    match bytes {
        [HANDSHAKE_RECORD, _, _, high, low, rest @ ..] => {
            let len = usize::from(u16::from_be_bytes([*high, *low]));
            rest.len() >= len || len > RECORD_LEN_MAX
        }
        _ => bytes.len() >= HEADER_LEN,
    }
}
