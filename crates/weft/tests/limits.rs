//! Limits on the resources that a client may use. A crowd exceeds each limit threefold, on every
//! engine and back end, on a server that has just started and again when it is warm. The outcomes
//! of the crowd are counted; a well-behaved neighbour sends requests all the while, and gets every
//! reply.
//!
//! `engines.rs` tests the limit on connections and slow heads, `tests/system` few descriptors.

#[macro_use]
mod every_engine;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use serve::access_log::{AccessLog, Options, Target};
use serve::counters::Closed;
use serve::limits::Limits;
use serve::listen::{Address, bind};
use serve::{Engine, Server, Settings};
use session::{Opening, Phase};
use web::{Handle, Peer, ServiceConfig, Session, Site, SiteConfig};

on_every_engine! {
    requests_that_are_too_long_are_refused
    too_many_ranges_are_answered_with_the_whole
    a_path_as_long_as_a_line_may_be_is_looked_up
    slow_clients_end_in_every_phase
    clients_that_take_too_little_are_cut
    more_connections_than_fibers_are_served_in_turn
    pipelined_requests_that_are_not_read_wait
    memory_open_files_and_paths_stay_within_their_budgets
    a_huge_directory_is_listed_up_to_its_limit
    a_log_that_nobody_reads_holds_up_no_request
}

on_every_other_combination! {
    requests_that_are_too_long_are_refused
    slow_clients_end_in_every_phase
    clients_that_take_too_little_are_cut
    pipelined_requests_that_are_not_read_wait
}

/// Number of clients that misbehave at once.
const CROWD: usize = 12;

/// Shortest time-out of a client in any test.
const TIMEOUT_MIN: Duration = Duration::from_millis(500);

/// Longer than any expected event takes, on a machine whose disk is stalled.
const PATIENCE: Duration = Duration::from_secs(60);

struct World {
    server: Server,
    handle: Arc<Handle>,
    log: Option<Arc<AccessLog>>,
    address: SocketAddr,
    directory: tempfile::TempDir,
}

/// Settings that a test can change.
struct Setup {
    limits: Limits,
    site: SiteConfig,
    service: ServiceConfig,
    fibers: Option<usize>,
    log: Option<AccessLog>,
}

