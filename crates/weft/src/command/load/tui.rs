//! The whole screen: rate and latency over time, while it happens.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, Paragraph};
use ratatui::{DefaultTerminal, Frame};
use signal_hook::consts::signal::SIGINT;

use ::load::Progress;
use ::load::report::{count_of, ns_of, rate_of};

/// A curve is kept for so many intervals; the oldest go.
const POINTS_MAX: usize = 3_600;
/// A chart's borders, and two rows between them.
const CHART_ROWS_MIN: u16 = 4;

/// How often keys and the terminal's size are looked at.
const LOOK: Duration = Duration::from_millis(100);

/// The screen while a load runs; dropping it gives the terminal back as it was.
pub(super) struct Screen {
    drawing: Arc<Mutex<Drawing>>,
    is_over: Arc<AtomicBool>,
    keys: Option<JoinHandle<()>>,
}

struct Drawing {
    terminal: DefaultTerminal,
    seen: Seen,
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
}

impl Screen {
    /// Takes the terminal. `stop` is set when the user wants to leave; Ctrl-C is SIGINT, as
    /// elsewhere.
    ///
    /// # Errors
    /// When there is no terminal.
    pub(super) fn open(title: String, stop: Arc<AtomicBool>) -> io::Result<Screen> {
        // A panic gives the terminal back as well: ratatui sees to that.
        let terminal = ratatui::try_init()?;
        let seen = Seen {
            title,
            ..Seen::default()
        };
        let drawing = Arc::new(Mutex::new(Drawing { terminal, seen }));
        let is_over = Arc::<AtomicBool>::default();
        lock(&drawing).draw();
        let keys = {
            let (drawing, is_over) = (Arc::clone(&drawing), Arc::clone(&is_over));
            thread::Builder::new()
                .name("keys".to_owned())
                .spawn(move || follow_keys(&drawing, &is_over, &stop))?
        };
        Ok(Screen {
            drawing,
            is_over,
            keys: Some(keys),
        })
    }

    /// An interval is over.
    pub(super) fn tick(&mut self, progress: &Progress<'_>) {
        let mut drawing = lock(&self.drawing);
        drawing.seen.add(progress);
        if !self.is_over.load(Ordering::Acquire) {
            drawing.draw();
        }
    }
}

impl Drawing {
    fn draw(&mut self) {
        // A measurement goes on when its terminal goes away.
        let _ = self.terminal.draw(|frame| self.seen.render(frame));
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let was_left = self.is_over.swap(true, Ordering::AcqRel);
        if let Some(keys) = self.keys.take() {
            // The thread checks every tenth of a second; its panic has been shown already.
            let _ = keys.join();
        }
        if !was_left {
            ratatui::restore();
        }
    }
}

/// After a panic while drawing, the next drawing repairs the screen.
fn lock(drawing: &Mutex<Drawing>) -> MutexGuard<'_, Drawing> {
    drawing.lock().unwrap_or_else(PoisonError::into_inner)
}

fn follow_keys(drawing: &Mutex<Drawing>, is_over: &AtomicBool, stop: &AtomicBool) {
    while !is_over.load(Ordering::Acquire) {
        if !event::poll(LOOK).unwrap_or(false) {
            continue;
        }
        match event::read().map(wish_of) {
            Ok(Wish::Nothing) => {}
            Ok(Wish::Draw) => lock(drawing).draw(),
            Ok(Wish::Leave) => stop.store(true, Ordering::Release),
            Ok(Wish::Interrupt) => {
                // The screen goes first: a signal that is not handled ends the process.
                let _drawing = lock(drawing);
                is_over.store(true, Ordering::Release);
                ratatui::restore();
                let _ = signal_hook::low_level::raise(SIGINT);
            }
            // A terminal that is gone sends nothing any more.
            Err(_) => return,
        }
    }
}

#[derive(Debug, PartialEq)]
enum Wish {
    Nothing,
    Draw,
    Leave,
    Interrupt,
}

