//! A small HTTP endpoint for operators and their machines: metrics, health, later more.
//!
//! It runs on kernel threads of its own, so that it answers when every processor is busy, and it
//! is deliberately not the web server: no keep-alive, no pipelining, `GET` and `HEAD` only, one
//! request for each connection, everything within five seconds.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, SocketFlags};

use crate::listen::{Address, Bound};
use crate::metrics::{self, MetricsWriter};

/// How many requests are answered at once; the next gets 503, unread.
const CONNECTIONS_MAX: usize = 8;

/// How long a peer may take to send its request, and again to take the reply.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);

/// A longer request head is answered with 431.
const HEAD_LEN_MAX: usize = 8 * 1024;

/// One path and what it answers.
pub struct Route {
    path: &'static str,
    content_type: &'static str,
    about: &'static str,
    handler: Handler,
}

type Handler = Box<dyn Fn(&str) -> Reply + Send + Sync>;

/// What a [`Route`] answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The HTTP status code.
    pub status: u16,
    /// The body, of the route's content type.
    pub body: Vec<u8>,
}

impl Reply {
    /// A reply with status 200.
    pub fn ok(body: impl Into<Vec<u8>>) -> Reply {
        Reply {
            status: 200,
            body: body.into(),
        }
    }
}

impl Route {
    /// A route at `path` (with the slash in front), which the index describes as `about`. The
    /// handler gets the query, without the question mark, and runs on a thread of the endpoint.
    pub fn new(
        path: &'static str,
        content_type: &'static str,
        about: &'static str,
        handler: impl Fn(&str) -> Reply + Send + Sync + 'static,
    ) -> Route {
        Route {
            path,
            content_type,
            about,
            handler: Box::new(handler),
        }
    }

    /// `/metrics`: what `fill` writes, as Prometheus text.
    pub fn metrics(fill: impl Fn(&mut MetricsWriter) + Send + Sync + 'static) -> Route {
        Route::new(
            "/metrics",
            metrics::CONTENT_TYPE,
            "counters, as Prometheus text",
            move |_| {
                let mut out = MetricsWriter::default();
                fill(&mut out);
                Reply::ok(out.finish())
            },
        )
    }

    /// `/fibers`: every fiber, what it is doing and what it waits for, as text; with `?json`, as JSON; with
    /// `?backtraces`, also where it waits.
    pub fn fibers(lens: fiber::Lens) -> Route {
        Route::new(
            "/fibers",
            PLAIN,
            "every fiber and what it waits for; ?json, ?backtraces",
            move |query| {
                let asks = |word: &str| query.split('&').any(|asked| asked.starts_with(word));
                let dump = match asks("backtraces") {
                    true => lens.dump_with_backtraces(),
                    false => lens.dump(),
                };
                Reply::ok(match asks("json") {
                    true => dump.to_json(),
                    false => dump.to_string(),
                })
            },
        )
    }

    /// `/healthz`: 200 `ok`, or 503 `draining`, which tells a balancer to send nobody here any
    /// more.
    pub fn health(is_draining: impl Fn() -> bool + Send + Sync + 'static) -> Route {
        Route::new(
            "/healthz",
            PLAIN,
            "ok, or 503 while the server drains",
            move |_| match is_draining() {
                false => Reply::ok("ok\n"),
                true => Reply {
                    status: 503,
                    body: b"draining\n".to_vec(),
                },
            },
        )
    }
}

const PLAIN: &str = "text/plain; charset=utf-8";

/// The running endpoint. Dropping it stops accepting; requests in hand are finished.
#[derive(Debug)]
pub struct Admin {
    addresses: Vec<Address>,
    stop: Arc<OwnedFd>,
    acceptor: Option<JoinHandle<()>>,
}

