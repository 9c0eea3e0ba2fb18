//! Settings: the rows that the tables of `weft serve` and `weft cache` consist of.
//!
//! A row of `weft serve` is a flag (`--access-log`), a key of the configuration file
//! (`access_log`) and an environment variable (`WEFT_ACCESS_LOG`); a row of `weft cache` is a flag,
//! or an option of the list behind `-o`. Each has one parser and one help text. Help, manual page,
//! completions, the manual's tables and the check of the file's keys all come from the rows, so
//! they cannot disagree.
//!
//! ```text
//!   flags (arguments.rs) ─┐
//!   environment          ─┼─▶ layers of texts ─▶ for each row the highest layer ─▶ configuration
//!   file, TOML (file.rs) ─┤    (layers.rs)       that mentions it                  (typed)
//!   the row's default    ─┘
//! ```

pub(crate) mod arguments;
mod file;
pub(crate) mod layer;
pub(crate) mod layers;
#[cfg(test)]
mod tests;

use clap::ValueHint;

use crate::value;

/// Configuration of a command, with every value parsed and checked by itself.
pub(crate) trait Config: std::default::Default + 'static {
    /// The rows that are flags, in the order of the help.
    const GROUPS: &'static [Group<Self>];

    /// Rows that are not flags: those of a list in a flag, and those of the file only.
    const LISTED: &'static [Setting<Self>] = &[];

    /// True if a file and the environment can set the rows too.
    const HAS_FILE: bool;

    /// Name of the flag in error messages.
    fn flag(setting: &Setting<Self>) -> String {
        setting.flag()
    }

    /// Called when all rows are set, with the texts that set them.
    fn conclude(&mut self, said: &layer::Layer);

    /// Adds the configuration of a `[[host]]` of the file.
    fn add_host(&mut self, _host: Self) {}
}

/// Rows shown under one heading of the help, or under none.
pub(crate) struct Group<C: 'static> {
    pub(crate) heading: &'static str,
    pub(crate) rows: &'static [Setting<C>],
}

/// The rows that are flags.
pub(crate) fn flags<C: Config>() -> impl Iterator<Item = &'static Setting<C>> {
    C::GROUPS.iter().flat_map(|group| group.rows)
}

/// All rows.
pub(crate) fn rows<C: Config>() -> impl Iterator<Item = &'static Setting<C>> {
    flags::<C>().chain(C::LISTED)
}

/// The row of this name.
pub(crate) fn find<C: Config>(name: &str) -> Option<&'static Setting<C>> {
    rows::<C>().find(|setting| setting.name == name)
}

/// One setting.
pub(crate) struct Setting<C: 'static> {
    /// Name with hyphens, as in the flag.
    pub(crate) name: &'static str,
    /// The one-letter flag.
    pub(crate) short: Option<char>,
    /// Kind of value, with the function that sets it.
    pub(crate) kind: Kind<C>,
    /// Kind of value, for shell completions.
    hint: ValueHint,
    /// Separator of a list in an environment variable.
    separator: Separator,
    /// Table of the configuration file that is equivalent to a list of `KEY=VALUE`.
    pub(crate) table: Option<&'static str>,
    /// Value if nothing sets it.
    pub(crate) default: Default,
    /// Effect of `SIGHUP` on a new value.
    pub(crate) reload: Reload,
    /// Tables of the file that may set it.
    scope: Scope,
    /// Reason why a `[[host]]` may not set it, or "".
    why_for_all: &'static str,
    /// True if `-h` leaves it out.
    is_rare: bool,
    /// One line without full stop.
    pub(crate) help: &'static str,
    /// Further sentences, or "".
    pub(crate) more: &'static str,
}

