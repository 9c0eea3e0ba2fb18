//! Floors inside a crate: a module may use only modules below it.
//!
//! The table of a crate lists its *rooms* (a file, or a folder as a whole) by floor, the ground
//! floor first. A room may use rooms on lower floors. Any other use is an *upward arrow*, which has
//! to be reversed, or listed with its reason.
//!
//! The test reads every path in code outside of tests that begins with `crate`, `super`, `self` or
//! a child module, and follows re-exports to the defining module. `lib.rs` is the roof: it may use
//! everything. Method calls are not paths, so a method that an `impl` adds to a type of a lower
//! floor is looked up by its name.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The floors of one crate.
struct CrateFloors {
    name: &'static str,
    /// One floor a line, the ground floor first. Rooms of one floor do not use each other.
    floors: &'static str,
    /// Intended upward arrows: from, to, reason.
    upward: &'static [(&'static str, &'static str, &'static str)],
}

include!("crates.rs");

#[test]
fn every_crate_has_a_table_of_floors() {
    for name in super::subdirectories(&super::root().join("crates")) {
        let mut crates = CRATES.iter();
        assert!(crates.any(|row| row.name == name), "crates/{name}");
    }
}

#[test]
fn rooms_use_only_the_floors_below() {
    let mut findings = super::Findings::default();
    for row in CRATES {
        let sources = format!("crates/{}/src/", row.name);
        let files = super::rust_files().into_iter().filter_map(|file| {
            let name = file.name.strip_prefix(&sources)?.to_owned();
            // Another program has its own root.
            (!name.starts_with("bin/")).then_some((name, file.text))
        });
        let files: Vec<_> = files.collect();
        for finding in findings_of(row, &files) {
            findings.add(format_args!("crates/{}", row.name), finding);
        }
    }
    findings.assert_none();
}

/// Limit on the upward arrows of a crate; zero for a crate that is not named.
const UPWARD_MAX: &[(&str, usize)] = &[];

#[test]
fn few_upward_arrows_are_listed() {
    for row in CRATES {
        let bound = UPWARD_MAX.iter().find(|(name, _)| *name == row.name);
        let bound = bound.map_or(0, |(_, most)| *most);
        let count = row.upward.len();
        assert!(
            count <= bound,
            "crates/{}: {count} upward arrows are listed, and there may be {bound}",
            row.name
        );
    }
}

fn findings_of(row: &CrateFloors, files: &[(String, String)]) -> Vec<String> {
    let tree = Tree::read(files);
    let floors = row.floors.lines().enumerate();
    let floor_of: BTreeMap<&str, usize> = floors
        .flat_map(|(floor, rooms)| rooms.split_whitespace().map(move |room| (room, floor)))
        .collect();
    let room_of = |module: &str| {
        let rooms = floor_of.keys().copied();
        rooms.filter(|room| is_within(module, room)).max_by_key(|room| room.len())
    };
    let mut findings = Vec::new();
    let lived_in: BTreeSet<_> = tree.modules.keys().filter_map(|at| room_of(at)).collect();
    for room in floor_of.keys().filter(|room| !lived_in.contains(*room)) {
        findings.push(format!("the table has a room `{room}`, and there is no such module"));
    }
    for module in tree.modules.keys().filter(|at| room_of(at).is_none()) {
        if !module.is_empty() {
            findings.push(format!("`{module}` stands on no floor: {}", "add it to the table"));
        }
    }
    let mut upward = BTreeMap::new();
    for (from, to, what) in tree.arrows() {
        let Some((from, to)) = room_of(&from).zip(room_of(&to)) else {
            continue; // It has been said above; or it is the roof that knows the module.
        };
        if from != to && floor_of[from] <= floor_of[to] {
            upward.entry((from, to)).or_insert(what);
        }
    }
    for (&(from, to), what) in &upward {
        if !row.upward.iter().any(|&(a, b, _)| (a, b) == (from, to)) {
            findings.push(format!(
                "`{from}` uses `{to}` ({what}), which is not below it. Let `{to}` call `{from}`, \
                 or hand it a value that it takes; or move what both need to a floor below. If \
                 it has to be, list it with its reason in crates/weft/tests/tidy/crates.rs"
            ));
        }
    }
    for (from, to, reason) in row.upward {
        if !upward.contains_key(&(*from, *to)) {
            findings.push(format!(
                "`{from}` no longer uses `{to}`: strike it off the list of upward arrows"
            ));
        }
        if reason.is_empty() {
            findings.push(format!("`{from}` uses `{to}` for no reason that the list gives"));
        }
    }
    findings
}