fn wish_of(event: Event) -> Wish {
    match event {
        Event::Resize(..) => Wish::Draw,
        Event::Key(key) => match key.code {
            KeyCode::Char('c') if key.modifiers == KeyModifiers::CONTROL => Wish::Interrupt,
            KeyCode::Char('q') | KeyCode::Esc => Wish::Leave,
            _ => Wish::Nothing,
        },
        _ => Wish::Nothing,
    }
}

impl Seen {
    fn add(&mut self, progress: &Progress<'_>) {
        let (interval, tally) = (progress.interval, &progress.interval.tally);
        let per_s = |count: u64| count as f64 / interval.lasts.as_secs_f64().max(1e-9);
        let (response, service) = (tally.response_ns(), tally.service_ns());
        let [p50, p99] = [0.5, 0.99].map(|quantile| response.value_at_quantile(quantile) as f64);
        let raw_p99 = service.value_at_quantile(0.99) as f64;
        let at = progress.elapsed.as_secs_f64();
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
        let area = frame.area();
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
        let figures = [&self.last, &totals];
        let figures = figures.iter().flat_map(|text| wrapped(text, area.width));
        let head: Vec<Line<'_>> = [title].into_iter().chain(figures.map(Line::from)).collect();
        let head_rows = head.len() as u16;
        // A chart without room for a curve is left out.
        let charts = match area.height.saturating_sub(head_rows + 1) / CHART_ROWS_MIN {
            0 => 0,
            1 => 1,
            _ => 2,
        };
        let rows = std::iter::once(Constraint::Length(head_rows))
            .chain(std::iter::repeat_n(Constraint::Fill(1), charts))
            .chain([Constraint::Length(1)]);
        let areas = Layout::vertical(rows).split(area);
        frame.render_widget(Paragraph::new(head), areas[0]);
        let latencies: [Curve<'_>; 3] = [
            ("p50", Color::Cyan, &self.p50_ms),
            ("p99", Color::Yellow, &self.p99_ms),
            ("raw p99", Color::Magenta, &self.raw_p99_ms),
        ];
        let rates: [Curve<'_>; 2] = [
            ("asked", Color::DarkGray, &self.offered),
            ("replies", Color::Green, &self.achieved),
        ];
        if charts > 0 {
            let area = areas[charts];
            let widget = chart("latency", &latencies, area.height, |ms| ns_of(ms * 1e6));
            frame.render_widget(widget, area);
        }
        if charts > 1 {
            let widget = chart("per second", &rates, areas[1].height, rate_of);
            frame.render_widget(widget, areas[1]);
        }
        let foot = Line::from("q stops the run and shows what was seen").dim();
        frame.render_widget(foot, areas[charts + 1]);
    }
}

/// The parts of a line, between dots, on as many lines of this width as they need.
fn wrapped(text: &str, width: u16) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in text.split(" · ") {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 3 + part.chars().count() <= width.into() => {
                line.push_str(" · ");
                line.push_str(part);
            }
            _ => lines.push(part.to_owned()),
        }
    }
    lines
}

fn push(points: &mut Vec<(f64, f64)>, point: (f64, f64)) {
    if points.len() == POINTS_MAX {
        points.remove(0);
    }
    points.push(point);
}

type Curve<'a> = (&'static str, Color, &'a Vec<(f64, f64)>);

