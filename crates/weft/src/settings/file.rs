//! The configuration file: TOML into layers of texts, each with its line.

use std::borrow::Cow;
use std::io;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::layer::{HOST, Layer, Mistake, SettingText, nearest};
use super::{Config, Kind, Scope, Setting, rows};
use crate::hints::{MOVED, OTHER_KEYS};
use crate::os::files;

/// Longest configuration, including those with thousands of rules or hosts.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// Most hosts of a file.
const HOSTS_MAX: usize = 32_768;

/// Layers of a configuration file.
#[derive(Debug, Default)]
pub(super) struct FileLayers {
    /// The top level.
    pub(super) top: Layer,
    /// One layer per `[[host]]`.
    pub(super) hosts: Vec<Layer>,
}

/// Reads the file into `layers`, with a mistake for each key that is unknown or has a value of a
/// wrong type, and for invalid TOML.
///
/// # Errors
/// If it cannot be read.
pub(super) fn read<C: Config>(
    path: &Path,
    layers: &mut FileLayers,
    mistakes: &mut Vec<Mistake>,
) -> io::Result<()> {
    let bytes = files::read(path, FILE_BYTES_MAX)?;
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let (bytes, at) = (error.as_bytes(), error.utf8_error().valid_up_to());
            let text = &String::from_utf8_lossy(bytes);
            mistakes.push(Reader::new(path, text).wrong(at, "it is not UTF-8, as TOML is"));
            return Ok(());
        }
    };
    let reader = Reader::new(path, &text);
    let (document, errors) = DeTable::parse_recoverable(&text);
    mistakes.extend(errors.iter().map(|error| {
        let at = error.span().map_or(0, |span| span.start);
        reader.wrong(at, error.message())
    }));
    if errors.is_empty() {
        for (key, value) in in_order(document.get_ref()) {
            match value.get_ref() {
                DeValue::Array(hosts) if is_hosts::<C>(key, hosts) => {
                    mistakes.extend(reader.add_hosts::<C>(hosts, &mut layers.hosts));
                }
                _ => {
                    let added = reader.add::<C>(key, value, Place::Top, &mut layers.top);
                    mistakes.extend(added.err());
                }
            }
        }
    }
    Ok(())
}

struct Reader<'a> {
    path: &'a Path,
    /// Positions of the line breaks: a file may have thousands of rules, each with a place.
    line_ends: Vec<usize>,
}

/// Place of a key in the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Top,
    Host,
}

impl Place {
    fn may_set<C>(self, setting: &Setting<C>) -> bool {
        match self {
            Place::Top => setting.is_for_file(),
            Place::Host => setting.is_for_host(),
        }
    }
}

/// True for the `[[host]]` tables in a configuration that supports hosts.
fn is_hosts<C: Config>(key: &Key<'_>, value: &DeArray<'_>) -> bool {
    let mut items = value.iter();
    key.get_ref() == HOST
        && rows::<C>().any(|setting| setting.scope == Scope::Host)
        && items.all(|item| matches!(item.get_ref(), DeValue::Table(_)))
}

type Key<'i> = Spanned<Cow<'i, str>>;
type Value<'i> = Spanned<DeValue<'i>>;

impl<'a> Reader<'a> {
    fn new(path: &'a Path, text: &str) -> Reader<'a> {
        let line_ends = text.match_indices('\n').map(|(at, _)| at).collect();
        Reader { path, line_ends }
    }

    /// Reads the `[[host]]` tables; returns their mistakes.
    fn add_hosts<C: Config>(&self, tables: &DeArray<'_>, hosts: &mut Vec<Layer>) -> Vec<Mistake> {
        let mut mistakes = Vec::new();
        for table in tables {
            let DeValue::Table(entries) = table.get_ref() else {
                continue;
            };
            let at = table.span().start;
            let mut host = Layer::new();
            for (key, value) in in_order(entries) {
                let added = self.add::<C>(key, value, Place::Host, &mut host);
                mistakes.extend(added.err());
            }
            if host.get("names").is_none_or(Vec::is_empty) {
                let why = "this host has no name: names = [\"example.org\", \"*.example.org\"]";
                mistakes.push(self.wrong(at, why));
            }
            if hosts.len() == HOSTS_MAX {
                let why = format!("this is one host more than {HOSTS_MAX}");
                mistakes.push(self.wrong(at, &why));
                break;
            }
            hosts.push(host);
        }
        mistakes
    }

    fn add<C: Config>(
        &self,
        key: &Key<'_>,
        value: &Value<'_>,
        place: Place,
        layer: &mut Layer,
    ) -> Result<(), Mistake> {
        let setting = self.setting::<C>(key, value, place)?;
        let said = self.said(setting, key, value)?;
        if layer.insert(setting.name, said).is_none() {
            return Ok(());
        }
        let (key, first) = (key.get_ref(), setting.key());
        let other = if **key == first { setting.table.unwrap_or(&first) } else { &first };
        let why = format!("'{key}' sets again what '{other}' sets; keep one of them");
        Err(self.wrong(value.span().start, &why))
    }

    /// The setting of a key; the key may also be the name of a setting's table.
    fn setting<C: Config>(
        &self,
        key: &Key<'_>,
        value: &Value<'_>,
        place: Place,
    ) -> Result<&'static Setting<C>, Mistake> {
        let name = key.get_ref().as_ref();
        let mut settings = rows::<C>();
        let found = settings.find(|setting| setting.key() == name || setting.table == Some(name));
        let why = match found {
            Some(setting) if place.may_set(setting) => return Ok(setting),
            Some(setting) if setting.scope == Scope::Host => {
                format!("'{name}' belongs into a [[host]]")
            }
            Some(setting) if place == Place::Host => {
                let why = setting.why_for_all;
                let why = if why.is_empty() { String::new() } else { format!(", because {why}") };
                format!("'{name}' is for the whole server{why}: write it above the first [[host]]")
            }
            Some(_) => format!("'{name}' cannot be set in a file; use the flag --{name}"),
            None => {
                if let Some(new) = MOVED.find(&name.replace('_', "-")) {
                    let why = format!("'{name}' is now part of engine, as in: engine = \"{new}\"");
                    return Err(self.wrong(key.span().start, &why));
                }
                let near = nearest(name, keys::<C>(place));
                let near = near.map(|near| format!("did you mean '{near}'?"));
                let is_host = name == HOST && matches!(value.get_ref(), DeValue::Table(_));
                if is_host {
                    let why = "'host' is a list of tables: [[host]]";
                    return Err(self.wrong(key.span().start, why));
                }
                let advice = OTHER_KEYS.find(name).map(str::to_owned).or(near);
                let advice =
                    advice.unwrap_or_else(|| "`weft serve --help` lists all keys".to_owned());
                format!("'{name}' is not a setting; {advice}")
            }
        };
        Err(self.wrong(key.span().start, &why))
    }

