//! TLS as a transform of bytes: records in, plain bytes out, and the other way round. No stream
//! beneath it.

use std::io::{self, BufRead, Write};
use std::sync::Arc;

use rustls::ServerConnection;
use session::{Chunk, Outbox, TlsFacts};

use crate::tls::Tls;

/// How much is put into records before it is sent. A peer that takes less than this within the send
/// time-out is too slow: some 500 bytes a second.
pub(super) const SEALED_LEN_MAX: usize = 32 * 1024;

/// The state of TLS on one connection.
#[derive(Debug)]
pub(crate) struct Secure {
    connection: ServerConnection,
    tls: Arc<Tls>,
    /// The last record was made: the peer is told that nothing comes after it.
    pub(super) has_ended: bool,
}

impl Secure {
    /// # Errors
    /// What rustls says to a new connection, which concerns its memory only.
    pub(crate) fn new(tls: &Arc<Tls>) -> io::Result<Box<Secure>> {
        let connection = ServerConnection::new(tls.config()).map_err(io::Error::other)?;
        Ok(Box::new(Secure {
            connection,
            tls: Arc::clone(tls),
            has_ended: false,
        }))
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// What the handshake agreed on.
    pub(super) fn facts(&self) -> TlsFacts<'_> {
        TlsFacts {
            alpn: self.connection.alpn_protocol(),
            server_name: self.connection.server_name(),
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
        let mut has_peer_ended = false;
        let mut opened = Ok(());
        while opened.is_ok() && !input.is_empty() {
            // A slice is read without an error; 0 is the end after a goodbye.
            if !matches!(self.connection.read_tls(&mut input), Ok(1..)) {
                break;
            }
            opened = self.connection.process_new_packets().map(|state| {
                has_peer_ended = state.peer_has_closed();
            });
            let mut reader = self.connection.reader();
            while let Ok(plain @ [_, ..]) = reader.fill_buf() {
                let len = plain.len();
                show(plain);
                reader.consume(len);
            }
        }
        if was_handshaking && !self.is_handshaking() && opened.is_ok() {
            self.tls.count_handshake();
        }
        opened
            .map(|()| has_peer_ended)
            .inspect_err(|_| self.tls.count_failure())
    }

    /// What a peer is told in the clear whose bytes failed like this: it does not speak TLS.
    pub(super) fn in_the_clear(&self, error: &rustls::Error) -> Option<&'static [u8]> {
        const NO_RECORD: rustls::Error =
            rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
        let text = self.tls.in_the_clear();
        (self.is_handshaking() && *error == NO_RECORD && !text.is_empty()).then_some(text)
    }

    /// Makes records of what is in `out`, up to the first file. Returns how many bytes they hold.
    pub(super) fn seal(&mut self, out: &mut Outbox, sealed: &mut Outbox) -> usize {
        let mut len = 0;
        let memory = out.chunks().map_while(|chunk| match chunk {
            Chunk::Bytes(bytes) => Some(bytes),
            Chunk::Shared(bytes) => Some(&bytes[..]),
            Chunk::File(_) => None,
        });
        for bytes in memory {
            let part = &bytes[..bytes.len().min(SEALED_LEN_MAX - len)];
            len += part.len();
            self.seal_bytes(part, sealed);
        }
        out.consume(len as u64);
        len
    }

    /// Makes records of `bytes`.
    fn seal_bytes(&mut self, bytes: &[u8], sealed: &mut Outbox) {
        for piece in bytes.chunks(SEALED_LEN_MAX) {
            let written = self.connection.writer().write_all(piece);
            written.expect("rustls has room for 64 KiB, and it is empty");
            self.take_records(sealed);
        }
    }

    /// Makes the record that says that nothing comes after it.
    pub(super) fn end(&mut self, sealed: &mut Outbox) {
        self.has_ended = true;
        self.connection.send_close_notify();
        self.take_records(sealed);
    }

    /// Takes the records that were made, in the order in which they were.
    pub(super) fn take_records(&mut self, sealed: &mut Outbox) {
        while self.connection.wants_write() {
            let written = self.connection.write_tls(sealed);
            written.expect("an outbox takes everything");
        }
    }
}
