//! Resolution of settings. Flags, environment, file and hosts are layers of texts; one parser for
//! each setting turns a text into a value. So a flag, a variable and a key have the same meaning.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::path::Path;

use super::file::{self, FileLayers};
use super::layer::{HOST, Layer, Mistake, SettingText, nearest};
use super::{Config, Default, Kind, Reload, Scope, Separator, Setting, rows};
use crate::hints::MOVED;

/// One line for each mistake, in the order of the file.
fn none_of(mut mistakes: Vec<Mistake>) -> Result<(), String> {
    mistakes.sort_by_key(|mistake| mistake.line);
    let sentences = mistakes.into_iter().map(|mistake| mistake.sentence);
    match sentences.collect::<Vec<_>>() {
        none if none.is_empty() => Ok(()),
        some => Err(some.join("\n")),
    }
}

/// The flags and the environment, which stay the same when the file is read again.
#[derive(Clone, Debug, std::default::Default)]
pub(crate) struct Fixed {
    pub(crate) flags: Layer,
    pub(crate) env: Layer,
}

impl Fixed {
    /// Reads the file that flags or environment name, and resolves all layers.
    ///
    /// # Errors
    /// A line for each mistake, with the place and what to do.
    pub(crate) fn resolve<C: Config>(&self) -> Result<Resolved<C>, String> {
        let mut layers = vec![&self.flags, &self.env];
        let named = layers.iter().find_map(|layer| layer.get("config")?.last());
        let mut file = FileLayers::default();
        let mut mistakes = Vec::new();
        if let Some(said) = named {
            let path = Path::new(&said.text);
            let read = file::read::<C>(path, &mut file, &mut mistakes);
            read.map_err(|error| format!("{}: cannot read '{}': {error}", said.place, said.text))?;
        }
        layers.push(&file.top);
        let has_lines = !file.top.is_empty() || !file.hosts.is_empty();
        let resolved = resolve(&layers, &file.hosts, mistakes)?;
        Ok(Resolved { has_lines, ..resolved })
    }
}

/// Reads one file, without flags and environment. The check that `check` returns for the whole file
/// is run on each configuration.
///
/// # Errors
/// A line for each mistake, with the place and what to do.
pub(crate) fn check_file<C: Config, F: Fn(&C) -> Result<(), String>>(
    path: &Path,
    check: impl FnOnce(&C) -> F,
) -> Result<Resolved<C>, String> {
    let mut file = FileLayers::default();
    let mut mistakes = Vec::new();
    file::read::<C>(path, &mut file, &mut mistakes)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    let resolved = gather(&[&file.top], &file.hosts, &mut mistakes);
    mistakes.extend(resolved.mistakes(check(&resolved.config)));
    none_of(mistakes).map(|()| resolved)
}

/// Takes each setting from the first layer that mentions it, else from its row. A host takes it
/// from its own layer first. `mistakes` are those found so far.
///
/// # Errors
/// A line for each mistake.
pub(crate) fn resolve<C: Config>(
    layers: &[&Layer],
    hosts: &[Layer],
    mut mistakes: Vec<Mistake>,
) -> Result<Resolved<C>, String> {
    let resolved = gather(layers, hosts, &mut mistakes);
    none_of(mistakes).map(|()| resolved)
}

/// Resolves the layers without the texts that are mistakes.
fn gather<C: Config>(
    layers: &[&Layer],
    hosts: &[Layer],
    mistakes: &mut Vec<Mistake>,
) -> Resolved<C> {
    let mut said = valid_settings::<C>(layers, mistakes);
    let mut inherited = said.clone();
    for setting in rows::<C>().filter(|setting| setting.scope == Scope::Own) {
        inherited.remove(setting.name);
    }
    if !hosts.is_empty() {
        // Lets `conclude` see that this layer is a host's.
        said.insert(HOST, Vec::new());
    }
    let hosts: Vec<_> = hosts.iter().map(|host| valid_settings::<C>(&[host], mistakes)).collect();
    mistakes.extend(names_twice(&hosts));
    let config = config_of(&said);
    let mut resolved: Resolved<C> = Resolved { config, has_lines: false, said, inherited, hosts };
    let count = resolved.hosts.len();
    let values: usize = resolved.inherited.values().map(Vec::len).sum();
    if count * values > INHERITED_MAX {
        mistakes.push(Mistake::new(format!(
            "{count} hosts inherit {values} values each, which is more than {INHERITED_MAX} \
             together: write redirects into a file, redirects = \"redirects.txt\""
        )));
        resolved.hosts.clear();
    }
    for nth in 0..resolved.hosts.len() {
        let host = config_of(&resolved.host(nth));
        resolved.config.add_host(host);
    }
    resolved
}

