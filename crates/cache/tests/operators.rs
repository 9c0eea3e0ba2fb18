//! Operators' commands, at each limit: one below, at it, and one above.

extern crate weftwork_cache as cache;

mod transcript;

use std::sync::Arc;
use std::time::Duration;

use cache::{Peer, Service, Session, Settings};
use session::replay::{queued, test_now};
use session::{Next, Now, Outbox, Session as _, work_here};

fn service(settings: Settings) -> Arc<Service> {
    transcript::service(settings).expect("a store")
}

fn open(service: &Arc<Service>) -> Session {
    Session::new(Arc::clone(service), Peer::Unix, test_now())
}

fn after(seconds: u64) -> Now {
    let now = test_now();
    Now {
        monotonic: now.monotonic + Duration::from_secs(seconds),
        since_epoch: now.since_epoch + Duration::from_secs(seconds),
    }
}

/// Sends a line, some seconds after the start, and returns the whole reply.
fn ask_after(session: &mut Session, seconds: u64, line: &str) -> String {
    let now = after(seconds);
    let mut out = Outbox::new();
    let text = format!("{line}\r\n");
    let mut reply = Vec::new();
    let mut input = text.as_bytes();
    loop {
        let received = session.receive(input, now, &mut out);
        input = &input[received.used..];
        reply.extend(queued(&out));
        out.clear();
        match received.next {
            Next::Work => drop(work_here(session, now, &mut out)),
            Next::Flush => {}
            _ => return String::from_utf8(reply).expect("text"),
        }
    }
}

fn ask(session: &mut Session, line: &str) -> String {
    ask_after(session, 0, line)
}

/// Sends all on one connection. Replies are compared without their last line end.
fn check(settings: Settings, table: &[(&str, &str)]) {
    let service = service(settings);
    let mut session = open(&service);
    for (line, reply) in table {
        let found = ask(&mut session, line);
        assert_eq!(found.trim_end_matches("\r\n"), *reply, "{line}");
    }
}

const ERROR: &str = "ERROR";
const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
const BAD_CLASS: &str = "BADCLASS invalid class id";

#[test]
fn verbosity_and_flush_arguments() {
    const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";
    check(
        Settings::default(),
        &[
            ("verbosity", BAD_FORMAT),
            ("verbosity x", BAD_FORMAT),
            ("verbosity 1 2 3", "OK"),
            ("verbosity 1 noreply", ""),
            ("flush_all", "OK"),
            ("flush_all noreply", ""),
            ("flush_all 0", "OK"),
            ("flush_all -1", "OK"),
            ("flush_all 5 noreply", ""),
            ("flush_all x", BAD_EXPTIME),
            ("flush_all 1 2 3", "OK"),
            ("refresh_certs", ERROR),
            ("shutdown", "SERVER_ERROR: shutdown not enabled"),
        ],
    );
    let no_flush = Settings { allows_flush: false, ..Settings::default() };
    let refused = "CLIENT_ERROR flush_all not allowed";
    check(no_flush, &[("flush_all", refused), ("flush_all x", refused)]);
}

#[test]
fn the_verbosity_is_two_at_most() {
    let service = service(Settings::default());
    let mut session = open(&service);
    for (asked, level) in [("0", 0), ("1", 1), ("2", 2), ("3", 2), ("99", 2)] {
        ask(&mut session, &format!("verbosity {asked}"));
        assert_eq!(service.verbosity(), level);
    }
}

#[test]
fn delayed_flush_takes_what_is_there() {
    let service = service(Settings::default());
    let mut session = open(&service);
    ask(&mut session, "set a 0 0 1\r\nx");
    assert_eq!(ask(&mut session, "flush_all 10"), "OK\r\n");
    assert!(ask_after(&mut session, 9, "get a").starts_with("VALUE"));
    assert_eq!(ask_after(&mut session, 10, "get a"), "END\r\n");
    ask_after(&mut session, 11, "set a 0 0 1\r\nx");
    // A past time means now.
    assert_eq!(ask_after(&mut session, 12, "flush_all -5"), "OK\r\n");
    assert_eq!(ask_after(&mut session, 12, "get a"), "END\r\n");
}

