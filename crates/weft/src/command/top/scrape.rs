//! Samples of `/metrics`, and their growth between two readings.

use std::collections::BTreeMap;

/// One reading of `/metrics`: Prometheus text, version 0.0.4.
/// <https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>
#[derive(Debug, Default)]
pub(super) struct Scrape {
    /// Time of the reading in seconds, on the monotonic clock.
    pub(super) at_s: f64,
    /// By series in printed form: `name{label="value"}`.
    samples: BTreeMap<String, f64>,
}

impl Scrape {
    /// Parses the text; `None` if a line is malformed.
    pub(super) fn parse(text: &str, at_s: f64) -> Option<Scrape> {
        let lines = text.lines().map(str::trim);
        let samples = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        Some(Scrape { at_s, samples: samples.map(parse_sample).collect::<Option<_>>()? })
    }

    /// True if the text is from a server of weft.
    pub(super) fn is_of_weft(&self) -> bool {
        self.family("weft_build_info").next().is_some()
    }

    /// The sample of this series.
    pub(super) fn value(&self, series: &str) -> Option<f64> {
        self.samples.get(series).copied()
    }

    /// The series of a family with labels: series, labels in braces, value.
    fn family<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, &'a str, f64)> {
        let begin = format!("{name}{{");
        let from = self.samples.range(begin.clone()..);
        from.map_while(move |(series, value)| {
            let labels = series.strip_prefix(&begin)?.strip_suffix('}')?;
            Some((&**series, labels, *value))
        })
    }

    /// Values of a family by one of its labels; equal ones are added up.
    pub(super) fn by_label(&self, name: &str, label: &str) -> BTreeMap<String, f64> {
        let mut values = BTreeMap::new();
        for (_, labels, value) in self.family(name) {
            *values.entry(label_of(labels, label)).or_default() += value;
        }
        values
    }
}

/// Parses series and value. A timestamp may follow, and is ignored.
fn parse_sample(line: &str) -> Option<(String, f64)> {
    let end_of_series = match line.find('{') {
        Some(open) => open + end_of_labels(&line[open..])?,
        None => line.find(' ')?,
    };
    let (series, rest) = line.split_at(end_of_series);
    // f64::from_str also parses `+Inf` and `NaN`.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some((series.to_owned(), value))
}

/// Length of `{…}`; a brace inside quotes is text.
fn end_of_labels(text: &str) -> Option<usize> {
    let mut is_quoted = false;
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b'}' if !is_quoted => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Value of one label of `a="x",b="y"`; empty if it is missing.
fn label_of(labels: &str, name: &str) -> String {
    let mut rest = labels;
    while let Some((label, after)) = rest.split_once("=\"") {
        let mut value = String::new();
        let mut letters = after.char_indices();
        let end = loop {
            match letters.next() {
                Some((_, '\\')) => match letters.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, letter)) => value.push(letter),
                    None => return value,
                },
                Some((at, '"')) => break at + 1,
                Some((_, letter)) => value.push(letter),
                None => return value,
            }
        };
        if label == name {
            return value;
        }
        rest = after[end..].trim_start_matches(',');
    }
    String::new()
}

/// Growth between two readings, or since the server's start without an earlier reading.
pub(super) struct Interval<'a> {
    before: Option<&'a Scrape>,
    pub(super) now: &'a Scrape,
    pub(super) lasts_s: f64,
}

const STARTED: &str = "process_start_time_seconds";

