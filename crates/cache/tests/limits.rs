//! Numbers that a client may send, at their limits, next to them and at three times the limit:
//! lengths, counts, keys, flags, expiry times, opaques, deltas. Nothing panics, and a conversation
//! that continues is still in sync.

extern crate weftwork_cache as cache;

mod transcript;

use std::sync::Arc;

use cache::{Peer, Service, Session, Settings};
use proptest::prelude::*;
use proptest::sample::select;
use session::replay::{queued, test_now};
use session::{Chunk, Next, Outbox, Session as _, work_here};

fn service() -> Arc<Service> {
    transcript::service(Settings::default()).expect("a store")
}

/// Replies to `sent` as one conversation, and the next step.
fn talk(service: &Arc<Service>, sent: &[u8]) -> (Vec<u8>, Next) {
    let mut session = Session::new(Arc::clone(service), Peer::Unix, test_now());
    let (mut out, mut replied, mut rest) = (Outbox::new(), Vec::new(), sent);
    loop {
        let received = session.receive(rest, test_now(), &mut out);
        rest = &rest[received.used..];
        replied.extend(queued(&out));
        out.clear();
        match received.next {
            Next::Flush => {}
            Next::Work => drop(work_here(&mut session, test_now(), &mut out)),
            next => break (replied, next),
        }
    }
}

#[test]
fn empty_listing_yields() {
    // Seen: `stats cachedump` of a class without items walked over all items in one call, and all
    // other clients of the processor waited. Cause: only a full outbox ended the call. Seen again:
    // up to 0.4 s, though a call walked for 100 µs. Cause: a job with nothing to do ends before its
    // fiber waits for it, and a fiber that need not wait does not yield. Cure: the walk is the job.
    let service = service();
    let set = |at: u32| format!("set k{at} 0 0 1 noreply\r\nv\r\n");
    talk(&service, (0..20_000).map(set).collect::<String>().as_bytes());
    let mut session = Session::new(Arc::clone(&service), Peer::Unix, test_now());
    let mut out = Outbox::new();
    let mut calls = 0;
    let checked = || service.store().stats().crawler_items_checked;
    let mut input = &b"stats cachedump 30 0\r\n"[..];
    loop {
        calls += 1;
        let before = checked();
        let received = session.receive(input, test_now(), &mut out);
        assert_eq!(checked(), before, "the walk ran outside of its job");
        input = &input[received.used..];
        match received.next {
            Next::Work => drop(work_here(&mut session, test_now(), &mut out)),
            _ => break,
        }
    }
    assert!((5..100).contains(&calls), "{calls} calls for 20,000 items");
    assert!(matches!(out.chunks().next(), Some(Chunk::Bytes(b"END\r\n"))));
}

const LIMITS: [u128; 18] = [
    0,
    1,
    9,
    31,
    64,
    250,
    8192,
    u8::MAX as u128,
    u16::MAX as u128,
    1 << 20,
    60 * 60 * 24 * 30,
    i32::MAX as u128 - 2,
    i32::MAX as u128,
    u32::MAX as u128,
    1_795_176_000,
    i64::MAX as u128,
    u64::MAX as u128,
    u64::MAX as u128 + 1,
];

/// A limit, its neighbours, three times the limit; with signs and leading zeros.
fn number() -> impl Strategy<Value = String> {
    let near =
        |limit: u128| vec![limit.saturating_sub(1), limit, limit + 1, limit.saturating_mul(3)];
    let numbers = select(LIMITS.map(near).concat());
    (numbers, select(vec!["", "", "", "-", "+", "000", " -"]))
        .prop_map(|(number, before)| format!("{before}{number}"))
}

/// A word of the length of a limit, one less, one more, or three times the limit.
fn word(limit: usize) -> impl Strategy<Value = String> {
    select(vec![1, limit - 1, limit, limit + 1, 3 * limit]).prop_map(|len| "k".repeat(len))
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![Just("a".to_owned()), Just("n".to_owned()), word(250)]
}

fn meta_flag() -> impl Strategy<Value = String> {
    prop_oneof![
        select(b"bcfhklqstuvx".to_vec()).prop_map(|letter| char::from(letter).to_string()),
        (select(b"CDEFJNRT".to_vec()), number())
            .prop_map(|(letter, number)| format!("{}{number}", char::from(letter))),
        word(31).prop_map(|opaque| format!("O{opaque}")),
        select(vec!["MS", "MA", "MP", "ME", "MR", "MI", "MD", "I", "P", "L"])
            .prop_map(str::to_owned),
    ]
}