/// Limit on values that hosts inherit, all together; some 200 bytes each. A file counts as one.
const INHERITED_MAX: usize = 1 << 20;

/// One mistake for each name that two hosts share.
fn names_twice(hosts: &[Layer]) -> Vec<Mistake> {
    let mut lines = HashMap::new();
    let names = hosts.iter().flat_map(|host| [host.get("names"), host.get("aliases")]);
    let names = names.flatten().flatten();
    let twice = names.filter_map(|said| {
        let name = said.text.to_ascii_lowercase();
        let first = lines.insert(name, said.line)?;
        let name = &said.text;
        Some(said.wrong(&format!("'{name}' is also a name of the host in line {first}")))
    });
    twice.collect()
}

/// The texts that apply, without mistakes: each setting's from the first layer that has it.
fn valid_settings<C: Config>(layers: &[&Layer], mistakes: &mut Vec<Mistake>) -> Layer {
    let mut valid = Layer::new();
    for setting in rows::<C>() {
        let Some(said) = layers.iter().find_map(|layer| layer.get(setting.name)) else {
            continue;
        };
        let is_valid = |said: &&SettingText| {
            let set = setting.set(&mut C::default(), &said.text);
            mistakes.extend(set.as_ref().err().map(|why| said.wrong(why)));
            set.is_ok()
        };
        let kept: Vec<_> = said.iter().filter(is_valid).cloned().collect();
        // If no text is valid, the default is the best guess.
        if said.is_empty() || !kept.is_empty() {
            valid.insert(setting.name, kept);
        }
    }
    valid
}

/// Configuration from a layer without mistakes.
fn config_of<C: Config>(layer: &Layer) -> C {
    let mut config = C::default();
    for setting in rows::<C>() {
        let mut set = |text: &str| {
            let set = setting.set(&mut config, text);
            set.unwrap_or_else(|why| unreachable!("{} was valid: {why}", setting.name));
        };
        match (layer.get(setting.name), setting.default) {
            (Some(said), _) => said.iter().for_each(|said| set(&said.text)),
            (None, Default::Text(text)) => set(text),
            (None, Default::Derived(_) | Default::Nothing) => {}
        }
    }
    config.conclude(layer);
    config
}

/// A configuration and the texts it was made from.
#[derive(Clone, Debug)]
pub(crate) struct Resolved<C> {
    pub(crate) config: C,
    /// True if the file sets something, even if flags or environment override it.
    pub(crate) has_lines: bool,
    said: Layer,
    /// Texts of the top level that hosts inherit.
    inherited: Layer,
    /// Texts of each host, without inherited ones.
    hosts: Vec<Layer>,
}

impl<C: Config> Resolved<C> {
    /// The texts of settings that only a restart applies. Hosts have no such settings.
    pub(crate) fn fixed(&self) -> Layer {
        let only_restart = rows::<C>().filter(|setting| setting.reload == Reload::Restart);
        let texts = only_restart.map(|setting| (setting.name, self.said.get(setting.name)));
        texts.filter_map(|(name, said)| Some((name, said?.clone()))).collect()
    }

