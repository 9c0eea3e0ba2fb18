//! An experiment's page in words: for `weft lab list NAME` and for `docs/experiments`.

use crate::experiment::{Breadth, Experiment};
use crate::rows::Rows;

impl Experiment {
    /// What it asks, how, what the papers found, what is expected, and what may be wrong with it.
    /// In Markdown, with lines that fit a terminal.
    pub fn markdown(&self) -> String {
        let (name, about) = (self.name, self.about);
        let cells = (self.cells)(&Breadth::default());
        let measures = self.measures.iter();
        let measures = measures.map(|one| format!("{}, {}", one.title, one.unit));
        let subjects: Vec<String> = self.subjects.iter().map(|&kind| kind.to_owned()).collect();
        let rows = Rows::new(&cells, &subjects);
        let expectations = (self.expectations)(&rows).into_iter().flatten();
        // What is expected of a quick run's cells is the same, and is left out.
        let expectations = expectations.filter(|one| rows.has_cell(&one.cell));
        [
            format!("# {name}"),
            format!("{}.", capital(about)),
            "## Question and method".to_owned(),
            self.page.to_owned(),
            "What goes for every experiment, and which papers are meant, is in [lab.md](../lab.md)."
                .to_owned(),
            format!("```console\n$ sudo weft lab run {name}\n```"),
            "## What the papers found".to_owned(),
            self.found.to_owned(),
            "## What is expected".to_owned(),
            list(expectations.map(|one| one.says)),
            "A run says of each whether it came out so.".to_owned(),
            reasons(self.reasons),
            "## What may be wrong with it".to_owned(),
            self.threats.to_owned(),
            "## Subjects, measures, cells".to_owned(),
            format!(
                "Subjects:\n\n{}",
                list(subjects.iter().map(|kind| in_tables(kind)))
            ),
            format!("Measures:\n\n{}", list(measures)),
            "Those that matter most have tables below, and all of them are in\n\
             [report.html](../../results/report.html)."
                .to_owned(),
            format!(
                "Cells:\n\n{}",
                list(cells.into_iter().map(|cell| cell.label))
            ),
        ]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("\n\n")
            + "\n"
    }
}

/// A subject by the name that tables have, and what weft's kinds of fibers are: other runtimes have
/// one kind.
fn in_tables(kind: &str) -> String {
    match kind {
        "pinned" => "weft: pinned fibers, the default, each of which stays on its processor",
        "steps" => "weft steps: fibers made of steps, which hold no stack while they wait",
        "migratable" => "weft migratable: fibers with a stack that may move between processors",
        other => other,
    }
    .to_owned()
}

fn reasons(known: &str) -> String {
    match known.is_empty() {
        true => String::new(),
        false => format!("### Why not all of it came out\n\n{known}"),
    }
}

fn list(lines: impl Iterator<Item = String>) -> String {
    lines
        .map(|line| format!("- {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters
        .next()
        .map(|letter| letter.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use crate::catalog::CATALOG;
    use crate::experiment::Experiment;
    use crate::report::file_name;

    const MADE: &str = "<!-- Made from crates/lab/src/catalog: UPDATE_PAGES=1 cargo test -p \
                        weftwork-lab pages -->\n\n";

    /// What came out stands at the end of a page, and is written by the command that it names.
    fn page_of(experiment: &Experiment, came_out: &str) -> String {
        let (name, page) = (experiment.name, experiment.markdown());
        let figures = (0..experiment.figures.len()).map(|at| {
            let file = file_name(name, at);
            format!(
                "![{} {}](../../results/figures/{file}.svg)\n\n",
                experiment.about,
                at + 1
            )
        });
        let figures: String = figures.collect();
        format!(
            "{MADE}{page}\n## What came out here\n\nFrom the samples in \
             [results](../../results/README.md).\n\n{figures}\
             <!-- begin: lab {name} -->{came_out}<!-- end: lab {name} -->\n"
        )
    }

    #[test]
    fn the_pages_of_the_experiments_are_what_the_catalogue_says() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/experiments");
        for experiment in CATALOG {
            let page = folder.join(experiment.name).with_extension("md");
            let text = fs::read_to_string(&page).unwrap_or_default();
            let came_out = text.split_once("<!-- begin: lab ").and_then(|(_, behind)| {
                let (_, behind) = behind.split_once("-->")?;
                Some(behind.split_once("<!-- end: lab ")?.0)
            });
            let made = page_of(experiment, came_out.unwrap_or("\n"));
            if std::env::var_os("UPDATE_PAGES").is_some() {
                fs::write(&page, &made).unwrap();
            }
            let text = fs::read_to_string(&page).unwrap_or_default();
            let page = page.display();
            assert!(
                text == made,
                "{page} is behind the catalogue: UPDATE_PAGES=1 cargo test -p weftwork-lab pages"
            );
        }
        // No page without an experiment.
        assert_eq!(fs::read_dir(&folder).unwrap().count(), CATALOG.len());
    }
}
