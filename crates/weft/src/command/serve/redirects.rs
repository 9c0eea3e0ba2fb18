//! Rules for redirects: single ones, and files with thousands of lines.

use std::fmt::Write;
use std::path::Path;

use web::{RedirectRule, Redirects};

use crate::os::files;
use crate::value::RedirectSource;

/// Longest file of rules: some 200,000 rules.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Most mistakes of a file that are reported.
const MISTAKES_MAX: usize = 20;

/// Reads the files of rules, and indexes all rules. `pages`, with clean URLs: the names of index
/// files.
///
/// # Errors
/// One line per mistake; mistakes in a file begin with its name and the line number.
pub(super) fn read(
    sources: &[RedirectSource],
    pages: Option<&[String]>,
) -> Result<Redirects, String> {
    let mut rules = Vec::new();
    let mut places = Vec::new();
    for source in sources {
        match source {
            RedirectSource::Rule(rule) => {
                rules.push(rule.clone());
                places.push(String::new());
            }
            RedirectSource::File(path) => {
                for (rule, line) in read_file(path)? {
                    rules.push(rule);
                    places.push(line_of(path, line));
                }
            }
        }
    }
    Redirects::new(rules, pages).map_err(|circles| {
        let circles = circles.into_iter();
        told(circles.map(|(at, why)| format!("{}{why}", places[at])))
    })
}

/// The rules of a file, each with the number of its line.
fn read_file(path: &Path) -> Result<Vec<(RedirectRule, usize)>, String> {
    let text = text_of(path)?;
    let mut rules = Vec::new();
    let mut mistakes = Vec::new();
    for (at, line) in text.lines().enumerate() {
        match RedirectRule::from_line(line) {
            Ok(rule) => rules.extend(rule.map(|rule| (rule, at + 1))),
            Err(why) => mistakes.push(format!("{}{why}", line_of(path, at + 1))),
        }
    }
    if mistakes.is_empty() { Ok(rules) } else { Err(told(mistakes.into_iter())) }
}

fn text_of(path: &Path) -> Result<String, String> {
    let name = path.display();
    let bytes = files::read(path, FILE_BYTES_MAX)
        .map_err(|error| format!("cannot read the redirects '{name}': {error}"))?;
    String::from_utf8(bytes).map_err(|_| format!("'{name}' is not UTF-8"))
}

/// The source of the rule with this number, with the line if it is a file.
///
/// # Errors
/// Same as [`read`].
pub(super) fn place(
    sources: &[RedirectSource],
    rule: usize,
) -> Result<(usize, Option<String>), String> {
    let mut before = 0;
    for (at, source) in sources.iter().enumerate() {
        let rules = match source {
            RedirectSource::Rule(_) if before == rule => return Ok((at, None)),
            RedirectSource::Rule(_) => 1,
            RedirectSource::File(path) => {
                let rules = read_file(path)?;
                if let Some((_, line)) = rules.get(rule - before) {
                    let text = text_of(path)?;
                    let rule = text.lines().nth(line - 1).unwrap_or_default();
                    return Ok((at, Some(line_of(path, *line) + rule)));
                }
                rules.len()
            }
        };
        before += rules;
    }
    Err("the file of redirects has changed".to_owned())
}

fn line_of(path: &Path, line: usize) -> String {
    format!("{}:{line}: ", path.display())
}

/// The first mistakes, one per line, and the number of the others.
fn told(mut mistakes: impl Iterator<Item = String>) -> String {
    let first: Vec<_> = mistakes.by_ref().take(MISTAKES_MAX).collect();
    let mut text = first.join("\n");
    let others = mistakes.count();
    if others > 0 {
        _ = write!(text, "\n{others} more of the kind");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_of_a_file_name_their_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("redirects.txt");
        let rule = RedirectRule::new("/x", "/y", None).unwrap();
        let sources = [RedirectSource::Rule(rule), RedirectSource::File(path.clone())];
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let count = read(&sources, None).map(|redirects| redirects.len());
            count.map_err(|why| why.replace(&path.display().to_string(), "FILE"))
        };
        assert_eq!(read("# old site\n\n/a /b\n/c/* /d/:splat 302\n"), Ok(3));
        let why = read("/a /b\n/c\n/e /f 404\n").unwrap_err();
        let places: Vec<_> = why.lines().map(|line| &line[..7]).collect();
        assert_eq!(places, ["FILE:2:", "FILE:3:"], "{why}");
        let circle = read("# one\n/y /x\n").unwrap_err();
        assert!(circle.starts_with("'/x' leads to more than 10"), "{circle}");
        assert!(circle.contains("\nFILE:2: '/y' leads"), "{circle}");
        let many = read(&"/a\n".repeat(MISTAKES_MAX + 2)).unwrap_err();
        assert!(many.ends_with("\n2 more of the kind"), "{many}");
        let rules = (0..100_000).map(|nth| format!("/old/{nth} /new/{nth}\n"));
        assert_eq!(read(&rules.collect::<String>()), Ok(100_001));
        std::fs::remove_file(&path).unwrap();
        let why = super::read(&sources, None).unwrap_err();
        assert!(why.starts_with("cannot read the redirects '"), "{why}");
    }
}
