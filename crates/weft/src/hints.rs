//! Texts of the help: hints for names used by other programs, with their equivalent here or the
//! reason why they have no effect; and sections after the options.

/// A table: lines of names, separated by spaces, with a sentence about them, `NAMES = SENTENCE`.
#[derive(Clone, Copy)]
pub(crate) struct Hints(&'static str);

/// Keys of other servers' configuration files.
pub(crate) const OTHER_KEYS: Hints = Hints(include_str!("hints/keys.txt"));

/// Options of memcached's `-o` that have no effect here, with the reason.
pub(crate) const IDLE: Hints = Hints(include_str!("hints/idle.txt"));

/// Options of memcached's `-o` that are refused, with the reason.
pub(crate) const REFUSED: Hints = Hints(include_str!("hints/refused.txt"));

/// Settings that became keys of `--engine`, with the equivalent value.
pub(crate) const MOVED: Hints = Hints(include_str!("hints/moved.txt"));

/// Sections by command, with other programs' flags.
const FLAGS: &str = include_str!("hints/flags.txt");

/// Flags of other programs, for this command.
pub(crate) fn flags(command: &str) -> Hints {
    let title = format!("[{command}]");
    let mut sections = FLAGS.split("\n\n");
    Hints(sections.find(|section| section.starts_with(&title)).unwrap_or_default())
}

impl Hints {
    /// The sentence about a name.
    pub(crate) fn find(self, name: &str) -> Option<&'static str> {
        let mut rows = self.rows();
        let row = rows.find(|(names, _)| names.split(' ').any(|known| known == name));
        row.map(|(_, sentence)| sentence)
    }

    /// Rows: the names and their sentence.
    pub(crate) fn rows(self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.0.lines().filter_map(|line| line.split_once(" = "))
    }

    /// Each name.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        self.rows().flat_map(|(names, _)| names.split(' '))
    }
}

/// Sections after the options, in the long help and the manual page, each with its commands and its
/// title.
const SECTIONS: &str = include_str!("hints/sections.txt");

/// Titles and texts of a command's sections; those of weft itself for the name "weft".
pub(crate) fn sections(command: &str) -> Vec<(&'static str, &'static str)> {
    let sections = SECTIONS.split("== ").filter_map(|section| {
        let (head, text) = section.split_once('\n')?;
        let (commands, title) = head.split_once(": ")?;
        let is_meant = commands.split(' ').any(|name| name == command);
        is_meant.then_some((title, text.trim_end()))
    });
    sections.collect()
}
