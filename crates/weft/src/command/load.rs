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
mod metrics;
mod options;
mod output;
mod progress;
mod values;

use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::time::SystemTime;

use ::load::Outcome;
use ::load::Plan;
use ::load::agents::Membership;
use ::load::plan::{Arrivals, Network, Workload};
use ::load::report::{Heading, count_of, rate_of};

use crate::failure::Failure;
use crate::value::show_counted;
pub(crate) use args::LoadCommand;
use args::MergeArgs;
use options::Load;

/// Runs the command.
///
/// # Errors
/// Returns the failure of the command.
pub(crate) fn run(command: &LoadCommand) -> Result<(), Failure> {
    match command {
        LoadCommand::Http(args) => {
            let place = campaign::place(&args.common)?;
            let rank = place.as_ref().map_or(0, |place| place.rank);
            run_load(options::http(args, rank), place)
        }
        LoadCommand::Cache(args) => run_load(options::cache(args), campaign::place(&args.common)?),
        LoadCommand::Idle(args) => run_load(options::idle(args), campaign::place(&args.common)?),
        LoadCommand::Fileset(args) => fileset::run(args),
        LoadCommand::Traces(args) => fileset::run_traces(args),
        LoadCommand::Merge(args) => run_merge(args),
    }
}

fn run_load(load: Result<Load<'_>, String>, place: Option<Membership>) -> Result<(), Failure> {
    let load = load.map_err(Failure::Usage)?;
    let target = load.name.clone();
    let common = load.common;
    let plan = options::plan(load).map_err(Failure::Usage)?;
    plan.check().map_err(|error| Failure::Usage(error.to_string()))?;
    if place.is_some() && plan.network != Network::Kernel {
        return Err(Failure::Usage(
            "--network netstack cannot be combined with agents: all would have the same --address"
                .to_owned(),
        ));
    }
    let mut how = how(&plan);
    if let Some(place) = &place {
        check_shares(&plan, place.size)?;
        how = format!("{how}, {} agents", place.size);
    }
    let heading = Heading { target, how };
    campaign::carry_out(common, &plan, &heading, place)
}

/// Refuses a plan in which an agent would have no share.
fn check_shares(plan: &Plan, agents: u32) -> Result<(), Failure> {
    let is_idle = matches!(plan.workload, Workload::Idle);
    let connections = if is_idle { plan.idle.connections } else { plan.connections };
    // Each of an agent's threads has a connection, but for idle ones.
    let needed = if is_idle { agents } else { agents.saturating_mul(plan.threads) };
    if connections < needed {
        let why = format!("{agents} agents need at least {needed} --connections");
        return Err(Failure::Usage(why));
    }
    if plan.requests_max.is_some_and(|max| max < u64::from(agents)) {
        return Err(Failure::Usage(format!("{agents} agents need at least {agents} --requests")));
    }
    Ok(())
}

/// Description of the load, in words.
fn how(plan: &Plan) -> String {
    let arrivals = match &plan.arrivals {
        Arrivals::Closed if matches!(plan.workload, Workload::Idle) => "idle".to_owned(),
        Arrivals::Closed => "closed loop".to_owned(),
        Arrivals::Fixed { rate_per_s } => format!("open loop, {}", rate_of(*rate_per_s)),
        Arrivals::Poisson { rate_per_s } => format!("open loop, Poisson, {}", rate_of(*rate_per_s)),
        Arrivals::Course { stages, .. } => {
            format!("open loop, {}", show_counted(stages.len() as u64, "stage"))
        }
    };
    let depth = match plan.depth {
        depth if plan.http2 => format!(", HTTP/2, streams {depth}"),
        ..=1 => String::new(),
        depth => format!(", depth {depth}"),
    };
    let [count, idle] = [plan.connections, plan.idle.connections].map(u64::from);
    let connections = match (count, idle) {
        (_, 0) => show_counted(count, "connection"),
        (0, _) => show_counted(idle, "connection"),
        _ => format!("{} and {} idle ones", show_counted(count, "connection"), count_of(idle)),
    };
    let threads = show_counted(plan.threads.into(), "thread");
    let lasts = match plan.requests_max.map(|count| show_counted(count, "request")) {
        None => format!("{:?}", plan.duration),
        Some(requests) if plan.duration == options::REQUESTS_LAST_MAX => requests,
        Some(requests) => format!("{requests}, {:?} at most", plan.duration),
    };
    format!("{arrivals}, {connections}{depth}, {threads}, {lasts}")
}

fn run_merge(args: &MergeArgs) -> Result<(), Failure> {
    let output = output::Output::of(&args.output, false)?;
    let mut merged: Option<Outcome> = None;
    let mut measured: Vec<(&Path, Range<SystemTime>)> = Vec::new();
    for file in &args.files {
        let place =
            |error: &dyn std::fmt::Display| Failure::Usage(format!("{}: {error}", file.display()));
        let text = ::load::workload::input_file::read(file).map_err(|error| place(&error))?;
        let document = serde_json::from_slice(&text).map_err(|error| place(&error))?;
        let outcome = Outcome::from_json(document).map_err(|error| place(&error))?;
        let began = outcome.began;
        let ended = began.checked_add(outcome.elapsed).unwrap_or(began);
        let is_apart = |other: &Range<SystemTime>| began >= other.end || other.start >= ended;
        if let Some((other, _)) = measured.iter().find(|(_, time)| is_apart(time)) {
            writeln!(
                io::stderr(),
                "note: {} and {} were not measured at the same time (by the clocks of their \
                 machines): that their rates add up is not shown",
                other.display(),
                file.display()
            )?;
        }
        measured.push((file.as_path(), began..ended));
        match &mut merged {
            None => merged = Some(outcome),
            Some(merged) => merged.merge(&outcome).map_err(|error| place(&error))?,
        }
    }
    let merged = merged.expect("clap requires a file");
    let heading =
        Heading { target: format!("{} files", args.files.len()), how: "merged".to_owned() };
    output.finish(&merged, &heading)
}
