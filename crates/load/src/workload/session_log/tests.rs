//! The manual page's example parses as described; other texts are parsed or refused, without panic.

use proptest::prelude::*;

use super::*;

fn parsed(text: &str) -> Vec<UserSession> {
    parse(text).unwrap_or_else(|error| panic!("{error}"))
}

fn seconds(seconds: f64) -> Option<Duration> {
    Some(Duration::from_secs_f64(seconds))
}

// The example of httperf(1).
const EXAMPLE: &str = r#"
# Comment lines start with a ``#'' as the first
# session 1 definition (this is a comment)
/foo.html think=2.0
     /pict1.gif
     /pict2.gif
/foo2.html method=POST contents='Post data'
     /pict3.gif
     /pict4.gif

# session 2 definition
/foo3.html method=POST contents="Multiline\ndata"
/foo4.html method=HEAD
"#;

#[test]
fn manual_page_example() {
    let sessions = parsed(EXAMPLE);
    assert_eq!(sessions.len(), 2);
    let [first, second] = &sessions[0].bursts[..] else { panic!("two bursts") };
    assert_eq!(first.calls, ["/foo.html", "/pict1.gif", "/pict2.gif"].map(Call::get));
    assert_eq!(first.think, seconds(2.0));
    assert_eq!(second.calls[0].method, "POST");
    assert_eq!(second.calls[0].contents, b"Post data");
    assert_eq!(second.think, None);
    assert_eq!(sessions[1].bursts[0].calls[0].contents, b"Multiline\ndata");
    assert_eq!(sessions[1].bursts[1].calls[0].method, "HEAD");
    assert_eq!(sessions.iter().map(UserSession::calls).collect::<Vec<_>>(), [6, 2]);
}

#[test]
fn blank_lines_and_comments() {
    assert_eq!(parsed("\n \n/a\n\t\n\n/b\n\n").len(), 2);
    assert_eq!(parsed("/a\n# between\n/b").len(), 1);
    assert_eq!(parsed("/a\r\n\r\n/b think=1\r\n").len(), 2);
}

#[test]
fn contents_continue_after_backslash() {
    let sessions = parsed("/a method=POST contents='one\\\ntwo' think=1\n/b\n");
    assert_eq!(sessions[0].bursts[0].calls[0].contents, b"one\ntwo");
    assert_eq!(sessions[0].bursts[0].think, seconds(1.0));
    assert_eq!(sessions[0].bursts.len(), 2);
}

#[test]
fn a_whole_url_gives_its_path() {
    let sessions = parsed("http://example.org/a?b=c\nhttps://example.org\n");
    let uris: Vec<_> = sessions[0].bursts.iter().map(|burst| &*burst.calls[0].uri).collect();
    assert_eq!(uris, ["/a?b=c", "/"]);
}

#[test]
fn mistakes_are_named_with_their_line() {
    let refused = |text: &str, line: usize, hint: &str| {
        let error = parse(text).expect_err(text);
        assert!(error.starts_with(&format!("line {line}: ")), "{error}");
        assert!(error.contains(hint), "{error}");
    };
    refused("", 1, "no session");
    refused("# nothing\n\n", 2, "no session");
    refused("\n\n  /a\n", 3, "cannot begin with an indented line");
    refused("/a\nindex.html\n", 2, "is not a URI");
    refused("/a think=soon\n", 1, "write seconds, such as think=2.5");
    refused("/a think=-1\n", 1, "is not a think time");
    refused("/a think=nan\n", 1, "is not a think time");
    refused("/a speed=1\n", 1, "there is no option 'speed'");
    refused("/a /b\n", 1, "'/b' is not understood");
    refused("/a contents='no end\n/b\n", 1, "a quote that does not end");
    refused("/a\n/b contents=\"no end", 2, "a quote that does not end");
    refused("/a method=\"G E T\"", 1, "is not a method");
    refused("/ä", 1, "is not a URI");
}

#[test]
fn a_missing_file_is_named() {
    let error = read(Path::new("nowhere.log")).unwrap_err().to_string();
    assert!(error.contains("nowhere.log"), "{error}");
}

fn call() -> impl Strategy<Value = Call> {
    let uri = "/[a-z0-9/?=&.%-]{0,20}";
    ("GET|POST|HEAD", uri, "[ -~\\n]{0,20}").prop_map(|(method, uri, contents)| Call {
        method,
        uri,
        contents: contents.into_bytes(),
    })
}

fn burst() -> impl Strategy<Value = CallBurst> {
    let think = proptest::option::of((0_u64..100_000).prop_map(Duration::from_millis));
    let calls = proptest::collection::vec(call(), 1..4);
    (calls, think).prop_map(|(calls, think)| CallBurst { calls, think })
}

proptest! {
    #[test]
    fn what_is_written_reads_as_the_same(
        bursts in proptest::collection::vec(proptest::collection::vec(burst(), 1..4), 1..4),
    ) {
        let sessions: Vec<_> = bursts.into_iter().map(|bursts| UserSession { bursts }).collect();
        let mut text = Vec::new();
        write(&sessions, &mut text).unwrap();
        prop_assert_eq!(parse(&String::from_utf8(text).unwrap()).unwrap(), sessions);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,100}") {
        let _ = parse(&text);
    }

    #[test]
    fn texts_of_own_pieces_are_read_or_refused(
        pieces in proptest::collection::vec(
            prop_oneof![
                Just("/a"), Just("/b"), Just("\n"), Just("\n\n"), Just(" "), Just("\t"), Just("#"),
                Just("think="), Just("2.5"), Just("method="), Just("contents="), Just("'"), Just("\""),
                Just("\\"), Just("\\\n"), Just("\\n"), Just("\r\n"), Just("="), Just("é"), Just("http://"),
            ],
            0..40,
        ),
    ) {
        // Every parsed log can be played: no burst is empty, and the log reads back the same.
        if let Ok(sessions) = parse(&pieces.concat()) {
            prop_assert!(sessions.iter().all(|session| !session.bursts.is_empty()));
            prop_assert!(sessions.iter().flat_map(|s| &s.bursts).all(|burst| !burst.calls.is_empty()));
            let mut text = Vec::new();
            write(&sessions, &mut text).unwrap();
            prop_assert_eq!(parse(&String::from_utf8(text).unwrap()).unwrap(), sessions);
        }
    }
}
