//! TLS over any stream, by rustls: certificates that can be read again while the server runs, and a stream
//! that a driver uses like any other.
//!
//! ```text
//!   driver ── receive / send ──▶ TlsStream ── records ──▶ FiberStream or ThreadStream ──▶ socket
//!                                    │
//!                                   Tls   the certificate of now; one for all connections
//! ```
//!
//! The handshake is part of the first receive, so the time-out of that wait holds for it, and so does a time-out of
//! its own: a server that lets idle clients wait for hours does not let them begin to speak TLS for hours.

use std::cell::Cell;
use std::io::{self, BufRead, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, ServerSessionMemoryCache, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, ServerConnection, SupportedCipherSuite};
use session::FileRange;

use crate::stream::{Stream, check_last};

/// How TLS is spoken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// The certificate, and those that lead from it to one that clients know, in PEM.
    pub chain: PathBuf,
    /// The private key; in the file of the chain if not given.
    pub key: Option<PathBuf>,
    /// The key is in DER, not in PEM.
    pub key_is_der: bool,
    /// Whether clients show certificates, and signed by whom.
    pub clients: Clients,
    /// Cipher suites by OpenSSL's names, such as `ECDHE-RSA-AES128-GCM-SHA256`; empty for all.
    pub ciphers: Vec<String>,
    /// TLS 1.3 and nothing older.
    pub only_1_3: bool,
    /// Whether sessions can be resumed.
    pub resumes: bool,
}

/// Whether clients show certificates. The file has the certificates of those who may have signed them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Clients {
    /// They are not asked.
    #[default]
    Unknown,
    /// They may; one that is shown must be right.
    MayShow(PathBuf),
    /// They must.
    MustShow(PathBuf),
}

/// The certificate and the rules by which a server speaks TLS, from files that can be read again.
#[derive(Debug)]
pub struct Tls {
    options: TlsOptions,
    current: RwLock<Current>,
    handshake_count: AtomicU64,
    failed_handshake_count: AtomicU64,
}

#[derive(Debug)]
struct Current {
    config: Arc<ServerConfig>,
    since: Instant,
}

/// How many sessions are kept for those who come back.
const SESSIONS_KEPT_MAX: usize = 16 * 1024;

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// A sentence that names the file and says what is wrong with it.
    pub fn open(options: TlsOptions) -> Result<Tls, String> {
        let current = RwLock::new(Current::open(&options)?);
        Ok(Tls {
            options,
            current,
            handshake_count: AtomicU64::new(0),
            failed_handshake_count: AtomicU64::new(0),
        })
    }

    /// Reads the files again. Connections that are open go on with what they began with.
    ///
    /// # Errors
    /// As [`Tls::open`]; what was read before stays in force then.
    pub fn reload(&self) -> Result<(), String> {
        let newer = Current::open(&self.options)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = newer;
        Ok(())
    }

    /// How long ago the files were read.
    pub fn age(&self) -> Duration {
        self.current().1.elapsed()
    }

    /// How many handshakes came to their end.
    pub fn handshake_count(&self) -> u64 {
        self.handshake_count.load(Ordering::Relaxed)
    }

    /// How many connections failed before or after that, for what TLS has to say.
    pub fn failed_handshake_count(&self) -> u64 {
        self.failed_handshake_count.load(Ordering::Relaxed)
    }

    fn current(&self) -> (Arc<ServerConfig>, Instant) {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        (Arc::clone(&current.config), current.since)
    }
}

impl Current {
    fn open(options: &TlsOptions) -> Result<Current, String> {
        let provider = Arc::new(provider(&options.ciphers)?);
        let versions: &[_] = match options.only_1_3 {
            true => &[&rustls::version::TLS13],
            false => &[&rustls::version::TLS13, &rustls::version::TLS12],
        };
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(|error| format!("the cipher suites fit no version of TLS: {error}"))?;
        let verifier = |file: &Path| {
            let roots = Arc::new(roots(file)?);
            Ok::<_, String>(WebPkiClientVerifier::builder_with_provider(roots, provider))
        };
        let wrong = |error| format!("the certificates of those who sign clients: {error}");
        let builder = match &options.clients {
            Clients::Unknown => builder.with_no_client_auth(),
            Clients::MayShow(file) => builder.with_client_cert_verifier(
                verifier(file)?
                    .allow_unauthenticated()
                    .build()
                    .map_err(wrong)?,
            ),
            Clients::MustShow(file) => {
                builder.with_client_cert_verifier(verifier(file)?.build().map_err(wrong)?)
            }
        };
        let mut config = builder
            .with_single_cert(chain(&options.chain)?, key(options)?)
            .map_err(|error| {
                let chain = options.chain.display();
                format!("certificate and key of {chain} do not make a pair: {error}")
            })?;
        if options.resumes {
            config.session_storage = ServerSessionMemoryCache::new(SESSIONS_KEPT_MAX);
        } else {
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Current {
            config: Arc::new(config),
            since: Instant::now(),
        })
    }
}

