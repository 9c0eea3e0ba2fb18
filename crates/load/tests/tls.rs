//! Loads over TLS, against a server that records each handshake.

extern crate weftwork_load as load;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use load::Plan;
use load::plan::{Io, Tls, TlsVersion};
use rustls::crypto::ring;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

mod world;

use world::{Server, expect_no_error, http_of, http_plan, over_both, run, server};

struct Secure {
    server: Server,
    certificate: Vec<u8>,
}

/// Serves a body of `/COUNT` bytes over TLS. A request for `/cut` ends the connection without one;
/// that for `/notified` and `/torn` ends with the reply's body: of TLS alone, and of TCP alone.
fn secure_server() -> Secure {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    let config = Arc::new(config);
    let server = server(move |stream, requests| {
        let connection = ServerConnection::new(config.clone()).unwrap();
        let mut lines = BufReader::new(StreamOwned::new(connection, stream));
        let mut line = String::new();
        let mut path = String::new();
        while lines.read_line(&mut line).is_ok_and(|len| len > 0) {
            if let Some(rest) = line.strip_prefix("GET /") {
                path = rest.split(' ').next().unwrap().to_owned();
            } else if line == "\r\n" {
                requests.fetch_add(1, Ordering::SeqCst);
                if path == "notified" || path == "torn" {
                    return end_with_body(lines.get_mut(), path == "notified");
                }
                let Ok(len) = path.parse::<usize>() else {
                    return; // The request asks for a cut.
                };
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n");
                let reply = [head.into_bytes(), vec![b'x'; len]].concat();
                if lines.get_mut().write_all(&reply).is_err() {
                    return;
                }
            }
            line.clear();
        }
    });
    Secure { server, certificate: certificate.to_vec() }
}

/// Sends a body that ends with the connection: of TLS (RFC 8446 6.1), or only of TCP.
fn end_with_body(stream: &mut StreamOwned<ServerConnection, TcpStream>, is_notified: bool) {
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhello");
    if is_notified {
        stream.conn.send_close_notify();
    }
    let _ = stream.flush();
    if !is_notified {
        let _ = stream.sock.shutdown(Shutdown::Write);
    }
    // TCP stays open until the other side has closed.
    let _ = io::copy(&mut stream.sock, &mut io::sink());
}

fn tls(authorities: Option<Vec<Vec<u8>>>) -> Tls {
    Tls { server_name: "localhost".to_owned(), authorities, version: None, resumes: true }
}

fn plan(address: SocketAddr, paths: &[&str], tls: Tls) -> Plan {
    Plan { tls: Some(tls), ..http_plan(address, paths) }
}

#[test]
fn replies_of_every_length_arrive() {
    let secure = secure_server();
    for (version, verify, depth) in [
        (None, false, 1),
        (None, true, 1),
        (Some(TlsVersion::V12), false, 8),
        (Some(TlsVersion::V13), true, 8),
    ] {
        let paths = ["/0", "/1", "/400", "/16384", "/70000", "/3000000"];
        let tls = Tls { version, ..tls(Some(vec![secure.certificate.clone()])) };
        let plan = Plan {
            verify,
            depth,
            requests_max: Some(24),
            duration: Duration::from_secs(60),
            ..plan(secure.server.address, &paths, tls)
        };
        over_both(&plan, |outcome| {
            expect_no_error(outcome);
            assert_eq!(outcome.total.replies(), 24);
            let received = outcome.total.received_bytes;
            assert!(received > 4 * 3_000_000, "{received} bytes");
            assert_eq!(outcome.total.handshake_ns.len(), outcome.total.opened);
            let number = if version == Some(TlsVersion::V12) { "TLS 1.2" } else { "TLS 1.3" };
            assert!(outcome.generator.io.contains(number), "{}", outcome.generator.io);
        });
    }
}

#[test]
fn later_connections_resume_unless_told_not_to() {
    let secure = secure_server();
    for version in [TlsVersion::V12, TlsVersion::V13] {
        for resumes in [true, false] {
            let tls = Tls { version: Some(version), resumes, ..tls(None) };
            let mut plan = plan(secure.server.address, &["/10"], tls);
            http_of(&mut plan).requests_per_connection = Some(1);
            plan.connections = 1;
            plan.requests_max = Some(20);
            plan.duration = Duration::from_secs(60);
            over_both(&plan, |outcome| {
                expect_no_error(outcome);
                let resumed = outcome.total.resumed;
                let opened = outcome.total.opened;
                assert_eq!(resumed > 0, resumes, "{version:?}: {resumed} of {opened}");
            });
        }
    }
}

