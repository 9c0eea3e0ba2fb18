//! TLS (RFC 8446, RFC 5246) over another back end: the worker's bytes are encrypted into its
//! output, and what it receives is decrypted.
//!
//! A connection completes as connected when its handshake has. The generator encrypts with rustls,
//! as the servers of this project do; its processor time is the generator's.

use std::io::{self, BufRead, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct,
    HandshakeKind, RootCertStore, SignatureScheme, StreamOwned, version,
};

use crate::LoadError;
use crate::io::operation::{Completion, CompletionKind, Gather, Route};
use crate::io::slots::Receive;
use crate::io::{Backend, ReadWrite};
use crate::plan::{LoadTarget, Plan, Tls, TlsVersion, Workload};

/// Result of a connection whose peer violates TLS, or whose certificate is refused.
const NO_TLS: i32 = -libc::EPROTO;
/// Protocol name of HTTP/2 (RFC 9113 3.2).
const HTTP2: &[u8] = b"h2";
const NO_HTTP2: &str = "the server does not offer HTTP/2 (ALPN); leave --http2 out";
/// Sessions that the threads keep together to resume them.
const KEPT_SESSIONS: usize = 256;

/// Settings of all TLS connections of a run.
#[derive(Clone)]
pub(crate) struct TlsClient {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// The end of a handshake.
#[derive(Clone, Copy)]
pub(crate) struct Handshake {
    pub(crate) lasted: Duration,
    pub(crate) is_resumed: bool,
}

impl TlsClient {
    /// Settings of the plan; `None` without TLS.
    pub(crate) fn of_plan(plan: &Plan) -> Result<Option<TlsClient>, LoadError> {
        let Some(tls) = &plan.tls else {
            return Ok(None);
        };
        let wrong = |error: &dyn std::fmt::Display| LoadError(format!("TLS: {error}"));
        let name = ServerName::try_from(tls.server_name.clone()).map_err(|error| wrong(&error))?;
        let mut config = config(tls).map_err(|error| wrong(&error))?;
        config.alpn_protocols = match plan.workload {
            Workload::Cache(_) => Vec::new(),
            _ if plan.http2 => vec![HTTP2.to_vec()],
            _ => vec![b"http/1.1".to_vec()],
        };
        Ok(Some(TlsClient { config: Arc::new(config), name }))
    }

    fn connection(&self) -> ClientConnection {
        let connection = ClientConnection::new(Arc::clone(&self.config), self.name.clone());
        let mut connection = connection.expect("the settings were tried");
        // The worker bounds what it sends.
        connection.set_buffer_limit(None);
        connection
    }

    /// Carries out a handshake on a blocking connection, of which a read takes at most `limit` too.
    /// Returns what was agreed on, or why it failed.
    pub(crate) fn try_on(
        &self,
        stream: impl Read + Write,
        limit: Duration,
    ) -> Result<String, String> {
        let ends = Instant::now() + limit;
        let late = || format!("no handshake within {limit:?}; check the port, or use http://");
        let mut stream = Limited { stream, may_read: false };
        let mut connection = self.connection();
        while connection.is_handshaking() {
            if Instant::now() >= ends {
                return Err(late());
            }
            stream.may_read = true;
            match connection.complete_io(&mut stream).map_err(|error| (error.kind(), error)) {
                // The one read was made.
                Ok(_) | Err((io::ErrorKind::WouldBlock, _)) => {}
                Err((io::ErrorKind::TimedOut, _)) => return Err(late()),
                Err((_, error)) => return Err(why_no_handshake(&error)),
            }
        }
        let is_http2 = self.config.alpn_protocols.iter().any(|it| it == HTTP2);
        if is_http2 && connection.alpn_protocol() != Some(HTTP2) {
            return Err(NO_HTTP2.to_owned());
        }
        let version = match connection.protocol_version() {
            Some(rustls::ProtocolVersion::TLSv1_2) => "TLS 1.2",
            _ => "TLS 1.3",
        };
        let suite = connection.negotiated_cipher_suite();
        let suite = suite.map(|suite| format!("{:?}", suite.suite()));
        let suite = suite.unwrap_or_default();
        let suite = suite.trim_start_matches("TLS13_").trim_start_matches("TLS_");
        Ok(format!("{version}, {suite}"))
    }

    /// A blocking connection with TLS.
    pub(crate) fn stream<'a>(&self, under: Box<dyn ReadWrite + 'a>) -> Box<dyn ReadWrite + 'a> {
        let under = Limited { stream: under, may_read: false };
        Box::new(ReadOnce(StreamOwned::new(self.connection(), under)))
    }
}

