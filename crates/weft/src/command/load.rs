//! `weft load`: command line and execution.
//!
//! ```text
//!   http, cache, idle ──▶ Plan ──▶ campaign ──▶ run, sweep, knee; alone or with agents ──▶ output
//!   fileset, traces   ──▶ files to serve and to ask for
//!   merge             ──▶ outcomes of several runs as one ──▶ output
//! ```

pub(crate) mod args;
mod campaign;
mod fileset;
mod options;
mod output;
mod progress;

use std::path::PathBuf;

use ::load::Outcome;
use ::load::Plan;
use ::load::plan::{Arrivals, Network, Workload};
use ::load::report::{Heading, count_of, rate_of};
use clap::ArgMatches;

use crate::failure::Failure;

/// Runs the command.
///
/// # Errors
/// Returns the failure of the command.
pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let (name, matches) = matches.subcommand().expect("clap demands a command");
    match name {
        "fileset" => fileset::run(matches),
        "traces" => fileset::run_traces(matches),
        "merge" => run_merge(matches),
        _ => run_load(name, matches),
    }
}

fn run_load(command: &str, matches: &ArgMatches) -> Result<(), Failure> {
    let place = campaign::place(matches)?;
    let rank = place.as_ref().map_or(0, |place| place.rank);
    let (plan, target) = options::plan(command, matches, rank).map_err(Failure::Usage)?;
    plan.check()
        .map_err(|error| Failure::Usage(error.to_string()))?;
    if place.is_some() && plan.network != Network::Kernel {
        return Err(Failure::Usage(
            "--network netstack cannot be combined with agents: all would have the same --address"
                .to_owned(),
        ));
    }
    let mut how = how(&plan);
    if let Some(place) = &place {
        how = format!("{how}, {} agents", place.size);
    }
    let heading = Heading { target, how };
    campaign::carry_out(matches, ::load::run, &plan, &heading, place)
}

/// Description of the load, in words.
fn how(plan: &Plan) -> String {
    let arrivals = match &plan.arrivals {
        Arrivals::Closed if matches!(plan.workload, Workload::Idle) => "idle".to_owned(),
        Arrivals::Closed => "closed loop".to_owned(),
        Arrivals::Fixed { rate_per_s } => format!("open loop, {}", rate_of(*rate_per_s)),
        Arrivals::Poisson { rate_per_s } => format!("open loop, Poisson, {}", rate_of(*rate_per_s)),
        Arrivals::Course { stages, .. } => format!("open loop, {} stages", stages.len()),
    };
    let depth = match plan.depth {
        ..=1 => String::new(),
        depth => format!(", depth {depth}"),
    };
    let [count, idle] =
        [plan.connections, plan.idle.connections].map(|count| count_of(count.into()));
    let connections = match (plan.connections, plan.idle.connections) {
        (_, 0) => format!("{count} connections"),
        (0, _) => format!("{idle} connections"),
        _ => format!("{count} connections and {idle} idle ones"),
    };
    let threads = match plan.threads {
        1 => "1 thread".to_owned(),
        more => format!("{more} threads"),
    };
    let lasts = match plan.requests_max.map(count_of) {
        None => format!("{:?}", plan.duration),
        Some(requests) if plan.duration == options::REQUESTS_LAST_MAX => {
            format!("{requests} requests")
        }
        Some(requests) => format!("{requests} requests, {:?} at most", plan.duration),
    };
    format!("{arrivals}, {connections}{depth}, {threads}, {lasts}")
}

fn run_merge(matches: &ArgMatches) -> Result<(), Failure> {
    let output = output::Output::of(matches)?;
    let files: Vec<_> = matches
        .get_many::<PathBuf>("files")
        .into_iter()
        .flatten()
        .collect();
    let mut merged: Option<Outcome> = None;
    for file in &files {
        let place =
            |error: &dyn std::fmt::Display| Failure::Usage(format!("{}: {error}", file.display()));
        let text = ::load::workload::input_file::read(file).map_err(|error| place(&error))?;
        let document = serde_json::from_slice(&text).map_err(|error| place(&error))?;
        let outcome = Outcome::from_json(document).map_err(|error| place(&error))?;
        match &mut merged {
            None => merged = Some(outcome),
            Some(merged) => merged.merge(&outcome).map_err(|error| place(&error))?,
        }
    }
    let merged = merged.expect("clap demands a file");
    let heading = Heading {
        target: format!("{} files", files.len()),
        how: "merged".to_owned(),
    };
    output.finish(&merged, &heading)
}
