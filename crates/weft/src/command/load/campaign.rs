//! Execution of a command: one run, a sweep, or the search for the knee; alone, or as one of
//! several agents.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::args::{CommonArgs, ManyArgs};
use super::metrics::LiveMetrics;
use super::options;
use super::output::{Output, width};
use super::progress::ProgressLine;
use crate::failure::Failure;
use crate::os::stop::Stop;
use ::load::agents::{Leader, Membership, Role, RoundOrder, meet};
use ::load::plan::{Arrivals, Stage};
use ::load::report::Heading;
use ::load::sweep::{Rates, Runner, Step, Sweep, SweepOptions, planned};
use ::load::{Outcome, Plan, Progress};

/// Longest wait of agents for each other: machines start at different times.
const MEETING_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest wait for agents that finish later than this one.
const OUTCOME_TIMEOUT: Duration = Duration::from_secs(30);
/// Precision of the knee at which the search ends, relative to its rate.
const KNEE_PRECISION: f64 = 0.02;

/// Membership of this agent; `None` if it is alone.
///
/// # Errors
/// If flags or environment contradict each other.
pub(super) fn place(common: &CommonArgs) -> Result<Option<Membership>, Failure> {
    let agents = &common.agents;
    let place = match (agents.agents, agents.rank, agents.rendezvous.clone()) {
        (Some(size), Some(rank), Some(at)) => {
            Membership::by_hand(rank, size, at).map(|place| Some(place).filter(|p| p.size > 1))
        }
        (.., at) => Membership::of_launcher(|name| std::env::var(name).ok(), at),
    };
    place.map_err(Failure::Usage)
}

/// Runs the command with the plan of the whole group, and shows the outcome.
///
/// # Errors
/// If a run failed, an agent was lost, or a condition holds.
pub(super) fn carry_out(
    common: &CommonArgs,
    plan: &Plan,
    heading: &Heading,
    place: Option<Membership>,
) -> Result<(), Failure> {
    let run_kind = RunKind::of(&common.many, plan).map_err(Failure::Usage)?;
    let output = Output::of(&common.output, run_kind != RunKind::Run)?;
    let live = match (&common.metrics, &place) {
        (None, _) => None,
        (Some(address), None) => Some(LiveMetrics::start(address, plan)?),
        (Some(_), Some(_)) => {
            return Err(Failure::Usage(
                "--metrics is for one generator: it cannot be combined with agents".to_owned(),
            ));
        }
    };
    let sweep_options = SweepOptions {
        repetitions: common.many.repeat.max(1) as u32,
        pause: common.many.pause,
        p99_max: common.many.knee_p99,
    };
    let part = place.as_ref().map_or_else(|| plan.clone(), |place| part_of(plan, place));
    let leader = match &place {
        None => None,
        Some(place) => match meet(place, MEETING_TIMEOUT).map_err(Failure::Running)? {
            Role::Leader(leader) => Some(leader),
            Role::Member(member) => {
                let work = |order, stop: Arc<AtomicBool>| {
                    run_part(&part, place, order, &stop, &mut |_| ())
                };
                return member.work(work).map_err(Failure::Running);
            }
        },
    };
    let stop = Stop::default();
    if leader.is_none() {
        // With agents a signal ends the process with an error, and thus the whole group.
        stop.listen()?;
    }
    let progress = progress_line(common.quiet, &run_kind, &sweep_options, plan);
    let mut group = AgentGroup {
        part,
        place,
        leader,
        progress,
        live,
        stop: Arc::clone(&stop.requested),
        has_rows: run_kind != RunKind::Run && output.has_screen(),
        last: None,
        output,
    };
    let mut sweep = Sweep::default();
    let result = group.carry_out(&run_kind, &sweep_options, &mut sweep);
    let AgentGroup { leader, progress, last, output, .. } = group;
    progress.close();
    if let Some(leader) = leader {
        leader.end(&result.as_ref().map(|_| ()).map_err(Clone::clone));
    }
    let finished = match last {
        Some(outcome) if run_kind == RunKind::Run => output.finish(&outcome, heading),
        _ if sweep.steps.is_empty() => Ok(()),
        _ => {
            if output.has_screen() {
                write!(io::stdout(), "{}", sweep.knee_line())?;
            }
            output.finish_sweep(&sweep)
        }
    };
    match (stop.code(), result) {
        // The outcome so far has been shown and written, as far as possible.
        (Some(code), _) if !matches!(finished, Err(Failure::Running(_))) => {
            Err(Failure::Shown(code))
        }
        (None, Err(sentence)) => Err(Failure::Running(sentence)),
        _ => finished,
    }
}

/// The kind of command.
#[derive(Clone, Debug, PartialEq)]
enum RunKind {
    Run,
    Sweep(Rates),
    Knee { first_per_s: f64, overload: bool },
}

