//! Password files that change while the server runs.

extern crate weftwork_web as web;

use std::sync::Arc;
use std::time::Duration;

use session::replay::queued;
use session::{Next, Now, Outbox, Session as _, work_here};
use web::{Handle, Peer, ServiceConfig, Session, Site, SiteConfig};

/// The password is `pw`.
const ADA: &str = "ada:$6$rounds=1000$hiXj0vyqppGo7OE3$YtVV.s8VzDr.jGwhnthXHynEmzwql0cDsAp3Fo1Y8y0e\
                   dUejDdcc37NfsR6kAnIMaNODy9P4.1LrdMGUfhkI1/";

/// Seen: who was removed from the password file was still let in by requests with a body. Cause:
/// only a first attempt looks at files that are due, and theirs counted as a second.
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
    // All files are old. The entries are not due when the passwords are.
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
