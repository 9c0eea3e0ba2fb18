//! Refusals: their texts and exit codes; and valid settings that must not be refused.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use super::{certificate, check, file, refused, run, weft};

#[test]
fn a_wrong_command_line_exits_with_2_and_suggests() {
    refused("serve --worker 4", "'--workers'");
    refused("serve --engine fibre", "fiber, thread");
    refused("serve --workers 0", "--workers: '0' is not a whole number");
    refused("serve --idle-timeout 10", "such as 500ms, 10s or 1.5m");
    refused("serve --listen 127.0.0.1", "--listen: `127.0.0.1` is not");
    refused(
        "serve --dispatcher lap",
        "--dispatcher is now part of --engine, as in: --engine event:dispatcher=lap",
    );
    refused("cache --io uring", "--io is now part of --engine, as in: --engine fiber:io=uring");
    refused(
        "serve --engine event:io=uring",
        "error: --engine: event has no key 'io'; its keys: dispatcher, fdm-live, fdm-nap,",
    );
    refused("serve a b", "tip: one directory is served");
    refused("cache --engine fibre", "fiber, thread");
    refused("cache --nosuch", "tip: weft cache -h lists the options");
    refused("server", "weft serve DIR");
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
fn a_missing_folder_is_to_be_created() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    let path = format!("{root}/none/file");
    for flag in ["--access-log", "--pid-file"] {
        let words = ["serve", root, "--listen", "127.0.0.1:0", flag, &path];
        check(&mut weft(&words), 1, "create its directory first");
    }
}

#[test]
fn a_port_in_use_exits_with_1_and_names_the_holder() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = holder.local_addr().unwrap().to_string();
    let said = format!("cannot listen at {addr}: the port is in use by");
    check(&mut weft(&["serve", "--listen", &addr]), 1, &said);
}

#[test]
fn a_wrong_file_names_file_line_and_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "weft.toml", "\nworkres = 4\n");
    let said = format!("{path}:2: 'workres' is not a setting; did you mean 'workers'?");
    check(&mut weft(&["serve", "--config", &path]), 2, &said);
    check(&mut weft(&["check-config", &path]), 2, &said);
    check(weft(&["serve"]).env("WEFT_CONFIG", "no.toml"), 2, "WEFT_CONFIG: cannot read 'no.toml'");
}

/// Seen: `--config /dev/zero` read forever, and `--tls-cert /dev/zero` until memory ran out, which
/// gave a backtrace.
#[test]
fn an_endless_file_names_the_limit() {
    const CONFIG: &str = "longer than 8388608 bytes, the most that is read";
    refused("check-config /dev/zero", CONFIG);
    refused("serve --config /dev/zero", CONFIG);
    let tls = "the certificate chain /dev/zero: it is longer than 16777216 bytes";
    refused("serve --tls-cert /dev/zero", tls);
    refused("cache -u nobody -Z -o ssl_chain_cert=/dev/zero", tls);
    let users = "-Y: /dev/zero: it is longer than 65536 bytes";
    refused("cache -u nobody -Y /dev/zero", users);
}

#[test]
fn a_file_that_is_no_text_is_told_at_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weft.toml");
    fs::write(&path, b"root = '.'\nlisten = '\xff'\n").unwrap();
    let said = format!("{}:2: it is not UTF-8, as TOML is", path.display());
    check(weft(&["check-config"]).arg(&path), 2, &said);
    check(weft(&["serve", "--config"]).arg(&path), 2, &said);
}

