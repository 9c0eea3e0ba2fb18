//! Runs that end by a signal.

use std::process::{Child, Output, Stdio};

use super::{command, telling_server};

/// Starts a run, and returns once the server has received so many requests.
fn load_until(words: &str, requests: usize) -> Child {
    let (url, heard) = telling_server();
    let mut command = command(&format!("http {url} {words}"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    for _ in 0..requests {
        heard.recv().unwrap();
    }
    child
}

fn signalled(child: Child, signal: i32) -> Output {
    // SAFETY: `child` has not been waited for, so its process number is not reused.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
    child.wait_with_output().unwrap()
}

#[test]
fn signal_shows_results_and_sets_status() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("seen.json");
    // Over one connection: any request after the first shows that the first was answered.
    let words = format!("--rate 100 -c 1 -d 60s --json {}", file.display());
    for (signal, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143)] {
        let output = signalled(load_until(&words, 5), signal);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("stopped early"), "{text}");
        let seen = std::fs::read(&file).unwrap();
        let seen: serde_json::Value = serde_json::from_slice(&seen).unwrap();
        assert!(seen["replies"].as_u64().unwrap() > 0, "{seen}");
        assert_eq!(seen["stopped_early"], true);
    }
}

#[test]
fn stopped_sweep_keeps_its_runs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sweep.csv");
    // The second run is long enough for a stalled test to stop it.
    let sweep = "--sweep 20,1,2,3,4,5,6,7,8,9 -d 5s --pause 0s";
    let words = format!("{sweep} --csv {}", file.display());
    // A hundred requests of the first run, and one of the second.
    let output = signalled(load_until(&words, 101), libc::SIGINT);
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let rows = std::fs::read_to_string(&file).unwrap();
    assert!(rows.contains("sweep,1,20.0"), "{rows}");
    assert!(rows.lines().count() < 11, "not all ten were run: {rows}");
    // Seen: the line of the run that was cut said "kept up: yes" after a third of a second; in a
    // search it was the knee.
    assert!(!rows.contains("sweep,1,1.0"), "only whole runs: {rows}");
}