fn is_within(module: &str, room: &str) -> bool {
    let rest = module.strip_prefix(room);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The modules of a crate by path, `a/b` for `crate::a::b`; the roof is "".
struct Tree {
    modules: BTreeMap<String, Module>,
}

#[derive(Default)]
struct Module {
    /// Paths in its code, from the root of the crate, including the names after the modules.
    paths: Vec<Vec<String>>,
    /// Full paths of the names imported with `use`.
    imports: BTreeMap<String, Vec<String>>,
    /// Methods that it adds to types of other modules: the type's name and the method's.
    added: Vec<(String, String)>,
    /// Functions that are defined here, and methods that are called here.
    defined: BTreeSet<String>,
    called: BTreeSet<String>,
}

impl Tree {
    fn read(files: &[(String, String)]) -> Tree {
        let is_test = |name: &str| {
            let parts: Vec<_> = name.trim_end_matches(".rs").split('/').collect();
            let mut parts = parts.iter();
            parts.any(|part| {
                ["tests", "models"].contains(part)
                    || part.ends_with("_test")
                    || part.ends_with("_tests")
            })
        };
        let mut modules = BTreeMap::new();
        let sources = files.iter().filter(|(name, _)| !is_test(name));
        for (name, _) in sources.clone() {
            modules.insert(module_of(name), Module::default());
        }
        let known: BTreeSet<String> = modules.keys().cloned().collect();
        for (name, text) in sources {
            let tokens: TokenStream =
                text.parse().unwrap_or_else(|error| panic!("{name} is not Rust: {error}"));
            let at = module_of(name);
            let mut module = Module::default();
            Walk { known: &known, at: at.clone(), module: &mut module }.items(tokens);
            modules.insert(at, module);
        }
        Tree { modules }
    }

    /// Arrows between modules: from, to, and the path.
    fn arrows(&self) -> Vec<(String, String, String)> {
        let mut found = Vec::new();
        for (at, module) in &self.modules {
            for path in &module.paths {
                if let Some(to) = self.resolve(path, 0) {
                    found.push((at.clone(), to, path.join("::")));
                }
            }
        }
        found.extend(self.arrows_by_method());
        found
    }

    /// The module that defines the target of a path.
    fn resolve(&self, path: &[String], depth: usize) -> Option<String> {
        let len = (0..=path.len()).rev().find(|&len| self.is_module(path, len))?;
        let at = path[..len].join("/");
        let import = path.get(len).and_then(|name| self.modules[&at].imports.get(name));
        match import {
            Some(import) if depth < 8 && import[..] != path[..] => self.resolve(import, depth + 1),
            // A name that the roof itself defines belongs to no room.
            _ => (len > 0).then_some(at),
        }
    }

    fn is_module(&self, path: &[String], len: usize) -> bool {
        self.modules.contains_key(&path[..len].join("/"))
    }

    /// Calls of methods that another module adds to a type of a lower floor. Only callers that name
    /// the type's module count: for others it may be a method of another type.
    fn arrows_by_method(&self) -> Vec<(String, String, String)> {
        let mut definitions: BTreeMap<&str, usize> = BTreeMap::new();
        for name in self.modules.values().flat_map(|module| &module.defined) {
            *definitions.entry(name).or_default() += 1;
        }
        let knows = |module: &Module, home: &String| {
            let mut known = module.paths.iter();
            known.any(|path| self.resolve(path, 0).as_ref() == Some(home))
        };
        let mut found = Vec::new();
        for (at, module) in &self.modules {
            for (of, name) in &module.added {
                let import = module.imports.get(of);
                let Some(home) = import.and_then(|path| self.resolve(path, 0)) else {
                    continue;
                };
                if definitions[&**name] > 1 {
                    continue;
                }
                for (caller, other) in self.modules.iter().filter(|(caller, _)| *caller != at) {
                    if other.called.contains(name) && (*caller == home || knows(other, &home)) {
                        found.push((caller.clone(), at.clone(), format!("{of}::{name}")));
                    }
                }
            }
        }
        found
    }
}

fn module_of(file: &str) -> String {
    let path = file.trim_end_matches(".rs").trim_end_matches("/mod");
    match path {
        "lib" | "main" => String::new(),
        path => path.to_owned(),
    }
}

/// A walk through the tokens of one file.
struct Walk<'a> {
    known: &'a BTreeSet<String>,
    /// Module of the current tokens: the file's, or an inline one within it.
    at: String,
    module: &'a mut Module,
}

