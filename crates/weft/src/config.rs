//! From what was said to what it means.
//!
//! ```text
//!   flags          ─┐
//!   environment    ─┼─▶ layers of texts ─▶ for each setting the highest layer ─▶ ServeConfig
//!   file (TOML)    ─┤      (Layer)               that says anything               (typed)
//!   table's default─┘
//! ```
//! Every layer is texts, and one parser per setting turns them into values, so a flag, a variable
//! and a key cannot mean different things.

mod file;

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::serve::access_log::Target;
use ::serve::listen::Address;
use web::{CacheRule, HeaderRule, LogFormat};

use crate::engine::EngineChoice;
use crate::settings::{self, Kind, Reload, SETTINGS, Separator, Setting};
use crate::value::Account;

/// What `weft serve` shall do: every value read and checked by itself. What is `None` is derived
/// from the machine at start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServeConfig {
    pub(crate) root: PathBuf,
    pub(crate) listen: Vec<Address>,
    /// Whether `listen` is only the default, which sockets from systemd replace.
    pub(crate) listen_is_default: bool,
    pub(crate) admin: Vec<Address>,
    pub(crate) tls_cert: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    pub(crate) engine: EngineChoice,
    pub(crate) workers: Option<NonZeroUsize>,
    pub(crate) fibers: Option<NonZeroUsize>,
    pub(crate) listing: bool,
    pub(crate) hidden: bool,
    pub(crate) follow_links: bool,
    pub(crate) index: Vec<String>,
    pub(crate) spa: Option<String>,
    pub(crate) error_pages: Vec<(u16, PathBuf)>,
    pub(crate) precompressed: bool,
    pub(crate) headers: Vec<HeaderRule>,
    pub(crate) cache: Vec<CacheRule>,
    pub(crate) mime_types: Vec<(String, String)>,
    /// `None` sends no `Server` field.
    pub(crate) server_name: Option<String>,
    pub(crate) max_connections: Option<NonZeroUsize>,
    pub(crate) memory_budget_bytes: Option<u64>,
    pub(crate) memory_file_max_bytes: u64,
    pub(crate) page_cache_budget_bytes: Option<u64>,
    pub(crate) request_limits: web::RequestLimits,
    pub(crate) recheck: Duration,
    pub(crate) head_timeout: Duration,
    pub(crate) body_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    pub(crate) send_timeout: Duration,
    pub(crate) send_rate_min_bytes_per_s: u64,
    pub(crate) drain_timeout: Duration,
    /// `None` is off.
    pub(crate) access_log: Option<Target>,
    pub(crate) log_format: LogFormat,
    pub(crate) config: Option<PathBuf>,
    pub(crate) user: Option<Account>,
    pub(crate) pid_file: Option<PathBuf>,
    pub(crate) quiet: bool,
    pub(crate) color: Color,
}

/// When to print in colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Color {
    #[default]
    Auto,
    Always,
    Never,
}

impl Color {
    /// The choice with this name; anything else is `auto`, which the table does not let through.
    pub(crate) fn from_name(name: &str) -> Color {
        match name {
            "always" => Color::Always,
            "never" => Color::Never,
            _ => Color::Auto,
        }
    }
}

/// What one place says: texts by the setting's name. A setting that is not in it is not mentioned;
/// one with no texts is an empty list.
pub(crate) type Layer = BTreeMap<&'static str, Vec<SettingText>>;

/// A text and where it was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SettingText {
    pub(crate) text: String,
    pub(crate) origin: Origin,
}

/// Where it was said, for the error message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag(String),
    Env(String),
    File {
        file: PathBuf,
        line: usize,
        key: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag(flag) => f.write_str(flag),
            Origin::Env(variable) => f.write_str(variable),
            Origin::File { file, line, key } => write!(f, "{}:{line}: {key}", file.display()),
        }
    }
}

/// The flags and the environment: what stays the same when the file is read again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fixed {
    pub(crate) flags: Layer,
    pub(crate) env: Layer,
}

