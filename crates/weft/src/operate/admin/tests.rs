use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::http::{HEAD_LEN_MAX, PEER_TIMEOUT, PLAIN, receive_head};
use super::{Admin, CONNECTIONS_MAX, Reply, Route, Spawn, spawn_reply};
use ::serve::listen::Address;

struct Running {
    addresses: Vec<Address>,
    _admin: Admin,
    draining: Arc<AtomicBool>,
}

fn start(address: &str) -> Running {
    start_with(address, spawn_reply)
}

fn start_with(address: &str, spawn: Spawn) -> Running {
    let draining = Arc::new(AtomicBool::new(false));
    let is_draining = Arc::clone(&draining);
    let routes = vec![
        Route::metrics(|out| out.counter("x_total", "All x.", &[], 7)),
        Route::health(move || is_draining.load(Ordering::Relaxed)),
        Route::new("/echo", PLAIN, "the query", |query| Reply::ok(query)),
        Route::new("/panic", PLAIN, "a mistake", |_| panic!("deliberate, from a test")),
    ];
    Running { draining, ..serve(address, routes, spawn) }
}

fn serve(address: &str, routes: Vec<Route>, spawn: Spawn) -> Running {
    let bound = ::serve::listen::bind(&address.parse().unwrap(), None).unwrap();
    Running {
        addresses: bound.iter().map(|bound| bound.address.clone()).collect(),
        _admin: Admin::start_with(bound, routes, spawn).unwrap(),
        draining: Arc::default(),
    }
}

impl Running {
    fn tcp(&self) -> SocketAddr {
        match self.addresses[0] {
            Address::Tcp(address) => address,
            ref other => panic!("{other}"),
        }
    }

    fn ask(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.tcp()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        read_all(stream)
    }

