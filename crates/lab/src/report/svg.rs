//! Figures: bars, and lines with bands as in the papers. Colours are classes, `s0` and so on, which
//! the page gives a value in light and in dark.

use std::fmt::Write as _;

use super::Report;
use crate::experiment::{Figure, Measure};
use crate::rows::{Spread, show};

/// Subjects beyond them share colours.
pub(super) const COLOURS: usize = 12;

const WIDTH: f64 = 760.0;

/// A figure as SVG, with its title.
pub(super) fn draw(report: &Report<'_>, figure: &Figure) -> (String, String) {
    match *figure {
        Figure::Bars { measure } => bars(report, &report.experiment.measures[measure]),
        Figure::Lines {
            measure,
            over,
            axis,
            log,
            diagonal,
            panels,
        } => {
            let measure = &report.experiment.measures[measure];
            let chart = Chart {
                report,
                measure,
                along: Along::Parameter(over),
                axis,
                log,
                diagonal,
            };
            chart.draw(panels)
        }
        Figure::Course { measure, panels } => {
            let chart = Chart {
                report,
                measure: &report.experiment.measures[measure],
                along: Along::Time,
                axis: "seconds",
                log: false,
                diagonal: false,
            };
            chart.draw(Some((panels, "")))
        }
    }
}

fn bars(report: &Report<'_>, measure: &Measure) -> (String, String) {
    const LABELS: f64 = 150.0;
    const VALUES: f64 = 150.0;
    const BAR: f64 = 17.0;
    let (cells, subjects) = (report.rows.cells(), report.rows.subjects());
    let room = WIDTH - LABELS - VALUES;
    let (mut body, mut y) = (String::new(), 4.0);
    for cell in &cells {
        let spread = |subject: &str| report.rows.spread(measure, &cell.label, subject);
        let spreads = subjects.iter().filter_map(|subject| spread(subject));
        let most = spreads
            .map(|spread| spread.greatest)
            .fold(f64::MIN_POSITIVE, f64::max);
        y += 18.0;
        let _ = write!(
            body,
            r#"<text class="cell" x="0" y="{y:.0}">{}</text>"#,
            escape(&cell.label)
        );
        y += 8.0;
        for (at, subject) in subjects.iter().enumerate() {
            let Some(row) = report.rows.find(&cell.label, subject) else {
                continue;
            };
            if row.is_absent || row.samples.len() + row.failures.len() == 0 {
                continue;
            }
            let text_y = y + BAR * 0.72;
            let name = escape(subject);
            let _ = write!(
                body,
                r#"<text class="label" x="{:.0}" y="{text_y:.1}" text-anchor="end">{name}</text>"#,
                LABELS - 8.0
            );
            match row.spread(measure) {
                Some(spread) => bar(&mut body, at, (LABELS, y, BAR), room / most, spread),
                None => {
                    let why = if row.failures.is_empty() {
                        "never"
                    } else {
                        "failed"
                    };
                    let x = LABELS + 4.0;
                    let _ = write!(
                        body,
                        r#"<text class="value" x="{x}" y="{text_y:.1}">{why}</text>"#
                    );
                }
            }
            y += BAR + 3.0;
        }
    }
    let scale = if cells.len() > 1 {
        "; each group has a scale of its own"
    } else {
        ""
    };
    let title = format!("{}, {}{scale}", measure.title, measure.unit);
    (framed(WIDTH, y + 6.0, &title, &body), title)
}

fn bar(body: &mut String, at: usize, (x, y, height): (f64, f64, f64), scale: f64, spread: Spread) {
    let colour = at % COLOURS;
    let (length, from, to) = (
        spread.median * scale,
        x + spread.least * scale,
        x + spread.greatest * scale,
    );
    let (middle, text_y) = (y + height / 2.0, y + height * 0.72);
    let _ = write!(
        body,
        r#"<rect class="s{colour}" x="{x}" y="{y:.1}" width="{:.1}" height="{height}" rx="2"/>"#,
        length.max(1.0)
    );
    let mut text = show(spread.median);
    if spread.count > 1 {
        let _ = write!(
            body,
            r#"<path class="whisker" d="M{from:.1} {middle:.1}H{to:.1}M{from:.1} {:.1}v6M{to:.1} {:.1}v6"/>"#,
            middle - 3.0,
            middle - 3.0
        );
        let _ = write!(text, " ({}–{})", show(spread.least), show(spread.greatest));
    }
    let x = to.max(x + length) + 8.0;
    let _ = write!(
        body,
        r#"<text class="value" x="{x:.1}" y="{text_y:.1}">{text}</text>"#
    );
}

