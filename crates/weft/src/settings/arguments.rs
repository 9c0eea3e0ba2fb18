//! The rows as flags of a command line: their clap arguments, and the parsed texts.

use clap::builder::PossibleValue;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::layer::{Layer, SettingText};
use super::{Config, Default, Kind, Setting, flags};

/// Adds the flags of all rows.
pub(crate) fn add<C: Config>(command: Command) -> Command {
    C::GROUPS.iter().fold(command, |command, group| {
        let rows = group.rows.iter();
        command.args(rows.flat_map(|row| arguments(group.heading, row)))
    })
}

/// The clap arguments of a row: one, or two for a switch.
pub(crate) fn arguments<C: Config>(heading: &'static str, setting: &Setting<C>) -> Vec<Arg> {
    let heading = Some(heading).filter(|heading| !heading.is_empty());
    let arg = |name: String| {
        Arg::new(name)
            .help(short_help(setting))
            .long_help(long_help(setting))
            .value_hint(setting.hint)
            .hide_short_help(setting.is_rare)
    };
    let flag = |name: String| arg(name.clone()).help_heading(heading).long(name);
    let on = flag(setting.name.to_owned()).short(setting.short);
    vec![match setting.kind {
        Kind::Argument(value, _) => arg(setting.name.to_owned()).value_name(value),
        Kind::Flag(_) => on.action(ArgAction::Count),
        Kind::Switch(_) => return switch_arguments(setting, on, flag(off_name(setting.name))),
        Kind::Choice(choices, _) => {
            let values = choices.iter().map(|(name, help)| PossibleValue::new(*name).help(*help));
            on.value_name(setting.name.to_uppercase()).value_parser(values.collect::<Vec<_>>())
        }
        // As with getopt(3), a word that begins with a hyphen is the flag's value, such as -1.
        Kind::One(value, _) => on.value_name(value).allow_hyphen_values(value == "num"),
        Kind::Many(value, _) => on.value_name(value).action(ArgAction::Append),
    }]
}

// Makes `--name` and `--no-name`. The last one typed applies; the help shows the one that changes
// something.
fn switch_arguments<C>(setting: &Setting<C>, on: Arg, off: Arg) -> Vec<Arg> {
    let is_on = setting.is_on_by_default();
    vec![
        on.action(ArgAction::SetTrue).overrides_with(off_name(setting.name)).hide(is_on),
        off.action(ArgAction::SetTrue).overrides_with(setting.name).hide(!is_on),
    ]
}

fn off_name(name: &str) -> String {
    format!("no-{name}")
}

fn short_help<C>(setting: &Setting<C>) -> String {
    let help = setting.help;
    match (&setting.kind, setting.default) {
        (Kind::Switch(_), _) => help.to_owned(),
        (_, Default::Text(text)) => format!("{help} [default: {text}]"),
        (_, Default::Derived(_) | Default::Nothing) => help.to_owned(),
    }
}

fn long_help<C: Config>(setting: &Setting<C>) -> String {
    let text = setting.description();
    let mut notes = Vec::new();
    match (&setting.kind, setting.default) {
        (Kind::Switch(_), _) | (_, Default::Nothing) => {}
        (_, Default::Text(text)) => notes.push(format!("[default: {text}]")),
        (_, Default::Derived(how)) => notes.push(format!("[default: {how}]")),
    }
    if C::HAS_FILE {
        match setting.table {
            _ if !setting.is_for_file() => {}
            Some(table) => notes.push(format!("[key: {} or table {table}]", setting.key())),
            None => notes.push(format!("[key: {}]", setting.key())),
        }
        notes.push(format!("[env: {}]", setting.env()));
    }
    if notes.is_empty() {
        return text;
    }
    format!("{text}\n\n{}", notes.join(" "))
}

/// The settings from the command line.
pub(crate) fn typed<C: Config>(matches: &ArgMatches) -> Layer {
    let mut layer = Layer::new();
    for setting in flags::<C>() {
        let name = setting.name;
        let flag = C::flag(setting);
        let texts: Vec<&str> = match setting.kind {
            Kind::Flag(_) => vec!["on"; matches.get_count(name).into()],
            Kind::Switch(_) if matches.get_flag(name) => vec!["true"],
            Kind::Switch(_) if matches.get_flag(&off_name(name)) => vec!["false"],
            Kind::Switch(_) => Vec::new(),
            _ => {
                let values = matches.get_many::<String>(name).into_iter().flatten();
                values.map(String::as_str).collect()
            }
        };
        let said = |text| SettingText::new(text, &flag);
        if !texts.is_empty() {
            layer.insert(name, texts.into_iter().map(said).collect());
        }
    }
    layer
}
