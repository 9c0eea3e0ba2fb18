//! Every experiment, one file each.

mod churn;
mod cycle;
mod hand_over;
mod idle;
mod imbalance;
mod locality;
mod memory;
mod spawn;
mod sync;
mod transfer;
mod yield_;

use crate::run::{Cell, Experiment};

/// All experiments, in the order in which they are listed.
pub const CATALOG: [&Experiment; 12] = [
    &yield_::YIELD,
    &cycle::CYCLE,
    &churn::CHURN,
    &locality::LOCALITY,
    &transfer::TRANSFER,
    &memory::MEMORY,
    &spawn::SPAWN,
    &sync::SYNC,
    &hand_over::HAND_OVER,
    &hand_over::WAKE,
    &idle::IDLE,
    &imbalance::IMBALANCE,
];

/// The experiment of this name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    CATALOG
        .into_iter()
        .find(|experiment| experiment.name == name)
}

/// The four cells of the thesis's figures: one and two processors, many fibers for each and one for
/// each.
fn four_cells(program: &'static str, quick: bool) -> Vec<Cell> {
    let processors: &[u64] = if quick { &[1] } else { &[1, 2] };
    let cells = processors.iter().flat_map(|&processors| {
        [("many", 100), ("few", 1)].map(|(how_many, per_processor)| Cell {
            label: label(processors, how_many),
            program,
            parameters: vec![
                ("processors", processors),
                ("threads", per_processor * processors),
                ("spots", (per_processor * processors).div_ceil(2)),
            ],
        })
    });
    cells.collect()
}

fn label(processors: u64, how_many: &str) -> String {
    match processors {
        1 => format!("1 processor, {how_many}"),
        more => format!("{more} processors, {how_many}"),
    }
}

/// The fibers that are to be left behind.
const PEERS: &[&str] = &["go", "tokio", "may"];