impl Admin {
    /// Serves `routes` at every socket of `bound`, and a list of them at `/`.
    ///
    /// # Errors
    /// If there is no descriptor or thread to be had.
    pub fn start(bound: Vec<Bound>, routes: Vec<Route>) -> io::Result<Admin> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let stop = Arc::new(rustix::event::eventfd(0, flags)?);
        for bound in &bound {
            // A peer may give up between poll(2) and accept(2), which would then block. select(2)
            rustix::io::ioctl_fionbio(bound, true)?;
        }
        let addresses = bound.iter().map(|bound| bound.address.clone()).collect();
        let stopped = Arc::clone(&stop);
        let acceptor = thread::Builder::new()
            .name("weft-admin".to_owned())
            .spawn(move || accept_until(&stopped, &bound, &Arc::new(with_index(routes))))?;
        Ok(Admin {
            addresses,
            stop,
            acceptor: Some(acceptor),
        })
    }

    /// Where it answers.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        let stopped = rustix::io::write(&*self.stop, &1u64.to_ne_bytes()).is_ok();
        if let Some(acceptor) = self.acceptor.take().filter(|_| stopped) {
            // A panic there was printed already.
            let _ = acceptor.join();
        }
    }
}

fn with_index(mut routes: Vec<Route>) -> Vec<Route> {
    let line = |route: &Route| format!("{:<12} {}\n", route.path, route.about);
    let list: String = routes.iter().map(line).collect();
    routes.push(Route::new("/", PLAIN, "this list", move |_| {
        Reply::ok(list.clone())
    }));
    routes
}

fn accept_until(stop: &OwnedFd, bound: &[Bound], routes: &Arc<Vec<Route>>) {
    let places = Arc::new(AtomicUsize::new(0));
    loop {
        let sockets = std::iter::once(stop.as_fd()).chain(bound.iter().map(AsFd::as_fd));
        let mut polled: Vec<_> = sockets
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        if rustix::event::poll(&mut polled, None).is_err() {
            continue; // EINTR: poll(2) is not restarted after a signal. signal(7)
        }
        if !polled[0].revents().is_empty() {
            return;
        }
        let ready = polled[1..]
            .iter()
            .zip(bound)
            .filter(|(poll, _)| !poll.revents().is_empty());
        for (_, bound) in ready {
            accept(bound, &places, routes);
        }
    }
}

fn accept(bound: &Bound, places: &Arc<AtomicUsize>, routes: &Arc<Vec<Route>>) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = match rustix::net::accept_with(bound, flags) {
        Ok(stream) => stream,
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
        Err(_) => {
            // No descriptors: the connection stays in the backlog, so without a pause this would
            // spin.
            return thread::sleep(Duration::from_millis(100));
        }
    };
    let Some(place) = Place::take(places) else {
        let reply = Reply {
            status: 503,
            body: b"too many requests at once\n".to_vec(),
        };
        // One try, which a fresh socket's buffer takes; nobody is waited for here.
        let _ = rustix::net::send(&stream, &render(PLAIN, &reply, false), SendFlags::NOSIGNAL);
        return;
    };
    let routes = Arc::clone(routes);
    let serve = move || {
        let _place = place;
        serve(&stream, &routes);
    };
    // Without memory for a thread the connection closes; the next one may fare better.
    let _ = thread::Builder::new()
        .name("weft-admin-reply".to_owned())
        .spawn(serve);
}

/// One of the [`CONNECTIONS_MAX`] places; dropping it frees it.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(places: &Arc<AtomicUsize>) -> Option<Place> {
        let more = |taken| (taken < CONNECTIONS_MAX).then_some(taken + 1);
        places
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .ok()?;
        Some(Place(Arc::clone(places)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn serve(stream: &OwnedFd, routes: &[Route]) {
    let mut head = Vec::new();
    let reply = match receive_head(stream, &mut head, Instant::now() + PEER_TIMEOUT) {
        Ok(true) => answer(&head, routes),
        Ok(false) => render(PLAIN, &status_only(431), false),
        Err(_) => return,
    };
    let deadline = Instant::now() + PEER_TIMEOUT;
    // Closing while input lies unread resets the connection, and the reply may be lost with it. So
    // the end of the peer's input is waited for. RFC 9112 section 9.6
    let _ = send_all(stream, &reply, deadline)
        .and_then(|()| Ok(rustix::net::shutdown(stream, Shutdown::Write)?))
        .and_then(|()| drain(stream, deadline));
}

/// Reads until the empty line; `false` if it does not come within [`HEAD_LEN_MAX`].
fn receive_head(stream: &OwnedFd, head: &mut Vec<u8>, deadline: Instant) -> io::Result<bool> {
    let mut piece = [0; 1024];
    loop {
        let len = receive(stream, &mut piece, deadline)?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&piece[..len]);
        if head.windows(4).any(|four| four == b"\r\n\r\n") {
            return Ok(true);
        }
        if head.len() > HEAD_LEN_MAX {
            return Ok(false);
        }
    }
}

fn drain(stream: &OwnedFd, deadline: Instant) -> io::Result<()> {
    let mut piece = [0; 1024];
    for _ in 0..64 {
        if receive(stream, &mut piece, deadline)? == 0 {
            break;
        }
    }
    Ok(())
}

fn receive(stream: &OwnedFd, buffer: &mut [u8], deadline: Instant) -> io::Result<usize> {
    loop {
        match rustix::io::read(stream, &mut *buffer) {
            Err(Errno::AGAIN) => wait(stream.as_fd(), PollFlags::IN, deadline)?,
            Err(Errno::INTR) => {}
            read => return Ok(read?),
        }
    }
}

fn send_all(stream: &OwnedFd, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::net::send(stream, bytes, SendFlags::NOSIGNAL) {
            Err(Errno::AGAIN) => wait(stream.as_fd(), PollFlags::OUT, deadline)?,
            Err(Errno::INTR) => {}
            sent => bytes = &bytes[sent?..],
        }
    }
    Ok(())
}

