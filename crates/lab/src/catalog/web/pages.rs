//! `page-sizes`: comparison of the generated front pages with those of Rusty's author.

use load::workload::fileset::{FileSet, Model, Recipe, page_figures};

use crate::catalog::prelude::*;

pub(in crate::catalog) const PAGE_SIZES: Experiment = Experiment {
    name: "page-sizes",
    about: "the generated front pages beside the sizes that the author of Rusty found",
    page: page!("page-sizes"),
    measures: &[super::files::DIFFERS, OURS, PAPER],
    configurations,
    systems: &["weft load"],
    work: Work::Server(ServerWork { lasts: 0.0, queues_by_itself: true, ..ServerWork::new(take) }),
    figures: &[bars(0)],
    expectations,
};

const OURS: Measure = neither("ours", "of the generated pages", "as the configuration says");
const PAPER: Measure = neither("paper", "of the paper's pages", "as the configuration says");

fn figures() -> Result<Vec<(&'static str, f64, f64)>, String> {
    let set = FileSet::plan(Recipe { model: Model::Pages, scale: 1.0, seed: 1, exponent: 1.0 });
    Ok(page_figures(&set?))
}

fn configurations(_: &Breadth) -> Vec<Configuration> {
    let figures = figures().unwrap_or_default().into_iter().enumerate();
    let configurations =
        figures.map(|(at, (name, ..))| Configuration::new(name, "fileset", [("at", at as u64)]));
    configurations.collect()
}

fn take(_: &mut Bench<'_>, configuration: &Configuration, _: &System) -> Taken {
    let figures = figures()?;
    let found = figures.get(configuration.get("at", 0) as usize);
    let &(_, paper, ours) = found.ok_or("the paper has no such figure")?;
    let differs = 100.0 * (ours / paper - 1.0).abs();
    Ok(Sample::of([("differs_percent", differs), ("ours", ours), ("paper", paper)]))
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&super::files::DIFFERS);
    let figures = figures().unwrap_or_default().into_iter();
    let each = figures.map(|(name, ..)| paper(judge.at_most(name, "weft load", 10.0)));
    each.collect()
}
