//! Passwords of areas: admission, privacy of replies, and changing password files.

extern crate weftwork_web as web;

use std::sync::Arc;
use std::time::Duration;

use session::replay::{queued, test_now};
use session::{Next, Now, Outbox, Received, Session as _, work_here};
use web::{CacheRule, Handle, Peer, ServiceConfig, Session, Site, SiteConfig};

/// The password is `pw`.
const ADA: &str = "ada:$6$rounds=1000$hiXj0vyqppGo7OE3$YtVV.s8VzDr.jGwhnthXHynEmzwql0cDsAp3Fo1Y8y0e\
                   dUejDdcc37NfsR6kAnIMaNODy9P4.1LrdMGUfhkI1/";

/// Passes `input` to the session and runs its work until it wants something else.
fn receive(session: &mut Session, input: &[u8], out: &mut Outbox) -> Received {
    let mut used = 0;
    loop {
        let received = session.receive(&input[used..], test_now(), out);
        used += received.used;
        match received.next {
            Next::Work => drop(work_here(session, test_now(), out)),
            next => return Received { used, next },
        }
    }
}

/// The text in the outbox.
fn text(out: &Outbox) -> String {
    String::from_utf8(queued(out)).unwrap()
}

/// Seen: a user removed from the password file was still admitted by requests with a body. Cause:
/// only a first attempt checks files that are due, and such a request counted as a second.
#[test]
fn a_removed_user_with_a_body_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("site");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("index.html"), "text").unwrap();
    let users = dir.path().join("users");
    std::fs::write(&users, ADA).unwrap();
    let basic_auth = vec![("**".to_owned(), users.clone())];
    let site = Site::open(SiteConfig { root, basic_auth, ..SiteConfig::default() }).unwrap();
    let handle = Arc::new(Handle::new(Arc::new(site), ServiceConfig::default()).unwrap());
    let request = b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Basic YWRhOnB3\r\n\
                    Content-Length: 1\r\n\r\nx";
    let mut now = Now::read();
    // All files are old. Entries are not due when passwords are.
    now.since_epoch += Duration::from_secs(100);
    for (nth, expected) in ["200", "200", "401"].into_iter().enumerate() {
        let mut session = Session::new(Arc::clone(&handle), Peer::Unix);
        let mut out = Outbox::new();
        let mut used = 0;
        while queued(&out).is_empty() {
            let received = session.receive(&request[used..], now, &mut out);
            used += received.used;
            if received.next == Next::Work {
                work_here(&mut session, now, &mut out);
            }
        }
        assert_eq!(&queued(&out)[9..12], expected.as_bytes());
        if nth == 1 {
            std::fs::write(&users, ADA.replace("ada:", "grace:")).unwrap();
            now.monotonic += Duration::from_millis(600);
        }
    }
}

/// Status with which a site of three areas answers a request with these credentials (Base64).
fn status_in_areas(configure: impl Fn(&mut SiteConfig), target: &str, token: &str) -> String {
    asked_in_areas(configure, target, token).0
}

/// The same, and the log.
fn asked_in_areas(
    configure: impl Fn(&mut SiteConfig),
    target: &str,
    token: &str,
) -> (String, String) {
    let dir = tempfile::tempdir().unwrap();
    let mut config = three_areas(&dir);
    configure(&mut config);
    let site = Arc::new(Site::open(config).unwrap());
    let handle = Arc::new(Handle::new(site, ServiceConfig::default()).unwrap());
    let peer: std::net::SocketAddr = "192.0.2.7:5000".parse().unwrap();
    let mut session = Session::new(handle, peer);
    let request =
        format!("GET {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {token}\r\n\r\n");
    let mut out = Outbox::new();
    out.set_logged(true);
    let mut log = String::new();
    receive(&mut session, request.as_bytes(), &mut out);
    out.take_log(|_| Duration::ZERO, |lines| log.push_str(str::from_utf8(lines).unwrap()));
    (text(&out)[9..12].to_owned(), log)
}

