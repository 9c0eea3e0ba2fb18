//! The page of an experiment, `docs/experiments/NAME.md`. It has the experiment's texts; its title
//! comes from the catalogue, and its results from `weft lab report`.
//!
//! The texts are paragraphs without markup, since `weft lab list NAME` and the report show them
//! too:
//!
//! - Question and method: the question, the papers' set-up for a reader who has not read them, what
//!   is scaled here and why, and how to read the figure.
//! - What the papers found: their result, or a note that they did not ask.
//! - Why not all of it came out: known causes of results that were not as expected.
//! - What may be wrong with it: reasons why results may differ elsewhere.

use load::report::fold;

use crate::experiment::{Breadth, Experiment};
use crate::rows::Rows;

const QUESTION: &str = "Question and method";
pub(crate) const FOUND: &str = "What the papers found";
pub(crate) const REASONS: &str = "Why not all of it came out";
pub(crate) const THREATS: &str = "What may be wrong with it";
const CAME_OUT: &str = "\n## What came out here";
const HOW_TO_RUN: &str = "\n\n`sudo weft lab run ";

impl Experiment {
    /// The page in Markdown, without results, but with the systems, measures, configurations and
    /// expectations that result tables do not explain.
    pub fn markdown(&self) -> String {
        let (_, page) = self.page.split_once("-->\n\n").unwrap_or_default();
        let page = page.split(CAME_OUT).next().unwrap_or_default();
        let expected = self.expected().into_iter();
        let expected = expected.map(|says| format!("\n- {says}"));
        format!(
            "{}\n\n## Systems, measures, configurations\n\n{}\n\n## What is expected\n{}",
            page.trim_end(),
            self.lists(),
            expected.collect::<String>()
        )
    }

    fn lists(&self) -> String {
        let systems = self.systems.iter().map(|kind| in_tables(kind));
        let measures = self.measures.iter();
        let measures = measures.map(|one| format!("{}, {}", one.title, one.unit));
        let configurations = (self.configurations)(&Breadth::default()).into_iter();
        let configurations = configurations.map(|one| one.label);
        let lists = [
            list("Systems", systems),
            list("Measures", measures),
            list("Configurations", configurations),
        ];
        lists.join("\n")
    }

    /// Expectations of a full run, in words.
    fn expected(&self) -> Vec<String> {
        let configurations = (self.configurations)(&Breadth::default());
        let kinds: Vec<String> = self.systems.iter().map(|&kind| kind.to_owned()).collect();
        let rows = Rows::new(&configurations, &kinds);
        let expectations = (self.expectations)(&rows).into_iter().flatten();
        // A quick run may have configurations of its own, with the same expectations.
        let expectations = expectations.filter(|one| rows.has_configuration(&one.configuration));
        expectations.map(|one| one.says).collect()
    }

    /// The question, and how to read the figure, in paragraphs.
    pub(crate) fn question(&self) -> &'static str {
        let mut parts = self.section(QUESTION).split(HOW_TO_RUN);
        parts.next().unwrap_or_default()
    }

    /// Text below a heading, up to the next one; empty without such a heading.
    pub(crate) fn section(&self, heading: &str) -> &'static str {
        let begin = format!("# {heading}\n\n");
        let (_, behind) = self.page.split_once(&*begin).unwrap_or_default();
        behind.split("\n\n#").next().unwrap_or_default()
    }
}

/// A system's name in tables; for weft's fibers with their kind, since other runtimes have only
/// one.
fn in_tables(kind: &str) -> String {
    match kind {
        "pinned" => "weft: pinned fibers, the default, each of which stays on its processor",
        "stackless" => "weft stackless: fibers that hold no stack while they wait",
        "migratable" => "weft migratable: fibers with a stack that may move between processors",
        other => other,
    }
    .to_owned()
}

/// `- Systems: a; b.`, with semicolons because labels have commas.
fn list(what: &str, all: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = all.collect();
    item(&format!("{what}: {}.", all.join("; ")))
}

/// Columns of documents.
const COLUMNS: usize = 100;

/// A paragraph of a document.
pub(crate) fn paragraph(text: &str) -> String {
    lines(text, COLUMNS).join("\n")
}

/// An item of a list in a document.
pub(crate) fn item(text: &str) -> String {
    format!("- {}", lines(text, COLUMNS - 2).join("\n  "))
}

fn lines(text: &str, columns: usize) -> Vec<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    fold(&words.join(" "), columns)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::catalog::CATALOG;

    const MADE: &str = "<!-- Title from crates/lab/src/catalog: UPDATE_PAGES=1 cargo test -p \
                        weftwork-lab pages -->\n\n";

    /// Puts `text` between two parts of a page.
    fn put(page: &mut String, from: &str, text: &str, to: &str) {
        let begin = page.find(from).map(|at| at + from.len());
        let begin = begin.unwrap_or_else(|| panic!("no {from:?} in {page}"));
        let len = page[begin..].find(to);
        let len = len.unwrap_or_else(|| panic!("no {to:?} after {from:?} in {page}"));
        page.replace_range(begin..begin + len, text);
    }

    /// The page with the catalogue's title; its texts and results stay.
    fn made(experiment: &Experiment) -> String {
        let name = experiment.name;
        let mut page = experiment.page.to_owned();
        let about = capital(experiment.about);
        let head = format!("{MADE}# {name}\n\n{}", paragraph(&format!("{about}.")));
        put(&mut page, "", &head, &format!("\n\n## {QUESTION}\n\n"));
        let how = format!("{name}` runs it as [lab.md](../lab.md#how-it-is-measured) says.");
        let found = format!("\n\n## {FOUND}\n\n");
        put(&mut page, HOW_TO_RUN, &how, &found);
        put(&mut page, CAME_OUT, "\n\n", &format!("<!-- begin: lab {name} -->"));
        let end = format!("<!-- end: lab {name} -->\n");
        assert!(page.ends_with(&end), "{page}");
        page
    }

    fn capital(text: &str) -> String {
        let (first, rest) = text.split_at(1);
        first.to_uppercase() + rest
    }

    #[test]
    fn pages_match_the_catalogue() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/experiments");
        for experiment in CATALOG {
            let name = experiment.name;
            let made = made(experiment);
            if std::env::var_os("UPDATE_PAGES").is_some() {
                fs::write(folder.join(name).with_extension("md"), made).unwrap();
                continue;
            }
            assert!(
                experiment.page == made,
                "{name}.md is behind the catalogue: UPDATE_PAGES=1 cargo test -p weftwork-lab pages"
            );
            for heading in [FOUND, THREATS] {
                assert!(!experiment.section(heading).is_empty(), "{name}: {heading}");
            }
            assert!(experiment.markdown().starts_with(&format!("# {name}\n")));
        }
        // Every page has an experiment.
        assert_eq!(fs::read_dir(&folder).unwrap().count(), CATALOG.len());
    }
}
