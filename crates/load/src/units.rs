//! Numbers with units and lines of words, for people.

/// Formats a time with three digits and its unit.
pub fn ns_of(ns: f64) -> String {
    let (value, unit) = match ns {
        _ if ns < 1.0 => return "0".to_owned(),
        _ if ns < 1e3 => (ns, "ns"),
        _ if ns < 1e6 => (ns / 1e3, "µs"),
        _ if ns < 1e9 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

/// Formats a rate: `9,998/s`.
pub fn rate_of(per_s: f64) -> String {
    if per_s < 10.0 {
        format!("{per_s:.2}/s")
    } else {
        format!("{}/s", count_of(per_s.round() as u64))
    }
}

/// Formats a number with thousands separators.
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

/// Formats a number of things: `1 reply`, `2 replies`, `3,000 connections`.
pub fn counted(count: u64, one: &str) -> String {
    let many = match one.strip_suffix('y') {
        _ if count == 1 => one.to_owned(),
        Some(stem) => format!("{stem}ies"),
        None => format!("{one}s"),
    };
    format!("{} {many}", count_of(count))
}

/// Subject and verb for a part of some things: `1 of 96 replies was`, `2 of 96 replies were`.
pub(crate) fn part_of(part: u64, all: u64, one: &str) -> String {
    let verb = if part == 1 || all == 1 { "was" } else { "were" };
    format!("{} of {} {verb}", count_of(part), counted(all, one))
}

/// Subject and verb for all of some things: `the only reply was`, `all 96 replies were`.
pub(crate) fn all_of(count: u64, one: &str) -> String {
    if count == 1 {
        format!("the only {one} was")
    } else {
        format!("all {} were", counted(count, one))
    }
}

/// Formats a size: `1.2 MB`.
pub(crate) fn bytes_of(bytes: u64) -> String {
    let (value, unit) = match bytes as f64 {
        b if b < 1e3 => return format!("{bytes} B"),
        b if b < 1e6 => (b / 1e3, "kB"),
        b if b < 1e9 => (b / 1e6, "MB"),
        b => (b / 1e9, "GB"),
    };
    format!("{value:.1} {unit}")
}

/// Cuts a text into lines of at most `columns`, at its spaces. A line does not begin with a dot
/// between two parts.
pub fn fold(text: &str, columns: usize) -> Vec<String> {
    if columns_of(text) <= columns {
        return vec![text.to_owned()];
    }
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is one from the start");
        if line.is_empty() || columns_of(line) + 1 + columns_of(word) <= columns {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        } else if word != "·" {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// Columns that a text takes in a terminal: the codes of its colours take none.
pub fn columns_of(text: &str) -> usize {
    let mut is_code = false;
    let shown = text.chars().filter(|&c| {
        let was_code = is_code;
        is_code = c == '\x1b' || (is_code && c != 'm');
        !is_code && !was_code
    });
    shown.count()
}
