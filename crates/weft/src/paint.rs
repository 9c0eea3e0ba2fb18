//! Colour on terminals that show it.

use std::fmt::Display;
use std::io::IsTerminal;

use crate::settings::Choices;

/// Choice of colour: always, never, or on a terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Color {
    #[default]
    Auto,
    Always,
    Never,
}

impl Color {
    /// The words for it.
    pub(crate) const NAMES: Choices = &[
        ("auto", "on a terminal, unless NO_COLOR is set"),
        ("always", "always"),
        ("never", "never"),
    ];

    /// The choice with this name; anything else is `auto`, which the table does not let through.
    pub(crate) fn from_name(name: &str) -> Color {
        match name {
            "always" => Color::Always,
            "never" => Color::Never,
            _ => Color::Auto,
        }
    }
}

/// Painter of text, in colour or not.
#[derive(Clone, Copy)]
pub(crate) struct Paint {
    on: bool,
}

impl Paint {
    /// Decides for one output. `NO_COLOR` counts if it is not empty (no-color.org); a flag goes
    /// before it.
    pub(crate) fn decide(color: Color, output: &impl IsTerminal) -> Paint {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let on = match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => !unwanted && !dumb && output.is_terminal(),
        };
        Paint { on }
    }

    /// True if colour is used.
    pub(crate) fn is_on(self) -> bool {
        self.on
    }

    pub(crate) fn bold(self, text: impl Display) -> String {
        self.code("1", text)
    }

    pub(crate) fn dim(self, text: impl Display) -> String {
        self.code("2", text)
    }

    pub(crate) fn red(self, text: impl Display) -> String {
        self.code("1;31", text)
    }

    pub(crate) fn green(self, text: impl Display) -> String {
        self.code("32", text)
    }

    pub(crate) fn yellow(self, text: impl Display) -> String {
        self.code("33", text)
    }

    pub(crate) fn cyan(self, text: impl Display) -> String {
        self.code("36", text)
    }

    fn code(self, code: &str, text: impl Display) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }
}
