//! Verdict on a run: what limited it, and whether it failed.
//!
//! | row | applies when | about | exit code |
//! |---|---|---|---|
//! | no replies | no good reply arrived, or no idle connection was opened | server or plan | 1 |
//! | wrong replies | a status outside `--expect`, bytes that `--verify` refuses, another key or protocol | server | 1 |
//! | nothing compared | `--verify`, and no reply had anything to compare | plan | 1 |
//! | exhausted | descriptors or ports ran out | generator | 0 |
//! | late | open loop: the p99 of the lag is above 1 ms and a tenth of the intended p99 | generator | 0 |
//! | busy | closed loop: a thread was never idle | generator | 0 |
//! | failing | more than 1 % of the requests ended in other errors | server | 1 |
//! | idle lost | idle connections are not open at the end | server | 0 |
//! | sessions waited | less than 99 % of the sessions began in time, since all connections were in use | plan | 0 |
//! | behind | open loop: less than 99 % of the offered rate was achieved | server | 0 |
//! | undecided | closed loop: a thread waited for a processor more than a third of the time | both | 0 |
//! | idle held, kept up, server limited | otherwise | server | 0 |
//!
//! The first row that applies is the verdict. Rows with exit code 1 fail the run even behind
//! another verdict. A wait for a processor alone does not make the generator the bottleneck: its
//! effect is in the lag. It is a warning beside verdicts that do not mention it.

use std::time::Duration;

use serde::Serialize;

use crate::outcome::{Kind, Outcome, ThreadUse};
use crate::units::{all_of, count_of, counted, ns_of, part_of};

/// Lag above which requests are no longer sent at their intended times.
const LAG_P99_MAX: Duration = Duration::from_millis(1);
/// Share of the intended p99, as a divisor, below which a lag does not explain it.
const LAG_PART_OF_P99: u64 = 10;
/// Busy share of a thread of a closed loop above which it has no reserve.
const BUSY_SHARE_MAX: f64 = 0.95;
/// Share of time waiting for a processor above which a warning is given.
const DELAY_SHARE_WARNS: f64 = 0.10;
/// Share of time waiting for a processor above which a closed loop is undecided: while a thread
/// waits, replies wait for it.
const DELAY_SHARE_UNDECIDED: f64 = 1.0 / 3.0;
/// Share of the demand below which a server does not keep up.
pub(crate) const KEPT_UP_SHARE: f64 = 0.99;
/// Share of failed requests above which a run is no measurement.
const FAILED_SHARE_MAX: f64 = 0.01;
/// Share of keys found below which the figures are mostly those of misses.
const FOUND_SHARE_WARNS: f64 = 0.10;
/// Fewest replies that have a p99.
const REPLIES_MIN: u64 = 100;

/// Verdict on a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Row of the table that applies.
    pub row: VerdictRow,
    /// Evidence.
    pub sentence: String,
    /// Further doubts about the figures.
    pub warnings: Vec<String>,
}

/// Row of the table; see [the page of this file](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum VerdictRow {
    NoReplies,
    WrongReplies,
    NothingCompared,
    Exhausted,
    Late,
    Busy,
    Failing,
    IdleLost,
    SessionsWaited,
    Behind,
    Undecided,
    IdleHeld,
    KeptUp,
    ServerLimited,
}

/// Tone of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Figures of the server, which met the demand.
    Good,
    /// Figures of the server, below the demand.
    Warning,
    /// Figures not of the server, or of wrong replies.
    Bad,
}

impl VerdictRow {
    /// Tone of the row.
    pub(crate) fn tone(self) -> Tone {
        match self {
            VerdictRow::IdleHeld | VerdictRow::KeptUp | VerdictRow::ServerLimited => Tone::Good,
            VerdictRow::IdleLost
            | VerdictRow::SessionsWaited
            | VerdictRow::Behind
            | VerdictRow::Undecided => Tone::Warning,
            _ => Tone::Bad,
        }
    }
}

type RowTest = fn(&Outcome) -> Option<String>;

/// The table, in order.
const TABLE: [(VerdictRow, RowTest); 11] = [
    (VerdictRow::NoReplies, no_replies),
    (VerdictRow::WrongReplies, wrong_replies),
    (VerdictRow::NothingCompared, nothing_compared),
    (VerdictRow::Exhausted, exhausted),
    (VerdictRow::Late, late),
    (VerdictRow::Busy, busy),
    (VerdictRow::Failing, failing),
    (VerdictRow::IdleLost, idle_lost),
    (VerdictRow::SessionsWaited, sessions_waited),
    (VerdictRow::Behind, behind),
    (VerdictRow::Undecided, undecided),
];

