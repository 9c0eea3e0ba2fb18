//! The view as lines of text.

use std::collections::BTreeMap;

use ::load::report::{columns_of, count_of, ns_of, rate_of};

use super::overview::{Overview, PathRate};
use super::terminal::KeyPress;
use crate::paint::Paint;
use crate::value::show_size;

/// Width of the names at the left, in columns.
const LABEL: usize = 13;

/// Width from which two tables are shown side by side.
const WIDE: usize = 110;

/// Number of tables.
const TABLES: usize = 4;

/// Remaining validity below which certificates are shown.
const EXPIRES_SOON_S: f64 = 30.0 * 86_400.0;

/// Choices of the user, and the error of the last reading.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// Number of the table.
    pub(super) section: usize,
    pub(super) is_paused: bool,
    pub(super) has_help: bool,
    /// Error of the last reading.
    pub(super) error: Option<String>,
}

impl View {
    /// Performs the action of a key.
    pub(super) fn press(&mut self, key: KeyPress) {
        match key {
            KeyPress::Letter(digit @ b'1'..=b'4') => self.section = usize::from(digit - b'1'),
            KeyPress::Left => self.section = (self.section + TABLES - 1) % TABLES,
            KeyPress::Right => self.section = (self.section + 1) % TABLES,
            KeyPress::Letter(b'p' | b' ') => self.is_paused = !self.is_paused,
            KeyPress::Letter(b'h' | b'?') => self.has_help = !self.has_help,
            KeyPress::Letter(_) | KeyPress::Resized | KeyPress::End => {}
        }
    }
}

/// A table: title, heading, rows; the last column is text at the left.
struct TopTable {
    title: &'static str,
    heading: &'static [&'static str],
    rows: Vec<Vec<String>>,
}

const HELP: &[&str] = &[
    "1 2 3 4, ← →  another table",
    "p, space      pause, or go on",
    "h, ?          this help",
    "q, Ctrl-C     quit",
    "",
    "latency       from the first byte of a request to the last of its reply. The",
    "              mean is exact; a percentile is the bound of its bucket in /metrics",
    "hit ratio     of the site's table of files, or of get",
    "limits        how often each limit was reached in the interval",
    "fibers        those between steps have a connection and wait for a request",
    "",
    "The first figures are averages since the server's start.",
];

/// The whole picture: `height` lines of at most `width` columns.
pub(super) fn frame(
    overview: &Overview,
    view: &View,
    (width, height): (usize, usize),
    paint: Paint,
) -> Vec<String> {
    let mut lines = head(overview, view, width, paint);
    lines.push(String::new());
    if view.has_help {
        lines.extend(HELP.iter().map(|line| cut(line, width)));
    } else {
        let tables = tables(overview);
        lines.push(titles(&tables, view, width, paint));
        let chosen = &tables[view.section];
        if width < WIDE {
            lines.extend(chosen.lines(width, paint));
        } else {
            let column = width / 2;
            let others = tables.iter().filter(|table| table.title != chosen.title);
            let others = others.filter(|table| !table.rows.is_empty());
            let right = others.flat_map(|table| {
                let lines = table.lines(width - column, paint);
                let title = [paint.bold(table.title)];
                title.into_iter().chain(lines).chain([String::new()])
            });
            let left = chosen.lines(column - 1, paint);
            lines.extend(beside(left, right.collect(), column));
        }
    }
    lines.resize(height.saturating_sub(1), String::new());
    let keys = "q quit  p pause  1-4 ← → table  h help";
    lines.push(paint.dim(cut(keys, width)));
    lines
}

/// All tables, for a pipe.
pub(super) fn whole(overview: &Overview, width: usize, paint: Paint) -> Vec<String> {
    let mut lines = head(overview, &View::default(), width, paint);
    let tables = tables(overview);
    for table in tables.iter().filter(|table| !table.rows.is_empty()) {
        lines.extend([String::new(), paint.bold(table.title)]);
        lines.extend(table.lines(width, paint));
    }
    lines
}

/// Figures above the tables.
fn head(overview: &Overview, view: &View, width: usize, paint: Paint) -> Vec<String> {
    let mut lines = ScreenLines { width, paint, lines: vec![title(overview, view, width, paint)] };
    if let Some(error) = &view.error {
        lines.put("error", &plain(error), Paint::red);
    }
    put_traffic(overview, &mut lines);
    put_state(overview, &mut lines);
    put_warnings(overview, &mut lines);
    lines.lines
}

fn title(overview: &Overview, view: &View, width: usize, paint: Paint) -> String {
    let Overview { server, version, target, .. } = overview;
    let up = show_age(overview.uptime_s);
    let what = format!("weft {server} {version} at {}, up {up}", plain(target));
    let when = match (&view.error, view.is_paused) {
        (Some(_), _) => "no answer".to_owned(),
        (None, true) => "paused".to_owned(),
        (None, false) => format!("last {}", show_age(overview.interval_s)),
    };
    let space = width.saturating_sub(when.len() + 1);
    let what = cut(&what, space);
    paint.bold(cut(&format!("{what:space$} {when}"), width))
}

