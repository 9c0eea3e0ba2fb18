//! Rules of the house style that a program can check, over every file of the workspace.
//!
//! Each test reads the files again: there are a few hundred, which takes milliseconds. A finding is
//! printed as `file:line: the mistake`, all findings of a test at once.

mod floors;
mod style;
mod words;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

/// Allowed dependencies: the folder list is the architecture (ARCHITECTURE.md, "Code map"). The
/// second list is for the crate's tests only.
const ARROWS: &[(&str, &[&str], &[&str])] = &[
    ("session", &[], &[]),
    ("http2", &[], &[]),
    ("web", &["session", "http2"], &[]),
    ("cache", &["session"], &[]),
    ("timer", &[], &[]),
    ("fiber", &["timer"], &[]),
    ("event", &[], &[]),
    ("netstack", &["timer"], &[]),
    ("sockets", &["fiber", "netstack"], &[]),
    ("serve", &["session", "timer", "fiber", "event", "netstack"], &["cache", "serve"]),
    ("load", &["netstack"], &[]),
    ("lab", &["load"], &[]),
    ("lab/programs", &["fiber", "event", "netstack", "lab"], &[]),
    (
        "weft",
        &["session", "web", "cache", "fiber", "event", "netstack", "serve", "load", "lab"],
        &[],
    ),
];

/// Crates without a line of unsafe code.
const SAFE_CRATES: &[&str] = &["http2", "session", "sockets", "timer", "web"];

// Only a table may be longer.
const RUST_LINES_MAX: usize = 1000;

#[test]
fn crates_depend_only_along_the_arrows() {
    let mut findings = Findings::default();
    let mut crates = subdirectories(&root().join("crates"));
    crates.push("lab/programs".to_owned());
    for name in &crates {
        let Some((_, allowed, in_tests)) = ARROWS.iter().find(|(from, ..)| from == name) else {
            findings.add(format!("crates/{name}"), "has no row in the table of arrows");
            continue;
        };
        let manifest = format!("crates/{name}/Cargo.toml");
        let read: toml::Table = read(&root().join(&manifest)).parse().unwrap();
        for (section, to) in workspace_dependencies(&read, &crates) {
            let for_tests = section == "dev-dependencies";
            let is_allowed = allowed.contains(&&*to) || (for_tests && in_tests.contains(&&*to));
            if !is_allowed {
                findings.add(&manifest, format!("{section}: {name} must not know {to}"));
            }
        }
    }
    findings.assert_none();
}

#[test]
fn code_map_has_the_same_arrows() {
    let mut findings = Findings::default();
    let page = read(&root().join("ARCHITECTURE.md"));
    for (name, allowed, _) in ARROWS {
        let folder = name.rsplit('/').next().unwrap_or(name);
        let is_row = |line: &&str| {
            let row = line.trim_start_matches(['│', ' ']);
            row.strip_prefix("├── ").or(row.strip_prefix("└── ")).is_some_and(|row| {
                row.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
            })
        };
        let Some(row) = page.lines().find(is_row) else {
            findings.add("ARCHITECTURE.md", format!("the code map has no row for {name}"));
            continue;
        };
        let arrows = row.split_once(" → ").map_or("", |(_, arrows)| arrows);
        let shown: Vec<&str> = arrows.split(", ").filter(|name| !name.is_empty()).collect();
        if shown != *allowed {
            findings.add("ARCHITECTURE.md", format!("{name} → {shown:?}, not {allowed:?}"));
        }
    }
    findings.assert_none();
}

/// The dependencies of a manifest that are crates of this workspace, with their section.
fn workspace_dependencies(manifest: &toml::Table, crates: &[String]) -> Vec<(String, String)> {
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let per_target = targets.into_iter().flat_map(toml::Table::values);
    let tables = per_target.filter_map(toml::Value::as_table).chain([manifest]);
    let mut found = Vec::new();
    for table in tables {
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let names = table.get(section).and_then(toml::Value::as_table).into_iter();
            for name in names.flat_map(toml::Table::keys) {
                let name = name.trim_start_matches("weftwork-");
                if crates.iter().any(|known| known == name) {
                    found.push((section.to_owned(), name.to_owned()));
                }
            }
        }
    }
    found
}

#[test]
fn safe_crates_forbid_unsafe_code() {
    for name in SAFE_CRATES {
        let lib = read(&root().join(format!("crates/{name}/src/lib.rs")));
        assert!(lib.contains("#![forbid(unsafe_code)]"), "crates/{name}/src/lib.rs allows unsafe");
    }
}