    /// The settings that differ from `started`, the [`fixed`](Resolved::fixed) ones of the start.
    pub(crate) fn needs_restart(&self, started: &Layer) -> Vec<&'static str> {
        let only_restart = rows::<C>().filter(|setting| setting.reload == Reload::Restart);
        let names = only_restart.map(|setting| setting.name);
        names.filter(|name| texts(&self.said, name) != texts(started, name)).collect()
    }

    /// True if the setting is set at the top level, or in every host.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        let in_hosts = self.hosts.iter().all(|host| host.contains_key(name));
        self.said.contains_key(name) || !self.hosts.is_empty() && in_hosts
    }

    /// The texts of the top level.
    pub(crate) fn top(&self) -> &Layer {
        &self.said
    }

    /// The texts of a host, with inherited ones.
    pub(crate) fn host(&self, nth: usize) -> Layer {
        let mut host = self.inherited.clone();
        host.extend(self.hosts[nth].clone());
        host
    }

    /// Finds mistakes that show only when all values are combined. Each is reported at the place of
    /// its text: the one without which `check` finds another mistake, or none.
    ///
    /// # Errors
    /// A line for each mistake.
    pub(crate) fn check(&self, check: impl Fn(&C) -> Result<(), String>) -> Result<(), String> {
        none_of(self.mistakes(check))
    }

    fn mistakes(&self, check: impl Fn(&C) -> Result<(), String>) -> Vec<Mistake> {
        let mut blamed = blame(&self.said, &check, &[]);
        let sentences = blamed.iter().map(|blamed| blamed.mistake.sentence.clone());
        let mut known: HashSet<_> = sentences.collect();
        for nth in 0..self.hosts.len() {
            let of_host = blame(&self.host(nth), &check, &blamed).into_iter();
            // An inherited mistake is reported once.
            blamed.extend(of_host.filter(|it| known.insert(it.mistake.sentence.clone())));
        }
        blamed.into_iter().map(|blamed| blamed.mistake).collect()
    }
}

fn texts<'a>(layer: &'a Layer, name: &str) -> Option<Vec<&'a str>> {
    let said = layer.get(name)?.iter();
    Some(said.map(|said| said.text.as_str()).collect())
}