impl World {
    /// A server over a folder with `files`.
    fn new(engine: &Engine, files: &[(String, Vec<u8>)], change: impl FnOnce(&mut Setup)) -> World {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("hello.txt"), "hello\n").unwrap();
        for (name, content) in files {
            std::fs::write(directory.path().join(name), content).unwrap();
        }
        let mut setup = Setup {
            limits: Limits::default(),
            site: SiteConfig { root: directory.path().to_owned(), ..SiteConfig::default() },
            service: ServiceConfig::default(),
            fibers: None,
            log: None,
        };
        change(&mut setup);
        let bound = bind(&"127.0.0.1:0".parse().unwrap(), None).unwrap();
        let Address::Tcp(address) = bound[0].address else { panic!("not a TCP address") };
        let site = Arc::new(Site::open(setup.site).unwrap());
        let handle = Arc::new(Handle::new(site, setup.service).unwrap());
        let log = setup.log.map(Arc::new);
        let settings = Settings {
            engine: engine.clone(),
            listeners: bound,
            limits: setup.limits,
            fibers: setup.fibers,
            log: log.clone(),
            ..Settings::default()
        };
        let opened = Arc::clone(&handle);
        let open = move |opening: Opening<'_>| {
            let peer = opening.peer.map_or(Peer::Unix, Peer::Tcp);
            Session::new(Arc::clone(&opened), peer)
        };
        World { server: Server::start(settings, open).unwrap(), handle, log, address, directory }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Outcomes of a crowd, cold and warm together. `misbehave` runs one client and returns its
    /// outcome.
    fn crowd(&self, misbehave: impl Fn(&World) -> String + Sync) -> BTreeMap<String, usize> {
        let mut seen = BTreeMap::new();
        for _ in ["cold", "warm"] {
            let (is_over, misbehave) = (&AtomicBool::new(false), &misbehave);
            std::thread::scope(|scope| {
                let neighbour = scope.spawn(move || self.be_a_neighbour(is_over));
                let crowd: Vec<_> =
                    (0..CROWD).map(|_| scope.spawn(move || misbehave(self))).collect();
                for client in crowd {
                    *seen.entry(client.join().unwrap()).or_insert(0) += 1;
                }
                is_over.store(true, Ordering::Relaxed);
                assert!(neighbour.join().unwrap() > 0, "the neighbour was not served");
            });
        }
        seen
    }

    /// Sends requests on one connection after another, as long as the crowd is there. Returns the
    /// number of replies.
    fn be_a_neighbour(&self, is_over: &AtomicBool) -> usize {
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut replies = 0;
        while !is_over.load(Ordering::Relaxed) || replies == 0 && Instant::now() < deadline {
            let mut stream = self.connect();
            let mut rested = Instant::now();
            for _ in 0..20 {
                let asked = stream.write_all(GET).ok();
                let Some((status, body)) = asked.and_then(|()| read_reply(&mut stream)) else {
                    // On a busy machine the time-out may pass between two requests.
                    assert!(rested.elapsed() >= TIMEOUT_MIN, "the neighbour was cut");
                    break;
                };
                assert_eq!((status.as_str(), &body[..]), ("200", &b"hello\n"[..]));
                replies += 1;
                rested = Instant::now();
            }
            // Not needed to pass: leaves processor time to the crowd.
            std::thread::sleep(Duration::from_millis(2));
        }
        replies
    }

    fn wait_until(&self, what: &str, mut is_so: impl FnMut(&Server) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(&self.server) {
            let counters = self.server.counters();
            assert!(Instant::now() < deadline, "{what}: {counters:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn site_count(&self, name: &str) -> u64 {
        let site = self.handle.site();
        let mut counters = site.counters();
        counters.find(|(of, ..)| *of == name).unwrap().2
    }
}

const GET: &[u8] = b"GET /hello.txt HTTP/1.1\r\nHost: x\r\n\r\n";

/// Expected outcome of both crowds if all clients ended alike.
fn all(ended: &str) -> BTreeMap<String, usize> {
    BTreeMap::from([(ended.to_owned(), 2 * CROWD)])
}

/// Status and body of one whole reply. `None` if the connection ends first.
fn read_reply(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.ends_with(b"\r\n\r\n") {
        let len = received(stream.peek(&mut piece))?;
        // Reads no byte after the head.
        let len = piece[..len].iter().position(|&byte| byte == b'\n').map_or(len, |at| at + 1);
        stream.read_exact(&mut piece[..len]).ok()?;
        head.extend_from_slice(&piece[..len]);
    }
    let head = String::from_utf8(head).unwrap();
    let status = head[9..12].to_owned();
    let len = head
        .split_once("Content-Length: ")
        .map_or("0", |(_, rest)| rest.split('\r').next().unwrap());
    let mut body = vec![0; len.parse().unwrap()];
    stream.read_exact(&mut body).ok()?;
    Some((status, body))
}

/// Number of bytes read; `None` at the end. A reset counts as an end; a read that times out does
/// not.
fn received(read: std::io::Result<usize>) -> Option<usize> {
    match read {
        Ok(0) => None,
        Ok(len) => Some(len),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => None,
        Err(error) => panic!("{error}"),
    }
}

/// Sends a request, which may partly fail because the server has already refused it. Returns the
/// status, or "closed".
fn ask(world: &World, request: &[u8]) -> String {
    let mut stream = world.connect();
    let _ = stream.write_all(request);
    let _ = stream.shutdown(Shutdown::Write);
    read_reply(&mut stream).map_or("closed".to_owned(), |(status, _)| status)
}

fn requests_that_are_too_long_are_refused(engine: &Engine) {
    let world = World::new(engine, &[], |_| ());
    let limits = web::RequestLimits::default();
    let long = |len: usize| "x".repeat(3 * len);
    let line = long(limits.request_line_len_max);
    let field = long(limits.head_len_max);
    let fields = "A: b\r\n".repeat(3 * limits.field_count_max);
    let body_len = 3 * limits.body_len_max;
    let body = long(limits.body_len_max as usize);
    let extension = long(limits.chunk_extensions_len_max);
    let trailers = "A: b\r\n".repeat(limits.trailers_len_max / 2);
    let blank = "\r\n".repeat(3 * limits.blank_lines_max);
    let rest = "HTTP/1.1\r\nHost: x\r\n";
    let chunked = "Transfer-Encoding: chunked\r\n\r\n";
    for (what, request, status) in [
        ("line", format!("GET /{line} {rest}\r\n"), "414"),
        ("head", format!("GET / {rest}A: {field}\r\n\r\n"), "431"),
        ("fields", format!("GET / {rest}{fields}\r\n"), "431"),
        ("body", format!("GET / {rest}Content-Length: {body_len}\r\n\r\n{body}"), "413"),
        ("chunk", format!("GET / {rest}{chunked}{body_len:x}\r\n{body}\r\n0\r\n\r\n"), "413"),
        ("extension", format!("GET / {rest}{chunked}1;{extension}\r\nx\r\n0\r\n\r\n"), "400"),
        ("trailers", format!("GET / {rest}{chunked}0\r\n{trailers}\r\n"), "431"),
        ("blank lines", format!("{blank}GET / {rest}\r\n"), "400"),
    ] {
        let seen = world.crowd(|world| ask(world, request.as_bytes()));
        assert_eq!(seen, all(status), "{what}");
    }
}

fn too_many_ranges_are_answered_with_the_whole(engine: &Engine) {
    let files = [("long.txt".to_owned(), vec![b'x'; 5000])];
    let world = World::new(engine, &files, |_| ());
    for (count, status) in [(256, "206"), (257, "200"), (768, "200")] {
        let ranges: Vec<_> = (0..count).map(|at| format!("{0}-{0}", at * 5)).collect();
        let ranges = ranges.join(",");
        let request = format!("GET /long.txt HTTP/1.1\r\nHost: x\r\nRange: bytes={ranges}\r\n\r\n");
        let seen = world.crowd(|world| ask(world, request.as_bytes()));
        assert_eq!(seen, all(status), "{count} ranges");
    }
}

fn a_path_as_long_as_a_line_may_be_is_looked_up(engine: &Engine) {
    let world = World::new(engine, &[], |_| ());
    for path in ["a/".repeat(4000), "a".repeat(8000), "%61".repeat(2600), "../".repeat(2600)] {
        let request = format!("GET /{path} HTTP/1.1\r\nHost: x\r\n\r\n");
        let expected = if path.starts_with('.') { "400" } else { "404" };
        let seen = world.crowd(|world| ask(world, request.as_bytes()));
        assert_eq!(seen, all(expected), "{}", &path[..6]);
    }
}

/// Each client has one connection for each phase, and waits for all of them at once.
fn slow_clients_end_in_every_phase(engine: &Engine) {
    let timeout = Duration::from_secs(1);
    let world = World::new(engine, &[], |setup| {
        setup.limits.head_timeout = timeout;
        setup.limits.body_timeout = timeout;
        setup.limits.idle_timeout = timeout;
    });
    let head = b"GET / HTTP/1.1\r\nHos";
    let body = b"GET /hello.txt HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nx";
    let seen = world.crowd(|world| {
        let say = |sent: &[u8]| {
            let begun = Instant::now();
            let mut stream = world.connect();
            let is_said = stream.write_all(sent).is_ok();
            // On a busy machine the time-out may pass before the client has sent.
            (is_said && begun.elapsed() < timeout / 2).then_some(stream)
        };
        let silent = |sent: &[u8]| {
            let said = std::iter::repeat_with(|| say(sent)).take(100).find_map(|it| it);
            said.expect("a client that is in time")
        };
        // Silent from the start, within a head, within a body, and after a reply.
        let mut streams = [&b""[..], head, body, GET].map(silent);
        let ended = streams.each_mut().map(|stream| {
            let replies = std::iter::from_fn(|| read_reply(stream));
            replies.map(|(status, _)| status + ", ").collect::<String>() + "closed"
        });
        ended.join("; ")
    });
    assert_eq!(seen, all("closed; 408, closed; 408, closed; 200, closed"));
    for (phase, clients) in [(Phase::Idle, 2), (Phase::Head, 1), (Phase::Body, 1)] {
        world.wait_until("each is counted", |server| {
            server.counters().closed(Closed::TimedOut(phase)) >= clients * 2 * CROWD as u64
        });
    }
}

/// Some clients read nothing of a reply, others a little now and then.
fn clients_that_take_too_little_are_cut(engine: &Engine) {
    const LEN: usize = 30_000_000;
    for (send_timeout_ms, send_rate_min) in [(150, 0), (60_000, u64::from(u32::MAX))] {
        let world = World::new(engine, &[], |setup| {
            setup.limits.send_timeout = Duration::from_millis(send_timeout_ms);
            setup.limits.send_rate_min = send_rate_min;
            setup.limits.send_rate_window = Duration::from_millis(150);
        });
        let large = std::fs::File::create(world.directory.path().join("large.bin")).unwrap();
        large.set_len(LEN as u64).unwrap();
        let cut = |server: &Server| server.counters().closed(Closed::TooSlow) as usize;
        let entered = AtomicUsize::new(0);
        let seen = world.crowd(|world| {
            let crowds = entered.fetch_add(1, Ordering::Relaxed) / CROWD + 1;
            let mut stream = world.connect();
            let large = b"GET /large.bin HTTP/1.1\r\nHost: x\r\n\r\n";
            stream.write_all(large).unwrap();
            let mut taken = 0;
            if send_rate_min > 0 {
                let mut piece = vec![0; 100_000];
                while let Ok(len @ 1..) = stream.read(&mut piece) {
                    taken += len;
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            world.wait_until("all are cut", |server| cut(server) >= crowds * CROWD);
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
            let is_whole = taken + rest.len() >= LEN;
            if is_whole { "whole" } else { "cut" }.to_owned()
        });
        assert_eq!(seen, all("cut"), "{send_timeout_ms} ms, {send_rate_min}/s");
    }
}

fn more_connections_than_fibers_are_served_in_turn(engine: &Engine) {
    let world = World::new(engine, &[], |setup| setup.fibers = Some(CROWD / 3));
    let seen = world.crowd(|world| ask(world, GET));
    assert_eq!(seen, all("200"));
}

/// More than the sockets of both sides hold, so that the server has to wait and stops reading.
fn pipelined_requests_that_are_not_read_wait(engine: &Engine) {
    const REQUESTS: usize = 1500;
    let files = [("page.txt".to_owned(), vec![b'p'; 15_000])];
    let world = World::new(engine, &files, |_| ());
    let begun = AtomicUsize::new(0);
    let seen = world.crowd(|world| {
        let mut stream = world.connect();
        let mut writer = stream.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let page = b"GET /page.txt HTTP/1.1\r\nHost: x\r\n\r\n";
                writer.write_all(&page.repeat(REQUESTS)).unwrap();
            });
            // Reads nothing before all replies have begun.
            stream.peek(&mut [0]).unwrap();
            begun.fetch_add(1, Ordering::Relaxed);
            while !begun.load(Ordering::Relaxed).is_multiple_of(CROWD) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let mut replies = std::io::BufReader::new(&mut stream);
            let mut all = 0;
            let mut line = Vec::new();
            while all < REQUESTS {
                line.clear();
                std::io::BufRead::read_until(&mut replies, b'\n', &mut line).unwrap();
                all += usize::from(line.starts_with(b"HTTP/1.1 200 ") || ends_so(&line));
                assert!(!line.is_empty(), "cut after {all}");
            }
        });
        "all replies".to_owned()
    });
    assert_eq!(seen, all("all replies"));
}

