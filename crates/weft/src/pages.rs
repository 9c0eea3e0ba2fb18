//! Manual pages and completions, generated from the definition of the command line.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::args;
use crate::command::lab;
use crate::command::serve::ServeConfig;
use crate::hints;
use crate::settings::Config;
use crate::value::fold;

/// Writes a shell's completions.
///
/// # Errors
/// Errors of `out`.
pub(crate) fn completions(shell: Shell, out: &mut impl Write) -> io::Result<()> {
    // clap_complete panics on a write error, so it writes to memory.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut with_names(args::command()), "weft", &mut script);
    if shell == Shell::Fish {
        write_names_for_fish(&mut script)?;
    }
    out.write_all(&script)
}

/// Adds the values of arguments for fish; clap_complete only writes those of flags.
fn write_names_for_fish(script: &mut Vec<u8>) -> io::Result<()> {
    let rows = [
        ("lab; and __fish_seen_subcommand_from run list", lab::experiments().join(" ")),
        ("man", names().join(" ")),
    ];
    for (command, names) in rows.iter().filter(|(_, names)| !names.is_empty()) {
        let condition = format!("__fish_weft_using_subcommand {command}");
        writeln!(script, "complete -c weft -n \"{condition}\" -f -a \"{names}\"")?;
    }
    Ok(())
}

/// The command with the possible names of its arguments, for shells: experiments and pages.
fn with_names(command: Command) -> Command {
    let of_man = |man: Command| man.mut_arg("command", |arg| arg.value_parser(names()));
    let of_server = |server: Command| {
        server.mut_arg("engine", |arg| arg.value_parser(crate::engine::names().collect::<Vec<_>>()))
    };
    lab::with_names(command)
        .mut_subcommand("serve", of_server)
        .mut_subcommand("cache", of_server)
        .mut_subcommand("man", of_man)
}

/// A command with a manual page.
struct Page {
    /// Name of its file without `weft-`: `load-http`; `None` for weft itself.
    name: Option<String>,
    /// The words of the command after `weft`: `load`, `http`.
    words: Vec<String>,
    command: Command,
}

/// The pages: weft's own, and one for every command at every level.
fn pages() -> Vec<Page> {
    // `help` has no page.
    let without_help = |command: Command| command.disable_help_subcommand(true);
    let mut weft = without_help(args::command()).mut_subcommands(without_help);
    weft.build();
    let mut pages = Vec::new();
    add(&weft, Vec::new(), &mut pages);
    pages
}

fn add(command: &Command, words: Vec<String>, pages: &mut Vec<Page>) {
    pages.push(Page {
        name: (!words.is_empty()).then(|| words.join("-")),
        words: words.clone(),
        command: command.clone(),
    });
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        let name = below.get_name().to_owned();
        add(below, [words.as_slice(), &[name]].concat(), pages);
    }
}

/// The names of commands with a page: `load-http`.
pub(crate) fn names() -> Vec<String> {
    pages().into_iter().filter_map(|page| page.name).collect()
}

/// Writes the page of one command, `load http` or `load-http`; without a name that of weft itself.
/// `false` if there is no such command.
///
/// # Errors
/// Errors of `out`.
pub(crate) fn man(name: Option<&str>, out: &mut impl Write) -> io::Result<bool> {
    let name = name.map(|name| name.replace(' ', "-"));
    let pages = pages();
    match pages.iter().find(|page| page.name == name) {
        Some(page) => write_page(page, &pages, out).map(|()| true),
        None => Ok(false),
    }
}

/// Writes all pages to a folder, and returns their names.
///
/// # Errors
/// Errors of writing a file.
pub(crate) fn man_all(folder: &Path) -> io::Result<Vec<String>> {
    fs::create_dir_all(folder)?;
    let mut files = Vec::new();
    let pages = pages();
    for page in &pages {
        let file = format!("{}.1", page.title());
        let mut text = Vec::new();
        write_page(page, &pages, &mut text)?;
        fs::write(folder.join(&file), text)?;
        files.push(file);
    }
    Ok(files)
}

impl Page {
    fn title(&self) -> String {
        match &self.name {
            None => "weft".to_owned(),
            Some(name) => format!("weft-{name}"),
        }
    }