/// Seen: users of other servers typed `--root`, `--cert`, `--threads`, `-v` and `-D`, and were told
/// to pass them "as a value"; or saw one of clap's guesses next to the correct tip.
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
        ("--log", "--access-log FILE"),
        ("-D", "packaging/systemd"),
        ("--browse", "by --listing"),
        ("--directory-listing", "by --listing"),
        ("--gzip", "FILE.gz"),
        ("--cors", "--config FILE with `cors = …`, or WEFT_CORS"),
        ("--limit-requests", "--config FILE with `limit_requests = …`"),
        ("--memory", "--memory-budget SIZE"),
    ] {
        let said = refused(&format!("serve {typed}"), ours);
        for guess in ["as a value", "similar", "Usage"] {
            assert!(!said.contains(guess), "{typed}: {said}");
        }
    }
    refused("serve --listing true", "a switch takes no value: --listing");
    refused("serve . --listing true", "tip: a switch takes no value: --listing");
    let said = refused("cache --memory 64", "-m MEGABYTES, or --memory-limit");
    assert!(!said.contains("--memory-file"), "{said}");
}

/// Seen: the tip was `--course` for `--concurrency`, and `--rate` for `--latency`; there was none
/// for `--qps` and `-z`.
#[test]
fn other_generators_flags_are_told_ours() {
    for (typed, ours) in [
        ("--concurrency", "tip: connections open at the same time are --connections N, or -c"),
        ("--clients", "--connections N"),
        ("--qps", "--rate N"),
        ("-z", "--duration TIME"),
        ("--latency", "always shown"),
        ("-X", "--method NAME"),
        ("--data", "--body TEXT"),
        ("--script", "--paths FILE"),
        ("--no-tui", "--quiet"),
        ("-L", "counted and not followed"),
        ("-a u:p", "--header 'Authorization: Basic"),
        ("--http-version 2", "--http2"),
        ("--pipeline", "--depth N"),
        ("--insecure", "it needs https://"),
    ] {
        let said = refused(&format!("load http http://127.0.0.1:1/ {typed}"), ours);
        for guess in ["as a value", "similar", "Usage"] {
            assert!(!said.contains(guess), "{typed}: {said}");
        }
    }
    for none in ["-c 0", "--connections 0", "-c 0 --idle 5"] {
        let line = format!("load http http://127.0.0.1:1/ {none}");
        refused(&line, "--connections must be above 0");
    }
    refused(
        "load http http://127.0.0.1:1/ -c 1 -t 2",
        "--connections must be at least --threads (2)",
    );
    refused(
        "load http://127.0.0.1:1/ -n 10",
        "tip: HTTP requests are sent by: weft load http http://127.0.0.1:1/",
    );
    refused("load 127.0.0.1:1", "weft load cache HOST:PORT");
    // Seen: -s, the server in memtier and mutilate, was taken for the script of wrk.
    refused("load cache -s 127.0.0.1", "weft load cache HOST:PORT");
    refused("load -c 10 http://127.0.0.1:1/", "weft load http URL");
    refused("load http http://127.0.0.1:1/ b", "'b' and '127.0.0.1:1' are different hosts");
    // -q is the rate in hey and oha, but --quiet here.
    for line in ["load http -q 100 http://127.0.0.1:1/", "load http http://127.0.0.1:1/ -q 100"] {
        refused(line, "'100' is not a URL; requests per second are --rate 100, or -R 100");
    }
}

/// Seen: for a port without `--listen`, as in `python -m http.server 8080`, the message was that
/// there is no such directory.
#[test]
fn a_port_without_its_flag_is_told_the_flag() {
    let here = "an address has a flag: weft serve DIR --listen 127.0.0.1:8080";
    for port in ["8080", ":8080", "127.0.0.1:8080"] {
        refused(&format!("serve {port}"), here);
        refused(&format!("serve . {port}"), here);
    }
    refused("serve 8080", "or --listen :8080 for every interface");
    refused("serve [::1]:80", "--listen [::1]:80");
    refused("serve site:x", "name the one to serve");
    refused("serve . --workers auto", "1,024; leave it out for the default");
}

/// Seen: `--access-log on` wrote a file named `on`.
#[test]
fn a_log_is_not_switched_on_by_a_word() {
    for word in ["on", "true", "stdout", "json"] {
        let said = format!("--access-log: '{word}' is not a target of a log; write off, - for");
        refused(&format!("serve --access-log {word}"), &said);
    }
}