fn config(tls: &Tls) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let versions: &[_] = match tls.version {
        None => &[&version::TLS13, &version::TLS12],
        Some(TlsVersion::V12) => &[&version::TLS12],
        Some(TlsVersion::V13) => &[&version::TLS13],
    };
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)?;
    let builder = match &tls.authorities {
        Some(authorities) => {
            let mut roots = RootCertStore::empty();
            let certificates = authorities.iter().cloned().map(CertificateDer::from);
            roots.add_parsable_certificates(certificates);
            builder.with_root_certificates(roots)
        }
        None => builder.dangerous().with_custom_certificate_verifier(Arc::new(Unchecked(provider))),
    };
    let mut config = builder.with_no_client_auth();
    config.resumption = if tls.resumes {
        Resumption::in_memory_sessions(KEPT_SESSIONS)
    } else {
        Resumption::disabled()
    };
    Ok(config)
}

/// TLS over a blocking stream. Each call reads from the stream at most once: rustls alone would
/// read until a record is whole, however slowly it comes.
struct ReadOnce<S: Read + Write>(StreamOwned<ClientConnection, Limited<S>>);

impl<S: Read + Write> Read for ReadOnce<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.sock.may_read = true;
        self.0.read(buffer)
    }
}

impl<S: Read + Write> Write for ReadOnce<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.sock.may_read = true;
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.sock.may_read = true;
        self.0.flush()
    }
}

/// Stream that may be read once, and would then block.
struct Limited<S> {
    stream: S,
    may_read: bool,
}

impl<S: Read> Read for Limited<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !std::mem::take(&mut self.may_read) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.stream.read(buffer)
    }
}

impl<S: Write> Write for Limited<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn why_no_handshake(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    inner.map_or_else(|| error.to_string(), why)
}

/// Reason of a failed handshake, with what helps.
fn why(error: &rustls::Error) -> String {
    let (said, helps) = match error {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => (
            "the certificate's issuer is not known".to_owned(),
            "give it with --cacert FILE, or use --insecure",
        ),
        rustls::Error::InvalidCertificate(CertificateError::Other(other))
            if format!("{other:?}").contains("CaUsedAsEndEntity") =>
        {
            (
                "the certificate is an authority's (openssl's self-signed ones are)".to_owned(),
                "use --insecure, or a certificate with CA:FALSE",
            )
        }
        rustls::Error::InvalidCertificate(reason) => {
            (format!("the certificate is refused: {reason}"), "see --insecure")
        }
        rustls::Error::InvalidMessage(_) => {
            ("the server does not speak TLS".to_owned(), "check the port, or use http://")
        }
        rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol) => (
            "the server does not offer this version of HTTP (ALPN)".to_owned(),
            "use --http2, or leave it out",
        ),
        rustls::Error::AlertReceived(AlertDescription::UnrecognisedName) => (
            "the server has no certificate for this name".to_owned(),
            "use its name in the URL, and --connect-to for its address",
        ),
        rustls::Error::AlertReceived(AlertDescription::ProtocolVersion) => {
            ("the server does not speak this version of TLS".to_owned(), "see --tls-version")
        }
        rustls::Error::AlertReceived(
            AlertDescription::HandshakeFailure | AlertDescription::CertificateRequired,
        ) => (
            "the server refused the handshake".to_owned(),
            "it may demand a client certificate, which weft load has not, or another cipher",
        ),
        other => return other.to_string(),
    };
    format!("{said}; {helps}")
}

/// Accepts every certificate; signatures of the handshake are checked all the same.
#[derive(Debug)]
struct Unchecked(Arc<CryptoProvider>);

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// TLS connections over a back end, slot by slot.
pub(crate) struct TlsBackend {
    under: Backend,
    client: TlsClient,
    slots: Vec<TlsSlot>,
    /// Slots with bytes to encrypt, each once.
    dirty: Vec<u32>,
    /// Completions for the worker that need nothing more from below.
    ended: Vec<Completion>,
    /// Completions of the back end below; empty between calls.
    below: Vec<Completion>,
}

#[derive(Default)]
struct TlsSlot {
    /// `None` until TCP has connected.
    connection: Option<Box<ClientConnection>>,
    began: Option<Instant>,
    handshake: Option<Handshake>,
    /// Bytes to encrypt.
    out: Vec<u8>,
    is_dirty: bool,
    /// Decrypted bytes; those before `shown` have ended a receive.
    plain: Vec<u8>,
    shown: usize,
    /// The receive in progress.
    receive: Receive,
    /// True if the back end below has a receive in progress.
    is_receiving: bool,
    /// Result to end with once all decrypted bytes are shown: 0 at the end of input, or an error.
    end: Option<i32>,
    /// True if TCP ended, and TLS had not.
    is_torn: bool,
}

impl TlsBackend {
    pub(crate) fn new(under: Backend, client: TlsClient, slots: u32) -> TlsBackend {
        TlsBackend {
            under,
            client,
            slots: (0..slots).map(|_| TlsSlot::default()).collect(),
            dirty: Vec::new(),
            ended: Vec::new(),
            below: Vec::new(),
        }
    }

