//! Cost of a request: nanoseconds from its bytes to its reply in the outbox, without any I/O.
//!
//! ```text
//! cargo run --release -p weftwork-web --example request_cost [-- NAME]
//! ```
//!
//! Each line is the fastest of several rounds; slower rounds were disturbed by other processes.

extern crate weftwork_web as web;

#[path = "../tests/transcript/mod.rs"]
mod transcript;

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use session::{Networks, Next, Now, Outbox, Phase, PrefixLen, Session as _, work_here};
use web::{
    Handle, Hosts, Peer, RateLimit, RedirectRule, Redirects, ServiceConfig, Session, Site,
    SiteConfig, VirtualHost,
};

const ROUNDS: usize = 50;
const REQUESTS: usize = 20_000;

const WRK: &str = "GET /hello.txt HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n";

const BROWSER: &str = "GET /hello.txt HTTP/1.1\r\nHost: www.example.org\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8\r\n\
    Accept-Language: en-US,en;q=0.5\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n\
    Connection: keep-alive\r\nReferer: http://www.example.org/\r\n\
    Upgrade-Insecure-Requests: 1\r\nPriority: u=0, i\r\n\r\n";

const CONDITIONAL: &str = "GET /hello.txt HTTP/1.1\r\nHost: www.example.org\r\n\
    If-None-Match: *\r\n\r\n";

fn main() {
    let dir = std::env::temp_dir().join(format!("weft-request-cost-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory for the site");
    transcript::make_site(&dir).expect("the site's files");
    // A plain site; that of the transcripts has rules of every kind.
    let config = SiteConfig {
        root: dir.clone(),
        error_pages: vec![(404, "404.html".into())],
        ..SiteConfig::default()
    };
    let site = Arc::new(Site::open(config).expect("the site"));
    let handle = || Handle::new(Arc::clone(&site), ServiceConfig::default());
    let handle = || handle().expect("a configuration");
    let counting = Arc::new(handle().counting_paths());
    let handle = Arc::new(handle());
    measure("wrk", &handle, WRK, 1);
    measure("wrk, counting paths", &counting, WRK, 1);
    measure("wrk, 16 pipelined", &handle, WRK, 16);
    measure("browser", &handle, BROWSER, 1);
    measure("304", &handle, CONDITIONAL, 1);
    measure("404", &handle, &WRK.replace("hello", "nothing"), 1);
    // Extra cost of each rule over the first line.
    let rules = (0..10_000).map(|nth| format!("/old/{nth}/page.html /new/{nth} 301"));
    let rules = rules.chain((0..100).map(|nth| format!("/was/{nth}/* /is/{nth}/:splat")));
    let rules = rules.map(|line| RedirectRule::from_line(&line).ok().flatten());
    let redirects = Redirects::new(rules.map(|rule| rule.expect("a rule")).collect(), None);
    let redirects = Arc::new(redirects.expect("no circle"));
    let host = |nth: usize, redirects: &Arc<Redirects>| VirtualHost {
        names: vec![format!("host-{nth}.example.org").parse().expect("a name")],
        redirects: Arc::clone(redirects),
        ..Arc::clone(&site).into()
    };
    let hosts = |count, redirects: &Arc<Redirects>| Hosts {
        default: None,
        named: (0..count).map(|nth| host(nth, redirects)).collect(),
    };
    let none = Arc::default();
    let limited = || ServiceConfig {
        rate_limit: Some(RateLimit {
            requests: 1_000_000,
            per: Duration::from_secs(1),
            burst: 4_000_000,
            prefix: PrefixLen::default(),
            exempt: Networks::default(),
        }),
        ..ServiceConfig::default()
    };
    let ruled = |hosts: Hosts, config| Arc::new(Handle::new(hosts, config).expect("hosts"));
    let plain = ServiceConfig::default;
    let named = WRK.replace("127.0.0.1:8080", "host-0.example.org");
    measure("wrk, 1 host", &ruled(hosts(1, &none), plain()), &named, 1);
    let many = ruled(hosts(10_000, &none), plain());
    measure("wrk, 10,000 hosts", &many, &named, 1);
    let one = Hosts { default: Some(host(0, &redirects)), named: Vec::new() };
    measure("wrk, redirects", &ruled(one, plain()), WRK, 1);
    let of_site = || Hosts::from(Arc::clone(&site));
    measure("wrk, limit", &ruled(of_site(), limited()), WRK, 1);
    let all = ruled(hosts(10_000, &redirects), limited());
    measure("wrk, all of them", &all, &named, 1);
    std::fs::remove_dir_all(&dir).expect("the directory can be removed");
}

fn measure(name: &str, handle: &Arc<Handle>, request: &str, depth: usize) {
    if std::env::args().nth(1).is_some_and(|wanted| wanted != name) {
        return;
    }
    let peer = Peer::Tcp("192.0.2.1:9".parse().expect("an address"));
    let mut session = Session::new(handle.clone(), peer);
    let mut out = Outbox::new();
    let input = request.repeat(depth);
    let now = Now::read();
    let mut reply_len = 0;
    let mut best_ns = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..REQUESTS / depth {
            reply_len = receive(&mut session, input.as_bytes(), now, &mut out);
        }
        let ns = start.elapsed().as_nanos() as f64 / (REQUESTS / depth * depth) as f64;
        best_ns = best_ns.min(ns);
    }
    let reply_len = reply_len / depth as u64;
    println!("{name:19} {best_ns:6.0} ns  {:4} bytes in, {reply_len:4} out", request.len());
}

fn receive(session: &mut Session, input: &[u8], now: Now, out: &mut Outbox) -> u64 {
    let mut used = 0;
    loop {
        let received = session.receive(black_box(&input[used..]), now, out);
        used += received.used;
        match received.next {
            Next::Receive(Phase::Idle) => break,
            Next::Work => drop(work_here(session, now, out)),
            other => panic!("{other:?} after {used} of {} bytes", input.len()),
        }
    }
    let len = out.queued_len();
    black_box(&*out);
    out.clear();
    len
}