/// Seen: the tips were "a directory is served by: weft serve stop", and `load` for `reload`.
#[test]
fn words_that_are_no_commands_are_told_ours() {
    for (typed, ours) in [
        ("stop", "SIGTERM stops a server"),
        ("reload", "SIGHUP reloads it"),
        ("start", "weft serve DIR"),
        ("configtest", "weft check-config FILE"),
        ("memcached", "weft cache"),
        ("wrk", "weft load http URL"),
        ("version", "weft --version"),
    ] {
        let said = refused(typed, ours);
        assert!(!said.contains("similar"), "{typed}: {said}");
    }
    for line in ["serve --version", "serve -V", "load http --version", "doctor -V"] {
        refused(line, "tip: weft --version prints it");
    }
    refused("serve help", "weft serve --help");
    let said = refused("help no-such-command", "unrecognized subcommand");
    assert!(!said.contains("is served by"), "{said}");
}

/// Seen: `weft --port 80` and `weft site` gave no tip.
#[test]
fn whoever_forgets_the_command_is_led_to_it() {
    refused("--port 80", "tip: a server is `weft serve DIR`; address and port are one");
    refused("no-such-site", "tip: a directory is served by: weft serve no-such-site");
    refused("tests", "tip: a directory is served by: weft serve tests");
}

#[test]
fn no_mistake_is_told_to_be_passed_as_a_value() {
    for line in [
        "serve --prot 80",
        "serve --browze",
        "load --rate -5",
        "load http http://127.0.0.1:1/ --nosuch",
        "load cache 127.0.0.1:1 --nosuch",
        "cache --nosuch",
        "doctor --nosuch",
        "--nosuch",
        "man --nosuch",
    ] {
        let said = refused(line, "error: unexpected argument");
        assert!(!said.contains("as a value"), "{line}: {said}");
    }
}

/// Seen: `--cache 'max-age=10'` was accepted as a rule for files named `max-age`.
#[test]
fn a_cache_rule_without_a_glob_is_refused() {
    let tip = "--cache: 'max-age' is no glob but part of the value; write GLOB=VALUE, such as \
               '**=max-age=10'";
    check(&mut weft(&["serve", "--cache", "max-age=10"]), 2, tip);
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "weft.toml", "[cache]\n'max-age' = '10'\n");
    check(&mut weft(&["check-config", &path]), 2, ":2: cache: 'max-age' is no glob");
    let refused = ["--header", "./a/*=X-A: b", "--mime-type", "/a/=text/html"];
    for rule in refused.chunks(2) {
        let words = ["serve", rule[0], rule[1]];
        check(&mut weft(&words), 2, &format!("{}: the glob", rule[0]));
    }
}

/// Seen: each run reported one mistake, and mistakes that only a check of the site finds had no
/// file, line and key.
#[test]
fn every_mistake_of_a_file_names_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let text = "workres = 4\nroot = '/no/such/folder'\nserver_header = 'wéft'\n\
                [headers]\n'X-A' = \"a\\nb\"\n[cache]\n'[a' = 'no-cache'\n";
    let path = file(folder.path(), "weft.toml", text);
    let ran = run(&mut weft(&["check-config", &path]));
    assert_eq!(ran.code, 2);
    let places = [":1: ", ":2: root: ", ":3: server_header: ", ":5: headers: ", ":7: cache: "];
    let lines: Vec<_> = ran.err.lines().collect();
    assert_eq!(lines.len(), places.len(), "{}", ran.err);
    for (line, place) in lines.iter().zip(places) {
        assert!(line.starts_with(&format!("error: {path}{place}")), "{}", ran.err);
    }
}

