//! The report as one HTML file that needs no network: figures, tables, verdicts, method, machine,
//! and the raw samples. Figures and samples are compressed, and unpacked when they are viewed, so
//! that the page loads at once, whatever its size.

use std::fmt::Write as _;
use std::io::Write as _;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use flate2::Compression;
use flate2::write::GzEncoder;

use super::Report;
use super::headline::headlines;
use super::svg::{self, draw, escape};
use crate::card::Card;
use crate::expect::{Judgement, Tally, in_words, show_times};
use crate::measure::{Better, Measure};
use crate::numbers::{show, show_ratio, with_unit};
use crate::page::{FOUND, REASONS, THREATS};
use crate::rows::show_row;

const STYLE: &str = include_str!("page.css");

/// Script that unpacks figures, and saves them and the raw samples, without a server.
const SCRIPT: &str = include_str!("page.js");

/// List of the papers, and words for a reader who knows neither them nor this project.
/// docs/glossary.md has more.
const WORDS: &str = include_str!("words.html");

/// All reports as one page.
pub fn html(reports: &[Report<'_>]) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>weft lab: report</title><style>{}</style><style>{STYLE}</style></head><body>\n\
         <h1>weft lab: report</h1>\n\
         <noscript><p class=\"notes\">Figures need JavaScript; weft lab report --figures DIR writes \
         them as SVG.</p></noscript>{}<nav><ol>",
        svg::STYLE,
        summary(reports)
    );
    for report in reports {
        let name = report.experiment.name;
        let about = escape(report.experiment.about);
        let _ = write!(page, "<li><a href=\"#{name}\">{name}</a>: {about}</li>");
    }
    page.push_str("</ol></nav>\n");
    for report in reports {
        section(&mut page, report);
    }
    let _ = writeln!(page, "<script>{SCRIPT}</script></body></html>");
    page
}