/// A mistake that a check has found, and the text at fault, if there is one.
struct Blamed {
    why: String,
    mistake: Mistake,
    said: Option<(&'static str, SettingText)>,
}

/// The mistakes that `check` finds in one layer. `known` are the mistakes of layers that may share
/// texts with this one.
fn blame<C: Config>(
    layer: &Layer,
    check: &impl Fn(&C) -> Result<(), String>,
    known: &[Blamed],
) -> Vec<Blamed> {
    let check = |layer: &Layer| check(&config_of(layer));
    let mut layer = layer.clone();
    let mut blamed = Vec::new();
    while let Err(why) = check(&layer) {
        let known = known.iter().filter(|known| known.why == why);
        let mut known = known.filter_map(|known| known.said.as_ref());
        let known = known.find_map(|(name, text)| {
            let mut said = layer.get(name)?.iter();
            Some((*name, said.position(|said| said == text)?))
        });
        let is_other = |layer: &Layer| check(layer).as_ref() != Err(&why);
        let Some((name, at)) = known.or_else(|| faulty_text(&layer, is_other)) else {
            let mistake = Mistake::new(why.clone());
            let said = None;
            blamed.push(Blamed { why, mistake, said });
            break;
        };
        let (mut rest, said) = without(&layer, name, at);
        let mistake = said.wrong(&why);
        let said = Some((name, said));
        blamed.push(Blamed { why, mistake, said });
        if name == "root" {
            // Files beneath an invalid root cannot be checked.
            rest.remove("error-page");
            rest.remove("spa");
        }
        let other = match name {
            "tls-cert" => "tls-key",
            "tls-key" => "tls-cert",
            _ => "",
        };
        if rest.get(other).is_some_and(|said| at < said.len()) {
            // A certificate means nothing without its key, nor a key without its certificate.
            rest = without(&rest, other, at).0;
        }
        layer = rest;
    }
    blamed
}

/// Settings that other checks depend on: blamed last, in this order.
const TO_BLAME_LAST: [&str; 4] = ["tls-key", "engine", "root", "tls-cert"];

/// The text at fault: of the first setting without which `is_other` holds, the last text of the
/// shortest prefix without which it holds. A binary search needs few checks for thousands of texts.
fn faulty_text(layer: &Layer, is_other: impl Fn(&Layer) -> bool) -> Option<(&'static str, usize)> {
    let names = layer.keys().copied();
    let names = names.filter(|name| !layer[name].is_empty());
    let (mut last, first): (Vec<_>, Vec<_>) = names.partition(|name| TO_BLAME_LAST.contains(name));
    last.sort_by_key(|name| TO_BLAME_LAST.iter().position(|other| other == name));
    let is_other_without = |name: &'static str, count: usize| {
        let mut layer = layer.clone();
        let mut said = layer.remove(name).unwrap_or_default();
        if count < said.len() {
            layer.insert(name, said.split_off(count));
        }
        is_other(&layer)
    };
    let mut names = first.into_iter().chain(last);
    let name = names.find(|name| is_other_without(name, layer[name].len()))?;
    let mut low = 1;
    let mut high = layer[name].len();
    while low < high {
        let middle = low.midpoint(high);
        if is_other_without(name, middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Some((name, low - 1))
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

/// The layer of the environment, and a warning for each `WEFT_` variable that is not a setting.
///
/// # Errors
/// One line for each variable whose setting was moved, or whose value is not UTF-8.
pub(crate) fn environment<C: Config>(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<(Layer, Vec<String>), String> {
    let mut layer = Layer::new();
    let mut warnings = Vec::new();
    let mut mistakes = Vec::new();
    for (variable, text) in variables {
        let Some(variable) = variable.to_str().filter(|name| name.starts_with("WEFT_")) else {
            continue;
        };
        let settings = || rows::<C>().filter(|setting| setting.scope != Scope::Host);
        let Some(setting) = settings().find(|setting| setting.env() == variable) else {
            let name = variable["WEFT_".len()..].to_ascii_lowercase().replace('_', "-");
            if let Some(new) = MOVED.find(&name) {
                // An empty variable counts as not set.
                if !text.is_empty() {
                    let why =
                        format!("{variable} is now part of WEFT_ENGINE, as in: WEFT_ENGINE={new}");
                    mistakes.push(Mistake::new(why));
                }
                continue;
            }
            let near = nearest(&name, settings().map(|setting| setting.name.to_owned()));
            let near = settings().find(|setting| near.as_deref() == Some(setting.name));
            let hint = near.map(|near| format!("; did you mean {}?", near.env()));
            let hint = hint.unwrap_or_default();
            warnings.push(format!("{variable} in the environment is not a setting{hint}"));
            continue;
        };
        let Some(text) = text.to_str() else {
            let why = format!("{variable}: its value is not UTF-8");
            mistakes.push(Mistake::new(why));
            continue;
        };
        // Empty counts as not set: systemd units and shells cannot always unset a variable.
        if !text.is_empty() {
            let texts = split(setting, text).into_iter();
            let said = texts.map(|text| SettingText::new(text, variable));
            layer.insert(setting.name, said.collect());
        }
    }
    none_of(mistakes).map(|()| (layer, warnings))
}

fn split<'a, C>(setting: &Setting<C>, text: &'a str) -> Vec<&'a str> {
    match (&setting.kind, setting.separator) {
        (Kind::Many(..), Separator::Space) => text.split_whitespace().collect(),
        (Kind::Many(..), Separator::Line) => {
            let lines = text.lines().map(str::trim);
            lines.filter(|line| !line.is_empty()).collect()
        }
        _ => vec![text],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::serve::ServeConfig;
    use std::io::Write;
    use std::num::NonZeroUsize;
    use std::path::PathBuf;
    use std::time::Duration;

    fn layer(name: &'static str, texts: &[&str]) -> Layer {
        let said = |text: &&str| SettingText::new(text, &format!("--{name}"));
        Layer::from([(name, texts.iter().map(said).collect())])
    }

    fn resolve(layers: &[&Layer], mistakes: Vec<Mistake>) -> Result<Resolved<ServeConfig>, String> {
        super::resolve(layers, &[], mistakes)
    }

    fn env(variables: &[(&str, &str)]) -> (Layer, Vec<String>) {
        environment::<ServeConfig>(variables.iter().map(|(name, text)| (name.into(), text.into())))
            .unwrap()
    }

    fn toml(text: &str) -> Result<ServeConfig, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let found = check_file(file.path(), |_: &ServeConfig| |_: &ServeConfig| Ok(()));
        let path = file.path().display().to_string();
        found.map(|found| found.config).map_err(|error| error.replace(&path, "FILE"))
    }

    #[test]
    fn nothing_said_means_loopback_and_this_directory() {
        let config = resolve(&[], Vec::new()).unwrap().config;
        assert_eq!(config.site.root, Path::new("."));
        assert_eq!(config.listen, ["127.0.0.1:8080".parse().unwrap()]);
        assert!(config.listen_is_default && config.site.precompressed);
        let site = &config.site;
        assert!(!site.hidden && !site.follow_links_out && !site.listing);
    }

    #[test]
    fn flag_environment_file_default() {
        let flags = layer("workers", &["1"]);
        let env = env(&[("WEFT_WORKERS", "2"), ("WEFT_IDLE_TIMEOUT", "2s")]).0;
        let mut file = layer("workers", &["3"]);
        file.extend(layer("idle-timeout", &["3s"]));
        file.extend(layer("head-timeout", &["3s"]));
        let config = resolve(&[&flags, &env, &file], Vec::new()).unwrap().config;
        assert_eq!(config.common.workers, NonZeroUsize::new(1));
        assert_eq!(config.connection_limits.idle_timeout, Duration::from_secs(2));
        assert_eq!(config.connection_limits.head_timeout, Duration::from_secs(3));
        assert_eq!(config.connection_limits.send_timeout, Duration::from_secs(60));
    }

    #[test]
    fn a_list_replaces_the_whole_list_below_it() {
        let config = resolve(&[&layer("index", &["a"]), &layer("index", &["b", "c"])], Vec::new());
        assert_eq!(config.unwrap().config.index, ["a"]);
        assert!(toml("index = []").unwrap().index.is_empty());
    }

    #[test]
    fn flag_variable_and_key_mean_the_same() {
        let shown = |config: ServeConfig| format!("{config:?}");
        let default = shown(resolve(&[], Vec::new()).unwrap().config);
        for setting in rows::<ServeConfig>().filter(|setting| setting.is_for_file()) {
            let text = sample(setting);
            let typed = layer(setting.name, &[text]);
            let typed = shown(resolve(&[&typed], Vec::new()).unwrap().config);
            let in_env = env(&[(&setting.env(), text)]).0;
            let in_env = shown(resolve(&[&in_env], Vec::new()).unwrap().config);
            let in_file = shown(toml(&format!("{} = '{text}'", setting.key())).unwrap());
            assert_eq!(typed, in_env, "{}", setting.name);
            assert_eq!(typed, in_file, "{}", setting.name);
            assert_ne!(typed, default, "{} sets nothing", setting.name);
        }
    }

    // A value other than the default.
    fn sample(setting: &Setting<ServeConfig>) -> &'static str {
        match (&setting.kind, setting.name) {
            (Kind::Switch(_), _) => ["true", "false"][usize::from(setting.is_on_by_default())],
            (Kind::Choice(choices, _), _) => choices.last().unwrap().0,
            (_, "proxy-from" | "limit-exempt") => "10.0.0.0/8",
            (_, "acme") => "me@example.org",
            (_, "acme-directory") => "staging",
            (_, "limit-requests") => "10/s",
            (_, "limit-prefix") => "24,64",
            (_, "listen" | "admin" | "https-redirect") => "[::1]:9",
            (_, "index") => "home.htm",
            (_, "compress") => "zstd,br",
            (_, "error-page") => "404=x.html",
            (_, "header") => "*.js=X-A: b=c",
            (_, "cache") => "*.js=max-age=1",
            (_, "mime-type") => "js=text/plain",
            (_, "basic-auth") => "/a/**=/etc/passwords",
            (_, "redirect") => "/a=/b 302",
            (_, "hsts") => "max-age=7; preload",
            (_, "user") => "www-data:adm",
            (_, "engine") => "event:dispatcher=lap,accept=distributed",
            (_, "recheck") => "7s",
            (_, name) if name.ends_with("timeout") => "7s",
            (Kind::Argument(..), _) | (_, "spa" | "access-log" | "pid-file") => "some/path",
            (_, "server-header") => "off",
            (_, "max-head" | "max-request-line") => "7K",
            _ => "7",
        }
    }

    #[test]
    fn numbers_booleans_arrays_and_tables() {
        let config = toml(
            "workers = 4\nlisting = true\nindex = ['a', 'b']\nmemory_budget = '1GiB'\n\
             [cache]\n'*.css' = 'max-age=60'\n'*.b' = 'no-store'\n\
             [headers.'*.js']\nX-A = 'a'\nX-B = 'b'\n[headers]\nX-All = 'c'\n\
             [error_pages]\n404 = '404.html'\n[mime_types]\nwasm = 'application/wasm'\n",
        )
        .unwrap();
        assert_eq!(config.common.workers, NonZeroUsize::new(4));
        assert!(config.site.listing);
        assert_eq!(config.index, ["a", "b"]);
        let cache = &config.site.cache_rules;
        assert_eq!((&*cache[0].glob, &*cache[0].value), ("*.css", "max-age=60"));
        assert_eq!(cache[1].glob, "*.b", "the order of the file is kept");
        let headers: Vec<_> =
            config.site.headers.iter().map(|rule| (&*rule.glob, &*rule.name)).collect();
        assert_eq!(headers, [("*.js", "X-A"), ("*.js", "X-B"), ("**", "X-All")]);
        assert_eq!(config.site.error_pages, [(404, PathBuf::from("404.html"))]);
        assert_eq!(config.site.mime_types[0].1, "application/wasm");
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
        assert!(wrong(twice).contains("FILE:3: 'headers' sets again what 'header' sets"));
    }

    const HOSTS: &str = "root = 'site'\nlisting = true\ncache = ['*.js=no-store']\n\
        tls_cert = 'server.pem'\n\
        [[host]]\nnames = ['a.org', '*.a.org']\nroot = 'a'\ntls_cert = 'a.pem'\n\
        [host.headers]\nX-Host = 'a'\n\
        [[host]]\nnames = ['b.org']\nlisting = false\ncache = []\n";

    #[test]
    fn a_host_inherits_what_it_does_not_set() {
        let config = toml(HOSTS).unwrap();
        assert!(config.names.is_empty() && !config.only_named_hosts);
        let [a, b] = &config.hosts[..] else { panic!("{:?}", config.hosts) };
        assert_eq!(a.names[1].as_str(), "*.a.org");
        assert_eq!((&*a.site.root, &*b.site.root), (Path::new("a"), Path::new("site")));
        assert!(a.site.listing && !b.site.listing);
        assert!(a.site.cache_rules.len() == 1 && b.site.cache_rules.is_empty());
        assert_eq!(a.site.headers[0].name, "X-Host");
        assert!(config.site.headers.is_empty() && b.site.headers.is_empty());
        assert_eq!(a.tls_cert, [PathBuf::from("a.pem")]);
        assert!(b.tls_cert.is_empty(), "a certificate is of one host");
        let without_root = toml("[[host]]\nnames = ['a.org']\n").unwrap();
        assert!(without_root.only_named_hosts);
    }

    #[test]
    fn a_mistake_in_a_host_names_its_line() {
        let wrong = |text: &str| toml(text).unwrap_err();
        for (text, why) in [
            ("[[host]]\nroot = 'a'", "FILE:1: this host has no name"),
            ("[[host]]\nnames = []", "FILE:1: this host has no name"),
            ("names = 'a'", "FILE:1: 'names' belongs into a [[host]]"),
            ("[[host]]\nnames = ['a']\nlisten = ':80'", "FILE:3: 'listen' is for the whole server"),
            (
                "[[host]]\nnames = ['a']\nlistin = true",
                "FILE:3: 'listin' is not a setting; did you mean 'listing'?",
            ),
            ("[[host]]\nnames = ['a', 'b c']", "FILE:2: names: 'b c': a name is letters"),
            (
                "[[host]]\nnames = 'a'\n[[host]]\nnames = ['b',\n'A']",
                "FILE:5: names: 'A' is also a name of the host in line 2",
            ),
            ("host = 'a'", "FILE:1: 'host' is not a setting; address and port are one"),
        ] {
            assert!(wrong(text).starts_with(why), "{text}: {}", wrong(text));
        }
        // A mistake at the top level is not repeated for each host.
        let inherited = wrong("listing = 3\n[[host]]\nnames = 'a'\n[[host]]\nnames = 'b'");
        assert_eq!(inherited.lines().count(), 1, "{inherited}");
    }

    #[test]
    fn a_check_of_hosts_blames_their_lines() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(HOSTS.as_bytes()).unwrap();
        let check = |config: &ServeConfig| match config.site.root.to_str() {
            Some("a") => Err("there is no a".to_owned()),
            _ => Ok(()),
        };
        let why = check_file(file.path(), |_: &ServeConfig| check).unwrap_err();
        assert!(why.ends_with(":7: root: there is no a"), "{why}");
        assert_eq!(why.lines().count(), 1);
    }

