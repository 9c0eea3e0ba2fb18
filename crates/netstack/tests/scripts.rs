//! Plays the packet scripts of `tests/scripts`. `NETSTACK_SCRIPT=text` plays those whose name
//! contains it.

mod script;

use std::path::Path;

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts")
}

#[test]
fn every_script_is_played_as_it_is_written() {
    let only = std::env::var("NETSTACK_SCRIPT").unwrap_or_default();
    let scripts = script::all(&folder());
    let chosen = scripts.iter().filter(|script| script.name.contains(&only));
    let failures: Vec<String> = chosen.filter_map(|script| script.run().err()).collect();
    assert!(
        failures.is_empty(),
        "{} of {} scripts\n\n{}",
        failures.len(),
        scripts.len(),
        failures.join("\n")
    );
}
