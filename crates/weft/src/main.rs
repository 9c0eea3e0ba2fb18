//! `weft`: the command. Glue over the libraries, and the operator's interface.
//!
//! ```text
//!   argv ─▶ args ─┐            ┌─▶ ServeConfig ─▶ serve ─▶ crates serve, web, fiber
//!   WEFT_* ───────┼─▶ settings ┤
//!   TOML file ────┘            └─▶ CacheConfig ─▶ cache ─▶ crates serve, cache, fiber
//!
//!   settings: rows; command/serve/table.rs and command/cache/table.rs consist of them
//!   engine:   --engine and its keys, for both       netstack: its device and addresses
//!   operate:  admin endpoint, signals, systemd      os: machine, limits, users, files
//! ```

#[cfg(not(target_os = "linux"))]
compile_error!("weftwork runs on Linux only: it stands on epoll and io_uring");

mod acme;
mod args;
mod command;
mod common;
mod engine;
mod failure;
mod hints;
mod netstack;
mod operate;
mod os;
mod pages;
mod paint;
mod settings;
mod value;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ::serve::messages;
use args::Invocation;
use command::{cache, doctor, lab, load, serve, top};
use failure::Failure;
use paint::Color;

fn main() -> ExitCode {
    messages::report_panics();
    outlive_file_limits();
    let (code, message) = match run() {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Shown(code)) => return ExitCode::from(code),
        Err(Failure::Running(message)) => (1, message),
        Err(Failure::Usage(message)) => (2, message),
    };
    let paint = paint::decide(Color::Auto, &io::stderr());
    for line in message.lines() {
        messages::write(&format!("{} {line}\n", paint.red("error:")));
    }
    ExitCode::from(code)
}

/// Makes a file that reaches the limit on its length (`ulimit -f`) a write error. Otherwise the
/// kernel ends the process. Unlike an ignored signal, a handler is not inherited by other programs.
/// setrlimit(2), signal(7)
fn outlive_file_limits() {
    let noted = Arc::new(AtomicBool::new(false));
    // Without a handler, the limit ends the process, as usual.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, noted);
}

fn run() -> Result<(), Failure> {
    let asked = args::read(std::env::args_os()).map_err(said_by_clap)?;
    let mut out = io::stdout().lock();
    match asked {
        Invocation::Serve(flags) => {
            drop(out);
            serve::run(flags)
        }
        Invocation::Cache(typed) => {
            drop(out);
            cache::run(typed)
        }
        Invocation::Engines => Ok(engine::write_manual(&mut out)?),
        Invocation::Load(command) => {
            drop(out);
            load::run(&command)
        }
        Invocation::Top(matches) => {
            drop(out);
            top::run(&matches, args::server_flags)
        }
        Invocation::Lab(asked) => lab::run(asked, &mut out),
        Invocation::Doctor { json, color } => examine(json, color.as_deref(), &mut out),
        Invocation::CheckConfig { file, explain } => {
            check_config(&file, explain.as_deref(), &mut out)
        }
        Invocation::Completions { shell } => Ok(pages::completions(shell, &mut out)?),
        Invocation::Man { dir: Some(dir), .. } => write_pages(&dir, &mut out),
        Invocation::Man { command, .. } => print_page(&command, &mut out),
    }
}

/// Prints clap's help on standard output and its errors on standard error, with its exit code.
fn said_by_clap(error: clap::Error) -> Failure {
    let code = u8::try_from(error.exit_code()).unwrap_or(2);
    match error.print() {
        Err(error) if code == 0 => Failure::from(error),
        _ => Failure::Shown(code),
    }
}

fn examine(json: bool, color: Option<&str>, out: &mut impl Write) -> Result<(), Failure> {
    let report = doctor::Report::of(&doctor::Facts::read());
    if json {
        serde_json::to_writer_pretty(&mut *out, &report).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        let color = Color::from_name(color.unwrap_or("auto"));
        report.print(out, paint::decide(color, &io::stdout()))?;
    }
    match report.verdict {
        doctor::Verdict::Bad => Err(Failure::Shown(1)),
        _ => Ok(()),
    }
}

fn check_config(file: &Path, url: Option<&str>, out: &mut impl Write) -> Result<(), Failure> {
    let checked = settings::layers::check_file(file, serve::check).map_err(Failure::Usage)?;
    if let Some(url) = url {
        let text = serve::explain(&checked, url).map_err(Failure::Usage)?;
        return Ok(write!(out, "{text}")?);
    }
    for warning in serve::warnings(&checked.config, file) {
        writeln!(out, "{}: warning: {warning}", file.display())?;
    }
    Ok(writeln!(out, "{}: ok", file.display())?)
}

fn print_page(words: &[String], out: &mut impl Write) -> Result<(), Failure> {
    let command = words.join(" ");
    if pages::man((!words.is_empty()).then_some(&command), out)? {
        return Ok(());
    }
    let names = pages::names().join(", ");
    Err(Failure::Usage(format!("weft has no command '{command}'; its commands are {names}")))
}

fn write_pages(folder: &Path, out: &mut impl Write) -> Result<(), Failure> {
    let files = pages::man_all(folder).map_err(|error| {
        Failure::Running(format!("cannot write manual pages to {}: {error}", folder.display()))
    })?;
    for file in files {
        writeln!(out, "{}", folder.join(file).display())?;
    }
    Ok(())
}
