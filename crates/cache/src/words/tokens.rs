/// Removes the carriage return at the end of a line. As in memcached, a lone one stays.
#[inline]
pub(crate) fn without_cr(line: &[u8]) -> &[u8] {
    match line {
        [head @ .., b'\r'] if !head.is_empty() => head,
        _ => line,
    }
}

/// The words of a line. As in memcached, words from the 24th on are ignored.
pub(crate) struct Tokens<'a> {
    line: &'a [u8],
    parts: [&'a [u8]; TOKENS_MAX],
    count: usize,
}

/// Maximum number of words read from a line.
const TOKENS_MAX: usize = 23;

impl<'a> Tokens<'a> {
    #[inline]
    pub(crate) fn split(line: &'a [u8]) -> Tokens<'a> {
        let mut tokens = Tokens { line, parts: [&[]; TOKENS_MAX], count: 0 };
        let mut start = 0;
        for (at, &byte) in line.iter().enumerate() {
            if byte == b' ' {
                if at > start {
                    tokens.push(&line[start..at]);
                    if tokens.count == TOKENS_MAX {
                        return tokens;
                    }
                }
                start = at + 1;
            }
        }
        if start < line.len() {
            tokens.push(&line[start..]);
        }
        tokens
    }

    #[inline]
    fn push(&mut self, token: &'a [u8]) {
        self.parts[self.count] = token;
        self.count += 1;
    }

    #[inline]
    pub(crate) fn line(&self) -> &'a [u8] {
        self.line
    }

    /// The first word; empty for an empty line.
    #[inline]
    pub(crate) fn command(&self) -> &'a [u8] {
        self.parts[0]
    }

    /// All words, the command's name first.
    #[inline]
    pub(crate) fn parts(&self) -> &[&'a [u8]] {
        &self.parts[..self.count]
    }

    /// The line after the first `count` words.
    pub(crate) fn after(&self, count: usize) -> &'a [u8] {
        let mut rest = self.line;
        for _ in 0..count {
            let start = rest.iter().position(|&byte| byte != b' ');
            rest = &rest[start.unwrap_or(rest.len())..];
            let len = memchr::memchr(b' ', rest);
            rest = &rest[len.unwrap_or(rest.len())..];
        }
        rest
    }

    /// The last word; empty for an empty line.
    pub(crate) fn last(&self) -> &'a [u8] {
        self.parts().last().copied().unwrap_or_default()
    }

    /// True if the client wants no reply.
    pub(crate) fn is_noreply(&self) -> bool {
        self.last() == b"noreply"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_at_any_number_of_spaces() {
        let tokens = Tokens::split(b"set  a 0  0 1 noreply ");
        let expected: [&[u8]; 6] = [b"set", b"a", b"0", b"0", b"1", b"noreply"];
        assert_eq!(tokens.parts(), expected);
        assert!(tokens.is_noreply());
        assert_eq!(tokens.after(3), b"  0 1 noreply ");
        assert_eq!(Tokens::split(b"").command(), b"");
    }

    #[test]
    fn word_24_is_ignored() {
        let line = b"x ".repeat(30);
        assert_eq!(Tokens::split(&line).parts().len(), TOKENS_MAX);
    }
}
