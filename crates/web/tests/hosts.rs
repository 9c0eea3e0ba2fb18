//! Several hosts behind one session: the name in `Host` selects the site.

extern crate weftwork_web as web;

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use session::replay::{queued, test_now};
use session::{GiveUp, Networks, Next, Outbox, Phase, PrefixLen, Session as _, work_here};
use web::{
    ForwardedField, Handle, HeaderRule, HostRate, Hosts, Peer, Proxies, RateLimit, RedirectRule,
    Redirects, RequestLimits, ServiceConfig, Session, Site, SiteConfig, VirtualHost,
};

/// A host whose index file contains its first name.
fn host(dir: &tempfile::TempDir, names: &[&str]) -> VirtualHost {
    let root = dir.path().join(names.first().unwrap_or(&"default").replace('*', "any"));
    fs::create_dir_all(&root).unwrap();
    fs::write(root.join("index.html"), *names.first().unwrap_or(&"default")).unwrap();
    let site = Site::open(SiteConfig { root, ..SiteConfig::default() });
    VirtualHost {
        names: names.iter().map(|name| name.parse().unwrap()).collect(),
        ..Arc::new(site.unwrap()).into()
    }
}

fn handle(hosts: Hosts) -> Arc<Handle> {
    Arc::new(Handle::new(hosts, ServiceConfig::default()).unwrap())
}

/// The replies to these bytes on one connection.
fn replies(handle: &Arc<Handle>, input: &str) -> String {
    replies_of(&mut Session::new(Arc::clone(handle), Peer::Unix), input)
}

fn replies_of(session: &mut Session, input: &str) -> String {
    let mut out = Outbox::new();
    let mut used = 0;
    loop {
        let received = session.receive(&input.as_bytes()[used..], test_now(), &mut out);
        used += received.used;
        match received.next {
            Next::Work => drop(work_here(session, test_now(), &mut out)),
            Next::Flush => {}
            _ => return String::from_utf8(queued(&out)).unwrap(),
        }
    }
}

fn get(handle: &Arc<Handle>, host: &str) -> String {
    let reply = replies(handle, &format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    let body = reply.rsplit("\r\n\r\n").next().unwrap();
    if reply.starts_with("HTTP/1.1 200 ") { body.to_owned() } else { reply[9..12].to_owned() }
}

#[test]
fn each_name_gets_its_site() {
    let dir = tempfile::tempdir().unwrap();
    let named =
        vec![host(&dir, &["a.org", "www.a.org"]), host(&dir, &["*.a.org"]), host(&dir, &["[::1]"])];
    let default = Some(host(&dir, &[]));
    let with_default = handle(Hosts { default, named: named.clone() });
    let without = handle(Hosts { default: None, named });
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
    for name in ["b.org", ""] {
        assert_eq!(get(&with_default, name), "default", "{name}");
        assert_eq!(get(&without, name), "421", "{name}");
    }
    for name in ["a.org:http", "[::1"] {
        assert_eq!(get(&with_default, name), "400", "{name}");
        assert_eq!(get(&without, name), "400", "{name}");
    }
    let old = "GET / HTTP/1.0\r\n\r\n";
    assert!(replies(&with_default, old).ends_with("\r\n\r\ndefault"));
    assert!(replies(&without, old).starts_with("HTTP/1.1 421 Misdirected Request\r\n"));
}

/// The target's host takes precedence over the field. RFC 9112 3.2.2
#[test]
fn absolute_form_names_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let named = vec![host(&dir, &["a.org"]), host(&dir, &["b.org"])];
    let handle = handle(Hosts { default: None, named });
    let reply = replies(&handle, "GET http://B.org:80/ HTTP/1.1\r\nHost: a.org\r\n\r\n");
    assert!(reply.ends_with("\r\n\r\nb.org"), "{reply}");
    let reply = replies(&handle, "GET http://c.org HTTP/1.1\r\nHost: a.org\r\n\r\n");
    assert!(reply.starts_with("HTTP/1.1 421 "), "{reply}");
}