/// A configuration and what it came from.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    pub(crate) config: ServeConfig,
    said: Layer,
}

/// Something wrong: a sentence that names the place, and the line of the file, or 0 if it was said
/// elsewhere.
#[derive(Debug)]
pub(crate) struct Mistake {
    line: usize,
    sentence: String,
}

impl Mistake {
    fn new(said: &SettingText, why: &str) -> Mistake {
        let line = match said.origin {
            Origin::File { line, .. } => line,
            Origin::Flag(_) | Origin::Env(_) => 0,
        };
        let sentence = match &said.origin {
            // The directory is typed without a flag, and the reason names it.
            Origin::Flag(flag) if flag.starts_with('[') => why.to_owned(),
            origin => format!("{origin}: {why}"),
        };
        Mistake { line, sentence }
    }
}

fn none_of(mistakes: Vec<Mistake>) -> Result<(), String> {
    match mistakes.is_empty() {
        true => Ok(()),
        false => Err(all_of(mistakes)),
    }
}

/// A line for each, as they stand in the file.
fn all_of(mut mistakes: Vec<Mistake>) -> String {
    mistakes.sort_by_key(|mistake| mistake.line);
    let sentences: Vec<_> = mistakes
        .into_iter()
        .map(|mistake| mistake.sentence)
        .collect();
    sentences.join("\n")
}

impl Fixed {
    /// Reads the file that flags or environment name, and resolves all layers.
    ///
    /// # Errors
    /// A line for each mistake, with the place and what to do.
    pub(crate) fn resolve(&self) -> Result<Resolved, String> {
        let (file, mistakes) = match self.config_file() {
            Some(said) => file::read(Path::new(&said.text)).map_err(|error| match error {
                file::Error::Read(error) => {
                    format!("{}: cannot read '{}': {error}", said.origin, said.text)
                }
                file::Error::Syntax(mistakes) => all_of(mistakes),
            })?,
            None => Default::default(),
        };
        resolve(&[&self.flags, &self.env, &file], mistakes)
    }

    fn config_file(&self) -> Option<&SettingText> {
        [&self.flags, &self.env]
            .iter()
            .find_map(|layer| layer.get("config")?.last())
    }
}

/// Reads one file, without flags and environment, and has `check` look at what is meant.
///
/// # Errors
/// A line for each mistake, with the place and what to do.
pub(crate) fn check_file(
    path: &Path,
    check: impl Fn(&ServeConfig) -> Result<(), String>,
) -> Result<Resolved, String> {
    let (layer, mut mistakes) = file::read(path).map_err(|error| match error {
        file::Error::Read(error) => format!("{}: {error}", path.display()),
        file::Error::Syntax(mistakes) => all_of(mistakes),
    })?;
    let resolved = gather(&[&layer], &mut mistakes);
    mistakes.extend(resolved.mistakes(check));
    none_of(mistakes).map(|()| resolved)
}

/// Takes each setting from the first layer that mentions it, else from the table. `mistakes` are
/// those found so far.
fn resolve(layers: &[&Layer], mut mistakes: Vec<Mistake>) -> Result<Resolved, String> {
    let resolved = gather(layers, &mut mistakes);
    none_of(mistakes).map(|()| resolved)
}

/// As [`resolve`], and leaves out what is wrong.
fn gather(layers: &[&Layer], mistakes: &mut Vec<Mistake>) -> Resolved {
    let mut right = Layer::new();
    for setting in SETTINGS {
        let Some(said) = layers.iter().find_map(|layer| layer.get(setting.name)) else {
            continue;
        };
        let is_right = |said: &&SettingText| {
            let set = setting.set(&mut ServeConfig::default(), &said.text);
            set.map_err(|why| mistakes.push(Mistake::new(said, &why)))
                .is_ok()
        };
        let kept: Vec<_> = said.iter().filter(is_right).cloned().collect();
        // If none is right, the default is the best guess at what was meant.
        if said.is_empty() || !kept.is_empty() {
            right.insert(setting.name, kept);
        }
    }
    Resolved {
        config: config_of(&right),
        said: right,
    }
}

