//! `weft doctor`: features and limits of this machine, and the commands that change them.
//!
//! [`Facts::read`] reads the machine. [`judge()`] turns the facts into findings with advice; it is
//! a pure function. [`Report::print`] formats the findings in columns.

mod facts;
mod judge;

use std::io::{self, Write};

use serde::Serialize;

use crate::paint::Paint;
use crate::value::fold;
pub(crate) use facts::Facts;
pub(crate) use judge::judge;

/// Rating of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Ok,
    /// Works, but could be better.
    Warn,
    /// Prevents a server from working.
    Bad,
}

/// One line of the report.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    pub(crate) section: &'static str,
    pub(crate) name: &'static str,
    pub(crate) verdict: Verdict,
    pub(crate) value: String,
    /// Meaning, and the change to make, with commands to paste.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) advice: Option<String>,
}

/// The findings on one machine.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) version: &'static str,
    pub(crate) kernel: String,
    pub(crate) arch: &'static str,
    pub(crate) verdict: Verdict,
    pub(crate) findings: Vec<Finding>,
}

impl Report {
    /// Judges the facts.
    pub(crate) fn of(facts: &Facts) -> Report {
        let findings = judge(facts);
        let worst = findings.iter().map(|finding| finding.verdict).max();
        Report {
            version: env!("CARGO_PKG_VERSION"),
            kernel: facts.kernel.clone(),
            arch: std::env::consts::ARCH,
            verdict: worst.unwrap_or(Verdict::Ok),
            findings,
        }
    }

    /// Prints the report as text.
    ///
    /// # Errors
    /// Errors of `out`.
    pub(crate) fn print(&self, out: &mut impl Write, paint: Paint) -> io::Result<()> {
        let Report { version, kernel, arch, .. } = self;
        writeln!(out, "{} {version} on Linux {kernel}, {arch}", paint.bold("weft doctor"))?;
        let widest = self.findings.iter().map(|finding| finding.name.len()).max().unwrap_or(0);
        let mut section = "";
        for finding in &self.findings {
            if finding.section != section {
                section = finding.section;
                writeln!(out, "\n{}", paint.bold(section))?;
            }
            finding.print(out, paint, widest)?;
        }
        writeln!(out, "\n{}", self.summary(paint))
    }

    fn summary(&self, paint: Paint) -> String {
        let count = |verdict| self.findings.iter().filter(|one| one.verdict == verdict).count();
        let said = |count: usize, one: &str, many: &str| match count {
            1 => format!("1 {one}"),
            _ => format!("{count} {many}"),
        };
        match (count(Verdict::Bad), count(Verdict::Warn)) {
            (0, 0) => paint.green("All is well."),
            (0, warn) => {
                let warnings = paint.yellow(said(warn, "thing", "things"));
                format!("Nothing keeps a server from working; {warnings} could be better.")
            }
            (bad, _) => {
                let things = said(bad, "thing keeps", "things keep");
                format!("{} a server from working.", paint.red(things))
            }
        }
    }
}

/// Columns of a usual terminal.
const WIDTH: usize = 80;

/// Width of the advice, beside its margin.
const ADVICE_WIDTH: usize = 70;

impl Finding {
    fn print(&self, out: &mut impl Write, paint: Paint, widest: usize) -> io::Result<()> {
        let Finding { name, value, .. } = self;
        let verdict = match self.verdict {
            Verdict::Ok => paint.green("ok  "),
            Verdict::Warn => paint.yellow("warn"),
            Verdict::Bad => paint.red("bad "),
        };
        let margin = 8 + widest + 2;
        let value = wrap(value, WIDTH - margin.min(40)).join(&format!("\n{:margin$}", ""));
        writeln!(out, "  {verdict}  {name:<widest$}  {value}")?;
        for line in self.advice.iter().flat_map(|advice| wrap(advice, ADVICE_WIDTH)) {
            writeln!(out, "        {}", paint.dim(line))?;
        }
        Ok(())
    }
}

/// Wraps a text at spaces. A line that begins with a space is a command to paste and is kept whole.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.lines() {
        if paragraph.starts_with(' ') {
            lines.push(paragraph.to_owned());
        } else {
            lines.extend(fold(paragraph, width));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paint::{Color, decide};

    fn printed(report: &Report) -> String {
        let mut out = Vec::new();
        report.print(&mut out, decide(Color::Never, &io::stdout())).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// Seen: the line of io_uring had 109 columns, which a terminal of 80 cut inside of words.
    #[test]
    fn values_fit_into_80_columns() {
        let finding = Finding {
            section: "Kernel",
            name: "stack guards",
            verdict: Verdict::Ok,
            value: "zero-copy send, ".repeat(20),
            advice: None,
        };
        let report = Report {
            version: "1",
            kernel: "6.18".to_owned(),
            arch: "x86_64",
            verdict: Verdict::Ok,
            findings: vec![finding],
        };
        let text = printed(&report);
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert!(text.lines().count() > 5, "{text}");
    }

    #[test]
    fn report_is_aligned_and_summed_up() {
        let finding = |name, verdict| Finding {
            section: "Limits",
            name,
            verdict,
            value: "64".to_owned(),
            advice: (verdict != Verdict::Ok).then(|| "Change it:\n  sysctl x=1".to_owned()),
        };
        let mut report = Report {
            version: "1",
            kernel: "6.18".to_owned(),
            arch: "x86_64",
            verdict: Verdict::Bad,
            findings: vec![finding("a", Verdict::Ok), finding("long name", Verdict::Bad)],
        };
        let text = printed(&report);
        assert!(text.contains("  ok    a          64\n  bad   long name  64\n"), "{text}");
        assert!(text.contains("        Change it:\n          sysctl x=1\n"), "{text}");
        assert!(text.ends_with("1 thing keeps a server from working.\n"), "{text}");
        report.findings.pop();
        assert!(printed(&report).ends_with("All is well.\n"));
    }

    #[test]
    fn advice_wraps_and_commands_do_not() {
        assert_eq!(wrap("aa bb cc", 5), ["aa bb", "cc"]);
        assert_eq!(wrap("a\n  b c d e f", 5), ["a", "  b c d e f"]);
    }

    #[test]
    fn report_on_this_machine() {
        let report = Report::of(&Facts::read());
        assert!(report.findings.len() > 10);
        serde_json::to_string(&report).unwrap();
    }
}
