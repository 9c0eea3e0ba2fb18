//! Manual pages and completions, made from the same command that reads the command line.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::args;

/// Writes a shell's completions.
///
/// # Errors
/// What writing reports.
pub(crate) fn completions(shell: Shell, out: &mut impl Write) -> io::Result<()> {
    // clap_complete panics when its output fails, so it writes to memory.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut args::command(), "weft", &mut script);
    out.write_all(&script)
}

/// The commands that have a page.
pub(crate) fn names() -> Vec<String> {
    args::command()
        .get_subcommands()
        .map(|command| command.get_name().to_owned())
        .collect()
}

/// Writes the page of one command; of weft itself without a name. `false` if there is no such
/// command.
///
/// # Errors
/// What writing reports.
pub(crate) fn man(name: Option<&str>, out: &mut impl Write) -> io::Result<bool> {
    let mut weft = args::command();
    weft.build();
    let command = match name {
        None => Some(&weft),
        Some(name) => weft.find_subcommand(name),
    };
    match command {
        Some(command) => page(command, out).map(|()| true),
        None => Ok(false),
    }
}

/// Writes all pages into a folder, and returns their names.
///
/// # Errors
/// What writing a file reports.
pub(crate) fn man_all(folder: &Path) -> io::Result<Vec<String>> {
    fs::create_dir_all(folder)?;
    let mut files = Vec::new();
    for name in [None].into_iter().chain(names().into_iter().map(Some)) {
        let file = match &name {
            None => "weft.1".to_owned(),
            Some(name) => format!("weft-{name}.1"),
        };
        let mut text = Vec::new();
        man(name.as_deref(), &mut text)?;
        fs::write(folder.join(&file), text)?;
        files.push(file);
    }
    Ok(files)
}

fn page(command: &Command, out: &mut impl Write) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or("weft").to_owned();
    let source = format!("weft {}", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone())
        .title(name.to_uppercase())
        .source(source)
        .manual("weftwork");
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(out)?;
    }
    for (title, text) in args::sections(command.get_name()) {
        section(&title.to_uppercase(), text).to_writer(out)?;
    }
    see_also(&name).to_writer(out)
}

/// A section whose lines stay as they are.
fn section(title: &str, text: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [title]).control("nf", []);
    for line in text.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff
}

fn see_also(own: &str) -> Roff {
    let names = names().into_iter().map(|name| format!("weft-{name}"));
    let others = ["weft".to_owned()]
        .into_iter()
        .chain(names)
        .filter(|name| name != own);
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    for name in others {
        roff.text([bold(name), roman("(1)")]);
    }
    roff
}

/// Checks that a page has what is made of the tables, between the marks of this name; or writes it
/// there.
#[cfg(test)]
#[track_caller]
pub(crate) fn check_manual(page: &str, name: &str, made: &str) {
    let (begin, end) = (
        format!("<!-- {name}: begin -->\n"),
        format!("<!-- {name}: end -->"),
    );
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(page);
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

    use crate::serve::ServeConfig;
    use crate::settings::{Config, Default, Kind, Reload, Setting, rows};

    #[test]
    fn the_manual_page_of_serve_names_every_setting() {
        let mut text = Vec::new();
        assert!(man(Some("serve"), &mut text).unwrap());
        let text = String::from_utf8(text).unwrap().replace("\\-", "-");
        assert!(text.contains(".TH WEFT-SERVE 1"), "{text}");
        for setting in rows::<ServeConfig>() {
            let is_flag = !matches!(setting.kind, Kind::Argument(..));
            let name = setting.name;
            assert!(!is_flag || text.contains(&setting.flag()), "{name}");
            assert!(text.contains(&setting.env()), "{name}");
        }
        for title in ["EXAMPLES", "SIGNALS", "EXIT STATUS", "SEE ALSO"] {
            assert!(
                text.replace('"', "").contains(&format!(".SH {title}")),
                "{title}"
            );
        }
    }

    /// The table of `docs/serve.md`.
    fn manual_table() -> String {
        let mut table = String::new();
        let mut last = "";
        for group in ServeConfig::GROUPS {
            if group.heading != last {
                last = group.heading;
                let _ = write!(
                    table,
                    "\n### {last}\n\n| flag | default | |\n|---|---|---|\n"
                );
            }
            for setting in group.rows {
                let _ = writeln!(table, "{}", manual_row(setting));
            }
        }
        table + "\n"
    }

    fn manual_row(setting: &Setting<ServeConfig>) -> String {
        let value = match setting.kind {
            Kind::Argument(..) => None,
            _ => setting.value(),
        };
        let value = value.map_or(String::new(), |value| format!(" {value}"));
        let flag = format!("{}{value}", setting.flag()).replace('|', "\\|");
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
        let description = setting.description("");
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
}