fn summary(reports: &[Report<'_>]) -> String {
    let (computed, measured): (Vec<&Report<'_>>, Vec<&Report<'_>>) =
        reports.iter().partition(|report| report.is_computed());
    let tally = Tally::of(measured.iter().flat_map(|report| &report.expectations));
    let made = Tally::of(computed.iter().flat_map(|report| &report.expectations));
    let files = match made.findings {
        0 => String::new(),
        all => format!(
            "{} of {all} figures of the papers' files are those of the generated ones. ",
            made.seen
        ),
    };
    format!(
        "{}<p class=\"about\">{} {files}{}</p>\n\
         <p class=\"soft\">A figure is the median of its samples, with the least and the greatest in \
         parentheses where there are five or more; a sample without a figure is worse than any. Below it stands what part of the first system's figure that is, or how many \
         times as much; that of the best samples is steadier on a machine with neighbours.</p>\n\
         {WORDS}",
        beside_others(reports),
        tally.sentences(),
        escape(&machines(reports))
    )
}

/// The machine of all samples. A folder may have those of several.
fn machines(reports: &[Report<'_>]) -> String {
    let mut machines: Vec<&str> = Vec::new();
    for report in reports {
        let machine = &*report.recorded.header.card.machine;
        if !machines.contains(&machine) {
            machines.push(machine);
        }
    }
    let named = machines.join("; ");
    match machines.len() {
        ..=1 => format!("{named}."),
        _ => format!("Measured on machines that are not to be compared: {named}."),
    }
}

/// The first table: a ratio beside each well-known program, and where it is told.
fn beside_others(reports: &[Report<'_>]) -> String {
    let lines = headlines(reports).into_iter().map(|it| {
        let of_configurations = match it.configurations {
            1 => String::new(),
            configurations => {
                let [least, greatest] = [&it.least, &it.greatest].map(|(lead, label)| {
                    format!("{} ({})", words_of(*lead, it.measure), escape(label))
                });
                format!("<small>{least} to {greatest}; {configurations} configurations</small>")
            }
        };
        let name = it.experiment;
        let median = words_of(it.median, it.measure);
        format!(
            "<tr><td>{} beside {}</td><td>{median}{of_configurations}</td><td>{}</td>\
             <td><a href=\"#{name}\">{name}</a></td></tr>",
            escape(it.system),
            escape(it.rival),
            escape(it.measure.title)
        )
    });
    let lines: String = lines.collect();
    if lines.is_empty() {
        return lines;
    }
    format!(
        "<div class=\"scroll\"><table><thead><tr><th></th><th>the median configuration</th><th>measured by\
         </th><th>page</th></tr></thead><tbody>{lines}</tbody></table></div>\n"
    )
}

/// `1.50× less`.
fn words_of(lead: f64, measure: &Measure) -> String {
    let (word, factor) = in_words(lead, measure.better);
    format!("{}× {word}", show_times(factor))
}

fn section(page: &mut String, report: &Report<'_>) {
    let experiment = report.experiment;
    let name = experiment.name;
    let about = escape(experiment.about);
    let _ = write!(page, "<section id=\"{name}\"><h2>{name}</h2><p class=\"about\">{about}</p>");
    paragraphs(page, experiment.question());
    let warnings = report.warnings();
    if !warnings.is_empty() {
        page.push_str("<div class=\"notes\">");
        for warning in warnings {
            let _ = write!(page, "<p>{}</p>", escape(&warning));
        }
        page.push_str("</div>");
    }
    let figures = experiment.figures.iter().map(|figure| draw(report, figure));
    let figures: Vec<String> = figures.collect();
    for (at, svg) in figures.iter().enumerate() {
        let file = svg::file_name(name, at);
        let place = match svg::size_of(svg) {
            Some((width, height)) => format!(" style=\"aspect-ratio:{width}/{height}\""),
            None => String::new(),
        };
        let _ = write!(
            page,
            "<figure data-at=\"{at}\"><div class=\"drawing\"{place}></div>\
             <button data-figure=\"{file}\">Save as PNG</button></figure>"
        );
    }
    verdicts(page, report);
    for title in [FOUND, THREATS] {
        let _ = write!(page, "<h3>{title}</h3>");
        paragraphs(page, experiment.section(title));
    }
    let [first, others @ ..] = experiment.measures else {
        unreachable!("an experiment measures something");
    };
    table(page, report, first);
    if !others.is_empty() {
        page.push_str("<details><summary>All other figures</summary>");
        others.iter().for_each(|measure| table(page, report, measure));
        page.push_str("</details>");
    }
    method(page, report);
    let header = &report.recorded.header;
    let raw = serde_json::json!({"run": header, "turns": report.recorded.turns});
    let packed = packed(&serde_json::json!({"figures": figures, "raw": raw}).to_string());
    let _ = writeln!(
        page,
        "<script type=\"text/plain\" id=\"packed-{name}\">{packed}</script></section>"
    );
}

fn verdicts(page: &mut String, report: &Report<'_>) {
    if report.expectations.is_empty() {
        return;
    }
    page.push_str("<h3>What was expected</h3><ul class=\"verdicts\">");
    for expectation in &report.expectations {
        let class = match expectation.verdict {
            Judgement::Met => "met",
            Judgement::Equal => "equal",
            Judgement::Failed => "failed",
            Judgement::NotMeasured => "not_measured",
        };
        let class = if expectation.is_sure { class } else { "not_measured" };
        let words = expectation.words();
        let source = expectation.source.word();
        let says = escape(&expectation.says);
        let because = escape(&expectation.because);
        let _ = write!(
            page,
            "<li><b class=\"{class}\">{words}</b> <i>{source}</i> {says}<small>{because}</small></li>"
        );
    }
    page.push_str("</ul>");
    let reasons = report.experiment.section(REASONS);
    if !report.is_as_expected() && !reasons.is_empty() {
        let _ = write!(page, "<h3>{REASONS}</h3>");
        paragraphs(page, reasons);
    }
}

/// Writes paragraphs, which are separated by empty lines.
fn paragraphs(page: &mut String, text: &str) {
    for paragraph in text.split("\n\n") {
        let _ = write!(page, "<p>{}</p>", escape(paragraph));
    }
}

fn table(page: &mut String, report: &Report<'_>, measure: &Measure) {
    let systems = report.rows.systems();
    let scale = report.rows.scale(measure);
    let title = escape(measure.title);
    let unit = escape(scale.unit);
    let _ =
        write!(page, "<h3>{title}, {unit}</h3><div class=\"scroll\"><table><thead><tr><th></th>");
    for system in &systems {
        let _ = write!(page, "<th>{}</th>", escape(system));
    }
    page.push_str("</tr></thead><tbody>");
    let first_name = systems.first().map_or(String::new(), |name| escape(name));
    for configuration in report.rows.configurations() {
        let _ = write!(page, "<tr><td>{}</td>", escape(&configuration.label));
        for system in &systems {
            let shown = show_row(report.rows.find(&configuration.label, system), measure, scale);
            let ratio = report.rows.ratio(measure, &configuration.label, system, systems[0]);
            let is_compared = *system != systems[0] && measure.better != Better::Neither;
            // A ratio to zero is left out.
            let ratio = ratio
                .filter(|ratio| is_compared && ratio.medians.is_finite() && ratio.best.is_finite());
            let ratio = ratio.map_or(String::new(), |ratio| {
                let [medians, best] = [ratio.medians, ratio.best].map(show_ratio);
                format!("<small>{medians} of {first_name}’s (best samples: {best})</small>")
            });
            let _ = write!(page, "<td>{}{ratio}</td>", escape(&shown));
        }
        page.push_str("</tr>");
    }
    page.push_str("</tbody></table></div>");
}

fn method(page: &mut String, report: &Report<'_>) {
    let header = &report.recorded.header;
    let _ = write!(
        page,
        "<details><summary>How it was measured</summary><p>{}</p>\
         <p>Each sample is a fresh process. The systems of a configuration take turns, and each round begins \
         with another one. A sample that other programs disturbed for more than 8 % of the time is \
         taken again, up to two times. {} samples in all.</p>\
         <div class=\"scroll\"><table class=\"words\"><thead><tr><th>system</th><th>version</th>\
         <th>command</th></tr></thead><tbody>",
        escape(&report.receipt(true)),
        report.samples()
    );
    for system in &header.systems {
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{}</td><td><code>{}</code></td></tr>",
            escape(&system.name),
            escape(&system.version),
            escape(&system.command)
        );
    }
    page.push_str("</tbody></table></div>");
    machine(page, &header.card, report.recorded.ending.as_ref().map(|ending| &ending.card));
    let name = report.experiment.name;
    let _ = write!(
        page,
        "<p><button data-samples=\"{name}\">Save the raw samples</button></p></details>"
    );
}

/// A text, compressed, in base64, which cannot end an element.
fn packed(text: &str) -> String {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    let written = encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish());
    BASE64_STANDARD.encode(written.expect("memory takes whatever is written"))
}

fn machine(page: &mut String, before: &Card, after: Option<&Card>) {
    page.push_str(
        "<h3>The machine, before and after</h3><div class=\"scroll\"><table><thead><tr><th></th>\
         <th>before</th><th>after</th></tr></thead><tbody>",
    );
    for (at, (name, unit, figure)) in before.figures().into_iter().enumerate() {
        let said = |figure| match unit {
            "" => show(figure),
            unit => with_unit(figure, unit),
        };
        let after = after.map_or("–".to_owned(), |card| said(card.figures()[at].2));
        let _ = write!(page, "<tr><td>{name}</td><td>{}</td><td>{after}</td></tr>", said(figure));
    }
    page.push_str("</tbody></table></div>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;
    use crate::store::tests::header;
    use crate::store::{Record, Recorded, TurnResult};

    /// Seen: four reasons of web-rows, separated by empty lines, ran into one paragraph.
    #[test]
    fn an_empty_line_ends_a_paragraph() {
        let mut page = String::new();
        paragraphs(&mut page, "a < b\nand c\n\nd");
        assert_eq!(page, "<p>a &lt; b\nand c</p><p>d</p>");
    }

    /// Seen: "× 0.65, of the best 1.59", without a subject.
    #[test]
    fn a_ratio_says_of_what() {
        let mut header = header();
        let mut go = header.systems[0].clone();
        let first = go.name.clone();
        go.name = "go".to_owned();
        header.systems.push(go);
        let turn = |system: &str, seconds| {
            let values = [("ops", 1e9), ("seconds", seconds), ("ms", 1.0)];
            Record {
                configuration: "1 processor, many".to_owned(),
                system: system.to_owned(),
                round: 0,
                result: TurnResult::Sample(Sample {
                    values: values.map(|(name, value)| (name.to_owned(), value)).into(),
                    ..Sample::default()
                }),
            }
        };
        let recorded =
            Recorded { header, turns: vec![turn(&first, 20.0), turn("go", 30.0)], ending: None };
        let experiment = crate::catalog::find("rt-yield").unwrap();
        let page = html(&[Report::new(experiment, &recorded)]);
        let said = format!("<small>1.50 of {first}’s (best samples: 1.50)</small>");
        assert!(page.contains(&said), "{page}");
        // No comparison with go there: the page opens only with systems that it has.
        assert!(!page.contains("the median configuration"), "{page}");
    }

    #[test]
    fn headlines_come_first() {
        let mut header = header();
        let mut tokio = header.systems[0].clone();
        header.systems[0].name = "weft".to_owned();
        tokio.name = "tokio".to_owned();
        header.systems.push(tokio);
        let turn = |system: &str, configuration: &str, seconds| {
            let values = [("ops", 1e9), ("seconds", seconds), ("ms", 1.0)];
            Record {
                configuration: configuration.to_owned(),
                system: system.to_owned(),
                round: 0,
                result: TurnResult::Sample(Sample::of(values)),
            }
        };
        let many = "1 processor, many";
        let few = "1 processor, few";
        let turns = vec![
            turn("weft", many, 20.0),
            turn("tokio", many, 30.0),
            turn("weft", few, 20.0),
            turn("tokio", few, 60.0),
        ];
        let recorded = Recorded { header, turns, ending: None };
        let experiment = crate::catalog::find("rt-yield").unwrap();
        let page = html(&[Report::new(experiment, &recorded)]);
        let line = "<td>weft beside tokio</td><td>1.50× less<small>1.50× less (1 processor, many) \
                    to 3.00× less (1 processor, few); 2 configurations";
        let at = page.find(line).unwrap_or_else(|| panic!("{page}"));
        assert!(at < page.find("too few samples for a verdict").unwrap());
    }

    /// Seen: a folder with samples of two machines, and above all of them the name of the first.
    #[test]
    fn machines_of_all_reports() {
        let recorded = |machine: &str| {
            let mut header = header();
            header.card.machine = machine.to_owned();
            Recorded { header, turns: Vec::new(), ending: None }
        };
        let [here, there] = ["here", "there"].map(recorded);
        let experiment = crate::catalog::find("rt-yield").unwrap();
        let page = |all: &[&Recorded]| {
            let reports = all.iter().map(|one| Report::new(experiment, one));
            html(&reports.collect::<Vec<_>>())
        };
        let alike = page(&[&here, &here]);
        assert!(alike.contains(" here.</p>"), "{alike}");
        let differ = page(&[&here, &there]);
        assert!(differ.contains("not to be compared: here; there.</p>"), "{differ}");
    }

    /// Seen: "31 of 48 findings of the papers are seen here", of which 23 were that files are
    /// generated in the sizes that were typed in. Cure: what is computed is counted by itself.
    #[test]
    fn generated_files_are_no_findings() {
        let mut header = header();
        header.systems[0].name = "weft load".to_owned();
        let turn = Record {
            configuration: "median, KB".to_owned(),
            system: "weft load".to_owned(),
            round: 0,
            result: TurnResult::Sample(Sample::of([("differs_percent", 0.4)])),
        };
        let recorded = Recorded { header, turns: vec![turn], ending: None };
        let experiment = crate::catalog::find("page-sizes").unwrap();
        let page = html(&[Report::new(experiment, &recorded)]);
        assert!(!page.contains("findings of the papers"), "{page}");
        let said = "1 of 1 figures of the papers' files are those of the generated ones.";
        assert!(page.contains(said), "{page}");
    }

    /// Seen: a report of 7 MB, which took seconds to load. Cause: all figures and samples were in
    /// it as text. Cure: they are packed, and unpacked when they are looked at.
    #[test]
    fn figures_and_samples_are_packed() {
        let recorded = Recorded { header: header(), turns: Vec::new(), ending: None };
        let experiment = crate::catalog::find("rt-yield").unwrap();
        let report = Report::new(experiment, &recorded);
        let figure = draw(&report, &experiment.figures[0]);
        let page = html(&[report]);
        assert!(!page.contains("<svg"), "{page}");
        let (_, packed) = page.split_once("id=\"packed-rt-yield\">").unwrap();
        let (packed, _) = packed.split_once("</script>").unwrap();
        let packed = BASE64_STANDARD.decode(packed).unwrap();
        let text = std::io::read_to_string(flate2::read::GzDecoder::new(&packed[..])).unwrap();
        let unpacked: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(unpacked["figures"][0], figure);
        assert_eq!(unpacked["raw"]["run"]["experiment"], "rt-yield");
        assert!(page.contains("style=\"aspect-ratio:760/"), "{page}");
    }

    #[test]
    fn page_escapes_names() {
        let mut header = header();
        header.systems[0].name = "a<b>&\"c\"</script>".to_owned();
        header.testbed = "</script><script>alert(1)".to_owned();
        let recorded = Recorded { header, turns: Vec::new(), ending: None };
        let experiment = crate::catalog::find("rt-yield").unwrap();
        let page = html(&[Report::new(experiment, &recorded)]);
        assert!(!page.contains("http:") && !page.contains("https:"), "{page}");
        assert_eq!(page.matches("</script>").count(), 2, "one of data, one of code");
        assert!(page.contains("a&lt;b&gt;&amp;&quot;c&quot;"));
        assert!(page.contains("interrupted: this is what was found until then"));
        assert!(page.contains("The machine, before and after"));
    }
}