/// Seen: a file with an unknown user was "ok", but the server did not start with it.
#[test]
fn mistakes_are_found_before_the_start() {
    let folder = tempfile::tempdir().unwrap();
    for (text, why) in [
        ("user = 'no-such-user'", ":1: user: there is no user 'no-such-user'"),
        ("user = 'root:no-such-group'", ":1: user: there is no group"),
        // Seen: these were "ok", but the server did not start with them.
        ("listen = [':8081', ':8081']", ":1: listen: :8081 is named twice"),
        ("listen = ':8081'\nadmin = ':8081'", ":2: admin: :8081 is named twice"),
        ("listen = ':8081'\nadmin = '[::1]:8081'", ":2: admin: :8081 and [::1]:8081 overlap"),
        ("port = 80", "'port' is not a setting; address and port are one: listen = "),
        ("dir = '.'", "'dir' is not a setting; the directory is root = "),
        ("autoindex = true", "'autoindex' is not a setting; directories"),
        ("server_name = 'a.org'", "a host is a table: [[host]]"),
        ("[[hosts]]\nnames = 'a.org'", ":1: 'hosts' is not a setting; a host is"),
        ("[host]\nnames = 'a.org'", ":1: 'host' is a list of tables: [[host]]"),
        ("[[host]]\nname = 'a.org'", ":2: 'name' is not a setting; names of a host"),
        ("[[host]]\nnames = '_'", ":2: names: '_': other names"),
        ("index = 'a.html b.html'", ":1: index: 'a.html b.html' is one name"),
        ("cache = '/a/=no-cache'", ":1: cache: the glob '/a/' is a directory's; write '/a/**'"),
        ("header = '/a/=X-A: b'", ":1: header: the glob '/a/' is"),
        ("header = 'x-content-type-options: nosniff'", "replies have nosniff already"),
        ("deny = ''", ":1: deny: the glob is empty; write ** for every path"),
        // Seen: `deny` with addresses, as in nginx, was "ok" but refused no client.
        ("deny = '10.0.0.0/8'", ":1: deny: '10.0.0.0/8' is an address; `deny` has paths"),
        ("deny = ['*.sql', '::1']", ":1: deny: '::1' is an address"),
        ("allow = '10.0.0.0/8'", "'allow' is not a setting; a firewall refuses addresses"),
        ("server_tokens = 'off'", "'server_tokens' is not a setting; server_header = \"off\""),
        ("email = 'ada@example.org'", "'email' is not a setting; acme = "),
        ("pid = 'a.pid'", "'pid' is not a setting; pid_file = "),
        ("sendfile = true", "'sendfile' is not a setting; nothing is to be set: files"),
        ("listen = '443 ssl'", ":1: listen: `443 ssl` is not an address: write one address alone"),
        ("access_log = 'a.log json'", ":1: access_log: 'a.log json' is one file; log_format = "),
        ("deny = '^/x'", ":1: deny: the glob \"^/x\" is wrong: a glob is no regular expression"),
        ("cache = '~* css$=no-cache'", ":1: cache: the glob \"~* css$\" is wrong"),
        ("redirect = '/a=https://$host/a'", ":1: redirect: 'https://$host/a' has a variable"),
        ("https_redirect = ':0'", ":1: https_redirect: `https_redirect` needs a certificate"),
        ("https_redirect = 'unix:/x'", ":1: https_redirect: 'unix:/x' is a Unix socket"),
        ("https_port = 443", ":1: https_port: https_port needs https_redirect"),
        ("https_port = 0\nhttps_redirect = ':80'", ":1: https_port: '0' is not a whole number"),
        ("tls_client_ca = 'x.pem'", ":1: tls_client_ca: `tls_client_ca` needs"),
        (
            "tls_client_auth = 'required'",
            ":1: tls_client_auth: tls_client_auth needs tls_client_ca",
        ),
    ] {
        let path = file(folder.path(), "weft.toml", text);
        check(&mut weft(&["check-config", &path]), 2, why);
        check(&mut weft(&["serve", "--config", &path]), 2, why);
    }
    refused("serve --user no-such-user", "error: --user: there is no user 'no-such-user'");
}