/// A body has no line end, so the next status line follows it directly.
fn ends_so(line: &[u8]) -> bool {
    line.ends_with(b"pHTTP/1.1 200 OK\r\n")
}

fn memory_open_files_and_paths_stay_within_their_budgets(engine: &Engine) {
    let content = |n: usize| vec![b'a' + n as u8; 20_000 + n];
    let files: Vec<_> = (0..24).map(|n| (format!("{n}.bin"), content(n))).collect();
    for in_memory in [true, false] {
        let world = World::new(engine, &files, |setup| {
            setup.site.memory_budget = 180_000;
            setup.site.paths_max = 8;
            setup.site.open_files_max = 8;
            if !in_memory {
                setup.site.memory_file_len_max = 10;
            }
        });
        let seen = world.crowd(|world| {
            let mut stream = world.connect();
            for n in 0..24 {
                let get = format!("GET /{n}.bin HTTP/1.1\r\nHost: x\r\n\r\n");
                stream.write_all(get.as_bytes()).unwrap();
                let (status, body) = read_reply(&mut stream).unwrap();
                if status != "200" || body != content(n) {
                    return format!("{status} for {n}");
                }
                assert!(world.site_count("site_memory_bytes") <= 180_000);
                assert!(world.site_count("site_files_open") <= 8);
                assert!(world.site_count("site_paths") <= 8);
            }
            "all files".to_owned()
        });
        assert_eq!(seen, all("all files"), "in memory: {in_memory}");
    }
}

