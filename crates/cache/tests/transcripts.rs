//! Every transcript, replayed whole, byte by byte, and cut at seeded random places.

extern crate weftwork_cache as cache;

mod transcript;

use session::replay::replay;

#[test]
fn transcripts_replay() {
    for (file, text) in transcript::FILES {
        for (name, script) in transcript::parse(file, text) {
            println!("{name}");
            replay(|| transcript::conversation().expect("a store"), &script);
        }
    }
}

#[test]
fn a_line_stands_for_bytes() {
    let sent = |line: &str| {
        let text = format!("== name\n{line}\n---\n--- open\n");
        let [(_, script)] = &transcript::parse("file", &text)[..] else {
            panic!("one transcript");
        };
        script.sent().to_vec()
    };
    assert_eq!(sent("a{bc*2}\\t\\x00"), b"abcbc\t\0\r\n");
    assert_eq!(sent("a\\"), b"a");
    assert_eq!(sent("a\\\\"), b"a\\\r\n");
    assert_eq!(sent(""), b"\r\n");
}
