//! The whole screen: rate and latency over time, while it happens.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, Paragraph};
use ratatui::{DefaultTerminal, Frame};

use ::load::Progress;
use ::load::report::{count_of, ns_of, rate_of};

/// A curve is kept for so many intervals; the oldest go.
const POINTS_MAX: usize = 3_600;

/// The screen while a load runs; dropping it gives the terminal back as it was.
pub(super) struct Screen {
    terminal: DefaultTerminal,
    seen: Seen,
    stop: Arc<AtomicBool>,
}

/// What is on the screen.
#[derive(Default)]
struct Seen {
    title: String,
    clock: String,
    offered: Vec<(f64, f64)>,
    achieved: Vec<(f64, f64)>,
    p50_ms: Vec<(f64, f64)>,
    p99_ms: Vec<(f64, f64)>,
    raw_p99_ms: Vec<(f64, f64)>,
    replies: u64,
    errors: u64,
    missed: u64,
    last: String,
    intervals: u32,
}

impl Screen {
    /// Takes the terminal. `stop` is set when the user wants to leave.
    ///
    /// # Errors
    /// When there is no terminal.
    pub(super) fn open(title: String, stop: Arc<AtomicBool>) -> io::Result<Screen> {
        // A panic gives the terminal back as well: ratatui sees to that.
        let terminal = ratatui::try_init()?;
        let mut screen = Screen {
            terminal,
            seen: Seen {
                title,
                ..Seen::default()
            },
            stop,
        };
        screen.draw();
        Ok(screen)
    }

    /// An interval is over.
    pub(super) fn tick(&mut self, progress: &Progress<'_>) {
        self.seen.add(progress);
        self.draw();
        if wants_to_leave() {
            self.stop.store(true, Ordering::Release);
        }
    }

    fn draw(&mut self) {
        // A terminal that went away is no reason to end a measurement.
        let _ = self.terminal.draw(|frame| self.seen.render(frame));
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

fn wants_to_leave() -> bool {
    let mut leave = false;
    while event::poll(Duration::ZERO).unwrap_or(false) {
        if let Ok(Event::Key(key)) = event::read() {
            let control_c =
                key.code == KeyCode::Char('c') && key.modifiers == KeyModifiers::CONTROL;
            leave |= control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc);
        }
    }
    leave
}

impl Seen {
    fn add(&mut self, progress: &Progress<'_>) {
        let (interval, tally) = (progress.interval, &progress.interval.tally);
        let per_s = |count: u64| count as f64 / interval.lasts.as_secs_f64().max(1e-9);
        let (response, service) = (tally.response_ns(), tally.service_ns());
        let [p50, p99] = [0.5, 0.99].map(|quantile| response.value_at_quantile(quantile) as f64);
        let raw_p99 = service.value_at_quantile(0.99) as f64;
        self.intervals += 1;
        let at = f64::from(self.intervals);
        push(&mut self.offered, (at, per_s(tally.intended)));
        push(&mut self.achieved, (at, per_s(tally.replies())));
        push(&mut self.p50_ms, (at, p50 / 1e6));
        push(&mut self.p99_ms, (at, p99 / 1e6));
        push(&mut self.raw_p99_ms, (at, raw_p99 / 1e6));
        self.replies += tally.replies();
        self.errors += tally.errors.total();
        self.missed += tally.missed;
        self.clock = format!(
            "{:.0} of {:.0} s",
            progress.elapsed.as_secs_f64(),
            progress.planned.as_secs_f64()
        );
        let warm = if progress.is_warm_up {
            "warming up · "
        } else {
            ""
        };
        let (rate, max) = (
            rate_of(per_s(tally.replies())),
            ns_of(response.max() as f64),
        );
        self.last = format!(
            "{warm}{rate} · p50 {} · p99 {} · raw p99 {} · max {max}",
            ns_of(p50),
            ns_of(p99),
            ns_of(raw_p99)
        );
    }