#[test]
fn memory_limit_is_8_mb_at_least() {
    let service = service(Settings::default());
    let mut session = open(&service);
    let too_small = "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n";
    let not_bytes = "MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n";
    let no_room = "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n";
    for (mb, reply, limit) in [
        ("7", too_small, 64),
        ("8", "OK\r\n", 8),
        ("9", "OK\r\n", 9),
        ("1000000000", no_room, 9),
        ("1000000001", not_bytes, 9),
        // 2^32 + 10: memcached parses 32 bits.
        ("4294967306", "OK\r\n", 10),
        ("x", "ERROR\r\n", 10),
        ("11 noreply", "", 11),
    ] {
        assert_eq!(ask(&mut session, &format!("cache_memlimit {mb}")), reply, "{mb}");
        assert_eq!(service.store().stats().limit_maxbytes, limit << 20, "{mb}");
    }
    assert_eq!(ask(&mut session, "cache_memlimit"), "ERROR\r\n");
}

#[test]
fn ignored_settings_are_validated() {
    let too_much = "ERROR hot and warm pcts must not exceed 80";
    let not_positive = "ERROR hot/warm age factors must be greater than 0";
    check(
        Settings::default(),
        &[
            ("lru", ERROR),
            ("lru x", ERROR),
            ("lru mode flat", "OK"),
            ("lru mode segmented", "OK"),
            ("lru mode x", ERROR),
            ("lru tune 40 40 0.1 2", "OK"),
            ("lru tune 40 41 0.1 2", too_much),
            ("lru tune 4294967295 4294967295 1 1", too_much),
            ("lru tune 10 10 0 1", not_positive),
            ("lru tune 10 10 1 0", not_positive),
            ("lru tune 10 10 -1 1", not_positive),
            ("lru tune 10 10 1 -0.5", not_positive),
            ("lru tune x 10 1 1", ERROR),
            ("lru tune 10 x 1 1", ERROR),
            ("lru tune 10 10 x 1", ERROR),
            ("lru tune 10 10 1 x", ERROR),
            ("lru temp_ttl -1", "OK"),
            ("lru temp_ttl 0", "OK"),
            ("lru temp_ttl x", ERROR),
            ("slabs", ERROR),
            ("slabs reassign x 1", BAD_FORMAT),
            ("slabs reassign 1 x", BAD_FORMAT),
            ("slabs reassign 5 5", "SAME src and dst class are identical"),
            ("slabs reassign 0 1", "BADCLASS invalid src or dst class id"),
            ("slabs reassign 1 0", "BADCLASS invalid src or dst class id"),
            ("slabs reassign 64 1", "BADCLASS invalid src or dst class id"),
            ("slabs reassign 1 64", "BADCLASS invalid src or dst class id"),
            ("slabs reassign -1 1", "BADCLASS invalid src or dst class id"),
            ("slabs reassign 1 63", "NOSPARE source class has no spare pages"),
            ("slabs reassign 63 1", "NOSPARE source class has no spare pages"),
            ("slabs automove 0", "ERROR pages always move to the classes that need them"),
            ("slabs automove 1", "OK"),
            ("slabs automove 2", "OK"),
            ("slabs automove 3", ERROR),
            ("slabs automove x", BAD_FORMAT),
        ],
    );
}

