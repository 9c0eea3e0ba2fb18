//! Metrics as Prometheus text.

use std::fmt::{Display, Write};

/// Collects samples and writes them as Prometheus text, version 0.0.4.
///
/// All samples of a family are adjacent under one `HELP` and one `TYPE`, as the format demands,
/// regardless of the order in which they were added.
///
/// Shapes: names are `[a-zA-Z_:][a-zA-Z0-9_:]*`, label names the same without `:`; a counter's name
/// ends in `_total`, and units are in the name (`_bytes`, `_seconds`).
#[derive(Debug, Default)]
pub struct MetricsWriter {
    families: Vec<Family>,
}

#[derive(Debug)]
struct Family {
    name: String,
    head: String,
    samples: String,
}

/// Content type of the text.
/// <https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

impl MetricsWriter {
    /// Adds a sample of a counter.
    pub fn counter(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: u64) {
        self.sample("counter", name, help, labels, value);
    }

    /// Adds a sample of a gauge.
    pub fn gauge(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: f64) {
        if value.is_infinite() {
            let text = if value > 0.0 { "+Inf" } else { "-Inf" };
            return self.sample("gauge", name, help, labels, text);
        }
        self.sample("gauge", name, help, labels, value);
    }

    /// Adds a sample of a counter of seconds.
    pub fn seconds(&mut self, name: &str, help: &str, labels: &[(&str, &str)], total: f64) {
        self.sample("counter", name, help, labels, total);
    }

    /// Adds a histogram: a count for each of the upper `bounds`, one more count for values beyond
    /// the last, and the sum of all values.
    pub fn histogram(
        &mut self,
        name: &str,
        help: &str,
        bounds: &[f64],
        counts: &[u64],
        sum: impl Display,
    ) {
        assert_eq!(counts.len(), bounds.len() + 1, "the last is for +Inf");
        let bounds = bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        let samples = &mut self.family("histogram", name, help).samples;
        let mut total = 0;
        for (bound, count) in bounds.zip(counts) {
            total += count;
            let _ = writeln!(samples, "{name}_bucket{{le=\"{bound}\"}} {total}");
        }
        let _ = writeln!(samples, "{name}_sum {sum}\n{name}_count {total}");
    }

    /// Returns the text.
    pub fn finish(self) -> Vec<u8> {
        let mut text = String::new();
        for family in self.families {
            text += &family.head;
            text += &family.samples;
        }
        text.into_bytes()
    }

    fn sample(
        &mut self,
        kind: &str,
        name: &str,
        help: &str,
        labels: &[(&str, &str)],
        value: impl Display,
    ) {
        debug_assert!(is_name(name, true), "{name:?} is not a metric's name");
        let samples = &mut self.family(kind, name, help).samples;
        samples.push_str(name);
        for (at, (label, text)) in labels.iter().enumerate() {
            debug_assert!(is_name(label, false), "{label:?} is not a label's name");
            let before = if at == 0 { '{' } else { ',' };
            let _ = write!(samples, "{before}{label}=\"{}\"", escape_label(text));
        }
        let after = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(samples, "{after} {value}");
    }

    fn family(&mut self, kind: &str, name: &str, help: &str) -> &mut Family {
        // Samples of a family usually come one after the other.
        let at = self.families.iter().rposition(|family| family.name == name);
        let at = at.unwrap_or_else(|| {
            let help = escape_help(help);
            let head = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
            self.families.push(Family { name: name.to_owned(), head, samples: String::new() });
            self.families.len() - 1
        });
        &mut self.families[at]
    }
}

fn is_name(name: &str, colons: bool) -> bool {
    let is_part =
        |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || (colons && byte == b':');
    !name.is_empty() && !name.as_bytes()[0].is_ascii_digit() && name.bytes().all(is_part)
}

fn escape_help(help: &str) -> String {
    help.replace('\\', "\\\\").replace('\n', "\\n")
}

fn escape_label(text: &str) -> String {
    escape_help(text).replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(out: MetricsWriter) -> String {
        String::from_utf8(out.finish()).unwrap()
    }

    #[test]
    fn samples_are_grouped_by_family() {
        let mut out = MetricsWriter::default();
        out.counter("a_total", "All a.", &[("kind", "x")], 1);
        out.gauge("b", "Some b.", &[], 0.5);
        out.counter("a_total", "All a.", &[("kind", "y"), ("more", "z")], 2);
        assert_eq!(
            text(out),
            "# HELP a_total All a.\n# TYPE a_total counter\n\
             a_total{kind=\"x\"} 1\na_total{kind=\"y\",more=\"z\"} 2\n\
             # HELP b Some b.\n# TYPE b gauge\nb 0.5\n"
        );
    }

    #[test]
    fn help_and_labels_are_escaped() {
        let mut out = MetricsWriter::default();
        out.counter("a_total", "back\\slash \"quoted\"\nnext", &[("path", "\\ \" \n")], 1);
        assert_eq!(
            text(out),
            "# HELP a_total back\\\\slash \"quoted\"\\nnext\n# TYPE a_total counter\n\
             a_total{path=\"\\\\ \\\" \\n\"} 1\n"
        );
    }

    #[test]
    fn special_numbers() {
        let mut out = MetricsWriter::default();
        for (at, value) in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 3.0].into_iter().enumerate()
        {
            out.gauge("g", "", &[("at", &at.to_string())], value);
        }
        out.counter("c_total", "", &[], u64::MAX);
        let text = text(out);
        for line in [
            "g{at=\"0\"} +Inf",
            "g{at=\"1\"} -Inf",
            "g{at=\"2\"} NaN",
            "g{at=\"3\"} 3",
            "c_total 18446744073709551615",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "is not a metric's name")]
    fn wrong_name_panics() {
        MetricsWriter::default().counter("bytes-sent", "", &[], 1);
    }
}