/// Kind of value that a setting takes.
pub(crate) enum Kind<C: 'static> {
    /// One value: the command's argument, not a flag.
    Argument(&'static str, Set<C>),
    /// No value; it may be repeated.
    Flag(fn(&mut C)),
    /// `--name` and `--no-name`; in a list `name` and `no_name`.
    Switch(fn(&mut C, bool)),
    /// One of several words.
    Choice(Choices, Set<C>),
    /// One value, and its placeholder.
    One(&'static str, Set<C>),
    /// A list, and the placeholder of a value; the function adds a value.
    Many(&'static str, Set<C>),
}

/// Sets one text in the configuration.
pub(crate) type Set<C> = fn(&mut C, &str) -> Result<(), String>;

/// Allowed words, each with a short description.
pub(crate) type Choices = &'static [(&'static str, &'static str)];

/// Separator of a list in an environment variable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Separator {
    /// White space.
    Space,
    /// Line breaks, because the values contain spaces.
    Line,
}

/// Value if nothing sets it.
#[derive(Clone, Copy)]
pub(crate) enum Default {
    /// This text, as if it had been typed.
    Text(&'static str),
    /// Derived later; the text describes how.
    Derived(&'static str),
    /// No value.
    Nothing,
}

/// Tables of the configuration file that may set a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// The top level only.
    Server,
    /// The top level, or a `[[host]]` for itself; otherwise a host inherits the top level's value.
    Inherited,
    /// The top level, or a `[[host]]` for itself; a host inherits nothing.
    Own,
    /// A `[[host]]` only.
    Host,
}

/// Effect of a new value on a running server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reload {
    /// Applied at the next `SIGHUP`.
    Applies,
    /// Applied at a restart only.
    Restart,
}

/// Builder of a row. It begins as a flag without effect that needs a restart.
impl<C> Setting<C> {
    pub(crate) const fn new(name: &'static str) -> Setting<C> {
        Setting {
            name,
            short: None,
            kind: Kind::Flag(|_| {}),
            hint: ValueHint::Unknown,
            separator: Separator::Space,
            table: None,
            default: Default::Nothing,
            reload: Reload::Restart,
            scope: Scope::Server,
            why_for_all: "",
            is_rare: false,
            help: "",
            more: "",
        }
    }

    pub(crate) const fn short(mut self, short: char) -> Setting<C> {
        self.short = Some(short);
        self
    }

    pub(crate) const fn argument(mut self, value: &'static str, set: Set<C>) -> Setting<C> {
        self.kind = Kind::Argument(value, set);
        self
    }

    /// Leaves it out of `-h`.
    pub(crate) const fn rare(mut self) -> Setting<C> {
        self.is_rare = true;
        self
    }

    pub(crate) const fn does(mut self, set: fn(&mut C)) -> Setting<C> {
        self.kind = Kind::Flag(set);
        self
    }

    /// Makes it a switch, off unless [`starts_as`](Setting::starts_as) sets otherwise.
    pub(crate) const fn switches(mut self, set: fn(&mut C, bool)) -> Setting<C> {
        self.kind = Kind::Switch(set);
        self.starts_as("false")
    }

    pub(crate) const fn chooses(mut self, choices: Choices, set: Set<C>) -> Setting<C> {
        self.kind = Kind::Choice(choices, set);
        self
    }

    pub(crate) const fn takes(mut self, value: &'static str, set: Set<C>) -> Setting<C> {
        self.kind = Kind::One(value, set);
        self.hinted(ValueHint::Other)
    }

    pub(crate) const fn file(self, value: &'static str, set: Set<C>) -> Setting<C> {
        self.takes(value, set).hinted(ValueHint::FilePath)
    }

    pub(crate) const fn adds(mut self, value: &'static str, set: Set<C>) -> Setting<C> {
        self.kind = Kind::Many(value, set);
        self.hinted(ValueHint::Other)
    }

    pub(crate) const fn hinted(mut self, hint: ValueHint) -> Setting<C> {
        self.hint = hint;
        self
    }

    pub(crate) const fn by_line(mut self) -> Setting<C> {
        self.separator = Separator::Line;
        self
    }

    pub(crate) const fn or_table(mut self, name: &'static str) -> Setting<C> {
        self.table = Some(name);
        self
    }

    pub(crate) const fn starts_as(mut self, text: &'static str) -> Setting<C> {
        self.default = Default::Text(text);
        self
    }

    pub(crate) const fn derived(mut self, how: &'static str) -> Setting<C> {
        self.default = Default::Derived(how);
        self
    }

    pub(crate) const fn reloads(mut self) -> Setting<C> {
        self.reload = Reload::Applies;
        self
    }

    /// Sets the scope. A reload reads all settings of a host again.
    const fn of_scope(mut self, scope: Scope) -> Setting<C> {
        self.scope = scope;
        self.reloads()
    }

    pub(crate) const fn per_host(self) -> Setting<C> {
        self.of_scope(Scope::Inherited)
    }

    /// Gives the reason why a `[[host]]` may not set it.
    pub(crate) const fn for_all_because(mut self, why: &'static str) -> Setting<C> {
        self.why_for_all = why;
        self
    }

    pub(crate) const fn own_per_host(self) -> Setting<C> {
        self.of_scope(Scope::Own)
    }

    pub(crate) const fn host_only(self) -> Setting<C> {
        self.of_scope(Scope::Host)
    }

    pub(crate) const fn help(mut self, help: &'static str) -> Setting<C> {
        self.help = help;
        self
    }

    pub(crate) const fn more(mut self, more: &'static str) -> Setting<C> {
        self.more = more;
        self
    }
}

/// Makes a function that parses a text into a field of the configuration.
macro_rules! put {
    ($($field:ident).+ = Some $read:expr) => {
        |config, text| {
            config.$($field).+ = Some($read(text)?);
            Ok(())
        }
    };
    ($($field:ident).+ = $read:expr) => {
        |config, text| {
            config.$($field).+ = $read(text)?;
            Ok(())
        }
    };
    ($($field:ident).+ += $read:expr) => {
        |config, text| {
            config.$($field).+.push($read(text)?);
            Ok(())
        }
    };
}
pub(crate) use put;

impl<C> Setting<C> {
    /// Its key in the configuration file: `access_log`.
    pub(crate) fn key(&self) -> String {
        self.name.replace('-', "_")
    }

    /// Its environment variable: `WEFT_ACCESS_LOG`.
    pub(crate) fn env(&self) -> String {
        format!("WEFT_{}", self.key().to_ascii_uppercase())
    }

    /// The flag as typed: `--access-log`; the argument is not a flag and shows as `[DIR]`.
    pub(crate) fn flag(&self) -> String {
        match self.kind {
            Kind::Argument(value, _) => format!("[{value}]"),
            Kind::Switch(_) if self.is_on_by_default() => format!("--no-{}", self.name),
            _ => format!("--{}", self.name),
        }
    }

    /// Placeholder of its value; `combined|json` for one of several words.
    pub(crate) fn value(&self) -> Option<String> {
        match self.kind {
            Kind::Flag(_) | Kind::Switch(_) => None,
            Kind::Choice(choices, _) => Some(names(choices).join("|")),
            Kind::Argument(value, _) | Kind::One(value, _) | Kind::Many(value, _) => {
                Some(value.to_owned())
            }
        }
    }

    /// Its description in sentences.
    pub(crate) fn description(&self) -> String {
        format!("{}. {}", self.help, self.more).trim_end().to_owned()
    }

    /// True if it is a switch that is on unless turned off.
    pub(crate) fn is_on_by_default(&self) -> bool {
        matches!((&self.kind, self.default), (Kind::Switch(_), Default::Text("true")))
    }

    /// True if the top level of the configuration file may set it.
    pub(crate) fn is_for_file(&self) -> bool {
        // A file that names another file would need an order of reading.
        self.name != "config" && self.scope != Scope::Host
    }

    /// True if a `[[host]]` of the configuration file may set it.
    fn is_for_host(&self) -> bool {
        self.scope != Scope::Server
    }

    /// Sets one value in `config`.
    ///
    /// # Errors
    /// The mistake in the text, and a valid form.
    pub(crate) fn set(&self, config: &mut C, text: &str) -> Result<(), String> {
        match self.kind {
            Kind::Flag(set) => set(config),
            Kind::Switch(set) => set(config, value::switch(text)?),
            Kind::Choice(choices, _) if !names(choices).contains(&text) => {
                let names = names(choices).join(", ");
                return Err(format!("'{text}' is not one of {names}"));
            }
            Kind::Argument(_, set)
            | Kind::Choice(_, set)
            | Kind::One(_, set)
            | Kind::Many(_, set) => return set(config, text),
        }
        Ok(())
    }
}

fn names(choices: Choices) -> Vec<&'static str> {
    choices.iter().map(|(name, _)| *name).collect()
}
