//! Report of an outcome for people, on one screen.

use std::fmt::{Display, Write};

use super::figures::{Figures, Latency, figures};
use crate::outcome::{Counts, Kind, Outcome};
use crate::units::{bytes_of, count_of, counted, fold, ns_of, rate_of};
use crate::verdict::{KEPT_UP_SHARE, Tone, Verdict, VerdictRow};

/// Heading of the report.
#[derive(Clone, Debug, Default)]
pub struct Heading {
    /// Request and server: `GET http://127.0.0.1:8080/`.
    pub target: String,
    /// Load: `open loop, 10k/s for 10 s over 64 connections, 1 thread`.
    pub how: String,
}

/// Format of the report.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// True if escape sequences may be used.
    pub colored: bool,
    /// Columns of the terminal; longer lines are wrapped.
    pub width: usize,
}

/// Width of the names in front of the lines.
const NAME_COLUMNS: usize = 13;
/// Narrowest terminal that lines are wrapped for.
const WIDTH_MIN: usize = 40;

/// Formats the outcome for people.
pub fn screen(outcome: &Outcome, heading: &Heading, look: Look) -> String {
    let seen = figures(outcome);
    let paint = Paint::new(look.colored);
    let columns = look.width.max(WIDTH_MIN) - NAME_COLUMNS;
    let mut text = String::new();
    let mut line = |name: &str, what: &str| {
        for (at, row) in fold(what, columns).iter().enumerate() {
            let name = if at == 0 { name } else { "" };
            let _ = writeln!(text, "  {} {row}", paint.dim(format!("{name:<10}")));
        }
    };
    let kind = outcome.asked.kind;
    line("target", &heading.target);
    line("how", &heading.how);
    if kind != Kind::Idle {
        line("rate", &rate_line(&seen, kind, paint));
        // Without replies there is no latency, and a table of zeros would claim one.
        let rows = match seen.replies {
            0 => Vec::new(),
            _ => latency_rows(&seen, kind, columns),
        };
        for (at, row) in rows.iter().enumerate() {
            line(if at == 0 { "latency" } else { "" }, row);
        }
        if seen.classes.len() > 1 && seen.replies > 0 {
            for (name, class) in &seen.classes {
                line(name, &class_line(class.replies, &class.latency_us.intended));
            }
        }
        line("replies", &replies_line(&seen, outcome));
    }
    if outcome.asked.idle_connections > 0 {
        line("idle", &idle_line(&seen, outcome.asked.idle_connections));
    }
    line("errors", &errors_line(&seen, paint));
    line("network", &network_line(&seen));
    line("generator", &generator_line(&seen));
    if matches!(kind, Kind::Open | Kind::Sessions) {
        line("lag", &lag_line(&seen));
    }
    if kind != Kind::Idle && seen.intervals.len() > 1 {
        let width = columns.saturating_sub(RANGE_COLUMNS).min(SPARK_WIDTH);
        let rate = course(&seen, width, |i| i.achieved_per_s, rate_of);
        line("replies/s", &rate);
        let p99 = course(&seen, width, |i| i.p99_us, |us| ns_of(us * 1e3));
        line("p99", &p99);
    }
    line("verdict", &verdict_line(&seen.verdict, paint));
    for warning in &seen.verdict.warnings {
        line("warning", &paint.yellow(warning));
    }
    text
}

fn rate_line(seen: &Figures, kind: Kind, paint: Paint) -> String {
    let stopped = if seen.stopped_early { ", stopped early" } else { "" };
    let elapsed = match seen.elapsed_s {
        short if short < 1.0 => ns_of(short * 1e9),
        long => format!("{long:.1} s"),
    };
    let over = format!("over {elapsed}{stopped}");
    let achieved = paint.bold(rate_of(seen.achieved_rate_per_s));
    let share = seen.achieved_share.unwrap_or(0.0);
    let percent = format!("{:.1} %", 100.0 * share);
    let percent = if share < KEPT_UP_SHARE { paint.yellow(percent) } else { percent };
    match (kind, seen.offered_rate_per_s) {
        // The rate counts starts of sessions, not their requests.
        (Kind::Sessions, Some(offered)) => format!(
            "offered {} sessions · {} began in time ({percent}) · replies {achieved} {over}",
            rate_of(offered),
            count_of(seen.counts.sessions_begun)
        ),
        (_, Some(offered)) => {
            format!("offered {} · achieved {achieved} ({percent}) {over}", rate_of(offered))
        }
        (_, None) => format!("achieved {achieved} {over} (closed loop)"),
    }
}