fn chain(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let what = "the certificate chain";
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(chain) if chain.is_empty() => Err(format!(
            "{what} {} has no certificate in PEM",
            file.display()
        )),
        Ok(chain) => Ok(chain),
        Err(error) => Err(unreadable(what, file, &error)),
    }
}

fn key(options: &TlsOptions) -> Result<PrivateKeyDer<'static>, String> {
    let file = options.key.as_deref().unwrap_or(&options.chain);
    let bytes = match options.key_is_der {
        true => std::fs::read(file).map_err(|error| unreadable("the private key", file, &error))?,
        // By what it is and not by what stands above it, as OpenSSL does: keys are mislabelled now and then.
        false => PrivateKeyDer::from_pem_file(file)
            .map_err(|error| unreadable("the private key", file, &error))?
            .secret_der()
            .to_vec(),
    };
    PrivateKeyDer::try_from(bytes).map_err(|error| unreadable("the private key", file, &error))
}

fn roots(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in chain(file)? {
        roots.add(certificate).map_err(|error| {
            unreadable("the certificates of those who sign clients,", file, &error)
        })?;
    }
    Ok(roots)
}

fn unreadable(what: &str, file: &Path, error: &dyn std::fmt::Display) -> String {
    format!("cannot read {what} {}: {error}", file.display())
}

/// rustls's provider with all suites, or those of the list in its order.
fn provider(names: &[String]) -> Result<CryptoProvider, String> {
    let all = ring::default_provider();
    if names.is_empty() {
        return Ok(all);
    }
    let known = || {
        all.cipher_suites
            .iter()
            .map(openssl_name)
            .collect::<Vec<_>>()
    };
    let suite = |name: &String| {
        let found = all
            .cipher_suites
            .iter()
            .find(|suite| openssl_name(suite) == *name);
        found.copied().ok_or_else(|| {
            format!(
                "there is no cipher suite '{name}'; there are {}",
                known().join(", ")
            )
        })
    };
    let cipher_suites = names.iter().map(suite).collect::<Result<Vec<_>, _>>()?;
    Ok(CryptoProvider {
        cipher_suites,
        ..all
    })
}

/// `TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256` as OpenSSL calls it, `ECDHE-RSA-AES128-GCM-SHA256`. The suites of TLS 1.3 have
/// one name. openssl-ciphers(1)
fn openssl_name(suite: &SupportedCipherSuite) -> String {
    let name = format!("{:?}", suite.suite());
    match name.strip_prefix("TLS13_") {
        Some(rest) => format!("TLS_{rest}"),
        None => name
            .trim_start_matches("TLS_")
            .replace("_WITH", "")
            .replace("AES_", "AES")
            .replace("_POLY1305_SHA256", "_POLY1305")
            .replace('_', "-"),
    }
}

/// How long a handshake may take: three round trips and a few lost packets.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// How much is put into records before it is sent. A peer that takes less than this within the send time-out is
/// too slow: some 500 bytes a second.
const SEALED_LEN_MAX: usize = 32 * 1024;

/// How long a goodbye may wait for room in the socket's buffer.
const GOODBYE_PATIENCE: Duration = Duration::from_millis(100);

/// A stream inside TLS.
#[derive(Debug)]
pub(crate) struct TlsStream<T> {
    stream: T,
    tls: Arc<Tls>,
    handshake_deadline: Instant,
    /// One carrier uses it; locked only while records are made or opened, never while waiting.
    wire: Mutex<Wire>,
}

/// The state of TLS, and what has arrived for it.
#[derive(Debug)]
struct Wire {
    connection: ServerConnection,
    /// Records that it had no room for yet.
    pending: Vec<u8>,
    is_ended: bool,
}

/// What a look at the received records finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plain {
    Ready,
    Ended,
    NeedsMore,
}