/// A site with areas for admins, and for users a directory and some files.
fn three_areas(dir: &tempfile::TempDir) -> SiteConfig {
    let users = [
        (
            "admins",
            "root:$6$rounds=1000$5PXbVUpN.NcyqHVP$0t6pRTYyOom47glRkKC6.Fc.WoSwxN6IYEVW7fawvHdO9rCHXyZGQDyBUUVYMYjZA53BEn5/XkQSwLAMXf2bf1",
        ),
        (
            "users",
            "ada:$6$rounds=1000$hiXj0vyqppGo7OE3$YtVV.s8VzDr.jGwhnthXHynEmzwql0cDsAp3Fo1Y8y0edUejDdcc37NfsR6kAnIMaNODy9P4.1LrdMGUfhkI1/",
        ),
    ];
    let [admins, users] = users.map(|(name, line)| {
        std::fs::write(dir.path().join(name), line).unwrap();
        dir.path().join(name)
    });
    let root = dir.path().join("site");
    for (path, text) in [
        ("admin/plan.pdf", "plan"),
        ("app/index.html", "app"),
        ("open.css", "css"),
        ("v1.2.html", "page"),
    ] {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    SiteConfig {
        root,
        basic_auth: vec![
            ("/admin/**".into(), admins),
            ("/app/**".into(), users.clone()),
            ("*.html".into(), users),
        ],
        ..SiteConfig::default()
    }
}

/// Seen: a file found before a reload was judged by the rules after it: the number of its area was
/// beyond their list, and protected files were open. Cure: it is looked up again.
#[test]
fn a_reload_in_the_middle_of_a_request() {
    let dir = tempfile::tempdir().unwrap();
    let areas = SiteConfig {
        clean_urls: true,
        memory_budget: 64 << 20,
        memory_file_len_max: 8 << 20,
        ..three_areas(&dir)
    };
    // So long that it is read on a job thread.
    std::fs::write(areas.root.join("v1.2.html"), "x".repeat((1 << 20) + 1)).unwrap();
    let few = |count: usize| {
        let mut config = areas.clone();
        config.basic_auth.truncate(count);
        config
    };
    let mut swapped = areas.clone();
    swapped.basic_auth.swap(0, 2);
    let other_users = SiteConfig {
        basic_auth: vec![("*.html".into(), areas.basic_auth[0].1.clone())],
        ..areas.clone()
    };
    for (before, after, expected) in [
        (few(3), few(1), "200"),
        (few(3), few(0), "200"),
        (few(0), few(3), "200"),
        (few(1), swapped, "200"),
        (few(0), other_users.clone(), "401"),
        (few(3), other_users.clone(), "401"),
        (other_users, few(3), "200"),
    ] {
        let open = |config: &SiteConfig| Arc::new(Site::open(config.clone()).unwrap());
        for works_first in [1, 2] {
            let handle = Handle::new(open(&before), ServiceConfig::default()).unwrap();
            let handle = Arc::new(handle);
            let mut session = Session::new(Arc::clone(&handle), Peer::Unix);
            let request = b"GET /v1.2 HTTP/1.1\r\nHost: x\r\nAuthorization: Basic YWRhOnB3\r\n\r\n";
            let mut out = Outbox::new();
            assert_eq!(session.receive(request, test_now(), &mut out).next, Next::Work);
            let mut has_reloaded = false;
            for nth in 1.. {
                let Some(mut work) = session.take_work() else { break };
                session::Work::run(&mut work, test_now());
                if nth == works_first {
                    has_reloaded = true;
                    handle.reload(open(&after), ServiceConfig::default()).unwrap();
                }
                session.handle_worked(work, test_now(), &mut out);
                session.receive(b"", test_now(), &mut out);
            }
            let told = (&before.basic_auth, &after.basic_auth);
            if has_reloaded {
                assert_eq!(&text(&out)[9..12], expected, "{told:?} {works_first}");
            }
        }
    }
}

/// Seen: shared caches could store the reply that asked for a password, if the file was in an area
/// and its path was not.
#[test]
fn an_area_is_private_by_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let config = SiteConfig {
        spa_fallback: Some("app/index.html".into()),
        cache_rules: vec![CacheRule { glob: "**".into(), value: "public, max-age=9".into() }],
        clean_urls: true,
        ..three_areas(&dir)
    };
    let site = Arc::new(Site::open(config).unwrap());
    let handle = Arc::new(Handle::new(site, ServiceConfig::default()).unwrap());
    for path in ["/app/", "/none", "/v1.2", "/a%2Fb"] {
        let mut out = Outbox::new();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        receive(&mut Session::new(Arc::clone(&handle), Peer::Unix), request.as_bytes(), &mut out);
        assert_eq!(&text(&out)[9..12], "401", "{path}");
        assert_eq!(text(&out).matches("Cache-Control: private").count(), 1, "{}", text(&out));
    }
    // The page behind a right password is not stored either.
    let mut out = Outbox::new();
    let request = b"GET /v1.2 HTTP/1.1\r\nHost: x\r\nAuthorization: Basic YWRhOnB3\r\n\r\n";
    receive(&mut Session::new(handle, Peer::Unix), request, &mut out);
    assert_eq!(&text(&out)[9..12], "200");
    assert!(text(&out).contains("Cache-Control: private, max-age=9\r\n"), "{}", text(&out));
}