fn wait(stream: BorrowedFd<'_>, events: PollFlags, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    let left = Timespec::try_from(left).map_err(io::Error::other)?;
    let mut polled = [PollFd::from_borrowed_fd(stream, events)];
    match rustix::event::poll(&mut polled, Some(&left)) {
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// The whole reply to a request head.
fn answer(head: &[u8], routes: &[Route]) -> Vec<u8> {
    let Some((method, target)) = parse_request_line(head) else {
        return render(PLAIN, &status_only(400), false);
    };
    let is_head = method == "HEAD";
    if !is_head && method != "GET" {
        return render(PLAIN, &status_only(405), false);
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let Some(route) = routes.iter().find(|route| route.path == path) else {
        return render(PLAIN, &status_only(404), is_head);
    };
    match catch_unwind(AssertUnwindSafe(|| (route.handler)(query))) {
        Ok(reply) => render(route.content_type, &reply, is_head),
        // The panic was printed with its place; the server goes on.
        Err(_) => render(PLAIN, &status_only(500), is_head),
    }
}

/// Method and target. RFC 9112 section 3
fn parse_request_line(head: &[u8]) -> Option<(&str, &str)> {
    let line = head.split(|&byte| byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let whole = words.next().is_none() && target.starts_with('/');
    (whole && version.starts_with("HTTP/1.")).then_some((method, target))
}

fn status_only(status: u16) -> Reply {
    Reply {
        status,
        body: format!("{}\n", reason(status)).into_bytes(),
    }
}

fn render(content_type: &str, reply: &Reply, is_head: bool) -> Vec<u8> {
    let Reply { status, body } = reply;
    let date = httpdate::fmt_http_date(SystemTime::now());
    let allow = if *status == 405 {
        "Allow: GET, HEAD\r\n"
    } else {
        ""
    };
    let mut bytes = format!(
        "HTTP/1.1 {status} {}\r\nDate: {date}\r\nContent-Type: {content_type}\r\n\
         Content-Length: {}\r\n{allow}Cache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
        reason(*status),
        body.len()
    )
    .into_bytes();
    if !is_head {
        bytes.extend_from_slice(body);
    }
    bytes
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        _ => "Status",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicBool;

    struct Running {
        admin: Admin,
        draining: Arc<AtomicBool>,
    }

    fn start(address: &str) -> Running {
        let draining = Arc::new(AtomicBool::new(false));
        let is_draining = Arc::clone(&draining);
        let routes = vec![
            Route::metrics(|out| out.counter("x_total", "All x.", &[], 7)),
            Route::health(move || is_draining.load(Ordering::Relaxed)),
            Route::new("/echo", PLAIN, "the query", |query| Reply::ok(query)),
            Route::new("/panic", PLAIN, "a mistake", |_| {
                panic!("deliberate, from a test")
            }),
        ];
        let bound = crate::listen::bind(&address.parse().unwrap(), None).unwrap();
        Running {
            admin: Admin::start(bound, routes).unwrap(),
            draining,
        }
    }

    impl Running {
        fn tcp(&self) -> SocketAddr {
            match self.admin.addresses()[0] {
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
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status}\r\n")),
            "{reply}"
        );
        assert_eq!(got, body);
        assert!(
            head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())),
            "{reply}"
        );
    }

    #[test]
    fn metrics_health_and_index_answer() {
        let running = start("127.0.0.1:0");
        let metrics = running.get("/metrics");
        let body = "# HELP x_total All x.\n# TYPE x_total counter\nx_total 7\n";
        check(&metrics, "200 OK", body);
        assert!(
            metrics.contains("Content-Type: text/plain; version=0.0.4"),
            "{metrics}"
        );
        check(&running.get("/healthz"), "200 OK", "ok\n");
        check(&running.get("/echo?a=1&b"), "200 OK", "a=1&b");
        let index = running.get("/");
        assert!(
            ["/metrics", "/healthz", "/echo"]
                .iter()
                .all(|p| index.contains(p)),
            "{index}"
        );
    }

    #[test]
    fn draining_turns_health_to_503() {
        let running = start("127.0.0.1:0");
        running.draining.store(true, Ordering::Relaxed);
        check(
            &running.get("/healthz"),
            "503 Service Unavailable",
            "draining\n",
        );
    }

    #[test]
    fn head_has_the_length_and_no_body() {
        let running = start("127.0.0.1:0");
        let reply = running.ask("HEAD /healthz HTTP/1.0\r\n\r\n");
        assert!(
            reply.contains("Content-Length: 3\r\n") && reply.ends_with("\r\n\r\n"),
            "{reply}"
        );
    }

    #[test]
    fn what_it_does_not_do_is_refused() {
        let running = start("127.0.0.1:0");
        check(&running.get("/other"), "404 Not Found", "Not Found\n");
        check(&running.ask("\r\n\r\n"), "400 Bad Request", "Bad Request\n");
        check(
            &running.ask("GET /\r\n\r\n"),
            "400 Bad Request",
            "Bad Request\n",
        );
        check(
            &running.ask("PRI * HTTP/2.0\r\n\r\n"),
            "400 Bad Request",
            "Bad Request\n",
        );
        check(
            &running.get("/panic"),
            "500 Internal Server Error",
            "Internal Server Error\n",
        );
        let post = running.ask("POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc");
        check(&post, "405 Method Not Allowed", "Method Not Allowed\n");
        assert!(post.contains("\r\nAllow: GET, HEAD\r\n"), "{post}");
        let long = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(HEAD_LEN_MAX + 1024));
        assert!(running.ask(&long).starts_with("HTTP/1.1 431 "));
    }

    #[test]
    fn silent_peers_take_at_most_eight_places() {
        let running = start("127.0.0.1:0");
        let silent: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|_| TcpStream::connect(running.tcp()).unwrap())
            .collect();
        // They are accepted in order, so the ninth finds them in their places.
        let ninth = read_all(TcpStream::connect(running.tcp()).unwrap());
        check(
            &ninth,
            "503 Service Unavailable",
            "too many requests at once\n",
        );
        drop(silent);
        let deadline = Instant::now() + PEER_TIMEOUT;
        while !is_served(running.tcp()) {
            assert!(Instant::now() < deadline, "the places were not freed");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// A peer whose request crosses the 503 sees a reset.
    fn is_served(address: SocketAddr) -> bool {
        let mut stream = TcpStream::connect(address).unwrap();
        let mut reply = String::new();
        let asked = stream.write_all(b"GET /healthz HTTP/1.1\r\n\r\n");
        asked.is_ok() && stream.read_to_string(&mut reply).is_ok() && reply.contains("200 OK")
    }

    #[test]
    fn a_request_may_come_in_pieces() {
        let running = start("127.0.0.1:0");
        let mut stream = TcpStream::connect(running.tcp()).unwrap();
        for byte in b"GET /healthz HTTP/1.1\r\n\r\n" {
            stream.write_all(&[*byte]).unwrap();
        }
        check(&read_all(stream), "200 OK", "ok\n");
    }

    #[test]
    fn a_silent_peer_is_not_waited_for_beyond_the_deadline() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let soon = Instant::now() + Duration::from_millis(20);
        let error = receive_head(&ours.into(), &mut Vec::new(), soon).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn it_answers_at_a_unix_socket() {
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
    fn dropping_it_closes_the_socket() {
        let running = start("127.0.0.1:0");
        let address = running.tcp();
        drop(running);
        assert!(TcpStream::connect(address).is_err());
    }
}