impl RunKind {
    fn of(many: &ManyArgs, plan: &Plan) -> Result<RunKind, String> {
        if let Some(rates) = &many.sweep {
            for &rate_per_s in &rates.per_s {
                let step = at_rate(plan, rate_per_s);
                step.check().map_err(|error| format!("--sweep: {error}"))?;
            }
            return Ok(RunKind::Sweep(rates.clone()));
        }
        Ok(if many.knee {
            RunKind::Knee {
                first_per_s: rate_of_plan(plan).unwrap_or(1_000.0),
                overload: many.overload,
            }
        } else {
            RunKind::Run
        })
    }
}

fn progress_line(
    is_quiet: bool,
    run_kind: &RunKind,
    sweep_options: &SweepOptions,
    plan: &Plan,
) -> ProgressLine {
    let run = plan.warm_up + plan.duration;
    // The number of runs in a search for the knee is unknown; a dozen is usual.
    let whole = match run_kind {
        RunKind::Run => run,
        RunKind::Sweep(rates) => planned(rates, sweep_options, run),
        RunKind::Knee { .. } => run.saturating_add(sweep_options.pause).saturating_mul(12),
    };
    ProgressLine::new(whole, is_quiet)
}

/// One generator, or the leader of many.
struct AgentGroup {
    part: Plan,
    place: Option<Membership>,
    leader: Option<Leader>,
    progress: ProgressLine,
    live: Option<LiveMetrics>,
    stop: Arc<AtomicBool>,
    has_rows: bool,
    /// The outcome of the last run, until written.
    last: Option<Outcome>,
    output: Output,
}

impl AgentGroup {
    /// Carries out all runs. A sweep that fails keeps the completed steps.
    fn carry_out(
        &mut self,
        run_kind: &RunKind,
        sweep_options: &SweepOptions,
        sweep: &mut Sweep,
    ) -> Result<(), String> {
        if self.has_rows {
            let head = self.progress.print(&Step::head(width()));
            self.output.note(head.map_err(Failure::from));
        }
        match run_kind {
            RunKind::Run => {
                self.last = Some(self.round(RoundOrder::default())?);
            }
            RunKind::Sweep(rates) => sweep.over(rates, sweep_options, self)?,
            RunKind::Knee { first_per_s, overload } => {
                sweep.knee(*first_per_s, KNEE_PRECISION, sweep_options, self)?;
                if *overload {
                    sweep.overload(sweep_options, self)?;
                }
            }
        }
        Ok(())
    }

    fn round(&mut self, order: RoundOrder) -> Result<Outcome, String> {
        let AgentGroup { part, place, leader, progress: line, live, stop, .. } = self;
        let mut observer = |progress: &Progress<'_>| {
            line.tick(progress);
            if let Some(live) = live {
                live.tick(progress);
            }
        };
        match (leader, place) {
            (Some(leader), Some(place)) => leader.round(order, OUTCOME_TIMEOUT, |stop| {
                run_part(part, place, order, &stop, &mut observer)
            }),
            _ => {
                let plan = match order.rate_per_s {
                    Some(rate_per_s) => at_rate(part, rate_per_s),
                    None => part.clone(),
                };
                ::load::run(&plan, stop, &mut observer).map_err(|error| error.to_string())
            }
        }
    }
}

impl Runner for AgentGroup {
    fn run(&mut self, rate_per_s: f64) -> Result<Outcome, String> {
        if self.stop.load(Ordering::Acquire) {
            return Err("stopped".to_owned());
        }
        let outcome = self.round(RoundOrder { rate_per_s: Some(rate_per_s) })?;
        // A run that was cut short does not count for this rate.
        if outcome.stopped_early && self.stop.load(Ordering::Acquire) {
            return Err("stopped".to_owned());
        }
        self.last = Some(outcome.clone());
        Ok(outcome)
    }

    fn pause(&mut self, pause: Duration) {
        let until = Instant::now() + pause;
        while Instant::now() < until && !self.stop.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(20).min(pause));
        }
        self.progress.end_run(pause);
    }

    fn done(&mut self, step: &Step) {
        self.progress.end_run(self.part.warm_up + self.part.duration);
        if self.has_rows {
            let row = self.progress.print(&step.row(width()));
            self.output.note(row.map_err(Failure::from));
        }
        if let Some(outcome) = self.last.take() {
            self.output.add_run(step, &outcome);
        }
    }
}

