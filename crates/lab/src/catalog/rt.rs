//! Threading runtimes: the cost of a switch, and fairness. The first five experiments come
//! from the doctoral thesis on C∀'s runtime (T. Delisle, University of Waterloo, 2022).

pub(super) mod churn;
pub(super) mod cycle;
pub(super) mod hand_over;
pub(super) mod idle;
pub(super) mod imbalance;
pub(super) mod locality;
pub(super) mod memory;
pub(super) mod spawn;
pub(super) mod sync;
pub(super) mod transfer;
pub(super) mod yield_;

use crate::catalog::prelude::*;

/// Runtimes by others.
const PEERS: &[&str] = &["go", "tokio", "may"];

const BARS: &[Figure] = &[bars(0)];

/// Figures: bars, and lines over the number of processors.
const SCALING: &[Figure] = &[bars(0), over_processors("per_processor", "fibers a processor")];

const fn over_processors(panels: &'static str, words: &'static str) -> Figure {
    Figure::over(0, ("processors", "processors"), false, Some((panels, words)))
}

/// The configurations of the thesis's figures: one, two and more processors, with many fibers per
/// processor and with one.
fn scaling_configurations(program: &'static str, breadth: &Breadth) -> Vec<Configuration> {
    let configurations = breadth.processors().into_iter().flat_map(|processors| {
        [("many", 100), ("few", 1)].map(|(how_many, per_processor)| {
            let threads = per_processor * processors;
            let sizes = [("processors", processors), ("per_processor", per_processor)];
            let work = [("threads", threads), ("spots", threads.div_ceil(2))];
            Configuration::new(label(processors, how_many), program, [sizes, work].concat())
        })
    });
    configurations.collect()
}

const FOUR: [&str; 4] =
    ["1 processor, many", "1 processor, few", "2 processors, many", "2 processors, few"];

fn label(processors: u64, how_many: &str) -> String {
    match processors {
        1 => format!("1 processor, {how_many}"),
        more => format!("{more} processors, {how_many}"),
    }
}

/// Expects weft's pinned fibers to be ahead of all peers in these configurations.
fn ahead(judge: Judge<'_>, configurations: &[&str]) -> Expectations {
    let configurations = configurations.iter();
    configurations.map(|configuration| judge.beats(configuration, "weft", PEERS, 1.0)).collect()
}
