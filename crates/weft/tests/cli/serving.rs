//! A running `weft serve`: what it says, what a reload changes, and how it ends.

use std::fs;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Output, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};

use super::{certificate, file, weft};

/// A running `weft serve` on a port of the kernel's choice.
pub(crate) struct Served {
    pub(crate) child: Child,
    said: Lines<BufReader<ChildStderr>>,
    addr: String,
    addrs: Vec<String>,
}

impl Served {
    pub(crate) fn start(words: &[&str]) -> Served {
        let mut command = weft(&["serve", "--listen", "127.0.0.1:0", "--color", "never"]);
        let mut child = command.args(words).stderr(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut served = Served {
            child,
            said,
            addr: String::new(),
            addrs: Vec::new(),
        };
        let mut lines = served.said.by_ref().map(Result::unwrap);
        let before_limits = lines.by_ref().take_while(|line| !line.contains("limits"));
        let urls = before_limits.filter(|line| line.contains("url "));
        let addrs = urls.map(|url| url.rsplit('/').nth(1).unwrap().to_owned());
        served.addrs = addrs.collect();
        served.addr = served.addrs[0].clone();
        served
    }

    pub(crate) fn address(&self) -> String {
        self.addr.clone()
    }

    /// Waits for a line on standard error.
    fn expect(&mut self, text: &str) -> String {
        let mut lines = self.said.by_ref().map(Result::unwrap);
        lines
            .find(|line| line.contains(text))
            .unwrap_or_else(|| panic!("it never said '{text}'"))
    }

    pub(crate) fn get(&self, path: &str) -> String {
        self.try_get(path).expect("a reply")
    }

    fn try_get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(&self.addr).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).ok()?;
        String::from_utf8(reply)
            .ok()
            .filter(|reply| reply.starts_with("HTTP/"))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) const ENGINES: [&[&str]; 7] = [
    &["--engine", "fiber"],
    &["--engine", "fiber:io=epoll"],
    &["--engine", "thread"],
    &["--engine", "event"],
    &["--engine", "event:dispatcher=poll,accept=distributed"],
    &["--engine", "pipeline"],
    &[
        "--engine",
        "pipeline:read-threads=1,session-threads=1,write-threads=1,queue=1,batch=1,dispatcher=poll",
    ],
];

/// A reload changes hosts as a whole; one with a mistake changes nothing.
#[test]
fn every_engine_serves_hosts() {
    let site = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        fs::create_dir(site.path().join(name)).unwrap();
        file(&site.path().join(name), "index.html", name);
    }
    let root = |name: &str| site.path().join(name).display().to_string();
    let host = |name: &str, root: &str| format!("[[host]]\nnames = ['{name}']\nroot = '{root}'\n");
    for engine in ENGINES {
        let hosts = [host("a", &root("a")), host("*.b", &root("b"))].concat();
        let config = file(site.path(), "hosts.toml", &hosts);
        let mut served = Served::start(&[engine, &["--config", &config]].concat());
        assert!(served.get("/").ends_with("\r\n\r\na"), "{engine:?}");
        assert!(served.get("http://x.b/").ends_with("\r\n\r\nb"));
        assert!(served.get("http://b/").starts_with("HTTP/1.1 421 "));

        fs::write(&config, [&hosts, &*host("A", &root("b"))].concat()).unwrap();
        served.signal(Signal::HUP);
        served.expect("hosts.toml:8: names: 'A' is also a name of the host in line 2");
        fs::write(&config, [&hosts, &*host("c", &root("none"))].concat()).unwrap();
        served.signal(Signal::HUP);
        served.expect("hosts.toml:9: root: there is no directory");
        assert!(served.get("/").ends_with("\r\n\r\na"), "{engine:?}");

        fs::write(&config, host("a", &root("b"))).unwrap();
        served.signal(Signal::HUP);
        served.expect("reloaded");
        assert!(served.get("/").ends_with("\r\n\r\nb"), "{engine:?}");
        assert!(served.get("http://x.b/").starts_with("HTTP/1.1 421 "));
    }
}

#[test]
fn every_engine_serves_reloads_and_drains() {
    for engine in ENGINES {
        let site = tempfile::tempdir().unwrap();
        file(site.path(), "index.html", "hello");
        let config = file(site.path(), "weft.toml", "[headers]\nX-Turn = '0'\n");
        let words = [
            engine,
            &[site.path().to_str().unwrap(), "--config", &config],
        ]
        .concat();
        let mut served = Served::start(&words);
        let reply = served.get("/");
        assert!(
            reply.starts_with("HTTP/1.1 200 OK\r\n"),
            "{engine:?}: {reply}"
        );
        assert!(
            reply.contains("X-Turn: 0\r\n") && reply.ends_with("\r\n\r\nhello"),
            "{reply}"
        );

        fs::write(&config, "workers = 1\n[headers]\nX-Turn = '1'\n").unwrap();
        served.signal(Signal::HUP);
        served.expect("`workers` has changed: restart to apply it");
        served.expect("reloaded");
        assert!(served.get("/").contains("X-Turn: 1\r\n"));

        fs::write(&config, "workres = 1\n").unwrap();
        served.signal(Signal::HUP);
        served.expect("not reloaded");
        assert!(
            served.get("/").contains("X-Turn: 1\r\n"),
            "the old configuration goes on"
        );

        served.signal(Signal::TERM);
        served.expect("stopping");
        assert_eq!(served.child.wait().unwrap().code(), Some(0), "{engine:?}");
    }
}

