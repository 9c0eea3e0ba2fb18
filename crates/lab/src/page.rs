//! An experiment's page, `docs/experiments/NAME.md`: its words are written there, its lists are
//! made from the catalogue, and what came out is put below them by `weft lab report`.
//!
//! The words are paragraphs without markup, since `weft lab list NAME` and the report show them
//! too:
//!
//! - Question and method: what a reader should know who has not read the papers, which is the
//!   question, the papers' set-up, what is scaled here and why, and how to read the figure.
//! - What the papers found, or that they did not ask.
//! - Why not all of it came out: what is known of it, if some of what is expected did not.
//! - What may be wrong with it: why it may not be so elsewhere.

use crate::experiment::Experiment;

const QUESTION: &str = "Question and method";
pub(crate) const FOUND: &str = "What the papers found";
pub(crate) const REASONS: &str = "Why not all of it came out";
pub(crate) const THREATS: &str = "What may be wrong with it";
const CAME_OUT: &str = "\n## What came out here";
const METHOD_OF_ALL: &str = "\n\nWhat goes for every experiment";

impl Experiment {
    /// Its page but what came out: what it asks, how, what the papers found, what is expected, and
    /// what may be wrong with it. In Markdown, with lines that fit a terminal.
    pub fn markdown(&self) -> &'static str {
        let (_, page) = self.page.split_once("-->\n\n").unwrap_or_default();
        page.split(CAME_OUT).next().unwrap_or_default()
    }

    /// The question, and how to read the figure, in paragraphs.
    pub(crate) fn question(&self) -> &'static str {
        let mut parts = self.section(QUESTION).split(METHOD_OF_ALL);
        parts.next().unwrap_or_default()
    }

    /// What stands below a heading, up to the next one; nothing if there is no such heading.
    pub(crate) fn section(&self, heading: &str) -> &'static str {
        let begin = format!("# {heading}\n\n");
        let (_, behind) = self.page.split_once(&*begin).unwrap_or_default();
        behind.split("\n\n#").next().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::catalog::CATALOG;
    use crate::experiment::Breadth;
    use crate::report::file_name;
    use crate::rows::Rows;

    const MADE: &str = "<!-- The lists are made from crates/lab/src/catalog: UPDATE_PAGES=1 cargo \
                        test -p weftwork-lab pages -->\n\n";

    /// Puts `text` between two parts of a page.
    fn put(page: &mut String, from: &str, text: &str, to: &str) {
        let begin = page.find(from).map(|at| at + from.len());
        let begin = begin.unwrap_or_else(|| panic!("no {from:?} in {page}"));
        let len = page[begin..].find(to);
        let len = len.unwrap_or_else(|| panic!("no {to:?} after {from:?} in {page}"));
        page.replace_range(begin..begin + len, text);
    }

    /// The page with the lists that the catalogue has. Its words and what came out stay.
    fn made(experiment: &Experiment) -> String {
        let (name, about) = (experiment.name, capital(experiment.about));
        let configurations = (experiment.configurations)(&Breadth::default());
        let systems: Vec<String> = experiment
            .systems
            .iter()
            .map(|&kind| kind.to_owned())
            .collect();
        let rows = Rows::new(&configurations, &systems);
        let expectations = (experiment.expectations)(&rows).into_iter().flatten();
        // What is expected of a quick run's configurations is the same, and is left out.
        let expectations = expectations.filter(|one| rows.has_configuration(&one.configuration));
        let expected = list(expectations.map(|one| one.says));
        let systems = list(systems.iter().map(|kind| in_tables(kind)));
        let measures = experiment.measures.iter();
        let measures = list(measures.map(|one| format!("{}, {}", one.title, one.unit)));
        let configurations = list(
            configurations
                .into_iter()
                .map(|configuration| configuration.label),
        );
        let figures = (0..experiment.figures.len()).map(|at| {
            let (about, file) = (experiment.about, file_name(name, at));
            let number = at + 1;
            format!("![{about} {number}](../../results/figures/{file}.svg)\n\n")
        });
        let figures: String = figures.collect();

        let mut page = experiment.page.to_owned();
        let head = format!("{MADE}# {name}\n\n{about}.");
        put(&mut page, "", &head, &format!("\n\n## {QUESTION}\n\n"));
        let how = format!(
            " is in [lab.md](../lab.md#how-it-is-measured).\n\n\
             ```console\n$ sudo weft lab run {name}\n```"
        );
        put(
            &mut page,
            METHOD_OF_ALL,
            &how,
            &format!("\n\n## {FOUND}\n\n"),
        );
        let expected = format!("{expected}\n\nA run says of each whether it came out so.");
        put(&mut page, "## What is expected\n\n", &expected, "\n\n##");
        let lists = format!(
            "Systems:\n\n{systems}\n\nMeasures:\n\n{measures}\n\n\
             Those that matter most have tables below, and all of them are in\n\
             [report.html](../../results/report.html).\n\n\
             Configurations:\n\n{configurations}\n"
        );
        put(
            &mut page,
            "## Systems, measures, configurations\n\n",
            &lists,
            CAME_OUT,
        );
        let figures =
            format!("\n\nFrom the samples in [results](../../results/README.md).\n\n{figures}");
        let begin = format!("<!-- begin: lab {name} -->");
        put(&mut page, CAME_OUT, &figures, &begin);
        assert!(
            page.ends_with(&format!("<!-- end: lab {name} -->\n")),
            "{page}"
        );
        page
    }

    /// A system by the name that tables have, and what weft's kinds of fibers are: other runtimes
    /// have one kind.
    fn in_tables(kind: &str) -> String {
        match kind {
            "pinned" => "weft: pinned fibers, the default, each of which stays on its processor",
            "stackless" => "weft stackless: fibers that hold no stack while they wait",
            "migratable" => "weft migratable: fibers with a stack that may move between processors",
            other => other,
        }
        .to_owned()
    }

    fn list(lines: impl Iterator<Item = String>) -> String {
        let lines = lines.map(|line| format!("- {line}"));
        lines.collect::<Vec<_>>().join("\n")
    }

    fn capital(text: &str) -> String {
        let (first, rest) = text.split_at(1);
        first.to_uppercase() + rest
    }

    #[test]
    fn the_lists_of_the_pages_are_what_the_catalogue_says() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/experiments");
        for experiment in CATALOG {
            let (name, made) = (experiment.name, made(experiment));
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
        // No page without an experiment.
        assert_eq!(fs::read_dir(&folder).unwrap().count(), CATALOG.len());
    }
}