    fn get(&self, target: &str) -> String {
        self.ask(&format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n"))
    }
}

fn read_all(mut stream: impl Read) -> String {
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

fn check(reply: &str, status: &str, body: &str) {
    let (head, got) = reply.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{reply}");
    assert_eq!(got, body);
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{reply}");
}

#[test]
fn metrics_health_and_index_answer() {
    let running = start("127.0.0.1:0");
    let metrics = running.get("/metrics");
    let body = "# HELP x_total All x.\n# TYPE x_total counter\nx_total 7\n";
    check(&metrics, "200 OK", body);
    assert!(metrics.contains("Content-Type: text/plain; version=0.0.4"), "{metrics}");
    check(&running.get("/healthz"), "200 OK", "ok\n");
    check(&running.get("/echo?a=1&b"), "200 OK", "a=1&b");
    let index = running.get("/");
    assert!(["/metrics", "/healthz", "/echo"].iter().all(|p| index.contains(p)), "{index}");
}

#[test]
fn draining_turns_health_to_503() {
    let running = start("127.0.0.1:0");
    running.draining.store(true, Ordering::Relaxed);
    check(&running.get("/healthz"), "503 Service Unavailable", "draining\n");
}

#[test]
fn head_has_the_length_and_no_body() {
    let running = start("127.0.0.1:0");
    let reply = running.ask("HEAD /healthz HTTP/1.0\r\n\r\n");
    assert!(reply.contains("Content-Length: 3\r\n") && reply.ends_with("\r\n\r\n"), "{reply}");
}

#[test]
fn refused_requests() {
    let running = start("127.0.0.1:0");
    check(&running.get("/other"), "404 Not Found", "Not Found\n");
    check(&running.ask("\r\n\r\n"), "400 Bad Request", "Bad Request\n");
    check(&running.ask("GET /\r\n\r\n"), "400 Bad Request", "Bad Request\n");
    check(&running.ask("PRI * HTTP/2.0\r\n\r\n"), "400 Bad Request", "Bad Request\n");
    check(&running.get("/panic"), "500 Internal Server Error", "Internal Server Error\n");
    let post = running.ask("POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc");
    check(&post, "405 Method Not Allowed", "Method Not Allowed\n");
    assert!(post.contains("\r\nAllow: GET, HEAD\r\n"), "{post}");
    let long = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(HEAD_LEN_MAX + 1024));
    assert!(running.ask(&long).starts_with("HTTP/1.1 431 "));
}

#[test]
fn silent_peers_take_at_most_eight_slots() {
    let running = start("127.0.0.1:0");
    let silent: Vec<_> =
        (0..CONNECTIONS_MAX).map(|_| TcpStream::connect(running.tcp()).unwrap()).collect();
    // Connections are accepted in order, so no slot is left for the ninth.
    let ninth = read_all(TcpStream::connect(running.tcp()).unwrap());
    check(&ninth, "503 Service Unavailable", "too many requests at once\n");
    drop(silent);
    let deadline = Instant::now() + PEER_TIMEOUT;
    while !is_served(running.tcp()) {
        assert!(Instant::now() < deadline, "no slot was freed");
        thread::sleep(Duration::from_millis(5));
    }
}

/// True if a request is served. A peer whose request crosses the 503 gets a reset.
fn is_served(address: SocketAddr) -> bool {
    let mut stream = TcpStream::connect(address).unwrap();
    let mut reply = String::new();
    let asked = stream.write_all(b"GET /healthz HTTP/1.1\r\n\r\n");
    asked.is_ok() && stream.read_to_string(&mut reply).is_ok() && reply.contains("200 OK")
}

/// Seen: when no more threads could be started, `/healthz` and `/metrics` closed the connection
/// without a reply, and a load balancer considered a running server dead. Cause: each reply needed
/// a thread of its own. Cure: the accepting thread replies if no other can be started.
#[test]
fn replies_without_a_new_thread() {
    let running = start_with("127.0.0.1:0", |_| Err(io::ErrorKind::WouldBlock.into()));
    // Its time limit is shorter than on a thread of its own.
    let silent = TcpStream::connect(running.tcp()).unwrap();
    for _ in 0..2 * CONNECTIONS_MAX {
        check(&running.get("/healthz"), "200 OK", "ok\n");
    }
    check(&running.get("/panic"), "500 Internal Server Error", "Internal Server Error\n");
    check(&running.get("/echo?a"), "200 OK", "a");
    assert_eq!(read_all(silent), "");
}

#[test]
fn request_in_pieces() {
    let running = start("127.0.0.1:0");
    let mut stream = TcpStream::connect(running.tcp()).unwrap();
    for byte in b"GET /healthz HTTP/1.1\r\n\r\n" {
        stream.write_all(&[*byte]).unwrap();
    }
    check(&read_all(stream), "200 OK", "ok\n");
}

#[test]
fn deadline_of_a_silent_peer() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let soon = Instant::now() + Duration::from_millis(20);
    let error = receive_head(&ours.into(), &mut Vec::new(), soon).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}

#[test]
fn unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.sock");
    let running = start(&format!("unix:{}", path.display()));
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").unwrap();
    check(&read_all(stream), "200 OK", "ok\n");
    drop(running);
    assert!(!path.exists());
}

#[test]
fn drop_closes_the_socket() {
    // No other test binds a port of this address after it is freed.
    let running = start("127.0.2.1:0");
    let address = running.tcp();
    drop(running);
    assert!(TcpStream::connect(address).is_err());
}

/// Seen: the list of fibers was JSON with the content type of plain text.
#[test]
fn content_type_of_fibers() {
    let runtime = fiber::Runtime::builder().processors(1).start().unwrap();
    let routes = vec![Route::fibers(runtime.inspector())];
    let running = serve("127.0.0.1:0", routes, spawn_reply);
    let text = running.get("/fibers");
    assert!(text.contains("\r\nContent-Type: text/plain"), "{text}");
    let json = running.get("/fibers?json");
    let (head, body) = json.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("\r\nContent-Type: application/json\r\n"), "{head}");
    assert!(body.starts_with("{\"fibers\":["), "{body}");
}
