//! The command as people and scripts meet it: what it prints, and how it exits.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};

fn weft(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(words);
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("WEFT_") {
            command.env_remove(variable);
        }
    }
    command
}

struct Ran {
    code: i32,
    out: String,
    err: String,
}

fn run(command: &mut Command) -> Ran {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    Ran {
        code: status.code().expect("an exit code, not a signal"),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    }
}

#[track_caller]
fn check(command: &mut Command, code: i32, in_err: &str) {
    let ran = run(command);
    assert_eq!(ran.code, code, "{}", ran.err);
    assert!(ran.err.contains(in_err), "{}", ran.err);
    assert_eq!(ran.out, "", "an error does not belong on standard output");
}

/// The command line is refused with exit code 2 and a message that has `said`. No word has a space.
#[track_caller]
fn refused(words: &str, said: &str) {
    let words: Vec<_> = words.split(' ').collect();
    check(&mut weft(&words), 2, said);
}

fn file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn short_and_long_help_have_every_heading_and_the_long_one_examples() {
    let short = run(&mut weft(&["serve", "-h"])).out;
    let long = run(&mut weft(&["serve", "--help"])).out;
    for heading in [
        "Listening:",
        "Engine:",
        "Site:",
        "Replies:",
        "Limits and time-outs:",
    ] {
        assert!(
            short.contains(heading) && long.contains(heading),
            "{heading}"
        );
    }
    for flag in [
        "--listen",
        "--engine",
        "--io",
        "--workers",
        "--fibers",
        "--access-log",
    ] {
        assert!(short.contains(flag) && long.contains(flag), "{flag}");
    }
    assert!(long.contains("Examples:") && long.contains("Exit status:") && long.contains("SIGHUP"));
    assert!(
        long.contains("[key: access_log] [env: WEFT_ACCESS_LOG]"),
        "{long}"
    );
    assert!(short.len() < long.len() / 2, "the short help is short");
}

#[test]
fn the_version_is_said() {
    let ran = run(&mut weft(&["--version"]));
    assert_eq!(
        (ran.code, ran.out),
        (0, format!("weft {}\n", env!("CARGO_PKG_VERSION")))
    );
}

#[test]
fn a_wrong_command_line_exits_with_2_and_suggests() {
    refused("serve --worker 4", "'--workers'");
    refused("serve --engine fibre", "fiber, thread");
    refused("serve --workers 0", "--workers: '0' is not a whole number");
    refused("serve --idle-timeout 10", "such as 500ms, 10s or 2m");
    refused("serve --listen 127.0.0.1", "--listen: `127.0.0.1` is not");
    refused(
        "serve --dispatcher lap",
        "error: --dispatcher: no effect with --engine fiber: it is for --engine event or pipeline",
    );
    refused(
        "serve --engine event --io uring",
        "error: --io: no effect with --engine event: it is for --engine fiber",
    );
    refused("cache --engine fibre", "fiber, thread");
    refused("server", "'serve'");
    refused("man nothing", "no command 'nothing'");
}

#[test]
fn a_root_that_is_not_there_exits_with_2_and_names_it() {
    refused("serve no/such/folder", "no directory 'no/such/folder'");
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "page.html", "");
    check(&mut weft(&["serve", &path]), 2, "is a file");
}

#[test]
fn a_port_in_use_exits_with_1_and_names_the_holder() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = holder.local_addr().unwrap().to_string();
    let said = format!("cannot listen at {addr}: the port is in use by");
    check(&mut weft(&["serve", "--listen", &addr]), 1, &said);
}

#[test]
fn a_wrong_file_exits_with_2_and_names_file_line_and_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "weft.toml", "\nworkres = 4\n");
    let said = format!("{path}:2: 'workres' is not a setting; did you mean 'workers'?");
    check(&mut weft(&["serve", "--config", &path]), 2, &said);
    check(&mut weft(&["check-config", &path]), 2, &said);
    check(
        weft(&["serve"]).env("WEFT_CONFIG", "no.toml"),
        2,
        "WEFT_CONFIG: cannot read 'no.toml'",
    );
}

