use crate::outbox::Outbox;
use crate::session::{GiveUp, Next, NoWork, Now, Phase, Received, Session};

/// The smallest real session: sends every line back, and closes at the line `bye`.
///
/// It shows the three duties of a session: use only what it understands whole (a line), watch the
/// outbox, and say which phase it waits in.
///
/// ```
/// use weftwork_session::{Echo, replay::{replay, Script}};
///
/// let lines = "one\ntwo\nbye\n";
/// replay(Echo::default, &Script::new().send(lines).expect(lines).closed());
/// ```
#[derive(Debug, Default)]
pub struct Echo;

/// Maximum length of a line in bytes.
const LINE_LEN_MAX: usize = 4096;

impl Session for Echo {
    type Work = NoWork;

    fn receive(&mut self, input: &[u8], _now: Now, out: &mut Outbox) -> Received {
        let mut used = 0;
        while let Some(end) = input[used..].iter().position(|&byte| byte == b'\n') {
            if out.is_full() {
                return Received { used, next: Next::Flush };
            }
            let line = &input[used..used + end + 1];
            out.put(line);
            used += line.len();
            if line == b"bye\n" {
                return Received { used, next: Next::Close };
            }
        }
        let rest_len = input.len() - used;
        if rest_len > LINE_LEN_MAX {
            out.put(b"line too long\n");
            return Received { used: input.len(), next: Next::Close };
        }
        let phase = if rest_len == 0 { Phase::Idle } else { Phase::Head };
        Received { used, next: Next::Receive(phase) }
    }

    fn give_up(&mut self, reason: GiveUp, _now: Now, out: &mut Outbox) {
        if reason != GiveUp::Drained {
            out.put(format!("giving up: {reason:?}\n").as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::{Script, replay};

    #[test]
    fn lines_come_back_at_any_cut() {
        replay(|| Echo, &Script::new().send("a\nbb\n\nccc\n").expect("a\nbb\n\nccc\n"));
    }

    #[test]
    fn long_line_closes() {
        let long = "x".repeat(LINE_LEN_MAX + 1);
        replay(|| Echo, &Script::new().send(&long).expect("line too long\n").closed());
    }

    #[test]
    fn full_outbox_stops_the_session() {
        let mut out = Outbox::with_watermark(4);
        let received = Echo.receive(b"12345\nmore\n", Now::read(), &mut out);
        assert_eq!(received, Received { used: 6, next: Next::Flush });
    }

    #[test]
    fn longest_line_is_accepted() {
        let mut out = Outbox::new();
        let line = "x".repeat(LINE_LEN_MAX);
        let received = Echo.receive(line.as_bytes(), Now::read(), &mut out);
        assert_eq!(received.next, Next::Receive(Phase::Head));
        // Bytes of earlier lines do not count.
        let two = format!("one\n{line}");
        let received = Echo.receive(two.as_bytes(), Now::read(), &mut out);
        assert_eq!((received.used, received.next), (4, Next::Receive(Phase::Head)));
    }

    #[test]
    fn idle_between_lines() {
        let mut out = Outbox::new();
        let next = |input: &[u8], out: &mut Outbox| Echo.receive(input, Now::read(), out).next;
        assert_eq!(next(b"one\n", &mut out), Next::Receive(Phase::Idle));
        assert_eq!(next(b"one\ntw", &mut out), Next::Receive(Phase::Head));
    }

    #[test]
    fn give_up_tells_the_peer() {
        let mut out = Outbox::new();
        Echo.give_up(GiveUp::TimedOut(Phase::Head), Now::read(), &mut out);
        assert!(out.queued_len() > 0);
    }
}