#[test]
fn one_connection_may_ask_every_host() {
    let dir = tempfile::tempdir().unwrap();
    let named = vec![host(&dir, &["a.org"]), host(&dir, &["b.org"])];
    let handle = handle(Hosts { default: None, named });
    let ask = |name: &str| format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n");
    let input = [ask("a.org"), ask("c.org"), ask("b.org"), ask("a.org")].concat();
    let replies = replies(&handle, &input);
    let statuses: Vec<_> = replies.match_indices("HTTP/1.1 ").collect();
    let statuses: Vec<_> = statuses.iter().map(|(at, _)| &replies[at + 9..at + 12]).collect();
    assert_eq!(statuses, ["200", "421", "200", "200"]);
    assert!(replies.contains("\r\n\r\nb.orgHTTP") && replies.ends_with("\r\n\r\na.org"));
}

#[test]
fn a_name_is_of_one_host() {
    let dir = tempfile::tempdir().unwrap();
    let named = vec![host(&dir, &["a.org"]), host(&dir, &["b.org", "A.org."])];
    let hosts = Hosts { default: None, named };
    let error = Handle::new(hosts, ServiceConfig::default()).unwrap_err();
    assert_eq!(error.to_string(), "two hosts have the name 'a.org'");
}

/// Hosts have limits of their own, on bodies and on requests, each counted separately.
#[test]
fn limits_are_of_a_host() {
    let dir = tempfile::tempdir().unwrap();
    let limit = |requests| RateLimit {
        requests,
        per: Duration::from_secs(3600),
        burst: requests,
        prefix: PrefixLen::default(),
        exempt: Networks::default(),
    };
    let own = |name: &str, body_len_max, rate_limit| VirtualHost {
        body_len_max,
        rate_limit,
        ..host(&dir, &[name])
    };
    let hosts = || Hosts {
        default: Some(host(&dir, &[])),
        named: vec![
            own("one", Some(3), HostRate::Own(limit(2))),
            own("two", Some(50), HostRate::Own(limit(2))),
            own("free", None, HostRate::Unlimited),
            host(&dir, &["shared"]),
        ],
    };
    let config = || ServiceConfig {
        rate_limit: Some(limit(4)),
        limits: RequestLimits { body_len_max: 10, ..RequestLimits::default() },
        ..ServiceConfig::default()
    };
    let handle = Arc::new(Handle::new(hosts(), config()).unwrap());
    let ask = |host: &str, more: &str| {
        let peer = Peer::Tcp("192.0.2.1:9".parse().unwrap());
        let mut session = Session::new(Arc::clone(&handle), peer);
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n{more}");
        replies_of(&mut session, &request)[9..12].to_owned()
    };
    let asks = |host: &str| [(); 5].map(|()| ask(host, "\r\n"));
    assert_eq!(asks("one"), ["200", "200", "429", "429", "429"]);
    assert_eq!(asks("two"), ["200", "200", "429", "429", "429"]);
    assert_eq!(asks("free"), ["200"; 5]);
    assert_eq!(asks("shared"), ["200", "200", "200", "200", "429"]);
    assert_eq!(ask("none", "\r\n"), "429", "with the default host");
    handle.reload(hosts(), config()).unwrap();
    assert_eq!(ask("two", "\r\n"), "429", "debts survive");

    let config = ServiceConfig { rate_limit: None, ..config() };
    let mut unlimited = hosts();
    for host in &mut unlimited.named {
        host.rate_limit = HostRate::Shared;
    }
    handle.reload(unlimited, config.clone()).unwrap();
    for (host, max) in [("one", 3), ("two", 50), ("shared", 10), ("none", 10)] {
        for len in [1, max - 1, max, max + 1, 3 * max] {
            let expected = if len <= max { "200" } else { "413" };
            let body = "x".repeat(len);
            let whole = format!("Content-Length: {len}\r\n\r\n{body}");
            assert_eq!(ask(host, &whole), expected, "{host} {len}");
            let chunks = body.chars().map(|x| format!("1\r\n{x}\r\n"));
            let chunks: String = chunks.collect();
            let chunked = format!("Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n");
            assert_eq!(ask(host, &chunked), expected, "{host} {len} in chunks");
        }
    }

    let many = |count: u32| Hosts {
        default: None,
        named: (0..count)
            .map(|nth| VirtualHost {
                names: vec![format!("h{nth}").parse().unwrap()],
                rate_limit: HostRate::Own(limit(1 + nth)),
                ..Arc::clone(&host(&dir, &["one"]).site).into()
            })
            .collect(),
    };
    assert!(Handle::new(many(16), config.clone()).is_ok());
    let why = Handle::new(many(17), config).unwrap_err().to_string();
    assert!(why.starts_with("17 limits on requests differ"), "{why}");
}