/// What a layer without mistakes means.
fn config_of(layer: &Layer) -> ServeConfig {
    let mut config = ServeConfig::default();
    for setting in SETTINGS {
        match layer.get(setting.name) {
            None => set_default(setting, &mut config),
            Some(said) => said.iter().for_each(|said| {
                let set = setting.set(&mut config, &said.text);
                set.unwrap_or_else(|why| unreachable!("{}: it was right: {why}", said.origin));
            }),
        }
    }
    config.listen_is_default = !layer.contains_key("listen");
    config
}

fn set_default(setting: &Setting, config: &mut ServeConfig) {
    if let settings::Default::Text(text) = setting.default {
        let set = setting.set(config, text);
        set.unwrap_or_else(|why| unreachable!("the default of {}: {why}", setting.name));
    }
}

impl Resolved {
    /// The settings that differ in `newer` and that only a restart applies.
    pub(crate) fn needs_restart(&self, newer: &Resolved) -> Vec<&'static str> {
        let only_restart = SETTINGS
            .iter()
            .filter(|setting| setting.reload == Reload::Restart);
        let names = only_restart.map(|setting| setting.name);
        names
            .filter(|name| self.texts(name) != newer.texts(name))
            .collect()
    }

    fn texts(&self, name: &str) -> Option<Vec<&str>> {
        let said = self.said.get(name)?.iter();
        Some(said.map(|said| said.text.as_str()).collect())
    }

    /// Looks for what can be known to be wrong only with all values together, and names for each
    /// mistake the place that said it: the one without which `check` finds something else, or
    /// nothing.
    ///
    /// # Errors
    /// A line for each mistake.
    pub(crate) fn check(
        &self,
        check: impl Fn(&ServeConfig) -> Result<(), String>,
    ) -> Result<(), String> {
        none_of(self.mistakes(check))
    }

    fn mistakes(&self, check: impl Fn(&ServeConfig) -> Result<(), String>) -> Vec<Mistake> {
        let check = |layer: &Layer| check(&config_of(layer));
        let mut layer = self.said.clone();
        let mut mistakes = Vec::new();
        while let Err(why) = check(&layer) {
            let Some((name, at)) = places(&layer).find(|(name, at)| {
                let (rest, _) = without(&layer, name, *at);
                check(&rest).as_ref() != Err(&why)
            }) else {
                let sentence = why;
                mistakes.push(Mistake { line: 0, sentence });
                break;
            };
            let (mut rest, said) = without(&layer, name, at);
            mistakes.push(Mistake::new(&said, &why));
            if name == "root" {
                // What lies beneath it cannot be looked for.
                rest.remove("error-page");
                rest.remove("spa");
            }
            layer = rest;
        }
        mistakes
    }
}

/// Everything that was said, the root last: of other paths' mistakes it changes the words.
fn places(layer: &Layer) -> impl Iterator<Item = (&'static str, usize)> {
    let all = layer
        .iter()
        .flat_map(|(name, said)| (0..said.len()).map(|at| (*name, at)));
    let (root, others): (Vec<_>, Vec<_>) = all.partition(|(name, _)| *name == "root");
    others.into_iter().chain(root)
}

/// The layer without one text of a setting, and that text.
fn without(layer: &Layer, name: &'static str, at: usize) -> (Layer, SettingText) {
    let mut layer = layer.clone();
    let mut said = layer.remove(name).unwrap_or_default();
    let one = said.remove(at);
    if !said.is_empty() {
        layer.insert(name, said);
    }
    (layer, one)
}

