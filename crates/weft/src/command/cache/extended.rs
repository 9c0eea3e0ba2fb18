//! The command line with the list behind `-o`: names with or without a value, separated by commas,
//! as getsubopt(3) reads them.

use super::config::CacheConfig;
use super::table::EXTENDED;
use crate::settings::layers::{Layer, Mistake, SettingText, resolve};
use crate::settings::{Kind, Setting};

impl CacheConfig {
    /// Reads what was typed.
    ///
    /// # Errors
    /// A sentence for each mistake that names the option, what is wrong with it and what to write.
    pub(crate) fn read(mut typed: Layer) -> Result<CacheConfig, String> {
        let mistakes = expand(&mut typed);
        let config = resolve::<CacheConfig>(&[&typed], mistakes)?.config;
        config.check()?;
        Ok(config)
    }
}

/// Adds the options in the lists of `-o` to what was typed. Returns a mistake for each that is
/// unknown, lacks its value, or has a value and takes none.
fn expand(typed: &mut Layer) -> Vec<Mistake> {
    let lists = typed.get("extended").cloned().unwrap_or_default();
    let words = lists.iter().flat_map(|list| list.text.split(','));
    let mut mistakes = Vec::new();
    for word in words.filter(|word| !word.is_empty()) {
        match read(word) {
            Ok((row, said)) => typed.entry(row.name).or_default().push(said),
            Err(why) => mistakes.push(Mistake::new(why)),
        }
    }
    mistakes
}

/// The one option that memcached takes with and without its value.
const VALUE_OPTIONAL: &str = "slab_automove";

fn read(word: &str) -> Result<(&'static Setting<CacheConfig>, SettingText), String> {
    let (typed, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word, None),
    };
    let (row, is_on) = find(typed).ok_or_else(|| unknown(typed))?;
    let text = match (&row.kind, value) {
        (Kind::Switch(_), Some(_)) => return Err(format!("-o {typed} takes no value")),
        (Kind::Switch(_), None) => ["off", "on"][usize::from(is_on)],
        (_, Some(value)) if !value.is_empty() => value,
        (_, _) if !is_on || row.name == VALUE_OPTIONAL => "",
        (_, _) => {
            let what = row.value().unwrap_or_default();
            return Err(format!("-o {typed} needs a value: {typed}=<{what}>"));
        }
    };
    Ok((row, SettingText::new(text, &format!("-o {typed}"))))
}

fn find(typed: &str) -> Option<(&'static Setting<CacheConfig>, bool)> {
    let by_name = |name: &str| EXTENDED.iter().find(|row| row.name == name);
    match by_name(typed) {
        Some(row) => Some((row, true)),
        // `no_` also stands before slab_automove, which has a value.
        None => Some((by_name(typed.strip_prefix("no_")?)?, false)),
    }
}

fn unknown(typed: &str) -> String {
    let alike = |row: &&Setting<_>| (strsim::jaro_winkler(row.name, typed) * 1000.0) as u32;
    let nearest = EXTENDED.iter().max_by_key(alike);
    let advice = match nearest.filter(|row| alike(row) > 850) {
        Some(row) => format!("did you mean {}?", row.name),
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
        check("modern", "modern", "on");
        check("no_slab_automove", "slab_automove", "");
        check("slab_automove", "slab_automove", "");
        let mut typed = crate::command::cache::typed("-o modern,,track_sizes -o hashpower=20");
        assert!(expand(&mut typed).is_empty());
        let names: Vec<_> = typed.into_keys().collect();
        assert_eq!(names, ["extended", "hashpower", "modern", "track_sizes"]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let check = |list: &str, expected: &str| {
            let typed = crate::command::cache::typed(&format!("-o {list}"));
            let said = CacheConfig::read(typed).unwrap_err();
            assert!(said.contains(expected), "{list}: {said}");
        };
        check("modern,lru_crawller", "did you mean lru_crawler?");
        check("xyzzy", "-o xyzzy: there is no such option; weft cache -h");
        check("idle_timeout", "idle_timeout=<seconds>");
        check("slab_automove_ratio", "slab_automove_ratio=<num>");
        check("idle_timeout=", "idle_timeout=<seconds>");
        check("modern=1", "takes no value");
        check("ext_path=/mnt/x:1G", "no external storage");
        check("proxy_config=x.lua", "nutcracker");
        let both = "-o xyzzy: there is no such option; weft cache -h lists the options\n\
                    -o hashpower: '99'";
        check("hashpower=99,xyzzy", both);
    }
}