const BAR_COLUMNS: usize = 24;

fn latency_rows(seen: &Figures, kind: Kind, columns: usize) -> Vec<String> {
    type Of = fn(&Latency) -> f64;
    let rows: [(&str, Of); 9] = [
        ("p50", |l| l.p50),
        ("p75", |l| l.p75),
        ("p90", |l| l.p90),
        ("p95", |l| l.p95),
        ("p99", |l| l.p99),
        ("p99.9", |l| l.p99_9),
        ("p99.99", |l| l.p99_99),
        ("max", |l| l.max),
        ("mean", |l| l.mean),
    ];
    let intended = &seen.latency_us.intended;
    let raw = &seen.latency_us.raw;
    // A closed loop has no intended times: the two are the same.
    let has_both = kind != Kind::Closed;
    let longest = intended.max.max(1e-9);
    let row = |(name, of): (&str, Of)| {
        let shown = |latency: &Latency| format!(" {:>9}", ns_of(of(latency) * 1e3));
        let raw = if has_both { shown(raw) } else { String::new() };
        let figures = format!("{name:>6}{}{raw}  ", shown(intended));
        let bar = columns.saturating_sub(figures.chars().count()).min(BAR_COLUMNS) as f64;
        let bar = "▆".repeat((bar * of(intended) / longest).ceil() as usize);
        (figures + &bar).trim_end().to_owned()
    };
    let head = has_both.then(|| format!("{:>6} {:>9} {:>9}", "", "intended", "raw"));
    head.into_iter().chain(rows.into_iter().map(row)).collect()
}

fn class_line(replies: u64, l: &Latency) -> String {
    if replies == 0 {
        return "none".to_owned();
    }
    let [p50, p99, max] = [l.p50, l.p99, l.max].map(|us| ns_of(us * 1e3));
    format!("{} · p50 {p50} · p99 {p99} · max {max}", counted(replies, "reply"))
}

fn replies_line(seen: &Figures, outcome: &Outcome) -> String {
    let by_status = outcome.total.replies_by_status().into_iter();
    let mut parts: Vec<_> = by_status
        .filter(|(_, count)| *count > 0)
        .map(|(status, count)| format!("{status} {}", count_of(count)))
        .collect();
    let Counts { compared, hits, misses, sessions, .. } = seen.counts;
    if compared > 0 {
        parts.push(format!("{} verified", count_of(compared)));
    }
    if hits + misses > 0 {
        let percent = 100.0 * hits as f64 / (hits + misses) as f64;
        parts.push(format!("{percent:.1} % of the keys found"));
    }
    if sessions > 0 {
        parts.push(format!("{} completed", counted(sessions, "session")));
    }
    if parts.is_empty() { "none".to_owned() } else { parts.join(" · ") }
}

fn idle_line(seen: &Figures, asked: u64) -> String {
    format!(
        "{} of {} open at the end · {} closed by the server",
        count_of(seen.counts.idle_open),
        counted(asked, "connection"),
        count_of(seen.counts.idle_closed)
    )
}

fn errors_line(seen: &Figures, paint: Paint) -> String {
    let total = seen.errors["total"];
    if total == 0 {
        return "none".to_owned();
    }
    let percent = 100.0 * total as f64 / (seen.replies + total) as f64;
    let each = seen.errors.iter().filter(|(name, count)| **name != "total" && **count > 0);
    let each: Vec<_> = each
        .map(|(name, count)| format!("{} {}", name.replace('_', " "), count_of(*count)))
        .collect();
    paint.red(format!("{} ({percent:.3} %): {}", count_of(total), each.join(" · ")))
}