    /// True if the other page is above this one, or a sibling of it or of a page above.
    fn leads_to(&self, other: &Page) -> bool {
        let beside = &other.words[..other.words.len().saturating_sub(1)];
        let is_deeper = other.words.len() > self.words.len().max(1);
        other.words != self.words && !is_deeper && self.words.starts_with(beside)
    }
}

fn write_page(page: &Page, pages: &[Page], out: &mut impl Write) -> io::Result<()> {
    let command = &page.command;
    let source = format!("weft {}", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone())
        .title(page.title().to_uppercase())
        .source(source)
        .manual("weftwork");
    man.render_title(out)?;
    man.render_name_section(out)?;
    synopsis(command).to_writer(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(out)?;
    }
    // Examples and exit codes belong to the first level, for all commands below it.
    let first = page.words.first().map_or("weft", String::as_str);
    for (title, text) in hints::sections(first) {
        section(&title.to_uppercase(), text).to_writer(out)?;
    }
    if first == "serve" {
        section("KEYS OF THE FILE THAT ARE NO OPTIONS", &keys_of_the_file()).to_writer(out)?;
    }
    see_also(page, pages).to_writer(out)
}

/// The usage line of the help.
fn synopsis(command: &Command) -> Roff {
    let usage = command.clone().render_usage().to_string();
    section("SYNOPSIS", usage.trim_start_matches("Usage: "))
}

/// Settings that only the configuration file and the environment have.
fn keys_of_the_file() -> String {
    let for_file = ServeConfig::LISTED.iter().filter(|setting| setting.is_for_file());
    let keys = for_file.map(|setting| {
        let value = setting.value().unwrap_or_default();
        let text = fold(&setting.description(), 66).join("\n    ");
        format!("{} = {value} [env: {}]\n    {text}\n", setting.key(), setting.env())
    });
    keys.collect()
}

/// A section with unchanged lines.
fn section(title: &str, text: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [title]).control("nf", []);
    for line in text.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff
}

fn see_also(page: &Page, pages: &[Page]) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    for other in pages.iter().filter(|other| page.leads_to(other)) {
        roff.text([bold(other.title()), roman("(1)")]);
    }
    roff
}