impl Walk<'_> {
    fn items(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            at = self.item(&tokens, at);
        }
    }

    /// Reads the item at `at`, and returns the index of the next one.
    fn item(&mut self, tokens: &[TokenTree], at: usize) -> usize {
        let word = word(tokens, at);
        match &tokens[at] {
            TokenTree::Punct(mark) if mark.as_char() == '#' && is_for_tests(tokens, at + 1) => {
                return after_item(tokens, at + 2);
            }
            TokenTree::Group(group) => self.items(group.stream()),
            TokenTree::Ident(_) if word == "use" => {
                let end = (at..tokens.len()).find(|&i| is_mark(tokens, i, ';'));
                let end = end.unwrap_or(tokens.len());
                self.imports(&tokens[at + 1..end], &[]);
                return end;
            }
            TokenTree::Ident(_) if word == "mod" => {
                if let Some(TokenTree::Group(body)) = tokens.get(at + 2) {
                    let outer = self.at.clone();
                    self.at = format!("{outer}/{}", self::word(tokens, at + 1));
                    self.items(body.stream());
                    self.at = outer;
                    return at + 3;
                }
            }
            TokenTree::Ident(_) if word == "impl" => self.note_added(&tokens[at + 1..]),
            TokenTree::Ident(_) if word == "fn" => {
                self.module.defined.insert(self::word(tokens, at + 1));
            }
            TokenTree::Ident(_) => {
                let follows_dot = at > 0 && is_mark(tokens, at - 1, '.');
                let follows_path = at > 1 && is_path(tokens, at - 2);
                if follows_dot || follows_path {
                    // A field is read, or a method is called.
                    if follows_path || matches!(tokens.get(at + 1), Some(TokenTree::Group(_))) {
                        self.module.called.insert(word);
                    }
                } else if is_path(tokens, at + 1) {
                    return self.path(tokens, at);
                }
            }
            _ => {}
        }
        at + 1
    }

    /// A path in an expression or a type.
    fn path(&mut self, tokens: &[TokenTree], mut at: usize) -> usize {
        let mut path = vec![word(tokens, at)];
        while is_path(tokens, at + 1) && matches!(tokens.get(at + 3), Some(TokenTree::Ident(_))) {
            at += 3;
            path.push(word(tokens, at));
        }
        if let Some(last) = path.last() {
            self.module.called.insert(last.clone());
        }
        if let Some(path) = self.rooted(&path) {
            self.module.paths.push(path);
        }
        at + 1
    }

    /// Reads a tree of `use` beneath `base`.
    fn imports(&mut self, tokens: &[TokenTree], base: &[String]) {
        let mut path = base.to_vec();
        let mut renamed = None;
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Ident(_) if word(tokens, at) == "as" => {
                    renamed = Some(word(tokens, at + 1));
                    break;
                }
                TokenTree::Ident(name) => path.push(name.to_string()),
                TokenTree::Group(group) => {
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    for branch in inner.split(|token| is(token, ',')) {
                        if !branch.is_empty() {
                            self.imports(branch, &path);
                        }
                    }
                    return;
                }
                TokenTree::Punct(mark) if mark.as_char() == ',' => break,
                _ => {}
            }
        }
        if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
            path.pop();
        }
        let Some(rooted) = self.rooted(&path) else {
            return;
        };
        let name = renamed.or_else(|| path.last().cloned());
        self.module.paths.push(rooted.clone());
        if let Some(name) = name {
            self.module.imports.insert(name, rooted);
        }
    }

    /// The path from the root of the crate; `None` if it leads to another crate, or to this module.
    fn rooted(&self, path: &[String]) -> Option<Vec<String>> {
        let mut at: Vec<String> = self.at.split('/').map(str::to_owned).collect();
        at.retain(|part| !part.is_empty());
        let mut rest = path;
        let is_child = |name: &str| {
            let child = [&at[..], &[name.to_owned()]].concat().join("/");
            self.known.contains(&child)
        };
        match path.first().map(String::as_str)? {
            "crate" => {
                at.clear();
                rest = &path[1..];
            }
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|part| part == "super") {
                    at.pop();
                    rest = &rest[1..];
                }
            }
            child if is_child(child) => {}
            _ => return None,
        }
        Some([&at[..], rest].concat())
    }

    /// Notes the methods of `impl Type { .. }`, unless the `impl` is of a trait.
    fn note_added(&mut self, tokens: &[TokenTree]) {
        let is_body = |token: &TokenTree| match token {
            TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
            _ => false,
        };
        let Some(end) = tokens.iter().position(is_body) else {
            return;
        };
        let head = (generics_len(tokens)..end).map(|at| word(tokens, at));
        let head = head.take_while(|word| word != "where");
        let names: Vec<_> = head.filter(|word| !word.is_empty()).collect();
        if names.iter().any(|name| name == "for" || name == "fn") {
            return;
        }
        let TokenTree::Group(body) = &tokens[end] else {
            return;
        };
        let body: Vec<TokenTree> = body.stream().into_iter().collect();
        for at in 0..body.len() {
            let is_pub =
                |token: &TokenTree| matches!(token, TokenTree::Ident(name) if name == "pub");
            let before = body[..at].iter().rev().take(4);
            if word(&body, at) == "fn" && before.clone().any(is_pub) {
                for of in &names {
                    self.module.added.push((of.clone(), word(&body, at + 1)));
                }
            }
        }
    }
}

