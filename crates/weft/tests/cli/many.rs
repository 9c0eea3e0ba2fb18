//! Thousands of hosts and redirects: limits on memory at the start and at a reload.

use std::fs;

use rustix::process::{Resource, Signal, getrlimit};

use super::file;
use super::serving::Served;

/// Memory of a process in KiB: `VmRSS` is now, `VmHWM` the peak. proc_pid_status(5)
fn memory_kib(served: &Served, name: &str) -> u64 {
    let path = format!("/proc/{}/status", served.child.id());
    let status = fs::read_to_string(path).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let mut words = line.unwrap().split_whitespace();
    words.next().unwrap().parse().unwrap()
}

/// All hosts share one budget, one table, one sketch and one copy of inherited rules. Seen: each
/// host had 512 KiB of its own, so these hosts had 5 GiB.
#[test]
fn ten_thousand_hosts_have_bounded_memory() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("site");
    fs::create_dir(&root).unwrap();
    file(&root, "index.html", "hello");
    let rules: String = (0..10_000).map(|nth| format!("/old/{nth} /new/{nth}\n")).collect();
    let rules = file(folder.path(), "redirects", &rules);
    let page = file(folder.path(), "404.html", &"gone ".repeat(10_000));
    let top = format!(
        "redirects = '{rules}'\nerror_page = '404={page}'\ndeny = ['*.sql', '*.bak']\n\
         [cache]\n'/assets/**' = 'max-age=9'\n'*.html' = 'no-cache'\n\
         [headers]\nX-A = '1'\nX-B = '2'\nX-C = '3'\n"
    );
    // Each host holds a descriptor of its root.
    let open_files = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let count = (open_files / 2).min(10_000);
    let host = |nth| {
        let root = root.display();
        let names = format!("names = ['h{nth}.example.org', '*.h{nth}.example.org']");
        let own = format!("headers = {{ X-Host = '{nth}' }}\n");
        let own = if nth % 100 == 0 { own } else { String::new() };
        format!("[[host]]\n{names}\naliases = 'www.h{nth}.example.net'\nroot = '{root}'\n{own}")
    };
    let settings = |count| top.clone() + &(0..count).map(host).collect::<String>();
    let config = file(folder.path(), "weft.toml", &settings(1));
    let few = Served::start(&["--config", &config]);
    let few_kib = memory_kib(&few, "VmHWM:");

    fs::write(&config, settings(count)).unwrap();
    let mut many = Served::start(&["--config", &config]);
    let per_host = |name| (memory_kib(&many, name) - few_kib) * 1024 / count;
    let now = per_host("VmRSS:");
    let most = per_host("VmHWM:");
    assert!(now < 16 << 10 && most < 24 << 10, "{now} bytes a host, {most} at most");
    let last = format!("http://h{}.example.org/", count - 1);
    assert!(many.get(&last).ends_with("\r\n\r\nhello"));
    let moved = many.get(&format!("{last}old/9999"));
    assert!(moved.contains("\r\nLocation: /new/9999\r\n"), "{moved}");
    assert!(many.get(&format!("http://h{count}.example.org/")).starts_with("HTTP/1.1 421 "));

    fs::write(&config, settings(count).replace("X-A = '1'", "X-A = '2'")).unwrap();
    many.signal(Signal::HUP);
    many.expect("reloaded");
    assert!(many.get(&last).contains("\r\nX-A: 2\r\n"));
    let per_host = |name| (memory_kib(&many, name) - few_kib) * 1024 / count;
    let now = per_host("VmRSS:");
    let most = per_host("VmHWM:");
    assert!(now < 32 << 10 && most < 32 << 10, "{now} bytes a host, {most} at most");
}

#[test]
fn ten_thousand_redirects_have_bounded_memory() {
    let folder = tempfile::tempdir().unwrap();
    let rules = |sign: &str, quote: &str| -> String {
        let rule = |nth| format!("{quote}/old/{nth}/page{quote}{sign}{quote}/new/{nth}{quote}\n");
        (0..10_000).map(rule).collect()
    };
    let root = folder.path().display();
    let listed = file(folder.path(), ".redirects", &rules(" ", ""));
    let mut kib = Vec::new();
    for redirects in [
        String::new(),
        format!("redirects = '{listed}'\n"),
        format!("[redirects]\n{}", rules(" = ", "'")),
    ] {
        let settings = format!("root = '{root}'\n{redirects}");
        let config = file(folder.path(), ".weft.toml", &settings);
        let served = Served::start(&["--config", &config]);
        let moved = served.get("/old/9999/page");
        assert_eq!(moved.contains("\r\nLocation: /new/9999\r\n"), !redirects.is_empty());
        kib.push(memory_kib(&served, "VmRSS:"));
    }
    eprintln!("{kib:?} KiB");
    // A table takes more memory than a file of lines: TOML is parsed into a tree, whose memory
    // stays with the allocator. 16.04 MiB were measured.
    assert!(kib[1] - kib[0] < 8 << 10 && kib[2] - kib[0] < 18 << 10, "{kib:?} KiB");
}
