//! An index of patterns: a trie, as a sorted list of keys.
//!
//! ```text
//!  /blog/:year/*.html      /blog/ NAME / STAR lmth.
//!                          forward ─────▶    ◀───── from the end of the path
//! ```
//!
//! A path is compared with the keys byte by byte, while the range of keys with that prefix shrinks.
//! The cost is the length of the path, once for each way in which names match.

use super::{PathPiece, Pattern};

/// Key bytes that no path contains, because paths are UTF-8.
const NAME: u8 = 0xfe;
const STAR: u8 = 0xff;

/// A key, and the number of its pattern.
type Numbered = (Box<[u8]>, usize);

/// Patterns by their keys.
#[derive(Debug, Default)]
pub(super) struct PatternIndex {
    /// Sorted.
    keys: Vec<Numbered>,
}

#[cfg(test)]
thread_local! {
    /// Keys compared so far.
    pub(super) static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl PatternIndex {
    pub(super) fn new<'a>(patterns: impl Iterator<Item = (usize, &'a Pattern)>) -> PatternIndex {
        let keys = patterns.map(|(number, pattern)| (key_of(pattern), number));
        let mut keys: Vec<_> = keys.collect();
        keys.sort_unstable();
        PatternIndex { keys }
    }

    /// The first pattern, by its number, that matches a path.
    pub(super) fn find(&self, path: &str) -> Option<usize> {
        let mut first = None;
        let start =
            Candidates { keys: &self.keys, depth: 0, rest: path.as_bytes(), is_starred: false };
        start.walk(&mut first);
        first
    }
}

/// The key of a pattern: its text up to the star, and reversed after it.
fn key_of(pattern: &Pattern) -> Box<[u8]> {
    let mut key = Vec::new();
    for piece in &pattern.head {
        match piece {
            PathPiece::Text(text) => key.extend_from_slice(text.as_bytes()),
            PathPiece::Capture(_) => key.push(NAME),
        }
    }
    key.extend(pattern.tail.as_ref().map(|_| STAR));
    for piece in pattern.tail.iter().flatten().rev() {
        match piece {
            PathPiece::Text(text) => key.extend(text.bytes().rev()),
            PathPiece::Capture(_) => key.push(NAME),
        }
    }
    key.into()
}

/// Keys that match the path so far.
#[derive(Clone, Copy)]
struct Candidates<'a> {
    /// Keys with the same first `depth` bytes.
    keys: &'a [Numbered],
    depth: usize,
    rest: &'a [u8],
    /// After the star: `rest` is compared from its end.
    is_starred: bool,
}

impl<'a> Candidates<'a> {
    fn walk(mut self, first: &mut Option<usize>) {
        while let Some((key, number)) = self.keys.first() {
            // The shortest key comes first, and among equal keys the first rule.
            if key.len() == self.depth {
                if self.is_starred || self.rest.is_empty() {
                    *first = Some(first.map_or(*number, |first| first.min(*number)));
                }
                self.keys = &self.keys[self.position(|key| key.len() > self.depth)..];
            }
            Candidates { is_starred: true, ..self.with(STAR, self.rest) }.walk(first);
            let named = self.with(NAME, self.rest);
            if !named.keys.is_empty()
                && let Some(rest) = self.without_segment()
            {
                Candidates { rest, ..named }.walk(first);
            }
            let split =
                if self.is_starred { self.rest.split_last() } else { self.rest.split_first() };
            let Some((byte, rest)) = split else { return };
            self = self.with(*byte, rest);
        }
    }

    /// Keys that continue with `byte`.
    fn with(&self, byte: u8, rest: &'a [u8]) -> Candidates<'a> {
        #[cfg(test)]
        LOOKS.set(LOOKS.get() + 1);
        let at = |(key, _): &Numbered| key[self.depth];
        let keys = match (self.keys.first().map(at), self.keys.last().map(at)) {
            (Some(least), Some(most)) if least == most && most == byte => self.keys,
            (Some(least), Some(most)) if (least..=most).contains(&byte) => {
                let start = self.position(|key| key[self.depth] >= byte);
                &self.keys[start..self.position(|key| key[self.depth] > byte)]
            }
            _ => &[],
        };
        Candidates { keys, depth: self.depth + 1, rest, ..*self }
    }

    /// The position of the first key that satisfies the predicate.
    fn position(&self, is_behind: impl Fn(&[u8]) -> bool) -> usize {
        self.keys.partition_point(|(key, _)| {
            #[cfg(test)]
            LOOKS.set(LOOKS.get() + 1);
            !is_behind(key)
        })
    }

    /// The rest after the segment that a name matches.
    fn without_segment(&self) -> Option<&'a [u8]> {
        let is_slash = |byte: &u8| *byte == b'/';
        let rest = if self.is_starred {
            &self.rest[..=self.rest.iter().rposition(is_slash)?]
        } else {
            &self.rest[self.rest.iter().position(is_slash).unwrap_or(self.rest.len())..]
        };
        (rest.len() < self.rest.len()).then_some(rest)
    }
}
