//! Does what a carriage wants to have sent, one thing at a time.

use std::io;
use std::ops::ControlFlow::{self, Break, Continue};
use std::os::fd::AsFd;

use session::{Now, Session};

use super::steps::{LONG_LEN, LongUntil, is_put_off};
use super::wire::{Waits, Wire};
use crate::carriage::{Carriage, Carried, Want};
use crate::clock;
use crate::file::DiskRead;
use crate::stream;

/// Does one thing that the carriage wants, if that is output. Says how much was sent. `now` is the
/// time of the last look; `slow` has files read that are not in memory. What is long waits for a
/// turn after `long_until`.
///
/// # Panics
/// If the carriage wants something else.
#[inline]
pub(crate) fn output<S: Session>(
    carriage: &mut Carriage<S>,
    wire: &mut Wire,
    now: &mut Now,
    long_until: LongUntil,
    slow: Option<impl FnOnce(DiskRead)>,
) -> ControlFlow<Waits, u64> {
    let want = carriage.want();
    let is_long = match &want {
        Want::Send { out, .. } => out.queued_len() > LONG_LEN,
        Want::File(piece) | Want::Read(piece) => piece.len > LONG_LEN,
        _ => false,
    };
    if is_long && is_put_off(now.monotonic, long_until) {
        return Break(Waits::Turn);
    }
    let sent = match want {
        Want::Send {
            out,
            until,
            is_last,
        } => {
            let sent = wire.send_out(out, until, is_last)?;
            match sent.taken {
                // What was taken at once took no time.
                Ok(len) if sent.is_all && !is_long && !carriage.is_timed() => {
                    carriage.sent(len, *now);
                    return Continue(len);
                }
                taken => taken,
            }
        }
        Want::File(piece) => {
            let carried = wire.carry_file(&piece, slow)?;
            let len = match &carried {
                Ok(Carried::Sent(len)) => *len,
                _ => 0,
            };
            tell(carriage, carried, look(now), Carriage::carried);
            return Continue(len);
        }
        Want::Read(piece) => {
            let read = wire.read_file(&piece, slow)?;
            tell(carriage, read, look(now), Carriage::read);
            return Continue(0);
        }
        Want::Untaken(look) => {
            let untaken = wire.untaken(&look, *now)?;
            tell(carriage, untaken, *now, Carriage::untaken);
            return Continue(0);
        }
        Want::Queues { asks_unsent } => {
            let queues = stream::queues(wire.as_fd(), asks_unsent);
            tell(carriage, queues, *now, Carriage::queues);
            return Continue(0);
        }
        Want::Finish => {
            tell(carriage, wire.finish(), *now, Carriage::finished);
            return Continue(0);
        }
        _ => unreachable!("its engine does what is no output"),
    };
    let len = *sent.as_ref().unwrap_or(&0);
    tell(carriage, sent, look(now), Carriage::sent);
    Continue(len)
}

fn look(now: &mut Now) -> Now {
    *now = clock::now();
    *now
}

/// Tells the carriage what came of what it wanted.
#[inline]
pub(crate) fn tell<S: Session, R>(
    carriage: &mut Carriage<S>,
    result: io::Result<R>,
    now: Now,
    told: impl FnOnce(&mut Carriage<S>, R, Now),
) {
    match result {
        Ok(result) => told(carriage, result, now),
        Err(error) => carriage.failed(&error, now),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::time::Duration;

    use session::{Next, Outbox, Phase, Received};

    use super::*;
    use crate::limits::Limits;
    use crate::shared::Shared;

    /// Answers each byte with so many.
    struct Answers(usize);

    impl Session for Answers {
        fn receive(&mut self, input: &[u8], _now: Now, out: &mut Outbox) -> Received {
            for _ in input {
                out.put_shared(vec![b'x'; self.0].into());
            }
            Received {
                used: input.len(),
                next: Next::Receive(Phase::Idle),
            }
        }
    }

    /// How much of a reply of this length is sent when long work ends so much earlier or later.
    fn sent(len: usize, long_until: impl FnOnce(Now) -> LongUntil) -> ControlFlow<Waits, u64> {
        let (near, _peer) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let mut now = clock::now();
        let shared = Arc::new(Shared::new(Limits::default(), None));
        let mut carriage = Carriage::new(shared, None, now);
        carriage.opened(Answers(len), now);
        carriage.input(b"?", now);
        let mut wire = Wire::new(near.into(), true);
        let until = long_until(now);
        output(
            &mut carriage,
            &mut wire,
            &mut now,
            until,
            None::<fn(DiskRead)>,
        )
    }

    /// Seen: as `a_turn_of_accepting_has_an_end`. What large replies take counts as well.
    #[test]
    fn long_output_is_put_off_when_its_time_is_over() {
        let long = LONG_LEN as usize + 1;
        let is_over = |now: Now| Some(now.monotonic);
        let is_not = |now: Now| Some(now.monotonic + Duration::from_millis(1));
        assert!(matches!(sent(long, is_over), Break(Waits::Turn)));
        assert!(matches!(sent(long, is_not), Continue(1..)));
        assert!(matches!(sent(long, |_| None), Continue(1..)));
        // What is short leaves at once.
        assert!(matches!(sent(100, is_over), Continue(100)));
    }
}