    pub(crate) fn open(&mut self, slot: u32, route: &Route<'_>) -> Result<(), rustix::io::Errno> {
        // A handshake has several messages, of which none may wait for an acknowledgement.
        let route = Route { is_chatty: true, ..*route };
        self.under.open(slot, &route)
    }

    pub(crate) fn stream(
        &mut self,
        to: &LoadTarget,
        connect_timeout: Duration,
        wait: Duration,
    ) -> io::Result<Box<dyn ReadWrite + '_>> {
        let under = self.under.stream(to, connect_timeout, wait)?;
        Ok(self.client.stream(under))
    }

    pub(crate) fn output(&mut self, slot: u32) -> &mut Vec<u8> {
        let entry = &mut self.slots[slot as usize];
        if !std::mem::replace(&mut entry.is_dirty, true) {
            self.dirty.push(slot);
        }
        &mut entry.out
    }

    pub(crate) fn unsent(&self, slot: u32) -> usize {
        self.slots[slot as usize].out.len() + self.under.unsent(slot)
    }

    pub(crate) fn begin_receive(&mut self, slot: u32, receive: Receive) {
        let entry = &mut self.slots[slot as usize];
        if entry.shown == entry.plain.len() {
            entry.plain.clear();
            entry.shown = 0;
        }
        entry.receive = receive;
        self.serve_receive(slot);
    }

    pub(crate) fn input(&self, slot: u32, length: usize) -> &[u8] {
        let entry = &self.slots[slot as usize];
        &entry.plain[entry.shown - length..entry.shown]
    }

    pub(crate) fn is_busy(&self, slot: u32) -> bool {
        self.under.is_busy(slot)
    }

    /// True if TCP ended, and TLS had not.
    pub(crate) fn is_torn(&self, slot: u32) -> bool {
        self.slots[slot as usize].is_torn
    }

    pub(crate) fn cancel(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        entry.receive = Receive::None;
        entry.out.clear();
        self.ended.retain(|completion| completion.slot != slot);
        self.under.cancel(slot);
    }

    pub(crate) fn close(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        let closed = std::mem::take(entry);
        entry.out = closed.out;
        entry.out.clear();
        entry.plain = closed.plain;
        entry.plain.clear();
        entry.is_dirty = closed.is_dirty;
        self.under.close(slot);
    }

    /// The slot's handshake, once.
    pub(crate) fn take_handshake(&mut self, slot: u32) -> Option<Handshake> {
        self.slots[slot as usize].handshake.take()
    }

    pub(crate) fn gather(&mut self, gather: Gather) {
        self.under.gather(gather);
    }

    pub(crate) fn submit_and_wait(
        &mut self,
        wait: Duration,
        completions: &mut Vec<Completion>,
    ) -> io::Result<()> {
        for slot in std::mem::take(&mut self.dirty) {
            self.encrypt(slot);
        }
        let wait = if self.ended.is_empty() { wait } else { Duration::ZERO };
        let mut below = std::mem::take(&mut self.below);
        let result = self.under.submit_and_wait(wait, &mut below);
        for completion in below.drain(..) {
            self.complete(completion);
        }
        self.below = below;
        completions.append(&mut self.ended);
        result
    }

    fn encrypt(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        entry.is_dirty = false;
        if let Some(connection) = &mut entry.connection
            && !entry.out.is_empty()
        {
            let written = connection.writer().write_all(&entry.out);
            written.expect("its buffer has no limit");
        }
        entry.out.clear();
        self.flush(slot);
    }

    /// Hands what TLS has to send to the back end below.
    fn flush(&mut self, slot: u32) {
        let Some(connection) = &mut self.slots[slot as usize].connection else {
            return;
        };
        while connection.wants_write() {
            let written = connection.write_tls(self.under.output(slot));
            written.expect("a vector takes all");
        }
    }

    fn complete(&mut self, completion: Completion) {
        let Completion { slot, kind, result } = completion;
        match kind {
            CompletionKind::Connected if result >= 0 => {
                let entry = &mut self.slots[slot as usize];
                entry.connection = Some(Box::new(self.client.connection()));
                entry.began = Some(Instant::now());
                self.flush(slot);
                self.receive_below(slot);
            }
            CompletionKind::Received => {
                self.slots[slot as usize].is_receiving = false;
                self.received(slot, result);
            }
            CompletionKind::Connected | CompletionKind::Sent | CompletionKind::Cancelled => {
                self.ended.push(completion);
            }
        }
    }

    fn receive_below(&mut self, slot: u32) {
        let is_receiving = &mut self.slots[slot as usize].is_receiving;
        if !std::mem::replace(is_receiving, true) {
            self.under.receive(slot);
        }
    }

    fn received(&mut self, slot: u32, result: i32) {
        let entry = &mut self.slots[slot as usize];
        let Some(connection) = &mut entry.connection else {
            return; // The slot was closed.
        };
        entry.is_torn = result == 0;
        entry.end = match result {
            ..=0 => Some(result),
            _ => {
                let input = self.under.input(slot, result as usize);
                match decrypt(connection, input, &mut entry.plain) {
                    Err(_) => Some(NO_TLS),
                    // Nothing follows, even if TCP stays open (RFC 8446 6.1).
                    Ok(has_closed) => has_closed.then_some(0),
                }
            }
        };
        let is_handshaking = connection.is_handshaking();
        if is_handshaking && entry.end.is_none() {
            self.flush(slot);
            return self.receive_below(slot);
        }
        if entry.began.is_some() && !is_handshaking && entry.end.is_none_or(|end| end == 0) {
            self.connected(slot);
        } else if let (Some(_), Some(end)) = (entry.began.take(), entry.end) {
            // The peer closed, or was no peer for TLS.
            let result = if end == 0 { NO_TLS } else { end };
            self.end(slot, CompletionKind::Connected, result);
        }
        self.flush(slot);
        self.serve_receive(slot);
    }

    fn connected(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        let connection = entry.connection.as_ref();
        let kind = connection.and_then(|connection| connection.handshake_kind());
        entry.handshake = entry.began.take().map(|began| Handshake {
            lasted: began.elapsed(),
            is_resumed: kind == Some(HandshakeKind::Resumed),
        });
        self.end(slot, CompletionKind::Connected, 0);
    }

    fn end(&mut self, slot: u32, kind: CompletionKind, result: i32) {
        self.ended.push(Completion { slot, kind, result });
    }

    /// Ends the receive in progress with decrypted bytes if there are any, or receives more.
    fn serve_receive(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        let left = entry.plain.len() - entry.shown;
        let count = match entry.receive {
            Receive::None => return,
            Receive::Read => left,
            Receive::Discard(bytes) => left.min(bytes.try_into().unwrap_or(usize::MAX)),
        };
        let result = match (count, entry.end) {
            (1.., _) => count as i32,
            (0, Some(end)) => end,
            (0, None) => return self.receive_below(slot),
        };
        entry.shown += count;
        entry.receive = Receive::None;
        self.end(slot, CompletionKind::Received, result);
    }
}

