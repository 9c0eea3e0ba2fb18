//! Reports for terminals, and in Markdown for documents.

use std::fmt;

use super::Report;
use crate::expect::Tally;
use crate::measure::{Better, Configuration, Measure};
use crate::numbers::grouped;
use crate::page::{item, paragraph};
use crate::rows::{Row, show_row};

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let experiment = self.experiment;
        writeln!(f, "{}: {}", experiment.name, experiment.about)?;
        writeln!(f, "{}", self.recorded.header.card.machine)?;
        for measure in self.main_measures(2) {
            let title = measure.title;
            let unit = self.rows.scale(measure).unit;
            writeln!(f, "\n{title} ({unit}), median (least–greatest):\n")?;
            write_table(f, &self.table(measure, &[], self.is_narrow()))?;
        }
        writeln!(f)?;
        for expectation in &self.expectations {
            let verdict = expectation.words();
            let source = expectation.source.word();
            let says = &expectation.says;
            let because = &expectation.because;
            writeln!(f, "{verdict} ({source}): {says} ({because})")?;
        }
        for warning in self.warnings() {
            writeln!(f, "note: {warning}")?;
        }
        Ok(())
    }
}

impl Report<'_> {
    /// The report as Markdown, for a document.
    pub fn markdown(&self) -> String {
        // The testbed is the same for all, and described in lab.md, unless the generator was on
        // another machine.
        let has_testbed = self.recorded.header.testbed.ends_with(" by ssh");
        let mut parts = vec![paragraph(&self.receipt(has_testbed))];
        // Verdicts contain all computed figures.
        let measures = self.main_measures(1).filter(|measure| !measure.is_exact);
        let (nothing, measures): (Vec<&Measure>, Vec<&Measure>) =
            measures.partition(|measure| self.is_nothing(measure));
        parts.extend(nothing.iter().map(|one| format!("No {} in any sample.", one.title)));
        let alike: Vec<(&str, String)> =
            measures.iter().flat_map(|measure| self.alike(measure)).collect();
        let labels: Vec<&str> = alike.iter().map(|(label, _)| *label).collect();
        let tables = measures.into_iter().map(|measure| {
            let left_out = if measure.name == Measure::RATE.name { &labels[..] } else { &[] };
            let mut table = self.table(measure, left_out, self.has_lines_of_systems());
            let unit = self.rows.scale(measure).unit;
            let comma = if unit.is_empty() { "" } else { ", " };
            let what = format!("{}{comma}{unit}", measure.title);
            if self.is_one_table() {
                table[0][0] = std::mem::replace(&mut table[0][1], what);
            } else {
                table[0][0] = what;
            }
            table
        });
        let mut tables: Vec<Vec<Vec<String>>> = tables.collect();
        if self.is_one_table() {
            tables = tables.into_iter().reduce(beside).into_iter().collect();
        }
        parts.extend(tables.iter().map(|table| markdown_table(table)));
        let verdicts = self.expectations.iter().map(|expectation| {
            let (verdict, source) = (expectation.words(), expectation.source.word());
            let says = &expectation.says;
            let because = &expectation.because;
            vec![verdict.to_owned(), source.to_owned(), says.clone(), because.clone()]
        });
        if !alike.is_empty() {
            let alike = alike.iter().map(|(label, rate)| format!("{label} ({rate})"));
            let alike = alike.collect::<Vec<_>>().join("; ");
            parts.push(paragraph(&format!("Rates within 1 % of each other: {alike}.")));
        }
        if !self.expectations.is_empty() {
            let head = ["verdict", "whose", "expectation", "figures"].map(str::to_owned);
            parts.push(markdown_table(&[vec![head.to_vec()], verdicts.collect()].concat()));
        }
        let few = self.few();
        let notes = self.warnings().into_iter().filter(|note| Some(note) != few.as_ref());
        let notes: Vec<_> = notes.map(|note| item(&format!("Note: {note}"))).collect();
        parts.push(notes.join("\n"));
        parts.retain(|part| !part.is_empty());
        parts.join("\n\n")
    }

    /// True for a line per system instead of one per configuration, so that it fits a terminal.
    fn is_narrow(&self) -> bool {
        self.rows.configurations().len() < self.rows.systems().len()
    }

    /// Same choice for a page, which scrolls: the variant with fewer lines, unless it has too many
    /// columns.
    fn has_lines_of_systems(&self) -> bool {
        let (configurations, systems) =
            (self.rows.configurations().len(), self.rows.systems().len());
        let has_fewer = if systems < configurations {
            configurations <= COLUMNS_MAX
        } else {
            systems > COLUMNS_MAX
        };
        has_fewer || self.is_one_table()
    }

    /// True if all measures are columns of one table.
    fn is_one_table(&self) -> bool {
        self.is_narrow() && self.rows.configurations().len() == 1
    }

    /// True if less is better, and every sample is zero.
    fn is_nothing(&self, measure: &Measure) -> bool {
        let rows = self.rows.all().iter().filter(|row| !row.is_absent);
        let rows: Vec<&Row> = rows.collect();
        // A failed sample is no zero.
        let is_zero = |row: &&Row| {
            let spread = row.spread(measure).filter(|_| row.missing(measure).0 == 0);
            spread.is_some_and(|spread| spread.greatest == 0.0)
        };
        measure.better == Better::Less && !rows.is_empty() && rows.iter().all(is_zero)
    }

    /// Labels of configurations with an offered rate in which all systems' rates agree within 1 %,
    /// and the median of the first: these lines of a table would show no difference. Empty if those
    /// are all.
    fn alike(&self, measure: &Measure) -> Vec<(&str, String)> {
        let rate = |configuration: &Configuration| {
            let rows = self.rows.all().iter().filter(|row| row.configuration == *configuration);
            let rows: Vec<_> = rows.filter(|row| !row.is_absent).collect();
            let has_failures = rows.iter().any(|row| !row.failures.is_empty());
            // A system without samples may have been skipped.
            let medians = rows.iter().filter_map(|row| Some(row.spread(measure)?.median));
            let medians: Vec<f64> = medians.collect();
            let least = medians.iter().copied().fold(f64::MAX, f64::min);
            let most = medians.iter().copied().fold(0.0, f64::max);
            let is_alike = configuration.parameter("rate").is_some()
                && !has_failures
                && medians.len() > 1
                && most <= 1.01 * least;
            is_alike.then(|| grouped(medians[0]))
        };
        let configurations = self.rows.configurations();
        let count = configurations.len();
        let alike = configurations.into_iter();
        let alike = alike.filter_map(|one| Some((&*one.label, rate(one)?)));
        let alike: Vec<_> = alike.collect();
        if measure.name != Measure::RATE.name || alike.len() == count {
            return Vec::new();
        }
        alike
    }

    /// A header, and a line per configuration, except those left out, or per system.
    fn table(&self, measure: &Measure, left_out: &[&str], is_by_system: bool) -> Vec<Vec<String>> {
        let mut configurations = self.rows.configurations();
        configurations.retain(|configuration| !left_out.contains(&&*configuration.label));
        let mut systems = self.rows.systems();
        let tells = |system: &str| {
            let rows = self.rows.all().iter().filter(|row| row.system == system);
            let mut rows = rows.filter(|row| configurations.contains(&&row.configuration));
            rows.any(|row| !row.failures.is_empty() || row.tells_of(measure))
        };
        // Tables side by side have the same lines.
        if !self.is_one_table() && systems.iter().any(|system| tells(system)) {
            systems.retain(|system| tells(system));
        }
        let is_told = |label: &str| {
            let mut rows = self.rows.all().iter().filter(|row| row.configuration.label == label);
            rows.any(|row| !row.failures.is_empty() || row.tells_of(measure))
        };
        if configurations.iter().any(|configuration| is_told(&configuration.label)) {
            configurations.retain(|configuration| is_told(&configuration.label));
        }
        let scale = self.rows.scale(measure);
        let at = |configuration: &str, system: &str| {
            show_row(self.rows.find(configuration, system), measure, scale)
        };
        let labels: Vec<&str> =
            configurations.iter().map(|configuration| &*configuration.label).collect();
        let table = |across: &[&str], down: &[&str], show: &dyn Fn(&str, &str) -> String| {
            let header = across.iter().map(|&name| name.to_owned());
            let header = [String::new()].into_iter().chain(header).collect();
            let lines = down.iter().map(|&line| {
                let figures = across.iter().map(|column| show(line, column));
                [line.to_owned()].into_iter().chain(figures).collect()
            });
            [header].into_iter().chain(lines).collect()
        };
        if is_by_system {
            table(&labels, &systems, &|system, configuration| at(configuration, system))
        } else {
            table(&systems, &labels, &at)
        }
    }
}