impl Outcome {
    /// Verdict on the run.
    pub fn verdict(&self) -> Verdict {
        let applies =
            |(row, test): &(VerdictRow, RowTest)| test(self).map(|sentence| (*row, sentence));
        let (row, sentence) = TABLE.iter().find_map(applies).unwrap_or_else(|| well(self));
        Verdict { row, sentence, warnings: warnings(self, row) }
    }

    /// Rows that fail the run, with their sentences.
    pub fn faults(&self) -> Vec<(VerdictRow, String)> {
        let applies =
            |(row, test): &(VerdictRow, RowTest)| test(self).map(|sentence| (*row, sentence));
        match no_replies(self) {
            Some(sentence) => vec![(VerdictRow::NoReplies, sentence)],
            None => [
                (VerdictRow::WrongReplies, wrong_replies as RowTest),
                (VerdictRow::NothingCompared, nothing_compared),
                (VerdictRow::Failing, failing),
            ]
            .iter()
            .filter_map(applies)
            .collect(),
        }
    }

    /// Evidence that the generator was the bottleneck, if it was.
    pub fn generator_limited(&self) -> Option<String> {
        [exhausted, late, busy].iter().find_map(|test| test(self))
    }

    /// Reason why this run tells nothing about the server: no good reply arrived. With idle
    /// connections: none was opened.
    pub fn without_replies(&self) -> Option<String> {
        no_replies(self)
    }

    /// Share of the demand that was achieved. Sessions: those that began in time; otherwise
    /// requests answered in time. No reply can come sooner than the fastest one, so that much of
    /// the run is not counted. `None` in a closed loop, and without demand.
    pub fn achieved_share(&self) -> Option<f64> {
        let total = &self.total;
        let (got, time_share) = match self.asked.kind {
            Kind::Idle | Kind::Closed => return None,
            Kind::Sessions => (total.sessions_begun, 1.0),
            Kind::Open => {
                let fastest_s = total.service_ns().min() as f64 / 1e9;
                let elapsed_s = self.elapsed.as_secs_f64();
                let time_share = 1.0 - (fastest_s / elapsed_s.max(1e-9)).min(1.0);
                (total.replies() - total.drained, time_share)
            }
        };
        let asked = total.intended as f64 * time_share;
        (asked > 0.0).then(|| got as f64 / asked)
    }
}

fn no_replies(outcome: &Outcome) -> Option<String> {
    let total = &outcome.total;
    let errors = &total.errors;
    let sentence = || errors.sentence(total.is_of_cache());
    if outcome.asked.kind == Kind::Idle {
        let opened = total.opened + total.idle_open + total.idle_closed;
        return (opened == 0).then(|| match errors.total() {
            0 => "no connection was opened in this time".to_owned(),
            _ => format!("no connection was opened: {}", sentence()),
        });
    }
    if total.replies() > 0 {
        return None;
    }
    Some(match (total.sent + total.intended, errors.total()) {
        (0, 0) if outcome.stopped_early => "it was stopped before anything was sent".to_owned(),
        (0, 0) => {
            "no request was due in this time; use a higher --rate or a longer --duration".to_owned()
        }
        (_, 0) => format!(
            "no reply arrived within {:.1} s; sent: {}",
            outcome.elapsed.as_secs_f64(),
            counted(total.sent, "request")
        ),
        _ => format!("no good reply arrived: {}{}", sentence(), statuses(outcome)),
    })
}

fn wrong_replies(outcome: &Outcome) -> Option<String> {
    let wrong = outcome.total.errors.wrong_replies();
    let all = outcome.total.replies() + wrong;
    (wrong > 0).then(|| {
        format!(
            "{} wrong: {}{}",
            part_of(wrong, all, "reply"),
            outcome.total.errors.wrong_sentence(outcome.total.is_of_cache()),
            statuses(outcome)
        )
    })
}

/// Statuses of unexpected replies, for a sentence.
fn statuses(outcome: &Outcome) -> String {
    if outcome.total.errors.unexpected_status == 0 {
        return String::new();
    }
    let names = outcome.total.replies_by_status();
    let seen = names.into_iter().filter(|(_, count)| *count > 0);
    let seen: Vec<_> = seen.map(|(name, count)| format!("{name} {}", count_of(count))).collect();
    format!(" (statuses: {})", seen.join(", "))
}

fn nothing_compared(outcome: &Outcome) -> Option<String> {
    let is_nothing = outcome.asked.verify && outcome.total.compared == 0;
    is_nothing.then(|| match outcome.total.hits + outcome.total.misses {
        0 => "--verify compared nothing: no reply had a body to compare".to_owned(),
        _ => "--verify compared nothing: no key was found; store the keys first with --populate"
            .to_owned(),
    })
}

