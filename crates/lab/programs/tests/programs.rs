//! The contract between the laboratory and its programs: one line of JSON, and the exit codes.

use std::process::{Command, Output};

fn run(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft-programs"));
    command.args(words).output().unwrap()
}

#[test]
fn one_line_of_json() {
    let output = run(&["yield", "ms=10", "processors=1", "threads=4"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.lines().count(), 1, "{output:?}");
    let read: lab::Output = serde_json::from_str(&text).unwrap();
    assert!(read.ops > 0 && read.seconds > 0.0, "{text}");
}

#[test]
fn absent_program() {
    let absent = i32::from(lab::EXIT_ABSENT);
    assert_eq!(run(&["cycle", "semaphore=1", "mode=stackless"]).status.code(), Some(absent));
    assert_eq!(run(&["nosuch"]).status.code(), Some(2));
    assert_eq!(run(&[]).status.code(), Some(2));
}
