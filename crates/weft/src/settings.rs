//! The one table of what can be set for `weft serve`.
//!
//! Each row is a flag (`--access-log`), a key of the configuration file (`access_log`) and an
//! environment variable (`WEFT_ACCESS_LOG`), with one parser and one help text. Help, man page,
//! completions, the manual's table and the check of the file's keys all come from here, so they
//! cannot disagree.

mod table;
#[cfg(test)]
mod tests;

use clap::ValueHint;

use crate::config::ServeConfig;
use crate::engine::Choices;
use crate::value;
#[cfg(test)]
pub(crate) use table::HEADINGS;
pub(crate) use table::SETTINGS;

/// One thing that can be set.
pub(crate) struct Setting {
    /// Name with hyphens, as in the flag.
    pub(crate) name: &'static str,
    /// The one-letter flag.
    pub(crate) short: Option<char>,
    /// Under which heading the help shows it.
    pub(crate) heading: &'static str,
    /// What it takes and how that gets into the configuration.
    pub(crate) kind: Kind,
    /// What holds when nothing is said.
    pub(crate) default: Default,
    /// Whether `SIGHUP` applies a new value.
    pub(crate) reload: Reload,
    /// One line, no full stop.
    pub(crate) help: &'static str,
    /// The rest of what is worth knowing, or "".
    pub(crate) more: &'static str,
}

/// What a setting takes.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// The directory, which is no flag but the command's argument.
    Argument { value: &'static str, set: Set },
    /// `--name` and `--no-name`.
    Switch { set: fn(&mut ServeConfig, bool) },
    /// One of some words.
    Choice { choices: Choices, set: Set },
    /// One value.
    One {
        value: &'static str,
        hint: ValueHint,
        set: Set,
    },
    /// A list; `set` adds to it. `table` is the name of a table in the file which says the same as
    /// `KEY=VALUE`; `separator` is how an environment variable holds several.
    Many {
        value: &'static str,
        table: Option<&'static str>,
        separator: Separator,
        set: Set,
    },
}

/// Puts one text into the configuration.
pub(crate) type Set = fn(&mut ServeConfig, &str) -> Result<(), String>;

/// How an environment variable holds a list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Separator {
    /// White space between them.
    Space,
    /// One per line, because the values have spaces.
    Line,
}

/// What holds when nothing is said.
#[derive(Clone, Copy)]
pub(crate) enum Default {
    /// This text, as if it had been typed.
    Text(&'static str),
    /// Worked out from the machine; the words say how.
    Derived(&'static str),
    /// Nothing.
    Nothing,
}

/// Whether a running server takes a new value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reload {
    /// At the next `SIGHUP`.
    Applies,
    /// Only a restart.
    Restart,
}

impl Setting {
    /// Its key in the configuration file: `access_log`.
    pub(crate) fn key(&self) -> String {
        self.name.replace('-', "_")
    }

    /// The table of the configuration file that says the same, if there is one: `error_pages`.
    pub(crate) fn table(&self) -> Option<&'static str> {
        match self.kind {
            Kind::Many { table, .. } => table,
            _ => None,
        }
    }

    /// Its environment variable: `WEFT_ACCESS_LOG`.
    pub(crate) fn env(&self) -> String {
        format!("WEFT_{}", self.key().to_ascii_uppercase())
    }

    /// How it is typed: `--access-log`; the argument is not a flag and shows as `[DIR]`.
    pub(crate) fn flag(&self) -> String {
        match self.kind {
            Kind::Argument { value, .. } => format!("[{value}]"),
            Kind::Switch { .. } if self.is_on_by_default() => format!("--no-{}", self.name),
            _ => format!("--{}", self.name),
        }
    }

    /// Whether it is a switch that is on unless turned off.
    pub(crate) fn is_on_by_default(&self) -> bool {
        matches!(
            (self.kind, self.default),
            (Kind::Switch { .. }, Default::Text("true"))
        )
    }

    /// Whether the configuration file may say it.
    pub(crate) fn is_for_file(&self) -> bool {
        // A file that names a file would need an order of reading.
        self.name != "config"
    }

    /// The setting with this name.
    pub(crate) fn find(name: &str) -> Option<&'static Setting> {
        SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// Puts one value into `config`.
    ///
    /// # Errors
    /// What is wrong with the text and how to write it.
    pub(crate) fn set(&self, config: &mut ServeConfig, text: &str) -> Result<(), String> {
        match self.kind {
            Kind::Switch { set } => value::switch(text).map(|on| set(config, on)),
            Kind::Choice { choices, set } => {
                if choices.iter().any(|(name, _)| *name == text) {
                    return set(config, text);
                }
                let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
                Err(format!("'{text}' is not one of {}", names.join(", ")))
            }
            Kind::Argument { set, .. } | Kind::One { set, .. } | Kind::Many { set, .. } => {
                set(config, text)
            }
        }
    }
}
