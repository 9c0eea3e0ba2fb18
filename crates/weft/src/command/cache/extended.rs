//! The command line with the lists of `-o`: names with or without a value, separated by commas, as
//! in getsubopt(3).

use super::config::CacheConfig;
use super::table::EXTENDED;
use crate::hints::{Hints, IDLE, MOVED, REFUSED};
use crate::settings::layer::{Layer, Mistake, SettingText};
use crate::settings::layers::resolve;
use crate::settings::{Config, Kind, Setting, flags};

impl CacheConfig {
    /// Converts the parsed flags.
    ///
    /// # Errors
    /// One sentence per mistake: the option, its fault and the remedy.
    pub(crate) fn read(mut typed: Layer) -> Result<CacheConfig, String> {
        let (idle, mistakes) = expand(&mut typed);
        let mut config = resolve::<CacheConfig>(&[&typed], &[], mistakes)?.config;
        config.idle.extend(idle);
        config.check()?;
        Ok(config)
    }
}

/// Adds the options in the lists of `-o` to the flags. Returns a note for each option without
/// effect, and a mistake for each that is unknown or refused, lacks its value, or has a superfluous
/// one.
fn expand(typed: &mut Layer) -> (Vec<String>, Vec<Mistake>) {
    let lists = typed.get("extended").cloned().unwrap_or_default();
    let words = lists.iter().flat_map(|list| list.text.split(','));
    let mut idle = Vec::new();
    let mut mistakes = Vec::new();
    for word in words.filter(|word| !word.is_empty()) {
        let name = word.split('=').next().unwrap_or_default();
        if let Some(why) = reason(IDLE, name) {
            idle.push(format!("-o {name} changes nothing: {why}"));
            continue;
        }
        match read(word) {
            Ok((row, said)) => typed.entry(row.name).or_default().push(said),
            Err(why) => mistakes.push(Mistake::new(why)),
        }
    }
    (idle, mistakes)
}

/// The reason for a name, with or without `no_`.
fn reason(reasons: Hints, typed: &str) -> Option<&'static str> {
    reasons.find(typed).or_else(|| reasons.find(typed.strip_prefix("no_")?))
}

fn read(word: &str) -> Result<(&'static Setting<CacheConfig>, SettingText), String> {
    let (typed, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word, None),
    };
    if let Some(why) = reason(REFUSED, typed) {
        return Err(format!("-o {typed} is not supported: {why}"));
    }
    let (row, is_on) = find(typed).ok_or_else(|| match flag(typed, value.unwrap_or_default()) {
        Some(flag) => format!("-o {typed}: it is a flag: {flag}"),
        None => unknown(typed),
    })?;
    let text = match (&row.kind, value) {
        (Kind::Switch(_), Some(_)) => return Err(format!("-o {typed} takes no value")),
        (Kind::Switch(_), None) => ["off", "on"][usize::from(is_on)],
        (_, Some(value)) if !value.is_empty() => value,
        (_, _) => {
            let what = row.value().unwrap_or_default();
            return Err(format!("-o {typed} needs a value: {typed}=<{what}>"));
        }
    };
    Ok((row, SettingText::new(text, &format!("-o {typed}"))))
}

fn find(typed: &str) -> Option<(&'static Setting<CacheConfig>, bool)> {
    let by_name = |name: &str| EXTENDED.iter().find(|row| row.name == name);
    let off = |name| by_name(name).filter(|row| matches!(row.kind, Kind::Switch(_)));
    match by_name(typed) {
        Some(row) => Some((row, true)),
        None => Some((off(typed.strip_prefix("no_")?)?, false)),
    }
}

/// The flag of this name with this value, as it would be typed.
fn flag(typed: &str, value: &str) -> Option<String> {
    let name = typed.replace('_', "-");
    if let Some(new) = MOVED.find(&name) {
        return Some(format!("--engine, as in --engine {new}"));
    }
    let row = flags::<CacheConfig>().find(|row| row.name == name)?;
    let flag = CacheConfig::flag(row);
    let value = match row.value() {
        Some(shown) if value.is_empty() => format!(" {shown}"),
        Some(_) => format!(" {value}"),
        None => String::new(),
    };
    Some(format!("{flag}{value}"))
}

fn unknown(typed: &str) -> String {
    let alike = |name: &&str| (strsim::jaro_winkler(name, typed) * 1000.0) as u32;
    let is_flag = |name: &str| flags::<CacheConfig>().any(|row| row.name == name);
    let known = EXTENDED.iter().map(|row| row.name);
    let nearest = known
        .chain(IDLE.names())
        .chain(REFUSED.names())
        .chain(flags::<CacheConfig>().map(|row| row.name))
        .max_by_key(alike);
    let advice = match nearest.filter(|name| alike(name) > 850) {
        Some(name) if is_flag(name) => format!("did you mean --{name}?"),
        Some(name) => format!("did you mean {name}?"),
        None => "weft cache -h lists the options".to_owned(),
    };
    format!("-o {typed}: there is no such option; {advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_names_with_and_without_values() {
        let check = |word, name, text| {
            let (row, said) = read(word).map_err(drop).unwrap();
            assert_eq!((row.name, said.text.as_str()), (name, text));
        };
        check("no_maxconns_fast", "maxconns_fast", "off");
        check("idle_timeout=10", "idle_timeout", "10");
        let mut typed = crate::command::cache::typed("-o modern,,track_sizes -o hashpower=20");
        let (idle, mistakes) = expand(&mut typed);
        assert!(mistakes.is_empty() && idle[0].starts_with("-o modern changes nothing: "));
        let names: Vec<_> = typed.into_keys().collect();
        assert_eq!(names, ["extended", "hashpower", "track_sizes"]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let check = |list: &str, expected: &str| {
            let typed = crate::command::cache::typed(&format!("-o {list}"));
            let said = CacheConfig::read(typed).unwrap_err();
            assert!(said.contains(expected), "{list}: {said}");
        };
        check("modern,no_slab_automove,slab_automove=1,lru_crawller", "did you mean lru_crawler?");
        check("xyzzy", "-o xyzzy: there is no such option; weft cache -h");
        for (list, flag) in [
            ("engine=event", "--engine event"),
            ("engine", "--engine NAME[:KEY=VALUE,...]"),
            ("io=uring", "--engine, as in --engine fiber:io=uring"),
            ("threads=4", "-t 4"),
            ("drain_timeout=1s", "--drain-timeout 1s"),
        ] {
            let name = list.split('=').next().unwrap();
            check(list, &format!("-o {name}: it is a flag: {flag}"));
        }
        check("engin=", "did you mean --engine?");
        check("idle_timeout", "idle_timeout=<seconds>");
        check("idle_timeout=", "idle_timeout=<seconds>");
        check("track_sizes=1", "takes no value");
        check("ext_path=/mnt/x:1G", "no external storage");
        check("proxy_config=x.lua", "nutcracker");
        let both = "-o xyzzy: there is no such option; weft cache -h lists the options\n\
                    -o hashpower: '99'";
        check("hashpower=99,xyzzy", both);
    }
}