#[test]
fn keys_that_do_not_fit_the_certificates_are_refused() {
    refused(
        "serve --tls-cert a.pem --tls-key a.key --tls-key b.key",
        "error: --tls-cert and --tls-key are given 1 and 2 times",
    );
    refused("serve --tls-key a.key --tls-key b.key", "error: --tls-key needs --tls-cert");
}

/// Seen: `weft cache` reported one mistake a run, and `weft serve` all. Cause: each had its own
/// parser. Cure: one table, one parser.
#[test]
fn every_mistake_of_a_cache_s_flags_is_told_at_once() {
    let words = ["-p", "x", "-c", "0", "-o", "foo,hashpower=1", "-N", "2"];
    let ran = run(weft(&["cache"]).args(words));
    assert_eq!(ran.code, 2, "{}", ran.err);
    let told: Vec<_> = ran.err.lines().collect();
    let told_of = |text: &str| told.iter().any(|line| line.starts_with(&format!("error: {text}")));
    for text in ["-p: 'x'", "-c: '0'", "-o foo: ", "-o hashpower: '1'", "-N: not supported"] {
        assert!(told_of(text), "{text}: {}", ran.err);
    }
    assert_eq!(told.len(), 5, "{}", ran.err);
}

#[test]
fn a_right_file_is_said_to_be_right() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("root = '{}'\nidle_timeout = '5s'\n", folder.path().display());
    let path = file(folder.path(), "weft.toml", &text);
    let ran = run(&mut weft(&["check-config", &path]));
    let served = format!("{path}: warning: the settings file {path} is served");
    assert!(ran.out.starts_with(&served), "{}", ran.out);
    assert!(ran.out.ends_with(&format!("\n{path}: ok\n")), "{}", ran.out);
    fs::create_dir(folder.path().join("a")).unwrap();
    let of_directory = file(folder.path(), ".a.toml", &format!("{text}cache = '/a=no-cache'\n"));
    let ran = run(&mut weft(&["check-config", &of_directory]));
    assert!(ran.out.contains("write '/a/**' for the files in it"), "{}", ran.out);
    // Seen: these were reported as mistakes.
    let text = format!(
        "{text}deny = ['~*', '~*.tmp', '*$', '^*']\nindex = 'my index.html'\n\
         redirect = ['/a=/$metadata', '/b=/c?$filter=x']\n"
    );
    let hidden = file(folder.path(), ".weft.toml", &text);
    let ran = run(&mut weft(&["check-config", &hidden]));
    assert_eq!((ran.code, ran.out), (0, format!("{hidden}: ok\n")));
}

/// Each layer in turn gives an invalid value, so that the message shows which one was read.
#[test]
fn a_flag_goes_before_the_environment_before_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "weft.toml", "workers = 'in file'");
    let config = ["serve", "--config", &path];
    check(&mut weft(&config), 2, "'in file'");
    check(weft(&config).env("WEFT_WORKERS", "in env"), 2, "WEFT_WORKERS: 'in env'");
    let flags = ["serve", "--config", &path, "--workers", "in flag"];
    check(weft(&flags).env("WEFT_WORKERS", "in env"), 2, "--workers: 'in flag'");
}

/// Seen: a wrong flag ended with 0 if the message had no reader (`weft serve --prot 2>&1 | head`).
/// Cause: it was treated as a reader that has seen enough. Cure: a mistake ends with 2.
#[test]
fn a_mistake_fails_though_nobody_reads_stderr() {
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
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let here = text.replace("/usr/share/weft/site", site.path().to_str().unwrap());
    file.write_all(here.as_bytes()).unwrap();
    let ran = run(&mut weft(&["check-config", file.path().to_str().unwrap()]));
    assert_eq!(ran.code, 0, "{}", ran.err);
    // Seen: the example options had no `-l`, so a cache with them listened on every interface.
    for name in ["cache.env", "weft-cache.service"] {
        let text = fs::read_to_string(folder.join(name)).unwrap();
        let options: Vec<&str> = text.lines().filter(|line| line.contains("OPTIONS=")).collect();
        assert!(
            !options.is_empty() && options.iter().all(|line| line.contains("-l 127.0.0.1")),
            "{options:?}"
        );
    }
}