/// Checks that a page contains the text generated from the tables, between the marks of this name;
/// or writes it there.
#[cfg(test)]
#[track_caller]
pub(crate) fn check_manual(page: &str, name: &str, made: &str) {
    let (begin, end) = (format!("<!-- {name}: begin -->\n"), format!("<!-- {name}: end -->"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(&begin).unwrap();
    let (there, after) = rest.split_once(&end).unwrap();
    if std::env::var_os("UPDATE_MANUAL").is_some() {
        fs::write(&path, format!("{before}{begin}{made}{end}{after}")).unwrap();
        return;
    }
    assert!(
        there == made,
        "docs/{page} is behind the tables: UPDATE_MANUAL=1 cargo test -p weftwork manual"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    use crate::settings::{Default, Kind, Reload, Setting, flags, rows};

    #[test]
    fn the_manual_page_of_serve_names_every_setting() {
        let mut text = Vec::new();
        assert!(man(Some("serve"), &mut text).unwrap());
        let text = String::from_utf8(text).unwrap().replace("\\-", "-");
        assert!(text.contains(".TH WEFT-SERVE 1"), "{text}");
        for setting in flags::<ServeConfig>() {
            let is_flag = !matches!(setting.kind, Kind::Argument(..));
            assert!(!is_flag || text.contains(&setting.flag()), "{}", setting.name);
        }
        for setting in rows::<ServeConfig>().filter(|row| row.is_for_file()) {
            assert!(text.contains(&setting.env()), "{}", setting.name);
        }
        for title in ["EXAMPLES", "SIGNALS", "EXIT STATUS", "SEE ALSO"] {
            assert!(text.replace('"', "").contains(&format!(".SH {title}")), "{title}");
        }
    }

    /// Seen: synopses of fifty options without their values, `[--index] [--listing] …`, and for the
    /// cache `[-A|--enable-shutdown]...`.
    #[test]
    fn a_synopsis_is_the_usage_line() {
        for (name, usage) in [
            ("serve", "weft serve [OPTIONS] [DIR]"),
            ("cache", "weft cache [OPTIONS]"),
            ("load http", "weft load http [OPTIONS] <URL>..."),
        ] {
            let mut text = Vec::new();
            assert!(man(Some(name), &mut text).unwrap());
            let text = String::from_utf8(text).unwrap().replace("\\-", "-");
            assert!(text.contains(&format!("\n{usage}\n")), "{text}");
        }
    }

    /// The table of `docs/serve.md`.
    fn manual_table() -> String {
        let groups = ServeConfig::GROUPS.iter();
        let tables = groups.map(|group| (group.heading, group.rows, "flag"));
        let listed = ("In the file and the environment only", ServeConfig::LISTED, "key");
        let mut table = String::new();
        for (heading, rows, what) in tables.chain([listed]) {
            let _ = write!(table, "\n### {heading}\n| {what} | default | |\n|---|---|---|\n");
            for setting in rows.iter().filter(|row| what == "flag" || row.is_for_file()) {
                let _ = writeln!(table, "{}", manual_row(setting, what == "key"));
            }
        }
        table + "\n"
    }

    fn manual_row(setting: &Setting<ServeConfig>, is_key: bool) -> String {
        let value = match setting.kind {
            Kind::Argument(..) => None,
            _ => setting.value(),
        };
        let (name, sign) = if is_key { (setting.key(), " = ") } else { (setting.flag(), " ") };
        let value = value.map_or(String::new(), |value| format!("{sign}{value}"));
        let flag = format!("{name}{value}").replace('|', "\\|");
        let default = match setting.default {
            _ if matches!(setting.kind, Kind::Switch(_)) => String::new(),
            Default::Text(text) => format!("`{text}`"),
            Default::Derived(how) => how.to_owned(),
            Default::Nothing => String::new(),
        };
        let reload = match setting.reload {
            Reload::Applies => " ↻",
            Reload::Restart => "",
        };
        let description = setting.description();
        format!("| `{flag}`{reload} | {default} | {description} |")
    }

    #[test]
    fn the_manual_has_the_table_of_settings() {
        check_manual("serve.md", "settings", &manual_table());
    }

    #[test]
    fn every_command_has_a_page() {
        let folder = tempfile::tempdir().unwrap();
        let files = man_all(folder.path()).unwrap();
        assert!(
            files.contains(&"weft.1".to_owned()) && files.contains(&"weft-doctor.1".to_owned())
        );
        assert!(!man(Some("no-such-command"), &mut Vec::new()).unwrap());
    }

    /// Seen: `weft man load` referred to weft-load-http(1), which neither `weft man` nor `weft man
    /// --dir` had, so no page listed the flags of `weft load http`. Cause: pages were generated for
    /// the first level of commands only. Cure: for all levels.
    #[test]
    fn a_page_that_another_names_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let files = man_all(folder.path()).unwrap();
        let mut named = 0;
        for file in &files {
            let text = fs::read_to_string(folder.path().join(file)).unwrap();
            let text = text.replace("\\-", "-").replace("\\fR", "").replace("\\fB", "");
            for (at, _) in text.match_indices("(1)") {
                let from = text[..at].rfind([' ', '\n']).map_or(0, |space| space + 1);
                let other = &text[from..at];
                assert!(files.contains(&format!("{other}.1")), "{file} names {other}(1)");
                named += 1;
            }
        }
        assert!(named > files.len(), "{named} names in {} pages", files.len());
        for hidden in ["weft-help.1", "weft-lab-guard.1", "weft-load-help.1"] {
            assert!(!files.contains(&hidden.to_owned()), "{hidden}");
        }
    }

    #[test]
    fn a_command_of_a_command_has_a_page_with_its_flags() {
        for (name, flag) in
            [("load http", "--rate"), ("load-http", "--rate"), ("load cache", "--value-size")]
        {
            let mut text = Vec::new();
            assert!(man(Some(name), &mut text).unwrap(), "{name}");
            let text = String::from_utf8(text).unwrap().replace("\\-", "-");
            assert!(text.contains(flag) && text.contains(".SH EXAMPLES"), "{name}: {text}");
        }
        // `weft load cache` must not be taken for `weft cache`.
        let mut text = Vec::new();
        assert!(man(Some("load cache"), &mut text).unwrap());
        let text = String::from_utf8(text).unwrap().replace("\\-", "-");
        assert!(text.contains(".TH WEFT-LOAD-CACHE 1") && !text.contains("SIGUSR1"), "{text}");
    }
}
