//! A site without free descriptors. Alone in its file, because the limit is per process.

extern crate weftwork_web as web;

use std::fs::{self, File};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use session::replay::{queued, test_now};
use session::{Next, Outbox, Session as _, work_here};
use web::{Handle, ServiceConfig, Session, Site, SiteConfig};

/// Seen: with one or two descriptors left, a directory was listed as empty, and a check of the root
/// that failed for lack of a descriptor was not counted.
#[test]
fn listing_is_whole_or_refused() {
    let root = tempfile::tempdir().unwrap();
    for name in ["one.txt", "two.txt"] {
        fs::write(root.path().join(name), "x").unwrap();
    }
    let config = SiteConfig {
        root: root.path().to_owned(),
        listing: true,
        recheck_every: Duration::ZERO,
        ..SiteConfig::default()
    };
    let site = Arc::new(Site::open(config).unwrap());
    let handle = Arc::new(Handle::new(Arc::clone(&site), ServiceConfig::default()).unwrap());
    let wants = || {
        let mut counters = site.counters();
        counters.find(|(name, ..)| *name == "site_out_of_descriptors_total").unwrap().2
    };

    let limit = Rlimit { current: Some(64), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    for free in 0..8 {
        let wanted_before = wants();
        let reply = get(&handle, "/");
        let is_whole = ["one.txt", "two.txt"].iter().all(|name| reply.contains(name));
        let is_refused = reply.starts_with("HTTP/1.1 503 ");
        assert!(is_whole || is_refused, "{free} descriptors free: {reply}");
        assert_eq!(is_refused, wants() > wanted_before, "{free} descriptors free: {reply}");
        assert_eq!(is_refused, reply.contains("\r\nRetry-After: "), "{reply}");
        assert!(free > 0 || is_refused, "the request needs no descriptor?");
        assert!(free < 7 || is_whole, "the request needs more than seven descriptors?");
        taken.pop();
    }
}

fn get(handle: &Arc<Handle>, path: &str) -> String {
    let peer: std::net::SocketAddr = "192.0.2.7:5000".parse().unwrap();
    let mut session = Session::new(Arc::clone(handle), peer);
    let mut out = Outbox::new();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    let mut received = session.receive(request.as_bytes(), test_now(), &mut out);
    if received.next == Next::Work {
        work_here(&mut session, test_now(), &mut out);
        received = session.receive(&request.as_bytes()[received.used..], test_now(), &mut out);
    }
    assert!(matches!(received.next, Next::Receive(_)), "{received:?}");
    String::from_utf8(queued(&out)).unwrap()
}
