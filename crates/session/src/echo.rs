use crate::outbox::Outbox;
use crate::session::{GiveUp, Next, Now, Phase, Received, Session};

/// The smallest real session: sends every line back, and closes at the line `bye`.
///
/// It shows the three habits of a session. It uses only what it understands whole (a line), it
/// watches the outbox, and it says which phase it waits in.
///
/// ```
/// use session::{Echo, replay::{replay, Script}};
///
/// let lines = "one\ntwo\nbye\n";
/// replay(Echo::default, &Script::new().send(lines).expect(lines).closed());
/// ```
#[derive(Debug, Default)]
pub struct Echo;

/// A line that is longer than this is not a line.
const LINE_LEN_MAX: usize = 4096;

impl Session for Echo {
    fn receive(&mut self, input: &[u8], _now: Now, out: &mut Outbox) -> Received {
        let mut used = 0;
        while let Some(end) = input[used..].iter().position(|&byte| byte == b'\n') {
            if out.is_full() {
                return Received {
                    used,
                    next: Next::Flush,
                };
            }
            let line = &input[used..used + end + 1];
            out.put(line);
            used += line.len();
            if line == b"bye\n" {
                return Received {
                    used,
                    next: Next::Close,
                };
            }
        }
        let rest_len = input.len() - used;
        if rest_len > LINE_LEN_MAX {
            out.put(b"line too long\n");
            return Received {
                used: input.len(),
                next: Next::Close,
            };
        }
        let phase = if rest_len == 0 {
            Phase::Idle
        } else {
            Phase::Head
        };
        Received {
            used,
            next: Next::Receive(phase),
        }
    }

    fn give_up(&mut self, reason: GiveUp, _now: Now, out: &mut Outbox) {
        out.put(format!("giving up: {reason:?}\n").as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::{Script, replay};

    #[test]
    fn lines_come_back_however_they_are_cut() {
        replay(
            || Echo,
            &Script::new()
                .send("a\nbb\n\nccc\n")
                .expect("a\nbb\n\nccc\n"),
        );
    }

    #[test]
    fn a_long_line_is_refused_and_the_connection_closed() {
        let long = "x".repeat(LINE_LEN_MAX + 1);
        replay(
            || Echo,
            &Script::new().send(&long).expect("line too long\n").closed(),
        );
    }

    #[test]
    fn a_full_outbox_stops_the_session() {
        let mut out = Outbox::with_watermark(4);
        let received = Echo.receive(b"12345\nmore\n", Now::read(), &mut out);
        assert_eq!(
            received,
            Received {
                used: 6,
                next: Next::Flush
            }
        );
    }

    #[test]
    fn the_longest_line_is_still_a_line() {
        let mut out = Outbox::new();
        let line = "x".repeat(LINE_LEN_MAX);
        let received = Echo.receive(line.as_bytes(), Now::read(), &mut out);
        assert_eq!(received.next, Next::Receive(Phase::Head));
        // What was used before it does not count.
        let two = format!("one\n{line}");
        let received = Echo.receive(two.as_bytes(), Now::read(), &mut out);
        assert_eq!(
            (received.used, received.next),
            (4, Next::Receive(Phase::Head))
        );
    }

    #[test]
    fn between_two_lines_the_session_is_idle() {
        let mut out = Outbox::new();
        let next = |input: &[u8], out: &mut Outbox| Echo.receive(input, Now::read(), out).next;
        assert_eq!(next(b"one\n", &mut out), Next::Receive(Phase::Idle));
        assert_eq!(next(b"one\ntw", &mut out), Next::Receive(Phase::Head));
    }

    #[test]
    fn a_peer_that_is_given_up_hears_why() {
        let mut out = Outbox::new();
        Echo.give_up(GiveUp::TimedOut(Phase::Head), Now::read(), &mut out);
        assert!(out.queued_len() > 0);
    }
}
