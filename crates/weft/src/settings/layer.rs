//! Layer: the texts from one source of settings, each with its place.

use std::collections::BTreeMap;

/// The texts from one source, by the setting's name. A setting that is not mentioned has no entry;
/// a list that is set to nothing has an entry without texts.
pub(crate) type Layer = BTreeMap<&'static str, Vec<SettingText>>;

/// The key of the hosts' tables. If there are any, the top level has an entry without texts for it.
pub(crate) const HOST: &str = "host";

/// A text and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SettingText {
    pub(crate) text: String,
    /// `--listen`, `WEFT_LISTEN` or `serve.toml:3: listen`.
    pub(crate) place: String,
    /// The line in the file; 0 for other sources.
    pub(super) line: usize,
}

/// A mistake: a sentence that names the place.
#[derive(Debug)]
pub(crate) struct Mistake {
    pub(crate) sentence: String,
    /// The line in the file; 0 if it does not concern a file.
    pub(super) line: usize,
}

impl SettingText {
    /// A text of a flag or variable.
    pub(crate) fn new(text: &str, place: &str) -> SettingText {
        SettingText { text: text.to_owned(), place: place.to_owned(), line: 0 }
    }

    /// The text, prefixed by its place.
    pub(crate) fn show(&self) -> String {
        format!("{}: {}", self.place, self.text)
    }

    /// Mistake in this text.
    pub(super) fn wrong(&self, why: &str) -> Mistake {
        // The directory has no flag, and the reason names it. A reason that begins with a flag
        // needs no other flag before it.
        let names_flag =
            why.starts_with(&self.place) || self.place.starts_with("--") && why.starts_with("--");
        let sentence = if self.place.starts_with('[') || names_flag {
            why.to_owned()
        } else {
            format!("{}: {why}", self.place)
        };
        let line = self.line;
        Mistake { sentence, line }
    }
}

impl Mistake {
    /// A mistake on the command line.
    pub(crate) fn new(sentence: String) -> Mistake {
        Mistake { sentence, line: 0 }
    }
}

/// The probably intended name: the nearest one by edit distance, if it is near.
pub(crate) fn nearest(typed: &str, names: impl Iterator<Item = String>) -> Option<String> {
    let scored = names.map(|name| (strsim::damerau_levenshtein(typed, &name), name));
    let (distance, name) = scored.min()?;
    // A third of the letters may be wrong; beyond it, a suggestion misleads.
    (distance <= typed.len().max(name.len()) / 3).then_some(name)
}