/// True if the attribute at `at`, `[cfg(..)]`, restricts the next item to tests.
fn is_for_tests(tokens: &[TokenTree], at: usize) -> bool {
    let Some(TokenTree::Group(attribute)) = tokens.get(at) else {
        return false;
    };
    let attribute = attribute.stream().to_string();
    let words = attribute.split(|c: char| !c.is_alphanumeric());
    let mut words = words.filter(|word| !word.is_empty());
    words.next() == Some("cfg")
        && words.clone().any(|word| word == "test" || word == "doctest")
        && !words.any(|word| word == "not" && !attribute.contains("not (loom)"))
}

/// End of the item after an attribute: after its `;`, `,` or braces.
fn after_item(tokens: &[TokenTree], from: usize) -> usize {
    let ends = |at: &usize| match &tokens[*at] {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        token => is(token, ';') || is(token, ','),
    };
    (from..tokens.len()).find(ends).map_or(tokens.len(), |at| at + 1)
}

/// Number of tokens of a leading `<..>`. The arrow of a bound, `Fn() -> T`, does not end it.
fn generics_len(tokens: &[TokenTree]) -> usize {
    let mut depth = 0;
    for at in 0..tokens.len() {
        let is_arrow = at > 0 && is_mark(tokens, at - 1, '-');
        match &tokens[at] {
            token if is(token, '<') => depth += 1,
            token if is(token, '>') && !is_arrow => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return if at == 0 { 0 } else { at + 1 };
        }
    }
    0
}

fn word(tokens: &[TokenTree], at: usize) -> String {
    match tokens.get(at) {
        Some(TokenTree::Ident(name)) => name.to_string(),
        _ => String::new(),
    }
}

fn is_path(tokens: &[TokenTree], at: usize) -> bool {
    is_mark(tokens, at, ':') && is_mark(tokens, at + 1, ':')
}

fn is_mark(tokens: &[TokenTree], at: usize, mark: char) -> bool {
    tokens.get(at).is_some_and(|token| is(token, mark))
}

fn is(token: &TokenTree, mark: char) -> bool {
    matches!(token, TokenTree::Punct(found) if found.as_char() == mark)
}

// ---- tests of this test

const SMALL: CrateFloors =
    CrateFloors { name: "small", floors: "stack\nqueue timer\nprocessor\nnet", upward: &[] };

fn small(files: &[(&str, &str)]) -> Vec<(String, String)> {
    let whole = [
        ("lib.rs", "mod stack; mod queue; mod timer; mod processor; mod net; pub use net::Socket;"),
        ("stack.rs", "pub(crate) struct Stack;"),
        ("queue.rs", "use crate::stack::Stack;"),
        ("timer.rs", "pub(crate) struct Timer;"),
        ("processor.rs", "use crate::queue; pub(crate) struct Processor;"),
        ("net/mod.rs", "mod tcp; pub use tcp::Socket;"),
        ("net/tcp.rs", "use crate::processor::Processor; pub struct Socket;"),
    ];
    let changed = |name: &str| files.iter().find(|(other, _)| *other == name).copied();
    let whole = whole.iter().map(|file| changed(file.0).unwrap_or(*file));
    whole.map(|(name, text)| (name.to_owned(), text.to_owned())).collect()
}

