//! Messages of a server on standard error: standard output may carry the access log.

use std::io;

use ::serve::messages;

use super::ServeConfig;
use crate::paint::{self, Color, Paint};
use crate::value::show_counted;

/// Standard error, with or without colour.
pub(crate) struct Terminal {
    paint: Paint,
    quiet: bool,
}

impl Terminal {
    pub(crate) fn new(color: Color, quiet: bool) -> Terminal {
        Terminal { paint: paint::decide(color, &io::stderr()), quiet }
    }

    /// Prints the start-up message: the site, then each of `lines`.
    pub(crate) fn banner(&self, config: &ServeConfig, lines: &[(&str, String)]) {
        let root = || {
            let root = config.site.root.canonicalize();
            root.unwrap_or_else(|_| config.site.root.clone())
        };
        let hosts = show_counted(config.hosts.len() as u64, "host");
        let what = if config.only_named_hosts {
            hosts
        } else if config.hosts.is_empty() {
            root().display().to_string()
        } else {
            format!("{} and {hosts}", root().display())
        };
        let weft = self.paint.bold(format_args!("weft {}", env!("CARGO_PKG_VERSION")));
        let mut text = format!("{weft} serving {what}");
        for (name, line) in lines {
            let line = match *name {
                "url" | "admin" => self.paint.cyan(line),
                _ => line.clone(),
            };
            text += &format!("\n  {}  {line}", self.paint.dim(format_args!("{name:<7}")));
        }
        self.say(&text);
    }

    /// Reports a success.
    pub(crate) fn say(&self, text: &str) {
        if !self.quiet {
            self.answer(text);
        }
    }

    /// Prints the answer to a signal.
    pub(crate) fn answer(&self, text: &str) {
        messages::write(&format!("{text}\n"));
    }

    /// Reports a failure that the server survived.
    pub(crate) fn warn(&self, text: &str) {
        messages::write(&format!("{} {text}\n", self.paint.yellow("warning:")));
    }
}