    #[test]
    fn every_mistake_of_a_file_is_told_at_once() {
        // Seen: mistakes were reported one at a time, and mistakes that only a check of the site
        // finds without file, line and key.
        let text = "workres = 4\nidle_timeout = 75\nworkers = 1.5\nindex = ['a', 'b/c', 'd/e']\n";
        let told = toml(text).unwrap_err();
        let places: Vec<_> = told.lines().map(|line| line.split(' ').next().unwrap()).collect();
        let lines = ["FILE:1:", "FILE:2:", "FILE:3:", "FILE:4:", "FILE:4:"];
        assert_eq!(places, lines, "{told}");
        assert_eq!(toml("a = \nb = 1\nc = ]\n").unwrap_err().lines().count(), 2);
    }

    #[test]
    fn a_mistake_of_the_whole_names_its_place() {
        let resolved = Resolved {
            config: ServeConfig::default(),
            has_lines: false,
            hosts: Vec::new(),
            inherited: Layer::new(),
            said: [("index", "bad-one"), ("root", "good"), ("spa", "bad two")]
                .map(|(name, text)| (name, vec![SettingText::new(text, &format!("--{name}"))]))
                .into(),
        };
        let check = |config: &ServeConfig| {
            let said = config.index.iter().chain(&config.site.spa_fallback);
            match said.into_iter().find(|text| text.starts_with("bad")) {
                Some(text) => Err(format!("{text} beneath {}", config.site.root.display())),
                None => Ok(()),
            }
        };
        assert_eq!(
            resolved.check(check).unwrap_err(),
            "--index: bad-one beneath good\n--spa: bad two beneath good"
        );
    }