thread_local! {
    /// Sealed bytes on their way out, kept for the next time.
    static SEALED: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl<T: Stream> TlsStream<T> {
    /// # Errors
    /// What rustls says to a new connection, which concerns its memory only.
    pub(crate) fn new(stream: T, tls: Arc<Tls>) -> io::Result<TlsStream<T>> {
        let connection = ServerConnection::new(tls.current().0).map_err(io::Error::other)?;
        let wire = Wire {
            connection,
            pending: Vec::new(),
            is_ended: false,
        };
        Ok(TlsStream {
            stream,
            tls,
            handshake_deadline: Instant::now() + HANDSHAKE_TIMEOUT,
            wire: Mutex::new(wire),
        })
    }

    fn wire(&self) -> MutexGuard<'_, Wire> {
        self.wire.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there are bytes for the driver, or the end. Does what the handshake needs on the way.
    fn wait_for_plain(&self, deadline: Instant) -> io::Result<()> {
        loop {
            let was_handshaking = self.wire().connection.is_handshaking();
            let opened = self.wire().open();
            let is_handshaking = self.wire().connection.is_handshaking();
            // Also after an error: the peer gets to know which one.
            let said = self.send_sealed(deadline);
            if was_handshaking && !is_handshaking {
                self.tls.handshake_count.fetch_add(1, Ordering::Relaxed);
            }
            let plain = opened.inspect_err(|_| {
                self.tls
                    .failed_handshake_count
                    .fetch_add(1, Ordering::Relaxed);
            })?;
            said?;
            if plain != Plain::NeedsMore {
                return Ok(());
            }
            let deadline = match is_handshaking {
                true => deadline.min(self.handshake_deadline),
                false => deadline,
            };
            self.stream
                .receive(deadline, |input| self.wire().take(input))?;
        }
    }

    /// Sends the records that were made.
    fn send_sealed(&self, deadline: Instant) -> io::Result<()> {
        if !self.wire().connection.wants_write() {
            return Ok(());
        }
        let mut sealed = SEALED.take();
        sealed.clear();
        let result = self.wire().seal_into(&mut sealed).and_then(|()| {
            let mut at = 0;
            while at < sealed.len() {
                at += self
                    .stream
                    .send(&[IoSlice::new(&sealed[at..])], false, deadline)?;
            }
            Ok(())
        });
        SEALED.set(sealed);
        result
    }
}

impl Wire {
    /// Takes what has arrived; nothing is the end.
    fn take(&mut self, input: &[u8]) {
        self.is_ended |= input.is_empty();
        self.pending.extend_from_slice(input);
    }

    /// Opens the records that are there, as far as there is room for what is in them.
    fn open(&mut self) -> io::Result<Plain> {
        let mut at = 0;
        // Nothing would count as the end.
        while at < self.pending.len() {
            match self.connection.read_tls(&mut &self.pending[at..]) {
                // What was opened before must be taken first, or a goodbye has come.
                Err(_) | Ok(0) => break,
                Ok(len) => at += len,
            }
            self.connection
                .process_new_packets()
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
        self.pending.drain(..at);
        if self.pending.is_empty() {
            // Idle connections keep no buffer.
            self.pending = Vec::new();
        }
        Ok(match self.connection.reader().fill_buf() {
            Ok([]) => Plain::Ended,
            Ok(_) => Plain::Ready,
            // An end without a goodbye, which many clients make.
            Err(_) if self.is_ended => Plain::Ended,
            Err(_) => Plain::NeedsMore,
        })
    }

    fn seal_into(&mut self, sealed: &mut Vec<u8>) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(sealed)?;
        }
        Ok(())
    }
}

impl<T: Stream> Stream for TlsStream<T> {
    fn receive<R>(&self, deadline: Instant, f: impl FnOnce(&[u8]) -> R) -> io::Result<R> {
        self.wait_for_plain(deadline)?;
        let mut wire = self.wire();
        let mut reader = wire.connection.reader();
        let plain = reader.fill_buf().unwrap_or_default();
        let (len, result) = (plain.len(), f(plain));
        reader.consume(len);
        Ok(result)
    }

    fn receive_into(&self, room: &mut [u8], deadline: Instant) -> io::Result<usize> {
        self.wait_for_plain(deadline)?;
        Ok(self.wire().connection.reader().read(room).unwrap_or(0))
    }

    fn send(&self, slices: &[IoSlice<'_>], _more: bool, deadline: Instant) -> io::Result<usize> {
        let mut taken = 0;
        for slice in slices {
            let len = slice.len().min(SEALED_LEN_MAX - taken);
            taken += self.wire().connection.writer().write(&slice[..len])?;
        }
        self.send_sealed(deadline)?;
        Ok(taken)
    }

    fn send_file(&self, range: &FileRange, deadline: Instant) -> io::Result<u64> {
        let mut piece = vec![0; range.len().min(SEALED_LEN_MAX as u64) as usize];
        let len = fiber::fs::read_at(range.file.as_fd(), &mut piece, range.range.start)?;
        check_last(range, range.range.start + len as u64)?;
        let sent = self.send(&[IoSlice::new(&piece[..len])], false, deadline)?;
        Ok(sent as u64)
    }

    /// Records are copies.
    fn send_file_copy(&self, range: &FileRange, deadline: Instant) -> io::Result<u64> {
        self.send_file(range, deadline)
    }

    /// Copies need not be waited for.
    fn untaken_len(&self) -> io::Result<u64> {
        Ok(0)
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        // Ending only what we say is the carrier's to do, so nobody else is at the records.
        if how == Shutdown::Write {
            self.say_goodbye();
        }
        self.stream.shutdown(how)
    }

    fn say_goodbye(&self) {
        self.wire().connection.send_close_notify();
        // It is a courtesy: a peer that takes nothing more goes without.
        let _ = self.send_sealed(Instant::now() + GOODBYE_PATIENCE);
    }

    fn peer(&self) -> Option<SocketAddr> {
        self.stream.peer()
    }
}
