//! Every experiment, one file each.

mod cache;
mod dispatch;
mod generator;
mod netstack;
mod overload;
mod prelude;
mod rt;
mod web;

use crate::experiment::Experiment;

/// All experiments, in the order in which they are listed.
pub const CATALOG: &[&Experiment] = &[
    &web::rows::WEB_ROWS,
    &web::throughput::WEB_THROUGHPUT,
    &web::overload::WEB_OVERLOAD,
    &web::servers::WEB_SERVERS,
    &web::idle::WEB_IDLE,
    &web::cold::WEB_COLD,
    &web::disk::WEB_DISK,
    &web::files::FILE_TABLE,
    &cache::rows::CACHE_ROWS,
    &cache::latency::CACHE_LATENCY,
    &cache::updates::CACHE_UPDATES,
    &cache::overload::CACHE_OVERLOAD,
    &cache::memory::CACHE_MEMORY,
    &dispatch::rate::RATE,
    &dispatch::cost::COST,
    &netstack::mtu::MTU,
    &netstack::offload::OFFLOAD,
    &netstack::congestion::CONGESTION,
    &netstack::cores::CORES,
    &netstack::profile::PROFILE,
    &generator::cpu::CPU,
    &generator::lag::LAG,
    &generator::truth::TRUTH,
    &generator::network::NETWORK,
    &rt::yield_::YIELD,
    &rt::cycle::CYCLE,
    &rt::churn::CHURN,
    &rt::locality::LOCALITY,
    &rt::transfer::TRANSFER,
    &rt::memory::MEMORY,
    &rt::spawn::SPAWN,
    &rt::sync::SYNC,
    &rt::hand_over::HAND_OVER,
    &rt::hand_over::WAKE,
    &rt::idle::IDLE,
    &rt::imbalance::IMBALANCE,
];

/// The experiment of this name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    CATALOG
        .iter()
        .copied()
        .find(|experiment| experiment.name == name)
}

/// The experiments of this name, or of this family: `rt`, `web`, `cache`, `all`.
pub fn chosen(name: &str) -> Vec<&'static Experiment> {
    let belongs = |experiment: &&&Experiment| {
        let family = experiment.name.split('-').next();
        name == experiment.name || Some(name) == family || name == "all"
    };
    CATALOG.iter().filter(belongs).copied().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::Duration;

    use super::*;
    use crate::experiment::{Breadth, Figure, Work};
    use crate::method::{Effort, estimate};
    use crate::place::Controller;

    #[test]
    fn every_experiment_can_be_read_run_and_drawn() {
        let mut names = BTreeSet::new();
        for experiment in CATALOG {
            let name = experiment.name;
            assert!(names.insert(name), "two are called {name}");
            assert!(
                experiment.page.split("\n\n").count() >= 3,
                "{name}: question, set-up, reading"
            );
            assert!(!experiment.figures.is_empty(), "{name} has no figure");
            for quick in [false, true] {
                let cells = (experiment.cells)(&Breadth {
                    quick,
                    peak_per_s: Some(100_000.0),
                });
                let labels: BTreeSet<_> = cells.iter().map(|cell| &cell.label).collect();
                assert_eq!(labels.len(), cells.len(), "{name}: labels tell cells apart");
                for figure in experiment.figures {
                    let measure = match figure {
                        Figure::Bars { measure } => measure,
                        Figure::Course {
                            measure, panels, ..
                        } => {
                            assert!(cells.iter().all(|cell| cell.parameter(panels).is_some()));
                            measure
                        }
                        Figure::Lines { measure, over, .. } => {
                            assert!(cells.iter().all(|cell| cell.parameter(over).is_some()));
                            measure
                        }
                    };
                    assert!(*measure < experiment.measures.len(), "{name}");
                }
                if let Work::Server(work) = experiment.work {
                    assert!(
                        work.scaled_by
                            .is_none_or(|kind| experiment.subjects.contains(&kind))
                    );
                }
            }
        }
    }

    #[test]
    fn what_needs_a_control_group_says_which() {
        let needs = |experiment: &&Experiment| {
            let Work::Server(work) = experiment.work else {
                return None;
            };
            Some((experiment.name, work.needs_group?))
        };
        let needed: BTreeMap<_, _> = CATALOG.iter().filter_map(needs).collect();
        let expected = [
            ("cache-overload", Controller::Cpu),
            ("web-cold", Controller::Memory),
            ("web-disk", Controller::Memory),
            ("web-overload", Controller::Cpu),
        ];
        assert_eq!(needed, expected.into());
    }

    /// The promise of `weft lab run all --quick`, added up, with every subject there.
    #[test]
    fn a_quick_look_at_everything_is_planned_for_45_minutes() {
        let estimate = |experiment: &&Experiment| {
            let effort = Effort::default_of(experiment, true);
            let lasts = estimate(experiment, experiment.subjects.len(), &effort);
            (experiment.name, lasts)
        };
        let each: Vec<_> = CATALOG.iter().map(estimate).collect();
        let all: Duration = each.iter().map(|(_, lasts)| *lasts).sum();
        assert!(all < Duration::from_secs(45 * 60), "{all:?}: {each:?}");
    }

    /// Seen: the p99 of caches at 70 % of the peak jumped by 40 times between two quick runs.
    /// Cause: a stall of 3 ms is one per cent of a sample of 0.3 s. Cure: an experiment says what
    /// it needs at the least.
    #[test]
    fn a_quick_look_gives_tails_and_agreement_the_time_that_they_need() {
        let asked = |name| {
            let effort = Effort::default_of(find(name).unwrap(), true);
            (effort.repetitions, effort.seconds)
        };
        assert_eq!(asked("web-rows"), (3, 0.3));
        assert_eq!(asked("cache-latency"), (5, 2.0));
        assert_eq!(asked("generator-truth"), (5, 2.0));
        assert_eq!(asked("web-overload"), (3, 0.4));
    }

    #[test]
    fn families_are_chosen_by_their_name() {
        assert_eq!(chosen("rt").len(), 12);
        assert_eq!(chosen("rt-yield").len(), 1);
        assert_eq!(chosen("all").len(), CATALOG.len());
        assert!(chosen("y").is_empty());
    }
}