#[test]
fn crawler_commands() {
    let service = service(Settings::default());
    let mut session = open(&service);
    for (line, reply, pause_us) in [
        ("enable", "ERROR failed to start lru crawler thread", Some(100)),
        ("disable", "OK", None),
        ("disable", "ERROR failed to stop lru crawler thread", None),
        ("crawl all", "CLIENT_ERROR lru crawler disabled", None),
        ("enable", "OK", Some(100)),
        ("sleep x", BAD_FORMAT, Some(100)),
        ("sleep 1000001", "CLIENT_ERROR sleep must be one second or less", Some(100)),
        ("sleep 1000000", "OK", Some(1_000_000)),
        ("sleep 0", "OK", Some(0)),
        ("tocrawl x", BAD_FORMAT, Some(0)),
        ("tocrawl 77", "OK", Some(0)),
        ("crawl all", "OK", Some(0)),
        ("crawl 1", "OK", Some(0)),
        ("crawl 1,63", "OK", Some(0)),
        ("crawl 0", BAD_CLASS, Some(0)),
        ("crawl 64", BAD_CLASS, Some(0)),
        ("crawl 1,64", BAD_CLASS, Some(0)),
        ("crawl 1,x", BAD_CLASS, Some(0)),
        ("metadump 64", BAD_CLASS, Some(0)),
        ("mgdump x", BAD_CLASS, Some(0)),
        ("metadump hash", "OK\r\nEND", Some(0)),
        ("mgdump 63", "OK\r\nEN", Some(0)),
        ("x", ERROR, Some(0)),
    ] {
        let found = ask(&mut session, &format!("lru_crawler {line}"));
        assert_eq!(found.trim_end_matches("\r\n"), reply, "{line}");
        assert_eq!(service.crawl_pause(), pause_us.map(Duration::from_micros), "{line}");
    }
    let settings = ask(&mut session, "stats settings");
    for line in ["STAT lru_crawler yes", "STAT lru_crawler_sleep 0", "STAT lru_crawler_tocrawl 77"]
    {
        assert!(settings.lines().any(|found| found == line), "{line}");
    }
    let stats = ask(&mut session, "stats");
    assert!(stats.contains("STAT lru_crawler_starts 3\r\n"));
}

#[test]
fn listings_by_class_and_count() {
    let service = service(Settings::default());
    let mut session = open(&service);
    let middle = "y".repeat(500);
    for line in [
        "set a 0 0 1\r\nx".to_owned(),
        "set b 0 50 1\r\nx".to_owned(),
        "set c 0 0 1\r\nx".to_owned(),
        format!("set m 0 0 500\r\n{middle}"),
    ] {
        assert_eq!(ask(&mut session, &line), "STORED\r\n");
    }
    ask_after(&mut session, 3, "get b");
    let me = ask(&mut session, "me m");
    let class_of_m = me.split("cls=").nth(1).unwrap().split(' ').next().unwrap();
    let count = |reply: &str| reply.lines().filter(|line| line.len() > "END".len()).count();
    for (line, items) in [
        ("lru_crawler metadump all", 4),
        ("lru_crawler metadump hash", 4),
        ("lru_crawler metadump 1", 3),
        ("lru_crawler mgdump 1", 3),
        (&format!("lru_crawler metadump {class_of_m}"), 1),
        (&format!("lru_crawler metadump 1,{class_of_m}"), 4),
        ("lru_crawler metadump 50", 0),
        ("stats cachedump 1 0", 3),
        ("stats cachedump 1 2", 2),
        ("stats cachedump 1 3", 3),
        ("stats cachedump 63 0", 0),
    ] {
        let reply = ask_after(&mut session, 5, line);
        assert_eq!(count(&reply), items, "{line}: {reply}");
        assert!(reply.ends_with("END\r\n") || reply.ends_with("EN\r\n"), "{reply}");
    }
    let dump = ask_after(&mut session, 5, "lru_crawler metadump all");
    let of_b = dump.lines().find(|line| line.starts_with("key=b ")).unwrap();
    let expected = "exp=1795176050 la=1795176003 cas=2 fetch=yes cls=1 size=42 flags=0 ";
    assert_eq!(of_b, format!("key=b {expected}"));
    let of_a = dump.lines().find(|line| line.starts_with("key=a ")).unwrap();
    assert!(of_a.starts_with("key=a exp=-1 la=1795176000 cas=1 fetch=no "), "{of_a}");
    let dump = ask_after(&mut session, 5, "stats cachedump 1 0");
    assert!(dump.contains("ITEM b [1 b; 1795176050 s]\r\n"), "{dump}");
    assert!(dump.contains("ITEM a [1 b; 0 s]\r\n"), "{dump}");
}

