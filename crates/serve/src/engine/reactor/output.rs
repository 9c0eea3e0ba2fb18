//! Output actions of a machine, one at a time, over a non-blocking socket.

use std::ops::ControlFlow::{self, Break, Continue};
use std::os::fd::AsFd;

use session::{Now, Session};

use super::budget::{LONG_LEN, LongUntil, is_postponed};
use super::socket::{Socket, Wait};
use crate::clock;
use crate::connection::{Action, FileProgress, Machine};
use crate::file::DiskRead;
use crate::stream;

/// Does the next action, which must be output. Returns the number of bytes sent. `now` is the time
/// of the last clock reading; `slow` reads uncached files. Long output waits for a turn after
/// `long_until`.
///
/// # Panics
/// If the next action is not output.
#[inline]
pub(crate) fn output<S: Session>(
    machine: &mut Machine<S>,
    socket: &mut Socket,
    now: &mut Now,
    long_until: LongUntil,
    slow: Option<impl FnOnce(DiskRead)>,
) -> ControlFlow<Wait, u64> {
    let action = machine.next_action();
    let is_long = match &action {
        Action::Send { out, .. } => out.queued_len() > LONG_LEN,
        Action::SendFile(piece) | Action::ReadFile(piece) => piece.len > LONG_LEN,
        _ => false,
    };
    if is_long && is_postponed(now.monotonic, long_until) {
        return Break(Wait::Turn);
    }
    match action {
        Action::Send { out, until, is_last } => {
            let sent = socket.send_out(out, until, is_last)?;
            let len = *sent.taken.as_ref().unwrap_or(&0);
            // A send that completed at once took no time.
            let took_time = !sent.is_all || is_long || machine.is_timed();
            if sent.taken.is_err() || took_time {
                *now = clock::now();
            }
            machine.handle_sent(sent.taken, *now);
            return Continue(len);
        }
        Action::SendFile(piece) => {
            let progress = socket.send_or_read_file(&piece, slow)?;
            let len = match &progress {
                Ok(FileProgress::Sent(len)) => *len,
                _ => 0,
            };
            *now = clock::now();
            machine.handle_file_progress(progress, *now);
            return Continue(len);
        }
        Action::ReadFile(piece) => {
            let read = socket.read_file(&piece, slow)?;
            *now = clock::now();
            machine.handle_read(read, *now);
        }
        Action::CheckUnacked(check) => {
            let unacked = socket.unacked(&check, *now)?;
            machine.handle_unacked(unacked, *now);
        }
        Action::CheckQueues { asks_unsent } => {
            let queues = stream::queues(socket.as_fd(), asks_unsent);
            machine.handle_queues(queues, *now);
        }
        Action::Finish => machine.handle_finished(socket.finish(), *now),
        _ => unreachable!("the engine handles other actions"),
    }
    Continue(0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::time::Duration;

    use session::{Next, NoWork, Outbox, Phase, Received};

    use super::*;
    use crate::limits::Limits;
    use crate::shared::Shared;

    /// Answers each byte with this many.
    struct Answers(usize);

    impl Session for Answers {
        type Work = NoWork;

        fn receive(&mut self, input: &[u8], _now: Now, out: &mut Outbox) -> Received {
            for _ in input {
                out.put_shared(vec![b'x'; self.0].into());
            }
            Received { used: input.len(), next: Next::Receive(Phase::Idle) }
        }
    }

    /// Sends a reply of this length; `long_until` gives the end of long operations.
    fn sent(len: usize, long_until: impl FnOnce(Now) -> LongUntil) -> ControlFlow<Wait, u64> {
        let (near, _peer) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let mut now = clock::now();
        let shared = Arc::new(Shared::new(Limits::default(), None));
        let mut machine = Machine::new(shared, None, || None, now);
        machine.handle_opened(Answers(len), now);
        machine.handle_input(b"?", now);
        let mut socket = Socket::new(near.into(), true);
        let until = long_until(now);
        output(&mut machine, &mut socket, &mut now, until, None::<fn(DiskRead)>)
    }

    /// Seen: as in `a_turn_of_accepting_has_an_end`. Time for large replies counts as well.
    #[test]
    fn long_output_is_postponed_when_late() {
        let long = LONG_LEN as usize + 1;
        let is_over = |now: Now| Some(now.monotonic);
        let is_not = |now: Now| Some(now.monotonic + Duration::from_millis(1));
        assert!(matches!(sent(long, is_over), Break(Wait::Turn)));
        assert!(matches!(sent(long, is_not), Continue(1..)));
        assert!(matches!(sent(long, |_| None), Continue(1..)));
        // Short output leaves at once.
        assert!(matches!(sent(100, is_over), Continue(100)));
    }
}