    /// Seen: finding a loop among 10,000 redirects of the file took 10,000 checks.
    #[test]
    fn few_checks_find_one_of_thousands() {
        let texts: Vec<_> = (0..10_000).map(|nth| format!("n{nth}")).collect();
        let texts: Vec<_> = texts.iter().map(String::as_str).collect();
        let top = layer("index", &texts);
        let host = |nth: usize| layer("names", &[&format!("h{nth}")]);
        let hosts: Vec<_> = (0..3).map(host).collect();
        let resolved = super::resolve(&[&top], &hosts, Vec::new()).unwrap();
        let checks = std::cell::Cell::new(0);
        let check = |config: &ServeConfig| {
            checks.set(checks.get() + 1);
            let wrong = |name: &&String| ["n7001", "n7002"].contains(&&***name);
            let found = config.index.iter().find(wrong);
            found.map_or(Ok(()), |name| Err(format!("{name} is wrong")))
        };
        let why = resolved.check(check).unwrap_err();
        assert_eq!(why, "--index: n7001 is wrong\n--index: n7002 is wrong");
        assert!(checks.get() < 100, "{} checks", checks.get());
    }

    #[test]
    fn what_hosts_inherit_is_bounded() {
        let value = vec!["n"; 1024];
        let top = layer("index", &value);
        let host = |nth: usize| layer("names", &[&format!("h{nth}")]);
        let many = |count| {
            let hosts: Vec<_> = (0..count).map(host).collect();
            super::resolve::<ServeConfig>(&[&top], &hosts, Vec::new()).map(drop)
        };
        assert_eq!(many(10), Ok(()));
        let why = many(1025).unwrap_err();
        assert!(why.starts_with("1025 hosts inherit 1024 values each"), "{why}");
    }