/// A request inside TLS, by a client that trusts one certificate.
fn get_secure(
    served: &Served,
    trusted: &rustls::pki_types::CertificateDer<'static>,
    path: &str,
) -> std::io::Result<Vec<u8>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let name = "localhost".try_into().unwrap();
    let client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = rustls::StreamOwned::new(client, TcpStream::connect(&served.addr)?);
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    )?;
    let mut reply = Vec::new();
    // Without the server's goodbye this is an error: the reply might have been cut off.
    stream.read_to_end(&mut reply)?;
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    Ok(reply)
}

#[test]
fn every_engine_reloads_its_certificate() {
    for engine in ENGINES {
        let site = tempfile::tempdir().unwrap();
        let big: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
        fs::write(site.path().join("big"), &big).unwrap();
        file(site.path(), "index.html", "hello");
        let (pem, first) = certificate();
        let cert = file(site.path(), ".cert.pem", &pem);
        let root = site.path().to_str().unwrap();
        let mut served = Served::start(&[engine, &[root, "--tls-cert", &cert]].concat());
        let reply = get_secure(&served, &first, "/").unwrap();
        assert!(
            reply.ends_with(b"\r\n\r\nhello"),
            "{engine:?}: {}",
            reply.escape_ascii()
        );
        for _ in 0..2 {
            let reply = get_secure(&served, &first, "/big").unwrap();
            assert!(reply.starts_with(b"HTTP/1.1 200 OK\r\n") && reply.ends_with(&big));
        }
        let reply = served.try_get("/").expect("an answer in the clear");
        assert!(reply.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{reply}");
        assert!(
            reply.contains("HTTPS") && !reply.contains("hello"),
            "{reply}"
        );

        let (pem, second) = certificate();
        fs::write(&cert, pem).unwrap();
        served.signal(Signal::HUP);
        served.expect("reloaded");
        get_secure(&served, &second, "/").unwrap();
        get_secure(&served, &first, "/").unwrap_err();

        fs::write(&cert, "torn").unwrap();
        served.signal(Signal::HUP);
        let why = served.expect("not reloaded");
        assert!(why.contains(".cert.pem has no certificate"), "{why}");
        get_secure(&served, &second, "/").unwrap();

        served.signal(Signal::TERM);
        served.expect("stopping");
        assert_eq!(served.child.wait().unwrap().code(), Some(0), "{engine:?}");
    }
}

#[test]
fn a_reload_follows_hosts_and_certificates() {
    let site = tempfile::tempdir().unwrap();
    file(site.path(), "index.html", "hello");
    let (pem, first) = certificate();
    let cert = file(site.path(), ".first.pem", &pem);
    let settings = format!("tls_cert = '{cert}'\n");
    let config = file(site.path(), ".weft.toml", &settings);
    let mut served = Served::start(&[site.path().to_str().unwrap(), "--config", &config]);
    get_secure(&served, &first, "/").unwrap();

    let (pem, second) = certificate();
    let cert = file(site.path(), ".second.pem", &pem);
    let host = |name: &str, cert: &str| {
        let root = site.path().display();
        format!("{settings}[[host]]\nnames = '{name}'\nroot = '{root}'\ntls_cert = '{cert}'\n")
    };
    let mut reload = |settings: &str, said: Option<&str>| {
        fs::write(&config, settings).unwrap();
        served.signal(Signal::HUP);
        let text = said.map(|said| served.expect(said)).unwrap_or_default();
        served.expect("reloaded");
        let gets = [&first, &second].map(|trusted| get_secure(&served, trusted, "/").is_ok());
        (text, gets)
    };
    let (text, gets) = reload(&host("localhost", "none.pem"), Some("not reloaded"));
    assert!(
        text.contains(".weft.toml:5: tls_cert: cannot read"),
        "{text}"
    );
    assert_eq!(gets, [true, false]);
    let (_, gets) = reload(&host("localhost", &cert), None);
    assert_eq!(gets, [false, true]);
    let (text, gets) = reload(&host("a.test", &cert), Some("warning"));
    assert!(
        text.contains("no certificate is for a.test: clients"),
        "{text}"
    );
    assert_eq!(gets, [true, false]);
    let (text, _) = reload("", Some("warning"));
    assert!(text.contains("`tls-cert` has changed: restart"), "{text}");
}

#[test]
fn every_engine_redirects() {
    for engine in ENGINES {
        let site = tempfile::tempdir().unwrap();
        file(site.path(), "index.html", "hello");
        let (pem, authority) = certificate();
        let cert = file(site.path(), ".cert.pem", &pem);
        let rules = file(
            site.path(),
            ".rules",
            "/old/* /new/:splat 308\n/home / 200\n",
        );
        let settings =
            format!("https_redirect = '127.0.0.1:0'\nhsts = 'max-age=60'\nredirects = '{rules}'\n");
        let config = file(site.path(), ".weft.toml", &settings);
        let root = site.path().to_str().unwrap();
        let words = [root, "--tls-cert", &cert, "--config", &config];
        let mut served = Served::start(&[engine, &words[..]].concat());
        let secure = |served: &Served, path: &str| {
            String::from_utf8(get_secure(served, &authority, path).unwrap()).unwrap()
        };
        let moved = secure(&served, "/old/a?b");
        assert!(
            moved.starts_with("HTTP/1.1 308 Permanent Redirect\r\n"),
            "{moved}"
        );
        assert!(moved.contains("\r\nLocation: /new/a?b\r\n"), "{moved}");
        assert!(moved.contains("\r\nStrict-Transport-Security: max-age=60\r\n"));
        assert!(secure(&served, "/home").ends_with("\r\n\r\nhello"));

        fs::write(&rules, "/a /b\n/old/* /new/:all\n").unwrap();
        served.signal(Signal::HUP);
        let why = served.expect("not reloaded");
        assert!(why.contains(".weft.toml:3: redirects: "), "{why}");
        assert!(why.contains(".rules:2: '/new/:all': the path before it has no ':all'"));
        served.expect("reloaded nevertheless: the certificate");
        assert!(secure(&served, "/old/a?b").contains("\r\nLocation: /new/a?b\r\n"));

        fs::write(&rules, "/old/* /newer/:splat\n").unwrap();
        served.signal(Signal::HUP);
        served.expect("reloaded");
        assert!(secure(&served, "/old/a").contains("\r\nLocation: /newer/a\r\n"));

        let port = served.addr.rsplit(':').next().unwrap().to_owned();
        served.addr = served.addrs[1].clone();
        let plain = served.get("/x?y");
        let location = format!("\r\nLocation: https://a:{port}/x?y\r\n");
        assert!(
            plain.starts_with("HTTP/1.1 301 ") && plain.contains(&location),
            "{plain}"
        );
        assert!(!plain.contains("Strict-Transport"), "{engine:?}");
    }
}

#[test]
fn a_url_is_explained() {
    let site = tempfile::tempdir().unwrap();
    file(site.path(), "index.html", "hello");
    let root = site.path().display();
    let text = format!(
        "https_redirect = ':80'\nlisten = ':443'\n[[host]]\nnames = ['a.org']\nroot = '{root}'\n\
         hsts = 'max-age=9'\ncache = ['*.html=no-cache']\nredirect = ['/old/*=/new/*', '/in=/ 200']\n"
    );
    let config = file(site.path(), ".weft.toml", &text);
    let explain = |url: &str| {
        let ran = weft(&["check-config", &config, "--explain", url])
            .output()
            .unwrap();
        String::from_utf8([ran.stdout, ran.stderr].concat()).unwrap()
    };
    let index = format!("file   {root}/index.html\nreply  HTTP/1.1 200 OK\n");
    for (url, lines) in [
        (
            "https://a.org",
            &[
                "host   a.org\n",
                &index,
                "Cache-Control: no-cache\n",
                "max-age=9\n",
            ][..],
        ),
        ("https://A.org/in?x", &["rule   /in to / (200)\n", &index]),
        (
            "https://a.org/old/b?c",
            &["rule   /old/* to /new/b (301)\n", " Location: /new/b?c\n"],
        ),
        (
            "http://a.org/b",
            &["host   a.org\n", " Location: https://a.org/b\n"],
        ),
        (
            "https://b.org/",
            &["host   none has this name\nreply  HTTP/1.1 421 "],
        ),
        ("https://a.org/none", &["reply  HTTP/1.1 404 Not Found\n"]),
        ("a.org", &["--explain: 'a.org' is not a URL"]),
        ("https://a b/", &["is not a URL"]),
    ] {
        let text = explain(url);
        for line in lines {
            assert!(text.contains(line), "{url}: {line}\n{text}");
        }
    }
    assert!(!explain("https://a.org/none").contains("file "));
}

/// Seen: the key was root's alone and the server another user's, so every SIGHUP failed, and the
/// log went on in the file that logrotate had moved away. Cause: the log came last, after what can
/// fail. Cure: it comes first.
#[test]
fn a_reload_that_fails_still_opens_the_log_anew() {
    let folder = tempfile::tempdir().unwrap();
    let cert = file(folder.path(), ".cert.pem", &certificate().0);
    let config = file(folder.path(), "weft.toml", "");
    let (log, moved) = (folder.path().join("log"), folder.path().join("log.1"));
    let root = folder.path().to_str().unwrap();
    let words = ["--tls-cert", &cert, "--access-log", log.to_str().unwrap()];
    let mut served = Served::start(&[&[root, "--config", &config], &words[..]].concat());
    for (broken, text) in [(&config, "workres = 1\n"), (&cert, "torn")] {
        fs::write(&config, "").unwrap();
        fs::write(broken, text).unwrap();
        fs::rename(&log, &moved).unwrap();
        served.signal(Signal::HUP);
        served.expect("not reloaded");
        assert!(log.exists(), "with a mistake in {broken}");
    }
    // The log is no reason to keep an old configuration either.
    fs::write(&cert, certificate().0).unwrap();
    fs::remove_file(&log).unwrap();
    fs::create_dir(&log).unwrap();
    served.signal(Signal::HUP);
    served.expect("cannot open the log");
    let said = served.expect("reloaded");
    assert!(!said.contains("not reloaded"), "{said}");
}

/// Seen: a mistake in weft.toml kept a new certificate away, which then expired.
#[test]
fn a_wrong_configuration_reloads_certificates() {
    let folder = tempfile::tempdir().unwrap();
    file(folder.path(), "index.html", "hello");
    let cert = file(folder.path(), ".cert.pem", &certificate().0);
    let config = file(folder.path(), ".weft.toml", "");
    let root = folder.path().to_str().unwrap();
    let mut served = Served::start(&[root, "--config", &config, "--tls-cert", &cert]);
    let (pem, second) = certificate();
    fs::write(&cert, pem).unwrap();
    fs::write(&config, "workres = 1\n").unwrap();
    served.signal(Signal::HUP);
    served.expect("not reloaded");
    served.expect("reloaded nevertheless: the certificate");
    get_secure(&served, &second, "/").unwrap();
}

/// Seen: at a reload the mistake was told without file, line and key, unlike at the start.
#[test]
fn a_mistake_at_a_reload_is_told_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    file(folder.path(), "index.html", "hello");
    let root = folder.path().to_str().unwrap();
    let right = format!("root = '{root}'\n");
    let config = file(folder.path(), ".weft.toml", &right);
    let mut served = Served::start(&["--config", &config]);
    for (text, place) in [
        (
            "root = '/no/such/folder'\n".to_owned(),
            ":1: root: there is no directory",
        ),
        (format!("{right}spa = 'no.html'\n"), ":2: spa: "),
    ] {
        fs::write(&config, text).unwrap();
        served.signal(Signal::HUP);
        served.expect(&format!("not reloaded: {config}{place}"));
    }
    fs::write(&config, &right).unwrap();
    served.signal(Signal::HUP);
    served.expect("reloaded");
}