/// Decrypts received bytes and appends them to `plain`. Returns true if the peer has said that
/// nothing follows.
fn decrypt(
    connection: &mut ClientConnection,
    mut bytes: &[u8],
    plain: &mut Vec<u8>,
) -> Result<bool, rustls::Error> {
    let mut has_closed = false;
    while !bytes.is_empty() {
        let taken = connection.read_tls(&mut bytes);
        has_closed = connection.process_new_packets()?.peer_has_closed();
        let len_before = plain.len();
        let mut reader = connection.reader();
        while let Ok(piece @ [_, ..]) = reader.fill_buf() {
            plain.extend_from_slice(piece);
            let len = piece.len();
            reader.consume(len);
        }
        match taken {
            // The rest is not read behind the peer's close_notify.
            Ok(0) => return Ok(has_closed),
            // Its buffer is full until the plain bytes are taken out.
            Err(error) if plain.len() == len_before => {
                return Err(rustls::Error::General(error.to_string()));
            }
            _ => {}
        }
    }
    Ok(has_closed)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A peer that takes every byte, and whose endless record comes one byte for each read.
    struct Dribbling<'a> {
        reads: &'a Cell<usize>,
    }

    impl Read for Dribbling<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            // The head of a handshake record of 16,383 bytes.
            let record = [22, 3, 3, 0x3f, 0xff];
            buffer[0] = record.get(self.reads.get()).copied().unwrap_or(2);
            self.reads.set(self.reads.get() + 1);
            Ok(1)
        }
    }

    impl Write for Dribbling<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Seen: `--populate --tls` on a server whose records came byte by byte heard no Ctrl-C. Cause:
    /// rustls reads until a record is whole, and a stop is checked between two calls. Cure: a call
    /// reads from below once.
    #[test]
    fn dribbled_record_returns_at_each_byte() {
        let tls = Tls {
            server_name: "host".to_owned(),
            authorities: None,
            version: None,
            resumes: false,
        };
        let plan = Plan { tls: Some(tls), ..Plan::default() };
        let client = TlsClient::of_plan(&plan).unwrap().unwrap();
        let reads = Cell::new(0);
        let mut stream = client.stream(Box::new(Dribbling { reads: &reads }));
        for count in 1..=10 {
            let error = stream.read(&mut [0; 100]).unwrap_err();
            assert_eq!((error.kind(), reads.get()), (io::ErrorKind::WouldBlock, count));
        }
    }
}