fn put_traffic(overview: &Overview, lines: &mut ScreenLines) {
    let [received, sent] = [overview.received_bytes_per_s, overview.sent_bytes_per_s]
        .map(|rate| show_size(rate as u64));
    let is_cache = overview.server == "cache";
    let what = if is_cache { "commands" } else { "requests" };
    let rate = show_rate(overview.requests_per_s);
    lines.say(what, &format!("{rate:<14} in {received}/s, out {sent}/s"));
    if let Some(latency) = &overview.latency {
        let [p50, p90, p99] = [latency.p50_s, latency.p90_s, latency.p99_s].map(show_bound);
        let mean = ns_of(latency.mean_s * 1e9);
        let text = format!("mean {mean:<9} p50 {p50}  p90 {p90}  p99 {p99}");
        lines.say("latency", &text);
    }
    if !is_cache {
        let class = |(class, rate): (&String, &f64)| format!("{class} {}", show_rate(*rate));
        let classes: Vec<_> = overview.results_per_s.iter().map(class).collect();
        lines.say("replies", &classes.join("  "));
    }
    if let Some(ratio) = overview.hit_ratio {
        lines.say("hit ratio", &format!("{:.1} %", 100.0 * ratio));
    }
}

fn put_state(overview: &Overview, lines: &mut ScreenLines) {
    let lingering = match overview.connections_lingering {
        0 => String::new(),
        some => format!(", {} lingering", count_of(some)),
    };
    let open = count_of(overview.connections_open);
    let accepted = show_rate(overview.accepted_per_s);
    lines.say("connections", &format!("{open} open{lingering}, {accepted} accepted"));
    let queues = overview.queues.iter();
    lines.list("waiting", queues.map(|(name, length)| format!("{length} for {name}")));
    let [open, max] = [overview.descriptors_open, overview.descriptors_max].map(count_of);
    let resident = show_size(overview.resident_bytes);
    let cpu = overview.cpu;
    let text = format!("{cpu:.2} CPUs, {resident} resident, {open} of {max} descriptors");
    lines.say("process", &text);
    let budgets = overview.budgets.iter().filter(|budget| budget.bytes > 0);
    lines.list(
        "memory",
        budgets.map(|budget| {
            let [bytes, max] = [budget.bytes, budget.max_bytes].map(show_size);
            format!("{} {bytes} of {max}", budget.name)
        }),
    );
}

fn put_warnings(overview: &Overview, lines: &mut ScreenLines) {
    let limits = overview.limits_reached.iter();
    let limits = limits.map(|(limit, count)| format!("{limit} {}", count_of(*count)));
    for line in joined(limits, lines.room()) {
        lines.put("limits", &line, Paint::yellow);
    }
    for (file, left_s) in &overview.certificates_expire_s {
        let file = plain(file);
        let text = match *left_s {
            left_s if left_s <= 0.0 => format!("{file} has expired"),
            left_s => format!("{file} expires in {}", show_age(left_s)),
        };
        if *left_s < EXPIRES_SOON_S {
            lines.put("certificate", &text, Paint::yellow);
        }
    }
    if overview.is_reload_failed {
        let text = "the last one failed: see the server's messages";
        lines.put("reload", text, Paint::yellow);
    }
}

/// Lines of a label and a text, which is truncated.
struct ScreenLines {
    width: usize,
    paint: Paint,
    lines: Vec<String>,
}

impl ScreenLines {
    fn room(&self) -> usize {
        self.width.saturating_sub(LABEL)
    }

    fn put(&mut self, label: &str, text: &str, color: fn(Paint, String) -> String) {
        let label = self.paint.cyan(cut(&format!("{label:LABEL$}"), self.width));
        let text = color(self.paint, cut(text, self.room()));
        self.lines.push(label + &text);
    }

    fn say(&mut self, label: &str, text: &str) {
        self.put(label, text, |_, text| text);
    }

    fn list(&mut self, label: &str, parts: impl Iterator<Item = String>) {
        for line in joined(parts, self.room()) {
            self.say(label, &line);
        }
    }
}