fn exhausted(outcome: &Outcome) -> Option<String> {
    let errors = &outcome.total.errors;
    match (errors.fd_unavailable, errors.address_unavailable) {
        (0, 0) => None,
        (0, ports) => Some(format!(
            "ports ran out {}; add addresses (--source), or widen net.ipv4.ip_local_port_range; or a \
             --source is no address of this machine",
            counted(ports, "time")
        )),
        (descriptors, _) => Some(format!(
            "descriptors ran out {}; raise the limit on open files (ulimit -n), or use fewer \
             --connections",
            counted(descriptors, "time")
        )),
    }
}

fn late(outcome: &Outcome) -> Option<String> {
    let lag_ns = outcome.total.lag_ns.value_at_quantile(0.99);
    let p99_ns = outcome.total.response_ns().value_at_quantile(0.99);
    let is_late = u128::from(lag_ns) > LAG_P99_MAX.as_nanos()
        && lag_ns.saturating_mul(LAG_PART_OF_P99) > p99_ns;
    is_late.then(|| {
        let delay = delay_share(&most_delayed(outcome).1);
        let threads = outcome.generator.threads.iter();
        let busy = threads.map(busy_share).fold(0.0, f64::max);
        // More threads would wait for the same processors.
        let has_waited = delay >= DELAY_SHARE_WARNS || delay > busy;
        let advice = if has_waited {
            format!(
                "it waited for a CPU {:.0} % of the time; give it a CPU of its own",
                delay * 100.0
            )
        } else {
            "use more --threads or machines".to_owned()
        };
        let late = ns_of(lag_ns as f64);
        format!("1 % of the requests were sent {late} late or more; {advice}")
    })
}

/// Thread that waited longest for a processor, and its number.
fn most_delayed(outcome: &Outcome) -> (usize, ThreadUse) {
    let threads = outcome.generator.threads.iter().copied().enumerate();
    threads.max_by(|(_, a), (_, b)| delay_share(a).total_cmp(&delay_share(b))).unwrap_or_default()
}

fn busy(outcome: &Outcome) -> Option<String> {
    if outcome.asked.kind != Kind::Closed {
        // In an open loop the lag shows if a busy thread was late.
        return None;
    }
    let threads = outcome.generator.threads.iter().enumerate();
    let tired = threads.map(|(index, used)| (index, busy_share(used), delay_share(used)));
    let (index, busy, _) =
        tired.into_iter().find(|(_, busy, delay)| busy + delay >= BUSY_SHARE_MAX)?;
    Some(if busy >= BUSY_SHARE_MAX {
        format!(
            "its thread {index} was busy {:.0} % of the time; use more --threads or machines",
            busy * 100.0
        )
    } else {
        format!(
            "its thread {index} was never idle: it worked {:.0} % of the time and waited for a CPU the \
             rest; give it a CPU of its own",
            busy * 100.0
        )
    })
}

fn busy_share(used: &ThreadUse) -> f64 {
    share(used.cpu.saturating_sub(used.spun), used.elapsed)
}

fn delay_share(used: &ThreadUse) -> f64 {
    share(used.run_delay, used.elapsed)
}

fn share(part: Duration, whole: Duration) -> f64 {
    part.as_secs_f64() / whole.as_secs_f64().max(1e-9)
}

fn failing(outcome: &Outcome) -> Option<String> {
    let errors = &outcome.total.errors;
    let failed = errors.total() - errors.wrong_replies();
    let all = outcome.total.replies() + outcome.total.idle_open + errors.total();
    let failed_share = failed as f64 / all.max(1) as f64;
    (failed_share > FAILED_SHARE_MAX).then(|| {
        let sentence = errors.sentence(outcome.total.is_of_cache());
        format!("{:.1} % of the requests failed: {sentence}", failed_share * 100.0)
    })
}

fn idle_lost(outcome: &Outcome) -> Option<String> {
    let open = outcome.total.idle_open;
    let asked = outcome.asked.idle_connections;
    (outcome.asked.kind == Kind::Idle && open < asked).then(|| idle_sentence(outcome))
}

fn idle_sentence(outcome: &Outcome) -> String {
    format!(
        "{} open at the end; the server closed {}",
        part_of(outcome.total.idle_open, outcome.asked.idle_connections, "idle connection"),
        count_of(outcome.total.idle_closed)
    )
}

