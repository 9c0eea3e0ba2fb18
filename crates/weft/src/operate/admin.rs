//! HTTP endpoint for operators: metrics, health, fibers.
//!
//! It runs on kernel threads of its own, so that it answers even if all processors are busy. It is
//! deliberately not the web server: no keep-alive, no pipelining, `GET` and `HEAD` only, one
//! request per connection, five seconds to receive it and five to send the reply. If no thread can
//! be started, the accepting thread answers, one request after another.

mod http;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags};

use ::serve::listen::Bound;
use ::serve::metrics::{self, MetricsWriter};
use http::{PEER_TIMEOUT, PLAIN, render};

/// Limit on concurrent requests; further ones get 503, unread.
const CONNECTIONS_MAX: usize = 8;

/// Time limit for receiving a request, and again for sending the reply, on the accepting thread:
/// other peers wait meanwhile.
const PEER_TIMEOUT_WITHOUT_THREAD: Duration = Duration::from_millis(100);

/// One path and its handler.
pub(crate) struct Route {
    path: &'static str,
    content_type: &'static str,
    about: &'static str,
    handler: Handler,
}

type Handler = Box<dyn Fn(&str) -> Reply + Send + Sync>;

/// Reply of a [`Route`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    /// The HTTP status code.
    pub(super) status: u16,
    /// The body's content type; the route's if `None`.
    pub(super) content_type: Option<&'static str>,
    /// The body.
    pub(super) body: Vec<u8>,
}

impl Reply {
    /// A reply with status 200.
    pub(super) fn ok(body: impl Into<Vec<u8>>) -> Reply {
        Reply::new(200, body)
    }

    fn new(status: u16, body: impl Into<Vec<u8>>) -> Reply {
        Reply { status, content_type: None, body: body.into() }
    }
}

impl Route {
    /// Returns a route at `path` (with the leading slash), described as `about` in the index. The
    /// handler gets the query, without the question mark, and runs on a thread of the endpoint.
    pub(super) fn new(
        path: &'static str,
        content_type: &'static str,
        about: &'static str,
        handler: impl Fn(&str) -> Reply + Send + Sync + 'static,
    ) -> Route {
        Route { path, content_type, about, handler: Box::new(handler) }
    }

    /// `/metrics`: the metrics that `fill` writes, as Prometheus text.
    pub(crate) fn metrics(fill: impl Fn(&mut MetricsWriter) + Send + Sync + 'static) -> Route {
        Route::new("/metrics", metrics::CONTENT_TYPE, "counters, as Prometheus text", move |_| {
            let mut out = MetricsWriter::default();
            fill(&mut out);
            Reply::ok(out.finish())
        })
    }

    /// `/fibers`: the state of every fiber as text, or as JSON with `?json`; `?backtraces` adds the
    /// stack of each waiting fiber.
    pub(super) fn fibers(inspector: fiber::Inspector) -> Route {
        Route::new(
            "/fibers",
            PLAIN,
            "every fiber and what it waits for; ?json, ?backtraces",
            move |query| {
                let asks = |word: &str| query.split('&').any(|asked| asked.starts_with(word));
                let dump = if asks("backtraces") {
                    inspector.dump_with_backtraces()
                } else {
                    inspector.dump()
                };
                if asks("json") {
                    Reply { content_type: Some("application/json"), ..Reply::ok(dump.to_json()) }
                } else {
                    Reply::ok(dump.to_string())
                }
            },
        )
    }

    /// `/paths`: the result of `list`, as JSON.
    pub(crate) fn paths(list: impl Fn() -> serde_json::Value + Send + Sync + 'static) -> Route {
        let about = "the most requested paths, as JSON; a sample under load";
        Route::new("/paths", "application/json", about, move |_| Reply::ok(format!("{}\n", list())))
    }

    /// `/fibers` of an engine without fibers: a 404 that names the engine.
    pub(super) fn no_fibers(engine: &str) -> Route {
        let body = format!("there are no fibers: this server has {engine}\n").into_bytes();
        let about = "with --engine fiber: every fiber and what it waits for";
        Route::new("/fibers", PLAIN, about, move |_| Reply::new(404, body.clone()))
    }

    /// `/healthz`: 200 `ok`, or 503 `draining`, so that a load balancer sends no more clients.
    pub(super) fn health(is_draining: impl Fn() -> bool + Send + Sync + 'static) -> Route {
        Route::new("/healthz", PLAIN, "ok, or 503 while the server drains", move |_| {
            if is_draining() { Reply::new(503, "draining\n") } else { Reply::ok("ok\n") }
        })
    }
}