#[test]
fn listing_needs_permission() {
    let no_dump = Settings { allows_dump: false, ..Settings::default() };
    let refused = "CLIENT_ERROR stats detail not allowed";
    check(
        no_dump,
        &[
            ("lru_crawler metadump all", "ERROR metadump not allowed"),
            ("lru_crawler mgdump all", "ERROR key dump not allowed"),
            ("stats detail on", refused),
            ("stats detail dump", refused),
            ("stats detail off", refused),
            ("stats detail", refused),
            ("stats cachedump 1 0", "CLIENT_ERROR stats cachedump not allowed"),
            ("lru_crawler crawl all", "OK"),
        ],
    );
}

/// Seen: `weft cache -W` let clients watch. Cause: the flag was parsed but never used. Cure: the
/// setting is checked, with memcached's reply.
#[test]
fn who_may_not_watch_is_told_so() {
    let no_watch = Settings { allows_watch: false, ..Settings::default() };
    let refused = "CLIENT_ERROR watch commands not allowed";
    check(no_watch, &[("watch", refused), ("watch fetchers", refused), ("watch nothing", refused)]);
}

#[test]
fn stats_groups() {
    check(
        Settings::default(),
        &[
            ("stats nothing", ERROR),
            ("stats items slabs", ERROR),
            ("stats items", "END"),
            ("stats extstore", "END"),
            ("stats cachedump", "CLIENT_ERROR bad command line"),
            ("stats cachedump 1", "CLIENT_ERROR bad command line"),
            ("stats cachedump x 0", BAD_FORMAT),
            ("stats cachedump 1 x", BAD_FORMAT),
            ("stats cachedump 64 0", "CLIENT_ERROR Illegal slab id"),
            ("stats detail", "CLIENT_ERROR usage: stats detail on|off|dump"),
            ("stats detail x", "CLIENT_ERROR usage: stats detail on|off|dump"),
            ("stats sizes", "STAT sizes_status disabled\r\nEND"),
            ("stats sizes_enable", "STAT sizes_status enabled"),
            ("set a 0 0 1\r\nx", "STORED"),
            ("stats sizes", "STAT 64 1\r\nEND"),
            ("stats sizes_disable", "STAT sizes_status disabled"),
            ("stats reset", "RESET"),
        ],
    );
    let service = service(Settings::default());
    let mut session = open(&service);
    assert_eq!(ask(&mut session, "stats settings x"), ask(&mut session, "stats settings"));
}

#[test]
fn times_are_in_seconds() {
    let service = service(Settings::default());
    service.listens_at("tcp:127.0.0.1:11211");
    service.listens_at("unix:/run/c.sock");
    let mut idle = open(&service);
    let mut session = open(&service);
    let peer = Peer::Tcp(Some("127.0.0.1:4711".parse().unwrap()));
    let _accepted = [
        Session::accepted(Arc::clone(&service), peer, 0, test_now()),
        Session::accepted(Arc::clone(&service), Peer::Unix, 1, test_now()),
    ];
    ask_after(&mut idle, 3, "version");
    let conns = ask_after(&mut session, 7, "stats conns");
    let expected = [
        "STAT listen0:addr tcp:127.0.0.1:11211",
        "STAT listen0:state conn_listening",
        "STAT listen1:addr unix:/run/c.sock",
        "STAT listen1:state conn_listening",
        "STAT 1:addr unix:-",
        "STAT 1:state conn_read",
        "STAT 1:secs_since_last_cmd 4",
        "STAT 2:addr unix:-",
        "STAT 2:state conn_parse_cmd",
        "STAT 2:secs_since_last_cmd 0",
        "STAT 3:addr tcp:127.0.0.1:4711",
        "STAT 3:listen_addr tcp:127.0.0.1:11211",
        "STAT 3:state conn_read",
        "STAT 3:secs_since_last_cmd 7",
        "STAT 4:addr unix:/run/c.sock",
        "STAT 4:listen_addr unix:/run/c.sock",
        "STAT 4:state conn_read",
        "STAT 4:secs_since_last_cmd 7",
        "END",
    ];
    assert_eq!(conns.lines().collect::<Vec<_>>(), expected);
    let stats = ask_after(&mut session, 7, "stats");
    for line in [
        "STAT uptime 7",
        "STAT time 1795176007",
        "STAT curr_connections 4",
        "STAT total_connections 4",
        "STAT accepting_conns 1",
        &format!("STAT pid {}", std::process::id()),
    ] {
        assert!(stats.lines().any(|found| found == line), "{line}: {stats}");
    }
}

