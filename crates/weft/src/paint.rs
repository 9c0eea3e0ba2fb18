//! Colour on terminals that support it.

use std::io::IsTerminal;

pub(crate) use ::load::report::Paint;

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

    /// The choice with this name; anything else is `auto`, since the table allows no other word.
    pub(crate) fn from_name(name: &str) -> Color {
        match name {
            "always" => Color::Always,
            "never" => Color::Never,
            _ => Color::Auto,
        }
    }
}

/// Decides for one output. `NO_COLOR` counts if it is not empty (no-color.org); a flag takes
/// precedence.
pub(crate) fn decide(color: Color, output: &impl IsTerminal) -> Paint {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    Paint::new(match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => !unwanted && !dumb && output.is_terminal(),
    })
}
