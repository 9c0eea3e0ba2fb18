//! Several hosts behind one session: the name in `Host` picks the site.

use std::fs;
use std::sync::Arc;

use session::replay::{queued, test_now};
use session::{Next, Outbox, Session as _};
use web::{Handle, Hosts, Peer, ServiceConfig, Session, Site, SiteConfig, VirtualHost};

/// A host whose index file says its first name.
fn host(dir: &tempfile::TempDir, names: &[&str]) -> VirtualHost {
    let root = dir
        .path()
        .join(names.first().unwrap_or(&"default").replace('*', "any"));
    fs::create_dir_all(&root).unwrap();
    fs::write(
        root.join("index.html"),
        *names.first().unwrap_or(&"default"),
    )
    .unwrap();
    let site = Site::open(SiteConfig {
        root,
        ..SiteConfig::default()
    });
    VirtualHost {
        names: names.iter().map(|name| name.parse().unwrap()).collect(),
        site: Arc::new(site.unwrap()),
    }
}

fn handle(hosts: Hosts) -> Arc<Handle> {
    Arc::new(Handle::new(hosts, ServiceConfig::default()).unwrap())
}

/// The replies to these bytes on one connection.
fn replies(handle: &Arc<Handle>, input: &str) -> String {
    let mut session = Session::new(Arc::clone(handle), Peer::Unix);
    let mut out = Outbox::new();
    let mut used = 0;
    loop {
        let received = session.receive(&input.as_bytes()[used..], test_now(), &mut out);
        used += received.used;
        match received.next {
            Next::Work => session.work(test_now()),
            Next::Flush => {}
            _ => return String::from_utf8(queued(&out)).unwrap(),
        }
    }
}

fn get(handle: &Arc<Handle>, host: &str) -> String {
    let reply = replies(handle, &format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    let body = reply.rsplit("\r\n\r\n").next().unwrap();
    if reply.starts_with("HTTP/1.1 200 ") {
        body.to_owned()
    } else {
        reply[9..12].to_owned()
    }
}

#[test]
fn each_name_gets_its_site() {
    let dir = tempfile::tempdir().unwrap();
    let named = vec![
        host(&dir, &["a.org", "www.a.org"]),
        host(&dir, &["*.a.org"]),
        host(&dir, &["[::1]"]),
    ];
    let default = Some(host(&dir, &[]));
    let with_default = handle(Hosts {
        default,
        named: named.clone(),
    });
    let without = handle(Hosts {
        default: None,
        named,
    });
    for (name, body) in [
        ("a.org", "a.org"),
        ("A.ORG.:81", "a.org"),
        ("www.a.org", "a.org"),
        ("x.a.org", "*.a.org"),
        ("[0:0::1]:80", "[::1]"),
    ] {
        assert_eq!(get(&with_default, name), body, "{name}");
        assert_eq!(get(&without, name), body, "{name}");
    }
    for name in ["b.org", "", "a.org:http", "[::1"] {
        assert_eq!(get(&with_default, name), "default", "{name}");
        assert_eq!(get(&without, name), "421", "{name}");
    }
    let old = "GET / HTTP/1.0\r\n\r\n";
    assert!(replies(&with_default, old).ends_with("\r\n\r\ndefault"));
    assert!(replies(&without, old).starts_with("HTTP/1.1 421 Misdirected Request\r\n"));
}

/// RFC 9112 3.2.2: the target's host counts, not the field's.
#[test]
fn absolute_form_names_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let named = vec![host(&dir, &["a.org"]), host(&dir, &["b.org"])];
    let handle = handle(Hosts {
        default: None,
        named,
    });
    let reply = replies(
        &handle,
        "GET http://B.org:80/ HTTP/1.1\r\nHost: a.org\r\n\r\n",
    );
    assert!(reply.ends_with("\r\n\r\nb.org"), "{reply}");
    let reply = replies(&handle, "GET http://c.org HTTP/1.1\r\nHost: a.org\r\n\r\n");
    assert!(reply.starts_with("HTTP/1.1 421 "), "{reply}");
}

#[test]
fn one_connection_may_ask_every_host() {
    let dir = tempfile::tempdir().unwrap();
    let named = vec![host(&dir, &["a.org"]), host(&dir, &["b.org"])];
    let handle = handle(Hosts {
        default: None,
        named,
    });
    let ask = |name: &str| format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n");
    let input = [ask("a.org"), ask("c.org"), ask("b.org"), ask("a.org")].concat();
    let replies = replies(&handle, &input);
    let statuses: Vec<_> = replies.match_indices("HTTP/1.1 ").collect();
    let statuses: Vec<_> = statuses
        .iter()
        .map(|(at, _)| &replies[at + 9..at + 12])
        .collect();
    assert_eq!(statuses, ["200", "421", "200", "200"]);
    assert!(replies.contains("\r\n\r\nb.orgHTTP") && replies.ends_with("\r\n\r\na.org"));
}

#[test]
fn a_name_is_of_one_host() {
    let dir = tempfile::tempdir().unwrap();
    let named = vec![host(&dir, &["a.org"]), host(&dir, &["b.org", "A.org."])];
    let hosts = Hosts {
        default: None,
        named,
    };
    let error = Handle::new(hosts, ServiceConfig::default()).unwrap_err();
    assert_eq!(error.to_string(), "two hosts have the name 'a.org'");
}

/// Names are looked up by a hash: the last of many costs what the first does.
#[test]
fn ten_thousand_hosts_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let two = [host(&dir, &["even.org"]), host(&dir, &["odd.org"])];
    let named = (0..10_000).map(|nth| VirtualHost {
        names: vec![format!("host-{nth}.example.org").parse().unwrap()],
        site: Arc::clone(&two[nth % 2].site),
    });
    let handle = handle(Hosts {
        default: None,
        named: named.collect(),
    });
    assert_eq!(get(&handle, "host-0.example.org"), "even.org");
    assert_eq!(get(&handle, "Host-9999.Example.org"), "odd.org");
    assert_eq!(get(&handle, "host-10000.example.org"), "421");
}