/// Runs one agent's part of an order for the whole group.
fn run_part(
    part: &Plan,
    place: &Membership,
    order: RoundOrder,
    stop: &AtomicBool,
    observer: &mut dyn FnMut(&Progress<'_>),
) -> Result<Outcome, String> {
    let plan = match order.rate_per_s {
        Some(rate_per_s) => at_rate(part, rate_per_s / f64::from(place.size)),
        None => part.clone(),
    };
    ::load::run(&plan, stop, observer).map_err(|error| error.to_string())
}

/// One agent's part of a plan: its share of rate and connections, with its own random choices.
fn part_of(whole: &Plan, place: &Membership) -> Plan {
    let agents = f64::from(place.size);
    let mut part = whole.clone();
    part.connections = place.part_of(whole.connections);
    part.idle.connections = place.part_of(whole.idle.connections);
    let rank = u64::from(place.rank);
    let size = u64::from(place.size);
    part.requests_max =
        whole.requests_max.map(|max| (max / size + u64::from(rank < max % size)).max(1));
    part.connect_rate_per_s = whole.connect_rate_per_s.map(|rate| rate / agents);
    part.arrivals = match &whole.arrivals {
        Arrivals::Closed => Arrivals::Closed,
        Arrivals::Fixed { rate_per_s } => Arrivals::Fixed { rate_per_s: rate_per_s / agents },
        Arrivals::Poisson { rate_per_s } => Arrivals::Poisson { rate_per_s: rate_per_s / agents },
        Arrivals::Course { stages, poisson } => {
            let stage = |stage: &Stage| Stage {
                lasts: stage.lasts,
                from_per_s: stage.from_per_s / agents,
                to_per_s: stage.to_per_s / agents,
            };
            Arrivals::Course { stages: stages.iter().map(stage).collect(), poisson: *poisson }
        }
    };
    part.seed = ::load::random::Random::stream(whole.seed, u64::from(place.rank)).bits();
    part
}

/// The plan with another rate; a closed loop becomes an open one with equal intervals.
fn at_rate(plan: &Plan, rate_per_s: f64) -> Plan {
    let poisson =
        matches!(plan.arrivals, Arrivals::Poisson { .. } | Arrivals::Course { poisson: true, .. });
    Plan { arrivals: options::at_rate(rate_per_s, poisson), ..plan.clone() }
}

fn rate_of_plan(plan: &Plan) -> Option<f64> {
    match plan.arrivals {
        Arrivals::Fixed { rate_per_s } | Arrivals::Poisson { rate_per_s } => Some(rate_per_s),
        Arrivals::Closed | Arrivals::Course { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use clap::FromArgMatches;

    use super::super::args::{self, LoadCommand};
    use super::*;

    #[test]
    fn agents_shares_are_the_whole() {
        let whole = Plan {
            connections: 15_361,
            arrivals: Arrivals::Poisson { rate_per_s: 70e3 },
            ..Plan::default()
        };
        let part =
            |rank| part_of(&whole, &Membership::by_hand(rank, 16, "h:1".to_owned()).unwrap());
        assert_eq!((0..16).map(|rank| part(rank).connections).sum::<u32>(), 15_361);
        assert_eq!((0..16).filter_map(|rank| rate_of_plan(&part(rank))).sum::<f64>(), 70e3);
        assert_ne!(part(0).seed, part(1).seed);
    }

    #[test]
    fn a_step_keeps_the_kind_of_arrivals() {
        let poisson = Plan { arrivals: Arrivals::Poisson { rate_per_s: 1.0 }, ..Plan::default() };
        assert_eq!(at_rate(&poisson, 5.0).arrivals, Arrivals::Poisson { rate_per_s: 5.0 });
        assert_eq!(at_rate(&Plan::default(), 5.0).arrivals, Arrivals::Fixed { rate_per_s: 5.0 });
    }

    #[test]
    fn flags_say_what_is_carried_out() {
        let read = |words: &[&str]| {
            let words = ["load", "idle", "127.0.0.1:9"].iter().chain(words);
            let matches = args::command(String::new()).try_get_matches_from(words)?;
            let Ok(LoadCommand::Idle(args)) = LoadCommand::from_arg_matches(&matches) else {
                unreachable!("the command is `idle`");
            };
            Ok::<_, clap::Error>(args.common)
        };
        let address: SocketAddr = "127.0.0.1:9".parse().unwrap();
        let mut plan = Plan { targets: vec![address.into()], ..Plan::default() };
        plan.workload = ::load::plan::Workload::Http(::load::plan::Http {
            authority: String::new(),
            method: "GET".to_owned(),
            pages: [::load::plan::Page::new("/")].into(),
            choice: ::load::plan::Choice::InTurn,
            headers: Vec::new(),
            body: [].into(),
            requests_per_connection: None,
        });
        let run_kind = |words: &[&str]| RunKind::of(&read(words).unwrap().many, &plan).unwrap();
        assert_eq!(run_kind(&[]), RunKind::Run);
        assert_eq!(run_kind(&["--sweep", "1k,2k"]), RunKind::Sweep("1k,2k".parse().unwrap()));
        let knee = RunKind::Knee { first_per_s: 1e3, overload: true };
        assert_eq!(run_kind(&["--knee", "--overload"]), knee);
        assert!(read(&["--knee", "--sweep", "1k"]).is_err());
        assert!(read(&["--agents", "4"]).is_err(), "--rank and --rendezvous are missing");
        let words = ["--repeat", "3", "--pause", "20s", "--knee-p99", "5ms"];
        let many = read(&words).unwrap().many;
        let pause = Duration::from_secs(20);
        let p99 = Duration::from_millis(5);
        assert_eq!((many.repeat, many.pause, many.knee_p99), (3, pause, p99));
    }
}
