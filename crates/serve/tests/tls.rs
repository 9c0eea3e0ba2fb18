//! TLS over real sockets, under every engine, with rustls as the client.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use event::Mechanism;
use fiber::BackendChoice;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serve::engine::{Accept, EventOptions, PipelineOptions};
use serve::limits::Limits;
use serve::listen::{self, Address};
use serve::tls::{Certificate, Clients, Tls, TlsOptions};
use serve::{Engine, Server, Settings};
use session::Echo;

/// A folder with an authority and certificates that it signed.
struct Authority {
    folder: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Authority { folder, issuer }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes `NAME.pem` and `NAME.key`.
    fn sign(&self, name: &str) {
        self.sign_for(name, &["localhost"]);
    }

    fn sign_for(&self, name: &str, hosts: &[&str]) {
        let key = KeyPair::generate().unwrap();
        let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let params = CertificateParams::new(hosts).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(self.file(&format!("{name}.pem")), certificate.pem()).unwrap();
        fs::write(self.file(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    fn certificate(&self, chain: &str, key: &str) -> Certificate {
        Certificate {
            chain: self.file(&format!("{chain}.pem")),
            key: Some(self.file(&format!("{key}.key"))),
        }
    }

    fn options(&self) -> TlsOptions {
        TlsOptions {
            certificates: vec![self.certificate("server", "server")],
            ..TlsOptions::default()
        }
    }

    fn client(&self, shows: Option<&str>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match shows {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let chain = CertificateDer::from_pem_file(self.file(&format!("{name}.pem")));
                let key = PrivateKeyDer::from_pem_file(self.file(&format!("{name}.key")));
                builder
                    .with_client_auth_cert(vec![chain.unwrap()], key.unwrap())
                    .unwrap()
            }
        })
    }
}

/// Every engine, over every dispatcher that it can stand on.
fn engines() -> Vec<Engine> {
    let mut engines = vec![
        fibers(BackendChoice::Auto),
        fibers(BackendChoice::Epoll),
        Engine::Thread,
        pipeline(Mechanism::EpollEdge, 1, 1, 1),
    ];
    // What reports once is for no engine.
    let all = Mechanism::ALL.into_iter();
    for dispatcher in all.filter(|mechanism| *mechanism != Mechanism::EpollOneShot) {
        engines.push(events(dispatcher, Accept::Own));
        engines.push(events(dispatcher, Accept::Dealt));
        engines.push(pipeline(dispatcher, 2, 64, 8));
    }
    engines
}

fn fibers(backend: BackendChoice) -> Engine {
    Engine::Fiber {
        processors: 2,
        backend,
    }
}

fn events(dispatcher: Mechanism, accept: Accept) -> Engine {
    Engine::Event(EventOptions {
        loops: 2,
        dispatcher,
        accept,
        accepts_many: true,
        has_file_threads: true,
    })
}

fn pipeline(dispatcher: Mechanism, threads: usize, queue_limit: usize, batch_max: usize) -> Engine {
    Engine::Pipeline(PipelineOptions {
        read_threads: threads,
        session_threads: threads,
        write_threads: threads,
        queue_limit,
        batch_max,
        dispatcher,
    })
}

struct Running {
    /// Serves while it is there.
    _server: Server,
    tls: Arc<Tls>,
    address: SocketAddr,
}

fn start(engine: Engine, options: TlsOptions, limits: Limits) -> Running {
    println!("{engine:?}");
    let tls = Arc::new(Tls::open(options).unwrap());
    let mut listeners = listen::bind(&"127.0.0.1:0".parse().unwrap(), None).unwrap();
    listeners[0].tls = Some(Arc::clone(&tls));
    let Address::Tcp(address) = listeners[0].address else {
        unreachable!("an IP address was asked for")
    };
    let settings = Settings {
        engine,
        listeners,
        limits,
        ..Settings::default()
    };
    Running {
        _server: Server::start(settings, |_| Echo).unwrap(),
        tls,
        address,
    }
}

type Client = StreamOwned<ClientConnection, TcpStream>;

impl Running {
    fn connect(&self, config: Arc<ClientConfig>) -> Client {
        self.connect_to("localhost", config)
    }