/// The running endpoint. Dropping it stops accepting; requests in progress are finished.
#[derive(Debug)]
pub(crate) struct Admin {
    stop: Arc<OwnedFd>,
    acceptor: Option<JoinHandle<()>>,
}

impl Admin {
    /// Serves `routes` at every socket of `bound`, and a list of them at `/`.
    ///
    /// # Errors
    /// The kernel's error if no descriptor or thread can be created.
    pub(crate) fn start(bound: Vec<Bound>, routes: Vec<Route>) -> io::Result<Admin> {
        Admin::start_with(bound, routes, spawn_reply)
    }

    fn start_with(bound: Vec<Bound>, routes: Vec<Route>, spawn: Spawn) -> io::Result<Admin> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let stop = Arc::new(rustix::event::eventfd(0, flags)?);
        for bound in &bound {
            // A peer may give up between poll(2) and accept(2), which would then block. select(2)
            rustix::io::ioctl_fionbio(bound, true)?;
        }
        let stopped = Arc::clone(&stop);
        let acceptor = thread::Builder::new()
            .name("weft-admin".to_owned())
            .spawn(move || accept_until(&stopped, &bound, &Arc::new(with_index(routes)), spawn))?;
        Ok(Admin { stop, acceptor: Some(acceptor) })
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        let stopped = rustix::io::write(&*self.stop, &1u64.to_ne_bytes()).is_ok();
        if let Some(acceptor) = self.acceptor.take().filter(|_| stopped) {
            // A panic there has been printed already.
            let _ = acceptor.join();
        }
    }
}

fn with_index(mut routes: Vec<Route>) -> Vec<Route> {
    let line = |route: &Route| format!("{:<12} {}\n", route.path, route.about);
    let list: String = routes.iter().map(line).collect();
    routes.push(Route::new("/", PLAIN, "this list", move |_| Reply::ok(list.clone())));
    routes
}

/// Runs the work on a new thread; drops the work if no thread can be started.
type Spawn = fn(Box<dyn FnOnce() + Send>) -> io::Result<()>;

fn spawn_reply(work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    let builder = thread::Builder::new().name("weft-admin-reply".to_owned());
    builder.spawn(work).map(|_| ())
}

fn accept_until(stop: &OwnedFd, bound: &[Bound], routes: &Arc<Vec<Route>>, spawn: Spawn) {
    let slots = Arc::new(AtomicUsize::new(0));
    loop {
        let sockets = std::iter::once(stop.as_fd()).chain(bound.iter().map(AsFd::as_fd));
        let mut polled: Vec<_> =
            sockets.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        if rustix::event::poll(&mut polled, None).is_err() {
            continue; // EINTR: poll(2) is not restarted after a signal. signal(7)
        }
        if !polled[0].revents().is_empty() {
            return;
        }
        let ready = polled[1..].iter().zip(bound).filter(|(poll, _)| !poll.revents().is_empty());
        for (_, bound) in ready {
            accept(bound, &slots, routes, spawn);
        }
    }
}

fn accept(bound: &Bound, slots: &Arc<AtomicUsize>, routes: &Arc<Vec<Route>>, spawn: Spawn) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = match rustix::net::accept_with(bound, flags) {
        Ok(stream) => stream,
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
        Err(_) => {
            // No descriptors: the connection stays in the listen queue, so without a pause this
            // would spin.
            return thread::sleep(Duration::from_millis(100));
        }
    };
    let Some(slot) = Slot::take(slots) else {
        let reply = Reply::new(503, "too many requests at once\n");
        // One attempt, without waiting: the empty buffer of a new socket has space for it.
        let _ = rustix::net::send(&stream, &render(PLAIN, &reply, false), SendFlags::NOSIGNAL);
        return;
    };
    let stream = Arc::new(stream);
    let (its_stream, its_routes) = (Arc::clone(&stream), Arc::clone(routes));
    let spawned = spawn(Box::new(move || {
        let _slot = slot;
        http::serve(&its_stream, &its_routes, PEER_TIMEOUT);
    }));
    if spawned.is_err() {
        // A server at its limit on threads still runs, and its operator needs the endpoint.
        http::serve(&stream, routes, PEER_TIMEOUT_WITHOUT_THREAD);
    }
}

/// One of [`CONNECTIONS_MAX`] slots for requests; dropping it frees the slot.
struct Slot(Arc<AtomicUsize>);

impl Slot {
    fn take(slots: &Arc<AtomicUsize>) -> Option<Slot> {
        let more = |taken| (taken < CONNECTIONS_MAX).then_some(taken + 1);
        slots.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Slot(Arc::clone(slots)))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