/// Seen: users of other servers typed `--root`, `--cert`, `--threads`, `-v` and `-D`, and were told
/// to pass them "as a value".
#[test]
fn other_servers_flags_are_told_ours() {
    for (typed, ours) in [
        ("-p", "tip: address and port are one: --listen"),
        ("--port", "tip: address and port are one: --listen"),
        ("--bind", "tip: address and port are one: --listen"),
        ("--root", "weft serve DIR"),
        ("-d", "weft serve DIR"),
        ("--cert", "--tls-cert FILE --tls-key FILE"),
        ("--threads", "--workers N"),
        ("-v", "--access-log FILE"),
        ("-D", "packaging/systemd"),
    ] {
        refused(&format!("serve {typed}"), ours);
    }
}

/// Seen: one mistake was told for each run, and what only a look at the site finds was told without
/// file, line and key.
#[test]
fn every_mistake_of_a_file_is_told_at_once_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let text = "workres = 4\nroot = '/no/such/folder'\nserver_name = 'wéft'\n\
                [headers]\n'X-A' = \"a\\nb\"\n[cache]\n'[a' = 'no-cache'\n";
    let path = file(folder.path(), "weft.toml", text);
    let ran = run(&mut weft(&["check-config", &path]));
    assert_eq!(ran.code, 2);
    let places = [
        ":1: ",
        ":2: root: ",
        ":3: server_name: ",
        ":5: headers: ",
        ":7: cache: ",
    ];
    let lines: Vec<_> = ran.err.lines().collect();
    assert_eq!(lines.len(), places.len(), "{}", ran.err);
    for (line, place) in lines.iter().zip(places) {
        assert!(
            line.starts_with(&format!("error: {path}{place}")),
            "{}",
            ran.err
        );
    }
}

/// Seen: a file with a user that does not exist was "ok", and the server did not start with it.
#[test]
fn what_keeps_the_server_from_starting_is_found_before() {
    let folder = tempfile::tempdir().unwrap();
    for (text, why) in [
        (
            "user = 'no-such-user'",
            ":1: user: there is no user 'no-such-user'",
        ),
        ("user = 'root:no-such-group'", ":1: user: there is no group"),
        (
            "port = 80",
            "'port' is not a setting; address and port are one: listen = ",
        ),
        (
            "dir = '.'",
            "'dir' is not a setting; the directory is root = ",
        ),
    ] {
        let path = file(folder.path(), "weft.toml", text);
        check(&mut weft(&["check-config", &path]), 2, why);
        check(&mut weft(&["serve", "--config", &path]), 2, why);
    }
    refused(
        "serve --user no-such-user",
        "error: --user: there is no user 'no-such-user'",
    );
}

#[test]
fn keys_that_do_not_fit_the_certificates_are_refused() {
    refused(
        "serve --tls-cert a.pem --tls-key a.key --tls-key b.key",
        "error: --tls-cert and --tls-key are given 1 and 2 times",
    );
    refused(
        "serve --tls-key a.key --tls-key b.key",
        "error: --tls-key needs --tls-cert",
    );
}

/// Seen: `weft cache` told of one mistake for each run, and `weft serve` of all. Cause: each had a
/// parser of its own. Cure: one table, one parser.
#[test]
fn every_mistake_of_a_cache_s_flags_is_told_at_once() {
    let words = ["-p", "x", "-c", "0", "-o", "foo,hashpower=1", "-N", "2"];
    let ran = run(weft(&["cache"]).args(words));
    assert_eq!(ran.code, 2, "{}", ran.err);
    let told: Vec<_> = ran.err.lines().collect();
    let told_of = |text: &str| {
        told.iter()
            .any(|line| line.starts_with(&format!("error: {text}")))
    };
    for text in [
        "-p: 'x'",
        "-c: '0'",
        "-o foo: ",
        "-o hashpower: '1'",
        "-N is not supported",
    ] {
        assert!(told_of(text), "{text}: {}", ran.err);
    }
    assert_eq!(told.len(), 5, "{}", ran.err);
}

#[test]
fn a_right_file_is_said_to_be_right() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "root = '{}'\nidle_timeout = '5s'\n",
        folder.path().display()
    );
    let path = file(folder.path(), "weft.toml", &text);
    let ran = run(&mut weft(&["check-config", &path]));
    assert_eq!((ran.code, ran.out), (0, format!("{path}: ok\n")));
}