#[test]
fn every_unsafe_block_is_argued() {
    // clippy's undocumented_unsafe_blocks is exact and runs in CI; this check runs with every test.
    const ARGUED_WITHIN_LINES: usize = 12;
    let mut findings = Findings::default();
    for file in rust_files() {
        let lines: Vec<_> = file.text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if !code.contains("unsafe {") && !code.contains("unsafe impl") {
                continue;
            }
            let nearby = &lines[at.saturating_sub(ARGUED_WITHIN_LINES)..=at];
            if !is_this_file(&file) && !nearby.iter().any(|line| line.contains("SAFETY:")) {
                findings.add_line(&file, at, "unsafe without a SAFETY comment");
            }
        }
    }
    findings.assert_none();
}

#[test]
fn nothing_is_async() {
    let mut findings = Findings::default();
    for file in rust_files().into_iter().filter(|file| !is_this_file(file)) {
        for (at, line) in file.text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if code.contains("async fn") || code.contains("async move") || code.contains(".await") {
                findings.add_line(&file, at, "async");
            }
        }
    }
    findings.assert_none();
}

#[test]
fn protocols_have_no_sockets_and_no_clock() {
    // Also matches function values: `LazyLock::new(Instant::now)`.
    const FORBIDDEN: &[&str] = &[
        "TcpListener",
        "TcpStream",
        "UdpSocket",
        "UnixDatagram",
        "UnixListener",
        "UnixStream",
        "::now",
        "Now::read",
        ".elapsed()",
        "clock_gettime",
        "clock_nanosleep",
        "gettimeofday",
        "libc::time(",
        "rdtsc",
        "timerfd",
        "thread::sleep",
        "park_timeout",
        "recv_timeout",
        "wait_timeout",
    ];
    const ALLOWED: &[(&str, &str)] = &[
        // The clock of the drivers, and the simulated time of the replay harness.
        ("crates/session/src/session.rs", "::now()"),
        ("crates/session/src/replay.rs", "LazyLock::new(Instant::now)"),
        // Opens the site, outside of any conversation.
        ("crates/web/src/site.rs", "let now = Now::read();"),
        // Waits, in `work`, for a descriptor.
        ("crates/web/src/site.rs", "thread::sleep(Duration::from_millis(wait));"),
        // Waits, in `work`, until a file has come to rest.
        ("crates/web/src/site/quiet.rs", "std::thread::sleep(left);"),
        // Waits, in `work`, for events to report.
        ("crates/cache/src/service/watch.rs", "wait_timeout_while(queue, timeout, nothing)"),
        // A full store waits briefly for readers that have lost their processor.
        ("crates/cache/src/store/pool/patience.rs", "Instant::now()"),
        ("crates/cache/src/store/pool/patience.rs", "began.elapsed()"),
    ];
    let mut findings = Findings::default();
    let mut unmet: BTreeSet<_> = ALLOWED.iter().collect();
    let of_protocols = |file: &Source| {
        let sources =
            ["session", "web", "cache", "http2"].map(|name| format!("crates/{name}/src/"));
        sources.iter().any(|of| file.name.starts_with(of)) && !is_test_file(&file.name)
    };
    for file in rust_files().into_iter().filter(of_protocols) {
        for (at, line) in lines_outside_tests(&file.text) {
            let code = line.split("//").next().unwrap_or_default();
            if !FORBIDDEN.iter().any(|word| code.contains(word)) {
                continue;
            }
            let is_it = |(name, words): &&(&str, &str)| file.name == *name && code.contains(words);
            match ALLOWED.iter().find(is_it) {
                Some(allowed) => {
                    unmet.remove(allowed);
                }
                None => findings.add_line(&file, at, "a protocol with a socket or a clock"),
            }
        }
    }
    for (name, words) in unmet {
        findings.add(name, format!("'{words}' is allowed, and is not there"));
    }
    findings.assert_none();
}

/// The lines that are not restricted to tests, counted from 0. Sources are formatted: an item ends
/// with the first closing line that has the indentation of its attribute.
fn lines_outside_tests(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    // Indentation of the current test item.
    let mut test_item = None;
    for (at, line) in text.lines().enumerate() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        let is_note = code.starts_with("//") || code.starts_with("#[");
        match test_item {
            None if is_kept_for_tests(code) => test_item = Some(indent),
            None => found.push((at, line)),
            Some(of) => {
                let closes = code.starts_with('}') || code.ends_with([';', ',', '}']);
                if indent == of && closes && !is_note {
                    test_item = None;
                }
            }
        }
    }
    found
}