    /// The error for a limit that a host cannot have gives the reason.
    #[test]
    fn limits_of_a_host_or_why_not() {
        let set = |line: &str| toml(&format!("{line}\n[[host]]\nnames = 'a'\n{line}\n"));
        for line in ["max_body = '7'", "recheck = '7s'", "limit_requests = '7/s'"] {
            assert!(set(line).is_ok(), "{line}");
        }
        for (line, why) in [
            ("limit_connections = 7", ", because connections are counted before their host is"),
            ("max_connections = 7", ", because connections are counted before their host is"),
            ("limit_prefix = '24,56'", ", because all limits tell clients apart alike"),
            ("limit_exempt = '10.0.0.0/8'", ", because all limits tell clients apart alike"),
            ("max_head = '7K'", ", because it holds before the host is known"),
            ("max_request_line = '7K'", ", because it holds before the host is known"),
            ("max_fields = 7", ", because it holds before the host is known"),
            ("head_timeout = '7s'", ", because a connection may be for several hosts"),
            ("send_rate_min = 7", ", because a connection may be for several hosts"),
            ("memory_budget = '7M'", ", because hosts share the memory"),
            ("listen = ':80'", ""),
        ] {
            let name = line.split(' ').next().unwrap();
            let why = format!("FILE:4: '{name}' is for the whole server{why}");
            let told = set(line).unwrap_err();
            assert!(told.starts_with(&why), "{told}");
            assert!(told.ends_with(": write it above the first [[host]]"), "{told}");
        }
        let hosts = "limit_requests = '7/s'\n[[host]]\nnames = 'a'\nlimit_requests = 'off'\n\
                     [[host]]\nnames = 'b'\n";
        let config = toml(hosts).unwrap();
        assert_eq!(config.hosts[0].limit_requests, None);
        assert_eq!(config.hosts[1].limit_requests, config.limit_requests);
    }