/// Each layer in turn gives a value that cannot be read, so that the message tells which one was
/// asked.
#[test]
fn a_flag_goes_before_the_environment_before_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "weft.toml", "workers = 'in file'");
    let config = ["serve", "--config", &path];
    check(&mut weft(&config), 2, "'in file'");
    check(
        weft(&config).env("WEFT_WORKERS", "in env"),
        2,
        "WEFT_WORKERS: 'in env'",
    );
    let flags = ["serve", "--config", &path, "--workers", "in flag"];
    check(
        weft(&flags).env("WEFT_WORKERS", "in env"),
        2,
        "--workers: 'in flag'",
    );
}

#[test]
fn every_shell_gets_completions_of_every_flag() {
    for shell in ["bash", "zsh", "fish", "elvish"] {
        let ran = run(&mut weft(&["completions", shell]));
        assert_eq!(ran.code, 0);
        assert!(ran.out.contains("memory-budget"), "{shell}");
    }
    refused("completions sea", "bash");
}

#[test]
fn manual_pages_are_printed_and_written() {
    let page = run(&mut weft(&["man", "serve"]));
    assert_eq!(page.code, 0);
    assert!(page.out.contains(".TH WEFT-SERVE 1"), "{}", page.out);
    let folder = tempfile::tempdir().unwrap();
    let all = run(&mut weft(&[
        "man",
        "--dir",
        folder.path().to_str().unwrap(),
    ]));
    assert_eq!(
        all.out.lines().count(),
        fs::read_dir(folder.path()).unwrap().count()
    );
    assert_eq!(
        fs::read_to_string(folder.path().join("weft-serve.1")).unwrap(),
        page.out
    );
}

/// Seen: `weft help`, `weft help serve` and `weft version` were unknown commands, with no hint.
#[test]
fn help_is_a_command_and_version_is_pointed_to_its_flag() {
    for words in [
        &["help"][..],
        &["help", "load", "http"],
        &["load", "help", "http"],
    ] {
        let ran = run(&mut weft(words));
        assert_eq!(ran.code, 0, "{words:?}: {}", ran.err);
        assert!(ran.out.contains("Usage: weft"), "{words:?}: {}", ran.out);
    }
    let long = run(&mut weft(&["serve", "--help"])).out;
    assert_eq!(run(&mut weft(&["help", "serve"])).out, long);
    refused("version", "weft --version");
    let page = run(&mut weft(&["man", "load", "http"])).out;
    assert!(page.contains(".TH WEFT-LOAD-HTTP 1"), "{page}");
    for spelled in ["load http", "load-http"] {
        assert_eq!(run(&mut weft(&["man", spelled])).out, page);
    }
    refused("man load nothing", "no command 'load nothing'");
}

/// Seen: an unknown experiment got a list of 25 names, none at all no hint; `lab report --out DIR`
/// was refused although `lab run` writes there by that flag; "tokio, may  built with cargo" read as
/// if they were built already.
#[test]
fn the_lab_says_how_to_go_on() {
    refused("lab run", "weft lab list");
    refused(
        "lab run rt-yeild",
        "no experiment is called 'rt-yeild'; did you mean rt-yield?",
    );
    refused("lab list zzzzzz", "weft lab list names them");
    refused(
        "lab compare no such",
        "there is neither a build of weft nor a folder of results at 'no'",
    );
    // Seen: the column was as wide as most names, and longer ones pushed their words to the right.
    let list = run(&mut weft(&["lab", "list"])).out;
    let column = |line: &str| line.len() - line.split_once(' ').unwrap().1.trim_start().len();
    let columns: BTreeSet<_> = list.lines().map(column).collect();
    assert_eq!(columns.len(), 1, "{list}");
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().to_str().unwrap();
    for words in ["lab report", "lab report --out"] {
        refused(
            &format!("{words} {results}"),
            &format!("there are no samples in {results}"),
        );
    }
    // Seen: "there are no samples …: weft lab run makes them", of weft lab run; and after an
    // earlier run in the same folder the old report and exit code 0.
    check(
        &mut weft(&[
            "lab",
            "run",
            "file-table",
            "--cells",
            "no such",
            "--out",
            results,
        ]),
        2,
        "nothing was measured",
    );
    let servers = run(&mut weft(&["lab", "servers"])).out;
    for line in servers.lines().filter(|line| line.contains("built")) {
        assert!(line.contains("built at the first run, with") || line.contains("not built"));
    }
    assert_eq!(servers.matches(" built").count(), 2, "{servers}");
}