/// Number of lines that are neither empty nor a comment, without test code.
fn code_lines(text: &str) -> usize {
    let lines = lines_outside_tests(text).into_iter();
    let lines = lines.map(|(_, line)| line.trim_start());
    lines.filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

/// True if a line is `#[cfg(test)]` or similar, such as with `all`.
fn is_kept_for_tests(code: &str) -> bool {
    code.starts_with("#[cfg(") && has_word(code, "test") && !code.contains("not(test")
}

#[test]
fn only_code_for_tests_is_skipped() {
    let text = "\
mod a;
#[cfg(test)]
mod tests;
use b;

impl C {
    #[cfg(test)]
    #[expect(unused)]
    fn d(&self) {
        e();
    }

    fn f(&self) {}
}

#[cfg(all(test, not(loom)))]
mod g {
    use h::{
        i,
    };
}

#[cfg(not(test))]
fn j() {}
";
    let lines = lines_outside_tests(text).into_iter().map(|(_, line)| line);
    let lines: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
    assert_eq!(
        lines,
        [
            "mod a;",
            "use b;",
            "impl C {",
            "    fn f(&self) {}",
            "}",
            "#[cfg(not(test))]",
            "fn j() {}"
        ]
    );
}

#[test]
fn relative_links_and_anchors_exist() {
    let mut findings = Findings::default();
    for file in files(&["md"]) {
        let here = root().join(&file.name);
        for (at, target) in links(&file.text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let to = match path {
                "" => here.clone(),
                _ => here.parent().unwrap().join(path),
            };
            if !to.exists() {
                findings.add_line(&file, at, format!("{target}: there is no such file"));
            } else if !anchor.is_empty()
                && to.extension().is_some_and(|ext| ext == "md")
                && !anchors(&read(&to)).contains(anchor)
            {
                findings.add_line(&file, at, format!("{target}: there is no such heading"));
            }
        }
    }
    findings.assert_none();
}

/// Seen: the pages asked for stable Rust, but a stable Rust that is too old cannot read the
/// manifests. Cause: only a manifest named the oldest version. Cure: the pages name it too.
#[test]
fn pages_for_newcomers_name_the_oldest_rust() {
    let manifest: toml::Table = read(&root().join("Cargo.toml")).parse().unwrap();
    let package = &manifest["workspace"]["package"];
    let oldest = package["rust-version"].as_str().unwrap();
    for page in ["README.md", "docs/your-own-server.md"] {
        let words = format!("Rust {oldest} or newer");
        let has_them = read(&root().join(page)).contains(&words);
        assert!(has_them, "{page} does not say '{words}'");
    }
}

/// Seen: seven rows of the cache's manual were garbled, with their text cut off. Cause: a `|` ends
/// a cell, even in code, unless a backslash precedes it. Cure: a backslash does.
#[test]
fn rows_of_a_table_have_as_many_cells_as_its_head() {
    let mut findings = Findings::default();
    for file in files(&["md"]) {
        let mut next = 0;
        let mut in_head = 0;
        for (at, line) in prose_lines(&file.text).filter(|(_, line)| line.starts_with('|')) {
            let cells = line.matches('|').count() - line.matches("\\|").count() - 1;
            if at != next {
                in_head = cells;
            }
            next = at + 1;
            if cells != in_head {
                findings.add_line(&file, at, format!("{cells} cells, and {in_head} in the head"));
            }
        }
    }
    findings.assert_none();
}

/// The targets of `[text](target)` outside of code, with their lines counted from 0.
fn links(markdown: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, line) in prose_lines(markdown) {
        for part in without_code_spans(line).split("](").skip(1) {
            let target = part.split([')', ' ']).next().unwrap_or_default();
            found.push((at, target.to_owned()));
        }
    }
    found
}

/// The anchors that GitHub makes of a file's headings.
fn anchors(markdown: &str) -> BTreeSet<String> {
    let headings = prose_lines(markdown).filter(|(_, line)| line.starts_with('#'));
    let slug = |text: &str| -> String {
        let kept = text.trim().chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
    };
    headings.map(|(_, line)| slug(line.trim_start_matches('#'))).collect()
}

