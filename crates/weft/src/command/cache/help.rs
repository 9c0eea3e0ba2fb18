//! `-h`, `-V` and `-i`, in memcached's form.

use std::io::{self, Write};

use super::config::CacheConfig;
use super::table::EXTENDED;
use crate::hints::{IDLE, REFUSED, sections};
use crate::settings::{Default, Setting, flags};
use crate::value::{fold, write_row};

/// Column of the descriptions, and width of a line.
const COLUMN: usize = 26;
const EXTENDED_COLUMN: usize = 28;
const WIDTH: usize = 100;

/// Writes `weft cache VERSION`, where memcached writes its own version.
pub(crate) fn version(out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "weft cache {}", env!("CARGO_PKG_VERSION"))
}

pub(crate) fn license(out: &mut impl Write) -> io::Result<()> {
    version(out)?;
    writeln!(
        out,
        "MIT OR Apache-2.0: at your choice the license of https://opensource.org/license/mit or of\n\
         https://www.apache.org/licenses/LICENSE-2.0. There is no warranty."
    )
}

/// Writes all options.
pub(crate) fn help(out: &mut impl Write) -> io::Result<()> {
    version(out)?;
    for opt in flags::<CacheConfig>() {
        write_row(out, &usage(opt), COLUMN, WIDTH, &describe(opt))?;
        if opt.name == "verbose" {
            let what = "also print commands, replies, and the sizes of chunks";
            write_row(out, "-vv", COLUMN, WIDTH, what)?;
        }
        if opt.name == "extended" {
            for row in EXTENDED {
                let name = format!("   - {}:", listed(row));
                write_row(out, &name, EXTENDED_COLUMN, WIDTH, &describe(row))?;
            }
            write_names(out, "accepted, without effect:", IDLE.names())?;
            let refused = REFUSED.names().filter(|name| !is_external(name));
            write_names(out, "refused, as is all external storage:", refused)?;
        }
    }
    writeln!(out, "\nExamples:")?;
    let (_, examples) = sections("cache")[0];
    for line in examples.lines() {
        writeln!(out, "  {line}")?;
    }
    Ok(())
}

/// `-p, --port=<num>`, as in memcached's help.
fn usage(opt: &Setting<CacheConfig>) -> String {
    let long = format!("--{}", listed(opt));
    match opt.short {
        Some(short) => format!("-{short}, {long}"),
        None => long,
    }
}

/// `idle_timeout=<seconds>`
fn listed(opt: &Setting<CacheConfig>) -> String {
    let name = opt.name;
    opt.value().map_or(name.to_owned(), |value| format!("{name}=<{value}>"))
}

fn describe(opt: &Setting<CacheConfig>) -> String {
    let mut text = opt.help.to_owned();
    if let Default::Text(default) | Default::Derived(default) = opt.default {
        text += &format!(" (default: {default})");
    }
    if !opt.more.is_empty() {
        text += &format!(". {}", opt.more);
    }
    text
}

/// True for options of external storage. They are not listed: some programs search for their names
/// here, to find out whether they are supported.
fn is_external(name: &str) -> bool {
    name.starts_with("ext_")
}

fn write_names(
    out: &mut impl Write,
    title: &str,
    names: impl Iterator<Item = &'static str>,
) -> io::Result<()> {
    writeln!(out, "   {title}")?;
    for line in fold(&names.collect::<Vec<_>>().join(", "), WIDTH - 5) {
        writeln!(out, "     {line}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hints::Hints;

    #[test]
    fn the_help_names_everything_within_the_width() {
        let mut text = Vec::new();
        help(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for opt in flags::<CacheConfig>() {
            assert!(text.contains(&usage(opt)), "{}", opt.name);
        }
        let listed = EXTENDED.iter().map(|row| row.name);
        for name in listed.chain(IDLE.names()).chain(REFUSED.names()) {
            assert_eq!(text.contains(name), !is_external(name), "{name}");
        }
        let longest = text.lines().max_by_key(|line| line.len()).unwrap();
        assert!(longest.len() <= WIDTH, "{longest}");
    }

    /// The tables of `docs/cache.md`.
    fn manual_tables() -> String {
        let table = |rows: &mut dyn Iterator<Item = &Setting<CacheConfig>>, usage: UsageOf| {
            let rows = rows.map(|row| {
                let default = match row.default {
                    Default::Text(default) | Default::Derived(default) => default,
                    Default::Nothing => "",
                };
                format!(
                    "| `{}` | {default} | {} |\n",
                    usage(row).replace('|', "\\|"),
                    row.description()
                )
            });
            rows.collect::<String>()
        };
        let (options, listed) =
            (table(&mut flags::<CacheConfig>(), usage), table(&mut EXTENDED.iter(), listed));
        format!(
            "\n| option | default | |\n|---|---|---|\n{options}\n\
             | `-o` | default | |\n|---|---|---|\n{listed}\n\
             | `-o`, accepted without effect | because |\n|---|---|\n{}\n\
             | `-o`, refused | because |\n|---|---|\n{}\n",
            reasons(IDLE),
            reasons(REFUSED)
        )
    }

    fn reasons(reasons: Hints) -> String {
        let row =
            |(names, why): (&str, &str)| format!("| `{}` | {why} |\n", names.replace(' ', "`, `"));
        reasons.rows().map(row).collect()
    }

    type UsageOf = fn(&Setting<CacheConfig>) -> String;

    #[test]
    fn the_manual_has_the_tables_of_options() {
        crate::pages::check_manual("cache.md", "options", &manual_tables());
    }

    #[test]
    fn the_manual_page_names_every_option() {
        let mut text = Vec::new();
        assert!(crate::pages::man(Some("cache"), &mut text).unwrap());
        let text = String::from_utf8(text).unwrap().replace("\\-", "-");
        for opt in flags::<CacheConfig>() {
            assert!(text.contains(&format!("--{}", opt.name)), "{}", opt.name);
        }
        assert!(text.contains("SIGUSR1"), "the signals are not there");
    }
}