#[test]
fn class_figures_have_names() {
    let service = service(Settings::default());
    let mut session = open(&service);
    ask(&mut session, "set a 0 0 1\r\nx");
    ask(&mut session, "set b 0 0 1\r\nx");
    ask(&mut session, "get a");
    ask(&mut session, "touch b 0");
    ask(&mut session, "touch b 0");
    let items = ask_after(&mut session, 8, "stats items");
    let of_items = |name: &str| format!("STAT items:1:{name}\r\n");
    for line in ["number 2", "number_hot 2", "number_warm 0", "age 8", "mem_requested 84"] {
        assert!(items.contains(&of_items(line)), "{line}: {items}");
    }
    for zero in ["evicted", "evicted_active", "hits_to_temp", "age_hot", "ghost_hits"] {
        assert!(items.contains(&of_items(&format!("{zero} 0"))), "{zero}: {items}");
    }
    let slabs = ask(&mut session, "stats slabs");
    for line in [
        "STAT 1:used_chunks 2",
        "STAT 1:get_hits 1",
        "STAT 1:cmd_set 2",
        "STAT 1:touch_hits 2",
        "STAT active_slabs 1",
        "STAT total_malloced 1048576",
    ] {
        assert!(slabs.lines().any(|found| found == line), "{line}: {slabs}");
    }
    ask(&mut session, "delete a");
    ask(&mut session, "delete b");
    // A class without items and evictions is not listed.
    assert_eq!(ask(&mut session, "stats items"), "END\r\n");
}

#[test]
fn watcher_kinds_and_limit() {
    let service = service(Settings::default());
    let mut session = open(&service);
    assert_eq!(ask(&mut session, "watch x"), "ERROR\r\n");
    assert_eq!(ask(&mut session, "watch fetchers x"), "ERROR\r\n");
    let kinds = [
        "",
        " fetchers",
        " mutations",
        " evictions",
        " connevents",
        " rawcmds",
        " sysevents",
        " deletions",
        " proxyreqs",
        " proxyevents",
        " proxyuser",
        " fetchers mutations",
    ];
    let watch = |kinds: &str| {
        let mut session = open(&service);
        let mut out = Outbox::new();
        session.receive(format!("watch{kinds}\r\n").as_bytes(), test_now(), &mut out);
        (String::from_utf8(queued(&out)).unwrap(), session)
    };
    let watchers: Vec<_> = (0..20).map(|at| watch(kinds[at % kinds.len()])).collect();
    for (reply, _) in &watchers {
        assert!(reply.starts_with("OK\r\n"), "{reply}");
    }
    let (refused, _) = watch("");
    assert_eq!(refused, "WATCHER_TOO_MANY log watcher limit reached\r\n");
    assert!(ask(&mut session, "stats").contains("STAT log_watchers 20\r\n"));
    drop(watchers);
    assert!(ask(&mut session, "stats").contains("STAT log_watchers 0\r\n"));
}
