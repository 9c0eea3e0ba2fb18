//! Figures: bars, and lines with bands as in the papers. Colours are classes, `s0` and so on, whose
//! values the page defines for light and dark.

use std::fmt::Write as _;

use super::Report;
use crate::experiment::Figure;
use crate::measure::{Configuration, Measure};
use crate::numbers::{Scale, Spread, grouped, show};
use crate::rows::Row;

/// Number of colours; further systems reuse them.
pub(super) const COLOURS: usize = 12;

const WIDTH: f64 = 760.0;

/// Colours and lines of figures, in light and in dark.
pub(super) const STYLE: &str = include_str!("figure.css");

/// `web-rows`, `web-rows-2`: the figures of an experiment as files.
pub(super) fn file_name(experiment: &str, at: usize) -> String {
    match at {
        0 => experiment.to_owned(),
        _ => format!("{experiment}-{}", at + 1),
    }
}

/// All figures of an experiment as standalone SVG files: names and texts.
pub(super) fn files(report: &Report<'_>) -> Vec<(String, String)> {
    let figures = report.experiment.figures.iter().enumerate();
    let files = figures.map(|(at, figure)| {
        let svg = draw(report, figure);
        let head = "<svg xmlns=\"http://www.w3.org/2000/svg\"";
        let style = format!("<style>{STYLE}svg{{background:var(--bg)}}</style><text");
        let svg = svg.replacen("<svg", head, 1).replacen("<text", &style, 1);
        (file_name(report.experiment.name, at) + ".svg", svg + "\n")
    });
    files.collect()
}

/// Width and height of a figure, from its first element.
pub(super) fn size_of(svg: &str) -> Option<(&str, &str)> {
    let (_, size) = svg.split_once("viewBox=\"0 0 ")?;
    size.split_once('"')?.0.split_once(' ')
}

/// A figure as SVG.
pub(super) fn draw(report: &Report<'_>, figure: &Figure) -> String {
    let measure = |at: usize| &report.experiment.measures[at];
    let chart = |at, along, axis, log, diagonal| Chart {
        report,
        measure: measure(at),
        scale: report.rows.scale(measure(at)),
        along,
        axis,
        log,
        log_over: false,
        diagonal,
        marks: &[],
    };
    match *figure {
        Figure::Bars { measure: at } => bars(report, measure(at)),
        Figure::Lines { measure, over, axis, log, log_over, diagonal, panels } => {
            let chart = chart(measure, Along::Parameter(over), axis, log, diagonal);
            Chart { log_over, ..chart }.draw(panels)
        }
        Figure::Course { measure, panels, marks } => {
            let chart = chart(measure, Along::Time, "seconds", false, false);
            Chart { marks, ..chart }.draw(Some((panels, "")))
        }
    }
}

fn bars(report: &Report<'_>, measure: &Measure) -> String {
    const BAR: f64 = 17.0;
    let rows = &report.rows;
    let (configurations, systems, scale) =
        (rows.configurations(), rows.systems(), rows.scale(measure));
    let said = |row: &Row| row.show(measure, scale);
    let is_shown = |row: &&Row| !row.is_absent && row.samples.len() + row.failures.len() > 0;
    let shown = || rows.all().iter().filter(is_shown);
    let labels = widest(shown().map(|row| row.system.clone()));
    let room = WIDTH - labels - widest(shown().map(said));
    let mut body = String::new();
    let mut y = 4.0;
    for configuration in &configurations {
        let row = |system: &str| rows.find(&configuration.label, system).filter(is_shown);
        let says_something = |row: &Row| !row.failures.is_empty() || row.tells_of(measure);
        // Skip configurations in which no system has this measure.
        if !systems.iter().filter_map(|one| row(one)).any(says_something) {
            continue;
        }
        let spreads = systems.iter().filter_map(|system| row(system)?.spread(measure));
        let most = spreads.map(|spread| spread.greatest).fold(1e-9, f64::max);
        y += 18.0;
        let _ = write!(
            body,
            r#"<text class="configuration" x="0" y="{y:.0}">{}</text>"#,
            escape(&configuration.label)
        );
        y += 8.0;
        for (at, system) in systems.iter().enumerate() {
            let Some(row) = row(system) else {
                continue;
            };
            let text_y = y + BAR * 0.72;
            let _ = write!(
                body,
                r#"<text class="label" x="{:.0}" y="{text_y:.1}" text-anchor="end">{}</text>"#,
                labels - 8.0,
                escape(system)
            );
            let end = match row.spread(measure) {
                Some(spread) => bar(&mut body, at, (labels, y, BAR), room / most, spread),
                None => labels,
            };
            let _ = write!(
                body,
                r#"<text class="value" x="{:.1}" y="{text_y:.1}">{}</text>"#,
                end + 8.0,
                said(row)
            );
            y += BAR + 3.0;
        }
    }
    let scales = match configurations.len() {
        ..=1 => "",
        _ => "; each group has its own scale",
    };
    let better = measure.better.words();
    let title = format!("{}, {}{scales}{better}", measure.title, scale.unit);
    framed(y + 6.0, &title, &body)
}

