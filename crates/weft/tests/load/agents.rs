//! Many generators that act as one.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::process::Stdio;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;

use super::{command, hello, json, load, load_says, load_to, said, telling_server};

/// Arguments for each of three agents.
fn agents(common: &str) -> [String; 3] {
    // A rendezvous: a port that was free a moment ago, on an address that no other test uses.
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let host = NEXT.fetch_add(1, Ordering::Relaxed);
    let listener = TcpListener::bind((Ipv4Addr::new(127, 0, 1, host), 0)).unwrap();
    let rendezvous = listener.local_addr().unwrap();
    [0, 1, 2].map(|rank| {
        format!("{common} --rate 300 -c 3 --agents 3 --rank {rank} --rendezvous {rendezvous}")
    })
}

#[test]
fn several_agents_are_one_generator() {
    let agents = agents(&format!("http {} -d 500ms --json -", hello()));
    let [first, second, third] = agents
        .map(|words| thread::spawn(move || load_to(0, &words)))
        .map(|agent| agent.join().unwrap());
    let seen = json(&first);
    assert_eq!(seen["offered_rate_per_s"], 300.0);
    assert_eq!(seen["generator"]["threads"], 3, "all three are in the outcome");
    for member in [second, third] {
        assert!(member.stdout.is_empty(), "only rank 0 speaks");
    }
}

/// Seen: of `-c 1` for two agents one said "--connections must be above 0", and `-n 1` sent two
/// requests. Cause: a share was checked as a whole is, or was at least one. Cure: refused before.
#[test]
fn each_agent_needs_a_share() {
    let url = hello();
    let common = format!("http {url} -d 100ms --agents 4 --rank 0 --rendezvous 127.0.1.200:9");
    for (words, why) in [
        ("-c 3", "4 agents need at least 4 --connections"),
        ("-c 7 -t 2", "4 agents need at least 8 --connections"),
        ("-c 8 -n 3", "4 agents need at least 4 --requests"),
    ] {
        load_says(2, &format!("{common} {words}"), why);
    }
}

#[test]
fn killed_agent_fails_all() {
    let (url, connections) = telling_server();
    let agents = agents(&format!("http {url} -d 50s"));
    let [first, second, mut third] =
        agents.map(|words| command(&words).stderr(Stdio::piped()).spawn().unwrap());
    // Each agent has a third of the connections: all are at work once requests came over three.
    let mut at_work = BTreeSet::new();
    while at_work.len() < 3 {
        at_work.insert(connections.recv().unwrap());
    }
    third.kill().unwrap();
    third.wait().unwrap();
    for other in [first, second] {
        let output = other.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("agent 2 on 127.0.0.1 died"), "{said}");
    }
}

#[test]
fn outcomes_of_files_are_merged() {
    let url = hello();
    let folder = tempfile::tempdir().unwrap();
    let below = folder.path().display();
    let replies = |value: &serde_json::Value| value["replies"].as_u64().unwrap();
    let parts = ["a", "b"].map(|name| {
        let file = format!("{below}/{name}.json");
        load_to(0, &format!("http {url} --rate 100 -d 300ms --json {file}"));
        replies(&serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap())
    });
    let output = load(&format!("merge {below}/a.json {below}/b.json --json -"));
    assert_eq!(replies(&json(&output)), parts[0] + parts[1]);
    // Reported for vegeta (#210). Seen: two successive runs were merged as twice the rate, with
    // "the server kept up".
    let note = "a.json and b.json were not measured at the same time";
    assert!(said(&output).replace(&format!("{below}/"), "").contains(note), "{output:?}");
    let output = load(&format!("merge {below}/a.json {below}/a.json --json -"));
    assert!(!said(&output).contains("same time"), "{output:?}");
}