fn network_line(seen: &Figures) -> String {
    let connect = match seen.counts.opened {
        0 => String::new(),
        opened => format!(
            " · {} opened, p99 {}",
            counted(opened, "connection"),
            ns_of(seen.connect_us.p99 * 1e3)
        ),
    };
    let tls = match &seen.handshake_us {
        None => String::new(),
        Some(times) => format!(
            " · {} ({} resumed), p99 {}",
            counted(seen.handshakes, "TLS handshake"),
            count_of(seen.counts.resumed),
            ns_of(times.p99 * 1e3)
        ),
    };
    let received = bytes_of(seen.counts.received_bytes);
    let sent = bytes_of(seen.counts.sent_bytes);
    let per_s = bytes_of((seen.counts.received_bytes as f64 / seen.elapsed_s.max(1e-9)) as u64);
    format!("{received} received ({per_s}/s), {sent} sent{connect}{tls}")
}

fn generator_line(seen: &Figures) -> String {
    let made = &seen.generator;
    let percent = 100.0 * made.cpu_s / seen.elapsed_s.max(1e-9);
    let io = &made.io;
    let threads = counted(made.threads as u64, "thread");
    let each = match seen.replies {
        0 => String::new(),
        _ => format!(", {:.2} µs per reply", made.cpu_us_per_reply),
    };
    format!("{io} on {threads}, {percent:.0} % of a CPU{each}")
}

fn lag_line(seen: &Figures) -> String {
    let [p50, p99, max] =
        [seen.lag_us.p50, seen.lag_us.p99, seen.lag_us.max].map(|us| ns_of(us * 1e3));
    let missed = count_of(seen.counts.missed);
    let waiting = count_of(seen.counts.backlog_max);
    format!("p50 {p50} · p99 {p99} · max {max} · missed {missed} · max queue {waiting}")
}

fn verdict_line(verdict: &Verdict, paint: Paint) -> String {
    let sentence = match verdict.row {
        VerdictRow::Exhausted | VerdictRow::Late | VerdictRow::Busy => format!(
            "the load generator was the bottleneck, so these figures measure it, not the server: {}",
            verdict.sentence
        ),
        _ => verdict.sentence.clone(),
    };
    match verdict.row.tone() {
        Tone::Good => paint.green(sentence),
        Tone::Warning => paint.yellow(sentence),
        Tone::Bad => paint.red(sentence),
    }
}

const SPARK_WIDTH: usize = 48;
/// Width of ` 100,000/s … 100,000/s` beside a row of blocks.
const RANGE_COLUMNS: usize = 25;

fn course(
    seen: &Figures,
    width: usize,
    of: fn(&super::figures::IntervalFigures) -> f64,
    show: fn(f64) -> String,
) -> String {
    let values: Vec<f64> = seen.intervals.iter().map(of).collect();
    let (low, high) = values.iter().fold((f64::MAX, 0.0_f64), |(l, h), &v| (l.min(v), h.max(v)));
    format!("{} {} … {}", spark(&values, width), show(low), show(high))
}

/// Row of blocks, as high as the values; at most `width`, each the mean of its part.
pub(crate) fn spark(values: &[f64], width: usize) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let high = values.iter().copied().fold(0.0, f64::max).max(1e-9);
    let parts = values.len().min(width.max(1));
    let part = |at: usize| {
        let cut = &values[at * values.len() / parts..(at + 1) * values.len() / parts];
        let mean = cut.iter().sum::<f64>() / cut.len() as f64;
        BLOCKS[((mean / high * 8.0).ceil() as usize).clamp(1, 8) - 1]
    };
    (0..parts).map(part).collect()
}

/// Painter of text, in colour or not.
#[derive(Clone, Copy, Debug)]
pub struct Paint {
    on: bool,
}

#[allow(missing_docs)]
impl Paint {
    pub fn new(on: bool) -> Paint {
        Paint { on }
    }

    pub fn is_on(self) -> bool {
        self.on
    }

    pub fn bold(self, text: impl Display) -> String {
        self.code("1", text)
    }

    pub fn dim(self, text: impl Display) -> String {
        self.code("2", text)
    }

    pub fn red(self, text: impl Display) -> String {
        self.code("1;31", text)
    }

    pub fn green(self, text: impl Display) -> String {
        self.code("32", text)
    }

    pub fn yellow(self, text: impl Display) -> String {
        self.code("33", text)
    }

    pub fn cyan(self, text: impl Display) -> String {
        self.code("36", text)
    }

    fn code(self, code: &str, text: impl Display) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }
}
