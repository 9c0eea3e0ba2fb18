use std::io::Write;
use std::time::Duration;

/// A line that was taken out of a log, until its reply has ended.
#[derive(Debug)]
pub struct HeldLine {
    text: Box<[u8]>,
    gap: Gap,
}

/// Access-log lines of replies that are being sent. The time that a reply took, and how much of it
/// the peer took, are known only when it has been sent, so each line has a gap, which the driver
/// fills.
#[derive(Debug, Default)]
pub struct Log {
    text: Vec<u8>,
    /// Gaps of the lines in `text`, one for each reply.
    gaps: Vec<Gap>,
    filled: Vec<u8>,
    /// Length in the line that is being written.
    body_len: Option<BodyLen>,
    /// Offsets in all output: the end of the queued bytes, and of the sent ones.
    put_until: u64,
    sent_until: u64,
}

/// Parts of a line that are known only once its reply was sent or has failed.
#[derive(Clone, Copy, Debug)]
struct Gap {
    /// Offset in `text` at which the time is inserted.
    at: usize,
    body_len: BodyLen,
    /// End of the reply in all output.
    end: u64,
    /// Bytes of the body that were never queued.
    left: u64,
}

/// Length of a body as it was announced, in digits.
#[derive(Clone, Copy, Debug)]
struct BodyLen {
    /// Offset of the digits.
    at: usize,
    /// Length; 0 also if the line has none.
    len: u64,
}

/// Capacity in bytes that an empty log keeps allocated in each of its buffers.
const KEPT_CAPACITY: usize = 16 * 1024;

impl Log {
    /// The lines so far. Append only, and whole lines only.
    pub fn text(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    /// Writes the length of the reply's body, before the gap of its line. If the peer does not take
    /// all of it, the line gets the length that was sent.
    pub fn put_body_len(&mut self, len: u64) {
        self.body_len = Some(BodyLen { at: self.text.len(), len });
        write!(self.text, "{len}").expect("a vector takes everything");
    }

    /// Leaves a gap for the seconds that the reply takes: `0.000142`.
    pub fn put_gap(&mut self) {
        let at = self.text.len();
        let body_len = self.body_len.take().unwrap_or(BodyLen { at, len: 0 });
        self.gaps.push(Gap { at, body_len, end: self.put_until, left: 0 });
    }

    /// Notes the end of all output so far: the end of the next line's reply.
    #[inline]
    pub(crate) fn note_put(&mut self, until: u64) {
        self.put_until = until;
    }

    /// Notes the end of the sent bytes.
    #[inline]
    pub(crate) fn note_sent(&mut self, until: u64) {
        self.sent_until = until;
    }

    /// Takes the last line out, if there is one: its reply has only begun.
    pub fn hold_last(&mut self) -> Option<HeldLine> {
        let mut gap = self.gaps.pop()?;
        let before = self.text[..gap.at].iter().rposition(|&byte| byte == b'\n');
        let start = before.map_or(0, |at| at + 1);
        let text = self.text.split_off(start).into();
        gap.at -= start;
        gap.body_len.at -= start;
        Some(HeldLine { text, gap })
    }

    /// Appends a line that was held until its reply ended. `left` bytes of the body were never
    /// queued.
    pub fn put_held(&mut self, line: &HeldLine, left: u64) {
        let start = self.text.len();
        let mut gap = Gap { end: self.put_until, left, ..line.gap };
        gap.at += start;
        gap.body_len.at += start;
        self.gaps.push(gap);
        self.text.extend_from_slice(&line.text);
    }

    /// Bytes of queued lines.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    /// Bytes of memory that it has allocated.
    #[inline]
    pub(crate) fn allocated_len(&self) -> usize {
        let Log { text, gaps, filled, .. } = self;
        text.capacity() + gaps.capacity() * size_of::<Gap>() + filled.capacity()
    }

    /// Removes all lines.
    pub(crate) fn clear(&mut self) {
        self.text.clear();
        self.gaps.clear();
        self.body_len = None;
        self.shrink();
    }

    /// Gives memory back that an empty log does not need.
    fn shrink(&mut self) {
        self.text.shrink_to(KEPT_CAPACITY);
        self.gaps.shrink_to(KEPT_CAPACITY / size_of::<Gap>());
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
        for (nth, gap) in self.gaps[..count].iter().enumerate() {
            let BodyLen { at: len_at, len } = gap.body_len;
            let unsent = gap.left + gap.end.saturating_sub(self.sent_until);
            if unsent > 0 && len > 0 {
                self.filled.extend_from_slice(&self.text[at..len_at]);
                let sent_len = len.saturating_sub(unsent);
                write!(self.filled, "{sent_len}").expect("a vector takes everything");
                at = len_at + len.ilog10() as usize + 1;
            }
            self.filled.extend_from_slice(&self.text[at..gap.at]);
            write_seconds(took(nth), &mut self.filled);
            at = gap.at;
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
        self.gaps.iter_mut().for_each(|gap| {
            gap.at -= end;
            gap.body_len.at -= end;
        });
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
        held.iter().rev().for_each(|line| log.put_held(line, 0));
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

    #[test]
    fn a_line_has_the_bytes_that_were_sent() {
        let mut log = Log::default();
        for end in [50, 1100, 1200, 1300] {
            log.text().extend_from_slice(b"reply ");
            log.put_body_len(if end == 1100 { 1000 } else { 0 });
            log.text().push(b' ');
            log.note_put(end);
            log.put_gap();
            log.text().push(b'\n');
        }
        log.note_sent(300);
        let took = |_| Duration::ZERO;
        let mut seen = Vec::new();
        log.take_first(1, took, |lines| seen.extend_from_slice(lines));
        log.take(took, |lines| seen.extend_from_slice(lines));
        let lines = "reply 0 0.000000\nreply 200 0.000000\nreply 0 0.000000\nreply 0 0.000000\n";
        assert_eq!(String::from_utf8(seen).unwrap(), lines);

        // The part of a held body that was never queued is missing as well.
        log.text().extend_from_slice(b"held ");
        log.put_body_len(1000);
        log.text().push(b' ');
        log.put_gap();
        log.text().push(b'\n');
        let line = log.hold_last().unwrap();
        log.note_put(2000);
        log.put_held(&line, 300);
        log.put_held(&line, 0);
        log.note_sent(1999);
        let mut seen = Vec::new();
        log.take(took, |lines| seen.extend_from_slice(lines));
        assert_eq!(seen, b"held 699 0.000000\nheld 999 0.000000\n");
    }
}