/// Seen: a right password was answered with 401 when the client waited with its body.
#[test]
fn a_password_is_verified_before_a_405() {
    let dir = tempfile::tempdir().unwrap();
    let site = Arc::new(Site::open(three_areas(&dir)).unwrap());
    let handle = Arc::new(Handle::new(site, ServiceConfig::default()).unwrap());
    for (token, expected) in [("YWRhOnB3", "405"), ("YWRhOnB4", "401"), ("YWRhOnB3", "405")] {
        let mut session = Session::new(Arc::clone(&handle), Peer::Unix);
        let mut out = Outbox::new();
        let head = format!(
            "POST /app/ HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {token}\r\n\
             Expect: 100-continue\r\nContent-Length: 5\r\n\r\n"
        );
        let received = receive(&mut session, head.as_bytes(), &mut out);
        assert_eq!(&text(&out)[9..12], expected);
        assert!(text(&out).contains("\r\nConnection: close\r\n"));
        assert_eq!(received, Received { used: head.len(), next: Next::Linger });
    }
}

/// Seen: the third field of the log was `-` for every request, where nginx and Apache have the
/// user. A name without the right password is not logged.
#[test]
fn verified_users_are_logged() {
    const ADA: &str = "YWRhOnB3";
    const WRONG: &str = "YWRhOnB4";
    for (target, token, log) in [
        ("/app/index.html", ADA, "192.0.2.7 - ada ["),
        ("/app/index.html", WRONG, "192.0.2.7 - - ["),
        ("/open.css", WRONG, "192.0.2.7 - - ["),
    ] {
        let (status, line) = asked_in_areas(|_| (), target, token);
        assert!(line.starts_with(log), "{target} {status}: {line}");
    }
}

#[test]
fn password_is_for_its_own_area() {
    const ADA: &str = "YWRhOnB3"; // Of the users.
    const ROOT: &str = "cm9vdDp0b29y"; // Of the admins.
    let spa = |config: &mut SiteConfig| {
        config.spa_fallback = Some("app/index.html".into());
    };
    let clean = |config: &mut SiteConfig| config.clean_urls = true;
    let listing = |config: &mut SiteConfig| config.listing = true;
    for (target, token, status) in [
        ("/admin/plan.pdf", ADA, "401"),
        ("/admin/plan.pdf", ROOT, "200"),
        ("/admin/none", ADA, "401"),
        ("/admin/none", ROOT, "401"),
        ("/app/route", ADA, "200"),
        ("/route", ADA, "200"),
        ("/route", ROOT, "401"),
        ("/a%2Fb", ROOT, "401"),
        ("/a%2Fb", ADA, "200"),
        ("/open.css", "", "200"),
    ] {
        assert_eq!(status_in_areas(spa, target, token), status, "{target} {token}");
    }
    // A rule for a page or index file that does not exist must not open the file that answers.
    assert_eq!(status_in_areas(clean, "/admin/plan.pdf", ADA), "401");
    assert_eq!(status_in_areas(listing, "/admin/", ADA), "401");
    // A page whose name has a dot asks; style sheets beside it do not.
    for (target, token, status) in [
        ("/v1.2", "", "401"),
        ("/v1.2", ADA, "200"),
        ("/v1.2.html", "", "401"),
        ("/open.css", "", "200"),
        ("/none", "", "401"),
    ] {
        assert_eq!(status_in_areas(clean, target, token), status, "{target}");
    }
}
