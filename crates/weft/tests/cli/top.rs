//! `weft top` with servers of both kinds.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::serving::{ENGINES, Served};
use super::{check, file, refused, run, weft};

/// A running `weft cache`, with sockets in this folder.
struct Cached(Child);

impl Cached {
    fn start(folder: &Path, engine: &[&str]) -> Cached {
        let [socket, admin] = ["cache", "admin"].map(|name| folder.join(name));
        let admin = format!("unix:{}", admin.display());
        let mut command = weft(&["cache", "-v", "-u", &user(), "--admin", &admin, "-s"]);
        let mut child = command.arg(socket).args(engine).stderr(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stderr.take().unwrap()).lines();
        let is_ready = |line: String| line.contains("listening on");
        assert!(said.map_while(Result::ok).any(is_ready));
        Cached(child)
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The user to name: root must name one; other users cannot change to another.
fn user() -> String {
    let uid = rustix::process::geteuid();
    if uid.is_root() { "root".to_owned() } else { uid.as_raw().to_string() }
}

fn top(words: &[&str]) -> String {
    let ran = run(&mut weft(&[&["top", "--interval", "100ms"], words].concat()));
    assert_eq!((ran.code, &*ran.err), (0, ""));
    ran.out
}

fn json(words: &[&str]) -> Value {
    serde_json::from_str(&top(&[words, &["--once", "--json"]].concat())).unwrap()
}

/// The keys that scripts can rely on.
const KEYS: [&str; 28] = [
    "time",
    "target",
    "server",
    "version",
    "uptime_s",
    "interval_s",
    "requests_per_s",
    "received_bytes_per_s",
    "sent_bytes_per_s",
    "latency",
    "results_per_s",
    "hit_ratio",
    "connections_open",
    "connections_lingering",
    "accepted_per_s",
    "closed_per_s",
    "fibers",
    "queues",
    "cpu",
    "cpu_by_thread",
    "resident_bytes",
    "budgets",
    "descriptors_open",
    "descriptors_max",
    "limits_reached",
    "certificates_expire_s",
    "is_reload_failed",
    "paths",
];

fn check_keys(overview: &Value) {
    let keys = overview.as_object().unwrap().keys();
    let keys: BTreeSet<_> = keys.map(String::as_str).collect();
    assert_eq!(keys, BTreeSet::from(KEYS));
}

#[test]
fn every_engine_of_serve_is_watched() {
    for engine in ENGINES {
        let site = tempfile::tempdir().unwrap();
        file(site.path(), "index.html", "hello");
        let (root, admin) = (site.path().display().to_string(), site.path().join("admin"));
        let admin = format!("unix:{}", admin.display());
        let words = [engine, &[&*root, "--admin", &admin]].concat();
        let served = Served::start(&words);
        // An interval contains the requests sent while it lasts.
        let mut watching = weft(&["top", &admin, "--json", "--interval", "100ms"]);
        let mut watching = watching.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(watching.stdout.take().unwrap()).lines();
        let mut seen = [0.0; 2];
        for line in lines.map_while(Result::ok) {
            let overview: Value = serde_json::from_str(&line).unwrap();
            check_keys(&overview);
            assert_eq!(overview["server"], "serve");
            let rate = |value: &Value| value.as_f64().unwrap_or(0.0);
            let of_index = overview["paths"].as_array().unwrap().iter();
            let of_index = of_index.filter(|path| path["path"] == "/index.html");
            seen[0] += rate(&overview["results_per_s"]["4xx"]);
            seen[1] += of_index.map(|path| rate(&path["replies_per_s"])).sum::<f64>();
            if seen.iter().all(|rate| *rate > 0.0) {
                break;
            }
            served.get("/index.html?a=1");
            served.get("/none");
        }
        assert!(seen.iter().all(|rate| *rate > 0.0), "{engine:?}");
        kill_process(Pid::from_child(&watching), Signal::TERM).unwrap();
        watching.wait().unwrap();

        // Without a terminal `weft top` prints once.
        let pid = served.child.id().to_string();
        let text = top(&[&pid]);
        assert!(text.starts_with(&format!("weft serve 0.1.0 at process {pid}, up ")), "{text}");
        assert!(text.contains("\nrequests ") && !text.contains('\x1b'), "{text}");
    }
}

#[test]
fn every_engine_of_a_cache_is_watched() {
    for engine in ENGINES {
        let folder = tempfile::tempdir().unwrap();
        let cached = Cached::start(folder.path(), engine);
        let mut stream = UnixStream::connect(folder.path().join("cache")).unwrap();
        stream.write_all(b"get a\r\n").unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        assert_eq!(line, "END\r\n");
        let overview = json(&[&cached.0.id().to_string()]);
        check_keys(&overview);
        assert_eq!(overview["server"], "cache", "{engine:?}");
        assert_eq!(overview["connections_open"], 1);
        assert_eq!(overview["budgets"][0]["name"], "items");
    }
}

/// A server that ends and comes back is found again.
#[test]
fn restart_is_survived() {
    let site = tempfile::tempdir().unwrap();
    let (root, admin) = (site.path().display().to_string(), site.path().join("admin"));
    let admin = format!("unix:{}", admin.display());
    let start = || Served::start(&[&root, "--admin", &admin]);
    let served = start();
    let mut watching = weft(&["top", &admin, "--json", "--interval", "100ms"]);
    let mut watching = watching.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut lines = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    assert!(lines.by_ref().any(|line| line["server"] == "serve"));
    drop(served);
    let gone = lines.by_ref().find(|line| line.get("error").is_some()).unwrap();
    assert!(gone["target"].as_str().unwrap().starts_with("unix:"), "{gone}");
    let served = start();
    assert!(lines.by_ref().any(|line| line["server"] == "serve"));
    drop((served, lines));
    // `weft top` ends because its output is closed.
    assert!(watching.wait().unwrap().success());
}

#[test]
fn admin_listener_is_found_by_process() {
    let site = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", site.path().join("admin").display());
    let config = file(site.path(), "weft.toml", &format!("admin = '{socket}'\n"));
    let root = site.path().display().to_string();
    let served = Served::start(&[&root, "--config", &config]);
    let overview = json(&[&served.child.id().to_string()]);
    assert_eq!(overview["server"], "serve");

    let without = Served::start(&[&root]);
    let pid = without.child.id().to_string();
    let said = "has no admin listener: start it with --admin 127.0.0.1:9090";
    refused(&format!("top {pid}"), said);
    let chosen = Served::start(&[&root, "--admin", "127.0.0.1:0"]);
    refused(&format!("top {}", chosen.child.id()), "the kernel chose the admin port");
    let own = std::process::id();
    refused(&format!("top {own}"), "not weft serve or weft cache");
    refused("top 4194304", "there is no process 4194304; a port is written :4194304");
}

#[test]
fn what_is_no_admin_listener_is_said() {
    let site = tempfile::tempdir().unwrap();
    let served = Served::start(&[site.path().to_str().unwrap()]);
    let said = "/metrics is answered with 404: is that the address of --admin?";
    check(&mut weft(&["top", &served.address()]), 1, said);
    let url = format!("http://{}/", served.address());
    check(&mut weft(&["top", &url, "--once"]), 1, said);
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    check(&mut weft(&["top", &address, "--json"]), 1, "Connection refused");
    check(&mut weft(&["top", "unix:/nonexistent"]), 1, "No such file");
    refused("top :9090 --interval 1ms", "from 100ms to 1h");
    refused("top nonsense", "say which port");
}
