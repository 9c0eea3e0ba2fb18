//! TLS over real sockets, under every engine, with rustls as the client.

extern crate weftwork_serve as serve;

mod authority;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use event::Mechanism;
use fiber::BackendChoice;
use rcgen::{CertificateParams, DnType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, StreamOwned};
use serve::engine::{Accept, EventOptions, PipelineOptions};
use serve::limits::Limits;
use serve::listen::{self, Address};
use serve::metrics::MetricsWriter;
use serve::tls::{Certificate, Clients, Managed, Tls, TlsOptions, subject};
use serve::{Engine, Server, Settings};
use session::{Echo, Opening};

use authority::Authority;

/// Every engine, over every dispatcher that it supports.
fn engines() -> Vec<Engine> {
    let mut engines = vec![
        fibers(BackendChoice::Auto),
        fibers(BackendChoice::Epoll),
        Engine::Thread,
        pipeline(Mechanism::EpollEdge, 1, 1, 1),
    ];
    // No engine supports one-shot dispatchers.
    let all = Mechanism::ALL.into_iter();
    for dispatcher in all.filter(|mechanism| *mechanism != Mechanism::EpollOneShot) {
        engines.push(events(dispatcher, Accept::Own));
        engines.push(events(dispatcher, Accept::Distributed));
        engines.push(pipeline(dispatcher, 2, 64, 8));
    }
    engines
}

fn fibers(backend: BackendChoice) -> Engine {
    Engine::Fiber { processors: 2, backend }
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
    /// Serves while it exists.
    _server: Server,
    tls: Arc<Tls>,
    address: SocketAddr,
    /// Subjects of the certificates of served clients.
    subjects: Arc<Mutex<Vec<Option<String>>>>,
}

fn start(engine: Engine, options: TlsOptions, limits: Limits) -> Running {
    println!("{engine:?}");
    let tls = Arc::new(Tls::open(options).unwrap());
    let mut listeners = listen::bind(&"127.0.0.1:0".parse().unwrap(), None).unwrap();
    listeners[0].tls = Some(Arc::clone(&tls));
    let Address::Tcp(address) = listeners[0].address else {
        unreachable!("an IP address was asked for")
    };
    let settings = Settings { engine, listeners, limits, ..Settings::default() };
    let subjects = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&subjects);
    let open = move |opening: Opening<'_>| {
        let certificate = opening.tls.and_then(|tls| tls.client);
        seen.lock().unwrap().push(certificate.and_then(subject));
        Echo
    };
    Running { _server: Server::start(settings, open).unwrap(), tls, address, subjects }
}

type Client = StreamOwned<ClientConnection, TcpStream>;

impl Running {
    fn connect(&self, config: Arc<ClientConfig>) -> Client {
        self.connect_to("localhost", config)
    }

    /// Connects to a name, and checks that the certificate covers it.
    fn connect_to(&self, name: &'static str, config: Arc<ClientConfig>) -> Client {
        let name = name.try_into().unwrap();
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        StreamOwned::new(ClientConnection::new(config, name).unwrap(), stream)
    }
}

/// Limit for a test that would otherwise hang; none waits for it to pass.
const PATIENCE: Duration = Duration::from_secs(60);

fn echoes(client: &mut Client, bytes: &[u8]) -> bool {
    let mut back = vec![0; bytes.len()];
    client.write_all(bytes).is_ok() && client.read_exact(&mut back).is_ok() && back == bytes
}

