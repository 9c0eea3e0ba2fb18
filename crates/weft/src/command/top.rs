//! `weft top`: a running server, seen through its admin listener.
//!
//! ```text
//!   ADDR or PID ──▶ target ──/metrics, /paths──▶ scrape ──▶ overview ──▶ --json
//!                                               two readings       └──▶ screen ──▶ terminal
//! ```

mod overview;
mod scrape;
mod screen;
mod target;
mod terminal;

use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::failure::Failure;
use crate::paint::{self, Color};
use crate::value;
use overview::{Overview, Reading};
use scrape::Scrape;
use screen::View;
use target::AdminTarget;
pub(crate) use target::{ReadServerFlags, ServerFlags};
use terminal::{AlternateScreen, KeyPress};

/// `weft top`.
pub(crate) fn command(after_help: String) -> Command {
    let switch = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue);
    Command::new("top")
        .about("Watch a running weft serve or weft cache")
        .long_about(
            "Watch a running weft serve or weft cache through its admin listener (--admin).\n\n\
             Shows rates, latency, connections, fibers by what they wait for, processors, the most \
             requested paths or commands, memory, and limits that were reached. Without a terminal \
             it prints one reading, as with --once.",
        )
        .arg(
            Arg::new("server")
                .value_name("ADDR|PID")
                .required(true)
                .help("Address of --admin, such as :9090 or unix:PATH, or the server's process id"),
        )
        .arg(
            Arg::new("interval")
                .long("interval")
                .short('i')
                .value_name("TIME")
                .default_value("2s")
                .value_parser(interval)
                .help("Time between two readings"),
        )
        .arg(switch("once").help("Print one interval and exit"))
        .arg(switch("json").help("Print a JSON object for each interval, one per line"))
        .after_long_help(after_help)
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = value::duration(text)?;
    let range = Duration::from_millis(100)..=Duration::from_secs(3_600);
    if range.contains(&interval) {
        return Ok(interval);
    }
    Err("from 100ms to 1h".to_owned())
}

/// Watches a server until the user quits.
///
/// # Errors
/// If there is no such server. See the exit codes.
pub(crate) fn run(matches: &ArgMatches, read: ReadServerFlags) -> Result<(), Failure> {
    let typed = matches.get_one::<String>("server").expect("clap requires it");
    let mut watch = Watch {
        target: AdminTarget::find(typed, read).map_err(Failure::Usage)?,
        interval: *matches.get_one("interval").expect("the interval has a default"),
        started: Instant::now(),
    };
    let is_once = matches.get_flag("once");
    let first = watch.read().map_err(|error| watch.failure(&error))?;
    if matches.get_flag("json") {
        watch.print_json(first, is_once)
    } else if is_once || !terminal::is_there() {
        watch.print_once(&first)
    } else {
        watch.show(first)
    }
}

/// A server being watched.
struct Watch {
    target: AdminTarget,
    interval: Duration,
    started: Instant,
}

impl Watch {
    fn read(&self) -> Result<Reading, String> {
        let text = self.target.get("/metrics")?;
        let at_s = self.started.elapsed().as_secs_f64();
        let scrape = Scrape::parse(&text, at_s).filter(Scrape::is_of_weft);
        let scrape = scrape.ok_or("/metrics is not that of weft")?;
        // A cache has no paths.
        let paths = self.target.get("/paths").ok();
        let paths = paths.and_then(|paths| serde_json::from_str(&paths).ok());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Ok(Reading {
            scrape,
            paths: paths.unwrap_or_default(),
            unix_s: now.unwrap_or_default().as_secs_f64(),
        })
    }

    fn failure(&self, error: &str) -> Failure {
        Failure::Running(format!("cannot read {}: {error}", self.target.name))
    }

    fn overview(&self, before: Option<&Reading>, now: &Reading) -> Overview {
        Overview::new(&self.target.name, before, now)
    }

    fn print_once(&self, first: &Reading) -> Result<(), Failure> {
        thread::sleep(self.interval);
        let now = self.read().map_err(|error| self.failure(&error))?;
        let overview = self.overview(Some(first), &now);
        let paint = paint::decide(Color::Auto, &io::stdout());
        let columns = rustix::termios::tcgetwinsize(io::stdout());
        let width = columns.map_or(100, |size| usize::from(size.ws_col).max(40));
        let lines = screen::whole(&overview, width, paint);
        Ok(writeln!(io::stdout(), "{}", lines.join("\n"))?)
    }

    fn print_json(&mut self, first: Reading, is_once: bool) -> Result<(), Failure> {
        let mut before = Some(first);
        loop {
            thread::sleep(self.interval);
            let mut out = io::stdout().lock();
            match self.read() {
                Ok(now) => {
                    let overview = self.overview(before.as_ref(), &now);
                    serde_json::to_writer(&mut out, &overview).map_err(io::Error::from)?;
                    before = Some(now);
                }
                Err(error) if is_once => return Err(self.failure(&error)),
                Err(error) => {
                    let error = serde_json::json!({ "target": self.target.name, "error": error });
                    write!(out, "{error}")?;
                    before = None;
                }
            }
            writeln!(out)?;
            out.flush()?;
            if is_once {
                return Ok(());
            }
        }
    }

    fn show(&mut self, first: Reading) -> Result<(), Failure> {
        let paint = paint::decide(Color::Auto, &io::stdout());
        let terminal = AlternateScreen::enter()?;
        let mut view = View::default();
        let mut overview = self.overview(None, &first);
        let mut before = first;
        loop {
            let mut deadline = Instant::now() + self.interval;
            while let Some(key) = {
                terminal.show(&screen::frame(&overview, &view, terminal.size(), paint))?;
                terminal.key(deadline)
            } {
                match key {
                    KeyPress::End | KeyPress::Letter(b'q') => return Ok(()),
                    key => view.press(key),
                }
                if view.is_paused {
                    deadline = Instant::now() + Duration::from_secs(86_400);
                } else {
                    deadline = deadline.min(Instant::now() + self.interval);
                }
            }
            match self.read() {
                Ok(now) => {
                    overview = self.overview(Some(&before), &now);
                    before = now;
                    view.error = None;
                }
                Err(error) => view.error = Some(format!("{error}; trying again")),
            }
        }
    }
}