/// What the horizontal axis is.
#[derive(Clone, Copy)]
enum Along {
    /// Of the cells.
    Parameter(&'static str),
    /// Of the samples.
    Time,
}

/// A figure over a parameter, or over time.
struct Chart<'a> {
    report: &'a Report<'a>,
    measure: &'a Measure,
    along: Along,
    axis: &'static str,
    log: bool,
    diagonal: bool,
}

/// Where a panel lies, and what it shows.
struct Panel {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
    x: (f64, f64),
    y: (f64, f64),
    log: bool,
}

impl Panel {
    fn x(&self, value: f64) -> f64 {
        self.left + (value - self.x.0) / (self.x.1 - self.x.0) * self.width
    }

    fn y(&self, value: f64) -> f64 {
        let place = match self.log {
            true => (value.max(self.y.0) / self.y.0).ln() / (self.y.1 / self.y.0).ln(),
            false => (value - self.y.0) / (self.y.1 - self.y.0),
        };
        self.top + self.height * (1.0 - place)
    }
}

impl Chart<'_> {
    fn draw(&self, panels: Option<(&'static str, &'static str)>) -> (String, String) {
        let mut values: Vec<u64> = panels.map_or(vec![0], |(parameter, _)| {
            let cells = self.report.rows.cells();
            cells
                .iter()
                .filter_map(|cell| cell.parameter(parameter))
                .collect()
        });
        values.sort_unstable();
        values.dedup();
        let columns = values.len().clamp(1, 2);
        let (gap, left, height) = (64.0, 70.0, if columns > 1 { 200.0 } else { 300.0 });
        let width = (WIDTH - left - 16.0 - gap * (columns - 1) as f64) / columns as f64;
        let (extent, mut body) = (self.extent(), String::new());
        let legend = self.legend(&mut body);
        let mut bottom = legend;
        for (at, value) in values.iter().enumerate() {
            let (row, column) = (at / columns, at % columns);
            let panel = Panel {
                left: left + column as f64 * (width + gap),
                top: legend + 34.0 + row as f64 * (height + 76.0),
                width,
                height,
                x: extent.0,
                y: extent.1,
                log: self.log,
            };
            if let Some((name, words)) = panels {
                let (x, y) = (panel.left, panel.top - 8.0);
                let title = escape(&self.panel_title(name, *value, words));
                let _ = write!(body, r#"<text class="cell" x="{x}" y="{y}">{title}</text>"#);
            }
            self.axes(&mut body, &panel);
            let is_here = |label: &str| {
                let cells = self.report.rows.cells();
                let cell = cells.iter().find(|cell| cell.label == label);
                panels.is_none_or(|(name, _)| {
                    cell.is_some_and(|cell| cell.parameter(name) == Some(*value))
                })
            };
            self.lines(&mut body, &panel, is_here);
            bottom = panel.top + height + 46.0;
        }
        let log = if self.log { ", logarithmic" } else { "" };
        let title = format!(
            "{}, {}{log}, over {}",
            self.measure.title, self.measure.unit, self.axis
        );
        (framed(WIDTH, bottom, &title, &body), title)
    }

    /// "1000 idle connections"; without words what the cells' labels begin with.
    fn panel_title(&self, parameter: &str, value: u64, words: &str) -> String {
        if !words.is_empty() {
            return format!("{} {words}", show(value as f64));
        }
        let cells = self.report.rows.cells();
        let cell = cells
            .iter()
            .find(|cell| cell.parameter(parameter) == Some(value));
        let label = cell.map_or("", |cell| &cell.label);
        label.split(':').next().unwrap_or_default().to_owned()
    }

    fn points(&self, subject: &str, is_here: impl Fn(&str) -> bool) -> Vec<(f64, Spread)> {
        let rows = &self.report.rows;
        let cells = rows.cells().into_iter();
        let cells = cells.filter(|cell| is_here(&cell.label));
        let points = cells.flat_map(|cell| match self.along {
            Along::Time => rows.course(self.measure, &cell.label, subject),
            Along::Parameter(over) => {
                let spread = rows.spread(self.measure, &cell.label, subject);
                let point = cell.parameter(over).zip(spread);
                point
                    .map(|(x, spread)| (x as f64, spread))
                    .into_iter()
                    .collect()
            }
        });
        let mut points: Vec<(f64, Spread)> = points.collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    }

    /// What both axes must hold.
    fn extent(&self) -> ((f64, f64), (f64, f64)) {
        let subjects = self.report.rows.subjects();
        let points: Vec<_> = subjects
            .iter()
            .flat_map(|subject| self.points(subject, |_| true))
            .collect();
        let x_most = points.iter().map(|(x, _)| *x).fold(1e-9, f64::max);
        let y_most = points
            .iter()
            .map(|(_, spread)| spread.greatest)
            .fold(1e-9, f64::max);
        let least = points
            .iter()
            .map(|(_, spread)| spread.least)
            .filter(|&least| least > 0.0);
        let y_least = match self.log {
            true => 10_f64.powf(least.fold(f64::MAX, f64::min).min(y_most).log10().floor()),
            false => 0.0,
        };
        let y_most = match self.log {
            true => 10_f64.powf(y_most.log10().ceil()).max(y_least * 10.0),
            false => y_most * 1.05,
        };
        ((0.0, x_most * 1.03), (y_least, y_most))
    }

    fn legend(&self, body: &mut String) -> f64 {
        let (mut x, mut y) = (8.0, 16.0);
        for (at, subject) in self.report.rows.subjects().iter().enumerate() {
            let width = 40.0 + 7.4 * subject.chars().count() as f64;
            if x + width > WIDTH {
                (x, y) = (8.0, y + 20.0);
            }
            let (colour, name) = (at % COLOURS, escape(subject));
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

    fn axes(&self, body: &mut String, panel: &Panel) {
        let bottom = panel.top + panel.height;
        for tick in ticks(panel.x.1, 6) {
            let x = panel.x(tick);
            let _ = write!(
                body,
                r#"<path class="grid" d="M{x:.1} {:.1}V{bottom:.1}"/><text class="tick" x="{x:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
                panel.top,
                bottom + 16.0,
                short(tick)
            );
        }
        let y_ticks = if panel.log {
            decades(panel.y)
        } else {
            ticks(panel.y.1, 5)
        };
        for tick in y_ticks {
            let (y, right) = (panel.y(tick), panel.left + panel.width);
            let _ = write!(
                body,
                r#"<path class="grid" d="M{:.1} {y:.1}H{right:.1}"/><text class="tick" x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
                panel.left,
                panel.left - 6.0,
                y + 4.0,
                short(tick)
            );
        }
        let (middle, y) = (panel.left + panel.width / 2.0, bottom + 36.0);
        let axis = escape(self.axis);
        let _ = write!(
            body,
            r#"<text class="label" x="{middle:.1}" y="{y:.1}" text-anchor="middle">{axis}</text>"#
        );
        let (x, middle) = (panel.left - 52.0, panel.top + panel.height / 2.0);
        let (title, unit) = (escape(self.measure.title), escape(self.measure.unit));
        let _ = write!(
            body,
            r#"<text class="label" x="{x:.1}" y="{middle:.1}" text-anchor="middle" transform="rotate(-90 {x:.1} {middle:.1})">{title}, {unit}</text>"#
        );
        if self.diagonal {
            let end = panel.x.1.min(panel.y.1);
            let (x0, y0, x1, y1) = (panel.x(0.0), panel.y(0.0), panel.x(end), panel.y(end));
            let _ = write!(
                body,
                r#"<path class="diagonal" d="M{x0:.1} {y0:.1}L{x1:.1} {y1:.1}"/>"#
            );
        }
    }

    /// As in the thesis: the median solid, the greatest dashed, the least dotted; a band between.
    fn lines(&self, body: &mut String, panel: &Panel, is_here: impl Fn(&str) -> bool) {
        for (at, subject) in self.report.rows.subjects().iter().enumerate() {
            let (points, colour) = (self.points(subject, &is_here), at % COLOURS);
            let path = |of: fn(&Spread) -> f64| {
                let points = points.iter();
                let points = points
                    .map(|(x, spread)| format!("{:.1} {:.1}", panel.x(*x), panel.y(of(spread))));
                points.collect::<Vec<_>>()
            };
            let (least, median, greatest) =
                (path(|s| s.least), path(|s| s.median), path(|s| s.greatest));
            if points.iter().any(|(_, spread)| spread.count > 1) {
                let back = greatest.iter().rev().cloned();
                let band: Vec<_> = least.iter().cloned().chain(back).collect();
                let _ = write!(
                    body,
                    r#"<path class="s{colour} band" d="M{}Z"/>"#,
                    band.join("L")
                );
                for (class, line) in [("least", &least), ("greatest", &greatest)] {
                    let line = line.join("L");
                    let _ = write!(body, r#"<path class="l{colour} {class}" d="M{line}"/>"#);
                }
            }
            if !median.is_empty() {
                let line = median.join("L");
                let _ = write!(body, r#"<path class="l{colour} median" d="M{line}"/>"#);
            }
            // Over time there are too many.
            let marked = match self.along {
                Along::Parameter(_) => &points[..],
                Along::Time => &[],
            };
            for (x, spread) in marked {
                let (x, y) = (panel.x(*x), panel.y(spread.median));
                let text = escape(&format!("{subject}: {}", show(spread.median)));
                let _ = write!(
                    body,
                    r#"<circle class="s{colour}" cx="{x:.1}" cy="{y:.1}" r="3"><title>{text}</title></circle>"#
                );
            }
        }
    }
}

/// Round numbers from 0 to `most`, about `count` of them.
fn ticks(most: f64, count: usize) -> Vec<f64> {
    let raw = most / count as f64;
    let power = 10_f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|round| round * power);
    let step = step.into_iter().find(|&step| step >= raw).unwrap_or(raw);
    (0..)
        .map(|at| at as f64 * step)
        .take_while(|&tick| tick <= most * 1.0001)
        .collect()
}

/// Powers of ten.
fn decades((least, most): (f64, f64)) -> Vec<f64> {
    let (from, to) = (least.log10().round() as i32, most.log10().round() as i32);
    (from..=to).map(|power| 10_f64.powi(power)).collect()
}

/// A number on an axis.
fn short(number: f64) -> String {
    let (number, unit) = match number.abs() {
        size if size >= 1e6 => (number / 1e6, "M"),
        size if size >= 1e3 => (number / 1e3, "k"),
        _ => (number, ""),
    };
    let text = format!("{number:.2}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

fn framed(width: f64, height: f64, title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        r#"<svg viewBox="0 0 {width:.0} {height:.0}" role="img" aria-label="{title}"><title>{title}</title>{body}</svg>"#
    )
}

/// Text in markup.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_numbers() {
        assert_eq!(
            ticks(95_000.0, 5),
            [0.0, 20_000.0, 40_000.0, 60_000.0, 80_000.0]
        );
        assert_eq!(ticks(1.0, 5), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(decades((10.0, 10_000.0)), [10.0, 100.0, 1000.0, 10_000.0]);
        assert_eq!(
            [0.0, 0.5, 1500.0, 20_000.0, 2e6].map(short),
            ["0", "0.5", "1.5k", "20k", "2M"]
        );
    }

    #[test]
    fn a_logarithmic_axis_puts_equal_ratios_at_equal_distances() {
        let panel = Panel {
            left: 0.0,
            top: 0.0,
            width: 100.0,
            height: 300.0,
            x: (0.0, 10.0),
            y: (1.0, 1000.0),
            log: true,
        };
        let places = [1.0, 10.0, 100.0, 1000.0].map(|value| panel.y(value).round());
        assert_eq!(places, [300.0, 200.0, 100.0, 0.0]);
        assert_eq!(panel.y(0.0), 300.0, "what is below the axis lies on it");
        assert_eq!(panel.x(5.0), 50.0);
    }
}