    fn said<C>(
        &self,
        setting: &Setting<C>,
        key: &Key<'_>,
        value: &Value<'_>,
    ) -> Result<Vec<SettingText>, Mistake> {
        let name = key.get_ref();
        let said = |text, at| self.said_at(name, text, at);
        match (value.get_ref(), &setting.kind) {
            (DeValue::Array(items), Kind::Many(..)) => items
                .iter()
                .map(|item| Ok(said(self.scalar(name, item)?, item.span().start)))
                .collect(),
            (DeValue::Array(_), _) => {
                let why = format!("{name}: give one value, not a list");
                Err(self.wrong(value.span().start, &why))
            }
            (DeValue::Table(table), _) if setting.table == Some(name) => self.table(name, table),
            (DeValue::Table(_), _) => {
                Err(self.wrong(key.span().start, &format!("'{name}' is not a table")))
            }
            _ => Ok(vec![said(self.scalar(name, value)?, value.span().start)]),
        }
    }

    /// Reads a table of rules: `KEY = "VALUE"` is the text `KEY=VALUE`. In `headers` a key is a
    /// header's name, or a glob with a table of headers.
    fn table(&self, name: &str, table: &DeTable<'_>) -> Result<Vec<SettingText>, Mistake> {
        let mut said = Vec::new();
        let mut say = |value: &Value<'_>, rule: String, sign: &str| -> Result<(), Mistake> {
            let text = format!("{rule}{sign}{}", self.string(name, value)?);
            said.push(self.said_at(name, text, value.span().start));
            Ok(())
        };
        for (key, value) in in_order(table) {
            let rule = key.get_ref();
            match value.get_ref() {
                DeValue::Table(headers) if name == "headers" => {
                    for (header, value) in in_order(headers) {
                        let rule = format!("{}={}", escape(rule), header.get_ref());
                        say(value, rule, ": ")?;
                    }
                }
                _ if name == "headers" => say(value, format!("**={rule}"), ": ")?,
                _ => say(value, escape(rule), "=")?,
            }
        }
        Ok(said)
    }

    fn string(&self, key: &str, value: &Value<'_>) -> Result<String, Mistake> {
        match value.get_ref() {
            DeValue::String(text) => Ok(text.clone().into_owned()),
            _ => {
                let why = format!("{key}: give a text in quotation marks");
                Err(self.wrong(value.span().start, &why))
            }
        }
    }

    fn scalar(&self, key: &str, value: &Value<'_>) -> Result<String, Mistake> {
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
        let why = format!("{key}: {what} has no meaning here");
        Err(self.wrong(value.span().start, &why))
    }

    fn said_at(&self, key: &str, text: String, at: usize) -> SettingText {
        let line = self.line(at);
        let place = format!("{}:{line}: {key}", self.path.display());
        SettingText { text, place, line }
    }

    fn wrong(&self, at: usize, why: &str) -> Mistake {
        let line = self.line(at);
        let sentence = format!("{}:{line}: {why}", self.path.display());
        Mistake { sentence, line }
    }

    fn line(&self, at: usize) -> usize {
        self.line_ends.partition_point(|end| *end < at) + 1
    }
}

/// The entries in the order of the file, which matters for rules.
fn in_order<'a, 'i>(table: &'a DeTable<'i>) -> Vec<(&'a Key<'i>, &'a Value<'i>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

/// A glob with its `=` in a character class, so that the first plain `=` is the rule's.
fn escape(glob: &str) -> String {
    if glob.contains('[') { glob.to_owned() } else { glob.replace('=', "[=]") }
}

/// Every key and table that is allowed in a place.
fn keys<C: Config>(place: Place) -> impl Iterator<Item = String> {
    let settings = rows::<C>().filter(move |setting| place.may_set(setting));
    settings.flat_map(|setting| {
        let table = setting.table.map(str::to_owned);
        [setting.key()].into_iter().chain(table)
    })
}