#[test]
fn certificates_are_checked() {
    let secure = secure_server();
    let stop = AtomicBool::new(false);
    let refused = |tls: Tls| {
        let plan = plan(secure.server.address, &["/1"], tls);
        let error = load::run(&plan, &stop, &mut |_| {}).unwrap_err().to_string();
        assert!(error.starts_with("TLS with "), "{error}");
        error
    };
    let unknown = refused(tls(Some(Vec::new())));
    assert!(unknown.contains("--cacert"), "{unknown}");
    let elsewhere = Tls {
        server_name: "example.org".to_owned(),
        ..tls(Some(vec![secure.certificate.clone()]))
    };
    let misnamed = refused(elsewhere);
    assert!(misnamed.contains("example.org"), "{misnamed}");
}

#[test]
fn plain_servers_are_told_apart() {
    let plain = world::http_server(|_, _, stream| world::reply(stream, b"x"));
    let mute = server(|stream, _| drop(stream));
    for address in [plain.address, mute.address] {
        let plan = plan(address, &["/"], tls(None));
        let error = load::run(&plan, &AtomicBool::new(false), &mut |_| {}).unwrap_err();
        assert!(error.to_string().starts_with("TLS with "), "{error}");
    }
}

/// The probe's handshake succeeds, all others fail.
#[test]
fn failed_handshakes_are_counted() {
    for io in [Io::Auto, Io::Epoll] {
        let address = secure_server().server.address;
        let first = AtomicBool::new(true);
        let front = server(move |mut stream, _| {
            if !first.swap(false, Ordering::SeqCst) {
                let _ = stream.read(&mut [0; 100]);
                let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
                return;
            }
            let mut behind = TcpStream::connect(address).unwrap();
            let mut back = (behind.try_clone().unwrap(), stream.try_clone().unwrap());
            thread::spawn(move || io::copy(&mut back.0, &mut back.1));
            let _ = io::copy(&mut stream, &mut behind);
        });
        let plan = Plan { io, ..plan(front.address, &["/1"], tls(None)) };
        let errors = run(&plan).total.errors;
        assert!(errors.tls > 0 && errors.tls == errors.total(), "{errors:?}");
    }
}

#[test]
fn cut_replies_are_short() {
    let secure = secure_server();
    let plan = plan(secure.server.address, &["/cut"], tls(None));
    let outcome = run(&plan);
    assert!(outcome.total.errors.short_reply > 0, "{:?}", outcome.total.errors);
}

/// Seen: a server that sent its side of the handshake byte by byte kept a run from its beginning
/// for as long as it liked; of a silent one it was said that a "Resource" was "temporarily
/// unavailable". Cause: each read had --connect-timeout. Cure: the handshake has it.
#[test]
fn slow_handshake_ends_with_connect_timeout() {
    // Head of a long record.
    const RECORD: [u8; 5] = [22, 3, 3, 0x3f, 0xff];
    let slow = server(|mut stream, _| {
        let began = Instant::now();
        let _ = stream.write_all(&RECORD);
        while began.elapsed() < Duration::from_secs(20) && stream.write_all(&[2]).is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
    });
    let silent = server(|mut stream, _| {
        let _ = io::copy(&mut stream, &mut io::sink());
    });
    for address in [slow.address, silent.address] {
        let connect_timeout = Duration::from_millis(300);
        let plan = Plan { connect_timeout, ..plan(address, &["/1"], tls(None)) };
        let began = Instant::now();
        let error = load::run(&plan, &AtomicBool::new(false), &mut |_| {}).unwrap_err();
        let said = error.to_string();
        assert!(said.contains("no handshake within 300ms"), "{said}");
        assert!(began.elapsed() < Duration::from_secs(15), "{said}");
    }
}

/// Seen: a server that ended TLS and waited for the client's end, as RFC 5246 7.2.1 had it, was
/// measured with that wait, or timed out. Cause: only the end of TCP was one. Cure: close_notify is
/// the end of what arrives.
#[test]
fn close_notify_ends_a_reply() {
    let secure = secure_server();
    let plan = Plan {
        requests_max: Some(4),
        request_timeout: Duration::from_secs(20),
        duration: Duration::from_secs(60),
        ..plan(secure.server.address, &["/notified"], tls(None))
    };
    over_both(&plan, |outcome| {
        expect_no_error(outcome);
        assert_eq!(outcome.total.replies(), 4);
    });
}

/// Seen: of a server that died in the middle of a reply without a length, the piece that had come
/// was a good reply. Cause: the end of TCP ended it. Cure: over TLS only close_notify does (RFC
/// 9112 9.8); a process that dies sends none.
#[test]
fn reply_torn_by_tcp_is_short() {
    let secure = secure_server();
    let plan = Plan {
        requests_max: Some(4),
        request_timeout: Duration::from_secs(20),
        duration: Duration::from_secs(60),
        ..plan(secure.server.address, &["/torn"], tls(None))
    };
    over_both(&plan, |outcome| {
        assert_eq!(outcome.total.errors.short_reply, 4, "{:?}", outcome.total.errors);
        assert_eq!(outcome.total.replies(), 0);
    });
}
