//! Sweeps: one run for each of several rates.

use super::{hello, json, load_to};

#[test]
fn a_sweep_runs_every_rate() {
    let sweep = "--sweep 100..300:100 --pause 1ms -d 100ms --json -";
    let output = load_to(0, &format!("http {} {sweep}", hello()));
    let steps = json(&output)["steps"].as_array().unwrap().clone();
    let rates: Vec<f64> = steps.iter().map(|step| step["rate_per_s"].as_f64().unwrap()).collect();
    assert_eq!(rates, [100.0, 200.0, 300.0]);
}

#[test]
fn sweep_files_and_conditions_per_run() {
    let url = hello();
    let folder = tempfile::tempdir().unwrap();
    let below = folder.path().display();
    let sweep = "--sweep 200,20 -d 200ms --pause 0s --fail-if status.2xx>20";
    let files = format!("--hgrm {below}/out.hgrm --interval-log {below}/log");
    let output = load_to(1, &format!("http {url} {sweep} {files}"));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("at 200/s: status.2xx>20"), "the first run, not the last: {said}");
    assert!(!said.contains("at 20/s"), "{said}");
    for name in ["out-01-200.hgrm", "out-02-20.hgrm", "log-01-200", "log-02-20"] {
        let file = folder.path().join(name);
        let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(text.contains('#'), "{name}: {text}");
    }
    load_to(2, &format!("http {url} --sweep 20 --hgrm -"));
}

#[test]
fn a_sweep_writes_a_line_per_rate() {
    let sweep = "--sweep 50,100 -d 200ms --pause 0s --csv -";
    let output = load_to(0, &format!("http {} {sweep}", hello()));
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 3);
}