    #[test]
    fn a_moved_setting_names_its_new_form() {
        let why = toml("io = 'epoll'").unwrap_err();
        assert!(why.contains("engine = \"fiber:io=uring\""), "{why}");
        let why = toml("multi_accept = false").unwrap_err();
        assert!(why.contains("engine = \"event:multi-accept=off\""), "{why}");
        // Seen: `WEFT_IO=epoll` only gave a warning, and the server ran with other settings.
        let old = [("WEFT_STAGE_QUEUE", "9"), ("WEFT_IO", "epoll")];
        let old = old.map(|(name, text)| (name.into(), text.into()));
        let why = environment::<ServeConfig>(old.into_iter()).unwrap_err();
        assert_eq!(
            why,
            "WEFT_STAGE_QUEUE is now part of WEFT_ENGINE, as in: WEFT_ENGINE=pipeline:queue=128\n\
             WEFT_IO is now part of WEFT_ENGINE, as in: WEFT_ENGINE=fiber:io=uring"
        );
        assert_eq!(env(&[("WEFT_IO", "")]), (Layer::new(), Vec::new()));
    }

    #[test]
    fn unknown_variables_warn_and_empty_ones_do_not() {
        let (layer, warnings) = env(&[("WEFT_WORKER", "2"), ("WEFT_USER", ""), ("HOME", "/")]);
        assert!(layer.is_empty());
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].contains("did you mean WEFT_WORKERS?"), "{warnings:?}");
        // Seen: WEFT_FOO was taken for WEFT_ROOT, because the letters of `WEFT_` counted.
        for unlike in ["WEFT_FOO", "WEFT_NAMES"] {
            let warnings = env(&[(unlike, "2")]).1;
            assert_eq!(warnings, [format!("{unlike} in the environment is not a setting")]);
        }
    }

    #[test]
    fn lists_in_the_environment() {
        let layer = env(&[("WEFT_LISTEN", ":80 8081"), ("WEFT_HEADER", "A: b c\nD: e\n")]).0;
        let config = resolve(&[&layer], Vec::new()).unwrap().config;
        assert_eq!(config.listen.len(), 2);
        assert_eq!(config.site.headers[0].value, "b c");
        assert_eq!(config.site.headers.len(), 2);
    }

    #[test]
    fn a_reload_tells_what_it_cannot_apply() {
        let old = resolve(&[&layer("workers", &["1"])], Vec::new()).unwrap();
        let mut newer = layer("workers", &["2"]);
        newer.extend(layer("listing", &["true"]));
        let newer = resolve(&[&newer], Vec::new()).unwrap();
        assert_eq!(newer.needs_restart(&old.fixed()), ["workers"]);
        assert_eq!(old.needs_restart(&newer.fixed()), ["workers"]);
        assert!(newer.needs_restart(&newer.fixed()).is_empty());
    }
}