/// A line without a value.
fn line() -> impl Strategy<Value = String> {
    let meta =
        (select(vec!["mg", "md", "ma", "me"]), key(), prop::collection::vec(meta_flag(), 0..20));
    prop_oneof![
        (select(vec!["incr", "decr", "touch"]), key(), number())
            .prop_map(|(verb, key, number)| format!("{verb} {key} {number}")),
        (number(), key(), 1..60_usize).prop_map(|(number, key, count)| format!(
            "gats {number}{}",
            format!(" {key}").repeat(count)
        )),
        meta.prop_map(|(verb, key, flags)| format!("{verb} {key} {}", flags.join(" "))),
        (
            select(vec![
                "flush_all",
                "verbosity",
                "cache_memlimit",
                "lru_crawler sleep",
                "lru_crawler tocrawl",
                "lru_crawler crawl",
                "lru_crawler metadump",
                "slabs automove",
                "slabs reassign 1",
                "lru temp_ttl",
                "lru tune 1 1 1",
                "stats cachedump 1",
                "stats cachedump",
            ]),
            number()
        )
            .prop_map(|(command, number)| format!("{command} {number}")),
    ]
}

/// A line with a value, which is included if it is short.
fn storage() -> impl Strategy<Value = Vec<u8>> {
    let classic = (
        select(vec!["set", "add", "replace", "append", "prepend", "cas"]),
        key(),
        [number(), number(), number()],
    )
        .prop_map(|(verb, key, [flags, exptime, cas])| match verb {
            "cas" => (format!("cas {key} {flags} {exptime}"), format!(" {cas}")),
            _ => (format!("{verb} {key} {flags} {exptime}"), String::new()),
        });
    let meta = (key(), prop::collection::vec(meta_flag(), 0..20))
        .prop_map(|(key, flags)| (format!("ms {key}"), format!(" {}", flags.join(" "))));
    let lens = select(vec![0_usize, 1, 20, 65_535, 65_536, 196_605, 1 << 20, 3 << 20]);
    (prop_oneof![classic, meta], lens, any::<bool>()).prop_map(|((before, after), len, digits)| {
        let mut sent = format!("{before} {len}{after}\r\n").into_bytes();
        let fill = if digits { b' ' } else { b'x' };
        let start = sent.len();
        sent.resize(start + len, fill);
        if let (Some(first), true) = (sent.get_mut(start), digits) {
            *first = b'7';
        }
        sent.extend_from_slice(b"\r\n");
        sent
    })
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => line().prop_map(|line| format!("{line}\r\n").into_bytes()),
        2 => storage(),
    ]
}