#[test]
fn the_doctor_speaks_json() {
    let ran = run(&mut weft(&["doctor", "--json"]));
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let named = |name: &str| findings.iter().any(|finding| finding["name"] == name);
    assert!(
        named("io_uring") && named("open files") && named("accept queue"),
        "{report}"
    );
    let is_bad = findings.iter().any(|finding| finding["verdict"] == "bad");
    assert_eq!(ran.code, i32::from(is_bad));
    for finding in findings.iter().filter(|finding| finding["verdict"] != "ok") {
        assert!(finding["advice"].is_string(), "{finding}");
    }
}

#[test]
fn the_doctor_colours_only_when_asked_or_on_a_terminal() {
    assert!(!run(&mut weft(&["doctor"])).out.contains('\x1b'));
    assert!(
        run(&mut weft(&["doctor", "--color", "always"]))
            .out
            .contains("\x1b[32mok")
    );
}

#[test]
fn a_reader_who_has_seen_enough_is_no_failure() {
    let mut child = weft(&["completions", "zsh"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Seen: a wrong flag ended with 0 if what read the message had gone (`weft serve --prot 2>&1 |
/// head`). Cause: that was taken for a reader who has seen enough. Cure: a mistake stays one.
#[test]
fn a_mistake_is_no_success_although_its_message_is_not_read() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut child = weft(&["serve", "--prot"]).stderr(writer).spawn().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(2));
}

#[test]
fn the_packaged_configuration_is_right() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    let text = fs::read_to_string(folder.join("serve.toml")).unwrap();
    let site = tempfile::tempdir().unwrap();
    fs::write(site.path().join("404.html"), "not here").unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let here = text.replace("/srv/www", site.path().to_str().unwrap());
    file.write_all(here.as_bytes()).unwrap();
    let ran = run(&mut weft(&["check-config", file.path().to_str().unwrap()]));
    assert_eq!(ran.code, 0, "{}", ran.err);
}

/// A running `weft serve` on a port of the kernel's choice.
struct Served {
    child: Child,
    said: Lines<BufReader<ChildStderr>>,
    addr: String,
}