/// Names are looked up by a hash: the last of many costs as much as the first.
#[test]
fn ten_thousand_hosts_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let two = [host(&dir, &["even.org"]), host(&dir, &["odd.org"])];
    let named = (0..10_000).map(|nth| VirtualHost {
        names: vec![format!("host-{nth}.example.org").parse().unwrap()],
        ..Arc::clone(&two[nth % 2].site).into()
    });
    let handle = handle(Hosts { default: None, named: named.collect() });
    assert_eq!(get(&handle, "host-0.example.org"), "even.org");
    assert_eq!(get(&handle, "Host-9999.Example.org"), "odd.org");
    assert_eq!(get(&handle, "host-10000.example.org"), "421");
}

/// A host with these rules, one per line.
fn ruled(dir: &tempfile::TempDir, lines: &str) -> VirtualHost {
    let rules = lines.lines().map(|line| RedirectRule::from_line(line).unwrap().unwrap());
    VirtualHost {
        redirects: Arc::new(Redirects::new(rules.collect(), None).unwrap()),
        ..host(dir, &["a.org", "b.org"])
    }
}

fn only(host: VirtualHost) -> Arc<Handle> {
    handle(Hosts { default: None, named: vec![host] })
}

/// Status and `Location` of the reply to a request.
fn moved(session: &mut Session, request: &str) -> String {
    let reply = reply_of(session, request);
    let mut lines = reply.lines().filter_map(|line| line.strip_prefix("Location: "));
    format!("{} {}", &reply[9..12], lines.next().unwrap_or_default())
}

fn reply_of(session: &mut Session, request: &str) -> String {
    let request = format!("{request} HTTP/1.1\r\n");
    let host = if request.contains("\r\nHost") { "" } else { "Host: a.org\r\n" };
    replies_of(session, &format!("{request}{host}\r\n"))
}

#[test]
fn rules_hold_before_files() {
    let dir = tempfile::tempdir().unwrap();
    let lines = "/index.html /home 302\n/blog/* /:splat?a=b\n/any/* /index.html 200\n/up/* /x/:splat 200\n/find/* /s?q=:splat\n/n* /:splat";
    let handle = only(ruled(&dir, lines));
    let mut session = Session::new(Arc::clone(&handle), Peer::Unix);
    for (request, expected) in [
        ("GET /index.html", "302 /home"),
        ("HEAD /index.html?x=1", "302 /home?x=1"),
        ("POST /index.html", "302 /home"),
        ("GET /%69ndex.html", "302 /home"),
        ("GET /blog/%0D%0ASet-Cookie:x?c=\u{fc}", "301 /%0D%0ASet-Cookie:x?a=b&c=%C3%BC"),
        ("GET /blog/@a/C++;v=1,2_(x):y!", "301 /@a/C++;v=1,2_(x):y!?a=b"),
        ("GET /find/a&b=c+d", "301 /s?q=a%26b%3Dc%2Bd"),
        ("GET /blog//evil.org", "301 /evil.org?a=b"),
        ("GET /n/evil.org", "301 /evil.org"),
        ("GET /n/%5cevil.org", "301 /%5Cevil.org"),
        ("GET /any/thing", "200 "),
        ("GET /", "200 "),
        ("GET /up/x../../../etc", "404 "),
        ("POST /any/thing", "405 "),
        ("OPTIONS /index.html", "204 "),
    ] {
        assert_eq!(moved(&mut session, request), expected, "{request}");
    }
    let rewritten = reply_of(&mut session, "GET /any/thing");
    assert!(rewritten.ends_with("\r\n\r\na.org"), "{rewritten}");
}