/// Its title names the curves in their colours: a legend inside would hide what it explains.
fn chart<'a>(
    title: &'static str,
    curves: &[Curve<'a>],
    rows: u16,
    show: fn(f64) -> String,
) -> Chart<'a> {
    let first = curves[0].2.first().map_or(0.0, |(at, _)| *at);
    let last = curves[0].2.last().map_or(1.0, |(at, _)| *at);
    let values = curves.iter().flat_map(|(_, _, points)| points.iter());
    let high = values.map(|(_, value)| *value).fold(1e-3, f64::max) * 1.1;
    let dataset = |(_, color, points): &Curve<'a>| {
        let style = Style::default().fg(*color);
        Dataset::default()
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(style)
            .data(points)
    };
    let mut words = vec![format!(" {title}: ").into()];
    for (name, color, _) in curves {
        words.push(format!("{name} ").fg(*color));
    }
    let age = format!(" the last {:.0} s ", last - first);
    let block = Block::bordered()
        .title(Line::from(words))
        .title_bottom(Line::from(age).right_aligned().dim());
    // Between the borders, each label has a row, or they would lie on each other.
    let labels = match rows {
        5.. => vec![show(0.0), show(high / 2.0), show(high)],
        _ => vec![show(0.0), show(high)],
    };
    Chart::new(curves.iter().map(dataset).collect())
        .block(block)
        .legend_position(None)
        .x_axis(Axis::default().bounds([first, last.max(first + 1.0)]))
        .y_axis(Axis::default().bounds([0.0, high]).labels(labels))
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

    /// So many seconds of ten, all alike.
    fn add_seconds(seen: &mut Seen, seconds: u64, interval: &IntervalRecord) {
        for second in 1..=seconds {
            seen.add(&Progress {
                elapsed: Duration::from_secs(second),
                planned: Duration::from_secs(10),
                is_warm_up: false,
                interval,
            });
        }
    }

    #[test]
    fn the_screen_shows_rate_and_both_latencies() {
        let mut seen = Seen {
            title: "GET http://h/".to_owned(),
            ..Seen::default()
        };
        add_seconds(&mut seen, 3, &interval(500));
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
    fn a_long_line_is_broken_between_its_parts() {
        assert_eq!(wrapped("a · b · c", 5), ["a · b", "c"]);
        assert_eq!(wrapped("abcdefgh · b", 5), ["abcdefgh", "b"]);
        assert_eq!(wrapped("", 5), [""]);
    }

    #[test]
    fn keys_leave_or_interrupt() {
        use ratatui::crossterm::event::KeyEvent;
        let key = |code, modifiers| wish_of(Event::Key(KeyEvent::new(code, modifiers)));
        let none = KeyModifiers::NONE;
        assert_eq!(key(KeyCode::Char('q'), none), Wish::Leave);
        assert_eq!(key(KeyCode::Esc, none), Wish::Leave);
        assert_eq!(key(KeyCode::Char('c'), none), Wish::Nothing);
        let control_c = key(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(control_c, Wish::Interrupt);
        assert_eq!(wish_of(Event::Resize(3, 2)), Wish::Draw);
    }

    #[test]
    fn an_empty_and_a_tiny_screen_can_be_drawn() {
        shown(&Seen::default(), 100, 30);
        shown(&Seen::default(), 3, 2);
        shown(&Seen::default(), 1, 1);
    }

    #[test]
    fn a_screen_of_any_size_shows_whole_labels_or_none() {
        let mut seen = Seen::default();
        add_seconds(&mut seen, 9, &interval(589));
        for (width, height) in [20, 40, 60, 99]
            .into_iter()
            .flat_map(|w| (4..20).map(move |h| (w, h)))
        {
            let text = shown(&seen, width, height);
            assert!(
                !text.contains("/ss") && !text.contains("sms"),
                "{width}x{height}: {text}"
            );
        }
        assert!(shown(&seen, 100, 30).contains("per second: asked replies"));
        assert!(shown(&seen, 60, 12).contains("latency: p50 p99 raw p99"));
        assert!(
            !shown(&seen, 40, 6).contains("latency:"),
            "no room for a curve"
        );
    }

    #[test]
    fn a_long_run_keeps_a_bounded_curve() {
        let mut points = Vec::new();
        (0..POINTS_MAX + 10).for_each(|at| push(&mut points, (at as f64, 0.0)));
        assert_eq!((points.len(), points[0].0), (POINTS_MAX, 10.0));
    }
}
