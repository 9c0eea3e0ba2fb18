//! An outcome on one screen.

use std::fmt::Write;

use super::figures::{Figures, Latency, figures};
use crate::outcome::Outcome;

/// What the screen says above the figures.
#[derive(Clone, Debug, Default)]
pub struct Heading {
    /// What was asked, and whom: `GET http://127.0.0.1:8080/`.
    pub target: String,
    /// How: `open loop, 10k/s for 10 s over 64 connections, 1 thread`.
    pub how: String,
}

/// The outcome for people. `colored` says whether escape sequences may be used.
pub fn screen(outcome: &Outcome, heading: &Heading, colored: bool) -> String {
    let seen = figures(outcome);
    let paint = Paint { colored };
    let mut text = String::new();
    let mut line = |name: &str, what: &str| {
        let _ = writeln!(text, "  {} {what}", paint.dim(&format!("{name:<10}")));
    };
    line("target", &heading.target);
    line("how", &heading.how);
    line("rate", &rate_line(&seen, paint));
    for (at, row) in latency_rows(&seen).iter().enumerate() {
        line(if at == 0 { "latency" } else { "" }, row);
    }
    if seen.classes.len() > 1 {
        for (name, class) in &seen.classes {
            line(name, &class_line(class.replies, &class.latency_us.intended));
        }
    }
    line("replies", &replies_line(&seen));
    line("errors", &errors_line(&seen, paint));
    line("network", &network_line(&seen));
    line("generator", &generator_line(&seen));
    if seen.offered_rate_per_s.is_some() {
        line("sending", &sending_line(&seen));
    }
    if seen.intervals.len() > 1 {
        line(
            "replies/s",
            &course(&seen, |interval| interval.achieved_per_s, rate_of),
        );
        line(
            "p99",
            &course(&seen, |interval| interval.p99_us, |us| ns_of(us * 1e3)),
        );
    }
    line("verdict", &verdict(&seen, paint));
    text
}

fn rate_line(seen: &Figures, paint: Paint) -> String {
    let achieved = format!(
        "achieved {}",
        paint.bold(&rate_of(seen.achieved_rate_per_s))
    );
    let stopped = if seen.stopped_early {
        ", stopped before its time"
    } else {
        ""
    };
    let over = format!("over {:.1} s{stopped}", seen.elapsed_s);
    match seen.offered_rate_per_s {
        // In sessions the rate is that of their beginnings; how many requests follow is their affair.
        Some(offered) if seen.sessions > 0 => {
            format!("asked {} sessions · {achieved} {over}", rate_of(offered))
        }
        Some(offered) => {
            let percent = 100.0 * seen.achieved_rate_per_s / offered.max(1e-9);
            let percent = paint.warn_if(percent < 99.0, &format!("{percent:.1} %"));
            format!("asked {} · {achieved} ({percent}) {over}", rate_of(offered))
        }
        None => format!("{achieved} {over} (closed loop: as fast as replies come)"),
    }
}

fn latency_rows(seen: &Figures) -> Vec<String> {
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
    let head = format!("{:>9} {:>11} {:>11}", "", "intended", "raw");
    let (intended, raw) = (&seen.latency_us.intended, &seen.latency_us.raw);
    let longest = intended.max.max(1e-9);
    let row = |(name, of): (&str, Of)| {
        let (ours, theirs) = (of(intended), of(raw));
        let bar = "▆".repeat((24.0 * ours / longest).ceil() as usize);
        format!(
            "{name:>9} {:>11} {:>11}  {bar}",
            ns_of(ours * 1e3),
            ns_of(theirs * 1e3)
        )
    };
    std::iter::once(head)
        .chain(rows.into_iter().map(row))
        .collect()
}

fn class_line(replies: u64, l: &Latency) -> String {
    let [p50, p99, max] = [l.p50, l.p99, l.max].map(|us| ns_of(us * 1e3));
    format!(
        "{} replies · p50 {p50} · p99 {p99} · max {max}",
        count_of(replies)
    )
}

fn replies_line(seen: &Figures) -> String {
    let by_status = seen
        .replies_by_status
        .iter()
        .filter(|(_, count)| **count > 0);
    let mut parts: Vec<_> = by_status
        .map(|(status, count)| format!("{status} {}", count_of(*count)))
        .collect();
    if seen.hits + seen.misses > 0 {
        let percent = 100.0 * seen.hits as f64 / (seen.hits + seen.misses) as f64;
        parts.push(format!("{percent:.1} % of the keys were found"));
    }
    if seen.sessions > 0 {
        parts.push(format!("{} sessions ended", count_of(seen.sessions)));
    }
    if seen.idle_open + seen.idle_closed > 0 {
        parts.push(format!(
            "{} idle connections, {} closed by the server",
            count_of(seen.idle_open),
            count_of(seen.idle_closed)
        ));
    }
    match parts.is_empty() {
        true => "none".to_owned(),
        false => parts.join(" · "),
    }
}