/// Seen: with clean URLs, `/about /about.html 200` redirected to /about forever. Cause: the file
/// of a rule was looked up as if requested. Cure: a file at another address is served in place.
#[test]
fn a_rewrite_serves_pages_of_clean_urls() {
    let dir = tempfile::tempdir().unwrap();
    let lines = "/about /about.html 200\n/app/* /index.html 200\n/x /about.html 200\n\
        /blog3 /blog 200\n/page /pages/one/ 200\n/list /d 200\n/none /none.html 200\n/u /ü.html 200";
    let host = ruled(&dir, lines);
    let root = dir.path().join("a.org");
    for name in ["blog", "pages", "d"] {
        fs::create_dir(root.join(name)).unwrap();
    }
    for file in ["about.html", "blog/index.html", "pages/one.html", "d/x.txt", "ü.html"] {
        fs::write(root.join(file), format!("text of {file}")).unwrap();
    }
    let site = |clean_urls| {
        let config = SiteConfig { root: root.clone(), listing: true, ..SiteConfig::default() };
        Arc::new(Site::open(SiteConfig { clean_urls, ..config }).unwrap())
    };
    for (is_clean, path, status, part) in [
        (true, "/about", "200", "text of about.html"),
        (true, "/about?q=1", "200", "text of about.html"),
        (true, "/app/x/y", "200", "a.org"),
        (true, "/x", "200", "text of about.html"),
        (true, "/u", "200", "text of ü.html"),
        (true, "/blog3", "200", "text of blog/index.html"),
        (true, "/page", "200", "text of pages/one.html"),
        (true, "/list?format=json", "200", "x.txt"),
        (true, "/none", "404", ""),
        (true, "/about.html", "301", "Location: /about\r\n"),
        (true, "/index.html", "301", "Location: /\r\n"),
        (false, "/about", "200", "text of about.html"),
        (false, "/blog3", "200", "text of blog/index.html"),
        (false, "/list", "200", "x.txt"),
        (false, "/page", "404", ""),
    ] {
        let handle = only(VirtualHost { site: site(is_clean), ..host.clone() });
        let mut session = Session::new(handle, Peer::Unix);
        // The second request finds the results of the first.
        for _ in 0..2 {
            let reply = reply_of(&mut session, &format!("GET {path}"));
            assert_eq!(&reply[9..12], status, "{path}");
            assert!(reply.contains(part), "{path}: {reply}");
        }
    }
}

/// A rewrite must not open a denied path.
#[test]
fn a_rewrite_opens_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let lines =
        "/open/* /secret/:splat 200\n/free/* /denied/:splat 200\n/secret/moved /open/it 302";
    let mut host = ruled(&dir, lines);
    let root = dir.path().join("a.org");
    for name in ["secret", "denied"] {
        fs::create_dir(root.join(name)).unwrap();
        fs::write(root.join(name).join("it"), name).unwrap();
    }
    let passwords = dir.path().join("passwords");
    let hash = "$2b$04$......................w74bL5gU7LSJClZClCa.Pkz14aTv/XO";
    fs::write(&passwords, format!("a:{hash}\n")).unwrap();
    let site = Site::open(SiteConfig {
        root,
        deny: vec!["/denied/**".to_owned()],
        basic_auth: vec![("/secret/**".to_owned(), passwords)],
        ..SiteConfig::default()
    });
    host.site = Arc::new(site.unwrap());
    let mut session = Session::new(only(host), Peer::Unix);
    for (path, expected) in [
        ("GET /secret/it", "401 "),
        ("GET /open/it", "401 "),
        ("GET /secret/moved", "401 "),
        ("GET /denied/it", "404 "),
        ("GET /free/it", "404 "),
    ] {
        assert_eq!(moved(&mut session, path), expected, "{path}");
    }
}