fn tables(overview: &Overview) -> [TopTable; TABLES] {
    let rates = |values: &BTreeMap<String, f64>| {
        ranked(values.iter().map(|(name, rate)| (name, *rate, show_rate(*rate))))
    };
    let asked = if overview.server == "cache" {
        TopTable {
            title: "commands",
            heading: &["per second", "command, result"],
            rows: rates(&overview.results_per_s),
        }
    } else {
        let row = |path: &PathRate| {
            vec![
                show_rate(path.replies_per_s),
                format!("{}/s", show_size(path.body_bytes_per_s as u64)),
                plain(&path.path),
            ]
        };
        TopTable {
            title: "paths",
            heading: &["replies", "bodies", "path"],
            rows: overview.paths.iter().map(row).collect(),
        }
    };
    let fibers = overview.fibers.iter();
    let fibers = fibers.map(|(state, count)| (state, *count as f64, count_of(*count)));
    let threads = overview.cpu_by_thread.iter();
    let threads = threads.map(|(name, cpu)| (name, *cpu, format!("{:.1} %", 100.0 * cpu)));
    [
        asked,
        TopTable { title: "fibers", heading: &["fibers", "state, wait"], rows: ranked(fibers) },
        TopTable { title: "threads", heading: &["cpu", "thread"], rows: ranked(threads) },
        TopTable {
            title: "closed",
            heading: &["per second", "connections closed, reason"],
            rows: rates(&overview.closed_per_s),
        },
    ]
}

/// Rows of a value and a name, the highest value first.
fn ranked<'a>(values: impl Iterator<Item = (&'a String, f64, String)>) -> Vec<Vec<String>> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(|one, other| other.1.total_cmp(&one.1));
    let row = |(name, _, value): (&String, f64, String)| vec![value, plain(name)];
    values.into_iter().map(row).collect()
}

fn titles(tables: &[TopTable], view: &View, width: usize, paint: Paint) -> String {
    let title = |(at, table): (usize, &TopTable)| {
        let title = format!("{} {}", at + 1, table.title);
        let is_shown = at == view.section;
        let title = if is_shown { format!("[{title}]") } else { format!(" {title} ") };
        (title, is_shown)
    };
    let titles = tables.iter().enumerate().map(title);
    let fits = |len: &mut usize, (title, is_shown): (String, bool)| {
        *len += title.len() + 1;
        (*len <= width).then_some((title, is_shown))
    };
    let painted = titles.scan(0, fits).map(
        |(title, is_shown)| {
            if is_shown { paint.bold(title) } else { title }
        },
    );
    painted.collect::<Vec<_>>().join(" ")
}

impl TopTable {
    /// Heading and rows; a placeholder if there are none.
    fn lines(&self, width: usize, paint: Paint) -> Vec<String> {
        if self.rows.is_empty() {
            return vec![paint.dim(cut("  none", width))];
        }
        let heading: Vec<_> = self.heading.iter().map(|&text| text.to_owned()).collect();
        let mut lines = vec![paint.dim(row(&heading, width))];
        lines.extend(self.rows.iter().map(|cells| row(cells, width)));
        lines
    }
}

fn row(cells: &[String], width: usize) -> String {
    let (name, values) = cells.split_last().expect("a column");
    let values: String = values.iter().map(|value| format!("{value:>13}  ")).collect();
    cut(&(values + name), width)
}

/// Two columns of lines; the left ones are padded.
fn beside(left: Vec<String>, right: Vec<String>, column: usize) -> Vec<String> {
    let count = left.len().max(right.len());
    let (mut left, mut right) = (left.into_iter(), right.into_iter());
    let line = |_| {
        let left = left.next().unwrap_or_default();
        let padding = " ".repeat(column.saturating_sub(columns_of(&left)));
        left + &padding + &right.next().unwrap_or_default()
    };
    (0..count).map(line).collect()
}

/// Parts joined with commas, in lines of this width; none if there are no parts.
fn joined(parts: impl Iterator<Item = String>, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 2 + part.chars().count() <= width => {
                *line += &format!(", {part}");
            }
            _ => lines.push(part),
        }
    }
    lines
}

fn cut(text: &str, width: usize) -> String {
    text.chars().take(width).collect()
}

/// Text of a client or a file with everything but printable ASCII replaced by `?`.
fn plain(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_graphic() || letter == ' ';
    let replaced = text.chars().map(|letter| if is_plain(letter) { letter } else { '?' });
    replaced.collect()
}

fn show_bound(bound_s: f64) -> String {
    match bound_s * 1e6 {
        us if us.is_infinite() => "beyond".to_owned(),
        us if us < 999.5 => format!("≤ {us:.0} µs"),
        us if us < 999_500.0 => format!("≤ {} ms", us.round() / 1e3),
        us => format!("≤ {} s", us.round() / 1e6),
    }
}

fn show_rate(per_s: f64) -> String {
    match per_s {
        0.0 => "0/s".to_owned(),
        ..0.005 => "< 0.01/s".to_owned(),
        _ => rate_of(per_s),
    }
}

/// `3 days 4 h`, `2 h 5 min`, `12 s`.
fn show_age(seconds: f64) -> String {
    let s = seconds as u64;
    match s {
        _ if seconds < 9.95 => format!("{seconds:.1} s"),
        ..120 => format!("{s} s"),
        120..7_200 => format!("{} min {} s", s / 60, s % 60),
        7_200..172_800 => format!("{} h {} min", s / 3_600, s / 60 % 60),
        _ => format!("{} days {} h", s / 86_400, s / 3_600 % 24),
    }
}

#[cfg(test)]
mod tests;