impl<'a> Interval<'a> {
    /// The interval between two readings, or since the start of a server that has been running for
    /// `uptime_s`. A reading of an earlier process is ignored.
    pub(super) fn new(before: Option<&'a Scrape>, now: &'a Scrape, uptime_s: f64) -> Interval<'a> {
        let before = before.filter(|before| before.value(STARTED) == now.value(STARTED));
        let lasts_s = before.map_or(uptime_s, |before| now.at_s - before.at_s);
        Interval { before, now, lasts_s: lasts_s.max(1e-3) }
    }

    /// Growth of a counter; its whole value if it is new or was reset.
    pub(super) fn growth(&self, series: &str) -> Option<f64> {
        let now = self.now.value(series)?;
        let before = self.before.and_then(|before| before.value(series));
        let before = before.filter(|before| *before <= now);
        Some(now - before.unwrap_or(0.0))
    }

    /// Growth of a counter per second.
    pub(super) fn rate(&self, series: &str) -> Option<f64> {
        Some(self.growth(series)? / self.lasts_s)
    }

    /// Growth per second of the counters of a family by one of their labels.
    pub(super) fn rates(&self, name: &str, label: &str) -> BTreeMap<String, f64> {
        let mut rates = BTreeMap::new();
        for (series, labels, _) in self.now.family(name) {
            let rate = self.rate(series).unwrap_or(0.0);
            *rates.entry(label_of(labels, label)).or_default() += rate;
        }
        rates
    }

    /// Upper bound of the histogram bucket with this quantile of the growth; `None` if nothing was
    /// counted.
    pub(super) fn quantile(&self, histogram: &str, quantile: f64) -> Option<f64> {
        let name = format!("{histogram}_bucket");
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for (series, labels, _) in self.now.family(&name) {
            buckets.push((label_of(labels, "le").parse().ok()?, self.growth(series)?));
        }
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        let (_, all) = *buckets.last()?;
        let bucket = buckets.iter().find(|(_, below)| *below >= quantile * all);
        bucket.map(|(bound, _)| *bound).filter(|_| all > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrape(at_s: f64, text: &str) -> Scrape {
        Scrape::parse(text, at_s).unwrap()
    }

    #[test]
    fn labels_may_contain_anything() {
        let text = "# HELP a_total Some.\n# TYPE a_total counter\n\
                    a_total{path=\"x} \\\"y\\\\ 1\",b=\"2\"} 3 1700000000000\n\nb +Inf\nc NaN\n";
        let scrape = scrape(0.0, text);
        let by_path = scrape.by_label("a_total", "path");
        assert_eq!(by_path, BTreeMap::from([("x} \"y\\ 1".to_owned(), 3.0)]));
        assert_eq!(scrape.by_label("a_total", "b")["2"], 3.0);
        assert_eq!(scrape.by_label("a_total", "c")[""], 3.0);
        assert_eq!(scrape.value("b"), Some(f64::INFINITY));
        assert!(scrape.value("c").unwrap().is_nan());
        assert!(scrape.by_label("a", "b").is_empty(), "another family");
    }

    #[test]
    fn what_is_no_sample_is_refused() {
        for text in ["<html>", "a", "a{b=\"c", "a x", "a{b=\"c\"}", "a{b=\"c\\"] {
            assert!(Scrape::parse(text, 0.0).is_none(), "{text}");
        }
        assert!(Scrape::parse("", 0.0).is_some());
    }

    #[test]
    fn rates_are_differences() {
        let before = scrape(10.0, "a_total 5\nb_total{c=\"1\"} 1\n");
        let now = scrape(12.0, "a_total 9\nb_total{c=\"1\"} 1\nb_total{c=\"2\"} 4\n");
        let interval = Interval::new(Some(&before), &now, 60.0);
        assert_eq!(interval.rate("a_total"), Some(2.0));
        assert_eq!(interval.rate("gone_total"), None);
        let rates = interval.rates("b_total", "c");
        assert_eq!(rates, [("1", 0.0), ("2", 2.0)].map(|(c, r)| (c.to_owned(), r)).into());
    }

    #[test]
    fn first_reading_is_since_the_start() {
        let now = scrape(12.0, "a_total 90\n");
        assert_eq!(Interval::new(None, &now, 30.0).rate("a_total"), Some(3.0));
    }

    #[test]
    fn restarted_server_begins_at_zero() {
        let before = scrape(10.0, "process_start_time_seconds 1\na_total 5\n");
        let now = scrape(12.0, "process_start_time_seconds 2\na_total 8\n");
        assert_eq!(Interval::new(Some(&before), &now, 1.0).rate("a_total"), Some(8.0));
    }

    #[test]
    fn counter_that_fell_was_reset() {
        let (before, now) = (scrape(0.0, "a_total 5\n"), scrape(1.0, "a_total 3\n"));
        assert_eq!(Interval::new(Some(&before), &now, 9.0).growth("a_total"), Some(3.0));
    }

    #[test]
    fn quantiles_are_of_the_interval() {
        let text = |counts: [u64; 3]| {
            let [low, high, all] = counts;
            format!(
                "t_bucket{{le=\"0.1\"}} {low}\nt_bucket{{le=\"10\"}} {high}\nt_bucket{{le=\"+Inf\"}} {all}\n"
            )
        };
        let before = scrape(0.0, &text([100, 100, 100]));
        let now = scrape(1.0, &text([190, 198, 200]));
        let quantile = |quantile| Interval::new(Some(&before), &now, 9.0).quantile("t", quantile);
        assert_eq!(quantile(0.5), Some(0.1));
        assert_eq!(quantile(0.9), Some(0.1));
        assert_eq!(quantile(0.95), Some(10.0));
        assert_eq!(quantile(0.99), Some(f64::INFINITY));
        assert_eq!(Interval::new(Some(&now), &now, 9.0).quantile("t", 0.5), None);
        assert_eq!(Interval::new(None, &now, 9.0).quantile("u", 0.5), None);
    }
}