fn errors_line(seen: &Figures, paint: Paint) -> String {
    let total = seen.errors["total"];
    if total == 0 {
        return "none".to_owned();
    }
    let percent = 100.0 * total as f64 / (seen.replies + total) as f64;
    let each = seen
        .errors
        .iter()
        .filter(|(name, count)| **name != "total" && **count > 0);
    let each: Vec<_> = each
        .map(|(name, count)| format!("{} {}", name.replace('_', " "), count_of(*count)))
        .collect();
    paint.bad(&format!(
        "{} ({percent:.3} %): {}",
        count_of(total),
        each.join(" · ")
    ))
}

fn network_line(seen: &Figures) -> String {
    let connect = match seen.opened {
        0 => String::new(),
        opened => format!(
            " · {} connections opened, p99 {}",
            count_of(opened),
            ns_of(seen.connect_us.p99 * 1e3)
        ),
    };
    let (received, sent) = (bytes_of(seen.received_bytes), bytes_of(seen.sent_bytes));
    let per_s = bytes_of((seen.received_bytes as f64 / seen.elapsed_s.max(1e-9)) as u64);
    format!("{received} received ({per_s}/s), {sent} sent{connect}")
}

fn generator_line(seen: &Figures) -> String {
    let made = &seen.generator;
    let percent = 100.0 * made.cpu_s / seen.elapsed_s.max(1e-9);
    let plural = if made.threads == 1 { "" } else { "s" };
    let (io, threads, us) = (&made.io, made.threads, made.cpu_us_per_reply);
    format!("{io} on {threads} thread{plural}, {percent:.0} % of a CPU, {us:.2} µs per reply")
}

fn sending_line(seen: &Figures) -> String {
    let [p50, p99, max] =
        [seen.lag_us.p50, seen.lag_us.p99, seen.lag_us.max].map(|us| ns_of(us * 1e3));
    let missed = count_of(seen.missed);
    let waiting = count_of(seen.backlog_max);
    format!(
        "late by p50 {p50} · p99 {p99} · max {max} · {missed} never sent · {waiting} waited at most"
    )
}

fn verdict(seen: &Figures, paint: Paint) -> String {
    if let Some(reason) = &seen.without_replies {
        return paint.bad(reason);
    }
    if let Some(reason) = &seen.generator_verdict {
        return paint.bad(&format!(
            "the generator was the limit, these figures are its own: {reason}"
        ));
    }
    match seen.offered_rate_per_s {
        Some(offered) if seen.sessions == 0 && seen.achieved_rate_per_s < 0.99 * offered => {
            paint.warn_if(true, "the server did not keep up with what was asked")
        }
        Some(_) => paint.good("the server kept up, the generator had time to spare"),
        None => paint.good("the server was the limit, not the generator"),
    }
}

const SPARK_WIDTH: usize = 48;

fn course(
    seen: &Figures,
    of: fn(&super::figures::IntervalFigures) -> f64,
    show: fn(f64) -> String,
) -> String {
    let values: Vec<f64> = seen.intervals.iter().map(of).collect();
    let (low, high) = values
        .iter()
        .fold((f64::MAX, 0.0_f64), |(l, h), &v| (l.min(v), h.max(v)));
    format!(
        "{} {} … {}",
        spark(&values, SPARK_WIDTH),
        show(low),
        show(high)
    )
}

/// A row of blocks, as high as the values; at most `width` of them, each the mean of its part.
pub fn spark(values: &[f64], width: usize) -> String {
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

/// A time with three digits and its unit.
pub fn ns_of(ns: f64) -> String {
    let (value, unit) = match ns {
        _ if ns < 1.0 => return "0".to_owned(),
        _ if ns < 1e3 => (ns, "ns"),
        _ if ns < 1e6 => (ns / 1e3, "µs"),
        _ if ns < 1e9 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    let digits = if value < 10.0 {
        2
    } else {
        usize::from(value < 100.0)
    };
    format!("{value:.digits$} {unit}")
}

/// A rate: `9,998/s`.
pub fn rate_of(per_s: f64) -> String {
    match per_s < 10.0 {
        true => format!("{per_s:.2}/s"),
        false => format!("{}/s", count_of(per_s.round() as u64)),
    }
}

/// A number with its thousands apart.
pub fn count_of(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn bytes_of(bytes: u64) -> String {
    let (value, unit) = match bytes as f64 {
        b if b < 1e3 => return format!("{bytes} B"),
        b if b < 1e6 => (b / 1e3, "kB"),
        b if b < 1e9 => (b / 1e6, "MB"),
        b => (b / 1e9, "GB"),
    };
    format!("{value:.1} {unit}")
}

#[derive(Clone, Copy)]
struct Paint {
    colored: bool,
}

impl Paint {
    fn with(self, code: &str, text: &str) -> String {
        match self.colored {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }

    fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    fn good(self, text: &str) -> String {
        self.with("32", text)
    }

    fn bad(self, text: &str) -> String {
        self.with("31", text)
    }

    fn warn_if(self, warn: bool, text: &str) -> String {
        match warn {
            true => self.with("33", text),
            false => text.to_owned(),
        }
    }
}