fn sessions_waited(outcome: &Outcome) -> Option<String> {
    let is_behind = outcome.achieved_share()? < KEPT_UP_SHARE;
    (outcome.asked.kind == Kind::Sessions && is_behind).then(|| {
        format!(
            "{} of {} began in time, since {} in use; use more --connections",
            count_of(outcome.total.sessions_begun),
            counted(outcome.total.intended, "session"),
            all_of(outcome.asked.connections, "connection"),
        )
    })
}

fn behind(outcome: &Outcome) -> Option<String> {
    let share = outcome.achieved_share()?;
    if share >= KEPT_UP_SHARE {
        return None;
    }
    let waited = outcome.total.waited as f64 / outcome.total.intended.max(1) as f64;
    let how = if waited > 1.0 - KEPT_UP_SHARE {
        format!(
            "; {} busy, so try more --connections",
            all_of(outcome.asked.connections, "connection")
        )
    } else {
        String::new()
    };
    Some(format!(
        "the server did not keep up: it achieved {:.1} % of the offered rate{how}",
        share * 100.0
    ))
}

fn undecided(outcome: &Outcome) -> Option<String> {
    let (index, used) = most_delayed(outcome);
    let delay = delay_share(&used);
    (outcome.asked.kind == Kind::Closed && delay > DELAY_SHARE_UNDECIDED).then(|| {
        format!(
            "the bottleneck was the server or the generator: thread {index} of the generator waited for \
             a CPU {:.0} % of the time, which delays replies; give it a CPU of its own",
            delay * 100.0
        )
    })
}

fn well(outcome: &Outcome) -> (VerdictRow, String) {
    match outcome.asked.kind {
        Kind::Idle => {
            let held = counted(outcome.total.idle_open, "idle connection");
            (VerdictRow::IdleHeld, format!("the server kept {held} open to the end"))
        }
        Kind::Closed => {
            let connections = counted(outcome.asked.connections, "connection");
            let what = format!("the server was the bottleneck at {connections}, not the generator");
            (VerdictRow::ServerLimited, what)
        }
        Kind::Open | Kind::Sessions => {
            let what = "the server kept up, and the generator sent on time";
            (VerdictRow::KeptUp, what.to_owned())
        }
    }
}

fn warnings(outcome: &Outcome, row: VerdictRow) -> Vec<String> {
    let total = &outcome.total;
    let mut warnings = Vec::new();
    let delay = delay_share(&most_delayed(outcome).1);
    let is_idle = outcome.asked.kind == Kind::Idle;
    let is_said = matches!(row, VerdictRow::Late | VerdictRow::Busy | VerdictRow::Undecided);
    if !is_idle && !is_said && delay >= DELAY_SHARE_WARNS {
        warnings.push(format!(
            "the generator waited for a CPU {:.0} % of the time, so latencies may be too high; give it a \
             CPU of its own",
            delay * 100.0
        ));
    }
    let keys = total.hits + total.misses;
    let found = total.hits as f64 / keys.max(1) as f64;
    if keys > 0 && found < FOUND_SHARE_WARNS && row != VerdictRow::NothingCompared {
        warnings.push(format!(
            "only {:.1} % of the keys were found, so these figures are mostly those of misses; store all \
             keys first with --populate, if the server has space for them",
            found * 100.0
        ));
    }
    let asked = total.sent.max(total.intended);
    let is_short = |max: &u64| asked.max(total.ended()) < *max;
    if let Some(wanted) = outcome.asked.requests_max.filter(is_short) {
        warnings.push(format!(
            "only {} sent before the time was over",
            part_of(asked, wanted, "request")
        ));
    }
    let counts = [
        ("the server allows fewer streams than --streams on {}", total.stream_limits, "connection"),
        (
            "{} redirected, which is not followed: ask for the address that the Location names",
            total.redirects,
            "reply",
        ),
        ("{} came after --timeout: they were late, not lost", total.late_datagrams, "datagram"),
        ("{} waited for the server's flow-control window", total.window_waits, "request body"),
        (
            "the kernel dropped {} whose connections it could not track (nf_conntrack), as when its table \
             is full, and their senders waited: see weft doctor",
            outcome.generator.table_drops,
            "packet",
        ),
    ];
    let counts = counts.into_iter().filter(|(_, count, _)| *count > 0);
    warnings.extend(counts.map(|(text, count, what)| text.replace("{}", &counted(count, what))));
    if !is_idle && total.idle_open < outcome.asked.idle_connections {
        warnings.push(idle_sentence(outcome));
    }
    if !is_idle && (1..REPLIES_MIN).contains(&total.replies()) {
        let are = if total.replies() == 1 { "is" } else { "are" };
        warnings.push(format!(
            "{} {are} too few for a p99; measure longer",
            counted(total.replies(), "reply")
        ));
    }
    warnings
}

#[cfg(test)]
mod tests;