/// Width of the longest of some texts, with a gap.
fn widest(texts: impl Iterator<Item = String>) -> f64 {
    let most = texts.map(|text| text.chars().count()).max().unwrap_or(0);
    // Digits and small letters of 12.5 px are 7 px wide, the widest common fonts included.
    16.0 + 7.0 * most as f64
}

/// Draws a bar and its whisker, and returns their end.
fn bar(
    body: &mut String,
    at: usize,
    (x, y, height): (f64, f64, f64),
    scale: f64,
    spread: Spread,
) -> f64 {
    let colour = at % COLOURS;
    let [length, from, to] =
        [spread.median, spread.least, spread.greatest].map(|figure| figure * scale);
    let _ = write!(
        body,
        r#"<rect class="s{colour}" x="{x}" y="{y:.1}" width="{:.1}" height="{height}" rx="2"/>"#,
        length.max(1.0)
    );
    if spread.has_band() {
        let (from, to, middle) = (x + from, x + to, y + height / 2.0);
        let top = middle - 3.0;
        let _ = write!(
            body,
            r#"<path class="whisker" d="M{from:.1} {middle:.1}H{to:.1}M{from:.1} {top:.1}v6M{to:.1} {top:.1}v6"/>"#,
        );
    }
    x + if spread.has_band() { length.max(to) } else { length }
}

/// Quantity on the horizontal axis.
#[derive(Clone, Copy)]
enum Along {
    /// A parameter of the configurations.
    Parameter(&'static str),
    /// Time within the samples.
    Time,
}

/// A figure over a parameter, or over time.
struct Chart<'a> {
    report: &'a Report<'a>,
    measure: &'a Measure,
    scale: Scale,
    along: Along,
    axis: &'static str,
    log: bool,
    log_over: bool,
    diagonal: bool,
    marks: &'static [(f64, &'static str)],
}

/// Position and range of a panel.
struct Panel {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
    x: (f64, f64),
    y: (f64, f64),
    log: bool,
    log_over: bool,
}

impl Panel {
    fn x(&self, value: f64) -> f64 {
        self.left + place(value, self.x, self.log_over) * self.width
    }

    fn y(&self, value: f64) -> f64 {
        self.top + self.height * (1.0 - place(value, self.y, self.log))
    }
}

/// Place of a value on an axis from 0 to 1.
fn place(value: f64, (from, to): (f64, f64), log: bool) -> f64 {
    if log {
        (value.max(from) / from).ln() / (to / from).ln()
    } else {
        (value - from) / (to - from)
    }
}