/// What the environment says, and a warning for each `WEFT_` variable that means nothing.
pub(crate) fn environment(
    variables: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>,
) -> Result<(Layer, Vec<String>), String> {
    let mut layer = Layer::new();
    let mut warnings = Vec::new();
    for (variable, text) in variables {
        let Some(variable) = variable.to_str().filter(|name| name.starts_with("WEFT_")) else {
            continue;
        };
        let Some(setting) = SETTINGS.iter().find(|setting| setting.env() == variable) else {
            warnings.push(unknown_variable(variable));
            continue;
        };
        let text = text
            .to_str()
            .ok_or_else(|| format!("{variable}: its value is not UTF-8"))?;
        // systemd units and shells cannot always unset; an empty variable says nothing.
        if !text.is_empty() {
            layer.insert(setting.name, split(setting, variable, text));
        }
    }
    Ok((layer, warnings))
}

fn split(setting: &Setting, variable: &str, text: &str) -> Vec<SettingText> {
    let texts: Vec<&str> = match setting.kind {
        Kind::Many {
            separator: Separator::Space,
            ..
        } => text.split_whitespace().collect(),
        Kind::Many {
            separator: Separator::Line,
            ..
        } => text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect(),
        _ => vec![text],
    };
    let said = |text: &str| SettingText {
        text: text.to_owned(),
        origin: Origin::Env(variable.to_owned()),
    };
    texts.into_iter().map(said).collect()
}

fn unknown_variable(variable: &str) -> String {
    let names = SETTINGS.iter().map(Setting::env);
    match nearest(variable, names) {
        Some(near) => {
            format!("{variable} in the environment is not a setting; did you mean {near}?")
        }
        None => format!("{variable} in the environment is not a setting"),
    }
}