/// True if the peer has ended the connection in any way.
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
fn an_unfinished_handshake_times_out() {
    let authority = Authority::new();
    authority.sign("server");
    let limits = Limits { handshake_timeout: Duration::from_millis(200), ..Limits::default() };
    for engine in engines() {
        let running = start(engine, authority.options(), limits.clone());
        let mut stream = TcpStream::connect(running.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // Only the beginning of a handshake record. RFC 8446 5.1
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
fn new_connections_get_the_new_certificate() {
    let authority = Authority::new();
    authority.sign("server");
    let running = start(fibers(BackendChoice::Auto), authority.options(), Limits::default());
    let mut before = running.connect(authority.client(None));
    assert!(echoes(&mut before, b"one\n"));

    let newer = Authority::new();
    newer.sign("server");
    for file in ["server.pem", "server.key"] {
        fs::copy(newer.file(file), authority.file(file)).unwrap();
    }
    running.tls.reload().unwrap();
    assert!(echoes(&mut running.connect(newer.client(None)), b"two\n"));
    assert!(!echoes(&mut running.connect(authority.client(None)), b"three\n"));
    assert!(echoes(&mut before, b"four\n"));

    fs::write(authority.file("server.pem"), "torn").unwrap();
    let why = running.tls.reload().unwrap_err();
    assert!(why.contains("server.pem has no certificate"), "{why}");
    assert!(echoes(&mut running.connect(newer.client(None)), b"five\n"));
}

/// Messages of a second check; the first one reports nothing, as files may change again.
fn second_check(tls: &Tls) -> Vec<Result<String, String>> {
    let first = tls.check_files();
    assert!(first.is_unsettled && first.messages.is_empty(), "{first:?}");
    tls.check_files().messages
}

fn is_settled(tls: &Tls) -> bool {
    let changed = tls.check_files();
    changed.messages.is_empty() && !changed.is_unsettled
}

fn shown(running: &Running, authority: &Authority, name: &'static str) -> Vec<u8> {
    let mut client = running.connect_to(name, authority.client(None));
    assert!(echoes(&mut client, b"x\n"), "{name}");
    client.conn.peer_certificates().unwrap()[0].to_vec()
}

fn der(authority: &Authority, name: &str) -> Vec<u8> {
    let file = authority.file(&format!("{name}.pem"));
    CertificateDer::from_pem_file(file).unwrap().to_vec()
}

#[test]
fn changed_files_are_followed() {
    let authority = Authority::new();
    authority.sign("server");
    authority.sign("newer");
    let options = authority.options();
    let running = start(fibers(BackendChoice::Auto), options, Limits::default());
    let tls = &running.tls;
    assert!(is_settled(tls));
    let replace = |from: &str, file: &str| {
        fs::rename(authority.file(from), authority.file(file)).unwrap();
    };
    let newer = der(&authority, "newer");
    let older = shown(&running, &authority, "localhost");
    // The certificate is replaced before its key: this is reported once, and nothing changes.
    replace("newer.pem", "server.pem");
    let [Err(why)] = &second_check(tls)[..] else { panic!("it is not used") };
    assert!(why.starts_with("not reloaded: the certificate "), "{why}");
    assert!(why.ends_with("server.key do not belong together; the old one stays"));
    assert!(is_settled(tls));
    assert_eq!(shown(&running, &authority, "localhost"), older);
    assert!(metrics(tls).contains("\nweft_tls_certificates_refused 1\n"));
    replace("newer.key", "server.key");
    assert!(matches!(&second_check(tls)[..], [Ok(text)] if text.ends_with("server.pem")));
    assert_eq!(shown(&running, &authority, "localhost"), newer);
    assert!(metrics(tls).contains("\nweft_tls_certificates_refused 0\n"));
    // Missing for a moment.
    let pem = fs::read(authority.file("server.pem")).unwrap();
    fs::remove_file(authority.file("server.pem")).unwrap();
    assert!(tls.check_files().is_unsettled);
    fs::write(authority.file("server.pem"), pem).unwrap();
    assert!(tls.check_files().is_unsettled);
    assert!(tls.check_files().messages[0].is_ok());
    assert!(is_settled(tls));
}

fn metrics(tls: &Tls) -> String {
    let mut metrics = MetricsWriter::default();
    tls.write_metrics(&mut metrics);
    String::from_utf8(metrics.finish()).unwrap()
}

/// Like certbot: `live/` contains links, which a renewal switches one by one.
#[test]
fn switched_links_are_followed() {
    let authority = Authority::new();
    authority.sign("server1");
    authority.sign("server2");
    let link = |number: u8| {
        for kind in ["pem", "key"] {
            let name = authority.file(&format!("server.{kind}"));
            _ = fs::remove_file(&name);
            std::os::unix::fs::symlink(format!("server{number}.{kind}"), name).unwrap();
        }
    };
    link(1);
    let options = authority.options();
    let running = start(fibers(BackendChoice::Auto), options, Limits::default());
    assert_eq!(shown(&running, &authority, "localhost"), der(&authority, "server1"));
    link(2);
    assert!(second_check(&running.tls)[0].is_ok());
    assert_eq!(shown(&running, &authority, "localhost"), der(&authority, "server2"));
}

#[test]
fn a_broken_certificate_holds_back_no_other() {
    let authority = Authority::new();
    authority.sign_for("one", &["one.test"]);
    authority.sign_for("two", &["two.test"]);
    let options = TlsOptions {
        certificates: ["one", "two"].map(|name| authority.certificate(name, name)).into(),
        ..TlsOptions::default()
    };
    let running = start(fibers(BackendChoice::Auto), options, Limits::default());
    let one = der(&authority, "one");
    fs::write(authority.file("one.pem"), "").unwrap();
    authority.sign_for("two", &["two.test"]);
    let why = running.tls.reload().unwrap_err();
    assert!(why.ends_with("one.pem has no certificate in PEM: it is empty"), "{why}");
    assert_eq!(shown(&running, &authority, "one.test"), one);
    assert_eq!(shown(&running, &authority, "two.test"), der(&authority, "two"));
    assert!(is_settled(&running.tls), "told once");
}

#[test]
fn other_options_hold_for_new_connections() {
    let authority = Authority::new();
    authority.sign_for("one", &["a.test", "b.test"]);
    authority.sign_for("two", &["b.test"]);
    let options = |hosts: &[&str]| {
        let hosts: Vec<_> = hosts.iter().map(|name| name.parse().unwrap()).collect();
        let of_hosts = Certificate { names: hosts.clone(), ..authority.certificate("two", "two") };
        let mut certificates = vec![authority.certificate("one", "one")];
        certificates.extend((!hosts.is_empty()).then_some(of_hosts));
        TlsOptions { certificates, hosts, ..TlsOptions::default() }
    };
    let running = start(fibers(BackendChoice::Auto), options(&[]), Limits::default());
    let tls = &running.tls;
    assert_eq!(shown(&running, &authority, "b.test"), der(&authority, "one"));
    tls.adopt(tls.plan(options(&["b.test"])).unwrap());
    assert_eq!(shown(&running, &authority, "b.test"), der(&authority, "two"));
    // Only new files are read, and they must be complete.
    let one = der(&authority, "one");
    fs::write(authority.file("one.pem"), "torn").unwrap();
    tls.adopt(tls.plan(options(&[])).unwrap());
    assert_eq!(shown(&running, &authority, "b.test"), one);
    fs::write(authority.file("two.pem"), "torn").unwrap();
    assert!(tls.plan(options(&["b.test"])).unwrap_err().contains("two.pem"));
    assert_eq!(shown(&running, &authority, "a.test"), one);
}

#[test]
fn a_host_without_a_certificate_is_warned_of() {
    let authority = Authority::new();
    authority.sign_for("server", &["a.test", "*.b.test", "10.0.0.1", "::1"]);
    let warnings = |names: &[&str]| {
        let options = TlsOptions {
            hosts: names.iter().map(|name| name.parse().unwrap()).collect(),
            ..authority.options()
        };
        Tls::open(options).unwrap().warnings(SystemTime::now())
    };
    let named = ["a.test", "*.b.test", "x.b.test", "10.0.0.1", "[::1]"];
    assert_eq!(warnings(&named), [""; 0]);
    let unnamed = ["b.test", "*.a.test", "x.y.b.test", "a.test"];
    let why = "no certificate is for b.test, *.a.test, x.y.b.test: clients refuse the connection";
    assert_eq!(warnings(&unnamed), [why]);
    let many = ["a.a", "b.b", "c.c", "d.d", "e.e", "f.f", "g.g"];
    assert!(warnings(&many)[0].contains(" e.e and 2 more: "));
}

#[test]
fn sessions_are_resumed_after_a_reload() {
    let authority = Authority::new();
    authority.sign("server");
    let options = TlsOptions { resumes: true, ..authority.options() };
    let running = start(fibers(BackendChoice::Auto), options, Limits::default());
    let config = authority.client(None);
    let handshake = || {
        let mut client = running.connect(Arc::clone(&config));
        assert!(echoes(&mut client, b"x\n"));
        client.conn.handshake_kind().unwrap()
    };
    assert_eq!(handshake(), HandshakeKind::Full);
    assert_eq!(handshake(), HandshakeKind::Resumed);
    running.tls.reload().unwrap();
    assert_eq!(handshake(), HandshakeKind::Resumed);
}

#[test]
fn servers_with_a_key_file_resume_sessions() {
    let authority = Authority::new();
    authority.sign("server");
    let key = |name: &str, text: u8| {
        let file = authority.file(name);
        fs::write(&file, [text; 80]).unwrap();
        file
    };
    let options = |ticket_keys: &[PathBuf]| TlsOptions {
        resumes: true,
        ticket_keys: ticket_keys.to_vec(),
        ..authority.options()
    };
    let begin = |keys: &[PathBuf]| {
        let engine = fibers(BackendChoice::Auto);
        start(engine, options(keys), Limits::default())
    };
    let one = key("one", 1);
    let two = key("two", 2);
    let only = std::slice::from_ref;
    for version in [&TLS13, &TLS12] {
        let config = authority.client_with(&[version]);
        let handshake = |server: &Running| {
            let mut client = server.connect(Arc::clone(&config));
            assert!(echoes(&mut client, b"x\n"));
            client.conn.handshake_kind().unwrap()
        };
        let a = begin(only(&one));
        let b = begin(only(&one));
        assert_eq!(handshake(&a), HandshakeKind::Full, "{version:?}");
        assert_eq!(handshake(&b), HandshakeKind::Resumed);
        assert_eq!(handshake(&a), HandshakeKind::Resumed);
        // A new key comes first, and the old one still decrypts.
        b.tls.adopt(b.tls.plan(options(&[two.clone(), one.clone()])).unwrap());
        assert_eq!(handshake(&b), HandshakeKind::Resumed);
        // That ticket uses the new key, which the other server does not know yet.
        assert_eq!(handshake(&a), HandshakeKind::Full);
        // The old key is removed.
        b.tls.adopt(b.tls.plan(options(only(&two))).unwrap());
        assert_eq!(handshake(&b), HandshakeKind::Full);
    }
    let a = begin(only(&one));
    fs::write(&one, [3; 79]).unwrap();
    let [Err(why)] = &second_check(&a.tls)[..] else { panic!("it is no key") };
    assert!(why.contains("one has 79 bytes, not 80 or 48: openssl rand -out"), "{why}");
    assert!(is_settled(&a.tls));
    fs::write(&one, [3; 48]).unwrap();
    assert!(second_check(&a.tls)[0].is_ok());
    let many = vec![two; 17];
    assert!(Tls::open(options(&many)).unwrap_err().contains("17 keys for tickets, and 16 at most"));
}

/// Otherwise a removed authority would be trusted as long as its clients return.
#[test]
fn a_reload_ends_sessions_with_client_certificates() {
    let authority = Authority::new();
    authority.sign("server");
    authority.sign("client");
    let options = TlsOptions {
        resumes: true,
        clients: Clients::MustShow(authority.file("ca.pem")),
        ..authority.options()
    };
    let running = start(fibers(BackendChoice::Auto), options, Limits::default());
    let config = authority.client(Some("client"));
    let connect = || running.connect(Arc::clone(&config));
    for expected in [HandshakeKind::Full, HandshakeKind::Resumed] {
        let mut client = connect();
        assert!(echoes(&mut client, b"x\n"));
        assert_eq!(client.conn.handshake_kind(), Some(expected));
    }
    let subject = Some("CN=rcgen self signed cert".to_owned());
    assert_eq!(*running.subjects.lock().unwrap(), vec![subject; 2]);
    fs::copy(Authority::new().file("ca.pem"), authority.file("ca.pem")).unwrap();
    running.tls.reload().unwrap();
    assert!(!echoes(&mut connect(), b"x\n"));
    let refused = "weft_tls_failures_total{reason=\"client_certificate\"} 1\n";
    assert!(metrics(&running.tls).contains(refused));
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
        for engine in engines() {
            let options = TlsOptions { clients: clients.clone(), ..authority.options() };
            let running = start(engine, options, Limits::default());
            let shows = [None, Some("client"), Some("stranger")];
            let got =
                shows.map(|shows| echoes(&mut running.connect(authority.client(shows)), b"x\n"));
            assert_eq!(got, expected);
            let asked = clients != Clients::Unknown;
            let seen = running.subjects.lock().unwrap();
            assert_eq!(seen.iter().flatten().count(), usize::from(asked));
        }
    };
    check(Clients::Unknown, [true, true, true]);
    check(Clients::MayShow(authority.file("ca.pem")), [true, true, false]);
    check(Clients::MustShow(authority.file("ca.pem")), [false, true, false]);
}

#[test]
fn sni_picks_the_certificate() {
    let authority = Authority::new();
    authority.sign_for("first", &["one.test", "127.0.0.1"]);
    authority.sign_for("second", &["two.test", "*.two.test"]);
    let files = ["first", "second"].map(|name| authority.certificate(name, name));
    let options = TlsOptions { certificates: files.into(), ..authority.options() };
    let running = start(fibers(BackendChoice::Auto), options, Limits::default());
    let is_served = |name| {
        let mut client = running.connect_to(name, authority.client(None));
        echoes(&mut client, b"x\n")
    };
    assert!(is_served("one.test") && is_served("two.test") && is_served("www.two.test"));
    assert!(is_served("127.0.0.1"), "an address is no name: the first");
    assert!(!is_served("three.test"), "the first, which is for no such name");
}

#[test]
fn managed_certificates_come_while_engines_run() {
    let authority = Authority::new();
    authority.sign_for("server", &["localhost", "a.org"]);
    authority.sign_for("a", &["a.org"]);
    authority.sign_for("proof", &["a.org", "b.org"]);
    let pair = |name: &str| {
        let chain = CertificateDer::from_pem_file(authority.file(&format!("{name}.pem")));
        let key = PrivateKeyDer::from_pem_file(authority.file(&format!("{name}.key")));
        (chain.unwrap(), key.unwrap())
    };
    for engine in engines() {
        let managed = Arc::new(Managed::default());
        managed.set_names(["a.org".to_owned()]);
        let options = TlsOptions {
            managed: Some(Arc::clone(&managed)),
            protocols: vec![b"http/1.1".to_vec()],
            ..authority.options()
        };
        let running = start(engine, options, Limits::default());
        let shown = |name: &'static str, protocols: &[&[u8]]| {
            let mut config = Arc::unwrap_or_clone(authority.client(None));
            config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
            let mut client = running.connect_to(name, Arc::new(config));
            client.conn.complete_io(&mut client.sock).ok()?;
            Some(client.conn.peer_certificates()?[0].clone())
        };
        let proof: &[&[u8]] = &[b"acme-tls/1"];
        assert_eq!(shown("a.org", &[]), None, "refused rather than shown another");
        assert_eq!(shown("localhost", &[]), Some(pair("server").0));
        assert_eq!(shown("localhost", proof), None, "nothing is to be proved");

        let (certificate, key) = pair("proof");
        managed.show_proof("a.org", certificate.clone(), key).unwrap();
        assert_eq!(shown("A.org", proof), Some(certificate));
        assert_eq!(shown("b.org", proof), None);
        assert_eq!(shown("a.org", &[b"http/1.1", b"acme-tls/1"]), None);
        managed.hide_proof("a.org");
        assert_eq!(shown("a.org", proof), None);

        let (certificate, key) = pair("a");
        let names = ["a.org", "gone.org"].map(str::to_owned);
        managed.install(&names, vec![certificate.clone()], key).unwrap();
        assert_eq!(shown("a.org", &[b"http/1.1"]), Some(certificate));
        let (certificate, _) = pair("a");
        let wrong = managed.install(&names, vec![certificate], pair("server").1);
        assert!(wrong.unwrap_err().contains("cannot be used with its key"));
        // A reload that removes the name.
        managed.set_names([]);
        assert_eq!(shown("a.org", &[]), Some(pair("server").0));
    }
}

#[test]
fn a_host_shows_its_certificate() {
    let authority = Authority::new();
    authority.sign_for("server", &["other.org"]);
    authority.sign_for("one", &["a.org"]);
    authority.sign_for("any", &["*.a.org", "a.org"]);
    let of_host = |file: &str, name: &str| Certificate {
        names: vec![name.parse().unwrap()],
        ..authority.certificate(file, file)
    };
    let options = TlsOptions {
        certificates: vec![
            authority.certificate("server", "server"),
            of_host("any", "*.a.org"),
            of_host("one", "a.org"),
        ],
        ..TlsOptions::default()
    };
    let running = start(fibers(BackendChoice::Auto), options, Limits::default());
    for (name, file) in [
        ("a.org", "one.pem"),
        ("A.org", "one.pem"),
        ("x.a.org", "any.pem"),
        ("other.org", "server.pem"),
    ] {
        let mut client = running.connect_to(name, authority.client(None));
        assert!(echoes(&mut client, b"x\n"), "{name}");
        let shown = &client.conn.peer_certificates().unwrap()[0];
        let expected = CertificateDer::from_pem_file(authority.file(file)).unwrap();
        assert_eq!(*shown, expected, "{name}");
    }
}

#[test]
fn what_is_wrong_with_the_files_is_said() {
    let authority = Authority::new();
    authority.sign("server");
    authority.sign("other");
    let refusal = |options: TlsOptions| Tls::open(options).unwrap_err();
    let shows = |certificate| TlsOptions { certificates: vec![certificate], ..authority.options() };
    let missing = shows(authority.certificate("none", "server"));
    assert!(refusal(missing).contains("cannot read the certificate chain"));
    let no_key = shows(Certificate { key: None, ..authority.certificate("server", "server") });
    let no_key = TlsOptions { key_option: "--key", ..no_key };
    assert!(refusal(no_key).ends_with("server.pem holds no private key: add --key"));
    let others_key = shows(authority.certificate("server", "other"));
    assert!(refusal(others_key).ends_with("other.key do not belong together"));
    // Seen: a key with a passphrase was reported as no private key, and swapped or DER files as
    // without PEM. Cause: the file's contents were not examined. Cure: they are named.
    let server = authority.certificate("server", "server");
    let key = server.key.clone().unwrap();
    let holds = |chain: &PathBuf, key: &PathBuf| {
        refusal(shows(Certificate {
            chain: chain.clone(),
            key: Some(key.clone()),
            names: Vec::new(),
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
    // Seen: 'unexpected error: failed to parse private key as RSA, ECDSA, or EdDSA'.
    let p521 = authority.file("p521.pem");
    let p521_key = authority.file("p521.key");
    fs::write(&p521, P521_CERTIFICATE).unwrap();
    fs::write(&p521_key, P521_KEY).unwrap();
    let why = holds(&p521, &p521_key);
    assert!(
        why.contains("p521.key is ECDSA on the curve P-521, which is not supported; use RSA"),
        "{why}"
    );
    // Seen: a chain that begins with its authority was reported as a key that does not match.
    let ca = authority.issuer.pem();
    let reversed = authority.file("reversed.pem");
    let own = fs::read_to_string(&server.chain).unwrap();
    fs::write(&reversed, ca + &own).unwrap();
    assert!(holds(&reversed, &key).ends_with("server.key is number 2, and must be the first"));
    let no_cipher = TlsOptions { ciphers: vec!["RC4-MD5".to_owned()], ..authority.options() };
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
fn a_byte_order_mark_is_skipped() {
    let authority = Authority::new();
    authority.sign("server");
    let options = authority.options();
    let server = &options.certificates[0];
    for file in [&server.chain, server.key.as_ref().unwrap()] {
        let text = fs::read_to_string(file).unwrap();
        fs::write(file, format!("\u{feff}{text}")).unwrap();
    }
    assert!(Tls::open(options).is_ok());
}

/// Seen: a key whose line breaks were written as `\n` appeared, byte by byte, in its error message.
/// Cause: the parser's errors contain the line. Cure: messages have their own text.
#[test]
fn no_message_shows_what_a_file_holds() {
    let authority = Authority::new();
    authority.sign("server");
    let server = authority.certificate("server", "server");
    let [chain, key] =
        [&server.chain, server.key.as_ref().unwrap()].map(|file| fs::read_to_string(file).unwrap());
    let joined = "a line goes on behind '-----BEGIN";
    type Break = fn(&str) -> String;
    let breaks: [(Break, &str); 4] = [
        (|text| text.replace('\n', "\\n"), joined),
        (|text| text.trim_end().replace('\n', " "), joined),
        (
            |text| text[..text.find("-----END").unwrap()].to_owned(),
            "a section has no -----END line",
        ),
        (
            |text| format!("  {}", text.replace('\n', "\n  ")),
            "its -----BEGIN does not begin a line",
        ),
    ];
    for (break_it, reason) in breaks {
        for broken in ["chain", "key"] {
            let (broken_chain, broken_key) = (authority.file("b.pem"), authority.file("b.key"));
            let write = |file, name, text: &str| {
                let text = if name == broken { break_it(text) } else { text.to_owned() };
                fs::write(file, text).unwrap();
            };
            write(&broken_chain, "chain", &chain);
            write(&broken_key, "key", &key);
            let options = TlsOptions {
                certificates: vec![Certificate {
                    chain: broken_chain,
                    key: Some(broken_key),
                    names: Vec::new(),
                }],
                ..authority.options()
            };
            let why = Tls::open(options).unwrap_err();
            assert!(why.contains(reason) && why.len() < 300, "{broken}: {why}");
        }
    }
    let wide = authority.file("wide.pem");
    let bytes = chain.encode_utf16().flat_map(u16::to_le_bytes);
    fs::write(&wide, [0xff, 0xfe].into_iter().chain(bytes).collect::<Vec<_>>()).unwrap();
    let options = TlsOptions {
        certificates: vec![Certificate { chain: wide, key: server.key, names: Vec::new() }],
        ..authority.options()
    };
    assert!(Tls::open(options).unwrap_err().ends_with("it is UTF-16; write it as UTF-8"));
}

#[test]
fn certificates_that_clients_refuse_are_warned_of() {
    let authority = Authority::new();
    let year = |year| {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(year, 1, 1);
        params.not_after = rcgen::date_time_ymd(year + 1, 1, 1);
        params
    };
    authority.sign_as("server", year(2030));
    let tls = Tls::open(authority.options()).unwrap();
    let warnings_in = |unix_s| {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(unix_s);
        tls.warnings(now)
    };
    // The end of 2029, all of 2030, and the beginning of 2031.
    let before = warnings_in(1_893_455_999);
    assert!(before[0].contains("server.pem is not valid before Tue, 01 Jan 2030 00:00:00 GMT"));
    assert_eq!(warnings_in(1_893_456_000), [""; 0]);
    assert_eq!(warnings_in(1_924_992_000), [""; 0]);
    let after = warnings_in(1_924_992_001);
    assert!(after[0].contains("server.pem expired on Wed, 01 Jan 2031 00:00:00 GMT"));
    let text = metrics(&tls);
    let line = text.lines().find(|line| line.starts_with("weft_tls_certificate_not_after_seconds"));
    assert!(line.unwrap().ends_with("server.pem\"} 1924992000"), "{line:?}");

    let mut elsewhere = CertificateParams::new(Vec::new()).unwrap();
    let name = &mut elsewhere.distinguished_name;
    name.push(DnType::CommonName, "elsewhere");
    authority.sign_as("elsewhere", elsewhere);
    let files = ["server.pem", "elsewhere.pem"].map(|file| authority.file(file));
    let chain = files.map(|file| fs::read_to_string(file).unwrap());
    fs::write(authority.file("server.pem"), chain.concat()).unwrap();
    let torn = Tls::open(authority.options()).unwrap();
    let fault = torn.warnings(SystemTime::UNIX_EPOCH + Duration::from_secs(1_900_000_000));
    assert!(fault[0].contains("out of order: certificate 2 did not sign"), "{fault:?}");
}

#[test]
fn one_above_the_limit_is_told_so() {
    let limits = Limits { connections_max: 3, refusal: Some("no room\r\n"), ..Limits::default() };
    for engine in engines() {
        let listeners = listen::bind(&"127.0.0.1:0".parse().unwrap(), None).unwrap();
        let Address::Tcp(address) = listeners[0].address else {
            unreachable!("an IP address was asked for")
        };
        let settings =
            Settings { engine, listeners, limits: limits.clone(), ..Settings::default() };
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

/// Made for this test by `openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:secp521r1`.
const P521_CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----
MIICBTCCAWagAwIBAgIUCKUC8V71wUa2rMKOcfUQtp2oVigwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MB4XDTI2MTEyNTIyMDMyOVoXDTI2MTEyODIy
MDMyOVowFDESMBAGA1UEAwwJbG9jYWxob3N0MIGbMBAGByqGSM49AgEGBSuBBAAj
A4GGAAQAJRL/xYWDDTFsCputzcLaa2xSGyx8t7yljAR8RbIrjWE3gYL43511cQas
P5hBQ5CE/sdNZLErI19DPFPKSfUc0iUB9WDFodY0PFqOy8Bl3Kgi7Bsw85P4A3g1
H2/DvnxpP7kKJnM8Ngz0nz0lczE1UOLXYCsx/P/Z7XI+g2XJ2QIeTVGjUzBRMB0G
A1UdDgQWBBR55PzOxy/YoUCuvB3ks2jk9rOL5TAfBgNVHSMEGDAWgBR55PzOxy/Y
oUCuvB3ks2jk9rOL5TAPBgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA4GMADCB
iAJCAaUnS2ntXCM+ZVeqz0dS4ZRbbXfSof+4wjP01B4duoT1xGp4QsJBitZF70sO
Ch2grWaP+HhboPyPkRaqJNMWRQqAAkIAz78i23R0pChWImY6ptu8HpXRnWxeV+LD
Lq1QX+CKVoeU8p4vZc4aeuy+dL6V2ba9f7hJXvrVXjSM3SY00abBIXw=
-----END CERTIFICATE-----";

const P521_KEY: &str = "\
-----BEGIN EC PRIVATE KEY-----
MIHcAgEBBEIAwGC9wyPb1oBYEKrLD3YE3LQZbIMDS5+/1n1DNfOIE87Y68ayr5iF
w3F0s6s+ZXyXx9LsGhXa5REsWpswi2briPCgBwYFK4EEACOhgYkDgYYABAAlEv/F
hYMNMWwKm63NwtprbFIbLHy3vKWMBHxFsiuNYTeBgvjfnXVxBqw/mEFDkIT+x01k
sSsjX0M8U8pJ9RzSJQH1YMWh1jQ8Wo7LwGXcqCLsGzDzk/gDeDUfb8O+fGk/uQom
czw2DPSfPSVzMTVQ4tdgKzH8/9ntcj6DZcnZAh5NUQ==
-----END EC PRIVATE KEY-----";