impl Served {
    fn start(words: &[&str]) -> Served {
        let mut command = weft(&["serve", "--listen", "127.0.0.1:0", "--color", "never"]);
        let mut child = command.args(words).stderr(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut served = Served {
            child,
            said,
            addr: String::new(),
        };
        let url = served.expect("url ");
        served.addr = url.rsplit('/').nth(1).unwrap().to_owned();
        served.expect("limits");
        served
    }

    /// Waits for a line on standard error.
    fn expect(&mut self, text: &str) -> String {
        let mut lines = self.said.by_ref().map(Result::unwrap);
        lines
            .find(|line| line.contains(text))
            .unwrap_or_else(|| panic!("it never said '{text}'"))
    }

    fn get(&self, path: &str) -> String {
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

const ENGINES: [&[&str]; 7] = [
    &["--engine", "fiber"],
    &["--engine", "fiber", "--io", "epoll"],
    &["--engine", "thread"],
    &["--engine", "event"],
    &[
        "--engine",
        "event",
        "--dispatcher",
        "poll",
        "--accept",
        "dealt",
    ],
    &["--engine", "pipeline"],
    &[
        "--engine",
        "pipeline",
        "--stage-threads",
        "read=1,session=1,write=1",
        "--stage-queue",
        "1",
        "--stage-batch",
        "1",
        "--dispatcher",
        "poll",
    ],
];

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
        served.expect("`workers` has changed, which only a restart applies");
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

/// A certificate for `localhost` that signs itself, and its key, as one PEM file.
fn certificate() -> (String, rustls::pki_types::CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let pem = made.cert.pem() + &made.signing_key.serialize_pem();
    (pem, made.cert.der().clone())
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
fn every_engine_serves_https_and_reads_its_certificate_anew() {
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

/// Seen: the key was root's alone and the server another user's, so every SIGHUP failed, and the
/// log went on in the file that logrotate had moved away. Cause: the log came last, after what can
/// fail. Cure: it comes first.
#[test]
fn a_reload_that_fails_still_opens_the_log_anew() {
    let folder = tempfile::tempdir().unwrap();
    let cert = file(folder.path(), "cert.pem", &certificate().0);
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
fn a_mistake_in_the_configuration_keeps_no_certificate_away() {
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
    served.expect("reloaded all the same: the certificate");
    get_secure(&served, &second, "/").unwrap();
}

/// Seen: a key that could not be read was told at the line of its certificate; and at its own that
/// "--tls-key needs --tls-cert".
#[test]
fn a_mistake_in_a_certificate_or_its_key_is_told_once_at_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let cert = file(folder.path(), "cert.pem", &certificate().0);
    let other = file(folder.path(), "other.pem", &certificate().0);
    for (cert, key, place) in [
        (&*cert, "none.pem", ":2: tls_key: "),
        (&cert, &other, ":2: tls_key: "),
        ("none.pem", &other, ":1: tls_cert: "),
    ] {
        let text = format!("tls_cert = '{cert}'\ntls_key = '{key}'\n");
        let path = file(folder.path(), "weft.toml", &text);
        let ran = run(&mut weft(&["check-config", &path]));
        assert_eq!((ran.code, ran.err.lines().count()), (2, 1), "{}", ran.err);
        assert!(ran.err.contains(&format!("{path}{place}")), "{}", ran.err);
    }
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

/// Seen: with 64 descriptors the server started, and answered 503 to the second client.
#[test]
fn too_few_open_files_are_refused_with_what_to_raise() {
    let program = env!("CARGO_BIN_EXE_weft");
    let line = format!("ulimit -n 64; exec {program} serve --listen 127.0.0.1:0");
    let mut command = Command::new("sh");
    check(command.args(["-c", &line]), 1, "ulimit -n 1024");
}

#[test]
fn more_connections_than_the_engine_holds_exit_with_2_and_name_the_flag() {
    // Nothing can listen at this address, so what is not refused fails otherwise. RFC 5737
    let [serve, cache] = [
        "serve --engine thread --max-connections 10000 --listen 192.0.2.1:80",
        "cache --engine=thread -c 10000 -u root -l 192.0.2.1",
    ]
    .map(|line| line.split(' ').collect::<Vec<_>>());
    let held = |flag: &str| format!("{flag} 10,000: --engine thread holds ");
    check(&mut weft(&serve), 2, &held("--max-connections"));
    check(&mut weft(&cache), 2, &held("-c"));
}

#[test]
fn what_is_wrong_with_a_certificate_exits_with_2_and_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    let (pem, _) = certificate();
    let cert = file(folder.path(), "cert.pem", &pem);
    let key = file(folder.path(), "key.pem", &certificate().0);
    let serve =
        |words: &[&str]| weft(&[&["serve", root, "--listen", "127.0.0.1:0"], words].concat());
    check(
        &mut serve(&["--tls-key", &cert]),
        2,
        "--tls-key needs --tls-cert",
    );
    check(&mut serve(&["--tls-cert", "none.pem"]), 2, "none.pem");
    check(
        &mut serve(&["--tls-cert", &cert, "--tls-key", &key]),
        2,
        &format!("the certificate {cert} and the key {key} do not belong together"),
    );
    let alone = certificate().0;
    let alone = alone.split("-----BEGIN PRIVATE").next().unwrap();
    let alone = file(folder.path(), "alone.pem", alone);
    check(
        &mut serve(&["--tls-cert", &alone]),
        2,
        &format!("{alone} holds no private key: add --tls-key FILE"),
    );
    let config = file(folder.path(), "weft.toml", "tls_cert = 'none.pem'\n");
    check(&mut weft(&["check-config", &config]), 2, "none.pem");
}

#[test]
fn the_start_says_what_the_server_runs_on() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    let mut command = weft(&["serve", root, "--listen", "127.0.0.1:0", "--io", "epoll"]);
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
    assert!(lines[1].contains("url     http://127.0.0.1:"), "{lines:?}");
    assert!(
        lines[2].contains("engine  fibers on 1 processor, epoll, as asked for"),
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