/// The name that was probably meant: the nearest by letters, if it is near.
pub(crate) fn nearest(typed: &str, names: impl Iterator<Item = String>) -> Option<String> {
    let scored = names.map(|name| (strsim::damerau_levenshtein(typed, &name), name));
    let (distance, name) = scored.min()?;
    // A third of the letters may be wrong; beyond it, a suggestion misleads.
    (distance <= typed.len().max(name.len()) / 3).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn layer(name: &'static str, texts: &[&str]) -> Layer {
        let said = |text: &&str| SettingText {
            text: (*text).to_owned(),
            origin: Origin::Flag(format!("--{name}")),
        };
        Layer::from([(name, texts.iter().map(said).collect())])
    }

    fn env(variables: &[(&str, &str)]) -> (Layer, Vec<String>) {
        environment(
            variables
                .iter()
                .map(|(name, text)| (name.into(), text.into())),
        )
        .unwrap()
    }

    fn toml(text: &str) -> Result<ServeConfig, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let found = check_file(file.path(), |_| Ok(()));
        let path = file.path().display().to_string();
        found
            .map(|found| found.config)
            .map_err(|error| error.replace(&path, "FILE"))
    }

    #[test]
    fn nothing_said_means_loopback_and_this_directory() {
        let config = resolve(&[], Vec::new()).unwrap().config;
        assert_eq!(config.root, Path::new("."));
        assert_eq!(config.listen, ["127.0.0.1:8080".parse().unwrap()]);
        assert!(config.listen_is_default && config.precompressed);
        assert!(!config.hidden && !config.follow_links && !config.listing);
    }

    #[test]
    fn flag_goes_before_environment_before_file_before_default() {
        let flags = layer("workers", &["1"]);
        let env = env(&[("WEFT_WORKERS", "2"), ("WEFT_IDLE_TIMEOUT", "2s")]).0;
        let mut file = layer("workers", &["3"]);
        file.extend(layer("idle-timeout", &["3s"]));
        file.extend(layer("head-timeout", &["3s"]));
        let config = resolve(&[&flags, &env, &file], Vec::new()).unwrap().config;
        assert_eq!(config.workers, NonZeroUsize::new(1));
        assert_eq!(config.idle_timeout, Duration::from_secs(2));
        assert_eq!(config.head_timeout, Duration::from_secs(3));
        assert_eq!(config.send_timeout, Duration::from_secs(60));
    }

    #[test]
    fn a_list_replaces_the_whole_list_below_it() {
        let config = resolve(
            &[&layer("index", &["a"]), &layer("index", &["b", "c"])],
            Vec::new(),
        );
        assert_eq!(config.unwrap().config.index, ["a"]);
        assert!(toml("index = []").unwrap().index.is_empty());
    }

    #[test]
    fn every_setting_means_the_same_as_flag_variable_and_key() {
        for setting in SETTINGS.iter().filter(|setting| setting.is_for_file()) {
            let text = sample(setting);
            let typed = resolve(&[&layer(setting.name, &[text])], Vec::new())
                .unwrap()
                .config;
            let in_env = resolve(&[&env(&[(&setting.env(), text)]).0], Vec::new())
                .unwrap()
                .config;
            let in_file = toml(&format!("{} = '{text}'", setting.key())).unwrap();
            assert_eq!(typed, in_env, "{}", setting.name);
            assert_eq!(typed, in_file, "{}", setting.name);
            let default = resolve(&[], Vec::new()).unwrap().config;
            assert_ne!(typed, default, "{} sets nothing", setting.name);
        }
    }

    // A value that is not the default.
    fn sample(setting: &Setting) -> &'static str {
        match (setting.kind, setting.name) {
            (Kind::Switch { .. }, _) => ["true", "false"][usize::from(setting.is_on_by_default())],
            (Kind::Choice { choices, .. }, _) => choices.last().unwrap().0,
            (_, "listen" | "admin") => "[::1]:9",
            (_, "index") => "home.htm",
            (_, "error-page") => "404=x.html",
            (_, "header") => "*.js=X-A: b=c",
            (_, "cache") => "*.js=max-age=1",
            (_, "mime-type") => "js=text/plain",
            (_, "user") => "www-data:adm",
            (_, "recheck") => "7s",
            (_, name) if name.ends_with("timeout") => "7s",
            (Kind::Argument { .. }, _) | (_, "spa" | "access-log" | "pid-file") => "some/path",
            (_, "server-name") => "off",
            (_, "max-head" | "max-request-line") => "7K",
            _ => "7",
        }
    }

    #[test]
    fn numbers_booleans_arrays_and_tables_may_be_written_as_such() {
        let config = toml(
            "workers = 4\nlisting = true\nindex = ['a', 'b']\nmemory_budget = '1GiB'\n\
             [cache]\n'*.css' = 'max-age=60'\n'*.b' = 'no-store'\n\
             [headers.'*.js']\nX-A = 'a'\nX-B = 'b'\n[headers]\nX-All = 'c'\n\
             [error_pages]\n404 = '404.html'\n[mime_types]\nwasm = 'application/wasm'\n",
        )
        .unwrap();
        assert_eq!(config.workers, NonZeroUsize::new(4));
        assert!(config.listing);
        assert_eq!(config.index, ["a", "b"]);
        assert_eq!(
            (&*config.cache[0].glob, &*config.cache[0].value),
            ("*.css", "max-age=60")
        );
        assert_eq!(config.cache[1].glob, "*.b", "the order of the file is kept");
        let headers: Vec<_> = config
            .headers
            .iter()
            .map(|rule| (&*rule.glob, &*rule.name))
            .collect();
        assert_eq!(headers, [("*.js", "X-A"), ("*.js", "X-B"), ("**", "X-All")]);
        assert_eq!(config.error_pages, [(404, PathBuf::from("404.html"))]);
        assert_eq!(config.mime_types[0].1, "application/wasm");
    }

    #[test]
    fn a_mistake_in_the_file_names_line_and_key() {
        let wrong = |text: &str| toml(text).unwrap_err();
        assert_eq!(
            wrong("# hello\nworkres = 4"),
            "FILE:2: 'workres' is not a setting; did you mean 'workers'?"
        );
        assert!(wrong("access-log = 'x'").contains("did you mean 'access_log'?"));
        assert!(
            wrong("\n\nidle_timeout = 75").starts_with("FILE:3: idle_timeout: '75' is not a dur")
        );
        assert!(wrong("index = [\n'a',\n'b/c']").starts_with("FILE:3: index: 'b/c'"));
        assert!(wrong("workers = [1, 2]").starts_with("FILE:1: workers: give one value"));
        assert!(wrong("workers = 1.5").contains("a fractional number"));
        assert!(wrong("config = 'x'").contains("FILE:1: 'config' cannot be set in a file"));
        assert!(wrong("a = ").starts_with("FILE:1: "));
        assert!(wrong("[workers]\na = 1").contains("FILE:1: 'workers' is not a table"));
        assert!(wrong("[cache]\n'*.js' = 1").starts_with("FILE:2: cache: "));
        let twice = "cache = ['*.js=x']\nheader = ['X: y']\n[headers]\nX = 'y'";
        assert!(wrong(twice).contains("FILE:3: 'headers' says again what 'header' said"));
    }

    #[test]
    fn every_mistake_of_a_file_is_told_at_once() {
        // Seen: one mistake was told at a time, and those that only a look at the site finds
        // without file, line and key.
        let text = "workres = 4\nidle_timeout = 75\nworkers = 1.5\nindex = ['a', 'b/c', 'd/e']\n";
        let told = toml(text).unwrap_err();
        let places: Vec<_> = told
            .lines()
            .map(|line| line.split(' ').next().unwrap())
            .collect();
        let lines = ["FILE:1:", "FILE:2:", "FILE:3:", "FILE:4:", "FILE:4:"];
        assert_eq!(places, lines, "{told}");
        assert_eq!(toml("a = \nb = 1\nc = ]\n").unwrap_err().lines().count(), 2);
    }

    #[test]
    fn a_mistake_that_only_the_whole_shows_is_told_where_it_was_said() {
        let resolved = Resolved {
            config: ServeConfig::default(),
            said: [("index", "bad one"), ("root", "good"), ("spa", "bad two")]
                .map(|(name, text)| {
                    let origin = Origin::Flag(format!("--{name}"));
                    let text = text.to_owned();
                    (name, vec![SettingText { text, origin }])
                })
                .into(),
        };
        let check = |config: &ServeConfig| {
            let said = config.index.iter().chain(&config.spa);
            match said.into_iter().find(|text| text.starts_with("bad")) {
                Some(text) => Err(format!("{text} beneath {}", config.root.display())),
                None => Ok(()),
            }
        };
        assert_eq!(
            resolved.check(check).unwrap_err(),
            "--index: bad one beneath good\n--spa: bad two beneath good"
        );
    }

    #[test]
    fn a_variable_that_means_nothing_is_a_warning_and_an_empty_one_says_nothing() {
        let (layer, warnings) = env(&[("WEFT_WORKER", "2"), ("WEFT_IO", ""), ("HOME", "/")]);
        assert!(layer.is_empty());
        assert_eq!(warnings.len(), 1);
        assert!(
            warnings[0].contains("did you mean WEFT_WORKERS?"),
            "{warnings:?}"
        );
    }

    #[test]
    fn lists_in_the_environment_are_split_by_space_or_by_line() {
        let layer = env(&[
            ("WEFT_LISTEN", ":80 8081"),
            ("WEFT_HEADER", "A: b c\nD: e\n"),
        ])
        .0;
        let config = resolve(&[&layer], Vec::new()).unwrap().config;
        assert_eq!(config.listen.len(), 2);
        assert_eq!(config.headers[0].value, "b c");
        assert_eq!(config.headers.len(), 2);
    }

    #[test]
    fn a_reload_tells_what_it_cannot_apply() {
        let old = resolve(&[&layer("workers", &["1"])], Vec::new()).unwrap();
        let mut newer = layer("workers", &["2"]);
        newer.extend(layer("listing", &["true"]));
        assert_eq!(
            old.needs_restart(&resolve(&[&newer], Vec::new()).unwrap()),
            ["workers"]
        );
    }
}
