use std::io::Write;
use std::time::Duration;

/// A line that was taken out of a log, until its reply has ended.
#[derive(Debug)]
pub struct HeldLine {
    text: Box<[u8]>,
    /// Offset of its gap.
    gap: usize,
}

/// Access-log lines of replies that are being sent. The time that a reply took is known only when
/// it has been sent, so each line has a gap, which the driver fills.
#[derive(Debug, Default)]
pub struct Log {
    text: Vec<u8>,
    /// Offsets of the gaps in `text`, one for each reply.
    gaps: Vec<usize>,
    filled: Vec<u8>,
}

/// Capacity in bytes that an empty log keeps allocated, for lines as they are and as they go.
const KEPT_CAPACITY: usize = 16 * 1024;

impl Log {
    /// The lines so far. Append only, and whole lines only.
    pub fn text(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    /// Leaves a gap for the seconds that the reply takes: `0.000142`.
    pub fn put_gap(&mut self) {
        self.gaps.push(self.text.len());
    }

    /// Takes the last line out, if there is one: its reply has only begun.
    pub fn hold_last(&mut self) -> Option<HeldLine> {
        let gap = self.gaps.pop()?;
        let before = self.text[..gap].iter().rposition(|&byte| byte == b'\n');
        let start = before.map_or(0, |at| at + 1);
        let text = self.text.split_off(start).into();
        let gap = gap - start;
        Some(HeldLine { text, gap })
    }

    /// Puts a line behind the others: its reply has ended.
    pub fn put_held(&mut self, line: &HeldLine) {
        self.gaps.push(self.text.len() + line.gap);
        self.text.extend_from_slice(&line.text);
    }

    /// Bytes of lines that wait.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    /// Bytes of memory that it has allocated.
    #[inline]
    pub(crate) fn allocated_len(&self) -> usize {
        let Log { text, gaps, filled } = self;
        text.capacity() + gaps.capacity() * size_of::<usize>() + filled.capacity()
    }

    /// Removes all lines.
    pub(crate) fn clear(&mut self) {
        self.text.clear();
        self.gaps.clear();
        self.shrink();
    }

    /// Gives memory back that an empty log does not need.
    fn shrink(&mut self) {
        self.text.shrink_to(KEPT_CAPACITY);
        self.gaps.shrink_to(KEPT_CAPACITY / size_of::<usize>());
        self.filled.shrink_to(KEPT_CAPACITY);
    }

    /// Passes the lines to `read`, with `took(n)` in the gap of the nth reply, and clears them.
    pub(crate) fn take(&mut self, took: impl Fn(usize) -> Duration, read: impl FnOnce(&[u8])) {
        self.take_first(usize::MAX, took, read);
    }

    /// The same for the lines of the first `count` replies.
    pub(crate) fn take_first(
        &mut self,
        count: usize,
        took: impl Fn(usize) -> Duration,
        read: impl FnOnce(&[u8]),
    ) {
        let count = count.min(self.gaps.len());
        if self.text.is_empty() || (count == 0 && !self.gaps.is_empty()) {
            return;
        }
        let mut at = 0;
        for (nth, &gap) in self.gaps[..count].iter().enumerate() {
            self.filled.extend_from_slice(&self.text[at..gap]);
            write_seconds(took(nth), &mut self.filled);
            at = gap;
        }
        // The next line begins behind the end of the last one.
        let end = if count < self.gaps.len() {
            let rest = self.text[at..].iter().position(|&byte| byte == b'\n');
            rest.map_or(at, |len| at + len + 1)
        } else {
            self.text.len()
        };
        self.filled.extend_from_slice(&self.text[at..end]);
        read(&self.filled);
        self.filled.clear();
        self.text.drain(..end);
        self.gaps.drain(..count);
        self.gaps.iter_mut().for_each(|gap| *gap -= end);
        if self.text.is_empty() {
            self.shrink();
        }
    }
}

impl HeldLine {
    /// Bytes of memory that it has allocated.
    pub fn allocated_len(&self) -> usize {
        self.text.len()
    }
}

/// Writes seconds as nginx writes `$request_time`, but to the microsecond: most replies take less
/// than a millisecond.
fn write_seconds(duration: Duration, to: &mut Vec<u8>) {
    let seconds = duration.as_secs();
    let us = duration.subsec_micros();
    write!(to, "{seconds}.{us:06}").expect("a vector takes everything");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gap_holds_the_time_of_its_reply() {
        let mut log = Log::default();
        for line in ["one", "two"] {
            log.text().extend_from_slice(line.as_bytes());
            log.text().push(b' ');
            log.put_gap();
            log.text().push(b'\n');
        }
        let took = [Duration::from_nanos(142_999), Duration::from_millis(61_042)];
        let mut seen = Vec::new();
        log.take(|nth| took[nth], |lines| seen.extend_from_slice(lines));
        assert_eq!(seen, b"one 0.000142\ntwo 61.042000\n");
        log.take(|_| unreachable!(), |_| panic!("taken twice"));
    }

    fn put(line: &str, log: &mut Log) {
        log.text().extend_from_slice(line.as_bytes());
        log.text().push(b' ');
        log.put_gap();
        log.text().extend_from_slice(b" end\n");
    }

    #[test]
    fn a_line_may_wait_for_its_reply() {
        let mut log = Log::default();
        let mut held = Vec::new();
        for line in ["one", "two", "three"] {
            put(line, &mut log);
            if line != "two" {
                held.extend(log.hold_last());
            }
        }
        held.iter().rev().for_each(|line| log.put_held(line));
        let mut seen = Vec::new();
        let took = |nth| Duration::from_secs(nth as u64);
        log.take(took, |lines| seen.extend_from_slice(lines));
        let lines = "two 0.000000 end\nthree 1.000000 end\none 2.000000 end\n";
        assert_eq!(String::from_utf8(seen).unwrap(), lines);
        assert!(log.hold_last().is_none());
    }

    #[test]
    fn lines_are_taken_one_by_one() {
        let mut log = Log::default();
        for line in ["one", "two", "three"] {
            put(line, &mut log);
        }
        let took = |_| Duration::from_secs(1);
        for (count, lines) in [
            (0, ""),
            (1, "one 1.000000 end\n"),
            (5, "two 1.000000 end\nthree 1.000000 end\n"),
            (5, ""),
        ] {
            let mut seen = Vec::new();
            log.take_first(count, took, |lines| seen.extend_from_slice(lines));
            assert_eq!(String::from_utf8(seen).unwrap(), lines);
        }
    }
}