#[test]
fn the_start_says_what_the_server_runs_on() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    let words = ["--listen", "127.0.0.1:0", "--engine", "fiber:io=epoll"];
    let mut command = weft(&[&["serve", root], &words[..]].concat());
    let mut child = command
        .args(["--workers", "1"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stderr.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let lines: Vec<_> = said.take(4).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        lines[0].contains("serving") && lines[0].ends_with(root),
        "{lines:?}"
    );
    assert!(lines[1].contains("url      http://127.0.0.1:"), "{lines:?}");
    assert!(
        lines[2].contains("engine   fibers on 1 processor, epoll, as asked for"),
        "{lines:?}"
    );
    assert!(
        lines[3].contains("connections") && lines[3].contains("MiB"),
        "{lines:?}"
    );
}

#[test]
fn a_quiet_server_says_nothing_and_writes_its_pid() {
    let folder = tempfile::tempdir().unwrap();
    let pid_file = folder.path().join("pid");
    let root = folder.path().to_str().unwrap();
    let socket = format!("unix:{root}/socket");
    let mut command = weft(&["serve", root, "--quiet", "--listen", &socket, "--pid-file"]);
    let child = command
        .arg(&pid_file)
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let started = || std::os::unix::net::UnixStream::connect(&socket[5..]).is_ok();
    while !started() {
        std::thread::yield_now();
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let pid = child.id();
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().unwrap();
    assert_eq!((status.code(), stdout.len()), (Some(0), 0), "process {pid}");
    assert_eq!(String::from_utf8(stderr).unwrap(), "");
    assert!(
        !pid_file.exists() && !Path::new(&socket[5..]).exists(),
        "nothing is left behind"
    );
}