/// The only upward arrow found, as `from -> to`.
fn found(files: &[(&str, &str)]) -> Vec<String> {
    let findings = findings_of(&SMALL, &small(files));
    let ends = |finding: &String| {
        let names: Vec<_> = finding.split('`').collect();
        format!("{} -> {}", names[1], names[3])
    };
    findings.iter().map(ends).collect()
}

#[test]
fn a_house_whose_arrows_go_down_is_accepted() {
    assert_eq!(findings_of(&SMALL, &small(&[])), Vec::<String>::new());
}

#[test]
fn an_upward_arrow_is_refused_however_it_is_written() {
    for text in [
        "use crate::processor::Processor;",
        "use crate::{stack::Stack, processor::{self, Processor}};",
        "use super::processor;",
        "fn f() { crate::processor::here() }",
        "fn f(p: &crate::processor::Processor) {}",
        "mod inner { use super::super::processor::Processor; }",
        "#[cfg(all(not(test), unix))] use crate::processor::Processor;",
    ] {
        assert_eq!(found(&[("queue.rs", text)]), ["queue -> processor"], "{text}");
    }
}

#[test]
fn a_name_is_followed_through_re_exports() {
    assert_eq!(found(&[("stack.rs", "use crate::Socket;")]), ["stack -> net"]);
}

#[test]
fn rooms_of_one_floor_do_not_use_each_other() {
    let text = "use crate::timer::Timer;";
    assert_eq!(found(&[("queue.rs", text)]), ["queue -> timer"]);
}

#[test]
fn a_method_added_from_above_is_an_arrow() {
    let adds = "use crate::processor::Processor; impl Processor { pub(crate) fn dial(&self) {} } \
                pub struct Socket;";
    let calls = "pub(crate) struct Processor; fn f(p: &Processor) { p.dial() }";
    let files = [("net/tcp.rs", adds), ("processor.rs", calls)];
    assert_eq!(found(&files), ["processor -> net"]);
}

#[test]
fn a_bound_is_not_the_type_that_gets_a_method() {
    let adds = "use crate::processor::Processor; pub struct Socket; \
                impl<T: Fn() -> Processor> Socket where T: Into<Processor> { pub(crate) fn dial(&self) {} }";
    let calls = "pub(crate) struct Processor; fn f(p: &Processor) { p.dial() }";
    let files = [("net/tcp.rs", adds), ("processor.rs", calls)];
    assert_eq!(findings_of(&SMALL, &small(&files)), Vec::<String>::new());
}

#[test]
fn tests_comments_and_texts_may_name_anything() {
    for text in [
        "// use crate::processor::Processor;",
        "/// See [`Processor`](crate::processor::Processor).\nstruct A;",
        "const A: &str = \"crate::processor\";",
        "#[cfg(test)] mod tests { use crate::processor::Processor; }",
        "#[cfg(all(test, not(loom)))] mod tests { use crate::processor::Processor; }",
        "#[cfg(test)] use crate::processor::{self, Processor};",
    ] {
        assert_eq!(found(&[("queue.rs", text)]), Vec::<String>::new(), "{text}");
    }
}

#[test]
fn a_listed_arrow_is_accepted_while_it_exists() {
    let listed = CrateFloors { upward: &[("queue", "processor", "a reason")], ..SMALL };
    let upward = small(&[("queue.rs", "use crate::processor::Processor;")]);
    assert_eq!(findings_of(&listed, &upward), Vec::<String>::new());
    let gone = findings_of(&listed, &small(&[]));
    assert!(gone.len() == 1 && gone[0].contains("no longer uses"), "{gone:?}");
}

#[test]
fn modules_and_floors_match() {
    let mut files = small(&[]);
    files.push(("attic.rs".to_owned(), String::new()));
    files.retain(|(name, _)| name != "timer.rs");
    let findings = findings_of(&SMALL, &files);
    assert_eq!(findings.len(), 2, "{findings:?}");
}