fn prose_lines(markdown: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    markdown.lines().enumerate().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fence && !fenced
    })
}

fn without_code_spans(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

#[test]
fn every_golden_file_is_used() {
    let mut findings = Findings::default();
    let rust = rust_files();
    for name in all_files() {
        let Some((before, within)) = name.split_once("/transcripts/") else {
            continue;
        };
        let Some((package, _)) = before.split_once("/tests") else {
            continue;
        };
        // Sources name a transcript, in lists without its extension; some list the folder.
        let stem = format!("\"{}\"", within.trim_end_matches(".txt"));
        let package = rust.iter().filter(|file| file.name.starts_with(package));
        let mut loaders = package.filter(|file| file.text.contains("transcripts"));
        let names_it =
            |text: &str| [within, &stem, "read_dir"].iter().any(|name| text.contains(name));
        if !loaders.any(|file| names_it(&file.text)) {
            findings.add(&name, "no test loads it");
        }
    }
    findings.assert_none();
}

#[test]
fn source_files_stay_readable() {
    let mut findings = Findings::default();
    for file in rust_files() {
        let lines = file.text.lines().count();
        if lines > RUST_LINES_MAX {
            findings.add(&file.name, format!("{lines} lines, more than {RUST_LINES_MAX}"));
        }
    }
    findings.assert_none();
}

/// Seen: the page gave an engine 240 lines, which had 277. Cause: a table by hand. Cure: each row
/// names its files, and must be within a tenth of their length.
#[test]
fn drivers_weigh_what_their_page_says() {
    let mut findings = Findings::default();
    let page = "docs/engines.md";
    let text = read(&root().join(page));
    let (_, section) = text.split_once("\n## What the drivers weigh\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let sources = rust_files();
    for row in section.lines().filter(|line| line.starts_with("| ")).skip(1) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [_, said, places] = cells[..] else {
            panic!("{row}: part, lines, and where");
        };
        let places: Vec<&str> = places.split('`').skip(1).step_by(2).collect();
        let is_part = |file: &&Source| {
            let name = file.name.strip_prefix("crates/serve/src/");
            let is_of = |place: &&str| {
                let rest = name.and_then(|name| name.strip_prefix(*place));
                rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
            };
            places.iter().any(is_of) && !is_test_file(&file.name)
        };
        let parts = sources.iter().filter(is_part);
        let count: usize = parts.map(|file| code_lines(&file.text)).sum();
        let said: usize = said.replace(',', "").parse().unwrap();
        if said.abs_diff(count) * 10 > count {
            findings.add(page, format!("{count} lines, and not {said}: {row}"));
        }
    }
    findings.assert_none();
}

#[test]
fn lines_have_no_tabs_and_no_trailing_blanks() {
    let mut findings = Findings::default();
    for file in files(&["rs", "toml", "md", "py", "sh", "html", "css", "svg", "json", "lua"]) {
        for (at, line) in file.text.lines().enumerate() {
            if line.contains('\t') {
                findings.add_line(&file, at, "a tab");
            }
            if line.ends_with([' ', '\r']) {
                findings.add_line(&file, at, "trailing blanks");
            }
        }
        if !file.text.is_empty() && !file.text.ends_with('\n') {
            findings.add(&file.name, "no newline at its end");
        }
    }
    findings.assert_none();
}

#[test]
fn nothing_is_left_undone() {
    // Put together here, so that this file does not match itself.
    let marks = [["TO", "DO"], ["FIX", "ME"], ["XX", "X"], ["dbg", "!("], ["todo", "!("]];
    let marks = marks.map(|halves| halves.concat());
    let mut findings = Findings::default();
    for file in files(&["rs", "toml", "md", "py", "sh", "html", "css", "lua"]) {
        for (at, line) in file.text.lines().enumerate() {
            if let Some(mark) = marks.iter().find(|mark| has_word(line, mark)) {
                findings.add_line(&file, at, format!("{mark} is left"));
            }
        }
    }
    findings.assert_none();
}

#[test]
fn no_path_of_anybodys_machine() {
    let homes = [["/ho", "me/"], ["/ro", "ot/"], ["/wo", "rk/"], ["/tmp/", "target"]];
    let homes = homes.map(|halves| halves.concat());
    let mut findings = Findings::default();
    for file in files(&["rs", "toml", "md", "py", "sh", "html", "css", "svg", "json", "lua"]) {
        for (at, line) in file.text.lines().enumerate() {
            if let Some(home) = homes.iter().find(|home| has_path(line, home)) {
                findings.add_line(&file, at, format!("a path under {home}"));
            }
        }
    }
    findings.assert_none();
}

#[test]
fn one_word_for_one_idea() {
    // A fiber is called a fiber. The FAQ may say what it is not; code spans quote other projects.
    let banned = [["corou", "tine"], ["green ", "thread"], ["light", "weight thread"]];
    let banned = banned.map(|halves| halves.concat());
    let mut findings = Findings::default();
    for file in files(&["rs", "md"]) {
        for (at, line) in file.text.lines().enumerate() {
            let is_doc = ["//!", "///"].iter().any(|mark| line.trim_start().starts_with(mark));
            if !is_doc && !file.name.ends_with(".md") {
                continue;
            }
            let prose = without_code_spans(line).to_lowercase();
            if let Some(word) = banned.iter().find(|word| prose.contains(*word)) {
                findings.add_line(&file, at, format!("'{word}' means a fiber, so say fiber"));
            }
            // Linux has tasks, and the ring has task work; neither is a fiber.
            let in_runtime = is_doc && file.name.starts_with("crates/fiber/");
            let prose = prose.replace("task-work", "").replace("task work", "");
            if in_runtime && (has_word(&prose, "task") || has_word(&prose, "tasks")) {
                findings.add_line(&file, at, "'task' is not our word: fiber, job or kernel thread");
            }
        }
    }
    findings.assert_none();
}

// ---- the workspace as files

struct Source {
    /// Path relative to the workspace, with slashes.
    name: String,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn is_test_file(name: &str) -> bool {
    name.ends_with("tests.rs") || name.contains("/tests/")
}

fn is_this_file(file: &Source) -> bool {
    file.name == "crates/weft/tests/tidy/main.rs"
}

fn rust_files() -> Vec<Source> {
    files(&["rs"])
}

/// The text files with one of these extensions. Shell scripts without an extension count as "sh".
fn files(extensions: &[&str]) -> Vec<Source> {
    let wanted = |name: &String| {
        // Programs for other runtimes, which the laboratory builds and measures, and for other
        // libraries follow the style of their users.
        if name.starts_with("crates/lab/peers/") || name.starts_with("examples/libraries/") {
            return false;
        }
        let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
        extensions.contains(&extension.unwrap_or(if name == ".ci/run" { "sh" } else { "" }))
    };
    let source = |name: String| Source { text: read(&root().join(&name)), name };
    all_files().into_iter().filter(wanted).map(source).collect()
}

/// Every file of the workspace that no build or tool makes, in order.
fn all_files() -> Vec<String> {
    const MADE: &[&str] = &["target", ".git", "__pycache__", "corpus", "artifacts", "coverage"];
    let (root, mut found, mut open) = (root(), Vec::new(), vec![root()]);
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() && !MADE.contains(&&*entry.file_name().to_string_lossy()) {
                open.push(entry.path());
            } else if kind.is_file() {
                let path = entry.path();
                let name = path.strip_prefix(&root).unwrap();
                found.push(name.to_str().expect("file names are UTF-8").to_owned());
            }
        }
    }
    found.sort();
    found
}

fn subdirectories(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    let directories = entries.filter(|entry| entry.path().is_dir());
    directories.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// True if a path in `line` begins with `start`. `a/home/b` is relative, so it is not in `/home`.
fn has_path(line: &str, start: &str) -> bool {
    let is_inner = |c: char| c.is_alphanumeric() || "._-}".contains(c);
    line.match_indices(start).any(|(at, _)| !line[..at].chars().next_back().is_some_and(is_inner))
}

/// True if `line` contains `word` as a whole word.
fn has_word(line: &str, word: &str) -> bool {
    let is_inner = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_inner) && (word.ends_with('(') || !after.is_some_and(is_inner))
    })
}

#[derive(Default)]
struct Findings(Vec<String>);

impl Findings {
    fn add(&mut self, place: impl Display, what: impl Display) {
        self.0.push(format!("{place}: {what}"));
    }

    fn add_line(&mut self, file: &Source, line_index: usize, what: impl Display) {
        self.add(format_args!("{}:{}", file.name, line_index + 1), what);
    }

    fn assert_none(self) {
        let Findings(findings) = self;
        assert!(findings.is_empty(), "{} findings\n{}", findings.len(), findings.join("\n"));
    }
}