/// Seen: `/staff/* /index.html 200` answered below /staff, a protected area, without a password.
/// Cause: only the areas of the file's path were checked. Cure: those of the request's path are
/// checked too, as before a redirect.
#[test]
fn a_rewrite_leaves_no_area() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = ruled(&dir, "/staff/old /\n/staff/* /index.html 200\n/free/* /index.html 200");
    let root = dir.path().join("a.org");
    let passwords = dir.path().join("passwords");
    // The password is `pw`.
    let ada = "ada:$6$rounds=1000$hiXj0vyqppGo7OE3$YtVV.s8VzDr.jGwhnthXHynEmzwql0cDsAp3Fo1Y8y0e\
               dUejDdcc37NfsR6kAnIMaNODy9P4.1LrdMGUfhkI1/\n";
    fs::write(&passwords, ada).unwrap();
    let basic_auth = vec![("/staff/**".to_owned(), passwords)];
    let site = Site::open(SiteConfig { root, basic_auth, ..SiteConfig::default() });
    host.site = Arc::new(site.unwrap());
    let mut session = Session::new(only(host), Peer::Unix);
    let right = "HTTP/1.1\r\nAuthorization: Basic YWRhOnB3\r\nX:";
    for (request, expected) in [
        ("GET /staff/x", "401 "),
        ("HEAD /staff/x/y", "401 "),
        ("GET /staff//%78", "401 "),
        ("POST /staff/x", "401 "),
        ("GET /staff/old", "401 "),
        (&*format!("GET /staff/x {right}"), "200 "),
        (&*format!("GET /staff/old {right}"), "301 /"),
        ("GET /free/x", "200 "),
        ("GET /index.html", "200 "),
    ] {
        assert_eq!(moved(&mut session, request), expected, "{request}");
    }
}

/// Seen: with clean URLs, `/m /members.html 200` showed the page of /members, which is protected,
/// without a password. Cause: the address that a rewrite led to was not checked for its area. Cure:
/// each entry knows the rule of its address.
#[test]
fn a_rewrite_opens_no_other_address() {
    let dir = tempfile::tempdir().unwrap();
    let lines = "/m /members.html 200\n/d /dir 200\n/l /list 200\n/open /free.html 200";
    let mut host = ruled(&dir, lines);
    let root = dir.path().join("a.org");
    for name in ["dir", "list"] {
        fs::create_dir(root.join(name)).unwrap();
    }
    for file in ["members.html", "dir/index.html", "list/x", "free.html", "v1.2.html"] {
        fs::write(root.join(file), format!("text of {file}")).unwrap();
    }
    let passwords = dir.path().join("passwords");
    let hash = "$2b$04$......................w74bL5gU7LSJClZClCa.Pkz14aTv/XO";
    fs::write(&passwords, format!("a:{hash}\n")).unwrap();
    let areas =
        ["/members", "/dir/**", "/list/**"].map(|glob| (glob.to_owned(), passwords.clone()));
    let site = Site::open(SiteConfig {
        root,
        basic_auth: areas.into(),
        clean_urls: true,
        listing: true,
        ..SiteConfig::default()
    });
    host.site = Arc::new(site.unwrap());
    let mut session = Session::new(only(host), Peer::Unix);
    for (path, expected) in [
        ("GET /members", "401 "),
        ("GET /m", "401 "),
        ("GET /m", "401 "),
        ("GET /d", "401 "),
        ("GET /d", "401 "),
        ("GET /l", "401 "),
        ("GET /open", "200 "),
    ] {
        assert_eq!(moved(&mut session, path), expected, "{path}");
    }
}