/// A header whose lengths may be inconsistent, and part of a body.
fn binary() -> impl Strategy<Value = Vec<u8>> {
    let edges = |max: u64| {
        let all = LIMITS.map(|limit| (limit.min(max.into())) as u64);
        select(all.to_vec())
    };
    (
        any::<u8>(),
        edges(u16::MAX.into()),
        edges(u8::MAX.into()),
        edges(u32::MAX.into()),
        edges(u64::MAX),
        any::<bool>(),
        any::<[u8; 20]>(),
    )
        .prop_map(|(opcode, key, extras, body, cas, fits, fill)| {
            let opcode = opcode % 0x26;
            let (key, extras) =
                if fits { (key % 260, [0, 4, 8, 20][extras as usize % 4]) } else { (key, extras) };
            let body = if fits { key + extras + body % 70_000 } else { body };
            let mut sent = vec![0x80, opcode];
            sent.extend_from_slice(&(key as u16).to_be_bytes());
            sent.extend_from_slice(&[extras as u8, 0, 0, 0]);
            sent.extend_from_slice(&(body as u32).to_be_bytes());
            sent.extend_from_slice(&[0; 4]);
            sent.extend_from_slice(&cas.to_be_bytes());
            sent.extend(fill.iter().cycle().take(body.min(70_000) as usize));
            sent
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn text_at_its_limits(commands in prop::collection::vec(text(), 1..8)) {
        let service = service();
        let mut sent = commands.concat();
        // A refused value is parsed as lines; this ends the last of them.
        sent.extend_from_slice(b"\r\nmn\r\n");
        let (replied, next) = talk(&service, &sent);
        let is_in_step = replied.ends_with(b"MN\r\n");
        prop_assert!(is_in_step || next != Next::Receive(session::Phase::Idle));
        prop_assert_eq!(talk(&service, b"mn\r\n").0, b"MN\r\n");
    }

    #[test]
    fn binary_at_its_limits(requests in prop::collection::vec(binary(), 1..8)) {
        let service = service();
        talk(&service, &requests.concat());
        prop_assert_eq!(talk(&service, b"mn\r\n").0, b"MN\r\n");
    }

    #[test]
    fn arbitrary_datagram(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        if let Ok(request) = cache::udp::request(&bytes) {
            talk(&service(), request.payload);
        }
    }
}

/// Seen: `incr` of a number followed by 70,000 spaces was a panic, and over UDP the end of the
/// service. Cause: a width in `format!` is at most 65,535. Cure: the spaces are appended directly.
#[test]
fn counting_in_a_long_value() {
    let service = service();
    for len in [20, 65_534, 65_535, 65_536, 70_001, 3 * 65_535] {
        let value = format!("{:<1$}", "7", len.min(60_000)) + &" ".repeat(len - len.min(60_000));
        let sent = format!("set n 0 0 {len}\r\n{value}\r\nincr n 5\r\nmg n s\r\nma n D9 v\r\n");
        let expected = format!("STORED\r\n12\r\nHD s{len}\r\nVA 2\r\n21\r\n");
        let replied = talk(&service, sent.as_bytes()).0;
        assert_eq!(String::from_utf8_lossy(&replied), expected, "{len}");
    }
}

fn says(service: &Arc<Service>, sent: &str) -> String {
    String::from_utf8(talk(service, sent.as_bytes()).0).expect("text")
}

#[test]
fn keys_have_250_bytes_at_most() {
    let service = service();
    for command in [
        "get {}",
        "gets {}",
        "gat 0 {}",
        "gats 0 {}",
        "get a {}",
        "set {} 0 0 1\r\nx",
        "add {} 0 0 1\r\nx",
        "replace {} 0 0 1\r\nx",
        "append {} 0 0 1\r\nx",
        "prepend {} 0 0 1\r\nx",
        "cas {} 0 0 1 5\r\nx",
        "incr {} 1",
        "decr {} 1",
        "touch {} 0",
        "touch {} x",
        "delete {}",
        "delete {} 0",
        "mg {} v",
        "ms {} 1\r\nx",
        "md {}",
        "ma {}",
        "me {}",
    ] {
        let with_key = |len| command.replace("{}", &"k".repeat(len)) + "\r\n";
        let bad = match command {
            "ma {}" => "CLIENT_ERROR invalid or duplicate flag\r\n",
            _ => "CLIENT_ERROR bad command line format\r\n",
        };
        assert!(says(&service, &with_key(251)).starts_with(bad), "{command}");
        let taken = says(&service, &with_key(250));
        assert!(!taken.starts_with(bad) && !taken.is_empty(), "{command}: {taken}");
    }
}

#[test]
fn lines_have_8192_bytes_at_most() {
    let too_long = "CLIENT_ERROR line too long\r\n";
    let service = service();
    for (command, reply) in [
        ("mg a", "EN\r\n"),
        ("mn", "MN\r\n"),
        ("set a 0 0 1", "STORED\r\n"),
        ("version", "VERSION"),
        ("delete a", "DELETED\r\n"),
    ] {
        // The spaces after the command; the last byte of the line is the carriage return.
        let line =
            |len: usize| format!("{command}{}\r\nx\r\n", " ".repeat(len - command.len() - 1));
        let taken = says(&service, &line(8192));
        assert!(taken.starts_with(reply), "{command}: {taken}");
        let (refused, next) = talk(&service, line(8193).as_bytes());
        assert_eq!((refused, next), (too_long.into(), Next::Linger), "{command}");
    }
    // Before its end has arrived.
    let (waits, next) = talk(&service, &[b'x'; 8192]);
    assert!(waits.is_empty() && matches!(next, Next::Receive(_)));
    let (refused, next) = talk(&service, &[b'x'; 8193]);
    assert_eq!((refused, next), (too_long.into(), Next::Linger));
    // Spaces before the command count as well.
    let indented = format!("{}get a\r\nget b\r\n", " ".repeat(9_000));
    assert_eq!(says(&service, &indented), "END\r\nEND\r\n");
}

#[test]
fn passwords_have_2048_bytes_at_most() {
    let users = cache::auth::Users::parse(b"user:secret\n").expect("users");
    let settings = Settings {
        version: "TEST".to_owned(),
        auth: cache::Auth::Ascii(users),
        ..Settings::default()
    };
    let service = transcript::service(settings).expect("a store");
    let log_in = |value: &str| format!("set x 0 0 {}\r\n{value}\r\n", value.len());
    let unauthenticated = "CLIENT_ERROR unauthenticated\r\n";
    let bad_format = "CLIENT_ERROR bad authentication token format\r\n";
    let failure = "CLIENT_ERROR authentication failure\r\n";
    for (sent, reply) in [
        (log_in("user secret"), "STORED\r\n"),
        (log_in("user wrong"), failure),
        (log_in("user"), bad_format),
        (log_in(&"x ".repeat(1024)), failure),
        (log_in(&"x".repeat(2048)), bad_format),
        (log_in(&"x ".repeat(1025)), bad_format),
        (log_in(&"x".repeat(9000)), bad_format),
        ("get a\r\n".to_owned(), unauthenticated),
        ("set x 0 0 -1\r\n".to_owned(), unauthenticated),
        ("set x 0 0 y\r\n".to_owned(), unauthenticated),
        ("add x 0 0 1\r\n".to_owned(), unauthenticated),
        ("set x 0 0 4\r\nuser!!".to_owned(), unauthenticated),
    ] {
        let then = sent.clone() + &log_in("user secret") + "version\r\n";
        let expected = format!("{reply}STORED\r\nVERSION TEST\r\n");
        let expected = match reply {
            // The log-in is then a normal `set`, which stores an item.
            "STORED\r\n" => "STORED\r\nSTORED\r\nVERSION TEST\r\n".to_owned(),
            _ => expected,
        };
        assert_eq!(says(&service, &then), expected, "{sent:.40}");
    }
    let stats = says(&service, &(log_in("user secret") + "stats\r\n"));
    // 12 conversations and this one logged in; six attempts failed, two of them because of their
    // length.
    for line in ["STAT auth_cmds 17", "STAT auth_errors 4"] {
        assert!(stats.lines().any(|found| found == line), "{line}: {stats}");
    }
    let (waits, next) = talk(&service, &[b'x'; 8192]);
    assert!(waits.is_empty() && matches!(next, Next::Receive(_)));
    let (refused, next) = talk(&service, &[b'x'; 8193]);
    assert_eq!((refused, next), (unauthenticated.into(), Next::Linger));
}

#[test]
fn meta_limits_on_words_and_opaque() {
    let service = service();
    // Separated by two spaces: only words count.
    let words = |count: usize| {
        let flags =
            ["b", "c", "f", "h", "k", "l", "q", "s", "t", "u", "v", "x", "I", "Oa", "T0", "Pa"];
        let more = ["E1", "C1", "N0", "R0"];
        let all: Vec<_> = flags.iter().chain(&more).take(count).copied().collect();
        all.join("  ")
    };
    for (command, too_long, flags_max) in [
        ("mg YQ==", "CLIENT_ERROR options flags are too long\r\n", 18),
        ("md YQ==", "CLIENT_ERROR options flags are too long\r\n", 18),
        ("ma YQ==", "CLIENT_ERROR invalid or duplicate flag\r\n", 18),
    ] {
        let refused = says(&service, &format!("{command} {}\r\n", words(flags_max + 1)));
        assert_eq!(refused, too_long);
        let taken = says(&service, &format!("{command} {}\r\n", words(flags_max)));
        assert_ne!(taken, too_long, "{command}");
    }
    let opaque = |len| format!("O{}", "o".repeat(len));
    let taken = says(&service, &format!("mg a {}\r\n", opaque(31)));
    assert_eq!(taken, format!("EN {}\r\n", opaque(31)));
    let refused = says(&service, &format!("mg a {}\r\n", opaque(32)));
    assert_eq!(refused, "CLIENT_ERROR opaque token too long\r\n");
}
