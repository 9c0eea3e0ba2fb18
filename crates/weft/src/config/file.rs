//! The configuration file: TOML into a layer of texts, each with its line.

use std::io;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Layer, Mistake, Origin, SettingText, nearest};
use crate::settings::{Kind, SETTINGS, Setting};

/// Why a file gave no layer.
pub(crate) enum Error {
    /// It could not be read.
    Read(io::Error),
    /// It is no TOML.
    Syntax(Vec<Mistake>),
}

/// Reads the file: what it says, and a mistake for each key that is unknown or has a value of a
/// wrong shape.
///
/// # Errors
/// If it cannot be read, or is no TOML.
pub(crate) fn read(path: &Path) -> Result<(Layer, Vec<Mistake>), Error> {
    let text = std::fs::read_to_string(path).map_err(Error::Read)?;
    let reader = Reader { path, text: &text };
    let (document, errors) = DeTable::parse_recoverable(&text);
    if errors.is_empty() {
        return Ok(reader.layer(document.get_ref()));
    }
    let mistake = |error: &toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start);
        reader.wrong(at, error.message())
    };
    Err(Error::Syntax(errors.iter().map(mistake).collect()))
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
}

type Entry<'a, 'i> = (
    &'a Spanned<std::borrow::Cow<'i, str>>,
    &'a Spanned<DeValue<'i>>,
);

impl Reader<'_> {
    fn layer(&self, document: &DeTable<'_>) -> (Layer, Vec<Mistake>) {
        let mut layer = Layer::new();
        let mut mistakes = Vec::new();
        for (key, value) in in_order(document) {
            if let Err(mistake) = self.add(key, value, &mut layer) {
                mistakes.push(mistake);
            }
        }
        (layer, mistakes)
    }

    fn add(
        &self,
        key: &Spanned<std::borrow::Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
        layer: &mut Layer,
    ) -> Result<(), Mistake> {
        let setting = self.setting(key)?;
        let said = self.said(setting, key, value)?;
        if layer.insert(setting.name, said).is_none() {
            return Ok(());
        }
        let (key, first) = (key.get_ref(), setting.key());
        let other = if **key == first {
            setting.table().unwrap_or(&first)
        } else {
            &first
        };
        let why = format!("'{key}' says again what '{other}' said; keep one of them");
        Err(self.wrong(value.span().start, &why))
    }

    /// The setting of a key, which may also be the name of a setting's table.
    fn setting(
        &self,
        key: &Spanned<std::borrow::Cow<'_, str>>,
    ) -> Result<&'static Setting, Mistake> {
        let name = key.get_ref().as_ref();
        let mut settings = SETTINGS.iter();
        let found = settings.find(|setting| setting.key() == name || setting.table() == Some(name));
        match found {
            Some(setting) if setting.is_for_file() => Ok(setting),
            Some(_) => {
                let why = format!("'{name}' cannot be set in a file; use the flag --{name}");
                Err(self.wrong(key.span().start, &why))
            }
            None => {
                let hint = match nearest(name, keys()) {
                    Some(near) => format!("; did you mean '{near}'?"),
                    None => "; `weft serve --help` names all keys".to_owned(),
                };
                Err(self.wrong(
                    key.span().start,
                    &format!("'{name}' is not a setting{hint}"),
                ))
            }
        }
    }

    fn said(
        &self,
        setting: &Setting,
        key: &Spanned<std::borrow::Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Vec<SettingText>, Mistake> {
        let name = key.get_ref();
        let said = |text, at| self.said_at(name, text, at);
        match (value.get_ref(), setting.kind) {
            (DeValue::Array(items), Kind::Many { .. }) => items
                .iter()
                .map(|item| Ok(said(self.scalar(name, item)?, item.span().start)))
                .collect(),
            (DeValue::Array(_), _) => {
                let why = format!("{name}: give one value, not a list");
                Err(self.wrong(value.span().start, &why))
            }
            (DeValue::Table(table), _) if setting.table() == Some(name) => self.table(name, table),
            (DeValue::Table(_), _) => {
                Err(self.wrong(key.span().start, &format!("'{name}' is not a table")))
            }
            _ => Ok(vec![said(self.scalar(name, value)?, value.span().start)]),
        }
    }

    /// A table of rules: `KEY = "VALUE"` is the text `KEY=VALUE`. In `headers` a key is a header's
    /// name, or a glob with a table of headers.
    fn table(&self, name: &str, table: &DeTable<'_>) -> Result<Vec<SettingText>, Mistake> {
        let mut said = Vec::new();
        for (key, value) in in_order(table) {
            let at = value.span().start;
            let rule = key.get_ref();
            match value.get_ref() {
                DeValue::Table(headers) if name == "headers" => {
                    for (header, value) in in_order(headers) {
                        let text = self.string(name, value)?;
                        let text = format!("{}={}: {text}", escape(rule), header.get_ref());
                        said.push(self.said_at(name, text, value.span().start));
                    }
                }
                _ if name == "headers" => {
                    let text = format!("**={rule}: {}", self.string(name, value)?);
                    said.push(self.said_at(name, text, at));
                }
                _ => {
                    let text = self.string(name, value)?;
                    said.push(self.said_at(name, format!("{}={text}", escape(rule)), at));
                }
            }
        }
        Ok(said)
    }

    fn string(&self, key: &str, value: &Spanned<DeValue<'_>>) -> Result<String, Mistake> {
        match value.get_ref() {
            DeValue::String(text) => Ok(text.clone().into_owned()),
            _ => {
                let why = format!("{key}: give a text in quotation marks");
                Err(self.wrong(value.span().start, &why))
            }
        }
    }

    fn scalar(&self, key: &str, value: &Spanned<DeValue<'_>>) -> Result<String, Mistake> {
        let what = match value.get_ref() {
            DeValue::String(text) => return Ok(text.clone().into_owned()),
            DeValue::Boolean(on) => return Ok(on.to_string()),
            DeValue::Integer(number) if number.radix() == 10 => return Ok(number.to_string()),
            DeValue::Integer(_) => "a number that is not decimal",
            DeValue::Float(_) => "a fractional number",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list in a list",
            DeValue::Table(_) => "a table in a list",
        };
        Err(self.wrong(
            value.span().start,
            &format!("{key}: {what} has no meaning here"),
        ))
    }

    fn said_at(&self, key: &str, text: String, at: usize) -> SettingText {
        let (file, line) = (self.path.to_owned(), self.line(at));
        SettingText {
            text,
            origin: Origin::File {
                file,
                line,
                key: key.to_owned(),
            },
        }
    }

    fn wrong(&self, at: usize, why: &str) -> Mistake {
        let line = self.line(at);
        Mistake {
            line,
            sentence: format!("{}:{line}: {why}", self.path.display()),
        }
    }

    fn line(&self, at: usize) -> usize {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        before.iter().filter(|byte| **byte == b'\n').count() + 1
    }
}

/// The entries as they stand in the file: which rule comes first matters.
fn in_order<'a, 'i>(table: &'a DeTable<'i>) -> Vec<Entry<'a, 'i>> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

/// A glob with its `=` in a class, so that the first plain `=` is the rule's.
fn escape(glob: &str) -> String {
    if glob.contains('[') {
        glob.to_owned()
    } else {
        glob.replace('=', "[=]")
    }
}

/// Every key and table that a file may have.
fn keys() -> impl Iterator<Item = String> {
    let settings = SETTINGS.iter().filter(|setting| setting.is_for_file());
    settings.flat_map(|setting| {
        [setting.key()]
            .into_iter()
            .chain(setting.table().map(str::to_owned))
    })
}
