//! Texts of the help: hints for words of other programs, which say what they are called here or why
//! they do nothing; and what stands behind the options.

/// A table: lines of names, separated by spaces, and a sentence about them, `NAMES = SENTENCE`.
#[derive(Clone, Copy)]
pub(crate) struct Hints(&'static str);

/// Keys of other servers' configuration files.
pub(crate) const OTHER_KEYS: Hints = Hints(include_str!("hints/keys.txt"));

/// Options of memcached's `-o` that change nothing here, with the reason.
pub(crate) const IDLE: Hints = Hints(include_str!("hints/idle.txt"));

/// Options of memcached's `-o` that are refused, with the reason.
pub(crate) const REFUSED: Hints = Hints(include_str!("hints/refused.txt"));

/// Settings that became keys of `--engine`, with its value that sets them.
pub(crate) const MOVED: Hints = Hints(include_str!("hints/moved.txt"));

/// A section for each command, with other programs' flags.
const FLAGS: &str = include_str!("hints/flags.txt");

/// Flags of other programs, typed behind this command.
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

    /// Lines: the names and their sentence.
    pub(crate) fn rows(self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.0.lines().filter_map(|line| line.split_once(" = "))
    }

    /// Each name.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        self.rows().flat_map(|(names, _)| names.split(' '))
    }
}

/// Sections behind the options, in the long help and the manual page, each headed by its commands
/// and its title.
const SECTIONS: &str = include_str!("hints/sections.txt");

/// Titles and texts of a command's sections; of weft itself if the name is "weft".
pub(crate) fn sections(command: &str) -> Vec<(&'static str, &'static str)> {
    let sections = SECTIONS.split("== ").filter_map(|section| {
        let (head, text) = section.split_once('\n')?;
        let (commands, title) = head.split_once(": ")?;
        let is_meant = commands.split(' ').any(|name| name == command);
        is_meant.then_some((title, text.trim_end()))
    });
    sections.collect()
}