#[test]
fn aliases_lead_to_the_first_name() {
    let dir = tempfile::tempdir().unwrap();
    let aliases = ["www.a.org", "*.c.org"].map(|name| name.parse().unwrap());
    let handle = only(VirtualHost { aliases: aliases.into(), ..host(&dir, &["a.org"]) });
    let to = |host: &str, target: &str| format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let location = |host: &str, target: &str| {
        let reply = replies(&handle, &to(host, target));
        let line = reply.lines().find_map(|line| line.strip_prefix("Location: "));
        line.map(str::to_owned)
    };
    assert_eq!(location("a.org", "/"), None);
    assert_eq!(location("WWW.A.org.:8080", "/a%20b?c").unwrap(), "//a.org:8080/a%20b?c");
    assert_eq!(location("x.c.org", "/").unwrap(), "//a.org/");
    assert_eq!(location("www.a.org:", "//evil.org/").unwrap(), "//a.org//evil.org/");
    assert_eq!(location("www.a.org", "/.well-known/acme-challenge/x"), None);
}

#[test]
fn plain_requests_go_to_https() {
    let dir = tempfile::tempdir().unwrap();
    let hsts = Some("max-age=7".to_owned());
    let challenge = dir.path().join("a.org/.well-known/acme-challenge");
    fs::create_dir_all(&challenge).unwrap();
    fs::write(challenge.join("token"), "key").unwrap();
    let aliases = vec!["www.a.org".parse().unwrap()];
    let handle = only(VirtualHost { hsts, aliases, ..host(&dir, &["a.org"]) });
    let session = || Session::new(Arc::clone(&handle), Peer::Unix);
    let mut plain = session().redirecting_to_https(8443);
    for (request, expected) in [
        ("GET /a?b", "301 https://a.org:8443/a?b"),
        ("POST /a", "301 https://a.org:8443/a"),
        ("OPTIONS /a", "301 https://a.org:8443/a"),
        ("GET http://a.org:80/", "301 https://a.org:8443/"),
        ("GET / HTTP/1.1\r\nHost: www.a.org:80\r\nX: ", "301 https://a.org:8443/"),
        ("GET / HTTP/1.1\r\nHost: b.org\r\nX: ", "421 "),
        ("GET /.well-known/acme-challenge/token", "200 "),
        (
            "GET /.well-known/acme-challenge/../../a",
            "301 https://a.org:8443/.well-known/acme-challenge/../../a",
        ),
    ] {
        assert_eq!(moved(&mut plain, request), expected, "{request}");
    }
    let mut usual = session().redirecting_to_https(443);
    assert_eq!(moved(&mut usual, "GET /"), "301 https://a.org/");

    let line = "\r\nStrict-Transport-Security: max-age=7\r\n";
    for request in ["GET /", "GET /none", "OPTIONS /"] {
        assert!(reply_of(&mut session().over_tls(None), request).contains(line), "{request}");
        assert!(!reply_of(&mut session(), request).contains(line), "{request}");
        assert!(!reply_of(&mut plain, request).contains(line), "{request}");
    }
}

/// Behind a proxy that terminates TLS, every request arrives in plain text.
#[test]
fn a_client_of_a_proxy_by_https_is_not_redirected() {
    let dir = tempfile::tempdir().unwrap();
    let only = VirtualHost { hsts: Some("max-age=7".to_owned()), ..host(&dir, &["a.org"]) };
    let config = ServiceConfig {
        proxies: Some(Proxies {
            from: Networks { list: Vec::new(), has_unix: true },
            field: ForwardedField::default(),
        }),
        ..ServiceConfig::default()
    };
    let hosts = Hosts { default: Some(only), named: Vec::new() };
    let handle = Arc::new(Handle::new(hosts, config).unwrap());
    let session = |peer: Peer| Session::new(Arc::clone(&handle), peer).redirecting_to_https(443);
    let mut proxied = session(Peer::Unix);
    for (field, expected) in [
        ("X-Forwarded-Proto: https", "200 "),
        ("X-Forwarded-Proto: http", "301 https://a.org/"),
        ("X-Forwarded-Proto: https", "200 "),
        ("X: ", "301 https://a.org/"),
    ] {
        let request = format!("GET / HTTP/1.1\r\nHost: a.org\r\n{field}\r\nX: ");
        assert_eq!(moved(&mut proxied, &request), expected, "{field}");
    }
    let request = "GET / HTTP/1.1\r\nHost: a.org\r\nX-Forwarded-Proto: https\r\nX: ";
    let reply = reply_of(&mut proxied, request);
    assert!(reply.contains("\r\nStrict-Transport-Security: max-age=7\r\n"));
    let address: std::net::SocketAddr = "192.0.2.7:5000".parse().unwrap();
    let mut direct = session(Peer::Tcp(address));
    assert_eq!(moved(&mut direct, request), "301 https://a.org/");
}