impl Chart<'_> {
    fn draw(&self, panels: Option<(&'static str, &'static str)>) -> String {
        let configurations = self.report.rows.configurations();
        let mut values: Vec<u64> = panels.map_or(vec![0], |(parameter, _)| {
            let values = configurations
                .iter()
                .filter_map(|configuration| configuration.parameter(parameter));
            values.collect()
        });
        values.sort_unstable();
        values.dedup();
        let columns = values.len().clamp(1, 2);
        let (gap, left, height) = (64.0, 70.0, if columns > 1 { 200.0 } else { 300.0 });
        let width = (WIDTH - left - 16.0 - gap * (columns - 1) as f64) / columns as f64;
        let extent = self.extent();
        let mut body = String::new();
        let legend = self.legend(&mut body);
        let legend = self.key(&mut body, legend);
        let mut bottom = legend;
        for (at, value) in values.iter().enumerate() {
            let row = at / columns;
            let column = at % columns;
            let panel = Panel {
                left: left + column as f64 * (width + gap),
                top: legend + 34.0 + row as f64 * (height + 76.0),
                width,
                height,
                x: extent.0,
                y: extent.1,
                log: self.log,
                log_over: self.log_over,
            };
            if let Some((name, words)) = panels {
                let x = panel.left;
                let y = panel.top - 8.0;
                let title = escape(&self.panel_title(name, *value, words));
                let _ =
                    write!(body, r#"<text class="configuration" x="{x}" y="{y}">{title}</text>"#);
            }
            self.axes(&mut body, &panel, column == 0);
            let is_here = |configuration: &Configuration| {
                panels.is_none_or(|(name, _)| configuration.parameter(name) == Some(*value))
            };
            self.lines(&mut body, &panel, is_here);
            bottom = panel.top + height + 46.0;
        }
        let log = |is_so: bool| if is_so { ", logarithmic" } else { "" };
        let title = format!(
            "{}, {}{}, over {}{}{}",
            self.measure.title,
            self.scale.unit,
            log(self.log),
            self.axis,
            log(self.log_over),
            self.measure.better.words()
        );
        framed(bottom, &title, &body)
    }

    /// "1000 idle connections"; without words, the beginning of the configurations' labels.
    fn panel_title(&self, parameter: &str, value: u64, words: &str) -> String {
        if !words.is_empty() {
            return format!("{} {words}", grouped(value as f64));
        }
        let configurations = self.report.rows.configurations();
        let configuration = configurations
            .iter()
            .find(|configuration| configuration.parameter(parameter) == Some(value));
        let label = configuration.map_or("", |configuration| &configuration.label);
        label.split(':').next().unwrap_or_default().to_owned()
    }

    fn points(&self, system: &str, is_here: impl Fn(&Configuration) -> bool) -> Vec<(f64, Spread)> {
        let rows = &self.report.rows;
        let configurations = rows.configurations().into_iter();
        let configurations = configurations.filter(|configuration| is_here(configuration));
        let points = configurations.flat_map(|configuration| match self.along {
            Along::Time => rows.course(self.measure, &configuration.label, system),
            Along::Parameter(over) => {
                let spread = rows.spread(self.measure, &configuration.label, system);
                let point = configuration.parameter(over).zip(spread).into_iter();
                point.map(|(x, spread)| (x as f64, spread)).collect()
            }
        });
        let points = points.map(|(x, spread)| (x, self.scale.apply(spread)));
        let mut points: Vec<(f64, Spread)> = points.collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    }

    fn has_bands(&self) -> bool {
        let systems = self.report.rows.systems();
        let mut points = systems.iter().flat_map(|system| self.points(system, |_| true));
        points.any(|(_, spread)| spread.has_band())
    }

    /// Ranges of both axes.
    fn extent(&self) -> ((f64, f64), (f64, f64)) {
        let systems = self.report.rows.systems();
        let points = systems.iter();
        let points = points.flat_map(|system| self.points(system, |_| true));
        let points: Vec<_> = points.collect();
        let x_most = points.iter().map(|(x, _)| *x).fold(1e-9, f64::max);
        let most = points.iter().map(|(_, spread)| match self.along {
            Along::Parameter(_) => spread.greatest,
            Along::Time => spread.median,
        });
        let y_most = most.fold(1e-9, f64::max);
        let least = points.iter().map(|(_, spread)| spread.least);
        let least = least.filter(|&least| least > 0.0);
        let y_least = if self.log {
            10_f64.powf(least.fold(f64::MAX, f64::min).min(y_most).log10().floor())
        } else {
            0.0
        };
        let y_most = if self.log {
            10_f64.powf(y_most.log10().ceil()).max(y_least * 10.0)
        } else {
            y_most * 1.05
        };
        let x_least = if self.log_over {
            points.iter().map(|(x, _)| *x).fold(x_most, f64::min) / 1.03
        } else {
            0.0
        };
        ((x_least, x_most * 1.03), (y_least, y_most))
    }

    fn legend(&self, body: &mut String) -> f64 {
        let mut x = 8.0;
        let mut y = 16.0;
        for (at, system) in self.report.rows.systems().iter().enumerate() {
            if self.points(system, |_| true).is_empty() {
                continue;
            }
            let width = 40.0 + widest([(*system).to_owned()].into_iter());
            if x + width > WIDTH {
                (x, y) = (8.0, y + 20.0);
            }
            let colour = at % COLOURS;
            let name = escape(system);
            let _ = write!(
                body,
                r#"<path class="l{colour} median" d="M{x:.0} {:.0}h20"/><text class="label" x="{:.0}" y="{y:.0}">{name}</text>"#,
                y - 4.0,
                x + 26.0
            );
            x += width;
        }
        y
    }

    /// Draws the key to line styles, for readers who do not know the papers, below `y`.
    fn key(&self, body: &mut String, y: f64) -> f64 {
        let kinds = match self.along {
            Along::Time => "the median of the samples at each moment",
            Along::Parameter(_) if !self.has_bands() => "the median of the samples",
            Along::Parameter(_) => {
                "solid: median of the samples · dashed: the greatest · dotted: the least"
            }
        };
        let diagonal = if self.diagonal { " · grey dots: as many as are asked for" } else { "" };
        let y = y + 19.0;
        let _ = write!(body, r#"<text class="tick" x="8" y="{y:.0}">{kinds}{diagonal}</text>"#);
        y
    }

    /// Values of the parameter that have a point.
    fn values(&self) -> Vec<f64> {
        let systems = self.report.rows.systems();
        let points = systems.iter().flat_map(|system| self.points(system, |_| true));
        let mut values: Vec<f64> = points.map(|(x, _)| x).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        values
    }

    fn axes(&self, body: &mut String, panel: &Panel, is_first: bool) {
        let bottom = panel.top + panel.height;
        let x_ticks = if self.log_over { self.values() } else { ticks(panel.x.1, 6) };
        for tick in x_ticks {
            let x = panel.x(tick);
            let _ = write!(
                body,
                r#"<path class="grid" d="M{x:.1} {:.1}V{bottom:.1}"/><text class="tick" x="{x:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
                panel.top,
                bottom + 16.0,
                short(tick)
            );
        }
        let y_ticks = if panel.log { decades(panel.y) } else { ticks(panel.y.1, 5) };
        for tick in y_ticks {
            let y = panel.y(tick);
            let right = panel.left + panel.width;
            let _ = write!(
                body,
                r#"<path class="grid" d="M{:.1} {y:.1}H{right:.1}"/><text class="tick" x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
                panel.left,
                panel.left - 6.0,
                y + 4.0,
                short(tick)
            );
        }
        let unit_s = self.report.recorded.header.seconds;
        for (at, says) in self.marks {
            let x = panel.x(at * unit_s);
            let top = panel.top;
            if x < panel.left + panel.width {
                let _ = write!(
                    body,
                    r#"<path class="diagonal" d="M{x:.1} {top:.1}V{bottom:.1}"/><text class="tick" x="{:.1}" y="{:.1}">{says}</text>"#,
                    x + 4.0,
                    bottom - 6.0
                );
            }
        }
        let middle = panel.left + panel.width / 2.0;
        let y = bottom + 36.0;
        let axis = escape(self.axis);
        let _ = write!(
            body,
            r#"<text class="label" x="{middle:.1}" y="{y:.1}" text-anchor="middle">{axis}</text>"#
        );
        if is_first {
            // If it would be longer than the panel, only the unit: the title has the rest.
            let whole = format!("{}, {}", self.measure.title, self.scale.unit);
            let text = if widest([whole.clone()].into_iter()) > panel.height + 40.0 {
                self.scale.unit
            } else {
                &whole
            };
            let middle = panel.top + panel.height / 2.0;
            let x = panel.left - 52.0;
            let text = escape(text);
            let _ = write!(
                body,
                r#"<text class="label" x="{x:.1}" y="{middle:.1}" text-anchor="middle" transform="rotate(-90 {x:.1} {middle:.1})">{text}</text>"#
            );
        }
        if self.diagonal {
            let end = panel.x.1.min(panel.y.1);
            let (x0, y0, x1, y1) = (panel.x(0.0), panel.y(0.0), panel.x(end), panel.y(end));
            let _ =
                write!(body, r#"<path class="diagonal" d="M{x0:.1} {y0:.1}L{x1:.1} {y1:.1}"/>"#);
        }
    }

    /// Draws the lines of the thesis: median solid, maximum dashed, minimum dotted, and a band
    /// between. Over time there are too many points for bands and marks; with few samples there is
    /// no band.
    fn lines(&self, body: &mut String, panel: &Panel, is_here: impl Fn(&Configuration) -> bool) {
        for (at, system) in self.report.rows.systems().iter().enumerate() {
            let points = self.points(system, &is_here);
            let colour = at % COLOURS;
            let path = |of: fn(&Spread) -> f64| {
                let points = points.iter();
                let points = points
                    .map(|(x, spread)| format!("{:.1} {:.1}", panel.x(*x), panel.y(of(spread))));
                points.collect::<Vec<_>>()
            };
            let (least, median, greatest) =
                (path(|s| s.least), path(|s| s.median), path(|s| s.greatest));
            let is_sparse = matches!(self.along, Along::Parameter(_));
            if is_sparse && points.iter().any(|(_, spread)| spread.has_band()) {
                let back = greatest.iter().rev().cloned();
                let band: Vec<_> = least.iter().cloned().chain(back).collect();
                let _ = write!(body, r#"<path class="s{colour} band" d="M{}Z"/>"#, band.join("L"));
                for (class, line) in [("least", &least), ("greatest", &greatest)] {
                    let line = line.join("L");
                    let _ = write!(body, r#"<path class="l{colour} {class}" d="M{line}"/>"#);
                }
            }
            if !median.is_empty() {
                let line = median.join("L");
                let _ = write!(body, r#"<path class="l{colour} median" d="M{line}"/>"#);
            }
            for (x, spread) in points.iter().filter(|_| is_sparse) {
                let x = panel.x(*x);
                let y = panel.y(spread.median);
                let text = escape(&format!("{system}: {}", show(spread.median)));
                let _ = write!(
                    body,
                    r#"<circle class="s{colour}" cx="{x:.1}" cy="{y:.1}" r="3"><title>{text}</title></circle>"#
                );
            }
        }
    }
}

/// About `count` round numbers from 0 to `most`.
fn ticks(most: f64, count: usize) -> Vec<f64> {
    let raw = most / count as f64;
    let power = 10_f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|round| round * power);
    let step = step.into_iter().find(|&step| step >= raw).unwrap_or(raw);
    (0..).map(|at| at as f64 * step).take_while(|&tick| tick <= most * 1.0001).collect()
}

/// Powers of ten.
fn decades((least, most): (f64, f64)) -> Vec<f64> {
    let from = least.log10().round() as i32;
    let to = most.log10().round() as i32;
    (from..=to).map(|power| 10_f64.powi(power)).collect()
}

/// A number on an axis.
fn short(number: f64) -> String {
    let (number, unit) = match number.abs() {
        size if size >= 1e6 => (number / 1e6, "M"),
        size if size >= 1e3 => (number / 1e3, "k"),
        _ => (number, ""),
    };
    let text = format!("{number:.6}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// The drawing with its title above it.
fn framed(height: f64, title: &str, body: &str) -> String {
    const TITLE: f64 = 26.0;
    let title = escape(title);
    let height = height + TITLE;
    format!(
        r#"<svg viewBox="0 0 {WIDTH:.0} {height:.0}" role="img" aria-label="{title}"><text class="title" x="0" y="14">{title}</text><g transform="translate(0 {TITLE})">{body}</g></svg>"#
    )
}

/// Escapes text for markup.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_numbers() {
        assert_eq!(ticks(95_000.0, 5), [0.0, 20_000.0, 40_000.0, 60_000.0, 80_000.0]);
        assert_eq!(ticks(1.0, 5), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(decades((10.0, 10_000.0)), [10.0, 100.0, 1000.0, 10_000.0]);
        assert_eq!(
            [0.0, 0.001, 0.5, 1500.0, 20_000.0, 2e6].map(short),
            ["0", "0.001", "0.5", "1.5k", "20k", "2M"]
        );
    }

    #[test]
    fn logarithmic_axis() {
        let panel = Panel {
            left: 0.0,
            top: 0.0,
            width: 100.0,
            height: 300.0,
            x: (0.0, 10.0),
            y: (1.0, 1000.0),
            log: true,
            log_over: false,
        };
        let places = [1.0, 10.0, 100.0, 1000.0].map(|value| panel.y(value).round());
        assert_eq!(places, [300.0, 200.0, 100.0, 0.0]);
        assert_eq!(panel.y(0.0), 300.0, "what is below the axis lies on it");
        assert_eq!(panel.x(5.0), 50.0);
    }

    /// Seen: 28 of 470 figures behind bars were cut off at the right edge, and "1.00 ready at a
    /// time" was the title of a panel. Cause: fixed space for figures of any length, and counts
    /// formatted as measures. Cure: space for the longest.
    #[test]
    fn figures_keep_texts_inside() {
        use std::path::Path;

        let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results");
        let mut count = 0;
        for experiment in crate::catalog::CATALOG {
            let file = crate::samples_file(&results, experiment.name);
            let Some(recorded) = crate::Recorded::read(&file).unwrap() else {
                continue;
            };
            let report = Report::new(experiment, &recorded);
            for (name, svg) in files(&report) {
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{name}: {svg}");
                let level = svg.split("<text ").skip(1);
                for text in level.filter(|text| !text.contains("rotate")) {
                    let (left, right) = ends_of(text);
                    let is_inside = left >= -1.0 && right <= WIDTH + 1.0;
                    assert!(is_inside, "{name}: {left:.0} to {right:.0}: {text}");
                    count += 1;
                }
                assert!(!svg.contains(">1.00 ready"), "{name}");
            }
        }
        assert!(count > 1000, "{count} texts");
    }

    /// Seen: of the packets of netstack-mtu those of 128, 256 and 512 bytes lay on 4 % of the axis.
    /// Cause: it was linear, up to 9,000. Cure: such an axis is logarithmic.
    #[test]
    fn small_packets_lie_apart() {
        use std::path::Path;

        let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results");
        let mut experiments = crate::catalog::CATALOG.iter();
        let experiment = experiments.find(|one| one.name == "netstack-mtu").unwrap();
        let file = crate::samples_file(&results, experiment.name);
        let recorded = crate::Recorded::read(&file).unwrap().unwrap();
        for (name, svg) in files(&Report::new(experiment, &recorded)) {
            let circles = svg.split("cx=\"").skip(1);
            let places = circles.map(|circle| circle.split_once('"').unwrap().0.parse().unwrap());
            let mut places: Vec<f64> = places.collect();
            places.sort_by(f64::total_cmp);
            places.dedup();
            assert!(places.len() >= 5, "{name}: {places:?}");
            let is_apart = |pair: &[f64]| pair[1] - pair[0] > 30.0;
            assert!(places.windows(2).all(is_apart), "{name}: {places:?}");
        }
    }

    /// Start and end of a text, with the letter widths of DejaVu Sans.
    fn ends_of(text: &str) -> (f64, f64) {
        let attribute = |name: &str| {
            let (_, behind) = text.split_once(&format!("{name}=\""))?;
            Some(behind.split_once('"')?.0)
        };
        let x: f64 = attribute("x").unwrap().parse().unwrap();
        let (_, words) = text.split_once('>').unwrap();
        let (words, _) = words.split_once('<').unwrap();
        let width = 6.7 * words.chars().count() as f64;
        match attribute("text-anchor") {
            Some("end") => (x - width, x),
            Some(_) => (x - width / 2.0, x + width / 2.0),
            None => (x, x + width),
        }
    }
}