/// Seen: an unreadable key was reported at the line of its certificate; and at its own line as
/// "--tls-key needs --tls-cert".
#[test]
fn a_mistake_in_a_certificate_is_told_once() {
    let folder = tempfile::tempdir().unwrap();
    let cert = file(folder.path(), "cert.pem", &certificate().0);
    let other = file(folder.path(), "other.pem", &certificate().0);
    for (cert, key, more, place) in [
        (&*cert, "none.pem", "", ":2: tls_key: "),
        (&cert, &other, "", ":2: tls_key: "),
        ("none.pem", &other, "", ":1: tls_cert: "),
        (&cert, &cert, "tls_client_ca = 'none.pem'", ":3: tls_client_ca: "),
        ("none.pem", &other, "tls_client_ca = 'none.pem'", ":1: tls_cert: "),
    ] {
        let text = format!("tls_cert = '{cert}'\ntls_key = '{key}'\n{more}\n");
        let path = file(folder.path(), "weft.toml", &text);
        let ran = run(&mut weft(&["check-config", &path]));
        assert_eq!((ran.code, ran.err.lines().count()), (2, 1), "{}", ran.err);
        assert!(ran.err.contains(&format!("{path}{place}")), "{}", ran.err);
    }
}

#[test]
fn mistakes_in_proxies_and_limits_name_their_line() {
    let folder = tempfile::tempdir().unwrap();
    for (line, says) in [
        ("proxy_from = '10.0.0.1/8'", "write 10.0.0.0/8"),
        ("proxy_from = ['10.0.0.0/8', 'proxy.example']", "'proxy.example' is no network"),
        ("proxy_header = 'x-real-ip'", "'x-real-ip' is not one of x-forwarded-for, forwarded"),
        ("proxy_header = 'forwarded'", "proxy_header needs proxy_from"),
        ("limit_requests = '10'", "write 10/s, 600/m"),
        ("limit_connections = 0", "'0' is not a whole number from 1"),
        ("limit_prefix = '24'", "write bits of IPv4 and IPv6: 32,64"),
    ] {
        let path = file(folder.path(), "weft.toml", &format!("\n{line}\n"));
        let ran = run(&mut weft(&["check-config", &path]));
        assert_eq!((ran.code, ran.err.lines().count()), (2, 1), "{}", ran.err);
        assert!(ran.err.contains(&format!("{path}:2: ")), "{}", ran.err);
        assert!(ran.err.contains(says), "{}", ran.err);
    }
}