/// A host that is not checked against a list is echoed only if it is a valid name.
#[test]
fn no_address_is_made_of_what_is_no_name() {
    let dir = tempfile::tempdir().unwrap();
    let handle = handle(Arc::clone(&host(&dir, &[]).site).into());
    let mut session = Session::new(Arc::clone(&handle), Peer::Unix).redirecting_to_https(443);
    for host in ["a%2eorg", "a,b", "(a)", ""] {
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nX: ");
        assert_eq!(moved(&mut session, &request), "400 ", "{host}");
    }
    let mut session = Session::new(handle, Peer::Unix).redirecting_to_https(443);
    let request = "GET / HTTP/1.1\r\nHost: [0::1]:80\r\nX: ";
    assert_eq!(moved(&mut session, request), "301 https://[::1]/");
}

/// The authority asks every name of the certificate, including names that are redirected.
#[test]
fn challenges_are_answered_before_anything_else() {
    let dir = tempfile::tempdir().unwrap();
    let handle =
        only(VirtualHost { aliases: vec!["www.a.org".parse().unwrap()], ..host(&dir, &["a.org"]) });
    let session = || Session::new(Arc::clone(&handle), Peer::Unix).redirecting_to_https(443);
    let reply = |method: &str, name: &str, token: &str| {
        let path = format!("/.well-known/acme-challenge/{token}");
        let request = format!("{method} {path} HTTP/1.1\r\nHost: {name}\r\n\r\n");
        replies_of(&mut session(), &request)
    };
    handle.challenges().insert("token", "token.print");
    for name in ["a.org", "www.a.org:80"] {
        let reply = reply("GET", name, "token");
        assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
        assert!(reply.ends_with("Content-Length: 11\r\n\r\ntoken.print"), "{reply}");
    }
    assert!(reply("HEAD", "a.org", "token").ends_with("Content-Length: 11\r\n\r\n"));
    assert!(reply("GET", "a.org", "token/").starts_with("HTTP/1.1 404 "));
    assert!(reply("GET", "b.org", "token").starts_with("HTTP/1.1 421 "));
    assert!(reply("POST", "a.org", "token").starts_with("HTTP/1.1 405 "));
    // A reload in the middle.
    let hosts = Hosts { default: Some(host(&dir, &[])), named: Vec::new() };
    handle.reload(hosts, ServiceConfig::default()).unwrap();
    assert!(reply("GET", "a.org", "token").ends_with("token.print"));
    handle.challenges().remove("token");
    assert!(reply("GET", "a.org", "token").starts_with("HTTP/1.1 404 "));
}

/// A host over TLS whose replies, including refusals, identify it.
fn telling(dir: &tempfile::TempDir, name: &str) -> VirtualHost {
    let host = host(dir, &[name]);
    let root = dir.path().join(name);
    fs::write(root.join("own.html"), format!("page of {name}")).unwrap();
    let headers =
        vec![HeaderRule { glob: "**".into(), name: "X-Host".into(), value: name.to_owned() }];
    let error_pages = [400, 408, 413, 417, 421, 431, 503, 505];
    let error_pages = error_pages.map(|status| (status, "own.html".into())).into();
    let config = SiteConfig { root, headers, error_pages, ..SiteConfig::default() };
    let hsts = Some(format!("max-age={}", name.len()));
    VirtualHost { site: Arc::new(Site::open(config).unwrap()), hsts, ..host }
}

