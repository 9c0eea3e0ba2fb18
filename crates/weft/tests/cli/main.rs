//! Tests of the command as people and scripts use it: its output and exit codes.

mod many;
mod mistakes;
mod serving;
mod top;
mod words;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn weft(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(words);
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("WEFT_") {
            command.env_remove(variable);
        }
    }
    command
}

struct Ran {
    code: i32,
    out: String,
    err: String,
}

fn run(command: &mut Command) -> Ran {
    let Output { status, stdout, stderr } = command.output().unwrap();
    Ran {
        code: status.code().expect("an exit code, not a signal"),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    }
}

#[track_caller]
fn check(command: &mut Command, code: i32, in_err: &str) -> String {
    let ran = run(command);
    assert_eq!(ran.code, code, "{}", ran.err);
    assert!(ran.err.contains(in_err), "{}", ran.err);
    assert_eq!(ran.out, "", "an error does not belong on standard output");
    ran.err
}

/// Asserts that the command line is refused with exit code 2 and a message that contains `said`.
/// Returns the message. No word may contain a space.
#[track_caller]
fn refused(words: &str, said: &str) -> String {
    let words: Vec<_> = words.split(' ').collect();
    check(&mut weft(&words), 2, said)
}

fn file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A self-signed certificate for `localhost` and its key, as one PEM file.
fn certificate() -> (String, rustls::pki_types::CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let pem = made.cert.pem() + &made.signing_key.serialize_pem();
    (pem, made.cert.der().clone())
}