/// A folder with more than the 10,000 entries that a listing shows, made once for all tests.
static HUGE: LazyLock<PathBuf> = LazyLock::new(|| {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("huge");
    let _ = std::fs::remove_dir_all(&root);
    std::fs::create_dir_all(root.join("huge")).unwrap();
    // File that the neighbour requests.
    std::fs::write(root.join("hello.txt"), "hello\n").unwrap();
    let first = root.join("huge/0");
    std::fs::write(&first, "").unwrap();
    let entries = 1..11_000;
    entries.for_each(|n| std::fs::hard_link(&first, root.join(format!("huge/{n}"))).unwrap());
    root
});

fn a_huge_directory_is_listed_up_to_its_limit(engine: &Engine) {
    let world = World::new(engine, &[], |setup| {
        setup.site.root = HUGE.clone();
        setup.site.listing = true;
    });
    let seen = world.crowd(|world| {
        let mut stream = world.connect();
        let get = "GET /huge/ HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\n\r\n";
        stream.write_all(get.as_bytes()).unwrap();
        let (status, body) = read_reply(&mut stream).unwrap();
        let names = String::from_utf8(body).unwrap().matches("\"name\"").count();
        format!("{status} with {names}")
    });
    assert_eq!(seen, all("200 with 10000"));
}

fn a_log_that_nobody_reads_holds_up_no_request(engine: &Engine) {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("log");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    // Open at both ends, so that the pipe takes lines until it is full.
    let stuck = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
    rustix::pipe::fcntl_setpipe_size(&stuck, 4096).unwrap();
    let queued_len_max = 16 * 1024;
    let world = World::new(engine, &[], |setup| {
        let options = Options { queued_len_max, ..Options::default() };
        setup.log = Some(AccessLog::open(Target::File(pipe), &options, |_| ()).unwrap());
    });
    let log = world.log.as_ref().unwrap();
    let seen = world.crowd(|world| {
        let mut stream = world.connect();
        for _ in 0..60 {
            stream.write_all(GET).unwrap();
            let (status, _) = read_reply(&mut stream).unwrap();
            assert_eq!(status, "200");
        }
        "all replies".to_owned()
    });
    assert_eq!(seen, all("all replies"));
    // 1,440 lines of at least 60 bytes are three times the capacity of queue and pipe.
    assert!(log.lines_dropped() > 0);
}