    /// The client asks for a name, and checks that the certificate is for it.
    fn connect_to(&self, name: &'static str, config: Arc<ClientConfig>) -> Client {
        let name = name.try_into().unwrap();
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        StreamOwned::new(ClientConnection::new(config, name).unwrap(), stream)
    }
}

/// For a test that would otherwise hang; none waits for it to pass.
const PATIENCE: Duration = Duration::from_secs(20);

fn echoes(client: &mut Client, bytes: &[u8]) -> bool {
    let mut back = vec![0; bytes.len()];
    client.write_all(bytes).is_ok() && client.read_exact(&mut back).is_ok() && back == bytes
}

/// The peer ended the connection, in whichever way.
fn is_ended(mut stream: impl Read) -> bool {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

#[test]
fn what_goes_in_comes_back_under_every_engine() {
    let authority = Authority::new();
    authority.sign("server");
    for engine in engines() {
        let running = start(engine, authority.options(), Limits::default());
        let mut client = running.connect(authority.client(None));
        assert!(echoes(&mut client, b"hello\n"));
        for lines in [1, 4, 5, 300] {
            let text = format!("{}\n", "weft ".repeat(800)).repeat(lines);
            assert!(echoes(&mut client, text.as_bytes()), "{lines} lines");
        }
        assert_eq!(running.tls.handshake_count(), 1);
    }
}

#[test]
fn many_records_at_once_are_all_answered() {
    let authority = Authority::new();
    authority.sign("server");
    for engine in engines() {
        let running = start(engine, authority.options(), Limits::default());
        let mut client = running.connect(authority.client(None));
        let lines: Vec<_> = (0..2000).map(|at| format!("line {at}\n")).collect();
        for line in &lines {
            client.write_all(line.as_bytes()).unwrap();
        }
        let mut back = vec![0; lines.concat().len()];
        client.read_exact(&mut back).unwrap();
        assert_eq!(String::from_utf8(back).unwrap(), lines.concat());
    }
}

#[test]
fn a_peer_that_never_ends_its_handshake_is_cut_by_the_time_out() {
    let authority = Authority::new();
    authority.sign("server");
    let limits = Limits {
        handshake_timeout: Duration::from_millis(200),
        ..Limits::default()
    };
    for engine in engines() {
        let running = start(engine, authority.options(), limits.clone());
        let mut stream = TcpStream::connect(running.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // The beginning of a handshake record, and no more. RFC 8446 5.1
        stream.write_all(&[22, 3, 1, 1, 0, 1]).unwrap();
        assert!(is_ended(stream));
        assert_eq!(running.tls.handshake_count(), 0);
    }
}

#[test]
fn who_does_not_speak_tls_is_counted_and_closed() {
    let authority = Authority::new();
    authority.sign("server");
    for engine in engines() {
        let running = start(engine, authority.options(), Limits::default());
        let mut stream = TcpStream::connect(running.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"get somewhere\r\n").unwrap();
        assert!(is_ended(stream));
        assert_eq!(running.tls.failed_handshake_count(), 1);
    }
}

#[test]
fn a_new_certificate_holds_for_new_connections_and_old_ones_go_on() {
    let authority = Authority::new();
    authority.sign("server");
    let running = start(
        fibers(BackendChoice::Auto),
        authority.options(),
        Limits::default(),
    );
    let mut before = running.connect(authority.client(None));
    assert!(echoes(&mut before, b"one\n"));

    let newer = Authority::new();
    newer.sign("server");
    for file in ["server.pem", "server.key"] {
        fs::copy(newer.file(file), authority.file(file)).unwrap();
    }
    running.tls.reload().unwrap();
    assert!(echoes(&mut running.connect(newer.client(None)), b"two\n"));
    assert!(!echoes(
        &mut running.connect(authority.client(None)),
        b"three\n"
    ));
    assert!(echoes(&mut before, b"four\n"));

    fs::write(authority.file("server.pem"), "torn").unwrap();
    let why = running.tls.reload().unwrap_err();
    assert!(why.contains("server.pem has no certificate"), "{why}");
    assert!(echoes(&mut running.connect(newer.client(None)), b"five\n"));
}

#[test]
fn clients_that_must_show_a_certificate_do_or_fail() {
    let authority = Authority::new();
    authority.sign("server");
    authority.sign("client");
    let stranger = Authority::new();
    stranger.sign("client");
    fs::copy(stranger.file("client.pem"), authority.file("stranger.pem")).unwrap();
    fs::copy(stranger.file("client.key"), authority.file("stranger.key")).unwrap();
    let check = |clients: Clients, expected: [bool; 3]| {
        let options = TlsOptions {
            clients,
            ..authority.options()
        };
        let running = start(fibers(BackendChoice::Auto), options, Limits::default());
        let shows = [None, Some("client"), Some("stranger")];
        let got = shows.map(|shows| echoes(&mut running.connect(authority.client(shows)), b"x\n"));
        assert_eq!(got, expected);
    };
    check(Clients::Unknown, [true, true, true]);
    check(
        Clients::MayShow(authority.file("ca.pem")),
        [true, true, false],
    );
    check(
        Clients::MustShow(authority.file("ca.pem")),
        [false, true, false],
    );
}

#[test]
fn each_client_is_shown_the_certificate_for_the_name_that_it_asks_for() {
    let authority = Authority::new();
    authority.sign_for("first", &["one.test", "127.0.0.1"]);
    authority.sign_for("second", &["two.test", "*.two.test"]);
    let files = ["first", "second"].map(|name| authority.certificate(name, name));
    let options = TlsOptions {
        certificates: files.into(),
        ..authority.options()
    };
    let running = start(fibers(BackendChoice::Auto), options, Limits::default());
    let is_served = |name| {
        let mut client = running.connect_to(name, authority.client(None));
        echoes(&mut client, b"x\n")
    };
    assert!(is_served("one.test") && is_served("two.test") && is_served("www.two.test"));
    assert!(is_served("127.0.0.1"), "an address is no name: the first");
    assert!(
        !is_served("three.test"),
        "the first, which is for no such name"
    );
}

#[test]
fn what_is_wrong_with_the_files_is_said() {
    let authority = Authority::new();
    authority.sign("server");
    authority.sign("other");
    let refusal = |options: TlsOptions| Tls::open(options).unwrap_err();
    let shows = |certificate| TlsOptions {
        certificates: vec![certificate],
        ..authority.options()
    };
    let missing = shows(authority.certificate("none", "server"));
    assert!(refusal(missing).contains("cannot read the certificate chain"));
    let no_key = shows(Certificate {
        key: None,
        ..authority.certificate("server", "server")
    });
    let no_key = TlsOptions {
        key_option: "--key",
        ..no_key
    };
    assert!(refusal(no_key).ends_with("server.pem holds no private key: add --key"));
    let others_key = shows(authority.certificate("server", "other"));
    assert!(refusal(others_key).ends_with("other.key do not belong together"));
    // Seen: a key with a passphrase was no private key, and files that were exchanged or DER had
    // nothing in PEM. Cause: the file was not looked at again. Cure: what it holds is said.
    let server = authority.certificate("server", "server");
    let key = server.key.clone().unwrap();
    let holds = |chain: &PathBuf, key: &PathBuf| {
        refusal(shows(Certificate {
            chain: chain.clone(),
            key: Some(key.clone()),
        }))
    };
    let exchanged = holds(&key, &server.chain);
    assert!(exchanged.ends_with("server.key has no certificate in PEM: it holds a private key"));
    let twice = holds(&server.chain, &server.chain);
    assert!(twice.ends_with("holds no private key in PEM: it holds a certificate"));
    let der = authority.file("server.der");
    fs::write(&der, b"\x30\x82\x01\x02").unwrap();
    assert!(holds(&der, &key).contains("no certificate in PEM: it is DER; openssl"));
    let encrypted = authority.file("encrypted.key");
    let plain = fs::read_to_string(&key).unwrap();
    fs::write(&encrypted, plain.replace("PRIVATE", "ENCRYPTED PRIVATE")).unwrap();
    assert!(holds(&server.chain, &encrypted).contains("is encrypted; write it without"));
    let no_cipher = TlsOptions {
        ciphers: vec!["RC4-MD5".to_owned()],
        ..authority.options()
    };
    let why = refusal(no_cipher);
    assert!(
        why.contains("'RC4-MD5'")
            && why.contains("ECDHE-RSA-AES128-GCM-SHA256")
            && why.contains("ECDHE-ECDSA-CHACHA20-POLY1305,")
            && why.contains("TLS_AES_256_GCM_SHA384"),
        "{why}"
    );
}

#[test]
fn one_above_the_limit_is_told_so() {
    let limits = Limits {
        connections_max: 3,
        refusal: Some("no room\r\n"),
        ..Limits::default()
    };
    for engine in engines() {
        let listeners = listen::bind(&"127.0.0.1:0".parse().unwrap(), None).unwrap();
        let Address::Tcp(address) = listeners[0].address else {
            unreachable!("an IP address was asked for")
        };
        let settings = Settings {
            engine,
            listeners,
            limits: limits.clone(),
            ..Settings::default()
        };
        let server = Server::start(settings, |_| Echo).unwrap();
        let connect = || {
            let stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream
        };
        let mut inside: Vec<_> = (0..3).map(|_| connect()).collect();
        for stream in &mut inside {
            stream.write_all(b"x\n").unwrap();
            stream.read_exact(&mut [0; 2]).unwrap();
        }
        for _ in 0..50 {
            let mut told = String::new();
            connect().read_to_string(&mut told).unwrap();
            assert_eq!(told, "no room\r\n");
        }
        drop(inside.pop());
        while server.connection_count() == 3 {
            std::thread::yield_now();
        }
        let mut next = connect();
        next.write_all(b"y\n").unwrap();
        next.read_exact(&mut [0; 2]).unwrap();
    }
}