/// Seen: with 64 descriptors the server started, but answered 503 to the second client.
/// Seen: a password file beneath the root of another host, which asks for no password, was served
/// by that host. Cause: only the host's own root was checked.
#[test]
fn a_secret_that_would_be_served_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for site in ["a", "b", "b/.well-known", "b/.dot", "links"] {
        fs::create_dir(path(site)).unwrap();
    }
    const HASH: &str = "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$\
                        nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4";
    let pem = certificate().0;
    for name in ["b/users", "b/.dot/users", "b/.well-known/users", "users"] {
        fs::write(path(name), format!("ann:{HASH}\n")).unwrap();
    }
    for name in ["b/key.pem", "key.pem"] {
        fs::write(path(name), &pem).unwrap();
    }
    symlink(path("b/users"), path("to-users")).unwrap();
    symlink(path("users"), path("links/users")).unwrap();
    symlink(path("b"), path("to-b")).unwrap();
    let check = |of_a: &str, of_b: &str| {
        let (a, b, links) = (path("a"), path("to-b"), path("links"));
        let text = format!(
            "[[host]]\nnames = 'a'\nroot = '{a}'\n{of_a}\n\
             [[host]]\nnames = 'b'\nroot = '{b}'\n{of_b}\n\
             [[host]]\nnames = 'links'\nroot = '{links}'\nfollow_links = true\n"
        );
        let file = file(folder.path(), "weft.toml", &text);
        run(&mut weft(&["check-config", &file])).err
    };
    let users = |name: &str| format!("basic_auth = ['**={}']", path(name));
    let key = |name: &str| format!("tls_cert = '{0}'\ntls_key = '{0}'", path(name));
    for of_a in [
        users("b/users"),
        users("to-users"),
        users("links/users"),
        users("b/.well-known/users"),
        key("b/key.pem"),
        format!("tls_cert = '{}'", path("b/key.pem")),
    ] {
        let why = check(&of_a, "");
        let line = 3 + of_a.lines().count();
        assert!(why.contains(&format!("weft.toml:{line}: ")), "{of_a}: {why}");
        assert!(why.contains(" would be served: move it out of "), "{why}");
        assert_eq!(why.lines().count(), 1, "{why}");
    }
    let page = format!("error_page = '404={}'", path("users"));
    assert!(check(&users("users"), &page).contains("it is an error page"));
    assert!(check("", &users("b/users")).contains("weft.toml:8: basic_auth: the password file "));
    for (of_a, of_b) in [
        (users("users"), ""),
        (users("b/.dot/users"), ""),
        (users("b/users"), "deny = '/users'"),
        (key("b/key.pem"), "deny = '*.pem'"),
        (format!("tls_cert = '{}'\ntls_key = '{}'", path("b/key.pem"), path("key.pem")), ""),
    ] {
        assert_eq!(check(&of_a, of_b), "", "{of_a}");
    }
    assert!(check(&users("b/.dot/users"), "hidden = true").contains("would be served"));
}

#[test]
fn too_few_open_files_are_refused_with_what_to_raise() {
    let program = env!("CARGO_BIN_EXE_weft");
    let line = format!("ulimit -n 64; exec {program} serve --listen 127.0.0.1:0");
    let mut command = Command::new("sh");
    check(command.args(["-c", &line]), 1, "ulimit -n 1024");
}

#[test]
fn more_connections_than_an_engine_holds() {
    // Nothing can listen at this address, so a command that is not refused fails anyway. RFC 5737
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
fn a_wrong_certificate_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let site = tempfile::tempdir().unwrap();
    let root = site.path().to_str().unwrap();
    let (pem, _) = certificate();
    let cert = file(folder.path(), "cert.pem", &pem);
    let key = file(folder.path(), "key.pem", &certificate().0);
    let serve =
        |words: &[&str]| weft(&[&["serve", root, "--listen", "127.0.0.1:0"], words].concat());
    check(&mut serve(&["--tls-key", &cert]), 2, "--tls-key needs --tls-cert");
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
    let (pem, _) = certificate();
    let (pem, private) = pem.split_at(pem.find("-----BEGIN PRIVATE").unwrap());
    let (cert, key) = (file(folder.path(), "cert.pem", pem), file(folder.path(), "k.pem", private));
    let tickets = file(folder.path(), "tickets", "short");
    let text = format!("tls_cert = '{cert}'\ntls_key = '{key}'\ntls_ticket_keys = '{tickets}'\n");
    let config = file(folder.path(), "weft.toml", &text);
    check(&mut weft(&["check-config", &config]), 2, "weft.toml:3: tls_ticket_keys: ");
    fs::write(&key, "torn").unwrap();
    check(&mut weft(&["check-config", &config]), 2, "weft.toml:2: tls_key: ");
    let config = file(folder.path(), "weft.toml", "tls_client_ca = 'none.pem'\n");
    check(&mut serve(&["--config", &config]), 2, "`tls_client_ca` needs a certificate");
}