    fn render(&self, frame: &mut Frame<'_>) {
        let rows = [
            Constraint::Length(3),
            Constraint::Fill(1),
            Constraint::Fill(1),
            Constraint::Length(1),
        ];
        let [head, rates, latencies, foot] = Layout::vertical(rows).areas(frame.area());
        let totals = format!(
            "{} replies · {} errors · {} never sent",
            count_of(self.replies),
            count_of(self.errors),
            count_of(self.missed)
        );
        let title = Line::from(vec![
            self.title.clone().bold(),
            "  ".into(),
            self.clock.clone().dim(),
        ]);
        frame.render_widget(
            Paragraph::new(vec![
                title,
                Line::from(self.last.clone()),
                Line::from(totals),
            ]),
            head,
        );
        let curves = [
            ("asked", Color::DarkGray, &self.offered),
            ("replies", Color::Green, &self.achieved),
        ];
        frame.render_widget(chart(" per second ", &curves, rate_of), rates);
        let curves = [
            ("p50", Color::Cyan, &self.p50_ms),
            ("p99", Color::Yellow, &self.p99_ms),
            ("raw p99", Color::Magenta, &self.raw_p99_ms),
        ];
        frame.render_widget(
            chart(" latency ", &curves, |value| ns_of(value * 1e6)),
            latencies,
        );
        frame.render_widget(
            Line::from("q stops the run and shows what was seen").dim(),
            foot,
        );
    }
}

fn push(points: &mut Vec<(f64, f64)>, point: (f64, f64)) {
    if points.len() == POINTS_MAX {
        points.remove(0);
    }
    points.push(point);
}

type Curve<'a> = (&'static str, Color, &'a Vec<(f64, f64)>);

fn chart<'a>(title: &'static str, curves: &[Curve<'a>], show: fn(f64) -> String) -> Chart<'a> {
    let first = curves[0].2.first().map_or(0.0, |(at, _)| *at);
    let last = curves[0]
        .2
        .last()
        .map_or(1.0, |(at, _)| *at)
        .max(first + 1.0);
    let values = curves.iter().flat_map(|(_, _, points)| points.iter());
    let high = values.map(|(_, value)| *value).fold(1e-3, f64::max) * 1.1;
    let dataset = |(name, color, points): &Curve<'a>| {
        let style = Style::default().fg(*color);
        Dataset::default()
            .name(*name)
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(style)
            .data(points)
    };
    Chart::new(curves.iter().map(dataset).collect())
        .block(Block::bordered().title(title))
        .x_axis(Axis::default().bounds([first, last]))
        .y_axis(Axis::default().bounds([0.0, high]).labels([
            show(0.0),
            show(high / 2.0),
            show(high),
        ]))
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use ::load::outcome::{IntervalRecord, Tally, record};

    fn shown(seen: &Seen, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| seen.render(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        buffer.content().iter().map(|cell| cell.symbol()).collect()
    }

    fn interval(replies: u64) -> IntervalRecord {
        let mut tally = Tally::new(&["request"]);
        tally.intended = replies;
        for _ in 0..replies {
            record(&mut tally.classes[0].response_ns, 2_000_000);
            record(&mut tally.classes[0].service_ns, 1_000_000);
        }
        IntervalRecord {
            begins: Duration::ZERO,
            lasts: Duration::from_secs(1),
            tally,
        }
    }

    #[test]
    fn the_screen_shows_rate_and_both_latencies() {
        let mut seen = Seen {
            title: "GET http://h/".to_owned(),
            ..Seen::default()
        };
        let interval = interval(500);
        for second in 1..=3 {
            let (elapsed, planned) = (Duration::from_secs(second), Duration::from_secs(10));
            seen.add(&Progress {
                elapsed,
                planned,
                is_warm_up: false,
                interval: &interval,
            });
        }
        let text = shown(&seen, 100, 30);
        for part in [
            "GET http://h/",
            "3 of 10 s",
            "500/s",
            "p99 2.00 ms",
            "raw p99 1.00 ms",
            "1,500 replies",
            "q stops",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn an_empty_and_a_tiny_screen_can_be_drawn() {
        shown(&Seen::default(), 100, 30);
        shown(&Seen::default(), 3, 2);
    }

    #[test]
    fn a_long_run_keeps_a_bounded_curve() {
        let mut points = Vec::new();
        (0..POINTS_MAX + 10).for_each(|at| push(&mut points, (at as f64, 0.0)));
        assert_eq!((points.len(), points[0].0), (POINTS_MAX, 10.0));
    }
}