/// Joins two tables, which begin with the same column.
fn beside(mut left: Vec<Vec<String>>, right: Vec<Vec<String>>) -> Vec<Vec<String>> {
    for (line, more) in left.iter_mut().zip(right) {
        line.extend(more.into_iter().skip(1));
    }
    left
}

/// A table whose first line is its header.
fn markdown_table(lines: &[Vec<String>]) -> String {
    let rule = vec!["---".to_owned(); lines[0].len()];
    let lines = [&lines[..1], &[rule], &lines[1..]].concat();
    let lines = lines.iter().map(|line| format!("| {} |", line.join(" | ")));
    lines.collect::<Vec<_>>().join("\n")
}

/// A line per experiment, in Markdown: results of expectations, and a link to its page in `folder`,
/// relative to the document.
pub fn summary(reports: &[Report<'_>], folder: &str) -> String {
    let mut lines = vec![
        "| experiment | what | measured, UTC | papers' findings seen here | goals reached | about \
         equal | missed | too few samples | not measured |"
            .to_owned(),
        format!("|{}", " --- |".repeat(9)),
    ];
    for report in reports {
        let name = report.experiment.name;
        let about = report.experiment.about;
        let date = crate::card::date_of(report.recorded.header.began_unix_s);
        let tally = Tally::of(&report.expectations);
        let shown = |count: usize| if count == 0 { String::new() } else { count.to_string() };
        let found = match tally.findings {
            0 => String::new(),
            findings => format!("{} of {findings}", tally.seen),
        };
        let goals = [tally.reached, tally.equal, tally.missed, tally.unsure, tally.not_measured];
        let counts = goals.map(shown).join(" | ");
        lines.push(format!(
            "| [{name}]({folder}/{name}.md) | {about} | {date} | {found} | {counts} |"
        ));
    }
    lines.join("\n")
}

/// Most columns of figures in a page's table.
const COLUMNS_MAX: usize = 12;

/// Columns of the smallest terminal.
const COLUMNS: usize = 80;

/// Writes a table that is too wide in parts, each with the first column.
fn write_table(f: &mut fmt::Formatter<'_>, table: &[Vec<String>]) -> fmt::Result {
    let width = |column: usize| {
        let widths = table.iter().map(|line| line[column].chars().count());
        widths.max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..table[0].len()).map(width).collect();
    // A bar and two spaces beside each.
    let first = widths[0] + 4;
    let mut parts: Vec<Vec<usize>> = vec![Vec::new()];
    let mut taken = first;
    for (column, width) in widths.iter().enumerate().skip(1) {
        taken += width + 3;
        if taken > COLUMNS && parts.last().is_some_and(|part| !part.is_empty()) {
            parts.push(Vec::new());
            taken = first + width + 3;
        }
        parts.last_mut().expect("there is one").push(column);
    }
    for (at, part) in parts.iter().enumerate() {
        if at > 0 {
            writeln!(f)?;
        }
        write_columns(f, table, &widths, part)?;
    }
    Ok(())
}

fn write_columns(
    f: &mut fmt::Formatter<'_>,
    table: &[Vec<String>],
    widths: &[usize],
    columns: &[usize],
) -> fmt::Result {
    for (at, line) in table.iter().enumerate() {
        write!(f, "| {:<width$} |", line[0], width = widths[0])?;
        for &column in columns {
            write!(f, " {:>width$} |", line[column], width = widths[column])?;
        }
        writeln!(f)?;
        if at == 0 {
            let all = [0].iter().chain(columns);
            let dashes = all.map(|&column| "-".repeat(widths[column]));
            writeln!(f, "| {} |", dashes.collect::<Vec<_>>().join(" | "))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Report;
    use super::summary;
    use crate::measure::Measure;
    use crate::sample::{LASTED_S, Sample};
    use crate::store::tests::header;
    use crate::store::{Record, Recorded, RunEnd, TurnResult};
    use crate::system::OLD;

    fn recorded(others_percent: f64) -> Recorded {
        let mut header = header();
        let mut go = header.systems[0].clone();
        (go.name, go.version) = ("go".to_owned(), String::new());
        header.systems.push(go);
        let turn = |system: &str, round, result| Record {
            configuration: "1 processor, many".to_owned(),
            system: system.to_owned(),
            round,
            result,
        };
        let sample = |seconds| {
            let values = [("ops", 1e9), ("seconds", seconds), ("ms", 1.0)];
            TurnResult::Sample(Sample {
                values: values.map(|(name, value)| (name.to_owned(), value)).into(),
                ..Sample::default()
            })
        };
        Recorded {
            header,
            turns: vec![
                turn("weft", 0, sample(32.0)),
                turn("weft", 1, sample(60.0)),
                turn("weft", 1, TurnResult::Discarded(Sample::default())),
                turn("go", 0, TurnResult::Failed("it died".to_owned())),
            ],
            ending: Some(RunEnd {
                card: crate::Card::default(),
                took_s: 1.0,
                others_percent: Some(others_percent),
                repeated: 1,
                noisy: 0,
            }),
        }
    }

    /// Seen: five failures of one kind were five notes, because each had other numbers.
    #[test]
    fn failures_of_one_kind_are_one_note() {
        let mut recorded = recorded(0.0);
        let failures = ["400 reset, 16269 short_reply", "152 reset, 9 short_reply"];
        let first = recorded.turns[0].clone();
        recorded.turns.extend(
            failures
                .map(|why| Record { result: TurnResult::Failed(why.to_owned()), ..first.clone() }),
        );
        let experiment = crate::catalog::find("rt-yield").unwrap();
        let text = Report::new(experiment, &recorded).to_string();
        let note =
            "failed in 2 samples (1 processor, many): such as 400 reset, 16269 short_reply\n";
        assert!(text.contains(note), "{text}");
    }

    /// Seen: figures that were not measured were shown as `never`, and a report from a busy machine
    /// looked like any other.
    #[test]
    fn report_of_a_busy_machine() {
        let recorded = recorded(50.0);
        let experiment = crate::catalog::find("rt-yield").unwrap();
        let text = Report::new(experiment, &recorded).to_string();
        for line in [
            "| 1 processor, many | 46.0 | failed |",
            "not measured (goal): weft, 1 processor, many: less time per operation and processor than \
             go (46.0 ns; go failed)",
            "seems missed (goal): weft, 1 processor, many: time per operation and processor of at most 30 \
             ns (46.0 ns; best sample: 32.0 ns)",
            "note: the machine was busy: others used 50 % of its processors meanwhile; do not trust",
            "note: left out, or not there: go",
            "note: go failed in 1 sample (1 processor, many): it died",
            "note: only 1 of each: too few samples",
        ] {
            assert!(text.contains(line), "{line}\nis not in\n{text}");
        }
        // A quick run has no configurations with two processors, and no expectations about them.
        assert!(!text.contains("2 processors"), "{text}");
        assert!(!Report::new(experiment, &recorded).is_as_expected());
    }

    /// Seen: `web-servers` did not mention h2o and caddy. Cause: the missing systems were those
    /// that the run lacked, and the experiment got these two later.
    #[test]
    fn a_system_without_a_sample_is_named() {
        let mut recorded = recorded(0.0);
        recorded.header.missing.clear();
        // go has no turns.
        recorded.turns.truncate(2);
        let experiment = crate::catalog::find("rt-yield").unwrap();
        let warns = |recorded: &Recorded, of: &str| {
            let warnings = Report::new(experiment, recorded).warnings();
            assert!(warnings.iter().any(|one| one == of), "{warnings:?}");
        };
        let missing = "left out, or not there: stackless, migratable, tokio, may";
        warns(&recorded, missing);
        warns(&recorded, "no sample of go");
        // Builds have the same forms under other names.
        for system in &mut recorded.header.systems {
            system.name = format!("{OLD}{}", system.name);
        }
        warns(&recorded, missing);
    }

    #[test]
    fn markdown_report() {
        let recorded = recorded(0.0);
        let experiment = crate::catalog::find("rt-yield").unwrap();
        let text = Report::new(experiment, &recorded).markdown();
        assert!(text.lines().all(|line| line.starts_with('|') || line.chars().count() <= 100));
        let text = text.replace('\n', " ");
        assert!(text.starts_with("Measured 2026-11-22 "), "{text}");
        let how = "; weft 1.0; 2 rounds, systems by turns, each asked for 0.5 s; 1 noisy sample taken again.";
        assert!(text.contains(how), "{text}");
        assert!(text.contains("| time per operation and processor, ns | weft | go |"));
        assert!(
            text.contains("| seems missed | goal | weft, 1 processor, many: time per operation")
        );
    }

    /// Seen: the page of `web-overload` had percentages of knees, and only the HTML had the knees.
    #[test]
    fn told_measures_have_a_table() {
        let experiment = crate::catalog::find("web-overload").unwrap();
        let mut recorded = recorded(0.0);
        recorded.header.experiment = experiment.name.to_owned();
        recorded.turns.truncate(1);
        let turn = &mut recorded.turns[0];
        turn.configuration = "no idle connections".to_owned();
        let figures = [("goodput_percent", 113.0), ("knee_per_s", 9000.0)];
        turn.result = TurnResult::Sample(Sample::of(figures));
        let text = Report::new(experiment, &recorded).markdown();
        let cells = |line: &str| -> Vec<String> {
            let mut lines = text.lines();
            let found = lines.find(|found| found.starts_with(line)).unwrap_or_default();
            found.split(" | ").map(|cell| cell.trim_end_matches(" |").to_owned()).collect()
        };
        // All measures of a single configuration are one table.
        for (title, figure) in [("the knee", "9,000"), ("good replies under overload", "10,170")] {
            let title = format!("{title}, per second");
            let at = cells("| no idle connections | good").iter().position(|cell| *cell == title);
            let at = at.unwrap_or_else(|| panic!("{title} is not in\n{text}"));
            assert_eq!(cells("| weft |")[at], figure, "{text}");
        }
    }

    /// Seen: tables of zeros only, of failed requests.
    #[test]
    fn no_table_of_zeros() {
        let experiment = crate::catalog::find("web-disk").unwrap();
        let mut recorded = recorded(0.0);
        recorded.header.experiment = experiment.name.to_owned();
        recorded.header.systems.truncate(1);
        recorded.turns.truncate(2);
        for (turn, at) in
            recorded.turns.iter_mut().zip(["the disk as it is", "1,000 reads per second"])
        {
            turn.configuration = at.to_owned();
            turn.result = TurnResult::Sample(Sample::of([("error_percent", 0.0), ("p99_us", 1.0)]));
        }
        let said = |recorded: &Recorded| Report::new(experiment, recorded).markdown();
        assert!(said(&recorded).contains("\n\nNo requests that failed in any sample.\n\n"));
        // Seen: the same with a failed sample, which is no zero.
        let mut failed = recorded.clone();
        failed.turns.push(Record { round: 1, ..failed.turns[0].clone() });
        failed.turns[2].result = TurnResult::Failed("it died".to_owned());
        assert!(said(&failed).contains("| requests that failed, % |"));
        let TurnResult::Sample(sample) = &mut recorded.turns[0].result else { unreachable!() };
        sample.add([("error_percent", 0.5)]);
        assert!(said(&recorded).contains("| requests that failed, % |"));
    }

    /// Seen: "0.3 s each" for samples of ten seconds. Cause: an experiment multiplies the run's
    /// sample time, and the receipt used that time. Cure: a sample records its length.
    #[test]
    fn receipt_of_server_samples() {
        let experiment = crate::catalog::find("netstack-congestion").unwrap();
        let mut recorded = recorded(0.0);
        recorded.header.experiment = experiment.name.to_owned();
        recorded.turns.truncate(2);
        let configurations = ["CUBIC, 0 % lost", "CUBIC, 1 % lost"];
        let say = |recorded: &Recorded, lasted: &str| {
            let text = Report::new(experiment, recorded).receipt(true);
            let how = format!("2 rounds, systems by turns{lasted}; 1 noisy sample");
            assert!(text.contains(&how), "{text}");
        };
        for (turn, configuration) in recorded.turns.iter_mut().zip(configurations) {
            turn.configuration = configuration.to_owned();
        }
        say(&recorded, "");
        for (turn, lasted_s) in recorded.turns.iter_mut().zip([1.2004, 10.01]) {
            let TurnResult::Sample(sample) = &mut turn.result else {
                panic!("{:?}", turn.result);
            };
            sample.values.insert(LASTED_S.to_owned(), lasted_s);
        }
        say(&recorded, ", 1.2 to 10 s each");
        recorded.turns.truncate(1);
        say(&recorded, ", 1.2 s each");
        // Seen: "2 rounds" where the budget allowed only one.
        let text = Report::new(experiment, &recorded).receipt(true);
        assert!(text.contains("; 1 of 2 rounds, systems by turns"), "{text}");
    }

    /// Seen: "each asked for 0.3 s" for programs that start their fibers, end them, and end.
    #[test]
    fn receipt_of_programs_that_end() {
        for (name, configuration) in [("rt-memory", "10,000 fibers"), ("rt-transfer", "exhaust")] {
            let experiment = crate::catalog::find(name).unwrap();
            let mut recorded = recorded(0.0);
            recorded.header.experiment = name.to_owned();
            recorded.turns.truncate(1);
            recorded.turns[0].configuration = configuration.to_owned();
            let text = Report::new(experiment, &recorded).receipt(true);
            let how = "2 rounds, systems by turns, each until its work is done; 1 noisy sample";
            assert!(text.contains(how), "{text}");
        }
    }

    /// Seen: "waited for a core: 19.3 % of the time" in `web-cold`, as if others had disturbed it.
    /// Cause: its own two generators share a core. Cure: it is shown only if others are the cause.
    #[test]
    fn waiting_on_shared_cores() {
        let receipt = |name: &str, configuration: &str| {
            let experiment = crate::catalog::find(name).unwrap();
            let mut recorded = recorded(0.0);
            recorded.header.experiment = name.to_owned();
            recorded.turns.truncate(1);
            let turn = &mut recorded.turns[0];
            turn.configuration = configuration.to_owned();
            let TurnResult::Sample(sample) = &mut turn.result else {
                panic!("{:?}", turn.result);
            };
            sample.noise.run_delay_percent = 19.3;
            Report::new(experiment, &recorded).receipt(true)
        };
        let told = receipt("web-rows", "400 B, 64 connections");
        let how = "; waited for a core: 19.3 % of the time";
        assert!(told.contains(how), "{told}");
        let told = receipt("web-disk", "the disk as it is");
        assert!(!told.contains("waited for a core"), "{told}");
    }

    /// Seen: tables of six servers, with 140 columns, wrapped unreadably by the terminal.
    #[test]
    fn wide_table_in_parts() {
        struct Shown(Vec<Vec<String>>);
        impl std::fmt::Display for Shown {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                super::write_table(f, &self.0)
            }
        }
        let line = |first: &str| {
            let figures = (1..=9).map(|number| format!("{number}.00 (0.90-10.0)"));
            [first.to_owned()].into_iter().chain(figures).collect()
        };
        let text = Shown(vec![line(""), line("a configuration")]).to_string();
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest.unwrap() <= super::COLUMNS, "{text}");
        for number in 1..=9 {
            let figure = format!(" {number}.00 (");
            assert_eq!(text.matches(&figure).count(), 2, "{text}");
        }
        assert_eq!(text.matches("| a configuration |").count(), 3, "{text}");
    }

    #[test]
    fn summary_counts_verdicts() {
        let recorded = recorded(0.0);
        let experiment = crate::catalog::find("rt-yield").unwrap();
        let text = summary(&[Report::new(experiment, &recorded)], "pages");
        let line = text.lines().nth(2).unwrap();
        assert!(line.starts_with("| [rt-yield](pages/rt-yield.md) | each fiber"), "{line}");
        assert!(line.ends_with(" |  |  |  |  | 1 | 2 |"), "{line}");
    }

    /// Seen: pages with dozens of lines in which every server has the offered rate.
    #[test]
    fn rates_that_are_alike_have_no_line() {
        let experiment = crate::catalog::find("web-throughput").unwrap();
        let mut recorded = recorded(0.0);
        recorded.header.quick = false;
        recorded.header.peak_per_s = Some(1000.0);
        let labels = ["40 % of the peak", "80 % of the peak", "100 % of the peak"];
        let rates = [[400.0, 400.5], [800.0, 700.0], [900.0, 905.0]];
        let turns = labels.iter().zip(rates).flat_map(|(label, rates)| {
            ["weft", "go"].into_iter().zip(rates).map(|(system, rate)| Record {
                configuration: (*label).to_owned(),
                system: system.to_owned(),
                round: 0,
                result: TurnResult::Sample(Sample::of([("rate_per_s", rate), ("p50_us", 1.0)])),
            })
        });
        recorded.turns = turns.collect();
        let report = Report::new(experiment, &recorded);
        let alike = report.alike(&Measure::RATE);
        assert_eq!(alike, [(labels[0], "400".to_owned()), (labels[2], "900".to_owned())]);
        assert_eq!(report.alike(&Measure::P50), []);
        let text = report.markdown();
        assert!(text.contains("\n| weft | 800 |\n| go | 700 |\n"), "{text}");
    }
}