/// Seen: a form that was too long for one host was refused with the `Strict-Transport-Security` of
/// the first host, after which a browser never uses plain HTTP again.
#[test]
fn a_refusal_is_of_the_host_that_was_asked() {
    let dir = tempfile::tempdir().unwrap();
    let a = telling(&dir, "long.a.org");
    let b = VirtualHost { body_len_max: Some(4), ..telling(&dir, "b.org") };
    let named = vec![a.clone(), b];
    let both = handle(Hosts { default: None, named: named.clone() });
    let beneath = handle(Hosts { default: Some(telling(&dir, "default")), named });
    let own = ["X-Host: b.org\r\n", "Security: max-age=5\r\n", "\r\n\r\npage of b.org"];
    for handle in [&both, &beneath] {
        let session = || Session::new(Arc::clone(handle), Peer::Unix).over_tls(None);
        for (request, status) in [
            ("POST / HTTP/1.1\r\nHost: b.org\r\nContent-Length: 5\r\n\r\n", "413"),
            ("POST http://b.org HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n", "413"),
            (
                "POST / HTTP/1.1\r\nHost: b.org\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345",
                "413",
            ),
            ("GET / HTTP/1.1\r\nHost: b.org\r\nExpect: x\r\n\r\n", "417"),
            ("POST / HTTP/1.1\r\nHost: b.org\r\nContent-Length: 4\r\n\r\n", "408"),
            ("GET / HTTP/1.1\r\nHost: b.org\r\n\r\n", "503"),
        ] {
            let (mut session, mut out) = (session(), Outbox::new());
            let mut received = session.receive(request.as_bytes(), test_now(), &mut out);
            if received.next == Next::Work {
                let work = session.take_work().unwrap();
                session.handle_refused(work, test_now(), &mut out);
                received = session.receive(b"", test_now(), &mut out);
            }
            if received.next == Next::Receive(Phase::Body) {
                session.give_up(GiveUp::TimedOut(Phase::Body), test_now(), &mut out);
            }
            let reply = String::from_utf8(queued(&out)).unwrap();
            assert_eq!(&reply[9..12], status, "{request}");
            assert!(own.iter().all(|own| reply.contains(own)), "{request}: {reply}");
        }
        let long = format!("GET / HTTP/1.1\r\nHost: b.org\r\nX: {}\r\n\r\n", "x".repeat(1 << 16));
        for (request, status) in [
            ("GET /\r\n\r\n", "400"),
            ("GET / HTTP/7.0\r\nHost: b.org\r\n\r\n", "505"),
            ("GET / HTTP/1.1\r\nHost: b.org\r\nX:", "408"),
            (&long, "431"),
        ] {
            let (mut session, mut out) = (session(), Outbox::new());
            let received = session.receive(request.as_bytes(), test_now(), &mut out);
            if received.next == Next::Receive(Phase::Head) {
                session.give_up(GiveUp::TimedOut(Phase::Head), test_now(), &mut out);
            }
            let reply = String::from_utf8(queued(&out)).unwrap();
            assert_eq!(&reply[9..12], status, "{request}");
            let of_host =
                ["X-Host", "Security", "page of"].iter().find(|own| reply.contains(**own));
            assert_eq!(of_host, None, "{reply}");
        }
    }
    let mut session = Session::new(both, Peer::Unix).over_tls(None);
    let reply = replies_of(&mut session, "GET / HTTP/1.1\r\nHost: c.org\r\n\r\n");
    assert!(reply.starts_with("HTTP/1.1 421 ") && !reply.contains("Security"), "{reply}");
    let only = handle(Hosts { default: Some(a), named: Vec::new() });
    let mut session = Session::new(only, Peer::Unix).over_tls(None);
    let reply = replies_of(&mut session, "GET /\r\n\r\n");
    assert!(reply.contains("X-Host: long.a.org\r\n") && reply.contains("max-age=10"), "{reply}");
}
